"""The same model without privacy: a yardstick, for data that are declared public only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml.erm.losses import LOGISTIC, GlmLoss, Huber, Squared
from dpml.erm.rows import bounded_rows
from dpml.erm.solver import minimise

NONPRIVATE_TOLERANCE = 1e-4


def fit_nonprivate(x: Any, y: ArrayLike, lambda_sum: float = 0.01, *, loss: GlmLoss = LOGISTIC) -> NDArray[np.float64]:
    """The minimum with a ridge so small (sum form) that it only makes it unique; shape (d,).

    There is no privacy here at all (ε = ∞).  Arguments as for :func:`dpml.erm.solver.minimise`; rows with NaN or with
    targets that the loss does not take are left out.
    """
    rows, targets = bounded_rows(
        x, y, norm_bound=math.inf, n_features=np.shape(x)[1], real_targets=isinstance(loss, Huber | Squared)
    )
    return minimise(rows, targets, lambda_sum, tolerance=NONPRIVATE_TOLERANCE, loss=loss).theta
