"""Numbers in memory or in a file, and map-style datasets, as :class:`PrivateData`.

Only shapes and types are looked at before :meth:`PrivateData.load`.  A record that cannot be used (NaN, infinity,
unknown label, another shape) contributes nothing; that is decided record by record, and lists and arrays of objects
are read cell by cell (:mod:`dpml.data.cells`).  No record at all is a data set like any other.

Arrays in a file (``np.memmap``, a ``.npy`` path) and large datasets can be loaded as :class:`~dpml.data.stored.Stored`
records, whose rows are read when a step of ``dp_sgd`` draws them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse as sp

from dpml.machine import refuse_unless_a_records

from ..errors import ConfigError, DataError, SchemaError, invalid
from .cells import cell_number, check_number_type, is_missing, kept, kind_of, labels_of, objects_of, plain_label
from .columns import check_bounds, check_classes, scaled_target
from .encoder import known_cells, place_of
from .private_data import CoinSource, PrivateData, PublicInfo, Records
from .public_whitening import PublicWhitening, described
from .stored import Stored, StoredArray, StoredItems, length_of, mapping_of, pieces
from .transform import array_preprocessing, as_numbers, transform_array

LARGE_DATASET = 1 << 30  # bytes in float64 from which on a dataset is not read as a whole
_LABELS = 1 << 16  # labels looked up at a time


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
    whitening: PublicWhitening | None = None,
) -> PrivateData:
    """See :meth:`PrivateData.from_arrays`."""
    target = _one_target(classes, target_bounds)
    labels = () if target else check_classes(classes)
    bound = _norm_bound(norm_bound)
    X, y = opened(X, "X", objects_of), opened(y, "y", labels_of)
    X_test, y_test = opened(X_test, "X_test", objects_of), opened(y_test, "y_test", labels_of)
    shape = _checked(X, y, labels, "X", "y")
    has_test = X_test is not None or y_test is not None
    if has_test:
        if X_test is None or y_test is None:
            missing = "X_test" if X_test is None else "y_test"
            raise DataError(f"{missing} is missing: give X_test and y_test together.")
        test_shape = _checked(X_test, y_test, labels, "X_test", "y_test")
        if test_shape != shape:
            raise DataError(f"X_test has rows of shape {test_shape}, X of shape {shape}. They must agree.")
    public = _public(
        name, n_declared, shape, labels, bound, is_public, has_test, add_constant, source, target,
        _fitting(whitening, shape),
    )  # fmt: skip

    def read(noise: CoinSource, sparse: bool = False) -> Records:
        train = usable(X, plain_targets(y), public, sparse=sparse)
        if mapping_of(X) is not None:
            train[2]["copied_bytes"] = int(train[0].nbytes)
        if not has_test:
            return Records(train[0], train[1], private_notes={"train": train[2]})
        test = usable(X_test, plain_targets(y_test), public, sparse=sparse)
        return Records(train[0], train[1], test[0], test[1], {"train": train[2], "test": test[2]})

    def read_stored(noise: CoinSource) -> Records:
        rows = as_numbers(X.toarray() if sp.issparse(X) else X)
        targets, known, counts = _stored_targets(y, public)
        encode = functools.partial(transform_array, preprocessing=public.preprocessing)
        stored = StoredArray(rows, targets, known, public.feature_shape, encode)
        test = usable(X_test, plain_targets(y_test), public) if has_test else None
        return _stored_records(stored, counts, test)

    large = mapping_of(X) is not None
    return PrivateData(public, read, read_stored=read_stored, large=large, size=lambda: int(X.shape[0]))


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
    lazy: bool | None = None,
    workers: int = 0,
) -> PrivateData:
    """See :meth:`PrivateData.from_dataset`."""
    if lazy is not None and not isinstance(lazy, bool):
        raise invalid("lazy", lazy, "True, False, or None to decide by the declared size")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise invalid("workers", workers, "a whole number >= 0", "0 reads items in this process.")
    for argument, value in (("dataset", dataset), ("test", test)):
        if value is not None and not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
            raise DataError(
                f"{argument} is a {type(value).__name__}, no map-style dataset: it needs __len__ and __getitem__. "
                "Turn an iterable into a list of (x, y) first."
            )
    target = None if target_bounds is None else _one_target(classes, target_bounds)
    labels = () if target else _dataset_classes(dataset, classes)
    shape = _dataset_shape(dataset, feature_shape)
    for argument, value in (("dataset", dataset), ("test", test)):
        _check_tensors(value, shape, argument)
    bound = _norm_bound(norm_bound)
    public = _public(name, n_declared, shape, labels, bound, is_public, test is not None, add_constant, None, target)

    def read(noise: CoinSource, sparse: bool = False) -> Records:
        train = usable(*_items(dataset, shape), public)
        if test is None:
            return Records(train[0], train[1], private_notes={"train": train[2]})
        held_out = usable(*_items(test, shape), public)
        return Records(train[0], train[1], held_out[0], held_out[1], {"train": train[2], "test": held_out[2]})

    def read_stored(noise: CoinSource) -> Records:
        kind = np.dtype(np.int64 if target is None else np.float64)
        read_items = functools.partial(drawn_items, shape=shape, public=public)
        stored = StoredItems(dataset, public.feature_shape, kind, read_items, workers)
        held_out = None if test is None else usable(*_items(test, shape), public)
        return _stored_records(stored, {}, held_out)

    size = 8 * public.n_declared * public.n_features  # by what is declared: how data are read tells nothing then
    large = size > LARGE_DATASET if lazy is None else lazy
    return PrivateData(public, read, read_stored=read_stored, large=large, size=lambda: len(dataset))


def usable(
    X: Any, y: Iterable[Any], public: PublicInfo, *, sparse: bool = False
) -> tuple[Any, np.ndarray, dict[str, int]]:
    """The records that contribute: rows (m, ...), targets (m,), and private counts.

    Targets are class indexes int64, or float64 in [-1, 1] for a regression.  A sparse X gives a CSR array if
    ``sparse``, else a dense one; a dense X and whitened rows always give a dense one.
    """
    rows: Any
    rows, finite = transform_array(X.tocsr() if sp.issparse(X) else X, public.preprocessing)
    if sp.issparse(rows) and not sparse:
        rows = rows.toarray()
    targets, known, counts = targets_of(y, public)
    keep = finite & known
    notes = {"records": rows.shape[0], "used": int(keep.sum()), "not_finite": int((~finite).sum()), **counts}
    return (rows, targets, notes) if keep.all() else (rows[keep], targets[keep], notes)


def _stored_targets(y: Any, public: PublicInfo) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """As :func:`targets_of`, with few labels at a time as Python objects."""
    if not isinstance(y, np.ndarray) or len(y) == 0:
        return targets_of(plain_targets(y), public)
    parts: list[np.ndarray] = []
    known: list[np.ndarray] = []
    counts: dict[str, int] = {}
    for block in pieces(y):
        for start in range(0, len(block), _LABELS):
            codes, usable_ones, notes = targets_of(block[start : start + _LABELS].tolist(), public)
            parts.append(codes)
            known.append(usable_ones)
            counts = {name: counts.get(name, 0) + count for name, count in notes.items()}
    return np.concatenate(parts), np.concatenate(known), counts


def _stored_records(stored: Stored, counts: dict[str, int], test: Any) -> Records:
    notes = {"records": len(stored), "read": "as drawn", **counts}
    if test is None:
        return Records(stored, None, private_notes={"train": notes})
    return Records(stored, None, test[0], test[1], {"train": notes, "test": test[2]})


def targets_of(y: Iterable[Any], public: PublicInfo) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Targets (n,) as the losses take them, which are usable (n,) bool, and private counts."""
    if public.target_bounds is None:
        index = {label: position for position, label in enumerate(public.classes)}
        listed = known_cells(public.classes)
        codes = np.fromiter((_index(index, listed, label) for label in y), dtype=np.int64)
        return codes, codes >= 0, {"unknown_labels": int((codes < 0).sum())}
    low, high = public.target_bounds
    values = np.fromiter((cell_number(value) for value in y), dtype=np.float64)
    scaled, known = scaled_target(values, public.target_bounds)
    clipped = int(((values < low) | (values > high)).sum())
    return scaled, known, {"targets_without_number": int((~known).sum()), "targets_clipped": clipped}


def _index(index: dict[Any, int], known: dict[str | float, int], label: Any) -> int:
    """Position of a label among the classes, −1 for none: by value, else as the text or the number that it is.

    One label that is a text makes readers and numpy keep all as texts, which must change nothing for the others.
    """
    try:
        found = index.get(label, -1)
        return place_of(known, label) if found < 0 and not is_missing(label) else found
    except BaseException as error:  # a label that cannot be a key (a list say), or a type of the user's own that raises
        refuse_unless_a_records(error)
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
    whitening: PublicWhitening | None = None,
) -> PublicInfo:
    preprocessing = array_preprocessing(shape, constant=bool(add_constant), norm_bound=bound, whitening=whitening)
    source = source or {"kind": "arrays", "split": "declared test records" if has_test else "none"}
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
        source=source if whitening is None else {**source, "whitening": described(whitening)},
        feature_shape=shape,
        preprocessing=preprocessing,
        target_bounds=target_bounds,
    )


def _fitting(whitening: Any, shape: tuple[int, ...]) -> PublicWhitening | None:
    """``whitening`` if it can be applied to rows of ``shape``; ConfigError else."""
    if whitening is None:
        return None
    if not isinstance(whitening, PublicWhitening):
        raise invalid("whitening", whitening, "a PublicWhitening, or None")
    if shape != whitening.mean.shape:
        way_out = "It must come from public rows with the same columns, the constant left out."
        raise invalid("whitening", whitening, f"one for rows of shape {shape}", way_out)
    return whitening


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


def opened(values: Any, name: str, of_items: Callable[[list[Any]], np.ndarray]) -> Any:
    """``values``; a list as an array of objects; of the name of a ``.npy`` file its array, mapped and not read."""
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(
            f"{name} is a masked array, and records have no masks here. Pass {name}.filled(numpy.nan), whose rows with "
            "a missing number contribute nothing, or impute by public values."
        )
    if hasattr(values, "detach") and hasattr(values, "layout"):
        return _of_tensor(values, name)
    if not isinstance(values, str | Path):
        if values is None or sp.issparse(values) or any(hasattr(values, a) for a in ("dtype", "shape", "__array__")):
            return values
        if not isinstance(values, Iterable):
            raise DataError(f"{name} is a {type(values).__name__}: it must be an array, a data frame or a list.")
        return of_items(list(values))
    path = Path(values)
    if path.suffix.lower() != ".npy":
        raise DataError(f"{name} = {str(values)!r} is no .npy file. Save the array with numpy.save, or pass it.")
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise DataError(f"{name} = {str(values)!r}: there is no such file.") from error
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{name} = {str(values)!r} cannot be mapped ({type(error).__name__}): it must be a .npy file of numbers or "
            "texts with at least one record."
        ) from error


def _of_tensor(values: Any, name: str) -> np.ndarray:
    """The numbers of a torch tensor without its history, where numpy can hold them: in the same memory."""
    plain = values.detach()
    try:
        if str(plain.dtype) == "torch.bfloat16":
            plain = plain.float()  # exact; numpy has no such type
        return np.asarray(plain.resolve_conj().resolve_neg().cpu().numpy())
    except (RuntimeError, TypeError, ValueError) as error:  # by its type, layout or device: no value is looked at
        raise DataError(
            f"{name} is a tensor that numpy cannot hold ({values.dtype}, {values.layout}, device {values.device}). "
            f"Pass a dense one of real numbers: {name}.to_dense().float(), say, or a scipy.sparse matrix."
        ) from error


def _checked(X: Any, y: Any, classes: tuple[Any, ...], X_name: str, y_name: str) -> tuple[int, ...]:
    """Shape of one row; ``DataError`` where shapes or types do not fit.  No value is looked at."""
    shape, lengths = _shape(X, X_name), _shape(y, y_name)
    if len(shape) < 2:
        raise DataError(f"{X_name} has shape {shape}; it must be (n, d) or (n, ...), one row a record.")
    if math.prod(shape[1:]) == 0:
        raise DataError(f"{X_name} has shape {shape}: its rows hold no feature. Give every record at least one number.")
    if len(lengths) != 1:
        raise DataError(f"{y_name} has shape {lengths}; it must be (n,), one label a record.")
    if shape[0] != lengths[0]:
        raise DataError(f"{X_name} and {y_name} have different lengths. Give one label a record.")
    if not hasattr(X, "columns"):  # a data frame has a type for each column
        check_number_type(kind_of(X), getattr(X, "dtype", None), X_name)
    kind = kind_of(y)
    if kind not in ("iufbOUS" if classes else "iufbO"):
        wanted = "labels are texts or whole numbers" if classes else "target_bounds needs numbers"
        raise DataError(f"{y_name} has type {y.dtype}, and {wanted}. Convert it, or declare what it holds.")
    if classes and kind in "iufb" and not any(isinstance(key, float) for key in known_cells(classes)):
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


def plain_targets(y: Any) -> list[Any]:
    found: list[Any] = kept(y).tolist()
    return found


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


def _check_tensors(dataset: Any, shape: tuple[int, ...], argument: str) -> None:
    """DataError for a ``TensorDataset``, whose shapes are public, that holds no pairs of a row and a target."""
    if (type(dataset).__module__, type(dataset).__name__) != ("torch.utils.data.dataset", "TensorDataset"):
        return
    shapes = [tuple(one.shape[1:]) for one in dataset.tensors]
    if len(shapes) != 2 or shapes[0] != shape or math.prod(shapes[1]) != 1:
        raise DataError(
            f"{argument} holds tensors whose entries have the shapes {shapes}: no item would be a pair of a row of the "
            f"shape {shape} and one target. Give TensorDataset(X, y), and the feature_shape of X."
        )
    for which, one in zip(("first", "second"), dataset.tensors, strict=True):
        name = f"the {which} tensor of {argument}"
        check_number_type(
            _of_tensor(one[:0] if str(one.layout) == "torch.strided" else one, name).dtype.kind, one.dtype, name
        )


def _items(dataset: Any, shape: tuple[int, ...], index: Iterable[int] | None = None) -> tuple[np.ndarray, list[Any]]:
    """All items (or those of ``index``): X (n, ...) float64, and the labels.

    NaN and ``None`` where an item raises, is no pair (x, y) or has another shape: an error would tell that it is there.
    """
    positions = range(length_of(dataset)) if index is None else list(index)
    X = np.full((len(positions), *shape), np.nan)
    y: list[Any] = [None] * len(positions)
    for position, item in enumerate(positions):
        try:
            x, label = dataset[item]
            if isinstance(x, np.ma.MaskedArray) and x.dtype.kind in "iufb":
                x = np.ma.filled(x.astype(np.float64), np.nan)
            values = _of_tensor(x, "x") if hasattr(x, "detach") else np.asarray(x)
            if values.shape == shape and values.dtype.kind in "iufb":
                X[position], y[position] = values, plain_label(label)
        except BaseException as error:  # sys.exit() in a record must not end the run either
            refuse_unless_a_records(error)
            X[position] = np.nan
    return X, y


def drawn_items(
    dataset: Any, index: np.ndarray, *, shape: tuple[int, ...], public: PublicInfo
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (m, *feature_shape) and targets (m,) of the usable items among ``index``.

    Which they are is decided item by item (:func:`_items`).
    """
    rows, targets, _ = usable(*_items(dataset, shape, index.tolist()), public)
    return rows, targets
