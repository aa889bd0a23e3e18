"""What (ε, δ) means for somebody who wants to find out about one record.

The attacker knows everything but one record (all other records, the code, the settings) and sees the release.  Under
``add_remove`` the question is whether the record was there; under ``replace_one``, which of two values it had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpml import accounting
from dpml.accounting import Event, tradeoffs
from dpml.accounting.tradeoffs import advantage_of, posterior_of, tpr_at_fpr
from dpml.errors import DpmlError


@dataclass(frozen=True)
class AttackBounds:
    """Upper bounds on what any attacker reaches against an (ε, δ)-private release.

    Attributes:
        posterior: belief after the release, from ``prior``, but for a leak of probability at most δ: every
            (ε, δ)-private pair can be simulated from a signal that tells all with probability δ and otherwise has a
            likelihood ratio of e^±ε (Kairouz, Oh & Viswanath 2015).  It is not a bound on the belief given the released
            output itself; ``accounting.attack_metrics`` has one.
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
    gap = advantage_of(epsilon, delta)
    return AttackBounds(
        epsilon=epsilon,
        delta=delta,
        prior=prior,
        false_positive_rate=false_positive_rate,
        posterior=posterior_of(epsilon, prior),
        advantage=gap,
        accuracy=(1 + gap) / 2,
        true_positive_rate=tpr_at_fpr(epsilon, delta, false_positive_rate),
    )


# ------------------------------------------------------------------------------------------------------- the curve

WORTH_SAYING = 1e-3
"""By so much the curve of the event is above that of (ε, δ) somewhere, or the two count as one."""
RATES = (0.001, 0.01, 0.1)
TYPE1 = tuple(sorted({0.0, *RATES, *np.geomspace(1e-4, 0.1, 16).tolist(), *np.linspace(0.0, 1.0, 51).tolist()}))
"""Type-I errors at which every curve is given, besides the corners of the one of (ε, δ)."""
DELTAS = (*np.geomspace(1e-10, 0.1, 19).tolist(), 0.2, 0.3, 0.5, 0.7)
_SLOW = "objective_perturbation"  # its δ(ε) is an inversion of ε(δ), which is asked instead


@dataclass(frozen=True)
class AttackCurve:
    """A lower bound on the type-II error of any attack, at each type-I error, and bounds that follow from it.

    Attributes:
        type1, type2: the curve; whoever sees the release cannot get below it.
        alone: what (ε, δ) alone gives at the same type-I errors.
        from_event: whether the charged event says visibly more than (ε, δ).
        advantage: largest true-positive rate minus false-positive rate.
        accuracy: largest share of right answers when both cases are equally likely.
        true_positive_rates: false-positive rate → largest true-positive rate.
    """

    type1: tuple[float, ...]
    type2: tuple[float, ...]
    alone: tuple[float, ...]
    from_event: bool
    advantage: float
    accuracy: float
    true_positive_rates: Mapping[float, float]


def attack_curve(event: Event | None, epsilon: float, delta: float, *, neighboring_relation: str) -> AttackCurve:
    """The curve of a release that is (ε, δ)-private and, where ``event`` is given, is bounded by that event as well.

    Two lower bounds on one curve: the larger one at each type-I error is taken (Wasserman & Zhou 2010,
    theorem 2.4, for (ε, δ); :func:`dpml.accounting.tradeoff` for the event).

    Args:
        event: what was charged; ``None`` where it cannot be read.
        epsilon, delta: the reported guarantee, ε finite.
        neighboring_relation: ``"add_remove"`` or ``"replace_one"``.
    """
    kink = (1 - delta) * math.exp(-epsilon) / (1 + math.exp(-epsilon))  # where both lines of (ε, δ) meet
    grid = sorted({*TYPE1, kink, 1 - delta})
    rates = np.asarray(grid)
    alone = tradeoffs.epsilon_delta_tradeoff(epsilon, delta, rates)
    curve, gap, found = alone, advantage_of(epsilon, delta), False
    if event is not None:
        try:
            more, other_gap = _of_event(event, rates, neighboring_relation)
            found = bool((more > alone + WORTH_SAYING).any())
            curve, gap = np.maximum(alone, more), min(gap, other_gap)
        except (DpmlError, ArithmeticError, ValueError):  # no accountant bounds the event: (ε, δ) stands alone
            found = False
    return AttackCurve(
        type1=tuple(grid),
        type2=tuple(curve.tolist()),
        alone=tuple(alone.tolist()),
        from_event=found,
        advantage=gap,
        accuracy=(1 + gap) / 2,
        true_positive_rates={rate: 1 - float(curve[grid.index(rate)]) for rate in RATES},
    )


def _of_event(event: Event, rates: np.ndarray, relation: str) -> tuple[np.ndarray, float]:
    """(f at ``rates``, a bound on the advantage) from the event alone."""
    if _SLOW not in str(event.to_json()):
        curve = accounting.tradeoff(event, rates, neighboring_relation=relation)
        return curve, accounting.delta(event, 0.0, neighboring_relation=relation)
    points = [(accounting.epsilon(event, delta, neighboring_relation=relation), delta) for delta in DELTAS]
    curves = [tradeoffs.epsilon_delta_tradeoff(epsilon, delta, rates) for epsilon, delta in points]
    return np.max(curves, axis=0), min(advantage_of(epsilon, delta) for epsilon, delta in points)
