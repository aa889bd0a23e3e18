"""One function of activations and parameters that no tap knows, run for every record with parameters of its own.

Only that function is run so; the rest of the network keeps its one backward pass.  The parameters are repeated along an
axis of records, ``(B, *shape)``, and the function runs under ``vmap`` over it, or in a loop where ``vmap`` has no rule.
Autograd then finds the derivative in every repeated parameter, which is the record's own gradient: a function run for
one record at a time cannot mix records.  It holds B values for every entry of the parameters concerned.

Where the records lie in each argument and result is seen on batches of 2 and of 3 made-up records.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from dpml.sgd.taps import Hand, Place, Site, SpreadTap
from dpml.sgd.uses import Unsupported

MIXES = ("batch_norm",)  # parts of the names of functions that treat records together
MOST_VALUES = {"cpu": 2**22, "cuda": 2**26}  # of the parameters of all such functions: more are too many for one record


@dataclass(frozen=True)
class FunctionCall:
    """A function's call: its arguments as leaves (parameters raw), and which of them are trained."""

    kind: str
    run: Callable[[Sequence[Any]], Any]
    leaves: tuple[Any, ...]
    trained: Mapping[int, str]

    @property
    def names(self) -> tuple[str | None, ...]:
        return tuple(self.trained.values())

    def plain(self) -> Any:
        return self.run(self.leaves)


@dataclass(frozen=True)
class Layout:
    """Where the records are in each argument (None: not in this one) and in each result."""

    inputs: tuple[Place | None, ...]
    outputs: tuple[Place, ...]
    vmapped: bool = True


def function_call(func: Any, args: Any, kwargs: Any, name_of: Callable[[Any], str | None]) -> FunctionCall:
    """The call as it may be run for every record.

    Args:
        name_of: a leaf's name if it stands in for a trained parameter (``.raw`` is then its value).

    Raises:
        Unsupported: it writes into something, draws from a generator of its own, mixes records by its name, is of
            parameters only, or is of a packed sequence.
    """
    name = str(getattr(func, "__name__", func)).partition(".")[0]
    writes = (name.endswith("_") and not name.endswith("__")) or name.startswith(("__i", "__set", "__del"))
    given = {key for key in ("out", "generator") if kwargs.get(key) is not None}
    leaves, tree = tree_flatten((args, kwargs))
    if writes or given or any(part in name for part in MIXES) or any(isinstance(v, torch.Generator) for v in leaves):
        raise Unsupported(f"{name} of a parameter")
    trained = {i: found for i, leaf in enumerate(leaves) if (found := name_of(leaf)) is not None}
    if not trained or not any(isinstance(leaf, torch.Tensor) and i not in trained for i, leaf in enumerate(leaves)):
        raise Unsupported(f"{name} of a parameter")
    if name in ("lstm", "gru", "rnn_tanh", "rnn_relu") and _is_packed(args):
        raise Unsupported(f"{name} of a packed sequence")

    def run(values: Sequence[Any]) -> Any:
        again, named = tree_unflatten(list(values), tree)
        return func(*again, **named)

    return FunctionCall(name, run, tuple(leaf.raw if i in trained else leaf for i, leaf in enumerate(leaves)), trained)


def _is_packed(args: Any) -> bool:
    """Whether the second argument counts the records that are left at each position."""
    return len(args) > 1 and isinstance(args[1], torch.Tensor) and not args[1].is_floating_point()


# -- a look at made-up records ----------------------------------------------------------------------------------------
def watched(call: FunctionCall) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """The result, and the shapes of arguments and results (anything else as it is)."""
    tensors = [leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)]
    before = [t._version for t in tensors]
    result = call.plain()
    if [t._version for t in tensors] != before:
        raise Unsupported(f"{call.kind}, which writes into its arguments")
    outputs = tree_flatten(result)[0]
    if not all(isinstance(leaf, torch.Tensor) or leaf is None for leaf in outputs):
        raise Unsupported(f"{call.kind} of a parameter, whose result is no tensor")
    return result, tuple(map(_shape, call.leaves)), tuple(map(_shape, outputs))


def _shape(leaf: Any) -> Any:
    return leaf.shape if isinstance(leaf, torch.Tensor) else leaf


def layout_of(kind: str, first: Sequence[Any], second: Sequence[Any]) -> Layout:
    """``first`` and ``second``: (arguments, results) as from :func:`watched`, of 2 and of 3 records."""
    inputs = [_place(kind, one, two) for one, two in zip(first[0], second[0], strict=True)]
    outputs = [_place(kind, one, two) for one, two in zip(first[1], second[1], strict=True) if one is not None]
    if all(place is None for place in inputs):
        raise Unsupported(f"{kind} of a parameter and nothing of a record")
    if not outputs or any(place is None for place in outputs):
        raise Unsupported(f"{kind} with a result in which the records are not along one axis")
    return Layout(tuple(inputs), tuple(place for place in outputs if place is not None))


def _place(kind: str, first: Any, second: Any) -> Place | None:
    """The axis that grew from 2 to 3 records; None where nothing did."""
    if not isinstance(first, torch.Size) or not isinstance(second, torch.Size):
        if type(first) is not type(second) or first != second:
            raise Unsupported(f"{kind} with an argument that depends on the number of records")
        return None
    if len(first) != len(second):
        raise Unsupported(f"{kind} with an argument that depends on the number of records")
    grown = [axis for axis, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    if not grown:
        return None
    repeat = second[grown[0]] - first[grown[0]]
    if len(grown) > 1 or (first[grown[0]], second[grown[0]]) != (2 * repeat, 3 * repeat):
        raise Unsupported(f"{kind} of an argument or with a result in which the records are not along one axis")
    return Place(grown[0], repeat)


def fits_vmap(call: FunctionCall, layout: Layout, records: int) -> bool:
    """Whether ``vmap`` knows the function and its derivative without looping over records itself."""
    leaves = [
        leaf.detach().requires_grad_(leaf.is_floating_point()) if isinstance(leaf, torch.Tensor) else leaf
        for leaf in call.leaves
    ]
    for i in call.trained:
        leaves[i] = leaves[i].detach().expand(records, *leaves[i].shape).requires_grad_()
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.filterwarnings("error", message="There is a performance drop")
            results = tree_flatten(_each(call, layout, leaves, records))[0]
            total = sum(t.double().sum() for t in results if isinstance(t, torch.Tensor) and t.requires_grad)
            if isinstance(total, torch.Tensor):
                torch.autograd.grad(total, [leaves[i] for i in call.trained], allow_unused=True)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError, ValueError, TypeError, UserWarning):
        return False
    return True


def refuse_large(sizes: Sequence[int], device_type: str) -> None:
    """Raises Unsupported where one record's gradients would be so large that little is gained, and memory lost."""
    if sum(sizes) > MOST_VALUES.get(device_type, MOST_VALUES["cuda"]):
        raise Unsupported("functions, run for every record by itself, with too many parameters")


# -- running ----------------------------------------------------------------------------------------------------------
def tapped(call: FunctionCall, layout: Layout, records: int, token: torch.Tensor, hand: Hand) -> Any:
    """The function's result; on the way back every record's gradient is handed over as ``(B, *shape)``."""
    if len(call.leaves) != len(layout.inputs):
        raise Unsupported(f"{call.kind} with other arguments than on made-up records")
    for leaf, place in zip(call.leaves, layout.inputs, strict=True):
        if place is not None and (
            not isinstance(leaf, torch.Tensor) or leaf.ndim <= place.axis or _count(leaf, place) != records
        ):
            raise Unsupported("another number of records than the batch has")
    leaves = list(call.leaves)
    for i, name in call.trained.items():
        site = Site(Place(0, 1), records, name, None, False, hand)
        leaves[i] = SpreadTap.apply(token, leaves[i], (records, *leaves[i].shape), site)
    return _each(call, layout, leaves, records)


def _count(leaf: torch.Tensor, place: Place) -> float:
    return leaf.shape[place.axis] / place.repeat


def _each(call: FunctionCall, layout: Layout, leaves: Sequence[Any], records: int) -> Any:
    """The function of every record; ``leaves`` with the parameters repeated, ``(B, *shape)``."""
    index = [i for i, place in enumerate(layout.inputs) if place is not None or i in call.trained]
    form: list[Any] = []

    def one(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mine = list(leaves)
        for i, value in zip(index, values, strict=True):
            place = layout.inputs[i]
            mine[i] = value if place is None else value.movedim(0, place.axis)
        flat, tree = tree_flatten(call.run(mine))
        results = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
        form[:] = [tree, [isinstance(leaf, torch.Tensor) for leaf in flat]]
        if len(results) != len(layout.outputs):
            raise Unsupported(f"{call.kind} with other results than on made-up records")
        for result, place in zip(results, layout.outputs, strict=True):
            if result.ndim <= place.axis or result.shape[place.axis] != place.repeat:
                raise Unsupported(f"{call.kind} of one record, which has another result than of several")
        return tuple(r.movedim(place.axis, 0) for r, place in zip(results, layout.outputs, strict=True))

    apart = [_apart(leaves[i], layout.inputs[i], records) for i in index]
    if layout.vmapped:
        stacked: Sequence[torch.Tensor] = vmap(one, randomness="different")(*apart)
    else:
        rows = [one(*values) for values in zip(*(values.unbind(0) for values in apart), strict=True)]
        stacked = [torch.stack(column) for column in zip(*rows, strict=True)]
    joined = iter(
        values.flatten(0, 1).movedim(0, place.axis) for values, place in zip(stacked, layout.outputs, strict=True)
    )
    return tree_unflatten([next(joined) if is_tensor else None for is_tensor in form[1]], form[0])


def _apart(values: torch.Tensor, place: Place | None, records: int) -> torch.Tensor:
    """``(B, repeat, …)``: the records in front, a record's own entries behind; a parameter is ``(B, *shape)``."""
    if place is None:
        return values
    return values.movedim(place.axis, 0).unflatten(0, (records, place.repeat))
