"""save and load: safetensors and JSON, the same predictions, nothing private, damaged files refused."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from estimator_checks import DECLARED, NoNoise, binary_task, three_class_task
from sklearn.exceptions import NotFittedError

from dpml import load
from dpml.errors import ModelError, RunFolderError
from dpml.estimators import DPLinearSVC, DPLogisticRegression, DPSGDClassifier

SHORT: dict[str, Any] = {"expected_batch_size": 100, "steps": 5, "device": "cpu"}


def logistic(**more: Any) -> DPLogisticRegression:
    return DPLogisticRegression(4.0, **{"classes": ["no", "yes"], **DECLARED, **more})


def test_the_loaded_estimator_is_the_saved_one(tmp_path: Path) -> None:
    X, y = binary_task(400)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = logistic().fit(frame, y)
    model.save(tmp_path / "saved")
    assert sorted(os.listdir(tmp_path / "saved")) == ["estimator.json", "model.safetensors"]
    again = DPLogisticRegression.load(tmp_path / "saved")
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    np.testing.assert_array_equal(again.coef_, model.coef_)
    np.testing.assert_array_equal(again.intercept_, model.intercept_)
    assert again.guarantee_ == model.guarantee_
    assert list(again.classes_) == ["no", "yes"]
    assert list(again.feature_names_in_) == ["a", "b", "c"]
    assert again.get_params() == model.get_params()
    assert again.score(frame, y) == model.score(frame, y)
    np.testing.assert_array_equal(load(tmp_path / "saved").predict(X), model.predict(frame))
    again.save(tmp_path / "copy")  # and the loaded one can be saved again
    for name in os.listdir(tmp_path / "saved"):
        assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / "saved" / name).read_bytes()


def test_labels_of_other_types(tmp_path: Path) -> None:
    X, y = three_class_task(400)
    model = DPSGDClassifier(8.0, classes=np.array([10, 20, 30]), hidden=(4,), model="mlp", **DECLARED, **SHORT)
    model.fit(X, y).save(tmp_path / "mlp")
    again = DPSGDClassifier.load(tmp_path / "mlp")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.classes_.dtype.kind == "i"
    assert not hasattr(again, "coef_")


def test_a_module_is_handed_over_again(tmp_path: Path) -> None:
    X, y = binary_task(200)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    model = DPSGDClassifier(8.0, classes=["no", "yes"], model=network, **DECLARED, **SHORT).fit(X, y)
    model.save(tmp_path / "module")
    fresh = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    again = DPSGDClassifier.load(tmp_path / "module", module=fresh)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.model is fresh


def test_what_is_saved_depends_on_no_record_but_through_the_weights(tmp_path: Path) -> None:
    X, y = binary_task(200)
    other = X.copy()
    other[0], label = [9.0, np.nan, 7.0], y.copy()
    label[1] = "unheard of"
    for name, data in (("one", (X, y)), ("two", (other, label))):
        logistic(noise_source=NoNoise()).fit(*data).save(tmp_path / name)
    texts = [(tmp_path / name / "estimator.json").read_text() for name in ("one", "two")]
    assert texts[0] == texts[1]
    assert load(tmp_path / "one").weights["weight"].tolist() != load(tmp_path / "two").weights["weight"].tolist()
    assert "used" not in texts[0]
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("one", "two")]
    assert sizes[0] == sizes[1]


def test_paths_and_live_objects_are_not_written(tmp_path: Path) -> None:
    X, y = binary_task(200)
    ledger = tmp_path / "ledger-of-the-custodian.jsonl"
    model = logistic(noise_source=NoNoise(), dataset_ledger=ledger, dataset_epsilon=9.0, dataset_delta=1e-3)
    model.fit(X, y).save(tmp_path / "saved")
    text = (tmp_path / "saved" / "estimator.json").read_text()
    assert "custodian" not in text
    assert "noise_source" not in text
    assert "NOT PRIVATE" in text  # the guarantee still says what kind of noise it was


def test_folders_that_hold_something_are_left_alone(tmp_path: Path) -> None:
    X, y = binary_task(100)
    model = logistic().fit(X, y)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="not empty; nothing was overwritten"):
        model.save(tmp_path / "full")
    assert os.listdir(tmp_path / "full") == ["thesis.txt"]
    with pytest.raises(RunFolderError, match="cannot be written"):
        model.save(tmp_path / "full" / "thesis.txt")
    with pytest.raises(NotFittedError):
        logistic().save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


DAMAGE: dict[str, Any] = {
    "no JSON": "{",
    "a list": "[]",
    "another format": {"format": 2},
    "no guarantee": {"guarantee": None},
    "a negative epsilon": {"guarantee": {"epsilon": -1.0}},
    "an epsilon that is no number": {"guarantee": {"epsilon": "nan"}},
    "too few names": {"feature_names": ["a"]},
    "another width": {"n_features": 2, "feature_names": None},
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_damaged_files_are_refused(damage: str, tmp_path: Path) -> None:
    X, y = binary_task(100)
    logistic().fit(pd.DataFrame(X, columns=["a", "b", "c"]), y).save(tmp_path / "saved")
    file, change = tmp_path / "saved" / "estimator.json", DAMAGE[damage]
    if isinstance(change, dict):
        content = json.loads(file.read_text())
        for key, value in change.items():
            content[key] = {**content[key], **value} if isinstance(value, dict) else value
        change = json.dumps(content)
    file.write_text(change)
    with pytest.raises(ModelError):
        DPLogisticRegression.load(tmp_path / "saved")


def test_another_estimators_folder_and_an_empty_one_are_refused(tmp_path: Path) -> None:
    X, y = binary_task(100)
    logistic().fit(X, y).save(tmp_path / "saved")
    with pytest.raises(ModelError, match="holds a DPLogisticRegression"):
        DPLinearSVC.load(tmp_path / "saved")
    with pytest.raises(RunFolderError, match=r"no estimator\.json"):
        DPLogisticRegression.load(tmp_path)


def test_pickling_works_too() -> None:
    X, y = binary_task(100)
    model = logistic().fit(X, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))
