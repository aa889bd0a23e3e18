"""Exact samplers of whole numbers and of rounded real ones, and the two mechanisms for whole numbers."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mechanism_checks as checks
import numpy as np
import pytest
from scipy import stats

from dpml import accounting as acc
from dpml.errors import ConfigError, DataError
from dpml.mechanisms import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    FixedNoise,
    SecretNoise,
    discrete,
    exact,
    exact_reals,
)

DRAWS = 40_000


# ------------------------------------------------------------------------------------------------------ exact coins
def test_words_are_the_53_bits_of_a_uniform_number() -> None:
    for source in (SecretNoise(), FixedNoise(1)):
        uniform = source.uniform(1000)
        assert (uniform * 2.0**53 == np.rint(uniform * 2.0**53)).all(), "a multiple of 2^-53"
        assert (np.rint(uniform * 2.0**53) % 2 == 1).any(), "down to the last bit"
    drawn = exact.words(1000, FixedNoise(1))
    assert (drawn == FixedNoise(1).uniform(1000) * 2.0**53).all()


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 7, 8, 31, 33, 63, 64])
def test_below_is_uniform_exactly(monkeypatch, limit) -> None:
    """Each of the 64 words once: every number comes equally often, the words above the last multiple go."""
    monkeypatch.setattr(exact, "WORD", 6)
    cut = 64 - 64 % limit
    source = checks.CountingWords(6)
    first = exact.below(limit, cut, source)
    assert (np.bincount(first, minlength=limit) == cut // limit).all()
    source = checks.CountingWords(6)
    second = exact.below(limit, 64, source)
    if cut < 64:
        assert source.given > 64, "drawn again"
    assert second.min() >= 0
    assert second.max() < limit
    each = exact.below_each(np.full(cut, limit), checks.CountingWords(6))
    assert (each == first).all()


def test_a_coin_of_a_fraction_is_exact(monkeypatch) -> None:
    """17/45 against uniform numbers of three 4-bit digits: the exact share of all 2^12 comes up true."""
    monkeypatch.setattr(exact, "WORD", 4)
    fraction = exact.Fractions(np.array([17], dtype=object), 45)

    class Digits:
        secret = False

        def __init__(self, digits):
            self.digits = list(digits)

        def uniform(self, size):
            return np.array([self.digits.pop(0) for _ in range(size)]) / 16

    won = undecided = 0
    for digits in itertools.product(range(16), repeat=3):
        try:
            won += int(fraction.coins(np.zeros(1, dtype=np.int64), Digits(digits))[0])
        except IndexError:
            undecided += 1
    assert won == 17 * 16**3 // 45
    assert undecided == 1


def test_coins_of_exponentials() -> None:
    """e^{−γ} for γ = 0, 1/3, 1/2, 1 and 2, 5; binomial tests at 1e-6.  Power: a share that is off by 0.013 is seen."""
    source = SecretNoise()
    for numerator, denominator in ((0, 1), (1, 3), (1, 2), (1, 1)):
        won = exact.same_exp_coins(numerator, denominator, DRAWS, source).sum()
        assert stats.binomtest(int(won), DRAWS, math.exp(-numerator / denominator)).pvalue > checks.FALSE_ALARM
    for power in (0, 2, 5):
        won = exact.exp_powers(np.full(DRAWS, power), source).sum()
        assert stats.binomtest(int(won), DRAWS, math.exp(-power)).pvalue > checks.FALSE_ALARM
    with pytest.raises(AssertionError):
        checks.fits(
            [DRAWS * (math.exp(-1) + 0.013), DRAWS * (1 - math.exp(-1) - 0.013)], [math.exp(-1), -math.expm1(-1)]
        )


# ------------------------------------------------------------------------------------------------- goodness of fit
@pytest.mark.parametrize("scale", [Fraction(1, 3), 1, Fraction(7, 4), 5, Fraction(41, 2)])
def test_discrete_laplace(scale) -> None:
    draws = exact.discrete_laplace(scale, DRAWS, SecretNoise())
    checks.whole_numbers_fit(draws, lambda z: np.exp(-np.abs(z) / float(scale)))


@pytest.mark.parametrize("std", [0.3, 0.5, 1.0, 1.7, 6.25, 15.0])
def test_discrete_gaussian(std) -> None:
    draws = exact.discrete_gaussian(std, DRAWS, SecretNoise())
    checks.whole_numbers_fit(draws, lambda z: np.exp(-(z**2) / (2 * std**2)))


def normal_cells(std):
    """P(rint(N) = z) for N ~ N(0, std²)."""
    return lambda z: stats.norm.cdf((z + 0.5) / std) - stats.norm.cdf((z - 0.5) / std)


@pytest.mark.parametrize("std", [1, 2, 7, 12])
def test_rounded_gaussian(std) -> None:
    checks.whole_numbers_fit(exact_reals.rounded_gaussian(std, DRAWS, SecretNoise()), normal_cells(std))


def test_large_scales_against_continuous_distributions() -> None:
    draws = exact.discrete_laplace(2**30 + 1, DRAWS, SecretNoise()) / (2**30 + 1)
    checks.draws_fit(draws, stats.laplace.cdf)
    draws = exact.discrete_gaussian(2.0**30 / 3, DRAWS // 4, SecretNoise()) / (2.0**30 / 3)
    checks.draws_fit(draws, stats.norm.cdf)
    draws = exact_reals.rounded_gaussian(2**40 - 1, DRAWS, SecretNoise()) / (2.0**40 - 1)
    checks.draws_fit(draws, stats.norm.cdf)


def test_comparisons_that_one_word_does_not_decide(monkeypatch) -> None:
    """With words of six bits one comparison in 64 needs a second word; the distributions stay what they are."""
    monkeypatch.setattr(exact, "WORD", 6)
    undecided = []
    for kind, name in ((exact_reals.Points, "_next_words"), (exact.Fractions, "_next_digits")):
        whole = getattr(kind, name)
        monkeypatch.setattr(
            kind, name, lambda self, place, noise, whole=whole: undecided.append(0) or whole(self, place, noise)
        )
    checks.whole_numbers_fit(exact_reals.rounded_gaussian(1, DRAWS, FixedNoise(5)), normal_cells(1))
    checks.whole_numbers_fit(exact_reals.rounded_gaussian(3, DRAWS, FixedNoise(6)), normal_cells(3))
    assert len(undecided) > 1000
    undecided.clear()
    std = 1.7
    draws = exact.discrete_gaussian(std, DRAWS, FixedNoise(7))
    checks.whole_numbers_fit(draws, lambda z: np.exp(-(z**2) / (2 * std**2)))
    assert len(undecided) > 300


@pytest.mark.parametrize("fault", ["zero twice", "scale", "tail cut", "kept too often"])
def test_power_of_the_fits(fault) -> None:
    """What a sampler of 40,000 draws with that fault looks like is caught (expected counts, no chance in it)."""
    z = np.arange(-60, 61)
    true = np.exp(-np.abs(z) / 5)
    faulty = {
        "zero twice": np.where(z == 0, 2 * true, true),
        "scale": np.exp(-np.abs(z) / 5.4),
        "tail cut": np.where(np.abs(z) > 20, 0, true),
        "kept too often": true + 0.1 * true.max() * (np.abs(z) == 5),
    }[fault]
    draws = np.repeat(z, np.rint(faulty / faulty.sum() * DRAWS).astype(int))
    with pytest.raises(AssertionError):
        checks.whole_numbers_fit(draws, lambda x: np.exp(-np.abs(x) / 5))
    good = np.repeat(z, np.rint(true / true.sum() * DRAWS).astype(int))
    checks.whole_numbers_fit(good, lambda x: np.exp(-np.abs(x) / 5))


def test_limits_of_the_samplers() -> None:
    source = FixedNoise(0)
    for call in (
        lambda: exact.below(0, 1, source),
        lambda: exact.below(2**53 + 1, 1, source),
        lambda: exact.geometric_steps(0, 1, source),
        lambda: exact.geometric_steps(2**52 + 1, 1, source),
        lambda: exact.discrete_laplace(0, 1, source),
        lambda: exact.discrete_laplace(Fraction(1, 2**60), 1, source),
        lambda: exact.discrete_gaussian(0.0, 1, source),
        lambda: exact.discrete_gaussian(2.0**41, 1, source),
        lambda: exact_reals.rounded_gaussian(0, 1, source),
        lambda: exact_reals.rounded_gaussian(2**46 + 1, 1, source),
        lambda: exact_reals.l2_laplace(0, 1, source),
        lambda: exact_reals.linf_laplace(2**46, 2, source),
    ):
        with pytest.raises(ConfigError):
            call()
    for sampler in (exact.discrete_laplace, exact.discrete_gaussian, exact_reals.rounded_gaussian):
        assert sampler(1, 0, source).size == 0
        assert sampler(1, 5, source).dtype == np.int64


# ---------------------------------------------------------------------------------------------------- mechanisms
def test_two_worlds_exactly() -> None:
    checks.discrete_mechanisms_hold()


@pytest.mark.parametrize("sensitivity", [1, 2, 7, 1000])
@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 3.0, 50.0, 1000.0])
def test_scale_of_the_discrete_laplace_mechanism(sensitivity, epsilon) -> None:
    m = DiscreteLaplaceMechanism(sensitivity, epsilon)
    ideal = Fraction(sensitivity) / Fraction(epsilon)
    assert 1 <= m.exact_scale / ideal < 1 + Fraction(1, 2**40)
    assert Fraction(m.scale) == m.exact_scale
    assert m.event == acc.Pure(epsilon)
    for relation in acc.RELATIONS:
        event = m.event_under(relation)
        assert acc.epsilon(event, 0.0, neighboring_relation=relation) <= epsilon * (1 + 1e-12)
    double = DiscreteLaplaceMechanism(4, 1.0).event_under("replace_one")
    assert double == acc.DiscreteLaplace(4.0, 2)
    assert DiscreteLaplaceMechanism(3, 1.0).event_under("replace_one") == acc.Pure(1.0)


def test_noise_of_the_discrete_gaussian_mechanism() -> None:
    m = DiscreteGaussianMechanism(1, rho=0.125)
    assert m.std == pytest.approx(2.0)
    assert m.event == acc.ZCDP(0.125)
    assert m.event_under("add_remove") == acc.DiscreteGaussian(m.std, 1)
    assert m.event_under("replace_one") == m.event
    assert DiscreteGaussianMechanism(2, rho=0.125).event_under("replace_one") == acc.DiscreteGaussian(m.std * 2, 1)
    assert DiscreteGaussianMechanism(1, rho=0.125, dimension=2).event_under("add_remove") == m.event
    assert DiscreteGaussianMechanism(math.sqrt(2), noise_std=2.0).event.rho == pytest.approx(0.25, rel=1e-12)
    both = DiscreteGaussianMechanism(1, epsilon=1.0, delta=1e-6)
    for relation in acc.RELATIONS:
        for event in (both.event, both.event_under(relation)):
            assert acc.epsilon(event, 1e-6, neighboring_relation=relation) <= 1.0
    assert acc.epsilon(both.event_under("add_remove"), 1e-6) > 0.8


def test_values_and_answers() -> None:
    for m in (DiscreteLaplaceMechanism(1, 1.0), DiscreteGaussianMechanism(1, rho=0.5)):
        for value in (5, 5.0, np.int32(5), np.array(5)):
            answer = m.release(value, FixedNoise(0)).value
            assert isinstance(answer, int)
            assert abs(answer - 5) < 60
        assert abs(m.release(2**60, FixedNoise(0)).value - 2**60) < 60, "no float in between"
        assert abs(m.release(-(2**63), FixedNoise(0)).value + 2**61) < 60, "moved to the limit"
        assert abs(m.release(1e300, FixedNoise(0)).value - 2**61) < 60
        assert abs(m.release(np.uint64(2**64 - 1), FixedNoise(0)).value - 2**61) < 60
        for wrong in (0.5, np.array([0.5]), [1, 2], "3", None, 2**70 + 0.5j):
            with pytest.raises(DataError):
                m.release(wrong)
    many = DiscreteLaplaceMechanism(1, 1.0, dimension=5000).release(np.zeros(5000, dtype=int), SecretNoise()).value
    checks.whole_numbers_fit(many, lambda z: np.exp(-np.abs(z)))
    many = DiscreteGaussianMechanism(1, rho=0.5, dimension=5000).release(np.zeros(5000, dtype=int), SecretNoise()).value
    checks.whole_numbers_fit(many, lambda z: np.exp(-(z**2) / 2))
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 6 / math.sqrt(5000)


def test_error_statements_against_the_pmf() -> None:
    """Exact tails: at m the failure is within β; the discrete Laplace's m is the smallest such."""
    z = np.arange(-20_000, 20_001)
    for dimension in (1, 10, 1000):
        for beta in (0.5, 0.05, 1e-6):
            for epsilon in (0.05, 1.0, 8.0):
                m = DiscreteLaplaceMechanism(1, epsilon, dimension=dimension)
                pmf = discrete.discrete_laplace_pmf(z, m.scale)
                fails = [1 - (1 - pmf[np.abs(z) > at].sum()) ** dimension for at in (m.error(beta), m.error(beta) - 1)]
                assert fails[0] <= beta * (1 + 1e-6)
                assert fails[1] > beta * (1 - 1e-6)
            for std in (0.4, 3.0, 50.0):
                g = DiscreteGaussianMechanism(1, noise_std=std, dimension=dimension)
                pmf = discrete.discrete_gaussian_pmf(z, std)
                fails = [1 - (1 - pmf[np.abs(z) > at].sum()) ** dimension for at in (g.error(beta), g.error(beta) - 3)]
                assert fails[0] <= beta * (1 + 1e-6)
                assert fails[1] > beta * (1 - 1e-6) or g.error(beta) < 3


def test_pmfs_are_probabilities() -> None:
    z = np.arange(-3000, 3001)
    assert discrete.discrete_laplace_pmf(z, 7.5).sum() == pytest.approx(1.0, rel=1e-12)
    assert discrete.discrete_gaussian_pmf(z, 7.5).sum() == pytest.approx(1.0, rel=1e-12)
    assert discrete.discrete_gaussian_pmf(0, 100.0) == pytest.approx(1 / math.sqrt(2 * math.pi) / 100, rel=1e-9)
    assert discrete.discrete_laplace_pmf(3, 2.0) == pytest.approx(math.exp(-1.5) * math.tanh(0.25), rel=1e-12)
    assert discrete.discrete_laplace_tail(4, 3.0) == pytest.approx(
        1 - discrete.discrete_laplace_pmf(np.arange(-4, 5), 3.0).sum(), rel=1e-12
    )


@pytest.mark.parametrize("make", [
    lambda: DiscreteLaplaceMechanism(0, 1.0),
    lambda: DiscreteLaplaceMechanism(1.5, 1.0),
    lambda: DiscreteLaplaceMechanism(-1, 1.0),
    lambda: DiscreteLaplaceMechanism(float("nan"), 1.0),
    lambda: DiscreteLaplaceMechanism(1, 0.0),
    lambda: DiscreteLaplaceMechanism(1, float("inf")),
    lambda: DiscreteLaplaceMechanism(1, 1e-14),
    lambda: DiscreteLaplaceMechanism(1, 1.0, dimension=0),
    lambda: DiscreteGaussianMechanism(0, rho=1.0),
    lambda: DiscreteGaussianMechanism(float("inf"), rho=1.0),
    lambda: DiscreteGaussianMechanism(1),
    lambda: DiscreteGaussianMechanism(1, rho=0.0),
    lambda: DiscreteGaussianMechanism(1, rho=1.0, noise_std=1.0),
    lambda: DiscreteGaussianMechanism(1, epsilon=1.0),
    lambda: DiscreteGaussianMechanism(1, delta=1e-5),
    lambda: DiscreteGaussianMechanism(1, epsilon=0.0, delta=1e-5),
    lambda: DiscreteGaussianMechanism(1, epsilon=1.0, delta=0.0),
    lambda: DiscreteGaussianMechanism(1, noise_std=0.0),
    lambda: DiscreteGaussianMechanism(1, noise_std=2.0**41),
    lambda: DiscreteGaussianMechanism(1, rho=1e-30),
])  # fmt: skip
def test_bad_arguments(make) -> None:
    with pytest.raises(ConfigError):
        make()
