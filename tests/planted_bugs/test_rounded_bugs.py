"""The sampler of rounded normal noise, broken at one seam: the named check fails, and passes when whole."""

from __future__ import annotations

import copy
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
        if before[1].size >= size:
            self._left = before
        return taken

    monkeypatch.setattr(noise._Kept, "take", never_used_up)
    caught(checks.no_draw_is_served_twice)


def test_kept_numbers_of_another_deviation(monkeypatch):
    def primed():
        source = noise.SecretNoise(threads=1)
        for _ in range(3):
            source.rounded(256.0, 1.0, 10)
        return source

    checks.draws_have_the_ideal_law(primed(), 300.0, 16_000)
    source, whole = primed(), noise._Kept.take
    monkeypatch.setattr(noise._Kept, "take", lambda self, ratio, size, draw: whole(self, 256.0, size, draw))
    caught(checks.draws_have_the_ideal_law, source, 300.0, 16_000)


def test_kept_numbers_are_served_whatever_the_deviation(monkeypatch):
    checks.kept_numbers_are_of_the_deviation_asked_for()
    whole = noise._Kept.take

    def while_enough_are_left(self, ratio, size, draw):
        kept, left = self._left
        return whole(self, kept if left.size >= size else ratio, size, draw)

    monkeypatch.setattr(noise._Kept, "take", while_enough_are_left)
    caught(checks.kept_numbers_are_of_the_deviation_asked_for)


def test_a_vector_in_advance_of_another_spacing(monkeypatch):
    checks.vectors_in_advance_are_of_the_spacing_asked_for()
    whole = noise.Prefetch._next

    def by_deviation_and_size(self, kind, size):
        waiting, same = self._current().asked
        return whole(self, waiting if same == size and waiting and waiting[0] == kind[0] else kind, size)

    monkeypatch.setattr(noise.Prefetch, "_next", by_deviation_and_size)
    caught(checks.vectors_in_advance_are_of_the_spacing_asked_for)


def test_the_bits_of_the_place_accept_it_too(monkeypatch):
    checks.every_draw_is_that_of_the_twin(2, (1001,))
    whole = RoundedNormal.tries

    def used_again(self, count, bits):
        def alike(count):
            words = bits(count)
            words[count // 3 : 2 * count // 3] = words[: count // 3] << np.uint64(16)
            return words

        return whole(self, count, alike)

    monkeypatch.setattr(RoundedNormal, "tries", used_again)
    for low_bits in checks.LOW_BITS:
        caught(checks.every_draw_is_that_of_the_twin, low_bits, (1001, 5003))


def test_half_of_a_wide_block_is_never_drawn(monkeypatch):
    checks.every_draw_is_that_of_the_twin(41, (1001,))
    whole = RoundedNormal.fill

    def without_the_top_bit(self, out, bits):
        lower = copy.copy(self)
        lower.low_bits, lower.rest = self.low_bits - 1, self.rest
        whole(lower, out, bits)

    monkeypatch.setattr(RoundedNormal, "fill", without_the_top_bit)
    for low_bits in (2, 16, 41):  # those whose low parts have as many bits without it
        caught(checks.every_draw_is_that_of_the_twin, low_bits, (1001,))


def test_the_rest_in_order_of_size(monkeypatch):
    checks.every_draw_is_that_of_the_twin(17, (1001,))
    whole = RoundedNormal.rest
    monkeypatch.setattr(RoundedNormal, "rest", lambda self, size, bits: np.sort(whole(self, size, bits)))
    for low_bits in checks.LOW_BITS:
        caught(checks.every_draw_is_that_of_the_twin, low_bits, (1001,))


@pytest.mark.parametrize("size", [1, 3, 1001])
def test_the_last_word_of_the_entries_is_also_the_first_of_the_places(monkeypatch, size):
    checks.every_draw_is_that_of_the_twin(16, (size,))
    whole = RoundedNormal.fill

    def overlapping(self, out, bits):
        asked = []

        def shifted(count):
            words = bits(count)
            if not asked and out.size % 4:
                chosen = -(-out.size // 4)
                words[chosen:] = words[chosen - 1 : -1].copy()
            asked.append(count)
            return words

        whole(self, out, shifted)

    monkeypatch.setattr(RoundedNormal, "fill", overlapping)
    caught(checks.every_draw_is_that_of_the_twin, 16, (size,))


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
