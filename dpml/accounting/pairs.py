"""One release's privacy loss on a grid, rounded to the safe side ("connect the dots").

A pair (P, Q) has the loss ℓ = ln(P/Q).  The part of it whose loss lies between two grid points is replaced by two
atoms at these points with the same total P-mass and the same total Q-mass.  That makes the profile δ(ε) the chord, in
e^ε, of the true one between grid points; the true one is convex in e^ε, so the chord is an upper bound everywhere, and
dominating pairs compose (Doroshenko et al. 2022, "Connect the dots", section 4; Zhu et al. 2022, Theorem 10).
Rounding: the share of the upper atom is raised by a bound on the floating-point error of the masses.

Lists of atoms and sampling are in ``pairs_discrete``, normal mixtures cut on the noise's axis in ``pairs_cells``.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpml.accounting.events import (
    ADD_REMOVE,
    GDP,
    DiscreteGaussian,
    DiscreteLaplace,
    EpsilonDelta,
    Event,
    ExponentialMechanism,
    Gaussian,
    Group,
    Laplace,
    PoissonSampled,
    RandomizedResponse,
    SampledWithoutReplacement,
    UnequalGaussian,
    event_name,
)
from dpml.accounting.normal_form import effective
from dpml.accounting.pairs_cells import group, unequal
from dpml.accounting.pairs_discrete import (
    Losses,
    LossPmf,
    discrete,
    edges_of,
    fixed_size,
    is_discrete,
    loss_ratio,
    normal_cells,
    on_grid,
    public_coin,
)
from dpml.accounting.pairs_discrete import poisson as _subsample
from dpml.accounting.pairs_scales import as_add_remove, scale, span
from dpml.accounting.sampling_rules import check_sampling
from dpml.errors import AccountingError, UnsupportedEventError

MAX_CELLS = 2**19
MAX_GROUP = 256
_EPS = float(np.finfo(float).eps)
_SYMMETRIC = (
    Gaussian,
    Laplace,
    EpsilonDelta,
    DiscreteLaplace,
    DiscreteGaussian,
    RandomizedResponse,
    ExponentialMechanism,
)


def supported(atom: Event, relation: str) -> None:
    """Raises UnsupportedEventError, naming the event, where no dominating pair is known."""
    check_sampling("pld", atom, relation)
    if isinstance(atom, PoissonSampled):
        known = isinstance(atom.event, (*_SYMMETRIC, UnequalGaussian, GDP))
    elif isinstance(atom, SampledWithoutReplacement):
        known = isinstance(atom.event, _SYMMETRIC)
    elif isinstance(atom, Group):
        known = is_sampled_group(atom) and relation == ADD_REMOVE and atom.size <= MAX_GROUP
    else:
        known = isinstance(atom, (*_SYMMETRIC, UnequalGaussian))
    if not known:
        raise UnsupportedEventError(
            f"accountant 'pld' cannot bound event {event_name(atom)!r} under {relation}: no dominating pair is known "
            "for it; use accountant='best'."
        )


def is_sampled_group(atom: Event) -> bool:
    """Whether ``atom`` is a group in a Poisson-sampled Gaussian."""
    return isinstance(atom, Group) and isinstance(atom.event, PoissonSampled) and isinstance(atom.event.event, Gaussian)


def is_symmetric(atom: Event, relation: str) -> bool:
    """Whether both directions of the neighbouring pair have the same loss distribution, :func:`swapped` apart."""
    return not isinstance(atom, PoissonSampled | Group) or relation != ADD_REMOVE


def swapped(atom: Event) -> Event:
    """``atom`` with the two sides of an UnequalGaussian exchanged; other atoms as they are."""
    if isinstance(atom, UnequalGaussian):
        return UnequalGaussian(atom.shift, atom.other_noise_std, atom.noise_std)
    if isinstance(atom, PoissonSampled) and isinstance(atom.event, UnequalGaussian):
        return PoissonSampled(atom.sampling_probability, swapped(atom.event))
    return atom


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
    if isinstance(atom, SampledWithoutReplacement):
        return on_grid(fixed_size(_removed(atom, relation, step, width)), step)
    if isinstance(atom, PoissonSampled) and isinstance(atom.event, Gaussian):
        return _sampled_gaussian(atom, relation, direction, step, width)
    if isinstance(atom, PoissonSampled):
        q = atom.sampling_probability
        if relation != ADD_REMOVE:
            return on_grid(public_coin(_losses(atom.event, relation, step, width), q), step)
        inner = _losses(atom.event, relation, _inner_step(atom.event, q, step, width), width)
        return on_grid(_subsample(inner, q, direction), step)
    if isinstance(atom, Group):
        q, inner = atom.event.sampling_probability, atom.event.event  # type: ignore[attr-defined]
        return on_grid(group(q, inner.noise_multiplier, atom.size, direction, step, width), step)
    if isinstance(atom, Gaussian):
        return _gaussian(effective(atom.noise_multiplier, relation), step, width)
    if isinstance(atom, GDP):
        return _gaussian(1 / atom.mu, step, width)
    if isinstance(atom, Laplace):
        return _laplace(effective(atom.noise_multiplier, relation), step)
    if isinstance(atom, ExponentialMechanism):
        return _bounded_range(atom.epsilon, step)
    return on_grid(_losses(atom, relation, step, width), step)


def _losses(atom: Event, relation: str, step: float, width: float) -> Losses | LossPmf:
    """The losses of an unsampled release: exact atoms where it is discrete, else resolved to about ``step``."""
    if is_discrete(atom):
        return discrete(atom, relation, width)
    if isinstance(atom, UnequalGaussian):
        return unequal(atom.shift, atom.noise_std, atom.other_noise_std, step, width)
    return discretise(atom, relation, "remove", step, width)


def _inner_step(inner: Event, q: float, step: float, width: float) -> float:
    """A coarser step for the unsampled loss: sampling shrinks loss differences by its slope at the top or more."""
    top = span(inner, ADD_REMOVE, width) / 2
    shrink = -math.log(q) - top + float(loss_ratio(q, np.array([top]))[0])  # −ln of the slope q·e^ℓ/(1 − q + q·e^ℓ)
    finest = 2.0 ** math.floor(math.log2(scale(inner, ADD_REMOVE) / 64))
    return max(step, min(step * 2.0 ** math.floor(shrink / math.log(2)), finest))


def _removed(atom: SampledWithoutReplacement, relation: str, step: float, width: float) -> Losses | LossPmf:
    """((1−γ)Q + γP, Q) of the inner release's pair (P, Q)."""
    q, inner = atom.sample_size / atom.source_size, atom.event
    if isinstance(inner, Gaussian):
        return _sampled_gaussian(as_add_remove(q, inner, relation), ADD_REMOVE, "remove", step, width)
    return _subsample(_losses(inner, relation, _inner_step(inner, q, step, width), width), q, "remove")


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
    zero, zero_error = normal_cells(points, 0.0, sigma)
    one, one_error = normal_cells(points, mean, sigma)
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
    start, edges = edges_of(mu * mu / 2 - width * mu, mu * mu / 2 + width * mu, step)
    points = sigma * sigma * edges + 0.5

    def masses(x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (*normal_cells(x, 1.0, sigma), *normal_cells(x, 0.0, sigma))

    return _close(start, step, points, masses, points)


def _sampled_gaussian(atom: PoissonSampled, relation: str, direction: str, step: float, width: float) -> LossPmf:
    """(1−q)N(0)+qN(1) against N(0), the other way round, or against (1−q)N(0)+qN(−1) under replace_one."""
    q, sigma = atom.sampling_probability, atom.event.noise_multiplier  # type: ignore[attr-defined]
    low_x, high_x = -width * sigma, width * sigma + 1
    ends = np.array([low_x, high_x])
    up = loss_ratio(q, (2 * ends - 1) / (2 * sigma**2))
    if relation != ADD_REMOVE:
        top = float(up[1] - loss_ratio(q, (-2 * ends[1:] - 1) / (2 * sigma**2))[0])
        start, edges = edges_of(-top, top, step)
        points = _inverse_replace(edges, q, sigma)

        def masses(x: np.ndarray) -> tuple[np.ndarray, ...]:
            return (*_mixture(x, sigma, q, 1.0), *_mixture(x, sigma, q, -1.0))

    elif direction == "remove":
        start, edges = edges_of(max(float(up[0]), math.log1p(-q)), float(up[1]), step)
        points = _inverse_remove(edges, q, sigma)

        def masses(x: np.ndarray) -> tuple[np.ndarray, ...]:
            return (*_mixture(x, sigma, q, 1.0), *normal_cells(x, 0.0, sigma))

    else:
        # loss −ℓ: mirror x so that it increases; P = N(0), Q = (1−q)N(0) + qN(−1) in y = −x
        start, edges = edges_of(-float(up[1]), -max(float(up[0]), math.log1p(-q)), step)
        points = -_inverse_remove(-edges, q, sigma)

        def masses(x: np.ndarray) -> tuple[np.ndarray, ...]:
            return (*normal_cells(x, 0.0, sigma), *_mixture(x, sigma, q, -1.0))

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
    start, edges = edges_of(-top, top, step)
    cut = np.clip(edges, -top, top)
    low, high = cut[:-1], cut[1:]
    width = high - low
    p = np.exp((high - top) / 2) * -np.expm1(-width / 2) / 2
    q = np.exp(-(low + top) / 2) * -np.expm1(-width / 2) / 2
    pmf = _split(step, start, p, q, 32 * _EPS * p, 32 * _EPS * q, 0.0)
    _add_atom(pmf, top, 0.5)
    _add_atom(pmf, -top, 0.5 * math.exp(-top))
    return pmf


def _bounded_range(top: float, step: float) -> LossPmf:
    """The η-bounded-range pair of largest profile δ(ε) = (1 − e^{(ε−η)/2})²/(1 − e^{−η}), |ε| ≤ η.

    Every η-bounded-range pair is a mixture of pairs with the two losses t and t − η, 0 ≤ t ≤ η, whose δ(ε) is
    (1 − e^{t−η})(1 − e^{ε−t})/(1 − e^{−η}); t = (ε + η)/2 is the worst (Dong, Durfee & Rogers 2020, section 3).  That
    profile is convex in e^ε and belongs to the symmetric loss with P-density e^{(ℓ−η)/2}/(2(1 − e^{−η})).
    """
    start, edges = edges_of(-top, top, step)
    cut = np.clip(edges, -top, top)
    low, high = cut[:-1], cut[1:]
    part = np.expm1(-(high - low) / 2) / math.expm1(-top)
    p, q = np.exp((high - top) / 2) * part, np.exp(-(low + top) / 2) * part
    return _split(step, start, p, q, 32 * _EPS * p, 32 * _EPS * q, 0.0)


def _add_atom(pmf: LossPmf, loss: float, mass: float) -> None:
    """One atom, split between its two grid neighbours (mass and Q-mass kept, rounding up)."""
    position = loss / pmf.step - pmf.start
    index = min(max(math.floor(position), 0), len(pmf.masses) - 2)
    offset = loss - pmf.step * (pmf.start + index)
    share = min(1.0, max(0.0, math.expm1(-offset) / math.expm1(-pmf.step) * (1 + 1e-9) + 1e-12))
    pmf.masses[index + 1] += mass * share
    pmf.masses[index] += mass * (1 - share)
