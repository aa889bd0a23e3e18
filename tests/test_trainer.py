"""PrivateTrainer end to end on small data: files, guarantees, loading, errors, resume."""

from __future__ import annotations

import errno
import inspect
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from small_tables import people, write_people

from dpml import PrivateData, PrivateTrainer, accounting, load
from dpml.errors import (
    BudgetExceededError,
    ConfigError,
    DpmlError,
    LedgerError,
    ModelError,
    RunFolderError,
    UnsupportedEventError,
)
from dpml.mechanisms import FixedNoise

METHODS = ("dp_sgd", "output", "objective")
RELEASE_FILES = {"config.yaml", "ledger.jsonl", "model.safetensors", "result.json", "schema.json"}


def small(n: int = 500, n_declared: int = 480, is_public: bool = True) -> PrivateData:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 3)) / 3
    y = (X @ [3.0, -2.0, 1.0] + 0.3 * rng.normal(size=n) > 0).astype(int)
    return PrivateData.from_arrays(
        X[100:], y[100:], X_test=X[:100], y_test=y[:100], norm_bound=1.0, classes=[0, 1], n_declared=n_declared,
        is_public=is_public, add_constant=True,
    )  # fmt: skip


def trainer(method: str = "objective", **changes: Any) -> PrivateTrainer:
    if method == "dp_sgd":
        changes = {"steps": 12, "expected_batch_size": 60, **changes}
    if "noise_multiplier" not in changes:
        changes = {"epsilon": 2.0, **changes}
    return PrivateTrainer(method=method, **changes)


# -- the whole way ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", METHODS)
def test_run_folder_holds_what_a_third_party_needs(method: str, tmp_path: Path) -> None:
    result = trainer(method, run_dir=tmp_path / "run").fit(small())
    release, private = tmp_path / "run/release", tmp_path / "run/private"
    assert {p.name for p in release.iterdir()} == RELEASE_FILES
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert (tmp_path / "run/result.json").read_text() == (release / "result.json").read_text()
    written = json.loads((release / "result.json").read_text())
    assert {"epsilon", "delta", "neighboring_relation", "accountant", "method", "steps", "metrics", "trajectory",
            "guidance", "ledger"} <= set(written)  # fmt: skip
    assert written["metrics"]["accuracy"] == result.metrics["accuracy"]
    assert 0 < result.guarantee.epsilon <= 2.0
    checked = accounting.verify(tmp_path / "run")
    assert checked.ok, checked.problems
    assert checked.epsilon_recomputed == pytest.approx(result.guarantee.epsilon, abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_saved_model_predicts_as_the_live_one(method: str, tmp_path: Path) -> None:
    result = trainer(method, run_dir=tmp_path / "run").fit(small())
    X = np.random.default_rng(5).normal(size=(40, 3))
    loaded = load(tmp_path / "run/release")
    np.testing.assert_allclose(loaded.predict_proba(X), result.model.predict_proba(X), rtol=1e-12)
    assert loaded.predict_proba(X).shape == (40, 2)
    np.testing.assert_allclose(loaded.predict_proba(X).sum(axis=1), 1.0)
    assert set(loaded.predict(X)) <= {0, 1}


def test_a_model_is_shown_without_its_weights() -> None:
    model = trainer().fit(small()).model
    assert repr(model) == "PrivateModel('logreg', 4 weights, classes (0, 1))"


def test_mlp_and_own_module_are_loaded_too(tmp_path: Path) -> None:
    import torch

    shape = {"steps": 3, "expected_batch_size": 60, "epsilon": 2.0}
    data = small()
    X = np.random.default_rng(5).normal(size=(7, 3))
    first = PrivateTrainer("mlp", hidden=(5, 4), run_dir=tmp_path / "mlp", **shape).fit(data)
    np.testing.assert_allclose(load(tmp_path / "mlp").predict_proba(X), first.model.predict_proba(X), rtol=1e-6)

    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))

    own = network()
    before = {k: v.clone() for k, v in own.state_dict().items()}
    second = PrivateTrainer(own, run_dir=tmp_path / "own", **shape).fit(data)
    assert all(torch.equal(before[k], v) for k, v in own.state_dict().items()), "the user's module was changed"
    again = load(tmp_path / "own", module=network())
    np.testing.assert_allclose(again.predict_proba(X), second.model.predict_proba(X), rtol=1e-6)
    with pytest.raises(ModelError, match="module=YourModule"):
        load(tmp_path / "own").predict_proba(X)


def test_own_loss_is_the_one_that_is_minimised() -> None:
    import torch

    calls = []

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        calls.append(logits.shape)
        return torch.nn.functional.cross_entropy(logits, targets, reduction="none")

    PrivateTrainer(torch.nn.Linear(4, 2), loss=loss, steps=2, expected_batch_size=60, epsilon=2.0).fit(small())
    assert calls


def test_table_model_scores_data_frames(tmp_path: Path) -> None:
    table, schema = write_people(tmp_path)
    data = PrivateData.from_table(table, schema=schema)
    trainer("objective", epsilon=8.0, delta=1e-4, run_dir=tmp_path / "run").fit(data)
    model = load(tmp_path / "run/release")
    new = people(300, seed=9)
    assert (model.predict(new) == new["label"]).mean() > 0.7  # majority is about 0.5, without privacy about 0.88
    shuffled = new[["town", "label", "money", "age"]]
    assert (model.predict(shuffled) == model.predict(new)).all()
    with pytest.raises(DpmlError, match="DataFrame"):
        model.predict(np.zeros((2, 3)))


def test_nonprivate_runs_on_public_data_only(tmp_path: Path) -> None:
    result = PrivateTrainer(method="nonprivate", run_dir=tmp_path / "run").fit(small())
    assert np.isinf(result.guarantee.epsilon)
    written = json.loads((tmp_path / "run/result.json").read_text())
    assert written["epsilon"] == "inf"
    assert "enough" not in written["guidance"]  # there is no budget that a sample could be too small for
    assert accounting.verify(tmp_path / "run").ok
    with pytest.raises(ConfigError, match="declared public"):
        PrivateTrainer(method="nonprivate").fit(small(is_public=False))


def test_metrics_of_a_private_test_set_stay_private(tmp_path: Path) -> None:
    result = trainer(run_dir=tmp_path / "run").fit(small(is_public=False))
    written = json.loads((tmp_path / "run/release/result.json").read_text())
    assert written["metrics"] == {} == dict(result.metrics)
    assert written["nonprivate"] is None
    assert json.loads((tmp_path / "run/private/diagnostics.json").read_text())["test"]["accuracy"] > 0.5
    for file in (tmp_path / "run/release").iterdir():
        assert b"accuracy" not in file.read_bytes()


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("method", METHODS)
def test_both_relations_and_the_price_of_replacement(method: str, relation: str) -> None:
    plan = trainer(method, neighboring_relation=relation).plan(small())
    assert plan.guarantee.neighboring_relation == relation
    recomputed = accounting.epsilon(plan.event, plan.guarantee.delta, neighboring_relation=relation)
    assert recomputed <= 2.0
    if relation == "replace_one":
        cheaper = accounting.epsilon(plan.event, plan.guarantee.delta, neighboring_relation="add_remove")
        assert cheaper < 0.8 * recomputed  # the same noise hides one record more easily than a changed one


def test_auto_takes_objective_for_logreg_and_dp_sgd_for_the_rest() -> None:
    assert PrivateTrainer(epsilon=1.0).plan(small()).method == "objective"
    assert PrivateTrainer("softmax", epsilon=1.0, steps=2, expected_batch_size=50).plan(small()).method == "dp_sgd"


def test_noise_multiplier_gives_the_epsilon() -> None:
    plan = trainer("dp_sgd", noise_multiplier=1.5).plan(small())
    expected = accounting.epsilon(
        accounting.SelfComposed(accounting.PoissonSampled(60 / 480, accounting.Gaussian(1.5)), 12), plan.guarantee.delta
    )
    assert plan.guarantee.epsilon == pytest.approx(expected, rel=1e-9)
    assert plan.guarantee.delta == 1e-5


def test_default_delta_follows_n_declared() -> None:
    assert PrivateTrainer(epsilon=1.0).plan(small(n_declared=50_000)).guarantee.delta == pytest.approx(2e-6)


@pytest.mark.parametrize("accountant", ["best", "pld", "rdp", "zcdp"])
def test_every_accountant_calibrates_dp_sgd_within_budget(accountant: str) -> None:
    result = trainer("dp_sgd", accountant=accountant).fit(small())
    assert 1.9 < result.guarantee.epsilon <= 2.0
    assert result.trajectory.rdp is not None
    assert result.trajectory.zcdp is not None
    assert list(result.trajectory.best) == sorted(result.trajectory.best)


def test_an_accountant_that_cannot_bound_the_method_says_so_before_data() -> None:
    with pytest.raises(UnsupportedEventError, match=r"(?i)objective"):
        trainer("objective", accountant="pld").plan(small())


def test_plan_reads_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    data = small()
    monkeypatch.setattr(PrivateData, "load", lambda *_: pytest.fail("a plan read records"))
    for method in METHODS:
        text = str(trainer(method).plan(data))
        assert "promise" in text
        assert "required" in text or "rule" in text


# -- what is refused ----------------------------------------------------------------------------------------------
BAD_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"epsilon": 0}, "epsilon = 0 .*finite number > 0"),
    ({"epsilon": -1.0}, "epsilon = -1.0"),
    ({"epsilon": float("inf")}, "epsilon = inf .*nonprivate"),
    ({"epsilon": float("nan")}, "epsilon = nan"),
    ({"epsilon": "1"}, "epsilon = '1'"),
    ({"delta": 0}, "delta = 0 .*< 1/n_declared"),
    ({"delta": 1.5}, "delta = 1.5"),
    ({"epsilon": 1.0, "noise_multiplier": 1.0}, "exclude each other"),
    ({"steps": 10, "epochs": 2.0}, "exclude each other"),
    ({"model": "logregg"}, "Did you mean 'logreg'"),
    ({"method": "objectiv"}, "Did you mean 'objective'"),
    ({"neighboring_relation": "both"}, "add_remove, replace_one"),
    ({"accountant": "moments"}, "accountant = 'moments'"),
    ({"device": "tpu"}, "device = 'tpu'"),
    ({"momentum": 1.0}, "momentum = 1.0"),
    ({"max_grad_norm": 0.0}, "max_grad_norm = 0.0"),
    ({"learning_rate": "fast"}, "learning_rate = 'fast'"),
    ({"regularization": -1.0}, "regularization = -1.0"),
    ({"solution_norm": 0}, "solution_norm = 0"),
    ({"steps": 0}, "steps = 0"),
    ({"steps": 2.5}, "steps = 2.5"),
    ({"seed": -1}, "seed = -1"),
    ({"seed": 2**70}, "seed = "),
    ({"epsilon": 1e-320}, "epsilon = "),
    ({"epsilon": 1e9}, "epsilon = 1000000000.0"),
    ({"noise_multiplier": 1e300}, "noise_multiplier = 1e"),
    ({"noise_multiplier": 1e-300}, "noise_multiplier = 1e-300"),
    ({"epochs": 1e300}, "epochs = 1e"),
    ({"steps": 10**15}, "steps = "),
    ({"hidden": (10**9,)}, "hidden"),
    ({"solution_norm": 1e-200}, "solution_norm = 1e-200"),
    ({"excess_risk": 1e-300}, "excess_risk = 1e-300"),
    ({"hidden": ()}, "hidden"),
    ({"method": "output", "noise_multiplier": 1.0}, "Give epsilon"),
    ({"method": "objective", "model": "softmax"}, "rank one per record"),
    ({"method": "objective", "model": "ridge"}, "gradient is bounded over all"),
    ({"method": "adassp"}, "sufficient statistics of squared loss"),
    ({"method": "output", "variant": "kst12"}, "variant = 'kst12'"),
    ({"variant": "pure", "delta": 1e-5}, "delta = 1e-05.*0 with variant"),
    ({"loss_parameter": 0.5}, "loss_parameter = 0.5.*linear_svm"),
    ({"model": "linear_svm", "loss_parameter": 1e9}, "loss_parameter = 1000000000.0"),
    ({"solution_norm": "big"}, "solution_norm = 'big'"),
    ({"method": "objective", "steps": 10}, "steps = 10 .*another method"),
    ({"method": "output", "max_grad_norm": 3.0}, "max_grad_norm = 3.0"),
    ({"method": "dp_sgd", "regularization": 0.1}, "regularization = 0.1"),
    ({"method": "objective", "loss": abs}, "loss = .*another method"),
    ({"method": "nonprivate", "regularization": 0.1}, "regularization = 0.1"),
    ({"dataset_ledger": "x.jsonl"}, "dataset_epsilon"),
    ({"dataset_epsilon": 1.0}, "dataset_ledger"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS)
def test_bad_arguments_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrivateTrainer(**arguments)


def test_bad_data_declarations_are_refused_before_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    data = small()
    monkeypatch.setattr(PrivateData, "load", lambda *_, **__: pytest.fail("records were read"))
    with pytest.raises(ConfigError, match=r"delta = 0.01 .*1/n_declared"):
        trainer(delta=0.01).fit(data)
    with pytest.raises(ConfigError, match=r"expected_batch_size = 481 .*n_declared = 480"):
        trainer("dp_sgd", expected_batch_size=481).fit(data)
    with pytest.raises(ConfigError, match="too small"):
        trainer(enforce_guidance=True).fit(data)
    three = PrivateData.from_arrays(np.zeros((5, 2)), [0, 1, 2, 0, 1], norm_bound=1.0, classes=[0, 1, 2], n_declared=5)
    with pytest.raises(ConfigError, match="two classes"):
        PrivateTrainer(epsilon=1.0, delta=1e-3, method="dp_gd").fit(three)
    with pytest.raises(ConfigError, match="does not fit the target"):
        PrivateTrainer(model="ridge", epsilon=1.0, delta=1e-3).fit(three)
    free = PrivateData.from_arrays(np.zeros((5, 2)), [0, 1, 1, 0, 1], norm_bound=None, classes=[0, 1], n_declared=5)
    with pytest.raises(ConfigError, match="norm_bound"):
        PrivateTrainer(epsilon=1.0, delta=1e-3).fit(free)


def test_cuda_without_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="sees no CUDA device"):
        PrivateTrainer(method="dp_sgd", epsilon=1.0, device="cuda")
    assert PrivateTrainer(method="dp_sgd", epsilon=1.0, device="auto", steps=2).plan(small()).device == "cpu"


def test_batch_norm_is_refused_with_its_name_and_replacement() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    with pytest.raises(ModelError, match=r"'1' \(BatchNorm1d\).*(LayerNorm|GroupNorm)"):
        PrivateTrainer(model, epsilon=1.0)


def test_a_module_of_the_wrong_shape_is_refused_before_data(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch import nn

    data = small()
    monkeypatch.setattr(PrivateData, "load", lambda *_: pytest.fail("records were read"))
    with pytest.raises(ModelError, match=r"cannot take rows of shape \(4,\)"):
        PrivateTrainer(nn.Linear(9, 2), epsilon=1.0).fit(data)
    with pytest.raises(ModelError, match=r"gives \(2, 5\) for 2 rows; for 2 declared classes"):
        PrivateTrainer(nn.Linear(4, 5), epsilon=1.0).fit(data)
    assert PrivateTrainer(nn.Linear(4, 1), epsilon=1.0, steps=2).plan(data).model == "Linear"


def test_auto_follows_the_arguments() -> None:
    assert PrivateTrainer(epsilon=1.0, steps=3, expected_batch_size=50).plan(small()).method == "dp_sgd"
    assert PrivateTrainer(epsilon=1.0, regularization=0.1).plan(small()).method == "objective"


def test_run_folder_that_is_used_or_not_writable_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer(run_dir=tmp_path / "run").fit(small())
    before = (tmp_path / "run/result.json").read_bytes()
    with pytest.raises(RunFolderError, match="holds a run already"):
        trainer(run_dir=tmp_path / "run").fit(small())
    assert (tmp_path / "run/result.json").read_bytes() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        trainer(run_dir=tmp_path / "file" / "run").fit(small())

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)  # a root user may write anywhere, so the refusal is made up
    with pytest.raises(RunFolderError, match=r"cannot be written \(Permission denied\)"):
        trainer(run_dir=tmp_path / "other").fit(small())


@pytest.mark.parametrize("method", METHODS)
def test_full_disk_while_charging_releases_nothing(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpml.accounting import ledger

    real, calls = ledger.write_all, []

    def full(handle: int, data: bytes) -> None:
        calls.append(data)
        if b'"charge"' in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle, data)

    monkeypatch.setattr(ledger, "write_all", full)
    with pytest.raises(LedgerError, match="No space left"):
        trainer(method, run_dir=tmp_path / "run").fit(small())
    assert calls
    assert {p.name for p in (tmp_path / "run/release").iterdir()} == {"config.yaml", "ledger.jsonl", "schema.json"}


def test_dataset_ledger_refuses_the_run_that_passes_the_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cap = {"dataset_ledger": tmp_path / "all.jsonl", "dataset_epsilon": 5.0, "dataset_delta": 1e-4}
    trainer(**cap).fit(small())
    trainer("dp_sgd", **cap).fit(small())
    monkeypatch.setattr(PrivateData, "load", lambda *_: pytest.fail("records were read"))
    with pytest.raises(BudgetExceededError, match="spent 4"):
        trainer("output", run_dir=tmp_path / "third", **cap).fit(small())
    assert not (tmp_path / "third").exists()


# -- killed and resumed -------------------------------------------------------------------------------------------
class Killed(BaseException):
    """Stands for a kill signal: nothing catches it."""


def killed_run(folder: Path, at: int, data: PrivateData | None = None) -> None:
    def progress(step: int, steps: int, epsilon: float) -> None:
        if step == at:
            raise Killed

    run = trainer("dp_sgd", checkpoint_every=4, run_dir=folder)
    with pytest.raises(Killed):
        run.fit(data or small(), progress=progress)


def test_a_killed_run_goes_on_with_its_charged_steps_spent(tmp_path: Path) -> None:
    killed_run(tmp_path / "run", at=6)  # killed in the second block of four: eight steps are charged
    seen: list[int] = []
    result = PrivateTrainer.resume(tmp_path / "run", small(), progress=lambda step, *_: seen.append(step))
    assert seen == [9, 10, 11, 12]
    assert sum(line["count"] for line in accounting.read_ledger(tmp_path / "run/release/ledger.jsonl").charges) == 12
    assert result.guarantee.epsilon <= 2.0
    assert accounting.verify(tmp_path / "run").ok
    with pytest.raises(RunFolderError, match="finished"):
        PrivateTrainer.resume(tmp_path / "run", small())


def test_resume_refuses_changed_data_and_changed_arguments(tmp_path: Path) -> None:
    killed_run(tmp_path / "run", at=6)
    with pytest.raises(ConfigError, match="not those that the run started with"):
        PrivateTrainer.resume(tmp_path / "run", small(n=501))
    with pytest.raises(ConfigError, match=r"n_declared: 480 → 500"):
        PrivateTrainer.resume(tmp_path / "run", small(n_declared=500))
    saved = tmp_path / "run/private/resume.json"
    text = json.loads(saved.read_text())
    text["arguments"]["momentum"] = 0.5
    saved.write_text(json.dumps(text))
    with pytest.raises(ConfigError, match=r"momentum: 0.9 → 0.5"):
        PrivateTrainer.resume(tmp_path / "run", small())


def test_killed_between_closing_line_and_result_is_finished_without_new_charges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpml.release import RunFolder

    real = RunFolder.publish

    def killed(self: RunFolder, name: str, content: Any) -> Path:
        if name == "model.safetensors":
            raise Killed
        return real(self, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "publish", killed)
        with pytest.raises(Killed):
            trainer("dp_sgd", run_dir=tmp_path / "run").fit(small())
    ledger = (tmp_path / "run/release/ledger.jsonl").read_bytes()
    assert b'"closed"' in ledger
    result = PrivateTrainer.resume(tmp_path / "run", small())
    assert (tmp_path / "run/release/ledger.jsonl").read_bytes() == ledger
    assert result.metrics["accuracy"] > 0.5
    assert accounting.verify(tmp_path / "run").ok


def test_two_processes_do_not_go_on_with_one_run(tmp_path: Path) -> None:
    killed_run(tmp_path / "run", at=6)
    path = tmp_path / "run/release/ledger.jsonl"
    first = accounting.Ledger.resume(path)
    with pytest.raises(LedgerError, match="in use by another process"):
        PrivateTrainer.resume(tmp_path / "run", small())
    assert first.count == len(path.read_bytes().splitlines())


def test_resume_asks_for_the_own_loss_again(tmp_path: Path) -> None:
    import torch

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits, targets, reduction="none")

    def killed(step: int, *_: Any) -> None:
        if step == 6:
            raise Killed

    run = trainer("dp_sgd", model="softmax", loss=loss, checkpoint_every=4, run_dir=tmp_path / "run")
    with pytest.raises(Killed):
        run.fit(small(), progress=killed)
    with pytest.raises(ConfigError, match="loss must be given"):
        PrivateTrainer.resume(tmp_path / "run", small())
    assert PrivateTrainer.resume(tmp_path / "run", small(), loss=loss).guarantee.epsilon <= 2.0


def test_no_noise_key_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpml.mechanisms import noise

    keys: list[int] = []
    real = noise.AESCounter

    def remember(*, key: int, counter: int) -> Any:
        keys.append(key)
        return real(key=key, counter=counter)

    monkeypatch.setattr(noise, "AESCounter", remember)
    killed_run(tmp_path / "run", at=6)
    assert keys
    everything = b"".join(p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())
    for key in keys:
        assert str(key).encode() not in everything
        assert f"{key:x}".encode() not in everything
        assert key.to_bytes(16, "little") not in everything
        assert key.to_bytes(16, "big") not in everything


# -- noise and seeds ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", METHODS)
def test_noise_does_not_follow_from_the_seed(method: str) -> None:
    first, second = (trainer(method, seed=3).fit(small()).model.weights["weight"] for _ in range(2))
    assert not np.allclose(first, second)


@pytest.mark.parametrize("method", METHODS)
def test_a_test_noise_source_is_named_in_the_assumptions(method: str) -> None:
    first, second = (trainer(method, noise_source=FixedNoise(7)).fit(small()) for _ in range(2))
    np.testing.assert_array_equal(first.model.weights["weight"], second.model.weights["weight"])
    assert any("NOT PRIVATE" in text for text in first.guarantee.assumptions)
    assert not any("NOT PRIVATE" in text for text in trainer(method).fit(small()).guarantee.assumptions)


def test_a_private_test_label_cannot_stop_or_change_a_release(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)), rng.integers(0, 2, 60)
    for k, y_test in enumerate(([0] * 60, [0] * 59 + [1], [7] * 60)):
        data = PrivateData.from_arrays(X, y, X_test=X, y_test=y_test, norm_bound=1.0, classes=[0, 1], n_declared=60)
        run = trainer("dp_sgd", expected_batch_size=20, learning_rate=1e5, run_dir=tmp_path / str(k))
        assert np.isfinite(run.fit(data).model.weights["weight"]).all()
        assert (tmp_path / str(k) / "release/result.json").exists()


def test_weights_that_are_not_finite_are_not_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpml import erm

    real = erm.fit_objective

    def broken(*arguments: Any, **named: Any) -> Any:
        theta, notes = real(*arguments, **named)
        return np.where(np.arange(len(theta)) == 0, np.inf, theta), notes

    monkeypatch.setattr(erm, "fit_objective", broken)
    with pytest.raises(ModelError, match="not finite, so nothing was released"):
        trainer("objective", run_dir=tmp_path / "run").fit(small())
    assert not (tmp_path / "run/release/model.safetensors").exists()


def test_a_damaged_resume_file_is_named(tmp_path: Path) -> None:
    killed_run(tmp_path / "run", at=6)
    for text in ("{", "[]", '{"key": 1}', "[" * 100_000):
        (tmp_path / "run/private/resume.json").write_text(text)
        with pytest.raises(RunFolderError, match="damaged"):
            PrivateTrainer.resume(tmp_path / "run", small())


def test_public_signatures_are_frozen() -> None:
    """The interface that users write against; a change here is a change for them."""
    parameters = list(inspect.signature(PrivateTrainer.__init__).parameters)
    assert parameters[:25] == [
        "self", "model", "method", "epsilon", "delta", "neighboring_relation", "accountant", "noise_multiplier",
        "max_grad_norm", "expected_batch_size", "steps", "epochs", "learning_rate", "momentum", "solution_norm",
        "regularization", "hidden", "loss", "micro_batch_size", "checkpoint_every", "device", "seed", "run_dir",
        "noise_source", "excess_risk",
    ]  # fmt: skip
    assert parameters[-16:] == [
        "optimizer", "betas", "bias_correction", "weight_decay", "schedule", "warmup_steps", "averaging",
        "averaging_share", "clipping", "target_quantile", "clip_learning_rate", "count_noise", "sampling",
        "secure_noise", "gradients", "shares",
    ]  # fmt: skip
    assert list(inspect.signature(PrivateTrainer.fit).parameters) == ["self", "data", "progress", "config", "command"]
    assert list(inspect.signature(load).parameters) == ["folder", "module"]


def test_a_dense_matrix_of_very_many_features_is_refused_before_it_is_made() -> None:
    X = sparse.csr_array((3, 30_000))
    data = PrivateData.from_arrays(X, [0.1, 0.2, 0.3], norm_bound=1.0, target_bounds=(0, 1), n_declared=1000)
    for method in ("adassp", "output"):
        with pytest.raises(ConfigError, match=r"30,000 features: up to 20,000.*dp_gd"):
            PrivateTrainer(model="ridge", method=method, epsilon=1.0).plan(data)
    assert PrivateTrainer(model="ridge", method="dp_gd", epsilon=1.0).plan(data).method == "dp_gd"


def test_the_callers_assumptions_stand_in_plan_and_guarantee() -> None:
    result = trainer(assumptions=["labels come from a public register"]).fit(small())
    assert "labels come from a public register" in result.guarantee.assumptions
    assert "labels come from a public register" in result.plan.to_dict()["guarantee"]["assumptions"]
    with pytest.raises(ConfigError, match="assumptions"):
        trainer(assumptions=[1])


@pytest.mark.parametrize(
    ("arguments", "classes", "method"),
    [
        ({}, 2, "objective"),
        ({"neighboring_relation": "replace_one"}, 2, "dp_gd"),
        ({"neighboring_relation": "replace_one", "epsilon": 8.0}, 2, "objective"),
        ({"neighboring_relation": "replace_one"}, 3, "objective"),
        ({"accountant": "zcdp"}, 2, "dp_gd"),
        ({"accountant": "pld"}, 3, "output"),
        ({"model": "linear_svm", "neighboring_relation": "replace_one"}, 3, "objective"),
        ({"model": "softmax"}, 3, "dp_gd"),
        ({"variant": "pure"}, 2, "objective"),
        ({"steps": 20}, 2, "dp_gd"),
        ({"epochs": 2}, 2, "dp_sgd"),
    ],
    ids=str,
)
def test_auto_takes_a_method_that_can_be_planned(arguments: dict[str, Any], classes: int, method: str) -> None:
    labels = list(range(classes))
    data = PrivateData.from_arrays(np.zeros((6, 3)), (labels * 6)[:6], norm_bound=1.0, classes=labels, n_declared=5_000)
    plan = PrivateTrainer(**{"epsilon": 1.0, "device": "cpu", **arguments}).plan(data)
    assert plan.method == method


def test_regularization_zero_belongs_to_descent_alone() -> None:
    data = small()
    assert PrivateTrainer(method="dp_gd", epsilon=1.0, regularization=0.0).plan(data).parameters.regularization == 0.0
    for method in ("objective", "output"):
        with pytest.raises(ConfigError, match=r"regularization = 0.0"):
            PrivateTrainer(method=method, epsilon=1.0, regularization=0.0)


def test_a_clipping_norm_that_is_asked_for_is_used() -> None:
    data = PrivateData.diabetes()
    assert PrivateTrainer("ridge", "dp_gd", epsilon=1.0, max_grad_norm=1.0).plan(data).parameters.max_grad_norm == 1.0
    assert PrivateTrainer("ridge", "dp_gd", epsilon=1.0, max_grad_norm=0.3).plan(data).parameters.max_grad_norm == 0.3
