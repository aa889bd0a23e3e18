"""The ledger of a data set: many runs on the same records under one cap.

Each reservation is one hash-chained line, written under a file lock and synced BEFORE the run reads a record.  Runs
may depend on the results of earlier ones; the cap is enforced by basic composition (Σε, Σδ), a valid privacy filter
for adaptively chosen runs (Rogers et al. 2016, section 4).  The tighter value of :meth:`DatasetLedger.composed` is for
display and holds for runs that were fixed beforehand.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpml.accounting import api
from dpml.accounting.events import (
    ADD_REMOVE,
    MAX_SCALE,
    Composed,
    Event,
    check_number,
    check_relation,
    from_json,
)
from dpml.accounting.ledger import GENESIS, canonical, seal, strict_json, write_all
from dpml.errors import BudgetExceededError, ConfigError, LedgerError, UnsupportedEventError, invalid
from dpml.results import sync_folder

_KEYS = {"index", "kind", "previous", "hash", "run", "epsilon", "delta", "event"}
# Σ of decimal fractions: 0.1 ten times may pass 1.0 by rounding; the cap holds to this relative slack
_ROUNDING = 1e-12


class DatasetLedger:
    """Adds up runs on one data set.

    Args:
        path: the file; made by the first reservation.
        epsilon, delta: the cap for all runs together.
        neighboring_relation: the relation of all runs; a file keeps to the one it began with.
    """

    def __init__(
        self, path: Path | str, epsilon: float, delta: float, *, neighboring_relation: str = ADD_REMOVE
    ) -> None:
        self.path = Path(path)
        self.epsilon = check_number("epsilon", epsilon, 0.0, MAX_SCALE, above=True)
        self.delta = check_number("delta", delta, 0.0, 1.0, below=True)
        self.neighboring_relation = check_relation(neighboring_relation)

    def reserve(self, run: str, epsilon: float, delta: float, event: Event | None) -> None:
        """Record that ``run`` will spend (ε, δ); call it before a record is read.

        Raises:
            BudgetExceededError: the cap would be passed; nothing is written.
            LedgerError: the file does not hold or cannot be written.
        """
        epsilon = check_number("epsilon", epsilon, 0.0, MAX_SCALE)
        delta = check_number("delta", delta, 0.0, 1.0, below=True)
        if event is not None and not isinstance(event, Event):
            raise invalid("event", event, "an event of dpml.accounting or None")
        with self._locked() as handle:
            lines = self._lines(handle)
            self._refuse_above_cap(lines, run, epsilon, delta)
            line = seal(
                {
                    "index": len(lines),
                    "kind": "run",
                    "previous": lines[-1]["hash"] if lines else GENESIS,
                    "run": str(run),
                    "epsilon": epsilon,
                    "delta": delta,
                    "event": {
                        "neighboring_relation": self.neighboring_relation,
                        "released": event.to_json() if event is not None else None,
                    },
                }
            )
            self._write(handle, canonical(line) + b"\n")

    def check(self, run: str, epsilon: float, delta: float) -> None:
        """Raise what :meth:`reserve` would raise now, without reserving: before a run makes its folder."""
        self._refuse_above_cap(self._read(), run, epsilon, delta)

    def _refuse_above_cap(self, lines: list[dict[str, Any]], run: str, epsilon: float, delta: float) -> None:
        spent_epsilon, spent_delta = _sums(lines)
        slack = 1 + _ROUNDING
        if spent_epsilon + epsilon > self.epsilon * slack or spent_delta + delta > self.delta * slack:
            raise BudgetExceededError(
                f"run {run!r} needs epsilon = {epsilon:g}, delta = {delta:g}, but {self.path} has spent "
                f"{spent_epsilon:g} of {self.epsilon:g} and {spent_delta:g} of {self.delta:g}. Nothing was used. "
                "Lower the run's budget, or raise the cap knowingly."
            )

    def total(self) -> tuple[float, float]:
        """(Σε, Σδ) of all reservations."""
        return _sums(self._read())

    def runs(self) -> list[dict[str, Any]]:
        """The reservations in order: run, epsilon, delta."""
        return [{key: line[key] for key in ("run", "epsilon", "delta")} for line in self._read()]

    def composed(self) -> tuple[float, float]:
        """(ε, Σδ) of publishing all runs: the best accountant on all events at Σδ, never above Σε.

        A run without an event, or events that no accountant bounds together, leave it at Σε.
        """
        lines = self._read()
        total_epsilon, total_delta = _sums(lines)
        released = [line["event"]["released"] for line in lines]
        if not lines or total_delta == 0 or any(item is None for item in released):
            return total_epsilon, total_delta
        event = Composed(tuple(from_json(item) for item in released))
        try:
            value, _ = api.best(event, total_delta, neighboring_relation=self.neighboring_relation)
        except UnsupportedEventError:
            return total_epsilon, total_delta
        return min(value, total_epsilon), total_delta

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        with self._locked() as handle:
            return self._lines(handle)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        new = not self.path.exists()
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise self._failure("open", error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if new:
                sync_folder(self.path.parent)
            yield handle
        finally:
            os.close(handle)  # releases the lock

    def _write(self, handle: int, data: bytes) -> None:
        size = os.fstat(handle).st_size
        try:
            write_all(handle, data)
        except OSError as error:
            with suppress(OSError):  # else the torn line is cut off by the next one who opens the file
                os.ftruncate(handle, size)
            raise self._failure("write", error) from error

    def _failure(self, verb: str, error: OSError) -> LedgerError:
        return LedgerError(f"cannot {verb} the data set ledger {self.path}: {error.strerror}; nothing was used.")

    def _lines(self, handle: int) -> list[dict[str, Any]]:
        os.lseek(handle, 0, os.SEEK_SET)
        raw = b""
        while block := os.read(handle, 1 << 20):
            raw += block
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):  # torn by a crash before it was used
            os.ftruncate(handle, len(whole))
        lines: list[dict[str, Any]] = []
        for number, text in enumerate(whole.split(b"\n")[:-1], start=1):
            lines.append(self._check(text, number, lines))
        return lines

    def _check(self, text: bytes, number: int, before: list[dict[str, Any]]) -> dict[str, Any]:
        where = f"{self.path}, line {number}"
        try:
            line = strict_json(text)
            good = (
                isinstance(line, dict)
                and set(line) == _KEYS
                and type(line["index"]) is int
                and line["index"] == number - 1
                and line["previous"] == (before[-1]["hash"] if before else GENESIS)
                and line["hash"] == seal(line)["hash"]
                and canonical(line) == text
                and isinstance(line["event"], dict)
                and set(line["event"]) == {"neighboring_relation", "released"}
            )
            if good:
                check_number("epsilon", line["epsilon"], 0.0, MAX_SCALE)
                check_number("delta", line["delta"], 0.0, 1.0)
                if line["event"]["released"] is not None:
                    from_json(line["event"]["released"])
        except (ValueError, KeyError, TypeError, ConfigError, RecursionError) as error:
            raise LedgerError(f"{where} does not hold: {error}.") from error
        if not good:
            raise LedgerError(f"{where} was changed, removed or moved.")
        if line["event"]["neighboring_relation"] != self.neighboring_relation:
            raise ConfigError(
                f"{self.path} counts under {line['event']['neighboring_relation']!r}, this run under "
                f"{self.neighboring_relation!r}: one data set ledger adds up one neighbouring relation."
            )
        return line


def _sums(lines: list[dict[str, Any]]) -> tuple[float, float]:
    return math.fsum(line["epsilon"] for line in lines), math.fsum(line["delta"] for line in lines)
