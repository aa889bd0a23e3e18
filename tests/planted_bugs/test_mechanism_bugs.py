"""Each privacy-critical line of the mechanisms, broken at one seam: the named check fails, and passes whole."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "mechanisms"))

import mechanism_checks as checks

from dpml.mechanisms import (
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    Grid,
    LaplaceMechanism,
    MetricMechanism,
    RandomizedResponseMechanism,
    ThresholdedHistogram,
    exact,
    exact_reals,
    gaussian,
    histogram,
    laplace,
    metric,
    randomized_response,
)


def caught(check, *arguments):
    with pytest.raises(AssertionError):
        check(*arguments)


def cached(monkeypatch, kind, name, function):
    """Put ``function`` in the place of a cached property."""
    replacement = cached_property(function)
    replacement.__set_name__(kind, name)
    monkeypatch.setattr(kind, name, replacement)


# -- Laplace ------------------------------------------------------------------------------------------------------
def test_scale_is_sensitivity_times_epsilon(monkeypatch):
    checks.laplace_two_worlds(0.5)
    cached(monkeypatch, LaplaceMechanism, "steps", lambda self: math.ceil(self.moved_steps * self.epsilon))
    caught(checks.laplace_two_worlds, 0.5)


def test_laplace_scale_too_small_for_the_sensitivity(monkeypatch):
    checks.laplace_two_worlds()
    whole = LaplaceMechanism.steps.func
    cached(monkeypatch, LaplaceMechanism, "steps", lambda self: whole(self) * 2 // 3)
    caught(checks.laplace_two_worlds)


def test_rounding_of_the_value_not_paid_for(monkeypatch):
    checks.laplace_rounding_is_paid()
    checks.laplace_rounding_is_paid(300)
    cached(monkeypatch, LaplaceMechanism, "moved_steps", lambda self: math.floor(self.sensitivity / self.spacing))
    caught(checks.laplace_rounding_is_paid)
    caught(checks.laplace_rounding_is_paid, 300)


def test_one_draw_for_all_coordinates(monkeypatch):
    for make in (
        lambda n: LaplaceMechanism(1.0, 1.0, dimension=n),
        lambda n: GaussianMechanism(1.0, rho=0.5, dimension=n),
        lambda n: MetricMechanism(1.0, 1.0, norm="l1", dimension=n),
    ):
        checks.coordinates_are_independent(make)
        with monkeypatch.context() as broken:
            for module, name in ((exact, "discrete_laplace"), (exact_reals, "rounded_gaussian")):
                whole = getattr(module, name)
                broken.setattr(
                    module, name, lambda scale, size, noise, whole=whole: np.repeat(whole(scale, 1, noise), size)
                )
            caught(checks.coordinates_are_independent, make)


def test_value_released_beside_the_grid(monkeypatch):
    """The value is added unrounded: low bits tell it."""

    def on_the_grid():
        m = LaplaceMechanism(1.0, 0.5)
        steps = np.array([m.release(1 / 3).value / m.spacing for _ in range(5)])
        assert (steps == np.rint(steps)).all()

    on_the_grid()
    whole = LaplaceMechanism.release

    def leaking(self, value, noise=None):
        answer = whole(self, 0.0, noise)
        return type(answer)(answer.value + value, self)

    monkeypatch.setattr(LaplaceMechanism, "release", leaking)
    caught(on_the_grid)


# -- discrete noise -----------------------------------------------------------------------------------------------
def test_zero_drawn_twice_as_often(monkeypatch):
    def fits():
        draws = exact.discrete_laplace(2, 20_000, checks.Blocks())
        checks.whole_numbers_fit(draws, lambda z: np.exp(-np.abs(z) / 2))

    fits()
    monkeypatch.setattr(
        exact, "discrete_laplace", lambda s, n, noise: exact.geometric_steps(s, n, noise) * exact.signs(n, noise)
    )
    caught(fits)


def test_discrete_scale_rounded_to_the_cheap_side(monkeypatch):
    checks.discrete_mechanisms_hold()
    cached(
        monkeypatch,
        DiscreteLaplaceMechanism,
        "exact_scale",
        lambda self: Fraction(math.floor(self.sensitivity / self.epsilon * 4) - 1, 4),
    )
    monkeypatch.setattr(
        DiscreteLaplaceMechanism, "event_under", lambda self, relation: self.event
    )  # else the event would follow the scale
    caught(checks.discrete_mechanisms_hold)


def test_event_of_a_count_not_halved_under_replace_one(monkeypatch):
    """An odd sensitivity is charged as half of it, rounded down."""
    checks.discrete_mechanisms_hold()
    monkeypatch.setattr(
        DiscreteLaplaceMechanism,
        "event_under",
        lambda self, relation: checks.acc.DiscreteLaplace(
            self.scale, max(1, self.sensitivity // (2 if relation == "replace_one" else 1))
        ),
    )
    caught(checks.discrete_mechanisms_hold)


@pytest.mark.parametrize("won", [True, False])
def test_comparisons_that_whole_steps_do_not_decide_are_guessed(monkeypatch, won):
    """A coin of x = (j + f)/std that ignores f, as if the normal number were a whole one."""

    def fits():
        draws = exact_reals.rounded_gaussian(3, 40_000, checks.Blocks())
        cdf = checks.stats.norm(scale=3).cdf
        checks.whole_numbers_fit(draws, lambda z: cdf(z + 0.5) - cdf(z - 0.5))

    fits()

    def coarse(self, index, noise):
        drawn = exact.below(self.scale, index.size, noise)
        return drawn <= self.whole[index] if won else drawn < self.whole[index]

    monkeypatch.setattr(exact_reals.Points, "coins", coarse)
    caught(fits)


# -- Gaussian -----------------------------------------------------------------------------------------------------
def test_gaussian_rounding_not_paid_for(monkeypatch):
    checks.gaussian_rounding_is_paid()
    cached(monkeypatch, GaussianMechanism, "grid", lambda self: Grid(self.sensitivity, self.dimension))
    caught(checks.gaussian_rounding_is_paid)


def test_gaussian_noise_is_the_multiplier_without_the_sensitivity(monkeypatch):
    checks.gaussian_two_worlds()
    cached(monkeypatch, GaussianMechanism, "steps", lambda self: math.ceil(self.multiplier / self.grid.spacing))
    monkeypatch.setattr(GaussianMechanism, "event", property(lambda self: checks.acc.GDP(1 / self.multiplier)))
    caught(checks.gaussian_two_worlds)


def test_classical_noise_beyond_its_limit(monkeypatch):
    def refused():
        with pytest.raises(ValueError, match="below 1"):
            GaussianMechanism(1.0, epsilon=20.0, delta=1e-5, classical=True)

    def noticed():
        try:
            refused()
        except BaseException as error:
            raise AssertionError from error

    refused()
    monkeypatch.setattr(
        gaussian,
        "classical_gaussian_noise_multiplier",
        lambda epsilon, delta: math.sqrt(2 * math.log(1.25 / delta)) / epsilon,
    )
    caught(noticed)
    wrong = GaussianMechanism(1.0, epsilon=20.0, delta=1e-5, classical=True)
    assert checks.acc.epsilon(wrong.event, 1e-5) > 20.0, "and the accountant, which charges the noise, says why"


# -- the general metric -------------------------------------------------------------------------------------------
def test_two_missing_where_the_normaliser_depends_on_the_value(monkeypatch):
    checks.metric_mechanism_holds()
    monkeypatch.setattr(MetricMechanism, "factor", property(lambda self: 1))
    caught(checks.metric_mechanism_holds)


def test_two_doubled(monkeypatch):
    monkeypatch.setattr(MetricMechanism, "factor", property(lambda self: 4))
    caught(checks.metric_mechanism_holds)


def test_two_left_in_where_it_is_not_needed(monkeypatch):
    monkeypatch.setattr(MetricMechanism, "factor", property(lambda self: 2))
    caught(checks.metric_mechanism_holds)


def test_distances_that_break_the_triangle_inequality_let_through(monkeypatch):
    """Squared distances: neighbours one apart move another output's distance by more than one."""

    def squares():
        try:
            m = MetricMechanism(1.0, 1.0, outputs=range(6), distance=lambda a, b: float((a - b) ** 2))
        except ValueError:
            return
        assert checks.metric_ratios(m) <= 1.0

    squares()
    monkeypatch.setattr(metric, "TRIANGLE_SLACK", 1.0)
    monkeypatch.setattr(MetricMechanism, "_rate", property(lambda self: Fraction(1, 2)))
    caught(squares)


def test_choice_of_an_output_with_the_wrong_sign(monkeypatch):
    def fits():
        source = checks.Blocks()
        draws = [exact.exp_choice([Fraction(0), Fraction(1), Fraction(2)], source) for _ in range(2000)]
        weights = np.exp(-np.arange(3.0))
        checks.fits(np.bincount(draws, minlength=3), weights / weights.sum())

    fits()
    whole = exact._exp_of_fractions
    monkeypatch.setattr(
        exact, "_exp_of_fractions", lambda numbers, below, noise: whole(2 * below - numbers, below, noise)
    )
    caught(fits)


# -- randomized response ------------------------------------------------------------------------------------------
def test_truth_kept_with_p_plus_one_minus_p_times_p(monkeypatch):
    """The coin "uniform?" is thrown twice, and only two heads replace the truth."""
    checks.response_rates_hold()
    whole = exact.below

    def twice(limit, size, noise):
        first = whole(limit, size, noise)
        return np.maximum(first, whole(limit, size, noise)) if limit == randomized_response.COIN else first

    monkeypatch.setattr(exact, "below", twice)
    caught(checks.response_rates_hold)


def test_keep_probability_taken_for_the_probability_of_the_truth(monkeypatch):
    """e^ε/(e^ε + k − 1) is how often the truth is reported; kept with that, it is reported more often."""
    cached(
        monkeypatch,
        RandomizedResponseMechanism,
        "uniform_coin",
        lambda self: int(randomized_response.COIN * (1 - math.exp(self.epsilon) / (math.exp(self.epsilon) + 2))),
    )
    caught(checks.response_rates_hold)


def test_estimator_left_biased(monkeypatch):
    checks.response_estimator_is_unbiased()
    monkeypatch.setattr(
        RandomizedResponseMechanism,
        "estimate",
        lambda self, reports: np.bincount(self._codes(reports), minlength=2) / self.records,
    )
    caught(checks.response_estimator_is_unbiased)


# -- histogram of unknown keys ------------------------------------------------------------------------------------
def test_mass_at_the_threshold_missing(monkeypatch):
    checks.histogram_delta_is_covered()
    whole = histogram._upper_tail
    monkeypatch.setattr(histogram, "_upper_tail", lambda counts, least: whole(counts, least + 1))
    caught(checks.histogram_delta_is_covered)
    caught(checks.histogram_lists_as_charged)


def test_one_new_key_charged_where_a_record_has_several(monkeypatch):
    whole = ThresholdedHistogram.delta_at
    monkeypatch.setattr(
        ThresholdedHistogram, "delta_at", lambda self, at: 1 - (1 - whole(self, at)) ** (1 / self.changes)
    )
    caught(checks.histogram_delta_is_covered)


def test_keys_listed_in_the_order_of_the_data(monkeypatch):
    def order_tells_nothing():
        m = ThresholdedHistogram(delta=1e-3, epsilon=1.0)
        counts = {"z": 500, "a": 500, "m": 500}
        assert list(m.release(counts).value) == list(m.release(dict(reversed(counts.items()))).value)

    order_tells_nothing()
    monkeypatch.setattr(histogram, "_order", lambda key: ("", ""))
    caught(order_tells_nothing)


def test_value_beyond_the_limit_wraps_around(monkeypatch):
    """Without saturation a huge value changes its sign, and neighbours get far apart."""

    def neighbours_stay_near():
        m = LaplaceMechanism(1.0, 1.0)
        g = m.spacing
        for value in (2.0**62 * g, 2.0**63 * g, 1e300):
            with np.errstate(all="ignore"):
                a, b = laplace.to_whole_steps(np.array([value, value + 1.0]), g)
            assert abs(int(a) - int(b)) <= m.moved_steps
            assert a > 0

    neighbours_stay_near()
    monkeypatch.setattr(laplace, "to_whole_steps", lambda values, spacing: np.rint(values / spacing).astype(np.int64))
    caught(neighbours_stay_near)
