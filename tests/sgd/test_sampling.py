"""Poisson coins and batches of fixed size."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import sampling_checks as checks
from sgd_checks import RecordingNoise

from dpml.errors import ConfigError
from dpml.mechanisms import FixedNoise
from dpml.sgd import sampling


@pytest.mark.parametrize(
    ("n", "rate"),
    [(500, 0.2), (4500, 0.02), (4500, 1 / 256), (4500, 0.001), (4500, 0.25), (4500, 0.3)],
)
def test_every_record_has_its_own_coin_in_every_step(n, rate):
    """The first and the last rate take the plain way, the others that of two stages."""
    checks.coins_are_independent(checks.poisson_membership(n, rate, 300), rate)


def test_every_record_has_its_own_coin_in_every_step_of_a_run():
    checks.coins_are_independent(*checks.membership_of_a_run())


@pytest.mark.parametrize("n", [4097, 6 * 700, 6 * 700 + 5])
@pytest.mark.parametrize("rate", [0.003, 0.02, 0.1, 5 / 256])
def test_the_two_stages_compare_one_number_of_a_hundred_bits(monkeypatch, n, rate):
    """Coin i, in exact arithmetic: byte i of the first draws, then a fresh uniform, as one number in [0, 1)."""
    monkeypatch.setattr(sampling, "CHUNK", 100)  # several rounds
    noise = RecordingNoise(3)
    drawn = sampling.poisson_indices(noise, n, rate)
    limit, expected, position = Fraction(rate), [], 0
    draws = iter(noise.uniforms)
    while position < n:
        words = [int(Fraction(float(u)) * 2**48) for u in next(draws)]
        octets = [word >> (8 * k) & 255 for word in words for k in range(6)]
        undecided = iter(next(draws).tolist())
        for octet in octets:
            low = Fraction(octet, 256)
            if low + Fraction(1, 256) <= limit:
                taken = True
            elif low > limit:
                taken = False
            else:  # the byte of the rate itself
                taken = low + Fraction(next(undecided)) / 256 < limit
            if taken and position < n:
                expected.append(position)
            position += 1
        assert next(undecided, None) is None
    assert drawn.tolist() == expected
    assert drawn.dtype == np.int64


@pytest.mark.parametrize("rate", [1e-300, 2.0**-54, 1e-9, 0.02, 0.1, 1 / 3, 0.25, 0.7, 1.0, np.nextafter(1.0, 0.0)])
def test_a_coin_never_falls_more_often_than_it_is_charged_for(rate):
    down = Fraction(sampling._down(rate))
    assert 0 <= Fraction(rate) - down < Fraction(1, 2**53)
    assert (down * 2**53).denominator == 1  # so exactly down · 2⁵³ of the 2⁵³ uniforms are below it
    if rate <= 0.25:
        first = int(rate * 256)
        total = (first + Fraction(sampling._down(rate * 256.0 - first))) / 256
        assert 0 <= Fraction(rate) - total < Fraction(1, 2**61)


def test_rates_at_the_ends():
    for n in (0, 1, 7, 5000, 40_000):
        assert np.array_equal(sampling.poisson_indices(FixedNoise(0), n, 1.0), np.arange(n))
        empty = sampling.poisson_indices(FixedNoise(0), n, 0.0)
        assert empty.shape == (0,)
        assert empty.dtype == np.int64


def test_few_uniforms_at_a_time_and_few_in_all():
    sizes = []

    class Counting(FixedNoise):
        def uniform(self, size):
            sizes.append(int(size))
            return super().uniform(size)

    sampling.poisson_indices(Counting(0), 300_000, 0.01)
    assert max(sizes) <= sampling.CHUNK
    assert sum(sizes) < 300_000 / 6 + 300_000 / 256 * 1.5
    sizes.clear()
    sampling.poisson_indices(Counting(0), 300_000, 0.6)
    assert max(sizes) <= sampling.CHUNK
    assert sum(sizes) == 300_000


@pytest.mark.parametrize(("n", "size"), [(5, 2), (5, 3), (6, 3), (4, 1)])
def test_every_subset_of_a_fixed_size_is_equally_likely(n, size):
    checks.subsets_are_equally_likely(n, size)


def test_whole_numbers_are_unbiased():
    checks.whole_numbers_are_unbiased()


@pytest.mark.parametrize("size", [0, 1, 900, 5000, 9999, 10_000])
def test_a_fixed_size_is_met_exactly(size):
    drawn = sampling.fixed_size_indices(FixedNoise(1), 10_000, size)
    assert drawn.dtype == np.int64
    assert len(drawn) == size
    assert (np.diff(drawn) > 0).all()
    assert size == 0 or 0 <= drawn[0] <= drawn[-1] < 10_000


def test_refusals_do_not_tell_the_number_of_records():
    for rate in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="sample_rate"):
            sampling.poisson_indices(FixedNoise(0), 5, rate)
    with pytest.raises(ConfigError, match="size = 12") as caught:
        sampling.fixed_size_indices(FixedNoise(0), 11, 12)
    assert "11" not in str(caught.value)
    for draw in (
        lambda: sampling.poisson_indices(FixedNoise(0), -1, 0.5),
        lambda: sampling.fixed_size_indices(0, -1, 0),
    ):
        with pytest.raises(ConfigError, match="n = -1"):
            draw()
