"""Selections, discrete noise, unequal variances, randomized response, groups and samples: Rényi, zCDP, loss pairs."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from accounting_tables import close, inputs, rows, value
from hypothesis import given, settings
from hypothesis import strategies as st

from dpml import accounting as acc
from dpml.accounting import pairs, renyi, renyi_closed
from dpml.accounting.pairs_discrete import discrete, fixed_size, poisson, public_coin
from dpml.errors import ConfigError, DpmlError, UnsupportedEventError

AR, RO = "add_remove", "replace_one"
ORDERS = [1 + 2.0**-12, 1.1, 1.5, 2.0, 3.7, 16.0, 64.0, 1024.0]
mpf = mpmath.mpf


def table(*quantities):
    return rows("rdp_basic", *quantities)


def ids(row):
    return row["id"]


def is_finite(row):
    return row["inputs"]["order"] not in ("1", "inf")


def event_of(row):
    """The event and relation of a row of ``rdp_basic``."""
    x = {key: float(text) for key, text in row["inputs"].items() if key != "order"}
    kind = row["quantity"]
    if kind == "rdp_gaussian":
        return acc.Gaussian(x["sigma"] / x["sensitivity"]), AR
    if kind == "rdp_laplace":
        return acc.Laplace(x["scale_over_sensitivity"]), AR
    if kind == "rdp_randomized_response":  # the truth with probability 1 − p/2
        return acc.RandomizedResponse(2 * (1 - x["truth_probability"])), RO
    return acc.EpsilonDelta(x["epsilon"], 0.0), AR


EVERY = table("rdp_gaussian", "rdp_laplace", "rdp_randomized_response", "rdp_pure_dp_tight", "rdp_pure_dp_zcdp_bound")


@pytest.mark.parametrize("row", [row for row in EVERY if is_finite(row)], ids=ids)
def test_every_row_of_the_basic_table(row):
    event, relation = event_of(row)
    order = float(row["inputs"]["order"])
    got = acc.rdp(event, [order], neighboring_relation=relation)[0]
    if row["quantity"] == "rdp_pure_dp_zcdp_bound":  # a bound of the event, exact for the statement that it makes
        assert got <= value(row["value"])
        got = acc.rdp(acc.ZCDP(event.epsilon**2 / 2), [order])[0]
    assert close(row, got)


@pytest.mark.parametrize("row", [row for row in EVERY if not is_finite(row)], ids=ids)
def test_limit_orders_are_refused_and_approached(row):
    """Orders 1 and ∞ are not Rényi orders here; the divergences next to them lie on the right side of the limits."""
    event, relation = event_of(row)
    order = float(row["inputs"]["order"])
    with pytest.raises(ConfigError, match="orders"):
        acc.rdp(event, [order], neighboring_relation=relation)
    near = acc.rdp(event, [1 + 2.0**-20 if order == 1 else 1e9], neighboring_relation=relation)[0]
    limit = value(row["value"])
    if order == 1 and row["quantity"] != "rdp_pure_dp_zcdp_bound":
        assert limit * (1 - 1e-9) <= near <= limit * (1 + 1e-4)
    elif order != 1:
        assert near <= limit * (1 + 1e-9)


@pytest.mark.parametrize("row", table("zcdp_rho_of_pure_dp_tight_numeric"), ids=ids)
def test_rho_of_pure_events(row):
    pure = inputs(row)["epsilon"]
    for event, relation in ((acc.Pure(pure), AR), (acc.PermuteAndFlip(pure), RO), (acc.ReportNoisyMax(pure), AR)):
        assert close(row, acc.rho(event, neighboring_relation=relation))


# ---- Rényi divergences by definition --------------------------------------------------------------------------------


def lattice_divergence(weight, shift, order, reach):
    """D_α of integer noise shifted by ``shift`` against itself, in 40 digits."""
    a = mpf(order)
    k = range(-reach, reach + math.ceil(order * shift))
    total = mpmath.fsum(weight(mpf(i)) for i in range(-reach, reach + 1))
    moment = mpmath.fsum(weight(mpf(i - shift)) ** a * weight(mpf(i)) ** (1 - a) for i in k) / total
    return mpmath.log(moment) / (a - 1)


@pytest.mark.parametrize(("sigma", "shift"), [(1.0, 1), (0.4, 1), (0.2, 2), (2.9, 3), (3.5, 1), (40.0, 1)])
def test_renyi_of_the_discrete_gaussian(sigma, shift):
    event = acc.DiscreteGaussian(sigma, shift)
    orders = [order for order in ORDERS if order < 20]
    with mpmath.workdps(40):
        for order, got in zip(orders, acc.rdp(event, orders), strict=True):
            true = lattice_divergence(
                lambda k: mpmath.exp(-(k**2) / (2 * mpf(sigma) ** 2)), shift, order, math.ceil(14 * sigma) + 10
            )
            assert true * (1 - mpf("1e-13")) <= got <= true * (1 + mpf("1e-9"))
            assert got <= order * shift**2 / (2 * sigma**2) * (1 + 1e-11)


@pytest.mark.parametrize(("scale", "shift"), [(2.0, 1), (0.3, 3), (5.0, 20), (200.0, 1)])
def test_renyi_of_the_discrete_laplace(scale, shift):
    with mpmath.workdps(40):
        for relation, factor in ((AR, 1), (RO, 2)):
            got = acc.rdp(acc.DiscreteLaplace(scale, shift), ORDERS, neighboring_relation=relation)
            s, b = factor * shift, mpf(scale)
            r = mpmath.exp(-1 / b)
            for order, mine in zip(ORDERS, got, strict=True):
                t = mpf(order) - 1
                moment = (mpmath.exp(t * s / b) + r**s * mpmath.exp(-t * s / b)) / (1 + r)
                moment += mpmath.fsum((1 - r) / (1 + r) * r**k * mpmath.exp(t * (s - 2 * k) / b) for k in range(1, s))
                true = mpmath.log(moment) / t
                assert true * (1 - mpf("1e-13")) <= mine <= true * (1 + mpf("1e-9"))


def test_long_discrete_losses_are_bounded_by_a_grid():
    exact = acc.rdp(acc.DiscreteLaplace(2000.0, 4000), ORDERS)
    coarse = acc.rdp(acc.DiscreteLaplace(2500.0, 5000), ORDERS)  # the same ratio, one side by its grid
    assert np.all(coarse >= exact * (1 - 1e-4))
    assert np.all(coarse <= exact * 1.001)
    assert np.all(np.isfinite(acc.rdp(acc.DiscreteLaplace(1e6, 10**6), ORDERS)))


@pytest.mark.parametrize("number", [3, 4, 50])
@pytest.mark.parametrize("noise", [0.01, 0.5, 0.97])
def test_renyi_of_randomized_response(noise, number):
    p, k = mpf(noise), number
    event = acc.RandomizedResponse(noise, number)
    with mpmath.workdps(60):
        for order, got in zip(ORDERS, acc.rdp(event, ORDERS, neighboring_relation=RO), strict=True):
            a, odds = mpf(order), 1 + (1 - p) * k / p
            true = mpmath.log(p / k * (odds**a + odds ** (1 - a) + k - 2)) / (a - 1)
            assert true * (1 - mpf("1e-12")) <= got <= true * (1 + mpf("1e-9"))


@pytest.mark.parametrize("pure", [1e-8, 1e-3, 0.3, 1.0, 5.0, 12.0, 80.0])
def test_renyi_of_bounded_range(pure):
    """The best of the pairs with the losses t and t − η, on a fine grid of t; and the closed form of that maximum."""
    with mpmath.workdps(60):
        eta = mpf(pure)
        for order, got in zip(ORDERS, acc.rdp(acc.ExponentialMechanism(pure), ORDERS), strict=True):
            a = mpf(order)

            def divergence(t, a=a, eta=eta):
                p = (1 - mpmath.exp(t - eta)) / (1 - mpmath.exp(-eta))
                return mpmath.log(p * mpmath.exp((a - 1) * t) + (1 - p) * mpmath.exp((a - 1) * (t - eta))) / (a - 1)

            left = (1 - mpmath.exp(-a * eta)) / a
            right = mpmath.exp(-eta) * (1 - mpmath.exp(-(a - 1) * eta)) / (a - 1)
            best = mpmath.log(left / right)
            assert 0 <= best <= eta
            true = divergence(best)
            assert max(divergence(eta * i / 40) for i in range(41)) <= true * (1 + mpf("1e-30"))
            assert true * (1 - mpf("1e-13")) <= got <= true * (1 + mpf("1e-9"))
            assert got <= order * pure**2 / 8 * (1 + 1e-12)


UNEQUAL = [(1.0, 1.0, 2.0), (0.0, 1.0, 1.0001), (0.3, 3.0, 3.0000001), (1.0, 1.0, 1.0), (2.0, 1.5, 1.4)]


@pytest.mark.parametrize(("shift", "a", "b"), UNEQUAL)
def test_renyi_of_unequal_gaussians(shift, a, b):
    with mpmath.workdps(40):
        for order, got in zip(ORDERS, acc.rdp(acc.UnequalGaussian(shift, a, b), ORDERS), strict=True):
            al, sides = mpf(order), []
            for s, r in ((mpf(a), mpf(b)), (mpf(b), mpf(a))):
                mixed = al * r**2 + (1 - al) * s**2
                inside = mixed > 0
                sides.append(
                    mpmath.log(r / s) + mpmath.log(r**2 / mixed) / (2 * (al - 1)) + al * mpf(shift) ** 2 / (2 * mixed)
                    if inside
                    else mpmath.inf
                )
            true = max(sides)
            if true == mpmath.inf:
                assert got == math.inf
            else:
                assert true * (1 - mpf("1e-13")) <= got <= true * (1 + mpf("1e-9"))


def test_renyi_of_unequal_gaussians_by_quadrature():
    event = acc.UnequalGaussian(0.7, 1.0, 1.2)
    for order in (1.5, 2.0, 3.0):
        moments = [
            mpmath.quad(
                lambda x, p=p, q=q, a=order: mpmath.npdf(x, *p) ** a * mpmath.npdf(x, *q) ** (1 - a),
                [-40, -10, -3, 0, 3, 10, 40],
            )
            for p, q in (((0, 1), (0.7, 1.2)), ((0.7, 1.2), (0, 1)))
        ]
        assert acc.rdp(event, [order])[0] == pytest.approx(float(mpmath.log(max(moments)) / (order - 1)), rel=1e-9)


@pytest.mark.parametrize(("sigma", "share"), [(2.0, (1, 10)), (1.0, (3, 10)), (10.0, (1, 100))])
def test_renyi_of_a_gaussian_sampled_without_replacement(sigma, share):
    """The glued pair by 30-digit quadrature on the half line."""
    event = acc.SampledWithoutReplacement(*share, acc.Gaussian(sigma))
    orders = [1 + 2.0**-10, 1.5, 3.7, 16.0]
    got = acc.rdp(event, orders, neighboring_relation=RO)
    with mpmath.workdps(30):
        s, gamma = mpf(sigma) / 2, mpf(share[0]) / share[1]
        for order, mine in zip(orders, got, strict=True):
            a = mpf(order)

            def integrand(x, a=a, s=s, gamma=gamma):
                r = 1 - gamma + gamma * mpmath.exp((2 * x - 1) / (2 * s * s))
                return mpmath.npdf(x, 0, s) * (r**a + r ** (1 - a) - r - 1)

            cuts = [mpf(1) / 2 + s * k for k in range(14)] + [a + 14 * s + 1]
            true = mpmath.log1p(mpmath.quad(integrand, cuts)) / (a - 1)
            assert true * (1 - mpf("1e-12")) <= mine <= true * (1 + mpf("1e-9"))
            plain = acc.rdp(acc.Gaussian(sigma), [order], neighboring_relation=RO)[0]
            assert mine <= plain


@pytest.mark.parametrize(("q", "sigma"), [("0.1", 1.0), ("0.3", 0.5)])
def test_renyi_of_the_sampled_discrete_gaussian(q, sigma):
    orders = [order for order in ORDERS if order < 20]
    got = acc.rdp(acc.PoissonSampled(float(q), acc.DiscreteGaussian(sigma)), orders)
    with mpmath.workdps(40):
        share, k = mpf(float(q)), range(-60, 100)
        q_mass = [mpmath.exp(-(mpf(i) ** 2) / (2 * mpf(sigma) ** 2)) for i in k]
        total = mpmath.fsum(q_mass)
        ratio = [1 - share + share * mpmath.exp((2 * i - 1) / (2 * mpf(sigma) ** 2)) for i in k]
        for order, mine in zip(orders, got, strict=True):
            a = mpf(order)
            moments = [
                mpmath.fsum(m * r**power for m, r in zip(q_mass, ratio, strict=True)) / total for power in (a, 1 - a)
            ]
            true = mpmath.log(max(moments)) / (a - 1)
            assert true * (1 - mpf("1e-12")) <= mine <= true * (1 + mpf("1e-9"))


@pytest.mark.parametrize(("q", "sigma", "size"), [(0.1, 2.0, 3), (0.3, 1.0, 2)])
def test_renyi_of_a_group_in_a_sample(q, sigma, size):
    orders = [1.5, 16.0]
    got = acc.rdp(acc.Group(acc.PoissonSampled(q, acc.Gaussian(sigma)), size), orders)
    with mpmath.workdps(25):
        share = mpf(q)
        weights = [mpmath.binomial(size, j) * share**j * (1 - share) ** (size - j) for j in range(size + 1)]

        def mixture(x):
            return mpmath.fsum(w * mpmath.npdf(x, j, sigma) for j, w in enumerate(weights))

        cuts = [-30, -15, -8, -4, 0, 2, 4, 8, 16, 32, 64, 100]
        for order, mine in zip(orders, got, strict=True):
            moments = [
                mpmath.quad(lambda x, a=a: mixture(x) ** a * mpmath.npdf(x, 0, sigma) ** (1 - a), cuts)
                for a in (order, 1 - order)
            ]
            true = mpmath.log(max(moments)) / (order - 1)
            assert true * (1 - mpf("1e-12")) <= mine <= true * (1 + mpf("1e-8"))
    replaced = acc.rdp(acc.Group(acc.PoissonSampled(q, acc.Gaussian(sigma)), size), orders, neighboring_relation=RO)
    plain = acc.rdp(acc.Group(acc.Gaussian(sigma), size), orders, neighboring_relation=RO)
    assert replaced == pytest.approx(plain, rel=1e-12)  # no amplification is claimed there


def test_groups_by_the_triangle_inequality():
    """Two steps of an UnequalGaussian with equal variances are a shift twice as large; k = 3 is charged as 4."""
    event = acc.UnequalGaussian(0.5, 1.0, 1.0)
    orders = np.array([1.2, 2.0, 5.0, 30.0])
    for size in (2, 3, 4):
        got = acc.rdp(acc.Group(event, size), orders)
        assert np.all(got >= orders * (0.5 * size) ** 2 / 2)
        if size == 2:
            assert np.all(got[1:] <= 3 * acc.rdp(event, 2 * orders)[1:] * (1 + 1e-12))
        if size == 4:  # Mironov 2017, Proposition 2 at order α ≥ 2
            assert np.all(got[1:] <= 9 * acc.rdp(event, 4 * orders)[1:] * (1 + 1e-12))
    assert acc.rho(acc.Group(event, 3)) == pytest.approx(9 * 0.125, rel=1e-13)


RHO = [
    (acc.ExponentialMechanism(0.3), AR),
    (acc.ExponentialMechanism(9.0), RO),
    (acc.DiscreteGaussian(0.7, 2), RO),
    (acc.DiscreteLaplace(0.4, 2), AR),
    (acc.RandomizedResponse(0.2, 5), RO),
    (acc.UnequalGaussian(1.0, 2.0, 2.0), AR),
    (acc.GDP(1.3), RO),
    (acc.PoissonSampled(0.2, acc.GDP(1.3)), RO),
    (acc.PoissonSampled(0.2, acc.DiscreteGaussian(0.7)), AR),
    (acc.SampledWithoutReplacement(1, 5, acc.ExponentialMechanism(2.0)), RO),
    (acc.Group(acc.PoissonSampled(0.2, acc.Laplace(3.0)), 2), AR),
    (acc.Group(acc.SampledWithoutReplacement(1, 5, acc.Gaussian(3.0)), 2), RO),
]


@pytest.mark.parametrize(("event", "relation"), RHO, ids=str)
def test_rho_is_above_every_divergence(event, relation):
    """ρ-zCDP is D_α ≤ αρ at every order."""
    rho = acc.rho(event, neighboring_relation=relation)
    orders = np.array(renyi.ORDERS)
    assert np.all(acc.rdp(event, orders, neighboring_relation=relation) <= orders * rho * (1 + 1e-9))


def test_known_rhos():
    assert acc.rho(acc.ExponentialMechanism(0.4)) == pytest.approx(0.02, rel=1e-14)
    assert acc.rho(acc.ExponentialMechanism(20.0)) == 20.0
    assert acc.rho(acc.DiscreteGaussian(2.0, 3)) == pytest.approx(9 / 8, rel=1e-14)
    assert acc.rho(acc.DiscreteGaussian(2.0, 3), neighboring_relation=RO) == pytest.approx(36 / 8, rel=1e-14)
    assert acc.rho(acc.GDP(0.6)) == pytest.approx(0.18, rel=1e-14)
    assert acc.rho(acc.DiscreteGaussian(0.0)) == acc.rho(acc.DiscreteLaplace(0.0)) == math.inf


# ---- loss pairs -----------------------------------------------------------------------------------------------------


def profile(losses, epsilon):
    return losses.infinite + float(np.sum(losses.masses * np.maximum(-np.expm1(epsilon - losses.losses), 0)))


INNER = [
    (acc.EpsilonDelta(1.0, 0.02), AR),
    (acc.DiscreteLaplace(1.5, 2), RO),
    (acc.RandomizedResponse(0.4, 6), RO),
    (acc.DiscreteGaussian(1.1), RO),
]


@pytest.mark.parametrize(("event", "relation"), INNER, ids=str)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.999])
def test_the_glued_pair_of_a_fixed_size_sample(event, relation, share):
    """Mass 1, Q-mass 1 − P(∞), δ′(ln(1 + γ(e^ε − 1))) = γδ(ε) above 0, its mirror below, convex in e^ε, rest ≥ 0."""
    inner = discrete(event, relation, 12.0)
    glued = fixed_size(poisson(inner, share, "remove"))
    assert glued.masses.min() >= 0
    assert math.fsum(glued.masses) + glued.infinite == pytest.approx(1, abs=1e-12)
    assert float(np.sum(glued.masses * np.exp(-glued.losses))) == pytest.approx(1 - glued.infinite, abs=1e-12)
    for epsilon in (0.0, 0.1, 0.5, 1.3):
        inside = math.log1p(share * math.expm1(epsilon))
        assert profile(glued, inside) == pytest.approx(share * profile(inner, epsilon), rel=1e-9)
        mirrored = -math.expm1(-inside) + math.exp(-inside) * profile(glued, inside)
        assert profile(glued, -inside) == pytest.approx(mirrored, rel=1e-9)
    points = np.linspace(0.2, 3.0, 301)
    values = np.array([profile(glued, math.log(point)) for point in points])
    assert np.all(np.diff(values, 2) >= -1e-12)


def test_a_public_coin_bounds_every_sampled_pair():
    """Two-point mechanisms on a sample of one record: without it, with it, with its replacement."""
    generator = np.random.default_rng(5)
    for _ in range(50):
        q = generator.uniform(0.1, 0.9)
        absent, present, replaced = (generator.dirichlet(np.ones(4)) for _ in range(3))
        p, r = (1 - q) * absent + q * present, (1 - q) * absent + q * replaced
        pair = pairs.Losses(np.log(present / replaced), present, 0.0)
        bound = public_coin(pair, q)
        for epsilon in (-0.5, 0.0, 0.3, 1.0):
            true = float(np.sum(np.maximum(p - math.exp(epsilon) * r, 0)))
            assert true <= profile(bound, epsilon) + 1e-12


def test_bounded_range_profile_is_the_envelope_of_two_losses():
    eta = 1.7
    pmf = pairs.discretise(acc.ExponentialMechanism(eta), AR, "remove", 2.0**-12, 9.0)
    assert math.fsum(pmf.masses) == pytest.approx(1, abs=1e-12)
    assert float(pmf.masses @ np.exp(-pmf.losses)) == pytest.approx(1, abs=1e-6)
    for epsilon in (-1.0, -0.2, 0.0, 0.6, 1.5):
        closed = (1 - math.exp((epsilon - eta) / 2)) ** 2 / (1 - math.exp(-eta))
        assert closed * (1 - 1e-12) <= profile(pmf, epsilon) <= closed * (1 + 1e-4) + 1e-7
        for t in np.linspace(0, eta, 101):
            p = (1 - math.exp(t - eta)) / (1 - math.exp(-eta))
            two = p * max(0, 1 - math.exp(epsilon - t)) + (1 - p) * max(0, 1 - math.exp(epsilon - t + eta))
            assert two <= closed + 1e-12


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-3, 3), min_size=2, max_size=5),
    st.data(),
    st.sampled_from([0.3, 1.0, 4.0]),
    st.sampled_from([1, 2, 3]),
)
def test_real_exponential_mechanisms_stay_below(scores, data, pure, count):
    """Scores that move by at most 1, weights e^{ε·u/2}: all outcomes of ``count`` runs, both ways, every accountant."""
    moved = [score + data.draw(st.floats(-1, 1)) for score in scores]
    weights = [np.exp(pure * np.array(part) / 2) for part in (scores, moved)]
    p, q = (part / part.sum() for part in weights)
    event = acc.SelfComposed(acc.ExponentialMechanism(pure), count)
    epsilon = 0.4 * pure * count
    true = 0.0
    for one, other in ((p, q), (q, p)):
        outcomes = list(itertools.product(range(len(one)), repeat=count))
        first = np.array([math.prod(one[i] for i in outcome) for outcome in outcomes])
        second = np.array([math.prod(other[i] for i in outcome) for outcome in outcomes])
        true = max(true, float(np.sum(np.maximum(first - math.exp(epsilon) * second, 0))))
    for accountant in ("pld", "rdp", "zcdp"):
        assert acc.delta(event, epsilon, accountant=accountant) >= true - 1e-12


PAIRS = [
    (acc.ExponentialMechanism(2.0), AR),
    (acc.DiscreteLaplace(1.3, 2), AR),
    (acc.DiscreteGaussian(0.9), RO),
    (acc.DiscreteGaussian(2e4), AR),
    (acc.RandomizedResponse(0.5, 7), RO),
    (acc.UnequalGaussian(1.0, 1.0, 1.3), AR),
    (acc.UnequalGaussian(0.0, 2.0, 1.3), AR),
    (acc.UnequalGaussian(1.0, 2.0, 2.0 + 1e-9), RO),
    (acc.PoissonSampled(0.1, acc.UnequalGaussian(1.0, 1.0, 1.3)), AR),
    (acc.PoissonSampled(0.1, acc.DiscreteGaussian(0.9)), AR),
    (acc.PoissonSampled(1e-4, acc.ExponentialMechanism(1.0)), AR),
    (acc.PoissonSampled(0.3, acc.GDP(0.8)), RO),
    (acc.PoissonSampled(0.3, acc.RandomizedResponse(0.5, 7)), RO),
    (acc.SampledWithoutReplacement(1, 1000, acc.Gaussian(0.7)), RO),
    (acc.SampledWithoutReplacement(1, 3, acc.EpsilonDelta(0.0, 0.1)), RO),
    (acc.Group(acc.PoissonSampled(0.1, acc.Gaussian(0.7)), 5), AR),
]


@pytest.mark.parametrize(("event", "relation"), PAIRS, ids=str)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_loss_distributions_keep_all_mass_and_no_q_mass_too_much(event, relation, direction):
    pmf = pairs.discretise(event, relation, direction, 2.0**-9, 9.0)
    assert 1 - 1e-12 <= math.fsum(pmf.masses) + pmf.infinite <= 1 + 1e-6
    assert pmf.masses.min() >= 0
    assert float(np.sum(pmf.masses * np.exp(-pmf.losses))) <= 1 + 1e-6


def test_blocks_of_a_wide_discrete_gaussian():
    """σ = 2·10⁴ is kept in blocks of integers: above the exact lattice and the closed form within 0.3 %."""
    for sigma in (2e4, 1e6):
        got = acc.epsilon(acc.SelfComposed(acc.DiscreteGaussian(sigma), 1000), 1e-6, accountant="pld")
        normal = acc.gaussian_epsilon(1e-6, math.sqrt(1000) / sigma)
        assert normal * (1 - 1e-6) <= got <= normal * 1.003


# ---- selections from a random number of runs ------------------------------------------------------------------------


def selected(masses, kind, mean, shape):
    """Outcome masses of the best of K runs (outcomes in rising order), last the outcome of K = 0, by its PGF."""
    x = np.concatenate([[0.0], np.cumsum(masses)])
    x[-1] = 1.0
    if kind == "poisson":
        generating = np.exp(mean * (x - 1))
        return np.append(np.diff(generating), math.exp(-mean))
    if mean == 1:
        return np.append(masses, 0.0)
    gamma = math.exp(-renyi_closed.log_inverse_gamma(mean, shape))
    inside = 1 - (1 - gamma) * x
    if shape == 0:
        generating = np.log(inside) / math.log(gamma)
    else:
        generating = (inside ** (-shape) - 1) / (gamma ** (-shape) - 1)
    return np.append(np.diff(generating), 0.0)


@pytest.mark.parametrize(
    ("kind", "mean", "shape"),
    [
        ("poisson", 0.1, None),
        ("poisson", 1.0, None),
        ("poisson", 12.0, None),
        ("negative", 1.0, 1.0),
        ("negative", 5.0, 0.0),
        ("negative", 5.0, 1.0),
        ("negative", 3.0, -0.5),
        ("negative", 20.0, 3.0),
    ],
)
def test_selection_from_real_mechanisms_stays_below(kind, mean, shape):
    """Randomized response over k ranked answers, base pair exact: the divergence of the best of K runs is no larger."""
    for noise, number in ((0.3, 2), (0.6, 5), (0.9, 3)):
        base = acc.RandomizedResponse(noise, number)
        event = acc.RepeatAndSelect(base, mean, shape)
        orders = [1.05, 1.5, 2.0, 5.0, 20.0]
        bounds = acc.rdp(event, orders, neighboring_relation=RO)
        rows_ = [np.full(number, noise / number) + (1 - noise) * np.eye(number)[i] for i in range(number)]
        for one, other in itertools.permutations(rows_, 2):
            p, q = selected(one, kind, mean, shape), selected(other, kind, mean, shape)
            keep = q > 0
            for order, bound in zip(orders, bounds, strict=True):
                true = math.log(float(np.sum(p[keep] ** order * q[keep] ** (1 - order)))) / (order - 1)
                assert true <= bound + 1e-9


def test_the_mean_fixes_the_distribution():
    for mean, shape in itertools.product((1.0001, 3.0, 1e6), (-0.9, -0.5, 0.0, 1e-9, 0.3, 1.0, 50.0, 1e6)):
        with mpmath.workdps(60):
            gamma, eta = mpmath.exp(-mpf(renyi_closed.log_inverse_gamma(mean, shape))), mpf(shape)
            if shape == 0:
                got = (1 / gamma - 1) / mpmath.log(1 / gamma)
            else:
                got = eta * (1 - gamma) / (gamma * (1 - gamma**eta))
            assert mean <= got <= mean * (1 + mpf("1e-9"))
    assert renyi_closed.log_inverse_gamma(5.0, 1.0) == pytest.approx(math.log(5), rel=1e-9)


@pytest.mark.parametrize("shape", [0.0, 1.0, 2.5, None])
@pytest.mark.parametrize("mean", [4.0, 100.0])
def test_selection_against_the_other_library(mean, shape):
    """Same orders on both sides; for Poisson the outcome of K = 0 is counted on top of the published bound."""
    from dp_accounting import dp_event
    from dp_accounting import rdp as other

    orders = list(renyi.ORDERS)
    event = acc.RepeatAndSelect(acc.Gaussian(3.0), mean, shape)
    accountant = other.RdpAccountant(orders)
    accountant.compose(
        dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(3.0), mean, math.inf if shape is None else shape)
    )
    theirs, ours = np.array(accountant._rdp), acc.rdp(event, np.array(orders))
    if shape is None:
        t = np.array(orders) - 1
        assert np.all(ours <= (np.logaddexp(-mean, t * theirs) / t) * (1 + 1e-9))
        large = np.array(orders) > 8
        assert ours[large] == pytest.approx(theirs[large], rel=2e-2)
    else:
        assert ours == pytest.approx(theirs, rel=1e-8)
    for delta in (1e-3, 1e-8):
        assert acc.epsilon(event, delta, accountant="rdp") == pytest.approx(accountant.get_epsilon(delta), rel=2e-2)


def test_selections_compose_and_one_run_is_one_run():
    one = acc.RepeatAndSelect(acc.Gaussian(2.0), 1.0, 0.5)
    assert np.array_equal(acc.rdp(one, ORDERS), acc.rdp(acc.Gaussian(2.0), ORDERS))
    many = acc.RepeatAndSelect(acc.SelfComposed(acc.PoissonSampled(0.1, acc.Gaussian(2.0)), 30), 10.0, 0.0)
    base = acc.SelfComposed(acc.PoissonSampled(0.1, acc.Gaussian(2.0)), 30)
    assert acc.epsilon(base, 1e-6, accountant="rdp") < acc.epsilon(many, 1e-6, accountant="rdp")
    assert acc.rdp(acc.SelfComposed(many, 7), ORDERS) == pytest.approx(7 * acc.rdp(many, ORDERS), rel=1e-13)
    grouped = acc.Group(acc.RepeatAndSelect(acc.Gaussian(4.0), 5.0, 1.0), 2)
    inside = acc.RepeatAndSelect(acc.Gaussian(2.0), 5.0, 1.0)
    assert acc.rdp(grouped, ORDERS) == pytest.approx(acc.rdp(inside, ORDERS), rel=1e-13)


# ---- another library as a second opinion ----------------------------------------------------------------------------


def test_pld_against_the_other_library():
    from dp_accounting import dp_event
    from dp_accounting import pld as other

    both = [
        (acc.DiscreteLaplace(4.0, 2), dp_event.DiscreteLaplaceDpEvent(0.25, 2)),
        (
            acc.Group(acc.PoissonSampled(0.1, acc.Gaussian(2.0)), 3),
            dp_event.MixtureOfGaussiansDpEvent(2.0, [0, 1, 2, 3], [0.729, 0.243, 0.027, 0.001]),
        ),
    ]
    for mine, theirs in both:
        accountant = other.PLDAccountant(value_discretization_interval=1e-3)
        accountant.compose(theirs, 10)
        for delta in (1e-3, 1e-6):
            got = acc.epsilon(acc.SelfComposed(mine, 10), delta, accountant="pld")
            assert got == pytest.approx(accountant.get_epsilon(delta), rel=5e-3)


# ---- refusals and the ends of the ranges ----------------------------------------------------------------------------

OBJECTIVE = acc.ObjectivePerturbation(3.75, 1.2, 1.0)
FIXED = acc.SampledWithoutReplacement(1, 10, acc.Gaussian(2.0))


@pytest.mark.parametrize(
    ("event", "accountant", "relation", "message"),
    [
        *((FIXED, accountant, AR, "fixed size|replace_one") for accountant in ("pld", "rdp", "zcdp")),
        (FIXED, "best", AR, "sampled_without_replacement"),
        *((acc.Group(FIXED, 2), accountant, AR, "fixed size|replace_one") for accountant in ("pld", "rdp", "zcdp")),
        *(
            (wrapped, accountant, relation, "objective_perturbation")
            for wrapped in (
                acc.PoissonSampled(0.1, OBJECTIVE),
                acc.SampledWithoutReplacement(1, 3, OBJECTIVE),
                acc.RepeatAndSelect(acc.PoissonSampled(0.1, OBJECTIVE), 3.0, 1.0),
                acc.PoissonSampled(0.1, acc.Composed((acc.Laplace(1.0), OBJECTIVE))),
            )
            for accountant in ("pld", "rdp", "zcdp")
            for relation in ((RO,) if isinstance(wrapped, acc.SampledWithoutReplacement) else (AR, RO))
        ),
        *((acc.RandomizedResponse(0.5, 4), accountant, AR, "randomized_response") for accountant in ("pld", "rdp")),
        (acc.UnequalGaussian(1.0, 1.0, 2.0), "zcdp", AR, "unequal_gaussian"),
        (acc.RepeatAndSelect(acc.Gaussian(1.0), 3.0, 1.0), "pld", AR, "repeat_and_select"),
        (acc.RepeatAndSelect(acc.Gaussian(1.0), 3.0, 1.0), "zcdp", AR, "repeat_and_select"),
        (acc.RepeatAndSelect(acc.EpsilonDelta(1.0, 1e-6), 3.0), "rdp", AR, "epsilon_delta"),
        (acc.Group(acc.PoissonSampled(0.1, acc.Gaussian(2.0)), 3), "pld", RO, "group"),
        (acc.Group(acc.PoissonSampled(0.1, acc.Gaussian(2.0)), 257), "pld", AR, "group"),
        (acc.SampledWithoutReplacement(1, 3, acc.UnequalGaussian(1.0, 1.0, 2.0)), "pld", RO, "sampled_without"),
        (acc.SampledWithoutReplacement(1, 3, acc.PoissonSampled(0.1, acc.Gaussian(1.0))), "pld", RO, "sampled_without"),
        (acc.PoissonSampled(0.1, acc.ZCDP(0.1)), "pld", AR, "zcdp"),
    ],
)
def test_what_has_no_proof_is_refused_by_name(event, accountant, relation, message):
    for call, argument in ((acc.epsilon, 1e-5), (acc.delta, 1.0)):
        with pytest.raises(UnsupportedEventError, match=message):
            call(event, argument, accountant=accountant, neighboring_relation=relation)


@pytest.mark.parametrize("relation", [AR, RO])
def test_selection_among_objective_perturbations_uses_their_renyi_bound(relation):
    """Papernot & Steinke 2022, Theorem 2, on the loss bound (Rényi divergences in both directions).

    ε'(α) = ε(α) + min over α̂ of [(1+η)(1−1/α̂)ε(α̂) + (1+η) ln(1/γ)/α̂] + ln E[K]/(α−1), over a grid of orders here.
    """
    event = acc.RepeatAndSelect(OBJECTIVE, 3.0, 1.0)
    orders = np.concatenate([np.linspace(1.05, 10, 180), np.linspace(10.5, 200, 380)])
    base = acc.rdp(OBJECTIVE, orders, neighboring_relation=relation)
    eta, mean = 1.0, 3.0
    # geometric for η = 1: E[K] = 1/γ
    gamma = 1 / mean
    inner = min((1 + eta) * (1 - 1 / orders) * base + (1 + eta) * math.log(1 / gamma) / orders)
    selected = base + inner + math.log(mean) / (orders - 1)
    slow = min(selected + np.log1p(-1 / orders) - (math.log(1e-5) + np.log(orders)) / (orders - 1))
    got = acc.epsilon(event, 1e-5, neighboring_relation=relation)
    assert got == pytest.approx(slow, rel=5e-3)  # two grids of orders


EXTREMES = [
    acc.ExponentialMechanism(1e12),
    acc.ExponentialMechanism(1e-300),
    acc.DiscreteLaplace(1e6, 10**6),
    acc.DiscreteLaplace(1e-300, 10**6),
    acc.DiscreteLaplace(0.0),
    acc.DiscreteGaussian(0.0),
    acc.DiscreteGaussian(1e-300),
    acc.DiscreteGaussian(1e6, 10**6),
    acc.DiscreteGaussian(1e6),
    acc.RandomizedResponse(0.0, 3),
    acc.RandomizedResponse(1.0, 3),
    acc.RandomizedResponse(1e-300, 10**15),
    acc.RandomizedResponse(1 - 1e-15, 10**6),
    acc.UnequalGaussian(1e12, 1e-6, 1e6),
    acc.UnequalGaussian(0.0, 1e6, 1e6),
    acc.UnequalGaussian(1e-300, 1.0, 1.0 + 1e-15),
    acc.GDP(1e12),
    acc.GDP(1e-300),
    acc.RandomRow(1),
    acc.RandomRow(10**15),
    acc.SampledWithoutReplacement(1, 10**15, acc.Gaussian(1e-6)),
    acc.SampledWithoutReplacement(1, 2, acc.DiscreteGaussian(1e6)),
    acc.SampledWithoutReplacement(1, 2, acc.ExponentialMechanism(1e12)),
    acc.PoissonSampled(1e-300, acc.ExponentialMechanism(3.0)),
    acc.PoissonSampled(1 - 1e-16, acc.DiscreteLaplace(1.0)),
    acc.PoissonSampled(0.5, acc.UnequalGaussian(1.0, 1e-6, 1e6)),
    acc.RepeatAndSelect(acc.Gaussian(0.0), 5.0),
    acc.RepeatAndSelect(acc.Gaussian(1e12), 1e9, -1 + 1e-9),
    acc.RepeatAndSelect(acc.Gaussian(1.0), 1e9, 1e6),
    acc.RepeatAndSelect(acc.Gaussian(1.0), 1e-300),
    acc.Group(acc.PoissonSampled(0.5, acc.Gaussian(1.0)), 100),
    acc.Group(acc.PoissonSampled(1e-300, acc.Gaussian(1e12)), 64),
    acc.Group(acc.UnequalGaussian(1.0, 1.0, 1.0), 10**15),
]


@pytest.mark.parametrize("event", EXTREMES, ids=str)
def test_the_ends_of_the_ranges_give_a_bound_or_our_error(event):
    for relation, accountant in itertools.product(acc.RELATIONS, ("pld", "rdp", "zcdp")):
        options = {"accountant": accountant, "neighboring_relation": relation}
        for call, argument in ((acc.epsilon, 1e-5), (acc.delta, 1.0)):
            try:
                got = call(acc.SelfComposed(event, 2), argument, **options)
            except DpmlError:
                continue
            assert got >= 0


@pytest.mark.parametrize("accountant", ["pld", "rdp", "zcdp"])
def test_no_noise_is_infinite(accountant):
    for event in (acc.DiscreteGaussian(0.0), acc.DiscreteLaplace(0.0), acc.GDP(1e12)):
        assert acc.epsilon(event, 1e-5, accountant=accountant) > 1e9
    response = acc.RandomizedResponse(0.0, 4)
    assert acc.epsilon(response, 1e-5, accountant=accountant, neighboring_relation=RO) == math.inf


def test_both_sides_of_unequal_variances_and_of_the_sample_are_tried():
    """The order of the two standard deviations does not matter, alone or with a sampled release."""
    sampled = acc.PoissonSampled(0.2, acc.Gaussian(1.0))
    for others in ((), (sampled,)):
        one, two = (
            acc.epsilon(acc.Composed((acc.UnequalGaussian(0.3, *pair), *others)), 1e-4, accountant="pld")
            for pair in ((1.0, 1.2), (1.2, 1.0))
        )
        assert one == pytest.approx(two, rel=1e-9)
