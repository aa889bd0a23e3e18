"""Checks of the auditors that the planted bugs are run against.  Expected values come from scipy and from formulas."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from scipy import optimize, stats

from dpml import audit
from dpml.audit import __main__ as command
from dpml.audit import refits  # noqa: F401 (it must be there before anything is patched)
from dpml.mechanisms import FixedNoise
from dpml.sgd import engine  # noqa: F401 (likewise)

AUDITS = 1000
MOST = 85  # of 1,000 audits at 95 %: P(Binomial(1000, 0.05) > 85) = 1.2e-6
LEAK, RESPONSE = 0.1, 1.0


# ------------------------------------------------------------------------- mechanisms whose ε is known, as two worlds


def gaussian(mu: float) -> Callable[[np.random.Generator, int, int], np.ndarray]:
    return lambda rng, world, count: rng.normal(world * mu, 1.0, count)


def laplace(epsilon: float) -> Callable[[np.random.Generator, int, int], np.ndarray]:
    return lambda rng, world, count: rng.laplace(world * epsilon, 1.0, count)


def response(epsilon: float) -> Callable[[np.random.Generator, int, int], np.ndarray]:
    """The bit, told truly with probability e^ε/(1 + e^ε)."""
    truth = 1 / (1 + math.exp(-epsilon))
    return lambda rng, world, count: np.where(rng.random(count) < truth, world, 1 - world).astype(float)


def leaky(delta: float) -> Callable[[np.random.Generator, int, int], np.ndarray]:
    """Nothing, but for the record itself with probability δ: (0, δ)-private and not better."""
    return lambda rng, world, count: world * (rng.random(count) < delta).astype(float)


def useless(rng: np.random.Generator, world: int, count: int) -> np.ndarray:
    return rng.normal(size=count)


def exceedances(
    mechanism: Callable[[np.random.Generator, int, int], np.ndarray], truth: float, *, runs: int, **arguments: object
) -> int:
    """How many of 1,000 two-world audits state more than ``truth``."""
    rng = np.random.default_rng(7)
    return sum(
        audit.distinguish(lambda world, count: mechanism(rng, world, count), runs=runs, **arguments).epsilon_lower  # type: ignore[arg-type]
        > truth
        for _ in range(AUDITS)
    )


# ------------------------------------------------------------------------------------------------------ two worlds


def check_limits_are_clopper_pearson() -> None:
    for errors, trials in ((0, 10), (3, 10), (9, 10), (10, 10), (17, 4000), (0, 100_000)):
        for level in (0.025, 0.001):
            exact = stats.binomtest(errors, trials).proportion_ci(1 - 2 * level, "exact").high
            assert math.isclose(float(audit.upper_limit(errors, trials, level)), exact, rel_tol=1e-8)


def check_each_rate_is_at_half_of_what_is_left() -> None:
    """95 %: both limits at 2.5 %, the upper ends of two-sided 95 % intervals; with k thresholds 5 % becomes 5 %/k."""
    rng = np.random.default_rng(1)
    for confidence, thresholds in ((0.95, 1), (0.999, 1), (0.95, 4)):
        found = audit.distinguish(
            lambda w, n: rng.normal(w, 1, n), runs=4000, delta=1e-3, confidence=confidence, thresholds=thresholds
        )
        for kind, rate in (("false_positives", "fpr_upper"), ("false_negatives", "fnr_upper")):
            trials = found.counts["counted_out" if rate == "fpr_upper" else "counted_in"]
            wanted = 1 - (1 - confidence) / thresholds
            exact = stats.binomtest(found.counts[kind], trials).proportion_ci(wanted, "exact").high
            assert math.isclose(found.rates[rate], exact, rel_tol=1e-8)


def check_errors_are_those_of_the_counted_runs() -> None:
    """Scores 0 and 1; 40 % of world 0 and 10 % of world 1 are wrong, in a fixed pattern of ten."""
    out = np.tile([1, 0, 1, 0, 1, 0, 1, 0, 0, 0], 100).astype(float)
    inside = np.tile([1, 1, 1, 1, 1, 1, 1, 1, 1, 0], 100).astype(float)
    found = audit.distinguish_scores(out, inside, delta=0.01, selection=0.2)
    assert (found.counts["counted_out"], found.counts["counted_in"]) == (800, 800)
    assert (found.counts["false_positives"], found.counts["false_negatives"]) == (320, 80)
    a = stats.binomtest(320, 800).proportion_ci(0.95, "exact").high
    b = stats.binomtest(80, 800).proportion_ci(0.95, "exact").high
    expected = max(math.log((1 - 0.01 - b) / a), math.log((1 - 0.01 - a) / b))
    assert math.isclose(found.epsilon_lower, expected, rel_tol=1e-7)
    flipped = audit.distinguish_scores(-out, -inside, delta=0.01, selection=0.2)
    assert (flipped.sign, found.sign) == (-1, 1)
    assert flipped.epsilon_lower == found.epsilon_lower


def check_the_choice_does_not_see_what_is_counted() -> None:
    """Other runs after the first ones change the counts, but neither sign nor threshold."""
    rng = np.random.default_rng(2)
    out, inside = rng.normal(0, 1, 2000), rng.normal(1, 1, 2000)
    later_out, later_in = rng.normal(3, 2, 1800), rng.normal(-3, 2, 1800)
    found = audit.distinguish_scores(out, inside, delta=1e-3, selection=0.1)
    other = audit.distinguish_scores(
        np.append(out[:200], later_out), np.append(inside[:200], later_in), delta=1e-3, selection=0.1
    )
    assert (found.sign, found.threshold) == (other.sign, other.threshold)
    assert found.counts != other.counts
    assert other.epsilon_lower == 0


def check_useless_scores_prove_nothing() -> None:
    assert exceedances(useless, 0.0, runs=400, delta=0.0) <= MOST


def check_a_leak_of_probability_delta_is_allowed() -> None:
    assert exceedances(leaky(LEAK), 0.0, runs=4000, delta=LEAK) <= MOST


# --------------------------------------------------------------------------------------------------------- one run


def slow_p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """The theorem's bound, summed term by term."""
    chances = stats.binom.pmf(np.arange(r + 1), r, 1 / (1 + math.exp(-epsilon)))

    def at_least(k: int) -> float:
        return math.fsum(chances[max(k, 0) :])

    growth = max([(at_least(v - i) - at_least(v)) / i for i in range(1, v + 1)], default=0.0)
    return min(1.0, at_least(v) + 2 * m * delta * growth)


def check_p_value_is_the_theorem() -> None:
    for m, r, v, epsilon, delta in (
        (20, 20, 15, 0.5, 0.0),
        (100, 40, 33, 1.0, 1e-4),
        (1000, 60, 60, 3.0, 1e-5),
        (30, 10, 1, 2.0, 1e-3),
        (30, 10, 0, 0.0, 0.5),
    ):
        found = audit.one_run_p_value(m, r, v, epsilon, delta)
        assert math.isclose(found, slow_p_value(m, r, v, epsilon, delta), rel_tol=1e-9, abs_tol=1e-15)


Lines = list[tuple[float, float]]


def most_probable(m: int, r: int, v: int, lines: Lines) -> float:
    """The largest P(v or more right) that the inequalities of the f-DP analysis allow: a linear programme in p.

    ``lines``: (a, b) with power ≤ a + b · type-I error, which together are the trade-off function.
    """
    right = np.arange(r + 1)
    upper, bounds = [], []
    for i in range(1, r + 1):
        wins = np.where(right >= i, right, 0) / m
        losses = np.where(right >= i - 1, r - right, 0) / m
        upper += [wins - b * losses for _, b in lines]
        bounds += [a for a, _ in lines]
    found = optimize.linprog(
        -(right >= v).astype(float), np.array(upper), bounds, np.ones((1, r + 1)), [1.0], method="highs"
    )
    assert found.status == 0
    return float(-found.fun)


def lines_of_epsilon_delta(epsilon: float, delta: float) -> Lines:
    return [(delta, math.exp(epsilon)), (1 - math.exp(-epsilon) * (1 - delta), math.exp(-epsilon))]


def lines_of_gaussian(mu: float) -> Lines:
    """Tangents of Φ(Φ⁻¹(α) + μ) at α = Φ(z): slope φ(z + μ)/φ(z)."""
    found = []
    for z in np.linspace(-6, 6, 121):
        slope = math.exp(-mu * z - mu**2 / 2)
        found.append((float(stats.norm.cdf(z + mu) - slope * stats.norm.cdf(z)), slope))
    return found


def check_recursion_solves_the_linear_programme() -> None:
    for m, r, v, epsilon, delta in (
        (12, 12, 9, 0.7, 0.0),
        (12, 12, 12, 1.5, 0.0),
        (40, 10, 8, 1.0, 1e-3),
        (60, 20, 15, 0.3, 5e-3),
    ):
        level = most_probable(m, r, v, lines_of_epsilon_delta(epsilon, delta))
        assert 0.001 < level < 0.9
        inverse = audit.epsilon_delta_inverse(epsilon, delta)
        assert audit.f_dp_excludes(m, r, v, inverse, level * 1.001)
        assert not audit.f_dp_excludes(m, r, v, inverse, level * 0.999)


def check_recursion_solves_the_gaussian_programme() -> None:
    for m, r, v, mu in ((12, 12, 11, 1.0), (40, 20, 17, 0.5), (40, 8, 8, 1.0)):
        level = most_probable(m, r, v, lines_of_gaussian(mu))
        assert 0.001 < level < 0.9
        inverse = audit.gaussian_inverse(mu)
        assert audit.f_dp_excludes(m, r, v, inverse, level * 1.02)  # the tangents allow a little more
        assert not audit.f_dp_excludes(m, r, v, inverse, level * 0.98)


def one_run_exceedances(kind: str, analysis: str) -> int:
    """How many of 1,000 one-run audits of canaries that are protected exactly so state more than the truth."""
    rng = np.random.default_rng(11)
    m, delta, truth, pairs = 120, 0.0, RESPONSE, (20, 20)
    if kind == "leaky":
        m, delta, truth, pairs = 300, 0.03, 0.5, (5, 5)
    if kind == "gaussian":
        delta, truth = 0.01, gaussian_epsilon(1.0, 0.01)
    known: dict[int, float] = {}
    above = 0
    for _ in range(AUDITS):
        included = rng.random(m) < 0.5
        worlds = included.astype(int)
        if kind == "gaussian":
            scores = rng.normal(worlds, 1.0)
        elif kind == "laplace":
            scores = rng.laplace(RESPONSE * worlds, 1.0)
        else:
            told = np.where(rng.random(m) < 1 / (1 + math.exp(-truth)), worlds, 1 - worlds)
            scores = told.astype(float)
            if kind == "leaky":
                scores = np.where(rng.random(m) < delta, 10.0 * (2 * worlds - 1), scores)
        right = audit.correct_guesses(audit.guess(scores, *pairs), included)
        if right not in known:
            known[right] = audit.audit_one_run(
                scores, included, delta=delta, guesses=pairs, analysis=analysis
            ).epsilon_lower
        above += known[right] > truth
    return above


def check_one_run_allows_leaks_of_probability_delta() -> None:
    assert one_run_exceedances("leaky", "binomial") <= MOST


def check_ties_are_broken_by_lot() -> None:
    """Equal scores of canaries that are listed in the order of their coins say nothing (a lot helps once in 10^10)."""
    included = np.arange(200) >= 100
    for coins in (included, ~included):
        found = audit.audit_one_run(np.zeros(200), coins, delta=0.0, guesses=(50, 50), confidence=1 - 1e-10)
        assert found.epsilon_lower == 0


def check_guesses_are_the_extreme_scores() -> None:
    scores = np.array([0.3, -2.0, 5.0, 1.0, -0.5, 0.0])
    assert audit.guess(scores, 2, 1).tolist() == [0, -1, 1, 1, 0, 0]
    assert audit.guess(scores, 2, 1, sign=-1).tolist() == [0, 1, -1, 0, 1, 0]
    included = np.array([False, True, True, False, True, False])
    assert audit.correct_guesses(audit.guess(scores, 2, 1), included) == 1
    found = audit.audit_one_run(scores, included, delta=0.0, guesses=(2, 1))
    assert dict(found.counts) == {
        "canaries": 6,
        "guesses": 3,
        "guessed_in": 2,
        "guessed_out": 1,
        "correct": 1,
        "attempts": 1,
    }


# ------------------------------------------------------------------------------------------- guesses about two worlds


def check_guess_bound_by_hand() -> None:
    """1,000 runs: 300 guesses "in" and 100 "out", of which 240 and 90 are right; both limits from scipy."""
    scores = np.repeat([2.0, 0.0, -2.0], [300, 600, 100])
    included = np.concatenate([np.arange(300) < 240, np.arange(600) % 2 == 0, np.arange(100) >= 90])
    for delta, cuts, guesses, right, sides in (
        (0.0, (-1.0, 1.0), 400, 330, 2),
        (0.01, (-1.0, 1.0), 400, 330, 2),
        (0.01, (-math.inf, 1.0), 300, 240, 1),
        (0.01, (-1.0, math.inf), 100, 90, 1),
    ):
        found = audit.guess_worlds(scores, included, cuts, delta=delta)
        assert (found.counts["guesses"], found.counts["correct"]) == (guesses, right)
        level = 0.05 if delta == 0 else 0.95 * 0.05
        p = stats.binomtest(right, guesses).proportion_ci(1 - 2 * level, "exact").low
        g = stats.binomtest(guesses, 1000).proportion_ci(1 - 2 * 0.05 * 0.05, "exact").low
        expected = math.log((p - sides * delta / (2 * g)) / (1 - p))
        assert math.isclose(found.epsilon_lower, expected, rel_tol=1e-6)


def guess_exceedances(
    mechanism: Callable[[np.random.Generator, int, int], np.ndarray],
    truth: float,
    cuts: tuple[float, float],
    *,
    runs: int,
    delta: float,
) -> int:
    """How many of 1,000 audits by guesses state more than ``truth``."""
    rng = np.random.default_rng(13)
    above = 0
    for _ in range(AUDITS):
        included = rng.random(runs) < 0.5
        scores = np.where(included, mechanism(rng, 1, runs), mechanism(rng, 0, runs))
        above += audit.guess_worlds(scores, included, cuts, delta=delta).epsilon_lower > truth
    return above


def both_ways(delta: float) -> Callable[[np.random.Generator, int, int], np.ndarray]:
    """0, but 1 or −1, which says the world, with probability δ: (0, δ)-private and not better."""
    return lambda rng, world, count: (2 * world - 1) * (rng.random(count) < delta).astype(float)


def check_guesses_allow_leaks_of_probability_delta() -> None:
    assert guess_exceedances(both_ways(LEAK), 0.0, (-1.0, 1.0), runs=4000, delta=LEAK) <= MOST
    assert guess_exceedances(leaky(LEAK), 0.0, (-math.inf, 1.0), runs=4000, delta=LEAK) <= MOST


def check_useless_guesses_prove_nothing() -> None:
    assert guess_exceedances(useless, 0.0, (-0.5, 0.5), runs=400, delta=0.0) <= MOST


def check_two_bounds_share_the_confidence() -> None:
    """The planned and the searched bound of the command fail together with at most 1 − confidence."""
    levels = []

    def noted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            levels.append(1 - named["confidence"])
            return real(*arguments, **named)

        return call

    settings = command.checked(command.Settings(epsilon=2.0, runs=2000, steps=1, confidence=0.99))
    plan = command.plan_of(settings, 2000)
    rng = np.random.default_rng(3)
    included = rng.random(2000) < 0.5
    scored = command.scores_of(rng.normal(included[:, None], plan.noise_multiplier), plan, settings)
    with (
        mock.patch.object(audit, "guess_worlds", noted(audit.guess_worlds)),
        mock.patch.object(audit, "distinguish_scores", noted(audit.distinguish_scores)),
    ):
        _, found = command.two_world(scored, included, plan, settings)
    assert found.confidence == 0.99
    assert math.isclose(levels[0] + levels[-1], 0.01, rel_tol=1e-9)  # those between choose the score
    assert min(levels[0], levels[-1]) > 0.001


def check_cuts_do_not_see_the_runs() -> None:
    """Other runs, the same cuts."""
    settings = command.checked(command.Settings(epsilon=2.0, runs=2000, steps=1))
    plan = command.plan_of(settings, 2000)
    rng, cuts = np.random.default_rng(3), []
    real = audit.guess_worlds

    def noted(scores: Any, included: Any, given: Any, **named: Any) -> Any:
        cuts.append(given)
        return real(scores, included, given, **named)

    for _ in range(2):
        included = rng.random(2000) < 0.5
        scored = command.scores_of(rng.normal(3.0 * included[:, None], 1.0), plan, settings)
        with mock.patch.object(audit, "guess_worlds", noted):
            command.two_world(scored, included, plan, settings)
    assert cuts[0] == cuts[1]


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε(δ) of N(0, 1) against N(μ, 1) from its profile (Balle and Wang 2018, Theorem 8), by root finding."""

    def excess(epsilon: float) -> float:
        found = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        return float(found) - delta

    return float(optimize.brentq(excess, 0.0, 50.0, xtol=1e-12))


def check_coins_are_fair() -> None:
    """Within 6 standard deviations of a half."""
    assert abs(int(audit.fair_coins(20_000, seed=1).sum()) - 10_000) < 6 * math.sqrt(5000)


def make_repeatable(patch: pytest.MonkeyPatch, seed: int = 7) -> None:
    """Fixed noise and coins, so that a test of an attack's power cannot fail by chance.  Audits draw anew."""
    real, seeds = np.random.default_rng, itertools.count(seed)

    def generator(given: Any = None) -> np.random.Generator:
        return real(next(seeds) if given is None else given)

    patch.setattr(np.random, "default_rng", generator)
    patch.setattr("dpml.mechanisms.SecretNoise", lambda threads=None: FixedNoise(seed))
