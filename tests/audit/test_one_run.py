"""One-run auditing: both analyses against slow twins, validity for canaries protected exactly, power."""

from __future__ import annotations

import math
from typing import Any

import audit_checks as checks
import numpy as np
import pytest
from scipy import stats

from dpml import audit
from dpml.errors import ConfigError, DataError


def test_the_binomial_bound() -> None:
    checks.check_p_value_is_the_theorem()


def test_the_recursion() -> None:
    checks.check_recursion_solves_the_linear_programme()


def test_the_recursion_with_a_gaussian_trade_off() -> None:
    checks.check_recursion_solves_the_gaussian_programme()


def test_what_the_recursion_excludes_is_improbable_for_independent_canaries() -> None:
    """All of m guessed by sign, N(±μ/2, 1) or randomized response: v is binomial, less probable than the level."""
    m = 40
    for inverse, truth in (
        (audit.gaussian_inverse(1.0), stats.norm.cdf(0.5)),
        (audit.epsilon_delta_inverse(0.8, 0.0), 1 / (1 + math.exp(-0.8))),
    ):
        excluded = [v for v in range(m + 1) if audit.f_dp_excludes(m, m, v, inverse, 0.05)]
        assert excluded
        assert stats.binom.sf(excluded[0] - 1, m, truth) <= 0.05


def test_guesses() -> None:
    checks.check_guesses_are_the_extreme_scores()


@pytest.mark.parametrize("analysis", ["binomial", "f_dp"])
@pytest.mark.parametrize("kind", ["response", "laplace", "gaussian", "leaky"])
def test_bounds_are_valid(kind: str, analysis: str) -> None:
    assert checks.one_run_exceedances(kind, analysis) <= checks.MOST


def test_bounds_under_the_gaussian_assumption_are_valid_for_gaussians() -> None:
    assert checks.one_run_exceedances("gaussian", "gaussian") <= checks.MOST


def test_the_bound_is_where_the_p_value_passes_the_level() -> None:
    found = audit.one_run_epsilon(1000, 200, 160, delta=1e-5, confidence=0.95)
    assert checks.slow_p_value(1000, 200, 160, found, 1e-5) <= 0.05
    assert checks.slow_p_value(1000, 200, 160, found + 1e-6, 1e-5) > 0.05
    assert audit.one_run_epsilon(1000, 200, 100, delta=1e-5, confidence=0.95) == 0
    for analysis in ("binomial", "f_dp"):
        values = [
            audit.one_run_epsilon(1000, 100, v, delta=1e-5, confidence=0.95, analysis=analysis) for v in (70, 80, 100)
        ]
        assert 0 < values[0] < values[1] < values[2] < math.inf


def test_half_the_noise_is_flagged() -> None:
    """1,000 canaries with μ = 1.85 where 0.9249 (ε = 4 at δ = 1e-5) is claimed: with the assumption, and for Laplace
    noise of ε = 2 where 1 is claimed without any."""
    rng = np.random.default_rng(2)
    for _ in range(5):
        included = rng.random(1000) < 0.5
        found = audit.audit_one_run(
            rng.normal(1.85 * included, 1), included, delta=1e-5, guesses=(100, 100), analysis="gaussian"
        )
        assert found.exceeds(4.0)
        assert any("ASSUMED" in line for line in found.assumptions)
        scores = rng.laplace(2.0 * included, 1)
        assert audit.audit_one_run(scores, included, delta=0.0, guesses=(60, 60), confidence=0.95).exceeds(1.0)


def test_the_sign_can_be_tried_both_ways_at_a_price() -> None:
    rng = np.random.default_rng(4)
    included = rng.random(500) < 0.5
    scores = -rng.normal(2.0 * included, 1)
    wrong = audit.audit_one_run(scores, included, delta=1e-5, guesses=(50, 50))
    right = audit.audit_one_run(scores, included, delta=1e-5, guesses=(50, 50), sign=-1)
    both = audit.audit_one_run(scores, included, delta=1e-5, guesses=(50, 50), sign=None)
    assert wrong.epsilon_lower == 0
    assert (both.sign, both.counts["attempts"]) == (-1, 2)
    assert 0 < both.epsilon_lower < right.epsilon_lower
    half = audit.one_run_epsilon(500, 100, both.counts["correct"], delta=1e-5, confidence=0.975)
    assert math.isclose(both.epsilon_lower, half, rel_tol=1e-9)


@pytest.mark.parametrize("m", [1, 2, 5, 17, 200])
def test_default_guesses_fit_any_number_of_canaries(m: int) -> None:
    included = np.arange(m) % 2 == 0
    found = audit.audit_one_run(np.arange(m, dtype=float), included, delta=1e-5)
    assert 1 <= found.counts["guesses"] <= m
    assert found.runs == 1


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"guesses": (6, 6)}, "guesses"),
        ({"guesses": (0, 0)}, "guesses"),
        ({"guesses": []}, "guesses"),
        ({"guesses": [(1, 1, 1)]}, "guesses"),
        ({"analysis": "exact"}, "analysis"),
        ({"delta": 0.0, "analysis": "gaussian"}, "delta"),
        ({"sign": 0}, "sign"),
        ({"confidence": 0.0}, "confidence"),
    ],
)
def test_refusals(change: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} = "):
        audit.audit_one_run(np.arange(10.0), np.arange(10) < 5, **{"delta": 1e-5, **change})


def test_coins_and_scores_that_do_not_fit() -> None:
    for scores, included in (
        (np.arange(10.0), np.arange(9) < 5),
        (np.arange(10.0), np.arange(10)),
        (np.full(10, math.nan), np.arange(10) < 5),
        (np.zeros((2, 5)), np.zeros((2, 5), dtype=bool)),
    ):
        with pytest.raises(DataError):
            audit.audit_one_run(scores, included, delta=1e-5)
    for counts in ((10, 11, 5), (10, 5, 6), (0, 0, 0)):
        with pytest.raises(ConfigError):
            audit.one_run_p_value(*counts, 1.0, 0.0)
