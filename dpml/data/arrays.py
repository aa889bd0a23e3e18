"""Numbers in memory and map-style datasets as :class:`PrivateData`.

Only shapes and types are looked at before :meth:`PrivateData.load`.  A record that cannot be used (NaN, infinity,
unknown label, another shape) contributes nothing; that is decided record by record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError, invalid
from .columns import check_classes
from .private_data import CoinSource, PrivateData, PublicInfo, Records, nonempty
from .transform import array_preprocessing, transform_array


def array_data(
    X: Any,
    y: Any,
    *,
    norm_bound: float | None,
    classes: Iterable[Any],
    n_declared: int,
    X_test: Any = None,
    y_test: Any = None,
    is_public: bool = False,
    name: str = "arrays",
    add_constant: bool = False,
    source: dict[str, Any] | None = None,
) -> PrivateData:
    """See :meth:`PrivateData.from_arrays`."""
    labels = check_classes(classes)
    bound = _norm_bound(norm_bound)
    shape = _checked(X, y, labels, "X", "y")
    has_test = X_test is not None or y_test is not None
    if has_test:
        if X_test is None or y_test is None:
            missing = "X_test" if X_test is None else "y_test"
            raise DataError(f"{missing} is missing: give X_test and y_test together.")
        test_shape = _checked(X_test, y_test, labels, "X_test", "y_test")
        if test_shape != shape:
            raise DataError(f"X_test has rows of shape {test_shape}, X of shape {shape}. They must agree.")
    public = _public(name, n_declared, shape, labels, bound, is_public, has_test, add_constant, source)

    def read(noise: CoinSource) -> Records:
        nonempty(len(X), "X")
        train = usable(X, _plain(y), public)
        if not has_test:
            return Records(train[0], train[1], private_notes={"train": train[2]})
        test = usable(X_test, _plain(y_test), public)
        return Records(train[0], train[1], test[0], test[1], {"train": train[2], "test": test[2]})

    return PrivateData(public, read)


def dataset_data(
    dataset: Any,
    *,
    n_declared: int,
    classes: Iterable[Any] | None = None,
    feature_shape: int | tuple[int, ...] | None = None,
    norm_bound: float | None = None,
    test: Any = None,
    is_public: bool = False,
    name: str = "dataset",
    add_constant: bool = False,
) -> PrivateData:
    """See :meth:`PrivateData.from_dataset`."""
    for argument, value in (("dataset", dataset), ("test", test)):
        if value is not None and not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
            raise DataError(
                f"{argument} is a {type(value).__name__}, no map-style dataset: it needs __len__ and __getitem__. "
                "Turn an iterable into a list of (x, y) first."
            )
    labels = _dataset_classes(dataset, classes)
    shape = _dataset_shape(dataset, feature_shape)
    bound = _norm_bound(norm_bound)
    public = _public(name, n_declared, shape, labels, bound, is_public, test is not None, add_constant, None)

    def read(noise: CoinSource) -> Records:
        nonempty(len(dataset), "The dataset")
        train = usable(*_items(dataset, shape), public)
        if test is None:
            return Records(train[0], train[1], private_notes={"train": train[2]})
        held_out = usable(*_items(test, shape), public)
        return Records(train[0], train[1], held_out[0], held_out[1], {"train": train[2], "test": held_out[2]})

    return PrivateData(public, read)


def usable(X: Any, y: Iterable[Any], public: PublicInfo) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """The records that contribute: rows (m, ...), class indexes (m,) int64, and private counts."""
    index = {label: position for position, label in enumerate(public.classes)}
    codes = np.fromiter((_index(index, label) for label in y), dtype=np.int64)
    rows, finite = transform_array(X, public.preprocessing)
    keep = finite & (codes >= 0)
    notes = {
        "records": len(rows),
        "used": int(keep.sum()),
        "not_finite": int((~finite).sum()),
        "unknown_labels": int((codes < 0).sum()),
    }
    return (rows, codes, notes) if keep.all() else (rows[keep], codes[keep], notes)


def _index(index: dict[Any, int], label: Any) -> int:
    try:
        return index.get(label, -1)
    except TypeError:  # a label that cannot be a key, a list say
        return -1


def check_n_declared(n_declared: Any) -> int:
    """``n_declared`` if it is a whole number > 0, else ``ConfigError``."""
    if isinstance(n_declared, bool) or not isinstance(n_declared, int | np.integer) or n_declared <= 0:
        raise invalid(
            "n_declared", n_declared, "a whole number > 0", "Give a public nominal number of records, not the count."
        )
    return int(n_declared)


def _public(
    name: str,
    n_declared: Any,
    shape: tuple[int, ...],
    classes: tuple[Any, ...],
    bound: float | None,
    is_public: bool,
    has_test: bool,
    add_constant: bool,
    source: dict[str, Any] | None,
) -> PublicInfo:
    preprocessing = array_preprocessing(shape, constant=bool(add_constant), norm_bound=bound)
    if add_constant:
        if len(shape) != 1:
            raise invalid(
                "add_constant", True, "False for rows that are no vectors", "Layers have a bias of their own."
            )
        shape = (shape[0] + 1,)
    return PublicInfo(
        name=name,
        n_declared=check_n_declared(n_declared),
        n_features=math.prod(shape),
        classes=classes,
        norm_bound=bound,
        is_public=bool(is_public),
        test_is_public=bool(is_public) and has_test,
        has_test=has_test,
        source=source or {"kind": "arrays", "split": "declared test records" if has_test else "none"},
        feature_shape=shape,
        preprocessing=preprocessing,
    )


def _norm_bound(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < math.inf:
        raise invalid("norm_bound", value, "a finite number > 0, or None for rows that are not clipped")
    return float(value)


# --------------------------------------------------------------------------------------- arrays: shapes, types


def _checked(X: Any, y: Any, classes: tuple[Any, ...], X_name: str, y_name: str) -> tuple[int, ...]:
    """Shape of one row; ``DataError`` where shapes or types do not fit.  No value is looked at."""
    if type(X).__module__.startswith("scipy.sparse"):
        raise DataError(f"{X_name} is a sparse matrix. Give {X_name}.toarray().")
    shape, lengths = _shape(X, X_name), _shape(y, y_name)
    if len(shape) < 2:
        raise DataError(f"{X_name} has shape {shape}; it must be (n, d) or (n, ...), one row a record.")
    if math.prod(shape[1:]) == 0:
        raise DataError(f"{X_name} has shape {shape}: its rows hold no feature.")
    if len(lengths) != 1:
        raise DataError(f"{y_name} has shape {lengths}; it must be (n,), one label a record.")
    if shape[0] != lengths[0]:
        raise DataError(f"{X_name} and {y_name} have different lengths. Give one label a record.")
    kind = getattr(getattr(y, "dtype", None), "kind", "O")
    texts = [isinstance(label, str) for label in classes]
    if (kind in "iufb" and all(texts)) or (kind in "US" and not any(texts)):
        raise DataError(
            f"{y_name} has type {y.dtype}, the classes {list(classes)!r} have another: no label could match. "
            "Declare the classes as they stand in the labels."
        )
    return tuple(int(size) for size in shape[1:])


def _shape(values: Any, name: str) -> tuple[int, ...]:
    try:
        return tuple(np.shape(values))
    except ValueError as error:
        raise DataError(f"{name} is ragged: its rows have different lengths.") from error


def _plain(y: Any) -> list[Any]:
    return np.asarray(y).tolist() if hasattr(y, "dtype") else list(y)


# ----------------------------------------------------------------------------------------------------- datasets


def _dataset_classes(dataset: Any, classes: Iterable[Any] | None) -> tuple[Any, ...]:
    if classes is not None:
        return check_classes(classes)
    names = getattr(dataset, "classes", None)
    if names is None:
        raise ConfigError(
            "classes is missing: list every possible label (those that occur are private), for example range(10)."
        )
    return check_classes(range(len(names)))


def _dataset_shape(dataset: Any, feature_shape: int | tuple[int, ...] | None) -> tuple[int, ...]:
    if feature_shape is None:
        tensors = getattr(dataset, "tensors", None)
        if not tensors:
            raise ConfigError(
                "feature_shape is missing: give the public shape of one x, for example (1, 28, 28); it cannot be "
                "found out without reading a record."
            )
        feature_shape = tuple(tensors[0].shape[1:])
    shape = (feature_shape,) if isinstance(feature_shape, int) else tuple(feature_shape)
    if not shape or any(isinstance(s, bool) or not isinstance(s, int) or s < 1 for s in shape):
        raise invalid("feature_shape", feature_shape, "one or more whole numbers > 0")
    return shape


def _items(dataset: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, list[Any]]:
    """All items: X (n, ...) float64, with NaN where an item has another shape, and the labels."""
    X = np.full((len(dataset), *shape), np.nan)
    y: list[Any] = [None] * len(dataset)
    for position in range(len(dataset)):
        try:
            x, label = dataset[position]
        except (TypeError, ValueError) as error:
            raise DataError(f"Item {position} of the dataset is no pair (x, y): {error}.") from error
        values = np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)
        if values.shape == shape and values.dtype.kind in "iufb":
            X[position] = values
            y[position] = _label(label)
    return X, y


def _label(label: Any) -> Any:
    """A plain label of an array or tensor that holds a single one; anything else as it is."""
    try:
        return label.item()
    except (AttributeError, ValueError, RuntimeError):
        return label
