"""The DP-SGD loop: what is charged, drawn and released, in which order, and what it may depend on."""

from __future__ import annotations

import copy
import logging
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from sgd_checks import RecordingNoise, TiedNetwork, one_record_loop, rows, run, small_plan
from torch import nn

from dpml import sgd
from dpml.errors import ConfigError, DataError, LedgerError, ModelError
from dpml.mechanisms import FixedNoise, SecretNoise
from dpml.mechanisms.lattice import Grid
from dpml.sgd import engine
from dpml.sgd.clipping import Clipper
from dpml.sgd.engine import draw_noise, released_sum
from dpml.sgd.models import ModelLoss


def parameters_of(model):
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


def test_every_step_is_the_formula_of_the_docstring():
    """A slow twin: one-record loop, the recorded coins and noise, heavy-ball momentum, linear decay."""
    X, y = rows()
    plan = small_plan(momentum=0.9, schedule="linear", steps=7)
    model = sgd.build_model("mlp", 3, 2, hidden=(4,), seed=2).double()
    trained, _, _, noise = run(plan, X, y, model=model)
    twin = copy.deepcopy(model)
    velocity = {name: torch.zeros_like(p) for name, p in twin.named_parameters()}
    for step in range(plan.steps):
        chosen = noise.uniforms[step] < plan.sample_rate
        batch = (torch.from_numpy(X[chosen]), torch.from_numpy(y[chosen]))
        sums, _ = one_record_loop(twin, ModelLoss(), batch, plan.max_grad_norm * (1 - 2**-10))
        spacing = Grid(plan.max_grad_norm, sum(p.numel() for p in twin.parameters())).spacing
        std, drawn = noise.normals[step]
        assert std == plan.noise_multiplier * plan.max_grad_norm
        with torch.no_grad():
            at = 0
            for name, p in twin.named_parameters():
                z = torch.from_numpy(drawn[at : at + p.numel()]).reshape(p.shape)
                at += p.numel()
                steps = torch.round(sums[name] / spacing) + torch.round(z / spacing)
                velocity[name] = 0.9 * velocity[name] + spacing * steps / plan.expected_batch_size
                p -= plan.learning_rate * (1 - step / plan.steps) * velocity[name]
        assert at == len(drawn)
    np.testing.assert_allclose(parameters_of(trained), parameters_of(twin), rtol=1e-12, atol=1e-13)


def test_reservations_come_before_the_first_draw_of_their_block_and_cover_every_step():
    X, y = rows()
    plan = small_plan(steps=12, checkpoint_every=5)
    _, notes, charges, noise = run(plan, X, y)
    block = ["uniform", "normal"]
    assert noise.log == ["reserve 5", *block * 5, "reserve 5", *block * 5, "reserve 2", *block * 2]
    assert [count for _, count in charges] == [5, 5, 2]
    assert all(event == plan.event_per_step for event, _ in charges)
    assert notes["steps_run"] == 12


def test_nothing_is_drawn_when_the_reservation_fails():
    X, y = rows()
    noise = RecordingNoise()

    def full_disk(event, count):
        raise LedgerError("no space left")

    with pytest.raises(LedgerError, match="no space"):
        sgd.fit_dp_sgd(small_plan(), sgd.build_model("logreg", 3, 2), X, y, noise=noise, reserve=full_disk)
    assert noise.log == []


@pytest.mark.parametrize("micro", [None, 1, 3, 1000])
def test_noise_is_drawn_once_per_step_whatever_the_micro_batches(micro):
    X, y = rows()
    model = sgd.build_model("mlp", 3, 2, hidden=(4,)).double()
    plan = small_plan(micro_batch_size=micro)
    trained, _, _, noise = run(plan, X, y, model=model)
    size = sum(p.numel() for p in model.parameters())
    assert [draw.shape for _, draw in noise.normals] == [(size,)] * plan.steps
    assert len(noise.uniforms) == plan.steps
    whole, *_ = run(small_plan(), X, y, model=model)
    np.testing.assert_allclose(parameters_of(trained), parameters_of(whole), rtol=1e-10, atol=1e-12)


def rounded(values, clip=0.5):
    """To the grid on which sum and noise are added: at most a 2^-12th of C away in each direction."""
    spacing = Grid(clip, values.size).spacing
    assert spacing * np.sqrt(values.size) <= clip * 2**-11
    return spacing * np.rint(values / spacing)


def test_an_empty_batch_still_gets_noise_and_is_charged():
    X, y = rows(n=6)
    plan = small_plan(sample_rate=1e-9)
    model = nn.Linear(3, 1, bias=False).double()
    trained, notes, charges, noise = run(plan, X, y, model=model)
    assert notes["batch_size"] == [0] * 12
    assert len(noise.normals) == sum(count for _, count in charges) == 12
    total = sum(rounded(drawn) for _, drawn in noise.normals)
    np.testing.assert_allclose(parameters_of(trained) - parameters_of(model), -0.1 * total / 10, rtol=1e-10)


def test_no_records_at_all_train_as_usual():
    """The empty table is the neighbour of a table with one record: refusing it would tell them apart."""
    X, y = rows(n=0)
    model = nn.Linear(3, 1, bias=False).double()
    trained, _, charges, noise = run(small_plan(), X, y, model=model)
    total = sum(rounded(drawn) for _, drawn in noise.normals)
    np.testing.assert_allclose(parameters_of(trained) - parameters_of(model), -0.1 * total / 10, rtol=1e-10)
    assert sum(count for _, count in charges) == 12


@pytest.mark.parametrize("n", [39, 40, 41, 400])
def test_the_actual_number_of_records_enters_neither_rate_nor_normaliser(n):
    """One step from zero weights, without noise: the move is the clipped sum over public B, selection at public q."""
    X, y = rows(n=n)
    plan = small_plan(steps=1)
    noise = RecordingNoise(scale=0.0)
    trained, notes, _, _ = run(plan, X, y, noise=noise, model=sgd.build_model("logreg", 3, 2).double())
    chosen = noise.uniforms[0] < 0.25
    gradients = (0.5 - y[chosen])[:, None] * X[chosen]
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    clipped = gradients * np.minimum(1, 0.5 * (1 - 2**-10) / norms)
    np.testing.assert_allclose(parameters_of(trained), -0.1 * rounded(clipped.sum(0)) / 10, rtol=1e-12)
    assert notes["batch_size"] == [chosen.sum()]


@pytest.mark.parametrize("make", [lambda: nn.Linear(3, 1, bias=False), lambda: sgd.build_model("mlp", 3, 2)])
def test_a_record_that_is_nan_equals_its_absence_and_is_counted(caplog, make):
    X, y = rows()
    plan = small_plan(sample_rate=1.0)
    spoilt = np.vstack([X, [[np.nan, 1.0, 1.0]]])
    with caplog.at_level(logging.INFO, "dpml.sgd"):
        dirty, notes, _, _ = run(
            plan, spoilt, np.append(y, 1), model=nn.Linear(3, 1, bias=False).double().requires_grad_()
        )
    assert sum(notes["non_finite"]) == 12
    assert "12 contributions were not finite" in caplog.text
    torch.manual_seed(3)
    model = nn.Linear(3, 1, bias=False).double()
    dirty, *_ = run(plan, spoilt, np.append(y, 1), model=model)
    clean, *_ = run(plan, X, y, model=model)
    np.testing.assert_allclose(parameters_of(dirty), parameters_of(clean), rtol=1e-12, atol=1e-15)


def test_replace_one_keeps_the_noise_of_one_contribution():
    """C·σ under both relations: the accountant, not the engine, knows that two records are swapped."""
    X, y = rows()
    _, _, _, noise = run(small_plan(neighboring_relation="replace_one", noise_multiplier=3.0), X, y)
    assert {std for std, _ in noise.normals} == {1.5}


def test_global_seeds_have_no_influence_and_secret_noise_never_repeats():
    X, y = rows()
    plan, model = small_plan(), sgd.build_model("mlp", 3, 2, hidden=(4,), seed=0)

    def trained(noise, seed):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 (the very thing under test)
        torch.manual_seed(seed)
        return parameters_of(run(plan, X, y, noise=noise, model=model)[0])

    assert np.array_equal(trained(RecordingNoise(5), 1), trained(RecordingNoise(5), 2))
    first, second = (sgd.fit_dp_sgd(plan, model, X, y, noise=SecretNoise(), reserve=lambda *_: None)[0] for _ in "ab")
    assert np.abs(parameters_of(first) - parameters_of(second)).min() > 0


def test_training_does_not_move_the_global_generators():
    X, y = rows()
    before = (torch.random.get_rng_state(), np.random.get_state()[1].copy())  # noqa: NPY002
    run(small_plan(), X, y, model=sgd.build_model("mlp", 3, 2, seed=4))
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def test_the_users_model_is_untouched_and_buffers_are_released_as_they_were():
    class Remembering(nn.Module):
        """A module that keeps what it saw: in a buffer and in an attribute."""

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)
            self.register_buffer("last", torch.zeros(3))
            self.memory = None

        def forward(self, x):
            self.last.copy_(x.detach()[0])
            self.memory = "seen"
            return self.inner(x)

    X, y = rows()
    model = Remembering().train()
    before = copy.deepcopy(model.state_dict())
    trained, *_ = run(small_plan(), X, y, model=model)
    assert all(torch.equal(model.state_dict()[k], v) for k, v in before.items())
    assert model.memory is None
    assert trained.memory is None  # the released copy never ran
    assert torch.equal(trained.last, torch.zeros(3))
    assert list(trained.state_dict()) == list(before)
    assert not torch.equal(trained.inner.weight, before["inner.weight"])
    assert trained.training


def test_frozen_and_tied_parameters_survive_training():
    model = TiedNetwork()
    model.twice.bias.requires_grad_(False)
    tokens = np.random.default_rng(0).integers(0, 7, (30, 4))
    trained, *_ = run(small_plan(), tokens, tokens[:, 0], model=model)
    assert trained.out.weight is trained.embed.weight
    assert torch.equal(trained.twice.bias, model.twice.bias)
    assert not trained.twice.bias.requires_grad
    assert not torch.equal(trained.embed.weight, model.embed.weight)
    assert not torch.equal(trained.unused.weight, model.unused.weight)  # unused weights get noise like all others


class Killed(BaseException):
    """Stands for kill −9."""


@pytest.mark.parametrize("killed_after", [0, 3, 5, 8, 11])
def test_a_killed_run_goes_on_with_the_steps_that_are_not_charged_and_never_passes_the_plan(killed_after):
    X, y = rows()
    plan = small_plan(steps=12, checkpoint_every=5, momentum=0.9)
    charged, saved, noise = [], [], RecordingNoise(1)

    def die(step):
        if step > killed_after:
            raise Killed

    with pytest.raises(Killed):
        sgd.fit_dp_sgd(
            plan,
            sgd.build_model("logreg", 3, 2),
            X,
            y,
            noise=noise,
            reserve=lambda event, count: charged.append(count),
            on_step=die,
            save_checkpoint=saved.append,
        )
    used = len(noise.normals)
    assert used <= sum(charged)
    fresh = RecordingNoise(2)
    start = {**(saved[-1] if saved else {}), "step": sum(charged)}
    trained, notes = sgd.fit_dp_sgd(
        plan,
        sgd.build_model("logreg", 3, 2),
        X,
        y,
        noise=fresh,
        reserve=lambda event, count: charged.append(count),
        start=start,
    )
    assert sum(charged) == plan.steps  # in all: no step charged twice, none left out of the ledger
    assert used + len(fresh.normals) <= sum(charged)
    assert len(fresh.normals) == notes["steps_run"] == plan.steps - start["step"]
    assert np.isfinite(parameters_of(trained)).all()


def test_resuming_after_a_clean_block_equals_the_uninterrupted_run():
    X, y = rows()
    plan = small_plan(steps=12, checkpoint_every=4, momentum=0.9, schedule="linear")
    states, noise = [], RecordingNoise(3)
    whole, *_ = run(plan, X, y, noise=noise, save_checkpoint=states.append)
    assert [s["step"] for s in states] == [4, 8, 12]

    rest = RecordingNoise(3)
    for _ in range(8):  # the draws that the first part used
        rest._inner.uniform(len(X))
        rest._inner.normal(1.0, 3)
    resumed, *_ = run(plan, X, y, noise=rest, start=states[1])
    np.testing.assert_allclose(parameters_of(resumed), parameters_of(whole), rtol=1e-6, atol=1e-7)
    finished, notes, charges, _ = run(plan, X, y, start=states[2])
    np.testing.assert_array_equal(parameters_of(finished), parameters_of(whole))
    assert charges == []
    assert notes["steps_run"] == 0


def test_states_survive_the_file_and_hold_no_key(tmp_path):
    X, y = rows()
    states = []
    run(small_plan(momentum=0.5), X, y, model=TinyTwo(), save_checkpoint=states.append)
    path = tmp_path / "checkpoint.safetensors"
    sgd.save_state(path, states[1])
    back = sgd.load_state(path)
    assert set(back) == {"step", "parameters", "optimizer", "clip"}
    assert set(back["optimizer"]) == {"momentum", "scalars"}  # nothing that a key could hide in
    assert (back["step"], back["clip"]) == (10, 0.5)
    for now, then in (
        (back["parameters"], states[1]["parameters"]),
        (back["optimizer"]["momentum"], states[1]["optimizer"]["momentum"]),
    ):
        assert set(now) == {"a.weight", "a.bias", "b.weight"}
        assert all(torch.equal(now[k], v) for k, v in then.items())
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ModelError, match="not a readable checkpoint"):
        sgd.load_state(path)
    with pytest.raises(ModelError, match="momentum are not those"):
        run(small_plan(), X, y, model=TinyTwo(), start={**back, "optimizer": {**back["optimizer"], "momentum": {}}})


class TinyTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2, bias=False)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def test_a_saved_state_is_a_copy():
    X, y = rows()
    states = []
    run(small_plan(), X, y, save_checkpoint=states.append)
    assert not torch.equal(states[0]["parameters"]["weight"], states[-1]["parameters"]["weight"])


def test_progress_counts_logical_steps():
    X, y = rows()
    seen = []
    run(small_plan(micro_batch_size=2), X, y, on_step=seen.append)
    assert seen == list(range(1, 13))


def test_poisson_sampling_is_by_independent_coins():
    noise = RecordingNoise(4)
    drawn = sgd.poisson_indices(noise, 1000, 0.3)
    assert drawn.dtype == np.int64
    assert np.array_equal(drawn, np.flatnonzero(noise.uniforms[0] < 0.3))
    assert np.array_equal(sgd.poisson_indices(FixedNoise(0), 7, 1.0), np.arange(7))
    assert len(sgd.poisson_indices(FixedNoise(0), 1000, 0.0)) == 0
    assert len(sgd.poisson_indices(FixedNoise(0), 0, 0.5)) == 0
    for rate in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="sample_rate"):
            sgd.poisson_indices(FixedNoise(0), 5, rate)


@pytest.mark.parametrize(
    ("X", "y", "model", "error", "match"),
    [
        (torch.tensor(3.0), np.zeros(1), None, DataError, "single number"),
        (np.zeros((4, 3)), np.zeros(5), None, DataError, "y has shape"),
        (np.zeros((4, 3)), np.zeros(4), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), ModelError, "BatchNorm1d"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_charged(X, y, model, error, match):
    charges = []
    model = model or sgd.build_model("logreg", 3, 2)
    with pytest.raises(error, match=match):
        sgd.fit_dp_sgd(small_plan(), model, X, y, noise=FixedNoise(0), reserve=lambda *a: charges.append(a))
    assert charges == []


def test_unknown_devices_are_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    X, y = rows()
    with pytest.raises(ConfigError, match="no CUDA device"):
        run(small_plan(), X, y, device="cuda")
    with pytest.raises(ConfigError, match="'tpu'"):
        run(small_plan(), X, y, device="tpu")
    assert sgd.resolve_device("auto") == torch.device("cpu")


def test_your_own_loss_and_module():
    X, y = rows(n=200)
    plan = small_plan(steps=60, noise_multiplier=0.01, learning_rate=1.0, sample_rate=0.5, expected_batch_size=100)
    model = nn.Linear(3, 1).double()
    trained, *_ = run(
        plan, X, y.astype(float), model=model, loss=lambda out, target: (out[:, 0] - (2 * target - 1)) ** 2
    )
    scores = sgd.forward(trained, X)[:, 0]
    assert scores.shape == (200,)
    assert ((scores > 0) == (y == 1)).mean() > 0.9


def test_the_private_numbers_are_in_the_diagnostics_and_nowhere_in_the_model():
    X, y = rows()
    trained, notes, _, noise = run(small_plan(), X, y)
    assert notes["batch_size"] == [int((u < 0.25).sum()) for u in noise.uniforms]
    assert set(notes) == {"batch_size", "clipped_share", "left_out", "mean_norm", "non_finite", "steps_run"}
    assert list(trained.state_dict()) == ["weight"]
    assert set(vars(trained)) == set(vars(nn.Linear(1, 1, bias=False)))


@pytest.mark.gpu
def test_cuda_follows_the_cpu():
    X, y = rows()
    plan = replace(small_plan(), momentum=0.9)
    model = sgd.build_model("mlp", 3, 2, hidden=(4,), seed=1).double()
    on_cpu, *_ = run(plan, X, y, model=model)
    on_gpu, *_ = run(plan, X, y, model=model, device="cuda")
    np.testing.assert_allclose(parameters_of(on_gpu.cpu()), parameters_of(on_cpu), rtol=1e-9, atol=1e-11)


def test_the_released_sum_is_that_of_the_grid():
    """The engine's torch and the mechanism's numpy give the same bits; a source of tests keeps its own noise."""
    rng = np.random.default_rng(5)
    grid = Grid(0.3, 7)
    total, noise = rng.normal(size=7), rng.normal(size=7)
    total[0], noise[0], total[1], total[2] = 0.0, -grid.spacing / 8, 1e40, -np.inf
    steps = torch.from_numpy(np.rint(noise / grid.spacing))
    released = released_sum(grid, torch.from_numpy(total.copy()), steps).numpy()
    np.testing.assert_array_equal(released, grid.release(total, noise))
    assert not np.signbit(released[0])
    with pytest.raises(DataError, match="NaN"):
        released_sum(grid, torch.full((7,), torch.nan, dtype=torch.float64), torch.zeros(7, dtype=torch.float64))

    for zero in (-0.0, 0.0):
        for value in (-grid.spacing / 4, -0.0, grid.spacing / 4):
            both = torch.tensor([value], dtype=torch.float64), torch.tensor([zero], dtype=torch.float64)
            assert not torch.signbit(released_sum(grid, *both)).any()  # nor by steps of a device, whose rint keeps it

    class Kept:
        secret = False

        def normal(self, std, size):
            return noise

    drawn = draw_noise(Kept(), 1.0, 1.0, 7)
    drawn *= 2.0
    assert not np.array_equal(drawn, noise)


@pytest.mark.parametrize("piece", [1, 3, 4, 5, 12, 13, 100])
def test_noise_in_pieces_covers_every_parameter_once(monkeypatch, piece):
    """13 parameters, no record: what is released is the noise that was drawn, entry by entry, in order."""
    monkeypatch.setattr(engine, "PIECE", piece)
    model = sgd.build_model("mlp", 2, 2, hidden=(3,), seed=0).double()
    size = sum(p.numel() for p in model.parameters())
    plan = small_plan(steps=1, momentum=0.0, learning_rate=1.0)
    X, y = np.zeros((0, 2)), np.zeros(0, dtype=np.int64)
    trained, _, _, noise = run(plan, X, y, model=model)
    drawn = np.concatenate([np.ravel(values) for _, values in noise.normals])
    assert {std for std, _ in noise.normals} == {plan.noise_multiplier * plan.max_grad_norm}
    assert all(np.size(values) <= piece for _, values in noise.normals)
    assert len(np.unique(drawn)) == len(drawn) == size
    moved = (parameters_of(model) - parameters_of(trained)) * plan.expected_batch_size
    np.testing.assert_allclose(moved, drawn, atol=2 * Grid(plan.max_grad_norm, size).spacing)


def test_pieces_give_every_parameter_secret_noise_of_its_own_once(monkeypatch):
    """Pieces of 50 of 3,003 entries: entries without records are the noise, all different, and normal
    (Kolmogorov-Smirnov, false alarm 1e-6; noise twice or left out in a piece is always seen)."""
    monkeypatch.setattr(engine, "PIECE", 50)
    model = torch.nn.Linear(1000, 3).double()
    plan = small_plan(steps=1, momentum=0.0, learning_rate=1.0)
    clipper = Clipper(model, sgd.ModelLoss(), (torch.zeros(1, 1000).double(), torch.zeros(1, dtype=torch.int64)))
    stepper = engine.Stepper(plan, clipper, SecretNoise(threads=4), torch.device("cpu"))
    gradient = stepper.gradient((torch.zeros(0, 1000).double(), torch.zeros(0, dtype=torch.int64)))
    stepper.close()
    noise = np.concatenate([value.numpy().ravel() for value in gradient.values()])
    spacing = Grid(plan.max_grad_norm, noise.size).spacing / plan.expected_batch_size
    assert noise.size == 3003
    std = plan.noise_multiplier * plan.max_grad_norm / plan.expected_batch_size
    assert np.unique(noise).size > 2900  # of a grid of at least 2^8 steps a standard deviation: few are equal
    assert std > 100 * spacing
    assert stats.kstest(noise / std, "norm").pvalue > 1e-6


def test_a_released_sum_is_the_same_number_in_every_type():
    """float32 or float64 sums, noise in int32 or float64: the same multiples of the spacing, in the sum's type."""
    rng = np.random.default_rng(8)
    grid = Grid(0.3, 500)
    sums = np.concatenate([rng.normal(size=496).astype(np.float32) * 3, np.float32([0.0, -0.0, 1e-20, -1e-20])])
    steps = rng.integers(-(2**30), 2**30, size=500, endpoint=True, dtype=np.int32)
    steps[496:] = 0
    wanted = (np.rint(sums.astype(np.float64) / grid.spacing) + steps) * grid.spacing
    for dtype in (torch.float32, torch.float64):
        for drawn in (torch.from_numpy(steps), torch.from_numpy(steps.astype(np.float64))):
            total = torch.from_numpy(sums.copy()).to(dtype)
            released = released_sum(grid, total, drawn.clone())
            assert released is total
            assert torch.equal(released, torch.from_numpy(wanted).to(dtype))
            assert not torch.signbit(released[496:]).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_that_int32_does_not_hold_are_added_as_floats(dtype):
    """At 2^30 steps, one beyond, far beyond, infinite: with the largest noise that is int32, and NaN never passes."""
    grid, most = Grid(1.0, 1), 2.0**30
    for value in (most, -most, most + 128, -most - 128, 2.0**31, 2.0**52, 1e30, np.inf, -np.inf):
        for step in (2**30, -(2**30), 1):
            total = torch.tensor([value * grid.spacing], dtype=dtype)
            released = released_sum(grid, total, torch.tensor([step], dtype=torch.int32))
            exact = max(min(value, 2.0**52), -(2.0**52)) + step
            assert float(released) == float(torch.tensor(exact, dtype=torch.float64).to(dtype)) * grid.spacing
    with pytest.raises(DataError, match="NaN"):
        released_sum(grid, torch.tensor([0.0, torch.nan], dtype=dtype), torch.zeros(2, dtype=torch.int32))
    assert released_sum(grid, torch.zeros(0, dtype=dtype), torch.zeros(0, dtype=torch.int32)).shape == (0,)


@pytest.mark.parametrize("clip", [1e-6, 0.3, 1e6])
@pytest.mark.parametrize("records", [0, 3])
def test_a_float32_model_gets_its_noise_whatever_the_clipping_norm(clip, records):
    """The ends of the range: float32 holds the sum and its steps of the grid; 2,002 entries, within 7 sd."""
    model = torch.nn.Linear(1000, 2)
    plan = sgd.plan_dp_sgd(
        n_declared=60, n_features=2, n_classes=2, model_name="module", n_parameters=2002, epsilon=None,
        noise_multiplier=2.0, delta=1e-5, steps=2, max_grad_norm=clip, expected_batch_size=8,
    )  # fmt: skip
    X, y = torch.ones(records, 1000), torch.zeros(records, dtype=torch.int64)
    stepper = engine.Stepper(plan, Clipper(model, sgd.ModelLoss(), (X, y)), SecretNoise(), torch.device("cpu"))
    flat = torch.cat([value.double().reshape(-1) for value in stepper.gradient((X, y)).values()])
    ratio = flat / (2.0 * clip / 8)
    assert all(value.dtype == torch.float32 for value in stepper.gradient((X, y)).values())
    assert abs(float(ratio.square().mean()) - 1.0) < 7 * (2 / 2002) ** 0.5
