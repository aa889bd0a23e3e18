"""Losses with atoms: exact lists of (loss, P-mass), their samples, and how a list is put on a grid, rounded up."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from dpml.accounting.events import DiscreteGaussian, DiscreteLaplace, EpsilonDelta, Event, RandomizedResponse
from dpml.accounting.normal_form import integer_sensitivity

_EPS = float(np.finfo(float).eps)
_MAX_ATOMS = 2**17


@dataclass(frozen=True, eq=False)
class LossPmf:
    """P-masses of the losses ``step·(start + k)`` and the P-mass of an infinite loss."""

    step: float
    start: int
    masses: np.ndarray
    infinite: float

    @property
    def losses(self) -> np.ndarray:
        return self.step * (self.start + np.arange(len(self.masses)))


@dataclass(frozen=True, eq=False)
class Losses:
    """P-masses of finitely many losses in any order, and the P-mass of an infinite loss.

    The Q-mass of an atom is its P-mass times e^{−loss}; Q-mass that is missing lies where P has none.
    """

    losses: np.ndarray
    masses: np.ndarray
    infinite: float


def edges_of(low: float, high: float, step: float) -> tuple[int, np.ndarray]:
    """The grid points from just below ``low`` to just above ``high`` and the index of the first."""
    start, end = math.floor(low / step) - 1, math.ceil(high / step) + 1
    return start, step * np.arange(start, end + 1)


def on_grid(atoms: Losses | LossPmf, step: float) -> LossPmf:
    """Each atom split between its two grid neighbours so that P- and Q-mass are kept; errors raise the upper share."""
    keep = atoms.masses > 0
    losses, masses = atoms.losses[keep], atoms.masses[keep]
    start, edges = edges_of(float(losses.min(initial=0.0)), float(losses.max(initial=0.0)), step)
    index = np.clip(np.floor(losses / step).astype(int) - start, 0, len(edges) - 2)
    offset = losses - step * (start + index)
    share = np.expm1(-offset) / math.expm1(-step) * (1 + 1e-9) + 1e-12 + 4 * _EPS * np.abs(losses) / step
    share = np.clip(share, 0.0, 1.0)
    grid = np.bincount(index + 1, masses * share, len(edges)) + np.bincount(index, masses * (1 - share), len(edges))
    return LossPmf(step, start, grid, atoms.infinite)


def normal_cells(points: np.ndarray, mean: float, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Normal masses between consecutive points (ends at ±∞ allowed) and bounds on their rounding errors."""
    z = (points - mean) / sigma
    a, b = z[:-1], z[1:]
    right = a > 0
    lower = special.ndtr(np.where(right, -b, a))
    upper = special.ndtr(np.where(right, -a, b))
    # 16 ulp, and the error of z itself amplified by the density (d ln Φ ≈ |z| dz)
    error = upper * _EPS * (16 + 4 * np.minimum(np.maximum(np.abs(a), np.abs(b)), 40.0) ** 2)
    return upper - lower, error


def is_discrete(atom: Event) -> bool:
    """Whether :func:`discrete` lists the losses of ``atom``."""
    return isinstance(atom, EpsilonDelta | DiscreteLaplace | DiscreteGaussian | RandomizedResponse)


def discrete(atom: Event, relation: str, width: float) -> Losses:
    """The losses of one release of an :func:`is_discrete` event; both directions are alike."""
    if isinstance(atom, EpsilonDelta):
        return _statement(atom)
    if isinstance(atom, RandomizedResponse):
        return _randomized_response(atom)
    if isinstance(atom, DiscreteLaplace):
        return _discrete_laplace(atom.noise_scale, integer_sensitivity(atom, relation))
    assert isinstance(atom, DiscreteGaussian)
    return _discrete_gaussian(atom.noise_std, integer_sensitivity(atom, relation), width)


def _statement(atom: EpsilonDelta) -> Losses:
    """The worst (ε, δ) pair: infinite loss with probability δ, else randomized response (Kairouz et al. 2015)."""
    masses = (1 - atom.delta) * special.expit(np.array([atom.epsilon, -atom.epsilon]))
    return Losses(np.array([atom.epsilon, -atom.epsilon]), masses, atom.delta)


def _randomized_response(atom: RandomizedResponse) -> Losses:
    """replace_one: the true answer, the neighbour's true answer, any of the k − 2 others."""
    p, k = atom.noise_parameter, atom.num_buckets
    losses = np.array([atom.epsilon, 0.0, -atom.epsilon])
    return Losses(losses, np.array([1 - p + p / k, (k - 2) * p / k, p / k]), 0.0)


def _discrete_laplace(scale: float, shift: int) -> Losses:
    """Z against Z + s: ℓ(k) = (|k − s| − |k|)/b.

    With r = e^{−1/b}: P(Z ≤ 0) = 1/(1 + r) at s/b, P(Z = k) = (1 − r)/(1 + r)·r^k at (s − 2k)/b for 0 < k < s, and
    P(Z ≥ s) = r^s/(1 + r) at −s/b.  Z is log-concave, so that a smaller shift is dominated.
    """
    r = math.exp(-1 / scale)
    k = np.arange(1, shift)
    inside = -math.expm1(-1 / scale) / (1 + r) * np.exp(-k / scale)
    losses = (shift - 2 * np.arange(shift + 1)) / scale
    masses = np.concatenate([[1 / (1 + r)], inside, [math.exp(-shift / scale) / (1 + r)]])
    return Losses(losses, masses, 0.0)


def _discrete_gaussian(sigma: float, shift: int, width: float) -> Losses:
    """Z + s against Z: ℓ(k) = s(2k − s)/(2σ²) on the integers; log-concave as above.

    P(Z > m) ≤ Φ(−m/σ): Σ_{k>m} e^{−k²/2σ²} ≤ ∫_m^∞, and the normaliser is at least σ√(2π) (Poisson summation).
    The upper tail counts as infinite, the lower one has the lowest loss that is kept.
    """
    reach = math.ceil(width * sigma) + 1
    number = 2 * reach + 1
    if number <= _MAX_ATOMS:
        j = np.arange(-reach, reach + 1)  # k − s
        masses = np.exp(-((j / sigma) ** 2) / 2)
        masses /= masses.sum()
    else:
        j, masses = _normal_blocks(sigma, reach, -(-number // _MAX_ATOMS))
    losses = shift * (2 * j + shift) / (2 * sigma * sigma)
    tail = float(special.ndtr(-reach / sigma)) * (1 + 1e-9)
    masses[0] += tail
    return Losses(losses, masses, tail)


def _normal_blocks(sigma: float, reach: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of integers with the largest one and an upper bound on the mass of each, for σ ≥ 1000.

    The integral of e^{−x²/2σ²} over [j − ½, j + ½] differs from its middle by less than a share (1 + z²)/(24σ²) with
    z = (|j| + ½)/σ, up to higher orders; twice that is added.
    """
    ends = np.arange(-reach, reach + block + 1, block) - 0.5
    masses, error = normal_cells(ends, 0.0, sigma)
    z = np.maximum(np.abs(ends[:-1]), np.abs(ends[1:])) / sigma
    return ends[1:] - 0.5, masses * (1 + (1 + z * z) / (12 * sigma * sigma)) + error


def loss_ratio(q: float, exponent: np.ndarray) -> np.ndarray:
    """ln(1 − q + q·e^exponent)."""
    small = np.log1p(q * np.expm1(np.minimum(exponent, 1.0)))
    return np.where(exponent < 1, small, np.logaddexp(math.log1p(-q), math.log(q) + exponent))


def poisson(inner: Losses | LossPmf, q: float, direction: str) -> Losses:
    """Poisson sampling of a dominating pair under add_remove (Zhu et al. 2022, Theorem 11).

    remove: ((1−q)Q + qP) against Q, loss ln(1−q+q·e^ℓ);  add: P against (1−q)P + qQ, loss −ln(1−q+q·e^{−ℓ}).
    """
    losses, p = inner.losses, inner.masses
    if direction == "add":  # a P-point with no Q-mass keeps (1−q)P: its loss is −ln(1−q)
        new, mass = np.append(-loss_ratio(q, -losses), -math.log1p(-q)), np.append(p, inner.infinite)
        return Losses(new, mass, 0.0)
    new = loss_ratio(q, losses)
    q_mass = p * np.exp(-np.maximum(losses, -700.0))
    # Q-mass without P-mass keeps (1−q)Q at loss ln(1−q); without infinite losses there is only the mass that
    # rounding lost, which is put higher, at the smallest loss, so that it does not widen the grid
    missing = max(0.0, 1 - math.fsum(q_mass))
    point = math.log1p(-q) if inner.infinite > 0 else float(new.min())
    masses = np.append(q * p + (1 - q) * q_mass, (1 - q) * missing)
    return Losses(np.append(new, point), masses, q * inner.infinite)


def public_coin(inner: Losses | LossPmf, q: float) -> Losses:
    """Sampling where only the joint convexity of δ(ε) is used: no loss with probability 1 − q, else that of ``inner``.

    Holds for every relation: given who else is sampled and whether this record is, the neighbour's release is the same
    or that of ``inner``, and δ(ε) of mixtures is at most the mixture of the δ(ε).
    """
    return Losses(np.append(inner.losses, 0.0), np.append(q * inner.masses, 1 - q), q * inner.infinite)


def fixed_size(remove: Losses | LossPmf) -> Losses:
    """The pair of a sample without replacement under replace_one, from ((1−γ)Q + γP, Q) of a symmetric (P, Q).

    Balle, Barthe & Gaboardi 2018, Theorem 9: δ′(ln(1 + γ(e^ε − 1))) ≤ γ·δ(ε) for ε ≥ 0, which is the profile of
    ``remove`` above 0.  Below 0 the relation's symmetry gives the reversed pair's.  Glued at 0 (Zhu et al. 2022,
    appendix): an atom (ℓ, p) with ℓ > 0 comes with (−ℓ, p·e^{−ℓ}), and what is left has loss 0.  The profile is convex
    at 0 because P(P>Q) ≤ 1 − Q(P>Q) for symmetric pairs, so that the rest is not negative.
    """
    up = remove.losses > 0
    losses, p = remove.losses[up], remove.masses[up]
    q = p * np.exp(-losses)
    rest = max(0.0, 1 - remove.infinite - math.fsum(p) - math.fsum(q))
    return Losses(np.concatenate([losses, -losses, [0.0]]), np.concatenate([p, q, [rest]]), remove.infinite)
