"""Per-example gradients, clipped and summed: the one quantity of DP-SGD whose sensitivity is known.

Every record is run through the model *alone* (a vmapped batch of one), so its gradient cannot depend on another record
whatever the model or the loss does.  Parameters and buffers are swapped in for the call (``functional_call``): the
user's module gets no hooks, no gradients and no changed buffers.

Clipping and summing are done in float64.  In float32 the sum over a batch of B near-equal records is rounded by up to
B·2⁻²⁴ of itself, and one record more can move it by more than C (1 % more at B = 250,000).
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
MICRO_BATCH_VALUES = {"cpu": 2**22, "cuda": 2**26}  # per-example gradient values held at once
SUM_DTYPE = torch.float64  # of clip factors, clipped gradients and their sums, whatever the model's dtype
_SAFE = 1.0 - 1e-13  # a norm is known up to its rounding: what is clipped stays at or below C
_FATAL = (MemoryError, torch.OutOfMemoryError)  # of the machine, not of a record


class _LossShapeError(ModelError):
    """``loss_fn`` does not give one loss per record."""


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
            raise _LossShapeError(
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

    The bound holds up to float64 rounding for the gradients as they were computed.  For ``nn.Linear`` under the
    built-in loss these are float64 too.  Any other float32 model computes them in float32, where a kernel may round one
    record's gradient a little differently (a few 1e-7 of it) in a batch of another size; a ``.double()`` model has the
    bound in full.

    No noise is added and nothing is charged: this is the building block, private only together with both
    (Abadi et al. 2016, Algorithm 1, lines "Compute gradient" and "Clip gradient").

    Args:
        model: any module; it is left exactly as it was (no hooks, gradients, buffers or mode changed).
        loss_fn: ``loss_fn(model, batch) -> (B,)``, one loss per record.
        batch: tensor, or tuple/list/dict of tensors, each with the records along its first axis; B may be 0.
        max_grad_norm: C > 0, bound on the L2 norm over all trained parameters together.
        micro_batch_size: records whose gradients are held at once; the result does not depend on it.

    Returns:
        ``sums``: name → float64 tensor of the parameter's shape.  ``norms``: ``(B,)`` float64 norms before clipping.
        A record whose gradient is not finite contributes exactly zero (its norm shows as it was), and so does a record
        on which the model or the loss raises an error (an embedding index out of range, say): its norm is NaN.  On CUDA
        such an index ends the process's use of the device, so check ranges before.  A warning tells when a record of
        zeros raises: most likely all records do (a wrong dtype, say).

    Raises:
        ModelError: nothing to train, or ``loss_fn`` does not give one loss per record (tried on a record of zeros: no
            error depends on the values of a record).
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
    sums = {name: torch.zeros_like(p, dtype=SUM_DTYPE, requires_grad=False) for name, p in parameters.items()}
    device = next(iter(parameters.values())).device
    if _is_plain_linear(model, loss_fn, batch):
        return _linear_clipped_gradient(model, batch, max_grad_norm)
    fault = try_on_zeros(model, loss_fn, batch)
    if fault is not None:
        text = f"a record of zeros raises {type(fault).__name__}: {fault}. A record that raises contributes zero."
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    if size == 0:
        return sums, torch.zeros(0, dtype=torch.float64, device=device)
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
    except (*_FATAL, _LossShapeError):
        raise
    except Exception as error:
        return error
    return None


def per_example_gradients(model: nn.Module, loss_fn: LossFunction, batch: Any) -> Tensors:
    """Gradients ``(B, *shape)`` of each record's own loss, by name; NaN for a record that raises an error.

    All records at once by ``vmap``.  Where it knows no rule, a slow loop; where a record raises, halves of the batch,
    down to that record.
    """
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

    stacked = _stacked(grad(loss_of_one), values, batch)
    return {name.removeprefix("model."): value.detach() for name, value in stacked.items()}


def _stacked(gradient: Callable[[Tensors, Any], Tensors], values: Tensors, batch: Any) -> Tensors:
    size = _batch_size(batch)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # torch loops over some kernels
            stacked: Tensors = vmap(gradient, in_dims=(None, 0), randomness="different")(values, batch)
            return stacked
    except _FATAL:
        raise
    except (RuntimeError, NotImplementedError) as error:
        _refuse_device_error(error)
    except Exception:
        if size > 1:
            half = size // 2
            parts = [tree_map(lambda t, p=part: t[p], batch) for part in (slice(half), slice(half, None))]
            first, second = (_stacked(gradient, values, part) for part in parts)
            return {name: torch.cat([first[name], second[name]]) for name in values}
    records = [_alone(gradient, values, tree_map(lambda t, i=i: t[i], batch)) for i in range(size)]
    return {name: torch.stack([record[name] for record in records]) for name in values}


def _alone(gradient: Callable[[Tensors, Any], Tensors], values: Tensors, record: Any) -> Tensors:
    """One record's gradient, NaN if it raises: an error that stopped the run would tell that the record is there."""
    try:
        return gradient(values, record)
    except _FATAL:
        raise
    except Exception as error:
        _refuse_device_error(error)
        return {name: torch.full_like(value, torch.nan) for name, value in values.items()}


def _refuse_device_error(error: Exception) -> None:
    if "CUDA error" in str(error):  # the device answers nothing from here on, for any record
        raise error


def clip_factors(norms: torch.Tensor, max_grad_norm: float) -> torch.Tensor:
    """min(1, C/norm) in float64 (less 1e-13 of it where it is below 1), and 0 where the norm is not finite."""
    factors = torch.where(norms > max_grad_norm, max_grad_norm * _SAFE / norms, torch.ones_like(norms))
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))


def without(rows: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """``rows`` with zeros where ``keep`` is False: a factor 0 is not enough, 0 · NaN is NaN."""
    if bool(keep.all()):
        return rows
    return torch.where(keep[:, None], rows, torch.zeros_like(rows))


def clip_and_sum(per_example: Tensors, max_grad_norm: float) -> tuple[Tensors, torch.Tensor]:
    """Clip the gradients ``(B, *shape)`` to ``max_grad_norm`` over all parameters together; sum over the records.

    All in float64: half precision would overflow (everything zeroed) or underflow (nothing clipped), and a float32 sum
    over many records passes the sensitivity C.
    """
    flat = {name: g.flatten(1).to(SUM_DTYPE) for name, g in per_example.items()}
    parts = [torch.linalg.vector_norm(g, dim=1, dtype=torch.float64) for g in flat.values()]
    norms = torch.linalg.vector_norm(torch.stack(parts), dim=0)
    factors = clip_factors(norms, max_grad_norm).to(SUM_DTYPE)
    finite = torch.isfinite(norms)
    sums = {name: (factors @ without(g, finite)).reshape(per_example[name].shape[1:]) for name, g in flat.items()}
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
        and batch[0].dtype == model.weight.dtype
        and batch[0].shape[1] == model.weight.shape[1]
        and model.weight.dtype in (torch.float32, torch.float64)
        and (model.weight.shape[0] == 1 or batch[1].dtype == torch.int64)
        and all(p.requires_grad for p in model.parameters())
        and not (model._forward_hooks or model._forward_pre_hooks or getattr(model, "parametrizations", None))
    )


def _linear_clipped_gradient(model: nn.Linear, batch: Any, max_grad_norm: float) -> tuple[Tensors, torch.Tensor]:
    """The closed form: the gradient of one record is b aᵀ (a the input, b the loss' derivative in the logits).

    So ‖g‖ = ‖b‖·‖a‖, with bias ‖b‖·√(‖a‖² + 1), and the clipped sum is one matrix product.  All in float64, the logits
    too: their float32 rounding may depend on how many records there are.
    """
    X, y = batch[0].to(SUM_DTYPE), batch[1]
    weight = model.weight.detach().to(SUM_DTYPE)
    bias = None if model.bias is None else model.bias.detach().to(SUM_DTYPE)
    logits = X @ weight.T if bias is None else X @ weight.T + bias
    if weight.shape[0] == 1:
        b = torch.sigmoid(logits) - y.to(logits.dtype)[:, None]
    else:
        known, ignored = (y >= 0) & (y < weight.shape[0]), y == IGNORED_CLASS
        b = torch.softmax(logits, dim=1)
        b = b - torch.nn.functional.one_hot(torch.where(known, y, 0), weight.shape[0]).to(b.dtype)
        b = torch.where(known[:, None], b, torch.where(ignored, 0.0, torch.nan).to(b.dtype)[:, None])
    squares = torch.linalg.vector_norm(X, dim=1, dtype=torch.float64).square()
    squares = squares if bias is None else squares + 1.0
    norms = squares.sqrt() * torch.linalg.vector_norm(b, dim=1, dtype=torch.float64)
    finite = torch.isfinite(norms)
    scaled = without(b * clip_factors(norms, max_grad_norm).to(SUM_DTYPE)[:, None], finite)
    X = without(X, finite)
    sums = {"weight": scaled.T @ X}
    if bias is not None:
        sums["bias"] = scaled.sum(0)
    return sums, norms
