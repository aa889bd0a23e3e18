"""First impressions: every ``--help`` loads nothing heavy and shows examples; a wrong word says what was meant."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from help_checks import MODULES, SUBVERBS, examples, shown_by
from hydra.core.global_hydra import GlobalHydra
from small_tables import write_people

from dpml import __main__ as console
from dpml import train_help

HEAVY = {"torch", "pandas", "matplotlib", "sklearn", "opacus", "pyarrow", "dp_accounting", "mlflow"}
NUMERIC = {"numpy", "scipy"}


def check_helps(shown: dict[str, tuple[int, str]]) -> None:
    for line, (status, text) in shown.items():
        assert status in (0, None), line
        assert examples(text), f"{line} shows no example"


def test_helps_load_nothing_heavy(tmp_path: Path) -> None:
    """All but train's and audit's in one process: not even NumPy; each names examples; nothing is written."""
    lines = [["dpml", "--help"], ["dpml"]]
    lines += [
        [f"dpml.{verb}", "--help"] for verb in ("predict", "verify", "report", "account", "sample_size", "schema")
    ]
    lines += [[f"dpml.{verb}", part, "--help"] for verb, parts in SUBVERBS.items() for part in parts]
    shown, loaded = shown_by(lines, tmp_path)
    assert not loaded & (HEAVY | NUMERIC | {"hydra", "omegaconf"})
    check_helps(shown)
    assert set(console.VERBS) <= set(re.findall(r"^  (\w+) ", shown["dpml --help"][1], re.MULTILINE))
    assert list(tmp_path.iterdir()) == []


def test_help_of_train_loads_hydra_only(tmp_path: Path) -> None:
    lines = [["dpml.train", "--help"], ["dpml.train", "+experiment=logreg", "method=objective", "-h"]]
    shown, loaded = shown_by(lines, tmp_path)
    assert "hydra" in loaded
    assert not loaded & (HEAVY | NUMERIC)
    check_helps(shown)
    assert "name: objective" in shown["dpml.train +experiment=logreg method=objective -h"][1]
    assert list(tmp_path.iterdir()) == []


def test_help_of_audit_loads_no_engine(tmp_path: Path) -> None:
    shown, loaded = shown_by([["dpml.audit", "--help"]], tmp_path)
    assert not loaded & HEAVY
    check_helps(shown)


def test_help_of_train_leaves_other_flags_to_hydra_and_refuses_bad_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    GlobalHydra.instance().clear()
    train_help.show_help(["--cfg", "job"])  # no help asked for
    train_help.show_help(["--help", "--cfg", "job"])
    with pytest.raises(SystemExit) as stop:
        train_help.show_help(["--help", "nonsense=1"])
    assert stop.value.code == 1
    assert capsys.readouterr().err.startswith("error: ")


# -- wrong words ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian +experiment=logreg", "Did you mean 'train'?"),
        ("sample", "Did you mean 'sample_size'?"),
        ("Verify", "Did you mean 'verify'?"),
        ("+experiment=logreg", "Did you mean: dpml train +experiment=logreg"),
        ("privacy.epsilon=1", "Did you mean: dpml train privacy.epsilon=1"),
        ("frobnicate", "there are: train, predict"),
    ],
)
def test_a_wrong_verb(words: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["dpml", *words.split()])
    assert console.main() == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert message in shown.err
    assert shown.err.count("\n") == 1


def test_the_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from dpml import __version__

    monkeypatch.setattr(sys, "argv", ["dpml", "--version"])
    assert console.main() == 0
    assert capsys.readouterr().out == f"dpml {__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("privacy.epsilonn=1", "privacy.epsilonn is unknown. Did you mean privacy.epsilon=…?"),
        ("epsilon=1", "epsilon is unknown. Did you mean privacy.epsilon=…?"),
        ("data.pth=x", "Did you mean data.path=…?"),
        ("privacy.shares.metric=0.1", "Did you mean privacy.shares.metrics=…?"),
        ("sed=1", "Did you mean seed=…?"),
        ("xyz=1", "xyz is unknown. (python -m dpml.train --help shows all"),
        ("--epsilon 1", "--epsilon: values are given as KEY=VALUE, here privacy.epsilon=VALUE."),
        ("--learning-rate=1", "here method.learning_rate=VALUE."),
        ("method=sgd", "Did you mean 'dp_sgd'?"),
        ("experiment=logreg", "+experiment=logreg"),
        ("data=table", "data.path is missing"),
        ("data=table data.path=people.csv", "There is no schema for people.csv"),
        ("data=table data.path=nowhere.csv data.schema=people.json", "there is no such file"),
        ("data=table data.path=people.csv data.schema=nowhere.json", "There is no schema file 'nowhere.json'"),
        ("privacy.epsilon=-1", "epsilon = -1.0 is not allowed"),
        ("resume=nowhere", "'nowhere' does not exist"),
        (
            "data.path=people.csv",
            "data.path is no key of data=adult, which has none. It is one of data=table: add data",
        ),
        ("+data.path=people.csv", "data.path is no key of data=adult, which has none."),
        ("method=objective method.steps=9", "no key of method=objective, which has regularization, solution_norm, var"),
        ("-m data.path=a.csv,b.csv", "no job was started: data.path is no key of data=adult"),
        ("-m privacy.epsilon=abc,1", "privacy.epsilon=abc is not allowed: Value 'abc' of type 'str' could not"),
    ],
)
def test_wrong_words_of_train(cli: Any, tmp_path: Path, words: str, message: str) -> None:
    write_people(tmp_path)
    status, out, err = cli(*words.split())
    assert (status, out) == (1, "")
    assert message in err
    assert err.startswith("error: ")
    assert not (tmp_path / "outputs").exists()


def test_right_words_of_train_pass() -> None:
    train_help.check_words(
        [
            "+experiment=logreg", "privacy.epsilon=1", "method=dp_sgd", "method.steps=5", "hydra.run.dir=x", "-m",
            "hydra/launcher=basic", "~report", "resume=x", "privacy.shares={metrics: 0.1}", "++data.path=x", "--cfg",
            "job", "model.hidden=[3,4]", "tracking.mlflow=x",
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "words", "status", "message"),
    [
        ("verify", "nowhere", 1, "there is no folder or file 'nowhere'. Give a run folder"),
        ("verify", ".", 1, "is no run: "),
        ("predict", "nowhere new.csv", 1, "there is no folder 'nowhere'. Give a run folder"),
        ("report", "nowhere", 1, "nowhere is not a folder"),
        ("account", "epsilonn", 2, "Did you mean 'epsilon'?"),
        ("account", "epsilon", 2, "--delta"),
        ("account", "epsilon --noise-multiplier x --delta 1e-5", 2, "'x' is not a number"),
        ("schema", "draft nowhere.csv", 1, "there is no such file"),
        ("schema", "check people.csv nowhere.json", 1, "There is no schema file 'nowhere.json'"),
        ("sample_size", "", 2, "nothing is given. For example"),
    ],
)
def test_wrong_words_of_the_small_commands(
    verb: str, words: str, status: int, message: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    write_people(tmp_path)
    assert MODULES[verb].main(words.split()) == status
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err


@pytest.mark.parametrize("verb", ["predict", "verify", "report", "schema"])
def test_no_words_show_the_usage(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        MODULES[verb].main([])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("usage: ")


def test_an_old_python_is_named() -> None:
    code = "import sys; sys.version_info = (3, 9, 2, 'final', 0); import dpml"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ImportError: dpml needs Python 3.11 or newer; this is Python 3.9.2."


def test_lazy_names_of_accounting_are_those_that_it_promises() -> None:
    """In a fresh process, as the names are kept once they were used; a submodule is an attribute too."""
    code = (
        "import sys; from dpml import accounting as acc; from importlib import import_module\n"
        "assert 'scipy' not in sys.modules\n"
        "assert sorted(acc._HOME) == sorted(acc.__all__) == dir(acc)\n"
        "assert all(getattr(acc, name) is not None for name in acc.__all__)\n"
        "assert acc.contour is import_module('dpml.accounting.contour')\n"
        "assert not hasattr(acc, 'nonsense') and not hasattr(acc, '_nonsense')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["dpml.train", "--help"],
        ["dpml.sample_size", "d=5", "epsilon=1,2,3,4", "delta=1e-5", "excess_risk=0.01"],
        ["dpml.audit", "dp_sgd", "epsilon=4", "runs=2000", "steps=1"],
        ["dpml.account", "compare", "--noise-multiplier", "2", "--delta", "1e-5", "--no-peers"],
    ],
)
def test_a_reader_that_has_seen_enough_is_no_error(words: list[str], tmp_path: Path) -> None:
    """``… | head -1``: no traceback, and the exit status is that of the work."""
    with subprocess.Popen(
        [sys.executable, "-m", *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_no_standard_output_at_all_is_no_error(tmp_path: Path) -> None:
    """As some services start processes: ``>&-``."""
    words = f"{sys.executable} -m dpml.sample_size d=5 epsilon=1 delta=1e-5 excess_risk=0.01 >&-"
    done = subprocess.run(["sh", "-c", words], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
