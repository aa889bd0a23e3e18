"""``experiments/audit.py``: what it attacks, what it prints, when it fails; the audits themselves are made up here."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_faults import ENGINE_BUGS

from dpml.audit import AuditResult
from dpml.audit.__main__ import Finding, Settings
from dpml.sgd import engine

SCRIPT = Path(__file__).resolve().parents[2] / "experiments/audit.py"


@pytest.fixture
def script() -> Any:
    spec = importlib.util.spec_from_file_location("experiment_audit", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made_up(share: float, bug_share: float, seen: list[Settings]) -> Any:
    """An audit that finds ``share`` of ε in a correct engine and ``bug_share`` at 99.9 %."""

    def run_audit(settings: Settings) -> Finding:
        seen.append(settings)
        upper = settings.epsilon or 1.0
        lower = upper * (share if settings.confidence == 0.95 else bug_share)
        result = AuditResult(lower, settings.delta, settings.confidence, settings.runs, "two_world", 0.0, 1)
        return Finding(settings, result, "likelihood", upper, 1.0, 1.0, ((0.0, 1.0), (1.0, 0.0)), {}, 0.1)

    return run_audit


@pytest.mark.parametrize(
    ("share", "bug_share", "status", "text"),
    [
        (0.9, 1.5, 0, ""),
        (0.4, 1.5, 1, "below what is wanted"),
        (1.1, 1.5, 1, "ABOVE THE CLAIM"),
        (0.9, 0.9, 1, " NO  "),
    ],
)
def test_tables(
    share: float,
    bug_share: float,
    status: int,
    text: str,
    script: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Settings] = []
    monkeypatch.setattr(script, "run_audit", made_up(share, bug_share, seen))
    other = AuditResult(bug_share, 5e-3, 0.999, 8, "two_world", 0.0, 1)
    monkeypatch.setattr(script, "run_rows", lambda: [("another method", 8, other)])
    monkeypatch.setattr(script, "tried", lambda *_: [("fuzz", "7 inputs tried", "-m pytest")])
    assert script.main(["--runs", "1000", "--json", str(tmp_path / "table.json")]) == status
    out = capsys.readouterr().out
    assert text in out
    assert "cannot see" in out
    assert "fuzz: 7 inputs tried\n      again: python -m pytest\n" in out
    assert {s.epsilon for s in seen if s.game == "two_world" and s.confidence == 0.95} == {1.0, 4.0, 10.0}
    one_run = [s for s in seen if s.game == "one_run"]
    assert all((s.epsilon, s.canaries) == (4.0, 1000) and s.parameters >= 50_000 for s in one_run)
    assert len(one_run) == 4
    assert sum(s.confidence == 0.999 for s in seen) == len(ENGINE_BUGS) >= 8
    table = json.loads((tmp_path / "table.json").read_text("utf-8"))
    assert len(table["bugs"]) == len(ENGINE_BUGS)
    assert len(table["correct"]) == 16
    assert table["others"][0]["epsilon_lower"] == bug_share
    assert "another method" in out


def test_what_else_was_tried_is_printed_with_its_commands(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutants and planted bugs by what their commands print, fuzz and faults by their counts."""
    lines = {
        "-m": ["| bug |", "521 planted bugs: sgd 76."],
        "experiments/mutants.py": ["a.py: 1", "all: 190 of 200 killed"],
    }
    monkeypatch.setattr(script, "printed_by", lambda *command: lines[command[0]])
    counts = tmp_path / "counts.json"
    assert script.main(["--tried", "--counts", str(counts)]) == 0
    assert capsys.readouterr().out.count(script.UNKNOWN) == 2
    found = {"inputs": 12345, "searches": 21, "disk": 321, "kills": 250, "failed": 1, "command": "-m pytest tests/fuzz"}
    counts.write_text(json.dumps(found))
    assert script.main(["--tried", "--counts", str(counts)]) == 0
    out = capsys.readouterr().out
    for text in (
        "521 planted bugs: sgd 76.\n      again: python -m tests.planted_bugs.table",
        "mutants: 190 of 200 killed\n      again: python experiments/mutants.py",
        "fuzz: 12,345 inputs tried in 21 searches; tests that failed: 1\n      again: python -m pytest tests/fuzz",
        "faults survived: 321 failures of the disk, 250 kills",
    ):
        assert text in out


def test_bugs_of_other_methods_are_planted_and_removed(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import run_faults

    from dpml.erm import objective, output

    whole = (output.add_gaussian, objective.linear_term)
    asked: list[int] = []

    def look(case: Any, runs: int) -> AuditResult:
        asked.append(runs)
        return AuditResult(2.0, 5e-3, 0.999, runs, "two_world", 0.0, 1)

    monkeypatch.setattr(run_faults, "audited", look)
    rows = script.run_rows()
    assert asked == [count for _, _, count, _ in run_faults.RUN_BUGS]
    assert len(rows) == len(run_faults.RUN_BUGS) >= 8
    assert (output.add_gaussian, objective.linear_term) == whole


def test_bugs_are_planted_and_removed(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("noise_std", "clip_bound", "draw_batch", "draw_noise", "released_sum")
    whole = {name: getattr(engine, name) for name in names}
    changed: list[set[str]] = []

    def look(settings: Settings) -> Finding:
        changed.append({name for name in names if getattr(engine, name) is not whole[name]})
        return made_up(1.0, 2.0, [])(replace(settings))

    monkeypatch.setattr(script, "run_audit", look)
    script.bug_rows(100)
    assert all(len(found) == 1 for found in changed), "each bug patches one seam"
    assert set.union(*changed) == set(names)
    assert all(getattr(engine, name) is whole[name] for name in names)
