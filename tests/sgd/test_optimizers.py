"""Optimizers against torch's own (no noise), slow loops and hand calculations; everything is post-processing."""

from __future__ import annotations

import math

import pytest
import torch
from sgd_checks import small_plan

from dpml.errors import ModelError
from dpml.sgd import optimizers
from dpml.sgd.optimizers import Optimizer, average_weight, is_averaged, optimizer_parts

STEPS = 12
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def parameters(dtype=torch.float64):
    return {"a.weight": torch.randn(3, 2, dtype=dtype), "b": torch.randn(4, dtype=dtype)}


def gradients(like, steps=STEPS, scale=1.0):
    """float64, as the engine's."""
    return [{k: scale * torch.randn(v.shape, dtype=torch.float64) for k, v in like.items()} for _ in range(steps)]


def silent(**changes):
    """A plan whose noise is 0, so that DP bias correction has nothing to subtract."""
    return small_plan(**{"schedule": "linear", "noise_multiplier": 0.0, **changes})


def train(plan, start, steps, **arguments):
    own = {k: v.clone() for k, v in start.items()}
    optimizer = Optimizer(plan, own)
    for t, gradient in enumerate(steps):
        optimizer.step(t, gradient, **arguments)
    return own, optimizer


def torch_twin(make, plan, start, steps):
    own = {k: v.clone().requires_grad_(True) for k, v in start.items()}
    twin = make(list(own.values()))
    for t, gradient in enumerate(steps):
        twin.param_groups[0]["lr"] = plan.rate(t)
        for name, value in own.items():
            value.grad = gradient[name].to(value.dtype)
        twin.step()
    return {k: v.detach() for k, v in own.items()}


TWINS = {
    "sgd": (
        {"optimizer": "sgd", "momentum": 0.9},
        lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, dampening=0.0),
    ),
    "sgd without momentum": ({"optimizer": "sgd", "momentum": 0.0}, lambda ps: torch.optim.SGD(ps, lr=0.1)),
    "adam": (
        {"optimizer": "adam", "betas": (0.8, 0.99)},
        lambda ps: torch.optim.Adam(ps, lr=0.1, betas=(0.8, 0.99), eps=1e-8),
    ),
    "adamw": (
        {"optimizer": "adamw", "weight_decay": 0.3},
        lambda ps: torch.optim.AdamW(ps, lr=0.1, weight_decay=0.3, eps=1e-8),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("name", TWINS)
def test_without_noise_it_is_torch_s_optimizer(name, corrected, dtype):
    changes, make = TWINS[name]
    plan = silent(bias_correction=corrected, **changes)
    start = parameters(dtype)
    steps = gradients(start)
    ours, _ = train(plan, start, steps)
    twin = torch_twin(make, plan, start, steps)
    for key, value in ours.items():
        assert value.dtype == dtype
        torch.testing.assert_close(value, twin[key], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_momentum_is_the_heavy_ball_by_hand():
    """m: 1, then 0.5 + 2 = 2.5; w: −0.1, then −0.1 − 0.1·2.5 = −0.35."""
    start = {"w": torch.zeros(1, dtype=torch.float64)}
    steps = [{"w": torch.ones(1, dtype=torch.float64)}, {"w": torch.full((1,), 2.0, dtype=torch.float64)}]
    own, optimizer = train(small_plan(momentum=0.5), start, steps)
    assert float(own["w"]) == pytest.approx(-0.35, rel=1e-14)
    assert float(optimizer.state()["momentum"]["w"]) == 2.5


def by_hand(plan, gradients_of_one_entry, variances):
    """DP-AdamBC on one number, in Python floats."""
    first, second = plan.betas
    w = m = v = noise = 0.0
    for t, (g, variance) in enumerate(zip(gradients_of_one_entry, variances, strict=True)):
        m = first * m + (1 - first) * g
        v = second * v + (1 - second) * g * g
        noise = second * noise + (1 - second) * variance
        k = t + 1
        phi = noise / (1 - second**k)
        corrected = max(v / (1 - second**k) - phi, optimizers.FLOOR * phi)
        w -= plan.rate(t) * (m / (1 - first**k)) / (math.sqrt(corrected) + 1e-8)
    return w


def test_the_noise_variance_is_subtracted_from_the_second_moment():
    """φ = (σC/B)² = (1 · 0.5/10)² = 0.0025."""
    plan = small_plan(optimizer="adam", betas=(0.9, 0.9))
    values = [0.2, -0.1, 0.3, 0.05, 0.25]
    steps = [{"w": torch.tensor([g], dtype=torch.float64)} for g in values]
    own, optimizer = train(plan, {"w": torch.zeros(1, dtype=torch.float64)}, steps)
    assert optimizer.noise_variance == pytest.approx(0.0025, rel=1e-14)
    assert float(own["w"]) == pytest.approx(by_hand(plan, values, [0.0025] * 5), rel=1e-12)
    plain, _ = train(
        small_plan(optimizer="adam", betas=(0.9, 0.9), bias_correction=False),
        {"w": torch.zeros(1, dtype=torch.float64)},
        steps,
    )
    assert abs(float(own["w"])) > 1.02 * abs(float(plain["w"])), "the correction shrinks the denominator"


def test_the_first_step_of_bias_corrected_adam_by_hand():
    """ĝ = 0.13, φ = 0.0025: v̂ − φ = 0.0169 − 0.0025 = 0.0144, so the step is rate · 0.13/0.12."""
    plan = small_plan(optimizer="adamw")
    own, _ = train(plan, {"w": torch.zeros(1, dtype=torch.float64)}, [{"w": torch.tensor([0.13], dtype=torch.float64)}])
    assert float(own["w"]) == pytest.approx(-0.1 * 0.13 / (0.12 + 1e-8), rel=1e-12)


def test_below_the_noise_the_floor_holds():
    """ĝ² < φ: the denominator is √(γφ) = √γ · 0.05, never zero or imaginary."""
    plan = small_plan(optimizer="adam")
    own, _ = train(plan, {"w": torch.zeros(1, dtype=torch.float64)}, [{"w": torch.tensor([0.01], dtype=torch.float64)}])
    assert float(own["w"]) == pytest.approx(-0.1 * 0.01 / (math.sqrt(optimizers.FLOOR) * 0.05 + 1e-8), rel=1e-12)


def test_the_correction_follows_noise_that_changes():
    plan = small_plan(optimizer="adam", betas=(0.5, 0.8))
    values, stds = [0.2, 0.3, -0.1, 0.25], [0.05, 0.1, 0.02, 0.08]
    own = {"w": torch.zeros(1, dtype=torch.float64)}
    optimizer = Optimizer(plan, own)
    for t, (g, std) in enumerate(zip(values, stds, strict=True)):
        optimizer.step(t, {"w": torch.tensor([g], dtype=torch.float64)}, std)
    assert float(own["w"]) == pytest.approx(by_hand(plan, values, [std**2 for std in stds]), rel=1e-12)


def test_of_pure_noise_the_corrected_moment_is_about_zero():
    """v̂ of N(0, φ) draws has mean φ: over 4000 entries and β₂ = 0.999 the mean of v̂/φ − 1 has a standard deviation
    below √(2/4000)/√100 = 0.0023 after 100 steps, so 0.0125 has a false-alarm rate below 1e-6; uncorrected it is 1."""
    plan = small_plan(optimizer="adam", steps=100)
    own = {"w": torch.zeros(4000, dtype=torch.float64)}
    optimizer = Optimizer(plan, own)
    for t in range(100):
        optimizer.step(t, {"w": 0.05 * torch.randn(4000, dtype=torch.float64)})
    moment = optimizer.state()["second_moment"]["w"] / (1 - 0.999**100)
    assert abs(float(moment.mean()) / optimizer.noise_variance - 1) < 0.0125


def test_decay_of_sgd_is_decoupled_by_hand():
    """(1 − 0.1 · 0.5) · 2 − 0.1 · 1 = 1.8 and the momentum never sees the weight."""
    plan = small_plan(weight_decay=0.5, momentum=0.9)
    own, optimizer = train(
        plan, {"w": torch.full((1,), 2.0, dtype=torch.float64)}, [{"w": torch.ones(1, dtype=torch.float64)}]
    )
    assert float(own["w"]) == pytest.approx(1.8, rel=1e-14)
    assert float(optimizer.state()["momentum"]["w"]) == 1.0


# -- averages ---------------------------------------------------------------------------------------------------------
def path(plan, values):
    """Iterates 1, 2, … forced by gradients: momentum 0, rate 0.1, so w_t = −0.1 Σ ĝ."""
    own = {"w": torch.zeros(1, dtype=torch.float64)}
    optimizer, last = Optimizer(plan, own), 0.0
    for t, value in enumerate(values):
        optimizer.step(t, {"w": torch.tensor([(last - value) / 0.1], dtype=torch.float64)})
        last = value
    return own, optimizer


@pytest.mark.parametrize(
    ("share", "expected"), [(0.25, (10 + 11 + 12) / 3), (0.0, 12.0), (1.0, 6.5), (0.2, (10 + 11 + 12) / 3)]
)
def test_tail_average_is_the_mean_of_the_last_iterates(share, expected):
    """Of T = 12: the last ⌈12 · share⌉, at least one."""
    own, optimizer = path(small_plan(averaging="tail", averaging_share=share), range(1, 13))
    assert float(optimizer.released()["w"]) == pytest.approx(expected, rel=1e-12)
    assert float(own["w"]) == pytest.approx(12.0, rel=1e-12), "training goes on from the iterate, not from the average"


@pytest.mark.parametrize("share", [0.0, 1 / 24, 0.5, 1.0])
def test_ema_weights_by_hand(share):
    """Weights d^age/Σ d^age with d = 1 − 1/(share · 12), 0 where that is negative."""
    plan = small_plan(averaging="ema", averaging_share=share)
    decay = max(0.0, 1 - 1 / (12 * share)) if share else 0.0
    weights = [decay**age for age in range(11, -1, -1)]
    expected = sum(w * x for w, x in zip(weights, range(1, 13), strict=True)) / sum(weights)
    assert float(path(plan, range(1, 13))[1].released()["w"]) == pytest.approx(expected, rel=1e-12)


def test_before_the_tail_the_weights_themselves_are_released():
    plan = small_plan(averaging="tail", averaging_share=0.25)
    own, optimizer = path(plan, [3.0, 4.0])
    assert float(optimizer.released()["w"]) == pytest.approx(4.0, rel=1e-12)
    assert optimizer.released()["w"].data_ptr() != own["w"].data_ptr()
    assert [t for t in range(12) if is_averaged(plan, t)] == [9, 10, 11]


def test_without_averaging_nothing_is_kept_for_it():
    assert optimizer_parts(small_plan()) == ("momentum",)
    assert optimizer_parts(small_plan(optimizer="adamw", averaging="ema")) == ("momentum", "second_moment", "average")


# -- edges ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("averaging", ["none", "tail", "ema"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("schedule", ["linear", "constant", "cosine"])
def test_zero_gradients_leave_the_weights_where_they_are(optimizer, averaging, noise, schedule):
    """… also for T = 1 and without noise, where every denominator is at its smallest."""
    for steps in (1, 12):
        plan = small_plan(
            optimizer=optimizer, averaging=averaging, noise_multiplier=noise, steps=steps, schedule=schedule
        )
        start = parameters(torch.float32)
        zero = [{k: torch.zeros(v.shape, dtype=torch.float64) for k, v in start.items()}] * steps
        own, made = train(plan, start, zero)
        for key, value in start.items():
            assert torch.equal(own[key], value)
            torch.testing.assert_close(made.released()[key], value, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_half_precision_weights_have_float32_state(optimizer, dtype):
    """Each step is the float32 step, rounded once: within one unit of half precision of a float32 twin's step."""
    plan = silent(optimizer=optimizer, averaging="tail", averaging_share=1.0)
    start = parameters(dtype)
    own = {k: v.clone() for k, v in start.items()}
    made = Optimizer(plan, own)
    twin = {k: v.float() for k, v in start.items()}
    exact = Optimizer(plan, twin)
    for t, gradient in enumerate(gradients(start)):
        made.step(t, gradient)
        with torch.no_grad():
            exact.step(t, gradient)
            for value in twin.values():
                value.copy_(value.to(dtype))
    for part, tensors in made.state().items():
        if part != "scalars":
            assert all(v.dtype == torch.float32 for v in tensors.values()), part
    for key, value in own.items():
        assert value.dtype == made.released()[key].dtype == dtype
        torch.testing.assert_close(value.float(), twin[key], rtol=2 * torch.finfo(dtype).eps, atol=1e-4)


def test_tiny_and_huge_gradients_stay_finite():
    for scale in (1e-30, 1e-8, 1e12):
        for optimizer in ("sgd", "adam"):
            start = parameters(torch.float32)
            own, _ = train(small_plan(optimizer=optimizer), start, gradients(start, scale=scale))
            assert all(torch.isfinite(v).all() for v in own.values())


def test_leaves_that_require_grad_are_stepped_without_a_graph():
    own = {"w": torch.ones(2, requires_grad=True)}
    made = Optimizer(small_plan(optimizer="adam", averaging="ema", weight_decay=0.0), own)
    made.step(0, {"w": torch.ones(2, dtype=torch.float64)})
    assert own["w"].grad_fn is None
    assert own["w"].requires_grad
    assert not any(v.requires_grad for v in made.released().values())


# -- state ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("averaging", ["none", "tail", "ema"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_loaded_state_goes_on_as_if_never_stopped(optimizer, averaging):
    plan = small_plan(optimizer=optimizer, averaging=averaging, averaging_share=0.75, momentum=0.9)
    start = parameters()
    steps = gradients(start)
    whole, last = train(plan, start, steps)
    own, made = train(plan, start, steps[:7])
    other = {k: v.clone() for k, v in own.items()}
    again = Optimizer(plan, other)
    again.load(made.state())
    made.step(7, steps[7])  # the first optimizer's tensors are not the second's
    for t in range(7, STEPS):
        again.step(t, steps[t])
    for key in start:
        assert torch.equal(other[key], whole[key])
        assert torch.equal(again.released()[key], last.released()[key])


def test_bias_correction_counts_updates_not_steps():
    """After a crash before the first checkpoint the moments start at zero in step 7: they are as if it were the
    first (else the step would be 1/(1 − 0.9⁸) = 1.8 times too small)."""
    plan = small_plan(optimizer="adam", noise_multiplier=0.0, schedule="constant")
    own = {"w": torch.zeros(1, dtype=torch.float64)}
    Optimizer(plan, own).step(7, {"w": torch.ones(1, dtype=torch.float64)})
    assert float(own["w"]) == pytest.approx(-0.1, rel=1e-7)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda s: s.pop("second_moment"), "holds the parts"),
        (lambda s: s.update(average={}), "holds the parts"),
        (lambda s: s["momentum"].pop("b"), "momentum are not those"),
        (lambda s: s["second_moment"].update(b=torch.zeros(5)), "second_moment are not those"),
        (lambda s: s["scalars"].pop("updates"), "scalars are not those"),
    ],
)
def test_a_state_of_another_optimizer_or_model_is_refused(change, match):
    plan = small_plan(optimizer="adam")
    made = Optimizer(plan, parameters())
    state = made.state()
    change(state)
    with pytest.raises(ModelError, match=match):
        made.load(state)


# -- rates ------------------------------------------------------------------------------------------------------------
def test_rates_by_hand():
    """T = 4, η = 2."""
    made = {s: small_plan(steps=4, learning_rate=2.0, schedule=s) for s in ("linear", "cosine", "constant")}
    assert [made["linear"].rate(t) for t in range(4)] == [2.0, 1.5, 1.0, 0.5]
    expected = [2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5)]
    assert [made["cosine"].rate(t) for t in range(4)] == pytest.approx(expected, rel=1e-12)
    assert [made["constant"].rate(t) for t in range(4)] == [2.0] * 4


def test_warm_up_rises_to_the_peak_and_the_schedule_follows():
    """W = 3 of T = 7: η/4, η/2, 3η/4, then linear over the four left."""
    warm = small_plan(steps=7, learning_rate=2.0, schedule="linear", warmup_steps=3)
    assert [warm.rate(t) for t in range(7)] == [0.5, 1.0, 1.5, 2.0, 1.5, 1.0, 0.5]
    assert small_plan(steps=1, learning_rate=2.0, schedule="cosine").rate(0) == 2.0


def test_the_rate_of_a_step_does_not_depend_on_how_many_were_made():
    """A resumed optimizer uses the rate of its logical step."""
    plan = small_plan(schedule="linear", steps=10, learning_rate=1.0)
    own = {"w": torch.zeros(1, dtype=torch.float64)}
    Optimizer(plan, own).step(9, {"w": torch.ones(1, dtype=torch.float64)})
    assert float(own["w"]) == pytest.approx(-0.1, rel=1e-12)


def test_weights_of_averages_sum_to_one():
    for averaging in ("tail", "ema"):
        plan = small_plan(averaging=averaging, averaging_share=0.6)
        left = 1.0
        for k in range(12, 0, -1):
            left *= 1 - average_weight(plan, k)
        assert left == pytest.approx(0.0, abs=1e-15), "nothing is left of the start"
