"""Whole runs with stages: one ledger from table to metric, strange tables, and what a stop leaves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import stage_checks as checks
from small_tables import people
from stage_checks import RELATIONS, SHARES, open_table, stage_trainer

from dpml import PrivateTrainer, accounting, load
from dpml.accounting import DatasetLedger
from dpml.errors import BudgetExceededError, RunFolderError
from dpml.mechanisms import FixedNoise
from dpml.release import RunFolder


# -- whole runs -------------------------------------------------------------------------------------------------------
def test_every_stage_is_charged_before_it_draws(tmp_path: Path) -> None:
    checks.check_every_stage_is_charged_before_it_draws(tmp_path)


def test_a_single_far_record_moves_no_bound(tmp_path: Path) -> None:
    checks.check_bounds_are_noisy(tmp_path)


def test_hold_out_records_are_not_trained_on(tmp_path: Path) -> None:
    checks.check_hold_out_is_not_trained_on(tmp_path)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("method", ["dp_sgd", "objective"])
def test_one_ledger_from_table_to_metric(method: str, relation: str, tmp_path: Path) -> None:
    ledger = tmp_path / "all.jsonl"
    trainer = stage_trainer(
        method, neighboring_relation=relation, run_dir=tmp_path / "run", dataset_ledger=ledger, dataset_epsilon=5.0,
        dataset_delta=1e-4,
    )  # fmt: skip
    result = trainer.fit(open_table(tmp_path / "data"))
    verification = accounting.verify(tmp_path / "run")
    assert verification.ok, verification.problems
    assert 3.9 < result.guarantee.epsilon <= 4.0
    charged = checks.charges(tmp_path / "run")
    assert [name for name, _ in charged if name != "train"] == ["bounds", "categories", "labels", "metrics"]
    written = checks.result_of(tmp_path / "run")
    assert written["metrics"]["how"] == "charged noise"
    assert written["metrics"]["accuracy_low"] < written["metrics"]["accuracy"] < written["metrics"]["accuracy_high"]
    assert set(written["stages"]) == set(SHARES)
    schema = json.loads((tmp_path / "run/release/schema.json").read_text())
    found = written["stages"]["bounds"]["columns"]
    assert schema["columns"]["age"]["bounds"] == found["age"]["bounds"]
    assert schema["columns"]["town"]["categories"] == ["a", "b", "c", "(unused 1)", "(unused 2)"]
    model = load(tmp_path / "run/release")
    frame = people(2000, seed=9)
    assert (model.predict(frame) == frame["label"]).mean() > 0.65  # a constant guess has 0.57
    assert DatasetLedger(ledger, 5.0, 1e-4, neighboring_relation=relation).total() == (4.0, 1e-5)
    trainer.run_dir, data = tmp_path / "again", open_table(tmp_path / "data")
    with pytest.raises(BudgetExceededError):
        trainer.fit(data)


@pytest.mark.parametrize("method", ["dp_sgd", "output"])
def test_strange_tables_are_released_like_any_other(method: str, tmp_path: Path) -> None:
    """No records, one record, a column of NaN: a run all the same, with the same plan and the same charges."""
    full = people(300)
    frames = [full.iloc[:0], full.iloc[:1], full.assign(age=math.nan), full.assign(town=None, label="?")]
    seen = []
    for k, frame in enumerate(frames):
        data = open_table(tmp_path / f"data{k}", frame)
        result = stage_trainer(method, run_dir=tmp_path / f"run{k}").fit(data)
        release = tmp_path / f"run{k}/release"
        seen.append((result.plan.to_dict(), checks.charges(tmp_path / f"run{k}"), {p.name for p in release.iterdir()},
                     set(result.metrics), result.model.weights["weight"].shape))  # fmt: skip
        assert accounting.verify(tmp_path / f"run{k}").ok
        assert 0.0 <= result.metrics["accuracy"] <= 1.0
    assert all(one == seen[0] for one in seen[1:])


def test_a_record_changes_charged_values_only(tmp_path: Path) -> None:
    """Neighbours under the same test noise: all but stages, metrics, model and ledger hashes are equal."""
    results = []
    for k, frame in enumerate((people(400), people(400).iloc[:-1])):
        data = open_table(tmp_path / f"data{k}", frame)
        stage_trainer(noise_source=FixedNoise(4), run_dir=tmp_path / str(k)).fit(data)
        result = checks.result_of(tmp_path / str(k))
        charged = {name: result.pop(name) for name in ("stages", "metrics", "ledger")}
        results.append((result, checks.charges(tmp_path / str(k)), set(charged["metrics"]), charged["ledger"]["count"]))
    assert results[0] == results[1]


# -- a stop -----------------------------------------------------------------------------------------------------------
def test_a_resumed_run_runs_no_stage_again(tmp_path: Path) -> None:
    checks.check_resume_runs_no_stage_again(tmp_path)


@pytest.mark.parametrize("last", ["bounds", "labels"])
def test_a_run_killed_between_stages_is_lost_and_says_so(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(self: RunFolder, name: str, content: Any) -> Path:
        if name == "stages.json" and last in content:
            raise KeyboardInterrupt
        return real(self, name, content)

    real = RunFolder.keep
    monkeypatch.setattr(RunFolder, "keep", keep)
    data = open_table(tmp_path / "data")
    with pytest.raises(KeyboardInterrupt):
        stage_trainer("dp_sgd", run_dir=tmp_path / "run").fit(data)
    before = checks.charges(tmp_path / "run")
    assert before[-1][0] == last
    with pytest.raises(
        RunFolderError, match=rf"charged stages \(.*{last}\) are lost, stay spent and are not run again"
    ):
        PrivateTrainer.resume(tmp_path / "run", data)
    assert checks.charges(tmp_path / "run") == before


def test_metrics_that_were_charged_and_not_kept_are_lost(tmp_path: Path) -> None:
    checks.check_lost_metrics_are_not_drawn_again(tmp_path)


def test_metrics_that_were_kept_are_shown_by_the_next_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpml import trainer as module

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    data = open_table(tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(module, "recompute", stop)
        with pytest.raises(KeyboardInterrupt):
            stage_trainer("dp_sgd", run_dir=tmp_path / "run").fit(data)
    kept = json.loads((tmp_path / "run/private/stages.json").read_text())
    result = PrivateTrainer.resume(tmp_path / "run", data)
    assert result.metrics["accuracy"] == kept["metrics"]["accuracy"]["value"]
    assert accounting.verify(tmp_path / "run").ok


@pytest.mark.parametrize("damage", ["missing", "torn", "other bounds", "no object"])
def test_what_stages_gave_must_be_there_and_fit(damage: str, tmp_path: Path) -> None:
    run = checks.killed_in_training(tmp_path)
    path = run / "private/stages.json"
    kept = json.loads(path.read_text())
    if damage == "missing":
        path.unlink()
    else:
        kept["bounds"]["columns"]["age"]["bounds"] = [0.0, 64.5]
        path.write_text({"torn": "{", "no object": "[]"}.get(damage, json.dumps(kept)))
    before = checks.charges(run)
    with pytest.raises(RunFolderError, match=r"stages\.json' does not hold what the charged stages gave"):
        PrivateTrainer.resume(run, open_table(tmp_path / "data"))
    assert checks.charges(run) == before
