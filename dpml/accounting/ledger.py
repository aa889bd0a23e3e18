"""The ledger of a run: every charge, hash-chained and on disk before it is used.

A ledger is a file of JSON lines.  Line 0 is the plan, then come the charges, the last line is ``closed``.  Each line
holds its index, the hash of the line before it (64 zeros for the first) and its own hash: SHA-256 over the canonical
JSON (sorted keys, no spaces) of everything else on the line.  There are no time stamps and no fingerprint of the data.

A chain shows that a part was changed; it cannot show that the whole was written anew.  For that the head hash has to
be anchored outside (mailed, published).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpml.accounting.events import Composed, Event, SelfComposed, check_count, from_json
from dpml.errors import ConfigError, LedgerError, invalid
from dpml.results import sync_folder, to_jsonable

GENESIS = "0" * 64
KINDS = ("plan", "charge", "closed")


def canonical(content: Mapping[str, Any]) -> bytes:
    """Canonical JSON: sorted keys, no spaces, no bare NaN or Infinity, ASCII."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True).encode()


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a line with its hash added."""
    plain = {key: value for key, value in to_jsonable(dict(content)).items() if key != "hash"}
    return {**plain, "hash": hashlib.sha256(canonical(plain)).hexdigest()}


def write_all(handle: int, data: bytes) -> None:
    """Write every byte and force it to disk; OSError passes through."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
    os.fsync(handle)


@dataclass(frozen=True)
class LedgerRecord:
    """A ledger as read: ``plan`` and ``closed`` payloads (None when not closed), charge lines, total event."""

    plan: dict[str, Any]
    charges: tuple[dict[str, Any], ...]
    closed: dict[str, Any] | None
    lines: tuple[dict[str, Any], ...]
    head: str
    count: int
    event: Event


class Ledger:
    """A ledger that is being written.  Make one with :meth:`create` or :meth:`resume`."""

    def __init__(self, path: Path | None, lines: list[dict[str, Any]], handle: int | None) -> None:
        self._path = path
        self._lines = lines
        self._handle = handle
        self._broken = False

    @classmethod
    def create(cls, path: Path | None, plan: Mapping[str, Any]) -> Ledger:
        """A new ledger whose first line is ``plan``; ``path`` None keeps it in memory.

        Raises:
            LedgerError: the file exists already or cannot be written (nothing may be released then).
        """
        handle = None
        if path is not None:
            path = Path(path)
            try:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            except FileExistsError:
                raise LedgerError(
                    f"{path} exists already: a run never writes over a ledger; choose a new folder."
                ) from None
            except OSError as error:
                raise LedgerError(f"cannot create the ledger {path}: {error.strerror}; nothing was used.") from error
            _lock(handle, path)
        ledger = cls(path, [], handle)
        ledger._append({"kind": "plan", "plan": dict(plan)})
        if path is not None:
            try:
                sync_folder(path.parent)
            except OSError as error:  # after a power cut the file might not be there: nothing may be charged in it
                ledger.release()
                raise LedgerError(f"cannot create the ledger {path}: {error.strerror}; nothing was used.") from error
        return ledger

    @classmethod
    def resume(cls, path: Path, *, closed_ok: bool = False) -> Ledger:
        """Go on with an unfinished ledger; a torn last line (no newline: it was never used) is cut off first.

        ``closed_ok`` also takes a closed ledger, which accepts no further line: for a run that was killed between its
        closing line and its result file.

        Raises LedgerError if the chain does not hold, the ledger is closed, or the file cannot be written.
        """
        path = Path(path)
        raw = _read(path)
        whole = raw[: raw.rfind(b"\n") + 1]
        record = parse_ledger(whole, str(path))
        if record.closed is not None:
            if closed_ok:
                return cls(path, [dict(line) for line in record.lines], None)
            raise LedgerError(f"{path} is closed: the run is complete and cannot be resumed.")
        try:
            handle = os.open(path, os.O_WRONLY | os.O_APPEND)
            _lock(handle, path)
            if path.read_bytes() != raw:
                os.close(handle)
                raise LedgerError(f"{path} was written by another process meanwhile; nothing was used.")
            if len(whole) < len(raw):
                os.ftruncate(handle, len(whole))
                os.fsync(handle)
        except OSError as error:
            raise LedgerError(f"cannot write the ledger {path}: {error.strerror}; nothing was used.") from error
        return cls(path, [dict(line) for line in record.lines], handle)

    def charge(self, event: Event, *, stage: str, count: int = 1) -> None:
        """Record ``count`` runs of ``event`` on disk; only after this returns may their noise be drawn.

        Raises LedgerError when the line cannot be written and synced; the ledger then takes no further line.
        """
        if not isinstance(event, Event):
            raise invalid("event", event, "an event of dpml.accounting")
        count = check_count("count", count, 1)
        self._append({"kind": "charge", "stage": str(stage), "count": count, "event": event.to_json()})

    def close(self, outcome: Mapping[str, Any]) -> None:
        """Write the last line with the run's ``outcome`` (public values only)."""
        self._append({"kind": "closed", "outcome": dict(outcome)})
        self.release()

    def _append(self, payload: dict[str, Any]) -> None:
        if self._broken:
            raise LedgerError(
                "the ledger could not be written before; it takes no further line and nothing is released."
            )
        if self.closed:
            raise LedgerError("the ledger is closed; it takes no further line.")
        if self._path is not None and self._handle is None:
            raise LedgerError("the ledger was released; it takes no further line.")
        line = seal({"index": len(self._lines), "previous": self.head, **payload})
        if self._handle is not None:
            try:
                write_all(self._handle, canonical(line) + b"\n")
            except OSError as error:
                self._broken = True
                self.release()
                raise LedgerError(
                    f"cannot write line {len(self._lines)} of the ledger {self._path}: {error.strerror}; "
                    "this charge was not used and nothing is released."
                ) from error
        self._lines.append(line)

    def release(self) -> None:
        """Let go of the file and its lock; a ledger in use is released by closing it, a failed run by this."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            os.close(handle)

    def __del__(self) -> None:
        self.release()

    @property
    def path(self) -> Path | None:
        """The file, or None for a ledger in memory."""
        return self._path

    @property
    def closed(self) -> bool:
        """Whether the last line is ``closed``."""
        return bool(self._lines) and self._lines[-1]["kind"] == "closed"

    @property
    def head(self) -> str:
        """Hash of the last line (64 zeros before the first)."""
        return self._lines[-1]["hash"] if self._lines else GENESIS

    @property
    def count(self) -> int:
        """Number of lines."""
        return len(self._lines)

    @property
    def lines(self) -> tuple[dict[str, Any], ...]:
        """All lines, as written."""
        return tuple(dict(line) for line in self._lines)

    @property
    def charges(self) -> list[dict[str, Any]]:
        """The charge lines, in order."""
        return [dict(line) for line in self._lines if line["kind"] == "charge"]

    @property
    def charged(self) -> Composed:
        """Everything charged so far, as one event."""
        return total_event(self.charges)


def _lock(handle: int, path: Path) -> None:
    """One writer at a time; the lock goes with the handle, also when the process is killed."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise LedgerError(f"{path} is in use by another process: a run is written by one process only.") from error


def total_event(charges: list[dict[str, Any]] | tuple[dict[str, Any], ...]) -> Composed:
    """The composition of charge lines; equal neighbours are joined."""
    parts: list[tuple[Event, int]] = []
    for line in charges:
        event, count = from_json(line["event"]), int(line["count"])
        if parts and parts[-1][0] == event:
            parts[-1] = (event, parts[-1][1] + count)
        else:
            parts.append((event, count))
    return Composed(tuple(SelfComposed(event, count) for event, count in parts))


def read_ledger(path: Path) -> LedgerRecord:
    """Read and check a ledger; LedgerError names the first line that does not hold (lines count from 1)."""
    return parse_ledger(_read(Path(path)), str(path))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LedgerError(f"cannot read the ledger {path}: {error.strerror}.") from error


def parse_ledger(raw: bytes, name: str) -> LedgerRecord:
    """The same from bytes; ``name`` is used in messages."""
    if not raw:
        raise LedgerError(f"{name} is empty: line 1 (the plan) is missing.")
    if not raw.endswith(b"\n"):
        number = raw.count(b"\n") + 1
        raise LedgerError(f"{name}, line {number} is torn (no line end): it was not completely written.")
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(raw[:-1].split(b"\n"), start=1):
        lines.append(_check_line(text, number, lines, name))
    charges = tuple(line for line in lines if line["kind"] == "charge")
    try:
        event = total_event(charges)
    except ConfigError as error:  # cannot happen: every event was read before
        raise LedgerError(f"{name}: {error}") from error
    closed = lines[-1]["outcome"] if lines[-1]["kind"] == "closed" else None
    return LedgerRecord(lines[0]["plan"], charges, closed, tuple(lines), lines[-1]["hash"], len(lines), event)


def _check_line(text: bytes, number: int, before: list[dict[str, Any]], name: str) -> dict[str, Any]:
    where = f"{name}, line {number}"
    try:
        line = strict_json(text)
        sealed = isinstance(line, dict) and line.get("hash") == seal(line)["hash"] and canonical(line) == text
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"{where} is not a JSON object: {error}.") from error
    if not isinstance(line, dict):
        raise LedgerError(f"{where} is not a JSON object.")
    if line.get("index") != number - 1 or isinstance(line.get("index"), bool):
        raise LedgerError(
            f"{where} has index {line.get('index')!r} instead of {number - 1}: a line is missing or moved."
        )
    if line.get("previous") != (before[-1]["hash"] if before else GENESIS):
        raise LedgerError(f"{where} does not follow the line before it: one of both was changed, removed or moved.")
    if not sealed:
        raise LedgerError(f"{where} was changed: its hash does not match its content.")
    _check_kind(line, number, before, where)
    return line


_PAYLOAD = {"plan": {"plan"}, "charge": {"stage", "count", "event"}, "closed": {"outcome"}}


def _check_kind(line: dict[str, Any], number: int, before: list[dict[str, Any]], where: str) -> None:
    kind = line.get("kind")
    if kind not in KINDS:
        raise LedgerError(f"{where} is of unknown kind {kind!r}; allowed are {list(KINDS)}.")
    if set(line) != {"index", "kind", "previous", "hash"} | _PAYLOAD[kind]:
        raise LedgerError(f"{where} ({kind}) has the keys {sorted(line)}.")
    if (kind == "plan") != (number == 1):
        raise LedgerError(f"{where} is of kind {kind!r}: the plan is the first line and only that.")
    if before and before[-1]["kind"] == "closed":
        raise LedgerError(f"{where} follows the closing line.")
    if kind == "charge":
        try:
            check_count("count", line["count"], 1)
            from_json(line["event"])
        except ConfigError as error:
            raise LedgerError(f"{where}: {error}") from error
    elif not isinstance(line["plan" if kind == "plan" else "outcome"], dict):
        raise LedgerError(f"{where} ({kind}) has no object as payload.")


def strict_json(text: bytes | str) -> Any:
    """Parsed JSON; ValueError for repeated keys, NaN, Infinity and numbers that no float holds (too large, or not 0 but
    0 as a float: a charge must not vanish), RecursionError for nesting beyond Python's limit."""
    return json.loads(
        text,
        object_pairs_hook=_no_repeats,
        parse_constant=_no_constant,
        parse_float=lambda digits: _finite(float(digits), digits),
        parse_int=lambda digits: _finite(int(digits), digits) if len(digits) < 400 else _no_constant(digits),
    )


def _finite(value: Any, digits: str) -> Any:
    try:
        good = math.isfinite(float(value))
    except OverflowError:
        good = False
    if good and value == 0 and any(digit in "123456789" for digit in digits.lower().partition("e")[0]):
        raise ValueError(f"{digits[:20]} is not a number that can be used. It is not 0, but would be as a float")
    return value if good else _no_constant(digits)


def _no_repeats(items: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(items)
    if len(out) != len(items):
        raise ValueError("a key occurs twice")
    return out


def _no_constant(text: str) -> float:
    raise ValueError(f"{text[:20]} is not a number that can be used")
