"""Autograd functions that compute a layer as torch does and, on the way back, hand over (input, output gradient).

Each takes the *raw* parameter (which needs no gradient), a ``token`` that does need one, so that autograd visits the
layer, and a ``hand`` that receives the per-example gradients.  The gradient of the weights themselves is never
computed.  ``place`` says where the records lie in the layer's input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from dpml.sgd.convolutions import Window, convolution_gradient
from dpml.sgd.uses import (
    Built,
    PerExample,
    outer,
    table_rows,
)

Hand = Callable[[str, PerExample], None]


@dataclass(frozen=True)
class Place:
    """Where the records are: along ``axis``, each with ``repeat`` consecutive entries."""

    axis: int
    repeat: int

    def first(self, values: torch.Tensor, records: int, keep: int) -> torch.Tensor:
        """``(records, T, *last keep axes)``: the records in front, everything between them and the last axes as T."""
        moved = values.movedim(self.axis, 0) if self.axis else values
        return moved.reshape(records, -1, *moved.shape[moved.ndim - keep :])


@dataclass(frozen=True)
class Site:
    """One use of parameters in one forward pass."""

    place: Place
    records: int
    weight: str | None
    bias: str | None
    alone: bool
    hand: Hand


def wide(values: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """``values`` in at least float32 (norms in half precision over- and underflow), or in the type of ``like``."""
    if like is not None:
        return values.to(like.dtype)
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _saved(ctx: Any) -> list[Any]:
    """The saved tensors without their history: what is made of them must not keep the graph."""
    return [None if t is None else t.detach() for t in ctx.saved_tensors]


def _added(values: torch.Tensor) -> torch.Tensor:
    """The sum over axis 1; no copy where there is one entry."""
    return values[:, 0] if values.shape[1] == 1 else values.sum(1)


class LinearTap(torch.autograd.Function):
    """y = x Wᵀ + c with records somewhere among the leading axes of x."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        token: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        transposed: bool,
        site: Site,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.site, ctx.transposed = site, transposed
        y = x @ weight if transposed else F.linear(x, weight, bias)
        # autograd forbids writing into a view that a function of ours returns (nn.ReLU(inplace=True) behind it)
        return torch.ops.aten._unsafe_view.default(y, y.shape) if y._is_view() else y

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        (b,), (x, weight), site = outputs, _saved(ctx), ctx.site
        b = wide(b, weight)
        rows = wide(site.place.first(b, site.records, 1))
        bias = Built(_added(rows)) if site.bias is not None else None
        if site.weight is not None:
            a = site.place.first(x, site.records, 1).to(rows.dtype)
            left, right = (rows, a) if ctx.transposed else (a, rows)
            site.hand(site.weight, outer(left, right, alone=site.alone, bias=bias))
        if site.bias is not None and bias is not None:
            site.hand(site.bias, bias)
        back = None
        if ctx.needs_input_grad[0]:
            back = b @ (weight.T if ctx.transposed else weight)
        return back, None, None, None, None, None


class EmbeddingTap(torch.autograd.Function):
    """Rows of a table; ``padding`` is the row that gets no gradient, or -1."""

    @staticmethod
    def forward(
        ctx: Any, token: torch.Tensor, tokens: torch.Tensor, weight: torch.Tensor, padding: int, site: Site
    ) -> torch.Tensor:
        ctx.save_for_backward(tokens)
        ctx.site, ctx.height, ctx.padding = site, weight.shape[0], padding
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        (b,), (tokens,), site = outputs, _saved(ctx), ctx.site
        rows = wide(site.place.first(b, site.records, 1))
        index = site.place.first(tokens, site.records, 0)
        if ctx.padding >= 0:
            rows = torch.where((index == ctx.padding)[..., None], torch.zeros((), dtype=rows.dtype), rows)
        site.hand(site.weight, table_rows(index, rows, ctx.height))
        return None, None, None, None, None


class SpreadTap(torch.autograd.Function):
    """A parameter repeated along the records' axis (``shape`` has as many axes as what it is combined with)."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, value: torch.Tensor, shape: Sequence[int], site: Site) -> torch.Tensor:
        ctx.site, ctx.shape = site, value.shape
        full = value.reshape([1] * (len(shape) - value.ndim) + list(value.shape))
        sizes = list(full.shape)
        sizes[site.place.axis] = shape[site.place.axis]
        return full.expand(sizes)

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        (b,), site = outputs, ctx.site
        rows = wide(b.movedim(site.place.axis, 0).reshape(site.records, -1, *ctx.shape))
        site.hand(site.weight, Built(_added(rows)))
        return None, None, None, None


class LayerNormTap(torch.autograd.Function):
    """Layer normalisation over the last axes, with weight and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        token: torch.Tensor,
        shape: Sequence[int],
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        site: Site,
    ) -> torch.Tensor:
        if weight is not None and x.dtype != weight.dtype:  # autocast
            x = x.to(weight.dtype)
        y, mean, scale = torch.native_layer_norm(x, list(shape), weight, bias, eps)
        ctx.save_for_backward(x, mean, scale, weight, bias)
        ctx.site, ctx.normalised = site, list(shape)
        return y

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        (b,), site, (x, mean, scale, weight, bias) = outputs, ctx.site, _saved(ctx)
        axes = len(ctx.normalised)
        rows = wide(site.place.first(b, site.records, axes))
        if site.weight is not None:
            normal = wide(site.place.first((x - mean) * scale, site.records, axes))
            site.hand(site.weight, Built(_added(rows * normal)))
        if site.bias is not None:
            site.hand(site.bias, Built(_added(rows)))
        back = None
        if ctx.needs_input_grad[0]:
            back = torch.ops.aten.native_layer_norm_backward(
                b.contiguous(), x, ctx.normalised, mean, scale, weight, bias, [True, False, False]
            )[0]
        return back, None, None, None, None, None, None


class GroupNormTap(torch.autograd.Function):
    """Group normalisation of ``(N, C, …)``, with weight and bias per channel."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        token: torch.Tensor,
        groups: int,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        site: Site,
    ) -> torch.Tensor:
        x = x.contiguous()
        if weight is not None and x.dtype != weight.dtype:  # autocast
            x = x.to(weight.dtype)
        n, channels, size = x.shape[0], x.shape[1], math.prod(x.shape[2:])
        y, mean, scale = torch.native_group_norm(x, weight, bias, n, channels, size, groups, eps)
        ctx.save_for_backward(x, mean, scale, weight)
        ctx.site, ctx.sizes = site, (n, channels, size, groups)
        return y

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        (b,), site, (x, mean, scale, weight) = outputs, ctx.site, _saved(ctx)
        n, channels, size, groups = ctx.sizes
        b = b.contiguous()
        rows = wide(b.reshape(n, channels, size))
        if site.weight is not None:
            grouped = x.reshape(n, groups, -1)
            normal = ((grouped - mean[..., None]) * scale[..., None]).reshape(n, channels, size)
            each = (rows * normal).sum(2)
            site.hand(site.weight, Built(_added(each.reshape(site.records, -1, channels))))
        if site.bias is not None:
            site.hand(site.bias, Built(_added(rows.sum(2).reshape(site.records, -1, channels))))
        back = None
        if ctx.needs_input_grad[0]:
            back = torch.ops.aten.native_group_norm_backward(
                b, x, mean, scale, weight, n, channels, size, groups, [True, False, False]
            )[0]
        return back, None, None, None, None, None, None


class ConvTap(torch.autograd.Function):
    """A convolution of ``(N, C, L)`` or ``(N, C, H, W)``."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        token: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        window: Window,
        site: Site,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.site, ctx.window = site, window
        return _convolution(x, weight, bias, window)

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        (b,), (x, weight), site, window = outputs, _saved(ctx), ctx.site, ctx.window
        b, x = wide(b, weight).contiguous(), wide(x, weight)
        if site.weight is not None:
            shape = weight.shape
            gradient = convolution_gradient(wide(x), wide(b), shape, window, site.records, site.alone)
            site.hand(site.weight, gradient)
        if site.bias is not None:
            each = wide(b).flatten(2).sum(2)
            site.hand(site.bias, Built(_added(each.reshape(site.records, -1, each.shape[1]))))
        back = None
        if ctx.needs_input_grad[0]:
            back = _convolution_backward(b, x, weight, window, [True, False, False])[0]
        return back, None, None, None, None, None


def _convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, window: Window) -> torch.Tensor:
    function = F.conv1d if weight.ndim == 3 else F.conv2d
    return function(x, weight, bias, window.stride, window.padding, window.dilation, window.groups)


def _convolution_backward(
    b: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, window: Window, mask: list[bool]
) -> Any:
    none = [0] * len(window.stride)
    return torch.ops.aten.convolution_backward(
        b, x, weight, None, window.stride, window.padding, window.dilation, False, none, window.groups, mask
    )
