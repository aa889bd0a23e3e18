"""The optional tracker: what reaches an MLflow file store (the real package), and that it never harms a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from tracking_checks import (
    SECRET,
    Client,
    check_mlflow_is_told_to_keep_still,
    check_only_the_release_is_logged,
    check_the_custodian_s_path_stays_here,
    finished_run,
    install,
)

from dpml import tracking


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return finished_run(tmp_path)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    return install(monkeypatch)


def test_the_real_package_holds_the_release_and_nothing_else(finished: Path, tmp_path: Path) -> None:
    """In a process of its own: MLflow warns, sets up telemetry and keeps global state."""
    code = (
        "import sys; from pathlib import Path; from dpml.tracking import log_run\n"
        "from mlflow.tracking import MlflowClient\n"
        "import os, json\n"
        "run = log_run(Path(sys.argv[1]), Path(sys.argv[2]), 'group')\n"
        "log_run(Path(sys.argv[1]), Path(sys.argv[2]), 'group')\n"
        "os.environ['MLFLOW_ALLOW_FILE_STORE'] = 'true'\n"
        "client = MlflowClient(Path(sys.argv[2]).as_uri())\n"
        "found = client.get_run(run)\n"
        "group = client.get_experiment_by_name('group').experiment_id\n"
        "print(json.dumps([found.data.params, found.data.metrics, found.data.tags, found.info.status,\n"
        "  [m.value for m in client.get_metric_history(run, 'epsilon_so_far')],\n"
        "  len(client.search_runs([group]))]))"
    )
    store = tmp_path / "store"
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(finished), str(store)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    params, metrics, tags, status, history, runs = json.loads(done.stdout)
    assert params == {
        "privacy.epsilon": "1.0",
        "privacy.shares.metrics": "0.25",
        "method.name": "dp_sgd",
        "method.steps": "None",
        "seed": "0",
    }
    assert metrics == {
        "epsilon": 0.75,
        "delta": 1e-5,
        "steps": 3.0,
        "accuracy": 0.875,
        "nonprivate.test_accuracy": 0.9,
        "epsilon_so_far": 0.75,
    }
    assert (status, history, runs) == ("FINISHED", [0.25, 0.75], 2)
    assert tags["dpml.ledger_head"] == "ab12"
    assert tags["mlflow.runName"] == "dp_sgd ε=0.75"
    logged = [path for path in store.rglob("*") if path.is_file()]
    artifacts = {path.parts[-2:] for path in logged if "artifacts" in path.parts}
    assert artifacts == {("release", "result.json"), ("release", "config.yaml"), ("extra", "curve.csv")}
    assert not any(SECRET in path.read_text("utf-8") for path in logged)
    assert not (tmp_path / "mlruns").exists()


def test_the_checks_of_the_planted_bugs(cli: Any, tmp_path: Path, fake: type[Client]) -> None:
    check_only_the_release_is_logged(tmp_path / "a", fake)
    check_mlflow_is_told_to_keep_still(tmp_path / "b", fake)
    check_the_custodian_s_path_stays_here(cli, tmp_path)


def test_calls_and_switches(
    finished: Path, tmp_path: Path, fake: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DO_NOT_TRACK", "false")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    assert tracking.track(finished, str(tmp_path / "store"), "group")
    (client,) = fake.made
    assert client.uri == (tmp_path / "store").as_uri()
    assert client.switches == dict.fromkeys(tracking.SWITCHES, "true")
    assert os.environ["DO_NOT_TRACK"] == "false"
    assert "MLFLOW_ALLOW_FILE_STORE" not in os.environ
    names = [name for name, _, _ in client.calls]
    assert names[:3] == ["get_experiment_by_name", "create_experiment", "create_run"]
    assert names.count("log_artifact") == 3
    assert client.calls[-1] == ("set_terminated", ("r1",), {"status": "FINISHED"})


def test_no_store_no_import(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert not tracking.track(finished, None)


@pytest.mark.parametrize("call", ["create_experiment", "create_run", "log_batch", "log_artifact", "set_terminated"])
def test_a_tracker_that_fails_is_one_line(
    finished: Path, tmp_path: Path, fake: type[Client], capsys: pytest.CaptureFixture[str], call: str
) -> None:
    fake.fails_at = call
    assert not tracking.track(finished, str(tmp_path / "store"))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.endswith("(OSError: the disk is full). The run itself is complete.\n")
    assert shown.err.count("\n") == 1
    if call in ("log_batch", "log_artifact"):
        assert fake.made[0].calls[-1] == ("set_terminated", ("r1",), {"status": "FAILED"})


def test_an_experiment_that_another_job_just_made_is_taken() -> None:
    answers = iter([None, types.SimpleNamespace(experiment_id=7)])

    class Raced:
        def get_experiment_by_name(self, name: str) -> Any:
            return next(answers)

        def create_experiment(self, name: str) -> str:
            raise RuntimeError("exists")

    assert tracking._experiment(Raced(), "group") == "7"


def test_mlflow_missing_is_one_line(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mlflow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert not tracking.track(finished, "store")
    assert "MLflow is not installed; pip install 'dpml[mlflow]'" in capsys.readouterr().err


def test_an_unfinished_release_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "release").mkdir()
    assert not tracking.track(tmp_path, str(tmp_path / "store"))
    assert "is not a complete release" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_long_values_are_cut_and_what_is_no_number_is_no_metric() -> None:
    assert tracking.params_of({"a": {"b": "x" * 900}})["a.b"] == "x" * 500
    odd = {"epsilon": "inf", "steps": True, "metrics": {"r2": float("nan"), "mae": 2}, "trajectory": {"steps": None}}
    assert tracking.metrics_of(odd) == [("mae", 2.0, 0)]


def test_a_run_with_a_tracker_that_fails_is_done_all_the_same(
    cli: Any, tmp_path: Path, fake: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same words with and without a tracker: exit status 0, "done", and the same files in the release."""
    words = ("data=synthetic", "data.n=500", "method=objective", "report=false", "verbose=false")
    fake.fails_at = "log_artifact"
    status, _, err = cli(*words, "hydra.run.dir=tracked", "tracking.mlflow=sub/store")
    assert status == 0
    assert err.splitlines() == [
        "tracking: not logged to sub/store (OSError: the disk is full). The run itself is complete."
    ]
    assert cli(*words, "hydra.run.dir=plain")[0] == 0
    listed = [{p.name for p in (tmp_path / run / "release").iterdir()} for run in ("tracked", "plain")]
    assert listed[0] == listed[1]
    assert json.loads((tmp_path / "tracked/private/status.json").read_text())["status"] == "done"
    published = (tmp_path / "tracked/release/config.yaml").read_text()
    assert "mlflow: store\n" in published  # the folder's name, not the custodian's path
    assert "sub/store" not in "".join(p.read_text("latin-1") for p in (tmp_path / "tracked/release").iterdir())
    assert len(fake.made) == 1


@pytest.mark.parametrize("store", ["http://host:5000", "sqlite:///ml.db", "''"])
def test_a_store_that_is_no_folder_is_refused_before_training(cli: Any, tmp_path: Path, store: str) -> None:
    status, _, err = cli("data=synthetic", "hydra.run.dir=here", f"tracking.mlflow={store}")
    assert status == 1
    assert "tracking.mlflow = " in err
    assert "must be a folder on this machine" in err
    assert not (tmp_path / "here").exists()
