"""Fixtures that several test folders share: a small private table, noise doubles, an in-process command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

SCHEMA: dict[str, Any] = {
    "name": "people",
    "n_declared": 400,
    "target": {"name": "label", "classes": ["no", "yes"]},
    "norm_bound": 1.0,
    "columns": {
        "age": {"kind": "numeric", "bounds": [0, 100], "knots": 4},
        "money": {"kind": "numeric", "bounds": [0, 10000], "scale": "log1p", "knots": 4},
        "town": {"kind": "categorical", "categories": ["a", "b", "c"], "on_invalid": "other"},
    },
}


def people(n: int = 420, seed: int = 0) -> pd.DataFrame:
    """A made-up table; ``yes`` becomes likelier with age and in town b."""
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 100, n).round(1)
    town = rng.choice(["a", "b", "c"], n)
    score = (age - 50) / 15 + np.where(town == "b", 1.5, 0.0)
    label = np.where(rng.random(n) < 1 / (1 + np.exp(-score)), "yes", "no")
    return pd.DataFrame({"age": age, "money": rng.exponential(800, n).round(2), "town": town, "label": label})


def write_people(folder: Path, frame: pd.DataFrame | None = None, **changes: Any) -> tuple[Path, Path]:
    """The table as CSV and its schema; ``changes`` replace top-level keys of the schema."""
    folder.mkdir(parents=True, exist_ok=True)
    table, schema = folder / "people.csv", folder / "people.json"
    (people() if frame is None else frame).to_csv(table, index=False)
    schema.write_text(json.dumps({**SCHEMA, **changes}), "utf-8")
    return table, schema


class ZeroNoise:
    """A noise source without noise: what is left is the data's own part.  Never private."""

    secret = False

    def normal(self, std: float, shape: Any) -> np.ndarray:
        return np.zeros(shape)

    def uniform(self, size: Any) -> np.ndarray:
        return np.zeros(size)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """``cli("data=…", …) -> (exit status, stdout, stderr)`` of ``python -m dpml.train`` inside this process."""
    from hydra.core.global_hydra import GlobalHydra

    from dpml import train

    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", ["dpml.train", *arguments])
        try:
            status = train.main()
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 1
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
