"""What the engine does and seeded mutants left out without any other test noticing (``experiments/mutants.py``)."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sgd_checks import RecordingNoise, rows, run, small_plan

from dpml import sgd
from dpml.errors import DataError, ModelError
from dpml.mechanisms.lattice import Grid
from dpml.sgd import engine
from dpml.sgd.clipping import Clipper
from dpml.sgd.models import ModelLoss
from dpml.sgd.states import initial_state
from dpml.sgd.team import Alone

CPU = torch.device("cpu")


def stepper(plan: Any, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[engine.Stepper, Any]:
    """Of a logistic regression on three columns, with a batch of four records."""
    model = sgd.build_model("logreg", 3, 2).to(dtype)
    X, y = rows(n=4)
    batch = (torch.from_numpy(X).to(dtype), torch.from_numpy(y))
    options = {"noise": RecordingNoise(), "device": CPU, **options}
    return engine.Stepper(plan, Clipper(model, ModelLoss(), batch), **options), batch


# -- one run ----------------------------------------------------------------------------------------------------------


def test_a_stopped_run_goes_on_with_its_momentum() -> None:
    """Heavy ball, almost no noise, no records: the weights move by the momentum that was saved, and by nothing else."""
    plan = small_plan(momentum=0.9, noise_multiplier=1e-9, steps=2)
    model = sgd.build_model("logreg", 3, 2).double()
    start = initial_state(plan, model, step=1)
    for zeros in start["optimizer"]["momentum"].values():
        zeros.fill_(1.0)
    before = [value.clone() for value in start["parameters"].values()]
    trained, _, _, _ = run(plan, np.zeros((0, 3)), np.zeros(0, dtype=np.int64), model=model, start=start)
    for value, old in zip(trained.parameters(), before, strict=True):  # rate · 0.9 · 1
        torch.testing.assert_close(value.detach(), old - 0.1 * 0.9, rtol=1e-6, atol=1e-6)


def test_a_model_that_fails_on_zeros_costs_nothing() -> None:
    """The engine itself looks: a wrong number of columns, by the words that name the row."""
    X, y = rows(n=4)
    model, noise = torch.nn.Linear(5, 1), RecordingNoise()
    with pytest.raises(ModelError, match=r"fails on a record of zeros \(row \(3,\)"):
        sgd.fit_dp_sgd(small_plan(), model, X, y, noise=noise, reserve=lambda *_: pytest.fail("was charged"))


def test_more_steps_charged_than_planned_leave_none_to_run() -> None:
    X, y = rows()
    _, notes, charges, noise = run(small_plan(steps=12), X, y, start={"step": 14})
    assert notes["steps_run"] == 0
    assert charges == []
    assert noise.log == []


def test_processes_agree_on_weights_after_each_block() -> None:
    agreed = []

    class Watched(Alone):
        def agree(self, what: str, tensors: Any) -> None:
            agreed.append((what, float(tensors[""]), [name for name in tensors if name]))

    X, y = rows()
    model = sgd.build_model("logreg", 3, 2)
    run(small_plan(steps=12, checkpoint_every=5), X, y, model=model, team=Watched())
    assert agreed == [("the trained weights", 0.5, [name for name, _ in model.named_parameters()])] * 3


def test_progress_and_checkpoints_of_process_0_only() -> None:
    X, y = rows()
    follower = Alone()
    follower.rank = 1  # type: ignore[misc]
    for team, expected in ((None, [5, 10, 12]), (follower, [])):
        steps: list[int] = []
        saved: list[int] = []
        run(
            small_plan(),
            X,
            y,
            on_step=steps.append,
            save_checkpoint=lambda s, at=saved: at.append(s["step"]),
            team=team,
        )
        assert steps == list(range(1, 13))
        assert saved == expected


def test_whatever_happens_threads_and_files_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(engine.Stepper, "close", lambda self: closed.append("noise"))
    whole = engine.as_rows

    def watched(*arguments: Any, **named: Any) -> Any:
        found = whole(*arguments, **named)
        monkeypatch.setattr(type(found), "close", lambda self: closed.append("rows"), raising=False)
        return found

    monkeypatch.setattr(engine, "as_rows", watched)
    X, y = rows()
    run(small_plan(steps=1), X, y)
    assert closed == ["noise", "rows"]

    def full_disk(event: Any, count: int) -> None:
        raise OSError(28, "no space left")

    with pytest.raises(OSError, match="no space left"):
        sgd.fit_dp_sgd(small_plan(), sgd.build_model("logreg", 3, 2), X, y, noise=RecordingNoise(), reserve=full_disk)
    assert closed == ["noise", "rows"] * 2


def test_the_log_says_how_many_contributions_were_no_numbers(caplog: pytest.LogCaptureFixture) -> None:
    X, y = rows(n=4)
    X[2] = np.nan
    with caplog.at_level(logging.INFO, logger="dpml.sgd.engine"):
        run(small_plan(steps=3, sample_rate=1.0), X, y)
    said = [record.getMessage() for record in caplog.records if record.name == "dpml.sgd.engine"]
    assert said == ["3 contributions were not finite or raised an error and were replaced by zero"]


# -- noise ------------------------------------------------------------------------------------------------------------


def test_on_a_processor_noise_comes_from_the_source_whatever_secure_noise_says() -> None:
    """The device's own generator is for CUDA; on the CPU the last draw is the source's, and it is not drawn ahead."""
    for secure in (True, False):
        made, batch = stepper(small_plan(noise_multiplier=50.0), secure_noise=secure)
        noise = RecordingNoise()
        made.noise = noise
        released = torch.cat([value.flatten() for value in made.gradient(batch).values()])
        (std, drawn), *more = noise.normals
        assert not more
        assert std == 50.0 * 0.5
        # at most 4 records of norm 0.5 and a step of the grid beside the noise, over B = 10
        assert float((released - torch.from_numpy(drawn) / 10).norm()) <= (4 * 0.5 + 0.5) / 10


def test_a_processor_has_no_noise_ahead() -> None:
    noise = RecordingNoise()
    made, _ = stepper(small_plan(), noise=noise)
    assert made.noise is noise


class Generator:
    """Stands in for a device's generator."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seeded = device, 0

    def seed(self) -> None:
        self.seeded += 1


@pytest.mark.parametrize("secure", [True, False])
def test_the_generator_of_a_device_is_used_only_where_asked_and_seeded_by_the_system(
    monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    """No CUDA here: the buffer is made on the CPU, and the generator only counts its seeds."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, device=None, **named: empty(*size, **named))
    monkeypatch.setattr(torch, "Generator", Generator)
    made, _ = stepper(small_plan(), device=torch.device("cuda"), secure_noise=secure)
    if secure:
        assert made._generator is None
    else:
        assert made._generator.seeded == 1  # type: ignore[union-attr]
    closed: list[bool] = []
    assert made._ahead is not None
    made._ahead.close()
    made._ahead = SimpleNamespace(close=lambda: closed.append(True))  # type: ignore[assignment]
    made.close()
    assert closed == [True]


def test_the_noise_of_a_gradient_is_c_sigma_over_b() -> None:
    made, _ = stepper(small_plan(noise_multiplier=3.0))
    assert made.noise_std_per_entry == pytest.approx(0.5 * 3.0 / 10, rel=1e-15)


def test_a_source_keeps_the_array_that_it_gave() -> None:
    kept = np.arange(5.0)
    source = SimpleNamespace(secret=False, normal=lambda std, size: kept)
    drawn = engine.draw_noise(source, 1.0, 1.0, 5)  # type: ignore[arg-type]
    drawn += 1.0
    assert kept.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_gradient_stays_as_it_was_when_the_next_is_made(dtype: torch.dtype) -> None:
    made, batch = stepper(small_plan(), dtype)
    first = made.gradient(batch)
    before = {name: value.clone() for name, value in first.items()}
    second = made.gradient(batch)
    assert all(torch.equal(first[name], before[name]) for name in first)
    assert not any(torch.equal(first[name], second[name]) for name in first)


# -- what is released on a device -------------------------------------------------------------------------------------


class Elsewhere(torch.Tensor):
    """A tensor that says it lies on another device."""

    @property
    def device(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(type="cuda")


def elsewhere(values: list[float]) -> Elsewhere:
    return torch.tensor(values, dtype=torch.float64).as_subclass(Elsewhere)


def test_the_released_sum_of_a_device_by_hand() -> None:
    """g = 2^-11 for C = 1 and p = 1, 2^-13 for p = 9 … 16: sums and noise rounded one by one, half a step to even."""
    grid = Grid(1.0, 16)
    g = 2.0**-13
    assert grid.spacing == g
    most = 2.0**52
    totals = [0.4 * g, 0.5 * g, 1.5 * g, -0.4 * g, 7.0 * g, math.inf, -math.inf, most * g, -most * g, -1.6 * g]
    noises = [0.4 * g, 0.6 * g, -0.6 * g, -0.3 * g, 2.5 * g, 0.0, -g, 0.0, 0.0, 5.2 * g]
    expected = [0.0, 1.0, 1.0, 0.0, 9.0, most, -most - 1, most, -most, 3.0]
    for count in (5, 10):
        steps = [float(round(noise / g)) for noise in noises[:count]]
        released = engine.released_sum(grid, elsewhere(totals[:count]), elsewhere(steps))
        assert (released.as_subclass(torch.Tensor) / g).tolist() == expected[:count]
        assert not torch.signbit(released.as_subclass(torch.Tensor)[[0, 3]]).any()
    with pytest.raises(DataError, match="NaN"):
        engine.released_sum(grid, elsewhere([0.0, math.nan]), elsewhere([0.0, 0.0]))


# -- private notes ----------------------------------------------------------------------------------------------------


def test_notes_of_batches_by_hand() -> None:
    notes = engine._Diagnostics()
    for norms in ([3.0], [], [1.0, math.nan, 4.0, 2.0, math.inf]):
        notes.record(torch.tensor(norms, dtype=torch.float64), 2.0)
    assert notes.to_dict() == {
        "batch_size": [1, 0, 5],
        "clipped_share": [1.0, 0.0, 1 / 3],
        "mean_norm": [3.0, 0.0, 7 / 3],
        "non_finite": [0, 0, 2],
    }
    assert notes.total_non_finite == 2
