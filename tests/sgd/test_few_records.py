"""A record's gradient must not depend on how many others are run with it: kernels change with the number of rows."""

from __future__ import annotations

import pytest
import torch
from few_records_checks import NoZeros, further_records_move, losses, plain, what_fills_up_leaves_no_trace
from torch import nn

from dpml.sgd.clipping import Clipper
from dpml.sgd.per_example import filled_up

ENGINES = ("auto", "per_example")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("width", [16, 64])
def test_a_further_record_moves_the_sum_by_at_most_the_bound(width, engine):
    assert max(further_records_move(width, engine, range(1, 24))) <= 1.0 + 2**-10


def test_nor_in_a_last_micro_batch():
    assert max(further_records_move(64, "auto", range(30, 48), 32)) <= 1.0 + 2**-10


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["flat", "per_layer", "automatic"])
@pytest.mark.parametrize("make", [NoZeros, plain])
def test_records_that_fill_up_leave_no_trace(engine, kind, make):
    what_fills_up_leaves_no_trace(engine, kind, make)


@pytest.mark.parametrize(("size", "least", "rows"), [(0, 0, 0), (0, 4, 4), (3, 4, 4), (4, 4, 4), (9, 4, 9)])
def test_filling_up(size, least, rows):
    batch = {"x": torch.ones(size, 2), "y": torch.ones(size, dtype=torch.int64)}
    filled = filled_up(batch, size, least)
    assert filled["x"].shape == (rows, 2)
    assert filled["y"].shape == (rows,)
    assert filled["y"].dtype == torch.int64
    assert float(filled["x"].sum()) == 2 * size
    assert int(filled["y"].sum()) == size


def test_one_record_and_none():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    X, y = torch.randn(1, 3, dtype=torch.float64), torch.tensor([1])
    clipper = Clipper(model, losses, (X, y))
    sums, norms = clipper.flat((X, y), 100.0)
    alone = torch.autograd.grad(losses(model, (X, y)).sum(), list(model.parameters()))
    torch.testing.assert_close(sums, torch.cat([g.flatten() for g in alone]), rtol=1e-13, atol=0)
    assert norms.shape == (1,)
    sums, norms = clipper.flat((X[:0], y[:0]), 100.0)
    assert norms.shape == (0,)
    assert not sums.any()
