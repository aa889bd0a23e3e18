"""The solver reaches its tolerance on nasty problems, and says so when it does not."""

import numpy as np
import pytest
from erm_checks import check_solution_is_verified, hard_problem, slow_gradient
from scipy import sparse
from scipy.optimize import brentq, minimize
from scipy.special import expit

from dpml import erm, errors
from dpml.erm import newton, solver
from dpml.erm.losses import LOGISTIC, Huber, SmoothedHinge, Squared


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


def test_many_features_are_solved_without_a_matrix(monkeypatch):
    x, y, b = random_problem(d=30)
    dense = erm.minimise(x, y, 0.01, linear=b, tolerance=1e-9).theta
    monkeypatch.setattr(newton, "DENSE_LIMIT", 0)
    monkeypatch.setattr(newton, "_factor", None)
    assert erm.minimise(x, y, 0.01, linear=b, tolerance=1e-9).theta == pytest.approx(dense, abs=1e-6)


def test_the_line_search_gets_there_from_far_away(monkeypatch):
    """From a far start, where full Newton steps overshoot."""
    x, y, b = random_problem()
    monkeypatch.setattr(newton, "start", lambda problem: np.full(4, 300.0))
    found = erm.minimise(x, y, 1e-3, linear=b)
    assert norm_at(found.theta, x, y, 1e-3, b) <= 1e-6


def test_a_sample_of_the_rows_is_only_a_start(monkeypatch):
    """Rows whose order is the worst for taking every k-th one: the sample sees one class and one direction only."""
    x, y, b = random_problem(n=800, d=6)
    x[:: newton.SAMPLE_SHARE], y[:: newton.SAMPLE_SHARE] = x[0], 1.0
    exact = erm.minimise(x, y, 0.3, linear=b, tolerance=1e-10).theta
    monkeypatch.setattr(newton, "LEAST_START", 3)
    monkeypatch.setattr(newton, "LEAST_SAMPLE", 3)
    monkeypatch.setattr(newton, "SAMPLE_PER_FEATURE", 1)
    sampled = []
    honest = newton.Problem.every
    monkeypatch.setattr(newton.Problem, "every", lambda self, k: sampled.append(k) or honest(self, k))
    for rows in (x, sparse.csr_array(x)):
        assert erm.minimise(rows, y, 0.3, linear=b, tolerance=1e-10).theta == pytest.approx(exact, abs=1e-9)
    assert len(sampled) == 4


@pytest.mark.parametrize("size", [40, 1000, 20_000, 10**6])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_a_weighted_sample_stands_for_all_rows(size, kind):
    """Σ v x xᵀ against Σ w x xᵀ in the norm of the latter, for lopsided weights: 1 % of the rows hold nearly all.

    With shares ∝ w a row's term is at most (8/7)·Σw/m, so that the relative error of random draws is about
    √(8/7 · 2d/m) (matrix Bernstein without its logarithm, rows of a normal in d dimensions); equal steps are no worse.
    """
    n, d = 50_000, 4
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, d))
    weights = np.where(rng.random(n) < 0.01, 0.25, 1e-5 * rng.random(n))
    rows, shares = newton.sample(kind(x), weights, size)
    assert rows.shape[0] == len(shares) <= min(size, n)
    assert (shares >= 0.0).all()
    dense = rows.toarray() if sparse.issparse(rows) else rows
    whole, part = x.T @ (x * weights[:, None]), dense.T @ (dense * shares[:, None])
    root = np.linalg.inv(np.linalg.cholesky(whole))
    error = np.linalg.norm(root @ (part - whole) @ root.T, 2)
    assert error <= (1e-12 if size >= n else 3.0 * np.sqrt(8 / 7 * 2 * d / size))


@pytest.mark.parametrize("weights", [np.zeros(90), np.eye(90)[3], np.full(90, np.nan)], ids=["none", "one", "nan"])
def test_a_sample_for_weights_that_vanish(weights):
    """The sum of the weights is kept to one step of nine on either side."""
    rows, shares = newton.sample(np.ones((90, 2)), weights, 9)
    assert 1 <= rows.shape[0] == len(shares) <= 9
    assert shares.sum() == pytest.approx(weights.sum(), rel=2 / 9, nan_ok=True)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_preconditioner_of_thin_and_of_full_rows(monkeypatch, share):
    """Sparse rows are multiplied as they are or in dense blocks: the same (Σ w x xᵀ + λ I)⁻¹ r, here by numpy."""
    monkeypatch.setattr(newton, "THIN", share)
    monkeypatch.setattr(newton, "BLOCK", 7)
    rng = np.random.default_rng(2)
    x, weights, r = rng.normal(size=(40, 5)) * (rng.random((40, 5)) < 0.4), rng.random(40), rng.normal(size=5)
    expected = np.linalg.solve(x.T @ np.diag(weights) @ x + 1e-7 * np.eye(5), r)
    for rows in (x, sparse.csr_array(x)):
        assert newton._factor(rows, weights, 1e-7)(r) == pytest.approx(expected, rel=1e-9)


def general_gradient(loss, theta, x, y, lambda_sum, linear):
    """Slopes from the definitions."""
    z = x @ theta
    if isinstance(loss, SmoothedHinge):
        slope = -y * np.clip((1 + loss.width - y * z) / (2 * loss.width), 0, 1)
    elif isinstance(loss, Huber):
        slope = np.sign(z - y) * np.minimum(np.abs(z - y), loss.threshold)
    else:
        slope = z - y if isinstance(loss, Squared) else -y * expit(-y * z)
    return x.T @ slope + lambda_sum * theta + linear


@pytest.mark.parametrize(
    "loss",
    [LOGISTIC, SmoothedHinge(), SmoothedHinge(0.001), SmoothedHinge(100.0), Huber(), Huber(1e-4), Squared(1.0)],
    ids=repr,
)
@pytest.mark.parametrize("lambda_sum", [1e-4, 1.0, 1e3])
@pytest.mark.parametrize("noise", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_every_loss_reaches_the_tolerance(loss, lambda_sum, noise, kind):
    """Random rows, repeated ones (all on a joint at once), a zero row and a constant column."""
    x, y, b = random_problem(n=300, d=5)
    x[50:100], x[7], x[:, 4], x[:150, 2] = x[50], 0.0, 0.5, 0.0
    if isinstance(loss, Huber | Squared):
        y = np.clip(x[:, 0] + 0.1 * y, -1.0, 1.0)
    found = erm.minimise(kind(x), y, lambda_sum, linear=noise * b, tolerance=1e-7, loss=loss)
    assert np.linalg.norm(general_gradient(loss, found.theta, x, y, lambda_sum, noise * b)) <= 1e-7


def test_squared_loss_against_the_normal_equations():
    x, _, b = random_problem(d=5)
    y = np.clip(x[:, 0], -1, 1)
    expected = np.linalg.solve(x.T @ x + 0.2 * np.eye(5), x.T @ y - b)
    got = erm.minimise(x, y, 0.2, linear=b, tolerance=1e-11, loss=Squared(1.0)).theta
    assert got == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("loss", [SmoothedHinge(), Huber(0.2)], ids=repr)
def test_losses_with_joints_against_another_solver(loss):
    """scipy's trust-region solver, started elsewhere; strong convexity turns its gradient norm into a distance."""
    x, y, b = random_problem(n=200)
    other = minimize(
        lambda t: loss.value(x @ t, y).sum() + 0.25 * t @ t + b @ t,
        np.full(4, 5.0),
        jac=lambda t: general_gradient(loss, t, x, y, 0.5, b),
        method="BFGS",
        options={"gtol": 1e-7},
    )
    distance = np.linalg.norm(general_gradient(loss, other.x, x, y, 0.5, b)) / 0.5
    assert distance < 1e-4
    got = erm.minimise(x, y, 0.5, linear=b, tolerance=1e-9, loss=loss).theta
    assert np.linalg.norm(got - other.x) <= distance + 1e-8


def test_one_record_on_the_joint_of_the_hinge():
    """θ = t x, λ t = share(t ‖x‖²): for ‖x‖ = 1 and λ = 1/(1+h) the minimum is at t = 1 - h + ..., found exactly."""
    h = 0.5
    x = np.array([[0.6, 0.8]])
    t = brentq(lambda t: 0.4 * t - np.clip((1 + h - t) / (2 * h), 0, 1), 0, 3, xtol=1e-15)
    assert erm.minimise(x, [1.0], 0.4, tolerance=1e-12, loss=SmoothedHinge(h)).theta == pytest.approx(t * x[0])
    # λ such that the margin 1 - h of the upper joint is the minimum: λ (1 - h) = 1
    joint = erm.minimise(x, [1.0], 1 / (1 - h), tolerance=1e-12, loss=SmoothedHinge(h)).theta
    assert joint == pytest.approx((1 - h) * x[0], abs=1e-12)


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
    """No step at all: the answer is far off and must not come out."""
    x, y, b = random_problem()
    monkeypatch.setattr(solver, "MAX_NEWTON", 0)
    with pytest.raises(errors.SolverError, match="gradient norm"):
        erm.minimise(x, y, 0.1, linear=b)


def test_nan_that_slips_through_is_an_error(monkeypatch):
    x, y, b = random_problem()
    monkeypatch.setattr(newton, "descend", lambda problem, theta, goal, steps: (theta * np.nan, 1))
    with pytest.raises(errors.SolverError):
        erm.minimise(x, y, 0.1, linear=b)


def test_scores_that_drift_are_noticed(monkeypatch):
    """The search carries its scores along; were they wrong, its own norm would be small and the verified one not."""
    x, y, b = random_problem()
    honest = newton.conjugate_gradients

    def drifting(*arguments):
        direction, along, count = honest(*arguments)
        return direction, along * 1.01, count

    monkeypatch.setattr(newton, "conjugate_gradients", drifting)
    monkeypatch.setattr(solver, "MAX_RESTARTS", 1)
    with pytest.raises(errors.SolverError, match="gradient norm"):
        erm.minimise(x, y, 0.1, linear=b)


def test_row_norms(monkeypatch):
    monkeypatch.setattr(solver, "BLOCK", 3)
    x = np.arange(20.0).reshape(10, 2) * (np.arange(20).reshape(10, 2) % 3)
    expected = [np.linalg.norm(row) for row in x]
    assert solver.row_norms(x) == pytest.approx(expected)
    assert solver.row_norms(sparse.csr_array(x)) == pytest.approx(expected)


@pytest.mark.parametrize("loss", [LOGISTIC, SmoothedHinge(), Huber(0.2), Squared(3.0)], ids=repr)
def test_the_bound_on_rounding_is_above_the_estimate(loss):
    """And is infinite where no bound on the slope is known, so that the estimate is asked."""
    rng = np.random.default_rng(5)
    for scale in (1e-3, 1.0, 30.0):
        x, y, b = random_problem(n=200)
        x, theta = scale * x * rng.random((200, 1)), scale * rng.normal(size=4)
        for rows in (x, sparse.csr_array(x)):
            bound = solver.rounding_bound(loss, theta, rows, 0.3, b)
            assert bound >= solver.rounding_estimate(loss, theta, rows, y, 0.3, b) * (1 - 1e-12)
            assert np.isinf(bound) == (loss.name == "squared")
    zero = erm.minimise(np.zeros((3, 4)), np.zeros(3), 0.3, linear=b, loss=loss).theta  # 0 · ∞ without a warning
    assert zero == pytest.approx(-b / 0.3)


def check_rounding_counts():
    """Rows of zeros: θ = -b/λ has a computed gradient of exactly 0, yet λθ + b is only known to 2u, above the goal."""
    with pytest.raises(errors.SolverError, match=r"rounding up to 4\.44e-16"):
        erm.minimise(np.zeros((3, 2)), np.ones(3), 1.0, linear=[1.0, 0.0], tolerance=4e-16)


def test_rounding_counts():
    check_rounding_counts()
    assert erm.minimise(np.zeros((3, 2)), np.ones(3), 1.0, linear=[1.0, 0.0], tolerance=1e-15).gradient_norm == 0.0


def test_planted_bug_rounding_forgotten(monkeypatch):
    monkeypatch.setattr(solver, "rounding_bound", lambda *arguments: 0.0)
    with pytest.raises(pytest.fail.Exception):
        check_rounding_counts()


@pytest.mark.parametrize("root", [1e-3, 0.4, 1.0, 3.0, 1e6])
@pytest.mark.parametrize("power", [1, 3])
def test_the_length_of_a_step_stays_before_the_root_of_the_slope(root, power):
    """Then φ' < 0 up to there, so J has decreased; and most of the way is gone."""

    def slope(t):
        return (t / root - 1.0) ** power

    length = newton.before_root(slope, slope(0.0), slope(1.0))
    assert 0.0 < length <= root
    assert slope(length) >= newton.LOOSE * slope(0.0)


def test_sharp_joints_and_hardly_any_regularisation():
    """Random problems whose Newton steps overshoot by far: every one is solved, none by luck of a loose tolerance."""
    rng = np.random.default_rng(7)
    for loss in (SmoothedHinge(0.002), Huber(0.05), Huber(0.001)):
        for _ in range(15):
            x = rng.normal(size=(60, 8)) * np.geomspace(1.0, 0.01, 8)
            x /= np.linalg.norm(x, axis=1, keepdims=True)
            y, b = np.where(rng.random(60) < 0.5, 1.0, -1.0), rng.normal(size=8)
            found = erm.minimise(x, y, 1e-4, linear=b, loss=loss)
            assert np.linalg.norm(general_gradient(loss, found.theta, x, y, 1e-4, b)) <= 1e-6
