"""A small private table with its schema, for tests of every layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

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


def comparable(release: Path, name: str) -> Any:
    """A file of ``release/`` without what follows from the noisy weights: their digest, and hashes over it."""
    raw = (release / name).read_bytes()
    if name == "ledger.jsonl":
        lines = raw.splitlines()
        last = json.loads(lines[-1])
        assert last["kind"] == "closed"
        last["outcome"]["files"].pop("model.safetensors")
        last.pop("hash")
        return lines[:-1], last
    if name == "result.json":
        result = json.loads(raw)
        result["ledger"].pop("head")
        return result
    return raw
