"""Per-example gradients of one parameter, kept in whatever form is cheap: their norms, and their weighted sum.

A backward pass that stops at the outputs of the layers leaves, for every use of a parameter, the layer's input a and
the loss' derivative b in its output.  Both are per record, and so is the gradient that they stand for:

    linear, convolution (patches as rows)   gᵢ = Σ_t b_{i,t} a_{i,t}ᵀ
    embedding                                gᵢ = Σ_t e_{token(i,t)} b_{i,t}ᵀ
    bias, scale, anything elementwise        gᵢ = Σ_t b_{i,t} (times what it was multiplied with)

The squared norms ‖gᵢ‖² and the sum Σᵢ cᵢ gᵢ are all that clipping needs.  With one position (T = 1) the norm is
‖a‖·‖b‖.  With more, either gᵢ is built (its weighted sum is then nearly free), or its norm comes from the Gram form
‖gᵢ‖² = Σ_{t,s} ⟨a_t, a_s⟩⟨b_t, b_s⟩ (Bu et al. 2022, "Differentially private optimization on large model at small
cost", section 3; Goodfellow 2015 for T = 1), and the sum Σᵢ cᵢ gᵢ is one matrix product of the kept (a, cb).

**Rounding of a norm.**  A built gradient is clipped as it was built: whatever its rounding, what is added has norm ≤ C.
A Gram norm is not the norm of anything built: where positions cancel, ‖g‖ ≪ S = Σ_t ‖a_t‖‖b_t‖, and a product that sums
T positions may be off by (T + 4) u S (u the unit roundoff; Higham 2002, "Accuracy and stability of numerical
algorithms", equation 3.5).  So the Gram form is computed again in float64 where cancellation is strong, and what of
(T + 4) u S is above 2⁻¹² of the norm is added to it.  Sums of squares are taken over pieces of 1024 entries, and again
in float64 where they may have over- or underflowed.

**Rounding of a sum.**  Float32 sums over many records depend on who else is in them: if N records of norm C have added
up to NC, the next is rounded to a multiple of 2⁻²⁴ NC.  So short runs of records are summed in the model's type, and
the runs in float64; a record whose terms are much larger than what they add up to is summed by itself, in float64.
Only a product with large factors on both sides is left to the kernel, at most 4096 rows at a time; it sums in blocks
for its own reasons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

KEPT_VALUES = 2**21  # values of built per-example gradients that one parameter may hold in a micro-batch
BLOCK_VALUES = 2**20  # values of a temporary that is made block by block
BUILDING_COST = 8  # writing and reading a value of a built gradient ÷ one multiplication
CANCELLATION = 2**-10  # float32's part of a Gram norm's rounding that is put up with
UNCOVERED = 2**-12  # rounding of a contribution, as a part of its norm, that the engine's margin for float32 covers
PIECE = 1024  # entries whose squares are summed in float32
LARGEST_PRODUCT = 1e37  # a factor on a that is larger could be too large for float32
VANISHING_PRODUCT = 1e-30  # a factor on a that is smaller would be rounded coarsely by float32
VANISHING = 1e-12  # a float32 norm below may have lost squares that underflowed
BLOCKED_BY_KERNEL = 32  # factors this wide on both sides: the matrix product sums in blocks of rows anyway
MOST_ROWS = 4096  # of one such product
HEAVY = 64  # terms so many times larger than the largest contribution are summed in float64, by themselves
FEW_VALUES = 2**15  # are summed in float64 at once
RUN = 64  # records, at least, that are summed in the model's type


class Unsupported(Exception):
    """A use of a parameter whose per-example gradients are not known; the message says which."""


class PerExample(Protocol):
    """The gradients of one parameter for B records."""

    def squared_norms(self) -> torch.Tensor:
        """``(B,)`` squared norms, in the dtype of the computation or wider."""
        ...

    def weighted_sum(self, factors: torch.Tensor) -> torch.Tensor:
        """Σᵢ factorsᵢ gᵢ in the parameter's shape: float64, or narrower where it is one matrix product."""
        ...

    def built(self, records: slice) -> torch.Tensor:
        """The gradients ``(b, *shape)`` of some of the records."""
        ...

    def without(self, keep: torch.Tensor) -> PerExample:
        """The same with zeros for the records where ``keep`` ``(B,)`` is False (a factor 0 does not undo a NaN)."""
        ...


def zeroed(values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """``values`` ``(B, …)`` with zeros where ``keep`` ``(B,)`` is False."""
    mask = keep.reshape(-1, *([1] * (values.ndim - 1)))
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def flat_rows(values: torch.Tensor) -> torch.Tensor:
    """``(B, …)`` as ``(B, P)``, also where a record has one number."""
    return values.reshape(values.shape[0], -1) if values.ndim > 1 else values[:, None]


def row_norms(values: torch.Tensor) -> torch.Tensor:
    """Norms ``(B,)`` float64 of the records of ``values`` ``(B, …)``, right to 1e-5 whatever their size."""
    flat = flat_rows(values)
    if flat.dtype == torch.float64:
        return torch.linalg.vector_norm(flat, dim=1)
    if flat.shape[1] <= PIECE:
        norms = torch.linalg.vector_norm(flat, dim=1).double()
    else:
        whole = flat.shape[1] // PIECE * PIECE
        parts = torch.linalg.vector_norm(flat[:, :whole].unflatten(1, (-1, PIECE)), dim=2).double()
        rest = torch.linalg.vector_norm(flat[:, whole:], dim=1).double()
        norms = (parts.square().sum(1) + rest.square()).sqrt()
    if norms.numel():
        least, greatest = (float(end) for end in torch.aminmax(norms))
        if not (least >= VANISHING and greatest < math.inf):  # also where NaN hides both
            doubtful = (norms < VANISHING) | norms.isinf()
            norms[doubtful] = torch.linalg.vector_norm(flat[doubtful].double(), dim=1)
    return norms


def in_runs(factors: torch.Tensor, values: torch.Tensor, run: int = RUN) -> torch.Tensor:
    """Σᵢ factorsᵢ valuesᵢ over records, float64 ``(P,)``: runs of records in the values' type, runs in float64."""
    records, size = values.shape
    if values.dtype == torch.float64 or values.numel() <= FEW_VALUES:
        return factors.double() @ values.double()
    factors, whole = factors.to(values.dtype), records // run * run
    parts = torch.bmm(factors[:whole].reshape(-1, 1, run), values[:whole].reshape(-1, run, size))
    return parts[:, 0].sum(0, dtype=torch.float64) + factors[whole:].double() @ values[whole:].double()


def products_in_runs(b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Σᵢ Σ_t b aᵀ ``(O, I)`` from b ``(B, T, O)`` and a ``(B, T, I)``, in runs of whole records whose sums are float64.

    A record's positions may cancel, so that it has a small norm and large terms: they must meet in one sum.
    """
    records, positions, outputs = b.shape
    inputs = a.shape[2]
    if a.dtype == torch.float64:
        return b.flatten(0, 1).T @ a.flatten(0, 1)
    wanted = 4 * outputs * inputs // (outputs + inputs)  # rows at which the runs' results are a quarter of a and b
    rows = max(RUN, 1 << max(wanted - 1, 0).bit_length())
    run = max(1, rows // positions)  # records
    if run >= records or min(outputs, inputs) >= BLOCKED_BY_KERNEL:
        most = max(1, MOST_ROWS // positions)
        if records <= most:
            return b.flatten(0, 1).T @ a.flatten(0, 1)
        total = b.new_zeros((outputs, inputs), dtype=torch.float64)
        for start in range(0, records, most):
            part = slice(start, start + most)
            total += b[part].flatten(0, 1).T @ a[part].flatten(0, 1)
        return total
    whole = records // run * run
    left, right = b[:whole].reshape(-1, run * positions, outputs), a[:whole].reshape(-1, run * positions, inputs)
    parts = torch.bmm(left.transpose(1, 2), right).sum(0, dtype=torch.float64)
    if whole < records:
        parts += b[whole:].flatten(0, 1).T @ a[whole:].flatten(0, 1)
    return parts


@dataclass(frozen=True)
class Built:
    """The gradients themselves, ``(B, *shape)``."""

    values: torch.Tensor

    @cached_property
    def norms(self) -> torch.Tensor:
        """``(B,)`` float64."""
        return row_norms(self.values)

    def squared_norms(self) -> torch.Tensor:
        return self.norms.square()

    def weighted_sum(self, factors: torch.Tensor) -> torch.Tensor:
        return in_runs(factors, flat_rows(self.values)).reshape(self.values.shape[1:])

    def built(self, records: slice) -> torch.Tensor:
        return self.values[records]

    def without(self, keep: torch.Tensor) -> PerExample:
        return Built(zeroed(self.values, keep))


@dataclass(frozen=True)
class Outer:
    """gᵢ = Σ_t b_{i,t} a_{i,t}ᵀ of shape ``(O, I)``, kept as a ``(B, T, I)`` and b ``(B, T, O)``.

    ``bias``: b as the gradient of a bias, for T = 1; the norms of its records are then computed once.
    """

    a: torch.Tensor
    b: torch.Tensor
    bias: Built | None = None

    @cached_property
    def b_norms(self) -> torch.Tensor:
        """‖b_t‖ of every position, float64 ``(B·T,)``."""
        return row_norms(self.b.flatten(0, 1)) if self.bias is None else self.bias.norms

    @cached_property
    def reach(self) -> torch.Tensor:
        """S = Σ_t ‖a_t‖‖b_t‖ for every record, float64 ``(B,)``: how large its terms are, whatever they add up to."""
        records, positions, _ = self.a.shape
        rows = row_norms(self.a.flatten(0, 1)) * self.b_norms
        return rows if positions == 1 else rows.reshape(records, positions).sum(1)

    @cached_property
    def norms(self) -> torch.Tensor:
        return self.reach if self.a.shape[1] == 1 else gram_norms(self.a, self.b, self.reach)

    def squared_norms(self) -> torch.Tensor:
        return self.norms.square()

    def weighted_sum(self, factors: torch.Tensor) -> torch.Tensor:
        if self.a.dtype == torch.float64:
            return products_in_runs(self._times(factors), self.a)
        odd = self._held_badly(factors)
        if self.a.shape[1] == 1:  # an a of more than 10³⁰ C, or of less than 10⁻³⁷ C: it contributes nothing
            return products_in_runs(self._times(torch.where(odd, 0.0, factors)), self.a)
        apart = odd | (factors * self.reach > HEAVY * (factors * self.norms).max())
        if not bool(apart.any()):
            return products_in_runs(self._times(factors), self.a)
        # terms that cancel within a record, and would round other records away in a float32 sum, or cancel no more
        # where float32 holds some of them coarsely: float64, by themselves
        rest = products_in_runs(self._times(torch.where(apart, 0.0, factors)), self.a)
        left = self.b[apart].double() * factors.double()[apart, None, None]
        return rest + left.flatten(0, 1).T @ self.a[apart].double().flatten(0, 1)

    def _held_badly(self, factors: torch.Tensor) -> torch.Tensor:
        """Which records ``(B,)`` have a c·b_t of which float32 holds few digits (times an a of 10³⁸, say, it could be
        more than C), or which is too large for it (c may be above 1)."""
        size = factors[:, None] * self.b_norms.view(self.b.shape[:2])
        if self.a.shape[1] == 1:
            return (size[:, 0] < VANISHING_PRODUCT) | (size[:, 0] > LARGEST_PRODUCT)
        return (((size < VANISHING_PRODUCT) & (size > 0)) | (size > LARGEST_PRODUCT)).any(1)

    def _times(self, factors: torch.Tensor) -> torch.Tensor:
        return self.b * factors.to(self.b.dtype)[:, None, None]

    def built(self, records: slice) -> torch.Tensor:
        return torch.bmm(self.b[records].transpose(1, 2), self.a[records])

    def without(self, keep: torch.Tensor) -> PerExample:
        return Outer(zeroed(self.a, keep), zeroed(self.b, keep))


@dataclass(frozen=True)
class Rows:
    """Gradient rows of a table ``(V, D)``: record ``owner`` ``(U,)`` has ``values`` ``(U, D)`` in row ``row`` ``(U,)``.

    Every pair (owner, row) occurs once, so a record's norm is the norm of its rows.
    """

    owner: torch.Tensor
    row: torch.Tensor
    values: torch.Tensor
    records: int
    height: int

    def squared_norms(self) -> torch.Tensor:
        squares = row_norms(self.values).square()
        return squares.new_zeros(self.records).index_add_(0, self.owner, squares)

    def weighted_sum(self, factors: torch.Tensor) -> torch.Tensor:
        total = factors.new_zeros((self.height, self.values.shape[1]), dtype=torch.float64)
        return total.index_add_(0, self.row, self.values.double() * factors.double()[self.owner, None])

    def built(self, records: slice) -> torch.Tensor:
        first, last, _ = records.indices(self.records)
        mine = (self.owner >= first) & (self.owner < last)
        full = self.values.new_zeros((last - first, self.height, self.values.shape[1]))
        full[self.owner[mine] - first, self.row[mine]] = self.values[mine]
        return full

    def without(self, keep: torch.Tensor) -> PerExample:
        return Rows(self.owner, self.row, zeroed(self.values, keep[self.owner]), self.records, self.height)


@dataclass(frozen=True)
class Several:
    """A parameter that is used several times: a record's gradient is the sum over the uses, not a stack of them."""

    uses: Sequence[PerExample]
    records: int
    values: int

    def squared_norms(self) -> torch.Tensor:
        return torch.cat([row_norms(self.built(part)).square() for part in self._blocks()])

    def weighted_sum(self, factors: torch.Tensor) -> torch.Tensor:
        """Made of the built gradients, block by block as their norms: uses that cancel must not meet other records."""
        total = factors.new_zeros(self.values, dtype=torch.float64)
        for part in self._blocks():
            total += in_runs(factors[part], flat_rows(self.built(part)))
        return total.reshape(self.built(slice(0, 1)).shape[1:])

    def _blocks(self) -> list[slice]:
        step = max(1, BLOCK_VALUES // max(self.values, 1))
        return [slice(start, min(start + step, self.records)) for start in range(0, self.records, step)]

    def built(self, records: slice) -> torch.Tensor:
        total = self.uses[0].built(records)
        for use in self.uses[1:]:
            total = total + use.built(records)
        return total

    def without(self, keep: torch.Tensor) -> PerExample:
        return Several([use.without(keep) for use in self.uses], self.records, self.values)


def together(uses: Sequence[PerExample], records: int, values: int) -> PerExample:
    """One parameter's gradient from all its uses; ``values`` entries a record."""
    if len(uses) == 1:
        return uses[0]
    if all(isinstance(use, Outer) for use in uses):
        outers = [use for use in uses if isinstance(use, Outer)]
        return outer(torch.cat([o.a for o in outers], 1), torch.cat([o.b for o in outers], 1))
    if all(isinstance(use, Built) for use in uses):
        total = uses[0].built(slice(None))
        for use in uses[1:]:
            total = total + use.built(slice(None))
        return Built(total)
    return Several(uses, records, values)


def outer(a: torch.Tensor, b: torch.Tensor, *, alone: bool = True, bias: Built | None = None) -> PerExample:
    """gᵢ = Σ_t b_{i,t} a_{i,t}ᵀ from a ``(B, T, I)`` and b ``(B, T, O)``, built where that is the cheaper form.

    ``alone``: the parameter's only use; more of them are joined in the Gram form first.  ``bias``: Σ_t b_{i,t}.
    """
    records, positions, width = a.shape
    if alone and build_is_cheaper(records, positions, width, b.shape[2]):
        return Built(torch.bmm(b.transpose(1, 2), a))
    return Outer(a, b, bias if positions == 1 else None)


def build_is_cheaper(records: int, positions: int, inputs: int, outputs: int) -> bool:
    """Building costs I·O values a record (the products that follow are spared), the Gram form T²(I + O) products."""
    size = inputs * outputs
    return (
        positions > 1
        and BUILDING_COST * size <= positions * positions * (inputs + outputs)
        and records * size <= KEPT_VALUES
    )


def gram_norms(a: torch.Tensor, b: torch.Tensor, reach: torch.Tensor) -> torch.Tensor:
    """‖Σ_t b_t a_tᵀ‖ for every record, float64 ``(B,)``, raised by the rounding of the sum that is made of (a, b)."""
    unit = torch.finfo(a.dtype).eps / 2
    records, positions, _ = a.shape
    # the same products from rows a/‖a‖ and b‖a‖: squares of a tiny a would vanish though a huge b makes up for them
    size = row_norms(a.flatten(0, 1)).reshape(records, positions, 1)
    a = (a / torch.where(size > 0, size, torch.ones_like(size))).to(a.dtype)
    b = (b * size).to(b.dtype)
    squares = _gram(a, b)
    if a.dtype != torch.float64:
        doubtful = (squares * CANCELLATION < 8 * unit * reach.square()) | (squares < VANISHING**2)
        if bool(doubtful.any()):
            squares = squares.clone()
            squares[doubtful] = _gram(a[doubtful].double(), b[doubtful].double())
    norms = squares.clamp(min=0.0).sqrt()
    return norms + ((positions + 4) * unit * reach - UNCOVERED * norms).clamp(min=0.0)


def _gram(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    records, positions, _ = a.shape
    step = max(1, BLOCK_VALUES // (positions * positions))
    parts = []
    for start in range(0, records, step):
        x, y = a[start : start + step], b[start : start + step]
        parts.append((torch.bmm(x, x.transpose(1, 2)) * torch.bmm(y, y.transpose(1, 2))).sum((1, 2)).double())
    return torch.cat(parts) if parts else a.new_zeros(0, dtype=torch.float64)


def table_rows(tokens: torch.Tensor, b: torch.Tensor, height: int) -> PerExample:
    """The gradient of an embedding: tokens ``(B, T)`` int64, b ``(B, T, D)``; a token met twice adds up first."""
    records, positions = tokens.shape
    owner = torch.arange(records, device=tokens.device).repeat_interleave(positions)
    if positions == 1:
        return Rows(owner, tokens.reshape(-1), b.flatten(0, 1), records, height)
    keys, inverse = torch.unique(owner * height + tokens.reshape(-1), return_inverse=True)
    values = b.new_zeros((len(keys), b.shape[2])).index_add_(0, inverse, b.flatten(0, 1))
    return Rows(torch.div(keys, height, rounding_mode="floor"), keys % height, values, records, height)
