"""Numbers in memory and map-style datasets as :class:`PrivateData`.

Only shapes and types are looked at before :meth:`PrivateData.load`.  A record that cannot be used (NaN, infinity,
unknown label, another shape) contributes nothing; that is decided record by record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import sparse as sp

from ..errors import ConfigError, DataError, SchemaError, invalid
from .columns import check_bounds, check_classes, scaled_target
from .private_data import CoinSource, PrivateData, PublicInfo, Records, nonempty
from .transform import array_preprocessing, transform_array


def array_data(
    X: Any,
    y: Any,
    *,
    norm_bound: float | None,
    classes: Iterable[Any] | None = None,
    n_declared: int,
    target_bounds: Any = None,
    X_test: Any = None,
    y_test: Any = None,
    is_public: bool = False,
    name: str = "arrays",
    add_constant: bool = False,
    source: dict[str, Any] | None = None,
) -> PrivateData:
    """See :meth:`PrivateData.from_arrays`."""
    target = _one_target(classes, target_bounds)
    labels = () if target else check_classes(classes)
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
    public = _public(name, n_declared, shape, labels, bound, is_public, has_test, add_constant, source, target)

    def read(noise: CoinSource, sparse: bool = False) -> Records:
        nonempty(_shape(X, "X")[0], "X")
        train = usable(X, _plain(y), public, sparse=sparse)
        if not has_test:
            return Records(train[0], train[1], private_notes={"train": train[2]})
        test = usable(X_test, _plain(y_test), public, sparse=sparse)
        return Records(train[0], train[1], test[0], test[1], {"train": train[2], "test": test[2]})

    return PrivateData(public, read)


def dataset_data(
    dataset: Any,
    *,
    n_declared: int,
    classes: Iterable[Any] | None = None,
    target_bounds: Any = None,
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
    target = None if target_bounds is None else _one_target(classes, target_bounds)
    labels = () if target else _dataset_classes(dataset, classes)
    shape = _dataset_shape(dataset, feature_shape)
    bound = _norm_bound(norm_bound)
    public = _public(name, n_declared, shape, labels, bound, is_public, test is not None, add_constant, None, target)

    def read(noise: CoinSource, sparse: bool = False) -> Records:
        nonempty(len(dataset), "The dataset")
        train = usable(*_items(dataset, shape), public)
        if test is None:
            return Records(train[0], train[1], private_notes={"train": train[2]})
        held_out = usable(*_items(test, shape), public)
        return Records(train[0], train[1], held_out[0], held_out[1], {"train": train[2], "test": held_out[2]})

    return PrivateData(public, read)


def usable(
    X: Any, y: Iterable[Any], public: PublicInfo, *, sparse: bool = False
) -> tuple[Any, np.ndarray, dict[str, int]]:
    """The records that contribute: rows (m, ...), targets (m,), and private counts.

    Targets are class indexes int64, or float64 in [-1, 1] for a regression.  A sparse X gives a CSR array if
    ``sparse``, else a dense one; a dense X always gives a dense one.
    """
    rows: Any
    rows, finite = transform_array(X.tocsr() if sp.issparse(X) else X, public.preprocessing)
    if sp.issparse(rows) and not sparse:
        rows = rows.toarray()
    targets, known, counts = _targets(y, public)
    keep = finite & known
    notes = {"records": rows.shape[0], "used": int(keep.sum()), "not_finite": int((~finite).sum()), **counts}
    return (rows, targets, notes) if keep.all() else (rows[keep], targets[keep], notes)


def _targets(y: Iterable[Any], public: PublicInfo) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Targets (n,) as the losses take them, which are usable (n,) bool, and private counts."""
    if public.target_bounds is None:
        index = {label: position for position, label in enumerate(public.classes)}
        codes = np.fromiter((_index(index, label) for label in y), dtype=np.int64)
        return codes, codes >= 0, {"unknown_labels": int((codes < 0).sum())}
    low, high = public.target_bounds
    values = np.fromiter((_number(value) for value in y), dtype=np.float64)
    scaled, known = scaled_target(values, public.target_bounds)
    clipped = int(((values < low) | (values > high)).sum())
    return scaled, known, {"targets_without_number": int((~known).sum()), "targets_clipped": clipped}


def _number(value: Any) -> float:
    """One target, NaN where it is no number; each is read on its own."""
    if isinstance(value, float):
        return value
    try:
        return math.nan if np.ndim(value) or "_" in str(value) else float(value)  # Python reads 1_000, tables do not
    except (TypeError, ValueError, OverflowError):
        return math.nan


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
    target_bounds: tuple[float, float] | None,
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
        target_bounds=target_bounds,
    )


def _one_target(classes: Any, target_bounds: Any) -> tuple[float, float] | None:
    """The bounds of a regression target, ``None`` for classes; ``ConfigError`` unless exactly one is declared."""
    if target_bounds is None:
        if classes is None:
            raise ConfigError(
                "classes and target_bounds are both missing: list every possible label, for example classes=[0, 1], or "
                "give the public bounds of a number to predict, for example target_bounds=(0, 100)."
            )
        return None
    if classes is not None:
        raise invalid(
            "target_bounds",
            target_bounds,
            "left out when classes is given",
            "Labels have classes, numbers have bounds.",
        )
    if isinstance(target_bounds, np.ndarray):
        target_bounds = target_bounds.tolist()
    if isinstance(target_bounds, list | tuple):
        target_bounds = [value.item() if isinstance(value, np.generic) else value for value in target_bounds]
    try:
        return check_bounds(target_bounds, "target_bounds")
    except SchemaError:
        allowed = "a pair of finite numbers (lo, hi) with lo < hi, from public knowledge"
        raise invalid("target_bounds", target_bounds, allowed) from None


def _norm_bound(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < math.inf:
        raise invalid("norm_bound", value, "a finite number > 0, or None for rows that are not clipped")
    return float(value)


# --------------------------------------------------------------------------------------- arrays: shapes, types


def _checked(X: Any, y: Any, classes: tuple[Any, ...], X_name: str, y_name: str) -> tuple[int, ...]:
    """Shape of one row; ``DataError`` where shapes or types do not fit.  No value is looked at."""
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
    if not classes and kind not in "iufbO":
        raise DataError(f"{y_name} has type {y.dtype}, and target_bounds needs numbers. Convert it, or give classes.")
    texts = [isinstance(label, str) for label in classes]
    if classes and ((kind in "iufb" and all(texts)) or (kind in "US" and not any(texts))):
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
