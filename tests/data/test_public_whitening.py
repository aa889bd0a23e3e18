"""Whitening by public records: the map, tables and arrays, and refusals."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import sparse
from scipy.linalg import fractional_matrix_power, sqrtm
from small_tables import SCHEMA, people, write_people
from threadpoolctl import threadpool_limits
from whitening_checks import FEATURES, arrays, correlated, expected_rows, with_public

from dpml import PrivateData
from dpml.data import PublicWhitening, public_whitening, transform_array
from dpml.data import table as table_module
from dpml.data.transform import array_preprocessing
from dpml.errors import ConfigError, DataError
from dpml.mechanisms import FixedNoise


# -- the map ----------------------------------------------------------------------------------------------------------
def test_a_two_by_two_covariance_by_hand() -> None:
    """[[2, 1], [1, 2]] has eigenvalues 3 and 1 with vectors (1, ±1)/√2; their mean is 2."""
    large, small = 1.5**-0.25, 0.5**-0.25
    expected = [[(large + small) / 2, (large - small) / 2], [(large - small) / 2, (large + small) / 2]]
    made = PublicWhitening.from_covariance([[2.0, 1.0], [1.0, 2.0]], mean=[1.0, -1.0])
    np.testing.assert_allclose(made.matrix, expected, rtol=1e-14)
    rows = np.array([[1.0, -1.0], [3.0, -2.0]])
    np.testing.assert_allclose(made.apply(rows), [[0.0, 0.0], np.array([2.0, -1.0]) @ expected], atol=1e-14)


@pytest.mark.parametrize("power", [0, 0.1, 0.25, 0.5])
def test_the_matrix_is_a_fractional_power(power: float) -> None:
    covariance = np.cov(correlated(400, 6).T)
    scaled = covariance / (np.trace(covariance) / 6)
    found = PublicWhitening.from_covariance(covariance, power=power)
    np.testing.assert_allclose(found.matrix, fractional_matrix_power(scaled, -power), rtol=1e-10, atol=1e-12)
    for scale in (1e-200, 1e200):
        np.testing.assert_allclose(
            PublicWhitening.from_covariance(covariance * scale, power=power).matrix,
            found.matrix,
            rtol=1e-10,
            atol=1e-12,
        )


def test_a_direction_without_variance_is_stretched_by_the_floor() -> None:
    found = PublicWhitening.from_covariance(np.diag([1.0, 0.0]), floor=1e-4)
    np.testing.assert_allclose(found.matrix, np.diag([2**-0.25, 10.0]), rtol=1e-14, atol=1e-15)
    rounding = PublicWhitening.from_covariance([[1.0, 1e-9], [0.0, -1e-9]])  # as a computed covariance may be
    np.testing.assert_allclose(rounding.matrix, np.diag([2**-0.25, 1000**0.25]), atol=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_whitened_public_rows_have_the_square_root_of_their_covariance(seed: int) -> None:
    """Σ^(-1/4) Σ Σ^(-1/4) = Σ^(1/2), times the root of the mean eigenvalue; and mean 0.  Power 1/2 gives a sphere."""
    rows = correlated(150, 5, seed)
    covariance = np.cov(rows.T, bias=True)
    average = np.trace(covariance) / 5
    found = PublicWhitening.from_rows(rows)
    assert found.records == 150
    white = found.apply(rows)
    np.testing.assert_allclose(white.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(
        np.cov(white.T, bias=True), np.sqrt(average) * sqrtm(covariance).real, rtol=1e-8, atol=1e-10
    )
    sphere = PublicWhitening.from_rows(rows, power=0.5).apply(rows)
    np.testing.assert_allclose(np.cov(sphere.T, bias=True), average * np.eye(5), atol=1e-10)


@pytest.mark.parametrize("chunk", [7, 4096])
def test_dense_and_sparse_rows_give_the_same_bits(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_whitening, "_CHUNK", chunk)
    rows = np.where(np.random.default_rng(1).random((60, 9)) < 0.4, correlated(60, 9), 0.0)
    dense, thin = PublicWhitening.from_rows(rows), PublicWhitening.from_rows(sparse.csc_array(rows))
    assert dense == thin
    assert np.array_equal(dense.apply(rows), dense.apply(sparse.coo_array(rows)))
    np.testing.assert_allclose(dense.apply(rows), (rows - rows.mean(axis=0)) @ dense.matrix, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        dense.matrix, PublicWhitening.from_covariance(np.cov(rows.T, bias=True)).matrix, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_a_row_is_whitened_from_itself_alone(form: Callable[[np.ndarray], Any]) -> None:
    """Whatever the others are, in any order and number: the same bits."""
    rows = correlated(257, 66, 3)
    made = PublicWhitening.from_rows(correlated(300, 66, 4))
    whole = made.apply(form(rows))
    changed = rows.copy()
    changed[::2] = [1e200, *np.full(65, -1e-200)]
    assert np.array_equal(made.apply(form(changed))[1::2], whole[1::2])
    assert np.array_equal(made.apply(form(rows[::-1]))[::-1], whole)
    for k in (0, 1, 100, 256):
        assert np.array_equal(made.apply(form(rows[k : k + 1]))[0], whole[k])
    assert made.apply(form(rows[:0])).shape == (0, 66)


COVARIANCE = [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PublicWhitening.from_covariance([[1.0, 0.5], [0.4, 1.0]]), "covariance = 'an array that is not symm"),
        (lambda: PublicWhitening.from_covariance([[1.0, 2.0], [2.0, 1.0]]), "negative eigenvalue"),
        (lambda: PublicWhitening.from_covariance([[-1.0, 0.0], [0.0, -1.0]]), "negative eigenvalue"),
        (lambda: PublicWhitening.from_covariance([[1.0, np.nan], [np.nan, 1.0]]), "covariance = .*NaN"),
        (lambda: PublicWhitening.from_covariance([[1.0, np.inf], [np.inf, 1.0]]), "covariance = .*infinity"),
        (lambda: PublicWhitening.from_covariance(np.zeros((2, 2))), "different from 0 in at least one direction"),
        (lambda: PublicWhitening.from_covariance(np.ones((2, 3))), "square"),
        (lambda: PublicWhitening.from_covariance(np.ones(3)), "2 dimensions"),
        (lambda: PublicWhitening.from_covariance([["a"]]), "real numbers"),
        (lambda: PublicWhitening.from_covariance([[1j]]), "real numbers"),
        (lambda: PublicWhitening.from_covariance(COVARIANCE, mean=[0.0]), r"of shape \(1, 1\)"),
        (lambda: PublicWhitening.from_covariance(COVARIANCE, mean=[0.0, np.nan]), "mean = "),
        (lambda: PublicWhitening.from_covariance(COVARIANCE, power=0.6), "power = 0.6 .* from 0 to 0.5"),
        (lambda: PublicWhitening.from_covariance(COVARIANCE, power=True), "power = True"),
        (lambda: PublicWhitening.from_covariance(COVARIANCE, floor=0.0), "floor = 0.0"),
        (lambda: PublicWhitening.from_covariance(COVARIANCE, floor=float("nan")), "floor = nan"),
        (lambda: PublicWhitening.from_covariance(COVARIANCE, records=1), "records = 1"),
        (lambda: PublicWhitening.from_rows([[1.0, 2.0]]), "two or more rows"),
        (lambda: PublicWhitening.from_rows([[0.1, 2.0]] * 1000), "1000 equal rows"),
        (lambda: PublicWhitening.from_rows([[1.0], [np.nan]]), "rows = .*NaN"),
        (lambda: PublicWhitening.from_rows(sparse.csr_array([[1.0], [np.nan]])), "rows = .*finite"),
        (lambda: PublicWhitening.from_rows([[1e300], [-1e300]]), "rows = .*squares"),
        (lambda: PublicWhitening(np.zeros(2), np.array([[1.0, 0.1], [0.2, 1.0]])), "not symmetric"),
        (lambda: PublicWhitening(np.full(1, 1e200), np.full((1, 1), 1e200)), "mean = .*finite"),
    ],
)  # fmt: skip
def test_what_is_no_whitening_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_rows_of_another_length_are_refused() -> None:
    with pytest.raises(DataError, match=r"a whitening of 2 features takes \(n, 2\)"):
        PublicWhitening.from_covariance(COVARIANCE).apply(np.ones((4, 3)))


def test_json_gives_the_same_bits_and_nothing_can_be_written_to() -> None:
    made = PublicWhitening.from_rows(correlated(40, 7))
    back = PublicWhitening.from_dict(json.loads(json.dumps(made.to_dict())))
    assert back == made
    assert hash(back) == hash(made)
    assert (back.records, repr(back)) == (40, "PublicWhitening(features=7, records=40)")
    assert made != PublicWhitening.from_rows(correlated(40, 7, seed=1))
    rows = correlated(5, 7, 2)
    assert np.array_equal(back.apply(rows), made.apply(rows))
    with pytest.raises(ValueError, match="read-only"):
        made.matrix[0, 0] = 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": public_whitening._text(np.array([0.0, np.nan]))}, "NaN"),
        ({"matrix": public_whitening._text(np.array([1.0, 0.5, 0.4, 1.0]))}, "not symmetric"),
        ({"matrix": public_whitening._text(np.ones(3))}, "24 bytes"),
        ({"mean": "no base64!"}, "base64"),
        ({"mean": [0.0, 0.0]}, "base64"),
        ({"features": 3}, "bytes"),
        ({"features": 2.0}, "whole number"),
        ({"features": True}, "whole number"),
        ({"records": 1}, "records = 1"),
        ({"records": True}, "records"),
        ({"version": 2}, "version"),
        ({"more": 1}, "an object with the keys"),
    ],
)
def test_a_damaged_object_is_refused(change: dict[str, Any], message: str) -> None:
    values = PublicWhitening.from_covariance(COVARIANCE, records=9).to_dict()
    assert PublicWhitening.from_dict(values).records == 9
    with pytest.raises(ConfigError, match=message):
        PublicWhitening.from_dict({**values, **change})


def test_an_object_without_a_key_or_of_another_type_is_refused() -> None:
    values = PublicWhitening.from_covariance(COVARIANCE).to_dict()
    for key in values:
        with pytest.raises(ConfigError, match="an object with the keys"):
            PublicWhitening.from_dict({k: v for k, v in values.items() if k != key})
    for other in (None, [], "x"):
        with pytest.raises(ConfigError, match="an object with the keys"):
            PublicWhitening.from_dict(other)


# -- tables -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bound", [1.0, 0.3, 50.0])
def test_rows_of_a_table_are_those_of_a_slow_twin(bound: float, tmp_path: Path) -> None:
    """A bound of 50 clips nothing: the constant is 1 there, whatever the whitening."""
    data = with_public(tmp_path, norm_bound=bound)
    X = data.load(FixedNoise(0)).X
    np.testing.assert_allclose(X, expected_rows(people(), people(200, seed=7), bound), rtol=1e-9, atol=1e-11)
    assert np.linalg.norm(X, axis=1).max() <= bound
    if bound == 50.0:
        assert (X[:, -1] == 1.0).all()
    assert data.public.n_features == FEATURES + 1
    assert data.public.norm_bound == bound


@pytest.mark.parametrize("seed", range(3))
def test_no_row_is_longer_than_the_bound(seed: int, tmp_path: Path) -> None:
    """Also where the public records have hardly a direction, so that others are stretched as far as the floor lets."""
    public = people(2, seed=seed).drop(columns="label")
    X = with_public(tmp_path, public, frame=people(300, seed=seed + 10), norm_bound=0.7).load(FixedNoise(0)).X
    assert np.linalg.norm(X, axis=1).max() <= 0.7
    assert np.isfinite(X).all()


def test_a_request_for_sparse_rows_gives_the_same_dense_ones(tmp_path: Path) -> None:
    data = with_public(tmp_path)
    dense = data.load(FixedNoise(0), sparse=True).X
    assert isinstance(dense, np.ndarray)
    assert np.array_equal(dense, data.load(FixedNoise(0)).X)


def test_one_record_changes_no_other_and_nothing_public(tmp_path: Path) -> None:
    frame = people()
    changed = frame.copy()
    changed.loc[3, ["age", "money", "town"]] = [99.9, 9999.0, "nowhere"]
    before, after = with_public(tmp_path / "a", frame=frame), with_public(tmp_path / "b", frame=changed)
    one, two = before.load(FixedNoise(0)).X, after.load(FixedNoise(0)).X
    others = np.arange(len(frame)) != 3
    assert np.array_equal(one[others], two[others])
    assert not np.array_equal(one[3], two[3])
    assert before.public == after.public
    shorter = with_public(tmp_path / "c", frame=frame[5:]).load(FixedNoise(0)).X
    assert np.array_equal(shorter, one[5:])


def test_formats_and_columns_beside_the_features_make_no_difference(tmp_path: Path) -> None:
    frame = people(60, seed=1)
    plain = with_public(tmp_path, frame.drop(columns="label"))
    maps = [plain.public.preprocessing["whitening"]]
    for name, table in (
        ("p.csv.gz", frame), ("p.parquet", frame), ("q.csv", frame.drop(columns="label").assign(part="train")),
    ):  # fmt: skip
        private = people().assign(part="train")
        data = with_public(tmp_path, table, name, frame=private, split_column="part")
        maps.append(data.public.preprocessing["whitening"])
    assert all(found == maps[0] for found in maps)
    assert maps[0]["records"] == 60


def test_the_map_is_that_of_the_usable_public_records(tmp_path: Path) -> None:
    columns = {**SCHEMA["columns"], "age": {**SCHEMA["columns"]["age"], "on_invalid": "drop"}}
    good = people(50, seed=2).drop(columns="label")
    bad = pd.DataFrame({"age": [400, "x"], "money": [1.0, 2.0], "town": ["a", "b"]})
    unknown = pd.DataFrame({"age": [30.0], "money": [5.0], "town": ["nowhere"]})
    data = with_public(tmp_path, pd.concat([good, bad, unknown]), columns=columns)
    clean = with_public(tmp_path / "clean", pd.concat([good, unknown]), columns=columns)
    assert data.public.preprocessing == clean.public.preprocessing
    found = data.public.source["whitening"]
    assert found["records"] == 51
    assert found["records_left_out"] == 2
    assert found["columns"]["town"] == {"unknown": 1}
    (tmp_path / "public.csv").write_text((tmp_path / "public.csv").read_text() + "1,2,a,too,many\n")
    again = PrivateData.from_table(
        tmp_path / "people.csv", schema=tmp_path / "people.json", public_path=tmp_path / "public.csv"
    )
    assert again.public.source["whitening"]["malformed_lines"] == 1
    assert again.public.preprocessing == clean.public.preprocessing


def test_the_description_has_digest_and_size_but_no_path(tmp_path: Path) -> None:
    data = with_public(tmp_path)
    found = data.public.source["whitening"]
    assert found["sha256"] == hashlib.sha256((tmp_path / "public.csv").read_bytes()).hexdigest()
    assert found["records"] == 200
    assert str(tmp_path) not in json.dumps(data.public.source)
    plain = PrivateData.from_table(tmp_path / "people.csv", schema=tmp_path / "people.json")
    assert "whitening" not in plain.public.source
    assert plain.public.preprocessing == {"kind": "table"}


def test_min_max_encoding_is_whitened_too(tmp_path: Path) -> None:
    data = with_public(tmp_path, spline=False)
    assert data.public.n_features == 1 + 1 + 4 + 1
    assert len(data.encoder.whitening.mean) == 6  # type: ignore[union-attr]
    X = data.load(FixedNoise(0)).X
    assert X.shape[1] == 7
    assert np.linalg.norm(X, axis=1).max() <= 1.0


def test_a_public_column_that_never_varies(tmp_path: Path) -> None:
    """Its directions are stretched by floor^(-1/4) and no more."""
    data = with_public(tmp_path, people(100, seed=1).drop(columns="label").assign(town="a", money=3.0), norm_bound=1e6)
    stretch = np.linalg.eigvalsh(data.encoder.whitening.matrix)  # type: ignore[union-attr]
    assert stretch.max() == pytest.approx(1000**0.25, rel=1e-9)
    assert np.linalg.norm(data.load(FixedNoise(0)).X, axis=1).max() < 1000**0.25 * 4


OPEN = {**SCHEMA["columns"], "age": {"kind": "numeric", "bounds": "private", "knots": 4}}


@pytest.mark.parametrize(
    ("content", "name", "changes", "message"),
    [
        ("age,money\n1,2\n3,4\n", "p.csv", {}, "lacks column 'town'"),
        ("age,money,town,more\n1,2,a,1\n", "p.csv", {}, "column 'more' that the schema lacks"),
        ("age,money,town\n1,2,a\n", "p.txt", {}, "unknown file type"),
        ("age,money,town\n1,2,a\n", "p.csv", {}, r"public_path = .*two or more usable records \(it has 1\)"),
        ("age,money,town\n", "p.csv", {}, r"it has 0\)"),
        ("age,money,town\n" + "1,2,a\n" * 50, "p.csv", {}, "at least one feature varies"),
        ("age,money,town\n1,2,a\n3,4,b\n", "p.csv", {"columns": OPEN}, "leaves column 'age' open .*declare bounds"),
        ("no parquet", "p.parquet", {}, "cannot be read"),
    ],
)
def test_faults_are_found_before_a_private_record_is_read(
    content: str, name: str, changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, schema = write_people(tmp_path, **changes)
    (tmp_path / name).write_text(content)
    right = table_module.read_raw

    def read(path: Path, columns: list[str]) -> Any:
        assert path != table, "a private record was read"
        return right(path, columns)

    monkeypatch.setattr(table_module, "read_raw", read)
    with pytest.raises((ConfigError, DataError), match=message):
        PrivateData.from_table(table, schema=schema, public_path=tmp_path / name)


def test_a_missing_public_file_names_the_closest(tmp_path: Path) -> None:
    table, schema = write_people(tmp_path)
    with pytest.raises(DataError, match=r"public_path = .*there is no such file\. .*people\.csv"):
        PrivateData.from_table(table, schema=schema, public_path=tmp_path / "peopel.csv")


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
@pytest.mark.parametrize("argument", ["path", "test_path"])
def test_a_private_file_is_no_public_one(argument: str, link: Any, tmp_path: Path) -> None:
    table, schema = write_people(tmp_path)
    held_out = tmp_path / "test.csv"
    people(50, seed=9).to_csv(held_out, index=False)
    same = {"path": table, "test_path": held_out}[argument]
    if link is not None:
        link(same, tmp_path / "other.csv")
        same = tmp_path / "other.csv"
    with pytest.raises(ConfigError, match=rf"public_path = .*another file than {argument}.*Give a table of public rec"):
        PrivateData.from_table(table, schema=schema, test_path=held_out, public_path=same)


# -- arrays -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("bound", [None, 1.0])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_rows_of_arrays(form: Callable[[np.ndarray], Any], bound: float | None, constant: bool) -> None:
    public, X = correlated(80, 4, 1), correlated(50, 4, 2) * 3
    made = PublicWhitening.from_rows(public)
    data = arrays(form(X), made, add_constant=constant, norm_bound=bound)
    expected = (X - public.mean(axis=0)) @ made.matrix
    expected = np.hstack([expected, np.ones((50, 1))]) if constant else expected
    if bound is not None:
        expected = expected * np.minimum(1.0, bound / np.linalg.norm(expected, axis=1))[:, None]
    for found in (data.load(FixedNoise(0)).X, data.load(FixedNoise(0), sparse=True).X):
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)
    assert data.public.source["whitening"] == {"records": 80, "map_sha256": made.digest}
    assert data.public.n_features == 4 + constant


def test_rows_that_cannot_be_whitened_contribute_nothing() -> None:
    made = PublicWhitening.from_covariance(np.eye(2) + 1, mean=[1.0, 2.0])
    X = np.array([[np.nan, 1.0], [1.7e308, 1.7e308], [np.inf, 0.0], [1e300, 0.0], [0.5, 0.5]])
    saved = array_preprocessing((2,), constant=True, norm_bound=1.0, whitening=made)
    for form in (X, sparse.csr_array(X)):
        rows, valid = transform_array(form, saved)
        assert valid.tolist()[::2] == [False, False, True]
        assert valid[3]
        assert np.isfinite(rows).all()
        assert not rows[~valid].any()
        assert np.linalg.norm(rows, axis=1).max() <= 1.0


@given(
    rows=npst.arrays(np.float64, (4, 3), elements=st.floats(allow_nan=True, allow_infinity=True, width=64)),
    spread=st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=3),
    bound=st.floats(1e-3, 1e3),
    constant=st.booleans(),
)
def test_whatever_a_row_holds_it_is_within_the_bound(
    rows: np.ndarray, spread: list[float], bound: float, constant: bool
) -> None:
    turn = np.linalg.qr(correlated(3, 3))[0]
    made = PublicWhitening.from_covariance(turn @ np.diag(spread) @ turn.T, mean=[1.0, -2.0, 0.5])
    saved = array_preprocessing((3,), constant=constant, norm_bound=bound, whitening=made)
    found, valid = transform_array(rows, saved)
    assert np.isfinite(found).all()
    assert np.linalg.norm(found, axis=1).max() <= bound
    assert not found[~valid].any()
    assert not valid[~np.isfinite(rows).all(axis=1)].any()
    assert valid[np.abs(rows).max(axis=1) < 1e300].all()


def test_scale_comes_before_the_whitening() -> None:
    made = PublicWhitening.from_covariance(np.diag([4.0, 1.0]), mean=[1.0, 0.0])
    saved = array_preprocessing((2,), scale=0.5, whitening=made)
    np.testing.assert_allclose(transform_array([[4.0, 2.0]], saved)[0], [[1.0, 1.0] @ made.matrix], rtol=1e-14)
    assert "whitening" not in array_preprocessing((2,), scale=0.5)


def test_rows_in_a_file_are_whitened_as_they_are_drawn(tmp_path: Path) -> None:
    X = correlated(50, 4, 2)
    np.save(tmp_path / "X.npy", X)
    made = PublicWhitening.from_rows(correlated(80, 4, 1))
    data = PrivateData.from_arrays(
        tmp_path / "X.npy", np.arange(50) % 2, norm_bound=1.0, classes=[0, 1], n_declared=50, whitening=made,
        add_constant=True,
    )  # fmt: skip
    stored = data.load(FixedNoise(0), lazy=True).X
    rows, _, left_out = stored.take(np.array([3, 30, 7]))
    assert left_out == 0
    assert np.array_equal(rows, arrays(X, made, add_constant=True).load(FixedNoise(0)).X[[3, 30, 7]])


@pytest.mark.parametrize(
    ("X", "whitening", "message"),
    [
        (np.ones((6, 3)), PublicWhitening.from_covariance(COVARIANCE), r"one for rows of shape \(3,\)"),
        (np.ones((6, 1, 2)), PublicWhitening.from_covariance(COVARIANCE), r"one for rows of shape \(1, 2\)"),
        (np.ones((6, 2)), COVARIANCE, "a PublicWhitening, or None"),
    ],
)
def test_a_whitening_that_does_not_fit_is_refused(X: np.ndarray, whitening: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        arrays(X, whitening)


def test_too_many_features_are_refused_before_anything_is_charged() -> None:
    """The map travels in the header of the model file, which holds 100 MB."""
    wide = public_whitening.MOST_FEATURES + 1
    for make in (
        lambda: PublicWhitening.from_rows(sparse.eye_array(3, wide, format="csr")),
        lambda: PublicWhitening.from_covariance(np.broadcast_to(1.0, (wide, wide))),
        lambda: PublicWhitening(np.zeros(wide), np.broadcast_to(0.0, (wide, wide))),
    ):
        with pytest.raises(ConfigError, match=r"2,049 features.*at most 2,048 features.*Train without whitening"):
            make()


def test_the_map_is_the_same_for_any_number_of_threads() -> None:
    rows = correlated(3000, 200, 1)
    digests = []
    for threads in (1, 2, 4):
        with threadpool_limits(threads):
            digests.append(PublicWhitening.from_rows(rows).digest)
    assert len(set(digests)) == 1


def test_a_huge_constant_column_hides_no_varying_one() -> None:
    rows = np.column_stack([np.full(50, 1e12), correlated(50, 1, 2)[:, 0]])
    assert PublicWhitening.from_rows(rows).records == 50
    with pytest.raises(ConfigError, match="50 equal rows"):
        PublicWhitening.from_rows(np.full((50, 2), 0.1))
