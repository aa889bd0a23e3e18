"""The regularised minimum of a convex objective, with a gradient norm that is checked after the solver stopped.

Private ERM needs more than a solver's own word: the proofs allow ‖∇J‖ ≤ τ and no more.  So the answer is verified,
with half of τ left for the rounding of the sums, or :class:`~dpml.errors.SolverError` is raised and nothing comes out.
How the minimum is found is a matter of speed alone (``newton``): there is one minimum, and what is verified is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from dpml import errors
from dpml.erm import newton
from dpml.erm.losses import LOGISTIC, GlmLoss, Rows, Vector

MAX_NEWTON = 1000  # a hinge with a very sharp corner takes some hundreds of steps, others a dozen
MAX_RESTARTS = 5
BLOCK = 4096  # rows squared at a time
ROUNDING_SHARE = 0.5  # the computed norm must be below this share of the tolerance, the rest covers rounding
AIM = 0.5  # the search stops at this share of what is verified, as it carries its scores along from step to step


@dataclass(frozen=True)
class Solution:
    """A verified approximate minimiser.

    Attributes:
        theta: parameters, shape (d,), float64.
        gradient_norm: ‖∇J(theta)‖ as computed, at most half the tolerance.  Depends on the records: private.
        iterations: Newton steps on all records; private.
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

    Damped Newton steps by preconditioned conjugate gradients.  J is strongly convex for lambda_sum > 0, so there is one
    minimum and Newton with a line search gets to it, for a loss with a Lipschitz slope (hinge, Huber) as well; no
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
    rows = sparse.csr_array(x, dtype=np.float64) if sparse.issparse(x) else np.asarray(x, dtype=np.float64)
    labels = np.asarray(y, dtype=np.float64)
    shift = None if linear is None else np.asarray(linear, dtype=np.float64)
    goal = ROUNDING_SHARE * tolerance

    problem = newton.Problem(loss, rows, labels, lambda_sum, np.zeros(rows.shape[1]) if shift is None else shift)
    theta, norm, iterations = newton.start(problem), np.inf, 0
    for _ in range(MAX_RESTARTS):
        theta, steps = newton.descend(problem, theta, AIM * goal, MAX_NEWTON)
        iterations += steps
        before, norm = norm, gradient_norm(loss, theta, rows, labels, lambda_sum, shift)
        if norm <= goal or not norm < 0.5 * before:
            break
    rounding = rounding_bound(loss, theta, rows, lambda_sum, shift)
    if not rounding <= goal:
        rounding = rounding_estimate(loss, theta, rows, labels, lambda_sum, shift)
    if not (norm <= goal and rounding <= goal):
        raise errors.SolverError(
            f"the solver stopped at a gradient norm of {norm:.3g} with rounding up to {rounding:.3g}, but the privacy "
            f"proof needs both below {goal:.3g} (half of the tolerance). Nothing was released. Use a larger tolerance "
            "or regularization."
        )
    return Solution(theta=theta, gradient_norm=norm, iterations=iterations)


def gradient_norm(loss: GlmLoss, theta: Vector, x: Rows, y: Vector, lambda_sum: float, linear: Vector | None) -> float:
    """‖∇J(theta)‖, computed afresh from the records; the check that a solution is what the proof needs."""
    with np.errstate(invalid="ignore"):  # NaN gives NaN, which no tolerance admits
        gradient = x.T @ loss.slope(x @ theta, y) + lambda_sum * theta
        return float(np.linalg.norm(gradient if linear is None else gradient + linear))


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


def rounding_bound(loss: GlmLoss, theta: Vector, x: Rows, lambda_sum: float, linear: Vector | None) -> float:
    """At least :func:`rounding_estimate`, without a score: |ℓ'| and ℓ'' at their bounds, and Σ ‖xᵢ‖ ≤ √n (Σ ‖xᵢ‖²)^½.

    Infinite for a loss without a bound on its slope.
    """
    n, d = x.shape
    with np.errstate(invalid="ignore"):  # 0 · ∞ is NaN, which no goal admits either
        squares = n * newton.mean_square(x)
        size = float(np.linalg.norm(theta))
        total = n * loss.slope_bound * np.sqrt(squares) + lambda_sum * size
        total += np.sqrt(d) * size * loss.curvature_bound * squares
    if linear is not None:
        total += float(np.linalg.norm(linear))
    return float(np.finfo(np.float64).eps) * float(total)


def row_norms(x: Rows) -> Vector:
    """L2 norms of the rows, shape (n,)."""
    if not sparse.issparse(x):
        return np.sqrt(np.einsum("ij,ij->i", x, x))
    result, ones = np.empty(x.shape[0]), np.ones(x.shape[1])
    for first in range(0, x.shape[0], BLOCK):
        ends = x.indptr[first : first + BLOCK + 1]
        entries = slice(ends[0], ends[-1])  # a view, where x[first : …] copies
        part = (np.square(x.data[entries]), x.indices[entries], ends - ends[0])
        result[first : first + BLOCK] = sparse.csr_array(part, shape=(len(ends) - 1, x.shape[1])) @ ones
    return np.sqrt(result)
