"""The ledger of a data set: many runs on the same records under one cap.

Each reservation is one hash-chained line, written under a file lock and synced BEFORE the run reads a record.  Runs
may depend on the results of earlier ones; the cap is enforced by a privacy filter, chosen when the file is made:

* ``"basic"``: Σε and Σδ of the runs' promises (Rogers et al. 2016, section 4);
* ``"zcdp"`` and ``"renyi"``: the filters of :mod:`dpml.accounting.filters`.  A run is charged by its event or, where
  that costs less or the event has no such bound, by its promise (ε, δ) as a statement, for which half of the cap's δ is
  set aside.  Many runs fit under the same cap that basic composition would refuse.

What all runs together satisfy is the cap (:meth:`DatasetLedger.guarantee`).  :meth:`DatasetLedger.total` and
:meth:`DatasetLedger.composed` are for display; the latter holds only for runs that were fixed beforehand.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpml.accounting import api
from dpml.accounting.events import (
    ADD_REMOVE,
    MAX_SCALE,
    Composed,
    EpsilonDelta,
    Event,
    check_number,
    check_relation,
    from_json,
)
from dpml.accounting.filters import PrivacyFilter, RenyiFilter, ZcdpFilter
from dpml.accounting.ledger import GENESIS, canonical, seal, strict_json, write_all
from dpml.errors import BudgetExceededError, ConfigError, LedgerError, UnsupportedEventError, invalid
from dpml.results import Guarantee, sync_folder
from dpml.rounding import upper

CAP_FILTERS = ("basic", "zcdp", "renyi")
STATEMENT_SHARE = 0.5
"""Part of the cap's δ that the filters zcdp and renyi set aside for runs charged by their promise."""
_KEYS = {"index", "kind", "previous", "hash", "run", "epsilon", "delta", "event"}
_FILTER_KEYS = _KEYS | {"filter", "charged_as"}
_CHARGED_AS = ("event", "statement")
# Σ of decimal fractions: 0.1 ten times may pass 1.0 by rounding; the cap holds to this relative slack
_ROUNDING = 1e-12


class DatasetLedger:
    """Adds up runs on one data set.

    Args:
        path: the file; made by the first reservation.
        epsilon, delta: the cap for all runs together.
        neighboring_relation: the relation of all runs; a file keeps to the one it began with.
        filter: one of :data:`CAP_FILTERS`; a file keeps to the one it began with.  Every line of a zcdp or renyi file
            holds the filter with its cap, which must stay the same: a filter's budget is fixed before the first run.
        orders: Rényi orders of a renyi file that is to be made; None takes one that suits Gaussian noise.
    """

    def __init__(
        self,
        path: Path | str,
        epsilon: float,
        delta: float,
        *,
        neighboring_relation: str = ADD_REMOVE,
        filter: str = "basic",
        orders: Sequence[float] | None = None,
    ) -> None:
        self.path = Path(path)
        self.epsilon = check_number("epsilon", epsilon, 0.0, MAX_SCALE, above=True)
        self.delta = check_number("delta", delta, 0.0, 1.0, below=True)
        self.neighboring_relation = check_relation(neighboring_relation)
        if filter not in CAP_FILTERS:
            raise invalid("filter", filter, f"one of {list(CAP_FILTERS)}")
        self.filter = filter
        if orders is not None and filter != "renyi":
            raise invalid("orders", orders, f"left out with filter={filter!r}", "Orders belong to filter='renyi'.")
        if filter != "basic" and self.delta == 0:
            raise invalid("delta", delta, f"> 0 with filter={filter!r}", "At delta = 0 use filter='basic'.")
        self._given_orders = orders is not None
        self._settings = self._new_filter(orders).settings() if filter != "basic" else None

    @classmethod
    def of_file(cls, path: Path | str) -> DatasetLedger:
        """The ledger behind a file: the relation, the filter and its cap are written there, a basic file's cap is not.

        Raises:
            LedgerError: there is no such file, it holds no run, or its first line does not hold.
        """
        try:
            with Path(path).open("rb") as file:
                line = strict_json(file.readline())
            relation, filter = line["event"]["neighboring_relation"], line.get("filter") or {"type": "basic"}
            cap = (filter["epsilon"], filter["delta"]) if "epsilon" in filter else (MAX_SCALE, math.nextafter(1.0, 0.0))
            return cls(path, *cap, neighboring_relation=relation, filter=filter["type"])
        except OSError as error:
            raise LedgerError(f"cannot read the data set ledger {path}: {error.strerror}.") from error
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError, RecursionError) as error:
            raise LedgerError(f"{path} is no data set ledger: its first line is not one of a run.") from error

    def _new_filter(self, orders: Sequence[float] | None) -> PrivacyFilter:
        share = self.delta * STATEMENT_SHARE
        relation = self.neighboring_relation
        if self.filter == "zcdp":
            return ZcdpFilter(self.epsilon, self.delta, statement_delta=share, neighboring_relation=relation)
        return RenyiFilter(
            self.epsilon, self.delta, orders=orders, statement_delta=share, neighboring_relation=relation
        )

    def reserve(self, run: str, epsilon: float, delta: float, event: Event | None) -> None:
        """Record that ``run`` will spend (ε, δ); call it before a record is read.

        Args:
            run: its name.
            epsilon, delta: its promise.
            event: all that it will release; None where only the promise is known.

        Raises:
            BudgetExceededError: the cap would be passed; nothing is written.
            LedgerError: the file does not hold or cannot be written.
        """
        epsilon, delta = _check_run(epsilon, delta, event)
        with self._locked() as handle:
            lines = self._lines(handle)
            extra = self._admit(lines, run, epsilon, delta, event)
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
                    **extra,
                }
            )
            self._write(handle, canonical(line) + b"\n")

    def check(self, run: str, epsilon: float, delta: float, event: Event | None = None) -> None:
        """Raise what :meth:`reserve` would raise now, without reserving: before a run makes its folder."""
        epsilon, delta = _check_run(epsilon, delta, event)
        self._admit(self._read(), run, epsilon, delta, event)

    def check_folder(self, run_dir: Path | None) -> None:
        """LedgerError unless the file can be written, or its folder will be made when a run makes ``run_dir``."""
        home, run = self.path.parent.resolve(), None if run_dir is None else run_dir.resolve()
        made = () if run is None else (run, run / "private", *run.parents)
        try:
            if self.path.exists():
                self.path.open("ab").close()  # changes nothing
            elif home.is_dir():
                tempfile.TemporaryFile(dir=home).close()
            elif home not in made:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        except OSError as error:
            raise self._failure("open", error) from error

    def guarantee(self) -> Guarantee:
        """What all runs together satisfy, also when each was chosen after seeing the ones before: the cap."""
        return Guarantee(
            self.epsilon,
            self.delta,
            self.neighboring_relation,
            accountant=f"{self.filter}_filter",
            assumptions=("every run on these data was reserved in this ledger before it read a record",),
        )

    def remaining(self) -> dict[str, float]:
        """What is left of each amount that the filter counts, by name."""
        lines = self._read()
        if self.filter != "basic":
            return self._filter_after(lines).remaining
        spent = _sums(lines)
        return {"epsilon": max(0.0, self.epsilon - spent[0]), "delta": max(0.0, self.delta - spent[1])}

    def _admit(
        self, lines: list[dict[str, Any]], run: str, epsilon: float, delta: float, event: Event | None
    ) -> dict[str, Any]:
        """Keys that the filter adds to the line; BudgetExceededError where the run does not fit."""
        if self.filter == "basic":
            self._refuse_above_cap(lines, run, epsilon, delta)
            return {}
        book = self._filter_after(lines)
        charged_as, priced = _cheaper(book, epsilon, delta, event)
        try:
            book.admit(priced)
        except BudgetExceededError:
            how = "by what its method releases"
            if charged_as == "statement":
                how = (
                    f"by its promise (epsilon = {epsilon:g}, delta = {delta:g}), since this filter bounds what its "
                    "method releases no better"
                )
            raise BudgetExceededError(
                f"run {run!r} does not fit under the cap of {self.path}, epsilon = {self.epsilon:g}, "
                f"delta = {self.delta:g}, by the filter {self.filter!r}. It is charged {how} "
                f"({book.shortfall(priced)}). Nothing was used. Lower the run's budget, or raise the cap knowingly."
            ) from None
        return {"filter": book.settings(), "charged_as": charged_as}

    def _filter_after(self, lines: list[dict[str, Any]]) -> PrivacyFilter:
        """The filter with all lines counted."""
        book = PrivacyFilter.from_state(lines[0]["filter"] if lines else self._settings or {})
        for line in lines:
            event: Event = EpsilonDelta(line["epsilon"], line["delta"])
            if line["charged_as"] == "event":
                event = from_json(line["event"]["released"])
            try:
                book.replay(event)
            except UnsupportedEventError as error:
                raise LedgerError(f"{self.path}, line {line['index'] + 1} cannot be counted: {error}") from error
        return book

    def _refuse_above_cap(self, lines: list[dict[str, Any]], run: str, epsilon: float, delta: float) -> None:
        spent_epsilon, spent_delta = _sums(lines)
        slack = 1 + _ROUNDING
        if spent_epsilon + epsilon > self.epsilon * slack or spent_delta + delta > self.delta * slack:
            raise BudgetExceededError(
                f"run {run!r} needs epsilon = {upper(epsilon, 6)}, delta = {upper(delta, 6)}, but {self.path} has "
                f"spent {upper(spent_epsilon, 6)} of {self.epsilon:g} and {upper(spent_delta, 6)} of {self.delta:g}. "
                "Nothing was used. Lower the run's budget, or raise the cap knowingly. (In a ledger that begins with "
                "filter='renyi' more runs fit under the same cap.)"
            )

    def total(self) -> tuple[float, float]:
        """(Σε, Σδ) of all reservations' promises, for display; it may pass the cap of a zcdp or renyi file."""
        return _sums(self._read())

    def runs(self) -> list[dict[str, Any]]:
        """The reservations in order: run, epsilon, delta."""
        return [{key: line[key] for key in ("run", "epsilon", "delta")} for line in self._read()]

    def composed(self) -> tuple[float, float]:
        """(ε, δ) of publishing all runs, for display: it holds only if the runs were fixed beforehand.

        The best accountant on all events at δ = Σδ (in a zcdp or renyi file at most the cap's δ), never above Σε.  A
        run without an event, or events that no accountant bounds together, leave it at (Σε, Σδ) or the filter's cap.
        """
        lines = self._read()
        total_epsilon, total_delta = _sums(lines)
        if self.filter != "basic" and total_delta > self.delta:
            total_epsilon, total_delta = self.epsilon, self.delta
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
        try:
            if not self.path.exists():
                return []
        except OSError as error:  # a name that is too long, say
            raise self._failure("read", error) from error
        if not os.access(self.path, os.W_OK):  # whoever may only look
            try:
                return self._checked(self.path.read_bytes())
            except OSError as error:
                raise self._failure("read", error) from error
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
                self._sync_folder()
            yield handle
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # closing would not, where a child was forked meanwhile
            os.close(handle)

    def _sync_folder(self) -> None:
        try:
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._failure("make", error) from error

    def _write(self, handle: int, data: bytes) -> None:
        size = os.fstat(handle).st_size
        try:
            write_all(handle, data)
        except OSError as error:
            with suppress(OSError):  # else the torn line is cut off by the next one who opens the file
                os.ftruncate(handle, size)
            raise self._failure("write", error) from error

    def _failure(self, verb: str, error: OSError) -> LedgerError:
        return LedgerError(
            f"cannot {verb} the data set ledger {self.path}: {error.strerror}; nothing was used. It must be a file, "
            "new or made by dpml, in a folder that exists and can be written to."
        )

    def _lines(self, handle: int) -> list[dict[str, Any]]:
        os.lseek(handle, 0, os.SEEK_SET)
        raw = b""
        while block := os.read(handle, 1 << 20):
            raw += block
        whole = raw.rfind(b"\n") + 1
        if whole < len(raw):  # torn by a crash before it was used
            os.ftruncate(handle, whole)
        return self._checked(raw)

    def _checked(self, raw: bytes) -> list[dict[str, Any]]:
        """The whole lines."""
        lines: list[dict[str, Any]] = []
        for number, text in enumerate(raw.split(b"\n")[:-1], start=1):
            lines.append(self._check(text, number, lines))
        return lines

    def _check(self, text: bytes, number: int, before: list[dict[str, Any]]) -> dict[str, Any]:
        where = f"{self.path}, line {number}"
        try:
            line = strict_json(text)
            good = (
                isinstance(line, dict)
                and set(line) in (_KEYS, _FILTER_KEYS)
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
                if "filter" in line:
                    good = line["charged_as"] in _CHARGED_AS and (
                        line["charged_as"] == "statement" or line["event"]["released"] is not None
                    )
                    if not before or before[-1].get("filter") != line["filter"]:
                        PrivacyFilter.from_state(line["filter"])
        except (ValueError, KeyError, TypeError, ConfigError, RecursionError) as error:
            raise LedgerError(f"{where} does not hold: {error}.") from error
        if not good:
            raise LedgerError(f"{where} was changed, removed or moved.")
        if line["event"]["neighboring_relation"] != self.neighboring_relation:
            raise ConfigError(
                f"{self.path} counts under {line['event']['neighboring_relation']!r}, this run under "
                f"{self.neighboring_relation!r}: one data set ledger adds up one neighbouring relation."
            )
        self._check_filter(line.get("filter"), before)
        return line

    def _check_filter(self, written: dict[str, Any] | None, before: list[dict[str, Any]]) -> None:
        """The line's filter is the one of this ledger, cap included, and the one of the line before."""
        kind = "basic" if written is None else written.get("type")
        if kind != self.filter:
            raise ConfigError(
                f"{self.path} enforces its cap by the filter {kind!r}, this run asks for {self.filter!r}: the choice "
                f"is made with the first run and cannot be mixed. Use filter={kind!r}, or another file for other data."
            )
        if written is None:
            return
        free = () if self._given_orders else ("orders",)
        asked = {key: value for key, value in (self._settings or {}).items() if key not in free}
        found = {key: value for key, value in written.items() if key not in free}
        if asked != found or (before and before[-1]["filter"] != written):
            raise ConfigError(
                f"{self.path} was made with the filter {written}, this run asks for {self._settings}: a filter's "
                "budget is fixed before the first run. Use the cap of the file."
            )


def _check_run(epsilon: float, delta: float, event: Event | None) -> tuple[float, float]:
    epsilon = check_number("epsilon", epsilon, 0.0, MAX_SCALE)
    delta = check_number("delta", delta, 0.0, 1.0, below=True)
    if event is not None and not isinstance(event, Event):
        raise invalid("event", event, "an event of dpml.accounting or None")
    return epsilon, delta


def _cheaper(book: PrivacyFilter, epsilon: float, delta: float, event: Event | None) -> tuple[str, Event]:
    """Charge by the event or by the promise: whichever takes the smaller share of the budget.

    Both hold, and the choice uses public numbers only.
    """
    statement = EpsilonDelta(epsilon, delta)
    if event is None:
        return "statement", statement
    try:
        by_event = _share(book, event)
    except UnsupportedEventError:
        return "statement", statement
    return ("event", event) if by_event <= _share(book, statement) else ("statement", statement)


def _share(book: PrivacyFilter, event: Event) -> float:
    """The largest part of a budget that the event takes (of orders: the smallest among them); ``inf`` for none left."""
    parts = {name: _ratio(value, book.budget[name]) for name, value in book.price(event).items()}
    statements = parts.pop("delta")
    return max(statements, min(parts.values()))


def _ratio(value: float, budget: float) -> float:
    if value == 0:
        return 0.0
    return value / budget if budget > 0 else math.inf


def _sums(lines: list[dict[str, Any]]) -> tuple[float, float]:
    return math.fsum(line["epsilon"] for line in lines), math.fsum(line["delta"] for line in lines)
