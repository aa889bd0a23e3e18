"""Groups of records: the reference table, exact profiles of shifted noise, and events through every accountant."""

from __future__ import annotations

import math

import pytest
from accounting_tables import close, inputs, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from dpml import accounting as acc
from dpml.accounting import conversions, groups
from dpml.errors import ConfigError, UnsupportedEventError

SMALL = settings(max_examples=50, deadline=None, derandomize=True, database=None)


def ids(row):
    return row["id"]


@pytest.mark.parametrize("row", rows("group_privacy", "group_epsilon"), ids=ids)
def test_group_epsilon_of_a_statement(row):
    x = inputs(row)
    for form in groups.STATEMENT_FORMS:
        assert close(row, groups.statement_group(x["epsilon"], x["delta"], int(x["k"]), form=form)[0])
    assert close(row, groups.pure_group(x["epsilon"], int(x["k"])))


@pytest.mark.parametrize("row", rows("group_privacy", "group_delta_standard", "group_delta_sharp"), ids=ids)
def test_group_delta_of_a_statement(row):
    x = inputs(row)
    form = row["quantity"].removeprefix("group_delta_")
    assert close(row, groups.statement_group(x["epsilon"], x["delta"], int(x["k"]), form=form)[1])


@pytest.mark.parametrize("row", rows("group_privacy", "group_zcdp_rho", "group_gdp_mu"), ids=ids)
def test_group_rho_and_mu(row):
    x = inputs(row)
    if row["quantity"] == "group_zcdp_rho":
        assert close(row, groups.zcdp_group(x["rho"], int(x["k"])))
    else:
        assert close(row, groups.gdp_group(x["mu"], int(x["k"])))


@pytest.mark.parametrize("row", rows("group_privacy", "group_rdp_epsilon", "group_rdp_order"), ids=ids)
def test_group_rdp(row):
    x = inputs(row)
    order, value = groups.rdp_group(x["order"], x["rdp"], int(x["k"]))
    assert close(row, order if row["quantity"] == "group_rdp_order" else value)


@pytest.mark.parametrize("row", rows("group_privacy", "group_rdp_gaussian"), ids=ids)
def test_group_rdp_of_the_gaussian(row):
    """Through μ: k·μ, then the Rényi curve."""
    x = inputs(row)
    mu = groups.gdp_group(x["sensitivity"] / x["sigma"], int(x["k"]))
    assert close(row, float(conversions.gdp_to_rdp(mu, [x["order"]])[0]))


@SMALL
@given(epsilon=st.floats(0.0, 5.0), log_delta=st.floats(-20.0, -0.1), size=st.integers(1, 60))
def test_forms_of_the_statement_in_their_order(epsilon, log_delta, size):
    sharp, standard, loose = (
        groups.statement_group(epsilon, 10.0**log_delta, size, form=form)[1] for form in groups.STATEMENT_FORMS
    )
    walked = math.fsum(math.exp(i * epsilon) * 10.0**log_delta for i in range(size))
    assert sharp == pytest.approx(min(1.0, walked), rel=1e-12)
    assert sharp >= min(1.0, walked) * (1 - 1e-14)
    assert sharp <= standard * (1 + 1e-12) <= loose * (1 + 2e-12)


def test_statement_at_the_ends():
    assert groups.statement_group(0.0, 0.0, 5) == (0.0, 0.0)
    assert groups.statement_group(0.0, 1e-6, 5)[1] == pytest.approx(5e-6, rel=1e-12)
    assert groups.statement_group(1e-320, 1e-6, 5)[1] == pytest.approx(5e-6, rel=1e-12)
    assert groups.statement_group(1.0, 1e-6, 1) == (1.0, 1e-6)
    assert groups.statement_group(500.0, 1e-300, 100)[1] == 1.0
    assert groups.statement_group(1.0, 0.0, 10**6)[1] == 0.0
    assert groups.rdp_group(1.5, 0.3, 1) == (1.5, 0.3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: groups.pure_group(1.0, 0),
        lambda: groups.pure_group(math.inf, 2),
        lambda: groups.pure_group(1.0, 2.0),
        lambda: groups.statement_group(1.0, 1e-6, 2, form="sharpest"),
        lambda: groups.statement_group(1.0, 1.1, 2),
        lambda: groups.statement_group(math.nan, 1e-6, 2),
        lambda: groups.rdp_group(8.0, 0.1, 3),
        lambda: groups.rdp_group(3.9, 0.1, 2),
        lambda: groups.rdp_group(1.0, 0.1, 1),
        lambda: groups.zcdp_group(-0.1, 2),
        lambda: groups.gdp_group(math.nan, 2),
        lambda: groups.group_epsilon(acc.Laplace(1.0), 1.0, 2),
        lambda: groups.group_epsilon(acc.Laplace(1.0), 1e-5, 0),
        lambda: groups.group_epsilon(acc.Laplace(1.0), 1e-5, 2, neighboring_relation="swap"),
        lambda: groups.group_epsilon(acc.Laplace(1.0), 1e-5, 2, accountant="none"),
        lambda: groups.group_delta(acc.Laplace(1.0), -1.0, 2),
        lambda: groups.user_level(acc.Laplace(1.0), 1e-5, 0),
    ],
)
def test_values_out_of_range_are_refused(call):
    with pytest.raises(ConfigError, match="is not allowed"):
        call()


def laplace_delta(epsilon, shift):
    """δ(ε) of Laplace noise of scale 1 against itself moved by ``shift``."""
    return -math.expm1((epsilon - shift) / 2) if epsilon < shift else 0.0


SAMPLED = acc.SelfComposed(acc.PoissonSampled(0.02, acc.Gaussian(1.2)), 100)


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_closed_forms_for_noise_on_a_sum(size, relation):
    """Gaussian and Laplace: the group's contributions add up to ``size`` times one (twice that under replace_one)."""
    factor = size * (2 if relation == "replace_one" else 1)
    got = groups.group_epsilon(acc.Gaussian(3.0), 1e-5, size, neighboring_relation=relation)
    assert got == pytest.approx(acc.gaussian_epsilon(1e-5, factor / 3), rel=1e-9)
    got = groups.group_delta(acc.Laplace(4.0), 0.1, size, neighboring_relation=relation)
    assert got == pytest.approx(laplace_delta(0.1, factor / 4), rel=1e-9)
    assert groups.group_epsilon(acc.Laplace(4.0), 0.0, size, neighboring_relation=relation) == pytest.approx(factor / 4)


@settings(SMALL, max_examples=20)
@given(sigma=st.floats(1.0, 30.0), size=st.integers(2, 8), log_delta=st.floats(-9.0, -2.0))
def test_the_walk_through_neighbours_is_never_below_the_exact_gaussian(sigma, size, log_delta):
    """Hidden inside an event without a closed form for groups, the Gaussian is walked through; kμ is the truth."""
    delta = 10.0**log_delta
    event = acc.PoissonSampled(1 - 2.0**-40, acc.Gaussian(sigma))
    walked = groups.group_epsilon(event, delta, size, accountant="rdp")
    assert walked >= acc.gaussian_epsilon(delta, size / sigma) * (1 - 1e-9)
    held = groups.group_delta(event, walked, size, accountant="rdp")
    assert held <= delta * (1 + 1e-9)


@pytest.mark.parametrize("accountant", ["best", "pld", "rdp", "zcdp"])
def test_sampled_gaussian(accountant):
    singles = acc.epsilon(SAMPLED, 1e-5, accountant=accountant)
    previous = singles
    for size in (1, 2, 4):
        epsilon = groups.group_epsilon(SAMPLED, 1e-5, size, accountant=accountant)
        assert epsilon >= max(previous, singles)
        previous = epsilon
        delta = groups.group_delta(SAMPLED, epsilon, size, accountant=accountant)
        assert delta <= 1e-5 * (1 + 1e-6)
        # the walk from the profile, by hand
        share = 0.9 * epsilon / size
        factor = math.fsum(math.exp(min(i * share, 700.0)) for i in range(size))
        by_hand = min(1.0, acc.delta(SAMPLED, share, accountant=accountant) * factor)
        assert groups.group_delta(SAMPLED, share * size, size, accountant=accountant) <= by_hand * (1 + 1e-6)
    if accountant == "zcdp":
        assert previous == pytest.approx(conversions.zcdp_to_epsilon(16 * acc.rho(SAMPLED), 1e-5), rel=1e-9)


def test_composed_statements_take_the_better_of_both_ways():
    event = acc.SelfComposed(acc.EpsilonDelta(0.1, 1e-7), 20)
    epsilon = groups.group_epsilon(event, 1e-4, 3)
    resolved = acc.SelfComposed(acc.EpsilonDelta(*groups.statement_group(0.1, 1e-7, 3)), 20)
    assert epsilon <= acc.epsilon(resolved, 1e-4) * (1 + 1e-9)
    assert groups.group_delta(event, epsilon, 3) <= 1e-4 * (1 + 1e-6)


def test_events_at_the_ends():
    for size in (1, 3):
        assert groups.group_epsilon(acc.NoOp(), 0.0, size) == groups.group_epsilon(acc.NoOp(), 1e-5, size) == 0.0
        assert groups.group_delta(acc.NoOp(), 0.0, size) == 0.0
        assert groups.group_epsilon(acc.NonPrivate(), 1e-5, size) == math.inf
        assert groups.group_delta(acc.NonPrivate(), 1.0, size) == 1.0
        assert groups.group_epsilon(acc.Gaussian(1.0), 0.0, size) == math.inf
    assert groups.group_epsilon(acc.EpsilonDelta(1.0, 1e-5), 1e-6, 2) == math.inf


def test_accountants_that_cannot_bound_the_event_say_so():
    with pytest.raises(UnsupportedEventError, match="exact"):
        groups.group_epsilon(acc.ZCDP(0.1), 1e-5, 2, accountant="exact")
    with pytest.raises(UnsupportedEventError, match="randomized_response"):
        groups.group_delta(acc.RandomizedResponse(0.5), 1.0, 2)


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_user_level(relation):
    guarantee = groups.user_level(acc.Gaussian(20.0), 1e-6, 5, neighboring_relation=relation)
    assert guarantee.unit == "user"
    assert guarantee.delta == 1e-6
    assert guarantee.neighboring_relation == relation
    assert guarantee.epsilon == groups.group_epsilon(acc.Gaussian(20.0), 1e-6, 5, neighboring_relation=relation)
    assert any("more than 5 records" in text for text in guarantee.assumptions)
    assert groups.user_level(acc.Gaussian(20.0), 1e-6, 1).epsilon == acc.epsilon(acc.Gaussian(20.0), 1e-6)
