"""Never below the truth: tiny losses in large numbers, lost mass, rounding sides, values at the ends of the ranges."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest

from dpml import accounting as acc
from dpml.accounting import pairs, renyi
from dpml.errors import AccountingError, ConfigError, DpmlError

ORDERS = [1 + 2.0**-12, 1.01, 1.5, 2.0, 3.7, 16.0, 64.0, 1024.0, 65536.0]


def laplace_divergence(scale, order):
    """D_α of Laplace(0, b) and Laplace(1, b) (Mironov 2017, Proposition 6) in 80 digits."""
    a, x = mpmath.mpf(order), 1 / mpmath.mpf(scale)
    moment = a / (2 * a - 1) * mpmath.exp((a - 1) * x) + (a - 1) / (2 * a - 1) * mpmath.exp(-a * x)
    return mpmath.log(moment) / (a - 1)


def response_divergence(pure, order):
    """D_α of randomized response with odds e^ε, in 80 digits."""
    a, e = mpmath.mpf(order), mpmath.mpf(pure)
    odd = 1 / (1 + mpmath.exp(e))
    return mpmath.log((1 - odd) * mpmath.exp((a - 1) * e) + odd * mpmath.exp((1 - a) * e)) / (a - 1)


@pytest.mark.parametrize(
    ("kind", "truth", "values"),
    [
        (acc.Laplace, laplace_divergence, [0.01, 0.3, 1.0, 7.0, 100.0, 1e4, 1e6, 1e8, 1e10, 1e12]),
        (
            lambda e: acc.EpsilonDelta(e, 0.0),
            response_divergence,
            [1e-12, 1e-9, 1e-6, 1e-3, 0.1, 1.0, 5.0, 30.0, 200.0],
        ),
    ],
)
def test_renyi_of_pure_events_is_never_below_and_hardly_above(kind, truth, values):
    with mpmath.workdps(80):
        for value in values:
            for order, got in zip(ORDERS, acc.rdp(kind(value), ORDERS), strict=True):
                true = truth(value, order)
                assert true * (1 - mpmath.mpf("1e-12")) <= got <= true * (1 + mpmath.mpf("1e-11"))


def test_renyi_of_the_replaced_record_at_large_noise():
    """For σ → ∞ the pair is Gaussian with the shift 2q: D_α = α(2q)²/(2σ²) to a relative 1/σ."""
    q = 0.3
    for sigma in (1e6, 1e9, 1e12):
        got = acc.rdp(acc.PoissonSampled(q, acc.Gaussian(sigma)), [1.5, 2.0, 16.0], neighboring_relation="replace_one")
        for order, value in zip((1.5, 2.0, 16.0), got, strict=True):
            assert value == pytest.approx(order * (2 * q) ** 2 / 2 / sigma / sigma, rel=1e-4)


def gaussian_epsilon(delta, mu):
    """ε with δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), by bisection in 40 digits."""
    with mpmath.workdps(40):
        low, high = mpmath.mpf(0), mpmath.mpf(100)
        for _ in range(80):
            e = (low + high) / 2
            value = mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)
            low, high = (e, high) if value > delta else (low, e)
        return float(high)


@pytest.mark.parametrize("accountant", ["best", "rdp", "zcdp", "pld"])
@pytest.mark.parametrize("event", [acc.Laplace(1e7), acc.EpsilonDelta(1e-7, 0.0), acc.Laplace(1e5)])
def test_very_many_tiny_losses_are_not_nothing(accountant, event):
    """n losses of standard deviation 1/√n are the 1-Gaussian up to 1/√n in δ (Berry & Esseen)."""
    count = 10**14 if event != acc.Laplace(1e5) else 10**10
    truth = gaussian_epsilon(1e-5 + 1 / math.sqrt(count), 1.0)
    got = acc.epsilon(acc.SelfComposed(event, count), 1e-5, accountant=accountant)
    assert got >= truth
    if accountant != "pld":
        assert got <= 1.15 * truth
    assert acc.delta(acc.SelfComposed(event, count), 4.0, accountant=accountant) >= 1e-5


def test_best_asks_zcdp_too():
    event = acc.Composed((acc.ZCDP(0.1), acc.SelfComposed(acc.Laplace(1e6), 10**6)))
    values = [acc.epsilon(event, 1e-6, accountant=name) for name in ("rdp", "zcdp")]
    assert acc.epsilon(event, 1e-6) == min(values)
    assert acc.best(event, 1e-6)[1] == ("rdp", "zcdp")[int(np.argmin(values))]


def enumerated_delta(pure, delta, q, count, epsilon):
    """δ(ε) of ``count`` samples of the worst (ε₀, δ₀) pair on four outcomes, both directions, all 4^count outcomes."""
    high = math.exp(pure) / (1 + math.exp(pure))
    p = [delta, (1 - delta) * high, (1 - delta) * (1 - high), 0.0]
    absent = p[::-1]
    present = [(1 - q) * b + q * a for a, b in zip(p, absent, strict=True)]
    found = 0.0
    for one, other in ((present, absent), (absent, present)):
        total = 0.0
        for outcome in itertools.product(range(4), repeat=count):
            likely = math.prod(one[k] for k in outcome)
            total += max(0.0, likely - math.exp(epsilon) * math.prod(other[k] for k in outcome))
        found = max(found, total)
    return found


@pytest.mark.parametrize(
    ("pure", "delta", "q", "count", "epsilon"),
    [
        (2.0, 0.05, 0.3, 5, 0.5),
        (3.0, 0.01, 0.5, 5, 1.0),
        (0.5, 0.2, 0.7, 4, 0.1),
        (0.0, 0.1, 0.5, 3, 0.2),
        (1, 1, 0.2, 3, 0),
    ],
)
def test_sampled_statements_by_enumeration(pure, delta, q, count, epsilon):
    truth = enumerated_delta(pure, delta, q, count, epsilon)
    if (pure, q) == (2.0, 0.3):
        assert truth == pytest.approx(0.4088, abs=1e-4)
    event = acc.SelfComposed(acc.PoissonSampled(q, acc.EpsilonDelta(pure, delta)), count)
    for accountant in ("pld", "best"):
        assert truth * (1 - 1e-9) <= acc.delta(event, epsilon, accountant=accountant) <= truth * 1.01
        assert acc.epsilon(event, truth, accountant=accountant) >= epsilon * (1 - 1e-9)


ATOMS = [
    acc.Gaussian(0.8),
    acc.Laplace(0.4),
    acc.Laplace(50.0),
    acc.EpsilonDelta(1.5, 0.02),
    acc.PoissonSampled(0.2, acc.Gaussian(0.7)),
    acc.PoissonSampled(0.2, acc.Laplace(0.7)),
    acc.PoissonSampled(0.999, acc.EpsilonDelta(1.0, 1e-3)),
]


@pytest.mark.parametrize("atom", ATOMS, ids=str)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_loss_distributions_keep_all_mass(atom, direction):
    pmf = pairs.discretise(atom, "add_remove", direction, 2.0**-9, 9.0)
    assert math.fsum(pmf.masses) + pmf.infinite >= 1 - 1e-12
    assert pmf.masses.min() >= 0


def test_lost_mass_is_an_error(monkeypatch):
    good = pairs._laplace

    def planted(b, step):
        pmf = good(b, step)
        return pairs.LossPmf(pmf.step, pmf.start, pmf.masses * (1 - 1e-9), pmf.infinite)

    monkeypatch.setattr(pairs, "_laplace", planted)
    with pytest.raises(AccountingError, match="laplace"):
        pairs.discretise(acc.Laplace(0.377), "add_remove", "remove", 2.0**-9, 9.0)


def test_the_split_of_a_cell_holds_for_every_mass_within_the_error():
    """Q-mass of the atoms at most that of any true (p, q) within the errors: less Q-mass is more loss."""
    step, start = 0.25, 3
    p = np.array([0.2, 0.3, 0.1])
    losses = step * (start + np.array([0.4, 0.5, 0.6]) + np.arange(3))
    q = p * np.exp(-losses)
    p_error, q_error = 0.01 * p, 0.02 * q
    for cell in range(3):
        only = np.arange(3) == cell
        pmf = pairs._split(step, start, p * only, q * only, p_error * only, q_error * only, 0.0)
        assert pmf.masses.sum() == pytest.approx(p[cell], rel=1e-14)
        got = float(pmf.masses @ np.exp(-pmf.losses))
        smallest = (q[cell] - q_error[cell]) * p[cell] / (p[cell] + p_error[cell])
        assert smallest * (1 - 1e-2) <= got <= smallest * (1 + 1e-12)


@pytest.mark.parametrize("width", [1.0, 2.0, 4.0])
def test_the_cut_tail_counts_as_infinite(width):
    """P(ℓ > last grid loss): ℓ is N(μ²/2, μ²) for the Gaussian; for the sampled one by the two normals of P."""
    sigma, q = 1.5, 0.2
    pmf = pairs.discretise(acc.Gaussian(sigma), "add_remove", "remove", 0.125, width)
    tail = float(mpmath.ncdf(-(mpmath.mpf(pmf.losses[-1]) * sigma - 1 / mpmath.mpf(2 * sigma))))
    assert tail <= pmf.infinite <= tail * (1 + 1e-6)
    event = acc.PoissonSampled(q, acc.Gaussian(sigma))
    pmf = pairs.discretise(event, "add_remove", "remove", 0.125, width)
    x = sigma**2 * mpmath.log((mpmath.exp(pmf.losses[-1]) - (1 - q)) / q) + mpmath.mpf(1) / 2
    tail = float((1 - q) * mpmath.ncdf(-x / sigma) + q * mpmath.ncdf(-(x - 1) / sigma))
    assert tail * (1 - 1e-9) <= pmf.infinite <= tail * (1 + 1e-6)


def test_objective_perturbation_pays_the_jacobian_until_its_whole_condition_holds():
    """R = 2, λ = 4: free from ε = R²/λ = 1 on (not from R²/4λ = 1/4), else shifted by c₀ = ln(1 + R²/4λ) = ln 1.25."""
    event, a = acc.ObjectivePerturbation(3.0, 4.0, 2.0), mpmath.mpf(2) / 3

    def profile(e):
        return mpmath.ncdf(a / 2 - e / a) - mpmath.exp(e) * mpmath.ncdf(-a / 2 - e / a)

    c0 = mpmath.log(mpmath.mpf("1.25"))
    for epsilon in (0.25, 0.3, 0.6, 0.9, 0.999):
        got = acc.delta(event, epsilon, accountant="exact")
        assert got == pytest.approx(float(profile(epsilon - c0)), rel=1e-10)
        assert got > 1.01 * float(profile(epsilon))
    for epsilon in (1.0, 1.5):
        assert acc.delta(event, epsilon, accountant="exact") == pytest.approx(float(profile(epsilon)), rel=1e-10)
    for epsilon in (0.3, 0.6):
        got = acc.epsilon(event, float(profile(epsilon)), accountant="exact")
        assert got == pytest.approx(min(1.0, epsilon + float(c0)), rel=1e-9)


@pytest.mark.parametrize("accountant", ["best", "exact", "pld", "rdp", "zcdp", "basic"])
def test_replacing_a_record_moves_the_sum_twice(accountant):
    """Under replace_one one contribution leaves and another comes: the Gaussian pair has μ = 2/σ."""
    for sigma in (1.0, 5.0, 40.0):
        truth = gaussian_epsilon(1e-6, 2 / mpmath.mpf(sigma))
        got = acc.epsilon(acc.Gaussian(sigma), 1e-6, accountant=accountant, neighboring_relation="replace_one")
        assert truth * (1 - 1e-10) <= got <= 1.2 * truth
    assert acc.epsilon(acc.Laplace(8.0), 0.0, neighboring_relation="replace_one") == 0.25
    assert acc.rho(acc.Gaussian(4.0), neighboring_relation="replace_one") == 0.125
    assert acc.rdp(acc.Gaussian(4.0), [3.0], neighboring_relation="replace_one")[0] == 0.375


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: acc.SelfComposed(acc.Gaussian(1.0), 10**400), "count"),
        (lambda: acc.SelfComposed(acc.Gaussian(1.0), 10**5000), "count"),
        (lambda: acc.SelfComposed(acc.Gaussian(1.0), 10**15 + 1), "count"),
        (lambda: acc.epsilon(acc.SelfComposed(acc.SelfComposed(acc.Gaussian(1.0), 10**9), 10**9), 1e-5), "count of"),
        (lambda: acc.Gaussian(1e300), "noise_multiplier"),
        (lambda: acc.Gaussian(10**5000), "noise_multiplier"),
        (lambda: acc.PoissonSampled(0.5, acc.Gaussian(1.1e12)), "noise_multiplier"),
        (lambda: acc.Laplace(1e300), "noise_multiplier"),
        (lambda: acc.EpsilonDelta(1e300, 0.0), "epsilon"),
        (lambda: acc.ZCDP(1e300), "rho"),
        (lambda: acc.ObjectivePerturbation(1e300, 1.0, 1.0), "noise_std"),
        (lambda: acc.ObjectivePerturbation(1.0, 1e300, 1.0), "lambda_sum"),
        (lambda: acc.ObjectivePerturbation(1.0, 1.0, 1e300), "norm_bound"),
        (lambda: acc.DatasetLedger("x", 1e300, 0.0), "epsilon"),
    ],
)
def test_values_beyond_the_limits_are_refused_by_name(make, name):
    with pytest.raises(ConfigError, match=f"^{name}"):
        make()


EXTREMES = [
    acc.Gaussian(1e12),
    acc.Gaussian(1e-300),
    acc.Laplace(1e12),
    acc.Laplace(1e-300),
    acc.EpsilonDelta(1.0, 1.0),
    acc.EpsilonDelta(1e12, 1e-6),
    acc.EpsilonDelta(1e-300, 0.0),
    acc.ZCDP(1e-300),
    acc.ZCDP(1e12),
    acc.ObjectivePerturbation(1e12, 1e-300, 1e12),
    acc.PoissonSampled(1e-300, acc.Gaussian(1e-300)),
    acc.PoissonSampled(0.5, acc.Laplace(1e12)),
    acc.PoissonSampled(0.5, acc.EpsilonDelta(1.0, 1.0)),
]


@pytest.mark.parametrize("event", EXTREMES, ids=str)
@pytest.mark.parametrize("count", [1, 5])
def test_the_ends_of_the_ranges_give_a_bound_or_our_error(event, count):
    for relation, accountant in itertools.product(acc.RELATIONS, acc.ACCOUNTANTS):
        options = {"accountant": accountant, "neighboring_relation": relation}
        for call, argument in ((acc.epsilon, 1e-5), (acc.delta, 1.0), (acc.delta, 1e12)):
            try:
                value = call(acc.SelfComposed(event, count), argument, **options)
            except DpmlError:
                continue
            assert value >= 0


def test_a_statement_that_always_fails_is_infinite():
    for accountant in ("best", "pld", "basic"):
        for count in (1, 5):
            event = acc.SelfComposed(acc.EpsilonDelta(1.0, 1.0), count)
            assert acc.epsilon(event, 0.9, accountant=accountant) == math.inf
            assert acc.delta(event, 3.0, accountant=accountant) == 1.0


@pytest.mark.parametrize("epsilon", [1e-320, 9e-7, 1.1e4, 1e6])
def test_calibration_refuses_budgets_that_no_run_has(epsilon):
    with pytest.raises(ConfigError, match=r"^epsilon = "):
        acc.calibrate(
            lambda s: acc.SelfComposed(acc.PoissonSampled(0.01, acc.Gaussian(s)), 100), epsilon=epsilon, delta=1e-5
        )


def test_the_remainder_of_the_exponential():
    with mpmath.workdps(400):
        points = [-700.0, -3.0, -0.5, -0.4999, -1e-9, 1e-160, 1e-20, 0.3, 0.5, 2.0, 300.0]
        for point, got in zip(points, renyi._exp_remainder(np.array(points)), strict=True):
            true = mpmath.exp(point) - 1 - mpmath.mpf(point)
            assert abs(got - true) <= 2e-15 * true + mpmath.mpf("1e-323")
