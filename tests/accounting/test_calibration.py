"""Calibration never lands above the budget, and not far below it; trajectories; sample sizes.

Expected values: the issue's numbers and closed forms.  T Gaussians of noise σ are one with μ = √T/σ, whose δ(ε) is
Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) (Balle & Wang 2018, Theorem 8), written out here with mpmath; T pure releases cost the
sum; a Poisson sample of an ε-DP release costs ln(1 + q(e^ε − 1)).
"""

from __future__ import annotations

import json
import math
from itertools import pairwise

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpml import accounting as acc
from dpml.accounting import api, calibration, groups, sample_size, tradeoffs
from dpml.accounting.calibration import (
    calibrate_epochs,
    calibrate_group_size,
    calibrate_sample_rate,
    epsilon_of_group,
)
from dpml.accounting.sample_size_methods import METHODS, Setting
from dpml.errors import AccountingError, ConfigError, UnsupportedEventError


def run_of(q, steps):
    return lambda noise: acc.SelfComposed(acc.PoissonSampled(q, acc.Gaussian(noise)), steps)


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("accountant", ["best", "rdp"])
@pytest.mark.parametrize(("q", "steps", "epsilon"), [(0.01, 1000, 0.5), (0.2, 50, 3.0), (1.0, 30, 1.0)])
def test_calibrated_noise_meets_the_budget_and_one_per_mille_less_does_not(relation, accountant, q, steps, epsilon):
    options = {"accountant": accountant, "neighboring_relation": relation}
    noise = acc.calibrate(run_of(q, steps), epsilon=epsilon, delta=1e-6, **options)
    assert acc.epsilon(run_of(q, steps)(noise), 1e-6, **options) <= epsilon
    assert acc.epsilon(run_of(q, steps)(noise * 0.999), 1e-6, **options) > epsilon


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-4, 50.0), st.floats(1e-12, 0.05))
def test_calibrated_gaussian_is_the_analytic_one(epsilon, delta):
    noise = acc.calibrate(acc.Gaussian, epsilon=epsilon, delta=delta)
    exact = acc.gaussian_noise_multiplier(epsilon, delta)
    assert exact * (1 - 1e-12) <= noise <= exact * (1 + 1e-4)
    assert acc.epsilon(acc.Gaussian(noise), delta) <= epsilon


@pytest.mark.parametrize("epsilon", [0.001, 0.01, 30.0, 100.0])
def test_small_and_large_budgets(epsilon):
    """At small ε a fixed grid elsewhere wastes 5 % noise: here within 0.2 % of the Gaussian limit for q = 1."""
    noise = acc.calibrate(run_of(0.05, 100), epsilon=epsilon, delta=1e-5, accountant="pld")
    assert acc.epsilon(run_of(0.05, 100)(noise), 1e-5, accountant="pld") <= epsilon
    plain = acc.calibrate(run_of(1.0, 100), epsilon=epsilon, delta=1e-5, accountant="pld")
    exact = 10 * acc.gaussian_noise_multiplier(epsilon, 1e-5)
    assert exact <= plain <= exact * 1.002
    assert noise < plain


def test_calibrate_objective_perturbation():
    event = acc.calibrate(
        lambda s: acc.Composed((acc.ObjectivePerturbation(s, 1 / 0.5, 1.0), acc.Gaussian(1e4))),
        epsilon=0.6,
        delta=1e-5,
    )
    assert event < 1.1 * acc.gaussian_noise_multiplier(0.5, 1e-5)


def test_no_noise_is_enough_is_said():
    with pytest.raises(AccountingError, match="whatever the noise"):
        acc.calibrate(lambda s: acc.Composed((acc.EpsilonDelta(2.0, 0.0), acc.Gaussian(s))), epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_bad_budgets_are_refused(bad):
    with pytest.raises(ConfigError, match="epsilon"):
        acc.calibrate(acc.Gaussian, epsilon=bad, delta=1e-5)


@pytest.mark.parametrize("accountant", ["best", "rdp"])
def test_calibrated_steps_are_the_last_that_fit(accountant):
    step = acc.PoissonSampled(0.02, acc.Gaussian(1.0))

    def epsilon(count):
        return acc.epsilon(acc.SelfComposed(step, count), 1e-5, accountant=accountant)

    count = acc.calibrate_steps(lambda k: acc.SelfComposed(step, k), epsilon=3.0, delta=1e-5, accountant=accountant)
    assert epsilon(count) <= 3.0 < epsilon(count + 1)
    none = acc.calibrate_steps(lambda k: acc.SelfComposed(acc.Gaussian(0.1), k), epsilon=1.0, delta=1e-5)
    assert none == 0
    assert acc.calibrate_steps(lambda k: acc.NoOp(), epsilon=1.0, delta=1e-5, limit=1000) == 1000


def gaussian_delta(epsilon, mu):
    with mpmath.workdps(40):
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        high = mpmath.ncdf(mu / 2 - epsilon / mu)
        return high - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def test_the_numbers_of_the_issue():
    assert acc.calibrate(run_of(0.01, 2000), epsilon=3, delta=1e-5) == pytest.approx(0.9304, abs=1e-4)
    assert acc.calibrate(run_of(0.01, 1000), epsilon=0.01, delta=1e-5) <= 77.14


def test_few_evaluations_are_enough(monkeypatch):
    calls, real = [], api.epsilon
    monkeypatch.setattr(api, "epsilon", lambda *a, **k: calls.append(1) or real(*a, **k))
    acc.calibrate(run_of(0.01, 2000), epsilon=3, delta=1e-5)
    assert len(calls) <= 5
    calls.clear()
    acc.calibrate_steps(lambda k: run_of(0.01, k)(1.0), epsilon=3, delta=1e-5)
    assert len(calls) <= 8


KINDS = {
    "sampled": lambda q, steps: run_of(q, steps),
    "replaced": lambda q, steps: lambda s: acc.SelfComposed(acc.SampledWithoutReplacement(1, 20, acc.Gaussian(s)), 3),
    "laplace": lambda q, steps: lambda s: acc.SelfComposed(acc.Laplace(s), steps),
    "mixed": lambda q, steps: (
        lambda s: acc.Composed((run_of(q, steps)(s), acc.Gaussian(3 * s), acc.ZCDP(1e-5), acc.EpsilonDelta(1e-3, 1e-9)))
    ),
    "objective": lambda q, steps: lambda s: acc.ObjectivePerturbation(s, 10.0, 1.0),
}


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.floats(0.002, 0.3), st.integers(2, 300), st.floats(0.05, 6.0))
def test_calibrate_then_account_is_within_the_budget(kind, q, steps, epsilon):
    relation = "replace_one" if kind == "replaced" else "add_remove"
    make = KINDS[kind](q, steps)
    noise = acc.calibrate(make, epsilon=epsilon, delta=1e-5, neighboring_relation=relation)
    assert acc.epsilon(make(noise), 1e-5, neighboring_relation=relation) <= epsilon
    assert acc.epsilon(make(noise * (1 - 3e-4)), 1e-5, neighboring_relation=relation) > epsilon


@settings(max_examples=20, deadline=None)
@given(
    st.floats(0.001, 1.0), st.integers(1, 500), st.floats(1e-3, 50.0), st.sampled_from(["zcdp", "basic", "advanced"])
)
def test_other_accountants_calibrate_to_themselves(q, steps, epsilon, accountant):
    parts = {
        "zcdp": run_of(q, steps),
        "basic": lambda s: acc.SelfComposed(acc.Laplace(s), steps),
        "advanced": lambda s: acc.SelfComposed(acc.Pure(1 / s), steps),
    }
    make = parts[accountant]
    noise = acc.calibrate(make, epsilon=epsilon, delta=1e-6, accountant=accountant)
    assert acc.epsilon(make(noise), 1e-6, accountant=accountant) <= epsilon
    assert acc.epsilon(make(noise * (1 - 3e-4)), 1e-6, accountant=accountant) > epsilon


@settings(max_examples=30, deadline=None)
@given(st.floats(1.0, 1e4), st.floats(0.05, 20.0), st.sampled_from([1e-3, 1e-5, 1e-9]))
def test_gaussian_steps_and_groups_by_the_closed_form(noise, epsilon, delta):
    """T steps have μ = √T/σ; a group of k has μ = k/σ."""
    steps = acc.calibrate_steps(
        lambda k: acc.SelfComposed(acc.Gaussian(noise), k), epsilon=epsilon, delta=delta, limit=10**12
    )
    assert steps == 0 or gaussian_delta(epsilon, math.sqrt(steps) / noise) <= delta * (1 + 1e-9)
    assert gaussian_delta(epsilon, math.sqrt(steps + 1) / noise) > delta * (1 - 1e-9)
    size = calibrate_group_size(acc.Gaussian(noise), epsilon=epsilon, delta=delta)
    assert size == 0 or gaussian_delta(epsilon, size / noise) <= delta * (1 + 1e-9)
    assert gaussian_delta(epsilon, (size + 1) / noise) > delta * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.2, 50.0), st.integers(1, 1000), st.floats(0.01, 30.0))
def test_pure_calibrations_by_hand(scale, steps, epsilon):
    """δ = 0: T releases of Laplace noise b cost T/b, groups k/b, samples T·ln(1 + q(e^{1/b} − 1))."""
    noise = acc.calibrate(lambda s: acc.SelfComposed(acc.Laplace(s), steps), epsilon=epsilon, delta=0.0)
    assert steps / epsilon <= noise * (1 + 1e-14) <= steps / epsilon * (1 + 1.1e-4)
    count = acc.calibrate_steps(lambda k: acc.SelfComposed(acc.Laplace(scale), k), epsilon=epsilon, delta=0.0)
    assert count / scale <= epsilon * (1 + 1e-12)
    assert (count + 1) / scale > epsilon * (1 - 1e-12)
    size = calibrate_group_size(acc.Laplace(scale), epsilon=epsilon, delta=0.0)
    assert size / scale <= epsilon * (1 + 1e-12)
    assert (size + 1) / scale > epsilon * (1 - 1e-12)
    found = calibrate_sample_rate(
        lambda q: acc.SelfComposed(acc.PoissonSampled(q, acc.Laplace(scale)), steps), epsilon=epsilon, delta=0.0
    )
    rate = min(1.0, math.expm1(epsilon / steps) / math.expm1(1 / scale))
    assert rate * (1 - 1.1e-4) <= found <= rate * (1 + 1e-12)


@settings(max_examples=8, deadline=None)
@given(st.floats(0.6, 4.0), st.integers(1, 2000), st.floats(0.1, 8.0))
def test_calibrated_rates_are_within_the_budget_and_a_little_more_is_not(noise, steps, epsilon):
    def make(q):
        return acc.SelfComposed(acc.PoissonSampled(q, acc.Gaussian(noise)), steps)

    rate = calibrate_sample_rate(make, epsilon=epsilon, delta=1e-5)
    assert 0 < rate <= 1
    assert acc.epsilon(make(rate), 1e-5) <= epsilon
    assert rate == 1 or acc.epsilon(make(min(1.0, rate * (1 + 3e-4))), 1e-5) > epsilon


def test_rates_at_the_ends():
    assert calibrate_sample_rate(lambda q: acc.PoissonSampled(q, acc.Gaussian(10.0)), epsilon=3, delta=1e-5) == 1.0

    def costly(q):
        return acc.Composed((acc.Pure(4.0), acc.PoissonSampled(q, acc.Gaussian(10.0))))

    assert calibrate_sample_rate(costly, epsilon=3, delta=1e-5) == 0.0
    assert calibrate_sample_rate(lambda q: acc.PoissonSampled(q, acc.Gaussian(0.0)), epsilon=3, delta=1e-5) <= 1e-5


@settings(max_examples=5, deadline=None)
@given(st.sampled_from([0.005, 0.02, 0.3]), st.floats(0.8, 3.0), st.floats(0.3, 8.0))
def test_epochs_are_whole_steps(q, noise, epsilon):
    def make(count):
        return run_of(q, count)(noise)

    found = calibrate_epochs(make, q, epsilon=epsilon, delta=1e-5)
    assert found.epochs == found.steps * q
    assert found.steps == 0 or acc.epsilon(make(found.steps), 1e-5) <= epsilon
    assert acc.epsilon(make(found.steps + 1), 1e-5) > epsilon


def test_group_sizes_where_the_accountant_does_not_know_the_group(monkeypatch):
    """Statements resolve by the chain rule, what the accountant refuses by group_epsilon: the last that fits."""
    event = acc.SelfComposed(acc.PoissonSampled(0.001, acc.Gaussian(1.0)), 1000)
    size = calibrate_group_size(event, epsilon=3.0, delta=1e-5)
    assert epsilon_of_group(event, size, 1e-5) <= 3.0 < epsilon_of_group(event, size + 1, 1e-5)
    statement = acc.EpsilonDelta(0.5, 1e-7)
    size = calibrate_group_size(statement, epsilon=2.0, delta=1e-5)
    assert size == 4  # 4·0.5, and 1e-7·(e² − 1)/(e^½ − 1) = 9.8e-7
    assert calibrate_group_size(acc.Gaussian(0.5), epsilon=3.0, delta=1e-5) == 0
    assert calibrate_group_size(acc.NoOp(), epsilon=1.0, delta=0.0, limit=77) == 77
    assert calibrate_group_size(acc.DiscreteLaplace(1000.0), epsilon=3.0, delta=0.0) == 3000
    real = api.epsilon

    def without_groups(event, delta, **options):
        if isinstance(event, acc.Group):
            raise UnsupportedEventError("no groups here")
        return real(event, delta, **options)

    monkeypatch.setattr(api, "epsilon", without_groups)
    event = acc.Composed((acc.Laplace(10.0), acc.PoissonSampled(0.1, acc.Laplace(5.0))))
    size = calibrate_group_size(event, epsilon=1.0, delta=0.0)
    single = 0.1 + math.log1p(0.1 * math.expm1(0.2))
    assert size == math.floor(1 / single) == 8
    assert epsilon_of_group(event, size, 0.0) == groups.group_epsilon(event, 0.0, size)


@pytest.mark.parametrize("epsilon", [0.5, 0.02])
def test_schedules_of_many_different_parts(epsilon):
    """50 values of σ with 50 of q: every part is another event."""

    def make(noise):
        return acc.Composed(
            tuple(
                acc.SelfComposed(acc.PoissonSampled(0.005 + i / 10_000, acc.Gaussian(noise * (1 + i / 50))), 20)
                for i in range(50)
            )
        )

    noise = acc.calibrate(make, epsilon=epsilon, delta=1e-5)
    assert acc.epsilon(make(noise), 1e-5) <= epsilon < acc.epsilon(make(noise * (1 - 3e-4)), 1e-5)


def test_targets_that_are_not_epsilon_are_the_trade_off_functions():
    make = run_of(0.02, 200)
    noise = acc.calibrate(make, advantage=0.1)
    assert noise == tradeoffs.calibrate_to_advantage(make, 0.1)
    assert tradeoffs.attack_metrics(make(noise)).advantage <= 0.1
    noise = acc.calibrate(acc.Gaussian, tpr=0.05, fpr=0.01)
    assert tradeoffs.attack_metrics(acc.Gaussian(noise), false_positive_rates=[0.01]).tpr_at_fpr[0.01] <= 0.05
    # f = Φ(Φ⁻¹(0.99) − μ) = 0.95
    exact = math.sqrt(2) * (mpmath.erfinv(0.98) - mpmath.erfinv(0.9))
    assert noise == pytest.approx(float(1 / exact), rel=1e-4)


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ({}, "nothing"),
        ({"epsilon": 1.0}, "delta"),
        ({"delta": 1e-5}, "nothing"),
        ({"advantage": 0.1, "delta": 1e-5}, "delta"),
        ({"tpr": 0.1}, "fpr"),
        ({"advantage": 0.1, "fpr": 0.1}, "fpr"),
        ({"epsilon": 1.0, "delta": 1e-5, "advantage": 0.1}, "advantage"),
        ({"advantage": 0.1, "accountant": "rdp"}, "accountant"),
        ({"advantage": 1.0}, "advantage"),
        ({"tpr": 0.01, "fpr": 0.02}, "tpr"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta"),
        ({"epsilon": 1.0, "delta": 1e-5, "neighboring_relation": "both"}, "neighboring_relation"),
        ({"epsilon": 1.0, "delta": 1e-5, "accountant": "none"}, "accountant"),
    ],
)
def test_calibrate_takes_exactly_one_target(target, names):
    with pytest.raises(ConfigError, match=names):
        acc.calibrate(acc.Gaussian, **target)


@pytest.mark.parametrize("bad", [-1.0, math.inf, math.nan, "1"])
def test_bad_values_of_the_other_calibrations_are_refused(bad):
    good = {"epsilon": 1.0, "delta": 1e-5}
    for name in good:
        options = {**good, name: bad}
        with pytest.raises(ConfigError, match=name):
            calibrate_sample_rate(lambda q: acc.PoissonSampled(q, acc.Gaussian(1.0)), **options)
        with pytest.raises(ConfigError, match=name):
            calibrate_group_size(acc.Gaussian(1.0), **options)
        with pytest.raises(ConfigError, match=name):
            acc.calibrate_steps(lambda k: acc.NoOp(), **options)
    for rate in (bad, 0.0):
        with pytest.raises(ConfigError, match="sample_rate"):
            calibrate_epochs(lambda k: acc.NoOp(), rate, **good)
    with pytest.raises(ConfigError, match="limit"):
        acc.calibrate_steps(lambda k: acc.NoOp(), **good, limit=0)


def test_what_no_accountant_bounds_is_refused_by_name():
    with pytest.raises(UnsupportedEventError, match="gdp"):
        acc.calibrate(run_of(0.1, 10), epsilon=1.0, delta=1e-5, accountant="gdp")
    with pytest.raises(UnsupportedEventError, match="randomized_response"):
        calibrate_group_size(acc.RandomizedResponse(0.5), epsilon=1.0, delta=1e-5)


def test_an_accountant_that_jumps_or_an_event_that_breaks_the_rule_cannot_pass_the_budget(monkeypatch):
    """ε that is not monotone in the noise: the answer was seen to hold all the same."""

    def odd(event, delta, **_):
        noise = event.noise_multiplier
        return 1 / noise * (3.0 if int(noise * 7) % 2 else 1.0)

    for target in (0.05, 0.3, 1.0, 2.9):
        with monkeypatch.context() as patch:
            patch.setattr(api, "epsilon", odd)
            noise = acc.calibrate(acc.Gaussian, epsilon=target, delta=1e-5)
        assert odd(acc.Gaussian(noise), 1e-5) <= target


def test_a_proposal_on_the_optimistic_side_is_repaired_by_the_check(monkeypatch):
    real = calibration._proposal
    monkeypatch.setattr(calibration, "_proposal", lambda *a: real(*a) - 0.01)
    noise = acc.calibrate(run_of(0.05, 50), epsilon=1.0, delta=1e-6)
    assert acc.epsilon(run_of(0.05, 50)(noise), 1e-6) <= 1.0


def test_trajectory():
    step = acc.PoissonSampled(0.05, acc.Gaussian(1.5))
    steps = [0, 1, 10, 50, 100]
    found = acc.trajectory(lambda k: acc.SelfComposed(step, k), steps, 1e-5)
    for name in ("best", "rdp", "zcdp"):
        values = getattr(found, name)
        assert values[0] == 0.0
        assert all(a <= b for a, b in pairwise(values))
        assert values[-1] == acc.epsilon(acc.SelfComposed(step, 100), 1e-5, accountant=name)
    assert all(b <= r <= z for b, r, z in zip(found.best, found.rdp, found.zcdp, strict=True))
    assert "amplification" in found.notes["zcdp"]
    refused = acc.trajectory(lambda k: acc.SelfComposed(acc.ObjectivePerturbation(4, 1, 1), k), [1], 1e-5)
    assert refused.zcdp is None
    assert "objective_perturbation" in refused.notes["zcdp"]
    with pytest.raises(ConfigError, match="steps"):
        acc.trajectory(lambda k: step, [3, 2], 1e-5)


FACTS = {"n_declared": 10_000, "n_features": 100, "epsilon": 0.5, "delta": 1e-5}


def test_guidance_is_the_rule():
    """n = √100·√ln(1e5)/(0.5·0.05²) = 27,144.8…, by hand."""
    found = acc.guidance(**FACTS)
    needed = 10 * math.sqrt(math.log(1e5)) / (0.5 * 0.0025)
    assert found["required_n"] == math.ceil(needed) == 27145
    assert found["factor"] == pytest.approx(2.71448, rel=1e-5)
    assert not found["enough"]
    assert "too small by x2.71" in found["text"]
    for way_out in ("more data", "larger epsilon", "fewer features"):
        assert way_out in found["text"]
    assert found["achievable_excess_risk"] == pytest.approx(0.05 * math.sqrt(needed / 10_000), rel=1e-12)
    assert acc.guidance(**{**FACTS, "n_declared": 27_145})["enough"]
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize(
    ("method", "key", "name"),
    [
        ("output", "output", "output perturbation"),
        ("objective", "objective", "objective perturbation"),
        ("dp_gd", "dp_sgd", "noisy gradient descent"),
        ("adassp", "dp_sgd", "noisy gradient descent, for orientation"),
    ],
)
def test_sharper_numbers_are_those_of_the_method(method: str, key: str, name: str, relation: str) -> None:
    """As ``python -m dpml.sample_size`` has them (its own tests derive them)."""
    found = acc.guidance(**FACTS, neighboring_relation=relation, method=method, norm_bound=1.5)
    assert found["sharper"]["for"] == name
    assert f"logistic loss by {name}; for a solution of norm R" in found["text"]
    for row in found["sharper"]["rows"]:
        setting = Setting(FACTS["delta"], 1.5, row["solution_norm"], relation)
        given = (FACTS["n_features"], FACTS["epsilon"], 0.05, setting)
        assert row["n_privacy"] == math.ceil(METHODS[key].n(*given))
        assert row["excess_bound"] == METHODS[key].excess_risk(FACTS["n_declared"], *given[:2], setting)
        assert (row["excess_expected"] is None) == (method == "output")
    assert ("-> expected" in found["text"]) == (method != "output")


@pytest.mark.parametrize(
    ("method", "why"), [("pure", "has no delta"), ("network", "not about networks"), ("other loss", "bounded slope")]
)
def test_runs_without_sharper_numbers_say_why(method: str, why: str) -> None:
    found = acc.guidance(**FACTS, method=method)
    assert found["sharper"]["rows"] == []
    assert why in found["text"]
    assert "R =" not in found["text"]


def test_sharper_pair_doubles_under_replace_one():
    one = acc.guidance(**FACTS)["sharper"]
    two = acc.guidance(**FACTS, neighboring_relation="replace_one")["sharper"]
    s = acc.gaussian_noise_multiplier(0.5, 1e-5)
    assert one["noise_multiplier"] == s
    assert two["noise_multiplier"] == 2 * s
    row = one["rows"][1]
    assert row["solution_norm"] == 10
    assert row["n_privacy"] == math.ceil(10 * 10 * s / 0.05)
    assert row["n_statistics"] == 40_000
    assert row["excess_bound"] == pytest.approx(100 * s / 10_000)
    assert row["excess_expected"] == pytest.approx(row["excess_bound"] / 1.4)


@pytest.mark.parametrize("missing", ["n", "d", "epsilon", "excess_risk"])
def test_solve_inverts_the_rule(missing):
    given_values = {"d": 100.0, "epsilon": 0.5, "excess_risk": 0.05}
    given_values["n"] = sample_size.required_n(n_features=100, epsilon=0.5, delta=1e-5, excess_risk=0.05)
    expected = given_values.pop(missing)
    assert sample_size.solve(**given_values, delta=1e-5) == (missing, pytest.approx(expected, rel=1e-12))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"n_declared": 0}, "n_declared"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"excess_risk": -1}, "excess"),
    ],
)
def test_guidance_refuses_bad_values(change, name):
    with pytest.raises(ConfigError, match=name):
        acc.guidance(**{**FACTS, **change})
