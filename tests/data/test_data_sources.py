"""The named sources: bundled Adult, Census-Income, digits, IDX files, synthetic data."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpml.data import CategoricalColumn, NumericColumn, PrivateData, Schema, idx, sources, transform_array
from dpml.errors import ConfigError, DataError
from dpml.mechanisms import FixedNoise

FOLDER = sources.package_folder()


def test_adult_is_whole_and_cited() -> None:
    data = PrivateData.bundled("adult")
    records = data.load(FixedNoise(0))
    assert data.public.n_features == 133
    assert data.public.n_declared == 36177
    assert data.public.classes == ("<=50K", ">50K")
    assert data.public.is_public
    assert data.public.test_is_public
    assert records.X.shape == (36177, 133)
    assert records.X_test is not None
    assert records.X_test.shape == (9045, 133)
    assert records.private_notes["train"]["columns"] == {}, "every cell of the bundled table fits its schema"
    assert records.private_notes["test"]["columns"] == {}
    # UCI's description: 11,208 of the 45,222 complete records earn more than 50K
    assert int(records.y.sum() + records.y_test.sum()) == 11_208  # type: ignore[union-attr]
    assert np.linalg.norm(records.X, axis=1).max() <= 1 + 1e-12
    assert "10.24432/C5XW20" in (FOLDER / "adult" / "README.md").read_text("utf-8")
    assert "creativecommons.org/licenses/by/4.0" in (FOLDER / "adult" / "LICENSE-CC-BY-4.0.txt").read_text("utf-8")


def test_adult_rows_equal_a_slow_twin() -> None:
    """Features of 200 records by loops over the schema's own words."""
    schema = json.loads((FOLDER / "adult" / "schema.json").read_text("utf-8"))
    frame = pd.read_parquet(FOLDER / "adult" / "test.parquet").head(200)
    expected = []
    for _, row in frame.iterrows():
        features: list[float] = []
        for name, column in schema["columns"].items():
            if column["kind"] == "numeric":
                scale = np.log1p if column["scale"] == "log1p" else float
                low, high = (scale(bound) for bound in column["bounds"])
                knots = np.linspace(low, high, column["knots"])
                width = knots[1] - knots[0]
                value = scale(min(max(row[name], column["bounds"][0]), column["bounds"][1]))
                features += [max(0.0, 1 - abs(value - knot) / width) for knot in knots]
            elif column["kind"] == "categorical":
                features += [float(row[name] == category) for category in column["categories"]]
        features.append(1.0)
        norm = float(np.linalg.norm(features))
        expected.append(np.array(features) / max(1.0, norm))
    encoder = PrivateData.bundled().encoder
    assert encoder is not None
    np.testing.assert_allclose(encoder.transform(frame)[0], expected, atol=1e-12)


def test_minmax_encoding_is_part_of_the_saved_schema() -> None:
    data = PrivateData.bundled("adult", spline=False)
    assert data.public.n_features == 5 + 98 + 1
    assert data.public.schema is not None
    assert Schema.from_dict(data.public.schema) == data.encoder.schema  # type: ignore[union-attr]


def test_unknown_bundled_name() -> None:
    with pytest.raises(ConfigError, match=r"no bundled data set 'adlut'.*Did you mean 'adult'"):
        PrivateData.bundled("adlut")


def census_frame(n: int) -> pd.DataFrame:
    """Made-up records in the format of Census-Income: categoricals as dictionary columns."""
    schema = Schema.load(FOLDER / "census_income_schema.json")
    rng = np.random.default_rng(n)
    cells: dict[str, Any] = {}
    for column in schema.columns:
        if isinstance(column, NumericColumn):
            cells[column.name] = rng.integers(int(column.bounds[0]), int(column.bounds[1]) + 1, n).astype("int32")
        elif isinstance(column, CategoricalColumn):
            cells[column.name] = pd.Categorical(rng.choice(column.categories, n))
        else:
            cells[column.name] = pd.Categorical(["94"] * n)
    cells["income"] = pd.Categorical(rng.choice(["<=50K", ">50K"], n))
    return pd.DataFrame(cells)


def test_census_income(tmp_path: Path) -> None:
    census_frame(60).to_parquet(tmp_path / "train.parquet")
    census_frame(20).to_parquet(tmp_path / "test.parquet")
    data = PrivateData.census_income(tmp_path)
    records = data.load(FixedNoise(0))
    assert data.public.n_features == 347
    assert data.public.n_declared == 199_523
    assert data.public.test_is_public
    assert records.X.shape == (60, 347)
    assert records.X_test.shape == (20, 347)  # type: ignore[union-attr]
    assert records.private_notes["train"]["columns"] == {}
    money = [c.name for c in data.encoder.schema.features if isinstance(c, NumericColumn) and c.scale == "log1p"]  # type: ignore[union-attr]
    assert money == ["wage-per-hour", "capital-gains", "capital-losses", "dividends-from-stocks"]


def test_census_income_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no train\.parquet.*10\.24432/C5N30T"):
        PrivateData.census_income(tmp_path)


def test_digits_are_split_by_a_public_rule() -> None:
    data = PrivateData.digits()
    records = data.load(FixedNoise(0))
    assert data.public.n_declared == len(records.X) == 1438
    assert len(records.X_test) == 359  # type: ignore[arg-type]
    assert data.public.n_features == records.X.shape[1] == 65
    assert np.linalg.norm(records.X, axis=1).max() <= 1 + 1e-12
    assert set(records.y) == set(range(10))


def test_diabetes_is_split_by_a_public_rule() -> None:
    """Expected: the published 442 patients, progression 25 to 346 (Efron et al. 2004)."""
    data = PrivateData.diabetes()
    records = data.load(FixedNoise(0))
    assert data.public.n_declared == len(records.X) == 354
    assert len(records.X_test) == 88
    assert data.public.n_features == records.X.shape[1] == 11
    assert data.public.task == "regression"
    assert data.public.is_public
    assert data.public.test_is_public
    assert np.linalg.norm(records.X, axis=1).max() <= 1 + 1e-12
    both = np.concatenate([records.y, records.y_test])  # type: ignore[list-item]
    assert both.min() * 200 + 200 == pytest.approx(25)
    assert both.max() * 200 + 200 == pytest.approx(346)
    assert records.private_notes["train"]["used"] == 354


# ---------------------------------------------------------------------------------------------------------- IDX


def write_idx(path: Path, values: np.ndarray) -> None:
    raw = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def write_images(folder: Path, ending: str = ".gz", n: int = 30) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (n, 4, 5)), rng.integers(0, 10, n)
    for part in ("train", "t10k"):
        write_idx(folder / f"{part}-images-idx3-ubyte{ending}", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte{ending}", labels)
    return images, labels


@pytest.mark.parametrize("ending", [".gz", ""])
def test_fashion_mnist_files(tmp_path: Path, ending: str) -> None:
    images, labels = write_images(tmp_path, ending)
    data = PrivateData.fashion_mnist(tmp_path)
    records = data.load(FixedNoise(0))
    assert data.public.n_declared == 60_000
    assert data.public.n_features == 21
    assert records.y.tolist() == labels.tolist()
    raw = np.hstack([images.reshape(30, 20) / 255, np.ones((30, 1))])
    np.testing.assert_allclose(records.X, raw / np.linalg.norm(raw, axis=1, keepdims=True), rtol=1e-12)
    np.testing.assert_array_equal(transform_array(images, data.public.preprocessing)[0], records.X)


def test_fashion_mnist_reads_headers_only_before_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path)

    def trap(path: Path) -> None:
        raise AssertionError("records were read")

    monkeypatch.setattr(idx, "read", trap)
    data = PrivateData.fashion_mnist(tmp_path)
    assert data.public.n_features == 21
    with pytest.raises(AssertionError, match="records were read"):
        data.load(FixedNoise(0))


def test_fashion_mnist_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"dataset-fashion-mnist.*data\.folder=FOLDER"):
        PrivateData.fashion_mnist(tmp_path)
    monkeypatch.setattr(sources, "FASHION_MNIST_FOLDER", tmp_path)
    write_images(tmp_path)
    assert PrivateData.fashion_mnist().public.name == "fashion_mnist"


def test_damaged_idx_files(tmp_path: Path) -> None:
    images, labels = write_images(tmp_path, "")
    path = tmp_path / "train-images-idx3-ubyte"
    whole = path.read_bytes()
    for damaged, message in (
        (b"\1\2\3\4" + whole[4:], "no IDX file"),
        (whole[:2] + b"\x0d" + whole[3:], "no IDX file"),
        (whole[:10], "header is cut short"),
        (b"", "no IDX file"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=message):
            PrivateData.fashion_mnist(tmp_path)
    for damaged in (whole[:-1], whole + b"\0"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="is damaged"):
            PrivateData.fashion_mnist(tmp_path).load(FixedNoise(0))
    write_idx(path, images[:-1])
    with pytest.raises(DataError, match="differ in length"):
        PrivateData.fashion_mnist(tmp_path).load(FixedNoise(0))
    write_idx(path, labels)
    with pytest.raises(DataError, match="does not hold images"):
        PrivateData.fashion_mnist(tmp_path)
    write_idx(path, images)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match="cannot be read"):
        PrivateData.fashion_mnist(tmp_path)


# ---------------------------------------------------------------------------------------------------- synthetic


def test_synthetic_depends_on_its_public_seed_alone() -> None:
    data = PrivateData.synthetic(n=500, d=6, seed=3)
    one, again = data.load(FixedNoise(0)), PrivateData.synthetic(n=500, d=6, seed=3).load(FixedNoise(1))
    np.testing.assert_array_equal(one.X, again.X)
    np.testing.assert_array_equal(one.y, again.y)
    assert one.X.shape == (500, data.public.n_features) == (500, 7)
    assert len(one.X_test) == 125  # type: ignore[arg-type]
    np.testing.assert_allclose(np.linalg.norm(one.X, axis=1), 1.0, rtol=1e-12)
    assert not np.array_equal(one.X, PrivateData.synthetic(n=500, d=6, seed=4).load(FixedNoise(0)).X)
    assert 0.3 < one.y.mean() < 0.7


def test_synthetic_regression_has_its_published_law() -> None:
    """Standard deviation √(20² + 5²) of 100/2 units, R² of the true function 400/425; 5 and 6 standard errors wide."""
    data = PrivateData.synthetic(n=4000, d=6, seed=3, task="regression")
    records = data.load(FixedNoise(0))
    assert data.public.task == "regression"
    assert data.public.classes == ()
    assert data.public.target_bounds == (0.0, 100.0)
    assert records.y.dtype == np.float64
    assert records.y.std() * 50 == pytest.approx(np.sqrt(425), rel=0.06)
    theta = np.linalg.lstsq(records.X, records.y, rcond=None)[0]
    residual = records.X_test @ theta - records.y_test  # type: ignore[operator]
    assert 1 - residual.var() / records.y_test.var() == pytest.approx(400 / 425, abs=0.02)  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="task = 'ranking'"):
        PrivateData.synthetic(task="ranking")


@pytest.mark.parametrize("options", [{"n": 0}, {"d": 0}, {"n": 2.5}, {"seed": -1}, {"n_test": 0}])
def test_synthetic_ranges(options: dict[str, Any]) -> None:
    name = next(iter(options))
    with pytest.raises(ConfigError, match=f"{name} = .* whole number"):
        PrivateData.synthetic(**options)
