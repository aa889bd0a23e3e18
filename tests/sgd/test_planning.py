"""The plan: public numbers in, a calibrated and bounded run out; every refusal is named."""

from __future__ import annotations

import math

import pytest
from sgd_checks import small_plan

from dpml import accounting
from dpml.errors import ConfigError
from dpml.sgd import plan_dp_sgd

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
        ({"schedule": "cosine"}, "schedule = 'cosine'"),
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
