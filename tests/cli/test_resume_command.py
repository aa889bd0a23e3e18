"""``python -m dpml.train resume=FOLDER``: a killed run goes on, and everything else is refused by name.

One real process is killed by kill −9 and resumed by another; what needs no real kill runs in this process, stopped in
the middle of its steps by an exception that nothing catches.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file
from small_tables import people, write_people

from dpml import accounting, running, verify
from dpml.sgd import engine

STEPS, BLOCK = 8, 2
TABLE = ("data=table", "data.path=people.csv", "data.schema=people.json", "privacy.delta=1e-4", "verbose=false")
SGD = ("method=dp_sgd", f"method.steps={STEPS}", "method.expected_batch_size=40", f"method.checkpoint_every={BLOCK}")
RUN = (*TABLE, *SGD, "report=false")


class Killed(BaseException):
    """Stands for kill −9 inside this process: nothing catches it."""


def start(cli: Any, *arguments: str, nth: int = 2, kind: type[BaseException] = Killed) -> None:
    """A run that ends when it is about to write its ``nth`` checkpoint: ``nth`` blocks charged, nth − 1 kept."""
    left, write = [nth], running.write_checkpoint

    def killed(*values: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise kind
        write(*values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "write_checkpoint", killed)
        if kind is Killed:
            with pytest.raises(Killed):
                cli(*arguments)
        else:
            cli(*arguments)


@contextmanager
def counted_noise() -> Iterator[list[int]]:
    """How many noise vectors are used."""
    used, draw = [], engine.draw_noise

    def drawn(*arguments: Any) -> Any:
        used.append(1)
        return draw(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "draw_noise", drawn)
        yield used


def charged(folder: Path) -> int:
    """Read without the code under test."""
    lines = [json.loads(line) for line in (folder / "release/ledger.jsonl").read_text().splitlines()]
    return sum(line["count"] for line in lines if line["kind"] == "charge")


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def refused(cli: Any, folder: Path, match: str, *words: str) -> str:
    """Exit status 1 and the message; nothing in the folder has changed and no noise was used."""
    before = files(folder)
    with counted_noise() as used:
        status, out, err = cli(*(words or (f"resume={folder}",)))
    assert status == 1
    assert re.search(match, err), err
    assert "Traceback" not in out + err
    assert files(folder) == before
    assert used == []
    return str(err)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed") / "here"


@pytest.fixture
def run(cli: Any, tmp_path: Path, original: Path) -> Path:
    """Killed in its second block: 4 steps charged, a checkpoint of 2.  Made once, then copied with its data."""
    if not original.exists():
        write_people(tmp_path)
        start(cli, *RUN, "hydra.run.dir=run")
        assert charged(tmp_path / "run") == 2 * BLOCK
        (tmp_path / "run/home").write_text(str(tmp_path))
        shutil.copytree(tmp_path, original)
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    home, kept = tmp_path / "run/home", tmp_path / "run/private/hydra/hydra.yaml"
    kept.write_text(kept.read_text().replace(home.read_text(), str(tmp_path)))
    home.unlink()
    return tmp_path / "run"


# -- it goes on -------------------------------------------------------------------------------------------------------
def python(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", *arguments], cwd=cwd, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def test_kill_9_then_the_command_from_another_folder_ends_as_an_uninterrupted_run(cli: Any, tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "at home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_people(home)
    many = ("method.steps=600", "method.checkpoint_every=10", "report=true")
    process = python("dpml.train", *RUN, *many, "hydra.run.dir=a run", cwd=home)
    folder = home / "a run"
    wait_for(folder / "private/checkpoint.safetensors", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    path = folder / "release/ledger.jsonl"
    path.write_bytes(whole := path.read_bytes()[: path.read_bytes().rfind(b"\n") + 1])  # a torn line was never used
    before = charged(folder)
    assert 10 <= before < 600
    assert not (folder / "result.json").exists()
    config = (folder / "release/config.yaml").read_bytes()

    rest = python("dpml", "train", f"resume={folder}", cwd=elsewhere)
    out, err = rest.communicate(timeout=240)
    assert rest.returncode == 0, out + err
    assert f"{before} of 600 steps are charged and never run again" in out
    for word in ("Plan", "promise", "Result", "ε", "accountant", "sample size", "ledger"):
        assert word in out
    assert charged(folder) == 600
    assert path.read_bytes().startswith(whole)
    assert (folder / "release/config.yaml").read_bytes() == config
    result = json.loads((folder / "result.json").read_text())
    assert result["steps"] == 600
    assert result["epsilon"] <= 1.0
    assert result["command"].startswith("python -m dpml.train data=table data.path=people.csv ")
    assert json.loads((folder / "private/status.json").read_text())["status"] == "done"
    assert list(elsewhere.iterdir()) == []

    words = (*RUN, f"data.path={home}/people.csv", f"data.schema={home}/people.json", "report=true")
    assert cli(*words, "hydra.run.dir=plain")[0] == 0
    plain = tmp_path / "plain"
    for part in ("", "release", "private"):
        assert {p.name for p in (folder / part).iterdir()} == {p.name for p in (plain / part).iterdir()}
    expected = json.loads((plain / "result.json").read_text())
    assert result.keys() == expected.keys()

    assert verify.main([str(folder)]) == 0  # python -m dpml.verify


def test_only_uncharged_steps_are_run_from_the_checkpoint(cli: Any, run: Path) -> None:
    with counted_noise() as used:
        status, out, err = cli(f"resume={run}", "report=true")
    assert status == 0, err
    assert f"4 of {STEPS} steps are charged" in out
    assert len(used) == STEPS - 2 * BLOCK
    assert charged(run) == STEPS
    assert accounting.verify(run).ok
    assert (run / "report.html").exists()
    assert not (run / "private/checkpoint.safetensors").exists()


def test_where_it_is_computed_and_where_the_same_data_lie_may_change(cli: Any, run: Path, tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    (tmp_path / "people.csv").rename(tmp_path / "moved/others.csv")
    (tmp_path / "people.json").rename(tmp_path / "moved/people.json")
    error = refused(cli, run, "people.csv")
    assert "A new run of this configuration: python -m dpml.train data=table" in error
    status, out, err = cli(
        f"resume={run}", "data.path=moved/others.csv", "data.schema=moved/people.json", "device=cpu",
        "method.micro_batch_size=7", "report=false",
    )  # fmt: skip
    assert status == 0, out + err
    assert accounting.verify(run).ok
    assert not (run / "report.html").exists()
    result = json.loads((run / "result.json").read_text())
    assert result["plan"]["parameters"]["micro_batch_size"] is None  # the plan is the ledger's


def test_before_the_first_checkpoint_the_rest_starts_from_the_initial_weights(
    cli: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_people(tmp_path)
    start(cli, *RUN, "hydra.run.dir=run", nth=1)
    assert not (tmp_path / "run/private/checkpoint.safetensors").exists()
    logging.getLogger("dpml").addHandler(caplog.handler)  # Hydra took it from the root
    try:
        with counted_noise() as used:
            status, _, err = cli("resume=run")
    finally:
        logging.getLogger("dpml").removeHandler(caplog.handler)
    assert status == 0, err
    assert f"makes the {STEPS - BLOCK} steps of {STEPS} that are not charged" in caplog.text
    assert len(used) == STEPS - BLOCK
    assert accounting.verify(tmp_path / "run").ok


def test_a_data_set_ledger_without_room_for_another_run_is_not_asked_again(cli: Any, tmp_path: Path) -> None:
    write_people(tmp_path)
    cap = ("privacy.dataset_ledger=all.jsonl", "privacy.dataset_epsilon=1", "privacy.dataset_delta=1e-3")
    start(cli, *RUN, *cap, "hydra.run.dir=run")
    status, _, err = cli("resume=run")
    assert status == 0, err
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 1


def test_killed_while_its_report_was_written_a_run_gets_its_report(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: Path) -> None:
        raise Killed

    write_people(tmp_path)
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("dpml.report.write_run_report", killed)
        with pytest.raises(Killed):
            cli(*RUN, "report=true", "hydra.run.dir=run")
    model = (run / "release/model.safetensors").read_bytes()
    status, out, err = cli(f"resume={run}")
    assert status == 0, err
    assert "was complete already" in out
    assert (run / "report.html").exists()
    assert (run / "release/model.safetensors").read_bytes() == model
    assert json.loads((run / "private/status.json").read_text())["status"] == "done"


@pytest.mark.slow
def test_several_processes_go_on_with_a_run_of_one(run: Path, tmp_path: Path) -> None:
    """Nightly: two processes under torchrun finish what one began."""
    words = ("torch.distributed.run", "--nproc_per_node=2", "--standalone", "-m", "dpml.train", f"resume={run}")
    process = python(*words, cwd=tmp_path)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert out.count("Plan (public knowledge only") == 1
    assert charged(run) == STEPS
    assert accounting.verify(run).ok


# -- what is refused --------------------------------------------------------------------------------------------------
def test_a_finished_run_is_refused_with_the_ways_to_check_it_and_to_run_again(cli: Any, run: Path) -> None:
    assert cli(f"resume={run}")[0] == 0
    error = refused(cli, run, "is finished; there is nothing to resume")
    assert f"python -m dpml.verify {run}" in error
    again = shlex.split(error.split("A new run of this configuration: ")[1])
    assert again == ["python", "-m", "dpml.train", *RUN]
    refused(cli, run, "is finished", f"resume={run / 'release'}")


def test_a_finished_run_that_was_changed_is_said_to_be(cli: Any, run: Path) -> None:
    assert cli(f"resume={run}")[0] == 0
    path = run / "release/ledger.jsonl"
    path.write_text(path.read_text().replace('"count":2', '"count":1', 1))
    refused(cli, run, "does not verify; nothing was changed")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda folder: None, "resume = '.*nowhere' does not exist"),
        (lambda folder: folder.mkdir(), "is not a run folder: it has no release/"),
        (lambda folder: folder.write_text("x"), "is not a run folder"),
        (lambda folder: (folder / "release").mkdir(parents=True), "has no private/ in it"),
        (lambda folder: [(folder / name).mkdir(parents=True) for name in ("release", "private")],
         r"was not started by python -m dpml.train .*PrivateTrainer.resume\("),
    ],
)  # fmt: skip
def test_folders_without_a_run_are_refused(cli: Any, tmp_path: Path, make: Any, match: str) -> None:
    make(tmp_path / "nowhere")
    refused(cli, tmp_path, match, f"resume={tmp_path / 'nowhere'}")


@pytest.mark.parametrize("method", ["output", "objective"])
def test_a_method_of_one_release_is_refused_with_the_command_for_a_new_run(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    write_people(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("dpml.trainer.released_model", killed)
        with pytest.raises(Killed):
            cli(*TABLE, f"method={method}", "hydra.run.dir=run")
    assert (tmp_path / "run/private/resume.json").exists()
    error = refused(cli, tmp_path / "run", f"'{method}' is one release and cannot be resumed; what it charged is spent")
    assert f"A new run of this configuration: python -m dpml.train {shlex.join(TABLE)} method={method}" in error


def test_with_everything_charged_and_no_checkpoint_nothing_is_left(cli: Any, tmp_path: Path) -> None:
    write_people(tmp_path)
    start(cli, *RUN, f"method.checkpoint_every={STEPS}", "hydra.run.dir=run", nth=1)
    error = refused(cli, tmp_path / "run", f"all {STEPS} steps .* no checkpoint was reached")
    assert "A new run of this configuration: " in error


def test_killed_before_its_data_were_read_a_run_starts_anew(cli: Any, run: Path) -> None:
    (run / "private/resume.json").unlink()
    refused(
        cli,
        run,
        "has lost private/resume.json, and cannot go on: .*stay spent.*A new run of this configuration: python",
    )
    for path in (run / "release").iterdir():
        path.unlink()
    (run / "release").rmdir()
    refused(cli, run, "was killed before it charged anything. A new run of this configuration: python")


def test_changed_data_are_refused(cli: Any, run: Path, tmp_path: Path) -> None:
    frame = people()
    frame.loc[17, "age"] = 100.0 - frame.loc[17, "age"]
    frame.to_csv(tmp_path / "people.csv", index=False)
    refused(cli, run, "the data are not those that the run started with; .*Nothing was charged")


def test_a_changed_schema_is_refused_with_the_difference(cli: Any, run: Path, tmp_path: Path) -> None:
    write_people(tmp_path, n_declared=401)
    refused(cli, run, r"data.n_declared: 400 → 401")


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("epsilon: 1.0", "epsilon: 2.0", r"arguments and those configured now differ: epsilon: 1.0 → 2.0"),
        ("max_grad_norm: 1.0", "max_grad_norm: 0.5", r"max_grad_norm: 1.0 → 0.5"),
        ("steps: 8", "steps: 9", r"steps: 8 → 9"),
        ("steps: 8", "stepps: 8", "is damaged"),
        ("steps: 8", "steps: many", "is damaged"),
        ("method:", "method: {", "is damaged"),
    ],
)
def test_a_changed_configuration_is_refused(cli: Any, run: Path, old: str, new: str, match: str) -> None:
    path = run / "private/hydra/config.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    refused(cli, run, match)


@pytest.mark.parametrize("name", ["release/ledger.jsonl", "private/resume.json"])
def test_a_run_that_another_process_holds_is_refused(cli: Any, run: Path, name: str) -> None:
    with open(run / name, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused(cli, run, "in use by another process: .*Wait for it, or stop it first")
    assert cli(f"resume={run}")[0] == 0


@pytest.mark.parametrize("word", ["method.micro_batch_size=${foo", "device=${nope}"])
def test_a_reference_beside_resume_is_refused(cli: Any, run: Path, word: str) -> None:
    refused(cli, run, "it must be a value, not a reference", f"resume={run}", word)


def test_other_words_are_refused_by_name(cli: Any, run: Path, tmp_path: Path) -> None:
    for word in (
        "privacy.epsilon=2", "method.steps=100", "seed=1", "+experiment=logreg", "hydra.run.dir=other", "method=output",
        "privacy.dataset_ledger=x", "--cfg", "-h", "resum=1",
    ):  # fmt: skip
        error = refused(cli, run, re.escape(f"{word} cannot stand beside resume=: "), f"resume={run}", word)
        assert "device, method.micro_batch_size, verbose, report, data.path" in error
    for word in ("-m", "--multirun", "resume_sweep=x"):
        refused(cli, run, "resume_sweep=FOLDER", word, f"resume={run}")
    refused(cli, run, "give one run folder", f"resume={run}", f"resume={run}")
    refused(cli, run, "give one run folder", "resume=")
    refused(cli, run, "device = 'tpu'", f"resume={run}", "device=tpu")
    refused(cli, run, "report = 'perhaps' is not allowed", f"resume={run}", "report=perhaps")
    refused(cli, run, "data.folder is no key of data=table", f"resume={run}", "data.folder=.")
    assert not (tmp_path / "other").exists()


def test_a_sweep_and_its_jobs_are_sent_to_resume_sweep(cli: Any, tmp_path: Path) -> None:
    write_people(tmp_path)
    start(cli, "-m", *RUN, "privacy.epsilon=1,2", "hydra.sweep.dir=my sweep")
    root = tmp_path / "my sweep"
    command = shlex.join(["python", "-m", "dpml.train", f"resume_sweep={root}"])
    assert f"holds a sweep, not a run of its own. Finish the sweep with: {command}" in refused(cli, root, "sweep")
    assert f"Finish the sweep with: {command}" in refused(cli, root, "is a job of the sweep", f"resume={root / '0'}")


# -- a run that stops says how to go on -------------------------------------------------------------------------------
def test_ctrl_c_ends_at_a_checkpoint_and_prints_the_command_that_goes_on(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real signal to this process, in the third step; it waits for the end of the second block."""
    write_people(tmp_path)
    draw, steps = engine.draw_noise, []

    def drawn(*arguments: Any) -> Any:
        steps.append(1)
        if len(steps) == 3:
            signal.raise_signal(signal.SIGINT)
        return draw(*arguments)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with it ignored
    try:
        with monkeypatch.context() as patch:
            patch.setattr(engine, "draw_noise", drawn)
            status, _, err = cli(*RUN, "hydra.run.dir=my run")
    finally:
        signal.signal(signal.SIGINT, before)
    folder = tmp_path / "my run"
    assert status == 130
    assert len(steps) == charged(folder) == 4
    assert load_file(folder / "private/checkpoint.safetensors")
    shown = err.split("stopped with a checkpoint; no charged step is lost. Go on with: ")[1].splitlines()[0]
    words = shlex.split(shown)
    assert words == ["python", "-m", "dpml.train", f"resume={folder}"]
    assert "Traceback" not in err
    status, _, err = cli(*words[3:])
    assert status == 0, err
    assert accounting.verify(folder).ok


def test_ctrl_c_outside_the_steps_says_what_is_left(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    write_people(tmp_path)
    for number, (seam, method, match) in enumerate(
        [
            ("dpml.trainer.records_mac", SGD, "nothing was released, what was charged stays spent. Start a new run"),
            ("dpml.trainer.released_model", ("method=output",), "nothing was released, what was charged stays spent"),
            ("dpml.trainer.released_model", SGD, "Go on with: python -m dpml.train resume={folder}"),
            (
                "dpml.report.write_run_report",
                SGD,
                "is complete. For what is left: python -m dpml.train resume={folder}",
            ),
        ]
    ):
        folder = tmp_path / str(number)
        with monkeypatch.context() as patch:
            patch.setattr(seam, stop)
            status, _, err = cli(*TABLE, *method, f"hydra.run.dir={number}")
        assert status == 130
        assert match.format(folder=folder) in err
        if "resume=" in match:
            assert cli(f"resume={folder}")[0] == 0
            assert (folder / "report.html").exists()
            assert accounting.verify(folder).ok


def test_ctrl_c_in_a_sweep_names_the_sweeps_command_and_starts_no_other_job(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    write_people(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("dpml.trainer.released_model", stop)
        status, _, err = cli("-m", *TABLE, "method=output", "report=false", "privacy.epsilon=1,2", "hydra.sweep.dir=s")
    assert status == 130
    assert f"Go on with: python -m dpml.train resume_sweep={tmp_path / 's'}" in err
    assert not (tmp_path / "s/1").exists()


def test_a_run_that_breaks_off_with_an_error_names_the_command(cli: Any, tmp_path: Path) -> None:
    write_people(tmp_path)
    start(cli, *RUN, "hydra.run.dir=run", kind=RuntimeError)
    status, _, err = cli(*RUN, "hydra.run.dir=run")  # the same command again
    assert status == 1
    assert f"or go on with that run: python -m dpml.train resume={tmp_path / 'run'}" in err
    status, _, err = cli("resume=run")
    assert status == 0, err
