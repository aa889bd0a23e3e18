"""Exact samplers: whole numbers and coins from uniform words, by integer arithmetic alone, vectorised.

A *word* is a whole number from 0 to 2^53 − 1, each equally likely: 2^53 · u for the u that
:meth:`~dpml.mechanisms.noise.NoiseSource.uniform` gives, which is a multiple of 2^-53 (numpy's 64-bit generators fill
a double from their upper 53 bits; the product is exact).  Given ideal words, everything here has *exactly* the stated
distribution: nothing is rounded, no real number is ever compared with another through floats, and where a comparison
is not decided by one word more words are drawn.  The sampling error is zero, not small.

Sources: Canonne, Kamath & Steinke 2020, "The Discrete Gaussian for Differential Privacy" (arXiv:2004.00010v5),
algorithms 1 to 3; Karney 2016, "Sampling exactly from the normal distribution", ACM TOMS 42(1), algorithm N.
Proofs: docs/mechanisms.md.  How long a draw takes depends on the noise, not on the data.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpml import errors
from dpml.mechanisms.noise import NoiseSource

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

WORD = 53  # bits of one word; tests use fewer, so that comparisons are often undecided
LARGEST_STEP = 1 << 52  # of a scale in whole steps


def words(size: int, noise: NoiseSource) -> Ints:
    """``size`` independent words (the upper ``WORD`` of 53 bits)."""
    whole = noise.uniform(size)
    whole *= 2.0**WORD
    return whole.astype(np.int64)  # towards zero: the floor


def below(limit: int, size: int, noise: NoiseSource) -> Ints:
    """``size`` independent whole numbers, uniform on 0 … ``limit`` − 1, for 1 <= limit <= 2^WORD: (size,) int64.

    Words at or above the largest multiple of ``limit`` are drawn again, the rest taken modulo ``limit``.
    """
    total = 1 << WORD
    if not 1 <= limit <= total:
        raise errors.invalid("limit", limit, f"a whole number from 1 to 2^{WORD}")
    out = words(size, noise)
    cut = total - total % limit
    again = np.flatnonzero(out >= cut) if cut < total else np.empty(0, dtype=np.int64)
    while again.size:
        out[again] = words(again.size, noise)
        again = again[out[again] >= cut]
    if limit & (limit - 1) == 0:
        out &= limit - 1
    else:
        out %= limit
    return out


def below_each(limits: Ints, noise: NoiseSource) -> Ints:
    """As :func:`below`, with a limit from 1 to 2^WORD for every entry."""
    out = words(limits.size, noise)
    cuts = (1 << WORD) - (1 << WORD) % limits
    again = np.flatnonzero(out >= cuts)
    while again.size:
        out[again] = words(again.size, noise)
        again = again[out[again] >= cuts[again]]
    return out % limits


def signs(size: int, noise: NoiseSource) -> Ints:
    """±1, equally likely."""
    return 1 - 2 * below(2, size, noise)


# ------------------------------------------------------------------------------------------------ coins


class Chances(Protocol):
    """An array of probabilities whose coins can be thrown exactly."""

    def coins(self, index: Ints, noise: NoiseSource) -> Bools:
        """One independent coin for each entry of ``index`` (positions in the array of probabilities)."""
        ...


class Same:
    """The same probability numerator/denominator everywhere; 0 <= numerator <= denominator <= 2^WORD."""

    def __init__(self, numerator: int, denominator: int) -> None:
        self.numerator, self.denominator = numerator, denominator

    def coins(self, index: Ints, noise: NoiseSource) -> Bools:
        if self.numerator == self.denominator:
            return np.ones(index.size, dtype=bool)
        return below(self.denominator, index.size, noise) < self.numerator


class Ratios:
    """numerators/denominator with one denominator of at most 2^WORD."""

    def __init__(self, numerators: Ints, denominator: int) -> None:
        self.numerators, self.denominator = numerators, denominator

    def coins(self, index: Ints, noise: NoiseSource) -> Bools:
        return below(self.denominator, index.size, noise) < self.numerators[index]


class Fractions:
    """Any exact fractions in [0, 1), with one denominator of any size.

    A coin compares the digits (in base 2^WORD) of a uniform number with those of the fraction, and looks at the next
    digit only where they are equal, which happens once in 2^53.
    """

    def __init__(self, numerators: NDArray[np.object_], denominator: int) -> None:
        self.denominator = denominator
        shifted = numerators * (1 << WORD)
        self.digits = (shifted // denominator).astype(np.int64)
        self.numerators = numerators

    def coins(self, index: Ints, noise: NoiseSource) -> Bools:
        drawn, digits = words(index.size, noise), self.digits[index]
        out: Bools = drawn < digits
        for place in np.flatnonzero(drawn == digits):
            out[place] = self._next_digits(int(index[place]), noise)
        return out

    def _next_digits(self, position: int, noise: NoiseSource) -> bool:
        rest = (int(self.numerators[position]) << WORD) % self.denominator
        while rest:
            digit, rest = divmod(rest << WORD, self.denominator)
            drawn = int(words(1, noise)[0])
            if drawn != digit:
                return drawn < digit
        return False  # the fraction has no further digits: the uniform number is not below it


def exp_coins(chances: Chances, index: Ints, noise: NoiseSource) -> Bools:
    """Coins with probability e^{−γ}, γ = the entry of ``chances`` at each of ``index``, in [0, 1].

    Canonne, Kamath & Steinke, algorithm 1 (after von Neumann): throw coins of probability γ/K for K = 1, 2, … until one
    fails, and take whether K is odd: Σ_{K odd} γ^{K−1}/(K−1)! · (1 − γ/K) = e^{−γ}.  γ/K is a coin of γ and one of 1/K.
    """
    out = np.empty(index.size, dtype=bool)
    alive, k = np.arange(index.size), 1
    while alive.size:
        out[alive] = k % 2 == 1
        alive = alive[chances.coins(index[alive], noise)]
        if k > 1:
            alive = alive[below(k, alive.size, noise) == 0]
        k += 1
    return out


def same_exp_coins(numerator: int, denominator: int, size: int, noise: NoiseSource) -> Bools:
    """``size`` coins with probability e^{−numerator/denominator}, the exponent in [0, 1]."""
    return exp_coins(Same(numerator, denominator), np.zeros(size, dtype=np.int64), noise)


def exp_powers(powers: Ints, noise: NoiseSource) -> Bools:
    """Coins with probability e^{−powers}, whole numbers >= 0: all of that many coins of e^{−1} must succeed."""
    out = np.ones(powers.size, dtype=bool)
    left = powers.copy()
    alive = np.flatnonzero(left > 0)
    while alive.size:
        won = same_exp_coins(1, 1, alive.size, noise)
        out[alive[~won]] = False
        alive = alive[won]
        left[alive] -= 1
        alive = alive[left[alive] > 0]
    return out


def geometric(numerator: int, denominator: int, size: int, noise: NoiseSource) -> Ints:
    """P(V = v) = (1 − q) q^v with q = e^{−numerator/denominator}, the exponent in (0, 1]: how many coins succeed."""
    out = np.zeros(size, dtype=np.int64)
    alive = np.arange(size)
    while alive.size:
        alive = alive[same_exp_coins(numerator, denominator, alive.size, noise)]
        out[alive] += 1
    return out


# ---------------------------------------------------------------------------------- distributions on whole numbers


def geometric_steps(scale: int, size: int, noise: NoiseSource) -> Ints:
    """P(X = x) ∝ e^{−x/scale} for x = 0, 1, 2, …; 1 <= scale <= 2^52 (algorithm 2, its first half).

    X = U + scale · V: U in 0 … scale − 1 with weight e^{−U/scale} (by rejection), V the whole multiples.
    X < 2^62 but for an event of probability e^{−1000}.
    """
    if not 1 <= scale <= LARGEST_STEP:
        raise errors.invalid("scale", scale, "a whole number from 1 to 2^52")
    out = np.empty(size, dtype=np.int64)
    missing = np.arange(size)
    while missing.size:
        tried = below(scale, missing.size, noise)
        kept = exp_coins(Ratios(tried, scale), np.arange(tried.size), noise)
        out[missing[kept]] = tried[kept]
        missing = missing[~kept]
    out += scale * geometric(1, 1, size, noise)
    return out


def discrete_laplace(scale: Fraction | int, size: int, noise: NoiseSource) -> Ints:
    """``size`` independent draws with P(Z = z) ∝ e^{−|z|/scale} on the whole numbers (algorithm 2): int64.

    ``scale`` > 0 is an exact fraction n/d with n <= 2^52: ⌊X/d⌋ for X of scale n has ratio e^{−d/n}; a random sign, and
    "minus zero" is drawn again (zero would come twice as often).

    Raises:
        ConfigError: a scale that is not such a fraction.
    """
    exact = Fraction(scale)
    if not (exact > 0 and exact.numerator <= LARGEST_STEP and exact.denominator <= LARGEST_STEP):
        raise errors.invalid("scale", scale, "a fraction > 0 whose numerator and denominator are at most 2^52")
    out = np.empty(size, dtype=np.int64)
    missing = np.arange(size)
    while missing.size:
        drawn = geometric_steps(exact.numerator, missing.size, noise)
        if exact.denominator > 1:
            drawn //= exact.denominator
        sign = signs(missing.size, noise)
        kept = (drawn != 0) | (sign > 0)
        out[missing[kept]] = (sign * drawn)[kept]
        missing = missing[~kept]
    return out


def discrete_gaussian(std: Fraction | float, size: int, noise: NoiseSource) -> Ints:
    """``size`` independent draws with P(Z = z) ∝ e^{−z²/(2 std²)} on the whole numbers (algorithm 3): int64.

    ``std`` is the parameter σ, taken exactly (a float is a fraction), in (0, 2^40].  With t = ⌊σ⌋ + 1, a discrete
    Laplace draw Y of scale t is kept with probability exp(−(|Y| − σ²/t)²/(2σ²)), by exact fractions.

    Raises:
        ConfigError: σ out of range.
    """
    sigma = Fraction(std)
    if not 0 < sigma <= 1 << 40:
        raise errors.invalid("std", std, "a number > 0 and <= 2^40")
    scale = int(sigma) + 1
    # σ² = a/b: the exponent is (|Y|·t·b − a)²/(2·a·b·t²)
    a, b = sigma.numerator**2, sigma.denominator**2
    below_line = 2 * a * b * scale * scale
    out = np.empty(size, dtype=np.int64)
    missing = np.arange(size)
    while missing.size:
        tried = discrete_laplace(scale, missing.size, noise)
        kept = _exp_of_fractions((np.abs(tried).astype(object) * (scale * b) - a) ** 2, below_line, noise)
        out[missing[kept]] = tried[kept]
        missing = missing[~kept]
    return out


def _exp_of_fractions(numerators: NDArray[np.object_], denominator: int, noise: NoiseSource) -> Bools:
    """Coins with probability exp(−numerators/denominator) for exact whole numbers >= 0 of any size."""
    wholes = numerators // denominator
    out = exp_powers(np.minimum(wholes, 1 << 40).astype(np.int64), noise)
    left = np.flatnonzero(out)
    rests = Fractions(numerators[left] % denominator, denominator)
    out[left] = exp_coins(rests, np.arange(left.size), noise)
    return out


def exp_choice(exponents: list[Fraction], noise: NoiseSource) -> int:
    """One index i with P(i) ∝ e^{−exponents[i]}, exactly: uniform candidates, kept with probability e^{−(γᵢ − min γ)}.

    On average at most len(exponents) candidates are tried.
    """
    lowest = min(exponents)
    denominator = 1
    for exponent in exponents:
        denominator = int(np.lcm(denominator, exponent.denominator, dtype=object))
    numerators = np.array([int((exponent - lowest) * denominator) for exponent in exponents], dtype=object)
    while True:
        tried = below(len(exponents), min(len(exponents), 256), noise)
        kept = np.flatnonzero(_exp_of_fractions(numerators[tried], denominator, noise))
        if kept.size:
            return int(tried[kept[0]])
