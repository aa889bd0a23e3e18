"""Each privacy-critical line of DP-SGD, broken on purpose at one seam: the named check fails, and passes when whole."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "sgd"))

import sgd_faults as checks

from dpml.sgd import clipping, engine, per_example

KINDS = ["one backward", "per example"]


def caught(check, *arguments):
    """The check finds the fault (a fault that crashes the fit would not count)."""
    with pytest.raises(AssertionError):
        check(*arguments)


def test_half_noise(monkeypatch):
    checks.noise_has_the_planned_variance()
    monkeypatch.setattr(engine, "noise_std", lambda plan, clip: clip * plan.noise_multiplier / 2)
    caught(checks.noise_has_the_planned_variance)


@pytest.mark.parametrize("kind", KINDS)
def test_no_clip(monkeypatch, kind):
    checks.one_record_moves_a_step_by_at_most_c_over_b(kind)
    monkeypatch.setattr(clipping, "clip_factors", lambda norms, bound: torch.ones_like(norms))
    caught(checks.one_record_moves_a_step_by_at_most_c_over_b, kind)


def test_the_drawn_batch_as_normaliser(monkeypatch):
    checks.the_normaliser_is_public()
    whole = engine.Stepper.gradient

    def by_drawn_size(self, batch):
        result = whole(self, batch)
        return {k: v * self.plan.expected_batch_size / max(len(batch[0]), 1) for k, v in result.items()}

    monkeypatch.setattr(engine.Stepper, "gradient", by_drawn_size)
    caught(checks.the_normaliser_is_public)


def test_the_actual_number_of_records_in_the_normaliser(monkeypatch):
    checks.the_normaliser_is_public()
    seen = []
    whole = engine.poisson_indices
    monkeypatch.setattr(engine, "poisson_indices", lambda noise, n, q: seen.append(n * q) or whole(noise, n, q))
    checks.the_normaliser_is_public()  # listening alone is no fault
    monkeypatch.setattr(engine, "normaliser", lambda plan: seen[-1])
    caught(checks.the_normaliser_is_public)


def test_the_actual_number_of_records_in_the_sample_rate(monkeypatch):
    checks.the_sample_rate_is_public()
    whole = engine.poisson_indices
    monkeypatch.setattr(engine, "poisson_indices", lambda noise, n, q: whole(noise, n, min(1.0, 10 / n)))
    caught(checks.the_sample_rate_is_public)


def test_noise_once_per_micro_batch(monkeypatch):
    checks.noise_has_the_planned_variance(10)
    checks.one_noise_draw_per_step()
    whole, noise = clipping.clip_and_sum, checks.RecordingNoise(9)

    def noisy(per_example, bound, *how):
        sums, norms = whole(per_example, bound, *how)
        return {
            k: v + torch.from_numpy(noise.normal(2.0 * bound, v.numel())).reshape(v.shape) for k, v in sums.items()
        }, norms

    monkeypatch.setattr(clipping, "clip_and_sum", noisy)
    caught(checks.noise_has_the_planned_variance, 10)


def test_one_noise_draw_per_micro_batch_from_the_source(monkeypatch):
    checks.one_noise_draw_per_step()
    whole = engine.draw_noise

    def per_micro_batch(*asked):
        return sum(whole(*asked) for _ in range(3))

    monkeypatch.setattr(engine, "draw_noise", per_micro_batch)
    caught(checks.one_noise_draw_per_step)


def test_one_step_not_recorded(monkeypatch):
    checks.every_step_is_charged()
    monkeypatch.setattr(
        engine, "charge_block", lambda plan, reserve, count: reserve(plan.event_per_step, max(count - 1, 1))
    )
    caught(checks.every_step_is_charged)


def test_use_before_the_reservation(monkeypatch):
    checks.nothing_is_drawn_before_it_is_charged()
    late = []

    def a_block_late(plan, reserve, count):
        if late:
            reserve(plan.event_per_step, late.pop())
        late.append(count)

    monkeypatch.setattr(engine, "charge_block", a_block_late)
    caught(checks.nothing_is_drawn_before_it_is_charged)


def test_one_noise_draw_used_again(monkeypatch):
    checks.noise_is_fresh_in_every_step_and_coordinate()
    whole, kept = engine.draw_noise, []

    def frozen(*asked):
        kept.append(whole(*asked).copy())
        return kept[(len(kept) - 1) // 2 * 2].copy()  # every draw serves two steps

    monkeypatch.setattr(engine, "draw_noise", frozen)
    caught(checks.noise_is_fresh_in_every_step_and_coordinate)


@pytest.mark.parametrize("shared", [0, engine.SHARED])
def test_parameters_left_out_of_the_pieces(monkeypatch, shared):
    monkeypatch.setattr(engine, "SHARED", shared)
    checks.noise_has_the_planned_variance()
    whole = engine.in_pieces
    monkeypatch.setattr(engine, "in_pieces", lambda *asked: [piece[:-1] for piece in whole(*asked)])
    caught(checks.noise_has_the_planned_variance)


def test_one_noise_draw_shared_by_coordinates(monkeypatch):
    checks.noise_is_fresh_in_every_step_and_coordinate()
    whole = engine.draw_noise
    monkeypatch.setattr(
        engine, "draw_noise", lambda *asked: np.repeat(whole(*asked[:-1], (asked[-1] + 1) // 2), 2)[: asked[-1]]
    )
    caught(checks.noise_is_fresh_in_every_step_and_coordinate)


@pytest.mark.parametrize("kind", KINDS)
def test_a_nan_record_that_spreads(monkeypatch, kind):
    checks.a_nan_record_changes_nothing_else(kind)
    monkeypatch.setattr(clipping, "without", lambda rows, keep: rows)
    caught(checks.a_nan_record_changes_nothing_else, kind)


def test_charged_steps_run_again(monkeypatch):
    checks.charged_steps_are_not_run_again()
    whole = engine.completed_state
    monkeypatch.setattr(engine, "completed_state", lambda start, *arguments: {**whole(start, *arguments), "step": 5})
    caught(checks.charged_steps_are_not_run_again)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_in_single_precision(monkeypatch, kind):
    checks.one_record_more_moves_a_large_sum_by_at_most_c(kind)
    whole = clipping.clip_and_sum
    kept = {}

    def running_sum(gradients, *arguments):
        """Micro-batches added up in float32: what each returns is the step of a float32 running sum."""
        sums, norms = whole(gradients, *arguments)
        before = dict(kept)
        for name, value in sums.items():
            kept[name] = kept.get(name, torch.zeros_like(value).float()) + value.float()
        return {k: kept[k].double() - before.get(k, torch.zeros_like(kept[k])).double() for k in sums}, norms

    monkeypatch.setattr(clipping, "clip_and_sum", running_sum)
    call = clipping.Clipper.sums
    monkeypatch.setattr(clipping.Clipper, "sums", lambda *arguments: (kept.clear(), call(*arguments))[1])
    caught(checks.one_record_more_moves_a_large_sum_by_at_most_c, kind)


def test_a_record_that_stops_the_run(monkeypatch):
    checks.a_record_that_raises_changes_nothing_else()
    monkeypatch.setattr(per_example, "_alone", lambda gradient, values, record: gradient(values, record))
    caught(checks.a_record_that_raises_changes_nothing_else)


def test_a_record_that_raises_takes_its_half_of_the_batch_along(monkeypatch):
    checks.a_record_that_raises_changes_nothing_else()

    def all_or_nothing(self, part, size, _least, *rest):
        try:
            found = self._batches.gradients(part, size, self._recipe)[0]
        except IndexError:
            yield {}, torch.full((size,), torch.nan, dtype=torch.float64)
        else:
            yield self._summed(found, size, *rest)

    monkeypatch.setattr(clipping.Clipper, "_clipped", all_or_nothing)
    caught(checks.a_record_that_raises_changes_nothing_else)
