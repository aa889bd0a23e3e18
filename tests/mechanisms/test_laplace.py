"""The Laplace mechanism: closed forms, the grid, what rounding costs, its noise and two worlds."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from pathlib import Path

import mechanism_checks as checks
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from accounting_tables import close, inputs, rows

from dpml import accounting as acc
from dpml.accounting.sample_size import required_n
from dpml.errors import ConfigError
from dpml.mechanisms import FixedNoise, LaplaceMechanism, laplace


def test_rows_of_tails_and_histogram_errors() -> None:
    for row in rows("mechanisms", "laplace_tail"):
        given = inputs(row)
        assert close(row, laplace.laplace_tail(given["scale"], given["threshold"])), row["id"]
    for form in ("exact", "union"):
        for row in rows("mechanisms", f"laplace_max_tail_{form}"):
            given = inputs(row)
            buckets = int(given["buckets"])
            got = laplace.laplace_max_tail(buckets, given["scale"], given["threshold"], union=form == "union")
            assert close(row, got), row["id"]
        for row in rows("mechanisms", f"histogram_max_error_{form}"):
            given = inputs(row)
            scale, beta = given["l1_sensitivity"] / given["epsilon"], given["failure_probability"]
            got = laplace.laplace_max_error(int(given["buckets"]), scale, beta, union=form == "union")
            assert close(row, got), row["id"]


def test_rows_of_sample_sizes_and_kmeans() -> None:
    for row in rows("mechanisms", "sample_size_laplace_mean"):
        given = inputs(row)
        assert close(row, laplace.sample_size_laplace_mean(given["epsilon"], given["alpha"])), row["id"]
    for row in rows("mechanisms", "sample_size_erm"):
        given = inputs(row)
        got = required_n(
            n_features=given["dimension"], epsilon=given["epsilon"], delta=given["delta"], excess_risk=given["alpha"]
        )
        assert close(row, got), row["id"]
    for row in rows("mechanisms", "kmeans_laplace_scale"):
        given = inputs(row)
        assert close(row, laplace.kmeans_laplace_scale(given["epsilon"], int(given["iterations"]))), row["id"]


@pytest.mark.parametrize("sensitivity", [1.0, 0.3, 7.25, 2.0**-300, 2.0**300])
@pytest.mark.parametrize("epsilon", [0.01, 0.7, 3.0, 100.0])
@pytest.mark.parametrize("dimension", [1, 5, 1000, 10**6])
def test_scale_and_grid(sensitivity, epsilon, dimension) -> None:
    m = LaplaceMechanism(sensitivity, epsilon, dimension=dimension)
    g = m.spacing
    assert math.frexp(g)[0] == 0.5, "a power of two"
    assert g <= sensitivity * 2.0**-20
    assert g <= 2.0**-20 * sensitivity / epsilon
    ideal = Fraction(sensitivity) / Fraction(epsilon)
    raised = Fraction(m.scale) / ideal - 1
    assert 0 < raised < Fraction(1, 2**11 if dimension > 256 else 2**10 if dimension > 5 else 2**16)
    # p roundings move the L1 distance by at most p steps; the noise covers them
    assert (Fraction(sensitivity) / Fraction(g) + dimension) / m.steps <= Fraction(epsilon)
    assert m.event == acc.Pure(epsilon)
    for relation in acc.RELATIONS:
        event = m.event_under(relation)
        assert acc.epsilon(event, 0.0, neighboring_relation=relation) <= epsilon * (1 + 1e-12)
        assert acc.epsilon(event, 0.0, neighboring_relation=relation) >= epsilon * (1 - 2.0**-10)


def test_answers_are_on_the_grid_whatever_the_value() -> None:
    m = LaplaceMechanism(1.0, 0.5, dimension=1000)
    rng = np.random.default_rng(0)
    for value in (np.zeros(1000), rng.normal(size=1000), rng.normal(size=1000) * 1e6, -np.zeros(1000)):
        steps = m.release(value, FixedNoise(1)).value / m.spacing
        assert (steps == np.rint(steps)).all()
        assert not np.signbit(steps[steps == 0]).any()


def test_values_beyond_the_limit_are_moved_to_it() -> None:
    m = LaplaceMechanism(1.0, 1.0)
    for value in (1e300, m.limit * 4):
        assert m.release(value, FixedNoise(0)).value == pytest.approx(m.limit, rel=1e-9)
        assert m.release(-value, FixedNoise(0)).value == pytest.approx(-m.limit, rel=1e-9)
    assert LaplaceMechanism(2.0**-400, 1.0).release(1e308).value == pytest.approx(2.0**61 * 2.0**-420)


def test_rounding_is_paid_for() -> None:
    for dimension in (1, 2, 5, 300, 5000):
        for epsilon in (0.1, 0.7, 5.0):
            checks.laplace_rounding_is_paid(dimension, epsilon)


def test_two_worlds_and_the_noise_of_single_releases() -> None:
    checks.laplace_two_worlds()


def test_a_fault_of_one_part_in_ten_is_seen() -> None:
    """Power: a scale that is 10 % too small moves the distribution function by 0.018; KS at 1e-6 sees 0.0135."""
    noisy = LaplaceMechanism(1.0, 1.0, dimension=40_000).release(np.zeros(40_000), FixedNoise(11)).value
    checks.draws_fit(noisy, checks.stats.laplace.cdf)
    with pytest.raises(AssertionError):
        checks.draws_fit(0.9 * noisy, checks.stats.laplace.cdf)


def test_coordinates_are_independent() -> None:
    checks.coordinates_are_independent(lambda n: LaplaceMechanism(1.0, 1.0, dimension=n))


def test_error_statement() -> None:
    checks.error_statement_holds(LaplaceMechanism(1.0, 0.5), 12.0)
    checks.error_statement_holds(LaplaceMechanism(1.0, 0.5, dimension=30), np.arange(30.0))


def test_discrete_laplace_is_covered_by_the_continuous_one() -> None:
    """Docs, section 3, exactly: shift m at scale t against continuous Laplace of shift m + 2, between kinks too."""
    for scale in (1, 3, 10):
        for shift in (1, 2, 7):
            reach = 80 * scale
            z = np.arange(-reach, reach + shift + 1, dtype=float)
            p = np.exp(-np.abs(z) / scale) * math.tanh(0.5 / scale)
            q = np.exp(-np.abs(z - shift) / scale) * math.tanh(0.5 / scale)
            for epsilon in np.linspace(0, shift / scale, 41):
                reached = np.maximum(p - math.exp(epsilon) * q, 0).sum()
                allowed = -math.expm1((epsilon - (shift + 2) / scale) / 2)
                assert reached <= allowed + 1e-12
            between = np.linspace(0, shift / scale, 41)[1:-1]
            plain = [
                np.maximum(p - math.exp(e) * q, 0).sum() > -math.expm1((e - shift / scale) / 2) + 1e-12 for e in between
            ]
            assert any(plain), "without the two steps it would not hold between the kinks"


def test_several_coordinates_are_covered_by_one() -> None:
    """Docs, section 3, exactly: independent discrete Laplace numbers with shifts m₁, m₂ against one with their sum."""
    scale = 2.0
    z = np.arange(-60, 70, dtype=float)

    def pair(shift):
        return np.exp(-np.abs(z) / scale), np.exp(-np.abs(z - shift) / scale)

    def product(parts):
        out = parts[0]
        for part in parts[1:]:
            out = np.multiply.outer(out, part)
        return out.ravel() / out.sum()

    for shifts in ((1, 1), (2, 1), (3, 4)):
        pairs = [pair(shift) for shift in shifts]
        many = product([p for p, _ in pairs]), product([q for _, q in pairs])
        one = pair(sum(shifts))
        one = one[0] / one[0].sum(), one[1] / one[1].sum()
        for epsilon in np.linspace(0, sum(shifts) / scale, 15):
            reached = np.maximum(many[0] - math.exp(epsilon) * many[1], 0).sum()
            assert reached <= np.maximum(one[0] - math.exp(epsilon) * one[1], 0).sum() + 1e-12


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"sensitivity": 0.0, "epsilon": 1.0}, "sensitivity"),
        ({"sensitivity": -1.0, "epsilon": 1.0}, "sensitivity"),
        ({"sensitivity": float("nan"), "epsilon": 1.0}, "sensitivity"),
        ({"sensitivity": float("inf"), "epsilon": 1.0}, "sensitivity"),
        ({"sensitivity": "1", "epsilon": 1.0}, "sensitivity"),
        ({"sensitivity": 1.0, "epsilon": 0.0}, "epsilon"),
        ({"sensitivity": 1.0, "epsilon": -1.0}, "epsilon"),
        ({"sensitivity": 1.0, "epsilon": float("inf")}, "epsilon"),
        ({"sensitivity": 1.0, "epsilon": None}, "epsilon"),
        ({"sensitivity": 1.0, "epsilon": 1e-15}, "epsilon"),
        ({"sensitivity": 1.0, "epsilon": 1.0, "dimension": 0}, "dimension"),
        ({"sensitivity": 1.0, "epsilon": 1.0, "dimension": 2.5}, "dimension"),
        ({"sensitivity": 1.0, "epsilon": 1.0, "dimension": 2**27}, "dimension"),
    ],
)
def test_bad_arguments(arguments, name) -> None:
    with pytest.raises(ConfigError, match=name):
        LaplaceMechanism(**arguments)


@pytest.mark.parametrize("call", [
    lambda: laplace.laplace_tail(0.0, 1.0),
    lambda: laplace.laplace_tail(1.0, -1.0),
    lambda: laplace.laplace_max_error(0, 1.0, 0.05),
    lambda: laplace.laplace_max_error(1, 1.0, 1.0),
    lambda: laplace.sample_size_laplace_mean(0.0, 0.1),
    lambda: laplace.sample_size_laplace_mean(1.0, 0.0),
    lambda: laplace.kmeans_laplace_scale(1.0, 0),
])  # fmt: skip
def test_bad_arguments_of_closed_forms(call) -> None:
    with pytest.raises(ConfigError):
        call()


def test_closed_forms_at_their_edges() -> None:
    assert laplace.laplace_max_tail(5, 1.0, 0.0) == 1.0
    assert laplace.laplace_max_tail(5, 1.0, 0.0, union=True) == 5.0
    assert laplace.laplace_max_tail(10**6, 1.0, 100.0) == pytest.approx(1e6 * math.exp(-100), rel=1e-9)
    error = laplace.laplace_max_error(1000, 2.0, 0.05)
    assert laplace.laplace_max_tail(1000, 2.0, error) == pytest.approx(0.05, rel=1e-12)
