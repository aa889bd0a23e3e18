"""Quantiles of a private column by the exponential mechanism over a public grid.

Smith 2011, "Privacy-preserving statistical estimation with optimal convergence rates", Algorithm 2: the candidates are
all values between public bounds, scored by how far their rank is from the wanted one; between two neighbouring sorted
records the score is constant, so that one draws a gap with probability ∝ length · e^{ε·score/(2Δ)} and then a value in
it.  Here the values are the points of a public grid, and a record's own point is a candidate of its own, whose score
is 0 when the wanted rank lies between how many records are below it and how many are not above it: columns with many
equal values (ages) are answered well, too.

For wanted rank q·n, with n the private number of records, the score of a point v is

    u(v) = −max(0, #{x < v} − q·n, q·n − #{x ≤ v}).

One more record changes each term by at most max(q, 1 − q) (add_remove), one changed record by at most 1 (replace_one):
a sensitivity of 1 holds for both, :func:`rank_sensitivity` gives the sharper number.  Scores of different points move
in different directions: they are never monotonic, and the factor stays ε/(2Δ).

Floats: q is rounded to a multiple of 2^-20, so that scores are exact; the draw is exact (:mod:`dpml.mechanisms.races`);
what leaves is a point of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml import errors
from dpml.accounting.checks import ADD_REMOVE, check_list, check_number, check_relation, shown
from dpml.accounting.events import MAX_SCALE, Event, SelfComposed
from dpml.accounting.events import ExponentialMechanism as ExponentialEvent
from dpml.mechanisms import races
from dpml.mechanisms.answers import Answer, check_beta, check_noise
from dpml.mechanisms.noise import NoiseSource
from dpml.mechanisms.selection import SMALLEST, score_range, softmax

Floats = NDArray[np.float64]
PART = 2.0**-20  # wanted quantiles are multiples of it: exact ranks up to 2^33 records
CELL_BITS = 20  # the default grid has 2^19 to 2^20 cells
MOST_POINTS = 1 << 40
MOST_STEPS = 2.0**52  # of a bound from 0: whole numbers of floats


def rank_sensitivity(quantiles: float | Sequence[float], neighboring_relation: str = ADD_REMOVE) -> float:
    """By how much one record changes the rank score: max(q, 1 − q) under add_remove, 1 under replace_one."""
    wanted = check_quantiles(quantiles)
    return max(max(q, 1.0 - q) for q in wanted) if check_relation(neighboring_relation) == ADD_REMOVE else 1.0


def check_quantiles(quantiles: Any) -> tuple[float, ...]:
    """Increasing numbers from 0 to 1, rounded to multiples of 2^-20, else :class:`~dpml.errors.ConfigError`."""
    given = check_list("quantiles", quantiles) if hasattr(quantiles, "__iter__") else [quantiles]
    wanted = tuple(round(check_number("quantiles", q, 0.0, 1.0) / PART) * PART for q in given)
    if not wanted or any(later <= earlier for earlier, later in pairwise(wanted)):
        raise errors.invalid("quantiles", shown(quantiles), "increasing numbers from 0 to 1, at least 2^-20 apart")
    return wanted


@dataclass(frozen=True)
class QuantileMechanism:
    """Quantiles of one column, pure ε-DP under the relation that the sensitivity is for.

    Args:
        quantiles: one number from 0 to 1, or several in increasing order, which share ε equally.
        bounds: (low, high), public; records outside count as the nearest bound.
        epsilon: > 0, for all quantiles together.
        sensitivity: of the rank score: 1 covers one record under both relations; ``for_relation`` has the sharper one.
        spacing: of the public grid; None for the power of two that gives 2^19 to 2^20 cells.  Give 1 for whole numbers.

    A record that is NaN counts as absent.  No records at all give a uniform point of the grid.

    Raises:
        ConfigError: an argument that is not allowed.
    """

    quantiles: float | Sequence[float]
    bounds: tuple[float, float]
    epsilon: float
    sensitivity: float = 1.0
    spacing: float | None = None

    def __post_init__(self) -> None:
        wanted = check_quantiles(self.quantiles)
        ends = check_list("bounds", self.bounds, "two numbers, low < high")
        if len(ends) != 2:
            raise errors.invalid("bounds", shown(self.bounds), "two numbers, low < high")
        low, high = (check_number("bounds", end, -1e100, 1e100) for end in ends)
        if low >= high:
            raise errors.invalid("bounds", (low, high), "two numbers, low < high")
        least = max(max(q, 1.0 - q) for q in wanted)
        checked = {
            "quantiles": wanted if hasattr(self.quantiles, "__iter__") else wanted[0],
            "bounds": (low, high),
            "epsilon": check_number("epsilon", self.epsilon, SMALLEST, MAX_SCALE),
            "sensitivity": check_number("sensitivity", self.sensitivity, least, 1e15),
        }
        space = math.ldexp(1.0, math.frexp(high - low)[1] - CELL_BITS) if self.spacing is None else self.spacing
        checked["spacing"] = check_number("spacing", space, 0.0, high - low, above=True)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if max(abs(low), abs(high)) / self._spacing > MOST_STEPS or (high - low) / self._spacing > MOST_POINTS:
            raise errors.invalid("spacing", space, "at least a 2^-40 of the bounds' distance and a 2^-52 of their size")
        if self.points < 2:
            raise errors.invalid("spacing", space, "so small that two multiples of it lie within the bounds")

    @classmethod
    def for_relation(
        cls,
        quantiles: float | Sequence[float],
        bounds: tuple[float, float],
        epsilon: float,
        neighboring_relation: str = ADD_REMOVE,
        spacing: float | None = None,
    ) -> Self:
        """With the sensitivity of :func:`rank_sensitivity`: 1/2 for a median under add_remove, say."""
        return cls(quantiles, bounds, epsilon, rank_sensitivity(quantiles, neighboring_relation), spacing)

    @cached_property
    def wanted(self) -> tuple[float, ...]:
        """The quantiles as a tuple, multiples of 2^-20."""
        return check_quantiles(self.quantiles)

    @property
    def _spacing(self) -> float:
        return float(self.spacing)  # type: ignore[arg-type]

    @cached_property
    def _ends(self) -> tuple[int, int]:
        """The first and last point of the grid, in steps."""
        low, high = (end / self._spacing for end in self.bounds)
        near = 1e-6  # multiples of 0.1, say, are not exact
        return math.ceil(low - near), math.floor(high + near)

    @property
    def points(self) -> int:
        """How many points the grid has."""
        first, last = self._ends
        return last - first + 1

    @property
    def event(self) -> Event:
        """One exponential mechanism, or several of ε/(number of quantiles); to be charged before the data are read."""
        one = ExponentialEvent(self.share)
        return one if len(self.wanted) == 1 else SelfComposed(one, len(self.wanted))

    @property
    def share(self) -> float:
        """The ε of one quantile: ε/(number of quantiles), rounded down."""
        number, share = len(self.wanted), self.epsilon / len(self.wanted)
        return share if Fraction(share) * number <= Fraction(self.epsilon) else math.nextafter(share, 0.0)

    @property
    def noise_scale(self) -> float:
        """2Δ/(ε of one quantile), in ranks."""
        return float(1 / self._factor)

    @cached_property
    def _factor(self) -> Fraction:
        return Fraction(self.share) / score_range(self.sensitivity, False)

    def error(self, beta: float = 0.05) -> float:
        """In ranks: with probability >= 1 − β every value v has #{x ≤ v} >= q·n − error and #{x < v} <= q·n + error.

        b·ln((P − 1)(1 − β')/β') with b = ``noise_scale``, P points and β' = β/(number of quantiles): the worst case is
        a single point of rank q·n, all others that far away.  Data and bounds count as rounded to the grid.  How far a
        value is from the true quantile in units of the column depends on how dense the data are there.
        """
        chance = check_beta(beta) / len(self.wanted)
        return self.noise_scale * max(0.0, math.log((self.points - 1) * (1.0 - chance) / chance))

    def release(self, data: ArrayLike, noise: NoiseSource | None = None) -> Answer:
        """The quantiles of ``data``, shape (n,), any n.

        Returns:
            An answer whose ``value`` is a float, or for several quantiles an array in increasing order (sorting what
            was drawn is free, and no rank error grows by it).

        Raises:
            DataError: ``data`` is no column of numbers.
        """
        source = check_noise(noise)
        column = Column.of(data, self._spacing, self._ends)
        drawn = sorted(self._draw(column, q, source) for q in self.wanted)
        values = np.clip(np.array(drawn, dtype=np.float64) * self._spacing, *self.bounds) + 0.0
        return Answer(values if hasattr(self.quantiles, "__iter__") else float(values[0]), self)

    def _draw(self, column: Column, quantile: float, source: NoiseSource) -> int:
        index = races.winner("gumbel", column.scores(quantile), self._factor, source, column.lengths)
        return int(column.starts[index]) + races.uniform_below(int(column.lengths[index]), source)

    def probabilities(self, data: ArrayLike) -> Floats:
        """P(each grid point) for each quantile, before sorting: shape (quantiles, points).  As private as the data."""
        column = Column.of(data, self._spacing, self._ends)
        repeats = column.lengths.astype(np.int64)
        rows = [softmax(column.scores(q), self.noise_scale, column.lengths) / column.lengths for q in self.wanted]
        return np.stack([np.repeat(row, repeats) for row in rows])


@dataclass(frozen=True, repr=False, eq=False)
class Column:
    """Private.  The grid cut into runs of points of equal score: each record's point, and what lies between them.

    Attributes:
        starts: first point of each run, in steps; increasing.
        lengths: how many points it has, >= 1 (whole numbers).
        below, upto: how many records are below the run's points, and at or below them.
        records: n.
    """

    starts: NDArray[np.int64]
    lengths: Floats
    below: Floats
    upto: Floats
    records: int

    @classmethod
    def of(cls, data: ArrayLike, spacing: float, ends: tuple[int, int]) -> Column:
        """Records are moved to the nearest point between the ends; NaN is left out."""
        first, last = ends
        values, counts = np.unique(to_points(data, spacing, first, last), return_counts=True)
        after = np.concatenate(([first], values + 1))  # where the stretches without records begin …
        gaps = np.concatenate((values, [last + 1])) - after  # … and how long they are
        total = np.concatenate(([0], np.cumsum(counts)))
        starts = np.empty(2 * values.size + 1, dtype=np.int64)
        lengths, below, upto = np.ones(starts.size), np.empty(starts.size), np.empty(starts.size)
        starts[0::2], starts[1::2] = after, values
        lengths[0::2] = gaps
        below[0::2], below[1::2] = total, total[:-1]
        upto[0::2], upto[1::2] = total, total[1:]
        some = lengths > 0
        return cls(starts[some], lengths[some], below[some], upto[some], int(total[-1]))

    def scores(self, quantile: float) -> Floats:
        """u of each run's points; exact for multiples of 2^-20 and up to 2^33 records."""
        rank = quantile * self.records
        return -np.maximum(0.0, np.maximum(self.below - rank, rank - self.upto))


def to_points(data: ArrayLike, spacing: float, first: int, last: int) -> NDArray[np.int64]:
    """The records as points of the grid, each by itself: clamped to the ends, NaN left out."""
    try:
        column = np.asarray(data)
        numeric = column.dtype.kind in "iufb" or column.dtype.kind == "O" or column.size == 0
        column = column.astype(np.float64) if numeric else column
    except (TypeError, ValueError, OverflowError):
        numeric = False
    if not numeric or column.ndim != 1:
        raise errors.DataError("data is not allowed: it must be one column of numbers, shape (n,).")
    column = column[~np.isnan(column)]
    with np.errstate(over="ignore", under="ignore"):
        return np.clip(np.rint(column / spacing), first, last).astype(np.int64)
