"""A sweep's worker process: it runs jobs one after the other, ends with its parent, and stops where nothing is lost.

The parent asks for a stop by a file in the sweep's folder, so that one way serves Ctrl-C, SIGTERM and a killed parent:
a job of ``dp_sgd`` goes on to its next checkpoint, any other job (seconds) to its end, and no further job starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from dpml.errors import RunFolderError
from dpml.resuming import Stop

STOP_FILE = ".stop"
LOCK_FILE = ".workers"
OWNER = "DPML_SWEEP_OWNER"
"""Names, in the environment that workers inherit, the process that runs the sweep."""
POLL = 0.2
GRACE = 60.0
"""Seconds: between two looks at the parent, and for the workers of a killed parent to reach a checkpoint."""

_parent: int | None = None
_root: Path | None = None
_asked: object = None
_busy = False
_kept: list[tuple[str, int]] | None = None


@contextlib.contextmanager
def owner() -> Iterator[None]:
    """Around everything that may start a sweep: the processes that it starts are its workers."""
    before = os.environ.get(OWNER)
    os.environ[OWNER] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(OWNER)
        if before is not None:
            os.environ[OWNER] = before


def lend() -> None:
    """Called in a worker that does not inherit the environment of the sweep's process (on another machine)."""
    os.environ.setdefault(OWNER, "0")


def is_worker() -> bool:
    """Whether this process runs jobs for another one."""
    return os.environ.get(OWNER, str(os.getpid())) != str(os.getpid())


def say(line: str, handle: int = 1) -> None:
    """One line to the terminal in one piece (``print`` may write the line end apart, and another job's in between)."""
    if _kept is None:
        os.write(handle, f"{line}\n".encode())
    else:
        _kept.append((line, handle))


@contextlib.contextmanager
def keeping() -> Iterator[list[tuple[str, int]]]:
    """What is said inside is kept in the list, with its handle, for whoever can say it; said at once after a fault."""
    global _kept
    before, _kept = _kept, []
    lines = _kept
    try:
        yield lines
    except BaseException:
        for line, handle in lines:
            os.write(handle, f"{line}\n".encode())
        raise
    finally:
        _kept = before


@contextlib.contextmanager
def one_job(root: Path) -> Iterator[bool]:
    """Around one job of the sweep in ``root``; gives whether it may start.

    The sweep is held (shared) until the job ends, so that nobody resumes it meanwhile.
    """
    global _busy
    if not is_worker():
        yield True
        return
    _busy = True
    _watch(root)
    handle = os.open(root / LOCK_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield not _stop_asked()
    finally:
        os.close(handle)
        _busy = False


def ask_to_stop(root: Path) -> None:
    """Let no further job of the sweep start."""
    (root / STOP_FILE).touch()


def stop_asked(root: Path) -> bool:
    """Whether :func:`ask_to_stop` was called for this sweep."""
    return (root / STOP_FILE).exists()


def forget_stop(root: Path) -> None:
    """Before a sweep is gone on with."""
    (root / STOP_FILE).unlink(missing_ok=True)


def wait_for_workers(root: Path, seconds: float = GRACE) -> None:
    """Let the workers of a parent that was killed come to their checkpoints.

    Raises:
        RunFolderError: they have not ended in ``seconds``.
    """
    handle = os.open(root / LOCK_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + seconds
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() > end:
                    raise RunFolderError(
                        f"jobs of the sweep in {str(root)!r} are still being worked on by another process. Wait for "
                        "them, or stop them first."
                    ) from error
            time.sleep(POLL)
    finally:
        os.close(handle)


def _watch(root: Path) -> None:
    """Once per process: Ctrl-C is left to the parent, and a thread looks at the parent and at the stop file."""
    global _parent, _root
    _root = root
    if _parent is not None:
        return
    _parent = os.getppid()
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_look, name="dpml sweep", daemon=True).start()


def _stop_asked() -> bool:
    assert _root is not None
    return os.getppid() != _parent or stop_asked(_root)


def _look() -> None:
    """Hand a stop, once, to the job that can wait for a checkpoint; an orphan between two jobs ends."""
    global _asked
    while True:
        time.sleep(POLL)
        if not _stop_asked():
            continue
        taker = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
        if isinstance(taker, Stop) and taker is not _asked:
            _asked = taker
            os.kill(os.getpid(), signal.SIGTERM)
        elif not _busy and os.getppid() != _parent:
            os._exit(0)
