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
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from dpml.errors import ConfigError, invalid

ADD_REMOVE = "add_remove"
REPLACE_ONE = "replace_one"
RELATIONS = (ADD_REMOVE, REPLACE_ONE)
LOSSES = ("logistic",)
MAX_DEPTH = 50
MAX_COUNT = 10**15  # releases of one kind, nested counts multiplied
MAX_SCALE = 1e12  # noise multipliers, scales, ε and ρ of one release


def check_relation(neighboring_relation: object) -> str:
    """The relation itself; raises :class:`ConfigError` for any other value."""
    if neighboring_relation not in RELATIONS:
        raise invalid("neighboring_relation", neighboring_relation, f"one of {list(RELATIONS)}")
    return str(neighboring_relation)


def check_number(
    name: str, value: object, low: float, high: float = math.inf, *, above: bool = False, below: bool = False
) -> float:
    """``value`` as a finite float in [low, high] (open ends by ``above``/``below``), else :class:`ConfigError`."""
    allowed = f"a finite number {'>' if above else '>='} {low:g}"
    if math.isfinite(high):
        allowed += f" and {'<' if below else '<='} {high:g}"
    if isinstance(value, bool | str | bytes) or value is None:
        raise invalid(name, value, allowed)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise invalid(name, _short(value), allowed) from None
    if not math.isfinite(number) or number < low or number > high or (above and number == low):
        raise invalid(name, value, allowed)
    if below and number == high:
        raise invalid(name, value, allowed)
    return number


def check_count(name: str, value: object, low: int = 0) -> int:
    """``value`` as an int from low to MAX_COUNT, else :class:`ConfigError`; floats and booleans are refused."""
    allowed = f"an integer >= {low} and <= {MAX_COUNT:.0e}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise invalid(name, value, allowed)
    number = int(value.__index__())
    if not low <= number <= MAX_COUNT:
        raise invalid(name, _short(number), allowed)
    return number


def _short(value: object) -> object:
    """The value for a message; Python refuses to print integers of many digits."""
    return f"an integer of {value.bit_length()} bits" if isinstance(value, int) and abs(value) > 10**40 else value


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
        loss: ``"logistic"``.
    """

    noise_std: float
    lambda_sum: float
    norm_bound: float
    loss: str = "logistic"
    type: ClassVar[str] = "objective_perturbation"

    def __post_init__(self) -> None:
        self._set("noise_std", check_number("noise_std", self.noise_std, 0.0, MAX_SCALE))
        self._set("lambda_sum", check_number("lambda_sum", self.lambda_sum, 0.0, MAX_SCALE**2, above=True))
        self._set("norm_bound", check_number("norm_bound", self.norm_bound, 0.0, MAX_SCALE, above=True))
        if self.loss not in LOSSES:
            raise invalid("loss", self.loss, f"one of {list(LOSSES)}", "No privacy proof covers another loss here.")


@dataclass(frozen=True)
class PoissonSampled(Event):
    """``event`` on a sample that holds each record independently with ``sampling_probability``."""

    sampling_probability: float
    event: Event
    type: ClassVar[str] = "poisson_sampled"

    def __post_init__(self) -> None:
        self._set("sampling_probability", check_number("sampling_probability", self.sampling_probability, 0.0, 1.0))
        _check_event("event", self.event)


@dataclass(frozen=True)
class SelfComposed(Event):
    """``count`` adaptive runs of ``event``, each with fresh randomness."""

    event: Event
    count: int
    type: ClassVar[str] = "self_composed"

    def __post_init__(self) -> None:
        _check_event("event", self.event)
        self._set("count", check_count("count", self.count))


@dataclass(frozen=True)
class Composed(Event):
    """All of ``events``, adaptively, each with fresh randomness."""

    events: tuple[Event, ...]
    type: ClassVar[str] = "composed"

    def __post_init__(self) -> None:
        if isinstance(self.events, Event) or not hasattr(self.events, "__iter__"):
            raise invalid("events", self.events, "a sequence of events")
        self._set("events", tuple(self.events))
        for part in self.events:
            _check_event("events", part)


_TYPES: dict[str, type[Event]] = {
    kind.type: kind
    for kind in (
        NoOp,
        NonPrivate,
        Gaussian,
        Laplace,
        EpsilonDelta,
        ZCDP,
        ObjectivePerturbation,
        PoissonSampled,
        SelfComposed,
        Composed,
    )
}


def _fields(kind: type[Event]) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def _check_event(name: str, value: object) -> None:
    if not isinstance(value, Event):
        raise invalid(name, value, "an event of dpml.accounting")


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
        raise invalid("event", data, "a JSON object with a key 'type'")
    kind = _TYPES.get(data.get("type")) if isinstance(data.get("type"), str) else None  # type: ignore[arg-type]
    if kind is None:
        raise invalid("event type", data.get("type"), f"one of {sorted(_TYPES)}")
    names = _fields(kind)
    unknown = sorted(str(key) for key in data if key not in (*names, "type"))
    if unknown:
        raise ConfigError(f"event {kind.type!r} has unknown keys {unknown}; allowed are {list(names)}.")
    optional = {"loss"}
    missing = [key for key in names if key not in data and key not in optional]
    if missing:
        raise ConfigError(f"event {kind.type!r} lacks the keys {missing}.")
    values: dict[str, Any] = {key: data[key] for key in names if key in data}
    if "event" in values:
        values["event"] = _from_json(values["event"], depth + 1)
    if "events" in values:
        if not isinstance(values["events"], list | tuple):
            raise invalid("events", values["events"], "a list of events")
        values["events"] = tuple(_from_json(part, depth + 1) for part in values["events"])
    return kind(**values)


def event_name(event: Event) -> str:
    """A short name for messages, ``"poisson_sampled(laplace)"`` say."""
    if isinstance(event, PoissonSampled | SelfComposed):
        return f"{event.type}({event_name(event.event)})"
    return event.type


def flatten(event: Event) -> dict[Event, int]:
    """The event as different atoms with counts; equal parts are added up, parts that cost nothing are dropped.

    An atom is a basic event or a ``PoissonSampled`` basic event.  Simplifications, each exact under both relations:
    q = 0 is nothing and q = 1 is no sampling; Gaussians that share one sample are one Gaussian with
    1/σ² = Σ 1/σⱼ²; a sample of a sample for ONE release has probability q₁·q₂.  Other samples with several releases
    stay as they are, and accountants refuse them by name.
    """
    atoms: dict[Event, int] = {}
    _collect(event, 1, atoms)
    for atom, count in atoms.items():
        check_count(f"count of {event_name(atom)} in all", count)
    return atoms


def _collect(event: Event, count: int, atoms: dict[Event, int]) -> None:
    if count == 0 or isinstance(event, NoOp):
        return
    if isinstance(event, NonPrivate):
        event = Gaussian(0.0)  # no noise: every accountant answers ∞
    if isinstance(event, SelfComposed):
        _collect(event.event, count * event.count, atoms)
    elif isinstance(event, Composed):
        for part in event.events:
            _collect(part, count, atoms)
    elif isinstance(event, PoissonSampled):
        _collect_sampled(event, count, atoms)
    elif not _is_free(event):
        atoms[event] = atoms.get(event, 0) + count


def _collect_sampled(event: PoissonSampled, count: int, atoms: dict[Event, int]) -> None:
    q = event.sampling_probability
    inner = flatten(event.event)
    if q == 0 or not inner:
        return
    if q == 1:
        for part, times in inner.items():
            atoms[part] = atoms.get(part, 0) + count * times
        return
    atom: Event = event
    if all(isinstance(part, Gaussian) for part in inner):
        atom = PoissonSampled(q, merge_gaussians(inner))
    elif len(inner) == 1 and next(iter(inner.values())) == 1:
        only = next(iter(inner))
        if isinstance(only, PoissonSampled):
            atom = PoissonSampled(q * only.sampling_probability, only.event)
        else:
            atom = PoissonSampled(q, only)
    atoms[atom] = atoms.get(atom, 0) + count


def _is_free(event: Event) -> bool:
    return (isinstance(event, EpsilonDelta) and event.epsilon == 0 and event.delta == 0) or (
        isinstance(event, ZCDP) and event.rho == 0
    )


def merge_gaussians(atoms: Mapping[Event, int]) -> Gaussian:
    """One Gaussian for a composition of Gaussians: 1/σ² = Σ countⱼ/σⱼ² (exact: the statistic is Σ xⱼ/σⱼ²)."""
    precision = 0.0
    for atom, count in atoms.items():
        if not isinstance(atom, Gaussian):
            raise invalid("atoms", event_name(atom), "Gaussian events only")
        if atom.noise_multiplier < 1e-150:  # 1/σ² overflows: as good as no noise
            return Gaussian(0.0)
        precision += count / atom.noise_multiplier**2
    return Gaussian(1.0 / math.sqrt(precision)) if math.isfinite(precision) else Gaussian(0.0)


def effective(noise_multiplier: float, neighboring_relation: str) -> float:
    """Noise ÷ sensitivity: ``noise_multiplier`` under add_remove, half of it under replace_one."""
    return noise_multiplier / 2 if neighboring_relation == REPLACE_ONE else noise_multiplier
