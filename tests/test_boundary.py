"""Neighbouring data sets under a fixed test noise source: nothing in ``release/`` differs except charged noisy values.

The one file that may differ is the model: its weights are what the noise was added to.  Metrics of a test set declared
public are a function of the released model, so the tables here have a private test set or none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from small_tables import comparable, people, write_people

from dpml import PrivateData, PrivateTrainer, load
from dpml.mechanisms import FixedNoise

METHODS = ("dp_sgd", "output", "objective")
CHARGED = "model.safetensors"


def without_last(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.iloc[:-1]


def with_nan(frame: pd.DataFrame) -> pd.DataFrame:
    extra = pd.DataFrame({"age": [None], "money": [float("inf")], "town": ["nowhere"], "label": ["yes"]})
    return pd.concat([frame, extra], ignore_index=True)


def with_strange_label(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat(
        [frame, pd.DataFrame({"age": [3], "money": [1], "town": ["a"], "label": ["?"]})], ignore_index=True
    )


def with_far_value(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, pd.DataFrame({"age": [1e300], "money": [-5], "town": ["a"], "label": ["no"]})])


ALL = people()
ONE_CLASS = ALL[ALL.label == "no"].reset_index(drop=True)
ONLY_YES = pd.concat([ONE_CLASS, ALL[ALL.label == "yes"].iloc[:1]], ignore_index=True)
PAIRS: dict[str, tuple[pd.DataFrame, pd.DataFrame]] = {
    "one record less": (ALL, without_last(ALL)),
    "a record of NaN, infinity and an unknown town": (ALL, with_nan(ALL)),
    "a label that is not declared": (ALL, with_strange_label(ALL)),
    "values far outside the bounds": (ALL, with_far_value(ALL)),
    "the only record of its class": (ONE_CLASS, ONLY_YES),
    "the only usable record": (with_strange_label(ALL.iloc[:0]), with_strange_label(ALL.iloc[:1])),
}


def run(folder: Path, frame: pd.DataFrame, method: str, capsys: pytest.CaptureFixture[str], **data: Any) -> str:
    table, schema = write_people(folder / "data", frame)
    changes: dict[str, Any] = (
        {"steps": 6, "expected_batch_size": 50, "checkpoint_every": 2} if method == "dp_sgd" else {}
    )
    trainer = PrivateTrainer(
        method=method, epsilon=1.0, delta=1e-4, noise_source=FixedNoise(3), run_dir=folder / "run", **changes
    )
    source = PrivateData.from_table(table, schema=schema, **data)
    print(trainer.plan(source))
    result = trainer.fit(source, progress=lambda *numbers: print(*numbers))
    print(result.guarantee, result.ledger["count"])
    return capsys.readouterr().out


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("method", METHODS)
def test_release_differs_only_where_noise_was_added(
    method: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = [run(tmp_path / str(k), frame, method, capsys) for k, frame in enumerate(PAIRS[name])]
    assert outputs[0] == outputs[1]
    releases = [tmp_path / str(k) / "run/release" for k in range(2)]
    names = [{file.name for file in release.iterdir()} for release in releases]
    assert names[0] == names[1]
    for file in sorted(names[0] - {CHARGED}):
        assert comparable(releases[0], file) == comparable(releases[1], file), file
    models = [load(release) for release in releases]
    assert models[0].classes == models[1].classes
    assert (releases[0] / CHARGED).stat().st_size == (releases[1] / CHARGED).stat().st_size
    assert set(models[0].weights) == set(models[1].weights)
    if name == "one record less":  # the comparison is not vacuous: the record does flow into the noisy weights
        assert (models[0].weights["weight"] != models[1].weights["weight"]).any()


@pytest.mark.parametrize("method", METHODS)
def test_a_private_hold_out_stays_private(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for k, frame in enumerate(PAIRS["one record less"]):
        run(tmp_path / str(k), frame, method, capsys, test_fraction=0.3)
    results = [comparable(tmp_path / str(k) / "run/release", "result.json") for k in range(2)]
    assert results[0] == results[1]
    assert results[0]["metrics"] == {}
    assert results[0]["plan"]["data"]["n_declared"] == 280


def test_a_value_that_was_not_charged_would_be_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness itself: writing the number of records into the ledger's closing line makes the comparison fail."""
    from dpml.accounting import Ledger

    real_close = Ledger.close
    for k, frame in enumerate(PAIRS["one record less"]):
        size = len(frame)
        monkeypatch.setattr(Ledger, "close", lambda self, outcome, size=size: real_close(self, {**outcome, "n": size}))
        run(tmp_path / str(k), frame, "objective", capsys)
    ledgers = [comparable(tmp_path / str(k) / "run/release", "ledger.jsonl") for k in range(2)]
    assert ledgers[0] != ledgers[1]
