"""Ridge regression over a ball, and its output perturbation.

Objective, in sum form: J(θ) = ½‖Xθ - y‖² + (λ/2)‖θ‖² over ‖θ‖ ≤ S, with |y| ≤ 1 and ‖x‖ ≤ R public.  Over all θ the
gradient of squared loss is unbounded; over the ball a record's is at most L = R(R S + 1), which is what the proof needs
(docs/proofs-linear.md, sections 1 and 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from scipy.optimize import brentq

from dpml import errors
from dpml.accounting import ADD_REMOVE, Event, Gaussian, calibrate
from dpml.erm.losses import Rows, Squared, Vector, weighted_gram
from dpml.erm.output import Charge, output_lambda, output_sensitivity
from dpml.erm.rows import bounded_rows
from dpml.erm.rules import (
    AUTO,
    Regularization,
    changed_records,
    check_lambda,
    check_public,
    check_scales,
    least_lambda,
    solver_tolerance,
    sum_form,
)
from dpml.erm.solver import ROUNDING_SHARE, rounding_estimate
from dpml.mechanisms import NoiseSource, add_gaussian

BALL_RADIUS = 2.0  # S where none is given: of 0.5, 1, 2 and 4 the best on three of five sets from ε = 1 on
REFINEMENTS = 3


@dataclass(frozen=True)
class BallSolution:
    """A verified minimiser over the ball.

    Attributes:
        theta: (d,) float64.
        multiplier: μ ≥ 0 of ‖θ‖ ≤ S; 0 where the bound is not active.  Private, as is the rest.
        residual: τ, such that the exact minimiser is within τ/λ of ``theta``.
    """

    theta: Vector
    multiplier: float
    residual: float


def solve_in_ball(values: Vector, vectors: Vector, linear: Vector, radius: float) -> tuple[Vector, float]:
    """argmin of ½ θᵀQθ - linearᵀθ over ‖θ‖ ≤ ``radius``, and the multiplier μ ≥ 0 of the bound.

    Q = ``vectors`` diag(``values``) ``vectors``ᵀ, all values ≥ 0.  θ(μ) = (Q + μI)⁻¹ linear has a norm that falls with
    μ; where ‖θ(0)‖ exceeds the radius, the secular equation 1/‖θ(μ)‖ = 1/radius is solved (concave and nearly linear in
    μ: Conn, Gould & Toint 2000, section 7.3).  ‖θ(μ)‖ ≤ ‖linear‖/μ gives the upper end.
    """
    turned = vectors.T @ linear
    size = float(np.linalg.norm(turned))
    if size == 0.0:
        return np.zeros_like(linear), 0.0

    def at(mu: float) -> Vector:
        with np.errstate(divide="ignore", over="ignore"):
            return np.where(turned == 0.0, 0.0, turned / np.where(turned == 0.0, 1.0, values + mu))

    def gap(mu: float) -> float:
        norm = float(np.linalg.norm(at(mu)))
        return (1.0 / norm if np.isfinite(norm) else 0.0) - 1.0 / radius

    if gap(0.0) >= 0.0:
        return vectors @ at(0.0), 0.0
    high = 1.1 * size / radius  # there the gap is positive, rounding or not
    mu = float(brentq(gap, 0.0, high, xtol=1e-15 * high, rtol=4 * np.finfo(float).eps))
    theta = vectors @ at(mu)
    return theta * (radius / float(np.linalg.norm(theta))), mu


def minimise_in_ball(x: Rows, y: Vector, lambda_sum: float, radius: float, tolerance: float) -> BallSolution:
    """argmin of ½‖Xθ - y‖² + (lambda_sum/2)‖θ‖² over ‖θ‖ ≤ ``radius``, verified to be within ``tolerance``/λ.

    Args:
        x, y: (n, d), dense or CSR, and (n,); finite.
        lambda_sum, radius, tolerance: λ (sum form), S and τ, all > 0.

    Raises:
        ConfigError: a value out of range.
        SolverError: the residual could not be brought below half of the tolerance; nothing is released.
    """
    for name, number in (("lambda_sum", lambda_sum), ("radius", radius), ("tolerance", tolerance)):
        if not (np.isfinite(number) and number > 0.0):
            raise errors.invalid(name, number, "a finite number > 0")
    d = x.shape[1]
    gram = weighted_gram(x, np.ones(x.shape[0]))
    values, vectors = eigh(gram + lambda_sum * np.eye(d))
    values = np.maximum(values, lambda_sum)
    linear = np.asarray(x.T @ y, dtype=np.float64)
    theta, mu = solve_in_ball(values, vectors, linear, radius)
    goal = ROUNDING_SHARE * tolerance
    for _ in range(REFINEMENTS):
        residual = kkt_residual(x, y, lambda_sum, radius, theta, mu)
        if residual <= goal:
            break
        gradient = kkt_gradient(x, y, lambda_sum, theta, mu)
        theta = theta - vectors @ ((vectors.T @ gradient) / (values + mu))
        if mu > 0.0:
            theta = theta * (radius / float(np.linalg.norm(theta)))
    residual = kkt_residual(x, y, lambda_sum, radius, theta, mu)
    rounding = rounding_estimate(Squared(radius), theta, x, y, lambda_sum + mu, None)
    if not (residual <= goal and rounding <= goal):
        raise errors.SolverError(
            f"the minimum over the ball has a residual of {residual:.3g} with rounding up to {rounding:.3g}, but the "
            f"privacy proof needs both below {goal:.3g} (half of the tolerance). Nothing was released. Use a larger "
            "regularization."
        )
    return BallSolution(theta, mu, residual)


def kkt_gradient(x: Rows, y: Vector, lambda_sum: float, theta: Vector, multiplier: float) -> Vector:
    """∇J(θ) + μθ, from the records afresh; shape (d,)."""
    return np.asarray(x.T @ (x @ theta - y), dtype=np.float64) + (lambda_sum + multiplier) * theta


def kkt_residual(x: Rows, y: Vector, lambda_sum: float, radius: float, theta: Vector, multiplier: float) -> float:
    """τ with ‖θ - exact minimiser‖ ≤ τ/λ, for any θ and any μ ≥ 0 (docs/proofs-linear.md, section 2).

    ‖∇J(θ) + μθ‖, plus for μ > 0 what it takes to move θ onto the sphere, or into the ball for μ = 0:
    (tr XᵀX + 2λ + μ) times the distance.
    """
    gap = abs(radius - float(np.linalg.norm(theta))) if multiplier > 0.0 else outside(theta, radius)
    weight = 2.0 * lambda_sum + multiplier
    if gap > 0.0:
        weight += float((x.multiply(x) if hasattr(x, "multiply") else np.square(x)).sum())
    with np.errstate(invalid="ignore"):  # NaN gives NaN, which no tolerance admits
        return float(np.linalg.norm(kkt_gradient(x, y, lambda_sum, theta, multiplier))) + weight * gap


def outside(theta: Vector, radius: float) -> float:
    """Distance of θ from the ball."""
    return max(0.0, float(np.linalg.norm(theta)) - radius)


# ---------------------------------------------------------------------------------------------- output perturbation


@dataclass(frozen=True)
class OutputRidgePlan:
    """What an output perturbation of ridge regression will do; public, made before a record is read.

    Attributes:
        epsilon, delta, neighboring_relation, accountant: the promise and who calibrated it.
        n_declared, n_features, norm_bound, solution_norm: public knowledge; ``solution_norm`` is the radius S.
        lambda_sum, regularization: λ of the sum form, and Λ = λ/n_declared of the mean form.
        tolerance: τ, the verified bound on the residual.
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


def ridge_output_lambda(
    *, n_declared: int, norm_bound: float, solution_norm: float, noise_multiplier: float, changed: int
) -> float:
    """λ³ = 2 · 6.635 · nβ(Δ₁s)²/S², the rule of :func:`~dpml.erm.output.output_lambda`, with β = R² and
    Δ₁ = ``changed`` · R(R S + 1) of squared loss over the ball (sum form, public values only)."""
    return output_lambda(
        n_declared=n_declared,
        norm_bound=norm_bound,
        solution_norm=solution_norm,
        noise_multiplier=noise_multiplier,
        changed=changed,
        constants=Squared(solution_norm).constants(norm_bound),
    )


def ridge_output_sensitivity(
    *, norm_bound: float, solution_norm: float, lambda_sum: float, tolerance: float, changed: int
) -> float:
    """L2 sensitivity of the released solution: ``changed`` · R(R S + 1)/λ + 2τ/λ (docs/proofs-linear.md, section 2)."""
    return output_sensitivity(
        norm_bound=norm_bound,
        lambda_sum=lambda_sum,
        tolerance=tolerance,
        changed=changed,
        lipschitz=Squared(solution_norm).constants(norm_bound).lipschitz,
    )


def plan_output_ridge(
    *,
    n_declared: int,
    n_features: int,
    epsilon: float,
    delta: float,
    neighboring_relation: str = ADD_REMOVE,
    norm_bound: float = 1.0,
    solution_norm: float = BALL_RADIUS,
    regularization: Regularization = AUTO,
    accountant: str = "best",
) -> OutputRidgePlan:
    """Calibrate output perturbation for ridge regression over ‖θ‖ ≤ ``solution_norm``; reads no record.

    Args:
        n_declared: public nominal number of records; used for the automatic λ, a given Λ and τ only.
        n_features: d, the constant column included.
        norm_bound: public bound R on ‖x‖, the constant column included.
        solution_norm: S, the radius.  The noise grows with it, so it should be no larger than needed.
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
    constants = Squared(solution_norm).constants(norm_bound)
    given = sum_form(regularization, n_declared)
    if given is not None:
        check_lambda(given, constants.smoothness, n_declared, regularization)
    multiplier = calibrate(
        Gaussian, epsilon=epsilon, delta=delta, accountant=accountant, neighboring_relation=neighboring_relation
    )
    unit_multiplier = multiplier / changed  # the event counts noise per record's contribution
    chosen = ridge_output_lambda(
        n_declared=n_declared,
        norm_bound=norm_bound,
        solution_norm=solution_norm,
        noise_multiplier=unit_multiplier,
        changed=changed,
    )
    lambda_sum = given or max(chosen, least_lambda(constants.smoothness))
    tolerance = solver_tolerance(norm_bound, n_declared, lipschitz=constants.lipschitz)
    sensitivity = ridge_output_sensitivity(
        norm_bound=norm_bound,
        solution_norm=solution_norm,
        lambda_sum=lambda_sum,
        tolerance=tolerance,
        changed=changed,
    )
    noise_std = unit_multiplier * sensitivity
    values = {
        "norm_bound": norm_bound,
        "solution_norm": solution_norm,
        "regularization": regularization,
        "epsilon": epsilon,
    }
    check_scales(values, lambda_sum=lambda_sum, tolerance=tolerance, sensitivity=sensitivity, noise_std=noise_std)
    return OutputRidgePlan(
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
        event=Gaussian(multiplier),
    )


def fit_output_ridge(
    plan: OutputRidgePlan, x: Any, y: ArrayLike, *, noise: NoiseSource, charge: Charge
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """The private parameters (d,) and *private* diagnostics; ``charge(plan.event)`` returns before anything is used.

    Args:
        x, y: (n, n_features), dense or CSR, and (n,) targets.  Rows are held to ``norm_bound`` and targets to [-1, 1]
            here as well; a record with NaN contributes nothing.  n = 0 is fine.
        noise: where the noise comes from.
        charge: records the event durably; when it raises, no noise is drawn and nothing is computed.

    Raises:
        SolverError: no verified minimum; nothing is released, what was charged stays charged.
    """
    charge(plan.event)
    rows, targets = bounded_rows(x, y, norm_bound=plan.norm_bound, n_features=plan.n_features, real_targets=True)
    solution = minimise_in_ball(rows, targets, plan.lambda_sum, plan.solution_norm, plan.tolerance)
    theta = add_gaussian(
        solution.theta,
        sensitivity=plan.sensitivity,
        noise_multiplier=plan.noise_std / plan.sensitivity,
        noise=noise,
    )
    return theta, {"residual": solution.residual, "multiplier": solution.multiplier}
