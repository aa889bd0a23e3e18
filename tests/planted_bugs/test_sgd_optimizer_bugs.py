"""Optimizer, adaptive clipping, per-layer bounds and plan of DP-SGD, broken on purpose at one seam each.

Every check passes on the whole code and fails on the broken one.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "sgd"))

from sgd_checks import RecordingNoise, run, small_plan

from dpml import accounting
from dpml.errors import DataError
from dpml.mechanisms import FixedNoise
from dpml.sgd import ModelLoss, adaptive, clipped_gradient, optimizers, planning
from dpml.sgd.optimizers import Optimizer
from dpml.sgd.planning import DPSGDPlan

FALSE_ALARM = 1e-6


def caught(check):
    """The check finds the fault (a fault that crashes would not count)."""
    with pytest.raises(AssertionError):
        check()


# -- schedule ---------------------------------------------------------------------------------------------------------
def rates_follow_logical_steps():
    """Micro-batches of three: the same rates, one after the other, as in one piece.

    Read off the weights between steps: records of zeros, momentum 0, so w_{t+1} − w_t = −η_t · noise/B.
    """
    plan = small_plan(steps=6, schedule="linear", learning_rate=1.0, checkpoint_every=1, micro_batch_size=3)
    noise, states = RecordingNoise(5), []
    X, y = np.zeros((40, 4)), np.zeros(40, dtype=np.int64)
    model = nn.Sequential(nn.Linear(4, 1, bias=False)).double()
    with torch.no_grad():
        model[0].weight.zero_()
    run(plan, X, y, noise=noise, model=model, save_checkpoint=states.append)
    path = np.stack([np.zeros(4)] + [s["parameters"]["0.weight"].numpy().ravel() for s in states])
    drawn = np.stack([value for _, value in noise.normals])
    moved = -np.diff(path, axis=0) * plan.expected_batch_size
    rates = (moved * drawn).sum(1) / (drawn**2).sum(1)
    np.testing.assert_allclose(rates, [1 - t / 6 for t in range(6)], rtol=2e-3)  # the noise is rounded to a grid


def test_the_schedule_stepped_per_micro_batch(monkeypatch):
    rates_follow_logical_steps()
    calls, whole = [], DPSGDPlan.rate

    def counted(plan, step):
        """As if every micro-batch of 3 of a batch of 10 advanced the schedule."""
        calls.append(step)
        return whole(plan, min(4 * step, plan.steps - 1))

    monkeypatch.setattr(DPSGDPlan, "rate", counted)
    caught(rates_follow_logical_steps)
    assert calls


# -- adaptive clipping ------------------------------------------------------------------------------------------------
def the_count_has_its_noise():
    """χ² of 4000 released counts against the true one, two-sided at 1e-6; without noise the statistic is 0."""
    plan = small_plan(clipping="adaptive", noise_multiplier=0.5, count_noise=3.0)
    norms, source = torch.linspace(0.1, 1.0, 10, dtype=torch.float64), FixedNoise(11)
    true = 63 / 64 * sum(min(max((1.125 - norm / 0.45) / 0.25, 0.0), 1.0) - 0.5 for norm in norms.tolist())
    released = np.array([adaptive.noisy_count(plan, norms, 0.45, source) for _ in range(4000)])
    statistic = float(((released - true) ** 2).sum()) / 3.0**2
    assert min(stats.chi2.cdf(statistic, 4000), stats.chi2.sf(statistic, 4000)) > FALSE_ALARM / 2


@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_the_count_without_its_noise(monkeypatch, factor):
    the_count_has_its_noise()
    whole = DPSGDPlan.count_noise_std.fget
    monkeypatch.setattr(DPSGDPlan, "count_noise_std", property(lambda plan: factor * whole(plan)))
    caught(the_count_has_its_noise)


def one_record_moves_the_count_by_half():
    norms = torch.linspace(0.1, 1.0, 10, dtype=torch.float64)
    for i in range(10):
        others = torch.cat([norms[:i], norms[i + 1 :]])
        moved = adaptive.unclipped_count(norms, 0.45) - adaptive.unclipped_count(others, 0.45)
        assert abs(moved) <= 0.5


def many_equal_norms_move_the_count_by_half():
    norms = torch.full((512,), 0.45, dtype=torch.float64)
    more = torch.cat([norms * (1 + 3e-7), norms[:1]])  # as a kernel may round them in a batch of another size
    assert abs(adaptive.unclipped_count(more, 0.45) - adaptive.unclipped_count(norms, 0.45)) <= 0.5


def test_a_count_with_a_step(monkeypatch):
    """The paper's indicator turns over for all records that are equal to C, when one comes in."""
    many_equal_norms_move_the_count_by_half()

    def step(norms, clip):
        return float((norms <= clip).sum()) - 0.5 * len(norms)

    monkeypatch.setattr(adaptive, "unclipped_count", step)
    caught(many_equal_norms_move_the_count_by_half)


def test_a_count_of_zeros_and_ones(monkeypatch):
    """Without the − ½ a record moves the count by up to 1: twice what is charged."""
    one_record_moves_the_count_by_half()
    monkeypatch.setattr(adaptive, "unclipped_count", lambda norms, clip: float((norms <= clip).sum()))
    caught(one_record_moves_the_count_by_half)


def gradient_and_count_cost_no_more_than_the_event():
    """Two Gaussian releases of one record, composed by the accountant, against the one that is charged."""
    plan = small_plan(clipping="adaptive", noise_multiplier=1.0, count_noise=0.8)
    charged = plan.event_per_step.event
    both = accounting.Composed(
        (accounting.Gaussian(plan.gradient_noise_multiplier), accounting.Gaussian(plan.count_noise_std / 0.5))
    )
    spent, allowed = (accounting.epsilon(event, 1e-5) for event in (both, charged))
    assert spent <= allowed * (1 + 1e-9)
    assert spent >= 0.999 * allowed, "and no noise is wasted"


def test_the_noise_of_gradients_is_not_raised(monkeypatch):
    gradient_and_count_cost_no_more_than_the_event()
    monkeypatch.setattr(planning, "raised_noise_multiplier", lambda sigma, count: sigma)
    caught(gradient_and_count_cost_no_more_than_the_event)


def test_a_count_that_is_charged_too_little(monkeypatch):
    """(σ⁻² − (4σ_b)⁻²)^(−½), as if a record moved the count by a quarter."""
    monkeypatch.setattr(
        planning, "raised_noise_multiplier", lambda sigma, count: (sigma**-2 - (4 * count) ** -2) ** -0.5
    )
    caught(gradient_and_count_cost_no_more_than_the_event)


# -- per-layer clipping -----------------------------------------------------------------------------------------------
def layers_together_stay_below_c():
    """One record with huge gradients in all three layers: each is at its bound."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    batch = (torch.randn(1, 5, dtype=torch.float64), torch.tensor([1]))

    def huge(scores, targets):
        return 1e6 * nn.functional.cross_entropy(scores, targets, reduction="none")

    sums, _ = clipped_gradient(model, ModelLoss(huge), batch, 0.5, clipping="per_layer")
    norm = math.sqrt(sum(float((value**2).sum()) for value in sums.values()))
    assert 0.49 < norm <= 0.5


def test_every_layer_clipped_at_the_whole_bound(monkeypatch):
    layers_together_stay_below_c()
    monkeypatch.setattr("dpml.sgd.clipping.layer_bound", lambda bound, layers: bound)
    caught(layers_together_stay_below_c)


# -- Adam -------------------------------------------------------------------------------------------------------------
def the_noise_variance_leaves_the_second_moment():
    """ĝ = 0.13 and φ = (1 · 0.5/10)² = 0.0025: the first step is rate · 0.13/√(0.0169 − 0.0025) = rate · 0.13/0.12."""
    own = {"w": torch.zeros(1, dtype=torch.float64)}
    Optimizer(small_plan(optimizer="adam"), own).step(0, {"w": torch.tensor([0.13], dtype=torch.float64)})
    assert math.isclose(-float(own["w"]), 0.1 * 0.13 / 0.12, rel_tol=1e-6)


@pytest.mark.parametrize("wrong", [lambda std: 0.0, lambda std: std, lambda std: 4 * std**2])
def test_the_noise_variance_is_not_subtracted(monkeypatch, wrong):
    the_noise_variance_leaves_the_second_moment()
    monkeypatch.setattr(optimizers, "noise_variance", wrong)
    caught(the_noise_variance_leaves_the_second_moment)


def a_resumed_optimizer_goes_on():
    plan = small_plan(optimizer="adam", averaging="ema", momentum=0.9)
    gradients = [{"w": torch.tensor([0.1 * (t + 1)], dtype=torch.float64)} for t in range(8)]
    whole, first = ({"w": torch.zeros(1, dtype=torch.float64)} for _ in range(2))
    one, two = Optimizer(plan, whole), Optimizer(plan, first)
    for t, gradient in enumerate(gradients):
        one.step(t, gradient)
    for t in range(4):
        two.step(t, gradients[t])
    rest = {"w": first["w"].clone()}
    three = Optimizer(plan, rest)
    three.load(two.state())
    for t in range(4, 8):
        three.step(t, gradients[t])
    assert torch.equal(rest["w"], whole["w"])
    assert torch.equal(three.released()["w"], one.released()["w"])


def test_the_counts_are_lost_in_a_checkpoint(monkeypatch):
    a_resumed_optimizer_goes_on()
    whole = optimizers._scalars
    monkeypatch.setattr(optimizers, "_scalars", lambda updates, averaged, noise: whole(0, averaged, noise))
    caught(a_resumed_optimizer_goes_on)


# -- samples of fixed size --------------------------------------------------------------------------------------------
def a_sample_of_fixed_size_is_charged_as_one():
    plan = planning.plan_dp_sgd(
        n_declared=400, n_features=3, n_classes=2, model_name="logreg", n_parameters=3, epsilon=1.0, delta=1e-4,
        expected_batch_size=20, steps=5, sampling="fixed_size", neighboring_relation="replace_one",
    )  # fmt: skip
    event = plan.event_per_step
    assert isinstance(event, accounting.SampledWithoutReplacement)
    assert (event.sample_size, event.source_size) == (20, 400)
    try:
        plan.check_records(399)
    except DataError:
        return
    raise AssertionError("fewer records than declared are sampled at a larger rate than the event says")


def test_fixed_size_charged_as_poisson(monkeypatch):
    a_sample_of_fixed_size_is_charged_as_one()
    monkeypatch.setattr(
        planning,
        "step_event",
        lambda sampling, batch, n, sigma: accounting.PoissonSampled(batch / n, accounting.Gaussian(sigma)),
    )
    caught(a_sample_of_fixed_size_is_charged_as_one)


def test_the_number_of_records_is_not_checked(monkeypatch):
    monkeypatch.setattr(DPSGDPlan, "check_records", lambda plan, n: None)
    caught(a_sample_of_fixed_size_is_charged_as_one)
