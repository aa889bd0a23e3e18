"""Attacks on the fits themselves, run on tiny data with noise that the attacker scripts.

The law of the noise is read off the fit (which is linear in it), the distance of neighbours' solutions comes from the
fit's own minima, also from a solver that errs by all that the proof allows, in the worst direction.  A Gaussian release
at distance D and standard deviation s has exactly δ(ε) = Φ(m/2 − ε/m) − e^ε Φ(−m/2 − ε/m), m = D/s; one of density
∝ ‖b‖^{k−d} e^{−‖b‖/s} has a density ratio to look at.  All answers are "found ÷ promised": above 1, a violation.
"""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
from attack_tools import SHARE, Loss, excess, log_masses
from scipy import optimize
from scipy.special import log_ndtr

from dpml.erm import ball, objective, output, problems
from dpml.erm import gradient_descent as gd

OUTPUT_SHARE = 0.005
PARAMETERS = {"logistic": None, "smoothed_hinge": 0.5, "huber": 0.1}


def plan(variant="default", loss="logistic", relation="add_remove", *, parameter=None, share=None, **changes):
    """A plan for one coefficient and rows up to 2; ``share``: of ε that the true ln(1 + β/λ) takes."""
    arguments = {"n_declared": 100, "n_features": 1, "epsilon": 1.0, "delta": 1e-5, "norm_bound": 2.0, **changes}
    if variant in ("pure", "cms11"):
        arguments["delta"] = 0.0
    parameter = PARAMETERS[loss] if parameter is None else parameter
    if share is not None:
        budget = share * SHARE * arguments["epsilon"]
        curvature = Loss(loss, parameter).largest_curvature * arguments["norm_bound"] ** 2
        arguments["regularization"] = curvature / math.expm1(budget) / 100
    return objective.plan_objective(
        **arguments, variant=variant, loss=loss, loss_parameter=parameter, neighboring_relation=relation
    )


def output_plan(loss="smoothed_hinge", relation="add_remove", **changes):
    arguments = {"n_declared": 1, "n_features": 1, "epsilon": 1.0, "delta": 1e-5, "norm_bound": 2.0, **changes}
    arguments.setdefault("regularization", 3.0 * arguments["norm_bound"] ** 2)
    if arguments.get("noise") == "gamma":
        arguments["delta"] = 0.0
    return output.plan_output(
        loss=loss, loss_parameter=PARAMETERS.get(loss), neighboring_relation=relation, **arguments
    )


def crowded(plan):
    """4000 short rows with both labels along the last axis, and the same with a long row: without λ the short rows'
    curvature is all there is, and the long one's is five times as much."""
    rows = np.zeros((4000, plan.n_features))
    rows[:, -1] = 0.015
    data = rows, np.tile([1.0, -1.0], 2000)
    return data, with_record(data, plan.norm_bound * np.eye(plan.n_features)[-1], 1.0)


class Scripted:
    """Noise from a list: one array of standard normals a call, then zeros; exponentials −ln(1 − u) as told."""

    secret = False

    def __init__(self, *normals, exponentials=None):
        self.normals, self.exponentials = list(normals), exponentials

    def normal(self, std, shape):
        draw = self.normals.pop(0) if self.normals else None
        return np.zeros(shape) if draw is None else std * np.reshape(draw, shape)

    def uniform(self, size):
        times = np.ones(size) if self.exponentials is None else np.resize(self.exponentials, size)
        return -np.expm1(-times)


def fit(plan, x, y, noise=None):
    """θ of a plan's fit; ``noise`` ``None`` for none."""
    fits = {
        output.OutputPlan: output.fit_output,
        objective.ObjectivePlan: objective.fit_objective,
        ball.OutputRidgePlan: ball.fit_output_ridge,
    }
    return fits[type(plan)](plan, x, y, noise=noise or Scripted(), charge=lambda event: None)[0]


def nobody(plan):
    return np.zeros((0, plan.n_features)), np.zeros(0)


def profile(epsilon, m):
    """δ(ε) of N(0, 1) against N(m, 1) (Balle & Wang 2018, theorem 8)."""
    if m == 0:
        return 0.0
    return math.exp(log_ndtr(m / 2 - epsilon / m)) - math.exp(epsilon + log_ndtr(-m / 2 - epsilon / m))


def gaussian_std(plan, before=0):
    """Smallest standard deviation of the release in any direction, from unit draws after ``before`` other draws."""
    still = fit(plan, *nobody(plan))
    first = [None] * before
    columns = [(fit(plan, *nobody(plan), Scripted(*first, unit)) - still).ravel() for unit in np.eye(still.size)]
    return float(np.linalg.svd(np.array(columns), compute_uv=False)[-1])


def gamma_law(plan, before=0):
    """(k, scale) of noise whose norm is a sum of k exponentials of that scale, from scripted exponentials."""

    def norm(exponentials):
        size = fit(plan, *nobody(plan)).size
        noise = Scripted(*[None] * before, np.eye(size)[0], exponentials=exponentials)
        return float(np.linalg.norm(fit(plan, *nobody(plan), noise)))

    size = fit(plan, *nobody(plan)).size
    all_ones = norm(np.ones(size))
    scale = norm(1.0 + (np.arange(size) == 0)) - all_ones
    return all_ones / scale, scale


def gamma_log_ratio(size, shape, scale, distance):
    """Largest |ln f(x)/f(x − Δ)| on the line through both centres; infinite for a shape other than the dimension."""
    t = np.concatenate([-np.geomspace(1e-9, 30, 60), np.geomspace(1e-9, 30, 60), [1.0 - 1e-9, 1.0 + 1e-9]])

    def log_density(at):
        r = np.abs(at) * distance
        return (shape - size) * np.log(r) - r / scale

    return float(np.abs(log_density(t) - log_density(t - 1.0)).max())


# -------------------------------------------------------------------------------------------- output perturbation


class WorstSolver:
    """A solver that errs by as much as ‖∇J‖ ≤ τ allows, along ``directions``, one a problem."""

    def __init__(self, directions):
        self.directions = list(directions)
        self.honest = problems.minimise

    def __call__(self, x, y, lambda_sum, linear=None, tolerance=1e-6, loss=None):
        exact = self.honest(x, y, lambda_sum, linear=linear, tolerance=tolerance * 1e-3, loss=loss).theta
        step = tolerance / lambda_sum * self.directions.pop(0)
        theta = exact + step
        gradient = x.T @ loss.slope(x @ theta, y) + lambda_sum * theta + (0 if linear is None else linear)
        size = float(np.linalg.norm(gradient))
        return mock.Mock(theta=exact + step * min(1.0, tolerance / size), gradient_norm=0.0, iterations=0)


def worst_distance(plan, one, two):
    """Distance of the fits on two data sets, by an honest solver and by one that errs apart."""
    solutions = [np.atleast_2d(fit(plan, *data)) for data in (one, two)]
    difference = solutions[0] - solutions[1]
    if isinstance(plan, ball.OutputRidgePlan) or plan.loss == "softmax":  # other solvers: the exact minima only
        return float(np.linalg.norm(difference))
    sizes = np.linalg.norm(difference, axis=1, keepdims=True)
    apart = np.where(sizes > 0, difference / np.maximum(sizes, 1e-300), np.eye(plan.n_features)[0])
    found = []
    for data, sign in ((one, 1.0), (two, -1.0)):
        with mock.patch.object(problems, "minimise", WorstSolver(sign * apart)):
            found.append(fit(plan, *data))
    return float(np.linalg.norm(found[0] - found[1]))


def short_rows(plan, forces, targets, share=0.01):
    """Rows of ``share``·R along the first axis: for each of ``forces`` (in units of λ/R) as many as it takes, with its
    target; ½ or 1 is a short row's slope."""
    x = share * plan.norm_bound
    numbers = [round(abs(f) * plan.lambda_sum / plan.norm_bound / x) for f in forces]
    rows = np.zeros((sum(numbers), plan.n_features))
    rows[:, 0] = np.repeat([x * math.copysign(1, f) for f in forces], numbers)
    return rows, np.repeat(np.asarray(targets, dtype=float), numbers)


def with_record(data, row, target):
    return np.vstack([data[0], row]), np.append(data[1], target)


def grounds(plan):
    """Background data: nobody; short rows that hold θ where slopes are extreme."""
    several = getattr(plan, "n_classes", 2) > 2
    forces = {
        "softmax": [([6.0, -6.0], [1, 2])],
        "squared": [([getattr(plan, "solution_norm", 0.0) * plan.norm_bound], [-1.0])],
        "huber": [([3.0], [1.0])],
    }
    others = [([6.0], [0]), ([4.0, 4.0], [0, 1])] if several else [([6.0], [1.0]), ([16.0], [1.0])]
    chosen = forces.get(getattr(plan, "loss", "squared"), others)
    return [nobody(plan), *(short_rows(plan, *one) for one in chosen)]


def records(plan):
    """Long rows both ways along the first axis, slanted ones, one to be held to the bound, a random and a zero row;
    with every class, or both extreme targets."""
    d, big = plan.n_features, plan.norm_bound
    axis, across = np.eye(d)[0], np.eye(d)[-1]
    rows = [big * axis, -big * axis, 3.0 * big * np.ones(d), 0.0 * axis]
    if d > 1:
        rows += [big * (-0.3 * axis + sign * math.sqrt(0.91) * across) for sign in (1, -1)]
        chance = np.random.default_rng(8).normal(size=d)
        rows.append(big * chance / np.linalg.norm(chance))
    several = getattr(plan, "n_classes", 2) > 2
    return [(row, target) for row in rows for target in (range(plan.n_classes) if several else (-1.0, 1.0))]


def farthest_neighbours(plan):
    """The neighbours whose minima are farthest apart: (distance, one, two)."""
    best = (-1.0, None, None)
    for ground in grounds(plan):
        family = [ground, *(with_record(ground, *record) for record in records(plan))]
        minima = np.array([fit(plan, *data).ravel() for data in family])
        add_remove = plan.neighboring_relation == "add_remove"
        pairs = [(i, j) for i in range(len(family)) for j in range(i) if (j == 0) == add_remove]
        for i, j in pairs:
            best = max(best, (float(np.linalg.norm(minima[i] - minima[j])), family[i], family[j]), key=lambda e: e[0])
    return best


def attack_output(plan):
    """Found ÷ promised: δ at ε, or the log-ratio of Gamma noise; and the distance ÷ the planned sensitivity."""
    _, one, two = farthest_neighbours(plan)
    distance = worst_distance(plan, one, two)
    if plan.delta == 0:
        shape, scale = gamma_law(plan)
        size = fit(plan, *nobody(plan)).size
        return gamma_log_ratio(size, shape, scale, distance) / plan.epsilon, distance / plan.sensitivity
    return profile(plan.epsilon, distance / gaussian_std(plan)) / plan.delta, distance / plan.sensitivity


# ----------------------------------------------------------------------------------------- objective perturbation


def attack_output_noise(plan):
    """The second release of objective perturbation, given the exact minimum: two solvers that err apart."""
    classes = 1 if plan.n_classes == 2 else plan.n_classes
    found = []
    for sign in (1.0, -1.0):
        with mock.patch.object(problems, "minimise", WorstSolver([sign * np.eye(plan.n_features)[0]] * classes)):
            found.append(fit(plan, *nobody(plan)))
    distance = float(np.linalg.norm(found[0] - found[1]))
    if plan.delta == 0:
        shape, scale = gamma_law(plan, before=classes)
        return gamma_log_ratio(found[0].size, shape, scale, distance) / (OUTPUT_SHARE * plan.epsilon)
    std = gaussian_std(plan, before=1)
    return profile(OUTPUT_SHARE * plan.epsilon, distance / std) / (OUTPUT_SHARE * plan.delta)


def attack_fit(plan, one, two, points=31):
    """δ of the fit's exact minimum along its last coordinate, for rows along that axis; found ÷ promised.

    θ falls with b, so P(θ ≤ t) = P(b ≥ b(t)); b(t) is found from fits alone (bisection), for t where either data set
    has its mass.  Nothing is assumed about what the fit minimises."""
    grid = np.linspace(-6.0, 6.0, points)
    last = np.eye(plan.n_features)[-1]

    def minimum(data, b):
        return float(fit(plan, *data, Scripted(last * b))[-1])

    def linear_terms(data, table, cells):
        for t in cells:
            i = int(np.searchsorted(-table, -t))
            if i in (0, points):  # beyond all that was looked at
                yield -20.0 if i == 0 else 20.0
            elif table[i] == t:
                yield grid[i]
            else:
                yield optimize.brentq(lambda b, t=t: minimum(data, b) - t, grid[i - 1], grid[i], xtol=1e-6)

    tables = [np.array([minimum(data, b) for b in grid]) for data in (one, two)]
    cells = np.unique(np.concatenate(tables))
    p, q = (
        log_masses("normal", np.fromiter(linear_terms(data, table, cells), float))
        for data, table in zip((one, two), tables, strict=True)
    )
    return excess(p, q, SHARE * plan.epsilon) / (SHARE * plan.delta)


# ------------------------------------------------------------------------------------------------ gradient descent


def attack_descent(plan, targets, draws=40):
    """T steps together: Gaussian with √T times a step's distance, at the worst θ found; found ÷ promised δ."""
    rng = np.random.default_rng(2)
    d, farthest = plan.n_features, 0.0
    rows = [plan.norm_bound * v / np.linalg.norm(v) for v in (*np.eye(d), *-np.eye(d), *rng.normal(size=(3, d)))]
    rows.append(5.0 * plan.norm_bound * np.ones(d))
    for k in range(draws):
        size = 10.0 ** rng.uniform(-1, 3) / plan.norm_bound
        theta = size * rng.normal(size=plan.shape)
        if theta.ndim == 2 and k % 2:
            theta[:, 0] = size * np.array([0.0, 1.0, -1.0])
        points = []
        for row in rows:
            for target in targets:
                x, y = gd.usable_records(plan, row[None], np.array([target], dtype=float))
                norms = gd.row_norms(x) if plan.max_grad_norm is not None else None
                points.append(gd.summed_gradient(plan, theta, x, y, norms).ravel())
        points = np.array(points)
        moved = points[:, None] - points if plan.neighboring_relation == "replace_one" else points
        farthest = max(farthest, float(np.linalg.norm(moved, axis=-1).max()))
    zero = np.zeros(plan.shape)
    columns = [gd.noisy(plan, zero, Scripted(unit)).ravel() for unit in np.eye(zero.size)]
    std = float(np.linalg.svd(np.array(columns), compute_uv=False)[-1])
    return profile(plan.epsilon, math.sqrt(plan.steps) * farthest / std) / plan.delta, farthest / plan.sensitivity
