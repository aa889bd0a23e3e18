"""Privacy as hypothesis testing: what the best attacker's errors, advantage and beliefs can be.

The attacker sees the release and decides between two neighbouring data sets: "the record is out" (null) and "the record
is in" (alternative).  Type-I error α = false-positive rate, type-II error β = 1 − true-positive rate.  The trade-off
function f(α) is the smallest β at a given α (Dong, Roth & Su 2022, Definition 2.1); it is dual to the privacy profile
δ(ε): (ε, δ)-DP in both orders says 1 − β ≤ e^ε α + δ and 1 − α ≤ e^ε β + δ for every test, hence
f(α) = sup over ε ≥ 0 of max(0, 1 − δ(ε) − e^ε α, e^−ε (1 − δ(ε) − α)).

Safe side: every f returned for an event is a lower bound, every advantage, true-positive rate, accuracy or belief an
upper bound, because they are made from upper bounds on δ(ε).  All logarithms are natural.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpml.accounting.conversions import UP, find_root, gaussian_log_delta
from dpml.accounting.events import (
    ADD_REMOVE,
    EpsilonDelta,
    Event,
    Gaussian,
    Laplace,
    check_number,
    check_relation,
)
from dpml.accounting.normal_form import effective, merge_gaussians, normal_form
from dpml.errors import AccountingError, invalid

MAX_EVALUATIONS = 60  # of δ(ε), for one trade-off function
SMALLEST_NOISE, LARGEST_NOISE = 1e-4, 1e9
_GAP = 1e-5  # wanted accuracy of f, times the square root of the true-positive rate
_SMALL_RATE = 1e-8  # below this true-positive rate the wanted accuracy no longer changes
_SEARCHED = 257  # type-I errors that steer the search
_FARTHEST = 600.0  # largest ε that the search asks for
_LOG_TOLERANCE = 3e-5  # of calibrated noise multipliers
_SHARES = (0.9, 0.7, 0.5, 0.3, 0.1, 0.03, 0.01, 1e-3)
_MARGIN = 0.05  # a new ε stays this part of the interval away from its ends
_DOWN, _BELOW = 1e-12, 1e-15  # more than the relative and absolute rounding of the formulas for f


# ---------------------------------------------------------------------------------------------- closed forms


def epsilon_delta_tradeoff(epsilon: float, delta: float, a: ArrayLike) -> np.ndarray:
    """f of any (ε, δ)-DP pair at worst: max(0, 1 − δ − e^ε α, e^−ε (1 − δ − α)); ε = ∞ gives 0.

    Source: Wasserman & Zhou 2010, Theorem 2.4; in this form Dong, Roth & Su 2022, Section 2.  ``a``: type-I errors in
    [0, 1]; the answer has their shape.
    """
    epsilon, delta = _check_epsilon(epsilon), check_number("delta", delta, 0.0, 1.0)
    a = _check_errors("a", a)
    if math.isinf(epsilon):
        return np.zeros_like(a)
    flat = math.exp(-epsilon) * (1 - delta - a)
    return np.maximum(np.maximum(1 - delta - _grown(epsilon, a), flat), 0.0)


def randomized_response_tradeoff(epsilon: float, a: ArrayLike) -> np.ndarray:
    """f of one bit that is told truly with probability e^ε/(1 + e^ε): the worst case of ε-DP."""
    return epsilon_delta_tradeoff(epsilon, 0.0, a)


def leaky_input_tradeoff(delta: float, a: ArrayLike) -> np.ndarray:
    """f of a mechanism that shows its input with probability δ and is silent otherwise: max(0, 1 − δ − α)."""
    return epsilon_delta_tradeoff(0.0, delta, a)


def leaky_randomized_response_tradeoff(epsilon: float, delta: float, a: ArrayLike) -> np.ndarray:
    """f of a mechanism that shows its input with probability δ and otherwise does ε-randomized response.

    It is the worst (ε, δ)-DP mechanism: any other can be simulated from its output (Kairouz, Oh & Viswanath 2015).
    """
    return epsilon_delta_tradeoff(epsilon, delta, a)


def laplace_tradeoff(epsilon: float, a: ArrayLike) -> np.ndarray:
    """f of Lap(0, 1) against Lap(ε, 1), ε = sensitivity ÷ scale, in three pieces.

    The likelihood ratio is monotone, so the best test is a threshold c: α = P(X > c) and β = P(X ≤ c − ε) with X from
    Lap(0, 1).  With the two halves of the distribution function: 1 − e^ε α for α ≤ e^−ε/2 (c ≥ ε), e^−ε/(4α) up to
    α = 1/2 (0 ≤ c ≤ ε), e^−ε (1 − α) beyond.
    """
    epsilon = _check_epsilon(epsilon)
    a = _check_errors("a", a)
    if math.isinf(epsilon):
        return np.zeros_like(a)
    tilt = math.exp(-epsilon)
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = np.where(a > 0, tilt / (4 * a), 0.0)
    return np.where(a >= 0.5, tilt * (1 - a), np.where(a <= tilt / 2, 1 - _grown(epsilon, a), middle))


def gaussian_tradeoff(mu: float, a: ArrayLike) -> np.ndarray:
    """G_μ(α) = Φ(Φ⁻¹(1 − α) − μ), N(0, 1) against N(μ, 1), μ = sensitivity ÷ noise std."""
    mu = _check_epsilon(mu, "mu")
    a = _check_errors("a", a)
    return np.zeros_like(a) if math.isinf(mu) else np.asarray(special.ndtr(-special.ndtri(a) - mu))


def epsilon_delta_profile(epsilon: float, delta: float, epsilons: ArrayLike) -> np.ndarray:
    """δ(ε′) of the worst (ε, δ)-DP pair: δ + (1 − δ)(e^ε − e^ε′)₊/(1 + e^ε)  (Kairouz, Oh & Viswanath 2015)."""
    epsilon, delta = _check_epsilon(epsilon), check_number("delta", delta, 0.0, 1.0)
    points = _check_epsilons(epsilons)
    if math.isinf(epsilon):
        return np.ones_like(points)
    part = -np.expm1(np.minimum(points - epsilon, 0.0)) / (1 + math.exp(-epsilon))
    return np.asarray(delta + (1 - delta) * part)


def randomized_response_profile(epsilon: float, epsilons: ArrayLike) -> np.ndarray:
    """δ(ε′) of ε-randomized response: (e^ε − e^ε′)₊/(1 + e^ε)."""
    return epsilon_delta_profile(epsilon, 0.0, epsilons)


def leaky_input_profile(delta: float, epsilons: ArrayLike) -> np.ndarray:
    """δ(ε′) of the leaky input: δ, whatever ε′."""
    return epsilon_delta_profile(0.0, delta, epsilons)


def leaky_randomized_response_profile(epsilon: float, delta: float, epsilons: ArrayLike) -> np.ndarray:
    """δ(ε′) of the leaky randomized response, the worst (ε, δ)-DP mechanism."""
    return epsilon_delta_profile(epsilon, delta, epsilons)


def laplace_profile(epsilon: float, epsilons: ArrayLike) -> np.ndarray:
    """δ(ε′) of Lap(0, 1) against Lap(ε, 1): (1 − e^{(ε′ − ε)/2})₊.

    The set {loss > ε′} is {X < (ε − ε′)/2}: it has mass 1 − e^{(ε′ − ε)/2}/2 under Lap(0, 1) and e^{−(ε + ε′)/2}/2
    under Lap(ε, 1).
    """
    epsilon = _check_epsilon(epsilon)
    points = _check_epsilons(epsilons)
    return np.asarray(-np.expm1(np.minimum(points - epsilon, 0.0) / 2))


def gaussian_profile(mu: float, epsilons: ArrayLike) -> np.ndarray:
    """δ(ε′) of N(0, 1) against N(μ, 1)  (Balle & Wang 2018, Theorem 8)."""
    mu = _check_epsilon(mu, "mu")
    points = _check_epsilons(epsilons)
    values = [math.exp(min(0.0, gaussian_log_delta(float(point), mu))) for point in points.ravel()]
    return np.array(values, dtype=float).reshape(points.shape)


def _grown(epsilon: float, a: np.ndarray) -> np.ndarray:
    """e^ε·α without overflow; 0 at α = 0."""
    if epsilon < 700:
        return np.asarray(math.exp(epsilon) * a)
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp(np.minimum(epsilon + np.log(a), 700.0)))


# ------------------------------------------------------------------------------------------------- any event


def tradeoff(event: Event, type1_errors: ArrayLike, *, neighboring_relation: str = ADD_REMOVE) -> np.ndarray:
    """A lower bound on the smallest type-II error that an attacker can reach, at each type-I error.

    Exact up to rounding for a composition of Gaussians, one Laplace and one (ε, δ) or pure statement.  Otherwise it is
    made from δ(ε) of :func:`dpml.accounting.api.delta` at up to 60 values of ε.  Every ε gives a valid lower bound, so
    the choice of ε concerns tightness only: it is steered by the largest improvement that convexity still allows at
    these type-I errors, until that is below 1e-5·√(1 − f).  A few type-I errors need some 20 evaluations; a curve of
    hundreds uses all 60 and is then within about 1e-3 of what the profile allows, mostly within 1e-4.

    Args:
        event: what was released.
        type1_errors: false-positive rates in [0, 1], any shape.
        neighboring_relation: ``"add_remove"`` or ``"replace_one"``; f covers both orders of the two data sets.

    Returns:
        f of the same shape, in [0, 1 − α], convex and non-increasing in α.

    Raises:
        ConfigError: an argument out of range.
        UnsupportedEventError: no accountant bounds the event.
    """
    check_relation(neighboring_relation)
    a = _check_errors("type1_errors", type1_errors)
    closed = _closed_form(_check_event(event), neighboring_relation)
    if closed is not None:
        return closed(a)
    return tradeoff_of_profile(_delta_of(event, neighboring_relation), a, pure=_pure(event, neighboring_relation))


def tradeoff_of_profile(
    delta_at: Callable[[float], float], type1_errors: ArrayLike, *, pure: float = math.inf
) -> np.ndarray:
    """The trade-off function behind a privacy profile, as :func:`tradeoff` makes it.

    Args:
        delta_at: ε ≥ 0 ↦ an upper bound on δ(ε), for both orders of the pair.
        type1_errors: false-positive rates in [0, 1], any shape.
        pure: an ε with δ(ε) = 0 where one is known.
    """
    a = _check_errors("type1_errors", type1_errors)
    flat = np.unique(a)
    if not flat.size:
        return a.copy()
    steering = flat[np.unique(np.linspace(0, flat.size - 1, min(flat.size, _SEARCHED)).astype(int))]
    points = _search(delta_at, steering, pure)
    return _rounded_down(_envelope(points, a.ravel()).reshape(a.shape), a)


def profile(event: Event, epsilons: ArrayLike, *, neighboring_relation: str = ADD_REMOVE) -> np.ndarray:
    """Upper bounds on δ(ε) at each ε ≥ 0, same shape, non-increasing in ε.

    δ(ε) cannot grow with ε, so each value is replaced by the smallest one at the same or a smaller ε of the call.
    """
    check_relation(neighboring_relation)
    points = _check_epsilons(epsilons)
    delta_at = _delta_of(_check_event(event), neighboring_relation)
    unique, place = np.unique(points, return_inverse=True)
    values = np.minimum.accumulate(np.array([delta_at(float(point)) for point in unique], dtype=float))
    return values[place].reshape(points.shape)


def _closed_form(event: Event, relation: str) -> Callable[[np.ndarray], np.ndarray] | None:
    """The event's own trade-off function, rounded down; None where it has no closed form here."""
    atoms = normal_form(event, relation)
    if not atoms:
        return lambda a: 1 - a
    if all(isinstance(atom, Gaussian) for atom in atoms):
        noise = effective(merge_gaussians(atoms).noise_multiplier, relation)
        mu = 1 / noise if noise > 1e-150 else math.inf
        return lambda a: _rounded_down(gaussian_tradeoff(mu, a), a)
    atom, count = next(iter(atoms.items()))
    if len(atoms) > 1 or count > 1:
        return None
    if isinstance(atom, Laplace):
        scale = effective(atom.noise_multiplier, relation)
        pure = 1 / scale if scale > 1e-300 else math.inf
        return lambda a: _rounded_down(laplace_tradeoff(pure, a), a)
    if isinstance(atom, EpsilonDelta):
        epsilon, delta = atom.epsilon, atom.delta
        return lambda a: _rounded_down(epsilon_delta_tradeoff(epsilon, delta, a), a)
    return None


def _delta_of(event: Event, relation: str) -> Callable[[float], float]:
    from dpml.accounting import api

    return lambda epsilon: api.delta(event, epsilon, neighboring_relation=relation)


def _pure(event: Event, relation: str) -> float:
    from dpml.accounting import api

    return api.epsilon(event, 0.0, neighboring_relation=relation)


def _rounded_down(values: np.ndarray, a: np.ndarray) -> np.ndarray:
    """``values`` less what rounding may have added, in [0, 1 − α]; 1 is exact."""
    lowered = np.where(values < 1, values * (1 - _DOWN) - _BELOW, values)
    return np.asarray(np.clip(np.minimum(lowered, 1 - a), 0.0, 1.0))


@dataclass(frozen=True)
class _Points:
    """Points of a profile with increasing ε: ``odds`` = e^ε − 1 and ``deltas``, both (m,)."""

    epsilons: np.ndarray
    deltas: np.ndarray

    @property
    def odds(self) -> np.ndarray:
        return np.expm1(self.epsilons)

    def with_point(self, epsilon: float, delta: float) -> _Points:
        place = int(np.searchsorted(self.epsilons, epsilon))
        return _Points(np.insert(self.epsilons, place, epsilon), np.insert(self.deltas, place, delta))


def _lines(odds: np.ndarray, deltas: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Both lines that (ε, δ) puts under f, the larger one; the arguments are broadcast."""
    left = 1 - deltas - a
    return np.maximum(left - odds * a, left / (1 + odds))


def _envelope(points: _Points, a: np.ndarray) -> np.ndarray:
    """max(0, all lines) at each type-I error (n,): a maximum of falling lines, so convex and non-increasing."""
    f = np.zeros_like(a)
    for odds, delta in zip(points.odds, points.deltas, strict=True):
        np.maximum(f, _lines(odds, delta, a), out=f)
    return f


def _search(delta_at: Callable[[float], float], a: np.ndarray, pure: float) -> _Points:
    """Points of the profile at which the envelope is tight at the type-I errors ``a`` (n,)."""
    total_variation = min(delta_at(0.0), math.tanh(pure / 2) * UP)  # the latter is that of the worst pure pair
    points = _Points(np.zeros(1), np.array([total_variation]))
    if total_variation < _BELOW:  # as good as no information
        return points
    # no pair with this total variation is ε-DP for a smaller ε
    start = 2 * math.atanh(min(total_variation, 1 - 1e-13))
    evaluations = 1
    if pure <= _FARTHEST:
        points = points.with_point(pure, 0.0)
    if start < pure * (1 - 1e-9):
        points, evaluations = points.with_point(start, delta_at(start)), 2
    while evaluations < MAX_EVALUATIONS:
        proposed = _most_promising(points, a)
        if proposed is None:
            break
        points = points.with_point(proposed, delta_at(proposed))
        evaluations += 1
    return points


def _most_promising(points: _Points, a: np.ndarray) -> float | None:
    """The ε at which the envelope may rise most; None when nothing worth while is left.

    δ is convex in e^ε.  Between two points it lies above the chords of the neighbouring intervals, prolonged; the lines
    that belong to where these meet bound what any ε in the interval can bring.  Beyond the last point δ ≥ 0.
    """
    odds, lowest = _vertices(points)
    f = _envelope(points, a)
    scale = np.sqrt(np.maximum(1 - f, _SMALL_RATE))
    gain = ((_lines(odds[:, None], lowest[:, None], a) - f) / scale).max(axis=1)
    last = len(points.epsilons) - 1
    if points.deltas[last] == 0 or points.epsilons[last] >= _FARTHEST:
        gain[last] = 0.0
    best = int(np.argmax(gain))
    if gain[best] <= _GAP:
        return None
    low = float(points.epsilons[best])
    if best == last:
        return min(2 * low, _FARTHEST)
    high = float(points.epsilons[best + 1])
    margin = _MARGIN * (high - low)
    epsilon = min(max(math.log1p(float(odds[best])), low + margin), high - margin)
    return epsilon if low < epsilon < high else None


def _vertices(points: _Points) -> tuple[np.ndarray, np.ndarray]:
    """For each interval, the last one unbounded, the e^ε − 1 where its two outer lines meet and δ there, both (m,)."""
    odds, deltas = points.odds, points.deltas
    slopes = np.minimum(np.diff(deltas) / np.diff(odds), 0.0)
    # at ε = 0 a symmetric pair has Q(P > Q) ≤ (1 − δ(0))/2, which is minus the slope
    before = np.concatenate([[-(1 - deltas[0]) / 2], slopes])[: len(slopes)]
    after = np.append(slopes[1:], 0.0)
    turn = after - before
    width = np.diff(odds)
    with np.errstate(divide="ignore", invalid="ignore"):
        step = (deltas[:-1] - deltas[1:] + after * width) / turn
    sound = (turn > 0) & (step > 0) & (step < width)  # otherwise rounding has the last word: take the chord
    step = np.where(sound, step, width / 2)
    inside = deltas[:-1] + np.where(sound, before, slopes) * step
    return np.append(odds[:-1] + step, odds[-1]), np.append(np.maximum(inside, 0.0), 0.0)


# ---------------------------------------------------------------------------------------------- attack metrics


@dataclass(frozen=True)
class AttackMetrics:
    """Upper bounds on what any attacker reaches who knows everything but one record and sees the release.

    Attributes:
        advantage: largest true-positive rate minus false-positive rate of a test = total variation = δ(0).
        tpr_at_fpr: false-positive rate ↦ largest true-positive rate.
        prior: belief in membership before the release.
        accuracy: largest probability of a right decision at this prior.
        delta: failure probability of both posteriors.
        posterior: belief after the release when nothing leaks.  The release can be simulated from a signal that with
            probability ``delta``, independently of the data, tells all and otherwise changes the odds by at most e^ε,
            ε = ε(delta); the bound is on the belief in the second case: prior·e^ε/(1 − prior + prior·e^ε).
        posterior_of_output: belief given the output itself; with probability at least 1 − ``delta`` over the output,
            record in or out, it is not larger.  Never below ``posterior``; 1 where nothing is proved.
    """

    advantage: float
    tpr_at_fpr: Mapping[float, float]
    prior: float
    accuracy: float
    delta: float
    posterior: float
    posterior_of_output: float


def attack_metrics(
    event: Event,
    *,
    prior: float = 0.5,
    false_positive_rates: ArrayLike = (0.01, 0.001, 0.1),
    delta: float = 1e-5,
    neighboring_relation: str = ADD_REMOVE,
) -> AttackMetrics:
    """The metrics of :class:`AttackMetrics` for one event.

    Accuracy: with S the set where "in" is decided, prior·P(S) + (1 − prior)·Q(not S) is largest, by definition of the
    hockey stick, at max(p, 1 − p) + min(p, 1 − p)·δ(|ln(p/(1 − p))|) with p the prior; at p = 1/2, (1 + δ(0))/2.

    posterior_of_output: let L be the privacy loss.  For every ε′ < ε, δ(ε′) ≥ E[(1 − e^{ε′−L})₊] ≥
    (1 − e^{ε′−ε})·P(L > ε), hence P(L > ε) ≤ δ at ε = ε(cδ) − ln(1 − c) for every c in (0, 1): the best c of a fixed
    list is taken.  Under the other data set the probability of L > ε is smaller still, by e^−ε.

    Args:
        event: what was released.
        prior: belief in membership, in [0, 1].
        false_positive_rates: in [0, 1].
        delta: failure probability of the posteriors, in [0, 1).
        neighboring_relation: under ``"replace_one"`` read "membership" as "which of two values the record had".
    """
    from dpml.accounting import api

    relation = check_relation(neighboring_relation)
    prior = check_number("prior", prior, 0.0, 1.0)
    delta = check_number("delta", delta, 0.0, 1.0, below=True)
    rates = np.atleast_1d(_check_errors("false_positive_rates", false_positive_rates)).ravel()
    delta_at = _delta_of(_check_event(event), relation)
    largest = 1 - tradeoff(event, rates, neighboring_relation=relation)
    pure = api.epsilon(event, 0.0, neighboring_relation=relation)
    epsilon = min(pure, api.epsilon(event, delta, neighboring_relation=relation))
    output_epsilon = pure
    for share in _SHARES if delta > 0 else ():
        value = api.epsilon(event, share * delta, neighboring_relation=relation) - math.log1p(-share)
        output_epsilon = min(output_epsilon, value)
    return AttackMetrics(
        advantage=delta_at(0.0),
        tpr_at_fpr={float(a): float(tpr) for a, tpr in zip(rates, largest, strict=True)},
        prior=prior,
        accuracy=_accuracy(delta_at, prior),
        delta=delta,
        posterior=posterior_of(epsilon, prior),
        posterior_of_output=posterior_of(max(epsilon, output_epsilon), prior),
    )


def _accuracy(delta_at: Callable[[float], float], prior: float) -> float:
    if prior in (0.0, 1.0):
        return 1.0
    likely = max(prior, 1 - prior)
    return min(1.0, likely + (1 - likely) * delta_at(abs(math.log(prior) - math.log1p(-prior))))


def posterior_of(epsilon: float, prior: float) -> float:
    """Belief after a signal with likelihood ratio at most e^ε: prior·e^ε/(1 − prior + prior·e^ε); ε = ∞ allowed."""
    epsilon, prior = _check_epsilon(epsilon), check_number("prior", prior, 0.0, 1.0)
    if prior in (0.0, 1.0):
        return prior
    return 1 / (1 + (1 - prior) / prior * math.exp(-epsilon))


def advantage_of(epsilon: float, delta: float) -> float:
    """Largest true-positive minus false-positive rate against (ε, δ)-DP: (e^ε − 1 + 2δ)/(e^ε + 1); ε = ∞ gives 1."""
    epsilon, delta = _check_epsilon(epsilon), check_number("delta", delta, 0.0, 1.0)
    tilt = math.exp(-epsilon)
    return min(1.0, (-math.expm1(-epsilon) + 2 * delta * tilt) / (1 + tilt))


def tpr_at_fpr(epsilon: float, delta: float, fpr: float) -> float:
    """Largest true-positive rate at a false-positive rate against (ε, δ)-DP: 1 − :func:`epsilon_delta_tradeoff`."""
    return float(1 - epsilon_delta_tradeoff(epsilon, delta, check_number("fpr", fpr, 0.0, 1.0)))


# -------------------------------------------------------------------------------------------------- calibration


def calibrate_to_advantage(
    make_event: Callable[[float], Event], advantage: float, *, neighboring_relation: str = ADD_REMOVE
) -> float:
    """Smallest noise multiplier (to 1e-4 relative, on the large side) with max(TPR − FPR) = δ(0) ≤ ``advantage``.

    ``make_event`` maps a noise multiplier to the event of the whole run; attacks must not get better with more noise.
    The returned noise itself was seen to meet the target.  Raises AccountingError when no noise multiplier up to 1e9
    is enough, ConfigError for an advantage outside (0, 1).
    """
    advantage = check_number("advantage", advantage, 0.0, 1.0, above=True, below=True)
    relation = check_relation(neighboring_relation)

    def risk(noise: float) -> float:
        return _delta_of(_check_event(make_event(noise)), relation)(0.0)

    return _smallest_noise(risk, advantage, f"an advantage of {advantage!r}")


def calibrate_to_tpr(
    make_event: Callable[[float], Event], tpr: float, fpr: float, *, neighboring_relation: str = ADD_REMOVE
) -> float:
    """Smallest noise multiplier with which no attacker passes the true-positive rate ``tpr`` at the rate ``fpr``.

    0 < fpr < tpr < 1: guessing alone has tpr = fpr.  Otherwise as :func:`calibrate_to_advantage`.
    """
    fpr = check_number("fpr", fpr, 0.0, 1.0, above=True, below=True)
    tpr = check_number("tpr", tpr, 0.0, 1.0, above=True, below=True)
    if tpr <= fpr:
        raise invalid("tpr", tpr, f"above fpr = {fpr!r}", "An attacker who guesses has tpr = fpr.")
    relation = check_relation(neighboring_relation)

    def risk(noise: float) -> float:
        return float(1 - tradeoff(make_event(noise), fpr, neighboring_relation=relation))

    return _smallest_noise(risk, tpr, f"a true-positive rate of {tpr!r} at the false-positive rate {fpr!r}")


def _smallest_noise(risk: Callable[[float], float], target: float, words: str) -> float:
    """Root of ln(risk ÷ target) on the logarithm of the noise; the returned noise itself was seen to hold."""

    def excess(log_noise: float) -> float:
        value = risk(math.exp(log_noise))
        return math.log(value / target) if value > 0 else -50.0

    low, high = _bracket(excess, words)
    if low is None:
        return math.exp(high)
    found, step = find_root(excess, low, high, xtol=_LOG_TOLERANCE / 2, rtol=1e-14), 0.0
    while found + step < high:
        if excess(found + step) <= 0:
            return math.exp(found + step)
        step = 2 * step if step else _LOG_TOLERANCE / 2
    return math.exp(high)


def _bracket(excess: Callable[[float], float], words: str) -> tuple[float | None, float]:
    """Logs of a noise that is too small (None: even the smallest is enough) and of one that is enough."""
    point, factor = 0.0, math.log(2)
    if excess(point) <= 0:
        while point > math.log(SMALLEST_NOISE):
            if excess(point - factor) > 0:
                return point - factor, point
            point -= factor
        return None, point
    while point < math.log(LARGEST_NOISE):
        if excess(point + factor) <= 0:
            return point, point + factor
        point += factor
    raise AccountingError(
        f"no noise multiplier up to {LARGEST_NOISE:g} reaches {words}: a part of the event gives more away whatever "
        "the noise. Raise the target, or drop the part."
    )


# ------------------------------------------------------------------------------------------------------- checks


def _check_errors(name: str, values: ArrayLike) -> np.ndarray:
    """Error rates in [0, 1] as a float array."""
    return _check_array(name, values, 1.0, "numbers in [0, 1]")


def _check_epsilons(values: ArrayLike) -> np.ndarray:
    return _check_array("epsilons", values, math.inf, "finite numbers >= 0")


def _check_array(name: str, values: ArrayLike, high: float, allowed: str) -> np.ndarray:
    try:
        if np.asarray(values).dtype.kind in "bSU":
            raise TypeError
        array = np.array(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise invalid(name, values, allowed) from None
    wrong = ~(np.isfinite(array) & (array >= 0) & (array <= high))
    if wrong.any():
        raise invalid(name, float(array[wrong].flat[0]), allowed)
    return array


def _check_epsilon(value: float, name: str = "epsilon") -> float:
    """A number in [0, ∞]."""
    if isinstance(value, float) and value == math.inf:
        return value
    return check_number(name, value, 0.0)


def _check_event(event: Event) -> Event:
    if not isinstance(event, Event):
        raise invalid("event", event, "an event of dpml.accounting", "Use from_json for a JSON object.")
    return event
