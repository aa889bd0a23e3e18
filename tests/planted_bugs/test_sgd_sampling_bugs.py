"""Each line of the sampling that the guarantee rests on, broken on purpose: the named check fails."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sgd"))

import sampling_checks as checks

from dpml.sgd import engine, sampling


def same_batch_in_every_step(whole):
    kept = []

    def draw(noise, n, rate):
        if not kept:
            kept.append(whole(noise, n, rate))
        return kept[0]

    return draw


def one_batch_for_two_steps(whole):
    kept = []

    def draw(noise, n, rate):
        kept.append(whole(noise, n, rate))
        return kept[(len(kept) - 1) // 2 * 2]

    return draw


def one_coin_for_all(whole):
    return lambda noise, n, rate: np.arange(n if noise.uniform(1)[0] < rate else 0)


def one_coin_for_two_neighbours(whole):
    def draw(noise, n, rate):
        drawn = whole(noise, -(-n // 2), rate)
        both = np.sort(np.concatenate([2 * drawn, 2 * drawn + 1]))
        return both[both < n]

    return draw


def the_last_record_never(whole):
    return lambda noise, n, rate: whole(noise, n - 1, rate)


def a_public_size(whole):
    return lambda noise, n, rate: np.sort(np.argsort(noise.uniform(n))[: round(n * rate)])


def a_shuffled_epoch(whole):
    left = []

    def draw(noise, n, rate):
        size = round(n * rate)
        if len(left) < size:
            left[:] = np.argsort(noise.uniform(n)).tolist()
        drawn, left[:] = np.sort(left[:size]), left[size:]
        return drawn

    return draw


FAULTS = [
    same_batch_in_every_step,
    one_batch_for_two_steps,
    one_coin_for_all,
    one_coin_for_two_neighbours,
    the_last_record_never,
    a_public_size,
    a_shuffled_epoch,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_poisson_sampler(monkeypatch, fault):
    member, rate = checks.poisson_membership(500, 0.2, 300), 0.2
    checks.coins_are_independent(member, rate)
    monkeypatch.setattr(sampling, "poisson_indices", fault(sampling.poisson_indices))
    with pytest.raises(AssertionError):
        checks.coins_are_independent(checks.poisson_membership(500, rate, 300), rate)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_with_a_wrong_sampler(monkeypatch, fault):
    checks.coins_are_independent(*checks.membership_of_a_run())
    monkeypatch.setattr(engine, "poisson_indices", fault(engine.poisson_indices))
    with pytest.raises(AssertionError):
        checks.coins_are_independent(*checks.membership_of_a_run())


def test_undecided_coins_that_all_fall(monkeypatch):
    checks.coins_are_independent(checks.poisson_membership(4500, 0.02, 300), 0.02)
    monkeypatch.setattr(sampling, "_down", lambda probability: 1.0)
    with pytest.raises(AssertionError, match="the rate is another"):
        checks.coins_are_independent(checks.poisson_membership(4500, 0.02, 300), 0.02)


def test_eight_coins_read_as_six(monkeypatch):
    """The two bytes that hold no random bits serve as coins."""
    monkeypatch.setattr(sampling, "_UNUSED", 0)
    with pytest.raises(AssertionError):
        checks.coins_are_independent(checks.poisson_membership(4500, 0.02, 300), 0.02)


def test_a_fixed_size_with_replacement(monkeypatch):
    checks.subsets_are_equally_likely(5, 2)
    monkeypatch.setattr(sampling, "_distinct", lambda noise, n, size: sampling._whole_numbers(noise, n, size))
    with pytest.raises(AssertionError, match="different records"):
        checks.subsets_are_equally_likely(5, 2)


def test_a_fixed_size_with_neighbours_drawn_together(monkeypatch):
    def in_a_row(noise, n, size):
        return (sampling._whole_numbers(noise, n, 1) + np.arange(size)) % n

    monkeypatch.setattr(sampling, "_distinct", in_a_row)
    with pytest.raises(AssertionError):
        checks.subsets_are_equally_likely(5, 2)


def test_a_modulo_without_rejection(monkeypatch):
    checks.whole_numbers_are_unbiased()
    monkeypatch.setattr(
        sampling, "_whole_numbers", lambda noise, n, count: (noise.uniform(count) * 2.0**53).astype(np.int64) % n
    )
    with pytest.raises(AssertionError):
        checks.whole_numbers_are_unbiased()
