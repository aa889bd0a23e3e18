"""The contour accountant: moment functions, error bounds, identities and certified intervals.

Independent values: tests/reference, mpmath quadrature of the definitions, closed forms of the Gaussian, enumeration.
"""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from accounting_tables import close, relation_of, rows, sampled_event, value
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from dpml import accounting as acc
from dpml.accounting import closed_forms, contour, exact
from dpml.accounting.conversions import gaussian_epsilon, gaussian_log_delta
from dpml.accounting.mixtures import SampledGaussianMoments, decay_of_variation
from dpml.accounting.moments import (
    AtomsMoments,
    BoundedRangeMoments,
    GaussianMoments,
    LaplaceMoments,
    ObjectiveMoments,
    UnequalGaussianMoments,
    moments,
)
from dpml.errors import UnsupportedEventError

RELATIONS = ("add_remove", "replace_one")


def sampled(q, sigma, steps=1):
    return acc.SelfComposed(acc.PoissonSampled(q, acc.Gaussian(sigma)), steps)


# --- reference rows -------------------------------------------------------------------------------------------------

COMPOSED = rows(
    "composed_subsampled_gaussian", "epsilon_add_remove", "epsilon_replace_one", "epsilon_heterogeneous_add_remove"
)


@pytest.mark.parametrize("row", COMPOSED, ids=lambda row: row["id"])
def test_epsilon_of_every_reference_row(row):
    """ε_true ≤ ε ≤ ε_true(1 + 1e-6) (+ 1e-9), with the table's own tolerance below; the interval holds it."""
    low, high = exact.interval(sampled_event(row), value(row["inputs"]["delta"]), relation_of(row))
    true, slack = value(row["value"]), float(row["rtol"])
    assert true * (1 - slack) <= high <= true * (1 + 1e-6) + 1e-9
    assert low <= true * (1 + slack)
    assert high - low <= 1e-6 * true


@pytest.mark.parametrize("row", rows("composed_subsampled_gaussian", "delta_add_remove"), ids=lambda row: row["id"])
def test_delta_of_every_reference_row(row):
    low, high = exact.delta_interval(sampled_event(row), value(row["inputs"]["epsilon"]), "add_remove")
    true, slack = value(row["value"]), float(row["rtol"])
    assert low * (1 - slack) <= true <= high * (1 + slack)
    assert high <= true * (1 + 1e-7)


# --- moment functions against their definitions ---------------------------------------------------------------------


def normal(x, mean=0.0, sigma=1.0):
    return mp.exp(-((x - mean) ** 2) / (2 * mp.mpf(sigma) ** 2)) / (mp.mpf(sigma) * mp.sqrt(2 * mp.pi))


def sampled_definition(weights, sigma, direction, z):
    """E_P[(P/Q)^z] by quadrature on the real line."""

    def mixture(x, sign):
        return mp.fsum(w * normal(x, sign * j, sigma) for j, w in enumerate(weights))

    def integrand(x):
        if direction == "remove":
            p, q = mixture(x, 1), normal(x, 0, sigma)
        elif direction == "add":
            p, q = normal(x, 0, sigma), mixture(x, 1)
        else:
            p, q = mixture(x, 1), mixture(x, -1)
        return p * mp.exp(z * mp.log(p / q))

    reach = 12 * sigma + (2 * float(mp.re(z)) + 2) * (len(weights) - 1)
    return mp.quad(integrand, mp.linspace(-reach, reach, 25))


SAMPLED = [
    SampledGaussianMoments((0.99, 0.01), 1.0, "remove"),
    SampledGaussianMoments((0.99, 0.01), 1.0, "add"),
    SampledGaussianMoments((0.9, 0.1), 0.7, "replace"),
    SampledGaussianMoments((0.5, 0.5), 3.0, "add"),
    SampledGaussianMoments((0.81, 0.18, 0.01), 1.3, "remove"),
    SampledGaussianMoments((0.81, 0.18, 0.01), 1.3, "add"),
]


@pytest.mark.parametrize("pair", SAMPLED, ids=str)
@pytest.mark.parametrize(("c", "t"), [(0.4, 0.0), (2.5, 1.5), (6.0, 20.0)])
def test_moments_of_the_sampled_gaussian(pair, c, t):
    with mp.workdps(25):
        at_c = sampled_definition(pair.weights, pair.sigma, pair.direction, mp.mpf(c))
        ratio = sampled_definition(pair.weights, pair.sigma, pair.direction, mp.mpc(c, t)) / at_c
    log_moment, error = pair.log_moment(c)
    assert abs(log_moment - float(mp.log(at_c))) <= error + 1e-15 * abs(log_moment)
    assert error < 1e-11
    got, slack = pair.log_ratio(c, np.array([t, t + 1]), 40.0)
    assert abs(complex(np.exp(got[0])) - complex(ratio)) <= slack[0] + 1e-16
    assert slack[0] < 1e-11


CLOSED = {
    "gaussian": (GaussianMoments(0.7), lambda z: mp.exp(z * (z + 1) * mp.mpf(0.7) ** 2 / 2)),
    "laplace": (
        LaplaceMoments(0.8),
        lambda z: mp.quad(
            lambda x: mp.exp(-abs(x) * mp.mpf(0.8)) * mp.mpf(0.4) * mp.exp(z * mp.mpf(0.8) * (abs(x - 1) - abs(x))),
            [-80, -20, -5, 0, 0.5, 1, 5, 20, 80],
        ),
    ),
    "bounded range": (
        BoundedRangeMoments(0.9),
        lambda z: mp.quad(
            lambda u: mp.exp(z * u) * mp.exp((u - mp.mpf(0.9)) / 2) / (2 * (1 - mp.exp(-mp.mpf(0.9)))),
            mp.linspace(-mp.mpf(0.9), mp.mpf(0.9), 9),
        ),
    ),
    "objective": (
        ObjectiveMoments(0.6, 0.1),
        lambda z: (
            mp.exp(z * mp.mpf(0.1))
            * mp.quad(
                lambda x: normal(x) * mp.exp(z * max(mp.mpf(0), mp.mpf(0.6) ** 2 / 2 + mp.mpf(0.6) * x)),
                [-14, -3, -mp.mpf(0.6) / 2, 2, 8, 20],
            )
        ),
    ),
    "unequal": (
        UnequalGaussianMoments(1.0, 4.0, 5.0),
        lambda z: mp.quad(
            lambda x: mp.exp((z + 1) * mp.log(normal(x, 0, 4)) - z * mp.log(normal(x, 1, 5))), mp.linspace(-70, 60, 40)
        ),
    ),
    "atoms": (
        AtomsMoments((1.0, -1.0, 0.0), (0.6, 0.2, 0.1), 0.1),
        lambda z: mp.mpf(0.6) * mp.exp(z) + mp.mpf(0.2) * mp.exp(-z) + mp.mpf(0.1),
    ),
}


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize(("c", "t"), [(0.3, 0.0), (2.0, 1.7), (5.0, 30.0)])
def test_moments_in_closed_form(name, c, t):
    pair, definition = CLOSED[name]
    with mp.workdps(25):
        at_c, at_z = definition(mp.mpf(c)), definition(mp.mpc(c, t))
        ratio = at_z / at_c
    log_moment, error = pair.log_moment(c)
    assert abs(log_moment - float(mp.log(at_c))) <= error
    assert error < 1e-11
    got, slack = pair.log_ratio(c, np.array([t]), 40.0)
    assert abs(complex(np.exp(got[0])) - complex(ratio)) <= slack[0] + 1e-15
    assert slack[0] < 1e-10


def test_moments_of_the_objective_far_out_on_the_line():
    """At t = 1e4 the two parts of M are e^{±800000} times what is left of them."""
    a, constant, c, t = 0.4, 0.2, 3.0, 1e4
    with mp.workdps(40):

        def moment(z):
            w = mp.mpf(a) * (z + mp.mpf(1) / 2)
            phi = mp.erfc(-w / mp.sqrt(2)) / 2
            atom = mp.erfc(mp.mpf(a) / 2 / mp.sqrt(2)) / 2
            return mp.exp(z * mp.mpf(constant)) * (atom + mp.exp(z * (z + 1) * mp.mpf(a) ** 2 / 2) * phi)

        ratio = moment(mp.mpc(c, t)) / moment(mp.mpf(c))
    got, slack = ObjectiveMoments(a, constant).log_ratio(c, np.array([t]), 40.0)
    assert abs(complex(np.exp(got[0])) - complex(ratio)) <= slack[0] < 1e-8


@pytest.mark.parametrize("pair", [*SAMPLED, *(pair for pair, _ in CLOSED.values())], ids=str)
@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("c", [0.5, 4.0])
def test_decay_bounds_hold_and_fall(pair, fine, c):
    t = np.concatenate([np.linspace(0.05, 60, 300), np.linspace(60, 2000, 64)])
    bound = pair.log_decay(c, t, fine=fine)
    assert np.all(np.diff(bound) <= 1e-12)
    for start in range(0, len(t), 50):  # a quadrature needs equidistant points
        piece = t[start : start + 50]
        if np.ptp(np.diff(piece)) < 1e-9:
            got, slack = pair.log_ratio(c, piece, 40.0)
            assert np.all(np.exp(got.real) <= np.exp(bound[start : start + 50]) + slack)


def test_decay_of_variation_of_a_uniform_variable():
    """Uniform on [0, 1]: |φ(t)| = |sin(t/2)/(t/2)|, variation 2."""
    t = np.linspace(0.01, 300, 5000)
    bound = decay_of_variation(2.0, t)
    assert np.all(np.abs(np.sinc(t / (2 * np.pi))) <= np.exp(bound) + 1e-15)
    assert np.exp(bound[-1]) == pytest.approx(2 / 300, rel=1e-9)


# --- the contour sum ------------------------------------------------------------------------------------------------


def test_the_trapezoid_sum_is_the_sum_over_all_periods():
    """Poisson's formula: (h/2π) Σ e^{−zε}F(z) = Σₘ e^{cmA} δ(ε + mA); with a step so coarse that all terms count."""
    mu, c, h, epsilon = 1.3, 0.8, 2.5, 1.1
    period = 2 * math.pi / h
    z = c + 1j * h * np.arange(0, 60)
    terms = np.exp(mu**2 / 2 * z * (z + 1) - z * epsilon) / (z * (z + 1))
    total = h / math.pi * (terms[0].real / 2 + terms[1:].real.sum())

    def delta(e):  # E[(1 − e^{e−L})₊], any sign of e
        return special.ndtr(mu / 2 - e / mu) - math.exp(e) * special.ndtr(-mu / 2 - e / mu)

    expected = sum(math.exp(c * m * period) * delta(epsilon + m * period) for m in range(-25, 9))
    assert total == pytest.approx(expected, rel=1e-12)
    assert total > delta(epsilon) * 1.01  # an upper bound, and visibly not δ itself


@pytest.mark.parametrize("mu", [0.01, 0.3, 2.0, 30.0])
@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-9, 1e-18, 1e-30, 1e-100])
def test_gaussians_by_the_contour_against_the_closed_form(mu, delta):
    low, high = contour.solve(((GaussianMoments(mu / 3), 9),), math.log(delta))
    true = gaussian_epsilon(delta, mu)
    assert low <= true * (1 + 1e-13) + 1e-15
    assert true * (1 - 1e-13) <= high <= true * (1 + 1e-7) + 1e-12
    if true > 0:
        below, above = contour.log_delta(((GaussianMoments(mu / 3), 9),), true)
        assert below <= math.log(delta) + 1e-9
        assert math.log(delta) - 1e-9 <= above <= math.log(delta) + 1e-7


def high_precision_delta(q, sigma, steps, direction, epsilon, c, digits=40):
    """δ(ε) by the contour integral with every sum in mpmath."""
    with mp.workdps(digits):
        q, sigma, c, epsilon = mp.mpf(q), mp.mpf(sigma), mp.mpf(c), mp.mpf(epsilon)
        step = mp.mpf(1) / 12
        nodes = [step * k for k in range(-int(14 / step), int((14 + 2 * c) / step))]
        weights = [normal(x, 0, sigma) * step for x in nodes]
        ratios = [mp.log(1 - q + q * mp.exp((2 * x - 1) / (2 * sigma**2))) for x in nodes]
        sign = 1 if direction == "remove" else -1
        total, h = mp.mpf(0), mp.mpf("0.125")
        for k in range(400):
            z = mp.mpc(c, k * h)
            power = z + 1 if sign > 0 else -z
            moment = mp.fsum(w * mp.exp(power * r) for w, r in zip(weights, ratios, strict=True))
            term = mp.re(mp.exp(steps * mp.log(moment) - z * epsilon) / (z * (z + 1)))
            total += term / 2 if k == 0 else term
            if k > 20 and abs(term) < abs(total) * mp.mpf(10) ** -22:
                break
        return total * h / mp.pi


@pytest.mark.parametrize(("delta", "c"), [(1e-18, 4.0), (1e-30, 5.0)])
def test_tiny_delta_against_high_precision(delta, c):
    low, high = exact.interval(sampled(0.01, 1.0, 10_000), delta, "add_remove")
    true = [high_precision_delta(0.01, 1.0, 10_000, "remove", e, c) for e in (low, high)]
    assert true[0] >= delta * (1 - 1e-12)
    assert true[1] <= delta
    assert true[1] >= delta * (1 - 1e-6)


@pytest.mark.parametrize("relation", RELATIONS)
def test_delta_down_to_the_range_of_floats_is_monotone(relation):
    event = sampled(0.01, 1.0, 10_000)
    deltas = [10.0**-k for k in (*range(1, 31), 60, 100, 200, 300)]
    found = [acc.epsilon(event, delta, neighboring_relation=relation) for delta in deltas]
    assert all(math.isfinite(x) for x in found)
    assert all(b > a for a, b in itertools.pairwise(found))


# --- one release, few releases ---------------------------------------------------------------------------------------


def quadrature_delta(p, q, epsilon, low, high):
    """∫ (p − e^ε q)₊ by the trapezoid rule; the kink costs about the square of the step."""
    x = np.linspace(low, high, 2_000_001)
    return integrate.trapezoid(np.maximum(p(x) - math.exp(epsilon) * q(x), 0.0), x)


def mixture(x, q, sigma, mean):
    return (1 - q) * stats.norm.pdf(x, 0, sigma) + q * stats.norm.pdf(x, mean, sigma)


@pytest.mark.parametrize(("q", "sigma"), [(0.01, 1.0), (0.3, 0.7), (0.9, 4.0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.5])
def test_one_sampled_gaussian(q, sigma, epsilon):
    event, ends = acc.PoissonSampled(q, acc.Gaussian(sigma)), (-12 * sigma, 12 * sigma + 1)
    zero, one = (lambda x: stats.norm.pdf(x, 0, sigma)), (lambda x: mixture(x, q, sigma, 1))
    expected = max(quadrature_delta(one, zero, epsilon, *ends), quadrature_delta(zero, one, epsilon, *ends))
    assert closed_forms.delta(event, epsilon, "add_remove") == pytest.approx(expected, rel=1e-6, abs=1e-13)
    expected = quadrature_delta(one, lambda x: mixture(x, q, sigma, -1), epsilon, *ends)
    assert closed_forms.delta(event, epsilon, "replace_one") == pytest.approx(expected, rel=1e-6, abs=1e-13)


@pytest.mark.parametrize(
    ("shift", "std", "other"), [(1.0, 4.0, 5.0), (1.0, 5.0, 4.0), (0.0, 2.0, 2.2), (3.0, 1.0, 1.5)]
)
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_one_unequal_gaussian(shift, std, other, epsilon):
    first, second = (lambda x: stats.norm.pdf(x, 0, std)), (lambda x: stats.norm.pdf(x, shift, other))
    expected = max(quadrature_delta(a, b, epsilon, -80, 80) for a, b in ((first, second), (second, first)))
    got = acc.delta(acc.UnequalGaussian(shift, std, other), epsilon, accountant="exact")
    assert got == pytest.approx(expected, rel=1e-6, abs=1e-11)


def test_two_releases_by_conditioning_on_the_first():
    """δ₂(ε) = E_P[δ₁(ε − L)]: a quadrature that shares nothing with the contour."""
    q, sigma = 0.05, 0.9
    event = acc.PoissonSampled(q, acc.Gaussian(sigma))

    def delta_one(e):  # replace_one: the pair is symmetric, δ(−e) = 1 − e^{−e} + e^{−e}δ(e)
        d = closed_forms.delta(event, abs(e), "replace_one")
        return d if e >= 0 else -math.expm1(e) + math.exp(e) * d

    def integrand(x, epsilon):
        p, r = mixture(x, q, sigma, 1), mixture(x, q, sigma, -1)
        return p * delta_one(epsilon - math.log(p / r))

    for delta in (1e-3, 1e-5):
        low, high = exact.interval(acc.SelfComposed(event, 2), delta, "replace_one")
        for epsilon in (low, high):
            got, _ = integrate.quad(integrand, -9, 10, args=(epsilon,), limit=2000, epsabs=1e-14, epsrel=1e-10)
            assert got == pytest.approx(delta, rel=1e-6)


def test_exponential_mechanisms_by_conditioning():
    eta, epsilon = 0.7, 0.6
    scale = -math.expm1(-eta)

    def delta_one(e):
        if e >= eta:
            return 0.0
        return -math.expm1(e) if e <= -eta else math.expm1((e - eta) / 2) ** 2 / scale

    got, _ = integrate.quad(
        lambda u: math.exp((u - eta) / 2) / (2 * scale) * delta_one(epsilon - u), -eta, eta, points=[epsilon - eta]
    )
    found = exact.delta(acc.SelfComposed(acc.ExponentialMechanism(eta), 2), epsilon, "add_remove")
    assert found == pytest.approx(got, rel=1e-6)
    assert found >= got * (1 - 1e-9)


def test_the_profile_of_bounded_range_is_the_largest_of_its_two_point_pairs():
    eta = 1.3
    for epsilon in (0.0, 0.2, 0.9, 1.25):
        largest = 0.0
        for t in np.linspace(1e-6, eta, 4001):
            high = -math.expm1(t - eta) / -math.expm1(-eta)  # P-mass of loss t; the rest has loss t − η
            found = high * max(0.0, -math.expm1(epsilon - t)) + (1 - high) * max(0.0, -math.expm1(epsilon - t + eta))
            largest = max(largest, found)
        got = acc.delta(acc.ExponentialMechanism(eta), epsilon, accountant="exact")
        assert got == pytest.approx(largest, rel=1e-6)
        assert got >= largest


@pytest.mark.parametrize(("p", "k", "count"), [(0.4, 2, 1), (0.5, 4, 1), (0.5, 4, 6), (0.8, 10, 20)])
def test_randomized_response_by_counting(p, k, count):
    """Counts of (truth, the other's answer, neither) are multinomial: the exact δ(ε)."""
    event = acc.SelfComposed(acc.RandomizedResponse(p, k), count)
    pure = math.log((1 - p + p / k) / (p / k))
    for epsilon in (0.3 * pure, 0.5 * pure * math.sqrt(count)):
        true = 0.0
        for first in range(count + 1):
            for second in range(count + 1 - first):
                rest = count - first - second
                mass = stats.multinomial.pmf([first, second, rest], count, [1 - p + p / k, p / k, (k - 2) * p / k])
                true += mass * max(0.0, -math.expm1(epsilon - (first - second) * pure))
        for accountant in ("best", "pld"):
            got = acc.delta(event, epsilon, accountant=accountant, neighboring_relation="replace_one")
            assert got >= true * (1 - 1e-9)
            assert got <= true * 1.02 + 1e-12


def test_two_objective_perturbations_by_conditioning():
    """δ₂(ε) = E[δ₁(ε − W)] for the loss bound W = c₀ + (a²/2 + aZ)₊ with its own profile δ₁ in closed form."""
    atom = acc.ObjectivePerturbation(4.0, 2.0, 1.0)
    a, constant = 0.25, math.log1p(1 / 8)

    def delta_one(e):
        if e >= constant:
            return math.exp(gaussian_log_delta(e - constant, a))
        return 1 - 2 * math.exp(e - constant) * stats.norm.cdf(-a / 2)

    for epsilon in (0.6, 1.2):
        continuous, _ = integrate.quad(
            lambda z, e=epsilon: stats.norm.pdf(z) * delta_one(e - constant - a * a / 2 - a * z),
            -a / 2,
            9,
            points=[(epsilon - 2 * constant - a * a / 2) / a],
            epsabs=1e-15,
        )
        true = continuous + stats.norm.cdf(-a / 2) * delta_one(epsilon - constant)
        got = exact.delta(acc.SelfComposed(atom, 2), epsilon, "add_remove")
        assert true * (1 - 1e-7) <= got <= true * (1 + 1e-5)


# --- properties -----------------------------------------------------------------------------------------------------

SETTINGS = settings(max_examples=25, deadline=None)
RATES, NOISES = st.floats(5e-3, 0.5), st.floats(0.7, 8.0)
STEPS, DELTAS = st.integers(400, 20_000), st.floats(-30, -1)


@SETTINGS
@given(RATES, NOISES, STEPS, DELTAS, st.sampled_from(RELATIONS))
def test_the_interval_lies_below_every_other_upper_bound(q, sigma, steps, log_delta, relation):
    event, delta = sampled(q, sigma, steps), math.exp(log_delta)
    low, high = exact.interval(event, delta, relation)
    assert 0 <= low <= high
    assert high <= acc.epsilon(event, delta, accountant="rdp", neighboring_relation=relation) * (1 + 1e-9)
    assert high - low <= 1e-5 * high + 1e-12


@SETTINGS
@given(RATES, NOISES, STEPS, DELTAS, st.sampled_from(RELATIONS))
def test_epsilon_is_monotone(q, sigma, steps, log_delta, relation):
    def epsilon(q=q, sigma=sigma, steps=steps, log_delta=log_delta):
        return acc.epsilon(sampled(q, sigma, steps), math.exp(log_delta), neighboring_relation=relation) * (1 - 1e-9)

    base = acc.epsilon(sampled(q, sigma, steps), math.exp(log_delta), neighboring_relation=relation)
    assert epsilon(sigma=sigma * 1.05) <= base
    assert epsilon(q=q * 0.95) <= base
    assert epsilon(steps=steps - 3) <= base
    assert epsilon(log_delta=log_delta * 0.97) <= base


@SETTINGS
@given(st.permutations(range(5)), st.sampled_from(RELATIONS))
def test_the_order_of_composition_is_irrelevant(order, relation):
    parts = [sampled(0.01, 1.0, 500), acc.Laplace(30.0), acc.Gaussian(20.0), sampled(0.02, 2.0, 100), acc.ZCDP(0.0)]
    expected = acc.epsilon(acc.Composed(tuple(parts)), 1e-6, neighboring_relation=relation)
    got = acc.epsilon(acc.Composed(tuple(parts[i] for i in order)), 1e-6, neighboring_relation=relation)
    assert got == pytest.approx(expected, rel=1e-10)


@SETTINGS
@given(RATES, NOISES, STEPS, DELTAS, st.sampled_from(RELATIONS))
def test_delta_and_epsilon_are_inverse(q, sigma, steps, log_delta, relation):
    event = sampled(q, sigma, steps)
    epsilon = exact.epsilon(event, math.exp(log_delta), relation)
    if epsilon > 0:
        assert math.log(exact.delta(event, epsilon, relation)) == pytest.approx(log_delta, abs=1e-4)


def test_neighbours_share_a_line_with_the_same_result():
    events = [sampled(0.01, 1.0, 50 * k) for k in range(1, 41)]
    for relation in RELATIONS:
        shared = exact.epsilons(events, 1e-6, relation)
        single = [exact.epsilon(event, 1e-6, relation) for event in events]
        assert shared == pytest.approx(single, rel=1e-9)
    assert exact.epsilons([events[1], events[0]], 1e-6, "add_remove") is None
    assert exact.epsilons([events[0], acc.Gaussian(1.0)], 1e-6, "add_remove") is None


def test_the_two_directions_differ_and_the_larger_is_reported():
    pair = [
        ((moments(acc.PoissonSampled(0.01, acc.Gaussian(1.0)), "add_remove", way), 1000),) for way in ("remove", "add")
    ]
    remove, add = (contour.solve(parts, math.log(1e-5))[1] for parts in pair)
    assert add < 0.95 * remove
    assert exact.epsilon(sampled(0.01, 1.0, 1000), 1e-5, "add_remove") == pytest.approx(remove, rel=1e-12)


def test_unequal_gaussians_turn_against_the_samples():
    """Which data set holds the record says nothing about which one has the larger variance: all four pairings count."""
    event = acc.Composed((sampled(0.05, 1.0, 200), acc.UnequalGaussian(0.5, 4.0, 6.0)))
    atoms = exact._atoms(event, "add_remove")
    ways = exact.directions(atoms, "add_remove")
    assert len(ways) == 4
    found = [
        contour.solve(tuple((moments(a, "add_remove", way[a]), n) for a, n in atoms.items()), math.log(1e-6))[1]
        for way in ways
    ]
    assert len({round(x, 6) for x in found}) == 4
    assert exact.epsilon(event, 1e-6, "add_remove") == pytest.approx(max(found), rel=1e-12)


def test_what_it_cannot_bound_is_refused_by_name():
    for event, relation in (
        (acc.PoissonSampled(0.1, acc.Laplace(1.0)), "add_remove"),
        (acc.ZCDP(0.1), "add_remove"),
        (acc.SampledWithoutReplacement(1, 10, acc.Gaussian(1.0)), "replace_one"),
        (acc.Group(sampled(0.1, 1.0, 10), 2), "replace_one"),
        (acc.RepeatAndSelect(acc.Gaussian(5.0), 10.0, 1.0), "add_remove"),
    ):
        with pytest.raises(UnsupportedEventError, match=r"exact.*cannot bound"):
            acc.epsilon(event, 1e-5, accountant="exact", neighboring_relation=relation)


def test_certified_interval():
    found = acc.interval(sampled(0.01, 1.0, 1000), 1e-5)
    assert found.accountant == "exact"
    assert found.low <= found.high
    assert found.width < 1e-9
    mixed = acc.interval(acc.Composed((sampled(0.01, 1.0, 1000), acc.ZCDP(0.01))), 1e-5)
    assert found.low <= mixed.low < mixed.high  # a part's lower end holds for the whole
    assert acc.interval(acc.Laplace(2.0), 0.0) == acc.Interval(0.5, 0.5, "basic")
    assert acc.interval(acc.NonPrivate(), 1e-5).low == math.inf
    assert acc.interval(acc.NoOp(), 1e-5).high == 0.0


@pytest.mark.parametrize("row", rows("gaussian_mechanism_sigma", "sigma_analytic")[:6], ids=lambda row: row["id"])
def test_a_gdp_statement_is_the_gaussian_under_both_relations(row):
    x = {key: value(item) for key, item in row["inputs"].items()}
    statement = acc.GDP(x["sensitivity"] / value(row["value"]))
    for relation in RELATIONS:
        for accountant in ("best", "exact", "gdp"):
            got = acc.epsilon(statement, x["delta"], accountant=accountant, neighboring_relation=relation)
            assert got == pytest.approx(x["epsilon"], rel=1e-7)


def test_the_gaussian_limit_is_no_guarantee():
    """The reason for refusing: the limit's ε lies below the certified lower end."""
    event = sampled(0.01, 0.8, 500)
    with pytest.raises(UnsupportedEventError, match="approximation"):
        acc.epsilon(event, 1e-5, accountant="gdp")
    assert acc.gdp_approximation(event, 1e-5) < acc.interval(event, 1e-5).low
    assert close({"value": "1.0", "rtol": "1e-12", "atol": "0"}, acc.gdp_approximation(acc.GDP(1.0), 0.5) + 1.0)
    assert gaussian_log_delta(0.0, 1.0) < math.log(0.5)
