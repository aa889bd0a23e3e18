"""Limits of the engine that seeded mutants moved without any other test noticing (``experiments/mutants.py``)."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from dpml.errors import ModelError
from dpml.mechanisms import FixedNoise
from dpml.mechanisms.lattice import Grid
from dpml.sgd import check_model, engine, fit_dp_sgd


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
