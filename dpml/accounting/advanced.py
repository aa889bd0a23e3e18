"""The accountant ``advanced``: events as (ε, δ) statements, composed by the advanced composition theorem.

The form is the one with tanh (Kairouz, Oh & Viswanath 2015); basic composition is taken where it is smaller, as it is
for few releases.  The statements' own δ comes off first and all that is left is the theorem's slack δ′: no other split
is better, because ε falls as δ′ grows.  ``optimal`` is never larger; this one is the textbook's, for comparison.
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpml.accounting.conversions import UP
from dpml.accounting.events import Event
from dpml.accounting.theorems import (
    advanced_composition_heterogeneous,
    basic_of,
    drift_and_square,
    event_statements,
    round_up,
    total_delta,
)


def epsilon(event: Event, delta: float, neighboring_relation: str) -> float:
    """ε(δ), 0 ≤ δ < 1; ``inf`` where the statements' own δ is too much.

    Raises:
        UnsupportedEventError: a part without an (ε, δ) statement of its own; the message names it.
    """
    parts = event_statements(event, neighboring_relation, "advanced")
    left = Fraction(delta) - total_delta(parts)
    if left < 0:
        return math.inf
    found = basic_of(parts)[0]
    slack = float(left)
    if Fraction(slack) > left:
        slack = math.nextafter(slack, 0.0)
    if slack > 0 and parts:
        columns = [list(column) for column in zip(*parts, strict=True)]
        found = min(found, advanced_composition_heterogeneous(columns[0], columns[1], slack, columns[2])[0])
    return found


def delta(event: Event, epsilon: float, neighboring_relation: str) -> float:
    """δ(ε), ε ≥ 0: Σ δⱼ, plus e^{−(ε − m)²/2s} below Σ εⱼ, m = Σ εⱼ tanh(εⱼ/2) < ε, s = Σ εⱼ²; errors as above."""
    parts = event_statements(event, neighboring_relation, "advanced")
    total, stated = basic_of(parts)
    if epsilon >= total:
        return stated
    drift, square = drift_and_square(parts)
    gap = epsilon * (1 - 1e-15) - drift
    if gap <= 0:
        return 1.0
    slack = math.exp(-gap * gap / (2 * square) * (1 - 1e-15)) * UP
    return min(1.0, round_up(Fraction(slack) + total_delta(parts)))
