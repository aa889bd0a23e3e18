"""The plan of a DP-SGD run: everything that is fixed before a record is read, from public numbers alone."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

from dpml import accounting, errors
from dpml.accounting import Event, Gaussian, PoissonSampled, SelfComposed
from dpml.errors import ConfigError

LINEAR_BATCH_SHARE = 0.25
NETWORK_BATCH_SHARE = 0.125
DEFAULT_STEPS = 100
LINEAR_MOST_STEPS, NETWORK_MOST_STEPS = 1000, 400
CHECKPOINTS = 20
MOST_STEPS = 10**7
NOISE_MULTIPLIERS = (1e-3, 1e6)  # below, ε passes every number: no private run
MAX_GRAD_NORMS = (1e-6, 1e6)
HIGHEST_RATE = 1e6
MLP_RADIUS, MLP_RATE = 30.0, 30.0  # R, and the cap on C · rate/(1 − momentum), for rows of bounded norm
MODULE_RADIUS, MODULE_RATE = 15.0, 5.0  # the same for a module of which nothing is known


@dataclass(frozen=True)
class DPSGDPlan:
    """What a run will do; a promise once ε is computed from ``event``.

    Attributes:
        steps: T, noisy releases; micro-batches do not count.
        sample_rate: q, Poisson probability of one record in one step, ``expected_batch_size / n_declared``.
        expected_batch_size: public normaliser of every step.
        max_grad_norm: C.
        noise_multiplier: σ; the noise on a step's clipped sum has standard deviation C·σ under both relations
            (the accountant knows that replacing a record moves the sum by 2C).
        learning_rate: peak rate (the first step's).
        momentum: of heavy-ball momentum, not dampened.
        schedule: ``"linear"``: the rate of step t is ``learning_rate · (1 − t/T)``; ``"constant"``.
        checkpoint_every: steps reserved in the ledger at once, before the first of them.
        micro_batch_size: records whose gradients are held at once, or None for a bounded amount of memory.
        neighboring_relation: what the noise was calibrated for.
        event, event_per_step: for the accountant.
        capped: whether the automatic rate met its cap (a larger ``steps`` would use the budget better).
    """

    steps: int
    sample_rate: float
    expected_batch_size: int
    max_grad_norm: float
    noise_multiplier: float
    learning_rate: float
    momentum: float
    schedule: str
    checkpoint_every: int
    micro_batch_size: int | None
    neighboring_relation: str
    event: Event
    event_per_step: Event
    capped: bool = False

    def rate(self, step: int) -> float:
        """Learning rate of step ``step`` = 0 … T−1: a function of the logical step only."""
        return self.learning_rate * (1.0 - step / self.steps) if self.schedule == "linear" else self.learning_rate


def plan_dp_sgd(
    *,
    n_declared: int,
    n_features: int,
    n_classes: int,
    model_name: str,
    n_parameters: int,
    epsilon: float | None,
    delta: float,
    noise_multiplier: float | None = None,
    neighboring_relation: str = "add_remove",
    accountant: str = "best",
    norm_bound: float | None = 1.0,
    solution_norm: float = 15.0,
    max_grad_norm: float = 1.0,
    expected_batch_size: int | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    learning_rate: float | str = "auto",
    momentum: float = 0.9,
    schedule: str = "linear",
    checkpoint_every: int | None = None,
    micro_batch_size: int | None = None,
) -> DPSGDPlan:
    """Batch, steps, noise and learning rate of a run; reads no data.

    Args:
        n_declared: public nominal number of records; q and the normaliser follow from it, never from the actual number.
        n_features, n_classes, n_parameters: of the model; ``model_name`` is ``"logreg"``, ``"softmax"``, ``"mlp"`` or
            ``"module"``.
        epsilon, delta: budget to calibrate σ for; or ``noise_multiplier`` (1e-3 to 1e6) with ``epsilon=None``.
        max_grad_norm: C, 1e-6 to 1e6.
        norm_bound: public bound on a row's L2 norm; gives the smoothness of a linear model's loss.
        solution_norm: R, public guess of the norm of a good solution of a linear model.
        expected_batch_size: default a quarter of ``n_declared`` for a linear model (under 2 % more noise than the full
            batch at equal ε, and a quarter of the time), an eighth for any other.
        steps, epochs: one of them or neither; ``epochs`` are ``epochs / q`` steps, rounded up; at most 10⁷ steps.
        learning_rate: ``"auto"`` (below) or the peak rate, at most 1e6.

    **Rate of a linear model.**  Noisy gradient descent has expected excess loss at most R²/(2ηT) + ηT p s²C²/(2n²)
    with s = σ/(q√T): only r = ηT counts (η = rate/(1 − momentum)), and the best is r* = R n/(C s √p).  The linear
    decay's mean is half of its peak.  The peak is capped at (1 + momentum)/β, where heavy-ball descent is stable
    whatever the data (β = norm_bound²·c with c = 1/4 for the logistic loss, 1/2 for softmax, 1 for squared and Huber
    loss of a target in [−1, 1]); when the cap bites and
    ``steps`` is free, T is raised up to 1000 (400 for other models), at constant budget.

    **Rate of any other model.**  The same r*, with R = 30 and an effective rate η ≤ 30/C for the built-in ``mlp`` on
    rows of bounded norm, and R = 15, η ≤ 5/C for a module of unknown scale (a step moves the weights by at most η·C).
    These constants are public: they were set on scikit-learn's digits (ε = 3 and 8; tanh and ReLU networks, a small
    CNN) and on synthetic tasks, and are the same for every data set.

    Raises:
        ConfigError: an argument out of range, ``steps`` with ``epochs``, ``epsilon`` with ``noise_multiplier``,
            ``n_declared`` below the expected batch.
        AccountingError: no noise is large enough.
    """
    n = _whole("n_declared", n_declared)
    _whole("n_features", n_features)
    _whole("n_classes", n_classes, 2)
    _whole("n_parameters", n_parameters)
    if model_name not in MODEL_NAMES:
        raise errors.invalid("model_name", model_name, "one of " + ", ".join(MODEL_NAMES))
    _within("max_grad_norm", max_grad_norm, *MAX_GRAD_NORMS)
    _positive("solution_norm", solution_norm)
    if norm_bound is not None:
        _positive("norm_bound", norm_bound)
    if not 0.0 <= momentum < 1.0:
        raise errors.invalid("momentum", momentum, "in [0, 1)")
    if schedule not in ("linear", "constant"):
        raise errors.invalid("schedule", schedule, "'linear' or 'constant'")
    if learning_rate != "auto":
        allowed = f"'auto' or a number > 0 and at most {HIGHEST_RATE:g}"
        _positive("learning_rate", learning_rate, allowed)
        if float(learning_rate) > HIGHEST_RATE:
            raise errors.invalid("learning_rate", learning_rate, allowed)
    if micro_batch_size is not None:
        _whole("micro_batch_size", micro_batch_size)
    if checkpoint_every is not None:
        _whole("checkpoint_every", checkpoint_every)
    if not 0.0 < delta < 1.0:
        raise errors.invalid("delta", delta, "in (0, 1); below 1/n_declared to mean anything")
    _one_budget(epsilon, noise_multiplier)

    linear = model_name in CURVATURE
    batch = _batch_size(n, expected_batch_size, LINEAR_BATCH_SHARE if linear else NETWORK_BATCH_SHARE)
    q = batch / n
    free = steps is None and epochs is None
    count = _steps(steps, epochs, q)
    rule = _RateRule(
        n,
        n_parameters,
        max_grad_norm,
        momentum,
        schedule,
        *_radius_and_cap(model_name, norm_bound, solution_norm, max_grad_norm, momentum),
    )
    if free and learning_rate == "auto" and epsilon is not None:
        guess = accounting.gaussian_noise_multiplier(epsilon, delta)  # a full batch's s: near enough to choose T by
        most = LINEAR_MOST_STEPS if linear else NETWORK_MOST_STEPS
        count = min(most, max(count, rule.steps_below_cap(guess * _reach(neighboring_relation))))

    def event_of(sigma: float, total: int = count) -> Event:
        return SelfComposed(event=PoissonSampled(q, Gaussian(sigma)), count=total)

    if noise_multiplier is None:
        sigma = accounting.calibrate(
            event_of,
            epsilon=float(epsilon or 0.0),
            delta=delta,
            accountant=accountant,
            neighboring_relation=neighboring_relation,
        )
    else:
        sigma = float(noise_multiplier)
    rate, capped = rule.peak(sigma / (q * math.sqrt(count)), count)
    return DPSGDPlan(
        steps=count,
        sample_rate=q,
        expected_batch_size=batch,
        max_grad_norm=float(max_grad_norm),
        noise_multiplier=sigma,
        learning_rate=rate if learning_rate == "auto" else float(learning_rate),
        momentum=float(momentum),
        schedule=schedule,
        checkpoint_every=min(count, checkpoint_every or max(1, -(-count // CHECKPOINTS))),
        micro_batch_size=micro_batch_size,
        neighboring_relation=neighboring_relation,
        event=event_of(sigma),
        event_per_step=PoissonSampled(q, Gaussian(sigma)),
        capped=capped and learning_rate == "auto",
    )


CURVATURE = {"logreg": 0.25, "softmax": 0.5, "ridge": 1.0, "huber": 1.0}
"""Largest second derivative of a linear model's loss in its scores."""

MODEL_NAMES = (*CURVATURE, "mlp", "module")


@dataclass(frozen=True)
class _RateRule:
    """r* = R n/(C s √p), spread over T steps, below a cap (see :func:`plan_dp_sgd`)."""

    n: int
    n_parameters: int
    max_grad_norm: float
    momentum: float
    schedule: str
    radius: float
    cap: float

    def _uncapped(self, s: float) -> float:
        """Peak rate × T for a full-batch noise multiplier ``s``."""
        best = self.radius * self.n / (self.max_grad_norm * s * math.sqrt(self.n_parameters))
        return best * (1.0 - self.momentum) * (2.0 if self.schedule == "linear" else 1.0)

    def steps_below_cap(self, s: float) -> int:
        return math.ceil(min(self._uncapped(s) / self.cap, 1e9))

    def peak(self, s: float, steps: int) -> tuple[float, bool]:
        wanted = self._uncapped(s) / steps
        return min(wanted, self.cap), wanted > self.cap


def _radius_and_cap(
    model_name: str, norm_bound: float | None, solution_norm: float, max_grad_norm: float, momentum: float
) -> tuple[float, float]:
    if model_name in CURVATURE:
        return solution_norm, (1.0 + momentum) / ((norm_bound or 1.0) ** 2 * CURVATURE[model_name])
    if model_name == "mlp" and norm_bound is not None:
        return MLP_RADIUS, MLP_RATE * (1.0 - momentum) / max_grad_norm
    return MODULE_RADIUS, MODULE_RATE * (1.0 - momentum) / max_grad_norm


def _reach(neighboring_relation: str) -> float:
    """How far one neighbour moves a clipped sum, in units of C."""
    return 2.0 if neighboring_relation == "replace_one" else 1.0


def _batch_size(n: int, asked: int | None, share: float) -> int:
    if asked is None:
        return max(1, math.ceil(share * n))
    batch = _whole("expected_batch_size", asked)
    if batch > n:
        raise errors.invalid(
            "expected_batch_size",
            batch,
            f"at most n_declared = {n}",
            "Lower it, or declare the number of records you have.",
        )
    return batch


def _steps(steps: int | None, epochs: float | None, sample_rate: float) -> int:
    if steps is not None and epochs is not None:
        raise ConfigError(f"steps = {steps!r} and epochs = {epochs!r} exclude each other: give one of them.")
    if steps is not None:
        count = _whole("steps", steps)
        if count > MOST_STEPS:
            raise errors.invalid("steps", steps, f"a whole number from 1 to {MOST_STEPS}")
        return count
    if epochs is None:
        return DEFAULT_STEPS
    _positive("epochs", epochs)
    exact = float(epochs) / sample_rate
    if not exact <= MOST_STEPS:
        raise errors.invalid(
            "epochs", epochs, f"at most {MOST_STEPS * sample_rate:g} here ({MOST_STEPS} steps)", "Lower it."
        )
    return max(1, math.ceil(exact - 1e-9))


def _one_budget(epsilon: float | None, noise_multiplier: float | None) -> None:
    if epsilon is not None and noise_multiplier is not None:
        raise ConfigError(
            f"epsilon = {epsilon!r} and noise_multiplier = {noise_multiplier!r} exclude each other: the noise follows "
            "from epsilon, or epsilon from the noise."
        )
    if epsilon is None and noise_multiplier is None:
        raise ConfigError("epsilon and noise_multiplier are both None: give one of them.")
    if epsilon is not None:
        _positive(
            "epsilon", epsilon, "a finite number > 0", "Without privacy (public data only) use method='nonprivate'."
        )
    if noise_multiplier is not None:
        _within(
            "noise_multiplier",
            noise_multiplier,
            *NOISE_MULTIPLIERS,
            "Without privacy (public data only) use method='nonprivate'.",
        )


def _positive(argument: str, value: object, allowed: str = "a finite number > 0", way_out: str = "") -> None:
    ok = isinstance(value, numbers.Real) and not isinstance(value, bool) and 0.0 < float(value) < math.inf
    if not ok:
        raise errors.invalid(argument, value, allowed, way_out)


def _within(argument: str, value: object, low: float, high: float, way_out: str = "") -> None:
    ok = isinstance(value, numbers.Real) and not isinstance(value, bool) and low <= float(value) <= high
    if not ok:
        raise errors.invalid(argument, value, f"a number from {low:g} to {high:g}", way_out)


def _whole(argument: str, value: object, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise errors.invalid(argument, value, f"a whole number >= {least}")
    return int(value)
