"""What a stopped run needs to go on: what it was started with, who may go on, from which state.

A run may stop at any instant.  What it charged stays spent; another life of it draws fresh noise and does the steps
that were never charged.  Nothing here draws anything, and every refusal comes before a step is charged.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import logging
import os
import re
import shlex
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from dpml import processes
from dpml.accounting import Ledger, from_json
from dpml.accounting.ledger import parse_ledger, write_all
from dpml.accounting.verification import file_digest
from dpml.errors import ConfigError, LedgerError, ModelError, RunFolderError
from dpml.machine import Stopped
from dpml.release import RunFolder
from dpml.runs import Plan, differences

if TYPE_CHECKING:
    import torch

RESUME_FILE = "resume.json"
CHECKPOINT_FILE = "checkpoint.safetensors"
HYDRA_FOLDER = "hydra"
"""Below ``private/``: what the command line composed for the run, written before it started."""
PUBLISHED = ("config.yaml", "schema.json")
FREE_ARGUMENTS = frozenset({"device", "micro_batch_size"})
"""Arguments that may change between two lives of a run: they say where and in which pieces a sum is computed."""

_log = logging.getLogger(__name__)


# -- what the run was started with ------------------------------------------------------------------------------------
@dataclass(frozen=True, repr=False)
class Saved:
    """``private/resume.json``: what the next life is compared with.

    Attributes:
        key: of the HMAC of the records; random, of this run only.
        split_key: decides ``test_fraction`` splits; not a key of noise.
        mac: HMAC of the records.
        arguments: of the trainer, ``own_loss`` included.
        network: :func:`network_description` for ``dp_sgd``, else None.
        files: SHA-256 of what was published before the data were read, by name.
    """

    key: bytes
    split_key: int
    mac: str
    arguments: Mapping[str, Any]
    network: Mapping[str, Any] | None
    files: Mapping[str, str]

    def write(self, folder: RunFolder) -> None:
        """Raises RunFolderError when the disk refuses."""
        folder.keep(
            RESUME_FILE,
            {
                "key": self.key.hex(),
                "split_key": str(self.split_key),
                "mac": self.mac,
                "arguments": self.arguments,
                "network": self.network,
                "files": self.files,
            },
        )
        (folder.private / RESUME_FILE).chmod(0o600)

    @classmethod
    def read(cls, folder: RunFolder) -> Saved:
        """Raises RunFolderError when there is none, or a damaged one."""
        path = folder.private / RESUME_FILE
        if not path.is_file():
            raise RunFolderError(f"{str(folder.path)!r} {_how_far(folder)}. Start a new run instead.")
        try:
            found = json.loads(path.read_text("utf-8"))
            network = found["network"]
            saved = cls(
                bytes.fromhex(found["key"]),
                int(found["split_key"]),
                str(found["mac"]),
                dict(found["arguments"]),
                None if network is None else dict(network),
                dict(found["files"]),
            )
            _ = bool(saved.arguments["own_loss"]), str(saved.arguments["model"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunFolderError(f"{str(path)!r} is damaged ({type(error).__name__}): start a new run.") from error
        return saved


def _how_far(folder: RunFolder) -> str:
    """Where a run without the file stopped, and what is spent."""
    try:
        first, *lines = map(json.loads, (folder.release / "ledger.jsonl").read_bytes().split(b"\n")[:-1])
        planned = first["plan"].get("stages", {})
        charged = [line["stage"] for line in lines if line["kind"] == "charge"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "never got as far as reading data, or its ledger is gone: what that held stays spent"
    if any(name not in planned for name in charged):
        return f"has lost private/{RESUME_FILE}, and cannot go on: its {len(charged)} charges stay spent"
    if not charged:
        return "never got as far as reading data"
    lost = f"its charged stages ({', '.join(charged)}) are lost, stay spent and are not run again"
    return f"never got as far as training: {lost}"


def published_digests(folder: RunFolder) -> dict[str, str]:
    """SHA-256 of the files that are published before the data are read; a missing one has ``"missing"``."""
    return {
        name: file_digest(folder.release / name) if (folder.release / name).is_file() else "missing"
        for name in PUBLISHED
    }


def network_description(network: torch.nn.Module) -> dict[str, Any]:
    """Names, shapes, types of the parameters and what each layer says of itself; public, no weights.

    Two modules with the same description have the same layers.  What a ``forward`` does with them cannot be seen.
    """
    return {
        "class": type(network).__name__,
        "layers": {
            name or "(model)": f"{type(layer).__name__}({_without_addresses(layer.extra_repr())})"
            for name, layer in network.named_modules()
        },
        "parameters": {
            name: f"{list(p.shape)} {str(p.dtype).removeprefix('torch.')}{'' if p.requires_grad else ', frozen'}"
            for name, p in network.named_parameters()
        },
    }


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def refuse_differences(what: str, old: Mapping[str, Any], new: Mapping[str, Any], free: frozenset[str]) -> None:
    """ConfigError that names every difference; nothing was charged or drawn."""
    found = differences(old, new, free=free)
    if found:
        raise ConfigError(
            f"{what} differ: " + "; ".join(found) + ". Resume needs the very same; nothing was charged. To train with "
            "other values start a new run (what this one charged stays spent)."
        )


# -- who may go on ----------------------------------------------------------------------------------------------------
@contextmanager
def sole_use(folder: RunFolder | None) -> Iterator[None]:
    """Hold the run for this process from reading its data to its last file; the lock ends with the process.

    (The ledger's own lock ends with its closing line, before the release is written.)

    Raises:
        RunFolderError: another process holds it, or the file cannot be opened.
    """
    if folder is None:
        yield
        return
    path = folder.private / RESUME_FILE
    try:
        folder.private.chmod(0o700)  # it may have been copied
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise RunFolderError(f"cannot open {str(path)!r} ({error.strerror}); nothing was charged.") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunFolderError(
                f"{str(folder.path)!r} is in use by another process: a run goes on in one process only. Wait for it, "
                "or stop it first."
            ) from error
        yield
    finally:
        os.close(handle)


def finish_last_line(path: Path) -> None:
    """Give a ledger whose last line is whole but for its line end that line end.

    Whether such a line was used cannot be known (a copy or an editor may have eaten the line end), so it counts as
    charged.  A line that is torn anywhere else was never used; ``Ledger.resume`` cuts it off.

    Raises:
        LedgerError: another process is writing this ledger, or the disk refuses.
    """
    try:
        raw = path.read_bytes()
        if not raw or raw.endswith(b"\n") or not _holds(raw + b"\n"):
            return
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.read_bytes() == raw:
                write_all(handle, b"\n")
        finally:
            os.close(handle)
    except BlockingIOError as error:
        raise LedgerError(f"{path} is in use by another process: a run is written by one process only.") from error
    except FileNotFoundError as error:
        raise LedgerError(f"{path} is missing: without it nobody can tell what is spent. Start a new run.") from error
    except OSError as error:
        raise LedgerError(f"cannot write the ledger {path}: {error.strerror}; nothing was used.") from error


def _holds(raw: bytes) -> bool:
    try:
        parse_ledger(raw, "ledger")
    except LedgerError:
        return False
    return True


def charged_steps(ledger: Ledger, plan: Plan) -> int:
    """Steps that the ledger has charged; the stages beside the training are none.

    Raises:
        LedgerError: a charge of something else than the plan's step or stage, or more steps than planned.
    """
    stages = {stage.name: stage.event for stage in plan.stages.stages}
    for line in ledger.charges:
        if from_json(line["event"]) != stages.get(line["stage"], plan.parameters.event_per_step):
            raise LedgerError(
                f"line {int(line['index']) + 1} of {ledger.path} charges something else than a step of the plan; "
                "nothing was run. Start a new run (what this one charged stays spent)."
            )
    charged = sum(int(line["count"]) for line in ledger.charges if line["stage"] not in stages)
    if charged > plan.steps:
        raise LedgerError(
            f"{ledger.path} charges {charged} steps and the plan has {plan.steps}; nothing was run. Start a new run."
        )
    return charged


# -- from which state -------------------------------------------------------------------------------------------------
def run_tag(folder: RunFolder) -> str:
    """What marks the checkpoints of this run: an HMAC under its key, which cannot be turned back into the key."""
    return hmac.new(Saved.read(folder).key, b"checkpoint of this run", hashlib.sha256).hexdigest()


def write_checkpoint(folder: RunFolder, state: Mapping[str, Any]) -> None:
    """Replace the run's checkpoint, whole or not at all; RunFolderError when the disk refuses."""
    from dpml.sgd import save_state

    target = folder.private / CHECKPOINT_FILE
    try:
        save_state(target, state, run=run_tag(folder))
    except OSError as error:
        raise RunFolderError(
            f"cannot write {str(target)!r} ({error.strerror or type(error).__name__}); nothing was released. "
            f"Free space, then resume ({way_to_go_on(folder)}): the charged steps stay spent."
        ) from error


def read_checkpoint(folder: RunFolder, charged: int, steps: int) -> dict[str, Any]:
    """The state to go on from, ``{}`` where no checkpoint was reached.

    Raises:
        RunFolderError: all steps are charged and there is no checkpoint.
        ModelError: the checkpoint is damaged, or of another run.
        LedgerError: the checkpoint holds steps that the ledger has not charged.
    """
    from dpml.sgd import load_state

    path = folder.private / CHECKPOINT_FILE
    if not path.is_file():
        if charged >= steps:
            raise RunFolderError(
                f"all {steps} steps of {str(folder.path)!r} are charged and no checkpoint was reached, so "
                "nothing is left to run. Start a new run."
            )
        if charged:
            _log.warning(
                "there is no checkpoint in %s: training starts from the initial weights and makes the %d steps of %d "
                "that are not charged", folder.private, steps - charged, steps,
            )  # fmt: skip
        return {}
    try:
        state = dict(load_state(path, run=run_tag(folder)))
    except ModelError as error:
        raise ModelError(
            f"{error} Nothing was charged. Put the run's own checkpoint back, or delete the file: the "
            f"{steps - charged} steps that are not charged then start from the initial weights."
        ) from error
    if state["step"] > charged:
        raise LedgerError(
            f"{str(path)!r} was written after {state['step']} steps and the ledger charges {charged}: lines of the "
            "ledger are missing, so what was spent is not known; nothing was run. Put the run's own ledger back."
        )
    return state


def tidy(folder: RunFolder) -> None:
    """After the release is complete: the link at the top is there, the checkpoint is not."""
    if not (folder.path / "result.json").exists():
        folder.link_to_top("result.json")
    for name in (CHECKPOINT_FILE, f".{CHECKPOINT_FILE}.tmp"):
        (folder.private / name).unlink(missing_ok=True)


def refuse_finished(folder: RunFolder) -> None:
    """RunFolderError for a run that has its result; one that was killed after its last published file is tidied up."""
    if (folder.release / "result.json").exists():
        tidy(folder)
        raise RunFolderError(f"{str(folder.path)!r} is finished; there is nothing to resume.")


def refuse_other_outcome(ledger: Ledger, outcome: Mapping[str, Any]) -> None:
    """A run killed right after its closing line must come to the result whose hash the line holds.

    Raises:
        LedgerError: it does not, so the release would not verify; nothing was released.
    """
    found = differences(ledger.lines[-1]["outcome"], outcome)
    if found:
        raise LedgerError(
            f"{ledger.path} was closed with another result than this process comes to ({'; '.join(found)}); nothing "
            "was released. Put the run's files back as they were, on the machine where it was closed."
        )


# -- a stop that waits ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Charged:
    """What a ledger on disk says of a run: its method, the planned steps and the charged ones."""

    method: str
    steps: int
    charged: int


def charged_on_disk(path: Path) -> Charged | None:
    """Read without a lock and without checking the chain, to tell a person; None where it cannot be read."""
    try:
        lines = [json.loads(line) for line in (path / "release/ledger.jsonl").read_bytes().split(b"\n")[:-1]]
        plan = lines[0]["plan"]
        stages = plan.get("stages", {})
        charged = sum(int(line["count"]) for line in lines if line["kind"] == "charge" and line["stage"] not in stages)
        return Charged(str(plan["method"]), int(plan["steps"]), charged)
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None


def can_go_on(path: Path) -> bool:
    """Whether a DP-SGD run that read its data has steps, or a checkpoint of all of them, left to finish with."""
    if not (path / "private" / RESUME_FILE).is_file() or (path / "release/result.json").exists():
        return False
    found = charged_on_disk(path)
    if found is None or found.method != "dp_sgd":
        return False
    return found.charged < found.steps or (path / "private" / CHECKPOINT_FILE).is_file()


def way_to_go_on(folder: RunFolder) -> str:
    """The command, quoted for a shell, that goes on with a run; the call, for one that no command started."""
    root = folder.path.parent
    if (root / "sweep.json").is_file():
        return shlex.join(["python", "-m", "dpml.train", f"resume_sweep={root}"])
    if (folder.private / HYDRA_FOLDER / "config.yaml").is_file():
        return shlex.join([*processes.launcher(), "-m", "dpml.train", f"resume={folder.path}"])
    return f"PrivateTrainer.resume({str(folder.path)!r}, data)"


class Stop:
    """Ctrl-C and SIGTERM wait for the checkpoint at the end of the charged block, so that no charged step is lost.

    The second signal stops at once; the rest of the block is then lost, as with kill −9.  Only where Python's own
    handlers are in place, and only in the main thread; anything else is left as it is.
    """

    def __init__(self, folder: RunFolder | None) -> None:
        self._folder = folder
        self._signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if self._folder is not None and threading.current_thread() is threading.main_thread():
            for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                if signal.getsignal(number) is usual:
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None:
            self.if_asked()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            self._leave(number, "stopped at once: the steps charged and not made are lost.")
        self._signal = number
        _say("stopping at the end of the steps that are charged; once more stops at once and loses them.")

    def if_asked(self) -> None:
        """Leave if a signal came; called when a checkpoint is on disk."""
        if self._signal is not None:
            self._leave(self._signal, "stopped with a checkpoint; no charged step is lost.")

    def _leave(self, number: int, text: str) -> NoReturn:
        assert self._folder is not None
        text = f"{text} Go on with: {way_to_go_on(self._folder)}"
        if number == signal.SIGINT:
            raise KeyboardInterrupt(text)
        _say(text)
        raise Stopped(128 + number)


def _say(text: str) -> None:
    """To the terminal, past Python's buffers: a signal may come in the middle of somebody's print."""
    os.write(2, f"\ndpml: {text}\n".encode())
