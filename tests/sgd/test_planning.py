"""The plan: public numbers in, a calibrated and bounded run out; every refusal is named."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sgd_checks import small_plan

from dpml import accounting
from dpml.errors import AccountingError, ConfigError, DataError
from dpml.mechanisms import FixedNoise
from dpml.sgd import adaptive, plan_dp_sgd

ADULT = {
    "n_declared": 36177,
    "n_features": 133,
    "n_classes": 2,
    "model_name": "logreg",
    "n_parameters": 133,
    "epsilon": 1.0,
    "delta": 1e-5,
}


def plan(**changes):
    return plan_dp_sgd(**{**ADULT, **changes})


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("accountant", ["best", "rdp", "pld", "zcdp"])
def test_the_planned_event_stays_within_the_budget_of_the_accountant_that_reports_it(accountant, relation):
    made = plan(accountant=accountant, neighboring_relation=relation, steps=50)
    used = accounting.epsilon(made.event, 1e-5, accountant=accountant, neighboring_relation=relation)
    assert 0.99 < used <= 1.0
    assert made.event == accounting.SelfComposed(event=made.event_per_step, count=50)
    assert made.event_per_step == accounting.PoissonSampled(
        made.sample_rate, accounting.Gaussian(made.noise_multiplier)
    )
    assert made.neighboring_relation == relation


def test_replacing_a_record_needs_about_twice_the_noise():
    one, two = (plan(neighboring_relation=r, steps=100).noise_multiplier for r in ("add_remove", "replace_one"))
    assert 1.9 < two / one < 2.05


def test_sample_rate_is_the_public_batch_over_the_public_number():
    made = plan(expected_batch_size=1000, steps=10)
    assert made.sample_rate == 1000 / 36177
    assert made.expected_batch_size == 1000


@pytest.mark.parametrize(("epochs", "expected"), [(1, 37), (2.5, 91), (0.001, 1)])
def test_epochs_round_up_to_steps(epochs, expected):
    """36177/1000 = 36.177 steps an epoch: 1 epoch is 37 steps, not int(1/q) = 36."""
    assert plan(expected_batch_size=1000, epochs=epochs).steps == expected


def test_a_whole_number_of_batches_is_not_rounded_further():
    assert plan(n_declared=1000, expected_batch_size=100, epochs=3).steps == 30


def test_the_automatic_rate_is_r_star_by_hand():
    """r* = R n/(C s √p), s = σ/(q√T); peak = 2 r* (1 − momentum)/T under linear decay."""
    made = plan(epsilon=0.1, steps=100, max_grad_norm=0.8, solution_norm=10.0)
    s = made.noise_multiplier / (made.sample_rate * math.sqrt(100))
    best = 10.0 * 36177 / (0.8 * s * math.sqrt(133))
    assert made.learning_rate == pytest.approx(2 * best * 0.1 / 100, rel=1e-12)
    assert not made.capped
    mean_rate = sum(made.rate(t) for t in range(100)) / 100 / (1 - made.momentum)
    assert mean_rate * 100 == pytest.approx(best, rel=0.011)  # (T + 1)/T of it
    constant = plan(epsilon=0.1, steps=100, max_grad_norm=0.8, solution_norm=10.0, schedule="constant")
    assert constant.learning_rate == pytest.approx(best * 0.1 / 100, rel=1e-12)
    assert constant.rate(0) == constant.rate(99) == constant.learning_rate


@pytest.mark.parametrize(
    ("model", "norm_bound", "cap"),
    [("logreg", 1.0, 1.9 * 4), ("logreg", 2.0, 1.9), ("softmax", 1.0, 1.9 * 2), ("softmax", 0.5, 1.9 * 8)],
)
def test_linear_models_never_pass_the_stability_cap(model, norm_bound, cap):
    """(1 + momentum)/β with β = R_x²/4 (logistic), R_x²/2 (softmax)."""
    made = plan(model_name=model, norm_bound=norm_bound, epsilon=8.0, steps=30)
    assert made.learning_rate == pytest.approx(cap)
    assert made.capped


def test_steps_are_raised_when_the_cap_bites_but_only_if_they_are_free():
    free = plan(epsilon=1.0)
    assert 250 < free.steps < 450
    assert free.learning_rate <= 7.6 * (1 + 1e-12)
    assert plan(epsilon=1.0, steps=100).steps == 100
    assert plan(epsilon=0.1).steps == 100
    assert plan(epsilon=100.0).steps == 1000
    assert accounting.epsilon(free.event, 1e-5) <= 1.0


def test_networks_have_their_own_rule():
    network = {"n_parameters": 8000, "n_classes": 10}
    mlp = plan(model_name="mlp", **network)
    module = plan(model_name="module", **network)
    assert mlp.expected_batch_size == module.expected_batch_size == math.ceil(36177 / 8)
    assert mlp.learning_rate <= 3.0
    assert module.learning_rate <= 0.5
    assert max(mlp.steps, module.steps) <= 400
    half = plan(model_name="module", max_grad_norm=0.5, steps=100, **network)
    assert half.learning_rate == pytest.approx(2 * plan(model_name="module", steps=100, **network).learning_rate)
    assert plan(model_name="mlp", norm_bound=None, steps=50, **network).learning_rate <= 0.5


def test_noise_instead_of_a_budget():
    made = plan(epsilon=None, noise_multiplier=2.5, steps=40)
    assert made.noise_multiplier == 2.5
    assert made.event == accounting.SelfComposed(
        event=accounting.PoissonSampled(made.sample_rate, accounting.Gaussian(2.5)), count=40
    )


def test_a_full_batch_is_allowed():
    made = plan(n_declared=500, expected_batch_size=500, steps=10)
    assert made.sample_rate == 1.0
    assert accounting.epsilon(made.event, 1e-5) <= 1.0


def test_blocks_of_steps():
    assert plan(steps=100).checkpoint_every == 5
    assert plan(steps=7).checkpoint_every == 1
    assert plan(steps=7, checkpoint_every=50).checkpoint_every == 7


def test_the_learning_rate_depends_on_the_logical_step_only():
    made = small_plan(schedule="linear", steps=4, learning_rate=2.0)
    assert [made.rate(t) for t in range(4)] == [2.0, 1.5, 1.0, 0.5]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n_declared": 0}, "n_declared = 0"),
        ({"n_declared": 10.5}, "n_declared = 10.5"),
        ({"expected_batch_size": 36178}, "expected_batch_size = 36178 .*n_declared = 36177"),
        ({"expected_batch_size": 0}, "expected_batch_size = 0"),
        ({"steps": 10, "epochs": 1}, "steps = 10 and epochs = 1 exclude"),
        ({"steps": 0}, "steps = 0"),
        ({"steps": True}, "steps = True"),
        ({"epochs": 0}, "epochs = 0"),
        ({"epochs": float("nan")}, "epochs = nan"),
        ({"noise_multiplier": 1.0}, "epsilon = 1.0 and noise_multiplier = 1.0 exclude"),
        ({"epsilon": None}, "both None"),
        ({"epsilon": 0.0}, "epsilon = 0.0"),
        ({"epsilon": -1.0}, "epsilon = -1.0"),
        ({"epsilon": float("inf")}, "epsilon = inf .*nonprivate"),
        ({"epsilon": "1"}, "epsilon = '1'"),
        ({"epsilon": None, "noise_multiplier": 0.0}, "noise_multiplier = 0.0"),
        ({"epsilon": None, "noise_multiplier": 9.9e-4}, r"noise_multiplier = 0.00099 .*0.001 to 1e\+06"),
        ({"epsilon": None, "noise_multiplier": 1.1e6}, "noise_multiplier = 1100000.0"),
        ({"epsilon": None, "noise_multiplier": float("nan")}, "noise_multiplier = nan"),
        ({"epsilon": None, "noise_multiplier": "1"}, "noise_multiplier = '1'"),
        ({"steps": 10**7 + 1}, "steps = 10000001 .*1 to 10000000"),
        ({"steps": 10**30}, "steps = 1000"),
        ({"epochs": float("inf")}, "epochs = inf"),
        ({"epochs": 1e300}, r"epochs = 1e\+300"),
        ({"epochs": 2.6e6}, r"epochs = 2600000.0 .*at most 2.50\d*e\+06 here"),
        ({"max_grad_norm": 9e-7}, "max_grad_norm = 9e-07 .*1e-06 to 1e"),
        ({"max_grad_norm": 1.1e6}, "max_grad_norm = 1100000.0"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm = nan"),
        ({"learning_rate": 1.1e6}, "learning_rate = 1100000.0 .*at most 1e"),
        ({"learning_rate": float("inf")}, "learning_rate = inf"),
        ({"delta": 0.0}, "delta = 0.0"),
        ({"delta": 1.0}, "delta = 1.0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm = 0.0"),
        ({"momentum": 1.0}, "momentum = 1.0"),
        ({"learning_rate": "fast"}, "learning_rate = 'fast'"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0"),
        ({"schedule": "cosinus"}, "schedule = 'cosinus' .*linear, constant, cosine.*Did you mean 'cosine'"),
        ({"solution_norm": 0.0}, "solution_norm = 0.0"),
        ({"norm_bound": -1.0}, "norm_bound = -1.0"),
        ({"micro_batch_size": 0}, "micro_batch_size = 0"),
        ({"checkpoint_every": 0}, "checkpoint_every = 0"),
        ({"model_name": "tree"}, "model_name = 'tree'"),
        ({"n_classes": 1}, "n_classes = 1"),
        ({"neighboring_relation": "swap", "steps": 10}, "swap"),
    ],
)
def test_bad_arguments_are_named(change, match):
    with pytest.raises(ConfigError, match=match):
        plan(**change)


def test_the_ends_of_the_ranges_are_allowed():
    ends = [(1e-3, 1e-6, 1e6), (1e6, 1e6, 1e-9)]
    for sigma, bound, rate in ends:
        made = plan(epsilon=None, noise_multiplier=sigma, steps=10**7, max_grad_norm=bound, learning_rate=rate)
        assert (made.noise_multiplier, made.steps, made.max_grad_norm, made.learning_rate) == (
            sigma,
            10**7,
            bound,
            rate,
        )


# -- adaptive clipping: one Gaussian release of gradient and count -----------------------------------------------------
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize(("sigma", "count"), [(1.0, 0.6), (0.7, 10.0), (3.0, 1.6), (1e-3, 1.0)])
def test_gradient_and_count_together_are_one_gaussian_of_the_planned_noise(sigma, count, relation):
    """The joint contribution of one record in units of the noise: (C/(σ_Δ C), ½/σ_b) has norm 1/σ; replacing a record
    moves both by twice as much."""
    made = small_plan(
        clipping="adaptive", noise_multiplier=sigma, count_noise=count, neighboring_relation=relation, max_grad_norm=0.3
    )
    gradient = made.max_grad_norm / (made.gradient_noise_multiplier * made.max_grad_norm)
    joint = math.hypot(gradient, 0.5 / made.count_noise_std)
    assert joint == pytest.approx(1 / sigma, rel=1e-12)
    assert joint <= 1 / sigma * (1 + 2e-16)
    assert made.gradient_noise_multiplier > sigma
    assert made.event_per_step == accounting.PoissonSampled(0.25, accounting.Gaussian(sigma))


def test_raised_noise_by_hand():
    """σ = 1, σ_b = 1: (1 − ¼)^(−½) = 2/√3."""
    made = small_plan(clipping="adaptive", noise_multiplier=1.0, count_noise=1.0)
    assert made.gradient_noise_multiplier == pytest.approx(2 / math.sqrt(3), rel=1e-14)
    for clipping in ("flat", "per_layer", "automatic"):
        assert small_plan(clipping=clipping).gradient_noise_multiplier == 1.0


def test_the_count_noise_is_a_twentieth_of_the_batch_and_not_below_half_the_noise():
    made = plan(clipping="adaptive", expected_batch_size=1000, steps=10)
    assert made.count_noise == made.count_noise_std == 50.0
    assert small_plan(clipping="adaptive", noise_multiplier=0.9).count_noise_std == 0.5
    with pytest.raises(ConfigError, match=r"count_noise = 0.5 .*above noise_multiplier/2 = 1 .*expected_batch_size"):
        plan(clipping="adaptive", expected_batch_size=10, epsilon=None, noise_multiplier=2.0, steps=10)
    with pytest.raises(ConfigError, match=r"count_noise = 1.0 .*above"):
        plan(clipping="adaptive", count_noise=1.0, epsilon=None, noise_multiplier=2.0, steps=10)


def test_clipping_leaves_the_event_as_it_is():
    flat = plan(steps=10)
    for clipping in ("per_layer", "automatic", "adaptive"):
        made = plan(steps=10, clipping=clipping)
        assert made.event == flat.event
        assert made.noise_multiplier == flat.noise_multiplier
        assert dict(made.rows())["clipping"].startswith(clipping)


def test_a_record_moves_the_count_by_less_than_one_half():
    """By hand: m = 63/64; b is 1 up to (1 − 1/8)C, 1/2 at C, 1/4 at 17/16 C, 0 from (1 + 1/8)C on."""
    norms = torch.tensor([0.1, 0.5, 0.5 * 17 / 16, math.nan, math.inf, 0.5625], dtype=torch.float64)
    assert adaptive.unclipped_count(norms, 0.5) == pytest.approx(63 / 64 * (1.75 - 3.0), rel=1e-14)
    assert adaptive.unclipped_count(norms[:0], 0.5) == 0.0
    for i in range(len(norms)):
        others = torch.cat([norms[:i], norms[i + 1 :]])
        moved = adaptive.unclipped_count(norms, 0.5) - adaptive.unclipped_count(others, 0.5)
        assert abs(moved) <= 0.5 * 63 / 64 + 1e-15


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_equal_norms_that_are_rounded_otherwise_do_not_turn_the_count_over(share):
    """512 equal norms near C: in a batch of another size each may be 3e-7 of itself larger or smaller."""
    clip = 0.5 * (1.0 + share / 8.0)
    norms = torch.full((512,), 0.5, dtype=torch.float64)
    more = torch.cat([norms * (1 + 3e-7), norms[:1]])
    moved = adaptive.unclipped_count(more, clip) - adaptive.unclipped_count(norms, clip)
    assert abs(moved) <= 0.5


def test_the_count_is_released_on_a_grid_that_holds_all_counts():
    """Low bits of count + noise cannot tell which count it was: with one noise, two counts are less than ½ apart."""
    made = small_plan(clipping="adaptive", noise_multiplier=0.5, count_noise=math.pi)
    norms = torch.linspace(0.1, 1.0, 10, dtype=torch.float64)
    one, two = (adaptive.noisy_count(made, part, 0.45, FixedNoise(3)) for part in (norms, norms[1:]))
    assert 0.48 < abs(one - two) <= 0.5
    assert float(one * 2**13).is_integer()
    drawn = []
    source = SimpleNamespace(normal=lambda std, size: drawn.append(std) or np.zeros(size))
    adaptive.noisy_count(made, norms, 0.45, source, noise_share=0.5)
    assert drawn == [math.pi / 2]


def test_the_clipping_norm_follows_the_quantile_by_hand():
    """B = 10, count 3 · 63/64: b̃ = 0.8; C · exp(−0.2 (0.8 − 0.5)) = C · exp(−0.06)."""
    made = small_plan(clipping="adaptive", noise_multiplier=0.5)
    assert adaptive.next_clip(made, 0.5, 3.0 * 63 / 64) == pytest.approx(0.5 * math.exp(-0.06), rel=1e-14)
    assert adaptive.next_clip(made, 0.5, 0.0) == 0.5
    assert adaptive.next_clip(made, 1e-6, 1e300) == 1e-6
    assert adaptive.next_clip(made, 1e6, -1e300) == 1e6


def test_the_clipping_norm_settles_at_the_quantile():
    """Norms 0.01 … 1.00 and no noise: the 0.7 quantile is between 0.70 and 0.71."""
    made = small_plan(
        clipping="adaptive", noise_multiplier=0.5, expected_batch_size=100, target_quantile=0.7, count_noise=5.0
    )
    norms, clip = torch.arange(1, 101, dtype=torch.float64) / 100, 0.01
    silent = SimpleNamespace(normal=lambda std, size: np.zeros(size))
    for _ in range(400):
        clip = adaptive.next_clip(made, clip, adaptive.noisy_count(made, norms, clip, silent))
    assert 0.69 < clip < 0.72


# -- samples of fixed size --------------------------------------------------------------------------------------------
FIXED = {"sampling": "fixed_size", "neighboring_relation": "replace_one", "expected_batch_size": 1000, "steps": 20}


@pytest.mark.parametrize("accountant", ["best", "rdp", "pld", "zcdp"])
def test_a_sample_of_fixed_size_has_its_own_event(accountant):
    made = plan(**FIXED, accountant=accountant)
    step = accounting.SampledWithoutReplacement(1000, 36177, accounting.Gaussian(made.noise_multiplier))
    assert made.event_per_step == step
    assert made.event == accounting.SelfComposed(event=step, count=20)
    used = accounting.epsilon(made.event, 1e-5, accountant=accountant, neighboring_relation="replace_one")
    assert 0.99 < used <= 1.0
    assert made.source_size == 36177
    assert "1,000 of exactly 36,177" in dict(made.rows())["sampling"]


def test_fixed_size_is_refused_where_the_number_of_records_is_private():
    with pytest.raises(ConfigError, match=r"sampling = 'fixed_size' .*number of records is private.*replace_one"):
        plan(**{**FIXED, "neighboring_relation": "add_remove"})


def test_an_accountant_without_a_bound_for_it_refuses_by_name():
    with pytest.raises(AccountingError, match=r"'exact' cannot .*sampled_without_replacement"):
        plan(**FIXED, accountant="exact")


def test_the_table_must_have_the_declared_number_of_records():
    made = plan(**FIXED)
    made.check_records(36177)
    for n in (0, 36176, 36178):
        with pytest.raises(DataError, match=f"holds {n} records and n_declared = 36177"):
            made.check_records(n)
    plan(steps=5).check_records(3)  # Poisson sampling: n is private and free


# -- automatic rate of Adam -------------------------------------------------------------------------------------------
def test_adam_s_automatic_rate_by_hand():
    """2 · 0.75 · 15/√(100 · 133) with bias correction, 2 · 15/√… without; noise, batch and C do not matter."""
    unit = 15 / math.sqrt(100 * 133)
    for changes in ({}, {"epsilon": 0.1}, {"max_grad_norm": 0.3}, {"expected_batch_size": 100}, {"schedule": "cosine"}):
        assert plan(optimizer="adam", **changes).learning_rate == pytest.approx(1.5 * unit, rel=1e-12)
    assert plan(optimizer="adamw", bias_correction=False).learning_rate == pytest.approx(2 * unit, rel=1e-12)
    assert plan(optimizer="adam", schedule="constant").learning_rate == pytest.approx(0.75 * unit, rel=1e-12)
    warm = plan(optimizer="adam", schedule="constant", warmup_steps=20)
    assert sum(warm.rate(t) for t in range(100)) / 100 == pytest.approx(0.75 * unit, rel=0.002)
    assert plan(optimizer="adam").steps == 100
    assert not plan(optimizer="adam").capped
    assert plan(optimizer="adam", model_name="mlp", steps=10).learning_rate == 0.1
    assert plan(optimizer="adam", learning_rate=0.003, steps=10).learning_rate == 0.003


def test_a_rise_before_a_falling_rate_keeps_its_mean():
    """… so the rule's factor two stays, for SGD as for Adam."""
    made = plan(epsilon=0.1, steps=100, warmup_steps=30)
    assert made.learning_rate == plan(epsilon=0.1, steps=100).learning_rate
    assert sum(made.rate(t) for t in range(100)) / 100 == pytest.approx(made.learning_rate / 2, rel=0.02)


# -- optimizers in the plan -------------------------------------------------------------------------------------------
def test_choices_stand_in_the_plan():
    made = plan(
        steps=20, optimizer="adamw", betas=[0.8, 0.9], weight_decay=0.01, learning_rate=0.02, schedule="cosine",
        warmup_steps=3, averaging="ema", averaging_share=0.25, micro_batch_size="auto",
    )  # fmt: skip
    assert (made.optimizer, made.betas, made.weight_decay, made.schedule) == ("adamw", (0.8, 0.9), 0.01, "cosine")
    assert (made.warmup_steps, made.averaging, made.averaging_share) == (3, "ema", 0.25)
    assert made.micro_batch_size is None
    assert dict(made.rows()) == {
        "optimizer": "adamw, betas 0.8 and 0.9",
        "weight decay": "0.01",
        "schedule": "cosine, 3 warm-up steps",
        "averaging": "ema, share 0.25",
    }
    assert plan(steps=20).rows() == []
    assert made.event == plan(steps=20).event, "all of it is post-processing"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"optimizer": "adams"}, "optimizer = 'adams' .*Did you mean 'adam'"),
        ({"optimizer": "adam", "momentum": 0.8}, "momentum = 0.8 .*optimizer='adam'.*betas"),
        ({"betas": (0.5, 0.9)}, "betas = .*optimizer='sgd'"),
        ({"optimizer": "adam", "betas": (0.9, 1.0)}, "betas = .*two numbers"),
        ({"optimizer": "adam", "betas": (0.9,)}, "betas = .*two numbers"),
        ({"optimizer": "adam", "betas": "auto"}, "betas = 'auto'"),
        ({"bias_correction": False}, "bias_correction = False .*optimizer='sgd'"),
        ({"optimizer": "adam", "bias_correction": 1}, "bias_correction = 1"),
        ({"optimizer": "adam", "weight_decay": 0.1}, "weight_decay = 0.1 .*adamw"),
        ({"weight_decay": -0.1}, "weight_decay = -0.1"),
        ({"weight_decay": 2.0, "learning_rate": 0.5, "steps": 5}, "weight_decay = 2.0 .*below 1/learning_rate = 2"),
        ({"warmup_steps": 10, "steps": 10}, "warmup_steps = 10 .*below steps = 10"),
        ({"warmup_steps": 1500}, "warmup_steps = 1500 .*below steps"),
        ({"warmup_steps": -1}, "warmup_steps = -1"),
        ({"warmup_steps": 1.5}, "warmup_steps = 1.5"),
        ({"averaging": "mean"}, "averaging = 'mean' .*none, ema, tail"),
        ({"averaging_share": 0.2}, "averaging_share = 0.2 .*averaging='none'"),
        ({"averaging": "ema", "averaging_share": 1.5}, "averaging_share = 1.5"),
        ({"clipping": "none"}, "clipping = 'none' .*flat, per_layer, automatic, adaptive"),
        ({"target_quantile": 0.7}, "target_quantile = 0.7 .*clipping='flat'"),
        ({"clipping": "adaptive", "target_quantile": 1.0}, "target_quantile = 1.0"),
        ({"clipping": "adaptive", "clip_learning_rate": 0.0}, "clip_learning_rate = 0.0"),
        ({"clipping": "adaptive", "count_noise": float("nan")}, "count_noise = nan"),
        ({"count_noise": 5.0}, "count_noise = 5.0 .*clipping='flat'"),
        ({"sampling": "shuffle"}, "sampling = 'shuffle' .*poisson, fixed_size"),
        ({"micro_batch_size": "some"}, "micro_batch_size = 'some'"),
    ],
)  # fmt: skip
def test_choices_that_are_not_allowed_are_named(change, match):
    with pytest.raises(ConfigError, match=match):
        plan(**change)
