"""Each privacy-critical line of the noise and the grid, broken at one seam: the named check fails, and passes whole."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "mechanisms"))

import noise_faults as checks

from dpml.mechanisms import FixedNoise, Grid, Prefetch, lattice, noise, streams
from dpml.sgd import clipping, engine
from dpml.sgd.models import ModelLoss


def caught(check, *arguments):
    with pytest.raises(AssertionError):
        check(*arguments)


def test_one_key_for_two_streams(monkeypatch):
    checks.streams_never_share_a_draw()
    monkeypatch.setattr(noise.secrets, "randbits", lambda bits: 1234567)
    caught(checks.streams_never_share_a_draw)


def test_uniform_draws_under_the_keys_of_the_normal_ones(monkeypatch):
    checks.streams_never_share_a_draw()
    keys = []

    def every_key_twice(bits):
        keys.append(len(keys) % 5)
        return 99 + keys[-1]

    monkeypatch.setattr(noise.secrets, "randbits", every_key_twice)
    caught(checks.streams_never_share_a_draw)


def test_a_stream_that_starts_again_at_every_request(monkeypatch):
    checks.streams_never_share_a_draw()
    whole = streams.Bank.fill

    def rewinding(self, out, draw):
        before = [g.bit_generator.state for g in self.streams]
        whole(self, out, draw)
        for generator, state in zip(self.streams, before, strict=True):
            generator.bit_generator.state = state

    monkeypatch.setattr(streams.Bank, "fill", rewinding)
    caught(checks.streams_never_share_a_draw)


def test_a_slice_left_out(monkeypatch):
    checks.every_entry_is_filled_once()
    whole = streams.parts
    monkeypatch.setattr(streams, "parts", lambda size, most: whole(size, most)[:-1])
    caught(checks.every_entry_is_filled_once)


def test_a_slice_filled_twice_in_another_ones_place(monkeypatch):
    checks.every_entry_is_filled_once()
    whole = streams.parts
    monkeypatch.setattr(streams, "parts", lambda size, most: [whole(size, most)[0], *whole(size, most)[:-1]])
    caught(checks.every_entry_is_filled_once)


def test_a_prefetched_vector_served_twice(monkeypatch):
    checks.prefetched_draws_are_served_once()
    whole, kept = Prefetch._next, {}

    def again(self, kind, size):
        kept[size] = kept[size] if size in kept else whole(self, kind, size)
        return kept.pop(size) if len(kept) > 2 else kept[size].copy()

    monkeypatch.setattr(Prefetch, "_next", again)
    caught(checks.prefetched_draws_are_served_once)


def test_noise_used_again_after_a_fork():
    checks.a_forked_child_draws_other_noise("pass")
    for plant in (
        "streams.process_identity = lambda: 0",
        "SecretNoise._current = lambda self: self._SecretNoise__keyed",
        "Prefetch._current = lambda self: self._Prefetch__ahead",
    ):
        caught(checks.a_forked_child_draws_other_noise, plant)


def test_a_grid_without_the_smaller_clip_bound(monkeypatch):
    checks.rounded_sums_stay_within_the_sensitivity()
    monkeypatch.setattr(Grid, "shrink", 1.0)
    caught(checks.rounded_sums_stay_within_the_sensitivity)


def test_a_grid_too_coarse_for_its_dimension(monkeypatch):
    checks.rounded_sums_stay_within_the_sensitivity()
    monkeypatch.setattr(Grid, "spacing", property(lambda self: 2.0**-11 * self.sensitivity))  # √p forgotten
    caught(checks.rounded_sums_stay_within_the_sensitivity)


def test_a_grid_for_one_sum_where_several_are_rounded(monkeypatch):
    checks.several_rounded_sums_stay_within_the_sensitivity()
    whole = Grid.spacing.func
    monkeypatch.setattr(Grid, "spacing", property(lambda self: whole(Grid(self.sensitivity, self.dimension))))
    caught(checks.several_rounded_sums_stay_within_the_sensitivity)


def broken_release(rounds_total, rounds_noise):
    def release(self, total, noise):
        g = self.spacing
        return (g * np.rint(total / g) if rounds_total else total) + (g * np.rint(noise / g) if rounds_noise else noise)

    return release


@pytest.mark.parametrize(
    "check",
    [checks.releases_are_multiples_of_the_spacing, checks.low_bits_of_releases_tell_nothing],
)
@pytest.mark.parametrize("rounds_total", [True, False])
def test_noise_not_rounded(monkeypatch, check, rounds_total):
    check()
    monkeypatch.setattr(Grid, "release", broken_release(rounds_total, rounds_noise=False))
    caught(check)


def test_total_not_rounded(monkeypatch):
    checks.releases_are_multiples_of_the_spacing()
    monkeypatch.setattr(Grid, "release", broken_release(rounds_total=False, rounds_noise=True))
    caught(checks.releases_are_multiples_of_the_spacing)


def test_a_spacing_that_is_no_power_of_two(monkeypatch):
    checks.the_value_moves_the_noise_by_whole_steps()
    monkeypatch.setattr(Grid, "spacing", property(lambda self: 2.0**-11 / 3 * self.sensitivity / self.dimension))
    caught(checks.the_value_moves_the_noise_by_whole_steps)


def test_no_saturation(monkeypatch):
    checks.extremes_do_not_spread_neighbours()
    monkeypatch.setattr(lattice, "saturated", lambda steps: steps)
    caught(checks.extremes_do_not_spread_neighbours)


def test_a_zero_that_keeps_its_sign(monkeypatch):
    checks.a_zero_has_no_sign()
    monkeypatch.setattr(Grid, "release", broken_release(rounds_total=True, rounds_noise=True))
    caught(checks.a_zero_has_no_sign)


# -- the same of the sum that a step releases, in torch ------------------------------------------------------------
def released(value, step):
    grid = Grid(1.0, 1)
    both = torch.tensor([value * grid.spacing], dtype=torch.float64), torch.tensor([step], dtype=torch.float64)
    return float(engine.released_sum(grid, *both)) / grid.spacing


def a_step_releases_no_sign_of_a_zero():
    for value in (-0.25, -0.0, 0.25):
        for step in (-0.0, 0.0):
            assert not np.signbit(released(value, step))


def a_step_does_not_spread_neighbours():
    for value in (1e300, np.inf, -1e300, -np.inf, 2.0**60):
        assert released(value, 3.0) == np.sign(value) * 2.0**52 + 3.0


def test_a_step_with_a_zero_that_keeps_its_sign(monkeypatch):
    a_step_releases_no_sign_of_a_zero()
    monkeypatch.setattr(
        engine, "released_sum", lambda grid, total, steps: (total / grid.spacing).round().add(steps) * grid.spacing
    )
    caught(a_step_releases_no_sign_of_a_zero)


def test_a_step_without_saturation(monkeypatch):
    a_step_does_not_spread_neighbours()
    monkeypatch.setattr(engine, "MAX_STEPS", np.inf)
    caught(a_step_does_not_spread_neighbours)


def the_largest_int32_noise_does_not_wrap_around():
    """2^30 steps and noise of 2^30 steps: their sum is no int32."""
    grid = Grid(1.0, 1)
    for value, step in ((2.0**30, 2**30), (2.0**30 + 128, 2**30), (-(2.0**40), -5)):
        total = torch.tensor([value * grid.spacing], dtype=torch.float32)
        found = engine.released_sum(grid, total, torch.tensor([step], dtype=torch.int32))
        assert abs(float(found) / grid.spacing / (value + step) - 1) < 1e-6


def test_int32_for_any_sum(monkeypatch):
    the_largest_int32_noise_does_not_wrap_around()
    monkeypatch.setattr(engine, "MOST_INT32", 2.0**53)
    caught(the_largest_int32_noise_does_not_wrap_around)


def check_the_type_of_a_sum_leaves_no_bit():
    """Records that contribute zeros, in one micro-batch, in several or none: the same noise gives the same bits.

    What is rounded to float32 has more than 24 bits here, and the sums are float32 or float64 by the batch.
    """
    kinds = itertools.product((2e3, 1e6), (torch.float32, torch.float16), (0, engine.SHARED))
    for noise_multiplier, dtype, shared in kinds:
        model = torch.nn.Sequential(torch.nn.Linear(6, 50, bias=False), torch.nn.Linear(50, 3, bias=False)).to(dtype)
        plan = engine.plan_dp_sgd(
            n_declared=100, n_features=6, n_classes=3, model_name="module", n_parameters=450, epsilon=None, delta=1e-5,
            noise_multiplier=noise_multiplier, steps=1, max_grad_norm=1.0, expected_batch_size=3, micro_batch_size=2,
        )  # fmt: skip
        released, types = [], set()
        for n in (0, 1, 2, 5):
            batch = torch.zeros(n, 6, dtype=dtype), torch.zeros(n, dtype=torch.int64)
            clipper = clipping.Clipper(model, ModelLoss(), batch)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(engine, "SHARED", shared)
                stepper = engine.Stepper(plan, clipper, FixedNoise(0), torch.device("cpu"))
            types |= {value.dtype for value in clipper.sums(batch, 1.0, 2)[0].values()}
            released.append(stepper.gradient(batch))
        assert len(types) == 2 or dtype != torch.float32
        for name, value in released[0].items():
            assert all(torch.equal(value, other[name]) for other in released[1:])


def divided_in_the_type_of_the_sum(self, rows):
    parameters, found = self.clipper.parameters, {}
    for names, row in zip(self._rows, rows, strict=True):
        parts = row.div_(engine.normaliser(self.plan)).split([parameters[name].numel() for name in names])
        for name, part in zip(names, parts, strict=True):
            found[name] = part.view(parameters[name].shape).to(engine.state_dtype(parameters[name]))
    return found


def test_a_quotient_in_the_type_of_the_sum(monkeypatch):
    check_the_type_of_a_sum_leaves_no_bit()
    monkeypatch.setattr(engine.Stepper, "_by_name", divided_in_the_type_of_the_sum)
    caught(check_the_type_of_a_sum_leaves_no_bit)
