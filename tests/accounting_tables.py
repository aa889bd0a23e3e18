"""Rows of the reference tables in tests/reference (each row names its source and tolerance)."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpml import accounting as acc

FOLDER = Path(__file__).resolve().parent / "reference"


def rows(table: str, *quantities: str) -> list[dict[str, Any]]:
    """The rows of a table with one of these quantities; at least one of each must exist."""
    content = json.loads((FOLDER / f"{table}.json").read_text(encoding="utf-8"))
    found = [row for row in content["rows"] if row["quantity"] in quantities]
    assert {row["quantity"] for row in found} == set(quantities)
    return found


def value(text: str) -> float:
    """A decimal or a fraction as float."""
    return float(Fraction(text)) if "/" in text else float(text)


def inputs(row: dict[str, Any]) -> dict[str, float]:
    """The scalar inputs of a row as floats."""
    return {key: value(item) for key, item in row["inputs"].items() if isinstance(item, str) and key != "curve"}


def close(row: dict[str, Any], got: float, low: float | None = None) -> bool:
    """Whether ``got`` meets the row's own tolerance; ``low`` clips the expected value from below."""
    expected = value(row["value"])
    if low is not None:
        expected = max(low, expected)
    return abs(got - expected) <= float(row["rtol"]) * abs(expected) + float(row["atol"])


def sampled_event(row: dict[str, Any]) -> acc.Event:
    """The composed sub-sampled Gaussian of a row (or of its segments)."""
    parts = row["inputs"].get("segments", [row["inputs"]])
    return acc.Composed(
        tuple(
            acc.SelfComposed(
                acc.PoissonSampled(value(part["sampling_probability"]), acc.Gaussian(value(part["noise_multiplier"]))),
                int(part["steps"]),
            )
            for part in parts
        )
    )


def relation_of(row: dict[str, Any]) -> str:
    """The neighbouring relation that the quantity's name states."""
    return "replace_one" if "replace_one" in row["quantity"] else "add_remove"
