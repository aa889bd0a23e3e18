"""Whitening by public records in runs: the released model, its report, resume, searches and the command line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pandas as pd
import pytest
from hydra.core.global_hydra import GlobalHydra
from small_tables import people
from whitening_checks import arrays, correlated, expected_rows, with_public

from dpml import PrivateData, PrivateSearch, PrivateTrainer, load, predict, verify
from dpml import config as configuration
from dpml.data import PublicWhitening
from dpml.errors import ConfigError, ModelError
from dpml.mechanisms import FixedNoise
from dpml.report import __main__ as report

SAYS = "the 200 records of the public file (SHA-256 %s…) are public, none of them is among those"


@pytest.mark.parametrize("method", ["objective", "dp_sgd"])
def test_a_released_model_has_the_features_of_its_training(method: str, tmp_path: Path) -> None:
    data = with_public(tmp_path)
    settings = {"steps": 5} if method == "dp_sgd" else {}
    result = PrivateTrainer(method=method, epsilon=2.0, delta=1e-4, run_dir=tmp_path / "run", **settings).fit(data)
    model, frame = load(tmp_path / "run"), people()
    X = data.load(FixedNoise(0)).X
    assert np.array_equal(model.features(frame), X)
    assert np.array_equal(model.features(frame[100:101]), X[100:101])
    np.testing.assert_allclose(X, expected_rows(frame, people(200, seed=7)), rtol=1e-9, atol=1e-11)
    assert predict.main([str(tmp_path / "run"), str(tmp_path / "people.csv"), "-o", str(tmp_path / "s.csv")]) == 0
    scores = pd.read_csv(tmp_path / "s.csv")["probability yes"].to_numpy()
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-X @ result.model.weights["weight"])), rtol=1e-9)
    digest = hashlib.sha256((tmp_path / "public.csv").read_bytes()).hexdigest()
    written = json.loads((tmp_path / "run/release/result.json").read_text())
    assert written["data"]["whitening"]["sha256"] == digest
    assert written["data"]["whitening"]["records"] == 200
    (said,) = [line for line in written["assumptions"] if "whitened" in line]
    assert SAYS % digest[:12] in said
    assert verify.main([str(tmp_path / "run")]) == 0
    assert report.main([str(tmp_path / "run")]) == 0
    assert said in (tmp_path / "run/release/report.html").read_text("utf-8")


def test_a_damaged_map_in_a_release_is_refused(tmp_path: Path) -> None:
    PrivateTrainer(method="objective", epsilon=2.0, delta=1e-4, run_dir=tmp_path / "run").fit(with_public(tmp_path))
    file = tmp_path / "run/release/model.safetensors"
    raw = file.read_bytes()
    place = raw.index(b"features") + len(b'features\\": ')
    file.write_bytes(raw[:place] + b"3" + raw[place + 1 :])
    with pytest.raises(ModelError, match="not a dpml model file"):
        load(tmp_path / "run")


def killed(data: PrivateData, folder: Path) -> None:
    def stop(step: int, *_: Any) -> None:
        if step == 3:
            raise KeyboardInterrupt

    trainer = PrivateTrainer(method="dp_sgd", epsilon=2.0, delta=1e-4, steps=8, checkpoint_every=2, run_dir=folder)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(data, progress=stop)


def test_a_changed_public_file_is_named_by_resume(tmp_path: Path) -> None:
    killed(with_public(tmp_path), tmp_path / "run")
    other = with_public(tmp_path, people(199, seed=7).drop(columns="label"))
    with pytest.raises(ConfigError, match=r"data\.whitening\.records: 200 → 199; data\.whitening\.sha256: '"):
        PrivateTrainer.resume(tmp_path / "run", other)
    without = PrivateData.from_table(tmp_path / "people.csv", schema=tmp_path / "people.json")
    with pytest.raises(ConfigError, match=r"data\.whitening: .* → None"):
        PrivateTrainer.resume(tmp_path / "run", without)
    assert PrivateTrainer.resume(tmp_path / "run", with_public(tmp_path)).guarantee.epsilon <= 2.0


def test_another_whitening_of_arrays_is_named_by_resume(tmp_path: Path) -> None:
    X = correlated(50, 4, 2)
    killed(arrays(X, PublicWhitening.from_rows(correlated(80, 4, 1)), n_declared=500), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"data\.whitening\.map_sha256"):
        PrivateTrainer.resume(
            tmp_path / "run", arrays(X, PublicWhitening.from_rows(correlated(80, 4, 3)), n_declared=500)
        )


def test_arrays_and_searches_say_what_they_assume(tmp_path: Path) -> None:
    data = arrays(correlated(50, 4, 2), PublicWhitening.from_covariance(np.eye(4) + 0.1), n_declared=500)
    text = "the records whose mean and covariance were given are public, none of them"
    result = PrivateTrainer(method="objective", epsilon=1.0, delta=1e-5, run_dir=tmp_path / "run").fit(data)
    assert sum(text in line for line in result.guarantee.assumptions) == 1
    assert np.array_equal(load(tmp_path / "run").features(correlated(50, 4, 2)), data.load(FixedNoise(0)).X)
    search = PrivateSearch(
        {"solution_norm": [5.0, 15.0]}, {"method": "objective"}, epsilon=1.0, delta=1e-5, holdout=0.2
    )
    assert sum(text in line for line in search.plan(data).guarantee.assumptions) == 1


# -- the command line -------------------------------------------------------------------------------------------------
def test_the_config_key_reaches_the_data_and_its_folder_stays_private(tmp_path: Path) -> None:
    with_public(tmp_path)
    GlobalHydra.instance().clear()
    configuration.register()
    with hydra.initialize_config_dir(str(configuration.config_folder()), version_base="1.3"):
        words = [f"data.path={tmp_path}/people.csv", f"data.schema={tmp_path}/people.json", "data=table"]
        composed = hydra.compose(
            "config", overrides=["model=logreg", "method=objective", *words, f"data.public_path={tmp_path}/public.csv"]
        )
    configuration.check(composed)
    assert configuration.build_data(composed).public.source["whitening"]["records"] == 200
    assert "public_path: public.csv" in configuration.public_text(composed)
    assert str(tmp_path) not in configuration.public_text(composed)
