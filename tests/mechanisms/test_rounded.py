"""The sampler of rounded normal numbers: its law from its tables, every bit, the draws themselves, every edge."""

from __future__ import annotations

import math
import sys

import mpmath
import numpy as np
import pytest
import rounded_checks as checks

from dpml import errors
from dpml.mechanisms import FixedNoise, Grid, Prefetch, SecretNoise, noise, rounded, streams
from dpml.mechanisms.noise import rounded_normal


@pytest.mark.parametrize("ratio", [256.0, 391.7, 511.99999])
def test_the_law_of_the_tables_is_the_ideal_one(ratio):
    checks.the_law_is_the_ideal_one(ratio)


@pytest.mark.parametrize("ratio", [256.0, 1000.3, 2.0**21, 1.9 * 2**21, 3.0e9, math.pi * 2**30, 2.0**47])
def test_no_number_is_left_out_of_the_tables(ratio):
    checks.the_tables_leave_nothing_out(ratio)


@pytest.mark.parametrize("ratio", [256.0, 1000.3, 2.0**21 * 1.3, 2.0**47])
def test_the_probabilities_that_it_computes(ratio):
    """Relative error at most (3/2 x² + 13) · 2^-53, x = m/ratio, and the series; 600 numbers out to 13 deviations."""
    table = rounded.RoundedNormal(ratio)
    m = np.rint(np.linspace(-13, 13, 601) * ratio)
    unit = mpmath.mpf(2) ** (16 + table.low_bits)
    for k, found, exact in zip(m, table.scaled(m), checks.ideal(ratio, m), strict=True):
        with mpmath.workdps(40):
            error = abs(mpmath.mpf(found) / (exact * unit) - 1)
            x2 = mpmath.mpf(k / ratio) ** 2
            left_out = abs(((x2 - 15) * x2 + 45) * x2 - 15) / mpmath.mpf(ratio) ** 6 / 322_560  # those after it: 1 %
            assert error <= (1.5 * x2 + 13) * mpmath.mpf(2) ** -53 + 1.01 * left_out


def test_an_error_of_the_rest_is_not_blown_up_by_its_small_share():
    """κ = √(Σ w²/G)/Σ w <= 5, which docs/proofs-floats.md uses: at most 33 places of a block stand for all."""
    for ratio in np.concatenate([base * np.linspace(1.0, 1.99999, 21) for base in (2.0**8, 2.0**21)]):
        table = rounded.RoundedNormal(ratio)
        places = np.unique(np.rint(np.linspace(0, (1 << table.low_bits) - 1, 33)))
        chance = table.scaled(table.first[:, None] + places)
        rest = chance - table.quick[:, None]
        share = 1 - table.quick_entries / rounded.ENTRIES
        assert rest.mean(1).sum() / rounded.ENTRIES == pytest.approx(share, rel=2e-2)
        assert math.sqrt((rest**2 / chance).mean(1).sum() / rounded.ENTRIES) <= 5 * share


def test_every_entry_and_every_low_part_counts_once():
    checks.every_entry_and_low_part_counts_once()


@pytest.mark.parametrize("low_bits", checks.LOW_BITS)
def test_every_draw_is_that_of_the_twin(low_bits):
    checks.every_draw_is_that_of_the_twin(low_bits)


def test_the_rest_has_its_law():
    checks.the_rest_has_its_law()


def test_draws_have_the_ideal_law():
    checks.draws_have_the_ideal_law()


@pytest.mark.parametrize("ratio", [2.0**13, 1.7 * 2**21, 2.0**25, 2.0**40])
def test_wide_draws_are_normal_down_to_the_last_bit(ratio):
    """b = 7, 15, 19 and 34: low parts of 16, 32 and 64 bits."""
    checks.wide_draws_are_normal_down_to_the_last_bit(ratio)


def test_no_draw_is_served_twice():
    checks.no_draw_is_served_twice()


def test_kept_numbers_are_of_the_deviation_asked_for():
    checks.kept_numbers_are_of_the_deviation_asked_for()


def test_draws_have_their_law_after_those_of_another_deviation():
    source = SecretNoise(threads=1)
    for _ in range(3):
        source.rounded(256.0, 1.0, 10)
    checks.draws_have_the_ideal_law(source, 300.0, 16_000)


def test_an_interrupt_leaves_no_numbers_under_another_deviation():
    """At every line of ``take``, one after the other."""
    code = noise._Kept.take.__code__
    lines = sorted({line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno})
    hit = []
    for target in lines:
        source = SecretNoise(threads=1)
        for _ in range(2):
            source.rounded(2.0**46, 1.0, 10)

        def traced(frame, event, argument, target=target):
            if frame.f_code is code and event == "line" and frame.f_lineno == target:
                hit.append(target)
                raise KeyboardInterrupt
            return traced if frame.f_code is code else None

        before = sys.gettrace()
        sys.settrace(traced)
        try:
            source.rounded(256.0, 1.0, 1000)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        for ratio in (2.0**46, 256.0, 2.0**46):
            assert 0.8 < source.rounded(ratio, 1.0, 1000).std() / ratio < 1.2
    assert hit[:1] == lines[:1]
    assert len(hit) >= 4


def test_vectors_in_advance_are_of_the_spacing_asked_for():
    checks.vectors_in_advance_are_of_the_spacing_asked_for()


def test_sizes_around_every_limit():
    source = SecretNoise(threads=3)
    edges = (0, 1, streams.SMALL, rounded.BLOCK, streams.PARALLEL_FROM)
    for size in sorted({max(edge + shift, 0) for edge in edges for shift in (-1, 0, 1)}):
        for ratio in (300.0, 2.0**30, 2.0**45):
            drawn = source.rounded(ratio, 1.0, size)
            assert drawn.shape == (size,)
            assert (drawn == np.rint(drawn)).all()
            assert (np.abs(drawn) <= 14.1 * ratio).all()
            assert size < 100 or 0.6 < drawn.std() / ratio < 1.5


def test_the_spacing_counts():
    """std 3 on a grid of 2^-12: 3 · 2^12 steps (χ² of 20,000, false alarm 1e-7)."""
    drawn = SecretNoise().rounded(3.0, 2.0**-12, 20_000)
    assert 0.947 < float(np.square(drawn / (3 * 2**12)).mean()) < 1.054


@pytest.mark.parametrize("std", [0.0, 1e-3, 255.9, 2.0**47 * 1.01])
def test_deviations_that_are_not_covered_are_rounded_normal_draws(std, monkeypatch):
    asked = []
    whole = SecretNoise.normal
    monkeypatch.setattr(SecretNoise, "normal", lambda self, *given: (asked.append(given), whole(self, *given))[1])
    source = SecretNoise(threads=1)
    drawn = source.rounded(std, 1.0, 50)
    assert asked == [(std, 50)]
    assert (drawn == np.rint(drawn)).all()
    assert not np.signbit(drawn[drawn == 0]).any()
    assert std or not drawn.any()
    source.rounded(256.0, 1.0, 50)
    assert len(asked) == 1


@pytest.mark.parametrize("std", [-1.0, math.nan, math.inf])
def test_a_deviation_that_is_none_is_refused(std):
    for source in (SecretNoise(), Prefetch(SecretNoise()), FixedNoise(0)):
        with pytest.raises((errors.ConfigError, ValueError), match=r"std|scale"):
            rounded_normal(source, std, 1.0, 3)
    for ratio in (std, 255.0, 2.0**48):
        with pytest.raises(ValueError, match="ratio"):
            rounded.RoundedNormal(ratio)


def test_noise_beyond_the_grid_is_an_error():
    with pytest.raises(errors.ConfigError, match="2\\^52"):
        SecretNoise().rounded(1e300, 1.0, 3)

    class Broken(FixedNoise):
        def normal(self, std, shape):
            return np.full(shape, np.nan)

    with pytest.raises(errors.ConfigError, match="2\\^52"):
        rounded_normal(Broken(0), 1.0, 1.0, 3)


class Answering:
    """A source whose answers are given; ``rounded`` is its own where there is one."""

    secret = True

    def __init__(self, normal, rounded=None):
        self._normal, self._rounded = normal, rounded

    def normal(self, std, shape):
        return self._normal


class AnsweringRounded(Answering):
    def rounded(self, std, spacing, size):
        return self._rounded


@pytest.mark.parametrize("answer", [np.zeros(1), np.zeros((5, 1)), np.zeros(()), np.zeros(6), [0.0] * 4])
def test_an_answer_of_another_shape_is_refused(answer):
    """One number would be added to all coordinates."""
    for source in (Answering(answer), AnsweringRounded(None, answer)):
        for asked in (source, Prefetch(source)):
            with pytest.raises(errors.ConfigError, match=r"noise = \(.*shape that was asked for, \(5,\)"):
                rounded_normal(asked, 1.0, 1.0, 5)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 2.0**60, -(2.0**53)])
def test_an_answer_that_is_no_number_of_steps_is_refused(wrong):
    answer = np.array([1.0, wrong, 0.0])
    for source in (Answering(answer), AnsweringRounded(None, answer), Prefetch(AnsweringRounded(None, answer))):
        with pytest.raises(errors.ConfigError, match="2\\^52"):
            rounded_normal(source, 1.0, 1.0, 3)


def test_the_answer_of_a_rounded_of_somebody_else():
    """Whole, without a sign of zero; its array stays as it is and is not handed out."""
    answer = np.array([-0.0, 2.0, -3.0])
    drawn = rounded_normal(AnsweringRounded(None, answer), 1.0, 1.0, 3)
    assert drawn.tolist() == [0.0, 2.0, -3.0]
    assert not np.signbit(drawn[0])
    assert np.signbit(answer[0])
    assert not np.shares_memory(drawn, answer)


def test_the_normal_that_was_written_last_counts():
    """A subclass or a wrapper with a ``normal`` of its own must not be passed by with the ``rounded`` of another."""

    class Louder(SecretNoise):
        def normal(self, std, shape):
            return np.full(shape, 7.0 * std)

    class Again(Louder):
        def rounded(self, std, spacing, size):
            return np.full(size, 3.0)

    class Coins(SecretNoise):
        def uniform(self, size):
            raise AssertionError

    class Wrapped:
        secret = True

        def __getattr__(self, name):
            return getattr(inner, name)

    class Quieter(Wrapped):
        def normal(self, std, shape):
            return np.zeros(shape)

    inner = SecretNoise(threads=1)
    delegating = Wrapped()
    delegating.normal = Louder().normal
    for source, wanted in (
        (Louder(threads=1), [2100.0] * 4),
        (Prefetch(Louder()), [2100.0] * 4),
        (Again(), [3.0] * 4),
        (Quieter(), [0.0] * 4),
        (delegating, [2100.0] * 4),
    ):
        assert rounded_normal(source, 300.0, 1.0, 4).tolist() == wanted
    for source in (Coins(), Wrapped()):
        assert 250 < rounded_normal(source, 300.0, 1.0, 5000).std() < 350


@pytest.mark.parametrize("spacing", [0.0, -1.0, math.inf, math.nan, 3.0, 1.0 + 2**-52])
def test_a_spacing_that_is_no_power_of_two_is_refused(spacing):
    """Infinity would give no noise."""
    for source in (SecretNoise(), Prefetch(SecretNoise()), FixedNoise(0), Prefetch(FixedNoise(0))):
        with pytest.raises(errors.ConfigError, match=r"spacing = .*power of two"):
            rounded_normal(source, 300.0, spacing, 3)


@pytest.mark.parametrize("size", [2.5, -1, True, (2, 3), (5,), None])
def test_a_size_that_is_no_whole_number_is_refused(size):
    for source in (SecretNoise(), Prefetch(SecretNoise()), FixedNoise(0), Prefetch(FixedNoise(0))):
        with pytest.raises(errors.ConfigError, match=r"size = .*whole number"):
            rounded_normal(source, 300.0, 1.0, size)
    if size not in ((2, 3), (5,)):
        with pytest.raises(errors.ConfigError, match=r"shape = .*whole number"):
            SecretNoise().normal(1.0, size)


def test_numbers_of_numpy_are_taken():
    drawn = rounded_normal(SecretNoise(), np.float32(300.0), np.float32(2.0**-4), np.int64(5000))
    assert 4300 < drawn.std() < 5300
    assert rounded_normal(FixedNoise(0), np.float32(300.0), np.float32(0.5), np.int64(5)).shape == (5,)


def test_somebody_elses_source_is_rounded():
    """Its own draws, divided by the spacing; a zero has no sign; its array stays as it is."""

    class Kept:
        secret = False
        values = np.array([0.1, -0.1, 0.75, -1.26, 2.5])

        def normal(self, std, shape):
            assert (std, shape) == (2.0, 5)
            return self.values

    before = Kept.values.copy()
    drawn = rounded_normal(Kept(), 2.0, 0.5, 5)
    assert drawn.tolist() == [0.0, 0.0, 2.0, -3.0, 5.0]
    assert not np.signbit(drawn[:2]).any()
    assert (Kept.values == before).all()
    with Prefetch(Kept()) as ahead:
        assert ahead.rounded(2.0, 0.5, 5).tolist() == drawn.tolist()


def test_a_source_that_waits_in_advance_serves_whole_numbers_of_the_kind_asked_for():
    n = streams.SMALL
    with Prefetch(SecretNoise(threads=1)) as ahead:
        for std in (300.0, 300.0, 3e6, 3e6, 300.0):
            drawn = ahead.rounded(std, 1.0, n)
            assert (drawn == np.rint(drawn)).all()
            assert 0.9 < drawn.std() / std < 1.1
        assert 0.9 < ahead.normal(1.0, n).std() < 1.1
        assert 270 < ahead.rounded(300.0, 1.0, n).std() < 330


def test_a_release_with_whole_steps_is_the_release_with_noise():
    """The same bits as rounding the noise first; in place, too."""
    grid, rng = Grid(0.7, 1000), np.random.default_rng(3)
    total, drawn = rng.normal(size=1000) * 5, rng.normal(size=1000)
    steps = np.rint(drawn / grid.spacing) + 0.0
    assert (grid.add(total, steps) == grid.release(total, drawn)).all()
    out = total.copy()
    assert grid.add(out, steps, out=out) is not None
    assert (out == grid.release(total, drawn)).all()
    with pytest.raises(errors.DataError, match="NaN"):
        grid.add(np.array([math.nan]), np.zeros(1))
    assert grid.add(np.array([1e308, -math.inf]), np.zeros(2)).tolist() == [
        2.0**52 * grid.spacing,
        -(2.0**52) * grid.spacing,
    ]


@pytest.mark.parametrize("steps", [np.zeros(1), np.zeros(4), np.zeros(6), np.zeros((5, 1)), np.zeros(())])
def test_steps_of_another_shape_are_refused(steps):
    """One number would be added to all coordinates."""
    for total in (np.zeros(5), np.zeros((5, 1))):
        with pytest.raises(errors.ConfigError, match=r"steps = \(.*shape \(5,\)"):
            Grid(1.0, 5).add(total, steps)


def test_the_widths_of_blocks_next_to_a_power_of_two():
    for ratio, low_bits in ((math.nextafter(512.0, 0.0), 2), (512.0, 3), (math.nextafter(2.0**31, 0.0), 24)):
        assert rounded.RoundedNormal(ratio).low_bits == low_bits


def test_tables_are_kept_per_ratio():
    first = rounded.table(1234.5)
    assert rounded.table(1234.5) is first
    assert rounded.table(1234.25).ratio == 1234.25


def test_no_entry_is_owned_on_the_strength_of_a_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where P · 2^(16+b) comes out as a whole number it may be a little less: the quick part must stay below."""
    exact = rounded.RoundedNormal.scaled
    monkeypatch.setattr(rounded.RoundedNormal, "scaled", lambda self, m: np.ceil(exact(self, m)))
    whole = rounded.RoundedNormal(300.0)
    outer = np.where(whole.first >= 0, whole.first + ((1 << whole.low_bits) - 1), whole.first)
    assert (whole.quick == np.maximum(np.ceil(exact(whole, outer)) - 1, 0)).all()


def test_whole_numbers_of_somebody_elses_source_are_a_new_array():
    """int32 and float64, also backwards and read-only: the source may write into its own again."""

    class Buffered:
        secret = True

        def __init__(self, values):
            self.values = values

        def normal(self, std, shape):
            raise AssertionError("not asked")

        uniform = normal

        def rounded(self, std, spacing, size):
            return self.values

    for dtype in (np.int32, np.int64, np.float64):
        kept = np.array([3, -1, 2**30], dtype=dtype)
        still = kept[::-1].copy()
        still.flags.writeable = False
        for values in (kept, kept[::-1], still):
            drawn = rounded_normal(Buffered(values), 300.0, 1.0, 3)
            assert drawn.tolist() == values.tolist()
            assert not np.shares_memory(drawn, values)
            assert drawn.flags.writeable
            assert drawn.flags.c_contiguous
    for odd in ([2**31 - 1, 0, 0], [-(2**30) - 1, 0, 0]):
        assert rounded_normal(Buffered(np.array(odd, dtype=np.int32)), 300.0, 1.0, 3).dtype == np.float64
