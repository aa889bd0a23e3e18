"""Closed forms of Rényi divergences beyond the basic mechanisms; vectors over orders α > 1."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

_UP = 1 + 1e-13  # more than the rounding errors below
_UNIT = float(np.finfo(float).eps)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_BERNOULLI = special.bernoulli(26)
_LOG_SINH = [_BERNOULLI[2 * n] / math.factorial(2 * n) for n in range(1, 14)]  # ln(sinh(y/2)/(y/2)) = Σ cₙ y²ⁿ/(2n)


def unequal_gaussian(shift: float, first: float, second: float, alpha: np.ndarray) -> np.ndarray:
    """D_α of N(0, a²) against N(m, b²), ``inf`` from the order on where αb² + (1 − α)a² ≤ 0.

    ln(b/a) + ln(b²/σ*²)/(2(α−1)) + αm²/(2σ*²), σ*² = αb² + (1−α)a²  (Gil, Alajaji & Linder 2013, table 2).  With
    v = a²/b² − 1 and t = α − 1, σ*²/b² = 1 − tv and the linear terms in v of both logarithms cancel: each term that is
    left is ≥ 0.
    """
    t = alpha - 1
    v = (first - second) * (first + second) / (second * second)
    room = 1 - t * v
    fine = room > 0
    safe = np.where(fine, room, 1.0)
    mixed = np.where(fine, -t * v, 0.0)
    spread = -_log_remainder(np.array(v), np.array(2 * math.log(first / second))) / 2
    spread = spread - _log_remainder(mixed, np.log1p(mixed)) / (2 * t)
    value = spread + alpha * (shift / second) ** 2 / (2 * safe)
    # the relative error of 1 − tv is that of v amplified near the pole
    return np.where(fine, value * (_UP + 4 * _UNIT * (1 + np.abs(t * v)) / safe), math.inf)


def _log_remainder(x: np.ndarray, log: np.ndarray) -> np.ndarray:
    """ln(1 + x) − x ≤ 0 for x > −1, by its series for |x| < 0.1; ``log`` is ln(1 + x)."""
    near = np.abs(x) < 0.1
    small = np.where(near, x, 0.0)
    series = np.zeros_like(small)
    for k in range(20, 1, -1):  # −x²/2 + x³/3 − …
        series = (-1.0) ** (k + 1) / k + small * series
    return np.where(near, small * small * series, log - x)


def bounded_range(pure: float, alpha: np.ndarray) -> np.ndarray:
    """The largest D_α of η-bounded-range pairs: [α·h(αη) − (α−1)·h((α−1)η) − h(η)]/(α−1), h(y) = ln(sinh(y/2)/(y/2)).

    Every such pair is at most as far apart as one with two losses t and t − η (e^{αℓ} is convex in e^ℓ), whose moment
    is A·e^{(α−1)t} + B·e^{αt}, A = (1−e^{−αη})/(1−e^{−η}), B = −e^{−η}(1−e^{−(α−1)η})/(1−e^{−η}).  It is largest at
    e^t = (α−1)A/(−αB), which lies in [1, e^η], with the value A·e^{(α−1)t}/α; the powers of η cancel in logs.  First
    order: αη²/8 (Cesar & Rogers 2021, Lemma 3.4).
    """
    t = alpha - 1
    # α·h(αη) − t·h(tη) − h(η) = t·[h(αη) − h(tη)] + [h(αη) − h(η)]
    value = t * _log_sinh_step(t * pure, np.full_like(t, pure)) + _log_sinh_step(np.full_like(t, pure), t * pure)
    with np.errstate(invalid="ignore"):
        return np.minimum(np.where(np.isfinite(value), value, math.inf) / t * _UP, pure)


def _log_sinh_step(low: np.ndarray, step: np.ndarray) -> np.ndarray:
    """h(low + step) − h(low) ≥ 0: by Gauss–Legendre on h′ for short steps, else the difference and its rounding."""
    short = step < 4
    width = np.where(short, step, 0.0)
    points = low[:, None] + width[:, None] * (_NODES + 1) / 2
    by_slope = _log_sinh_slope(points) @ _WEIGHTS * width / 2
    high = _log_sinh(low + step)
    return np.where(short, by_slope, high - _log_sinh(low) + 8 * _UNIT * (1 + high))


def _log_sinh(y: np.ndarray) -> np.ndarray:
    """h(y) = ln(sinh(y/2)/(y/2)), y ≥ 0."""
    square = np.minimum(y, 1.0) ** 2
    series = np.zeros_like(square)
    for n in range(len(_LOG_SINH), 0, -1):
        series = (_LOG_SINH[n - 1] / (2 * n) + series) * square
    far = np.maximum(y, 1.0)
    return np.where(y < 1, series, far / 2 + np.log(-np.expm1(-far) / far))


def _log_sinh_slope(y: np.ndarray) -> np.ndarray:
    """h′(y) = coth(y/2)/2 − 1/y."""
    near = np.minimum(y, 1.0)
    square, series = near**2, np.zeros_like(y)
    for n in range(len(_LOG_SINH) - 1, -1, -1):
        series = _LOG_SINH[n] + series * square
    far = np.maximum(y, 1.0)
    return np.where(y < 1, near * series, 0.5 / np.tanh(far / 2) - 1 / far)


def log_inverse_gamma(mean: float, shape: float) -> float:
    """ln(1/γ), rounded up, of the truncated negative binomial distribution with this mean and shape η > −1.

    E K = η(1 − γ)/(γ(1 − γ^η)), (1/γ − 1)/ln(1/γ) for η = 0 (Papernot & Steinke 2022, Definition 1); it grows with
    ln(1/γ) = g.
    """
    if mean == 1:
        return 0.0

    def log_mean(g: float) -> float:
        log_odds = g + math.log1p(-math.exp(-g)) if g > 1 else math.log(math.expm1(g))
        y = shape * g
        if abs(y) < 1e-12:  # (1 − e^{−ηg})/η = g up to a share ηg/2
            value = log_odds - math.log(g)
        elif y > 0:
            value = log_odds + math.log(shape) - math.log(-math.expm1(-y))
        else:
            value = log_odds + math.log(-shape) - (-y + math.log(-math.expm1(y)))
        return value - 16 * _UNIT * (1 + abs(math.log(g)) + g)  # rounded down

    target, low, high = math.log(mean) * (1 + 1e-12), 1e-12, 1.0
    while log_mean(high) < target:
        high *= 2
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if log_mean(middle) >= target else (middle, high)
    return high * (1 + 1e-12)


def truncated_selection(
    mean: float, shape: float, alpha: np.ndarray, here: np.ndarray, grid: np.ndarray, base: np.ndarray
) -> np.ndarray:
    """D_α + ln(E K)/(α − 1) + (1 + η)·min over λ of [(1 − 1/λ)·D_λ + ln(1/γ)/λ]  (Papernot & Steinke 2022, Theorem 2).

    ``here`` is D_α of one run at ``alpha``, ``base`` D_λ of one run at ``grid``; λ = 1 is allowed as well.
    """
    g = log_inverse_gamma(mean, shape)
    constant = min(g, float(np.min((1 - 1 / grid) * base + g / grid)))
    return (here + math.log(mean) / (alpha - 1) + (1 + shape) * constant) * _UP


def poisson_selection(mean: float, alpha: np.ndarray, here: np.ndarray, deltas: np.ndarray) -> np.ndarray:
    """ln[e^{−μ} + μ·e^{(α−1)(D_α + μδ)}]/(α − 1), δ that of one run at ε = ln(1 + 1/(α − 1)).

    Papernot & Steinke 2022, Theorem 6 (D_α + μδ + ln(μ)/(α − 1)), whose proof bounds the outcomes of K ≥ 1; the
    outcome of K = 0, the same for all data, adds its probability e^{−μ} to the moment.  Without it a small μ would
    give a negative divergence.
    """
    t = alpha - 1
    with np.errstate(invalid="ignore"):
        chosen = math.log(mean) + t * (here + mean * deltas)
    return np.logaddexp(-mean, chosen) / t * _UP
