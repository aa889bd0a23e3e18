"""Values and ends of the exact accountant that seeded mutants moved (``experiments/mutants.py``)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import pytest

from dpml import accounting as acc
from dpml.accounting import closed_forms, exact

RELATION = "add_remove"


def gaussian_delta(sigma: float, epsilon: float) -> Any:
    """Balle & Wang 2018, Theorem 8, at 40 digits."""
    with mpmath.workdps(40):
        mu, e = 1 / mpmath.mpf(sigma), mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)


def mixed_delta(statement: float, sigma: float, epsilon: float) -> Any:
    """Of a (0, d) statement beside one Gaussian: with probability d everything is told, else the Gaussian's."""
    with mpmath.workdps(40):
        d = mpmath.mpf(statement)
        return d + (1 - d) * gaussian_delta(sigma, epsilon)


MIXED = [(1e-3, 1.0, 1.0), (1e-9, 2.0, 0.5), (0.25, 0.7, 3.0), (1e-5, 4.0, 0.1)]


@pytest.mark.parametrize(("statement", "sigma", "epsilon"), MIXED)
def test_a_statement_beside_a_gaussian_from_both_sides(statement: float, sigma: float, epsilon: float) -> None:
    event = acc.Composed((acc.EpsilonDelta(0.0, statement), acc.Gaussian(sigma)))
    truth = mixed_delta(statement, sigma, epsilon)
    low, high = exact.delta_interval(event, epsilon, RELATION)
    assert truth * (1 - mpmath.mpf("1e-9")) <= low <= truth <= high <= truth * (1 + mpmath.mpf("1e-9"))
    assert exact.delta(event, epsilon, RELATION) == high
    delta = float(truth)
    low, high = exact.interval(event, delta, RELATION)
    assert epsilon * (1 - 1e-6) <= low < high <= epsilon * (1 + 1e-6)
    assert mixed_delta(statement, sigma, low) >= delta >= mixed_delta(statement, sigma, high)
    assert exact.epsilon(event, delta, RELATION) == high


@pytest.mark.parametrize(("sigma", "epsilon"), [(1.0, 1.0), (3.0, 0.2), (0.5, 8.0)])
def test_one_gaussian_from_both_sides(sigma: float, epsilon: float) -> None:
    truth = gaussian_delta(sigma, epsilon)
    low, high = exact.delta_interval(acc.Gaussian(sigma), epsilon, RELATION)
    assert truth * (1 - mpmath.mpf("1e-9")) <= low <= truth <= high <= truth * (1 + mpmath.mpf("1e-9"))


@pytest.mark.parametrize(("sigma", "delta"), [(1.0, 1e-5), (3.0, 1e-9), (0.6, 0.01)])
def test_the_lower_end_of_one_release_is_as_far_off_as_its_rounding(sigma: float, delta: float) -> None:
    """δ at the lower end is above δ by 1.5 to 3.5 times the 1e-11 that rounding may add."""
    low, _ = exact.interval(acc.Gaussian(sigma), delta, RELATION)
    assert 1.5e-11 <= float(gaussian_delta(sigma, low) / mpmath.mpf(delta) - 1) <= 3.5e-11


def test_what_tells_nothing_and_what_tells_everything() -> None:
    nothing, everything = acc.Composed(()), acc.Composed((acc.EpsilonDelta(0.0, 1.0), acc.Gaussian(1.0)))
    assert exact.delta_interval(nothing, 0.5, RELATION) == exact.interval(nothing, 0.5, RELATION) == (0.0, 0.0)
    assert exact.delta_interval(everything, 0.5, RELATION) == (1.0, 1.0)
    assert exact.interval(everything, 0.5, RELATION) == (math.inf, math.inf)
    one_row = acc.RandomRow(1)  # accounted as any (0, 1) statement: nothing is known from below
    assert exact.delta_interval(one_row, 0.5, RELATION) == (0.0, 1.0)
    assert exact.interval(one_row, 0.5, RELATION) == (0.0, math.inf)


def test_delta_is_a_probability() -> None:
    event = acc.Composed((acc.EpsilonDelta(0.0, 0.5), acc.Gaussian(0.05)))
    low, high = exact.delta_interval(event, 0.0, RELATION)
    assert 0.5 <= low <= high <= 1.0
    assert high == pytest.approx(1.0, abs=1e-9)


def test_beyond_the_largest_loss_delta_is_zero_from_below() -> None:
    """Ten Laplace releases of ε = 1 cannot lose more than 10."""
    low, high = exact.delta_interval(acc.SelfComposed(acc.Laplace(1.0), 10), 1e4, RELATION)
    assert low == 0.0
    assert high < 1e-300


def test_a_group_of_one_is_no_group() -> None:
    parts = (acc.EpsilonDelta(0.5, 1e-4), acc.Gaussian(2.0))
    alone = exact.interval(acc.Composed(parts), 1e-3, RELATION)
    grouped = exact.interval(acc.Composed((acc.Group(parts[0], 1), parts[1])), 1e-3, RELATION)
    assert grouped == alone
    assert alone[0] > 0.5
    assert exact.interval(acc.Composed((acc.Group(parts[0], 2), parts[1])), 1e-3, RELATION)[0] == 0.0


def test_several_at_once_are_two_or_more_of_one_kind() -> None:
    events = [acc.SelfComposed(acc.PoissonSampled(0.1, acc.Gaussian(1.0)), count) for count in (20, 40)]
    found = exact.epsilons(events, 1e-5, RELATION)
    assert found is not None
    for value, event in zip(found, events, strict=True):
        assert value == pytest.approx(exact.epsilon(event, 1e-5, RELATION), rel=1e-9)
    assert exact.epsilons(events[:1], 1e-5, RELATION) is None
    assert exact.epsilons([events[0], acc.SelfComposed(acc.Laplace(1.0), 40)], 1e-5, RELATION) is None
    assert exact.epsilons(events[::-1], 1e-5, RELATION) is None  # counts that fall


def test_the_mass_of_infinite_losses_is_rounded_up() -> None:
    """1 − (1 − d)^T ≤ what is charged ≤ that and 1e-14 of it, in exact fractions."""
    for k in range(60):
        d, times = (k + 1) / 997 * 10.0 ** -(k % 5), 1 + k % 7
        truth = 1 - (1 - Fraction(d)) ** times
        found = Fraction(exact._infinite_mass({acc.EpsilonDelta(0.0, d): times}))
        assert truth <= found <= truth * (1 + Fraction(1, 10**14))


def test_the_lower_end_is_checked_wherever_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed form that is said to be off by 1e-4: a first guess that is too high is moved down until δ says so."""
    atom, delta, asked = acc.Gaussian(1.0), 1e-5, []
    high = closed_forms.epsilon(atom, delta, RELATION)

    def watched(event: Any, epsilon: float, relation: str) -> float:
        asked.append(epsilon)
        assert len(asked) < 100, "it goes on for ever"
        return float(gaussian_delta(1.0, epsilon))

    monkeypatch.setattr(closed_forms, "slack", lambda *_: 1e-4)
    monkeypatch.setattr(closed_forms, "epsilon", lambda *_: high)
    monkeypatch.setattr(closed_forms, "delta", watched)
    low = exact._single_low(atom, delta, high, RELATION)
    assert high * (1 - 1e-3) < low < high
    assert gaussian_delta(1.0, low) >= delta * (1 + 1.5e-4)


def test_where_no_lower_end_is_found_it_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def nothing(event: Any, epsilon: float, relation: str) -> float:
        asked.append(epsilon)
        assert len(asked) < 100, "it goes on for ever"
        return 0.0

    monkeypatch.setattr(closed_forms, "delta", nothing)
    assert exact._single_low(acc.Gaussian(1.0), 1e-5, 3.0, RELATION) == 0.0


def test_next_to_one_nothing_is_known_from_below() -> None:
    """δ(1 + 3e-11) rounds to 1 for some of these: no ε goes with that, and the lower end must stay a number >= 0."""
    delta, met = 1 / (1 + 3e-11), 0
    for _ in range(6):
        delta = math.nextafter(delta, 0.0)
    for _ in range(12):
        delta = math.nextafter(delta, 1.0)
        met += delta * (1 + 3 * 1e-11) == 1.0
        for event in (acc.Gaussian(0.05), acc.Laplace(0.01)):
            low, high = exact.interval(event, delta, RELATION)
            assert 0.0 <= low <= high
            assert high > 0.0
    assert met > 0


def test_what_a_statement_leaves_of_delta_is_rounded_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contour sum is never asked for more than δ − d, in exact numbers."""
    solve, asked = exact.contour.solve, []

    def watched(parts: Any, log_delta: float, **options: Any) -> tuple[float, float]:
        asked.append(log_delta)
        return solve(parts, log_delta, **options)

    monkeypatch.setattr(exact.contour, "solve", watched)
    for statement, delta in [(1e-4, 0.3), (0.07, 0.51), (0.2, 0.9), (1e-9, 0.61), (0.013, 0.77)]:
        exact.interval(acc.Composed((acc.EpsilonDelta(0.0, statement), acc.Gaussian(0.5))), delta, RELATION)
        left = Fraction(delta) - Fraction(statement)
        with mpmath.workdps(40):
            found, left = mpmath.exp(asked.pop()), mpmath.mpf(left.numerator) / left.denominator
            assert left * (1 - mpmath.mpf("1e-14")) <= found <= left
    assert not asked
