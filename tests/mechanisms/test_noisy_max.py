"""Report noisy max: reference probabilities, draws, scales for both relations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import selection_checks as checks
from accounting_tables import rows

from dpml import accounting as acc
from dpml import errors
from dpml.mechanisms import ReportNoisyMax, noisy_max_probabilities

KINDS = ("laplace", "exponential", "gumbel")


@pytest.mark.parametrize("kind", KINDS)
def test_reference_probabilities(kind):
    for row in rows("mechanisms", f"report_noisy_max_{kind}"):
        scores = [float(text) for text in row["inputs"]["scores"]]
        assert checks.close(row, noisy_max_probabilities(scores, float(row["inputs"]["noise_scale"]), kind)), row


@pytest.mark.parametrize("name", ["laplace", "exponential noise", "gumbel"])
def test_draws(name):
    """Power against noise of half the scale (which costs 2ε): above 1 − 1e-9."""
    checks.check_sampler(name)
    kind = name.split()[0]
    assert checks.power(checks.race(kind, "1"), checks.race(kind, "0.5")) > 1 - 1e-9


def test_two_candidates_with_laplace_noise():
    """P(second wins) at distance t is (2 + t)/4 · e^{-t}: the difference of two Laplace numbers."""
    for t in (0.0, 0.5, 3.0, 20.0, 300.0):
        got = noisy_max_probabilities([0.0, -t], 1.0)
        expected = (2 + t) / 4 * math.exp(-t)
        assert got[1] == pytest.approx(expected, rel=1e-12)
        assert got.sum() == pytest.approx(1.0, abs=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_many_candidates_sum_to_one(kind):
    scores = np.random.default_rng(0).normal(size=120) * 4
    chances = noisy_max_probabilities(scores, 1.3, kind)
    assert chances.sum() == pytest.approx(1.0, abs=1e-12)
    assert (np.diff(chances[np.argsort(scores)]) >= 0).all()


def test_scales_of_counts():
    """Lap(1/ε) for counts under add_remove, Lap(2/ε) under replace_one."""
    assert ReportNoisyMax.for_counts(5, 0.5).noise_scale == 2.0
    assert ReportNoisyMax.for_counts(5, 0.5, "replace_one").noise_scale == 4.0
    assert ReportNoisyMax(5, 3.0, 0.5).noise_scale == 12.0
    assert ReportNoisyMax(5, 3.0, 0.5, monotonic=True).noise_scale == 6.0
    with pytest.raises(errors.ConfigError, match="neighboring_relation"):
        ReportNoisyMax.for_counts(5, 0.5, "swap")


def test_noise_of_add_remove_costs_up_to_twice_epsilon_under_replace_one():
    """The known fault, measured: scale 1/ε on counts where one falls and others rise."""
    mechanism = ReportNoisyMax.for_counts(3, 1.0, "add_remove")
    assert checks.largest_loss(mechanism, checks.count_changes("add_remove", 3), checks.worlds()) <= 1.0 + 1e-9
    assert checks.largest_loss(mechanism, checks.count_changes("replace_one", 3), checks.worlds()) > 1.9


@pytest.mark.parametrize("kind", KINDS)
def test_event_and_answer(kind):
    mechanism = ReportNoisyMax(["a", "b", "c"], 1.0, 2.0, distribution=kind)
    answer = mechanism.release([0.0, 1e5, 0.0])
    assert answer.event == acc.ReportNoisyMax(2.0, kind)
    assert answer.value == "b"  # an index or label and nothing else: no score, no gap
    assert set(vars(answer)) == {"value", "mechanism"}


def test_bad_arguments():
    with pytest.raises(errors.ConfigError, match=r"^distribution = 'normal'"):
        ReportNoisyMax(3, 1.0, 1.0, distribution="normal")
    with pytest.raises(errors.ConfigError, match=r"^distribution = "):
        noisy_max_probabilities([1.0], 1.0, "normal")
    for scale in (0.0, -1.0, math.nan):
        with pytest.raises(errors.ConfigError, match=r"^noise_scale = "):
            noisy_max_probabilities([1.0], scale)
    with pytest.raises(errors.DataError):
        noisy_max_probabilities([1.0, math.nan], 1.0)
