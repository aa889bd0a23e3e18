"""The composed (ε, δ) of publishing everything that a sweep made, from the ledgers of all its jobs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpml import accounting
from dpml.accounting import Composed, Event, SelfComposed
from dpml.errors import DpmlError
from dpml.report.records import Charges


@dataclass(frozen=True)
class ComposedGuarantee:
    """One (ε, δ) for a group of releases.

    Attributes:
        epsilon, delta: the guarantee of all of them together (``inf`` where there is none).
        relation: neighbouring relation of the guarantee.
        rule: how ε was obtained, a phrase.
        sum_epsilon: Σε_i, what basic composition gives at the same δ = Σδ_i.
        event_epsilon: ε of the composed event at that δ, ``None`` where it could not be had.
        accountant: which accountant gave ``event_epsilon``.
        ledgers: how many ledgers went in.
    """

    epsilon: float
    delta: float
    relation: str
    rule: str
    sum_epsilon: float
    event_epsilon: float | None
    accountant: str | None
    ledgers: int


def compose(parts: Sequence[Charges]) -> ComposedGuarantee:
    """The smaller of two sound answers at δ = Σδ_i: Σε_i, and the best accountant's ε of all charges together.

    Both hold when later settings depend on earlier releases only through things that are themselves released.
    Basic composition: Dwork and Roth 2014, Theorem 3.16.  Ledgers under different neighbouring relations have no
    common event; then the group property turns ``add_remove`` into ``replace_one`` (replacing is removing one record
    and adding one: (ε, δ) becomes (2ε, (1 + e^ε) δ)) and only the sum is given.
    """
    relations = {part.relation for part in parts}
    if not parts:
        return ComposedGuarantee(0.0, 0.0, "add_remove", "nothing was charged", 0.0, 0.0, None, 0)
    if any(part.event is None or math.isinf(part.epsilon) for part in parts):
        delta = _delta([part.delta for part in parts])
        relation = "replace_one" if len(relations) > 1 else relations.pop()
        rule = "at least one run had no privacy"
        return ComposedGuarantee(math.inf, delta, relation, rule, math.inf, None, None, len(parts))
    if len(relations) > 1:
        return _mixed(parts)
    relation = relations.pop()
    total = math.fsum(part.epsilon for part in parts)
    delta = _delta([part.delta for part in parts])
    found, accountant = _event_epsilon([part.event for part in parts if part.event is not None], delta, relation)
    if found is not None and found < total:
        epsilon, rule = found, f"composition of all charges by the {accountant} accountant"
    else:
        epsilon, rule = total, "basic composition: the sum of the runs' own ε"
    return ComposedGuarantee(epsilon, delta, relation, rule, total, found, accountant, len(parts))


def _mixed(parts: Sequence[Charges]) -> ComposedGuarantee:
    epsilons, deltas = [], []
    for part in parts:
        double = part.relation == "add_remove"
        epsilons.append(2 * part.epsilon if double else part.epsilon)
        grown = 1 + (math.exp(part.epsilon) if part.epsilon < 700 else math.inf)
        deltas.append(part.delta * grown if double and part.delta else part.delta)
    delta = min(1.0, math.fsum(deltas))
    total = math.fsum(epsilons) if delta < 1 else math.inf
    rule = "basic composition; add_remove runs were turned into replace_one by the group property"
    return ComposedGuarantee(total, delta, "replace_one", rule, total, None, None, len(parts))


def _event_epsilon(events: Sequence[Event], delta: float, relation: str) -> tuple[float | None, str | None]:
    try:
        epsilon, accountant = accounting.best(merge(events), delta, neighboring_relation=relation)
    except DpmlError:
        return None, None
    return epsilon, accountant


def merge(events: Sequence[Event]) -> Event:
    """All events as one, equal ones joined with a count: the order of a composition does not change its bound."""
    counts: dict[str, tuple[Event, int]] = {}
    for event in _leaves(events):
        inner, times = (event.event, event.count) if isinstance(event, SelfComposed) else (event, 1)
        key = json.dumps(inner.to_json(), sort_keys=True)
        counts[key] = (inner, counts.get(key, (inner, 0))[1] + times)
    return Composed(tuple(SelfComposed(event, count) for event, count in counts.values() if count))


def _leaves(events: Sequence[Event]) -> list[Event]:
    found: list[Event] = []
    for event in events:
        found.extend(_leaves(event.events) if isinstance(event, Composed) else [event])
    return found


def _delta(deltas: Sequence[float]) -> float:
    return min(1.0, math.fsum(deltas))
