"""The logistic loss, its derivatives and the constants of the proofs, against slow and obvious twins."""

import numpy as np
import pytest
from erm_checks import slow_gradient

from dpml import errors
from dpml.erm import losses, rows


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 3))
    return rng.normal(size=3), x, np.where(rng.random(7) < 0.5, 1.0, -1.0), rng.normal(size=3)


@pytest.mark.parametrize("bound", [0.3, 1.0, 4.0])
def test_constants_are_upper_bounds_that_are_reached(bound):
    """‖∇ℓ‖ and the top eigenvalue of ∇²ℓ over directions and margins: the supremum is L and β to 1e-6."""
    constants = losses.logistic_constants(bound)
    x = np.array([[0.6, 0.8]]) * bound
    gradients, eigenvalues = [], []
    for margin in np.linspace(-20.0, 20.0, 401):
        theta = x[0] / bound**2 * margin
        gradients.append(np.linalg.norm(losses.value_and_gradient(theta, x, np.ones(1), 0.0)[1]))
        eigenvalues.append(np.linalg.eigvalsh(losses.hessian(theta, x, np.ones(1), 0.0))[-1])
    assert max(gradients) <= constants.lipschitz <= max(gradients) * (1 + 1e-6)
    assert max(eigenvalues) <= constants.smoothness * (1 + 1e-12)
    assert constants.smoothness <= max(eigenvalues) * (1 + 1e-6)


@pytest.mark.parametrize("bound", [0.0, -1.0, np.nan, np.inf])
def test_a_norm_bound_that_bounds_nothing_is_refused(bound):
    with pytest.raises(errors.ConfigError, match="norm_bound"):
        losses.logistic_constants(bound)


def test_value_is_the_sum_form(problem):
    theta, x, y, b = problem
    slow = sum(np.log(1 + np.exp(-yi * (xi @ theta))) for xi, yi in zip(x, y, strict=True))
    slow += 0.35 * theta @ theta + b @ theta
    assert losses.value_and_gradient(theta, x, y, 0.7, b)[0] == pytest.approx(slow, rel=1e-13)


def test_gradient_is_the_slow_one_and_the_finite_difference(problem):
    theta, x, y, b = problem
    gradient = losses.value_and_gradient(theta, x, y, 0.7, b)[1]
    assert gradient == pytest.approx(slow_gradient(theta, x, y, 0.7, b), rel=1e-12)
    step = 1e-6
    for j in range(3):
        e = step * np.eye(3)[j]
        up, down = (losses.value_and_gradient(theta + s * e, x, y, 0.7, b)[0] for s in (1, -1))
        assert gradient[j] == pytest.approx((up - down) / (2 * step), abs=1e-7)


def test_hessian_is_the_finite_difference_of_the_gradient(problem):
    theta, x, y, b = problem
    matrix = losses.hessian(theta, x, y, 0.7)
    step = 1e-6
    for j in range(3):
        e = step * np.eye(3)[j]
        up, down = (losses.value_and_gradient(theta + s * e, x, y, 0.7, b)[1] for s in (1, -1))
        assert matrix[:, j] == pytest.approx((up - down) / (2 * step), abs=1e-7)


def test_hessian_of_many_rows_is_the_sum_over_its_blocks(monkeypatch, problem):
    theta, x, y, _ = problem
    whole = losses.hessian(theta, x, y, 0.7)
    monkeypatch.setattr(losses, "HESSIAN_ROWS", 2)
    assert losses.hessian(theta, x, y, 0.7) == pytest.approx(whole, rel=1e-13)


def test_hessian_vector_product(problem):
    theta, x, y, b = problem
    product = losses.hessian_vector(losses.curvatures(theta, x, y), x, 0.7, b)
    assert product == pytest.approx(losses.hessian(theta, x, y, 0.7) @ b, rel=1e-12)


@pytest.mark.parametrize("margin", [-1e4, -800.0, 800.0, 1e4])
def test_extreme_margins_neither_overflow_nor_lose_the_loss(margin):
    value, gradient = losses.value_and_gradient(np.array([margin]), np.ones((1, 1)), np.ones(1), 0.0)
    assert value == pytest.approx(max(0.0, -margin))
    assert gradient[0] == pytest.approx(-1.0 if margin < 0 else 0.0)


# -- rows ----------------------------------------------------------------------------------------------------------


def test_good_rows_are_passed_on_without_a_copy():
    x, y = np.eye(3), np.array([1.0, -1.0, 1.0])
    got_x, got_y = rows.bounded_rows(x, y, norm_bound=1.0, n_features=3)
    assert got_x is x
    assert got_y is y


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("label", [1.0, -1.0])
def test_a_row_with_nan_or_infinity_contributes_nothing(bad, label):
    got_x, got_y = rows.bounded_rows([[0.1, 0.2], [bad, 0.0]], [1, label], norm_bound=1.0, n_features=2)
    assert (got_x == [[0.1, 0.2], [0.0, 0.0]]).all()
    assert (np.abs(got_y) == 1.0).all()


@pytest.mark.parametrize("label", [0.0, 2.0, np.nan, np.inf])
def test_a_row_with_another_label_contributes_nothing(label):
    got_x, got_y = rows.bounded_rows([[0.1, 0.2], [0.3, 0.0]], [-1, label], norm_bound=1.0, n_features=2)
    assert (got_x == [[0.1, 0.2], [0.0, 0.0]]).all()
    assert list(got_y) == [-1.0, 1.0]


@pytest.mark.parametrize("scale", [1.5, 1e9, 1e200, 1e308])
def test_a_long_row_is_scaled_to_the_bound_in_its_direction(scale):
    given = np.array([[0.6, 0.8]]) * scale
    got, _ = rows.bounded_rows(given, [1], norm_bound=0.5, n_features=2)
    assert got == pytest.approx(np.array([[0.3, 0.4]]), rel=1e-12)
    assert (given == np.array([[0.6, 0.8]]) * scale).all()


def test_what_happens_to_a_row_does_not_depend_on_the_others():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(40, 3)) * 2, np.ones(40)
    x[3, 1], y[5] = np.nan, 7.0
    together = rows.bounded_rows(x, y, norm_bound=1.0, n_features=3)[0]
    alone = np.vstack(
        [rows.bounded_rows(x[i : i + 1], y[i : i + 1], norm_bound=1.0, n_features=3)[0] for i in range(40)]
    )
    assert together == pytest.approx(alone, rel=1e-15)
    assert np.linalg.norm(together, axis=1).max() <= 1.0 + 1e-12


@pytest.mark.parametrize(
    ("x", "y"), [(np.zeros((2, 3)), np.zeros(2)), (np.zeros(2), np.zeros(2)), (np.zeros((2, 2)), [1])]
)
def test_shapes_that_do_not_fit_the_plan_are_refused(x, y):
    with pytest.raises(errors.DataError, match="must have shape"):
        rows.bounded_rows(x, y, norm_bound=1.0, n_features=2)


def test_empty_tables_are_fine():
    got_x, got_y = rows.bounded_rows(np.zeros((0, 2)), np.zeros(0), norm_bound=1.0, n_features=2)
    assert got_x.shape == (0, 2)
    assert got_y.shape == (0,)
