"""Private sessions: the order of charge and look, refusals, totals, restarts, and answers that are what they say."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import session_checks as checks
from scipy import stats
from session_checks import ADD, DATA, MEDIAN, QUERIES, REPLACE, Touches

import dpml
from dpml import accounting as acc
from dpml.errors import BudgetExceededError, ConfigError, DataError, DpmlError, LedgerError, UnsupportedEventError
from dpml.mechanisms import (
    ApproxBudget,
    Count,
    Custom,
    FixedNoise,
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
)
from dpml.mechanisms.session_ledger import FILE, MARK

BUDGETS = [PureBudget(3.0), ZCDPBudget(2.0), ApproxBudget(3.0, 1e-5)]


# -- what the checks say ----------------------------------------------------------------------------------------------
def test_sensitivities_hold() -> None:
    checks.check_sensitivities_hold()


def test_noise_covers_the_sensitivity() -> None:
    checks.check_noise_covers_the_sensitivity()


def test_nothing_leaves_without_noise() -> None:
    checks.check_nothing_leaves_without_noise()


def test_charged_before_the_data_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checks.check_charged_before_the_data_are_read(monkeypatch, tmp_path)


def test_a_failed_question_stays_charged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checks.check_a_failed_question_stays_charged(monkeypatch, tmp_path)


def test_reopening_goes_on(tmp_path: Path) -> None:
    checks.check_reopening_goes_on(tmp_path)


def test_two_askers_never_overspend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checks.check_two_askers_never_overspend(monkeypatch, tmp_path)


def test_two_threads_never_overspend(monkeypatch: pytest.MonkeyPatch) -> None:
    checks.check_two_threads_never_overspend(monkeypatch)


def test_no_question_costs_more_than_asked() -> None:
    checks.check_no_question_costs_more_than_asked()


def test_a_forked_memory_session_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    checks.check_a_forked_memory_session_refuses(monkeypatch)


# -- answers ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("query", QUERIES, ids=lambda query: type(query).__name__)
def test_intervals_hold_the_truth(query: Any, relation: str) -> None:
    """At β = 0.2, 200 answers: false alarm 1e-6 (binomial at 0.8); power: a coverage of 0.55 is refused."""
    session = PrivateSession(DATA, PureBudget(1e6), neighboring_relation=relation)
    exact = np.concatenate([np.atleast_1d(part) for part in np.atleast_1d(query.exact(DATA, relation))])
    held = 0
    for _ in range(200):
        answer = session.ask(query, epsilon=0.5)
        low, high = answer.interval(0.2)
        flat_low, flat_high = np.atleast_1d(np.asarray(low)), np.atleast_1d(np.asarray(high))
        held += bool(((flat_low <= exact) & (exact <= flat_high)).all())
        errors = np.atleast_1d(np.asarray(answer.error(0.2)))
        value = np.atleast_1d(np.asarray(answer.value))
        assert (value - errors <= flat_low + 1e-9 * (1 + abs(flat_low))).all()
        assert (flat_high <= value + errors + 1e-9 * (1 + abs(flat_high))).all()
    least = int(stats.binom.ppf(1e-6, 200, 0.8))
    assert held >= least
    assert stats.binom.sf(least - 1, 200, 0.55) < 0.01, "power"


def test_answers_of_a_large_budget_are_close() -> None:
    session = PrivateSession(DATA, PureBudget(1e9))
    for query in [*QUERIES, MEDIAN]:
        answer = session.ask(query, epsilon=1e6)
        exact = np.asarray(query.exact(DATA), dtype=float)
        assert np.allclose(np.asarray(answer.value, dtype=float), exact, rtol=1e-3, atol=1e-2), query


def test_the_noise_of_a_count_is_the_one_that_was_charged() -> None:
    """KS test at 1e-6 against Lap(1/ε); power: four times or a quarter of the scale is 0.24 away, 7 deviations."""
    session = PrivateSession(DATA, PureBudget(1e6))
    truth = Count(checks.ADULTS).exact(DATA)
    noise = np.array([session.ask(Count(checks.ADULTS), epsilon=0.5).value - truth for _ in range(1000)])
    assert stats.kstest(noise, stats.laplace(scale=2.0).cdf).pvalue > 1e-6
    for factor in (0.25, 4.0):
        assert stats.kstest(noise * factor, stats.laplace(scale=2.0).cdf).pvalue < 1e-6


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_discrete_noise_and_quantiles_cost_at_most_what_was_asked(relation: str) -> None:
    session = PrivateSession(DATA, ZCDPBudget(100.0), neighboring_relation=relation)
    towns = Histogram("town", categories=["a", "b"])
    kinds = ["discrete_laplace", "discrete_gaussian"]
    for query, kind in [(query, kind) for query in (Count(checks.ADULTS), towns) for kind in kinds] + [(MEDIAN, None)]:
        before = session.spent["rho"]
        session.ask(query, rho=0.2, mechanism=kind)
        assert 0.19 < session.spent["rho"] - before <= 0.2 * (1 + 1e-9), (query, kind)
    before = session.spent["rho"]
    session.ask(towns, epsilon=0.5, mechanism="discrete_laplace")
    assert session.spent["rho"] - before == pytest.approx(acc.pure_to_zcdp(0.5), rel=1e-3)


def test_discrete_answers_are_whole() -> None:
    session = PrivateSession(DATA, ZCDPBudget(100.0))
    for kind, cost in [("discrete_laplace", {"epsilon": 0.5}), ("discrete_gaussian", {"rho": 0.1})]:
        for query in (Count(), Histogram("town", categories=["a", "b"])):
            value = np.asarray(session.ask(query, mechanism=kind, **cost).value)  # type: ignore[arg-type]
            assert (value == np.rint(value)).all()
        with pytest.raises(ConfigError, match="discrete noise is for counts"):
            session.ask(Sum("age", (0, 1)), mechanism=kind, **cost)  # type: ignore[arg-type]
    low, high = session.ask(Count(), epsilon=0.5, mechanism="discrete_laplace").interval(0.05)
    assert low < high


def test_the_number_of_records_divides_nothing_under_add_remove() -> None:
    """The same noise on data sets whose private number differs: an answer is a function of its noisy parts alone."""
    for query in (Mean("age", (0, 100)), Variance("age", (0, 100))):
        for size in (3, 3000):
            data = {"age": np.linspace(0, 100, size)}
            answer = PrivateSession(data, PureBudget(10.0), noise_source=FixedNoise(1)).ask(query, epsilon=5.0)
            assert answer.mechanism.records is None
            assert answer.value == query.finish(answer.statistics, ADD, None)  # type: ignore[attr-defined]


def test_post_processing_can_keep_counts_above_zero() -> None:
    session = PrivateSession({"town": ["z"] * 3}, PureBudget(1e6))
    values = [session.ask(Count(Where("town", "==", "a"), nonnegative=True), epsilon=0.1).value for _ in range(50)]
    assert min(values) == 0.0
    histogram = Histogram("town", categories=["a", "b"], nonnegative=True)
    assert min(float(session.ask(histogram, epsilon=0.1).value.min()) for _ in range(20)) == 0.0


def test_every_container_and_a_column_by_number() -> None:
    for data, column in [(pd.DataFrame(DATA), "age"), (np.arange(6.0).reshape(3, 2), 1), (DATA, "age")]:
        assert math.isfinite(PrivateSession(data, PureBudget(1.0)).ask(Sum(column, (0, 1)), epsilon=0.5).value)


# -- totals -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_a_fixed_list_costs_what_the_accountant_says(relation: str) -> None:
    """Pure: Σε.  zCDP and approximate: Σρ of the events.  The accountants' ε of the list is at most the budget's."""
    pure = PrivateSession(DATA, PureBudget(10.0), neighboring_relation=relation)
    for number, query in enumerate([*QUERIES, MEDIAN], start=1):
        pure.ask(query, epsilon=0.1 * number)
    assert pure.spent["epsilon"] == pytest.approx(0.1 * sum(range(1, 10)), rel=1e-12)
    basic = acc.epsilon(pure.event, 0.0, accountant="basic", neighboring_relation=relation)
    assert pure.spent["epsilon"] == pytest.approx(basic, rel=1e-12)
    assert pure.remaining["epsilon"] == pytest.approx(10.0 - basic, rel=1e-12)

    for budget in (ZCDPBudget(2.0, delta=1e-6), ApproxBudget(9.0, 1e-6)):
        session = PrivateSession(DATA, budget, neighboring_relation=relation)
        for query in QUERIES:
            session.ask(query, rho=0.02)
            session.ask(query, epsilon=0.2)
            session.ask(query, epsilon=0.2, delta=1e-7, mechanism="gaussian")
        session.ask(MEDIAN, epsilon=0.3)
        assert session.spent["rho"] == pytest.approx(acc.rho(session.event, neighboring_relation=relation), rel=1e-12)
        whole = acc.epsilon(session.event, 1e-6, accountant="zcdp", neighboring_relation=relation)
        best = acc.epsilon(session.event, 1e-6, neighboring_relation=relation)
        assert best <= whole <= session.guarantee().epsilon


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: type(budget).__name__)
def test_the_guarantee_is_the_budget(budget: Any) -> None:
    session = PrivateSession(DATA, budget, neighboring_relation=REPLACE)
    before = session.guarantee()
    session.ask(Sum("age", (0, 1)), epsilon=0.1)
    assert session.guarantee() == before
    assert before.neighboring_relation == REPLACE
    if isinstance(budget, PureBudget | ApproxBudget):
        assert before.epsilon == budget.epsilon
    else:
        assert before.epsilon == pytest.approx(acc.zcdp_to_epsilon(2.0, 1e-6), rel=1e-9)
    assert not any("NO GUARANTEE" in text for text in before.assumptions)
    tested = PrivateSession(DATA, budget, noise_source=FixedNoise(1)).guarantee()
    assert any("NO GUARANTEE" in text for text in tested.assumptions)


def test_exactly_the_budget_can_be_spent() -> None:
    session = PrivateSession(DATA, PureBudget(1.0))
    for _ in range(10):
        session.ask(Count(), epsilon=0.1)
    assert session.remaining == {"epsilon": pytest.approx(0.0, abs=1e-12)}
    with pytest.raises(BudgetExceededError, match=r"epsilon: needs 1e-06, 1 of 1 spent, \S+ left"):
        session.ask(Count(), epsilon=1e-6)


# -- refusals ---------------------------------------------------------------------------------------------------------
def test_neighbours_get_the_same_refusals() -> None:
    """The same adaptive-looking list of questions on neighbouring, empty and hostile data: same outcome each time."""
    worlds: list[dict[str, Any]] = [
        DATA,
        {"age": DATA["age"][:-1], "town": DATA["town"][:-1]},
        {"age": np.append(DATA["age"], np.nan), "town": [*DATA["town"], None]},
        {"age": np.zeros(0), "town": []},
    ]
    outcomes = []
    for data in worlds:
        session = PrivateSession(data, PureBudget(1.0))
        found = []
        for number, query in enumerate([*QUERIES, MEDIAN] * 2):
            try:
                session.ask(query, epsilon=0.07 * (1 + number % 4))
                found.append("answer")
            except DpmlError as error:
                found.append(str(error))
        outcomes.append((found, session.spent))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert {"answer"} < set(outcomes[0][0]), "some are refused"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"rho": 0.0}, "rho"),
        ({"rho": math.nan}, "rho"),
        ({}, "exactly one of epsilon and rho"),
        ({"epsilon": 1.0, "rho": 1.0}, "exactly one of epsilon and rho"),
        ({"epsilon": 1.0, "mechanism": "uniform"}, "mechanism"),
        ({"epsilon": 1.0, "mechanism": "gaussian"}, "delta is missing"),
        ({"epsilon": 1.0, "mechanism": "gaussian", "delta": 0.0}, "delta"),
        ({"epsilon": 1.0, "mechanism": "discrete_gaussian"}, "Give rho"),
        ({"epsilon": 1.0, "delta": 1e-6}, "delta"),
        ({"rho": 1.0, "delta": 1e-6}, "delta"),
        ({"epsilon": 1.0, "mechanism": "exponential"}, "Quantile only"),
    ],
)
def test_a_bad_argument_costs_nothing(
    arguments: dict[str, Any], match: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = PrivateSession(DATA, ZCDPBudget(1.0), folder=tmp_path)
    touched = Touches(monkeypatch)
    with pytest.raises(ConfigError, match=match):
        session.ask(Sum("age", (0, 1)), **arguments)
    assert touched.charges == []
    assert session.spent == {"rho": 0.0}


@pytest.mark.parametrize(
    ("query", "match"),
    [
        (Sum("height", (0, 1)), "column = 'height'"),
        (Count(Where("height", ">", 1)), "column = 'height'"),
        (Vector([Count(), Mean("height", (0, 1))]), "column = 'height'"),  # type: ignore[arg-type]
        (Count(lambda record: record["height"] > 1), "KeyError"),
        (Count(~(Where("age", ">", 1) & (lambda record: undefined))), "NameError"),  # type: ignore[operator]  # noqa: F821
        (Custom(lambda columns: columns["height"].sum(), 1.0), "KeyError"),
        (Custom(lambda columns: [1, 2, 3], 1.0), "gives 3 numbers"),
        (Custom(lambda columns: 0.0, 1.0, norm=lambda a, b: 1.0), "metric of its own"),
        (Custom(lambda columns: 0.0, 1.0, neighboring_relation=REPLACE), "replace_one"),
        ("Count", "query"),
        (None, "query"),
        (Count, "query"),
    ],
)
def test_a_bad_query_costs_nothing(query: Any, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = PrivateSession(DATA, PureBudget(1.0))
    touched = Touches(monkeypatch)
    with pytest.raises(ConfigError, match=match):
        session.ask(query, epsilon=0.5)
    assert touched.charges == []
    assert session.spent == {"epsilon": 0.0}
    assert session.transcript == ()


def test_more_refusals() -> None:
    session = PrivateSession(DATA, PureBudget(1.0), neighboring_relation=REPLACE)
    for query in (Count(), Vector([Count(), Sum("age", (0, 1))])):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="sensitivity 0 under replace_one"):
            session.ask(query, epsilon=0.5)
    with pytest.raises(UnsupportedEventError, match="pure filter"):
        session.ask(Sum("age", (0, 1)), rho=0.1)
    with pytest.raises(ConfigError, match="'exponential' for a Quantile"):
        session.ask(Quantile("age", 0.5, (0, 1)), epsilon=0.5, mechanism="laplace")
    assert session.spent == {"epsilon": 0.0}
    with pytest.raises(ConfigError, match="budget"):
        PrivateSession(DATA, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="neighboring_relation"):
        PrivateSession(DATA, PureBudget(1.0), neighboring_relation="both")
    with pytest.raises(ConfigError, match="folder"):
        PrivateSession(DATA, PureBudget(1.0), folder=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="noise"):
        PrivateSession(DATA, PureBudget(1.0), noise_source=3)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="length"):
        PrivateSession({"x": [1], "y": []}, PureBudget(1.0))
    for make in (PureBudget, ZCDPBudget, lambda value: ApproxBudget(value, 1e-6)):
        for bad in (0, -1, math.inf, math.nan, "1", None):
            with pytest.raises(ConfigError, match=r"epsilon|rho"):
                make(bad)  # type: ignore[operator]
    with pytest.raises(ConfigError, match="delta"):
        ApproxBudget(1.0, 0.0)


# -- the ledger -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: type(budget).__name__)
def test_transcript_and_restart(budget: Any, tmp_path: Path) -> None:
    session = PrivateSession(DATA, budget, folder=tmp_path / "new" / "session")
    count = session.ask(Count(checks.ADULTS), epsilon=0.1)
    towns = session.ask(Histogram("town", categories=["a", "b"]), epsilon=0.1)
    first, second = session.transcript
    assert first.query == {"query": "Count", "where": "age >= 18"}
    assert (first.value, first.answered, first.mechanism) == (count.value, True, "laplace")
    assert second.value == towns.value.tolist()
    assert first.event == count.event
    again = PrivateSession(DATA, budget, folder=str(tmp_path / "new" / "session"))
    assert again.transcript == session.transcript
    assert again.spent == session.spent
    again.ask(Count(), epsilon=0.1)
    assert session.spent == again.spent, "each sees what the other spent"


def test_another_budget_is_refused(tmp_path: Path) -> None:
    PrivateSession(DATA, PureBudget(1.0), folder=tmp_path).ask(Count(), epsilon=1.0)
    for budget in (PureBudget(2.0), ZCDPBudget(1.0), ApproxBudget(1.0, 1e-6)):
        with pytest.raises(ConfigError, match="keeps to its budget"):
            PrivateSession(DATA, budget, folder=tmp_path)
    with pytest.raises(ConfigError, match="keeps to its budget"):
        PrivateSession(DATA, PureBudget(1.0), neighboring_relation=REPLACE, folder=tmp_path)


def tampered(text: str) -> dict[str, str]:
    lines = text.splitlines(keepends=True)
    return {
        "a charge lowered": text.replace('"epsilon":0.25', '"epsilon":0.01'),
        "a line removed": "".join([lines[0], *lines[2:]]),
        "lines swapped": "".join([lines[0], lines[2], lines[1], *lines[3:]]),
        "not JSON": text + "{}\n",
        "budget raised": text.replace('"epsilon":1.0', '"epsilon":9.0'),
    }


@pytest.mark.parametrize("fault", ["a charge lowered", "a line removed", "lines swapped", "not JSON", "budget raised"])
def test_a_changed_file_is_refused(fault: str, tmp_path: Path) -> None:
    session = PrivateSession(DATA, PureBudget(1.0), folder=tmp_path)
    session.ask(Count(), epsilon=0.25)
    session.ask(Count(), epsilon=0.25)
    file = tmp_path / FILE
    changed = tampered(file.read_text("utf-8"))[fault]
    assert changed != file.read_text("utf-8")
    file.write_text(changed, "utf-8")
    with pytest.raises(LedgerError, match=r"session\.jsonl"):
        PrivateSession(DATA, PureBudget(1.0), folder=tmp_path)


def test_a_live_session_notices_that_its_file_went_or_changed(tmp_path: Path) -> None:
    session = PrivateSession(DATA, PureBudget(1.0), folder=tmp_path)
    session.ask(Count(), epsilon=0.25)
    file = tmp_path / FILE
    text = file.read_bytes()
    file.write_bytes(text[: text.index(b"\n") + 1])
    with pytest.raises(LedgerError, match="shortened"):
        session.ask(Count(), epsilon=0.25)
    file.write_bytes(text.replace(b'"charge":1', b'"charge":2'))
    with pytest.raises(LedgerError, match="rewritten"):
        session.ask(Count(), epsilon=0.25)
    file.write_bytes(text)
    (tmp_path / "copy").write_bytes(text)
    os.replace(tmp_path / "copy", file)
    with pytest.raises(LedgerError, match="replaced"):
        session.ask(Count(), epsilon=0.25)
    file.unlink()
    with pytest.raises(LedgerError, match="cannot open"):
        session.ask(Count(), epsilon=0.25)


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    session = PrivateSession(DATA, PureBudget(1.0), folder=tmp_path)
    session.ask(Count(), epsilon=0.25)
    whole = (tmp_path / FILE).read_bytes()
    for torn in (b"{", b'{"index":3,"kind":"charge"', whole.splitlines()[1]):
        (tmp_path / FILE).write_bytes(whole + torn)
        assert PrivateSession(DATA, PureBudget(1.0), folder=tmp_path).spent == {"epsilon": 0.25}
        assert (tmp_path / FILE).read_bytes() == whole
    (tmp_path / FILE).write_bytes(whole[:30])  # torn while the session began: there is no mark then
    (tmp_path / MARK).unlink()
    assert PrivateSession(DATA, PureBudget(1.0), folder=tmp_path).spent == {"epsilon": 0.0}


def test_a_full_disk_refuses_before_the_data_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = PrivateSession(DATA, PureBudget(1.0), folder=tmp_path)
    touched = Touches(monkeypatch)

    def full(handle: int, data: bytes) -> None:
        os.write(handle, data[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as inner:
        inner.setattr("dpml.mechanisms.session_ledger.write_all", full)
        with pytest.raises(LedgerError, match="No space left on device"):
            session.ask(Count(), epsilon=0.25)
    with pytest.raises(LedgerError, match="could not be written before"):
        session.ask(Count(), epsilon=0.25)
    assert touched.charges == []
    assert PrivateSession(DATA, PureBudget(1.0), folder=tmp_path).spent == {"epsilon": 0.0}


def test_long_answers_are_not_kept_whole() -> None:
    session = PrivateSession({"x": [1.0]}, PureBudget(1.0))
    edges = np.arange(10_002.0)
    assert session.ask(Histogram("x", edges=edges), epsilon=1.0).value.size == 10_001
    assert session.transcript[0].value == {"left out": 10_001}


def test_no_cell_is_shown(tmp_path: Path) -> None:
    session = PrivateSession({"x": [31337.25]}, PureBudget(1.0), folder=tmp_path, noise_source=FixedNoise(3))
    answer = session.ask(Sum("x", (0, 1e6)), epsilon=0.1)
    shown = [repr(session), repr(answer), repr(answer.mechanism), repr(session.transcript), str(session.guarantee())]
    assert not any("31337" in text for text in [*shown, (tmp_path / FILE).read_text("utf-8")])
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            act(session)
    json.loads((tmp_path / FILE).read_text("utf-8").splitlines()[0])


def test_the_public_name() -> None:
    assert dpml.PrivateSession is PrivateSession
