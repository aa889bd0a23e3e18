"""Zero-concentrated DP (Bun & Steinke 2016): one number ρ that adds up.

Sampling does not amplify ρ: the accountant uses ρ of the unsampled event, which holds because Rényi divergence
is jointly quasi-convex (a mixture with an equal part is no farther apart), and says so in the notes of a trajectory.
"""

from __future__ import annotations

import math

from dpml.accounting.conversions import pure_to_zcdp, zcdp_to_delta, zcdp_to_epsilon
from dpml.accounting.events import (
    GDP,
    ZCDP,
    DiscreteGaussian,
    DiscreteLaplace,
    EpsilonDelta,
    Event,
    ExponentialMechanism,
    Gaussian,
    Group,
    Laplace,
    RandomizedResponse,
    UnequalGaussian,
    event_name,
)
from dpml.accounting.normal_form import effective, integer_sensitivity, normal_form
from dpml.accounting.sampling_rules import check_sampling, unsampled
from dpml.errors import UnsupportedEventError

SAMPLING_NOTE = "zCDP has no amplification by sampling: Poisson-sampled steps are charged as if unsampled."


def rho(event: Event, neighboring_relation: str) -> float:
    """ρ of the whole event (additive over parts); ``inf`` without noise; UnsupportedEventError where none exists."""
    return math.fsum(
        count * _rho(atom, neighboring_relation) for atom, count in normal_form(event, neighboring_relation).items()
    )


def epsilon(event: Event, delta: float, neighboring_relation: str) -> float:
    """ε(δ) by ρ and the tight conversion, 0 < δ < 1."""
    return zcdp_to_epsilon(rho(event, neighboring_relation), delta)


def delta(event: Event, epsilon: float, neighboring_relation: str) -> float:
    """δ(ε) by ρ and the tight conversion."""
    return zcdp_to_delta(rho(event, neighboring_relation), epsilon)


def _rho(atom: Event, neighboring_relation: str) -> float:
    check_sampling("zcdp", atom, neighboring_relation)
    found = _known(atom, neighboring_relation)
    if found is None:
        raise UnsupportedEventError(
            f"accountant 'zcdp' cannot bound event {event_name(atom)!r} under {neighboring_relation}: "
            "no ρ is known for it; use accountant='best'."
        )
    return found


def _known(atom: Event, relation: str) -> float | None:
    if isinstance(atom, Gaussian):  # 1/(2σ²): Bun & Steinke 2016, Proposition 1.6
        return _gaussian(1.0, effective(atom.noise_multiplier, relation))
    if isinstance(atom, DiscreteGaussian):  # s²/(2σ²): Canonne, Kamath & Steinke 2020, Theorem 4
        return _gaussian(integer_sensitivity(atom, relation), atom.noise_std)
    if isinstance(atom, UnequalGaussian):  # infinite at high orders unless the variances agree
        return _gaussian(atom.shift, atom.noise_std) if atom.noise_std == atom.other_noise_std else None
    if isinstance(atom, Laplace):
        scale = effective(atom.noise_multiplier, relation)
        return _rho_of_pure(1 / scale) if scale > 1e-300 else math.inf
    if isinstance(atom, DiscreteLaplace):
        shift = integer_sensitivity(atom, relation)
        return _rho_of_pure(shift / atom.noise_scale) if atom.noise_scale > 1e-300 * shift else math.inf
    if isinstance(atom, ZCDP):
        return atom.rho
    if isinstance(atom, GDP):  # the μ-Gaussian pair: every divergence of μ-GDP is at most its
        return _gaussian(atom.mu, 1.0)
    if isinstance(atom, ExponentialMechanism):  # bounded range: Cesar & Rogers 2021, Lemma 3.4
        return min(atom.epsilon**2 / 8, atom.epsilon)
    if isinstance(atom, RandomizedResponse) or (isinstance(atom, EpsilonDelta) and atom.delta == 0):
        return _rho_of_pure(atom.epsilon)
    plain = unsampled(atom)
    if plain is not None:
        return rho(plain, relation)
    if isinstance(atom, Group):  # k²ρ: Bun & Steinke 2016, Proposition 1.9
        return atom.size**2 * rho(atom.event, relation)
    return None


def _gaussian(shift: float, sigma: float) -> float:
    return 0.5 * (shift / sigma) ** 2 if sigma > 1e-150 * shift else math.inf


def _rho_of_pure(pure: float) -> float:
    """ρ = ε·tanh(ε/2), the tight constant: proof in :func:`pure_to_zcdp`."""
    return pure_to_zcdp(pure) if math.isfinite(pure) else math.inf
