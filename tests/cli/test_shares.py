"""``privacy.shares`` on the command line: from a table with private bounds to a private accuracy, in one ledger."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_tables import SCHEMA, people, write_people
from stage_checks import charges

from dpml import accounting, load

OPEN = copy.deepcopy(SCHEMA["columns"])
OPEN["age"] = {"kind": "numeric", "bounds": "private", "knots": 4}
OPEN["town"] = {"kind": "categorical", "categories": "discover", "most": 4}
SHARES = ("privacy.shares.bounds=0.05", "privacy.shares.categories=0.05", "privacy.shares.labels=0.02",
          "privacy.shares.metrics=0.1")  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> tuple[str, ...]:
    csv, schema = write_people(tmp_path / "data", people(6000), columns=OPEN, n_declared=6000)
    return "data=table", f"data.path={csv}", f"data.schema={schema}", "verbose=false"


def test_a_real_run_from_table_to_private_accuracy(table: tuple[str, ...], tmp_path: Path) -> None:
    """The command as a user gives it, in a process of its own."""
    command = [sys.executable, "-m", "dpml.train", *table, "data.test_fraction=0.2", "method=objective",
               "privacy.epsilon=3", *SHARES, "hydra.run.dir=run"]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for words in ("stage bounds", "share 0.05: ε = 0.15", "stage train", "private hold-out, charged noise"):
        assert words in done.stdout
    run = tmp_path / "run"
    result = json.loads((run / "result.json").read_text())
    assert 2.9 < result["epsilon"] <= 3.0
    metrics = result["metrics"]
    assert 0.6 < metrics["accuracy_low"] < metrics["accuracy"] < metrics["accuracy_high"] <= 1.0
    assert [name for name, _ in charges(run) if name != "train"] == ["bounds", "categories", "labels", "metrics"]
    assert accounting.verify(run).ok
    verified = subprocess.run([sys.executable, "-m", "dpml.verify", str(run)], env=environment, timeout=300)
    assert verified.returncode == 0
    schema = json.loads((run / "release/schema.json").read_text())
    assert schema["columns"]["age"]["bounds"] == result["stages"]["bounds"]["columns"]["age"]["bounds"]
    assert load(run / "release").predict(people(5)).shape == (5,)
    report = (run / "report.html").read_text("utf-8")
    assert "95\u00a0% interval" in report
    assert "shares" in (run / "release/config.yaml").read_text()


def test_stages_of_dp_sgd_survive_a_kill(cli: Any, table: tuple[str, ...], tmp_path: Path) -> None:
    from dpml import running

    real = running.write_checkpoint

    def killed(*arguments: Any) -> None:
        real(*arguments)
        raise OSError("no more")

    shape = ("method=dp_sgd", "method.steps=4", "method.expected_batch_size=100", "method.checkpoint_every=2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "write_checkpoint", killed)
        assert cli(*table, *shape, "data.test_fraction=0.2", *SHARES, "hydra.run.dir=run", "report=false")[0] == 1
    kept = json.loads((tmp_path / "run/private/stages.json").read_text())
    status, out, err = cli(f"resume={tmp_path / 'run'}")
    assert status == 0, err
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["stages"]["bounds"]["columns"] == kept["bounds"]["columns"]
    assert [name for name, _ in charges(tmp_path / "run")].count("bounds") == 1
    assert result["epsilon"] <= 1.0
    assert accounting.verify(tmp_path / "run").ok
    assert "accuracy" in out


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("privacy.shares.bounds=0.05",), '\'town\' says "categories": "discover"'),
        ((*SHARES, "data.test_fraction=null"), "without a hold-out"),
        (("privacy.shares.bound=0.05",), "bound"),
        (("+privacy.shares.bound=0.05",), "bound"),
        (("privacy.shares.metrics=1.5",), "shares.metrics = 1.5"),
        ((*SHARES, "method=dp_sgd", "method.noise_multiplier=1", "privacy.epsilon=null"), "Give epsilon instead"),
    ],
)
def test_faults_are_named_before_anything_is_written(
    words: tuple[str, ...], match: str, cli: Any, table: tuple[str, ...], tmp_path: Path
) -> None:
    status, _, err = cli(*table, *words, "hydra.run.dir=run")
    assert status == 1
    assert match in err
    assert not (tmp_path / "run").exists()


def test_a_sweep_over_a_share_composes_what_its_runs_charged(cli: Any, table: tuple[str, ...], tmp_path: Path) -> None:
    words = ("data.test_fraction=0.2", "method=output", *SHARES[:3], "privacy.shares.metrics=0.1,0.2")
    status, out, err = cli("-m", *table, *words, "privacy.epsilon=2", "hydra.sweep.dir=sweep")
    assert status == 0, err
    assert "2 of 2 jobs done" in out
    for number in range(2):
        assert accounting.verify(tmp_path / f"sweep/{number}").ok
