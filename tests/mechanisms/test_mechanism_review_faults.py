"""What reviewers broke in the mechanisms and sessions: each is kept with the right value."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpml.errors import ConfigError, DataError, DpmlError, LedgerError
from dpml.mechanisms import (
    Count,
    Custom,
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    FixedNoise,
    Histogram,
    LaplaceMechanism,
    MetricMechanism,
    PrivateSession,
    PureBudget,
    RandomizedResponseMechanism,
    Sum,
    ThresholdedHistogram,
    Where,
)
from dpml.mechanisms.histogram import bounded_counts
from dpml.mechanisms.session_ledger import FILE, MARK

DATA = {"a": [1, 2, 3], "b": ["x", "y", "x"]}


def typed(counts):
    return {(type(key), key): count for key, count in counts.items()}


@pytest.mark.parametrize("first", [[1.0], [True], [np.int64(1)], [np.float32(1.0)], 1, 1.0])
def test_equal_keys_are_told_in_one_form_whoever_comes_first(first):
    """The type of a key that is told must not be that of one record."""
    assert typed(bounded_counts([first, *[[1]] * 5], 2)) == {(int, 1): 6}
    assert typed(bounded_counts([[-0.0], [0], [0.0]], 2)) == {(int, 0): 3}
    assert typed(bounded_counts([[(1.0, "a")], [(True, "a")]], 2)) == {(tuple, (1, "a")): 2}
    told = ThresholdedHistogram(delta=1e-6, epsilon=5.0).release({2.0: 500, True: 0, "x": 400}, FixedNoise(0)).value
    assert {type(key) for key in told} == {int, str}


def test_what_is_no_key_is_left_out_and_raises_nothing():
    odd = [[pd.NA, "x"], [None], [float("nan")], [(1, [2])], [[1]], [object()], pd.NaT, 5, "ab"]
    assert bounded_counts(odd, 3) == {"x": 1, 5: 1, "ab": 1}


@pytest.mark.parametrize("kind", ["boolean", "bool[pyarrow]", "category"])
def test_a_missing_cell_does_not_change_how_a_column_of_truth_values_is_read(kind):
    def column(cells):
        return pd.Series(cells).astype("bool").astype(kind) if None not in cells else pd.Series(cells, dtype=kind)

    whole, gap = column([True, False] * 10), column([True, False] * 10 + [None])
    query = Custom(lambda data: float(sum(cell is True or cell == 1.0 for cell in data["a"])), sensitivity=1.0)
    answers = []
    for cells in (whole, gap):
        session = PrivateSession({"a": cells}, PureBudget(1e6), noise_source=FixedNoise(1))
        answers.append(session.ask(query, epsilon=1e5).value)
    assert abs(answers[0] - answers[1]) <= 1.01
    assert answers[0] == pytest.approx(10, abs=0.01)


def used(folder: Path) -> bytes:
    session = PrivateSession(DATA, PureBudget(1.0), folder=folder)
    for _ in range(3):
        session.ask(Count(), epsilon=0.25)
    return (folder / FILE).read_bytes()


@pytest.mark.parametrize("kept", [0, 1, 2, 4, 6])
def test_a_ledger_whose_end_was_cut_off_is_refused(tmp_path, kept):
    lines = used(tmp_path).splitlines(keepends=True)
    (tmp_path / FILE).write_bytes(b"".join(lines[:kept]))
    with pytest.raises(LedgerError, match="lines were removed"):
        PrivateSession(DATA, PureBudget(1.0), folder=tmp_path)


def test_a_ledger_without_its_mark_or_with_an_older_one(tmp_path):
    """A process that is killed between a line and its mark leaves the mark one line behind: that is in order."""
    used(tmp_path)
    mark = (tmp_path / MARK).read_bytes()
    session = PrivateSession(DATA, PureBudget(1.0), folder=tmp_path)
    session.ask(Count(), epsilon=0.125)
    (tmp_path / MARK).write_bytes(mark)
    assert PrivateSession(DATA, PureBudget(1.0), folder=tmp_path).spent == {"epsilon": 0.875}
    (tmp_path / MARK).write_bytes(b"nonsense")
    with pytest.raises(LedgerError, match="do not fit"):
        PrivateSession(DATA, PureBudget(1.0), folder=tmp_path)
    (tmp_path / MARK).unlink()
    with pytest.raises(LedgerError, match="is missing"):
        PrivateSession(DATA, PureBudget(1.0), folder=tmp_path)


def test_odd_folders_are_refused(tmp_path):
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(LedgerError, match="no plain file"):
        PrivateSession(DATA, PureBudget(1.0), folder=tmp_path)
    with pytest.raises(ConfigError, match="folder"):
        PrivateSession(DATA, PureBudget(1.0), folder="a\0b")


def test_odd_questions_are_refused_and_cost_nothing():
    session = PrivateSession(DATA, PureBudget(1.0))
    for make in (
        lambda: session.ask(Histogram([], ["x"]), epsilon=0.1),
        lambda: session.ask(Sum(["a"], (0, 1)), epsilon=0.1),
        lambda: session.ask(Count(), epsilon=0.1, mechanism=[]),
        lambda: session.ask(Count(), epsilon=1e-320),
        lambda: nested(300),
    ):
        with pytest.raises(DpmlError):
            make()
    assert session.spent == {"epsilon": 0.0}
    assert session.ask(Count(nested(150)), epsilon=0.5).value is not None


def nested(depth):
    where = Where("a", "==", 1)
    for _ in range(depth):
        where = ~where
    return where


def test_tiny_budgets_and_chances_are_refused_by_name():
    for make, name in (
        (lambda: LaplaceMechanism(1.0, 1e-320), "epsilon"),
        (lambda: MetricMechanism(1.0, 1e-320, norm="l2"), "epsilon"),
        (lambda: DiscreteGaussianMechanism(1e-170, rho=0.5), "sensitivity"),
        (lambda: RandomizedResponseMechanism(epsilon=1e-20), "epsilon"),
        (lambda: RandomizedResponseMechanism(gamma=1e-20), "gamma"),
        (lambda: DiscreteLaplaceMechanism(1, 1.0).error(5e-324), "beta"),
    ):
        with pytest.raises(ConfigError, match=name):
            make()


def test_reports_that_are_no_categories_have_no_estimate():
    mechanism = RandomizedResponseMechanism(epsilon=1.0, records=2)
    for reports in (["zz", 0], [None, 0], [float("nan"), 0]):
        with pytest.raises(DataError, match="no category"):
            mechanism.estimate(reports)


@pytest.mark.parametrize(
    "query",
    [
        Sum("age", (0, 100)),
        Count(Where("age", ">=", 18)),
        Count(Where("age", "==", 50)),
        Count(Where("age", "==", "50")),
        Count(Where("age", "in", ["50", 7])),
        Count(Where("age", "!=", 7)),
        Histogram("age", [50, 60]),
        Histogram("age", ["50", "60"]),
        Histogram("age", edges=[0, 49, 100]),
    ],
    ids=repr,
)
def test_one_cell_that_is_no_number_does_not_change_how_a_csv_column_is_read(query):
    """pandas keeps the whole column as text then."""
    text = "age\n" + "50\n" * 40
    without, with_it = (pd.read_csv(io.StringIO(more)) for more in (text, text + "unknown\n"))
    assert without["age"].dtype.kind == "i"
    assert with_it["age"].dtype.kind not in "if"
    first, second = (np.asarray(query.exact(frame), dtype=float) for frame in (without, with_it))
    assert np.abs(first - second).sum() <= query.sensitivity("add_remove", "l1")
    assert first.max() >= 39


def test_a_session_killed_before_its_first_mark_is_marked_when_it_is_opened(tmp_path):
    PrivateSession(DATA, PureBudget(1.0), folder=tmp_path)
    mark = (tmp_path / MARK).read_bytes()
    (tmp_path / MARK).unlink()
    PrivateSession(DATA, PureBudget(1.0), folder=tmp_path)
    assert (tmp_path / MARK).read_bytes() == mark
