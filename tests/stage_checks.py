"""Tables, runs and checks of stages that tests and planted bugs share."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from small_tables import SCHEMA, people, write_people

from dpml import PrivateData, PrivateTrainer, accounting
from dpml.data import CategoricalColumn, Schema
from dpml.mechanisms import FixedNoise
from dpml.release import PrivateModel, RunFolder
from dpml.stages.bounds import BoundsFinder
from dpml.stages.categories import CategoryFinder
from dpml.stages.labels import LabelCounter
from dpml.stages.metrics import MetricsMaker

SHARES = {"bounds": 0.1, "categories": 0.1, "labels": 0.05, "metrics": 0.1}
N = 4000
RELATIONS = ("add_remove", "replace_one")


def open_schema(**changes: Any) -> dict[str, Any]:
    """The small table's schema with nothing declared that a stage can find."""
    schema = copy.deepcopy(SCHEMA)
    schema["n_declared"] = N
    schema["columns"]["age"]["bounds"] = "private"
    schema["columns"]["money"] |= {"bounds": "private", "magnitude": [1, 65536]}
    schema["columns"]["town"] = {"kind": "categorical", "categories": "discover", "most": 5}
    schema["columns"] |= changes
    return schema


def open_table(folder: Path, frame: pd.DataFrame | None = None, *, test_fraction: float | None = 0.25) -> PrivateData:
    table, schema = write_people(folder, people(N) if frame is None else frame, **open_schema())
    return PrivateData.from_table(table, schema=schema, test_fraction=test_fraction)


def stage_trainer(method: str = "output", **changes: Any) -> PrivateTrainer:
    if method == "dp_sgd":
        changes = {"steps": 6, "expected_batch_size": 200, "checkpoint_every": 2, **changes}
    return PrivateTrainer(method=method, **{"epsilon": 4.0, "delta": 1e-5, "shares": SHARES, **changes})


def charges(folder: Path) -> list[tuple[str, Any]]:
    """(stage, event as JSON) of each charge in a run's ledger."""
    return [(line["stage"], line["event"]) for line in accounting.read_ledger(folder / "release/ledger.jsonl").charges]


def result_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "release/result.json").read_text()))


class Watching(FixedNoise):
    """Test noise that notes which stages are charged on disk whenever something is drawn."""

    def __init__(self, seed: int, ledger: Path) -> None:
        super().__init__(seed)
        self.ledger = ledger
        self.seen: list[tuple[str, ...]] = []

    def uniform(self, size: Any) -> np.ndarray:
        self._note()
        return super().uniform(size)

    def normal(self, std: float, shape: Any) -> np.ndarray:
        self._note()
        return super().normal(std, shape)

    def _note(self) -> None:
        record = accounting.read_ledger(self.ledger)
        stages = tuple(line["stage"] for line in record.charges)
        if not self.seen or self.seen[-1] != stages:
            self.seen.append(stages)


# -- checks -----------------------------------------------------------------------------------------------------------
def check_every_stage_is_charged_before_it_draws(folder: Path) -> None:
    """Noise is drawn under growing lists of charges, one stage more each time, and the result verifies."""
    noise = Watching(0, folder / "run/release/ledger.jsonl")
    data = open_table(folder / "data")
    result = stage_trainer(run_dir=folder / "run", noise_source=noise).fit(data)
    order = ("bounds", "categories", "labels", "train", "metrics")
    assert noise.seen == [order[:k] for k in range(6)]  # the coins of the split come first, nothing being charged
    assert [name for name, _ in charges(folder / "run")] == list(order)
    assert accounting.epsilon(result.plan.event, 1e-5) <= 4.0
    verification = accounting.verify(folder / "run", allow_test_noise=True)
    assert verification.ok, verification.problems


def check_bounds_are_noisy(folder: Path) -> None:
    """A single far record never moves the bounds: its bin's noisy count stays below the threshold.

    Wrong with probability e^{-threshold/scale} < 1e-6 a run under the noise, here with a fixed source.
    """
    frame = people(N)
    frame.loc[0, "age"] = 1e9
    frame.loc[1, "money"] = 60000.0
    result = stage_trainer(noise_source=FixedNoise(5)).fit(open_table(folder / "data", frame))
    found = result.stages["bounds"]["columns"]
    assert found["age"]["bounds"][1] <= 128.0
    assert found["money"]["bounds"][1] <= 16384.0


def check_metrics_use_the_noisy_count(folder: Path) -> None:
    """Every metric is what the noisy whole numbers give; the number of hold-out records is used nowhere."""
    del folder
    maker, model = MetricsMaker(2, False, 0.5, "add_remove"), linear_model()
    X, y = rows_of(400)
    tallies, noise = maker.tallies(model, X, y), FixedNoise(3)
    noisy = {name: maker.mechanisms[name].release(tallies[name], noise).value for name in maker.names}
    given = maker.release(model, X, y, FixedNoise(3))
    right, wrong = (int(count) for count in noisy["accuracy"])
    assert right + wrong != 400
    assert given["noisy_records"] == right + wrong
    assert given["accuracy"]["value"] == pytest.approx(right / (right + wrong), abs=1e-12)
    mean = 0.5 + int(noisy["loss"][0]) / 4096 / (right + wrong)
    assert given["loss"]["value"] == pytest.approx(4 * np.log(2) * mean, rel=1e-12)


def check_one_record_changes_one_key(folder: Path) -> None:
    """However a table keeps its columns beside an odd record, one count of one key moves, by one."""
    del folder
    column = Schema.from_dict(open_schema()).column("town")
    assert isinstance(column, CategoricalColumn)
    finder = CategoryFinder(column, 1.0, 1e-5, "add_remove")
    for numbers, texts in READINGS:
        alone = finder.counts(pd.Series(numbers))
        beside = finder.counts(pd.Series([*texts, "odd"], dtype=object))
        assert sum(alone.values()) == len(numbers)
        assert beside == {**alone, "odd": 1}, (numbers, texts)


READINGS: list[tuple[list[Any], list[str]]] = [  # a column as a reader that guesses keeps it, and its cells as texts
    ([1234, 2345, 1234], ["01234", "02345", "1234"]),
    ([1.0, 2.5, 2.5], ["1.0", "2.50", "2.5"]),
    ([1000.0, 1.0, -2.0], ["1e3", "1", "-2.00"]),
    ([True, False, True], ["true", "FALSE", "True"]),
    ([2**53 + 1, 2**53, -7], [str(2**53 + 1), str(2**53), "-07"]),
    ([2.0**53, 2.0**53, -7.0], [str(2**53 + 1), str(2**53), "-07"]),  # beside a missing cell
    ([1e30, 0.1, 0.0], ["1e30", ".1", "-0"]),
]


def check_hold_out_is_not_trained_on(folder: Path) -> None:
    """Hold-out records change neither the trained weights nor what the stages before the training found."""
    found = []
    for k, test_seed in enumerate((1, 2)):
        table, schema = write_people(folder / str(k), people(N), **open_schema())
        other = folder / f"test{k}.csv"
        frame = people(900 + 50 * k, seed=test_seed)
        frame["age"] += 2000.0 * k
        frame["town"] = "z" if k else frame["town"]
        frame.to_csv(other, index=False)
        data = PrivateData.from_table(table, schema=schema, test_path=other)
        result = stage_trainer(noise_source=FixedNoise(7), run_dir=folder / f"run{k}").fit(data)
        before = {name: result.stages[name] for name in ("bounds", "categories", "labels")}
        found.append((before, result.model.weights["weight"], (folder / f"run{k}/release/schema.json").read_bytes()))
    assert found[0][0] == found[1][0]
    assert found[0][2] == found[1][2]
    np.testing.assert_array_equal(found[0][1], found[1][1])


def check_resume_runs_no_stage_again(folder: Path) -> None:
    """Killed between two blocks of training: what the stages found stays, each is charged once."""
    killed = killed_in_training(folder)
    before = json.loads((killed / "private/stages.json").read_text())

    def drawn_again(self: Any, *_: Any) -> None:
        raise AssertionError(f"{type(self).__name__} was drawn again")

    with pytest.MonkeyPatch.context() as patch:
        for finder in (BoundsFinder, CategoryFinder, LabelCounter):
            patch.setattr(finder, "release", drawn_again)
        result = PrivateTrainer.resume(killed, open_table(folder / "data"))
    assert [name for name, _ in charges(killed)] == ["bounds", "categories", "labels", "train", "train", "train",
                                                     "metrics"]  # fmt: skip
    for name in ("bounds", "categories", "labels"):
        assert result.stages[name] == {"how": "charged noise", **before[name]}
    verification = accounting.verify(killed)
    assert verification.ok, verification.problems


def check_lost_metrics_are_not_drawn_again(folder: Path) -> None:
    """Killed after the metrics were charged and before they were kept: the next life shows none, and says why."""
    real = RunFolder.keep

    def keep(self: RunFolder, name: str, content: Any) -> Path:
        if name == "stages.json" and "metrics" in content:
            raise KeyboardInterrupt
        return real(self, name, content)

    data = open_table(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "keep", keep)
        with pytest.raises(KeyboardInterrupt):
            stage_trainer("dp_sgd", run_dir=folder / "run").fit(data)
    result = PrivateTrainer.resume(folder / "run", data)
    assert [name for name, _ in charges(folder / "run")].count("metrics") == 1
    assert result.metrics == {}
    assert result.stages["metrics"] == {"how": "charged, and lost when the run was stopped: it is not run again"}
    assert "counts" in result.stages["labels"]
    assert accounting.verify(folder / "run").ok


def killed_in_training(folder: Path) -> Path:
    """A DP-SGD run that died after its first checkpoint."""
    from dpml import running

    real = running.write_checkpoint

    def killed(*arguments: Any) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "write_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            stage_trainer("dp_sgd", run_dir=folder / "run").fit(open_table(folder / "data"))
    return folder / "run"


# -- small parts ------------------------------------------------------------------------------------------------------
def rows_of(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, 2) and labels that the first feature decides but for some noise."""
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, 2)) / 4
    return X, (X[:, 0] + rng.normal(size=n) / 8 > 0).astype(np.int64)


def linear_model(kind: str = "logreg") -> PrivateModel:
    return PrivateModel(kind, {"weight": np.array([6.0, 0.0])}, (0, 1), {})
