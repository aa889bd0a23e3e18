"""Calibration never lands above the budget, and not far below it; trajectories; sample sizes; command lines."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpml import account as account_cli
from dpml import accounting as acc
from dpml import sample_size as sample_size_cli
from dpml.accounting import sample_size
from dpml.errors import AccountingError, ConfigError


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
    assert row["excess_expected"] == pytest.approx(row["excess_bound"] / 2.3)


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


def test_sample_size_command(capsys):
    assert sample_size_cli.main(["d=100", "epsilon=0.5", "delta=1e-5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == 27145
    assert sample_size_cli.main(["n=10000", "d=100", "epsilon=0.5", "delta=1e-5"]) == 0
    assert "required n" in capsys.readouterr().out
    for bad in (["n=10"], ["n=10", "d=5", "delta=1e-5", "gamma=1"], ["delta=1e-5"], ["n=x", "delta=1e-5"]):
        assert sample_size_cli.main(bad) == 2
        assert "error:" in capsys.readouterr().err


def call(capsys, *arguments):
    status = account_cli.main([*arguments, "--json"])
    printed = capsys.readouterr()
    return status, json.loads(printed.out) if status == 0 else printed.err


def test_account_command(capsys, tmp_path):
    step = ["--sample-rate", "0.02", "--noise-multiplier", "1.0"]
    event = acc.SelfComposed(acc.PoissonSampled(0.02, acc.Gaussian(1.0)), 100)
    status, found = call(capsys, "epsilon", *step, "--steps", "100", "--delta", "1e-5")
    assert (status, found["epsilon"]) == (0, acc.epsilon(event, 1e-5))
    status, found = call(capsys, "delta", *step, "--steps", "100", "--epsilon", "1", "--accountant", "rdp")
    assert found["delta"] == acc.delta(event, 1.0, accountant="rdp")
    status, found = call(
        capsys, "noise", "--sample-rate", "0.02", "--steps", "100", "--epsilon", "1", "--delta", "1e-5"
    )
    assert found["epsilon"] <= 1.0
    status, found = call(capsys, "steps", *step, "--epsilon", "1", "--delta", "1e-5")
    assert found["epsilon"] <= 1.0
    assert found["steps"] > 0
    status, found = call(capsys, "compare", *step, "--delta", "1e-5")
    assert found["epsilon"]["exact"].startswith("refused")
    path = tmp_path / "event.json"
    path.write_text(json.dumps(event.to_json()))
    status, found = call(
        capsys, "compose", f"@{path}", '{"type": "gaussian", "noise_multiplier": 50}', "--delta", "1e-5"
    )
    assert found["epsilon"] == acc.epsilon(acc.Composed((event, acc.Gaussian(50.0))), 1e-5)
    status, message = call(capsys, "epsilon", "--event", '{"type": "nothing"}', "--delta", "1e-5")
    assert status == 2
    assert "event type" in message
    assert account_cli.main(["epsilon", *step, "--delta", "1e-5"]) == 0
    assert "epsilon: " in capsys.readouterr().out
