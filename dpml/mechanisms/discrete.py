"""Mechanisms for whole numbers: discrete Laplace (geometric) and discrete Gaussian noise, sampled exactly.

A count plus whole noise is a whole number: nothing is rounded and no low bit tells anything.  The samplers of
:mod:`dpml.mechanisms.exact` have no error, so neither do the events.
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
from dpml.accounting.checks import REPLACE_ONE, check_count, check_number, check_relation
from dpml.accounting.conversions import largest_zcdp_rho
from dpml.accounting.events import MAX_SCALE, ZCDP, DiscreteGaussian, DiscreteLaplace, Event, Pure
from dpml.mechanisms import exact
from dpml.mechanisms.answers import Answer, around, check_beta, check_noise, finite_values
from dpml.mechanisms.laplace import check_dimension
from dpml.mechanisms.noise import NoiseSource

LARGEST_COUNT = 1 << 61  # values beyond are moved to it
SCALE_BITS = 45  # significant bits of a noise scale that is no whole number
LARGEST_STD = 2.0**40
_EVENT_LIMIT = 10**6  # of the noise and the sensitivity in the discrete events


@dataclass(frozen=True)
class DiscreteLaplaceMechanism:
    """Whole numbers plus Z, P(Z = z) ∝ e^{−|z|/scale} with scale = ``sensitivity``/``epsilon``: ε-DP.

    Ghosh, Roughgarden & Sundararajan 2012, definition 2.1 (the geometric mechanism, α = e^{−1/scale}).

    Args:
        sensitivity: the largest L1 distance of the whole values of neighbouring data sets, a whole number >= 1; the
            relation is in it.
        epsilon: ε > 0, the pure cost of one release.
        dimension: how many numbers one release holds.

    Raises:
        ConfigError: an argument out of range, or a scale above 2^45.
    """

    sensitivity: float
    epsilon: float
    dimension: int = 1

    def __post_init__(self) -> None:
        sensitivity = check_number("sensitivity", self.sensitivity, 1.0, 2.0**53)
        if not sensitivity.is_integer():
            raise errors.invalid("sensitivity", self.sensitivity, "a whole number >= 1", "Use LaplaceMechanism.")
        object.__setattr__(self, "sensitivity", int(sensitivity))
        object.__setattr__(self, "epsilon", check_number("epsilon", self.epsilon, 0.0, MAX_SCALE, above=True))
        object.__setattr__(self, "dimension", check_dimension(self.dimension))
        if self.sensitivity / self.epsilon > 2.0**SCALE_BITS:
            raise errors.invalid("epsilon", self.epsilon, f"at least {self.sensitivity / 2.0**SCALE_BITS:.3g}")

    @cached_property
    def exact_scale(self) -> Fraction:
        """S/ε rounded up to 45 significant bits, as a fraction: what the sampler uses."""
        wanted = Fraction(self.sensitivity) / Fraction(self.epsilon)
        size = wanted.numerator.bit_length() - wanted.denominator.bit_length()
        bits = min(max(SCALE_BITS - size, 0), 52)
        return Fraction(math.ceil(wanted * (1 << bits)), 1 << bits)

    @property
    def scale(self) -> float:
        """``exact_scale`` as a float, which holds it exactly."""
        return float(self.exact_scale)

    @property
    def event(self) -> Event:
        """``Pure(epsilon)``, under the relation that the sensitivity is for."""
        return Pure(self.epsilon)

    def event_under(self, neighboring_relation: str) -> Event:
        """The discrete Laplace event with the same pair, where there is one; no dearer than ``event``.

        That event counts the *contribution* of one record, of which two differ under replace_one: an odd sensitivity
        has no such event there, and is charged as ``event``.  Vectors: docs/mechanisms.md, section 3.
        """
        double = 2 if check_relation(neighboring_relation) == REPLACE_ONE else 1
        contribution, odd = divmod(int(self.sensitivity), double)
        if odd or contribution > _EVENT_LIMIT or self.scale > _EVENT_LIMIT:
            return self.event
        return DiscreteLaplace(self.scale, contribution)

    def error(self, beta: float = 0.05) -> int:
        """The smallest whole m with P(largest |answer − value| over all coordinates > m) <= ``beta``."""
        one = -math.expm1(math.log1p(-check_beta(beta)) / self.dimension)  # what each coordinate may have
        found = max(0, math.floor(-self.scale * math.log(one)) - 2)
        while discrete_laplace_tail(found, self.scale) > one:
            found += 1
        return found

    def interval(self, value: Any, beta: float = 0.05) -> tuple[Any, Any]:
        """(low, high) around a released ``value``: holds all true coordinates with probability >= 1 − ``beta``."""
        return around(value, self.error(beta))

    def release(self, value: ArrayLike, noise: NoiseSource | None = None) -> Answer:
        """The noisy value: an int for a plain number, an int64 array of the same shape otherwise.

        Charging ``event`` is the caller's business, and comes first.

        Raises:
            DataError: ``value`` is not ``dimension`` whole numbers.
            ConfigError: ``noise`` is no noise source.
        """
        array, source = whole_values(value, self.dimension), check_noise(noise)
        released = array + exact.discrete_laplace(self.exact_scale, array.size, source).reshape(array.shape)
        return Answer(int(released) if array.ndim == 0 else released, self)


@dataclass(frozen=True)
class DiscreteGaussianMechanism:
    """Whole numbers plus Z, P(Z = z) ∝ e^{−z²/(2σ²)} on every coordinate: ρ-zCDP with ρ = S²/(2σ²).

    Canonne, Kamath & Steinke 2020, theorems 4 and 14 (independent coordinates, L2 sensitivity S).

    Args:
        sensitivity: the largest L2 distance of the whole values of neighbouring data sets, a number > 0; the relation
            is in it.
        rho: the zCDP cost; or
        epsilon, delta: the largest ρ that gives (ε, δ)-DP is used; or
        noise_std: the parameter σ itself.  Exactly one of the three.
        dimension: how many numbers one release holds.

    Raises:
        ConfigError: none or several of the three, an argument out of range, or σ above 2^40.
    """

    sensitivity: float
    rho: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    noise_std: float | None = None
    dimension: int = 1
    std: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sensitivity", check_number("sensitivity", self.sensitivity, 1e-6, 2.0**60))
        object.__setattr__(self, "dimension", check_dimension(self.dimension))
        std = self._std()
        if not 0.0 < std <= LARGEST_STD:
            raise errors.invalid("noise std", std, "above 0 and at most 2^40", "Raise the budget, or rescale.")
        object.__setattr__(self, "std", std)

    def _std(self) -> float:
        kind = one_target(rho=self.rho, epsilon=self.epsilon, delta=self.delta, noise_std=self.noise_std)
        if kind == "noise_std":
            return check_number("noise_std", self.noise_std, 0.0, LARGEST_STD, above=True)
        if kind == "rho":
            rho = check_number("rho", self.rho, 0.0, MAX_SCALE, above=True)
        else:
            epsilon = check_number("epsilon", self.epsilon, 0.0, MAX_SCALE, above=True)
            rho = largest_zcdp_rho(epsilon, check_number("delta", self.delta, 0.0, 1.0, above=True, below=True))
        std = self.sensitivity / math.sqrt(2 * rho)
        while self._rho(std) > rho:
            std = math.nextafter(std, math.inf)
        return std

    def _rho(self, std: float) -> float:
        """S²/(2 std²), rounded up."""
        return math.nextafter(self.sensitivity * self.sensitivity / (2 * std * std), math.inf)

    @property
    def event(self) -> Event:
        """``ZCDP(rho)``, under the relation that the sensitivity is for."""
        return ZCDP(self._rho(self.std) if self.rho is None else float(self.rho))

    def event_under(self, neighboring_relation: str) -> Event:
        """The exact event of one number with whole sensitivity, where there is one, else ``event``.

        That event counts the *contribution* of one record, of which two differ under replace_one: an odd sensitivity
        has no such event there.
        """
        double = 2 if check_relation(neighboring_relation) == REPLACE_ONE else 1
        contribution = self.sensitivity / double
        whole = contribution.is_integer() and contribution <= _EVENT_LIMIT
        if self.dimension > 1 or not whole or self.std > _EVENT_LIMIT:
            return self.event
        return DiscreteGaussian(self.std, int(contribution))

    def error(self, beta: float = 0.05) -> int:
        """A whole m with P(largest |answer − value| over all coordinates > m) <= ``beta``.

        P(Z >= m + 1) <= P(N(0, σ²) >= m) (Canonne, Kamath & Steinke 2020, proposition 25), so one more than needed at
        most.
        """
        one = -math.expm1(math.log1p(-check_beta(beta)) / self.dimension)
        return math.ceil(-self.std * float(special.ndtri(one / 2)))

    def interval(self, value: Any, beta: float = 0.05) -> tuple[Any, Any]:
        """(low, high) around a released ``value``: holds all true coordinates with probability >= 1 − ``beta``."""
        return around(value, self.error(beta))

    def release(self, value: ArrayLike, noise: NoiseSource | None = None) -> Answer:
        """As :meth:`DiscreteLaplaceMechanism.release`."""
        array, source = whole_values(value, self.dimension), check_noise(noise)
        released = array + exact.discrete_gaussian(self.std, array.size, source).reshape(array.shape)
        return Answer(int(released) if array.ndim == 0 else released, self)


def one_target(**given: float | None) -> str:
    """The name of the one way in which the noise is given; ``epsilon`` and ``delta`` go together.

    Raises:
        ConfigError: none, several, or one of epsilon and delta alone.
    """
    named = [name for name, value in given.items() if value is not None]
    if named == ["epsilon", "delta"]:
        return "epsilon"
    if len(named) != 1 or named[0] in ("epsilon", "delta"):
        ways = [name for name in given if name not in ("epsilon", "delta")]
        raise errors.ConfigError(
            f"the noise is given by {named or 'nothing'}: give exactly one of {', '.join(ways)}, or epsilon with delta."
        )
    return named[0]


def whole_values(value: ArrayLike, dimension: int) -> NDArray[np.int64]:
    """``value`` as a new int64 array of ``dimension`` whole numbers within ±2^61 (moved to it, which is a contraction).

    Raises:
        DataError: another number of entries, or something that is no whole number; the message holds no entry.
    """
    try:
        numbers = np.asarray(value)
    except (TypeError, ValueError):  # ragged lists
        numbers = np.empty(0, dtype=object)
    if numbers.dtype.kind not in "iu":
        numbers = finite_values(value, dimension)
        if (numbers != np.rint(numbers)).any():
            raise errors.DataError(
                "value is not allowed: it must be whole numbers. Use LaplaceMechanism or GaussianMechanism for others."
            )
    else:
        finite_values(np.zeros(numbers.shape), dimension)  # the number of entries
    return np.clip(numbers, -LARGEST_COUNT, LARGEST_COUNT).astype(np.int64)


# ------------------------------------------------------------------------------------------------- closed forms


def discrete_laplace_pmf(z: ArrayLike, scale: float) -> NDArray[np.float64]:
    """P(Z = z) = (1 − a)/(1 + a) · a^{|z|} with a = e^{−1/scale}, scale > 0."""
    scale = check_number("scale", scale, 0.0, above=True)
    return np.exp(-np.abs(np.asarray(z, dtype=np.float64)) / scale) * math.tanh(0.5 / scale)


def discrete_laplace_tail(m: int, scale: float) -> float:
    """P(|Z| > m) = 2 a^{m+1}/(1 + a) for whole m >= 0, a = e^{−1/scale}."""
    scale = check_number("scale", scale, 0.0, above=True)
    return 2 * math.exp(-(check_count("m", m) + 1) / scale) / (1 + math.exp(-1 / scale))


def discrete_gaussian_pmf(z: ArrayLike, std: float) -> NDArray[np.float64]:
    """P(Z = z) = e^{−z²/(2 std²)} ÷ its sum over all whole numbers, 0 < std <= 1e6 (float64)."""
    std = check_number("std", std, 0.0, _EVENT_LIMIT, above=True)
    terms = np.exp(-0.5 * (np.arange(1, math.ceil(40 * std) + 2) / std) ** 2)
    total = 1 + 2 * float(terms[::-1].sum())
    return np.exp(-0.5 * (np.asarray(z, dtype=np.float64) / std) ** 2) / total
