"""Checkpoints: what goes in comes out, nothing else goes in, and no damaged, foreign or old file is taken for one."""

from __future__ import annotations

import os

import pytest
import torch
from safetensors.torch import load, save
from sgd_checks import small_plan
from torch import nn

from dpml import results
from dpml.errors import ModelError
from dpml.sgd import states
from dpml.sgd.optimizers import Optimizer

CPU = torch.device("cpu")
PLANS = {
    "sgd": {"momentum": 0.9},
    "adam": {"optimizer": "adam"},
    "averaged": {"optimizer": "adamw", "averaging": "ema"},
    "adaptive": {"clipping": "adaptive", "noise_multiplier": 0.5, "averaging": "tail", "averaging_share": 1.0},
}


def network(dtype=torch.float32):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    return model.to(dtype)


def trained_state(plan, model, steps=3, clip=0.375):
    """After some steps on random gradients: nothing in it is zero."""
    parameters = {k: p for k, p in model.named_parameters() if p.requires_grad}
    optimizer = Optimizer(plan, parameters)
    for t in range(steps):
        optimizer.step(t, {k: torch.randn(p.shape, dtype=torch.float64) for k, p in parameters.items()})
    return states.snapshot(steps, parameters, optimizer.state(), clip)


def assert_same(one, two):
    assert set(one) == set(two) == {"step", "parameters", "optimizer", "clip"}
    assert (one["step"], one["clip"]) == (two["step"], two["clip"])
    assert set(one["optimizer"]) == set(two["optimizer"])
    for a, b in [
        (one["parameters"], two["parameters"]),
        *((one["optimizer"][k], v) for k, v in two["optimizer"].items()),
    ]:
        assert set(a) == set(b)
        assert all(torch.equal(a[k], v) and a[k].dtype == v.dtype for k, v in b.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", PLANS)
def test_a_state_survives_the_file(tmp_path, kind, dtype):
    plan, model = small_plan(**PLANS[kind]), network(dtype)
    state = trained_state(plan, model)
    assert set(state["parameters"]) == {"0.weight", "2.weight", "2.bias"}, "frozen parameters never appear"
    states.save_state(tmp_path / "c", state)
    back = states.load_state(tmp_path / "c")
    assert_same(back, state)
    assert_same(states.completed_state(back, model, CPU, plan), state)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_snapshot_does_not_change_with_later_steps():
    plan, model = small_plan(optimizer="adam", averaging="tail"), network()
    parameters = {k: p for k, p in model.named_parameters() if p.requires_grad}
    optimizer = Optimizer(plan, parameters)
    before = states.snapshot(0, parameters, optimizer.state(), 0.5)
    for t in range(12):
        optimizer.step(t, {k: torch.ones(p.shape, dtype=torch.float64) for k, p in parameters.items()})
    assert_same(before, states.initial_state(plan, network_like(before)))
    assert not torch.equal(before["parameters"]["2.bias"], parameters["2.bias"])


def network_like(state):
    model = network()
    with torch.no_grad():
        for name, value in state["parameters"].items():
            model.get_parameter(name).copy_(value)
    return model


def test_what_is_missing_starts_afresh():
    """Killed before the first checkpoint: only the number of charged steps is known."""
    plan, model = small_plan(optimizer="adam", averaging="ema"), network()
    state = states.completed_state({"step": 7}, model, CPU, plan)
    assert state["step"] == 7
    assert state["clip"] == plan.max_grad_norm
    assert_same({**state, "step": 0}, states.initial_state(plan, model))
    assert_same(states.completed_state(None, model, CPU, plan), states.initial_state(plan, model))
    state["parameters"]["2.bias"].add_(1.0)
    assert not torch.equal(state["parameters"]["2.bias"], model[2].bias), "a copy"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda s: s["parameters"].pop("2.bias"), "parameters are not those of this model"),
        (lambda s: s["parameters"].update(extra=torch.zeros(1)), "parameters are not those of this model"),
        (lambda s: s["parameters"].update({"2.bias": torch.zeros(3)}), "parameters are not those of this model"),
        (lambda s: s["optimizer"]["momentum"].pop("2.bias"), "momentum are not those of this model"),
        (lambda s: s["optimizer"].pop("second_moment"), "this plan's optimizer has"),
        (lambda s: s["optimizer"].update(average=s["optimizer"]["momentum"]), "another optimizer or averaging"),
        (lambda s: s["optimizer"].pop("scalars"), "this plan's optimizer has"),
        (lambda s: s.update(noise_key="00"), "no 'noise_key'"),
        (lambda s: s.update(step=-1), "step is -1"),
        (lambda s: s.update(step=1.5), "step is 1.5"),
        (lambda s: s.update(clip=0.0), "clipping norm is 0.0"),
        (lambda s: s.update(clip=float("nan")), "clipping norm is nan"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, match):
    plan, model = small_plan(optimizer="adam"), network()
    state = trained_state(plan, model)
    change(state)
    with pytest.raises(ModelError, match=match):
        states.completed_state(state, model, CPU, plan)


@pytest.mark.parametrize("extra", [{"key": b"secret"}, {"generator": 1}])
def test_nothing_but_a_state_is_written(tmp_path, extra):
    state = trained_state(small_plan(), network())
    with pytest.raises(ModelError, match="has no"):
        states.save_state(tmp_path / "c", {**state, **extra})
    with pytest.raises(ModelError, match="has no 'rng'"):
        states.save_state(tmp_path / "c", {**state, "optimizer": {**state["optimizer"], "rng": {}}})
    assert list(tmp_path.iterdir()) == []


def test_every_flipped_byte_is_found(tmp_path):
    """The header, its digest and every value: safetensors itself has no checksum."""
    path = tmp_path / "c"
    states.save_state(path, trained_state(small_plan(), network()))
    whole = path.read_bytes()
    positions = [*range(0, len(whole), 97), len(whole) - 1]
    for position in positions:
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(ModelError):
            states.load_state(path)
    for end in (0, 7, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(ModelError, match="not a readable checkpoint"):
            states.load_state(path)
    with pytest.raises(ModelError, match="not a readable checkpoint"):
        states.load_state(tmp_path / "missing")


def test_an_old_format_is_named_with_a_way_out(tmp_path):
    path = tmp_path / "c"
    path.write_bytes(save({"parameters/w": torch.zeros(1)}, metadata={"format": "dpml-dp-sgd-state-1", "step": "3"}))
    with pytest.raises(ModelError, match=r"dpml-dp-sgd-state-1.*earlier dpml.*start a new run"):
        states.load_state(path)
    path.write_bytes(save({"w": torch.zeros(1)}))
    with pytest.raises(ModelError, match="has format 'None', this dpml reads 'dpml-dp-sgd-state-2'"):
        states.load_state(path)


def test_a_write_that_fails_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    plan, model, path = small_plan(), network(), tmp_path / "c"
    first = trained_state(plan, model)
    states.save_state(path, first)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(results.os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            states.save_state(path, trained_state(plan, model, steps=5))
    assert_same(states.load_state(path), first)
    assert os.listdir(tmp_path) == ["c"]


def test_the_file_holds_tensors_of_the_state_and_nothing_else(tmp_path):
    plan = small_plan(**PLANS["averaged"])
    states.save_state(tmp_path / "c", trained_state(plan, network()))
    trained = ("0.weight", "2.weight", "2.bias")
    expected = {f"parameters/{name}" for name in trained}
    expected |= {f"optimizer/{part}/{name}" for part in ("momentum", "second_moment", "average") for name in trained}
    expected |= {f"optimizer/scalars/{name}" for name in ("updates", "averaged", "noise_variance")}
    raw = (tmp_path / "c").read_bytes()
    assert set(load(raw)) == expected
