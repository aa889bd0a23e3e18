"""Records as the proofs want them: finite rows of bounded norm with targets in range, whatever came in.

The decision about a record looks at that record alone, so one record more or less changes nothing for the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from dpml import errors
from dpml.erm.losses import Rows, Vector

Mask = NDArray[np.bool_]

NORM_SLACK = 1e-12  # a row clipped elsewhere may exceed the bound by rounding; half the solver's tolerance covers it


def bounded_rows(
    x: Any, y: ArrayLike, *, norm_bound: float, n_features: int, real_targets: bool = False
) -> tuple[Rows, Vector]:
    """``(x, y)`` in float64, each row of norm at most ``norm_bound``, each target -1 or +1, or a number in [-1, 1].

    A row with NaN or infinity, or with a target that is none, becomes a zero row with target +1 (0 for real targets):
    its loss does not depend on θ, so it contributes nothing.  A row that is too long is scaled down, and a real target
    out of range goes to the nearer end.  Arrays that already obey are not copied.

    Args:
        x: (n, n_features), array-like or scipy.sparse; a sparse one comes back as CSR in canonical format (sorted, an
            entry given twice summed up) and is never made dense.
        y: (n,).
        real_targets: targets are numbers in [-1, 1] and NaN is none; else they are the signs of two classes.

    Raises:
        DataError: shapes that do not fit, which are public knowledge, or a sparse array that is broken.
    """
    rows = _csr(x) if sparse.issparse(x) else np.asarray(x, dtype=np.float64)
    targets = np.asarray(y, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != n_features:
        raise errors.DataError(f"X must have shape (n, {n_features}) as in the plan; it has shape {rows.shape}.")
    if targets.shape != (rows.shape[0],):
        raise errors.DataError(f"y must have shape ({rows.shape[0]},) like X's rows; it has {targets.shape}.")
    norms = _norms(rows)
    usable = ~np.isnan(targets) if real_targets else np.abs(targets) == 1.0
    if not np.isfinite(norms).all():
        usable &= _finite(rows)
    long = usable & ~(norms <= norm_bound * (1.0 + NORM_SLACK))
    if not usable.all() or long.any():
        rows = _with_rows(rows, long, _shortened(rows[long], norm_bound), ~usable)
        targets = np.where(usable, targets, 0.0 if real_targets else 1.0)
    if real_targets and (np.abs(targets) > 1.0).any():
        targets = np.clip(targets, -1.0, 1.0)
    return rows, targets


def _csr(x: Any) -> Any:
    """CSR float64 in canonical format, sharing memory with ``x`` where ``x`` is that already; ``x`` is not changed."""
    if x.ndim != 2:
        return x
    rows = sparse.csr_array(x, dtype=np.float64)
    fresh = sparse.csr_array((rows.data, rows.indices, rows.indptr), shape=rows.shape)  # trusts no flag of x
    try:
        fresh.check_format(full_check=True)
    except ValueError as error:
        raise errors.DataError(f"X is no valid sparse array: {error}.") from error
    if not fresh.has_canonical_format:
        fresh = fresh.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            fresh.sum_duplicates()
    return fresh


def _norms(rows: Rows) -> Vector:
    """L2 norms, shape (n,); infinite or NaN where a square overflows or an entry is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if sparse.issparse(rows):
            squares = sparse.csr_array((np.square(rows.data), rows.indices, rows.indptr), shape=rows.shape)
            return np.sqrt(squares @ np.ones(rows.shape[1]))
        return np.sqrt(np.einsum("ij,ij->i", rows, rows))


def _finite(rows: Rows) -> Mask:
    """Which rows hold finite numbers only, shape (n,)."""
    if not sparse.issparse(rows):
        return np.asarray(np.isfinite(rows).all(axis=1))
    result = np.ones(rows.shape[0], dtype=bool)
    result[_row_of_entry(rows)[~np.isfinite(rows.data)]] = False
    return result


def _shortened(rows: Rows, norm_bound: float) -> Rows:
    """Finite rows of norm > 0, scaled to the norm ``norm_bound``."""
    if rows.shape[0] == 0:
        return rows
    if sparse.issparse(rows):
        entry = _row_of_entry(rows)
        largest = np.zeros(rows.shape[0])
        np.maximum.at(largest, entry, np.abs(rows.data))
        data = rows.data / largest[entry]  # first, so that the norm of a huge row does not overflow
        part = sparse.csr_array((data, rows.indices, rows.indptr), shape=rows.shape)
        data *= (norm_bound / _norms(part))[entry]
        return part
    part = rows / np.abs(rows).max(axis=1, keepdims=True)
    return part * (norm_bound / np.linalg.norm(part, axis=1, keepdims=True))


def _with_rows(rows: Rows, where: Mask, new: Rows, zero: Mask) -> Rows:
    """A copy with the rows ``where`` replaced and the rows ``zero`` set to 0."""
    result = rows.copy()
    if sparse.issparse(rows):
        entry = _row_of_entry(rows)
        result.data[where[entry]] = new.data
        result.data[zero[entry]] = 0.0
    else:
        result[where] = new
        result[zero] = 0.0
    return result


def _row_of_entry(rows: Rows) -> Any:
    return np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
