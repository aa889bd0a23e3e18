"""The exact accountant's core: δ(ε) of a composition as a trapezoid sum on a vertical line, with a certified interval.

For losses Lⱼ = ln(Pⱼ/Qⱼ) with moment functions Mⱼ(z) = E_P[e^{zLⱼ}], F(z) = Πⱼ Mⱼ(z)^{Tⱼ}/(z(z + 1)) and any c > 0,

    δ(ε) = E[(1 − e^{ε−ΣL})₊] = (1/2π) ∫ e^{−(c+it)ε} F(c + it) dt,

because 1/(z(z + 1)) is the Laplace transform of (1 − e^{−u})₊.

**Discretisation.**  e^{cy}δ(y) has the Fourier transform F(c + it).  Poisson's summation formula then gives, with no
remainder, for the trapezoid sum of step h and A = 2π/h,

    (h/2π) Σₖ e^{−(c+ikh)ε} F(c + ikh) = Σₘ e^{cmA} δ(ε + mA).

Every term on the right is ≥ 0 and m = 0 is the wanted one: the sum is an upper bound of δ(ε), whatever h.  It exceeds
δ(ε) by at most Σ_{m<0} e^{−c|m|A} = 1/(e^{cA} − 1), because δ ≤ 1, plus for any order s > c

    Σ_{m>0} e^{cmA} κ_s M(s) e^{−s(ε+mA)} = κ_s M(s) e^{−sε}/(e^{(s−c)A} − 1),   κ_s = s^s/(1+s)^{1+s},

because (1 − e^{−u})₊ ≤ κ_s e^{su}.  (F is summable, as |M(c+it)| ≤ M(c) and 1/|z(z+1)| ≤ 1/t².)

**Truncation.**  Beyond the last point t_K the terms are at most e^{−cε} Π|Mⱼ|^{Tⱼ}/t², bounded by the ``log_decay`` of
each Mⱼ.  Where these do not fall fast enough (atoms), one more Gaussian of tiny μ is composed in: more output can only
increase δ, so the value stays an upper bound; it is chosen small enough to move ε by less than
3e-7 of itself.

**Rounding and quadrature.**  Each Mⱼ comes with a bound on its error, which is multiplied by Tⱼ and added up over the
sum in absolute value.

The upper end of the interval adds all of these to the sum, the lower end subtracts them.  c is near the saddle point of
|F(c)e^{−cε}|, on a fixed lattice, so that lines are shared between settings; any c gives a valid bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpml.accounting.moments import GaussianMoments, Moments
from dpml.errors import UnsupportedEventError

Parts = tuple[tuple[Moments, int], ...]
_UNIT = float(np.finfo(float).eps)
_LATTICE = 6  # points of c per octave
_LOWEST, _HIGHEST = -20 * _LATTICE, 22 * _LATTICE
LOWER_MARGIN = 1e-12  # of ln δ, by which the lower end is moved further
_MARGIN = 30.0  # truncations are e^{-30} of δ
_BLOCK = 32
_WIDE_MARGIN = 19.0  # the same where one more Gaussian is composed in: its effect is larger anyway
_MAX_POINTS = 2**17  # of the line, where M is a closed form
_MAX_COST = 6e7  # points of the line × points of x, where it is a sum
_MOST_LOST = 13.0  # ln of the digits that a c below the saddle may cost
_MOST_MOVED = 5e-7  # of ε, by the allowance for rounding and truncation
_CHEAP = 3e5  # the same: not worth a search
_ALIAS_STEPS = (2, 1, 4, 0.5, 8, 14)  # s above c, in points of the lattice
_SHARED = 3.0  # compositions share a line up to this ratio of counts
_FEW = 500  # releases up to which a finer bound on the decay may pay


@dataclass(frozen=True)
class Plan:
    """Which line: c = lattice(index), points c + ikh for k ≤ last; what is beyond, without M(c); extra Gaussians."""

    index: int
    h: float
    last: int
    log_tail: float
    extra: Parts = ()


@dataclass(frozen=True, eq=False)
class Lines:
    """F on one line without e^{−zε}, for n compositions of the same releases: log_terms is (n, points).

    log_terms[i, k] = Σⱼ Tᵢⱼ ln Mⱼ(zₖ) − ln zₖ − ln(zₖ+1), zₖ = c + ikh.
    """

    plan: Plan
    parts: tuple[Parts, ...]
    c: float
    z: np.ndarray
    log_terms: np.ndarray
    errors: np.ndarray  # relative errors of the terms, without ε
    log_tail: np.ndarray  # (n,): ln of the bound on what was cut off, without e^{−cε}


@dataclass(frozen=True)
class Bounds:
    """ln δ from above and from below (−inf where unknown), d ln δ/dε, and the part of the upper bound that is allowance
    for errors; arrays of shape (n,)."""

    log_high: np.ndarray
    log_low: np.ndarray
    slope: np.ndarray
    allowance: np.ndarray


def lattice(index: float) -> float:
    """The c of a lattice point."""
    return float(2.0 ** (index / _LATTICE))


def log_moment(parts: Parts, c: float) -> tuple[float, float]:
    """(Σ Tⱼ ln Mⱼ(c), its error); inf beyond the largest order."""
    value = error = 0.0
    for part, count in parts:
        if not c < part.largest_order:
            return math.inf, math.inf
        one, slack = _log_moment(part, c)
        value += count * one
        error += count * slack
    return value, error


@lru_cache(maxsize=65536)
def _log_moment(part: Moments, c: float) -> tuple[float, float]:
    return part.log_moment(c)


def _log_kappa(c: float) -> float:
    return c * math.log(c) - (1 + c) * math.log1p(c)


def saddle_for_delta(parts: Parts, log_delta: float) -> tuple[int, float]:
    """(lattice index, ε) of the smallest Chernoff bound ε = (K(c) + ln κ_c − ln δ)/c."""

    def bound(index: int) -> float:
        c = lattice(index)
        return (sum(log_moment(parts, c)) + _log_kappa(c) - log_delta) / c

    return _descend(bound, _start(parts, log_delta), exactly=log_delta < -25)


def saddle_for_epsilon(parts: Parts, epsilon: float) -> tuple[int, float]:
    """(lattice index, ln δ) of the smallest Chernoff bound ln δ = K(c) − cε + ln κ_c."""

    def bound(index: int) -> float:
        c = lattice(index)
        return sum(log_moment(parts, c)) - c * epsilon + _log_kappa(c)

    return _descend(bound, _start(parts, -12.0), exactly=True)


def _start(parts: Parts, log_delta: float) -> int:
    """A first index: for a normal loss of variance 2K(1)/2 the best order is about √(−2 ln δ)/sd."""
    value = log_moment(parts, min(1.0, 0.5 * min((part.largest_order for part, _ in parts), default=1.0)))[0]
    if not math.isfinite(value):
        return 0
    spread = math.sqrt(max(value, 1e-30))
    guess = math.sqrt(max(-2 * log_delta, 1.0)) / spread
    return round(_LATTICE * math.log2(min(max(guess, 1e-4), 1e4)))


def _descend(bound: Callable[[int], float], start: int, *, exactly: bool) -> tuple[int, float]:
    """A point of the lattice near the minimum of a unimodal function, and its value there.

    Steps of an octave, then one parabola through three points: being off by a neighbour costs nothing that matters,
    unless δ is tiny (``exactly``).
    """
    stride = _LATTICE
    values: dict[int, float] = {}

    def at(index: int) -> float:
        index = min(max(index, _LOWEST), _HIGHEST)
        if index not in values:
            values[index] = bound(index)
        return values[index]

    best = min(max(start, _LOWEST), _HIGHEST)
    for _ in range(2 * (_HIGHEST - _LOWEST) // stride):
        if (math.isinf(at(best)) and best > _LOWEST) or at(best - stride) < at(best):
            best = max(best - stride, _LOWEST)
        elif at(best + stride) < at(best):
            best = min(best + stride, _HIGHEST)
        else:
            break
    left, middle, right = at(best - stride), at(best), at(best + stride)
    curve = left - 2 * middle + right
    if math.isfinite(curve) and curve > 0:
        at(best + round(stride * (left - right) / (2 * curve)))
    elif not math.isfinite(right) or not math.isfinite(left):
        for step in (stride // 2, stride // 4 or 1):
            for index in (best - step, best + step):
                at(index)
            best = min(values, key=lambda index: values[index])
    index = min(values, key=lambda index: values[index])
    for _ in range(3 * stride if exactly else 0):
        here = index
        index = min((here, here - 1, here + 1), key=at)
        if index == here:
            break
    return index, values[index]


def plan(parts: Parts, index: int, epsilon: float, log_delta: float) -> Plan:
    """The line for values of δ near e^{log_delta} at ``epsilon``; UnsupportedEventError where it would be too long.

    ``index`` is that of the best Chernoff bound.  Where rare large losses dominate there, M(s) explodes just above it
    and the period must be long: then some smaller c is cheaper.
    """

    def chernoff(c: float) -> float:
        return log_moment(parts, c)[0] + _log_kappa(c) - c * epsilon

    few = sum(count for _, count in parts) <= _FEW
    sums = tuple(part for part, _ in parts if part.quadrature)
    best: tuple[float, Plan] | None = None
    for shift in (0, -1, -2, -3, -4, -6, -8, -11, -15):
        if index + shift < _LOWEST:
            break
        c = lattice(index + shift)
        h = _spacing(parts, index + shift, epsilon, log_delta)
        tolerance = log_delta - _MARGIN + c * epsilon
        last, tail = _last_point(parts, c, h, tolerance)
        cost = last * (1 + sum(part.points(c, h * last, 48.0) for part in sums))
        if few and sums and cost > 4 * _CHEAP * len(parts):
            last, tail = min((last, tail), _last_point(parts, c, h, tolerance, fine=True))
            cost = last * (1 + sum(part.points(c, h * last, 48.0) for part in sums))
        # away from the saddle the terms are larger than their sum: digits are worth more than time
        gap = chernoff(c) - chernoff(lattice(index))
        if gap > _MOST_LOST:
            break
        cost *= math.exp(max(gap - 5.0, 0.0))
        if best is None or cost < best[0]:
            best = (cost, Plan(index + shift, h, last, tail))
        if best[0] < _CHEAP * len(parts) or cost > 8 * best[0]:
            break
    assert best is not None
    found = best[1]
    if found.last > _MAX_POINTS:
        if sums:
            raise _too_slow()
        return _widened(parts, found.index, epsilon, log_delta)
    c = lattice(found.index)
    if sum(part.points(c, found.h * found.last, 48.0) for part in sums) * found.last > _MAX_COST:
        raise _too_slow()
    return found


def _widened(parts: Parts, index: int, epsilon: float, log_delta: float) -> Plan:
    """A plan with one more Gaussian, as small as the longest line allows."""
    c = lattice(index)
    h = _spacing(parts, index, epsilon, log_delta, _WIDE_MARGIN)
    mu = math.sqrt(2 * (_WIDE_MARGIN + 6)) / (h * _MAX_POINTS * 0.8)
    if (c + 1) * mu * mu / 2 > 3e-7 * max(epsilon, 0.01):
        raise _too_slow()
    extra: Parts = ((GaussianMoments(mu), 1),)
    tails = _log_tails((*parts, *extra), c, fine=False)
    position = int(np.searchsorted(_TIMES, h * _MAX_POINTS, side="right")) - 1
    return Plan(index, h, math.ceil(_TIMES[position] / h), float(tails[position]), extra)


def build(parts: tuple[Parts, ...], found: Plan) -> Lines:
    """F on the planned line for compositions that differ in their counts only, the first with the longest tail."""
    c, h, last = lattice(found.index), found.h, found.last
    parts = tuple((*part, *found.extra) for part in parts)
    total = max(sum(count for _, count in parts[-1]), 1)
    exponent = 8.0 * math.ceil((34 + math.log(total)) / 8)
    z = c + 1j * h * np.arange(last + 1)
    sizes = [log_moment(part, c) for part in parts]
    log_terms = np.array([[value] for value, _ in sizes]) + np.zeros((len(parts), last + 1), dtype=complex)
    errors = np.array([[error] for _, error in sizes]) + np.zeros((len(parts), last + 1))
    for position, (part, _) in enumerate(parts[0]):
        ratios, slack = _values(part, c, h, last, exponent)
        counts = np.array([[float(other[position][1])] for other in parts])
        # |φ_h^T − φ^T| ≤ (|φ_h| + slack)^T − |φ_h|^T, relative to |φ_h|^T.  A modulus below the slack is raised to it:
        # then |φ| ≤ 2·slack, and (4·slack)^T covers the difference.
        slack = np.maximum(slack, 1e-300)
        lost = ratios.real < np.log(slack)
        ratios = np.where(lost, np.log(slack), ratios.real) + 1j * ratios.imag
        size = np.where(lost, 3.0, slack * np.exp(-ratios.real))
        log_terms += counts * ratios
        errors += np.expm1(np.minimum(counts * np.log1p(size), 600.0))
    errors += 8 * _UNIT * np.abs(log_terms)
    log_terms -= np.log(z) + np.log1p(z)
    tails = np.array([found.log_tail + value + error for value, error in sizes])
    return Lines(found, parts, c, z, log_terms, errors, tails)


def _too_slow() -> UnsupportedEventError:
    return UnsupportedEventError(
        "accountant 'exact': the moment function of this composition falls too slowly for the contour sum (few "
        "releases of a discrete or lightly sampled mechanism); use accountant='best' or 'pld'."
    )


def _spacing(parts: Parts, index: int, epsilon: float, log_delta: float, margin: float = _MARGIN) -> float:
    """h = 2^{i/2} such that both alias bounds are below e^{log_delta − margin} (or nearly so)."""
    c, target = lattice(index), log_delta - margin + 2
    period = max(margin - log_delta, 1.0) / c
    h = 0.0
    for _ in range(16):
        h = 2.0 ** (math.floor(2 * math.log2(2 * math.pi / period)) / 2)
        if _log_alias(parts, index, 2 * math.pi / h, epsilon, target) <= target:
            break
        period = 2 * math.pi / h * 1.5
    return h


def _log_alias(parts: Parts, index: int, period: float, epsilon: float, target: float = -math.inf) -> float:
    """ln of the bound on Σ_{m≠0} e^{cmA}δ(ε + mA) (module docstring); stops early at ``target``."""
    c = lattice(index)
    below, above = -_log_expm1(c * period), math.inf
    for step in _ALIAS_STEPS:
        s = lattice(index + step)
        value, error = log_moment(parts, s)
        if math.isfinite(value):
            above = min(above, value + error + _log_kappa(s) - s * epsilon - _log_expm1((s - c) * period))
        if np.logaddexp(below, above) <= target:
            break
    return float(np.logaddexp(below, above))


def _log_expm1(x: float) -> float:
    return x + math.log1p(-math.exp(-x)) if x > 1e-3 else math.log(math.expm1(x))


def _log_tails(parts: Parts, c: float, fine: bool) -> np.ndarray:
    """ln of (1/π)∫_t^∞ Π|Mⱼ(c+is)/Mⱼ(c)|^{Tⱼ}/s² ds at each t of ``_TIMES``, from above: the decay falls with s."""
    logs = _LOG_SHARES.copy()
    for part, count in parts:
        logs += count * _decay_table(part, c, fine and part.quadrature)
    return np.logaddexp.accumulate(logs[::-1])[::-1] - math.log(math.pi)


_TIMES = 2.0 ** (np.arange(-160, 321) / 4)
_LOG_SHARES = np.log(np.append(1 / _TIMES[:-1] - 1 / _TIMES[1:], 1 / _TIMES[-1]))


@lru_cache(maxsize=8192)
def _decay_table(part: Moments, c: float, fine: bool) -> np.ndarray:
    return part.log_decay(c, _TIMES, fine=fine)


def _last_point(parts: Parts, c: float, h: float, tolerance: float, fine: bool = False) -> tuple[int, float]:
    """(K, ln of the tail beyond Kh without M(c)): a tail of at most e^tolerance; K over the limit if there is none."""
    value, error = log_moment(parts, c)
    tails = _log_tails(parts, c, fine)
    good = np.nonzero((tails + value + error <= tolerance) & (8 * h <= _TIMES))[0]
    if not len(good) or _TIMES[good[0]] / h > 4 * _MAX_POINTS:
        return 4 * _MAX_POINTS, math.inf
    return math.ceil(_TIMES[good[0]] / h), float(tails[good[0]])


def _values(part: Moments, c: float, h: float, last: int, exponent: float) -> tuple[np.ndarray, np.ndarray]:
    if not part.quadrature:
        return part.log_ratio(c, h * np.arange(last + 1), exponent)
    blocks = [_block(part, c, h, start, exponent) for start in range(0, last + 1, _BLOCK)]
    return (
        np.concatenate([ratio for ratio, _ in blocks])[: last + 1],
        np.concatenate([error for _, error in blocks])[: last + 1],
    )


@lru_cache(maxsize=4096)
def _block(part: Moments, c: float, h: float, start: int, exponent: float) -> tuple[np.ndarray, np.ndarray]:
    return part.log_ratio(c, h * np.arange(start, start + _BLOCK), exponent)


def evaluate(lines: Lines, epsilon: np.ndarray, log_alias: np.ndarray | None = None) -> Bounds:
    """ln δ(ε) from above, and from below where ``log_alias`` is given; ``epsilon`` has the shape (n,)."""
    turned = lines.z * epsilon[:, None]
    log_terms = lines.log_terms - turned
    top = log_terms[:, :1].real
    terms = np.exp(log_terms - top)
    terms[:, 0] *= 0.5
    sizes = np.abs(terms)
    scale = lines.plan.h / math.pi
    total = scale * terms.real.sum(axis=1)
    slope = -scale * (terms @ lines.z).real  # d/dε multiplies the terms by −z
    phase = 4 * _UNIT * (lines.c * np.abs(epsilon)[:, None] + np.abs(turned.imag) + np.abs(lines.log_terms.imag) + 9)
    rounding = scale * (sizes * (lines.errors + phase)).sum(axis=1)
    tail = np.exp(np.minimum(lines.log_tail - lines.c * epsilon - top[:, 0], 50.0))
    high = np.maximum(total, 0.0) + rounding + tail
    low = np.full(len(epsilon), -math.inf)
    if log_alias is not None and not lines.plan.extra:
        positive = total - rounding - tail - np.exp(np.minimum(log_alias - top[:, 0], 50.0))
        low = np.where(positive > 0, top[:, 0] + np.log(np.maximum(positive, 1e-320)), -math.inf)
    slope = np.where(total > 0, slope / np.maximum(total, 1e-320), 0.0)
    return Bounds(top[:, 0] + np.log(high), low, slope, (rounding + tail) / high)


def _alias(lines: Lines, epsilon: np.ndarray) -> np.ndarray:
    period = 2 * math.pi / lines.plan.h
    pairs = zip(lines.parts, epsilon, strict=True)
    return np.array([_log_alias(parts, lines.plan.index, period, float(point)) for parts, point in pairs])


def log_delta(parts: Parts, epsilon: float, *, floor: float = -math.inf) -> tuple[float, float]:
    """(from below, from above) ln δ_finite(ε) of the composition's finite losses.

    A value of at most ``floor`` (what another direction gives) need not be tight.
    """
    index, chernoff = saddle_for_epsilon(parts, epsilon)
    if not math.isfinite(chernoff):
        raise _too_slow()
    if chernoff < -700:
        return -math.inf, chernoff
    index = _raised(parts, index)
    c = lattice(index)
    guess = log_moment(parts, c)[0] - c * epsilon + _log_kappa(c) - 3.0
    lines = build((parts,), plan(parts, index, epsilon, min(guess, chernoff - 3.0, -0.1)))
    points = np.array([epsilon])
    found = evaluate(lines, points, _alias(lines, points))
    high = float(found.log_high[0])
    high = min(high if not math.isnan(high) else 0.0, chernoff, 0.0)
    if high > floor:
        _check_digits(found, points, np.zeros(1))
    return float(found.log_low[0]), high


def _raised(parts: Parts, index: int) -> int:
    """``index``, or a larger one where c is far below an inverse standard deviation of the loss: the period shrinks."""
    few = lattice(-3 * _LATTICE)
    value = log_moment(parts, few)[0]
    if not math.isfinite(value) or value <= 0:
        return index
    spread = math.sqrt(2 * value / few)
    wanted = min(math.floor(_LATTICE * math.log2(0.3 / spread)), 10 * _LATTICE)
    while wanted > index and not math.isfinite(log_moment(parts, lattice(wanted))[0]):
        wanted -= 1
    return max(index, wanted)


def solve(parts: Parts, log_delta: float, *, lower: bool = True, floor: float = 0.0) -> tuple[float, float]:
    """(ε_low, ε_high) with δ_finite(ε_low) ≥ e^{log_delta} ≥ δ_finite(ε_high); ε_low is 0 unless ``lower``.

    An answer of at most ``floor`` ≥ 0 (what another direction needs) is not searched further: (0, floor).
    """
    index, chernoff = _saddle(parts, log_delta)
    lines = build((parts,), plan(parts, index, chernoff, log_delta))
    high = _roots(lines, log_delta, np.array([max(chernoff, floor)]), upper=True, floor=np.array([floor]))
    _check_digits(evaluate(lines, high), high, np.array([floor]))
    if not lower or lines.plan.extra or high[0] == floor:
        return 0.0, float(high[0])
    low = _roots(lines, log_delta + LOWER_MARGIN, high, upper=False)
    return float(min(low[0], high[0])), float(high[0])


def solve_many(parts: tuple[Parts, ...], log_delta: float, floor: np.ndarray) -> np.ndarray:
    """ε_high, at least ``floor``, of compositions whose counts do not fall, each ≥ 1; neighbours share a line."""
    found = np.empty(len(parts))
    start = 0
    while start < len(parts):
        stop = start + 1
        while stop < len(parts) and all(
            new <= _SHARED * old for (_, new), (_, old) in zip(parts[stop], parts[start], strict=True)
        ):
            stop += 1
        chunk = parts[start:stop]
        index, _ = _saddle(chunk[len(chunk) // 2], log_delta)
        c = lattice(index)  # Chernoff's bound holds at any c
        starts = np.array([(sum(log_moment(part, c)) + _log_kappa(c) - log_delta) / c for part in chunk])
        starts = np.maximum(starts, floor[start:stop])
        lines = build(chunk, plan(chunk[0], index, float(starts[0]), log_delta))
        found[start:stop] = _roots(lines, log_delta, starts, upper=True, floor=floor[start:stop])
        _check_digits(evaluate(lines, found[start:stop]), found[start:stop], floor[start:stop])
        start = stop
    return found


def _check_digits(found: Bounds, epsilon: np.ndarray, floor: np.ndarray) -> None:
    """Refuses where the sum cancels so far that the allowance for errors would show in ε (above ``floor``)."""
    moved = found.allowance / np.maximum(-found.slope, 1e-300)
    if not np.all((epsilon == floor) | (moved <= _MOST_MOVED * np.maximum(epsilon, 1e-3))):
        raise UnsupportedEventError(
            "accountant 'exact': the contour sum of this composition loses too many digits (a tiny delta from rare "
            "large losses); use accountant='best' or 'pld'."
        )


def _saddle(parts: Parts, log_delta: float) -> tuple[int, float]:
    index, chernoff = saddle_for_delta(parts, log_delta)
    if not math.isfinite(chernoff):
        raise _too_slow()
    return _raised(parts, index), max(chernoff, 0.0)


def _roots(
    lines: Lines, log_delta: float, starts: np.ndarray, *, upper: bool, floor: np.ndarray | None = None
) -> np.ndarray:
    """Points where the bound is on its side of log_delta: safeguarded Newton steps, then steps outward until it is.

    ``starts`` are on the right side for ``upper`` (Chernoff) and are returned where nothing better is found; 0 is for
    the lower end.
    """

    def gap(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = evaluate(lines, points, None if upper else _alias(lines, points))
        return (found.log_high if upper else found.log_low) - log_delta, found.slope

    points, low, high = starts.copy(), np.zeros(len(starts)), np.full(len(starts), math.inf)
    if floor is not None:
        enough = gap(floor)[0] <= 0
        if enough.all():
            return floor
        low = np.where(enough, 0.0, floor)
    for _ in range(100):
        value, slope = gap(points)
        low = np.where(value > 0, np.maximum(low, points), low)
        high = np.where(value > 0, high, np.minimum(high, points))
        new = points - np.where(slope < 0, value / np.minimum(slope, -1e-320), math.nan)
        middle = np.where(np.isfinite(high), (low + high) / 2, 2 * np.maximum(points, 1e-3))
        new = np.where((new >= low) & (new <= high), new, middle)
        moved = np.abs(new - points) > 1e-12 * np.maximum(np.abs(points), 1e-3)
        points = new
        if not moved.any():
            break
    move = 1e-13 * np.maximum(points, 1e-4)
    for _ in range(60):
        value, _ = gap(points)
        good = value <= 0 if upper else value >= 0
        if good.all():
            return points if floor is None else np.maximum(points, floor)
        points = np.where(good, points, points + move if upper else np.maximum(points - move, 0.0))
        move *= 2
        if not upper and bool(np.all(good | (points == 0))):
            return points
    points = np.where(good, points, starts if upper else 0.0)
    return points if floor is None else np.maximum(points, floor)
