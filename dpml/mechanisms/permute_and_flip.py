"""Permute-and-flip: candidates in random order, each accepted with probability e^{factor · (score − best)}.

McKenna & Sheldon 2020, "Permute-and-flip: a new mechanism for differentially private selection", Algorithm 1.  It is
never worse than the exponential mechanism at the same ε (same paper) and equals report noisy max with exponential
noise (Ding et al. 2021, "The permute-and-flip mechanism is identical to report-noisy-max with exponential noise").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml.accounting.events import PermuteAndFlip
from dpml.mechanisms import races
from dpml.mechanisms.answers import check_beta, finite_values
from dpml.mechanisms.noise import NoiseSource
from dpml.mechanisms.selection import Selection, check_selection, score_range

Floats = NDArray[np.float64]
NODES = 24  # of one panel of the integral
FURTHEST = 50.0  # e^-50 of the integral lies beyond
CELLS = 1 << 20  # numbers at a time


@dataclass(frozen=True)
class PermuteAndFlipMechanism(Selection):
    """Permute-and-flip (McKenna & Sheldon 2020, Algorithm 1), pure ε-DP under the relation that the sensitivity is for.

    The acceptance probabilities are e^{ε(u_r − u*)/(2Δ)}, or e^{ε(u_r − u*)/Δ} for monotonic scores.  Order and coins
    are drawn exactly.
    """

    @property
    def event(self) -> PermuteAndFlip:
        return PermuteAndFlip(self.epsilon)

    def error(self, beta: float = 0.05) -> float:
        """b·ln((K − 1)/(2β)), b = 1/factor: P(a candidate g below the best beats it) <= e^{−g/b}/2 each."""
        return exponential_race_error(self.noise_scale, self.size, check_beta(beta))

    def probabilities(self, scores: ArrayLike) -> Floats:
        return race_probabilities(self._checked(scores), self.noise_scale)

    def choose(self, scores: Floats, noise: NoiseSource) -> int:
        order = races.permutation(scores.size, noise)
        accepted = races.coins(scores, self.factor, noise)  # of each candidate once; a best one always
        return int(order[np.argmax(accepted[order])])  # argmax finds the first that is accepted


def exponential_race_error(scale: float, size: int, beta: float) -> float:
    """The union bound over K − 1 candidates; the difference of two exponential numbers is Laplace."""
    return scale * max(0.0, math.log((size - 1) / (2.0 * beta))) if size > 1 else 0.0


def permute_and_flip_probabilities(
    scores: ArrayLike, epsilon: float, sensitivity: float, *, monotonic: bool = False
) -> Floats:
    """The probabilities of permute-and-flip, shape (K,), to a relative error of about 1e-13.

    Args:
        scores: finite numbers, shape (K,); up to about 1e5 of them in seconds.
        epsilon, sensitivity, monotonic: as of :class:`PermuteAndFlipMechanism`.
    """
    size, cost, same_way = check_selection(sensitivity, epsilon, monotonic)
    values = finite_values(scores, np.size(scores)).reshape(-1)
    return race_probabilities(values, float(score_range(size, same_way)) / cost)


def race_probabilities(scores: Floats, scale: float) -> Floats:
    """P(r) = a_r ∫₀¹ Π_{s≠r} (1 − a_s·t) dt with a_s = e^{(u_s − u*)/scale}: t is when r comes up in the order.

    Whoever comes up before t (with probability t each, independently) must have been refused.  The integrand decays
    like e^{−t·Σa}; Gauss–Legendre panels of length 1/Σa integrate it.
    """
    with np.errstate(under="ignore", over="ignore"):
        chances = np.exp((scores - scores.max()) / scale)
    total = math.fsum(chances)  # >= 1: the best has 1
    end = min(1.0, FURTHEST / total)
    panels = math.ceil(end * total)
    points, weights = np.polynomial.legendre.leggauss(NODES)
    width = end / panels
    times = (width * (np.arange(panels)[:, None] + (points + 1.0) / 2.0)).reshape(-1)
    lengths = np.tile(weights * width / 2.0, panels)
    out = np.zeros_like(scores)
    step = max(1, CELLS // scores.size)
    for start in range(0, times.size, step):
        left = 1.0 - times[start : start + step, None] * chances  # (times, K), > 0
        logs = np.log1p(-times[start : start + step, None] * chances).sum(axis=1)
        out += ((lengths[start : start + step] * np.exp(logs)) / left.T).sum(axis=1)
    return out * chances


__all__ = ["PermuteAndFlipMechanism", "permute_and_flip_probabilities"]
