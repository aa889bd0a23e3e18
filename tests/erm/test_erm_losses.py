"""The losses, their derivatives and the constants of the proofs, against slow and obvious twins."""

import math

import numpy as np
import pytest
from erm_checks import slow_gradient
from scipy import sparse

from dpml import errors
from dpml.erm import losses
from dpml.erm.losses import LOGISTIC, Huber, SmoothedHinge, Squared

ALL = [
    LOGISTIC,
    SmoothedHinge(),
    SmoothedHinge(width=2.0),
    SmoothedHinge(width=0.01),
    Huber(),
    Huber(threshold=3.0),
    Squared(2.0),
]
SIGNED = ("logistic", "smoothed_hinge")
named = pytest.mark.parametrize("loss", ALL, ids=repr)


def targets_for(loss, n, rng):
    return np.where(rng.random(n) < 0.5, 1.0, -1.0) if loss.name in SIGNED else rng.uniform(-1.0, 1.0, n)


def joints(loss):
    """Scores for target 1 at which ℓ'' jumps; derivatives are not compared there."""
    if isinstance(loss, SmoothedHinge):
        return np.array([1.0 - loss.width, 1.0 + loss.width])
    return np.array([1.0 - loss.threshold, 1.0 + loss.threshold]) if isinstance(loss, Huber) else np.zeros(0)


def slow_value(loss, z, y):
    """From the definition, one number at a time."""
    if isinstance(loss, SmoothedHinge):
        m, h = y * z, loss.width
        return 0.0 if m >= 1 + h else 1 - m if m <= 1 - h else (1 + h - m) ** 2 / (4 * h)
    if isinstance(loss, Huber):
        r, k = abs(z - y), loss.threshold
        return r * r / 2 if r <= k else k * r - k * k / 2
    return (z - y) ** 2 / 2 if isinstance(loss, Squared) else math.log(1 + math.exp(-y * z))


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 3))
    return rng.normal(size=3), x, np.where(rng.random(7) < 0.5, 1.0, -1.0), rng.normal(size=3)


# -- the loss of one score --------------------------------------------------------------------------------------------


@named
def test_value_is_the_definition(loss):
    rng = np.random.default_rng(1)
    z, y = np.r_[rng.normal(size=300) * 3, joints(loss)], None
    y = np.r_[targets_for(loss, 300, rng), np.ones(len(joints(loss)))]
    slow = [slow_value(loss, a, b) for a, b in zip(z, y, strict=True)]
    assert loss.value(z, y) == pytest.approx(slow, rel=1e-12, abs=1e-14)


@named
def test_slope_and_curvature_are_the_finite_differences(loss):
    """Central differences of step 1e-6, away from the joints, where both sides differ by right."""
    rng = np.random.default_rng(2)
    z, y, step = rng.normal(size=2000) * 3, targets_for(loss, 2000, rng), 1e-6
    distance = np.abs((y * z if loss.name in SIGNED else z - y + 1.0)[:, None] - joints(loss)).min(axis=1, initial=1.0)
    z, y = z[distance > 1e-4], y[distance > 1e-4]
    assert len(z) > 1500
    rise = (loss.value(z + step, y) - loss.value(z - step, y)) / (2 * step)
    assert loss.slope(z, y) == pytest.approx(rise, rel=1e-7, abs=1e-8)
    bend = (loss.slope(z + step, y) - loss.slope(z - step, y)) / (2 * step)
    assert loss.curvature(z, y) == pytest.approx(bend, rel=1e-7, abs=1e-8)


@named
def test_the_loss_is_convex_and_its_slope_lipschitz_across_the_joints(loss):
    """Over pairs of scores, both sides of every joint among them: 0 ≤ Δℓ'/Δz ≤ curvature_bound, and the chord lies
    above the value in the middle."""
    rng = np.random.default_rng(3)
    n = 4000
    near = np.resize(np.r_[joints(loss), 0.0], n)
    first, second = rng.normal(size=(2, n)) * np.where(np.arange(n) % 2, 3.0, 0.01) + near
    y = np.ones(n)
    lo, hi = np.minimum(first, second), np.maximum(first, second)
    change = loss.slope(hi, y) - loss.slope(lo, y)
    assert (change >= -1e-15).all()
    assert (change <= loss.curvature_bound * (hi - lo) * (1 + 1e-12) + 1e-15).all()
    chord = (loss.value(lo, y) + loss.value(hi, y)) / 2
    assert (loss.value((lo + hi) / 2, y) <= chord + 1e-14).all()


@named
def test_monotone_means_that_the_slope_has_the_sign_of_minus_the_target(loss):
    z = np.linspace(-40, 40, 2001)
    kept = all((target * loss.slope(z, np.full_like(z, target)) <= 0.0).all() for target in (-1.0, 1.0))
    assert kept is loss.monotone


@pytest.mark.parametrize("margin", [-1e4, -800.0, 800.0, 1e4])
def test_extreme_margins_neither_overflow_nor_lose_the_loss(margin):
    for loss in (LOGISTIC, SmoothedHinge()):
        value, gradient = losses.value_and_gradient(loss, np.array([margin]), np.ones((1, 1)), np.ones(1), 0.0)
        assert value == pytest.approx(max(0.0, -margin), rel=2e-3)
        assert gradient[0] == pytest.approx(-1.0 if margin < 0 else 0.0)


# -- constants --------------------------------------------------------------------------------------------------------


@named
@pytest.mark.parametrize("bound", [0.3, 1.0, 4.0])
def test_constants_bound_every_point_and_are_reached(loss, bound):
    """Gradient norm, top eigenvalue and rank of one record's loss over random θ, rows and targets, and over the worst:
    a row as long as the bound, its score from far left to far right (within the ball for squared loss)."""
    constants = loss.constants(bound)
    rng = np.random.default_rng(4)
    reach = loss.solution_bound if isinstance(loss, Squared) else 20.0 / bound
    gradients, eigenvalues, ranks = [], [], []
    for k in range(400):
        x = rng.normal(size=(1, 3))
        x *= bound / np.linalg.norm(x) * (rng.random() if k < 200 else 1.0)
        theta = rng.normal(size=3) if k < 200 else x[0].copy()
        theta *= reach / np.linalg.norm(theta) * (rng.random() if k < 200 else np.linspace(-1.0, 1.0, 200)[k - 200])
        y = targets_for(loss, 1, rng) if k < 200 else np.ones(1)
        gradients.append(np.linalg.norm(losses.value_and_gradient(loss, theta, x, y, 0.0)[1]))
        spectrum = np.linalg.eigvalsh(losses.hessian(loss, theta, x, y, 0.0))
        eigenvalues.append(spectrum[-1])
        ranks.append(int((spectrum > 1e-9 * bound**2).sum()))
    assert max(gradients) <= constants.lipschitz * (1 + 1e-12)
    assert max(eigenvalues) <= constants.smoothness * (1 + 1e-12)
    assert max(gradients) >= constants.lipschitz * (1 - 1e-3)
    x = np.full((1, 1), bound)
    ends = [np.array([s / bound]) for s in np.r_[joints(loss).mean() if len(joints(loss)) else 0.0, 0.0]]
    top = max(losses.hessian(loss, theta, x, np.ones(1), 0.0)[0, 0] for theta in ends)
    assert top == pytest.approx(constants.smoothness, rel=1e-12)
    assert max(ranks) == constants.rank == 1


@pytest.mark.parametrize(
    ("loss", "lipschitz", "smoothness"),
    [
        (LOGISTIC, 3.0, 2.25),
        (SmoothedHinge(0.5), 3.0, 9.0),
        (SmoothedHinge(2.0), 3.0, 2.25),
        (Huber(0.1), 0.3, 9.0),
        (Squared(2.0), 21.0, 9.0),
    ],
    ids=repr,
)
def test_constants_by_hand_for_a_norm_bound_of_three(loss, lipschitz, smoothness):
    got = loss.constants(3.0)
    assert got.lipschitz == pytest.approx(lipschitz, rel=1e-15)
    assert got.smoothness == pytest.approx(smoothness, rel=1e-15)


def slow_softmax(theta, x, y):
    scores = theta @ x
    return math.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[y]


def softmax_derivatives(theta, x, y):
    """Gradient and Hessian of one record, from p: (p - e_y) ⊗ x and (diag p - p pᵀ) ⊗ x xᵀ."""
    p = np.exp(theta @ x - (theta @ x).max())
    p /= p.sum()
    return np.kron(p - np.eye(len(p))[y], x), np.kron(np.diag(p) - np.outer(p, p), np.outer(x, x))


def test_the_derivatives_used_for_the_softmax_constants_are_the_finite_differences():
    rng = np.random.default_rng(5)
    theta, x, step = rng.normal(size=(4, 2)), rng.normal(size=2), 1e-5
    gradient, hessian = softmax_derivatives(theta, x, 2)
    for j in range(8):
        e = step * np.eye(8)[j].reshape(4, 2)
        up, down = slow_softmax(theta + e, x, 2), slow_softmax(theta - e, x, 2)
        assert gradient[j] == pytest.approx((up - down) / (2 * step), abs=1e-8)
        change = softmax_derivatives(theta + e, x, 2)[0] - softmax_derivatives(theta - e, x, 2)[0]
        assert hessian[:, j] == pytest.approx(change / (2 * step), abs=1e-8)


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("bound", [0.3, 1.0, 4.0])
def test_softmax_constants_bound_every_point_and_are_reached(n_classes, bound):
    constants = losses.softmax_constants(bound, n_classes)
    rng = np.random.default_rng(6)
    gradients, eigenvalues, ranks = [], [], []
    for k in range(300):
        x = rng.normal(size=2)
        x *= bound / np.linalg.norm(x)
        theta = rng.normal(size=(n_classes, 2)) * rng.choice([0.1, 1.0, 10.0])
        if k == 0:  # all the mass on a wrong class
            theta = np.zeros((n_classes, 2))
            theta[1] = 50.0 * x / bound**2
        if k == 1:  # two classes share the mass evenly, the others have none
            theta = np.zeros((n_classes, 2))
            theta[2:] = -50.0 * x / bound**2
        gradient, hessian = softmax_derivatives(theta, x, 0)
        spectrum = np.linalg.eigvalsh(hessian)
        gradients.append(np.linalg.norm(gradient))
        eigenvalues.append(spectrum[-1])
        ranks.append(int((spectrum > 1e-12 * bound**2).sum()))
    assert constants.lipschitz == pytest.approx(math.sqrt(2.0) * bound, rel=1e-15)
    assert constants.smoothness == pytest.approx(bound**2 / 2, rel=1e-15)
    assert constants.lipschitz * (1 - 1e-12) <= max(gradients) <= constants.lipschitz * (1 + 1e-12)
    assert constants.smoothness * (1 - 1e-12) <= max(eigenvalues) <= constants.smoothness * (1 + 1e-12)
    assert max(ranks) == constants.rank == n_classes - 1


@pytest.mark.parametrize("bad", [1, 0, 2.5, True])
def test_softmax_needs_two_classes(bad):
    with pytest.raises(errors.ConfigError, match="n_classes"):
        losses.softmax_constants(1.0, bad)


@pytest.mark.parametrize("bound", [0.0, -1.0, np.nan, np.inf])
def test_a_norm_bound_that_bounds_nothing_is_refused(bound):
    with pytest.raises(errors.ConfigError, match="norm_bound"):
        losses.logistic_constants(bound)
    with pytest.raises(errors.ConfigError, match="norm_bound"):
        losses.softmax_constants(bound, 3)
    for loss in ALL:
        with pytest.raises(errors.ConfigError, match="norm_bound"):
            loss.constants(bound)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, True, "wide"])
@pytest.mark.parametrize(
    ("kind", "name"), [(SmoothedHinge, "width"), (Huber, "threshold"), (Squared, "solution_bound")]
)
def test_parameters_out_of_range_are_refused_by_name(kind, name, value):
    with pytest.raises(errors.ConfigError, match=name):
        kind(value)


def test_a_loss_outside_of_a_theorem_is_refused_with_the_assumption():
    with pytest.raises(errors.ConfigError, match=r"objective.*squared.*bounded"):
        losses.require(Squared(), "objective")
    for loss in ALL[:-1]:
        losses.require(loss, "objective")


# -- the objective ----------------------------------------------------------------------------------------------------


@named
def test_value_is_the_sum_form(problem, loss):
    theta, x, y, b = problem
    slow = sum(slow_value(loss, xi @ theta, yi) for xi, yi in zip(x, y, strict=True))
    slow += 0.35 * theta @ theta + b @ theta
    assert losses.value_and_gradient(loss, theta, x, y, 0.7, b)[0] == pytest.approx(slow, rel=1e-13)


def test_the_logistic_gradient_is_the_slow_one(problem):
    theta, x, y, b = problem
    gradient = losses.value_and_gradient(LOGISTIC, theta, x, y, 0.7, b)[1]
    assert gradient == pytest.approx(slow_gradient(theta, x, y, 0.7, b), rel=1e-12)


@named
def test_gradient_and_hessian_are_the_finite_differences(problem, loss):
    theta, x, y, b = problem
    gradient = losses.value_and_gradient(loss, theta, x, y, 0.7, b)[1]
    matrix = losses.hessian(loss, theta, x, y, 0.7)
    step = 1e-6
    for j in range(3):
        e = step * np.eye(3)[j]
        up, down = (losses.value_and_gradient(loss, theta + s * e, x, y, 0.7, b) for s in (1, -1))
        assert gradient[j] == pytest.approx((up[0] - down[0]) / (2 * step), abs=1e-7)
        assert matrix[:, j] == pytest.approx((up[1] - down[1]) / (2 * step), abs=1e-7)


@named
def test_sparse_rows_give_the_same(problem, loss):
    theta, x, y, b = problem
    x = np.where(np.abs(x) < 0.5, 0.0, x)
    thin = sparse.csr_array(x)
    dense = losses.value_and_gradient(loss, theta, x, y, 0.7, b)
    got = losses.value_and_gradient(loss, theta, thin, y, 0.7, b)
    assert got[0] == pytest.approx(dense[0], rel=1e-14)
    assert got[1] == pytest.approx(dense[1], rel=1e-13)
    assert losses.hessian(loss, theta, thin, y, 0.7) == pytest.approx(losses.hessian(loss, theta, x, y, 0.7), rel=1e-13)


def test_hessian_of_many_rows_is_the_sum_over_its_blocks(monkeypatch, problem):
    theta, x, y, _ = problem
    whole = losses.hessian(LOGISTIC, theta, x, y, 0.7)
    monkeypatch.setattr(losses, "HESSIAN_ROWS", 2)
    assert losses.hessian(LOGISTIC, theta, x, y, 0.7) == pytest.approx(whole, rel=1e-13)


def test_hessian_vector_product(problem):
    theta, x, y, b = problem
    product = losses.hessian_vector(LOGISTIC.curvature(x @ theta, y), x, 0.7, b)
    assert product == pytest.approx(losses.hessian(LOGISTIC, theta, x, y, 0.7) @ b, rel=1e-12)
