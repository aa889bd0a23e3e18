"""Edges where accountants of this field crash, turn negative or fall below the truth."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise

import mpmath
import numpy as np
import pytest

from dpml import accounting as acc
from dpml.accounting import conversions
from dpml.errors import ConfigError, UnsupportedEventError

STEP = acc.PoissonSampled(0.02, acc.Gaussian(1.0))
RELATIONS = ["add_remove", "replace_one"]
JOINT = ["best", "pld", "rdp", "zcdp", "basic"]


@pytest.mark.parametrize("accountant", acc.ACCOUNTANTS)
@pytest.mark.parametrize("relation", RELATIONS)
def test_nothing_released_costs_nothing(accountant, relation):
    for event in (acc.NoOp(), acc.SelfComposed(STEP, 0), acc.Composed(()), acc.PoissonSampled(0.0, acc.Gaussian(0.0))):
        assert acc.epsilon(event, 1e-5, accountant=accountant, neighboring_relation=relation) == 0.0
        assert acc.delta(event, 0.0, accountant=accountant, neighboring_relation=relation) == 0.0


@pytest.mark.parametrize("accountant", JOINT)
def test_no_noise_is_infinite(accountant):
    for event in (acc.Gaussian(0.0), acc.PoissonSampled(0.1, acc.Gaussian(0.0)), acc.Laplace(0.0)):
        assert acc.epsilon(event, 1e-5, accountant=accountant) == math.inf


@pytest.mark.parametrize("accountant", acc.ACCOUNTANTS)
def test_sampling_with_probability_one_is_no_sampling(accountant):
    plain = acc.Laplace(2.0) if accountant in ("optimal", "advanced") else acc.Gaussian(2.0)
    sampled = acc.PoissonSampled(1.0, plain)
    assert acc.epsilon(sampled, 1e-5, accountant=accountant) == acc.epsilon(plain, 1e-5, accountant=accountant)


@pytest.mark.parametrize("accountant", JOINT)
def test_delta_zero(accountant):
    assert acc.epsilon(acc.SelfComposed(STEP, 3), 0.0, accountant=accountant) == math.inf
    assert acc.epsilon(acc.SelfComposed(acc.Laplace(2.0), 3), 0.0, accountant=accountant) == 1.5


@pytest.mark.parametrize("accountant", JOINT)
def test_epsilon_is_never_negative(accountant):
    for delta in (0.3, 0.9, 0.999):
        assert acc.epsilon(STEP, delta, accountant=accountant) >= 0.0


@pytest.mark.parametrize("accountant", ["best", "rdp", "zcdp"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_epsilon_falls_with_delta_and_grows_with_steps(accountant, relation):
    def epsilon(count, delta):
        return acc.epsilon(acc.SelfComposed(STEP, count), delta, accountant=accountant, neighboring_relation=relation)

    by_delta = [epsilon(50, 10.0**-k) for k in (1, 3, 6, 12, 30, 100, 280)]
    assert all(a <= b for a, b in pairwise(by_delta))
    assert math.isfinite(by_delta[-1])
    by_count = [epsilon(count, 1e-6) for count in (1, 2, 5, 20, 100, 500)]
    assert all(a <= b for a, b in pairwise(by_count))


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_epsilon_falls_with_noise(accountant):
    values = [
        acc.epsilon(acc.SelfComposed(acc.PoissonSampled(0.05, acc.Gaussian(s)), 100), 1e-6, accountant=accountant)
        for s in (0.05, 0.5, 1.0, 8.0, 1e5)
    ]
    assert all(a > b >= 0 for a, b in pairwise(values))


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_delta_at_large_epsilon_is_small_and_not_noise(accountant):
    """The transform's rounding floor (1e-13) must not show: δ(ε) of 100 steps keeps falling past 1e-40."""
    values = [acc.delta(acc.SelfComposed(STEP, 100), e, accountant=accountant) for e in (0, 1, 5, 10, 20)]
    assert all(a > b > 0 for a, b in pairwise(values))
    assert values[-1] < 1e-40


@pytest.mark.parametrize("relation", RELATIONS)
def test_pld_of_plain_gaussians_meets_the_closed_form(relation):
    """ε from 0.001 to 100: above the exact value by at most 0.1 %, never below."""
    for noise in (4000.0, 300.0, 20.0, 3.0, 0.6, 0.1):
        exact = acc.epsilon(acc.Gaussian(noise), 1e-6, accountant="exact", neighboring_relation=relation)
        got = acc.epsilon(acc.Gaussian(noise), 1e-6, accountant="pld", neighboring_relation=relation)
        assert exact * (1 - 1e-12) <= got <= exact * 1.001


def test_pld_and_exact_of_one_laplace():
    for scale in (0.4, 2.0):
        for delta in (1e-6, 1e-2, 0.2):
            exact = acc.epsilon(acc.Laplace(scale), delta, accountant="exact")
            assert exact == max(0.0, 1 / scale + 2 * math.log1p(-delta))
            assert exact * (1 - 1e-12) <= acc.epsilon(acc.Laplace(scale), delta, accountant="pld") <= exact * 1.01


def test_count_is_not_ignored_for_statements_and_laplace():
    """100 copies of a pure mechanism cost more than one (an accountant elsewhere forgot the count)."""
    for event in (acc.Laplace(20.0), acc.EpsilonDelta(0.05, 0.0), acc.PoissonSampled(0.5, acc.Laplace(20.0))):
        one, many = acc.epsilon(event, 1e-6), acc.epsilon(acc.SelfComposed(event, 100), 1e-6)
        assert many > 5 * one


def test_sampled_laplace_by_direct_integration():
    """Both directions of one Poisson-sampled Laplace release: δ(ε) by quadrature of the two densities."""
    q, b, epsilon = 0.3, 0.5, 0.6
    x = np.linspace(-40 * b, 1 + 40 * b, 4_000_001)
    p0, p1 = np.exp(-np.abs(x) / b) / (2 * b), np.exp(-np.abs(x - 1) / b) / (2 * b)
    mixture = (1 - q) * p0 + q * p1
    h = x[1] - x[0]
    true = max(
        float(np.sum(np.maximum(mixture - math.exp(epsilon) * p0, 0)) * h),
        float(np.sum(np.maximum(p0 - math.exp(epsilon) * mixture, 0)) * h),
    )
    got = acc.delta(acc.PoissonSampled(q, acc.Laplace(b)), epsilon, accountant="pld")
    assert true * (1 - 1e-4) <= got <= true * 1.01


def test_pld_agrees_with_brute_convolution_of_a_mixed_composition():
    """Laplace + statement + sampled Gaussian, composed by hand on a fine grid without any Fourier transform."""
    q, sigma = 0.4, 1.5
    h = 1e-3
    x = np.linspace(-12 * sigma, 12 * sigma + 1, 200_001)
    p0 = np.exp(-(x**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
    p1 = np.exp(-((x - 1) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
    mixture = (1 - q) * p0 + q * p1
    gauss = (np.log(mixture / p0), mixture * (x[1] - x[0]))
    statement = (np.array([0.3, -0.3]), np.array([1, math.exp(-0.3)]) / (1 + math.exp(-0.3)) * (1 - 1e-3))
    losses = (gauss[0][:, None] + statement[0][None, :]).ravel()
    masses = (gauss[1][:, None] * statement[1][None, :]).ravel()
    epsilon = 0.8
    keep = losses > epsilon
    true = 1e-3 + float(np.sum(masses[keep] * -np.expm1(epsilon - losses[keep])))
    event = acc.Composed((acc.PoissonSampled(q, acc.Gaussian(sigma)), acc.EpsilonDelta(0.3, 1e-3)))
    got = acc.delta(event, epsilon, accountant="pld")
    assert true * (1 - 1e-6) <= got <= true * (1 + 20 * h)


def test_replace_one_rdp_by_quadrature():
    """D_α of the replace_one pair against 30-digit quadrature, integer and fractional orders."""
    q, sigma = mpmath.mpf("0.07"), mpmath.mpf("1.3")

    def density(x, mean):
        return (1 - q) * mpmath.npdf(x, 0, sigma) + q * mpmath.npdf(x, mean, sigma)

    event = acc.PoissonSampled(float(q), acc.Gaussian(float(sigma)))
    orders = [1.3, 2.0, 7.5, 20.0]
    got = acc.rdp(event, orders, neighboring_relation="replace_one")
    with mpmath.workdps(30):
        for order, value in zip(orders, got, strict=True):
            moment = mpmath.quad(
                lambda x, a=order: density(x, 1) ** a * density(x, -1) ** (1 - a),
                [-20, -10, -5, 0, 5, 10, 20, 40, 60],
            )
            assert value == pytest.approx(float(mpmath.log(moment) / (order - 1)), rel=1e-8)


EXTREMES = [(1e-6, 1e-3), (1e-6, 1e-7), (0.1, 0.003), (1.0, 0.03), (5.0, 0.2), (50, 9), (700, 30), (1e3, 45)]


def test_gaussian_closed_forms_at_extremes():
    """δ to 1e-300 and ε from 1e-6 to 1e3 against 700-digit arithmetic of Balle & Wang's formula."""
    with mpmath.workdps(700):
        for epsilon, mu in [
            (1e-6, 1e-3),
            (1e-6, 1e-7),
            (0.1, 0.003),
            (1.0, 0.03),
            (5.0, 0.2),
            (50, 9),
            (700, 30),
            (1e3, 45),
        ]:
            e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
            true = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
            log_delta = float(mpmath.log(true))
            assert conversions.gaussian_log_delta(epsilon, mu) == pytest.approx(log_delta, rel=1e-11, abs=1e-11)
            if log_delta > -700:
                sigma = acc.gaussian_noise_multiplier(epsilon, math.exp(log_delta))
                assert sigma == pytest.approx(1 / mu, rel=1e-8)
                assert acc.gaussian_epsilon(math.exp(log_delta), mu) == pytest.approx(epsilon, rel=1e-8)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1, "0.1", None, True, 1.5])
def test_delta_out_of_range_is_named(bad):
    with pytest.raises(ConfigError, match="delta = "):
        acc.epsilon(STEP, bad)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, "1", None])
def test_epsilon_out_of_range_is_named(bad):
    with pytest.raises(ConfigError, match="epsilon = "):
        acc.delta(STEP, bad)


def test_misspelt_names_are_refused():
    with pytest.raises(ConfigError, match="accountant = 'prv'"):
        acc.epsilon(STEP, 1e-5, accountant="prv")
    with pytest.raises(ConfigError, match="neighboring_relation = 'substitute'"):
        acc.epsilon(STEP, 1e-5, neighboring_relation="substitute")
    with pytest.raises(ConfigError, match="from_json"):
        acc.epsilon({"type": "gaussian"}, 1e-5)


@pytest.mark.parametrize("orders", [[1.0], [0.5], [math.inf], [math.nan], []])
def test_order_one_is_refused(orders):
    with pytest.raises(ConfigError, match="orders"):
        acc.rdp(STEP, orders)


OBJECTIVE = acc.ObjectivePerturbation(3.75, 1.2, 1.0)


@pytest.mark.parametrize(
    ("event", "accountant", "name"),
    [
        (OBJECTIVE, "zcdp", "objective_perturbation"),
        (OBJECTIVE, "pld", "objective_perturbation"),
        (acc.PoissonSampled(0.1, OBJECTIVE), "rdp", "objective_perturbation"),
        (acc.PoissonSampled(0.1, OBJECTIVE), "best", "objective_perturbation"),
        (acc.ZCDP(0.1), "pld", "zcdp"),
        (acc.EpsilonDelta(1.0, 1e-6), "zcdp", "epsilon_delta"),
        (acc.EpsilonDelta(1.0, 1e-6), "rdp", "epsilon_delta"),
        (acc.PoissonSampled(0.1, acc.Laplace(1.0)), "exact", "poisson_sampled"),
        (STEP, "gdp", "poisson_sampled"),
        (STEP, "optimal", "gaussian"),
        (acc.SampledWithoutReplacement(5, 50, acc.Gaussian(1.0)), "best", "replace_one"),
        (acc.PoissonSampled(0.1, acc.Composed((acc.Laplace(1.0), acc.Gaussian(1.0)))), "pld", "composed"),
    ],
)
def test_an_event_without_a_bound_is_refused_by_name(event, accountant, name):
    with pytest.raises(UnsupportedEventError, match=name):
        acc.epsilon(event, 1e-5, accountant=accountant)


def test_two_releases_on_one_sample_are_not_two_samples():
    both = acc.PoissonSampled(0.1, acc.SelfComposed(acc.Gaussian(2.0), 2))
    merged = acc.PoissonSampled(0.1, acc.Gaussian(math.sqrt(2.0)))
    apart = acc.SelfComposed(acc.PoissonSampled(0.1, acc.Gaussian(2.0)), 2)
    assert acc.epsilon(both, 1e-6) == pytest.approx(acc.epsilon(merged, 1e-6), rel=1e-9)
    assert acc.epsilon(both, 1e-6) > 1.01 * acc.epsilon(apart, 1e-6)


def test_objective_perturbation_closed_forms():
    """At λ ≥ R²/ε the ε is the Gaussian's; below that it pays c₀ = ln(1 + R²/4λ); replace_one is a group of two."""
    sigma = acc.gaussian_noise_multiplier(1.0, 1e-5)
    free = acc.ObjectivePerturbation(2 * sigma, 4.0, 2.0)  # R = 2, λ = R²/ε
    assert acc.epsilon(free, 1e-5) == pytest.approx(1.0, rel=1e-9)
    paid = acc.ObjectivePerturbation(2 * sigma, 1.0, 2.0)
    assert acc.epsilon(paid, 1e-5) == pytest.approx(1.0 + math.log(2.0), rel=1e-9)
    two = acc.epsilon(free, 1e-5, neighboring_relation="replace_one")
    assert acc.delta(free, two / 2) * (1 + math.exp(two / 2)) == pytest.approx(1e-5, rel=1e-6)
    assert acc.epsilon(paid, 1e-5, accountant="rdp") >= acc.epsilon(paid, 1e-5)


def test_objective_rdp_is_the_moment_of_its_loss_bound():
    """D_α·(α−1) = (α−1)c₀ + ln E e^{(α−1)(a²/2+Z)₊} by quadrature, a = R/σ = 0.4."""
    event, a = acc.ObjectivePerturbation(2.5, 0.5, 1.0), mpmath.mpf("0.4")
    c0 = mpmath.log(1 + 1 / mpmath.mpf(2))
    for order in (1.5, 4.0, 33.0):
        t = order - 1
        moment = mpmath.quad(
            lambda z, t=t: mpmath.exp(t * max(a * a / 2 + z, 0)) * mpmath.npdf(z, 0, a),
            [-8, -a * a / 2, 0, 2, 4, 8, 14, 24],
        )
        expected = float(c0 + mpmath.log(moment) / t)
        assert acc.rdp(event, [order])[0] == pytest.approx(expected, rel=1e-9)


def test_best_serves_objective_perturbation_with_output_noise():
    """Basic composition over the fixed grid of δ shares: compare with the best of these sums by hand."""
    event = acc.Composed((OBJECTIVE, acc.Gaussian(500.0)))
    value, used = acc.best(event, 1e-5)
    shares = (0.5, 0.1, 0.05, 0.01, 0.005, 0.001, 1e-4)
    by_hand = min(
        acc.epsilon(OBJECTIVE, 1e-5 * (1 - s), accountant="exact") + acc.gaussian_epsilon(1e-5 * s, 1 / 500)
        for s in shares
    )
    assert used == "basic"
    assert value == pytest.approx(by_hand, rel=1e-12)


def test_statements_add_up():
    event = acc.Composed((acc.EpsilonDelta(0.5, 1e-6), acc.SelfComposed(acc.EpsilonDelta(0.25, 2e-6), 2)))
    assert acc.epsilon(event, 5e-6, accountant="basic") == 1.0
    assert acc.epsilon(event, 4e-6, accountant="basic") == math.inf
    assert acc.delta(event, 1.0, accountant="basic") == pytest.approx(5e-6)
    assert acc.delta(event, 0.9, accountant="basic") == 1.0


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("accountant", JOINT)
def test_delta_and_epsilon_are_inverse(accountant, relation):
    event = acc.SelfComposed(acc.PoissonSampled(0.05, acc.Gaussian(1.5)), 40)
    epsilon = acc.epsilon(event, 1e-6, accountant=accountant, neighboring_relation=relation)
    delta = acc.delta(event, epsilon, accountant=accountant, neighboring_relation=relation)
    assert delta == pytest.approx(1e-6, rel=0.02)


def test_reading_does_not_change_the_answer():
    event = acc.SelfComposed(STEP, 77)
    assert len({acc.epsilon(event, 1e-5) for _ in range(3)}) == 1


def test_the_import_is_light():
    code = (
        "import sys, dpml.accounting; heavy = {'torch', 'hydra', 'omegaconf', 'dp_accounting', 'opacus'}; "
        "print(sorted({m.split('.')[0] for m in sys.modules} & heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_many_statements_whose_delta_is_certain_to_be_passed_are_infinite():
    for event in (
        acc.SelfComposed(acc.EpsilonDelta(0.1, 0.01), 100_000),
        acc.SelfComposed(acc.RandomRow(100), 100_000),
    ):
        for accountant in ("best", "optimal"):
            assert acc.epsilon(event, 1e-5, accountant=accountant) == math.inf
            assert acc.delta(event, 1.0, accountant=accountant) == 1.0


@pytest.mark.parametrize("accountant", ["best", "exact", "pld", "rdp", "zcdp", "gdp"])
def test_a_delta_below_the_range_of_floats_is_not_pure(accountant):
    """N(0,1) against N(1,1) at ε = 60: δ is about e^{−1770}, not 0."""
    assert acc.delta(acc.Gaussian(1.0), 60.0, accountant=accountant) > 0
    assert acc.delta(acc.NoOp(), 60.0, accountant=accountant) == 0.0


def test_what_is_no_function_of_noise_or_steps_is_refused():
    with pytest.raises(ConfigError, match="make_event"):
        acc.calibrate(5, epsilon=1.0, delta=1e-5)
    with pytest.raises(ConfigError, match="make_event"):
        acc.calibrate_steps(None, epsilon=1.0, delta=1e-5)
    with pytest.raises(ConfigError, match="orders"):
        acc.rdp(STEP, "x")
    with pytest.raises(ConfigError, match="neighboring_relation"):
        acc.PrivacyFilter.from_state({"type": "zcdp", "epsilon": 1.0, "delta": 1e-5})
