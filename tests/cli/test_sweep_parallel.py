"""Sweeps side by side in worker processes: real processes, killed and stopped at the moments that matter."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from dpml import accounting, launching, workers
from dpml.errors import ConfigError, RunFolderError
from dpml.launching import Place, place_of
from dpml.report import write_sweep_report

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("data=synthetic", "data.n=400", "data.d=3", "privacy.delta=1e-4", "report=false")
STEPS = 3000
LONG = ("method=dp_sgd", f"method.steps={STEPS}", "method.expected_batch_size=40", "method.checkpoint_every=100")


def train(cwd: Path, *words: str, cores: int = 2) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "LOKY_MAX_CPU_COUNT": str(cores)}
    return subprocess.Popen(
        [sys.executable, "-m", "dpml.train", *words], cwd=cwd, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_until(true: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 240
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def charged(folder: Path) -> int:
    return sum(int(c["count"]) for c in accounting.read_ledger(folder / "release/ledger.jsonl").charges)


def status(folder: Path) -> str:
    return str(json.loads((folder / "private/status.json").read_text())["status"])


def rows(root: Path) -> list[dict[str, str]]:
    with open(root / "summary.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def start_long(tmp_path: Path) -> subprocess.Popen[str]:
    """Four jobs, two at once: 0 is short, 1 and 2 are long, 3 waits; given back when 0 is done and both are at work."""
    process = train(tmp_path, "-m", *SMALL, *LONG, f"method.steps=100,{STEPS}", "privacy.epsilon=1,2",
                    "hydra.sweep.dir=s")  # fmt: skip
    return process


def test_jobs_run_in_two_workers_and_each_folder_is_a_whole_run(tmp_path: Path) -> None:
    process = train(tmp_path, "-m", *SMALL, "+sweep=epsilon_by_seed", "privacy.epsilon=1,2", "seed=0,1",
                    "method=output", "hydra.sweep.dir=s")  # fmt: skip
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert err == ""
    root = tmp_path / "s"
    assert [row["status"] for row in rows(root)] == ["done"] * 4
    assert sorted(line.split(":")[0] for line in out.splitlines() if line.startswith("job ")) == [
        f"job {k}" for k in range(4)
    ]
    for number in range(4):
        assert accounting.verify(root / str(number)).ok
        assert (root / str(number) / "private").stat().st_mode & 0o777 == 0o700
        assert (root / str(number) / "private/hydra/overrides.yaml").exists()
    assert {path.name for path in root.iterdir() if path.is_dir()} == {str(k) for k in range(4)}  # no log beside them


def test_jobs_that_fail_lose_no_others_and_the_cap_holds_whoever_comes_first(tmp_path: Path) -> None:
    """Six jobs of ρ = 0.02 (σ = 5, one step of all records) in two processes under a cap that three fit into."""
    cap = accounting.epsilon(accounting.Gaussian(5.0 / 3.4**0.5), 1e-4, accountant="zcdp")
    process = train(
        tmp_path, "-m", *SMALL, "method=dp_sgd", "method.noise_multiplier=5", "privacy.epsilon=null",
        "method.expected_batch_size=400", "method.steps=1", "seed=0,1,2,3,4,5", "privacy.dataset_ledger=all.jsonl",
        f"privacy.dataset_epsilon={cap}", "privacy.dataset_delta=1e-4", "privacy.dataset_filter=zcdp",
        "hydra.sweep.dir=s",
    )  # fmt: skip
    out, err = process.communicate(timeout=240)
    assert process.returncode == 1
    root = tmp_path / "s"
    found = [status(root / str(k)) for k in range(6)]
    assert (found.count("done"), found.count("failed")) == (3, 3), out + err
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 3
    for number, word in enumerate(found):
        if word == "failed":
            assert f"error: job {number}: " in err
            assert (root / str(number) / "private/traceback.txt").exists()
    assert "did not finish; run the rest with: python -m dpml.train resume_sweep=s" in err


def test_kill_9_of_the_parent_loses_no_finished_job_and_resume_does_the_rest_in_parallel(tmp_path: Path) -> None:
    process, root = start_long(tmp_path), tmp_path / "s"
    wait_until(lambda: (root / "2/private/checkpoint.safetensors").exists(), process)
    process.kill()
    process.communicate()
    finished = {k: (root / f"{k}/release/result.json").read_bytes() for k in "01" if status(root / k) == "done"}
    assert finished
    rest = train(tmp_path, "resume_sweep=s")  # waits for the orphans, which stop at their next checkpoint
    out, err = rest.communicate(timeout=240)
    assert rest.returncode == 0, out + err
    assert not (root / "2-1").exists()
    for number, content in finished.items():
        assert (root / f"{number}/release/result.json").read_bytes() == content
    assert [charged(root / str(k)) for k in range(4)] == [100, 100, STEPS, STEPS]  # no step charged twice
    assert all(accounting.verify(root / str(k)).ok for k in range(4))
    assert [row["status"] for row in rows(root)] == ["done"] * 4


def test_a_stop_waits_for_the_checkpoints_and_starts_no_other_job(tmp_path: Path) -> None:
    process, root = start_long(tmp_path), tmp_path / "s"
    wait_until(lambda: (root / "2/private/checkpoint.safetensors").exists(), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, out + err
    assert "no other starts" in err
    assert "stopped with a checkpoint; no charged step is lost" in err
    assert "run the rest with: python -m dpml.train resume_sweep=s" in err
    assert "Traceback" not in err
    assert status(root / "0") == "done"
    assert not (root / "2/release/result.json").exists()
    assert [row["status"] for row in rows(root)][2] == "unfinished"
    assert (root / "report.html").exists()


@pytest.mark.slow
def test_a_killed_worker_costs_the_jobs_under_way_only(tmp_path: Path) -> None:
    process = train(tmp_path, "-m", *SMALL, *LONG, f"method.steps={STEPS},100", "privacy.epsilon=1,2",
                    "hydra.sweep.dir=s")  # fmt: skip
    root = tmp_path / "s"
    wait_until(lambda: (root / "0/private/checkpoint.safetensors").exists(), process)
    os.kill(worker_of(root / "0/release/ledger.jsonl", process.pid), signal.SIGKILL)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "a worker process was killed" in err
    found = rows(root)
    assert found[0]["status"] == "unfinished"
    assert [row["status"] for row in found].count("done") >= 2  # all but those that were under way
    rest = train(tmp_path, "resume_sweep=s", "hydra.launcher.n_jobs=1")
    out, err = rest.communicate(timeout=240)
    assert rest.returncode == 0, out + err
    assert charged(root / "0") == STEPS
    assert [row["status"] for row in rows(root)] == ["done"] * 4


def worker_of(path: Path, parent: int) -> int:
    """The process among the children of ``parent`` that has ``path`` open."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"\nPPid:\t{parent}\n" not in (process / "status").read_text():
                continue
            if any(link.resolve() == path.resolve() for link in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:
            continue
    raise AssertionError(f"nobody has {path} open")


def test_the_cores_are_shared_out_between_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    from joblib import Parallel, delayed

    monkeypatch.delenv("LOKY_MAX_CPU_COUNT")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    place = place_of(OmegaConf.create({"_target_": launching.JOBLIB, "n_jobs": 2}), 60, ["cpu"])
    # (tests set a limit of one core for everything else, see conftest.py)
    assert place == Place("joblib", 2)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        found = Parallel(n_jobs=place.at_once, backend="loky")(delayed(os.getenv)(name) for _ in range(4))
        assert found == [str(max(launching.cores() // 2, 1))] * 4  # without joblib's doing: None


def test_how_many_jobs_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def place(n_jobs: Any, number: int, *devices: str) -> Place:
        return place_of(OmegaConf.create({"_target_": launching.JOBLIB, "n_jobs": n_jobs}), number, devices)

    monkeypatch.setattr(launching, "cores", lambda: 8)
    assert place(-1, 60, "cpu") == Place("joblib", 8)
    assert place(-1, 3, "cpu") == Place("joblib", 3)
    assert place(4, 60, "cpu") == Place("joblib", 4)
    assert place(1, 60, "cpu") == Place("serial")
    assert place(-1, 1, "cpu") == Place("serial")
    assert place(-1, 60, "cpu", "cuda") == Place("serial")  # they would share one GPU's memory
    assert place(2, 60, "cuda") == Place("joblib", 2)
    basic = OmegaConf.create({"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"})
    assert place_of(basic, 60, ["cpu"]) == Place("serial")
    for wrong in (0, -2, 1.5, "many", True, None):
        with pytest.raises(ConfigError, match=r"hydra\.launcher\.n_jobs"):
            place(wrong, 60, "cpu")


def test_a_wrong_number_of_jobs_stops_the_sweep_before_job_0(cli: Any, tmp_path: Path) -> None:
    code, _, err = cli("-m", *SMALL, "method=output", "privacy.epsilon=1,2", "hydra.launcher.n_jobs=0")
    assert code == 1
    assert "hydra.launcher.n_jobs = 0" in err
    assert not (tmp_path / "multirun").exists()


def test_a_sweep_whose_workers_are_still_at_work_is_not_resumed(tmp_path: Path) -> None:
    import fcntl

    with open(tmp_path / workers.LOCK_FILE, "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(RunFolderError, match="still being worked on"):
            workers.wait_for_workers(tmp_path, seconds=0.0)
    workers.wait_for_workers(tmp_path, seconds=0.0)


def test_every_seed_and_every_other_setting_is_checked_once(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpml import config as configuration

    seen: list[tuple[str, float, int]] = []
    real = configuration.check

    def check(config: Any) -> None:
        seen.append((config.method.name, config.privacy.epsilon, config.seed))
        real(config)

    monkeypatch.setattr(configuration, "check", check)
    code, out, err = cli("-m", *SMALL, "method=output,objective", "privacy.epsilon=1,0", "seed=0,1,2")
    assert code == 1
    assert "job 3 of 12" in out + err
    assert {(method, epsilon) for method, epsilon, _ in seen} == {("output", 1.0), ("output", 0.0)}
    assert {seed for *_, seed in seen} == {0, 1, 2}


def test_the_report_of_a_stopped_sweep_can_be_built_again(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"jobs": [{"number": 0, "overrides": ["seed=0"], "folders": ["0"]}]}')
    assert write_sweep_report(tmp_path)["failed"] == [0]


def test_what_a_worker_says_can_be_kept_for_whoever_can_say_it(capfd: pytest.CaptureFixture[str]) -> None:
    """Ray's workers hand their lines over with the job; a fault in between loses none."""
    with workers.keeping() as lines:
        workers.say("job 1: done")
        workers.say("error: job 2", 2)
        assert capfd.readouterr() == ("", "")
    assert lines == [("job 1: done", 1), ("error: job 2", 2)]

    class Fault(Exception):
        pass

    def faulty() -> None:
        with workers.keeping():
            workers.say("before")
            raise Fault

    with pytest.raises(Fault):
        faulty()
    workers.say("after")
    assert capfd.readouterr() == ("before\nafter\n", "")
