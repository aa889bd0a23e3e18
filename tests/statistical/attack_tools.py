"""Attacks on objective perturbation of tiny problems: exact output laws on neighbouring data, worst points searched.

One dimension.  The exact minimum θ and the linear term b determine each other, and b_D(θ) = −Σ ℓ'(xθ, y)x − λθ falls
with θ, so P_D(θ ≤ t) = P(b ≥ b_D(t)): exact, with all Jacobians in it, for losses with kinks too.  The θ-axis is cut
into cells; with P and Q their probabilities under two neighbours, Σ(P − e^ε Q)₊ is a *lower* bound on the mechanism's
δ(ε) and ln P/Q one on its pure ε (processing does not help an attacker).  What is found above a promise is a violation
whatever the grid; a finer grid only finds more.

Two dimensions.  The density φ(b_D(θ)) det(Σ ℓ'' x xᵀ + λI): pointwise for pure ε, by a midpoint sum for δ(ε).

Losses are written out here anew.  A search looks for the worst neighbours: random ones, corners, the best improved.
Background rows: short ones, many, that act as a constant force (``pull``), and a crowd of one kind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit, ndtr

SHORT = 1e-4  # length of the short rows, as a share of the bound
NARROW = 1e-6  # cells, in units of the noise scale: differences of rounded b are exact to 1e-8 of that
SHARE = 0.995  # of (ε, δ), for the exact minimum (the rest is the output noise's)


@dataclass(frozen=True)
class Loss:
    """ℓ' and ℓ'' of a score, by hand; ``parameter`` is the hinge's h or Huber's k."""

    name: str
    parameter: float | None = None

    @property
    def real(self):
        return self.name == "huber"

    def slope(self, z, y):
        if self.name == "logistic":
            return -y * expit(-y * z)
        if self.name == "smoothed_hinge":
            return -y * np.clip((1 + self.parameter - y * z) / (2 * self.parameter), 0, 1)
        return np.clip(z - y, -self.parameter, self.parameter)

    def curvature(self, z, y):
        if self.name == "logistic":
            return expit(z) * expit(-z)
        if self.name == "smoothed_hinge":
            return np.where(np.abs(1 - y * z) <= self.parameter, 1 / (2 * self.parameter), 0.0)
        return np.where(np.abs(z - y) <= self.parameter, 1.0, 0.0)

    @property
    def largest_slope(self):
        return self.parameter if self.real else 1.0

    @property
    def largest_curvature(self):
        return {"logistic": 0.25, "smoothed_hinge": 0.5 / (self.parameter or 1), "huber": 1.0}[self.name]

    def bend(self, y):
        """(middle, half-width) of the scores at which the slope changes."""
        return {"logistic": (0.0, 12.0), "smoothed_hinge": (y, self.parameter), "huber": (y, self.parameter)}[self.name]


@dataclass(frozen=True)
class Data:
    """Records x (n,) or (n, d), y (n,), each ``weights`` times."""

    x: Any
    y: Any
    weights: Any

    def plus(self, x, y, weight=1.0):
        return Data(np.concatenate([self.x, [x]]), np.append(self.y, float(y)), np.append(self.weights, float(weight)))


NOBODY = Data(np.zeros(0), np.zeros(0), np.zeros(0))


@dataclass(frozen=True)
class Setting:
    """What an attacker knows of a mechanism: the public numbers that it ran with.

    ``law``: "normal" (scale σ) or "laplace" (density ∝ exp(−‖b‖/scale)).
    """

    loss: Loss
    relation: str
    norm_bound: float
    lambda_sum: float
    law: str
    scale: float
    problems: int = 1


def setting(plan):
    """The noise and λ of a plan of ``dpml.erm``, as planned."""
    parameters = {"smoothed_hinge": 0.5, "huber": 0.1}
    parameter = plan.loss_parameter if plan.loss_parameter is not None else parameters.get(plan.loss)
    pure = plan.noise_scale > 0
    return Setting(
        loss=Loss(plan.loss, parameter),
        relation=plan.neighboring_relation,
        norm_bound=plan.norm_bound,
        lambda_sum=plan.lambda_sum,
        law="laplace" if pure else "normal",
        scale=plan.noise_scale if pure else plan.noise_std,
        problems=1 if plan.n_classes == 2 else plan.n_classes,
    )


# ------------------------------------------------------------------------------------------- one dimension: exact


def linear_term(s, data, theta):
    """b that makes each of ``theta`` the minimum."""
    z = data.x[:, None] * theta
    return -(data.weights * data.x) @ s.loss.slope(z, data.y[:, None]) - s.lambda_sum * theta


def at_linear_term(s, data, targets):
    """θ with b_D(θ) near each of ``targets`` (interpolated: any cells will do)."""
    start = float(linear_term(s, data, np.zeros(1))[0])
    span = (abs(start) + float(np.abs(targets).max())) / s.lambda_sum
    theta = np.linspace(-span, span, 120)
    for _ in range(2):
        b = linear_term(s, data, theta)
        theta = np.interp(np.linspace(targets[0], targets[-1], 120), b[::-1], theta[::-1])
        theta = np.unique(np.append(theta, [theta.min() - 1e-9 * span, theta.max() + 1e-9 * span]))
    return np.interp(targets, linear_term(s, data, theta)[::-1], theta[::-1])


def cuts(s, pair, points):
    """Cell boundaries: even in b for both data sets, and dense where a record's slope changes."""
    reach = (9.0 if s.law == "normal" else 45.0) * s.scale
    even = np.linspace(-reach, reach, points)
    if s.law == "laplace":  # denser at the peak
        even = even * np.abs(even) / reach
    parts = [at_linear_term(s, data, even) for data in pair]
    for x, y in {(x, y) for data in pair for x, y in zip(data.x, data.y, strict=True)}:
        if abs(x) > 10 * SHORT * s.norm_bound:
            middle, width = s.loss.bend(y)
            parts.append((middle + width * np.linspace(-1.5, 1.5, max(points // 4, 13))) / x)
    return np.unique(np.concatenate(parts))


def log_masses(law, b):
    """ln of the probabilities of the cells between falling ``b`` (in units of the scale), and beyond them."""
    u = np.concatenate([[np.inf], b, [-np.inf]])
    high, low = u[:-1], u[1:]
    turn = low > 0  # both on the right: the tails on the right are the exact ones
    high, low = np.where(turn, -low, high), np.where(turn, -high, low)  # now low < high, mostly on the left
    with np.errstate(divide="ignore", invalid="ignore"):
        if law == "normal":
            return np.log(np.maximum(ndtr(high) - ndtr(low), 0.0))
        left = high + np.log(-np.expm1(np.where(np.isinf(low), -np.inf, low - high))) - math.log(2)
        across = np.log(np.maximum(1 - 0.5 * np.exp(-np.abs(high)) - 0.5 * np.exp(-np.abs(low)), 0.0))
        return np.where(high > 0, across, left)


def excess(p, q, epsilon):
    """Larger Σ(P − e^ε Q)₊ of both directions, from logarithms."""
    one, two = np.exp(p), np.exp(q)
    factor = math.exp(epsilon)
    return max(float(np.maximum(one - factor * two, 0).sum()), float(np.maximum(two - factor * one, 0).sum()))


def signed_log_ratios(p, q):
    """(max ln P/Q, max ln Q/P) over the cells."""
    seen = np.minimum(p, q) > -60
    return float((p[seen] - q[seen]).max()), float((q[seen] - p[seen]).max())


def largest_log_ratio(p, q):
    return max(signed_log_ratios(p, q))


def label(s, v):
    """A target from v in [0, 1]: ±1, or a number that is ±1 half of the time."""
    return float(np.clip(4 * v - 2, -1, 1)) if s.loss.real else (1.0 if v >= 0.5 else -1.0)


def length(s, v):
    """A signed length, at the bound most of the time."""
    return s.norm_bound * float(np.clip(6 * v - 3, -1, 1))


def pulled(s, data, force):
    """Many short rows that add the constant ``force`` to b: a real data set."""
    x = SHORT * s.norm_bound
    each = abs(float(s.loss.slope(np.zeros(1), np.ones(1))[0])) * x
    return data.plus(x, math.copysign(1.0, force), round(abs(force) / each)) if force else data


def force(s, v):
    reach = 12 * s.scale + 15 * s.lambda_sum / s.norm_bound
    return reach * (2 * v - 1) ** 3


def neighbours(s, v):
    """Neighbouring data sets from v in [0, 1]⁸: pull, crowd (number, length, target), record, the replaced record."""
    data = pulled(s, NOBODY, force(s, v[0]))
    crowd = int(10 ** (6 * max(v[1] - 0.5, 0)) - 1)
    if crowd:
        data = data.plus(s.norm_bound * 10 ** (-2 * v[2]), label(s, v[3]), crowd)
    one = data.plus(length(s, v[4]), label(s, v[5]))
    return (data, one) if s.relation == "add_remove" else (data.plus(length(s, v[6]), label(s, v[7])), one)


def corners(relation):
    """Pulls both ways, none and middling, long records with both targets, replaced by their opposite or by none."""
    others = [(0.0, 0.0)] if relation == "add_remove" else [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (0.5, 1.0)]
    return [
        np.array([pull, 0.0, 0.0, 0.0, 1.0, target, *other])
        for pull in (0.1, 0.25, 0.5, 0.75, 0.9)
        for target in (0.0, 1.0)
        for other in others
    ]


def climb(value, size, starts=(), draws=40, seed=0, rounds=(0.15, 0.05, 0.015), kept=3, steps=6):
    """Largest ``value(v)`` found over v in [0, 1]^size."""
    rng = np.random.default_rng(seed)
    found = [(value(v), tuple(v)) for v in [*starts, *rng.random((draws, size))]]
    for spread in rounds:
        found = sorted(found, reverse=True)[:kept]
        for _, v in list(found):
            for _ in range(steps):
                moved = np.clip(v + spread * rng.normal(size=size) * (rng.random(size) < 0.5), 0, 1)
                found.append((value(moved), tuple(moved)))
    return max(found)


def laws(s, pair, points=121):
    """Log probabilities of the cells under the two data sets; cells too narrow for exact differences are joined."""
    theta = cuts(s, pair, points)
    for data in pair:
        for _ in range(2):
            b = linear_term(s, data, theta) / s.scale
            theta = theta[np.append(True, np.abs(np.diff(b)) > NARROW)]
    return tuple(log_masses(s.law, linear_term(s, data, theta) / s.scale) for data in pair)


def worst_delta(s, epsilon, points=121, **search):
    return climb(lambda v: excess(*laws(s, neighbours(s, v), points), epsilon), 8, corners(s.relation), **search)[0]


def worst_log_ratio(s, points=121, **search):
    return climb(lambda v: largest_log_ratio(*laws(s, neighbours(s, v), points)), 8, corners(s.relation), **search)[0]


# ------------------------------------------------------------------------------- one against the rest: products


def class_neighbours(s, v):
    """For each of K problems the two data sets, from v in [0, 1]^(K+4): a pull for each, the records.

    Short rows of class c add s_c to the force on problem c and take it from the others: t = (2I − 11ᵀ) s can be any."""
    k = s.problems
    pulls = np.array([force(s, u) for u in v[:k]])
    by_class = np.linalg.solve(2 * np.eye(k) - np.ones((k, k)), pulls)
    x = SHORT * s.norm_bound
    each = abs(float(s.loss.slope(np.zeros(1), np.ones(1))[0])) * x
    common = [(math.copysign(x, t), c, round(abs(t) / each)) for c, t in enumerate(by_class)]
    one = [*common, (length(s, v[k]), int(v[k + 1] * (k - 1e-9)), 1)]
    two = common if s.relation == "add_remove" else [*common, (length(s, v[k + 2]), int(v[k + 3] * (k - 1e-9)), 1)]

    def problem(rows, c):
        x, label, weights = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
        return Data(x, np.where(label == c, 1.0, -1.0), weights)

    return [(problem(two, c), problem(one, c)) for c in range(k)]


def product_delta(s, v, epsilon, points):
    """δ(ε) of the three independent minima together: cells of the product."""
    p, q = np.zeros(1), np.zeros(1)
    for pair in class_neighbours(s, v):
        one, two = laws(s, pair, points)
        p, q = (np.add.outer(p, one).ravel(), np.add.outer(q, two).ravel())
        heavy = np.maximum(p, q) > math.log(1e-15)
        p, q = p[heavy], q[heavy]
    return excess(p, q, epsilon)


def product_log_ratio(s, v, points):
    """Largest ln P/Q of the product: the sum of the problems' largest, in one direction or the other."""
    both = [signed_log_ratios(*laws(s, pair, points)) for pair in class_neighbours(s, v)]
    return max(sum(up for up, _ in both), sum(down for _, down in both))


def class_corners(k):
    return [
        np.array([*pulls, side, 0.0, other, 0.5])
        for pulls in ([0.2] * k, [0.8] * k, [0.8, *[0.2] * (k - 1)], [0.2, *[0.8] * (k - 1)], [0.5] * k)
        for side in (0.0, 1.0)
        for other in (0.0, 1.0)
    ]


# ------------------------------------------------------------------------------------------------ two dimensions


def log_density_2d(s, data, theta):
    """ln f_D up to a common constant, ``theta`` (m, 2); and b (m, 2)."""
    z = theta @ data.x.T
    slopes = data.weights * s.loss.slope(z, data.y)
    bends = data.weights * s.loss.curvature(z, data.y)
    b = -slopes @ data.x - s.lambda_sum * theta
    a11, a22 = (bends @ data.x[:, i] ** 2 + s.lambda_sum for i in (0, 1))
    a12 = bends @ (data.x[:, 0] * data.x[:, 1])
    size = np.linalg.norm(b, axis=1) / s.scale
    if s.law == "normal":
        law = -(size**2) / 2 - math.log(2 * math.pi * s.scale**2)
    else:  # ∫ e^{−‖b‖/scale} db = 2π scale²
        law = -size - math.log(2 * math.pi * s.scale**2)
    return law + np.log(a11 * a22 - a12**2), b


def neighbours_2d(s, v):
    """As in one dimension, with angles: v in [0, 1]⁹ is pull, its angle, angle, target and length of the record, the
    same of the replaced one, and the number of records beside it."""
    data = Data(np.zeros((0, 2)), np.zeros(0), np.zeros(0))
    strength = force(s, v[0])
    if strength:
        x = SHORT * s.norm_bound
        each = abs(float(s.loss.slope(np.zeros(1), np.ones(1))[0])) * x
        data = data.plus(x * direction(v[1]), math.copysign(1.0, strength), round(abs(strength) / each))
    if v[8] > 0.7:
        data = data.plus(s.norm_bound * direction(v[8]), label(s, v[7]), 3)
    one = data.plus(min(1.5 * v[4], 1.0) * s.norm_bound * direction(v[2]), label(s, v[3]))
    if s.relation == "add_remove":
        return data, one
    return data.plus(min(1.5 * v[7], 1.0) * s.norm_bound * direction(v[5]), label(s, v[6])), one


def direction(v):
    return np.array([math.cos(2 * math.pi * v), math.sin(2 * math.pi * v)])


def middle_2d(s, data):
    """θ with b_D(θ) = 0, by damped fixed-point steps (the best seen: the grid only has to be about there)."""
    theta = np.zeros((1, 2))
    smooth = s.lambda_sum + s.loss.largest_curvature * float((data.weights * (data.x**2).sum(axis=1)).sum())
    for _ in range(60):
        b = log_density_2d(s, data, theta)[1]
        if np.linalg.norm(b) < 0.01 * s.scale:
            break
        theta = theta + b / min(smooth, 2 * s.lambda_sum)
    return theta[0]


def grid_2d(s, data, points, reach=6.5):
    """Midpoints of a square around the middle that holds all b with ‖b‖ ≤ reach·scale: ‖θ − θ'‖ ≤ ‖b − b'‖/λ."""
    half = reach * s.scale / s.lambda_sum
    centre = middle_2d(s, data)
    axis = (np.arange(points) + 0.5) / points * 2 * half - half
    theta = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2) + centre
    return theta, (2 * half / points) ** 2


def delta_2d(s, pair, epsilon, points):
    theta, area = grid_2d(s, pair[0], points)
    p, q = (log_density_2d(s, data, theta)[0] for data in pair)
    return excess(p, q, epsilon) * area


def worst_delta_2d(s, epsilon, coarse=61, fine=301, **search):
    """Searched on a coarse grid, the worst computed on a fine one."""
    arguments = {"draws": 60, "kept": 2, "steps": 6, **search}
    _, v = climb(
        lambda v: delta_2d(s, neighbours_2d(s, np.array(v)), epsilon, coarse), 9, corners_2d(s.relation), **arguments
    )
    return delta_2d(s, neighbours_2d(s, np.array(v)), epsilon, fine)


def log_ratio_2d(s, v):
    """|ln f/g| at a point given by v[9:11] (b in polar coordinates, roughly) for the neighbours given by v[:9]."""
    pair = neighbours_2d(s, v)
    bend = s.loss.bend(pair[1].y[-1])
    x = pair[1].x[-1]
    across = np.array([-x[1], x[0]])
    score = bend[0] + bend[1] * (3 * v[9] - 1.5)
    theta = (score * x + (2 * v[10] - 1) ** 3 * 30 * s.scale / s.lambda_sum * across) / max(float(x @ x), 1e-12)
    p, q = (log_density_2d(s, data, theta[None])[0][0] for data in pair)
    return abs(p - q)


def corners_2d(relation):
    """Pull and records along one axis; for replace_one also two records nearly across the pull: both slopes extreme."""
    pairs = [(0.0, 0.5), (0.25, 0.75), (0.27, 0.73), (0.23, 0.27)]
    targets = [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]
    if relation == "add_remove":
        pairs, targets = [(0.0, 0.0), (0.25, 0.0), (0.27, 0.0)], [(0.0, 0.0), (1.0, 0.0)]
    return [
        np.array([pull, 0.0, first, target, 1.0, second, other, 1.0, 0.0])
        for pull in (0.08, 0.92)
        for first, second in pairs
        for target, other in targets
    ]


# ------------------------------------------------------------------------------------------- the attack on a plan


def attack(plan, **search):
    """What is found ÷ what is promised, for the exact minimum of a plan with n_features = 1 or 2.

    Above 1: a violation.  δ found at SHARE·ε against SHARE·δ, or the log-ratio against SHARE·ε of a pure variant.
    """
    s = setting(plan)
    epsilon, delta = SHARE * plan.epsilon, SHARE * plan.delta
    if s.problems > 1:
        k = s.problems
        if delta == 0:
            return climb(lambda v: product_log_ratio(s, v, 81), k + 4, class_corners(k), **search)[0] / epsilon
        arguments = {"draws": 10, "kept": 2, "steps": 4, **search}
        _, v = climb(lambda v: product_delta(s, v, epsilon, 25), k + 4, class_corners(k), **arguments)
        return product_delta(s, np.array(v), epsilon, 81) / delta
    if plan.n_features == 2:
        if delta == 0:
            starts = [np.append(v, [at, 0.5]) for v in corners_2d(s.relation) for at in (0.17, 0.5, 0.83)]
            return climb(lambda v: log_ratio_2d(s, np.asarray(v)), 11, starts, **search)[0] / epsilon
        return worst_delta_2d(s, epsilon, **search) / delta
    if delta == 0:
        return worst_log_ratio(s, **search) / epsilon
    return worst_delta(s, epsilon, **search) / delta


def attack_accountant(atom_delta, s, epsilons, **search):
    """Largest δ found ÷ ``atom_delta(ε)`` over all ``epsilons``; below 1e-15 δ is rounding."""
    bounds = [max(atom_delta(epsilon), 1e-300) for epsilon in epsilons]

    def value(v):
        p, q = laws(s, neighbours(s, v))
        return max((excess(p, q, epsilon) - 1e-15) / bound for epsilon, bound in zip(epsilons, bounds, strict=True))

    return climb(value, 8, corners(s.relation), **search)[0]


def swapped(plan, relation):
    """The plan's noise, used as if it were for another relation."""
    return replace(plan, neighboring_relation=relation)
