"""The regularised minimum of softmax cross entropy, verified as in :mod:`dpml.erm.solver`.

    J(W) = Σᵢ [ln Σₖ exp(wₖᵀxᵢ) - w_{yᵢ}ᵀxᵢ] + (lambda_sum/2)‖W‖²      (sum form; W (K, d), its rows wₖ)

With p = softmax(W x): ∇ℓ = (p - e_y) xᵀ and ∇²ℓ[V] = (diag p - p pᵀ) V x xᵀ.  ‖∇²ℓ‖ ≤ ‖x‖²/2, and lambda_sum > 0 makes
the minimum unique: a common shift of the rows changes no probability, only the norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.special import logsumexp, softmax

from dpml import errors
from dpml.erm import newton
from dpml.erm.losses import LOGISTIC, Rows, Vector
from dpml.erm.rows import bounded_rows
from dpml.erm.solver import AIM, MAX_NEWTON, MAX_RESTARTS, ROUNDING_SHARE, Solution, row_norms

if TYPE_CHECKING:
    from dpml.erm.output import OutputPlan


@dataclass(frozen=True)
class SoftmaxProblem(newton.Problem):
    """The objective for :mod:`dpml.erm.newton`: scores (n, K), θ the rows of W one after the other (K·d,)."""

    n_classes: int = 2

    @property
    def size(self) -> int:
        return self.n_classes * int(self.x.shape[1])

    @property
    def entry_cost(self) -> float:
        return newton.SPARSE_COST if sparse.issparse(self.x) else 0.15  # a product of two matrices

    def scores(self, theta: Vector) -> Vector:
        return np.asarray(self.x @ theta.reshape(self.n_classes, -1).T)

    def back(self, slopes: Vector) -> Vector:
        return np.ascontiguousarray(np.asarray(self.x.T @ slopes).T).reshape(-1)

    def losses(self, z: Vector) -> Vector:
        return np.asarray(logsumexp(z, axis=1) - z[np.arange(len(z)), self.y])

    def slopes(self, z: Vector) -> Vector:
        p = softmax(z, axis=1)
        p[np.arange(len(z)), self.y] -= 1.0
        return np.asarray(p)

    def curvatures(self, z: Vector) -> Vector:
        return np.asarray(softmax(z, axis=1))

    def bent(self, curvatures: Vector, scores: Vector) -> Vector:
        weighted = curvatures * scores
        return weighted - curvatures * weighted.sum(axis=1, keepdims=True)

    def diagonal_weights(self, curvatures: Vector) -> list[Vector]:
        return list((curvatures * (1.0 - curvatures)).T)


def minimise_softmax(x: Rows, y: ArrayLike, n_classes: int, lambda_sum: float, tolerance: float = 1e-6) -> Solution:
    """argmin J(W) with ‖∇J‖ ≤ ``tolerance`` (L2 norm over all K·d entries, sum form).

    Args:
        x, y: (n, d), finite, dense or CSR, and class indexes (n,) from 0 to K - 1.
        n_classes: K ≥ 2.
        lambda_sum: λ > 0, sum form.
        tolerance: τ > 0.

    Returns:
        A :class:`~dpml.erm.solver.Solution` whose ``theta`` is W flattened, (K·d,): ``theta.reshape(K, d)``.

    Raises:
        ConfigError: lambda_sum, tolerance or n_classes out of range.
        DataError: a class index out of range.
        SolverError: the gradient norm could not be brought to the tolerance.
    """
    for name, number in (("lambda_sum", lambda_sum), ("tolerance", tolerance)):
        if not (np.isfinite(number) and number > 0.0):
            raise errors.invalid(name, number, "a finite number > 0")
    if isinstance(n_classes, bool) or n_classes != int(n_classes) or n_classes < 2:
        raise errors.invalid("n_classes", n_classes, "a whole number >= 2")
    rows = sparse.csr_array(x, dtype=np.float64) if sparse.issparse(x) else np.asarray(x, dtype=np.float64)
    labels = np.asarray(y)
    if labels.size and not np.isin(labels, np.arange(n_classes)).all():
        raise errors.DataError(f"y holds other class indexes than 0 to {n_classes - 1}.")
    zero = np.zeros(n_classes * rows.shape[1])
    problem = SoftmaxProblem(LOGISTIC, rows, labels.astype(np.int64), lambda_sum, zero, n_classes)
    goal = ROUNDING_SHARE * tolerance

    theta, norm, iterations = newton.start(problem), np.inf, 0
    for _ in range(MAX_RESTARTS):
        theta, steps = newton.descend(problem, theta, AIM * goal, MAX_NEWTON)
        iterations += steps
        before, norm = norm, gradient_norm(problem, theta)
        if norm <= goal or not norm < 0.5 * before:
            break
    rounding = rounding_estimate(problem, theta)
    if not (norm <= goal and rounding <= goal):
        raise errors.SolverError(
            f"the solver stopped at a gradient norm of {norm:.3g} with rounding up to {rounding:.3g}, but the privacy "
            f"proof needs both below {goal:.3g} (half of the tolerance). Nothing was released. Use a larger tolerance "
            "or regularization."
        )
    return Solution(theta=theta, gradient_norm=norm, iterations=iterations)


def gradient_norm(problem: SoftmaxProblem, theta: Vector) -> float:
    """‖∇J(theta)‖, computed afresh from the records; the check that a solution is what the proof needs."""
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.linalg.norm(problem.gradient(theta, problem.scores(theta))))


def rounding_estimate(problem: SoftmaxProblem, theta: Vector) -> float:
    """How far the computed gradient can be from the true one: as for one score, with ‖p - e_y‖ for |ℓ'|, and ‖x‖²/2
    for the curvature."""
    n, d = problem.x.shape
    with np.errstate(invalid="ignore", over="ignore"):
        norms = row_norms(problem.x)
        slopes = np.linalg.norm(problem.slopes(problem.scores(theta)), axis=1)
        size = float(np.linalg.norm(theta))
        total = np.sqrt(n) * float(slopes @ norms) + problem.lambda_sum * size
        total += np.sqrt(d) * size * float(norms @ norms) / 2.0
    return float(np.finfo(np.float64).eps) * total


def softmax_rows(x: Any, y: ArrayLike, *, norm_bound: float, n_features: int, n_classes: int) -> tuple[Rows, Any]:
    """Rows within the bound and class indexes (n,) int64.

    A record with NaN or with another label becomes a zero row: its loss ln K does not depend on W, whatever its class.
    """
    labels = np.asarray(y, dtype=np.float64)
    known = np.isin(labels, np.arange(n_classes))
    rows, _ = bounded_rows(x, np.where(known, 1.0, np.nan), norm_bound=norm_bound, n_features=n_features)
    return rows, np.where(known, labels, 0.0).astype(np.int64)


def softmax_solution(plan: OutputPlan, x: Any, y: ArrayLike) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """W (K, d) of output perturbation with softmax loss before its noise, and private diagnostics."""
    rows, labels = softmax_rows(x, y, norm_bound=plan.norm_bound, n_features=plan.n_features, n_classes=plan.n_classes)
    solution = minimise_softmax(rows, labels, plan.n_classes, plan.lambda_sum, plan.tolerance)
    theta = solution.theta.reshape(plan.n_classes, plan.n_features)
    return theta, {"gradient_norm": solution.gradient_norm, "iterations": solution.iterations}
