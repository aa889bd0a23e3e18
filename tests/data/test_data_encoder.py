"""The encoder: right features, nothing fitted, rows within the public norm."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.preprocessing import OneHotEncoder, SplineTransformer

from dpml.data import Encoder, Schema
from dpml.data.encoder import clip_rows, lookup, numbers
from dpml.data.transform import array_preprocessing, transform_array
from dpml.errors import DataError


def make(norm_bound: float = 1e6, **columns: dict[str, Any]) -> Encoder:
    return Encoder(
        Schema.from_dict(
            {
                "n_declared": 100,
                "target": {"name": "y", "classes": ["no", "yes"]},
                "norm_bound": norm_bound,
                "columns": columns,
            }
        )
    )


NUMBER = {"kind": "numeric", "bounds": [0, 10], "knots": 3}
MONEY = {"kind": "numeric", "bounds": [0, 999], "scale": "log1p", "knots": 4}
TOWN = {"kind": "categorical", "categories": ["a", "b"]}


def encode(encoder: Encoder, **cells: list[Any]) -> np.ndarray:
    return encoder.transform(pd.DataFrame(cells))[0]


def test_hat_functions_by_hand() -> None:
    X = encode(make(a=NUMBER), a=[0, 2.5, 5, 9, 10])
    expected = [[1, 0, 0, 1], [0.5, 0.5, 0, 1], [0, 1, 0, 1], [0, 0.2, 0.8, 1], [0, 0, 1, 1]]
    np.testing.assert_allclose(X, np.array(expected), atol=1e-15)


@pytest.mark.parametrize("scale", ["linear", "log1p"])
def test_splines_equal_sklearns_with_given_knots(scale: str) -> None:
    low, high, knots = 3.0, 5000.0, 7
    values = np.random.default_rng(0).uniform(low, high, 300)
    values[:2] = low, high
    transform = np.log1p if scale == "log1p" else np.asarray
    grid = np.linspace(transform(low), transform(high), knots)[:, None]
    twin = SplineTransformer(degree=1, knots=grid, include_bias=True).fit(grid)
    encoder = make(v={"kind": "numeric", "bounds": [low, high], "scale": scale, "knots": knots})
    X = encode(encoder, v=values.tolist())
    np.testing.assert_allclose(X[:, :-1], twin.transform(transform(values)[:, None]), atol=1e-12)


def test_indicators_equal_sklearns_with_given_categories() -> None:
    categories = ["z", "a", "m", "never seen"]
    cells = np.random.default_rng(1).choice(["z", "a", "m", "unknown"], 200)
    twin = OneHotEncoder(categories=[categories], handle_unknown="ignore", sparse_output=False)
    expected = twin.fit(np.array([["a"]])).transform(cells[:, None])
    X = encode(make(c={"kind": "categorical", "categories": categories, "on_invalid": "zero"}), c=list(cells))
    np.testing.assert_array_equal(X[:, :-1], expected)


def test_minmax() -> None:
    entry = {"kind": "numeric", "bounds": [-2, 2], "encoding": "minmax"}
    np.testing.assert_allclose(encode(make(a=entry), a=[-2, 0, 2, 9, None])[:, 0], [0, 0.5, 1, 1, 0])
    money = {"kind": "numeric", "bounds": [0, math.e**2 - 1], "scale": "log1p", "encoding": "minmax"}
    np.testing.assert_allclose(encode(make(a=money), a=[0, math.e - 1, math.e**2 - 1])[:, 0], [0, 0.5, 1])
    assert Encoder(make(a=NUMBER, m=MONEY).schema, spline=False).n_features == 3


def test_numbers_that_are_none_give_zeros_and_infinity_is_clamped() -> None:
    cells = [math.nan, None, "x", "", "1_0", math.inf, -math.inf, "1e400", -7, 11, "10", Decimal("2.5")]
    X, valid, counts = make(a=NUMBER).transform(pd.DataFrame({"a": cells}))
    zero, first, last = [0, 0, 0, 1], [1, 0, 0, 1], [0, 0, 1, 1]
    expected = [zero] * 5 + [last, first, last, first, last, last, [0.5, 0.5, 0, 1]]
    np.testing.assert_allclose(X, np.array(expected), atol=1e-15)
    assert valid.all()
    assert counts == {"a": {"missing": 5, "outside": 5}}


@pytest.mark.parametrize("policy", ["drop", "error"])
def test_dropped_records_are_zero_rows(policy: str) -> None:
    encoder = make(a={**NUMBER, "on_invalid": policy}, t={**TOWN, "on_invalid": policy})
    X, valid, _ = encoder.transform(pd.DataFrame({"a": [1, math.nan, 11, 3, math.inf], "t": ["a", "a", "b", "?", "b"]}))
    assert valid.tolist() == [True, False, False, False, False]
    assert not X[1:].any()
    assert X[0].any()


def test_unknown_categories() -> None:
    cells = ["a", "?", None, "other", " b "]
    extra = encode(make(t=TOWN), t=cells)
    np.testing.assert_array_equal(extra[:, :-1], [[1, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 1, 0]])
    declared = encode(make(t={"kind": "categorical", "categories": ["a", "other", "b"]}), t=cells)
    np.testing.assert_array_equal(declared[:, :-1], [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]])
    zero = encode(make(t={**TOWN, "on_invalid": "zero"}), t=cells)
    np.testing.assert_array_equal(zero[:, :-1], [[1, 0], [0, 0], [0, 0], [0, 0], [0, 1]])


def test_a_constant_column_and_a_category_that_never_occurs_change_nothing() -> None:
    encoder = make(a=NUMBER, t=TOWN)
    X, valid, _ = encoder.transform(pd.DataFrame({"a": [5.0] * 4, "t": ["a"] * 4}))
    assert X.shape == (4, encoder.n_features) == (4, 3 + 3 + 1)
    assert valid.all()


def test_labels_outside_the_classes_are_marked() -> None:
    y, known = make(a=NUMBER).target(pd.Series(["yes", "no", "maybe", None, " yes"]))
    assert y.tolist() == [1, 0, 0, 0, 1]
    assert known.tolist() == [True, True, False, False, True]
    y, known = make(a=NUMBER).target(pd.Series(["no", "no"]))  # one class only
    assert y.tolist() == [0, 0]
    assert known.all()


def test_whole_number_classes_match_whatever_the_column_became() -> None:
    """A missing label turns a column of whole numbers into floats; the other labels must not care."""
    for cells in ([0, 1, 2], [0.0, 1.0, 2.0, math.nan], ["0", "1", "2"], ["0.0", "1.0", "2"]):
        assert lookup(pd.Series(cells), (0, 1, 2))[:3].tolist() == [0, 1, 2]


def test_mixed_objects_do_not_stand_for_each_other() -> None:
    """1, 1.0 and True are equal, and which of them came first must not matter."""
    cells: list[Any] = [True, 1, 1.0, "1", None, 2]
    forward = lookup(pd.Series(cells, dtype=object), (1, 2))
    backward = lookup(pd.Series(cells[::-1], dtype=object), (1, 2))[::-1]
    assert forward.tolist() == backward.tolist() == [0, 0, 0, 0, -1, 1]
    assert numbers(pd.Series([True, "x", 2.5], dtype=object))[[0, 2]].tolist() == [1.0, 2.5]


def test_names_are_unique_and_as_many_as_features() -> None:
    encoder = make(a=NUMBER, m=MONEY, t=TOWN)
    assert len(set(encoder.feature_names)) == len(encoder.feature_names) == encoder.n_features
    assert encoder.feature_names[:3] == ("a[0]", "a[5]", "a[10]")
    assert encoder.feature_names[-1] == "(constant)"


def test_missing_column_gives_the_closest_name() -> None:
    with pytest.raises(DataError, match=r"no column 'town'.*Did you mean 'Town'"):
        make(town=TOWN).transform(pd.DataFrame({"Town": ["a"]}))


CELLS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-5, 2000),
    st.sampled_from(["a", "b", "other", "?", "", "5", "7.5", "nan", "1_000"]),
    st.none(),
    st.booleans(),
)
ROW = st.tuples(CELLS, CELLS, CELLS)
STRICT = make(1.0, a=NUMBER, m=MONEY, t=TOWN)


def frame(rows: list[tuple[Any, Any, Any]], dtype: Any = object) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series([row[k] for row in rows], dtype=dtype) for k, name in enumerate("amt")})


@settings(max_examples=100, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=12))
def test_a_row_is_encoded_the_same_whatever_the_others_are(rows: list[tuple[Any, Any, Any]]) -> None:
    together = STRICT.transform(frame(rows))[0]
    for position, row in enumerate(rows):
        alone = STRICT.transform(frame([row]))[0][0]
        np.testing.assert_array_equal(together[position], alone)


@settings(max_examples=100, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=12), st.floats(1e-3, 100))
def test_no_row_is_longer_than_the_norm_bound(rows: list[tuple[Any, Any, Any]], bound: float) -> None:
    encoder = make(bound, a=NUMBER, m=MONEY, t=TOWN)
    X = encoder.transform(frame(rows))[0]
    assert np.isfinite(X).all()
    assert (np.linalg.norm(X, axis=1) <= bound * (1 + 1e-12)).all()


def test_rows_within_the_bound_are_not_scaled() -> None:
    assert encode(make(2.0, a=NUMBER), a=[5.0]).tolist() == [[0, 1, 0, 1]]
    assert np.linalg.norm(encode(make(1.0, a=NUMBER), a=[5.0])) == pytest.approx(1.0, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=64), min_size=3, max_size=3), max_size=8),
    st.floats(1e-6, 1e6),
)
def test_clip_rows_bounds_every_finite_row_and_keeps_its_direction(rows: list[list[float]], bound: float) -> None:
    before = np.array(rows).reshape(-1, 3)
    after = clip_rows(before.copy(), bound)
    for old, new in zip(before, after, strict=True):
        assert math.hypot(*new) <= bound * (1 + 1e-12)
        if math.hypot(*old) <= bound * (1 - 1e-12):
            np.testing.assert_array_equal(new, old)
        else:
            largest = np.abs(old).max()
            unit = (old / largest) / math.hypot(*(old / largest))
            np.testing.assert_allclose(new, bound * unit, rtol=1e-9, atol=1e-9 * bound)


def test_clip_rows_works_for_any_memory_layout() -> None:
    X = np.asfortranarray(np.full((5, 3), 7.0))
    assert np.linalg.norm(clip_rows(X, 1.0), axis=1).max() <= 1.0
    assert np.linalg.norm(clip_rows(np.full((6, 4), 7.0)[::2, ::2], 1.0), axis=1).max() <= 1.0
    assert clip_rows(np.empty((0, 4)), 1.0).shape == (0, 4)


# ---------------------------------------------------------------------------------------------------- sparse


def canonical(X: Any) -> bool:
    """CSR float64 with sorted columns, no entry twice, no zero; found out afresh, not from flags."""
    fresh = sparse.csr_array((X.data, X.indices, X.indptr), shape=X.shape)
    return bool(X.format == "csr" and X.dtype == np.float64 and fresh.has_canonical_format and (X.data != 0.0).all())


@settings(max_examples=100, deadline=None)
@given(st.lists(ROW, max_size=12), st.sampled_from([1e-3, 1.0, 100.0]), st.sampled_from(["other", "zero", "drop"]))
def test_sparse_rows_are_the_dense_ones_to_the_last_bit(rows: list[tuple[Any, ...]], bound: float, policy: str) -> None:
    town = {**TOWN, "on_invalid": policy}
    encoder = make(bound, a={"kind": "numeric", "bounds": [0, 10], "encoding": "minmax"}, m=MONEY, t=town)
    dense, thin = encoder.transform(frame(rows)), encoder.transform(frame(rows), sparse=True)
    assert canonical(thin[0])
    assert thin[0].shape == (len(rows), encoder.n_features)
    np.testing.assert_array_equal(thin[0].toarray(), dense[0])
    np.testing.assert_array_equal(thin[1], dense[1])
    assert thin[2] == dense[2]


def test_dense_rows_by_a_slow_twin() -> None:
    """Cell by cell from the definitions: hat functions, indicators, constant, then the clipping."""
    encoder = make(1.0, a=NUMBER, t=TOWN)
    cells = {"a": [0, 1.25, 9.9, None, 50], "t": ["a", "b", "?", "a", None]}
    for position in range(5):
        value, town = cells["a"][position], cells["t"][position]
        hats = [0.0] * 3 if value is None else [max(0.0, 1 - abs(min(value, 10) - k) / 5) for k in (0, 5, 10)]
        row = np.array([*hats, town == "a", town == "b", town not in ("a", "b"), 1.0], dtype=float)
        row /= max(1.0, np.linalg.norm(row))
        for sparsely in (False, True):
            X = encoder.transform(pd.DataFrame(cells), sparse=sparsely)[0]
            got = X.toarray()[position] if sparsely else X[position]
            np.testing.assert_allclose(got, row, atol=1e-13)


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.uniform(-1, 11, 50), "t": rng.choice(["a", "b", "?"], 50)})
    whole = make(1.0, a=NUMBER, t=TOWN).transform(table, sparse=True)[0]
    monkeypatch.setattr("dpml.data.encoder._CHUNK", 7)
    blocks = make(1.0, a=NUMBER, t=TOWN).transform(table, sparse=True)[0]
    np.testing.assert_array_equal(whole.toarray(), blocks.toarray())


def test_regression_targets() -> None:
    schema = {"n_declared": 9, "target": {"name": "y", "bounds": [10, 30]}, "norm_bound": 1.0, "columns": {"a": NUMBER}}
    y, known = Encoder(Schema.from_dict(schema)).target(pd.Series(["10", "25", "x", "inf", None, "-4", "20"]))
    np.testing.assert_allclose(y, [-1.0, 0.5, 0.0, 1.0, 0.0, -1.0, 0.0])
    assert known.tolist() == [True, True, False, True, False, True, True]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.one_of(st.just(0.0), st.floats(width=64)), min_size=3, max_size=3), max_size=8),
    st.sampled_from([1.0, 0.25, 1e300]),
    st.booleans(),
    st.sampled_from([None, 1e-3, 1.0, 1e6]),
)
def test_sparse_arrays_are_transformed_as_dense_ones(
    rows: list[list[float]], scale: float, constant: bool, bound: float | None
) -> None:
    """Any numbers, NaN and infinity too; norms are added up in another order, hence a tolerance."""
    X = np.array(rows).reshape(-1, 3)
    preprocessing = json.loads(json.dumps(array_preprocessing((3,), scale=scale, constant=constant, norm_bound=bound)))
    dense, valid = transform_array(X, preprocessing)
    for kind in (sparse.csr_array, sparse.csc_matrix, sparse.coo_array):
        thin, thin_valid = transform_array(kind(X), preprocessing)
        assert canonical(thin)
        np.testing.assert_array_equal(thin_valid, valid)
        np.testing.assert_allclose(thin.toarray(), dense, rtol=1e-13, atol=1e-320)
        if bound is not None:
            assert (sparse.linalg.norm(thin, axis=1) <= bound * (1 + 1e-12)).all()


def test_a_sparse_row_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 5)) * (rng.random((60, 5)) < 0.5) * np.exp(rng.normal(size=(60, 1)) * 2)
    X[7, 2], X[8, 0] = np.nan, 1e200
    preprocessing = array_preprocessing((5,), constant=True, norm_bound=1.0)
    together = transform_array(sparse.csr_array(X), preprocessing)[0].toarray()
    for i in range(60):
        alone = transform_array(sparse.csr_array(X[i : i + 1]), preprocessing)[0].toarray()
        np.testing.assert_array_equal(together[i], alone[0])


def test_sparse_entries_given_twice_are_added_and_the_input_stays() -> None:
    X = sparse.csr_array((np.array([0.8, 0.8, np.inf, -np.inf]), np.array([1, 1, 0, 0]), np.array([0, 2, 4])), (2, 2))
    X.has_canonical_format = True  # a flag that lies
    rows, valid = transform_array(X, array_preprocessing((2,), norm_bound=1.0))
    np.testing.assert_allclose(rows.toarray(), [[0.0, 1.0], [0.0, 0.0]], rtol=1e-12)
    assert valid.tolist() == [True, False]
    assert X.nnz == 4


def test_a_wide_sparse_array_is_never_made_dense() -> None:
    X = sparse.csr_array((np.full(3, 5.0), np.array([0, 7, 999_999]), np.r_[0, 2, np.full(999_999, 3)]), (10**6, 10**6))
    rows, valid = transform_array(X, array_preprocessing((10**6,), norm_bound=1.0, constant=True))
    assert rows.nnz == 3 + 10**6
    assert valid.all()


@pytest.mark.parametrize(
    ("X", "shape", "message"),
    [
        (sparse.csr_array(np.eye(3)), (2,), "shape"),
        (sparse.csr_array(np.eye(4)), (2, 2), "two-dimensional"),
        (sparse.coo_array(np.ones(3)), (3,), "two-dimensional"),
        (sparse.csr_array(np.eye(2) * 1j), (2,), "does not hold numbers"),
    ],
)
def test_sparse_arrays_that_do_not_fit_are_refused(X: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        transform_array(X, array_preprocessing(shape))


def test_a_broken_sparse_array_is_refused() -> None:
    X = sparse.csr_array(np.eye(2))
    X.indices[:] = 9
    with pytest.raises(DataError, match="no valid sparse array"):
        transform_array(X, array_preprocessing((2,)))


def test_an_unknown_text_is_not_the_category_nan():
    """As it once was: what spells no number was looked up as the text of NaN."""
    found = lookup(pd.Series(["weird", "no", "nan", "3.0", ""]), ("nan", "3"))
    assert found.tolist() == [-1, -1, 0, 1, -1]


@pytest.mark.parametrize("backend", ["numpy_nullable", "pyarrow", None])
def test_bytes_that_are_no_text_stop_nothing(backend, tmp_path):
    """Parquet keeps any bytes in a column of texts; pandas raises when it makes a text of them."""
    raw = pa.array([b"x", b"\xff\xfe", b"y", None], type=pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 4, raw.buffers())
    pq.write_table(pa.table({"a": texts}), tmp_path / "odd.parquet")
    more = {} if backend is None else {"dtype_backend": backend}
    cells = pd.read_parquet(tmp_path / "odd.parquet", **more)["a"]
    assert lookup(cells, ("x", "y")).tolist() == [0, -1, 1, -1]
    assert np.isnan(numbers(cells)).all()
