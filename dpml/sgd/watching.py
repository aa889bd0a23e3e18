"""What is watched while a model and its loss run on made-up records (:mod:`dpml.sgd.made_up`): every call of torch.

Some calls end the look (:class:`~dpml.sgd.uses.Unsupported`, so that records are run alone): reading a value into
Python, random numbers other than dropout, giving one record's place to another.  Others are noted down: the numbers
that a forward pass compares records with.  What works on the tensors' memory or in numpy is not seen.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from dpml.sgd.models import LossFunction
from dpml.sgd.randomness import has_generator
from dpml.sgd.uses import Unsupported

MANY = 13  # records of the larger batch: a prime, and memory for no more
FEW_COMPARED = 8  # entries of a tensor that is compared with, all of which are noted down
_READS = ("item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__contains__", "equal",
          "allclose", "is_nonzero", "__array__")  # fmt: skip
_DROPOUT_AT = {**dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), 5), "multi_head_attention_forward": 10}
_SORTS = ("sort", "argsort", "topk", "msort", "kthvalue", "unique", "unique_consecutive")
_SHIFTS = ("flip", "roll", "flipud", "rot90")
_PICKS = ("index_select", "gather", "take_along_dim", "scatter", "scatter_", "scatter_add", "scatter_add_",
          "index_add", "index_add_", "index_copy", "index_copy_", "cumsum", "cumprod", "cummax", "cummin",
          "logcumsumexp")  # fmt: skip
_ANYWHERE = ("masked_select", "take", "nonzero", "argwhere", "masked_scatter", "masked_scatter_", "bincount", "histc")
_EQUALS = ("eq", "ne", "__eq__", "__ne__", "isin")
_ORDERS = ("lt", "le", "gt", "ge", "__lt__", "__le__", "__gt__", "__ge__", "less", "less_equal", "greater",
           "greater_equal")  # fmt: skip


class Watch(TorchFunctionMode):
    """No dropout: records alone and together must see the same network.  And nothing may read a value: a branch in
    Python that one record takes is one that others take with it."""

    reading, moving = True, True

    def __init__(self) -> None:
        super().__init__()
        self.compared: dict[float, None] = {}  # numbers that the forward pass compares with, in order

    def watched(self, loss_fn: LossFunction) -> LossFunction:
        """``loss_fn``, with ``moving`` as it is set on this mode for the forward pass only: taps may index."""

        def loss(model: nn.Module, batch: Any) -> torch.Tensor:
            self._forward, self._seed = True, torch.initial_seed()
            try:
                return loss_fn(model, batch)
            finally:
                self._forward = False

        return loss

    _forward, _seed = False, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if self._forward and (torch.initial_seed() != self._seed or has_generator(args, kwargs)):
            raise Unsupported("random numbers by a seed or a generator of its own")
        if self._forward:
            self.compared.update(dict.fromkeys(_compared_with(name, args, kwargs)))
        if "dropout" in name:
            return args[0] if args else kwargs["input"]
        if name in _READS and not self.reading:
            raise Unsupported("a forward pass that reads values (an if, float() or .item())")
        if self._forward and not self.moving and _moves_records(name, args, kwargs):
            raise Unsupported(f"records that change places ({name})")
        if "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        at = _DROPOUT_AT.get(name, len(args))
        if at < len(args) and isinstance(args[at], float):
            args = (*args[:at], 0.0, *args[at + 1 :])
        return func(*args, **kwargs)


def _compared_with(name: str, args: Any, kwargs: Any) -> list[float]:
    """Numbers that tell some values of a record from others: what is left out (``ignore_index``), what is padded, and
    what a call compares with; beside a limit also its neighbours."""
    found = [kwargs[word] for word in ("ignore_index", "padding_idx") if _is_number(kwargs.get(word))]
    if name in (*_EQUALS, *_ORDERS):
        for one in (*args, *kwargs.values()):
            if type(one) is torch.Tensor and one.numel() <= FEW_COMPARED and not one.requires_grad:
                found += _values(one)
            elif _is_number(one):
                found.append(one)
    if name in _ORDERS:
        found += [number + step for number in found for step in (-1, 1)]
    return [float(number) for number in found if math.isfinite(number)]


def _values(few: torch.Tensor) -> list[float]:
    """Those of a plain tensor; none where they cannot be read (in ``vmap``, of complex numbers)."""
    try:
        return few.double().reshape(-1).tolist()
    except (RuntimeError, TypeError):
        return []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _moves_records(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a call may give one record's place to another, in a batch of ``MANY``."""
    first = args[0] if args else kwargs.get("input")
    if not isinstance(first, torch.Tensor) or first.ndim == 0:
        return False
    if first.shape[0] % MANY == 0 and _moves_rows(first, name, args, kwargs):
        return True
    axes = [axis for axis, size in enumerate(first.shape) if size == MANY or (axis == 0 and size % MANY == 0)]
    return any(_moves_along(axis, first, name, args, kwargs) for axis in axes)


def _moves_rows(first: torch.Tensor, name: str, args: Any, kwargs: Any) -> bool:
    """By indexing, or by functions that look at all entries."""
    if name in ("__getitem__", "__setitem__"):
        index = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
        if isinstance(index, slice):
            return (index.step or 1) != 1
        if not isinstance(index, torch.Tensor):
            return isinstance(index, list | np.ndarray)
        in_place = torch.arange(len(first), device=index.device)  # x[arange(B), y]: every record's own row
        return index.shape != in_place.shape or not torch.equal(index.to(torch.int64), in_place)
    return name in _ANYWHERE


def _moves_along(axis: int, first: torch.Tensor, name: str, args: Any, kwargs: Any) -> bool:
    """By sorting, shifting or picking along ``axis``."""
    dim = kwargs.get("dim", kwargs.get("dims", next((a for a in args[1:] if isinstance(a, int | tuple | list)), None)))
    if name == "topk":
        dim = kwargs.get("dim", args[2] if len(args) > 2 else -1)
    if name == "roll":
        dim = kwargs.get("dims", args[2] if len(args) > 2 else 0)
    here = (axis, axis - first.ndim)
    if name in _SORTS:
        last = dim is None and name not in ("msort", "unique")  # sort and argsort without an axis: the last
        return dim in here or (last and axis == first.ndim - 1) or (dim is None and name in ("msort", "unique"))
    if name in _SHIFTS or name in _PICKS:
        several = dim if isinstance(dim, tuple | list) else [dim]
        return name == "flipud" or any(d is None or d in here for d in several)
    return False
