"""``experiments/fashion_mnist_cnn.py``: its network, its two kinds of data, what it prints and when it fails."""

from __future__ import annotations

import gzip
import importlib
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpml.sgd import clipped_gradient

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "experiments/fashion_mnist_cnn.py"


@pytest.fixture(name="script")
def _script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    yield importlib.import_module("fashion_mnist_cnn")
    sys.modules.pop("fashion_mnist_cnn", None)


def write_idx(path: Path, values: np.ndarray) -> None:
    header = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


def strict(path: Path) -> Any:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no strict JSON")

    return json.loads(path.read_text("utf-8"), parse_constant=refuse)


# --------------------------------------------------------------------------------------------------------------- runs


def test_a_quick_run_without_the_files_takes_digits(tmp_path: Path) -> None:
    target = tmp_path / "deep/found.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--folder", str(tmp_path), "--json", str(target)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = strict(target)
    assert (found["data"], found["quick"], found["target"]) == ("digits", True, 86.0)
    ours = found["figures"]
    assert 2.99 < ours["epsilon"] <= 3.0
    assert (ours["delta"], ours["neighboring_relation"], ours["steps"]) == (1e-5, "add_remove", 4)
    assert ours["sample_rate"] == pytest.approx(128 / 600)
    assert any("Poisson" in text for text in ours["assumptions"])
    assert not any("NOT PRIVATE" in text or "NOT SECRET" in text for text in ours["assumptions"])
    assert 0.0 <= ours["accuracy"] <= 100.0
    assert ours["seconds"] > 0.0
    assert {"commit", "processor", "dpml", "torch", "numpy", "python"} <= set(found["machine"])
    assert found["settings"]["optimizer"] == "adam"
    assert "does not cover" in found["selection"]
    for text in ("on digits", "86.1", "81.9", "89.7", "not judged"):
        assert text in done.stdout
    assert "step 4/4" in done.stderr


def test_a_quick_run_on_generated_files(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    for part, n in (("train", 700), ("t10k", 60)):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", rng.integers(0, 256, (n, 28, 28)))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", rng.integers(0, 10, n))
    monkeypatch.setattr(script, "RESULTS", tmp_path / "kept.json")
    assert script.main(["--quick", "--folder", str(tmp_path)]) == 0
    assert "this run on fashion_mnist" in capsys.readouterr().out
    assert not (tmp_path / "kept.json").exists()  # a quick run leaves the documented result alone


def test_a_full_run_without_the_files_says_how_to_get_them(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "RESULTS", tmp_path / "kept.json")
    assert script.main(["--folder", str(tmp_path)]) == 2
    assert "dataset-fashion-mnist" in capsys.readouterr().err
    assert not (tmp_path / "kept.json").exists()


@pytest.mark.parametrize(("accuracy", "status", "word"), [(86.0, 0, "met"), (85.99, 1, "MISSED")])
def test_a_full_run_is_judged_and_written(
    script: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    accuracy: float,
    status: int,
    word: str,
) -> None:
    given: dict[str, Any] = {}
    found = {"accuracy": accuracy, "epsilon": 3.0, "steps": 5, "seconds": 1.0, "cpu_seconds": 1.0}
    monkeypatch.setattr(script, "RESULTS", tmp_path / "kept.json")
    monkeypatch.setattr(script, "images", lambda folder, quick: ("fashion_mnist", {}))
    monkeypatch.setattr(script, "private_data", lambda name, parts, quick: None)
    monkeypatch.setattr(script, "train", lambda data, **more: given.update(more))
    monkeypatch.setattr(script, "figures", lambda result, seconds, cpu: found)
    assert script.main(["--epochs", "7", "--seed", "3"]) == status
    out = capsys.readouterr().out
    assert f"target 86.0 %: {word}" in out
    for paper in (86.1, 81.9, 89.7):
        assert f"| {paper} | {accuracy:.2f} | {accuracy - paper:+.2f} |" in out
    assert given == {"epochs": 7.0, "quick": False, "seed": 3}
    content = strict(tmp_path / "kept.json")
    assert content["figures"] == found
    assert [one["difference"] for one in content["published"]] == pytest.approx(
        [accuracy - paper for paper in (86.1, 81.9, 89.7)]
    )
    assert (content["settings"]["epochs"], content["settings"]["seed"]) == (7.0, 3)


# ------------------------------------------------------------------------------------------------------------ network


def test_the_network_has_its_documented_size_and_is_trained_as_a_whole(script: ModuleType) -> None:
    before = torch.get_rng_state()
    model = script.network()
    assert torch.equal(before, torch.get_rng_state())
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert count == (25 + 1) * 16 + 2 * 16 + (16 * 16 + 1) * 32 + 2 * 32 + (32 * 49 + 1) * 10
    assert f"{count:,}" in script.network.__doc__
    assert [type(layer) for layer in model if list(layer.parameters())] == [
        nn.Conv2d, nn.GroupNorm, nn.Conv2d, nn.GroupNorm, nn.Linear,
    ]  # fmt: skip
    assert sum(isinstance(layer, nn.Tanh) for layer in model) == 2
    assert torch.equal(model(torch.rand(3, 1, 28, 28) * 255), torch.zeros(3, 10))  # the head starts at zero
    same, other = script.network(0), script.network(1)
    assert torch.equal(model[4].weight, same[4].weight)
    assert not torch.equal(model[4].weight, other[4].weight)


def test_pixels_and_filters_follow_from_formulas(script: ModuleType) -> None:
    assert script.Pixels()(torch.tensor([0.0, 127.5, 255.0])).tolist() == [-1.0, 0.0, 1.0]
    filters = script.gabor_filters(5)
    assert filters.shape == (16, 1, 5, 5)
    torch.testing.assert_close(filters.flatten(1).norm(dim=1), torch.ones(16))
    axis = np.arange(5) - 2.0
    window = np.exp(-(axis[:, None] ** 2 + axis**2) / (2 * 1.5**2))
    sine = window * np.sin(2 * np.pi * 0.12 * axis)  # the wave along x: varies from column to column
    np.testing.assert_allclose(filters[1, 0].numpy(), sine / np.sqrt((sine**2).sum()), atol=1e-6)
    assert abs(float((filters[::2, 0] * torch.from_numpy(window)).sum((1, 2)).abs().max())) < 1e-6
    torch.testing.assert_close(filters.flip(2, 3)[1::2], -filters[1::2])  # sines are odd
    torch.testing.assert_close(filters.flip(2, 3)[::2], filters[::2])  # cosines are even


def test_its_clipped_gradients_are_those_of_a_loop_over_records(script: ModuleType) -> None:
    torch.manual_seed(0)
    model = script.network().double()
    nn.init.normal_(model[-1].weight, std=0.1)
    X, y = torch.rand(6, 1, 28, 28, dtype=torch.float64) * 255, torch.arange(6)

    def losses(module: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")

    sums, norms = clipped_gradient(model, losses, (X, y), 2.0, engine="one_backward")
    names = [name for name, _ in model.named_parameters()]
    wanted = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for i in range(6):
        gradients = torch.autograd.grad(losses(model, (X[i : i + 1], y[i : i + 1])).sum(), list(model.parameters()))
        norm = torch.sqrt(sum((g**2).sum() for g in gradients))  # type: ignore[arg-type]
        assert float(norms[i]) == pytest.approx(float(norm), rel=1e-10)
        for name, gradient in zip(names, gradients, strict=True):
            wanted[name] += gradient * min(1.0, 2.0 / float(norm))
    for name in names:
        torch.testing.assert_close(sums[name], wanted[name].detach(), rtol=1e-9, atol=1e-11)
