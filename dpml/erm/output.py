"""Output perturbation: solve the regularised problem, then add Gaussian noise to the solution.

Objective, in sum form: J(θ) = Σᵢ ln(1 + exp(-yᵢ xᵢᵀθ)) + (λ/2)‖θ‖², λ = ``lambda_sum``, public.
The constant column is part of xᵢ: regularised, bounded and noised like every other coefficient.
Proof of the sensitivity: docs/proofs-objective.md, section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml.accounting import ADD_REMOVE, Event, Gaussian, calibrate
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

Charge = Callable[[Event], None]

UNLUCKY = 6.635  # 99 % quantile of χ² with one degree of freedom


@dataclass(frozen=True)
class OutputPlan:
    """What an output perturbation will do; public, made before a record is read.

    Attributes:
        epsilon, delta, neighboring_relation, accountant: the promise and who calibrated it.
        n_declared, n_features, norm_bound, solution_norm: public knowledge that it rests on.
        lambda_sum, regularization: λ of the sum form, and Λ = λ/n_declared of the mean form.
        tolerance: τ, the verified bound on ‖∇J‖ of the solution.
        sensitivity: L2 distance of the solutions of any two neighbours, the approximation included.
        noise_multiplier: of the event: ``noise_std`` ÷ one record's contribution (``sensitivity``, or half of it
            under replace_one).
        noise_std: standard deviation of the noise on every coefficient.
        event: what is charged.
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
    tolerance: float
    sensitivity: float
    noise_multiplier: float
    noise_std: float
    event: Event


def output_lambda(
    *, n_declared: int, norm_bound: float, solution_norm: float, noise_multiplier: float, changed: int
) -> float:
    """λ that minimises the predicted excess loss of an unlucky draw, from public values only (sum form).

    Noise of covariance (Δ₁ s/λ)² I costs about uᵀHu/2, with H the Hessian of Σℓ, so tr(H)(Δ₁ s/λ)²/2 on average; and
    tr(H) ≤ n β, β = R_x²/4 bounding each record's trace.  Most of tr(H) lies in one direction, the average record's,
    so the cost varies like a χ² of one degree, and the rule plans for its 99 % quantile, ``UNLUCKY`` times the mean.
    Regularisation costs at most λR²/2 for a solution of norm R = ``solution_norm``.  The sum
    UNLUCKY · nβ(Δ₁s)²/(2λ²) + λR²/2 is least at λ³ = 2 · UNLUCKY · nβ(Δ₁s)²/R².  Δ₁ = L or 2L (``changed``), s is
    the noise multiplier at unit sensitivity.
    """
    constants = logistic_constants(norm_bound)
    scaled = changed * constants.lipschitz * noise_multiplier / solution_norm
    return float((2.0 * UNLUCKY * n_declared * constants.smoothness * scaled**2) ** (1.0 / 3.0))


def output_sensitivity(*, norm_bound: float, lambda_sum: float, tolerance: float, changed: int) -> float:
    """L2 sensitivity of the released solution: ``changed`` · L/λ + 2τ/λ.

    λ-strong convexity gives ‖θ - θ'‖ ≤ ‖∇J'(θ) - ∇J(θ)‖/λ for exact minimisers, and the gradients differ by the
    ``changed`` records' terms, each at most L (Chaudhuri, Monteleoni & Sarwate 2011, corollary 8, has 2L/λ for
    replace_one).  λ is public and not divided by the actual number of records.
    """
    exact = changed * logistic_constants(norm_bound).lipschitz / lambda_sum
    return exact + approximation_slack(tolerance, lambda_sum)


def plan_output(
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
) -> OutputPlan:
    """Calibrate output perturbation for binary logistic regression; reads no record.

    Args:
        n_declared: public nominal number of records; used for the automatic λ and for a given Λ only.
        n_features: d, the constant column included.
        norm_bound: public bound R_x on ‖x‖, the constant column included.
        solution_norm: R of the automatic λ.
        regularization: ``"auto"`` or Λ in mean form.

    Raises:
        ConfigError: a value out of range, by name.  UnsupportedEventError: an accountant that cannot bound a Gaussian.
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
    multiplier = calibrate(
        Gaussian, epsilon=epsilon, delta=delta, accountant=accountant, neighboring_relation=neighboring_relation
    )
    # the event counts noise per record's contribution; the distance between neighbours is `changed` contributions
    unit_multiplier = multiplier / changed
    lambda_sum = given or output_lambda(
        n_declared=n_declared,
        norm_bound=norm_bound,
        solution_norm=solution_norm,
        noise_multiplier=unit_multiplier,
        changed=changed,
    )
    tolerance = solver_tolerance(norm_bound, n_declared)
    sensitivity = output_sensitivity(norm_bound=norm_bound, lambda_sum=lambda_sum, tolerance=tolerance, changed=changed)
    return OutputPlan(
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
        tolerance=tolerance,
        sensitivity=sensitivity,
        noise_multiplier=multiplier,
        noise_std=unit_multiplier * sensitivity,
        event=Gaussian(multiplier),
    )


def fit_output(
    plan: OutputPlan, x: ArrayLike, y_signed: ArrayLike, *, noise: NoiseSource, charge: Charge
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """The private parameters (d,) and *private* diagnostics; ``charge(plan.event)`` returns before anything is used.

    Args:
        x, y_signed: (n, n_features) and (n,) in {-1, +1}.  Rows are held to ``norm_bound`` here as well; a row with
            NaN or another label contributes nothing.  n = 0 is fine.
        noise: where the noise comes from.
        charge: records the event durably; when it raises, no noise is drawn and nothing is computed.

    Raises:
        SolverError: no verified minimum; nothing is released, what was charged stays charged.
    """
    charge(plan.event)
    rows, labels = bounded_rows(x, y_signed, norm_bound=plan.norm_bound, n_features=plan.n_features)
    solution = minimise(rows, labels, plan.lambda_sum, tolerance=plan.tolerance)
    theta = add_gaussian(
        solution.theta,
        sensitivity=plan.sensitivity,
        noise_multiplier=plan.noise_std / plan.sensitivity,
        noise=noise,
    )
    return theta, {"gradient_norm": solution.gradient_norm, "iterations": solution.iterations}
