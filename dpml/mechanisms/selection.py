"""Choosing one of K candidates by a private score: what all selection mechanisms share, and the exponential mechanism.

Each of them is a race: every score gets independent noise, the largest wins, and only its index leaves.  Let the score
of candidate r change by d_r between two neighbouring data sets, and let the *range* of a score be the largest possible
max_r d_r − min_r d_r.  Given the noise of the others, r wins when its own noise passes a level t; on the neighbour that
level is at most one range away.  Noise whose ln P(Z > t) changes by at most 1/b per unit of t (Laplace, exponential and
Gumbel noise of scale b do) therefore gives an ε-DP choice at b = range/ε.  Two cases have a known range:

* scores of sensitivity Δ (|d_r| <= Δ): range 2Δ, the factor e^{ε·u/(2Δ)} of the exponential mechanism;
* ``monotonic`` scores, which all move the same way between two neighbours (d_r ∈ [0, Δ] for all r or d_r ∈ [−Δ, 0]
  for all r): range Δ, the factor e^{ε·u/Δ}.  Counts of disjoint or overlapping sets are monotonic under add_remove.
  Under replace_one they are not: one count falls while another rises.

The two must not be mixed: e^{ε·u/Δ} on scores that are not monotonic costs 2ε.  ``for_counts`` picks by relation.

The index is drawn in exact arithmetic (:mod:`dpml.mechanisms.races`), so its probabilities are the theorem's: no score
underflows, no tail is cut, and low bits of floating-point noise, which never leaves, tell nothing.  What remains is the
score itself: its sensitivity must hold for the floats that are handed in, rounding included.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml import errors
from dpml.accounting.checks import ADD_REMOVE, check_count, check_list, check_number, check_relation, shown
from dpml.accounting.events import MAX_SCALE, Event
from dpml.accounting.events import ExponentialMechanism as ExponentialEvent
from dpml.mechanisms import races
from dpml.mechanisms.answers import Answer, check_beta, check_noise, finite_values
from dpml.mechanisms.noise import NoiseSource

SMALLEST, LARGEST = 1e-100, 1e100  # of sensitivities, weights and ε/sensitivity: their products stay normal numbers
Floats = NDArray[np.float64]


def score_range(sensitivity: float, monotonic: bool) -> Fraction:
    """The range of the scores (see the module): 2Δ, or Δ for monotonic scores; exact."""
    return Fraction(float(sensitivity)) * (1 if monotonic else 2)


def check_selection(sensitivity: float, epsilon: float, monotonic: bool) -> tuple[float, float, bool]:
    """The three as checked numbers, else :class:`~dpml.errors.ConfigError`."""
    if not isinstance(monotonic, bool | np.bool_):
        raise errors.invalid("monotonic", shown(monotonic), "True or False")
    size = check_number("sensitivity", sensitivity, SMALLEST, LARGEST)
    return size, check_number("epsilon", epsilon, SMALLEST, MAX_SCALE), bool(monotonic)


def check_candidates(candidates: Any) -> int | tuple[Hashable, ...]:
    """A number of candidates >= 1, or a tuple of different labels, else :class:`~dpml.errors.ConfigError`."""
    allowed = "a whole number >= 1 or a sequence of different labels"
    if not hasattr(candidates, "__iter__") or isinstance(candidates, str | bytes):
        return check_count("candidates", candidates, 1)
    if isinstance(candidates, set | frozenset):
        raise errors.invalid("candidates", shown(candidates), allowed, "A set has no order; give a list.")
    labels = tuple(check_list("candidates", candidates, allowed))
    try:
        different = len(set(labels)) == len(labels) and all(label == label for label in labels)
    except (TypeError, ValueError):
        raise errors.invalid("candidates", shown(candidates), allowed, "Labels must be hashable.") from None
    if not labels or not different:
        raise errors.invalid("candidates", shown(list(labels)), allowed, "Name each candidate once.")
    return labels


@dataclass(frozen=True)
class Selection:
    """A selection mechanism before it meets scores.

    Args:
        candidates: K >= 1, their number, or K different labels; public.
        sensitivity: Δ > 0, by how much one score can change between neighbours, under the relation that you want.
        epsilon: > 0, the pure cost of one choice.
        monotonic: whether all scores move the same way between any two neighbours (see the module).

    Raises:
        ConfigError: an argument that is not allowed.
    """

    candidates: int | Sequence[Hashable]
    sensitivity: float
    epsilon: float
    monotonic: bool = False

    def __post_init__(self) -> None:
        checked = check_selection(self.sensitivity, self.epsilon, self.monotonic)
        for name, value in zip(("sensitivity", "epsilon", "monotonic"), checked, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "candidates", check_candidates(self.candidates))

    @classmethod
    def for_counts(
        cls,
        candidates: int | Sequence[Hashable],
        epsilon: float,
        neighboring_relation: str = ADD_REMOVE,
        **rest: Any,
    ) -> Self:
        """For scores that are counts of records: Δ = 1, monotonic under add_remove and not under replace_one."""
        monotonic = check_relation(neighboring_relation) == ADD_REMOVE
        return cls(candidates, sensitivity=1.0, epsilon=epsilon, monotonic=monotonic, **rest)

    @property
    def size(self) -> int:
        """K, the number of candidates."""
        return len(self.candidates) if isinstance(self.candidates, tuple) else int(self.candidates)  # type: ignore[arg-type]

    @cached_property
    def factor(self) -> Fraction:
        """ε/range, one over the scale of the noise; exact."""
        return Fraction(self.epsilon) / score_range(self.sensitivity, self.monotonic)

    @property
    def noise_scale(self) -> float:
        """range/ε in units of the score."""
        return float(1 / self.factor)

    @property
    def event(self) -> Event:
        """To be charged before the scores are computed."""
        raise NotImplementedError

    def error(self, beta: float = 0.05) -> float:
        """The chosen score is below the best by more than this with probability <= ``beta``, whatever the scores."""
        raise NotImplementedError

    def probabilities(self, scores: ArrayLike) -> Floats:
        """The probability of each candidate, shape (K,).  As private as the scores: for tests and teaching."""
        raise NotImplementedError

    def choose(self, scores: Floats, noise: NoiseSource) -> int:
        """The index that wins; ``scores`` checked, shape (K,)."""
        raise NotImplementedError

    def release(self, scores: ArrayLike, noise: NoiseSource | None = None) -> Answer:
        """Choose a candidate.

        Args:
            scores: finite numbers, shape (K,), larger is better.
            noise: the source; None for a fresh :class:`~dpml.mechanisms.noise.SecretNoise`.

        Returns:
            An answer whose ``value`` is the label of the chosen candidate, or its index where only K was given.

        Raises:
            DataError: scores of another shape, or not finite.
        """
        source = check_noise(noise)
        index = self.choose(self._checked(scores), source)
        return Answer(self.candidates[index] if isinstance(self.candidates, tuple) else index, self)

    def _checked(self, scores: ArrayLike) -> Floats:
        return finite_values(scores, self.size).reshape(-1)


@dataclass(frozen=True)
class ExponentialMechanism(Selection):
    """P(r) ∝ base_measure_r · e^{ε·u_r/(2Δ)}, or e^{ε·u_r/Δ} for monotonic scores.

    Source: McSherry & Talwar 2007; Dwork & Roth 2014, Def. 3.4 and Thm. 3.10.

    Pure ε-DP under the relation that Δ is for, and ε-bounded-range (Durfee & Rogers 2019), which composes better.
     Drawn as the race with Gumbel noise.

    Args:
        base_measure: K public weights > 0 (prior knowledge); None for equal ones.  The weights must not depend on data.

    A price for a digital good: bidders pay ``p`` when their bid is at least ``p``, and a price is scored by its
    revenue.  One changed bid moves the revenue at price p by p, so the sensitivity is the largest *price*, not 1.

    >>> import numpy as np
    >>> bids, prices = np.array([1.0, 1.0, 1.0, 3.01]), [1.0, 3.01, 3.02]
    >>> revenue = [p * int((bids >= p).sum()) for p in prices]
    >>> apples = ExponentialMechanism(prices, sensitivity=max(prices), epsilon=2.0)
    >>> apples.probabilities(revenue).round(3).tolist()
    [0.503, 0.363, 0.134]
    """

    base_measure: Sequence[float] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base_measure is not None:
            object.__setattr__(self, "base_measure", tuple(check_base_measure(self.base_measure, self.size).tolist()))

    @cached_property
    def _weights(self) -> Floats | None:
        return None if self.base_measure is None else np.array(self.base_measure, dtype=np.float64)

    @property
    def event(self) -> ExponentialEvent:
        return ExponentialEvent(self.epsilon)

    def error(self, beta: float = 0.05) -> float:
        """b·ln((W − w)(1 − β)/(w·β)) with b = 1/factor, W the sum of the weights and w the smallest.

        Worst case: the candidate of the smallest weight is the best and all others are that far below.
        """
        chance = check_beta(beta)
        total, least = (self.size, 1.0) if self._weights is None else (math.fsum(self._weights), self._weights.min())
        odds = (total - least) / least * (1.0 - chance) / chance
        return self.noise_scale * max(0.0, math.log(odds)) if odds > 0.0 else 0.0

    def probabilities(self, scores: ArrayLike) -> Floats:
        return softmax(self._checked(scores), self.noise_scale, self._weights)

    def choose(self, scores: Floats, noise: NoiseSource) -> int:
        return races.winner("gumbel", scores, self.factor, noise, self._weights)


def check_base_measure(base_measure: ArrayLike, size: int) -> Floats:
    """The weights as an array of shape (size,), else :class:`~dpml.errors.ConfigError`."""
    allowed = f"{size} finite numbers from {SMALLEST:g} to {LARGEST:g}"
    try:
        weights = np.array(base_measure, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise errors.invalid("base_measure", shown(base_measure), allowed) from None
    if weights.shape != (size,) or not (weights >= SMALLEST).all() or not (weights <= LARGEST).all():
        raise errors.invalid("base_measure", shown(base_measure), allowed, "Leave out candidates of weight 0.")
    return weights


def softmax(scores: Floats, scale: float, weights: Floats | None = None) -> Floats:
    """weights · e^{scores/scale}, normalised; no overflow, and underflow only of probabilities below 1e-308."""
    with np.errstate(under="ignore", over="ignore"):
        logs = (scores - scores.max()) / scale
        if weights is not None:
            logs = logs + np.log(weights)
        powers = np.exp(logs - logs.max())
        return powers / powers.sum()


def exponential_probabilities(
    scores: ArrayLike,
    epsilon: float,
    sensitivity: float,
    *,
    monotonic: bool = False,
    base_measure: ArrayLike | None = None,
) -> Floats:
    """The exponential mechanism's probabilities ∝ base_measure · e^{ε·u/(2Δ)}, or e^{ε·u/Δ} if ``monotonic``.

    Args:
        scores: finite numbers, shape (K,).
        epsilon, sensitivity, monotonic, base_measure: as of :class:`ExponentialMechanism`.
    """
    size, cost, same_way = check_selection(sensitivity, epsilon, monotonic)
    values = finite_values(scores, np.size(scores)).reshape(-1)
    weights = None if base_measure is None else check_base_measure(base_measure, values.size)
    return softmax(values, float(score_range(size, same_way)) / cost, weights)


def expected_score(scores: ArrayLike, epsilon: float, sensitivity: float, *, monotonic: bool = False) -> float:
    """E[u] of the exponential mechanism's choice; arguments as of :func:`exponential_probabilities`."""
    chances = exponential_probabilities(scores, epsilon, sensitivity, monotonic=monotonic)
    return math.fsum(chances * np.asarray(scores, dtype=np.float64).reshape(-1))


def utility_gap(
    candidates: int,
    epsilon: float,
    sensitivity: float,
    beta: float,
    *,
    optimal_candidates: int = 1,
    monotonic: bool = False,
) -> float:
    """The exponential mechanism's choice scores below the best by this or more with probability <= ``beta``.

    (2Δ/ε)·ln(|R|/(|R_OPT|·β)), or with Δ in place of 2Δ if ``monotonic`` (Dwork & Roth 2014, Thm. 3.11 with
    t = ln(1/β)); |R_OPT| is how many candidates reach the best score (a number that must be public if this is to be).
    """
    size, cost, same_way = check_selection(sensitivity, epsilon, monotonic)
    total = check_count("candidates", candidates, 1)
    best = check_count("optimal_candidates", optimal_candidates, 1)
    if best > total:
        raise errors.invalid("optimal_candidates", best, f"at most candidates = {total}")
    chance = check_beta(beta)
    return float(score_range(size, same_way)) / cost * (math.log(total / best) - math.log(chance))


__all__ = ["ExponentialMechanism", "Selection", "expected_score", "exponential_probabilities", "utility_gap"]
