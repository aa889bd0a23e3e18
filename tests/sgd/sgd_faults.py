"""Checks of the privacy-critical lines of DP-SGD; the planted-bug tests run them on whole and on broken code.

Each raises AssertionError when the line is wrong and says nothing when it is right.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import stats
from sgd_checks import RecordingNoise, rows, small_plan
from torch import nn

from dpml import sgd
from dpml.errors import DataError

FALSE_ALARM = 1e-6


def weights(model):
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


def fit(plan, X, y, noise, model=None, **arguments):
    model = model or nn.Linear(X.shape[1], 1, bias=False).double()
    with torch.no_grad():
        model.weight.zero_()
    return sgd.fit_dp_sgd(plan, model, X, y, noise=noise, **{"reserve": lambda *_: None, **arguments})


def pure_noise_steps(steps=400, width=50, micro_batch_size=None, seed=0):
    """The noise that each step really put on the clipped sum, ``(steps, width)``: records of zeros add nothing.

    Read off the weights between steps: momentum 0, rate 1, so w_{t+1} − w_t = −(sum + noise)/B.
    """
    plan = small_plan(
        steps=steps, learning_rate=1.0, noise_multiplier=2.0, checkpoint_every=1, micro_batch_size=micro_batch_size
    )
    states = []
    X, y = np.zeros((40, width)), np.zeros(40, dtype=np.int64)
    noise = RecordingNoise(seed)
    fit(plan, X, y, noise, model=PlainLinear(width).double(), save_checkpoint=states.append)
    path = np.stack([np.zeros(width)] + [s["parameters"]["weight"].numpy().ravel() for s in states])
    return -np.diff(path, axis=0) * plan.expected_batch_size, plan, noise


class PlainLinear(nn.Linear):
    """Uses its weight in a way that one backward pass has no rule for, so that every record is run alone."""

    def __init__(self, width):
        super().__init__(width, 1, bias=False)

    def forward(self, x):
        return nn.functional.linear(x, self.weight * 1.0)


def linear_for(kind, width):
    """A linear model for the engine asked for."""
    return nn.Linear(width, 1, bias=False) if kind == "one backward" else PlainLinear(width)


def noise_has_the_planned_variance(micro_batch_size=None):
    """χ² test of Σ z²/(Cσ)² at a two-sided false-alarm rate of 1e-6, 20,000 draws: half the noise (or noise once per
    micro-batch, at least twice the variance) moves the statistic by at least 75 of its standard deviations."""
    drawn, plan, _ = pure_noise_steps(micro_batch_size=micro_batch_size)
    statistic = float((drawn**2).sum()) / (plan.noise_multiplier * plan.max_grad_norm) ** 2
    tail = min(stats.chi2.cdf(statistic, drawn.size), stats.chi2.sf(statistic, drawn.size))
    assert tail > FALSE_ALARM / 2


def noise_is_fresh_in_every_step_and_coordinate():
    """Largest |correlation| between consecutive steps; z = r√N beyond 5 has probability below 6e-7."""
    drawn, _, _ = pure_noise_steps()
    a, b = drawn[:-1].ravel(), drawn[1:].ravel()
    assert abs(np.corrcoef(a, b)[0, 1]) * math.sqrt(a.size) < 5
    left, right = drawn[:, ::2].ravel(), drawn[:, 1::2].ravel()
    assert abs(np.corrcoef(left, right)[0, 1]) * math.sqrt(left.size) < 5


def one_noise_draw_per_step():
    _, plan, noise = pure_noise_steps(steps=20, micro_batch_size=3)
    assert len(noise.normals) == plan.steps


def one_record_moves_a_step_by_at_most_c_over_b(kind="one backward"):
    """Without noise and with everyone in the batch: the records' gradients are 50 to 5000, C is 0.5."""
    X, y = rows(n=12)
    X = X * 1000
    plan = small_plan(steps=1, sample_rate=1.0, learning_rate=1.0)
    model = linear_for(kind, 3).double()
    whole, _ = fit(plan, X, y, RecordingNoise(scale=0.0), model=model)
    for i in range(12):
        less, _ = fit(plan, np.delete(X, i, 0), np.delete(y, i), RecordingNoise(scale=0.0), model=model)
        moved = np.linalg.norm(weights(whole) - weights(less))
        assert moved <= plan.max_grad_norm / plan.expected_batch_size * (1 + 1e-9)


def the_normaliser_is_public():
    """The same noise gives the same noisy move for 20, 40 and 80 records (zeros) and whatever the coins say."""
    plan = small_plan(learning_rate=1.0)
    moves = []
    for n, seed in ((20, 1), (40, 2), (80, 3)):
        noise = RecordingNoise(seed)
        trained, _ = fit(plan, np.zeros((n, 3)), np.zeros(n, dtype=np.int64), noise)
        total = sum(drawn for _, drawn in noise.normals)
        moves.append(weights(trained) / total)
    np.testing.assert_allclose(moves, -1 / 10, rtol=5e-3)  # the noise is rounded to a grid


def the_sample_rate_is_public():
    """The records that count are those whose coin is below the planned q, also when n is not n_declared."""
    plan = small_plan(steps=30)
    for n in (20, 40, 80):
        noise = RecordingNoise(5)
        X, y = rows(n=n)
        _, notes = fit(plan, X, y, noise)
        assert notes["batch_size"] == [int((coins < plan.sample_rate).sum()) for coins in noise.uniforms]


def every_step_is_charged():
    plan = small_plan(steps=12, checkpoint_every=5)
    charged, noise = [], RecordingNoise()
    X, y = rows()
    fit(plan, X, y, noise, reserve=lambda event, count: charged.append((event, count)))
    assert all(event == plan.event_per_step for event, _ in charged)
    assert sum(count for _, count in charged) == len(noise.normals) == plan.steps


def nothing_is_drawn_before_it_is_charged():
    plan = small_plan(steps=12, checkpoint_every=5)
    noise = RecordingNoise()
    X, y = rows()
    charged = 0

    def reserve(event, count):
        nonlocal charged
        assert len(noise.normals) <= charged
        charged += count

    def on_step(step):
        assert step <= charged

    fit(plan, X, y, noise, reserve=reserve, on_step=on_step)


def a_nan_record_changes_nothing_else(kind="one backward"):
    X, y = rows()
    spoilt, labels = np.vstack([X, [[np.nan, 1.0, np.inf]]]), np.append(y, 1)
    model = linear_for(kind, 3).double()
    plan = small_plan(sample_rate=1.0)
    try:
        dirty, _ = fit(plan, spoilt, labels, RecordingNoise(1), model=model)
    except DataError as error:  # a sum that is not finite is not released
        raise AssertionError("a record stopped the run") from error
    clean, _ = fit(plan, X, y, RecordingNoise(1), model=model)
    assert np.isfinite(weights(dirty)).all()
    np.testing.assert_allclose(weights(dirty), weights(clean), rtol=1e-12, atol=1e-15)


def charged_steps_are_not_run_again():
    plan = small_plan(steps=12, checkpoint_every=5)
    noise, charged = RecordingNoise(), [10]  # what the killed run had charged
    X, y = rows()
    fit(plan, X, y, noise, reserve=lambda event, count: charged.append(count), start={"step": 10})
    assert sum(charged) == plan.steps
    assert len(noise.normals) == 2


def one_record_more_moves_a_large_sum_by_at_most_c(kind="one backward"):
    """50,000 near-equal float32 records: the sum is 50,000 C, whose float32 spacing is half a percent of C.

    Records run alone are summed in float64.  One backward pass sums short runs of records in float32: what that can
    move is part of what ``FLOAT32_MARGIN`` (2^-10) covers, and half of it is the most that is allowed here.
    """
    generator = torch.Generator().manual_seed(0)
    X = 1.0 + 1e-4 * torch.randn(50_001, 1, generator=generator)
    y = torch.ones(len(X), dtype=torch.int64)
    model = linear_for(kind, 1)
    with torch.no_grad():
        model.weight.zero_()
    bound = 0.1
    whole, norms = sgd.clipped_gradient(model, sgd.ModelLoss(), (X, y), bound)
    less, _ = sgd.clipped_gradient(model, sgd.ModelLoss(), (X[1:], y[1:]), bound)  # every micro-batch is another
    assert float(norms.min()) > bound
    moved = float(torch.linalg.vector_norm(whole["weight"].double() - less["weight"].double())) / bound
    slack = 2.0**-11 if kind == "one backward" else 1e-9
    assert 1 - slack <= moved <= 1 + slack


class Tokens(nn.Sequential):
    """Token ids 0 … 4; another one is an IndexError."""

    def __init__(self):
        super().__init__(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))


def a_record_that_raises_changes_nothing_else():
    """A token id out of range in one record: the run goes on as if the record were not there."""
    torch.manual_seed(0)
    tokens, y = np.arange(40).reshape(20, 2) % 5, np.arange(20) % 2
    model, plan = Tokens().double(), small_plan(sample_rate=1.0)
    arguments = {"reserve": lambda *_: None}
    clean, _ = sgd.fit_dp_sgd(plan, model, tokens, y, noise=RecordingNoise(1), **arguments)
    more, labels = np.insert(tokens, 5, [[2, 7]], axis=0), np.insert(y, 5, 1)
    try:
        dirty, notes = sgd.fit_dp_sgd(plan, model, more, labels, noise=RecordingNoise(1), **arguments)
    except Exception as error:
        raise AssertionError("a record stopped the run") from error
    assert notes["non_finite"] == [1] * plan.steps
    np.testing.assert_allclose(weights(dirty), weights(clean), rtol=1e-12, atol=1e-15)
