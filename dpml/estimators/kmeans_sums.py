"""Sums over records for private k-means, in which a record moves nothing but its own contribution.

Points are columns: an array (d, n).  All that is computed for a record uses elementwise operations on its own
coordinates, so that it does not depend on the other records, not even in the last bit.  Contributions are cut (towards
zero, so that no norm grows) to multiples of 2^-26 and added as whole numbers: the sums are exact in any order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpml.data.transform import as_numbers
from dpml.errors import ConfigError, invalid
from dpml.mechanisms.noise import NoiseSource
from dpml.ranges import is_number

from .kmeans_plan import Stage

Array = NDArray[np.float64]

UNIT_BITS = 26
HALF_BITS = 13  # of the two factors of a product
BLOCK = 1 << 14  # records at a time
SHRINK = 1.0 - 2.0**-10
"""Every contribution is this much shorter than its bound: room for rounding, docs/kmeans.md, section 3."""
COUNT, SPREAD = 0.3, 0.15
MOVE = math.sqrt(1.0 - COUNT**2 - SPREAD**2)
"""Lengths of the three parts of a contribution, squares adding up to 1: count, squared distance, offset."""


@dataclass(frozen=True)
class Box:
    """Public bounds of every feature, and the unit in which the algorithm works.

    Attributes:
        low, high: (d,).
        scale: one number for all features, so that Euclidean distances keep their proportions: half the diagonal, or
            (for the L1 ball) the sum of the half widths.
    """

    low: Array
    high: Array
    scale: float

    @property
    def middle(self) -> Array:
        """The centre of the box, (d,)."""
        return self.low / 2 + self.high / 2

    @property
    def half(self) -> Array:
        """Half widths in units of ``scale``, (d,)."""
        return (self.high / 2 - self.low / 2) / self.scale

    def to_unit(self, rows: Array) -> Array:
        """Rows (n, d) moved into the box, as columns (d, n) in a ball of radius 1; NaN becomes the middle.

        Moved a second time after scaling: far from 0 the subtraction can round a point out of the ball.
        """
        with np.errstate(invalid="ignore"):
            inside = np.clip(rows, self.low, self.high)
            scaled = np.clip((inside - self.middle) / self.scale, -self.half, self.half)
        columns: Array = np.ascontiguousarray(scaled.T)
        columns[:, ~usable(rows)] = 0.0
        return columns

    def from_unit(self, centres: Array) -> Array:
        """Centres (k, d) in the features' own units, moved into the box."""
        return np.clip(self.middle + centres * self.scale, self.low, self.high)


def usable(rows: Array) -> NDArray[np.bool_]:
    """Which rows (n, d) are all finite; the others contribute nothing."""
    return np.asarray(np.isfinite(rows).all(axis=1))


def make_box(bounds: Any, n_features: int, *, l1: bool) -> Box:
    """The box of ``bounds`` = (low, high), each a number or d of them.

    Raises:
        ConfigError: no two of the right length, not finite, or low >= high.
    """
    allowed = f"(low, high), each a finite number or {n_features} of them, low < high"
    low, high = (_bound(part, n_features) for part in bounds_pair(bounds))
    if low is None or high is None:
        raise invalid("bounds", bounds, allowed)
    half = high / 2 - low / 2
    if not (half > 0).all():
        place = int(np.flatnonzero(~(half > 0))[0])
        raise invalid(
            "bounds",
            (float(low[place]), float(high[place])),
            f"{allowed} (feature {place})",
            "Leave out such a feature.",
        )
    largest = float(half.max())
    parts = half / largest
    scale = largest * float(parts.sum() if l1 else math.sqrt(float((parts * parts).sum())))
    if not (math.isfinite(scale) and scale * 2.0**-60 > 0 and float(half.min()) / scale > 0):
        raise invalid("bounds", bounds, allowed, "Rescale the features.")
    return Box(low, high, scale)


def bounds_pair(bounds: Any) -> tuple[Any, Any]:
    """The two parts of ``bounds``; ``ConfigError`` where it has not two."""
    try:
        low, high = bounds
    except (TypeError, ValueError):
        raise invalid("bounds", bounds, "a pair (low, high), each a number or one number a feature") from None
    return low, high


def declared_width(bounds: Any) -> int:
    """For how many features ``bounds`` are given; 1 where they are two numbers.

    Raises:
        ConfigError: the two parts are for different numbers of features, or are neither numbers nor lists of them.
    """
    try:
        widths = {len(part) for part in bounds_pair(bounds) if np.ndim(part) == 1}
        good = len(widths) < 2 and all(np.ndim(part) == 1 or is_number(part) for part in bounds_pair(bounds))
    except ValueError:  # ragged; a ConfigError is one, too
        good = False
    if not good:
        raise invalid("bounds", bounds, "a pair (low, high), each a finite number or one number a feature")
    return max(widths, default=1)


def _bound(part: Any, n_features: int) -> Array | None:
    if is_number(part):
        return np.full(n_features, float(part))
    try:
        values = np.asarray(as_numbers(part), dtype=np.float64)
    except (ConfigError, ValueError, TypeError):
        return None
    good = values.shape == (n_features,) and bool(np.isfinite(values).all())
    return values.copy() if good else None


def squared_distances(columns: Array, centres: Array) -> Array:
    """Of each record to each centre: (k, n)."""
    out = np.zeros((len(centres), columns.shape[1]))
    for i, column in enumerate(columns):
        gap = column[None, :] - centres[:, i, None]
        gap *= gap
        out += gap
    return out


def nearest(columns: Array, centres: Array) -> NDArray[np.int64]:
    """The closest centre of each record (of equal ones the first): (n,)."""
    parts = [
        squared_distances(columns[:, start : start + BLOCK], centres).argmin(axis=0)
        for start in range(0, columns.shape[1], BLOCK)
    ]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def squared_lengths(columns: Array) -> Array:
    """‖x‖² of each record: (n,)."""
    out = np.zeros(columns.shape[1])
    for column in columns:
        out += column * column
    return out


def projected(columns: Array, directions: Array) -> Array:
    """Coordinates (q, n) along ``directions`` (d, q)."""
    out = np.zeros((directions.shape[1], columns.shape[1]))
    for column, weights in zip(columns, directions, strict=True):
        out += weights[:, None] * column[None, :]
    return out


def whole_units(contributions: Array) -> Array:
    """Contributions in units of 2^-26, cut towards zero: whole numbers."""
    return np.trunc(contributions * 2.0**UNIT_BITS)


def table_of(contributions: Array, rows: NDArray[np.int64], n_rows: int) -> Array:
    """Sums (n_rows, width) of contributions (width, n), each record's in its own row; exact below 2^27 records."""
    table = np.zeros((n_rows, len(contributions)))
    for i, part in enumerate(contributions):
        table[:, i] = np.bincount(rows, weights=whole_units(part), minlength=n_rows)
    return table * 2.0**-UNIT_BITS


def clipped(columns: Array, radius: float) -> Array:
    """Records scaled down to length <= 1 where 1 stands for ``radius``."""
    length = np.sqrt(squared_lengths(columns))
    return columns / np.maximum(length, radius)


def contributions_of(offsets: Array, radius: float) -> Array:
    """What each record adds to its centre's row: (d + 2, n), of L2 norm <= 1.

    Count, min(r/C, 1)², and the offset from the centre clipped to C, in the proportions COUNT, SPREAD and MOVE.
    """
    out = np.empty((len(offsets) + 2, offsets.shape[1]))
    out[0] = COUNT
    out[1] = SPREAD * np.minimum(squared_lengths(offsets) / radius**2, 1.0)
    out[2:] = MOVE * clipped(offsets, radius)
    out *= SHRINK
    return out


@dataclass(frozen=True)
class Sums:
    """A noisy table read back: counts (k,), sums of squared distances (k,), of offsets (k, d); std of an offset's."""

    counts: Array
    spreads: Array
    offsets: Array
    noise_std: float


def noisy_sums(
    stage: Stage, columns: Array, rows: NDArray[np.int64], centres: Array, radius: float, noise: NoiseSource
) -> Sums:
    """The sums around ``centres`` with the stage's noise; the stage has been charged."""
    k, d = centres.shape
    table = np.zeros((k, d + 2))
    for start in range(0, columns.shape[1], BLOCK):
        part, own = columns[:, start : start + BLOCK], rows[start : start + BLOCK]
        table += table_of(contributions_of(part - centres.T[:, own], radius), own, k)
    released = with_noise(stage, table, noise) / SHRINK
    unit = radius / MOVE
    return Sums(
        released[:, 0] / COUNT,
        released[:, 1] / SPREAD * radius**2,
        released[:, 2:] * unit,
        stage.noise_std / SHRINK * unit,
    )


def with_noise(stage: Stage, table: Array, noise: NoiseSource) -> Array:
    """The table with noise: as one vector, or row by row where the mechanism is made for a row."""
    if stage.mechanism.dimension == table.size:
        return np.asarray(stage.mechanism.release(table, noise).value)
    return np.stack([np.asarray(stage.mechanism.release(row, noise).value) for row in table])


def covariance_sums(columns: Array) -> Array:
    """Σ x xᵀ over records of length <= 1, its upper triangle with √2 off the diagonal: a vector of L2 norm <= 1 each.

    The coordinates are cut to multiples of 2^-13, so that the products are multiples of 2^-26 and every sum is exact.
    """
    d = len(columns)
    total = np.zeros((d, d))
    for start in range(0, columns.shape[1], BLOCK):
        part = np.trunc(columns[:, start : start + BLOCK] * (SHRINK * 2.0**HALF_BITS)) * 2.0**-HALF_BITS
        total += part @ part.T
    upper = total[np.triu_indices(d)]
    upper[np.flatnonzero(np.subtract(*np.triu_indices(d)))] *= math.sqrt(2.0)
    return upper


def as_matrix(upper: Array, d: int) -> Array:
    """The symmetric matrix (d, d) of such a vector."""
    out = np.zeros((d, d))
    out[np.triu_indices(d)] = upper
    off = (out - np.diag(np.diag(out))) / math.sqrt(2.0)
    return np.diag(np.diag(out)) + off + off.T
