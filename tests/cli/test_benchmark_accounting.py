"""The accounting benchmark: its table's shape, its correctness columns and its 30-digit reference; never its times."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import mpmath as mp
import pytest

from dpml import accounting as acc

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "experiments/benchmarks/accounting.py"
TABLE = json.loads((ROOT / "tests/reference/composed_subsampled_gaussian.json").read_text("utf-8"))["rows"]
CORRECTNESS = (
    "which of torch",
    "σ for ε = 3, q = 0.01, T = 2000",
    "σ for ε = 0.01",
    "one ε (q = 0.01, σ = 1, T = 10000), relative error",
    "the same, certified interval",
    "schedule of",
    "trajectory of 100 points",
    "ε at δ = 1e-2, …, 1e-30",
    "the same, δ over the 30-digit δ",
    "rows below the exact ε",
    "worst relative excess",
    "δ(ε) over the exact δ",
)


@pytest.fixture(name="benchmark", scope="module")
def _benchmark() -> Iterator[ModuleType]:
    name = "dpml_benchmark_accounting"
    spec = importlib.util.spec_from_file_location(name, SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


def test_quick_run_prints_the_table_and_every_correctness_figure_holds(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--json", str(target)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["figure", "ours", "peer", "ratio", "target", "met?"]
    assert all(len(row) == 6 for row in cells)
    content = json.loads(target.read_text("utf-8"))
    assert [row[0] for row in cells[2:]] == [figure["name"] for figure in content["figures"]]
    checked = {figure["name"]: figure["met"] for figure in content["figures"] if figure["correctness"]}
    assert len(checked) == len(CORRECTNESS)
    for start in CORRECTNESS:
        assert [met for name, met in checked.items() if name.startswith(start)] == [True], start
    words = {row[0]: row[5] for row in cells[2:] if row[0] in checked}
    assert set(words.values()) == {"yes"}
    assert {"processor", "python", "numpy", "scipy", "dp-accounting", "opacus"} <= set(content["machine"])
    assert f"python {content['machine']['python']}" in done.stdout


@pytest.mark.parametrize("met", [True, False])
@pytest.mark.parametrize("correctness", [True, False])
def test_only_a_failing_correctness_figure_changes_the_exit_status(
    benchmark: ModuleType, monkeypatch: Any, capsys: Any, met: bool, correctness: bool
) -> None:
    figure = benchmark.Figure("a figure", "1", target="2", met=met, correctness=correctness)
    parts = ("imports", "calibration", "one_epsilon", "schedule", "per_epoch", "little_noise", "tiny_delta")
    for name in (*parts, "reference_rows", "reference_deltas"):
        monkeypatch.setattr(benchmark, name, lambda *_: [figure])
    monkeypatch.setattr(sys, "argv", ["accounting.py"])
    assert benchmark.main() == (1 if correctness and not met else 0)
    out = capsys.readouterr().out
    assert out.count(figure.line()) == 9
    assert ("correctness fails" in out) == (correctness and not met)


@pytest.mark.parametrize(("sigma", "steps", "epsilon"), [(10.0, 50, 5.0), (1.0, 1, 11.0), (4.0, 100, 0.5)])
def test_the_reference_has_thirty_digits_where_a_closed_form_exists(
    benchmark: ModuleType, sigma: float, steps: int, epsilon: float
) -> None:
    with mp.workdps(80):
        mu, e = mp.sqrt(steps) / mp.mpf(sigma), mp.mpf(epsilon)
        expected = mp.ncdf(mu / 2 - e / mu) - mp.exp(e) * mp.ncdf(-mu / 2 - e / mu)  # Balle & Wang 2018, Theorem 8
        assert abs(benchmark.reference_delta(1.0, sigma, steps, epsilon) / expected - 1) < mp.mpf(10) ** -30


@pytest.mark.parametrize("number", ["0164", "0166", "0172", "0174"])
def test_the_reference_agrees_with_the_reference_table(benchmark: ModuleType, number: str) -> None:
    (row,) = [row for row in TABLE if row["id"].endswith(number)]
    keys = ("sampling_probability", "noise_multiplier", "steps", "epsilon")
    q, sigma, steps, epsilon = (float(row["inputs"][key]) for key in keys)
    got = benchmark.reference_delta(q, sigma, int(steps), epsilon)
    assert float(abs(got / mp.mpf(row["value"]) - 1)) < 1e-9


def test_caches_are_empty_before_a_cold_call(benchmark: ModuleType) -> None:
    acc.epsilon(benchmark.sampled(0.01, 1.0, 100), 1e-5)
    names = [name for name in sys.modules if name.startswith("dpml.accounting")]
    caches = [thing for name in names for thing in vars(sys.modules[name]).values() if hasattr(thing, "cache_info")]
    assert any(cache.cache_info().currsize for cache in caches)
    benchmark.clear_caches()
    assert not any(cache.cache_info().currsize for cache in caches)
