"""Named checks of private linear regression, used by the ordinary tests and, with one line broken, by the planted-bug
tests.  Each raises AssertionError when it finds a fault; expected values come from the definitions."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
from erm_checks import DELTA, EPSILON, UNIT_SIGMA, CountingNoise, ZeroNoise, accept, gaussian_profile, within_variance
from scipy.spatial.distance import pdist

from dpml import errors, mechanisms
from dpml.erm import ball, linear

RELATIONS = ("add_remove", "replace_one")
CHANGED = {"add_remove": 1, "replace_one": 2}


def plan(**changes):
    return linear.plan_adassp(**{"n_declared": 1000, "n_features": 2, "epsilon": EPSILON, "delta": DELTA, **changes})


def output_plan(**changes):
    arguments = {"n_declared": 1000, "n_features": 2, "epsilon": EPSILON, "delta": DELTA, **changes}
    return ball.plan_output_ridge(**arguments)


def fit(a_plan, x, y, noise=None):
    fitted = linear.fit_adassp if isinstance(a_plan, linear.AdaSspPlan) else ball.fit_output_ridge
    return fitted(a_plan, x, y, noise=noise or ZeroNoise(), charge=accept)[0]


class OneDraw(ZeroNoise):
    """Zeros, but for one standard deviation in draw number ``position`` of the whole run."""

    def __init__(self, position):
        self.position = position
        self.drawn = 0

    def normal(self, std, shape):
        draws = np.zeros(shape)
        place = self.position - self.drawn
        if 0 <= place < draws.size:
            draws.reshape(-1)[place] = std
        self.drawn += draws.size
        return draws


def released(a_plan, x, y, noise):
    """All that post-processing sees of the records: the noisy λ_min (where there is one), XᵀX and Xᵀy."""
    seen = []

    def spy_lambda(a_plan, minimum):
        seen.append([minimum])
        return 1.0

    def spy_solution(gram, cross, lambda_sum):
        seen.extend([np.ravel(gram), cross])
        return np.zeros_like(cross)

    with (
        mock.patch.object(linear, "adaptive_lambda", spy_lambda),
        mock.patch.object(linear, "ridge_solution", spy_solution),
    ):
        linear.fit_adassp(a_plan, x, y, noise=noise, charge=accept)
    return np.concatenate(seen)


def noise_map(a_plan):
    """What one standard deviation in each draw does to the release: (outputs, draws).  Covariance is this times its
    transpose, since the release is linear in the noise."""
    x, y = np.zeros((0, a_plan.n_features)), np.zeros(0)
    still = released(a_plan, x, y, ZeroNoise())
    counter = OneDraw(-1)
    released(a_plan, x, y, counter)
    return np.column_stack([released(a_plan, x, y, OneDraw(k)) - still for k in range(counter.drawn)])


def record(d, norm, angle, target):
    row = np.zeros(d)
    row[0] = norm * math.cos(angle)
    row[-1] += norm * math.sin(angle) if d > 1 else 0.0
    return row, target


def families(d, norm_bound):
    """Lists of data sets: one that all others have in common, then that with each of the records.

    In common: nobody; a crowd along the first axis, which makes the last one the least.  Records: long and half as
    long, at many angles, targets at both ends, and two outside of the bounds that must be held to them."""
    crowd = np.zeros((50, d))
    crowd[:, 0] = norm_bound
    angles = np.linspace(0.0, math.pi, 33) if d > 1 else [0.0]
    records = [record(d, norm_bound, angle, target) for angle in angles for target in (-1.0, 1.0)]
    records += [record(d, norm_bound / 2, 1.0, 1.0), record(d, 40.0 * norm_bound, 0.3, 1.0)]
    records += [record(d, norm_bound, 0.7, 30.0)]
    for x0 in (np.zeros((0, d)), crowd):
        y0 = np.full(len(x0), 0.5)
        yield [(x0, y0), *((np.vstack([x0, row]), np.append(y0, target)) for row, target in records)]


def farthest(points, relation):
    """Largest distance of neighbours; ``points`` (m, p) of one family."""
    if relation == "add_remove":
        return float(np.linalg.norm(points[1:] - points[0], axis=1).max())
    return float(pdist(points[1:]).max())


def worst_delta(a_plan):
    """Largest exact δ(ε) over the neighbours: the release is a Gaussian of known mean and covariance J Jᵀ.

    A direction without noise of its own in which neighbours differ gives them away: 1."""
    directions, sizes, _ = np.linalg.svd(noise_map(a_plan))
    noised = np.zeros(len(directions), dtype=bool)
    noised[: len(sizes)] = sizes > 1e-9 * sizes[0]
    found = 0.0
    for family in families(a_plan.n_features, a_plan.norm_bound):
        means = np.array([released(a_plan, *data, ZeroNoise()) for data in family]) @ directions
        if farthest(means[:, ~noised], a_plan.neighboring_relation) > 1e-9 * np.abs(means).max():
            return 1.0
        scaled = means[:, noised] / sizes[sizes > 1e-9 * sizes[0]]
        found = max(found, farthest(scaled, a_plan.neighboring_relation))
    return gaussian_profile(a_plan.epsilon, found)


def check_exact_attack(relation, variant, d=2, norm_bound=3.0, tight=0.9):
    """The exact δ(ε) of the whole release between the worst neighbours is at most δ, and comes near it."""
    a_plan = plan(neighboring_relation=relation, variant=variant, n_features=d, norm_bound=norm_bound)
    found = worst_delta(a_plan)
    assert found <= DELTA * (1 + 1e-6), f"δ(ε) = {found:.3g} is promised to be {DELTA:g}"
    assert found >= tight * DELTA


def check_statistics_distance(relation, norm_bound=3.0, d=3):
    """(XᵀX, c Xᵀy) of random and adversarial neighbours within the sensitivity, and up to 99 % of it."""
    a_plan = plan(neighboring_relation=relation, norm_bound=norm_bound, n_features=d)
    c = a_plan.cross_weight
    rng = np.random.default_rng(3)

    def joint(data):
        held = linear.bounded_rows(*data, norm_bound=norm_bound, n_features=d, real_targets=True)
        gram, cross = linear.statistics(*held)
        return np.append(np.ravel(gram), c * cross)

    distances = [farthest(np.array([joint(data) for data in family]), relation) for family in families(d, norm_bound)]
    for _ in range(300):
        x, y = rng.normal(size=(4, d)) * norm_bound, rng.normal(size=4) * 2
        changed = (x[:-1], y[:-1]) if relation == "add_remove" else (_last(x, rng, norm_bound), _last(y, rng, 2.0))
        distances.append(np.linalg.norm(joint((x, y)) - joint(changed)))
    assert 0.99 * a_plan.sensitivity <= max(distances) <= a_plan.sensitivity


def _last(values, rng, scale):
    changed = values.copy()
    changed[-1] = rng.normal(size=values.shape[1:]) * scale
    return changed


def check_minimum_distance(norm_bound=3.0):
    """λ_min of neighbours differs by at most R², for both relations, and by all of it for some."""
    rng = np.random.default_rng(4)
    sensitivity = linear.minimum_sensitivity(norm_bound)
    largest = {"add_remove": 0.0, "replace_one": 0.0}
    crowd = np.array([[norm_bound, 0.0]] * 30)
    for trial in range(400):
        x0 = crowd if trial % 2 else rng.normal(size=(5, 2))
        one, other = rng.normal(size=(2, 2))
        if trial < 2:
            one, other = np.array([0.0, 1.0]), np.array([1.0, 0.0])
        grams = [x0.T @ x0 + np.outer(r, r) * (norm_bound / np.linalg.norm(r)) ** 2 for r in (one, other)]
        least = [np.linalg.eigvalsh(g)[0] for g in (*grams, x0.T @ x0)]
        largest["add_remove"] = max(largest["add_remove"], least[0] - least[2], least[1] - least[2])
        largest["replace_one"] = max(largest["replace_one"], abs(least[0] - least[1]))
    for found in largest.values():
        assert 0.999 * sensitivity <= found <= sensitivity * (1 + 1e-9)


def check_noise_law(relation="add_remove", norm_bound=3.0):
    """Without records the statistics *are* the noise: variance on the diagonal, half of it beside, that of Xᵀy.

    Chi-square of 90 (diagonal), 4005 and 90 draws, false alarm 3e-6 for the three; off-diagonal noise too low by 10 %
    is missed with probability below 1e-3, by √2 never."""
    d = 90
    a_plan = plan(n_features=d, neighboring_relation=relation, norm_bound=norm_bound)
    out = released(a_plan, np.zeros((0, d)), np.zeros(0), mechanisms.default_noise())
    gram, cross = out[: d * d].reshape(d, d), out[d * d :]
    np.testing.assert_array_equal(gram, gram.T)
    c = a_plan.cross_weight
    distance = math.sqrt(norm_bound**4 + c**2 * norm_bound**2)
    if relation == "replace_one":
        distance = math.sqrt(2.0) * (norm_bound**2 + c**2 / 2.0)
    std = UNIT_SIGMA * distance
    assert within_variance(np.diag(gram), std)
    assert within_variance(gram[np.triu_indices(d, 1)], std / math.sqrt(2.0))
    assert within_variance(cross, std / c)


def check_records_with_nan_change_nothing(a_plan):
    """Rows with NaN or infinity, and a target that is NaN, leave the exact solution as it is."""
    rng = np.random.default_rng(6)
    d = a_plan.n_features
    x, y = rng.normal(size=(40, d)), rng.uniform(-1, 1, 40)
    spoilt = np.vstack([x, np.full((3, d), 0.3)])
    targets = np.append(y, [0.5, 0.5, np.nan])
    spoilt[40, 0], spoilt[41, 0] = np.nan, np.inf
    np.testing.assert_allclose(fit(a_plan, spoilt, targets), fit(a_plan, x, y), rtol=1e-9, atol=1e-12)


# -- output perturbation over a ball -------------------------------------------------------------------------------


def pull(norm_bound):
    """10,102 short rows with target 1 that hold the minimum at the end -S of the first axis, with little curvature.

    For λ = 100 R² and S = 1/R: their pull is 101.02 R, and λS with their curvature times S is 101.0102 R."""
    x = np.zeros((10_102, 2))
    x[:, 0] = -0.01 * norm_bound
    return x, np.ones(10_102)


def check_ball_distance(relation, norm_bound=3.0):
    """Exact minimisers of adversarial neighbours within the plan's sensitivity, and at least 97 % of it apart.

    add_remove: the minimum is held at -S e₁, and a record (R e₁, 1), whose residual there is R S + 1, pulls it back:
    by L/(λ + R²).  replace_one: with a small S, a target turned from 1 to -1."""
    radius = (1.0 if relation == "add_remove" else 0.01) / norm_bound
    a_plan = output_plan(
        neighboring_relation=relation, norm_bound=norm_bound, solution_norm=radius, regularization=norm_bound**2 / 10
    )
    assert math.isclose(a_plan.lambda_sum, 100 * norm_bound**2)
    x0, y0 = pull(norm_bound)
    row = np.array([[norm_bound, 0.0]])
    if relation == "add_remove":
        one, other = (np.vstack([x0, row]), np.append(y0, 1.0)), (x0, y0)
    else:
        one, other = (row, np.ones(1)), (row, -np.ones(1))
    distance = np.linalg.norm(fit(a_plan, *one) - fit(a_plan, *other))
    assert 0.97 * a_plan.sensitivity <= distance <= a_plan.sensitivity
    assert a_plan.noise_std >= UNIT_SIGMA * distance


def check_ball_noise_scale(relation="add_remove", norm_bound=3.0, radius=2.0):
    """Without records the release is the noise: std = s(ε,δ) · (changed R(R S + 1) + 2τ)/λ.

    Chi-square of 4000 coefficients: false alarm 1e-6; noise low by 10 % is missed with probability below 1e-3."""
    a_plan = output_plan(
        n_features=4000, neighboring_relation=relation, norm_bound=norm_bound, solution_norm=radius, regularization=1.0
    )
    nothing = ball.BallSolution(np.zeros(4000), 0.0, 0.0)
    with mock.patch.object(ball, "minimise_in_ball", return_value=nothing):
        theta = fit(a_plan, np.zeros((0, 4000)), np.zeros(0), mechanisms.default_noise())
    reach = CHANGED[relation] * norm_bound * (norm_bound * radius + 1.0) + 2.0 * a_plan.tolerance
    assert within_variance(theta, UNIT_SIGMA * reach / a_plan.lambda_sum)


def check_ball_slack():
    """2τ/λ is in the sensitivity: each of two approximate minima is within τ/λ of its own."""
    a_plan = output_plan(regularization=1.0)
    exact = 1.0 * (1.0 * a_plan.solution_norm + 1.0) / a_plan.lambda_sum
    assert a_plan.sensitivity >= (exact + 2.0 * a_plan.tolerance / a_plan.lambda_sum) * (1 - 1e-14)
    assert a_plan.sensitivity > exact * (1 + 1e-7)


def check_residual_is_honest():
    """A point and its residual τ: the exact minimum is within τ/λ; checked for points moved on purpose."""
    rng = np.random.default_rng(8)
    x, y = rng.normal(size=(30, 3)), np.ones(30)
    for radius in (0.05, 10.0):
        best = ball.minimise_in_ball(x, y, 0.5, radius, 1e-8)
        assert (best.multiplier > 0.0) == (radius < 1.0)
        for size in (0.0, 1e-6, 1e-2, 1.0):
            moved = best.theta + size * rng.normal(size=3) * radius
            residual = ball.kkt_residual(x, y, 0.5, radius, moved, best.multiplier)
            assert np.linalg.norm(moved - best.theta) <= residual / 0.5 + 2e-8
        inside = np.linalg.solve(x.T @ x + (0.5 + 2 * best.multiplier + 1.0) * np.eye(3), x.T @ y)  # of a wrong μ
        residual = ball.kkt_residual(x, y, 0.5, radius, inside, 2 * best.multiplier + 1.0)
        assert np.linalg.norm(inside - best.theta) <= residual / 0.5 + 2e-8


def check_charge_comes_first(a_plan):
    """When the ledger cannot be written, no noise was drawn; otherwise the plan's event is charged, once."""
    noise = CountingNoise()

    def broken(event):
        raise errors.LedgerError("disk full")

    fitted = linear.fit_adassp if isinstance(a_plan, linear.AdaSspPlan) else ball.fit_output_ridge
    x, y = np.full((3, 2), 0.1), np.ones(3)
    try:
        fitted(a_plan, x, y, noise=noise, charge=broken)
    except errors.LedgerError:
        pass
    else:
        raise AssertionError("the ledger's error was swallowed")
    assert noise.draws == 0
    charged = []
    fitted(a_plan, x, y, noise=noise, charge=lambda event: charged.append((event, noise.draws)))
    assert charged == [(a_plan.event, 0)]
