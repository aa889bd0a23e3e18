"""One number has one form: page, card, console and commands of one run say the same."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from report_folders import DELTA, D, N
from small_tables import SCHEMA, people

from dpml import sweeps
from dpml.accounting.sample_size import guidance
from dpml.report import formats, write_run_report, write_sweep_report
from dpml.report.__main__ import main as report_main
from dpml.results import dumps, without_folders

Make = Callable[..., Path]


@pytest.mark.parametrize("epsilon", [0.1, 0.13, 0.2, 1.0])
def test_sample_size_reads_the_same_everywhere(
    run_folder: Make, read_page: Callable[..., object], epsilon: float
) -> None:
    folder = run_folder(epsilon=epsilon)
    page = read_page(write_run_report(folder)).text  # type: ignore[attr-defined]
    card = (folder / "release/model_card.md").read_text("utf-8")
    facts = guidance(n_declared=N, n_features=D, epsilon=epsilon, delta=DELTA)
    reached = re.findall(r"this n gives ([0-9.e-]+)", facts["text"])
    assert reached
    assert f"α that n gives {reached[0]}" in " ".join(page.split())
    assert f"| α that n gives | {reached[0]} |" in card
    for factor in re.findall(r"too small by x([0-9.]+)\. ", facts["text"]):
        assert page.count(f"too small by ×{factor}") == 1
        assert f"too small by ×{factor}." in card
    for bound in re.findall(r"; ([0-9.e-]+) -> ", facts["text"]):
        assert page.count(bound) >= 2  # in the table and in the text


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("data.path=/home/someone/people.csv", "data.path=people.csv"),
        ("data.path='/home/someone/my folder/people.csv'", "data.path=people.csv"),
        ("data.path='/home/some one/my people.csv'", "data.path='my people.csv'"),
        ('+data.schema="a, b/c (1).json"', '+data.schema="c (1).json"'),
        ("data.schema='a/région.json'", "data.schema='région.json'"),
        (r"data.path='it\'s mine/x, y.csv'", "data.path='x, y.csv'"),
        ("data.path='", "data.path='"),
        ("data.path=null", "data.path=null"),
        ("model.hidden='a/b'", "model.hidden='a/b'"),
    ],
)
def test_a_quoted_path_stays_a_word_of_hydra(word: str, kept: str) -> None:
    """The folder goes, the quotes stay in pairs: a command with half of them is none."""
    assert without_folders(word) == kept


def test_the_command_of_a_quoted_path_runs(tmp_path: Path) -> None:
    folder = tmp_path / "my $(data)"
    folder.mkdir()
    people().to_csv(folder / "the people.csv", index=False)
    (folder / "a, b.json").write_text(dumps(SCHEMA))
    train = [sys.executable, "-m", "dpml.train", "data=table", f"data.path='{folder}/the people.csv'"]
    train += [f"data.schema='{folder}/a, b.json'", "privacy.delta=1e-4", f"hydra.run.dir={tmp_path}/run"]
    subprocess.run(train, cwd=tmp_path, check=True, capture_output=True, timeout=200)
    card = (tmp_path / "run/release/model_card.md").read_text("utf-8")
    found = re.search(r"```bash\n(python -m dpml.train .*?)\n```", card)
    assert found
    assert "my $(data)" not in card
    words = shlex.split(found.group(1))
    assert words[3:] == ["data=table", "data.path='the people.csv'", "data.schema='a, b.json'", "privacy.delta=1e-4"]
    again = [sys.executable, *words[1:], f"hydra.run.dir={tmp_path}/again"]
    subprocess.run(again, cwd=folder, check=True, capture_output=True, timeout=200)
    assert (tmp_path / "again/release/result.json").is_file()


def test_a_reader_that_stops_early_leaves_no_traceback(run_folder: Make) -> None:
    folder = run_folder(method="output")
    words = [sys.executable, "-m", "dpml.report", str(folder), "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def check_the_console_promises_no_less_than_the_sum(sweep: Path) -> None:
    """What the command prints of a sweep is a bound, and none where a run had no privacy."""
    found = write_sweep_report(sweep)
    composed = found["composed"]
    printed = re.search(r"ε = ([0-9.e-]+) at δ = ([0-9.e-]+), add or remove one record", sweeps._total(found))
    assert printed
    assert composed["epsilon"] <= float(printed[1]) <= composed["epsilon"] * 1.001
    assert composed["delta"] <= float(printed[2]) * (1 + 1e-12)


def test_the_sum_of_a_sweep_is_rounded_up_and_absent_without_privacy(
    sweep_folder: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = sweep_folder(methods=("output", "dp_sgd"), epsilons=(0.5, 1.0, 4.0))
    check_the_console_promises_no_less_than_the_sum(sweep)
    with monkeypatch.context() as planted:  # a planted bug: to the nearest
        planted.setattr(formats, "upper", lambda value, digits=4: f"{float(value) * (1 - 1e-4):.6g}")
        with pytest.raises(AssertionError):
            check_the_console_promises_no_less_than_the_sum(sweep)
    path = sweep / "1/release/result.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "epsilon": "inf", "method": "nonprivate"}))
    found = write_sweep_report(sweep)
    assert found["nonprivate_jobs"] == [1]
    assert sweeps._total(found).startswith("no guarantee, since job 1 had no privacy; without: ε = ")
    assert "job's model carries" not in sweeps._total(found)
    assert report_main([str(sweep)]) == 0
    assert "no guarantee for all of it: jobs [1] had no privacy" in capsys.readouterr().out
    assert sweeps._total({"composed": None}) == "no composed ε can be stated (the report says why)"
