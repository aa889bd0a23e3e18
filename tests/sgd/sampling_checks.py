"""Checks of who is drawn in a step; the planted-bug tests run them on whole and on broken code.

Each raises AssertionError when the sampling is wrong.  All tests are exact (binomial), at a false-alarm rate of at most
``FALSE_ALARM`` for a whole check.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy import stats
from sgd_checks import RecordingNoise, small_plan
from torch import nn

from dpml import sgd
from dpml.mechanisms import SecretNoise
from dpml.sgd import sampling

FALSE_ALARM = 1e-6
LAGS = (1, 2, 3, 6)  # six coins come from one uniform


def binomial_p(counts, trials, probability):
    """Two-sided p-values (twice the smaller tail) of counts that should be Binomial(trials, probability)."""
    counts = np.asarray(counts)
    below, above = (
        stats.binom.cdf(counts, trials, probability),
        stats.binom.sf(counts - 1, trials, probability),
    )
    return np.minimum(1.0, 2.0 * np.minimum(below, above))


def poisson_membership(n, rate, steps):
    """(steps, n) bool: who was drawn, from the sampler alone, with secret coins."""
    noise = SecretNoise()
    member = np.zeros((steps, n), dtype=bool)
    for row in member:
        row[sampling.poisson_indices(noise, n, rate)] = True
    return member


def membership_of_a_run(steps=150, n=40):
    """(steps, n) bool: who moved the model.  Record i is the i-th unit vector and no noise is added, so the i-th weight
    of a logistic regression changes in a step if, and only if, record i was drawn."""
    plan = small_plan(steps=steps, checkpoint_every=1)
    model = nn.Linear(n, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    states = []
    sgd.fit_dp_sgd(
        plan,
        model,
        np.eye(n),
        np.ones(n, dtype=np.int64),
        noise=RecordingNoise(7, scale=0.0),
        reserve=lambda *_: None,
        save_checkpoint=states.append,
    )
    path = np.stack([np.zeros(n)] + [state["parameters"]["weight"].numpy().ravel() for state in states])
    return np.diff(path, axis=0) != 0.0, plan.sample_rate


def coins_are_independent(member, rate):
    """Every record and every step has the binomial law; records, and steps, meet as often as independent coins do."""
    steps, n = member.shape
    level = FALSE_ALARM / 6
    assert binomial_p(member.sum(), steps * n, rate) > level, "the rate is another"
    assert binomial_p(member.sum(0), steps, rate).min() > level / n, "a record is drawn too often or too rarely"
    assert binomial_p(member.sum(1), n, rate).min() > level / steps, "a batch is too large or too small"
    usual = int((n + 1) * rate)  # the likeliest size of a batch
    hits = (member.sum(1) == usual).sum()
    assert binomial_p(hits, steps, stats.binom.pmf(usual, n, rate)) > level, "the size of a batch is not random"
    pairs = steps // 2
    both = (member[0 : 2 * pairs : 2] & member[1 : 2 * pairs : 2]).sum()
    assert binomial_p(both, pairs * n, rate**2) > level, "two steps are not independent"
    for lag in LAGS:
        blocks = n // (2 * lag)
        split = member[:, : 2 * lag * blocks].reshape(steps, blocks, 2, lag)
        both = (split[:, :, 0] & split[:, :, 1]).sum()
        assert binomial_p(both, steps * blocks * lag, rate**2) > level / len(LAGS), "two records share a coin"


def subsets_are_equally_likely(n, size, draws=6000):
    """χ² over all subsets of ``size`` of ``n`` records; at least 300 draws for each, so the law of χ² holds well."""
    noise = SecretNoise()
    counts = dict.fromkeys(itertools.combinations(range(n), size), 0)
    assert draws >= 300 * len(counts)
    for _ in range(draws):
        drawn = tuple(sampling.fixed_size_indices(noise, n, size).tolist())
        assert drawn in counts, "not so many different records in increasing order"
        counts[drawn] += 1
    assert stats.chisquare(list(counts.values())).pvalue > FALSE_ALARM


def whole_numbers_are_unbiased():
    """Of 3 · 2⁵¹ numbers, 2⁵³ draws modulo n would favour the first third: 1/2 in place of 1/3."""
    n, count = 3 * 2**51, 4000
    drawn = np.concatenate([sampling._whole_numbers(SecretNoise(), n, count) for _ in range(2)])
    assert drawn.max() < n
    assert binomial_p((drawn < n // 3).sum(), len(drawn), 1 / 3) > FALSE_ALARM
