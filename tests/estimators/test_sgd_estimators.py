"""DPSGDClassifier (linear, mlp, the user's own module) and DPSGDRegressor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from estimator_checks import DECLARED, NoNoise, binary_task, regression_task, three_class_task
from sklearn.base import clone
from sklearn.linear_model import LinearRegression

from dpml.errors import ConfigError
from dpml.estimators import DPSGDClassifier, DPSGDRegressor

SHORT: dict[str, Any] = {"expected_batch_size": 200, "steps": 100, "device": "cpu"}
BINARY: dict[str, Any] = {"classes": ["no", "yes"], **DECLARED, **SHORT}
THREE: dict[str, Any] = {"classes": [10, 20, 30], **DECLARED, **SHORT}
NUMBER: dict[str, Any] = {"target_bounds": (0.0, 100.0), **DECLARED, **SHORT}


class Network(torch.nn.Module):
    """Two layers from a fixed start."""

    def __init__(self, inputs: int = 3, outputs: int = 2) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(0)
            self.layers = torch.nn.Sequential(torch.nn.Linear(inputs, 8), torch.nn.Tanh(), torch.nn.Linear(8, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x)
        return result


@pytest.mark.parametrize("model", ["linear", "mlp", Network()], ids=["linear", "mlp", "module"])
def test_two_classes(model: Any) -> None:
    X, y = binary_task()
    fitted = DPSGDClassifier(8.0, model=model, **BINARY).fit(X, y)
    assert fitted.score(X, y) > 0.8  # about 0.93 without privacy, 0.54 for a constant
    scores = fitted.decision_function(X)
    assert scores.shape == (2_000,)
    np.testing.assert_array_equal(fitted.predict(X), np.where(scores > 0, "yes", "no"))
    np.testing.assert_allclose(fitted.predict_proba(X)[:, 1], 1 / (1 + np.exp(-scores)), rtol=1e-4)
    assert fitted.n_iter_ == 100
    assert hasattr(fitted, "coef_") == (model == "linear")
    assert fitted.guarantee_.epsilon <= 8.0


@pytest.mark.parametrize("model", ["linear", "mlp", Network(2, 3)], ids=["linear", "mlp", "module"])
def test_three_classes(model: Any) -> None:
    X, y = three_class_task()
    fitted = DPSGDClassifier(8.0, model=model, **THREE).fit(X, y)
    assert fitted.score(X, y) > 0.85  # 0.99 without privacy, 0.34 for a constant
    assert fitted.decision_function(X).shape == fitted.predict_proba(X).shape == (2_000, 3)
    if model == "linear":
        assert fitted.coef_.shape == (3, 2)
        assert fitted.intercept_.shape == (3,)
        np.testing.assert_allclose(fitted.decision_function(X), X @ fitted.coef_.T + fitted.intercept_, rtol=1e-5)


def test_fit_trains_a_copy_of_the_module() -> None:
    X, y = binary_task(300)
    network = Network()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    estimator = DPSGDClassifier(8.0, model=network, noise_source=NoNoise(), **BINARY)
    first = estimator.fit(X, y).decision_function(X)
    assert estimator.get_params()["model"] is network
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    np.testing.assert_array_equal(first, estimator.fit(X, y).decision_function(X))  # it starts afresh every time
    assert not torch.equal(first_weight(estimator.model_.module), before["layers.0.weight"])


def first_weight(module: Any) -> torch.Tensor:
    weight: torch.Tensor = module.state_dict()["layers.0.weight"]
    return weight


def test_coefficients_of_an_earlier_linear_fit_do_not_stay() -> None:
    X, y = binary_task(300)
    estimator = DPSGDClassifier(8.0, **BINARY).fit(X, y)
    assert estimator.coef_.shape == (1, 3)
    estimator.set_params(model="mlp").fit(X, y)
    assert not hasattr(estimator, "coef_")
    assert not hasattr(estimator, "intercept_")


def test_noise_multiplier_in_place_of_epsilon() -> None:
    X, y = binary_task(300)
    fitted = DPSGDClassifier(None, noise_multiplier=2.0, **BINARY).fit(X, y)
    assert fitted.result_.plan.noise_multiplier == 2.0
    assert 0 < fitted.guarantee_.epsilon < 20
    with pytest.raises(ConfigError, match="noise_multiplier"):
        DPSGDClassifier(None, **BINARY).fit(X, y)
    with pytest.raises(ConfigError, match="exclude each other"):
        DPSGDClassifier(1.0, noise_multiplier=2.0, **BINARY).fit(X, y)


def test_networks_need_no_norm_bound() -> None:
    X, y = binary_task(300)
    declared = {**BINARY, "norm_bound": None}
    fitted = DPSGDClassifier(8.0, model="mlp", **declared).fit(1e3 * X, y)
    assert fitted.predict(X).shape == (300,)
    with pytest.raises(ConfigError, match="norm_bound must be declared"):
        DPSGDClassifier(8.0, **declared).fit(X, y)


@pytest.mark.parametrize("model", ["logreg", "MLP"])
def test_unknown_models_are_refused(model: str) -> None:
    X, y = binary_task(20)
    with pytest.raises(ConfigError, match=f"model = '{model}' is not allowed: it must be one of linear, mlp"):
        DPSGDClassifier(model=model, **BINARY).fit(X, y)


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_regression(loss: str) -> None:
    X, y = regression_task()
    fitted = DPSGDRegressor(8.0, loss=loss, **NUMBER).fit(X, y)
    assert fitted.score(X, y) > 0.9  # R² of the noise-free truth is 175/(175 + 4) = 0.978
    assert fitted.coef_.shape == (3,)
    assert isinstance(fitted.intercept_, float)
    np.testing.assert_allclose(fitted.predict(X), np.clip(X @ fitted.coef_ + fitted.intercept_, 0, 100), rtol=1e-5)
    assert fitted.n_iter_ == 100
    assert fitted.model_.kind == {"squared": "ridge", "huber": "huber"}[loss]
    assert fitted.result_.plan.parameters.max_grad_norm == 0.25  # 0.1 · norm_bound
    with pytest.raises(ConfigError, match="loss = 'absolute' is not allowed"):
        clone(fitted).set_params(loss="absolute").fit(X, y)


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_regression_without_noise_is_least_squares(loss: str) -> None:
    """Full batches, no noise, many steps, and a clipping norm that clips nothing: scikit-learn's own answer."""
    X, y = regression_task()
    reference = LinearRegression().fit(X, y)
    fitted = DPSGDRegressor(
        1e4,
        loss=loss,
        loss_parameter=1.0 if loss == "huber" else None,  # residuals are far smaller: squared loss in effect
        max_grad_norm=10.0,
        learning_rate=0.3,
        noise_source=NoNoise(),
        **{**NUMBER, "expected_batch_size": 2_000, "steps": 400},
    ).fit(X, y)
    np.testing.assert_allclose(fitted.coef_, reference.coef_, rtol=1e-3)
    assert fitted.intercept_ == pytest.approx(reference.intercept_, rel=1e-3)
