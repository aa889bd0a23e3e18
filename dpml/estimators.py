"""scikit-learn estimators over the same methods as ``PrivateTrainer``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from dpml.data import PrivateData
from dpml.errors import ConfigError
from dpml.mechanisms import NoiseSource
from dpml.trainer import PrivateTrainer


class DPLogisticRegression(ClassifierMixin, BaseEstimator):
    """Binary logistic regression under (ε, δ)-differential privacy.

    What would otherwise be read off the data has to be declared, since reading it would cost privacy:
    ``classes``, ``norm_bound`` and ``n_declared``.

    Parameters:
        epsilon, delta: the budget; default δ is min(1e-5, 0.1/n_declared).
        method: ``"auto"``, ``"objective"``, ``"output"`` or ``"dp_sgd"``.
        classes: the two labels, in the order of ``predict_proba``'s columns.
        norm_bound: public bound on the L2 norm of a row with its constant column; longer rows are scaled down to it.
        n_declared: public nominal number of records.
        neighboring_relation: ``"add_remove"`` or ``"replace_one"``.
        fit_intercept: append a constant column, which is regularised and noised like any other.
        solution_norm, regularization, accountant, noise_source: as in :class:`dpml.PrivateTrainer`.

    Attributes after ``fit``:
        coef_ ``(1, d)``, intercept_ ``(1,)``, classes_ ``(2,)``, n_features_in_, guarantee_, result_.

    ``fit`` raises ConfigError when one of the three declarations is missing; a row with NaN or infinity contributes
    nothing.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        method: str = "auto",
        *,
        classes: Sequence[Any] | None = None,
        norm_bound: float | None = None,
        n_declared: int | None = None,
        neighboring_relation: str = "add_remove",
        accountant: str = "best",
        fit_intercept: bool = True,
        solution_norm: float = 15.0,
        regularization: float | str = "auto",
        noise_source: NoiseSource | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.classes = classes
        self.norm_bound = norm_bound
        self.n_declared = n_declared
        self.neighboring_relation = neighboring_relation
        self.accountant = accountant
        self.fit_intercept = fit_intercept
        self.solution_norm = solution_norm
        self.regularization = regularization
        self.noise_source = noise_source

    def fit(self, X: Any, y: Any) -> DPLogisticRegression:
        """Train on ``X (n, d)``, ``y (n,)``."""
        missing = [name for name in ("classes", "norm_bound", "n_declared") if getattr(self, name) is None]
        if missing:
            raise ConfigError(
                f"{', '.join(missing)} must be declared: dpml does not read them off the data, since that would cost "
                "privacy. Example: DPLogisticRegression(classes=[0, 1], norm_bound=1.0, n_declared=36_000)."
            )
        assert self.classes is not None
        assert self.n_declared is not None
        X = validate_data(self, X, ensure_all_finite=False, ensure_min_samples=1, dtype=np.float64)
        y = column_or_1d(y)  # a label that is missing or unknown makes its record contribute nothing
        data = PrivateData.from_arrays(
            X,
            y,
            norm_bound=self.norm_bound,
            classes=list(self.classes),
            n_declared=self.n_declared,
            add_constant=self.fit_intercept,
        )
        trainer = PrivateTrainer(
            model="logreg",
            method=self.method,
            epsilon=self.epsilon,
            delta=self.delta,
            neighboring_relation=self.neighboring_relation,
            accountant=self.accountant,
            solution_norm=self.solution_norm,
            regularization=self.regularization,
            noise_source=self.noise_source,
        )
        self.result_ = trainer.fit(data)
        self.guarantee_ = self.result_.guarantee
        self.classes_ = np.asarray(list(self.classes))
        weight = np.asarray(self.result_.model.weights["weight"], dtype=np.float64)
        self.coef_ = weight[None, : self.n_features_in_]
        self.intercept_ = weight[self.n_features_in_ :] if self.fit_intercept else np.zeros(1)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities ``(n, 2)`` in the order of ``classes``; rows are clipped as in training."""
        check_is_fitted(self, "result_")
        X = validate_data(self, X, reset=False, ensure_all_finite=False, dtype=np.float64)
        return self.result_.model.predict_proba(X)

    def decision_function(self, X: Any) -> np.ndarray:
        """Log odds of the second class, shape ``(n,)``."""
        probabilities = self.predict_proba(X)
        return np.asarray(np.log(probabilities[:, 1]) - np.log(probabilities[:, 0]))

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class of each row, shape ``(n,)``."""
        check_is_fitted(self, "result_")
        return self.classes_[self.predict_proba(X).argmax(axis=1)]
