"""The regularised minimum of a convex objective, with a gradient norm that is checked after the solver stopped.

Private ERM needs more than a solver's own word: the proofs allow ‖∇J‖ ≤ τ and no more.  So the answer is verified,
with half of τ left for the rounding of the sums, or :class:`~dpml.errors.SolverError` is raised and nothing comes out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, cg

from dpml import errors
from dpml.erm.losses import LOGISTIC, GlmLoss, Rows, Vector, hessian, hessian_vector, value_and_gradient

MAX_QUASI_NEWTON = 30  # cheap first stage
MAX_NEWTON = 200
MAX_HALVINGS = 60
DENSE_LIMIT = 1500  # features up to which the Hessian is formed
ROUNDING_SHARE = 0.5  # the computed norm must be below this share of the tolerance, the rest covers rounding
SUFFICIENT_DECREASE = 1e-4


@dataclass(frozen=True)
class Solution:
    """A verified approximate minimiser.

    Attributes:
        theta: parameters, shape (d,), float64.
        gradient_norm: ‖∇J(theta)‖ as computed, at most half the tolerance.  Depends on the records: private.
        iterations: of both stages together; private.
    """

    theta: NDArray[np.float64]
    gradient_norm: float
    iterations: int


def minimise(
    x: Rows,
    y: ArrayLike,
    lambda_sum: float,
    linear: ArrayLike | None = None,
    tolerance: float = 1e-6,
    loss: GlmLoss = LOGISTIC,
) -> Solution:
    """argmin of J(θ) = Σ ℓ(xᵢᵀθ, yᵢ) + (lambda_sum/2)‖θ‖² + linearᵀθ (sum form) with ‖∇J‖ ≤ ``tolerance``.

    A few L-BFGS steps, then damped Newton steps (Cholesky, or conjugate gradients above ``DENSE_LIMIT`` features).
    J is strongly convex for lambda_sum > 0, so there is one minimum and Newton with a line search gets to it; no
    records at all (n = 0) is a fine case with minimum -linear/lambda_sum.

    Args:
        x, y: (n, d), finite, dense or CSR, and (n,) targets as the loss takes them.
        lambda_sum: λ > 0, sum form.
        linear: (d,), the noise of objective perturbation, or ``None``.
        tolerance: τ > 0, a bound on the L2 norm of the gradient.

    Raises:
        ConfigError: lambda_sum or tolerance out of range.
        SolverError: the gradient norm could not be brought to the tolerance.
    """
    for name, number in (("lambda_sum", lambda_sum), ("tolerance", tolerance)):
        if not (np.isfinite(number) and number > 0.0):
            raise errors.invalid(name, number, "a finite number > 0")
    rows = x if sparse.issparse(x) else np.asarray(x, dtype=np.float64)
    labels = np.asarray(y, dtype=np.float64)
    shift = None if linear is None else np.asarray(linear, dtype=np.float64)
    goal = ROUNDING_SHARE * tolerance

    theta, first = _quasi_newton(loss, rows, labels, lambda_sum, shift, goal)
    theta, second = _newton(loss, theta, rows, labels, lambda_sum, shift, goal)
    norm = gradient_norm(loss, theta, rows, labels, lambda_sum, shift)
    rounding = rounding_estimate(loss, theta, rows, labels, lambda_sum, shift)
    if not (norm <= goal and rounding <= goal):
        raise errors.SolverError(
            f"the solver stopped at a gradient norm of {norm:.3g} with rounding up to {rounding:.3g}, but the privacy "
            f"proof needs both below {goal:.3g} (half of the tolerance). Nothing was released. Use a larger tolerance "
            "or regularization."
        )
    return Solution(theta=theta, gradient_norm=norm, iterations=first + second)


def gradient_norm(loss: GlmLoss, theta: Vector, x: Rows, y: Vector, lambda_sum: float, linear: Vector | None) -> float:
    """‖∇J(theta)‖, computed afresh from the records; the check that a solution is what the proof needs."""
    with np.errstate(invalid="ignore"):  # NaN gives NaN, which no tolerance admits
        return float(np.linalg.norm(value_and_gradient(loss, theta, x, y, lambda_sum, linear)[1]))


def rounding_estimate(
    loss: GlmLoss, theta: Vector, x: Rows, y: Vector, lambda_sum: float, linear: Vector | None
) -> float:
    """How far the computed gradient can be from the true one, by the usual model of floating-point sums.

    u (√n Σ |ℓ'ᵢ|‖xᵢ‖ + λ‖θ‖ + ‖b‖) for adding the terms up (a sum of n terms loses about √n roundings), and
    u √d ‖θ‖ Σ ℓ''ᵢ‖xᵢ‖² for the scores; u the unit roundoff.
    """
    n, d = x.shape
    with np.errstate(invalid="ignore"):
        norms = row_norms(x)
        z = x @ theta
        size = float(np.linalg.norm(theta))
        total = np.sqrt(n) * float(np.abs(loss.slope(z, y)) @ norms) + lambda_sum * size
        total += np.sqrt(d) * size * float(loss.curvature(z, y) @ norms**2)
    if linear is not None:
        total += float(np.linalg.norm(linear))
    return float(np.finfo(np.float64).eps) * total


def row_norms(x: Rows) -> Vector:
    """L2 norms of the rows, shape (n,)."""
    if sparse.issparse(x):
        return np.sqrt(np.asarray(x.multiply(x).sum(axis=1), dtype=np.float64).reshape(-1))
    return np.sqrt(np.einsum("ij,ij->i", x, x))


def _quasi_newton(
    loss: GlmLoss, x: Rows, y: Vector, lambda_sum: float, linear: Vector | None, goal: float
) -> tuple[Vector, int]:
    start = np.zeros(x.shape[1])
    if x.shape[0] == 0 and linear is not None:
        return -linear / lambda_sum, 0
    result = minimize(
        lambda theta: value_and_gradient(loss, theta, x, y, lambda_sum, linear),
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": MAX_QUASI_NEWTON, "maxcor": 20, "ftol": 0.0, "gtol": goal / np.sqrt(max(1, x.shape[1]))},
    )
    theta = np.asarray(result.x, dtype=np.float64)
    return (theta if np.isfinite(theta).all() else start), int(result.nit)


def _newton(
    loss: GlmLoss, theta: Vector, x: Rows, y: Vector, lambda_sum: float, linear: Vector | None, goal: float
) -> tuple[Vector, int]:
    value, gradient = value_and_gradient(loss, theta, x, y, lambda_sum, linear)
    norm = float(np.linalg.norm(gradient))
    for iteration in range(MAX_NEWTON):
        if norm <= goal:
            return theta, iteration
        step = _newton_direction(loss, theta, x, y, lambda_sum, gradient)
        slope = float(gradient @ step)
        length = 1.0
        for _ in range(MAX_HALVINGS):
            trial = theta + length * step
            trial_value, trial_gradient = value_and_gradient(loss, trial, x, y, lambda_sum, linear)
            trial_norm = float(np.linalg.norm(trial_gradient))
            # near the minimum the value is flat to rounding, and there the gradient norm is what falls
            if trial_value <= value + SUFFICIENT_DECREASE * length * slope or trial_norm < 0.9 * norm:
                break
            length /= 2.0
        else:
            return theta, iteration
        theta, value, gradient, norm = trial, trial_value, trial_gradient, trial_norm
    return theta, MAX_NEWTON


def _newton_direction(loss: GlmLoss, theta: Vector, x: Rows, y: Vector, lambda_sum: float, gradient: Vector) -> Vector:
    d = x.shape[1]
    if d <= DENSE_LIMIT:
        try:
            return -cho_solve(cho_factor(hessian(loss, theta, x, y, lambda_sum)), gradient)
        except LinAlgError:  # not positive definite to rounding: a tiny lambda_sum beside a huge curvature
            pass
    weights = loss.curvature(x @ theta, y)
    operator = LinearOperator((d, d), matvec=lambda v: hessian_vector(weights, x, lambda_sum, v), dtype=np.float64)
    direction, _ = cg(operator, -gradient, rtol=1e-6, maxiter=10 * d + 100)
    return direction if float(direction @ gradient) < 0.0 else -gradient
