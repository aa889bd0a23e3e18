"""Planted bugs in private sessions: each entry patches one seam, and the named check must fail under it."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import session_checks as checks

from dpml.accounting.filters import PureFilter
from dpml.errors import DpmlError
from dpml.mechanisms import columns, parts, predicates, queries, query_plan, session, session_ledger
from dpml.mechanisms.answers import Answer
from dpml.mechanisms.laplace import LaplaceMechanism
from dpml.mechanisms.parts import Interval, Part
from dpml.mechanisms.session_ledger import MARK, SessionLedger

Check = Callable[[pytest.MonkeyPatch, Path], Any]

CHECKS: dict[str, Check] = {
    "sensitivity": lambda patch, folder: checks.check_sensitivities_hold(),
    "covered": lambda patch, folder: checks.check_noise_covers_the_sensitivity(),
    "noise": lambda patch, folder: checks.check_nothing_leaves_without_noise(),
    "order": checks.check_charged_before_the_data_are_read,
    "failed": checks.check_a_failed_question_stays_charged,
    "reopened": lambda patch, folder: checks.check_reopening_goes_on(folder),
    "askers": checks.check_two_askers_never_overspend,
    "threads": lambda patch, folder: checks.check_two_threads_never_overspend(patch),
    "cost": lambda patch, folder: checks.check_no_question_costs_more_than_asked(),
    "forked": lambda patch, folder: checks.check_a_forked_memory_session_refuses(patch),
    "read": lambda patch, folder: [checks.check_no_record_changes_how_others_are_read(name) for name in checks.READ],
}


@pytest.mark.parametrize("name", CHECKS)
def test_checks_pass_unpatched(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    CHECKS[name](monkeypatch, tmp_path)


# -- sensitivities ----------------------------------------------------------------------------------------------------
def _mean_by_the_actual_number(patch: pytest.MonkeyPatch) -> None:
    """The mean itself with sensitivity width/n, n read off the records."""

    def actual(query: queries.Mean, relation: str) -> tuple[Part, ...]:
        low, high = query.bounds
        size = (high - low) / 5

        def compute(data: Any) -> Any:
            values = np.clip(np.nan_to_num(data.numbers(query.column)), low, high)
            return np.array([values.mean() if values.size else 0.0])

        return (Part("mean", 1, size, size, size, 0.0, compute),)

    patch.setattr(queries.Mean, "parts", actual)


def _replace_one_taken_for_half(patch: pytest.MonkeyPatch) -> None:
    real = Interval.sensitivity
    patch.setattr(
        Interval, "sensitivity", lambda self, relation: real(self, relation) / (2 if relation == "replace_one" else 1)
    )


def _histogram_of_replace_one_as_of_add_remove(patch: pytest.MonkeyPatch) -> None:
    real = queries.counts
    patch.setattr(
        queries, "counts", lambda name, size, relation, *rest, **more: real(name, size, "add_remove", *rest, **more)
    )


def _plan_for_the_other_relation(patch: pytest.MonkeyPatch) -> None:
    for kind in (queries.Sum, queries.Mean, queries.Histogram):
        real = kind.parts
        patch.setattr(kind, "parts", lambda self, relation, real=real: real(self, "add_remove"))


def _clamp_forgotten(patch: pytest.MonkeyPatch) -> None:
    def total(self: Interval, values: Any, missing: float, used: Any) -> float:
        values = np.where(np.isnan(values), missing, values)
        return float(np.clip(values if used is None else values[used], -1e6, 1e6).sum())

    patch.setattr(Interval, "total", total)


def _nan_passes(patch: pytest.MonkeyPatch) -> None:
    """A NaN poisons the sum, which then becomes 0."""
    real = Interval.total

    def total(self: Interval, values: Any, missing: float, used: Any) -> float:
        return 0.0 if np.isnan(values).any() else real(self, values, missing, used)

    patch.setattr(Interval, "total", total)


def _where_left_out_of_the_range(patch: pytest.MonkeyPatch) -> None:
    """Under replace_one a record that does not count contributes 0, outside of [2, 8]."""
    real = parts.interval
    patch.setattr(queries, "interval", lambda bounds, optional=False: real(bounds, optional=False))


def _squares_with_the_sensitivity_of_numbers(patch: pytest.MonkeyPatch) -> None:
    real = queries.Variance.parts

    def planted(self: queries.Variance, relation: str) -> tuple[Part, ...]:
        first, second, *rest = real(self, relation)
        return (first, Part(second.name, 1, first.l1, first.l2, first.linf, second.step, second.compute), *rest)

    patch.setattr(queries.Variance, "parts", planted)


# -- noise ------------------------------------------------------------------------------------------------------------
def _count_unnoised(patch: pytest.MonkeyPatch) -> None:
    real = query_plan.QueryPlan.release

    def release(plan: Any, data: Any, noise: Any) -> Any:
        if [part.name for part in plan.parts] == ["count"]:
            exact = (plan.parts[0].compute(data),)
            return query_plan.QueryAnswer(plan.query.finish(exact, plan.relation, plan.records), plan, exact)
        return real(plan, data, noise)

    patch.setattr(query_plan.QueryPlan, "release", release)


def _laplace_without_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LaplaceMechanism, "release", lambda self, value, noise=None: Answer(np.asarray(value), self))


def _actual_number_under_a_noisy_sum(patch: pytest.MonkeyPatch) -> None:
    """No noise for one of the parts: the count of a mean is left as it is."""
    real = LaplaceMechanism.release
    patch.setattr(
        LaplaceMechanism,
        "release",
        lambda self, value, noise=None: (
            Answer(np.asarray(value), self) if self.sensitivity == 1 else real(self, value, noise)
        ),
    )


# -- charges ----------------------------------------------------------------------------------------------------------
def _charged_after_the_answer(patch: pytest.MonkeyPatch) -> None:
    real = SessionLedger.charge

    def ask(self: Any, query: Any, **arguments: Any) -> Any:
        plan = query_plan.make_plan(
            query, self.neighboring_relation, None, self._columns.blank(0), pure=True, **arguments
        )
        if self._ledger._filter.would_allow(plan.event):
            answer = plan.release(self._columns, self._noise)
            self._ledger.answer(real(self._ledger, plan.event, query.describe(), plan.kind), 0.0)
            return answer
        real(self._ledger, plan.event, query.describe(), plan.kind)
        return None

    patch.setattr(session.PrivateSession, "ask", ask)


def _refused_after_touching_the_data(patch: pytest.MonkeyPatch) -> None:
    real = session.PrivateSession.ask

    def ask(self: Any, query: Any, **arguments: Any) -> Any:
        try:
            return real(self, query, **arguments)
        except DpmlError:
            query.evaluate(self._columns)
            raise

    patch.setattr(session.PrivateSession, "ask", ask)


def _refusal_costs(patch: pytest.MonkeyPatch) -> None:
    real = SessionLedger.charge

    def charge(self: Any, event: Any, query: Any, mechanism: str) -> int:
        try:
            return real(self, event, query, mechanism)
        except DpmlError:
            self._filter.replay(event)
            raise

    patch.setattr(SessionLedger, "charge", charge)


def _charge_given_back_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    real = session.PrivateSession.ask

    def ask(self: Any, query: Any, **arguments: Any) -> Any:
        file = self._ledger._path
        before = file.read_bytes()
        try:
            return real(self, query, **arguments)
        except RuntimeError:
            file.write_bytes(before)
            self._ledger._count_anew()
            raise

    patch.setattr(session.PrivateSession, "ask", ask)


def _charge_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session_ledger, "write_all", lambda handle, data: os.write(handle, data))


def _reopening_forgets(patch: pytest.MonkeyPatch) -> None:
    real = SessionLedger._make_file

    def make(self: Any, path: Path) -> None:
        if path.exists():
            path.unlink()
            path.with_name(MARK).unlink()
        real(self, path)

    patch.setattr(SessionLedger, "_make_file", make)


def _charges_not_replayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PureFilter, "replay", lambda self, event: None)


def _file_lock_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session_ledger, "lock_file", lambda handle: None)


def _thread_lock_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session_ledger, "thread_lock", contextlib.nullcontext)


def _others_charges_not_read(patch: pytest.MonkeyPatch) -> None:
    """A session that counts its own questions only."""
    real = SessionLedger._new_bytes

    def stale(self: Any, handle: int) -> bytes:
        found = real(self, handle)
        if self._lines and not getattr(self, "_mine", False):
            self._offset += len(found)
            self._last = found.splitlines(keepends=True)[-1] if found else self._last
            return b""
        return found

    patch.setattr(SessionLedger, "_new_bytes", stale)


def _parts_each_with_the_whole_budget(patch: pytest.MonkeyPatch) -> None:
    real = query_plan._builder
    patch.setattr(query_plan, "_builder", lambda kind, count, *rest: real(kind, 1, *rest))


def _only_the_first_part_charged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(query_plan, "Composed", lambda events: events[0])


def _gaussian_parts_share_the_multiplier(patch: pytest.MonkeyPatch) -> None:
    """√count left out: each part has the noise of the whole."""
    real = query_plan.gaussian_noise_multiplier
    patch.setattr(query_plan, "gaussian_noise_multiplier", lambda epsilon, delta: real(epsilon, delta) / math.sqrt(2))


def _fork_goes_on_spending(patch: pytest.MonkeyPatch) -> None:
    real = SessionLedger._opened

    def opened(self: Any) -> Any:
        self._origin = session_ledger.process_identity()
        return real(self)

    patch.setattr(SessionLedger, "_opened", opened)


def _truth_values_of_texts_not_read(patch: pytest.MonkeyPatch) -> None:
    """As it once was: a column of truth values is lost beside one record that holds none."""
    patch.setattr(columns, "_TRUTH", {})


def _texts_looked_up_as_they_are(patch: pytest.MonkeyPatch) -> None:
    """As it once was: an equal text first, and the number that it spells among listed numbers only."""

    class Exact(columns.Places):
        def __init__(self, listed: Any) -> None:
            super().__init__(listed)
            self._exact = {value: place for place, value in enumerate(listed)}

        def of(self, cell: Any) -> int:
            if isinstance(cell, str):
                return self._exact.get(cell, self._exact.get(columns.spelled_number(cell), -1))
            return super().of(cell)

    for module in (queries, predicates):
        patch.setattr(module, "Places", Exact)


def _functions_see_how_a_column_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(columns, "as_read", lambda cell: cell)


BUGS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "sensitivity of a mean by the actual number of records": (_mean_by_the_actual_number, "sensitivity"),
    "replace_one with half the sensitivity": (_replace_one_taken_for_half, "sensitivity"),
    "replace_one with half the sensitivity, in the noise": (_replace_one_taken_for_half, "covered"),
    "histogram under replace_one as under add_remove": (_histogram_of_replace_one_as_of_add_remove, "sensitivity"),
    "plans for the other relation": (_plan_for_the_other_relation, "covered"),
    "clamp forgotten": (_clamp_forgotten, "sensitivity"),
    "NaN passes the clamp": (_nan_passes, "sensitivity"),
    "squares with the sensitivity of the numbers": (_squares_with_the_sensitivity_of_numbers, "sensitivity"),
    "count returned unnoised": (_count_unnoised, "noise"),
    "no Laplace noise": (_laplace_without_noise, "noise"),
    "charge after the answer": (_charged_after_the_answer, "order"),
    "charge not synced": (_charge_not_synced, "order"),
    "refusal after touching the data": (_refused_after_touching_the_data, "order"),
    "refusal costs": (_refusal_costs, "order"),
    "charge given back after a failure": (_charge_given_back_after_a_failure, "failed"),
    "reopening forgets what was spent": (_reopening_forgets, "reopened"),
    "charges not replayed": (_charges_not_replayed, "reopened"),
    "file lock left out": (_file_lock_left_out, "askers"),
    "thread lock left out": (_thread_lock_left_out, "threads"),
    "others' charges not read": (_others_charges_not_read, "askers"),
    "each part with the whole budget": (_parts_each_with_the_whole_budget, "cost"),
    "only the first part charged": (_only_the_first_part_charged, "cost"),
    "Gaussian parts share the noise of one": (_gaussian_parts_share_the_multiplier, "cost"),
    "a forked session in memory goes on spending": (_fork_goes_on_spending, "forked"),
    "texts of truth values not read": (_truth_values_of_texts_not_read, "read"),
    "texts looked up as they are": (_texts_looked_up_as_they_are, "read"),
    "functions see how a column is kept": (_functions_see_how_a_column_is_kept, "read"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant, check = BUGS[bug]
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        CHECKS[check](monkeypatch, tmp_path)


def test_a_where_widens_the_range_under_replace_one(monkeypatch: pytest.MonkeyPatch) -> None:
    query = queries.Sum("age", (50, 100), where=checks.ADULTS)
    assert checks.check_sensitivity(query, checks.person, "replace_one", n=4, trials=80).holds
    _where_left_out_of_the_range(monkeypatch)
    assert not checks.check_sensitivity(query, checks.person, "replace_one", n=4, trials=80).holds


def test_the_count_of_a_mean_has_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def counts_seen() -> set[float]:
        asked = session.PrivateSession(checks.DATA, session.PureBudget(1e3))
        return {float(asked.ask(queries.Mean("age", (0, 100)), epsilon=0.1).statistics[1][0]) for _ in range(10)}  # type: ignore[attr-defined]

    assert len(counts_seen()) > 5
    _actual_number_under_a_noisy_sum(monkeypatch)
    assert counts_seen() == {51.0}
