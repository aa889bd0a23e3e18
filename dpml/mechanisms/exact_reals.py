"""Exact samplers of *real* random numbers that are released rounded: digits are drawn only where they are needed.

A real number is held as its first digits.  A number x that was kept with a probability that depends on it (e^{−x}, say)
has been compared with uniform numbers, digit by digit, until each comparison was decided; digits that nobody looked at
are still uniform and independent, and can be drawn whenever a rounding is not decided.  So the whole numbers that come
out have *exactly* the distribution of the rounded real ones.  Sources and words: :mod:`dpml.mechanisms.exact`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpml import errors
from dpml.mechanisms import exact
from dpml.mechanisms.exact import Bools, Ints, below, exp_coins, exp_powers, geometric, signs, words
from dpml.mechanisms.noise import NoiseSource

FINE = 1 << 52  # real numbers that are not rounded at once start with 52 bits, and one word more


class Points:
    """Uniform numbers x = (j + f)/scale of [0, 1): j whole, f in [0, 1) known as far as anybody has asked."""

    def __init__(self, scale: int, size: int, noise: NoiseSource) -> None:
        self.scale = scale
        self.whole = below(scale, size, noise)
        self.part = words(size, noise)
        self.further: dict[int, list[int]] = {}  # the next words of f, once drawn they stay

    def coins(self, index: Ints, noise: NoiseSource) -> Bools:
        """Coins with probability x: whether a fresh uniform number is below it."""
        drawn, whole = below(self.scale, index.size, noise), self.whole[index]
        out: Bools = drawn < whole
        same = np.flatnonzero(drawn == whole)
        if same.size:
            finer, part = words(same.size, noise), self.part[index[same]]
            out[same] = finer < part
            for place in same[finer == part]:
                out[place] = self._next_words(int(index[place]), noise)
        return out

    def _next_words(self, position: int, noise: NoiseSource) -> bool:
        known, place = self.further.setdefault(position, []), 0
        while True:
            if place == len(known):
                known.append(int(words(1, noise)[0]))
            drawn = int(words(1, noise)[0])
            if drawn != known[place]:
                return drawn < known[place]
            place += 1


class _HalfSquares:
    """Coins with probability x²/2: two of x and one of 1/2."""

    def __init__(self, points: Points) -> None:
        self.points = points

    def coins(self, index: Ints, noise: NoiseSource) -> Bools:
        left = np.flatnonzero(self.points.coins(index, noise))
        left = left[self.points.coins(index[left], noise)]
        left = left[below(2, left.size, noise) == 0]
        out = np.zeros(index.size, dtype=bool)
        out[left] = True
        return out


def half_normals(scale: int, tries: int, noise: NoiseSource) -> tuple[Ints, Points, Ints]:
    """|N| = k + x for standard normal N, of those of ``tries`` candidates that are kept: (k, points, their positions).

    |N| has density ∝ e^{−k²/2} · e^{−kx − x²/2}.  Karney's algorithm N: k is proposed with weight e^{−k/2}, kept with
    e^{−k(k−1)/2}; x is uniform and kept with e^{−kx} e^{−x²/2}: k coins of e^{−x} and one of e^{−x²/2}.
    The positions are in the order of the candidates: who comes first must not depend on the number.
    """
    k = geometric(1, 2, tries, noise)
    k = k[exp_powers(k * (k - 1) // 2, noise)]
    points = Points(scale, k.size, noise)
    every = np.arange(k.size)
    waiting = every[exp_coins(_HalfSquares(points), every, noise)]
    kept, turn = np.zeros(k.size, dtype=bool), 0
    while waiting.size:
        kept[waiting[k[waiting] == turn]] = True
        waiting = waiting[k[waiting] > turn]
        waiting = waiting[exp_coins(points, waiting, noise)]
        turn += 1
    found = np.flatnonzero(kept)
    return k[found], points, found


def rounded_gaussian(std: int, size: int, noise: NoiseSource) -> Ints:
    """``size`` independent draws of rint(N), N ~ N(0, std²) a *real* normal number, for whole 1 <= std <= 2^46: int64.

    x is drawn as (j + f)/std, so that |N| = k·std + j + f and the first bit of f decides the nearest whole number.

    Raises:
        ConfigError: ``std`` out of range.
    """
    if not 1 <= std <= 1 << 46:
        raise errors.invalid("std", std, "a whole number from 1 to 2^46")
    out = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        k, points, found = half_normals(std, 2 * (size - filled) + 16, noise)
        upper = points.part[found] >> (exact.WORD - 1)  # whether f >= 1/2
        drawn = (k * std + points.whole[found] + upper)[: size - filled]
        out[filled : filled + drawn.size] = drawn
        filled += drawn.size
    out *= signs(size, noise)
    return out


# ------------------------------------------------------------------------------------------------- other norms


class Reals:
    """Real numbers >= 0 as floor(x · 2^bits), whole numbers of any size, with ever more bits."""

    def __init__(self, wholes: Ints, points: Points, positions: Ints) -> None:
        self.bits = FINE.bit_length() - 1 + exact.WORD
        top = wholes.astype(object) * FINE + points.whole[positions]
        self.digits = (top << exact.WORD) + points.part[positions]
        self._known = [list(points.further.get(int(place), [])) for place in positions]

    def refine(self, noise: NoiseSource) -> None:
        """One word more of every number: one that a coin has seen already, else a fresh one."""
        fresh = words(len(self._known), noise)
        last = [known.pop(0) if known else int(word) for known, word in zip(self._known, fresh, strict=True)]
        self.digits = (self.digits << exact.WORD) + np.array(last, dtype=object)
        self.bits += exact.WORD


def _exactly(size: int, draw: object, noise: NoiseSource) -> list[Reals]:
    """Reals from ``draw(tries, noise)`` until there are ``size`` of them."""
    parts, count = [], 0
    while count < size:
        wholes, points, found = draw(2 * (size - count) + 16, noise)  # type: ignore[operator]
        keep = slice(0, size - count)
        parts.append(Reals(wholes[keep], points, found[keep]))
        count += found[keep].size
    return parts


def _normals(tries: int, noise: NoiseSource) -> tuple[Ints, Points, Ints]:
    return half_normals(FINE, tries, noise)


def _exponentials(tries: int, noise: NoiseSource) -> tuple[Ints, Points, Ints]:
    """Exponential numbers V + x: V geometric with e^{−1}, x uniform and kept with e^{−x} (von Neumann)."""
    points = Points(FINE, tries, noise)
    found = np.flatnonzero(exp_coins(points, np.arange(tries), noise))
    return geometric(1, 1, found.size, noise), points, found


def l2_laplace(scale: int, size: int, noise: NoiseSource) -> Ints:
    """rint of a real vector of density ∝ e^{−‖n‖₂/scale}, all ``size`` coordinates together: int64.

    Its norm is ``scale`` times the sum of ``size`` exponential numbers, its direction that of independent normal ones
    (Chaudhuri, Monteleoni & Sarwate 2011, algorithm 1).  From the digits that are known, whole-number arithmetic gives
    an interval for every coordinate; while one of them contains a rounding boundary, more digits are drawn.
    """
    if not 1 <= scale <= exact.LARGEST_STEP or size * scale > exact.LARGEST_STEP:
        raise errors.invalid("scale", scale, "a whole number >= 1 and at most 2^52 ÷ the number of coordinates")
    normals, lengths = _exactly(size, _normals, noise), _exactly(size, _exponentials, noise)
    while True:
        low, high = _coordinates(scale, normals, lengths)
        if (low == high).all():
            return signs(size, noise) * low
        for part in normals + lengths:
            part.refine(noise)


def _coordinates(scale: int, normals: list[Reals], lengths: list[Reals]) -> tuple[Ints, Ints]:
    """Bounds on rint(scale · R · |Dᵢ|/‖D‖): D, R known to within 2^−bits each from below."""
    digits = np.concatenate([part.digits for part in normals])
    total = sum(int(part.digits.sum()) for part in lengths)
    bits = lengths[0].bits
    small = math.isqrt(int((digits * digits).sum()))
    large = math.isqrt(int(((digits + 1) ** 2).sum())) + 1
    many = digits.size
    half = 1 << (bits - 1)  # rint(y) = floor(y + 1/2) but for ties, which have probability 0
    low = ((scale * total * digits) // large + half) >> bits
    high = ((scale * (total + many) * (digits + 1)) // max(small, 1) + half) >> bits
    most = 1 << 61
    return np.minimum(low, most).astype(np.int64), np.minimum(high, most).astype(np.int64)


def linf_laplace(scale: int, size: int, noise: NoiseSource) -> Ints:
    """P(z) ∝ e^{−max|zᵢ|/scale} on the whole vectors of ``size`` coordinates: int64.

    A radius r with weight (2r + 1)^d a^r, a = e^{−1/scale}, and a uniform vector of the cube [−r, r]^d: the sum over
    r >= ‖z‖ of a^r is a^{‖z‖}/(1 − a).  r is proposed as the sum of d + 1 geometric numbers, weight C(r + d, d) a^r,
    and kept with Π (2r + 1)/(2r + 2i), i = 1 … d, which is what the weights differ by but for a constant.
    """
    if not 1 <= scale <= exact.LARGEST_STEP or (size + 1) * scale > 1 << 46:
        raise errors.invalid("scale", scale, "a whole number >= 1 and at most 2^46 ÷ (the number of coordinates + 1)")
    twice: NDArray[np.int64] = 2 * np.arange(1, size + 1)
    while True:
        radius = int(exact.geometric_steps(scale, size + 1, noise).sum())
        if (exact.below_each(2 * radius + twice, noise) <= 2 * radius).all():
            return below(2 * radius + 1, size, noise) - radius
