"""Newton's method for J(θ) = Σ ℓ(xᵢᵀθ, yᵢ) + (lambda_sum/2)‖θ‖² + linearᵀθ (sum form), made for many sparse rows.

A Newton step solves H p = -∇J, H = Σ ℓ'' x xᵀ + lambda_sum I, by conjugate gradients, so that all rows are only ever
multiplied with vectors.  What makes it fast is the preconditioner: the same matrix from a sample of the rows, taken by
their curvature (as by leverage scores: Drineas, Mahoney & Muthukrishnan 2006).  With a few rows for every feature its
eigenvalues are those of H up to a small factor, and a digit costs one or two products.  The search begins at the
minimum of the objective over every k-th row.

ℓ' need only be Lipschitz (smoothed hinge, Huber): ℓ'' is then an element of the generalised derivative, H is positive
definite for lambda_sum > 0, and Newton with a line search on the value converges from everywhere, superlinearly at the
end (Qi & Sun 1993; Pang & Qi 1995, for semismooth gradients).

Which rows are taken affects speed only: the caller verifies the gradient norm over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.linalg.blas import dsyrk, ssyrk

from dpml.erm.losses import GlmLoss, Rows, Vector

DENSE_LIMIT = 1500  # features up to which a preconditioning matrix is formed; above it only its diagonal
SAMPLE_SHARE = 16  # one row in this many for the start, ...
LEAST_START = 2000  # ... if these are at least so many
LEAST_SAMPLE, SAMPLE_PER_FEATURE = 3000, 16  # rows of the preconditioner: at least, and for every feature ...
MOST_SAMPLE = 8  # ... but not more than one in this many
EVEN = 8  # one share in so many of its rows is spread evenly
BLOCK = 2048  # rows made dense at a time
MAX_CONJUGATE = 200  # steps for one direction
MAX_BACKTRACKS = 60
SUFFICIENT_DECREASE = 1e-4
LOOSE = 0.5  # a step ends where the slope along it is below this share of what it was
LEAP = 0.1  # a gradient norm below this share of the least so far is progress without a look at the value
FLAT = 1e-10  # a predicted decrease below this share of the value drowns in rounding
SINGLE = 1e-5  # single precision will do for a preconditioner whose least eigenvalue is above this share of its trace
THIN = 0.125  # share of entries up to which sparse rows are multiplied with each other as they are
TRIANGLE_COST = 0.07  # of a multiplication in a triangle of XᵀX, against ...
SPARSE_COST, DENSE_COST = 5.0, 1.0  # ... that of an entry in one product with X and one with Xᵀ

Solve = Callable[[Vector], Vector]


@dataclass(frozen=True)
class Problem:
    """An objective in sum form: x (n, d) dense or CSR, y (n,), linear (size,).

    A subclass may have several scores a record (softmax); θ and all directions are vectors (size,).
    """

    loss: GlmLoss
    x: Rows
    y: Any
    lambda_sum: float
    linear: Vector

    @property
    def size(self) -> int:
        """Number of parameters."""
        return int(self.x.shape[1])

    @property
    def entry_cost(self) -> float:
        """Of a product, for each entry of X and each score."""
        return SPARSE_COST if sparse.issparse(self.x) else DENSE_COST

    def scores(self, theta: Vector) -> Vector:
        """z = Xθ; linear in θ."""
        return np.asarray(self.x @ theta)

    def back(self, slopes: Vector) -> Vector:
        """The transposed map: Xᵀ slopes."""
        return np.asarray(self.x.T @ slopes)

    def losses(self, z: Vector) -> Vector:
        """ℓ of every record (n,)."""
        return self.loss.value(z, self.y)

    def slopes(self, z: Vector) -> Vector:
        """dℓ/dz, shaped like z."""
        return self.loss.slope(z, self.y)

    def curvatures(self, z: Vector) -> Vector:
        """What ``bent`` and ``diagonal_weights`` need of the second derivatives, one line a record."""
        return self.loss.curvature(z, self.y)

    def bent(self, curvatures: Vector, scores: Vector) -> Vector:
        """(d²ℓ/dz²) times a change of the scores."""
        return curvatures * scores

    def diagonal_weights(self, curvatures: Vector) -> list[Vector]:
        """d²ℓ/dz² of each score by itself, (n,) for every one: what the preconditioner is made of."""
        return [curvatures]

    def value(self, theta: Vector, z: Vector) -> float:
        """J(θ) from the scores z."""
        smooth = 0.5 * self.lambda_sum * float(theta @ theta) + float(self.linear @ theta)
        return float(self.losses(z).sum()) + smooth

    def gradient(self, theta: Vector, z: Vector) -> Vector:
        """∇J(θ) from the scores z."""
        return self.back(self.slopes(z)) + self.lambda_sum * theta + self.linear

    def every(self, k: int) -> Problem:
        """The objective of every k-th row, all of it divided by (about) k."""
        x = _every(self.x, k)
        share = x.shape[0] / self.x.shape[0]
        return replace(self, x=x, y=self.y[::k], lambda_sum=self.lambda_sum * share, linear=self.linear * share)


def start(problem: Problem) -> Vector:
    """Where to begin: the rough minimum over every ``SAMPLE_SHARE``-th row, found the same way; 0 for few rows."""
    n = problem.x.shape[0]
    if n == 0:
        return -problem.linear / problem.lambda_sum
    if n // SAMPLE_SHARE < LEAST_START:
        return np.zeros(problem.size)
    part = problem.every(SAMPLE_SHARE)
    # nearer than the sampling error of the gradient, √m, there is nothing to find
    goal = 0.1 * math.sqrt(part.x.shape[0]) * math.sqrt(mean_square(part.x))
    return descend(part, start(part), goal, 20)[0]


def descend(problem: Problem, theta: Vector, goal: float, max_steps: int) -> tuple[Vector, int]:
    """Newton steps from ``theta`` until ‖∇J‖ ≤ ``goal`` or no progress is possible: ``(theta, steps)``."""
    z = problem.scores(theta)
    gradient = problem.gradient(theta, z)
    norm = least = float(np.linalg.norm(gradient))
    preconditioner = Preconditioner(problem)
    forcing = 0.1
    for step in range(max_steps):
        if not norm > goal:
            return theta, step
        curvatures = problem.curvatures(z)
        solve = preconditioner.at(curvatures, norm / goal)
        accuracy = max(forcing, 0.3 * goal / norm)
        direction, along, count = conjugate_gradients(problem, curvatures, gradient, solve, accuracy)
        preconditioner.spent(count, accuracy)
        found = line_search(problem, theta, z, gradient, direction, along, LEAP * least)
        if found is None:
            if preconditioner.rough:  # once more with a better one
                preconditioner.refine()
                continue
            return theta, step
        before = norm
        theta, z, gradient = found
        norm = float(np.linalg.norm(gradient))
        if not math.isfinite(norm):
            return theta, step
        least = min(least, norm)
        forcing = min(0.1, max(1e-10, 0.9 * (norm / before) ** 2))  # Eisenstat & Walker 1996, choice 2
    return theta, max_steps


def conjugate_gradients(
    problem: Problem, curvatures: Vector, gradient: Vector, solve: Solve, accuracy: float
) -> tuple[Vector, Vector, int]:
    """p with ‖H p + gradient‖ ≤ accuracy · ‖gradient‖, its scores, and how many products with H it took (at least 1).

    Every partial answer is a descent direction, so stopping early (limit, rounding) is no fault.
    """
    direction, along = np.zeros(problem.size), np.zeros(1)
    residual = -gradient
    enough = accuracy * float(np.linalg.norm(gradient))
    conditioned = solve(residual)
    search, size = conditioned, float(residual @ conditioned)
    count = 0
    while count < MAX_CONJUGATE:
        count += 1
        scores = problem.scores(search)
        image = problem.back(problem.bent(curvatures, scores)) + problem.lambda_sum * search
        bend = float(search @ image)
        if not (size > 0.0 and bend > 0.0):  # rounding
            break
        length = size / bend
        direction = direction + length * search
        along = along + length * scores
        residual = residual - length * image
        if float(np.linalg.norm(residual)) <= enough:
            break
        conditioned = solve(residual)
        size, before = float(residual @ conditioned), size
        search = conditioned + (size / before) * search
    return direction, along, count


def line_search(
    problem: Problem,
    theta: Vector,
    z: Vector,
    gradient: Vector,
    direction: Vector,
    along: Vector,
    near: float = 0.0,
) -> tuple[Vector, Vector, Vector] | None:
    """``(theta, z, gradient)`` after a step along ``direction``, ``None`` if no step makes progress.

    With φ(t) = J(θ + t p), convex: φ(t) ≤ φ(0) + t φ'(t), so where φ'(t) < 0 J has decreased.  The full step is taken
    if it decreases J enough; else t is found near the root of φ', which needs no product with the rows.  A root that
    is nearly exact is what makes Newton's method finite for piecewise quadratic losses (Keerthi & DeCoste 2005).  Where
    values are flat to rounding, a gradient norm that falls will do; and one of at most ``near`` will do everywhere: the
    caller lowers it by a factor each time, so that this happens a few times only and saves J near the end.
    """
    steep = float(gradient @ direction)
    if not steep < 0.0:
        return None

    def after(length: float) -> tuple[Vector, Vector, Vector]:
        new_theta, new_z = theta + length * direction, z + length * along
        return new_theta, new_z, problem.gradient(new_theta, new_z)

    full = after(1.0)
    end = float(full[2] @ direction)
    if LOOSE * steep <= end <= SUFFICIENT_DECREASE * steep:
        return full
    if float(np.linalg.norm(full[2])) <= near:
        return full
    if end > SUFFICIENT_DECREASE * steep:
        value = problem.value(theta, z)
        if end <= -LOOSE * steep and problem.value(*full[:2]) <= value + SUFFICIENT_DECREASE * steep:
            return full
        flat = -steep <= FLAT * abs(value)
        if flat and float(np.linalg.norm(full[2])) < 0.9 * float(np.linalg.norm(gradient)):
            return full
    constant = problem.lambda_sum * float(theta @ direction) + float(problem.linear @ direction)
    growth = problem.lambda_sum * float(direction @ direction)
    length = before_root(
        lambda t: float((problem.slopes(z + t * along) * along).sum()) + constant + t * growth, steep, end
    )
    return after(length) if length > 0.0 else None


def before_root(slope: Callable[[float], float], steep: float, end: float) -> float:
    """t > 0 with ``slope(t)`` between ``LOOSE`` · steep and 0 for an increasing function that is steep < 0 at 0 and
    ``end`` at 1; 0 if none is found."""
    low, high, at_low, at_high = 0.0, 1.0, steep, end
    while at_high < 0.0 and high < 1e9:
        low, high, at_low = high, 2.0 * high, at_high
        if at_low >= LOOSE * steep:
            return low
        at_high = slope(high)
    for step in range(MAX_BACKTRACKS):
        share = -at_low / (at_high - at_low) if step % 2 == 0 and math.isfinite(at_high) else 0.5
        middle = low + (high - low) * min(max(share, 0.02), 0.98)
        value = slope(middle)
        if value > 0.0:
            high, at_high = middle, value
            continue
        low, at_low = middle, value
        if value >= LOOSE * steep:
            break
    return low


# ----------------------------------------------------------------------------------------------- preconditioner


class Preconditioner:
    """H⁻¹, roughly, renewed when that is cheaper than the products that an old one costs.

    Attributes:
        size: so many rows are used, at most (:func:`sample`).
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        n, d = problem.x.shape
        self.size = min(n, max(LEAST_SAMPLE, min(SAMPLE_PER_FEATURE * d, n // MOST_SAMPLE)))
        self._solve: Solve | None = None
        self._fresh = False
        self._count = 0  # products since it was made
        self._last = 0  # products for the last direction
        self._digits = 1.0  # gained by them, natural logarithm
        entries = problem.x.nnz if sparse.issparse(problem.x) else n * d
        self._product = problem.entry_cost * max(1, entries)

    @property
    def rough(self) -> bool:
        return self.size < self.problem.x.shape[0]

    @property
    def price(self) -> float:
        """What forming it costs, in products with H."""
        return TRIANGLE_COST * self.size * self.problem.x.shape[1] ** 2 / self._product

    def refine(self) -> None:
        """Four times as many rows next time."""
        self.size = min(self.problem.x.shape[0], 4 * self.size)
        self._solve = None

    def spent(self, count: int, accuracy: float) -> None:
        """``count`` products were needed for the last direction."""
        self._last = count
        self._count += count
        self._digits = -math.log(accuracy)

    def at(self, curvatures: Vector, distance: float) -> Solve:
        """The solver for these curvatures where the gradient is ``distance`` times the goal."""
        x, lambda_sum = self.problem.x, self.problem.lambda_sum
        if x.shape[1] > DENSE_LIMIT:
            return self._blocks(lambda weights: _diagonal(x, weights, lambda_sum), curvatures)
        ahead = self._last * math.log(distance) / self._digits  # products, at the present rate
        if self._solve is not None and self._last > 3 and min(ahead, 2.0 * self._count) > self.price:
            if self._fresh and self._last > 12 and self.rough:
                self.refine()
            self._solve = None
        self._fresh = self._solve is None
        if self._solve is None:
            self._solve = self._blocks(lambda weights: _factor(*sample(x, weights, self.size), lambda_sum), curvatures)
            self._count = 0
        return self._solve

    def _blocks(self, make: Callable[[Vector], Solve], curvatures: Vector) -> Solve:
        """One block of the matrix for each score of a record."""
        solvers = [make(weights) for weights in self.problem.diagonal_weights(curvatures)]
        if len(solvers) == 1:
            return solvers[0]
        return lambda r: np.concatenate(
            [solve(part) for solve, part in zip(solvers, np.split(r, len(solvers)), strict=True)]
        )


def sample(x: Rows, weights: Vector, size: int) -> tuple[Rows, Vector]:
    """At most ``size`` rows and weights v with Σ v x xᵀ ≈ Σ w x xᵀ over all rows, for weights w (n,) ≥ 0.

    A row is taken with a share that grows with its weight, as most rows of lopsided classes have nearly none: with the
    same number of rows the sum is much nearer than with every k-th row.  One share in ``EVEN`` is spread evenly.
    Nothing is drawn: rows are met in equal steps of the summed shares, a heavy one perhaps several times.
    """
    n = x.shape[0]
    if size >= n:
        return x, weights
    shares = weights + (float(weights.sum()) / (n * (EVEN - 1.0)) or 1.0)
    ends = np.cumsum(shares)
    step = float(ends[-1]) / size
    met = np.searchsorted(ends, step * (np.arange(size) + 0.5))
    chosen, times = np.unique(np.minimum(met, n - 1), return_counts=True)
    return x[chosen], weights[chosen] * times * step / shares[chosen]


def _factor(rows: Rows, weights: Vector, lambda_sum: float) -> Solve:
    """r ↦ (Σ w x xᵀ + lambda_sum I)⁻¹ r by Cholesky."""
    matrix = _weighted_gram(rows, weights, lambda_sum)
    diagonal = np.diagonal(matrix).copy()
    ridge = lambda_sum
    for _ in range(20):
        np.fill_diagonal(matrix, diagonal + ridge)
        try:
            factor = cho_factor(matrix, lower=False, check_finite=False)
        except LinAlgError:  # a tiny lambda_sum beside a huge curvature
            ridge = max(10.0 * ridge, 1e-15 * float(diagonal.max()))
            continue
        return lambda r: np.asarray(cho_solve(factor, r, check_finite=False))
    return lambda r: r / (diagonal + lambda_sum)


def _weighted_gram(rows: Rows, weights: Vector, lambda_sum: float) -> Vector:
    """Σ w x xᵀ, shape (d, d), the upper triangle at least; dense rows in single precision where that is harmless."""
    n, d = rows.shape
    roots = np.sqrt(weights)
    if sparse.issparse(rows) and rows.nnz <= THIN * n * d:
        scaled = _scaled(rows, roots)
        return np.asarray((scaled.T @ scaled).toarray(), dtype=np.float64)
    single = lambda_sum > SINGLE * float(weights.sum()) * mean_square(rows)
    kind, product = (np.float32, ssyrk) if single else (np.float64, dsyrk)
    matrix = np.zeros((d, d), dtype=kind, order="F")
    for first in range(0, n, BLOCK):
        block, factors = rows[first : first + BLOCK], roots[first : first + BLOCK]
        part = _scaled(block, factors, kind).toarray() if sparse.issparse(block) else block * factors[:, None]
        matrix = product(1.0, part.astype(kind, copy=False).T, 1.0, matrix, overwrite_c=1)
    return np.asarray(matrix, dtype=np.float64)


def _scaled(rows: Rows, factors: Vector, kind: type = np.float64) -> Rows:
    """CSR rows times a factor each."""
    data = (rows.data * np.repeat(factors, np.diff(rows.indptr))).astype(kind, copy=False)
    return sparse.csr_array((data, rows.indices, rows.indptr), shape=rows.shape)


def _diagonal(x: Rows, weights: Vector, lambda_sum: float) -> Solve:
    """r ↦ r ÷ the diagonal of Σ w x xᵀ + lambda_sum I."""
    if sparse.issparse(x):
        squares = sparse.csr_array((np.square(x.data), x.indices, x.indptr), shape=x.shape).T @ weights
    else:
        squares = np.einsum("ij,ij,i->j", x, x, weights)
    diagonal = squares + lambda_sum
    return lambda r: r / diagonal


def _every(x: Rows, k: int) -> Rows:
    """Every k-th row."""
    return x[::k] if sparse.issparse(x) else np.ascontiguousarray(x[::k])


def mean_square(x: Rows) -> float:
    """Mean of ‖x‖² over the rows."""
    values = x.data if sparse.issparse(x) else x.reshape(-1)
    return float(np.einsum("i,i->", values, values)) / max(1, x.shape[0])
