"""``experiments/fashion_mnist.py`` and its configuration: settings, splits, what is printed and written."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hydra
import numpy as np
import pytest
from hydra.core.global_hydra import GlobalHydra
from image_checks import few_public_images, write_idx

from dpml import config as configuration
from dpml.mechanisms import FixedNoise

__all__ = ["few_public_images"]
pytestmark = pytest.mark.usefixtures("few_public_images")
SCRIPT = Path(__file__).resolve().parents[2] / "experiments/fashion_mnist.py"


@pytest.fixture(name="script")
def _script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    yield importlib.import_module("fashion_mnist")
    sys.modules.pop("fashion_mnist", None)


def strict(path: Path) -> Any:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no strict JSON")

    return json.loads(path.read_text("utf-8"), parse_constant=refuse)


def test_a_quick_run_prints_and_writes_what_a_full_one_does(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, target = write_idx(tmp_path / "idx", 450, 30, (12, 12)), tmp_path / "deep/found.json"
    arguments = ["--quick", "--folder", str(folder), "--json", str(target), "--seeds", "0", "1", "--epsilons", "1", "3"]
    assert script.main(arguments) == 0
    shown = capsys.readouterr().out
    for text in ("| 1 | 86.3 |", "| 3 | 89.7 |", "Tramèr & Boneh (2021)", "(2)", "not judged"):
        assert text in shown
    found = strict(target)
    assert [(run["asked_epsilon"], run["seed"]) for run in found["runs"]] == [(1.0, 0), (3.0, 0), (1.0, 1), (3.0, 1)]
    for run in found["runs"]:
        assert 0.98 * run["asked_epsilon"] < run["epsilon"] <= run["asked_epsilon"]
        assert (run["delta"], run["neighboring_relation"], run["accountant"]) == (1e-5, "add_remove", "exact")
        assert run["sample_rate"] == pytest.approx(64 / 400)
        assert run["center"]["how"] == "charged noise"
        assert any("Poisson" in text for text in run["assumptions"])
        assert not any("NOT PRIVATE" in text for text in run["assumptions"])
    for line in found["summary"]:
        ours = [run["accuracy"] for run in found["runs"] if run["asked_epsilon"] == line["epsilon"]]
        assert line["mean"] == pytest.approx(sum(ours) / 2)
        assert line["difference"] == pytest.approx(line["mean"] - line["paper"])
    assert "50,000/10,000 split" in found["selection"]
    assert {"commit", "processor", "dpml", "torch", "numpy", "scipy"} <= set(found["machine"])


def test_a_quick_run_without_the_files_takes_digits(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "RESULTS", tmp_path / "kept.json")
    assert script.main(["--quick", "--folder", str(tmp_path), "--epsilons", "3", "--seeds", "0"]) == 0
    assert "| 3 | 89.7 |" in capsys.readouterr().out
    assert not (tmp_path / "kept.json").exists()


def test_a_full_run_without_the_files_says_how_to_get_them(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "RESULTS", tmp_path / "kept.json")
    assert script.main(["--folder", str(tmp_path), "--cache", "off"]) == 2
    assert "dataset-fashion-mnist" in capsys.readouterr().err
    assert not (tmp_path / "kept.json").exists()


@pytest.mark.parametrize(("accuracy", "status", "word"), [(91.2, 0, "met"), (91.19, 1, "MISSED")])
def test_a_full_run_is_judged_and_written(
    script: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    accuracy: float,
    status: int,
    word: str,
) -> None:
    monkeypatch.setattr(script, "RESULTS", tmp_path / "kept.json")
    made = [{"asked_epsilon": 3.0, "seed": seed, "accuracy": accuracy} for seed in range(3)]
    monkeypatch.setattr(script, "runs", lambda options: iter(made))
    assert script.main([]) == status
    assert f"targets 90.0, 90.9, 91.2 %: {word}" in capsys.readouterr().out
    content = strict(tmp_path / "kept.json")
    assert content["summary"][0]["sd"] == pytest.approx(0.0, abs=1e-12)
    assert content["settings"]["learning_rates"] == {"1": 170.0, "2": 360.0, "3": 500.0}


def test_validation_never_sees_the_test_set(script: ModuleType, tmp_path: Path) -> None:
    """Its records are the training images; five sixths train and one sixth is scored."""
    data = script.source(write_idx(tmp_path / "idx", 60, 20), str(tmp_path / "cache"), progress=False)
    split, whole = script.validation(data), data.load(FixedNoise(0))
    records = split.load(FixedNoise(0))
    assert split.public.n_declared == 50_000
    held = np.arange(60) % 6 == 5
    assert np.array_equal(records.X, whole.X[~held])
    assert np.array_equal(records.X_test, whole.X[held])
    assert np.array_equal(records.y_test, whole.y[held])
    assert script.settings(3.0, 50_000, False)["learning_rate"] == pytest.approx(500 / 1.2)
    assert script.settings(3.0, 50_000, False)["expected_batch_size"] == 6826


def test_the_configuration_has_the_scripts_settings(script: ModuleType) -> None:
    GlobalHydra.instance().clear()
    configuration.register()
    with hydra.initialize_config_dir(str(configuration.config_folder()), version_base="1.3"):
        composed = hydra.compose("config", overrides=["+experiment=fashion_mnist_scatter"])
    wanted = script.settings(composed.privacy.epsilon, 60_000, False)
    shares = wanted.pop("shares")
    assert {name: composed.method[name] for name in wanted} == wanted
    assert {name: share for name, share in composed.privacy.shares.items() if share} == shares
    assert (composed.data.features, composed.privacy.delta) == (script.FEATURES, script.DELTA)
    text = (configuration.config_folder() / "experiment/fashion_mnist_scatter.yaml").read_text("utf-8")
    for epsilon, rate in script.RATES.items():
        assert f"{rate:g} for epsilon {epsilon:g}" in text or f"for epsilon {epsilon:g}; " in text


def test_the_experiment_runs_on_small_generated_files(cli: Any, tmp_path: Path) -> None:
    folder = write_idx(tmp_path / "idx", 300, 40, (12, 12))
    status, out, err = cli(
        "+experiment=fashion_mnist_scatter", f"data.folder={folder}", f"data.cache={tmp_path / 'cache'}",
        "method.steps=3", "method.learning_rate=10", "hydra.run.dir=here",
    )  # fmt: skip
    assert status == 0, err
    result = json.loads((tmp_path / "here/result.json").read_text())
    assert result["plan"]["data"]["n_features"] == 81 * 9 + 9 * 36 + 1
    assert result["stages"]["center"]["how"] == "charged noise"
    assert "accuracy" in out
    published = "".join(path.read_text("utf-8", "replace") for path in (tmp_path / "here/release").iterdir())
    assert str(tmp_path) not in published  # neither the folder nor the cache


def test_unknown_features_are_refused_before_anything_runs(cli: Any, tmp_path: Path) -> None:
    status, _, err = cli("data=digits", "data.features=wavelet", "model=softmax", "hydra.run.dir=here")
    assert status == 1
    assert "data.features = 'wavelet' is not allowed" in err
    assert not (tmp_path / "here").exists()
