"""Named checks of private ERM, used by the ordinary tests and, with one line broken, by the planted-bug tests.

Each raises AssertionError when it finds a fault.  Expected values come from the definitions, not from the library.
"""

from __future__ import annotations

import math
import random

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit

from dpml import erm, errors, mechanisms
from dpml.erm import objective, output, problems

EPSILON, DELTA = 1.0, 1e-5
UNIT_SIGMA = (
    3.7306316348  # analytic Gaussian, ε = 1, δ = 1e-5, sensitivity 1 (reference table gaussian_mechanism_sigma)
)
FALSE_ALARM = 1e-6
METHODS = ("output", "objective")
MODULES = {"output": output, "objective": objective}


class ZeroNoise:
    """A test double: no noise at all."""

    secret = False

    def normal(self, std, shape):
        return np.zeros(shape)

    def uniform(self, size):
        return np.full(size, 0.5)


class CountingNoise(ZeroNoise):
    """Counts how often something was drawn."""

    def __init__(self):
        self.draws = 0

    def normal(self, std, shape):
        self.draws += 1
        return super().normal(std, shape)


def accept(event):
    """A charge that always succeeds."""


def plan(method, **changes):
    arguments = {"n_declared": 1000, "n_features": 4, "epsilon": EPSILON, "delta": DELTA, **changes}
    return getattr(MODULES[method], f"plan_{method}")(**arguments)


def fit(method, a_plan, x, y, *, noise=None, charge=accept):
    fitted = getattr(MODULES[method], f"fit_{method}")
    return fitted(a_plan, x, y, noise=noise or mechanisms.default_noise(), charge=charge)[0]


def no_records(d):
    return np.zeros((0, d)), np.zeros(0)


def slow_gradient(theta, x, y, lambda_sum, linear=0.0):
    """Σ -p y x + λθ + b, written out."""
    return sum((-expit(-yi * (xi @ theta)) * yi * xi for xi, yi in zip(x, y, strict=True)), lambda_sum * theta) + linear


def gaussian_profile(epsilon, mu):
    """δ(ε) of N(0, 1) against N(μ, 1) (Balle & Wang 2018, theorem 8), for moderate ε."""
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)


def unit_sigma(epsilon, delta):
    return brentq(lambda s: gaussian_profile(epsilon, 1 / s) - delta, 0.05, 1e4, xtol=1e-12)


def within_variance(draws, std):
    """Whether the sample variance of N(0, std²) draws lies in its two-sided 1e-6 interval."""
    law = stats.chi2(draws.size)
    return law.ppf(FALSE_ALARM / 2) < float(((draws / std) ** 2).sum()) < law.isf(FALSE_ALARM / 2)


# -- the checks ----------------------------------------------------------------------------------------------------


def check_output_noise_scale(relation="add_remove", norm_bound=3.0):
    """Without records the minimum is 0, so the released θ *is* the noise: std = s(ε,δ) · (changed L + 2τ)/λ.

    Chi-square of 4000 coefficients: false alarm 1e-6; noise low by 10 % is missed with probability below 1e-3, by
    half never (below 1e-300)."""
    d = 4000
    a_plan = plan("output", n_features=d, neighboring_relation=relation, norm_bound=norm_bound)
    changed = {"add_remove": 1, "replace_one": 2}[relation]
    std = UNIT_SIGMA * (changed * norm_bound + 2 * a_plan.tolerance) / a_plan.lambda_sum
    assert within_variance(fit("output", a_plan, *no_records(d)), std)


def check_objective_noise_scale(norm_bound=3.0):
    """Without records θ = -b/λ (the output noise is a millionth of it), so -λθ has std R_x s(0.995 ε, 0.995 δ).

    Error rates as for output."""
    d = 4000
    a_plan = plan("objective", n_features=d, norm_bound=norm_bound)
    std = norm_bound * unit_sigma(0.995 * EPSILON, 0.995 * DELTA)
    assert within_variance(fit("objective", a_plan, *no_records(d)) * a_plan.lambda_sum, std)


def check_every_coefficient_is_noised(method):
    """The variance of each coefficient, the last (the constant column's) too, over 200 runs without records.

    False alarm 4e-6 for the four together; a coefficient without its noise is always caught."""
    a_plan = plan(method)
    runs = np.array([fit(method, a_plan, *no_records(4)) for _ in range(200)])
    std = a_plan.noise_std if method == "output" else a_plan.noise_std / a_plan.lambda_sum
    assert all(within_variance(runs[:, j], std) for j in range(4))


def check_regularization_is_mean_form(method):
    """Λ given: the fit is the minimum of Σℓ + (Λ n_declared/2)‖θ‖², whatever the actual number of records is."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.where(rng.random(60) < 0.5, 1.0, -1.0)
    a_plan = plan(method, regularization=0.01)
    assert math.isclose(a_plan.lambda_sum, 10.0)
    theta = fit(method, a_plan, x, y, noise=ZeroNoise())
    assert np.linalg.norm(slow_gradient(theta, x, y, 0.01 * 1000)) <= a_plan.tolerance
    if method == "output":  # L/(n Λ) with L = R_x = 1
        assert math.isclose(a_plan.sensitivity, 1.0 / (1000 * 0.01), rel_tol=1e-5)


def check_approximation_is_covered():
    """Two minimisers, each wrong by τ/λ, are up to L/λ + 2τ/λ apart; objective's output noise covers 2τ/λ."""
    a_plan = plan("output")
    assert a_plan.tolerance > 0.0
    assert a_plan.sensitivity >= (1.0 + 2.0 * a_plan.tolerance) / a_plan.lambda_sum * (1 - 1e-14)
    assert a_plan.sensitivity > 1.0 / a_plan.lambda_sum * (1 + 1e-7)
    b_plan = plan("objective")
    required = 2.0 * b_plan.tolerance / b_plan.lambda_sum * unit_sigma(0.005 * EPSILON, 0.005 * DELTA)
    assert b_plan.output_std >= required * (1 - 1e-6)


def far_replacement():
    """Data sets that differ in one replaced record and whose minimisers lie 1.7 L/λ apart, for λ = 1 and R_x = 1.

    Two hundred thousand records along the first axis fix θ₁ near 10 and have no curvature across it.  The record
    (-0.3, ±0.95) has a margin of about -3 there, so its gradient is nearly as long as R_x, and replacing + by - turns
    the part across the axis around."""
    n = 220_000
    x = np.zeros((n + 1, 2))
    x[:n, 0] = 1.0
    y = np.ones(n + 1)
    neighbour = x.copy()
    x[n] = -0.3, math.sqrt(1 - 0.09)
    neighbour[n] = -0.3, -math.sqrt(1 - 0.09)
    return x, neighbour, y


def check_replace_one_distance():
    """The exact minimisers of ``far_replacement`` must be within the plan's sensitivity, and the noise must fit it."""
    x, neighbour, y = far_replacement()
    a_plan = plan("output", n_features=2, neighboring_relation="replace_one", regularization=1e-3)
    assert math.isclose(a_plan.lambda_sum, 1.0)
    distance = np.linalg.norm(
        fit("output", a_plan, x, y, noise=ZeroNoise()) - fit("output", a_plan, neighbour, y, noise=ZeroNoise())
    )
    assert 1.6 < distance <= a_plan.sensitivity
    assert a_plan.noise_std >= UNIT_SIGMA * distance
    assert a_plan.noise_std >= UNIT_SIGMA * 2.0 / a_plan.lambda_sum


def check_long_rows_are_bounded(method):
    """One record of norm 100 (bound 1) moves the minimum by at most L/λ; unclipped it would move it by 15 L/λ."""
    a_plan = plan(method, regularization=1.0)
    assert math.isclose(a_plan.lambda_sum, 1000.0)
    x, y = np.zeros((0, 4)), np.zeros(0)
    moved = fit(method, a_plan, np.full((1, 4), 50.0), np.ones(1), noise=ZeroNoise())
    shift = np.linalg.norm(moved - fit(method, a_plan, x, y, noise=ZeroNoise()))
    assert 0.4 / 1000.0 < shift <= (1.0 + 2.0 * a_plan.tolerance) / 1000.0


def check_noise_cannot_be_predicted(method):
    """Two runs with every global seed set alike have no coefficient in common (false alarm below 1e-12)."""
    a_plan = plan(method, n_features=50)

    def run():
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        return fit(method, a_plan, *no_records(50), noise=mechanisms.default_noise())

    assert not np.intersect1d(run(), run()).size
    assert mechanisms.default_noise().secret


def check_charge_comes_first(method, monkeypatch):
    """When the ledger cannot be written, no noise was drawn and no minimum computed; otherwise one charge, first."""
    a_plan = plan(method)
    x, y = np.full((3, 4), 0.1), np.ones(3)
    calls = []
    honest = problems.minimise

    def spy(*args, **kwargs):
        calls.append("minimise")
        return honest(*args, **kwargs)

    monkeypatch.setattr(problems, "minimise", spy)
    noise = CountingNoise()

    def broken(event):
        raise errors.LedgerError("disk full")

    try:
        fit(method, a_plan, x, y, noise=noise, charge=broken)
    except errors.LedgerError:
        pass
    else:
        raise AssertionError("the ledger's error was swallowed")
    assert calls == []
    assert noise.draws == 0
    fit(method, a_plan, x, y, noise=noise, charge=lambda event: calls.append(event))
    assert calls == [a_plan.event, "minimise"]


def hard_problem():
    """Separable, nearly collinear, almost unregularised: (x, y, lambda_sum)."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(80, 12)) * np.geomspace(1.0, 1e-5, 12)
    x[:, 1] = x[:, 0] * (1 + 1e-9)
    return x, np.where(x[:, 0] > 0, 1.0, -1.0), 1e-4


def check_solution_is_verified():
    """What the solver returns has a gradient norm within the tolerance, or nothing is returned (SolverError)."""
    x, y, lambda_sum = hard_problem()
    try:
        theta = erm.minimise(x, y, lambda_sum, tolerance=1e-7).theta
    except errors.SolverError:
        return
    assert np.linalg.norm(slow_gradient(theta, x, y, lambda_sum)) <= 1e-7
