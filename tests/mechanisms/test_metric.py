"""The general-metric mechanism: finite ranges, three norms on R^k, and when the 2 can go."""

from __future__ import annotations

import math
from functools import lru_cache

import mechanism_checks as checks
import numpy as np
import pytest
from scipy import integrate, stats

from dpml import accounting as acc
from dpml.errors import ConfigError, DataError
from dpml.mechanisms import FixedNoise, MetricMechanism, exact, exact_reals

DRAWS = 3000
STAR = np.array([[0, 1, 1, 1], [1, 0, 2, 2], [1, 2, 0, 2], [1, 2, 2, 0]], dtype=float)


# ------------------------------------------------------------------------------------------------------ finite ranges
def test_ratios_of_finite_ranges_exactly() -> None:
    checks.metric_mechanism_holds()
    checks.path_needs_the_two()


def test_two_worlds_exactly() -> None:
    for m in (checks.path(), checks.circle(), checks.path(epsilon=0.3, sensitivity=2.0)):
        for a in m.outputs:
            for b in m.outputs:
                if a != b and m.matrix[a][b] <= m.sensitivity:
                    checks.profile_holds(m.pmf(a), m.pmf(b), m.event)


def test_the_two_goes_only_where_all_points_look_alike() -> None:
    assert checks.circle().factor == 1
    assert checks.path().factor == 2
    assert MetricMechanism(1.0, 1.0, outputs=["c", "x", "y", "z"], distance=STAR).factor == 2
    equal = MetricMechanism(1.0, 1.0, outputs=["a", "b", "c"], distance=lambda a, b: float(a != b))
    assert equal.factor == 1, "the discrete metric: randomized response with ε"
    e = math.e
    assert equal.pmf("b") == pytest.approx([1 / (e + 2), e / (e + 2), 1 / (e + 2)], rel=1e-9)
    assert MetricMechanism(1.0, 1.0, norm="l2", dimension=3).factor == 1


@pytest.mark.parametrize("epsilon", [0.2, 2.0, 8.0])
def test_draws_from_finite_ranges(epsilon) -> None:
    """Chi-square at 1e-6 of 1,500 draws against e^{−ε d/(2S)}.  Power: without the 2 at ε = 2 it is caught."""
    m = checks.path(epsilon=epsilon)
    source = checks.Blocks()
    draws = [m.release(3, source).value for _ in range(1500)]
    weights = np.exp(-epsilon * np.abs(np.arange(8) - 3) / 2)
    checks.fits(np.bincount(draws, minlength=8), weights / weights.sum())
    if epsilon == 2.0:
        wrong = np.exp(-epsilon * np.abs(np.arange(8) - 3.0))
        with pytest.raises(AssertionError):
            checks.fits(np.bincount(draws, minlength=8), wrong / wrong.sum())


def test_error_of_finite_ranges_exactly() -> None:
    for m in (checks.path(epsilon=0.5), checks.circle(epsilon=2.0), checks.path(epsilon=20.0)):
        for beta in (0.5, 0.1, 0.01):
            error = m.error(beta)
            beyond = [m.pmf(value)[m.matrix[value] > error].sum() for value in m.outputs]
            assert max(beyond) <= beta
            nearer = [m.pmf(value)[m.matrix[value] >= error].sum() for value in m.outputs]
            assert max(nearer) > beta, "the smallest such distance"


def test_rounded_distances_are_paid_for() -> None:
    """Points of a line in the plane: rounding breaks the triangle inequality by some 1e-16, which is paid for."""
    points = [(0.1 * i, 0.3 * i) for i in range(12)]
    m = MetricMechanism(1.0, 2.0, outputs=points, distance=math.dist)
    assert checks.metric_ratios(m) <= 2.0
    assert m.release(points[4], FixedNoise(0)).value in points


@pytest.mark.parametrize(
    ("outputs", "distance", "words"),
    [
        ([0, 1, 1], lambda a, b: abs(a - b), "duplicates"),
        ([0, 1], lambda a, b: a - b, "metric"),
        ([0, 1], lambda a, b: float("nan"), "metric"),
        ([0, 1], lambda a, b: float("inf") if a != b else 0.0, "metric"),
        ([0, 1], lambda a, b: 1.0, "metric"),
        ([0, 1], [[0, 1], [2, 0]], "both directions"),
        ([0, 1, 2], lambda a, b: (a - b) ** 2, "triangle"),
        ([0, 1], [[0, 1]], "shape"),
        ([0, 1], "far", "distance"),
        ([0, 1], None, "distance"),
        ([], lambda a, b: 0.0, "outputs"),
        (range(1001), lambda a, b: 1.0, "outputs"),
        ("ab", lambda a, b: 1.0, "outputs"),
    ],
)
def test_what_is_no_metric(outputs, distance, words) -> None:
    with pytest.raises(ConfigError, match=words):
        MetricMechanism(1.0, 1.0, outputs=outputs, distance=distance)


def test_values_outside_the_range() -> None:
    for wrong in (8, -1, None, "3", 2.5, float("nan")):
        with pytest.raises(DataError, match="outputs"):
            checks.path().release(wrong)
    with pytest.raises(ConfigError, match="norms"):
        checks.path().release(3).interval()
    with pytest.raises(ConfigError, match="finite"):
        MetricMechanism(1.0, 1.0, norm="l1").pmf(0)


# ----------------------------------------------------------------------------------------------------------- vectors
@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("dimension", [1, 3, 40])
def test_norms_of_the_noise(norm, dimension) -> None:
    """‖noise‖ ~ Gamma(dimension, S/ε); KS at 1e-6 of 600 draws.  Power: the 2 left in halves or doubles the norm."""
    m = MetricMechanism(3.0, 1.5, norm=norm, dimension=dimension)
    order = {"l1": 1, "l2": 2, "linf": np.inf}[norm]
    source = checks.Blocks()
    noise = np.array([m.release(np.ones(dimension), source).value - 1.0 for _ in range(600)])
    sizes = np.linalg.norm(noise, ord=order, axis=1) / 2.0
    checks.draws_fit(sizes, stats.gamma(dimension).cdf)
    for wrong in (0.5, 2.0):
        with pytest.raises(AssertionError):
            checks.draws_fit(wrong * sizes, stats.gamma(dimension).cdf)
    # the directions: coordinates are exchangeable and symmetric
    assert stats.binomtest(int((noise > 0).sum()), noise.size).pvalue > checks.FALSE_ALARM
    assert m.factor == 1


def test_one_number_is_the_laplace_mechanism() -> None:
    for norm in ("l1", "l2", "linf"):
        m = MetricMechanism(1.0, 0.5, norm=norm)
        source = checks.Blocks()
        noise = np.array([m.release(4.0, source).value - 4.0 for _ in range(400)])
        checks.draws_fit(noise, stats.laplace(scale=2.0).cdf)


def test_lattice_of_the_largest_coordinate() -> None:
    """P(z) ∝ a^{max|zᵢ|} in two dimensions, small scale: chi-square of all cells at 1e-6."""
    source = checks.Blocks()
    draws = np.array([exact_reals.linf_laplace(2, 2, source) for _ in range(DRAWS)])
    z = np.arange(-60, 61)
    weights = np.exp(-np.maximum.outer(np.abs(z), np.abs(z)) / 2)
    counts = np.zeros(weights.shape)
    np.add.at(counts, (draws[:, 0] + 60, draws[:, 1] + 60), 1)
    checks.fits(counts.ravel(), (weights / weights.sum()).ravel())


@lru_cache
def l2_cell(i, j, scale):
    """P(rint(n) = (i, j)) for density ∝ e^{−‖n‖₂/scale} in the plane, by quadrature."""
    density = lambda y, x: math.exp(-math.hypot(x, y) / scale) / (2 * math.pi * scale**2)  # noqa: E731
    return integrate.dblquad(density, i - 0.5, i + 0.5, j - 0.5, j + 0.5, epsabs=1e-7, epsrel=1e-6)[0]


@pytest.mark.parametrize("bits", [6, 53])
def test_rounded_vectors_of_the_euclidean_norm(monkeypatch, bits) -> None:
    """Cells of the plane against quadrature, chi-square at 1e-6; with words of 6 bits most roundings ask for more."""
    monkeypatch.setattr(exact, "WORD", bits)
    if bits == 6:
        monkeypatch.setattr(exact_reals, "FINE", 1 << 3)
    refined = []
    whole = exact_reals.Reals.refine
    monkeypatch.setattr(exact_reals.Reals, "refine", lambda self, noise: refined.append(0) or whole(self, noise))
    source = checks.Blocks()
    draws = np.array([exact_reals.l2_laplace(1, 2, source) for _ in range(1000)])
    assert bool(refined) == (bits == 6)
    reach = 2
    quarter = {(i, j): l2_cell(i, j, 1) for i in range(reach + 1) for j in range(i + 1)}
    cells = [(i, j) for i in range(-reach, reach + 1) for j in range(-reach, reach + 1)]
    probabilities = [quarter[(max(abs(i), abs(j)), min(abs(i), abs(j)))] for i, j in cells]
    counts = [int(((draws[:, 0] == i) & (draws[:, 1] == j)).sum()) for i, j in cells]
    checks.fits([*counts, len(draws) - sum(counts)], [*probabilities, 1 - sum(probabilities)])


def test_two_worlds_of_vectors() -> None:
    """The likelihood-ratio attack on 400 draws: d(y, a) − d(y, b) is the loss, for neighbours S apart."""
    source = checks.Blocks()
    for norm, order, step in (("l1", 1, [1.0, 1.0]), ("l2", 2, [2**0.5, 2**0.5]), ("linf", np.inf, [2.0, 2.0])):
        m = MetricMechanism(2.0, 1.0, norm=norm, dimension=2)
        a, b = np.zeros(2), np.array(step)
        assert np.linalg.norm(b, ord=order) == pytest.approx(2.0)

        def loss(y, a=a, b=b, order=order):
            return np.linalg.norm(y - a, ord=order) - np.linalg.norm(y - b, ord=order)

        worlds = [np.array([loss(m.release(v, source).value) for _ in range(400)]) for v in (a, b)]
        checks.attack_stays_below(*worlds, m.event, cuts=(0.5, 0.8, 0.95))


def test_scales_pay_for_rounding_and_no_more() -> None:
    for norm, ones in (("l1", lambda p: p), ("l2", math.sqrt), ("linf", lambda p: 1.0)):
        for dimension in (1, 10, 1000):
            for epsilon in (0.05, 1.0, 20.0):
                m = MetricMechanism(1.7, epsilon, norm=norm, dimension=dimension)
                assert (1.7 / m.spacing + ones(dimension)) / m.steps <= epsilon * (1 + 1e-15)
                assert m.scale <= 1.7 / epsilon * (1 + 2.0**-10)
                assert m.event == acc.Pure(epsilon)
                steps = m.release(np.arange(dimension) / 3, FixedNoise(1)).value / m.spacing
                assert (steps == np.rint(steps)).all()


def test_long_vectors() -> None:
    for norm, dimension, epsilon in (("l1", 10**6, 0.01), ("l2", 10**4, 0.1), ("linf", 10**3, 0.1)):
        m = MetricMechanism(1.0, epsilon, norm=norm, dimension=dimension)
        noise = m.release(np.zeros(dimension), checks.Blocks()).value
        assert np.linalg.norm(noise, ord={"l1": 1, "l2": 2, "linf": np.inf}[norm]) <= m.error(1e-9)
        assert np.unique(noise).size > 0.99 * dimension


def test_error_statements_of_norms() -> None:
    for norm, order in (("l1", 1), ("l2", 2), ("linf", np.inf)):
        m = MetricMechanism(1.0, 1.0, norm=norm, dimension=4)
        source = FixedNoise(5)
        sizes = [np.linalg.norm(m.release(np.zeros(4), source).value, ord=order) for _ in range(300)]
        for beta in (0.5, 0.05):
            failed = sum(size > m.error(beta) for size in sizes)
            assert stats.binom.ppf(1e-6, 300, beta) <= failed <= stats.binom.isf(1e-6, 300, beta)


@pytest.mark.parametrize(
    "arguments",
    [
        {"sensitivity": 1.0, "epsilon": 1.0},
        {"sensitivity": 1.0, "epsilon": 1.0, "norm": "l3"},
        {"sensitivity": 1.0, "epsilon": 1.0, "norm": 2},
        {"sensitivity": 1.0, "epsilon": 1.0, "norm": "l1", "outputs": [0, 1]},
        {"sensitivity": 1.0, "epsilon": 1.0, "norm": "l1", "distance": abs},
        {"sensitivity": 1.0, "epsilon": 1.0, "outputs": [0, 1], "distance": [[0, 1], [1, 0]], "dimension": 2},
        {"sensitivity": 0.0, "epsilon": 1.0, "norm": "l1"},
        {"sensitivity": float("nan"), "epsilon": 1.0, "norm": "l1"},
        {"sensitivity": 1.0, "epsilon": 0.0, "norm": "l1"},
        {"sensitivity": 1.0, "epsilon": float("inf"), "norm": "l1"},
        {"sensitivity": 1.0, "epsilon": 1e-12, "norm": "l2"},
        {"sensitivity": 1.0, "epsilon": 1.0, "norm": "l1", "dimension": 0},
    ],
    ids=str,
)
def test_bad_arguments(arguments) -> None:
    with pytest.raises(ConfigError):
        MetricMechanism(**arguments)


def test_bad_values() -> None:
    for norm in ("l1", "l2", "linf"):
        for wrong in ([1.0], [1.0, float("nan")], [1.0, float("inf")], "ab", None):
            with pytest.raises(DataError):
                MetricMechanism(1.0, 1.0, norm=norm, dimension=2).release(wrong)
