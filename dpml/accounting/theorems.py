"""Composition theorems as functions of numbers: basic, advanced, exact optimal; and the statements of events.

A statement is (εⱼ, δⱼ, countⱼ): countⱼ releases that are each (εⱼ, δⱼ)-DP under one neighbouring relation, chosen
adaptively, each with fresh randomness.  A composition theorem turns statements into one (ε, δ) under that relation;
nothing else about the mechanisms is used.  Every result is rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpml.accounting.conversions import UP, pure_to_zcdp, zcdp_to_delta, zcdp_to_epsilon
from dpml.accounting.events import (
    ADD_REMOVE,
    MAX_SCALE,
    REPLACE_ONE,
    DiscreteLaplace,
    EpsilonDelta,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampled,
    RandomizedResponse,
    SampledWithoutReplacement,
    check_count,
    check_list,
    check_number,
    check_one_of,
    event_name,
)
from dpml.accounting.normal_form import effective, integer_sensitivity, normal_form
from dpml.errors import UnsupportedEventError, invalid

Statement = tuple[float, float, int]
ADVANCED_FORMS = ("tanh", "k_epsilon_squared", "dwork_rothblum_vadhan")
ACCURACY = 1e-4
_U = float(np.finfo(float).eps)
_TINY = 1e-300  # masses below are not kept; what they add up to is counted as an infinite loss
_MAX_WINDOW = 2**22  # outcomes of one binomial that are kept: enough for about 10^10 equal releases
_MAX_OUTCOMES = 2**20  # of the exact enumeration
_MIN_CELLS, _MAX_CELLS = 2**13, 2**17  # of the grid
_MAX_GROUPS = 4096
_LEAST = 5e-324  # the smallest float above 0


# ---------------------------------------------------------------------------------------------- basic and advanced


def basic_composition(
    epsilons: Sequence[float], deltas: Sequence[float], counts: Sequence[int] | None = None
) -> tuple[float, float]:
    """(Σ εⱼ, min(1, Σ δⱼ)) of releases that are (εⱼ, δⱼ)-DP  (Dwork & Roth 2014, Theorem 3.16).

    Args:
        epsilons: εⱼ ≥ 0; an empty list is (0, 0).
        deltas: δⱼ in [0, 1], as many.
        counts: how often each occurs, once by default.

    Raises:
        ConfigError: a value out of range, or lists of different lengths.
    """
    return basic_of(statements(epsilons, deltas, counts))


def advanced_composition(
    epsilon: float, delta: float, count: int, slack: float, form: str = "tanh"
) -> tuple[float, float]:
    """(ε_g, min(1, k·δ + δ′)) of k = ``count`` releases that are each (ε, δ)-DP, for any ε ≥ 0 and 0 < δ′ < 1.

    ``slack`` is δ′, the failure probability that the theorem adds.  With s = ε√(2k ln(1/δ′)):

    - ``"tanh"``: s + k·ε·(e^ε − 1)/(e^ε + 1)  (Kairouz, Oh & Viswanath 2015; Dwork & Rothblum 2016);
    - ``"k_epsilon_squared"``: s + k·ε², valid for every ε because tanh(ε/2) ≤ ε/2;
    - ``"dwork_rothblum_vadhan"``: s + k·ε·(e^ε − 1)  (Dwork, Rothblum & Vadhan 2010, Theorem III.3).

    None of them is compared with the basic kε, which is smaller for few releases.
    """
    count = check_count("count", count)
    check_one_of("form", form, ADVANCED_FORMS)
    return _advanced(statements([epsilon], [delta], [count]), slack, form)


def advanced_composition_heterogeneous(
    epsilons: Sequence[float], deltas: Sequence[float], slack: float, counts: Sequence[int] | None = None
) -> tuple[float, float]:
    """(Σ εⱼ tanh(εⱼ/2) + √(2 ln(1/δ′) Σ εⱼ²), min(1, Σ δⱼ + δ′)), δ′ = ``slack`` in (0, 1).

    Source: Kairouz, Oh & Viswanath 2015, Theorem 3.5, the form with ln(1/δ′); arguments as
    :func:`basic_composition`.
    """
    return _advanced(statements(epsilons, deltas, counts), slack, "tanh")


def compose_zcdp(rhos: Sequence[float]) -> float:
    """Σ ρⱼ of releases that are ρⱼ-zCDP  (Bun & Steinke 2016, Lemma 1.7).

    >>> compose_zcdp([0.125, 0.25])
    0.375
    """
    return _sum_up((check_number("rhos", rho, 0.0), 1) for rho in check_list("rhos", rhos))


def compose_gdp(mus: Sequence[float]) -> float:
    """√(Σ μⱼ²) of releases that are μⱼ-GDP  (Dong, Roth & Su 2022, Corollary 3.3).

    >>> round(compose_gdp([3.0, 4.0]), 9)
    5.0
    """
    return math.hypot(*(check_number("mus", mu, 0.0) for mu in check_list("mus", mus))) * UP


def statements(
    epsilons: Sequence[float], deltas: Sequence[float], counts: Sequence[int] | None = None
) -> list[Statement]:
    """The lists as checked statements; equal ones are added up, those that cost nothing are dropped."""
    epsilons, deltas = check_list("epsilons", epsilons), check_list("deltas", deltas)
    times = [1] * len(epsilons) if counts is None else check_list("counts", counts, "a sequence of integers")
    if not len(epsilons) == len(deltas) == len(times):
        lengths = f"{len(epsilons)}, {len(deltas)} and {len(times)}"
        raise invalid("lengths of epsilons, deltas and counts", lengths, "equal")
    found: dict[tuple[float, float], int] = {}
    for epsilon, delta, count in zip(epsilons, deltas, times, strict=True):
        key = check_number("epsilons", epsilon, 0.0, MAX_SCALE), check_number("deltas", delta, 0.0, 1.0)
        found[key] = found.get(key, 0) + check_count("counts", count)
    return [(*key, check_count("counts in all", count)) for key, count in found.items() if count and any(key)]


def _sum_up(terms: Iterable[tuple[float, int]]) -> float:
    """Σ value·count rounded up to a float."""
    total = sum((Fraction(value) * count for value, count in terms), Fraction(0))
    return round_up(total)


def round_up(number: Fraction) -> float:
    """The smallest float ≥ ``number``, up to one unit in the last place; ``inf`` above all floats."""
    try:
        result = float(number)
    except OverflowError:
        return math.inf
    return result if Fraction(result) >= number else math.nextafter(result, math.inf)


def total_epsilon(parts: Iterable[Statement]) -> Fraction:
    """Σ count·ε, exact."""
    return sum((Fraction(epsilon) * count for epsilon, _, count in parts), Fraction(0))


def total_delta(parts: Iterable[Statement]) -> Fraction:
    """Σ count·δ, exact."""
    return sum((Fraction(delta) * count for _, delta, count in parts), Fraction(0))


def basic_of(parts: Sequence[Statement]) -> tuple[float, float]:
    """:func:`basic_composition` of statements."""
    return round_up(total_epsilon(parts)), min(1.0, round_up(total_delta(parts)))


def drift_and_square(parts: Sequence[Statement]) -> tuple[float, float]:
    """Σ count·ε·tanh(ε/2) and Σ count·ε², rounded up: what the tanh form reads."""
    drift = math.fsum(count * (epsilon * math.tanh(epsilon / 2)) for epsilon, _, count in parts) * UP
    return drift, math.fsum(count * (epsilon * epsilon) for epsilon, _, count in parts) * UP


def _advanced(parts: Sequence[Statement], slack: float, form: str) -> tuple[float, float]:
    slack = check_number("slack", slack, 0.0, 1.0, above=True, below=True)
    drift, square = drift_and_square(parts)
    if form == "k_epsilon_squared":
        drift = square
    elif form == "dwork_rothblum_vadhan":
        terms = (count * epsilon * (math.expm1(epsilon) if epsilon < 700 else math.inf) for epsilon, _, count in parts)
        drift = sum(terms) * UP
    epsilon_g = (drift + math.sqrt(-2 * math.log(slack) * square)) * UP
    return epsilon_g, min(1.0, round_up(total_delta(parts) + Fraction(slack)))


# -------------------------------------------------------------------------------------------------------- optimal


def optimal_composition_epsilon(
    epsilons: Sequence[float],
    deltas: Sequence[float],
    delta_g: float,
    counts: Sequence[int] | None = None,
    *,
    accuracy: float = ACCURACY,
) -> float:
    """The smallest ε_g ≥ 0 with which every composition of (εⱼ, δⱼ)-DP releases is (ε_g, δ_g)-DP.

    The worst mechanisms are leaky randomized responses: with probability δⱼ the record is shown, else a coin with odds
    e^{εⱼ} tells it.  Their composition gives (Kairouz, Oh & Viswanath 2015, Theorem 3.3; Murtagh & Vadhan 2016,
    Theorem 1.5), with independent signs sⱼ = ±1, P(sⱼ = 1) = e^{εⱼ}/(1 + e^{εⱼ}), and L = Σ sⱼεⱼ,

        δ_g = 1 − Π(1 − δⱼ)·(1 − H(ε_g)),   H(ε) = E[(1 − e^{ε − L})₊].

    Computed exactly (rounded up by a bound on the floating-point error) when the outcomes can be enumerated: any number
    of equal releases up to about 10^10, or few different εⱼ.  Otherwise L is put on a grid, which keeps an upper bound:
    each atom is split between its two grid neighbours so that both neighbouring data sets keep their probabilities (the
    exact pair is a post-processing of the split one).  Counting to decide is #P-hard, so some rounding is unavoidable
    (Murtagh & Vadhan 2016, Theorems 1.6 and 1.7, who round each εⱼ up).

    Args:
        epsilons: εⱼ in [0, 1e12]; an empty list costs nothing.
        deltas: δⱼ in [0, 1], as many.
        delta_g: the TOTAL δ in [0, 1]; 1 − Π(1 − δⱼ) comes off first, ``inf`` is returned if that is too much.
        counts: how often each occurs, once by default.
        accuracy: in [1e-6, 0.1].  The grid raises the mean and the variance of L by at most this fraction (as far as
            2^17 cells allow); lists with more than 4096 different εⱼ are first rounded up by at most a factor
            1 + accuracy or, if their range is wider than 4096 such factors, by the 4096th root of the range.

    Raises:
        ConfigError: a value out of range, or lists of different lengths.
    """
    delta_g = check_number("delta_g", delta_g, 0.0, 1.0)
    return optimal_epsilon_of(statements(epsilons, deltas, counts), delta_g, _check_accuracy(accuracy))


def optimal_composition_delta(
    epsilons: Sequence[float],
    deltas: Sequence[float],
    epsilon_g: float,
    counts: Sequence[int] | None = None,
    *,
    accuracy: float = ACCURACY,
) -> float:
    """The smallest total δ_g at ε_g ≥ 0; everything else as :func:`optimal_composition_epsilon`."""
    epsilon_g = check_number("epsilon_g", epsilon_g, 0.0)
    return optimal_delta_of(statements(epsilons, deltas, counts), epsilon_g, _check_accuracy(accuracy))


def _check_accuracy(accuracy: float) -> float:
    return check_number("accuracy", accuracy, 1e-6, 0.1)


def optimal_delta_of(parts: Sequence[Statement], epsilon_g: float, accuracy: float = ACCURACY) -> float:
    """:func:`optimal_composition_delta` of statements."""
    log_kept = _log_kept(parts)
    if log_kept == -math.inf:
        return 1.0
    hockey = 0.0
    if Fraction(epsilon_g) < total_epsilon(parts):
        hockey = _log_free_delta(_epsilon_counts(parts), epsilon_g, accuracy)
    if hockey >= 1:
        return 1.0
    only = next(iter(parts), (0.0, 0.0, 0))
    if hockey == 0 and len(parts) <= 1 and only[2] <= 1:
        return only[1]
    return min(1.0, -math.expm1((log_kept + math.log1p(-hockey)) * UP) * UP)


def optimal_epsilon_of(parts: Sequence[Statement], delta_g: float, accuracy: float = ACCURACY) -> float:
    """:func:`optimal_composition_epsilon` of statements."""
    if delta_g == 1 or not parts:
        return 0.0
    log_kept = _log_kept(parts)
    if log_kept == -math.inf:
        return math.inf
    total = round_up(total_epsilon(parts))
    log_left = math.log1p(-delta_g)
    if log_left - log_kept > 1:  # Π(1 − δⱼ) < (1 − δ_g)/e: an infinite loss is likelier than δ_g
        return math.inf
    hockey = -math.expm1(log_left - log_kept)  # 1 − (1 − δ_g)/Π(1 − δⱼ)
    hockey -= 4 * _U * (abs(log_left) + abs(log_kept)) + 4 * _U * abs(hockey)
    if log_kept == 0:
        hockey = delta_g
    if hockey <= 0:  # nothing is left for H, as far as rounding can tell: basic composition decides
        return total if Fraction(delta_g) >= total_delta(parts) else math.inf
    if not total:
        return 0.0
    return min(total, _log_free_epsilon(_epsilon_counts(parts), hockey, accuracy))


def _log_kept(parts: Sequence[Statement]) -> float:
    """ln Π(1 − δⱼ) ≤ 0."""
    if any(delta == 1 for _, delta, _ in parts):
        return -math.inf
    return math.fsum(count * math.log1p(-delta) for _, delta, count in parts)


def _epsilon_counts(parts: Sequence[Statement]) -> dict[float, int]:
    found: dict[float, int] = {}
    for epsilon, _, count in parts:
        if epsilon > 0:
            found[epsilon] = found.get(epsilon, 0) + count
    return found


def _log_free_delta(groups: dict[float, int], epsilon: float, accuracy: float) -> float:
    losses = _composed_losses(groups, accuracy)
    if losses is None:
        return zcdp_to_delta(_rho(groups), epsilon)
    return losses.delta(epsilon)


def _log_free_epsilon(groups: dict[float, int], delta: float, accuracy: float) -> float:
    losses = _composed_losses(groups, accuracy)
    if losses is None:
        return zcdp_to_epsilon(_rho(groups), delta)
    return losses.epsilon(delta)


def _rho(groups: dict[float, int]) -> float:
    """Σ count·ε·tanh(ε/2): what more releases than can be enumerated are charged as, still an upper bound."""
    return math.fsum(count * pure_to_zcdp(epsilon) for epsilon, count in groups.items()) * UP


@dataclass(frozen=True, eq=False)
class _Losses:
    """A loss distribution: increasing ``losses`` with P-``masses`` and the P-mass of an ``infinite`` loss, rounded up.

    ``losses`` and ``masses`` have shape (number of outcomes,).
    """

    losses: np.ndarray
    masses: np.ndarray
    infinite: float

    def delta(self, epsilon: float) -> float:
        """H(ε) = E[(1 − e^{ε − L})₊], a sum of positive terms."""
        start = int(np.searchsorted(self.losses, epsilon, side="right"))
        gaps = -np.expm1(epsilon - self.losses[start:])
        return min(1.0, (float(np.sum(self.masses[start:] * gaps)) + self.infinite) * (1 + 2e-14))

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 with H(ε) ≤ delta; between two losses e^ε is linear in H."""
        if self.delta(0.0) <= delta:
            return 0.0
        low, high = 0, len(self.losses) - 1  # the index of the first loss at which H <= delta
        if self.delta(float(self.losses[high])) > delta:
            return math.inf
        while low < high:
            middle = (low + high) // 2
            if self.delta(max(0.0, float(self.losses[middle]))) <= delta:
                high = middle
            else:
                low = middle + 1
        top = float(self.losses[high])
        floor = max(0.0, float(self.losses[high - 1])) if high else 0.0
        masses = self.masses[high:]
        slope = float(np.sum(masses * np.exp(top - self.losses[high:])))
        share = (float(np.sum(masses)) + self.infinite - delta) / slope
        point = max(floor, top + math.log(share)) if share > 0 else floor
        step = 1e-15 * max(point, top - floor)
        while point < top and self.delta(point) > delta:
            point, step = point + step, 2 * step
        return min(point, top)


def _composed_losses(groups: dict[float, int], accuracy: float) -> _Losses | None:
    """The loss of all groups {ε: count}; None where a binomial is too wide to hold."""
    groups = _merge(groups, accuracy)
    parts = []
    for epsilon, count in sorted(groups.items()):
        part = _binomial_losses(epsilon, count)
        if part is None:
            return None
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    if math.prod(len(part.losses) for part in parts) <= _MAX_OUTCOMES:
        return _enumerate(parts)
    return _on_grid(parts, groups, accuracy)


def _merge(groups: dict[float, int], accuracy: float) -> dict[float, int]:
    """At most 4096 different ε, each rounded up; those that hardly count in Σ ε² are rounded up to one value."""
    if len(groups) <= _MAX_GROUPS:
        return groups
    top, number = max(groups), sum(groups.values())
    root_mean_square = math.sqrt(math.fsum(count * epsilon**2 for epsilon, count in groups.items()) / number)
    floor = max(min(groups), accuracy * root_mean_square)
    width = max(math.log1p(accuracy), math.log(top / floor) / (_MAX_GROUPS - 1))
    merged: dict[float, int] = {}
    for epsilon, count in groups.items():
        level = math.ceil(math.log(max(epsilon, floor) / floor) / width)
        raised = max(epsilon, min(top, floor * math.exp(level * width) * (1 + 1e-12)))
        merged[raised] = merged.get(raised, 0) + count
    return merged


def _binomial_losses(epsilon: float, count: int) -> _Losses | None:
    """``count`` randomized responses with odds e^ε: loss (k − 2i)·ε with probability C(k, i)·q^i·(1−q)^{k−i}.

    q = 1/(1 + e^ε).  The probabilities come from their ratios to the largest one, so that each has a relative error of
    a few rounding errors per step; they are raised by that bound.
    """
    odd = math.exp(-epsilon)
    mode = min(count, math.floor((count + 1) * (odd / (1 + odd))))
    up = _ratios(count, mode, odd, 1)
    down = _ratios(count, mode, odd, -1)
    if up is None or down is None:
        return None
    weights = np.concatenate([down[::-1], [1.0], up])
    masses = weights / np.sum(weights) * (1 + 8 * _U * (len(weights) + 8))
    flips = mode - len(down) + np.arange(len(weights))
    losses = (count - 2.0 * flips) * epsilon
    losses = losses + _U * np.abs(losses)
    left_out = (count + 1) * _TINY
    cut_high, cut_low = len(down) < mode, len(up) < count - mode
    if cut_low:  # losses below the lowest kept one are rounded up to it
        masses[-1] += left_out
    return _Losses(losses[::-1], masses[::-1], left_out if cut_high else 0.0)


def _ratios(count: int, mode: int, odd: float, direction: int) -> np.ndarray | None:
    """P(mode ± 1), P(mode ± 2), … over P(mode), down to 1e-300; None where they are too many."""
    available = count - mode if direction > 0 else mode
    variance = count * odd / (1 + odd) ** 2
    number = int(40 * math.sqrt(variance)) + 1000
    while True:
        number = min(number, available)
        if number > _MAX_WINDOW:
            return None
        step = np.arange(number, dtype=float)
        if direction > 0:
            factors = (available - step) / (mode + 1 + step) * odd
        else:
            factors = (mode - step) / (count - mode + 1 + step) / odd
        ratios = np.cumprod(factors)
        kept = int(np.count_nonzero(ratios > _TINY))
        if kept < number or number == available:
            return ratios[:kept]
        number *= 2


def _enumerate(parts: Sequence[_Losses]) -> _Losses:
    """All outcomes of independent parts, sorted by their loss."""
    losses, masses, size, infinite = np.zeros(1), np.ones(1), 0.0, 0.0
    for part in parts:
        losses = (losses[:, None] + part.losses[None, :]).ravel()
        masses = (masses[:, None] * part.masses[None, :]).ravel() * (1 + 2 * _U)
        size += float(np.max(np.abs(part.losses)))
        infinite += part.infinite
    order = np.argsort(losses, kind="stable")
    return _Losses(losses[order] + len(parts) * _U * size, masses[order], infinite)


def _on_grid(parts: Sequence[_Losses], groups: dict[float, int], accuracy: float) -> _Losses:
    """The sum of independent parts on a common grid of losses.

    Splitting one atom between neighbours at distance g raises the variance by at most g²/4 and the mean by at most
    g²/8; one split a group.  With ``variance`` and ``drift`` of the whole loss the step below keeps both within
    ``accuracy``, and within 2^13 to 2^17 cells over 38 standard deviations to both sides.
    """
    square = math.fsum(count * epsilon**2 for epsilon, count in groups.items())
    span = min(2 * math.fsum(count * epsilon for epsilon, count in groups.items()), 76 * math.sqrt(square))
    variance = math.fsum(count * (e / math.cosh(min(e, 600.0) / 2)) ** 2 for e, count in groups.items())
    drift = math.fsum(count * epsilon * math.tanh(epsilon / 2) for epsilon, count in groups.items())
    step = math.sqrt(accuracy * min(4 * variance, 8 * drift) / len(parts))
    step = min(max(step, span / _MAX_CELLS), span / _MIN_CELLS)
    start, masses, infinite = 0, np.ones(1), 0.0
    for part in parts:
        first, cells = _split(part, step)
        masses, start, infinite = _convolve(masses, cells), start + first, infinite + part.infinite
        kept = np.flatnonzero(masses > _TINY)
        infinite += len(masses) * _TINY
        masses[kept[0]] += len(masses) * _TINY
        masses, start = masses[kept[0] : kept[-1] + 1], start + int(kept[0])
    index = start + np.arange(len(masses))
    return _Losses(step * index + 2 * _U * np.abs(step * index), masses, infinite)


def _split(part: _Losses, step: float) -> tuple[int, np.ndarray]:
    """Atoms split between their grid neighbours: the upper share (1 − e^{−offset})/(1 − e^{−g}) keeps the Q-mass."""
    index = np.floor(part.losses / step)
    offset = part.losses - step * index
    share = np.expm1(-offset) / math.expm1(-step) + 4 * _U * (2 + np.abs(index)) * max(1.0, step)
    share = np.clip(share, 0.0, 1.0)
    cells = (index - index[0]).astype(int)
    masses = np.zeros(cells[-1] + 2)
    np.add.at(masses, cells + 1, part.masses * share)
    np.add.at(masses, cells, part.masses * (1 - share))
    return int(index[0]), masses


def _convolve(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The direct convolution (no FFT: every term is positive, so tiny tails keep their digits), rounded up."""
    cells = np.flatnonzero(right)
    if len(cells) > 64:
        return np.convolve(left, right) * (1 + 2 * _U * min(len(left), len(right)))
    out = np.zeros(len(left) + len(right) - 1)
    for cell in cells:
        out[cell : cell + len(left)] += left * right[cell]
    return out * (1 + 2 * _U * (len(cells) + 1))


# ------------------------------------------------------------------------------------------- statements of events


def statement(atom: Event, relation: str, accountant: str = "optimal") -> tuple[float, float]:
    """The (ε, δ) that ``atom``, one part of a :func:`normal_form`, has of its own under ``relation``.

    Served: (ε, δ) statements, Laplace, discrete Laplace, the exponential mechanism, randomized response (replace_one),
    samples of these (Poisson under add_remove, fixed size under replace_one); no noise at all is (0, 1)-DP, as
    everything is.  UnsupportedEventError, naming ``accountant``, for all others: a Gaussian has a whole curve of them.

    Sampling with rate q: ln(1 + q(e^ε − 1)) and q·δ (Balle, Barthe & Gaboardi 2018, Theorems 8 and 9).
    """
    if isinstance(atom, EpsilonDelta):
        return atom.epsilon, atom.delta
    if isinstance(atom, ExponentialMechanism) or (isinstance(atom, RandomizedResponse) and relation == REPLACE_ONE):
        return _finite(atom.epsilon * UP)
    if isinstance(atom, Laplace):
        return _quotient(1.0, effective(atom.noise_multiplier, relation))
    if isinstance(atom, DiscreteLaplace):
        return _quotient(float(integer_sensitivity(atom, relation)), atom.noise_scale)
    if isinstance(atom, Gaussian) and atom.noise_multiplier == 0:
        return 0.0, 1.0
    if isinstance(atom, PoissonSampled) and relation == ADD_REMOVE:
        return _sampled(atom.sampling_probability, atom.event, relation, accountant)
    if isinstance(atom, SampledWithoutReplacement) and relation == REPLACE_ONE:
        return _sampled(atom.sample_size / atom.source_size * (1 + _U), atom.event, relation, accountant)
    raise UnsupportedEventError(
        f"accountant {accountant!r} cannot bound event {event_name(atom)!r} under {relation}: it has no "
        "(epsilon, delta) statement of its own; use accountant='best'."
    )


def event_statements(event: Event, relation: str, accountant: str) -> list[Statement]:
    """The statements of a whole event, atom by atom."""
    return [(*statement(atom, relation, accountant), count) for atom, count in normal_form(event, relation).items()]


def _quotient(sensitivity: float, scale: float) -> tuple[float, float]:
    return _finite(sensitivity / scale * (1 + _U)) if scale > 0 else (0.0, 1.0)


def _finite(epsilon: float) -> tuple[float, float]:
    return (epsilon, 0.0) if epsilon <= MAX_SCALE else (0.0, 1.0)


def _sampled(q: float, event: Event, relation: str, accountant: str) -> tuple[float, float]:
    epsilon, delta = basic_of(event_statements(event, relation, accountant))
    if epsilon < 700:
        sampled = math.log1p(q * math.expm1(epsilon))
    else:
        sampled = epsilon + math.log(q + (1 - q) * math.exp(-epsilon))
    # a product below all floats is rounded up, not to 0: the release is not pure
    return min(epsilon, max(sampled * UP, _LEAST if q * epsilon == 0 < epsilon else 0.0)), min(
        delta, max(q * delta * UP, _LEAST if delta else 0.0)
    )
