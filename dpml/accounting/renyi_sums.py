"""Moments of losses as sums that keep the digits of tiny divergences: atoms, lattices, half lines, mixtures.

All return ln E_P[e^{(α−1)ℓ}] = (α − 1)·D_α, or ``inf`` where the sum would need too many points.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from dpml.accounting.pairs_cells import group_loss, group_weights
from dpml.accounting.pairs_discrete import Losses

_MAX_POINTS = 200_000
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_UP = 1 + 1e-12  # quadrature and rounding


def exp_remainder(y: np.ndarray) -> np.ndarray:
    """e^y − 1 − y ≥ 0 to a few units in the last place, by its series for |y| < 1/2."""
    small = np.where(np.abs(y) < 0.5, y, 0.0)
    series = np.zeros_like(small)
    for k in range(18, 2, -1):  # y²/2·(1 + y/3·(1 + y/4·(…)))
        series = (1 + series) * small / k
    return np.where(np.abs(y) < 0.5, small * small / 2 * (1 + series), np.expm1(y) - y)


def trapezoid(sigma: float, low: float, high: float, step: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Points x and log weights of the trapezoid rule for N(0, σ²); None when too many would be needed."""
    if (high - low) / step > _MAX_POINTS:
        return None
    x = step * np.arange(math.floor(low / step), math.ceil(high / step) + 1)
    return x, -x * x / (2 * sigma * sigma) - math.log(sigma * math.sqrt(2 * math.pi)) + math.log(step)


def log_ratio(q: float, exponent: np.ndarray) -> np.ndarray:
    """ln(1 − q + q·e^exponent) without overflow and without losing small values."""
    small = np.log1p(q * np.expm1(np.minimum(exponent, 1.0)))
    large = exponent + np.log(q + (1 - q) * np.exp(-np.maximum(exponent, 1.0)))
    return np.where(exponent < 1.0, small, large)


def log_convex_moment(log_weight: np.ndarray, log_ratio: np.ndarray, order: float) -> float:
    """ln(1 + Σ w·(r^α − 1 − α(r − 1))) for Σ w ≈ Σ w·r ≈ 1; every term is ≥ 0, so nothing cancels outside."""
    power = order * log_ratio
    near = np.abs(power) < 600
    ratio = np.where(near, log_ratio, 0.0)
    # r^α − 1 − α(r − 1) = r·[(e^{su} − 1 − su) + s·(e^{−u} − 1 + u)], s = α − 1, u = ln r: nothing cancels
    t = order - 1
    inner = np.exp(ratio) * (exp_remainder(t * ratio) + t * exp_remainder(-ratio))
    with np.errstate(divide="ignore"):
        log_inner = np.where(near, np.log(inner), 0.0)
    # far above: r^α(1 − α·r^{1−α}) or simply r^α; far below: −1 + α(1−r) ≤ α
    share = order * np.exp(np.minimum((1 - order) * log_ratio, 0.0))
    above = power + np.log1p(-np.where(share < 0.9, share, 0.0))
    far = np.where(power > 0, above, math.log(order))
    logs = log_weight + np.where(near, log_inner, far)
    return float(np.logaddexp(0.0, special.logsumexp(logs)))


def atoms_moment(atoms: Losses, order: float, *, exact: bool) -> float:
    """Of a list of atoms; Q-mass that is missing counts as Q-mass at loss −∞ (none is where ``exact``).

    With φ(r) = r^α − 1 − α(r − 1): Σ q·r^α = Σ q·φ(r) + 1 + (α − 1)·(1 − Σ q) because Σ q·r = 1.
    """
    if atoms.infinite > 0:
        return math.inf
    keep = atoms.masses > 0
    losses, log_q = atoms.losses[keep], np.log(atoms.masses[keep]) - atoms.losses[keep]
    moment = log_convex_moment(log_q, losses, order)
    if exact:
        return moment
    missing = max(0.0, 1 - float(np.sum(np.exp(log_q)))) + 1e-15
    return float(np.logaddexp(moment, math.log(order - 1) + math.log(missing)))


def lattice_gaussian(sigma: float, shift: int, order: float) -> float:
    """Z + s against Z, Z discrete Gaussian: α(α−1)s²/2σ² + ln[Σ e^{−(k−αs)²/2σ²} / Σ e^{−k²/2σ²}].

    The quotient is at most 1 and, by Poisson summation, 1 − O(e^{−2π²σ²}): left out for σ ≥ 3.
    """
    value = order * (order - 1) * (shift / sigma) ** 2 / 2
    centre = order * shift
    if sigma >= 3 or not math.isfinite(value) or centre > 1e15:
        return value * _UP
    k = np.arange(-40, 41)
    tops = -(((k - (centre - round(centre))) / sigma) ** 2) / 2
    ratio = special.logsumexp(tops) - special.logsumexp(-((k / sigma) ** 2) / 2)
    return max(0.0, value * _UP + min(0.0, float(ratio) * (1 - 1e-12) + 1e-15))


def lattice_points(sigma: float, shift: int, order: float) -> tuple[np.ndarray, np.ndarray] | None:
    """ln P(Z = k) and the loss of Z + s against Z at the integers that matter at this order; None when too many."""
    low, high = -13 * sigma - shift - 1, (order + 1) * shift + 13 * sigma + 1
    if high - low > _MAX_POINTS or sigma < 1e-3:
        return None
    k = np.arange(math.floor(low), math.ceil(high) + 1)
    near = np.arange(-math.ceil(13 * sigma) - 1, math.ceil(13 * sigma) + 2)
    norm = special.logsumexp(-((near / sigma) ** 2) / 2)
    return -((k / sigma) ** 2) / 2 - norm, shift * (2 * k - shift) / (2 * sigma * sigma)


def sampled_lattice_gaussian(q: float, sigma: float, shift: int, order: float) -> float:
    """Poisson sample under add_remove of the discrete Gaussian, the larger of both directions."""
    points = lattice_points(sigma, shift, order)
    if points is None:
        return math.inf
    log_q, exponent = points
    ratio = log_ratio(q, exponent)
    remove = log_convex_moment(log_q, ratio, order)
    return max(remove, log_convex_moment(log_q + ratio, -ratio, order)) * _UP


def fixed_size_moment(log_q: np.ndarray, log_r: np.ndarray, order: float) -> float:
    """The glued pair of a sample of fixed size (``pairs_discrete.fixed_size``) from ln Q and ln r, r = 1 − γ + γP/Q.

    Above 0 it is r under (1−γ)Q + γP, below 0 it is 1/r under Q on the same points, the rest has loss 0:
    M = 1 + Σ_{r>1} Q·(r^α + r^{1−α} − r − 1), and the bracket is (r^{α−1} − 1)(r^α − 1)·r^{1−α}.
    """
    up = log_r > 0
    u = log_r[up]
    t = order - 1
    with np.errstate(divide="ignore"):
        logs = log_q[up] + _log_expm1(t * u) + _log_expm1(order * u) - t * u
    return float(np.logaddexp(0.0, special.logsumexp(logs))) * _UP if len(logs) else 0.0


def _log_expm1(x: np.ndarray) -> np.ndarray:
    """ln(e^x − 1), x > 0."""
    return np.where(x < 30, np.log(np.expm1(np.minimum(x, 30.0))), x)


def fixed_size_gaussian(q: float, sigma: float, order: float) -> float:
    """N(1, σ²) against N(0, σ²), a share q sampled without replacement: r > 1 for x > ½, Gauss–Legendre there."""
    panel = 0.5 * min(sigma, 2 * sigma * sigma)
    number = math.ceil((order + 13 * sigma) / panel)
    if number * len(_NODES) > _MAX_POINTS:
        return math.inf
    x = (0.5 + panel * (np.arange(number)[:, None] + (_NODES + 1) / 2)).ravel()
    log_weight = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
    log_weight += np.log(np.tile(_WEIGHTS * panel / 2, number))
    return fixed_size_moment(log_weight, log_ratio(q, (2 * x - 1) / (2 * sigma * sigma)), order)


def fixed_size_lattice_gaussian(q: float, sigma: float, shift: int, order: float) -> float:
    """The discrete Gaussian sampled at the share q without replacement."""
    points = lattice_points(sigma, shift, order)
    if points is None:
        return math.inf
    return fixed_size_moment(points[0], log_ratio(q, points[1]), order)


def sampled_group(q: float, sigma: float, size: int, order: float) -> float:
    """A group of ``size`` in a Poisson-sampled Gaussian under add_remove (``pairs_cells.group``), both directions.

    The trapezoid sums converge exponentially: r as a polynomial in e^{x/σ²} has negative real roots only (those of
    (1−q+qu)^k, kept by the multiplier sequence e^{−j²/2σ²}), so that ln r is analytic for |Im x| < πσ².
    """
    step = min(sigma / 5, 0.15 * sigma * sigma / math.sqrt(order))
    points = trapezoid(sigma, -13 * sigma - 1, order * size + 13 * sigma + 1, step)
    if points is None or len(points[0]) * (size + 1) > 4 * _MAX_POINTS:
        return math.inf
    x, log_weight = points
    log_r = group_loss(x, group_weights(q, size), sigma)
    remove = log_convex_moment(log_weight, log_r, order)
    return max(remove, log_convex_moment(log_weight + log_r, -log_r, order)) * (1 + 1e-10)
