"""``python -m experiments.benchmarks``: one table of all parts, peers that are missing, misses and exit status."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments/benchmarks"
NAMES = ("accounting", "noise", "erm", "dp_sgd", "startup", "memory")
PLAIN_NAMES = (
    *NAMES,
    "dp_sgd_competitors",
    "dp_sgd_models",
    "dp_sgd_peers",
    "dp_sgd_profile",
    "private_erm",
    "private_erm_table",
)
QUANTITY = "epsilon_add_remove"


@pytest.fixture(name="together", scope="module")
def _together() -> Iterator[ModuleType]:
    before = list(sys.path)
    sys.path.insert(0, str(ROOT))
    try:
        yield importlib.import_module("experiments.benchmarks.__main__")
    finally:
        sys.path[:] = before
        for name in (*PLAIN_NAMES, "experiments", "experiments.benchmarks", "experiments.benchmarks.__main__"):
            sys.modules.pop(name, None)


@pytest.fixture(name="parts")
def _parts(together: ModuleType) -> dict[str, ModuleType]:
    return {name: importlib.import_module(name) for name in ("noise", "erm", "startup", "memory", "dp_sgd")}


def test_all_parts_in_one_table(tmp_path: Path) -> None:
    table, figures = tmp_path / "deep/table.md", tmp_path / "deep/table.json"
    words = ["-m", "experiments.benchmarks", "--all", "--quick", "--markdown", str(table), "--json", str(figures)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(figures.read_text("utf-8"))
    rows = content["rows"]
    assert tuple(dict.fromkeys(row["part"] for row in rows)) == NAMES
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert [line for line in table.read_text("utf-8").splitlines() if line.startswith("|")] == lines
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["part", "figure", "ours", "peer", "ratio", "target", "met?"]
    assert {len(row) for row in cells} == {7}
    assert [row[:3] for row in cells[2:]] == [[row["part"], row["figure"], row["ours"]] for row in rows]
    assert not any(row["fails"] for row in rows)

    def the(part: str, words: str) -> dict[str, Any]:
        (found,) = [row for row in rows if row["part"] == part and words in row["figure"]]
        return found

    assert abs(float(the("accounting", "relative error")["ours"])) < 1e-8
    sums = the("dp_sgd", "clipped sums against opacus")["ours"]
    assert sums.count("agrees (") == 2
    exact = the("erm", "our gradient norm")
    assert float(exact["ours"].partition("norm ")[2].strip(")")) <= 0.5e-6
    assert float(exact["peer"].partition("norm ")[2].strip(")")) <= 0.5e-6
    assert the("noise", "1,000 normals: ours ÷ numpy, float64")["peer"].endswith(" ns")
    assert the("startup", "dpml --help")["target"] == "< 3 s"
    assert the("startup", "import opacus")["peer"] == "not run (--quick)"
    assert the("memory", "logistic 512→2")["target"] in ("≤ 30% more than plain", "≤ 30 % more than plain")
    assert {"processor", "commit", "torch", "numpy", "opacus", "dp-accounting", "diffprivlib", "date"} <= set(
        content["machine"]
    )
    assert "the times mean nothing" in done.stdout


def test_a_choice_of_parts_is_needed(together: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--only", "nothing"], ["--all", "--only", "erm"]):
        with pytest.raises(SystemExit) as stop:
            together.main(words)
        assert stop.value.code == 2
        assert "--only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("met", "correctness", "status"), [(True, True, 0), (False, False, 0), (False, True, 1), (None, True, 0)]
)
def test_only_correctness_decides_the_exit_status(
    together: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    met: bool | None,
    correctness: bool,
    status: int,
) -> None:
    figure = SimpleNamespace(
        name="a figure", ours="1", peer="2", ratio="0.5", target="≤ 1", met=met, correctness=correctness
    )
    monkeypatch.setattr(together, "parts_of", lambda name, quick: [lambda: [figure]])
    monkeypatch.setattr(together, "threads", lambda quick: 1)
    monkeypatch.setattr(together, "RESULTS", tmp_path / "results")
    assert together.main(["--only", "erm", "noise"]) == status
    out = capsys.readouterr().out
    word = {True: "yes", False: "**no**", None: "–"}[met]
    assert f"| erm | a figure | 1 | 2 | 0.5 | ≤ 1 | {word} |" in out
    assert "Not run: accounting, dp_sgd, startup, memory." in out
    assert ("fails: a figure" in out) == bool(status)
    assert not (tmp_path / "results").exists()  # only --all writes there
    assert together.main(["--all"]) == status
    text = (tmp_path / "results/benchmarks.md").read_text("utf-8")
    assert text.count("| a figure |") == len(NAMES)
    counted = 0 if met is None else len(NAMES)
    assert f"{0 if met in (True, None) else counted} of {counted} targets missed" in text
    assert len(json.loads((tmp_path / "results/benchmarks.json").read_text("utf-8"))["rows"]) == len(NAMES)


def test_a_part_that_raises_is_a_line_and_fails(together: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Any]:
        raise ValueError("no | such\nthing")

    good = SimpleNamespace(name="good", ours="1", peer="–", ratio="–", target="–", met=None)
    monkeypatch.setattr(together, "parts_of", lambda name, quick: [broken, lambda: [good]])
    first, second = together.rows_of("erm", True)
    assert (first.ours, first.fails) == ("ValueError: no ¦ such thing", True)
    assert (second.figure, second.fails) == ("good", False)


def test_nanoseconds_and_ratios_by_hand(parts: dict[str, ModuleType]) -> None:
    noise, times = parts["noise"], parts["dp_sgd"].Times
    found = noise.compared(
        "normal",
        2**20,
        {
            noise.SEVERAL: times(0.0105, 0.01),
            noise.ALONE: times(0.02, 0.02),
            "torch, float64": times(0.0150, 0.02),
            "numpy, float64": times(0.01, 0.01),
        },
    )
    assert [figure.name.partition(": ")[2] for figure in found] == [
        f"{ours} ÷ {peer}" for ours in ("ours", "ours, one thread") for peer in ("torch, float64", "numpy, float64")
    ]
    assert (found[0].ours, found[0].peer, found[0].ratio) == ("10.01 ns", "14.31 ns", "0.70 × (0.50)")
    assert [figure.target for figure in found] == ["≤ 0.7 ×", "–", "–", "–"]
    assert [figure.met for figure in found[1:]] == [None] * 3
    assert math.isclose(found[3].value, 2.0)


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_what_is_timed_has_the_size_and_the_distribution(parts: dict[str, ModuleType], kind: str) -> None:
    """20,000 draws: the mean is off by 6 standard errors with probability 2e-9, the variance (normals) 2e-9 too."""
    mean, variance, fourth = (0.0, 1.0, 2.0) if kind == "normal" else (0.5, 1 / 12, 1 / 180)
    for name, draw in parts["noise"].draws(kind, 20_000).items():
        values = np.asarray(draw(), dtype=np.float64)
        assert values.shape == (20_000,), name
        assert abs(values.mean() - mean) < 6 * math.sqrt(variance / 20_000), name
        assert abs(((values - mean) ** 2).mean() - variance) < 6 * math.sqrt(fourth / 20_000), name


def test_fit_times_are_set_against_each_peer(parts: dict[str, ModuleType]) -> None:
    erm = parts["erm"]
    timings = [
        erm.Timing("ours", 1.0, 2.5, (0.2, 0.3, 0.4), 1e-8),
        erm.Timing("default", 1.0, 2.5, (0.1, 0.15, 0.2), 3.0),
        erm.Timing("exact", 1.0, 2.5, (0.6,), 1e-9),
    ]
    default, exact = erm.compared(timings)
    assert default.name == "Adult, ε = 1, λ = 2.5: objective perturbation ÷ default"
    assert (default.ours, default.peer) == ("300 ms (gradient norm 1e-08)", "150 ms (gradient norm 3e+00)")
    assert (default.ratio, exact.ratio) == ("2.00 × (2.00)", "0.50 × (0.33)")


def test_diffprivlib_is_timed_where_it_is_installed(
    parts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    erm, seen = parts["erm"], []

    class Model:
        def __init__(self, **given: Any) -> None:
            seen.append(given)

        def fit(self, rows: Any, labels: Any) -> None:
            assert isinstance(rows, np.ndarray)
            assert rows.shape == (50, 5)
            assert len(labels) == 50

    data = erm.private_erm.PrivateData.synthetic(50, 4, n_test=10)
    ours = erm.Timing("ours", 1.0, 2.5, (0.2,), 1e-8)
    monkeypatch.setattr(erm, "find_spec", lambda name: None)
    assert erm.peer_row(data, ours, 2).peer == "not installed"
    monkeypatch.setattr(erm, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "diffprivlib", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "diffprivlib.models", SimpleNamespace(LogisticRegression=Model))
    row = erm.peer_row(data, ours, 2)
    assert row.value is not None
    assert seen == [{"epsilon": 1.0, "data_norm": data.public.norm_bound, "C": 0.4, "fit_intercept": False}] * 2
    monkeypatch.delattr(Model, "fit")
    assert erm.peer_row(data, ours, 2).peer.startswith("AttributeError")


def test_start_up_has_a_line_for_every_command_and_missing_peer(
    parts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    startup, order = parts["startup"], []

    def seconds_of(words: tuple[str, ...]) -> float:
        order.append(words)
        return {("-c", "pass"): 0.02, ("-c", "import opacus"): 4.0, ("-m", "dpml", "--help"): 3.5}.get(words, 0.4)

    monkeypatch.setattr(startup, "seconds_of", seconds_of)
    monkeypatch.setattr(startup, "find_spec", lambda name: object() if name == "opacus" else None)
    found = {figure.name: figure for figure in startup.figures(False)}
    assert len(order) == 8 * len(set(order))
    assert order[: len(set(order))] == order[len(set(order)) : 2 * len(set(order))]  # in turns
    light = found["import dpml"]
    assert (light.ours, light.peer, light.ratio) == ("400 ms", "import opacus 4.00 s", "0.100 ×")
    assert (found["dpml --help"].met, found["python -m dpml.train --help"].met) == (False, True)
    assert found["import diffprivlib"].peer == "not installed"


def test_commands_of_start_up_are_right(parts: dict[str, ModuleType]) -> None:
    """The command that is timed prints the ε of the reference table's row, rounded up."""
    startup = parts["startup"]
    words = startup.ACCOUNT.split()
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    table = json.loads((ROOT / "tests/reference/composed_subsampled_gaussian.json").read_text("utf-8"))["rows"]
    wanted = {"sampling_probability": "0.01", "noise_multiplier": "1.0", "steps": "10000", "delta": "1e-5"}
    (value,) = [float(row["value"]) for row in table if (row["quantity"], row["inputs"]) == (QUANTITY, wanted)]
    assert f"ε ≤ {math.ceil(value * 1e5) / 1e5:.5f} at δ = 1e-5" in done.stdout
    assert startup.seconds_of(("-c", "pass")) > 0
    with pytest.raises(RuntimeError, match="ModuleNotFoundError: No module named 'no_such_module'"):
        startup.seconds_of(("-c", "import no_such_module"))


def test_memory_takes_every_model_unless_quick(parts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    memory = parts["memory"]
    monkeypatch.setattr(memory, "memory_of", lambda task, quick: [(task.name, quick)])
    assert memory.figures(True) == [("logistic", True)]
    assert [name for name, _ in memory.figures(False)] == [task.name for task in memory.TASKS]
