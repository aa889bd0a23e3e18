"""Modules of one's own: numeric targets, outputs that do not fit the task, scoring that fails after the training."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from small_tables import people, write_people
from torch import nn

from dpml import PrivateData, PrivateTrainer, accounting, load, predict
from dpml.console import result_table
from dpml.errors import ConfigError, ModelError
from dpml.report import write_run_report

SETTINGS: dict[str, Any] = {
    "method": "dp_sgd", "epsilon": 8.0, "delta": 1e-4, "steps": 40, "expected_batch_size": 150,
}  # fmt: skip
rng = np.random.default_rng(0)
X, X_TEST = (rng.normal(size=(n, 4)).astype("f4") for n in (400, 100))
y, Y_TEST = (300.0 + 2.0 * rows[:, 0] - rows[:, 1] for rows in (X, X_TEST))
LABELS, LABELS_TEST = (np.digitize(rows[:, 0], [-0.5, 0.5]) for rows in (X, X_TEST))


class Killed(Exception):
    pass


def net(outputs: int = 1, flat: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs)]
    return nn.Sequential(*layers, nn.Flatten(0)) if flat else nn.Sequential(*layers)


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.reshape(len(targets), -1)[:, 0] - targets.to(outputs.dtype)).square()


def numbers(test: str = "none") -> PrivateData:
    tested = {} if test == "none" else {"X_test": X_TEST, "y_test": Y_TEST, "is_public": test == "public"}
    return PrivateData.from_arrays(X, y, norm_bound=None, n_declared=400, target_bounds=(292, 308), **tested)


def three_classes(test: str = "none") -> PrivateData:
    tested = {} if test == "none" else {"X_test": X_TEST, "y_test": LABELS_TEST, "is_public": test == "public"}
    return PrivateData.from_arrays(X, LABELS, norm_bound=None, n_declared=400, classes=[0, 1, 2], **tested)


def error_of(predicted: np.ndarray) -> float:
    return float(np.sqrt(np.square(predicted - Y_TEST).mean()))


# -- numeric targets ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("test", ["none", "public", "private"])
def test_a_module_learns_a_numeric_target(test: str, flat: bool, tmp_path: Path) -> None:
    result = PrivateTrainer(net(flat=flat), loss=squared, run_dir=tmp_path / "run", **SETTINGS).fit(numbers(test))
    predicted = result.model.predict(X_TEST)
    assert predicted.shape == (100,)
    assert error_of(predicted) < 0.5 * Y_TEST.std()
    assert result.model.is_regression
    assert result.model.classes == ()
    again = load(tmp_path / "run/release", module=net(flat=flat))
    np.testing.assert_allclose(again.predict(X_TEST), predicted, rtol=1e-6)
    np.testing.assert_allclose(300 + 8 * again.decision_function(X_TEST).reshape(-1), predicted, rtol=1e-6)
    with pytest.raises(ModelError, match="no class probabilities"):
        again.predict_proba(X_TEST)
    if test == "public":
        assert result.metrics["rmse"] == pytest.approx(error_of(predicted), rel=1e-5)
        assert result.metrics["r2"] > 0.75
    else:
        assert result.metrics == {}
    if test == "private":
        kept = json.loads((tmp_path / "run/private/diagnostics.json").read_text())
        assert kept["test"]["rmse"] == pytest.approx(error_of(predicted), rel=1e-5)
    assert accounting.verify(tmp_path / "run").ok


def test_what_a_module_predicts_is_not_clipped() -> None:
    module = net()
    with torch.no_grad():
        module[2].bias.fill_(5.0)  # type: ignore[index, union-attr]
    settings = {**SETTINGS, "steps": 1, "learning_rate": 1e-6}
    model = PrivateTrainer(module, loss=squared, **settings).fit(numbers()).model
    assert (model.predict(X_TEST) > 308.0).all()


def test_a_killed_regression_goes_on(tmp_path: Path) -> None:
    def killed(step: int, *_: Any) -> None:
        if step == 20:
            raise Killed

    run = PrivateTrainer(net(), loss=squared, checkpoint_every=5, run_dir=tmp_path / "run", **SETTINGS)
    with pytest.raises(Killed):
        run.fit(numbers("public"), progress=killed)
    result = PrivateTrainer.resume(tmp_path / "run", numbers("public"), model=net(), loss=squared)
    assert result.metrics["r2"] > 0.5
    assert error_of(result.model.predict(X_TEST)) < Y_TEST.std()


def test_a_numeric_target_needs_a_loss_and_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrivateData, "load", lambda *_: pytest.fail("records were read"))
    with pytest.raises(ConfigError, match=r"loss = None .* numeric target.*square"):
        PrivateTrainer(net(), **SETTINGS).fit(numbers())
    with pytest.raises(ModelError, match=r"gives \(2, 3\) for 2 rows; for a numeric target it must give one of \[\(2,"):
        PrivateTrainer(net(3), loss=squared, **SETTINGS).fit(numbers("public"))


def test_a_table_with_a_numeric_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = people()
    frame["label"] = frame["age"] / 10 + 3
    table, schema = write_people(tmp_path, frame, target={"name": "label", "bounds": [0, 20]})
    data = PrivateData.from_table(table, schema=schema)
    torch.manual_seed(0)
    module = nn.Linear(data.public.n_features, 1, bias=False)
    result = PrivateTrainer(module, loss=squared, run_dir=tmp_path / "run", **SETTINGS).fit(data)
    new = people(300, seed=9)
    error = result.model.predict(new) - (new["age"] / 10 + 3)
    assert np.sqrt(np.square(error).mean()) < 0.8 * (new["age"] / 10).std()
    assert predict.main([str(tmp_path / "run"), str(table)]) == 1
    assert "module=YourModule()" in capsys.readouterr().err  # the command line has no module of one's own


# -- outputs that do not fit the classes --------------------------------------------------------------------------
@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_three_classes_and_another_number_of_outputs(
    outputs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = PrivateTrainer(net(outputs), loss=squared, **{**SETTINGS, "steps": 3})
    result = run.fit(three_classes())  # a loss of one's own, and nothing to score
    assert result.model.decision_function(X_TEST).shape == (100, outputs)
    for score in (result.model.predict, result.model.predict_proba):
        with pytest.raises(ModelError, match=rf"gives \(100, {outputs}\) for 100 rows, .* 3 classes .*\[\(100, 3\)\]"):
            score(X_TEST)
    run.run_dir = tmp_path / "run"
    assert run.fit(three_classes("private")).metrics == {}
    kept = json.loads((tmp_path / "run/private/diagnostics.json").read_text())
    assert kept["test"]["failed"].startswith("ModelError: the module gives")
    monkeypatch.setattr(PrivateData, "load", lambda *_: pytest.fail("records were read"))
    for look in (run.plan, run.check, run.fit):
        with pytest.raises(ModelError, match=rf"gives \(2, {outputs}\) .*\[\(2, 3\)\].* leave the public test set"):
            look(three_classes("public"))


# -- scoring that fails when the budget is spent ------------------------------------------------------------------
class Fussy(nn.Module):
    """Fails on rows that a run on made-up records and small numbers never meets."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.shape[0] and bool((rows == 12345.0).any()):
            raise RuntimeError(f"a row of {object()}")
        out: torch.Tensor = self.net(rows)
        return out


def test_a_model_that_cannot_be_scored_is_released(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = X_TEST.copy()
    rows[7, 2] = 12345.0
    data = PrivateData.from_arrays(
        X, LABELS, X_test=rows, y_test=LABELS_TEST, norm_bound=None, n_declared=400, classes=[0, 1, 2], is_public=True
    )
    settings = {**SETTINGS, "gradients": "per_example", "steps": 3}
    with caplog.at_level(logging.WARNING):
        result = PrivateTrainer(Fussy(), run_dir=tmp_path / "run", **settings).fit(data)
    assert "not scored, the model is released: RuntimeError: a row of <object" in caplog.text
    failed = "scoring failed with RuntimeError"  # not its message, which may differ when a run is finished later
    assert result.metrics == {"failed": failed, "source": "test set declared public"}
    assert json.loads((tmp_path / "run/release/result.json").read_text())["metrics"] == dict(result.metrics)
    assert accounting.verify(tmp_path / "run").ok
    assert load(tmp_path / "run", module=Fussy()).predict(X_TEST).shape == (100,)
    console = Console(width=120)
    with console.capture() as shown:
        console.print(result_table(result))
    assert f"none: {failed}" in shown.get()
    write_run_report(tmp_path / "run")
    assert failed in (tmp_path / "run/release/report.html").read_text("utf-8")
