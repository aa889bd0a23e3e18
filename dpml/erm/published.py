"""Objective perturbation as published, for reference and comparison: noise and regularisation, in sum form.

``lipschitz`` = L and ``smoothness`` = β bound one record's gradient and Hessian, ``n`` is absorbed: λ = nΛ and the
linear term is bᵀθ beside the *sum* of the losses.  The default of :mod:`dpml.erm.objective` needs less noise than any
of these.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq

from dpml import errors
from dpml.accounting import ADD_REMOVE, REPLACE_ONE, gaussian_noise_multiplier
from dpml.accounting.conversions import gaussian_log_delta

MOST_GROWTH = 300  # of λ by 5 %: two million times, where c₀ is nothing beside ε


def cms11(epsilon: float, lambda_sum: float, lipschitz: float, smoothness: float) -> tuple[float, float, float]:
    """(ε', extra λ, noise scale) of Chaudhuri, Monteleoni & Sarwate 2011, Algorithm 2; pure ε under replace_one.

    ε' = ε − 2 ln(1 + β/λ); if that is not positive, Δ = β/(e^{ε/4} − 1) − λ is added to λ and ε' = ε/2.  The norm of b
    is Gamma(d, 2L/ε').  For ‖x‖ ≤ R: L = R and β = R²/4 (logistic), with the square on R.
    """
    reduced = epsilon - 2.0 * math.log1p(smoothness / lambda_sum)
    extra = 0.0
    if reduced <= 0.0:
        extra = smoothness / math.expm1(epsilon / 4.0) - lambda_sum
        reduced = epsilon / 2.0
    return reduced, extra, 2.0 * lipschitz / reduced


def kst12(
    epsilon: float, delta: float, lipschitz: float, smoothness: float, neighboring_relation: str = ADD_REMOVE
) -> tuple[float, float]:
    """(σ, smallest λ) of Kifer, Smith & Thakurta 2012, Algorithm 1, Gaussian: λ ≥ 2β/ε, σ² = L²(8 ln(2/δ) + 4ε)/ε².

    The gradient moves by L under add_remove; under replace_one by 2L, and σ doubles.
    """
    reach = lipschitz * (2.0 if neighboring_relation == REPLACE_ONE else 1.0)
    return reach * math.sqrt(8.0 * math.log(2.0 / delta) + 4.0 * epsilon) / epsilon, 2.0 * smoothness / epsilon


def redberg23_delta(epsilon: float, noise_std: float, lambda_sum: float, lipschitz: float, smoothness: float) -> float:
    """δ(ε) of Redberg, Koskela & Wang 2023, Theorem 3.1 (add_remove), with their c₀ = |ln(1 − β/λ)|, λ > β.

    With a = L/σ: 2H(ε − c₀) if ε − c₀ > a²/2, else 1 − e^h + 2e^h H(a²/2) for h = ε − c₀ − a²/2; H the Gaussian
    profile.
    """
    if lambda_sum <= smoothness:
        return 1.0
    a = lipschitz / noise_std
    left = epsilon + math.log1p(-smoothness / lambda_sum)
    h = left - a * a / 2.0
    if h > 0.0:
        return min(1.0, 2.0 * math.exp(gaussian_log_delta(left, a)))
    return min(1.0, 1.0 - math.exp(h) + 2.0 * math.exp(h) * math.exp(gaussian_log_delta(a * a / 2.0, a)))


def redberg23_noise(epsilon: float, delta: float, lambda_sum: float, lipschitz: float, smoothness: float) -> float:
    """The σ that meets δ at this λ; ``inf`` where c₀ alone passes ε."""
    if lambda_sum <= smoothness or -math.log1p(-smoothness / lambda_sum) >= epsilon:
        return math.inf

    def excess(log_sigma: float) -> float:
        value = redberg23_delta(epsilon, math.exp(log_sigma), lambda_sum, lipschitz, smoothness)
        return math.log(max(value, 1e-320)) - math.log(delta)

    least = gaussian_noise_multiplier(epsilon, delta) * lipschitz
    low, high = math.log(least / 2.0), math.log(least * 2.0)
    while excess(high) > 0.0:
        high += 1.0
        if high > 60.0:
            return math.inf
    return math.exp(float(brentq(excess, low, high, xtol=1e-12))) * (1.0 + 1e-10)


def redberg23(epsilon: float, delta: float, lipschitz: float, smoothness: float) -> tuple[float, float]:
    """(σ, λ) without tuning: from λ = 2β/ε up by 5 % until σ ≤ 1.3 · L · s(ε, δ), s of the Gaussian mechanism."""
    if not epsilon > 0.0:
        raise errors.invalid("epsilon", epsilon, "a finite number > 0")
    enough = 1.3 * lipschitz * gaussian_noise_multiplier(epsilon, delta)
    lambda_sum = 2.0 * smoothness / epsilon
    noise_std = math.inf
    for _ in range(MOST_GROWTH):
        noise_std = redberg23_noise(epsilon, delta, lambda_sum, lipschitz, smoothness)
        if noise_std <= enough:
            break
        lambda_sum *= 1.05
    return noise_std, lambda_sum  # at large δ no λ gets there: |Z| costs more than Z
