"""Plain training without privacy, for public data only: the ε = ∞ line that private runs are compared with."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from dpml import errors
from dpml.sgd.models import Loss, ModelLoss, check_model, per_example_loss
from dpml.sgd.tensors import as_inputs, as_targets, resolve_device

DEFAULT_EPOCHS, DEFAULT_STEPS = 20, 2000


def fit_nonprivate_module(
    model: nn.Module,
    X: Any,
    y: Any,
    *,
    loss: Loss | None = None,
    device: str = "cpu",
    seed: int = 0,
    epochs: int | None = None,
    batch_size: int = 256,
    learning_rate: float = 5e-3,
) -> nn.Module:
    """A trained copy of ``model`` (Adam, shuffled batches, linear decay).  **No privacy at all.**

    Args:
        X, y: rows ``(n, …)`` and targets ``(n,)`` of *public* data.
        loss: per-example ``loss(logits, targets) -> (B,)``; default logistic or cross entropy.
        seed: order of the batches; the global torch generator is left as it was (dropout apart).
        epochs, batch_size, learning_rate: of Adam; by default 20 epochs, or as many as make 2000 steps.
    """
    check_model(model)
    if batch_size < 1 or (epochs is not None and epochs < 1):
        raise errors.invalid("epochs, batch_size", (epochs, batch_size), "whole numbers >= 1")
    target_device = resolve_device(device)
    trained = copy.deepcopy(model).to(target_device).train()
    rows = as_inputs(X, trained, target_device)
    targets = as_targets(y, len(rows), trained, target_device)
    loss_fn = ModelLoss(loss or per_example_loss)
    optimizer = torch.optim.Adam([p for p in trained.parameters() if p.requires_grad], lr=learning_rate)
    order = torch.Generator().manual_seed(seed)
    batches = max(1, -(-len(rows) // batch_size))
    epochs = epochs or max(DEFAULT_EPOCHS, -(-DEFAULT_STEPS // batches))
    total = epochs * batches
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: max(0.0, 1.0 - t / total))
    for _ in range(epochs):
        for index in torch.randperm(len(rows), generator=order).split(batch_size):
            batch = index.to(target_device)
            optimizer.zero_grad(set_to_none=True)
            loss_fn(trained, (rows[batch], targets[batch])).mean().backward()
            optimizer.step()
            schedule.step()
    optimizer.zero_grad(set_to_none=True)
    return trained.train(model.training)
