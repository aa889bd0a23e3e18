"""Two-world auditing: exact limits, validity under mechanisms whose ε is known, power against half the noise."""

from __future__ import annotations

import json
import math
from typing import Any

import audit_checks as checks
import numpy as np
import pytest
from scipy import stats

from dpml import audit
from dpml.errors import ConfigError, DataError

MU, DELTA = 1.0, 0.01


def test_1000_audits_may_exceed_85_times() -> None:
    """The false-alarm rate of every test of validity here, were its seed not fixed."""
    assert stats.binom.sf(checks.MOST, checks.AUDITS, 0.05) < 2e-6


def test_limits() -> None:
    checks.check_limits_are_clopper_pearson()
    checks.check_each_rate_is_at_half_of_what_is_left()


def test_counts() -> None:
    checks.check_the_choice_does_not_see_what_is_counted()
    checks.check_errors_are_those_of_the_counted_runs()


def test_bounds_by_hand() -> None:
    """α ≤ 0.01 and β ≤ 0.5 at δ = 0.1: ln(0.4/0.01) is the larger order; nothing is proved by α = β = 1/2."""
    assert math.isclose(float(audit.epsilon_of_errors(0.01, 0.5, 0.1)), math.log(40))
    assert math.isclose(float(audit.epsilon_of_errors(0.5, 0.01, 0.1)), math.log(40))
    assert float(audit.epsilon_of_errors(0.5, 0.5, 0.0)) == 0
    assert float(audit.epsilon_of_errors(0.01, 0.95, 0.1)) == 0
    assert math.isclose(float(audit.mu_of_errors(stats.norm.sf(2), stats.norm.cdf(-1))), 3.0)
    assert float(audit.mu_of_errors(0.9, 0.9)) == 0


def test_a_useless_score_proves_nothing() -> None:
    checks.check_useless_scores_prove_nothing()


@pytest.mark.parametrize(
    ("mechanism", "truth", "arguments"),
    [
        (checks.gaussian(MU), checks.gaussian_epsilon(MU, DELTA), {"delta": DELTA}),
        (checks.gaussian(MU), checks.gaussian_epsilon(MU, DELTA), {"delta": DELTA, "thresholds": 3}),
        (checks.gaussian(MU), checks.gaussian_epsilon(MU, DELTA), {"delta": DELTA, "assumption": "gaussian"}),
        (checks.laplace(1.0), 1.0, {"delta": 0.0}),
        (checks.response(1.0), 1.0, {"delta": 0.0}),
        (checks.leaky(checks.LEAK), 0.0, {"delta": checks.LEAK}),
    ],
    ids=["gaussian", "gaussian, three thresholds", "gaussian, assumed", "laplace", "randomized response", "leak"],
)
def test_bounds_are_valid(mechanism: Any, truth: float, arguments: dict[str, Any]) -> None:
    assert checks.exceedances(mechanism, truth, runs=600, **arguments) <= checks.MOST


@pytest.mark.parametrize(
    ("mechanism", "claimed", "arguments"),
    [
        (checks.gaussian(2 * 0.9249), 4.0, {"delta": 1e-5}),
        (checks.gaussian(2 * 0.268), 1.0, {"delta": 1e-5, "assumption": "gaussian"}),
        (checks.laplace(2.0), 1.0, {"delta": 0.0}),
        (checks.response(2.0), 1.0, {"delta": 0.0}),
    ],
    ids=["gaussian", "gaussian, assumed", "laplace", "randomized response"],
)
def test_half_the_noise_is_flagged(mechanism: Any, claimed: float, arguments: dict[str, Any]) -> None:
    """μ = 0.9249 and 0.268 are ε = 4 and 1 at δ = 1e-5; all of 10 audits of 400,000 runs flag twice that at 99.9 %."""
    rng = np.random.default_rng(3)
    for _ in range(10):
        found = audit.distinguish(
            lambda world, count: mechanism(rng, world, count), runs=400_000, confidence=0.999, **arguments
        )
        assert found.exceeds(claimed)


def test_the_sign_of_the_score_does_not_matter() -> None:
    rng = np.random.default_rng(5)
    out, inside = rng.normal(0, 1, 5000), rng.normal(1, 1, 5000)
    found, flipped = (audit.distinguish_scores(s * out, s * inside, delta=1e-3) for s in (1, -1))
    assert (found.sign, flipped.sign) == (1, -1)
    assert found.epsilon_lower == flipped.epsilon_lower > 0.5


def test_the_assumption_is_labelled() -> None:
    rng = np.random.default_rng(5)
    out, inside = rng.normal(0, 1, 5000), rng.normal(1, 1, 5000)
    plain = audit.distinguish_scores(out, inside, delta=1e-3)
    assumed = audit.distinguish_scores(out, inside, delta=1e-3, assumption="gaussian")
    assert not any("ASSUMED" in line for line in plain.assumptions)
    assert any("ASSUMED" in line for line in assumed.assumptions)
    assert "ASSUMED" in str(assumed)
    assert 0.8 < assumed.rates["mu_lower"] < 1.0
    assert math.isclose(assumed.epsilon_lower, checks.gaussian_epsilon(assumed.rates["mu_lower"], 1e-3), rel_tol=1e-6)
    assert json.loads(json.dumps(assumed.to_dict()))["method"] == "two_world_gaussian"


def test_single_runs_and_infinite_scores() -> None:
    def run(world: int, generator: np.random.Generator) -> float:
        return math.inf if world and generator.random() < 0.9 else generator.normal()

    found = audit.distinguish(audit.one_by_one(run, seed=1), runs=400, delta=0.0)
    again = audit.distinguish(audit.one_by_one(run, seed=1), runs=400, delta=0.0)
    assert found == again
    assert found.runs == 400
    assert found.epsilon_lower > 1.0


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"delta": 1.0}, "delta"),
        ({"delta": 0.0, "assumption": "gaussian"}, "delta"),
        ({"confidence": 1.0}, "confidence"),
        ({"selection": 0.0}, "selection"),
        ({"thresholds": 0}, "thresholds"),
        ({"assumption": "laplace"}, "assumption"),
        ({"runs": 7}, "runs"),
    ],
)
def test_refusals_come_before_the_first_run(change: dict[str, Any], name: str) -> None:
    def run(world: int, count: int) -> np.ndarray:
        raise AssertionError("was run")

    with pytest.raises(ConfigError, match=f"^{name} = "):
        audit.distinguish(run, **{"runs": 100, "delta": 1e-5, **change})


@pytest.mark.parametrize("scores", [[1.0, math.nan, 0.0, 2.0], [1.0], [[1.0, 2.0], [3.0, 4.0]], ["a", "b", "c", "d"]])
def test_scores_that_are_none(scores: Any) -> None:
    with pytest.raises(DataError):
        audit.distinguish_scores([0.0, 1.0, 2.0, 3.0], scores, delta=1e-5)
    with pytest.raises(DataError):
        audit.distinguish(lambda world, count: np.zeros(count - 1), runs=100, delta=1e-5)
