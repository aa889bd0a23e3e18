"""Report noisy max: noise on every score, the index of the largest leaves and nothing else.

Laplace noise: Dwork & Roth 2014, Claim 3.9 (monotonic counts at scale 1/ε); in general the scale is 2Δ/ε, for the
reason that :mod:`dpml.mechanisms.selection` gives for all three kinds of noise.  Lap(1/ε) on counts under replace_one
is a known fault: its true cost is up to 2ε.  Neither the noisy score nor its distance from the second may be released
with the index: they are not covered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from dpml.accounting.checks import check_number, check_one_of
from dpml.accounting.events import NOISY_MAX_NOISES
from dpml.accounting.events import ReportNoisyMax as Event
from dpml.mechanisms import races
from dpml.mechanisms.answers import check_beta, finite_values
from dpml.mechanisms.noise import NoiseSource
from dpml.mechanisms.permute_and_flip import CELLS, exponential_race_error, race_probabilities
from dpml.mechanisms.selection import LARGEST, SMALLEST, Selection, softmax

Floats = NDArray[np.float64]
NODES = 12  # of one panel, at most one noise scale long
FURTHEST = 45.0  # noise scales from the highest and lowest score at which integrals end: e^-45 lies beyond
WIDEST = 700.0  # scores further below the best cannot win visibly


@dataclass(frozen=True)
class ReportNoisyMax(Selection):
    """Report noisy max, pure ε-DP under the relation that the sensitivity is for.

    Args:
        distribution: ``"laplace"`` (the classical one); ``"exponential"``, which equals permute-and-flip and is the
            most accurate of the three; or ``"gumbel"``, which equals the exponential mechanism and composes better.

    The noise has scale 2Δ/ε, or Δ/ε for monotonic scores.  :meth:`for_counts` picks by relation:

    >>> [ReportNoisyMax.for_counts(3, 0.5, relation).noise_scale for relation in ("add_remove", "replace_one")]
    [2.0, 4.0]
    """

    distribution: str = "laplace"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "distribution", check_one_of("distribution", self.distribution, NOISY_MAX_NOISES))

    @property
    def event(self) -> Event:
        return Event(self.epsilon, self.distribution)

    def error(self, beta: float = 0.05) -> float:
        """A union bound over K − 1 candidates that far below the best (Gumbel: the exact worst case).

        With b = 1/factor and E the error: (K − 1)(1 + E/2b)·e^{−E/b}/2 = β for Laplace, (K − 1)·e^{−E/b}/2 = β for
        exponential and (K − 1)/(K − 1 + e^{E/b}) = β for Gumbel noise; 0 where that is negative.
        """
        chance, others, scale = check_beta(beta), self.size - 1, self.noise_scale
        if others == 0:
            return 0.0
        if self.distribution == "exponential":
            return exponential_race_error(scale, self.size, chance)
        if self.distribution == "gumbel":
            return scale * max(0.0, math.log(others * (1.0 - chance) / chance))

        def above(gap: float) -> float:
            return math.log(others / 2.0) + math.log1p(gap / 2.0) - gap - math.log(chance)

        return scale * float(brentq(above, 0.0, 2000.0, xtol=1e-12)) * (1.0 + 1e-11) if above(0.0) > 0.0 else 0.0

    def probabilities(self, scores: ArrayLike) -> Floats:
        return noisy_max_probabilities(self._checked(scores), self.noise_scale, self.distribution)

    def choose(self, scores: Floats, noise: NoiseSource) -> int:
        return races.winner(self.distribution, scores, self.factor, noise)


def noisy_max_probabilities(scores: ArrayLike, noise_scale: float, distribution: str = "laplace") -> Floats:
    """The probability that each score plus independent noise of this scale is the largest, shape (K,).

    Gumbel: softmax of scores/scale.  Exponential: that of permute-and-flip.  Laplace: by Gauss–Legendre panels between
    the scores; absolute error about 1e-14, relative too while the scores lie within some 600 scales.

    Args:
        scores: finite numbers, shape (K,).
        noise_scale: b > 0 in units of the score.
        distribution: ``"laplace"``, ``"exponential"`` or ``"gumbel"``.
    """
    check_one_of("distribution", distribution, NOISY_MAX_NOISES)
    scale = check_number("noise_scale", noise_scale, SMALLEST, LARGEST)
    values = finite_values(scores, np.size(scores)).reshape(-1)
    if distribution == "gumbel":
        return softmax(values, scale)
    if distribution == "exponential":
        return race_probabilities(values, scale)
    return _laplace_race((values - values.max()) / scale)


def _laplace_race(places: Floats) -> Floats:
    """∫ f(v − x_r) Π_{s≠r} F(v − x_s) dv over v, for places x <= 0 in units of the noise."""
    knots = np.unique(places)
    low = max(float(knots[0]) - FURTHEST, -WIDEST)
    knots = np.concatenate(([low], knots[knots > low], [FURTHEST + math.log(places.size)]))
    points, weights = np.polynomial.legendre.leggauss(NODES)
    out = np.zeros_like(places)
    for left, right in zip(knots[:-1].tolist(), knots[1:].tolist(), strict=True):
        panels = math.ceil(right - left)
        width = (right - left) / panels
        at = (left + width * (np.arange(panels)[:, None] + (points + 1.0) / 2.0)).reshape(-1)
        lengths = np.tile(weights * width / 2.0, panels)
        step = max(1, CELLS // places.size)
        for start in range(0, at.size, step):
            gaps = at[start : start + step, None] - places  # (points, K)
            logs = np.where(gaps < 0.0, gaps - math.log(2.0), np.log1p(-np.exp(-np.abs(gaps)) / 2.0))  # ln F
            densities = -np.abs(gaps) - math.log(2.0)
            products = logs.sum(axis=1, keepdims=True) + densities - logs
            with np.errstate(under="ignore"):
                out += lengths[start : start + step] @ np.exp(products)
    return out


__all__ = ["ReportNoisyMax", "noisy_max_probabilities"]
