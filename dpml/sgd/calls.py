"""Stand-ins for trained parameters: every computation with one is read as a :class:`Call`, or refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves, tree_map

from dpml.sgd.attention import attention
from dpml.sgd.convolutions import Window
from dpml.sgd.one_function import function_call
from dpml.sgd.recurrent import WRITTEN_OUT
from dpml.sgd.uses import Unsupported


@dataclass(frozen=True)
class Call:
    """One use of parameters, whatever way it was written.

    ``x`` is the tensor with the records; ``weight`` and ``bias`` are stand-ins, tensors or None; ``plain()`` computes
    the result as torch does.
    """

    kind: str
    x: torch.Tensor | None
    weight: Any
    bias: Any
    plain: Callable[[], Any]
    more: Any = None

    @property
    def names(self) -> tuple[str | None, str | None]:
        return _name(self.weight), _name(self.bias)


class StandIn(torch.Tensor):
    """Stands in for a trained parameter; whoever computes with it is recorded."""

    tape: Any
    name_: str
    raw: torch.Tensor

    @staticmethod
    def of(raw: torch.Tensor, name: str, tape: Any) -> StandIn:
        made: StandIn = torch.Tensor._make_subclass(StandIn, raw)
        made.tape, made.name_, made.raw = tape, name, raw
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.detach:
            return args[0].raw.clone()  # a constant; writing into it must not reach the model
        if _called(func) in ("__get__", *_HARMLESS):
            if _called(func) == "__get__" and not _is_metadata(func):
                raise Unsupported("an attribute of a parameter, such as .T or .grad")
            return func(*tree_map(raw_of, args), **tree_map(raw_of, kwargs))
        if func is torch._cudnn_rnn_flatten_weight:
            return None  # an RNN on CUDA lays its weights out anew: the user's stay where they are
        written_out = attention if func is F.multi_head_attention_forward else WRITTEN_OUT.get(func)
        if written_out is not None:
            try:
                return written_out(*args, **kwargs)
            except Unsupported:
                return _by_itself(func, args, kwargs)
        read = _READERS.get(func) or _READERS_BY_NAME.get(_called(func))
        if read is None:
            return _by_itself(func, args, kwargs)
        try:
            call: Call = read(func, args, kwargs)
        except Unsupported:
            if read not in (_read_matmul, _read_elementwise):
                raise
            return _by_itself(func, args, kwargs)
        if isinstance(call.x, StandIn):
            raise Unsupported(f"{call.kind} of two parameters")
        for part in (call.weight, call.bias):
            if isinstance(part, StandIn):
                return part.tape.use(call)
        raise Unsupported(f"{getattr(func, '__name__', func)!s} of a parameter")


_HARMLESS = ("size", "dim", "numel", "is_floating_point", "is_complex", "stride", "ndimension", "__len__",
             "get_device", "is_contiguous", "element_size", "data_ptr")  # fmt: skip
_METADATA = ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_sparse", "is_quantized",
             "is_nested", "is_meta", "is_mps", "itemsize", "nbytes", "is_cpu", "is_leaf", "is_mkldnn")  # fmt: skip


def _is_metadata(func: Any) -> bool:
    return getattr(getattr(func, "__self__", None), "__name__", "") in _METADATA


def _called(func: Any) -> str:
    return str(getattr(func, "__name__", ""))


def raw_of(value: Any) -> Any:
    return value.raw if isinstance(value, StandIn) else value


def _name(value: Any) -> str | None:
    return value.name_ if isinstance(value, StandIn) else None


def _by_itself(func: Any, args: Any, kwargs: Any) -> Any:
    """A function that no reader knows, run for every record by itself."""
    call = function_call(func, args, kwargs, _name)
    tape = next(leaf.tape for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, StandIn))
    return tape.use(call)


def _read_linear(func: Any, args: Any, kwargs: Any) -> Call:
    x, weight, bias = _arguments(("input", "weight", "bias"), args, kwargs, (None,))
    return Call("linear", x, weight, bias, lambda: F.linear(x, raw_of(weight), raw_of(bias)))


def _read_matmul(func: Any, args: Any, kwargs: Any) -> Call:
    x, weight = _arguments(("input", "other"), args, kwargs)
    if not isinstance(weight, StandIn) or weight.raw.ndim != 2 or x.ndim < 2:
        raise Unsupported("a product with a parameter that is not rows @ matrix")
    return Call("matmul", x, weight, None, lambda: x @ weight.raw)


def _read_embedding(func: Any, args: Any, kwargs: Any) -> Call:
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    x, weight, padding, max_norm, _, by_frequency, _ = _arguments(names, args, kwargs, (None, None, 2.0, False, False))
    if max_norm is not None or by_frequency:
        raise Unsupported("an embedding with max_norm or scale_grad_by_freq")
    height = weight.raw.shape[0]
    row = -1 if padding is None else int(padding) % height
    return Call("embedding", x, weight, None, lambda: F.embedding(x, weight.raw), row)


def _read_layer_norm(func: Any, args: Any, kwargs: Any) -> Call:
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    x, shape, weight, bias, eps = _arguments(names, args, kwargs, (None, None, 1e-5))
    more = (tuple(shape), eps)
    return Call("layer_norm", x, weight, bias, lambda: F.layer_norm(x, shape, raw_of(weight), raw_of(bias), eps), more)


def _read_group_norm(func: Any, args: Any, kwargs: Any) -> Call:
    names = ("input", "num_groups", "weight", "bias", "eps")
    x, groups, weight, bias, eps = _arguments(names, args, kwargs, (None, None, 1e-5))
    return Call(
        "group_norm", x, weight, bias, lambda: F.group_norm(x, groups, raw_of(weight), raw_of(bias), eps), (groups, eps)
    )


def _read_convolution(func: Any, args: Any, kwargs: Any) -> Call:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    x, weight, bias, stride, padding, dilation, groups = _arguments(names, args, kwargs, (None, 1, 0, 1, 1))
    axes = raw_of(weight).ndim - 2
    if x.ndim != axes + 2:
        raise Unsupported("a convolution of an input without records")
    stride, dilation = _each(stride, axes), _each(dilation, axes)
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, raw_of(weight).shape[2:], strict=True)]
        if any(t % 2 for t in total):
            x = F.pad(x, [side for t in reversed(total) for side in (t // 2, t - t // 2)])
            padding = 0
        else:
            padding = [t // 2 for t in total]
    window = Window(stride, _each(padding, axes), dilation, int(groups))
    return Call(
        "convolution", x, weight, bias, lambda: func(*tree_map(raw_of, args), **tree_map(raw_of, kwargs)), window
    )


def _read_elementwise(func: Any, args: Any, kwargs: Any) -> Call:
    mine = [value for value in args if isinstance(value, StandIn)]
    others = [value for value in args if isinstance(value, torch.Tensor) and not isinstance(value, StandIn)]
    in_place = (func.__name__.endswith("_") and not func.__name__.endswith("__")) or func.__name__.startswith("__i")
    if len(mine) != 1 or len(others) != 1 or (in_place and isinstance(args[0], StandIn)):
        raise Unsupported("arithmetic with a parameter and no activation")
    x, weight = others[0], mine[0]
    if weight.raw.ndim > x.ndim:
        raise Unsupported("arithmetic with a parameter of more axes than the activation")

    def again(value: torch.Tensor) -> Any:
        return func(*[value if a is weight else a for a in args], **kwargs)

    return Call("elementwise", x, weight, None, lambda: again(weight.raw), (again, tuple(x.shape)))


def _read_expand(func: Any, args: Any, kwargs: Any) -> Call:
    weight = args[0]
    sizes = args[1].shape if isinstance(args[1], torch.Tensor) else args[1:]
    sizes = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else tuple(sizes)
    shape = weight.raw.expand(sizes)
    return Call(
        "expand", shape, weight, None, lambda: weight.raw.expand(sizes), (lambda v: v.expand(sizes), shape.shape)
    )


def _arguments(names: Sequence[str], args: Any, kwargs: Any, defaults: Sequence[Any] = ()) -> list[Any]:
    values = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    values.update(zip(names, args, strict=False))
    values.update({("input" if key == "self" else key): value for key, value in kwargs.items()})
    if len(args) > len(names) or set(values) != set(names):
        raise Unsupported("an unusual form of call")
    return [values[name] for name in names]


def _each(value: Any, axes: int) -> tuple[int, ...]:
    return (int(value),) * axes if isinstance(value, int) else tuple(int(v) for v in value)


_READERS: dict[Any, Any] = {
    F.linear: _read_linear,
    F.embedding: _read_embedding,
    F.layer_norm: _read_layer_norm,
    F.group_norm: _read_group_norm,
    F.conv1d: _read_convolution,
    F.conv2d: _read_convolution,
}
_READERS_BY_NAME: dict[str, Any] = {
    **dict.fromkeys(("matmul", "__matmul__"), _read_matmul),
    **dict.fromkeys(
        (
            "add",
            "__add__",
            "__radd__",
            "add_",
            "__iadd__",
            "sub",
            "__sub__",
            "__rsub__",
            "mul",
            "__mul__",
            "__rmul__",
            "mul_",
            "__imul__",
            "div",
            "__truediv__",
            "true_divide",
        ),
        _read_elementwise,
    ),
    **dict.fromkeys(("expand", "expand_as"), _read_expand),
}
