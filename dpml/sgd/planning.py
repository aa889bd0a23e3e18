"""The plan of a DP-SGD run: everything that is fixed before a record is read, from public numbers alone."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpml import accounting, errors
from dpml.accounting import Event, Gaussian, PoissonSampled, SampledWithoutReplacement, SelfComposed
from dpml.errors import ConfigError, DataError, shown
from dpml.ranges import HIGHEST_RATE, LIMITS, MOST, check_sgd_options
from dpml.sgd.adaptive import raised_noise_multiplier
from dpml.sgd.batch_limits import batch_size_of

LINEAR_BATCH_SHARE = 0.25
NETWORK_BATCH_SHARE = 0.125
DEFAULT_STEPS = 100
LINEAR_MOST_STEPS, NETWORK_MOST_STEPS = 1000, 400
CHECKPOINTS = 20
MOST_STEPS = MOST["steps"]
COUNT_NOISE_SHARE = 1 / 20  # σ_b of adaptive clipping ÷ expected batch (Andrew et al. 2021, section 3.1)
MLP_RADIUS, MLP_RATE = 30.0, 30.0  # R, and the cap on C · rate/(1 − momentum), for rows of bounded norm
MODULE_RADIUS, MODULE_RATE = 15.0, 5.0  # the same for a module of which nothing is known
ADAM_NOISE_SHARE = 0.75  # typical denominator of bias-corrected Adam ÷ noise of an entry
ADAM_NETWORK_RATE = 0.1  # highest automatic rate of Adam for a model that is not linear


@dataclass(frozen=True)
class DPSGDPlan:
    """What a run will do; a promise once ε is computed from ``event``.

    Attributes:
        steps: T, noisy releases; micro-batches do not count.
        sample_rate: q, Poisson probability of one record in one step, ``expected_batch_size / n_declared``.
        expected_batch_size: public normaliser of every step.
        max_grad_norm: C.
        noise_multiplier: σ of one step's whole release.  The noise on the clipped sum has standard deviation
            C · ``gradient_noise_multiplier``, which is C·σ except beside an adaptive clipping's count, under both
            relations (the accountant knows that replacing a record moves the sum by 2C).
        learning_rate: peak rate.
        momentum: of ``sgd``'s heavy ball, not dampened.
        schedule: ``"linear"``, ``"constant"`` or ``"cosine"``; see :meth:`rate`.
        checkpoint_every: steps reserved in the ledger at once, before the first of them.
        micro_batch_size: records whose gradients are held at once, or None for a bounded amount of memory.
        neighboring_relation: what the noise was calibrated for.
        event, event_per_step: for the accountant.
        capped: whether the automatic rate met its cap (a larger ``steps`` would use the budget better).
        clipping: how a record's gradient g is bounded, by at most C in each, so that the event is the same in each.
            ``"flat"``: min(1, C/‖g‖)·g.  ``"per_layer"``: each of K trained layers to C/√K.  ``"automatic"``:
            C·g/(‖g‖ + 0.01) (AUTO-S of Bu, Wang, Zha and Karypis 2023).  ``"adaptive"``: flat, with C following a
            quantile of the norms (:mod:`dpml.sgd.adaptive`).
        target_quantile, clip_learning_rate, count_noise: of ``"adaptive"``: share of records to leave unclipped, step
            of ln C, and the standard deviation σ_b of the released count, in records.
        sampling: ``"poisson"``, or ``"fixed_size"``: a uniform sample of exactly ``expected_batch_size`` of exactly
            ``source_size`` records, ``replace_one`` only.
        optimizer, betas, weight_decay, bias_correction, averaging, averaging_share, warmup_steps: post-processing of
            the noisy gradients (:mod:`dpml.sgd.optimizers`).
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
    clipping: str = "flat"
    target_quantile: float = 0.5
    clip_learning_rate: float = 0.2
    count_noise: float | None = None
    sampling: str = "poisson"
    optimizer: str = "sgd"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    bias_correction: bool = True
    averaging: str = "none"
    averaging_share: float = 0.5
    warmup_steps: int = 0

    def rate(self, step: int) -> float:
        """Learning rate of step ``step`` = 0 … T−1: a function of the logical step only.

        It rises by equal parts over W = ``warmup_steps`` steps, to the peak η in step W.  From there, with
        s = (t − W)/(T − W): η (1 − s) (``"linear"``), η (1 + cos πs)/2 (``"cosine"``) or η (``"constant"``).
        """
        warm = self.warmup_steps
        if step < warm:
            return self.learning_rate * (step + 1) / (warm + 1)
        if self.schedule == "constant":
            return self.learning_rate
        share = (step - warm) / (self.steps - warm)
        return self.learning_rate * (
            0.5 * (1.0 + math.cos(math.pi * share)) if self.schedule == "cosine" else 1 - share
        )

    @property
    def count_noise_std(self) -> float:
        """σ_b of adaptive clipping's count, in records: ``count_noise``, or a twentieth of the expected batch."""
        return self.count_noise if self.count_noise is not None else COUNT_NOISE_SHARE * self.expected_batch_size

    @property
    def gradient_noise_multiplier(self) -> float:
        """Noise on the clipped sum ÷ C: ``noise_multiplier``, raised where the step also releases a count.

        Raises:
            ConfigError: adaptive clipping with ``count_noise`` ≤ ``noise_multiplier``/2.
        """
        if self.clipping != "adaptive":
            return self.noise_multiplier
        return raised_noise_multiplier(self.noise_multiplier, self.count_noise_std)

    @property
    def source_size(self) -> int | None:
        """The exact number of records that a sample of fixed size is drawn from; None under Poisson sampling."""
        event = self.event_per_step
        return event.source_size if isinstance(event, SampledWithoutReplacement) else None

    def check_records(self, n: int) -> None:
        """DataError unless the table has the number of records that the event is about.

        Only a sample of fixed size needs that; n is public under ``replace_one``, where neighbours have equally many.
        """
        if self.source_size is not None and n != self.source_size:
            raise DataError(
                f"the table holds {n} records and n_declared = {self.source_size}: with sampling='fixed_size' they "
                "must be equal, for the guarantee is that of a sample of the declared number. Declare the exact "
                "number, or use sampling='poisson'."
            )

    def rows(self) -> list[tuple[str, str]]:
        """What differs from plain DP-SGD with momentum, for people: (name, value)."""
        shown: list[tuple[str, str]] = []
        if self.optimizer != "sgd":
            corrected = "" if self.bias_correction else ", without correction for the noise"
            shown.append(("optimizer", f"{self.optimizer}, betas {self.betas[0]:g} and {self.betas[1]:g}{corrected}"))
        if self.weight_decay:
            shown.append(("weight decay", f"{self.weight_decay:g}"))
        if self.schedule != "linear" or self.warmup_steps:
            warm = f", {self.warmup_steps} warm-up steps" if self.warmup_steps else ""
            shown.append(("schedule", self.schedule + warm))
        if self.averaging != "none":
            shown.append(("averaging", f"{self.averaging}, share {self.averaging_share:g}"))
        if self.clipping == "adaptive":
            text = f"adaptive to the {self.target_quantile:g} quantile, count noise {self.count_noise_std:.6g} records"
            shown += [("clipping", text), ("noise multiplier of gradients", f"{self.gradient_noise_multiplier:.6g}")]
        elif self.clipping != "flat":
            shown.append(("clipping", self.clipping))
        if self.source_size is not None:
            text = f"{self.expected_batch_size:,} of exactly {self.source_size:,} records, without replacement"
            shown.append(("sampling", text))
        return shown


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
    micro_batch_size: int | str | None = None,
    optimizer: str = "sgd",
    betas: tuple[float, float] = (0.9, 0.999),
    bias_correction: bool = True,
    weight_decay: float = 0.0,
    warmup_steps: int = 0,
    averaging: str = "none",
    averaging_share: float = 0.5,
    clipping: str = "flat",
    target_quantile: float = 0.5,
    clip_learning_rate: float = 0.2,
    count_noise: float | None = None,
    sampling: str = "poisson",
    run_of: Callable[[Event], Event] | None = None,
) -> DPSGDPlan:
    """Batch, steps, noise and learning rate of a run; reads no data.

    Args:
        n_declared: public nominal number of records; q and the normaliser follow from it, never from the actual number.
        n_features, n_classes, n_parameters: of the model; ``model_name`` is ``"logreg"``, ``"softmax"``, ``"mlp"`` or
            ``"module"``.
        epsilon, delta: budget to calibrate σ for; or ``noise_multiplier`` (1e-3 to 1e6) with ``epsilon=None``.
        run_of: the event of everything that the budget is for, from the event of the training; None: that one alone.
        max_grad_norm: C, 1e-6 to 1e6.
        norm_bound: public bound on a row's L2 norm; gives the smoothness of a linear model's loss.
        solution_norm: R, public guess of the norm of a good solution of a linear model.
        expected_batch_size: default a quarter of ``n_declared`` for a linear model (under 2 % more noise than the full
            batch at equal ε, and a quarter of the time), an eighth for any other; at most
            :func:`dpml.sgd.batch_limits.largest_batch`.
        steps, epochs: one of them or neither; ``epochs`` are ``epochs / q`` steps, rounded up; at most 10⁷ steps.
        learning_rate: ``"auto"`` (below) or the peak rate, at most 1e6.
        micro_batch_size: a number, or ``None`` or ``"auto"`` for a bounded amount of memory.
        count_noise: σ_b of ``clipping="adaptive"``, above σ/2; default a twentieth of the expected batch.
        sampling: ``"fixed_size"`` needs ``replace_one`` and a table of exactly ``n_declared`` records.
        The others: :class:`DPSGDPlan`, :mod:`dpml.sgd.optimizers` and :mod:`dpml.sgd.adaptive`.

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

    **Rate of Adam.**  Where noise dominates, the denominator of an entry is about κ^½ σC/B (κ = 1 without bias
    correction), so Adam is descent with η/(κ^½ σC/B) and r* means η T = κ^½ (σC/B) R n/(C s √p), which is
    κ^½ R √(T/p): noise, batch and C cancel, and η = κ^½ R/√(T p), twice that at the peak of a schedule that falls to
    zero.  With bias correction κ^½ = 0.75, R as above; at most 0.1 for a model that is not linear.  The constants are
    public and were set on digits (softmax, mlp, a small CNN; ε = 1, 3, 8) and a synthetic table, where the rate is
    within 2 points of the best of a grid with bias correction (up to 11 below it without, on the CNN).  T stays at 100
    unless it is given.

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
    _within("max_grad_norm", max_grad_norm, *LIMITS["max_grad_norm"])
    _positive("solution_norm", solution_norm)
    if norm_bound is not None:
        _positive("norm_bound", norm_bound)
    if not 0.0 <= momentum < 1.0:
        raise errors.invalid("momentum", momentum, "in [0, 1)")
    options: dict[str, Any] = {
        "optimizer": optimizer,
        "betas": betas,
        "bias_correction": bias_correction,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "warmup_steps": warmup_steps,
        "averaging": averaging,
        "averaging_share": averaging_share,
        "clipping": clipping,
        "target_quantile": target_quantile,
        "clip_learning_rate": clip_learning_rate,
        "count_noise": count_noise,
        "sampling": sampling,
    }
    check_sgd_options(options, neighboring_relation=neighboring_relation, momentum=momentum)
    if learning_rate != "auto":
        allowed = f"'auto' or a number > 0 and at most {HIGHEST_RATE:g}"
        _positive("learning_rate", learning_rate, allowed)
        if float(learning_rate) > HIGHEST_RATE:
            raise errors.invalid("learning_rate", learning_rate, allowed)
    micro = None if micro_batch_size in (None, "auto") else _whole("micro_batch_size", micro_batch_size)
    if checkpoint_every is not None:
        _whole("checkpoint_every", checkpoint_every)
    if not 0.0 < delta < 1.0:
        raise errors.invalid("delta", delta, "in (0, 1); below 1/n_declared to mean anything")
    _one_budget(epsilon, noise_multiplier)

    linear = model_name in CURVATURE
    asked = None if expected_batch_size is None else _whole("expected_batch_size", expected_batch_size)
    batch = batch_size_of(n, asked, LINEAR_BATCH_SHARE if linear else NETWORK_BATCH_SHARE, sampling)
    q = batch / n
    free = steps is None and epochs is None
    count = _steps(steps, epochs, q)
    rule = _RateRule(
        n,
        n_parameters,
        max_grad_norm,
        momentum,
        schedule,
        warmup_steps,
        *_radius_and_cap(model_name, norm_bound, solution_norm, max_grad_norm, momentum),
    )
    if free and learning_rate == "auto" and epsilon is not None and optimizer == "sgd":
        guess = accounting.gaussian_noise_multiplier(epsilon, delta)  # a full batch's s: near enough to choose T by
        most = LINEAR_MOST_STEPS if linear else NETWORK_MOST_STEPS
        count = min(most, max(count, rule.steps_below_cap(guess * _reach(neighboring_relation))))

    def event_of(sigma: float) -> Event:
        return SelfComposed(event=step_event(sampling, batch, n, sigma), count=count)

    if noise_multiplier is None:
        sigma = accounting.calibrate(
            event_of if run_of is None else lambda sigma: run_of(event_of(sigma)),
            epsilon=float(epsilon or 0.0),
            delta=delta,
            accountant=accountant,
            neighboring_relation=neighboring_relation,
        )
    else:
        sigma = float(noise_multiplier)
    if optimizer == "sgd":
        rate, capped = rule.peak(sigma / (q * math.sqrt(count)), count)
    else:
        rate, capped = rule.adam_peak(count, bias_correction, linear), False
    plan = DPSGDPlan(
        steps=count,
        sample_rate=q,
        expected_batch_size=batch,
        max_grad_norm=float(max_grad_norm),
        noise_multiplier=sigma,
        learning_rate=rate if learning_rate == "auto" else float(learning_rate),
        momentum=float(momentum),
        checkpoint_every=min(count, checkpoint_every or max(1, -(-count // CHECKPOINTS))),
        micro_batch_size=micro,
        neighboring_relation=neighboring_relation,
        event=event_of(sigma),
        event_per_step=step_event(sampling, batch, n, sigma),
        capped=capped and learning_rate == "auto",
        **_as_fields(options, batch),
    )
    _check_together(plan)
    return plan


def step_event(sampling: str, batch: int, n: int, noise_multiplier: float) -> Event:
    """One step, for the accountant: Gaussian noise on a Poisson sample, or on ``batch`` of exactly ``n`` records."""
    if sampling == "fixed_size":
        return SampledWithoutReplacement(batch, n, Gaussian(noise_multiplier))
    return PoissonSampled(batch / n, Gaussian(noise_multiplier))


def _as_fields(options: dict[str, Any], batch: int) -> dict[str, Any]:
    fields = {**options, "betas": (float(options["betas"][0]), float(options["betas"][1]))}
    for name in ("weight_decay", "averaging_share", "target_quantile", "clip_learning_rate"):
        fields[name] = float(options[name])
    if options["clipping"] == "adaptive":
        given = options["count_noise"]
        fields["count_noise"] = COUNT_NOISE_SHARE * batch if given is None else float(given)
    return fields


def _check_together(plan: DPSGDPlan) -> None:
    """What is wrong only once steps, noise and rate are known."""
    _ = plan.gradient_noise_multiplier  # refuses a count noise that is too small
    if plan.warmup_steps >= plan.steps:
        raise errors.invalid("warmup_steps", plan.warmup_steps, f"below steps = {plan.steps}", "Lower it.")
    if plan.weight_decay * plan.learning_rate >= 1.0:
        raise errors.invalid(
            "weight_decay",
            plan.weight_decay,
            f"below 1/learning_rate = {1 / plan.learning_rate:g}: a step multiplies the weights by "
            "1 - learning_rate * weight_decay",
            "Lower it.",
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
    warmup_steps: int
    radius: float
    cap: float

    def _uncapped(self, s: float, steps: int | None = None) -> float:
        """Peak rate × T for a full-batch noise multiplier ``s``."""
        best = self.radius * self.n / (self.max_grad_norm * s * math.sqrt(self.n_parameters))
        return best * (1.0 - self.momentum) * self._peak_over_mean(steps)

    def _peak_over_mean(self, steps: int | None) -> float:
        """Of the schedule; a rise of W steps leaves it at 2 where the rate falls to zero after it."""
        if self.schedule != "constant":
            return 2.0
        return 1.0 if steps is None else 1.0 / (1.0 - min(self.warmup_steps, steps) / (2.0 * steps))

    def steps_below_cap(self, s: float) -> int:
        return math.ceil(min(self._uncapped(s) / self.cap, 1e9))

    def peak(self, s: float, steps: int) -> tuple[float, bool]:
        wanted = self._uncapped(s, steps) / steps
        return min(wanted, self.cap), wanted > self.cap

    def adam_peak(self, steps: int, bias_correction: bool, linear: bool) -> float:
        share = ADAM_NOISE_SHARE if bias_correction else 1.0
        wanted = share * self._peak_over_mean(steps) * self.radius / math.sqrt(steps * self.n_parameters)
        return min(wanted, HIGHEST_RATE if linear else ADAM_NETWORK_RATE)


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


def _steps(steps: int | None, epochs: float | None, sample_rate: float) -> int:
    if steps is not None and epochs is not None:
        raise ConfigError(f"steps = {shown(steps)} and epochs = {shown(epochs)} exclude each other: give one of them.")
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
            f"epsilon = {shown(epsilon)} and noise_multiplier = {shown(noise_multiplier)} exclude each other: the "
            "noise follows from epsilon, or epsilon from the noise."
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
            *LIMITS["noise_multiplier"],
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
