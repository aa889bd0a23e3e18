"""Output perturbation: solve the regularised problem, then add noise to the solution.

Objective, in sum form: J(θ) = Σᵢ ℓ(xᵢᵀθ, yᵢ) + (λ/2)‖θ‖², λ = ``lambda_sum``, public; K problems, one against the rest,
for K > 2 classes, or one softmax problem over K·d parameters.  The constant column is part of xᵢ: regularised, bounded
and noised like every other coefficient.  Proof of the sensitivity: docs/proofs-objective.md, section 5; it needs a
convex loss with a bounded gradient and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml.accounting import ADD_REMOVE, Event, Gaussian, Pure, calibrate
from dpml.erm.losses import SOFTMAX, LossConstants, logistic_constants, make_loss, require, softmax_constants
from dpml.erm.problems import problem_count, problem_targets, solve_all
from dpml.erm.rules import (
    AUTO,
    Regularization,
    approximation_slack,
    changed_records,
    check_lambda,
    check_public,
    check_scales,
    least_lambda,
    solver_tolerance,
    sum_form,
)
from dpml.errors import invalid
from dpml.mechanisms import NoiseSource, add_gaussian, add_norm_gamma

Charge = Callable[[Event], None]

UNLUCKY = 6.635  # 99 % quantile of χ² with one degree of freedom
NOISES = ("gaussian", "gamma")


@dataclass(frozen=True)
class OutputPlan:
    """What an output perturbation will do; public, made before a record is read.

    Attributes:
        epsilon, delta, neighboring_relation, accountant: the promise and who calibrated it.
        n_declared, n_features, norm_bound, solution_norm: public knowledge that it rests on.
        lambda_sum, regularization: λ of the sum form, and Λ = λ/n_declared of the mean form.
        tolerance: τ, the verified bound on ‖∇J‖ of each solution.
        sensitivity: L2 distance of the solutions of any two neighbours, all problems and the approximation included.
        noise_multiplier: of the event: ``noise_std`` ÷ one record's contribution (``sensitivity``, or half of it
            under replace_one).
        noise_std: standard deviation of the noise on every coefficient.
        event: what is charged.
        loss, loss_parameter, n_classes: the problem.
        noise: ``"gaussian"``, or ``"gamma"`` for pure ε.
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
    loss: str = "logistic"
    loss_parameter: float | None = None
    n_classes: int = 2
    noise: str = "gaussian"


def output_lambda(
    *,
    n_declared: int,
    norm_bound: float,
    solution_norm: float,
    noise_multiplier: float,
    changed: int,
    constants: LossConstants | None = None,
) -> float:
    """λ that minimises the predicted excess loss of an unlucky draw, from public values only (sum form).

    Noise of covariance (Δ₁ s/λ)² I costs about uᵀHu/2, with H the Hessian of Σℓ, so tr(H)(Δ₁ s/λ)²/2 on average; and
    tr(H) ≤ n β · rank, β bounding each record's top eigenvalue.  Most of tr(H) lies in one direction, the average
    record's, so the cost varies like a χ² of one degree, and the rule plans for its 99 % quantile, ``UNLUCKY`` times
    the mean.  Regularisation costs at most λR²/2 for a solution of norm R = ``solution_norm``.  The sum
    UNLUCKY · nβ(Δ₁s)²/(2λ²) + λR²/2 is least at λ³ = 2 · UNLUCKY · nβ(Δ₁s)²/R².  Δ₁ = L or 2L (``changed``), s is
    the noise multiplier at unit sensitivity; ``constants`` are logistic loss's where none are given.
    """
    known = logistic_constants(norm_bound) if constants is None else constants
    scaled = changed * known.lipschitz * noise_multiplier / solution_norm
    return float((2.0 * UNLUCKY * n_declared * known.smoothness * known.rank * scaled**2) ** (1.0 / 3.0))


def output_sensitivity(
    *, norm_bound: float, lambda_sum: float, tolerance: float, changed: int, lipschitz: float | None = None
) -> float:
    """L2 sensitivity of one problem's released solution: ``changed`` · L/λ + 2τ/λ.

    λ-strong convexity gives ‖θ - θ'‖ ≤ ‖∇J'(θ) - ∇J(θ)‖/λ for exact minimisers, and the gradients differ by the
    ``changed`` records' terms, each at most L (Chaudhuri, Monteleoni & Sarwate 2011, corollary 8, has 2L/λ for
    replace_one).  λ is public and not divided by the actual number of records.
    """
    reach = logistic_constants(norm_bound).lipschitz if lipschitz is None else lipschitz
    return changed * reach / lambda_sum + approximation_slack(tolerance, lambda_sum)


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
    loss: str = "logistic",
    loss_parameter: float | None = None,
    n_classes: int = 2,
    noise: str = "gaussian",
) -> OutputPlan:
    """Calibrate output perturbation; reads no record.

    Args:
        n_declared: public nominal number of records; used for the automatic λ and for a given Λ only.
        n_features: d, the constant column included.
        norm_bound: public bound R_x on ‖x‖, the constant column included.
        solution_norm: R of the automatic λ.
        regularization: ``"auto"`` or Λ in mean form.
        loss, loss_parameter: ``"logistic"``, ``"smoothed_hinge"`` (width), ``"huber"`` (threshold) or ``"softmax"``.
        n_classes: K; for K > 2 one problem a class, whose joint L2 sensitivity is √K times one problem's (softmax is
            one problem).
        noise: ``"gaussian"``, or ``"gamma"``: density ∝ exp(−ε‖b‖/Δ), pure ε with ``delta`` = 0.

    Raises:
        ConfigError: a value out of range, by name.  UnsupportedEventError: an accountant that cannot bound the event.
    """
    if noise not in NOISES:
        raise invalid("noise", noise, f"one of {list(NOISES)}")
    pure = noise == "gamma"
    check_public(
        n_declared=n_declared,
        n_features=n_features,
        epsilon=epsilon,
        delta=delta,
        neighboring_relation=neighboring_relation,
        norm_bound=norm_bound,
        solution_norm=solution_norm,
        pure=pure,
    )
    constants, problems = _constants(loss, loss_parameter, n_classes, norm_bound)
    changed = changed_records(neighboring_relation)
    joint = math.sqrt(problems)
    event: Event
    if pure:
        size = n_features * (n_classes if problems > 1 or loss == SOFTMAX else 1)
        # E‖b‖²/D = (D + 1)(Δ/ε)²: the standard deviation of one coordinate, in units of the sensitivity Δ
        unit, event = math.sqrt(size + 1.0) / epsilon, Pure(epsilon)
        multiplier = unit * changed
    else:
        multiplier = calibrate(
            Gaussian, epsilon=epsilon, delta=delta, accountant=accountant, neighboring_relation=neighboring_relation
        )
        # the multiplier counts in contributions of one record, the distance of neighbours is `changed` contributions
        unit, event = multiplier / changed, Gaussian(multiplier)
    given = sum_form(regularization, n_declared)
    if given is not None:
        check_lambda(given, constants.smoothness, n_declared, regularization)
    chosen = output_lambda(
        n_declared=n_declared,
        norm_bound=norm_bound,
        solution_norm=solution_norm,
        noise_multiplier=unit * joint,
        changed=changed,
        constants=constants,
    )
    lambda_sum = given or max(chosen, least_lambda(constants.smoothness))
    tolerance = solver_tolerance(norm_bound, n_declared, lipschitz=constants.lipschitz)
    sensitivity = joint * output_sensitivity(
        norm_bound=norm_bound,
        lambda_sum=lambda_sum,
        tolerance=tolerance,
        changed=changed,
        lipschitz=constants.lipschitz,
    )
    noise_std = unit * sensitivity
    values = {
        "norm_bound": norm_bound,
        "solution_norm": solution_norm,
        "regularization": regularization,
        "epsilon": epsilon,
    }
    check_scales(values, lambda_sum=lambda_sum, tolerance=tolerance, sensitivity=sensitivity, noise_std=noise_std)
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
        noise_std=noise_std,
        event=event,
        loss=loss,
        loss_parameter=loss_parameter,
        n_classes=n_classes,
        noise=noise,
    )


def _constants(loss: str, parameter: float | None, n_classes: int, norm_bound: float) -> tuple[LossConstants, int]:
    """One problem's constants, and how many problems there are."""
    if loss == SOFTMAX:
        if parameter is not None:
            raise invalid("loss_parameter", parameter, "left out with loss='softmax'")
        return softmax_constants(norm_bound, n_classes), 1
    made = make_loss(loss, parameter)
    require(made, "output")
    return made.constants(norm_bound), problem_count(made, n_classes)


def fit_output(
    plan: OutputPlan, x: Any, y: ArrayLike, *, noise: NoiseSource, charge: Charge
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """The private parameters, (d,) or (K, d), and *private* diagnostics; ``charge(plan.event)`` comes first.

    Args:
        x: (n, n_features), dense or CSR.  Rows are held to ``norm_bound`` here as well; a row with NaN contributes
            nothing.  n = 0 is fine.
        y: (n,) in {-1, +1} for two classes, class indexes for more (and for softmax), numbers in [−1, 1] for Huber;
            a record with another target contributes nothing.
        noise: where the noise comes from.
        charge: records the event durably; when it raises, no noise is drawn and nothing is computed.

    Raises:
        SolverError: no verified minimum; nothing is released, what was charged stays charged.
    """
    charge(plan.event)
    theta, diagnostics = _solutions(plan, x, y)
    if plan.noise == "gamma":
        released = add_norm_gamma(theta, sensitivity=plan.sensitivity, epsilon=plan.epsilon, noise=noise)
    else:
        multiplier = plan.noise_std / plan.sensitivity
        released = add_gaussian(theta, sensitivity=plan.sensitivity, noise_multiplier=multiplier, noise=noise)
    return released, diagnostics


def _solutions(plan: OutputPlan, x: Any, y: ArrayLike) -> tuple[NDArray[np.float64], dict[str, Any]]:
    if plan.loss == SOFTMAX:
        from dpml.erm.softmax import softmax_solution

        return softmax_solution(plan, x, y)
    loss = make_loss(plan.loss, plan.loss_parameter)
    rows, targets = problem_targets(
        loss,
        x,
        y,
        norm_bound=plan.norm_bound,
        n_features=plan.n_features,
        n_problems=problem_count(loss, plan.n_classes),
    )
    solved = solve_all(loss, rows, targets, plan.lambda_sum, None, plan.tolerance)
    return solved.theta, solved.diagnostics
