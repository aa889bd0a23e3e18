"""``python -m dpml.predict`` and loading released files safely."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file
from small_tables import people, write_people

from dpml import PrivateData, PrivateTrainer, load, predict
from dpml.errors import ModelError, RunFolderError


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


def test_a_row_with_strange_cells_is_scored_too(run: Path, tmp_path: Path) -> None:
    table = tmp_path / "new.csv"
    table.write_text("age,money,town\n,x,nowhere\n1e99,-3,a\n")
    assert predict.main([str(run), str(table), "-o", str(tmp_path / "s.csv")]) == 0
    assert len(pd.read_csv(tmp_path / "s.csv")) == 2


@pytest.mark.parametrize(
    ("release", "table", "message"),
    [
        ("nowhere", "new.csv", "no model.safetensors"),
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
