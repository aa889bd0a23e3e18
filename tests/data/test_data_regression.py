"""Regression targets from arrays, datasets and tables: public bounds, the scale of the losses, what contributes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from dpml.data import PrivateData, Schema
from dpml.data.check import check_table
from dpml.data.columns import scaled_target, target_units
from dpml.data.draft import draft
from dpml.errors import ConfigError, DataError
from dpml.mechanisms import FixedNoise

X = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
Y = np.array([10.0, 15.0, 15.0, np.nan, 999.0, -np.inf])
BOUNDS = (10.0, 30.0)


def made(X: Any = X, y: Any = Y, **options: Any) -> PrivateData:
    return PrivateData.from_arrays(X, y, **{"norm_bound": 1.0, "target_bounds": BOUNDS, "n_declared": 10, **options})


def test_targets_are_clipped_and_scaled_and_nan_contributes_nothing() -> None:
    data = made()
    assert data.public.task == "regression"
    assert data.public.classes == ()
    assert data.public.target_bounds == BOUNDS
    records = data.load(FixedNoise(0))
    assert records.y.dtype == np.float64
    np.testing.assert_allclose(records.y, [-1.0, -0.5, 1.0, -1.0])
    np.testing.assert_allclose(records.X, [[0.6, 0.8], [0.3, 0.4], [0.0, 1.0], [0.5, 0.0]], rtol=1e-12)
    assert records.private_notes["train"] == {
        "records": 6,
        "used": 4,
        "not_finite": 1,
        "targets_without_number": 1,
        "targets_clipped": 2,
    }


def test_classification_is_still_the_other_task() -> None:
    data = PrivateData.from_arrays(X, [0, 1, 0, 1, 0, 1], norm_bound=1.0, classes=[0, 1], n_declared=10)
    assert data.public.task == "classification"
    assert data.public.target_bounds is None
    assert "classes=(0, 1)" in repr(data)
    assert "target_bounds=(10.0, 30.0)" in repr(made())


@pytest.mark.parametrize(
    "targets",
    [
        [10, 15, 20, 30, 20, 20],
        [10.0, "15", 20, 30, 20, 20],
        pd.Series([10, 15, 20, 30, 20, 20], dtype="Int64"),
        np.array([10, 15, 20, 30, 20, 20], dtype=np.uint8),
        np.array([10, 15, 20, 30, 20, 20], dtype=object),
    ],
)
def test_targets_of_many_types(targets: Any) -> None:
    np.testing.assert_allclose(made(y=targets).load(FixedNoise(0)).y, [-1.0, -0.5, 1.0, 0.0, 0.0])


@pytest.mark.parametrize("strange", [None, "x", "1_000", [1.0, 2.0], [[1.0], [1.0, 2.0]], pd.NA, float("nan"), 1j])
def test_what_is_no_number_drops_its_own_record_only(strange: Any) -> None:
    targets = np.empty(6, dtype=object)
    targets[:] = [10, 15, 20, 30, 20, 20]
    targets[1] = strange
    records = made(y=targets).load(FixedNoise(0))
    np.testing.assert_allclose(records.y, [-1.0, 1.0, 0.0, 0.0])
    assert records.private_notes["train"]["targets_without_number"] == 1


def test_nothing_about_a_record_is_public() -> None:
    assert made().public == made(np.vstack([X, [[9e300, 1.0]]]), np.append(Y, 1e300)).public
    assert made().public == made(y=np.full(6, np.nan)).public


FAULTS = [
    ({"target_bounds": None}, ConfigError, "classes and target_bounds are both missing"),
    ({"classes": [0, 1]}, ConfigError, "target_bounds = .* left out when classes is given"),
    ({"target_bounds": (3.0, 1.0)}, ConfigError, r"target_bounds = .*lo < hi"),
    ({"target_bounds": (1.0, 1.0)}, ConfigError, r"target_bounds = .*lo < hi"),
    ({"target_bounds": (0.0, float("inf"))}, ConfigError, r"target_bounds = .*finite"),
    ({"target_bounds": (-1e308, 1e308)}, ConfigError, r"target_bounds = .*finite"),
    ({"target_bounds": 5.0}, ConfigError, r"target_bounds = 5\.0"),
    ({"target_bounds": (0.0, 1.0, 2.0)}, ConfigError, "target_bounds"),
    ({"y": np.array(["a"] * 6)}, DataError, "target_bounds needs numbers"),
    ({"y": Y[:3]}, DataError, "different lengths"),
]


@pytest.mark.parametrize(("options", "error", "message"), FAULTS, ids=[m for _, _, m in FAULTS])
def test_faults_before_a_value_is_read(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made(**options)


@pytest.mark.parametrize("bounds", [[10, 30], (10, 30), np.array([10.0, 30.0]), (np.float32(10), np.int64(30))])
def test_bounds_of_many_types(bounds: Any) -> None:
    assert made(target_bounds=bounds).public.target_bounds == BOUNDS


def test_sparse_rows() -> None:
    data = made(sparse.csr_array(X))
    records = data.load(FixedNoise(0), sparse=True)
    assert isinstance(records.X, sparse.csr_array)
    np.testing.assert_allclose(records.X.toarray(), made().load(FixedNoise(0)).X, rtol=1e-14)
    np.testing.assert_array_equal(records.y, made().load(FixedNoise(0)).y)


def test_datasets() -> None:
    pairs = [(row, target) for row, target in zip(X, Y, strict=True)]
    data = PrivateData.from_dataset(
        pairs, n_declared=10, target_bounds=BOUNDS, feature_shape=2, norm_bound=1.0, test=pairs[:2]
    )
    records = data.load(FixedNoise(0))
    np.testing.assert_array_equal(records.y, made().load(FixedNoise(0)).y)
    np.testing.assert_allclose(records.y_test, [-1.0, -0.5])
    tensors = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    same = PrivateData.from_dataset(tensors, n_declared=10, target_bounds=BOUNDS, norm_bound=1.0).load(FixedNoise(0))
    np.testing.assert_array_equal(same.y, records.y)
    with pytest.raises(ConfigError, match="left out when classes is given"):
        PrivateData.from_dataset(pairs, n_declared=10, target_bounds=BOUNDS, classes=[0, 1], feature_shape=2)


def test_units_come_back() -> None:
    """0.1 and 0.7 have no exact binary form: the ends of the scale are still the bounds themselves."""
    bounds = (0.1, 0.7)
    values = np.array([0.1, 0.25, 0.7, 5.0, -np.inf])
    scaled, known = scaled_target(values, bounds)
    assert known.all()
    np.testing.assert_allclose(scaled, [-1.0, -0.5, 1.0, 1.0, -1.0], rtol=1e-12)
    back = target_units(scaled, bounds)
    np.testing.assert_allclose(back, [0.1, 0.25, 0.7, 0.7, 0.1], rtol=1e-14)
    assert back.min() >= 0.1
    assert back.max() <= 0.7
    np.testing.assert_allclose(target_units(np.array([-7.0, 7.0]), bounds), bounds)
    far = target_units(scaled_target(np.array([-8e307, 8e307]), (-8e307, 8e307))[0], (-8e307, 8e307))
    np.testing.assert_allclose(far, [-8e307, 8e307])


# ------------------------------------------------------------------------------------------------------- tables

SCHEMA: dict[str, Any] = {
    "n_declared": 6,
    "target": {"name": "price", "bounds": [0, 200]},
    "columns": {
        "age": {"kind": "numeric", "bounds": [0, 100]},
        "town": {"kind": "categorical", "categories": ["a", "b"]},
    },
}
ROWS = "age,town,price\n10,a,0\n20,b,150\n30,a,\n40,a,cheap\n50,b,1e9\n60,b,-3\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text(ROWS, "utf-8")
    return tmp_path / "t.csv"


def test_a_table_with_a_number_to_predict(table: Path) -> None:
    data = PrivateData.from_table(table, schema=SCHEMA)
    assert data.public.task == "regression"
    assert data.public.target_bounds == (0.0, 200.0)
    assert data.public.classes == ()
    records = data.load(FixedNoise(0))
    np.testing.assert_allclose(records.y, [-1.0, 0.5, 1.0, -1.0])
    assert len(records.X) == 4
    assert data.load(FixedNoise(0), sparse=True).X.shape == records.X.shape
    np.testing.assert_allclose(data.load(FixedNoise(0), sparse=True).X.toarray(), records.X, rtol=1e-14)


def test_parquet_gives_the_same(table: Path) -> None:
    frame = pd.read_csv(table)
    frame["price"] = pd.to_numeric(frame["price"], errors="coerce")
    frame.to_parquet(table.with_suffix(".parquet"))
    one = PrivateData.from_table(table, schema=SCHEMA).load(FixedNoise(0))
    other = PrivateData.from_table(table.with_suffix(".parquet"), schema=SCHEMA).load(FixedNoise(0))
    np.testing.assert_array_equal(one.y, other.y)
    np.testing.assert_array_equal(one.X, other.X)


def test_check_tells_about_targets(table: Path) -> None:
    found = {str(finding): finding.stops for finding in check_table(table, Schema.from_dict(SCHEMA))}
    assert found == {
        "row 3, column 'price': target '' is no number; a run leaves the record out": True,
        "row 4, column 'price': target 'cheap' is no number; a run leaves the record out": True,
        "row 5, column 'price': target '1e9' is outside [0, 200]; a run clamps it": False,
        "row 6, column 'price': target '-3' is outside [0, 200]; a run clamps it": False,
    }


def test_draft_proposes_bounds_where_classes_would_be_too_many(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": np.arange(40), "price": np.arange(40) * 2.5})
    frame.to_csv(tmp_path / "t.csv", index=False)
    made_draft = draft(tmp_path / "t.csv")
    assert made_draft["target"] == {"name": "price", "bounds": [0, 97.5]}
    made_draft.pop("_warning")
    assert Schema.from_dict(json.loads(json.dumps(made_draft))).target_bounds == (0.0, 97.5)
    few = pd.DataFrame({"age": np.arange(40), "label": np.arange(40) % 3})
    few.to_csv(tmp_path / "few.csv", index=False)
    assert draft(tmp_path / "few.csv")["target"] == {"name": "label", "classes": ["0", "1", "2"]}
