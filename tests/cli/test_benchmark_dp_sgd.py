"""The DP-SGD benchmark: its table's shape, its targets, its arithmetic and its comparisons; never its times."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from dpml import sgd

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "benchmarks"
MODULES = ("dp_sgd", "dp_sgd_competitors", "dp_sgd_models", "dp_sgd_peers", "dp_sgd_profile", "gpu")
TARGETS = {  # the accepted figures, by model: over plain PyTorch with secret noise and with torch's, over opacus
    "logistic": ("≤ 1.5 × plain", "≤ 1.4 × plain", "≤ 0.333 × opacus"),
    "MLP": ("≤ 1.4 × plain", "≤ 1.2 × plain", "≤ 0.65 × opacus"),
    "CNN": ("≤ 1.4 × plain", "≤ 1.3 × plain", "≤ 0.75 × opacus"),
    "Transformer": ("≤ 1.5 × plain", "≤ 1.4 × plain", "≤ 0.85 × opacus"),
}
PARAMETERS = {"logistic": 1026, "mlp": 535_818, "cnn": 26_010, "transformer": 236_290, "transformer-torch": 236_290}


@pytest.fixture(name="modules", scope="module")
def _modules() -> Iterator[dict[str, ModuleType]]:
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        sys.path.remove(str(FOLDER))
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture(name="benchmark", scope="module")
def _benchmark(modules: dict[str, ModuleType]) -> ModuleType:
    return modules["dp_sgd"]


@pytest.fixture(name="competitors", scope="module")
def _competitors(modules: dict[str, ModuleType]) -> ModuleType:
    return modules["dp_sgd_competitors"]


@pytest.fixture(name="models", scope="module")
def _models(modules: dict[str, ModuleType]) -> ModuleType:
    return modules["dp_sgd_models"]


def run(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FOLDER / script), *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def logistic(models: ModuleType) -> Any:
    return next(task for task in models.TASKS if task.name == "logistic")


def test_quick_run_prints_every_figure_with_its_target(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    only = ("logistic", "mlp", "cnn", "transformer", "epoch", "noise", "memory")
    done = run("dp_sgd.py", "--quick", "--json", str(target), "--only", *only, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["figure", "ours", "peer", "ratio", "target", "met?"]
    assert all(len(row) == 6 for row in cells)
    rows, content = cells[2:], json.loads(target.read_text("utf-8"))
    assert [row[0] for row in rows] == [figure["name"] for figure in content["figures"]]
    assert {row[5] for row in rows} <= {"met", "**missed**", "–"}
    for row in rows:
        assert (row[5] == "–") == (row[4] == "–" or row[4].startswith("agrees")), row

    def the(start: str, part: str) -> list[str]:
        (found,) = [row for row in rows if row[0].startswith(start) and part in row[0]]
        return found

    for start, (secret, torchs, opacus) in TARGETS.items():
        sums = the(start, ": clipped sums against opacus")[1]
        assert re.fullmatch(r"hooks agrees \(\de-\d\d\); ghost agrees \(\de-\d\d\)", sums), sums
        wanted = {"ours, secret noise ÷ plain": secret, "ours, torch's RNG ÷ plain": torchs, "÷ fastest opacus": opacus}
        for part, text in wanted.items():
            row = the(start, part)
            assert row[4] == text
            assert all(float(cell.split()[0]) > 0 for cell in row[1:4]), row
    assert the("logistic", "peak memory, ours, secret noise")[4] == "≤ 30% more than plain"
    assert the("epoch", "ours ÷ plain with index batches")[4] == "≤ 2 ×"
    assert the("epoch", "opacus hooks with its DataLoader")[4] == "≥ 8 × faster"
    assert the("epoch", "opacus ghost with its DataLoader")[4] == "≥ 8 × faster"
    assert [row[4] for row in rows if "secret normals in float64 ÷ torch.randn in float64" in row[0]] == ["≤ 0.7 ×"]
    assert {row[0] for row in rows[-2:]} == {"opake", "jax-privacy"}
    values = [figure["value"] for figure in content["figures"] if figure["value"] is not None]
    assert all(math.isfinite(value) for value in values)
    assert {"processor", "threads", "load", "commit", "torch", "numpy", "opacus", "randomgen"} <= set(
        content["machine"]
    )
    assert f"commit {content['machine']['commit']}" in done.stdout
    missed = sum(row[5] == "**missed**" for row in rows)
    assert f"{missed} of {sum(row[5] != '–' for row in rows)} targets missed" in done.stdout


def test_models_are_those_of_the_issue_and_their_batches_repeat(models: ModuleType) -> None:
    for task in models.TASKS:
        model, (X, y) = task.model(), task.batch(4)
        assert sum(p.numel() for p in model.parameters()) == PARAMETERS[task.name]
        assert model(X).shape == (4, task.classes)
        assert torch.equal(X, task.batch(4)[0])
        assert torch.equal(y, task.batch(4)[1])
        again = task.model()
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True))
    sizes = {task.name: task.batch_size for task in models.TASKS}
    assert sizes == {"logistic": 4096, "mlp": 1024, "cnn": 512, "transformer": 64, "transformer-torch": 64}


def test_our_step_is_the_engines_noise_and_update(
    competitors: ModuleType, models: ModuleType, monkeypatch: Any
) -> None:
    task = logistic(models)
    model = task.model()
    monkeypatch.setattr(models.Task, "model", lambda *_: model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    sums, _ = sgd.clipped_gradient(model, sgd.ModelLoss(), task.batch(8), models.NORM)

    class Ones:
        secret = False

        def normal(self, std: float, shape: Any) -> Any:
            return std * torch.ones(shape, dtype=torch.float64).numpy()

        def uniform(self, size: Any) -> Any:
            raise AssertionError("a step on a given batch draws no coins")

    competitors.our_step(task, 8, Ones())()
    for name, parameter in model.named_parameters():
        gradient = (sums[name] + models.SIGMA * models.NORM) / 8
        moved = (before[name] - parameter.detach()).double()  # the bound is up to 0.2 % below the declared one
        torch.testing.assert_close(moved, models.RATE * gradient, rtol=5e-3, atol=1e-7)


@pytest.mark.filterwarnings("ignore")  # opacus' own
def test_a_wrong_clipped_sum_is_called_different(competitors: ModuleType, models: ModuleType, monkeypatch: Any) -> None:
    task = logistic(models)
    assert competitors.agreement(task, 8, "hooks").startswith("agrees (")
    right = sgd.clipped_gradient

    def off(*arguments: Any, **options: Any) -> Any:
        sums, norms = right(*arguments, **options)
        return {name: 1.001 * value for name, value in sums.items()}, norms

    monkeypatch.setattr(competitors.sgd, "clipped_gradient", off)
    assert competitors.agreement(task, 8, "hooks") == "differs (1e-03)"


@pytest.mark.filterwarnings("ignore")
def test_errors_of_a_competitor_are_shown(
    benchmark: ModuleType, competitors: ModuleType, models: ModuleType, monkeypatch: Any
) -> None:
    def refuse(*_: Any) -> nn.Module:
        raise NotImplementedError("no rule | for\nthis layer")

    monkeypatch.setattr(competitors, "opacus_parts", refuse)
    task = logistic(models)
    figures = benchmark.steps_of(task, True)
    shown = "NotImplementedError: no rule ¦ for this layer"
    assert figures[0].ours == f"hooks {shown}; ghost {shown}"
    assert [figure.ours for figure in figures if ": opacus" in figure.name] == [shown, shown]
    assert any(": ours, secret noise ÷ plain" in figure.name for figure in figures)


def test_a_competitor_of_another_python_takes_its_steps_there(competitors: ModuleType, models: ModuleType) -> None:
    peer = competitors.Elsewhere(sys.executable, models.PLAIN, logistic(models), 8)
    try:
        assert peer.version.startswith("torch 2.")
        assert peer.sums == {}  # plain PyTorch clips nothing
        peer.run()
        peer.run()
        peer._process.kill()
        peer._process.wait()
        with pytest.raises((RuntimeError, BrokenPipeError)):
            peer.run()
    finally:
        peer.close()
    assert peer._process.returncode is not None


def test_what_ends_before_it_is_ready_is_shown(
    competitors: ModuleType, models: ModuleType, modules: dict[str, ModuleType]
) -> None:
    with pytest.raises(
        RuntimeError, match=r"^NotImplementedError: torch's own layers|^ModuleNotFoundError: No module named"
    ):
        competitors.Elsewhere(sys.executable, "jax-privacy", models.TASKS[-1], 4)
    assert set(competitors.elsewhere_installed(sys.executable)) == set(modules["dp_sgd_peers"].installed())


def test_what_another_python_has_stands_in_the_table(
    benchmark: ModuleType, models: ModuleType, monkeypatch: Any
) -> None:
    task, closed, size = logistic(models), [], 8
    sums, _ = sgd.clipped_gradient(task.model(), sgd.ModelLoss(), task.batch(size), models.NORM)

    class Fake:
        version = "opake 1"

        def __init__(self, python: str, name: str, *_: Any) -> None:
            assert python == "other"
            if name == "jax-privacy":
                raise RuntimeError("no such module")
            self.sums = {key: 1.01 * value for key, value in sums.items()} if "micro" in name else dict(sums)

        def run(self) -> None:
            pass

        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(benchmark, "Elsewhere", Fake)
    monkeypatch.setattr(benchmark, "MICRO", 4)
    task = dataclasses.replace(task, quick_size=size)
    monkeypatch.setattr(benchmark, "OPACUS", ())
    found = {
        f.name.partition(": ")[2]: f for f in benchmark.steps_of(task, True, peers=benchmark.Peers("other", ("opake",)))
    }
    assert found["clipped sums against opake (opake 1)"].ours == "agrees (0e+00)"
    assert found["clipped sums against opake, micro-batches of 64 (opake 1)"].ours == "differs (1e-02)"
    assert found["opake ÷ plain"].value is not None
    assert any(name.startswith("ours, secret noise ÷ fastest of opake (opake") for name in found)
    assert len(closed) == 2
    monkeypatch.setattr(benchmark, "TOO_SLOW", -1.0)
    slow = benchmark.steps_of(task, True, peers=benchmark.Peers("other", ("opake",)))
    assert [f.ours.endswith(" a step") for f in slow if f.name.endswith(": opake")] == [True]
    assert not any("opake ÷" in f.name for f in slow)
    lost = benchmark.steps_of(task, True, peers=benchmark.Peers("other", ("jax-privacy",)))
    assert [f.ours for f in lost if f.name.endswith(": jax-privacy")] == ["RuntimeError: no such module"]
    assert [f.name for f in benchmark.others(benchmark.Peers("other", ("opake",)))] == ["jax-privacy"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--peers", "/no/such/python"], "--peers /no/such/python: it must be a Python that runs"),
        (["--peers", sys.executable, "--cpu-time"], "Leave --cpu-time out"),
    ],
)
def test_a_python_that_cannot_be_used_is_refused(words: list[str], shown: str, tmp_path: Path) -> None:
    done = run("dp_sgd.py", "--quick", "--only", "noise", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert shown in done.stderr


@pytest.mark.slow
def test_opake_and_jax_privacy_agree_with_ours(tmp_path: Path) -> None:
    """In an environment of their own, as experiments/README.md makes it; needs a package index."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "peers")], check=True)
    python = str(tmp_path / "peers/bin/python")
    wanted = str(FOLDER / "requirements-dp-sgd.txt")
    subprocess.run([python, "-m", "pip", "install", "-q", "-r", wanted], check=True, stdout=subprocess.DEVNULL)
    only = ("logistic", "mlp", "cnn", "transformer")
    done = run("dp_sgd.py", "--quick", "--only", *only, "--peers", python, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    sums = [line for line in done.stdout.splitlines() if "clipped sums against opake" in line]
    sums += [line for line in done.stdout.splitlines() if "clipped sums against jax-privacy" in line]
    assert len(sums) == 8
    assert all("| agrees (" in line for line in sums), sums
    assert "not measured" not in done.stdout


def test_medians_are_of_interleaved_runs_and_ratios_are_judged(benchmark: ModuleType) -> None:
    order: list[str] = []
    steps = {name: benchmark.Step(lambda name=name: order.append(name)) for name in ("a", "b", "c")}
    times = benchmark.race(steps, 3, 1.0)
    assert order == list("aabbcc" + "aabbcc" + "bbccaa" + "ccaabb")  # each turn after an untimed step; one turn untimed
    assert all(0 <= value.least <= value.median for value in times.values())
    at, above = (benchmark.quotient("x", benchmark.Times(v, 1.0), benchmark.Times(2.0, 1.0), 1.5) for v in (3.0, 3.01))
    assert (at.met, above.met) == (True, False)
    assert at.line() == "| x | 3.00 s | 2.00 s | 1.50 × (1.00) | ≤ 1.5 × | met |"
    assert above.line().endswith("| **missed** |")


def test_memory_counts_what_a_step_holds(benchmark: ModuleType, monkeypatch: Any) -> None:
    def step_of(held: int) -> Any:
        return lambda *_: benchmark.Step(lambda: benchmark.discard(lambda: torch.ones(held, dtype=torch.uint8)))

    task = benchmark.TASKS[0]
    if not Path("/proc/self/clear_refs").exists():  # elsewhere the table says so
        assert benchmark.memory_of(task, True)[0].ours.startswith("not measured")
        return
    monkeypatch.setattr(benchmark, "make_step", step_of(2**26))
    big = benchmark.memory_here(task, "any", 8)
    monkeypatch.setattr(benchmark, "make_step", step_of(2**10))
    small = benchmark.memory_here(task, "any", 8)
    assert small < 2**24 < 2**26 - 2**20 < big < 2**26 + 2**24


def test_profile_names_functions_of_ours_and_puts_them_back(modules: dict[str, ModuleType]) -> None:
    before = dict(vars(sgd.clipping))
    text = modules["dp_sgd_profile"].profile(modules["dp_sgd"].TASKS[0], True)
    assert "sgd.engine.Stepper.gradient" in text
    assert "aten::" in text
    assert dict(vars(sgd.clipping)) == before


def test_without_a_device_the_gpu_benchmark_says_so(
    modules: dict[str, ModuleType], monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert modules["gpu"].main() == 0
    assert capsys.readouterr().out == "no CUDA device\n"
