"""Objective perturbation for logistic loss: a random linear term in the objective, then an (almost) exact minimum.

    J(θ) = Σᵢ ln(1 + exp(-yᵢ xᵢᵀθ)) + (λ/2)‖θ‖² + bᵀθ,   b ~ N(0, σ² I),   ‖xᵢ‖ ≤ R_x,   λ = ``lambda_sum`` public.

For λ ≥ R_x²/ε the exact minimum under add_remove is as private as the plain Gaussian mechanism: σ = R_x · s(ε, δ), no
price for the Jacobian.  The minimum found is only approximate (‖∇J‖ ≤ τ, verified), so a little more noise covers
the difference and takes ``OUTPUT_SHARE`` of the budget.  Proofs: docs/proofs-objective.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml import errors
from dpml.accounting import (
    ADD_REMOVE,
    Composed,
    Event,
    Gaussian,
    ObjectivePerturbation,
    calibrate,
    gaussian_noise_multiplier,
)
from dpml.erm.losses import logistic_constants
from dpml.erm.rows import bounded_rows
from dpml.erm.rules import (
    AUTO,
    Regularization,
    approximation_slack,
    changed_records,
    check_public,
    solver_tolerance,
    sum_form,
)
from dpml.erm.solver import minimise
from dpml.mechanisms import NoiseSource, add_gaussian

OUTPUT_SHARE = 0.005  # of epsilon and of delta, by basic composition

Charge = Callable[[Event], None]


@dataclass(frozen=True)
class ObjectivePlan:
    """What an objective perturbation will do; public, made before a record is read.

    Attributes:
        epsilon, delta, neighboring_relation, accountant: the promise and who calibrated it.
        n_declared, n_features, norm_bound, solution_norm: public knowledge that it rests on.
        lambda_sum, regularization: λ of the sum form, and Λ = λ/n_declared of the mean form.
        noise_std, noise_multiplier: σ of the linear term, and σ ÷ norm_bound.
        tolerance: τ, the verified bound on ‖∇J‖ of the solution.
        output_sensitivity, output_std: 2τ/λ, and the standard deviation of the noise that covers it.
        event: what is charged, both releases.
    """

    epsilon: float
    delta: float
    neighboring_relation: str
    accountant: str
    n_declared: int
    n_features: int
    norm_bound: float
    solution_norm: float
    lambda_sum: float
    regularization: float
    noise_std: float
    noise_multiplier: float
    tolerance: float
    output_sensitivity: float
    output_std: float
    event: Event


def objective_lambda(
    *, noise_std: float, norm_bound: float, n_features: int, solution_norm: float, epsilon: float
) -> float:
    """λ = max(R_x²/ε, √d σ/R), from public values only; ``epsilon`` is the share of one record more or less.

    Below R_x²/ε the theorem does not apply.  Beyond it λ balances the two costs: the linear term costs at most
    E‖b‖²/(2λ) = dσ²/(2λ), regularisation at most λR²/2 for a solution of norm R; their sum is least at λ = √d σ/R.
    """
    return max(norm_bound**2 / epsilon, math.sqrt(n_features) * noise_std / solution_norm)


def plan_objective(
    *,
    n_declared: int,
    n_features: int,
    epsilon: float,
    delta: float,
    neighboring_relation: str = ADD_REMOVE,
    norm_bound: float = 1.0,
    solution_norm: float = 15.0,
    regularization: Regularization = AUTO,
    accountant: str = "best",
) -> ObjectivePlan:
    """Calibrate objective perturbation for binary logistic regression; reads no record.

    Arguments as for :func:`dpml.erm.output.plan_output`.  A given ``regularization`` (Λ, mean form) may lie below the
    theorem's λ; the accountant then pays the Jacobian constant, and a Λ for which that alone passes the budget is
    refused.  Under replace_one the guarantee is the group of two of add_remove.

    Raises:
        ConfigError: a value out of range, by name.
        UnsupportedEventError: an accountant that cannot bound objective perturbation (``zcdp``, ``pld``; ``exact``
            because two releases are composed; ``rdp`` under replace_one).
    """
    check_public(
        n_declared=n_declared,
        n_features=n_features,
        epsilon=epsilon,
        delta=delta,
        neighboring_relation=neighboring_relation,
        norm_bound=norm_bound,
        solution_norm=solution_norm,
    )
    changed = changed_records(neighboring_relation)
    given = sum_form(regularization, n_declared)
    one_epsilon = (1.0 - OUTPUT_SHARE) * epsilon / changed
    if given is not None:
        _check_feasible(given, one_epsilon, norm_bound, n_declared, regularization)
    # two approximate minima are 2τ/λ apart under either relation, so per contribution it is (2τ/λ)/changed
    output_unit = gaussian_noise_multiplier(OUTPUT_SHARE * epsilon, OUTPUT_SHARE * delta)
    output_event = Gaussian(output_unit * changed)

    def lambda_of(noise_std: float) -> float:
        return given or objective_lambda(
            noise_std=noise_std,
            norm_bound=norm_bound,
            n_features=n_features,
            solution_norm=solution_norm,
            epsilon=one_epsilon,
        )

    def event_of(noise_multiplier: float) -> Event:
        std = noise_multiplier * norm_bound
        perturbed = ObjectivePerturbation(noise_std=std, lambda_sum=lambda_of(std), norm_bound=norm_bound)
        return Composed((perturbed, output_event))

    multiplier = calibrate(
        event_of, epsilon=epsilon, delta=delta, accountant=accountant, neighboring_relation=neighboring_relation
    )
    noise_std = multiplier * norm_bound
    lambda_sum = lambda_of(noise_std)
    tolerance = solver_tolerance(norm_bound, n_declared)
    slack = approximation_slack(tolerance, lambda_sum)
    return ObjectivePlan(
        epsilon=epsilon,
        delta=delta,
        neighboring_relation=neighboring_relation,
        accountant=accountant,
        n_declared=n_declared,
        n_features=n_features,
        norm_bound=norm_bound,
        solution_norm=solution_norm,
        lambda_sum=lambda_sum,
        regularization=lambda_sum / n_declared,
        noise_std=noise_std,
        noise_multiplier=multiplier,
        tolerance=tolerance,
        output_sensitivity=slack,
        output_std=output_unit * slack,
        event=event_of(multiplier),
    )


def _check_feasible(
    lambda_sum: float, one_epsilon: float, norm_bound: float, n_declared: int, regularization: Regularization
) -> None:
    """A Jacobian constant c₀ = ln(1 + β/λ) of the whole ε leaves nothing for the noise, however large."""
    smoothness = logistic_constants(norm_bound).smoothness
    if math.log1p(smoothness / lambda_sum) >= one_epsilon:
        least = smoothness / math.expm1(one_epsilon) / n_declared if one_epsilon < 700.0 else 0.0
        free = norm_bound**2 / one_epsilon / n_declared
        raise errors.invalid(
            "regularization",
            regularization,
            f"above {least:.3g} (mean form) for this epsilon and n_declared",
            f"From {free:.3g} on it costs no extra noise; regularization='auto' takes care of it.",
        )


def linear_term(plan: ObjectivePlan, noise: NoiseSource) -> NDArray[np.float64]:
    """b ~ N(0, noise_std² I), shape (n_features,), one draw per coefficient with the constant column's included."""
    return noise.normal(plan.noise_std, plan.n_features)


def fit_objective(
    plan: ObjectivePlan, x: ArrayLike, y_signed: ArrayLike, *, noise: NoiseSource, charge: Charge
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """The private parameters (d,) and *private* diagnostics; ``charge(plan.event)`` returns before anything is used.

    Arguments and errors as for :func:`dpml.erm.output.fit_output`.
    """
    charge(plan.event)
    rows, labels = bounded_rows(x, y_signed, norm_bound=plan.norm_bound, n_features=plan.n_features)
    solution = minimise(rows, labels, plan.lambda_sum, linear=linear_term(plan, noise), tolerance=plan.tolerance)
    theta = add_gaussian(
        solution.theta,
        sensitivity=plan.output_sensitivity,
        noise_multiplier=plan.output_std / plan.output_sensitivity,
        noise=noise,
    )
    return theta, {"gradient_norm": solution.gradient_norm, "iterations": solution.iterations}
