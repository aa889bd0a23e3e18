"""Losses of generalised linear models with the constants that the privacy proofs use.

Labels are signed: ``y`` in {-1, +1}.  Everything here is in *sum form*,

    J(θ) = Σᵢ ℓ(yᵢ xᵢᵀθ) + (lambda_sum/2) ‖θ‖² + linearᵀθ,

without any division by the number of records, which is private under add_remove.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dpml import errors

Vector = NDArray[np.float64]

HESSIAN_ROWS = 4096  # rows weighted at a time, which bounds the extra memory of a Hessian


@dataclass(frozen=True)
class LossConstants:
    """Bounds for one record of norm at most ``norm_bound``: ‖∇ℓ‖ ≤ ``lipschitz``, ∇²ℓ ⪯ ``smoothness`` · I."""

    lipschitz: float
    smoothness: float


def logistic_constants(norm_bound: float) -> LossConstants:
    """Constants of ℓ(z) = ln(1 + e⁻ᶻ), z = y xᵀθ, for ‖x‖ ≤ R = ``norm_bound``: L = R, β = R²/4.

    With p = 1/(1 + eᶻ): ∇ℓ = -p y x, so ‖∇ℓ‖ = p‖x‖ < R; ∇²ℓ = p(1-p) x xᵀ, whose only non-zero eigenvalue is
    p(1-p)‖x‖² ≤ R²/4.  The square on R matters: with R in its place a loss with R > 1 is under-protected.
    """
    if not (np.isfinite(norm_bound) and norm_bound > 0.0):
        raise errors.invalid("norm_bound", norm_bound, "a finite number > 0")
    radius = float(norm_bound)
    return LossConstants(lipschitz=radius, smoothness=radius * radius / 4.0)


def value_and_gradient(
    theta: Vector, x: Vector, y: Vector, lambda_sum: float, linear: Vector | None = None
) -> tuple[float, Vector]:
    """J(θ) and ∇J(θ) for logistic loss; ``x`` (n, d), ``y`` (n,) in {-1, +1}, ``theta`` and ``linear`` (d,)."""
    margins = y * (x @ theta)
    value = float(np.logaddexp(0.0, -margins).sum()) + 0.5 * lambda_sum * float(theta @ theta)
    gradient = lambda_sum * theta - x.T @ (y * expit(-margins))
    if linear is not None:
        value += float(linear @ theta)
        gradient += linear
    return value, gradient


def curvatures(theta: Vector, x: Vector, y: Vector) -> Vector:
    """ℓ''(zᵢ) = p(1-p) of every record, shape (n,), each in [0, 1/4]."""
    p = expit(-y * (x @ theta))
    return p * (1.0 - p)


def hessian(theta: Vector, x: Vector, y: Vector, lambda_sum: float) -> Vector:
    """∇²J(θ) = Σ p(1-p) x xᵀ + lambda_sum · I, shape (d, d)."""
    weights = curvatures(theta, x, y)
    result = lambda_sum * np.eye(x.shape[1])
    for start in range(0, x.shape[0], HESSIAN_ROWS):
        rows = x[start : start + HESSIAN_ROWS]
        result += rows.T @ (rows * weights[start : start + HESSIAN_ROWS, None])
    return result


def hessian_vector(weights: Vector, x: Vector, lambda_sum: float, vector: Vector) -> Vector:
    """∇²J(θ) v from the ``curvatures`` at θ, without forming the matrix; shape (d,)."""
    return x.T @ (weights * (x @ vector)) + lambda_sum * vector
