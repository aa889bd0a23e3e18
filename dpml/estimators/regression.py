"""What the regressors share: public bounds of the target, and predictions in its own units."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from dpml.release import PrivateModel
from dpml.results import Guarantee

from .base import LinearParts


class RegressorParts(RegressorMixin, LinearParts):
    """A linear model of the target scaled to [−1, 1] by its public bounds: value = mid + half · score."""

    def _facts(self, y: np.ndarray) -> tuple[dict[str, Any], tuple[str, ...]]:
        return {"target_bounds": self.target_bounds}, ()

    def _publish(self, model: PrivateModel, guarantee: Guarantee) -> None:
        super()._publish(model, guarantee)
        low, high = model.target_bounds
        half = (high - low) / 2.0
        coefficients, intercepts = self._split(model.weights["weight"])
        self.coef_ = half * coefficients[0]
        self.intercept_ = float(low + half + half * intercepts[0])

    def predict(self, X: Any) -> np.ndarray:
        """Predictions (n,) float64 within ``target_bounds``; rows are clipped to ``norm_bound`` as in training."""
        rows = self._encoded(X)
        return np.asarray(self.model_.predictions(rows), dtype=np.float64)
