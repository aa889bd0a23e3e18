"""Frozen descriptions of releases: what an accountant reads, and all that it reads.

Conventions.  All logarithms are natural.  ``noise_multiplier`` is the noise's standard deviation (Laplace: its scale)
divided by the largest norm of ONE record's contribution: L2 for the Gaussian, L1 for Laplace.  Under ``add_remove``
that norm is the sensitivity; under ``replace_one`` the sensitivity is twice as large (one contribution leaves, another
comes), which the accountants take into account and callers never do.  ``EpsilonDelta`` and ``ZCDP`` hold for the
relation of the run that they stand in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

from dpml.accounting.checks import ADD_REMOVE as ADD_REMOVE
from dpml.accounting.checks import MAX_COUNT as MAX_COUNT
from dpml.accounting.checks import RELATIONS as RELATIONS
from dpml.accounting.checks import REPLACE_ONE as REPLACE_ONE
from dpml.accounting.checks import check_count as check_count
from dpml.accounting.checks import check_list as check_list
from dpml.accounting.checks import check_number as check_number
from dpml.accounting.checks import check_one_of as check_one_of
from dpml.accounting.checks import check_relation as check_relation
from dpml.accounting.checks import shown as shown
from dpml.errors import ConfigError, invalid

LOSSES = ("logistic", "monotone", "general")
MAX_DEPTH = 50
MAX_SCALE = 1e12  # noise multipliers, scales, ε and ρ of one release


@dataclass(frozen=True)
class Event:
    """Base of all events; ``to_json`` gives the form that ledgers keep and :func:`from_json` reads."""

    type: ClassVar[str] = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict with ``type`` and the event's fields."""
        out: dict[str, Any] = {"type": self.type}
        for key in _fields(type(self)):
            value = getattr(self, key)
            if isinstance(value, Event):
                value = value.to_json()
            elif isinstance(value, tuple):
                value = [part.to_json() for part in value]
            out[key] = value
        return out

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True)
class NoOp(Event):
    """Nothing that depends on the data: costs nothing."""

    type: ClassVar[str] = "no_op"


@dataclass(frozen=True)
class NonPrivate(Event):
    """Anything without a guarantee: ε = ∞ for every accountant."""

    type: ClassVar[str] = "non_private"


@dataclass(frozen=True)
class Gaussian(Event):
    """A sum of contributions plus N(0, (noise_multiplier · contribution)² I).  Zero noise costs ε = ∞."""

    noise_multiplier: float
    type: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        self._set("noise_multiplier", check_number("noise_multiplier", self.noise_multiplier, 0.0, MAX_SCALE))


@dataclass(frozen=True)
class Laplace(Event):
    """A sum of contributions plus Laplace noise of scale noise_multiplier · (L1 contribution)."""

    noise_multiplier: float
    type: ClassVar[str] = "laplace"

    def __post_init__(self) -> None:
        self._set("noise_multiplier", check_number("noise_multiplier", self.noise_multiplier, 0.0, MAX_SCALE))


@dataclass(frozen=True)
class EpsilonDelta(Event):
    """Anything that is proved (ε, δ)-DP under the relation of the run."""

    epsilon: float
    delta: float
    type: ClassVar[str] = "epsilon_delta"

    def __post_init__(self) -> None:
        self._set("epsilon", check_number("epsilon", self.epsilon, 0.0, MAX_SCALE))
        self._set("delta", check_number("delta", self.delta, 0.0, 1.0))


@dataclass(frozen=True)
class ZCDP(Event):
    """Anything that is proved ρ-zCDP under the relation of the run (Bun & Steinke 2016, Definition 1.1)."""

    rho: float
    type: ClassVar[str] = "zcdp"

    def __post_init__(self) -> None:
        self._set("rho", check_number("rho", self.rho, 0.0, MAX_SCALE))


@dataclass(frozen=True)
class ObjectivePerturbation(Event):
    """The exact minimum of Σ loss + (lambda_sum/2)‖θ‖² + bᵀθ with b ~ N(0, noise_std² I).

    Attributes:
        noise_std: absolute standard deviation of b, in the sum form of the objective.
        lambda_sum: coefficient of the sum form, > 0.
        norm_bound: public bound on the norm of one encoded row, the constant column included.
        loss: ``"logistic"``; ``"monotone"`` for any other convex loss of one score whose derivative keeps its sign
            (smoothed hinge); ``"general"`` otherwise (Huber).
        slope_bound, curvature_bound: bounds on the loss's derivative in the score and on the Lipschitz constant of that
            derivative; 1 and 1/4 for ``"logistic"``.
    """

    noise_std: float
    lambda_sum: float
    norm_bound: float
    loss: str = "logistic"
    slope_bound: float = 1.0
    curvature_bound: float = 0.25
    type: ClassVar[str] = "objective_perturbation"

    def __post_init__(self) -> None:
        self._set("noise_std", check_number("noise_std", self.noise_std, 0.0, MAX_SCALE))
        self._set("lambda_sum", check_number("lambda_sum", self.lambda_sum, 0.0, MAX_SCALE**2, above=True))
        self._set("norm_bound", check_number("norm_bound", self.norm_bound, 0.0, MAX_SCALE, above=True))
        self._set("loss", check_one_of("loss", self.loss, LOSSES, "No privacy proof covers another loss here."))
        self._set("slope_bound", check_number("slope_bound", self.slope_bound, 0.0, MAX_SCALE, above=True))
        self._set("curvature_bound", check_number("curvature_bound", self.curvature_bound, 0.0, MAX_SCALE))
        for name, known in (("slope_bound", 1.0), ("curvature_bound", 0.25)):
            if self.loss == "logistic" and getattr(self, name) != known:
                raise invalid(name, getattr(self, name), f"{known:g} for loss='logistic'", "Use loss='monotone'.")


@dataclass(frozen=True)
class Pure(Event):
    """Anything that is proved ε-DP (δ = 0) under the relation of the run."""

    epsilon: float
    type: ClassVar[str] = "pure"

    def __post_init__(self) -> None:
        self._set("epsilon", check_number("epsilon", self.epsilon, 0.0, MAX_SCALE))


@dataclass(frozen=True)
class GDP(Event):
    """Anything that is proved μ-Gaussian-DP under the relation of the run (Dong, Roth & Su 2022, Definition 2.6)."""

    mu: float
    type: ClassVar[str] = "gdp"

    def __post_init__(self) -> None:
        self._set("mu", check_number("mu", self.mu, 0.0, MAX_SCALE))


@dataclass(frozen=True)
class UnequalGaussian(Event):
    """N(0, noise_std²) on one data set and N(shift, other_noise_std²) on its neighbour, or the other way round.

    One released number whose noise level itself depends on the data.  Its (ε, δ) has no simple closed form under
    composition, its moments do; its Rényi divergence is infinite beyond the order where
    α·(variance of Q) + (1 − α)·(variance of P) reaches 0.  The pair is taken as stated under the relation of the run,
    and all such releases of one composition are oriented alike: on one of the two data sets every one of them has its
    ``noise_std``, on the other its ``other_noise_std``.
    """

    shift: float
    noise_std: float
    other_noise_std: float
    type: ClassVar[str] = "unequal_gaussian"

    def __post_init__(self) -> None:
        self._set("shift", check_number("shift", self.shift, 0.0, MAX_SCALE))
        self._set("noise_std", check_number("noise_std", self.noise_std, 1e-6, 1e6))
        self._set("other_noise_std", check_number("other_noise_std", self.other_noise_std, 1e-6, 1e6))


@dataclass(frozen=True)
class DiscreteLaplace(Event):
    """One integer-valued query plus integer noise Z, P(Z = k) ∝ e^{−|k|/noise_scale} (the geometric mechanism).

    ``sensitivity`` is the largest integer contribution of ONE record.
    """

    noise_scale: float
    sensitivity: int = 1
    type: ClassVar[str] = "discrete_laplace"

    def __post_init__(self) -> None:
        self._set("noise_scale", check_number("noise_scale", self.noise_scale, 0.0, 1e6))
        self._set("sensitivity", _check_sensitivity(self.sensitivity))


@dataclass(frozen=True)
class DiscreteGaussian(Event):
    """One integer-valued query plus integer noise Z, P(Z = k) ∝ e^{−k²/(2·noise_std²)} (Canonne et al. 2020).

    ``noise_std`` is the parameter σ (the true standard deviation is a little smaller); ``sensitivity`` is the largest
    integer contribution of ONE record.
    """

    noise_std: float
    sensitivity: int = 1
    type: ClassVar[str] = "discrete_gaussian"

    def __post_init__(self) -> None:
        self._set("noise_std", check_number("noise_std", self.noise_std, 0.0, 1e6))
        self._set("sensitivity", _check_sensitivity(self.sensitivity))


@dataclass(frozen=True)
class RandomizedResponse(Event):
    """One report per record: with probability ``noise_parameter`` uniform over ``num_buckets`` answers, else the truth.

    Binary with bias γ (truth with probability ½ + γ) is noise_parameter = 1 − 2γ.  Local: who reports is public, so
    that only ``replace_one`` has a guarantee.
    """

    noise_parameter: float
    num_buckets: int = 2
    type: ClassVar[str] = "randomized_response"

    def __post_init__(self) -> None:
        self._set("noise_parameter", check_number("noise_parameter", self.noise_parameter, 0.0, 1.0))
        number = check_count("num_buckets", self.num_buckets, 2)
        self._set("num_buckets", number)

    @property
    def epsilon(self) -> float:
        """Pure ε under replace_one: ln((1 − p + p/k)/(p/k))."""
        p, k = self.noise_parameter, self.num_buckets
        return math.log1p((1 - p) * k / p) if p > 1e-300 else math.inf


@dataclass(frozen=True)
class ExponentialMechanism(Event):
    """The exponential mechanism with pure cost ``epsilon``: weights e^{ε·u/(2Δ)}, or e^{ε·u/Δ} for monotone scores.

    Δ is the sensitivity of the score under the relation of the run.  It is ε-bounded-range, which composes better than
    ε-DP alone (Durfee & Rogers 2019; Dong, Durfee & Rogers 2020).
    """

    epsilon: float
    type: ClassVar[str] = "exponential"

    def __post_init__(self) -> None:
        self._set("epsilon", check_number("epsilon", self.epsilon, 0.0, MAX_SCALE))


@dataclass(frozen=True)
class PermuteAndFlip(Event):
    """Permute-and-flip selection with pure cost ``epsilon`` (McKenna & Sheldon 2020); accounted as ε-DP."""

    epsilon: float
    type: ClassVar[str] = "permute_and_flip"

    def __post_init__(self) -> None:
        self._set("epsilon", check_number("epsilon", self.epsilon, 0.0, MAX_SCALE))


NOISY_MAX_NOISES = ("laplace", "exponential", "gumbel")


@dataclass(frozen=True)
class ReportNoisyMax(Event):
    """The index of the largest noisy score, with pure cost ``epsilon``.

    ``noise``: ``"gumbel"`` is the exponential mechanism and accounted as such; ``"laplace"`` and ``"exponential"`` are
    accounted as ε-DP.  For general scores of sensitivity Δ the noise has scale 2Δ/ε.
    """

    epsilon: float
    noise: str = "laplace"
    type: ClassVar[str] = "report_noisy_max"

    def __post_init__(self) -> None:
        self._set("epsilon", check_number("epsilon", self.epsilon, 0.0, MAX_SCALE))
        self._set("noise", check_one_of("noise", self.noise, NOISY_MAX_NOISES))


@dataclass(frozen=True)
class RandomRow(Event):
    """One row of the data in the clear, chosen uniformly: the reason why small statistical distance is not privacy.

    It is (0, 1/records)-DP, and its pure ε is infinite.  ``records`` is a public lower bound on the number of rows.
    """

    records: int
    type: ClassVar[str] = "random_row"

    def __post_init__(self) -> None:
        self._set("records", check_count("records", self.records, 1))


@dataclass(frozen=True)
class PoissonSampled(Event):
    """``event`` on a sample that holds each record independently with ``sampling_probability``."""

    sampling_probability: float
    event: Event
    type: ClassVar[str] = "poisson_sampled"

    def __post_init__(self) -> None:
        self._set("sampling_probability", check_number("sampling_probability", self.sampling_probability, 0.0, 1.0))
        check_event("event", self.event)


@dataclass(frozen=True)
class SampledWithoutReplacement(Event):
    """``event`` on a uniform sample of exactly ``sample_size`` of ``source_size`` records, fresh for every release.

    The sizes are public; a guarantee exists under ``replace_one`` only (under add_remove the number of records is
    private: sample by Poisson there).
    """

    sample_size: int
    source_size: int
    event: Event
    type: ClassVar[str] = "sampled_without_replacement"

    def __post_init__(self) -> None:
        self._set("source_size", check_count("source_size", self.source_size, 1))
        self._set("sample_size", check_count("sample_size", self.sample_size))
        if self.sample_size > self.source_size:
            raise invalid("sample_size", self.sample_size, f"at most source_size = {self.source_size}")
        check_event("event", self.event)


@dataclass(frozen=True)
class RepeatAndSelect(Event):
    """``event`` run a random number K of times, only the best outcome released (Papernot & Steinke 2022).

    K is Poisson (``shape`` None) or truncated negative binomial with ``shape`` η > −1 (0 logarithmic, 1 geometric),
    with expectation ``mean``; the truncated ones need mean ≥ 1.  The candidates of the K runs are drawn independently.
    """

    event: Event
    mean: float
    shape: float | None = None
    type: ClassVar[str] = "repeat_and_select"

    def __post_init__(self) -> None:
        check_event("event", self.event)
        if self.shape is None:
            self._set("mean", check_number("mean", self.mean, 0.0, 1e9, above=True))
        else:
            self._set("shape", check_number("shape", self.shape, -1.0, 1e6, above=True))
            self._set("mean", check_number("mean", self.mean, 1.0, 1e9))


@dataclass(frozen=True)
class Group(Event):
    """``event`` seen by a group of ``size`` records that come or change together (one user's records, say)."""

    event: Event
    size: int
    type: ClassVar[str] = "group"

    def __post_init__(self) -> None:
        check_event("event", self.event)
        self._set("size", check_count("size", self.size, 1))


def _check_sensitivity(value: object) -> int:
    number = check_count("sensitivity", value, 1)
    if number > 10**6:
        raise invalid("sensitivity", number, "an integer >= 1 and <= 1e6")
    return number


@dataclass(frozen=True)
class SelfComposed(Event):
    """``count`` adaptive runs of ``event``, each with fresh randomness."""

    event: Event
    count: int
    type: ClassVar[str] = "self_composed"

    def __post_init__(self) -> None:
        check_event("event", self.event)
        self._set("count", check_count("count", self.count))


@dataclass(frozen=True)
class Composed(Event):
    """All of ``events``, adaptively, each with fresh randomness."""

    events: tuple[Event, ...]
    type: ClassVar[str] = "composed"

    def __post_init__(self) -> None:
        self._set("events", tuple(check_list("events", self.events, "a sequence of events")))
        for part in self.events:
            check_event("events", part)


_TYPES: dict[str, type[Event]] = {
    kind.type: kind
    for kind in (
        NoOp,
        NonPrivate,
        Gaussian,
        Laplace,
        EpsilonDelta,
        ZCDP,
        Pure,
        GDP,
        UnequalGaussian,
        DiscreteLaplace,
        DiscreteGaussian,
        RandomizedResponse,
        ExponentialMechanism,
        PermuteAndFlip,
        ReportNoisyMax,
        RandomRow,
        ObjectivePerturbation,
        PoissonSampled,
        SampledWithoutReplacement,
        RepeatAndSelect,
        Group,
        SelfComposed,
        Composed,
    )
}


def _fields(kind: type[Event]) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def check_event(name: str, value: object, way_out: str = "") -> Event:
    """The event itself; raises :class:`ConfigError` for anything else."""
    if not isinstance(value, Event):
        raise invalid(name, shown(value), "an event of dpml.accounting", way_out)
    return value


def from_json(data: Any) -> Event:
    """The event behind ``event.to_json()``.

    Raises:
        ConfigError: an unknown type, a missing or unknown key, or a value out of range; the message names it.
    """
    return _from_json(data, 0)


def _from_json(data: Any, depth: int) -> Event:
    if depth > MAX_DEPTH:
        raise ConfigError(f"event is nested more than {MAX_DEPTH} deep; flatten its compositions.")
    if not isinstance(data, Mapping):
        raise invalid("event", shown(data), "a JSON object with a key 'type'")
    kind = _TYPES.get(data.get("type")) if isinstance(data.get("type"), str) else None  # type: ignore[arg-type]
    if kind is None:
        raise invalid("event type", shown(data.get("type")), f"one of {sorted(_TYPES)}")
    names = _fields(kind)
    unknown = sorted(str(key) for key in data if key not in (*names, "type"))
    if unknown:
        named = ", ".join(str(shown(key)) for key in unknown[:10]) + (", …" if len(unknown) > 10 else "")
        raise ConfigError(f"event {kind.type!r} has unknown keys {named}; allowed are {list(names)}.")
    optional = {item.name for item in fields(kind) if item.default is not MISSING}
    missing = [key for key in names if key not in data and key not in optional]
    if missing:
        raise ConfigError(f"event {kind.type!r} lacks the keys {missing}.")
    values: dict[str, Any] = {key: data[key] for key in names if key in data}
    if "event" in values:
        values["event"] = _from_json(values["event"], depth + 1)
    if "events" in values:
        if not isinstance(values["events"], list | tuple):
            raise invalid("events", shown(values["events"]), "a list of events")
        values["events"] = tuple(_from_json(part, depth + 1) for part in values["events"])
    return kind(**values)


def event_name(event: Event) -> str:
    """A short name for messages, ``"poisson_sampled(laplace)"`` say."""
    if isinstance(event, PoissonSampled | SelfComposed | SampledWithoutReplacement | RepeatAndSelect | Group):
        return f"{event.type}({event_name(event.event)})"
    return event.type
