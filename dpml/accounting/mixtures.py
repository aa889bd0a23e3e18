"""Moments of the sampled Gaussian: a trapezoid sum of an analytic integrand, with a proved bound on its error.

The output of one step is compared with its neighbour's through r(x) = Σⱼ wⱼ e^{(2jx − j²)/2σ²}, the ratio of
Σⱼ wⱼ N(j, σ²) to N(0, σ²); w = (1 − q, q) for one record, binomial weights for a group of k.

    remove       P = r·φ,  Q = φ        M(z) = ∫ φ r^{1+z}
    add          P = φ,    Q = r·φ      M(z) = ∫ φ r^{−z}
    replace_one  P = r·φ,  Q = r(−x)·φ  M(z) = ∫ φ r(x)^{1+z} r(−x)^{−z}          (φ the density of N(0, σ²))

**Error of the x-sum.**  At x + iy all terms of r have phases in [0, kθ], θ = y/σ².  Hence for kθ < π: arg r ∈ [0, kθ],
|r(x+iy)| ≤ r(x) and |r(x+iy)| ≥ r(x) cos(kθ/2), so that on the line Im x = a the integrand's L1 norm is at most
N = M(c)·exp(a²/2σ² + |t|·m·k·a/σ²)·cos(ka/2σ²)^{−c} for z = c + it, m = 1 (2 under replace_one, where two arguments add
up; the cosine is not needed for remove).  The trapezoid sum of step h is then within 2N/(e^{2πa/h} − 1) of the integral
(Trefethen & Weideman 2014, Theorem 5.1).  The step is chosen from that bound; it must shrink with |t|.

**Decay in t.**  Integration by parts gives |M(c+it)| ≤ V/|t|, V the total variation of g/|L′|, g the tilted density
and L the loss; V is bounded cell by cell with a bound on (ln(g/|L′|))″.  With small q nearly all of the mass lies at
losses near 0, where the density is huge: then the same is done for the rest alone, |φ| ≤ 1 − λ + λ|φ_rest|, λ its
mass.  For few releases 1/|t| is too slow.  There the path of integration is moved to Im x = θσ² (0 < θ < π; −θσ² for
add), where |e^{itL}| = e^{−|t|·|arg|} with |arg L(x + iθσ²)| increasing in x: the integral of the moved integrand's
modulus, cell by cell from above, is a bound that falls faster than every power of t (k = 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

_UNIT = float(np.finfo(float).eps)
_LARGEST_GRID = 400_000


@dataclass(frozen=True)
class SampledGaussianMoments:
    """M(z) of one direction of a mixture pair; see the module docstring.

    Attributes:
        weights: w₀ … w_k, positive, of sum 1 (w₀ may be tiny, not 0).
        sigma: noise standard deviation ÷ contribution of one record.
        direction: ``"remove"``, ``"add"`` or ``"replace"``.
    """

    weights: tuple[float, ...]
    sigma: float
    direction: str

    infinite = 0.0
    largest_order = math.inf
    quadrature = True

    def log_moment(self, c: float) -> tuple[float, float]:
        """(ln M(c), bound on its error) for real c > 0; (inf, inf) where the sum would be too long."""
        return _log_moment(self, c)

    def log_ratio(self, c: float, t: np.ndarray, exponent: float) -> tuple[np.ndarray, np.ndarray]:
        """ln(M(c + it)/M(c)) as complex, and bounds on the relative error of M(c+it)/M(c)·M(c) (see ``contour``)."""
        return _log_ratio(self, c, t, exponent)

    def log_decay(self, c: float, t: np.ndarray, *, fine: bool = False) -> np.ndarray:
        """An upper bound on ln|M(c+it)/M(c)| that does not increase with t > 0; ``fine`` takes more work."""
        found = _shifted_decay(self, c, t) if fine else np.zeros(t.shape)
        for share, variation in _variations(self, c):
            rest = decay_of_variation(variation, t)
            with np.errstate(divide="ignore"):
                found = np.minimum(found, np.log1p(share * np.expm1(rest)))
        return found

    def points(self, c: float, t: float, exponent: float) -> float:
        """Number of x-points that :meth:`log_ratio` needs at t."""
        low, high = _range(self, c, exponent)
        return (high - low) / _step(self, c, t, exponent)

    @property
    def reach(self) -> int:
        """k, the largest shift."""
        return len(self.weights) - 1


def log_of(real: np.ndarray, imaginary: np.ndarray) -> np.ndarray:
    """ln(1 − real + i·imaginary), accurate both near 1 and near 0."""
    size = real * real - 2 * real + imaginary * imaginary
    with np.errstate(divide="ignore"):
        far = np.log(np.hypot(1 - real, imaginary))
    return np.asarray(np.where(size > -0.5, 0.5 * np.log1p(np.maximum(size, -0.9)), far)) + 1j * np.arctan2(
        imaginary, 1 - real
    )


def decay_of_variation(variation: float, t: np.ndarray) -> np.ndarray:
    """Upper bound on ln|φ(t)|, decreasing, for a characteristic function with |φ(s)| ≤ variation/s for all s > 0.

    u = 1 − |φ|² is E[1 − cos(tY)] of a symmetrised variable and 1 − cos(nx) ≤ n²(1 − cos x), hence for every integer n
    u(t) ≥ u(nt)/n² ≥ (1 − (variation/nt)²)/n²; n near √2·variation/t is best.
    """
    if not math.isfinite(variation):
        return np.zeros(t.shape)
    best = np.zeros(t.shape)
    base = np.floor(math.sqrt(2) * variation / t)
    for n in (np.maximum(base, 1.0), base + 1.0):
        share = np.minimum(variation / (n * t), 1.0)
        best = np.maximum(best, (1 - share) / n * ((1 + share) / n))
    with np.errstate(divide="ignore"):
        return np.minimum(0.0, 0.5 * np.log1p(-np.minimum(best, 1.0)))


def _shape(pair: SampledGaussianMoments, c: float, exponent: float) -> tuple[float, float, float]:
    """(a, extra exponent for the cosine, argument factor m·k/σ²) of the error bound."""
    variance, k = pair.sigma**2, pair.reach
    widest = math.pi * variance / k * (1 - 1e-9)
    factor = k / variance
    if pair.direction == "remove":
        return min(widest, pair.sigma * math.sqrt(2 * exponent)), 0.0, factor
    a = min(widest / 2, pair.sigma * math.sqrt(2 * exponent))
    extra = -c * math.log(math.cos(k * a / (2 * variance)))
    while extra > exponent and a > 1e-3 * widest:  # large orders: a narrower strip costs less
        a /= 1.5
        extra = -c * math.log(math.cos(k * a / (2 * variance)))
    return a, extra, factor * (2 if pair.direction == "replace" else 1)


def _step(pair: SampledGaussianMoments, c: float, t: float, exponent: float) -> float:
    """Largest h with 2πa/h − a²/2σ² − t·m·k·a/σ² − extra ≥ exponent."""
    a, extra, factor = _shape(pair, c, exponent)
    return 2 * math.pi / (factor * t + (exponent + extra) / a + a / (2 * pair.sigma**2))


def _range(pair: SampledGaussianMoments, c: float, exponent: float) -> tuple[float, float]:
    """Ends of x outside of which the tilted density has at most e^{−exponent} of max(1, M(c)).

    r^{1+c} and r^{−c} are convex in r, so that by Jensen the tilted density is at most a mixture of Gaussians: weight
    e^{c(c+1)j²/2σ²}·wⱼ at (c+1)j (remove) or −cj (add); under replace_one both factors multiply.  Or r^{−c} ≤ w₀^{−c}.
    """
    floor = max(0.0, *(_log_weight_floor(pair, c)))
    ranges = []
    for terms in _envelopes(pair, c):
        low = high = 0.0
        for log_weight, centre in terms:
            gap = exponent + log_weight - floor + math.log(len(terms))
            width = pair.sigma * math.sqrt(2 * max(gap, 1.0))
            low, high = min(low, centre - width), max(high, centre + width)
        ranges.append((low, high))
    return min(ranges, key=lambda ends: ends[1] - ends[0])


def _envelopes(pair: SampledGaussianMoments, c: float) -> list[list[tuple[float, float]]]:
    """Mixtures of Gaussians, as (ln weight, centre), that are at least the tilted density (and φ itself)."""
    sigma = pair.sigma
    jensen, plain = [(0.0, 0.0)], [(0.0, 0.0)]
    least = -c * math.log(pair.weights[0])
    for j, weight in enumerate(pair.weights):
        log_weight = math.log(weight)
        tilt = c * (c + 1) * j * j / (2 * sigma**2)
        if pair.direction == "add":
            jensen.append((log_weight + tilt, -c * j))
            continue
        if pair.direction == "remove":
            jensen.append((log_weight + tilt, (c + 1) * j))
            continue
        plain.append((log_weight + tilt + least, (c + 1) * j))
        for i, other in enumerate(pair.weights):
            centre = (c + 1) * j + c * i
            total = log_weight + math.log(other) + (centre**2 - (c + 1) * j * j + c * i * i) / (2 * sigma**2)
            jensen.append((total, centre))
    if pair.direction == "remove":
        return [jensen]
    if pair.direction == "add":
        plain.append((least, 0.0))
    return [jensen, plain]


def _log_weight_floor(pair: SampledGaussianMoments, c: float) -> tuple[float, ...]:
    """Lower bounds on ln M(c), from single terms of r: r ≥ wⱼe^{…} (remove); Jensen gives M ≥ 1 in all directions."""
    k = pair.reach
    tilt = c * (c + 1) * k * k / (2 * pair.sigma**2)
    if pair.direction == "remove":
        return ((1 + c) * math.log(pair.weights[-1]) + tilt, 0.0)
    return (0.0, 0.0)


def _log_r(pair: SampledGaussianMoments, x: np.ndarray) -> np.ndarray:
    """ln r(x), without overflow and accurate where r is near 1."""
    if pair.reach == 1:
        q = pair.weights[1]
        exponent = (2 * x - 1) / (2 * pair.sigma**2)
        small = np.log1p(q * np.expm1(np.clip(exponent, -1.0 if q > 0.5 else -np.inf, 1.0)))
        large = exponent + np.log(q + pair.weights[0] * np.exp(-np.maximum(exponent, 1.0)))
        found = np.where(exponent < 1.0, small, large)
        if q > 0.5:  # r near w₀: 1 + q(e^{…} − 1) would cancel
            low = np.log(pair.weights[0] + q * np.exp(np.minimum(exponent, 0.0)))
            found = np.where(exponent < -1.0, low, found)
        return found
    j = np.arange(pair.reach + 1)[:, None]
    exponents = (2 * j * x - j * j) / (2 * pair.sigma**2)
    top = exponents.max(axis=0)
    weights = np.array(pair.weights)[:, None]
    large = top + np.log((weights * np.exp(exponents - top)).sum(axis=0))
    if pair.weights[0] < 0.5:  # r is not near 1 over most of the mass, and may be near w₀
        return np.asarray(large)
    small = np.log1p((weights * np.expm1(np.minimum(exponents, 1.0))).sum(axis=0))
    return np.where(top < 1.0, small, large)


def _shifted_decay(pair: SampledGaussianMoments, c: float, t: np.ndarray) -> np.ndarray:
    """Upper bound on ln|M(c+it)/M(c)| by moved paths; zeros for a group (its argument need not be monotone)."""
    found = np.zeros(t.shape)
    if pair.reach > 1:
        return found
    for log_masses, arguments in _moved_paths(pair, c):
        for start in range(0, len(t), 16):
            exponents = log_masses - np.outer(t[start : start + 16], arguments)
            top = exponents.max(axis=1)
            total = top + np.log(np.exp(exponents - top[:, None]).sum(axis=1))
            found[start : start + 16] = np.minimum(found[start : start + 16], total)
    return found


@lru_cache(maxsize=512)
def _moved_paths(pair: SampledGaussianMoments, c: float) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Per θ: ln of the cells' masses of |moved integrand|/M(c) from above, and the smallest |arg L| in each cell."""
    sigma, q = pair.sigma, pair.weights[1]
    powers = {"remove": 1 + c, "add": c, "replace": 1 + 2 * c}[pair.direction]
    curvature = 1 / sigma**2 + powers / (4 * sigma**4)
    exponent = 70.0
    low, high = _range(pair, c, exponent)
    width = min(0.3 / math.sqrt(curvature), 0.1 * sigma)
    if (high - low) / width > 5_000:
        return ()
    x = np.arange(low, high + width, width)
    up = _log_r(pair, x)
    log_density = -(x * x) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi)) - _log_moment(pair, c)[0]
    if pair.direction == "replace":
        log_density += (1 + c) * up - c * _log_r(pair, -x)
    else:
        log_density += (1 + c if pair.direction == "remove" else -c) * up
    cells = np.maximum(log_density[1:], log_density[:-1]) + curvature * width**2 / 8 + math.log(width)
    odds = (2 * x - 1) / (2 * sigma**2) + math.log(q / pair.weights[0])
    back = odds - 2 * x / sigma**2
    paths = []
    for theta in sorted({min(math.pi / 2, angle) for angle in (math.pi / 2, 0.8, 0.3, 2 / sigma, 0.7 / sigma)}):
        price = theta**2 * sigma**2 / 2
        if pair.direction != "remove":
            price -= c * math.log(math.cos(theta / 2))
        argument = _argument(odds, theta)
        if pair.direction == "replace":  # arg r(x) rises, −arg r(−x) falls with x
            least = np.minimum(argument[1:], argument[:-1])
            other = _argument(back, theta)
            arguments = least + np.minimum(other[1:], other[:-1])
        else:
            arguments = argument[:-1]
        outside = np.array([-exponent + 1.0])
        paths.append((np.append(cells, outside) + price, np.append(arguments, 0.0)))
    return tuple(paths)


def _argument(log_odds: np.ndarray, theta: float) -> np.ndarray:
    """arg(1 + e^{log_odds}·e^{iθ}) in [0, θ]."""
    odds = np.exp(np.minimum(log_odds, 700.0))
    return np.asarray(np.arctan2(odds * math.sin(theta), 1 + odds * math.cos(theta)) * (1 - 1e-12))


def _mean_shift(pair: SampledGaussianMoments, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """s(x) = σ²·r′/r, mean of j under weights wⱼe^{(2jx−j²)/2σ²} (from 0 to k, increasing), and its variance."""
    if pair.reach == 1:
        q = pair.weights[1]
        odds = np.exp(np.clip((2 * x - 1) / (2 * pair.sigma**2) + math.log(q / pair.weights[0]), -700.0, 700.0))
        mean = odds / (1 + odds)
        return mean, mean / (1 + odds)
    j = np.arange(pair.reach + 1)[:, None]
    logs = np.log(np.array(pair.weights))[:, None] + (2 * j * x - j * j) / (2 * pair.sigma**2)
    terms = np.exp(logs - logs.max(axis=0))
    terms = terms / terms.sum(axis=0)
    mean = (j * terms).sum(axis=0)
    return mean, np.asarray(((j - mean) ** 2 * terms).sum(axis=0))


@lru_cache(maxsize=4096)
def _grid(
    pair: SampledGaussianMoments, c: float, step: float, exponent: float
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """(losses L, normalised tilted weights ĝ, ln M(c), its rounding error in units) on a grid of the given step."""
    low, high = _range(pair, c, exponent)
    x = step * np.arange(math.floor(low / step), math.ceil(high / step) + 1)
    sigma = pair.sigma
    log_phi = -((x / sigma) ** 2) / 2 + math.log(step / (sigma * math.sqrt(2 * math.pi)))
    up = _log_r(pair, x)
    if pair.direction == "remove":
        loss, power = up, (1 + c) * up
    elif pair.direction == "add":
        loss, power = -up, -c * up
    else:
        down = _log_r(pair, -x)
        loss = up - down
        power = up + c * loss
    logs = log_phi + power
    top = float(logs.max())
    if np.max(power) < 500:
        terms = np.exp(log_phi) * np.expm1(power)
        total = math.log1p(max(float(terms.sum()), -1 + 1e-16))
        moved = float(np.abs(terms).sum()) * math.exp(-total)
    else:
        total, moved = top + math.log(float(np.exp(logs - top).sum())), 1.0
    weights = np.exp(logs - total)
    weights = weights / weights.sum()
    return loss, weights, total, moved + float(weights @ np.abs(power))


@lru_cache(maxsize=8192)
def _log_moment(pair: SampledGaussianMoments, c: float) -> tuple[float, float]:
    exponent = 76.0  # the error, relative, is e^{−76}: nothing against rounding even at 1e15 steps
    if pair.points(c, 0.0, exponent) > _LARGEST_GRID:
        return math.inf, math.inf
    _, _, total, units = _grid(pair, c, _step(pair, c, 0.0, exponent), exponent)
    if pair.weights[0] < 0.5:  # ln r has an absolute error there
        units += 1 + c
    return total, 64 * _UNIT * units + 4 * math.exp(-exponent)


def _log_ratio(pair: SampledGaussianMoments, c: float, t: np.ndarray, exponent: float) -> tuple[np.ndarray, np.ndarray]:
    loss, weights, _, _ = _grid(pair, c, _step(pair, c, float(t.max(initial=0.0)), exponent), exponent)
    # φ = 1 − 2Σĝ sin² + 2iΣĝ sin·cos of half angles: nothing cancels where φ is near 1.  t is equidistant, so that
    # the half angles' e^{i·} are products of few: each doubling costs one more rounding
    turns = np.empty((len(t), len(loss)), dtype=complex)
    turns[0] = np.exp(0.5j * t[0] * loss)
    filled, spacing = 1, float(t[1] - t[0]) if len(t) > 1 else 0.0
    while filled < len(t):
        more = min(filled, len(t) - filled)
        turns[filled : filled + more] = turns[:more] * np.exp(0.5j * spacing * filled * loss)
        filled += more
    sine, cosine = turns.imag, turns.real
    real = 2 * ((sine * sine) @ weights)
    imaginary = 2 * ((sine * cosine) @ weights)
    values = log_of(real, imaginary)
    mean = float(weights @ np.abs(loss))
    if pair.weights[0] < 0.5:
        mean += 1.0
    errors = 32 * _UNIT * np.minimum(t * mean * 4, 2 + t * mean) + 8 * math.exp(-exponent)
    return values, errors


_SHARES = (0.5, 0.2, 0.05, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)


@lru_cache(maxsize=4096)
def _variations(pair: SampledGaussianMoments, c: float) -> tuple[tuple[float, float], ...]:
    """(λ, V_rest/λ) for the whole and for parts of the tilted loss of mass λ: upper bounds on V, lower bounds on λ.

    ln w = −x²/2σ² + (power of r) − ln|L′| + const, with s = σ²(ln r)′ ∈ [0, k], |s′| ≤ k²/4σ² and, because the second
    and third cumulants of a variable in [0, k] are at most k and k² times its mean, |(ln L′)″| ≤ 2k²/σ⁴.  In a cell of
    width h whose slopes at both ends exceed D·h/2 in size, D a bound on |(ln w)″|, w is monotone; elsewhere its
    variation is at most h·max w·max|slope|.  The same D bounds (ln g)″, hence g from below in a cell.
    """
    k, sigma = pair.reach, pair.sigma
    variance = sigma**2
    powers = {"remove": 1 + c, "add": c, "replace": 1 + 2 * c}[pair.direction]
    curvature = 1 / variance + powers * k * k / (4 * variance**2) + 2 * k * k / variance**2
    low, high = _range(pair, c, 40.0)
    margin = k + 1.0
    step = 0.1 / math.sqrt(curvature)
    if not (high - low + 2 * margin) / step < _LARGEST_GRID:
        return ()
    x = np.arange(low - margin, high + margin + step, step)
    shift, second = _mean_shift(pair, x)
    up = _log_r(pair, x)
    log_density = -(x * x) / (2 * variance) - math.log(sigma * math.sqrt(2 * math.pi)) - _log_moment(pair, c)[0]
    if pair.direction == "replace":
        back, second_back = shift[::-1], second[::-1]
        if abs(x[0] + x[-1]) > 1e-9 * step:
            back, second_back = _mean_shift(pair, -x)
        total, slope_total = shift + back, (second - second_back) / variance
        log_density += (1 + c) * up - c * _log_r(pair, -x)
        slope = (-x + (1 + c) * shift + c * back) / variance - slope_total / total
        rest = np.abs(x)
    else:
        power = 1 + c if pair.direction == "remove" else -c
        total = shift
        log_density += power * up
        slope = (-x + power * shift) / variance - second / variance / total
        rest = x
    with np.errstate(divide="ignore"):
        logs = log_density - np.log(total / variance)
    if not np.all(np.isfinite(slope)) or not np.all(np.isfinite(logs)):
        return ()
    w, bend = np.exp(logs), math.exp(curvature * step**2 / 8)
    largest = np.maximum(w[1:], w[:-1]) * bend
    steepest = np.maximum(np.abs(slope[1:]), np.abs(slope[:-1])) + curvature * step / 2
    monotone = (np.minimum(np.abs(slope[1:]), np.abs(slope[:-1])) > curvature * step / 2) & (slope[1:] * slope[:-1] > 0)
    cells = np.where(monotone, np.abs(np.diff(w)), step * largest * steepest)
    density = np.exp(log_density)
    masses = step * np.minimum(density[1:], density[:-1]) / bend
    ends = float(w[0] + w[-1])
    found = [(1.0, float(cells.sum() + ends) * (1 + 1e-9))]
    # the part beyond a cut: its variation has one more jump, of the height of w there, at each cut
    order = np.argsort(np.minimum(rest[1:], rest[:-1]))[::-1]
    mass, variation = np.cumsum(masses[order]), np.cumsum(cells[order])
    for target in _SHARES:
        position = int(np.searchsorted(mass, target))
        if position >= len(order):
            continue
        edge = order[position]
        jump = float(max(w[edge], w[edge + 1])) * bend
        if pair.direction == "replace":
            mirror = min(max(round((-x[edge] - x[0]) / step), 0), len(w) - 1)
            jump += float(w[max(mirror - 2, 0) : mirror + 3].max()) * bend
        share = float(mass[position]) * (1 - 1e-9)
        found.append((share, (float(variation[position]) + jump + ends) * (1 + 1e-9) / share))
    return tuple(found)
