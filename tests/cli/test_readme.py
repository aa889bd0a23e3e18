"""README's commands and code, taken from its text and run.

The two install lines are run by ``.ci/run`` itself, character by character; here what follows the installation is run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from small_tables import SCHEMA, people
from stage_checks import open_schema

from dpml.results import dumps

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def commands(mark: str) -> list[str]:
    """The lines of the fenced block after ``<!-- mark -->``."""
    found = re.search(rf"<!-- {re.escape(mark)} -->\n```bash\n(.*?)\n```", README, re.DOTALL)
    assert found, mark
    return found.group(1).splitlines()


def run(command: str, folder: Path) -> str:
    words = shlex.split(command, comments=True)
    assert words[0] in ("python", ".venv/bin/python"), command
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "Traceback" not in done.stderr
    return done.stdout


def test_the_two_commands_are_what_ci_runs() -> None:
    for mark in ("command: main", "command: test"):
        (line,) = commands(mark)
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install -q -e ")
        assert "-c constraints.txt" in line
    script = (ROOT / ".ci/run").read_text("utf-8")
    assert "command_of main" in script
    assert "command_of test" in script


def test_main_command_prints_what_the_readme_shows(tmp_path: Path) -> None:
    (line,) = commands("command: main")
    out = run(line.split(" && ")[-1], tmp_path)
    shown = re.search(r"<!-- output: main -->\n```text\n(.*?)\n```", README, re.DOTALL)
    assert shown

    def shape(text: str) -> list[str]:
        """The text without what differs from run to run: numbers, hashes, paths, spaces."""
        lines = [re.sub(r"(outputs|/)\S+", "PATH", row).strip() for row in text.splitlines()]
        return [re.sub(r"[0-9a-f.,]*\d[0-9a-f.,…]*|\s+", " ", row).strip() for row in lines if row]

    assert shape(out) == shape(shown.group(1))
    plans = [text.partition("\nResult")[0] for text in (out, shown.group(1))]
    numbers = [
        [float(one.replace(",", "")) for one in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-\d+)?", text)] for text in plans
    ]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-3)  # a plan is public: its digits are the same everywhere


@pytest.mark.parametrize("command", commands("commands: runs"))
def test_more_runs(command: str, tmp_path: Path) -> None:
    out = run(command, tmp_path)
    folders = list(tmp_path.rglob("release/result.json"))
    jobs = 8 if command.split().count("-m") == 2 else 4 if "+sweep=epsilon" in command else 1
    assert len(folders) == jobs
    assert "accuracy" in out or "R²" in out


def test_own_data_from_draft_to_scores(tmp_path: Path) -> None:
    people().to_csv(tmp_path / "people.csv", index=False)
    people(7, seed=5).drop(columns="label").to_csv(tmp_path / "new.csv", index=False)
    lines = commands("commands: own data")
    assert "draft" in lines[0]
    run(lines[0], tmp_path)
    assert (tmp_path / "people.json").exists()
    (tmp_path / "people.json").write_text(dumps(SCHEMA))  # what a person makes of the draft
    for line in lines[1:]:
        run(line, tmp_path)
    scores = (tmp_path / "scores.csv").read_text().splitlines()
    assert scores[0] == "row,prediction,probability no,probability yes"
    assert len(scores) == 8


def test_shares_find_what_the_schema_leaves_open(tmp_path: Path) -> None:
    people(4000).to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "open.json").write_text(dumps(open_schema()))
    train, verify = commands("commands: shares")
    out = run(train, tmp_path)
    assert "private hold-out, charged noise" in out
    assert "stage categories" in out
    run(verify, tmp_path)


def test_the_schema_in_the_readme_is_a_schema() -> None:
    import json

    from dpml.data import Schema

    found = re.search(r"```json\n(.*?)\n```", README, re.DOTALL)
    assert found
    assert Schema.from_dict(json.loads(found.group(1))).classes == ("no", "yes")


@pytest.mark.parametrize("number", range(len(re.findall(r"```python\n(.*?)\n```", README, re.DOTALL))))
def test_python_blocks_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)\n```", README, re.DOTALL)[number]
    exec(compile(code, f"README python block {number}", "exec"), {})


@pytest.mark.parametrize("command", commands("commands: accounting"))
def test_accounting_commands(command: str, tmp_path: Path) -> None:
    assert re.search(r"\d", run(command, tmp_path))
