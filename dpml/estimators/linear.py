"""Linear models of one release (or of full-batch steps) as scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, ClassVar

import numpy as np

from dpml.data import PrivateData
from dpml.mechanisms import NoiseSource
from dpml.release import PrivateModel
from dpml.results import Guarantee

from .base import ClassifierParts, LinearParts
from .regression import RegressorParts

_COMMON = (
    "epsilon",
    "delta",
    "method",
    "neighboring_relation",
    "accountant",
    "solution_norm",
    "regularization",
    "variant",
    "noise_source",
    "dataset_ledger",
    "dataset_epsilon",
    "dataset_delta",
    "dataset_filter",
)


class _LinearClassifier(ClassifierParts, LinearParts):
    """Parameters and coefficients that the linear classifiers share."""

    _needed: ClassVar[tuple[str, ...]] = ("classes", "norm_bound", "n_declared")
    _example: ClassVar[str] = "classes=[0, 1], norm_bound=1.0, n_declared=36_000"
    _passed_on: ClassVar[tuple[str, ...]] = _COMMON
    _takes_sparse: ClassVar[bool] = True
    _model: ClassVar[str] = ""

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        method: str = "auto",
        *,
        classes: Sequence[Any] | str | None = None,
        norm_bound: float | None = None,
        n_declared: int | None = None,
        neighboring_relation: str = "add_remove",
        accountant: str = "best",
        fit_intercept: bool = True,
        solution_norm: float | str = "auto",
        regularization: float | str = "auto",
        variant: str = "default",
        dataset_ledger: str | PathLike[str] | None = None,
        dataset_epsilon: float | None = None,
        dataset_delta: float | None = None,
        dataset_filter: str = "basic",
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
        self.variant = variant
        self.dataset_ledger = dataset_ledger
        self.dataset_epsilon = dataset_epsilon
        self.dataset_delta = dataset_delta
        self.dataset_filter = dataset_filter
        self.noise_source = noise_source

    def _trainer_arguments(self, data: PrivateData) -> dict[str, Any]:
        return {"model": self._model, **super()._trainer_arguments(data)}

    def _publish(self, model: PrivateModel, guarantee: Guarantee) -> None:
        super()._publish(model, guarantee)
        self.coef_, self.intercept_ = self._split(model.weights["weight"])


class DPLogisticRegression(_LinearClassifier):
    """Logistic regression under (ε, δ)-differential privacy.

    What would otherwise be read off the data has to be declared, since reading it would cost privacy:
    ``classes``, ``norm_bound`` and ``n_declared``.

    Parameters:
        epsilon, delta: the budget of one ``fit``; default δ is min(1e-5, 0.1/n_declared).
        method: ``"auto"``, ``"objective"``, ``"output"``, ``"dp_gd"`` or ``"dp_sgd"``.  For more than two classes the
            first three train one model a class under one composed budget, the last two one softmax model.
        classes: the labels, in the order of ``predict_proba``'s columns; a record with another label contributes
            nothing.  ``"from_y"`` declares that the set of labels in ``y`` is public; it is then read from ``y``, and
            ``guarantee_.assumptions`` says so.
        norm_bound: public bound on the L2 norm of a row with its constant column; longer rows are scaled down to it.
        n_declared: public nominal number of records.
        neighboring_relation: ``"add_remove"`` or ``"replace_one"``.
        accountant, solution_norm, regularization, variant: as in :class:`dpml.PrivateTrainer`.
        fit_intercept: append a constant column, which is regularised and noised like any other.
        dataset_ledger, dataset_epsilon, dataset_delta, dataset_filter: file and cap that add up all fits on one data
            set; the fits of a cross-validation or a search are charged there too, and one that would pass the cap is
            refused.
        noise_source: tests only.

    Attributes after ``fit``:
        coef_ ``(1, d)`` or ``(K, d)``, intercept_ ``(1,)`` or ``(K,)``, classes_ ``(K,)``, n_features_in_,
        feature_names_in_ (with a data frame), model_ (the released :class:`~dpml.PrivateModel`), guarantee_, result_.

    X may be an array, a data frame or a scipy sparse matrix, which stays sparse.  ``fit`` raises ConfigError when one
    of the three declarations is missing; a row with NaN or infinity contributes nothing.  Cross-validation and
    searches work, but each of their fits, and what they choose, is a release of its own that nothing charges unless
    ``dataset_ledger`` is given; scores on private records are private.
    """

    _model = "logreg"

    def _trainer_arguments(self, data: PrivateData) -> dict[str, Any]:
        arguments = super()._trainer_arguments(data)
        if len(data.public.classes) > 2 and self.method in ("dp_gd", "dp_sgd"):
            arguments["model"] = "softmax"  # one model for all classes; the other methods train one a class
        return arguments

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities ``(n, K)`` in the order of ``classes``; rows are clipped as in training."""
        rows = self._encoded(X)
        return np.asarray(self.model_.probabilities(rows))


class DPLinearSVC(_LinearClassifier):
    """Linear support vector classifier (smoothed hinge loss) under (ε, δ)-differential privacy.

    Parameters:
        method: ``"auto"``, ``"objective"``, ``"output"`` or, for two classes, ``"dp_gd"``.
        loss_parameter: width over which the hinge is smoothed, default 0.5.
        The others, and the attributes, are those of :class:`DPLogisticRegression`.

    There is no ``predict_proba``: the scores of a support vector machine are no probabilities.
    """

    _model = "linear_svm"
    _passed_on: ClassVar[tuple[str, ...]] = (*_COMMON, "loss_parameter")

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        method: str = "auto",
        *,
        classes: Sequence[Any] | str | None = None,
        norm_bound: float | None = None,
        n_declared: int | None = None,
        neighboring_relation: str = "add_remove",
        accountant: str = "best",
        fit_intercept: bool = True,
        solution_norm: float | str = "auto",
        regularization: float | str = "auto",
        variant: str = "default",
        loss_parameter: float | None = None,
        dataset_ledger: str | PathLike[str] | None = None,
        dataset_epsilon: float | None = None,
        dataset_delta: float | None = None,
        dataset_filter: str = "basic",
        noise_source: NoiseSource | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            method=method,
            classes=classes,
            norm_bound=norm_bound,
            n_declared=n_declared,
            neighboring_relation=neighboring_relation,
            accountant=accountant,
            fit_intercept=fit_intercept,
            solution_norm=solution_norm,
            regularization=regularization,
            variant=variant,
            dataset_ledger=dataset_ledger,
            dataset_epsilon=dataset_epsilon,
            dataset_delta=dataset_delta,
            dataset_filter=dataset_filter,
            noise_source=noise_source,
        )
        self.loss_parameter = loss_parameter


class DPRidge(RegressorParts):
    """Ridge regression under (ε, δ)-differential privacy.

    Parameters:
        target_bounds: public ``(low, high)`` of the target; values outside are clamped, predictions too.
        epsilon, delta, method, norm_bound, n_declared, neighboring_relation, accountant, fit_intercept, solution_norm,
        regularization, variant, dataset_ledger, dataset_epsilon, dataset_delta, dataset_filter, noise_source: as for
            :class:`DPLogisticRegression`; methods are ``"auto"``, ``"adassp"``, ``"output"``, ``"dp_gd"`` and
            ``"dp_sgd"``.

    Attributes after ``fit``:
        coef_ ``(d,)`` and intercept_ (a float) in the target's own units, n_features_in_, feature_names_in_, model_,
        guarantee_, result_.

    ``fit`` raises ConfigError when ``target_bounds``, ``norm_bound`` or ``n_declared`` is missing; a record with a
    feature or a target that is not finite contributes nothing.
    """

    _needed: ClassVar[tuple[str, ...]] = ("target_bounds", "norm_bound", "n_declared")
    _example: ClassVar[str] = "target_bounds=(0.0, 100.0), norm_bound=1.0, n_declared=36_000"
    _passed_on: ClassVar[tuple[str, ...]] = _COMMON
    _takes_sparse: ClassVar[bool] = True

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        method: str = "auto",
        *,
        target_bounds: tuple[float, float] | None = None,
        norm_bound: float | None = None,
        n_declared: int | None = None,
        neighboring_relation: str = "add_remove",
        accountant: str = "best",
        fit_intercept: bool = True,
        solution_norm: float | str = "auto",
        regularization: float | str = "auto",
        variant: str = "default",
        dataset_ledger: str | PathLike[str] | None = None,
        dataset_epsilon: float | None = None,
        dataset_delta: float | None = None,
        dataset_filter: str = "basic",
        noise_source: NoiseSource | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.target_bounds = target_bounds
        self.norm_bound = norm_bound
        self.n_declared = n_declared
        self.neighboring_relation = neighboring_relation
        self.accountant = accountant
        self.fit_intercept = fit_intercept
        self.solution_norm = solution_norm
        self.regularization = regularization
        self.variant = variant
        self.dataset_ledger = dataset_ledger
        self.dataset_epsilon = dataset_epsilon
        self.dataset_delta = dataset_delta
        self.dataset_filter = dataset_filter
        self.noise_source = noise_source

    def _trainer_arguments(self, data: PrivateData) -> dict[str, Any]:
        return {"model": "ridge", **super()._trainer_arguments(data)}
