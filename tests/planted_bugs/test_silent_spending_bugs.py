"""Each line that keeps a budget from being spent in silence, or records from being talked of: broken, and noticed."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sgd"))

import silent_checks as checks

from dpml import running, trainer
from dpml.data import arrays
from dpml.sgd import batch_limits, engine, learnable


def caught(check, *arguments):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(*arguments)


def test_a_look_that_waits_until_the_data_are_read(monkeypatch, tmp_path):
    checks.refused_before_data_are_read(tmp_path / "whole")
    monkeypatch.setattr(trainer, "refuse_unlearnable", lambda *_: None)
    caught(checks.refused_before_data_are_read, tmp_path / "broken")


def test_losses_that_depend_on_no_parameter_and_pass(monkeypatch, tmp_path):
    monkeypatch.setattr(learnable, "refuse_silent", lambda *_: None)
    caught(checks.refused_before_data_are_read, tmp_path)


def test_an_engine_that_charges_for_it(monkeypatch):
    checks.refused_by_the_engine()
    monkeypatch.setattr(engine, "refuse_silent", lambda *_: None)
    caught(checks.refused_by_the_engine)


def test_memory_that_is_looked_for_too_late(monkeypatch, tmp_path):
    class Blind:
        fault = None

    monkeypatch.setattr(learnable, "Clipper", lambda *_: Blind())
    caught(checks.refused_before_data_are_read, tmp_path)


def test_a_run_without_any_contribution_that_says_so_aloud(monkeypatch, tmp_path):
    checks.spoilt_records_show_nowhere(tmp_path / "whole")
    monkeypatch.setattr(running._log, "info", running._log.warning)
    caught(checks.spoilt_records_show_nowhere, tmp_path / "broken")


def test_a_run_without_any_contribution_that_its_custodian_never_hears_of(monkeypatch, tmp_path):
    monkeypatch.setattr(trainer, "silent_warning", lambda _: {})
    caught(checks.spoilt_records_show_nowhere, tmp_path)


def test_an_item_that_raises_and_is_logged(monkeypatch, tmp_path):
    whole = arrays._items

    def talking(dataset, shape, index=None):
        X, y = whole(dataset, shape, index)
        if None in y:
            logging.getLogger("dpml").warning("an item raised")
        return X, y

    monkeypatch.setattr(arrays, "_items", talking)
    caught(checks.spoilt_records_show_nowhere, tmp_path)


def test_a_look_at_the_records_in_every_run(monkeypatch, tmp_path):
    checks.the_look_is_never_part_of_a_run(tmp_path / "whole")
    whole = trainer.PrivateTrainer.fit

    def looking(self, data, **more):
        self.check_records(data)
        return whole(self, data, **more)

    monkeypatch.setattr(trainer.PrivateTrainer, "fit", looking)
    caught(checks.the_look_is_never_part_of_a_run, tmp_path / "broken")


@pytest.mark.parametrize("broken", ["no limit", "the mean only"])
def test_batches_beyond_what_is_proved(monkeypatch, broken):
    checks.larger_batches_are_refused()
    limit = {"no limit": lambda n, *_: n, "the mean only": lambda n, *_: min(n, 2**20)}[broken]
    monkeypatch.setattr(batch_limits, "largest_batch", limit)
    caught(checks.larger_batches_are_refused)
