"""The data sets that dpml knows by name.  All are public; each says where it comes from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError, invalid
from . import idx
from .arrays import usable
from .columns import closest
from .image_source import image_data
from .images import check_features
from .images.rows import PIXELS, Progress
from .private_data import CoinSource, PrivateData, PublicInfo, Records, nonempty
from .schema import Schema
from .table import table_data
from .transform import array_preprocessing

BUNDLED = ("adult",)
FASHION_MNIST_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of the Debian package dataset-fashion-mnist
FASHION_MNIST_STEMS = {
    "X": "train-images-idx3-ubyte",
    "y": "train-labels-idx1-ubyte",
    "X_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
DIGITS_TOTAL = 1797
SYNTHETIC_BOUNDS = (0.0, 100.0)
DIABETES_TOTAL = 442
DIABETES_BOUNDS = (0.0, 400.0)  # disease progression one year on; the published values run from 25 to 346
DIABETES_SCALE = 5.0  # the published columns have standard deviation 1/√442
DIGITS_EVERY = 5  # rows with index % 5 == 4 are test records: a public rule


def package_folder() -> Path:
    """Folder of the package's data files (an installed package is a folder, never a zip file)."""
    return Path(str(resources.files(__package__)))


def bundled(name: str = "adult", *, spline: bool = True) -> PrivateData:
    """A table that comes with dpml.

    ``"adult"``: Becker and Kohavi (1996), doi 10.24432/C5XW20, CC BY 4.0; 36,177 training and 9,045 test records.
    """
    if name not in BUNDLED:
        raise ConfigError(
            f"There is no bundled data set {name!r}.{closest(str(name), BUNDLED)} There is: {', '.join(BUNDLED)}."
        )
    folder = package_folder() / name
    return table_data(
        folder / "train.parquet",
        folder / "schema.json",
        folder / "test.parquet",
        spline=spline,
        source={"licence": "CC BY 4.0", "doi": "10.24432/C5XW20"},
    )


def census_income(folder: str | Path, *, spline: bool = True) -> PrivateData:
    """Census-Income (KDD), UCI (2000), doi 10.24432/C5N30T: ``train.parquet`` and ``test.parquet`` in ``folder``.

    Columns are those of the published files without the instance weight, the target is ``income`` with the classes
    ``<=50K`` and ``>50K``; the schema comes with dpml.
    """
    where = Path(folder)
    for name in ("train.parquet", "test.parquet"):
        if not (where / name).is_file():
            raise DataError(
                f"folder = {str(folder)!r} has no {name}. Get Census-Income (KDD) from the UCI repository "
                "(doi 10.24432/C5N30T) and save its two parts as train.parquet and test.parquet there."
            )
    schema = Schema.load(package_folder() / "census_income_schema.json")
    data = table_data(
        where / "train.parquet",
        schema,
        where / "test.parquet",
        spline=spline,
        source={"licence": "CC BY 4.0", "doi": "10.24432/C5N30T"},
    )
    data.public = replace(data.public, default_delta=1e-6)
    return data


def digits(features: str = PIXELS) -> PrivateData:
    """scikit-learn's 1,797 digits of 8 × 8 pixels, divided by their largest value 16, a constant, clipped to norm 1.

    ``features``: another map than that (:mod:`dpml.data.images`).
    """
    check_features(features)
    test_rows = (np.arange(DIGITS_TOTAL) % DIGITS_EVERY) == DIGITS_EVERY - 1
    public = _image_info(
        "digits",
        int((~test_rows).sum()),
        (8, 8),
        16.0,
        "UCI Optical Recognition of Handwritten Digits as in scikit-learn, CC BY 4.0; rows with index % 5 = 4 for test",
    )

    def parts() -> dict[str, np.ndarray]:
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        held_out = (np.arange(len(X)) % DIGITS_EVERY) == DIGITS_EVERY - 1
        return {"X": X[~held_out], "y": y[~held_out], "X_test": X[held_out], "y_test": y[held_out]}

    return _image_source(public, features, (8, 8), 16.0, parts)


def diabetes() -> PrivateData:
    """scikit-learn's diabetes data: 442 patients, 10 standardised measurements, disease progression after a year.

    Efron, Hastie, Johnstone & Tibshirani (2004), "Least angle regression", as distributed with scikit-learn.  Rows are
    the published columns times 5, a constant, clipped to norm 1.
    """
    test_rows = (np.arange(DIABETES_TOTAL) % DIGITS_EVERY) == DIGITS_EVERY - 1
    public = PublicInfo(
        name="diabetes",
        n_declared=int((~test_rows).sum()),
        n_features=11,
        classes=(),
        norm_bound=1.0,
        is_public=True,
        test_is_public=True,
        has_test=True,
        preprocessing=array_preprocessing((10,), scale=DIABETES_SCALE, constant=True, norm_bound=1.0),
        source={
            "kind": "arrays",
            "description": "Diabetes, Efron et al. (2004), as in scikit-learn; rows with index % 5 = 4 for test",
        },
        target_bounds=DIABETES_BOUNDS,
    )

    def read(noise: CoinSource, sparse: bool = False) -> Records:
        from sklearn.datasets import load_diabetes

        X, y = load_diabetes(return_X_y=True)
        return _train_and_test(X[~test_rows], y[~test_rows], X[test_rows], y[test_rows], public)

    return PrivateData(public, read)


def fashion_mnist(
    folder: str | Path | None = None,
    features: str = PIXELS,
    cache: str | Path | None = None,
    *,
    progress: Progress | None = None,
) -> PrivateData:
    """Fashion-MNIST (Xiao, Rasul, Vollgraf 2017, MIT licence): raw pixels / 255, a constant, clipped to norm 1.

    Args:
        folder: of the four IDX files.
        features: another map than that (:mod:`dpml.data.images`).
        cache, progress: where such features are kept, and who hears of them.

    Raises:
        DataError: a file is missing (the message says how to get it) or no IDX file.
        ConfigError: unknown features, or a cache that others can enter.
    """
    check_features(features)
    where = FASHION_MNIST_FOLDER if folder is None else Path(folder)
    paths: dict[str, Path] = {}
    for key, stem in FASHION_MNIST_STEMS.items():
        found = idx.find(where, stem)
        if found is None:
            raise DataError(
                f"Fashion-MNIST: {str(where)!r} has no {stem}.gz (nor {stem}). Install the Debian package "
                "dataset-fashion-mnist, or put the four IDX files of github.com/zalandoresearch/fashion-mnist in a "
                "folder and name it (data.folder=FOLDER)."
            )
        paths[key] = found
    shape = idx.read_shape(paths["X"])
    for key, dimensions in {"X": 3, "y": 1, "X_test": 3, "y_test": 1}.items():
        found_shape = idx.read_shape(paths[key])
        if len(found_shape) != dimensions or (dimensions == 3 and found_shape[1:] != shape[1:]):
            raise DataError(
                f"Fashion-MNIST: {str(paths[key])!r} does not hold {'images' if key[0] == 'X' else 'labels'}."
            )
    public = _image_info(
        "fashion_mnist", 60_000, shape[1:], 255.0, "Fashion-MNIST, Xiao, Rasul, Vollgraf (2017), MIT licence"
    )

    def read_parts() -> dict[str, np.ndarray]:
        parts = {key: idx.read(path) for key, path in paths.items()}
        for images, labels in (("X", "y"), ("X_test", "y_test")):
            nonempty(len(parts[images]), str(paths[images]))
            if len(parts[images]) != len(parts[labels]):
                raise DataError(f"Fashion-MNIST: {paths[images].name} and {paths[labels].name} differ in length.")
        return parts

    files = {key: paths[key] for key in ("X", "X_test")}
    return _image_source(public, features, shape[1:], 255.0, read_parts, files=files, cache=cache, progress=progress)


def synthetic(
    n: int = 10_000, d: int = 20, seed: int = 0, *, n_test: int | None = None, task: str = "classification"
) -> PrivateData:
    """A task made from a public seed.

    Rows are uniform directions of length √0.75, then a constant ½, so every row has norm 1 and ``n_features = d + 1``
    (clipping to norm 1 leaves them as they are).  Labels follow a logistic model whose coefficients have norm 10;
    a regression's targets, with public bounds 0 and 100, are 50 + 20 · (a standardised linear function) + 5 · noise.

    Args:
        n: training records, actual and declared.
        d: features beside the constant.
        seed: public.
        n_test: test records, default ``n // 4`` and at least 1.
        task: ``"classification"`` (binary) or ``"regression"``.
    """
    for argument, value, least in (("n", n, 1), ("d", d, 1), ("seed", seed, 0), ("n_test", n_test, 1)):
        if value is None and argument == "n_test":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise invalid(argument, value, f"a whole number ≥ {least}")
    if task not in ("classification", "regression"):
        raise invalid("task", task, "'classification' or 'regression'")
    regression = task == "regression"
    held_out = max(1, n // 4) if n_test is None else n_test
    model = "linear model with normal errors" if regression else "logistic model"
    public = PublicInfo(
        name="synthetic",
        n_declared=n,
        n_features=d + 1,
        classes=() if regression else (0, 1),
        norm_bound=1.0,
        is_public=True,
        test_is_public=True,
        has_test=True,
        preprocessing=array_preprocessing((d + 1,), norm_bound=1.0),
        source={"kind": "synthetic", "description": f"{model} on uniform directions", "seed": seed},
        target_bounds=SYNTHETIC_BOUNDS if regression else None,
    )
    draw = _linear if regression else _logistic

    def read(noise: CoinSource, sparse: bool = False) -> Records:
        rng = np.random.default_rng(seed)
        weights = rng.standard_normal(d)
        weights *= 10.0 / np.linalg.norm(weights)
        X, y = draw(rng, n, weights)
        X_test, y_test = draw(rng, held_out, weights)
        return _train_and_test(X, y, X_test, y_test, public)

    return PrivateData(public, read)


def _logistic(rng: np.random.Generator, n: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    X = _directions(rng, n, len(weights))
    y = rng.random(n) < 1.0 / (1.0 + np.exp(-(X @ weights)))
    return _with_half(X), y.astype(int)


def _linear(rng: np.random.Generator, n: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    X = _directions(rng, n, len(weights))
    standard = X @ weights / np.sqrt(0.75 * (weights @ weights) / len(weights))  # variance 1
    return _with_half(X), 50.0 + 20.0 * standard + 5.0 * rng.standard_normal(n)


def _directions(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    X: np.ndarray = rng.standard_normal((n, d))
    X *= np.sqrt(0.75) / np.linalg.norm(X, axis=1, keepdims=True)
    return X


def _with_half(X: np.ndarray) -> np.ndarray:
    return np.hstack([X, np.full((len(X), 1), 0.5)])


def _image_source(
    public: PublicInfo,
    features: str,
    shape: tuple[int, ...],
    largest: float,
    parts: Callable[[], dict[str, np.ndarray]],
    **kept: Any,
) -> PrivateData:
    """Images by their pixels, as ``public`` says, or by other features."""
    if features != PIXELS:
        return image_data(public, features, shape, largest, parts, **kept)

    def read(noise: CoinSource, sparse: bool = False) -> Records:
        return _train_and_test(**parts(), public=public)

    return PrivateData(public, read)


def _image_info(name: str, n_declared: int, image: tuple[int, ...], largest: float, description: str) -> PublicInfo:
    pixels = math.prod(image)
    return PublicInfo(
        name=name,
        n_declared=n_declared,
        n_features=pixels + 1,
        classes=tuple(range(10)),
        norm_bound=1.0,
        is_public=True,
        test_is_public=True,
        has_test=True,
        preprocessing=array_preprocessing((pixels,), scale=1.0 / largest, constant=True, norm_bound=1.0),
        source={"kind": "images", "image_shape": list(image), "description": description},
    )


def _train_and_test(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, public: PublicInfo
) -> Records:
    train = usable(X, y.tolist(), public)
    test = usable(X_test, y_test.tolist(), public)
    return Records(train[0], train[1], test[0], test[1], {"train": train[2], "test": test[2]})
