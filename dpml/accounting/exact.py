"""The exact accountant: events whose privacy profile has a closed form.

Served: any composition of unsampled Gaussians; one Laplace; one (ε, δ) statement; one objective perturbation, whose
closed form is an upper bound that is tight up to the loss's Jacobian term (see :func:`objective_delta`).
Everything else is refused by name.
"""

from __future__ import annotations

import math

from scipy import special

from dpml.accounting.conversions import gaussian_epsilon_unchecked, gaussian_log_delta
from dpml.accounting.events import (
    REPLACE_ONE,
    EpsilonDelta,
    Event,
    Gaussian,
    Laplace,
    ObjectivePerturbation,
    effective,
    event_name,
    flatten,
    merge_gaussians,
)
from dpml.errors import UnsupportedEventError


def epsilon(event: Event, delta: float, neighboring_relation: str) -> float:
    """Exact ε(δ), 0 < δ < 1, of the events that the module serves; UnsupportedEventError for the others."""
    atom = _single(event)
    if atom is None:
        return 0.0
    if isinstance(atom, Gaussian):
        return gaussian_epsilon_unchecked(delta, _mu(atom, neighboring_relation))
    if isinstance(atom, Laplace):
        pure = _pure(atom, neighboring_relation)
        return max(0.0, pure + 2 * math.log1p(-delta)) if math.isfinite(pure) else math.inf
    if isinstance(atom, EpsilonDelta):
        return _epsilon_of_statement(atom, delta)
    return objective_epsilon(atom, delta, neighboring_relation)


def delta(event: Event, epsilon: float, neighboring_relation: str) -> float:
    """Exact δ(ε), ε ≥ 0, of the events that the module serves; UnsupportedEventError for the others."""
    atom = _single(event)
    if atom is None:
        return 0.0
    if isinstance(atom, Gaussian):
        return min(1.0, math.exp(gaussian_log_delta(epsilon, _mu(atom, neighboring_relation))))
    if isinstance(atom, Laplace):
        pure = _pure(atom, neighboring_relation)
        return -math.expm1((epsilon - pure) / 2) if epsilon < pure else 0.0
    if isinstance(atom, EpsilonDelta):
        return _delta_of_statement(atom, epsilon)
    return objective_delta(atom, epsilon, neighboring_relation)


def _single(event: Event) -> Gaussian | Laplace | EpsilonDelta | ObjectivePerturbation | None:
    atoms = flatten(event)
    if not atoms:
        return None
    if all(isinstance(atom, Gaussian) for atom in atoms):
        return merge_gaussians(atoms)
    atom, count = next(iter(atoms.items()))
    if len(atoms) > 1 or count > 1:
        names = sorted({event_name(part) for part in atoms})
        raise UnsupportedEventError(
            f"accountant 'exact' has no closed form for a composition of {names}; use accountant='best' or 'pld'."
        )
    if isinstance(atom, Laplace | EpsilonDelta | ObjectivePerturbation):
        return atom
    raise UnsupportedEventError(
        f"accountant 'exact' has no closed form for event {event_name(atom)!r}; use accountant='best'."
    )


def _mu(atom: Gaussian, neighboring_relation: str) -> float:
    sigma = effective(atom.noise_multiplier, neighboring_relation)
    return 1 / sigma if sigma > 1e-150 else math.inf


def _pure(atom: Laplace, neighboring_relation: str) -> float:
    scale = effective(atom.noise_multiplier, neighboring_relation)
    return 1 / scale if scale > 1e-300 else math.inf


def _delta_of_statement(atom: EpsilonDelta, epsilon: float) -> float:
    """Hockey stick of the worst (ε₀, δ₀) mechanism: δ₀ + (1−δ₀)(e^{ε₀} − e^ε)₊/(1 + e^{ε₀})  (Kairouz et al. 2015)."""
    if epsilon >= atom.epsilon:
        return atom.delta
    part = -math.expm1(epsilon - atom.epsilon) / (1 + math.exp(-atom.epsilon))
    return min(1.0, atom.delta + (1 - atom.delta) * part)


def _epsilon_of_statement(atom: EpsilonDelta, delta: float) -> float:
    if delta < atom.delta:
        return math.inf
    if _delta_of_statement(atom, 0.0) <= delta:
        return 0.0
    # solve (δ−δ₀)/(1−δ₀)·(1+e^{−ε₀}) = 1 − e^{ε−ε₀}
    share = (delta - atom.delta) / (1 - atom.delta) * (1 + math.exp(-atom.epsilon))
    return max(0.0, atom.epsilon + math.log1p(-share)) if share < 1 else 0.0


def jacobian_constant(atom: ObjectivePerturbation) -> float:
    """c₀ = ln(1 + β/λ) with β = R²/4 the largest curvature of one record's logistic loss."""
    return math.log1p(atom.norm_bound**2 / (4 * atom.lambda_sum))


def objective_delta(atom: ObjectivePerturbation, epsilon: float, neighboring_relation: str) -> float:
    """Upper bound on δ(ε) of logistic objective perturbation with its exact minimum released.

    add_remove.  With a = R/noise_std, H the profile of the a-Gaussian pair and c₀ of :func:`jacobian_constant`, the
    loss is at most c₀ + (a²/2 + Z)₊, Z ~ N(0, a²), in both directions; and for ε ≥ R²/lambda_sum the Jacobian term is
    paid for by the slack of p < 1, so that δ(ε) ≤ H(ε).  Proof: docs/proofs-objective.md.  Hence

        δ(ε) ≤ H(ε) if ε ≥ R²/lambda_sum;  ≤ H(ε − c₀) if ε ≥ c₀;  ≤ 1 − 2 e^{ε−c₀} Φ(−a/2) below c₀,

    the last from E[1 − e^{ε−c₀−W}] with W = (a²/2 + Z)₊ and E e^{−W} = 2Φ(−a/2).

    replace_one.  A group of two: (ε₁, δ₁) twice gives (2ε₁, δ₁(1 + e^{ε₁})).
    """
    if neighboring_relation == REPLACE_ONE:
        half = epsilon / 2
        return min(1.0, objective_delta(atom, half, "add_remove") * (1 + math.exp(half))) if half < 700 else 1.0
    if atom.noise_std < 1e-150 * atom.norm_bound:
        return 1.0
    a = atom.norm_bound / atom.noise_std
    shifted = epsilon - jacobian_constant(atom)
    if shifted >= 0:
        bound = math.exp(gaussian_log_delta(shifted, a))
    else:
        bound = 1 - 2 * math.exp(shifted) * float(special.ndtr(-a / 2))
    if epsilon >= atom.norm_bound**2 / atom.lambda_sum:
        bound = min(bound, math.exp(gaussian_log_delta(epsilon, a)))
    return min(1.0, max(0.0, bound))


def objective_epsilon(atom: ObjectivePerturbation, delta: float, neighboring_relation: str) -> float:
    """Smallest ε that :func:`objective_delta` gives for δ: min(max(R²/λ, ε_H(δ)), c₀ + ε_H(δ)) under add_remove."""
    if delta == 0:
        return math.inf
    if neighboring_relation == REPLACE_ONE:
        return _objective_epsilon_of_two(atom, delta)
    if atom.noise_std < 1e-150 * atom.norm_bound:
        return math.inf
    a = atom.norm_bound / atom.noise_std
    plain = gaussian_epsilon_unchecked(delta, a)
    free = max(atom.norm_bound**2 / atom.lambda_sum, plain)
    priced = jacobian_constant(atom) + plain
    if plain == 0:  # δ ≥ H(0): below c₀ the third form may give less
        tail = 2 * float(special.ndtr(-a / 2))
        priced = max(0.0, jacobian_constant(atom) + math.log((1 - delta) / tail)) if tail > 0 else priced
    return min(free, priced)


def _objective_epsilon_of_two(atom: ObjectivePerturbation, delta: float) -> float:
    """Bisection that keeps an upper end which holds; δ₁(ε)(1 + e^ε) need not be monotone, every answer holds."""

    def holds(half: float) -> bool:
        return objective_delta(atom, 2 * half, REPLACE_ONE) <= delta

    if holds(0.0):
        return 0.0
    high = 1e-3
    while not holds(high):
        high *= 2
        if high > 690:
            return math.inf
    low = high / 2 if high > 1e-3 else 0.0
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return 2 * high
