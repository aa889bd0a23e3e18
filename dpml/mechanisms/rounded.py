"""Whole numbers distributed as rint(N(0, ratio²)): fast, and within 2^-46 of the real thing (root mean square).

The multiples of a grid's spacing that Gaussian noise is rounded to (:mod:`dpml.mechanisms.lattice`) are whole numbers
with the probabilities P(m) = Φ((m + ½)/ratio) − Φ((m − ½)/ratio).  Rounding the draws of a floating-point sampler gives
them relative errors of about 2^-48 · ratio, which docs/proofs-floats.md would have to pay for.  :class:`RoundedNormal`
draws the whole numbers themselves, by composition (Devroye 1986, "Non-uniform random variate generation", chapters II.4
and II.5; no source has this table):

    blocks       the whole numbers are cut into runs of 2^b, of 1/128 to 1/64 standard deviations, out to 14.
    quick part   block i owns k_i = ⌊2^(16+b) · (least P in it)⌋ of the 65,536 entries of a table.  16 random bits
                 choose an entry, b more a number in its block: each has the probability k_i · 2^-(16+b) <= P
                 *exactly*.  99 draws of 100 end here.
    rest         the other entries stand for P(m) − k_i · 2^-(16+b), drawn by rejection from blocks of constant height.
                 Only here numbers are rounded (P is evaluated in double precision).

The same bits never serve two purposes.  How long a draw takes depends on the noise alone.

    edge case                 what happens
    ratio 0                   zeros (SecretNoise.rounded)
    ratio < 2^8, > 2^47       not this sampler: draws of the ziggurat are rounded (SecretNoise.rounded)
    size 0                    an empty array
    beyond 14 deviations      never drawn: probability 1.6e-44 each
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.int32] | NDArray[np.float64]
Words = NDArray[np.uint64]
Bits = Callable[[int], Words]  # bits(n): n fresh words of 64 independent bits each

LEAST, MOST = 2.0**8, 2.0**47  # of the ratio
ENTRIES = 1 << 16
WIDEST = 14.0  # standard deviations
FINENESS = 6  # a block has 2^-6 standard deviations at most
BLOCK = 1 << 15  # draws at a time, so that they stay in the processor's cache
SAFE = 2.0**-40  # of P: far more than its rounding, far less than an entry
MOST_INT32 = 1 << 30  # in size: the sum with a smaller number is an int32, too


class RoundedNormal:
    """The tables for one ``ratio`` (standard deviation in steps of the grid, :data:`LEAST` to :data:`MOST`).

    Attributes:
        low_bits: b.
        dtype: of the draws: int32 where none can be beyond 2^30, else float64 (at most 2^51 in size).
        first: the least number of every block ``(blocks,)``.
        quick: k_i, the entries of the quick table that a block owns ``(blocks,)``.
        tried: entries of the table of the rest that a block owns ``(blocks,)``; they sum to 65,536.
        height: of the constant that the rest is drawn under, in units of 2^-(16+b), ``(blocks,)``.
    """

    def __init__(self, ratio: float) -> None:
        if not LEAST <= ratio <= MOST:
            raise ValueError(f"ratio {ratio!r} is not within 2^8 to 2^47")
        self.ratio = float(ratio)
        self.low_bits = math.frexp(ratio)[1] - 1 - FINENESS
        width = 1 << self.low_bits
        reach = math.ceil(WIDEST * ratio / width)
        block = np.arange(-reach, reach)
        self.first: Floats = np.asarray(block * float(width))
        inner = np.where(block >= 0, self.first, self.first + (width - 1))  # the end where P is largest
        outer = np.where(block >= 0, self.first + (width - 1), self.first)
        self.quick = np.floor(self.scaled(outer) * (1.0 - SAFE)).astype(np.int64)
        self.quick_entries = int(self.quick.sum())

        above = self.scaled(inner) * (1.0 + SAFE) - self.quick
        unit = float(above.sum()) / (ENTRIES - block.size)  # so that all rounded up fit
        self.tried = np.ceil(above / unit).astype(np.int64)
        self.tried[reach] += ENTRIES - int(self.tried.sum())
        self.height: Floats = np.asarray(self.tried * unit)
        self._accepted = (ENTRIES - self.quick_entries) / (unit * ENTRIES)  # share of the tries

        self.dtype = np.dtype(np.int32 if reach * width <= MOST_INT32 else np.float64)
        self._starts = np.zeros(ENTRIES, self.dtype)  # the first number of the block of every entry
        self._starts[: self.quick_entries] = np.repeat(self.first, self.quick)
        self._blocks = np.repeat(np.arange(block.size, dtype=np.int16), self.tried)

    def scaled(self, m: Floats) -> Floats:
        """P(m) · 2^(16+b), relative error of rounding (3/2 x² + 13) · 2^-53 at most, x = m/ratio.

        P is the integral of the density over one step h = 1/ratio: the midpoint's value, and two terms of the series in
        h².  The next, h^6 He6(x)/322560 (a Hermite polynomial), is left out: 2^-61.5 at most in root mean square under
        the Gaussian, for h <= 2^-8; 8e-14 at 14 deviations.
        """
        h2 = self.ratio**-2
        x2 = np.square(m / self.ratio)
        series = 1.0 + h2 * ((x2 - 1.0) / 24.0 + h2 * ((x2 - 6.0) * x2 + 3.0) / 1920.0)
        top = math.ldexp(1.0 / math.sqrt(2.0 * math.pi), 16 + self.low_bits) / self.ratio
        return np.asarray(top * np.exp(-0.5 * x2) * series)

    def fill(self, out: Numbers, bits: Bits) -> None:
        """Independent draws (whole numbers) in all of the one-dimensional ``out``, an array of :attr:`dtype`."""
        type_ = np.dtype(np.uint16 if self.low_bits <= 16 else np.uint32 if self.low_bits <= 32 else np.uint64)
        signed = np.dtype(np.int32) if self.dtype == np.int32 and type_ == np.uint32 else type_  # below 2^30: the same
        mask = type_.type((1 << self.low_bits) - 1)
        holes = []
        for start in range(0, out.size, BLOCK):
            part = out[start : start + BLOCK]
            chosen, fine = -(-part.size // 4), -(-part.size * type_.itemsize // 8)
            words = bits(chosen + fine)
            entries = words[:chosen].view(np.uint16)[: part.size]
            low = words[chosen:].view(type_)[: part.size]
            low &= mask
            self._starts.take(entries, out=part, mode="clip")
            part += low.view(signed)
            holes.append(np.flatnonzero(entries >= self.quick_entries) + start)
        if holes:
            where = np.concatenate(holes)
            out[where] = self.rest(where.size, bits)

    def rest(self, size: int, bits: Bits) -> Floats:
        """Independent draws from what the quick part leaves, P(m) − k_i · 2^-(16+b), in proportion."""
        found: list[Floats] = []
        missing = size
        while missing > 0:
            drawn = self.tries(round(1.1 * missing / self._accepted) + 16, bits)[:missing]
            found.append(drawn)
            missing -= drawn.size
        return np.concatenate(found) if found else np.empty(0)

    def tries(self, count: int, bits: Bits) -> Floats:
        """Those of ``count`` proposals that are accepted."""
        words = bits(3 * count)
        choice, fine, finer = words[:count], words[count : 2 * count], words[2 * count :]
        block = self._blocks[choice >> np.uint64(48)]
        m = self.first[block] + (choice & np.uint64((1 << self.low_bits) - 1))
        share = (finer * 2.0**-64 + fine) * 2.0**-64  # in [0, 1], 53 bits of it down to 2^-75
        accepted = np.flatnonzero(share * self.height[block] < self.scaled(m) - self.quick[block])
        return m[accepted]


@lru_cache(maxsize=8)
def table(ratio: float) -> RoundedNormal:
    """The tables, which take a third of a millisecond to make; public, like the ratio."""
    return RoundedNormal(ratio)
