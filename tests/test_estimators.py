"""DPLogisticRegression as scikit-learn users meet it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dpml import DPLogisticRegression
from dpml.errors import ConfigError
from dpml.mechanisms import FixedNoise

DECLARED: dict[str, Any] = {"classes": ["no", "yes"], "norm_bound": 2.0, "n_declared": 2_000}


def task(n: int = 2_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    y = np.where(X @ [2.0, -1.0, 0.5] + 0.2 + 0.3 * rng.normal(size=n) > 0, "yes", "no")
    return X, y


@pytest.mark.parametrize("method", ["auto", "objective", "output", "dp_sgd"])
def test_fit_predict_score(method: str) -> None:
    X, y = task()
    model = DPLogisticRegression(epsilon=8.0, method=method, **DECLARED).fit(X, y)
    assert model.score(X, y) > 0.85  # about 0.93 without privacy, 0.54 for a constant
    assert model.predict_proba(X).shape == (2_000, 2)
    assert set(model.predict(X)) == {"no", "yes"}
    assert model.coef_.shape == (1, 3)
    assert model.intercept_.shape == (1,)
    assert list(model.classes_) == ["no", "yes"]
    assert model.guarantee_.epsilon <= 8.0


def test_coefficients_and_decisions_agree() -> None:
    X, y = task()
    model = DPLogisticRegression(epsilon=8.0, **{**DECLARED, "norm_bound": 10.0}).fit(X, y)  # no row is clipped
    np.testing.assert_allclose(model.decision_function(X), X @ model.coef_[0] + model.intercept_[0], rtol=1e-9)


@pytest.mark.parametrize("missing", ["classes", "norm_bound", "n_declared"])
def test_what_is_not_declared_is_asked_for(missing: str) -> None:
    X, y = task(50)
    with pytest.raises(ConfigError, match=f"{missing} must be declared"):
        DPLogisticRegression(**{k: v for k, v in DECLARED.items() if k != missing}).fit(X, y)


def test_init_stores_and_fit_changes_no_parameter() -> None:
    classes = ["no", "yes"]
    model = DPLogisticRegression(epsilon=3.0, classes=classes, norm_bound=2.0, n_declared=2_000)
    assert model.get_params()["classes"] is classes
    before = dict(model.get_params())
    X, y = task(200)
    model.fit(X, y)
    assert model.get_params() == before
    again = clone(model)
    assert again.get_params()["epsilon"] == 3.0
    assert not hasattr(again, "result_")


def test_a_fold_without_a_class_changes_nothing() -> None:
    X, y = task(300)
    first = DPLogisticRegression(epsilon=2.0, noise_source=FixedNoise(1), **DECLARED).fit(X[y == "no"], y[y == "no"])
    assert list(first.classes_) == ["no", "yes"]
    assert first.predict_proba(X).shape == (300, 2)


def test_pandas_pipeline_and_cross_validation() -> None:
    X, y = task(600)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = DPLogisticRegression(epsilon=20.0, **DECLARED)
    fitted = model.fit(frame, pd.Series(y))
    assert list(fitted.feature_names_in_) == ["a", "b", "c"]
    pipeline = make_pipeline(FunctionTransformer(np.tanh), clone(model))
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.75


def test_rows_with_nan_contribute_nothing() -> None:
    X, y = task(400)
    dirty = np.vstack([X, [[np.nan, 0, 0], [np.inf, 1, 1]]])
    labels = np.append(y, ["yes", "no"])
    models = [
        DPLogisticRegression(epsilon=1.0, noise_source=FixedNoise(4), **DECLARED).fit(*data)
        for data in ((X, y), (dirty, labels))
    ]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)


def test_wrong_number_of_features_is_refused_at_prediction() -> None:
    X, y = task(100)
    model = DPLogisticRegression(**DECLARED).fit(X, y)
    with pytest.raises(ValueError, match="3 features"):
        model.predict(X[:, :2])
