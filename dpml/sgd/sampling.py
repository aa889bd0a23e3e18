"""Which records take part in a step: Poisson sampling and batches of fixed size, from secret coins.

Both draw from ``noise.uniform`` alone, whose values u are read as whole numbers ``floor(u · 2^k)``, k ≤ 53, uniform
from 0 to 2^k − 1.  Nothing here depends on what a record holds.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpml import errors
from dpml.mechanisms import NoiseSource

CHUNK = 1 << 14  # uniforms held at once
SMALL = 4096  # up to so many records every coin is a uniform of its own
_GRID = 2.0**53
_UNUSED = -(1 << 48)  # the two highest bytes of a word are no coins: 255, which is never below a threshold


def poisson_indices(noise: NoiseSource, n: int, sample_rate: float) -> NDArray[np.int64]:
    """Indices (int64, increasing) of the records that take part in one step.

    Each of the ``n`` records (the actual number, private) is in the batch with probability ``sample_rate``,
    independently of the others and of earlier steps, so the batch's size is random and may be 0.  This is the sampling
    that ``PoissonSampled`` events are accounted for; batches of fixed size or a shuffled epoch are not.

    A coin falls with probability ``sample_rate`` rounded **down** to a multiple of 2⁻⁵³ (of 2⁻⁶¹ where rates up to 1/4
    meet many records), never above it.  A smaller rate q' = t q is at least as private: the step's output is then the
    mixture (1 − t) P + t ((1 − q) P + q Q), and hockey-stick divergences to P are convex.

    Many records at a small rate cost n/6 uniforms: each gives six bytes, and a record is out at once where its byte is
    above the first eight bits of the rate, in where it is below; where the two are equal, a fresh uniform decides by
    the bits that follow.  These are n independent coins, no approximation; gaps drawn as geometric variables would be
    faster still at very small rates, but rounding makes their law a little wrong where the tail is long.

    Raises:
        ConfigError: ``sample_rate`` is no probability.
    """
    if n < 0:
        raise errors.invalid("n", n, ">= 0")
    if not 0.0 <= sample_rate <= 1.0:
        raise errors.invalid("sample_rate", sample_rate, "a probability in [0, 1]")
    if n > SMALL and sample_rate <= 0.25:
        return _two_stage_coins(noise, n, sample_rate)
    threshold = _down(sample_rate)  # a uniform is below 1, so a rate of 1 takes everyone
    parts = [
        np.flatnonzero(noise.uniform(min(CHUNK, n - start)) < threshold) + start for start in range(0, max(n, 1), CHUNK)
    ]
    return np.concatenate(parts).astype(np.int64)


def _down(probability: float) -> float:
    """The largest multiple of 2⁻⁵³ that is not above ``probability``; exact."""
    return math.floor(probability * _GRID) / _GRID


def _two_stage_coins(noise: NoiseSource, n: int, sample_rate: float) -> NDArray[np.int64]:
    first = math.floor(sample_rate * 256.0)  # at most 64
    rest = _down(sample_rate * 256.0 - first)  # the difference is exact
    parts = []
    for start in range(0, n, 6 * CHUNK):
        words = (noise.uniform(min(CHUNK, -(-(n - start) // 6))) * 2.0**48).astype("<i8") | _UNUSED
        octets = words.view(np.uint8)
        found = _true_positions(octets <= first)
        taken = octets[found] < first
        undecided = np.flatnonzero(~taken)
        taken[undecided] = noise.uniform(len(undecided)) < rest
        found = found[taken]
        parts.append(start + 6 * (found >> 3) + (found & 7))
    index = np.concatenate(parts).astype(np.int64, copy=False)
    return index[: np.searchsorted(index, n)]  # the last word may hold coins for which there is no record


def _true_positions(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """``flatnonzero`` of a mask of mostly False, a multiple of 8 long: whole words of eight are skipped."""
    eights = mask.view(np.int64)
    words = np.flatnonzero(eights != 0)
    inside = np.flatnonzero(eights[words].view(np.bool_))
    return 8 * words[inside >> 3] + (inside & 7)


def fixed_size_indices(noise: NoiseSource, n: int, size: int) -> NDArray[np.int64]:
    """``size`` different indices (int64, increasing) below ``n``; every subset of that size is equally likely.

    For the accounting of batches of fixed size without replacement, in which the number of records is public
    (``replace_one``): a record that cannot be used must still be counted in ``n`` and contribute zero.

    The first ``size`` different values of a sequence of independent uniform whole numbers form a uniform subset; of
    more than half the records, the complement is drawn.  About 1.4 uniforms for each index at most.

    Raises:
        ConfigError: there are fewer records than ``size`` (the message does not tell how many there are).
    """
    if n < 0:
        raise errors.invalid("n", n, ">= 0")
    if not 0 <= size <= n:
        raise errors.invalid("size", size, "from 0 to the number of records")
    if 2 * size <= n:
        return np.sort(_distinct(noise, n, size))
    left = np.ones(n, dtype=bool)
    left[_distinct(noise, n, n - size)] = False
    return np.flatnonzero(left).astype(np.int64)


def _distinct(noise: NoiseSource, n: int, size: int) -> NDArray[np.int64]:
    """The first ``size`` different values, in order of appearance, of independent whole numbers below ``n``."""
    found = np.zeros(0, dtype=np.int64)
    while len(found) < size:
        drawn = np.concatenate([found, _whole_numbers(noise, n, size - len(found))])
        found = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
    return found


def _whole_numbers(noise: NoiseSource, n: int, count: int) -> NDArray[np.int64]:
    """At most ``count`` independent uniform whole numbers below ``n``; a draw that would favour some is left out."""
    drawn = (noise.uniform(count) * _GRID).astype(np.int64)
    return drawn[drawn < 2**53 - 2**53 % n] % n
