"""Races, coins and rounded noise are decided exactly, also where 53 digits of a uniform number do not settle them."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import selection_checks as checks
from scipy import stats

from dpml import errors
from dpml.mechanisms import FixedNoise, SecretNoise, races


class Begins:
    """A source whose first uniform numbers are given; what follows is random."""

    secret = False

    def __init__(self, first, seed=0):
        self.first, self.rest, self.asked = np.asarray(first, dtype=float), FixedNoise(seed), 0

    def normal(self, std, shape):
        raise AssertionError("no normal draws here")

    def uniform(self, size):
        self.asked += 1
        return self.first.copy() if self.asked == 1 else self.rest.uniform(size)


def true_quantile(kind, upper):
    """With 60 digits, by mpmath."""
    u = mpmath.mpf(upper)
    if kind == "gumbel":
        return -mpmath.log(-mpmath.log(1 - u))
    if kind == "exponential":
        return -mpmath.log(u)
    return -mpmath.log(2 * u) if u <= 0.5 else mpmath.log(2 * (1 - u))


@pytest.mark.parametrize("kind", races.KINDS)
def test_bounds_hold_the_truth(kind):
    """At random and at extreme digits, in double precision and with more digits."""
    rng = np.random.default_rng(0)
    top = 1 << races.BITS
    drawn = [0, 1, 2, top // 2 - 1, top // 2, top - 2, top - 1, *rng.integers(0, top, 60).tolist()]
    drawn += [int(2.0 ** rng.uniform(0, 53)) for _ in range(60)]
    low, high = races.widened(*races.bounds(kind, np.array(drawn)))
    with mpmath.workdps(80):
        for digits, a, b in zip(drawn, low.tolist(), high.tolist(), strict=True):
            if digits + 1 < top:
                assert a < true_quantile(kind, mpmath.mpf(digits + 1) / top) < b
            assert digits == 0 or a < true_quantile(kind, mpmath.mpf(digits) / top) < b
            if 0 < digits < top - 1:
                assert b - a < 1e-12 * (1 + abs(a)) + 3 * float(
                    true_quantile(kind, mpmath.mpf(digits) / top) - true_quantile(kind, mpmath.mpf(digits + 1) / top)
                )


@pytest.mark.parametrize("scale", [0.3, 7.0, 2.0**20, 2.0**45])
@pytest.mark.parametrize("kind", races.KINDS)
def test_rounding_is_that_of_a_number_in_the_cell(kind, scale):
    """The integer lies between the roundings at both ends of the cell; at 2^45 doubles can not decide, decimals do."""
    drawn = races.digits(200, FixedNoise(3))
    got = races.rounded(kind, Fraction(scale), 200, Begins(drawn * 2.0**-53))
    with mpmath.workdps(60):
        for digits, value in zip(drawn.tolist(), got, strict=True):
            ends = [true_quantile(kind, mpmath.mpf(d) / 2**53) * scale + 0.5 for d in (digits + 1, digits)]
            assert int(mpmath.floor(ends[0])) <= value <= int(mpmath.floor(ends[1]))


@pytest.mark.parametrize("kind", ["laplace", "exponential"])
def test_the_tail_goes_on_behind_the_last_cell(kind):
    """All 53 digits zero: noise beyond ln 2^53 (or ln 2^52), the excess exponential again (KS test)."""
    start = (53 if kind == "exponential" else 52) * math.log(2)
    values = [races.rounded(kind, Fraction(2**20), 1, Begins([0.0], seed))[0] / 2**20 for seed in range(400)]
    assert stats.kstest(np.array(values) - start, stats.expon.cdf).pvalue > checks.FALSE_ALARM


def test_noise_follows_its_distribution():
    """KS tests of 20,000 draws each at 2^30 steps per scale; a scale wrong by 30 % is seven deviations away."""
    noise = SecretNoise()
    for kind, law in (("laplace", stats.laplace), ("exponential", stats.expon), ("gumbel", stats.gumbel_r)):
        values = np.array(races.rounded(kind, Fraction(2**30), 20_000, noise)) / 2.0**30
        assert stats.kstest(values, law.cdf).pvalue > checks.FALSE_ALARM
        assert stats.kstest(values * 1.3, law.cdf).pvalue < checks.FALSE_ALARM


def test_probabilities_of_single_steps():
    """Rounded Laplace noise of scale 1.5 has P(k) = F((k + ½)/1.5) − F((k − ½)/1.5): chi-square."""
    values = races.rounded("laplace", Fraction(3, 2), 40_000, SecretNoise())
    edges = np.arange(-4, 6) - 0.5
    expected = np.diff(np.concatenate(([0.0], stats.laplace(scale=1.5).cdf(edges), [1.0])))
    counts = np.histogram(values, bins=np.concatenate(([-np.inf], edges, [np.inf])))[0]
    checks.chi_square(counts, expected)


@pytest.mark.parametrize("kind", races.KINDS)
def test_a_candidate_far_below_wins_as_often_as_it_should(kind):
    """Given that its 53 digits are all zero (+36.7 and an exponential number), a candidate 38 below wins at times.

    53-bit noise would let it win never or always.  Binomial test, 1500 races; power against both: 1.
    """
    start = (52 if kind == "laplace" else 53) * math.log(2)
    other = float(races.quantile(kind, np.array([0.5]))[0])
    distance = start + 1.0 - other  # the excess must be above 1
    scores = np.array([0.0, -distance])
    wins = sum(races.winner(kind, scores, Fraction(1), Begins([0.5, 0.0], seed)) for seed in range(1500))
    low, high = stats.binom(1500, math.exp(-1)).ppf([5e-7, 1 - 5e-7])
    assert low <= wins <= high


@pytest.mark.parametrize("kind", races.KINDS)
def test_equal_first_digits_are_decided_by_the_next(kind):
    """Three candidates with the same 53 digits and equal scores: each wins a third (chi-square)."""
    counts = np.zeros(3, dtype=int)
    for seed in range(900):
        counts[races.winner(kind, np.zeros(3), Fraction(1), Begins([0.3, 0.3, 0.3], seed))] += 1
    checks.chi_square(counts.tolist(), [1 / 3] * 3)


def test_scores_one_unit_in_the_last_place_apart_are_told_apart():
    """With equal digits the better score wins, however long it takes to see: exact rational scores."""

    class Same:
        secret = False

        def uniform(self, size):
            return np.full(size, 0.3)

    scores = np.array([1.0, math.nextafter(1.0, 2.0)])
    assert races.winner("gumbel", scores, Fraction(1, 10**9), Same()) == 1
    with pytest.raises(errors.ConfigError, match="not random"):
        races.winner("gumbel", np.zeros(2), Fraction(1), Same())


def test_weights_count_as_exact_numbers():
    """Equal digits: ln of a weight one unit in the last place larger decides."""

    class Same:
        secret = False

        def uniform(self, size):
            return np.full(size, 0.3)

    weights = np.array([math.nextafter(3.0, 4.0), 3.0])
    assert races.winner("gumbel", np.zeros(2), Fraction(1), Same(), weights) == 0


def test_coins():
    """P(True) = e^{factor·(score − best)}: binomial tests; the best one always shows True; a far one by its tail."""
    scores = np.repeat([0.0, -1.0, -3.0], 20_000)
    shown = races.coins(scores, Fraction(1, 2), SecretNoise()).reshape(3, -1).sum(axis=1)
    assert shown[0] == 20_000
    for count, chance in ((shown[1], math.exp(-0.5)), (shown[2], math.exp(-1.5))):
        low, high = stats.binom(20_000, chance).ppf([5e-7, 1 - 5e-7])
        assert low <= count <= high
    far = np.array([0.0, -(53 * math.log(2) + 1.0)])
    wins = sum(bool(races.coins(far, Fraction(1), Begins([0.5, 0.0], seed))[1]) for seed in range(1500))
    low, high = stats.binom(1500, math.exp(-1)).ppf([5e-7, 1 - 5e-7])
    assert low <= wins <= high
    assert races.coins(np.array([1e300, -1e300]), Fraction(1), Begins([0.5, 0.5])).tolist() == [True, False]


def test_uniform_numbers_below():
    counts = np.bincount([races.uniform_below(7, NOISE) for _ in range(7000)], minlength=7)
    checks.chi_square(counts.tolist(), [1 / 7] * 7)
    assert races.uniform_below(1, NOISE) == 0
    top = (2**53 - 1) * 2.0**-53  # surplus: 2^53 is no multiple of 3
    assert races.uniform_below(3, Begins([top], 1)) == races.uniform_below(3, Begins(FixedNoise(1).uniform(1)))


def test_permutations():
    seen = checks.counted(lambda: tuple(races.permutation(3, NOISE)), [(0, 1, 2), (0, 2, 1), (1, 0, 2), *LATER], 4000)
    checks.chi_square(seen, [1 / 6] * 6)
    assert sorted(races.permutation(3, Begins([0.5, 0.5, 0.1])).tolist()) == [0, 1, 2]  # drawn again


NOISE = SecretNoise()
LATER = [(1, 2, 0), (2, 0, 1), (2, 1, 0)]
