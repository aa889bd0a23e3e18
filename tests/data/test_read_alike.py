"""Readers keep a column of numbers or truth values as texts where one cell is something else: nothing may change."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pandas as pd
import pytest

from dpml import SchemaEncoder
from dpml.data import PrivateData, Schema
from dpml.data.cells import cell_number
from dpml.data.columns import text_of
from dpml.data.encoder import lookup
from dpml.mechanisms import FixedNoise

COLUMNS = {
    "truth": ["True", "False"] * 4,
    "small": ["true", "false"] * 4,
    "large": ["TRUE", "FALSE"] * 4,
    "whole": ["1", "0"] * 4,
    "codes": ["01234", "07"] * 4,
    "float": ["1.0", "0.50"] * 4,
    "sci": ["1e3", "5"] * 4,
}
STRANGE = ["x", "", "1", "True", "2.5", "1e400", "nan", "1_0", "'", "99999999999999999999"]
VALUES = (
    ("True", "False"), ("true", "false"), ("TRUE", "FALSE"), ("1", "0"), ("1.0", "0.5"), ("01234", "07"),
    ("1234", "7"), (1, 0), (1000, 5), ("1e3", "5.0"), ("x", "1"), ("1", "true"),
)  # fmt: skip


def read(cells):
    """As pandas reads a CSV with these cells: the type of the column is that which fits all of them."""
    return pd.read_csv(io.StringIO("\n".join(["a,b", *(f"{cell},0" for cell in cells)]) + "\n"), keep_default_na=True)


def test_the_reader_does_change_its_types():
    assert read(COLUMNS["truth"])["a"].dtype == bool
    assert read([*COLUMNS["truth"], "x"])["a"].dtype != bool
    assert read(COLUMNS["codes"])["a"].dtype.kind == "i"


@pytest.mark.parametrize("name", COLUMNS)
def test_one_cell_changes_no_other_as_a_category(name):
    for strange, values in itertools.product(STRANGE, VALUES):
        plain, mixed = read(COLUMNS[name])["a"], read([*COLUMNS[name], strange])["a"]
        np.testing.assert_array_equal(lookup(plain, values), lookup(mixed, values)[:-1], err_msg=f"{values} {strange}")


@pytest.mark.parametrize("name", COLUMNS)
def test_one_cell_changes_no_other_as_a_number(name):
    plain = read(COLUMNS[name])["a"]
    expected = [cell_number(cell) for cell in plain.tolist()]
    assert not np.isnan(expected).any()
    for strange in STRANGE:
        mixed = read([*COLUMNS[name], strange])["a"]
        assert [cell_number(cell) for cell in mixed.tolist()[:-1]] == expected


@pytest.mark.parametrize("name", COLUMNS)
def test_one_cell_changes_no_other_as_a_label(name):
    def labels(cells, classes):
        y = read(cells)["a"]
        X = np.arange(float(len(y)))[:, None]
        data = PrivateData.from_arrays(X, y, classes=classes, norm_bound=1e3, n_declared=8)
        records = data.load(FixedNoise(0))
        return {
            (float(x[0]), int(label))
            for x, label in zip(records.X, records.y, strict=True)
            if x[0] < len(COLUMNS[name])
        }

    for classes in VALUES:
        plain = labels(COLUMNS[name], classes)
        for strange in STRANGE:
            assert labels([*COLUMNS[name], strange], classes) == plain, (classes, strange)


def test_encoder_and_estimator_of_a_data_frame():
    schema = Schema.from_dict(
        {
            "name": "t", "source": "", "is_public": False, "n_declared": 9, "norm_bound": 2.0,
            "target": {"name": "b", "classes": [0, 1]},
            "columns": {"a": {"kind": "categorical", "categories": ["true", "false"], "on_invalid": "zero"}},
        }
    )  # fmt: skip
    rows = [
        SchemaEncoder(schema).fit_transform(read(cells)[["a"]])
        for cells in (COLUMNS["truth"], [*COLUMNS["truth"], "x"])
    ]
    rows = [part.toarray() if hasattr(part, "toarray") else np.asarray(part) for part in rows]
    np.testing.assert_array_equal(rows[0], rows[1][:-1])
    np.testing.assert_array_equal(rows[0][:2, :2] > 0, np.eye(2) > 0)


def test_the_usual_spelling_of_a_number_comes_first():
    for values in (("01", "1"), ("1", "01"), ("True", "1"), ("1.0", "1")):
        plain, mixed = pd.Series([1.0, 1.0]), pd.Series(["1", "1", "x"])
        np.testing.assert_array_equal(lookup(plain, values), lookup(mixed, values)[:-1])
        assert set(lookup(plain, values)) == {values.index("1")}
    np.testing.assert_array_equal(lookup(pd.Series(["1.00", "1.0"]), ("01", "1")), [1, 1])


def test_texts_of_numpy_match_numbers_as_those_of_lists_do():
    X = np.arange(3.0)[:, None]
    found = []
    for y in (np.array([0, 1, 1]), np.array([0, 1, "?"]), [0, 1, "?"]):
        data = PrivateData.from_arrays(X, y, classes=[0, 1], norm_bound=9.0, n_declared=3)
        found.append(data.load(FixedNoise(0)).y.tolist()[:2])
    assert found == [[0, 1]] * 3


def test_texts_and_numbers_of_truth_values():
    assert [text_of(v) for v in (True, "true", "TRUE", np.True_, " True ", "truth")] == ["True"] * 5 + ["truth"]
    assert [cell_number(v) for v in ("true", "FALSE", " True ", b"true", True)] == [1.0, 0.0, 1.0, 1.0, 1.0]
    assert np.isnan(cell_number("tRUE"))
