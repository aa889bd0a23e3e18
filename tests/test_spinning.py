"""Idle threads of torch: what the command sets, and how many threads draw noise beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpml import spinning
from dpml.mechanisms import streams

VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("given", "turns", "sleep"),
    [
        ({}, "10000", True),
        ({"GOMP_SPINCOUNT": "7"}, "7", True),
        ({"GOMP_SPINCOUNT": "30000"}, "30000", True),
        ({"GOMP_SPINCOUNT": "30001"}, "30001", False),
        ({"GOMP_SPINCOUNT": "infinite"}, "infinite", False),
        ({"OMP_WAIT_POLICY": "active"}, None, False),
        ({"OMP_WAIT_POLICY": " PASSIVE "}, None, True),
        ({"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000000"}, "1000000", False),
    ],
)
def test_the_users_own_setting_stays(
    given: dict[str, str], turns: str | None, sleep: bool, clean: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        clean.setenv(name, value)
    spinning.sleep_soon()
    assert os.environ.get("GOMP_SPINCOUNT") == turns
    assert spinning.idle_threads_sleep() is sleep


def test_nothing_is_taken_for_granted_where_nothing_is_set(clean: pytest.MonkeyPatch) -> None:
    assert spinning.idle_threads_sleep() is False


@pytest.mark.parametrize(("turns", "parts"), [("10000", 2), ("300000", 1), ("", 1)])
def test_a_second_thread_draws_where_the_other_processor_is_free(
    turns: str, parts: int, clean: pytest.MonkeyPatch
) -> None:
    clean.setenv("GOMP_SPINCOUNT", turns)
    bank = streams.Bank([np.random.default_rng(k) for k in range(2)], streams.Pool(1))
    sizes: list[int] = []
    out = np.zeros(streams.PARALLEL_FROM)

    def draw(stream: np.random.Generator, part: np.ndarray) -> None:
        sizes.append(part.size)
        stream.random(out=part)

    bank.fill(out, draw, few=True)
    assert (len(sizes), sum(sizes)) == (parts, out.size)
    assert (out > 0.0).all()


SHOW = """
import os, runpy, sys
sys.argv = ["dpml.train", "--cfg", "job"]
sys.stdout = open(os.devnull, "w")
sys.meta_path.insert(0, type("Look", (), {"find_spec": staticmethod(lambda name, *_: name == "torch" and print(
    "torch", os.environ.get("GOMP_SPINCOUNT"), file=sys.stderr) or None)}))
try:
    runpy.run_module("dpml.train", run_name="__main__")
finally:
    print("end", os.environ.get("GOMP_SPINCOUNT"), file=sys.stderr)
"""


def test_the_command_sets_it_before_torch_is_imported(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", SHOW], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith(("torch", "end"))]
    assert lines, done.stderr
    assert {line.split()[1] for line in lines} == {"10000"}
