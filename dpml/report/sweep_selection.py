"""The price of choosing the best job of a sweep: publishing all of it, or a private search that publishes the winner.

A private search (:class:`dpml.search.PrivateSearch`, ``mechanism="repeat"``) draws its candidates at random, a secret
number K of times, and publishes the best run only.  Papernot and Steinke (2022, arXiv:2110.03620v2, Theorem 2) bound
the Rényi divergence of the winner by that of one run.  The winner's run is a mixture over the candidates with weights
that no record moves, so by quasi-convexity one run costs at most the largest of the candidates' Rényi divergences,
order by order (docs/private-search.md, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpml import accounting
from dpml.accounting import Composed, Event, RepeatAndSelect
from dpml.accounting.renyi import ORDERS
from dpml.errors import DpmlError
from dpml.report.composition import ComposedGuarantee, compose, merge
from dpml.report.records import Charges

SHAPE = 1.0
"""Of the law of K: geometric, as PrivateSearch has it unless told otherwise."""


@dataclass(frozen=True)
class Price:
    """What choosing among some finished jobs costs.

    Attributes:
        name: which jobs.
        runs: how many; a private search's K has this mean.
        largest: the largest ε of a single one.
        published: composed guarantee of publishing all of them.
        searched: ε of a private search over them at the same δ, ``None`` where no theorem gives one.
    """

    name: str
    runs: int
    largest: float
    published: ComposedGuarantee
    searched: float | None


def prices(parts: Sequence[Charges], names: Mapping[int, str]) -> list[Price]:
    """For each method with several finished private jobs, and for all together where there are several methods.

    Args:
        parts: what the sweep's ledgers charged.
        names: job → its method in words.
    """
    finished = [part for part in parts if part.finished and part.event is not None and not math.isinf(part.epsilon)]
    groups: dict[str, list[Charges]] = {}
    for part in finished:
        groups.setdefault(names[part.job], []).append(part)
    found = [_price(name, group) for name, group in groups.items() if len(group) > 1]
    return [*found, _price("all private jobs", finished)] if len(groups) > 1 else found


def _price(name: str, parts: Sequence[Charges]) -> Price:
    published = compose(parts)
    searched = search_epsilon(parts, published.delta)
    return Price(name, len(parts), max(part.epsilon for part in parts), published, searched)


def search_epsilon(parts: Sequence[Charges], delta: float) -> float | None:
    """ε(δ) of the best of K runs, K geometric with mean ``len(parts)``, each run a candidate drawn uniformly.

    ``None`` for jobs under different neighbouring relations, and for events that no Rényi accountant bounds.
    """
    relations = {part.relation for part in parts}
    if len(relations) > 1 or delta <= 0:
        return None
    try:
        one_run = dominating([part.event for part in parts if part.event is not None], relation := relations.pop())
        found = accounting.epsilon(
            RepeatAndSelect(one_run, len(parts), SHAPE), delta, accountant="rdp", neighboring_relation=relation
        )
    except DpmlError:
        return None
    return found if math.isfinite(found) else None


def dominating(events: Sequence[Event], relation: str) -> Event:
    """An event whose Rényi divergence is at least that of each of ``events`` at all orders that the accountant uses.

    An event that another one dominates order by order is left out; those that are left are composed.
    """
    distinct = list({str(event.to_json()): merge([event]) for event in events}.values())
    orders = np.array(ORDERS)
    curves = [accounting.rdp(event, orders, neighboring_relation=relation) for event in distinct]
    kept: list[int] = []
    for place in sorted(range(len(distinct)), key=lambda k: -float(curves[k][len(orders) // 2])):
        if not any(np.all(curves[other] >= curves[place]) for other in kept):
            kept.append(place)
    return distinct[kept[0]] if len(kept) == 1 else Composed(tuple(distinct[k] for k in kept))
