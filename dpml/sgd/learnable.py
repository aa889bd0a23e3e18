"""Whether a model and its loss can learn at all, looked at on made-up records before anything is read or charged.

A run in which every record's gradient is zero, or not a number, spends the whole budget on noise and says nothing: that
records contribute nothing is private.  What follows from the model and the loss alone is not, so it is said here, with
records that nobody brought: normal numbers, numbers from 0 to 1, large numbers, zeros, at the given weights and at
shaken ones, in float64 where the model allows it (float16 may round a gradient to zero that is there).

*   **Refused**: no made-up record's loss depends on a trained parameter as autograd sees it.  No values can mend that.
*   **Refused**: a trained weight that is not finite before training.  Every gradient would be no number either.
*   **Warned of**: the loss, or its gradient, is not finite on any made-up record, or the gradient is exactly zero on
    all of them.  Made-up records need not look like the data (a logarithm, a threshold in physical units, ReLUs that
    only large rows wake up), so a run may go on.
*   **Logged**: a trained parameter that no made-up record reaches.  An unused branch may be meant; its weights will be
    released as initial value plus noise.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_map

from dpml.errors import ModelError
from dpml.sgd.clipping import Clipper
from dpml.sgd.made_up import LOWEST, SHAKE, _drawn
from dpml.sgd.models import Loss, LossFunction, ModelLoss, copied, per_example_loss
from dpml.sgd.per_example import FATAL, _Bound, trainable
from dpml.sgd.randomness import own_random_numbers
from dpml.sgd.tensors import float_dtype, resolve_device

DRAWS = ((True, SHAKE), (True, 1.0), (False, 0.0), (False, SHAKE))
"""(in float64, size of the shake): the copies of a model that are looked at, in this order, until one can learn."""
RECORDS = 4  # made-up records of each kind
LARGE = 100.0

_log = logging.getLogger(__name__)


def refuse_fault(fault: Exception | None, batch: Any) -> None:
    """ModelError for an error on a record of zeros: it would befall every record, each of which would count as zero."""
    if fault is not None:
        X, y = batch
        raise ModelError(
            f"the model or the loss fails on a record of zeros (row {tuple(X.shape[1:])} {X.dtype}, target "
            f"{tuple(y.shape[1:])} {y.dtype}): {type(fault).__name__}: {fault}. Make them fit the data."
        ) from fault


def check_can_learn(
    model: nn.Module,
    loss: Loss | None,
    feature_shape: Sequence[int],
    regression: bool,
    gradients: str = "auto",
    device: str = "cpu",
) -> None:
    """All that ``dp_sgd`` looks at in a model before it starts, from public knowledge: no record is needed.

    Args:
        feature_shape: public shape of one row.  Of arrays it is the shape of ``X`` without its first axis: the same
            for any two data sets that differ in a record, as the *number* of records is not.
        regression: targets are real numbers in the model's dtype, not class indexes.
        gradients, device: as for :func:`dpml.sgd.fit_dp_sgd`.

    Raises:
        ModelError: a fault on a record of zeros, a model that remembers earlier calls, one that cannot learn.

    A RuntimeWarning, or a line in the log, says what is likely to be a fault and need not be one.
    """
    target = resolve_device(device)
    probe = copied(model).to(target)
    dtype = float_dtype(probe)
    kinds = ((1, *feature_shape), dtype), ((1,), dtype if regression else torch.int64)
    batch = tuple(torch.zeros(shape, dtype=kind, device=target) for shape, kind in kinds)
    loss_fn = ModelLoss(loss or per_example_loss)
    refuse_fault(Clipper(probe, loss_fn, batch, gradients).fault, batch)
    refuse_silent(model, loss_fn, batch)


def refuse_silent(model: nn.Module, loss_fn: LossFunction, batch: Any) -> None:
    """Refuse what cannot learn, warn of what most likely cannot (see the top of this file).

    Copies of the model are run on the CPU: an index out of range there is an error, and on CUDA the end of the device.
    Where no made-up record can be run on the CPU, one of zeros is on the batch's own device.

    Args:
        model: the caller's; it is not run.  The same is said of it only once, by a plan or by the run after it.
        batch: shapes, types and device of records; no value is used.

    Raises:
        ModelError: no trained parameter is reached, or one is not finite.
    """
    probe = copied(model).to("cpu")
    names = list(trainable(probe))
    for name, parameter in trainable(probe).items():
        if not bool(torch.isfinite(parameter).all()):
            raise ModelError(
                f"the parameter {name!r} holds NaN or infinity before training, so every record's gradient would be "
                "none. Initialise it."
            )
    found = look(probe, loss_fn, tree_map(lambda t: torch.empty_like(t[:0], device="cpu"), batch))
    everywhere = found.losses > 0
    if not everywhere:
        own = next(t.device for t in tree_flatten(batch)[0])
        found = look(copied(model).to(own), loss_fn, tree_map(lambda t: t[:0], batch), zeros_only=True)
    if not found.losses:
        return  # a record of zeros fails: that is refused elsewhere
    unreached = [name for name in names if name not in found.reached]
    if not found.reached:
        raise ModelError(
            "the losses do not depend on any trained parameter: every record's gradient would be zero, and the budget "
            "spent on noise alone. Look for .detach(), .data, torch.no_grad() or .item() in the model or the loss, and "
            "for parameters that are used behind their module's back (kept in a list or a closure)."
        )
    if unreached:
        _say(
            model,
            _log.warning,
            f"no made-up record reaches the trained parameter{'s' if len(unreached) > 1 else ''} "
            f"{', '.join(map(repr, unreached))}: what is released of it is its initial value and noise. Set "
            "requires_grad=False where that is not meant.",
        )
    if everywhere and not found.can_learn:
        what = "gradient is zero"
        if not found.finite_gradients:
            what = "gradient is not finite" if found.finite_losses else "loss is not finite"
        _say(
            model,
            partial(warnings.warn, category=RuntimeWarning, stacklevel=4),
            f"on every one of {found.losses} made-up records the {what}, at the initial weights and at shaken ones. "
            "If the data's records do the same, each contributes nothing and the budget buys noise alone. "
            "PrivateTrainer.check_records shows, to the custodian only, what the data's own records do.",
        )


_said: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


def _say(model: nn.Module, how: Callable[[str], None], text: str) -> None:
    said = _said.setdefault(model, set())
    if text not in said:
        how(text)
        said.add(text)


@dataclass
class Look:
    """What made-up records showed.

    Attributes:
        losses: how many gave a loss; ``finite_losses``, ``finite_gradients``: how many of these a finite one.
        reached: trained parameters that some loss depends on, whatever the values.
        can_learn: some gradient was finite and not zero.
    """

    losses: int = 0
    finite_losses: int = 0
    finite_gradients: int = 0
    can_learn: bool = False
    reached: set[str] = field(default_factory=set)


def look(model: nn.Module, loss_fn: LossFunction, batch: Any, zeros_only: bool = False) -> Look:
    """Run made-up records one by one, until some copy of the model can learn and all its parameters are reached.

    The copies are those of :data:`DRAWS`; the next one is looked at only if none before could learn.  ``batch`` gives
    shapes, types and device; ``zeros_only`` leaves out all records but one of zeros.
    """
    found = Look()
    names = set(trainable(model))
    with own_random_numbers(next(iter(trainable(model).values())).device):
        for double, size in DRAWS:
            shaken = _shaken(model, double, size)
            for top in LOWEST:
                before = found.losses
                for record in _records(batch, double, top, zeros_only):
                    try:
                        _look_at(found, shaken, loss_fn, record)
                    except FATAL:
                        raise
                    except Exception:  # float64 in a model that insists on float32, a label out of range
                        continue
                    if found.can_learn and found.reached == names:
                        return found
                if found.losses > before:
                    break
            if found.can_learn:
                break
    return found


def _look_at(found: Look, model: nn.Module, loss_fn: LossFunction, record: Any) -> None:
    leaves = {name: p.detach().clone().requires_grad_() for name, p in trainable(model).items()}
    others = [*((n, p) for n, p in model.named_parameters() if not p.requires_grad), *model.named_buffers()]
    state = {**leaves, **{name: value.detach().clone() for name, value in others}}
    gradients: list[torch.Tensor | None] = [None] * len(leaves)

    def backward(loss: torch.Tensor) -> None:
        if loss.requires_grad:
            gradients[:] = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)

    with torch.enable_grad():
        swapped = {f"model.{name}": value for name, value in state.items()}
        loss = functional_call(_Bound(model, loss_fn), swapped, (record, backward))
    found.losses += 1
    found.reached |= {name for name, g in zip(leaves, gradients, strict=True) if g is not None}
    values = [g.to_dense() for g in gradients if g is not None]
    finite = all(bool(torch.isfinite(g).all()) for g in values)
    found.finite_losses += bool(torch.isfinite(loss))
    found.finite_gradients += bool(torch.isfinite(loss)) and finite
    found.can_learn |= bool(torch.isfinite(loss)) and finite and any(bool(g.any()) for g in values)


def _shaken(model: nn.Module, double: bool, size: float) -> nn.Module:
    shaken = copy.deepcopy(model)
    if double:
        shaken = shaken.double()
    with torch.no_grad():
        for p in shaken.parameters():
            if p.is_floating_point():
                p.add_(torch.randn_like(p, dtype=torch.float32).to(p.dtype), alpha=size)
    return shaken


def _records(batch: Any, double: bool, top: int, zeros_only: bool) -> Iterator[Any]:
    """Made-up records (1, …): normal numbers, numbers from 0 to 1, large ones, zeros; whole numbers below ``top``."""
    normal = tree_map(lambda t: _drawn(t, double, top, t.device)[:RECORDS], batch)
    kinds = (
        normal,
        tree_map(lambda t: torch.rand_like(t) if t.is_floating_point() else t, normal),
        tree_map(lambda t: t * LARGE if t.is_floating_point() else t, normal),
        tree_map(torch.zeros_like, normal),
    )
    for several in kinds[-1:] if zeros_only else kinds:
        for i in range(1 if zeros_only else RECORDS):
            yield tree_map(lambda t, i=i: t[i : i + 1], several)
