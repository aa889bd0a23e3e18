"""(ε, δ) in attack terms, against a brute-force attack on the worst (ε, δ)-private mechanism."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpml.accounting.tradeoffs import advantage_of, posterior_of, tpr_at_fpr
from dpml.report.attack import attack_bounds

CASES = [(0.0, 0.0), (0.0, 0.1), (0.1, 1e-5), (1.0, 0.0), (1.0, 1e-5), (2.0, 0.05), (4.0, 1e-6), (8.0, 0.3)]


def worst_pair(epsilon: float, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """Four outcomes: two that say everything (probability δ each on its side), two with likelihood ratio e^±ε."""
    keep = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    flip = (1 - delta) - keep
    return np.array([delta, keep, flip, 0.0]), np.array([0.0, flip, keep, delta])


def best_test(p: np.ndarray, q: np.ndarray, rate: float) -> float:
    """TPR of the Neyman-Pearson test at a false-positive rate: fill up outcomes by falling likelihood ratio."""
    ratio = np.divide(p, q, out=np.full_like(p, np.inf), where=q > 0)
    power, left = 0.0, rate
    for i in np.argsort(-ratio):
        share = 1.0 if q[i] <= left else left / q[i]
        power, left = power + share * p[i], left - share * q[i]
    return power


@pytest.mark.parametrize(("epsilon", "delta"), CASES)
@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.01, 0.2, 0.5, 0.9, 1.0])
def test_true_positive_rate_is_that_of_the_best_test(epsilon: float, delta: float, rate: float) -> None:
    expected = best_test(*worst_pair(epsilon, delta), rate)
    assert tpr_at_fpr(epsilon, delta, rate) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("epsilon", "delta"), CASES)
def test_advantage_is_the_total_variation_of_the_worst_pair(epsilon: float, delta: float) -> None:
    p, q = worst_pair(epsilon, delta)
    expected = np.abs(p - q).sum() / 2
    assert advantage_of(epsilon, delta) == pytest.approx(expected, abs=1e-12)
    assert attack_bounds(epsilon, delta).accuracy == pytest.approx((1 + expected) / 2)


@pytest.mark.parametrize("prior", [0.0, 0.01, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(("epsilon", "delta"), CASES)
def test_posterior_is_bayes_on_the_outcomes_that_do_not_say_everything(
    epsilon: float, delta: float, prior: float
) -> None:
    p, q = worst_pair(epsilon, delta)
    posterior = prior * p[1] / (prior * p[1] + (1 - prior) * q[1])
    assert posterior_of(epsilon, prior) == pytest.approx(posterior, abs=1e-12)
    assert p[0] == delta  # all other outcomes have a smaller ratio, and the one with an infinite ratio has mass δ


def test_known_value_and_extremes() -> None:
    assert posterior_of(math.log(3), 0.5) == pytest.approx(0.75)  # odds 3 to 1
    for epsilon in (800.0, math.inf):
        bounds = attack_bounds(epsilon, 1e-5)
        assert (bounds.posterior, bounds.advantage, bounds.accuracy, bounds.true_positive_rate) == (1, 1, 1, 1)
    assert tpr_at_fpr(math.inf, 0.0, 0.0) == 1.0  # no promise at all
    assert tpr_at_fpr(800.0, 1e-5, 0.0) == pytest.approx(1e-5)  # without false positives only δ is left
