"""``python -m dpml.report FOLDER``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dpml.report.__main__ import main

Make = Callable[..., Path]


def test_rebuilds_a_run(run_folder: Make, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(method="output")
    assert main([str(folder)]) == 0
    release = folder / "release"
    assert capsys.readouterr().out == f"report: {release / 'report.html'}\nmodel card: {release / 'model_card.md'}\n"
    assert main([str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["facts"] == json.loads((release / "report.json").read_text())
    assert (found["facts"]["epsilon"], found["facts"]["relation"]) == (1.0, "add_remove")
    assert (folder / "release" / "epsilon_vs_step.png").is_file()


def test_rebuilds_a_sweep_and_its_jobs(sweep_folder: Make, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = sweep_folder(methods=("output",), epsilons=(1.0, 2.0), broken=True)
    assert main([str(sweep)]) == 0
    out = capsys.readouterr().out
    assert "composed: epsilon" in out
    assert "without a result: jobs [2, 3, 4]" in out
    assert not (sweep / "0" / "release" / "report.html").exists()
    assert main([str(sweep), "--jobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 5
    assert (sweep / "0" / "release" / "report.html").is_file()
    assert not (sweep / "2" / "release" / "report.html").exists()


def test_a_broken_ledger_is_said(sweep_folder: Make, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = sweep_folder(methods=("output",), epsilons=(1.0,))
    (sweep / "0" / "release" / "ledger.jsonl").unlink()
    assert main([str(sweep)]) == 0
    assert "composed: cannot be stated" in capsys.readouterr().out


def test_a_report_of_records_that_disagree_says_so(run_folder: Make, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(method="output", change={"epsilon": 0.5})
    assert main([str(folder)]) == 0
    assert "PROBLEM: The ledger's charges cost ε" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "message"), [("", "holds no finished run"), ("nowhere", "is not a folder")])
def test_refuses_other_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str) -> None:
    assert main([str(tmp_path / name)]) == 1
    assert message in capsys.readouterr().err


def test_loads_neither_torch_nor_hydra_nor_pyplot(run_folder: Make) -> None:
    code = (
        "import sys; from dpml.report.__main__ import main; main(sys.argv[1:]); "
        "print([m for m in ('torch', 'hydra', 'omegaconf', 'matplotlib.pyplot') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run_folder(method="output"))], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_importing_the_package_draws_nothing() -> None:
    code = (
        "import sys, dpml.report; print('matplotlib' in sys.modules, hasattr(dpml.report, 'nothing'), dir(dpml.report))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False ['write_run_report', 'write_sweep_report']"
