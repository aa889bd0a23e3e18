"""Randomized response: closed forms of the binary one, reports, the estimator and its interval."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import mechanism_checks as checks
import numpy as np
import pytest
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1]))

from accounting_tables import close, inputs, rows

from dpml import accounting as acc
from dpml.errors import ConfigError, DataError, UnsupportedEventError
from dpml.mechanisms import FixedNoise, RandomizedResponseMechanism, SecretNoise
from dpml.mechanisms import randomized_response as rr


def test_rows() -> None:
    for row in rows("mechanisms", "rr_epsilon"):
        gamma = inputs(row)["gamma"]
        assert close(row, rr.randomized_response_epsilon(gamma)), row["id"]
        m = RandomizedResponseMechanism(gamma=gamma)
        assert close(row, acc.epsilon(m.event, 0.0, neighboring_relation="replace_one")), row["id"]
    for row in rows("mechanisms", "rr_gamma_of_epsilon"):
        epsilon = inputs(row)["epsilon"]
        assert close(row, rr.randomized_response_gamma(epsilon)), row["id"]
        p = RandomizedResponseMechanism(epsilon=epsilon).uniform_probability
        assert (1 - p) / 2 == pytest.approx(float(row["value"]), rel=1e-12)
    for row in rows("mechanisms", "rr_estimator_variance"):
        given = inputs(row)
        assert close(row, rr.randomized_response_variance(given["gamma"], int(given["n"]))), row["id"]
    for row in rows("mechanisms", "rr_raw_mean"):
        given = inputs(row)
        assert close(row, rr.randomized_response_raw_mean(given["gamma"], given["true_fraction"])), row["id"]
    for row in rows("mechanisms", "rr_estimator_mean"):
        given = inputs(row)  # E[estimate] = the estimate of the expected share of yes: it is affine
        raw = 0.5 - given["gamma"] + 2 * given["gamma"] * given["true_fraction"]
        assert close(row, float(rr.randomized_response_estimate(given["gamma"], raw))), row["id"]
    for row in rows("mechanisms", "rr_chebyshev_radius_75"):
        given = inputs(row)
        assert close(row, rr.randomized_response_radius(given["gamma"], int(given["n"]), 0.25)), row["id"]
    for row in rows("mechanisms", "sample_size_rr"):
        given = inputs(row)
        assert close(row, rr.sample_size_randomized_response(given["gamma"], given["alpha"])), row["id"]


@pytest.mark.parametrize("k", [2, 3, 10, 1000])
@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 5.0, 30.0])
def test_epsilon_is_reached_and_not_exceeded(k, epsilon) -> None:
    m = RandomizedResponseMechanism(epsilon=epsilon, categories=range(k))
    p = m.uniform_probability
    keep, other = 1 - p + p / k, p / k
    assert epsilon * (1 - 1e-3) - 1e-9 <= math.log(keep / other) <= epsilon + 1e-9
    assert m.event == acc.RandomizedResponse(p, k)
    assert m.event.epsilon <= epsilon
    assert acc.epsilon(m.event_under("replace_one"), 0.0, neighboring_relation="replace_one") <= epsilon * (1 + 1e-12)
    with pytest.raises(UnsupportedEventError, match="add_remove"):
        acc.epsilon(m.event_under("add_remove"), 0.0)


def test_two_worlds_exactly() -> None:
    """The pmf from the words: of 2^53 coins ``uniform_coin`` say "uniform"; against the claimed trade-off curve."""
    for m in (
        RandomizedResponseMechanism(gamma=0.25),
        RandomizedResponseMechanism(epsilon=1.0, categories=["a", "b", "c", "d"]),
    ):
        k, p = len(m.categories), m.uniform_coin / 2.0**53
        first, second = np.full(k, p / k), np.full(k, p / k)
        first[0] += 1 - p
        second[1] += 1 - p
        checks.profile_holds(first, second, m.event, "replace_one")


def test_rates_of_reports() -> None:
    """Chi-square at 1e-6 of 100,000 reports.  Power: keeping with p + (1 − p)p is caught (planted)."""
    checks.response_rates_hold()
    checks.response_rates_hold((0, 1), 0.5)
    checks.response_rates_hold(tuple(range(10)), 3.0)


def test_estimator_is_unbiased() -> None:
    checks.response_estimator_is_unbiased()


def test_estimator_of_many_categories() -> None:
    m = RandomizedResponseMechanism(epsilon=1.0, categories=["a", "b", "c", "d"], records=100_000)
    true = np.array([0.5, 0.3, 0.2, 0.0])
    values = np.repeat(["a", "b", "c", "d"], (true * 100_000).astype(int))
    answer = m.release(values, SecretNoise())
    estimate = m.estimate(answer.value)
    assert estimate.sum() == pytest.approx(1.0)
    assert np.abs(estimate - true).max() <= m.error(checks.FALSE_ALARM)
    low, high = answer.interval(checks.FALSE_ALARM)
    assert ((low <= true) & (true <= high)).all()
    assert (low >= 0).all()
    assert (high <= 1).all()
    assert isinstance(answer.value, list)
    assert set(answer.value) <= set(m.categories)


def test_variance_and_sample_size() -> None:
    """Variance: Bernoulli sums written out; within 6 standard errors of what 500 releases show (below 2e-9)."""
    binary = RandomizedResponseMechanism(gamma=0.1, records=200)
    for share in (0.0, 0.3, 1.0):
        assert binary.variance(share) == pytest.approx(rr.randomized_response_variance(0.1, 200), rel=1e-9)
    m = RandomizedResponseMechanism(epsilon=1.0, categories=["a", "b", "c"], records=100)
    source = checks.Blocks()
    values = ["a"] * 80 + ["b"] * 20
    seen = np.array([m.estimate(m.release(values, source).value) for _ in range(500)]).var(axis=0)
    expected = np.array([m.variance(share) for share in (0.8, 0.2, 0.0)])
    assert (np.abs(seen / expected - 1) < 6 * math.sqrt(2 / 500)).all()
    for alpha in (0.3, 0.05, 0.01):
        n = m.sample_size(alpha)
        assert RandomizedResponseMechanism(epsilon=1.0, categories=["a", "b", "c"], records=n).error() <= alpha
        fewer = RandomizedResponseMechanism(epsilon=1.0, categories=["a", "b", "c"], records=n - 2)
        assert fewer.error() > alpha


def test_coverage_of_the_interval() -> None:
    """Fails in no more of 400 releases than a binomial of β allows at 1e-6; β = 0.5 shows that it is not useless."""
    source = FixedNoise(3)
    for categories in ((0, 1), (0, 1, 2)):
        m = RandomizedResponseMechanism(epsilon=1.0, categories=categories, records=300)
        values = [0] * 100 + [1] * 200
        true = np.array([1 / 3, 2 / 3, 0.0])[: len(categories)]
        off = [np.abs(m.estimate(m.release(values, source).value) - true).max() for _ in range(400)]
        for beta in (0.5, 0.05):
            assert (np.array(off) > m.error(beta)).sum() <= stats.binom.isf(checks.FALSE_ALARM, 400, beta)
        assert np.median(off) > m.error(0.5) / 4


def test_values_outside_the_categories_are_neither_errors_nor_visible() -> None:
    m = RandomizedResponseMechanism(epsilon=3.0, categories=[0, 1, 2], records=30_000)
    for stranger in (None, float("nan"), "x", [1], 7):
        reports = m.release([stranger] * 30_000, SecretNoise()).value
        checks.fits(np.bincount(reports, minlength=3), [1 / 3] * 3)


def test_values_of_another_number_or_shape() -> None:
    m = RandomizedResponseMechanism(epsilon=1.0, records=3)
    for wrong in ([0, 1], [0, 1, 1, 0], 1, "011", np.zeros((3, 1)), np.array(1), None):
        with pytest.raises(DataError):
            m.release(wrong)
    assert len(m.release(iter([0, 1, 1])).value) == 3
    assert len(m.release({0: 1, 1: 2, 2: 3}.keys()).value) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"epsilon": 1.0, "gamma": 0.2},
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": float("inf")},
        {"epsilon": 31.0},
        {"gamma": 0.0},
        {"gamma": 0.5},
        {"gamma": float("nan")},
        {"gamma": 0.2, "categories": [0, 1, 2]},
        {"epsilon": 1.0, "categories": [0]},
        {"epsilon": 1.0, "categories": []},
        {"epsilon": 1.0, "categories": [0, 1, 1]},
        {"epsilon": 1.0, "categories": [1, True]},
        {"epsilon": 1.0, "categories": [1, float("nan")]},
        {"epsilon": 1.0, "categories": [[1], [2]]},
        {"epsilon": 1.0, "categories": "ab"},
        {"epsilon": 1.0, "categories": None},
        {"epsilon": 1.0, "records": 0},
        {"epsilon": 1.0, "records": 1.5},
        {"epsilon": 1.0, "records": 2**27},
    ],
    ids=str,
)
def test_bad_arguments(arguments) -> None:
    with pytest.raises(ConfigError):
        RandomizedResponseMechanism(**arguments)


@pytest.mark.parametrize("gamma", [0.0, 0.5, -0.1, float("nan"), None])
def test_bad_gamma_of_closed_forms(gamma) -> None:
    for call in (
        rr.randomized_response_epsilon,
        lambda g: rr.randomized_response_variance(g, 10),
        lambda g: rr.randomized_response_raw_mean(g, 0.5),
        lambda g: rr.randomized_response_estimate(g, 0.5),
    ):
        with pytest.raises(ConfigError, match="gamma"):
            call(gamma)
