"""The sampler of rounded normal noise, broken at one seam: the named check fails, and passes when whole."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "mechanisms"))

import rounded_checks as checks

from dpml.mechanisms import noise, rounded
from dpml.mechanisms.rounded import RoundedNormal


def caught(check, *arguments):
    with pytest.raises(AssertionError):
        check(*arguments)


def test_the_rest_is_left_at_zero(monkeypatch):
    checks.draws_have_the_ideal_law()
    monkeypatch.setattr(RoundedNormal, "rest", lambda self, size, bits: np.zeros(size))
    caught(checks.draws_have_the_ideal_law)


def test_every_try_of_the_rest_is_accepted(monkeypatch):
    checks.the_rest_has_its_law()
    table = RoundedNormal.__new__(RoundedNormal)
    whole = RoundedNormal.rest

    def all_accepted(self, size, bits):
        table.__dict__.update(self.__dict__)
        table.scaled = lambda m: np.full(np.shape(m), 1e9)
        return whole(table, size, bits)

    monkeypatch.setattr(RoundedNormal, "rest", all_accepted)
    caught(checks.the_rest_has_its_law)


def test_the_same_bits_choose_the_block_and_the_place_in_it(monkeypatch):
    checks.wide_draws_are_normal_down_to_the_last_bit(2.0**13)
    whole = noise._words

    def halves_alike(stream, count):
        words = whole(stream, count)
        if count % 2 == 0:
            words[count // 2 :] = words[: count // 2]
        return words

    monkeypatch.setattr(noise, "_words", halves_alike)
    caught(checks.wide_draws_are_normal_down_to_the_last_bit, 2.0**13)


def test_half_the_noise(monkeypatch):
    checks.draws_have_the_ideal_law()
    monkeypatch.setattr(rounded, "table", lambda ratio: RoundedNormal(ratio))
    checks.draws_have_the_ideal_law()  # without the cache: no fault
    narrow = RoundedNormal(256.0)
    narrow._starts = np.rint(narrow._starts / 8) * 4
    monkeypatch.setattr(rounded, "table", lambda ratio: narrow)
    caught(checks.draws_have_the_ideal_law)


def test_the_table_of_another_deviation(monkeypatch):
    checks.draws_have_the_ideal_law(None, 300.0)
    kept = RoundedNormal(256.0)
    monkeypatch.setattr(rounded, "table", lambda ratio: kept)
    caught(checks.draws_have_the_ideal_law, None, 300.0)


def test_kept_numbers_are_served_again(monkeypatch):
    checks.no_draw_is_served_twice()
    whole = noise._Kept.take

    def never_used_up(self, ratio, size, draw):
        before = self._left
        taken = whole(self, ratio, size, draw)
        if before.size >= size:
            self._left = before
        return taken

    monkeypatch.setattr(noise._Kept, "take", never_used_up)
    caught(checks.no_draw_is_served_twice)


def test_kept_numbers_of_another_deviation(monkeypatch):
    checks.draws_have_the_ideal_law(None, 300.0)
    source = noise.SecretNoise(threads=1)
    for _ in range(3):
        source.rounded(256.0, 1.0, 10)
    whole = noise._Kept.take
    monkeypatch.setattr(noise._Kept, "take", lambda self, ratio, size, draw: whole(self, 256.0, size, draw))
    caught(checks.draws_have_the_ideal_law, source, 300.0, 16_000)


def test_a_block_with_more_than_its_least_probability(monkeypatch):
    """Some numbers would then be drawn too often by the quick part, which nothing takes back."""
    checks.the_law_is_the_ideal_one()
    checks.the_tables_leave_nothing_out(256.0)
    whole = RoundedNormal.__init__

    def one_more(self, ratio):
        whole(self, ratio)
        self.quick[900] += 1
        self.quick_entries += 1

    monkeypatch.setattr(RoundedNormal, "__init__", one_more)
    caught(checks.the_tables_leave_nothing_out, 256.0)


@pytest.mark.parametrize("factor", [1.0 + 1e-12, 1.0 - 1e-12])
def test_probabilities_that_are_wrong_in_the_twelfth_digit(monkeypatch, factor):
    checks.the_law_is_the_ideal_one()
    whole = RoundedNormal.scaled
    monkeypatch.setattr(RoundedNormal, "scaled", lambda self, m: whole(self, m) * factor ** np.sign(m))
    caught(checks.the_law_is_the_ideal_one)


def test_a_density_in_place_of_the_probability_of_a_step(monkeypatch):
    """P(m) as the density at m: wrong by h² (x² − 1)/24, 6e-7 at 256 steps a deviation."""
    checks.the_law_is_the_ideal_one()

    def density(self, m):
        return 2.0 ** (16 + self.low_bits) / self.ratio * np.exp(-((m / self.ratio) ** 2) / 2) / np.sqrt(2 * np.pi)

    monkeypatch.setattr(RoundedNormal, "scaled", density)
    caught(checks.the_law_is_the_ideal_one)


def test_an_entry_too_many(monkeypatch):
    checks.every_entry_and_low_part_counts_once()
    whole = RoundedNormal.__init__

    def shifted(self, ratio):
        whole(self, ratio)
        self._starts[:-1] = self._starts[1:]

    monkeypatch.setattr(RoundedNormal, "__init__", shifted)
    caught(checks.every_entry_and_low_part_counts_once)


def test_a_low_part_with_a_bit_missing(monkeypatch):
    checks.every_entry_and_low_part_counts_once()
    whole = RoundedNormal.fill

    def even(self, out, bits):
        whole(self, out, lambda count: bits(count) & np.uint64(0xFFFEFFFEFFFEFFFE))

    monkeypatch.setattr(RoundedNormal, "fill", even)
    caught(checks.every_entry_and_low_part_counts_once)
