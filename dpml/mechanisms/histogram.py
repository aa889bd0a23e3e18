"""Counts of categories that nobody knows beforehand: noisy counts, and only keys whose noisy count is large enough.

A key that only one record has would tell, by being listed, that the record is there.  So a key is listed only if its
noisy count reaches a threshold, and the probability that a key of count 1 does (the mass of the noise *at* and above
the threshold − 1) is in δ (Korolova, Kenthapadi, Mishra & Ntoulas 2009; Bun, Nissim & Stemmer 2016, section 3).
The noise is discrete and sampled exactly, so δ is exact.  Proof: docs/mechanisms.md, section 6.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import special

from dpml import errors
from dpml.accounting.checks import check_count, check_number
from dpml.accounting.events import MAX_SCALE, ZCDP, Composed, EpsilonDelta, Event
from dpml.mechanisms.answers import Answer, check_beta, check_noise
from dpml.mechanisms.discrete import DiscreteGaussianMechanism, DiscreteLaplaceMechanism
from dpml.mechanisms.noise import NoiseSource

MOST_CHANGES = 10**6
_LARGEST_SUMMED_STD = 1e5  # up to here tails of the discrete Gaussian are summed, beyond they are bounded


@dataclass(frozen=True)
class ThresholdedHistogram:
    """Noisy counts of the keys that occur, those with a noisy count >= ``threshold`` only.

    Args:
        delta: of the keys that only one record has, in (0, 1); the threshold is the smallest whole number within it.
        epsilon: discrete Laplace noise of scale changes/ε: (ε, δ)-DP; or
        rho: discrete Gaussian noise of σ = √(changes/(2ρ)): ρ-zCDP composed with (0, δ).  Exactly one of the two.
        changes: the most counts that neighbouring data sets differ in, each by one: with at most m different keys per
            record (see :func:`bounded_counts`) it is m under add_remove and 2m under replace_one.  1 to 10^6.

    Raises:
        ConfigError: none or both of ε and ρ, or an argument out of range.
    """

    delta: float
    epsilon: float | None = None
    rho: float | None = None
    changes: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", check_number("delta", self.delta, 0.0, 1.0, above=True, below=True))
        changes = check_count("changes", self.changes, 1)
        if changes > MOST_CHANGES:
            raise errors.invalid("changes", changes, "at most 10^6", "Bound the keys of one record: bounded_counts().")
        object.__setattr__(self, "changes", changes)
        if (self.epsilon is None) == (self.rho is None):
            raise errors.ConfigError("give exactly one of epsilon (discrete Laplace) and rho (discrete Gaussian).")
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", check_number("epsilon", self.epsilon, 0.0, MAX_SCALE, above=True))
        else:
            object.__setattr__(self, "rho", check_number("rho", self.rho, 0.0, MAX_SCALE, above=True))
        _ = self.threshold  # found now: a noise out of range is refused here

    @cached_property
    def counts(self) -> DiscreteLaplaceMechanism | DiscreteGaussianMechanism:
        """The mechanism of one count (its sensitivity is that of all counts together)."""
        if self.epsilon is not None:
            return DiscreteLaplaceMechanism(self.changes, self.epsilon)
        return DiscreteGaussianMechanism(math.sqrt(self.changes) * (1 + 2.0**-50), rho=self.rho)

    @cached_property
    def threshold(self) -> int:
        """The smallest whole number >= 2 whose ``delta_at`` is within ``delta``; a key is listed from there on."""
        high = 2
        while self.delta_at(high) > self.delta:
            high *= 2
        low = max(high // 2, 1)  # 1, or not enough
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.delta_at(middle) <= self.delta else (middle, high)
        return high

    def delta_at(self, threshold: int) -> float:
        """The probability that any of ``changes`` keys with count 1 reaches ``threshold``: 1 − (1 − q)^changes.

        q = P(1 + Z >= threshold), the mass at the threshold included.
        """
        q = _upper_tail(self.counts, check_count("threshold", threshold, 1) - 1)
        return min(1.0, -math.expm1(self.changes * math.log1p(-q)) * (1 + 2.0**-40))

    @property
    def event(self) -> Event:
        """(ε, δ), or ρ-zCDP with (0, δ), under the relation that ``changes`` is for; δ is that of the threshold."""
        spent = self.delta_at(self.threshold)
        if self.epsilon is not None:
            return EpsilonDelta(self.epsilon, spent)
        return Composed((ZCDP(float(self.rho or 0.0)), EpsilonDelta(0.0, spent)))

    def error(self, beta: float = 0.05) -> int:
        """For any one key that is listed or has count 0: P(|noisy − true count| > error) <= ``beta``.

        A key with a count of at least threshold + error is listed with probability >= 1 − ``beta``; a key that is not
        listed may have any count up to there.
        """
        return self.counts.error(check_beta(beta))

    def interval(self, value: Mapping[Hashable, int], beta: float = 0.05) -> dict[Hashable, tuple[int, int]]:
        """(low, high) for every listed key, each of which alone fails with probability <= ``beta`` before selection."""
        error = self.error(beta)
        return {key: (max(count - error, 0), count + error) for key, count in value.items()}

    def release(self, value: Mapping[Hashable, int], noise: NoiseSource | None = None) -> Answer:
        """A dict of the listed keys and their noisy counts, ordered by key (an order of the data would tell).

        Args:
            value: counts of the keys that occur, such as :func:`bounded_counts` gives; keys of count 0 are not listed.

        Charging ``event`` is the caller's business, and comes first.

        Raises:
            DataError: ``value`` is no mapping to whole numbers >= 0.
            ConfigError: ``noise`` is no noise source.
        """
        source = check_noise(noise)
        pairs = _checked_counts(value)
        if not pairs:
            return Answer({}, self)
        noisy = self._noisy(np.array([count for _, count in pairs], dtype=np.int64), source)
        listed = [(key, int(count)) for (key, _), count in zip(pairs, noisy, strict=True) if count >= self.threshold]
        return Answer(dict(sorted(listed, key=lambda pair: _order(pair[0]))), self)

    def _noisy(self, counts: Any, source: NoiseSource) -> Any:
        from dpml.mechanisms import exact

        if isinstance(self.counts, DiscreteLaplaceMechanism):
            return counts + exact.discrete_laplace(self.counts.exact_scale, counts.size, source)
        return counts + exact.discrete_gaussian(self.counts.std, counts.size, source)


def bounded_counts(records: Iterable[Iterable[Hashable]], max_keys: int) -> dict[Hashable, int]:
    """In how many records each key occurs, of each record only its first ``max_keys`` different keys.

    So one record changes at most ``max_keys`` counts, by one each.  Keys are texts, bytes, numbers, truth values, and
    tuples of them; 1, 1.0, ``True`` and NumPy's 1 are one key, which is returned as ``1`` whichever occurs first.  A
    key of another type, NaN or None is left out; a record that is no collection is its own only key.  The dict is not
    private.

    Texts are keys as they are: ``"1"`` and 1 are two keys.  A CSV reader that guesses keeps all cells of a column as
    texts where one record holds what is no number, and then this record changes all keys: tell it which
    (``pandas.read_csv(…, dtype={"town": str})``).
    """
    most = check_count("max_keys", max_keys, 1)
    counts: dict[Hashable, int] = {}
    for record in records:
        kept: list[Hashable] = []
        for item in _keys_of(record):
            if len(kept) == most:
                break
            key = _plain_key(item)
            if key is not None and key not in kept:
                kept.append(key)
        for key in kept:
            counts[key] = counts.get(key, 0) + 1
    return counts


def _keys_of(record: Any) -> Iterable[Any]:
    return (record,) if isinstance(record, str | bytes) or not isinstance(record, Iterable) else record


def _plain_key(key: Any) -> Hashable | None:
    """One form for all keys that are equal; None for what is no key."""
    if isinstance(key, np.generic):
        key = key.item()
    if type(key) is tuple:
        parts = tuple(_plain_key(part) for part in key)
        return None if any(part is None for part in parts) else parts
    if isinstance(key, str):
        return str(key)
    if isinstance(key, bytes):
        return bytes(key)
    if isinstance(key, bool | int):
        return int(key)
    if isinstance(key, float) and key == key:
        return int(key) if key.is_integer() else float(key)
    return None


def _checked_counts(value: object) -> list[tuple[Hashable, int]]:
    if not isinstance(value, Mapping):
        raise errors.DataError("value is not allowed: it must be a mapping from keys to counts (bounded_counts()).")
    found: dict[Hashable, int] = {}
    for given, count in value.items():
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 0 <= count <= 1 << 60:
            raise errors.DataError("value holds something that is no count: counts are whole numbers from 0 to 2^60.")
        key = given if (plain := _plain_key(given)) is None else plain
        if count > 0:
            found[key] = found.get(key, 0) + int(count)
    return list(found.items())


def _order(key: Hashable) -> tuple[str, str]:
    return type(key).__name__, repr(key)


def _upper_tail(counts: DiscreteLaplaceMechanism | DiscreteGaussianMechanism, least: int) -> float:
    """P(Z >= least), least >= 0, from above but for the last bits of a double."""
    if isinstance(counts, DiscreteLaplaceMechanism):
        return math.exp(-least / counts.scale) / (1 + math.exp(-1 / counts.scale))
    std = counts.std
    if std > _LARGEST_SUMMED_STD:  # Canonne, Kamath & Steinke 2020, proposition 25
        return float(special.ndtr(-(max(least, 1) - 1) / std))
    reach = math.ceil(40 * std) + 2
    total = 1 + 2 * float(np.exp(-0.5 * (np.arange(1, reach) / std) ** 2).sum())
    tail = np.exp(-0.5 * (np.arange(least, least + reach) / std) ** 2)
    return float(tail.sum()) / total
