"""Closed forms: the Gaussian mechanism's exact profile, and (Rényi, zCDP) ↔ (ε, δ).

Every function that returns a guarantee rounds to the safe side: an ε or a noise multiplier is moved up by a few units
in the last place until the forward formula confirms it.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from dpml.accounting.events import check_number

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
UP = 1 + 4e-15


def find_root(function, low: float, high: float, *, xtol: float, rtol: float) -> float:  # type: ignore[no-untyped-def]
    """Brent's root of ``function`` between two points of opposite sign (scipy is loaded on first use)."""
    from scipy import optimize

    return float(optimize.brentq(function, low, high, xtol=xtol, rtol=rtol))


def _mills(x: np.ndarray | float) -> np.ndarray:
    """Q(x)/φ(x), the Mills ratio of the standard normal."""
    return np.sqrt(np.pi / 2) * special.erfcx(np.asarray(x) / np.sqrt(2))


def gaussian_log_delta(epsilon: float, mu: float) -> float:
    """ln δ(ε) of N(0,1) against N(μ,1); ``-inf`` where δ = 0.  No range checks.

    Balle & Wang 2018, Theorem 8: δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).  With u = ε/μ − μ/2 and v = ε/μ + μ/2 one has
    φ(u) = e^ε φ(v) (because v² − u² = 2ε), hence δ = φ(u)·[m(u) − m(v)] with the Mills ratio m: nothing overflows.
    For small μ the difference is the integral of −m′(x) = 1 − x·m(x) over [u, v].
    """
    if mu == 0:
        return -math.inf
    if math.isinf(mu):
        return 0.0
    u, v = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if u > 1e150:
        return -math.inf
    if u < -1:  # then μ > 2: no cancellation
        value = float(special.ndtr(-u)) - math.exp(-u * u / 2 - _LOG_SQRT_2PI) * float(_mills(v))
        return math.log(value) if value > 0 else -math.inf
    if mu < 0.5:
        x = u + mu * (_NODES + 1) / 2
        difference = float(np.dot(_WEIGHTS, _minus_mills_slope(x))) * mu / 2
    else:
        difference = float(_mills(u) - _mills(v))
    if difference <= 0:
        return -math.inf
    return -u * u / 2 - _LOG_SQRT_2PI + math.log(difference)


def _minus_mills_slope(x: np.ndarray) -> np.ndarray:
    """1 − x·m(x) > 0; for x ≥ 50 the asymptotic series 1/x² − 3/x⁴ + 15/x⁶ (error < 105/x⁸)."""
    large = np.maximum(x, 50.0) ** -2.0
    return np.where(x < 50.0, 1 - x * _mills(np.minimum(x, 50.0)), large - 3 * large**2 + 15 * large**3)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Smallest δ for which a μ-Gaussian pair (μ = sensitivity ÷ noise std) is (ε, δ)-DP; ε, μ ≥ 0.

    Source: Balle & Wang 2018, Theorem 8.  Raises ConfigError for negative or non-finite arguments.
    """
    epsilon, mu = check_number("epsilon", epsilon, 0.0), check_number("mu", mu, 0.0)
    return min(1.0, math.exp(gaussian_log_delta(epsilon, mu)) * UP)


def gaussian_epsilon(delta: float, mu: float) -> float:
    """Smallest ε ≥ 0 for which a μ-Gaussian pair is (ε, δ)-DP; ``inf`` for δ = 0 < μ."""
    delta, mu = check_number("delta", delta, 0.0, 1.0), check_number("mu", mu, 0.0)
    return gaussian_epsilon_unchecked(delta, mu)


def gaussian_epsilon_unchecked(delta: float, mu: float) -> float:
    """:func:`gaussian_epsilon` that also takes μ = ∞."""
    if mu == 0 or delta == 1:
        return 0.0
    if delta == 0 or math.isinf(mu):
        return math.inf
    target = math.log(delta)
    if gaussian_log_delta(0.0, mu) <= target:
        return 0.0
    # Q(u) <= exp(-u²/2) for u >= 0: this ε is enough
    high = mu * mu / 2 + mu * math.sqrt(2 * -target)
    root = find_root(lambda e: gaussian_log_delta(e, mu) - target, 0.0, high * UP, xtol=1e-300, rtol=1e-15)
    return _nudge(root, lambda e: gaussian_log_delta(e, mu) <= target)


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Smallest noise std ÷ L2 sensitivity with which the Gaussian mechanism is (ε, δ)-DP; ε ≥ 0, 0 < δ < 1."""
    epsilon = check_number("epsilon", epsilon, 0.0)
    delta = check_number("delta", delta, 0.0, 1.0, above=True, below=True)
    target = math.log(delta)

    def excess(log_sigma: float) -> float:
        return max(gaussian_log_delta(epsilon, math.exp(-log_sigma)), -1e300) - target

    low = high = math.log(max(math.sqrt(2 * -target) / epsilon, 1e-6) if epsilon > 0 else 1.0)
    while excess(low) <= 0:
        low -= 1.0
    while excess(high) > 0:
        high += 1.0
    sigma = math.exp(find_root(excess, low, high, xtol=1e-15, rtol=1e-15))
    return _nudge(sigma, lambda s: gaussian_log_delta(epsilon, 1 / s) <= target)


def _nudge(value: float, holds) -> float:  # type: ignore[no-untyped-def]
    """``value`` moved up, in steps that double from 4e-15 relative, until ``holds`` is true."""
    step = 4e-15
    while not holds(value):
        value *= 1 + step
        step *= 2
    return value


def rdp_to_epsilon(orders: np.ndarray, values: np.ndarray, delta: float) -> float:
    """Smallest ε over the orders: ε = r + ln((α−1)/α) − (ln δ + ln α)/(α−1), not below 0.

    Source: Canonne, Kamath & Steinke 2020, Proposition 12 (the same as Balle et al. 2020, Theorem 21).
    ``orders`` > 1 and ``values`` (Rényi divergences, may be inf) have the same shape; 0 < δ < 1.
    """
    with np.errstate(invalid="ignore"):
        epsilons = values + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(np.min(epsilons, initial=math.inf)))


def rdp_to_delta(orders: np.ndarray, values: np.ndarray, epsilon: float) -> float:
    """Smallest δ ≤ 1 over the orders: δ = e^{(α−1)(r−ε)}/(α−1) · (1 − 1/α)^α (same sources)."""
    logs = (orders - 1) * (values - epsilon) - np.log(orders - 1) + orders * np.log1p(-1 / orders)
    return min(1.0, math.exp(min(0.0, float(np.min(logs, initial=math.inf)))))


def zcdp_to_epsilon(rho: float, delta: float) -> float:
    """ε(δ) of ρ-zCDP: the bound of :func:`rdp_to_epsilon` with r = ρα, minimised over all real α > 1."""
    if rho == 0:
        return 0.0
    if delta == 0 or math.isinf(rho):
        return math.inf

    def bound(log_order: float) -> float:
        t = math.exp(log_order)  # α − 1
        return rho * (t + 1) + math.log(t / (t + 1)) - (math.log(delta) + math.log1p(t)) / t

    return max(0.0, _minimum(bound, 0.5 * math.log(min(max(-math.log(delta), 1e-3) / rho, 1e200))) * UP)


def zcdp_to_delta(rho: float, epsilon: float) -> float:
    """δ(ε) of ρ-zCDP by :func:`rdp_to_delta` with r = ρα, minimised over all real α > 1."""
    if rho == 0:
        return 0.0
    if math.isinf(rho):
        return 1.0

    def log_delta(log_order: float) -> float:
        t = math.exp(log_order)
        return t * (rho * (t + 1) - epsilon) - math.log(t) + (t + 1) * math.log(t / (t + 1))

    centre = min(max((epsilon - rho) / (2 * rho), 1e-3), 1e100)
    return min(1.0, math.exp(min(0.0, _minimum(log_delta, math.log(centre)))) * (1 + 1e-13))


def _minimum(function, centre: float) -> float:  # type: ignore[no-untyped-def]
    """Smallest value found near ``centre`` on the log axis; accuracy is only a matter of tightness."""
    grid = centre + np.linspace(-12.0, 12.0, 97)
    values = [function(float(x)) for x in grid]
    best = int(np.argmin(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    from scipy import optimize

    bounds, options = (float(low), float(high)), {"xatol": 1e-9}
    found = optimize.minimize_scalar(function, bounds=bounds, method="bounded", options=options)
    return min(float(found.fun), values[best])
