"""The charged centre of image features: its event, its exact sum, whole runs, a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import image_checks as checks
import numpy as np
import pytest
from image_checks import center_trainer, few_public_images
from sklearn.datasets import load_digits

from dpml import PrivateData, PrivateTrainer, accounting, load, running
from dpml.errors import ConfigError, RunFolderError
from dpml.mechanisms import FixedNoise
from dpml.release import RunFolder
from dpml.stages import plan_stages
from dpml.stages.center import CenterFinder

__all__ = ["few_public_images"]
pytestmark = pytest.mark.usefixtures("few_public_images")


def test_the_center_is_charged_as_it_is_noised() -> None:
    checks.check_the_center_is_charged_as_it_is_noised()


def test_one_record_moves_the_sum_by_at_most_one() -> None:
    checks.check_one_record_moves_the_sum_by_at_most_one()


def test_the_center_is_charged_first_and_noisy(tmp_path: Path) -> None:
    checks.check_the_center_is_charged_first_and_noisy(tmp_path)


def test_the_center_of_no_records_is_noise_alone() -> None:
    found = CenterFinder(4, 10, 1.0, 1e-5, "add_remove").release(np.zeros((0, 4), np.float32), FixedNoise(0))
    assert found["dimension"] == 4
    assert found["noise_std"] == pytest.approx(0.373, rel=0.01)  # s(1, 1e-5) = 3.7306, over 10 declared records


@pytest.mark.parametrize("method", ["dp_sgd", "objective", "output"])
def test_a_run_with_a_center_stays_within_its_budget(method: str, tmp_path: Path) -> None:
    """The whole costs at most ε; the release scores raw images as the run scored its features."""
    trainer = center_trainer(run_dir=tmp_path / "run")
    if method != "dp_sgd":
        trainer = PrivateTrainer(
            "logreg", method, epsilon=2.0, delta=1e-5, shares={"center": 0.1}, run_dir=tmp_path / "run"
        )
    result = trainer.fit(PrivateData.digits("gabor"))
    assert 1.5 < result.guarantee.epsilon <= 2.0
    written = json.loads((tmp_path / "run/release/result.json").read_text())
    assert set(written["stages"]) == {"center"}
    assert set(written["stages"]["center"]) == {"how", "dimension", "noise_std"}
    assert written["plan"]["stages"]["center"]["share"] == 0.1
    assert accounting.verify(tmp_path / "run").ok
    X, y = load_digits(return_X_y=True)
    test = np.arange(len(X)) % 5 == 4
    model = load(tmp_path / "run/release")
    accuracy = (model.predict(X[test].reshape(-1, 8, 8)) == y[test]).mean()
    assert accuracy == pytest.approx(written["metrics"]["accuracy"])
    assert json.loads((tmp_path / "run/release/schema.json").read_text())["preprocessing"]["center"] is None


def test_a_resumed_run_has_the_same_center(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = PrivateData.digits("gabor")
    real = running.write_checkpoint

    def stop(folder: RunFolder, state: Any) -> None:
        real(folder, state)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(running, "write_checkpoint", stop)
        with pytest.raises(KeyboardInterrupt):
            center_trainer(run_dir=tmp_path / "run").fit(data)
    kept = json.loads((tmp_path / "run/private/stages.json").read_text())["center"]
    result = PrivateTrainer.resume(tmp_path / "run", data)
    assert result.model.preprocessing["center"] == kept["values"]
    lines = accounting.read_ledger(tmp_path / "run/release/ledger.jsonl").charges
    assert [line["stage"] for line in lines].count("center") == 1
    assert accounting.verify(tmp_path / "run").ok


def test_a_center_that_was_changed_or_lost_stops_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = PrivateData.digits("gabor")

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpml.trainer.train_by_plan", stop)
        with pytest.raises(KeyboardInterrupt):
            center_trainer(run_dir=tmp_path / "run").fit(data)
    path = tmp_path / "run/private/stages.json"
    content = json.loads(path.read_text())
    other = CenterFinder(144, 1438, 1.0, 1e-5, "add_remove").release(np.zeros((0, 144), np.float32), FixedNoise(0))
    path.write_text(json.dumps({"center": other}))
    with pytest.raises(ConfigError, match="the data are not those that the run started with"):
        PrivateTrainer.resume(tmp_path / "run", data)
    path.write_text("{}")
    with pytest.raises(RunFolderError, match="not run again"):
        PrivateTrainer.resume(tmp_path / "run", data)
    path.write_text(json.dumps(content))
    assert PrivateTrainer.resume(tmp_path / "run", data).model.preprocessing["center"] == content["center"]["values"]


def test_a_record_changes_no_plan_and_no_charge(tmp_path: Path) -> None:
    """Neighbours: plans, charges and the names of files are equal; so are stages, but for what is noise."""
    seen = []
    for n in (60, 59):
        images, labels = checks.some_images(60)[:n], ([0, 1] * 30)[:n]
        data = PrivateData.from_images(images, labels, classes=[0, 1], n_declared=60, features="gabor")
        trainer = center_trainer(expected_batch_size=20, delta=1e-3, run_dir=tmp_path / str(n))
        result = trainer.fit(data)
        release = tmp_path / str(n) / "release"
        seen.append((result.plan.to_dict(), result.stages, sorted(path.name for path in release.iterdir()),
                     (release / "schema.json").read_text()))  # fmt: skip
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("data", "delta", "message"),
    [
        (PrivateData.digits(), 1e-5, "no features of images"),
        (PrivateData.bundled("adult"), 1e-5, "no features of images"),
        (PrivateData.digits("gabor"), 0.0, "delta = 0"),
    ],
)
def test_a_center_that_cannot_be_found_is_refused(data: PrivateData, delta: float, message: str) -> None:
    options: dict[str, Any] = {"model": "softmax", "method": "dp_sgd", "epsilon": 1.0}
    with pytest.raises(ConfigError, match=message):
        plan_stages({"center": 0.1}, data.public, delta=delta, neighboring_relation="add_remove", **options)
