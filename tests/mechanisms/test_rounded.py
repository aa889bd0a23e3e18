"""The sampler of rounded normal numbers: its law from its tables, every bit, the draws themselves, every edge."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import rounded_checks as checks

from dpml import errors
from dpml.mechanisms import FixedNoise, Grid, Prefetch, SecretNoise, rounded, streams
from dpml.mechanisms.noise import rounded_normal


@pytest.mark.parametrize("ratio", [256.0, 391.7, 511.99999])
def test_the_law_of_the_tables_is_the_ideal_one(ratio):
    checks.the_law_is_the_ideal_one(ratio)


@pytest.mark.parametrize("ratio", [256.0, 1000.3, 2.0**21, 1.9 * 2**21, 3.0e9, math.pi * 2**30, 2.0**47])
def test_no_number_is_left_out_of_the_tables(ratio):
    checks.the_tables_leave_nothing_out(ratio)


@pytest.mark.parametrize("ratio", [256.0, 1000.3, 2.0**21 * 1.3, 2.0**47])
def test_the_probabilities_that_it_computes(ratio):
    """Relative error at most (3/2 x² + 12) · 2^-53, x = m/ratio; of 600 numbers out to 13 deviations."""
    table = rounded.RoundedNormal(ratio)
    m = np.rint(np.linspace(-13, 13, 601) * ratio)
    unit = mpmath.mpf(2) ** (16 + table.low_bits)
    for k, found, exact in zip(m, table.scaled(m), checks.ideal(ratio, m), strict=True):
        with mpmath.workdps(40):
            error = abs(mpmath.mpf(found) / (exact * unit) - 1)
            series = mpmath.mpf(abs(k / ratio) + 1) ** 6 / mpmath.mpf(ratio) ** 6 / 1000  # the term left out, roughly
            assert error <= (1.5 * (k / ratio) ** 2 + 12) * mpmath.mpf(2) ** -53 + series


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


def test_tables_are_kept_per_ratio():
    first = rounded.table(1234.5)
    assert rounded.table(1234.5) is first
    assert rounded.table(1234.25).ratio == 1234.25
