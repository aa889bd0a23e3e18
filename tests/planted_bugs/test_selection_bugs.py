"""Each privacy-critical line of the selection mechanisms, broken on purpose: the check fails, and passes when whole."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "mechanisms"))

import selection_checks as checks

from dpml.mechanisms import permute_and_flip, quantiles, races, selection, sparse_vector

STREAM = sparse_vector.AboveThreshold


def caught(check, *arguments):
    """The check finds the fault (a fault that crashes would not count)."""
    with pytest.raises(AssertionError):
        check(*arguments)


@pytest.mark.parametrize("name", ["laplace", "exponential noise", "gumbel", "exponential", "permute_and_flip"])
def test_scale_of_add_remove_counts_under_replace_one(name, monkeypatch):
    """Lap(1/ε) noisy max under replace_one, and its like for the others."""
    checks.check_counts_cost(name, "replace_one")
    monkeypatch.setattr(selection, "check_relation", lambda relation: "add_remove")
    caught(checks.check_counts_cost, name, "replace_one")


@pytest.mark.parametrize("name", ["exponential", "laplace", "permute_and_flip"])
def test_factor_of_monotonic_scores_for_all(name, monkeypatch):
    """e^{ε·u/Δ} where e^{ε·u/(2Δ)} is due: twice ε."""
    checks.check_general_cost(name)
    monkeypatch.setattr(selection, "score_range", lambda sensitivity, monotonic: Fraction(sensitivity))
    caught(checks.check_general_cost, name)
    caught(checks.check_counts_cost, name, "replace_one")


def test_sampler_with_twice_the_factor(monkeypatch):
    """The stated probabilities are right, the draw is not: the check looks at draws, too."""
    checks.check_sampler("exponential")
    honest = races.winner
    monkeypatch.setattr(races, "winner", lambda kind, u, factor, *rest: honest(kind, u, 2 * factor, *rest))
    caught(checks.check_sampler, "exponential")


@pytest.mark.parametrize("name", ["laplace", "exponential"])
def test_the_smallest_wins(name, monkeypatch):
    honest = races.winner
    monkeypatch.setattr(races, "winner", lambda kind, u, *rest: honest(kind, -u, *rest))
    caught(checks.check_sampler, name)


def test_another_noise_than_the_one_named(monkeypatch):
    """Exponential noise for Laplace (as private, but its probabilities are others)."""
    honest = races.winner
    monkeypatch.setattr(races, "winner", lambda _, *rest: honest("exponential", *rest))
    caught(checks.check_sampler, "laplace")


def test_no_noise(monkeypatch):
    monkeypatch.setattr(races, "winner", lambda kind, u, *rest: int(np.argmax(u)))
    caught(checks.check_sampler, "laplace")


def test_exponentials_that_underflow(monkeypatch):
    """Weights e^{u/b} without taking the best away: 0/0."""
    checks.check_scores_far_apart("exponential")

    def naive(scores, scale, weights=None):
        with np.errstate(all="ignore"):
            powers = np.exp(scores / scale)
            return powers / powers.sum()

    monkeypatch.setattr(selection, "softmax", naive)
    caught(checks.check_scores_far_apart, "exponential")


def test_tail_cut_at_53_bits(monkeypatch):
    """Candidates far below the best never win: noise of 53 bits decides."""
    import test_races

    test_races.test_a_candidate_far_below_wins_as_often_as_it_should("gumbel")

    def cut(kind, scores, factor, source, weights=None):
        uppers = (races.digits(scores.size, source) + 0.5) * 2.0**-53
        return int(np.argmax(scores * float(factor) + races.quantile(kind, uppers)))

    monkeypatch.setattr(races, "winner", cut)
    caught(test_races.test_a_candidate_far_below_wins_as_often_as_it_should, "gumbel")


def test_flip_without_permute(monkeypatch):
    checks.check_sampler("permute_and_flip")
    monkeypatch.setattr(races, "permutation", lambda size, source: np.arange(size))
    caught(checks.check_sampler, "permute_and_flip")


def test_permute_without_flip(monkeypatch):
    monkeypatch.setattr(races, "coins", lambda u, factor, source: np.ones(u.size, dtype=bool))
    caught(checks.check_sampler, "permute_and_flip")


def test_probabilities_of_permute_and_flip_without_the_order(monkeypatch):
    """The exponential mechanism's probabilities in their place."""
    import test_permute_and_flip

    test_permute_and_flip.test_reference_probabilities()
    monkeypatch.setattr(permute_and_flip, "race_probabilities", selection.softmax)
    caught(test_permute_and_flip.test_reference_probabilities)


# --- sparse vector ------------------------------------------------------------------------------------------------


def patch_scale(monkeypatch, name, change):
    honest = getattr(STREAM, name).func
    monkeypatch.setattr(STREAM, name, property(lambda self: change(self, honest(self))))


def test_no_noise_on_queries(monkeypatch):
    """Lyu, Su & Li's Algorithm 5: no ε at all."""
    checks.check_stream_sampler("two", 2000)
    honest = sparse_vector.noise_steps
    monkeypatch.setattr(
        sparse_vector,
        "noise_steps",
        lambda scale, size, noise: [0] * size if size > 1 else honest(scale, size, noise),
    )
    caught(checks.check_stream_sampler, "two", 2000)


def test_one_noise_for_all_queries(monkeypatch):
    honest = sparse_vector.noise_steps
    monkeypatch.setattr(sparse_vector, "noise_steps", lambda scale, size, noise: honest(scale, 1, noise) * size)
    caught(checks.check_stream_sampler, "two", 2000)


def test_query_noise_without_the_number_of_positives(monkeypatch):
    """Their Algorithm 4: Lap(2Δ/ε₂) for c positive answers costs ε₁ + c·ε₂."""
    checks.check_long_stream_cost("two")
    patch_scale(monkeypatch, "query_scale", lambda self, scale: scale / self.positives)
    caught(checks.check_long_stream_cost, "two")


def test_query_noise_of_monotonic_streams_for_all(monkeypatch):
    checks.check_long_stream_cost("one")
    patch_scale(monkeypatch, "query_scale", lambda self, scale: scale / 2)
    caught(checks.check_long_stream_cost, "one")


def test_threshold_redrawn_at_the_scale_of_one_that_is_not(monkeypatch):
    """c threshold noises Lap(Δ/ε₁) cost c·ε₁."""
    checks.check_long_stream_cost("redraw")
    patch_scale(monkeypatch, "threshold_scale", lambda self, scale: scale / self.positives)
    caught(checks.check_long_stream_cost, "redraw")


def test_threshold_noise_used_again_where_it_is_to_be_redrawn(monkeypatch):
    """``redraw`` without redrawing: its answers are no longer independent after a positive one."""
    checks.check_stream_sampler("redraw", 5000)
    name = "_AboveThresholdStream__threshold"
    honest, kept = getattr(sparse_vector.AboveThresholdStream, name), {}

    def once(self):
        if self.remaining == self.mechanism.positives:
            kept["limit"] = honest(self)
        return kept["limit"]

    monkeypatch.setattr(sparse_vector.AboveThresholdStream, name, once)
    caught(checks.check_stream_sampler, "redraw", 5000)


def test_no_noise_on_the_threshold(monkeypatch):
    """The threshold itself, without noise."""
    monkeypatch.setattr(
        sparse_vector.AboveThresholdStream,
        "_AboveThresholdStream__threshold",
        lambda self: sparse_vector.to_steps(self.mechanism.threshold, self.mechanism.spacing_exponent),
    )
    caught(checks.check_stream_sampler, "two", 2000)


def test_released_number_with_the_noise_of_the_comparison(monkeypatch):
    """Their Algorithm 3: the number says that its own noise passed the threshold."""
    checks.check_released_number_has_its_own_noise(600)
    honest, kept = races.rounded, {}

    def same(kind, scale, size, source):
        if size > 1:  # a list of queries
            kept["noise"] = honest(kind, scale, size, source)
            return kept["noise"]
        if scale < 1.1 * 2**20 and kept:  # of the number
            return [max(kept["noise"])]
        return honest(kind, scale, size, source)

    monkeypatch.setattr(races, "rounded", same)
    caught(checks.check_released_number_has_its_own_noise, 600)


# --- quantiles ----------------------------------------------------------------------------------------------------


def test_data_not_clamped(monkeypatch):
    checks.check_quantile_clamps()
    honest = quantiles.to_points
    monkeypatch.setattr(quantiles, "to_points", lambda data, spacing, first, last: honest(data, spacing, -99, 99))
    caught(checks.check_quantile_clamps)


def test_rank_score_taken_as_half_as_sensitive(monkeypatch):
    """A median of replace_one with the sensitivity of add_remove."""
    checks.check_quantile_cost("replace_one", 0.5)
    monkeypatch.setattr(quantiles, "check_relation", lambda relation: "add_remove")
    caught(checks.check_quantile_cost, "replace_one", 0.5)


def test_factor_of_monotonic_scores_for_ranks(monkeypatch):
    checks.check_quantile_cost("replace_one", 0.5)
    monkeypatch.setattr(quantiles, "score_range", lambda sensitivity, monotonic: Fraction(sensitivity))
    caught(checks.check_quantile_cost, "replace_one", 0.5)


def test_gaps_drawn_without_their_length(monkeypatch):
    """The base measure left out of the draw: a gap of nine points as likely as one of one."""
    checks.check_quantile_sampler(3000)
    honest = races.winner
    monkeypatch.setattr(races, "winner", lambda kind, u, factor, source, weights=None: honest(kind, u, factor, source))
    caught(checks.check_quantile_sampler, 3000)
