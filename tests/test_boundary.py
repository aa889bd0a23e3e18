"""Neighbouring data sets under equal test noise: ``release/``, standard output and standard error are byte for byte the
same, but for charged noisy values (what those are: :mod:`boundary_checks`).

Every method and variant, every stage, sessions, k-means, the jobs of the command line and its sweeps, and what reads a
release (``verify``, ``report``, ``predict``, ``load``).  Not compared, because they are made for the custodian and say
so: ``private/``, ``schema draft`` and ``schema check``, ``PrivateTrainer.check_records`` (``account`` and
``sample_size`` take no data).  ``nonprivate`` has no boundary and takes public data only.  How long anything takes is
not compared either (docs/threat-model.md, section 7).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import boundary_checks as checks
import numpy as np
import pandas as pd
import pytest
import torch
from boundary_checks import ADDED, REGRESSION, REPLACED, SMALL
from small_tables import SCHEMA
from stage_checks import SHARES, open_schema

from dpml import DPKMeans, PrivateData, PrivateSession, PrivateTrainer, load
from dpml.accounting import Ledger, verify
from dpml.mechanisms import PureBudget

Capture = pytest.CaptureFixture[str]
SGD = {"method": "dp_sgd", "steps": 4, "expected_batch_size": 20, "checkpoint_every": 2}
SGD |= {"noise_multiplier": 2.0, "epsilon": None}  # nothing to calibrate


class Net(torch.nn.Module):
    """A module of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(torch.nn.Linear(N_FEATURES, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.body(rows)


N_FEATURES = 13
CASES: dict[str, dict[str, Any]] = {
    "output": {"method": "output"},
    "output, pure": {"method": "output", "variant": "pure"},
    "output, softmax": {"method": "output", "model": "softmax"},
    "output, svm": {"method": "output", "model": "linear_svm"},
    "objective": {"method": "objective"},
    "objective, pure": {"method": "objective", "variant": "pure"},
    "objective, kst12": {"method": "objective", "variant": "kst12"},
    "objective, redberg23": {"method": "objective", "variant": "redberg23"},
    "dp_gd": {"method": "dp_gd", "steps": 4},
    "dp_gd, softmax": {"method": "dp_gd", "steps": 4, "model": "softmax"},
    "dp_sgd": SGD,
    "dp_sgd, adaptive clipping, Adam, average": SGD
    | {"clipping": "adaptive", "count_noise": 8.0, "optimizer": "adam", "averaging": "ema"},
    "dp_sgd, mlp, per layer": SGD | {"model": "mlp", "hidden": (4,), "clipping": "per_layer"},
    "dp_sgd, module": SGD | {"model": Net, "gradients": "per_example"},
    "auto": {},
    "ridge, adassp": {"method": "adassp", "model": "ridge"},
    "ridge, adassp, adaptive": {"method": "adassp", "model": "ridge", "variant": "adassp"},
    "ridge, output": {"method": "output", "model": "ridge"},
    "huber, objective": {"method": "objective", "model": "huber"},
    "stages and output": {"method": "output", "shares": SHARES, "epsilon": 4.0},
    "stages and dp_sgd": SGD | {"shares": SHARES, "epsilon": 4.0, "noise_multiplier": None},
}
REPLACING: dict[str, dict[str, Any]] = {
    "output": {"method": "output"},
    "objective, cms11": {"method": "objective", "variant": "cms11"},
    "dp_gd": {"method": "dp_gd", "steps": 4},
    "dp_sgd": SGD,
    "ridge, adassp": {"method": "adassp", "model": "ridge"},
}
HOLD_OUT = ("dp_sgd, mlp, per layer", "objective", "ridge, output", "stages and output", "stages and dp_sgd")


def fit(folder: Path, frame: pd.DataFrame, arguments: dict[str, Any], capsys: Capture, **data: Any) -> str:
    """Plan, train, print all that is public; gives what was printed and what went to standard error."""
    given = dict(arguments)
    if isinstance(given.get("model"), type):
        given["model"] = given["model"]()
    schema = SCHEMA if given.get("model") not in ("ridge", "huber") else REGRESSION
    table, public = checks.write_table(folder / "data", frame, open_schema() if "shares" in given else schema)
    source = PrivateData.from_table(table, schema=public, **data)
    trainer = PrivateTrainer(**{"epsilon": 1.0, **given}, noise_source=checks.fixed(), run_dir=folder / "run")
    print(trainer.plan(source))
    result = trainer.fit(source, progress=lambda *numbers: print(*numbers))
    shown = dict(result.to_dict())
    print(repr(result.guarantee), result.ledger["count"], shown["metrics"].keys(), sorted(shown))
    print(verify(folder / "run"))  # it refuses a run with noise that is not secret, in the same words
    captured = capsys.readouterr()
    return captured.out + captured.err


def compare(
    pair: tuple[pd.DataFrame, pd.DataFrame], arguments: dict[str, Any], folder: Path, capsys: Capture, **data: Any
) -> None:
    outputs = [fit(folder / str(k), frame, arguments, capsys, **data) for k, frame in enumerate(pair)]
    folders = (folder / "0/run", folder / "1/run")
    checks.assert_same(folders, (outputs[0], outputs[1]))


@pytest.mark.parametrize("case", CASES)
def test_one_record_more_or_less(case: str, tmp_path: Path, capsys: Capture) -> None:
    """Every method with the usual neighbours, and with all that is nasty in one record."""
    data = {"test_fraction": 0.3} if case in HOLD_OUT else {}
    everything = checks.with_record(SMALL, age=1e300, money="much", town="?!", label="perhaps")
    pairs = [(SMALL, everything), ADDED["a record removed"], ADDED["NaN, infinity and an unseen category"]]
    if CASES[case].get("method") == "dp_sgd" or "shares" in CASES[case]:
        pairs = pairs[:1] if "shares" in CASES[case] else pairs[:2]  # the slow ones
    for number, pair in enumerate(pairs):
        compare(pair, CASES[case], tmp_path / str(number), capsys, **data)


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("method", ["output", "dp_sgd"])
def test_every_kind_of_record(method: str, name: str, tmp_path: Path, capsys: Capture) -> None:
    compare(ADDED[name], CASES[method], tmp_path, capsys)


@pytest.mark.parametrize("case", REPLACING)
def test_a_record_replaced(case: str, tmp_path: Path, capsys: Capture) -> None:
    schema = {"neighboring_relation": "replace_one"}
    names = REPLACED if case == "output" else ("a record changed", "a record changed to NaN and an unseen category")
    for number, name in enumerate(names):
        compare(REPLACED[name], REPLACING[case] | schema, tmp_path / str(number), capsys)


@pytest.mark.parametrize("method", ["output", "dp_sgd"])
def test_the_record_does_flow_into_the_weights(method: str, tmp_path: Path, capsys: Capture) -> None:
    """So the comparisons are not vacuous: the model does depend on it, within the noise."""
    for k, frame in enumerate(ADDED["a record removed"]):
        fit(tmp_path / str(k), frame, CASES[method], capsys)
    first, second = (load(tmp_path / str(k) / "run").weights["weight"] for k in range(2))
    assert first.shape == second.shape
    assert (first != second).any()


def plant(leak: str, n: int, patch: pytest.MonkeyPatch) -> None:
    """The number of records in one place where it must not be."""
    from dpml import trainer as module

    close, recompute, scores = Ledger.close, module.recompute, module.private_scores
    if leak == "ledger":
        patch.setattr(Ledger, "close", lambda self, outcome: close(self, {**outcome, "n": n}))
    elif leak == "result":
        patch.setattr(module, "recompute", lambda *a: (recompute(*a)[0], f"exact {n}"))
    elif leak == "stdout":
        patch.setattr(module, "private_scores", lambda *a: print(n) or scores(*a))


LEAKS = ["ledger", "result", "file name", "stdout"]


@pytest.mark.parametrize("leak", LEAKS)
def test_the_comparison_sees_a_leak(
    leak: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness itself: the number of records in one place of the release, or printed, makes it fail."""
    outputs = []
    for k, frame in enumerate(ADDED["a record removed"]):
        with monkeypatch.context() as patch:
            n = len(frame)
            plant(leak, n, patch)
            outputs.append(fit(tmp_path / str(k), frame, CASES["output"], capsys))
            if leak == "file name":
                (tmp_path / str(k) / "run/release" / f"{n}.txt").write_text("")
    with pytest.raises(AssertionError):
        checks.assert_same((tmp_path / "0/run", tmp_path / "1/run"), (outputs[0], outputs[1]))


# -------------------------------------------------------------------------------------------------- command lines


def quiet_sweep(folder: Path, frame: pd.DataFrame, capsys: Capture) -> str:
    """The real command: two jobs with ``verbose=false`` and secret noise, their report; then what reads them."""
    from dpml import predict
    from dpml import verify as verify_command
    from dpml.report.__main__ import main as report

    checks.write_table(folder / "data", frame, SCHEMA)
    words = ["data=table", "data.path=data/people.csv", "data.schema=data/people.json", "data.test_fraction=0.3"]
    words += ["verbose=false", "method=output,objective", "hydra.sweep.dir=sweep"]
    command = [sys.executable, "-m", "dpml.train", "-m", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    root = folder / "sweep"
    new = folder / "new.csv"
    pd.DataFrame({"age": [30.0], "money": [10.0], "town": ["b"]}).to_csv(new, index=False)
    assert verify_command.main([str(root / "0")]) == 0
    assert report([str(root / "1")]) == 0
    assert predict.main([str(root / "0"), str(new), "-o", str(folder / "scores.csv")]) == 0
    captured = capsys.readouterr()
    return done.stdout + done.stderr + captured.out + captured.err


def test_a_quiet_sweep_and_what_reads_it(tmp_path: Path, capsys: Capture) -> None:
    """Here the noise is secret, so differs: all that is left after masking is independent of noise and of records."""
    everything = checks.with_record(SMALL, age=1e300, money="much", town="?!", label="perhaps")
    first, second = tmp_path / "0", tmp_path / "1"
    outputs = [quiet_sweep(base, frame, capsys) for base, frame in ((first, SMALL), (second, everything))]
    assert checks.plain(outputs[0], first) == checks.plain(outputs[1], second)
    assert "jobs done" in outputs[0]
    compared = set()
    for job in ("0", "1"):
        checks.assert_same((first / "sweep" / job, second / "sweep" / job), ("", ""))
        compared |= set(checks.masked(first / "sweep" / job))
    assert {"report.html", "config.yaml", "ledger.jsonl", "result.json"} <= compared
    names = [sorted(path.name for path in (base / "sweep").iterdir()) for base in (first, second)]
    assert names[0] == names[1]
    for name in names[0]:
        paths = [base / "sweep" / name for base in (first, second)]
        if paths[0].is_file():
            texts = [checks.neutral(path.read_bytes(), base) for path, base in zip(paths, (first, second), strict=True)]
            assert texts[0] == texts[1], name


# ------------------------------------------------------------------------------------------- sessions and k-means


NASTY_COLUMN = np.array([1.0, 5.0, np.nan, np.inf, -np.inf, 1e308, 3.0])
SESSIONS = {
    "removed": (np.arange(40.0), np.arange(39.0)),
    "nasty": (np.arange(40.0), np.append(np.arange(40.0), np.nan)),
    "huge": (np.arange(40.0), np.append(np.arange(40.0), 1e308)),
    "none left": (np.array([1.0]), np.array([])),
    "all nasty": (NASTY_COLUMN, NASTY_COLUMN[:-1]),
}


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_shows_only_what_it_charged(name: str, tmp_path: Path, capsys: Capture) -> None:
    """Same questions, same noise: the ledger is the same but for the noisy answers and the hashes behind them."""
    shown = []
    for k, column in enumerate(SESSIONS[name]):
        folder = tmp_path / str(k)
        session = PrivateSession({"x": column}, PureBudget(4.0), folder=folder, noise_source=checks.fixed())
        for query in checks.queries():
            answer = session.ask(query, epsilon=0.5)
            print(type(answer).__name__, np.shape(answer.value))
        print(repr(session), session.spent, session.guarantee())
        lines = []
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                lines.append((path.name, checks.without_answers(path.read_text("utf-8", errors="replace"))))
        captured = capsys.readouterr()
        shown.append((captured.out + captured.err, lines))
    assert shown[0] == shown[1]
    assert len(shown[0][1]) >= 1


@pytest.mark.parametrize("method", ["gaussian", "laplace", "notes"])
@pytest.mark.parametrize("name", ["a record removed", "NaN, infinity and an unseen category", "a huge value"])
def test_k_means_shows_only_its_centres(method: str, name: str, capsys: Capture) -> None:
    """All attributes of a fit but the centres, printed forms included."""
    shown = []
    for frame in ADDED[name]:
        X = frame[["age", "money"]].to_numpy(dtype=float)
        made = DPKMeans(3, 1.0, None, method, bounds=(0, 100), n_declared=60, noise_source=checks.fixed()).fit(X)
        print(repr(made))
        public = {key: value for key, value in vars(made).items() if key not in ("cluster_centers_", "noise_source")}
        captured = capsys.readouterr()
        assert made.cluster_centers_.shape == (3, 2)
        shown.append((checks.addresses_away(captured.out + captured.err), checks.addresses_away(repr(public))))
    assert shown[0] == shown[1]


# ------------------------------------------------------------------------------- what is the custodian's, and says so


def test_the_custodians_tools_say_that_their_output_is_private(tmp_path: Path, capsys: Capture) -> None:
    from dpml import schema

    table, public = checks.write_table(tmp_path, SMALL, SCHEMA)
    schema.main(["check", str(table), str(public)])
    assert "This output is private" in capsys.readouterr().out
    schema.main(["draft", str(table), "--target", "label"])
    assert "not private" in capsys.readouterr().err.lower()
    assert "private" in (PrivateTrainer.check_records.__doc__ or "").lower()


def test_private_notes_stay_out_of_what_is_public(tmp_path: Path, capsys: Capture) -> None:
    """``private/`` does differ: it is where everything about records goes."""
    for k, frame in enumerate(ADDED["NaN, infinity and an unseen category"]):
        fit(tmp_path / str(k), frame, CASES["dp_sgd"], capsys)
    notes = [json.loads((tmp_path / str(k) / "run/private/diagnostics.json").read_text()) for k in range(2)]
    assert notes[0] != notes[1]
    assert (tmp_path / "0/run/private").stat().st_mode & 0o777 == 0o700
