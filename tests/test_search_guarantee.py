"""What a search promises: the common event of its candidates, its assumptions, and refusals by name."""

from __future__ import annotations

from typing import Any

import pytest
import search_checks as checks
from hypothesis import given, settings
from hypothesis import strategies as st

from dpml import accounting
from dpml.accounting.normal_form import flatten
from dpml.errors import ConfigError
from dpml.search import PrivateSearch
from dpml.search_plan import common_event


def test_common_event_costs_as_much_as_each_candidate() -> None:
    checks.check_common_event_costs_as_much_as_each_candidate()


def test_common_event_of_one_candidate_is_the_candidate() -> None:
    """The reviewer's numbers: 7.96 for 100 steps at σ = 1 and 100 at σ = 1.5; without the latter it would be 7.05."""
    event = accounting.Composed((checks.sampled(0.1, 1.0, 100), checks.sampled(0.1, 1.5, 100)))
    assert flatten(common_event([event])) == flatten(event)
    assert accounting.epsilon(common_event([event]), 1e-5) == pytest.approx(7.96, abs=0.05)


def test_common_event_still_drops_what_another_stands_for() -> None:
    strong, weak = checks.sampled(0.1, 1.0, 100), checks.sampled(0.05, 1.5, 80)
    assert flatten(common_event([strong, weak])) == flatten(strong)
    both = accounting.Composed((checks.sampled(0.05, 1.5, 50), checks.sampled(0.04, 2.0, 50)))
    assert flatten(common_event([strong, both])) == flatten(strong)
    more = checks.sampled(0.05, 1.5, 120)  # more steps than the strong one has
    assert flatten(common_event([strong, more])) == flatten(accounting.Composed((strong, more)))


steps = st.tuples(st.sampled_from([0.02, 0.05, 0.1]), st.sampled_from([0.8, 1.0, 2.0]), st.integers(1, 60))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(steps, min_size=1, max_size=4), min_size=1, max_size=4))
def test_common_event_is_never_below_a_candidate(candidates: list[list[tuple[float, float, int]]]) -> None:
    events = [accounting.Composed(tuple(checks.sampled(*one) for one in parts)) for parts in candidates]
    cost = accounting.epsilon(common_event(events), 1e-6, accountant="rdp")
    assert cost >= max(accounting.epsilon(event, 1e-6, accountant="rdp") for event in events) * (1 - 1e-9)


def test_assumptions_of_the_candidates_are_the_searchs() -> None:
    checks.check_assumptions_of_the_candidates_are_the_searchs()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": None}, "epsilon = None is not allowed"),
        ({"noise_source": "x"}, "noise_source = 'x' is not allowed"),
        ({"trainer": {"method": "dp_sgd", "sampling": "fixed_size"}}, "sampling = 'fixed_size' is not allowed"),
    ],
)
def test_refusals_by_name(changes: dict[str, Any], message: str) -> None:
    given_arguments = {"candidates": [{}, {}], "trainer": {"method": "output"}, **changes}
    with pytest.raises(ConfigError, match=message):
        PrivateSearch(**given_arguments).fit(checks.unread(checks.small()))
