"""The softmax minimum: against scikit-learn's, against finite differences, and verified."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from dpml import errors
from dpml.erm import newton, softmax
from dpml.erm.losses import LOGISTIC
from dpml.erm.softmax import SoftmaxProblem, minimise_softmax, softmax_rows


def problem(n=120, d=4, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.7)
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    x[:, -1] = 0.5
    return x, (x @ rng.normal(size=(d, n_classes)) * 3 + rng.gumbel(size=(n, n_classes))).argmax(axis=1)


def slow_value(theta, x, y, lambda_sum):
    """Record by record."""
    W = theta.reshape(-1, x.shape[1])
    total = lambda_sum / 2 * float((W * W).sum())
    for xi, yi in zip(x, y, strict=True):
        scores = W @ xi
        total += float(np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[yi])
    return total


def slow_gradient(theta, x, y, lambda_sum):
    W = theta.reshape(-1, x.shape[1])
    total = lambda_sum * W
    for xi, yi in zip(x, y, strict=True):
        p = np.exp(W @ xi - (W @ xi).max())
        p /= p.sum()
        p[yi] -= 1.0
        total = total + np.outer(p, xi)
    return total.reshape(-1)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_value_gradient_and_hessian_are_the_finite_differences(kind):
    x, y = problem(n=9)
    rng = np.random.default_rng(1)
    theta, direction = rng.normal(size=(2, 12))
    made = SoftmaxProblem(LOGISTIC, kind(x), y, 0.7, np.zeros(12), 3)
    z = made.scores(theta)
    assert made.value(theta, z) == pytest.approx(slow_value(theta, x, y, 0.7), rel=1e-13)
    assert made.gradient(theta, z) == pytest.approx(slow_gradient(theta, x, y, 0.7), rel=1e-11)
    step = 1e-6
    rise = [(slow_value(theta + s * e, x, y, 0.7)) for e in step * np.eye(12) for s in (1, -1)]
    assert made.gradient(theta, z) == pytest.approx(np.diff(rise)[::2] / (-2 * step), abs=1e-7)
    image = made.back(made.bent(made.curvatures(z), made.scores(direction))) + 0.7 * direction
    ends = [slow_gradient(theta + s * step * direction, x, y, 0.7) for s in (1, -1)]
    assert image == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-7)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_the_minimum_is_scikit_learns(kind, n_classes):
    """Strong convexity: the two differ by at most (our norm + its norm)/λ."""
    x, y = problem(n_classes=n_classes, seed=n_classes)
    y[:n_classes] = np.arange(n_classes)
    lambda_sum = 0.5
    if n_classes == 2:  # there it fits one vector for the difference of the two: its ridge on w₁ - w₀ = 2 w₁ is half
        theirs = LogisticRegression(C=2 / lambda_sum, fit_intercept=False, tol=1e-10, max_iter=5000).fit(x, y).coef_
        other = np.concatenate([-theirs[0] / 2, theirs[0] / 2])
    else:
        model = LogisticRegression(C=1 / lambda_sum, fit_intercept=False, tol=1e-10, max_iter=5000, solver="newton-cg")
        other = model.fit(x, y).coef_.reshape(-1)
    distance = np.linalg.norm(slow_gradient(other, x, y, lambda_sum)) / lambda_sum
    assert distance < 1e-3
    ours = minimise_softmax(kind(x), y, n_classes, lambda_sum, tolerance=1e-9)
    assert np.linalg.norm(slow_gradient(ours.theta, x, y, lambda_sum)) <= 1e-9
    assert np.linalg.norm(ours.theta - other) <= distance + 1e-8


@pytest.mark.parametrize("lambda_sum", [1e-4, 1.0, 1e3])
def test_tolerance_is_met_over_scales_of_regularisation(lambda_sum):
    x, y = problem()
    y[y == 2] = 0  # a class without a record
    found = minimise_softmax(x, y, 3, lambda_sum, tolerance=1e-7)
    assert np.linalg.norm(slow_gradient(found.theta, x, y, lambda_sum)) <= 1e-7
    assert found.gradient_norm <= 5e-8
    assert np.abs(found.theta.reshape(3, 4).sum(axis=0)).max() <= 1e-6 / lambda_sum  # no common shift is left


def test_a_sample_of_the_rows_and_no_matrix_give_the_same(monkeypatch):
    x, y = problem(n=400)
    exact = minimise_softmax(x, y, 3, 0.3, tolerance=1e-10).theta
    monkeypatch.setattr(newton, "LEAST_SAMPLE", 3)
    assert minimise_softmax(sparse.csr_array(x), y, 3, 0.3, tolerance=1e-10).theta == pytest.approx(exact, abs=1e-9)
    monkeypatch.setattr(newton, "DENSE_LIMIT", 0)
    assert minimise_softmax(x, y, 3, 0.3, tolerance=1e-10).theta == pytest.approx(exact, abs=1e-9)


def test_no_record_and_a_single_one():
    assert (minimise_softmax(np.zeros((0, 2)), np.zeros(0), 3, 2.0).theta == 0.0).all()
    x = np.array([[0.6, -0.3]])
    found = minimise_softmax(x, [1], 3, 2.0, tolerance=1e-11)
    assert np.linalg.norm(slow_gradient(found.theta, x, [1], 2.0)) <= 1e-11


def test_rows_without_a_usable_label_contribute_nothing():
    x, y = problem(n=30)
    more = np.vstack([x, np.full((4, 4), 0.4), np.full((1, 4), np.nan), np.full((1, 4), np.inf)])
    labels = np.r_[y, 3.0, -1.0, 0.5, np.nan, 1.0, 2.0]
    for kind in (np.asarray, sparse.csr_array):
        rows, kept = softmax_rows(kind(more), labels, norm_bound=2.0, n_features=4, n_classes=3)
        thick = rows.toarray() if sparse.issparse(rows) else rows
        assert (thick[30:] == 0.0).all()
        assert (kept[:30] == y).all()
        assert np.isin(kept, [0, 1, 2]).all()
        alone = minimise_softmax(x, y, 3, 0.5, tolerance=1e-10).theta
        assert minimise_softmax(rows, kept, 3, 0.5, tolerance=1e-10).theta == pytest.approx(alone, abs=1e-9)


def test_long_rows_are_held_to_the_bound():
    rows, _ = softmax_rows(np.full((1, 4), 50.0), [1], norm_bound=0.5, n_features=4, n_classes=3)
    assert np.linalg.norm(rows) == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize("name", ["lambda_sum", "tolerance", "n_classes"])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_bad_numbers_are_refused_by_name(name, value):
    x, y = problem()
    if name == "n_classes" and not np.isfinite(value):
        value = 1
    with pytest.raises(errors.ConfigError, match=name):
        minimise_softmax(x, y, **{"n_classes": 3, "lambda_sum": 1.0, "tolerance": 1e-6, name: value})


@pytest.mark.parametrize("label", [3, -1, 0.5])
def test_labels_out_of_range_are_refused(label):
    with pytest.raises(errors.DataError, match="class indexes"):
        minimise_softmax(np.eye(2), [0, label], 3, 1.0)


def test_what_is_not_verified_does_not_come_out(monkeypatch):
    x, y = problem()
    with pytest.raises(errors.SolverError, match="Nothing was released"):
        minimise_softmax(x, y, 3, 1.0, tolerance=1e-30)
    monkeypatch.setattr(softmax, "MAX_NEWTON", 0)
    with pytest.raises(errors.SolverError, match="gradient norm"):
        minimise_softmax(x, y, 3, 1.0)
