"""SIGKILL and SIGTERM at instants drawn afresh, in every method: nothing is used without a line in the ledger, no part
of a release is there, and what was charged stays charged.  (Resuming DP-SGD: ``tests/sgd/test_resume_kill.py``.)
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fuzz_inputs
import pytest

from dpml import accounting as acc
from dpml.accounting.ledger import parse_ledger

METHODS = ("dp_sgd", "output", "objective", "dp_gd", "adassp")
CHILD = Path(__file__).with_name("kill_child.py")


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
    process.stdout.close()


def live(server: Any, method: str, folder: Path, number: int | None = None, wait: float = 0.0) -> tuple[int, float]:
    """One run, killed after ``wait`` seconds (or not); its exit status and how long it lived."""
    request = {"method": method, "folder": str(folder), "log": str(folder.with_suffix(".log"))}
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    child, started = int(server.stdout.readline()), time.monotonic()
    if number is not None:
        time.sleep(wait)
        with suppress(ProcessLookupError):  # it has ended
            os.kill(child, number)
    return int(server.stdout.readline()), time.monotonic() - started


def check(folder: Path, status: int) -> None:
    log = folder.with_suffix(".log")
    paid = [int(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []
    assert all(paid), "noise was drawn before its charge was on disk"
    release = folder / "release"
    if (release / "result.json").exists():
        assert acc.verify(folder, allow_test_noise=True).ok
        return
    assert status != 0
    assert not (folder / "result.json").exists()  # the link at the top leads nowhere else
    ledger = release / "ledger.jsonl"
    raw = ledger.read_bytes() if ledger.exists() else b""
    whole = raw[: raw.rfind(b"\n") + 1]
    charged = sum(line["count"] for line in parse_ledger(whole, "ledger").charges) if whole else 0
    assert charged >= max(paid, default=0)


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS)
def test_kills_at_any_instant(method: str, kills: int, server: Any, tmp_path: Path) -> None:
    """Instants uniform in the life of a run that is left alone; half of the kills by each signal."""
    status, life = live(server, method, tmp_path / "whole")
    assert status == 0
    check(tmp_path / "whole", status)
    assert (tmp_path / "whole.log").read_text("utf-8"), "the witness was asked for noise"
    draw = random.SystemRandom()
    for k in range(kills):
        folder = tmp_path / str(k)
        number = (signal.SIGKILL, signal.SIGTERM)[k % 2]
        status, _ = live(server, method, folder, number, draw.uniform(0, life))
        assert status in (0, -number, 128 + number)
        check(folder, status)
        fuzz_inputs.survived("kills")
