"""Checks that one record never changes how another is read; tests and planted bugs share them.

Every check reads a data set D and a neighbour D' with one more, strange record, and compares what became of the others.
"""

from __future__ import annotations

import datetime
import warnings
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from dpml import PrivateData
from dpml.data import Records
from dpml.estimators import DPLogisticRegression, DPRidge, DPSGDClassifier, SchemaEncoder
from dpml.mechanisms import FixedNoise


class Evil:
    """A cell of a user's own type that raises whatever is done with it."""

    def __float__(self) -> float:
        raise RuntimeError("float")

    def __str__(self) -> str:
        raise RuntimeError("str")

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __hash__(self) -> int:
        raise RuntimeError("hash")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("array")


STRANGE: dict[str, Any] = {
    "text": "abc",
    "underscore": "1_000",
    "empty": "",
    "bytes": b"\xff",
    "none": None,
    "nan": float("nan"),
    "inf": float("inf"),
    "pandas NA": pd.NA,
    "NaT": pd.NaT,
    "huge": 10**400,
    "endless": 10**5000,
    "complex": 1 + 2j,
    "numpy complex": np.complex128(1 + 2j),
    "date": datetime.date(2020, 1, 1),
    "numpy date": np.datetime64("2020-01-01"),
    "span": np.timedelta64(1, "s"),
    "dict": {"foo": "bar"},
    "list": [1, 2],
    "tuple": (1, 2),
    "array": np.array([1.0, 2.0]),
    "evil": Evil(),
}
"""Values that are no real number and no declared label."""


def load(X: Any, y: Any, **declared: Any) -> Records:
    given = {"norm_bound": None, "n_declared": 10, **declared}
    return PrivateData.from_arrays(X, y, **given).load(FixedNoise(0))


# -- labels -----------------------------------------------------------------------------------------------------------
LABELS: dict[str, tuple[list[Any], list[Any], Any]] = {
    "a text beside numbers": ([0, "x"], [0, 0, 0], "x"),
    "a declared text": ([1, 2, "other"], [1, 2, 1], "other"),
    "an undeclared text": ([0, 1], [0, 1, 1], "x"),
    "a float beside large whole numbers": ([2**53, 2**53 + 1], [2**53 + 1, 2**53, 2**53 + 1], 0.5),
    "a huge number": ([2**60, 2**60 + 1], [2**60 + 1, 2**60, 2**60 + 1], 10**400),
    "nothing": ([2**53, 2**53 + 1], [2**53 + 1, 2**53, 2**53 + 1], None),
    "a number beside texts": (["0.5", "1"], ["0.5", "1", "1"], 3.25),
    "a tuple": ([0, 1], [0, 1, 1], (1, 2)),
    "truth beside texts": ([True, "no"], [True, "no", True], "no"),
}


def check_a_label_changes_no_other(case: str) -> None:
    """Lists, tuples and columns, by from_arrays and by the estimators: the first records count as they did."""
    classes, labels, strange = LABELS[case]
    X = np.arange(8.0).reshape(4, 2)
    before = load(X[:3], labels, classes=classes)
    assert len(before.y) == 3
    for y in ([*labels, strange], (*labels, strange), pd.Series([*labels, strange], dtype=object)):
        after = load(X, y, classes=classes)
        np.testing.assert_array_equal(after.X[:3], before.X)
        np.testing.assert_array_equal(after.y[:3], before.y)
        for kind in (DPLogisticRegression, DPSGDClassifier):
            more: dict[str, Any] = {"steps": 1, "device": "cpu"} if kind is DPSGDClassifier else {}
            model = kind(classes=classes, norm_bound=1.0, n_declared=10, **more).fit(X, y)
            counts = model.result_.private["train"]
            assert counts["used"] == len(after.y)
            assert counts["unknown_labels"] == 4 - len(after.y)
        if len(after.y) == 3:  # the last record contributes nothing: the same noise gives the very same model
            given: dict[str, Any] = {"classes": classes, "norm_bound": 1.0, "n_declared": 10, "method": "output"}
            models = [
                DPLogisticRegression(**given, noise_source=FixedNoise(1)).fit(*data)
                for data in ((X[:3], np.array(labels, dtype=object)), (X, y))
            ]
            np.testing.assert_array_equal(models[0].coef_, models[1].coef_)


# -- cells ------------------------------------------------------------------------------------------------------------
def _as_object_array(rows: list[list[Any]]) -> np.ndarray:
    found = np.empty((len(rows), 2), dtype=object)
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            found[i, j] = cell
    return found


FORMS: dict[str, Any] = {
    "lists": lambda rows: rows,
    "tuples": lambda rows: tuple(tuple(row) for row in rows),
    "objects": _as_object_array,
    "frame": lambda rows: pd.DataFrame(_as_object_array(rows), columns=["a", "b"], dtype=object),
}


def check_a_cell_changes_no_other_row(form: str, name: str) -> None:
    """The row of a strange cell contributes nothing, the others are what they were; nothing raises or warns."""
    rows: list[list[Any]] = [[1, 2.5], [True, 0], ["3", 4], [2**53 + 1, -1]]
    expected = [[1.0, 2.5], [1.0, 0.0], [3.0, 4.0], [2.0**53, -1.0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        X = FORMS[form]([*rows, [0, STRANGE[name]]])
        records = load(X, [0, 1, 0, 1, 1], classes=[0, 1])
        np.testing.assert_array_equal(records.X, expected)
        assert records.y.tolist() == [0, 1, 0, 1]
        assert records.private_notes["train"]["not_finite"] == 1
        model = DPLogisticRegression(classes=[0, 1], norm_bound=1.0, n_declared=10).fit(X, [0, 1, 0, 1, 1])
        assert model.result_.private["train"]["used"] == 4


def check_a_target_changes_no_other(name: str) -> None:
    """The same for the targets of a regression; infinity is clamped to the bounds."""
    X = np.ones((4, 1))
    y = [0, 5, "10", STRANGE[name]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records = load(X, y, target_bounds=(0, 10))
        kept = [-1.0, 0.0, 1.0] + ([1.0] if name == "inf" else [])
        assert records.y.tolist() == kept
        model = DPRidge(target_bounds=(0, 10), norm_bound=1.0, n_declared=10).fit(X, y)
        assert model.result_.private["train"]["used"] == len(kept)


# -- tables -----------------------------------------------------------------------------------------------------------
def schema(categories: list[Any]) -> dict[str, Any]:
    return {
        "name": "p",
        "n_declared": 4,
        "norm_bound": 100.0,
        "target": {"name": "l", "classes": ["no", "yes"]},
        "columns": {
            "c": {"kind": "categorical", "categories": categories, "on_invalid": "drop"},
            "n": {"kind": "numeric", "bounds": [0, 10], "knots": 3},
        },
    }


ROWS: dict[str, tuple[list[Any], list[list[Any]]]] = {
    "truth": (["True", "False"], [[True, 2], [False, 3]]),
    "whole numbers": (["1", "2"], [[1, 2], [2, 3]]),
    "floats": (["1", "2.5"], [[1.0, 2], [2.5, 3]]),
    "large": ([str(2**53), str(2**53 + 1)], [[2**53, 2.5], [2**53 + 1, 3]]),
    "texts": (["a", "b"], [["a", 2.25], ["b", 3]]),
}


def check_a_row_changes_no_other_in_the_encoder(case: str, strange: Any) -> None:
    """Lists of rows and frames of objects in front of an estimator, a strange cell in either column of the last row."""
    categories, rows = ROWS[case]
    encoder = SchemaEncoder(schema(categories))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = encoder.fit_transform(rows)
        assert before.any(axis=1).all()
        for last in ([strange, 1], [rows[0][0], strange], [1.5, 1], [None, 1], ["q", "x"]):
            np.testing.assert_array_equal(encoder.fit_transform([*rows, last])[:2], before)
            frame = pd.DataFrame(_as_object_array([*rows, last]), columns=["c", "n"], dtype=object)
            np.testing.assert_array_equal(encoder.fit_transform(frame)[:2], before)


def check_an_empty_cell_of_a_file_changes_no_other(folder: Any) -> None:
    """Parquet: whole numbers beside an empty cell are not read as floats, which cannot hold large ones."""
    declared = schema([str(2**53), str(2**53 + 1)])
    whole = pd.DataFrame({"c": [2**53 + 1, 2**53], "n": [1.0, 2.0], "l": ["no", "yes"]})
    more = pd.concat([whole.astype({"c": "Int64"}), pd.DataFrame({"c": [None], "n": [3.0], "l": ["no"]})])
    more = more.astype({"c": "Int64"})
    found = []
    for name, frame in (("one", whole), ("two", more)):
        frame.to_parquet(folder / f"{name}.parquet", index=False)
        found.append(PrivateData.from_table(folder / f"{name}.parquet", declared).load(FixedNoise(0)).X)
    assert len(found[0]) == 2
    np.testing.assert_array_equal(found[1][:2], found[0])


NUMBERS: list[tuple[Any, float]] = [
    (1, 1.0), (True, 1.0), (np.True_, 1.0), (np.float32(0.5), 0.5), (np.int8(-3), -3.0), (" 2.5 ", 2.5), (b"2", 2.0),
    (Decimal("0.25"), 0.25), (Fraction(1, 4), 0.25), (np.array(3.0), 3.0), ("-inf", -np.inf), (2**53 + 1, 2.0**53),
]  # fmt: skip
"""Cells that are numbers, and which."""
