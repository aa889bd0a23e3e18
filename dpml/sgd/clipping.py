"""Per-example gradients, clipped and summed: the one quantity of DP-SGD whose sensitivity is known.

Every record is run through the model *alone* (a vmapped batch of one), so its gradient cannot depend on another record
whatever the model or the loss does.  Parameters and buffers are swapped in for the call (``functional_call``): the
user's module gets no hooks, no gradients and no changed buffers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_map

from dpml import errors
from dpml.errors import DataError, ModelError
from dpml.sgd.models import LossFunction, ModelLoss, per_example_loss

Tensors = dict[str, torch.Tensor]
IGNORED_CLASS = -100  # torch's cross entropy gives such a record the loss 0
MICRO_BATCH_VALUES = {"cpu": 2**22, "cuda": 2**26}  # per-example gradient values held at once (16 MiB stay in cache)


class _Bound(nn.Module):
    """Model and loss in one module, so that ``functional_call`` can swap tensors under ``loss_fn(model, batch)``."""

    def __init__(self, model: nn.Module, loss_fn: LossFunction) -> None:
        super().__init__()
        self.model = model
        self._loss_fn = loss_fn
        self.training = model.training

    def forward(self, batch: Any) -> torch.Tensor:
        losses = self._loss_fn(self.model, batch)
        if losses.shape != (1,):
            raise ModelError(
                f"loss_fn gave shape {tuple(losses.shape)} for a batch of one record; it must give one loss per "
                "record, shape (B,). Use reduction='none'."
            )
        return losses[0]


def trainable(model: nn.Module) -> Tensors:
    """The parameters that are trained, by name; tied ones once, frozen ones not at all."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def default_micro_batch(n_parameters: int, device_type: str = "cpu") -> int:
    """Records whose gradients are held at once: a bounded amount of memory (B × p values), whatever the batch."""
    values = MICRO_BATCH_VALUES.get(device_type, MICRO_BATCH_VALUES["cuda"])
    return max(1, min(4096, values // max(n_parameters, 1)))


def clipped_gradient(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    max_grad_norm: float,
    micro_batch_size: int | None = None,
) -> tuple[Tensors, torch.Tensor]:
    """Σᵢ gᵢ · min(1, C/‖gᵢ‖) over the records of ``batch``: one record more or less moves it by at most C (add_remove).

    No noise is added and nothing is charged: this is the building block, private only together with both
    (Abadi et al. 2016, Algorithm 1, lines "Compute gradient" and "Clip gradient").

    Args:
        model: any module; it is left exactly as it was (no hooks, gradients, buffers or mode changed).
        loss_fn: ``loss_fn(model, batch) -> (B,)``, one loss per record.
        batch: tensor, or tuple/list/dict of tensors, each with the records along its first axis; B may be 0.
        max_grad_norm: C > 0, bound on the L2 norm over all trained parameters together.
        micro_batch_size: records whose gradients are held at once; the result does not depend on it.

    Returns:
        ``sums``: name → tensor of the parameter's shape, float32 or wider.  ``norms``: ``(B,)`` float64 norms before
        clipping.  A record whose gradient is not finite contributes exactly zero (its norm shows as it was).

    Raises:
        ModelError: nothing to train, or ``loss_fn`` does not give one loss per record.
        ConfigError: ``max_grad_norm`` or ``micro_batch_size`` out of range.
    """
    if not 0.0 < max_grad_norm < float("inf"):
        raise errors.invalid("max_grad_norm", max_grad_norm, "a finite number > 0")
    if micro_batch_size is not None and micro_batch_size < 1:
        raise errors.invalid("micro_batch_size", micro_batch_size, "None or a whole number >= 1")
    parameters = trainable(model)
    if not parameters:
        raise ModelError("the model has no parameter with requires_grad=True, so there is nothing to train.")
    size = _batch_size(batch)
    sums = {
        name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32), requires_grad=False)
        for name, p in parameters.items()
    }
    device = next(iter(parameters.values())).device
    if size == 0:
        return sums, torch.zeros(0, dtype=torch.float64, device=device)
    if _is_plain_linear(model, loss_fn, batch):
        return _linear_clipped_gradient(model, batch, max_grad_norm)
    step = micro_batch_size or default_micro_batch(sum(p.numel() for p in parameters.values()), device.type)
    norms = []
    for start in range(0, size, step):
        part = tree_map(lambda t, s=start: t[s : s + step], batch)
        per_example = per_example_gradients(model, loss_fn, part)
        part_sums, part_norms = clip_and_sum(per_example, max_grad_norm)
        for name, value in part_sums.items():
            sums[name] += value
        norms.append(part_norms)
    return sums, torch.cat(norms)


def _batch_size(batch: Any) -> int:
    leaves = tree_flatten(batch)[0]
    if not leaves or not all(isinstance(leaf, torch.Tensor) and leaf.ndim >= 1 for leaf in leaves):
        raise DataError("batch must be a tensor, or a tuple, list or dict of tensors with the records along axis 0.")
    sizes = {len(leaf) for leaf in leaves}
    if len(sizes) != 1:
        raise DataError(f"the tensors of batch have {sorted(sizes)} records; all must have the same number.")
    return int(sizes.pop())


def per_example_gradients(model: nn.Module, loss_fn: LossFunction, batch: Any) -> Tensors:
    """Gradients ``(B, *shape)`` of each record's own loss, by name; a slow loop where ``vmap`` knows no rule."""
    bound = _Bound(model, loss_fn)
    values = {f"model.{name}": p.detach() for name, p in trainable(model).items()}
    fixed = {f"model.{name}": p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    buffers = {f"model.{name}": b.detach() for name, b in model.named_buffers()}

    def loss_of_one(trained: Tensors, record: Any) -> torch.Tensor:
        # buffers are cloned: what a forward pass writes into them depends on records and must not survive
        others = {name: b.clone() for name, b in buffers.items()}
        one = tree_map(lambda t: t.unsqueeze(0), record)
        loss: torch.Tensor = functional_call(bound, {**trained, **fixed, **others}, (one,))
        return loss

    gradient = grad(loss_of_one)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # torch loops over some kernels
            stacked: Tensors = vmap(gradient, in_dims=(None, 0), randomness="different")(values, batch)
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        stacked = _loop(gradient, values, batch)
    return {name.removeprefix("model."): value.detach() for name, value in stacked.items()}


def _loop(gradient: Callable[[Tensors, Any], Tensors], values: Tensors, batch: Any) -> Tensors:
    records = [gradient(values, tree_map(lambda t, i=i: t[i], batch)) for i in range(_batch_size(batch))]
    return {name: torch.stack([record[name] for record in records]) for name in values}


def clip_factors(norms: torch.Tensor, max_grad_norm: float) -> torch.Tensor:
    """min(1, C/norm), and 0 where the norm is not finite."""
    factors = (max_grad_norm / norms.clamp_min(max_grad_norm)).clamp_max(1.0)
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))


def without(rows: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """``rows`` with zeros where ``keep`` is False: a factor 0 is not enough, 0 · NaN is NaN."""
    if bool(keep.all()):
        return rows
    return torch.where(keep[:, None], rows, torch.zeros_like(rows))


def clip_and_sum(per_example: Tensors, max_grad_norm: float) -> tuple[Tensors, torch.Tensor]:
    """Clip the gradients ``(B, *shape)`` to ``max_grad_norm`` over all parameters together; sum over the records.

    Squares are summed in float64: half precision would overflow (everything zeroed) or underflow (nothing clipped).
    """
    flat = {name: g.flatten(1).to(torch.promote_types(g.dtype, torch.float32)) for name, g in per_example.items()}
    parts = [torch.linalg.vector_norm(g, dim=1, dtype=torch.float64) for g in flat.values()]
    norms = torch.linalg.vector_norm(torch.stack(parts), dim=0)
    factors = clip_factors(norms, max_grad_norm)
    finite = torch.isfinite(norms)
    sums = {
        name: (factors.to(g.dtype) @ without(g, finite)).reshape(per_example[name].shape[1:])
        for name, g in flat.items()
    }
    return sums, norms


def _is_plain_linear(model: nn.Module, loss_fn: LossFunction, batch: Any) -> TypeGuard[nn.Linear]:
    """One ``nn.Linear`` under the built-in loss, untouched by hooks or frozen parts: the closed form covers it."""
    return (
        type(model) is nn.Linear
        and isinstance(loss_fn, ModelLoss)
        and loss_fn.loss is per_example_loss
        and isinstance(batch, tuple)
        and len(batch) == 2
        and batch[0].ndim == 2
        and batch[1].ndim == 1
        and model.weight.dtype in (torch.float32, torch.float64)
        and all(p.requires_grad for p in model.parameters())
        and not (model._forward_hooks or model._forward_pre_hooks or getattr(model, "parametrizations", None))
    )


def _linear_clipped_gradient(model: nn.Linear, batch: Any, max_grad_norm: float) -> tuple[Tensors, torch.Tensor]:
    """The closed form: the gradient of one record is b aᵀ (a the input, b the loss' derivative in the logits).

    So ‖g‖ = ‖b‖·‖a‖, with bias ‖b‖·√(‖a‖² + 1), and the clipped sum is one matrix product.
    """
    X, y = batch
    weight, bias = model.weight.detach(), model.bias
    if not X.is_floating_point() or X.dtype != weight.dtype:
        raise DataError(f"X is {X.dtype}, the model's weight is {weight.dtype}: cast X first.")
    logits = X @ weight.T if bias is None else X @ weight.T + bias.detach()
    if weight.shape[0] == 1:
        b = torch.sigmoid(logits) - y.to(logits.dtype)[:, None]
    else:
        counted = y != IGNORED_CLASS
        b = torch.softmax(logits, dim=1)
        b = b - torch.nn.functional.one_hot(torch.where(counted, y, 0), weight.shape[0]).to(b.dtype)
        b = torch.where(counted[:, None], b, torch.zeros_like(b))
    squares = torch.linalg.vector_norm(X, dim=1, dtype=torch.float64).square()
    squares = squares if bias is None else squares + 1.0
    norms = squares.sqrt() * torch.linalg.vector_norm(b, dim=1, dtype=torch.float64)
    finite = torch.isfinite(norms)
    scaled = without(b * clip_factors(norms, max_grad_norm).to(b.dtype)[:, None], finite)
    X = without(X, finite)
    sums = {"weight": scaled.T @ X}
    if bias is not None:
        sums["bias"] = scaled.sum(0)
    return sums, norms
