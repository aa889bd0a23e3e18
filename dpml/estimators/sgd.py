"""DP-SGD as scikit-learn estimators: linear models, small networks and the user's own torch modules."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.special import expit, softmax

from dpml.arguments import is_positive, one_of
from dpml.data import PrivateData
from dpml.errors import ConfigError
from dpml.mechanisms import NoiseSource
from dpml.release import PrivateModel
from dpml.results import Guarantee

from .base import ClassifierParts, LinearParts, Self
from .regression import RegressorParts

if TYPE_CHECKING:
    import torch

_COMMON = (
    "delta",
    "neighboring_relation",
    "accountant",
    "noise_multiplier",
    "max_grad_norm",
    "expected_batch_size",
    "steps",
    "epochs",
    "learning_rate",
    "momentum",
    "optimizer",
    "schedule",
    "clipping",
    "averaging",
    "solution_norm",
    "device",
    "seed",
    "noise_source",
    "dataset_ledger",
    "dataset_epsilon",
    "dataset_delta",
    "dataset_filter",
)


class DPSGDClassifier(ClassifierParts, LinearParts):
    """A classifier trained by DP-SGD under (ε, δ)-differential privacy.

    Parameters:
        epsilon, delta: the budget of one ``fit``; default δ is min(1e-5, 0.1/n_declared).  With ``noise_multiplier``
            the budget follows from the noise and ``epsilon`` must be ``None``.
        model: ``"linear"`` (logistic loss for two classes, softmax for more), ``"mlp"`` or a ``torch.nn.Module`` that
            maps rows ``(B, d)`` to logits.  ``fit`` trains a copy of a module, always from the weights that it has.
        classes, norm_bound, n_declared: as for :class:`~dpml.DPLogisticRegression`.  ``norm_bound`` may stay ``None``
            for networks (rows are then not clipped: it is the gradients that DP-SGD bounds).
        fit_intercept: append a constant column to the rows of the linear model; networks have their own.
        hidden: widths of the hidden layers of ``"mlp"``.
        loss: per-example loss ``loss(logits, targets) -> (B,)`` for your own module; default cross entropy.
        seed: initialisation of ``"mlp"``; noise and sampling never depend on it.
        neighboring_relation, accountant, noise_multiplier, max_grad_norm, expected_batch_size, steps, epochs,
        learning_rate, momentum, optimizer, schedule, clipping, averaging, solution_norm, device: as in
        :class:`dpml.PrivateTrainer`.
        dataset_ledger, dataset_epsilon, dataset_delta, dataset_filter, noise_source: as for
            :class:`~dpml.DPLogisticRegression`.

    Attributes after ``fit``:
        classes_ ``(K,)``, n_iter_ (noisy steps, a public number), n_features_in_, feature_names_in_, model_,
        guarantee_, result_; with ``model="linear"`` also coef_ and intercept_.
    """

    _example: ClassVar[str] = "classes=[0, 1], norm_bound=1.0, n_declared=36_000"
    _passed_on: ClassVar[tuple[str, ...]] = (*_COMMON, "hidden", "loss")

    def __init__(
        self,
        epsilon: float | None = 1.0,
        delta: float | None = None,
        model: str | torch.nn.Module = "linear",
        *,
        classes: Sequence[Any] | str | None = None,
        norm_bound: float | None = None,
        n_declared: int | None = None,
        neighboring_relation: str = "add_remove",
        accountant: str = "best",
        noise_multiplier: float | None = None,
        max_grad_norm: float = 1.0,
        expected_batch_size: int | None = None,
        steps: int | None = None,
        epochs: float | None = None,
        learning_rate: float | str = "auto",
        momentum: float = 0.9,
        fit_intercept: bool = True,
        solution_norm: float | str = "auto",
        hidden: Sequence[int] = (64,),
        loss: Callable[..., torch.Tensor] | None = None,
        device: str = "auto",
        seed: int = 0,
        dataset_ledger: str | PathLike[str] | None = None,
        dataset_epsilon: float | None = None,
        dataset_delta: float | None = None,
        dataset_filter: str = "basic",
        noise_source: NoiseSource | None = None,
        optimizer: str = "sgd",
        schedule: str = "linear",
        clipping: str = "flat",
        averaging: str = "none",
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.model = model
        self.classes = classes
        self.norm_bound = norm_bound
        self.n_declared = n_declared
        self.neighboring_relation = neighboring_relation
        self.accountant = accountant
        self.noise_multiplier = noise_multiplier
        self.max_grad_norm = max_grad_norm
        self.expected_batch_size = expected_batch_size
        self.steps = steps
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.fit_intercept = fit_intercept
        self.solution_norm = solution_norm
        self.hidden = hidden
        self.loss = loss
        self.device = device
        self.seed = seed
        self.dataset_ledger = dataset_ledger
        self.dataset_epsilon = dataset_epsilon
        self.dataset_delta = dataset_delta
        self.dataset_filter = dataset_filter
        self.noise_source = noise_source
        self.optimizer = optimizer
        self.schedule = schedule
        self.clipping = clipping
        self.averaging = averaging

    @property
    def _needed(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("classes", "norm_bound", "n_declared") if self._is_linear() else ("classes", "n_declared")

    def fit(self: Self, X: Any, y: Any, **unsupported: Any) -> Self:
        """Train on ``X (n, d)``, ``y (n,)``; see :meth:`DPLogisticRegression.fit`."""
        if isinstance(self.model, str):
            one_of("model", self.model, ("linear", "mlp"), " or a torch.nn.Module")
        super().fit(X, y, **unsupported)
        self.n_iter_ = int(self.result_.plan.steps)
        return self

    def _is_linear(self) -> bool:
        return isinstance(self.model, str) and self.model == "linear"

    def _adds_constant(self) -> bool:
        return bool(self.fit_intercept) and self._is_linear()

    def _trainer_arguments(self, data: PrivateData) -> dict[str, Any]:
        arguments = _sgd_arguments(self, super()._trainer_arguments(data))
        if self._is_linear():
            return {"model": "logreg" if len(data.public.classes) == 2 else "softmax", **arguments}
        return {"model": self.model if isinstance(self.model, str) else copy.deepcopy(self.model), **arguments}

    def _publish(self, model: PrivateModel, guarantee: Guarantee) -> None:
        super()._publish(model, guarantee)
        self.__dict__.pop("coef_", None)  # of an earlier fit of another model
        self.__dict__.pop("intercept_", None)
        if self._is_linear():
            self.coef_, self.intercept_ = self._split(model.weights["weight"])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities ``(n, K)`` in the order of ``classes``."""
        scores = self._scores(X)
        if scores.ndim == 1 or scores.shape[1] == 1:
            positive = expit(scores.reshape(-1))
            return np.column_stack([1.0 - positive, positive])
        return np.asarray(softmax(scores, axis=1))

    def _scores(self, X: Any) -> np.ndarray:
        if getattr(getattr(self, "model_", None), "kind", None) != "mlp":
            return super()._scores(X)
        from dpml.sgd import forward

        # in double precision, so that a row's score does not depend on how many rows are scored with it
        return np.asarray(forward(self.model_._network().double(), self._encoded(X)))


class DPSGDRegressor(RegressorParts):
    """A linear regression trained by DP-SGD under (ε, δ)-differential privacy.

    Parameters:
        loss: ``"squared"`` or ``"huber"``, of the target scaled to [−1, 1] by ``target_bounds``.
        loss_parameter: threshold of ``"huber"`` in units of half the target's range, default 0.1.
        max_grad_norm: clipping norm C; ``None`` for norm_bound × the threshold, which is all that a Huber gradient can
            reach, and under which squared loss acts like Huber's.
        target_bounds: public ``(low, high)`` of the target; values outside are clamped, predictions too.
        The other parameters are those of :class:`DPSGDClassifier`.

    Attributes after ``fit``:
        coef_ ``(d,)`` and intercept_ (a float) in the target's own units, n_iter_ (noisy steps, a public number),
        n_features_in_, feature_names_in_, model_, guarantee_, result_.
    """

    _needed: ClassVar[tuple[str, ...]] = ("target_bounds", "norm_bound", "n_declared")
    _example: ClassVar[str] = "target_bounds=(0.0, 100.0), norm_bound=1.0, n_declared=36_000"
    _passed_on: ClassVar[tuple[str, ...]] = (*_COMMON, "loss_parameter")

    def __init__(
        self,
        epsilon: float | None = 1.0,
        delta: float | None = None,
        loss: str = "squared",
        *,
        loss_parameter: float | None = None,
        target_bounds: tuple[float, float] | None = None,
        norm_bound: float | None = None,
        n_declared: int | None = None,
        neighboring_relation: str = "add_remove",
        accountant: str = "best",
        noise_multiplier: float | None = None,
        max_grad_norm: float | None = None,
        expected_batch_size: int | None = None,
        steps: int | None = None,
        epochs: float | None = None,
        learning_rate: float | str = "auto",
        momentum: float = 0.9,
        fit_intercept: bool = True,
        solution_norm: float | str = "auto",
        device: str = "auto",
        seed: int = 0,
        dataset_ledger: str | PathLike[str] | None = None,
        dataset_epsilon: float | None = None,
        dataset_delta: float | None = None,
        dataset_filter: str = "basic",
        noise_source: NoiseSource | None = None,
        optimizer: str = "sgd",
        schedule: str = "linear",
        clipping: str = "flat",
        averaging: str = "none",
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.loss = loss
        self.loss_parameter = loss_parameter
        self.target_bounds = target_bounds
        self.norm_bound = norm_bound
        self.n_declared = n_declared
        self.neighboring_relation = neighboring_relation
        self.accountant = accountant
        self.noise_multiplier = noise_multiplier
        self.max_grad_norm = max_grad_norm
        self.expected_batch_size = expected_batch_size
        self.steps = steps
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.fit_intercept = fit_intercept
        self.solution_norm = solution_norm
        self.device = device
        self.seed = seed
        self.dataset_ledger = dataset_ledger
        self.dataset_epsilon = dataset_epsilon
        self.dataset_delta = dataset_delta
        self.dataset_filter = dataset_filter
        self.noise_source = noise_source
        self.optimizer = optimizer
        self.schedule = schedule
        self.clipping = clipping
        self.averaging = averaging

    def fit(self: Self, X: Any, y: Any, **unsupported: Any) -> Self:
        """Train on ``X (n, d)``, ``y (n,)``; see :meth:`DPLogisticRegression.fit`."""
        one_of("loss", self.loss, tuple(_REGRESSIONS))
        super().fit(X, y, **unsupported)
        self.n_iter_ = int(self.result_.plan.steps)
        return self

    def _trainer_arguments(self, data: PrivateData) -> dict[str, Any]:
        arguments = _sgd_arguments(self, super()._trainer_arguments(data))
        if self.max_grad_norm is None:
            assert data.public.norm_bound is not None
            given = self.loss_parameter
            threshold = float(given) if given is not None and is_positive(given) else DEFAULT_THRESHOLD
            arguments["max_grad_norm"] = data.public.norm_bound * threshold
        return {"model": _REGRESSIONS[self.loss], **arguments}


DEFAULT_THRESHOLD = 0.1
_REGRESSIONS = {"squared": "ridge", "huber": "huber"}


def _sgd_arguments(estimator: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """With ``epsilon``, or with the noise in its place; the default budget gives way to a ``noise_multiplier``."""
    if estimator.epsilon is None and estimator.noise_multiplier is None:
        raise ConfigError(
            "epsilon = None needs a noise_multiplier, from which the budget follows. Give one of the two."
        )
    return {"method": "dp_sgd", "epsilon": estimator.epsilon, **arguments}
