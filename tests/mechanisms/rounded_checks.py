"""Checks of the sampler of rounded normal numbers, also on planted bugs.  Each raises AssertionError if it fails."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate

import mpmath
import numpy as np
from scipy import stats

from dpml.mechanisms import Prefetch, SecretNoise, noise, rounded, streams

FALSE_ALARM = 1e-7
WIDE = 2.0**46  # standard deviation in steps: 10^5 draws are all different but for a chance of 2e-5 / 1000


def ideal(ratio: float, m: np.ndarray) -> list[mpmath.mpf]:
    """P(rint(N(0, ratio²)) = m) to 40 digits, from the smaller tail."""
    with mpmath.workdps(60):
        root = mpmath.mpf(ratio) * mpmath.sqrt(2)
        low = [mpmath.erfc((abs(mpmath.mpf(int(k))) - 0.5) / root) for k in m]
        high = [mpmath.erfc((abs(mpmath.mpf(int(k))) + 0.5) / root) for k in m]
        return [(a - b) / 2 for a, b in zip(low, high, strict=True)]


def law(table: rounded.RoundedNormal) -> tuple[np.ndarray, list[mpmath.mpf]]:
    """(m, probability) of every number that the sampler can draw, from its tables, in exact arithmetic.

    The acceptance of a try is taken as min(1, (P − k)/height) of the double-precision P that the sampler computes.
    """
    width = 1 << table.low_bits
    m = (table.first[:, None] + np.arange(width)).ravel()
    block = np.repeat(np.arange(table.first.size), width)
    left = table.scaled(m) - table.quick[block]
    with mpmath.workdps(40):
        tries = [
            mpmath.mpf(int(table.tried[i])) * min(mpmath.mpf(1), max(mpmath.mpf(0), mpmath.mpf(x) / table.height[i]))
            for i, x in zip(block.tolist(), left.tolist(), strict=True)
        ]
        unit, whole = mpmath.mpf(2) ** -(16 + table.low_bits), mpmath.fsum(tries)
        rest = 1 - mpmath.mpf(int(table.quick.sum())) / rounded.ENTRIES
        quick = [int(table.quick[i]) * unit for i in block.tolist()]
        return m, [q + rest * t / whole for q, t in zip(quick, tries, strict=True)]


def the_law_is_the_ideal_one(ratio: float = 256.0) -> None:
    """√χ² of all numbers together <= 4 · 2^-52 (docs/proofs-floats.md proves 64), each within 6 deviations to 64."""
    table = rounded.RoundedNormal(ratio)
    m, drawn = law(table)
    wanted = ideal(ratio, m)
    with mpmath.workdps(40):
        assert abs(mpmath.fsum(drawn) - 1) < mpmath.mpf(10) ** -35
        square = mpmath.fsum((a - g) ** 2 / g for a, g in zip(drawn, wanted, strict=True))
        assert mpmath.sqrt(square) <= 4 * mpmath.mpf(2) ** -52
        near = [(a / g - 1) for k, a, g in zip(m, drawn, wanted, strict=True) if abs(k) <= 6 * ratio]
        assert max(abs(x) for x in near) <= 64 * mpmath.mpf(2) ** -52


def the_tables_leave_nothing_out(ratio: float) -> None:
    """k <= P <= k + height at both ends of each block (P is monotonic in it), and the entries are used up."""
    table = rounded.RoundedNormal(ratio)
    width = 1 << table.low_bits
    assert width / ratio <= 2.0**-rounded.FINENESS
    assert -table.first[0] >= rounded.WIDEST * ratio
    assert table.first[-1] + width >= rounded.WIDEST * ratio
    assert (np.diff(table.first) == width).all()
    assert table.tried.sum() == rounded.ENTRIES
    assert (table.tried >= 1).all()
    assert 0 < table.quick.sum() == table.quick_entries < rounded.ENTRIES
    for end in (table.first, table.first + (width - 1)):
        exact = np.array([float(x * 2 ** (16 + table.low_bits)) for x in ideal(ratio, end)])
        assert (table.quick <= exact).all()
        assert (exact * (1 + 2.0**-45) <= table.quick + table.height).all()
    assert 1 - table.quick_entries / rounded.ENTRIES < 0.02  # the rest is slow


class Listed:
    """Bits of a list for the quick part: every entry with every low part; random ones for the rest."""

    def __init__(self, low_bits: int) -> None:
        self.low_bits, self.at = low_bits, 0
        self.rng = np.random.default_rng(0)

    def __call__(self, count: int) -> np.ndarray:
        if count != rounded.BLOCK // 2:  # entries and low parts of one block, 16 bits each
            return self.rng.integers(0, 2**64, count, dtype=np.uint64)
        j = np.arange(self.at, self.at + rounded.BLOCK)
        self.at += rounded.BLOCK
        entry, low = j >> self.low_bits, j & ((1 << self.low_bits) - 1)
        low |= self.rng.integers(0, 1 << (16 - self.low_bits), j.size) << self.low_bits  # bits that must not matter
        return np.concatenate([entry.astype(np.uint16), low.astype(np.uint16)]).view(np.uint64)


def every_entry_and_low_part_counts_once() -> None:
    """Ratio 256: all 2^18 combinations of 16 bits and 2 more.  Each number m of block i is drawn k_i times.  Exact."""
    table = rounded.RoundedNormal(256.0)
    out = np.full(rounded.ENTRIES << table.low_bits, UNWRITTEN, np.int32)
    table.fill(out, Listed(table.low_bits))
    quick = out[: table.quick_entries << table.low_bits]
    first = int(table.first[0])
    counts = np.bincount((quick - first).astype(np.int64), minlength=table.first.size << table.low_bits)
    assert (counts == np.repeat(table.quick, 1 << table.low_bits)).all()
    assert (out != UNWRITTEN).all()


def the_rest_has_its_law() -> None:
    """χ² of 300,000 draws of the rest at ratio 256 against P − k; false alarm 1e-7."""
    table = rounded.RoundedNormal(256.0)
    m = (table.first[:, None] + np.arange(1 << table.low_bits)).ravel()
    left = np.array([float(x * 2 ** (16 + table.low_bits)) for x in ideal(256.0, m)])
    left -= np.repeat(table.quick, 1 << table.low_bits)
    stream = np.random.default_rng(np.random.SeedSequence(2))
    drawn = table.rest(300_000, lambda n: stream.integers(0, 2**64, n, dtype=np.uint64))
    assert drawn.size == 300_000
    counts = np.bincount((drawn - m[0]).astype(np.int64), minlength=m.size)
    _fits(counts, left / left.sum())


def draws_have_the_ideal_law(source: object = None, ratio: float = 256.0, size: int = 400_000) -> None:
    """χ² of draws of a secret source against P, by one large and many short requests; false alarm 1e-7 each."""
    source = source or SecretNoise(threads=3)
    reach = int(8 * ratio)
    chance = np.array([float(x) for x in ideal(ratio, np.arange(-reach, reach + 1))])
    short = [noise.rounded_normal(source, ratio, 1.0, 1000) for _ in range(size // 1000)]
    for drawn in (noise.rounded_normal(source, ratio, 1.0, size), np.concatenate(short)):
        assert drawn.dtype == np.int32
        counts = np.bincount((drawn + reach).astype(np.int64), minlength=2 * reach + 1)
        _fits(counts, chance)


def wide_draws_are_normal_down_to_the_last_bit(ratio: float) -> None:
    """400,000 draws: Kolmogorov-Smirnov, the variance, the last 8 bits and neighbours' correlation; 1e-7 each."""
    drawn = SecretNoise(threads=3).rounded(ratio, 1.0, 400_000)
    assert (drawn == np.rint(drawn)).all()
    assert stats.kstest(drawn / ratio, "norm").pvalue > FALSE_ALARM
    variance = float(np.square(drawn / ratio).sum())
    assert FALSE_ALARM / 2 < stats.chi2.cdf(variance, drawn.size) < 1 - FALSE_ALARM / 2
    last = np.bincount(np.remainder(drawn, 256.0).astype(np.int64), minlength=256)
    assert stats.chisquare(last).pvalue > FALSE_ALARM
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 5.4 / np.sqrt(drawn.size)
    coarse, fine = np.floor(drawn / ratio * 4), np.remainder(drawn, 8.0)  # the block and the place in it
    central = np.abs(coarse) <= 4
    table = np.histogram2d(coarse[central], fine[central], bins=(9, 8))[0]
    assert stats.chi2_contingency(table[table.sum(1) > 0]).pvalue > FALSE_ALARM


UNWRITTEN = -(2**31) + 1
LOW_BITS = {  # b: a ratio that has it; draws are int32 up to 2^26.19 = 2^30/14 or so
    2: 256.0, 16: 2.0**22 * 1.99, 17: 2.0**23, 20: 2.0**26, 21: 2.0**27, 32: 2.0**38, 33: 2.0**39, 41: 2.0**47,
}  # fmt: skip
SIZES = (1, 2, 3, 5, 7, 1001, rounded.BLOCK + 3)


def twin(table: rounded.RoundedNormal, size: int, words: list[np.ndarray]) -> list[int]:
    """What ``fill`` is to draw from these words, the answers to its requests: Python's whole numbers, 50 digits of P.

    A block's words hold 16 bits for each of its draws, then 16, 32 or 64 for each (b of them count).  Whatever is left
    is drawn from threes of words, in order: block and place, then the 128 bits of the acceptance.
    """
    b, first = table.low_bits, [int(m) for m in table.first]
    width = 2 if b <= 16 else 4 if b <= 32 else 8
    quick, tried = list(accumulate(table.quick.tolist())), list(accumulate(table.tried.tolist()))
    starts = range(0, size, rounded.BLOCK)
    drawn: list[int | None] = []
    for start, block in zip(starts, words, strict=False):
        raw, count = block.astype("<u8").tobytes(), min(rounded.BLOCK, size - start)
        fine = 8 * math.ceil(count / 4)
        for j in range(count):
            entry = int.from_bytes(raw[2 * j : 2 * j + 2], "little")
            low = int.from_bytes(raw[fine + width * j : fine + width * (j + 1)], "little") % (1 << b)
            drawn.append(None if entry >= quick[-1] else first[bisect_right(quick, entry)] + low)
    rest: list[int] = []
    missing = drawn.count(None)
    for block in words[len(starts) :]:
        wanted = missing - len(rest)
        found = []
        for choice, fine, finer in block.reshape(3, -1).T.tolist():
            i = bisect_right(tried, choice >> 48)
            m = first[i] + choice % (1 << b)
            with mpmath.workdps(50):
                left = ideal(table.ratio, np.array([m]))[0] * 2 ** (16 + b) - int(table.quick[i])
                if mpmath.mpf((fine << 64) + finer) / mpmath.mpf(2) ** 128 * mpmath.mpf(table.height[i]) < left:
                    found.append(m)
            if len(found) == wanted:
                break
        rest += found
    assert len(rest) == missing
    return [rest.pop(0) if m is None else m for m in drawn]


def every_draw_is_that_of_the_twin(low_bits: int, sizes: tuple[int, ...] = SIZES) -> None:
    """All draws of :meth:`fill`, from the words that it asked for.  Exact."""
    table = rounded.RoundedNormal(LOW_BITS[low_bits])
    assert table.low_bits == low_bits
    for size in sizes:
        stream, words = np.random.default_rng(size), []

        def bits(count: int, stream=stream, words=words) -> np.ndarray:
            words.append(stream.integers(0, 2**64, count, dtype=np.uint64))
            return words[-1].copy()

        assert table.dtype == (np.int32 if low_bits <= 20 else np.float64)
        out = np.full(size, UNWRITTEN, table.dtype)
        table.fill(out, bits)
        assert [int(m) for m in out.tolist()] == twin(table, size, words)


def kept_numbers_are_of_the_deviation_asked_for() -> None:
    """Short requests of changing deviations, of one twice so that some are kept: 1,000 each, of that size (9 sd)."""
    source = SecretNoise(threads=1)
    for ratio in (2.0**46, 2.0**46, 300.0, 2.0**46, 300.0, 300.0, 2.0**20, 300.0, 2.0**20, 2.0**20, 2.0**46):
        assert 0.8 < source.rounded(ratio, 1.0, 1000).std() / ratio < 1.2


def vectors_in_advance_are_of_the_spacing_asked_for() -> None:
    """One deviation and size, changing spacings: 4,096 each, of that many steps (9 sd)."""
    with Prefetch(SecretNoise(threads=1)) as ahead:
        for spacing in (2.0**-10, 2.0**-10, 2.0**-20, 2.0**-10, 2.0**-20, 2.0**-20):
            drawn = ahead.rounded(1.0, spacing, streams.SMALL)
            assert 0.9 < drawn.std() * spacing < 1.1


def no_draw_is_served_twice() -> None:
    """Short and long requests, the same and changing deviations, in advance or not: 1e5 numbers, all different."""
    n = streams.SMALL
    source = SecretNoise(threads=3)
    served = [source.rounded(WIDE, 1.0, size) for size in [5, 1000, 1000, 3000, n - 1, 1000, 3 * n, 1000] * 3]
    for std in (WIDE, WIDE * 1.5, WIDE, WIDE * 1.5, WIDE, WIDE):
        served.append(source.rounded(std, 1.0, 500))
    with Prefetch(source) as ahead:
        for size in [n, n, 10, n, 10, 2 * n, 2 * n]:
            served.append(ahead.rounded(WIDE, 1.0, size))
    values = np.concatenate(served)
    assert np.unique(values).size == values.size
    assert not any(np.shares_memory(a, b) for k, a in enumerate(served) for b in served[:k])


def _fits(counts: np.ndarray, chance: np.ndarray) -> None:
    """χ² of counts whose neighbours are put together until 5 are expected, and of what lies beyond."""
    expected = chance * counts.sum()
    cells = np.minimum(np.cumsum(expected) // 5.0, max(float(expected.sum()) // 5.0 - 1, 0)).astype(np.int64)
    seen = np.bincount(cells, counts)
    wanted = np.bincount(cells, expected)
    keep = wanted > 0
    wanted = wanted[keep] * counts.sum() / wanted.sum()
    assert stats.chisquare(seen[keep], wanted).pvalue > FALSE_ALARM
