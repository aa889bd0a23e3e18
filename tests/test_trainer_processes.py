"""``PrivateTrainer`` and ``python -m dpml.train`` under ``torchrun``: two processes, one run, one folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "sgd"))

from team_checks import Pair
from team_worker import ARGUMENTS, private_data, table

from dpml import PrivateSearch, PrivateTrainer
from dpml.accounting import read_ledger, verify
from dpml.errors import ConfigError
from dpml.mechanisms import FixedNoise


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    two = Pair(tmp_path_factory.mktemp("pair"))
    yield two
    two.close()


def finished(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert not [answer for answer in answers if "error" in answer], answers
    return answers


def written(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "release/result.json").read_text("utf-8")))


def test_two_processes_leave_one_run_and_hold_the_same_model(pair: Pair, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first, second = finished(pair.call("private_run", folder=folder))
    assert verify(folder).ok
    assert first["weights"].tobytes() == second["weights"].tobytes()
    np.testing.assert_array_equal(first["scores"], second["scores"])
    assert first["ledger"] == second["ledger"]
    assert first["guarantee"] == second["guarantee"]
    assert first["run_dir"] == folder
    assert second["run_dir"] is None
    assert second["private"] == {}
    counts = [line["count"] for line in read_ledger(folder / "release/ledger.jsonl").charges]
    assert counts == [2, 2, 2]
    assert written(folder)["plan"]["processes"] == 2
    assert len(json.loads((folder / "private/diagnostics.json").read_text("utf-8"))["batch_size"]) == 6


def test_epsilon_is_that_of_one_process(pair: Pair) -> None:
    first, _ = finished(pair.call("private_run"))
    one = PrivateTrainer(**ARGUMENTS).fit(private_data(*table()))
    assert first["guarantee"] == one.guarantee
    assert "processes" not in one.plan.to_dict()


def test_the_model_is_that_of_one_process_up_to_the_grid(pair: Pair) -> None:
    """Six steps, each off by a few roundings of 2⁻¹³ C at a rate that the plan says."""
    trainer = PrivateTrainer(**ARGUMENTS, noise_source=FixedNoise(5))
    one = trainer.fit(private_data(*table()))
    first, second = finished(pair.call("private_run", seed=5))
    assert first["private"]["batch_size"] == one.private["batch_size"]
    np.testing.assert_allclose(
        first["weights"], one.model.weights["weight"], atol=1e-3 * np.abs(first["weights"]).max()
    )
    assert first["weights"].tobytes() == second["weights"].tobytes()


@pytest.mark.parametrize(
    ("differing", "error", "message"),
    [
        ("records", "DataError", "process 1 does not hold the very same records"),
        ("plan", "ConfigError", "guarantee.epsilon: 1.0 → 0.9"),
    ],
)
def test_processes_with_other_records_or_arguments_draw_nothing(
    pair: Pair, tmp_path: Path, differing: str, error: str, message: str
) -> None:
    first, second = pair.call("private_run", folder=tmp_path / "run", differing=differing)
    assert second["error"] == error
    assert message in second["message"]
    assert first["error"] == "TeamError"
    assert f"process 1 failed ({error}, see its own message)" in first["message"]
    assert read_ledger(tmp_path / "run/release/ledger.jsonl").charges == ()


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failed_run_is_resumed_without_running_a_charged_step_again(pair: Pair, tmp_path: Path, failing: int) -> None:
    """Process 0 fails in step 3, or process 1 has other records: what is left runs on, in two processes."""
    folder = tmp_path / "run"
    failed = pair.call("private_run", folder=folder, fail=(0, 3))
    assert [answer["error"] for answer in failed] == ["MemoryError", "TeamError"]
    assert "process 0 failed (MemoryError" in failed[1]["message"]
    if failing == 1:
        again = pair.call("private_run", folder=folder, resume=True, differing="records")
        assert [answer["error"] for answer in again] == ["TeamError", "DataError"]
    assert sum(line["count"] for line in read_ledger(folder / "release/ledger.jsonl").charges) == 4
    first, second = finished(pair.call("private_run", folder=folder, resume=True))
    assert first["weights"].tobytes() == second["weights"].tobytes()
    assert first["private"]["steps_run"] == 2
    assert verify(folder).ok
    assert written(folder)["plan"]["processes"] == 2


def test_one_process_may_go_on_with_a_run_of_two(pair: Pair, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    pair.call("private_run", folder=folder, fail=(0, 3))
    result = PrivateTrainer.resume(folder, private_data(*table()))
    assert result.private["steps_run"] == 2
    assert verify(folder).ok


def test_a_stop_of_all_waits_for_the_checkpoint(pair: Pair, tmp_path: Path) -> None:
    """SIGTERM to both in step 3 of blocks of two: process 0 leaves after step 4, and no charged step is lost."""
    folder = tmp_path / "run"
    answers = pair.call("private_run", folder=folder, stop=pair.pids())
    assert [answer["error"] for answer in answers] == ["Stopped", "TeamError"]
    assert "process 0 failed (Stopped" in answers[1]["message"]
    first, _ = finished(pair.call("private_run", folder=folder, resume=True))
    assert [line["count"] for line in read_ledger(folder / "release/ledger.jsonl").charges] == [2, 2, 2]
    assert first["private"]["steps_run"] == 2


def test_a_killed_leader_loses_only_what_it_had_charged(pair: Pair, tmp_path: Path) -> None:
    """SIGKILL of process 0 in step 3 of blocks of two (the last test of the pair); one process goes on."""
    folder = tmp_path / "run"
    answers = pair.call("private_run", folder=folder, kill=(0, 3))
    assert [answer["error"] for answer in answers] == ["killed", "TeamError"]
    assert "another process is gone" in answers[1]["message"]
    result = PrivateTrainer.resume(folder, private_data(*table()))
    assert result.private["steps_run"] == 2
    assert [line["count"] for line in read_ledger(folder / "release/ledger.jsonl").charges] == [2, 2, 2]
    assert verify(folder).ok


# -- what several processes cannot do ---------------------------------------------------------------------------------
@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")


@pytest.mark.parametrize("method", ["objective", "output", "dp_gd"])
def test_other_methods_refuse_several_processes_by_name(two: None, method: str) -> None:
    for ask in (PrivateTrainer.plan, PrivateTrainer.check, PrivateTrainer.fit):
        with pytest.raises(ConfigError, match=rf"method = '{method}' cannot use several processes \(WORLD_SIZE = 2"):
            ask(PrivateTrainer("logreg", method), private_data(*table()))


def test_auto_refuses_by_the_method_that_it_stands_for(two: None) -> None:
    with pytest.raises(ConfigError, match="method = 'objective' cannot use several"):
        PrivateTrainer("logreg").plan(private_data(*table()))


def test_fixed_size_and_search_refuse_several_processes(two: None) -> None:
    trainer = PrivateTrainer(**ARGUMENTS, sampling="fixed_size", neighboring_relation="replace_one")
    with pytest.raises(ConfigError, match="sampling = 'fixed_size' is not allowed: it must be 'poisson' with several"):
        trainer.plan(private_data(*table()))
    with pytest.raises(ConfigError, match="PrivateSearch cannot use several processes"):
        PrivateSearch([{"method": "dp_sgd"}]).fit(private_data(*table()))


@pytest.mark.parametrize("argument", ["-m", "--multirun", "resume_sweep=somewhere", "--cfg=job"])
def test_sweeps_and_flags_refuse_several_processes(two: None, cli: Any, argument: str) -> None:
    status, out, err = cli(argument, "+experiment=logreg")
    assert status == 1
    assert out == ""
    assert "cannot use several processes" in err
    assert argument in err


def test_the_other_processes_say_who_they_are(two: None, cli: Any, tmp_path: Path) -> None:
    status, out, err = cli("+experiment=logreg", "method=objective")
    assert (status, out) == (1, "")
    assert err.startswith("error: process 1: method = 'objective' cannot use several processes")
    assert list(tmp_path.iterdir()) == []
    status, out, err = cli("+experiment=logreg", "method.stepps=3")
    assert (status, out) == (1, "")
    assert err.startswith("error: process 1: ")
    assert "stepps" in err


def test_the_plan_says_how_many(two: None) -> None:
    plan = PrivateTrainer(**ARGUMENTS).plan(private_data(*table()))
    assert plan.processes == 2
    assert "processes" in str(plan)


# -- the command line -------------------------------------------------------------------------------------------------
COMMAND = ["+experiment=logreg", "data=synthetic", "method.steps=4", "privacy.accountant=zcdp", "report=false"]


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", "-m", "dpml.train"]
    environment = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK")}
    return subprocess.run(
        [*start, *arguments], cwd=folder, env=environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )


def test_torchrun_end_to_end(tmp_path: Path) -> None:
    done = torchrun(tmp_path, *COMMAND, "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    assert verify(tmp_path / "run").ok
    result = written(tmp_path / "run")
    assert result["plan"]["processes"] == 2
    assert result["command"].startswith("torchrun --nproc_per_node=2 -m dpml.train ")
    assert done.stdout.count("Plan (public knowledge only") == 1
    assert done.stdout.count("ledger  ") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
