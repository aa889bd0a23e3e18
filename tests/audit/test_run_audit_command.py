"""``python -m dpml.audit +experiment=…``: the words of ``dpml.train``, what is written where, and refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from small_tables import people, write_people

from dpml.audit import __main__ as entry
from dpml.audit import command
from dpml.audit.run_settings import RunAuditSettings
from dpml.composition_faults import as_config_errors, fault_text
from dpml.errors import ConfigError, RunFolderError
from dpml.release import RunFolder

SYNTHETIC = ("data=synthetic", "data.n=300", "data.d=6", "verbose=false")
SGD = (*SYNTHETIC, "method=dp_sgd", "method.steps=4", "method.expected_batch_size=100", "privacy.epsilon=4")
Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *words: str) -> tuple[int, str, str]:
    status = entry.main(list(words))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_run_on_public_records_is_charged_and_reported(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "run"
    status, out, err = run(capsys, *SGD, f"hydra.run.dir={folder}", "audit.canaries=20", "audit.confidence=0.999999")
    assert (status, err) == (0, "")
    release = folder / "release"
    record = json.loads((release / "audit.json").read_text("utf-8"))
    assert record["charged"]
    assert record["confidence"] == 0.999999
    assert (release / "tradeoff.png").is_file()
    assert (release / "report.html").is_file()
    assert "python -m dpml.audit" in json.loads((release / "result.json").read_text("utf-8"))["command"]
    config = (release / "config.yaml").read_text("utf-8")
    assert "name: dp_sgd" in config
    assert "audit" not in config, "the run is what dpml.train composes"
    for text in ("claimed", "attacked", "not contradicted", "20 gradient canaries", "charged: this audit"):
        assert text in out


def test_the_composition_is_that_of_train(tmp_path: Path) -> None:
    from dpml import config as configuration

    job, folder = command.composed(["+experiment=logreg", "privacy.epsilon=2", f"hydra.run.dir={tmp_path}/x"])
    golden = OmegaConf.load(Path(__file__).parents[1] / "golden/logreg.yaml")
    golden.privacy.epsilon = 2.0
    assert OmegaConf.to_container(OmegaConf.create(configuration.public_text(job))) == OmegaConf.to_container(golden)
    assert folder == tmp_path / "x"
    assert not folder.exists()


def test_a_private_table_is_audited_on_a_stand_in_in_a_folder_of_its_own(tmp_path: Path, capsys: Capture) -> None:
    table, schema = write_people(tmp_path / "data", people(40))
    words = ("data=table", f"data.path={table}", f"data.schema={schema}", "method=output", "verbose=false")
    status, out, _ = run(
        capsys,
        *words,
        f"hydra.run.dir={tmp_path / 'a'}",
        "audit.runs=100",
        "audit.workers=1",
        "audit.confidence=0.999999",
    )
    assert status == 0
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["audit.json", "config.yaml", "tradeoff.png"]
    assert "nothing was charged" in out
    assert str(table) not in (tmp_path / "a/config.yaml").read_text("utf-8")
    status, _, err = run(capsys, *words, f"hydra.run.dir={tmp_path / 'a'}", "audit.runs=100", "audit.workers=1")
    assert status == 2
    assert "is not empty" in err


def test_a_claim_that_is_contradicted_exits_with_1(tmp_path: Path, capsys: Capture, monkeypatch: Any) -> None:
    from dpml.erm import objective

    monkeypatch.setattr(objective, "linear_term", lambda plan, noise: 0.0 * noise.normal(1.0, plan.n_features))
    status, out, _ = run(
        capsys, *SYNTHETIC, "method=objective", "privacy.epsilon=0.5", f"hydra.run.dir={tmp_path / 'a'}",
        "audit.runs=400", "audit.workers=1",
    )  # fmt: skip
    assert status == 1
    assert "CONTRADICTED" in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("method=nonprivate",), "claims no epsilon"),
        (("+experiment=logrec",), "Did you mean 'logreg'"),
        (("privacy.epsilon=much",), "privacy.epsilon=much is not allowed"),
        (("seed=null",), "seed=null is not allowed: field 'seed' is not Optional"),
        (("audit.canarie=3",), "Did you mean canaries"),
        (("audit.canaries=many",), "'audit.canaries=many': that is not a whole number"),
        (("audit.confidence=high",), "that is not a number"),
        (("audit.runs=100", "audit.runs=200"), "given twice"),
        (("audit.game",), "is not audit.NAME=value"),
        (("seed=1", "-m"), "no sweeps of them"),
        (("method=output", "audit.game=two_world", "audit.on=records"), "on = 'records'"),
        (("method=dp_sgd", "privacy.neighboring_relation=replace_one"), "neighboring_relation = 'replace_one'"),
        (("method=dp_sgd", "privacy.shares.labels=0.1"), "shares: an audit"),
        (("method=dp_sgd", "method.sampling=fixed_size", "privacy.neighboring_relation=replace_one"), "add_remove"),
    ],
)
def test_refusals_come_before_anything_is_written(
    words: tuple[str, ...], text: str, tmp_path: Path, capsys: Capture
) -> None:
    own = [word for word in words if word.startswith("audit.")]
    status, _, err = run(capsys, *SYNTHETIC[:3], *words, f"hydra.run.dir={tmp_path / 'a'}")
    assert status == 2, own
    assert text in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "a").exists()


def test_ctrl_c_says_what_it_means(tmp_path: Path, capsys: Capture, monkeypatch: Any) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpml.trainer.PrivateTrainer.audit", stop)
    status, _, err = run(capsys, *SGD, f"hydra.run.dir={tmp_path / 'a'}")
    assert status == 130
    assert "What was charged stays spent" in err


def test_help_lists_every_setting(capsys: Capture) -> None:
    status, out, _ = run(capsys, "+experiment=logreg", "--help")
    assert status == 0
    for name in RunAuditSettings.__dataclass_fields__:
        assert f"audit.{name}=" in out


def test_faults_of_composition_name_the_key(tmp_path: Path) -> None:
    """The command of training, too: no word of Hydra's own types."""
    for word, text in (
        ("privacy.epsilon=${nope}", "privacy.epsilon: Interpolation key 'nope' not found"),
        ("device=null", "device=null is not allowed: field 'device' is not Optional."),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "dpml.train", word, "hydra.run.dir=run"], cwd=tmp_path, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.strip() == f"error: {text}"
    assert fault_text(ValueError("plain")) == "plain"
    assert not list(tmp_path.iterdir())


def test_other_errors_leave_as_hydra_lets_them_leave(capsys: Capture, monkeypatch: Any) -> None:
    """A launcher's, say: exit status 1 in the place where callers wait for it; ours and an interrupt pass through."""
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with as_config_errors():
        assert os.environ["HYDRA_FULL_ERROR"] == "1"
    with pytest.raises(SystemExit) as caught, as_config_errors():
        raise OSError("no worker")
    assert caught.value.code == 1
    assert capsys.readouterr().err == "error: OSError: no worker\n"
    assert "HYDRA_FULL_ERROR" not in os.environ
    for fault in (RunFolderError("mine"), KeyboardInterrupt()):
        with pytest.raises(type(fault)), as_config_errors():
            raise fault
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(OSError, match="no worker"), as_config_errors():
        raise OSError("no worker")
    assert os.environ["HYDRA_FULL_ERROR"] == "1"


def test_a_run_dir_that_is_a_file_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunFolderError, match="is a file, not a folder"):
        RunFolder.create(tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"


def test_settings_are_read_by_their_type() -> None:
    found = command.parse(["audit.runs=300", "+audit.confidence=0.9", "audit.game=one_run"])
    assert found == {"runs": 300, "confidence": 0.9, "game": "one_run", "workers": 0}
    with pytest.raises(ConfigError, match=r"not audit\.NAME=value"):
        command.parse(["audit.runs"])
