"""From a raw array to feature rows by public constants: the map that training and scoring share.

The constants travel with a released model as a small JSON object:

``{"kind": "array", "shape": [64], "scale": 0.0625, "constant": true, "norm_bound": 1.0}``

Each row is reshaped to ``shape``, multiplied by ``scale``, a constant 1 is appended if ``constant``, and the row is
clipped to L2 norm ``norm_bound`` (``null``: not clipped).  Rows of a scipy.sparse array stay sparse.  An entry
``"whitening"`` (:mod:`dpml.data.public_whitening`), where there is one, is applied after the scale, and rows are dense.
Objects of ``"kind": "image"`` describe features of images (:mod:`dpml.data.images`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse

from ..errors import DataError
from .cells import check_number_type, kind_of, numbers_of, objects_of
from .encoder import clip_rows
from .public_whitening import PublicWhitening, whitening_in, with_whitening


def array_preprocessing(
    shape: tuple[int, ...],
    *,
    scale: float = 1.0,
    constant: bool = False,
    norm_bound: float | None = None,
    whitening: PublicWhitening | None = None,
) -> dict[str, Any]:
    """The JSON object of a map from raw rows of ``shape``; ``whitening`` is for rows that are vectors."""
    plain = {"kind": "array", "shape": list(shape), "scale": scale, "constant": constant, "norm_bound": norm_bound}
    return with_whitening(plain, whitening)


def transform_array(X: Any, preprocessing: Mapping[str, Any]) -> tuple[Any, np.ndarray]:
    """Feature rows of a raw array; a row's result depends on that row alone.

    Args:
        X: (n, ...) numbers; the size of a row must be that of the declared shape.  Lists and arrays of objects are
            read cell by cell; what is no real number counts as NaN.  A scipy.sparse array (n, d) is never made dense.
        preprocessing: public constants as in the module's text, also after a JSON round trip.

    Returns:
        ``(rows, valid)``: rows (n, *shape) float64 in a new array, one longer with a constant column, a ``csr_array``
        in canonical format if X is sparse and not whitened; valid (n,) bool, ``False`` where a row holds NaN or
        infinity (its result is zero).

    Raises:
        DataError: the type of the whole array is that of no numbers, its rows have another size, or the map is one of
            tables.
    """
    if preprocessing.get("kind") == "image":
        from .images import transform_images

        return transform_images(as_numbers(X), preprocessing)
    if preprocessing.get("kind") != "array":
        raise DataError(
            f"These data are encoded by a schema ({preprocessing.get('kind')!r}), not as arrays. Pass a table."
        )
    shape = tuple(int(size) for size in preprocessing["shape"])
    if sparse.issparse(X):
        return _transform_sparse(X, shape, preprocessing)
    values = np.asarray(as_numbers(X), dtype=np.float64)
    if values.ndim < 1 or math.prod(values.shape[1:]) != math.prod(shape):
        raise DataError(f"X has shape {values.shape}; its rows must have shape {shape}.")
    flat = values.reshape(len(values), math.prod(shape))
    constant = bool(preprocessing["constant"])
    rows = np.empty((len(flat), flat.shape[1] + constant))
    with np.errstate(invalid="ignore", over="ignore"):
        np.multiply(flat, float(preprocessing["scale"]), out=rows[:, : flat.shape[1]])
    if constant:
        rows[:, -1] = 1.0
    valid = np.asarray(np.isfinite(rows).all(axis=1))
    rows[~valid] = 0.0
    whitening = whitening_in(preprocessing)
    if whitening is not None:
        return _whitened(rows[:, : flat.shape[1]], valid, whitening, preprocessing)
    if preprocessing["norm_bound"] is not None:
        rows = clip_rows(rows, float(preprocessing["norm_bound"]))
    return (rows if constant else rows.reshape(len(rows), *shape)), valid


def _whitened(
    scaled: Any, valid: np.ndarray, whitening: PublicWhitening, preprocessing: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, d) that were scaled, whitened; the constant and the clip come after.  Too large ones are not valid."""
    n, d = scaled.shape
    constant = bool(preprocessing["constant"])
    rows = np.ones((n, d + constant))
    rows[:, :d] = whitening.apply(scaled)
    valid = valid & np.isfinite(rows).all(axis=1)
    rows[~valid] = 0.0
    if preprocessing["norm_bound"] is not None:
        rows = clip_rows(rows, float(preprocessing["norm_bound"]))
    return rows, valid


def as_numbers(X: Any) -> np.ndarray:
    """``X`` as an array of real numbers, as it is where it is one (also in a file), else as float64.

    A list, and an array or data frame of objects, is read cell by cell (:func:`~dpml.data.cells.cell_number`): one
    record never changes how another is read.

    Raises:
        DataError: the type of the whole array is that of no real numbers, or a list is ragged.
    """
    if isinstance(X, list | tuple):
        return numbers_of(objects_of(X))
    try:
        values = X if isinstance(X, np.ndarray) else np.asarray(X)
    except (TypeError, ValueError, RuntimeError) as error:  # without the error's own text: it may show a cell
        raise DataError(f"X is a {type(X).__name__} that numpy cannot take as an array.") from error
    check_number_type(kind_of(values), values.dtype, "X")
    return numbers_of(values) if values.dtype.kind == "O" else values


def _transform_sparse(X: Any, shape: tuple[int, ...], preprocessing: Mapping[str, Any]) -> tuple[Any, np.ndarray]:
    if X.ndim != 2 or len(shape) != 1 or X.shape[1] != shape[0]:
        raise DataError(f"X is sparse and has shape {X.shape}; it must be two-dimensional, with rows of shape {shape}.")
    check_number_type(kind_of(X), X.dtype, "X")
    given = X.tocsr()
    numbers = as_numbers(given.data).astype(np.float64)
    rows = sparse.csr_array((numbers, given.indices.copy(), given.indptr.copy()), given.shape)
    try:
        rows.check_format(full_check=True)
    except ValueError as error:
        raise DataError(f"X is no valid sparse array: {error}.") from error
    with np.errstate(invalid="ignore", over="ignore"):
        rows.sum_duplicates()
        rows.data *= float(preprocessing["scale"])
    entry = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    valid = np.ones(rows.shape[0], dtype=bool)
    valid[entry[~np.isfinite(rows.data)]] = False
    rows.data[~valid[entry]] = 0.0
    whitening = whitening_in(preprocessing)
    if whitening is not None:
        return _whitened(rows, valid, whitening, preprocessing)
    if preprocessing["constant"]:
        column = sparse.csr_array(valid.astype(np.float64)[:, None])
        rows = sparse.csr_array(sparse.hstack([rows, column], format="csr"))
    if preprocessing["norm_bound"] is not None:
        rows = clip_rows(rows, float(preprocessing["norm_bound"]))
    rows.eliminate_zeros()
    return rows, valid
