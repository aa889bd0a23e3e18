"""Gradients 10³⁰ times too long contribute nothing: what a seeded mutant changed (``experiments/mutants.py``)."""

from __future__ import annotations

import math

import pytest
import torch

from dpml.sgd import clipping
from dpml.sgd.clipping import clipped_gradient


def linear(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Its gradient is the record itself."""
    return model(batch).sum(1)


def test_a_factor_that_is_too_small_or_no_number_is_zero() -> None:
    norms = torch.tensor([1e29, 1e31, 1e300, math.inf, math.nan, 0.0], dtype=torch.float64)
    flat, automatic = clipping.clip_factors(norms, 1.0), clipping.automatic_factors(norms, 1.0)
    assert flat[1:5].tolist() == automatic[1:5].tolist() == [0.0] * 4
    for factors in (flat, automatic):
        assert float(factors[0]) == pytest.approx(1e-29, rel=1e-9)
    assert float(flat[5]) == 1.0
    assert float(automatic[5]) == pytest.approx(100.0, rel=1e-9)


@pytest.mark.parametrize("engine", ["auto", "per_example"])
@pytest.mark.parametrize("kind", ["flat", "per_layer", "automatic"])
@pytest.mark.parametrize("size", [1e20, 1e29, 1e31, 1e60, 1e150])
def test_no_record_moves_the_sum_by_more_than_c_however_long_it_is(engine: str, kind: str, size: float) -> None:
    """By C up to 10³⁰ C, and by nothing beyond."""
    model = torch.nn.Linear(2, 1, bias=False, dtype=torch.float64)
    batch = torch.tensor([[0.03, 0.04], [0.0, size]], dtype=torch.float64)
    whole, norms = clipped_gradient(model, linear, batch, 2.0, clipping=kind, engine=engine)
    alone, _ = clipped_gradient(model, linear, batch[:1], 2.0, clipping=kind, engine=engine)
    assert float(norms[1]) == pytest.approx(size, rel=1e-12)
    moved = float((whole["weight"] - alone["weight"]).norm())
    assert moved == pytest.approx(2.0 if size < 2e30 else 0.0, rel=1e-9)
