"""Who trains: one process, or several that share the records (``torchrun``).

W processes hold the same table and split it by position: record i belongs to process i mod W.  In each step a process
draws the coins of its own records, sums their clipped gradients, adds noise of standard deviation Cσ/√W from its own
secret source, and rounds both to a grid that allows for W roundings (docs/proofs-floats.md, section 9).  The sum over
the processes is then what one process would release: every record contributes at most C, the independent noises add up
to (Cσ)², so the event, and ε, are the same.  A record more or less may move all later records to other processes; that
moves no sum but by roundings, which the grid counts.

No process sees a released sum before all have added their noise, and one that is gone stops the others: before a step
by the barrier in :meth:`Team.ready`, before anything of that step was drawn; within a step the sum is never completed.
The processes trust each other and the network between them; only the sums are private against the outside.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import torch
import torch.distributed as dist

from dpml import processes
from dpml.data.stored import mapping_of
from dpml.errors import ConfigError, TeamError
from dpml.mechanisms import NoiseSource
from dpml.sgd.batches import Batch, Rows

if TYPE_CHECKING:
    from dpml.sgd.planning import DPSGDPlan
    from dpml.sgd.states import State

Sampler = Callable[[NoiseSource, int, float], np.ndarray]
_UP = 1.0 + 1e-15  # rounding goes to the safe side


class Team(Protocol):
    """The processes of a run; a context manager that tells the others when this process fails.

    Every process calls every method, in the same order.

    Attributes:
        size: W, how many there are; public.
        rank: which one this is; process 0 leads: it alone charges, writes and reports.
        noise_share: this process' part of the noise's standard deviation; the squares of all parts add up to 1.
    """

    size: int
    rank: int
    noise_share: float

    def rows(self, X: Any, y: Any, make: Callable[[Any, Any], Rows]) -> Rows:
        """All records, of which this process may only take its own: ``make(X, y)`` or less."""
        ...

    def begin(self, plan: DPSGDPlan, state: State, n: int, secret: bool) -> State:
        """The leader's ``state``; raises if the processes differ in plan, model, number of records or noise."""
        ...

    def once(self, action: Callable[[], None]) -> None:
        """The leader does ``action``; return, in every process, when it is done."""
        ...

    def ready(self) -> None:
        """Return when every process is about to do the next step; raise, before anything is drawn, if one is gone."""
        ...

    def mine(self, sampler: Sampler, noise: NoiseSource, n: int, sample_rate: float) -> np.ndarray:
        """The drawn records among this process' own."""
        ...

    def total(self, release: torch.Tensor) -> torch.Tensor:
        """The sum of what all processes release, the same in each."""
        ...

    def agree(self, what: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raise unless all processes hold the same values."""
        ...

    def merged(self, notes: Mapping[str, Any]) -> dict[str, Any]:
        """The private notes of all processes as one."""
        ...

    def share(self, value: Any = None) -> Any:
        """The leader's ``value``, in every process."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


class Alone:
    """One process with all records."""

    size, rank, noise_share = 1, 0, 1.0

    def rows(self, X: Any, y: Any, make: Callable[[Any, Any], Rows]) -> Rows:
        return make(X, y)

    def begin(self, plan: DPSGDPlan, state: State, n: int, secret: bool) -> State:
        return state

    def once(self, action: Callable[[], None]) -> None:
        action()

    def ready(self) -> None:
        pass

    def mine(self, sampler: Sampler, noise: NoiseSource, n: int, sample_rate: float) -> np.ndarray:
        return sampler(noise, n, sample_rate)

    def total(self, release: torch.Tensor) -> torch.Tensor:
        return release

    def agree(self, what: str, tensors: Mapping[str, torch.Tensor]) -> None:
        pass

    def merged(self, notes: Mapping[str, Any]) -> dict[str, Any]:
        return dict(notes)

    def share(self, value: Any = None) -> Any:
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        pass


class Processes:
    """The processes that ``torchrun`` started, or those of the default group where the caller has made one.

    Waiting, charging and agreeing go over a gloo group of its own; sums over the same on the CPU and over NCCL on CUDA,
    where each process uses the device of its ``LOCAL_RANK``.  A source of noise that is not secret (tests) is taken to
    be the same in all processes: each draws the coins of all records and keeps its own, and the leader adds the whole
    noise, so that the run is that of one process.

    Args:
        timeout: seconds that one process waits for another, default ``DPML_PROCESS_TIMEOUT`` or 300.

    Raises:
        TeamError: a process is missing.
        ConfigError: a timeout out of range.
    """

    _opened = 0  # by this process; the same number in all, for they open the same ones

    def __init__(self, timeout: float | None = None) -> None:
        self.timeout = processes.timeout_seconds() if timeout is None else timeout
        self.size, self.rank = 1, 0
        self.noise_share = math.nan  # set by begin: noise without it is refused by every source
        self._gloo: dist.ProcessGroup | None = None
        self._nccl: dist.ProcessGroup | None = None
        self._own_default = False
        self._key = ""

    def __enter__(self) -> Self:
        wait = timedelta(seconds=self.timeout)
        _take_device()
        try:
            with self._waiting("when the run began"):
                self._own_default = not dist.is_initialized()
                if self._own_default:
                    dist.init_process_group("gloo", timeout=wait)
                self.size, self.rank = dist.get_world_size(), dist.get_rank()
                Processes._opened += 1
                self._key = f"dpml/stopped/{Processes._opened}"
                self._gloo = dist.new_group(backend="gloo", timeout=wait)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the others, or tell them that this process has failed; then leave them."""
        try:
            if kind is None:
                self.ready()
            elif not issubclass(kind, TeamError):
                _store().set(self._key, f"{self.rank} {kind.__name__}")
        except (TeamError, RuntimeError, ValueError):
            pass  # all is done, or the others see that this process is gone
        finally:
            self._close()

    def rows(self, X: Any, y: Any, make: Callable[[Any, Any], Rows]) -> Rows:
        """Of arrays in memory, only this process' records are copied to the model's device."""
        arrays = isinstance(X, np.ndarray | torch.Tensor) and isinstance(y, np.ndarray | torch.Tensor)
        if not arrays or X.ndim < 1 or y.ndim < 1 or len(X) != len(y) or mapping_of(X) is not None:
            return make(X, y)  # in a file, read as drawn, or an error
        own = slice(self.rank, None, self.size)
        return OwnRows(make(X[own], y[own]), len(X), self.size)

    def begin(self, plan: DPSGDPlan, state: State, n: int, secret: bool) -> State:
        processes.refuse_fixed_size(plan.sampling)
        tensors = dict(_tensors(state))
        shapes = sorted((name, tuple(value.shape), str(value.dtype)) for name, value in tensors.items())
        for what, value in {
            "the plan": plan,
            "the model's parameters": shapes,
            "the number of records": n,
            "the kind of noise source": secret,
            "the kind of device": sorted({value.device.type for value in tensors.values()}),
        }.items():
            self._agree(what, repr(value).encode())
        self.noise_share = noise_share(secret, self.rank, self.size)
        step, clip = self.share((state["step"], state["clip"]))
        cuda = any(value.is_cuda for value in tensors.values())
        if cuda:
            _refuse_shared_device()
        with self._waiting("while the first weights were handed out"):
            if cuda:
                self._nccl = dist.new_group(backend="nccl", timeout=timedelta(seconds=self.timeout))
            for name in sorted(tensors):
                sent = tensors[name].cpu().contiguous()
                dist.broadcast(sent, src=0, group=self._gloo)
                tensors[name].copy_(sent)
        return {**state, "step": step, "clip": clip}

    def once(self, action: Callable[[], None]) -> None:
        self._all_here("before process 0 was to charge the next steps, which it did not")
        if self.rank == 0:
            action()
        done = torch.ones(1)
        with self._waiting("while process 0 was to charge the next steps, of which none was drawn here"):
            dist.broadcast(done, src=0, group=self._gloo)

    def ready(self) -> None:
        self._all_here("before a step, of which nothing was drawn")

    def _all_here(self, when: str) -> None:
        with self._waiting(when):
            dist.monitored_barrier(self._gloo, timeout=timedelta(seconds=self.timeout))

    def mine(self, sampler: Sampler, noise: NoiseSource, n: int, sample_rate: float) -> np.ndarray:
        if noise.secret:
            own = len(range(self.rank, n, self.size))
            return sampler(noise, own, sample_rate) * self.size + self.rank
        drawn = sampler(noise, n, sample_rate)
        return drawn[drawn % self.size == self.rank]

    def total(self, release: torch.Tensor) -> torch.Tensor:
        whole = release.to(torch.float64, copy=True)
        when = "within a step, whose sum was not completed"
        if whole.is_cuda:  # NCCL would wait for a dead process: ask first
            self._all_here(when)
        with self._waiting(when):
            dist.all_reduce(whole, group=self._nccl if whole.is_cuda else self._gloo)
        return whole

    def agree(self, what: str, tensors: Mapping[str, torch.Tensor]) -> None:
        digest = hashlib.sha256()
        for name in sorted(tensors):
            digest.update(tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        self._agree(what, digest.digest())

    def _agree(self, what: str, content: bytes) -> None:
        own = torch.frombuffer(bytearray(hashlib.sha256(content).digest()), dtype=torch.uint8)
        found = [torch.empty_like(own) for _ in range(self.size)]
        with self._waiting(f"while the processes compared {what}"):
            dist.all_gather(found, own, group=self._gloo)
        other = [rank for rank, digest in enumerate(found) if not torch.equal(digest, found[0])]
        if other:
            raise Disagreement(
                f"process {', '.join(map(str, other))} and process 0 differ in {what}; nothing more was drawn. Start "
                "all processes with the same arguments, data and version."
            )

    def merged(self, notes: Mapping[str, Any]) -> dict[str, Any]:
        found: list[Any] = [None] * self.size
        with self._waiting("after the last step"):
            dist.all_gather_object(found, dict(notes), group=self._gloo)
        return merged_notes(found)

    def share(self, value: Any = None) -> Any:
        box = [value if self.rank == 0 else None]
        with self._waiting("while process 0 was to say how to go on"):
            dist.broadcast_object_list(box, src=0, group=self._gloo)
        return box[0]

    @contextmanager
    def _waiting(self, when: str) -> Iterator[None]:
        """What torch raises for a lost process, as the error that says which one and when."""
        try:
            yield
        except RuntimeError as error:
            raise TeamError(
                f"process {self.rank} of {self.size} stopped {when}: {self._reason(error)} What was charged stays "
                "spent. Start all processes again; a DP-SGD run with a folder can be resumed."
            ) from error

    def _reason(self, error: RuntimeError) -> str:
        try:
            if self._key and _store().check([self._key]):
                rank, kind = _store().get(self._key).decode().split()
                return f"process {rank} failed ({kind}, see its own message)."
        except (RuntimeError, ValueError):  # the store went with the process that held it
            pass
        first = str(error).strip().partition("\n")[0][:200]
        return f"another process is gone or did not answer within {self.timeout:g} s ({first})."

    def _close(self) -> None:
        groups = [group for group in (self._nccl, self._gloo) if group is not None]
        self._nccl = self._gloo = None
        if not dist.is_initialized():
            return
        for group in groups:
            dist.destroy_process_group(group)
        if self._own_default:
            dist.destroy_process_group()


class OwnRows(Rows):
    """The records of one process, under their numbers among all ``n``."""

    def __init__(self, own: Rows, n: int, size: int) -> None:
        self._own, self._n, self._size = own, n, size

    def __len__(self) -> int:
        return self._n

    def take(self, index: np.ndarray) -> Batch:
        return self._own.take(index // self._size)

    def zeros(self) -> Batch:
        return self._own.zeros()

    def close(self) -> None:
        self._own.close()


class Disagreement(ConfigError, TeamError):
    """Processes of one run with different arguments or data; each of them raises it."""


def noise_share(secret: bool, rank: int, size: int) -> float:
    """Part of the noise's standard deviation: 1/√W each, or all of a repeatable source (tests) by process 0."""
    if secret:
        return _UP / math.sqrt(size)
    return 1.0 if rank == 0 else 0.0


def merged_notes(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Step by step, sums of counts and means over all records of what the processes noted (private)."""
    notes = dict(found[0])
    used = np.array([np.subtract(part["batch_size"], part["non_finite"]) for part in found], dtype=float)
    for name in ("batch_size", "non_finite"):
        notes[name] = [int(value) for value in np.sum([part[name] for part in found], axis=0)]
    for name in ("clipped_share", "mean_norm"):
        weighted = (used * np.array([part[name] for part in found])).sum(axis=0) / np.maximum(used.sum(axis=0), 1.0)
        notes[name] = [float(value) for value in weighted]
    notes["left_out"] = sum(part["left_out"] for part in found)
    return notes


def _tensors(state: State) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in state["parameters"].items():
        yield f"parameters/{name}", value
    for part, tensors in state["optimizer"].items():
        for name, value in tensors.items():
            yield f"optimizer/{part}/{name}", value


def _store() -> Any:
    """The key-value store by which the default group was made."""
    return dist.distributed_c10d._get_default_store()


def _take_device() -> None:
    """Make the CUDA device of this process' own number the one that "cuda" means."""
    if torch.cuda.is_available() and processes.local_rank() < torch.cuda.device_count():
        torch.cuda.set_device(processes.local_rank())


def _refuse_shared_device() -> None:
    local, present = processes.local_rank(), torch.cuda.device_count()
    if local >= present:
        raise ConfigError(
            f"process {local} of this machine has no CUDA device of its own: there are {present}. Start one process "
            "for each device, or use device='cpu'."
        )
