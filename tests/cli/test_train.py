"""``python -m dpml.train`` inside this process, and as a real process where a signal or an exit status matters."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from small_tables import write_people

from dpml import accounting

SMALL = ("data=synthetic", "data.n=400", "data.d=3", "privacy.delta=1e-4", "verbose=false")
FAST = ("method.steps=5", "method.expected_batch_size=40")


def run_folders(root: Path) -> list[Path]:
    return sorted(path.parent.parent for path in root.rglob("release/ledger.jsonl"))


def test_one_run_writes_a_folder_that_verifies(cli: Any, tmp_path: Path) -> None:
    status, out, err = cli("+experiment=logreg", *SMALL, *FAST, "hydra.run.dir=here")
    assert status == 0, err
    for word in ("ε", "δ", "add_remove", "accountant", "accuracy", "sample size"):
        assert word in out
    result = json.loads((tmp_path / "here/result.json").read_text())
    assert result["method"] == "dp_sgd"
    assert result["command"].startswith("python -m dpml.train +experiment=logreg data=synthetic")
    assert f"{result['metrics']['accuracy']:.4f}" in out
    assert accounting.verify(tmp_path / "here").ok
    assert (tmp_path / "here/report.html").read_text("utf-8").startswith("<!doctype html>")
    assert not (tmp_path / "here/private").stat().st_mode & 0o077
    assert json.loads((tmp_path / "here/private/status.json").read_text())["status"] == "done"
    assert {p.name for p in (tmp_path / "here").iterdir()} == {"release", "private", "result.json", "report.html"}


def test_runs_of_the_same_second_have_their_own_folders(cli: Any, tmp_path: Path) -> None:
    for _ in range(3):
        assert cli(*SMALL, "method=objective", "report=false")[0] == 0
    assert len(run_folders(tmp_path / "outputs")) == 3


def test_a_folder_that_holds_a_run_is_refused(cli: Any, tmp_path: Path) -> None:
    assert cli(*SMALL, "hydra.run.dir=here", "report=false")[0] == 0
    before = {p: p.read_bytes() for p in (tmp_path / "here").rglob("*") if p.is_file()}
    status, _, err = cli(*SMALL, "hydra.run.dir=here", "report=false", "privacy.epsilon=3")
    assert status == 1
    assert "holds a run already" in err
    assert {p: p.read_bytes() for p in (tmp_path / "here").rglob("*") if p.is_file()} == before


def test_a_folder_of_the_users_own_is_left_as_it_is(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "mine/private").mkdir(parents=True)
    (tmp_path / "mine/private/notes.txt").write_text("mine")
    (tmp_path / "mine/private").chmod(0o755)
    status, _, err = cli(*SMALL, "hydra.run.dir=mine")
    assert status == 1
    assert "is not empty" in err
    assert [p.name for p in (tmp_path / "mine/private").iterdir()] == ["notes.txt"]
    assert (tmp_path / "mine/private").stat().st_mode & 0o777 == 0o755


def test_cuda_without_cuda_is_refused_for_every_method(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for method in ("dp_sgd", "objective", "output"):
        status, _, err = cli(*SMALL, f"method={method}", "device=cuda")
        assert status == 1
        assert "sees no CUDA device" in err


def test_a_full_disk_outside_the_ledger_is_named(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpml import release

    real = release.write_atomic

    def full(target: Path, content: Any) -> None:
        if target.name == "model.safetensors":
            raise OSError(28, "No space left on device")
        real(target, content)

    monkeypatch.setattr(release, "write_atomic", full)
    status, _, err = cli(*SMALL, "hydra.run.dir=here", "report=false")
    assert status == 1
    assert "model.safetensors' (No space left on device). Free space" in err
    assert not (tmp_path / "here/result.json").exists()


def test_the_custodians_folders_are_not_published(cli: Any, tmp_path: Path) -> None:
    table, schema = write_people(tmp_path / "secret-project")
    status, _, err = cli(
        "data=table", f"data.path={table}", f"data.schema={schema}", "privacy.delta=1e-4", "hydra.run.dir=here"
    )
    assert status == 0, err
    for file in (tmp_path / "here/release").iterdir():
        assert b"secret-project" not in file.read_bytes(), file.name
    assert "data.path=people.csv" in json.loads((tmp_path / "here/result.json").read_text())["command"]


BAD: list[tuple[tuple[str, ...], str]] = [
    (("privacy.epsilon=0",), "epsilon = 0.0 is not allowed"),
    (("privacy.epsilon=-1",), "epsilon = -1.0 is not allowed"),
    (("privacy.epsilon=inf",), "epsilon = inf is not allowed"),
    (("privacy.epsilon=many",), "privacy.epsilon"),
    (("privacy.delta=0",), "delta = 0.0 is not allowed"),
    (("privacy.delta=0.01",), "1/n_declared"),
    (("privacy.epsilonn=1",), "epsilonn"),
    (("method=objective", "method.steps=10"), "steps"),
    (("method=dp_sgd", "method.learning_rate=fast"), "method.learning_rate = 'fast'"),
    (("method=dp_sgd", "method.expected_batch_size=401"), "expected_batch_size = 401"),
    (("method=dp_sgd", "method.noise_multiplier=1"), "exclude each other"),
    (("+experiment=logregg",), "Did you mean 'logreg'"),
    (("experiment=logreg",), "+experiment=logreg"),
    (("method=objectives",), "Did you mean 'objective'"),
    (("device=tpu",), "device = 'tpu'"),
    (("data=table",), "data.path is missing"),
    (("data=table", "data.path=nowhere.csv", "data.schema=nowhere.json"), "nowhere.csv"),
    (("data=census_income",), "data.folder is missing"),
    (("data=fashion_mnist", "data.folder=nowhere"), "dataset-fashion-mnist"),
    (("guidance.enforce=true",), "too small"),
    (("method=nonprivate", "model=mlp", "model.hidden=[]"), "hidden"),
    (("+privacy.epsilo=0.1",), "privacy.epsilo is unknown"),
    (("+privacy.epsilo=0.1",), "Did you mean privacy.epsilon?"),
    (("method=objective", "+method.momentum=0.5"), "method.momentum is no key of method=objective"),
    (("+data.path=people.csv",), "data.path is no key of data=synthetic"),
    (("+foo=1",), "foo is unknown"),
    (("method=dp_sgd", "method.learning_rate=1" + "0" * 400), "a finite number > 0"),
    (("method=objective", "privacy.accountant=zcdp"), "cannot bound"),
    (("hydra.run.dir=/proc/nowhere",), "cannot be written"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_bad_input_stops_before_data_and_says_what_to_do(
    arguments: tuple[str, ...], message: str, cli: Any, tmp_path: Path
) -> None:
    base = [text for text in SMALL if not any(text.split("=")[0] == a.split("=")[0] for a in arguments)]
    if any(a.startswith("data=") for a in arguments):
        base = [text for text in base if not text.startswith("data")]
    status, out, err = cli(*base, *arguments, *([] if "hydra.run.dir" in arguments[0] else ["hydra.run.dir=here"]))
    assert status == 1
    assert message in out + err
    assert "Traceback" not in out + err
    assert not [path for path in tmp_path.rglob("*") if "absl" not in path.name], "a refused run left files"


def test_bad_tables_are_refused_with_their_message(cli: Any, tmp_path: Path) -> None:
    table, schema = write_people(tmp_path)
    good = json.loads(schema.read_text())
    columns = good["columns"]

    def fails(message: str, **changes: Any) -> None:
        changed = {key: value for key, value in {**good, **changes}.items() if value is not None}
        schema.write_text(json.dumps(changed))
        status, out, err = cli("data=table", f"data.path={table}", f"data.schema={schema}", "verbose=false")
        assert status == 1
        assert message in out + err
        assert not list(tmp_path.rglob("ledger.jsonl"))

    fails("n_declared", n_declared=None)
    fails("classes", target={"name": "label"})
    fails("age", columns={**columns, "age": {"kind": "numeric", "bounds": [9, 9]}})
    fails("town", columns={**columns, "town": {"kind": "categorical", "categories": ["a", "a"]}})
    fails("agee", columns={**{k: v for k, v in columns.items() if k != "age"}, "agee": columns["age"]})
    fails("n_declared", n_declared=0)
    fails("n_declared", n_declared=-5)
    schema.write_text(json.dumps(good))
    status, out, err = cli("data=table", f"data.path={table}", "verbose=false")
    assert status == 1
    assert "dpml.schema draft" in out + err


def test_an_empty_table_trains_as_usual(cli: Any, tmp_path: Path) -> None:
    """It is the neighbour of a table with one record: an error would tell them apart.  The count is in private/."""
    table, schema = write_people(tmp_path)
    table.write_text(table.read_text().splitlines()[0] + "\n")
    status, _, err = cli(
        "data=table", f"data.path={table}", f"data.schema={schema}", "privacy.delta=1e-4", "hydra.run.dir=here"
    )
    assert status == 0, err
    assert accounting.verify(tmp_path / "here").ok
    assert (tmp_path / "here/release/model.safetensors").exists()
    assert json.loads((tmp_path / "here/private/diagnostics.json").read_text())["train"]["used"] == 0


# -- sweeps -------------------------------------------------------------------------------------------------------
def test_sweep_of_four_budgets_and_two_methods(cli: Any, tmp_path: Path) -> None:
    status, out, err = cli(
        "-m",
        "+experiment=logreg",
        *SMALL,
        "privacy.epsilon=0.5,1,2,4",
        "method=output,objective",
        "hydra.sweep.dir=sweep",
    )
    assert status == 0, err
    root = tmp_path / "sweep"
    assert len(run_folders(root)) == 8
    with open(root / "summary.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["method"], float(row["epsilon"]) <= 4.0) for row in rows} == {("output", True), ("objective", True)}
    for method in ("output", "objective"):
        budgets = [float(row["epsilon"]) for row in rows if row["method"] == method]
        assert budgets == sorted(budgets)
        assert budgets == pytest.approx([0.5, 1, 2, 4], rel=1e-3)
    assert (root / "epsilon_vs_metric.png").read_bytes().startswith(b"\x89PNG")
    page = (root / "report.html").read_text("utf-8")
    assert "objective" in page
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "publishing the whole sweep" in out


def test_sweep_config_group_runs_without_the_m_flag(cli: Any, tmp_path: Path) -> None:
    assert cli("+experiment=logreg", "+sweep=epsilon", *SMALL, "method=objective", "hydra.sweep.dir=s")[0] == 0
    assert len(run_folders(tmp_path / "s")) == 4


def test_numbers_like_1e_5_are_numbers_in_a_sweep(cli: Any, tmp_path: Path) -> None:
    arguments = [a for a in SMALL if "delta" not in a]
    status, out, err = cli("-m", *arguments, "privacy.delta=1e-5,1e-4", "hydra.sweep.dir=s", "report=false")
    assert status == 0, out + err
    deltas = sorted(json.loads((f / "result.json").read_text())["delta"] for f in run_folders(tmp_path / "s"))
    assert deltas == [1e-5, 1e-4]


def test_a_bad_job_stops_the_sweep_before_job_0(tmp_path: Path) -> None:
    """As a real process: inside pytest, where warnings are errors, Hydra would stop for another reason."""
    process = python("dpml.train", "-m", *SMALL, "privacy.epsilon=1,2,0", "hydra.sweep.dir=s", cwd=tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "job 2 of 3" in err
    assert "no job was started" in err
    assert "Traceback" not in out + err
    assert not run_folders(tmp_path)


def test_a_report_that_fails_is_said_and_gives_a_bad_exit_status(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dpml.report

    def broken(_: Path) -> None:
        raise OSError("no space")

    monkeypatch.setattr(dpml.report, "write_sweep_report", broken, raising=False)
    status, _, err = cli("-m", *SMALL, "privacy.epsilon=1,2", "hydra.sweep.dir=s", "report=false")
    assert status == 1
    assert "report could not be written" in err
    assert len(run_folders(tmp_path / "s")) == 2


def test_what_cannot_run_is_found_before_job_0(cli: Any, tmp_path: Path) -> None:
    for arguments, message in (
        (["method=dp_sgd,objective", "privacy.accountant=zcdp"], "cannot bound"),
        (["method=objective", "privacy.epsilon=80,0.01", "guidance.enforce=true"], "too small"),
        (
            ["privacy.epsilon=1,1.5", "privacy.dataset_ledger=all.jsonl", "privacy.dataset_epsilon=2",
             "privacy.dataset_delta=1e-3"],
            "more than the cap of 2",
        ),
    ):  # fmt: skip
        status, out, err = cli("-m", *SMALL, *arguments, "hydra.sweep.dir=s")
        assert status == 1
        assert message in out + err
        assert "job 1 of 2" in out + err
        assert not run_folders(tmp_path)


def test_a_job_that_was_killed_while_its_report_was_written_is_not_run_again(cli: Any, tmp_path: Path) -> None:
    assert cli("-m", *SMALL, "privacy.epsilon=1,2", "hydra.sweep.dir=s")[0] == 0
    status_file = tmp_path / "s/0/private/status.json"
    status_file.write_text('{"status": "running", "error": null}')
    (tmp_path / "s/0/release/report.html").unlink()
    (tmp_path / "s/0/report.html").unlink()
    before = (tmp_path / "s/0/release/model.safetensors").read_bytes()
    status, out, err = cli("resume_sweep=s")
    assert status == 0, err
    assert "2 of 2 jobs are done; running 0" in out
    assert len(run_folders(tmp_path / "s")) == 2
    assert (tmp_path / "s/0/report.html").exists()
    assert (tmp_path / "s/0/release/model.safetensors").read_bytes() == before
    assert json.loads(status_file.read_text())["status"] == "done"


def test_a_sweep_that_is_being_worked_on_is_not_resumed(tmp_path: Path) -> None:
    process = python(
        "dpml.train", "-m", *SMALL, "method=dp_sgd", "method.steps=4000", "method.expected_batch_size=40",
        "method.checkpoint_every=100", "privacy.epsilon=1,2", "hydra.sweep.dir=s", "report=false", cwd=tmp_path,
    )  # fmt: skip
    end = time.monotonic() + 120
    while not (tmp_path / "s/0/private/checkpoint.safetensors").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    rival = python("dpml.train", "resume_sweep=s", cwd=tmp_path)
    _, err = rival.communicate(timeout=120)
    assert rival.returncode == 1
    assert "being worked on by another process" in err
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert all(accounting.verify(folder).ok for folder in run_folders(tmp_path / "s"))


def test_a_failing_job_leaves_its_traceback_and_the_others_go_on(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpml import trainer

    real = trainer.train_by_plan

    def fail_at_two(self: Any, *arguments: Any) -> Any:
        if self.epsilon == 2.0:
            raise RuntimeError("secret value 42")
        return real(self, *arguments)

    monkeypatch.setattr(trainer, "train_by_plan", fail_at_two)
    status, out, err = cli("-m", *SMALL, "privacy.epsilon=1,2,3", "hydra.sweep.dir=s")
    assert status == 1
    assert "job 1 did not finish" in err
    root = tmp_path / "s"
    assert "secret value 42" in (root / "1/private/traceback.txt").read_text()
    assert {json.loads((root / k / "private/status.json").read_text())["status"] for k in "02"} == {"done"}
    for public in [*root.glob("*.*"), *(root / "1/release").iterdir()]:
        assert b"secret value" not in public.read_bytes()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    before = (root / "0/result.json").stat().st_mtime_ns
    status, out, err = cli("resume_sweep=s")
    assert status == 0, err
    assert "2 of 3 jobs are done; running 1" in out
    assert (root / "1-1/result.json").exists()
    assert (root / "0/result.json").stat().st_mtime_ns == before
    with open(root / "summary.csv", encoding="utf-8", newline="") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["done"] * 3


def test_resume_of_something_else_is_refused(cli: Any, tmp_path: Path) -> None:
    assert "not a sweep's folder" in cli("resume_sweep=nowhere")[2]
    assert "stands alone" in cli("resume_sweep=nowhere", "verbose=false")[2]


def python(*arguments: str, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", *arguments], cwd=cwd, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def test_kill_9_in_the_middle_then_resume_runs_the_rest_only(tmp_path: Path) -> None:
    process = python(
        "dpml.train", "-m", *SMALL, "method=dp_sgd", "method.steps=3000", "method.expected_batch_size=40",
        "method.checkpoint_every=100", "privacy.epsilon=1,2,4", "hydra.sweep.dir=s", cwd=tmp_path,
    )  # fmt: skip
    root, second = tmp_path / "s", tmp_path / "s/1"
    end = time.monotonic() + 120
    while not (second / "private/checkpoint.safetensors").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "job 1 never reached a checkpoint"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (second / "release/result.json").exists()
    charged_before = sum(c["count"] for c in accounting.read_ledger(second / "release/ledger.jsonl").charges)
    assert charged_before >= 100
    first = (root / "0/result.json").read_bytes()
    rest = python("dpml.train", "resume_sweep=s", cwd=tmp_path)
    out, err = rest.communicate(timeout=240)
    assert rest.returncode == 0, out + err
    assert "1 of 3 jobs are done; running 2" in out
    assert (root / "0/result.json").read_bytes() == first
    for number in range(3):
        record = accounting.read_ledger(root / str(number) / "release/ledger.jsonl")
        assert sum(c["count"] for c in record.charges) == 3000
        assert accounting.verify(root / str(number)).ok
    assert (root / "report.html").exists()
    python_status = python("dpml.verify", "s/1", cwd=tmp_path)
    assert "1" in python_status.communicate()[0]
    assert python_status.returncode == 0


def test_a_job_killed_before_its_first_checkpoint_goes_on_in_its_own_folder(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data set ledger's cap leaves no room for a second reservation, and none is needed."""
    from dpml import running

    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    arguments = (
        "-m", *SMALL, "method=dp_sgd", *FAST, "privacy.epsilon=1", "privacy.dataset_ledger=all.jsonl",
        "privacy.dataset_epsilon=1", "privacy.dataset_delta=1e-3", "hydra.sweep.dir=s",
    )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(running, "write_checkpoint", killed)
        with pytest.raises(Killed):
            cli(*arguments)
    assert accounting.read_ledger(tmp_path / "s/0/release/ledger.jsonl").charges
    assert not (tmp_path / "s/0/private/checkpoint.safetensors").exists()
    status, out, err = cli("resume_sweep=s")
    assert status == 0, out + err
    assert [folder.name for folder in run_folders(tmp_path / "s")] == ["0"]
    assert accounting.verify(tmp_path / "s/0").ok
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 1


def test_a_report_that_does_not_fit_on_the_disk_leaves_a_complete_release(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dpml.report

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(dpml.report, "write_run_report", full, raising=False)
        status, _, err = cli(*SMALL, "hydra.run.dir=here")
    assert status == 1
    assert "is complete, but its report cannot be written (No space left on device)" in err
    assert accounting.verify(tmp_path / "here").ok


def test_a_run_shows_what_its_data_set_ledger_has_spent(cli: Any, tmp_path: Path) -> None:
    words = (
        "data=synthetic", "data.n=400", "data.d=3", "privacy.delta=1e-4", "method=output", "report=false",
        "privacy.epsilon=1.5", "privacy.dataset_ledger=cap", "privacy.dataset_epsilon=4", "privacy.dataset_delta=1e-3",
    )  # fmt: skip
    for before, after in (("0 runs have promised ε = 0,", "1 run has promised ε = 1.5,"),
                          ("1 run has promised ε = 1.5,", "2 runs have promised ε = 3,")):  # fmt: skip
        status, out, err = cli(*words)
        assert status == 0, err
        first, second = (line for line in out.splitlines() if line.startswith("data set ledger"))
        assert before in first
        assert after in second
    (tmp_path / "broken").write_text("junk\n", "utf-8")
    status, out, err = cli(*words, "privacy.dataset_ledger=broken")
    assert status == 1
    assert "broken, line 1" in err
    assert "data set ledger" not in out
    status, out, err = cli(*words)
    assert status == 1
    assert "has spent 3 of 4" in err
    assert "filter='renyi'" in err
