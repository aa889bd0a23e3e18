"""The DP-SGD loop: reserve, sample, clip, add noise, step.

One step (Abadi et al. 2016, Algorithm 1, with Poisson batches S):

    ĝ = (1/B) (Σ_{i∈S} clip_C(gᵢ) + N(0, C²σ² I)),   then the optimizer, on ĝ alone

B is the *public* expected batch size.  Everything after ĝ is post-processing.  The user's module is never run: a copy
is trained, and its weights are returned in a second, fresh copy, so nothing that a forward pass leaves behind is
released.

Sum and noise are rounded to a public grid before they are added (:mod:`dpml.mechanisms.lattice`), for which the clip
bound is a thousandth smaller than C; a float32 model's is a thousandth smaller again (:data:`FLOAT32_MARGIN`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from dpml.accounting import Event
from dpml.errors import DataError
from dpml.mechanisms import NoiseSource, Prefetch
from dpml.mechanisms.lattice import Grid
from dpml.mechanisms.noise import MAX_STEPS, rounded_normal
from dpml.mechanisms.rounded import MOST_INT32
from dpml.sgd.adaptive import next_clip, noisy_count
from dpml.sgd.batches import Batch, Rows, as_rows
from dpml.sgd.clipping import Clipper
from dpml.sgd.learnable import refuse_fault, refuse_silent
from dpml.sgd.models import Loss, ModelLoss, check_model, copied, per_example_loss
from dpml.sgd.optimizers import Optimizer, state_dtype
from dpml.sgd.per_example import Tensors, trainable
from dpml.sgd.planning import DPSGDPlan, plan_dp_sgd
from dpml.sgd.randomness import own_random_numbers
from dpml.sgd.sampling import fixed_size_indices, poisson_indices
from dpml.sgd.states import State, completed_state, snapshot
from dpml.sgd.team import Alone, Team
from dpml.sgd.tensors import resolve_device

__all__ = ["DPSGDPlan", "fit_dp_sgd", "plan_dp_sgd"]

FLOAT32_MARGIN = 1.0 - 2.0**-10
"""What a model that is not float64 is clipped below C for: runs of records are summed in its own type, and the rounding
of such a sum depends on who else is in it.  A measured margin, not a proof: records that were not made for it exceeded
C by up to 4e-5 of it; records and an order made for the runs and the matrix product's blocks by up to 1 % at 16,000 of
them, in proportion to the batch (docs/dp-sgd.md)."""

PIECE = 2**20
"""Noise for so many numbers is held at a time."""

SHARED = 2**14
"""Parameters of fewer numbers share a row: it takes as many operations as one of them."""

_log = logging.getLogger(__name__)


def fit_dp_sgd(
    plan: DPSGDPlan,
    model: nn.Module,
    X: Any,
    y: Any,
    *,
    noise: NoiseSource,
    reserve: Callable[[Event, int], None],
    device: str = "cpu",
    loss: Loss | None = None,
    on_step: Callable[[int], None] | None = None,
    save_checkpoint: Callable[[State], None] | None = None,
    start: Mapping[str, Any] | None = None,
    secure_noise: bool = True,
    gradients: str = "auto",
    team: Team | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """Train a copy of ``model`` by ``plan``.

    Args:
        plan: from :func:`plan_dp_sgd`; carries noise, rate, steps and the neighbouring relation.
        model: left untouched.
        X, y: rows ``(n, …)`` and targets ``(n,)``, in memory or in a file, or what :func:`dpml.sgd.batches.as_rows`
            takes besides; n is private and used for sampling only.
        noise: the only source of noise and of Poisson coins.
        reserve: ``reserve(event_per_step, count)`` charges the next ``count`` steps and returns when that is on disk;
            it is called before the first of them draws a coin or uses noise.
        loss: per-example ``loss(logits, targets) -> (B,)``; default logistic (one logit) or cross entropy.
        on_step: called with the number of steps done.
        save_checkpoint: called with a state after every reserved block.
        start: a saved state; its ``"step"`` is the number of steps *charged* so far.  Steps that were charged but not
            reached before a crash are lost, never run again.
        secure_noise: ``False`` draws the noise of a CUDA run with the device's own generator (seeded by the operating
            system, but no cipher); coins stay secret.
        gradients: ``"auto"``, or ``"per_example"``: every record is run alone.
        team: the processes that train together: each calls this with all records, takes its part of them, and ends with
            the same weights.  Only process 0 calls ``reserve`` and ``save_checkpoint``.

    Returns:
        The trained copy (``requires_grad`` and mode as in ``model``), and diagnostics that are **private**: per step
        ``batch_size``, ``clipped_share``, ``mean_norm``, ``non_finite`` (contributions that were zero since the
        gradient was not finite or could not be computed), plus the number of steps run and, for a model whose records
        are run alone, why.

    Raises:
        ModelError, ConfigError, DataError: nothing was charged; none of them depends on the value of a record.
        Whatever ``reserve`` raises: none of the block's steps was run.
    """
    check_model(model)
    target = resolve_device(device)
    working = copied(model).to(target)
    team = team or Alone()
    rows = team.rows(X, y, partial(as_rows, model=working, device=target))
    plan.check_records(len(rows))
    state = team.begin(plan, completed_state(start, working, target, plan), len(rows), noise.secret)
    parameters: Tensors = trainable(working)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state["parameters"][name])
    optimizer = Optimizer(plan, parameters)
    optimizer.load(state["optimizer"])
    clipper = Clipper(working, ModelLoss(loss or per_example_loss), rows.zeros(), gradients)
    refuse_fault(clipper.fault, rows.zeros())
    refuse_silent(model, ModelLoss(loss or per_example_loss), rows.zeros())
    stepper = Stepper(plan, clipper, noise, target, secure_noise, team)
    stepper.clip = state["clip"]

    first = int(state["step"])
    try:
        with own_random_numbers(target, unknown=noise.secret):
            for begin in range(first, plan.steps, plan.checkpoint_every):
                end = min(begin + plan.checkpoint_every, plan.steps)
                team.once(partial(charge_block, plan, reserve, end - begin))
                for step in range(begin, end):
                    team.ready()
                    batch = rows.take(draw_batch(plan, rows, noise, team))
                    noise_std = stepper.noise_std_per_entry
                    optimizer.step(step, stepper.gradient(batch), noise_std)
                    if on_step is not None:
                        on_step(step + 1)
                team.agree("the trained weights", {**parameters, "": torch.tensor(stepper.clip, dtype=torch.float64)})
                if save_checkpoint is not None and team.rank == 0:
                    save_checkpoint(snapshot(end, parameters, optimizer.state(), stepper.clip))
    finally:
        stepper.close()
        rows.close()
    notes = stepper.notes
    if notes.total_non_finite:
        _log.info(
            "%d contributions were not finite or raised an error and were replaced by zero", notes.total_non_finite
        )
    found = {**notes.to_dict(), "left_out": rows.left_out, "steps_run": max(plan.steps - first, 0)}
    private = team.merged(found)
    if clipper.reason:
        private["records_run_alone"] = clipper.reason
    return _released(model, optimizer.released(), target), private


def charge_block(plan: DPSGDPlan, reserve: Callable[[Event, int], None], count: int) -> None:
    """Charge ``count`` steps; nothing of them has been drawn yet."""
    reserve(plan.event_per_step, count)


def draw_batch(plan: DPSGDPlan, rows: Rows, noise: NoiseSource, team: Team) -> np.ndarray:
    """The indexes of a step's records, from fresh secret coins."""
    if plan.sampling == "fixed_size":
        return fixed_size_indices(noise, len(rows), plan.expected_batch_size)
    return team.mine(poisson_indices, noise, len(rows), plan.sample_rate)


class Stepper:
    """Noisy gradients of batches: all that touches records, and all noise, of a run.

    Attributes:
        clip: the current clipping norm C; changes under adaptive clipping only.
        notes: private diagnostics.
    """

    def __init__(
        self,
        plan: DPSGDPlan,
        clipper: Clipper,
        noise: NoiseSource,
        device: torch.device,
        secure_noise: bool = True,
        team: Team | None = None,
    ) -> None:
        self.plan, self.clipper, self.team = plan, clipper, team or Alone()
        self._ahead = Prefetch(noise) if device.type != "cpu" else None  # a processor has nothing to spare meanwhile
        self.noise: NoiseSource = self._ahead or noise
        self.clip = plan.max_grad_norm
        self.notes = _Diagnostics()
        self._size = clipper.size
        self._rows = in_rows(clipper.parameters)
        sizes = [sum(clipper.parameters[name].numel() for name in names) for names in self._rows]
        self._pieces = in_pieces(sizes, device)
        self._double = all(p.dtype == torch.float64 for p in clipper.parameters.values())
        self._generator: torch.Generator | None = None
        if device.type == "cuda" and not secure_noise:
            self._generator = torch.Generator(device)
            self._generator.seed()  # from the operating system, not from the caller's global seed

    def gradient(self, batch: Batch) -> Tensors:
        """ĝ of one step.  Noise for all parameters is drawn whatever the batch, also when it is empty."""
        plan, grid = self.plan, Grid(self.clip, self._size, sums=self.team.size)
        kind = "flat" if plan.clipping == "adaptive" else plan.clipping
        bound = clip_bound(self.clip, grid, self._double)
        sums, norms = self.clipper.sums(batch, bound, plan.micro_batch_size, kind)
        self.notes.record(norms, self.clip)
        std = noise_std(plan, self.clip) * self.team.noise_share
        rows = [self._row([sums.pop(name) for name in names]) for names in self._rows]
        for piece in self._pieces:
            lengths = [part.stop - part.start for _, part in piece]
            drawn = self._drawn(std, grid.spacing, sum(lengths)).split(lengths)
            for (row, part), steps in zip(piece, drawn, strict=True):
                released_sum(grid, rows[row][part], steps)
        if plan.clipping == "adaptive":
            count = noisy_count(plan, norms, self.clip, self.noise, self.team.noise_share, self.team.size)
            self.clip = next_clip(plan, self.clip, float(self.team.total(torch.tensor([count], dtype=torch.float64))))
        return self._by_name(self._together(rows))

    def _row(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """New tensors' numbers in one row ``(n,)``: float32, or float64, and this where processes add up the rows."""
        row = values[0].reshape(-1) if len(values) == 1 else torch.cat([value.reshape(-1) for value in values])
        return row if row.dtype == torch.float32 and self.team.size == 1 else row.double()

    def _together(self, rows: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """What all processes release together; alone, what this one does."""
        if self.team.size == 1:
            return rows
        return self.team.total(torch.cat(list(rows))).split([row.numel() for row in rows])

    def _by_name(self, rows: Sequence[torch.Tensor]) -> Tensors:
        """The rows' numbers over the normaliser, in the parameters' shapes and in the optimizer's type.

        In this type *before* they are divided: a row's own type depends on the records (:meth:`Clipper.sums`), and a
        quotient that is rounded in the one or the other way would tell which it was.
        """
        parameters = self.clipper.parameters
        found: Tensors = {}
        for names, row in zip(self._rows, rows, strict=True):
            mean = row.to(state_dtype(parameters[names[0]])).div_(normaliser(self.plan))
            parts = mean.split([parameters[name].numel() for name in names])
            found.update((name, part.view(parameters[name].shape)) for name, part in zip(names, parts, strict=True))
        return found

    def _drawn(self, std: float, spacing: float, size: int) -> torch.Tensor:
        if self._generator is None:
            return torch.from_numpy(draw_noise(self.noise, std, spacing, size)).to(self.clipper.device)
        device = self.clipper.device
        normal = torch.randn(size, dtype=torch.float64, device=device, generator=self._generator)
        return normal.mul_(std / spacing).round_()

    @property
    def noise_std_per_entry(self) -> float:
        """Of the next gradient; public."""
        return noise_std(self.plan, self.clip) / normaliser(self.plan)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()


def in_rows(parameters: Tensors) -> list[tuple[str, ...]]:
    """The parameters by what is rounded and released in one go: large ones alone, small ones of a type together."""
    rows: list[tuple[str, ...]] = [(name,) for name, p in parameters.items() if p.numel() >= SHARED]
    small: dict[torch.dtype, list[str]] = {}
    for name, p in parameters.items():
        if p.numel() < SHARED:
            small.setdefault(state_dtype(p), []).append(name)
    return rows + [tuple(names) for names in small.values()]


def in_pieces(sizes: Sequence[int], device: torch.device) -> list[list[tuple[int, slice]]]:
    """Parts of the rows that get their noise together, so that little of it is held; all of them on CUDA."""
    most = PIECE if device.type == "cpu" else max(1, sum(sizes))
    pieces: list[list[tuple[int, slice]]] = [[]]
    room = most
    for row, size in enumerate(sizes):
        start = 0
        while start < size:
            if not room:
                pieces.append([])
                room = most
            stop = min(size, start + room)
            pieces[-1].append((row, slice(start, stop)))
            room -= stop - start
            start = stop
    return pieces


def draw_noise(noise: NoiseSource, std: float, spacing: float, size: int) -> np.ndarray:
    """Fresh noise of standard deviation ``std`` for one sum, in steps of the grid (whole numbers, int32 or float64)."""
    return rounded_normal(noise, std, spacing, size)


def noise_std(plan: DPSGDPlan, clip: float) -> float:
    """C·σ, under ``replace_one`` too: a record contributes at most C, and the accountant knows that two are swapped."""
    return clip * plan.gradient_noise_multiplier


def normaliser(plan: DPSGDPlan) -> float:
    """The public expected batch size, whatever was drawn and however many records there are."""
    return float(plan.expected_batch_size)


def clip_bound(clip: float, grid: Grid, double: bool) -> float:
    """What records are clipped at, so that the sum *as it is released* has sensitivity C."""
    return clip * grid.shrink * (1.0 if double else FLOAT32_MARGIN)


def released_sum(grid: Grid, total: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """What :meth:`Grid.add` gives, ``(p,)``, on any device; rounded to the type of ``total``, which holds it then.

    Args:
        total: a clipped sum, or some entries of it, ``(p,)`` float64 or float32; it becomes the result.
        steps: ``(p,)``, the noise in steps of the grid: whole numbers, int32 up to 2^30 in size, or floats up to 2^52.

    Raises:
        DataError: a sum that is not a number (its sensitivity would not be bounded; clipped sums never are).
    """
    total.mul_(1.0 / grid.spacing).round_()  # exact: the spacing is a power of two
    if not total.numel():
        return total
    least, greatest = (float(end) for end in torch.aminmax(total))  # NaN where there is one
    if not (least >= -MAX_STEPS and greatest <= MAX_STEPS):
        if math.isnan(least):
            raise DataError("a clipped sum is NaN. This is a bug in dpml; please report it.")
        total.clamp_(-MAX_STEPS, MAX_STEPS)
    if steps.dtype == torch.int32 and least > -MOST_INT32 and greatest < MOST_INT32:
        whole = total.to(torch.int32).add_(steps)
    else:  # the same number, in more bytes
        whole = total.to(torch.float64).add_(steps.to(torch.float64).add_(0.0))  # the sign of a zero would be a bit
    return total.copy_(whole).mul_(grid.spacing)


def _released(model: nn.Module, weights: Tensors, device: torch.device) -> nn.Module:
    """A fresh copy of the untouched ``model`` (buffers as they were) with the trained weights."""
    released = copied(model).to(device)
    own = dict(released.named_parameters())
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(value)
    return released


class _Diagnostics:
    """What happened, step by step.  Private: every number here depends on records without noise."""

    def __init__(self) -> None:
        self.batch_size: list[int] = []
        self.clipped_share: list[float] = []
        self.mean_norm: list[float] = []
        self.non_finite: list[int] = []

    @property
    def total_non_finite(self) -> int:
        return sum(self.non_finite)

    def record(self, norms: torch.Tensor, max_grad_norm: float) -> None:
        values = norms.detach().cpu().numpy()
        total = float(values.sum())
        finite = values if math.isfinite(total) else values[np.isfinite(values)]
        self.batch_size.append(len(values))
        self.non_finite.append(len(values) - len(finite))
        count = max(len(finite), 1)
        self.clipped_share.append(np.count_nonzero(finite > max_grad_norm) / count)
        self.mean_norm.append((total if finite is values else float(finite.sum())) / count)

    def to_dict(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "clipped_share": self.clipped_share,
            "mean_norm": self.mean_norm,
            "non_finite": self.non_finite,
        }
