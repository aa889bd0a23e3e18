"""CSV by physical lines: one line is one record, read without a look at any other line.

A cell with a line feed in it is not supported.  That is what keeps records apart: were a quoted cell allowed to run
over lines, one stray quote would swallow the records below it.
"""

from __future__ import annotations

import gzip
import io
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..errors import DataError

MALFORMED = "too many or too few fields, or a quote that does not end on its line"
ONE_LINE = "Every line is one record: a cell that spans lines is not supported"


class CsvTable(NamedTuple):
    """The records as text cells (categorical columns); number of malformed lines; line number of the first of them."""

    frame: pd.DataFrame
    malformed: int
    first_malformed: int | None


def csv_header(path: Path, *, zipped: bool) -> list[str]:
    """Trimmed column names, from the first line alone; an empty list for an empty file.

    Raises:
        DataError: the first line is no complete record, or ends with a carriage return alone.
        OSError, EOFError, zlib.error: the file cannot be read.
    """
    with _open(path, zipped) as file:
        return _header(path, next(file, ""))


def read_csv(path: Path, columns: Sequence[str], *, zipped: bool) -> CsvTable:
    """The named columns of every line after the header that has as many fields as the header.

    Quotes work as usual within a line (``"a, b"``; a doubled one stands for itself).  A line with another number of
    fields, or with a quote that opens and does not end before its field does, is one malformed record and nothing else:
    it hides no other line.  Blank lines are no records.  Bytes that are no UTF-8 spoil their own cell.

    Cost: one pass; memory for the distinct cells and four bytes a cell.
    """
    with _open(path, zipped) as file:
        header = _header(path, next(file, ""))
        wanted = [(header.index(name), dict[str, int](), array("i")) for name in columns]
        malformed, first, width = 0, None, len(header)
        for number, line in enumerate(file, start=2):
            text = line.removesuffix("\n").removesuffix("\r")
            if not text:
                continue
            fields = split_line(text)
            if fields is None or len(fields) != width:
                malformed += 1
                first = first or number
                continue
            for place, seen, codes in wanted:
                codes.append(seen.setdefault(fields[place], len(seen)))
    frame = pd.DataFrame(
        {name: _cells(seen, codes) for name, (_, seen, codes) in zip(columns, wanted, strict=True)},
        columns=list(columns),
    )
    return CsvTable(frame, malformed, first)


def split_line(text: str) -> list[str] | None:
    """The fields of one line, ``None`` if a quoted field does not end where a field must end.

    As ``csv.reader(strict=True)``, but with no limit on the length of a field.  A quote inside an unquoted field
    (``5'11"``) is a character like any other.
    """
    if '"' not in text:
        return text.split(",")
    fields, at = [], 0
    while True:
        if text.startswith('"', at):
            parts, at, end = [], at + 1, text.find('"', at + 1)
            while end >= 0 and text.startswith('"', end + 1):  # a doubled quote stands for one
                parts.append(text[at : end + 1])
                at = end + 2
                end = text.find('"', at)
            if end < 0:
                return None
            parts.append(text[at:end])
            fields.append("".join(parts))
            at = end + 1
            if at < len(text) and text[at] != ",":
                return None
        else:
            end = text.find(",", at)
            end = len(text) if end < 0 else end
            fields.append(text[at:end])
            at = end
        if at >= len(text):
            return fields
        at += 1


def _open(path: Path, zipped: bool) -> io.TextIOBase:
    opener = gzip.open if zipped else open
    return opener(path, "rt", encoding="utf-8-sig", errors="replace", newline="\n")


def _header(path: Path, line: str) -> list[str]:
    text = line.removesuffix("\n").removesuffix("\r")
    if "\r" in text:  # without this a message about column names would quote the records
        raise DataError(f"The lines of {str(path)!r} end with a carriage return alone. Save it with line feeds.")
    if not text:
        return []
    fields = split_line(text)
    if fields is None:
        raise DataError(f"The header of {str(path)!r} has a quote that does not end on its line. {ONE_LINE}.")
    return [name.strip() for name in fields]


def _cells(seen: dict[str, int], codes: array[int]) -> pd.Categorical:
    words = np.empty(len(seen), dtype=object)
    words[:] = list(seen)
    return pd.Categorical.from_codes(np.array(codes, dtype=np.int32), categories=pd.Index(words, dtype=object))
