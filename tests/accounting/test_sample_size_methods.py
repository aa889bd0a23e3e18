"""The sample-size bounds of each method against minimisations written out here, and their inverses."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import mpmath
import pytest

from dpml.accounting import api, checks
from dpml.accounting.sample_size_methods import (
    LARGEST_EPSILON,
    METHODS,
    SMALLEST_EPSILON,
    Setting,
    statistics_excess_risk,
    statistics_n,
)
from dpml.errors import AccountingError, ConfigError

ROOT = Path(__file__).resolve().parents[2]
RELATIONS = ("add_remove", "replace_one")
CASES = [(1.0, 1e-5, 1.0, 15.0, 133), (0.1, 1e-6, 2.0, 5.0, 20), (4.0, 1e-8, 0.5, 30.0, 1000), (0.5, 1e-5, 1.0, 2.0, 1)]


def multiplier(epsilon: float, delta: float) -> float:
    """s(ε, δ) by Balle & Wang 2018, Theorem 8, with 40 digits: Φ(1/(2s) − εs) − e^ε Φ(−1/(2s) − εs) = δ."""
    with mpmath.workdps(40):

        def spent(s: mpmath.mpf) -> mpmath.mpf:
            left = mpmath.ncdf(1 / (2 * s) - epsilon * s)
            return left - mpmath.exp(epsilon) * mpmath.ncdf(-1 / (2 * s) - epsilon * s)

        low, high = mpmath.mpf("0.01"), mpmath.mpf(10_000)
        for _ in range(60):
            middle = mpmath.sqrt(low * high)
            low, high = (middle, high) if spent(middle) > mpmath.mpf(delta) else (low, middle)
        return float(high)


def least(cost, low: float, high: float) -> float:
    """The minimum of a function with one, by ternary search in the logarithm."""
    low, high = math.log(low), math.log(high)
    for _ in range(300):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if cost(math.exp(a)) < cost(math.exp(b)) else (a, high)
    return cost(math.exp((low + high) / 2))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("epsilon", "delta", "lipschitz", "radius", "d"), CASES)
def test_each_bound_is_the_least_of_its_two_terms(epsilon, delta, lipschitz, radius, d, relation) -> None:
    n, changed = 10_000, 2 if relation == "replace_one" else 1
    setting = Setting(delta, lipschitz, radius, relation)
    s = multiplier(epsilon, delta)
    noise = changed * lipschitz * s

    descent = least(lambda r: radius**2 / (2 * r) + r * d * (noise / n) ** 2 / 2, 1e-9, 1e12)
    curvature = lipschitz**2 / 4
    output = least(lambda w: (n * curvature * (noise / w) ** 2 / 2 + w * radius**2 / 2) / n, 1e-9, 1e12)
    one, part = (epsilon, delta) if changed == 1 else (epsilon / 2, delta / (1 + math.exp(epsilon / 2)))
    sigma = lipschitz * multiplier(one, part)
    objective = least(lambda w: (w * radius**2 / 2 + d * sigma**2 / (2 * w)) / n, lipschitz**2 / one, 1e12)

    expected = {"dp_sgd": descent, "output": output, "objective": objective}
    for name, method in METHODS.items():
        assert method.excess_risk(n, d, epsilon, setting) == pytest.approx(expected[name], rel=1e-9), name


def test_reference_value_of_the_formula_sheet() -> None:
    """s(1, 1e-5) = 3.7306, so that n = 15·√133·3.7306/0.05 for descent, and for objective perturbation too."""
    setting = Setting(1e-5)
    assert METHODS["dp_sgd"].n(133, 1.0, 0.05, setting) == pytest.approx(15 * math.sqrt(133) * 3.7306 / 0.05, rel=1e-4)
    assert METHODS["objective"].n(133, 1.0, 0.05, setting) == pytest.approx(12907, rel=1e-3)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("epsilon", "delta", "lipschitz", "radius", "d"), CASES)
def test_the_four_solutions_agree(epsilon, delta, lipschitz, radius, d, relation) -> None:
    setting, n = Setting(delta, lipschitz, radius, relation), 50_000
    for name, method in METHODS.items():
        risk = method.excess_risk(n, d, epsilon, setting)
        assert method.n(d, epsilon, risk, setting) == pytest.approx(n, rel=1e-9), name
        assert method.epsilon(n, d, risk, setting) == pytest.approx(epsilon, rel=1e-7), name
        if name == "output":
            assert method.d(n, epsilon, risk * 1.001, setting) == math.inf
            assert method.d(n, epsilon, risk * 0.999, setting) == 0.0
        else:
            assert method.d(n, epsilon, risk, setting) == pytest.approx(d, rel=1e-9), name


def test_both_branches_of_the_objective_bound_are_met() -> None:
    """Few features: λ = L²/ε is the larger; many: √d σ/R."""
    objective, setting = METHODS["objective"], Setting(1e-5, solution_norm=15.0)
    sigma = multiplier(1.0, 1e-5)
    assert objective.excess_risk(1000, 1, 1.0, setting) == pytest.approx((225 / 2 + sigma**2 / 2) / 1000, rel=1e-9)
    assert objective.excess_risk(1000, 400, 1.0, setting) == pytest.approx(15 * 20 * sigma / 1000, rel=1e-9)
    assert objective.d(1000, 1.0, 0.1, setting) == 0.0  # λR²/2 alone is 112.5 of the 100 there are


def test_bounds_move_the_right_way() -> None:
    setting, other = Setting(1e-5), Setting(1e-5, neighboring_relation="replace_one")
    for method in METHODS.values():
        base = method.excess_risk(10_000, 100, 1.0, setting)
        assert method.excess_risk(20_000, 100, 1.0, setting) < base
        assert method.excess_risk(10_000, 100, 2.0, setting) < base
        assert method.excess_risk(10_000, 200, 1.0, setting) >= base
        assert method.excess_risk(10_000, 100, 1.0, other) > base
        assert method.excess_risk(10_000, 100, 1.0, Setting(1e-6)) > base


def test_statistics() -> None:
    setting = Setting(1e-5, norm_bound=2.0, solution_norm=5.0)
    assert statistics_n(0.1, setting) == pytest.approx(10_000)
    assert statistics_excess_risk(10_000, setting) == pytest.approx(0.1)


def test_an_epsilon_that_nothing_reaches_is_refused_and_a_tiny_one_is_enough() -> None:
    setting = Setting(1e-5)
    for method in METHODS.values():
        with pytest.raises(AccountingError, match=f"no epsilon up to {LARGEST_EPSILON:g}"):
            method.epsilon(10, 1_000_000, 1e-9, setting)
    assert METHODS["dp_sgd"].epsilon(10**12, 1, 1.0, setting) == 0.0  # δ alone pays for so much noise
    assert METHODS["objective"].epsilon(10**12, 1, 1.0, setting) == SMALLEST_EPSILON


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"norm_bound": 0.0}, "norm_bound"),
        ({"solution_norm": math.nan}, "solution_norm"),
        ({"neighboring_relation": "both"}, "neighboring_relation"),
    ],
)
def test_settings_out_of_range_are_refused(change, name) -> None:
    with pytest.raises(ConfigError, match=name):
        Setting(**{"delta": 1e-5, **change})


def test_the_names_of_the_accountants_are_those_there_are() -> None:
    """The names stand apart from the modules, so that a command line can show them without SciPy."""
    assert checks.ACCOUNTANTS == ("best", *api._MODULES) == api.ACCOUNTANTS


def test_measured_excess_never_passed_the_theorem() -> None:
    """experiments/results/sample_size.json: bound + gap ≥ the mean excess of real runs, for every method, ε and n.

    The bound is on the mean over the noise; a measured mean of 3 to 5 runs may pass it by chance, so three of its
    standard errors are allowed.  The smallest margin on file is 50 %, so a bound half as large would be noticed.
    """
    results = json.loads((ROOT / "experiments/results/sample_size.json").read_text("utf-8"))
    assert set(results) == {"adult", "census_income"}
    for name, content in results.items():
        setting = Setting(content["delta"], 1.0, content["solution_norm"])
        assert {curve["method"] for curve in content["curves"]} == set(METHODS)
        for curve in content["curves"]:
            method = METHODS[curve["method"]]
            columns = zip(curve["n"], curve["empirical"], curve["empirical_error"], curve["gap"], strict=True)
            for n, measured, error, gap in columns:
                bound = method.excess_risk(n, content["d"], curve["epsilon"], setting)
                assert measured <= bound + gap + 3 * error, (name, curve["method"], curve["epsilon"], n)
        least_margin = min(curve["theorem_factor"] for curve in content["curves"])
        assert least_margin > 1.5
        spent = {(need["method"], need["epsilon"]) for need in content["smallest_n"]}
        assert spent == set(itertools.product(METHODS, (0.1, 0.5, 1.0, 2.0)))
