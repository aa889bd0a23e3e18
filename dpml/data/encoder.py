"""From a row of the table to a vector of features, by public knowledge alone.

Nothing is fitted: knots, categories and the clipping norm come from the schema, and a row's features depend on that row
only.  Numeric columns become hat functions (linear B-splines) on even knots between the declared bounds, categoricals
indicators in the declared order; then a constant 1; then the whole row is clipped to the public norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..errors import DataError
from .columns import OTHER, CategoricalColumn, NumericColumn, closest, text_of
from .schema import Schema

CONSTANT = "(constant)"
_SAFE = 1.0 - 1e-14  # clipped rows end a hair below the bound, so that rounding never lifts them above it
_CHUNK = 8192
_BLOCK = 1024


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

    Attributes:
        schema: as given.
        n_features: number ``d`` of features, the constant included (public).
        feature_names: their names, the constant last.
    """

    def __init__(self, schema: Schema, spline: bool = True) -> None:
        self.schema = schema
        self.spline = bool(spline)
        names: list[str] = []
        for column in schema.features:
            names.extend(_names(column, self.spline))
        self.feature_names: tuple[str, ...] = (*names, CONSTANT)
        self.n_features = len(self.feature_names)

    def __repr__(self) -> str:
        return f"Encoder({self.schema.name!r}, n_features={self.n_features}, spline={self.spline})"

    def transform(self, table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, dict[str, dict[str, int]]]:
        """Features of every row.

        Args:
            table: data frame with at least the schema's encoded columns; others are not looked at.

        Returns:
            ``(X, valid, counts)``: X (n, d) float64 with ``‖row‖ ≤ norm_bound``; valid (n,) bool, ``False`` for a
            record that the schema drops (its row of X is zero); counts of clamped, unknown and dropped cells by
            column, which are **private**.

        Raises:
            DataError: a column is missing; the message gives the closest name.
        """
        require_columns(table.columns, [column.name for column in self.schema.features])
        n = len(table)
        parts = [self._part(column, table[column.name]) for column in self.schema.features]
        valid = np.ones(n, dtype=bool)
        squares = np.ones(n)  # of the constant column
        for part in parts:
            valid &= part.keep
            squares += np.square(part.weight).sum(axis=1)
        scale = _clip_factor(np.sqrt(squares), self.schema.norm_bound)
        scale[~valid] = 0.0

        widths = [len(_names(column, self.spline)) for column in self.schema.features]
        offsets = np.concatenate([[0], np.cumsum(widths)])
        X = np.zeros((n, self.n_features))
        for start in range(0, n, _BLOCK):  # blocks of rows that fit the cache
            block = slice(start, start + _BLOCK)
            rows = np.arange(len(X[block]))
            for part, offset in zip(parts, offsets, strict=False):
                for k in range(part.weight.shape[1]):
                    X[block][rows, offset + part.index[block, k]] = part.weight[block, k] * scale[block]
        X[:, -1] = scale
        counts = {c.name: p.counts for c, p in zip(self.schema.features, parts, strict=True) if p.counts}
        return X, valid, counts

    def target(self, labels: pd.Series) -> tuple[np.ndarray, np.ndarray]:
        """Class index (n,) int64 of every label, and where it is a declared class (n,) bool; others get index 0."""
        codes = lookup(labels, self.schema.classes)
        return np.where(codes < 0, 0, codes), codes >= 0

    def _part(self, column: NumericColumn | CategoricalColumn, cells: pd.Series) -> _Part:
        if isinstance(column, CategoricalColumn):
            return _categorical_part(column, cells)
        return _numeric_part(column, cells, _is_spline(column, self.spline))


def clip_rows(X: np.ndarray, norm_bound: float) -> np.ndarray:
    """Rows of ``X`` (n, ...) float64, scaled to L2 norm ≤ ``norm_bound``; rows within it stay as they are.

    Works in place where ``X`` is contiguous; use the returned array.
    """
    X = np.ascontiguousarray(X)
    flat = X.reshape(len(X), math.prod(X.shape[1:]))  # a view, since X is contiguous
    for start in range(0, len(flat), _CHUNK):
        block = flat[start : start + _CHUNK]
        largest = np.abs(block).max(axis=1, initial=0.0)
        huge = largest > 1e150  # whose squares would overflow
        block[huge] /= largest[huge, None]
        norms = np.sqrt(np.square(block, dtype=np.float64).sum(axis=1))
        factor = _clip_factor(norms, norm_bound)
        factor[huge] = norm_bound * _SAFE / norms[huge]
        changed = factor < 1.0
        changed |= huge
        block[changed] *= factor[changed, None]
    return X


def lookup(cells: pd.Series, values: tuple[object, ...]) -> np.ndarray:
    """Index (n,) int64 in ``values`` of every cell, −1 where there is none; compared as trimmed text."""
    known = {text_of(value): index for index, value in enumerate(values)}
    codes, uniques = _distinct(cells)
    table = np.array([_find(known, cell) for cell in uniques] + [-1], dtype=np.int64)  # code −1: missing cell
    return table[codes]


def numbers(cells: pd.Series) -> np.ndarray:
    """Every cell as a float (n,), NaN where it is no number; each cell is read on its own."""
    if isinstance(cells.dtype, np.dtype) and cells.dtype.kind in "iufb":
        return cells.to_numpy(dtype=np.float64)
    codes, uniques = _distinct(cells)
    table = np.array([_number(cell) for cell in uniques] + [math.nan])
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


def _distinct(cells: pd.Series) -> tuple[np.ndarray, list[object]]:
    """Codes (n,) into a list of cells, −1 for a missing one."""
    if cells.dtype == object and pd.api.types.infer_dtype(cells, skipna=True) != "string":
        # 1, 1.0 and True are equal keys but different texts: which one stands for all would depend on the row order
        values = cells.tolist()
        missing = np.array([value is None or value != value for value in values], dtype=bool)
        return np.where(missing, -1, np.arange(len(values))), values
    codes, uniques = pd.factorize(cells)
    return codes, list(uniques)


def _find(known: Mapping[str, int], cell: object) -> int:
    text = text_of(cell)
    if text not in known:
        text = text_of(_number(text))  # "3.0" where another writer put "3"
    return known.get(text, -1)


def _number(cell: object) -> float:
    if isinstance(cell, str) and "_" in cell:  # Python would read 1_000 as a number
        return math.nan
    try:
        return float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan
