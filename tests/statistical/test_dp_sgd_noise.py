"""What a DP-SGD run really adds and draws, by statistics.  False-alarm rate of each test: 1e-6 or less.

With the secret source the draws differ in every run; the rates below count for each run anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "sgd"))

import sgd_faults as faults
from sgd_checks import small_plan

from dpml import sgd
from dpml.mechanisms import SecretNoise

FALSE_ALARM = 1e-6


def steps_of_pure_noise(plan, width):
    """Noise per step on the sum, ``(T, width)``, from the released weights of a run on records of zeros."""
    states = []
    model = nn.Linear(width, 1, bias=False).double()
    model.weight.data.zero_()
    zeros = np.zeros((40, width))
    sgd.fit_dp_sgd(
        plan,
        model,
        zeros,
        np.zeros(40, dtype=np.int64),
        noise=SecretNoise(),
        reserve=lambda *_: None,
        save_checkpoint=states.append,
    )
    path = np.stack([np.zeros(width)] + [s["parameters"]["weight"].numpy().ravel() for s in states])
    return -np.diff(path, axis=0) / plan.learning_rate * plan.expected_batch_size


@pytest.mark.parametrize(("clip", "sigma"), [(1.0, 1.0), (0.05, 8.0), (3.0, 0.5)])
def test_noise_variance_and_shape(clip, sigma):
    """25,000 draws.  χ² on the variance (two-sided) and Kolmogorov-Smirnov against N(0, C²σ²), 5e-7 each.

    Power: a standard deviation wrong by 5 % moves χ² by 11 of its standard deviations (missed with probability below
    1e-8); half the noise, noise without C, or noise divided twice by B are far beyond that.
    """
    plan = small_plan(
        steps=250, checkpoint_every=1, max_grad_norm=clip, noise_multiplier=sigma, learning_rate=0.5, sample_rate=0.5
    )
    drawn = steps_of_pure_noise(plan, 100)
    statistic = float((drawn**2).sum()) / (clip * sigma) ** 2
    tail = min(stats.chi2.cdf(statistic, drawn.size), stats.chi2.sf(statistic, drawn.size))
    assert 2 * tail > FALSE_ALARM / 2
    assert stats.kstest(drawn.ravel(), "norm", args=(0.0, clip * sigma)).pvalue > FALSE_ALARM / 2


def test_noise_is_independent_between_steps_coordinates_and_runs():
    """Three correlations of 25,000 or 12,500 pairs, |r|√N < 5.3 each: false alarm 3 × 1.2e-7.

    Power: a correlation of 0.1 gives r√N ≈ 11 or more, missed with probability below 1e-8.
    """
    plan = small_plan(steps=250, checkpoint_every=1)
    first, second = steps_of_pure_noise(plan, 100), steps_of_pure_noise(plan, 100)
    pairs = [(first[:-1], first[1:]), (first[:, ::2], first[:, 1::2]), (first, second)]
    for a, b in pairs:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) * np.sqrt(a.size) < 5.3


def test_batches_are_poisson():
    """400 steps of 500 records at q = 0.2.  Sizes: mean and variance of a binomial; per-record counts: likewise.

    Each of the four statistics is a z-score: the means are compared with 5.2, the (right-skewed, nearly χ²) variances
    with 6.3; false alarm below 2.5e-7 each.  Power: batches of fixed size have variance 0 (z = −14), shuffled epochs
    give every record the same count (z = −16), q off by 5 % gives z ≈ 11.
    """
    steps, n, q = 400, 500, 0.2
    noise = SecretNoise()
    member = np.zeros((steps, n))
    for t in range(steps):
        member[t, sgd.poisson_indices(noise, n, q)] = 1
    for totals, trials in ((member.sum(1), n), (member.sum(0), steps)):
        variance = trials * q * (1 - q)
        count = len(totals)
        assert abs(totals.mean() - trials * q) / np.sqrt(variance / count) < 5.2
        spread = ((totals - trials * q) ** 2).mean() / variance
        assert abs(spread - 1) / np.sqrt(2 / count) < 6.3


def test_the_checks_that_find_planted_bugs_hold_for_the_code_as_it_is():
    """Fixed noise, so no false alarm at all; the broken code is in planted_bugs/test_sgd_bugs.py."""
    faults.noise_has_the_planned_variance()
    faults.noise_has_the_planned_variance(7)
    faults.noise_is_fresh_in_every_step_and_coordinate()
