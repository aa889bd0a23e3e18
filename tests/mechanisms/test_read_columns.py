"""One record may change how a CSV reader keeps a whole column; it must not change what the other records are."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pandas as pd
import pytest
import session_checks as checks

from dpml.errors import ConfigError
from dpml.mechanisms import Count, Histogram, Where
from dpml.mechanisms.columns import Places, as_columns, spelled_number


@pytest.mark.parametrize("column", checks.READ)
def test_a_record_moves_an_answer_by_its_sensitivity_however_its_column_is_read(column: str) -> None:
    checks.check_no_record_changes_how_others_are_read(column)


def test_the_reader_does_keep_another_kind_of_column() -> None:
    """What the check above is for: pandas' kinds with and without the odd record."""
    for cells, kind in ((checks.READ["truth"], "b"), (checks.READ["whole"], "i"), (checks.READ["numbers"], "f")):
        assert checks.read(cells)["x"].dtype.kind == kind
        assert checks.read([*cells, "odd"])["x"].dtype.kind not in "bif"


@pytest.mark.parametrize(
    ("cell", "number"),
    [("1", 1.0), ("01", 1.0), (" 1e3 ", 1000.0), ("true", 1.0), (" TRUE ", 1.0), ("False", 0.0), (True, 1.0),
     ("inf", np.inf), (2**53 + 1, 2.0**53), (str(2**53 + 1), 2.0**53), (np.bool_(False), 0.0)],
)  # fmt: skip
def test_what_spells_a_number(cell: Any, number: float) -> None:
    assert spelled_number(cell) == number


@pytest.mark.parametrize(
    "cell",
    ["", "x", "1_000", "0x10", "tRUE", "nan", None, b"1", 1j, np.complex128(1), 10**400, np.array([1.0]), [1],
     np.datetime64("2020-01-01"), pd.Timestamp("2020-01-01"), pd.NA, object()],
)  # fmt: skip
def test_what_spells_none(cell: Any) -> None:
    assert np.isnan(spelled_number(cell))
    assert Places([0, 1, "1", "y"]).of(cell) == -1


def test_places_do_not_depend_on_the_spelling() -> None:
    for listed in (["1", "0", "a"], [1, 0, "a"], ["01", "0.0", "a"], [True, "false", "a"], ["TRUE", 0.0, "a"]):
        places = Places(listed)
        assert [places.of(cell) for cell in (1, 1.0, True, "1", "01", "true", "1e0", np.float64(1))] == [0] * 8
        assert [places.of(cell) for cell in (0, -0.0, False, "0", "FALSE", "-0")] == [1] * 6
        assert [places.of(cell) for cell in ("a", "b", 2, None, [1], 1j)] == [2] + [-1] * 5


def test_two_listed_values_that_spell_one_number_are_refused() -> None:
    for categories in (
        ["1", 1],
        ["01", "1"],
        ["1.0", "1"],
        ["true", 1],
        ["True", "true"],
        [0, "-0"],
        [2**53, 2**53 + 1],
    ):
        with pytest.raises(ConfigError, match="spell different numbers"):
            Histogram("x", categories=categories)
    assert Histogram("x", categories=["a1", "a01", "nan", 1, "2"]).size == 5


def test_a_condition_reads_both_sides_alike() -> None:
    for frame in ({"x": [1.0, 0.0, 1.0]}, {"x": ["1", "0", "01"]}, {"x": [True, False, "true"]}):
        for value in (1, "1", "1.0", True, "true"):
            assert Count(Where("x", "==", value)).exact(frame) == 2
            assert Count(Where("x", "!=", value)).exact(frame) == 1
            assert Count(Where("x", "in", [value, "z"])).exact(frame) == 2
        assert Count(lambda record: record["x"] == 1).exact(frame) == 2
    assert [row["x"] for row in as_columns({"x": ["7", "seven", None, "true"]}).rows()] == [7.0, "seven", None, 1.0]


def test_texts_that_are_no_numbers_are_compared_as_they_are() -> None:
    data = io.StringIO("x\na\nA\n a\nb\n")
    frame = pd.read_csv(data)
    assert Count(Where("x", "==", "a")).exact(frame) == 1
    assert Histogram("x", categories=["b", "a"]).exact(frame).tolist() == [1.0, 1.0]
