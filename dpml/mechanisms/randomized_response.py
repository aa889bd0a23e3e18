"""Randomized response: every record reports a category, the true one or a uniform one, before anybody collects it.

Local: the reports are private one by one, whoever holds them, and who reports is public.  So the guarantee is for one
record that *changes* (``replace_one``).  Shares of categories are estimated without bias from the reports.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml import errors
from dpml.accounting.checks import check_count, check_list, check_number, check_relation, shown
from dpml.accounting.events import Event, RandomizedResponse
from dpml.mechanisms import exact
from dpml.mechanisms.answers import Answer, check_beta, check_noise
from dpml.mechanisms.noise import NoiseSource

COIN = 1 << 53  # the probability of a uniform answer is a multiple of 1/COIN, so that its coin is exact
MIN_EPSILON = 1e-9  # below, a coin of 53 bits tells lies from truths too coarsely
MAX_EPSILON = 30.0  # beyond, a uniform answer has less than 2^-43 and its coin little precision


@dataclass(frozen=True)
class RandomizedResponseMechanism:
    """Each of ``records`` values is replaced by a uniform category with probability p, else kept (Warner 1965).

    With k categories the true one is reported with probability 1 − p + p/k, any other with p/k, and
    ε = ln((1 − p + p/k)/(p/k)), that is p = k/(e^ε + k − 1) (Kairouz, Bonawitz & Ramage 2016, equation 3).
    For k = 2 the bias γ of the true answer's probability ½ + γ is (1 − p)/2 = ½ tanh(ε/2).

    Args:
        epsilon: ε from 1e-9 to 30; or
        gamma: γ, for two categories, with an ε in that range.  Exactly one of the two.
        categories: the public list of what can be reported, 2 to 2^20 different values.
        records: how many values one release holds (public), 1 to 2^26.

    Raises:
        ConfigError: none or both of ε and γ, γ with more than two categories, duplicate categories, out of range.
    """

    epsilon: float | None = None
    gamma: float | None = None
    categories: Sequence[Hashable] = (0, 1)
    records: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", check_categories(self.categories))
        records = check_count("records", self.records, 1)
        if records > 1 << 26:
            raise errors.invalid("records", records, "an integer >= 1 and <= 2^26", "Release in several parts.")
        object.__setattr__(self, "records", records)
        if (self.epsilon is None) == (self.gamma is None):
            raise errors.ConfigError("give exactly one of epsilon and gamma.")
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", check_number("epsilon", self.epsilon, MIN_EPSILON, MAX_EPSILON))
            return
        if len(self.categories) != 2:
            raise errors.invalid("gamma", self.gamma, "None with more than two categories", "Give epsilon.")
        least, most = randomized_response_gamma(MIN_EPSILON), randomized_response_gamma(MAX_EPSILON)
        gamma = check_number("gamma", self.gamma, least, most)
        object.__setattr__(self, "gamma", gamma)

    @cached_property
    def uniform_coin(self) -> int:
        """p · 2^53 as a whole number, rounded up: more uniform answers, less ε."""
        k = len(self.categories)
        p = 1 - 2 * self.gamma if self.gamma is not None else k / (math.expm1(float(self.epsilon or 0.0)) + k)
        coin = min(COIN, math.ceil(p * COIN))
        while self.epsilon is not None and RandomizedResponse(coin / COIN, k).epsilon > self.epsilon and coin < COIN:
            coin += 1
        return coin

    @property
    def uniform_probability(self) -> float:
        """p: how often the answer is drawn from all categories (the true one among them)."""
        return self.uniform_coin / COIN

    @property
    def event(self) -> Event:
        """One report per record: a guarantee under ``replace_one`` only, whatever the number of records."""
        return RandomizedResponse(self.uniform_probability, len(self.categories))

    def event_under(self, neighboring_relation: str) -> Event:
        """The same event; accountants refuse it under add_remove."""
        check_relation(neighboring_relation)
        return self.event

    def release(self, value: Any, noise: NoiseSource | None = None) -> Answer:
        """The reports: a list of ``records`` categories, in the order of the values.

        Args:
            value: a sequence of ``records`` categories (one category for records = 1 is a sequence of one, too).

        A value outside the categories is reported as if it were uniform, so that it is neither an error nor visible;
        estimates count such records as if they were spread evenly over the categories.

        Raises:
            DataError: another number of values.
            ConfigError: ``noise`` is no noise source.
        """
        source, codes = check_noise(noise), self._codes(value)
        k = len(self.categories)
        random = exact.below(k, codes.size, source)
        lie = exact.below(COIN, codes.size, source) < self.uniform_coin
        reported = np.where(lie | (codes < 0), random, codes)
        return Answer([self.categories[code] for code in reported], self)

    def _codes(self, value: Any) -> NDArray[np.int64]:
        places = {category: place for place, category in enumerate(self.categories)}
        if isinstance(value, str | bytes) or not hasattr(value, "__iter__") or getattr(value, "ndim", 1) != 1:
            raise errors.DataError("value is not allowed: it must be a one-dimensional sequence of categories.")
        listed = value.tolist() if isinstance(value, np.ndarray) else list(value)
        if len(listed) != self.records:
            raise errors.DataError(f"value has {len(listed)} entries, but the mechanism has records = {self.records}.")
        return np.array([_place(places, item) for item in listed], dtype=np.int64)

    def estimate(self, reports: Any) -> NDArray[np.float64]:
        """Unbiased estimates of the true shares of the categories, in their order: (k,) float64, not clipped to [0, 1].

        (share of reports − p/k)/(1 − p).  Clipping would bias it.
        """
        k, p = len(self.categories), self.uniform_probability
        codes = self._codes(reports)
        if (codes < 0).any():
            raise errors.DataError("reports hold something that is no category: give what release() returned.")
        counts = np.bincount(codes, minlength=k)
        return (counts / self.records - p / k) / (1 - p)

    def variance(self, share: float) -> float:
        """Variance of the estimated share of a category whose true share is ``share``; the data are fixed."""
        true = check_number("share", share, 0.0, 1.0)
        other = self.uniform_probability / len(self.categories)
        keep = 1 - self.uniform_probability + other
        spread = true * keep * (1 - keep) + (1 - true) * other * (1 - other)
        return spread / (self.records * (1 - self.uniform_probability) ** 2)

    def sample_size(self, alpha: float, beta: float = 0.05) -> int:
        """The smallest number of records with which ``error(beta)`` is at most ``alpha`` > 0, to within one."""
        alpha = check_number("alpha", alpha, 0.0, above=True)
        return math.ceil(self.records * (self.error(beta) / alpha) ** 2)

    def error(self, beta: float = 0.05) -> float:
        """P(largest |estimated − true share of these records| > error) <= ``beta``, for any values in the categories.

        Hoeffding's inequality on each report's indicator: √(ln(2m/β)/(2n))/(1 − p), with m = 1 for two categories
        (their errors are the same but for the sign), else m = k.
        """
        k = len(self.categories)
        bound = math.log(2 * (1 if k == 2 else k) / check_beta(beta)) / (2 * self.records)
        return math.sqrt(bound) / (1 - self.uniform_probability)

    def interval(self, value: Any, beta: float = 0.05) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(low, high) for the true shares of all categories together, from the reports ``value``; within [0, 1]."""
        middle, error = self.estimate(value), self.error(beta)
        return np.clip(middle - error, 0.0, 1.0), np.clip(middle + error, 0.0, 1.0)


def _place(places: dict[Hashable, int], item: object) -> int:
    try:
        return places.get(item, -1)
    except TypeError:  # not hashable: no category
        return -1


def check_categories(categories: object) -> tuple[Hashable, ...]:
    """Two or more different categories as a tuple, else :class:`~dpml.errors.ConfigError`."""
    listed = check_list("categories", categories, "a sequence of at least 2 different values")
    try:
        different = len(set(listed))
    except TypeError:
        raise errors.invalid("categories", shown(categories), "hashable values (text, numbers)") from None
    if different < 2 or different != len(listed) or different > 1 << 20:
        raise errors.invalid(
            "categories", shown(categories), "2 to 2^20 different values", "Drop the duplicates: each is listed once."
        )
    if any(item != item for item in listed):
        raise errors.invalid("categories", shown(categories), "values that equal themselves (no NaN)")
    return tuple(listed)


# ------------------------------------------------------------------------------------------------- closed forms
# Binary, with bias γ in (0, 1/2): the truth with probability 1/2 + γ.  The data are fixed, the coins random.


def randomized_response_epsilon(gamma: float) -> float:
    """ε = ln((½ + γ)/(½ − γ)) = 2 artanh(2γ)."""
    return 2 * math.atanh(2 * _gamma(gamma))


def randomized_response_gamma(epsilon: float) -> float:
    """γ = ½ tanh(ε/2), ε > 0."""
    return math.tanh(check_number("epsilon", epsilon, 0.0, above=True) / 2) / 2


def randomized_response_raw_mean(gamma: float, fraction: float) -> float:
    """E[share of yes among the reports] = ½ − γ + 2γ · (true share): biased as an estimate of the true share."""
    return 0.5 - _gamma(gamma) + 2 * gamma * check_number("fraction", fraction, 0.0, 1.0)


def randomized_response_estimate(gamma: float, reported: ArrayLike) -> NDArray[np.float64]:
    """The unbiased estimate (ȳ − (½ − γ))/(2γ) of the true share, from the share ȳ of yes among the reports."""
    return np.asarray((np.asarray(reported, dtype=np.float64) - (0.5 - _gamma(gamma))) / (2 * gamma))


def randomized_response_variance(gamma: float, records: int) -> float:
    """Variance (¼ − γ²)/(4γ² n) of the unbiased estimate; it does not depend on the data."""
    return (0.25 - _gamma(gamma) ** 2) / (4 * gamma**2 * check_count("records", records, 1))


def randomized_response_radius(gamma: float, records: int, beta: float = 0.25) -> float:
    """Chebyshev: the estimate is off by at least √(variance/β) with probability <= β; 2 standard deviations at ¼."""
    return math.sqrt(randomized_response_variance(gamma, records) / check_beta(beta))


def sample_size_randomized_response(gamma: float, alpha: float) -> float:
    """n = 1/(γ² α²) of the course notes, a real number: off by less than α with probability at least 15/16."""
    gamma = check_number("gamma", gamma, 0.0, 0.5, above=True)  # ½: everybody tells the truth
    return 1 / (gamma * check_number("alpha", alpha, 0.0, above=True)) ** 2


def _gamma(gamma: float) -> float:
    return check_number("gamma", gamma, 0.0, 0.5, above=True, below=True)
