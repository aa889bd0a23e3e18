"""Planted bugs in the run as a whole: each entry patches one seam, and the named check must fail under it.

Every check passes unpatched (``test_checks_pass_unpatched``), so a failure is due to the patch.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tables import comparable

from dpml import PrivateData, PrivateTrainer, accounting, running
from dpml.accounting import Ledger
from dpml.data import PublicInfo, Records
from dpml.errors import LedgerError
from dpml.mechanisms import FixedNoise


def small(n: int = 300) -> PrivateData:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 3)) / 3
    y = (X @ [3.0, -2.0, 1.0] > 0).astype(int)
    return PrivateData.from_arrays(X, y, norm_bound=1.0, classes=[0, 1], n_declared=300, add_constant=True)


def trainer(method: str, **changes: Any) -> PrivateTrainer:
    if method == "dp_sgd":
        changes = {"steps": 6, "expected_batch_size": 50, "checkpoint_every": 2, **changes}
    return PrivateTrainer(method=method, epsilon=1.0, delta=1e-4, **changes)


# -- checks -----------------------------------------------------------------------------------------------------------
def check_ledger_holds_the_whole_plan(folder: Path) -> None:
    """The charged event costs what the plan's event costs, and the run verifies."""
    for method in ("dp_sgd", "output", "objective"):
        result = trainer(method, run_dir=folder / method).fit(small())
        planned = accounting.epsilon(result.plan.event, 1e-4)
        assert result.guarantee.epsilon == pytest.approx(planned, rel=1e-9)
        verification = accounting.verify(folder / method)
        assert verification.ok, verification.problems


def check_charge_is_on_disk_before_use(folder: Path) -> None:
    """When noise is drawn, the charge for it can be read back from the file."""

    class Watching(FixedNoise):
        def normal(self, std: float, shape: Any) -> np.ndarray:
            record = accounting.read_ledger(path)
            drawn.append(sum(line["count"] for line in record.charges))
            return super().normal(std, shape)

    for method, needed in (("dp_sgd", [2, 2, 4, 4, 6, 6]), ("output", [1]), ("objective", [1, 1])):
        drawn: list[int] = []
        path = folder / method / "release/ledger.jsonl"
        trainer(method, run_dir=folder / method, noise_source=Watching(0)).fit(small())
        assert drawn == needed


def check_relation_reaches_the_accountant(folder: Path) -> None:
    """Under replace_one the charged event costs at most the promise *under replace_one*."""
    del folder
    for method in ("dp_sgd", "output", "objective"):
        result = trainer(method, neighboring_relation="replace_one").fit(small())
        cost = accounting.epsilon(result.plan.event, 1e-4, neighboring_relation="replace_one")
        assert cost <= 1.0
        assert result.guarantee.neighboring_relation == "replace_one"


def check_noise_is_not_the_seed_s(folder: Path) -> None:
    del folder
    for method in ("dp_sgd", "output", "objective"):
        first, second = (trainer(method, seed=1).fit(small()).model.weights["weight"] for _ in range(2))
        assert not np.array_equal(first, second)


def check_plan_ignores_the_number_of_records(folder: Path) -> None:
    """One record more changes neither plan nor any file but the model."""
    for k, n in enumerate((300, 301)):
        trainer("dp_sgd", run_dir=folder / str(k), noise_source=FixedNoise(1)).fit(small(n))
    for name in ("config.yaml", "schema.json", "result.json", "ledger.jsonl"):
        assert comparable(folder / "0/release", name) == comparable(folder / "1/release", name), name


def check_private_metrics_stay_private(folder: Path) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 2)), rng.integers(0, 2, 50)
    data = PrivateData.from_arrays(X, y, X_test=X, y_test=y, norm_bound=1.0, classes=[0, 1], n_declared=50)
    trainer("objective", run_dir=folder / "run").fit(data)
    assert json.loads((folder / "run/release/result.json").read_text())["metrics"] == {}


def check_regularization_is_the_mean_form(folder: Path) -> None:
    """A given Λ is multiplied by n_declared exactly once."""
    del folder
    for method in ("output", "objective"):
        parameters = trainer(method, regularization=0.02).plan(small()).parameters
        assert parameters.lambda_sum == pytest.approx(0.02 * 300)
        assert parameters.regularization == pytest.approx(0.02)


def check_every_charge_must_be_there(folder: Path) -> None:
    """A charge that never reached the ledger stops the release instead of lowering the reported ε."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "charge", lambda self, event, **_: None)
        for method in ("dp_sgd", "output", "objective"):
            with pytest.raises(LedgerError, match="not what the plan says"):
                trainer(method, run_dir=folder / method).fit(small())
            assert not (folder / method / "release/result.json").exists()


def check_nothing_is_released_above_the_promise(folder: Path) -> None:
    """A ledger that cost more than promised stops the release."""
    real = Ledger.charge

    def twice(self: Ledger, event: Any, **arguments: Any) -> None:
        real(self, event, **arguments)
        real(self, event, **arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "charge", twice)
        with pytest.raises(LedgerError, match=r"more than the promised|not what the plan says"):
            trainer("objective", run_dir=folder / "run").fit(small())
    assert not (folder / "run/release/model.safetensors").exists()


# -- bugs -------------------------------------------------------------------------------------------------------------
def one_step_not_recorded(patch: pytest.MonkeyPatch) -> None:
    real = Ledger.charge

    def forgets(self: Ledger, event: Any, *, stage: str, count: int = 1) -> None:
        real(self, event, stage=stage, count=max(1, count - 1))

    patch.setattr(Ledger, "charge", forgets)


def used_before_the_ledger_is_synced(patch: pytest.MonkeyPatch) -> None:
    real = Ledger.charge
    late: list[tuple[Ledger, Any, dict[str, Any]]] = []

    def later(self: Ledger, event: Any, **arguments: Any) -> None:
        while late:
            ledger, old, kept = late.pop(0)
            real(ledger, old, **kept)
        late.append((self, event, arguments))

    patch.setattr(Ledger, "charge", later)


def replace_one_accounted_as_add_remove(patch: pytest.MonkeyPatch) -> None:
    real = accounting.calibrate

    def forgets(*arguments: Any, **named: Any) -> float:
        return real(*arguments, **{**named, "neighboring_relation": "add_remove"})

    for module in ("dpml.accounting.calibrate", "dpml.erm.objective.calibrate"):
        patch.setattr(module, forgets)


def noise_seeded_from_the_config(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dpml.trainer.default_noise", lambda: FixedNoise(1))


def actual_n_in_the_plan(patch: pytest.MonkeyPatch) -> None:
    real = PrivateTrainer.plan

    def peeks(self: PrivateTrainer, data: PrivateData) -> Any:
        seen = copy.copy(data)
        seen.public = replace(data.public, n_declared=len(data.load(FixedNoise(0)).y))
        return real(self, seen)

    patch.setattr(PrivateTrainer, "plan", peeks)


def metrics_of_private_data_published(patch: pytest.MonkeyPatch) -> None:
    real = PrivateTrainer._run

    def leaks(self: PrivateTrainer, plan: Any, public: PublicInfo, records: Records, ledger: Any, folder: Any,
                progress: Any, *rest: Any) -> Any:  # fmt: skip
        return real(self, plan, replace(public, test_is_public=True), records, ledger, folder, progress, *rest)

    patch.setattr(PrivateTrainer, "_run", leaks)


def regularization_in_sum_form(patch: pytest.MonkeyPatch) -> None:
    for module in ("dpml.erm.output.sum_form", "dpml.erm.objective.sum_form"):
        patch.setattr(module, lambda value, n_declared: None if value == "auto" else float(value))


def promise_not_compared(patch: pytest.MonkeyPatch) -> None:
    real = running.recompute

    def trusting(trainer: PrivateTrainer, plan: Any, ledger: Ledger) -> Any:
        try:
            return real(trainer, plan, ledger)
        except LedgerError:
            return plan.guarantee, "best"

    patch.setattr("dpml.trainer.recompute", trusting)


def charges_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dpml.running.flatten", lambda event: None)


BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[Path], None]]] = [
    (one_step_not_recorded, check_ledger_holds_the_whole_plan),
    (used_before_the_ledger_is_synced, check_charge_is_on_disk_before_use),
    (replace_one_accounted_as_add_remove, check_relation_reaches_the_accountant),
    (noise_seeded_from_the_config, check_noise_is_not_the_seed_s),
    (actual_n_in_the_plan, check_plan_ignores_the_number_of_records),
    (metrics_of_private_data_published, check_private_metrics_stay_private),
    (regularization_in_sum_form, check_regularization_is_the_mean_form),
    (promise_not_compared, check_nothing_is_released_above_the_promise),
    (charges_not_compared, check_every_charge_must_be_there),
]


@pytest.mark.parametrize("check", {check.__name__: check for _, check in BUGS}.values(), ids=lambda c: c.__name__)
def test_checks_pass_unpatched(check: Callable[[Path], None], tmp_path: Path) -> None:
    check(tmp_path)


@pytest.mark.parametrize(("bug", "check"), BUGS, ids=lambda f: f.__name__)
def test_bug_is_caught(
    bug: Callable[[pytest.MonkeyPatch], None],
    check: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, LedgerError, pytest.fail.Exception)):
        check(tmp_path)
