"""Checks that the tests run on whole code and tests/planted_bugs on broken code.  Each raises AssertionError.

``FALSE_ALARM`` is the probability with which one statistical check fails on whole code.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
from scipy import stats

from dpml import accounting as acc
from dpml.mechanisms import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    FixedNoise,
    GaussianMechanism,
    LaplaceMechanism,
    MetricMechanism,
    RandomizedResponseMechanism,
    SecretNoise,
    ThresholdedHistogram,
    laplace,
)

FALSE_ALARM = 1e-6


class CountingWords:
    """A noise source whose words (of ``bits`` bits) are 0, 1, 2, …, each once: what it gives can be counted exactly."""

    secret = False

    def __init__(self, bits: int) -> None:
        self.bits, self.given = bits, 0

    def uniform(self, size):
        out = np.arange(self.given, self.given + size) % (1 << self.bits)
        self.given += size
        return out / 2.0**self.bits

    def normal(self, std, shape):
        raise AssertionError("normal draws are not exact")


class Blocks:
    """A :class:`SecretNoise` whose uniform draws are fetched in blocks: faster for many small releases."""

    secret = True

    def __init__(self, size: int = 1 << 17) -> None:
        self.source, self.size, self.left = SecretNoise(), size, np.empty(0)

    def uniform(self, size):
        if size > self.left.size:
            self.left = self.source.uniform(max(self.size, size))
        out, self.left = self.left[:size].copy(), self.left[size:]
        return out

    def normal(self, std, shape):
        return self.source.normal(std, shape)


# ---------------------------------------------------------------------------------------------------- goodness of fit
def fits(counts, probabilities) -> None:
    """Chi-square at FALSE_ALARM.  Cells with less than 10 expected draws are put together."""
    counts, probabilities = np.asarray(counts, dtype=float), np.asarray(probabilities, dtype=float)
    expected = counts.sum() * probabilities
    order = np.argsort(-expected)
    counts, expected = counts[order], expected[order]
    large = expected >= 10
    counts = np.append(counts[large], counts[~large].sum())
    expected = np.append(expected[large], max(counts.sum() - expected[large].sum(), 1e-300))
    if expected[-1] < 10:
        counts = np.append(counts[:-2], counts[-2:].sum())
        expected = np.append(expected[:-2], expected[-2:].sum())
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert stats.chi2.sf(statistic, counts.size - 1) > FALSE_ALARM, statistic


def whole_numbers_fit(draws, weight) -> None:
    """Whole draws against P(z) ∝ weight(z)."""
    reach = int(max(np.abs(draws).max(), 60))
    z = np.arange(-reach, reach + 1)
    weights = weight(z.astype(float))
    fits(np.bincount(draws + reach, minlength=z.size), weights / weights.sum())


def draws_fit(draws, cdf) -> None:
    """Kolmogorov-Smirnov at FALSE_ALARM; the grid's steps are far below what it can see."""
    assert stats.kstest(draws, cdf).pvalue > FALSE_ALARM


# ------------------------------------------------------------------------------------------------------- two worlds
def profile_holds(first, second, event, relation="add_remove") -> None:
    """Exact: Σ (P − e^ε Q)₊ <= δ(ε) of the event, both ways, at many ε."""
    for p, q in ((first, second), (second, first)):
        for epsilon in (0.0, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.4, 2.0, 3.0):
            reached = np.maximum(p - math.exp(epsilon) * q, 0.0).sum()
            allowed = acc.delta(event, epsilon, neighboring_relation=relation)
            assert reached <= allowed * (1 + 1e-9) + 1e-13, (epsilon, reached, allowed)


def attack_stays_below(first, second, event, relation="add_remove", *, cuts=(0.5, 0.9, 0.99)) -> float:
    """The likelihood-ratio attack on draws from two worlds: no better than the event's trade-off curve allows.

    For monotone likelihood ratios the best tests are "answer > c"; c is taken from quantiles of half of the first
    world's draws, the rates from the other halves.  Clopper-Pearson limits, FALSE_ALARM for each.  Returns the largest
    true-positive rate that was reached in units of the allowed one, so that a caller can ask for power.
    """
    half = len(first) // 2
    near = 0.0
    for cut in np.quantile(first[:half], cuts):
        alarms, hits = int((first[half:] > cut).sum()), int((second > cut).sum())
        most = stats.beta.isf(FALSE_ALARM, alarms + 1, len(first) - half - alarms)
        least = stats.beta.ppf(FALSE_ALARM, hits, len(second) - hits + 1) if hits else 0.0
        allowed = 1 - acc.tradeoff(event, [most], neighboring_relation=relation)[0]
        assert least <= allowed, (cut, least, allowed)
        near = max(near, least / allowed)
    return near


def laplace_two_worlds(epsilon=1.5) -> None:
    """S = 3; 40,000 draws in each world.  Power: noise of two thirds of the scale is caught (planted)."""
    one = LaplaceMechanism(3.0, epsilon)
    many = LaplaceMechanism(3.0, epsilon, dimension=40_000)  # the same noise but for 2^-12
    source = Blocks()
    draws = many.release(np.zeros(40_000), source).value, many.release(np.full(40_000, 3.0), source).value
    near = attack_stays_below(*draws, acc.Laplace(1 / epsilon))
    attack_stays_below(*draws, acc.Pure(epsilon))
    assert near > 0.9, "the attack comes near to what is allowed"
    single = np.array([one.release(1.0, source).value - 1.0 for _ in range(2000)])
    draws_fit(single, stats.laplace(scale=3.0 / epsilon).cdf)


def gaussian_two_worlds() -> None:
    """σ/S = 1; 40,000 draws in each world.  Power: noise of three quarters of the standard deviation is caught."""
    many = GaussianMechanism(2.0, noise_multiplier=1.0, dimension=40_000)
    source = Blocks()
    draws = many.release(np.zeros(40_000), source).value, many.release(np.full(40_000, 2.0), source).value
    near = attack_stays_below(*draws, acc.Gaussian(1.0))
    assert near > 0.9, "the attack comes near to what is allowed"
    one = GaussianMechanism(2.0, noise_multiplier=1.0)
    single = np.array([one.release(1.0, source).value - 1.0 for _ in range(2000)])
    draws_fit(single, stats.norm(scale=2.0).cdf)


def coordinates_are_independent(make) -> None:
    """All coordinates of one release of zeros differ, and neighbours are uncorrelated (|r| < 6/√n: below 2e-9)."""
    noisy = make(5000).release(np.zeros(5000), SecretNoise()).value
    assert np.unique(noisy).size > 4900
    assert abs(np.corrcoef(noisy[:-1], noisy[1:])[0, 1]) < 6 / math.sqrt(5000)


# ------------------------------------------------------------------------------------------------- rounding is paid for
def laplace_rounding_is_paid(dimension=5, epsilon=0.7) -> None:
    """Exact: two vectors S apart whose coordinates rounding drives apart by (nearly) one step each."""
    g = LaplaceMechanism(1.5, epsilon, dimension=dimension).spacing
    whole = math.floor(1.4 / dimension / g)
    low, high = np.full(dimension, 0.499 * g), np.full(dimension, (whole + 0.501) * g)
    apart = sum((Fraction(b) - Fraction(a) for a, b in zip(low, high, strict=True)), Fraction(0))
    m = LaplaceMechanism(math.nextafter(float(apart), 2.0), epsilon, dimension=dimension)
    assert m.spacing == g
    moved = int(np.abs(laplace.to_whole_steps(high, g) - laplace.to_whole_steps(low, g)).sum())
    assert moved == dimension * (whole + 1)
    assert Fraction(moved, m.steps) <= Fraction(epsilon)


def gaussian_rounding_is_paid(sensitivity=1.0) -> None:
    """Exact: two numbers S apart whose roundings are S + g apart, against the μ that is charged."""
    for dimension in (1, 3, 1000):
        m = GaussianMechanism(sensitivity, noise_multiplier=2.0, dimension=dimension)
        g = m.grid.spacing
        apart = Fraction(sensitivity) + Fraction(math.isqrt(dimension - 1) + 1) * Fraction(g)
        mu = m.event.mu
        assert apart / Fraction(m.noise_std) <= Fraction(mu), dimension
        assert mu <= 0.5, "no dearer than declared"


# --------------------------------------------------------------------------------------------- exact checks by the pmf
def discrete_pair(m, shift):
    """The pmf of noise and of noise + shift for a discrete mechanism, from the formula in its docstring."""
    reach = 400 + shift
    z = np.arange(-reach, reach + 1 + shift, dtype=float)
    if isinstance(m, DiscreteLaplaceMechanism):
        weight = lambda x: np.exp(-np.abs(x) / m.scale)  # noqa: E731
    else:
        weight = lambda x: np.exp(-(x**2) / (2 * m.std**2))  # noqa: E731
    first, second = weight(z), weight(z - shift)
    return first / weight(np.arange(-5000.0, 5001)).sum(), second / weight(np.arange(-5000.0, 5001)).sum()


def discrete_mechanisms_hold() -> None:
    """Exact two-world test of the discrete mechanisms, all shifts up to the sensitivity, both relations."""
    for m in (
        DiscreteLaplaceMechanism(1, 0.5),
        DiscreteLaplaceMechanism(2, 0.5),
        DiscreteLaplaceMechanism(3, 1.3),
        DiscreteGaussianMechanism(1, rho=0.1),
        DiscreteGaussianMechanism(2, epsilon=1.0, delta=1e-5),
    ):
        for shift in range(1, int(m.sensitivity) + 1):
            pair = discrete_pair(m, shift)
            for relation in acc.RELATIONS:
                profile_holds(*pair, m.event, relation)
                profile_holds(*pair, m.event_under(relation), relation)


def metric_ratios(m) -> float:
    """Exact: the largest log-ratio of output probabilities over values within S, from the sampler's own exponents."""
    distances = np.asarray(m.matrix)
    rows = np.array([m.pmf(value) for value in m.outputs])
    worst = 0.0
    for a, b in itertools.permutations(range(len(rows)), 2):
        if distances[a, b] <= m.sensitivity:
            worst = max(worst, float(np.log(rows[a] / rows[b]).max()))
    return worst


def path(size=8, sensitivity=1.0, epsilon=1.0) -> MetricMechanism:
    """The numbers 0 … size − 1 with |a − b|: the normaliser depends on the value."""
    return MetricMechanism(sensitivity, epsilon, outputs=range(size), distance=lambda a, b: abs(a - b))


def circle(size=8, sensitivity=1.0, epsilon=1.0) -> MetricMechanism:
    """The same numbers around a circle: the normaliser does not."""
    return MetricMechanism(
        sensitivity, epsilon, outputs=range(size), distance=lambda a, b: min((a - b) % size, (b - a) % size)
    )


def metric_mechanism_holds() -> None:
    """ε is not exceeded; it is reached where the normaliser is the same, and more than half of it used elsewhere."""
    for epsilon in (0.3, 1.0, 4.0):
        assert 0.999 * epsilon <= metric_ratios(circle(epsilon=epsilon)) <= epsilon * (1 + 1e-9)
        assert 0.5 * epsilon < metric_ratios(path(epsilon=epsilon)) <= epsilon * (1 + 1e-9)
    two = MetricMechanism(1.0, 1.0, outputs=[0, 1, 5], distance=lambda a, b: abs(a - b))
    assert metric_ratios(two) <= 1.0 + 1e-9


def path_needs_the_two() -> None:
    """Four points in a star: without the 2 the log-ratio between the centre and a leaf is above ε."""
    star = np.array([[0, 1, 1, 1], [1, 0, 2, 2], [1, 2, 0, 2], [1, 2, 2, 0]], dtype=float)
    assert metric_ratios(MetricMechanism(1.0, 1.0, outputs=["c", "x", "y", "z"], distance=star)) <= 1.0 + 1e-9


def histogram_delta_is_covered() -> None:
    """Exact: the mass with which ``changes`` new keys are listed, summed from the pmf, is within the charged δ."""
    for m in (
        ThresholdedHistogram(delta=1e-3, epsilon=1.0),
        ThresholdedHistogram(delta=1e-4, epsilon=1.0, changes=3),
        ThresholdedHistogram(delta=1e-3, rho=0.1),
        ThresholdedHistogram(delta=1e-4, rho=0.3, changes=2),
    ):
        charged = m.event.delta if m.epsilon is not None else m.event.events[1].delta
        z = np.arange(-3000.0, 3001)
        weights = (
            np.exp(-np.abs(z) / m.counts.scale) if m.epsilon is not None else np.exp(-(z**2) / m.counts.std**2 / 2)
        )
        listed = weights[1 + z >= m.threshold].sum() / weights.sum()
        exact = 1 - (1 - listed) ** m.changes
        assert exact <= charged * (1 + 1e-9) <= m.delta * (1 + 1e-9), (exact, charged)
        assert 1 - (1 - weights[2 + z >= m.threshold].sum() / weights.sum()) ** m.changes > m.delta, "one lower is not"


def histogram_lists_as_charged() -> None:
    """Releases of keys of count 1: listed with the probability that is charged (binomial test at FALSE_ALARM)."""
    m = ThresholdedHistogram(delta=0.05, epsilon=1.0)
    listed = len(m.release(dict.fromkeys(range(40000), 1), SecretNoise()).value)
    assert stats.binomtest(listed, 40_000, m.event.delta).pvalue > FALSE_ALARM


def response_rates_hold(categories=("a", "b", "c"), epsilon=1.2, records=100_000) -> None:
    """How often the truth is reported: binomial test of the formula, Clopper-Pearson of the likelihood ratio."""
    m = RandomizedResponseMechanism(epsilon=epsilon, categories=categories, records=records)
    assert m.event.epsilon <= epsilon
    k = len(categories)
    truth = m.release([categories[0]] * records, SecretNoise()).value
    counts = [truth.count(category) for category in categories]
    keep = math.exp(epsilon) / (math.exp(epsilon) + k - 1)
    fits(counts, [keep] + [(1 - keep) / (k - 1)] * (k - 1))
    least = stats.beta.ppf(FALSE_ALARM, counts[0], records - counts[0] + 1)
    most = stats.beta.isf(FALSE_ALARM, counts[1] + 1, records - counts[1])
    assert math.log(least / most) <= epsilon


def response_estimator_is_unbiased() -> None:
    """The mean of 400 estimates of 200 records is within 6 of its own standard errors of the truth (below 2e-9)."""
    m = RandomizedResponseMechanism(gamma=0.1, records=200)
    values = [1] * 60 + [0] * 140
    source = SecretNoise()
    estimates = np.array([m.estimate(m.release(values, source).value)[1] for _ in range(400)])
    deviation = math.sqrt((0.25 - 0.01) / (4 * 0.01 * 200))
    assert abs(estimates.mean() - 0.3) < 6 * deviation / 20
    assert 0.8 < estimates.std() / deviation < 1.2


def error_statement_holds(m, value, beta=0.05, times=500) -> None:
    """The error is exceeded in no more releases than a binomial with probability ``beta`` (FALSE_ALARM) allows."""
    source = FixedNoise(7)
    error = m.error(beta)
    exceeded = sum(bool(np.max(np.abs(m.release(value, source).value - value)) > error) for _ in range(times))
    assert exceeded <= stats.binom.isf(FALSE_ALARM, times, beta)
    half = sum(bool(np.max(np.abs(m.release(value, source).value - value)) > m.error(0.5)) for _ in range(times))
    assert half >= stats.binom.ppf(FALSE_ALARM, times, 0.25), "the statement is not far too wide"
