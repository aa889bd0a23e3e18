"""Events: JSON round trip, refusals by name, simplification."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpml import accounting as acc
from dpml.accounting import events as events_module
from dpml.accounting.normal_form import flatten, merge_gaussians, normal_form
from dpml.errors import ConfigError, UnsupportedEventError
from dpml.results import dumps

noises = st.floats(0.0, 1e6)
positive = st.floats(1e-6, 1e6)
basic = st.one_of(
    st.just(acc.NoOp()),
    st.just(acc.NonPrivate()),
    st.builds(acc.Gaussian, noises),
    st.builds(acc.Laplace, noises),
    st.builds(acc.EpsilonDelta, noises, st.floats(0.0, 1.0)),
    st.builds(acc.ZCDP, noises),
    st.builds(acc.ObjectivePerturbation, noises, positive, positive),
    st.builds(acc.Pure, noises),
    st.builds(acc.GDP, noises),
    st.builds(acc.UnequalGaussian, noises, positive, positive),
    st.builds(acc.DiscreteLaplace, noises, st.integers(1, 10**6)),
    st.builds(acc.DiscreteGaussian, noises, st.integers(1, 10**6)),
    st.builds(acc.RandomizedResponse, st.floats(0.0, 1.0), st.integers(2, 10**6)),
    st.builds(acc.ExponentialMechanism, noises),
    st.builds(acc.PermuteAndFlip, noises),
    st.builds(acc.ReportNoisyMax, noises, st.sampled_from(["laplace", "exponential", "gumbel"])),
    st.builds(acc.RandomRow, st.integers(1, 10**9)),
)
sizes = st.integers(1, 10**6)
events = st.recursive(
    basic,
    lambda inner: st.one_of(
        st.builds(acc.PoissonSampled, st.floats(0.0, 1.0), inner),
        st.builds(acc.SelfComposed, inner, st.integers(0, 10**6)),
        st.builds(acc.Group, inner, st.integers(1, 100)),
        st.builds(lambda a, b, event: acc.SampledWithoutReplacement(min(a, b), max(a, b), event), sizes, sizes, inner),
        st.builds(acc.RepeatAndSelect, inner, st.floats(1.0, 1e6), st.none() | st.floats(-0.99, 1e3)),
        st.builds(lambda parts: acc.Composed(tuple(parts)), st.lists(inner, max_size=4)),
    ),
    max_leaves=8,
)


GAUSS = acc.Gaussian(1.5)
EXAMPLES = {
    event.type: event
    for event in (
        acc.NoOp(),
        acc.NonPrivate(),
        GAUSS,
        acc.Laplace(2.0),
        acc.EpsilonDelta(1.0, 1e-6),
        acc.ZCDP(0.1),
        acc.Pure(0.5),
        acc.GDP(1.1),
        acc.UnequalGaussian(1.0, 2.0, 3.0),
        acc.DiscreteLaplace(2.0, 3),
        acc.DiscreteGaussian(2.0, 3),
        acc.RandomizedResponse(0.25, 4),
        acc.ExponentialMechanism(0.5),
        acc.PermuteAndFlip(0.5),
        acc.ReportNoisyMax(0.5, "gumbel"),
        acc.RandomRow(100),
        acc.ObjectivePerturbation(1.0, 2.0, 1.0),
        acc.PoissonSampled(0.1, GAUSS),
        acc.SampledWithoutReplacement(2, 10, GAUSS),
        acc.RepeatAndSelect(GAUSS, 5.0, 0.5),
        acc.Group(GAUSS, 3),
        acc.SelfComposed(GAUSS, 4),
        acc.Composed((GAUSS, acc.Laplace(2.0))),
    )
}


@settings(max_examples=400, deadline=None)
@given(events)
def test_json_round_trip(event):
    assert acc.from_json(json.loads(dumps(event.to_json()))) == event
    assert hash(acc.from_json(event.to_json())) == hash(event)


@pytest.mark.parametrize("kind", sorted(events_module._TYPES))
def test_every_type_has_its_own_round_trip(kind):
    """Defaults may be left out of the JSON, nothing else; the type's name is the JSON's."""
    found = EXAMPLES[kind]
    data = found.to_json()
    assert data["type"] == kind == type(found).type
    assert acc.from_json(json.loads(dumps(data))) == found
    required = [item.name for item in dataclasses.fields(found) if item.default is dataclasses.MISSING]
    assert acc.from_json({key: data[key] for key in (*required, "type")}) is not None
    for key in required:
        with pytest.raises(ConfigError, match=key):
            acc.from_json({name: item for name, item in data.items() if name != key})
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.type_ = "other"


def test_the_documented_form():
    event = acc.SelfComposed(acc.PoissonSampled(0.01, acc.Gaussian(1.0)), 1000)
    assert event.to_json() == {
        "type": "self_composed",
        "event": {
            "type": "poisson_sampled",
            "sampling_probability": 0.01,
            "event": {"type": "gaussian", "noise_multiplier": 1.0},
        },
        "count": 1000,
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"type": "gausian", "noise_multiplier": 1.0}, "event type = 'gausian'"),
        ({"type": ["gaussian"]}, "event type"),
        ({"noise_multiplier": 1.0}, "event type = None"),
        ([1], "JSON object"),
        ({"type": "gaussian"}, "lacks the keys .*noise_multiplier"),
        ({"type": "gaussian", "noise_multiplier": 1.0, "sigma": 2}, "unknown keys .*sigma"),
        ({"type": "gaussian", "noise_multiplier": -1.0}, "noise_multiplier = -1.0"),
        ({"type": "gaussian", "noise_multiplier": "1"}, "noise_multiplier = '1'"),
        ({"type": "gaussian", "noise_multiplier": True}, "noise_multiplier = True"),
        ({"type": "gaussian", "noise_multiplier": math.nan}, "noise_multiplier = nan"),
        ({"type": "gaussian", "noise_multiplier": math.inf}, "noise_multiplier = inf"),
        ({"type": "poisson_sampled", "sampling_probability": 1.5, "event": {"type": "no_op"}}, "sampling_probability"),
        ({"type": "self_composed", "count": -1, "event": {"type": "no_op"}}, "count = -1"),
        ({"type": "self_composed", "count": 2.5, "event": {"type": "no_op"}}, "count = 2.5"),
        ({"type": "composed", "events": {"type": "no_op"}}, "events"),
        ({"type": "epsilon_delta", "epsilon": 1, "delta": 2}, "delta = 2"),
        ({"type": "objective_perturbation", "noise_std": 1, "lambda_sum": 0, "norm_bound": 1}, "lambda_sum = 0"),
        ({"type": "pure", "epsilon": -1}, "epsilon = -1"),
        ({"type": "gdp", "mu": math.inf}, "mu = inf"),
        ({"type": "unequal_gaussian", "shift": 1, "noise_std": 0, "other_noise_std": 1}, "noise_std = 0"),
        ({"type": "unequal_gaussian", "shift": -1, "noise_std": 1, "other_noise_std": 1}, "shift = -1"),
        ({"type": "discrete_laplace", "noise_scale": 1, "sensitivity": 0}, "sensitivity = 0"),
        ({"type": "discrete_laplace", "noise_scale": 1, "sensitivity": 1.5}, "sensitivity = 1.5"),
        ({"type": "discrete_gaussian", "noise_std": 1, "sensitivity": 2_000_000}, "sensitivity = 2000000"),
        ({"type": "discrete_gaussian", "noise_std": math.nan}, "noise_std = nan"),
        ({"type": "randomized_response", "noise_parameter": 1.1}, "noise_parameter = 1.1"),
        ({"type": "randomized_response", "noise_parameter": 0.5, "num_buckets": 1}, "num_buckets = 1"),
        ({"type": "exponential", "epsilon": "1"}, "epsilon = '1'"),
        ({"type": "permute_and_flip", "epsilon": None}, "epsilon = None"),
        ({"type": "report_noisy_max", "epsilon": 1, "noise": "normal"}, "noise = 'normal'"),
        ({"type": "random_row", "records": 0}, "records = 0"),
        (
            {"type": "sampled_without_replacement", "sample_size": 3, "source_size": 2, "event": {"type": "no_op"}},
            "sample_size = 3",
        ),
        (
            {"type": "sampled_without_replacement", "sample_size": 0, "source_size": 0, "event": {"type": "no_op"}},
            "source_size = 0",
        ),
        ({"type": "repeat_and_select", "mean": 0, "event": {"type": "no_op"}}, "mean = 0"),
        ({"type": "repeat_and_select", "mean": 0.5, "shape": 1, "event": {"type": "no_op"}}, "mean = 0.5"),
        ({"type": "repeat_and_select", "mean": 2, "shape": -1, "event": {"type": "no_op"}}, "shape = -1"),
        ({"type": "repeat_and_select", "mean": 2, "event": 3}, "event = 3"),
        ({"type": "group", "size": 0, "event": {"type": "no_op"}}, "size = 0"),
        (
            {"type": "objective_perturbation", "noise_std": 1, "lambda_sum": 1, "norm_bound": 1, "loss": "hinge"},
            "loss = 'hinge'",
        ),
    ],
)
def test_bad_events_are_refused_by_name(data, message):
    with pytest.raises(ConfigError, match=message):
        acc.from_json(data)


def test_endless_nesting_is_refused():
    data = {"type": "no_op"}
    for _ in range(200):
        data = {"type": "composed", "events": [data]}
    with pytest.raises(ConfigError, match="nested"):
        acc.from_json(data)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 100.0), st.integers(1, 50)), min_size=1, max_size=5))
def test_gaussians_merge_by_adding_precisions(parts):
    atoms = flatten(acc.Composed(tuple(acc.SelfComposed(acc.Gaussian(s), n) for s, n in parts)))
    expected = sum(n / s**2 for s, n in parts)
    assert merge_gaussians(atoms).noise_multiplier ** -2 == pytest.approx(expected, rel=1e-12)


def test_flatten_counts_nested_compositions():
    step = acc.PoissonSampled(0.1, acc.Gaussian(2.0))
    event = acc.Composed((acc.SelfComposed(acc.Composed((step, acc.NoOp(), step)), 3), step))
    assert flatten(event) == {step: 7}
    nested = acc.PoissonSampled(0.5, acc.PoissonSampled(0.2, acc.Gaussian(2.0)))
    assert flatten(nested) == {step: 1}


def only(event, relation="add_remove"):
    """The one atom and its count."""
    ((atom, count),) = normal_form(event, relation).items()
    return atom, count


def test_names_become_what_they_cost():
    """Other words for a basic event, per relation."""
    assert only(acc.Pure(0.5)) == only(acc.PermuteAndFlip(0.5)) == (acc.EpsilonDelta(0.5, 0.0), 1)
    assert only(acc.ReportNoisyMax(0.5)) == only(acc.ReportNoisyMax(0.5, "exponential")) == only(acc.Pure(0.5))
    assert only(acc.ReportNoisyMax(0.5, "gumbel")) == (acc.ExponentialMechanism(0.5), 1)
    assert only(acc.RandomRow(4)) == (acc.EpsilonDelta(0.0, 0.25), 1)
    for relation, sigma in (("add_remove", 2.0), ("replace_one", 4.0)):
        assert only(acc.GDP(0.5), relation) == (acc.Gaussian(sigma), 1)
    statement, _ = only(acc.RandomizedResponse(0.5), "replace_one")
    assert statement.epsilon == pytest.approx(math.log(3), rel=1e-14)
    assert only(acc.RandomizedResponse(0.5, 3), "replace_one") == (acc.RandomizedResponse(0.5, 3), 1)
    with pytest.raises(UnsupportedEventError, match="randomized_response"):
        normal_form(acc.RandomizedResponse(0.5), "add_remove")
    for free in (acc.GDP(0.0), acc.UnequalGaussian(0.0, 2.0, 2.0), acc.ExponentialMechanism(0.0)):
        assert normal_form(free, "add_remove") == {}
    assert normal_form(acc.RandomizedResponse(1.0, 3), "replace_one") == {}


def test_samples_of_fixed_size():
    """Only the quotient counts; nothing of nobody; everybody is no sampling."""
    inner = acc.Laplace(2.0)
    one = only(acc.SampledWithoutReplacement(2, 10, inner), "replace_one")
    assert one == only(acc.SampledWithoutReplacement(5, 25, inner), "replace_one")
    assert only(acc.SampledWithoutReplacement(7, 7, inner), "replace_one") == (inner, 1)
    assert normal_form(acc.SampledWithoutReplacement(0, 7, inner), "replace_one") == {}
    three = acc.SelfComposed(acc.SampledWithoutReplacement(2, 10, inner), 3)
    assert only(three, "replace_one") == (acc.SampledWithoutReplacement(1, 5, inner), 3)


def test_groups_of_basic_events():
    """Contributions add up; statements chain; ρ by the square; what has no form stays a group."""
    assert only(acc.Group(acc.Gaussian(6.0), 3)) == (acc.Gaussian(2.0), 1)
    assert only(acc.Group(acc.SelfComposed(acc.Laplace(6.0), 4), 3)) == (acc.Laplace(2.0), 4)
    assert only(acc.Group(acc.DiscreteLaplace(6.0, 2), 3)) == (acc.DiscreteLaplace(6.0, 6), 1)
    assert only(acc.Group(acc.ZCDP(0.1), 3))[0].rho == pytest.approx(0.9, rel=1e-14)
    assert only(acc.Group(acc.ExponentialMechanism(0.5), 3)) == (acc.ExponentialMechanism(1.5), 1)
    statement, _ = only(acc.Group(acc.EpsilonDelta(0.5, 1e-6), 3))
    assert statement.epsilon == 1.5
    assert statement.delta == pytest.approx(1e-6 * (1 + math.exp(0.5) + math.exp(1.0)), rel=1e-12)
    assert only(acc.Group(acc.RandomizedResponse(0.5, 3), 2), "replace_one") == (acc.RandomizedResponse(0.5, 3), 2)
    sampled = acc.PoissonSampled(0.1, acc.Gaussian(2.0))
    assert only(acc.Group(acc.Group(sampled, 2), 3)) == (acc.Group(sampled, 6), 1)
    assert only(acc.Group(sampled, 1)) == (sampled, 1)
