"""What a clipper runs at once, finds by halving and remembers, as mutants changed it (``experiments/mutants.py``)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from gradient_checks import alone, expected_sums

from dpml.sgd import clipping
from dpml.sgd.clipping import Clipper


def squared(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().sum(1)


@pytest.mark.parametrize("bad", [0, 2, 5, 6])
def test_halves_are_told_how_many_records_they_hold(monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
    """One record of seven has an index out of range; the others are found by halving, in one backward pass each."""
    torch.manual_seed(2)
    model = torch.nn.Embedding(5, 3, dtype=torch.float64)
    batch = torch.arange(7) % 5
    want, want_norms, _ = expected_sums(alone(model, squared, batch), 1.0)
    clipper = Clipper(model, squared, batch)
    assert clipper.reason == ""
    whole, told = clipper._batches.gradients, []

    def watched(part: Any, size: int, recipe: Any) -> Any:
        told.append((len(part), size))
        return whole(part, size, recipe)

    monkeypatch.setattr(clipper._batches, "gradients", watched)
    broken = batch.clone()
    broken[bad] = 99
    sums, norms = clipper(broken, 1.0)
    assert all(records == size for records, size in told)
    assert len(told) <= 1 + 2 * 3  # the whole, and two halves on each of three levels
    keep = [i for i in range(7) if i != bad]
    assert torch.isnan(norms[bad])
    torch.testing.assert_close(norms[keep], want_norms[keep], rtol=1e-12, atol=0.0)
    less, _, _ = expected_sums(alone(model, squared, batch[keep]), 1.0)
    for name in want:
        torch.testing.assert_close(sums[name], less[name], rtol=1e-9, atol=1e-12)


class NeedsNumbers(torch.nn.Module):
    """Refuses a record of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(3, 2, dtype=torch.float64)
        self.met: list[int] = []

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if not bool(rows.any(1).all()):
            self.met.append(len(rows))
            raise ValueError("a record of zeros")
        return self.body(rows)


@pytest.mark.parametrize("engine", ["auto", "per_example"])
def test_a_model_that_refuses_zeros_is_not_handed_any(engine: str) -> None:
    """Nothing fills its batches up: one record, and one beside it, count in full."""
    torch.manual_seed(3)
    model, batch = NeedsNumbers(), torch.randn(2, 3, dtype=torch.float64)
    want, want_norms, _ = expected_sums(alone(model, squared, batch), 1.0)
    clipper = Clipper(model, squared, batch, engine)
    assert isinstance(clipper.fault, ValueError)
    model.met.clear()
    for micro in (None, 1):
        sums, norms = clipper(batch, 1.0, micro)
        torch.testing.assert_close(norms, want_norms, rtol=1e-12, atol=0.0)
        for name, value in want.items():
            torch.testing.assert_close(sums[name], value, rtol=1e-9, atol=1e-12)
    assert float(clipper(batch[:1], 1.0)[1]) == pytest.approx(float(want_norms[0]), rel=1e-12)
    assert model.met == []


def test_one_record_at_once_where_no_two_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clipping.ACTIVATION_BYTES, "cpu", 1)
    clipper = Clipper(torch.nn.Linear(3, 2), squared, torch.zeros(2, 3))
    assert clipper.reason == ""
    assert clipper.micro_batch == 1


def test_what_is_known_of_a_model_takes_bounded_memory() -> None:
    """Every loss that is made anew is another one; 32 of them are remembered."""
    model, batch = torch.nn.Linear(2, 1), torch.zeros(2, 2)
    for _ in range(40):
        Clipper(model, lambda model, rows: model(rows).sum(1), batch)
        assert 1 <= len(clipping._findings[model]) <= 32


@pytest.mark.parametrize("size", [clipping.FEW_VALUES, clipping.FEW_VALUES + 1])
def test_buffers_are_told_by_their_numbers_up_to_the_limit(size: int) -> None:
    """Small ones by content, whoever wrote it and whichever way; larger ones by who they are."""
    buffer = torch.zeros(size)
    before, few = clipping._content(buffer), size <= clipping.FEW_VALUES
    assert (clipping._content(buffer.clone()) == before) == few
    buffer.data[size - 1] = 1.0  # past the counter of versions
    assert (clipping._content(buffer) != before) == few
    buffer += 1.0
    assert clipping._content(buffer) != before


class Mixing(torch.nn.Module):
    """Records depend on one another; it holds something that holds itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(2, 1)
        self.config = Holder()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.body(rows - rows.mean(0))


class Holder:
    def __init__(self) -> None:
        self.itself = self


def test_the_log_says_why_a_model_is_slow(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="dpml.sgd.clipping"):
        clipper = Clipper(Mixing(), squared, torch.zeros(3, 2))
    assert clipper.reason != ""
    said = [record.getMessage() for record in caplog.records if record.name == "dpml.sgd.clipping"]
    assert said == [f"every record is run alone, which is slower: the model has {clipper.reason}"]
