"""Objective perturbation: a random linear term in the objective, then an (almost) exact minimum.

    J(θ) = Σᵢ ℓ(xᵢᵀθ, yᵢ) + (λ/2)‖θ‖² + bᵀθ,   b ~ N(0, σ² I),   ‖xᵢ‖ ≤ R_x,   λ = ``lambda_sum`` public.

With logistic loss and λ ≥ R_x²/ε the exact minimum under add_remove is as private as a plain Gaussian mechanism:
σ = R_x · s(ε, δ), no price for the Jacobian.  Other losses of one score, replace_one and K > 2 classes (one against
the rest, their budgets composed) pay ln(1 + β/λ) a problem.  The minimum found is only approximate (‖∇J‖ ≤ τ), so
a little more noise covers the difference and takes ``OUTPUT_SHARE`` of the budget.  Proofs: docs/proofs-objective.md.

``variant`` chooses the calibration: ``"default"``; ``"pure"`` (δ = 0, noise of density ∝ exp(−‖b‖/scale)); and as
published ``"cms11"`` (pure, replace_one), ``"kst12"`` and ``"redberg23"`` (:mod:`dpml.erm.published`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml import errors
from dpml.accounting import (
    ADD_REMOVE,
    REPLACE_ONE,
    Composed,
    Event,
    Gaussian,
    ObjectivePerturbation,
    Pure,
    SelfComposed,
    calibrate,
    gaussian_noise_multiplier,
)
from dpml.accounting import epsilon as accounting_epsilon
from dpml.accounting.events import MAX_SCALE
from dpml.erm import published
from dpml.erm.losses import GlmLoss, LossConstants, logistic_constants, make_loss, require
from dpml.erm.problems import problem_count, problem_targets, solve_all, weight_shape
from dpml.erm.rules import (
    AUTO,
    Regularization,
    approximation_slack,
    changed_records,
    check_lambda,
    check_public,
    check_scales,
    least_lambda,
    solver_tolerance,
    sum_form,
)
from dpml.mechanisms import NoiseSource, add_gaussian, add_norm_gamma, norm_gamma

OUTPUT_SHARE = 0.005  # of epsilon and of delta, by basic composition
VARIANTS = ("default", "pure", "cms11", "kst12", "redberg23")
PURE_VARIANTS = ("pure", "cms11")
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0

Charge = Callable[[Event], None]


@dataclass(frozen=True)
class ObjectivePlan:
    """What an objective perturbation will do; public, made before a record is read.

    Attributes:
        epsilon, delta, neighboring_relation, accountant: the promise and who calibrated it.
        n_declared, n_features, norm_bound, solution_norm: public knowledge that it rests on.
        lambda_sum, regularization: λ of the sum form, and Λ = λ/n_declared of the mean form.
        noise_std, noise_multiplier: standard deviation of each entry of the linear term, and that ÷ the bound L on one
            record's gradient.
        noise_scale: of the density ∝ exp(−‖b‖/scale) of a pure variant, else 0.
        tolerance: τ, the verified bound on ‖∇J‖ of each solution.
        output_sensitivity, output_std: 2τ/λ·√problems, and the standard deviation of the noise that covers it.
        event: what is charged, all releases.
        loss, loss_parameter, n_classes, variant: the problem and the calibration.
    """

    epsilon: float
    delta: float
    neighboring_relation: str
    accountant: str
    n_declared: int
    n_features: int
    norm_bound: float
    solution_norm: float
    lambda_sum: float
    regularization: float
    noise_std: float
    noise_multiplier: float
    noise_scale: float
    tolerance: float
    output_sensitivity: float
    output_std: float
    event: Event
    loss: str = "logistic"
    loss_parameter: float | None = None
    n_classes: int = 2
    variant: str = "default"


@dataclass(frozen=True)
class _Task:
    """The public facts of one plan, gathered."""

    loss: GlmLoss
    constants: LossConstants
    problems: int
    n_features: int
    solution_norm: float
    norm_bound: float
    relation: str
    epsilon: float  # of the linear terms, the output noise's share taken off
    delta: float
    output_event: Event

    def objective_event(self, noise_std: float, lambda_sum: float) -> Event:
        given = {"norm_bound": self.norm_bound, "solution_norm": self.solution_norm, "epsilon": self.epsilon}
        check_scales(given, MAX_SCALE, noise_std=noise_std)  # the event holds no larger one
        check_scales(given, MAX_SCALE**2, lambda_sum=lambda_sum)
        kind = "logistic" if self.loss.name == "logistic" else "monotone" if self.loss.monotone else "general"
        one = ObjectivePerturbation(
            noise_std=noise_std,
            lambda_sum=lambda_sum,
            norm_bound=self.norm_bound,
            loss=kind,
            slope_bound=self.loss.slope_bound,
            curvature_bound=self.loss.curvature_bound,
        )
        return one if self.problems == 1 else SelfComposed(one, self.problems)

    def event(self, noise_std: float, lambda_sum: float) -> Event:
        return Composed((self.objective_event(noise_std, lambda_sum), self.output_event))


def objective_lambda(
    *, noise_std: float, norm_bound: float, n_features: int, solution_norm: float, epsilon: float
) -> float:
    """λ = max(R_x²/ε, √d σ/R), from public values only; ``epsilon`` is the share of one record more or less.

    Below R_x²/ε the theorem does not apply.  Beyond it λ balances the two costs: the linear term costs at most
    E‖b‖²/(2λ) = dσ²/(2λ), regularisation at most λR²/2 for a solution of norm R; their sum is least at λ = √d σ/R.
    """
    least = least_lambda(logistic_constants(norm_bound).smoothness)
    return max(norm_bound**2 / epsilon, math.sqrt(n_features) * noise_std / solution_norm, least)


def plan_objective(
    *,
    n_declared: int,
    n_features: int,
    epsilon: float,
    delta: float,
    neighboring_relation: str = ADD_REMOVE,
    norm_bound: float = 1.0,
    solution_norm: float = 15.0,
    regularization: Regularization = AUTO,
    accountant: str = "best",
    loss: str = "logistic",
    loss_parameter: float | None = None,
    n_classes: int = 2,
    variant: str = "default",
) -> ObjectivePlan:
    """Calibrate objective perturbation; reads no record.

    Arguments as for :func:`dpml.erm.output.plan_output`, without softmax (its Hessian has rank K − 1, the proofs need
    one of rank one: use K problems of logistic loss).  A given ``regularization`` (Λ, mean form) may lie below the
    theorem's λ; the accountant then pays the Jacobian constant, and a Λ for which that alone passes the budget is
    refused.

    Raises:
        ConfigError: a value out of range, by name.
        UnsupportedEventError: an accountant that cannot bound objective perturbation (``zcdp``, ``pld``; ``exact``
            where several releases are composed).
    """
    if variant not in VARIANTS:
        raise errors.invalid("variant", variant, f"one of {list(VARIANTS)}")
    pure = variant in PURE_VARIANTS
    check_public(
        n_declared=n_declared,
        n_features=n_features,
        epsilon=epsilon,
        delta=delta,
        neighboring_relation=neighboring_relation,
        norm_bound=norm_bound,
        solution_norm=solution_norm,
        pure=pure,
    )
    _check_relation(variant, neighboring_relation)
    made = make_loss(loss, loss_parameter)
    require(made, "objective")
    changed = changed_records(neighboring_relation)
    constants = made.constants(norm_bound)
    # two approximate minima are 2τ/λ apart under either relation, so per contribution it is (2τ/λ)/changed
    output_unit = 0.0 if pure else gaussian_noise_multiplier(OUTPUT_SHARE * epsilon, OUTPUT_SHARE * delta)
    task = _Task(
        loss=made,
        constants=constants,
        problems=problem_count(made, n_classes),
        n_features=n_features,
        solution_norm=solution_norm,
        norm_bound=norm_bound,
        relation=neighboring_relation,
        epsilon=(1.0 - OUTPUT_SHARE) * epsilon,
        delta=(1.0 - OUTPUT_SHARE) * delta,
        output_event=Pure(OUTPUT_SHARE * epsilon) if pure else Gaussian(output_unit * changed),
    )
    given = sum_form(regularization, n_declared)
    if given is not None:
        _check_feasible(task, given, n_declared, regularization, variant)
        check_lambda(given, constants.smoothness, n_declared, regularization)
    noise_scale = 0.0
    event: Event
    if pure:
        noise_scale, lambda_sum = _pure_noise(task, given, published_form=variant == "cms11")
        noise_std = noise_scale * math.sqrt(n_features + 1.0)
        event = Composed((Pure(task.epsilon), task.output_event))
    else:
        if variant == "default":
            noise_std, lambda_sum = _default_noise(task, given, epsilon, delta, accountant)
        else:
            noise_std, lambda_sum = _published_noise(task, given, variant)
        event = task.event(noise_std, lambda_sum)
    if variant != "default":
        _check_promise(event, epsilon, delta, neighboring_relation, accountant, variant)
    tolerance = solver_tolerance(
        norm_bound, n_declared, lipschitz=constants.lipschitz, linear=noise_std * math.sqrt(n_features)
    )
    slack = math.sqrt(task.problems) * approximation_slack(tolerance, lambda_sum)
    size = n_features * task.problems
    output_std = slack * (math.sqrt(size + 1.0) / (OUTPUT_SHARE * epsilon) if pure else output_unit)
    values = {
        "norm_bound": norm_bound,
        "solution_norm": solution_norm,
        "regularization": regularization,
        "epsilon": epsilon,
    }
    check_scales(
        values,
        lambda_sum=lambda_sum,
        noise_std=noise_std,
        tolerance=tolerance,
        output_sensitivity=slack,
        output_std=output_std,
    )
    return ObjectivePlan(
        epsilon=epsilon,
        delta=delta,
        neighboring_relation=neighboring_relation,
        accountant=accountant,
        n_declared=n_declared,
        n_features=n_features,
        norm_bound=norm_bound,
        solution_norm=solution_norm,
        lambda_sum=lambda_sum,
        regularization=lambda_sum / n_declared,
        noise_std=noise_std,
        noise_multiplier=noise_std / constants.lipschitz,
        noise_scale=noise_scale,
        tolerance=tolerance,
        output_sensitivity=slack,
        output_std=output_std,
        event=event,
        loss=loss,
        loss_parameter=loss_parameter,
        n_classes=n_classes,
        variant=variant,
    )


def _check_promise(event: Event, epsilon: float, delta: float, relation: str, accountant: str, variant: str) -> None:
    """A calibration that is not the accountant's own must satisfy the accountant that will report it."""
    found = accounting_epsilon(event, delta, accountant=accountant, neighboring_relation=relation)
    if not found <= epsilon * (1.0 + 1e-12):
        raise errors.invalid(
            "accountant",
            accountant,
            f"one that bounds variant={variant!r} by epsilon = {epsilon:g} here; this one gives {found:.6g}",
            "Use accountant='best' or variant='default'.",
        )


def _check_relation(variant: str, relation: str) -> None:
    needed = {"cms11": REPLACE_ONE, "redberg23": ADD_REMOVE}.get(variant, relation)
    if relation != needed:
        raise errors.invalid(
            "neighboring_relation", relation, f"{needed!r} with variant={variant!r}, whose theorem is for that relation"
        )


# ------------------------------------------------------------------------------------------------- noise and lambda


def _default_noise(
    task: _Task, given: float | None, epsilon: float, delta: float, accountant: str
) -> tuple[float, float]:
    """(σ, λ) of the least predicted cost that the accountant lets pass.

    The linear term costs at most E‖b‖²/(2λ) = dσ²/(2λ) a problem, regularisation λR²/2.  With logistic loss, add_remove
    and one problem σ does not depend on λ from R_x²/ε on, and λ = max(R_x²/ε, √d σ/R) is best; under replace_one that
    holds for the group of two; elsewhere σ falls as λ grows.
    """

    def noise_of(lambda_of: Callable[[float], float]) -> float:
        multiplier = calibrate(
            lambda m: task.event(m * task.constants.lipschitz, lambda_of(m * task.constants.lipschitz)),
            epsilon=epsilon,
            delta=delta,
            accountant=accountant,
            neighboring_relation=task.relation,
        )
        return multiplier * task.constants.lipschitz

    if given is not None:
        return noise_of(lambda _: given), given

    def free(noise_std: float) -> float:
        return objective_lambda(
            noise_std=noise_std,
            norm_bound=task.norm_bound,
            n_features=task.n_features,
            solution_norm=task.solution_norm,
            epsilon=task.epsilon / changed_records(task.relation),
        )

    found: list[tuple[float, float, float]] = []
    if task.loss.name == "logistic" and task.problems == 1:
        noise_std = noise_of(free)
        found.append((_cost(task, noise_std, free(noise_std)), noise_std, free(noise_std)))
    if not found or task.relation != ADD_REMOVE:
        lambda_sum = _priced_lambda(task)
        noise_std = noise_of(lambda _: lambda_sum)
        found.append((_cost(task, noise_std, lambda_sum), noise_std, lambda_sum))
    _, noise_std, lambda_sum = min(found)
    return noise_std, lambda_sum


def _cost(task: _Task, noise_std: float, lambda_sum: float) -> float:
    return task.n_features * noise_std**2 / (2.0 * lambda_sum) + lambda_sum * task.solution_norm**2 / 2.0


def _priced_lambda(task: _Task) -> float:
    """The λ of least cost if c₀ = ln(1 + β/λ) is paid for every problem, by a golden-section search to 2 %.

    σ(λ) is taken for a Gaussian mechanism's at what the constants leave of ε; that only steers the choice of λ, the
    noise itself is calibrated afterwards.
    """
    smoothness, epsilon = task.constants.smoothness, task.epsilon / task.problems
    reach = changed_records(task.relation) * math.sqrt(task.problems) * task.constants.lipschitz

    def cost(log_lambda: float) -> float:
        left = task.epsilon - task.problems * math.log1p(smoothness / math.exp(log_lambda))
        return _cost(task, reach * gaussian_noise_multiplier(left, task.delta / 2.0), math.exp(log_lambda))

    low = math.log(max(smoothness / math.expm1(min(0.9 * epsilon, 700.0)), least_lambda(smoothness)))
    plain = reach * gaussian_noise_multiplier(task.epsilon, task.delta / 2.0)
    high = max(low + 1.0, math.log(8.0 * math.sqrt(task.n_features) * plain / task.solution_norm))
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = cost(left), cost(right)
    while high - low > 0.02:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = cost(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = cost(right)
    return math.exp((low + high) / 2.0)


def _pure_noise(task: _Task, given: float | None, *, published_form: bool) -> tuple[float, float]:
    """(scale, λ) of noise ∝ exp(−‖b‖/scale), ε split evenly over the problems.

    One record more changes b by at most L and the determinant by at most c₀ = ln(1 + β/λ): scale = changed·L/(ε−c₀);
    as published 2 ln(1 + β/λ) stands for c₀ (Chaudhuri, Monteleoni & Sarwate 2011, Algorithm 2).  λ is the least that
    balances E‖b‖²/(2λ) = d(d + 1)·scale²/(2λ) and λR²/2.
    """
    changed, epsilon = changed_records(task.relation), task.epsilon / task.problems
    reach, smoothness = task.constants.lipschitz, task.constants.smoothness

    def at(lambda_sum: float) -> tuple[float, float]:
        if published_form:
            _, extra, scale = published.cms11(epsilon, lambda_sum, reach, smoothness)
            return scale, lambda_sum + extra
        return changed * reach / (epsilon - math.log1p(smoothness / lambda_sum)), lambda_sum

    if given is not None:
        return at(given)
    size = math.sqrt(task.n_features * (task.n_features + 1.0)) / task.solution_norm
    low = smoothness / math.expm1(min(epsilon / 4.0, 700.0))  # here 2c₀ = ε/2
    high = max(low, size * at(low)[0])  # more λ, less noise: the balance lies below
    low, high = (max(end, least_lambda(smoothness)) for end in (low, high))
    while high > low * (1.0 + 1e-9):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if middle < size * at(middle)[0] else (low, middle)
    return at(max(low, high))


def _published_noise(task: _Task, given: float | None, variant: str) -> tuple[float, float]:
    """(σ, λ) of a published theorem at ε and δ divided by the number of problems."""
    epsilon, delta = task.epsilon / task.problems, task.delta / task.problems
    reach, smoothness = task.constants.lipschitz, task.constants.smoothness
    if variant == "kst12":
        noise_std, least = published.kst12(epsilon, delta, reach, smoothness, task.relation)
        balance = math.sqrt(task.n_features) * noise_std / task.solution_norm
        return noise_std, max(least, balance, least_lambda(smoothness)) if given is None else given
    noise_std, lambda_sum = published.redberg23(epsilon, delta, reach, smoothness)
    if given is not None:
        return published.redberg23_noise(epsilon, delta, given, reach, smoothness), given
    balance = math.sqrt(task.n_features) * noise_std / task.solution_norm
    return noise_std, max(lambda_sum, balance, least_lambda(smoothness))


def _check_feasible(
    task: _Task, lambda_sum: float, n_declared: int, regularization: Regularization, variant: str
) -> None:
    """Jacobian constants c₀ = ln(1 + β/λ) of the whole ε leave nothing for the noise, however large."""
    smoothness, epsilon = task.constants.smoothness, task.epsilon / task.problems
    allowed = {"cms11": 0.0, "kst12": 2.0 * smoothness / epsilon}
    allowed["redberg23"] = smoothness / -math.expm1(-epsilon)
    least = allowed.get(variant, smoothness / math.expm1(epsilon) if epsilon < 700.0 else 0.0)
    if lambda_sum < least or (lambda_sum == least and variant != "kst12"):
        way_out = "regularization='auto' takes care of it."
        if task.loss.name == "logistic" and task.relation == ADD_REMOVE and variant == "default" and task.problems == 1:
            free = task.norm_bound**2 / epsilon / n_declared
            way_out = f"From {free:.3g} on it costs no extra noise; {way_out}"
        raise errors.invalid(
            "regularization",
            regularization,
            f"above {least / n_declared:.3g} (mean form) for this epsilon and n_declared",
            way_out,
        )


# -------------------------------------------------------------------------------------------------------------- fit


def linear_term(plan: ObjectivePlan, noise: NoiseSource) -> NDArray[np.float64]:
    """b, shape (d,) or (K, d), one draw a problem, the constant column's coefficient included."""
    problems = problem_count(make_loss(plan.loss, plan.loss_parameter), plan.n_classes)
    shape = weight_shape(plan.n_features, problems)
    if plan.variant not in PURE_VARIANTS:
        return noise.normal(plan.noise_std, shape)
    terms = [norm_gamma(plan.n_features, scale=plan.noise_scale, noise=noise) for _ in range(problems)]
    return np.reshape(np.stack(terms), shape)


def fit_objective(
    plan: ObjectivePlan, x: Any, y: ArrayLike, *, noise: NoiseSource, charge: Charge
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """The private parameters, (d,) or (K, d), and *private* diagnostics; ``charge(plan.event)`` comes first.

    Arguments and errors as for :func:`dpml.erm.output.fit_output`.
    """
    charge(plan.event)
    loss = make_loss(plan.loss, plan.loss_parameter)
    problems = problem_count(loss, plan.n_classes)
    rows, targets = problem_targets(
        loss, x, y, norm_bound=plan.norm_bound, n_features=plan.n_features, n_problems=problems
    )
    solved = solve_all(loss, rows, targets, plan.lambda_sum, linear_term(plan, noise), plan.tolerance)
    if plan.variant in PURE_VARIANTS:
        share = OUTPUT_SHARE * plan.epsilon
        theta = add_norm_gamma(solved.theta, sensitivity=plan.output_sensitivity, epsilon=share, noise=noise)
    else:
        multiplier = plan.output_std / plan.output_sensitivity
        theta = add_gaussian(
            solved.theta, sensitivity=plan.output_sensitivity, noise_multiplier=multiplier, noise=noise
        )
    return theta, solved.diagnostics
