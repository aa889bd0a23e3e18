"""Resume of DP-SGD, broken on purpose at one seam each: a named check notices.

The checks are those of ``tests/sgd``: what a witness saw of all lives of a run, or a refusal that must come.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sgd"))

from resume_checks import (
    AskedForNoise,
    Killed,
    Witness,
    check_lives,
    checkpoint_path,
    closed_run,
    edit_arguments,
    fit,
    kill,
    killed_run,
    ledger_path,
    lives,
    one_value,
    refused,
    table,
)

from dpml import PrivateTrainer, accounting, resuming, sgd, trainer
from dpml.errors import ConfigError, LedgerError, ModelError
from dpml.mechanisms import FixedNoise, SecretNoise
from dpml.sgd import engine, states

POINTS = [("after noise", 2), ("after step", 6), ("after checkpoint", 1)]


def caught(check, *arguments, words):
    """The check finds the fault by an assertion that says so (a fault that crashes would not count)."""
    with pytest.raises(AssertionError, match=words):
        check(*arguments)


def test_the_whole_code_passes(monkeypatch, tmp_path):
    lives(monkeypatch, tmp_path / "run", POINTS)


# -- randomness of an earlier life ------------------------------------------------------------------------------------
class Rebuilt(FixedNoise):
    """A source that comes back from a stored seed."""

    secret = True

    def __init__(self):
        super().__init__(7)


class OldCoins(SecretNoise):
    """Fresh noise, but the sampler goes on from a stored state."""

    __slots__ = ("_coins",)

    def __init__(self):
        super().__init__()
        self._coins = FixedNoise(7)

    def uniform(self, size):
        return self._coins.uniform(size)


def test_noise_reuse_after_resume_is_found(monkeypatch, tmp_path):
    caught(lives, monkeypatch, tmp_path / "run", POINTS, Rebuilt, words="the same normal values came twice")


def test_sampler_reuse_after_resume_is_found(monkeypatch, tmp_path):
    caught(lives, monkeypatch, tmp_path / "run", POINTS, OldCoins, words="the same uniform values came twice")


# -- charged and used -------------------------------------------------------------------------------------------------
def test_charged_steps_that_are_run_again_are_found(monkeypatch, tmp_path):
    """The unused rest of a block is made up for: its steps were charged, so they are spent."""
    real = resuming.charged_steps
    monkeypatch.setattr(trainer, "charged_steps", lambda *a: max(real(*a) - 2, 0))
    caught(lives, monkeypatch, tmp_path / "run", POINTS, words="step was run again")


def test_the_checkpoints_step_taken_for_the_charged_count_is_found(monkeypatch, tmp_path):
    folder = tmp_path / "run"

    def of_checkpoint(ledger, plan):
        path = checkpoint_path(folder)
        return states.load_state(path)["step"] if path.exists() else 0

    monkeypatch.setattr(trainer, "charged_steps", of_checkpoint)
    caught(lives, monkeypatch, folder, POINTS, words="step was run again")


def test_a_reservation_after_its_use_is_found(monkeypatch, tmp_path):
    """Each block charges the one before it; the last is charged at the end, so that the total is right."""
    owed = []

    def late(plan, reserve, count):
        if owed:
            reserve(plan.event_per_step, owed.pop())
        owed.append(count)

    monkeypatch.setattr(engine, "charge_block", late)
    caught(lives, monkeypatch, tmp_path / "run", POINTS, words="noise vectors used, . steps charged")


def test_more_reservations_than_the_plan_has_are_found(monkeypatch, tmp_path):
    """A resumed run that starts its count afresh."""
    monkeypatch.setattr(trainer, "charged_steps", lambda *_: 0)
    caught(lives, monkeypatch, tmp_path / "run", POINTS, words="step was run again")


def test_a_model_that_starts_afresh_after_resume_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(trainer, "read_checkpoint", lambda *_: {})
    caught(lives, monkeypatch, tmp_path / "run", POINTS, words="did not go on from the checkpoint")


# -- refusals ---------------------------------------------------------------------------------------------------------
def must_refuse(folder, data, match, kind=ConfigError):
    """AssertionError where a resume that must be refused comes as far as asking for noise."""
    try:
        refused(folder, data, match, kind)
    except AskedForNoise as error:
        raise AssertionError("it was not refused") from error


def test_a_skipped_comparison_of_the_records_is_found(monkeypatch, tmp_path):
    killed_run(tmp_path / "run")
    must_refuse(tmp_path / "run", table(change=one_value), "very same records")
    monkeypatch.setattr(trainer.hmac, "compare_digest", lambda *_: True)
    caught(must_refuse, tmp_path / "run", table(change=one_value), "very same records", words="not refused")


def test_a_mac_of_the_first_records_only_is_found(monkeypatch, tmp_path):
    """It leaves the 18th record's change unseen."""
    real = trainer.records_mac

    def short(key, records):
        return real(key, replace(records, X=np.asarray(records.X)[:5]))

    monkeypatch.setattr(trainer, "records_mac", short)
    killed_run(tmp_path / "run")
    caught(must_refuse, tmp_path / "run", table(change=one_value), "very same records", words="not refused")


@pytest.mark.parametrize("name", ["noise_multiplier", "expected_batch_size", "clipping"])
def test_a_difference_of_plans_that_is_let_pass_is_found(monkeypatch, tmp_path, name):
    value = {"noise_multiplier": 2.5, "expected_batch_size": 16, "clipping": "per_layer"}[name]
    killed_run(tmp_path / "run")
    edit_arguments(tmp_path / "run", **{name: value})
    must_refuse(tmp_path / "run", table(), name)
    monkeypatch.setattr(trainer, "refuse_differences", lambda *_: None)
    caught(must_refuse, tmp_path / "run", table(), name, words="not refused")


def test_a_checkpoint_of_another_run_that_is_taken_is_found(monkeypatch, tmp_path):
    killed_run(tmp_path / "run")
    killed_run(tmp_path / "other")
    checkpoint_path(tmp_path / "run").write_bytes(checkpoint_path(tmp_path / "other").read_bytes())
    must_refuse(tmp_path / "run", table(), "another run", ModelError)
    monkeypatch.setattr(resuming, "run_tag", lambda _: None)
    caught(must_refuse, tmp_path / "run", table(), "another run", ModelError, words="not refused")


def test_a_ledger_whose_whole_last_line_is_thrown_away_is_found(monkeypatch, tmp_path):
    """The line lost its end after its steps were used: the next life charges and runs them a second time."""

    def second_life(folder):
        log = folder.with_suffix(".log")
        with monkeypatch.context() as patch:
            Witness(patch.setattr, folder, log, stop=kill, point="after noise", nth=6)
            with pytest.raises(Killed):
                fit(folder)
        path = ledger_path(folder)
        path.write_bytes(path.read_bytes()[:-1])
        with monkeypatch.context() as patch:
            Witness(patch.setattr, folder, log, stop=kill, point="after noise", nth=4)
            with pytest.raises(Killed):
                PrivateTrainer.resume(folder, table())
        check_lives(folder, log)

    second_life(tmp_path / "whole")
    monkeypatch.setattr(trainer, "finish_last_line", lambda _: None)
    caught(second_life, tmp_path / "broken", words="noise vectors used, . steps charged")


def test_a_closed_run_with_another_result_that_is_released_is_found(monkeypatch, tmp_path):
    real = sgd.tensors.weights_of

    def released_or_refused(folder):
        closed_run(folder, monkeypatch)
        with monkeypatch.context() as patch:
            patch.setattr(sgd, "weights_of", lambda model: {k: v + 1 for k, v in real(model).items()})
            try:
                PrivateTrainer.resume(folder, table())
            except LedgerError:
                return
        assert accounting.verify(folder).ok, "released, and the ledger does not hold"

    released_or_refused(tmp_path / "whole")
    monkeypatch.setattr(trainer, "refuse_other_outcome", lambda *_: None)
    caught(released_or_refused, tmp_path / "broken", words="does not hold")
