"""Counts of what was tried, printed at the end: inputs of searches, and faults that were survived.

``python -m pytest tests/fuzz`` for the short searches, ``python -m pytest -m slow tests/fuzz`` for the nightly ones.
With ``DPML_FUZZ_COUNTS=FILE`` the counts are written there too, for ``experiments/audit.py``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fuzz_inputs
import pytest

KINDS = {"inputs": "inputs tried", "disk": "failures of the disk survived", "kills": "kills survived"}


@pytest.fixture(autouse=True)
def _counted(record_property: Callable[[str, object], None]) -> Iterator[None]:
    """What this test tried, handed on with its report (so that it arrives from other processes too)."""
    fuzz_inputs.TRIED.clear()
    yield
    for kind, number in fuzz_inputs.TRIED.items():
        record_property(f"tried {kind}", number)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts: Counter[str] = Counter()
    properties = 0
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") != "teardown":
                continue
            found = {key: value for key, value in report.user_properties if key.startswith("tried ")}
            properties += "tried inputs" in found
            counts.update({key.removeprefix("tried "): value for key, value in found.items()})
    if not counts:
        return
    failed = len(terminalreporter.stats.get("failed", [])) + len(terminalreporter.stats.get("error", []))
    words = [f"{counts[kind]:,} {KINDS[kind]}" for kind in KINDS if counts[kind]]
    if counts["inputs"]:
        words[0] += f" in {properties} searches"
    terminalreporter.write_line("fuzz: " + ", ".join(words) + f"; tests that failed: {failed}")
    target = os.environ.get("DPML_FUZZ_COUNTS")
    if target:
        slow = " -m slow" if terminalreporter.config.option.markexpr == "slow" else ""
        found = {kind: counts[kind] for kind in KINDS} | {"searches": properties, "failed": failed}
        Path(target).write_text(json.dumps(found | {"command": f"-m pytest{slow} tests/fuzz"}) + "\n", "utf-8")
