"""Per-example gradients by running every record alone (a vmapped batch of one): slow, and fit for any model.

A record's gradient cannot depend on another record whatever the model or the loss does, but for how kernels round
(docs/dp-sgd.md, "Floating point").  Parameters and buffers are swapped in for the call (``functional_call``): the
user's module gets no hooks, no gradients and no changed buffers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_map

from dpml.errors import DataError, ModelError
from dpml.machine import refuse_unless_a_records
from dpml.sgd.models import LossFunction
from dpml.sgd.randomness import Together, of_one_record

Tensors = dict[str, torch.Tensor]
FATAL = (MemoryError, torch.OutOfMemoryError)  # of the machine, not of a record


class LossShapeError(ModelError):
    """``loss_fn`` does not give one loss per record."""


class _Bound(nn.Module):
    """Model and loss in one module, so that ``functional_call`` can swap tensors under ``loss_fn(model, batch)``."""

    def __init__(self, model: nn.Module, loss_fn: LossFunction) -> None:
        super().__init__()
        self.model = model
        self._loss_fn = loss_fn
        self.training = model.training

    def forward(self, batch: Any, backward: Callable[[torch.Tensor], None] | None = None) -> torch.Tensor:
        losses = self._loss_fn(self.model, batch)
        if not isinstance(losses, torch.Tensor) or losses.shape != (1,):
            given = f"shape {tuple(losses.shape)}" if isinstance(losses, torch.Tensor) else type(losses).__name__
            raise LossShapeError(
                f"loss_fn gave {given} for a batch of one record; it must give one loss per "
                "record, shape (B,). Use reduction='none'."
            )
        if backward is not None:  # while the tensors are swapped: a checkpointed layer runs forward again in it
            backward(losses[0])
        return losses[0]


def trainable(model: nn.Module) -> Tensors:
    """The parameters that are trained, by name; tied ones once, frozen ones not at all."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def batch_size(batch: Any) -> int:
    leaves = tree_flatten(batch)[0]
    if not leaves or not all(isinstance(leaf, torch.Tensor) and leaf.ndim >= 1 for leaf in leaves):
        odd = next((leaf for leaf in leaves if not isinstance(leaf, torch.Tensor) or leaf.ndim < 1), None)
        what = "holds no tensor" if not leaves else f"holds a {type(odd).__name__}"
        if isinstance(odd, torch.Tensor):
            what = "holds a tensor without axes"
        raise DataError(
            f"batch {what}; it must be a tensor, or a tuple, list or dict of tensors with the records along axis 0."
        )
    sizes = {leaf.shape[0] for leaf in leaves}
    if len(sizes) != 1:
        raise DataError(f"the tensors of batch have {sorted(sizes)} records; all must have the same number.")
    return int(sizes.pop())


def filled_up(batch: Any, size: int, least: int) -> Any:
    """``batch`` of ``size`` records, with records of zeros after them where they are fewer than ``least``.

    Kernels take another way for a few records than for many, so that a record's gradient would be rounded otherwise in
    a smaller batch.  What comes of the zeros is for the caller to drop.
    """
    if size >= least:
        return batch
    return tree_map(lambda values: torch.cat([values, values.new_zeros((least - size, *values.shape[1:]))]), batch)


def try_on_zeros(model: nn.Module, loss_fn: LossFunction, batch: Any) -> Exception | None:
    """The loss of one record of zeros shaped as those of ``batch``: the error it raises, if any.

    No value of a record is used, so what comes of it may be shown.

    Raises:
        ModelError: there is a loss, but not one per record.
    """
    zeros = tree_map(lambda t: t.new_zeros((1, *t.shape[1:])), batch)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    copies = {f"model.{name}": value.detach().clone() for name, value in state.items()}
    try:
        with torch.no_grad():
            functional_call(_Bound(model, loss_fn), copies, (zeros,))
    except (*FATAL, LossShapeError):
        raise
    except Exception as error:
        return error
    return None


def depends_on_weights(model: nn.Module, loss_fn: LossFunction, batch: Any) -> bool:
    """Whether autograd knows of a way from the trained parameters to the loss of one record of zeros."""
    zeros = tree_map(lambda t: t.new_zeros(t.shape[1:]), batch)
    gradient = _Gradient(model, loss_fn)
    leaves = {name: value.clone().requires_grad_() for name, value in gradient.values.items()}
    found: list[bool] = []
    try:
        with torch.enable_grad():
            gradient._loss(leaves, zeros, lambda loss: found.append(loss.requires_grad))
    except FATAL:
        raise
    except Exception:  # what autograd cannot do is found out later
        return True
    return found != [False]


def kept_values(model: nn.Module, loss_fn: LossFunction, batch: Any) -> int:
    """How many numbers autograd keeps for the backward pass of one record of zeros, beside the weights; 0 if it fails.

    No value of a record is used.
    """
    zeros = tree_map(lambda t: t.new_zeros(t.shape[1:]), batch)
    gradient = _Gradient(model, loss_fn)
    sizes: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        root = tensor if tensor._base is None else tensor._base
        if root.grad_fn is not None or not root.requires_grad:  # else a weight, or a view of one
            sizes[root.untyped_storage().data_ptr()] = root.numel()
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            gradient(gradient.values, zeros)
    except FATAL:
        raise
    except Exception:
        return 0
    return sum(sizes.values())


def per_example_gradients(model: nn.Module, loss_fn: LossFunction, batch: Any, least: int = 1) -> Tensors:
    """Gradients ``(B, *shape)`` of each record's own loss, by name; NaN for a record that raises an error.

    All records at once by ``vmap``.  Where it knows no rule, or records would share random numbers, a slow loop of
    plain autograd; where a record raises, halves of the batch, down to that record.  ``vmap`` gets ``least`` records,
    filled up with zeros.
    """
    gradient = _Gradient(model, loss_fn)
    stacked = _stacked(gradient, gradient.values, batch, least)
    return {name.removeprefix("model."): value.detach() for name, value in stacked.items()}


class _Gradient:
    """The gradient of one record's loss: ``together`` under ``vmap``, or by plain autograd for a record alone.

    Everything that a forward pass could write into is copied for the call: what a record leaves in a buffer, in a
    weight or in its own row must reach neither the model nor another record nor a second attempt.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFunction) -> None:
        self._bound = _Bound(model, loss_fn)
        self.values = {f"model.{name}": p.detach().clone() for name, p in trainable(model).items()}
        others = [*((name, p) for name, p in model.named_parameters() if not p.requires_grad), *model.named_buffers()]
        self._others = {f"model.{name}": value.detach() for name, value in others}
        self.together = grad(self._loss)

    def _loss(
        self, trained: Tensors, record: Any, backward: Callable[[torch.Tensor], None] | None = None
    ) -> torch.Tensor:
        others = {name: value.clone() for name, value in self._others.items()}
        one = tree_map(lambda t: t.clone().unsqueeze(0), record)
        loss: torch.Tensor = functional_call(self._bound, {**trained, **others}, (one, backward))
        return loss

    def __call__(self, values: Tensors, record: Any) -> Tensors:
        leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
        found: list[torch.Tensor | None] = [None] * len(leaves)

        def backward(loss: torch.Tensor) -> None:
            if loss.requires_grad:
                found[:] = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)

        with torch.enable_grad():
            self._loss(leaves, record, backward)
        result = {}
        for (name, value), g in zip(values.items(), found, strict=True):
            result[name] = torch.zeros_like(value) if g is None else (g.to_dense() if g.is_sparse else g)
        return result


def _stacked(gradient: _Gradient, values: Tensors, batch: Any, least: int) -> Tensors:
    size, attempt = batch_size(batch), Together(next(iter(values.values())).device)
    try:
        with warnings.catch_warnings(), attempt:
            warnings.filterwarnings("ignore", message="There is a performance drop")  # torch loops over some kernels
            run = filled_up(batch, size, least)
            stacked: Tensors = vmap(gradient.together, in_dims=(None, 0), randomness="different")(values, run)
        if not attempt.shared:
            return {name: value[:size] for name, value in stacked.items()}
    except (RuntimeError, NotImplementedError) as error:
        refuse_device_error(error)
    except BaseException as error:
        refuse_device_error(error)
        if size > 1:
            half = size // 2
            parts = [tree_map(lambda t, p=part: t[p], batch) for part in (slice(half), slice(half, None))]
            first, second = (_stacked(gradient, values, part, least) for part in parts)
            return {name: torch.cat([first[name], second[name]]) for name in values}
    records = [_alone(gradient, values, tree_map(lambda t, i=i: t[i], batch)) for i in range(size)]
    return {name: torch.stack([record[name] for record in records]) for name in values}


def _alone(gradient: _Gradient, values: Tensors, record: Any) -> Tensors:
    """One record's gradient, NaN if it raises: an error that stopped the run would tell that the record is there."""
    try:
        with of_one_record(next(iter(values.values())).device):
            return gradient(values, record)
    except BaseException as error:
        refuse_device_error(error)
        return {name: torch.full_like(value, torch.nan) for name, value in values.items()}


def refuse_device_error(error: BaseException) -> None:
    """Raise ``error`` again if it is not a record's: of those named in :mod:`dpml.machine`, or the device answers no
    more."""
    if "CUDA error" in str(error):
        raise error
    refuse_unless_a_records(error)
