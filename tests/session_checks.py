"""Checks of private sessions that both their tests and their planted bugs use."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpml import accounting as acc
from dpml.errors import BudgetExceededError, LedgerError
from dpml.mechanisms import (
    ApproxBudget,
    Count,
    Custom,
    Histogram,
    Mean,
    PrivateSession,
    PureBudget,
    Quantile,
    Sum,
    Variance,
    Vector,
    Where,
    ZCDPBudget,
    check_sensitivity,
)
from dpml.mechanisms.columns import Columns, as_columns
from dpml.mechanisms.queries import Query
from dpml.mechanisms.session_ledger import FILE, SessionLedger

ADD, REPLACE = "add_remove", "replace_one"
DATA: dict[str, Any] = {"age": np.linspace(0.0, 100.0, 51), "town": ["a", "b", "c"] * 17}
ADULTS = Where("age", ">=", 18)
QUERIES: list[Query] = [
    Count(ADULTS),
    Sum("age", (0, 100)),
    Mean("age", (0, 100)),
    Mean("age", (0, 100), where=ADULTS),
    Variance("age", (0, 100)),
    Histogram("town", categories=["a", "b", "c"]),
    Vector([Count(ADULTS), Sum("age", (0, 100))]),  # type: ignore[arg-type]
    Custom(lambda columns: float(columns["age"].size), 1.0),
]
MEDIAN = Quantile("age", 0.5, (0, 100))


class Touches:
    """What was read of the records, and how many charges were on disk at that moment."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path | None = None) -> None:
        self.charges: list[int] = []
        self.synced = 0
        self.unsynced = 0  # looks while a part of the file was not synced
        sync = os.fsync

        def synced(handle: int) -> None:
            sync(handle)
            if folder is None or os.fstat(handle).st_ino == (folder / FILE).stat().st_ino:  # not the mark's
                self.synced = os.fstat(handle).st_size

        patch.setattr(os, "fsync", synced)
        self.made_up: list[Columns] = []
        blank = Columns.blank

        def make_up(columns: Columns, records: int) -> Columns:
            self.made_up.append(blank(columns, records))
            return self.made_up[-1]

        patch.setattr(Columns, "blank", make_up)
        for name in ("raw", "numbers", "rows", "as_dict"):
            real = getattr(Columns, name)

            def look(columns: Columns, *rest: Any, real: Any = real) -> Any:
                if not any(columns is one for one in self.made_up):
                    file = (folder or Path()) / FILE
                    text = file.read_text("utf-8") if folder and file.exists() else ""
                    self.unsynced += len(text.encode()) != self.synced if text else 0
                    self.charges.append(text.count('"kind":"charge"'))
                return real(columns, *rest)

            patch.setattr(Columns, name, look)


def person(rng: np.random.Generator) -> dict[str, Any]:
    return {"age": float(rng.uniform(0, 100)), "town": str(rng.choice(["a", "b", "c"]))}


def check_sensitivities_hold() -> None:
    """No neighbours are further apart than any part declares (``check_sensitivity``'s tests show its power)."""
    for relation in (ADD, REPLACE):
        for query in [*QUERIES, Count(), MEDIAN]:
            found = check_sensitivity(query, person, relation, n=5, trials=80, seed=3)
            assert found.holds, (query, found)


READ: dict[str, list[str]] = {  # cells of a column that a CSV reader keeps in another way beside one odd record
    "truth": ["True", "False", "True"] * 3,
    "shouted": ["TRUE", "FALSE", "FALSE"] * 3,
    "small": ["true", "false", "true"] * 3,
    "whole": ["1", "0", "1"] * 3,
    "zip": ["01234", "02345", "01234"] * 3,
    "numbers": ["1.0", "0.50", "1.0"] * 3,
    "powers": ["1e3", "1000", "1"] * 3,
    "large": ["9007199254740993", "9007199254740992", "1"] * 3,
}
ODD = ("odd", "", "True", "1", "2.5", "99999999999999999999", "inf", "nan", "0x1", "1_0")
OF_READ: list[Query] = [
    *(Count(Where("x", sign, value))
      for sign in ("==", "!=") for value in (True, 1, "1", "True", "1.0", "1234", "01234", 1000, 2**53 + 1, "1e3")),
    Count(Where("x", ">=", 0.7)),
    Count(Where("x", "in", ["true", 1234])),
    Count(lambda record: record["x"] == 1),
    Count(lambda record: str(record["x"]).startswith("1")),
    Sum("x", (0, 1)),
    Mean("x", (-1, 1)),
    Variance("x", (0, 1)),
    Histogram("x", categories=["True", "0", "1234"]),
    Histogram("x", categories=[True, False]),
    Histogram("x", edges=[0, 0.5, 2]),
]  # fmt: skip


def read(cells: list[str]) -> pd.DataFrame:
    """A CSV file of one column, and a second one that keeps empty cells from being empty lines."""
    return pd.read_csv(io.StringIO("x,y\n" + "".join(f"{cell},0\n" for cell in cells)))


def check_no_record_changes_how_others_are_read(column: str) -> None:
    """One more record in the file moves every part of a query by its declared sensitivity at most."""
    without = as_columns(read(READ[column]))
    for odd in ODD:
        beside = as_columns(read([*READ[column], odd]))
        for query in OF_READ:
            for part in query.parts(ADD):
                moved = float(np.abs(part.compute(without) - part.compute(beside)).sum())
                assert moved <= part.l1, (column, odd, query)
        ranks = Quantile("x", 0.5, (0.0, 1.0))
        assert abs(ranks.values(without).size - ranks.values(beside).size) <= 1, (column, odd)


def check_noise_covers_the_sensitivity() -> None:
    """Each mechanism of each plan has the sensitivity of its part, under the session's relation: numbers by hand."""
    expected = {ADD: [1, 100, (50, 1), (50, 1), (50, 1250, 1), 1, (1, 100), 1]}
    expected[REPLACE] = [1, 100, (100,), (100, 1), (100, 2500), 2, (1, 100), 2]
    for relation, rows in expected.items():
        session = PrivateSession(DATA, ApproxBudget(1e6, 1e-6), neighboring_relation=relation)
        for query, row in zip(QUERIES, rows, strict=True):
            answer = session.ask(query, epsilon=0.5)
            found = [mechanism.sensitivity for mechanism in answer.mechanism.mechanisms]
            assert found == pytest.approx(list(row) if isinstance(row, tuple) else [row], rel=1e-6), (relation, query)
            share = 0.5 / len(found)
            for mechanism in answer.mechanism.mechanisms:
                assert mechanism.scale * share >= mechanism.sensitivity, (relation, query)


def check_nothing_leaves_without_noise() -> None:
    """30 answers each, none of which is the exact one.

    The chance that a coordinate of one answer is exact is below 1e-4 (the grid has 2^-20 of the noise scale, means are
    quotients of such), so that even two exact ones among 30 have probability below 1e-5, and three below 1e-8.
    """
    for relation in (ADD, REPLACE):
        session = PrivateSession(DATA, PureBudget(1e6), neighboring_relation=relation)
        for query in QUERIES:
            exact = _flat(query.exact(DATA, relation))
            answers = np.array([_flat(session.ask(query, epsilon=0.1).value) for _ in range(30)])
            assert (answers == exact).sum(axis=0).max() <= 2, query
            assert all(len(set(column.tolist())) > 1 for column in answers.T), query


def _flat(value: Any) -> np.ndarray[Any, Any]:
    return np.atleast_1d(np.asarray(value, dtype=float))


def check_charged_before_the_data_are_read(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """At every look at a record the charge of its question is on disk, synced; a refused one looks at none, is free."""
    session = PrivateSession(DATA, PureBudget(float(len(QUERIES)) + 1), folder=folder)
    touched = Touches(patch, folder)
    for number, query in enumerate([*QUERIES, MEDIAN], start=1):
        touched.charges.clear()
        session.ask(query, epsilon=1.0)
        assert touched.charges, "the check sees that records are read"
        assert set(touched.charges) == {number}, query
        assert touched.unsynced == 0, query
    touched.charges.clear()
    spent = session.spent
    size = (folder / FILE).stat().st_size
    for query in [*QUERIES, MEDIAN]:
        with pytest.raises(BudgetExceededError, match="no record was looked at"):
            session.ask(query, epsilon=0.1)
    assert touched.charges == []
    assert session.spent == spent
    assert (folder / FILE).stat().st_size == size


def check_a_failed_question_stays_charged(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Noise that cannot be drawn: the charge was made before."""
    session = PrivateSession(DATA, PureBudget(1.0), folder=folder)
    with patch.context() as inner:
        inner.setattr(session, "_noise", _BrokenNoise())
        with pytest.raises(RuntimeError, match="no entropy"):
            session.ask(Count(), epsilon=0.25)
    assert session.spent == {"epsilon": 0.25}
    assert [exchange.answered for exchange in session.transcript] == [False]
    assert PrivateSession(DATA, PureBudget(1.0), folder=folder).spent == {"epsilon": 0.25}


class _BrokenNoise:
    secret = True

    def normal(self, std: float, shape: Any) -> Any:
        raise RuntimeError("no entropy")

    def uniform(self, size: Any) -> Any:
        raise RuntimeError("no entropy")


def check_reopening_goes_on(folder: Path) -> None:
    """Three openings share one budget; the fourth is refused."""
    for number in range(3):
        session = PrivateSession(DATA, PureBudget(1.0), folder=folder)
        assert session.spent == {"epsilon": pytest.approx(0.3 * number)}
        session.ask(Mean("age", (0, 100)), epsilon=0.3)
    session = PrivateSession(DATA, PureBudget(1.0), folder=folder)
    with pytest.raises(BudgetExceededError):
        session.ask(Count(), epsilon=0.3)
    assert len(session.transcript) == 3


def check_two_askers_never_overspend(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Two sessions on one folder ask at once for all of the budget, each made to wait for the other before it writes.

    With the lock the other cannot come that far, and the wait ends by itself.
    """
    meeting = threading.Barrier(2)
    real = SessionLedger._write

    def slow(ledger: SessionLedger, handle: int | None, payload: Any) -> None:
        if payload["kind"] == "charge":
            with contextlib.suppress(threading.BrokenBarrierError):
                meeting.wait(timeout=1.0)
        real(ledger, handle, payload)

    sessions = [PrivateSession(DATA, PureBudget(1.0), folder=folder) for _ in range(2)]
    patch.setattr(SessionLedger, "_write", slow)
    outcomes = ask_at_once(sessions)
    assert sorted(outcomes) == ["BudgetExceededError", "answer"], outcomes
    assert PrivateSession(DATA, PureBudget(1.0), folder=folder).spent == {"epsilon": 1.0}


def check_two_threads_never_overspend(patch: pytest.MonkeyPatch) -> None:
    """The same for one session in memory."""
    meeting = threading.Barrier(2)
    real = SessionLedger._write

    def slow(ledger: SessionLedger, handle: int | None, payload: Any) -> None:
        if payload["kind"] == "charge":
            with contextlib.suppress(threading.BrokenBarrierError):
                meeting.wait(timeout=1.0)
        real(ledger, handle, payload)

    session = PrivateSession(DATA, PureBudget(1.0))
    patch.setattr(SessionLedger, "_write", slow)
    outcomes = ask_at_once([session, session])
    assert sorted(outcomes) == ["BudgetExceededError", "answer"], outcomes
    assert session.spent == {"epsilon": 1.0}


def ask_at_once(sessions: list[PrivateSession], epsilon: float = 1.0) -> list[str]:
    outcomes: list[str] = []

    def ask(session: PrivateSession) -> None:
        try:
            session.ask(Count(), epsilon=epsilon)
            outcomes.append("answer")
        except (BudgetExceededError, LedgerError) as error:
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=ask, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def check_no_question_costs_more_than_asked() -> None:
    """What is charged is at most what was asked for, by every mechanism, on every budget."""
    for relation in (ADD, REPLACE):
        for query in QUERIES:
            pure = PrivateSession(DATA, PureBudget(100.0), neighboring_relation=relation)
            pure.ask(query, epsilon=0.3)
            assert pure.spent["epsilon"] == pytest.approx(0.3, rel=1e-12)
            zcdp = PrivateSession(DATA, ZCDPBudget(100.0), neighboring_relation=relation)
            for kind in ("gaussian", "laplace"):
                before = zcdp.spent["rho"]
                zcdp.ask(query, rho=0.3, mechanism=kind)
                assert 0.299 < zcdp.spent["rho"] - before <= 0.3 * (1 + 1e-12), (query, kind)
            approx = PrivateSession(DATA, ApproxBudget(100.0, 1e-5), neighboring_relation=relation)
            approx.ask(query, epsilon=0.7, delta=1e-6, mechanism="gaussian")
            found = acc.epsilon(approx.event, 1e-6, accountant="exact", neighboring_relation=relation)
            assert 0.69 < found <= 0.7 * (1 + 1e-9), query


def check_a_forked_memory_session_refuses(patch: pytest.MonkeyPatch) -> None:
    """In another process the copy of a session in memory has no budget to spend (the process is pretended here)."""
    from dpml.mechanisms import session_ledger

    session = PrivateSession(DATA, PureBudget(1.0))
    with patch.context() as inner:
        inner.setattr(session_ledger, "process_identity", lambda: (0, 1))
        with pytest.raises(LedgerError, match="memory of another process"):
            session.ask(Count(), epsilon=0.1)
    session.ask(Count(), epsilon=0.1)
    assert session.spent == {"epsilon": 0.1}
