"""Zero-concentrated DP (Bun & Steinke 2016): one number ρ that adds up.

Poisson sampling does not amplify ρ: the accountant uses ρ of the unsampled event, which holds because Rényi divergence
is jointly quasi-convex (a mixture with an equal part is no farther apart), and says so in the notes of a trajectory.
"""

from __future__ import annotations

import math

from dpml.accounting.conversions import zcdp_to_delta, zcdp_to_epsilon
from dpml.accounting.events import (
    ZCDP,
    EpsilonDelta,
    Event,
    Gaussian,
    Laplace,
    PoissonSampled,
    effective,
    event_name,
    flatten,
)
from dpml.errors import UnsupportedEventError

SAMPLING_NOTE = "zCDP has no amplification by sampling: Poisson-sampled steps are charged as if unsampled."


def rho(event: Event, neighboring_relation: str) -> float:
    """ρ of the whole event (additive over parts); ``inf`` without noise; UnsupportedEventError where none exists."""
    return math.fsum(count * _rho(atom, neighboring_relation) for atom, count in flatten(event).items())


def epsilon(event: Event, delta: float, neighboring_relation: str) -> float:
    """ε(δ) by ρ and the tight conversion, 0 < δ < 1."""
    return zcdp_to_epsilon(rho(event, neighboring_relation), delta)


def delta(event: Event, epsilon: float, neighboring_relation: str) -> float:
    """δ(ε) by ρ and the tight conversion."""
    return zcdp_to_delta(rho(event, neighboring_relation), epsilon)


def _rho(atom: Event, neighboring_relation: str) -> float:
    if isinstance(atom, PoissonSampled):
        return rho(atom.event, neighboring_relation)
    if isinstance(atom, Gaussian):  # 1/(2σ²): Bun & Steinke 2016, Proposition 1.6
        sigma = effective(atom.noise_multiplier, neighboring_relation)
        return 0.5 / sigma / sigma if sigma > 1e-150 else math.inf
    if isinstance(atom, Laplace):
        scale = effective(atom.noise_multiplier, neighboring_relation)
        return _rho_of_pure(1 / scale) if scale > 1e-300 else math.inf
    if isinstance(atom, ZCDP):
        return atom.rho
    if isinstance(atom, EpsilonDelta) and atom.delta == 0:
        return _rho_of_pure(atom.epsilon)
    raise UnsupportedEventError(
        f"accountant 'zcdp' cannot bound event {event_name(atom)!r} under {neighboring_relation}: "
        "no ρ is known for it; use accountant='best'."
    )


def _rho_of_pure(pure: float) -> float:
    """ε-DP gives D_α ≤ min(α ε²/2, ε), hence ρ = min(ε²/2, ε)  (Bun & Steinke 2016, Proposition 1.4)."""
    return min(pure * pure / 2, pure)
