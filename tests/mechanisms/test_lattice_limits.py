"""Values of the grid that callers leave to it: lines that mutants survived in."""

from __future__ import annotations

import pytest

from dpml.mechanisms.lattice import MAX_RECORDS, Grid


def test_the_distance_of_the_sampler_is_of_one_release_unless_said() -> None:
    grid = Grid(1.0, 3)
    assert grid.sampler_distance(2.0) == grid.sampler_distance(2.0, 1) > 0
    assert grid.sampler_distance(2.0, 9) == pytest.approx(3 * grid.sampler_distance(2.0), rel=1e-12)


def test_the_largest_proved_sum_is_of_a_million_records() -> None:
    """docs/proofs-floats.md, section 3."""
    assert MAX_RECORDS == 1_048_576
