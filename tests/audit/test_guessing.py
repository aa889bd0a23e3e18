"""Guesses about two worlds that may be withheld: by hand, validity for mechanisms of known ε, power, planned cuts."""

from __future__ import annotations

import math
from typing import Any

import audit_checks as checks
import numpy as np
import pytest
from scipy import stats

from dpml import audit
from dpml.audit import guessing
from dpml.audit.__main__ import Settings, run_audit
from dpml.errors import ConfigError, DataError

MU = {1.0: 0.268051, 4.0: 0.924931, 10.0: 2.000446}  # ε ↦ μ at δ = 1e-5


def test_by_hand() -> None:
    checks.check_guess_bound_by_hand()


def test_nothing_is_shown_by_nothing() -> None:
    checks.check_useless_guesses_prove_nothing()
    checks.check_guesses_allow_leaks_of_probability_delta()
    no_guess = audit.guess_worlds(np.zeros(10), np.arange(10) < 5, (-1.0, 1.0), delta=1e-5)
    assert (no_guess.epsilon_lower, no_guess.counts["guesses"]) == (0.0, 0)


@pytest.mark.parametrize("runs", [20, 400])
@pytest.mark.parametrize(
    ("mechanism", "truth", "cuts", "delta"),
    [
        (checks.response(1.0), 1.0, (0.4, 0.6), 0.0),
        (checks.response(3.0), 3.0, (-math.inf, 0.6), 0.0),
        (checks.laplace(1.0), 1.0, (0.0, 1.0), 0.0),
        (checks.laplace(2.0), 2.0, (-1.0, 3.0), 0.0),
        (checks.gaussian(1.0), checks.gaussian_epsilon(1.0, 1e-3), (-0.5, 1.5), 1e-3),
    ],
    ids=["response", "response, one side", "laplace, all guessed", "laplace", "gaussian"],
)
def test_bounds_are_valid(mechanism: Any, truth: float, cuts: tuple[float, float], delta: float, runs: int) -> None:
    """At most 85 of 1,000 above the truth (false alarm 1.2e-6)."""
    assert checks.guess_exceedances(mechanism, truth, cuts, runs=runs, delta=delta) <= checks.MOST


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 10.0])
def test_half_of_epsilon_is_shown_by_two_hundred_thousand_runs(epsilon: float) -> None:
    """Two Gaussians: by 50 audits of 50 (seeded), where both error rates have limits of their own by about 19 in 20."""
    mu, rng = MU[epsilon], np.random.default_rng(1)
    assert math.isclose(checks.gaussian_epsilon(mu, 1e-5), epsilon, rel_tol=1e-4)
    ratio = lambda x: mu * x - mu**2 / 2  # noqa: E731
    draws = rng.normal(size=(2, 50_000))
    cuts = audit.planned_cuts(ratio(draws[0]), ratio(draws[1] + mu), 200_000, delta=1e-5, confidence=0.95)
    for _ in range(50):
        included = rng.random(200_000) < 0.5
        found = audit.guess_worlds(ratio(rng.normal(mu * included)), included, cuts, delta=1e-5)
        assert 0.5 * epsilon < found.epsilon_lower <= epsilon


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_the_engine_shows_half_of_its_epsilon(epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    checks.make_repeatable(monkeypatch)
    found = run_audit(Settings(runs=200_000, epsilon=epsilon, delta=1e-5))
    assert 0.5 * epsilon < found.result.epsilon_lower <= found.epsilon_upper
    assert (found.result.method, found.score) == ("two_world_guesses", "likelihood")
    assert any("fair coin" in line for line in found.result.assumptions)


def test_planned_cuts_of_two_gaussians_are_symmetric_and_weigh_both_tails() -> None:
    """Many runs allow rarer errors; with few, all is guessed."""
    draws = np.random.default_rng(2).normal(size=(2, 50_000))
    out, inside = draws[0] - 0.5, draws[1] + 0.5
    few, many = (audit.planned_cuts(out, inside, runs, delta=1e-5, confidence=0.95) for runs in (100, 1_000_000))
    for low, high in (few, many):
        assert abs(low + high) < 0.3
    assert many[1] > few[1] + 1
    lopsided = audit.planned_cuts(np.full(1000, -0.01), np.full(1000, -0.01), 1000, delta=1e-5, confidence=0.95)
    assert lopsided[0] < lopsided[1]


def test_claimed_ratios_follow_the_law_of_a_sampled_gaussian() -> None:
    """One step: E₀[e^s] = 1 and E₁[e^−s] = 1; the share of world 1 above 0 by the normal law.  Seeded; 6 sd."""
    q, sigma = 0.3, 1.1
    out, inside = guessing.claimed_ratios(1, q, sigma)
    for values in (np.exp(out), np.exp(-inside)):
        assert abs(values.mean() - 1) < 6 * values.std() / math.sqrt(len(values))
    above = (1 - q) * stats.norm.sf(0.5 / sigma) + q * stats.norm.sf(-0.5 / sigma)
    assert abs((inside > 0).mean() - above) < 6 * math.sqrt(above * (1 - above) / len(inside))
    again = guessing.claimed_ratios(1, q, sigma)
    assert np.array_equal(out, again[0])


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"delta": 1.0}, ConfigError, "delta = 1.0"),
        ({"confidence": 0.0}, ConfigError, "confidence = 0.0"),
        ({"cuts": (1.0, 1.0)}, ConfigError, "cut_out < cut_in"),
        ({"cuts": (math.nan, 1.0)}, ConfigError, "cut_out < cut_in"),
        ({"scores": [math.nan] * 4}, DataError, "NaN"),
        ({"scores": [1.0] * 3}, DataError, "one score and one boolean"),
        ({"included": [0, 1, 0, 1]}, DataError, "one score and one boolean"),
    ],
)
def test_refusals(change: dict[str, Any], error: type[Exception], text: str) -> None:
    given = {"scores": [0.0, 1.0, 2.0, 3.0], "included": [True, False, True, False], "cuts": (0.0, 2.0), **change}
    options = {"delta": given.pop("delta", 1e-5), "confidence": given.pop("confidence", 0.95)}
    with pytest.raises(error, match=text):
        audit.guess_worlds(given["scores"], given["included"], given["cuts"], **options)
