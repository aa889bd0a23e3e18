"""The custodian's look at records before a ``dp_sgd`` run: does anything that the run would keep to itself go wrong?

In a run a record that raises, or whose loss is not finite, contributes zero and nothing outside ``private/`` says so:
an error would tell that the record is there.  Here it is said.  **Everything in this file is private**; no run calls it
and nothing is charged for it (like ``python -m dpml.schema check``).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpml.data import PrivateData
from dpml.data.stored import StoredItems
from dpml.errors import ConfigError, invalid
from dpml.planning import check_private, device_of, method_of, network_of
from dpml.ranges import as_integer, is_count
from dpml.running import network_loss
from dpml.teamwork import split_source

if TYPE_CHECKING:
    import torch

    from dpml.sgd.models import LossFunction
    from dpml.trainer import PrivateTrainer

WARNING = "PRIVATE, not for release: these numbers depend on single records and cost no budget."
ADVICE = "For finding faults. A setting chosen by these numbers is chosen by the records, which epsilon does not cover."
MOST_RECORDS = 10**9
QUANTILES = (0, 25, 50, 75, 100)


@dataclass(frozen=True, repr=False)
class RecordsCheck:
    """What :meth:`PrivateTrainer.check_records` saw.  **Private.**

    Attributes:
        looked_at: records looked at; of a table, only of those that reading it keeps.
        left_out_by_reading: records of the whole table that reading it left out (0 for arrays and datasets).
        raising: items of a dataset that raise; ``first_error`` is the first one's class and message, else "".
        unusable: records looked at that contribute nothing since they raise, hold NaN, have another shape or a label
            that is none of the classes.
        failing: records on which the model or the loss raises; ``first_failure`` as ``first_error``.
        losses_not_finite: records whose loss is NaN or infinite.
        gradients_not_finite: the same of the gradient, failing records included: contributions of zero.
        norms: the quantiles 0, 25, 50, 75 and 100 % of the finite gradient norms at the initial weights, or ().
        max_grad_norm: what they would be clipped at (the start value under adaptive clipping).
        share_above: share of the finite norms above it.
        never_reached: trained parameters whose gradient is zero on every record looked at, at the initial weights.
    """

    looked_at: int
    left_out_by_reading: int
    raising: int
    first_error: str
    unusable: int
    failing: int
    first_failure: str
    losses_not_finite: int
    gradients_not_finite: int
    norms: tuple[float, ...]
    max_grad_norm: float
    share_above: float
    never_reached: tuple[str, ...]

    def rows(self) -> list[tuple[str, str]]:
        """(name, value), for people."""
        of = f" of {self.looked_at}"
        rows = [("records looked at", str(self.looked_at))]
        if self.left_out_by_reading:
            rows.append(("left out as the table is read", f"{self.left_out_by_reading} of all"))
        rows.append(("items that raise", f"{self.raising}{of}" + (f"; first: {self.first_error}" * bool(self.raising))))
        rows.append(("records that cannot be used", f"{self.unusable}{of}"))
        first = f"; first: {self.first_failure}" if self.failing else ""
        rows.append(("model or loss raises", f"{self.failing}{of}{first}"))
        rows.append(("losses not finite", f"{self.losses_not_finite}{of}"))
        rows.append(("gradients not finite", f"{self.gradients_not_finite}{of}"))
        for percent, norm in zip(QUANTILES, self.norms, strict=False):
            rows.append((f"gradient norm, {percent} %", f"{norm:.4g}"))
        if self.norms:
            rows.append((f"above max_grad_norm = {self.max_grad_norm:g}", f"{100 * self.share_above:.1f} %"))
        rows.append(("parameters never reached", ", ".join(self.never_reached) or "none"))
        return rows

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join([WARNING, *(f"  {name:<{width}}  {value}" for name, value in rows), ADVICE])

    __repr__ = __str__


def check_records(trainer: PrivateTrainer, data: PrivateData, records: int = 256) -> RecordsCheck:
    """See :meth:`PrivateTrainer.check_records`."""
    check_private(data)
    method = method_of(trainer, data.public)
    if method != "dp_sgd":
        raise ConfigError(
            f"method = {method!r} is not allowed here: check_records must be given 'dp_sgd', whose gradients it shows. "
            "For a table use `python -m dpml.schema check`, which lists the cells that break the schema."
        )
    count = as_integer(records)
    if not is_count(count, 1, MOST_RECORDS):
        raise invalid("records", records, f"a whole number from 1 to {MOST_RECORDS:,}")
    trainer.check(data)

    from dpml import sgd
    from dpml.sgd.batches import as_rows
    from dpml.sgd.models import copied
    from dpml.sgd.randomness import own_random_numbers

    source = split_source(trainer.noise_source, secrets.randbits(128))
    loaded = data.load(source, lazy=True, every_record=data.keeps_every_record)
    watched = _Watched(loaded.X.dataset) if isinstance(loaded.X, StoredItems) else None
    X = loaded.X if watched is None else watched.stored(loaded.X)
    device = sgd.resolve_device(device_of(trainer))
    model = copied(network_of(trainer, data.public)).to(device)
    rows = as_rows(X, loaded.y, model, device)
    n = len(rows)
    index = np.unique(np.linspace(0, n - 1, min(count, n)).astype(np.int64)) if n else np.zeros(0, dtype=np.int64)
    try:
        batch = rows.take(index)
    finally:
        rows.close()
    loss_fn = sgd.ModelLoss(network_loss(trainer) or sgd.per_example_loss)
    with own_random_numbers(device):
        seen = _Seen(model, loss_fn, batch)
    notes = loaded.private_notes.get("train", {})
    kept_all = loaded.stored
    finite = seen.norms[np.isfinite(seen.norms)]
    return RecordsCheck(
        looked_at=len(index),
        left_out_by_reading=0 if kept_all else int(notes.get("records", n)) - int(notes.get("used", n)),
        raising=0 if watched is None else watched.raising,
        first_error="" if watched is None else watched.first,
        unusable=len(index) - len(batch[0]),
        failing=seen.failing,
        first_failure=seen.first,
        losses_not_finite=seen.losses_not_finite,
        gradients_not_finite=len(seen.norms) - len(finite),
        norms=tuple(float(q) for q in np.percentile(finite, QUANTILES)) if len(finite) else (),
        max_grad_norm=float(trainer.max_grad_norm),
        share_above=float((finite > trainer.max_grad_norm).mean()) if len(finite) else 0.0,
        never_reached=seen.never_reached,
    )


class _Watched:
    """A dataset that counts the items that raise, and keeps what the first one said."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.raising, self.first = 0, ""

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, position: int) -> Any:
        try:
            return self._dataset[position]
        except MemoryError:
            raise
        except Exception as error:
            self.raising += 1
            self.first = self.first or _told(error)
            raise

    def stored(self, items: StoredItems) -> StoredItems:
        """``items`` read through this, in this process."""
        return StoredItems(self, items.row_shape, items.target_dtype, items._read)


class _Seen:
    """Losses and gradients of the records of a batch, each alone."""

    def __init__(self, model: torch.nn.Module, loss_fn: LossFunction, batch: Any) -> None:
        import torch

        from dpml.sgd.per_example import per_example_gradients, trainable

        self.failing, self.losses_not_finite, self.first = 0, 0, ""
        reached: set[str] = set()
        squares: list[np.ndarray] = [np.zeros(0)]
        for part in _parts(batch, sum(p.numel() for p in trainable(model).values())):
            for i in range(len(part[0])):
                self._loss(model, loss_fn, tuple(t[i : i + 1] for t in part))
            found = per_example_gradients(model, loss_fn, part)
            total = torch.zeros(len(part[0]), dtype=torch.float64)
            for name, gradient in found.items():
                own = gradient.double().flatten(1).square().sum(1).cpu()
                if bool((own[torch.isfinite(own)] > 0).any()):
                    reached.add(name)
                total += own
            squares.append(total.numpy())
        self.norms = np.sqrt(np.concatenate(squares))
        looked = len(self.norms) > 0
        self.never_reached = tuple(name for name in trainable(model) if looked and name not in reached)

    def _loss(self, model: torch.nn.Module, loss_fn: LossFunction, one: Any) -> None:
        import torch
        from torch.func import functional_call

        from dpml.sgd.per_example import _Bound

        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        copies = {f"model.{name}": value.detach().clone() for name, value in state.items()}  # it may write into buffers
        try:
            with torch.no_grad():
                loss = functional_call(_Bound(model, loss_fn), copies, (one,))
            self.losses_not_finite += not bool(torch.isfinite(loss))
        except MemoryError:
            raise
        except Exception as error:
            self.failing += 1
            self.first = self.first or _told(error)


def _parts(batch: Any, n_parameters: int) -> Iterator[Any]:
    from dpml.sgd.clipping import default_micro_batch

    step = default_micro_batch(n_parameters)
    for start in range(0, len(batch[0]), step):
        yield tuple(t[start : start + step] for t in batch)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
