"""Continuous pairs of normal mixtures, cut into cells of the noise's axis.

A cell with known P- and Q-mass, whose loss stays between those at its ends, is replaced by two atoms at these ends
with the same masses (``pairs`` says why that is an upper bound); here the ends need not lie on the loss grid.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from dpml.accounting.pairs_discrete import Losses, normal_cells

_EPS = float(np.finfo(float).eps)
_FEWEST, _MOST = 4096, 2**18


def _atoms(
    ends: np.ndarray, p: np.ndarray, p_error: np.ndarray, q: np.ndarray, q_error: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Losses and P-masses of the two atoms of each cell; ``ends`` are the losses at the points, one more than cells."""
    low, high = np.minimum(ends[:-1], ends[1:]), np.maximum(ends[:-1], ends[1:])
    with np.errstate(all="ignore"):
        ratio = q * np.exp(np.clip(low, -700.0, 700.0)) / p
        error = (p_error / p + q_error / np.maximum(q, 1e-320)) * ratio + 64 * _EPS * (1 + np.abs(low) + np.abs(high))
        share = (1 - ratio + error) / -np.expm1(low - high)
    share = np.where(np.isfinite(share) & (np.abs(low) < 700), np.clip(share, 0.0, 1.0), 1.0)
    return np.concatenate([low, high]), np.concatenate([p * (1 - share), p * share])


def _points(low: float, high: float, slope: float, step: float, most: int = _MOST) -> np.ndarray:
    """Points so close that a loss with this largest slope moves by half a grid step at most, within limits."""
    number = (high - low) * slope / (step / 2)
    return np.linspace(low, high, int(min(max(number, _FEWEST), most)) + 1)


def unequal(shift: float, first: float, second: float, step: float, width: float) -> Losses:
    """N(0, a²) against N(m, b²): ℓ(x) = ln(b/a) + c·x² − (m/b²)·x + m²/(2b²), c = 1/(2b²) − 1/(2a²).

    The vertex x₀ = m/(2b²c) is made a point, so that the loss is monotone in every cell.  A tail of P in which the
    loss rises outwards counts as infinite, the others with the loss at their ends.
    """
    a, b, m = first, second, shift
    c = (a - b) * (a + b) / (2 * a * a * b * b)
    reach = width * a
    slope = m / b / b + 2 * abs(c) * reach
    x = _points(-reach, reach, slope, step)
    vertex = m / (2 * b * b * c) if c != 0 else math.inf
    if abs(vertex) < reach:
        x = np.sort(np.append(x, vertex))

    def loss(at: np.ndarray) -> np.ndarray:
        return math.log(b / a) + (c * at - m / b / b) * at + (m / b) ** 2 / 2

    losses, masses = _atoms(loss(x), *normal_cells(x, 0.0, a), *normal_cells(x, m, b))
    tail, infinite = float(special.ndtr(-width)) * (1 + 1e-9), 0.0
    for end, rising in ((-reach, c > 0 or vertex < -reach or c == 0), (reach, c > 0 or reach < vertex < math.inf)):
        if rising:
            infinite += tail
        else:
            losses, masses = np.append(losses, loss(np.array([end]))), np.append(masses, tail)
    return Losses(losses, masses, infinite)


def group_weights(q: float, size: int) -> np.ndarray:
    """P(Binomial(size, q) = j) for j = 0..size."""
    j = np.arange(size + 1)
    logs = special.gammaln(size + 1) - special.gammaln(j + 1) - special.gammaln(size - j + 1)
    weights = np.exp(logs + special.xlogy(j, q) + special.xlog1py(size - j, -q))
    return weights / weights.sum()


def group_loss(x: np.ndarray, weights: np.ndarray, sigma: float) -> np.ndarray:
    """ln Σ_j w_j e^{(2jx − j²)/2σ²}, the loss of Σ w_j N(j, σ²) against N(0, σ²)."""
    total = np.full(x.shape, -np.inf)
    for j, weight in enumerate(weights):
        if weight > 0:
            total = np.logaddexp(total, math.log(weight) + j * (2 * x - j) / (2 * sigma * sigma))
    return total


def group(q: float, sigma: float, size: int, direction: str, step: float, width: float) -> Losses:
    """A group of ``size`` records in a Poisson-sampled Gaussian, add_remove: the records in the sample are binomial.

    Σ_j Binom(size, q)(j)·N(j, σ²) against N(0, σ²), or the other way round (Ganesh 2024: all contributions aligned
    is the worst case).  The loss increases in x from size·ln(1 − q).
    """
    weights = group_weights(q, size)
    x = _points(-width * sigma, size + width * sigma, size / sigma**2, step, min(_MOST, 2**23 // size))
    ends = group_loss(x, weights, sigma)
    zero, zero_error = normal_cells(x, 0.0, sigma)
    mixture, mixture_error = np.zeros(len(x) - 1), np.zeros(len(x) - 1)
    for j, weight in enumerate(weights):
        if weight > 0:
            cells, error = normal_cells(x, float(j), sigma)
            mixture, mixture_error = mixture + weight * cells, mixture_error + weight * error
    mixture_error = mixture_error + 1e-14 * size * mixture
    tail, far = (float(special.ndtr(-z)) * (1 + 1e-9) for z in (width, width + size / sigma))
    if direction == "remove":
        losses, masses = _atoms(ends, mixture, mixture_error, zero, zero_error)
        return Losses(np.append(losses, ends[0]), np.append(masses, tail), tail)
    losses, masses = _atoms(-ends, zero, zero_error, mixture, mixture_error)
    extra = np.array([-size * math.log1p(-q), -ends[-1]])
    return Losses(np.append(losses, extra), np.append(masses, [tail, far]), 0.0)
