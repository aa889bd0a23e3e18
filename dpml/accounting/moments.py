"""Moment functions M(z) = E_P[e^{zL}; L < ∞] of one release, in one direction, on a vertical line z = c + it.

Every class here answers the same five questions (:class:`Moments`); the sampled Gaussian's are in ``mixtures``.  An
atom that no class serves is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy import special

from dpml.accounting import objective
from dpml.accounting.events import (
    ADD_REMOVE,
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
    UnequalGaussian,
    event_name,
)
from dpml.accounting.mixtures import SampledGaussianMoments, decay_of_variation, log_of
from dpml.accounting.normal_form import effective, integer_sensitivity
from dpml.errors import UnsupportedEventError

_UNIT = float(np.finfo(float).eps)
_LARGEST_GROUP = 200


class Moments(Protocol):
    """One release in one direction."""

    def __hash__(self) -> int:
        """Equal releases share cached values."""

    @property
    def infinite(self) -> float:
        """P-mass of an infinite loss."""

    @property
    def largest_order(self) -> float:
        """M(c) is finite for 0 < c < largest_order."""

    @property
    def quadrature(self) -> bool:
        """Whether a point on the line costs a sum over ``points``."""

    def log_moment(self, c: float) -> tuple[float, float]:
        """(ln M(c), a bound on its error)."""

    def log_ratio(self, c: float, t: np.ndarray, exponent: float) -> tuple[np.ndarray, np.ndarray]:
        """(ln(M(c + it)/M(c)), bounds on the errors of M(c + it)/M(c)); e^{−exponent} is allowed to quadratures."""

    def log_decay(self, c: float, t: np.ndarray, *, fine: bool = False) -> np.ndarray:
        """Upper bound on ln|M(c + it)/M(c)|, not increasing with t > 0; ``fine`` may take more work."""

    def points(self, c: float, t: float, exponent: float) -> float:
        """Cost of one point of the line at t."""


@dataclass(frozen=True)
class GaussianMoments:
    """N(μ, 1) against N(0, 1): ln M(z) = z(z + 1)μ²/2."""

    mu: float
    infinite = 0.0
    largest_order = math.inf
    quadrature = False

    def log_moment(self, c: float) -> tuple[float, float]:
        value = c * (c + 1) * self.mu * self.mu / 2
        return value, 4 * _UNIT * value

    def log_ratio(self, c: float, t: np.ndarray, exponent: float) -> tuple[np.ndarray, np.ndarray]:
        half = self.mu * self.mu / 2
        value = half * (-t * t + 1j * t * (2 * c + 1))
        return value, 4 * _UNIT * np.minimum(np.abs(value), 1e3)

    def log_decay(self, c: float, t: np.ndarray, *, fine: bool = False) -> np.ndarray:
        return -self.mu * self.mu / 2 * t * t

    def points(self, c: float, t: float, exponent: float) -> float:
        return 1.0


@dataclass(frozen=True)
class UnequalGaussianMoments:
    """N(0, s²) against N(shift, s′²): with A = (z+1)/s² − z/s′², Re A > 0,

    ln M(z) = z ln(s′/s) − ½ ln(A s²) + z(z + 1)·shift²/(2 s² s′² A).

    The loss is a quadratic of a normal variable, so that |M(c+it)| = M(c)·(1 + 4a²t²)^{−1/4} e^{−2λa²t²/(1+4a²t²)}-like
    (the characteristic function of a scaled noncentral χ²) falls with t: it is its own bound.
    """

    shift: float
    std: float
    other: float
    infinite = 0.0
    quadrature = False

    @property
    def largest_order(self) -> float:
        gap = 1 / self.other**2 - 1 / self.std**2
        return math.inf if gap <= 0 else 1 / self.std**2 / gap

    def _log(self, z: np.ndarray) -> np.ndarray:
        scaled = 1 + z - z * (self.std / self.other) ** 2  # A s²
        return np.asarray(
            z * math.log(self.other / self.std)
            - 0.5 * np.log(scaled)
            + z * (z + 1) * self.shift**2 / (2 * self.other**2 * scaled)
        )

    def log_moment(self, c: float) -> tuple[float, float]:
        if c >= self.largest_order:
            return math.inf, math.inf
        value = float(self._log(np.array(complex(c))).real)
        size = abs(c * math.log(self.other / self.std)) + abs(value) + 1
        return value, 32 * _UNIT * size / max(1e-3, 1 - c / self.largest_order)

    def log_ratio(self, c: float, t: np.ndarray, exponent: float) -> tuple[np.ndarray, np.ndarray]:
        value = self._log(c + 1j * t) - self._log(np.array(complex(c)))
        error = self.log_moment(c)[1]
        return value, np.minimum(error * (1 + t / c) + 8 * _UNIT * np.abs(value), 1.0)

    def log_decay(self, c: float, t: np.ndarray, *, fine: bool = False) -> np.ndarray:
        if not c < self.largest_order:
            return np.zeros(t.shape)
        return np.minimum(0.0, (self._log(c + 1j * t) - self._log(np.array(complex(c)))).real + 1e-9)

    def points(self, c: float, t: float, exponent: float) -> float:
        return 1.0


@dataclass(frozen=True)
class AtomsMoments:
    """A loss with finitely many values: ``losses[i]`` with P-mass ``masses[i]``; the rest of the mass is at +∞."""

    losses: tuple[float, ...]
    masses: tuple[float, ...]
    infinite: float = 0.0
    largest_order = math.inf
    quadrature = False

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.losses), np.log(np.array(self.masses))

    def log_moment(self, c: float) -> tuple[float, float]:
        losses, logs = self._arrays()
        exponents = logs + c * losses
        top = float(exponents.max())
        value = top + math.log(float(np.exp(exponents - top).sum()))
        if abs(value) < 0.5:  # near 0 the digits of M − 1 count
            value = math.log1p(float((np.array(self.masses) * np.expm1(c * losses)).sum()) - self.infinite)
        return value, 32 * _UNIT * min(1 + abs(value), self.infinite + 4 * c * float(np.abs(losses).max()) + abs(value))

    def log_ratio(self, c: float, t: np.ndarray, exponent: float) -> tuple[np.ndarray, np.ndarray]:
        losses, logs = self._arrays()
        weights = np.exp(logs + c * losses - np.max(logs + c * losses))
        weights = weights / weights.sum()
        value = _log_characteristic(weights, losses, t)
        return value, 16 * _UNIT * (1 + np.minimum(t * float(np.abs(losses).max()), 1e8))

    def log_decay(self, c: float, t: np.ndarray, *, fine: bool = False) -> np.ndarray:
        return np.zeros(t.shape)

    def points(self, c: float, t: float, exponent: float) -> float:
        return float(len(self.losses))


def _log_characteristic(weights: np.ndarray, losses: np.ndarray, t: np.ndarray) -> np.ndarray:
    """ln Σ wᵢe^{itℓᵢ} for Σ wᵢ = 1, without cancellation near t = 0; memory is len(t) however many losses."""
    real, imaginary = np.zeros(t.shape), np.zeros(t.shape)
    for weight, loss in zip(weights, losses, strict=True):
        half = 0.5 * t * loss
        sine = np.sin(half)
        real += 2 * weight * sine * sine
        imaginary += 2 * weight * sine * np.cos(half)
    return log_of(real, imaginary)


@dataclass(frozen=True)
class LaplaceMoments:
    """Laplace(0, b) against Laplace(1, b), top = 1/b: atoms ½ and ½e^{−top} at ±top, density e^{(ℓ−top)/2}/4 between.

    M(z) = ½e^{z·top} + ½e^{−(z+1)top} + (e^{z·top} − e^{−(z+1)top})/(4(z + ½)).
    """

    top: float
    infinite = 0.0
    largest_order = math.inf
    quadrature = False

    def _ratio(self, c: float, t: np.ndarray) -> np.ndarray:
        """M(c + it)·e^{−c·top}."""
        z = c + 1j * t
        up, down = np.exp(1j * t * self.top), np.exp(-(2 * c + 1) * self.top - 1j * t * self.top)
        return np.asarray((up + down) / 2 + (up - down) / (4 * z + 2))

    def log_moment(self, c: float) -> tuple[float, float]:
        if (2 * c + 1) * self.top < 1e-2:  # M − 1 = [c·(e^{c·top} − 1) …]: same form as mixtures, without cancellation
            up, down = math.expm1(c * self.top), math.expm1(-(c + 1) * self.top)
            value = math.log1p((up * (c + 1) + down * c) / (2 * c + 1))
        else:
            value = c * self.top + math.log(float(self._ratio(c, np.zeros(1)).real[0]))
        return value, 32 * _UNIT * (min(1.0, (2 * c + 1) * self.top) + abs(value))

    def log_ratio(self, c: float, t: np.ndarray, exponent: float) -> tuple[np.ndarray, np.ndarray]:
        value = np.log(self._ratio(c, t)) - math.log(float(self._ratio(c, np.zeros(1)).real[0]))
        return value, 16 * _UNIT * (1 + np.minimum(t * self.top, 1e8))

    def log_decay(self, c: float, t: np.ndarray, *, fine: bool = False) -> np.ndarray:
        down = math.exp(-(2 * c + 1) * self.top)
        atoms, jumps = (1 + down) / 2, (1 + down) / 4
        total = float(self._ratio(c, np.zeros(1)).real[0])
        return np.minimum(0.0, np.log((atoms + jumps / t) / total))

    def points(self, c: float, t: float, exponent: float) -> float:
        return 2.0


@dataclass(frozen=True)
class BoundedRangeMoments:
    """The worst η-bounded-range pair: density e^{(ℓ−η)/2}/(2(1 − e^{−η})) on [−η, η].

    Its profile (1 − e^{(ε−η)/2})²/(1 − e^{−η}) is the largest hockey-stick divergence of the two-point pairs with
    losses t and t − η (Dong, Durfee & Rogers 2020, section 3).  M(z) = (e^{zη} − e^{−(z+1)η})/(2(1 − e^{−η})(z + ½)).
    """

    eta: float
    infinite = 0.0
    largest_order = math.inf
    quadrature = False

    def _ratio(self, c: float, t: np.ndarray) -> np.ndarray:
        """M(c + it)·e^{−cη}."""
        z = c + 1j * t
        turn = 1j * t * self.eta
        up = np.exp(turn) * -np.expm1(-(2 * c + 1) * self.eta - 2 * turn)
        return np.asarray(up / (-math.expm1(-self.eta) * (2 * z + 1)))

    def log_moment(self, c: float) -> tuple[float, float]:
        # ln M = ln[sinh(y)/y] − ln[sinh(y₀)/y₀] with y = (c+½)η, y₀ = η/2
        value = _log_sinhc((c + 0.5) * self.eta) - _log_sinhc(self.eta / 2)
        return value, 32 * _UNIT * (min(1.0, (c + 1) * self.eta) + abs(value))

    def log_ratio(self, c: float, t: np.ndarray, exponent: float) -> tuple[np.ndarray, np.ndarray]:
        value = np.log(self._ratio(c, t)) - math.log(float(self._ratio(c, np.zeros(1)).real[0]))
        return value, 64 * _UNIT * (1 + np.minimum(t * self.eta, 1e8)) / min(1.0, self.eta)

    def log_decay(self, c: float, t: np.ndarray, *, fine: bool = False) -> np.ndarray:
        total = float(self._ratio(c, np.zeros(1)).real[0])
        return decay_of_variation(1 / -math.expm1(-self.eta) / total, t)

    def points(self, c: float, t: float, exponent: float) -> float:
        return 2.0


def _log_sinhc(y: float) -> float:
    if y < 0.05:
        return math.log1p(y * y / 6 + y**4 / 120 + y**6 / 5040)
    return y + math.log(-math.expm1(-2 * y) / (2 * y))


@dataclass(frozen=True)
class ObjectiveMoments:
    """The bound W = c₀ + (a²/2 + Z)₊, Z ~ N(0, a²), on the loss of objective perturbation with a monotone loss (both
    directions).

    The loss is below W in distribution given everything before (docs/proofs-objective.md), so that sums of W bound sums
    of losses.  M(z) = e^{zc₀}[Φ(−a/2) + e^{z(z+1)a²/2} Φ(a/2 + za)].
    """

    a: float
    constant: float
    infinite = 0.0
    largest_order = math.inf
    quadrature = False

    def log_moment(self, c: float) -> tuple[float, float]:
        a = self.a
        zero = float(special.log_ndtr(-a / 2))
        rest = c * (c + 1) * a * a / 2 + float(special.log_ndtr(a / 2 + c * a))
        value = c * self.constant + float(np.logaddexp(zero, rest))
        return value, 64 * _UNIT * (1 + abs(value) + abs(zero))

    def log_ratio(self, c: float, t: np.ndarray, exponent: float) -> tuple[np.ndarray, np.ndarray]:
        a, z = self.a, c + 1j * t
        base = self.log_moment(c)[0] - c * self.constant
        zero = math.exp(float(special.log_ndtr(-a / 2)) - base)
        # Φ(w) = 1 − ½e^{−w²/2} erfcx(w/√2) with w²/2 = z(z+1)a²/2 + a²/8: no exponents of size t²a² that cancel
        scaled = special.wofz(1j * a * (z + 0.5) / math.sqrt(2))
        rest = np.exp(z * (z + 1) * a * a / 2 - base) - 0.5 * math.exp(-a * a / 8 - base) * scaled
        return 1j * t * self.constant + np.log(zero + rest), 1e-13 * (1 + np.minimum(t * (self.constant + a), 1e6))

    def log_decay(self, c: float, t: np.ndarray, *, fine: bool = False) -> np.ndarray:
        # atom at c₀, and e^{cw}·density of N(a²/2, a²) on w > 0: one maximum at a²/2 + ca²
        a = self.a
        base = self.log_moment(c)[0] - c * self.constant
        zero = math.exp(float(special.log_ndtr(-a / 2)) - base)
        height = math.exp(c * (c + 1) * a * a / 2 - base) / (a * math.sqrt(2 * math.pi))
        return np.minimum(0.0, np.log(zero + 2 * height / t))

    def points(self, c: float, t: float, exponent: float) -> float:
        return 10.0


@lru_cache(maxsize=1024)
def moments(atom: Event, relation: str, direction: str) -> Moments:
    """The moment function of an atom of the normal form; UnsupportedEventError where none is smooth or known."""
    kind = type(atom)
    inner = atom.event if isinstance(atom, PoissonSampled | Group) else None
    if isinstance(inner, PoissonSampled | Gaussian):
        found = _sampled(atom, relation, direction)
        if found is not None:
            return found
    elif kind in _BUILDERS:
        found = _BUILDERS[kind](atom, relation, direction)
        if found is not None:
            return found
    raise UnsupportedEventError(
        f"accountant 'exact' cannot bound event {event_name(atom)!r} under {relation}: no moment function that is "
        "smooth enough is known for it; use accountant='best' or 'pld'."
    )


def _sampled(atom: Event, relation: str, direction: str) -> Moments | None:
    """A sampled Gaussian, for one record or (add_remove) for a group of records that are sampled independently.

    With σ below 0.1 the losses are as good as discrete (sampled or not): too slow, and left to the grid.
    """
    size = 1
    if isinstance(atom, Group):
        size, atom = atom.size, atom.event
    if not isinstance(atom, PoissonSampled) or not isinstance(atom.event, Gaussian):
        return None
    sigma, q = atom.event.noise_multiplier, atom.sampling_probability
    if not 0.1 <= sigma <= 1e5 or not 1e-12 <= q <= 1 - 1e-12:
        return None
    if relation != ADD_REMOVE:
        return SampledGaussianMoments((1 - q, q), sigma, "replace") if size == 1 else None
    if size > _LARGEST_GROUP:
        return None
    j = np.arange(size + 1)
    logs = (
        special.gammaln(size + 1)
        - special.gammaln(j + 1)
        - special.gammaln(size - j + 1)
        + j * math.log(q)
        + (size - j) * math.log1p(-q)
    )
    weights = np.exp(logs) if size > 1 else np.array([1 - q, q])
    if weights.min() < 1e-300:
        return None
    return SampledGaussianMoments(tuple((weights / weights.sum()).tolist()), sigma, direction)


def _gaussian(atom: Gaussian, relation: str, direction: str) -> Moments | None:
    sigma = effective(atom.noise_multiplier, relation)
    return GaussianMoments(1 / sigma) if sigma > 1e-3 else None


def _laplace(atom: Laplace, relation: str, direction: str) -> Moments | None:
    scale = effective(atom.noise_multiplier, relation)
    return LaplaceMoments(1 / scale) if 1e-2 <= scale <= 1e6 else None


def _unequal(atom: UnequalGaussian, relation: str, direction: str) -> Moments | None:
    first, second = atom.noise_std, atom.other_noise_std
    if direction == "add":
        first, second = second, first
    return UnequalGaussianMoments(atom.shift, first, second)


def _statement(atom: EpsilonDelta, relation: str, direction: str) -> Moments | None:
    """The worst (ε, δ) pair: infinite loss with probability δ, else randomized response (Kairouz et al. 2015)."""
    if atom.epsilon > 100 or atom.delta >= 1:
        return None
    high = 1 / (1 + math.exp(-atom.epsilon))
    low = 1 / (1 + math.exp(atom.epsilon))
    masses = ((1 - atom.delta) * high, (1 - atom.delta) * low)
    return AtomsMoments((atom.epsilon, -atom.epsilon), masses, atom.delta)


def _randomized_response(atom: RandomizedResponse, relation: str, direction: str) -> Moments | None:
    p, k, pure = atom.noise_parameter, atom.num_buckets, atom.epsilon
    if not 1e-8 <= pure <= 100:
        return None
    return AtomsMoments((pure, -pure, 0.0), (1 - p + p / k, p / k, (k - 2) * p / k))


def _bounded_range(atom: ExponentialMechanism, relation: str, direction: str) -> Moments | None:
    return BoundedRangeMoments(atom.epsilon) if 1e-6 <= atom.epsilon <= 100 else None


def _discrete_laplace(atom: DiscreteLaplace, relation: str, direction: str) -> Moments | None:
    """P(k) ∝ e^{−|k|/b} against its shift by s: loss (|k − s| − |k|)/b, s + 1 values."""
    s, b = integer_sensitivity(atom, relation), atom.noise_scale
    if not 1e-2 <= b <= 1e5 or s > 200:
        return None
    k = np.arange(1, s)
    inside = math.tanh(1 / (2 * b)) * np.exp(-k / b)  # (1 − e^{−1/b})/(1 + e^{−1/b})·e^{−k/b}
    below = 1 / (1 + math.exp(-1 / b))  # P(Z ≤ 0)
    above = math.exp(-s / b) * below  # P(Z ≥ s)
    losses = [s / b, *((s - 2 * k) / b).tolist(), -s / b]
    return AtomsMoments(tuple(losses), (below, *inside.tolist(), above))


def _objective(atom: ObjectivePerturbation, relation: str, direction: str) -> Moments | None:
    a = objective.ratio(atom)
    if relation != ADD_REMOVE or not objective.is_monotone(atom) or not 1e-4 <= a <= 1e3:
        return None
    return ObjectiveMoments(a, objective.jacobian_constant(atom))


_BUILDERS: dict[type[Event], Callable] = {
    Gaussian: _gaussian,
    Laplace: _laplace,
    UnequalGaussian: _unequal,
    EpsilonDelta: _statement,
    RandomizedResponse: _randomized_response,
    ExponentialMechanism: _bounded_range,
    DiscreteLaplace: _discrete_laplace,
    ObjectivePerturbation: _objective,
}
