"""Questions about private records, each with the sensitivity that the noise must cover.

A query is a frozen public description.  It splits into *parts* (:mod:`dpml.mechanisms.parts`): vectors that get noise
of their own, with their exact sensitivity under the neighbouring relation.  What is made of the noisy parts (a
quotient, a clamp) is post-processing and costs nothing (Dwork & Roth 2014, Proposition 2.1).

Rules for what a record contributes, so that every record, whatever it holds, contributes within the public bounds:

* numbers are clamped to ``bounds``, infinite ones too;
* what is no number (NaN, None, text) is read as the number of the bounds nearest to 0 by :class:`Sum`, as their middle
  by :class:`Mean` and :class:`Variance`, is in no bucket of a :class:`Histogram`, and left out by :class:`Quantile`.
  To leave such records out: ``where=Where(column, "present")``;
* a record for which ``where`` does not hold contributes nothing.

The number of records is private under add_remove, and no answer uses it: a mean is a noisy sum of deviations from
the middle of the bounds, over a noisy count.  Under replace_one it is public, and divides as it is.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpml.accounting.checks import ADD_REMOVE, check_list, check_number, check_relation, shown
from dpml.errors import ConfigError, invalid
from dpml.mechanisms.columns import Columns, Name, Places, as_columns, spelled_number
from dpml.mechanisms.parts import Bounds, Interval, Part, check_bounds, counts, interval
from dpml.mechanisms.predicates import Predicate, check_where, is_finite

Vectors = Sequence[NDArray[np.float64]]


@dataclass(frozen=True)
class Query:
    """What all queries share.  ``relation`` is ``"add_remove"`` or ``"replace_one"`` everywhere."""

    def parts(self, relation: str) -> tuple[Part, ...]:
        """The vectors that get noise; those that are public under ``relation`` are left out."""
        raise NotImplementedError

    @property
    def columns(self) -> tuple[Name, ...]:
        """Names of the columns that it reads, as far as they are declared."""
        where = getattr(self, "where", None)
        own = (self.column,) if hasattr(self, "column") else ()
        return tuple(dict.fromkeys(own + (where.columns if where is not None else ())))

    def finish(self, noisy: Vectors, relation: str, records: int | None) -> Any:
        """The answer made of the noisy parts; ``records`` is their public number (replace_one), else None."""
        return float(noisy[0][0])

    def enclose(self, lows: Vectors, highs: Vectors, relation: str, records: int | None) -> tuple[Any, Any]:
        """(low, high) of :meth:`finish` over all parts between ``lows`` and ``highs``."""
        return self.finish(lows, relation, records), self.finish(highs, relation, records)

    def sensitivity(self, relation: str, norm: str = "l1") -> float:
        """Largest distance of :meth:`evaluate` on neighbouring data sets, by ``"l1"``, ``"l2"`` or ``"linf"``.

        Exact where the query has one part.  Of several parts it is the bound that their own ones give together; each
        part gets noise for its own, which is exact.
        """
        sizes = [part.sensitivity(norm) for part in self.parts(relation)]
        if norm == "l1":
            return math.fsum(sizes)
        return math.hypot(*sizes) if norm == "l2" else max(sizes, default=0.0)

    def evaluate(self, data: object, relation: str = ADD_REMOVE) -> NDArray[np.float64]:
        """All parts without noise, one after the other: private.  Does not depend on the order of the records."""
        columns = self._checked(data)
        return np.concatenate([np.zeros(0)] + [part.compute(columns) for part in self.parts(relation)])

    def exact(self, data: object, relation: str = ADD_REMOVE) -> Any:
        """The answer without noise: private."""
        columns = self._checked(data)
        return self.finish([part.compute(columns) for part in self.parts(relation)], relation, columns.records)

    def describe(self) -> dict[str, Any]:
        """The query as plain JSON values, public: what a transcript shows."""
        out: dict[str, Any] = {"query": type(self).__name__}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is not None and value is not False:
                out[name] = _plain(value)
        return out

    def rehearse(self, blank: Columns, relation: str, records: int | None) -> None:
        """Raise what is wrong with the query, before anything is charged; ``blank`` has the columns and no record."""
        for name in self.columns:
            blank.require(name)
        column = getattr(self, "column", "")
        if not isinstance(column, Hashable):
            raise invalid("column", column, "the name of a column")
        where = getattr(self, "where", None)
        if where is not None:
            where.rehearse(blank)

    def _checked(self, data: object) -> Columns:
        columns = as_columns(data)
        for name in self.columns:
            columns.require(name)
        return columns

    def _settle(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _settle_where(self) -> None:
        column = getattr(self, "column", "")
        if not isinstance(column, Hashable):
            raise invalid("column", column, "the name of a column")
        where = getattr(self, "where", None)
        if where is not None:
            self._settle(where=check_where(where))


def _mask(where: Predicate | None, data: Columns) -> NDArray[np.bool_] | None:
    return None if where is None else where.mask(data)


def _counted(where: Predicate | None, data: Columns) -> float:
    mask = _mask(where, data)
    return float(data.records if mask is None else np.count_nonzero(mask))


@dataclass(frozen=True)
class Count(Query):
    """How many records there are, or how many satisfy ``where``.

    Sensitivity 1 under both relations (all norms); 0 under replace_one without ``where``, where the number is public.

    Args:
        where: a :class:`~dpml.mechanisms.predicates.Where`, a combination, or a function of one record.
        nonnegative: answers below 0 become 0 (post-processing).
    """

    where: Any = None
    nonnegative: bool = False

    def __post_init__(self) -> None:
        self._settle_where()

    def parts(self, relation: str) -> tuple[Part, ...]:
        """One count."""
        where = self.where
        part = counts("count", 1, relation, lambda data: _counted(where, data), optional=where is not None)
        return (part,)

    def finish(self, noisy: Vectors, relation: str, records: int | None) -> float:
        """The noisy count."""
        return max(0.0, float(noisy[0][0])) if self.nonnegative else float(noisy[0][0])


@dataclass(frozen=True)
class Sum(Query):
    """The sum of a column clamped to ``bounds`` = (low, high).

    Sensitivity: max(|low|, |high|) under add_remove; high − low under replace_one, where 0 counts as within the bounds
    if there is a ``where`` (a record may then contribute nothing).  All norms.
    """

    column: Name
    bounds: Bounds
    where: Any = None

    def __post_init__(self) -> None:
        self._settle(bounds=check_bounds(self.bounds))
        self._settle_where()
        self._grid()

    def _grid(self) -> Interval:
        return interval(self.bounds, optional=self.where is not None)

    def parts(self, relation: str) -> tuple[Part, ...]:
        """One sum."""
        grid, (low, high) = self._grid(), self.bounds
        nearest = min(max(0.0, low), high)

        def compute(data: Columns) -> float:
            return grid.total(data.numbers(self.column), nearest, _mask(self.where, data))

        return (grid.part("sum", relation, compute),)


@dataclass(frozen=True)
class Mean(Query):
    """The mean of a column clamped to ``bounds``.

    Parts: the sum of deviations from the middle m of the bounds, which one record changes by at most the half-width r
    (add_remove) or 2r (replace_one), and the count.  The answer is m + (noisy sum)/max(noisy count, 1), clamped to the
    bounds.  The count is left out under replace_one without ``where``: it is public there.  No record: the answer is m.
    """

    column: Name
    bounds: Bounds
    where: Any = None

    def __post_init__(self) -> None:
        self._settle(bounds=check_bounds(self.bounds))
        self._settle_where()

    def parts(self, relation: str) -> tuple[Part, ...]:
        """Sum of deviations and, where it is private, the count."""
        middle, half = _middle(self.bounds)
        grid = interval((-half, half), optional=self.where is not None)

        def compute(data: Columns) -> float:
            return grid.total(_deviations(data, self.column, middle), 0.0, _mask(self.where, data))

        return (grid.part("sum of deviations", relation, compute), *_count_part(self.where, relation))

    def finish(self, noisy: Vectors, relation: str, records: int | None) -> float:
        """Quotient and clamp."""
        return self._at(float(noisy[0][0]) / _divisor(noisy, 1, records))

    def enclose(self, lows: Vectors, highs: Vectors, relation: str, records: int | None) -> tuple[float, float]:
        """By the four quotients."""
        low, high = _quotients(lows, highs, 0, 1, records)
        return self._at(low), self._at(high)

    def _at(self, deviation: float) -> float:
        return min(max(_middle(self.bounds)[0] + deviation, self.bounds[0]), self.bounds[1])


@dataclass(frozen=True)
class Variance(Query):
    """The variance (divided by the number of records, not by one less) of a column clamped to ``bounds``.

    With y the deviation from the middle of the bounds, |y| <= r: parts are Σy (r; 2r under replace_one), Σ(y² − r²/2)
    (r²/2; r² under replace_one) and, where it is private, the count.  The answer is the mean of y² less the square of
    the mean of y, clamped to [0, r²].
    """

    column: Name
    bounds: Bounds
    where: Any = None

    def __post_init__(self) -> None:
        self._settle(bounds=check_bounds(self.bounds))
        self._settle_where()

    def parts(self, relation: str) -> tuple[Part, ...]:
        """Both sums and, where it is private, the count."""
        middle, half = _middle(self.bounds)
        first = interval((-half, half), optional=self.where is not None)
        second = interval((-half * half / 2, half * half / 2), optional=self.where is not None)

        def deviations(data: Columns) -> float:
            return first.total(_deviations(data, self.column, middle), 0.0, _mask(self.where, data))

        def squares(data: Columns) -> float:
            y = np.clip(_deviations(data, self.column, middle), -half, half)
            y = np.where(np.isnan(y), 0.0, y)
            return second.total(y * y - half * half / 2, 0.0, _mask(self.where, data))

        return (
            first.part("sum of deviations", relation, deviations),
            second.part("sum of squared deviations", relation, squares),
            *_count_part(self.where, relation),
        )

    def finish(self, noisy: Vectors, relation: str, records: int | None) -> float:
        """Two quotients, a difference and a clamp."""
        _, half = _middle(self.bounds)
        divisor = _divisor(noisy, 2, records)
        mean = _clamp(float(noisy[0][0]) / divisor, half)
        square = half * half / 2 + float(noisy[1][0]) / divisor
        return min(max(square - mean * mean, 0.0), half * half)

    def enclose(self, lows: Vectors, highs: Vectors, relation: str, records: int | None) -> tuple[float, float]:
        """By interval arithmetic."""
        _, half = _middle(self.bounds)
        means = [_clamp(value, half) for value in _quotients(lows, highs, 0, 2, records)]
        squares = [half * half / 2 + value for value in _quotients(lows, highs, 1, 2, records)]
        largest = max(value * value for value in means)
        smallest = 0.0 if means[0] <= 0 <= means[1] else min(value * value for value in means)
        low, high = squares[0] - largest, squares[1] - smallest
        return min(max(low, 0.0), half * half), min(max(high, 0.0), half * half)


@dataclass(frozen=True)
class Histogram(Query):
    """How many records fall into each of some public buckets.

    Sensitivity: add_remove 1 in every norm; replace_one 2 (L1), √2 (L2), 1 (L∞); with one bucket always 1.

    Args:
        column: its name.
        categories: different texts, booleans or finite numbers; cells that hold something else are in no bucket.  A
            text that spells a number (or ``"true"``) is that number, in the list as in the cells.
        edges: increasing finite numbers e₀ < … < e_k, instead of categories: buckets [e₀, e₁), …, [e_{k−1}, e_k];
            numbers beyond are clamped into the first and last one.
        where: records that count.
        nonnegative: answers below 0 become 0 (post-processing).
    """

    column: Name
    categories: Any = None
    edges: Any = None
    where: Any = None
    nonnegative: bool = False

    def __post_init__(self) -> None:
        if (self.categories is None) == (self.edges is None):
            raise ConfigError("give exactly one of categories and edges: the buckets of a histogram are public.")
        if self.categories is not None:
            self._settle(categories=_check_categories(self.categories))
        else:
            self._settle(edges=_check_edges(self.edges))
        self._settle_where()

    @property
    def size(self) -> int:
        """Number of buckets."""
        return len(self.categories) if self.categories is not None else len(self.edges) - 1

    def parts(self, relation: str) -> tuple[Part, ...]:
        """The counts of all buckets, as one vector."""
        return (counts("histogram", self.size, relation, self._counts, optional=True),)

    def _counts(self, data: Columns) -> NDArray[np.float64]:
        bucket = self._by_category(data) if self.categories is not None else self._by_edge(data)
        mask = _mask(self.where, data)
        bucket = bucket if mask is None else bucket[mask]
        return np.bincount(bucket[bucket >= 0], minlength=self.size).astype(np.float64)

    def _by_category(self, data: Columns) -> NDArray[np.int64]:
        places, column = Places(self.categories), data.raw(self.column)
        return np.fromiter((places.of(cell) for cell in column.tolist()), dtype=np.int64, count=column.size)

    def _by_edge(self, data: Columns) -> NDArray[np.int64]:
        values = data.numbers(self.column)
        found = np.searchsorted(np.array(self.edges[1:-1]), values, side="right")
        return np.where(np.isnan(values), -1, found)

    def finish(self, noisy: Vectors, relation: str, records: int | None) -> NDArray[np.float64]:
        """The noisy counts, shape (buckets,)."""
        return np.maximum(noisy[0], 0.0) if self.nonnegative else np.array(noisy[0])


@dataclass(frozen=True)
class Quantile(Query):
    """The ``q``-quantile of a column clamped to ``bounds``, for the exponential mechanism on ranks.

    ``sensitivity`` is high − low, that of the quantile itself (one record can move it across the bounds), and useless
    for additive noise; a session asks it by :class:`~dpml.mechanisms.QuantileMechanism`.
    """

    column: Name
    q: float
    bounds: Bounds
    where: Any = None

    def __post_init__(self) -> None:
        self._settle(q=check_number("q", self.q, 0.0, 1.0), bounds=check_bounds(self.bounds))
        self._settle_where()

    def values(self, data: Columns) -> NDArray[np.float64]:
        """The clamped numbers of the records that count, NaN left out: private, shape (m,)."""
        low, high = self.bounds
        values = data.numbers(self.column)
        mask = _mask(self.where, data)
        present = ~np.isnan(values) if mask is None else mask & ~np.isnan(values)
        return np.clip(values[present], low, high)

    def parts(self, relation: str) -> tuple[Part, ...]:
        """The quantile, as one number; the middle of the bounds where there is no record."""
        check_relation(relation)
        low, high = self.bounds

        def compute(data: Columns) -> NDArray[np.float64]:
            values = np.sort(self.values(data))
            if values.size == 0:
                return np.array([_middle(self.bounds)[0]])
            return values[[max(0, math.ceil(self.q * values.size) - 1)]]

        width = high - low
        return (Part("quantile", 1, width, width, width, 0.0, compute),)


# -- helpers ----------------------------------------------------------------------------------------------------------
def _middle(bounds: Bounds) -> tuple[float, float]:
    """(middle, half-width): [middle − half, middle + half] holds the bounds."""
    middle = bounds[0] / 2 + bounds[1] / 2
    return middle, max(bounds[1] - middle, middle - bounds[0])


def _deviations(data: Columns, column: Name, middle: float) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        return data.numbers(column) - middle


def _count_part(where: Predicate | None, relation: str) -> tuple[Part, ...]:
    part = counts("count", 1, relation, lambda data: _counted(where, data), optional=where is not None)
    return (part,) if part.l1 > 0 else ()


def _divisor(vectors: Vectors, place: int, records: int | None) -> float:
    """The noisy count in ``place`` where there is one, else the public number; at least 1."""
    count = float(vectors[place][0]) if len(vectors) > place else float(records or 0)
    return max(count, 1.0)


def _quotients(lows: Vectors, highs: Vectors, top: int, bottom: int, records: int | None) -> tuple[float, float]:
    divisors = (_divisor(lows, bottom, records), _divisor(highs, bottom, records))
    low, high = float(lows[top][0]), float(highs[top][0])
    return min(low / value for value in divisors), max(high / value for value in divisors)


def _clamp(value: float, size: float) -> float:
    return min(max(value, -size), size)


def _check_categories(categories: object) -> tuple[Any, ...]:
    listed = check_list("categories", categories, "a list of different texts, booleans or finite numbers")
    values = [value.item() if isinstance(value, np.generic) else value for value in listed]
    for value in values:
        number = isinstance(value, int | float) and is_finite(value)
        if not (number or isinstance(value, str)):
            raise invalid("categories", shown(value), "texts, booleans or finite numbers")
    if not values or len(set(values)) != len(values):
        raise invalid("categories", shown(values), "one or more different values (1, 1.0 and True are the same)")
    numbers = [number for number in map(spelled_number, values) if not math.isnan(number)]
    if len(set(numbers)) != len(numbers):  # a column of numbers cannot tell them apart, a column of texts would
        raise invalid(
            "categories",
            shown(values),
            "values that spell different numbers ('01', '1.0', 1 and 'true' are one)",
            "Let texts that are no numbers begin with a letter.",
        )
    return tuple(values)


def _check_edges(edges: object) -> tuple[float, ...]:
    values = tuple(check_number("edges", value, -math.inf) for value in check_list("edges", edges))
    if len(values) < 2 or any(left >= right for left, right in pairwise(values)):
        raise invalid("edges", shown(values), "two or more finite numbers, each larger than the one before")
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, Predicate):
        return value.describe()
    if isinstance(value, Query):
        return value.describe()
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.generic):
        return str(value)
    return str(getattr(value, "__qualname__", type(value).__name__))
