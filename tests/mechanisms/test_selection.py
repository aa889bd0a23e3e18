"""The exponential mechanism, and what all selection mechanisms have in common."""

from __future__ import annotations

import doctest
import math
import pickle
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import selection_checks as checks
from accounting_tables import close as close_row
from accounting_tables import inputs, rows

from dpml import accounting as acc
from dpml import errors, mechanisms
from dpml.mechanisms import Answer, ExponentialMechanism, FixedNoise, SecretNoise, noisy_max, races, selection


def scores_of(row):
    return [float(text) for text in row["inputs"]["scores"]]


@pytest.mark.parametrize(("form", "monotonic"), [("2delta", False), ("delta", True)])
def test_probabilities_of_both_forms(form, monotonic):
    for row in rows("mechanisms", f"exponential_mechanism_eps_over_{form}"):
        given = (float(row["inputs"][key]) for key in ("epsilon", "sensitivity"))
        assert checks.close(row, mechanisms.exponential_probabilities(scores_of(row), *given, monotonic=monotonic)), row


@pytest.mark.parametrize(("form", "monotonic"), [("2delta", False), ("delta", True)])
def test_utility_gap_of_both_forms(form, monotonic):
    for row in rows("mechanisms", f"em_utility_gap_eps_over_{form}"):
        at = inputs(row)
        got = mechanisms.utility_gap(
            int(at["candidates"]),
            at["epsilon"],
            at["sensitivity"],
            math.exp(-at["t"]),
            optimal_candidates=int(at["optimal_candidates"]),
            monotonic=monotonic,
        )
        assert close_row(row, got), row


def test_expected_score():
    for row in rows("mechanisms", "em_expected_score"):
        given = (float(row["inputs"][key]) for key in ("epsilon", "sensitivity"))
        assert close_row(row, mechanisms.expected_score(scores_of(row), *given)), row


def test_the_apples_example_in_the_docstring():
    for module in (selection, noisy_max):
        result = doctest.testmod(module)
        assert result.attempted > 0
        assert result.failed == 0


def test_a_price_needs_the_largest_price_as_sensitivity():
    """One bid from 0 to 10 moves the revenue of the price 10 by 10: with Δ = 1 the choice costs more than ε."""
    prices, before, after = np.array([1.0, 10.0]), np.array([0.0, 0.0]), np.array([1.0, 10.0])
    for sensitivity, allowed in ((prices.max(), True), (1.0, False)):
        mechanism = ExponentialMechanism(prices, sensitivity=sensitivity, epsilon=1.0)
        loss = np.abs(np.log(mechanism.probabilities(before) / mechanism.probabilities(after))).max()
        assert bool(loss <= 1.0) == allowed


def test_gumbel_draws():
    """Power against the factor ε/Δ in place of ε/(2Δ): above 1 − 1e-9."""
    checks.check_sampler("exponential")
    assert checks.power(checks.race("gumbel", "1"), checks.race("gumbel", "0.5")) > 1 - 1e-9


def test_base_measure_draws():
    """Weights 1 : 2 : 5 at equal scores are the probabilities; power against equal ones above 1 − 1e-9."""
    mechanism, noise = ExponentialMechanism(list("abc"), 1.0, 1.0, base_measure=[1.0, 2.0, 5.0]), SecretNoise()
    assert np.allclose(mechanism.probabilities([0.0] * 3), [0.125, 0.25, 0.625], rtol=1e-15)
    counts = checks.counted(lambda: mechanism.release([7.0] * 3, noise).value, "abc")
    checks.chi_square(counts, [0.125, 0.25, 0.625])
    assert checks.power([0.125, 0.25, 0.625], [1 / 3] * 3) > 1 - 1e-9
    mixed = mechanism.probabilities([2.0, 1.0, 0.0])
    expected = np.array([math.e, 2 * math.sqrt(math.e), 5.0])
    assert np.allclose(mixed, expected / expected.sum(), rtol=1e-14)


def test_base_measure_costs_nothing():
    mechanism = ExponentialMechanism(3, 1.0, 1.0, base_measure=[1e-9, 1.0, 1e9])
    loss = checks.largest_loss(mechanism, checks.count_changes("replace_one", 3), checks.worlds())
    assert loss <= 1.0 + 1e-9


@pytest.mark.parametrize("name", checks.CHOICES)
def test_scores_far_apart(name):
    checks.check_scores_far_apart(name)


@pytest.mark.parametrize("name", checks.CHOICES)
@pytest.mark.parametrize("relation", acc.RELATIONS)
def test_counts_cost_epsilon(name, relation):
    checks.check_counts_cost(name, relation)


@pytest.mark.parametrize("name", checks.CHOICES)
def test_general_scores_cost_epsilon(name):
    checks.check_general_cost(name)


@pytest.mark.parametrize("monotonic", [False, True])
@pytest.mark.parametrize("name", checks.CHOICES)
def test_no_random_or_adversarial_neighbours_cost_more(name, monotonic):
    """From random real scores and changes, a greedy search for a larger loss: each change to an end of its range."""
    rng = np.random.default_rng(11)
    for _ in range(8):
        size = int(rng.integers(2, 6))
        mechanism = checks.CHOICES[name](size, sensitivity=1.5, epsilon=0.9, monotonic=monotonic)
        ends = (0.0, 1.5) if monotonic else (-1.5, 1.5)
        scores, change = rng.normal(size=size) * 6, rng.uniform(*ends, size)
        best = checks.largest_loss(mechanism, [change], [scores])
        for place in range(size):
            for end in ends:
                trial = change.copy()
                trial[place] = end
                loss = checks.largest_loss(mechanism, [trial], [scores])
                if loss > best:
                    best, change = loss, trial
        assert 0.0 < best <= 0.9 * (1.0 + 1e-9)


@pytest.mark.parametrize("name", checks.CHOICES)
def test_best_test_between_neighbours_stays_above_the_claimed_curve(name):
    checks.check_tradeoff(name)


@pytest.mark.parametrize("monotonic", [False, True])
def test_losses_of_the_exponential_mechanism_lie_within_a_range_of_epsilon(monotonic):
    """What its event claims beyond pure ε: max − min of ln P/P' <= ε, and ε is reached."""
    mechanism, widest = ExponentialMechanism(3, 1.0, 1.0, monotonic), 0.0
    changes = checks.count_changes("add_remove" if monotonic else "replace_one", 3)
    for scores in checks.worlds():
        for change in changes:
            loss = np.log(mechanism.probabilities(scores) / mechanism.probabilities(np.add(scores, change)))
            widest = max(widest, float(np.ptp(loss)))
    assert widest == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("beta", [0.3, 0.01, 1e-6])
@pytest.mark.parametrize("name", checks.CHOICES)
@pytest.mark.parametrize("size", [2, 5])
def test_error_holds_in_the_worst_case(name, size, beta):
    """One best candidate, all others just further below than the error: they win with probability <= β together."""
    mechanism = checks.CHOICES[name](size, sensitivity=2.0, epsilon=0.5)
    far = mechanism.error(beta)
    missed = mechanism.probabilities([0.0] + [-far * (1 + 1e-9) - 1e-9] * (size - 1))[1:].sum()
    assert missed <= beta * (1 + 1e-6)
    if far > 0 and name in ("exponential", "gumbel"):
        assert missed >= beta * 0.999  # no smaller error is true
    elif far > 0 and beta <= 0.01:
        assert missed >= beta * 0.75


def test_error_with_a_base_measure():
    mechanism = ExponentialMechanism(3, 1.0, 1.0, base_measure=[1.0, 3.0, 6.0])
    far = mechanism.error(0.05)
    assert mechanism.probabilities([0.0, -far, -far])[1:].sum() == pytest.approx(0.05, rel=1e-9)
    assert ExponentialMechanism(1, 1.0, 1.0).error(0.05) == 0.0


def test_error_is_within_the_theorem():
    assert ExponentialMechanism(1000, 1.0, 0.1).error(0.01) < mechanisms.utility_gap(1000, 0.1, 1.0, 0.01)


def test_answer_and_event():
    mechanism = ExponentialMechanism(["x", "y"], 1.0, 0.5)
    answer = mechanism.release([0.0, 1e6], FixedNoise(0))
    assert isinstance(answer, Answer)
    assert answer.value == "y"
    assert answer.event == mechanism.event == acc.ExponentialMechanism(0.5)
    assert answer.error(0.05) == mechanism.error(0.05)
    assert "y" in repr(answer)
    assert "1000000" not in repr(answer)
    with pytest.raises(errors.ConfigError, match="interval"):
        answer.interval(0.05)
    assert ExponentialMechanism(2, 1.0, 0.5).release([0.0, 1e6]).value == 1
    assert pickle.loads(pickle.dumps(mechanism)) == mechanism


def test_equal_scores_and_one_candidate():
    assert ExponentialMechanism(1, 1.0, 1.0).release([3.0]).value == 0
    mechanism, noise = ExponentialMechanism(4, 1.0, 1.0), SecretNoise()
    checks.chi_square(checks.counted(lambda: mechanism.release([1.0] * 4, noise).value, range(4), 4000), [0.25] * 4)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("candidates", {"candidates": 0}),
        ("candidates", {"candidates": 2.5}),
        ("candidates", {"candidates": []}),
        ("candidates", {"candidates": ["a", "a"]}),
        ("candidates", {"candidates": [float("nan")]}),
        ("candidates", {"candidates": [["a"], ["b"]]}),
        ("candidates", {"candidates": {"a", "b"}}),
        ("candidates", {"candidates": "ab"}),
        ("sensitivity", {"sensitivity": 0.0}),
        ("sensitivity", {"sensitivity": -1.0}),
        ("sensitivity", {"sensitivity": math.nan}),
        ("sensitivity", {"sensitivity": math.inf}),
        ("epsilon", {"epsilon": 0.0}),
        ("epsilon", {"epsilon": -1.0}),
        ("epsilon", {"epsilon": math.inf}),
        ("epsilon", {"epsilon": True}),
        ("monotonic", {"monotonic": "yes"}),
        ("base_measure", {"base_measure": [1.0]}),
        ("base_measure", {"base_measure": [1.0, 0.0, 1.0]}),
        ("base_measure", {"base_measure": [1.0, math.nan, 1.0]}),
        ("base_measure", {"base_measure": [1.0, math.inf, 1.0]}),
        ("base_measure", {"base_measure": "abc"}),
    ],
)
def test_bad_arguments_are_refused_by_name(name, change):
    with pytest.raises(errors.ConfigError, match=f"^{name} = "):
        ExponentialMechanism(**{"candidates": 3, "sensitivity": 1.0, "epsilon": 1.0, **change})


@pytest.mark.parametrize("scores", [[1.0, math.nan], [1.0, math.inf], [1.0], [], "ab", [1.0, 2.0, 3.0]])
def test_bad_scores_are_refused_before_anything_is_drawn(scores):
    class Untouched:
        secret = False

        def normal(self, std, shape):
            raise AssertionError("drawn")

        def uniform(self, size):
            raise AssertionError("drawn")

    for kind in checks.CHOICES.values():
        with pytest.raises(errors.DataError):
            kind(2, sensitivity=1.0, epsilon=1.0).release(scores, Untouched())


@pytest.mark.parametrize("beta", [0.0, 1.0, math.nan, -1.0])
def test_bad_beta_and_noise(beta):
    for kind in checks.CHOICES.values():
        with pytest.raises(errors.ConfigError, match="beta"):
            kind(3, sensitivity=1.0, epsilon=1.0).error(beta)
        with pytest.raises(errors.ConfigError, match="noise"):
            kind(3, sensitivity=1.0, epsilon=1.0).release([1.0, 2.0, 3.0], noise=7)
    with pytest.raises(errors.ConfigError, match="optimal_candidates"):
        mechanisms.utility_gap(3, 1.0, 1.0, 0.1, optimal_candidates=4)


def test_the_factor_is_exact():
    assert ExponentialMechanism(2, 0.1, 0.3).factor == Fraction(0.3) / (2 * Fraction(0.1))
    assert ExponentialMechanism(2, 0.1, 0.3, monotonic=True).factor == Fraction(0.3) / Fraction(0.1)
    assert races.KINDS == acc.events.NOISY_MAX_NOISES


def test_a_million_candidates():
    mechanism = ExponentialMechanism(10**6, 1.0, 50.0)
    scores = np.zeros(10**6)
    scores[123_456] = 3.0  # 75 noise scales above a maximum of about 14 ± 3
    assert mechanism.release(scores).value == 123_456


def test_the_example_in_the_docs_runs():
    page = (Path(__file__).parents[2] / "docs" / "mechanisms.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page.split("Selection\n", 1)[1], re.DOTALL)
    names = {}
    exec(blocks[0], names)
    assert names["choice"].noise_scale == 4.0
    assert names["stream"].remaining in (2, 3)
