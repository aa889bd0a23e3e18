"""Losses of generalised linear models with the constants that the privacy proofs use.

A loss is a function ℓ(z, y) of one record's score z = xᵀθ and target y: ±1 for a class, a number in [-1, 1] for a
regression target.  Its gradient is ℓ'(z, y)·x and its Hessian ℓ''(z, y)·x xᵀ, of rank one, so all constants follow from
bounds on ℓ' and ℓ'' and from ‖x‖ ≤ R (``norm_bound``).  Everything here is in *sum form*,

    J(θ) = Σᵢ ℓ(xᵢᵀθ, yᵢ) + (lambda_sum/2) ‖θ‖² + linearᵀθ,

without any division by the number of records, which is private under add_remove.  Rows are a dense (n, d) array or a
scipy.sparse CSR array.  What a theorem needs of a loss stands in :func:`require`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from dpml import errors

Vector = NDArray[np.float64]
Rows = Any  # (n, d) float64, dense or CSR

HESSIAN_ROWS = 4096  # rows weighted at a time, which bounds the extra memory of a Hessian


@dataclass(frozen=True)
class LossConstants:
    """Bounds for one record of norm at most ``norm_bound``: ‖∇ℓ‖ ≤ ``lipschitz``, ∇²ℓ ⪯ ``smoothness`` · I of rank
    ``rank``."""

    lipschitz: float
    smoothness: float
    rank: int = 1


class GlmLoss(Protocol):
    """A convex loss of one score.

    Attributes:
        name: as in configurations.
        slope_bound: |ℓ'| ≤ this, ``inf`` where only a bounded θ bounds it.
        curvature_bound: ℓ'' ≤ this (where ℓ' is differentiable; it is Lipschitz with this constant everywhere).
        monotone: ℓ' keeps one sign for a given target, and it is that of -y.
    """

    name: ClassVar[str]
    monotone: ClassVar[bool]

    @property
    def slope_bound(self) -> float: ...
    @property
    def curvature_bound(self) -> float: ...
    def value(self, z: Vector, y: Vector) -> Vector: ...
    def slope(self, z: Vector, y: Vector) -> Vector: ...
    def curvature(self, z: Vector, y: Vector) -> Vector: ...
    def constants(self, norm_bound: float) -> LossConstants: ...


RANGES = {"smoothed_hinge": (1e-3, 1e3), "huber": (1e-6, 1e6), "squared": (1e-6, 1e9)}
"""Public ranges of the parameter of each loss that has one."""


@dataclass(frozen=True)
class Logistic:
    """ℓ = ln(1 + e^{-yz}), y = ±1.  With p = 1/(1 + e^{yz}): ℓ' = -y p, ℓ'' = p(1-p), so |ℓ'| < 1 and ℓ'' ≤ 1/4."""

    name: ClassVar[str] = "logistic"
    monotone: ClassVar[bool] = True
    slope_bound: ClassVar[float] = 1.0
    curvature_bound: ClassVar[float] = 0.25

    def value(self, z: Vector, y: Vector) -> Vector:
        return np.logaddexp(0.0, -y * z)

    def slope(self, z: Vector, y: Vector) -> Vector:
        return -y * expit(-y * z)

    def curvature(self, z: Vector, y: Vector) -> Vector:
        p = expit(-y * z)
        return p * (1.0 - p)

    def constants(self, norm_bound: float) -> LossConstants:
        return _scaled(self.slope_bound, self.curvature_bound, norm_bound)


@dataclass(frozen=True)
class SmoothedHinge:
    """The hinge max(0, 1 - m) of the margin m = yz, its corner replaced by a parabola on |1 - m| ≤ ``width`` = h.

    ℓ = 0 for m ≥ 1 + h, 1 - m for m ≤ 1 - h, (1 + h - m)²/(4h) between (Chaudhuri, Monteleoni & Sarwate 2011,
    section 3.4.2).  ℓ' = -y·clip((1 + h - m)/(2h), 0, 1), so |ℓ'| ≤ 1, and ℓ' is Lipschitz with 1/(2h): C^{1,1}, not
    twice differentiable at the two joints (docs/proofs-objective.md, section 9).
    """

    width: float = 0.5
    name: ClassVar[str] = "smoothed_hinge"
    monotone: ClassVar[bool] = True
    slope_bound: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        _check("width", self.width, *RANGES[self.name])

    @property
    def curvature_bound(self) -> float:
        return 1.0 / (2.0 * self.width)

    def _share(self, z: Vector, y: Vector) -> Vector:
        return np.clip((1.0 + self.width - y * z) / (2.0 * self.width), 0.0, 1.0)

    def value(self, z: Vector, y: Vector) -> Vector:
        share = self._share(z, y)
        return np.where(share < 1.0, self.width * share * share, 1.0 - y * z)

    def slope(self, z: Vector, y: Vector) -> Vector:
        return -y * self._share(z, y)

    def curvature(self, z: Vector, y: Vector) -> Vector:
        return np.where(np.abs(1.0 - y * z) <= self.width, self.curvature_bound, 0.0)

    def constants(self, norm_bound: float) -> LossConstants:
        return _scaled(self.slope_bound, self.curvature_bound, norm_bound)


@dataclass(frozen=True)
class Huber:
    """ℓ of the residual r = z - y: r²/2 up to ``threshold`` = k, then k|r| - k²/2.  |ℓ'| ≤ k, ℓ'' ≤ 1, C^{1,1}.

    ℓ' changes its sign with r: the theorems for monotone losses do not apply.
    """

    threshold: float = 0.1
    name: ClassVar[str] = "huber"
    monotone: ClassVar[bool] = False
    curvature_bound: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        _check("threshold", self.threshold, *RANGES[self.name])

    @property
    def slope_bound(self) -> float:
        return self.threshold

    def value(self, z: Vector, y: Vector) -> Vector:
        size = np.abs(z - y)
        inside = np.minimum(size, self.threshold)
        return inside * (size - inside / 2.0)

    def slope(self, z: Vector, y: Vector) -> Vector:
        return np.clip(z - y, -self.threshold, self.threshold)

    def curvature(self, z: Vector, y: Vector) -> Vector:
        return np.where(np.abs(z - y) <= self.threshold, 1.0, 0.0)

    def constants(self, norm_bound: float) -> LossConstants:
        return _scaled(self.slope_bound, self.curvature_bound, norm_bound)


@dataclass(frozen=True)
class Squared:
    """ℓ = (z - y)²/2 with |y| ≤ 1, considered over ‖θ‖ ≤ ``solution_bound`` = S only.

    ℓ' = z - y is unbounded over all θ; over the ball |z| ≤ R S, so |ℓ'| ≤ R S + 1 and L = R(R S + 1); ℓ'' = 1.
    """

    solution_bound: float = 1.0
    name: ClassVar[str] = "squared"
    monotone: ClassVar[bool] = False
    slope_bound: ClassVar[float] = math.inf
    curvature_bound: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        _check("solution_bound", self.solution_bound, *RANGES[self.name])

    def value(self, z: Vector, y: Vector) -> Vector:
        return (z - y) ** 2 / 2.0

    def slope(self, z: Vector, y: Vector) -> Vector:
        return z - y

    def curvature(self, z: Vector, y: Vector) -> Vector:
        return np.ones_like(z)

    def constants(self, norm_bound: float) -> LossConstants:
        return _scaled(_norm(norm_bound) * self.solution_bound + 1.0, self.curvature_bound, norm_bound)


LOGISTIC = Logistic()
SOFTMAX = "softmax"
PARAMETERS = {"logistic": None, "smoothed_hinge": "width", "huber": "threshold", "squared": "solution_bound"}
"""Names of the losses of one score, and of the parameter that each takes."""


def make_loss(name: str, parameter: float | None = None) -> GlmLoss:
    """The loss called ``name``; ``parameter`` ``None`` for its default.

    Raises:
        ConfigError: an unknown name, or a parameter out of range.
    """
    if name not in PARAMETERS:
        raise errors.invalid("loss", name, f"one of {list(PARAMETERS)}")
    if name == "logistic":
        if parameter is not None:
            raise errors.invalid("loss_parameter", parameter, "left out with loss='logistic'")
        return LOGISTIC
    kind: Any = {"smoothed_hinge": SmoothedHinge, "huber": Huber, "squared": Squared}[name]
    if parameter is not None:  # by the name that callers know, not that of the loss's own field
        _check("solution_norm" if name == "squared" else "loss_parameter", parameter, *RANGES[name])
    made: GlmLoss = kind() if parameter is None else kind(parameter)
    return made


def softmax_constants(norm_bound: float, n_classes: int) -> LossConstants:
    """Constants of softmax cross entropy for ‖x‖ ≤ R: L = √2 R, β = R²/2, rank K - 1.

    The gradient is (p - e_y) xᵀ, and ‖p - e_y‖² = (1 - p_y)² + Σ_{k≠y} p_k² ≤ 2(1 - p_y)² < 2, approached when another
    class has all the mass: √2, not 1.  The Hessian is (diag p - p pᵀ) ⊗ x xᵀ; diag p - p pᵀ has rank at most K - 1 (the
    ones are in its kernel) and top eigenvalue max vᵀ(diag p - p pᵀ)v = max Var_p(v) ≤ (max v - min v)²/4 ≤ 1/2 over
    ‖v‖ = 1 (Popoviciu), reached at p = (1/2, 1/2).
    """
    if isinstance(n_classes, bool) or n_classes != int(n_classes) or n_classes < 2:
        raise errors.invalid("n_classes", n_classes, "a whole number >= 2")
    radius = _norm(norm_bound)
    return LossConstants(lipschitz=math.sqrt(2.0) * radius, smoothness=radius * radius / 2.0, rank=int(n_classes) - 1)


def logistic_constants(norm_bound: float) -> LossConstants:
    """Constants of logistic loss for ‖x‖ ≤ R: L = R, β = R²/4 (:class:`Logistic`).

    The square on R matters: with R in its place a loss with R > 1 is under-protected.
    """
    return LOGISTIC.constants(norm_bound)


def require(loss: GlmLoss, method: str, *, bounded_slope: bool = True) -> None:
    """Refuse a loss outside of a theorem's assumptions, naming the assumption (``ConfigError``)."""
    if bounded_slope and not math.isfinite(loss.slope_bound):
        raise errors.ConfigError(
            f"method = {method!r} with loss = {loss.name!r} is refused: its proof assumes that a record's gradient is "
            "bounded over all θ, and that of squared loss is not. Use model='huber', or method='adassp', 'dp_gd' or "
            "'output' (which minimises over a ball) for model='ridge'."
        )


def _scaled(slope: float, curvature: float, norm_bound: float) -> LossConstants:
    """∇ℓ = ℓ' x and ∇²ℓ = ℓ'' x xᵀ: L = max|ℓ'|·R and β = max ℓ''·R²."""
    radius = _norm(norm_bound)
    return LossConstants(lipschitz=slope * radius, smoothness=curvature * radius * radius)


def _norm(norm_bound: float) -> float:
    if not (np.isfinite(norm_bound) and norm_bound > 0.0):
        raise errors.invalid("norm_bound", norm_bound, "a finite number > 0")
    return float(norm_bound)


def _check(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not low <= value <= high:
        raise errors.invalid(name, value, f"a number from {low:g} to {high:g}")


# ---------------------------------------------------------------------------------------------------- the objective


def value_and_gradient(
    loss: GlmLoss, theta: Vector, x: Rows, y: Vector, lambda_sum: float, linear: Vector | None = None
) -> tuple[float, Vector]:
    """J(θ) and ∇J(θ); ``x`` (n, d), ``y`` (n,), ``theta`` and ``linear`` (d,)."""
    z = x @ theta
    value = float(loss.value(z, y).sum()) + 0.5 * lambda_sum * float(theta @ theta)
    gradient = lambda_sum * theta + x.T @ loss.slope(z, y)
    if linear is not None:
        value += float(linear @ theta)
        gradient += linear
    return value, gradient


def hessian(loss: GlmLoss, theta: Vector, x: Rows, y: Vector, lambda_sum: float) -> Vector:
    """∇²J(θ) = Σ ℓ'' x xᵀ + lambda_sum · I, shape (d, d), dense."""
    return weighted_gram(x, loss.curvature(x @ theta, y)) + lambda_sum * np.eye(x.shape[1])


def weighted_gram(x: Rows, weights: Vector) -> Vector:
    """Σ wᵢ xᵢ xᵢᵀ, shape (d, d), dense."""
    if sparse.issparse(x):
        return np.asarray((x.T @ x.multiply(weights[:, None]).tocsr()).toarray(), dtype=np.float64)
    result = np.zeros((x.shape[1], x.shape[1]))
    for start in range(0, x.shape[0], HESSIAN_ROWS):
        rows = x[start : start + HESSIAN_ROWS]
        result += rows.T @ (rows * weights[start : start + HESSIAN_ROWS, None])
    return result


def hessian_vector(weights: Vector, x: Rows, lambda_sum: float, vector: Vector) -> Vector:
    """∇²J(θ) v from the curvatures at θ, without forming the matrix; shape (d,)."""
    return np.asarray(x.T @ (weights * (x @ vector)) + lambda_sum * vector)
