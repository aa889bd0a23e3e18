"""The folder of an audit that is no run: one audit at a time, and what a killed one had finished is not done again.

While an audit runs, its folder holds ``private/`` (mode 0700): a lock, what is audited (``task.json``), and the scores
of finished pieces.  Runs of the two-world game are independent of each other and which of them are kept depends on when
the process ended, not on what they gave; so an audit that goes on is as valid as one that was never stopped.  At its
end ``private/`` is removed and ``audit.json`` is there: a folder that holds one is finished.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from dpml.errors import RunFolderError
from dpml.results import dumps, write_atomic

PRIVATE, LOCK, TASK, RESULT = "private", "lock", "task.json", "audit.json"


class AuditFolder:
    """A new or empty folder, or one in which the same audit was stopped; held by one process.

    Args:
        path: the folder.
        task: what is audited, plain JSON values: pieces are used again for the same task only.

    Raises:
        RunFolderError: (on entering) the folder holds something else or another audit, is in use, or cannot be written;
            (on leaving) it could not be written.
    """

    def __init__(self, path: Path, task: Mapping[str, Any]) -> None:
        self.path, self.private = path, path / PRIVATE
        self._task = dumps(task) + "\n"
        self._handle = -1

    def __enter__(self) -> Self:
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"run_dir = {str(self.path)!r} is a file, not a folder. Choose another.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not {entry.name for entry in self.path.iterdir()} <= {PRIVATE}:
                raise self._not_empty()
            self.private.mkdir(mode=0o700, exist_ok=True)
            self.private.chmod(0o700)
            self._handle = os.open(self.private / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._lock()
            self._compare()
        except OSError as error:
            self._release()
            raise self._unwritable(error) from error
        except RunFolderError:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                shutil.rmtree(self.private, ignore_errors=True)  # audit.json is there
        finally:
            self._release()
        if isinstance(error, OSError):
            raise self._unwritable(error) from error

    def kept(self, number: int, count: int) -> np.ndarray | None:
        """The scores ``(count,)`` of a finished piece, or None."""
        try:
            found = np.load(self._piece(number), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        return found if found.shape == (count,) and found.dtype == np.float64 else None

    def keep(self, number: int, scores: np.ndarray) -> None:
        """Put a piece's scores on the disk, whole or not at all."""
        raw = io.BytesIO()
        np.save(raw, np.asarray(scores, dtype=np.float64), allow_pickle=False)
        write_atomic(self._piece(number), raw.getvalue())

    def _piece(self, number: int) -> Path:
        return self.private / f"piece{number}.npy"

    def _lock(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunFolderError(
                f"run_dir = {str(self.path)!r} is in use by another audit. Wait for it, or choose another folder."
            ) from error
        if (self.path / RESULT).exists() or not (self.private / LOCK).exists():  # it ended meanwhile
            raise self._not_empty()

    def _compare(self) -> None:
        """The task must be the one of the pieces that are there."""
        path = self.private / TASK
        there = {entry.name for entry in self.private.iterdir()} - {LOCK}
        if not there:
            write_atomic(path, self._task)
        elif not path.is_file() or path.read_text("utf-8", errors="replace") != self._task:
            raise RunFolderError(
                f"run_dir = {str(self.path)!r} holds another audit, which was stopped: this one has other settings. "
                "Nothing was overwritten. Choose another folder."
            )

    def _release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _not_empty(self) -> RunFolderError:
        return RunFolderError(f"run_dir = {str(self.path)!r} is not empty; nothing was overwritten. Choose another.")

    def _unwritable(self, error: OSError) -> RunFolderError:
        return RunFolderError(
            f"run_dir = {str(self.path)!r} cannot be written ({error.strerror or type(error).__name__}). Choose "
            "another, or free space: what was finished is kept."
        )
