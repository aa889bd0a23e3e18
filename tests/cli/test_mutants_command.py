"""``experiments/mutants.py``: which outcomes count, what the score says, and that a run sees failures and hangs."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = "dpml/mechanisms/lattice.py"


@pytest.fixture(name="mutants")
def _mutants(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    yield importlib.import_module("mutants")
    for name in ("mutants", "mutants_argued", "mutants_runner"):
        sys.modules.pop(name, None)


def test_every_argument_is_about_a_mutant_that_there_is(mutants: ModuleType) -> None:
    """A line that has changed since needs a new argument."""
    there = {(m.file, mutants.line_of(m), m.what) for file in mutants.TESTS for m in mutants.mutants_of(file)}
    assert set(mutants.ARGUED) - there == set()
    assert min(map(len, mutants.ARGUED.values())) > 30


def test_the_tests_of_every_file_are_there(mutants: ModuleType) -> None:
    for file, tests in mutants.TESTS.items():
        assert len(set(tests)) == len(tests)
        assert all((ROOT / name).is_file() for name in (file, *tests))


def test_the_score_counts_what_ran_and_still_holds(
    mutants: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = mutants.sample([FILE], 5, 0)
    monkeypatch.setattr(mutants, "ARGUED", {})
    killer = mutants.TESTS[FILE][0] + "::test_of_it"
    lines = []
    for number, mutant in enumerate(drawn[:4]):
        killed_by = "" if number == 0 else killer
        digest = "of another source" if number == 3 else mutants.digest(FILE, killed_by)
        lines.append({"name": mutant.name, "file": FILE, "what": mutant.what, "killed_by": killed_by, "digest": digest})
    kept = tmp_path / "kept.jsonl"
    kept.write_text("\n".join(map(json.dumps, lines)) + '\n{"name": "torn', "utf-8")
    words = ["mutants.py", "--report", "--files", FILE, "--number", "5", "--output", str(kept)]
    for score, status in (("0.9", 1), ("0.4", 0)):  # 2 of the 5 that were drawn
        monkeypatch.setattr(sys, "argv", [*words, "--score", score])
        assert mutants.main() == status
        said = capsys.readouterr().out.splitlines()
        assert said[0].startswith(f"{FILE}: 2 of 3 mutants killed (66.7 %); 1 survivors, 0 of them argued")
        assert said[1] == said[0].replace(FILE, "all")
        assert said[1].endswith("; 5 drawn, 3 run, 2 not looked at")
        assert said[2].startswith(f"survivor {FILE}:{drawn[0].line} ({drawn[0].what}): ")
        assert said[3:] == ["    NOT ARGUED"]
    assert kept.read_text("utf-8").endswith("torn")


def test_argued_mutants_count_as_survivors_that_were_not_run(
    mutants: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = mutants.sample([FILE], 2, 0)
    monkeypatch.setattr(mutants, "ARGUED", {(FILE, mutants.line_of(drawn[0]), drawn[0].what): "It is harmless."})
    first, _, survivor, reason = mutants.report(drawn, {}).splitlines()
    assert first == (
        f"{FILE}: 0 of 1 mutants killed (0.0 %); 1 survivors, 1 of them argued to be harmless; "
        "2 drawn, 0 run, 1 not looked at"
    )
    assert survivor.startswith(f"survivor, not run {FILE}:{drawn[0].line} ")
    assert reason == "    It is harmless."


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {experiments!r})
import mutants_runner
mutants_runner.PRELOADED, mutants_runner.SILENCE = (), 3.0
tree = Path({tree!r})
runner = mutants_runner.Runner(tree)
for body in ("return 2", "return 3", "while True: pass", "import os; os._exit(0)", "return"):
    (tree / "seam.py").write_text("def two():\\n    " + body + "\\n")
    print(runner.run(["test_seam.py"], ["test_seam.py::test_later"]).failed, flush=True)
(tree / "seam.py").write_text("def two():\\n    return 2\\n\\n\\ndef other():\\n    return 1\\n")
found = runner.run(["test_seam.py"], watched="seam.py")
print(found.failed, sorted(found.seconds), sorted(found.lines.items()))
(tree / "seam.py").write_text("def two(:\\n")
print(runner.run(["test_seam.py"]).failed)
"""


def test_a_run_sees_failures_hangs_and_processes_that_end(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "test_seam.py").write_text(
        "import seam\n\n\ndef test_first():\n    assert True\n\n\ndef test_later():\n    assert seam.two() == 2\n",
        "utf-8",
    )
    (tree / "pytest.ini").write_text("[pytest]\n", "utf-8")
    (tmp_path / "script.py").write_text(SCRIPT.format(experiments=str(ROOT / "experiments"), tree=str(tree)), "utf-8")
    command = [sys.executable, "-B", str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    later = "test_seam.py::test_later"
    assert done.stdout.splitlines() == [
        "None",
        later,
        f"{later} (hangs)",
        f"{later} (the process ended)",
        later,
        f"None ['test_seam.py::test_first', '{later}'] [('test_seam.py::test_first', set()), ('{later}', {{2}})]",
        "test_seam.py (collection)",
    ]
