"""The accountant ``optimal``: events as (ε, δ) statements, composed by the exact worst case.

Nothing better can be said about releases of which only (εⱼ, δⱼ) is known (Kairouz, Oh & Viswanath 2015; Murtagh &
Vadhan 2016); the theorem, its accuracy and its limits stand in :func:`dpml.accounting.theorems.
optimal_composition_epsilon`.  Accountants that know the mechanism itself (``pld``, say) may prove less.
"""

from __future__ import annotations

from dpml.accounting.events import Event
from dpml.accounting.theorems import event_statements, optimal_delta_of, optimal_epsilon_of


def epsilon(event: Event, delta: float, neighboring_relation: str) -> float:
    """ε(δ), 0 ≤ δ < 1; ``inf`` where the statements' own δ is too much.

    Raises:
        UnsupportedEventError: a part without an (ε, δ) statement of its own; the message names it.
    """
    return optimal_epsilon_of(event_statements(event, neighboring_relation, "optimal"), delta)


def delta(event: Event, epsilon: float, neighboring_relation: str) -> float:
    """δ(ε), ε ≥ 0; errors as :func:`epsilon`."""
    return optimal_delta_of(event_statements(event, neighboring_relation, "optimal"), epsilon)
