"""Named checks of private gradient descent, used by the ordinary tests and, with one line broken, by the planted bugs.

Each raises AssertionError when it finds a fault.  Expected values come from the definitions, not from the library.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from erm_checks import (
    DELTA,
    EPSILON,
    UNIT_SIGMA,
    CountingNoise,
    ZeroNoise,
    accept,
    gaussian_profile,
    within_variance,
)

from dpml import accounting, errors, mechanisms
from dpml.erm import gradient_descent as gd
from dpml.erm.losses import LOGISTIC, Huber, SmoothedHinge, Squared
from dpml.mechanisms import FixedNoise

CLIP, NORM_BOUND = 0.7, 3.0
LOSSES = {
    "logistic": LOGISTIC,
    "hinge": SmoothedHinge(0.5),
    "huber": Huber(0.2),
    "squared": Squared(),
    "softmax": gd.Softmax(3),
    "clipped_softmax": gd.Softmax(3),
}
CLIPS = {"squared": CLIP, "clipped_softmax": CLIP}
# L by hand for ‖x‖ ≤ 3: |ℓ'| ≤ 1, 1 and 0.2; the clip; ‖p − e_y‖ < √2
BOUNDS = {
    "logistic": 3.0,
    "hinge": 3.0,
    "huber": 0.6,
    "squared": CLIP,
    "softmax": math.sqrt(2) * 3.0,
    "clipped_softmax": CLIP,
}
CHANGED = {"add_remove": 1, "replace_one": 2}
RELATIONS = tuple(CHANGED)
TARGETS = {
    "logistic": (-1.0, 1.0),
    "hinge": (-1.0, 1.0),
    "huber": (-1.0, 0.3, 1.0),
    "squared": (-1.0, 0.3, 1.0),
    "softmax": (0, 1, 2),
    "clipped_softmax": (0, 1, 2),
}


def plan(name="logistic", **changes):
    arguments = {
        "n_declared": 1000,
        "n_features": 4,
        "epsilon": EPSILON,
        "delta": DELTA,
        "norm_bound": NORM_BOUND,
        "loss": LOSSES[name],
        "max_grad_norm": CLIPS.get(name),
        **changes,
    }
    return gd.plan_dp_gd(**arguments)


def fit(a_plan, x, y, *, noise=None, charge=accept, **rest):
    return gd.fit_dp_gd(a_plan, x, y, noise=noise or ZeroNoise(), charge=charge, **rest)[0]


def problem(name, n=60, d=4, seed=1):
    """Rows of norms up to 1.3 times the bound, targets of the loss."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x *= NORM_BOUND * 1.3 * rng.random((n, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
    return x, rng.choice(TARGETS[name], n).astype(float)


def slow_gradient(name, theta, x, y):
    """One record's gradient, from the definition of the loss; clipped where the loss is in ``CLIPS``."""
    norm = math.sqrt(sum(v * v for v in x))
    x = x * min(1.0, NORM_BOUND / norm)
    if "softmax" in name:
        scores = np.array([w @ x for w in theta])
        p = np.exp(scores - scores.max())
        p /= p.sum()
        gradient = np.outer(p - np.eye(3)[int(y)], x)
    else:
        z = theta @ x
        slope = {
            "logistic": lambda: -y / (1.0 + math.exp(min(y * z, 700.0))),
            "hinge": lambda: -y * min(max((1.5 - y * z) / 1.0, 0.0), 1.0),
            "huber": lambda: min(max(z - y, -0.2), 0.2),
            "squared": lambda: z - y,
        }[name]()
        gradient = slope * x
    if name in CLIPS:
        gradient = gradient * min(1.0, CLIP / max(np.linalg.norm(gradient), 1e-300))
    return gradient


def slow_descent(name, x, y, *, std, n_declared, steps, rate, momentum, regularization, noise):
    shape = (3, x.shape[1]) if "softmax" in name else (x.shape[1],)
    theta, velocity = np.zeros(shape), np.zeros(shape)
    for t in range(steps):
        total = np.zeros(shape)
        for xi, yi in zip(x, y, strict=True):
            total += slow_gradient(name, theta, xi, yi)
        total += noise.normal(std, shape)
        velocity = momentum * velocity - rate * (steps - t) / steps * (total / n_declared + regularization * theta)
        theta = theta + velocity
    return theta


# -- the checks ----------------------------------------------------------------------------------------------------


def check_noise_scale(name="logistic", relation="add_remove"):
    """Without records θ_T is a sum of the T draws with known weights, so its variance shows their scale and that
    they are independent.

    Chi-square of at least 4000 coefficients: false alarm 1e-6; noise low by 10 % is missed with probability
    below 1e-3, by a factor √2 or 2 never (below 1e-60)."""
    steps, rate, momentum = 4, 50.0, 0.9
    a_plan = plan(
        name,
        n_features=4000,
        neighboring_relation=relation,
        steps=steps,
        learning_rate=rate,
        momentum=momentum,
    )
    theta = gd.fit_dp_gd(a_plan, np.zeros((0, 4000)), np.zeros(0), noise=mechanisms.default_noise(), charge=accept)[0]
    # the draw of step t moves θ at t by rate_t/n, and its velocity lives on: Σ_{u ≥ t} momentum^{u−t} of that
    weights = [rate * (1 - t / steps) / 1000 * sum(momentum**k for k in range(steps - t)) for t in range(steps)]
    std = UNIT_SIGMA * math.sqrt(steps) * CHANGED[relation] * BOUNDS[name]
    assert within_variance(theta, std * math.sqrt(sum(w * w for w in weights)))


class Recorder(ZeroNoise):
    """Zero noise that remembers what was asked for."""

    def __init__(self):
        self.asked = []

    def normal(self, std, shape):
        self.asked.append((std, tuple(np.atleast_1d(shape))))
        return super().normal(std, shape)


def check_event_covers_the_run(name="logistic", relation="add_remove"):
    """What is charged is at least what T noisy sums tell: a Gaussian of μ² = Σ (changed L/std_t)² (three steps, so that
    one forgotten shows), and that keeps the promise."""
    a_plan = plan(name, steps=3, neighboring_relation=relation)
    charged, noise = [], Recorder()
    fit(a_plan, *problem(name), noise=noise, charge=charged.append)
    assert len(charged) == 1
    mu = math.sqrt(sum((CHANGED[relation] * BOUNDS[name] / std) ** 2 for std, _ in noise.asked))
    truth = gaussian_profile(EPSILON, mu)
    assert truth <= DELTA * (1 + 1e-9)
    stated = accounting.delta(charged[0], epsilon=EPSILON, neighboring_relation=relation)
    assert truth * (1 - 1e-6) <= stated <= DELTA * (1 + 1e-9)
    assert all(shape == a_plan.shape for _, shape in noise.asked)


def attack(name, relation, monkeypatch):
    """The largest distance of a step's sums of two neighbours, and the plan.

    Both runs see the same transcript of noisy sums (as the proof conditions on), one that drives θ to extremes; the
    differing record is searched over directions, lengths (too long, not finite) and targets."""
    a_plan = plan(name, n_features=2, steps=8, neighboring_relation=relation, learning_rate=100.0, momentum=0.0)
    rng = np.random.default_rng(7)
    script = [rng.normal(size=a_plan.shape) * 10.0 ** rng.integers(1, 5) for _ in range(a_plan.steps)]

    def sums(x, y):
        seen = []

        def spy(_, total, noise):
            seen.append(total)
            return script[len(seen) - 1]

        with monkeypatch.context() as patch:
            patch.setattr(gd, "noisy", spy)
            fit(a_plan, x, y)
        return np.array(seen)

    x, y = problem(name, n=6, d=2)
    base = sums(x, y)
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    rows = [r * np.array([math.cos(a), math.sin(a)]) for a in angles for r in (0.5, NORM_BOUND, 1e3)]
    rows += [np.array([math.nan, 1.0]), np.array([math.inf, 0.0]), np.array([1e300, 1e300])]
    parts = [sums(np.vstack([x, r]), np.append(y, t)) - base for r, t in itertools.product(rows, TARGETS[name])]
    parts = np.array(parts).reshape(len(parts), a_plan.steps, -1)
    if relation == "add_remove":
        return np.linalg.norm(parts, axis=2).max(), a_plan
    return max(np.linalg.norm(parts - one, axis=2).max() for one in parts), a_plan


def check_sensitivity(name, relation, monkeypatch):
    """No neighbour moves a step's sum farther than the noise allows for, and the bound is not a loose one."""
    worst, a_plan = attack(name, relation, monkeypatch)
    bound = CHANGED[relation] * BOUNDS[name]
    assert worst <= a_plan.sensitivity
    assert 0.98 * bound <= worst <= bound * (1 + 1e-9)
    assert a_plan.noise_std >= UNIT_SIGMA * math.sqrt(a_plan.steps) * worst


def check_agrees_with_slow(name, **changes):
    """The same as a loop over records and steps given the same noise; 60 records where 1000 are declared."""
    x, y = problem(name)
    a_plan = plan(name, steps=7, regularization=0.03, **changes)
    std = UNIT_SIGMA * math.sqrt(7) * BOUNDS[name]
    assert std <= a_plan.noise_std <= std * (1 + 2e-4)
    for scale, noise in ((a_plan.noise_std, FixedNoise), (0.0, lambda seed: ZeroNoise())):
        expected = slow_descent(
            name,
            x,
            y,
            std=scale,
            n_declared=1000,
            steps=7,
            rate=a_plan.learning_rate,
            momentum=0.9,
            regularization=0.03,
            noise=noise(3),
        )
        np.testing.assert_allclose(fit(a_plan, x, y, noise=noise(3)), expected, rtol=1e-9, atol=1e-12)


def check_charge_comes_first():
    """When the ledger cannot be written no noise was drawn; otherwise there is one charge, of all steps, first."""
    a_plan = plan(steps=5)
    x, y = problem("logistic")
    noise, log = CountingNoise(), []

    def broken(event):
        raise errors.LedgerError("disk full")

    try:
        fit(a_plan, x, y, noise=noise, charge=broken)
    except errors.LedgerError:
        pass
    else:
        raise AssertionError("the ledger's error was swallowed")
    assert noise.draws == 0
    fit(a_plan, x, y, noise=noise, charge=lambda event: log.append((event, noise.draws)))
    assert log == [(a_plan.event, 0)]
    assert noise.draws == 5
