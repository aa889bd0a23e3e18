"""The Gaussian mechanism adds exactly the noise that it is told to, on every coordinate."""

import math
from fractions import Fraction

import mechanism_checks as checks
import numpy as np
import pytest
from scipy import optimize, stats

from dpml import accounting as acc
from dpml import errors
from dpml.mechanisms import FixedNoise, GaussianMechanism, SecretNoise, add_gaussian, gaussian_std


def test_noise_has_the_product_of_sensitivity_and_multiplier_as_std():
    """Chi-square of 10⁵ draws.  Two-sided false alarm 1e-6; a std wrong by 3 % is missed below 1e-9."""
    d = 100_000
    noised = add_gaussian(np.full(d, 4.0), sensitivity=0.5, noise_multiplier=3.0, noise=SecretNoise())
    square_sum = float((((noised - 4.0) / 1.5) ** 2).sum())
    assert stats.chi2(d).ppf(5e-7) < square_sum < stats.chi2(d).isf(5e-7)


def test_input_is_untouched_and_shape_kept():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    noised = add_gaussian(values, sensitivity=1.0, noise_multiplier=1.0, noise=FixedNoise(0))
    assert noised.shape == (2, 3)
    assert noised.dtype == np.float64
    assert (values == np.arange(6).reshape(2, 3)).all()
    assert (noised != values).all()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sensitivity", {"sensitivity": -1.0, "noise_multiplier": 1.0}),
        ("sensitivity", {"sensitivity": float("inf"), "noise_multiplier": 1.0}),
        ("noise_multiplier", {"sensitivity": 1.0, "noise_multiplier": float("nan")}),
    ],
)
def test_bad_numbers_are_refused_by_name(name, arguments):
    with pytest.raises(errors.ConfigError, match=name):
        gaussian_std(**arguments)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_without_a_bound_are_refused(bad):
    with pytest.raises(errors.DataError, match="NaN or infinity"):
        add_gaussian([1.0, bad], sensitivity=1.0, noise_multiplier=1.0, noise=FixedNoise(0))


# ------------------------------------------------------------------------------------------- GaussianMechanism
@pytest.mark.parametrize("dimension", [1, 7, 1000, 10**6])
@pytest.mark.parametrize(
    "target",
    [
        {"epsilon": 0.1, "delta": 1e-6},
        {"epsilon": 1.0, "delta": 1e-5},
        {"epsilon": 8.0, "delta": 1e-9},
        {"rho": 0.02},
        {"rho": 3.0},
        {"noise_multiplier": 0.3},
        {"noise_multiplier": 40.0},
        {"epsilon": 0.5, "delta": 1e-5, "classical": True},
    ],
    ids=str,
)
def test_the_event_is_what_was_asked_for(target, dimension):
    """ε from a root of Balle & Wang's equation, written here; rounding makes the noise larger, never smaller."""
    m = GaussianMechanism(3.0, dimension=dimension, **target)
    mu = m.event.mu
    assert (Fraction(3.0) / Fraction(1.0 - 2.0**-10) / Fraction(m.noise_std)) <= Fraction(mu) * (1 + Fraction(1, 2**50))
    if "rho" in target:
        allowed = math.sqrt(2 * target["rho"])
    elif "noise_multiplier" in target:
        allowed = 1 / target["noise_multiplier"]
    elif m.classical:
        allowed = 0.5 / math.sqrt(2 * math.log(1.25 / 1e-5))
    else:
        epsilon, delta = target["epsilon"], target["delta"]

        def excess(t):
            return (
                stats.norm.cdf(t / 2 - epsilon / t) - math.exp(epsilon) * stats.norm.cdf(-t / 2 - epsilon / t) - delta
            )

        allowed = optimize.brentq(excess, 1e-3, 20.0, xtol=1e-13)
    assert allowed * (1 - 0.01) <= mu <= allowed * (1 + 1e-9)
    if "rho" in target:
        assert acc.rho(m.event) <= target["rho"]
    if "delta" in target:
        for relation in acc.RELATIONS:
            for event in (m.event, m.event_under(relation)):
                assert acc.epsilon(event, target["delta"], neighboring_relation=relation) <= target["epsilon"]


def test_classical_has_its_limit_and_is_larger():
    for epsilon in (1.0, 1.5, 20.0):
        with pytest.raises(errors.ConfigError, match="below 1"):
            GaussianMechanism(1.0, epsilon=epsilon, delta=1e-5, classical=True)
    classical = GaussianMechanism(1.0, epsilon=0.9, delta=1e-5, classical=True)
    assert classical.noise_std > GaussianMechanism(1.0, epsilon=0.9, delta=1e-5).noise_std
    assert classical.multiplier == pytest.approx(math.sqrt(2 * math.log(1.25e5)) / 0.9)
    for other in ({"rho": 0.1}, {"noise_multiplier": 1.0}):
        with pytest.raises(errors.ConfigError, match="classical"):
            GaussianMechanism(1.0, classical=True, **other)


def test_answers_are_on_the_grid_whatever_the_value():
    m = GaussianMechanism(1.0, rho=0.5, dimension=1000)
    rng = np.random.default_rng(0)
    for value in (np.zeros(1000), rng.normal(size=1000), rng.normal(size=1000) * 1e6, -np.zeros(1000)):
        steps = m.release(value, FixedNoise(1)).value / m.grid.spacing
        assert (steps == np.rint(steps)).all()
        assert not np.signbit(steps[steps == 0]).any()
    one = GaussianMechanism(1.0, rho=0.5)
    assert abs(one.release(1e300).value - one.limit) < 60


def test_rounding_is_paid_for():
    for sensitivity in (1.0, 0.77, 12.5):
        checks.gaussian_rounding_is_paid(sensitivity)


def test_two_worlds_and_the_noise_of_single_releases():
    checks.gaussian_two_worlds()


def test_a_small_fault_of_the_noise_is_seen():
    """Power: a standard deviation 7 % too small moves the distribution function by 0.017; KS at 1e-6 sees 0.0135."""
    noisy = (
        GaussianMechanism(1.0, noise_multiplier=1.0, dimension=40_000).release(np.zeros(40_000), FixedNoise(1)).value
    )
    checks.draws_fit(noisy, stats.norm.cdf)
    with pytest.raises(AssertionError):
        checks.draws_fit(0.93 * noisy, stats.norm.cdf)


def test_coordinates_of_the_mechanism_are_independent():
    checks.coordinates_are_independent(lambda n: GaussianMechanism(1.0, rho=0.5, dimension=n))


def test_error_statement():
    checks.error_statement_holds(GaussianMechanism(1.0, rho=0.5), 12.0)
    checks.error_statement_holds(GaussianMechanism(1.0, rho=0.5, dimension=30), np.arange(30.0))


@pytest.mark.parametrize(
    "arguments",
    [
        {"sensitivity": 0.0, "rho": 1.0},
        {"sensitivity": -1.0, "rho": 1.0},
        {"sensitivity": float("nan"), "rho": 1.0},
        {"sensitivity": float("inf"), "rho": 1.0},
        {"sensitivity": 1.0},
        {"sensitivity": 1.0, "epsilon": 1.0},
        {"sensitivity": 1.0, "delta": 1e-5},
        {"sensitivity": 1.0, "epsilon": 0.0, "delta": 1e-5},
        {"sensitivity": 1.0, "epsilon": float("inf"), "delta": 1e-5},
        {"sensitivity": 1.0, "epsilon": 1.0, "delta": 0.0},
        {"sensitivity": 1.0, "epsilon": 1.0, "delta": 1.0},
        {"sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5, "rho": 1.0},
        {"sensitivity": 1.0, "rho": 0.0},
        {"sensitivity": 1.0, "rho": 1e-30},
        {"sensitivity": 1.0, "noise_multiplier": 0.0},
        {"sensitivity": 1.0, "noise_multiplier": -1.0},
        {"sensitivity": 1.0, "noise_multiplier": 1e11},
        {"sensitivity": 1.0, "rho": 1.0, "dimension": 0},
        {"sensitivity": 1.0, "epsilon": 0.5, "delta": 1e-5, "classical": 1},
    ],
    ids=str,
)
def test_bad_arguments_of_the_mechanism(arguments):
    with pytest.raises(errors.ConfigError):
        GaussianMechanism(**arguments)
