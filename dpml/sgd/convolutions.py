"""Per-example gradients of a convolution's filters: gᵢ = Σ_t b_{i,t} a_{i,t}ᵀ over the positions t of the output.

a are the patches of the input that the filters see, ``(T, I)`` for one record, b the loss' derivative in the output,
``(O, T)``.  Small gradients are built and kept.  Larger ones are kept in the Gram form, or built block by block after
the backward pass, once for the norms and again for the sum; the first records' are kept in between
(:data:`KEPT_VALUES`).

Copying the patches takes longer than the products if it reads single values.  Its innermost loop runs along a row of
positions, whose values lie side by side for a stride of 1.  For any other stride it runs along a row of the filter with
the channels last, and the entries of a filter come in that order (``channels_last``) until the sum has been taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F

from dpml.sgd.uses import (
    Built,
    Outer,
    PerExample,
    build_is_cheaper,
    in_runs,
    row_norms,
    zeroed,
)

AT_ONCE = 2**21  # values of gradients that are built on the way back, while activations are held, too
KEPT_VALUES = 2**22  # values of built gradients that one convolution may hold later on
BLOCK_VALUES = 2**19  # values of a temporary that is made block by block: two mebibytes


@dataclass(frozen=True)
class Window:
    """Stride, padding and dilation per axis, and groups, of a convolution."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def channels_last(self) -> bool:
        """Are the entries of a patch ``(*kernel, C)``, not ``(C, *kernel)``?"""
        return self.stride[-1] > 1


def filters(values: torch.Tensor, shape: torch.Size, window: Window) -> torch.Tensor:
    """``(…, O·I)`` with a patch's order of entries as filters ``(…, *shape)``."""
    if not window.channels_last:
        return values.reshape(*values.shape[:-1], *shape)
    return values.reshape(*values.shape[:-1], shape[0], *shape[2:], shape[1]).movedim(-1, 1 - len(shape))


@dataclass(frozen=True)
class Shaped:
    """Gradients kept as ``(O, I)``, or flat, with the entries of a filter in a patch's order."""

    matrix: PerExample
    shape: torch.Size
    window: Window

    def squared_norms(self) -> torch.Tensor:
        return self.matrix.squared_norms()

    def weighted_sum(self, factors: torch.Tensor) -> torch.Tensor:
        return filters(self.matrix.weighted_sum(factors).flatten(), self.shape, self.window)

    def built(self, records: slice) -> torch.Tensor:
        return filters(self.matrix.built(records).flatten(1), self.shape, self.window)

    def without(self, keep: torch.Tensor) -> PerExample:
        return Shaped(self.matrix.without(keep), self.shape, self.window)


@dataclass(frozen=True)
class Convolved:
    """gᵢ of a convolution too large to keep for every record: built block by block, for the norms and for the sum."""

    x: torch.Tensor
    b: torch.Tensor
    shape: torch.Size
    window: Window
    records: int

    @cached_property
    def _first(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Norms ``(B,)`` float64, and the first records' gradients, which are kept as they were built for them."""
        size = math.prod(self.shape)
        kept = self.b.new_empty((min(self.records, KEPT_VALUES // size), size))
        norms = [row_norms(self._build(part, space)) for part, space in self._parts(kept)]
        return torch.cat(norms), kept

    def _parts(self, kept: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Parts of the records, and where their gradients ``(b, O·I)`` go: to ``kept``, or where the last ones were."""
        step = max(1, BLOCK_VALUES // math.prod(self.shape))
        for start in range(0, len(kept), step):
            part = slice(start, min(start + step, len(kept)))
            yield part, kept[part]
        rest = self.b.new_empty((min(step, self.records - len(kept)), math.prod(self.shape)))
        for start in range(len(kept), self.records, step):
            part = slice(start, min(start + step, self.records))
            yield part, rest[: part.stop - start]

    def _build(self, records: slice, space: torch.Tensor) -> torch.Tensor:
        repeat = self.b.shape[0] // self.records
        part = slice(records.start * repeat, records.stop * repeat)
        return _build(self.x[part], self.b[part], self.shape, self.window, space)

    def squared_norms(self) -> torch.Tensor:
        return self._first[0].square()

    def weighted_sum(self, factors: torch.Tensor) -> torch.Tensor:
        total = factors.new_zeros(math.prod(self.shape), dtype=torch.float64)
        kept = self._first[1]
        for part, space in self._parts(kept):  # the gradients whose norms were taken: positions that cancel have met
            total += in_runs(factors[part], space if part.stop <= len(kept) else self._build(part, space))
        return filters(total, self.shape, self.window)

    def built(self, records: slice) -> torch.Tensor:
        first, last, _ = records.indices(self.records)
        space = self.b.new_empty((last - first, math.prod(self.shape)))
        return filters(self._build(slice(first, last), space), self.shape, self.window)

    def without(self, keep: torch.Tensor) -> PerExample:
        each = keep.repeat_interleave(self.b.shape[0] // self.records)
        return Convolved(zeroed(self.x, each), zeroed(self.b, each), self.shape, self.window, self.records)


def convolution_gradient(
    x: torch.Tensor, b: torch.Tensor, shape: torch.Size, window: Window, records: int, alone: bool
) -> PerExample:
    """The form in which a convolution's per-example gradients are kept.

    Args:
        x: input ``(N, C, …)``, N a multiple of ``records``: each has as many consecutive entries.
        b: the loss' derivative in the output, ``(N, O, …)``.
        shape: of the filters, ``(O, C / groups, *kernel)``.
        window: stride, padding, dilation and groups.
        records: B.
        alone: the parameter's only use.
    """
    size, positions = math.prod(shape), b[0, 0].numel() * (b.shape[0] // records)
    inputs = size // shape[0]
    if records * size <= AT_ONCE:
        each = Built(_build(x, b, shape, window, b.new_empty((records, size))))
        return Shaped(each, shape, window) if window.channels_last else Built(each.values.reshape(records, *shape))
    if window.groups == 1 and alone and not build_is_cheaper(1, positions, inputs, shape[0]):
        a = patches(x, shape, window).reshape(records, -1, inputs)
        rows = b.flatten(2).transpose(1, 2).reshape(records, -1, shape[0])
        return Shaped(Outer(a, rows), shape, window)
    return Convolved(x, b, shape, window, records)


def patches(x: torch.Tensor, shape: torch.Size, window: Window) -> torch.Tensor:
    """The patches that the filters see, ``(N, groups, T, I)`` with I = entries of one filter."""
    groups, channels, kernel = window.groups, shape[1], shape[2:]
    sides = [side for width in reversed(window.padding) for side in (width, width)]
    if window.channels_last:
        x, sides = x.movedim(1, -1), [0, 0, *sides]
    x = (F.pad(x, sides) if any(sides) else x).contiguous()
    if window.channels_last:
        x = x.movedim(-1, 1)
    reach = [d * (k - 1) + 1 for d, k in zip(window.dilation, kernel, strict=True)]
    outputs = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, window.stride, strict=True)]
    record, channel, *steps = x.stride()
    at = [s * step for s, step in zip(window.stride, steps, strict=True)]
    within = [d * step for d, step in zip(window.dilation, steps, strict=True)]
    shapes, strides = (len(x), groups), (record, channels * channel)
    if window.channels_last:
        view = x.as_strided((*shapes, *outputs, *kernel, channels), (*strides, *at, *within, channel))
        return view.reshape(*shapes, math.prod(outputs), -1)
    view = x.as_strided((*shapes, channels, *kernel, *outputs), (*strides, channel, *within, *at))
    return view.reshape(*shapes, channels * math.prod(kernel), -1).transpose(2, 3)


def _build(x: torch.Tensor, b: torch.Tensor, shape: torch.Size, window: Window, space: torch.Tensor) -> torch.Tensor:
    """The gradients ``(B, O·I)`` of all records, written to ``space``; the patches are made for a block at a time."""
    records = len(space)
    repeat = b.shape[0] // records if records else 1
    groups, outputs, positions = window.groups, shape[0] // window.groups, math.prod(b.shape[2:])
    inputs = math.prod(shape[1:])
    step = max(1, BLOCK_VALUES // max(1, repeat * groups * inputs * positions))
    for start in range(0, records, step):
        part = slice(start * repeat, (start + step) * repeat)
        factors = b[part].reshape(-1, outputs, positions), patches(x[part], shape, window).flatten(0, 1)
        to = space[start : start + step]
        if repeat == 1:
            torch.bmm(*factors, out=to.view(-1, outputs, inputs))
        else:
            torch.sum(torch.bmm(*factors).reshape(len(to), repeat, -1), 1, out=to)
    return space
