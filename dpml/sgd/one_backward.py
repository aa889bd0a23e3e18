"""Per-example gradients of a whole batch from one ordinary backward pass that computes no weight gradient.

The parameters are swapped for stand-ins (``functional_call``) that see *every* use of a parameter, in a layer, in
``F.linear`` or in plain arithmetic.  A use that is known goes through a tap (:mod:`dpml.sgd.taps`); any other function
of activations and parameters is run for every record by itself (:mod:`dpml.sgd.one_function`).  What is neither ends
the attempt, and the caller falls back to running every record alone.  The user's module gets no hooks and no changes.

It takes "the loss' derivative in record i's activations" for "record i's own", which holds if and only if the model and
the loss treat records separately, and it must know along which axis the records lie.  Both are looked at on made-up
records first (:mod:`dpml.sgd.made_up`); no record of the data takes part in that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten

from dpml.sgd.calls import Call, StandIn, raw_of
from dpml.sgd.models import LossFunction
from dpml.sgd.one_function import FunctionCall, Layout, fits_vmap, layout_of, refuse_large, tapped, watched
from dpml.sgd.taps import (
    ConvTap,
    EmbeddingTap,
    GroupNormTap,
    LayerNormTap,
    LinearTap,
    Place,
    Site,
    SpreadTap,
)
from dpml.sgd.uses import PerExample, Unsupported, together

Tensors = dict[str, torch.Tensor]


# -- where the records lie --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Step:
    """One use as it was met on made-up records; ``place`` is None where the input does not depend on the batch.

    ``layout`` is that of a function which is run for every record by itself.
    """

    kind: str
    names: tuple[str | None, ...]
    place: Place | None
    layout: Layout | None = None


@dataclass(frozen=True)
class Recipe:
    """How a model uses its parameters: the uses in order, and the bytes that one record's activations take."""

    steps: tuple[Step, ...]
    counts: Mapping[str, int]
    bytes_per_record: float = 0.0

    @property
    def by_themselves(self) -> dict[str, tuple[str, ...]]:
        """The functions that are run for every record by itself, and the parameters concerned."""
        found: dict[str, dict[str, None]] = {}
        for step in self.steps:
            if step.layout is not None:
                found.setdefault(step.kind, {}).update(dict.fromkeys(str(name) for name in step.names))
        return {kind: tuple(names) for kind, names in found.items()}


@dataclass(frozen=True)
class Seen:
    """A use as one look saw it: the input's shape, or all shapes of a function's arguments and results."""

    kind: str
    names: tuple[str | None, ...]
    shape: tuple[int, ...]
    arguments: tuple[Any, ...] = ()
    results: tuple[Any, ...] = ()
    is_function: bool = False


class Look:
    """Records kinds, names and shapes."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def use(self, call: Call | FunctionCall) -> Any:
        if isinstance(call, FunctionCall):
            result, arguments, results = watched(call)
            self.seen.append(Seen(call.kind, call.names, (), arguments, results, True))
            return result
        self.seen.append(Seen(call.kind, call.names, tuple(call.x.shape) if call.x is not None else ()))
        return call.plain()


class Choice:
    """Looks once more at the functions that are run for every record by itself: by ``vmap`` or in a loop?"""

    def __init__(self, steps: Sequence[Step], records: int) -> None:
        self.steps, self.records = list(steps), records
        self._next = 0

    def use(self, call: Call | FunctionCall) -> Any:
        if self._next >= len(self.steps):
            raise Unsupported("a forward pass that is another each time")
        step = self.steps[self._next]
        if isinstance(call, FunctionCall) and step.layout is not None:
            layout = replace(step.layout, vmapped=fits_vmap(call, step.layout, self.records))
            self.steps[self._next] = replace(step, layout=layout)
        self._next += 1
        return call.plain()


def repeated(steps: Sequence[Step], trained: Tensors) -> list[torch.Tensor]:
    """The parameters that are repeated for every record, once for each use by such a function."""
    return [trained[name] for step in steps if step.layout is not None for name in step.names if name is not None]


def chosen(batches: Batches, three: Any, steps: Sequence[Step]) -> list[Step]:
    """``steps`` with the way in which functions are run for every record by itself.

    Raises:
        Unsupported: their parameters are too large for that.
    """
    sizes = [value.numel() for value in repeated(steps, batches.trained)]
    if not sizes:
        return list(steps)
    refuse_large(sizes, next(iter(batches.trained.values())).device.type)
    choice = Choice(steps, 3)
    with torch.no_grad():
        batches.losses(three, choice)
    return choice.steps


def step_of(first: Seen, second: Seen) -> Step:
    """One use from what looks at 2 and at 3 records saw of it.

    Raises:
        Unsupported: it is another use, or the records are not along one axis.
    """
    if (first.kind, first.names, first.is_function) != (second.kind, second.names, second.is_function) or (
        [len(first.shape), len(first.arguments), len(first.results)]
        != [len(second.shape), len(second.arguments), len(second.results)]
    ):
        raise Unsupported("a forward pass that depends on the number of records")
    if first.is_function:
        shapes = [(seen.arguments, seen.results) for seen in (first, second)]
        return Step(first.kind, first.names, None, layout_of(first.kind, *shapes))
    return Step(first.kind, first.names, place_of(first.shape, second.shape, first.kind))


def place_of(first: tuple[int, ...], second: tuple[int, ...], kind: str) -> Place | None:
    """The axis that grew from 2 to 3 records."""
    grown = [axis for axis, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    if not grown and kind == "embedding" and len(first) in (1, 2) and (len(first) == 1 or first[0] == 1):
        return None
    if len(grown) != 1:
        raise Unsupported(f"{kind} of an input in which the records are not along one axis")
    axis = grown[0]
    repeat = second[axis] - first[axis]
    if (first[axis], second[axis]) != (2 * repeat, 3 * repeat):
        raise Unsupported(f"{kind} of an input whose size is not a multiple of the number of records")
    feature_axes = {"linear": 1, "matmul": 1}.get(kind, 0)
    if axis >= len(first) - feature_axes or (kind in ("convolution", "group_norm") and axis != 0):
        raise Unsupported(f"{kind} over the records' axis")
    return Place(axis, repeat)


# -- running ----------------------------------------------------------------------------------------------------------
class _Run:
    """One forward and backward pass of a batch by a recipe."""

    def __init__(self, recipe: Recipe, records: int, device: torch.device) -> None:
        self.recipe, self.records = recipe, records
        self.token = torch.zeros((), device=device, requires_grad=True)
        self.found: dict[str, list[PerExample]] = {}
        self._next = 0

    def hand(self, name: str, gradient: PerExample) -> None:
        self.found.setdefault(name, []).append(gradient)

    def use(self, call: Call | FunctionCall) -> Any:
        if self._next >= len(self.recipe.steps):
            raise Unsupported("more uses of parameters than on made-up records")
        step = self.recipe.steps[self._next]
        self._next += 1
        by_itself = isinstance(call, FunctionCall)
        if (call.kind, call.names, by_itself) != (step.kind, step.names, step.layout is not None):
            raise Unsupported("other uses of parameters than on made-up records")
        if isinstance(call, FunctionCall):
            assert step.layout is not None
            return tapped(call, step.layout, self.records, self.token, self.hand)
        assert call.x is not None
        if step.place is not None and call.x.shape[step.place.axis] != step.place.repeat * self.records:
            raise Unsupported("another number of records than the batch has")
        weight, bias = step.names
        alone = self.recipe.counts.get(weight or bias or "", 0) == 1
        site = Site(step.place or Place(0, 1), self.records, weight, bias, alone, self.hand)
        return _TAPS[call.kind](call, site, self.token, step.place is None)


def _tap_linear(call: Call, site: Site, token: torch.Tensor, independent: bool) -> Any:
    return LinearTap.apply(call.x, token, raw_of(call.weight), raw_of(call.bias), False, site)


def _tap_matmul(call: Call, site: Site, token: torch.Tensor, independent: bool) -> Any:
    return LinearTap.apply(call.x, token, raw_of(call.weight), None, True, site)


def _tap_embedding(call: Call, site: Site, token: torch.Tensor, independent: bool) -> Any:
    tokens = call.x
    assert tokens is not None
    if independent:  # positions: the same row for every record
        tokens = tokens.reshape(1, -1).expand(site.records, tokens.numel())
    return EmbeddingTap.apply(token, tokens, raw_of(call.weight), call.more, site)


def _tap_layer_norm(call: Call, site: Site, token: torch.Tensor, independent: bool) -> Any:
    shape, eps = call.more
    if site.place.axis >= (0 if call.x is None else call.x.ndim) - len(shape):
        raise Unsupported("layer_norm over the records' axis")
    return LayerNormTap.apply(call.x, token, shape, raw_of(call.weight), raw_of(call.bias), eps, site)


def _tap_group_norm(call: Call, site: Site, token: torch.Tensor, independent: bool) -> Any:
    groups, eps = call.more
    return GroupNormTap.apply(call.x, token, groups, raw_of(call.weight), raw_of(call.bias), eps, site)


def _tap_convolution(call: Call, site: Site, token: torch.Tensor, independent: bool) -> Any:
    return ConvTap.apply(call.x, token, raw_of(call.weight), raw_of(call.bias), call.more, site)


def _tap_spread(call: Call, site: Site, token: torch.Tensor, independent: bool) -> Any:
    again, shape = call.more
    value = raw_of(call.weight)
    offset = len(shape) - value.ndim
    if site.place.axis >= offset and value.shape[site.place.axis - offset] != 1:
        raise Unsupported("a parameter with an axis for the records")
    return again(SpreadTap.apply(token, value, shape, site))


_TAPS: dict[str, Any] = {
    "linear": _tap_linear,
    "matmul": _tap_matmul,
    "embedding": _tap_embedding,
    "layer_norm": _tap_layer_norm,
    "group_norm": _tap_group_norm,
    "convolution": _tap_convolution,
    "elementwise": _tap_spread,
    "expand": _tap_spread,
}


class _Whole(nn.Module):
    """Model and loss in one module, so that ``functional_call`` can swap tensors under ``loss_fn(model, batch)``."""

    def __init__(self, model: nn.Module, loss_fn: LossFunction) -> None:
        super().__init__()
        self.model = model
        self._loss_fn = loss_fn
        self.training = model.training

    def forward(self, batch: Any, backward: Callable[[torch.Tensor], None] | None = None) -> torch.Tensor:
        """Losses; ``backward`` runs while the tensors are swapped, for a checkpointed layer runs forward in it."""
        losses = self._loss_fn(self.model, batch)
        if backward is not None:
            backward(losses)
        return losses


class Batches:
    """A model and its loss, ready for :meth:`gradients`: names and tensors are gathered once."""

    def __init__(self, model: nn.Module, loss_fn: LossFunction, parameters: Tensors | None = None) -> None:
        self.whole = _Whole(model, loss_fn)
        given = parameters or {}
        self.trained = {name: given.get(name, p).detach() for name, p in model.named_parameters() if p.requires_grad}
        self.frozen = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
        self.buffers = dict(model.named_buffers())

    def losses(self, batch: Any, tape: Any, backward: Callable[[torch.Tensor], None] | None = None) -> torch.Tensor:
        """Losses ``(B,)`` with every use of a trained parameter going through ``tape``."""
        state: dict[str, torch.Tensor] = {
            f"model.{name}": StandIn.of(value, name, tape) for name, value in self.trained.items()
        }
        state.update({f"model.{name}": value for name, value in self.frozen.items()})
        state.update({f"model.{name}": value.detach().clone() for name, value in self.buffers.items()})
        losses: torch.Tensor = functional_call(self.whole, state, (batch, backward))
        return losses

    def plain_losses(self, batch: Any) -> torch.Tensor:
        """Losses ``(B,)`` without a tape."""
        state = {f"model.{name}": value for name, value in (self.trained | self.frozen).items()}
        state.update({f"model.{name}": value.detach().clone() for name, value in self.buffers.items()})
        losses: torch.Tensor = functional_call(self.whole, state, (batch,))
        return losses

    def gradients(self, batch: Any, records: int, recipe: Recipe) -> tuple[dict[str, PerExample], torch.Tensor]:
        """The per-example gradients by name (those that the loss does not reach are absent), and the losses."""
        run = _Run(recipe, records, next(iter(self.trained.values())).device)

        def backward(losses: torch.Tensor) -> None:
            if losses.shape != (records,):
                raise Unsupported("a loss that is not one number a record")
            if losses.requires_grad:
                with torch.autocast(losses.device.type, enabled=False):
                    torch.autograd.grad(losses, run.token, torch.ones_like(losses), allow_unused=True)

        with torch.enable_grad():
            losses = self.losses(batch, run, backward)
        return {
            name: together(uses, records, self.trained[name].numel()) for name, uses in run.found.items()
        }, losses.detach()


def same_shapes(batch: Any) -> tuple[Any, ...]:
    """What of a batch a recipe depends on: shapes of one record and types."""
    leaves, tree = tree_flatten(batch)
    return (str(tree), *((tuple(leaf.shape[1:]), leaf.dtype, str(leaf.device)) for leaf in leaves))
