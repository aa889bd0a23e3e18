"""One release's privacy loss on a grid, rounded to the safe side ("connect the dots").

A pair (P, Q) has the loss ℓ = ln(P/Q).  The part of it whose loss lies between two grid points is replaced by two
atoms at these points with the same total P-mass and the same total Q-mass.  That makes the profile δ(ε) the chord, in
e^ε, of the true one between grid points; the true one is convex in e^ε, so the chord is an upper bound everywhere, and
dominating pairs compose (Doroshenko et al. 2022, "Connect the dots", section 4; Zhu et al. 2022, Theorem 10).
Rounding: the share of the upper atom is raised by a bound on the floating-point error of the masses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from dpml.accounting.events import (
    ADD_REMOVE,
    EpsilonDelta,
    Event,
    Gaussian,
    Laplace,
    PoissonSampled,
    effective,
    event_name,
)
from dpml.errors import AccountingError, UnsupportedEventError

MAX_CELLS = 2**19
_EPS = float(np.finfo(float).eps)


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


def supported(atom: Event, relation: str) -> None:
    """Raises UnsupportedEventError, naming the event, where no dominating pair is known."""
    inner = atom.event if isinstance(atom, PoissonSampled) else atom
    sampled = isinstance(atom, PoissonSampled)
    if isinstance(inner, Gaussian) or (
        isinstance(inner, Laplace | EpsilonDelta) and (not sampled or relation == ADD_REMOVE)
    ):
        return
    raise UnsupportedEventError(
        f"accountant 'pld' cannot bound event {event_name(atom)!r} under {relation}: no dominating pair is known for "
        "it; use accountant='best'."
    )


def is_symmetric(atom: Event, relation: str) -> bool:
    """Whether both directions of the neighbouring pair have the same loss distribution."""
    return not isinstance(atom, PoissonSampled) or relation != ADD_REMOVE


@lru_cache(maxsize=64)
def scale(atom: Event, relation: str) -> float:
    """A length of the one-step loss that the grid must resolve: its root mean square, the smaller of both sides."""
    if isinstance(atom, PoissonSampled):
        q, inner = atom.sampling_probability, atom.event
        if not isinstance(inner, Gaussian):
            return max(q * min(scale(inner, relation), 1.0), 1e-9)
        sigma = inner.noise_multiplier
        x = sigma * np.linspace(-8, 8 + 1 / sigma, 4001)
        up = _loss_ratio(q, (2 * x - 1) / (2 * sigma**2))
        loss = up if relation == ADD_REMOVE else up - _loss_ratio(q, (-2 * x - 1) / (2 * sigma**2))
        weight = np.exp(-((x / sigma) ** 2) / 2)
        return max(math.sqrt(float(np.sum(weight * loss**2) / np.sum(weight))), 1e-9)
    if isinstance(atom, Gaussian):
        return 1 / effective(atom.noise_multiplier, relation)
    if isinstance(atom, Laplace):
        return min(1 / effective(atom.noise_multiplier, relation), 1.0)
    return max(min(atom.epsilon, 1.0), 1e-6)  # type: ignore[attr-defined]


@lru_cache(maxsize=48)
def discretise(atom: Event, relation: str, direction: str, step: float, width: float) -> LossPmf:
    """The pessimistic grid pmf of one release; AccountingError if it lost mass (a fault that would lower ε).

    Args:
        direction: ``"remove"`` (P holds the record) or ``"add"`` (Q holds it); the same where symmetric.
        step: grid step of the loss.
        width: tails beyond ``width`` standard deviations go to an infinite loss (upper) or are rounded up (lower).
    """
    pmf = _discretise(atom, relation, direction, step, width)
    mass = math.fsum(pmf.masses) + pmf.infinite
    if math.isnan(mass):
        raise FloatingPointError(f"the losses of {event_name(atom)!r} are out of the range of floats")
    if mass < 1 - 1e-12:
        raise AccountingError(f"the loss distribution of {event_name(atom)!r} has mass {mass!r} instead of 1.")
    return pmf


def _discretise(atom: Event, relation: str, direction: str, step: float, width: float) -> LossPmf:
    if isinstance(atom, PoissonSampled) and not isinstance(atom.event, Gaussian):
        inner = discretise(atom.event, relation, direction, step, width)
        return _subsample(inner, atom.sampling_probability, direction)
    if isinstance(atom, EpsilonDelta):
        return _statement(atom, step)
    if isinstance(atom, Laplace):
        return _laplace(effective(atom.noise_multiplier, relation), step)
    if isinstance(atom, PoissonSampled):
        return _sampled_gaussian(atom, relation, direction, step, width)
    assert isinstance(atom, Gaussian)
    return _gaussian(effective(atom.noise_multiplier, relation), step, width)


def _loss_ratio(q: float, exponent: np.ndarray) -> np.ndarray:
    """ln(1 − q + q·e^exponent)."""
    small = np.log1p(q * np.expm1(np.minimum(exponent, 1.0)))
    return np.where(exponent < 1, small, np.logaddexp(math.log1p(-q), math.log(q) + exponent))


def _edges(low: float, high: float, step: float) -> tuple[int, np.ndarray]:
    start, end = math.floor(low / step) - 1, math.ceil(high / step) + 1
    return start, step * np.arange(start, end + 1)


def _cell(points: np.ndarray, mean: float, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Normal masses between consecutive points (ends at ±∞ allowed) and bounds on their rounding errors."""
    z = (points - mean) / sigma
    a, b = z[:-1], z[1:]
    right = a > 0
    lower = special.ndtr(np.where(right, -b, a))
    upper = special.ndtr(np.where(right, -a, b))
    # 16 ulp, and the error of z itself amplified by the density (d ln Φ ≈ |z| dz)
    error = upper * _EPS * (16 + 4 * np.minimum(np.maximum(np.abs(a), np.abs(b)), 40.0) ** 2)
    return upper - lower, error


def _split(
    step: float, start: int, p: np.ndarray, q: np.ndarray, p_error: np.ndarray, q_error: np.ndarray, infinite: float
) -> LossPmf:
    """Cells (P-mass p, Q-mass q) between grid points start, start+1, … as atoms on the points (module docstring)."""
    lower = step * (start + np.arange(len(p)))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = q * np.exp(np.minimum(lower, 700.0)) / p  # in [e^{-step}, 1]
        error = (p_error / p + q_error / np.maximum(q, 1e-320)) * ratio
        share = (1 - ratio + error) / -math.expm1(-step)
    share = np.where(np.isfinite(share) & (lower < 700), np.clip(share, 0.0, 1.0), 1.0)
    masses = np.zeros(len(p) + 1)
    masses[1:] += p * share
    masses[:-1] += p * (1 - share)
    return LossPmf(step, start, masses, infinite)


def _mixture(points: np.ndarray, sigma: float, q: float, mean: float) -> tuple[np.ndarray, np.ndarray]:
    zero, zero_error = _cell(points, 0.0, sigma)
    one, one_error = _cell(points, mean, sigma)
    return (1 - q) * zero + q * one, (1 - q) * zero_error + q * one_error


def _close(start: int, step: float, points: np.ndarray, masses, width_points: np.ndarray) -> LossPmf:  # type: ignore[no-untyped-def]
    """Assemble a pmf from the positions of the grid losses on the axis of the noise.

    ``points`` (increasing) are where the loss equals each grid point; ``masses(points)`` gives P, Q cells and errors.
    Below the first point everything is rounded up to it, beyond the last it counts as infinite.
    """
    p, p_error, q, q_error = masses(points)
    below = masses(np.array([-np.inf, points[0]]))[0][0]
    above = masses(np.array([points[-1], np.inf]))[0][0]
    pmf = _split(step, start, p, q, p_error, q_error, float(above) * (1 + 1e-9))
    pmf.masses[0] += float(below)
    return pmf


def _gaussian(sigma: float, step: float, width: float) -> LossPmf:
    """N(1, σ²) against N(0, σ²): ℓ(x) = (2x − 1)/(2σ²)."""
    mu = 1 / sigma
    start, edges = _edges(mu * mu / 2 - width * mu, mu * mu / 2 + width * mu, step)
    points = sigma * sigma * edges + 0.5

    def masses(x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (*_cell(x, 1.0, sigma), *_cell(x, 0.0, sigma))

    return _close(start, step, points, masses, points)


def _sampled_gaussian(atom: PoissonSampled, relation: str, direction: str, step: float, width: float) -> LossPmf:
    """(1−q)N(0)+qN(1) against N(0), the other way round, or against (1−q)N(0)+qN(−1) under replace_one."""
    q, sigma = atom.sampling_probability, atom.event.noise_multiplier  # type: ignore[attr-defined]
    low_x, high_x = -width * sigma, width * sigma + 1
    ends = np.array([low_x, high_x])
    up = _loss_ratio(q, (2 * ends - 1) / (2 * sigma**2))
    if relation != ADD_REMOVE:
        top = float(up[1] - _loss_ratio(q, (-2 * ends[1:] - 1) / (2 * sigma**2))[0])
        start, edges = _edges(-top, top, step)
        points = _inverse_replace(edges, q, sigma)

        def masses(x: np.ndarray) -> tuple[np.ndarray, ...]:
            return (*_mixture(x, sigma, q, 1.0), *_mixture(x, sigma, q, -1.0))

    elif direction == "remove":
        start, edges = _edges(max(float(up[0]), math.log1p(-q)), float(up[1]), step)
        points = _inverse_remove(edges, q, sigma)

        def masses(x: np.ndarray) -> tuple[np.ndarray, ...]:
            return (*_mixture(x, sigma, q, 1.0), *_cell(x, 0.0, sigma))

    else:
        # loss −ℓ: mirror x so that it increases; P = N(0), Q = (1−q)N(0) + qN(−1) in y = −x
        start, edges = _edges(-float(up[1]), -max(float(up[0]), math.log1p(-q)), step)
        points = -_inverse_remove(-edges, q, sigma)

        def masses(x: np.ndarray) -> tuple[np.ndarray, ...]:
            return (*_cell(x, 0.0, sigma), *_mixture(x, sigma, q, -1.0))

    return _close(start, step, points, masses, points)


def _inverse_remove(losses: np.ndarray, q: float, sigma: float) -> np.ndarray:
    """x with ln(1−q+q·e^{(2x−1)/2σ²}) = ℓ; −∞ where ℓ ≤ ln(1−q)."""
    floor = math.log1p(-q)
    with np.errstate(divide="ignore", invalid="ignore"):
        # ln(e^ℓ − (1−q)) = ℓ + ln(1 − e^{floor−ℓ})
        gap = np.maximum(losses - floor, 0.0)
        log_excess = losses + np.log(-np.expm1(-gap))
    return sigma * sigma * (log_excess - math.log(q)) + 0.5


def _inverse_replace(losses: np.ndarray, q: float, sigma: float) -> np.ndarray:
    """x with the loss ℓ of the replace_one pair: a quadratic in u = e^{x/σ²}, solved in logs for ℓ ≥ 0, odd in ℓ.

    q k u² − (1−q)(e^ℓ − 1) u − e^ℓ q k = 0, k = e^{−1/2σ²}.
    """
    size = np.abs(losses)
    log_qk = math.log(q) - 1 / (2 * sigma * sigma)
    with np.errstate(divide="ignore"):
        log_linear = math.log1p(-q) + size + np.log(-np.expm1(-size))
    log_root = 0.5 * np.logaddexp(2 * log_linear, 2 * (math.log(2) + log_qk) + size)
    log_u = np.logaddexp(log_linear, log_root) - math.log(2) - log_qk
    return np.sign(losses) * sigma * sigma * np.maximum(log_u, 0.0)


def _laplace(b: float, step: float) -> LossPmf:
    """Laplace(0, b) against Laplace(1, b): atoms of P-mass 1/2, e^{−1/b}/2 at ±1/b, density e^{(ℓ−1/b)/2}/4."""
    top = 1 / b
    start, edges = _edges(-top, top, step)
    cut = np.clip(edges, -top, top)
    low, high = cut[:-1], cut[1:]
    width = high - low
    p = np.exp((high - top) / 2) * -np.expm1(-width / 2) / 2
    q = np.exp(-(low + top) / 2) * -np.expm1(-width / 2) / 2
    pmf = _split(step, start, p, q, 32 * _EPS * p, 32 * _EPS * q, 0.0)
    _add_atom(pmf, top, 0.5)
    _add_atom(pmf, -top, 0.5 * math.exp(-top))
    return pmf


def _add_atom(pmf: LossPmf, loss: float, mass: float) -> None:
    """One atom, split between its two grid neighbours (mass and Q-mass kept, rounding up)."""
    position = loss / pmf.step - pmf.start
    index = min(max(math.floor(position), 0), len(pmf.masses) - 2)
    offset = loss - pmf.step * (pmf.start + index)
    share = min(1.0, max(0.0, math.expm1(-offset) / math.expm1(-pmf.step) * (1 + 1e-9) + 1e-12))
    pmf.masses[index + 1] += mass * share
    pmf.masses[index] += mass * (1 - share)


def _statement(atom: EpsilonDelta, step: float) -> LossPmf:
    """The worst (ε, δ) pair: infinite loss with probability δ, else randomized response (Kairouz et al. 2015)."""
    start, edges = _edges(-atom.epsilon, atom.epsilon, step)
    pmf = LossPmf(step, start, np.zeros(len(edges)), atom.delta)
    high = 1 / (1 + math.exp(-atom.epsilon))
    _add_atom(pmf, atom.epsilon, (1 - atom.delta) * high)
    _add_atom(pmf, -atom.epsilon, (1 - atom.delta) * (1 - high))
    return pmf


def _subsample(inner: LossPmf, q: float, direction: str) -> LossPmf:
    """Poisson sampling of a dominating pair under add_remove (Zhu et al. 2022, Theorem 11).

    remove: ((1−q)Q + qP) against Q, loss ln(1−q+q·e^ℓ);  add: P against (1−q)P + qQ, loss −ln(1−q+q·e^{−ℓ}).
    """
    losses, p = inner.losses, inner.masses
    if direction == "remove":
        new = _loss_ratio(q, losses)
        mass = p * (q + (1 - q) * np.exp(-np.maximum(losses, -700.0)))
        infinite = q * inner.infinite
        # Q-mass without P-mass keeps (1−q)Q at loss ln(1−q); without infinite losses there is only the mass that
        # rounding lost, which is put higher, at the smallest loss, so that it does not widen the grid
        missing = max(0.0, 1 - math.fsum(p * np.exp(-np.maximum(losses, -700.0))))
        point = math.log1p(-q) if inner.infinite > 0 else float(new.min())
        new, mass = np.append(new, point), np.append(mass, (1 - q) * missing)
    else:
        new, mass = -_loss_ratio(q, -losses), p
        # a P-point with no Q-mass keeps (1−q)P: its loss is −ln(1−q)
        new, mass = np.append(new, -math.log1p(-q)), np.append(mass, inner.infinite)
        infinite = 0.0
    keep = mass > 0
    new, mass = new[keep], mass[keep]
    start, edges = _edges(float(new.min(initial=0.0)), float(new.max(initial=0.0)), inner.step)
    masses = np.zeros(len(edges))
    index = np.clip(np.floor(new / inner.step).astype(int) - start, 0, len(edges) - 2)
    offset = new - inner.step * (start + index)
    share = np.clip(np.expm1(-offset) / math.expm1(-inner.step) * (1 + 1e-9) + 1e-12, 0.0, 1.0)
    np.add.at(masses, index + 1, mass * share)
    np.add.at(masses, index, mass * (1 - share))
    return LossPmf(inner.step, start, masses, infinite)
