"""Planted bugs of methods other than DP-SGD that a two-world audit alone finds, and bugs in the audit of whole runs.

The first table: one seam of a method is patched, and the audit, which sees released models only, must contradict the
claim of ε = 1 at 99.9 % confidence.  The second: one seam of the audit is patched, and the named check must fail.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import audit_checks
import numpy as np
import pytest
import torch
from run_faults import RUN_BUGS, Case, audited

from dpml import PrivateData, PrivateTrainer
from dpml.audit import canary_runs, refits, runs
from dpml.errors import ConfigError
from dpml.mechanisms import FixedNoise

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _repeatable(monkeypatch: Patch) -> None:
    """Fixed noise, other in each world: what is found is the same in every run."""
    audit_checks.make_repeatable(monkeypatch)
    numbers = iter(range(10**6))
    for place in ("dpml.audit.refits.SecretNoise", "run_faults.SecretNoise"):
        monkeypatch.setattr(place, lambda threads=1: FixedNoise(next(numbers)))


# ------------------------------------------------------------------------------------------- bugs that audits find


@pytest.mark.parametrize(
    ("bug", "case", "count"), [pytest.param(bug, case, count, id=bug.__name__) for bug, case, count, _ in RUN_BUGS]
)
def test_an_audit_of_runs_finds_a_bug_of_the_method(
    bug: Callable[[Patch], None], case: Case, count: int, monkeypatch: Patch
) -> None:
    bug(monkeypatch)
    assert audited(case, count).exceeds(1.0)


def test_the_same_audits_contradict_nothing_without_a_bug() -> None:
    """A quarter of the runs, at the confidence that has a false alarm of 1e-6."""
    cases = {str(case): (case, count) for _, case, count, _ in RUN_BUGS}
    for case, count in cases.values():
        assert not audited(case, count // 4, confidence=0.999999).exceeds(1.0)


# ----------------------------------------------------------------------------------------------- bugs of the audit


def small() -> PrivateData:
    return PrivateData.synthetic(n=50, d=5)


def check_worlds_differ_in_one_record() -> None:
    for replace in (False, True):
        worlds = refits.Worlds(None, "logreg", "output", 2, 3, 1.0, 4, replace)
        first, second = worlds.records(0), worlds.records(1)
        assert len(second.y) - len(first.y) == (0 if replace else 1)
        assert int((first.y[:4] != second.y[:4]).sum()) == 0


def check_rows_are_within_the_public_bound() -> None:
    worlds = refits.Worlds(None, "logreg", "output", 2, 3, 0.5, 4, False)
    assert float(np.linalg.norm(worlds.records(1).X, axis=1).max()) <= 0.5


def check_no_run_is_used_twice() -> None:
    plan = PrivateTrainer(method="output", epsilon=1.0).plan(small())
    worlds = refits.Worlds(plan.parameters, "logreg", "output", 2, plan.parameters.n_features, 1.0, 2, False)
    out, inside = refits.all_scores(worlds, 600, 1)
    assert len(np.unique(np.concatenate([out, inside]))) == 600


def check_a_stand_in_reads_no_record() -> None:
    def read(*_: Any, **__: Any) -> Any:
        raise AssertionError("a record was read")

    data = PrivateData(small().public, read)
    PrivateTrainer("logreg", "dp_sgd", epsilon=1.0, steps=2).audit(data, on="stand_in", canaries=20)


def check_a_private_table_is_not_spent_unasked() -> None:
    public = small().public
    assert public.is_public
    arrays = PrivateData.from_arrays(np.zeros((3, 4)), [0, 1, 0], norm_bound=1.0, classes=[0, 1], n_declared=50)
    assert not PrivateTrainer("logreg", "dp_sgd", epsilon=1.0, steps=2).audit(arrays, canaries=20).charged


def check_private_records_are_never_canaries() -> None:
    arrays = PrivateData.from_arrays(np.zeros((30, 4)), [0] * 30, norm_bound=1.0, classes=[0, 1], n_declared=50)
    trainer = PrivateTrainer("logreg", "dp_sgd", epsilon=1.0, steps=2)
    with pytest.raises((ConfigError, AssertionError), match="no one's records"):
        trainer.audit(arrays, on="records", access="black_box", canary="mislabelled", canaries=5)


def check_the_run_says_that_its_model_holds_canaries() -> None:
    found = PrivateTrainer("logreg", "dp_sgd", epsilon=1.0, steps=2).audit(small(), canaries=20)
    assert any(text.startswith("AUDIT: half of 20 canaries") for text in found.plan.guarantee.assumptions)


def check_signs_cancel_a_background() -> None:
    signs = canary_runs.step_signs(50, 8)
    assert not (signs @ np.linspace(1.0, 2.0, 8)).round(9).any()


def check_a_momentum_is_taken_off() -> None:
    """sgd with momentum 0.9: moments 1, 1.9, 2.71 are gradients of 1 in each step."""
    plan = PrivateTrainer("logreg", "dp_sgd", epsilon=1.0, steps=3, momentum=0.9).plan(small()).parameters
    reader = canary_runs.StepReader(plan, None, np.array([0]), canary_runs.Clock(), None)
    for moment in (1.0, 1.9, 2.71):
        state = {"optimizer": {"momentum": {"w": torch.full((2,), moment, dtype=torch.float64)}}, "clip": 1.0}
        reader.on_state(state)
    assert np.allclose(np.array(reader.shares) / plan.expected_batch_size, 1.0)


def check_an_audit_is_charged_step_by_step() -> None:
    """The bound is only worth something if the steps that it looked at are those of the ledger."""
    found = PrivateTrainer("logreg", "dp_sgd", epsilon=1.0, steps=3).audit(small(), canaries=20)
    assert found.plan.parameters.checkpoint_every == 1
    assert found.plan.steps == 3


def check_no_duration_is_published(folder: Path) -> None:
    folder.mkdir()
    runs.write(folder, PrivateTrainer("logreg", "dp_sgd", epsilon=1.0, steps=2).audit(small(), on="stand_in"), None)
    text = (folder / "audit.json").read_text("utf-8")
    assert "seconds" not in text
    assert "time" not in text


def caught(check: Callable[..., None], *arguments: Any) -> None:
    with pytest.raises(AssertionError):
        check(*arguments)


def test_two_records_more(monkeypatch: Patch) -> None:
    check_worlds_differ_in_one_record()
    real = refits.Worlds.records

    def records(worlds: Any, world: int) -> Any:
        found = real(worlds, world)
        return refits.Records(X=np.vstack([found.X, found.X[:world]]), y=np.append(found.y, found.y[:world]))

    monkeypatch.setattr(refits.Worlds, "records", records)
    caught(check_worlds_differ_in_one_record)


def test_rows_beyond_the_bound(monkeypatch: Patch) -> None:
    check_rows_are_within_the_public_bound()
    real = refits.Worlds.records
    monkeypatch.setattr(
        refits.Worlds, "records", lambda w, world: refits.Records(X=2 * real(w, world).X, y=real(w, world).y)
    )
    caught(check_rows_are_within_the_public_bound)


def test_runs_with_the_same_noise(monkeypatch: Patch) -> None:
    check_no_run_is_used_twice()
    monkeypatch.setattr(refits, "SecretNoise", lambda threads=1: FixedNoise(0))
    caught(check_no_run_is_used_twice)


def test_a_stand_in_that_reads_the_data(monkeypatch: Patch) -> None:
    check_a_stand_in_reads_no_record()
    real = canary_runs.with_canaries
    monkeypatch.setattr(canary_runs, "with_canaries", lambda data, x, y, *, alone: real(data, x, y, alone=False))
    caught(check_a_stand_in_reads_no_record)


def test_private_data_taken_for_public(monkeypatch: Patch) -> None:
    check_a_private_table_is_not_spent_unasked()
    real = runs.settled
    monkeypatch.setattr(runs, "settled", lambda asked, **facts: real(asked, **{**facts, "is_public": True}))
    caught(check_a_private_table_is_not_spent_unasked)


def test_private_records_as_canaries(monkeypatch: Patch) -> None:
    check_private_records_are_never_canaries()
    real = runs.settled
    monkeypatch.setattr(runs, "settled", lambda asked, **facts: real(asked, **{**facts, "is_public": True}))
    caught(check_private_records_are_never_canaries)


def test_a_model_with_canaries_that_does_not_say_so(monkeypatch: Patch) -> None:
    check_the_run_says_that_its_model_holds_canaries()
    monkeypatch.setattr(runs, "_says_so", lambda trainer, settings: trainer.assumptions)
    caught(check_the_run_says_that_its_model_holds_canaries)


def test_signs_that_do_not_cancel(monkeypatch: Patch) -> None:
    check_signs_cancel_a_background()
    monkeypatch.setattr(canary_runs, "step_signs", lambda count, steps: np.ones((count, steps), dtype=np.int8))
    caught(check_signs_cancel_a_background)


def test_the_momentum_left_in(monkeypatch: Patch) -> None:
    check_a_momentum_is_taken_off()
    real = canary_runs.StepReader.on_state

    def forgetful(reader: Any, state: Any) -> None:
        reader._last = 0.0
        real(reader, state)

    monkeypatch.setattr(canary_runs.StepReader, "on_state", forgetful)
    caught(check_a_momentum_is_taken_off)


def test_steps_charged_in_blocks_that_are_not_looked_at(monkeypatch: Patch) -> None:
    check_an_audit_is_charged_step_by_step()
    real = runs._derived
    monkeypatch.setattr(
        runs, "_derived", lambda trainer, **changes: real(trainer, **{**changes, "checkpoint_every": 3})
    )
    caught(check_an_audit_is_charged_step_by_step)


def test_a_duration_in_the_release(monkeypatch: Patch, tmp_path: Path) -> None:
    check_no_duration_is_published(tmp_path / "whole")
    real = runs.RunAudit.to_dict
    monkeypatch.setattr(runs.RunAudit, "to_dict", lambda found: {**real(found), "seconds": 1.0})
    caught(check_no_duration_is_published, tmp_path / "broken")
