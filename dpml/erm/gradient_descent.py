"""Differentially private full-batch gradient descent for linear models, dense or sparse rows, without torch.

    v ← momentum · v − rate_t · ((Σᵢ ∇ℓᵢ(θ) + N(0, σ² I)) / n_declared + Λ θ),   θ ← θ + v,   t = 0 … T−1, θ = 0 first

A record moves the sum by at most L, the ``gradient_bound``: by the loss's own constant (logistic, smoothed hinge and
Huber loss: L = max|ℓ'|·R_x; softmax: L = √2·R_x), so that nothing is clipped, or by a public clip (squared loss).
A step is then a Gaussian release, the run T of them, and θ_T is computed from these alone.
Steps and rate follow from public numbers.  Proofs: docs/proofs-gradient-descent.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.special import softmax

from dpml import errors
from dpml.accounting import ADD_REMOVE, Event, Gaussian, SelfComposed, calibrate
from dpml.erm.losses import LOGISTIC, GlmLoss, Huber, LossConstants, Rows, Squared, Vector, softmax_constants
from dpml.erm.rows import bounded_rows
from dpml.erm.rules import AUTO, changed_records, check_public, check_scales
from dpml.mechanisms import NoiseSource, add_gaussian

Charge = Callable[[Event], None]
Progress = Callable[[int, int], None]

LEAST_STEPS, MOST_STEPS = 100, 1000  # of the automatic choice
LARGEST_STEPS = 10**6
HIGHEST_RATE = 1e6
SQUARED_CLIP = 0.5  # of squared loss by default, for rows of norm 1: residuals up to a quarter of the target's range
ROUNDING = 1e-9  # relative allowance of the sensitivity for rows and products that are rounded
SPARSE_SHARE, SPARSE_SIZE = 0.25, 10_000  # dense rows with fewer nonzeros than this share are worked on as CSR


@dataclass(frozen=True)
class Softmax:
    """Softmax cross entropy ℓ = ln Σ_k e^{z_k} − z_y of ``n_classes`` scores z = Wx, W (n_classes, d), y = 0, 1, …

    ∇_W ℓ = (p − e_y) xᵀ with p the softmax of z: of norm ‖p − e_y‖·‖x‖ < √2·R_x (``softmax_constants``).
    """

    n_classes: int
    name: ClassVar[str] = "softmax"

    def __post_init__(self) -> None:
        softmax_constants(1.0, self.n_classes)

    def constants(self, norm_bound: float) -> LossConstants:
        return softmax_constants(norm_bound, self.n_classes)


Loss = GlmLoss | Softmax


@dataclass(frozen=True)
class GradientDescentPlan:
    """What a run will do; public, made before a record is read.

    Attributes:
        epsilon, delta, neighboring_relation, accountant: the promise and who calibrated it.
        n_declared, n_features, norm_bound, solution_norm: public knowledge that it rests on.
        loss: of one record.
        regularization: Λ of the mean form, 0 for none; public, so it costs nothing.
        max_grad_norm: C, the L2 norm that a record's gradient is scaled down to, or None: bounded without.
        gradient_bound: L, the most that one record contributes to a step's sum.
        sensitivity: L2 distance of the sums of any two neighbours: L, or 2 L under replace_one (and ``ROUNDING``).
        steps: T.
        learning_rate: of the first step; step t = 0 … T−1 has ``learning_rate · (1 − t/T)``.
        momentum: of heavy-ball momentum, not dampened.
        capped: whether the automatic rate met its cap (more steps would use the budget better).
        noise_multiplier: of one step's event: ``noise_std`` ÷ L.
        noise_std: standard deviation of the noise on every coordinate of every step's sum.
        event: what is charged, all T steps.
    """

    epsilon: float
    delta: float
    neighboring_relation: str
    accountant: str
    n_declared: int
    n_features: int
    norm_bound: float
    solution_norm: float
    loss: Loss
    regularization: float
    max_grad_norm: float | None
    gradient_bound: float
    sensitivity: float
    steps: int
    learning_rate: float
    momentum: float
    capped: bool
    noise_multiplier: float
    noise_std: float
    event: Event

    def rate(self, step: int) -> float:
        """Learning rate of step 0 … T−1."""
        return self.learning_rate * (1.0 - step / self.steps)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of θ: (d,), or (n_classes, d) for softmax."""
        return theta_shape(self.loss, self.n_features)


def theta_shape(loss: Loss, n_features: int) -> tuple[int, ...]:
    """(d,), or (n_classes, d) for softmax."""
    return (loss.n_classes, n_features) if isinstance(loss, Softmax) else (n_features,)


def record_bound(loss: Loss, norm_bound: float, max_grad_norm: float | None) -> float:
    """L: the largest norm of one record's contribution to the sum.

    max|ℓ'|·R_x of a loss of one score, √2·R_x of softmax, or the clip C where that is smaller.
    """
    own = loss.constants(norm_bound).lipschitz if not _needs_clip(loss) else math.inf
    return min(own, math.inf if max_grad_norm is None else max_grad_norm)


def _needs_clip(loss: Loss) -> bool:
    return not isinstance(loss, Softmax) and not math.isfinite(loss.slope_bound)


def composed_event(noise_multiplier: float, steps: int) -> Event:
    """T Gaussian releases, each on all records: no sampling, no amplification."""
    return SelfComposed(event=Gaussian(noise_multiplier), count=steps)


@dataclass(frozen=True)
class _RateRule:
    """The peak rate from public numbers (docs/proofs-gradient-descent.md, section 4; FORMULAS: r*).

    Expected excess ≤ R²/(2r) + r p (s L)²/(2n²) with r = Σ_t rate_t/(1 − momentum), least at r* = R n/(L s √p).  Linear
    decay sums to half of peak · T.  The peak stays below (1 + momentum)/β, half of heavy-ball descent's limit.
    """

    target: float  # peak · T
    cap: float

    @staticmethod
    def of(
        *, radius: float, n: int, parameters: int, bound: float, s: float, momentum: float, smoothness: float
    ) -> _RateRule:
        best = radius * n / (bound * s * math.sqrt(parameters))
        return _RateRule(target=2.0 * (1.0 - momentum) * best, cap=(1.0 + momentum) / smoothness)

    def steps(self) -> int:
        """The fewest steps that reach the target below the cap, between LEAST_STEPS and MOST_STEPS."""
        return int(max(LEAST_STEPS, math.ceil(min(self.target / self.cap, MOST_STEPS))))

    def peak(self, steps: int) -> tuple[float, bool]:
        wanted = self.target / steps
        return min(wanted, self.cap), wanted > self.cap


def plan_dp_gd(
    *,
    n_declared: int,
    n_features: int,
    epsilon: float,
    delta: float,
    neighboring_relation: str = ADD_REMOVE,
    norm_bound: float = 1.0,
    solution_norm: float = 15.0,
    loss: Loss = LOGISTIC,
    regularization: float = 0.0,
    max_grad_norm: float | None = None,
    steps: int | None = None,
    learning_rate: float | Literal["auto"] = AUTO,
    momentum: float = 0.9,
    accountant: str = "best",
    run_of: Callable[[Event], Event] | None = None,
) -> GradientDescentPlan:
    """Calibrate full-batch gradient descent; reads no record.  There is nothing to tune.

    Args:
        n_declared: public nominal number of records: the normaliser of every step, whatever the actual number is.
        n_features: d, the constant column included.
        norm_bound: public bound R_x on ‖x‖, the constant column included.
        solution_norm: R, norm of the solution that one would accept; 10 to 20 does for rows of norm 1.
        loss: a loss of ``dpml.erm.losses`` or :class:`Softmax`.
        regularization: Λ ≥ 0 of the mean form.
        max_grad_norm: C; None clips nothing, and squared loss (whose gradient is unbounded) at ``norm_bound``/2:
            residuals beyond a quarter of the target's range pull like that quarter, as in Huber loss.
        steps: T; by default as many as r* needs below the cap on the rate, from 100 to 1000.
        learning_rate: the first step's, instead of the rule.
        momentum: in [0, 1).
        run_of: the event of everything that the budget is for, from the event of the steps; None: that one alone.

    Raises:
        ConfigError: a value out of range, by name.  UnsupportedEventError: an accountant that cannot bound T Gaussians.
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
    _check_descent(loss, regularization, max_grad_norm, steps, learning_rate, momentum)
    clip = SQUARED_CLIP * norm_bound if max_grad_norm is None and _needs_clip(loss) else max_grad_norm
    bound = record_bound(loss, norm_bound, clip)
    smoothness = loss.constants(norm_bound).smoothness + regularization

    def multiplier_of(count: int) -> float:
        """Noise of a step ÷ L that ``count`` steps need."""
        return calibrate(
            lambda m: composed_event(m, count) if run_of is None else run_of(composed_event(m, count)),
            epsilon=epsilon,
            delta=delta,
            accountant=accountant,
            neighboring_relation=neighboring_relation,
        )

    def rule_for(s: float) -> _RateRule:
        return _RateRule.of(
            radius=solution_norm,
            n=n_declared,
            parameters=_free_parameters(loss, n_features),
            bound=bound,
            s=s,
            momentum=momentum,
            smoothness=smoothness,
        )

    count = int(steps) if steps is not None else rule_for(multiplier_of(1)).steps()
    multiplier = multiplier_of(count)
    rate, capped = rule_for(multiplier / math.sqrt(count)).peak(count)
    automatic = learning_rate == AUTO
    allowance = 1.0 + ROUNDING
    sensitivity, noise_std = changed_records(neighboring_relation) * bound * allowance, multiplier * bound * allowance
    given = {"norm_bound": norm_bound, "loss": loss, "max_grad_norm": max_grad_norm, "epsilon": epsilon}
    check_scales(given, sensitivity=sensitivity, noise_std=noise_std)
    return GradientDescentPlan(
        epsilon=epsilon,
        delta=delta,
        neighboring_relation=neighboring_relation,
        accountant=accountant,
        n_declared=int(n_declared),
        n_features=int(n_features),
        norm_bound=float(norm_bound),
        solution_norm=float(solution_norm),
        loss=loss,
        regularization=float(regularization),
        max_grad_norm=None if clip is None else float(clip),
        gradient_bound=bound,
        sensitivity=sensitivity,
        steps=count,
        learning_rate=rate if automatic else float(learning_rate),
        momentum=float(momentum),
        capped=capped and automatic,
        noise_multiplier=multiplier,
        noise_std=noise_std,
        event=composed_event(multiplier, count),
    )


def _free_parameters(loss: Loss, n_features: int) -> int:
    """Coordinates in which noise costs: a common shift of all softmax rows changes no prediction, so K − 1 of K."""
    return (loss.n_classes - 1) * n_features if isinstance(loss, Softmax) else n_features


def _check_descent(
    loss: Loss,
    regularization: float,
    max_grad_norm: float | None,
    steps: int | None,
    learning_rate: float | str,
    momentum: float,
) -> None:
    """Refuse what is particular to this method (``ConfigError``)."""
    if not hasattr(loss, "constants"):
        raise errors.invalid("loss", loss, "a loss of dpml.erm.losses or Softmax(n_classes)")
    if not _number(momentum) or not 0.0 <= momentum < 1.0:
        raise errors.invalid("momentum", momentum, "a number >= 0 and < 1")
    if not _number(regularization) or not regularization >= 0.0:
        raise errors.invalid("regularization", regularization, "a finite number >= 0 (mean form)")
    if max_grad_norm is not None and not (_number(max_grad_norm) and max_grad_norm > 0.0):
        raise errors.invalid("max_grad_norm", max_grad_norm, "None or a finite number > 0")
    if steps is not None and not (_number(steps) and steps == int(steps) and 1 <= steps <= LARGEST_STEPS):
        raise errors.invalid("steps", steps, f"None or a whole number from 1 to {LARGEST_STEPS}")
    if learning_rate == AUTO:
        return
    if not _number(learning_rate) or not 0.0 < float(learning_rate) <= HIGHEST_RATE:
        raise errors.invalid("learning_rate", learning_rate, f'"auto" or a number > 0 and at most {HIGHEST_RATE:g}')
    if float(learning_rate) * regularization > 2.0 * (1.0 + momentum):
        raise errors.invalid(
            "learning_rate",
            learning_rate,
            f"at most 2 (1 + momentum)/regularization = {2.0 * (1.0 + momentum) / regularization:.4g}",
            "Beyond it θ grows without bound whatever the data; learning_rate='auto' takes care of it.",
        )


def _number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(float(value))


# ------------------------------------------------------------------------------------------------------------ the run


def fit_dp_gd(
    plan: GradientDescentPlan,
    x: ArrayLike | Rows,
    y: ArrayLike,
    *,
    noise: NoiseSource,
    charge: Charge,
    progress: Progress | None = None,
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """The private parameters, (d,) or (n_classes, d), and *private* diagnostics.

    Args:
        x: (n, n_features), dense or a scipy.sparse CSR array.  Rows are held to ``norm_bound`` here as well.
        y: (n,): −1 and +1 for a loss of a class, numbers for a regression loss (held to [−1, 1]), 0 … K−1 for softmax.
            A row with NaN or another label contributes nothing.  n = 0 is fine.
        noise: one draw for every coordinate of every step.
        charge: records ``plan.event``, all steps, durably, before a record is used; when it raises nothing is drawn.
        progress: called after every step with (steps done, T): public numbers.

    Raises:
        DataError: shapes that do not fit.
    """
    charge(plan.event)
    rows, targets = usable_records(plan, x, y)
    rows = compact(rows)
    norms = row_norms(rows) if plan.max_grad_norm is not None else None
    theta, velocity, size = np.zeros(plan.shape), np.zeros(plan.shape), 0.0
    for step in range(plan.steps):
        total = summed_gradient(plan, theta, rows, targets, norms)
        gradient = noisy(plan, total, noise) / normaliser(plan, rows) + plan.regularization * theta
        velocity = plan.momentum * velocity - plan.rate(step) * gradient
        theta = theta + velocity
        size = float(np.linalg.norm(total))
        if progress is not None:
            progress(step + 1, plan.steps)
    return theta, {"gradient_norm": size, "iterations": plan.steps}


def usable_records(plan: GradientDescentPlan, x: ArrayLike | Rows, y: ArrayLike) -> tuple[Rows, NDArray[Any]]:
    """Rows of norm at most ``norm_bound`` and targets as the loss wants them; what cannot be used is a zero row."""
    if not isinstance(plan.loss, Softmax):
        real = isinstance(plan.loss, Huber | Squared)
        return bounded_rows(x, y, norm_bound=plan.norm_bound, n_features=plan.n_features, real_targets=real)
    labels = np.asarray(y, dtype=np.float64)
    good = (labels >= 0) & (labels < plan.loss.n_classes) & (labels == np.floor(labels))
    # bounded_rows is told of a label only whether it counts: +1 or NaN
    rows, _ = bounded_rows(x, np.where(good, 1.0, np.nan), norm_bound=plan.norm_bound, n_features=plan.n_features)
    return rows, np.where(good, labels, 0.0).astype(np.int64)


def compact(rows: Rows) -> Rows:
    """CSR for dense rows that are mostly zeros (splines, one-hot columns): the same sums several times faster."""
    if sparse.issparse(rows) or rows.size < SPARSE_SIZE or np.count_nonzero(rows) > SPARSE_SHARE * rows.size:
        return rows
    return sparse.csr_array(rows)


def row_norms(rows: Rows) -> Vector:
    """‖xᵢ‖, shape (n,)."""
    if sparse.issparse(rows):
        return np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    return np.sqrt(np.einsum("ij,ij->i", rows, rows))


def summed_gradient(
    plan: GradientDescentPlan, theta: Vector, rows: Rows, targets: NDArray[Any], norms: Vector | None
) -> Vector:
    """Σᵢ clip_C(∇ℓᵢ(θ)), the shape of θ; ``norms`` are the rows' (None: nothing is clipped)."""
    if isinstance(plan.loss, Softmax):
        slopes = softmax(class_by_class(lambda w: rows @ w, theta), axis=0)  # (K, n)
        slopes[targets, np.arange(targets.size)] -= 1.0
        sizes = np.sqrt(np.einsum("ki,ki->i", slopes, slopes))
    else:
        slopes = plan.loss.slope(rows @ theta, targets)
        sizes = np.abs(slopes)
    if norms is not None and plan.max_grad_norm is not None:
        slopes = slopes * clip_factors(sizes * norms, plan.max_grad_norm)
    return class_by_class(lambda s: rows.T @ s, slopes) if slopes.ndim == 2 else np.asarray(rows.T @ slopes)


def class_by_class(product: Callable[[Vector], Vector], vectors: Vector) -> Vector:
    """The products with each row of ``vectors``, as rows: for CSR faster than one product with a matrix."""
    return np.stack([np.asarray(product(vector)) for vector in vectors])


def clip_factors(sizes: Vector, max_grad_norm: float) -> Vector:
    """min(1, C/size) for the norms of the records' gradients, shape (n,)."""
    return max_grad_norm / np.maximum(sizes, max_grad_norm)


def noisy(plan: GradientDescentPlan, total: Vector, noise: NoiseSource) -> Vector:
    """The sum with fresh N(0, noise_std²) on every coordinate: the only thing a step learns from the records."""
    return add_gaussian(
        total, sensitivity=plan.sensitivity, noise_multiplier=plan.noise_std / plan.sensitivity, noise=noise
    )


def normaliser(plan: GradientDescentPlan, rows: Rows) -> int:
    """What divides the sum: the public n_declared; the number of ``rows`` is private."""
    return plan.n_declared
