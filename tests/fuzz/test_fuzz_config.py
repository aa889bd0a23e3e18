"""Configurations with something wrong in them: refused before a record is read, by an error that says what is wrong."""

# ruff: noqa: PT017 (a refusal is one of two outcomes here; its message is looked at where it occurs)
from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra
import pytest
from fuzz_inputs import examples, search
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from small_tables import people, write_people
from yaml import YAMLError

from dpml import config as configuration
from dpml.errors import DpmlError

KEYS = [
    "privacy.epsilon", "privacy.delta", "privacy.neighboring_relation", "privacy.accountant", "privacy.shares.metrics",
    "privacy.shares.labels", "privacy.dataset_ledger", "privacy.dataset_epsilon", "privacy.dataset_delta",
    "privacy.dataset_filter", "method.name", "model.name", "data.name", "method.steps", "method.epochs",
    "method.noise_multiplier", "method.max_grad_norm", "method.expected_batch_size", "method.learning_rate",
    "method.momentum", "method.solution_norm", "method.regularization", "method.variant", "method.micro_batch_size",
    "method.checkpoint_every", "method.optimizer", "method.betas", "method.clipping", "method.sampling",
    "method.schedule", "method.averaging", "method.averaging_share", "method.count_noise", "method.gradients",
    "model.loss_parameter", "guidance.excess_risk", "guidance.enforce", "device", "seed", "verbose", "report",
    "data.path",
    "data.schema", "data.test_path", "data.split_column", "data.test_fraction", "privacy.epsilonn", "x",
]  # fmt: skip
VALUES = [
    "", "null", "true", "0", "-1", "1", "2", "0.1", "0.5", "1e-5", "1e-400", "1e400", "nan", "inf", "-inf",
    "1" + "0" * 400,
    str(10**15), str(2**63), "auto", "none", "dp_sgd", "output", "objective", "dp_gd", "adassp", "nonprivate",
    "logreg", "mlp",
    "softmax", "ridge", "synthetic", "digits", "adult", "table", "replace_one", "rdp", "zcdp", "pld", "exact", "adam",
    "per_layer", "adaptive", "fixed_size", "cuda", "cuda:99", "gpu", "[]", "[1]", "[0,-1]", "[a]", "{}",
    "{a:1}", "'x y'",
    "/", "/nowhere/x.csv", ".", "label", "a,b", "${seed}", "${nowhere}", "???", "é", "\\", "[" * 50, "x" * 5000,
]  # fmt: skip
OVERRIDE = st.builds("{}={}".format, st.sampled_from(KEYS), st.sampled_from(VALUES) | st.floats().map(str))
METHODS = ("auto", "dp_sgd", "output", "objective", "dp_gd")
REFUSED_BY_HYDRA = (HydraException, OmegaConfBaseException)
"""What ``hydra.main`` prints as one line, without a traceback."""


@pytest.fixture
def composed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, DictConfig]:
    """The configuration of a small table, by method."""
    monkeypatch.chdir(tmp_path)
    table, schema = write_people(tmp_path / "data", people(60))
    configuration.register()
    GlobalHydra.instance().clear()
    own = ["data=table", f"data.path={table}", f"data.schema={schema}", "model=logreg"]
    with hydra.initialize_config_dir(str(configuration.config_folder()), version_base="1.3"):
        found = {method: hydra.compose("config", overrides=[*own, f"method={method}"]) for method in METHODS}
    GlobalHydra.instance().clear()
    return found


@examples(150)
def test_a_strange_configuration_is_refused_before_a_record_is_read(
    inputs: int, composed: dict[str, DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overrides go through the typed configuration as Hydra's do (composing anew takes too long for so many)."""
    reads = []
    monkeypatch.setattr("dpml.data.table.read_raw", lambda *a: reads.append(a))
    kinds = {"typed": 0, "accepted": 0}

    def body(method: str, overrides: list[str]) -> None:
        config = composed[method].copy()
        try:
            for override in overrides:
                key, _, value = override.partition("=")
                OmegaConf.update(config, key, OmegaConf.select(OmegaConf.from_dotlist([f"x={value}"]), "x"))
        except (*REFUSED_BY_HYDRA, ValueError, OverflowError, YAMLError):  # no YAML, or of another type, or too large
            return
        kinds["typed"] += 1
        try:
            configuration.check(config)
        except DpmlError as error:
            assert 0 < len(str(error)) < 20_000
        except REFUSED_BY_HYDRA:  # an interpolation that leads nowhere: printed without a traceback
            pass
        else:
            kinds["accepted"] += 1
        assert not reads

    search(inputs, body, st.sampled_from(METHODS), st.lists(OVERRIDE, min_size=1, max_size=3))
    assert kinds["typed"] > inputs // 10
    assert kinds["accepted"] > 0


SOME = [
    "privacy.epsilon=nan", "privacy.delta=1e-400", "method.steps=" + "9" * 400, "device=gpu", "data.schema=???",
    "privacy.epsilon=1" + "0" * 400, "method.betas=[a]", "method.stepss=1", "seed=${nowhere}",
    "privacy.dataset_ledger=/nowhere/x/y.jsonl", "x" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("override", SOME, ids=lambda text: text[:40])
def test_the_command_line_prints_no_traceback_and_releases_nothing(override: str, cli: Any, tmp_path: Path) -> None:
    table, schema = write_people(tmp_path / "data", people(60))
    extra = [] if "dataset_ledger" not in override else ["privacy.dataset_epsilon=4", "privacy.dataset_delta=1e-3"]
    status, out, err = cli(
        "data=table", f"data.path={table}", f"data.schema={schema}", "method=dp_sgd", "hydra.run.dir=run",
        *extra, override
    )  # fmt: skip
    assert status == 1
    assert "Traceback" not in out + err
    assert err.strip()
    assert not list(tmp_path.rglob("result.json"))
    assert not list(tmp_path.rglob("model.safetensors"))
