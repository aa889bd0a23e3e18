"""Comparisons and roundings of real noise that are decided exactly, although the computer has 53 bits at a time.

A selection mechanism releases which score plus noise is largest.  Theorems speak of real noise.  Floating-point noise
has a largest value, so that a candidate far below the best would never win, which no pure ε allows, and coarse tails.
Here a noise number is the quantile function at a real uniform number of which only 53 binary digits are drawn.  They
confine the noise to an interval; where the intervals do not settle the question, 53 more digits are drawn for the few
numbers concerned and the intervals are computed with that many more decimals (Python's ``decimal``, whose logarithm is
correctly rounded), until they do.  So the *outcome* has exactly the probability that real arithmetic gives it: the
index of a race, a coin, a noise number rounded to an integer.  Scores, scales and weights enter as the exact rational
numbers that their floats are.

Assumed: the source's uniforms are whole multiples of 2^-53, independent and uniform; numpy's ``log`` and ``log1p`` are
right to 8 units in the last place (they are to 1 or so).  Not covered: how long a draw takes (one race in thousands of
millions needs a second look, which takes longer).
"""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpml import errors
from dpml.mechanisms.noise import NoiseSource

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

KINDS = ("laplace", "exponential", "gumbel")
BITS = 53  # binary digits of one uniform number of a source
ROUNDS = 16  # looks at an undecided question; 16 · 53 equal digits do not occur by chance
MARGIN = 2.0**-48  # relative error that double-precision bounds allow for: 16 units in the last place
BEYOND = 1e300  # distances in units of the noise that are not told apart in double precision


def digits(size: int, source: NoiseSource) -> Integers:
    """The first 53 binary digits of ``size`` real uniform numbers from [0, 1): whole numbers below 2^53."""
    return (source.uniform(size) * 2.0**BITS).astype(np.int64)  # exact: the uniforms are multiples of 2^-53


def quantile(kind: str, upper: NDArray[np.floating]) -> Floats:
    """The standard noise that is exceeded with probability ``upper``; approximate, from +∞ at 0 downwards.

    Laplace: density e^{-|z|}/2.  Exponential: e^{-z} on z >= 0.  Gumbel: distribution function e^{-e^{-z}}.
    """
    with np.errstate(divide="ignore"):
        if kind == "gumbel":
            return -np.log(-np.log1p(-upper))
        if kind == "exponential":
            return -np.log(upper)
        size = -np.log(2.0 * np.minimum(upper, 1.0 - upper))  # 1 - upper is exact for multiples of 2^-53
        return np.where(upper < 0.5, size, -size)


def bounds(kind: str, drawn: Integers) -> tuple[Floats, Floats]:
    """(low, high), before rounding errors: where the noise lies whose uniform number begins with these digits."""
    return quantile(kind, (drawn + 1) * 2.0**-BITS), quantile(kind, drawn * 2.0**-BITS)


def widened(low: Floats, high: Floats, unit: float = 1.0) -> tuple[Floats, Floats]:
    """The interval made larger by what floating-point arithmetic may have got wrong; ±∞ stays."""
    return low - (np.abs(low) + unit) * MARGIN, high + (np.abs(high) + unit) * MARGIN


def _context(bits: int) -> Context:
    """Decimal arithmetic in which numbers of ``bits`` binary places are exact, with 40 digits to spare."""
    return Context(prec=bits + 40, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def _precise_quantile(kind: str, drawn: int, bits: int) -> Decimal:
    """:func:`quantile` at drawn/2^bits, which is exact in the context (to be called in it)."""
    whole = 1 << bits

    def minus_log(count: int) -> Decimal:
        return -(Decimal(count) / Decimal(whole)).ln()

    if kind == "gumbel":
        return -minus_log(whole - drawn).ln() if drawn < whole else Decimal("-Infinity")
    if kind == "exponential":
        return minus_log(drawn)
    return minus_log(2 * drawn) if 2 * drawn <= whole else -minus_log(2 * (whole - drawn))


def _precise_bounds(kind: str, drawn: int, bits: int) -> tuple[Decimal, Decimal]:
    """:func:`bounds` for ``bits`` digits, rounding errors included: the cell is wider by far than the margin."""
    low, high = _precise_quantile(kind, drawn + 1, bits), _precise_quantile(kind, drawn, bits)
    margin = _margin(bits)
    return (
        low - (abs(low) + 1) * margin if low.is_finite() else low,
        high + (abs(high) + 1) * margin if high.is_finite() else high,
    )


def _margin(bits: int) -> Decimal:
    return Decimal(10) ** -(bits + 30)


def longer(drawn: int, source: NoiseSource) -> int:
    """The same uniform number with 53 more digits."""
    return (drawn << BITS) | int(digits(1, source)[0])


def _looks() -> range:
    """Numbers of digits of the looks at an undecided question."""
    return range(2 * BITS, ROUNDS * BITS, BITS)


def _undecided() -> errors.ConfigError:
    return errors.ConfigError("noise is not random: it keeps repeating the same digits. Give a working noise source.")


def winner(kind: str, scores: Floats, factor: Fraction, source: NoiseSource, weights: Floats | None = None) -> int:
    """The index with the largest factor · score + ln weight + standard noise, in exact arithmetic.

    Args:
        kind: the noise, one of :data:`KINDS`, independent for every score.
        scores: finite numbers, shape (K,), K >= 1.
        factor: one over the scale of the noise, 1e-300 to 1e300.
        weights: finite numbers > 0, shape (K,), or None for 1.
    """
    drawn = digits(scores.size, source)
    best = float(scores.max())
    with np.errstate(over="ignore"):
        places = np.maximum((scores - best) * float(factor), -BEYOND)
    slack = np.abs(places) * MARGIN
    beyond = places <= -BEYOND
    if weights is not None:
        logs = np.log(weights)
        places, slack = places + logs, slack + np.abs(logs) * MARGIN
    low, high = bounds(kind, drawn)
    low, high = widened(places + low, places + high)  # the bounds' own errors are within the margins, too
    low, high = low - slack - MARGIN, high + slack + MARGIN
    low[beyond] = -np.inf  # there the place may be lower yet
    rivals = {index: int(drawn[index]) for index in np.flatnonzero(high >= low.max()).tolist()}
    looks = iter(_looks())
    while len(rivals) > 1:
        bits = next(looks, 0)
        if not bits:
            raise _undecided()
        rivals = {index: longer(begin, source) for index, begin in rivals.items()}
        with localcontext(_context(bits)):
            ends = {}
            for index, begin in rivals.items():
                place = _decimal(factor * (Fraction(float(scores[index])) - Fraction(best)))
                log = _decimal(Fraction(float(weights[index]))).ln() if weights is not None else Decimal(0)
                error = (abs(place) + abs(log) + 1) * _margin(bits)
                below_it, above_it = _precise_bounds(kind, begin, bits)
                ends[index] = (place + log + below_it - error, place + log + above_it + error)
            bar = max(end for end, _ in ends.values())
            rivals = {index: begin for index, begin in rivals.items() if ends[index][1] >= bar}
    return next(iter(rivals))


def coins(scores: Floats, factor: Fraction, source: NoiseSource) -> NDArray[np.bool_]:
    """Independent coins that show True with probability e^{factor · (score - largest score)}, exactly.

    Each is the comparison of an exponential noise number with the distance from the best.  Arguments as of
    :func:`winner`.
    """
    drawn = digits(scores.size, source)
    best = float(scores.max())
    with np.errstate(over="ignore"):
        bar = np.minimum((best - scores) * float(factor), BEYOND)
    low, high = widened(*bounds("exponential", drawn))
    slack = bar * MARGIN
    shown = (low > bar + slack) | (scores == best)
    for index in np.flatnonzero(~shown & (high > bar - slack)).tolist():
        distance = factor * (Fraction(best) - Fraction(float(scores[index])))
        shown[index] = _exceeds(distance, int(drawn[index]), source)
    return shown


def _exceeds(distance: Fraction, drawn: int, source: NoiseSource) -> bool:
    """Whether the exponential noise of this uniform number is above ``distance``."""
    for bits in _looks():
        drawn = longer(drawn, source)
        with localcontext(_context(bits)):
            low, high = _precise_bounds("exponential", drawn, bits)
            bar = _decimal(distance)
            slack = bar * _margin(bits)
            if low > bar + slack:
                return True
            if high < bar - slack:
                return False
    raise _undecided()


def rounded(kind: str, scale: Fraction, size: int, source: NoiseSource) -> list[int]:
    """``size`` independent integers floor(scale · standard noise + 1/2), exactly; scale from 1e-300 to 1e300."""
    drawn, unit = digits(size, source), float(scale)
    low, high = bounds(kind, drawn)
    low, high = widened(low * unit, high * unit, 4.0 * unit + 1.0)
    low, high = np.floor(low + 0.5), np.floor(high + 0.5)
    settled = (low == high) & np.isfinite(high)
    return [
        int(value) if done else _rounded(kind, scale, int(begin), source)
        for value, done, begin in zip(low.tolist(), settled.tolist(), drawn.tolist(), strict=True)
    ]


def _rounded(kind: str, scale: Fraction, drawn: int, source: NoiseSource) -> int:
    for bits in _looks():
        drawn = longer(drawn, source)
        with localcontext(_context(bits)):
            factor, half = _decimal(scale), Decimal("0.5")
            low, high = (factor * end for end in _precise_bounds(kind, drawn, bits))
            if low.is_finite() and high.is_finite():
                first = _floor(low - (abs(low) + 1) * _margin(bits) + half)
                if first == _floor(high + (abs(high) + 1) * _margin(bits) + half):
                    return first
    raise _undecided()


def _floor(value: Decimal) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator // denominator


def uniform_below(number: int, source: NoiseSource) -> int:
    """A uniform integer from 0 to ``number`` - 1, exactly; number from 1 to 2^53.  Surplus digits are drawn again."""
    limit = (1 << BITS) // number * number
    for _ in range(ROUNDS * BITS):
        drawn = int(digits(1, source)[0])
        if drawn < limit:
            return drawn % number
    raise _undecided()


def permutation(size: int, source: NoiseSource) -> Integers:
    """A uniform order of 0 … size - 1: that of independent uniform numbers, all drawn again while two are equal."""
    for _ in range(ROUNDS):
        drawn = digits(size, source)
        order = np.argsort(drawn)
        placed = drawn[order]
        if bool((placed[1:] != placed[:-1]).all()):
            return order.astype(np.int64)
    raise _undecided()
