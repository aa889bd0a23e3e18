"""The side-by-side with peers: everything but the peers themselves, which need a package index (the slow test)."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "experiments/peers"
MODULES = ("peer_contract", "peer_data", "peer_environments", "peer_table", "run")
WORKERS = ("worker_diffprivlib", "worker_ebm", "worker_dpml")
ROWS = 1500
BUDGETS = (0.5, 2.0)


@pytest.fixture(name="peers", scope="module")
def _peers() -> Iterator[SimpleNamespace]:
    """The scripts as modules, under their last word; they leave no trace in later tests."""
    assert not [name for name in (*MODULES, *WORKERS) if name in sys.modules]
    sys.path.insert(0, str(PEERS))
    yield SimpleNamespace(**{name.removeprefix("peer_"): import_module(name) for name in (*MODULES, *WORKERS)})
    sys.path.remove(str(PEERS))
    for name in (*MODULES, *WORKERS):
        del sys.modules[name]


@pytest.fixture(name="folder", scope="module")
def _folder(peers: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small hand-over."""
    folder = tmp_path_factory.mktemp("hand_over")
    peers.data.hand_over(folder, rows=ROWS)
    return folder


def worker_call(folder: Path, out: Path, runs: int = 2, epsilon: str = "1") -> list[str]:
    return ["--data", str(folder), "--out", str(out), "--runs", str(runs), "--epsilon", epsilon, "--delta", "1e-5"]


def test_defaults_of_the_command_line(peers: SimpleNamespace) -> None:
    arguments = peers.run.parse([])
    assert arguments.runs == 5
    assert arguments.epsilon == [0.1, 0.5, 1.0, 2.0]
    assert arguments.work.name == ".peers"
    assert (arguments.only, arguments.json, arguments.threads) == (None, None, 1)


def test_budgets_are_sorted_and_distinct(peers: SimpleNamespace) -> None:
    assert peers.run.parse(["--epsilon", "2", "0.1", "2.0", "--only", "ebm", "dpml"]).epsilon == [0.1, 2.0]


@pytest.mark.parametrize(
    "words", [["--runs", "0"], ["--runs", "x"], ["--epsilon", "0"], ["--epsilon", "nan"], ["--epsilon", "inf"],
              ["--epsilon"], ["--only", "opacus"], ["--threads", "0"], ["--what"]],
)  # fmt: skip
def test_arguments_out_of_range_are_refused(peers: SimpleNamespace, capsys: Any, words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        peers.run.parse(words)
    assert stop.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize("digits", [1, 8])
def test_auc_is_that_of_scikit_learn_with_ties_too(peers: SimpleNamespace, digits: int) -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 400)
    scores = np.round(rng.random(400) + 0.3 * labels, digits)
    assert peers.contract.auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_auc_by_hand(peers: SimpleNamespace) -> None:
    # pairs (positive, negative): .4 > .1, .4 = .4 counts ½, .9 > .1, .9 > .4
    assert peers.contract.auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([0, 0, 1, 1])) == 3.5 / 4
    assert np.isnan(peers.contract.auc(np.array([0.1, 0.2]), np.array([0, 0])))


def test_measure_counts_runs_and_scores_the_test_records(peers: SimpleNamespace) -> None:
    labels, scores = np.array([0, 1, 1, 0]), np.array([0.2, 0.9, 0.5, 0.6])
    row = peers.contract.measure("m", 1.0, {"C": 2}, 3, lambda: lambda: scores, labels, encoded_fit=lambda: None)
    assert row.accuracy == (0.5, 0.5, 0.5)  # 0.5 is not above the threshold, 0.6 is a false alarm
    assert row.auc == (0.75, 0.75, 0.75)
    assert [len(getattr(row, name)) for name in peers.contract.FIGURES] == [3] * 5


def row(peers: SimpleNamespace, epsilon: float, accuracy: float, auc: float, **more: Any) -> Any:
    """A made-up row of two runs, 0.01 apart in accuracy and 0.002 in AUC, whose means are as given."""
    entries = {"method": "m", "setting": {}, "seconds": (3.0, 5.0), "cpu_seconds": (2.0, 2.0), **more}
    return peers.contract.Row(
        epsilon=epsilon, accuracy=(accuracy - 0.005, accuracy + 0.005), auc=(auc - 0.001, auc + 0.001), **entries
    )


def report(peers: SimpleNamespace, peer: str, rows: list[Any]) -> Any:
    return peers.contract.Report(peer, {"python": "3.12.0", peer: "9.9"}, f"guarantee of {peer}", tuple(rows))


def made_up(peers: SimpleNamespace, ours_at_two: float = 0.86) -> list[Any]:
    """C = 0.1 is best for accuracy at ε = 0.5, for AUC C = 0.01; at ε = 2 it is C = 1 for both."""
    grid = {(0.5, 1.0): (0.70, 0.70), (0.5, 0.1): (0.80, 0.85), (0.5, 0.01): (0.76, 0.87),
            (2.0, 1.0): (0.84, 0.89), (2.0, 0.1): (0.83, 0.88), (2.0, 0.01): (0.75, 0.85)}  # fmt: skip
    peer = [row(peers, e, *figures, setting={"C": C}) for (e, C), figures in grid.items()]
    ours = [
        row(peers, e, accuracy, auc, method=method, cpu_seconds=(4.0, 4.0), encoded_cpu_seconds=(1.0, 1.0))
        for e, accuracy, auc in ((0.5, 0.85, 0.90), (2.0, ours_at_two, 0.91))
        for method in ("objective", "auto")
    ]
    ebm = [row(peers, 0.5, 0.79, 0.88, method="DP-EBM"), row(peers, 2.0, 0.81, 0.89, method="DP-EBM")]
    return [report(peers, "diffprivlib", peer), report(peers, "ebm", ebm), report(peers, "dpml", ours)]


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_table_of_figures(peers: SimpleNamespace) -> None:
    table = cells(peers.table.figures(peers.table.lines(made_up(peers), BUDGETS), BUDGETS, {}))
    assert table[0] == ["method", "figure", "ε = 0.5", "ε = 2"]
    assert {len(line) for line in table} == {4}
    blocks: dict[str, dict[str, list[str]]] = {}
    name = ""
    for title, figure, *values in table[2:]:
        name = title or name  # the title stands on a method's first line only
        blocks.setdefault(name, {})[figure] = values
    default, best, ebm, objective, _ = blocks.values()
    assert default["accuracy, %"] == ["70.00 ± 0.71", "84.00 ± 0.71"]  # 0.5 √2 points
    assert default["AUC"] == ["0.7000 ± 0.0014", "0.8900 ± 0.0014"]
    assert default["fit, s"] == ["4.00", "4.00"]
    assert best["accuracy, %"] == ["80.00 ± 0.71", "84.00 ± 0.71"]
    assert best["AUC"] == ["0.8700 ± 0.0014", "0.8900 ± 0.0014"]
    assert best["C (for accuracy, for AUC)"] == ["0.1, 0.01", "1, 1"]
    assert "C (for accuracy, for AUC)" not in default
    assert ebm["fit, CPU s"] == ["2.00", "2.00"]
    assert objective["fit on encoded rows, CPU s"] == ["1.00", "1.00"]
    assert "test data" in list(blocks)[1]


def test_comparison_gives_differences_ratios_and_a_verdict(peers: SimpleNamespace) -> None:
    found = cells(peers.table.comparison(peers.table.lines(made_up(peers), BUDGETS), BUDGETS))[2:]
    assert len(found) == 6  # two of ours against three lines of peers
    assert found[1][1:] == ["+5.00 / +2.00", "+0.0300 / +0.0200", "2.00 / 2.00", "yes"]  # encoded against encoded
    assert found[2][1:] == ["+6.00 / +5.00", "+0.0200 / +0.0200", "0.50 / 0.50", "yes"]  # from the table: 2 / 4


def test_one_lost_budget_is_a_no(peers: SimpleNamespace) -> None:
    found = cells(peers.table.comparison(peers.table.lines(made_up(peers, ours_at_two=0.839), BUDGETS), BUDGETS))[2:]
    assert [line[-1] for line in found] == ["**no**", "**no**", "yes"] * 2
    line = peers.table.lines(made_up(peers), BUDGETS)[-1]
    assert not peers.table.better_everywhere(line, line, BUDGETS)  # an equal mean is not above


def test_a_peer_that_fails_stands_in_the_table_and_in_the_notes(peers: SimpleNamespace) -> None:
    failures = {"ebm": "ebm: pip could not install it"}
    reports = [entry for entry in made_up(peers) if entry.peer != "ebm"]
    table = peers.table.figures(peers.table.lines(reports, BUDGETS), BUDGETS, failures)
    assert cells(table)[-1] == ["ebm", "**could not be measured**", "–", "–"]
    notes = peers.table.notes(reports, failures, 2, 1e-5)
    assert "NOT MEASURED: ebm: pip could not install it" in notes
    assert "guarantee of diffprivlib" in notes
    assert "chosen at each ε on the test records" in notes
    assert "δ = 1e-5" in notes
    only_ours = peers.table.comparison(peers.table.lines(reports[-1:], BUDGETS), BUDGETS)
    assert only_ours.startswith("No comparison")


def test_a_report_survives_its_file(peers: SimpleNamespace, tmp_path: Path) -> None:
    for entry in made_up(peers):
        peers.contract.write_report(entry, tmp_path / "r.json")
        assert peers.contract.read_report(tmp_path / "r.json") == entry


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accuracy": [0.5]}, "differ in length"),
        ({"accuracy": [], "auc": [], "seconds": [], "cpu_seconds": []}, "differ in length"),
        ({"encoded_cpu_seconds": [1.0]}, "differ in length"),
        ({"accuracy": [85.0, 84.0]}, r"must lie in \[0, 1\]"),
        ({"auc": [float("nan"), 0.5]}, r"must lie in \[0, 1\]"),
        ({"seconds": [-1.0, 1.0]}, "negative"),
        ({"epsilon": "much"}, "no worker's report"),
        ({"setting": 3}, "no worker's report"),
    ],
)
def test_a_faulty_row_is_refused(peers: SimpleNamespace, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "r.json"
    peers.contract.write_report(report(peers, "ebm", [row(peers, 1.0, 0.8, 0.9)]), path)
    content = json.loads(path.read_text("utf-8"))
    content["rows"][0].update(change)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(peers.contract.ContractError, match=message):
        peers.contract.read_report(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"peer": "ebm", "versions": {}, "guarantee": "", "rows": []}'])
def test_a_file_that_is_no_report_is_refused(peers: SimpleNamespace, tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text, encoding="utf-8")
    with pytest.raises(peers.contract.ContractError, match=r"r\.json"):
        peers.contract.read_report(tmp_path / "r.json")


def test_the_encoded_rows_follow_from_the_schema_alone(peers: SimpleNamespace, folder: Path) -> None:
    X, y, X_test, y_test = peers.contract.load_encoded(folder)
    assert X.shape == X_test.shape == (ROWS, 103)  # no constant column
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1.0, atol=1e-12)  # eight indicators: all beyond the bound
    assert (np.linalg.norm(X, axis=1) <= 1.0).all()
    table = pd.read_csv(folder / "train.csv")
    np.testing.assert_array_equal(y, (table["income"] == ">50K").astype(int))
    np.testing.assert_array_equal(y_test, (pd.read_csv(folder / "test.csv")["income"] == ">50K").astype(int))
    raw = [
        (table["age"] - 17) / 73, (table["education-num"] - 1) / 15, np.log1p(table["capital-gain"]) / np.log1p(99999),
        np.log1p(table["capital-loss"]) / np.log1p(4356), (table["hours-per-week"] - 1) / 98,
    ]  # fmt: skip
    norms = np.sqrt(8 + sum(np.square(column) for column in raw))
    np.testing.assert_allclose(X[:, 0], raw[0] / norms, atol=1e-12)
    assert json.loads((folder / "schema.json").read_text("utf-8"))["n_declared"] == ROWS


# ------------------------------------------------------------------------------------------------------ workers


def stand_in(monkeypatch: pytest.MonkeyPatch, worker: ModuleType, **modules: dict[str, Any]) -> None:
    """Made-up packages in place of a peer's; dots are written as two underscores."""
    for name, content in modules.items():
        module = ModuleType(name.replace("__", "."))
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(worker, "versions", lambda *names: dict.fromkeys(names, "made up"))


class Leak(Warning):
    pass


class Peer:
    """Probability one half for everybody; remembers what it was given."""

    seen: list[dict[str, Any]]
    warning: Warning | None

    def __init__(self, **arguments: Any) -> None:
        type(self).seen.append(arguments)

    def fit(self, X: Any, y: np.ndarray) -> Peer:
        assert len(X) == len(y) == ROWS
        type(self).seen[-1]["X"] = X
        if type(self).warning is not None:
            warnings.warn(type(self).warning, stacklevel=2)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        return np.full((len(X), 2), 0.5)


def peer(warning: Warning | None = None) -> type[Peer]:
    return type("Fresh", (Peer,), {"seen": [], "warning": warning})


def share_of_class_zero(folder: Path) -> float:
    return float((pd.read_csv(folder / "test.csv")["income"] == "<=50K").mean())


def test_diffprivlib_worker(
    peers: SimpleNamespace, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = peer()
    modules = {"diffprivlib": {}, "diffprivlib__models": {"LogisticRegression": model}}
    stand_in(monkeypatch, peers.worker_diffprivlib, **modules, diffprivlib__utils={"PrivacyLeakWarning": Leak})
    assert peers.worker_diffprivlib.main(worker_call(folder, tmp_path / "r.json", epsilon="0.5")) == 0
    found = peers.contract.read_report(tmp_path / "r.json")
    assert found.peer == "diffprivlib"
    assert "replace_one" in found.guarantee
    assert "δ = 0" in found.guarantee
    assert [entry.setting["C"] for entry in found.rows] == list(peers.worker_diffprivlib.GRID)
    assert peers.table.DEFAULT_C in peers.worker_diffprivlib.GRID
    assert {entry.accuracy for entry in found.rows} == {(share_of_class_zero(folder),) * 2}
    assert {entry.auc for entry in found.rows} == {(0.5, 0.5)}
    assert len(model.seen) == 1 + 2 * len(found.rows)
    assert all(given["data_norm"] == 1.0 for given in model.seen)
    assert all(given["epsilon"] == 0.5 for given in model.seen[1:])
    assert all(set(given) == {"epsilon", "data_norm", "C", "X"} for given in model.seen)  # no fixed random state
    assert max(np.linalg.norm(given["X"], axis=1).max() for given in model.seen) <= 1.0


def test_ebm_worker(peers: SimpleNamespace, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = peer()
    modules = {"interpret": {}, "interpret__privacy": {"DPExplainableBoostingClassifier": model}}
    stand_in(monkeypatch, peers.worker_ebm, **modules)
    assert peers.worker_ebm.main(worker_call(folder, tmp_path / "r.json", epsilon="0.5")) == 0
    found = peers.contract.read_report(tmp_path / "r.json")
    assert [(entry.method, entry.epsilon, len(entry.auc)) for entry in found.rows] == [("DP-EBM", 0.5, 2)]
    assert found.rows[0].accuracy == (share_of_class_zero(folder),) * 2
    given = model.seen[0]
    assert (given["epsilon"], given["delta"], given["n_jobs"]) == (0.5, 1e-5, 1)
    assert given["privacy_bounds"] == {
        "age": (17.0, 90.0), "education-num": (1.0, 16.0), "capital-gain": (0.0, 99999.0),
        "capital-loss": (0.0, 4356.0), "hours-per-week": (1.0, 99.0),
    }  # fmt: skip
    kinds = dict(zip(given["feature_names"], given["feature_types"], strict=True))
    assert len(kinds) == 13  # fourteen columns but the ignored weight
    assert "fnlwgt" not in kinds
    assert {name for name, kind in kinds.items() if kind == "continuous"} == set(given["privacy_bounds"])
    assert set(kinds.values()) == {"continuous", "nominal"}  # never "auto", which reads the data
    assert list(given["X"].columns) == given["feature_names"]
    assert "random_state" not in given


def test_ebm_rows_are_clamped_to_the_public_bounds(peers: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,town,other\n-5,NA,1\n40,x,2\n400,7,3\n", encoding="utf-8")
    public = {"feature_names": ["age", "town"], "privacy_bounds": {"age": (17.0, 90.0)}}
    table = peers.worker_ebm.raw_table(tmp_path / "t.csv", public)
    assert table["age"].tolist() == [17.0, 40.0, 90.0]
    assert table["town"].tolist() == ["NA", "x", "7"]
    assert list(table.columns) == ["age", "town"]


@pytest.mark.parametrize("name", ["diffprivlib", "ebm"])
def test_a_peer_that_reads_something_uncharged_is_not_measured(
    peers: SimpleNamespace, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    worker = getattr(peers, f"worker_{name}")
    leak = Leak("norm from the data")
    violation = UserWarning("Possible privacy violation: bounds from the data")
    stand_in(
        monkeypatch, worker, diffprivlib={}, diffprivlib__models={"LogisticRegression": peer(leak)},
        diffprivlib__utils={"PrivacyLeakWarning": Leak},
        interpret={}, interpret__privacy={"DPExplainableBoostingClassifier": peer(violation)},
    )  # fmt: skip
    with pytest.raises(Warning, match="from the data"):
        worker.main(worker_call(folder, tmp_path / "r.json"))
    assert not (tmp_path / "r.json").exists()


@pytest.mark.parametrize(("name", "package"), [("diffprivlib", "diffprivlib"), ("ebm", "interpret")])
def test_a_worker_without_its_package_says_so(
    peers: SimpleNamespace, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, name: str,
    package: str,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, package, None)
    status = getattr(peers, f"worker_{name}").main(worker_call(folder, tmp_path / "r.json"))
    assert status == peers.contract.MISSING_PACKAGE
    assert f"{package}" in capsys.readouterr().err


def test_dpml_worker_on_a_small_table(peers: SimpleNamespace, folder: Path, tmp_path: Path) -> None:
    assert peers.worker_dpml.main(worker_call(folder, tmp_path / "r.json", runs=1, epsilon="5")) == 0
    found = peers.contract.read_report(tmp_path / "r.json")
    assert [entry.method for entry in found.rows] == ["objective", "auto", "objective, replace_one"]
    assert set(peers.table.OURS) < {entry.method for entry in found.rows}
    for entry in found.rows:
        assert len(entry.encoded_cpu_seconds) == 1
        # 15 runs each: means 0.887 to 0.898, standard deviations at most 0.005; false alarms far below 1e-6
        assert 0.80 < entry.auc[0] < 0.95, entry.method
    assert found.versions["dpml"]


# ------------------------------------------------------------------------------------------------- environments


@pytest.mark.parametrize("found", [(3, 10, 14), (3, 15, 0), (2, 7, 18)])
def test_a_python_that_the_peers_do_not_know_is_refused(peers: SimpleNamespace, found: tuple[int, ...]) -> None:
    with pytest.raises(peers.environments.PeerError, match=rf"Python {found[0]}\.{found[1]} .* 3\.11 to 3\.14"):
        peers.environments.check_python(found)


def test_requirements_are_exact(peers: SimpleNamespace) -> None:
    pinned = {}
    for entry in peers.environments.PEERS:
        if entry.requirements is not None:
            lines = (PEERS / entry.requirements).read_text("utf-8").splitlines()
            pinned[entry.name] = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pinned["diffprivlib"]["diffprivlib"] == "0.6.6"
    assert pinned["diffprivlib"]["scikit-learn"].startswith("1.7.")
    assert pinned["ebm"]["interpret-core"] == "0.7.8"
    assert not {"dash", "plotly", "interpret"} & set(pinned["ebm"])


def fake_run(calls: list[list[str]], pip_status: int = 0) -> Any:
    """``subprocess.run`` whose ``-m venv`` makes a folder and whose pip ends as told."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(list(command))
        if "venv" in command:
            folder = Path(command[-1])
            (folder / "bin").mkdir(parents=True)
            (folder / "bin/python").touch()
            (folder / "pyvenv.cfg").touch()
            return subprocess.CompletedProcess(command, 0, "", "")
        text = "WARNING: Retrying\nERROR: No matching distribution found for it\n" if pip_status else ""
        return subprocess.CompletedProcess(command, pip_status, "", text)

    return run


def test_an_environment_is_made_once(peers: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, calls = peers.environments, []
    monkeypatch.setattr(module.subprocess, "run", fake_run(calls))
    ebm = module.PEERS[1]
    python = module.environment(ebm, tmp_path)
    assert python == tmp_path / "venv-ebm/bin/python"
    assert [("venv" in call, "install" in call) for call in calls] == [(True, False), (False, True)]
    assert calls[1][-1] == str(PEERS / "requirements-ebm.txt")
    assert module.environment(ebm, tmp_path) == python
    assert len(calls) == 2
    (tmp_path / "venv-ebm" / module.MARKER).write_text("{}", encoding="utf-8")  # of other requirements
    module.environment(ebm, tmp_path)
    assert len(calls) == 4


def test_a_folder_that_is_no_environment_is_left_alone(
    peers: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers.environments.subprocess, "run", fake_run([]))
    (tmp_path / "venv-ebm").mkdir()
    (tmp_path / "venv-ebm/thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(peers.environments.PeerError, match="in the way"):
        peers.environments.environment(peers.environments.PEERS[1], tmp_path)
    assert (tmp_path / "venv-ebm/thesis.txt").read_text("utf-8") == "mine"


def test_without_a_package_index_the_peer_is_named_and_the_status_is_one(
    peers: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(peers.environments.subprocess, "run", fake_run([], pip_status=1))
    monkeypatch.setattr(peers.data, "hand_over", lambda folder: None)
    target = tmp_path / "f.json"
    words = ["--only", "ebm", "--epsilon", "1", "--work", str(tmp_path / "work"), "--json", str(target)]
    assert peers.run.main(words) == 1
    out, err = capsys.readouterr()
    assert "| ebm | **could not be measured** | – |" in out
    assert "error: ebm: pip could not install requirements-ebm.txt: ERROR: No matching distribution" in err
    assert "PIP_INDEX_URL" in err
    assert "NOT MEASURED: ebm" in out
    assert list(json.loads(target.read_text("utf-8"))["failures"]) == ["ebm"]
    assert not (tmp_path / "work/venv-ebm" / peers.environments.MARKER).exists()  # so that the next call tries again


def test_a_worker_that_fails_is_named(peers: SimpleNamespace, folder: Path) -> None:
    module = peers.environments
    broken = module.Peer("ebm", "no_such_worker.py", "requirements-ebm.txt")
    with pytest.raises(module.PeerError, match=r"ebm: its worker failed: .*no_such_worker"):
        module.run_worker(broken, Path(sys.executable), folder, 1, [1.0], 1e-5, 1)


def test_a_worker_that_forgets_a_budget_is_named(
    peers: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = peers.environments
    environment: dict[str, str] = {}

    def run(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        environment.update(more["env"])
        peers.contract.write_report(made_up(peers)[1], Path(command[command.index("--out") + 1]))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(module.subprocess, "run", run)
    ebm = module.PEERS[1]
    assert module.run_worker(ebm, Path("python"), tmp_path, 2, BUDGETS, 1e-5, 3) == made_up(peers)[1]
    assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "3"
    with pytest.raises(module.PeerError, match=r"nothing at epsilon = 0\.1$"):
        module.run_worker(ebm, Path("python"), tmp_path, 2, (0.1, 2.0), 1e-5, 1)


def test_a_work_folder_of_somebody_else_or_a_file_is_refused(
    peers: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(peers.environments.os, "getuid", lambda: owner + 1)
    assert peers.run.main(["--work", str(tmp_path)]) == 1
    assert "belongs to another user" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert peers.run.main(["--work", str(tmp_path / "file")]) == 1
    assert "cannot be made" in capsys.readouterr().err


@pytest.mark.slow
def test_ours_is_better_than_every_peer(tmp_path: Path) -> None:
    """Needs a package index; margins are many standard deviations wide at these budgets."""
    target = tmp_path / "f.json"
    words = ["--runs", "3", "--work", str(tmp_path / "work"), "--json", str(target)]
    done = subprocess.run(
        [sys.executable, str(PEERS / "run.py"), *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = [line.rsplit("|", 2)[1].strip() for line in done.stdout.splitlines() if line.startswith("| dpml `")]
    assert [word for word in verdicts if word in ("yes", "**no**")] == ["yes"] * 6
    assert not json.loads(target.read_text("utf-8"))["failures"]
