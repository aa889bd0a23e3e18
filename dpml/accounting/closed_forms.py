"""Privacy profiles of ONE release with a closed form (and of Gaussians, which merge into one).

One objective perturbation has a closed form that is an upper bound, tight up to the loss's Jacobian term
(:func:`objective_delta`).
"""

from __future__ import annotations

import math

from scipy import special

from dpml.accounting import objective
from dpml.accounting.conversions import find_root, gaussian_epsilon_unchecked, gaussian_log_delta
from dpml.accounting.events import (
    ADD_REMOVE,
    REPLACE_ONE,
    DiscreteLaplace,
    EpsilonDelta,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    ObjectivePerturbation,
    PoissonSampled,
    RandomizedResponse,
    UnequalGaussian,
)
from dpml.accounting.moments import AtomsMoments, moments
from dpml.accounting.normal_form import effective
from dpml.errors import UnsupportedEventError

_UNIT = 2.3e-16
_UP = 1 + 1e-14


def supported(atom: Event, relation: str) -> bool:
    """Whether the atom alone, once, has a closed form here."""
    if isinstance(atom, Gaussian | Laplace | EpsilonDelta | ExponentialMechanism | UnequalGaussian):
        return True
    if isinstance(atom, ObjectivePerturbation):
        return True
    if isinstance(atom, RandomizedResponse | DiscreteLaplace):
        return _atoms(atom, relation) is not None
    return isinstance(atom, PoissonSampled) and isinstance(atom.event, Gaussian) and atom.event.noise_multiplier > 1e-3


def epsilon(atom: Event, delta: float, neighboring_relation: str) -> float:
    """ε(δ), 0 < δ < 1, of one release; the larger of both directions."""
    if isinstance(atom, Gaussian):
        return gaussian_epsilon_unchecked(delta, _mu(atom, neighboring_relation))
    if isinstance(atom, Laplace):
        pure = _pure(atom, neighboring_relation)
        return max(0.0, pure + 2 * math.log1p(-delta)) if math.isfinite(pure) else math.inf
    if isinstance(atom, EpsilonDelta):
        return _epsilon_of_statement(atom, delta)
    if isinstance(atom, ObjectivePerturbation):
        return objective.epsilon(atom, delta, neighboring_relation)
    if isinstance(atom, ExponentialMechanism):  # δ(ε) = (1 − e^{(ε−η)/2})²/(1 − e^{−η})
        share = math.sqrt(delta * -math.expm1(-atom.epsilon))
        return max(0.0, atom.epsilon + 2 * math.log1p(-share)) if share < 1 else 0.0
    return _invert(atom, delta, neighboring_relation)


def delta(atom: Event, epsilon: float, neighboring_relation: str) -> float:
    """δ(ε), ε ≥ 0, of one release; the larger of both directions."""
    if isinstance(atom, Gaussian):
        return min(1.0, math.exp(gaussian_log_delta(epsilon, _mu(atom, neighboring_relation))))
    if isinstance(atom, Laplace):
        pure = _pure(atom, neighboring_relation)
        return -math.expm1((epsilon - pure) / 2) if epsilon < pure else 0.0
    if isinstance(atom, EpsilonDelta):
        return _delta_of_statement(atom, epsilon)
    if isinstance(atom, ObjectivePerturbation):
        return objective.delta(atom, epsilon, neighboring_relation)
    if isinstance(atom, ExponentialMechanism):
        if epsilon >= atom.epsilon:
            return 0.0
        return math.expm1((epsilon - atom.epsilon) / 2) ** 2 / -math.expm1(-atom.epsilon) * _UP
    if isinstance(atom, UnequalGaussian):
        return max(
            _unequal_delta(atom.shift, atom.noise_std, atom.other_noise_std, epsilon),
            _unequal_delta(atom.shift, atom.other_noise_std, atom.noise_std, epsilon),
        )
    if isinstance(atom, PoissonSampled):
        return _sampled_gaussian_delta(atom, epsilon, neighboring_relation)
    pair = _atoms(atom, neighboring_relation)
    if pair is None:
        raise UnsupportedEventError(f"no closed form for event {atom.type!r} under {neighboring_relation}.")
    total = math.fsum(
        -mass * math.expm1(epsilon - loss)
        for loss, mass in zip(pair.losses, pair.masses, strict=True)
        if loss > epsilon
    )
    return min(1.0, (total + pair.infinite) * _UP)


def _invert(atom: Event, target: float, relation: str) -> float:
    """Smallest ε ≥ 0 found with δ(ε) ≤ target; the answer itself was checked."""
    if delta(atom, 0.0, relation) <= target:
        return 0.0
    high = 1.0
    while delta(atom, high, relation) > target:
        high *= 2
        if high > 1e9:
            return math.inf
    low = high / 2 if high > 1.0 else 0.0
    log_target = math.log(target)
    root = find_root(
        lambda e: math.log(max(delta(atom, e, relation), 1e-320)) - log_target, low, high, xtol=1e-300, rtol=1e-14
    )
    step = 4e-15
    while delta(atom, root, relation) > target:
        root += step * max(root, 1e-6)
        step *= 2
    return root


def _atoms(atom: Event, relation: str) -> AtomsMoments | None:
    try:
        pair = moments(atom, relation, "remove")
    except UnsupportedEventError:
        return None
    return pair if isinstance(pair, AtomsMoments) else None


def _sampled_gaussian_delta(atom: PoissonSampled, epsilon: float, relation: str) -> float:
    """One Poisson-sampled Gaussian.  With G the profile of the unsampled pair (μ = 1/σ):

    remove: (1−q)Q + qP against Q gives q·G(ln(1 + (e^ε − 1)/q))  (Balle, Barthe & Gaboardi 2018, Theorem 8);
    add: Q against (1−q)Q + qP gives (1 − e^ε(1−q))·G(ln(q e^ε/(1 − e^ε(1−q)))) for e^ε(1−q) < 1, else 0.
    replace_one: (1−q)N(0) + qN(1) against (1−q)N(0) + qN(−1), by the two masses above the point of loss ε.
    """
    q, sigma = atom.sampling_probability, atom.event.noise_multiplier  # type: ignore[attr-defined]
    if relation == ADD_REMOVE:
        # ln(1 + (e^ε − 1)/q), and for add ln(1 + (e^ε − 1)/gap): nothing cancels; gap is rounded up, as δ grows with it
        growth = math.expm1(epsilon) if epsilon < 700 else math.inf
        inner = math.log1p(growth / q) if growth / q < 1e300 else epsilon - math.log(q)
        found = q * _profile(inner, sigma)
        gap = q - (1 - q) * growth
        gap += 4 * _UNIT * (q + growth) if math.isfinite(gap) else 0.0
        if gap > 0:
            found = max(found, gap * _profile(math.log1p(growth / gap), sigma))
        return min(1.0, found * (1 + 1e-13))
    value, allowance = _replaced(atom, epsilon)
    return min(1.0, value + allowance)


def _replaced(atom: PoissonSampled, epsilon: float) -> tuple[float, float]:
    """δ of one sampled Gaussian under replace_one by the two masses, and an allowance for its rounding."""
    q, sigma = atom.sampling_probability, atom.event.noise_multiplier  # type: ignore[attr-defined]
    # u = e^{x/σ²} solves q·k·u² − (1−q)(e^ε − 1)u − e^ε·q·k = 0, k = e^{−1/2σ²}: the point of loss ε (in logs)
    log_qk = math.log(q) - 1 / (2 * sigma * sigma)
    linear = math.log1p(-q) + epsilon + math.log(-math.expm1(-epsilon)) if epsilon > 0 else -math.inf
    root = 0.5 * _logaddexp(2 * linear, 2 * (math.log(2) + log_qk) + epsilon)
    point = sigma * sigma * (_logaddexp(linear, root) - math.log(2) - log_qk)
    zero, one, minus = (float(special.log_ndtr((shift - point) / sigma)) for shift in (0.0, 1.0, -1.0))
    top = max(zero, one, minus + epsilon)
    upper = (1 - q) * math.exp(zero - top) + q * math.exp(one - top)
    lower = (1 - q) * math.exp(epsilon + zero - top) + q * math.exp(epsilon + minus - top)
    allowance = _UNIT * (upper + lower) * (16 + 4 * abs(top))
    scale = math.exp(top)
    return scale * max(upper - lower, 0.0), scale * allowance


def _profile(inner: float, sigma: float) -> float:
    """δ of the unsampled Gaussian at ``inner``, rounded up: a relative error e of inner moves ln δ by e(inner·σ)²."""
    return math.exp(gaussian_log_delta(inner, 1 / sigma)) * (1 + 16 * _UNIT * (1 + min((inner * sigma) ** 2, 1e6)))


def slack(atom: Event, epsilon: float, neighboring_relation: str) -> float:
    """How far, relatively, :func:`delta` may lie above the truth at ε by rounding (its additive allowances)."""
    if isinstance(atom, UnequalGaussian):
        allowance = 4e-13 * math.exp(min(epsilon, 700.0))
    elif isinstance(atom, PoissonSampled) and neighboring_relation == REPLACE_ONE:
        allowance = 2 * _replaced(atom, epsilon)[1]
    else:
        return 1e-11
    rounded = delta(atom, epsilon, neighboring_relation)
    return 1e-11 + (allowance / rounded if rounded > 0 else math.inf)


def _logaddexp(a: float, b: float) -> float:
    top = max(a, b)
    return top if math.isinf(top) else top + math.log(math.exp(a - top) + math.exp(b - top))


def _unequal_delta(shift: float, std: float, other: float, epsilon: float) -> float:
    """P = N(0, s²) against Q = N(shift, s′²): P(L > ε) − e^ε Q(L > ε) with the quadratic loss L, rounded up.

    L(x) = ln(s′/s) − x²/2s² + (x − m)²/2s′².
    """
    if std == other:
        return math.exp(gaussian_log_delta(epsilon, shift / std)) if shift > 0 else 0.0
    # L(x) − ε = a x² + b x + c
    a = 1 / (2 * other**2) - 1 / (2 * std**2)
    b = -shift / other**2
    c = math.log(other / std) + shift**2 / (2 * other**2) - epsilon
    square = b * b - 4 * a * c
    if square <= 0:
        return 0.0 if a < 0 else max(0.0, -math.expm1(epsilon))
    root = math.sqrt(square)
    ends = sorted(((-b - root) / (2 * a), (-b + root) / (2 * a)))

    def mass(mean: float, sigma: float) -> float:
        low, high = ((end - mean) / sigma for end in ends)
        if a > 0:
            return float(special.ndtr(low) + special.ndtr(-high))
        return float(special.ndtr(high) - special.ndtr(low) if low < 0 else special.ndtr(-low) - special.ndtr(-high))

    inside, outside = mass(0.0, std), math.exp(min(epsilon, 700.0)) * mass(shift, other)
    return min(1.0, max(inside - outside, 0.0) + 1e-13 * (inside + outside))


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
