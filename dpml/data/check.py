"""The custodian's look at a table before a run: which cells break the schema, and what a run would do with them.

Everything here reads records and says so plainly: the output is private.  A run never calls it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from .columns import CategoricalColumn, IgnoredColumn, NumericColumn
from .csv_lines import MALFORMED, ONE_LINE
from .encoder import lookup, numbers
from .schema import Schema
from .table import check_header, existing, read_raw

_FATE = {
    "clamp": "a run clamps it",
    "other": "a run counts it as 'other'",
    "zero": "a run gives zeros",
    "drop": "a run leaves the record out",
    "error": "on_invalid is 'error'; a run leaves the record out",
}


@dataclass(frozen=True)
class Finding:
    """One thing about a table that its schema does not allow.  **Private.**

    Attributes:
        row: 1 for the first record, ``None`` for the table as a whole.
        column: its name, or ``None``.
        text: what is wrong and what a run does about it.
        stops: the check fails because of it.
    """

    row: int | None
    column: str | None
    text: str
    stops: bool

    def __str__(self) -> str:
        place = ", ".join(
            part for part in (f"row {self.row}" if self.row else "", self.column and f"column {self.column!r}") if part
        )
        return f"{place}: {self.text}" if place else self.text


def check_table(path: str | Path, schema: Schema) -> list[Finding]:
    """All findings, by row and column.

    A label outside the classes, a regression target that is no number and an invalid cell of an ``on_invalid: error``
    column stop the check; other invalid cells are notes.

    Raises:
        DataError: the file is missing or its header does not fit the schema.
    """
    where = existing(path, "FILE")
    check_header(where, schema)
    names = [column.name for column in schema.features] + [schema.target]
    raw = read_raw(where, names)
    findings: list[Finding] = []
    if not len(raw.frame):
        findings.append(Finding(None, None, "the table holds no record", True))
    if raw.malformed:
        text = (
            f"{raw.malformed} lines have {MALFORMED} (line {raw.first_malformed} is the first); a run leaves them out. "
            f"{ONE_LINE}"
        )
        findings.append(Finding(None, None, text, True))
    if len(raw.frame) and not 0.5 <= schema.n_declared / len(raw.frame) <= 2:
        text = (
            f"n_declared = {schema.n_declared} is far from the {len(raw.frame)} records that are there. This may be "
            "meant (it is a nominal figure), but a wrong order of magnitude costs accuracy"
        )
        findings.append(Finding(None, None, text, False))
    cells: list[Finding] = []
    for column in schema.columns:
        if not isinstance(column, IgnoredColumn):
            found = list(_cells(column, raw.frame[column.name]))
            if 2 * len(found) > len(raw.frame):
                text = f"{len(found):,} of {len(raw.frame):,} cells break the schema: is the column of another kind?"
                findings.append(Finding(None, column.name, text, False))
            cells.extend(found)
    cells.extend(_targets(schema, raw.frame[schema.target]))
    return findings + sorted(cells, key=lambda finding: finding.row or 0)


def _targets(schema: Schema, cells: pd.Series) -> Iterator[Finding]:
    if schema.target_bounds is None:
        for row in np.flatnonzero(lookup(cells, schema.classes) < 0):
            text = f"label {_shown(cells.iloc[row])} is none of the classes; a run leaves the record out"
            yield Finding(int(row) + 1, schema.target, text, True)
        return
    low, high = schema.target_bounds
    values = numbers(cells)
    for row in np.flatnonzero(~((values >= low) & (values <= high))):
        shown = _shown(cells.iloc[row])
        if np.isnan(values[row]):
            text = f"target {shown} is no number; a run leaves the record out"
        else:
            text = f"target {shown} is outside [{low:g}, {high:g}]; a run clamps it"
        yield Finding(int(row) + 1, schema.target, text, bool(np.isnan(values[row])))


def broken(column: NumericColumn | CategoricalColumn, cells: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Which cells ``(n,)`` the column does not allow (of one whose values are found, none), and what they are."""
    if isinstance(column, CategoricalColumn):
        bad = lookup(cells, column.categories) < 0 if column.most is None else np.zeros(len(cells), dtype=bool)
        return bad, np.where(bad, "is none of the categories", "")
    values = numbers(cells)
    missing = np.isnan(values)
    outside = (values < column.bounds[0]) | (values > column.bounds[1])
    return missing | outside, np.where(
        missing, "is no number", f"is outside [{column.bounds[0]:g}, {column.bounds[1]:g}]"
    )


def _cells(column: NumericColumn | CategoricalColumn, cells: pd.Series) -> Iterator[Finding]:
    bad, what = broken(column, cells)
    for row in np.flatnonzero(bad):
        gives_zeros = column.on_invalid == "clamp" and what[row] == "is no number"
        fate = "a run encodes it as zeros" if gives_zeros else _FATE[column.on_invalid]
        text = f"{_shown(cells.iloc[row])} {what[row]}; {fate}"
        yield Finding(int(row) + 1, column.name, text, column.on_invalid == "error")


def _shown(cell: object) -> str:
    text = str(cell)
    return repr(text if len(text) <= 60 else text[:57] + "...")
