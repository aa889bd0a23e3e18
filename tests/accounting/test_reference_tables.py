"""Closed forms, Rényi divergences, conversions and composed sub-sampled Gaussians against reference tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from accounting_tables import close, inputs, relation_of, rows, sampled_event, value

from dpml import accounting as acc
from dpml.accounting import conversions


def ids(row):
    return row["id"]


@pytest.mark.parametrize("row", rows("gaussian_mechanism_sigma", "sigma_analytic"), ids=ids)
def test_analytic_gaussian_sigma(row):
    x = inputs(row)
    sigma = acc.gaussian_noise_multiplier(x["epsilon"], x["delta"])
    assert close(row, sigma * x["sensitivity"])
    assert acc.gaussian_delta(x["epsilon"], 1 / sigma) <= x["delta"] * (1 + 1e-13)


@pytest.mark.parametrize("row", rows("gaussian_mechanism_sigma", "sigma_classical"), ids=ids)
def test_true_delta_of_the_classical_sigma(row):
    """The table gives the exact δ at the classical σ to 12 digits, with the 12 printed digits of that δ."""
    x = inputs(row)
    got = acc.gaussian_delta(x["epsilon"], x["sensitivity"] / value(row["value"]))
    assert got == pytest.approx(value(row["true_delta_at_this_sigma"]), rel=1e-9)


@pytest.mark.parametrize("row", rows("conversions", "gdp_to_epsilon"), ids=ids)
def test_gdp_to_epsilon(row):
    x = inputs(row)
    assert close(row, acc.gaussian_epsilon(x["delta"], x["mu"]))


@pytest.mark.parametrize("row", rows("conversions", "gdp_to_delta"), ids=ids)
def test_gdp_to_delta(row):
    x = inputs(row)
    assert close(row, acc.gaussian_delta(x["epsilon"], x["mu"]))


@pytest.mark.parametrize("row", rows("conversions", "epsilon_delta_to_gdp_mu"), ids=ids)
def test_gdp_mu(row):
    x = inputs(row)
    assert close(row, 1 / acc.gaussian_noise_multiplier(x["epsilon"], x["delta"]))


@pytest.mark.parametrize("row", rows("conversions", "rdp_to_epsilon_improved"), ids=ids)
def test_rdp_to_epsilon(row):
    x = inputs(row)
    got = conversions.rdp_to_epsilon(np.array([x["order"]]), np.array([x["rdp"]]), x["delta"])
    assert close(row, got, low=0.0)


@pytest.mark.parametrize("row", rows("conversions", "rdp_to_delta_improved"), ids=ids)
def test_rdp_to_delta(row):
    x = inputs(row)
    got = conversions.rdp_to_delta(np.array([x["order"]]), np.array([x["rdp"]]), x["epsilon"])
    expected = min(1.0, value(row["value"]))
    assert abs(got - expected) <= float(row["rtol"]) * expected + float(row["atol"])


@pytest.mark.parametrize("row", rows("conversions", "rdp_curve_to_epsilon_improved"), ids=ids)
def test_rdp_curve_to_epsilon(row):
    x = inputs(row)
    orders = np.array([float(order) for order in row["inputs"]["orders"]])
    assert row["inputs"]["curve"] == "rdp(alpha)=rho*alpha"
    assert close(row, conversions.rdp_to_epsilon(orders, x["rho"] * orders, x["delta"]), low=0.0)


@pytest.mark.parametrize("row", rows("conversions", "zcdp_to_epsilon_optimal"), ids=ids)
def test_zcdp_to_epsilon(row):
    x = inputs(row)
    assert close(row, acc.epsilon(acc.ZCDP(x["rho"]), x["delta"], accountant="zcdp"), low=0.0)


@pytest.mark.parametrize("row", rows("conversions", "zcdp_to_delta_optimal"), ids=ids)
def test_zcdp_to_delta(row):
    x = inputs(row)
    assert close(row, acc.delta(acc.ZCDP(x["rho"]), x["epsilon"], accountant="zcdp"))


def finite_orders(*quantities):
    return [row for row in rows("rdp_basic", *quantities) if row["inputs"]["order"] not in ("1", "inf")]


@pytest.mark.parametrize("row", finite_orders("rdp_gaussian"), ids=ids)
def test_rdp_of_gaussian(row):
    x = inputs(row)
    assert close(row, acc.rdp(acc.Gaussian(x["sigma"] / x["sensitivity"]), [x["order"]])[0])


@pytest.mark.parametrize("row", finite_orders("rdp_laplace"), ids=ids)
def test_rdp_of_laplace(row):
    x = inputs(row)
    assert close(row, acc.rdp(acc.Laplace(x["scale_over_sensitivity"]), [x["order"]])[0])


@pytest.mark.parametrize("row", finite_orders("rdp_pure_dp_tight"), ids=ids)
def test_rdp_of_a_pure_statement(row):
    x = inputs(row)
    assert close(row, acc.rdp(acc.EpsilonDelta(x["epsilon"], 0.0), [x["order"]])[0])


@pytest.mark.parametrize("row", rows("rdp_basic", "zcdp_rho_of_gaussian"), ids=ids)
def test_rho_of_gaussian(row):
    x = inputs(row)
    assert close(row, acc.rho(acc.Gaussian(x["sigma"] / x["sensitivity"])))


@pytest.mark.parametrize("row", rows("rdp_basic", "zcdp_rho_of_pure_dp_tight_numeric"), ids=ids)
def test_rho_of_a_pure_statement_is_between_the_tight_value_and_half_the_square(row):
    x = inputs(row)
    rho = acc.rho(acc.EpsilonDelta(x["epsilon"], 0.0))
    assert value(row["value"]) <= rho <= x["epsilon"] ** 2 / 2


@pytest.mark.parametrize("row", rows("rdp_subsampled_gaussian", "rdp_subsampled_gaussian"), ids=ids)
def test_rdp_of_the_sampled_gaussian(row):
    x = inputs(row)
    event = acc.PoissonSampled(x["sampling_probability"], acc.Gaussian(x["noise_multiplier"]))
    assert close(row, acc.rdp(event, [x["order"]])[0])
    assert value(row["value"]) >= value(row["value_other_direction"])


COMPOSED = rows(
    "composed_subsampled_gaussian", "epsilon_add_remove", "epsilon_replace_one", "epsilon_heterogeneous_add_remove"
)
COMPOSED_DELTA = rows("composed_subsampled_gaussian", "delta_add_remove")


def check_composed(row, accountant, tightness):
    """Never below the exact value, and above it by no more than ``tightness`` (relative)."""
    got = acc.epsilon(
        sampled_event(row), value(row["inputs"]["delta"]), accountant=accountant, neighboring_relation=relation_of(row)
    )
    exact = value(row["value"])
    assert exact * (1 - 1e-9) <= got <= exact * (1 + tightness)


@pytest.mark.parametrize("row", COMPOSED[::9] + COMPOSED[-2:], ids=ids)
@pytest.mark.parametrize(("accountant", "tightness"), [("best", 0.002), ("rdp", math.inf)])
def test_composed_epsilon_is_sound(row, accountant, tightness):
    check_composed(row, accountant, tightness)


@pytest.mark.slow
@pytest.mark.parametrize("row", COMPOSED, ids=ids)
@pytest.mark.parametrize(
    ("accountant", "tightness"), [("pld", 0.002), ("best", 0.002), ("rdp", math.inf), ("zcdp", math.inf)]
)
def test_composed_epsilon_is_sound_on_every_row(row, accountant, tightness):
    check_composed(row, accountant, tightness)


@pytest.mark.parametrize("row", COMPOSED_DELTA, ids=ids)
def test_composed_delta_is_sound(row):
    for accountant, tightness in (("pld", 0.01), ("best", 0.01), ("rdp", math.inf)):
        got = acc.delta(sampled_event(row), value(row["inputs"]["epsilon"]), accountant=accountant)
        exact = value(row["value"])
        assert exact * (1 - 1e-9) <= got <= exact * (1 + tightness)


@pytest.mark.parametrize("row", rows("composition", "optimal_homogeneous_epsilon"), ids=ids)
def test_composed_statements_against_the_optimal_composition(row):
    """k-fold (ε, δ)-DP: never below Kairouz, Oh & Viswanath 2015, and close to it."""
    x = inputs(row)
    event = acc.SelfComposed(acc.EpsilonDelta(x["epsilon"], x["delta"]), int(x["k"]))
    got = acc.epsilon(event, x["delta_g"])
    exact = value(row["value"])
    assert exact * (1 - 1e-9) <= got <= exact * 1.02 + 1e-9


@pytest.mark.parametrize("row", rows("composition", "optimal_heterogeneous_epsilon"), ids=ids)
def test_different_statements_against_the_optimal_composition(row):
    pairs = zip(row["inputs"]["epsilons"], row["inputs"]["deltas"], strict=True)
    event = acc.Composed(tuple(acc.EpsilonDelta(float(e), float(d)) for e, d in pairs))
    got = acc.epsilon(event, float(row["inputs"]["delta_g"]))
    exact = value(row["value"])
    assert exact * (1 - 1e-9) <= got <= exact * 1.02 + 1e-9
