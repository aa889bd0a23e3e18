"""Rényi DP: divergences of all events at many orders, added up, then turned into (ε, δ).

The Poisson-sampled Gaussian is computed, not bounded: exact binomial sums at integer orders and a trapezoid sum of an
analytic integrand (which converges exponentially) at the others.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import special

from dpml.accounting.conversions import rdp_to_delta, rdp_to_epsilon
from dpml.accounting.events import (
    ADD_REMOVE,
    REPLACE_ONE,
    ZCDP,
    EpsilonDelta,
    Event,
    Gaussian,
    Laplace,
    ObjectivePerturbation,
    PoissonSampled,
    effective,
    event_name,
    flatten,
)
from dpml.accounting.exact import jacobian_constant
from dpml.errors import UnsupportedEventError, invalid

ORDERS: tuple[float, ...] = tuple(
    sorted(
        {1 + 2.0**-k for k in range(1, 13)}
        | {1.1, 1.2, 1.3, 1.4, 1.6, 1.75, 1.9, 2.25, 2.5, 2.75, 3.25, 3.5, 3.75, 4.5, 5.5, 6.5, 7.5}
        | {float(k) for k in range(2, 65)}
        | {float(round(64 * 2 ** (k / 6))) for k in range(61)}
    )
)
_MAX_POINTS = 200_000
_FAR = 600.0  # exponents from here on are kept in logs
_UP = 1 + 1e-13  # more than the rounding errors of the closed forms


def rdp(event: Event, orders: np.ndarray, neighboring_relation: str) -> np.ndarray:
    """D_α, the larger of both directions, of the whole event at each order > 1; shape as ``orders``.

    Raises:
        ConfigError: an order that is not a finite number > 1.
        UnsupportedEventError: an event without finite Rényi divergences, or under a relation without a proof.
    """
    orders = np.atleast_1d(np.asarray(orders, dtype=float))
    if orders.size == 0 or not np.all(np.isfinite(orders)) or np.any(orders <= 1):
        raise invalid("orders", orders.tolist(), "finite numbers > 1")
    total = np.zeros(orders.shape)
    with np.errstate(over="ignore"):  # to inf
        for atom, count in flatten(event).items():
            total = total + count * _values(atom, tuple(orders.tolist()), neighboring_relation)
    return total


def epsilon(event: Event, delta: float, neighboring_relation: str) -> float:
    """ε(δ) over the order grid, 0 < δ < 1; every order gives a valid bound.  0 only where nothing is charged."""
    if not flatten(event):
        return 0.0
    orders = np.array(ORDERS)
    return rdp_to_epsilon(orders, rdp(event, orders, neighboring_relation), delta)


def delta(event: Event, epsilon: float, neighboring_relation: str) -> float:
    """δ(ε) over the order grid.  0 only where nothing is charged."""
    if not flatten(event):
        return 0.0
    orders = np.array(ORDERS)
    return rdp_to_delta(orders, rdp(event, orders, neighboring_relation), epsilon)


@lru_cache(maxsize=4096)
def _values(atom: Event, orders: tuple[float, ...], relation: str) -> np.ndarray:
    alpha = np.array(orders)
    if isinstance(atom, Gaussian):
        return _gaussian(effective(atom.noise_multiplier, relation), alpha)
    if isinstance(atom, Laplace):
        return _laplace(effective(atom.noise_multiplier, relation), alpha)
    if isinstance(atom, ZCDP):
        return atom.rho * alpha
    if isinstance(atom, EpsilonDelta) and atom.delta == 0:
        return _pure(atom.epsilon, alpha)
    if isinstance(atom, ObjectivePerturbation) and relation == ADD_REMOVE:
        return _objective(atom, alpha)
    if isinstance(atom, PoissonSampled):
        inner = atom.event
        if isinstance(inner, Gaussian):
            return np.array(
                [_sampled(atom.sampling_probability, inner.noise_multiplier, order, relation) for order in orders]
            )
        if not isinstance(inner, ObjectivePerturbation):
            # joint quasi-convexity: sampling never increases a Rényi divergence (no amplification is claimed)
            return rdp(inner, alpha, relation)
    raise UnsupportedEventError(
        f"accountant 'rdp' cannot bound event {event_name(atom)!r} under {relation}; use accountant='best'."
    )


def _gaussian(sigma: float, alpha: np.ndarray) -> np.ndarray:
    """α/(2σ²): Mironov 2017, Proposition 7."""
    return alpha / 2 / sigma / sigma if sigma > 1e-150 else np.full(alpha.shape, np.inf)


def _laplace(scale: float, alpha: np.ndarray) -> np.ndarray:
    """ln[α/(2α−1)·e^{(α−1)/b} + (α−1)/(2α−1)·e^{−α/b}]/(α−1): Mironov 2017, Proposition 6."""
    if scale < 1e-300:
        return np.full(alpha.shape, np.inf)
    # Σ coefficients = 1 and the linear terms cancel, so that the moment − 1 is a sum of two terms ≥ 0
    t, x = alpha - 1, 1 / scale
    near = alpha * x < _FAR
    t_x, alpha_x = np.where(near, t * x, 0.0), np.where(near, alpha * x, 0.0)
    excess = (alpha * _exp_remainder(t_x) + t * _exp_remainder(-alpha_x)) / (2 * alpha - 1)
    far = np.logaddexp(np.log1p(-t / (2 * alpha - 1)) + t * x, np.log(t / (2 * alpha - 1)) - alpha * x)
    return np.minimum(np.where(near, np.log1p(excess), far) / t * _UP, x)


def _pure(pure: float, alpha: np.ndarray) -> np.ndarray:
    """The worst ε-DP pair is randomized response: ln[cosh((α−½)ε)/cosh(ε/2)]/(α−1).

    cosh A/cosh B − 1 = 2 sinh((A+B)/2) sinh((A−B)/2)/cosh B has no cancellation at small ε.
    """
    t = alpha - 1
    near = alpha * pure < _FAR
    half = np.where(near, alpha * pure, 0.0) / 2
    excess = 2 * np.sinh(half) * np.sinh(np.where(near, t * pure, 0.0) / 2) / np.cosh(min(pure, _FAR) / 2)
    # ln cosh y = y + ln(1 + e^{−2y}) − ln 2
    far = t * pure + np.log1p(np.exp(-(2 * alpha - 1) * pure)) - math.log1p(math.exp(-pure))
    return np.minimum(np.where(near, np.log1p(excess), far) / t * _UP, pure)


def _exp_remainder(y: np.ndarray) -> np.ndarray:
    """e^y − 1 − y ≥ 0 to a few units in the last place, by its series for |y| < 1/2."""
    small = np.where(np.abs(y) < 0.5, y, 0.0)
    series = np.zeros_like(small)
    for k in range(18, 2, -1):  # y²/2·(1 + y/3·(1 + y/4·(…)))
        series = (1 + series) * small / k
    return np.where(np.abs(y) < 0.5, small * small / 2 * (1 + series), np.expm1(y) - y)


def _objective(atom: ObjectivePerturbation, alpha: np.ndarray) -> np.ndarray:
    """From the loss bound c₀ + (a²/2 + Z)₊, Z ~ N(0, a²) (exact.objective_delta), t = α − 1:

    D_α ≤ c₀ + ln[Φ(−a/2) + e^{t(t+1)a²/2}·Φ(a/2 + ta)]/t, the moment function of that variable.
    """
    if atom.noise_std < 1e-150 * atom.norm_bound:
        return np.full(alpha.shape, np.inf)
    a, t = atom.norm_bound / atom.noise_std, alpha - 1
    upper = t * (t + 1) * a * a / 2 + special.log_ndtr(a / 2 + t * a)
    return jacobian_constant(atom) + np.logaddexp(special.log_ndtr(-a / 2), upper) / t


@lru_cache(maxsize=65536)
def _sampled(q: float, noise_multiplier: float, order: float, relation: str) -> float:
    unsampled = float(_gaussian(effective(noise_multiplier, relation), np.array([order]))[0])
    if math.isinf(unsampled):
        return math.inf
    if relation == REPLACE_ONE:
        log_moment = _log_moment_replace(q, noise_multiplier, order)
    elif order == int(order):
        log_moment = _log_moment_integer(q, noise_multiplier, int(order))
    else:
        log_moment = _log_moment_fractional(q, noise_multiplier, order)
    return min(max(log_moment, 0.0) / (order - 1), unsampled)


def _log_moment_integer(q: float, sigma: float, order: int) -> float:
    """ln E_{μ₀}[((1−q)μ₀+qμ₁)/μ₀]^α = ln(1 + Σ_{k≥2} C(α,k)(1−q)^{α−k}q^k (e^{k(k−1)/2σ²} − 1)).

    Mironov, Talwar & Zhang 2019, section 3.3; subtracting the binomial sum Σ = 1 keeps the digits of tiny values.
    Their Theorem 5: this direction (remove) is the larger one at every order.
    """
    k = np.arange(2, order + 1, dtype=float)
    log_terms = (
        special.gammaln(order + 1)
        - special.gammaln(k + 1)
        - special.gammaln(order - k + 1)
        + (order - k) * math.log1p(-q)
        + k * math.log(q)
    )
    growth = k * (k - 1) / (2 * sigma * sigma)
    with np.errstate(over="ignore"):
        log_terms += np.where(growth > 30, growth, np.log(np.expm1(np.minimum(growth, 30.0))))
    return float(np.logaddexp(0.0, special.logsumexp(log_terms)))


def _grid(sigma: float, low: float, high: float, step: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Points x and log weights of the trapezoid rule for N(0, σ²); None when too many would be needed."""
    if (high - low) / step > _MAX_POINTS:
        return None
    x = step * np.arange(math.floor(low / step), math.ceil(high / step) + 1)
    return x, -x * x / (2 * sigma * sigma) - math.log(sigma * math.sqrt(2 * math.pi)) + math.log(step)


def _log_ratio(q: float, exponent: np.ndarray) -> np.ndarray:
    """ln(1 − q + q·e^exponent) without overflow and without losing small values."""
    small = np.log1p(q * np.expm1(np.minimum(exponent, 1.0)))
    large = exponent + np.log(q + (1 - q) * np.exp(-np.maximum(exponent, 1.0)))
    return np.where(exponent < 1.0, small, large)


def _log_moment_fractional(q: float, sigma: float, order: float) -> float:
    """ln E_{μ₀}[r^α], r = 1−q+q·e^{(2x−1)/2σ²}, as ln(1 + E[r^α − 1 − α(r−1)]) because E[r] = 1.

    The integrand is analytic for |Im x| < πσ² (branch points of ln r), so the step is tied to σ².
    """
    grid = _grid(sigma, -13 * sigma - 1, order + 13 * sigma + 1, min(sigma / 5, 0.25 * sigma * sigma))
    if grid is None:
        return math.inf
    x, log_weight = grid
    exponent = (2 * x - 1) / (2 * sigma * sigma)
    return _log_convex_moment(log_weight, _log_ratio(q, exponent), order)


def _log_moment_replace(q: float, sigma: float, order: float) -> float:
    """ln E_Q[(P/Q)^α] with P = (1−q)N(0)+qN(1), Q = (1−q)N(0)+qN(−1): the pair of a replaced record.

    The pair is symmetric, so one direction serves.  Near zeros of Q the power 1−α limits the usable strip to about
    σ²/√α, hence the step.
    """
    step = min(sigma / 5, 0.15 * sigma * sigma / math.sqrt(order))
    grid = _grid(sigma, -13 * sigma - 1, 2 * order + 13 * sigma + 1, step)
    if grid is None:
        return math.inf
    x, log_weight = grid
    up = _log_ratio(q, (2 * x - 1) / (2 * sigma * sigma))
    down = _log_ratio(q, (-2 * x - 1) / (2 * sigma * sigma))
    return _log_convex_moment(log_weight + down, up - down, order)


def _log_convex_moment(log_weight: np.ndarray, log_ratio: np.ndarray, order: float) -> float:
    """ln(1 + Σ w·(r^α − 1 − α(r − 1))) for Σ w ≈ Σ w·r ≈ 1; every term is ≥ 0, so nothing cancels outside."""
    power = order * log_ratio
    near = np.abs(power) < 600
    small = np.where(near, power, 0.0)
    ratio = np.where(near, log_ratio, 0.0)
    # the linear terms αu cancel: taken out first, tiny ratios keep their digits
    inner = np.maximum(_exp_remainder(small) - order * _exp_remainder(ratio), 0.0)
    with np.errstate(divide="ignore"):
        log_inner = np.where(near, np.log(inner), 0.0)
    # far above: r^α(1 − α·r^{1−α}) or simply r^α; far below: −1 + α(1−r) ≤ α
    share = order * np.exp(np.minimum((1 - order) * log_ratio, 0.0))
    above = power + np.log1p(-np.where(share < 0.9, share, 0.0))
    far = np.where(power > 0, above, math.log(order))
    logs = log_weight + np.where(near, log_inner, far)
    return float(np.logaddexp(0.0, special.logsumexp(logs)))
