"""``python -m dpml.predict`` and loading released files safely."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file
from scipy import sparse
from small_tables import SCHEMA, people, write_people

from dpml import PrivateData, PrivateTrainer, load, predict
from dpml.data import Schema
from dpml.data.transform import array_preprocessing
from dpml.errors import DataError, ModelError, RunFolderError
from dpml.release import PrivateModel, class_scores


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict")
    table, schema = write_people(folder)
    data = PrivateData.from_table(table, schema=schema)
    PrivateTrainer(epsilon=8.0, delta=1e-4, run_dir=folder / "run").fit(data)
    return folder / "run"


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_scores_of_every_format_agree(run: Path, tmp_path: Path, suffix: str) -> None:
    new = people(25, seed=3)
    table = tmp_path / f"new{suffix}"
    new.to_parquet(table) if suffix == ".parquet" else new.to_csv(table, index=False)
    assert predict.main([str(run / "release"), str(table), "-o", str(tmp_path / "scores.csv")]) == 0
    scores = pd.read_csv(tmp_path / "scores.csv")
    expected = load(run).predict_proba(new)
    np.testing.assert_allclose(scores[["probability no", "probability yes"]], expected, rtol=1e-9)
    assert list(scores["prediction"]) == list(load(run).predict(new))


def test_a_row_with_strange_cells_is_scored_too_and_they_are_counted(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "new.csv"
    table.write_text("age,money,town\n,x,nowhere\n1e99,-3,a\n")
    assert predict.main([str(run), str(table), "-o", str(tmp_path / "s.csv")]) == 0
    assert len(pd.read_csv(tmp_path / "s.csv")) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("note: cells that the schema does not allow, scored as in training: age 2, money 2, town 1")
    people(5, seed=3).to_csv(table, index=False)
    assert predict.main([str(run), str(table), "-o", str(tmp_path / "s.csv")]) == 0
    assert "town" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("release", "table", "message"),
    [
        ("nowhere", "new.csv", "there is no folder"),
        ("run", "nowhere.csv", "nowhere.csv"),
        ("run", "half.csv", "money"),
    ],
)
def test_bad_input_gets_a_message(
    release: str, table: str, message: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people(3).to_csv(tmp_path / "new.csv", index=False)
    people(3).drop(columns="money").to_csv(tmp_path / "half.csv", index=False)
    source = str(run) if release == "run" else str(tmp_path / release)
    assert predict.main([source, str(tmp_path / table)]) == 1
    assert message in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error(run: Path, tmp_path: Path) -> None:
    people(20_000).to_csv(tmp_path / "new.csv", index=False)  # more than a pipe holds
    words = [sys.executable, "-m", "dpml.predict", str(run), str(tmp_path / "new.csv")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("row,prediction")
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_loading_runs_no_code_and_refuses_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04cposix\nsystem\n.")  # a pickle in disguise
    with pytest.raises(ModelError, match="not a dpml model file"):
        load(tmp_path)
    save_file({"weight": np.zeros(3)}, tmp_path / "model.safetensors", metadata={"dpml": '{"format": 99}'})
    with pytest.raises(ModelError, match="format 99"):
        load(tmp_path)
    save_file({"weight": np.zeros(3)}, tmp_path / "model.safetensors", metadata={"dpml": '{"format": 1, "classes": [0'})
    with pytest.raises(ModelError, match="not a dpml model file"):
        load(tmp_path)
    for header in ({}, {"dpml": "[]"}, {"dpml": '{"format": 1, "kind": "logreg"}'}):
        save_file({"weight": np.zeros(3)}, tmp_path / "model.safetensors", metadata=header)
        with pytest.raises(ModelError, match="not a dpml model file"):
            load(tmp_path)
    with pytest.raises(RunFolderError, match="unfinished"):
        load(tmp_path / "missing")


# ------------------------------------------------------------------------------------------------- kinds of models

ROWS = np.array([[0.6, 0.8], [-0.6, 0.8], [0.0, 0.0], [1.0, 0.0]])


def array_model(kind: str, weight: Any, classes: tuple[Any, ...] = (), **settings: Any) -> PrivateModel:
    preprocessing = array_preprocessing((2,), norm_bound=1.0)
    return PrivateModel(kind, {"weight": np.asarray(weight)}, classes, preprocessing, settings=settings)


def reloaded(model: PrivateModel, folder: Path) -> PrivateModel:
    (folder / "model.safetensors").write_bytes(model.to_bytes())
    return load(folder)


@pytest.mark.parametrize("kind", ["ridge", "huber"])
def test_regression_predicts_in_units_and_within_the_bounds(kind: str, tmp_path: Path) -> None:
    model = array_model(kind, [2.0, -0.5], target_bounds=[100, 300])
    # scores 0.8, -1.6, 0, 2
    expected = [280.0, 100.0, 200.0, 300.0]
    for one in (model, reloaded(model, tmp_path)):
        assert one.is_regression
        assert one.target_bounds == (100.0, 300.0)
        np.testing.assert_allclose(one.predict(ROWS), expected, rtol=1e-12)
        np.testing.assert_allclose(one.predict(sparse.csr_array(ROWS)), expected, rtol=1e-12)
        np.testing.assert_allclose(one.decision_function(ROWS), [0.8, -1.6, 0.0, 2.0], atol=1e-12)
        assert one.predict(ROWS).dtype == np.float64
        with pytest.raises(ModelError, match=f"a {kind} model predicts numbers.*use predict"):
            one.predict_proba(ROWS)


def test_regression_scores_are_in_units() -> None:
    model = array_model("ridge", [2.0, -0.5], target_bounds=[100, 300])
    targets = np.array([0.5, -1.0, 0.0, 0.9])  # 250, 100, 200, 290: errors 30, 0, 0, 10
    scores = class_scores(model, ROWS, targets)
    assert scores["rmse"] == pytest.approx(np.sqrt(1000 / 4))
    assert scores["mae"] == pytest.approx(10.0)
    truth = np.array([250.0, 100.0, 200.0, 290.0])
    assert scores["r2"] == pytest.approx(1 - 1000 / ((truth - truth.mean()) ** 2).sum())
    assert class_scores(model, sparse.csr_array(ROWS), targets) == pytest.approx(scores)
    assert set(class_scores(model, ROWS, np.zeros(4))) == {"rmse", "mae"}, "no spread, no R²"
    assert class_scores(model, ROWS[:0], np.zeros(0)) == {}


def test_a_regression_without_bounds_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no target_bounds"):
        reloaded(array_model("ridge", [1.0, 1.0]), tmp_path)


def test_linear_svm_decides_by_sign_and_has_no_probabilities(tmp_path: Path) -> None:
    model = reloaded(array_model("linear_svm", [2.0, -0.5], ("no", "yes")), tmp_path)
    assert list(model.predict(ROWS)) == ["yes", "no", "no", "yes"]
    np.testing.assert_allclose(model.decision_function(ROWS), [0.8, -1.6, 0.0, 2.0], atol=1e-12)
    with pytest.raises(ModelError, match=r"no probability model: use decision_function.*model='logreg'"):
        model.predict_proba(ROWS)
    scores = class_scores(model, ROWS, np.array([1, 0, 1, 0]))
    assert scores["accuracy"] == 0.5
    assert scores["loss"] == pytest.approx((0.2 + 0.0 + 1.0 + 3.0) / 4)
    assert scores["auc"] == pytest.approx(0.5)  # of the 4 pairs, 0.8 > -1.6 and 0 > -1.6 are in order


def test_linear_svm_with_three_classes_takes_the_largest_score(tmp_path: Path) -> None:
    model = reloaded(array_model("linear_svm", [[1.0, 0.0], [-1.0, 0.0], [0.0, 0.1]], (5, 6, 7)), tmp_path)
    assert list(model.predict(ROWS)) == [5, 6, 5, 5]
    assert model.decision_function(ROWS).shape == (4, 3)
    assert set(class_scores(model, ROWS, np.array([0, 1, 2, 0]))) == {"accuracy", "loss"}


def test_one_vs_rest_probabilities_are_normalised_sigmoids(tmp_path: Path) -> None:
    weight = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0]])
    model = reloaded(array_model("logreg", weight, ("a", "b", "c")), tmp_path)
    sigmoids = 1 / (1 + np.exp(-ROWS @ weight.T))
    expected = sigmoids / sigmoids.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(ROWS), expected, rtol=1e-12)
    np.testing.assert_allclose(model.predict_proba(sparse.csr_array(ROWS)), expected, rtol=1e-12)
    assert list(model.predict(ROWS)) == ["c", "c", "a", "a"]
    far = array_model("logreg", -2000.0 * np.abs(weight) - 1.0, ("a", "b", "c")).predict_proba(ROWS)
    np.testing.assert_allclose(far.sum(axis=1), 1.0, rtol=1e-12, err_msg="sigmoids that underflow")


def test_binary_logreg_and_softmax_are_as_before(tmp_path: Path) -> None:
    binary = reloaded(array_model("logreg", [1.0, 0.0], (0, 1)), tmp_path)
    np.testing.assert_allclose(binary.predict_proba(ROWS)[:, 1], 1 / (1 + np.exp(-ROWS[:, 0])), rtol=1e-12)
    soft = reloaded(array_model("softmax", [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], (0, 1, 2)), tmp_path)
    scores = np.exp(ROWS @ np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]).T)
    np.testing.assert_allclose(soft.predict_proba(ROWS), scores / scores.sum(axis=1, keepdims=True), rtol=1e-12)
    with pytest.raises(DataError, match="takes"):
        binary.probabilities(np.ones((2, 5)))


def table_release(folder: Path, kind: str, weight: Any, target: dict[str, Any], **settings: Any) -> Path:
    schema = Schema.from_dict({**SCHEMA, "target": target})
    model = PrivateModel(kind, {"weight": np.asarray(weight)}, schema.classes, {"kind": "table"}, settings=settings)
    (folder / "model.safetensors").write_bytes(model.to_bytes())
    (folder / "schema.json").write_text(json.dumps(schema.to_dict()), "utf-8")
    return folder


def scored(folder: Path, tmp_path: Path) -> pd.DataFrame:
    people(9, seed=5).drop(columns="label").to_csv(tmp_path / "new.csv", index=False)
    assert predict.main([str(folder), str(tmp_path / "new.csv"), "-o", str(tmp_path / "scores.csv")]) == 0
    return pd.read_csv(tmp_path / "scores.csv", index_col="row")


def test_the_command_line_writes_one_prediction_of_a_regression(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=13)
    bounds = [0.0, 50.0]
    folder = table_release(tmp_path, "huber", weight, {"name": "label", "bounds": bounds}, target_bounds=bounds)
    scores = scored(folder, tmp_path)
    assert list(scores.columns) == ["prediction"]
    np.testing.assert_allclose(scores["prediction"], load(folder).predict(people(9, seed=5)), rtol=1e-9)
    assert scores["prediction"].between(0, 50).all()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_command_line_writes_scores_of_a_linear_svm(n_classes: int, tmp_path: Path) -> None:
    classes = ["x", "y", "z"][:n_classes]
    weight = np.random.default_rng(0).normal(size=(3, 13)) if n_classes == 3 else np.ones(13)
    folder = table_release(tmp_path, "linear_svm", weight, {"name": "label", "classes": classes})
    scores = scored(folder, tmp_path)
    named = classes if n_classes == 3 else ["y"]
    assert list(scores.columns) == ["prediction", *(f"score {name}" for name in named)]
    assert list(scores["prediction"]) == list(load(folder).predict(people(9, seed=5)))
