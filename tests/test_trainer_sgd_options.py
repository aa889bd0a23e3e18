"""DP-SGD's choices (optimizer, clipping, sampling, averaging, noise source) from the trainer and the command line."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from dpml import DPSGDClassifier, DPSGDRegressor, PrivateData, PrivateTrainer
from dpml import config as configuration
from dpml.errors import ConfigError
from dpml.ranges import SGD_OPTIONS

SHORT = {"method": "dp_sgd", "noise_multiplier": 2.0, "steps": 6, "expected_batch_size": 100}
OTHERS: dict[str, Any] = {
    "optimizer": "adamw",
    "betas": (0.8, 0.99),
    "bias_correction": False,
    "weight_decay": 0.01,
    "schedule": "cosine",
    "warmup_steps": 2,
    "averaging": "tail",
    "averaging_share": 0.25,
    "clipping": "adaptive",
    "target_quantile": 0.6,
    "clip_learning_rate": 0.3,
    "count_noise": 7.0,
    "sampling": "fixed_size",
}


def arrays(n: int = 400) -> PrivateData:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 3)) / 3
    return PrivateData.from_arrays(X, (X[:, 0] > 0).astype(int), norm_bound=1.0, classes=[0, 1], n_declared=400)


def test_every_choice_reaches_the_plan_and_the_ledger() -> None:
    assert set(OTHERS) == set(SGD_OPTIONS)
    assert all(OTHERS[name] != default for name, default in SGD_OPTIONS.items())
    plan = PrivateTrainer(**SHORT, **OTHERS, learning_rate=0.05, neighboring_relation="replace_one").plan(arrays())
    written = json.loads(json.dumps(plan.to_dict()))["parameters"]
    for name, value in OTHERS.items():
        assert getattr(plan.parameters, name) == value, name
        assert written[name] == (list(value) if isinstance(value, tuple) else value), name
    text = str(plan)
    for piece in ("adamw, betas 0.8 and 0.99", "cosine, 2 warm-up", "tail, share 0.25", "0.6 quantile", "without repl"):
        assert piece in text


def test_the_defaults_are_those_of_the_ranges() -> None:
    signature = inspect.signature(PrivateTrainer.__init__).parameters
    for name, default in SGD_OPTIONS.items():
        assert signature[name].default == default, name
    own_last = [*SGD_OPTIONS, "secure_noise", "gradients", "shares"]
    assert [*signature][-len(own_last) :] == own_last, "appended: the old order stays"
    for estimator in (DPSGDClassifier, DPSGDRegressor):
        own = inspect.signature(estimator.__init__).parameters
        assert all(
            own[name].default == SGD_OPTIONS[name] for name in ("optimizer", "schedule", "clipping", "averaging")
        )


@pytest.mark.parametrize("method", ["objective", "output", "dp_gd"])
@pytest.mark.parametrize("name", [*OTHERS, "secure_noise"])
def test_other_methods_have_no_use_for_them(method: str, name: str) -> None:
    needs: dict[str, dict[str, Any]] = {
        "betas": {"optimizer": "adam"},
        "bias_correction": {"optimizer": "adam"},
        "averaging_share": {"averaging": "ema"},
        "target_quantile": {"clipping": "adaptive"},
        "clip_learning_rate": {"clipping": "adaptive"},
        "count_noise": {"clipping": "adaptive"},
    }
    value = OTHERS.get(name, False)
    with pytest.raises(ConfigError, match=rf"left out with method='{method}'"):
        PrivateTrainer(method=method, neighboring_relation="replace_one", **{name: value}, **needs.get(name, {}))


def test_a_choice_of_dp_sgd_makes_auto_take_it() -> None:
    assert PrivateTrainer(optimizer="adam").plan(arrays()).method == "dp_sgd"


def test_the_assumption_about_batches_fits_the_sampling() -> None:
    poisson = PrivateTrainer(**SHORT).plan(arrays()).guarantee.assumptions
    assert "every batch was drawn by secret independent coins (Poisson sampling)" in poisson
    fixed = PrivateTrainer(**SHORT, sampling="fixed_size", neighboring_relation="replace_one").plan(arrays())
    assert not any("Poisson" in note for note in fixed.guarantee.assumptions)
    assert any("exactly n_declared records" in note for note in fixed.guarantee.assumptions)


def test_noise_of_the_device_is_refused_on_the_cpu_and_named_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in ({"device": "cpu"}, {"device": "auto"}):
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda: False)
            with pytest.raises(ConfigError, match=r"secure_noise = False .*true on the CPU"):
                PrivateTrainer(**SHORT, secure_noise=False, **arguments)
    with pytest.raises(ConfigError, match="secure_noise = 0 "):
        PrivateTrainer(**SHORT, secure_noise=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    off = PrivateTrainer(**SHORT, secure_noise=False).plan(arrays())
    on = PrivateTrainer(**SHORT).plan(arrays())
    assert any(
        note.startswith("NOT SECRET against") and "device generator" in note for note in off.guarantee.assumptions
    )
    assert not any("NOT SECRET" in note for note in on.guarantee.assumptions)


def test_the_written_arguments_make_the_same_trainer() -> None:
    """What resume reads: JSON has lists only."""
    one = PrivateTrainer(**SHORT, **OTHERS, learning_rate=0.05, neighboring_relation="replace_one")
    written = json.loads(json.dumps(one.describe()))
    written.pop("own_loss")
    assert PrivateTrainer(**written).describe() == one.describe()
    assert PrivateTrainer(**written).plan(arrays()).to_dict() == one.plan(arrays()).to_dict()


def test_a_damaged_checkpoint_stops_resume(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def progress(step: int, steps: int, epsilon: float) -> None:
        if step == 5:
            raise Killed

    with pytest.raises(Killed):
        PrivateTrainer(**SHORT, checkpoint_every=2, run_dir=tmp_path / "run").fit(arrays(), progress=progress)
    checkpoint = tmp_path / "run/private/checkpoint.safetensors"
    raw = bytearray(checkpoint.read_bytes())
    raw[-1] ^= 1
    checkpoint.write_bytes(raw)
    with pytest.raises(Exception, match="not a readable checkpoint"):
        PrivateTrainer.resume(tmp_path / "run", arrays())


@pytest.mark.parametrize("clipping", ["per_layer", "automatic"])
def test_estimators_pass_their_choices_on(clipping: str) -> None:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(200, 3)) / 3
    common = {"epsilon": 4.0, "norm_bound": 1.0, "n_declared": 200, "steps": 4}
    chosen = {"optimizer": "adam", "schedule": "constant", "clipping": clipping, "averaging": "tail"}
    one = DPSGDClassifier(**common, classes=[0, 1], **chosen)
    two = DPSGDRegressor(**common, target_bounds=(-1.0, 1.0), **chosen)
    for model in (one, two):
        assert {k: model.get_params()[k] for k in chosen} == chosen
    data = PrivateData.from_arrays(X, (X[:, 0] > 0).astype(int), norm_bound=1.0, classes=[0, 1], n_declared=200)
    plan = PrivateTrainer(**one._trainer_arguments(data)).plan(data)
    assert {k: getattr(plan.parameters, k) for k in chosen} == chosen


def test_the_command_line_composes_every_choice() -> None:
    GlobalHydra.instance().clear()
    configuration.register()
    overrides = [f"method.{name}={_hydra(value)}" for name, value in OTHERS.items()]
    with hydra.initialize_config_dir(str(configuration.config_folder()), version_base="1.3"):
        composed = hydra.compose(
            "config",
            overrides=["+experiment=logreg", "privacy.neighboring_relation=replace_one", "method.learning_rate=0.01",
                       "method.micro_batch_size=auto", *overrides],
        )  # fmt: skip
    trainer = configuration.build_trainer(composed, run_dir=None)
    for name, value in OTHERS.items():
        assert getattr(trainer, name) == value, name
    assert trainer.micro_batch_size == "auto"
    with hydra.initialize_config_dir(str(configuration.config_folder()), version_base="1.3"):
        bad = hydra.compose("config", overrides=["+experiment=logreg", "method.optimizer=adagrad"])
    with pytest.raises(ConfigError, match="optimizer = 'adagrad'"):
        configuration.build_trainer(bad, run_dir=None)


def _hydra(value: Any) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
