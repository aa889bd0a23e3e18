"""Per-example gradients, clipped and summed: the one quantity of DP-SGD whose sensitivity is known.

Two engines give the same sums.  ``one_backward`` (:mod:`dpml.sgd.one_backward`) needs one ordinary backward pass for
the whole batch.  ``per_example`` (:mod:`dpml.sgd.per_example`) runs every record alone; it is right for any model.
``auto`` takes the first where it can be shown to fit the model, and the second for everything else, for a record that
raises an error included.

Clip factors and the sum over micro-batches are float64.  Within a micro-batch ``one_backward`` sums in the model's own
type: see :data:`MOST_RECORDS` and :data:`dpml.sgd.engine.FLOAT32_MARGIN`.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils._pytree import tree_map

from dpml import errors
from dpml.errors import ModelError
from dpml.ranges import MOST, as_integer, is_count, is_positive
from dpml.sgd.linear_form import HOOKS, has_linear_form, linear_gradients
from dpml.sgd.made_up import make_recipe
from dpml.sgd.models import LossFunction, check_model
from dpml.sgd.one_backward import Batches, Recipe, same_shapes
from dpml.sgd.per_example import (
    Tensors,
    batch_size,
    depends_on_weights,
    filled_up,
    kept_values,
    per_example_gradients,
    refuse_device_error,
    trainable,
    try_on_zeros,
)
from dpml.sgd.randomness import own_random_numbers
from dpml.sgd.uses import FEW_VALUES, Built, PerExample, Unsupported

__all__ = ["CLIPPINGS", "ENGINES", "Clipper", "clipped_gradient", "trainable", "try_on_zeros"]

CLIPPINGS = ("flat", "per_layer", "automatic")
ENGINES = ("auto", "one_backward", "per_example")
AUTOMATIC_OFFSET = 0.01
SUM_DTYPE = torch.float64  # of clip factors and of sums over micro-batches, whatever the model's dtype
MOST_RECORDS = 4096  # in a micro-batch: they are summed in the model's own type
LEAST_RECORDS = 16  # in a pass: kernels round in another way for a few, which a chaotic record's gradient would show
PER_EXAMPLE_VALUES = {"cpu": 2**22, "cuda": 2**26}  # per-example gradient values held at once
ACTIVATION_BYTES = {"cpu": 2**28, "cuda": 2**31}  # of a micro-batch under one_backward
LEAST_FACTOR = 1e-30  # a gradient 10³⁰ times too long contributes nothing: float32 could not hold its factor
_SAFE = 1.0 - 1e-13  # a norm is known up to its rounding: what is clipped stays at or below C

_log = logging.getLogger(__name__)


def clipped_gradient(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    max_grad_norm: float,
    micro_batch_size: int | None = None,
    *,
    clipping: str = "flat",
    engine: str = "auto",
) -> tuple[Tensors, torch.Tensor]:
    """Σᵢ gᵢ · min(1, C/‖gᵢ‖) over the records of ``batch``: one record more or less moves it by at most C (add_remove).

    The bound holds for the gradients as they were computed, up to the rounding of the sum: float64 for a ``.double()``
    model; for others see "Rounding" in :mod:`dpml.sgd.uses` (:func:`dpml.sgd.fit_dp_sgd` lowers its bound by a
    thousandth for it).  A kernel may round one record's gradient a little differently (a few 1e-7 of it) in a batch of
    another size.  Dropout draws its masks from torch's global generator: the bound is then for given masks of every
    record, and the seed must be one that nobody knows (:mod:`dpml.sgd.randomness`).  And it holds for a model and a
    loss that treat records separately, which is looked at on made-up records (:mod:`dpml.sgd.made_up`): what mixes them
    for some values only may pass there.  ``engine="per_example"`` needs no such assumption.

    No noise is added and nothing is charged: this is the building block, private only together with both
    (Abadi et al. 2016, Algorithm 1, lines "Compute gradient" and "Clip gradient").

    Args:
        model: any module; it is left exactly as it was (no hooks, gradients, buffers or mode changed).
        loss_fn: ``loss_fn(model, batch) -> (B,)``, one loss per record.  Make it once, not anew for each call: what is
            found out about a model and a loss function is kept for the next call.
        batch: tensor, or tuple/list/dict of tensors, each with the records along its first axis; B may be 0.
        max_grad_norm: C > 0, bound on the L2 norm over all trained parameters together.
        micro_batch_size: records that are run at once; the result does not depend on it.
        clipping: ``"flat"``; ``"per_layer"``: each of the K layers with trained parameters is clipped at C/√K, so that
            the whole has norm ≤ C; ``"automatic"``: every gradient becomes C gᵢ/(‖gᵢ‖ + 0.01) (Bu et al. 2023,
            "Automatic clipping", AUTO-S with γ = 0.01).
        engine: ``"auto"``; ``"one_backward"`` refuses a model that it does not fit; ``"per_example"`` runs every record
            alone, so that the bound holds whatever the model does.

    Returns:
        ``sums``: name → float64 tensor of the parameter's shape.  ``norms``: ``(B,)`` float64 norms before clipping.
        A record whose gradient is not finite contributes exactly zero (its norm shows as it was), and so does a record
        on which the model or the loss raises an error (an embedding index out of range, say): its norm is NaN.  On CUDA
        such an index ends the process's use of the device, so check ranges before.  A warning tells when a record of
        zeros raises: most likely all records do (a wrong dtype, say).

    Raises:
        ModelError: nothing to train, ``loss_fn`` does not give one loss per record (tried on a record of zeros: no
            error depends on the values of a record), or the engine asked for does not fit.
        ConfigError: an argument out of range.
    """
    if not callable(loss_fn):
        shown = None if loss_fn is None else type(loss_fn)  # not its value: it may be data by mistake
        raise errors.invalid("loss_fn", shown, "a function loss_fn(model, batch) -> (B,), one loss per record")
    if not is_positive(max_grad_norm):
        raise errors.invalid("max_grad_norm", max_grad_norm, "a finite number > 0")
    if micro_batch_size is not None and not is_count(as_integer(micro_batch_size), 1, MOST["micro_batch_size"]):
        allowed = f"None or a whole number from 1 to {MOST['micro_batch_size']:,}"
        raise errors.invalid("micro_batch_size", micro_batch_size, allowed)
    if not isinstance(clipping, str) or clipping not in CLIPPINGS:
        raise errors.invalid("clipping", clipping, "one of " + ", ".join(CLIPPINGS))
    batch_size(batch)
    clipper = Clipper(model, loss_fn, batch, engine)
    if clipper.fault is not None:
        warnings.warn(
            f"a record of zeros raises {type(clipper.fault).__name__}: {clipper.fault}. Then most likely every record "
            "does (a wrong dtype or shape, say), and contributes zero.",
            RuntimeWarning,
            stacklevel=2,
        )
    elif not clipper.depends:
        warnings.warn(
            "the loss of a record of zeros does not depend on the model's trained parameters (was it detached, or made "
            "of whole numbers?). Then most likely no record's does, and all sums are zero.",
            RuntimeWarning,
            stacklevel=2,
        )
    return clipper(batch, max_grad_norm, micro_batch_size, clipping)


@dataclass(frozen=True)
class _Finding:
    """What is known about a model and a loss on records of one shape."""

    recipe: Recipe | None
    reason: str
    fault: Exception | None
    kept: int = 0
    depends: bool = True


_findings: WeakKeyDictionary[nn.Module, dict[Any, _Finding]] = WeakKeyDictionary()
_MOST_FINDINGS = 32
_TORCHS_OWN = vars(nn.Module()).keys() - {"training"}  # parameters, buffers, hooks, modules: looked at one by one


class Clipper:
    """``clipped_gradient`` of one model and loss, prepared once.

    Attributes:
        reason: why ``one_backward`` does not fit, or ``""``.
        fault: the error that a record of zeros raises, or None.
        depends: whether the loss of a record of zeros depends on the trained parameters.
        size: p, the number of trained numbers.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFunction, batch: Any, engine: str = "auto") -> None:
        if not isinstance(engine, str) or engine not in ENGINES:
            raise errors.invalid("engine", engine, "one of " + ", ".join(ENGINES))
        check_model(model)
        self._model, self._loss_fn = model, loss_fn
        self.parameters = trainable(model)
        finding = _find(model, loss_fn, batch, engine)
        self.fault, self.reason, self.depends = finding.fault, finding.reason, finding.depends
        if engine == "one_backward" and finding.recipe is None:
            raise ModelError(
                f"engine = 'one_backward' does not fit this model: {self.reason}. Use engine='auto', which runs such "
                "a model record by record."
            )
        self._recipe, self._kept = finding.recipe, finding.kept
        self._layers = len({layer_of(name) for name in self.parameters})
        self._batches = Batches(model, loss_fn)
        self.size = sum(p.numel() for p in self.parameters.values())
        self.device = next(iter(self.parameters.values())).device

    def __call__(
        self, batch: Any, max_grad_norm: float, micro_batch_size: int | None = None, clipping: str = "flat"
    ) -> tuple[Tensors, torch.Tensor]:
        """See :func:`clipped_gradient`."""
        flat, norms = self.flat(batch, max_grad_norm, micro_batch_size, clipping)
        return self.by_name(flat), norms

    def flat(
        self, batch: Any, max_grad_norm: float, micro_batch_size: int | None = None, clipping: str = "flat"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same with the sums of all trained parameters in one vector ``(p,)`` float64, in their order."""
        sums, norms = self.sums(batch, max_grad_norm, micro_batch_size, clipping)
        flat = torch.empty(self.size, dtype=SUM_DTYPE, device=self.device)
        for name, view in self.by_name(flat).items():
            view.copy_(sums[name])
        return flat, norms

    def sums(
        self, batch: Any, max_grad_norm: float, micro_batch_size: int | None = None, clipping: str = "flat"
    ) -> tuple[Tensors, torch.Tensor]:
        """The same in new tensors of the type in which they were summed: float64, or the model's own."""
        size = batch_size(batch)
        sums: Tensors = {}
        twice: set[str] = set()
        norms: list[torch.Tensor] = []
        step = micro_batch_size or self.micro_batch
        for start in range(0, size, step):
            part = batch if step >= size else part_of(batch, start, start + step)
            least = 1 if self.fault is not None else min(step, LEAST_RECORDS)
            for part_sums, part_norms in self._clipped(part, min(step, size - start), least, max_grad_norm, clipping):
                for name, value in part_sums.items():
                    if name in twice:
                        sums[name] += value
                    elif name in sums:
                        sums[name] = sums[name].to(SUM_DTYPE) + value
                        twice.add(name)
                    else:
                        sums[name] = value
                norms.append(part_norms)
        for name, parameter in self.parameters.items():
            if name not in sums:  # no record reaches it
                sums[name] = torch.zeros_like(parameter, dtype=SUM_DTYPE, requires_grad=False)
        if not norms:
            return sums, torch.zeros(0, dtype=torch.float64, device=self.device)
        return sums, norms[0] if len(norms) == 1 else torch.cat(norms)

    def by_name(self, flat: torch.Tensor) -> Tensors:
        """Views of ``(p,)`` in the parameters' names and shapes."""
        pieces = flat.split([p.numel() for p in self.parameters.values()])
        return {name: piece.view(p.shape) for (name, p), piece in zip(self.parameters.items(), pieces, strict=True)}

    def _clipped(
        self, part: Any, size: int, least: int, max_grad_norm: float, clipping: str
    ) -> Iterator[tuple[Tensors, torch.Tensor]]:
        """Sums and norms of the records of ``part``, in one piece or several, in their order; ``least`` run at once."""
        found: dict[str, PerExample] | None = None
        halve = False
        run = filled_up(part, size, least)
        if self._recipe is not None:
            try:
                if has_linear_form(self._model, self._loss_fn, run):
                    found = linear_gradients(self._model, run)
                else:
                    found = self._batches.gradients(run, batch_size(run), self._recipe)[0]
            except Unsupported:  # nothing of a record: all of the batch is run alone
                pass
            except BaseException as error:  # of a record, which must not stop the run: halves find it
                refuse_device_error(error)
                halve = size > 1
        if found is not None:
            sums, norms = self._summed(found, size, max_grad_norm, clipping)
            yield sums, norms[:size]
        elif halve:
            half = size // 2
            for first, last in ((0, half), (half, size)):
                piece = part_of(part, first, last)
                yield from self._clipped(piece, last - first, least, max_grad_norm, clipping)
        else:
            most = default_micro_batch(self.size + self._kept, self.device.type)
            for start in range(0, size, most):
                piece = part_of(part, start, start + most)
                alone = per_example_gradients(self._model, self._loss_fn, piece, min(least, most))
                built: dict[str, PerExample] = {name: Built(value.to(SUM_DTYPE)) for name, value in alone.items()}
                yield self._summed(built, min(most, size - start), max_grad_norm, clipping)

    def _summed(
        self, gradients: dict[str, PerExample], size: int, max_grad_norm: float, clipping: str
    ) -> tuple[Tensors, torch.Tensor]:
        if not gradients:  # no trained parameter is reached
            return {}, torch.zeros(size, dtype=torch.float64, device=self.device)
        with torch.autocast(self.device.type, enabled=False):
            return clip_and_sum(gradients, max_grad_norm, clipping, self._layers, size)

    @property
    def micro_batch(self) -> int:
        """Records at once so that memory stays bounded, whatever the batch."""
        kind = self.device.type if self.device.type in ACTIVATION_BYTES else "cuda"
        if self._recipe is not None:
            most = ACTIVATION_BYTES[kind] / max(2.0 * self._recipe.bytes_per_record, 1.0)
            return max(1, min(MOST_RECORDS, int(most)))
        return default_micro_batch(self.size + self._kept, kind)


def default_micro_batch(n_values: int, device_type: str = "cpu") -> int:
    """Records run alone that are held at once: B × (gradients and activations of one) values, whatever the batch."""
    values = PER_EXAMPLE_VALUES.get(device_type, PER_EXAMPLE_VALUES["cuda"])
    return max(1, min(MOST_RECORDS, values // max(n_values, 1)))


def _find(model: nn.Module, loss_fn: LossFunction, batch: Any, engine: str) -> _Finding:
    """What is known, or a look at made-up records."""
    known = _findings.setdefault(model, {})
    key: Any = (
        loss_fn,
        _plain(loss_fn),
        engine == "per_example",
        same_shapes(batch),
        tuple((name, p.shape, p.dtype, str(p.device), p.requires_grad) for name, p in model.named_parameters()),
        tuple(_attributes(module) for module in model.modules()),
        tuple(tuple(getattr(torch.nn.modules.module, f"_global{hooks}").values()) for hooks in HOOKS),
    )
    try:
        if key in known:
            return known[key]
    except TypeError:  # a loss that cannot be hashed
        key = None
    finding = _look(model, loss_fn, batch, engine)
    if key is not None:
        if len(known) >= _MOST_FINDINGS:
            known.clear()
        known[key] = finding
    return finding


def _look(model: nn.Module, loss_fn: LossFunction, batch: Any, engine: str) -> _Finding:
    device = next(p.device for p in model.parameters() if p.requires_grad)
    with own_random_numbers(device):
        fault = try_on_zeros(model, loss_fn, batch)
    with own_random_numbers(device):
        depends = fault is not None or depends_on_weights(model, loss_fn, batch)
    recipe, reason = None, ""
    try:
        recipe = make_recipe(model, loss_fn, batch, per_example_gradients)
    except Unsupported as error:
        reason = str(error)
    kept = int(recipe.bytes_per_record) // 4 if recipe is not None else 0
    if fault is None and (recipe is None or engine == "per_example"):
        with own_random_numbers(device):
            kept = kept_values(model, loss_fn, batch)
    if engine == "per_example":
        return _Finding(None, "no recipe asked for", fault, kept, depends)
    if recipe is None and engine == "auto":
        _log.info("every record is run alone, which is slower: the model has %s", reason)
    if recipe is not None and recipe.by_themselves:
        listed = "; ".join(f"{kind} ({', '.join(names)})" for kind, names in recipe.by_themselves.items())
        _log.info("run for every record by itself, which is slower, the rest in one backward pass: %s", listed)
    return _Finding(recipe, reason, fault, kept, depends)


def _plain(thing: Any, depth: int = 2) -> tuple[Any, ...]:
    """Plain attributes of a module or a loss that may change how it computes, and of a configuration that it holds.

    Of what is further in, or in a closure, nothing is seen.
    """
    found: list[Any] = []
    for name, value in list(getattr(thing, "__dict__", {}).items()):
        if name in _TORCHS_OWN:
            continue
        if _is_plain(value):
            found.append((name, repr(value)))
        elif depth and not callable(value) and not isinstance(value, torch.Tensor) and hasattr(value, "__dict__"):
            found.append((name, _plain(value, depth - 1)))
    return tuple(found)


def _is_plain(value: Any) -> bool:
    """Numbers and texts, and lists, tuples, sets and dicts of them."""
    if isinstance(value, dict):
        return all(_is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple | set):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str)


def _attributes(module: nn.Module) -> tuple[Any, ...]:
    """What may change how a module computes: mode, plain attributes and hooks."""
    values = _plain(module)
    hooks = [getattr(module, name) for name in HOOKS]
    patched = tuple((name, value) for name, value in vars(module).items() if callable(value))
    buffers = tuple((name, _content(b)) for name, b in module._buffers.items() if b is not None)
    return type(module), values, patched, buffers, tuple(tuple(h.values()) for h in hooks)


def _content(buffer: torch.Tensor) -> tuple[Any, ...]:
    """What tells a buffer from another one, put in its place or written over: the numbers of a small one."""
    plain = buffer.detach()
    if plain.numel() <= FEW_VALUES and plain.layout is torch.strided and not plain.is_quantized:
        return plain.shape, plain.dtype, plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return plain.shape, plain.dtype, id(buffer), buffer._version


def part_of(batch: Any, first: int, last: int) -> Any:
    """Some of the records in memory of their own: what looks behind a tensor (``as_strided``) finds no others there."""
    return tree_map(lambda t: t[first:last].clone(), batch)


def clip_factors(norms: torch.Tensor, max_grad_norm: float) -> torch.Tensor:
    """min(1, C/norm) in float64 (C less 1e-13 of it), and 0 where the norm is not finite or beyond 10³⁰ C."""
    return _usable((max_grad_norm * _SAFE / norms).clamp_max_(1.0))


def automatic_factors(norms: torch.Tensor, max_grad_norm: float) -> torch.Tensor:
    """C/(norm + 0.01) in float64: every contribution has norm below C; 0 as in :func:`clip_factors`."""
    return _usable(max_grad_norm * _SAFE / (norms + AUTOMATIC_OFFSET))


def _usable(factors: torch.Tensor) -> torch.Tensor:
    """Zero for what is too small or not a number."""
    return torch.where(factors >= LEAST_FACTOR, factors, 0.0)


def layer_of(parameter: str) -> str:
    """The layer that a parameter belongs to: ``"block.0.weight"`` → ``"block.0"``."""
    return parameter.rpartition(".")[0]


def layer_bound(max_grad_norm: float, layers: int) -> float:
    """C/√K: K parts of at most this norm have norm ≤ C together."""
    return max_grad_norm / math.sqrt(layers)


def clip_and_sum(
    gradients: dict[str, PerExample],
    max_grad_norm: float,
    clipping: str = "flat",
    n_layers: int | None = None,
    records: int | None = None,
) -> tuple[Tensors, torch.Tensor]:
    """Clip the gradients over all parameters together (or layer by layer) and sum over the records.

    ``gradients`` is empty afterwards: what is summed is let go, so that memory is free for the next.
    ``n_layers``: layers with trained parameters, those that no record reaches included; default those of ``gradients``.
    ``records``: how many of the records are summed, from the first on; what comes after them only filled a batch up.

    Norms and factors are float64 (half precision would overflow, and everything be zeroed, or underflow, and nothing
    be clipped).
    """
    squares = {name: gradient.squared_norms() for name, gradient in gradients.items()}
    norms = _total(list(squares.values())).sqrt_()
    layers: dict[str, list[str]] = {}
    for name in gradients:
        layers.setdefault(layer_of(name) if clipping == "per_layer" else "", []).append(name)
    finite = None if math.isfinite(float(norms.sum())) else torch.isfinite(norms)
    if finite is not None:
        for name in gradients:
            gradients[name] = without(gradients[name], finite)
    sums: Tensors = {}
    for names in layers.values():
        if clipping == "per_layer":
            bound = layer_bound(max_grad_norm, n_layers or len(layers))
            factors = clip_factors(_total([squares[name] for name in names]).sqrt_(), bound)
        elif clipping == "automatic":
            factors = automatic_factors(norms, max_grad_norm)
        else:
            factors = clip_factors(norms, max_grad_norm)
        if finite is not None:
            factors = torch.where(finite, factors, 0.0)
        factors = of_first(factors, records)
        for name in names:
            sums[name] = gradients.pop(name).weighted_sum(factors)
    return sums, norms


def of_first(factors: torch.Tensor, records: int | None) -> torch.Tensor:
    """``factors`` with zeros after the first ``records``."""
    if records is not None and records < factors.shape[0]:
        factors[records:] = 0.0
    return factors


def _total(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Their sum, in a new tensor."""
    total = parts[0].clone() if len(parts) == 1 else parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total


def without(gradient: PerExample, keep: torch.Tensor) -> PerExample:
    """``gradient`` with zeros for the records where ``keep`` is False: a factor 0 is not enough, 0 · NaN is NaN."""
    return gradient.without(keep)
