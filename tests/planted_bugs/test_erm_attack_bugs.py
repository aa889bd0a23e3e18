"""Planted bugs of private ERM that the *attacks* on tiny problems must find: one seam broken, the same attack then
reports a violation (found ÷ promised above 1), and none when whole.  Nothing is random: no false alarms.

λ is chosen, where it is, so that the Jacobian constant takes most of ε: then a constant that is too small shows.
"""

import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "statistical"))

import attack_fits as fits
import attack_tools as tools
from attack_fits import PARAMETERS, output_plan, plan

from dpml.accounting import objective as accountant
from dpml.erm import ball, losses, objective, output, problems, published, rules
from dpml.erm import gradient_descent as gd

VIOLATION = 1 + 1e-7
N = 100
NORM_GAMMA = sys.modules["dpml.mechanisms.norm_gamma"]


def found(attack, make):
    """Whether the attack on a freshly made plan reports a violation; sums in the plane are good to 1 %."""
    a_plan = make()
    result = attack(a_plan)
    threshold = 1.01 if a_plan.n_features == 2 and a_plan.delta > 0 else VIOLATION
    return (result[0] if isinstance(result, tuple) else result) > threshold


def constants_times(monkeypatch, factor):
    """Every curvature bound of a loss of one score times ``factor(R)``."""
    honest = losses._scaled

    def wrong(slope, curvature, norm_bound):
        true = honest(slope, curvature, norm_bound)
        return replace(true, smoothness=true.smoothness * factor(norm_bound))

    monkeypatch.setattr(losses, "_scaled", wrong)


# ------------------------------------------------------------------------------------------- the Jacobian constant

PURE = [("pure", "smoothed_hinge", "add_remove"), ("pure", "huber", "add_remove"), ("pure", "logistic", "add_remove")]
PURE += [("pure", "smoothed_hinge", "replace_one"), ("pure", "huber", "replace_one")]
DEFAULT = [("default", loss, relation) for loss in PARAMETERS for relation in ("add_remove", "replace_one")]


@pytest.mark.parametrize("dimensions", [1, 2])
@pytest.mark.parametrize(("variant", "loss", "relation"), PURE)
def test_r_instead_of_r_squared_in_the_jacobian(variant, loss, relation, dimensions, monkeypatch):
    def make():
        return plan(variant, loss, relation, share=0.95, n_features=dimensions)

    assert not found(tools.attack, make)
    constants_times(monkeypatch, lambda radius: 1 / radius)
    assert found(tools.attack, make)


@pytest.mark.parametrize(("variant", "loss", "relation"), PURE)
def test_half_of_the_jacobian_in_pure_variants(variant, loss, relation, monkeypatch):
    """ln(1 + β/(2λ))."""

    def make():
        return plan(variant, loss, relation, share=0.95)

    assert not found(tools.attack, make)
    constants_times(monkeypatch, lambda radius: 0.5)
    assert found(tools.attack, make)


BROKEN_CONSTANTS = {
    "ln(1 + β/(2λ))": lambda atom: math.log1p(atom.curvature_bound * atom.norm_bound**2 / (2 * atom.lambda_sum)),
    "R instead of R²": lambda atom: math.log1p(atom.curvature_bound * atom.norm_bound / atom.lambda_sum),
    "no constant": lambda atom: 0.0,
}


@pytest.mark.parametrize(("variant", "loss", "relation"), DEFAULT)
def test_the_accountants_jacobian(variant, loss, relation, monkeypatch):
    def make():
        return plan(variant, loss, relation, share=0.999)

    assert not found(tools.attack, make)
    for broken in BROKEN_CONSTANTS.values():
        monkeypatch.setattr(accountant, "jacobian_constant", broken)
        assert found(tools.attack, make)


@pytest.mark.parametrize(
    ("variant", "relation"), [("pure", "add_remove"), ("pure", "replace_one"), ("default", "add_remove")]
)
def test_curvature_of_the_hinge_taken_from_logistic_loss(variant, relation, monkeypatch):
    """1/4 instead of 1/(2h) = 1; λ is as small as that allows."""
    make = partial(plan, variant, "smoothed_hinge", relation, share=0.95)
    assert not found(tools.attack, make)
    monkeypatch.setattr(losses.SmoothedHinge, "curvature_bound", 0.25)
    assert found(tools.attack, make)


def test_no_jacobian_price_below_its_lambda(monkeypatch):
    """The theorem of logistic loss, used for λ = R/ε with R = 12 instead of R²/ε (R forgot its square)."""
    make = partial(plan, norm_bound=12.0)
    assert not found(tools.attack, make)
    monkeypatch.setattr(objective, "objective_lambda", lambda *, norm_bound, epsilon, **rest: norm_bound / epsilon)
    monkeypatch.setattr(accountant, "jacobian_constant", lambda atom: 0.0)
    assert found(tools.attack, make)


# ------------------------------------------------------------------------------------------- slopes and relations


def event_with(monkeypatch, **wrong):
    honest = objective.ObjectivePerturbation
    monkeypatch.setattr(objective, "ObjectivePerturbation", lambda **given: honest(**{**given, **wrong}))


@pytest.mark.parametrize(("relation", "dimensions"), [("add_remove", 1), ("add_remove", 2), ("replace_one", 2)])
def test_slope_of_huber_loss_forgotten(relation, dimensions, monkeypatch):
    """|ℓ'| ≤ 2 for threshold 2, accounted as 1.  (In one dimension two such records cannot both be extreme.)"""
    large = {"n_features": dimensions, "delta": 1e-3, "regularization": 0.2}
    make = partial(plan, "default", "huber", relation, parameter=2.0, **large)
    assert not found(tools.attack, make)
    event_with(monkeypatch, slope_bound=1.0)
    assert found(tools.attack, make)


def test_general_loss_accounted_as_monotone(monkeypatch):
    """Huber's slope has both signs, so both tails of b give the record away: 2 H instead of H.  Seen where δ is large
    and c₀ small beside ε."""
    make = partial(plan, "default", "huber", epsilon=17.5, delta=0.2, regularization=4.0 / 5 / N)
    assert not found(tools.attack, make)
    event_with(monkeypatch, loss="monotone")
    assert found(tools.attack, make)


@pytest.mark.parametrize(
    ("variant", "loss", "dimensions"),
    [
        ("default", "logistic", 2),
        ("default", "smoothed_hinge", 1),
        ("default", "huber", 1),
        ("pure", "smoothed_hinge", 1),
        ("pure", "huber", 2),
        ("pure", "logistic", 2),
    ],
)
def test_noise_of_add_remove_for_replace_one(variant, loss, dimensions):
    """The relation swapped: a plan of one relation, used under the other."""
    make = partial(plan, variant, loss, n_features=dimensions, delta=1e-3, regularization=0.4)
    assert not found(tools.attack, make)
    assert found(tools.attack, lambda: tools.swapped(make(), "replace_one"))


@pytest.mark.parametrize("loss", ["smoothed_hinge", "huber"])
def test_calibrated_for_the_other_relation(loss, monkeypatch):
    make = partial(plan, "default", loss, "replace_one", regularization=0.4)
    assert not found(tools.attack, make)
    honest = objective.calibrate
    monkeypatch.setattr(
        objective, "calibrate", lambda *args, **rest: honest(*args, **{**rest, "neighboring_relation": "add_remove"})
    )
    assert found(tools.attack, make)


@pytest.mark.parametrize("loss", ["smoothed_hinge", "huber"])
def test_two_forgotten_in_the_pure_scale(loss, monkeypatch):
    make = partial(plan, "pure", loss, "replace_one")
    assert not found(tools.attack, make)
    monkeypatch.setattr(objective, "changed_records", lambda relation: 1)
    assert found(tools.attack, make)


@pytest.mark.parametrize("loss", ["smoothed_hinge", "huber"])
def test_two_forgotten_in_cms11(loss, monkeypatch):
    make = partial(plan, "cms11", loss, "replace_one")
    assert not found(tools.attack, make)
    honest = published.cms11

    def half(*arguments):
        reduced, extra, scale = honest(*arguments)
        return reduced, extra, scale / 2

    monkeypatch.setattr(published, "cms11", half)
    assert found(tools.attack, make)


# ---------------------------------------------------------------------------------------------- one against the rest


@pytest.mark.parametrize("variant", ["default", "pure", "cms11"])
@pytest.mark.parametrize("loss", ["logistic", "smoothed_hinge"])
def test_each_class_with_the_whole_budget(variant, loss, monkeypatch):
    relation = "replace_one" if variant == "cms11" else "add_remove"
    large = {"regularization": 0.4, "delta": 1e-3}
    make = partial(plan, variant, loss, relation, n_classes=3, **large)
    assert not found(tools.attack, make)
    monkeypatch.setattr(objective, "problem_count", lambda *arguments: 1)
    assert found(tools.attack, make)


# ------------------------------------------------------------------------------------------------------------ the fit


def unregularised_last(monkeypatch):
    """λ is divided by 900 for the last coefficient."""
    honest = problems.minimise

    def wrong(x, y, lambda_sum, linear=None, **rest):
        scale = np.ones(x.shape[1])
        scale[-1] = 30.0
        solution = honest(x * scale, y, lambda_sum, linear=None if linear is None else linear * scale, **rest)
        return replace(solution, theta=solution.theta * scale)

    monkeypatch.setattr(problems, "minimise", wrong)


def attack_crowded(a_plan):
    return fits.attack_fit(a_plan, *fits.crowded(a_plan))


def test_unregularised_intercept_in_objective_perturbation(monkeypatch):
    make = partial(plan, n_features=2, regularization=0.1, delta=1e-2)
    assert not found(attack_crowded, make)
    unregularised_last(monkeypatch)
    assert found(attack_crowded, make)


@pytest.mark.parametrize("loss", ["logistic", "smoothed_hinge", "huber"])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_unregularised_intercept_in_output_perturbation(loss, relation, monkeypatch):
    make = partial(output_plan, loss, relation, n_features=2)
    assert not found(fits.attack_output, make)
    unregularised_last(monkeypatch)
    assert found(fits.attack_output, make)


@pytest.mark.parametrize("loss", ["smoothed_hinge", "huber"])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_approximation_counted_once_in_output_perturbation(loss, relation, monkeypatch):
    """τ/λ instead of 2τ/λ: the solver errs apart, and the density ratio of Gamma noise is 1 + 10⁻⁶/2 of ε and more."""
    make = partial(output_plan, loss, relation, noise="gamma")
    assert not found(fits.attack_output, make)
    honest = rules.approximation_slack
    monkeypatch.setattr(output, "approximation_slack", lambda *both: honest(*both) / 2)
    assert found(fits.attack_output, make)


@pytest.mark.parametrize("variant", ["default", "pure"])
@pytest.mark.parametrize("classes", [2, 3])
def test_approximation_counted_once_in_objective_perturbation(variant, classes, monkeypatch):
    make = partial(plan, variant, n_classes=classes)
    assert not found(fits.attack_output_noise, make)
    honest = rules.approximation_slack
    monkeypatch.setattr(objective, "approximation_slack", lambda *both: honest(*both) / 2)
    assert found(fits.attack_output_noise, make)


# -------------------------------------------------------------------------------------------- output perturbation


@pytest.mark.parametrize("noise", ["gaussian", "gamma"])
@pytest.mark.parametrize(("loss", "dimensions"), [("smoothed_hinge", 1), ("huber", 1), ("logistic", 2), ("softmax", 1)])
def test_output_noise_of_add_remove_for_replace_one(loss, dimensions, noise, monkeypatch):
    classes = 3 if loss == "softmax" else 2
    make = partial(output_plan, loss, "replace_one", noise=noise, n_features=dimensions, n_classes=classes)
    assert not found(fits.attack_output, make)
    honest = output.output_sensitivity
    monkeypatch.setattr(output, "output_sensitivity", lambda *, changed, **rest: honest(changed=1, **rest))
    assert found(fits.attack_output, make)


@pytest.mark.parametrize("noise", ["gaussian", "gamma"])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_root_two_of_softmax_forgotten(relation, noise, monkeypatch):
    make = partial(output_plan, "softmax", relation, noise=noise, n_classes=3)
    assert not found(fits.attack_output, make)
    honest = output.softmax_constants
    monkeypatch.setattr(output, "softmax_constants", lambda r, k: replace(honest(r, k), lipschitz=r))
    assert found(fits.attack_output, make)


@pytest.mark.parametrize("noise", ["gaussian", "gamma"])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("loss", ["logistic", "smoothed_hinge"])
def test_root_of_the_number_of_problems_forgotten(loss, relation, noise, monkeypatch):
    if (loss, relation) == ("logistic", "replace_one"):
        relation = "add_remove"  # in one dimension both slopes of logistic loss cannot be extreme
    make = partial(output_plan, loss, relation, noise=noise, n_classes=3)
    assert not found(fits.attack_output, make)
    honest = output._constants
    monkeypatch.setattr(output, "_constants", lambda *arguments: (honest(*arguments)[0], 1))
    assert found(fits.attack_output, make)


@pytest.mark.parametrize("dimensions", [1, 2])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_gamma_noise_of_one_degree_less(relation, dimensions, monkeypatch):
    """The norm a sum of d − 1 exponentials: the density has a pole at the centre."""
    make = partial(output_plan, "smoothed_hinge", relation, noise="gamma", n_features=2, n_classes=dimensions + 1)
    assert not found(fits.attack_output, make)
    honest = NORM_GAMMA.norm_gamma

    class OneLess:
        def __init__(self, noise):
            self.normal = noise.normal
            self.uniform = lambda size: np.append(noise.uniform(size)[:-1], 0.0)

    monkeypatch.setattr(
        NORM_GAMMA, "norm_gamma", lambda shape, *, scale, noise: honest(shape, scale=scale, noise=OneLess(noise))
    )
    assert found(fits.attack_output, make)


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_ball_radius_forgotten_in_ridge(relation, monkeypatch):
    """L = R(R S + 1) taken as R."""

    def make():
        return ball.plan_output_ridge(
            n_declared=1, n_features=1, epsilon=1.0, delta=1e-5, neighboring_relation=relation, norm_bound=2.0,
            solution_norm=2.0, regularization=80.0,
        )  # fmt: skip

    assert not found(fits.attack_output, make)
    honest = losses.Squared.constants
    monkeypatch.setattr(
        losses.Squared, "constants", lambda self, norm_bound: replace(honest(self, norm_bound), lipschitz=norm_bound)
    )
    assert found(fits.attack_output, make)


# ------------------------------------------------------------------------------------------------ gradient descent


def descent_plan(loss, relation):
    return gd.plan_dp_gd(
        n_declared=N, n_features=2, epsilon=1.0, delta=1e-5, neighboring_relation=relation, norm_bound=2.0, loss=loss
    )


def test_descent_with_noise_of_add_remove(monkeypatch):
    make = partial(descent_plan, losses.SmoothedHinge(0.5), "replace_one")
    attack = partial(fits.attack_descent, targets=(-1, 1))
    assert not found(attack, make)
    honest = gd.calibrate
    monkeypatch.setattr(
        gd, "calibrate", lambda *args, **rest: honest(*args, **{**rest, "neighboring_relation": "add_remove"})
    )
    assert found(attack, make)


def test_descent_without_root_two_of_softmax(monkeypatch):
    make = partial(descent_plan, gd.Softmax(3), "add_remove")
    attack = partial(fits.attack_descent, targets=(0, 1, 2))
    assert not found(attack, make)
    honest = gd.softmax_constants
    monkeypatch.setattr(gd, "softmax_constants", lambda r, k: replace(honest(r, k), lipschitz=r))
    assert found(attack, make)


def test_descent_that_composes_one_step(monkeypatch):
    make = partial(descent_plan, losses.LOGISTIC, "add_remove")
    attack = partial(fits.attack_descent, targets=(-1, 1))
    assert not found(attack, make)
    monkeypatch.setattr(gd, "composed_event", lambda multiplier, steps: gd.Gaussian(multiplier))
    assert found(attack, make)
