"""The grid: exact multiples, translation, sensitivity after rounding, and an attack that works without it."""

import math
from fractions import Fraction

import noise_faults
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpml import errors
from dpml.mechanisms import Grid, lattice

sensitivities = st.floats(2.0**-400, 2.0**400)


@given(sensitivities, st.integers(1, 1 << 62), st.integers(1, 1 << 20))
def test_the_spacing_is_a_power_of_two_within_its_bounds(bound, p, sums):
    """g √p W <= 2^-11 C and > 2^-13 C, compared as squares of exact fractions."""
    g = Grid(bound, p, sums).spacing
    assert math.frexp(g)[0] == 0.5
    square = Fraction(g) ** 2 * p * sums**2
    assert Fraction(2) ** -26 * Fraction(bound) ** 2 < square <= Fraction(2) ** -22 * Fraction(bound) ** 2


@given(sensitivities, st.integers(1, 1 << 62))
def test_the_smaller_clip_bound_pays_for_the_grid_and_for_the_sum(bound, p):
    """shrink · C + g √p + 2 · (rounding of one sum of 2^20 records, 2^20 · γ · C) <= C for the accumulated sum."""
    grid, records = Grid(bound, p), lattice.MAX_RECORDS
    gamma = records * 2.0**-53 / (1 - records * 2.0**-53)
    assert 0.999 < grid.shrink <= 1 - grid.spacing * math.sqrt(p) / bound - 2 * records * gamma * grid.shrink


def test_the_rounding_of_a_float64_sum_is_within_what_the_bound_allows():
    """4096 contributions of norm 1, all orders of two kinds, against exact sums: far below B γ = 1.9e-9."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(4096, 5))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    exact = np.array([math.fsum(column) for column in rows.T])
    for total in (rows.sum(0), np.cumsum(rows, axis=0)[-1], np.ones(4096) @ rows):
        assert np.linalg.norm(total - exact) <= 4096 * 4096 * 2.0**-53


def test_releases_are_multiples_of_the_spacing():
    noise_faults.releases_are_multiples_of_the_spacing()


def test_the_value_moves_the_noise_by_whole_steps():
    noise_faults.the_value_moves_the_noise_by_whole_steps()


def test_rounded_sums_stay_within_the_sensitivity():
    noise_faults.rounded_sums_stay_within_the_sensitivity()


def test_several_rounded_sums_stay_within_the_sensitivity():
    noise_faults.several_rounded_sums_stay_within_the_sensitivity()


def test_extremes_do_not_spread_neighbours():
    noise_faults.extremes_do_not_spread_neighbours()


def test_a_zero_has_no_sign():
    noise_faults.a_zero_has_no_sign()


def test_the_attack_works_without_the_grid_and_fails_with_it():
    assert noise_faults.low_bits_tell_neighbours_apart(lambda value, noise: value + noise)
    noise_faults.low_bits_of_releases_tell_nothing()


@given(
    st.integers(-(2**40), 2**40),
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-50, 50)), min_size=1, max_size=6),
    st.floats(1e-3, 1e3),
)
def test_release_is_the_sum_of_two_roundings(k, pairs, bound):
    """Against exact fractions, ties to even; and with k whole steps added to a total that is a multiple of g."""
    grid = Grid(bound, len(pairs))
    g = Fraction(grid.spacing)
    total, noise = (np.array(column) for column in zip(*pairs, strict=True))
    expected = [g * (round(Fraction(s) / g) + round(Fraction(z) / g)) for s, z in pairs]
    assert [Fraction(x) for x in grid.release(total, noise)] == expected
    base = grid.release(total, np.zeros(len(pairs)))
    assert [Fraction(x) for x in grid.release(base + k * grid.spacing, noise)] == [x + k * g for x in expected]


def test_ties_are_rounded_to_even_for_totals_and_noise():
    grid = Grid(1.0, 1)
    ties, zeros = np.array([0.5, 1.5, 2.5, -0.5, -1.5]) * grid.spacing, np.zeros(5)
    for out in (grid.release(ties, zeros), grid.release(zeros, ties)):
        assert (out / grid.spacing).tolist() == [0.0, 2.0, 2.0, 0.0, -2.0]


def test_inputs_of_any_shape_and_layout_stay_as_they_are():
    grid, rng = Grid(1.0, 12), np.random.default_rng(4)
    total, noise = rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    kept = (total.copy(), noise.copy())
    out = grid.release(total, noise)
    assert out.shape == (3, 4)
    assert out.dtype == np.float64
    assert (grid.release(total.T, noise.T) == out.T).all()
    assert (grid.release(total[::-1, ::2], noise[::-1, ::2]) == out[::-1, ::2]).all()
    assert (total == kept[0]).all()
    assert (noise == kept[1]).all()
    assert not np.shares_memory(out, total)
    assert not np.shares_memory(out, noise)
    assert grid.release(1.0, 0.25).shape == ()
    assert grid.release([], []).shape == (0,)
    assert grid.release(np.float32(0.1), 0.0) == round(float(np.float32(0.1)) * 2**11 * 4) / (2**11 * 4)


def test_blocks_make_no_difference():
    size = 2 * lattice.BLOCK + 5
    grid, rng = Grid(2.0, size), np.random.default_rng(5)
    total, noise = rng.normal(size=size), rng.normal(size=size)
    assert (
        grid.release(total, noise) == grid.spacing * (np.rint(total / grid.spacing) + np.rint(noise / grid.spacing))
    ).all()


@pytest.mark.parametrize("bound", [2.0**-400, 1e-30, 1e30, 2.0**400])
def test_very_small_and_very_large_sensitivities(bound):
    """Nothing overflows, underflows or loses a bit: the release scales with C (a power of two) exactly."""
    grid, unit, rng = Grid(bound, 1000), Grid(1.0, 1000), np.random.default_rng(6)
    total, noise = rng.normal(size=1000) * 1e5, rng.normal(size=1000)
    out = grid.release(total * bound, noise * bound)
    assert (np.remainder(out / grid.spacing, 1.0) == 0.0).all()
    if math.frexp(bound)[0] == 0.5:
        assert (out == unit.release(total, noise) * bound).all()
    tiny = np.full(1000, 5e-324)
    assert (grid.release(tiny, -tiny) == 0.0).all()


def test_totals_that_are_no_numbers_and_noise_beyond_the_grid_are_errors():
    grid, one = Grid(1.0, 3), np.ones(3)
    with pytest.raises(errors.DataError, match="NaN"):
        grid.release(np.array([0.0, np.nan, 1.0]), one)
    for bad in (np.nan, np.inf, 1e300, -(2.0**53) * grid.spacing):
        with pytest.raises(errors.ConfigError, match="noise"):
            grid.release(one, np.array([0.0, bad, 1.0]))
    with pytest.raises(errors.ConfigError, match="shape"):
        grid.release(one, np.ones(2))
    limit = lattice.MAX_STEPS * grid.spacing
    assert grid.release(np.full(3, limit), np.full(3, limit)).tolist() == [2 * limit] * 3


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf, 1e-200, 1e200])
def test_a_sensitivity_that_is_none_is_refused(bound):
    with pytest.raises(errors.ConfigError, match="sensitivity"):
        Grid(bound, 1)


@pytest.mark.parametrize("p", [0, -1, 1.5, True, (1 << 62) + 1])
def test_a_dimension_that_is_none_is_refused(p):
    with pytest.raises(errors.ConfigError, match="dimension"):
        Grid(1.0, p)
    with pytest.raises(errors.ConfigError, match="sums"):
        Grid(1.0, 1, p)


# -- the sampler (its law: test_rounded.py) -------------------------------------------------------------------------
def test_the_distance_of_the_sampler():
    """The formula by hand: √(T p/2) · 2^-46, for p = 4 (g = 2^-12) and T = 100 or 0."""
    grid = Grid(1.0, 4)
    assert grid.sampler_distance(2.0, 100) == pytest.approx(math.sqrt(200) * 2.0**-46, rel=1e-15)
    assert grid.sampler_distance(2.0, 0) == 0.0
    assert Grid(1.0, 1 << 62).sampler_distance(1.0, 1 << 62) == 1.0
    for std in (0.0, -1.0, math.nan, math.inf, grid.spacing * 255, grid.spacing * 2.0**48):
        with pytest.raises(errors.ConfigError, match="std"):
            grid.sampler_distance(std)
    for releases in (-1, 1.5, True):
        with pytest.raises(errors.ConfigError, match="releases"):
            grid.sampler_distance(1.0, releases)
