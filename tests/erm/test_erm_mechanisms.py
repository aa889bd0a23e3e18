"""Output and objective perturbation: calibration against references, sensitivity, noise, order of events, refusals."""

import json
import math
from pathlib import Path

import erm_checks as checks
import numpy as np
import pytest
from scipy.special import expit

from dpml import accounting, erm, errors
from dpml.mechanisms import FixedNoise

TABLE = json.loads((Path(__file__).parents[1] / "reference" / "private_erm.json").read_text())


def table_rows(quantity):
    found = [row for row in TABLE["rows"] if row["quantity"] == quantity]
    assert found
    return [pytest.param({k: float(v) for k, v in r["inputs"].items()}, float(r["value"]), id=r["id"]) for r in found]


def reference_plan(inputs, relation):
    """A plan with the table's L, n and mean-form λ; logistic loss has L = norm_bound."""
    return erm.plan_output(
        n_declared=int(inputs["n"]),
        n_features=3,
        epsilon=inputs.get("epsilon", 1.0),
        delta=inputs.get("delta", 1e-5),
        neighboring_relation=relation,
        norm_bound=inputs["lipschitz"],
        regularization=inputs["lambda"],
    )


@pytest.mark.parametrize(("inputs", "value"), table_rows("output_sensitivity_add_remove_fixed_n"))
def test_sensitivity_add_remove_is_the_tables_plus_the_approximation(inputs, value):
    got = reference_plan(inputs, "add_remove").sensitivity
    assert value < got <= value * (1 + 1e-5)


@pytest.mark.parametrize(("inputs", "value"), table_rows("output_sensitivity_replace_one"))
def test_sensitivity_replace_one_is_the_tables_plus_the_approximation(inputs, value):
    got = reference_plan(inputs, "replace_one").sensitivity
    assert value < got <= value * (1 + 1e-5)


@pytest.mark.parametrize(("inputs", "value"), table_rows("output_gaussian_sigma_replace_one"))
def test_noise_replace_one_is_the_tables_never_less(inputs, value):
    got = reference_plan(inputs, "replace_one").noise_std
    assert value * (1 - 1e-9) <= got <= value * (1 + 2e-4)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("norm_bound", [0.5, 1.0, 3.0])
def test_objective_noise_is_the_gaussian_mechanisms_own(epsilon, norm_bound):
    """R_x s(ε, δ) < σ ≤ R_x s(0.995 ε, 0.995 δ) for λ ≥ R_x²/ε₁: no Jacobian price; s from the defining equation."""
    a_plan = checks.plan("objective", epsilon=epsilon, norm_bound=norm_bound)
    assert norm_bound * checks.unit_sigma(epsilon, 1e-5) < a_plan.noise_std
    assert a_plan.noise_std <= norm_bound * checks.unit_sigma(0.995 * epsilon, 0.995e-5) * (1 + 2e-4)
    assert a_plan.lambda_sum >= norm_bound**2 / (0.995 * epsilon) * (1 - 1e-12)


@pytest.mark.parametrize("method", checks.METHODS)
@pytest.mark.parametrize("relation", accounting.RELATIONS)
@pytest.mark.parametrize("epsilon", [0.03, 1.0, 20.0])
@pytest.mark.parametrize("regularization", ["auto", 0.05])
def test_the_charged_event_keeps_the_promise_and_describes_the_noise(method, relation, epsilon, regularization):
    if method == "objective" and epsilon == 0.03 and regularization != "auto":
        regularization = 0.5
    a_plan = checks.plan(
        method, epsilon=epsilon, neighboring_relation=relation, regularization=regularization, norm_bound=2.0
    )
    got = accounting.epsilon(a_plan.event, 1e-5, neighboring_relation=relation)
    assert 0.97 * epsilon <= got <= epsilon
    changed = {"add_remove": 1, "replace_one": 2}[relation]
    if method == "output":
        assert a_plan.event == accounting.Gaussian(a_plan.noise_multiplier)
        assert a_plan.noise_std / (a_plan.sensitivity / changed) == pytest.approx(a_plan.noise_multiplier, rel=1e-12)
    else:
        perturbed, covering = a_plan.event.events
        assert (perturbed.noise_std, perturbed.lambda_sum) == (a_plan.noise_std, a_plan.lambda_sum)
        assert perturbed.norm_bound == 2.0
        assert a_plan.output_std / (a_plan.output_sensitivity / changed) == pytest.approx(
            covering.noise_multiplier, rel=1e-12
        )


@pytest.mark.parametrize("relation", accounting.RELATIONS)
def test_output_lambda_minimises_its_own_prediction(relation):
    """The rule's two costs, written out and minimised on a fine grid."""
    a_plan = checks.plan("output", neighboring_relation=relation, norm_bound=2.0, solution_norm=7.0, n_declared=5000)
    changed = {"add_remove": 1, "replace_one": 2}[relation]
    grid = a_plan.lambda_sum * np.geomspace(0.5, 2.0, 20001)
    noise = 6.635 * 5000 * (2.0**2 / 4) * (changed * 2.0 * checks.UNIT_SIGMA / grid) ** 2 / 2
    best = grid[np.argmin(noise + grid * 7.0**2 / 2)]
    assert a_plan.lambda_sum == pytest.approx(best, rel=1e-3)


def test_plans_rest_on_public_values_alone():
    """The actual records appear in no plan; the same public values give the same plan."""
    assert checks.plan("output") == checks.plan("output")
    assert checks.plan("objective") == checks.plan("objective")


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_output_noise_scale(relation):
    checks.check_output_noise_scale(relation)


def test_objective_noise_scale():
    checks.check_objective_noise_scale()


@pytest.mark.parametrize("method", checks.METHODS)
def test_every_coefficient_is_noised(method):
    checks.check_every_coefficient_is_noised(method)


@pytest.mark.parametrize("method", checks.METHODS)
def test_regularization_is_mean_form(method):
    checks.check_regularization_is_mean_form(method)


def test_approximation_is_covered():
    checks.check_approximation_is_covered()


def test_replace_one_distance():
    checks.check_replace_one_distance()


@pytest.mark.parametrize("method", checks.METHODS)
def test_long_rows_are_bounded(method):
    checks.check_long_rows_are_bounded(method)


@pytest.mark.parametrize("method", checks.METHODS)
def test_noise_cannot_be_predicted(method):
    checks.check_noise_cannot_be_predicted(method)


@pytest.mark.parametrize("method", checks.METHODS)
def test_charge_comes_first(method, monkeypatch):
    checks.check_charge_comes_first(method, monkeypatch)


def neighbours(seed, norm_bound):
    """A random or adversarial data set and one record: (x, y, record, label)."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(0, 40)), int(rng.integers(1, 5))
    x = rng.normal(size=(n, d))
    if seed % 3 == 0 and n:  # everybody on one line: no curvature across it
        x = np.outer(np.sign(rng.normal(size=n)), rng.normal(size=d))
    x *= norm_bound / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0) if seed % 2 else np.ones(n)
    record = rng.normal(size=d) if seed % 5 else -x.sum(axis=0) + 1e-9
    return x, y, record * norm_bound / np.linalg.norm(record), float(rng.choice([-1.0, 1.0]))


@pytest.mark.parametrize("norm_bound", [0.4, 1.0, 5.0])
@pytest.mark.parametrize("lambda_sum", [0.05, 1.0, 20.0])
def test_exact_minimisers_are_within_the_sensitivity(norm_bound, lambda_sum):
    """25 random or adversarial data sets, one record added (L/λ) and that record replaced by its worst twin (2L/λ)."""
    largest = 0.0
    for seed in range(25):
        x, y, record, label = neighbours(seed, norm_bound)

        def solve(extra, sign, x=x, y=y):
            return erm.minimise(np.vstack([x, extra]), np.r_[y, sign], lambda_sum, tolerance=1e-8).theta

        alone = erm.minimise(x, y, lambda_sum, tolerance=1e-8).theta
        one, two = solve(record, label), solve(-0.99 * record, label)
        added, replaced = np.linalg.norm(one - alone), np.linalg.norm(one - two)
        slack = 2e-8 / lambda_sum
        assert added <= norm_bound / lambda_sum + slack
        assert replaced <= 2 * norm_bound / lambda_sum + slack
        largest = max(largest, added * lambda_sum / norm_bound)
    assert largest > 0.3 if lambda_sum == 20.0 and norm_bound == 0.4 else largest > 0.0


def test_the_add_remove_sensitivity_is_nearly_reached():
    """A record on the wrong side of a wide margin moves the minimiser by 0.9 L/λ, so L/λ cannot be made smaller."""
    x, _, y = checks.far_replacement()
    far = np.array([[-1.0, 0.0]]) * 0.3 + np.array([[0.0, 1.0]]) * math.sqrt(1 - 0.09)
    without = erm.minimise(x[:-1], y[:-1], 1.0).theta
    with_it = erm.minimise(np.vstack([x[:-1], far]), y, 1.0).theta
    assert 0.8 < np.linalg.norm(with_it - without) <= 1.0


@pytest.mark.parametrize("method", checks.METHODS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_nan_record_changes_nothing(method, bad):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 4)) / 4, np.ones(20)
    a_plan = checks.plan(method)
    dirty = np.vstack([x, [0.1, bad, 0.0, 0.0]])
    one = checks.fit(method, a_plan, x, y, noise=FixedNoise(1))
    two = checks.fit(method, a_plan, dirty, np.r_[y, -1.0], noise=FixedNoise(1))
    assert one == pytest.approx(two, abs=2 * a_plan.tolerance)


@pytest.mark.parametrize("method", checks.METHODS)
def test_one_class_and_no_records_train_as_usual(method):
    a_plan = checks.plan(method)
    assert np.isfinite(checks.fit(method, a_plan, np.full((5, 4), 0.2), np.ones(5))).all()
    assert np.isfinite(checks.fit(method, a_plan, *checks.no_records(4))).all()


@pytest.mark.parametrize("method", checks.METHODS)
def test_a_solver_that_fails_releases_nothing_but_is_charged(method, monkeypatch):
    def fail(*args, **kwargs):
        raise errors.SolverError("no minimum")

    monkeypatch.setattr(checks.problems, "minimise", fail)
    charged = []
    a_plan = checks.plan(method)
    with pytest.raises(errors.SolverError):
        checks.fit(method, a_plan, *checks.no_records(4), charge=charged.append)
    assert charged == [a_plan.event]


@pytest.mark.parametrize("method", checks.METHODS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_declared", 0),
        ("n_declared", 2.5),
        ("n_features", 0),
        ("epsilon", 0.0),
        ("epsilon", -1.0),
        ("epsilon", math.inf),
        ("epsilon", math.nan),
        ("epsilon", None),
        ("delta", 0.0),
        ("delta", 1.0),
        ("delta", math.nan),
        ("norm_bound", None),
        ("norm_bound", 0.0),
        ("norm_bound", math.inf),
        ("solution_norm", 0.0),
        ("solution_norm", math.nan),
        ("regularization", 0.0),
        ("regularization", -1.0),
        ("regularization", math.nan),
        ("regularization", "automatic"),
        ("neighboring_relation", "replace"),
    ],
)
def test_bad_public_values_are_refused_by_name(method, name, value):
    with pytest.raises(errors.ConfigError, match=name):
        checks.plan(method, **{name: value})


def test_regularization_whose_jacobian_price_is_the_whole_budget_is_refused_with_a_way_out():
    with pytest.raises(errors.ConfigError, match=r"regularization = 1e-07.*above.*'auto'"):
        checks.plan("objective", regularization=1e-7)


def test_a_small_regularization_pays_the_jacobian_and_stays_sound():
    """λ below R²/ε: more noise than the free case, and the accountant agrees."""
    free, paid = checks.plan("objective"), checks.plan("objective", regularization=0.5e-3)
    assert paid.lambda_sum == pytest.approx(0.5)
    assert paid.noise_std > 1.1 * free.noise_std
    assert accounting.epsilon(paid.event, 1e-5) <= 1.0


@pytest.mark.parametrize("accountant", ["zcdp", "pld", "gdp"])
def test_accountants_without_a_proof_for_objective_perturbation_are_refused(accountant):
    with pytest.raises(errors.UnsupportedEventError, match=accountant):
        checks.plan("objective", accountant=accountant)


@pytest.mark.parametrize("accountant", ["rdp", "basic", "exact"])
def test_other_accountants_of_objective_perturbation_keep_the_promise(accountant):
    a_plan = checks.plan("objective", accountant=accountant)
    assert accounting.epsilon(a_plan.event, 1e-5, accountant=accountant) <= 1.0


@pytest.mark.parametrize("accountant", ["exact", "rdp", "zcdp", "pld"])
def test_every_accountant_calibrates_output_perturbation(accountant):
    a_plan = checks.plan("output", accountant=accountant)
    assert accounting.epsilon(a_plan.event, 1e-5, accountant=accountant) <= 1.0
    assert a_plan.noise_multiplier >= checks.UNIT_SIGMA * (1 - 1e-9)


def test_private_fit_approaches_the_nonprivate_one_as_epsilon_grows():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(4000, 3)) / 4
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    y = np.where(rng.random(4000) < expit(x @ [6.0, -3.0, 1.0]), 1.0, -1.0)
    target = erm.fit_nonprivate(x, y)
    for method in checks.METHODS:
        near, far = (
            checks.plan(method, n_declared=4000, n_features=3, epsilon=e, solution_norm=100.0) for e in (500.0, 0.05)
        )
        assert np.linalg.norm(checks.fit(method, near, x, y, noise=checks.ZeroNoise()) - target) < 0.5
        assert near.noise_std < far.noise_std


def test_nonprivate_fit_is_the_maximum_likelihood_and_ignores_nan():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 2))
    y = np.where(rng.random(300) < expit(x @ [1.0, -2.0]), 1.0, -1.0)
    theta = erm.fit_nonprivate(np.vstack([x, [np.nan, 0.0]]), np.r_[y, 1.0])
    assert np.linalg.norm(checks.slow_gradient(theta, x, y, 0.01)) <= 1e-4
    assert theta == pytest.approx([1.0, -2.0], abs=0.6)
