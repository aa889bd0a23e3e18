"""A schema draft from a table, for a person to complete.

The draft is made by looking at the records, so it is **not private**: bounds, categories and the size in it must be
replaced by what is known without the table.  It carries a key that :meth:`Schema.load` refuses until it is deleted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..errors import DataError
from .columns import closest, text_of
from .csv_lines import MALFORMED, ONE_LINE
from .encoder import numbers
from .private_data import nonempty
from .schema import DRAFT_KEY
from .table import existing, read_header, read_raw, refuse_other_encoding, refuse_other_format

WARNING = (
    "A draft made from private data is not private. Replace n_declared, bounds, categories and classes by what is "
    "known without the table, then delete this line."
)
MAX_CATEGORIES = 50
MAX_CLASSES = 20


def draft(path: str | Path, target: str | None = None) -> dict[str, Any]:
    """See :func:`drafted`; without the note."""
    return drafted(path, target)[0]


def drafted(path: str | Path, target: str | None = None) -> tuple[dict[str, Any], str]:
    """A schema draft as plain JSON values, its first key the warning; and a line on records that cannot be read.

    Args:
        path: CSV, CSV.gz or Parquet.
        target: column to predict, default the last one.

    Raises:
        DataError: the file cannot be read, is empty, or has no such target.
    """
    where = existing(path, "FILE")
    header = read_header(where)
    refuse_other_encoding(header, f"The table {str(path)!r}")
    if len(set(header)) != len(header) or len(header) < 2:
        refuse_other_format(header, f"The table {str(path)!r}")
        raise DataError(f"The table {str(path)!r} needs two or more columns with different names.")
    label = target if target is not None else header[-1]
    if label not in header:
        raise DataError(f"target = {label!r} is no column.{closest(label, header)} They are: {', '.join(header)}.")
    raw = read_raw(where, header)
    frame, lost = raw.frame, ""
    if raw.malformed:
        lost = f"{raw.malformed} lines have {MALFORMED} (line {raw.first_malformed} is the first). {ONE_LINE}."
        if not len(frame):
            refuse_other_format(header, f"The table {str(path)!r}")
            raise DataError(f"The table {str(path)!r} has no line that can be used: {lost}")
    nonempty(len(frame), f"The table {str(path)!r}")
    made = {
        DRAFT_KEY: WARNING,
        "name": where.name.split(".")[0],
        "source": "",
        "is_public": False,
        "n_declared": _round(len(frame)),
        "target": {"name": label, **_target(frame[label])},
        "norm_bound": 1.0,
        "columns": {name: _column(frame[name]) for name in header if name != label},
    }
    return made, f"note: {lost} A run leaves them out." if lost else ""


def left_out(schema: dict[str, Any]) -> str:
    """A line on the columns that the draft ignores, or ``""``."""
    names = [repr(name) for name, column in schema["columns"].items() if column["kind"] == "ignore"]
    if not names:
        return ""
    return (
        f"note: the draft ignores {', '.join(names)}: no numbers, and more than {MAX_CATEGORIES} different texts (or "
        "none). To use such a column, write plain numbers into the table (a date as a year or as days, 1,234.50 as "
        "1234.50) or declare its categories by hand."
    )


def to_text(schema: dict[str, Any]) -> str:
    """JSON text, one column a line, with the warning on its first line."""
    top = {key: value for key, value in schema.items() if key != "columns"}
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in top.items()]
    columns = ",\n".join(
        f"  {json.dumps(name, ensure_ascii=False)}: {json.dumps(entry, ensure_ascii=False)}"
        for name, entry in schema["columns"].items()
    )
    return "{" + ",\n ".join([*lines, f'"columns": {{\n{columns}\n }}']) + "\n}\n"


def _target(cells: pd.Series) -> dict[str, Any]:
    """Bounds where nearly all cells are numbers and there are too many values for classes, else classes."""
    values = numbers(cells)
    finite = values[np.isfinite(values)]
    if len(finite) >= 0.9 * len(values) and len(np.unique(finite)) > MAX_CLASSES:
        return {"bounds": _bounds(finite)}
    return {"classes": _values(cells)[:MAX_CLASSES]}


def _bounds(finite: np.ndarray) -> list[int | float]:
    ends = (float(finite.min()), float(finite.max()))
    return [int(v) if v.is_integer() else v for v in ends]


def _column(cells: pd.Series) -> dict[str, Any]:
    values = numbers(cells)
    finite = values[np.isfinite(values)]
    if len(finite) >= 0.9 * len(values) and len(finite) and finite.min() < finite.max():
        return _numeric(finite)
    texts = _values(cells)
    if not texts or len(texts) > MAX_CATEGORIES:
        return {"kind": "ignore"}
    return {"kind": "categorical", "categories": texts, "on_invalid": "other"}


def _numeric(finite: np.ndarray) -> dict[str, Any]:
    low, high = float(finite.min()), float(finite.max())
    skewed = low >= 0 and high > 100 * (1 + float(np.quantile(finite, 0.9)))
    scale = "log1p" if skewed or (low >= 0 and high >= 1000 * (1 + float(np.median(finite)))) else "linear"
    return {"kind": "numeric", "bounds": _bounds(finite), "scale": scale, "on_invalid": "clamp"}


def _values(cells: pd.Series) -> list[str]:
    texts = {text_of(cell) for cell in cells.dropna().unique()}
    return sorted(text for text in texts if text)


def _round(n: int) -> int:
    """Two significant digits, at least 1."""
    step = 10 ** max(0, len(str(n)) - 2)
    return max(1, round(n / step) * step)
