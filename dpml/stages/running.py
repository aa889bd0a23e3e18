"""How stages are carried out: charged and synced first, then drawn once, then kept.

What a stage gave is public once it is charged, and is kept in ``private/stages.json`` until the release is written, so
that a resumed run shows it again instead of drawing it again.  A stage that was charged and not kept is lost: its noise
may have been drawn, so it is never run a second time, and the result says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from dpml.accounting import Ledger
from dpml.data import Encoder, NumericColumn, PrivateData, PublicInfo, Records, Schema
from dpml.data.encoder import numbers
from dpml.data.image_source import ImageRows, finished
from dpml.data.table import encode_cells
from dpml.errors import RunFolderError
from dpml.mechanisms import NoiseSource
from dpml.ranges import is_number
from dpml.release import PrivateModel, RunFolder

from .categories import places
from .metrics import SOURCE
from .planning import Stage, Stages

STAGES_FILE = "stages.json"
LOST = "charged, and lost when the run was stopped: it is not run again"
HOW = "charged noise"

Kept = dict[str, Any]


class CoinSource(Protocol):
    """What decides splits of the records."""

    def uniform(self, size: int) -> np.ndarray: ...


def run_stage(stage: Stage, ledger: Ledger, folder: RunFolder | None, kept: Kept, draw: Callable[[], Any]) -> Any:
    """Charge a stage, then draw it and keep what it gave; what is kept or was charged before is not drawn again.

    Returns:
        What it gave, or ``None`` where it was charged and lost.

    Raises:
        LedgerError: the charge could not be written; nothing was drawn.
        RunFolderError: the disk refuses to keep it; the stage is spent.
    """
    if stage.name in kept:
        return kept[stage.name]
    if any(line["stage"] == stage.name for line in ledger.charges):
        return None
    ledger.charge(stage.event, stage=stage.name)
    kept[stage.name] = draw()
    if folder is not None:
        folder.keep(STAGES_FILE, kept)
    return kept[stage.name]


def before_training(
    stages: Stages,
    data: PrivateData,
    ledger: Ledger,
    folder: RunFolder | None,
    noise: NoiseSource,
    split: CoinSource,
    sparse: bool,
    reading: Mapping[str, bool],
) -> tuple[PublicInfo, Records, Kept]:
    """Run the stages that come first, and read the records as what they found says.

    Stages see training records only.  Without stages this is ``data.load``.

    Args:
        stages: of the plan.
        data: the private data.
        ledger, folder: where they are charged and kept.
        noise: of the releases.
        split: of the split into training and hold-out records.
        sparse, reading: arguments of :meth:`~dpml.data.PrivateData.load`.

    Returns:
        What is public after it (the schema with what was found), the records, and what the stages gave.
    """
    kept: Kept = {}
    public = data.public
    if stages.find_columns:
        cells = data.cells(split)
        for name, draw in (("bounds", draw_bounds), ("categories", draw_categories)):
            stage = stages.get(name)
            if stage is not None:
                run_stage(stage, ledger, folder, kept, partial(draw, stage, cells.train, noise))
        public = found_public(public, kept)
        records: Records | ImageRows = encode_cells(cells, _encoder(public), sparse)
    elif stages.get("center") is not None:
        records = data.image_rows(split)
    else:
        records = data.load(split, sparse=sparse, **reading)
    labels, center = stages.get("labels"), stages.get("center")
    if labels is not None:
        run_stage(labels, ledger, folder, kept, lambda: labels.part.release(records.y, public.classes, noise))
    if isinstance(records, ImageRows):
        assert center is not None
        rows = records.X
        run_stage(center, ledger, folder, kept, lambda: center.part.release(rows, noise))
        public = centred_public(public, kept)
        records = finished(records, public)
    return public, records, kept


def before_training_again(
    stages: Stages,
    data: PrivateData,
    folder: RunFolder,
    split: CoinSource,
    sparse: bool,
    reading: Mapping[str, bool],
) -> tuple[PublicInfo, Records, Kept]:
    """The same for a resumed run: nothing is charged or drawn, what the stages gave is read from ``private/``.

    Raises:
        RunFolderError: that file is missing or damaged, or does not fit the released schema.
    """
    kept: Kept = _read(folder, stages) if stages else {}
    if stages.get("center") is not None:
        try:
            public = centred_public(data.public, kept)
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(folder, type(error).__name__) from error
        return public, finished(data.image_rows(split), public), kept
    if not stages.find_columns:
        return data.public, data.load(split, sparse=sparse, **reading), kept
    try:
        public = found_public(data.public, kept)
        same = hashlib.sha256(_schema_text(public)).hexdigest() == _digest(folder)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
        raise _damaged(folder, type(error).__name__) from error
    if not same:
        raise _damaged(folder, "it does not fit release/schema.json")
    return public, encode_cells(data.cells(split), _encoder(public), sparse), kept


def after_training(
    stages: Stages,
    model: PrivateModel,
    records: Records,
    ledger: Ledger,
    folder: RunFolder | None,
    noise: NoiseSource,
    kept: Kept,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the metrics stage on the hold-out.

    Returns:
        ``(metrics, stages)`` of the result: the values with intervals by flat names, and what all stages gave.
    """
    metrics: dict[str, Any] = {}
    stage = stages.get("metrics")
    if stage is not None:
        assert records.X_test is not None
        assert records.y_test is not None
        rows, labels = records.X_test, records.y_test
        given = run_stage(stage, ledger, folder, kept, lambda: stage.part.release(model, rows, labels, noise))
        metrics = flat_metrics(given)
    shown = {
        stage.name: {"how": HOW, **kept[stage.name]} if stage.name in kept else {"how": LOST} for stage in stages.stages
    }
    if "center" in shown:  # thousands of numbers, which stand in the released model's preprocessing
        shown["center"].pop("values", None)
    return metrics, shown


def flat_metrics(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """``accuracy``, ``accuracy_low``, ``accuracy_high``, …, for ``metrics`` of ``result.json``."""
    if given is None:
        return {}
    flat: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, Mapping):
            flat |= {name: value["value"], f"{name}_low": value["low"], f"{name}_high": value["high"]}
    flat |= {name: value for name, value in given.items() if name != "noisy_records" and name not in flat}
    return {**flat, "how": HOW, "source": SOURCE}


def found_public(public: PublicInfo, kept: Mapping[str, Any]) -> PublicInfo:
    """The public description with the bounds and categories that the stages found."""
    assert public.schema is not None
    schema = Schema.from_dict(public.schema)
    found = []
    for column in schema.open_columns:
        if isinstance(column, NumericColumn):
            low, high = kept["bounds"]["columns"][column.name]["bounds"]
            found.append(replace(column, bounds=(float(low), float(high)), magnitude=None))
        else:
            listed = kept["categories"]["columns"][column.name]["categories"]
            found.append(replace(column, categories=places(column, listed), most=None))  # type: ignore[arg-type]
    return replace(public, schema=schema.with_columns(found).to_dict())


def centred_public(public: PublicInfo, kept: Mapping[str, Any]) -> PublicInfo:
    """The public description with the centre that the stage found."""
    return replace(public, preprocessing={**public.preprocessing, "center": str(kept["center"]["values"])})


def draw_bounds(stage: Stage, frame: Any, noise: NoiseSource) -> dict[str, Any]:
    """What the columns of a frame of training records give; charging comes first."""
    found = {name: part.release(numbers(frame[name]), noise) for name, part in stage.parts.items()}
    return {"columns": found}


def draw_categories(stage: Stage, frame: Any, noise: NoiseSource) -> dict[str, Any]:
    """The same for the categories."""
    return {"columns": {name: part.release(frame[name], noise) for name, part in stage.parts.items()}}


def _encoder(public: PublicInfo) -> Encoder:
    assert public.schema is not None
    encoder = Encoder(Schema.from_dict(public.schema))
    assert encoder.n_features == public.n_features  # the plan's, whatever was found
    return encoder


def _schema_text(public: PublicInfo) -> bytes:
    from dpml.results import dumps

    return (dumps(public.schema) + "\n").encode()


def _digest(folder: RunFolder) -> str:
    return hashlib.sha256((folder.release / "schema.json").read_bytes()).hexdigest()


def _read(folder: RunFolder, stages: Stages) -> Kept:
    path = folder.private / STAGES_FILE
    try:
        found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        if not isinstance(found, dict):
            raise TypeError("no object")
        for name, given in found.items():
            _check_kept(name, given, stages)
        return found
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise _damaged(folder, type(error).__name__) from error


def _check_kept(name: str, given: Any, stages: Stages) -> None:
    """TypeError unless it can be what a stage of this plan gave; what bounds and categories hold is compared later."""
    if stages.get(name) is None or not isinstance(given, dict):
        raise TypeError(f"{name!r} is no stage's")
    if name == "metrics":
        values = [value for value in given.values() if isinstance(value, dict)]
        flat = [value for value in given.values() if not isinstance(value, dict)]
        ends = [[value.get(end) for end in ("value", "low", "high")] for value in values]
        if not all(is_number(number) for number in (*flat, *(end for three in ends for end in three))):
            raise TypeError("metrics hold what is no number")


def _damaged(folder: RunFolder, why: str) -> RunFolderError:
    return RunFolderError(
        f"{str(folder.private / STAGES_FILE)!r} does not hold what the charged stages gave ({why}), and they are not "
        "run again; nothing was charged. Put the run's own file back, or start a new run (what this one charged stays "
        "spent)."
    )
