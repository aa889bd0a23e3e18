"""Rényi DP: divergences of all events at many orders, added up, then turned into (ε, δ).

The Poisson-sampled Gaussian is computed, not bounded: exact binomial sums at integer orders and a trapezoid sum of an
analytic integrand (which converges exponentially) at the others.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import special

from dpml.accounting import objective, pairs, renyi_closed, renyi_sums
from dpml.accounting.conversions import rdp_to_delta, rdp_to_epsilon
from dpml.accounting.events import (
    ADD_REMOVE,
    GDP,
    REPLACE_ONE,
    ZCDP,
    DiscreteGaussian,
    DiscreteLaplace,
    EpsilonDelta,
    Event,
    ExponentialMechanism,
    Gaussian,
    Group,
    Laplace,
    ObjectivePerturbation,
    PoissonSampled,
    RandomizedResponse,
    RepeatAndSelect,
    SampledWithoutReplacement,
    UnequalGaussian,
    event_name,
)
from dpml.accounting.normal_form import effective, integer_sensitivity, normal_form
from dpml.accounting.pairs_discrete import Losses, LossPmf, discrete, fixed_size, poisson
from dpml.accounting.renyi_sums import exp_remainder as _exp_remainder
from dpml.accounting.renyi_sums import log_convex_moment, log_ratio, trapezoid
from dpml.accounting.sampling_rules import check_sampling, unsampled
from dpml.errors import UnsupportedEventError, invalid

ORDERS: tuple[float, ...] = tuple(
    sorted(
        {1 + 2.0**-k for k in range(1, 13)}
        | {1.1, 1.2, 1.3, 1.4, 1.6, 1.75, 1.9, 2.25, 2.5, 2.75, 3.25, 3.5, 3.75, 4.5, 5.5, 6.5, 7.5}
        | {float(k) for k in range(2, 65)}
        | {float(round(64 * 2 ** (k / 6))) for k in range(61)}
    )
)
_MAX_GROUP = 64
_GRID = 4096  # cells of a continuous bounded loss
_LARGEST_LOSS = 1e3  # beyond that, samples are charged as unsampled
_FAR = 600.0  # exponents from here on are kept in logs
_UP = 1 + 1e-13  # more than the rounding errors of the closed forms


def rdp(event: Event, orders: np.ndarray, neighboring_relation: str) -> np.ndarray:
    """D_α, the larger of both directions, of the whole event at each order > 1; shape as ``orders``.

    Raises:
        ConfigError: an order that is not a finite number > 1.
        UnsupportedEventError: an event without finite Rényi divergences, or under a relation without a proof.
    """
    try:
        orders = np.atleast_1d(np.asarray(orders, dtype=float))
    except (TypeError, ValueError, OverflowError):
        raise invalid("orders", str(orders)[:60], "finite numbers > 1") from None
    if orders.size == 0 or not np.all(np.isfinite(orders)) or np.any(orders <= 1):
        raise invalid("orders", orders.tolist(), "finite numbers > 1")
    total = np.zeros(orders.shape)
    with np.errstate(over="ignore"):  # to inf
        for atom, count in normal_form(event, neighboring_relation).items():
            total = total + count * _values(atom, tuple(orders.tolist()), neighboring_relation)
    return total


def epsilon(event: Event, delta: float, neighboring_relation: str) -> float:
    """ε(δ) over the order grid, 0 < δ < 1; every order gives a valid bound.  0 only where nothing is charged."""
    if not normal_form(event, neighboring_relation):
        return 0.0
    orders = np.array(ORDERS)
    return rdp_to_epsilon(orders, rdp(event, orders, neighboring_relation), delta)


def delta(event: Event, epsilon: float, neighboring_relation: str) -> float:
    """δ(ε) over the order grid.  0 only where nothing is charged."""
    if not normal_form(event, neighboring_relation):
        return 0.0
    orders = np.array(ORDERS)
    return rdp_to_delta(orders, rdp(event, orders, neighboring_relation), epsilon)


@lru_cache(maxsize=4096)
def _values(atom: Event, orders: tuple[float, ...], relation: str) -> np.ndarray:
    check_sampling("rdp", atom, relation)
    alpha = np.array(orders)
    if isinstance(atom, PoissonSampled | SampledWithoutReplacement | Group | RepeatAndSelect):
        found = _of_another(atom, alpha, relation)
    else:
        found = _basic(atom, alpha, relation)
    if found is None:
        raise UnsupportedEventError(
            f"accountant 'rdp' cannot bound event {event_name(atom)!r} under {relation}; use accountant='best'."
        )
    return found


def _basic(atom: Event, alpha: np.ndarray, relation: str) -> np.ndarray | None:
    if isinstance(atom, Gaussian):
        return _gaussian(effective(atom.noise_multiplier, relation), alpha)
    if isinstance(atom, Laplace):
        return _laplace(effective(atom.noise_multiplier, relation), alpha)
    if isinstance(atom, ZCDP):
        return atom.rho * alpha
    if isinstance(atom, GDP):
        return atom.mu**2 / 2 * alpha
    if isinstance(atom, EpsilonDelta) and atom.delta == 0:
        return _pure(atom.epsilon, alpha)
    if isinstance(atom, ExponentialMechanism):
        return renyi_closed.bounded_range(atom.epsilon, alpha)
    if isinstance(atom, UnequalGaussian):
        sides = (atom.noise_std, atom.other_noise_std), (atom.other_noise_std, atom.noise_std)
        return np.maximum(*(renyi_closed.unequal_gaussian(atom.shift, *side, alpha) for side in sides))
    if isinstance(atom, DiscreteGaussian):
        sigma, shift = atom.noise_std, integer_sensitivity(atom, relation)
        if sigma < 1e-150:
            return np.full(alpha.shape, np.inf)
        return np.array([renyi_sums.lattice_gaussian(sigma, shift, a) for a in alpha.tolist()]) / (alpha - 1)
    if isinstance(atom, DiscreteLaplace | RandomizedResponse):
        pure = _pure_bound(atom, relation)
        if pure > 1e12:
            return np.full(alpha.shape, np.inf)
        losses, exact = _bounded_losses(atom, relation)
        return np.minimum(_moments(losses, alpha, exact=exact), pure)
    if isinstance(atom, ObjectivePerturbation):
        return objective.rdp(atom, alpha, relation)
    return None


def _of_another(atom: Event, alpha: np.ndarray, relation: str) -> np.ndarray | None:
    """Samples, groups and selections: the smallest of what is proved."""
    if isinstance(atom, RepeatAndSelect):
        return _selected(atom, alpha, relation)
    plain = unsampled(atom)
    if plain is None:
        return _chained(atom, alpha, relation) if isinstance(atom, Group) else None
    # joint quasi-convexity: sampling never increases a Rényi divergence
    bound = rdp(plain, alpha, relation)
    if isinstance(atom, PoissonSampled) and isinstance(atom.event, Gaussian):
        q, sigma = atom.sampling_probability, atom.event.noise_multiplier
        return np.array([_sampled(q, sigma, order, relation) for order in alpha.tolist()])
    if isinstance(atom, PoissonSampled) and relation == ADD_REMOVE:
        return np.minimum(bound, _poisson(atom, alpha, relation))
    if isinstance(atom, SampledWithoutReplacement):
        return np.minimum(bound, _fixed_size(atom, alpha, relation))
    if pairs.is_sampled_group(atom) and relation == ADD_REMOVE and atom.size <= _MAX_GROUP:  # type: ignore[attr-defined]
        q, sigma = atom.event.sampling_probability, atom.event.event.noise_multiplier  # type: ignore[attr-defined]
        if sigma > 1e-3:
            size: int = atom.size  # type: ignore[attr-defined]
            moments = [renyi_sums.sampled_group(q, sigma, size, order) for order in alpha.tolist()]
            bound = np.minimum(bound, np.array(moments) / (alpha - 1))
    return bound


def _poisson(atom: PoissonSampled, alpha: np.ndarray, relation: str) -> np.ndarray:
    """Amplified by Poisson sampling under add_remove where the loss is bounded or on a lattice, else ``inf``."""
    q, inner = atom.sampling_probability, atom.event
    if isinstance(inner, DiscreteGaussian):
        sigma, shift = inner.noise_std, integer_sensitivity(inner, relation)
        moments = [renyi_sums.sampled_lattice_gaussian(q, sigma, shift, order) for order in alpha.tolist()]
        return np.array(moments) / (alpha - 1)
    if not _pure_bound(inner, relation) <= _LARGEST_LOSS:
        return np.full(alpha.shape, np.inf)
    losses, exact = _bounded_losses(inner, relation)
    sides = (_moments(poisson(losses, q, direction), alpha, exact=exact) for direction in ("remove", "add"))
    return np.maximum(*sides)


def _fixed_size(atom: SampledWithoutReplacement, alpha: np.ndarray, relation: str) -> np.ndarray:
    """Amplified by sampling without replacement for Gaussians and bounded losses, else ``inf``."""
    q, inner = atom.sample_size / atom.source_size, atom.event
    if isinstance(inner, Gaussian) and effective(inner.noise_multiplier, relation) > 1e-3:
        sigma = effective(inner.noise_multiplier, relation)
        moments = [renyi_sums.fixed_size_gaussian(q, sigma, order) for order in alpha.tolist()]
        return np.array(moments) / (alpha - 1)
    if isinstance(inner, DiscreteGaussian):
        sigma, shift = inner.noise_std, integer_sensitivity(inner, relation)
        moments = [renyi_sums.fixed_size_lattice_gaussian(q, sigma, shift, order) for order in alpha.tolist()]
        return np.array(moments) / (alpha - 1)
    if not _pure_bound(inner, relation) <= _LARGEST_LOSS:
        return np.full(alpha.shape, np.inf)
    losses, exact = _bounded_losses(inner, relation)
    return _moments(fixed_size(poisson(losses, q, "remove")), alpha, exact=exact)


def _pure_bound(atom: Event, relation: str) -> float:
    """The largest loss of one release, ``inf`` where it is not bounded."""
    if isinstance(atom, Laplace):
        scale = effective(atom.noise_multiplier, relation)
        return 1 / scale if scale > 1e-12 else math.inf
    if isinstance(atom, DiscreteLaplace):
        shift = integer_sensitivity(atom, relation)
        return shift / atom.noise_scale if atom.noise_scale > 1e-12 * shift else math.inf
    if isinstance(atom, ExponentialMechanism | RandomizedResponse) or (
        isinstance(atom, EpsilonDelta) and atom.delta == 0
    ):
        return atom.epsilon
    return math.inf


def _bounded_losses(atom: Event, relation: str) -> tuple[Losses | LossPmf, bool]:
    """The losses of a bounded release and whether they are exact; fine grids stand for continuous and long lists."""
    long = isinstance(atom, DiscreteLaplace) and integer_sensitivity(atom, relation) > _GRID
    if isinstance(atom, DiscreteLaplace | RandomizedResponse | EpsilonDelta) and not long:
        return discrete(atom, relation, 1.0), True
    step = 2.0 ** math.floor(math.log2(2 * _pure_bound(atom, relation) / _GRID))
    return pairs.discretise(atom, relation, "remove", step, 1.0), False


def _moments(losses: Losses | LossPmf, alpha: np.ndarray, *, exact: bool) -> np.ndarray:
    atoms = Losses(losses.losses, losses.masses, losses.infinite)
    values = [renyi_sums.atoms_moment(atoms, order, exact=exact) for order in alpha.tolist()]
    return np.array(values) / (alpha - 1) * (1 + 1e-11)


def _selected(atom: RepeatAndSelect, alpha: np.ndarray, relation: str) -> np.ndarray:
    """The best of a random number of runs; a bound at a larger order holds at the smaller ones as well."""
    here = rdp(atom.event, alpha, relation)
    if atom.shape is not None and atom.mean == 1:  # K = 1
        return here
    grid = np.array(ORDERS)
    base = rdp(atom.event, grid, relation)

    def bound(orders: np.ndarray, values: np.ndarray) -> np.ndarray:
        if atom.shape is not None:
            return renyi_closed.truncated_selection(atom.mean, atom.shape, orders, values, grid, base)
        targets = np.log1p(1 / (orders - 1))
        deltas = np.array([rdp_to_delta(grid, base, target) for target in targets.tolist()])
        return renyi_closed.poisson_selection(atom.mean, orders, values, deltas)

    at_grid = bound(grid, base)
    least = np.minimum.accumulate(at_grid[::-1])[::-1]  # min over larger orders
    index = np.searchsorted(grid, alpha)
    return np.minimum(bound(alpha, here), np.append(least, np.inf)[index])


def _chained(atom: Group, alpha: np.ndarray, relation: str) -> np.ndarray:
    """A group by the weak triangle inequality, k rounded up to 2^c.

    D_α(P‖R) ≤ (α − ½)/(α − 1)·D_{2α}(P‖Q) + D_{2α−1}(Q‖R)  (Mironov 2017, Corollary 4), with D_{2α−1} ≤ D_{2α}; below
    α = 2 the value at 2 holds too.
    """
    factor, orders = np.ones(alpha.shape), alpha
    raised, at_two = np.ones(alpha.shape), np.maximum(alpha, 2.0)
    for _ in range((atom.size - 1).bit_length()):
        factor, orders = factor * (1 + (orders - 0.5) / (orders - 1)), 2 * orders
        raised, at_two = raised * (1 + (at_two - 0.5) / (at_two - 1)), 2 * at_two
    with np.errstate(invalid="ignore"):
        return np.minimum(factor * rdp(atom.event, orders, relation), raised * rdp(atom.event, at_two, relation))


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


def _log_moment_fractional(q: float, sigma: float, order: float) -> float:
    """ln E_{μ₀}[r^α], r = 1−q+q·e^{(2x−1)/2σ²}, as ln(1 + E[r^α − 1 − α(r−1)]) because E[r] = 1.

    The integrand is analytic for |Im x| < πσ² (branch points of ln r), so the step is tied to σ².
    """
    grid = trapezoid(sigma, -13 * sigma - 1, order + 13 * sigma + 1, min(sigma / 5, 0.25 * sigma * sigma))
    if grid is None:
        return math.inf
    x, log_weight = grid
    exponent = (2 * x - 1) / (2 * sigma * sigma)
    return log_convex_moment(log_weight, log_ratio(q, exponent), order)


def _log_moment_replace(q: float, sigma: float, order: float) -> float:
    """ln E_Q[(P/Q)^α] with P = (1−q)N(0)+qN(1), Q = (1−q)N(0)+qN(−1): the pair of a replaced record.

    The pair is symmetric, so one direction serves.  Near zeros of Q the power 1−α limits the usable strip to about
    σ²/√α, hence the step.
    """
    step = min(sigma / 5, 0.15 * sigma * sigma / math.sqrt(order))
    grid = trapezoid(sigma, -13 * sigma - 1, 2 * order + 13 * sigma + 1, step)
    if grid is None:
        return math.inf
    x, log_weight = grid
    up = log_ratio(q, (2 * x - 1) / (2 * sigma * sigma))
    down = log_ratio(q, (-2 * x - 1) / (2 * sigma * sigma))
    return log_convex_moment(log_weight + down, up - down, order)
