"""From a raw array to feature rows by public constants: the map that training and scoring share.

The constants travel with a released model as a small JSON object:

``{"kind": "array", "shape": [64], "scale": 0.0625, "constant": true, "norm_bound": 1.0}``

Each row is reshaped to ``shape``, multiplied by ``scale``, a constant 1 is appended if ``constant``, and the row is
clipped to L2 norm ``norm_bound`` (``null``: not clipped).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import DataError
from .encoder import clip_rows


def array_preprocessing(
    shape: tuple[int, ...], *, scale: float = 1.0, constant: bool = False, norm_bound: float | None = None
) -> dict[str, Any]:
    """The JSON object of a map from raw rows of ``shape``."""
    return {"kind": "array", "shape": list(shape), "scale": scale, "constant": constant, "norm_bound": norm_bound}


def transform_array(X: Any, preprocessing: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Feature rows of a raw array; a row's result depends on that row alone.

    Args:
        X: (n, ...) numbers; the size of a row must be that of the declared shape.
        preprocessing: public constants as in the module's text, also after a JSON round trip.

    Returns:
        ``(rows, valid)``: rows (n, *shape) float64 in a new array, one longer with a constant column; valid (n,) bool,
        ``False`` where a row holds NaN or infinity (its result is zero).

    Raises:
        DataError: X does not hold numbers, its rows have another size, or the map is one of tables.
    """
    if preprocessing.get("kind") != "array":
        raise DataError(
            f"These data are encoded by a schema ({preprocessing.get('kind')!r}), not as arrays. Pass a table."
        )
    values = _floats(X)
    shape = tuple(int(size) for size in preprocessing["shape"])
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
    if preprocessing["norm_bound"] is not None:
        rows = clip_rows(rows, float(preprocessing["norm_bound"]))
    return (rows if constant else rows.reshape(len(rows), *shape)), valid


def _floats(X: Any) -> np.ndarray:
    try:
        return np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"X does not hold numbers only: {error}. Encode texts first, or use a table.") from error
