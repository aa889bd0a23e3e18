"""The solver reaches its tolerance on nasty problems, and says so when it does not."""

import numpy as np
import pytest
from erm_checks import check_solution_is_verified, hard_problem, slow_gradient
from scipy.optimize import brentq
from scipy.special import expit

from dpml import erm, errors
from dpml.erm import solver


def norm_at(theta, x, y, lambda_sum, linear=0.0):
    return np.linalg.norm(slow_gradient(theta, np.asarray(x), y, lambda_sum, linear))


def random_problem(n=50, d=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    return x, np.where(rng.random(n) < expit(3 * x[:, 0]), 1.0, -1.0), rng.normal(size=d)


@pytest.mark.parametrize("lambda_sum", [1e-6, 1e-2, 1.0, 1e3])
@pytest.mark.parametrize("noise", [0.0, 1.0, 1e4])
def test_tolerance_is_met_over_scales_of_regularisation_and_noise(lambda_sum, noise):
    x, y, b = random_problem()
    found = erm.minimise(x, y, lambda_sum, linear=noise * b)
    assert norm_at(found.theta, x, y, lambda_sum, noise * b) <= 1e-6
    assert found.gradient_norm <= 5e-7


def test_one_dimension_against_a_root_finder():
    x, y = np.array([[0.5], [-1.0], [0.8]]), np.array([1.0, 1.0, -1.0])
    root = brentq(lambda t: slow_gradient(np.array([t]), x, y, 0.3, 0.7)[0], -50, 50, xtol=1e-14)
    assert erm.minimise(x, y, 0.3, linear=[0.7], tolerance=1e-10).theta[0] == pytest.approx(root, abs=1e-9)


def test_separable_data():
    x = np.array([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.2]])
    y = np.array([1.0, 1.0, -1.0])
    found = erm.minimise(x, y, 1e-8, tolerance=1e-9)
    assert norm_at(found.theta, x, y, 1e-8) <= 1e-9
    assert found.theta[0] > 10


def test_ill_conditioned_data():
    x, y, lambda_sum = hard_problem()
    assert norm_at(erm.minimise(x, y, lambda_sum).theta, x, y, lambda_sum) <= 1e-6
    check_solution_is_verified()


def test_a_single_record_against_its_scalar_equation():
    """θ = t x with λ t = σ(-t ‖x‖²)."""
    x = np.array([[0.6, -0.3]])
    t = brentq(lambda t: 2.0 * t - expit(-t * 0.45), 0, 1, xtol=1e-15)
    assert erm.minimise(x, [1.0], 2.0, tolerance=1e-11).theta == pytest.approx(t * x[0], abs=1e-11)


def test_no_record_at_all():
    b = np.array([3.0, -4.0])
    assert erm.minimise(np.zeros((0, 2)), np.zeros(0), 2.0, linear=b).theta == pytest.approx(-b / 2.0)
    assert (erm.minimise(np.zeros((0, 2)), np.zeros(0), 2.0).theta == 0.0).all()


def test_zero_rows_change_nothing():
    x, y, b = random_problem()
    more = np.vstack([x, np.zeros((30, 4))]), np.r_[y, np.ones(30)]
    one, two = (erm.minimise(*data, 0.5, linear=b, tolerance=1e-10).theta for data in ((x, y), more))
    assert one == pytest.approx(two, abs=1e-9)


def test_one_class_only_and_float32():
    x, y, _ = random_problem()
    found = erm.minimise(x.astype(np.float32), np.ones_like(y), 0.1)
    assert norm_at(found.theta, x.astype(np.float32).astype(float), np.ones_like(y), 0.1) <= 1e-6


def test_conjugate_gradients_for_many_features(monkeypatch):
    x, y, b = random_problem(d=30)
    dense = erm.minimise(x, y, 0.01, linear=b, tolerance=1e-9).theta
    monkeypatch.setattr(solver, "DENSE_LIMIT", 0)
    assert erm.minimise(x, y, 0.01, linear=b, tolerance=1e-9).theta == pytest.approx(dense, abs=1e-6)


def test_newton_alone_gets_there(monkeypatch):
    """From a far start, where full Newton steps overshoot, the line search has to work."""
    x, y, b = random_problem()
    monkeypatch.setattr(solver, "_quasi_newton", lambda x, *rest: (np.full(x.shape[1], 300.0), 0))
    found = erm.minimise(x, y, 1e-3, linear=b)
    assert norm_at(found.theta, x, y, 1e-3, b) <= 1e-6


@pytest.mark.parametrize("name", ["lambda_sum", "tolerance"])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_bad_numbers_are_refused_by_name(name, value):
    x, y, _ = random_problem()
    with pytest.raises(errors.ConfigError, match=name):
        erm.minimise(x, y, **{"lambda_sum": 1.0, "tolerance": 1e-6, name: value})


def test_a_tolerance_below_rounding_is_an_error_not_a_release():
    x, y, b = random_problem()
    with pytest.raises(errors.SolverError, match="Nothing was released"):
        erm.minimise(x, y, 1.0, linear=1e6 * b, tolerance=1e-30)


def test_a_solver_that_stops_early_is_an_error(monkeypatch):
    """Both stages cut to nothing: the answer is far off and must not come out."""
    x, y, b = random_problem()
    monkeypatch.setattr(solver, "MAX_NEWTON", 0)
    monkeypatch.setattr(solver, "MAX_QUASI_NEWTON", 1)
    with pytest.raises(errors.SolverError, match="gradient norm"):
        erm.minimise(x, y, 0.1, linear=b)


def test_nan_that_slips_through_is_an_error(monkeypatch):
    x, y, b = random_problem()
    monkeypatch.setattr(solver, "_newton", lambda theta, *rest: (theta * np.nan, 1))
    with pytest.raises(errors.SolverError):
        erm.minimise(x, y, 0.1, linear=b)
