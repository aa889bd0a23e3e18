"""DPLogisticRegression (several classes, sparse rows), DPLinearSVC and DPRidge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from estimator_checks import (
    DECLARED,
    WEIGHTS,
    NoNoise,
    binary_task,
    regression_task,
    three_class_task,
    under_test,
)
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dpml.estimators import DPLinearSVC, DPLogisticRegression, DPRidge
from dpml.mechanisms import FixedNoise

SPARSE = [sparse.csr_matrix, sparse.csr_array, sparse.csc_matrix, sparse.coo_array]


def make(name: str, epsilon: float = 8.0, **more: Any) -> Any:
    declared: dict[str, Any] = {
        "DPLogisticRegression": {"classes": ["no", "yes"]},
        "DPLinearSVC": {"classes": ["no", "yes"]},
        "DPRidge": {"target_bounds": (0.0, 100.0)},
    }[name]
    kind: Any = {"DPLogisticRegression": DPLogisticRegression, "DPLinearSVC": DPLinearSVC, "DPRidge": DPRidge}[name]
    return kind(epsilon, **{**DECLARED, **declared, **more})


def task_of(name: str, n: int = 2_000) -> tuple[np.ndarray, np.ndarray]:
    return regression_task(n) if name == "DPRidge" else binary_task(n)


ALL = ["DPLogisticRegression", "DPLinearSVC", "DPRidge"]


@pytest.mark.parametrize("method", ["auto", "objective", "output"])
def test_linear_svc_learns(method: str) -> None:
    X, y = binary_task()
    model = make("DPLinearSVC", method=method).fit(X, y)
    assert model.score(X, y) > 0.85  # about 0.93 without privacy, 0.54 for a constant
    assert model.coef_.shape == (1, 3)
    assert model.intercept_.shape == (1,)
    assert model.guarantee_.epsilon <= 8.0
    assert not hasattr(model, "predict_proba")


def test_ridge_learns_in_the_units_of_the_target() -> None:
    X, y = regression_task()
    model = make("DPRidge", epsilon=20.0).fit(X, y)
    assert model.score(X, y) > 0.9  # R² of the noise-free truth is 175/(175 + 4) = 0.978
    assert model.coef_.shape == (3,)
    assert isinstance(model.intercept_, float)
    np.testing.assert_allclose(model.coef_, 10 * WEIGHTS, atol=6)
    assert abs(model.intercept_ - 50) < 5


def test_ridge_without_noise_is_least_squares() -> None:
    """With ε → ∞ and no noise the regularisation vanishes, so scikit-learn's least squares must come out."""
    X, y = regression_task()
    model = make("DPRidge", epsilon=1e4, noise_source=NoNoise()).fit(X, y)
    reference = LinearRegression().fit(X, y)
    np.testing.assert_allclose(model.coef_, reference.coef_, rtol=0.02)
    assert abs(model.intercept_ - reference.intercept_) < 0.2


def test_ridge_predictions_stay_within_the_bounds() -> None:
    X, y = regression_task(400)
    model = make("DPRidge", epsilon=1e4, target_bounds=(48.0, 52.0), noise_source=NoNoise()).fit(X, y)
    predicted = model.predict(X)
    assert predicted.min() >= 48.0
    assert predicted.max() <= 52.0


def test_a_target_that_is_no_number_contributes_nothing() -> None:
    X, y = regression_task(300)
    dirty = np.append(y, [np.nan]), np.vstack([X, [[0.1, 0.2, 0.3]]])
    models = [make("DPRidge", noise_source=FixedNoise(3)).fit(*data) for data in ((X, y), (dirty[1], dirty[0]))]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)


@pytest.mark.parametrize("name", ALL)
def test_coefficients_give_the_predictions_where_no_row_is_clipped(name: str) -> None:
    X, y = task_of(name)
    model = make(name, epsilon=50.0).fit(X, y)  # rows are at most 2 long with their constant
    linear = (X @ np.atleast_2d(model.coef_).T).ravel() + model.intercept_
    if name == "DPRidge":
        np.testing.assert_allclose(model.predict(X), np.clip(linear, 0, 100), rtol=1e-9)
    else:
        np.testing.assert_allclose(model.decision_function(X), linear, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(model.predict(X), np.where(linear > 0, "yes", "no"))


@pytest.mark.parametrize("name", ALL)
def test_without_intercept(name: str) -> None:
    X, y = task_of(name, 500)
    model = make(name, fit_intercept=False).fit(X, y)
    expected = 50.0 if name == "DPRidge" else 0.0  # the middle of target_bounds
    assert np.all(np.asarray(model.intercept_) == expected)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("form", SPARSE, ids=lambda form: form.__name__)
def test_sparse_rows_give_the_same_model(name: str, form: Any) -> None:
    X, y = task_of(name, 400)
    X = np.where(np.abs(X) < 0.5, 0.0, X)
    dense = make(name, noise_source=FixedNoise(5)).fit(X, y)
    model = make(name, noise_source=FixedNoise(5)).fit(form(X), y)
    np.testing.assert_allclose(model.coef_, dense.coef_, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(model.intercept_, dense.intercept_, rtol=1e-5, atol=1e-7)
    predicted = model.predict(form(X))
    if name == "DPRidge":
        np.testing.assert_allclose(predicted, model.predict(X), rtol=1e-12)
    else:
        np.testing.assert_array_equal(predicted, model.predict(X))


@pytest.mark.parametrize(("name", "d"), [("DPLogisticRegression", 600_000), ("DPLinearSVC", 600_000), ("DPRidge", 700)])
def test_sparse_rows_are_never_made_dense(name: str, d: int) -> None:
    """One dense copy of the 500 wide rows would be 2.4 GB.  (Ridge needs XᵀX, a dense d × d matrix, but no dense X.)"""
    n = 500
    rng = np.random.default_rng(0)
    rows = sparse.csr_matrix((np.ones(n), (np.arange(n), rng.integers(0, 50, n))), shape=(n, d))
    y = rng.choice([0.0, 100.0], n) if name == "DPRidge" else rng.choice(["no", "yes"], n)
    with pytest.MonkeyPatch.context() as patch:
        for kind in (sparse.csr_matrix, sparse.csr_array, sparse.csc_matrix, sparse.csc_array):
            for method in ("toarray", "todense"):
                patch.setattr(kind, method, only_square(getattr(kind, method)))
        model = make(name).fit(rows, y)
        assert model.predict(rows).shape == (n,)
        with pytest.raises(AssertionError, match="made dense"):  # the watch is awake
            rows.toarray()
    assert model.n_features_in_ == d


def only_square(original: Any) -> Any:
    def watched(self: Any, *arguments: Any, **options: Any) -> Any:
        assert self.shape[0] == self.shape[1], "a sparse matrix was made dense"
        return original(self, *arguments, **options)

    return watched


@pytest.mark.parametrize("method", ["auto", "objective", "output"])
def test_three_classes_one_against_the_rest(method: str) -> None:
    X, y = three_class_task()
    model = DPLogisticRegression(10.0, method=method, classes=[10, 20, 30], **DECLARED).fit(X, y)
    assert model.score(X, y) > 0.9  # 0.99 without privacy, 0.34 for a constant
    assert model.coef_.shape == (3, 2)
    assert model.intercept_.shape == (3,)
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-12)
    assert model.decision_function(X).shape == probabilities.shape == (2_000, 3)
    np.testing.assert_array_equal(model.predict(X), np.array([10, 20, 30])[probabilities.argmax(axis=1)])
    assert model.guarantee_.epsilon <= 10.0


@pytest.mark.parametrize("method", ["dp_gd", "dp_sgd"])
def test_three_classes_by_descent_are_one_softmax_model(method: str) -> None:
    X, y = three_class_task()
    model = DPLogisticRegression(10.0, method=method, classes=[10, 20, 30], **DECLARED).fit(X, y)
    assert model.model_.kind == "softmax"
    assert model.coef_.shape == (3, 2)
    assert model.score(X, y) > 0.9


def test_columns_follow_the_declared_order_of_the_classes() -> None:
    X, y = binary_task()
    forth = make("DPLogisticRegression", noise_source=NoNoise()).fit(X, y)
    back = make("DPLogisticRegression", classes=["yes", "no"], noise_source=NoNoise()).fit(X, y)
    assert list(back.classes_) == ["yes", "no"]
    np.testing.assert_allclose(back.predict_proba(X), forth.predict_proba(X)[:, ::-1], rtol=1e-6)
    np.testing.assert_array_equal(back.predict(X), forth.predict(X))


@pytest.mark.parametrize("labels", [[0, 1], [False, True], [-1.5, 2.5], ["a", "b"], ["a", 1]])
def test_labels_of_every_type_come_back_as_they_are(labels: list[Any]) -> None:
    X, y = binary_task(300)
    given = np.array([labels[value == "yes"] for value in y], dtype=object)
    model = make("DPLogisticRegression", classes=labels).fit(X, pd.Series(given))
    assert list(model.classes_) == labels
    assert set(model.predict(X)) <= set(labels)


def test_labels_of_y_can_be_declared_public_and_the_guarantee_says_so() -> None:
    X, y = binary_task(300)
    model = make("DPLogisticRegression", classes="from_y").fit(X, y)
    assert list(model.classes_) == ["no", "yes"]
    notes = [text for text in model.guarantee_.assumptions if "from_y" in text]
    assert len(notes) == 1
    assert "declared public" in notes[0]
    assert model.result_.guarantee == model.guarantee_
    declared = make("DPLogisticRegression").fit(X, y)
    assert not any("from_y" in text for text in declared.guarantee_.assumptions)
    with pytest.raises(ValueError, match="at least two classes"):
        make("DPLogisticRegression", classes="from_y").fit(X[y == "no"], y[y == "no"])


@pytest.mark.parametrize("name", ALL)
def test_scikit_learn_habits(name: str) -> None:
    X, y = task_of(name, 600)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = make(name)
    pipeline = make_pipeline(FunctionTransformer(np.tanh, feature_names_out="one-to-one"), clone(model))
    assert pipeline.fit(frame, pd.Series(y)).predict(frame).shape == (600,)
    fitted = model.fit(frame, y)
    assert list(fitted.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame[["b", "a", "c"]])
    assert fitted.set_params(epsilon=2.0).get_params()["epsilon"] == 2.0


def test_under_test_says_that_it_is_not_private() -> None:
    X, y = binary_task(100)
    assert any("NOT PRIVATE" in text for text in under_test("DPLogisticRegression").fit(X, y).guarantee_.assumptions)
