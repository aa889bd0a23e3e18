"""The schema: what is publicly known about a private table before a record of it is read.

A schema is a small JSON file.  Nothing in it may come from the data (law "plan, then touch data"): bounds, categories
and classes are public knowledge, ``n_declared`` is a nominal size.  Every fault is a :class:`~dpml.errors.SchemaError`
that names the column and the fix.

>>> schema = Schema.from_dict({
...     "n_declared": 1000,
...     "target": {"name": "bought", "classes": ["no", "yes"]},
...     "columns": {"age": {"kind": "numeric", "bounds": [18, 99]}},
... })
>>> schema.column("age").knots
6
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import SchemaError
from .columns import (
    CategoricalColumn,
    Column,
    IgnoredColumn,
    NumericColumn,
    check_bounds,
    check_classes,
    closest,
    column_dict,
    fault,
    is_number,
    make_column,
    only_known,
)

DRAFT_KEY = "_warning"
GET_ONE = "Write one from public knowledge; `python -m dpml.schema draft FILE` gives a draft to complete."

_TOP_KEYS = ("n_declared", "target", "norm_bound", "columns", "name", "source", "is_public")


@dataclass(frozen=True)
class Schema:
    """Public knowledge about a table.

    Attributes:
        n_declared: public nominal number of training records (never the actual count).
        target: name of the column to predict.
        classes: its labels in the order of their indexes; a record with another label contributes nothing.  ``()`` for
            a regression target.
        columns: the other columns of the file, in the order of their features.
        norm_bound: every encoded row, the constant column included, is clipped to this L2 norm.
        name, source: shown in reports.
        is_public: the table itself is public, so metrics and a non-private baseline may be published.
        target_bounds: public ``(min, max)`` of a regression target, else ``None``.  A value outside is clipped; a
            record whose target is no number contributes nothing.
    """

    n_declared: int
    target: str
    classes: tuple[Any, ...]
    columns: tuple[Column, ...]
    norm_bound: float = 1.0
    name: str = "table"
    source: str = ""
    is_public: bool = False
    target_bounds: tuple[float, float] | None = None

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """The schema in a JSON file.

        Raises:
            SchemaError: the file is missing, no strict JSON (duplicate keys are refused) or no valid schema.
        """
        return cls.from_dict(_read_json(Path(path)))

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Schema:
        """The schema behind plain JSON values; see the class for the meaning of the keys.

        Raises:
            SchemaError: a key is missing, unknown, out of range or contradicts another one.
        """
        if not isinstance(d, Mapping):
            raise SchemaError(f"A schema must be a JSON object, not {type(d).__name__}. {GET_ONE}")
        if DRAFT_KEY in d:
            raise SchemaError(
                f"This schema is still a draft: complete it from public knowledge, then delete the key {DRAFT_KEY!r}."
            )
        only_known(d, _TOP_KEYS, "schema")
        target, classes, target_bounds = _target(d)
        return cls(
            n_declared=_n_declared(d),
            target=target,
            classes=classes,
            columns=_columns(d, target),
            norm_bound=_positive(d.get("norm_bound", 1.0), "norm_bound"),
            name=_text(d.get("name", "table"), "name"),
            source=_text(d.get("source", ""), "source"),
            is_public=_flag(d.get("is_public", False), "is_public"),
            target_bounds=target_bounds,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values that :meth:`from_dict` reads back to an equal schema."""
        return {
            "name": self.name,
            "source": self.source,
            "is_public": self.is_public,
            "n_declared": self.n_declared,
            "target": self._target_dict(),
            "norm_bound": self.norm_bound,
            "columns": {column.name: column_dict(column) for column in self.columns},
        }

    def _target_dict(self) -> dict[str, Any]:
        if self.target_bounds is not None:
            return {"name": self.target, "bounds": list(self.target_bounds)}
        return {"name": self.target, "classes": list(self.classes)}

    def column(self, name: str) -> Column:
        """The declared column ``name``; ``SchemaError`` with the closest name if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise SchemaError(f"The schema has no column {name!r}.{closest(name, [c.name for c in self.columns])}")

    def without_splines(self) -> Schema:
        """The same schema with every numeric column encoded by min-max."""
        columns = (replace(c, encoding="minmax") if isinstance(c, NumericColumn) else c for c in self.columns)
        return replace(self, columns=tuple(columns))

    @property
    def open_columns(self) -> tuple[NumericColumn | CategoricalColumn, ...]:
        """Columns whose bounds or categories are to be found by a charged stage of a run; no row is encoded before."""
        return tuple(
            column
            for column in self.features
            if (column.magnitude if isinstance(column, NumericColumn) else column.most) is not None
        )

    def with_columns(self, found: Iterable[Column]) -> Schema:
        """The same schema with the columns of ``found`` in place of those of their names."""
        new = {column.name: column for column in found}
        return replace(self, columns=tuple(new.get(column.name, column) for column in self.columns))

    @property
    def features(self) -> tuple[NumericColumn | CategoricalColumn, ...]:
        """The columns that are encoded, in order."""
        return tuple(column for column in self.columns if not isinstance(column, IgnoredColumn))


def as_schema(schema: Schema | Mapping[str, Any] | str | Path | None, table: str | Path = "FILE") -> Schema:
    """A :class:`Schema` from whatever a caller may hand over; ``table`` is named in the advice."""
    if schema is None or schema == "":
        raise SchemaError(
            f"There is no schema for {table}: bounds, categories, classes and a nominal size must be declared before "
            f"a record is read. `python -m dpml.schema draft {table}` gives a draft to complete."
        )
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, Mapping):
        return Schema.from_dict(schema)
    return Schema.load(schema)


# ---------------------------------------------------------------------------------------------------- checks


def _read_json(path: Path) -> Any:
    try:
        raw = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SchemaError(f"There is no schema file {str(path)!r}. {GET_ONE}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"The schema file {str(path)!r} cannot be read: {error}.") from error
    try:
        return json.loads(raw, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except SchemaError:
        raise
    except (ValueError, RecursionError) as error:  # no JSON, a number of thousands of digits, nested too deep
        raise SchemaError(f"The schema file {str(path)!r} is not JSON: {error}.") from error


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise SchemaError(f"The schema has the key {key!r} twice in one object. Keep one of the two.")
        result[key] = value
    return result


def _no_constant(text: str) -> Any:
    raise SchemaError(f"The schema holds {text}; numbers in a schema must be finite.")


def _positive(value: Any, key: str) -> float:
    if not is_number(value) or not value > 0:
        raise fault("schema", key, value, "a finite number > 0")
    return float(value)


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise fault("schema", key, value, "a text")
    return value


def _flag(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise fault("schema", key, value, "true or false")
    return value


def _n_declared(d: Mapping[str, Any]) -> int:
    if "n_declared" not in d:
        raise SchemaError(
            "schema: n_declared is missing. Give the public nominal number of records (a round figure known without "
            "the table; the actual count is private), for example 36000."
        )
    value = d["n_declared"]
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise fault("schema", "n_declared", value, "a whole number > 0", "Give the public nominal number of records.")
    return value


def _target(d: Mapping[str, Any]) -> tuple[str, tuple[Any, ...], tuple[float, float] | None]:
    """Name, classes and bounds of the target; classes or bounds, never both."""
    target = d.get("target")
    if target is None:
        raise SchemaError(
            'schema: target is missing. Give {"name": COLUMN, "classes": [LABEL, LABEL, ...]}, or for a number to '
            'predict {"name": COLUMN, "bounds": [min, max]}.'
        )
    if not isinstance(target, Mapping):
        allowed = 'an object {"name": COLUMN, "classes": [LABEL, ...]} or {"name": COLUMN, "bounds": [min, max]}'
        raise fault("schema", "target", target, allowed)
    only_known(target, ("name", "classes", "bounds"), "schema target")
    name = target.get("name")
    if not isinstance(name, str) or not name:
        raise fault("schema target", "name", name, "the name of the column to predict")
    if "bounds" in target:
        if "classes" in target:
            raise SchemaError(
                f"schema target {name!r} has both classes and bounds. Keep classes for labels, or bounds for a number."
            )
        return name, (), check_bounds(target["bounds"], f"schema target {name!r}")
    if "classes" not in target:
        raise SchemaError(
            f"schema target {name!r}: classes is missing. List every possible label, also those that may not occur "
            "(the labels that do occur are private); or give bounds, [min, max] from public knowledge, for a number."
        )
    return name, check_classes(target["classes"], f"schema target {name!r}"), None


def _columns(d: Mapping[str, Any], target: str) -> tuple[Column, ...]:
    columns = d.get("columns")
    if not isinstance(columns, Mapping) or not columns:
        raise fault("schema", "columns", columns, "an object with one entry for each other column of the table")
    if target in columns:
        raise SchemaError(f"schema column {target!r} is the target: it must not be listed under columns. Remove it.")
    made = tuple(make_column(str(name), entry) for name, entry in columns.items())
    if all(isinstance(column, IgnoredColumn) for column in made):
        raise SchemaError("schema: every column is ignored, so nothing is left to learn from. Declare one or more.")
    return made
