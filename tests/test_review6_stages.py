"""A damaged ``private/stages.json``: whatever its inner types, resuming says that the run folder is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import stage_checks as checks
from stage_checks import open_table

from dpml import PrivateTrainer
from dpml.errors import RunFolderError

HUGE = int("9" * 400)


def _set(kept: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        kept = kept[name]
    kept[path[-1]] = value


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    checks.killed_in_training(folder)
    return folder


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("bounds", "columns", "age", "bounds"), [0, HUGE]),
        (("bounds", "columns", "age", "bounds"), [[0], 1]),
        (("categories", "columns", "town", "categories"), [["a"], 3]),
        (("labels",), ["no", "object"]),
        (("labels",), 5),
        (("metrics",), 5),
        (("metrics",), {"accuracy": {}}),
        (("metrics",), {"accuracy": {"value": "a", "low": 0.1, "high": 0.2}}),
        (("other",), {}),
    ],
)
def test_wrong_inner_types_are_a_damaged_folder(path: tuple[str, ...], value: Any, killed: Path) -> None:
    run = killed / "run"
    file = run / "private/stages.json"
    whole, before = file.read_text(), checks.charges(run)
    kept = json.loads(whole)
    _set(kept, path, value)
    try:
        file.write_text(json.dumps(kept))
        with pytest.raises(RunFolderError, match="does not hold what the charged stages gave"):
            PrivateTrainer.resume(run, open_table(killed / "data"))
    finally:
        file.write_text(whole)
    assert checks.charges(run) == before
