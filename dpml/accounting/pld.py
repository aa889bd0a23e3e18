"""The privacy-loss-distribution accountant: numerical composition on a grid, rounded up, in tilted masses.

Each release's loss is put on a grid that dominates it (``pairs``), and compositions are powers and products of discrete
Fourier transforms.  Three choices keep the answer an upper bound that is also tight:

* the grid step follows the spread of one step's loss, so a small ε does not drown in a fixed grid;
* masses are tilted by e^{θℓ} before the transform, with θ at the saddle point, so that the transform's rounding error
  (absolute, about 1e-15) is small relative to δ even at δ = 1e-200;
* a bound on that rounding error, the mass that may have wrapped around the grid, and the tails that were cut off are
  all added to δ.

Where all parts are (ε, δ) statements (or pure), their sum is taken where it is smaller.

Both directions of the pair are composed separately and the larger ε is reported; where an UnequalGaussian takes part,
which of its sides belongs to which data set is tried both ways, the same way for all releases.  The method is that of
Koskela, Jälkö & Honkela 2020 and Gopi, Lee & Wutschitz 2021 with the tilting of an Esscher transform.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy import fft

from dpml.accounting import pairs, renyi
from dpml.accounting.conversions import find_root
from dpml.accounting.events import (
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Gaussian,
    Group,
    Laplace,
    PoissonSampled,
    SampledWithoutReplacement,
    UnequalGaussian,
)
from dpml.accounting.normal_form import effective, integer_sensitivity, merge_gaussians, normal_form
from dpml.accounting.pairs import LossPmf
from dpml.accounting.theorems import Statement, event_statements, round_up, total_delta, total_epsilon
from dpml.errors import DpmlError, UnsupportedEventError

_UNIT = float(np.finfo(float).eps)
_RESOLUTION = 24.0
_MAX_POINTS = 2**21
_LONG_TRIAL = 2**11
_LOG_WRAP = math.log(1e-14)


@dataclass(frozen=True, eq=False)
class _Composed:
    """Composed tilted masses: the untilted mass at ``losses[i]`` is e^{log_scale − θ·losses[i]}·tilted[i]."""

    losses: np.ndarray
    tilted: np.ndarray
    theta: float
    log_scale: float
    infinite: float
    allowance: float
    slack: float


def epsilon(event: Event, delta: float, neighboring_relation: str) -> float:
    """Upper bound on ε(δ), 0 < δ < 1; ``inf`` where infinite losses alone have more mass than δ."""
    atoms = _atoms(event, neighboring_relation)
    basic = _basic(event, neighboring_relation)
    limit = round_up(total_epsilon(basic)) if basic is not None and total_delta(basic) <= Fraction(delta) else math.inf
    if atoms is None:
        return limit
    if not atoms:
        return 0.0
    try:
        with np.errstate(all="ignore"):
            return min(limit, _epsilon(atoms, delta, neighboring_relation))
    except DpmlError:
        raise
    except (ArithmeticError, ValueError):  # losses or counts that floats do not hold: no bound
        return limit


def _basic(event: Event, relation: str) -> list[Statement] | None:
    """The parts as (ε, δ) statements, if all of them are: basic composition is free, and a grid can be looser."""
    try:
        return event_statements(event, relation, "pld")
    except UnsupportedEventError:
        return None


def _epsilon(atoms: dict[Event, int], delta: float, relation: str) -> float:
    log_delta = math.log(delta)
    found = 0.0
    for side, direction in _sides(atoms, relation):
        plan = _Plan(side, relation, direction, log_delta, lambda m: _theta_for_delta(m, log_delta))
        if plan.chernoff(found) <= delta:
            continue
        composed = plan.composed()
        if _hockey_stick(composed, found) > delta:
            found = max(found, _solve(composed, delta))
    return found


def delta(event: Event, epsilon: float, neighboring_relation: str) -> float:
    """Upper bound on δ(ε)."""
    atoms = _atoms(event, neighboring_relation)
    basic = _basic(event, neighboring_relation)
    limit = 1.0
    if basic is not None and total_epsilon(basic) <= Fraction(epsilon):
        limit = min(1.0, round_up(total_delta(basic)))
    if atoms is None:
        return limit
    if not atoms:
        return 0.0
    try:
        with np.errstate(all="ignore"):
            return min(limit, _delta(event, atoms, epsilon, neighboring_relation))
    except DpmlError:
        raise
    except (ArithmeticError, ValueError):  # as in epsilon
        return limit


def _delta(event: Event, atoms: dict[Event, int], epsilon: float, relation: str) -> float:
    found = 1.0
    for log_guess in _guesses(event, epsilon, relation):  # until the cut tails are a small part of δ
        largest = 0.0
        for side, direction in _sides(atoms, relation):
            plan = _Plan(side, relation, direction, log_guess, lambda m: _theta_for_epsilon(m, epsilon))
            if plan.chernoff(epsilon) > largest:
                largest = max(largest, _hockey_stick(plan.composed(), epsilon))
        found = min(found, largest)
        if found > 0 and math.log(found) > log_guess:
            break
    return found


def _guesses(event: Event, epsilon: float, relation: str) -> tuple[float, ...]:
    """Falling guesses of ln δ(ε), by which the tails are cut: first a little below the Rényi bound."""
    try:
        bound = renyi.delta(event, epsilon, relation)
    except UnsupportedEventError:
        return (-27.0, -90.0, -300.0, -690.0)
    first = max(math.log(max(bound, 1e-300)) - 6.0, -690.0)
    return (first, *(guess for guess in (-90.0, -300.0, -690.0) if guess < first))


def _atoms(event: Event, relation: str) -> dict[Event, int] | None:
    """Atoms with all unsampled Gaussians merged; None when a part has no noise (ε = ∞)."""
    atoms = normal_form(event, relation)
    for atom in atoms:
        pairs.supported(atom, relation)
    gaussians: dict[Event, int] = {atom: count for atom, count in atoms.items() if isinstance(atom, Gaussian)}
    others = {atom: count for atom, count in atoms.items() if atom not in gaussians}
    if gaussians:
        others[merge_gaussians(gaussians)] = 1
    if any(_noise(atom, relation) < 1e-3 or getattr(atom, "delta", 0.0) == 1 for atom in others):
        return None  # losses above 1e5: as good as infinite; δ = 1: infinite for certain
    return others


def _noise(atom: Event, relation: str) -> float:
    """Noise ÷ sensitivity of the release itself; 1 where there is no such number."""
    if isinstance(atom, PoissonSampled | SampledWithoutReplacement):
        return _noise(atom.event, relation)
    if isinstance(atom, Group):
        return _noise(atom.event, relation) / atom.size
    if isinstance(atom, Gaussian | Laplace):
        return effective(atom.noise_multiplier, relation)
    if isinstance(atom, DiscreteLaplace):
        return atom.noise_scale / integer_sensitivity(atom, relation)
    if isinstance(atom, DiscreteGaussian):
        return atom.noise_std / integer_sensitivity(atom, relation)
    if isinstance(atom, UnequalGaussian):
        low, high = sorted((atom.noise_std, atom.other_noise_std))
        return low / max(high, atom.shift)
    return 1.0


def _sides(atoms: dict[Event, int], relation: str) -> Iterator[tuple[dict[Event, int], str]]:
    """The atoms and directions to compose: each choice of which data set is the first."""
    turned: dict[Event, int] = {}
    for atom, count in atoms.items():
        other = pairs.swapped(atom)
        turned[other] = turned.get(other, 0) + count
    symmetric = all(pairs.is_symmetric(atom, relation) for atom in atoms)
    for side in (atoms,) if turned == atoms else (atoms, turned):
        for direction in ("remove",) if symmetric else ("remove", "add"):
            yield side, direction


class _Plan:
    """One direction's releases: first on a coarse trial grid, which is a bound too, then composed on a fine one."""

    def __init__(
        self,
        atoms: dict[Event, int],
        relation: str,
        direction: str,
        log_delta: float,
        theta_of: Callable[[_Moments], float],
    ) -> None:
        self._on_grid = lambda coarser: _pmfs(atoms, relation, direction, log_delta, coarser)
        self._theta_of = theta_of
        self._trial = self._on_grid(16.0)
        self._moments = _Moments(self._trial)
        self._theta = theta_of(self._moments)

    def chernoff(self, epsilon: float) -> float:
        """P(L > ε) ≤ P(∞) + e^{K(θ) − θε}, an upper bound on δ(ε) that costs no transform."""
        exponent = self._moments(self._theta)[0] - self._theta * epsilon
        return min(1.0, (_infinite(self._trial) + math.exp(min(exponent, 0.0))) * (1 + 1e-9))

    def composed(self) -> _Composed:
        """All releases together; a grid that would need too many points is coarser, which only costs tightness."""
        coarser = self._coarser()
        while True:
            pmfs = self._on_grid(coarser)
            moments = _Moments(pmfs)
            guide = self._moments if self._is_long() else moments
            theta = self._theta if self._is_long() else self._theta_of(moments)
            first, last = _window(pmfs, moments, guide, theta)
            size = fft.next_fast_len(max(last - first + 1, max(len(pmf.masses) for pmf, _ in pmfs)), real=True)
            if size <= _MAX_POINTS:
                return _compose(pmfs, moments, theta, first, size)
            coarser *= 2.0 ** math.ceil(math.log2(size / _MAX_POINTS))

    def _is_long(self) -> bool:
        return max(len(pmf.masses) for pmf, _ in self._trial) >= _LONG_TRIAL

    def _coarser(self) -> float:
        """How much coarser a long grid may be: a chord over one step adds at most step²·θ(θ + 1)/8 to ln δ a release.

        1e-4 of ε is allowed, with θ and ε ≈ K′(θ) from the trial.
        """
        if not self._is_long():
            return 1.0
        total = sum(count for _, count in self._trial)
        allowed = math.sqrt(8e-4 * max(self._moments(self._theta)[1], 0.0) / ((self._theta + 1) * total))
        finest = self._trial[0][0].step / 16
        return 2.0 ** min(max(math.floor(math.log2(max(allowed, 1e-300) / finest)), 0), 8)


def _pmfs(
    atoms: dict[Event, int], relation: str, direction: str, log_delta: float, coarser: float
) -> list[tuple[LossPmf, int]]:
    """One-step pmfs on a common grid, with counts."""
    # step: fine against the total spread per step; tails: a share e^{-14} of δ in all
    total = sum(atoms.values())
    variance = sum(count * pairs.scale(atom, relation) ** 2 for atom, count in atoms.items())
    resolution = _RESOLUTION * min(max(64 / total, 1.0), 16.0)  # few releases: a finer grid is cheap
    step = 2.0 ** math.floor(math.log2(math.sqrt(variance / total) / resolution))
    width = float(math.ceil(math.sqrt(2 * (14 - log_delta + math.log(total)))))
    longest = max(step, *(pairs.span(atom, relation, width) for atom in atoms))
    step = max(step, 2.0 ** math.ceil(math.log2(longest / pairs.MAX_CELLS))) * coarser
    return [(pairs.discretise(atom, relation, direction, step, width), count) for atom, count in atoms.items()]


class _Moments:
    """Cumulant function K(θ) = Σ countⱼ ln Σ pⱼ e^{θℓ} of the finite losses, computed on the grid pmfs themselves."""

    def __init__(self, pmfs: list[tuple[LossPmf, int]]) -> None:
        self._parts = []
        for pmf, count in pmfs:
            keep = pmf.masses > 0
            self._parts.append((pmf.losses[keep], np.log(pmf.masses[keep]), count))
        self._cache: dict[float, tuple[float, float]] = {}

    def __call__(self, theta: float) -> tuple[float, float]:
        """(K(θ), K′(θ))."""
        if theta not in self._cache:
            value = slope = 0.0
            for losses, logs, count in self._parts:
                exponent = logs + theta * losses
                top = float(exponent.max())
                weights = np.exp(exponent - top)
                mass = float(weights.sum())
                value += count * (top + math.log(mass))
                slope += count * float(weights @ losses) / mass
            self._cache[theta] = (value, slope)
        return self._cache[theta]


def _golden(function, low: float, high: float, rounds: int = 12) -> float:  # type: ignore[no-untyped-def]
    """Minimiser of a unimodal function on the log axis; accuracy is only tightness."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = low, high
    c, d = b - ratio * (b - a), a + ratio * (b - a)
    fc, fd = function(c), function(d)
    for _ in range(rounds):
        if fc < fd:
            b, d, fd = d, c, fc
            c = b - ratio * (b - a)
            fc = function(c)
        else:
            a, c, fc = c, d, fd
            d = a + ratio * (b - a)
            fd = function(d)
    return (a + b) / 2


def _theta_for_delta(moments: _Moments, log_delta: float) -> float:
    """The order (minus 1) whose Chernoff bound on ε(δ) is smallest."""

    def bound(log_theta: float) -> float:
        theta = math.exp(log_theta)
        return (moments(theta)[0] - log_delta - math.log1p(theta)) / theta

    return _minimiser(bound)


def _theta_for_epsilon(moments: _Moments, epsilon: float) -> float:
    """The saddle point of the integral for δ(ε)."""

    def bound(log_theta: float) -> float:
        theta = math.exp(log_theta)
        return moments(theta)[0] - theta * epsilon - math.log(theta) - math.log1p(theta)

    return _minimiser(bound)


def _minimiser(bound) -> float:  # type: ignore[no-untyped-def]
    """e^x at which a unimodal function of x is smallest, x in ln [1e-3, 1e7]; accuracy is only tightness."""
    grid = np.log(10.0) * np.arange(-3, 8)
    best, values = 0, []
    for index, point in enumerate(grid):
        values.append(bound(float(point)))
        if values[index] <= values[best]:
            best = index
        elif index > best + 1:
            break
    low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])
    return math.exp(_golden(bound, low, high))


def _window(pmfs: list[tuple[LossPmf, int]], moments: _Moments, guide: _Moments, theta: float) -> tuple[int, int]:
    """Grid range outside of which lies at most e^{_LOG_WRAP} of the tilted composed mass on each side (Chernoff).

    ``guide``, moments of the same releases on any grid, chooses the order of the Chernoff bound; ``moments`` proves it.
    """
    step = pmfs[0][0].step
    floor = sum(count * pmf.start for pmf, count in pmfs)
    ceiling = sum(count * (pmf.start + len(pmf.masses) - 1) for pmf, count in pmfs)
    value, slope = guide(theta)
    h = 1e-3 * theta
    curvature = max((guide(theta + h)[1] - slope) / h, 1e-300)
    orders = math.sqrt(-2 * _LOG_WRAP / curvature) * 2.0 ** np.arange(-5.0, 1.5, 0.5)
    up = min(orders, key=lambda s: (guide(theta + s)[0] - value - _LOG_WRAP) / s)
    down = min(orders, key=lambda s: (guide(theta - s)[0] - value - _LOG_WRAP) / s)
    value = moments(theta)[0]
    high = (moments(theta + up)[0] - value - _LOG_WRAP) / up / step
    low = -(moments(theta - down)[0] - value - _LOG_WRAP) / down / step
    first = math.floor(low) if floor < low < ceiling else floor
    last = math.ceil(high) if floor < high < ceiling else ceiling
    return first, last


def _compose(pmfs: list[tuple[LossPmf, int]], moments: _Moments, theta: float, first: int, size: int) -> _Composed:
    """All releases, tilted by θ, by powers of discrete Fourier transforms, on ``size`` grid points from ``first``."""
    step = pmfs[0][0].step
    total = sum(count for _, count in pmfs)
    spectrum = np.ones(size // 2 + 1, dtype=complex)
    shift = 0
    for pmf, count in pmfs:
        with np.errstate(divide="ignore"):
            exponent = np.log(pmf.masses) + theta * pmf.losses
        tilted = np.exp(exponent - exponent.max())
        transform = fft.rfft(tilted / tilted.sum(), size)
        spectrum *= transform**count if count > 1 else transform
        shift += count * pmf.start
    masses = np.roll(fft.irfft(spectrum, size), (shift - first) % size)
    # Each transform errs by at most unit = c·u·log2(N) absolutely (its modulus is at most 1), so the product errs by
    # unit·total·|product|^{1−1/total} and the inverse by unit·mean|product| more.
    unit = 8 * _UNIT * math.log2(size + 1)
    modulus = np.minimum(np.abs(spectrum), 1.0)
    point_error = unit * 2 * float(np.mean(total * modulus ** (1 - 1 / total) + modulus))
    # Σ over grid points above ε of error·e^{−θ(ℓ−ε)}, and what wrapped around from above the window
    points = min(float(size), 1 / -math.expm1(-theta * step))
    return _Composed(
        losses=step * (first + np.arange(size)),
        tilted=np.maximum(masses, 0.0),
        theta=theta,
        log_scale=moments(theta)[0],
        infinite=_infinite(pmfs),
        allowance=point_error * points + 2 * math.exp(_LOG_WRAP),
        slack=1 + 64 * _UNIT * (total + 1000),
    )


def _infinite(pmfs: list[tuple[LossPmf, int]]) -> float:
    """Probability that one loss at least is infinite."""
    return -math.expm1(math.fsum(count * math.log1p(-min(pmf.infinite, 1 - 1e-16)) for pmf, count in pmfs))


def _hockey_stick(composed: _Composed, epsilon: float) -> float:
    """δ(ε) = P(∞) + Σ_{ℓ>ε} (1 − e^{ε−ℓ})·P(ℓ), plus the allowances, in one scale e^{K−θε}."""
    start = int(np.searchsorted(composed.losses, epsilon, side="right"))
    gap = composed.losses[start:] - epsilon
    weights = -np.expm1(-gap) * np.exp(-composed.theta * gap)
    finite = float(weights @ composed.tilted[start:]) + composed.allowance
    if math.isnan(finite) or math.isnan(composed.log_scale):
        raise FloatingPointError("the composed losses are out of the range of floats")
    log_value = composed.log_scale - composed.theta * epsilon + math.log(finite) if finite > 0 else -math.inf
    return min(1.0, (composed.infinite + math.exp(min(log_value, 0.0))) * composed.slack)


def _solve(composed: _Composed, delta: float) -> float:
    """Smallest ε ≥ 0 found with :func:`_hockey_stick` ≤ δ; every returned ε was checked, or follows from Chernoff."""
    left = (delta / composed.slack - composed.infinite) * (1 - 1e-12)
    if left <= 0:
        return math.inf
    # Markov on e^{θL}: P(L > ε) ≤ e^{K−θε}; always enough
    high = max(0.0, (composed.log_scale - math.log(left)) / composed.theta) * (1 + 1e-9) + 1e-12
    if _hockey_stick(composed, 0.0) <= delta:
        return 0.0
    if _hockey_stick(composed, high) > delta:
        return high
    target = math.log(delta)

    def excess(point: float) -> float:
        return math.log(max(_hockey_stick(composed, point), 1e-320)) - target

    root = find_root(excess, 0.0, high, xtol=1e-13, rtol=1e-11)
    move = 1e-11
    while root < high:
        if _hockey_stick(composed, root) <= delta:
            return root
        root += move * max(root, 1e-3)
        move *= 2
    return high
