"""The sums that queries are made of: one bounded contribution per record, added up as whole numbers.

A contribution is rounded to a public grid of spacing g, a power of two, *inwards*, so that it stays within its declared
bounds, and what is added are whole numbers of steps.  Their sum is exact and does not depend on the order of the
records; as long as it stays below 2^53 steps (2^27 = 134 million records at the bound) float64 holds it exactly.
Larger sums are moved to ±2^53 steps, which brings no two of them further apart.  So neighbouring sums differ by at most
the stated sensitivity, without a rounding error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpml.accounting.checks import ADD_REMOVE, check_one_of, check_relation
from dpml.errors import invalid
from dpml.mechanisms.columns import Columns

NORMS = ("l1", "l2", "linf")
STEP_BITS = 26  # a bound has 2^25 to 2^26 steps
FEWEST_STEPS = 1 << 10
MOST_STEPS = float(1 << 53)
SMALLEST, LARGEST = 2.0**-400, 2.0**400

Bounds = tuple[float, float]
Distance = Callable[[NDArray[np.float64], NDArray[np.float64]], float]
Statistic = Callable[[Columns], NDArray[np.float64]]


@dataclass(frozen=True)
class Part:
    """A vector that gets noise as one: its name, number of coordinates, sensitivity and how to compute it.

    Attributes:
        name: what it is, public.
        size: number of coordinates.
        l1, l2, linf: largest distance of its values on neighbouring data sets, by norm.
        step: the values are whole multiples of it; 0 where nothing is known.
        compute: from the records to the values, shape (size,).
        distance: a metric of its own on its values (of :class:`~dpml.mechanisms.queries.Custom`), whose sensitivity is
            ``metric``; the three norms are then infinite.
    """

    name: str
    size: int
    l1: float
    l2: float
    linf: float
    step: float
    compute: Statistic
    metric: float = math.inf
    distance: Distance | None = None

    def sensitivity(self, norm: str) -> float:
        """By ``norm``, one of :data:`NORMS`."""
        return float(getattr(self, check_one_of("norm", norm, NORMS)))


@dataclass(frozen=True)
class Interval:
    """Whole numbers of steps from ``low`` to ``high``: what one record can contribute; 0 too if ``optional``."""

    low: int
    high: int
    step: float
    optional: bool

    def sensitivity(self, relation: str) -> float:
        """Of the sum: the largest |contribution| (add_remove), or the largest difference of two (replace_one)."""
        if check_relation(relation) == ADD_REMOVE:
            return max(abs(self.low), abs(self.high)) * self.step
        low, high = (min(self.low, 0), max(self.high, 0)) if self.optional else (self.low, self.high)
        return (high - low) * self.step

    def total(self, values: NDArray[np.float64], missing: float, used: NDArray[np.bool_] | None) -> float:
        """Sum of the contributions of ``values`` (n,), those of NaN being ``missing``; only of ``used`` records."""
        values = np.where(np.isnan(values), missing, values)
        with np.errstate(over="ignore"):  # beyond the bounds by far: clamped
            steps = np.rint(values / self.step)
        steps = np.clip(steps, self.low, self.high)
        if used is not None:
            steps = steps[used]
        whole = int(steps.astype(np.int64).sum())
        return max(-MOST_STEPS, min(MOST_STEPS, float(whole))) * self.step

    def part(self, name: str, relation: str, compute: Callable[[Columns], float]) -> Part:
        """A part of one coordinate."""
        size = self.sensitivity(relation)
        return Part(name, 1, size, size, size, self.step, lambda data: np.array([compute(data)]))


def interval(bounds: Bounds, *, optional: bool = False) -> Interval:
    """The grid inside ``bounds``; ConfigError where they are too close together for their size."""
    low, high = bounds
    step = math.ldexp(1.0, math.frexp(max(abs(low), abs(high)))[1] - STEP_BITS)
    first, last = math.ceil(low / step), math.floor(high / step)  # exact: step is a power of two
    if last - first < FEWEST_STEPS:
        raise invalid(
            "bounds",
            bounds,
            f"at least {FEWEST_STEPS * step:.3g} apart",
            "Numbers far from 0 lose their digits in a sum: subtract a public number from the column first.",
        )
    return Interval(first, last, step, optional)


def counts(name: str, size: int, relation: str, compute: Callable[[Columns], Any], *, optional: bool) -> Part:
    """Counts in ``size`` disjoint buckets, each record in one of them (``optional``: or in none).

    Sensitivities.  add_remove: one count changes by 1.  replace_one: a record leaves one bucket and enters another,
    so that two counts change by 1; where there is one bucket only, one changes if records may be in none.
    """
    if check_relation(relation) == ADD_REMOVE:
        l1, l2, linf = 1.0, 1.0, 1.0
    elif size > 1:
        l1, l2, linf = 2.0, math.sqrt(2.0), 1.0
    else:
        l1 = l2 = linf = 1.0 if optional else 0.0
    return Part(name, size, l1, l2, linf, 1.0, lambda data: np.asarray(compute(data), dtype=np.float64).reshape(size))


def check_bounds(bounds: object) -> Bounds:
    """Two finite numbers, low < high; ConfigError for anything else (bounds are public and given, never read off)."""
    way_out = "Bounds are public: take them from what the column means, not from the records."
    try:
        low, high = (float(value) for value in bounds)  # type: ignore[attr-defined]
    except (TypeError, ValueError, OverflowError):
        raise invalid("bounds", bounds, "two finite numbers, low < high", way_out) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise invalid("bounds", bounds, "two finite numbers, low < high", way_out)
    if max(abs(low), abs(high)) > LARGEST or high - low < SMALLEST:
        raise invalid("bounds", bounds, "at most 2^400 in size and at least 2^-400 apart", "Rescale the column.")
    return low + 0.0, high + 0.0
