"""The ledger of a session: every charge on disk before its noise is drawn, and what is spent read back from there.

A file of JSON lines, hash-chained like a run's (:mod:`dpml.accounting.ledger`): first the budget, then for each
question a charge and, after it was released, its answer.  There is one way to count: a line is written and synced under
a lock on the file, then read back, checked and replayed into the filter, by the process that wrote it as by any other.
So all processes and threads that use one file count alike, and a charge that is on disk is counted by everybody who
comes later, whatever became of its answer.  A chain cannot show that its end was cut off: how many lines there are,
and the hash of the last one, stand in a second file, so that a truncated or emptied ledger is refused.  Whoever changes
both files can make a session forget; that is the custodian's part.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpml.accounting.events import Event, event_name, from_json
from dpml.accounting.filters import PrivacyFilter
from dpml.accounting.ledger import GENESIS, canonical, seal, strict_json, write_all
from dpml.errors import BudgetExceededError, ConfigError, LedgerError, UnsupportedEventError
from dpml.mechanisms.streams import process_identity
from dpml.results import sync_folder

FILE, MARK = "session.jsonl", "session.mark"
_FRAME = {"index", "previous", "hash", "kind"}
_PAYLOAD = {
    "session": {"budget"},
    "charge": {"query", "mechanism", "event"},
    "answer": {"charge", "value"},
}


class SessionLedger:
    """The lines of one session, in ``folder``/session.jsonl, or in memory where ``folder`` is None.

    A ledger in memory belongs to the process that made it: in a forked child it refuses, since parent and child would
    each spend the whole budget.  One in a folder is shared by all processes that open it.

    Args:
        folder: made if it is missing.
        budget: a fresh filter; a file keeps to the budget that it began with.

    Raises:
        ConfigError: the file was begun with another budget or relation.
        LedgerError: it cannot be made, read, or does not hold.
    """

    def __init__(self, folder: Path | str | None, budget: PrivacyFilter) -> None:
        self._settings = budget.settings()
        self._path = Path(folder) / FILE if folder is not None else None
        self._memory = bytearray()
        self._place: tuple[int, int] | None = None  # device and inode of the file
        self._broken = False
        self._origin = self._counted_by = process_identity()
        self._lock = thread_lock()
        self._marked = False  # whether the file was held against the mark
        self._count_anew()
        if self._path is not None:
            self._make_file(self._path)
        with self._opened() as handle:
            if not self._lines:
                self._write(handle, {"kind": "session", "budget": self._settings})

    # -- what a session asks for ----------------------------------------------------------------------------------
    def charge(self, event: Event, query: Mapping[str, Any], mechanism: str) -> int:
        """Spend ``event``: its number, for :meth:`answer`.  Only after this returns may the data be touched.

        Raises:
            BudgetExceededError: it does not fit; nothing is written or spent.
            UnsupportedEventError: the budget's filter has no bound for it; likewise.
            LedgerError: the line cannot be written or the file does not hold.
        """
        with self._opened() as handle:
            if not self._filter.would_allow(event):
                raise BudgetExceededError(
                    f"the session's budget refuses {event_name(event)!r} ({self._filter.shortfall(event)}). Nothing "
                    "was used and no record was looked at. Ask with a smaller epsilon or rho, or stop here."
                )
            number = len(self._lines)
            line = {"kind": "charge", "query": dict(query), "mechanism": mechanism, "event": event.to_json()}
            self._write(handle, line)
            return number

    def answer(self, charge: int, value: Any) -> None:
        """Record what was released for that charge."""
        with self._opened() as handle:
            self._write(handle, {"kind": "answer", "charge": charge, "value": value})

    def amounts(self) -> tuple[dict[str, float], dict[str, float]]:
        """(spent, remaining), those of all processes."""
        with self._opened():
            return self._filter.spent, self._filter.remaining

    def lines(self) -> list[dict[str, Any]]:
        """All lines so far, those of all processes."""
        with self._opened():
            return [dict(line) for line in self._lines]

    def _count_anew(self) -> None:
        """Forget what was counted: the next look at the file counts all of it."""
        self._filter = PrivacyFilter.from_state(self._settings)
        self._lines: list[dict[str, Any]] = []
        self._offset = 0
        self._last = b""

    # -- the file -------------------------------------------------------------------------------------------------
    def _make_file(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():
                raise LedgerError(f"{path} is no plain file: give the session a folder of its own.")
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644))
            sync_folder(path.parent)
            sync_folder(path.parent.parent)
        except OSError as error:
            raise self._failure("make", error) from error

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """Alone with the ledger, and up to date with it."""
        if self._origin != process_identity():
            if self._path is None:
                raise LedgerError(
                    "this session is kept in the memory of another process, which goes on spending its budget: give "
                    "PrivateSession a folder to share it between processes. Nothing was used."
                )
            self._origin, self._lock = process_identity(), thread_lock()  # the parent's may be held by a thread
        with self._lock:
            if self._broken:
                raise LedgerError("the session's ledger could not be written before: nothing more is released from it.")
            if self._path is None:
                self._refresh(None)
                yield None
                return
            handle = self._locked_file(self._path)
            try:
                if self._counted_by != self._origin:  # the parent's count may have been half done when it forked
                    self._count_anew()
                    self._counted_by = self._origin
                self._refresh(handle)
                if not self._marked:
                    self._check_mark(self._path)
                    self._marked = True
                yield handle
            finally:
                unlock_file(handle)
                os.close(handle)

    def _locked_file(self, path: Path) -> int:
        try:
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise self._failure("open", error) from error
        try:
            lock_file(handle)
            status = os.fstat(handle)
            place = (status.st_dev, status.st_ino)
            if self._place not in (None, place):
                raise LedgerError(f"{path} was replaced by another file; nothing was used.")
            self._place = place
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _write(self, handle: int | None, payload: Mapping[str, Any]) -> None:
        """Write a line, sync it, and count it by reading it back."""
        previous = self._lines[-1]["hash"] if self._lines else GENESIS
        text = canonical(seal({"index": len(self._lines), "previous": previous, **payload}))
        strict_json(text)  # ValueError before anything is written that could not be read back
        text += b"\n"
        if handle is None:
            self._memory += text
        else:
            try:
                write_all(handle, text)
            except OSError as error:
                self._broken = True
                with suppress(OSError):  # else the torn line is cut off by the next one who opens the file
                    os.ftruncate(handle, self._offset)
                raise self._failure("write", error) from error
        self._refresh(handle)
        if self._path is not None:
            self._set_mark(self._path)

    def _set_mark(self, path: Path) -> None:
        text = f"{len(self._lines):<20}{self._lines[-1]['hash']}\n".encode()
        try:
            handle = os.open(path.with_name(MARK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.pwrite(handle, text, 0)  # one length always: the new mark covers the old one
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            self._broken = True
            raise self._failure("mark", error) from error

    def _check_mark(self, path: Path) -> None:
        """A process killed between a line and its mark leaves the mark one line behind, never ahead."""
        try:
            raw = path.with_name(MARK).read_bytes()
        except FileNotFoundError:
            if len(self._lines) > 1:  # the first charge was marked before it was used
                raise LedgerError(f"{path.with_name(MARK)} is missing, which says how long {path} is.") from None
            if self._lines:  # killed between the first line and its mark: a second such kill must not lock the session
                self._set_mark(path)
            return
        except OSError as error:
            raise self._failure("read the mark of", error) from error
        count, _, last = raw.decode("ascii", "replace").partition(" ")
        number = int(count) if count.isdigit() and len(count) < 20 else 0
        if not 1 <= number <= len(self._lines) or self._lines[number - 1]["hash"] != last.strip():
            raise LedgerError(
                f"{path} has {len(self._lines)} lines, which do not fit {path.with_name(MARK)}: lines were removed, or "
                "one of the files is an older copy. Nothing was used; bring back both files as they were."
            )

    def _failure(self, verb: str, error: OSError) -> LedgerError:
        return LedgerError(f"cannot {verb} the session's ledger {self._path}: {error.strerror}; nothing is released.")

    def _refresh(self, handle: int | None) -> None:
        """Count the lines that were added since the last look; a torn last line was never used and is cut off."""
        raw = bytes(self._memory[self._offset :]) if handle is None else self._new_bytes(handle)
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw) and handle is not None:
            os.ftruncate(handle, self._offset + len(whole))
        for text in whole.split(b"\n")[:-1]:
            self._count(text)
            self._offset += len(text) + 1
            self._last = text + b"\n"

    def _new_bytes(self, handle: int) -> bytes:
        seen = len(self._last)
        if os.fstat(handle).st_size < self._offset:
            raise LedgerError(f"{self._path} was shortened; nothing was used.")
        os.lseek(handle, self._offset - seen, os.SEEK_SET)
        raw = b""
        while block := os.read(handle, 1 << 20):
            raw += block
        if raw[:seen] != self._last:
            raise LedgerError(f"{self._path} was rewritten meanwhile; nothing was used.")
        return raw[seen:]

    def _count(self, text: bytes) -> None:
        number = len(self._lines)
        where = f"{self._path or 'the ledger in memory'}, line {number + 1}"
        try:
            line = strict_json(text)
            good = (
                isinstance(line, dict)
                and line.get("kind") in _PAYLOAD
                and set(line) == _FRAME | _PAYLOAD[line["kind"]]
                and type(line["index"]) is int
                and line["index"] == number
                and line["previous"] == (self._lines[-1]["hash"] if self._lines else GENESIS)
                and line["hash"] == seal(line)["hash"]
                and canonical(line) == text
                and (line["kind"] == "session") == (number == 0)
            )
            event = from_json(line["event"]) if good and line["kind"] == "charge" else None
        except (ValueError, KeyError, TypeError, RecursionError, ConfigError) as error:
            raise LedgerError(f"{where} does not hold: {error}.") from error
        if not good:
            raise LedgerError(f"{where} was changed, removed or moved.")
        if number == 0 and line["budget"] != self._settings:
            raise ConfigError(
                f"{self._path} was begun with the budget {line['budget']}, this session asks for {self._settings}: a "
                "session keeps to its budget. Use that one, or another folder for other data."
            )
        if line["kind"] == "answer" and not self._is_charge(line["charge"]):
            raise LedgerError(f"{where} answers no question.")
        if event is not None:
            try:
                self._filter.replay(event)
            except UnsupportedEventError as error:
                raise LedgerError(f"{where} cannot be counted: {error}") from error
        self._lines.append(line)

    def _is_charge(self, number: object) -> bool:
        return type(number) is int and 0 < number < len(self._lines) and self._lines[number]["kind"] == "charge"


def thread_lock() -> threading.Lock:
    """What keeps the threads of a process apart."""
    return threading.Lock()


def lock_file(handle: int) -> None:
    """Wait until this handle alone holds the file; the lock goes with the handle, also when the process is killed."""
    fcntl.flock(handle, fcntl.LOCK_EX)


def unlock_file(handle: int) -> None:
    """Let go of the file.  Closing alone would not, where another thread forked meanwhile: the child has the handle."""
    fcntl.flock(handle, fcntl.LOCK_UN)
