"""The Gaussian mechanism: a value of known L2 sensitivity plus independent normal noise on every coordinate.

:class:`GaussianMechanism` is calibrated exactly, sampled exactly and released on a public grid.  Its answer is
g · (rint(value/g) + rint(N/g)) with N a real normal vector (:class:`~dpml.mechanisms.lattice.Grid`): a function of
g · rint(value/g) + N, the textbook mechanism on the rounded value.  Rounding moves two neighbouring values further
apart by at most 2^-11 of the sensitivity; the noise is raised by 2^-10 for it.  rint(N/g) is drawn exactly, by
:func:`~dpml.mechanisms.exact_reals.rounded_gaussian`, so that no sampling error is left to charge.  docs/mechanisms.md.
:func:`add_gaussian` is the plain sum of doubles, for callers who release something else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dpml import errors
from dpml.accounting.checks import REPLACE_ONE, check_number, check_relation
from dpml.accounting.conversions import classical_gaussian_noise_multiplier, gaussian_noise_multiplier
from dpml.accounting.events import GDP, MAX_SCALE, Event, Gaussian
from dpml.mechanisms import exact_reals
from dpml.mechanisms.answers import Answer, around, check_beta, check_noise, finite_values
from dpml.mechanisms.discrete import one_target
from dpml.mechanisms.laplace import check_dimension, rounded_down
from dpml.mechanisms.lattice import LARGEST, MAX_STEPS, SMALLEST, Grid
from dpml.mechanisms.noise import NoiseSource

MOST_STD = 1 << 46  # of the noise in steps of the grid; draws stay below the grid's 2^52 steps up to 64 of them


def gaussian_std(*, sensitivity: float, noise_multiplier: float) -> float:
    """Standard deviation ``noise_multiplier × sensitivity``; both finite and >= 0, else ``ConfigError``."""
    for name, value in (("sensitivity", sensitivity), ("noise_multiplier", noise_multiplier)):
        if not (math.isfinite(value) and value >= 0.0):
            raise errors.invalid(name, value, "a finite number >= 0")
    return float(sensitivity) * float(noise_multiplier)


def add_gaussian(
    values: ArrayLike, *, sensitivity: float, noise_multiplier: float, noise: NoiseSource
) -> NDArray[np.float64]:
    """``values + N(0, (noise_multiplier × sensitivity)² I)``: a new float64 array of the same shape.

    ``sensitivity`` bounds the L2 distance of ``values`` between *any* two neighbouring data sets, so the neighbouring
    relation is in it: with it the release is as private as N(0, noise_multiplier²) against N(1, noise_multiplier²)
    (Dwork & Roth 2014, appendix A; the exact profile is Balle & Wang 2018, theorem 8).
    Recording the event is the caller's business, and comes first.

    Raises:
        ConfigError: a sensitivity or multiplier that is negative or not finite.
        DataError: ``values`` hold NaN or infinity (a sum with noise would tell that they do).
    """
    std = gaussian_std(sensitivity=sensitivity, noise_multiplier=noise_multiplier)
    array = np.array(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise errors.DataError("values hold NaN or infinity: such a value has no bounded sensitivity. Clip it first.")
    return array + noise.normal(std, array.shape)


@dataclass(frozen=True)
class GaussianMechanism:
    """``value`` + N(0, ``noise_std``² I): μ-Gaussian-DP with μ = sensitivity/noise_std (Dong, Roth & Su 2022, thm 2.7).

    Args:
        sensitivity: the largest L2 distance of the values of neighbouring data sets, 2^-390 to 2^390; the relation is
            in it.
        epsilon, delta: the smallest noise that is (ε, δ)-DP is used (Balle & Wang 2018, theorem 8); or
        rho: noise for ρ-zCDP, noise_multiplier = 1/√(2ρ) (Bun & Steinke 2016, proposition 1.6); or
        noise_multiplier: noise standard deviation ÷ sensitivity.  Exactly one of the three.
        classical: take the textbook's √(2 ln(1.25/δ))/ε instead of the smallest noise; proved for ε < 1 only.
        dimension: how many numbers one release holds, 1 to 2^26.

    Attributes:
        multiplier: the calibrated noise ÷ sensitivity, before what rounding costs.

    Raises:
        ConfigError: none or several of the three, ``classical`` without ε or with ε >= 1, an argument out of range.
    """

    sensitivity: float
    epsilon: float | None = None
    delta: float | None = None
    rho: float | None = None
    noise_multiplier: float | None = None
    classical: bool = False
    dimension: int = 1
    multiplier: float = field(init=False)

    def __post_init__(self) -> None:
        low, high = SMALLEST * 2.0**10, LARGEST * 2.0**-10
        object.__setattr__(self, "sensitivity", check_number("sensitivity", self.sensitivity, low, high))
        object.__setattr__(self, "dimension", check_dimension(self.dimension))
        object.__setattr__(self, "multiplier", self._multiplier())
        if self.steps > MOST_STD:
            most = self.multiplier * MOST_STD / self.steps
            raise errors.invalid("noise multiplier", self.multiplier, f"at most {most:.2g}", "Raise the budget.")

    def _multiplier(self) -> float:
        kind = one_target(rho=self.rho, noise_multiplier=self.noise_multiplier, epsilon=self.epsilon, delta=self.delta)
        if not isinstance(self.classical, bool):
            raise errors.invalid("classical", self.classical, "True or False")
        if self.classical and kind != "epsilon":
            raise errors.invalid("classical", True, f"False with {kind}", "It is a formula for epsilon and delta.")
        if kind == "noise_multiplier":
            return check_number("noise_multiplier", self.noise_multiplier, 1e-6, MAX_SCALE)
        if kind == "rho":
            return (1 + 2.0**-50) / math.sqrt(2 * check_number("rho", self.rho, 0.0, MAX_SCALE, above=True))
        epsilon = check_number("epsilon", self.epsilon, 0.0, MAX_SCALE, above=True)
        delta = check_number("delta", self.delta, 0.0, 1.0, above=True, below=True)
        found = classical_gaussian_noise_multiplier if self.classical else gaussian_noise_multiplier
        return found(epsilon, delta)

    @cached_property
    def grid(self) -> Grid:
        """The grid for a bound C = sensitivity/(1 − 2^-10): rounded neighbouring values differ by at most C."""
        return Grid(self.sensitivity / (1.0 - 2.0**-10), self.dimension)

    @cached_property
    def steps(self) -> int:
        """The noise's standard deviation in steps of the grid: multiplier · C/g, rounded up to a whole number."""
        wanted = Fraction(self.multiplier) * Fraction(self.grid.sensitivity) / Fraction(self.grid.spacing)
        return max(1, math.ceil(wanted))

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise, in units of the value."""
        return self.steps * self.grid.spacing

    @property
    def limit(self) -> float:
        """Values beyond ± this are moved to it, which brings no two of them further apart."""
        return MAX_STEPS * self.grid.spacing

    def _mu(self) -> Fraction:
        return Fraction(self.grid.sensitivity) / (self.steps * Fraction(self.grid.spacing))

    @property
    def event(self) -> Event:
        """``GDP(mu)``, exactly this release's pair, under the relation that the sensitivity is for."""
        return GDP(-rounded_down(-self._mu()))

    def event_under(self, neighboring_relation: str) -> Event:
        """The same as a Gaussian event, which counts *contributions*: two of them differ under replace_one."""
        double = 2 if check_relation(neighboring_relation) == REPLACE_ONE else 1
        return Gaussian(min(rounded_down(double / self._mu()), MAX_SCALE))

    def error(self, beta: float = 0.05) -> float:
        """P(largest |answer − value| over all coordinates > error) <= ``beta``, for values within ±``limit``.

        The exact quantile of the largest of p normal numbers, plus one step for both roundings.
        """
        one = -math.expm1(math.log1p(-check_beta(beta)) / self.dimension)
        return -self.noise_std * float(special.ndtri(one / 2)) + self.grid.spacing

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
        drawn = exact_reals.rounded_gaussian(self.steps, array.size, source).astype(np.float64)
        drawn *= self.grid.spacing
        released = self.grid.release(array, drawn.reshape(array.shape))
        return Answer(float(released) if array.ndim == 0 else released, self)
