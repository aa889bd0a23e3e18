"""Objective perturbation: bounds on the privacy loss of the exact minimum of Σ ℓ + (λ/2)‖θ‖² + bᵀθ, b ~ N(0, σ² I).

The Jacobian of θ ↦ b costs at most c₀ = ln(1 + β/λ), β = ``curvature_bound``·R², under either relation.  The rest of
the loss is a quadratic, convex function of the records' slopes, hence largest at an extreme slope, where it is a
Gaussian variable V_m ~ N(m²/2, m²) of some ratio m.  With a = ``slope_bound``·R/σ the loss is at most c₀ + W with W
the largest of

    add_remove:   0 and V_a (monotone loss);  a²/2 + |Z|, Z ~ N(0, a²), else
    replace_one:  0, two V_a and one V_{2a} (monotone loss);  0, two V_{m₁} and two V_{m₂}, m₁² + m₂² ≤ 4a², else.

H_m(h) = E(1 − e^{h−V_m})₊ is the Gaussian profile; (1 − e^{h−W})₊ is at most the sum over the V's for h ≥ 0.  Logistic
loss under add_remove pays no c₀ at all from ε = R²/λ on.  Proofs: docs/proofs-objective.md, sections 3, 4, 9 and 10.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from dpml.accounting.conversions import find_root, gaussian_epsilon_unchecked, gaussian_log_delta
from dpml.accounting.events import ADD_REMOVE, REPLACE_ONE, ObjectivePerturbation

_TINY_NOISE = 1e-150
_UP = 1 + 1e-13


def jacobian_constant(atom: ObjectivePerturbation) -> float:
    """c₀ = ln(1 + β/λ), β = curvature_bound·R² the largest curvature of one record's loss."""
    return math.log1p(atom.curvature_bound * atom.norm_bound**2 / atom.lambda_sum)


def ratio(atom: ObjectivePerturbation) -> float:
    """a = slope_bound·R/σ; ``inf`` without noise."""
    reach = atom.slope_bound * atom.norm_bound
    return reach / atom.noise_std if atom.noise_std > _TINY_NOISE * reach else math.inf


def is_monotone(atom: ObjectivePerturbation) -> bool:
    """Whether one record's slope keeps its sign."""
    return atom.loss != "general"


def delta(atom: ObjectivePerturbation, epsilon: float, neighboring_relation: str) -> float:
    """Upper bound on δ(ε), ε ≥ 0.

    With a, c₀ and W of the module: δ(ε) ≤ E(1 − e^{ε−c₀−W})₊, and for logistic loss under add_remove δ(ε) ≤ H_a(ε) as
    soon as ε ≥ R²/λ.  Under replace_one the smaller of that and of the group of two: (ε₁, δ₁) of add_remove twice
    gives (2ε₁, δ₁(1 + e^{ε₁})).
    """
    a = ratio(atom)
    if math.isinf(a):
        return 1.0
    bound = _excess(atom, a, epsilon - jacobian_constant(atom), neighboring_relation)
    if neighboring_relation == REPLACE_ONE:
        half = epsilon / 2
        if half < 700:
            bound = min(bound, delta(atom, half, ADD_REMOVE) * (1 + math.exp(half)))
    elif atom.loss == "logistic" and epsilon >= atom.norm_bound**2 / atom.lambda_sum:
        bound = min(bound, math.exp(gaussian_log_delta(epsilon, a)))
    return min(1.0, max(0.0, bound))


def _excess(atom: ObjectivePerturbation, a: float, h: float, relation: str) -> float:
    """E(1 − e^{h−W})₊ or an upper bound on it."""
    if relation == ADD_REMOVE and is_monotone(atom):  # E e^{−W} = 2Φ(−a/2)
        return _profile(h, a) if h >= 0 else 1 - 2 * math.exp(h) * float(special.ndtr(-a / 2))
    if relation == ADD_REMOVE:  # W = a²/2 + |Z| ≥ a²/2, E e^{−W} = 2Φ(−a)
        return 2 * _profile(h, a) if h >= a * a / 2 else -math.expm1(math.log(2) + h + float(special.log_ndtr(-a)))
    if h >= 0:
        return min(1.0, math.fsum(count * _profile(h, m) for count, m in _components(atom, a)))
    # E(1 − e^{h−W}) = 1 − e^h(1 − E(1 − e^{−W})) as W ≥ 0
    return 1 - math.exp(h) * (1 - _excess(atom, a, 0.0, relation))


def _components(atom: ObjectivePerturbation, a: float) -> tuple[tuple[int, float], ...]:
    """(number, m) of the Gaussian variables under replace_one; of m₁ ≥ m₂ the smaller is at most √2·a."""
    return ((2, a), (1, 2 * a)) if is_monotone(atom) else ((2, math.sqrt(2) * a), (2, 2 * a))


def _profile(h: float, m: float) -> float:
    return math.exp(gaussian_log_delta(h, m))


def epsilon(atom: ObjectivePerturbation, delta_target: float, neighboring_relation: str) -> float:
    """The smallest ε for which :func:`delta` is found to be at most ``delta_target``."""
    a = ratio(atom)
    if delta_target == 0 or math.isinf(a):
        return math.inf
    if neighboring_relation == REPLACE_ONE or not is_monotone(atom):
        return _search(atom, delta_target, neighboring_relation)
    # add_remove, monotone: min(max(R²/λ, ε_H(δ)), c₀ + ε_H(δ)), the first for logistic loss only
    plain, constant = gaussian_epsilon_unchecked(delta_target, a), jacobian_constant(atom)
    priced = constant + plain
    if plain == 0:  # δ ≥ H(0): below c₀ the loss's mean may give less
        tail = 2 * float(special.ndtr(-a / 2))
        priced = max(0.0, constant + math.log((1 - delta_target) / tail)) if tail > 0 else priced
    if atom.loss != "logistic":
        return priced
    return min(max(atom.norm_bound**2 / atom.lambda_sum, plain), priced)


def _search(atom: ObjectivePerturbation, delta_target: float, relation: str) -> float:
    """A root of ln δ(ε) = ln delta_target, moved up until it holds; δ need not be monotone, every answer holds."""

    def excess(point: float) -> float:
        return math.log(max(delta(atom, point, relation), 1e-320)) - math.log(delta_target)

    def holds(point: float) -> bool:
        return delta(atom, point, relation) <= delta_target

    if holds(0.0):
        return 0.0
    high = max(1e-3, jacobian_constant(atom) + gaussian_epsilon_unchecked(delta_target, 2 * ratio(atom)))
    while high < 1e9 and not holds(high):
        high *= 1.5
    if not high < 1e9:
        return math.inf
    low = high / 1.5
    while holds(low):
        low, high = low / 1.5, low
    found, step = find_root(excess, low, high, xtol=1e-14, rtol=1e-13), 1e-13
    while found < high and not holds(found):
        found += step * high
        step *= 2
    return min(found, high)


def rdp(atom: ObjectivePerturbation, alpha: np.ndarray, neighboring_relation: str) -> np.ndarray:
    """c₀ + ln E e^{tW}/t, t = α − 1, for orders α > 1.

    E[e^{tV}; V > 0] = e^{t(t+1)m²/2}·Φ(m/2 + tm), and E e^{tW} ≤ 1 + Σ E(e^{tV} − 1)₊; for the two cases of add_remove
    the moment is exact: Φ(−a/2) + E[e^{tV_a}; V_a > 0], and 2 e^{t(t+1)a²/2}·Φ(ta).
    """
    a = ratio(atom)
    if math.isinf(a):
        return np.full(alpha.shape, np.inf)
    t = alpha - 1
    if neighboring_relation == ADD_REMOVE and is_monotone(atom):
        moment = np.logaddexp(special.log_ndtr(-a / 2), _upper(t, a))
    elif neighboring_relation == ADD_REMOVE:
        moment = math.log(2) + t * (t + 1) * a * a / 2 + special.log_ndtr(t * a)
    else:
        parts = [math.log(n) + _log_difference(_upper(t, m), m) for n, m in _components(atom, a)]
        moment = np.logaddexp(0.0, np.logaddexp(parts[0], parts[1]))
    return np.asarray(jacobian_constant(atom) + moment / t) * _UP


def _upper(t: np.ndarray, m: float) -> np.ndarray:
    return np.asarray(t * (t + 1) * m * m / 2 + special.log_ndtr(m / 2 + t * m))


def _log_difference(upper: np.ndarray, m: float) -> np.ndarray:
    """ln(e^{upper} − Φ(m/2)), rounded up."""
    gap = upper - float(special.log_ndtr(m / 2))
    with np.errstate(divide="ignore"):
        return np.asarray(upper + np.log(np.minimum(-np.expm1(-gap) + 1e-15, 1.0)))
