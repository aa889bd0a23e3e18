"""The Laplace mechanism for one number or a vector of known L1 sensitivity, exact and on a public grid.

The textbook's answer f(x) + Lap(S/ε) is a real number; its double can tell more than the theorem allows (Mironov 2012).
Released here is g · (rint(value/g) + Z): g a public power of two of at most 2^-20 of the sensitivity, Z an exact
discrete Laplace draw.  Rounding can move two neighbouring values apart by another step in each coordinate, which the
scale of Z pays for: ε is what was declared, the noise is larger by less than 2^-11 (by 2^-18 for one number).
Proof: docs/mechanisms.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml import errors
from dpml.accounting.checks import REPLACE_ONE, check_count, check_number, check_relation
from dpml.accounting.events import MAX_SCALE, Event, Laplace, Pure
from dpml.mechanisms import exact
from dpml.mechanisms.answers import Answer, around, check_beta, check_noise, finite_values
from dpml.mechanisms.lattice import LARGEST, SMALLEST
from dpml.mechanisms.noise import NoiseSource

GRID_BITS = 20  # the spacing is at most 2^-20 of the sensitivity, and of the noise scale
SHARED_BITS = 8  # for more than 2^8 coordinates all roundings together are at most 2^-12 of the sensitivity
MAX_DIMENSION = 1 << 26
MOST_STEPS = 2.0**61  # of the value; with noise of at most 2^62 steps the sum is an exact int64


@dataclass(frozen=True)
class LaplaceMechanism:
    """``value`` + Laplace noise of scale ≈ ``sensitivity``/``epsilon`` on every coordinate: ε-DP (Dwork et al. 2006).

    Args:
        sensitivity: the largest L1 distance of the values of neighbouring data sets, 2^-400 to 2^400.  The relation is
            in it: a count has 1, a histogram 1 (add_remove) or 2 (replace_one).
        epsilon: ε > 0, the pure cost of one release.
        dimension: how many numbers one release holds, 1 to 2^26.

    Raises:
        ConfigError: an argument out of range, or ε so small that the noise has more than 2^52 steps of the grid.
    """

    sensitivity: float
    epsilon: float
    dimension: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "sensitivity", check_number("sensitivity", self.sensitivity, SMALLEST, LARGEST))
        object.__setattr__(self, "epsilon", check_number("epsilon", self.epsilon, SMALLEST, MAX_SCALE))
        object.__setattr__(self, "dimension", check_dimension(self.dimension))
        if self.steps > exact.LARGEST_STEP:
            least = self.epsilon * self.steps / exact.LARGEST_STEP
            raise errors.invalid("epsilon", self.epsilon, f"at least {least:.2g} for dimension = {self.dimension}")

    @cached_property
    def spacing(self) -> float:
        """g, a power of two: g <= 2^-20 · min(S, S/ε) and, for p > 2^8 coordinates, p · g <= 2^-12 · S."""
        bits = GRID_BITS + max(0, (self.dimension - 1).bit_length() - SHARED_BITS)
        smaller = min(self.sensitivity, self.sensitivity / max(self.epsilon, 1.0))
        return math.ldexp(1.0, math.frexp(smaller)[1] - 1 - bits)

    @cached_property
    def moved_steps(self) -> int:
        """The largest L1 distance of two rounded neighbouring values in steps, which are whole: ⌊S/g⌋ + p."""
        return math.floor(Fraction(self.sensitivity) / Fraction(self.spacing)) + self.dimension

    @cached_property
    def steps(self) -> int:
        """The scale of the noise in steps of the grid: (moved_steps + 2)/ε, rounded up to a whole number.

        The two steps more make the release no worse than *continuous* Laplace noise of the same scale, whose privacy
        profile the accountants know (docs/mechanisms.md, section 3).
        """
        return math.ceil((self.moved_steps + 2) / Fraction(self.epsilon))

    @property
    def scale(self) -> float:
        """The scale b of the noise, in units of the value; its standard deviation is √2 · b."""
        return self.steps * self.spacing

    @property
    def limit(self) -> float:
        """Values beyond ± this are moved to it, which brings no two of them further apart."""
        return MOST_STEPS * self.spacing

    @property
    def event(self) -> Event:
        """``Pure(epsilon)``, under the relation that the sensitivity is for."""
        return Pure(self.epsilon)

    def event_under(self, neighboring_relation: str) -> Event:
        """The Laplace event whose pair under ``neighboring_relation`` covers this release; no dearer than ``event``.

        The sensitivity must be for that relation.  (A Laplace event counts *contributions*, of which two differ under
        replace_one: hence the factor 2 in its noise multiplier.)
        """
        double = 2 if check_relation(neighboring_relation) == REPLACE_ONE else 1
        return Laplace(min(rounded_down(Fraction(double * self.steps, self.moved_steps + 2)), MAX_SCALE))

    def error(self, beta: float = 0.05) -> float:
        """P(largest |answer − value| over all coordinates > error) <= ``beta``, for values within ±``limit``.

        The exact quantile of the largest of p Laplace numbers, plus one step for both roundings.
        """
        return laplace_max_error(self.dimension, self.scale, check_beta(beta)) + self.spacing

    def interval(self, value: Any, beta: float = 0.05) -> tuple[Any, Any]:
        """(low, high) around a released ``value``: holds all true coordinates with probability >= 1 − ``beta``."""
        return around(value, self.error(beta))

    def release(self, value: ArrayLike, noise: NoiseSource | None = None) -> Answer:
        """The noisy value: a float for a plain number, a float64 array of the same shape otherwise.

        Charging ``event`` is the caller's business, and comes first.

        Raises:
            DataError: ``value`` is not ``dimension`` finite numbers.
            ConfigError: ``noise`` is no noise source.
        """
        array, source = finite_values(value, self.dimension), check_noise(noise)
        steps = to_whole_steps(array.reshape(-1), self.spacing)
        steps += exact.discrete_laplace(self.steps, steps.size, source)
        released = steps.astype(np.float64)  # of the exact sum: rounding it comes after the mechanism
        released *= self.spacing
        return Answer(float(released[0]) if array.ndim == 0 else released.reshape(array.shape), self)


def check_dimension(dimension: object) -> int:
    """``dimension`` as an int from 1 to 2^26, else :class:`~dpml.errors.ConfigError`."""
    number = check_count("dimension", dimension, 1)
    if number > MAX_DIMENSION:
        raise errors.invalid("dimension", number, "an integer >= 1 and <= 2^26", "Release in several parts.")
    return number


def to_whole_steps(values: NDArray[np.float64], spacing: float) -> NDArray[np.int64]:
    """rint(values/spacing) within ±2^61, exactly: the spacing is a power of two."""
    with np.errstate(over="ignore"):  # infinity is moved to the limit like all that is beyond it
        steps = np.rint(values / spacing)
    return np.clip(steps, -MOST_STEPS, MOST_STEPS).astype(np.int64)


def rounded_down(ratio: Fraction) -> float:
    """The largest float that is no larger than ``ratio``."""
    number = float(ratio)
    return number if Fraction(number) <= ratio else math.nextafter(number, -math.inf)


# ------------------------------------------------------------------------------------------------- closed forms


def laplace_tail(scale: float, threshold: float) -> float:
    """P(|Z| > threshold) = e^{−threshold/scale} for Z ~ Lap(scale): an equality.  scale > 0, threshold >= 0."""
    scale = check_number("scale", scale, 0.0, above=True)
    return math.exp(-check_number("threshold", threshold, 0.0) / scale)


def laplace_max_tail(buckets: int, scale: float, threshold: float, *, union: bool = False) -> float:
    """P(max |Zᵢ| > threshold) for ``buckets`` independent Lap(scale): 1 − (1 − e^{−t/b})^k.

    ``union=True`` gives the union bound k · e^{−t/b}, which can exceed 1 (it is not clipped).
    """
    buckets = check_count("buckets", buckets, 1)
    one = laplace_tail(scale, threshold)
    if union:
        return buckets * one
    return 1.0 if one >= 1.0 else -math.expm1(buckets * math.log1p(-one))


def laplace_max_error(buckets: int, scale: float, beta: float, *, union: bool = False) -> float:
    """The t with P(max |Zᵢ| > t) = ``beta`` for ``buckets`` independent Lap(scale).

    ``union=True``: b ln(k/β), never smaller.  For a histogram the scale is S₁/ε with S₁ = 1 (add_remove) or
    2 (replace_one).
    """
    buckets = check_count("buckets", buckets, 1)
    scale = check_number("scale", scale, 0.0, above=True)
    beta = check_beta(beta)
    if union:
        return scale * math.log(buckets / beta)
    return -scale * math.log(-math.expm1(math.log1p(-beta) / buckets))


def sample_size_laplace_mean(epsilon: float, alpha: float, beta: float = math.exp(-2)) -> float:
    """n with which the mean of n values in [0, 1] + Lap(1/(n ε)) is off by ``alpha`` or more with probability ``beta``.

    n = ln(1/β)/(α ε), a real number.  Records are replaced (sensitivity 1/n, n public).  The default β = e^{−2} < 1/4
    is the course notes' n >= 2/(α ε).
    """
    epsilon = check_number("epsilon", epsilon, 0.0, above=True)
    return -math.log(check_beta(beta)) / (check_number("alpha", alpha, 0.0, above=True) * epsilon)


def kmeans_laplace_scale(epsilon: float, iterations: int) -> float:
    """Scale 2T/ε of the noise on every count and every coordinate sum of T rounds of private Lloyd.

    Each round has two releases of L1 sensitivity 1 (add_remove, points with ‖x‖₁ <= 1), each of ε' = ε/(2T).
    """
    return 2 * check_count("iterations", iterations, 1) / check_number("epsilon", epsilon, 0.0, above=True)
