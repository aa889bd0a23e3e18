"""Law 7: a run killed at any instant has spent what it charged, and goes on with fresh noise and the other steps.

Nightly, with 50 kills at random instants and some of whole processes:
``python -m pytest -m slow tests/sgd/test_resume_kill.py``
"""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from resume_checks import (
    BLOCK,
    STEPS,
    charged_on_disk,
    check_finished,
    check_lives,
    checkpoint_path,
    fit,
    read_log,
    table,
)

from dpml import PrivateTrainer, sgd
from dpml.errors import RunFolderError

CHILD = Path(__file__).with_name("resume_child.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
KILLED = -signal.SIGKILL


class Server:
    """The parent of all lives of this file."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        assert self.answer() == "ready"

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def __call__(self, folder, **request):
        log = folder.with_suffix(".log")
        self.process.stdin.write(json.dumps({"folder": str(folder), "log": str(log), **request}) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def live():
    server = Server()
    yield server
    server.close()


# one run, killed at each of these in turn: (point, how often it is passed before)
INSTANTS = [
    ("half line", 1),  # the first reservation is torn: nothing is charged
    ("line not synced", 1),  # written, so charged, and never used
    ("reserved", 1),
    ("before noise", 1),  # before the first step
    ("after noise", 6),  # in the middle of the second block
    ("after step", 3),
    ("half checkpoint", 1),
    ("checkpoint not renamed", 2),
    ("after checkpoint", 1),  # before the next reservation
    ("half line", 2),
    ("before close", 1),
    ("after close", 1),
    ("after model.safetensors", 1),
]


def test_killed_at_every_kind_of_instant_the_run_goes_on_and_ends_whole(live, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "run.log"
    charged = []
    for point, nth in INSTANTS:
        assert live(folder, point=point, nth=nth)["status"] == KILLED, point
        check_lives(folder, log)
        charged.append(charged_on_disk(folder))
    # what each instant has charged, block by block
    assert charged == [0, 4, 8, 12, 20, 24, 28, 36, 40, 44, STEPS, STEPS, STEPS]
    end = live(folder)
    assert end["status"] == 0, end["stderr"]
    check_finished(folder, log)
    lost = STEPS - len([e for e in read_log(log) if e["kind"] == "used"])
    assert 0 < lost < len(INSTANTS) * BLOCK


def test_killed_after_its_result_the_run_is_finished_and_tidied(live, tmp_path):
    folder = tmp_path / "run"
    assert live(folder, point="after result.json")["status"] == KILLED
    assert checkpoint_path(folder).exists()
    with pytest.raises(RunFolderError, match="finished"):
        PrivateTrainer.resume(folder, table())
    assert not checkpoint_path(folder).exists()
    assert (folder / "result.json").read_bytes() == (folder / "release/result.json").read_bytes()


def test_killed_before_the_data_were_read_nothing_is_there_to_resume(live, tmp_path):
    folder = tmp_path / "run"
    assert live(folder, point="after schema.json")["status"] == KILLED
    with pytest.raises(RunFolderError, match=r"[sS]tart a new run"):
        PrivateTrainer.resume(folder, table())
    assert charged_on_disk(folder) == 0


def test_prefetched_noise_of_a_large_model_is_never_used_in_another_life(live, tmp_path):
    """More than 4096 parameters: the next step's vector is drawn while this one computes, and dropped by a kill."""
    folder, log = tmp_path / "run", tmp_path / "run.log"
    arguments = {"hidden": [900], "steps": STEPS}
    for nth in (1, 6, 7):
        assert live(folder, point="after noise", nth=nth, arguments=arguments)["status"] == KILLED
        check_lives(folder, log)
    assert live(folder)["status"] == 0
    check_finished(folder, log)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 128 + 15), (signal.SIGINT, 1)])
def test_a_polite_stop_waits_for_the_checkpoint_loses_nothing_and_tells_how_to_go_on(live, tmp_path, number, status):
    folder, log = tmp_path / "run", tmp_path / "run.log"
    end = live(folder, point="after noise", nth=6, signal=number)
    assert end["status"] == status
    assert "once more stops at once" in end["stderr"]
    assert f"Go on with: PrivateTrainer.resume({str(folder)!r}, data)" in end["stderr"]
    assert ("KeyboardInterrupt" in end["stderr"]) == (number == signal.SIGINT)
    used = len([e for e in read_log(log) if e["kind"] == "used"])
    assert used == charged_on_disk(folder) == sgd.load_state(checkpoint_path(folder))["step"] == 2 * BLOCK
    assert live(folder)["status"] == 0
    check_finished(folder, log)
    assert len([e for e in read_log(log) if e["kind"] == "used"]) == STEPS


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 128 + 15), (signal.SIGINT, 1)])
def test_a_second_signal_stops_at_once_and_the_run_goes_on(live, tmp_path, number, status):
    folder, log = tmp_path / "run", tmp_path / "run.log"
    end = live(folder, point="after noise", nth=5, again=True, signal=number)
    assert end["status"] == status
    assert "stopped at once" in end["stderr"]
    assert "Go on with: PrivateTrainer.resume" in end["stderr"]
    assert len([e for e in read_log(log) if e["kind"] == "used"]) == 6
    assert charged_on_disk(folder) == 2 * BLOCK
    assert live(folder)["status"] == 0
    check_finished(folder, log)


def test_a_stopped_job_of_a_sweep_names_the_sweeps_command(live, tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    end = live(tmp_path / "0", point="after noise", nth=1, signal=signal.SIGTERM)
    assert f"python -m dpml.train resume_sweep={tmp_path}" in end["stderr"]


def test_checkpoints_are_for_the_owner_only_and_never_partial(live, tmp_path):
    folder = tmp_path / "run"
    before = os.umask(0)
    try:
        live(folder, point="after checkpoint", nth=2)
    finally:
        os.umask(before)
    path = checkpoint_path(folder)
    for private in (path, folder / "private/resume.json"):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600, private
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    whole = path.read_bytes()
    for point in ("half checkpoint", "checkpoint not renamed"):
        live(folder, point=point)
        assert path.read_bytes() == whole, "a reader never sees a part"
        left = [p for p in path.parent.iterdir() if p.name.endswith(".tmp")]
        assert len(left) == 1, "what the killed writer left"
    live(folder)
    assert not [p for p in path.parent.iterdir() if p.name.endswith(".tmp")]


def forked(live):
    return lambda folder, wait: live(folder, pause=0.004, kill_after=wait)["status"]


def test_random_kills_land_anywhere(live, tmp_path):
    """Six kills from outside at instants drawn afresh each time; the 50 of the nightly run are below."""
    _random_kills(forked(live), tmp_path, 6, 0.6, live)


@pytest.mark.slow
def test_fifty_random_kills(live, tmp_path):
    _random_kills(forked(live), tmp_path, 50, 0.6, live)


@pytest.mark.slow
def test_random_kills_of_whole_processes(live, tmp_path):
    """No fork: nothing of one life's memory is in another's."""

    def once(folder, wait):
        log = folder.with_suffix(".log")
        request = {"folder": str(folder), "log": str(log), "pause": 0.02}
        process = subprocess.Popen([sys.executable, str(CHILD), "once", json.dumps(request)], env=ENVIRONMENT)
        before, end = _begins(log), time.monotonic() + 120
        while _begins(log) == before:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(wait)
        process.kill()
        return process.wait()

    _random_kills(once, tmp_path, 5, 2.0, live)


def _begins(log):
    return len([e for e in read_log(log) if e["kind"] == "begin"])


def _random_kills(life, tmp_path, kills, longest, live):
    """Kills at uniform instants; a run that ends is checked and followed by another."""
    draw, done, number = random.SystemRandom(), 0, 0
    while done < kills:
        folder = tmp_path / f"run{number}"
        status = life(folder, draw.uniform(0, longest))
        assert status in (0, KILLED)
        done += status == KILLED
        check_lives(folder, folder.with_suffix(".log"))
        over = not (folder / "private/resume.json").exists() or (folder / "release/result.json").exists()
        number += over or charged_on_disk(folder) == STEPS
    for folder in sorted(tmp_path.glob("run?")) + sorted(tmp_path.glob("run??")):
        log = folder.with_suffix(".log")
        if (folder / "release/result.json").exists() or not (folder / "private/resume.json").exists():
            continue
        if charged_on_disk(folder) == STEPS and not checkpoint_path(folder).exists():
            continue
        assert live(folder)["status"] == 0
        check_finished(folder, log)
    assert any(e["kind"] == "used" for f in tmp_path.glob("*.log") for e in read_log(f))


def test_a_run_without_kills_is_the_same_to_the_witness(live, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "run.log"
    assert live(folder)["status"] == 0
    check_finished(folder, log)
    assert [e["t"] for e in read_log(log) if e["kind"] == "step"] == list(range(STEPS))


def test_the_witness_changes_no_release(tmp_path):
    """The plan of the lives is that of a plain fit."""
    result = fit(tmp_path / "plain")
    assert result.plan.steps == STEPS
    assert result.guarantee.epsilon == pytest.approx(result.plan.guarantee.epsilon, rel=1e-9)
