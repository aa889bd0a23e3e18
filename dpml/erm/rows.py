"""Records as the proofs want them: finite rows of bounded norm with labels -1 and +1, whatever came in.

The decision about a record looks at that record alone, so one record more or less changes nothing for the others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml import errors

NORM_SLACK = 1e-12  # a row clipped elsewhere may exceed the bound by rounding; half the solver's tolerance covers it


def bounded_rows(
    x: ArrayLike, y_signed: ArrayLike, *, norm_bound: float, n_features: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``(x, y)`` in float64, each row of norm at most ``norm_bound`` and each label -1 or +1.

    A row with NaN or infinity, or with another label, becomes a zero row with label +1: its loss is the constant ln 2,
    so it contributes nothing.  A row that is too long is scaled down.  Arrays that already obey are not copied.

    Raises:
        DataError: shapes that do not fit (``x`` (n, n_features), ``y_signed`` (n,)); public knowledge.
    """
    rows = np.asarray(x, dtype=np.float64)
    labels = np.asarray(y_signed, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != n_features:
        raise errors.DataError(f"X must have shape (n, {n_features}) as in the plan; it has shape {rows.shape}.")
    if labels.shape != (rows.shape[0],):
        raise errors.DataError(f"y_signed must have shape ({rows.shape[0]},) like X's rows; it has {labels.shape}.")
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    overflow = ~np.isfinite(norms)
    usable = np.abs(labels) == 1.0
    if overflow.any():
        usable &= np.isfinite(rows).all(axis=1)
    long = usable & ~(norms <= norm_bound * (1.0 + NORM_SLACK))
    if usable.all() and not long.any():
        return rows, labels
    rows, labels = rows.copy(), labels.copy()
    rows[~usable], labels[~usable] = 0.0, 1.0
    if long.any():
        part = rows[long]
        part /= np.abs(part).max(axis=1, keepdims=True)  # first, so that the norm of a huge row does not overflow
        rows[long] = part * (norm_bound / np.linalg.norm(part, axis=1, keepdims=True))
    return rows, labels
