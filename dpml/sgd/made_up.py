"""What is found out about a model on made-up records, before the data's own are run together.

The sums of :mod:`dpml.sgd.one_backward` are right only for a model and a loss that treat records separately.  Here a
copy with shaken weights (a zero initialisation would hide mixing), in float64 where that works, meets made-up records,
on the CPU if that works: a token or label out of range is an error there, and the end of the device on CUDA.

*   batches of 2 and of 3, to see along which axis the records lie at each use of a parameter;
*   gradients and norms of 3 records together must be those of each alone;
*   in a batch of 13, another half of the records (not a number where they are real-valued) must change neither losses
    nor gradient norms of the rest;
*   the same again with marks of what is left out, where the model takes them: -100, -1, 255 and the rows of an
    embedding that stand for padding in whole numbers, and in all numbers those that a forward pass was seen to compare
    with or leave out (``y != 7``, ``ignore_index=7``): means over a batch's unmarked entries would move, and columns
    that only some records fill;
*   the same again in the model's own type, in which ``x.float()`` is no copy: nothing may write into the records then;
*   no records may be indexed, sorted or rolled along their own axis: whose row is whose could then depend on data;
*   nothing may read a value into Python, draw random numbers (dropout apart) or write into a parameter;
*   the same records must give the same losses twice: a model that remembers earlier calls is refused altogether.

A model that passes and still mixes records, for some values or some batch size only, is beyond what such a look can
see; a module of the user's own is therefore named in the guarantee's assumptions.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from dpml.errors import ModelError
from dpml.machine import refuse_unless_a_records
from dpml.sgd.models import LossFunction
from dpml.sgd.one_backward import Batches, Look, Recipe, chosen, repeated, step_of
from dpml.sgd.per_example import FATAL, _Bound
from dpml.sgd.randomness import own_random_numbers
from dpml.sgd.uses import PerExample, Unsupported, flat_rows
from dpml.sgd.watching import MANY, Watch

Tensors = dict[str, torch.Tensor]
Alone = Callable[[nn.Module, LossFunction, Any], Tensors]
SHAKE = 0.1
HUGE = 1e4
CPU = torch.device("cpu")
MOST_COMPARED = 64  # numbers that a forward pass compares with and that are tried as marks
MARKS = (-100, -1, 255)  # what losses leave out: torch's ignore_index, and two common ones
# Whole numbers are drawn below the first of these that the model takes, leaf by leaf, or below one of LOWEST.
HIGHEST = (1000, 300, 100, 50, 30, 20, 15, 12, 10, 9, 8, 7, 6, 5, 4, 3)
LOWEST = (2, 1)
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 1e-1}


def make_recipe(model: nn.Module, loss_fn: LossFunction, batch: Any, alone: Alone) -> Recipe:
    """The recipe for batches shaped like ``batch`` (its values are not used).

    Args:
        alone: ``alone(model, loss_fn, batch)`` gives the gradients ``(B, *shape)`` of every record run alone.

    Raises:
        Unsupported: with the reason; the batch must then be run record by record.
        ModelError: the model remembers earlier calls.
    """
    own = next(p.device for p in model.parameters() if p.requires_grad)
    try:
        return _look(model, loss_fn, batch, alone, CPU)
    except _Failed:
        if own.type == CPU.type:
            raise
    if any(not (leaf.is_floating_point() or leaf.dtype == torch.bool) for leaf in tree_flatten(batch)[0]):
        raise Unsupported(
            "something on its device that is no part of it (weights of classes in the loss, say): labels and tokens "
            "can be made up on the CPU only"
        )
    return _look(model, loss_fn, batch, alone, own)


class _Failed(Unsupported):
    """Nothing made up could be run."""


def _look(model: nn.Module, loss_fn: LossFunction, batch: Any, alone: Alone, device: torch.device) -> Recipe:
    """The recipe by records on ``device``."""
    leaves, tree = tree_flatten(batch)
    fault: BaseException | None = None
    for double in (True, False):
        for lowest in LOWEST:
            below = [lowest] * len(leaves)
            try:
                found = _recipe(model, loss_fn, batch, alone, double, tree_unflatten(below, tree), device)
            except (Unsupported, ModelError, KeyboardInterrupt, *FATAL):
                raise
            except BaseException as error:  # float64 in a model that insists on float32, a token out of range
                fault = error
                continue
            for i, leaf in enumerate(leaves):  # labels of two classes must not keep token numbers low
                if leaf.is_floating_point() or leaf.dtype == torch.bool:
                    continue
                for highest in HIGHEST:
                    try:
                        higher = [highest if j == i else old for j, old in enumerate(below)]
                        found = _recipe(model, loss_fn, batch, alone, double, tree_unflatten(higher, tree), device)
                        below = higher
                        break
                    except (Unsupported, ModelError, KeyboardInterrupt, *FATAL):
                        raise
                    except BaseException as error:
                        fault = error
            _own_type(model, loss_fn, batch, found, tree_unflatten(below, tree), device)
            return found
    raise _Failed(f"{type(fault).__name__} on made-up records")


def _own_type(
    model: nn.Module, loss_fn: LossFunction, batch: Any, recipe: Recipe, below: Any, device: torch.device
) -> None:
    """A copy in the model's own type leaves the records as they are, and keeps them separate, too.

    Raises:
        Unsupported: it does not, or fails on made-up records.
    """
    with own_random_numbers(device), Watch() as mode:
        shaken = _shaken(model, False, device)
        batches = Batches(shaken, mode.watched(loss_fn))
        many = tree_map(lambda t, top: _drawn(t, False, top, device), batch, below)
        kept = tree_map(torch.clone, many)
        try:
            batches.gradients(many, MANY, recipe)
            if not all(map(torch.equal, tree_flatten(many)[0], tree_flatten(kept)[0])):
                raise Unsupported("a forward pass that writes into its input")
            mode.moving = False
            _records_are_separate(batches, many, recipe, below, marks=mode.compared)
        except (Unsupported, ModelError, KeyboardInterrupt, *FATAL):
            raise
        except BaseException as error:
            raise Unsupported(f"{type(error).__name__} on made-up records in its own type") from None


def _shaken(model: nn.Module, double: bool, device: torch.device) -> nn.Module:
    """A copy with other weights: those of a start may be zero, and hide what mixes."""
    shaken = copy.deepcopy(model).to(device)
    if double:
        shaken = shaken.double()
    with torch.no_grad():
        for p in shaken.parameters():
            if p.is_floating_point():
                p.add_(torch.randn_like(p, dtype=torch.float32).to(p.dtype), alpha=SHAKE)
    return shaken


def _recipe(
    model: nn.Module, loss_fn: LossFunction, batch: Any, alone: Alone, double: bool, below: Any, device: torch.device
) -> Recipe:
    with own_random_numbers(device), Watch() as mode:
        shaken = _shaken(model, double, device)
        before = {name: p.detach().clone() for name, p in shaken.named_parameters()}
        batches = Batches(shaken, mode.watched(loss_fn))
        many = tree_map(lambda t, top: _drawn(t, double, top, device), batch, below)
        three = tree_map(lambda t: t[:3], many)
        _refuse_memory(batches, three)
        state, versions = _random_state(device), [t._version for t in tree_flatten(three)[0]]
        mode.reading = False
        recipe = _looked_up(batches, three)
        if versions != [t._version for t in tree_flatten(three)[0]]:
            raise Unsupported("a forward pass that writes into its input")
        saved = _Saved({t.data_ptr() for t in (*batches.trained.values(), *batches.frozen.values())})
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda t: t):
            found, _ = batches.gradients(three, 3, recipe)
        mode.reading = True
        if not recipe.steps:
            raise Unsupported("no use of a trained parameter that can be seen")
        if _random_state(device) != state:
            raise Unsupported("random numbers other than dropout")
        expected = alone(shaken, loss_fn, three)
        one = tree_map(lambda t: t[:1], three)
        _refuse_hidden(shaken, loss_fn, one, {name: g[0] for name, g in expected.items()})
        _compare(found, expected, batches.trained)
        mode.moving = False
        _records_are_separate(batches, many, recipe, below)
        mode.moving = True
        if any(not torch.equal(before[name], p) for name, p in shaken.named_parameters()):
            raise Unsupported("a forward pass that writes into a parameter")
    # a model in its own type keeps as many bytes as its width says
    width = next(p.element_size() for p in model.parameters() if p.requires_grad)
    own = width / next(p.element_size() for p in shaken.parameters() if p.requires_grad)
    each = sum(value.nbytes for value in repeated(recipe.steps, batches.trained))
    return Recipe(recipe.steps, recipe.counts, own * (saved.bytes / 3.0 + 2.0 * each))


def _random_state(device: torch.device) -> tuple[Any, ...]:
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.zeros(0)
    array = np.random.get_state()  # noqa: NPY002
    torch_state = torch.get_rng_state().numpy().tobytes(), on_device.cpu().numpy().tobytes()
    return random.getstate(), array[1].tobytes(), array[2:], *torch_state  # type: ignore[index]


def _refuse_memory(batches: Batches, three: Any) -> None:
    """The same records twice, with the same random numbers; huge ones between, which move an extreme."""
    losses = []
    for factor in (1.0, HUGE, 1.0):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        again = tree_map(lambda t, f=factor: (t * f).to(t.dtype) if t.is_floating_point() else t.clone(), three)
        try:
            with torch.no_grad():
                found = batches.plain_losses(again)
        except BaseException as error:  # huge records may raise what they like
            if factor == 1.0:
                raise
            refuse_unless_a_records(error)
            continue
        losses += [found] if factor == 1.0 else []
    if losses[0].shape != losses[1].shape or not torch.equal(losses[0].isfinite(), losses[1].isfinite()):
        different = True
    else:
        different = bool((losses[0] - losses[1]).nan_to_num().abs().max() > 1e-6 * (1.0 + losses[0].abs().max()))
    if different:
        raise ModelError(
            "the model (or the loss) gives another result for the same records when it is called again: it keeps "
            "something of earlier records in a plain attribute, or draws from a random generator of its own. Keep it "
            "in a buffer (register_buffer), leave it out, or draw by torch's own functions (dropout)."
        )


def _refuse_hidden(model: nn.Module, loss_fn: LossFunction, one: Any, alone: Tensors) -> None:
    """A parameter that one record reaches behind the module's back would never be trained."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        losses = loss_fn(model, one)
    if not losses.requires_grad:
        return
    found = torch.autograd.grad(losses.sum(), list(trained.values()), allow_unused=True)
    for name, gradient in zip(trained, found, strict=True):
        moves = gradient is not None and bool(gradient.to_dense().any())
        if moves and not bool(alone[name].any()) and not _is_reached(model, loss_fn, one, name):
            raise ModelError(
                f"the parameter {name!r} is used behind its module's back (kept in a list or a closure, say), so that "
                "it would get no gradient. Use it as an attribute of the module, and the model that loss_fn is given."
            )


def _is_reached(model: nn.Module, loss_fn: LossFunction, one: Any, name: str) -> bool:
    """Whether the loss depends on what is swapped in for a parameter: its gradient may have been rounded to zero."""
    leaf = dict(model.named_parameters())[name].detach().clone().requires_grad_()
    with torch.enable_grad():
        loss = functional_call(_Bound(model, loss_fn), {f"model.{name}": leaf}, (one,))
    return bool(loss.requires_grad) and torch.autograd.grad(loss, leaf, allow_unused=True)[0] is not None


def _looked_up(batches: Batches, three: Any) -> Recipe:
    first, second = Look(), Look()
    with torch.no_grad():
        batches.losses(tree_map(lambda t: t[:2], three), first)
        batches.losses(three, second)
    if len(first.seen) != len(second.seen):
        raise Unsupported("a forward pass that depends on the number of records")
    steps = chosen(batches, three, [step_of(one, two) for one, two in zip(first.seen, second.seen, strict=True)])
    counts = dict.fromkeys(batches.trained, 0)
    for step in steps:
        for name in {name for name in step.names if name is not None}:
            counts[name] += 1
    return Recipe(tuple(steps), counts)


def _drawn(t: torch.Tensor, double: bool, highest: int, device: torch.device) -> torch.Tensor:
    """Different records of the right shapes and types: normal numbers, whole numbers below ``highest``."""
    shape = (MANY, *t.shape[1:])
    if t.is_floating_point():
        drawn = torch.randn(shape, device=device, dtype=torch.float32)
        return _padded(drawn).double() if double else _padded(drawn).to(t.dtype)
    if t.dtype == torch.uint8 and highest == HIGHEST[0]:
        return torch.randint(0, 256, shape, device=device).to(t.dtype)
    return _padded(torch.randint(0, 2 if t.dtype == torch.bool else highest, shape, device=device)).to(t.dtype)


def _padded(drawn: torch.Tensor) -> torch.Tensor:
    """Zeros at the end of some records, as in sequences of different lengths."""
    if drawn.ndim < 2 or drawn.shape[1] < 2:
        return drawn
    lengths = torch.randint(1, drawn.shape[1] + 1, (len(drawn),), device=drawn.device)
    lengths[::2] = drawn.shape[1]
    ended = torch.arange(drawn.shape[1], device=drawn.device) >= lengths[:, None]
    return drawn.masked_fill(ended.reshape(*ended.shape, *([1] * (drawn.ndim - 2))), 0)


class _Saved:
    """Counts the bytes that autograd keeps for the backward pass, parameters apart."""

    def __init__(self, parameters: set[int]) -> None:
        self._known, self.bytes = set(parameters), 0

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in self._known:
            self._known.add(tensor.data_ptr())
            self.bytes += tensor.numel() * tensor.element_size()
        return tensor


def _compare(found: Mapping[str, PerExample], alone: Tensors, trained: Tensors) -> None:
    largest = max((float(g.abs().max()) for g in alone.values() if g.numel()), default=0.0)
    if not math.isfinite(largest):
        raise Unsupported("gradients of made-up records that are not finite")
    for name, expected in alone.items():
        tolerance = _TOLERANCE[trained[name].dtype] * largest
        actual = found[name].built(slice(0, 3)) if name in found else torch.zeros_like(expected)
        if not torch.allclose(actual.double(), expected.double(), rtol=0.0, atol=tolerance):
            raise Unsupported(f"a model in which records are not separate (seen at {name!r})")
        if name in found:
            norms = found[name].squared_norms().sqrt()
            true = torch.linalg.vector_norm(flat_rows(expected.double()), dim=1)
            if not torch.allclose(norms, true, rtol=1e-2, atol=tolerance * math.sqrt(expected[0].numel())):
                raise Unsupported(f"a layer whose gradient norm comes out differently (seen at {name!r})")


def _records_are_separate(
    batches: Batches, many: Any, recipe: Recipe, below: Any, marks: Iterable[float] | None = None
) -> None:
    """Another half of the records changes nothing of the rest.

    It is not numbers, then huge, where it is real; all lowest, then all highest, where it is whole: so sums, counts and
    extremes move.  With ``marks``, numbers that model and loss compare with, also all that :func:`_marked` gives for
    them and for the usual ones, where the model takes it.
    """
    kept = torch.rand(MANY) < 0.5
    kept[0], kept[-1] = True, True

    def other(t: torch.Tensor, top: int, high: bool) -> torch.Tensor:
        changed = t.clone()
        real = HUGE if high else torch.nan
        changed[~kept.to(t.device)] = real if t.is_floating_point() else (top - 1 if high else 0)
        return changed

    def results(records: Any) -> list[torch.Tensor]:
        found, losses = batches.gradients(records, MANY, recipe)
        keep = kept.to(losses.device)
        return [losses[keep].double()] + [found[name].squared_norms().sqrt()[keep] for name in sorted(found)]

    tolerance = _TOLERANCE[next(iter(batches.trained.values())).dtype]

    def compare(one: list[torch.Tensor], two: list[torch.Tensor]) -> None:
        for first, second in zip(one, two, strict=True):
            if not torch.allclose(first, second, rtol=0.0, atol=tolerance * float(1.0 + first.abs().max())):
                raise Unsupported("a model or loss in which one record changes another's loss")

    expected = results(many)
    for high in (False, True):
        compare(expected, results(tree_map(lambda t, top, h=high: other(t, top, h), many, below)))
    leaves, tree = tree_flatten(many)
    for i, leaf in enumerate(leaves if marks is not None else ()):
        for mark in _marks(batches.whole, leaf, list(marks or ())):
            for rows, more in _marked(leaf, ~kept, mark):
                try:
                    one, two = (
                        results(tree_unflatten([new if j == i else old for j, old in enumerate(leaves)], tree))
                        for new in (rows, more)
                    )
                except (Unsupported, ModelError, KeyboardInterrupt, *FATAL):
                    raise
                except BaseException:  # no value that the model takes
                    break
                compare(one, two)


def _marked(leaf: torch.Tensor, other: torch.Tensor, mark: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs that differ in the ``other`` records only: they are marked or not; all are at their ends, or they not."""
    changed = leaf.clone()
    changed[other] = mark
    pairs = [(leaf, changed)]
    if leaf.ndim > 1 and leaf.shape[1] > 1:
        ended = leaf.clone()
        ended[:, leaf.shape[1] // 2 :] = mark
        pairs.append((ended, torch.where(other.reshape(-1, *([1] * (leaf.ndim - 1))), leaf, ended)))
    return pairs


def _marks(model: nn.Module, leaf: torch.Tensor, compared: Sequence[float] = ()) -> list[float]:
    """Numbers that may mark what does not count, of those that the leaf's type holds."""
    compared = list(compared)[:MOST_COMPARED]
    if leaf.dtype == torch.bool:
        return []
    if leaf.is_floating_point():
        return [number for number in compared if abs(number) <= torch.finfo(leaf.dtype).max]
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    rows = {row for table in tables for row in (table.num_embeddings - 1, table.padding_idx) if row is not None}
    limits = torch.iinfo(leaf.dtype)
    whole = (int(number) for number in compared if number.is_integer())
    return [mark for mark in dict.fromkeys((*MARKS, *sorted(rows), *whole)) if limits.min <= mark <= limits.max]
