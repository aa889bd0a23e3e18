"""Tables on disk: header checks before the run, cell-by-cell reading inside it.

The reader treats every record on its own.  CSV cells stay text until they are encoded, so a strange cell in one record
cannot change how a column of the others is read.  Every line of a CSV is one record: a line with too many or too few
fields, or with a quote that does not end on it, contributes nothing and hides no other; cells that span lines are not
supported.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..errors import ConfigError, DataError, invalid
from .columns import IgnoredColumn, closest
from .csv_lines import MALFORMED, ONE_LINE, csv_header, read_csv
from .encoder import Encoder, lookup, numbers, require_columns
from .private_data import Cells, CoinSource, PrivateData, PublicInfo, Records
from .public_whitening import PublicWhitening, described, refuse_wide, with_whitening
from .schema import Schema, as_schema

FORMATS = (".csv", ".csv.gz", ".parquet")


class RawTable(NamedTuple):
    """Cells as read, the number of lines that were no records, and the line number of the first of those."""

    frame: pd.DataFrame
    malformed: int
    first_malformed: int | None = None


def table_data(
    path: str | Path,
    schema: Schema | Mapping[str, Any] | str | Path | None,
    test_path: str | Path | None = None,
    split_column: str | None = None,
    test_fraction: float | None = None,
    *,
    spline: bool = True,
    public_path: str | Path | None = None,
    source: Mapping[str, Any] | None = None,
) -> PrivateData:
    """See :meth:`PrivateData.from_table`; ``source`` adds to the public description."""
    path = existing(path, "path")
    declared = as_schema(schema, path)
    _one_split(test_path, split_column, test_fraction)
    check_header(path, declared, split_column)
    test = None if test_path is None else existing(test_path, "test_path")
    if test is not None:
        check_header(test, declared)
    declared = declared if spline else declared.without_splines()
    whitening, whitened_by = None, {}
    if public_path is not None:
        whitening, found = public_statistics(public_path, declared, split_column, {"path": path, "test_path": test})
        whitened_by = {"whitening": found}
    encoder = Encoder(declared, whitening=whitening)
    has_test = not (test_path is None and split_column is None and test_fraction is None)
    public = PublicInfo(
        name=declared.name,
        n_declared=_training_size(declared.n_declared, test_fraction),
        n_features=encoder.n_features,
        classes=declared.classes,
        norm_bound=declared.norm_bound,
        is_public=declared.is_public,
        test_is_public=declared.is_public and has_test,
        has_test=has_test,
        preprocessing=with_whitening({"kind": "table"}, whitening),
        schema=declared.to_dict(),
        source={
            "kind": "table",
            "format": file_format(path).lstrip("."),
            "description": declared.source,
            "split": _split_text(test_path, split_column, test_fraction),
            **whitened_by,
            **(source or {}),
        },
    )

    def cells(noise: CoinSource) -> Cells:
        raw = read_raw(path, _needed(declared, split_column))
        train, held_out = _split(raw.frame, split_column, test_fraction, noise)
        if test is not None:
            held_out = read_raw(test, _needed(declared)).frame
        return Cells(train, held_out, {"records_read": len(raw.frame), "malformed_lines": raw.malformed})

    def read(noise: CoinSource, sparse: bool = False) -> Records:
        return encode_cells(cells(noise), encoder, sparse)

    return PrivateData(public, read, encoder, cells=cells)


def public_statistics(
    public_path: str | Path, schema: Schema, split_column: str | None, private: Mapping[str, Path | None]
) -> tuple[PublicWhitening, dict[str, Any]]:
    """The whitening that the records of a *public* table give, and its public description.

    They are encoded by the schema like private ones, but not clipped; those that the schema drops, and lines that are
    no records, are left out.  ``private`` are the files of the others by argument: none of them is read here.

    Raises:
        DataError: the file is missing, of an unknown type, damaged, or its header does not fit the schema.
        ConfigError: it is one of the private files, has fewer than two usable records or no two different ones, or the
            schema leaves bounds or categories open.
    """
    path = existing(public_path, "public_path")
    for argument, other in private.items():
        if other is not None and os.path.samefile(path, other):
            raise invalid(
                "public_path", str(public_path), f"another file than {argument}", "Statistics of the private records "
                "would make every row depend on all of them. Give a table of public records, or leave public_path out.",
            )  # fmt: skip
    if schema.open_columns:
        raise invalid(
            "public_path", str(public_path), f"left out while the schema leaves column {schema.open_columns[0].name!r} "
            "open (private bounds or categories)", "There is nothing to encode the public records by: declare bounds "
            "and categories (the public table may tell them), or leave public_path out.",
        )  # fmt: skip
    refuse_wide("public_path", Encoder(schema).n_features - 1)
    check_header(path, schema, split_column, public=True)
    raw = read_raw(path, [column.name for column in schema.features])
    rows, keep, counts = Encoder(schema).unclipped(raw.frame)
    if keep.sum() < 2:
        allowed = f"a table with two or more usable records (it has {int(keep.sum())})"
        raise invalid("public_path", str(public_path), allowed, "Leave public_path out.")
    try:
        whitening = PublicWhitening.from_rows(rows[keep])
    except ConfigError as error:
        raise invalid("public_path", str(public_path), "a table in which at least one feature varies") from error
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    left_out = {"records_left_out": int((~keep).sum()), "malformed_lines": raw.malformed, "columns": counts}
    return whitening, {**described(whitening), "sha256": digest, **{k: v for k, v in left_out.items() if v}}


def encode_cells(cells: Cells, encoder: Encoder, sparse: bool = False) -> Records:
    """The records of both parts as feature rows; every record is encoded on its own."""
    notes = dict(cells.private_notes)
    X, y, notes["train"] = encode(encoder, cells.train, sparse)
    if cells.held_out is None:
        return Records(X, y, private_notes=notes)
    X_test, y_test, notes["test"] = encode(encoder, cells.held_out, sparse)
    return Records(X, y, X_test, y_test, notes)


def encode(encoder: Encoder, frame: pd.DataFrame, sparse: bool = False) -> tuple[Any, np.ndarray, dict[str, Any]]:
    """Features (m, d), a CSR array if ``sparse``, targets (m,) of the records that contribute, and private counts."""
    schema = encoder.schema
    X, keep, counts = encoder.transform(frame, sparse)
    y, known = encoder.target(frame[schema.target])
    keep = keep & known
    notes = {"records": len(frame), "used": int(keep.sum()), "columns": counts}
    if schema.target_bounds is None:
        notes["unknown_labels"] = int((~known).sum())
    else:
        low, high = schema.target_bounds
        values = numbers(frame[schema.target])
        notes["targets_without_number"] = int((~known).sum())
        notes["targets_clipped"] = int(((values < low) | (values > high)).sum())
    return (X, y, notes) if keep.all() else (X[keep], y[keep], notes)


def existing(path: str | Path, argument: str) -> Path:
    """``path`` as a :class:`Path` if it is a file of a known kind, else ``DataError``."""
    found = Path(path)
    if not found.exists():
        folder = found.parent
        names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
        raise DataError(f"{argument} = {str(path)!r}: there is no such file.{closest(found.name, names)}")
    if not found.is_file():
        raise DataError(f"{argument} = {str(path)!r} is no file. Give a file that ends in {', '.join(FORMATS)}.")
    file_format(found)
    return found


def file_format(path: Path) -> str:
    """The one of ``FORMATS`` that the name ends with."""
    for ending in sorted(FORMATS, key=len, reverse=True):
        if path.name.lower().endswith(ending):
            return ending
    raise DataError(f"{path.name!r} has an unknown file type. The types are {', '.join(FORMATS)}; convert the table.")


def read_header(path: Path) -> list[str]:
    """Column names; reads the first line of a CSV or the schema of a Parquet file, no record."""
    try:
        if file_format(path) == ".parquet":
            import pyarrow.parquet as parquet

            return [str(name) for name in parquet.read_schema(path).names]
        return csv_header(path, zipped=_zipped(path))
    except DataError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"The header of {str(path)!r} cannot be read: {error}.") from error


def refuse_other_encoding(header: Sequence[str], where: str) -> None:
    """``DataError`` for column names that were no UTF-8."""
    if any("\ufffd" in name for name in header):
        raise DataError(f"{where} is not UTF-8: its header has bytes that mean nothing there. Save it as UTF-8.")


def refuse_other_format(header: Sequence[str], where: str) -> None:
    """The same, and for names that tell of another separator than the comma; for a table that is refused anyhow."""
    for separator in (";", "\t", "|"):
        if sum(name.count(separator) for name in header) >= max(len(header), 1):
            raise DataError(f"{where} seems to be separated by {separator!r}. Save it with commas.")
    refuse_other_encoding(header, where)


def check_header(path: Path, schema: Schema, split_column: str | None = None, *, public: bool = False) -> None:
    """``DataError`` unless the file's columns are those of the schema (ignored ones may be absent).

    ``public``: of the table behind a whitening, which needs neither target nor ``split_column``.
    """
    header = read_header(path)
    where = f"The table {str(path)!r}"
    if not header:
        raise DataError(f"{where} is empty: it has no header line.")
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise DataError(f"{where} has the column {repeated[0]!r} twice. Rename one of the two.")
    beside = [schema.target, *([split_column] if split_column else [])]
    required = [*([] if public else beside), *(column.name for column in schema.features)]
    for name in required:
        if name in header:
            continue
        what = "split_column" if name == split_column else "the schema's target" if name == schema.target else "column"
        refuse_other_format(header, where)
        raise DataError(f"{where} lacks {what} {name!r}.{closest(name, header)} Its columns are: {', '.join(header)}.")
    known = {*beside, *required, *(column.name for column in schema.columns)}
    for name in header:
        if name not in known:
            raise DataError(
                f'{where} has a column {name!r} that the schema lacks. Declare it, as {{"kind": "ignore"}} if it is '
                "not to be used."
            )
    if split_column and any(c.name == split_column and not isinstance(c, IgnoredColumn) for c in schema.columns):
        raise DataError(f"split_column = {split_column!r} is a feature in the schema. Declare it as ignored.")


def read_table(path: str | Path, columns: list[str]) -> pd.DataFrame:
    """The named columns of a table to be scored, one row a record and none left out.

    Raises:
        DataError: the file is missing, lacks a column, or has lines that are no records.
    """
    where = existing(path, "table")
    require_columns(read_header(where), columns)
    raw = read_raw(where, columns)
    if raw.malformed:
        raise DataError(
            f"The table {str(path)!r} has {raw.malformed} lines with {MALFORMED} (line {raw.first_malformed} is the "
            f"first); scores would not line up with its rows. Repair the file. {ONE_LINE}."
        )
    return raw.frame


def read_raw(path: Path, columns: list[str]) -> RawTable:
    """The named columns of all records.

    Raises:
        DataError: the file is not of the format that its name tells.
    """
    try:
        if file_format(path) == ".parquet":
            import pyarrow.parquet as parquet

            table = _dates_as_text(parquet.read_table(path, columns=columns))
            nested = [name for name in columns if _is_nested(table.schema.field(name).type)]
            if nested:
                raise DataError(f"The column {nested[0]!r} of {str(path)!r} is nested. Store one value a cell.")
            # whole numbers stay whole beside an empty cell: as floats, one record would round those of the others
            return RawTable(table.to_pandas(ignore_metadata=True, integer_object_nulls=True), 0)
        return RawTable(*read_csv(path, columns, zipped=_zipped(path)))
    except DataError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"The table {str(path)!r} cannot be read: {error}.") from error


# --------------------------------------------------------------------------------------------------- reading


def _zipped(path: Path) -> bool:
    return file_format(path) == ".csv.gz"


def _dates_as_text(table: Any) -> Any:
    """Dates and times of day as their ISO texts: Python's have no room for all that Parquet's can be, so that one
    record would end the run with an error that shows it."""
    import pyarrow as pa
    import pyarrow.compute as compute

    for place, field in enumerate(table.schema):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_date(kind) or pa.types.is_time(kind):
            text = table.column(place).cast(kind).cast(pa.string())
            if pa.types.is_time(kind):
                text = compute.replace_substring_regex(text, r"\.0+$", "")
            table = table.set_column(place, field.name, text)
    return table


def _is_nested(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_nested(kind))


def _needed(schema: Schema, split_column: str | None = None) -> list[str]:
    names = [column.name for column in schema.features] + [schema.target]
    return [*names, split_column] if split_column else names


# ---------------------------------------------------------------------------------------------------- splits


def _one_split(test_path: object, split_column: object, test_fraction: float | None) -> None:
    given = {"test_path": test_path, "split_column": split_column, "test_fraction": test_fraction}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise invalid(named[1], given[named[1]], f"left out when {named[0]} is given", "Choose one way to hold out.")
    if test_fraction is not None and not (
        isinstance(test_fraction, int | float) and not isinstance(test_fraction, bool) and 0 < test_fraction < 1
    ):
        raise invalid("test_fraction", test_fraction, "a number between 0 and 1, both excluded")


def _training_size(n_declared: int, test_fraction: float | None) -> int:
    return n_declared if test_fraction is None else max(1, round(n_declared * (1 - test_fraction)))


def _split_text(test_path: object, split_column: str | None, test_fraction: float | None) -> str:
    if test_path is not None:
        return "declared test file"
    if split_column is not None:
        return f"declared column {split_column!r}"
    return "none" if test_fraction is None else f"independent coins, test_fraction {test_fraction:g}"


def _split(
    frame: pd.DataFrame, split_column: str | None, test_fraction: float | None, noise: CoinSource
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    if split_column is not None:
        part = lookup(frame[split_column], ("train", "test"))
        return frame[part == 0], frame[part == 1]
    if test_fraction is not None:
        # one coin per record: a permutation would move everybody when one record is added
        held_out = np.asarray(noise.uniform(len(frame))) < test_fraction
        return frame[~held_out], frame[held_out]
    return frame, None
