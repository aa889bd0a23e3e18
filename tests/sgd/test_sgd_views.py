"""Several views in one record: the gradient of their mean loss is what is clipped."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from view_checks import check_a_record_of_two_views_moves_the_sum_by_at_most_c, over_views, views_of

from dpml import PrivateData, PrivateTrainer
from dpml.sgd import clipped_gradient


def test_the_mean_over_views_is_clipped_once() -> None:
    check_a_record_of_two_views_moves_the_sum_by_at_most_c()


@pytest.mark.parametrize("bound", [0.01, 0.3, 100.0])
def test_sums_equal_a_loop_over_records(bound: float) -> None:
    model, X, y = views_of(7)
    sums, norms = clipped_gradient(model, lambda module, batch: over_views(module(batch[0]), batch[1]), (X, y), bound)
    wanted = torch.zeros_like(model.weight)
    for k in range(7):
        model.zero_grad()
        F.cross_entropy(model(X[k]), y[k].repeat(2)).backward()
        assert model.weight.grad is not None
        norm = float(model.weight.grad.norm())
        assert float(norms[k]) == pytest.approx(norm, rel=1e-6)
        wanted += model.weight.grad * min(1.0, bound / norm)
    torch.testing.assert_close(sums["weight"], wanted, rtol=1e-6, atol=1e-9)


def test_a_run_trains_on_views() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    X = np.stack([np.eye(3)[y] + 0.1 * rng.standard_normal((300, 3)) for _ in range(2)], axis=1)
    data = PrivateData.from_arrays(X, y, norm_bound=None, classes=[0, 1, 2], n_declared=300)
    model = nn.Linear(3, 3, bias=False)
    nn.init.zeros_(model.weight)
    trainer = PrivateTrainer(
        model, "dp_sgd", epsilon=8.0, delta=1e-4, loss=over_views, steps=30, expected_batch_size=100, learning_rate=5.0
    )
    weight = trainer.fit(data).model.weights["weight"]
    assert (weight.argmax(axis=1) == np.arange(3)).all()
