"""Arrays, datasets, and the public map from raw rows to features."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from dpml.data import PrivateData, transform_array
from dpml.data.transform import array_preprocessing
from dpml.errors import ConfigError, DataError, SchemaError
from dpml.mechanisms import FixedNoise

X = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1.0], [np.inf, 0.0], [1.0, 0.0]])
Y = np.array([0, 1, 1, 0, 7])


def made(X: Any = X, y: Any = Y, **options: Any) -> PrivateData:
    return PrivateData.from_arrays(X, y, **{"norm_bound": 1.0, "classes": [0, 1], "n_declared": 10, **options})


def test_rows_are_clipped_and_unusable_records_contribute_nothing() -> None:
    before = X.copy()
    records = made().load(FixedNoise(0))
    np.testing.assert_allclose(records.X, [[0.6, 0.8], [0.3, 0.4]], rtol=1e-12)
    assert records.y.tolist() == [0, 1]
    assert records.y.dtype == np.int64
    assert records.X.dtype == np.float64
    assert records.private_notes["train"] == {"records": 5, "used": 2, "not_finite": 2, "unknown_labels": 1}
    np.testing.assert_array_equal(X, before, err_msg="the caller's array is not touched")


def test_the_clip_covers_the_constant() -> None:
    data = made(add_constant=True)
    records = data.load(FixedNoise(0))
    assert data.public.n_features == 3
    np.testing.assert_allclose(np.linalg.norm(records.X, axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(records.X[0], np.array([3, 4, 1]) / np.sqrt(26), rtol=1e-12)


def test_nothing_about_a_record_is_public() -> None:
    other = np.vstack([X[:, :], [[1e300, -1e300]]])
    one, more = made(), made(other, np.append(Y, 1))
    assert one.public == more.public
    assert one.public.n_declared == 10
    assert np.linalg.norm(more.load(FixedNoise(0)).X[-1]) <= 1.0
    assert made(y=np.zeros(5, int)).public == one.public, "one class only"


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (["no", "yes"], np.array(["no", "yes", "yes", "no", "?"])),
        (["no", "yes"], ["no", "yes", "yes", "no", None]),
        ([0, 1], np.array([0.0, 1.0, 1.0, 0.0, np.nan])),
        ([False, True], np.array([False, True, True, False, False])),
        ([-1, 1], pd.Series([-1, 1, 1, -1, 5])),
        (range(2), [0, 1, 1, 0, 10**30]),
    ],
)
def test_labels_of_many_types(classes: Any, labels: Any) -> None:
    records = made(y=labels, classes=classes).load(FixedNoise(0))
    assert records.y.tolist()[:2] == [0, 1]


def test_images_keep_their_shape() -> None:
    data = made(np.ones((4, 2, 3, 3)), [0, 1, 0, 1])
    records = data.load(FixedNoise(0))
    assert data.public.feature_shape == records.X.shape[1:] == (2, 3, 3)
    assert data.public.n_features == 18
    np.testing.assert_allclose(np.linalg.norm(records.X.reshape(4, -1), axis=1), 1.0, rtol=1e-12)
    assert made(np.ones((4, 3)), [0, 1, 0, 1], norm_bound=None).load(FixedNoise(0)).X.max() == 1.0


FAULTS = [
    ({"X": np.zeros(5)}, DataError, r"X has shape \(5,\)"),
    ({"X": np.zeros((5, 0))}, DataError, "hold no feature"),
    ({"y": Y[:3]}, DataError, "different lengths"),
    ({"y": np.zeros((5, 1))}, DataError, r"y has shape \(5, 1\)"),
    ({"X": [[1.0], [1.0, 2.0]], "y": [0, 1]}, DataError, "ragged"),
    ({"X": sparse.csr_array(np.eye(4))}, DataError, "different lengths"),
    ({"X": sparse.coo_array(np.ones(5))}, DataError, r"X has shape \(5,\)"),
    ({"X_test": sparse.csr_array(np.ones((5, 3))), "y_test": Y}, DataError, "They must agree"),
    ({"X_test": X}, DataError, "y_test is missing"),
    ({"y_test": Y}, DataError, "X_test is missing"),
    ({"X_test": np.zeros((5, 3)), "y_test": Y}, DataError, "They must agree"),
    ({"classes": ["a", "b"]}, DataError, "no label could match"),
    ({"classes": [1]}, SchemaError, "two or more"),
    ({"classes": [1, 1]}, SchemaError, "listed twice"),
    ({"n_declared": 0}, ConfigError, "n_declared = 0"),
    ({"n_declared": 2.5}, ConfigError, r"n_declared = 2\.5"),
    ({"norm_bound": 0.0}, ConfigError, r"norm_bound = 0\.0"),
    ({"norm_bound": float("nan")}, ConfigError, "norm_bound = nan"),
    ({"norm_bound": float("inf")}, ConfigError, "norm_bound = inf"),
    ({"X": np.zeros((5, 2, 2)), "add_constant": True}, ConfigError, "add_constant = True"),
]


@pytest.mark.parametrize(("options", "error", "message"), FAULTS, ids=[m for _, _, m in FAULTS])
def test_faults_before_a_value_is_read(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made(**options)


def test_faults_at_load() -> None:
    empty = made(np.zeros((0, 2)), []).load(FixedNoise(0))  # n is private: no record is no error
    assert empty.X.shape == (0, 2)
    assert empty.y.shape == (0,)
    with pytest.raises(DataError, match="does not hold numbers only"):
        made(np.array([["a", "b"]]), [0]).load(FixedNoise(0))


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix, sparse.csc_array, sparse.coo_array])
@pytest.mark.parametrize("constant", [False, True])
def test_sparse_rows_are_those_of_the_dense_array(kind: Any, constant: bool) -> None:
    dense = made(add_constant=constant, X_test=X[:2], y_test=Y[:2]).load(FixedNoise(0))
    data = made(kind(X), add_constant=constant, X_test=kind(X[:2]), y_test=Y[:2])
    assert data.public == made(add_constant=constant, X_test=X[:2], y_test=Y[:2]).public
    records = data.load(FixedNoise(0), sparse=True)
    assert isinstance(records.X, sparse.csr_array)
    assert isinstance(records.X_test, sparse.csr_array)
    np.testing.assert_allclose(records.X.toarray(), dense.X, rtol=1e-14)
    np.testing.assert_allclose(records.X_test.toarray(), dense.X_test, rtol=1e-14)
    np.testing.assert_array_equal(records.y, dense.y)
    assert records.private_notes == dense.private_notes
    plain = data.load(FixedNoise(0))
    assert isinstance(plain.X, np.ndarray)
    np.testing.assert_allclose(plain.X, dense.X, rtol=1e-14)


def test_dense_arrays_stay_dense() -> None:
    assert isinstance(made().load(FixedNoise(0), sparse=True).X, np.ndarray)


def test_a_wide_sparse_array_is_never_made_dense() -> None:
    wide = sparse.csr_array((np.ones(3), (np.arange(3), [0, 7, 999_999])), shape=(3, 10_000_000_000))
    data = made(wide, [0, 1, 1], add_constant=True)
    records = data.load(FixedNoise(0), sparse=True)
    assert records.X.shape == (3, data.public.n_features) == (3, 10_000_000_001)
    np.testing.assert_allclose(records.X.data, np.sqrt(0.5), rtol=1e-12)


class Traps:
    """A map-style dataset that tells when an item is read."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.reads = 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: int) -> Any:
        self.reads += 1
        return self.items[position]


ITEMS = [(np.ones((2, 2)), 1), (np.zeros((2, 2)), np.int64(0)), (np.full((2, 2), np.nan), 1), (np.ones(3), 0), ("x", 1)]


def test_dataset_reads_items_only_at_load() -> None:
    dataset = Traps(ITEMS)
    data = PrivateData.from_dataset(dataset, n_declared=5, classes=range(2), feature_shape=(2, 2), norm_bound=1.0)
    assert data.public.n_features == 4
    assert dataset.reads == 0
    records = data.load(FixedNoise(0))
    assert dataset.reads == 5
    np.testing.assert_allclose(records.X, [np.full((2, 2), 0.5), np.zeros((2, 2))], rtol=1e-12)
    assert records.y.tolist() == [1, 0]


def test_dataset_with_torch_tensors_tells_its_shape_itself() -> None:
    import torch

    dataset = torch.utils.data.TensorDataset(torch.ones(6, 3), torch.arange(6) % 2)
    data = PrivateData.from_dataset(dataset, n_declared=6, classes=[0, 1], test=dataset, is_public=True)
    records = data.load(FixedNoise(0))
    assert data.public.feature_shape == (3,)
    assert data.public.test_is_public
    assert records.y.tolist() == records.y_test.tolist() == [0, 1, 0, 1, 0, 1]  # type: ignore[union-attr]


def test_dataset_faults() -> None:
    with pytest.raises(DataError, match="no map-style dataset"):
        PrivateData.from_dataset(iter([]), n_declared=5, classes=[0, 1], feature_shape=2)
    with pytest.raises(ConfigError, match="classes is missing"):
        PrivateData.from_dataset(Traps(ITEMS), n_declared=5, feature_shape=2)
    with pytest.raises(ConfigError, match="feature_shape is missing"):
        PrivateData.from_dataset(Traps(ITEMS), n_declared=5, classes=[0, 1])
    with pytest.raises(ConfigError, match="feature_shape = 0"):
        PrivateData.from_dataset(Traps(ITEMS), n_declared=5, classes=[0, 1], feature_shape=0)
    for items in ([], [3], [(np.ones(2),)], [(object(), 1)]):  # no record, and items that are no pairs of numbers
        records = PrivateData.from_dataset(items, n_declared=5, classes=[0, 1], feature_shape=2).load(FixedNoise(0))
        assert records.X.shape == (0, 2)
        assert records.private_notes["train"]["records"] == len(items)


def test_the_public_map_survives_json_and_gives_the_training_rows() -> None:
    data = made(add_constant=True)
    saved = json.loads(json.dumps(data.public.preprocessing))
    rows, valid = transform_array(X, saved)
    assert valid.tolist() == [True, True, False, False, True]
    assert not rows[2:4].any()
    np.testing.assert_array_equal(rows[:2], data.load(FixedNoise(0)).X)


def test_transform_array_by_hand_and_its_faults() -> None:
    saved = array_preprocessing((4,), scale=0.5, constant=True, norm_bound=1.0)
    rows, valid = transform_array(np.array([[[2, 0], [0, 0]]], dtype=np.uint8), saved)
    np.testing.assert_allclose(rows, np.array([[1, 0, 0, 0, 1]]) / np.sqrt(2), rtol=1e-12)
    assert valid.all()
    with pytest.raises(DataError, match=r"rows must have shape \(4,\)"):
        transform_array(np.zeros((3, 5)), saved)
    with pytest.raises(DataError, match="encoded by a schema"):
        transform_array(np.zeros((3, 5)), {"kind": "table"})
    with pytest.raises(DataError, match="does not hold numbers"):
        transform_array(np.array([["a"]]), saved)
    rows, valid = transform_array([["a", 1, 2, 3], ["1", 1, 2, 3]], saved)  # a list is read cell by cell
    assert valid.tolist() == [False, True]
    np.testing.assert_allclose(rows[1], np.array([0.5, 0.5, 1, 1.5, 1]) / np.sqrt(4.75), rtol=1e-12)
