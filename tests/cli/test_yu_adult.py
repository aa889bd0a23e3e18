"""``experiments/yu_adult.py``: ours above the published accuracies at their budget; table, JSON and exit status."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments/yu_adult.py"
PAPER = {"AMP": 79.3, "output perturbation, SGD": 77.4, "DP-SGD": 80.4, "DP-GD": 80.9}


@pytest.fixture(name="yu")
def _yu(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    yield importlib.import_module("yu_adult")
    for name in ("yu_adult", "private_erm", "private_erm_table"):
        sys.modules.pop(name, None)


def figure(yu: ModuleType, relation: str, *accuracy: float) -> Any:
    more = {"auc": (0.9,) * len(accuracy), "seconds": (0.1,) * len(accuracy)}
    return yu.Figure("published", "auto", 0.1, 1e-9, relation, accuracy=accuracy, **more)


def test_a_quick_run(tmp_path: Path) -> None:
    """Single runs had 83.3 ± 0.4 and 82.1 ± 0.7 % (mean ± sd): the bounds of the means of two are over 7 errors off."""
    target = tmp_path / "deep/yu.json"
    words = [sys.executable, str(SCRIPT), "--quick", "--json", str(target)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert target.is_file(), done.stderr
    content = json.loads(target.read_text("utf-8"))
    assert content["paper"] == PAPER
    add, replace = content["figures"]
    assert (add["relation"], replace["relation"]) == ("add_remove", "replace_one")
    for one in (add, replace):
        assert one["epsilon"] == 0.1
        assert one["delta"] == pytest.approx(1 / 36_177**2, rel=1e-5)
        assert len(set(one["accuracy"])) == len(one["accuracy"]) == 2
    assert 81.0 < sum(add["accuracy"]) / 2 < 85.5
    assert 76.8 < sum(replace["accuracy"]) / 2 < 85.5
    best = max(PAPER.values())
    passed = all(sum(one["accuracy"]) / 2 > best for one in (add, replace))
    assert done.returncode == (0 if passed else 1)
    for name, paper in PAPER.items():
        assert f"| {name} | {paper:.1f} | " in done.stdout
    assert {(row["method"], row["relation"]) for row in content["rows"]} == {
        (name, relation) for name in PAPER for relation in ("add_remove", "replace_one")
    }
    for row in content["rows"]:
        assert row["paper"] == PAPER[row["method"]]
        assert row["difference"] == pytest.approx(row["ours"] - row["paper"], abs=1e-3)


def test_table_and_exit_status(
    yu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(yu, "RESULTS", tmp_path / "results")
    for low, status in ((81.0, 0), (80.0, 1)):
        found = [figure(yu, "add_remove", 83.0, 84.0), figure(yu, "replace_one", low, low)]
        monkeypatch.setattr(yu.private_erm, "collect", lambda work, jobs, found=found: found)
        assert yu.main([]) == status
        out = capsys.readouterr().out
        assert f"| DP-GD | 80.9 | 83.50 ± 0.71 | +2.60 | {low:.2f} ± 0.00 | {low - 80.9:+.2f} |" in out
        assert ("missed: `auto`, replace_one" in out) == bool(status)
    assert json.loads((tmp_path / "results/adult_yu.json").read_text("utf-8"))["rows"][0]["difference"] == 4.2


def test_a_quick_run_leaves_the_results_alone(yu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(yu, "RESULTS", tmp_path)
    found = [figure(yu, "add_remove", 83.0), figure(yu, "replace_one", 82.0)]
    monkeypatch.setattr(yu.private_erm, "collect", lambda work, jobs: found)
    assert yu.main(["--quick"]) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["--runs", "0"], ["--runs", "x"], ["--jobs", "0"]])
def test_faulty_arguments(yu: ModuleType, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        yu.main(words)
    assert stop.value.code == 2
    assert words[0] in capsys.readouterr().err
