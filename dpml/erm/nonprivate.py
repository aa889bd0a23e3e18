"""The same model without privacy: a yardstick, for data that are declared public only."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml.erm.rows import bounded_rows
from dpml.erm.solver import minimise

NONPRIVATE_TOLERANCE = 1e-4


def fit_nonprivate(x: ArrayLike, y_signed: ArrayLike, lambda_sum: float = 0.01) -> NDArray[np.float64]:
    """Logistic regression with a ridge so small (sum form) that it only makes the minimum unique; shape (d,).

    There is no privacy here at all (ε = ∞).  Arguments as for :func:`dpml.erm.solver.minimise`; rows with NaN or with
    labels other than ±1 are left out.
    """
    rows, labels = bounded_rows(x, y_signed, norm_bound=math.inf, n_features=np.shape(x)[1])
    return minimise(rows, labels, lambda_sum, tolerance=NONPRIVATE_TOLERANCE).theta
