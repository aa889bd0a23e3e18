"""Planted bugs in the stages of a run: each entry patches one seam, and the named check must fail under it.

Every check passes unpatched (``test_checks_pass_unpatched``), so a failure is due to the patch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import stage_checks as checks
from stage_checks import open_schema, open_table, rows_of, stage_trainer

from dpml import PrivateData, accounting
from dpml.accounting import Ledger, Pure
from dpml.data import Records, Schema, table
from dpml.errors import LedgerError
from dpml.mechanisms import DiscreteLaplaceMechanism
from dpml.mechanisms.answers import Answer
from dpml.release import PrivateModel
from dpml.stages import planning, running
from dpml.stages.bounds import BoundsFinder
from dpml.stages.categories import CategoryFinder
from dpml.stages.labels import LabelCounter
from dpml.stages.metrics import MetricsMaker


# -- checks that only this file has -----------------------------------------------------------------------------------
def check_replacing_a_record_costs_no_more_than_declared(folder: Path) -> None:
    """Under replace_one two counts change: every stage's noise has the scale 2·(its unit)/ε."""
    del folder
    assert BoundsFinder((1.0, 16.0), 0.5, "replace_one").mechanism.scale >= 2 / 0.5
    assert LabelCounter(2, 0.5, "replace_one").mechanism.scale >= 2 / 0.5
    made = MetricsMaker(2, False, 0.5, "replace_one")
    assert made.mechanisms["accuracy"].scale >= 2 / (0.5 * 0.4)


def check_the_whole_is_within_the_budget(folder: Path) -> None:
    """What the ledger charged costs at most ε, whichever way the training was calibrated."""
    del folder
    X, y = rows_of(300)
    data = PrivateData.from_arrays(X, y, X_test=X, y_test=y, norm_bound=1.0, classes=[0, 1], n_declared=300)
    for method in ("dp_sgd", "dp_gd", "output", "objective"):
        plan = stage_trainer(method, epsilon=1.0, delta=1e-4, shares={"labels": 0.1, "metrics": 0.2}).plan(data)
        assert accounting.epsilon(plan.event, 1e-4) <= 1.0, method
        charged = {stage.name for stage in plan.stages.stages}
        assert charged == {"labels", "metrics"}
        assert len(plan.event.events) == 3


def check_a_lost_charge_stops_the_release(folder: Path) -> None:
    """A stage whose charge never reached the ledger: nothing is released."""
    real = Ledger.charge

    def only_training(self: Ledger, event: Any, *, stage: str, count: int = 1) -> None:
        if stage == "train":
            real(self, event, stage=stage, count=count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "charge", only_training)
        with pytest.raises(LedgerError, match="not what the plan says"):
            stage_trainer(run_dir=folder / "run").fit(open_table(folder / "data"))
    assert not (folder / "run/release/result.json").exists()


def check_a_text_of_one_record_is_not_listed(folder: Path) -> None:
    """1000 texts that one record each has: none is listed (each is with probability below 1e-5 under the noise)."""
    del folder
    part = CategoryFinder(Schema.from_dict(open_schema()).column("town"), 1.0, 1e-5, "add_remove")
    assert part.release(pd.Series([f"text {k}" for k in range(1000)]), checks.FixedNoise(1))["listed"] == 0


def check_a_record_that_raises_stops_nothing(folder: Path) -> None:
    """A module that raises at one hold-out record: that record counts as wrong, the others as they are."""
    del folder
    import torch

    class Picky(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if (rows > 50).any():
                raise ValueError
            return rows[:, 0]

    made, model = MetricsMaker(2, False, 1.0, "add_remove"), PrivateModel("module", {}, (0, 1), {}, module=Picky())
    X = np.array([[1.0, 0.0], [99.0, 0.0], [-1.0, 0.0]])
    try:
        found = made.tallies(model, X, np.array([1, 1, 0]))
    except ValueError:
        pytest.fail("one record stopped the stage")
    assert found["accuracy"].tolist() == [2, 1]


# -- the bugs ---------------------------------------------------------------------------------------------------------
def stage_is_not_charged(patch: pytest.MonkeyPatch) -> None:
    real = Ledger.charge

    def charge(self: Ledger, event: Any, *, stage: str, count: int = 1) -> None:
        if stage != "bounds":
            real(self, event, stage=stage, count=count)

    patch.setattr(Ledger, "charge", charge)
    patch.setattr("dpml.trainer.recompute", lambda trainer, plan, ledger: (plan.guarantee, "best"))


def stage_is_charged_after_it_drew(patch: pytest.MonkeyPatch) -> None:
    def late(stage: Any, ledger: Ledger, folder: Any, kept: dict[str, Any], draw: Callable[[], Any]) -> Any:
        kept[stage.name] = draw()
        ledger.charge(stage.event, stage=stage.name)
        return kept[stage.name]

    patch.setattr(running, "run_stage", late)


def bounds_without_noise(patch: pytest.MonkeyPatch) -> None:
    def release(self: BoundsFinder, values: np.ndarray, noise: Any) -> dict[str, Any]:
        del noise
        known = values[np.isfinite(values)]
        return {"bounds": [float(known.min()), float(known.max())], "occupied_bins": 1}

    patch.setattr(BoundsFinder, "release", release)


def any_occupied_bin_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BoundsFinder, "threshold", 1)


def metrics_from_the_actual_count(patch: pytest.MonkeyPatch) -> None:
    real = MetricsMaker.release

    def release(self: MetricsMaker, model: Any, rows: Any, labels: Any, noise: Any) -> dict[str, Any]:
        found = real(self, model, rows, labels, noise)
        right = found["accuracy"]["value"] * found["noisy_records"]
        return {**found, "accuracy": {**found["accuracy"], "value": right / len(labels)}}

    patch.setattr(MetricsMaker, "release", release)


def metrics_without_noise(patch: pytest.MonkeyPatch) -> None:
    real = MetricsMaker.release

    def bare(self: DiscreteLaplaceMechanism, value: Any, noise: Any = None) -> Answer:
        del noise
        return Answer(np.asarray(value), self)

    def release(self: MetricsMaker, *arguments: Any) -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(DiscreteLaplaceMechanism, "release", bare)
            return real(self, *arguments)

    patch.setattr(MetricsMaker, "release", release)


def hold_out_is_trained_on(patch: pytest.MonkeyPatch) -> None:
    real = table.encode_cells

    def both(*arguments: Any) -> Records:
        records = real(*arguments)
        from scipy import sparse

        stack = sparse.vstack if sparse.issparse(records.X) else np.vstack
        X = stack([records.X, records.X_test])
        X = sparse.csr_array(X) if sparse.issparse(X) else X
        return replace(records, X=X, y=np.concatenate([records.y, records.y_test]))

    patch.setattr(running, "encode_cells", both)


def stages_see_the_hold_out(patch: pytest.MonkeyPatch) -> None:
    real = PrivateData.cells

    def cells(self: PrivateData, noise: Any) -> Any:
        found = real(self, noise)
        return replace(found, train=pd.concat([found.train, found.held_out], ignore_index=True))

    patch.setattr(PrivateData, "cells", cells)


def stage_runs_again_on_resume(patch: pytest.MonkeyPatch) -> None:
    def again(stages: Any, data: Any, folder: Any, split: Any, sparse: Any, reading: Any) -> Any:
        ledger = _Silent()
        return running.before_training(stages, data, ledger, folder, checks.FixedNoise(77), split, sparse, reading)

    patch.setattr("dpml.trainer.before_training_again", again)


def records_are_scored_together(patch: pytest.MonkeyPatch) -> None:
    def together(model: Any, rows: Any) -> Any:
        values = np.asarray(model.decision_values(rows), dtype=float).reshape(len(rows), -1)
        return [row.tolist() for row in values]

    patch.setattr("dpml.stages.metrics.decisions", together)


def a_lost_stage_is_drawn_again(patch: pytest.MonkeyPatch) -> None:
    real = running.run_stage

    def again(stage: Any, ledger: Any, folder: Any, kept: dict[str, Any], draw: Callable[[], Any]) -> Any:
        found = real(stage, ledger, folder, kept, draw)
        return kept.setdefault(stage.name, draw()) if found is None else found

    patch.setattr(running, "run_stage", again)


class _Silent:
    """A ledger that takes charges and forgets them."""

    charges: tuple[Any, ...] = ()

    def charge(self, event: Any, *, stage: str, count: int = 1) -> None:
        pass


def what_a_stage_gave_is_forgotten_on_resume(patch: pytest.MonkeyPatch) -> None:
    real = running.before_training_again

    def again(stages: Any, data: Any, folder: Any, *rest: Any) -> Any:
        found = real(stages, data, folder, *rest)
        found[2].pop("labels")
        return found

    patch.setattr("dpml.trainer.before_training_again", again)


def sensitivity_of_one_under_replace_one(patch: pytest.MonkeyPatch) -> None:
    for module in ("bounds", "labels", "metrics"):
        patch.setattr(f"dpml.stages.{module}.REPLACE_ONE", "never")


def training_forgets_the_stages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dpml.planning.largest_training", lambda make, stages, *, epsilon, delta, **_: make(epsilon, delta))


def noise_is_calibrated_for_training_alone(patch: pytest.MonkeyPatch) -> None:
    from dpml import sgd

    real = sgd.plan_dp_sgd
    patch.setattr(sgd, "plan_dp_sgd", lambda **given: real(**{**given, "run_of": None}))


def gradient_descent_is_calibrated_alone(patch: pytest.MonkeyPatch) -> None:
    from dpml import erm

    real = erm.plan_dp_gd
    patch.setattr(erm, "plan_dp_gd", lambda **given: real(**{**given, "run_of": None}))


def metrics_are_not_in_the_plan_s_event(patch: pytest.MonkeyPatch) -> None:
    real = planning.Stages.around
    patch.setattr(
        planning.Stages,
        "around",
        lambda self, training: real(planning.Stages(tuple(s for s in self.stages if s.name != "metrics")), training),
    )


def what_is_charged_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dpml.trainer.recompute", lambda trainer, plan, ledger: (plan.guarantee, "best"))


def stage_event_is_smaller_than_its_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BoundsFinder, "event", property(lambda self: Pure(self.epsilon / 10)))
    patch.setattr(DiscreteLaplaceMechanism, "exact_scale", property(lambda self: 1))


def threshold_without_its_mass(patch: pytest.MonkeyPatch) -> None:
    from dpml.mechanisms import ThresholdedHistogram

    patch.setattr(ThresholdedHistogram, "threshold", 2)


def a_record_gives_its_text_many_times(patch: pytest.MonkeyPatch) -> None:
    real = CategoryFinder.counts
    patch.setattr(CategoryFinder, "counts", lambda self, cells: {k: 100 * n for k, n in real(self, cells).items()})


def texts_are_keys_as_they_are(patch: pytest.MonkeyPatch) -> None:
    """As it once was: a column of numbers that one record turns into texts has other keys."""
    patch.setattr("dpml.stages.categories.key_of", lambda text: text)


BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[Path], None]]] = [
    (stage_is_not_charged, checks.check_every_stage_is_charged_before_it_draws),
    (stage_is_charged_after_it_drew, checks.check_every_stage_is_charged_before_it_draws),
    (metrics_are_not_in_the_plan_s_event, check_the_whole_is_within_the_budget),
    (bounds_without_noise, checks.check_bounds_are_noisy),
    (any_occupied_bin_counts, checks.check_bounds_are_noisy),
    (stage_event_is_smaller_than_its_noise, check_replacing_a_record_costs_no_more_than_declared),
    (metrics_from_the_actual_count, checks.check_metrics_use_the_noisy_count),
    (metrics_without_noise, checks.check_metrics_use_the_noisy_count),
    (hold_out_is_trained_on, checks.check_hold_out_is_not_trained_on),
    (stages_see_the_hold_out, checks.check_hold_out_is_not_trained_on),
    (records_are_scored_together, check_a_record_that_raises_stops_nothing),
    (stage_runs_again_on_resume, checks.check_resume_runs_no_stage_again),
    (what_a_stage_gave_is_forgotten_on_resume, checks.check_resume_runs_no_stage_again),
    (a_lost_stage_is_drawn_again, checks.check_lost_metrics_are_not_drawn_again),
    (sensitivity_of_one_under_replace_one, check_replacing_a_record_costs_no_more_than_declared),
    (training_forgets_the_stages, check_the_whole_is_within_the_budget),
    (noise_is_calibrated_for_training_alone, check_the_whole_is_within_the_budget),
    (gradient_descent_is_calibrated_alone, check_the_whole_is_within_the_budget),
    (what_is_charged_is_not_compared, check_a_lost_charge_stops_the_release),
    (threshold_without_its_mass, check_a_text_of_one_record_is_not_listed),
    (a_record_gives_its_text_many_times, check_a_text_of_one_record_is_not_listed),
    (texts_are_keys_as_they_are, checks.check_one_record_changes_one_key),
]


@pytest.mark.parametrize("check", dict.fromkeys(check for _, check in BUGS), ids=lambda check: check.__name__)
def test_checks_pass_unpatched(check: Callable[[Path], None], tmp_path: Path) -> None:
    check(tmp_path)


@pytest.mark.parametrize(("bug", "check"), BUGS, ids=lambda item: item.__name__)
def test_bug_is_caught(
    bug: Callable[[pytest.MonkeyPatch], None],
    check: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(tmp_path)
