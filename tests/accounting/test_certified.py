"""Both ends of certified intervals against the truth in places where rounding or a looser pair could spoil them."""

from __future__ import annotations

import math

import mpmath as mp
import pytest

from dpml import accounting as acc
from dpml.accounting import exact
from dpml.accounting.mixtures import SampledGaussianMoments, _log_r
from dpml.errors import UnsupportedEventError


def gaussian_profile(epsilon, mu):
    return (
        mp.erfc((epsilon / mu - mu / 2) / mp.sqrt(2)) / 2
        - mp.exp(epsilon) * mp.erfc((epsilon / mu + mu / 2) / mp.sqrt(2)) / 2
    )


@pytest.mark.parametrize(
    ("q", "sigma", "delta"),
    [(1.77e-12, 2648.0, 8e-175), (1e-12, 1e3, 1e-18), (1e-10, 20.0, 1e-14), (1e-6, 5.0, 1e-12), (1e-12, 1.0, 1e-15)],
)
def test_one_release_at_a_tiny_rate(q, sigma, delta):
    """remove: δ(ε) = q·G(ln(1 + (e^ε − 1)/q)); the logarithm must not cancel."""
    found = acc.interval(acc.PoissonSampled(q, acc.Gaussian(sigma)), delta)
    with mp.workdps(60):

        def true(epsilon):
            return mp.mpf(q) * gaussian_profile(mp.log1p(mp.expm1(mp.mpf(epsilon)) / mp.mpf(q)), 1 / mp.mpf(sigma))

        assert true(found.high) <= delta <= true(found.low)
        assert true(found.high) <= acc.delta(acc.PoissonSampled(q, acc.Gaussian(sigma)), found.high)
    assert found.width <= 1e-8 * found.high


@pytest.mark.parametrize(("w", "sigma", "c"), [(1e-12, 0.25, 1.0), (1e-10, 0.3, 0.5), (1e-4, 0.5, 0.5)])
def test_moments_at_a_rate_near_one(w, sigma, c):
    with mp.workdps(30):
        weight, std, power = mp.mpf(w), mp.mpf(sigma), mp.mpf(c)

        def ratio(x):
            return weight + (1 - weight) * mp.exp((2 * x - 1) / (2 * std**2))

        moment = mp.quad(
            lambda x: mp.npdf(x, 0, std) * ratio(x) ** (1 + power) * ratio(-x) ** -power,
            mp.linspace(-14 * sigma - 2, 14 * sigma + 2 * c + 3, 60),
        )
        true = float(mp.log(moment))
    got, error = SampledGaussianMoments((w, 1 - w), sigma, "replace").log_moment(c)
    assert abs(got - true) <= error < 1e-11


def test_log_ratio_of_a_group_far_below_its_mean():
    """(1 − q)^k = 1e-20: ln r(−1) is its binomial sum, not a clamp."""
    weights = tuple(math.comb(20, j) * 0.9**j * 0.1 ** (20 - j) for j in range(21))
    pair = SampledGaussianMoments(weights, 1.0, "add")
    true = math.log(math.fsum(w * math.exp((-2 * j - j * j) / 2) for j, w in enumerate(weights)))
    assert _log_r(pair, exact.np.array([-1.0]))[0] == pytest.approx(true, rel=1e-12)


def test_a_group_of_binary_reports_is_as_many_reports():
    report = acc.RandomizedResponse(0.5, 2)
    group, several = acc.Group(report, 3), acc.SelfComposed(report, 3)
    for delta in (0.1, 0.2, 0.3, 0.5):
        values = [acc.epsilon(event, delta, neighboring_relation="replace_one") for event in (group, several)]
        assert values[0] == pytest.approx(values[1], rel=1e-12)
    true = sum(
        math.comb(3, j) * 0.75**j * 0.25 ** (3 - j) * max(0.0, -math.expm1(1.0 - (2 * j - 3) * math.log(3)))
        for j in range(4)
    )
    assert acc.delta(group, 1.0, neighboring_relation="replace_one") == pytest.approx(true, rel=1e-9)


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (acc.Group(acc.EpsilonDelta(1.0, 0.1), 3), 0.9),  # ε ≤ 1 there, by the two inequalities
        (acc.PermuteAndFlip(1.0), 0.42),
        (acc.ReportNoisyMax(1.0), 0.42),
        (acc.RandomRow(10), 1 / 10.5),  # 10 rows against 11: total variation 1/11
        (acc.SelfComposed(acc.ExponentialMechanism(1.0), 10), 1e-6),
        (acc.ObjectivePerturbation(4.0, 2.0, 1.0), 1e-5),
        (acc.Composed((acc.PermuteAndFlip(1.0), acc.Gaussian(1.0))), 1e-5),
    ],
    ids=lambda item: getattr(item, "type", str(item)),
)
def test_nothing_is_claimed_from_below_for_what_is_only_bounded(event, delta):
    found = acc.interval(event, delta)
    assert found.low == 0.0
    assert found.high > 0
    assert exact.delta_interval(event, 0.1, "add_remove")[0] == 0.0


def test_exponential_mechanisms_take_the_smallest_bound():
    """The envelope of bounded-range pairs is not itself bounded-range: Rényi proves less for ten of them."""
    event = acc.SelfComposed(acc.ExponentialMechanism(1.0), 10)
    assert acc.epsilon(event, 1e-6) == acc.epsilon(event, 1e-6, accountant="rdp") < 7.8
    assert acc.epsilon(event, 1e-6, accountant="exact") > 8.1


@pytest.mark.parametrize("factor", [1 + 2e-15, 1 + 1e-14, 1 + 1e-13, 1 + 1e-9, 2.0])
def test_low_end_next_to_a_statements_own_delta(factor):
    event, delta = acc.Composed((acc.EpsilonDelta(1.0, 1e-6), acc.Gaussian(1.0))), 1e-6 * factor
    found = acc.interval(event, delta)
    with mp.workdps(40):  # δ(ε) = δ₀ + (1 − δ₀)[p·G(ε − 1) + (1 − p)·G(ε + 1)]
        own, p = mp.mpf(1e-6), 1 / (1 + mp.exp(-1))

        def true(epsilon):
            e = mp.mpf(epsilon)
            return own + (1 - own) * (p * gaussian_profile(e - 1, 1) + (1 - p) * gaussian_profile(e + 1, 1))

        assert true(found.high) <= mp.mpf(delta)
        assert found.low == 0 or true(found.low) >= mp.mpf(delta)


@pytest.mark.parametrize(("q", "sigma", "delta"), [(1e-6, 100.0, 1e-15), (1e-4, 10.0, 1e-13), (0.3, 2.0, 1e-9)])
def test_one_replaced_record_from_both_sides(q, sigma, delta):
    found = acc.interval(acc.PoissonSampled(q, acc.Gaussian(sigma)), delta, neighboring_relation="replace_one")
    with mp.workdps(50):
        rate, std = mp.mpf(q), mp.mpf(sigma)

        def true(epsilon):
            e = mp.mpf(epsilon)
            k = rate * mp.exp(-1 / (2 * std**2))
            b = (1 - rate) * mp.expm1(e)
            u = (b + mp.sqrt(b * b + 4 * k * k * mp.exp(e))) / (2 * k)
            point = std**2 * mp.log(u)

            def above(mean):
                return mp.erfc((point - mean) / std / mp.sqrt(2)) / 2

            first = (1 - rate) * above(0) + rate * above(1)
            return first - mp.exp(e) * ((1 - rate) * above(0) + rate * above(-1))

        assert true(found.high) <= delta
        assert found.low == 0 or true(found.low) >= delta
    assert found.width <= 1e-5 * found.high


def test_a_random_row_of_a_sample_is_refused():
    for event in (
        acc.PoissonSampled(0.01, acc.RandomRow(100)),
        acc.SampledWithoutReplacement(1, 100, acc.RandomRow(100)),
    ):
        with pytest.raises(UnsupportedEventError, match="random_row"):
            acc.epsilon(event, 1e-3, neighboring_relation="replace_one")
