"""Quantiles by the exponential mechanism: probabilities by definition, cost, draws, errors, awkward columns."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import selection_checks as checks

from dpml import accounting as acc
from dpml import errors
from dpml.mechanisms import FixedNoise, QuantileMechanism, SecretNoise, rank_sensitivity


@pytest.mark.parametrize("q", [0.0, 0.25, 0.5, 1.0])
def test_probabilities_follow_the_definition(q):
    mechanism = QuantileMechanism(q, (0.0, 5.0), 0.8, spacing=1.0)
    for column in [*checks.small_columns(), [-3.0, 99.0, 2.0]]:
        expected = checks.quantile_definition(column, q, 0, 5, 0.4)
        assert np.allclose(mechanism.probabilities(column)[0], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("q", [0.25, 0.5, 0.9])
@pytest.mark.parametrize("relation", acc.RELATIONS)
def test_cost(q, relation):
    checks.check_quantile_cost(relation, q)


def test_the_plain_sensitivity_covers_both_relations():
    """Sensitivity 1 is more than add_remove needs: the loss stays below ε there."""
    for relation in acc.RELATIONS:
        assert rank_sensitivity(0.3, relation) <= QuantileMechanism(0.3, (0, 1), 1.0).sensitivity
    assert rank_sensitivity(0.5) == 0.5
    assert rank_sensitivity([0.25, 0.5]) == 0.75
    assert rank_sensitivity(0.5, "replace_one") == 1.0
    with pytest.raises(errors.ConfigError, match="neighboring_relation"):
        rank_sensitivity(0.5, "both")


def test_draws():
    """Power against the factor ε in place of ε/2: above 1 − 1e-9."""
    checks.check_quantile_sampler()
    p, q = (checks.quantile_definition(checks.QUARTILE_DATA, 0.75, 0, 9, factor) for factor in (0.5, 1.0))
    assert checks.power(p, q) > 1 - 1e-9


def test_draws_inside_a_gap_are_uniform():
    """A median between two records at the ends of the range: all points are equally good; power against halves 1."""
    mechanism, noise = QuantileMechanism(0.5, (0.0, 9.0), 4.0, spacing=1.0), SecretNoise()
    drawn = checks.counted(lambda: mechanism.release([0.0, 9.0], noise).value, range(10), 6000)
    checks.chi_square(drawn, [0.1] * 10)


def test_records_outside_count_as_the_bound():
    checks.check_quantile_clamps()


@pytest.mark.parametrize("beta", [0.5, 0.05])
def test_error_in_ranks_holds(beta):
    """The worst case of the bound: one point has the wanted rank, all others are as far as the error."""
    mechanism = QuantileMechanism(0.5, (0.0, 63.0), 1.0, spacing=1.0)
    apart = 2 * math.ceil(mechanism.error(beta) + 1e-9) + 1
    column = [0.0] * apart + [32.0] + [63.0] * apart
    p = mechanism.probabilities(column)[0]
    rank = 0.5 * len(column)
    upto = np.array([sum(x <= v for x in column) for v in range(64)])
    below = np.array([sum(x < v for x in column) for v in range(64)])
    bad = (upto < rank - mechanism.error(beta)) | (below > rank + mechanism.error(beta))
    assert p[bad].sum() <= beta
    assert mechanism.error(beta) == pytest.approx(2.0 * math.log(63 * (1 - beta) / beta), rel=1e-12)


def test_several_quantiles_share_the_budget():
    """Ranks within the error of all of them together (β = 1e-6), in order, and the event is ε in three parts."""
    mechanism = QuantileMechanism([0.1, 0.5, 0.9], (0.0, 1.0), 3.0)
    column = np.random.default_rng(0).random(5000)
    answer = mechanism.release(column)
    assert answer.event == acc.SelfComposed(acc.ExponentialMechanism(1.0), 3)
    assert (np.diff(answer.value) >= 0).all()
    for q, value in zip((0.1, 0.5, 0.9), answer.value, strict=True):
        assert abs((column <= value).sum() - q * 5000) <= mechanism.error(1e-6) + 1
    for number in range(2, 12):
        shared = QuantileMechanism(np.linspace(0, 1, number).tolist(), (0.0, 1.0), 0.7)
        assert 0 <= Fraction(0.7) - number * Fraction(shared.event.event.epsilon) < 1e-15
    single = QuantileMechanism(0.5, (0.0, 1.0), 1.0).release(column)
    assert isinstance(single.value, float)
    assert single.event == acc.ExponentialMechanism(1.0)


def test_many_equal_values_are_found():
    """Ages: 60 % of the records are 37.  The gaps beside it have no mass of ranks, the value itself has."""
    column = [37.0] * 600 + list(range(20, 60)) * 10
    mechanism = QuantileMechanism(0.5, (0.0, 120.0), 1.0, spacing=1.0)
    assert mechanism.probabilities(column)[0][37] > 1 - 1e-9
    assert mechanism.release(column, FixedNoise(3)).value == 37.0


def test_values_lie_on_the_public_grid():
    mechanism = QuantileMechanism(0.5, (-1.0, 2.0), 1.0)
    assert 2**19 <= mechanism.points - 1 <= 2**20
    assert math.frexp(mechanism.spacing)[0] == 0.5
    values = [mechanism.release(np.linspace(0, 1, 50), FixedNoise(s)).value / mechanism.spacing for s in range(20)]
    assert all(v == math.floor(v) for v in values)
    tenths = QuantileMechanism(0.5, (0.0, 1.0), 1.0, spacing=0.1)
    assert tenths.points == 11
    assert all(0.0 <= tenths.release([], FixedNoise(s)).value <= 1.0 for s in range(20))
    shifted = QuantileMechanism(0.5, (0.25, 3.75), 1.0, spacing=1.0)
    assert {shifted.release([], FixedNoise(s)).value for s in range(40)} == {1.0, 2.0, 3.0}


def test_nothing_about_a_record_raises():
    """NaN counts as absent, infinity as the bound, an empty column is uniform."""
    mechanism = QuantileMechanism(0.5, (0.0, 5.0), 1.0, spacing=1.0)
    plain = mechanism.probabilities([1.0, 5.0, 0.0])
    assert np.array_equal(plain, mechanism.probabilities([1.0, math.nan, math.inf, -math.inf]))
    assert np.array_equal(mechanism.probabilities([math.nan]), np.full((1, 6), 1 / 6))
    assert np.allclose(mechanism.probabilities([]), 1 / 6)
    assert mechanism.probabilities([None, 2, 3.5]).shape == (1, 6)
    assert mechanism.probabilities(np.array([1, 2, 3], dtype=np.int8)).shape == (1, 6)
    for bad in ("abc", [[1.0]], 3.0, ["x"], [{}]):
        with pytest.raises(errors.DataError, match="column"):
            mechanism.release(bad)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("quantiles", {"quantiles": 1.5}),
        ("quantiles", {"quantiles": -0.1}),
        ("quantiles", {"quantiles": math.nan}),
        ("quantiles", {"quantiles": []}),
        ("quantiles", {"quantiles": [0.5, 0.5]}),
        ("quantiles", {"quantiles": [0.9, 0.1]}),
        ("bounds", {"bounds": (1.0, 1.0)}),
        ("bounds", {"bounds": (1.0, 0.0)}),
        ("bounds", {"bounds": (0.0, math.inf)}),
        ("bounds", {"bounds": (math.nan, 1.0)}),
        ("bounds", {"bounds": (0.0,)}),
        ("bounds", {"bounds": None}),
        ("epsilon", {"epsilon": 0.0}),
        ("epsilon", {"epsilon": math.inf}),
        ("sensitivity", {"sensitivity": 0.0}),
        ("sensitivity", {"sensitivity": 0.4}),
        ("spacing", {"spacing": 0.0}),
        ("spacing", {"spacing": 2.0}),
        ("spacing", {"spacing": 1e-13}),
        ("spacing", {"bounds": (0.4, 0.6), "spacing": 0.19}),
        ("spacing", {"bounds": (1e16, 1e16 + 2), "spacing": 1.0}),
    ],
)
def test_bad_arguments_are_refused_by_name(name, change):
    with pytest.raises(errors.ConfigError, match=f"^{name} = "):
        QuantileMechanism(**{"quantiles": 0.5, "bounds": (0.0, 1.0), "epsilon": 1.0, **change})
