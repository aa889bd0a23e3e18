"""A sweep on a Ray of its own with two workers, killed half-way and gone on with."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpml import accounting

pytestmark = pytest.mark.ray
ROOT = Path(__file__).resolve().parents[2]
STEPS = 10_000  # long enough that Ray's workers, which outlive the killed process a moment, end no such job
SWEEP = (
    "-m", "data=synthetic", "data.n=400", "data.d=3", "privacy.delta=1e-4", "report=false", "method=dp_sgd",
    "method.expected_batch_size=40", "method.checkpoint_every=100", f"method.steps=100,{STEPS}", "privacy.epsilon=1,2",
    "hydra/launcher=ray", "hydra.launcher.init.num_cpus=2", "hydra.sweep.dir=s",
)  # fmt: skip


def train(cwd: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "dpml.train", *words], cwd=cwd, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def done(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / "private/status.json").read_text())["status"] == "done")
    except OSError:
        return False


def test_a_sweep_on_ray_killed_half_way_loses_no_finished_job_and_resume_does_the_rest(tmp_path: Path) -> None:
    root = tmp_path / "s"
    process = train(tmp_path, *SWEEP)
    end = time.monotonic() + 240
    while not (done(root / "0") and (root / "2/private/checkpoint.safetensors").exists()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = {k: (root / f"{k}/release/result.json").read_bytes() for k in "0123" if done(root / k)}
    assert "0" in before
    assert not {"2", "3"} & set(before)

    rest = train(tmp_path, "resume_sweep=s")
    out, _ = rest.communicate(timeout=300)
    assert rest.returncode == 0, out
    # A worker outlives the killed process a moment: its short job may be done after `before` was read.
    words = re.search(r"^([0-9]) of 4 jobs are done; running ([0-9])$", out, re.MULTILINE)
    assert words, out
    found, running = int(words[1]), int(words[2])
    assert len(before) <= found <= 2, out
    assert found + running == 4, out
    assert out.count(": dp_sgd, ε = ") == running, out  # Ray folds lines that look alike, unless told not to
    for number, content in before.items():
        assert (root / f"{number}/release/result.json").read_bytes() == content
    for number in range(4):
        record = accounting.read_ledger(root / f"{number}/release/ledger.jsonl")
        assert sum(int(charge["count"]) for charge in record.charges) == (100 if number < 2 else STEPS)
        assert accounting.verify(root / str(number)).ok
    with open(root / "summary.csv", encoding="utf-8", newline="") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["done"] * 4
