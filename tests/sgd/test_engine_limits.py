"""Limits of the engine that seeded mutants moved without any other test noticing (``experiments/mutants.py``)."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from dpml.errors import DataError, ModelError
from dpml.mechanisms import FixedNoise
from dpml.mechanisms.lattice import Grid
from dpml.sgd import check_model, engine, fit_dp_sgd
from dpml.sgd.clipping import Clipper
from dpml.sgd.models import ModelLoss
from dpml.sgd.team import Alone


@pytest.mark.parametrize("double", [True, False])
def test_records_are_clipped_below_c(double: bool) -> None:
    """A thousandth for the grid, and for models in single precision another one for their sums: (1 − 2^-10)²."""
    grid = Grid(0.7, 100)
    expected = 0.7 * (1 - 2.0**-10) ** (1 if double else 2)
    assert engine.clip_bound(0.7, grid, double) == pytest.approx(expected, rel=1e-12)


def test_noise_is_secret_unless_asked_otherwise() -> None:
    defaults = {name: p.default for name, p in inspect.signature(fit_dp_sgd).parameters.items()}
    assert defaults["secure_noise"] is True
    assert defaults["gradients"] == "auto"
    assert inspect.signature(engine.Stepper).parameters["secure_noise"].default is True


@pytest.mark.parametrize(
    "model",
    [torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)), torch.nn.Linear(3, 2).requires_grad_(False)],
)
def test_a_model_that_cannot_be_trained_is_refused_by_name(model: torch.nn.Module) -> None:
    """By the words of ``check_model``, before a record is looked at and before anything is charged."""
    plan = engine.plan_dp_sgd(
        n_declared=100, n_features=3, n_classes=2, model_name="module", n_parameters=8, epsilon=None,
        noise_multiplier=1.0, delta=1e-5, steps=2,
    )  # fmt: skip

    class Unread:
        def __getattr__(self, name: str) -> None:
            raise AssertionError("a record was looked at")

    with pytest.raises(ModelError) as expected:
        check_model(model)
    with pytest.raises(ModelError) as found:
        fit_dp_sgd(plan, model, Unread(), Unread(), noise=FixedNoise(0), reserve=lambda *_: pytest.fail("was charged"))
    assert str(found.value) == str(expected.value)


class Deaf(torch.nn.Module):
    """Its output does not hear its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(3, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.body(rows).detach() + 0.0 * rows[:, :2]


def own_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none")


@pytest.mark.parametrize("loss", [None, own_loss])
def test_a_model_that_cannot_learn_costs_nothing(loss: object) -> None:
    """By the loss that was given or the usual one: the engine itself looks, whoever calls it."""
    plan = engine.plan_dp_sgd(
        n_declared=100, n_features=3, n_classes=2, model_name="module", n_parameters=8, epsilon=None,
        noise_multiplier=1.0, delta=1e-5, steps=2,
    )  # fmt: skip
    rows, labels = np.zeros((4, 3), dtype=np.float32), np.zeros(4, dtype=np.int64)
    with pytest.raises(ModelError):
        fit_dp_sgd(
            plan, Deaf(), rows, labels, noise=FixedNoise(0), loss=loss, reserve=lambda *_: pytest.fail("was charged")
        )


class Still:
    """No noise, and the standard deviations that were asked for."""

    secret = False

    def __init__(self) -> None:
        self.asked: list[tuple[float, int]] = []

    def normal(self, std: float, size: int) -> np.ndarray:
        self.asked.append((std, size))
        return np.zeros(size)


def still(clipping: str, share: float = 1.0) -> tuple[engine.Stepper, Still, torch.Tensor]:
    """A stepper of two layers, its noise, and six records."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    plan = engine.plan_dp_sgd(
        n_declared=100, n_features=3, n_classes=2, model_name="module", n_parameters=26, epsilon=None,
        noise_multiplier=1.5, delta=1e-5, steps=2, clipping=clipping, max_grad_norm=0.1, expected_batch_size=8,
    )  # fmt: skip
    rows = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 0, 1])
    team = Alone()
    team.noise_share = share
    noise = Still()
    clipper = Clipper(model, ModelLoss(), rows)
    return engine.Stepper(plan, clipper, noise, torch.device("cpu"), team=team), noise, rows  # type: ignore[arg-type]


@pytest.mark.parametrize("clipping", ["flat", "per_layer", "automatic"])
def test_records_are_clipped_in_the_way_asked_for(clipping: str) -> None:
    stepper, _, rows = still(clipping)
    other = {"flat": "per_layer", "per_layer": "automatic", "automatic": "flat"}[clipping]
    found = stepper.gradient(rows)
    wanted, _ = stepper.clipper(rows, 0.1 * (1 - 2.0**-10), None, clipping)
    wrong, _ = stepper.clipper(rows, 0.1 * (1 - 2.0**-10), None, other)
    for name, value in found.items():
        assert torch.allclose(value, wanted[name] / 8, rtol=0.0, atol=2e-6)
    assert any(not torch.allclose(value, wrong[name] / 8, rtol=0.0, atol=1e-5) for name, value in found.items())


def test_a_process_draws_its_share_of_the_noise() -> None:
    stepper, noise, rows = still("flat", 0.25)
    stepper.gradient(rows)
    assert noise.asked == [(pytest.approx(0.1 * 1.5 * 0.25, rel=1e-12), 26)]


def test_noise_is_held_for_a_million_parameters_at_a_time() -> None:
    most, last = 2**20, 2**21 + 3
    sizes = [5, last - 5, 0]
    pieces = engine.in_pieces(sizes, torch.device("cpu"))
    assert pieces == [
        [(0, slice(0, 5)), (1, slice(0, most - 5))],
        [(1, slice(most - 5, 2 * most - 5))],
        [(1, slice(2 * most - 5, last - 5))],
    ]
    assert engine.in_pieces([most, most], torch.device("cpu")) == [[(0, slice(0, most))], [(1, slice(0, most))]]
    assert engine.in_pieces(sizes, torch.device("cuda")) == [[(0, slice(0, 5)), (1, slice(0, last - 5))]]


def test_small_parameters_of_a_type_share_a_row() -> None:
    most = engine.SHARED
    sizes = {"small": most - 1, "large": most, "none": 0, "larger": 3 * most, "one": 1}
    parameters = {name: torch.empty(size) for name, size in sizes.items()}
    assert engine.in_rows(parameters) == [("large",), ("larger",), ("small", "none", "one")]
    assert engine.in_rows({"large": torch.empty(most)}) == [("large",)]
    kinds = {"a": torch.float32, "b": torch.float64, "c": torch.float16, "d": torch.float64, "e": torch.bfloat16}
    mixed = {name: torch.empty(2, dtype=dtype) for name, dtype in kinds.items()}
    assert engine.in_rows(mixed) == [("a", "c", "e"), ("b", "d")]


@pytest.mark.parametrize("shared", [0, 6, 1000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_every_parameter_gets_its_own_part_of_a_row(
    monkeypatch: pytest.MonkeyPatch, shared: int, dtype: torch.dtype
) -> None:
    """Rows of one parameter, of some and of all: without noise each gets its clipped sum, on the grid, over B."""
    monkeypatch.setattr(engine, "SHARED", shared)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).to(dtype)
    plan = engine.plan_dp_sgd(
        n_declared=100, n_features=3, n_classes=2, model_name="module", n_parameters=26, epsilon=None,
        noise_multiplier=1.5, delta=1e-5, steps=2, max_grad_norm=0.1, expected_batch_size=7,
    )  # fmt: skip
    rows = torch.randn(6, 3).to(dtype), torch.tensor([0, 1, 0, 1, 0, 1])
    clipper, noise = Clipper(model, ModelLoss(), rows), Still()
    stepper = engine.Stepper(plan, clipper, noise, torch.device("cpu"))  # type: ignore[arg-type]
    found = stepper.gradient(rows)
    grid = Grid(0.1, 26)
    wanted, _ = clipper(rows, engine.clip_bound(0.1, grid, dtype == torch.float64))
    assert {name: value.shape for name, value in found.items()} == {name: p.shape for name, p in wanted.items()}
    for name, value in wanted.items():
        steps = found[name].double() * 7 / grid.spacing
        torch.testing.assert_close(steps, (value / grid.spacing).round(), rtol=1e-6, atol=0.0)
    assert sum(size for _, size in noise.asked) == 26
    assert {value.dtype for value in found.values()} == {torch.promote_types(dtype, torch.float32)}


def test_a_sample_of_fixed_size_needs_the_declared_number_of_records() -> None:
    plan = engine.plan_dp_sgd(
        n_declared=20, n_features=3, n_classes=2, model_name="module", n_parameters=8, epsilon=None, steps=2,
        noise_multiplier=1.0, delta=1e-5, sampling="fixed_size", neighboring_relation="replace_one",
        expected_batch_size=4,
    )  # fmt: skip
    for n in (19, 21):
        rows, labels = np.zeros((n, 3), dtype=np.float32), np.zeros(n, dtype=np.int64)
        with pytest.raises(DataError, match=f"holds {n} records and n_declared = 20"):
            fit_dp_sgd(
                plan, torch.nn.Linear(3, 2), rows, labels, noise=FixedNoise(0),
                reserve=lambda *_: pytest.fail("was charged"),
            )  # fmt: skip


class Pair(Alone):
    """This process and another, which releases the same."""

    size = 2

    def __init__(self) -> None:
        self.added: list[torch.Tensor] = []

    def total(self, release: torch.Tensor) -> torch.Tensor:
        self.added.append(release.clone())
        return release * 2.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_processes_release_is_added_up_in_float64(dtype: torch.dtype) -> None:
    """All parameters in one sum, multiples of the grid for two, and each process' weights get the whole of it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).to(dtype)
    plan = engine.plan_dp_sgd(
        n_declared=100, n_features=3, n_classes=2, model_name="module", n_parameters=26, epsilon=None,
        noise_multiplier=1.5, delta=1e-5, steps=2, max_grad_norm=0.1, expected_batch_size=7,
    )  # fmt: skip
    rows = torch.randn(6, 3, dtype=dtype), torch.tensor([0, 1, 0, 1, 0, 1])
    clipper, found = Clipper(model, ModelLoss(), rows), {}
    for team in (Alone(), Pair()):
        stepper = engine.Stepper(plan, clipper, Still(), torch.device("cpu"), team=team)  # type: ignore[arg-type]
        found[team.size] = stepper.gradient(rows)
        assert all(value.dtype == dtype for value in found[team.size].values())
    (released,) = team.added  # type: ignore[attr-defined]
    spacing = Grid(0.1, 26, sums=2).spacing
    assert released.dtype == torch.float64
    assert released.shape == (26,)
    assert torch.equal(released, (released / spacing).round() * spacing)
    assert list(found[2]) == list(found[1]) == list(dict(model.named_parameters()))
    flat = torch.cat([value.double().reshape(-1) for value in found[2].values()])
    torch.testing.assert_close(flat, released * 2.0 / 7.0, rtol=1e-6 if dtype == torch.float32 else 1e-14, atol=0.0)
    for name, value in found[1].items():
        assert value.shape == found[2][name].shape
        torch.testing.assert_close(found[2][name], value * 2.0, rtol=0.0, atol=4 * spacing / 7)
