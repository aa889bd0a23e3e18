"""A search for neighbouring data sets that prove a declared sensitivity wrong.

It tries random and hostile pairs and climbs from the best one found.  What it finds is a proof (the pair); that it
finds nothing proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpml.accounting.checks import ADD_REMOVE, check_count, check_relation
from dpml.errors import invalid
from dpml.mechanisms.columns import Columns, Name
from dpml.mechanisms.parts import NORMS, Part
from dpml.mechanisms.queries import Query

Record = dict[Name, Any]
Records = list[Record]
SLACK = 1e-9  # relative: of float64 rounding in functions that users give
HOSTILE = (0.0, -0.0, math.nan, math.inf, -math.inf, 1e300, -1e300, 5e-324, None, "?")


@dataclass(frozen=True)
class SensitivityCheck:
    """What the search found for the part and norm where the distance is largest beside what was declared.

    Attributes:
        holds: whether no distance passes its declared sensitivity.
        distance, sensitivity: largest distance found, and the declared one.
        part, norm: where.
        pair: the two neighbouring data sets, lists of records (made up, as long as ``make_record`` makes them up).
        tried: number of pairs.
    """

    distance: float
    sensitivity: float
    part: str
    norm: str
    pair: tuple[Records, Records]
    tried: int

    @property
    def holds(self) -> bool:
        """``distance <= sensitivity`` up to the rounding of float64 (1e-9 of it)."""
        return self.distance <= self.sensitivity * (1 + SLACK)


def check_sensitivity(
    query: Query,
    make_record: Callable[[np.random.Generator], Mapping[Name, Any]],
    relation: str = ADD_REMOVE,
    n: int = 12,
    trials: int = 200,
    seed: int = 0,
) -> SensitivityCheck:
    """Look for neighbouring data sets whose values are further apart than ``query`` declares.

    Args:
        query: any query; each of its parts is measured in L1, L2 and L∞ (a custom metric in that).
        make_record: a random record, a dict from columns to cells; it is asked with a generator of ``seed``.
        relation: add_remove tries data sets of 0 to n records, replace_one those of exactly n.
        n: number of records; trials: random pairs, and as many steps uphill again; seed: of the search.

    Records tried are ``make_record``'s, the bounds, edges and categories that the query names, a little beyond them,
    and what no column should hold (NaN, ±∞, 1e300, None, text); data sets are random, all alike, half and half, or
    empty.

    Raises:
        ConfigError: not a query, or a count that is not allowed.
    """
    if not isinstance(query, Query):
        raise invalid("query", type(query).__name__, "a query of dpml.mechanisms")
    check_relation(relation)
    n, trials = check_count("n", n, 1), check_count("trials", trials, 1)
    search = _Search(query, relation, n, make_record, np.random.default_rng(seed))
    query.rehearse(search.columns([]), relation, None if relation == ADD_REMOVE else n)
    for number in range(trials):
        search.look(*search.random_pair(number))
    for _ in range(trials):
        search.look(*search.change(search.best.pair))
    return search.best


class _Search:
    def __init__(
        self, query: Query, relation: str, n: int, make_record: Callable[..., Any], rng: np.random.Generator
    ) -> None:
        self.query, self.relation, self.n, self.make_record, self.rng = query, relation, n, make_record, rng
        self.parts = query.parts(relation)
        sample = [dict(make_record(rng)) for _ in range(2 * n + 2)]
        self.names = tuple(sample[0])
        self.cells = {name: _cells(name, query, sample) for name in self.names}
        self.best = SensitivityCheck(0.0, 0.0, "none", "l1", ([], []), 0)
        self._ratio = -1.0
        self._tried = 0

    # -- records and pairs ----------------------------------------------------------------------------------------
    def record(self) -> Record:
        """Half of them as users make them, the others hostile in some cells or in all."""
        made = dict(self.make_record(self.rng))
        kind = self.rng.integers(4)
        if kind >= 2:
            for name in self.names:
                if kind == 3 or self.rng.integers(2):
                    made[name] = self.cells[name][int(self.rng.integers(len(self.cells[name])))]
        return made

    def random_pair(self, number: int) -> tuple[Records, Records]:
        """Two neighbours: the shape of the data set goes by ``number``."""
        shape = number % 5
        if self.relation == ADD_REMOVE:
            shared = (0, 0, 1, int(self.rng.integers(self.n)), self.n - 1)[shape]
        else:
            shared = self.n - 1
        one, other = self.record(), self.record()
        if number % 3 == 0:
            base = [dict(one) for _ in range(shared)]
        elif number % 3 == 1:
            base = [dict(one) for _ in range(shared // 2)] + [dict(other) for _ in range(shared - shared // 2)]
        else:
            base = [self.record() for _ in range(shared)]
        return self.neighbours(base, one, other)

    def neighbours(self, base: Records, one: Record, other: Record) -> tuple[Records, Records]:
        """``base`` with and without a record, or with one and with another in its place."""
        place = int(self.rng.integers(len(base) + 1))
        first = [*base[:place], other, *base[place:]]
        if self.relation == ADD_REMOVE:
            return base, first
        return [*base[:place], one, *base[place:]], first

    def change(self, pair: tuple[Records, Records]) -> tuple[Records, Records]:
        """A pair one step away: a shared record or the one that differs is another, or one cell of it is."""
        left, right = pair
        if not right:
            return self.random_pair(int(self.rng.integers(15)))
        place = next((i for i in range(len(left)) if left[i] is not right[i]), len(left))
        base = [*right[:place], *right[place + 1 :]]
        one, other = (left[place] if len(left) == len(right) else right[place]), right[place]
        what = int(self.rng.integers(len(base) + 2))
        if what < len(base):
            base[what] = self.varied(base[what])
        elif what == len(base):
            one = self.varied(one)
        else:
            other = self.varied(other)
        return self.neighbours(base, one, other)

    def varied(self, record: Record) -> Record:
        """Another record, or this one with one cell changed."""
        if self.rng.integers(3) == 0:
            return self.record()
        name = self.names[int(self.rng.integers(len(self.names)))]
        return {**record, name: self.cells[name][int(self.rng.integers(len(self.cells[name])))]}

    # -- measuring ------------------------------------------------------------------------------------------------
    def look(self, left: Records, right: Records) -> None:
        """Measure the pair and keep it if no other came as close to a violation, or further beyond."""
        self._tried += 1
        first, second = self.columns(left), self.columns(right)
        for part in self.parts:
            a, b = part.compute(first), part.compute(second)
            for norm, distance, declared in _distances(part, a, b):
                ratio = distance / declared if declared > 0 else (math.inf if distance > 0 else 0.0)
                if ratio > self._ratio:
                    self._ratio = ratio
                    self.best = SensitivityCheck(distance, declared, part.name, norm, (left, right), 0)
        self.best = SensitivityCheck(
            self.best.distance, self.best.sensitivity, self.best.part, self.best.norm, self.best.pair, self._tried
        )

    def columns(self, records: Records) -> Columns:
        """The records as columns; numbers stay numbers where all of a column's cells are."""
        columns: dict[Name, np.ndarray[Any, Any]] = {}
        for name in self.names:
            cells = [record[name] for record in records]
            column = np.empty(len(cells), dtype=object)
            column[:] = cells
            if all(cell is None or (isinstance(cell, int | float | np.number)) for cell in self.kinds(name)):
                column = np.array([_float(cell) for cell in cells], dtype=np.float64)
            columns[name] = column
        return Columns(columns, len(records))

    def kinds(self, name: Name) -> list[Any]:
        """Cells that tell whether the column is one of numbers: the user's own."""
        return self.cells[name][: 2 * self.n + 2]


def _float(cell: Any) -> float:
    return float(cell) if isinstance(cell, int | float | np.number) else math.nan


def _distances(part: Part, a: Any, b: Any) -> list[tuple[str, float, float]]:
    if part.distance is not None:
        return [(getattr(part.distance, "__qualname__", "metric"), float(part.distance(a, b)), part.metric)]
    with np.errstate(over="ignore"):
        difference = np.abs(a - b)
        sizes = (difference.sum(), math.hypot(*difference), difference.max(initial=0.0))
    return [(norm, float(size), part.sensitivity(norm)) for norm, size in zip(NORMS, sizes, strict=True)]


def _cells(name: Name, query: Query, sample: Records) -> list[Any]:
    """The user's cells, public values of the query about this column and what lies just beyond, hostile ones."""
    named: list[Any] = []
    for one in getattr(query, "queries", (query,)):
        if getattr(one, "column", None) != name:
            continue
        for values in (getattr(one, "bounds", None), getattr(one, "edges", None)):
            for value in values or ():
                named += [value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf), 2 * value + 1]
        low, high = getattr(one, "bounds", (0.0, 0.0))
        named.append(low / 2 + high / 2)
        named += list(getattr(one, "categories", None) or ())
    own = [record[name] for record in sample]
    numbers = [float(cell) for cell in own if isinstance(cell, int | float | np.number) and math.isfinite(cell)]
    extremes = [max(numbers), min(numbers), 10 * max(numbers), -10 * max(numbers)] if numbers else []
    return [*own, *named, *extremes, *HOSTILE]
