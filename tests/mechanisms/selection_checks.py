"""What selection mechanisms must do; tests and planted bugs share these checks.

Every chi-square test here has a false-alarm rate of 1e-6.  ``power`` gives what a test sees of a named fault.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from accounting_tables import rows
from scipy import stats

from dpml import accounting as acc
from dpml.mechanisms import FixedNoise, SecretNoise, noisy_max, permute_and_flip, quantiles, selection, sparse_vector

EXPONENTIAL, FLIP, NOISY = (
    selection.ExponentialMechanism,
    permute_and_flip.PermuteAndFlipMechanism,
    noisy_max.ReportNoisyMax,
)
CHOICES: dict[str, Callable[..., Any]] = {
    "exponential": EXPONENTIAL,
    "permute_and_flip": FLIP,
    "laplace": NOISY,
    "exponential noise": lambda *a, **k: NOISY(*a, distribution="exponential", **k),
    "gumbel": lambda *a, **k: NOISY(*a, distribution="gumbel", **k),
}
FALSE_ALARM = 1e-6
DRAWS = 6000


def close(row: dict[str, Any], got: np.ndarray) -> bool:
    expected = np.array([float(text) for text in row["value"]])
    return bool((np.abs(got - expected) <= float(row["rtol"]) * np.abs(expected) + float(row["atol"])).all())


def by_permutations(scores: Sequence[float], scale: float) -> np.ndarray:
    """Permute-and-flip from its definition: all orders, one coin each."""
    accept = [math.exp((u - max(scores)) / scale) for u in scores]
    out = np.zeros(len(scores))
    for order in itertools.permutations(range(len(scores))):
        left = 1.0
        for r in order:
            out[r] += left * accept[r]
            left *= 1 - accept[r]
    return out / math.factorial(len(scores))


def race(kind: str, scale: str) -> np.ndarray:
    """The probabilities of scores 10, 9, 7 with noise of this scale: reference row, permutations or softmax."""
    if kind == "exponential":
        return by_permutations([10.0, 9.0, 7.0], float(scale))
    if kind == "gumbel":
        weights = np.exp(np.array([10.0, 9.0, 7.0]) / float(scale))
        return weights / weights.sum()
    table = rows("mechanisms", f"report_noisy_max_{kind}")
    found = [r for r in table if r["inputs"] == {"scores": ["10", "9", "7"], "noise_scale": scale}]
    assert len(found) == 1
    return np.array([float(text) for text in found[0]["value"]])


def chi_square(counts: Sequence[int], expected: Sequence[float]) -> None:
    """The counts follow these probabilities."""
    e = np.array(expected) * sum(counts)
    assert e.min() > 5, "too few draws for the test"
    statistic = float(((np.array(counts) - e) ** 2 / e).sum())
    assert statistic < stats.chi2(len(e) - 1).isf(FALSE_ALARM), (counts, e)


def power(expected: Sequence[float], faulty: Sequence[float], draws: int = DRAWS) -> float:
    """The chance that ``chi_square`` notices draws with the probabilities ``faulty``."""
    p, q = np.array(expected), np.array(faulty)
    shift = draws * float(((p - q) ** 2 / p).sum())
    return float(stats.ncx2(len(p) - 1, shift).sf(stats.chi2(len(p) - 1).isf(FALSE_ALARM)))


def counted(draw: Callable[[], Any], outcomes: Sequence[Any], draws: int = DRAWS) -> list[int]:
    seen = Counter(draw() for _ in range(draws))
    assert set(seen) <= set(outcomes), set(seen) - set(outcomes)
    return [seen[outcome] for outcome in outcomes]


def check_sampler(name: str) -> None:
    """Draws at scores 10, 9, 7 follow the reference probabilities at noise scale 1 = 2Δ/ε with Δ = 1 and ε = 2."""
    kind = {"permute_and_flip": "exponential", "exponential noise": "exponential", "exponential": "gumbel"}.get(
        name, name
    )
    mechanism, noise = CHOICES[name](3, sensitivity=1.0, epsilon=2.0), SecretNoise()
    counts = counted(lambda: mechanism.release([10.0, 9.0, 7.0], noise).value, range(3))
    chi_square(counts, race(kind, "1"))


def check_scores_far_apart(name: str) -> None:
    """Scores that overflow or underflow every exponential: numbers, and the draws of the same scores near 0."""
    mechanism, noise = CHOICES[name](3, sensitivity=1.0, epsilon=1.0), FixedNoise(5)
    for shift in (-1e6, 1e6):
        near, far = mechanism.probabilities([3.0, 2.0, 0.0]), mechanism.probabilities(np.array([3.0, 2.0, 0.0]) + shift)
        assert np.isfinite(far).all()
        assert np.allclose(near, far, rtol=1e-12, atol=0.0)
        counts = counted(lambda s=shift: mechanism.release([s + 3.0, s + 2.0, s], noise).value, range(3), 2000)
        chi_square(counts, near)
    huge = mechanism.probabilities([1e300, -1e300, 0.0])
    assert abs(huge[0] - 1.0) < 1e-12
    assert mechanism.release([1e300, -1e300, 0.0], noise).value == 0


def count_changes(relation: str, size: int) -> list[tuple[float, ...]]:
    """All changes of ``size`` counts (of sets that may overlap) between neighbouring data sets."""
    if relation == "add_remove":
        return list(itertools.product((0.0, 1.0), repeat=size))
    return list(itertools.product((-1.0, 0.0, 1.0), repeat=size))


def largest_loss(mechanism: Any, changes: Sequence[Sequence[float]], worlds: Sequence[Sequence[float]]) -> float:
    """The largest |ln P(r)/P'(r)| over these scores and their neighbours, from the exact probabilities."""
    worst = 0.0
    for scores in worlds:
        one = np.log(mechanism.probabilities(scores))
        for change in changes:
            other = np.log(mechanism.probabilities(np.array(scores) + change))
            worst = max(worst, float(np.abs(one - other).max()))
    return worst


def worlds(seed: int = 0) -> list[list[float]]:
    """Equal scores, one far ahead (ε is reached there), and random ones."""
    rng = np.random.default_rng(seed)
    return [[0.0, 0.0, 0.0], [15.0, 0.0, 0.0], [0.0, 16.0, 16.0], *rng.integers(0, 10, (4, 3)).astype(float).tolist()]


def check_counts_cost(name: str, relation: str) -> None:
    """Counts under a relation cost ε, no more, and nearly all of it somewhere."""
    kind = CHOICES[name]
    extra = {"laplace": {}, "exponential noise": {"distribution": "exponential"}, "gumbel": {"distribution": "gumbel"}}
    owner = kind if isinstance(kind, type) else NOISY
    mechanism = owner.for_counts(3, 1.0, relation, **extra.get(name, {}))
    loss = largest_loss(mechanism, count_changes(relation, 3), worlds())
    assert 0.9 < loss <= 1.0 + 1e-9, loss


def check_general_cost(name: str) -> None:
    """Scores of sensitivity 2.5 that move in any direction cost ε = 0.7 and no more."""
    mechanism = CHOICES[name](3, sensitivity=2.5, epsilon=0.7)
    changes = [tuple(2.5 * part for part in change) for change in count_changes("replace_one", 3)]
    scaled = [[2.5 * part for part in world] for world in worlds(1)]
    loss = largest_loss(mechanism, changes, scaled)
    assert 0.9 * 0.7 < loss <= 0.7 * (1.0 + 1e-9), loss


def check_tradeoff(name: str) -> None:
    """The best test between two worst-case neighbours (exact, from the probabilities) stays above the claimed curve."""
    mechanism = CHOICES[name](4, sensitivity=1.0, epsilon=1.5)
    for scores in ([0.0, 0.0, 0.0, 0.0], [8.0, 0.0, 0.0, 0.0], [2.0, 1.0, 0.0, 3.0]):
        for change in ([1.0, -1.0, -1.0, -1.0], [-1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 0.0, 1.0]):
            p, q = mechanism.probabilities(scores), mechanism.probabilities(np.array(scores) + change)
            order = np.argsort(p / q)  # reject world p first where q is likelier
            type1, type2 = np.cumsum(p[order]), 1.0 - np.cumsum(q[order])
            claimed = acc.tradeoff(mechanism.event, np.clip(type1, 0.0, 1.0), neighboring_relation="replace_one")
            assert (type2 >= claimed - 1e-9).all()


# --- sparse vector ------------------------------------------------------------------------------------------------


def laplace_below(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.exp(np.minimum(x, 0)) / 2, 1 - np.exp(-np.maximum(x, 0)) / 2)


def segment_probability(mechanism: Any, queries: Sequence[float], answers: Sequence[bool]) -> float:
    """∫ f(z) Π P(query + noise >= or < T + z) dz for queries that share a threshold noise, by quadrature."""
    first, second = (float(s) * mechanism.spacing for s in (mechanism.threshold_scale, mechanism.query_scale))
    knots = np.unique([0.0, *(q - mechanism.threshold for q in queries)])
    reach = 40.0 * max(first, second)
    knots = np.concatenate(([knots[0] - reach], knots, [knots[-1] + reach]))
    points, weights = np.polynomial.legendre.leggauss(16)
    out = 0.0
    for left, right in itertools.pairwise(knots):
        panels = math.ceil((right - left) / min(first, second))
        width = (right - left) / panels
        z = (left + width * (np.arange(panels)[:, None] + (points + 1) / 2)).ravel()
        value = np.exp(-np.abs(z) / first) / (2 * first)
        for q, answer in zip(queries, answers, strict=True):
            low = (mechanism.threshold + z - q) / second
            value = value * (laplace_below(-low) if answer else laplace_below(low))
        out += float((np.tile(weights * width / 2, panels) * value).sum())
    return out


def stream_probability(mechanism: Any, queries: Sequence[float], answers: Sequence[bool]) -> float:
    """The probability of these answers (which end with the c-th positive one, or with the queries)."""
    if not mechanism.redraw:
        return segment_probability(mechanism, queries, answers)
    out, start = 1.0, 0
    for end, answer in enumerate(answers, 1):
        if answer or end == len(answers):
            out *= segment_probability(mechanism, queries[start:end], answers[start:end])
            start = end
    return out


def possible_answers(length: int, positives: int) -> list[tuple[bool, ...]]:
    """All that a stream of ``length`` queries can answer."""
    out = set()
    for full in itertools.product((False, True), repeat=length):
        seen, ends = 0, length
        for place, answer in enumerate(full, 1):
            seen += answer
            if seen == positives:
                ends = place
                break
        out.add(full[:ends])
    return sorted(out)


STREAM = {"threshold": 0.0, "sensitivity": 1.0, "epsilon": 1.0}
VARIANTS = {
    "one": {},
    "two": {"positives": 2},
    "redraw": {"positives": 2, "redraw": True},
    "monotonic": {"positives": 2, "monotonic": True},
}


def check_stream_cost(name: str) -> None:
    """No answers to four queries tell two neighbouring data sets apart by more than e^ε, and some by e^{0.4ε}."""
    mechanism = sparse_vector.AboveThreshold(**STREAM, **VARIANTS[name], threshold_share=0.5)
    signs = (1.0,) if mechanism.monotonic else (-1.0, 1.0)
    worst = 0.0
    for base in ([0.0] * 4, [-30.0] * 4, [30.0, -30.0, 30.0, -30.0]):
        here = {a: stream_probability(mechanism, base[: len(a)], a) for a in possible_answers(4, mechanism.positives)}
        for change in itertools.product(signs, repeat=4):
            other = [q + d for q, d in zip(base, change, strict=True)]
            for answers, p in here.items():
                q = stream_probability(mechanism, other[: len(answers)], answers)
                worst = max(worst, abs(math.log(p / q)))
    assert 0.4 < worst <= 1.0 + 1e-6, worst


def check_long_stream_cost(name: str) -> None:
    """Forty negative answers between positive ones: where a missing piece of noise shows most."""
    mechanism = sparse_vector.AboveThreshold(**STREAM, **VARIANTS[name], threshold_share=0.5)
    answers = ((False,) * 40 + (True,)) * mechanism.positives
    for far in (0.0, 10.0):
        for up in (1.0, -1.0):
            low, high = [0.0] * 40 + [-far], [up] * 40 + [-far - (0.0 if mechanism.monotonic else up)]
            p = stream_probability(mechanism, low * mechanism.positives, answers)
            q = stream_probability(mechanism, high * mechanism.positives, answers)
            assert 0.99 <= abs(math.log(p / q)) <= 1.0 + 1e-6, (p, q)  # the bound is reached


def check_stream_sampler(name: str, draws: int = DRAWS) -> None:
    """Answers to three queries follow the integrals."""
    mechanism, noise = sparse_vector.AboveThreshold(**{**STREAM, "epsilon": 4.0}, **VARIANTS[name]), SecretNoise()
    queries, outcomes = [0.5, -0.5, 0.25], possible_answers(3, mechanism.positives)
    expected = [stream_probability(mechanism, queries[: len(a)], a) for a in outcomes]
    assert abs(sum(expected) - 1.0) < 1e-12
    chi_square(counted(lambda: mechanism.release(queries, noise).value, outcomes, draws), expected)


def check_released_number_has_its_own_noise(draws: int = 3000) -> None:
    """A number released 3 below the threshold is Laplace around the query, whatever the comparison drew (KS test)."""
    mechanism = sparse_vector.AboveThreshold(0.0, 1.0, 2.0, value_epsilon=1.0)
    noise, values = SecretNoise(), []
    while len(values) < draws:
        answer = mechanism.release([-3.0] * 64, noise).value[-1]
        if answer is not False:
            values.append(answer + 3.0)
    scale = float(mechanism.value_scale) * mechanism.spacing
    assert abs(scale - 1.0) < 1e-5
    assert stats.kstest(values, stats.laplace(scale=scale).cdf).pvalue > FALSE_ALARM


# --- quantiles ----------------------------------------------------------------------------------------------------


def quantile_definition(data: Sequence[float], q: float, low: int, high: int, factor: float) -> np.ndarray:
    """P ∝ e^{factor·u} at each whole number from low to high, u by counting."""
    inside = [min(max(x, low), high) for x in data]
    scores = []
    for v in range(low, high + 1):
        below, upto = sum(x < v for x in inside), sum(x <= v for x in inside)
        scores.append(-max(0.0, below - q * len(inside), q * len(inside) - upto))
    weights = [math.exp(factor * u) for u in scores]
    return np.array(weights) / sum(weights)


def small_columns() -> list[list[float]]:
    rng = np.random.default_rng(3)
    columns = [[], [0.0], [2.0, 2.0, 2.0], [0.0, 5.0], [5.0, 5.0, 0.0, 1.0]]
    return columns + [rng.integers(0, 6, size).astype(float).tolist() for size in (3, 4, 5, 6)]


def check_quantile_cost(relation: str, quantile: float) -> None:
    """Exact probabilities of neighbouring columns differ by at most e^ε at every point, somewhere by e^{ε/2}."""
    mechanism = quantiles.QuantileMechanism.for_relation(quantile, (0.0, 5.0), 1.0, relation, spacing=1.0)
    worst = 0.0
    for column in small_columns():
        p = mechanism.probabilities(column)[0]
        others = [[*column, float(x)] for x in range(6)]
        if relation == "replace_one":
            others = [[*column[:i], float(x), *column[i + 1 :]] for i in range(len(column)) for x in range(6)]
        for other in others:
            worst = max(worst, float(np.abs(np.log(p / mechanism.probabilities(other)[0])).max()))
    assert 0.45 < worst <= 1.0 + 1e-9, worst


QUARTILE_DATA = [1.0, 1.0, 2.0, 7.0, 9.0, 9.0, 60.0, -60.0]


def check_quantile_sampler(draws: int = DRAWS) -> None:
    """Draws of an upper quartile on ten points follow the definition; records outside the bounds count as clamped."""
    mechanism, noise = quantiles.QuantileMechanism(0.75, (0.0, 9.0), 1.0, spacing=1.0), SecretNoise()
    expected = quantile_definition(QUARTILE_DATA, 0.75, 0, 9, 0.5)
    chi_square(counted(lambda: mechanism.release(QUARTILE_DATA, noise).value, range(10), draws), expected)


def check_quantile_clamps() -> None:
    """However far outside a record is, it counts as the bound: probabilities and values stay in the public range."""
    mechanism = quantiles.QuantileMechanism([0.25, 0.75], (0.0, 6.0), 2.0, spacing=1.0)
    for far in (1e3, 1e18, np.inf):
        outside = mechanism.probabilities([1.0, 2.0, far, far, -far])
        assert outside.shape == (2, 7)
        assert np.array_equal(outside, mechanism.probabilities([1.0, 2.0, 6.0, 6.0, 0.0]))
        assert set(mechanism.release([far] * 50, FixedNoise(1)).value.tolist()) <= set(range(7))
