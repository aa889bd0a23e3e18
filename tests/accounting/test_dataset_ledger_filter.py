"""The data set ledger's filters: more runs under one cap, one choice per file, many processes, never overspent."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dpml
from dpml import accounting as acc
from dpml.accounting import api
from dpml.accounting.dataset_ledger import CAP_FILTERS, STATEMENT_SHARE
from dpml.accounting.filters import best_order, order_budget, rho_budget
from dpml.accounting.ledger import canonical, seal
from dpml.errors import BudgetExceededError, ConfigError, LedgerError

CAP = (2.0, 1e-5)
RUN = acc.Gaussian(16.0)  # ρ = 1/512
PROMISE = (0.15, 1e-6)
DPSGD = acc.SelfComposed(acc.PoissonSampled(0.01, acc.Gaussian(3.0)), 100)


def book_of(path, kind, **more):
    return acc.DatasetLedger(path, *CAP, filter=kind, **more)


def fill(book, event, promise=PROMISE, most=2000):
    """Reserve the same run until the first refusal; returns how many fitted."""
    for number in range(most):
        try:
            book.reserve(f"run {number}", *promise, event)
        except BudgetExceededError:
            return number
    return most


def test_more_runs_fit_under_the_same_cap_and_as_many_as_the_hand_formula_says(tmp_path):
    """Basic: 10 × δ = 1e-6.  zCDP: ⌊ρ-budget at half the δ ÷ (1/512)⌋.  Rényi: the same at one order of the list."""
    left = CAP[1] * (1 - STATEMENT_SHARE)
    order = best_order(CAP[0], left)
    expected = {
        "basic": 10,
        "zcdp": math.floor(rho_budget(CAP[0], left) * 512),
        "renyi": math.floor(order_budget(order, CAP[0], left) * 512 / order),
    }
    for kind, number in expected.items():
        book = book_of(tmp_path / kind, kind)
        assert fill(book, RUN) == number
        assert len(book.runs()) == number
        said = book.guarantee()
        assert (said.epsilon, said.delta, said.accountant) == (*CAP, f"{kind}_filter")
    assert expected["zcdp"] >= expected["renyi"] > 40


def test_a_basic_file_is_as_it_always_was(tmp_path):
    """A file of an earlier version goes on, and new lines have the same keys."""
    path = tmp_path / "people.ledger"
    line = {"index": 0, "kind": "run", "previous": "0" * 64, "run": "old", "epsilon": 0.5, "delta": 1e-6}
    line["event"] = {"neighboring_relation": "add_remove", "released": RUN.to_json()}
    path.write_bytes(canonical(seal(line)) + b"\n")
    book = acc.DatasetLedger(path, *CAP)
    assert book.filter == "basic"
    book.reserve("new", 0.5, 1e-6, RUN)
    old, new = (json.loads(text) for text in path.read_text().splitlines())
    assert set(old) == set(new)
    assert book.total() == (1.0, 2e-6)
    assert book.remaining() == {"epsilon": 1.0, "delta": pytest.approx(8e-6)}
    acc.DatasetLedger(path, 5.0, 1e-4).reserve("under a raised cap", 3.0, 0.0, None)


@pytest.mark.parametrize("made", CAP_FILTERS)
@pytest.mark.parametrize("asked", CAP_FILTERS)
def test_the_choice_is_made_with_the_file(tmp_path, made, asked):
    path = tmp_path / "people.ledger"
    book_of(path, made).reserve("a", *PROMISE, RUN)
    before = path.read_bytes()
    other = book_of(path, asked)
    if made == asked:
        other.reserve("b", *PROMISE, RUN)
        return
    for use in (lambda: other.reserve("b", *PROMISE, RUN), lambda: other.check("b", *PROMISE), other.total, other.runs):
        with pytest.raises(ConfigError, match=rf"by the filter '{made}'.*cannot be mixed"):
            use()
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", ["zcdp", "renyi"])
def test_a_filters_budget_stays_the_one_of_the_file(tmp_path, kind):
    path = tmp_path / "people.ledger"
    book_of(path, kind).reserve("a", *PROMISE, RUN)
    for cap in ((2.1, 1e-5), (2.0, 2e-5), (1.0, 1e-5)):
        with pytest.raises(ConfigError, match="budget is fixed before the first run"):
            acc.DatasetLedger(path, *cap, filter=kind).reserve("b", *PROMISE, RUN)


def test_orders_are_kept_in_the_file(tmp_path):
    path = tmp_path / "people.ledger"
    book_of(path, "renyi", orders=(6, 24)).reserve("a", *PROMISE, RUN)
    book_of(path, "renyi").reserve("b", *PROMISE, RUN)
    assert {"rdp at order 6.0", "rdp at order 24.0", "delta"} == set(book_of(path, "renyi").remaining())
    with pytest.raises(ConfigError, match="fixed before the first run"):
        book_of(path, "renyi", orders=(6, 25)).reserve("c", *PROMISE, RUN)
    for kind in ("basic", "zcdp"):
        with pytest.raises(ConfigError, match="orders"):
            book_of(path, kind, orders=(8,))


def test_bad_choices_are_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="filter = 'advanced'"):
        book_of(tmp_path / "x", "advanced")
    with pytest.raises(ConfigError, match="delta"):
        acc.DatasetLedger(tmp_path / "x", 1.0, 0.0, filter="zcdp")
    with pytest.raises(ConfigError, match="no Rényi budget"):
        acc.DatasetLedger(tmp_path / "x", 0.1, 1e-9, filter="renyi", orders=(2,))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", ["zcdp", "renyi"])
def test_a_refusal_writes_nothing_and_says_what_is_left(tmp_path, kind):
    book = book_of(tmp_path / "people.ledger", kind)
    book.reserve("a", *PROMISE, RUN)
    before, left = book.path.read_bytes(), book.remaining()
    big = (5.0, 1e-6, acc.Gaussian(0.5))
    for use in (book.check, book.reserve):
        with pytest.raises(BudgetExceededError, match=r"run 'big' does not fit .* left.*Nothing was used"):
            use("big", *big)
    assert (book.path.read_bytes(), book.remaining()) == (before, left)
    book.check("b", *PROMISE, RUN)
    assert (book.path.read_bytes(), book.remaining()) == (before, left)


def test_a_run_is_charged_by_its_event_or_by_its_promise(tmp_path):
    """Poisson sampling has no ρ to speak of, so zcdp takes the promise; renyi takes the event."""
    promise = (acc.epsilon(DPSGD, 1e-6), 1e-6)
    charged = {}
    for kind in ("zcdp", "renyi"):
        book = book_of(tmp_path / kind, kind)
        before = book.remaining()
        for event in (RUN, DPSGD, None, acc.ObjectivePerturbation(5.0, 10.0, 1.0)):
            book.reserve("run", *promise, event)
        lines = [json.loads(text) for text in book.path.read_text().splitlines()]
        charged[kind] = [line["charged_as"] for line in lines]
        statements = charged[kind].count("statement")
        assert before["delta"] - book.remaining()["delta"] == pytest.approx(statements * 1e-6, rel=1e-9)
    assert charged["zcdp"][:3] == ["event", "statement", "statement"]
    assert charged["renyi"][:3] == ["event", "event", "statement"]


@pytest.mark.parametrize("kind", ["zcdp", "renyi"])
def test_promises_share_the_delta_set_aside(tmp_path, kind):
    """Half of 1e-5 holds five promises of 1e-6; events still fit afterwards."""
    book = book_of(tmp_path / "people.ledger", kind)
    assert fill(book, None, (0.05, 1e-6)) == 5
    with pytest.raises(BudgetExceededError, match=r"charged by its promise \(epsilon = "):
        book.reserve("one more", 0.05, 1e-6, None)
    book.reserve("with an event", *PROMISE, RUN)
    book.reserve("pure", 0.05, 0.0, None)


@pytest.mark.parametrize("kind", ["zcdp", "renyi"])
def test_a_new_process_finds_what_was_spent(tmp_path, kind):
    """The same 20 runs through one object and through a new one each."""
    one, many = tmp_path / "one", tmp_path / "many"
    whole = book_of(one, kind)
    for number in range(20):
        whole.reserve(f"run {number}", *PROMISE, RUN)
        book_of(many, kind).reserve(f"run {number}", *PROMISE, RUN)
    assert one.read_bytes() == many.read_bytes()
    many.write_bytes(many.read_bytes() + b'{"torn')
    assert book_of(many, kind).remaining() == whole.remaining()
    assert one.read_bytes() == many.read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        {"charged_as": "nothing"},
        {"charged_as": "event", "event": {"neighboring_relation": "add_remove", "released": None}},
        {"filter": {"type": "zcdp"}},
        {"filter": {"type": "zcdp", "admitted": 0, "spent": [0.0, 0.0]}},
        {"filter": {"type": ["zcdp"]}},
        {"filter": None},
        {"filter": 1.0},
        {"more": 1},
    ],
)
def test_a_changed_line_does_not_hold(tmp_path, change):
    """Even with its hash made anew."""
    book = book_of(tmp_path / "people.ledger", "zcdp")
    book.reserve("a", *PROMISE, RUN)
    line = json.loads(book.path.read_text())
    book.path.write_bytes(canonical(seal({**line, **change})) + b"\n")
    with pytest.raises((LedgerError, ConfigError), match=r"line 1|filter"):
        book.total()
    book.path.write_bytes(canonical({**line, **change}) + b"\n")
    with pytest.raises(LedgerError, match="line 1"):
        book.total()


def test_a_line_with_another_filter_in_the_middle_does_not_hold(tmp_path):
    book = book_of(tmp_path / "people.ledger", "renyi", orders=(16,))
    book.reserve("a", *PROMISE, RUN)
    first = json.loads(book.path.read_text())
    other = {**first, "index": 1, "previous": first["hash"], "filter": {**first["filter"], "orders": [17.0]}}
    book.path.write_bytes(canonical(first) + b"\n" + canonical(seal(other)) + b"\n")
    with pytest.raises(ConfigError, match="fixed before the first run"):
        book_of(book.path, "renyi").total()


def test_an_event_that_cannot_be_counted_any_more_is_named(tmp_path):
    book = book_of(tmp_path / "people.ledger", "zcdp")
    book.reserve("a", *PROMISE, RUN)
    line = json.loads(book.path.read_text())
    event = acc.ObjectivePerturbation(5.0, 10.0, 1.0).to_json()
    line["event"] = {"neighboring_relation": "add_remove", "released": event}
    book.path.write_bytes(canonical(seal(line)) + b"\n")
    with pytest.raises(LedgerError, match="line 1 cannot be counted"):
        book.reserve("b", *PROMISE, RUN)


def test_display_values_of_a_filter_ledger(tmp_path):
    book = book_of(tmp_path / "people.ledger", "zcdp")
    assert book.total() == (0.0, 0.0)
    for number in range(30):
        book.reserve(f"run {number}", *PROMISE, RUN)
    assert book.total() == (pytest.approx(30 * PROMISE[0]), pytest.approx(3e-5))
    epsilon, delta = book.composed()
    assert delta == CAP[1]
    assert epsilon == pytest.approx(acc.gaussian_epsilon(1e-5, math.sqrt(30) / 16), rel=1e-9)
    book.reserve("without event", 0.1, 1e-6, None)
    assert book.composed() == CAP


def test_replace_one_counts_double_the_contribution(tmp_path):
    book = book_of(tmp_path / "people.ledger", "zcdp", neighboring_relation="replace_one")
    before = book.remaining()["rho"]
    book.reserve("a", 1.0, 1e-6, RUN)
    assert before - book.remaining()["rho"] == pytest.approx(4 / 512, rel=1e-9)
    with pytest.raises(ConfigError, match="one neighbouring relation"):
        book_of(book.path, "zcdp").total()


def test_a_planted_bug_that_halves_rho_is_caught(tmp_path, monkeypatch):
    """The count by hand formula of the first test fails when prices are halved."""
    right = api.rho
    monkeypatch.setattr(api, "rho", lambda event, **kw: right(event, **kw) / 2)
    with pytest.raises(AssertionError):
        test_more_runs_fit_under_the_same_cap_and_as_many_as_the_hand_formula_says(tmp_path)


WORKER = """
import sys
from dpml import accounting as acc
from dpml.errors import BudgetExceededError
folder, name = sys.argv[1:]
for kind in ("basic", "zcdp", "renyi"):
    book = acc.DatasetLedger(folder + "/" + kind, 2.0, 1e-5, filter=kind)
    fitted = 0
    for number in range(12):
        try:
            book.reserve(f"{name}-{number}", 0.2, 0.0 if kind == "basic" else 1e-9, acc.Gaussian(12.0))
            fitted += 1
        except BudgetExceededError:
            pass
    print(fitted)
"""


def test_processes_together_never_pass_the_cap(tmp_path):
    """Four processes of twelve runs each on one file: what fits is what fits one after the other, for every filter."""
    environment = {**os.environ, "PYTHONPATH": str(Path(dpml.__file__).parents[1])}
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    workers = [
        subprocess.Popen([*command, f"p{k}"], stdout=subprocess.PIPE, text=True, env=environment) for k in range(4)
    ]
    printed = [worker.communicate(timeout=120)[0].split() for worker in workers]
    assert all(worker.returncode == 0 for worker in workers)
    left = CAP[1] * (1 - STATEMENT_SHARE)
    order = best_order(CAP[0], left)
    expected = {
        "basic": 10,
        "zcdp": math.floor(rho_budget(CAP[0], left) * 288),
        "renyi": math.floor(order_budget(order, CAP[0], left) * 288 / order),
    }
    assert max(expected.values()) < 48  # so that every file is filled
    for column, (kind, number) in enumerate(expected.items()):
        assert sum(int(row[column]) for row in printed) == number
        book = book_of(tmp_path / kind, kind)
        assert len(book.runs()) == number
        assert len({run["run"] for run in book.runs()}) == number
