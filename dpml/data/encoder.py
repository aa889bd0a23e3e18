"""From a row of the table to a vector of features, by public knowledge alone.

Nothing is fitted: knots, categories and the clipping norm come from the schema, and a row's features depend on that row
only.  Numeric columns become hat functions (linear B-splines) on even knots between the declared bounds, categoricals
indicators in the declared order; where there is a public map (:mod:`dpml.data.public_whitening`), the features are
whitened by it; then a constant 1; then the whole row is clipped to the public norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array, issparse

from ..errors import DataError, SchemaError
from .cells import cell_number, is_missing
from .columns import OTHER, CategoricalColumn, NumericColumn, cell_text, closest, scaled_target, text_of
from .public_whitening import PublicWhitening
from .schema import Schema

CONSTANT = "(constant)"
_SAFE = 1.0 - 1e-14  # clipped rows end a hair below the bound, so that rounding never lifts them above it
_CHUNK = 8192
_HUGE = 1e150  # the squares of larger entries would overflow


@dataclass(frozen=True)
class _Part:
    """Up to two non-zero features of every row: the features of one column, before clipping."""

    index: np.ndarray  # (n, k) int64, position inside the column's block
    weight: np.ndarray  # (n, k) float64
    keep: np.ndarray  # (n,) bool, False where the record must contribute nothing
    counts: dict[str, int]


class Encoder:
    """Encodes tables that follow one schema.

    Args:
        schema: the public description of the table.
        spline: ``False`` encodes every numeric column by min-max, whatever the schema asks for.
        whitening: a map of the features without the constant, from public records; names are then those of features
            that were mixed.

    Attributes:
        schema, whitening: as given.
        n_features: number ``d`` of features, the constant included (public).
        feature_names: their names, the constant last.
    """

    def __init__(self, schema: Schema, spline: bool = True, whitening: PublicWhitening | None = None) -> None:
        self.schema = schema
        self.spline = bool(spline)
        names: list[str] = []
        for column in schema.features:
            names.extend(_names(column, self.spline))
        self.feature_names: tuple[str, ...] = (*names, CONSTANT)
        self.n_features = len(self.feature_names)
        self.whitening = whitening
        if whitening is not None and len(whitening.mean) != self.n_features - 1:
            raise DataError(
                f"The whitening has {len(whitening.mean)} features, the schema gives {self.n_features - 1}. It must be "
                "that of public records under the same schema."
            )

    def __repr__(self) -> str:
        return f"Encoder({self.schema.name!r}, n_features={self.n_features}, spline={self.spline})"

    def transform(self, table: pd.DataFrame, sparse: bool = False) -> tuple[Any, np.ndarray, dict[str, dict[str, int]]]:
        """Features of every row.

        Args:
            table: data frame with at least the schema's encoded columns; others are not looked at.
            sparse: return X as a ``scipy.sparse.csr_array`` in canonical format without zeros: the same numbers in a
                fraction of the memory (a row has one or two entries for each column, and the constant).  Whitened rows
                have no zeros to leave out and come dense all the same.

        Returns:
            ``(X, valid, counts)``: X (n, d) float64 with ``‖row‖ ≤ norm_bound``; valid (n,) bool, ``False`` for a
            record that the schema drops (its row of X is zero); counts of clamped, unknown and dropped cells by
            column, which are **private**.

        Raises:
            DataError: a column is missing; the message gives the closest name.
            SchemaError: the schema leaves bounds or categories to a stage that has not run.
        """
        if self.whitening is not None:
            return self._whitened(table, self.whitening)
        parts, valid, counts = self._parts(table)
        squares = np.ones(len(table))  # of the constant column
        for part in parts:
            squares += np.square(part.weight).sum(axis=1)
        scale = _clip_factor(np.sqrt(squares), self.schema.norm_bound)
        scale[~valid] = 0.0
        X = self._assemble(parts, scale)
        return (X if sparse else X.toarray()), valid, counts

    def unclipped(self, table: pd.DataFrame) -> tuple[csr_array, np.ndarray, dict[str, dict[str, int]]]:
        """As :meth:`transform`, but neither whitened nor clipped and without the constant: X (n, d - 1), sparse."""
        parts, valid, counts = self._parts(table)
        return self._assemble(parts, valid.astype(np.float64))[:, :-1], valid, counts

    def _whitened(
        self, table: pd.DataFrame, whitening: PublicWhitening
    ) -> tuple[np.ndarray, np.ndarray, dict[str, dict[str, int]]]:
        features, valid, counts = self.unclipped(table)
        X = np.empty((len(table), self.n_features))
        X[:, :-1] = whitening.apply(features)
        X[:, -1] = 1.0
        X[~valid] = 0.0
        return clip_rows(X, self.schema.norm_bound), valid, counts

    def _parts(self, table: pd.DataFrame) -> tuple[list[_Part], np.ndarray, dict[str, dict[str, int]]]:
        """The features of each column, which records count (n,), and private counts."""
        refuse_open(self.schema)
        require_columns(table.columns, [column.name for column in self.schema.features])
        parts = [self._part(column, table[column.name]) for column in self.schema.features]
        valid = np.ones(len(table), dtype=bool)
        for part in parts:
            valid &= part.keep
        counts = {c.name: p.counts for c, p in zip(self.schema.features, parts, strict=True) if p.counts}
        return parts, valid, counts

    def _assemble(self, parts: list[_Part], scale: np.ndarray) -> csr_array:
        """The rows of all parts side by side, times ``scale`` (n,), zeros left out."""
        widths = [len(_names(column, self.spline)) for column in self.schema.features]
        offsets = np.concatenate([[0], np.cumsum(widths)])
        places = sum(part.weight.shape[1] for part in parts) + 1
        data, indices, lengths = [np.empty(0)], [np.empty(0, dtype=np.int32)], [np.zeros(1, dtype=np.int64)]
        for start in range(0, len(scale), _CHUNK):  # blocks of rows that fit the cache
            rows = slice(start, start + _CHUNK)
            size = len(scale[rows])
            weight, index = np.ones((size, places)), np.empty((size, places), dtype=np.int32)
            place = 0
            for part, offset in zip(parts, offsets, strict=False):
                width = part.weight.shape[1]
                weight[:, place : place + width] = part.weight[rows]
                index[:, place : place + width] = part.index[rows] + offset
                place += width
            index[:, -1] = self.n_features - 1
            weight *= scale[rows, None]
            used = weight != 0.0
            data.append(weight[used])
            indices.append(index[used])
            lengths.append(used.sum(axis=1))
        pointers = np.cumsum(np.concatenate(lengths))
        if pointers[-1] < np.iinfo(np.int32).max:
            pointers = pointers.astype(np.int32)
        return csr_array((np.concatenate(data), np.concatenate(indices), pointers), shape=(len(scale), self.n_features))

    def target(self, labels: pd.Series) -> tuple[np.ndarray, np.ndarray]:
        """Target (n,) of every record, and whether it has one (n,) bool; others get 0.

        Class indexes int64, where a label is a declared class; for a regression float64 in [-1, 1]
        (:func:`~dpml.data.columns.scaled_target`), where a cell is a number.
        """
        if self.schema.target_bounds is not None:
            return scaled_target(numbers(labels), self.schema.target_bounds)
        codes = lookup(labels, self.schema.classes)
        return np.where(codes < 0, 0, codes), codes >= 0

    def _part(self, column: NumericColumn | CategoricalColumn, cells: pd.Series) -> _Part:
        if isinstance(column, CategoricalColumn):
            return _categorical_part(column, cells)
        return _numeric_part(column, cells, _is_spline(column, self.spline))


def refuse_open(schema: Schema) -> None:
    """``SchemaError`` where bounds or categories are still to be found: there is nothing to encode by."""
    names = [column.name for column in schema.open_columns]
    if names:
        raise SchemaError(
            f"schema column {names[0]!r} has private bounds or categories to discover, which only a run with "
            "privacy.shares finds (PrivateTrainer(shares=...)); the schema.json of its release has them. Declare them "
            "from public knowledge, or use that schema."
        )


def clip_rows(X: Any, norm_bound: float) -> Any:
    """Rows of ``X`` (n, ...) float64, scaled to L2 norm ≤ ``norm_bound``; rows within it stay as they are.

    Works in place where ``X`` is contiguous; use the returned array.  ``X`` may be a ``csr_array`` (n, d) in canonical
    format, whose entries are then changed in place.
    """
    if issparse(X):
        for start in range(0, X.shape[0], _CHUNK):
            _clip_entries(X, start, min(start + _CHUNK, X.shape[0]), norm_bound)
        return X
    X = np.ascontiguousarray(X)
    flat = X.reshape(len(X), math.prod(X.shape[1:]))  # a view, since X is contiguous
    for start in range(0, len(flat), _CHUNK):
        block = flat[start : start + _CHUNK]
        largest = np.abs(block).max(axis=1, initial=0.0)
        huge = largest > _HUGE
        block[huge] /= largest[huge, None]
        norms = np.sqrt(np.square(block, dtype=np.float64).sum(axis=1))
        factor = _clip_factor(norms, norm_bound)
        factor[huge] = norm_bound * _SAFE / norms[huge]
        changed = factor < 1.0
        changed |= huge
        block[changed] *= factor[changed, None]
    return X


def _clip_entries(X: csr_array, start: int, stop: int, norm_bound: float) -> None:
    """The rows from ``start`` to ``stop`` of a CSR array, clipped in place."""
    data = X.data[X.indptr[start] : X.indptr[stop]]
    row = np.repeat(np.arange(stop - start), np.diff(X.indptr[start : stop + 1]))
    largest = np.zeros(stop - start)
    np.maximum.at(largest, row, np.abs(data))
    huge = largest > _HUGE
    data /= np.where(huge, largest, 1.0)[row]
    norms = np.sqrt(np.bincount(row, weights=np.square(data), minlength=stop - start))  # adds a row's entries in turn
    factor = _clip_factor(norms, norm_bound)
    factor[huge] = norm_bound * _SAFE / norms[huge]
    data *= factor[row]


def lookup(cells: pd.Series, values: tuple[object, ...]) -> np.ndarray:
    """Index (n,) int64 in ``values`` of every cell, −1 where there is none; compared as trimmed text, then as number.

    ``"01234"`` among the values is found by 1234 too: one cell that is no number keeps a whole column as text.
    """
    known = known_cells(values)
    codes, uniques = distinct_cells(cells)
    table = np.array([place_of(known, cell) for cell in uniques] + [-1], dtype=np.int64)  # code −1: missing cell
    return table[codes]


def known_cells(values: Iterable[object]) -> dict[str | float, int]:
    """The place of every value by its text, and by the number that it is or spells (the first such value's)."""
    listed = list(values)
    known: dict[str | float, int] = {text_of(value): place for place, value in enumerate(listed)}
    for place, value in enumerate(listed):
        if not math.isnan(number := cell_number(text_of(value))):
            known.setdefault(number, place)
    return known


def place_of(known: Mapping[str | float, int], cell: object) -> int:
    """Where a cell stands among :func:`known_cells`, −1 for nowhere."""
    text = cell_text(cell)
    if text is None:
        return -1
    if text in known:
        return known[text]
    number = cell_number(text)  # 3.0 where another writer put 3
    return -1 if math.isnan(number) else known.get(text_of(number), known.get(number, -1))


def numbers(cells: pd.Series) -> np.ndarray:
    """Every cell as a float (n,), NaN where it is no number; each cell is read on its own."""
    if isinstance(cells.dtype, np.dtype) and cells.dtype.kind in "iufb":
        return cells.to_numpy(dtype=np.float64)
    codes, uniques = distinct_cells(cells)
    table = np.array([cell_number(cell) for cell in uniques] + [math.nan])
    return table[codes]


def knot_positions(column: NumericColumn) -> np.ndarray:
    """The knots (k,) of a column on its own scale (that is, of ``log1p(value)`` for scale ``log1p``); public."""
    low, high = _scaled(np.array(column.bounds), column.scale)
    return np.linspace(low, high, column.knots)


def require_columns(columns: Iterable[object], names: list[str]) -> None:
    """``DataError`` with the closest match if one of ``names`` is not among a table's ``columns``."""
    present = [str(name) for name in columns]
    for name in names:
        if name not in present:
            raise DataError(
                f"The table has no column {name!r}, which the schema declares.{closest(name, present)} "
                f"Its columns are: {', '.join(present)}."
            )


# --------------------------------------------------------------------------------------------------- columns


def _numeric_part(column: NumericColumn, cells: pd.Series, spline: bool) -> _Part:
    values = numbers(cells)
    low, high = column.bounds
    missing = np.isnan(values)
    outside = (values < low) | (values > high)
    keep = np.ones(len(values), dtype=bool) if column.on_invalid == "clamp" else ~(missing | outside)
    scaled = _scaled(np.clip(np.where(missing, low, values), low, high), column.scale)
    start, stop = _scaled(np.array(column.bounds), column.scale)
    share = np.clip((scaled - start) / (stop - start), 0.0, 1.0)
    if spline:
        position = share * (column.knots - 1)
        left = np.minimum(position.astype(np.int64), column.knots - 2)
        right_weight = position - left
        index = np.stack([left, left + 1], axis=1)
        weight = np.stack([1.0 - right_weight, right_weight], axis=1)
    else:
        index = np.zeros((len(values), 1), dtype=np.int64)
        weight = share[:, None].copy()
    weight[missing] = 0.0
    return _Part(index, weight, keep, _counts(missing=missing, outside=outside, dropped=~keep))


def _categorical_part(column: CategoricalColumn, cells: pd.Series) -> _Part:
    index = lookup(cells, column.categories)
    unknown = index < 0
    weight = np.ones(len(index))
    keep = np.ones(len(index), dtype=bool)
    if column.on_invalid == "other":
        index[unknown] = column.categories.index(OTHER) if OTHER in column.categories else len(column.categories)
    else:
        index[unknown] = 0
        weight[unknown] = 0.0
        if column.on_invalid != "zero":
            keep = ~unknown
    return _Part(index[:, None], weight[:, None], keep, _counts(unknown=unknown, dropped=~keep))


def _names(column: NumericColumn | CategoricalColumn, spline: bool) -> list[str]:
    if isinstance(column, NumericColumn):
        if not _is_spline(column, spline):
            return [column.name]
        knots = knot_positions(column)
        return [f"{column.name}[{k:.6g}]" for k in (np.expm1(knots) if column.scale == "log1p" else knots)]
    names = [f"{column.name}={category}" for category in column.categories]
    if column.on_invalid == "other" and OTHER not in column.categories:
        names.append(f"{column.name}=({OTHER})")
    return names


def _is_spline(column: NumericColumn, spline: bool) -> bool:
    return spline and column.encoding == "spline"


def _scaled(values: np.ndarray, scale: str) -> np.ndarray:
    return np.log1p(values) if scale == "log1p" else values


def _clip_factor(norms: np.ndarray, bound: float) -> np.ndarray:
    factor = np.ones_like(norms)
    above = norms > bound
    factor[above] = bound * _SAFE / norms[above]
    return factor


def _counts(**masks: np.ndarray) -> dict[str, int]:
    return {name: int(mask.sum()) for name, mask in masks.items() if mask.any()}


def distinct_cells(cells: pd.Series) -> tuple[np.ndarray, list[object]]:
    """Codes (n,) into a list of cells, −1 for a missing one."""
    if cells.dtype == object and pd.api.types.infer_dtype(cells, skipna=True) != "string":
        # 1, 1.0 and True are equal keys but different texts: which one stands for all would depend on the row order
        values = cells.tolist()
        missing = np.array([is_missing(value) for value in values], dtype=bool)
        return np.where(missing, -1, np.arange(len(values))), values
    try:
        codes, uniques = pd.factorize(cells)
        return codes, list(uniques)
    except UnicodeError:  # a text that is none (Parquet keeps any bytes): it must not stop the reading of the others
        values = [_text_or_none(cells, row) for row in range(len(cells))]
        return np.array([-1 if value is None else row for row, value in enumerate(values)], dtype=np.int64), values


def _text_or_none(cells: pd.Series, row: int) -> object:
    try:
        value = cells.iloc[row]
    except UnicodeError:
        return None
    return None if is_missing(value) else value
