"""Each privacy-critical line of private linear regression, broken on purpose: the named check must fail, and pass when
whole."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "erm"))

import linear_checks as checks

from dpml.erm import ball, linear, output

JOINT = linear.joint_sensitivity


def caught(check, *arguments):
    """The check finds the fault (a fault that crashes the fit would not count)."""
    with pytest.raises(AssertionError):
        check(*arguments)


WRONG_SENSITIVITIES = {
    "R instead of R²": lambda r, c, relation: JOINT(r, c, relation) / r,
    "R instead of R² for XᵀX alone": lambda r, c, relation: (
        math.hypot(r, c * r) * (1 if relation == "add_remove" else math.sqrt(2))
    ),
    "target forgotten": lambda r, c, relation: JOINT(r, 0.0, relation),
    "factor of replace_one forgotten": lambda r, c, relation: (
        JOINT(r, c, "add_remove") / (2 if relation == "add_remove" else 1)
    ),
}


@pytest.mark.parametrize("relation", checks.RELATIONS)
@pytest.mark.parametrize("bug", WRONG_SENSITIVITIES)
def test_wrong_sensitivity_of_the_statistics(bug, relation, monkeypatch):
    checks.check_statistics_distance(relation)
    checks.check_exact_attack(relation, "sufficient_statistics")
    checks.check_noise_law(relation)
    monkeypatch.setattr(linear, "joint_sensitivity", WRONG_SENSITIVITIES[bug])
    caught(checks.check_statistics_distance, relation)
    caught(checks.check_exact_attack, relation, "sufficient_statistics")
    caught(checks.check_noise_law, relation)


def test_replace_one_calibrated_as_add_remove(monkeypatch):
    """The events count half of the distance under replace_one: dividing by 2 twice is one 2 too many."""
    checks.check_exact_attack("replace_one", "sufficient_statistics")
    monkeypatch.setattr(linear, "changed_records", lambda relation: 1 if relation == "add_remove" else 4)
    caught(checks.check_exact_attack, "replace_one", "sufficient_statistics")


def test_one_noise_for_both_statistics(monkeypatch):
    """The noise on Xᵀy is a row of that on XᵀX."""
    checks.check_exact_attack("add_remove", "sufficient_statistics")

    def reused(plan, gram, cross, noise):
        draws = noise.normal(plan.gram_std, gram.shape)
        symmetric = (draws + draws.T) / 2
        return gram + symmetric, cross + draws[0] / plan.cross_weight

    monkeypatch.setattr(linear, "noisy_statistics", reused)
    caught(checks.check_exact_attack, "add_remove", "sufficient_statistics")


def test_noise_of_the_upper_triangle_only(monkeypatch):
    checks.check_exact_attack("add_remove", "sufficient_statistics")
    checks.check_noise_law()

    def asymmetric(plan, gram, cross, noise):
        noisy = gram + np.triu(noise.normal(plan.gram_std, gram.shape))
        return noisy, cross + noise.normal(plan.cross_std, cross.shape)

    monkeypatch.setattr(linear, "noisy_statistics", asymmetric)
    caught(checks.check_exact_attack, "add_remove", "sufficient_statistics")
    caught(checks.check_noise_law)


def test_symmetric_noise_halved_twice(monkeypatch):
    """An upper triangle of variance ½ that is mirrored and then averaged once more."""
    honest = linear.noisy_statistics

    def halved(plan, gram, cross, noise):
        noisy, noisy_cross = honest(plan, gram, cross, noise)
        return gram + (noisy - gram) / math.sqrt(2.0), noisy_cross

    checks.check_exact_attack("add_remove", "sufficient_statistics")
    monkeypatch.setattr(linear, "noisy_statistics", halved)
    caught(checks.check_exact_attack, "add_remove", "sufficient_statistics")
    caught(checks.check_noise_law)


def test_least_eigenvalue_without_noise(monkeypatch):
    checks.check_exact_attack("add_remove", "adassp")
    monkeypatch.setattr(linear, "noisy_minimum", lambda plan, gram, noise: float(np.linalg.eigvalsh(gram)[0]))
    caught(checks.check_exact_attack, "add_remove", "adassp")


def test_least_eigenvalue_not_paid_for(monkeypatch):
    """The joint release takes the whole budget beside λ_min."""
    checks.check_exact_attack("add_remove", "adassp")
    monkeypatch.setattr(linear, "_shares", lambda adaptive: (0.5, 1.0) if adaptive else (1.0,))
    monkeypatch.setattr(linear, "_adaptive_event", linear.Gaussian)
    caught(checks.check_exact_attack, "add_remove", "adassp")


def test_least_eigenvalue_of_sensitivity_r(monkeypatch):
    checks.check_minimum_distance()
    monkeypatch.setattr(linear, "minimum_sensitivity", lambda norm_bound: norm_bound)
    caught(checks.check_minimum_distance)
    caught(checks.check_exact_attack, "add_remove", "adassp")


@pytest.mark.parametrize("relation", checks.RELATIONS)
def test_target_not_clipped(relation, monkeypatch):
    checks.check_statistics_distance(relation)
    honest = linear.bounded_rows
    monkeypatch.setattr(linear, "bounded_rows", lambda x, y, **rest: (honest(x, y, **rest)[0], np.asarray(y)))
    caught(checks.check_statistics_distance, relation)
    caught(checks.check_exact_attack, relation, "sufficient_statistics")


def test_rows_not_held_to_the_norm_bound(monkeypatch):
    monkeypatch.setattr(linear, "bounded_rows", lambda x, y, **rest: (np.asarray(x), np.clip(y, -1, 1)))
    caught(checks.check_statistics_distance, "add_remove")
    caught(checks.check_exact_attack, "add_remove", "sufficient_statistics")


@pytest.mark.parametrize("relation", checks.RELATIONS)
def test_noise_seen_by_half_in_the_ball(relation, monkeypatch):
    checks.check_ball_noise_scale(relation)
    honest = ball.add_gaussian
    monkeypatch.setattr(
        ball,
        "add_gaussian",
        lambda v, *, noise_multiplier, **rest: honest(v, noise_multiplier=noise_multiplier / 2, **rest),
    )
    caught(checks.check_ball_noise_scale, relation)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda lipschitz, r, s: lipschitz / r,
        lambda lipschitz, r, s: r * r * s,
        lambda lipschitz, r, s: r,
    ],
    ids=["R instead of R²", "target forgotten", "solution norm forgotten"],
)
def test_wrong_lipschitz_constant_over_the_ball(wrong, monkeypatch):
    checks.check_ball_distance("add_remove")
    honest = ball.ridge_output_sensitivity

    def broken(*, norm_bound, solution_norm, **rest):
        lipschitz = norm_bound * (norm_bound * solution_norm + 1.0)
        share = wrong(lipschitz, norm_bound, solution_norm) / lipschitz
        return share * honest(norm_bound=norm_bound, solution_norm=solution_norm, **rest)

    monkeypatch.setattr(ball, "ridge_output_sensitivity", broken)
    caught(checks.check_ball_distance, "add_remove")
    caught(checks.check_ball_noise_scale)


def test_factor_of_replace_one_forgotten_over_the_ball(monkeypatch):
    checks.check_ball_distance("replace_one")
    honest = ball.ridge_output_sensitivity
    monkeypatch.setattr(ball, "ridge_output_sensitivity", lambda *, changed, **rest: honest(changed=1, **rest))
    caught(checks.check_ball_distance, "replace_one")
    caught(checks.check_ball_noise_scale, "replace_one")


def test_minimum_not_held_to_the_ball(monkeypatch):
    """Unconstrained, a record moves the minimum by more than L/λ of the ball."""
    honest = ball.minimise_in_ball
    checks.check_ball_distance("add_remove")
    monkeypatch.setattr(ball, "minimise_in_ball", lambda x, y, lam, radius, tol: honest(x, y, lam, 1e6, tol))
    honest_pull = checks.pull
    monkeypatch.setattr(checks, "pull", lambda r: tuple(np.concatenate([part] * 20) for part in honest_pull(r)))
    caught(checks.check_ball_distance, "add_remove")


@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_approximation_left_out_or_counted_once(factor, monkeypatch):
    checks.check_ball_slack()
    slack = output.approximation_slack
    monkeypatch.setattr(output, "approximation_slack", lambda *both: (factor or 1e-9) * slack(*both))
    caught(checks.check_ball_slack)


def test_residual_without_the_way_to_the_sphere(monkeypatch):
    checks.check_residual_is_honest()
    monkeypatch.setattr(
        ball,
        "kkt_residual",
        lambda x, y, lam, radius, theta, mu: float(np.linalg.norm(ball.kkt_gradient(x, y, lam, theta, mu))),
    )
    caught(checks.check_residual_is_honest)


@pytest.mark.parametrize("name", ["fit_adassp", "fit_output_ridge"])
def test_charge_after_use(name, monkeypatch):
    module, a_plan = (linear, checks.plan()) if name == "fit_adassp" else (ball, checks.output_plan())
    checks.check_charge_comes_first(a_plan)
    honest = getattr(module, name)

    def late(plan, x, y, *, noise, charge):
        result = honest(plan, x, y, noise=noise, charge=lambda event: None)
        charge(plan.event)
        return result

    monkeypatch.setattr(module, name, late)
    caught(checks.check_charge_comes_first, a_plan)


def test_nan_takes_part(monkeypatch):
    a_plan = checks.plan()
    checks.check_records_with_nan_change_nothing(a_plan)
    honest = linear.bounded_rows
    monkeypatch.setattr(linear, "bounded_rows", lambda x, y, **rest: honest(np.nan_to_num(x), np.nan_to_num(y), **rest))
    caught(checks.check_records_with_nan_change_nothing, a_plan)
