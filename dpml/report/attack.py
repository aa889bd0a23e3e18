"""What (ε, δ) means for somebody who wants to find out about one record.

The attacker knows everything but one record (all other records, the code, the settings) and sees the release.  Under
``add_remove`` the question is whether the record was there; under ``replace_one``, which of two values it had.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpml.accounting.tradeoffs import advantage_of, posterior_of, tpr_at_fpr


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
