"""What (ε, δ) means for somebody who wants to find out about one record.

The attacker knows everything but one record (all other records, the code, the settings) and sees the release.  Under
``add_remove`` the question is whether the record was there; under ``replace_one``, which of two values it had.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class AttackBounds:
    """Upper bounds on what any attacker reaches against an (ε, δ)-private release.

    Attributes:
        posterior: belief after the release, from ``prior``, but for a leak of probability at most δ.
        advantage: largest possible true-positive rate minus false-positive rate of a test.
        accuracy: largest share of right answers when both cases are equally likely.
        true_positive_rate: largest true-positive rate of a test whose false-positive rate is ``false_positive_rate``.
    """

    epsilon: float
    delta: float
    prior: float
    false_positive_rate: float
    posterior: float
    advantage: float
    accuracy: float
    true_positive_rate: float


def attack_bounds(
    epsilon: float, delta: float, *, prior: float = 0.5, false_positive_rate: float = 0.01
) -> AttackBounds:
    """All bounds of :class:`AttackBounds` for one guarantee (ε ≥ 0, ``inf`` allowed; δ in [0, 1])."""
    gap = advantage_bound(epsilon, delta)
    return AttackBounds(
        epsilon=epsilon,
        delta=delta,
        prior=prior,
        false_positive_rate=false_positive_rate,
        posterior=posterior_bound(epsilon, prior),
        advantage=gap,
        accuracy=(1 + gap) / 2,
        true_positive_rate=true_positive_bound(epsilon, delta, false_positive_rate),
    )


def posterior_bound(epsilon: float, prior: float = 0.5) -> float:
    """Largest posterior belief from ``prior``: e^ε p / (1 − p + e^ε p).

    Bayes' rule with a likelihood ratio of at most e^ε.  For δ > 0: every (ε, δ)-private pair can be simulated from a
    signal that says everything with probability δ and otherwise has likelihood ratio e^±ε (Kairouz, Oh and
    Viswanath, "The composition theorem for differential privacy", 2015: any (ε, δ)-DP mechanism is a
    post-processing of that randomised response), so the bound holds when that signal leaks nothing.
    It is not a bound on the belief given the released output itself: acc.attack_metrics has one.
    """
    if prior in (0.0, 1.0):
        return prior
    return 1 / (1 + (1 - prior) / prior * math.exp(-epsilon))


def advantage_bound(epsilon: float, delta: float) -> float:
    """Largest TPR − FPR: the total variation distance of the same randomised response, (e^ε − 1 + 2δ)/(e^ε + 1)."""
    tilt = math.exp(-epsilon)
    return min(1.0, (1 - tilt + 2 * delta * tilt) / (1 + tilt))


def true_positive_bound(epsilon: float, delta: float, false_positive_rate: float) -> float:
    """Largest TPR at a given FPR: one minus the (ε, δ) trade-off function.

    That function is max(0, 1 − δ − e^ε α, e^−ε (1 − δ − α)) (Wasserman and Zhou 2010, Theorem 2.4; Dong, Roth and
    Su 2022, equation (3)), α the FPR.
    """
    if math.isinf(epsilon):
        return 1.0
    alpha = false_positive_rate
    steep = math.inf if epsilon > 700 else math.exp(epsilon)
    first = 1 - delta - steep * alpha if alpha > 0 else 1 - delta
    second = math.exp(-epsilon) * (1 - delta - alpha)
    return 1 - max(0.0, first, second)
