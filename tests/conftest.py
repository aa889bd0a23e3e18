"""The command line inside the test process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from absl import logging as absl_logging
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, database=None)  # the same draws in every run
settings.load_profile("repeatable")

# the jobs of a sweep run one by one, where a monkeypatch reaches them; tests of parallel sweeps say how many at once
os.environ["LOKY_MAX_CPU_COUNT"] = "1"

# dp-accounting brings absl, whose log handler closes the stream that it was born with whenever logging is configured
# anew (Hydra does); under pytest that stream is pytest's own capture file
absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of CUDA run where there is a device; elsewhere they are deselected."""
    on_device = [item for item in items if item.get_closest_marker("gpu")]
    if not on_device:
        return
    import torch

    if not torch.cuda.is_available():
        config.hook.pytest_deselected(items=on_device)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """``cli("data=…", …) -> (exit status, stdout, stderr)`` of ``python -m dpml.train`` inside this process."""
    from hydra.core.global_hydra import GlobalHydra

    from dpml import train

    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", ["dpml.train", *arguments])
        try:
            status = train.main()
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 1
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
