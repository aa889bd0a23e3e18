"""Bounds of a numeric column from a noisy histogram over public bins that grow like powers of two.

The bins do not depend on the data: for magnitudes from least = 2^a to greatest = 2^b there is one bin for each
[2^k, 2^{k+1}), a <= k < b, one for each of their negatives, and one for everything closer to 0 than ``least``; what is
farther out than ``greatest`` counts in the last bin.  One record is in one bin at most (NaN in none), so it changes
one count by 1 (add_remove) or two counts (replace_one): L1 sensitivity 1 or 2, whole numbers, exact discrete Laplace
noise on *every* bin, also an empty one (Dwork & Roth 2014, section 3.3, example 3.2).

The bounds are the outer edges of the first and the last bin whose noisy count reaches a public threshold, which all
empty bins together miss with probability 0.99.  That is post-processing: it costs nothing and cannot raise.  Values
outside are clamped as everywhere, so tails of fewer records than the threshold are cut off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpml.accounting import Event
from dpml.accounting.checks import REPLACE_ONE
from dpml.data import NumericColumn
from dpml.mechanisms import DiscreteLaplaceMechanism, NoiseSource

FALSE_BIN = 0.01
"""Probability with which the noise of any of the bins alone reaches the threshold."""


@dataclass(frozen=True)
class BoundsFinder:
    """Private bounds of one column, ε-DP under ``neighboring_relation``.

    Args:
        magnitude: public (least, greatest) absolute value told apart, powers of two.
        epsilon: the pure cost.
        neighboring_relation: ``"add_remove"`` or ``"replace_one"``.
        signed: whether there are bins for negative values; without, those count with the values near 0.

    Raises:
        ConfigError: ε out of the range of the noise.
    """

    magnitude: tuple[float, float]
    epsilon: float
    neighboring_relation: str
    signed: bool = True

    def __post_init__(self) -> None:
        _ = self.threshold  # refuses now what the mechanism refuses

    @cached_property
    def exponents(self) -> tuple[int, int]:
        """(a, b) of the module's text."""
        least, greatest = (math.frexp(end)[1] - 1 for end in self.magnitude)
        return least, greatest

    @cached_property
    def edges(self) -> np.ndarray:
        """Edges (bins + 1,) of the bins, increasing."""
        first, last = self.exponents
        positive = np.ldexp(1.0, np.arange(first, last + 1))
        start = -positive[::-1] if self.signed else np.zeros(1)
        return np.concatenate([start, positive])

    @cached_property
    def mechanism(self) -> DiscreteLaplaceMechanism:
        """The noise on the counts: sensitivity 1 under add_remove, 2 under replace_one."""
        changed = 2 if self.neighboring_relation == REPLACE_ONE else 1
        return DiscreteLaplaceMechanism(changed, self.epsilon, dimension=len(self.edges) - 1)

    @property
    def event(self) -> Event:
        """What to charge before :meth:`release`."""
        return self.mechanism.event

    @cached_property
    def threshold(self) -> int:
        """The noisy count from which a bin counts as occupied; all empty bins stay below with probability 0.99."""
        return self.mechanism.error(FALSE_BIN) + 1

    def counts(self, values: np.ndarray) -> np.ndarray:
        """Records (bins,) in each bin, of values (n,) float64; **private**.  NaN is in no bin."""
        known = values[~np.isnan(values)]
        first, last = self.exponents
        size = last - first
        with np.errstate(all="ignore"):
            place = np.frexp(np.abs(known))[1].astype(np.int64) - 1 - first  # 0 for [2^a, 2^{a+1})
        place = np.where(np.isinf(known), size - 1, np.minimum(place, size - 1))
        near = (place < 0) | (known == 0)
        middle = size if self.signed else 0
        index = np.where(near, middle, np.where(known > 0, middle + 1 + place, middle - 1 - place))
        return np.bincount(np.clip(index, 0, len(self.edges) - 2), minlength=len(self.edges) - 1)

    def read_off(self, noisy: np.ndarray) -> tuple[float, float]:
        """Bounds of noisy counts (bins,): post-processing.  The whole public range where no bin is occupied."""
        occupied = np.flatnonzero(np.asarray(noisy) >= self.threshold)
        if len(occupied) == 0:
            return float(self.edges[0]), float(self.edges[-1])
        first, last = int(occupied[0]), int(occupied[-1])
        low, high = float(self.edges[first]), float(self.edges[last + 1])
        if first < last:  # the bin around 0 at an end means 0 itself
            low = 0.0 if low < 0.0 < self.edges[first + 1] else low
            high = 0.0 if self.edges[last] < 0.0 < high else high
        return low, high

    def release(self, values: np.ndarray, noise: NoiseSource) -> dict[str, Any]:
        """Noisy bounds of a column (n,); charging ``event`` comes first and is the caller's business."""
        noisy = self.mechanism.release(self.counts(values), noise).value
        low, high = self.read_off(noisy)
        return {"bounds": [low, high], "occupied_bins": int((noisy >= self.threshold).sum())}


def finder_of(column: NumericColumn, epsilon: float, neighboring_relation: str) -> BoundsFinder:
    """The finder of a column with private bounds; ``log1p`` scales have no negative side."""
    assert column.magnitude is not None
    return BoundsFinder(column.magnitude, epsilon, neighboring_relation, signed=column.scale != "log1p")
