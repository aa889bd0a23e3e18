"""The traps of DP-SGD that concern gradients: one test a trap, named after it."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from gradient_checks import agrees, alone, contribution
from test_one_backward import Then, parameter
from torch import nn

from dpml.errors import ModelError
from dpml.sgd import clipped_gradient
from dpml.sgd.clipping import Clipper
from dpml.sgd.models import check_model


def per_record(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def rows(size=6, width=5, dtype=torch.float64):
    return torch.randn(size, width, dtype=dtype), torch.randint(0, 3, (size,))


def test_one_nan_record_contributes_zero_and_is_seen_in_its_norm_only():
    model, (X, y) = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double(), rows()
    X[2] = torch.nan
    keep = torch.arange(6) != 2
    sums, norms = clipped_gradient(model, per_record, (X, y), 0.1)
    want, _ = clipped_gradient(model, per_record, (X[keep], y[keep]), 0.1)
    torch.testing.assert_close(sums, want, rtol=1e-12, atol=1e-14)
    assert not torch.isfinite(norms[2])
    assert torch.isfinite(norms[keep]).all()


@pytest.mark.parametrize("when", ["before", "after"])
def test_weights_frozen_before_and_after_the_first_call(when):
    model, batch = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double(), rows()
    if when == "after":
        clipped_gradient(model, per_record, batch, 0.1)
    model[0].bias.requires_grad_(False)
    agrees(model, per_record, batch)
    model[0].bias.requires_grad_(True)
    agrees(model, per_record, batch)


def test_a_positional_embedding_of_batch_one():
    model = Then(lambda s, x: s.a((x[:, :, None] * s.place).flatten(1)), place=parameter(1, 5, 2), a=nn.Linear(10, 3))
    agrees(model.double(), per_record, rows())


def test_losses_that_torch_normalises_over_the_batch():
    """``ignore_index`` with reduction "mean" divides by the batch's count: refused or run alone, never mixed."""

    def divided(model, batch):
        each = F.cross_entropy(model(batch[0]), batch[1], reduction="none", ignore_index=0)
        return each / (batch[1] != 0).sum().clamp_min(1)

    model, batch = nn.Linear(5, 3).double(), rows()
    assert Clipper(model, divided, batch).reason
    _, norms = clipped_gradient(model, divided, batch, 1.0)
    gradients = alone(model, divided, batch)
    true = sum(g.flatten(1).square().sum(1) for g in gradients.values()).sqrt()
    torch.testing.assert_close(norms, true, rtol=1e-10, atol=1e-13)


def test_weights_of_samples_count_before_clipping():
    def weighted(model, batch):
        return per_record(model, batch) * batch[2]

    model = nn.Linear(5, 3).double()
    agrees(model, weighted, (*rows(), torch.tensor([0.0, 0.5, 1.0, 2.0, 100.0, 1e-3], dtype=torch.float64)))


def test_the_bound_is_kept_in_the_fast_mode():
    model, (X, y) = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double(), rows()
    for clip in ("flat", "per_layer", "automatic"):
        for i in range(6):
            one = contribution(model, per_record, (X[i : i + 1], y[i : i + 1]), 1e-3, clipping=clip)
            assert 0.5e-3 < one <= 1e-3 * (1 + 1e-12)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.SyncBatchNorm(4)])
def test_batch_norm_is_refused_by_name_with_a_replacement(layer):
    with pytest.raises(ModelError, match=r"layer '1'.*mixes the records.*GroupNorm"):
        check_model(nn.Sequential(nn.Linear(5, 4), layer, nn.Linear(4, 3)))


def test_no_hooks_no_gradients_and_no_memory_in_eval_mode():
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double().eval()
    names = list(model.state_dict())
    for _ in range(2):  # used twice is no wrapping twice
        with torch.no_grad():
            sums, norms = clipped_gradient(model, per_record, rows(), 0.1)
    assert float(norms.min()) > 0.0
    assert not any(v.requires_grad or v.grad_fn is not None for v in (*sums.values(), norms))
    assert list(model.state_dict()) == names
    assert not model.training
    for module in model.modules():
        assert not (module._forward_hooks)
        assert not (module._backward_hooks)
        assert not (module._forward_pre_hooks)
    assert all(p.grad is None and p.requires_grad and type(p) is nn.Parameter for p in model.parameters())


@pytest.mark.parametrize("engine", ["one_backward", "per_example"])
def test_every_record_has_its_own_dropout_mask(engine):
    """The same record twice, 200 coins each: the sum of two equal masks has no entry of 1·x (chance 2^-200)."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(200, 1, bias=False)).double().train()
    X = torch.ones(2, 200, dtype=torch.float64)
    sums, _ = clipped_gradient(model, lambda m, b: m(b)[:, 0], X, 1e6, engine=engine)
    assert {0.0, 2.0, 4.0} == set(sums["1.weight"].flatten().tolist())


def test_a_model_that_is_run_record_by_record_says_so_once(caplog):
    model, batch = Then(lambda s, x: F.linear(x, s.a.weight * 1.0), a=nn.Linear(5, 3)).double(), rows()
    with caplog.at_level(logging.INFO, logger="dpml"):
        clipped_gradient(model, per_record, batch, 0.1)
        clipped_gradient(model, per_record, batch, 0.1)
    assert sum("run alone" in record.message for record in caplog.records) == 1
