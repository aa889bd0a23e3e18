"""How a query is answered: what it costs and which noise each part gets, from public numbers only; then the answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpml.accounting.checks import check_number, check_one_of, shown
from dpml.accounting.conversions import gaussian_noise_multiplier, pure_to_zcdp
from dpml.accounting.events import MAX_SCALE, Composed, Event
from dpml.errors import ConfigError, invalid
from dpml.mechanisms.answers import Answer, check_beta
from dpml.mechanisms.columns import Columns
from dpml.mechanisms.discrete import DiscreteGaussianMechanism, DiscreteLaplaceMechanism
from dpml.mechanisms.gaussian import GaussianMechanism
from dpml.mechanisms.laplace import LaplaceMechanism
from dpml.mechanisms.noise import NoiseSource
from dpml.mechanisms.parts import Part
from dpml.mechanisms.quantiles import QuantileMechanism
from dpml.mechanisms.queries import Quantile, Query

KINDS = ("laplace", "gaussian", "discrete_laplace", "discrete_gaussian", "exponential")
_PURE = ("laplace", "discrete_laplace", "exponential")
Build = Callable[[Part], Any]


@dataclass(frozen=True)
class QueryPlan:
    """A query, the relation, and a mechanism for each of its parts.  Public: ``records`` is None under add_remove."""

    query: Query
    relation: str
    records: int | None
    kind: str
    pure: bool
    parts: tuple[Part, ...]
    mechanisms: tuple[Any, ...]

    @property
    def event(self) -> Event:
        """What the answer costs, all parts together.

        On a pure budget each part's ε as it was asked for; else the sharpest event that the mechanism has for the
        relation, which is a little cheaper than what was asked for (its noise was rounded up).
        """
        events = [_event(mechanism, self.relation, self.pure) for mechanism in self.mechanisms]
        return events[0] if len(events) == 1 else Composed(tuple(events))

    def release(self, data: Columns, noise: NoiseSource) -> QueryAnswer:
        """Read the records and draw the noise; the event must have been charged before."""
        noisy = tuple(
            np.asarray(mechanism.release(part.compute(data), noise).value, dtype=np.float64).reshape(part.size)
            for part, mechanism in zip(self.parts, self.mechanisms, strict=True)
        )
        return QueryAnswer(self.query.finish(noisy, self.relation, self.records), self, noisy)


@dataclass(frozen=True)
class QuantilePlan:
    """A quantile by the exponential mechanism on ranks."""

    query: Quantile
    relation: str
    kind: str
    mechanism: Any

    @property
    def event(self) -> Event:
        """What it costs."""
        event: Event = self.mechanism.event
        return event

    def release(self, data: Columns, noise: NoiseSource) -> Answer:
        """Read the records and choose; the event must have been charged before."""
        answer: Answer = self.mechanism.release(self.query.values(data), noise)
        return answer


@dataclass(frozen=True, repr=False, eq=False)
class QueryAnswer(Answer):
    """An answer made of noisy parts.

    Attributes:
        value: the answer.
        mechanism: its :class:`QueryPlan`.
        statistics: the noisy parts that it was made of, released too.
    """

    statistics: tuple[NDArray[np.float64], ...] = ()

    def interval(self, beta: float = 0.05) -> tuple[Any, Any]:
        """(low, high) that holds the answer without noise, all its numbers together, with probability >= 1 − ``beta``.

        Made from the noisy parts: each is within its mechanism's error but for its share of ``beta`` (union bound).
        """
        share = check_beta(beta) / len(self.statistics)
        errors = [mechanism.error(share) for mechanism in self.mechanism.mechanisms]
        lows = [value - error for value, error in zip(self.statistics, errors, strict=True)]
        highs = [value + error for value, error in zip(self.statistics, errors, strict=True)]
        plan = self.mechanism
        low, high = plan.query.enclose(lows, highs, plan.relation, plan.records)
        return low, high

    def error(self, beta: float = 0.05) -> Any:
        """The larger distance of ``value`` from the ends of :meth:`interval`, over all coordinates of an array; a tuple
        for the answers of a :class:`~dpml.mechanisms.custom.Vector`."""
        low, high = self.interval(beta)
        return _distance(self.value, low, high)


def _distance(value: Any, low: Any, high: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_distance(*parts) for parts in zip(value, low, high, strict=True))
    return float(max(np.max(np.subtract(value, low)), np.max(np.subtract(high, value))))


def _event(mechanism: Any, relation: str, pure: bool) -> Event:
    event: Event = mechanism.event if pure else mechanism.event_under(relation)
    return event


# -- making plans -----------------------------------------------------------------------------------------------------
def make_plan(
    query: object,
    relation: str,
    records: int | None,
    blank: Columns,
    *,
    pure: bool,
    mechanism: str | None = None,
    epsilon: float | None = None,
    rho: float | None = None,
    delta: float | None = None,
) -> QueryPlan | QuantilePlan:
    """The plan of :meth:`PrivateSession.ask`; ``blank`` has the columns and no record, ``pure``
    says whether the budget is one of pure ε.

    Raises:
        ConfigError: anything that is not allowed; no record was looked at.
    """
    if not isinstance(query, Query):
        raise invalid("query", f"an object of type {type(query).__name__}", "a query of dpml.mechanisms (Count(), say)")
    kind = _kind(query, mechanism, epsilon, rho, delta)
    query.rehearse(blank, relation, records)
    if isinstance(query, Quantile):
        return QuantilePlan(query, relation, kind, _quantile(query, relation, epsilon, rho))
    parts = query.parts(relation)
    for part in parts:
        _check_part(part, relation)
    build = _builder(kind, len(parts), epsilon, rho, delta)
    return QueryPlan(query, relation, records, kind, pure, parts, tuple(build(part) for part in parts))


def _kind(query: Query, kind: object, epsilon: object, rho: object, delta: object) -> str:
    if (epsilon is None) == (rho is None):
        raise ConfigError("give exactly one of epsilon and rho: what this answer may cost.")
    if isinstance(query, Quantile):
        if kind not in (None, "exponential"):
            raise invalid("mechanism", shown(kind), "'exponential' for a Quantile")
        kind = "exponential"
    elif kind == "exponential":
        raise invalid("mechanism", kind, "for a Quantile only", "Use 'laplace' or 'gaussian'.")
    name = check_one_of("mechanism", kind if kind is not None else ("laplace" if rho is None else "gaussian"), KINDS)
    if delta is not None and (name != "gaussian" or epsilon is None):
        raise invalid("delta", shown(delta), "left out, but for mechanism='gaussian' with epsilon")
    if name == "discrete_gaussian" and rho is None:
        raise invalid("epsilon", shown(epsilon), "left out with mechanism='discrete_gaussian'", "Give rho.")
    if name == "gaussian" and epsilon is not None and delta is None:
        raise ConfigError("delta is missing: a Gaussian has no epsilon without it. Give rho instead, or delta.")
    return name


def _check_part(part: Part, relation: str) -> None:
    if part.linf == 0:
        raise ConfigError(
            f"the {part.name} has sensitivity 0 under {relation}: the number of records is public there, and needs no "
            "question. Count with a where, or take len of the data."
        )
    if not math.isfinite(part.l1):
        raise ConfigError(
            "this query's sensitivity is declared in a metric of its own, which no noise of a session is made for: "
            "declare it in l1, l2 or linf, or release it with MetricMechanism."
        )


def pure_epsilon(rho: float) -> float:
    """The largest ε found with ε·tanh(ε/2) <= ``rho``: what an ε-DP release costs in zCDP (``pure_to_zcdp``)."""
    low = max(rho, math.sqrt(2.0 * rho))  # tanh(x) <= min(1, x)
    high = 2.0 * low
    while pure_to_zcdp(high) <= rho:
        high *= 2.0
    for _ in range(60):
        middle = low + (high - low) / 2
        low, high = (middle, high) if pure_to_zcdp(middle) <= rho else (low, middle)
    return low


def _positive(name: str, value: object) -> float:
    return check_number(name, value, 0.0, MAX_SCALE, above=True)


def _builder(kind: str, count: int, epsilon: float | None, rho: float | None, delta: float | None) -> Build:
    """From a part to its mechanism: equal shares of ε for pure kinds, of ρ for Gaussian ones."""
    if kind in _PURE:
        share = _positive("epsilon", epsilon) / count if rho is None else pure_epsilon(_positive("rho", rho) / count)
        if kind == "laplace":
            return lambda part: LaplaceMechanism(sensitivity=part.l1, epsilon=share, dimension=part.size)
        return lambda part: DiscreteLaplaceMechanism(
            sensitivity=_whole(part, part.l1), epsilon=share, dimension=part.size
        )
    if epsilon is not None:
        total = _positive("epsilon", epsilon)
        chance = check_number("delta", delta, 0.0, 1.0, above=True, below=True)
        multiplier = gaussian_noise_multiplier(total, chance) * math.sqrt(count)  # μ² adds up over the parts
        return lambda part: GaussianMechanism(sensitivity=part.l2, noise_multiplier=multiplier, dimension=part.size)
    piece = _positive("rho", rho) / count
    if kind == "gaussian":
        return lambda part: GaussianMechanism(sensitivity=part.l2, rho=piece, dimension=part.size)
    return lambda part: DiscreteGaussianMechanism(sensitivity=_whole(part, part.l2), rho=piece, dimension=part.size)


def _whole(part: Part, size: float) -> float:
    if part.step != 1.0:
        raise ConfigError(
            f"the {part.name} is not a whole number: discrete noise is for counts. Use 'laplace' or 'gaussian'."
        )
    return size


def _quantile(query: Quantile, relation: str, epsilon: float | None, rho: float | None) -> QuantileMechanism:
    """By ``rho``: the exponential mechanism is ε-bounded-range, hence min(ε²/8, ε)-zCDP (Cesar & Rogers 2021)."""
    if rho is None:
        cost = _positive("epsilon", epsilon)
    else:
        budget = _positive("rho", rho)
        cost = max(math.sqrt(8.0 * budget), budget)
    return QuantileMechanism.for_relation(query.q, query.bounds, cost, relation)
