"""Values of the grid that callers leave to it: lines that mutants survived in."""

from __future__ import annotations

import pytest

from dpml.errors import ConfigError
from dpml.mechanisms.lattice import MAX_RECORDS, Grid


def test_the_distance_of_the_sampler_is_of_one_release_unless_said() -> None:
    grid = Grid(1.0, 3)
    assert grid.sampler_distance(2.0) == grid.sampler_distance(2.0, 1) > 0
    assert grid.sampler_distance(2.0, 9) == pytest.approx(3 * grid.sampler_distance(2.0), rel=1e-12)


def test_the_largest_proved_sum_is_of_a_million_records() -> None:
    """docs/proofs-floats.md, section 3."""
    assert MAX_RECORDS == 1_048_576


@pytest.mark.parametrize("sums", [1, 2, 3])
def test_the_spacing_by_whole_numbers(sums: int) -> None:
    """g = 2^-11 · (C's leading power of two) / 2^k, k the least whole number with 4^k >= p · sums²."""
    for p in (*range(1, 70), *(4**j + d for j in (5, 15, 30) for d in (-2, -1, 0, 1, 2))):
        k = next(k for k in range(70) if 4**k >= p * sums**2)
        for bound, leading in ((1.0, 1.0), (1.999, 1.0), (0.5, 0.5), (2.0**-300, 2.0**-300)):
            assert Grid(bound, p, sums).spacing == leading * 2.0 ** (-11 - k)


def test_a_deviation_of_zero_is_refused_by_what_it_must_be() -> None:
    with pytest.raises(ConfigError, match=r"std = 0.0 is not allowed: it must be a finite number > 0"):
        Grid(1.0, 3).sampler_distance(0.0)
