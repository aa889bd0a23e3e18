"""A finished run with something private beside its release, and MLflow's client with the calls that are used."""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from dpml import tracking

SECRET = "a value of private/ that nobody may log"
CONFIG = "privacy: {epsilon: 1.0, shares: {metrics: 0.25}}\nmethod: {name: dp_sgd, steps: null}\nseed: 0\n"
RESULT = {
    "epsilon": 0.75,
    "delta": 1e-5,
    "steps": 3,
    "method": "dp_sgd",
    "model": "logreg",
    "neighboring_relation": "add_remove",
    "accountant": "best",
    "metrics": {"accuracy": 0.875, "source": "public test set", "auc": None},
    "nonprivate": {"test_accuracy": 0.9},
    "trajectory": {"steps": [1, 3], "best": [0.25, 0.75], "rdp": [0.5, "inf"]},
    "ledger": {"head": "ab12", "count": 5},
    "guidance": {"required_n": 7},
}


def finished_run(home: Path) -> Path:
    """A run folder whose release has links out to ``private/``."""
    run = home / "run"
    (run / "release" / "extra").mkdir(parents=True)
    (run / "private").mkdir()
    (run / "private" / "diagnostics.json").write_text(json.dumps({"note": SECRET}))
    (run / "release" / "result.json").write_text(json.dumps(RESULT))
    (run / "release" / "config.yaml").write_text(CONFIG)
    (run / "release" / "extra" / "curve.csv").write_text("1,2\n")
    (run / "release" / "way_out").symlink_to(run / "private")
    (run / "release" / "linked.json").symlink_to(run / "private" / "diagnostics.json")
    return run


class Client:
    """MLflow's client with the calls that are used, keeping what it is told."""

    made: list[Client]
    fails_at = ""
    watched = ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK")

    def __init__(self, tracking_uri: str, registry_uri: str) -> None:
        self.uri, self.calls = tracking_uri, []
        self.switches = {name: os.environ.get(name) for name in self.watched}
        type(self).made.append(self)

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append((name, arguments, named))
            if name == self.fails_at:
                raise OSError("the disk\nis full")
            if name == "create_run":
                return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1"))
            return None if name == "get_experiment_by_name" else "e1"

        return call


def install(patch: pytest.MonkeyPatch) -> type[Client]:
    """Put the client in MLflow's place."""
    client = type("FakeClient", (Client,), {"made": []})

    def record(*values: Any) -> tuple[Any, ...]:
        return values

    patch.setitem(sys.modules, "mlflow", types.ModuleType("mlflow"))
    patch.setitem(sys.modules, "mlflow.entities", types.SimpleNamespace(Metric=record, Param=record, RunTag=record))
    patch.setitem(sys.modules, "mlflow.tracking", types.SimpleNamespace(MlflowClient=client))
    return client


def check_only_the_release_is_logged(home: Path, client: type[Client]) -> None:
    """Artifacts are regular files of ``release/``, and no value of ``private/`` is in any call."""
    run = finished_run(home)
    assert tracking.track(run, str(home / "store"))
    calls = client.made[-1].calls
    files = [Path(arguments[1]) for name, arguments, _ in calls if name == "log_artifact"]
    assert files, "no file was logged"
    for file in files:
        assert SECRET not in file.read_text("utf-8"), "a private file was logged"
    assert SECRET not in repr(calls), "a private value was logged"


def check_mlflow_is_told_to_keep_still(home: Path, client: type[Client]) -> None:
    """Telemetry is off for the time of the calls."""
    assert tracking.track(finished_run(home), str(home / "store"))
    assert client.made[-1].switches["MLFLOW_DISABLE_TELEMETRY"] == "true", "MLflow may report over the network"


def check_the_custodian_s_path_stays_here(cli: Any, home: Path) -> None:
    """The store's folder, as far as it is published, is cut down to its name."""
    words = ("data=synthetic", "data.n=500", "method=objective", "report=false", "verbose=false")
    assert cli(*words, "hydra.run.dir=tracked", "tracking.mlflow=secret_place/store")[0] == 0
    published = [path.read_text("latin-1") for path in (home / "tracked/release").iterdir()]
    assert not any("secret_place" in text for text in published), "a folder of the custodian's was published"
