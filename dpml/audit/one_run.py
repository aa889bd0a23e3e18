"""One run, many canaries: how many fair coins can be guessed from a single release, as a lower bound on ε.

Each of m canaries is put into the data by a fair coin of its own.  An attacker who sees the release guesses r of the
coins (the highest scores "in", the lowest "out") and abstains from the rest; v guesses are right.

*Binomial analysis* (Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", Theorem 5.2).  With
f(v) = P(Binomial(r, e^ε/(1 + e^ε)) ≥ v), an (ε, δ)-private mechanism has

    P(at least v right) ≤ f(v) + 2 m δ · max over i = 1 … v of (f(v − i) − f(v))/i .

*f-DP analysis* (Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run", Theorem 9 and
Algorithm 3).  Let p_i be the probability of exactly i right guesses among r, P_i = Σ_{j≥i} p_j, and let J be a canary
drawn uniformly.  Flip the coin of J: the coins are as likely as before, the event "guess J is right and i or more are"
becomes "guess J is wrong and i − 1 or more are right", and the two data sets are neighbours.  f-DP and the concavity of
1 − f give, with g(x) = the smallest type-I error of a test of power x,

    g(R_i) ≤ H_{i−1},    R_i = Σ_{j≥i} (j/m) p_j,    H_{i−1} = Σ_{j≥i−1} ((r − j)/m) p_j .

Abel summation turns this into a recursion for the tails: m R_i = i P_i + Σ_{j>i} P_j, and
(r − i + 1) P_{i−1} ≥ m g(R_i) + Σ_{j≥i} P_j.  The right-hand side grows with every P_j, so it may be started at
P_v = τ and P_j = 0 beyond: if it leads to some P_i > 1, then v right guesses have probability below τ
(:func:`f_dp_excludes`).

Both speak of adding or removing the canary.  Coins must be fair, independent and unknown to the attacker, and r must
not depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dpml.accounting.checks import check_count, check_number, check_one_of
from dpml.audit.bounds import epsilon_of_mu
from dpml.audit.result import AuditResult
from dpml.errors import DataError, invalid

ANALYSES = ("binomial", "f_dp", "gaussian")
COINS = "every canary was put in by a fair coin of its own, and the coins had no other way into the scores"
GAUSSIAN = (
    "ASSUMED, not shown: the trade-off of one canary's presence is that of two Gaussians with equal variance; the "
    "bound is about such mechanisms only"
)
LARGEST_EPSILON, LARGEST_MU = 200.0, 60.0
_STEPS = 60  # of bisection
_DOWN = 1 - 1e-9
_ROUNDING = 1e-10  # of the recursion: what a tail must pass 1 by

Inverse = Callable[[float], float]


# ------------------------------------------------------------------------------------------------ the two analyses


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Upper bound on the probability that an (ε, δ)-private mechanism lets ``correct`` or more guesses be right.

    The formula is in the module docstring; ``canaries`` = m, ``guesses`` = r, ``correct`` = v.
    """
    canaries, guesses, correct = _check_counts(canaries, guesses, correct)
    epsilon = check_number("epsilon", epsilon, 0.0)
    delta = check_number("delta", delta, 0.0, 1.0)
    truth = float(special.expit(epsilon))  # of one randomized response
    right = np.arange(correct + 1)
    tails = np.where(right > 0, special.betainc(np.maximum(right, 1), guesses - right + 1, truth), 1.0)  # f(0) … f(v)
    p = float(tails[correct])
    if delta > 0 and correct > 0:
        steps = np.arange(1, correct + 1)
        growth = float(((tails[correct - steps] - p) / steps).max())
        p += delta_term(canaries, delta, growth)
    return min(1.0, p)


def delta_term(canaries: int, delta: float, growth: float) -> float:
    """2 m δ · max (f(v − i) − f(v))/i: what δ may add to the probability."""
    return 2.0 * canaries * delta * growth


def f_dp_excludes(canaries: int, guesses: int, correct: int, inverse: Inverse, level: float) -> bool:
    """Whether ``correct`` or more right guesses have probability below ``level`` under every f-DP mechanism.

    Args:
        canaries, guesses, correct: m, r, v.
        inverse: g of the module docstring: power ↦ smallest type-I error, convex and increasing on [0, 1], for both
            orders of a pair that differs in one canary.
        level: τ in (0, 1).
    """
    canaries, guesses, correct = _check_counts(canaries, guesses, correct)
    tail, beyond = level, 0.0  # P_i and Σ_{j>i} P_j
    for i in range(correct, 0, -1):
        right = min((i * tail + beyond) / canaries, 1.0)
        beyond += tail
        tail = max(tail, (canaries * inverse(right) + beyond) / (guesses - i + 1))
        if tail > 1 + _ROUNDING:
            return True
    return False


def epsilon_delta_inverse(epsilon: float, delta: float) -> Inverse:
    """g of all (ε, δ)-private pairs: max(0, e^−ε (x − δ), 1 − δ − e^ε (1 − x)), inverse to the worst trade-off."""
    shrink, grow = math.exp(-epsilon), math.exp(epsilon)
    return lambda power: max(0.0, shrink * (power - delta), 1 - delta - grow * (1 - power))


def gaussian_inverse(mu: float) -> Inverse:
    """g of N(0, 1) against N(μ, 1): Φ(Φ⁻¹(x) − μ)."""
    return lambda power: float(special.ndtr(special.ndtri(power) - mu))


def one_run_epsilon(
    canaries: int, guesses: int, correct: int, *, delta: float, confidence: float, analysis: str = "binomial"
) -> float:
    """The lower bound on ε at ``delta`` that these counts give with ``confidence``.

    A mechanism that is private for some ε is so for every larger one.  So a rejected ε speaks for all below it, and the
    value returned is one that was seen to be rejected (0 where none is).  Arguments as :func:`audit_one_run`.
    """
    canaries, guesses, correct = _check_counts(canaries, guesses, correct)
    _check(delta, confidence, analysis)
    level = 1 - confidence
    if analysis == "gaussian":
        mu = _largest(lambda mu: f_dp_excludes(canaries, guesses, correct, gaussian_inverse(mu), level), LARGEST_MU)
        return epsilon_of_mu(mu, delta) * _DOWN
    if analysis == "f_dp":
        return _DOWN * _largest(
            lambda eps: f_dp_excludes(canaries, guesses, correct, epsilon_delta_inverse(eps, delta), level),
            LARGEST_EPSILON,
        )
    return _DOWN * _largest(
        lambda eps: one_run_p_value(canaries, guesses, correct, eps, delta) <= level, LARGEST_EPSILON
    )


def _largest(rejected: Callable[[float], bool], high: float) -> float:
    """A value that is rejected, next to one that is not; 0 where 0 is not rejected."""
    if not rejected(0.0):
        return 0.0
    low = 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
        if high - low < 1e-9:
            break
    return low


# ----------------------------------------------------------------------------------------------------- the auditor


def guess(scores: ArrayLike, k_plus: int, k_minus: int, sign: int = 1) -> NDArray[np.int64]:
    """Guesses ``(m,)``: 1 ("in") for the ``k_plus`` highest of sign · score, −1 for the ``k_minus`` lowest, else 0."""
    scores = _scores(scores)
    k_plus, k_minus = check_count("k_plus", k_plus), check_count("k_minus", k_minus)
    if k_plus + k_minus > len(scores):
        raise invalid("k_plus + k_minus", k_plus + k_minus, f"at most the {len(scores)} canaries")
    order = np.argsort(sign * scores, kind="stable")
    guesses = np.zeros(len(scores), dtype=np.int64)
    guesses[order[:k_minus]] = -1
    guesses[order[len(order) - k_plus :]] = 1
    return guesses


def shuffled(scores: NDArray[np.float64], included: np.ndarray) -> tuple[NDArray[np.float64], np.ndarray]:
    """Both in one random order, so that equal scores are ranked by lot: a caller may list those that are in first."""
    order = np.random.default_rng().permutation(len(scores))
    return scores[order], included[order]


def correct_guesses(guesses: np.ndarray, included: np.ndarray) -> int:
    """How many guesses that are not 0 agree with the coins."""
    return int(np.count_nonzero((guesses == 1) & included) + np.count_nonzero((guesses == -1) & ~included))


def audit_one_run(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: tuple[int, int] | Sequence[tuple[int, int]] | None = None,
    analysis: str = "binomial",
    sign: int | None = 1,
) -> AuditResult:
    """A lower bound on ε from the scores of ``m`` canaries in one run.

    Args:
        scores: ``(m,)``, one per canary, in or out; ±∞ is a score, NaN is not.  Equal ones are ranked by lot.
        included: ``(m,)`` booleans, the coins.
        delta: δ in [0, 1); above 0 with ``analysis="gaussian"``.
        confidence: in (0, 1).
        guesses: (k₊, k₋), how many are guessed "in" and "out", fixed before the coins are looked at; or several pairs,
            of which the best is taken (each at (1 − confidence)/number: Bonferroni).  None: an eighth and a third of
            the canaries, half "in", half "out".
        analysis: ``"binomial"``, ``"f_dp"`` (both without an assumption about the mechanism), or ``"gaussian"``: f-DP
            with the trade-off *assumed* Gaussian; the result is labelled.
        sign: 1 when members score higher, −1 when lower; None tries both (twice as many in Bonferroni's rule).

    Raises:
        ConfigError: an argument out of range.
        DataError: scores that are NaN, or coins that do not fit the scores.
    """
    _check(delta, confidence, analysis)
    scores, included = _scores(scores), np.asarray(included)
    if included.shape != scores.shape or included.dtype != np.bool_:
        raise DataError(
            f"included has shape {included.shape} and type {included.dtype}; it must be booleans, {scores.shape}."
        )
    if sign not in (1, -1, None):
        raise invalid("sign", sign, "1, -1 or None")
    scores, included = shuffled(scores, included)
    m = len(scores)
    attempts = [
        (plus, minus, one_sign)
        for plus, minus in _pairs(guesses, m)
        for one_sign in ((1, -1) if sign is None else (sign,))
    ]
    level = (1 - confidence) / len(attempts)
    best: tuple[float, int, int, int, int] | None = None
    for plus, minus, one_sign in attempts:
        right = correct_guesses(guess(scores, plus, minus, one_sign), included)
        value = one_run_epsilon(m, plus + minus, right, delta=delta, confidence=1 - level, analysis=analysis)
        if best is None or value > best[0]:
            best = (value, plus, minus, right, one_sign)
    assert best is not None
    value, plus, minus, right, one_sign = best
    return AuditResult(
        epsilon_lower=value,
        delta=delta,
        confidence=confidence,
        runs=1,
        method="one_run" if analysis == "binomial" else f"one_run_{analysis}",
        threshold=None,
        sign=one_sign,
        counts={
            "canaries": m,
            "guesses": plus + minus,
            "guessed_in": plus,
            "guessed_out": minus,
            "correct": right,
            "attempts": len(attempts),
        },
        rates={"accuracy": right / (plus + minus)},
        assumptions=(COINS, GAUSSIAN) if analysis == "gaussian" else (COINS,),
    )


def _pairs(guesses: tuple[int, int] | Sequence[tuple[int, int]] | None, m: int) -> list[tuple[int, int]]:
    if guesses is None:
        return list(dict.fromkeys((max(1, m // 16 * k // 3), m // 16 * k // 3) for k in (3, 8)))
    listed = list(guesses)
    if listed and not isinstance(listed[0], tuple | list):
        listed = [tuple(listed)]
    pairs: list[tuple[int, int]] = []
    for pair in listed:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise invalid("guesses", guesses, "a pair (k_plus, k_minus) or a list of such pairs")
        plus, minus = check_count("k_plus", pair[0]), check_count("k_minus", pair[1])
        if not 1 <= plus + minus <= m:
            raise invalid("guesses", (plus, minus), f"1 to {m} guesses, as there are {m} canaries")
        pairs.append((plus, minus))
    if not pairs:
        raise invalid("guesses", guesses, "a pair (k_plus, k_minus) or a list of such pairs")
    return pairs


def _scores(values: ArrayLike) -> NDArray[np.float64]:
    try:
        scores = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise DataError("scores holds something that is no number; it must be an array (m,).") from None
    if scores.ndim != 1 or not len(scores):
        raise DataError(f"scores has shape {scores.shape}; it must be one score per canary, (m,).")
    if np.isnan(scores).any():
        raise DataError("scores holds NaN: give a canary that could not be scored a score between the others.")
    return scores


def _check_counts(canaries: int, guesses: int, correct: int) -> tuple[int, int, int]:
    canaries = check_count("canaries", canaries, 1)
    guesses = check_count("guesses", guesses, 1)
    if guesses > canaries:
        raise invalid("guesses", guesses, f"at most the {canaries} canaries")
    correct = check_count("correct", correct)
    if correct > guesses:
        raise invalid("correct", correct, f"at most the {guesses} guesses")
    return canaries, guesses, correct


def _check(delta: float, confidence: float, analysis: str) -> None:
    check_one_of("analysis", analysis, ANALYSES)
    check_number("delta", delta, 0.0, 1.0, below=True)
    check_number("confidence", confidence, 0.0, 1.0, above=True, below=True)
    if analysis == "gaussian" and not delta > 0:
        raise invalid("delta", delta, "above 0 with analysis='gaussian'", "A Gaussian has no finite epsilon at 0.")
