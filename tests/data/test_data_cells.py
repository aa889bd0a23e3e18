"""Cell by cell: no record changes how another is read, and nothing that a record holds is an error."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import cell_checks as checks
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from dpml import PrivateData, PrivateSearch, PrivateTrainer
from dpml.data.cells import cell_number, is_missing, labels_of, numbers_of, objects_of
from dpml.errors import ConfigError, DataError, SchemaError
from dpml.mechanisms import FixedNoise


@pytest.mark.parametrize("case", checks.LABELS)
def test_a_label_changes_no_other(case: str) -> None:
    checks.check_a_label_changes_no_other(case)


@pytest.mark.parametrize("form", checks.FORMS)
@pytest.mark.parametrize("name", checks.STRANGE)
def test_a_cell_changes_no_other_row(form: str, name: str) -> None:
    checks.check_a_cell_changes_no_other_row(form, name)


@pytest.mark.parametrize("name", checks.STRANGE)
def test_a_target_changes_no_other(name: str) -> None:
    checks.check_a_target_changes_no_other(name)


@pytest.mark.parametrize("case", checks.ROWS)
@pytest.mark.parametrize("name", checks.STRANGE)
def test_a_row_changes_no_other_in_the_encoder(case: str, name: str) -> None:
    checks.check_a_row_changes_no_other_in_the_encoder(case, checks.STRANGE[name])


def test_an_empty_cell_of_a_file_changes_no_other(tmp_path: Path) -> None:
    checks.check_an_empty_cell_of_a_file_changes_no_other(tmp_path)


@pytest.mark.parametrize(("cell", "value"), checks.NUMBERS, ids=[repr(cell) for cell, _ in checks.NUMBERS])
def test_a_cell_that_is_a_number(cell: Any, value: float) -> None:
    assert cell_number(cell) == value
    assert numbers_of(labels_of([cell, "x"]))[0] == value  # beside another type too


@pytest.mark.parametrize("name", checks.STRANGE)
def test_a_cell_that_is_none(name: str) -> None:
    value = cell_number(checks.STRANGE[name])
    assert math.isnan(value) or name == "inf"
    assert is_missing(checks.STRANGE[name]) == (name in ("none", "nan", "pandas NA", "NaT"))


def test_the_fast_way_is_the_slow_one() -> None:
    cells = labels_of([1, 2.5, True, None, -(10**300), 2**53 + 1])
    fast, slow = numbers_of(cells), numbers_of(labels_of([*cells, "x"]))[:-1]
    np.testing.assert_array_equal(fast, slow)
    np.testing.assert_array_equal(fast, [1, 2.5, 1, np.nan, -1e300, 2.0**53])


def test_a_list_keeps_its_items_and_its_shape() -> None:
    assert labels_of([[0], np.array([1]), (2,), "x", [1, 2]]).tolist() == [0, 1, 2, "x", [1, 2]]
    assert objects_of([[1, "a"], [None, [2, 3]]]).shape == (2, 2)
    assert objects_of([[[1, 2]], [[3, "x"]]]).shape == (2, 1, 2)
    assert objects_of([np.zeros(2), (1, "x"), pd.Series([1, 2]), [[1], [2]]]).tolist() == [
        [0.0, 0.0], [1, "x"], [1, 2], [None, None],
    ]  # fmt: skip
    assert objects_of([[1, 2], [3, 4], [5], 6, [[1, 2], [3, 4]], [7, 8], [9, 10]]).tolist() == [
        [1, 2], [3, 4], [None] * 2, [None] * 2, [None] * 2, [7, 8], [9, 10],
    ]  # fmt: skip
    for ragged in ([[1.0], [1.0, 2.0]], [[[1, 2]], [[1]]], [np.zeros(2), np.zeros(3)]):
        with pytest.raises(DataError, match="ragged"):
            PrivateData.from_arrays(ragged, [0, 1], norm_bound=1.0, classes=[0, 1], n_declared=2)


def test_numpys_own_texts_match_the_numbers_that_they_were() -> None:
    """np.array([0, "x"]) holds "0" and "x": classes of both kinds are found all the same."""
    records = checks.load(np.ones((4, 1)), np.array([0, 1, "x", "zz"]), classes=[0, 1, "x"])
    assert records.y.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": np.ones((2, 1)) * 1j}, "X does not hold numbers only: its type is complex128"),
        ({"X": np.array([["a"], ["b"]])}, "X does not hold numbers only: its type is <U1"),
        ({"X": np.zeros((2, 1), dtype="M8[s]")}, r"X does not hold numbers only: its type is datetime64\[s\]"),
        ({"y": np.zeros(2, dtype="M8[s]")}, r"y has type datetime64\[s\], and labels are texts or whole numbers"),
        ({"y": np.zeros(2, dtype=complex)}, "y has type complex128"),
        ({"y": pd.Series(pd.to_datetime(["2020-01-01"] * 2, utc=True))}, "y has type datetime64"),
        ({"y": np.array(["1", "2"]), "classes": None, "target_bounds": (0, 1)}, "target_bounds needs numbers"),
        ({"X": 3, "y": 4}, "X is a int: it must be an array"),
    ],
)
def test_the_type_of_a_whole_array_is_looked_at_in_public(changes: dict[str, Any], message: str) -> None:
    given = {"X": np.ones((2, 1)), "y": [0, 1], "classes": [0, 1], "norm_bound": 1.0, "n_declared": 2, **changes}
    with pytest.raises(DataError, match=message):
        PrivateData.from_arrays(**given)


def test_classes_in_a_set_are_refused() -> None:
    for classes in ({"a", "b"}, frozenset([0, 1])):
        with pytest.raises(SchemaError, match="classes is a set, which has no order"):
            PrivateData.from_arrays([[1.0]], ["a"], norm_bound=1.0, classes=classes, n_declared=2)


METHODS = [
    ("logreg", "objective"), ("logreg", "output"), ("logreg", "dp_gd"), ("softmax", "output"), ("softmax", "dp_gd"),
    ("linear_svm", "objective"), ("logreg", "dp_sgd"), ("mlp", "dp_sgd"),
    ("ridge", "adassp"), ("ridge", "output"), ("ridge", "dp_gd"), ("huber", "objective"), ("ridge", "dp_sgd"),
]  # fmt: skip


def _empty(model: str, kind: str, folder: Path) -> PrivateData:
    regression = model in ("ridge", "huber")
    target: dict[str, Any] = {"target_bounds": (0, 1)} if regression else {"classes": [0, 1]}
    if kind == "table":
        declared = checks.schema(["a", "b"])
        declared["target"] = {"name": "l", "bounds": [0, 1]} if regression else {"name": "l", "classes": ["0", "1"]}
        (folder / "t.csv").write_text("c,n,l\n")
        return PrivateData.from_table(folder / "t.csv", declared | {"n_declared": 50})
    if kind == "dataset":
        return PrivateData.from_dataset([], feature_shape=2, norm_bound=1.0, n_declared=50, **target)
    X = sparse.csr_array((0, 2)) if kind == "sparse" else np.zeros((0, 2))
    return PrivateData.from_arrays(X, [], norm_bound=1.0, n_declared=50, **target)


@pytest.mark.parametrize(("model", "method"), METHODS)
def test_no_record_trains_like_one(model: str, method: str, tmp_path: Path) -> None:
    """The empty data set is the neighbour of one with a single record: a refusal would tell them apart."""
    for kind in ("arrays", "sparse", "table", "dataset"):
        more: dict[str, Any] = {"steps": 2, "device": "cpu"} if method == "dp_sgd" else {}
        data = _empty(model, kind, tmp_path)
        result = PrivateTrainer(model, method, **more).fit(data)
        assert result.guarantee.epsilon <= 1.0
        assert all(np.isfinite(weight).all() for weight in result.model.weights.values())


def test_no_record_in_a_search() -> None:
    data = PrivateData.from_arrays(np.zeros((0, 2)), [], classes=[0, 1], norm_bound=1.0, n_declared=200)
    found = PrivateSearch({"regularization": [0.1, 1.0]}, {"method": "output"}).fit(data)
    assert found.guarantee_.epsilon <= 1.0


def test_norm_bounds_of_the_public_range_only() -> None:
    for value in (1e200, 1e-170, 2e6):
        data = PrivateData.from_arrays([[1.0]], [0], classes=[0, 1], norm_bound=value, n_declared=50)
        for method in ("objective", "output", "dp_gd", "dp_sgd"):
            with pytest.raises(ConfigError, match=r"norm_bound = .* \(from 1e-06 to 1e\+06\)"):
                PrivateTrainer("logreg", method).fit(data)


def test_a_table_of_strange_cells_is_read_cell_by_cell() -> None:
    """Every strange value in one categorical and one numeric column of objects: declared categories count as ever."""
    values = list(checks.STRANGE.values())
    cells = checks._as_object_array([["a", 1], *[[value, value] for value in values]])
    frame = pd.DataFrame(cells, columns=["c", "n"], dtype=object).assign(l="no")
    data = PrivateData.from_arrays(frame[["n"]], [0] * len(frame), classes=[0, 1], norm_bound=1.0, n_declared=9)
    assert data.load(FixedNoise(0)).X.tolist() == [[1.0]]
