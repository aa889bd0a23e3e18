"""Composition theorems and conversions: reference tables, brute force, and never below the truth."""

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
from dpml.accounting import advanced, conversions, optimal, theorems
from dpml.errors import ConfigError, UnsupportedEventError

ALMOST = 1 + 1e-12


def ids(row):
    return row["id"]


def lists(row):
    """εs, δs and counts of a row, homogeneous or not."""
    x = row["inputs"]
    if "k" in x:
        return [float(x["epsilon"])], [float(x.get("delta", "0"))], [int(x["k"])]
    epsilons = [float(item) for item in x["epsilons"]]
    return epsilons, [float(item) for item in x.get("deltas", ["0"] * len(epsilons))], None


# ------------------------------------------------------------------------------------------------ reference tables


BASIC = [f"basic_{kind}_{what}" for kind in ("homogeneous", "heterogeneous") for what in ("epsilon", "delta")]


@pytest.mark.parametrize("row", rows("composition", *BASIC), ids=ids)
def test_basic_composition(row):
    got = theorems.basic_composition(*lists(row))
    assert close(row, got[0 if row["quantity"].endswith("epsilon") else 1])


FORMS = {
    "advanced_tanh": "tanh",
    "advanced_keps2": "k_epsilon_squared",
    "advanced_drv": "dwork_rothblum_vadhan",
}


@pytest.mark.parametrize("row", rows("composition", *FORMS), ids=ids)
def test_advanced_composition(row):
    x = inputs(row)
    epsilon, delta = theorems.advanced_composition(
        x["epsilon"], 1e-9, int(x["k"]), x["delta_prime"], FORMS[row["quantity"]]
    )
    assert close(row, epsilon)
    assert delta == pytest.approx(x["k"] * 1e-9 + x["delta_prime"], rel=1e-12)


@pytest.mark.parametrize("row", rows("composition", "advanced_heterogeneous_tanh"), ids=ids)
def test_advanced_heterogeneous_composition(row):
    epsilons, deltas, _ = lists(row)
    epsilon, delta = theorems.advanced_composition_heterogeneous(epsilons, deltas, inputs(row)["delta_prime"])
    assert close(row, epsilon)
    assert delta == inputs(row)["delta_prime"]


@pytest.mark.parametrize(
    "row", rows("composition", "optimal_homogeneous_epsilon", "optimal_heterogeneous_epsilon"), ids=ids
)
def test_optimal_epsilon(row):
    epsilons, deltas, counts = lists(row)
    got = theorems.optimal_composition_epsilon(epsilons, deltas, inputs(row)["delta_g"], counts)
    assert close(row, got)
    assert got >= value(row["value"]) * (1 - 1e-15)


@pytest.mark.parametrize(
    "row", rows("composition", "optimal_homogeneous_delta", "optimal_heterogeneous_delta"), ids=ids
)
def test_optimal_delta(row):
    epsilons, deltas, counts = lists(row)
    got = theorems.optimal_composition_delta(epsilons, deltas, inputs(row)["epsilon_g"], counts)
    assert close(row, got)
    assert got >= value(row["value"]) * (1 - 1e-15)


@pytest.mark.parametrize("row", rows("composition", "zcdp_composition_rho", "gdp_composition_mu"), ids=ids)
def test_composition_of_rho_and_mu(row):
    if row["quantity"].startswith("zcdp"):
        got = theorems.compose_zcdp([float(rho) for rho in row["inputs"]["rhos"]])
    else:
        got = theorems.compose_gdp([float(mu) for mu in row["inputs"]["mus"]])
    assert close(row, got)


def at_one_order(function, row, last):
    x = inputs(row)
    return function(np.array([x["order"]]), np.array([x["rdp"]]), x[last], form="simple")


@pytest.mark.parametrize("row", rows("conversions", "rdp_to_epsilon_classic"), ids=ids)
def test_simple_rdp_to_epsilon(row):
    assert close(row, at_one_order(conversions.rdp_to_epsilon, row, "delta"))


@pytest.mark.parametrize("row", rows("conversions", "rdp_to_delta_classic"), ids=ids)
def test_simple_rdp_to_delta(row):
    got = at_one_order(conversions.rdp_to_delta, row, "epsilon")
    expected = min(1.0, value(row["value"]))
    assert abs(got - expected) <= float(row["rtol"]) * expected + float(row["atol"])


@pytest.mark.parametrize("row", rows("conversions", "rdp_curve_to_epsilon_classic"), ids=ids)
def test_simple_rdp_curve_to_epsilon(row):
    x = inputs(row)
    orders = np.array([float(order) for order in row["inputs"]["orders"]])
    curve = conversions.zcdp_to_rdp(x["rho"], orders)
    assert close(row, conversions.rdp_to_epsilon(orders, curve, x["delta"], form="simple"))


@pytest.mark.parametrize("row", rows("conversions", "zcdp_to_epsilon_classic"), ids=ids)
def test_simple_zcdp_to_epsilon(row):
    x = inputs(row)
    assert close(row, conversions.zcdp_to_epsilon(x["rho"], x["delta"], form="simple"))


@pytest.mark.parametrize("row", rows("conversions", "zcdp_to_delta_classic"), ids=ids)
def test_simple_zcdp_to_delta(row):
    x = inputs(row)
    assert close(row, conversions.zcdp_to_delta(x["rho"], x["epsilon"], form="simple"))


@pytest.mark.parametrize("row", rows("conversions", "epsilon_delta_to_zcdp_rho_classic"), ids=ids)
def test_largest_rho(row):
    x = inputs(row)
    simple = conversions.largest_zcdp_rho(x["epsilon"], x["delta"], form="simple")
    assert close(row, simple)
    assert conversions.zcdp_to_epsilon(simple, x["delta"], form="simple") <= x["epsilon"]
    tight = conversions.largest_zcdp_rho(x["epsilon"], x["delta"])
    assert tight > simple
    assert conversions.zcdp_to_epsilon(tight, x["delta"]) <= x["epsilon"]
    assert conversions.zcdp_to_epsilon(tight * (1 + 1e-9), x["delta"]) > x["epsilon"]


@pytest.mark.parametrize("row", rows("conversions", "epsilon_delta_to_gdp_mu"), ids=ids)
def test_largest_mu(row):
    x = inputs(row)
    mu = conversions.largest_gdp_mu(x["epsilon"], x["delta"])
    assert close(row, mu)
    assert conversions.gdp_to_delta(mu, x["epsilon"]) <= x["delta"] * (1 + 1e-12)


@pytest.mark.parametrize("row", rows("conversions", "gdp_to_epsilon", "gdp_to_delta"), ids=ids)
def test_conversions_of_mu(row):
    x = inputs(row)
    if row["quantity"] == "gdp_to_epsilon":
        assert close(row, conversions.gdp_to_epsilon(x["mu"], x["delta"]))
    else:
        assert close(row, conversions.gdp_to_delta(x["mu"], x["epsilon"]))


@pytest.mark.parametrize("row", rows("rdp_basic", "rdp_pure_dp_tight"), ids=ids)
def test_rdp_of_pure_dp(row):
    x = inputs(row)
    assert close(row, float(conversions.pure_to_rdp(x["epsilon"], np.array([x["order"]]))[0]))


@pytest.mark.parametrize("row", rows("rdp_basic", "rdp_pure_dp_zcdp_bound"), ids=ids)
def test_simple_rdp_of_pure_dp(row):
    x = inputs(row)
    assert close(row, float(conversions.pure_to_rdp(x["epsilon"], np.array([x["order"]]), form="simple")[0]))


@pytest.mark.parametrize("row", rows("rdp_basic", "rdp_randomized_response"), ids=ids)
def test_rdp_of_randomized_response_is_the_worst_pure_one(row):
    x = inputs(row)
    epsilon = abs(math.log(x["truth_probability"]) - math.log1p(-x["truth_probability"]))
    assert close(row, float(conversions.pure_to_rdp(epsilon, np.array([x["order"]]))[0]))


@pytest.mark.parametrize("row", rows("rdp_basic", "zcdp_rho_of_pure_dp", "zcdp_rho_of_pure_dp_tight_numeric"), ids=ids)
def test_rho_of_pure_dp(row):
    form = "tight" if row["quantity"].endswith("numeric") else "simple"
    assert close(row, conversions.pure_to_zcdp(inputs(row)["epsilon"], form=form))


@pytest.mark.parametrize("row", rows("gaussian_mechanism_sigma", "sigma_classical"), ids=ids)
def test_classical_gaussian_only_where_it_is_proved(row):
    x = inputs(row)
    if row["proved_valid"] == "yes":
        sigma = conversions.classical_gaussian_noise_multiplier(x["epsilon"], x["delta"])
        assert close(row, sigma * x["sensitivity"])
        assert acc.gaussian_delta(x["epsilon"], 1 / sigma) <= x["delta"]
    else:
        with pytest.raises(ConfigError, match=r"epsilon = .* below 1.*gaussian_noise_multiplier"):
            conversions.classical_gaussian_noise_multiplier(x["epsilon"], x["delta"])


# ------------------------------------------------------------------------------------- conversions against the truth


ORDERS = np.array([1 + 2.0**-8, 1.1, 1.5, 2.0, 3.0, 5.7, 16.0, 64.0, 256.0])
PURE = st.floats(1e-3, 20.0)
SMALL = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def response_delta(pure, epsilon):
    """Exact δ(ε) of randomized response with odds e^pure."""
    odds = mpmath.exp(mpmath.mpf(pure))
    return max(mpmath.mpf(0), (odds - mpmath.exp(mpmath.mpf(epsilon))) / (1 + odds))


def gauss_delta(mu, epsilon):
    """Exact δ(ε) of N(0, 1) against N(μ, 1)."""
    mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


@SMALL
@given(pure=PURE, share=st.floats(0.0, 0.999))
def test_conversions_of_pure_dp_never_claim_less_than_randomized_response_has(pure, share):
    epsilon = share * pure
    with mpmath.workdps(50):
        truth = response_delta(pure, epsilon)
        for form in conversions.FORMS:
            rho = conversions.pure_to_zcdp(pure, form=form)
            curve = conversions.pure_to_rdp(pure, ORDERS, form=form)
            assert np.all(curve <= conversions.zcdp_to_rdp(rho, ORDERS) * ALMOST)
            for last in conversions.FORMS:
                assert conversions.zcdp_to_delta(rho, epsilon, form=last) >= truth
                assert conversions.rdp_to_delta(ORDERS, curve, epsilon, form=last) >= truth
                delta = float(truth)
                assert conversions.zcdp_to_epsilon(rho, delta, form=last) >= epsilon * (1 - 1e-12)
                assert conversions.rdp_to_epsilon(ORDERS, curve, delta, form=last) >= epsilon * (1 - 1e-12)
        assert conversions.gdp_to_delta(conversions.pure_to_gdp(pure), epsilon) >= truth * (1 - mpmath.mpf("1e-12"))


@SMALL
@given(mu=st.floats(0.01, 8.0), spread=st.floats(0.0, 6.0))
def test_conversions_of_mu_never_claim_less_than_the_gaussian_has(mu, spread):
    epsilon = spread * mu
    with mpmath.workdps(50):
        truth = gauss_delta(mu, epsilon)
        rho, curve = conversions.gdp_to_zcdp(mu), conversions.gdp_to_rdp(mu, ORDERS)
        for form in conversions.FORMS:
            assert conversions.zcdp_to_delta(rho, epsilon, form=form) >= truth
            assert conversions.rdp_to_delta(ORDERS, curve, epsilon, form=form) >= truth
        assert conversions.zcdp_to_delta(rho, epsilon) <= conversions.zcdp_to_delta(rho, epsilon, form="simple")


@SMALL
@given(pure=st.floats(1e-4, 60.0), order=st.floats(1.001, 1e4))
def test_tight_rho_of_pure_dp_holds_at_every_order(pure, order):
    with mpmath.workdps(60):
        a, e = mpmath.mpf(order), mpmath.mpf(pure)
        divergence = mpmath.log(mpmath.cosh((a - 0.5) * e) / mpmath.cosh(e / 2)) / (a - 1)
        assert divergence <= a * mpmath.mpf(conversions.pure_to_zcdp(pure))
        got = float(conversions.pure_to_rdp(pure, np.array([order]))[0])
        assert divergence * (1 - mpmath.mpf("1e-15")) <= got <= divergence * (1 + mpmath.mpf("1e-11"))


def test_tight_rho_of_pure_dp_is_the_limit_at_order_one():
    with mpmath.workdps(60):
        for pure in (1e-3, 0.5, 2.0, 10.0):
            a, e = 1 + mpmath.mpf("1e-25"), mpmath.mpf(pure)
            divergence = mpmath.log(mpmath.cosh((a - 0.5) * e) / mpmath.cosh(e / 2)) / (a - 1)
            assert conversions.pure_to_zcdp(pure) == pytest.approx(float(divergence / a), rel=1e-14)


@pytest.mark.parametrize("pure", [1e-9, 1e-3, 0.3, 0.999, 1.0, 3.0, 30.0, 800.0])
def test_mu_of_pure_dp_is_the_smallest_that_stays_below_randomized_response(pure):
    mu = conversions.pure_to_gdp(pure)
    with mpmath.workdps(400):
        odds = mpmath.exp(mpmath.mpf(pure))
        kink = 1 / (1 + odds)
        start = -mpmath.mpf(mu) / 2
        quantile = mpmath.findroot(lambda x: mpmath.log(mpmath.ncdf(x)) - mpmath.log(kink), start)  # Φ^{-1}(kink)

        def gauss(m):  # trade-off at type-I error = kink
            return mpmath.ncdf(-quantile - m)

        assert gauss(mpmath.mpf(mu)) <= kink
        assert gauss(mpmath.mpf(mu) * (1 - mpmath.mpf("1e-13"))) > kink
    for error in np.linspace(0.0, 1.0, 21)[1:-1]:
        response = max(0.0, 1 - math.exp(min(pure, 700.0)) * error, math.exp(-pure) * (1 - error))
        with mpmath.workdps(30):
            upper = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(float(error)))
            assert mpmath.ncdf(upper - mu) <= response + mpmath.mpf("1e-15")


@pytest.mark.parametrize(
    "call",
    [
        lambda: conversions.rdp_to_epsilon([2.0], [math.nan], 1e-5),
        lambda: conversions.rdp_to_epsilon([1.0], [1.0], 1e-5),
        lambda: conversions.rdp_to_epsilon([2.0], [1.0, 2.0], 1e-5),
        lambda: conversions.rdp_to_epsilon([2.0], [1.0], -1e-5),
        lambda: conversions.rdp_to_epsilon([2.0], [1.0], 1e-5, form="classic"),
        lambda: conversions.rdp_to_delta([2.0], [1.0], math.inf),
        lambda: conversions.zcdp_to_epsilon(-1.0, 1e-5),
        lambda: conversions.zcdp_to_epsilon(math.nan, 1e-5),
        lambda: conversions.zcdp_to_delta(0.1, -1.0),
        lambda: conversions.zcdp_to_rdp(0.1, [0.5]),
        lambda: conversions.pure_to_zcdp(-0.1),
        lambda: conversions.pure_to_rdp(1.0, [math.nan]),
        lambda: conversions.pure_to_gdp(math.inf),
        lambda: conversions.gdp_to_zcdp("1"),
        lambda: conversions.largest_zcdp_rho(1.0, 0.0),
        lambda: conversions.largest_gdp_mu(1.0, 1.0),
        lambda: conversions.classical_gaussian_noise_multiplier(0.0, 1e-5),
        lambda: conversions.classical_gaussian_noise_multiplier(0.5, 0.0),
        lambda: theorems.basic_composition([1.0], []),
        lambda: theorems.basic_composition([math.nan], [0.0]),
        lambda: theorems.basic_composition([1.0], [1.5]),
        lambda: theorems.basic_composition([1.0], [0.5], [-1]),
        lambda: theorems.advanced_composition(1.0, 0.0, 3, 0.0),
        lambda: theorems.advanced_composition(1.0, 0.0, 3, 0.1, "best"),
        lambda: theorems.advanced_composition(1.0, 0.0, 2.5, 0.1),
        lambda: theorems.advanced_composition_heterogeneous([1.0], [0.0], 1.0),
        lambda: theorems.optimal_composition_epsilon([1.0], [0.0], 1.1),
        lambda: theorems.optimal_composition_epsilon([1.0], [0.0], 0.1, accuracy=0.0),
        lambda: theorems.optimal_composition_delta([1.0], [0.0], -0.1),
        lambda: theorems.optimal_composition_delta([1.0], [0.0], math.inf),
        lambda: theorems.compose_zcdp([-1.0]),
        lambda: theorems.compose_gdp([math.inf]),
    ],
)
def test_values_out_of_range_are_refused(call):
    with pytest.raises(ConfigError, match="is not allowed"):
        call()


def test_conversions_at_the_ends_of_their_ranges():
    assert conversions.rdp_to_epsilon([2.0], [1.0], 0.0) == math.inf
    assert conversions.rdp_to_epsilon([2.0], [1.0], 1.0) == 0.0
    assert conversions.rdp_to_epsilon([2.0], [math.inf], 0.1) == math.inf
    assert conversions.rdp_to_delta([2.0], [math.inf], 5.0) == 1.0
    assert conversions.rdp_to_delta([2.0, 1e5], [0.0, 0.0], 1e300) == 0.0
    for form in conversions.FORMS:
        assert conversions.zcdp_to_epsilon(0.0, 0.0, form=form) == 0.0
        assert conversions.zcdp_to_epsilon(1.0, 0.0, form=form) == math.inf
        assert conversions.zcdp_to_epsilon(1.0, 1.0, form=form) == 0.0
        assert conversions.zcdp_to_epsilon(math.inf, 0.5, form=form) == math.inf
        assert conversions.zcdp_to_delta(0.0, 0.0, form=form) == 0.0
        assert conversions.zcdp_to_delta(1.0, 0.0, form=form) <= 1.0
        assert conversions.pure_to_zcdp(0.0, form=form) == 0.0
        assert list(conversions.pure_to_rdp(0.0, [1.0, 2.0, math.inf], form=form)) == [0.0, 0.0, 0.0]
    assert conversions.largest_zcdp_rho(0.0, 1e-5, form="simple") == 0.0
    assert conversions.zcdp_to_epsilon(conversions.largest_zcdp_rho(0.0, 0.5), 0.5) == 0.0
    assert list(conversions.pure_to_rdp(1e300, [1.0, 2.0, math.inf])) == [1e300] * 3
    assert conversions.pure_to_gdp(0.0) == conversions.gdp_to_zcdp(0.0) == 0.0


# --------------------------------------------------------------------------------------- optimal composition, exactly


def worst_case_delta(parts, epsilon_g):
    """Σ (P − e^ε Q)₊ over all outcomes of composed leaky randomized responses."""
    factor, total = mpmath.exp(mpmath.mpf(epsilon_g)), mpmath.mpf(0)
    tables = []
    for epsilon, delta in parts:
        odds, leak = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(delta)
        high, low = (1 - leak) * odds / (1 + odds), (1 - leak) / (1 + odds)
        tables.append([(leak, mpmath.mpf(0)), (high, low), (low, high), (mpmath.mpf(0), leak)])
    for outcome in itertools.product(*tables):
        p = mpmath.fprod(pair[0] for pair in outcome)
        q = mpmath.fprod(pair[1] for pair in outcome)
        total += max(mpmath.mpf(0), p - factor * q)
    return total


PARTS = st.lists(
    st.tuples(st.floats(0.001, 4.0) | st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 1e-12, 1e-4, 0.2])),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(parts=PARTS, share=st.floats(0.0, 1.1))
def test_optimal_composition_against_all_outcomes(parts, share):
    epsilons, deltas = [part[0] for part in parts], [part[1] for part in parts]
    epsilon_g = share * math.fsum(epsilons)
    with mpmath.workdps(40):
        truth = worst_case_delta(parts, epsilon_g)
        got = theorems.optimal_composition_delta(epsilons, deltas, epsilon_g)
        # the absolute term: how far the loss at ε_g itself, of mass up to 1, may be moved by rounding (1e-35: that of
        # the 40 digits here)
        assert (
            truth * (1 - mpmath.mpf("1e-15")) - mpmath.mpf("1e-35")
            <= got
            <= truth * (1 + mpmath.mpf("1e-12")) + mpmath.mpf("1e-14")
        )
        root = theorems.optimal_composition_epsilon(epsilons, deltas, got)
        # tight: where a smaller ε (by more than rounding) would do, δ is so flat that its own rounding explains it
        smaller = root * (1 - 1e-9) - 1e-12
        assert smaller <= epsilon_g or worst_case_delta(parts, smaller) >= mpmath.mpf(got) - mpmath.mpf("2e-14")
        if 0 < root < math.inf:
            assert worst_case_delta(parts, root) <= mpmath.mpf(got) + mpmath.mpf("1e-35")


def binomial_hockey_stick(pure, count, epsilon):
    """H(ε) of ``count`` randomized responses with odds e^pure, summed from the rarest outcome on."""
    p = 1 / (1 + mpmath.exp(-mpmath.mpf(pure)))
    term = mpmath.exp(count * mpmath.log(p))  # all signs +
    total, i = mpmath.mpf(0), 0
    while (count - 2 * i) * mpmath.mpf(pure) > epsilon:
        total += term * -mpmath.expm1(epsilon - (count - 2 * i) * mpmath.mpf(pure))
        term *= mpmath.mpf(count - i) / (i + 1) * (1 - p) / p
        i += 1
    return total


@pytest.mark.parametrize(("pure", "count"), [(0.03, 4_000), (2.0, 3_000), (1e-3, 4_000), (7.0, 5_000)])
@pytest.mark.parametrize("delta", [1e-6, 1e-30, 1e-200])
def test_many_equal_releases_down_to_tiny_deltas(pure, count, delta):
    got = theorems.optimal_composition_epsilon([pure], [0.0], delta, [count])
    with mpmath.workdps(30):
        assert binomial_hockey_stick(pure, count, mpmath.mpf(got)) <= delta
        assert binomial_hockey_stick(pure, count, mpmath.mpf(got) * (1 - mpmath.mpf("1e-9"))) >= delta
    back = theorems.optimal_composition_delta([pure], [0.0], got, [count])
    assert back == pytest.approx(delta, rel=1e-7)


def test_a_million_releases_against_the_normal_limit():
    """L is normal up to lattice and skewness terms of relative order 1/√k; the mean ε·tanh(ε/2)·k, the variance kε²."""
    got = theorems.optimal_composition_epsilon([1e-3], [0.0], 1e-6, [10**6])
    assert got == pytest.approx(acc.gaussian_epsilon(1e-6, 1.0), rel=1e-3)
    assert theorems.optimal_composition_epsilon(
        [1e-3], [1e-40], 1e-30, [10**6]
    ) >= theorems.optimal_composition_epsilon([1e-3], [0.0], 1e-30, [10**6])


def test_more_releases_than_can_be_enumerated_are_charged_by_rho():
    got = theorems.optimal_composition_epsilon([1e-6], [0.0], 1e-6, [10**12])
    limit = acc.gaussian_epsilon(1e-6, 1.0)
    assert limit * (1 - 1e-6) <= got <= 1.1 * limit
    delta = theorems.optimal_composition_delta([1e-6], [0.0], limit, [10**12])
    assert 1e-6 * (1 - 1e-3) <= delta <= 1e-5


SEVERAL = st.lists(st.tuples(st.floats(0.01, 2.0), st.integers(1, 6)), min_size=2, max_size=4)


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(parts=SEVERAL, log_delta=st.floats(-12.0, -1.0))
def test_the_grid_is_above_the_enumeration_and_close_to_it(parts, log_delta):
    groups = {}
    for epsilon, count in parts:
        groups[epsilon] = groups.get(epsilon, 0) + count
    exact = theorems._composed_losses(groups, 1e-3)
    pieces = [theorems._binomial_losses(epsilon, count) for epsilon, count in groups.items()]
    grid = theorems._on_grid(pieces, groups, 1e-3)
    assert math.fsum(grid.masses) + grid.infinite == pytest.approx(1.0, abs=1e-11)
    delta = 10.0**log_delta
    true = exact.epsilon(delta)
    assert true * (1 - 1e-12) <= grid.epsilon(delta) <= true * 1.001 + 1e-6
    for share in (0.0, 0.3, 0.9):
        epsilon = share * math.fsum(e * c for e, c in groups.items())
        assert grid.delta(epsilon) >= exact.delta(epsilon) * (1 - 1e-12)


def test_many_different_statements(monkeypatch):
    """On the grid, with ε rounded up to few values, and between the answers for smaller and for larger ε."""
    rng = np.random.default_rng(5)
    epsilons = list(rng.uniform(0.02, 0.2, 300))
    got = theorems.optimal_composition_epsilon(epsilons, [0.0] * 300, 1e-6)
    finer = theorems.optimal_composition_epsilon(epsilons, [0.0] * 300, 1e-6, accuracy=1e-6)
    assert finer <= got <= finer * 1.0005
    values, counts = np.unique(np.floor(np.array(epsilons) / 0.02) * 0.02, return_counts=True)
    assert np.all(values[np.searchsorted(values, epsilons, side="right") - 1] <= epsilons)
    below = theorems.optimal_composition_epsilon(list(values), [0.0] * len(values), 1e-6, counts.tolist())
    assert 0.8 * finer <= below <= finer
    monkeypatch.setattr(theorems, "_MAX_GROUPS", 40)
    merged = theorems.optimal_composition_epsilon(epsilons, [0.0] * 300, 1e-6)
    assert finer <= merged <= finer * 1.1
    groups = dict.fromkeys(epsilons, 1)
    rounded = theorems._merge(groups, 1e-3)
    assert len(rounded) <= 40
    assert sum(rounded.values()) == 300
    assert all(low <= high for low, high in zip(sorted(epsilons), _expand(rounded), strict=True))


def _expand(groups):
    return sorted(itertools.chain.from_iterable([value] * count for value, count in groups.items()))


def test_optimal_composition_at_the_ends():
    def epsilon(epsilons, deltas, delta_g):
        return theorems.optimal_composition_epsilon(epsilons, deltas, delta_g)

    def delta(epsilons, deltas, epsilon_g):
        return theorems.optimal_composition_delta(epsilons, deltas, epsilon_g)

    assert epsilon([], [], 0.0) == delta([], [], 0.0) == 0.0
    assert epsilon([0.0], [0.0], 0.0) == 0.0
    assert epsilon([0.1, 0.2], [0.0, 0.0], 0.0) == theorems.basic_composition([0.1, 0.2], [0.0, 0.0])[0]
    assert epsilon([1.0], [1e-5], 1e-5) == 1.0
    assert epsilon([1.0], [1e-5], 0.99e-5) == math.inf
    assert epsilon([1.0], [1e-5], 1.0) == 0.0
    assert epsilon([0.0, 0.0], [1e-5, 1e-5], 2e-5) == 0.0
    assert epsilon([1.0], [1.0], 0.5) == math.inf
    assert epsilon([1e12], [0.0], 1e-5) == pytest.approx(1e12)
    assert delta([1.0], [1e-5], 1.0) == 1e-5
    assert delta([1.0], [1e-5], 1e300) == 1e-5
    assert delta([1.0, 2.0], [0.0, 0.0], 3.0) == 0.0
    assert delta([1.0], [1.0], 0.0) == 1.0
    assert delta([1e12], [0.0], 1.0) == 1.0
    assert delta([1.0], [0.0], 0.0) == pytest.approx(math.tanh(0.5), rel=1e-14)
    assert theorems.optimal_composition_epsilon([1.0], [0.0], 1e-3, [0]) == 0.0
    assert theorems.basic_composition([], []) == (0.0, 0.0)
    assert theorems.basic_composition([0.1], [0.4], [3])[1] == 1.0
    assert theorems.advanced_composition(0.0, 0.0, 0, 1e-5) == (0.0, 1e-5)
    assert theorems.advanced_composition(1e4, 0.0, 2, 1e-5, "dwork_rothblum_vadhan")[0] == math.inf


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(
    parts=st.lists(
        st.tuples(st.floats(1e-4, 3.0), st.sampled_from([0.0, 1e-15, 1e-9, 1e-3]), st.integers(1, 300)),
        min_size=1,
        max_size=3,
    ),
    log_slack=st.floats(-30.0, -0.5),
)
def test_optimal_is_at_most_advanced_and_at_most_basic(parts, log_slack):
    columns = [list(column) for column in zip(*parts, strict=True)]
    epsilons, deltas, counts = columns
    basic = theorems.basic_composition(*columns)
    advanced_epsilon, total = theorems.advanced_composition_heterogeneous(epsilons, deltas, 10.0**log_slack, counts)
    assert theorems.optimal_composition_epsilon(epsilons, deltas, basic[1], counts) <= basic[0]
    assert theorems.optimal_composition_epsilon(epsilons, deltas, total, counts) <= advanced_epsilon * ALMOST
    assert theorems.optimal_composition_delta(epsilons, deltas, basic[0], counts) <= basic[1] * ALMOST
    assert theorems.optimal_composition_delta(epsilons, deltas, advanced_epsilon, counts) <= total * ALMOST
    if len(parts) == 1:
        homogeneous = [
            theorems.advanced_composition(epsilons[0], deltas[0], counts[0], 10.0**log_slack, form)[0]
            for form in theorems.ADVANCED_FORMS
        ]
        assert homogeneous[0] == pytest.approx(advanced_epsilon, rel=1e-13)
        assert homogeneous[0] <= homogeneous[1] * ALMOST <= homogeneous[2] * ALMOST**2


# ------------------------------------------------------------------------------------------------------ as accountants


@pytest.mark.parametrize(
    ("event", "relation", "expected"),
    [
        (acc.EpsilonDelta(0.3, 1e-6), "add_remove", (0.3, 1e-6)),
        (acc.Laplace(4.0), "add_remove", (0.25, 0.0)),
        (acc.Laplace(4.0), "replace_one", (0.5, 0.0)),
        (acc.ExponentialMechanism(0.7), "replace_one", (0.7, 0.0)),
        (acc.DiscreteLaplace(5.0, 2), "add_remove", (0.4, 0.0)),
        (acc.DiscreteLaplace(5.0, 2), "replace_one", (0.8, 0.0)),
        (acc.RandomizedResponse(0.4, 4), "replace_one", (math.log(7.0), 0.0)),
        (acc.PoissonSampled(0.1, acc.EpsilonDelta(1.0, 1e-6)), "add_remove", (math.log(0.9 + 0.1 * math.e), 1e-7)),
        (acc.PoissonSampled(0.1, acc.Laplace(1e-3)), "add_remove", (1000 + math.log(0.1), 0.0)),
        (
            acc.PoissonSampled(0.5, acc.SelfComposed(acc.EpsilonDelta(0.5, 1e-6), 2)),
            "add_remove",
            (math.log(0.5 + 0.5 * math.e), 1e-6),
        ),
        (
            acc.SampledWithoutReplacement(10, 100, acc.EpsilonDelta(1.0, 1e-6)),
            "replace_one",
            (math.log(0.9 + 0.1 * math.e), 1e-7),
        ),
        (acc.Laplace(0.0), "add_remove", (0.0, 1.0)),
        (acc.Gaussian(0.0), "add_remove", (0.0, 1.0)),
    ],
)
def test_statement_of_an_event(event, relation, expected):
    got = theorems.statement(event, relation)
    assert got == pytest.approx(expected, rel=1e-13)
    assert got[0] >= expected[0] * (1 - 1e-15)


REFUSED = [
    (acc.Gaussian(1.0), "add_remove"),
    (acc.ZCDP(0.1), "add_remove"),
    (acc.ObjectivePerturbation(1.0, 1.0, 1.0), "add_remove"),
    (acc.PoissonSampled(0.1, acc.Laplace(1.0)), "replace_one"),
    (acc.PoissonSampled(0.1, acc.Gaussian(1.0)), "add_remove"),
    (acc.SampledWithoutReplacement(1, 10, acc.Laplace(1.0)), "add_remove"),
    (acc.RepeatAndSelect(acc.Laplace(1.0), 3.0), "add_remove"),
    (acc.DiscreteGaussian(1.0), "add_remove"),
]


@pytest.mark.parametrize(("event", "relation"), REFUSED)
@pytest.mark.parametrize(("name", "module"), [("advanced", advanced), ("optimal", optimal)])
def test_events_without_a_statement_are_refused_by_name(name, module, event, relation):
    for call in (lambda: module.epsilon(event, 1e-5, relation), lambda: module.delta(event, 1.0, relation)):
        with pytest.raises(UnsupportedEventError, match=rf"{name}.*under {relation}.*no \(epsilon, delta\) statement"):
            call()
    mixed = acc.Composed((acc.Laplace(1.0), event))
    if relation == "add_remove":
        with pytest.raises(UnsupportedEventError, match=r"no .epsilon, delta. statement"):
            module.epsilon(mixed, 1e-5, relation)


def test_randomized_response_has_no_statement_under_add_remove():
    with pytest.raises(UnsupportedEventError, match="randomized_response"):
        theorems.statement(acc.RandomizedResponse(0.4, 4), "add_remove")


EVENTS = [
    acc.SelfComposed(acc.EpsilonDelta(0.1, 1e-8), 100),
    acc.SelfComposed(acc.Laplace(10.0), 64),
    acc.SelfComposed(acc.PoissonSampled(0.05, acc.Laplace(1.0)), 50),
    acc.Composed((acc.SelfComposed(acc.Laplace(5.0), 10), acc.EpsilonDelta(0.5, 1e-7), acc.ExponentialMechanism(0.2))),
]


@pytest.mark.parametrize("event", EVENTS)
def test_accountants_in_their_order(event):
    """What knows the mechanism ≤ optimal ≤ advanced ≤ basic, for ε and for δ."""
    atoms = theorems.event_statements(event, "add_remove", "optimal")
    basic = theorems.basic_of(atoms)
    for delta in (1e-5, 1e-3):
        best = optimal.epsilon(event, delta, "add_remove")
        assert best <= advanced.epsilon(event, delta, "add_remove") <= basic[0]
        assert optimal.delta(event, best, "add_remove") <= delta * (1 + 1e-9)
        if not any(isinstance(atom, acc.ExponentialMechanism) for atom in getattr(event, "events", ())):
            assert acc.epsilon(event, delta, accountant="pld") <= best * (1 + 1e-3)
    for share in (0.2, 0.5, 0.9, 1.0):
        epsilon = share * basic[0]
        held = optimal.delta(event, epsilon, "add_remove")
        assert held <= advanced.delta(event, epsilon, "add_remove") * ALMOST
    reached = advanced.epsilon(event, 1e-5, "add_remove")
    assert advanced.delta(event, reached * ALMOST, "add_remove") <= 1e-5 * (1 + 1e-9)


@pytest.mark.parametrize("module", [advanced, optimal])
def test_accountants_at_the_ends(module):
    assert module.epsilon(acc.NoOp(), 1e-5, "add_remove") == module.delta(acc.NoOp(), 0.0, "add_remove") == 0.0
    assert module.epsilon(acc.NonPrivate(), 1e-5, "add_remove") == math.inf
    assert module.delta(acc.NonPrivate(), 1.0, "add_remove") == 1.0
    event = acc.SelfComposed(acc.EpsilonDelta(0.5, 1e-4), 2)
    assert module.epsilon(event, 1e-4, "add_remove") == math.inf
    assert module.epsilon(event, 2e-4, "add_remove") == pytest.approx(1.0, rel=1e-7)
    assert module.epsilon(acc.SelfComposed(acc.Laplace(2.0), 2), 0.0, "add_remove") == pytest.approx(1.0, rel=1e-14)
    assert module.delta(event, 5.0, "add_remove") <= 2e-4


@pytest.mark.parametrize(
    "row",
    [row for row in rows("rdp_basic", "rdp_laplace") if row["inputs"]["order"] in ("1", "inf")],
    ids=lambda row: row["id"],
)
def test_divergences_of_laplace_at_both_ends_of_the_orders(row):
    order = float(row["inputs"]["order"])
    scale = value(row["inputs"]["scale_over_sensitivity"])
    assert close(row, float(conversions.laplace_to_rdp(scale, np.array([order]))[0]))
    between = conversions.laplace_to_rdp(scale, np.array([1.0, 1.5, 4.0, math.inf]))
    assert np.all(np.diff(between) > 0)
