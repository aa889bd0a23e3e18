"""Two worlds by fair coins, with guesses that may be withheld: a sharper bound from the same runs.

The world of each run is drawn by a fair coin.  The attacker says "in" where the score is at least ``cut_in``, "out"
where it is at most ``cut_out``, and nothing between.  Let g be the probability of a guess and p that of a right one
among the guesses.  With P₀, P₁ the laws of the score, an (ε, δ)-private pair has P₁(in) ≤ e^ε P₀(in) + δ and
P₀(out) ≤ e^ε P₁(out) + δ (both orders of the pair).  Half of their sum, with s the number of sides that are ever
guessed, is

    p g ≤ e^ε (1 − p) g + s δ/2,    so    ε ≥ ln((p − s δ/(2 g))/(1 − p)),

which grows with p and with g.  Runs are independent, so guesses are Binomial(N, g) and, given their number G, right
ones Binomial(G, p): exact lower limits (Clopper and Pearson 1934) on p and g that hold together bound ε from below.
One rate instead of two is to be bounded, from both tails of the score, so fewer runs say more than in
:mod:`dpml.audit.distinguishing`.

The cuts must have no part in the runs that are counted: they follow from the law that is claimed (:func:`planned_cuts`)
or from other runs.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from dpml.accounting.checks import check_number
from dpml.audit.bounds import upper_limit
from dpml.audit.canaries import likelihood_scores
from dpml.audit.result import AuditResult
from dpml.errors import DataError, invalid

WORLDS = "the runs are independent of each other, and the world of each was drawn by a fair coin of its own"
_FOR_GUESSES = 0.05  # share of the failure probability that the limit on g has; the rest is for p
_CAUTION = 1.645  # standard deviations by which more guesses are planned to be wrong; concerns power only
_CUTS = 60  # cuts that are looked at on each side
_DRAWS = 50_000  # of each world
_DOWN = 1 - 1e-9


def guess_worlds(
    scores: ArrayLike, included: ArrayLike, cuts: tuple[float, float], *, delta: float, confidence: float = 0.95
) -> AuditResult:
    """A lower bound on ε from independent runs whose worlds were drawn by fair coins.

    Args:
        scores: ``(N,)``, one for each run; ±∞ is a score, NaN is not.
        included: ``(N,)`` booleans, the coins: True for world 1, the data set with the record.
        cuts: (cut_out, cut_in), cut_out < cut_in, fixed without a look at these runs: "out" is said at or below the
            first, "in" at or above the second.  −∞ and ∞ for a side that is never guessed.
        delta: δ in [0, 1).
        confidence: in (0, 1).

    Neighbouring relation: that of the two worlds, which the caller makes.

    Raises:
        ConfigError: an argument out of range.
        DataError: scores that are NaN, or coins that do not fit the scores.
    """
    check_number("delta", delta, 0.0, 1.0, below=True)
    check_number("confidence", confidence, 0.0, 1.0, above=True, below=True)
    low, high = (float(cut) for cut in cuts)
    if not low < high:
        raise invalid("cuts", cuts, "(cut_out, cut_in) with cut_out < cut_in")
    values, coins = np.asarray(scores, dtype=float), np.asarray(included)
    if values.ndim != 1 or coins.shape != values.shape or coins.dtype != np.bool_ or not len(values):
        raise DataError(
            f"scores {values.shape} and included {coins.shape} ({coins.dtype}) must be one score and one boolean a run."
        )
    if np.isnan(values).any():
        raise DataError("scores holds NaN. Give a run that failed the score that says least, the same in both worlds.")
    says_in, says_out = (values >= high) & (high < math.inf), (values <= low) & (low > -math.inf)
    guesses = int(np.count_nonzero(says_in) + np.count_nonzero(says_out))
    right = int(np.count_nonzero(says_in & coins) + np.count_nonzero(says_out & ~coins))
    sides = int(high < math.inf) + int(low > -math.inf)
    value, accuracy, share = epsilon_of_guesses(len(values), guesses, right, sides, delta, 1 - confidence)
    return AuditResult(
        epsilon_lower=value * _DOWN,
        delta=delta,
        confidence=confidence,
        runs=len(values),
        method="two_world_guesses",
        threshold=high,
        sign=1,
        counts={"guesses": guesses, "correct": right, "sides": sides},
        rates={"accuracy_lower": accuracy, "guessed_lower": share, **({"cut_out": low} if low > -math.inf else {})},
        assumptions=(WORLDS,),
    )


def epsilon_of_guesses(
    runs: int, guesses: int, right: int, sides: int, delta: float, level: float
) -> tuple[float, float, float]:
    """(ε, limit on p, limit on g) of the module's docstring; both limits hold but for probability ``level``."""
    for_share, for_accuracy = levels(delta, level)
    if not guesses:
        return 0.0, 0.0, 0.0
    accuracy = 1.0 - float(upper_limit(guesses - right, guesses, for_accuracy))
    share = 1.0 - float(upper_limit(runs - guesses, runs, for_share)) if delta > 0 else 1.0
    if not (accuracy < 1 and share > 0):
        return 0.0, accuracy, share
    excess = accuracy - sides * delta / (2 * share)
    return max(0.0, math.log(excess / (1 - accuracy))) if excess > 0 else 0.0, accuracy, share


def levels(delta: float, level: float) -> tuple[float, float]:
    """Failure probabilities of the limits on g and on p, together ``level``; at δ = 0 only p matters."""
    return (_FOR_GUESSES * level, (1 - _FOR_GUESSES) * level) if delta > 0 else (level, level)


def planned_cuts(
    out: ArrayLike, inside: ArrayLike, runs: int, *, delta: float, confidence: float
) -> tuple[float, float]:
    """The cuts that promise most for ``runs`` runs of a pair whose log likelihood ratios are known.

    Tails are weighed with the other world's draws, P₀(S) = E₁[e^−s; S] and P₁(S) = E₀[e^s; S], so that rare errors are
    known from few draws.

    Args:
        out, inside: draws ``(n₀,)`` of ln dP₁/dP₀ under P₀ and ``(n₁,)`` under P₁; made from what is *claimed*, never
            from the runs that are counted.
        The others: of :func:`guess_worlds`.
    """
    zero, one = np.sort(np.asarray(out, dtype=float)), np.sort(np.asarray(inside, dtype=float))
    both = np.concatenate([zero, one])
    tail = np.geomspace(1e-6, 0.5, _CUTS)
    highs = np.append(np.unique(np.quantile(both, 1 - tail)), math.inf)
    lows = np.insert(np.unique(np.quantile(both, tail)), 0, -math.inf)
    with np.errstate(over="ignore"):
        hits, false_hits = _from(one, np.ones_like(one), highs), _from(one, np.exp(-one), highs)
        passes, false_passes = _from(-zero, np.ones_like(zero), -lows), _from(-zero, np.exp(zero), -lows)
    right = (hits[None, :] + passes[:, None]) / 2
    wrong = (false_hits[None, :] + false_passes[:, None]) / 2
    sides = (lows > -math.inf).astype(int)[:, None] + (highs < math.inf)[None, :]
    found = np.where(lows[:, None] < highs[None, :], _promise(runs, right, wrong, sides, delta, 1 - confidence), -1.0)
    i, j = np.unravel_index(int(np.argmax(found)), found.shape)
    return float(lows[i]), float(highs[j])


def claimed_ratios(steps: int, sample_rate: float, noise_multiplier: float) -> tuple[np.ndarray, np.ndarray]:
    """Draws of the log likelihood ratio without and with the record, as DP-SGD claims it: for :func:`planned_cuts`.

    A step's share is N(0, σ²), and N(1, σ²) with probability q where the record is in.  The seed is fixed: a plan is
    public and has no part in the runs.
    """
    generator, sigma = np.random.default_rng(0), noise_multiplier
    out, inside = np.zeros(_DRAWS), np.zeros(_DRAWS)
    for _ in range(steps):
        noise = generator.normal(0.0, sigma, (2, _DRAWS, 1))
        drawn = (generator.random((_DRAWS, 1)) < sample_rate) * 1.0
        out += likelihood_scores(noise[0], sample_rate, sigma)
        inside += likelihood_scores(noise[1] + drawn, sample_rate, sigma)
    return out, inside


def _from(scores: np.ndarray, weights: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Mean of the weights of scores at or above each cut."""
    order = np.argsort(scores)
    above = np.append(np.cumsum(weights[order][::-1])[::-1], 0.0)
    return np.asarray(above[np.searchsorted(scores[order], cuts, side="left")] / len(scores))


def _promise(
    runs: int, right: np.ndarray, wrong: np.ndarray, sides: np.ndarray, delta: float, level: float
) -> np.ndarray:
    """The bound where as many guesses are wrong as in one of twenty audits; 0 where nothing is to be expected."""
    guesses = runs * (right + wrong)
    for_accuracy = levels(delta, level)[1]
    unlucky = np.minimum(guesses, runs * wrong + _CAUTION * np.sqrt(runs * wrong) + 0.5)
    accuracy = 1.0 - upper_limit(unlucky, np.maximum(guesses, 1e-9), for_accuracy)
    excess = accuracy - sides * delta * runs / (2 * np.maximum(guesses, 1e-9))
    usable = (guesses >= 1) & (excess > 0) & (accuracy < 1)
    return np.log(np.where(usable, excess, 1.0) / np.where(usable, 1 - accuracy, 1.0))
