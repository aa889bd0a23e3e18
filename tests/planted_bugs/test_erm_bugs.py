"""Each privacy-critical line of private ERM, broken on purpose: the named check must fail, and pass when whole."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "erm"))

import erm_checks as checks

from dpml import mechanisms
from dpml.erm import objective, output, problems, rules, solver
from dpml.mechanisms import FixedNoise


def caught(check, *arguments):
    """The check finds the fault (a fault that crashes the fit would not count)."""
    with pytest.raises(AssertionError):
        check(*arguments)


def test_half_noise_in_output(monkeypatch):
    checks.check_output_noise_scale()
    honest = output.add_gaussian
    monkeypatch.setattr(
        output,
        "add_gaussian",
        lambda v, *, noise_multiplier, **rest: honest(v, noise_multiplier=noise_multiplier / 2, **rest),
    )
    caught(checks.check_output_noise_scale)


def test_half_noise_in_objective(monkeypatch):
    checks.check_objective_noise_scale()
    honest = objective.linear_term
    monkeypatch.setattr(objective, "linear_term", lambda plan, noise: honest(plan, noise) / 2)
    caught(checks.check_objective_noise_scale)


@pytest.mark.parametrize("method", checks.METHODS)
def test_regularization_taken_in_mean_form_by_the_solver(method, monkeypatch):
    checks.check_regularization_is_mean_form(method)
    honest = problems.minimise
    monkeypatch.setattr(problems, "minimise", lambda x, y, lambda_sum, **rest: honest(x, y, lambda_sum / 1000, **rest))
    caught(checks.check_regularization_is_mean_form, method)


@pytest.mark.parametrize("method", checks.METHODS)
def test_regularization_times_the_actual_number_of_records(method, monkeypatch):
    """60 records are there, 1000 are declared."""
    checks.check_regularization_is_mean_form(method)
    monkeypatch.setattr(checks.MODULES[method], "sum_form", lambda regularization, n: 60 * regularization)
    caught(checks.check_regularization_is_mean_form, method)


@pytest.mark.parametrize("factor", [0.0, 0.5])
@pytest.mark.parametrize("module", [output, objective])
def test_approximation_left_out_or_counted_once(module, factor, monkeypatch):
    """Without the 2τ/λ, or with τ/λ (a factor 1 stands in published code)."""
    checks.check_approximation_is_covered()
    slack = rules.approximation_slack
    monkeypatch.setattr(module, "approximation_slack", lambda *both: (factor or 1e-9) * slack(*both))
    caught(checks.check_approximation_is_covered)


def test_replace_one_sensitivity_taken_as_add_remove(monkeypatch):
    checks.check_replace_one_distance()
    monkeypatch.setattr(output, "changed_records", lambda relation: 1)
    caught(checks.check_replace_one_distance)


def test_replace_one_noise_of_add_remove(monkeypatch):
    """The sensitivity has its 2, the noise has not."""
    honest = output.output_sensitivity
    checks.check_output_noise_scale("replace_one")
    monkeypatch.setattr(output, "output_sensitivity", lambda *, changed, **rest: honest(changed=1, **rest))
    caught(checks.check_output_noise_scale, "replace_one")
    caught(checks.check_replace_one_distance)


def without_last(values):
    values = np.array(values)
    values[-1] = 0.0
    return values


def test_unnoised_intercept_in_output(monkeypatch):
    checks.check_every_coefficient_is_noised("output")
    honest = output.add_gaussian

    def forgetful(values, **rest):
        noised = honest(values, **rest)
        noised[-1] = values[-1]
        return noised

    monkeypatch.setattr(output, "add_gaussian", forgetful)
    caught(checks.check_every_coefficient_is_noised, "output")


def test_unnoised_intercept_in_objective(monkeypatch):
    checks.check_every_coefficient_is_noised("objective")
    honest = objective.linear_term
    monkeypatch.setattr(objective, "linear_term", lambda plan, noise: without_last(honest(plan, noise)))
    caught(checks.check_every_coefficient_is_noised, "objective")


@pytest.mark.parametrize("method", checks.METHODS)
def test_noise_seeded_from_a_config_seed(method, monkeypatch):
    checks.check_noise_cannot_be_predicted(method)
    monkeypatch.setattr(mechanisms, "default_noise", lambda: FixedNoise(0))
    caught(checks.check_noise_cannot_be_predicted, method)


class GlobalNoise:
    """Draws from numpy's global generator, as some libraries do."""

    secret = True

    def normal(self, std, shape):
        return std * np.random.standard_normal(shape)  # noqa: NPY002

    def uniform(self, size):
        return np.random.random(size)  # noqa: NPY002


@pytest.mark.parametrize("method", checks.METHODS)
def test_noise_from_the_global_generator(method, monkeypatch):
    checks.check_noise_cannot_be_predicted(method)
    monkeypatch.setattr(mechanisms, "default_noise", GlobalNoise)
    caught(checks.check_noise_cannot_be_predicted, method)


@pytest.mark.parametrize("method", checks.METHODS)
def test_charge_after_use(method, monkeypatch):
    with monkeypatch.context() as whole:
        checks.check_charge_comes_first(method, whole)
    module = checks.MODULES[method]
    honest = getattr(module, f"fit_{method}")

    def late(plan, x, y, *, noise, charge):
        result = honest(plan, x, y, noise=noise, charge=lambda event: None)
        charge(plan.event)
        return result

    monkeypatch.setattr(module, f"fit_{method}", late)
    with monkeypatch.context() as broken:
        caught(checks.check_charge_comes_first, method, broken)


@pytest.mark.parametrize("method", checks.METHODS)
def test_rows_not_held_to_the_norm_bound(method, monkeypatch):
    checks.check_long_rows_are_bounded(method)
    monkeypatch.setattr(problems, "bounded_rows", lambda x, y, **rest: (np.asarray(x), np.asarray(y)))
    caught(checks.check_long_rows_are_bounded, method)


def test_solution_that_is_not_verified(monkeypatch):
    checks.check_solution_is_verified()
    monkeypatch.setattr(solver, "MAX_NEWTON", 0)
    monkeypatch.setattr(solver, "gradient_norm", lambda *arguments: 0.0)
    caught(checks.check_solution_is_verified)
