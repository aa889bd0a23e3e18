"""Limits of clipping that seeded mutants moved without any other test noticing (``experiments/mutants.py``)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradient_checks import alone, expected_sums

from dpml.sgd import clipping
from dpml.sgd.clipping import Clipper, clipped_gradient


def squared(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().sum(1)


def test_at_most_4096_records_are_summed_in_the_models_own_type() -> None:
    """docs/proofs-floats.md, section 7: what was measured there are sums of 4096 records."""
    assert Clipper(torch.nn.Linear(1, 1), squared, torch.zeros(3, 1)).micro_batch == 4096
    assert clipping.default_micro_batch(1) == 4096


@pytest.mark.parametrize(("device", "values"), [("cpu", 2**22), ("cuda", 2**26), ("xpu", 2**26)])
def test_gradients_of_single_records_are_held_for_so_many_values(device: str, values: int) -> None:
    """B × p values: the last B that fits, one record for a model that is larger than all of it."""
    for size in (2**20, 3 * 10**5, values - 1, values):
        found = clipping.default_micro_batch(size, device)
        assert isinstance(found, int)
        assert found * size <= values < (found + 1) * size
    assert clipping.default_micro_batch(values + 1, device) == 1


def test_activations_of_a_micro_batch_take_at_most_256_mib() -> None:
    """Twice what the model keeps for a record of 2^18 float32: at least these, 1 MiB, and less than twice as much."""
    clipper = Clipper(torch.nn.Linear(2**18, 1), squared, torch.zeros(2, 2**18))
    assert clipper.reason == ""
    assert 2**28 / (2 * 2 * 2**20) <= clipper.micro_batch <= 2**28 / (2 * 2**20)


def test_the_clip_factor_stays_below_c_by_1e_13_of_it() -> None:
    """A norm is known up to its rounding; no more of C is given away than the docstring says."""
    norms = torch.tensor([2.0, 1e10], dtype=torch.float64)
    for factors in (clipping.clip_factors(norms, 1.0), clipping.automatic_factors(norms - 0.01, 1.0)):
        lost = 1.0 - factors * norms
        assert torch.allclose(lost, torch.full((2,), 1e-13, dtype=torch.float64), rtol=0.0, atol=1e-15)


class Settings:
    """Its text does not tell what it holds."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Configured(torch.nn.Module):
    """A linear layer that centres its batch, so that records mix, when a configuration two levels in says so."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(2, 1, dtype=torch.float64)
        self.config = Settings(inner=Settings(centred=False))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.config.inner.centred:
            rows = rows - rows.mean(0)
        return self.body(rows)


def test_a_changed_configuration_is_looked_at_anew() -> None:
    """It turns a model that one backward pass fits into one that it does not: every record must then be run alone."""
    torch.manual_seed(0)
    model, batch = Configured(), torch.randn(4, 2, dtype=torch.float64)
    assert Clipper(model, squared, batch).reason == ""
    model.config.inner.centred = True
    assert Clipper(model, squared, batch).reason != ""
    sums, norms = clipped_gradient(model, squared, batch, 0.5)
    want, want_norms, _ = expected_sums(alone(model, squared, batch), 0.5)
    torch.testing.assert_close(norms, want_norms, rtol=1e-12, atol=0.0)
    for name, value in want.items():
        torch.testing.assert_close(sums[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", ["auto", "per_example"])
def test_micro_batches_of_one_record_and_no_records(engine: str) -> None:
    torch.manual_seed(1)
    model, batch = torch.nn.Linear(3, 2, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    want, want_norms, _ = expected_sums(alone(model, squared, batch), 1.0)
    for micro in (1, 2, 3, 5, 6):
        sums, norms = clipped_gradient(model, squared, batch, 1.0, micro, engine=engine)
        torch.testing.assert_close(norms, want_norms, rtol=1e-12, atol=0.0)
        for name, value in want.items():
            torch.testing.assert_close(sums[name], value, rtol=1e-9, atol=1e-12)
    sums, norms = clipped_gradient(model, squared, batch[:0], 1.0, engine=engine)
    assert norms.shape == (0,)
    assert not any(value.any() for value in sums.values())


def test_records_run_alone_are_few_where_each_keeps_much() -> None:
    """Conv → tanh → conv → linear on 10,000 positions keeps the input, 4 × 10,000 tanhs and the last layer's input:
    60,000 numbers (and a few for the loss) beside 20,031 parameters.  The result is that of any other number."""
    layers = (
        torch.nn.Conv1d(1, 4, 3, padding=1), torch.nn.Tanh(), torch.nn.Conv1d(4, 1, 3, padding=1), torch.nn.Flatten(),
        torch.nn.Linear(10_000, 2),
    )  # fmt: skip
    model = torch.nn.Sequential(*layers)
    clipper = Clipper(model, squared, torch.zeros(2, 1, 10_000), "per_example")
    assert 2**22 // (80_031 + 20) <= clipper.micro_batch <= 2**22 // 80_031
    batch = torch.randn(3, 1, 10_000, generator=torch.Generator().manual_seed(0))
    one_by_one = clipper(batch, 1.0, 1)[0]
    for name, value in clipper(batch, 1.0)[0].items():
        assert torch.allclose(value, one_by_one[name], rtol=1e-5, atol=1e-6)


def test_a_model_whose_zeros_fail_is_cut_by_its_parameters() -> None:
    def no_zeros(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if not bool(batch.any()):
            raise ValueError("zeros")
        return squared(model, batch)

    clipper = Clipper(torch.nn.Linear(2**12, 4), no_zeros, torch.zeros(2, 2**12), "per_example")
    assert clipper.micro_batch == 2**22 // (2**14 + 4)
