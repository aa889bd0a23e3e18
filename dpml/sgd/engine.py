"""The DP-SGD loop: reserve, sample, clip, add noise, step.

One step (Abadi et al. 2016, Algorithm 1, with Poisson batches S):

    ĝ = (1/B) (Σ_{i∈S} clip_C(gᵢ) + N(0, C²σ² I)),   m ← μ m + ĝ,   w ← w − η_t m

B is the *public* expected batch size.  Everything after ĝ is post-processing.  The user's module is never run: a copy
is trained, and its weights are returned in a second, fresh copy, so nothing that a forward pass leaves behind is
released.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from dpml.accounting import Event
from dpml.errors import DataError, ModelError
from dpml.mechanisms import NoiseSource
from dpml.sgd.clipping import Tensors, clipped_gradient, trainable, try_on_zeros
from dpml.sgd.models import Loss, LossFunction, ModelLoss, check_model, per_example_loss
from dpml.sgd.planning import DPSGDPlan, plan_dp_sgd
from dpml.sgd.sampling import poisson_indices
from dpml.sgd.states import State, completed_state, snapshot
from dpml.sgd.tensors import as_inputs, as_targets, resolve_device

__all__ = ["DPSGDPlan", "fit_dp_sgd", "plan_dp_sgd"]

_log = logging.getLogger(__name__)


def fit_dp_sgd(
    plan: DPSGDPlan,
    model: nn.Module,
    X: Any,
    y: Any,
    *,
    noise: NoiseSource,
    reserve: Callable[[Event, int], None],
    device: str = "cpu",
    loss: Loss | None = None,
    on_step: Callable[[int], None] | None = None,
    save_checkpoint: Callable[[State], None] | None = None,
    start: Mapping[str, Any] | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """Train a copy of ``model`` by ``plan``.

    Args:
        plan: from :func:`plan_dp_sgd`; carries noise, rate, steps and the neighbouring relation.
        model: left untouched.
        X, y: rows ``(n, …)`` and targets ``(n,)``; n is private and used for sampling only.
        noise: the only source of noise and of Poisson coins.
        reserve: ``reserve(event_per_step, count)`` charges the next ``count`` steps and returns when that is on disk;
            it is called before the first of them draws a coin or noise.
        loss: per-example ``loss(logits, targets) -> (B,)``; default logistic (one logit) or cross entropy.
        on_step: called with the number of steps done.
        save_checkpoint: called with a state after every reserved block.
        start: a saved state; its ``"step"`` is the number of steps *charged* so far.  Steps that were charged but not
            reached before a crash are lost, never run again.

    Returns:
        The trained copy (``requires_grad`` and mode as in ``model``), and diagnostics that are **private**: per step
        ``batch_size``, ``clipped_share``, ``mean_norm``, ``non_finite`` (contributions that were zero since the
        gradient was not finite or could not be computed), plus the number of steps run.

    Raises:
        ModelError, ConfigError, DataError: nothing was charged; none of them depends on the value of a record.
        Whatever ``reserve`` raises: none of the block's steps was run.
    """
    check_model(model)
    target = resolve_device(device)
    working = copy.deepcopy(model).to(target)
    rows = as_inputs(X, working, target)
    if rows.ndim < 1:
        raise DataError("X is a single number; it must hold one row per record.")
    targets = as_targets(y, len(rows), working, target)
    state = completed_state(start, working, target)
    parameters: Tensors = trainable(working)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state["parameters"][name])
    momentum: Tensors = state["momentum"]
    loss_fn = ModelLoss(loss or per_example_loss)
    fault = try_on_zeros(working, loss_fn, (rows, targets))
    if fault is not None:  # it would befall every record, each of which would then count as zero
        raise ModelError(
            f"the model or the loss fails on a record of zeros (row {tuple(rows.shape[1:])} {rows.dtype}, target "
            f"{tuple(targets.shape[1:])} {targets.dtype}): {type(fault).__name__}: {fault}. Make them fit the data."
        ) from fault

    first, notes = int(state["step"]), _Diagnostics()
    for begin in range(first, plan.steps, plan.checkpoint_every):
        end = min(begin + plan.checkpoint_every, plan.steps)
        charge_block(plan, reserve, end - begin)
        for step in range(begin, end):
            batch = _draw_batch(plan, rows, targets, noise)
            gradient = noisy_gradient(plan, working, loss_fn, batch, noise, notes)
            _update(plan, step, parameters, momentum, gradient)
            if on_step is not None:
                on_step(step + 1)
        if save_checkpoint is not None:
            save_checkpoint(snapshot(end, parameters, momentum))
    if notes.total_non_finite:
        _log.warning(
            "%d contributions were not finite or raised an error and were replaced by zero", notes.total_non_finite
        )
    return _released(model, parameters), {**notes.to_dict(), "steps_run": max(plan.steps - first, 0)}


def charge_block(plan: DPSGDPlan, reserve: Callable[[Event, int], None], count: int) -> None:
    """Charge ``count`` steps; nothing of them has been drawn yet."""
    reserve(plan.event_per_step, count)


def noisy_gradient(
    plan: DPSGDPlan,
    model: nn.Module,
    loss_fn: LossFunction,
    batch: tuple[torch.Tensor, torch.Tensor],
    noise: NoiseSource,
    notes: _Diagnostics | None = None,
) -> Tensors:
    """ĝ of one step.  One noise vector for all parameters is drawn whatever the batch, also when it is empty."""
    sums, norms = clipped_gradient(model, loss_fn, batch, plan.max_grad_norm, plan.micro_batch_size)
    if notes is not None:
        notes.record(norms, plan.max_grad_norm)
    drawn = draw_noise(plan, noise, sum(value.numel() for value in sums.values()))
    result, position = {}, 0
    for name, value in sums.items():
        piece = torch.from_numpy(drawn[position : position + value.numel()]).to(value.device).reshape(value.shape)
        position += value.numel()
        result[name] = ((value.double() + piece) / normaliser(plan)).to(value.dtype)  # noise is added in float64
    return result


def draw_noise(plan: DPSGDPlan, noise: NoiseSource, size: int) -> np.ndarray:
    """One fresh noise vector (float64) for all parameters of one step."""
    return np.ascontiguousarray(noise.normal(noise_std(plan), size), dtype=np.float64)


def noise_std(plan: DPSGDPlan) -> float:
    """C·σ, under ``replace_one`` too: a record contributes at most C, and the accountant knows that two are swapped."""
    return plan.max_grad_norm * plan.noise_multiplier


def normaliser(plan: DPSGDPlan) -> float:
    """The public expected batch size, whatever was drawn and however many records there are."""
    return float(plan.expected_batch_size)


def _draw_batch(
    plan: DPSGDPlan, rows: torch.Tensor, targets: torch.Tensor, noise: NoiseSource
) -> tuple[torch.Tensor, torch.Tensor]:
    index = poisson_indices(noise, len(rows), plan.sample_rate)
    if len(index) == len(rows):
        return rows, targets
    picked = torch.from_numpy(index).to(rows.device)
    return rows.index_select(0, picked), targets.index_select(0, picked)


def _update(plan: DPSGDPlan, step: int, parameters: Tensors, momentum: Tensors, gradient: Tensors) -> None:
    rate = plan.rate(step)
    with torch.no_grad():
        for name, parameter in parameters.items():
            buffer = momentum[name].mul_(plan.momentum).add_(gradient[name].to(momentum[name].dtype))
            parameter.copy_(parameter - rate * buffer)


def _released(model: nn.Module, parameters: Tensors) -> nn.Module:
    """A fresh copy of the untouched ``model`` (buffers as they were) with the trained weights."""
    released = copy.deepcopy(model).to(next(iter(parameters.values())).device)
    own = dict(released.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            own[name].copy_(parameter)
    return released


class _Diagnostics:
    """What happened, step by step.  Private: every number here depends on records without noise."""

    def __init__(self) -> None:
        self.batch_size: list[int] = []
        self.clipped_share: list[float] = []
        self.mean_norm: list[float] = []
        self.non_finite: list[int] = []

    @property
    def total_non_finite(self) -> int:
        return sum(self.non_finite)

    def record(self, norms: torch.Tensor, max_grad_norm: float) -> None:
        values = norms.detach().cpu().numpy()
        finite = values[np.isfinite(values)]
        self.batch_size.append(len(values))
        self.non_finite.append(len(values) - len(finite))
        self.clipped_share.append(float((finite > max_grad_norm).mean()) if len(finite) else 0.0)
        self.mean_norm.append(float(finite.mean()) if len(finite) else 0.0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "clipped_share": self.clipped_share,
            "mean_norm": self.mean_norm,
            "non_finite": self.non_finite,
        }
