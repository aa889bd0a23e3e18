"""SchemaEncoder: the public encoding as a transformer that learns nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

from dpml.data import Schema
from dpml.errors import ConfigError, DataError
from dpml.estimators import DPLogisticRegression, SchemaEncoder

SCHEMA: dict[str, Any] = {
    "n_declared": 200,
    "target": {"name": "bought", "classes": ["no", "yes"]},
    "norm_bound": 1.5,
    "columns": {
        "age": {"kind": "numeric", "bounds": [0, 100], "encoding": "minmax"},
        "town": {"kind": "categorical", "categories": ["Ulm", "Bonn"], "on_invalid": "zero"},
        "id": {"kind": "ignore"},
    },
}


def table(n: int = 4) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "id": range(n),
            "town": rng.choice(["Ulm", "Bonn", "Rom"], n),
            "age": rng.uniform(0, 100, n),
            "bought": rng.choice(["no", "yes"], n),
        }
    )


def by_hand(frame: pd.DataFrame, bound: float) -> np.ndarray:
    """The same features written out: min-max, two indicators, a one, and the whole row scaled down to the bound."""
    rows = np.column_stack([frame["age"] / 100, frame["town"] == "Ulm", frame["town"] == "Bonn", np.ones(len(frame))])
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, bound / norms)


def test_features_are_those_written_out_by_hand() -> None:
    frame = table(50)
    X = SchemaEncoder(SCHEMA).fit_transform(frame)
    np.testing.assert_allclose(X, by_hand(frame, 1.5), rtol=1e-12)


def test_norm_bound_replaces_that_of_the_schema() -> None:
    frame = table(50)
    X = SchemaEncoder(SCHEMA, norm_bound=0.5).fit_transform(frame)
    np.testing.assert_allclose(X, by_hand(frame, 0.5), rtol=1e-12)
    assert np.linalg.norm(X, axis=1).max() <= 0.5


def test_sparse_output_is_csr_with_the_same_values() -> None:
    frame = table(9_000)  # more than one block
    X = SchemaEncoder(SCHEMA, sparse_output=True).fit_transform(frame)
    assert sparse.issparse(X)
    assert X.format == "csr"
    np.testing.assert_array_equal(X.toarray(), SchemaEncoder(SCHEMA).fit_transform(frame))
    assert X.nnz == np.count_nonzero(by_hand(frame, 1.5))
    assert SchemaEncoder(SCHEMA, sparse_output=True).fit(frame).transform(frame[:0]).shape == (0, 4)


def test_names_and_set_output() -> None:
    frame = table()
    encoder = SchemaEncoder(SCHEMA).set_output(transform="pandas").fit(frame)
    result = encoder.transform(frame)
    names = ["age", "town=Ulm", "town=Bonn", "(constant)"]
    assert list(result.columns) == names
    assert list(encoder.get_feature_names_out()) == names
    assert list(encoder.get_feature_names_out(list(frame.columns))) == names
    assert list(encoder.feature_names_in_) == ["id", "town", "age", "bought"]
    pd.testing.assert_index_equal(result.index, frame.index)
    with pytest.raises(ValueError, match="feature_names_in_"):
        encoder.get_feature_names_out(["a", "b", "c", "d"])


def test_set_output_keeps_the_index_of_the_table() -> None:
    frame = table().set_index(pd.Index([7, 3, 9, 1]))
    result = SchemaEncoder(SCHEMA).set_output(transform="pandas").fit_transform(frame)
    assert list(result.index) == [7, 3, 9, 1]


def test_fit_learns_nothing_from_the_cells() -> None:
    ordinary = table(30)
    strange = ordinary.assign(age=-5.0, town="Oslo")
    encoders = [SchemaEncoder(SCHEMA).fit(frame) for frame in (ordinary, strange)]
    np.testing.assert_array_equal(*(encoder.transform(ordinary) for encoder in encoders))
    assert encoders[0].encoder_.schema == encoders[1].encoder_.schema == Schema.from_dict(SCHEMA)
    assert SchemaEncoder(SCHEMA).fit(ordinary[:0]).encoder_.n_features == 4  # no record is needed at all


def test_a_row_depends_on_itself_only() -> None:
    frame = table(20)
    encoder = SchemaEncoder(SCHEMA).fit(frame)
    rows = [encoder.transform(frame[k : k + 1]) for k in range(20)]
    np.testing.assert_array_equal(np.vstack(rows), encoder.transform(frame))


@pytest.mark.parametrize("form", ["dict", "schema", "text", "path"])
def test_schema_in_every_form(form: str, tmp_path: Path) -> None:
    file = tmp_path / "people.json"
    file.write_text(json.dumps(SCHEMA))
    schema = {"dict": SCHEMA, "schema": Schema.from_dict(SCHEMA), "text": str(file), "path": file}[form]
    encoder = SchemaEncoder(schema)  # type: ignore[arg-type]
    before = encoder.get_params()["schema"]
    again = clone(encoder).fit(table())
    assert encoder.get_params()["schema"] is before
    assert again.encoder_.schema == Schema.from_dict(SCHEMA)


def test_arrays_are_read_by_position_in_the_order_of_the_schema() -> None:
    frame = table(10)
    encoder = SchemaEncoder(SCHEMA)
    X = encoder.fit_transform(frame[["age", "town", "id"]].to_numpy(dtype=object))
    np.testing.assert_allclose(X, by_hand(frame, 1.5), rtol=1e-12)
    with pytest.raises(DataError, match="array with 2 columns, the schema declares 3"):
        SchemaEncoder(SCHEMA).fit(frame[["age", "town"]].to_numpy(dtype=object))


def test_data_frames_of_other_libraries_are_read_by_name() -> None:
    frame = table(10)
    arrow = pa.Table.from_pandas(frame[["town", "bought", "age"]])
    X = SchemaEncoder(SCHEMA).fit_transform(arrow)
    np.testing.assert_allclose(X, by_hand(frame, 1.5), rtol=1e-12)


def test_default_describes_every_column() -> None:
    X = np.array([[0.0, 5.0], [10.0, 2.5], [99.0, -1.0], [np.nan, 5.0]])
    encoder = SchemaEncoder(default={"kind": "numeric", "bounds": [0, 10], "encoding": "minmax"}, norm_bound=9.0)
    expected = [[0.0, 0.5, 1.0], [1.0, 0.25, 1.0], [1.0, 0.0, 1.0], [0.0, 0.5, 1.0]]
    np.testing.assert_allclose(encoder.fit_transform(X), expected, rtol=1e-12)
    assert list(encoder.get_feature_names_out()) == ["x0", "x1", "(constant)"]
    assert list(encoder.fit(pd.DataFrame(X, columns=["a", "b"])).get_feature_names_out()) == ["a", "b", "(constant)"]


def test_a_dropped_record_becomes_a_row_of_zeros() -> None:
    encoder = SchemaEncoder(default={"kind": "numeric", "bounds": [0, 10], "on_invalid": "drop"})
    X = encoder.fit_transform(np.array([[1.0], [11.0]]))
    assert not X[1].any()
    assert X[0].any()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ConfigError, "schema must be declared, or default"),
        ({"schema": SCHEMA, "default": {"kind": "ignore"}}, ConfigError, "one of the two"),
        ({"default": {"kind": "ignore"}}, ConfigError, "ignores every column"),
        ({"schema": SCHEMA, "norm_bound": 0.0}, ConfigError, "norm_bound = 0.0 is not allowed"),
        ({"schema": {**SCHEMA, "columns": {"agee": SCHEMA["columns"]["age"]}}}, DataError, "Did you mean 'age'"),
    ],
)
def test_refusals(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SchemaEncoder(**arguments).fit(table())


def test_transform_before_fit_is_refused() -> None:
    with pytest.raises(NotFittedError):
        SchemaEncoder(SCHEMA).transform(table())


def test_in_a_pipeline_before_a_private_model() -> None:
    rng = np.random.default_rng(1)
    frame = table(2_000)
    frame["bought"] = np.where(frame["age"] + 10 * rng.normal(size=2_000) > 50, "yes", "no")
    pipeline = make_pipeline(
        SchemaEncoder(SCHEMA),
        DPLogisticRegression(8.0, classes=["no", "yes"], norm_bound=1.5, n_declared=2_000, fit_intercept=False),
    ).fit(frame, frame["bought"])
    assert pipeline.score(frame, frame["bought"]) > 0.8  # 0.92 for the best threshold on age, 0.5 for a constant
    assert list(pipeline[:-1].get_feature_names_out())[-1] == "(constant)"
    assert pipeline[-1].coef_.shape == (1, 4)


@pytest.mark.parametrize("library", ["pandas", "arrow"])
def test_a_new_table_needs_only_the_columns_that_are_read(library: str) -> None:
    """Neither the target nor what the schema ignores, in any order; a column that is read is missed by name."""
    frame = table(50)
    model = make_pipeline(
        SchemaEncoder(SCHEMA),
        DPLogisticRegression(epsilon=1.0, classes=["no", "yes"], norm_bound=1.5, n_declared=200, fit_intercept=False),
    ).fit(frame, frame["bought"])
    new = frame[["age", "town"]].assign(note="another")
    given = pa.Table.from_pandas(new).to_pandas() if library == "arrow" else new
    np.testing.assert_array_equal(model.predict(given), model.predict(frame))
    with pytest.raises(ValueError, match="town"):
        model.predict(new.drop(columns="town"))


@pytest.mark.filterwarnings("ignore:X (does not have valid|has) feature names")  # scikit-learn's own, for a mixture
def test_frames_and_arrays_go_together() -> None:
    """An array has all columns of the schema, ignored ones too, whichever of both was there at ``fit``."""
    frame = table(20)[["age", "town", "id"]]
    array = frame.to_numpy(dtype=object)
    wanted = SchemaEncoder(SCHEMA).fit_transform(frame)
    for first in (frame, array):
        encoder = SchemaEncoder(SCHEMA).fit(first)
        for then in (frame, array, array.tolist(), frame[["town", "age"]]):
            np.testing.assert_allclose(encoder.transform(then), wanted)
    default = SchemaEncoder(default={"kind": "numeric", "bounds": [0, 100]}).fit(frame[["age"]])
    with pytest.raises(ValueError, match="id"):  # that encodes every column
        default.transform(frame[["age", "id"]])
