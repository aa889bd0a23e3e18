"""Each privacy-critical line of private gradient descent, broken on purpose: the named check must notice."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "erm"))

import gd_checks as checks
from erm_checks import CountingNoise

from dpml.accounting import Gaussian, SelfComposed
from dpml.erm import gradient_descent as gd


def caught(check, *arguments, **rest):
    """The check finds the fault (a fault that crashes the fit would not count)."""
    with pytest.raises(AssertionError):
        check(*arguments, **rest)


@pytest.mark.parametrize("name", checks.LOSSES)
def test_half_the_noise(name, monkeypatch):
    checks.check_noise_scale(name)
    honest = gd.noisy
    monkeypatch.setattr(gd, "noisy", lambda plan, total, noise: honest(plan, total, noise) / 2 + total / 2)
    caught(checks.check_noise_scale, name)


def test_one_draw_for_all_steps(monkeypatch):
    checks.check_noise_scale()
    drawn = []

    def reusing(plan, total, noise):
        drawn.append(noise.normal(plan.noise_std, total.shape))
        return total + drawn[0]

    monkeypatch.setattr(gd, "noisy", reusing)
    caught(checks.check_noise_scale)


def test_noise_in_the_first_step_only(monkeypatch):
    checks.check_event_covers_the_run()
    honest, count = gd.noisy, [0]

    def once(plan, total, noise):
        count[0] += 1
        return honest(plan, total, noise) if count[0] == 1 else total

    monkeypatch.setattr(gd, "noisy", once)
    caught(checks.check_noise_scale)


def test_noise_for_one_step_in_every_step(monkeypatch):
    """The √T forgotten: calibrated as one release."""
    checks.check_event_covers_the_run()
    monkeypatch.setattr(gd, "composed_event", lambda multiplier, steps: Gaussian(multiplier))
    caught(checks.check_event_covers_the_run)
    caught(checks.check_noise_scale)


@pytest.mark.parametrize("relation", checks.RELATIONS)
def test_one_step_less_in_the_event(relation, monkeypatch):
    checks.check_event_covers_the_run("logistic", relation)
    monkeypatch.setattr(
        gd, "composed_event", lambda multiplier, steps: SelfComposed(event=Gaussian(multiplier), count=steps - 1)
    )
    caught(checks.check_event_covers_the_run, "logistic", relation)


def test_charged_one_step_less_than_calibrated(monkeypatch):
    checks.check_event_covers_the_run()
    honest = gd.plan_dp_gd

    def short(**arguments):
        plan = honest(**arguments)
        return dataclasses.replace(plan, event=SelfComposed(Gaussian(plan.noise_multiplier), plan.steps - 1))

    monkeypatch.setattr(gd, "plan_dp_gd", short)
    caught(checks.check_event_covers_the_run)


@pytest.mark.parametrize("relation", checks.RELATIONS)
@pytest.mark.parametrize("name", checks.CLIPS)
def test_clip_skipped(name, relation, monkeypatch):
    checks.check_sensitivity(name, relation, monkeypatch)
    monkeypatch.setattr(gd, "clip_factors", lambda sizes, max_grad_norm: np.ones_like(sizes))
    caught(checks.check_sensitivity, name, relation, monkeypatch)
    caught(checks.check_agrees_with_slow, name)


def test_clip_of_the_slope_without_the_row_length(monkeypatch):
    """|ℓ'| ≤ C where |ℓ'|·‖x‖ ≤ C is needed: wrong by norm_bound = 3."""
    checks.check_sensitivity("squared", "add_remove", monkeypatch)
    monkeypatch.setattr(gd, "row_norms", lambda rows: np.ones(rows.shape[0]))
    caught(checks.check_sensitivity, "squared", "add_remove", monkeypatch)


def test_root_two_of_softmax_forgotten(monkeypatch):
    checks.check_sensitivity("softmax", "add_remove", monkeypatch)
    checks.check_noise_scale("softmax")
    honest = gd.softmax_constants
    monkeypatch.setattr(
        gd, "softmax_constants", lambda radius, k: dataclasses.replace(honest(radius, k), lipschitz=radius)
    )
    caught(checks.check_noise_scale, "softmax")
    caught(checks.check_sensitivity, "softmax", "add_remove", monkeypatch)


@pytest.mark.parametrize("name", ["logistic", "huber"])
def test_norm_bound_forgotten(name, monkeypatch):
    checks.check_sensitivity(name, "add_remove", monkeypatch)
    monkeypatch.setattr(gd, "record_bound", lambda loss, norm_bound, clip: loss.constants(1.0).lipschitz)
    caught(checks.check_sensitivity, name, "add_remove", monkeypatch)
    caught(checks.check_noise_scale, name)


def test_rows_not_bounded(monkeypatch):
    checks.check_sensitivity("logistic", "add_remove", monkeypatch)
    honest = gd.bounded_rows
    monkeypatch.setattr(gd, "bounded_rows", lambda *args, norm_bound, **rest: honest(*args, norm_bound=1e4, **rest))
    caught(checks.check_sensitivity, "logistic", "add_remove", monkeypatch)


@pytest.mark.parametrize("name", checks.LOSSES)
def test_actual_number_of_records_as_normaliser(name, monkeypatch):
    checks.check_agrees_with_slow(name)
    monkeypatch.setattr(gd, "normaliser", lambda plan, rows: rows.shape[0])
    caught(checks.check_agrees_with_slow, name)


def test_replace_one_with_the_noise_of_add_remove(monkeypatch):
    checks.check_noise_scale("logistic", "replace_one")
    honest = gd.calibrate
    monkeypatch.setattr(
        gd,
        "calibrate",
        lambda make, *, neighboring_relation, **rest: honest(make, neighboring_relation="add_remove", **rest),
    )
    caught(checks.check_noise_scale, "logistic", "replace_one")
    caught(checks.check_event_covers_the_run, "logistic", "replace_one")
    caught(checks.check_sensitivity, "logistic", "replace_one", monkeypatch)


def test_charge_after_use(monkeypatch):
    checks.check_charge_comes_first()
    honest = gd.fit_dp_gd

    def late(plan, x, y, *, noise, charge, progress=None):
        result = honest(plan, x, y, noise=noise, charge=lambda event: None)
        charge(plan.event)
        return result

    monkeypatch.setattr(gd, "fit_dp_gd", late)
    caught(checks.check_charge_comes_first)
    assert CountingNoise().draws == 0
