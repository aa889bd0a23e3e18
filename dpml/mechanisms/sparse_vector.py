"""The sparse vector technique: which queries of an adaptive stream are above a public threshold, c times "yes".

Only the positive answers cost.  Many published versions are not private at all; after Lyu, Su & Li 2017, "Understanding
the sparse vector technique for differential privacy" (PVLDB 10(6)), two sound ones are here, with ε = ε₁ + ε₂:

* one noisy threshold for all (their Algorithm 1): threshold noise Lap(Δ/ε₁), drawn once; fresh noise Lap(2cΔ/ε₂) on
  every query; stop after c positive answers.  Proof idea: move the threshold noise by Δ, which costs ε₁, and every
  negative answer is at least as likely as before; each of the c positive answers then needs its query noise moved by
  2Δ, which costs ε₂/c.
* ``redraw=True``: c times the same with one positive answer and ε/c (Dwork & Roth 2014, Algorithms 1 and 2): the
  threshold noise is Lap(cΔ/ε₁), drawn anew after each positive answer, as composition needs it.  Redrawing it at the
  scale Δ/ε₁ would cost c·ε₁ + ε₂.

For monotonic streams (all queries move the same way between two neighbours: counts under add_remove) moving by Δ is
enough, and the query noise is Lap(cΔ/ε₂) (same paper, section 4).

Nothing but the answers leaves: not the noisy query, not its distance from the threshold.  A number for the positive
answers is paid for: ``value_epsilon`` = ε₃ adds fresh noise Lap(cΔ/ε₃), independent of the comparison's (reusing that
is the fault of Lyu et al.'s Algorithm 3).

Floats: queries, threshold and noise are whole multiples of a public spacing g = Δ/N, N about 2^20.  A query is rounded
down, so that neighbouring ones differ by at most N steps; Laplace noise is rounded to steps in exact arithmetic
(:mod:`dpml.mechanisms.races`).  Rounded Laplace noise keeps what the proof uses, ratios of at most e^{1/b} per step in
its probabilities and in its tails; sums of whole numbers are exact.  Nothing is left to the low bits.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from dpml import errors
from dpml.accounting.checks import check_count, check_number, shown
from dpml.accounting.events import MAX_SCALE, Pure
from dpml.mechanisms import races
from dpml.mechanisms.answers import Answer, check_beta, check_noise, finite_values
from dpml.mechanisms.noise import NoiseSource
from dpml.mechanisms.selection import LARGEST, SMALLEST

STEP_BITS = 20  # Δ has 2^19 to 2^20 steps
BLOCK = 1 << 14  # queries at a time in a list
LARGEST_FLOAT = Fraction(sys.float_info.max)


@dataclass(frozen=True)
class AboveThreshold:
    """The sparse vector technique, pure (ε + value_epsilon)-DP under the relation that the sensitivity is for.

    Args:
        threshold: T, public.  For thresholds that change from query to query ask about query − threshold and give 0.
        sensitivity: Δ > 0, by how much one query can change between neighbours.
        epsilon: ε > 0, for all answers together.
        positives: c >= 1, the number of positive answers after which the stream ends; public.
        monotonic: whether all queries of the stream move the same way between any two neighbours.
        redraw: fresh threshold noise after each positive answer (see the module); needs larger noise.
        value_epsilon: ε₃ >= 0; if > 0, positive answers are noisy numbers in place of True.
        threshold_share: ε₁/ε in (0, 1); None for the share that makes the variance of a comparison smallest.

    Raises:
        ConfigError: an argument that is not allowed.
    """

    threshold: float
    sensitivity: float
    epsilon: float
    positives: int = 1
    monotonic: bool = False
    redraw: bool = False
    value_epsilon: float = 0.0
    threshold_share: float | None = None

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "threshold": check_number("threshold", self.threshold, -math.inf),
            "sensitivity": check_number("sensitivity", self.sensitivity, SMALLEST, LARGEST),
            "epsilon": check_number("epsilon", self.epsilon, SMALLEST, MAX_SCALE),
            "positives": check_count("positives", self.positives, 1),
            "value_epsilon": check_number("value_epsilon", self.value_epsilon, 0.0, MAX_SCALE),
        }
        if 0.0 < checked["value_epsilon"] < SMALLEST:
            raise errors.invalid("value_epsilon", self.value_epsilon, f"0 or at least {SMALLEST:g}")
        if self.threshold_share is not None:
            checked["threshold_share"] = check_number("threshold_share", self.threshold_share, 1e-9, 1.0 - 1e-9)
        for name in ("monotonic", "redraw"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise errors.invalid(name, shown(getattr(self, name)), "True or False")
            checked[name] = bool(getattr(self, name))
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def event(self) -> Pure:
        """ε + ε₃, to be charged before the first query: for the whole stream, however many answers it gives."""
        total = self.epsilon + self.value_epsilon
        if Fraction(total) < Fraction(self.epsilon) + Fraction(self.value_epsilon):
            total = math.nextafter(total, math.inf)
        return Pure(total)

    @cached_property
    def budgets(self) -> tuple[Fraction, Fraction]:
        """(ε₁, ε₂), exactly ε together.

        The share that makes Var(threshold noise) + Var(query noise) smallest: ε₁ : ε₂ = 1 : (k·c)^{2/3} with k = 2, or
        1 for monotonic streams (Lyu, Su & Li 2017, section 4); with redraw, where both scales carry c, 1 : k^{2/3}.
        """
        moved = (1 if self.monotonic else 2) * (1 if self.redraw else self.positives)
        share = 1.0 / (1.0 + moved ** (2.0 / 3.0)) if self.threshold_share is None else self.threshold_share
        first = Fraction(share) * Fraction(self.epsilon)
        return first, Fraction(self.epsilon) - first

    @property
    def spacing_exponent(self) -> int:
        """g = 2^this."""
        return math.frexp(self.sensitivity)[1] - STEP_BITS

    @property
    def spacing(self) -> float:
        """g, the power of two that noise, threshold and queries are multiples of."""
        return math.ldexp(1.0, self.spacing_exponent)

    @cached_property
    def steps(self) -> int:
        """N, how many steps of the grid neighbouring queries can be apart: Δ/g rounded up, 2^19 to 2^20."""
        return math.ceil(Fraction(self.sensitivity) / Fraction(self.spacing))

    @cached_property
    def threshold_scale(self) -> Fraction:
        """Scale of the threshold noise in steps: N/ε₁, or c·N/ε₁ where it is redrawn."""
        return Fraction(self.steps * (self.positives if self.redraw else 1)) / self.budgets[0]

    @cached_property
    def query_scale(self) -> Fraction:
        """Scale of a query's noise in steps: 2cN/ε₂, or c·N/ε₂ for monotonic streams."""
        return Fraction(self.steps * self.positives * (1 if self.monotonic else 2)) / self.budgets[1]

    @cached_property
    def value_scale(self) -> Fraction:
        """Scale of the noise of a released number in steps, c·N/ε₃."""
        return Fraction(self.steps * self.positives) / Fraction(self.value_epsilon)

    def error(self, beta: float = 0.05, queries: int = 1) -> float:
        """With probability >= 1 − β no positive of ``queries`` queries is below T − error, no negative above T + error.

        b₁·ln(2m/β) + b₂·ln(2·queries/β) + 2g, where b₁, b₂ are the scales of the noises and m is how many threshold
        noises there are (Dwork & Roth 2014, the proof of Thm. 3.24).  Errors of released numbers: ``value_error``.
        """
        chance, number = check_beta(beta), check_count("queries", queries, 1)
        redraws = min(self.positives, number) if self.redraw else 1
        steps = float(self.threshold_scale) * math.log(2.0 * redraws / chance)
        steps += float(self.query_scale) * math.log(2.0 * number / chance) + 2.0
        return steps * self.spacing

    def value_error(self, beta: float = 0.05) -> float:
        """P(one released number is further than this from the query) <= β: b·ln(1/β), plus two steps for rounding."""
        chance = check_beta(beta)
        if not self.value_epsilon:
            raise errors.invalid("value_epsilon", 0.0, "> 0 for an error of released numbers")
        return (float(self.value_scale) * math.log(1.0 / chance) + 2.0) * self.spacing

    def start(self, noise: NoiseSource | None = None) -> AboveThresholdStream:
        """A new stream of queries; charge ``event`` once for each."""
        return AboveThresholdStream(self, check_noise(noise))

    def release(self, queries: ArrayLike, noise: NoiseSource | None = None) -> Answer:
        """All ``queries`` in order, until the c-th positive answer.

        Returns:
            An answer whose ``value`` is the tuple of answers: False, or True (a number where ``value_epsilon`` > 0).

        Raises:
            DataError: queries that are not finite numbers.
        """
        source = check_noise(noise)
        values = finite_values(queries, np.size(queries)).reshape(-1)
        stream = self.start(source)
        out: list[bool | float] = []
        for start in range(0, values.size, BLOCK):
            out += stream.ask_all(values[start : start + BLOCK].tolist())
        return Answer(tuple(out), self)


class AboveThresholdStream:
    """One run of :class:`AboveThreshold`: ``ask`` answers query after query; each may depend on the answers before.

    Threads may share it: queries are answered one after the other.  It can be neither copied nor pickled (a copy would
    answer with the same threshold noise, and past the c-th positive answer).
    """

    __slots__ = ("__limit", "__lock", "__noise", "__remaining", "__scale", "mechanism")

    def __init__(self, mechanism: AboveThreshold, noise: NoiseSource) -> None:
        self.mechanism = mechanism
        self.__noise = noise
        self.__lock = threading.Lock()
        self.__remaining = mechanism.positives
        self.__scale = mechanism.query_scale
        self.__limit = self.__threshold()

    @property
    def remaining(self) -> int:
        """How many positive answers are left."""
        return self.__remaining

    def ask(self, query: float) -> bool | float:
        """Whether the noisy ``query`` reaches the noisy threshold: False, or True (a noisy number if one is paid for).

        Raises:
            DataError: not a finite number.
            ConfigError: the positive answers are used up; the query was not looked at.
        """
        with self.__lock:
            if self.__remaining == 0:
                raise errors.ConfigError(
                    f"the stream has ended: positives = {self.mechanism.positives} positive answers were given. "
                    "Charge and start a new one."
                )
            value = finite_values(query, 1).item()
            return self.__answer(value, noise_steps(self.__scale, 1, self.__noise)[0])

    def ask_all(self, queries: Sequence[float]) -> list[bool | float]:
        """The answers to finite ``queries`` in order, up to the last positive answer that is left."""
        out: list[bool | float] = []
        with self.__lock:
            if self.__remaining:
                for value, drawn in zip(queries, noise_steps(self.__scale, len(queries), self.__noise), strict=True):
                    out.append(self.__answer(value, drawn))
                    if self.__remaining == 0:
                        break
        return out

    def __answer(self, query: float, drawn: int) -> bool | float:
        mechanism = self.mechanism
        place = to_steps(query, mechanism.spacing_exponent)
        if place + drawn < self.__limit:
            return False
        self.__remaining -= 1
        if mechanism.redraw and self.__remaining:
            self.__limit = self.__threshold()
        if not mechanism.value_epsilon:
            return True
        return from_steps(place + noise_steps(mechanism.value_scale, 1, self.__noise)[0], mechanism.spacing)

    def __threshold(self) -> int:
        mechanism = self.mechanism
        place = to_steps(mechanism.threshold, mechanism.spacing_exponent)
        return place + noise_steps(mechanism.threshold_scale, 1, self.__noise)[0]

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("AboveThresholdStream cannot be pickled or copied: a copy would answer with the same noise.")

    def __repr__(self) -> str:
        return f"AboveThresholdStream({self.mechanism!r}, remaining={self.__remaining})"


def to_steps(value: float, exponent: int) -> int:
    """floor(value/2^exponent), exactly."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << max(-exponent, 0)) // (denominator << max(exponent, 0))


def from_steps(steps: int, spacing: float) -> float:
    """steps · spacing as a float, moved to the largest float where it would be beyond."""
    exact = Fraction(steps) * Fraction(spacing)
    return float(max(-LARGEST_FLOAT, min(LARGEST_FLOAT, exact)))


def noise_steps(scale: Fraction, size: int, noise: NoiseSource) -> list[int]:
    """Independent Laplace noise of this scale, rounded to whole numbers."""
    return races.rounded("laplace", scale, size, noise)
