"""Events: JSON round trip, refusals by name, simplification."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpml import accounting as acc
from dpml.accounting.events import flatten, merge_gaussians
from dpml.errors import ConfigError
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
)
events = st.recursive(
    basic,
    lambda inner: st.one_of(
        st.builds(acc.PoissonSampled, st.floats(0.0, 1.0), inner),
        st.builds(acc.SelfComposed, inner, st.integers(0, 10**6)),
        st.builds(lambda parts: acc.Composed(tuple(parts)), st.lists(inner, max_size=4)),
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(events)
def test_json_round_trip(event):
    assert acc.from_json(json.loads(dumps(event.to_json()))) == event
    assert hash(acc.from_json(event.to_json())) == hash(event)


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
