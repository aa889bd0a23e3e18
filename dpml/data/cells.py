"""One cell at a time: what a single value means as a number or a label, whatever stands in the other records.

numpy gives a list one common type: a single text among numbers turns all of them into text, a single float or None
turns whole numbers into floats.  One record would then change how every other one is read.  Everything private that
comes as a Python list, or as an array or column of objects, passes through here instead and is read item by item; what
cannot be read gives NaN (a number) or matches no class (a label), and its record contributes nothing.

The type of a whole array (``dtype``) is different: whoever made the array declared it, and it is looked at in public.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np

from dpml.machine import refuse_unless_a_records

from ..errors import DataError

TRUTH = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
"""Texts of which table readers make truth values, where a column holds no others."""
_PLAIN = {float, int, bool, type(None)}  # numpy reads these exactly as cell_number does
_CELLS = {*_PLAIN, str, bytes}


def cell_number(cell: Any) -> float:
    """One cell as a float, NaN where it is no real number; never raises for what a cell holds.

    Texts are read as tables read them (``"1_000"`` is no number, ``"true"`` is 1: a column of truth values turns into
    one of texts when a single cell is something else); a whole number beyond the range of floats, a complex
    number, a date, and anything that holds several values is none either.
    """
    if isinstance(cell, float | int):
        try:
            return float(cell)
        except OverflowError:
            return math.nan
    if isinstance(cell, complex | np.complexfloating | np.datetime64 | np.timedelta64):
        return math.nan
    try:
        if isinstance(cell, bytes):
            cell = cell.decode("utf-8")
        if isinstance(cell, str):
            if "_" in cell:  # Python reads 1_000, tables do not
                return math.nan
            return TRUTH[text] if (text := cell.strip()) in TRUTH else float(text)
        if np.ndim(cell) or np.iscomplexobj(cell):
            return math.nan
        return float(cell)
    except BaseException as error:  # a type of the user's own may raise anything
        refuse_unless_a_records(error)
        return math.nan


def numbers_of(cells: np.ndarray) -> np.ndarray:
    """An array of objects as float64 of the same shape, cell by cell."""
    flat = cells.reshape(-1).tolist()
    if set(map(type, flat)) <= _PLAIN:  # a speed-up only: the same rule for each cell
        try:
            return np.array(flat, dtype=np.float64).reshape(cells.shape)
        except OverflowError:  # a whole number beyond the range of floats
            pass
    return np.fromiter(map(cell_number, flat), dtype=np.float64, count=len(flat)).reshape(cells.shape)


def objects_of(values: Sequence[Any]) -> np.ndarray:
    """Rows of a list as an array of objects (n, ...): no cell is converted.

    The shape of a row is public; it is that of more than half of the rows.  A row of another shape becomes one of
    ``None``, which contributes nothing.

    Raises:
        DataError: no shape is that of more than half of the rows.
    """
    rows = list(values)
    shapes = [_shape_of(row) for row in rows]
    if not rows:
        return np.empty(0, dtype=object)
    shape, count = Counter(shapes).most_common(1)[0]
    if 2 * count <= len(rows):
        raise DataError("X is ragged: its rows have different lengths. Give every record the same number of features.")
    size = math.prod(shape)
    pairs = zip(rows, shapes, strict=True)
    cells = (_cells_of(row, len(shape)) if own == shape else repeat(None, size) for row, own in pairs)
    found = np.fromiter(chain.from_iterable(cells), dtype=object, count=len(rows) * size)
    return found.reshape(len(rows), *shape)


MOST_AXES = 8  # of a row that is a list; a list that holds itself has no end


def _shape_of(row: Any, axes: int = MOST_AXES) -> tuple[int, ...]:
    """The shape of a row of a list: (d,) for a list of cells, more for lists of lists of one shape, () for a cell."""
    if isinstance(row, list | tuple):
        kinds = set(map(type, row))
        if kinds <= _CELLS or axes == 0:
            return (len(row),)
        inner = {_shape_of(item, axes - 1) for item in {id(item): item for item in row}.values()}
        return (len(row), *inner.pop()) if len(inner) == 1 else (len(row),)
    try:
        return tuple(int(size) for size in row.shape) if hasattr(row, "tolist") else ()
    except BaseException as error:  # a cell: it has no shape, or is of a user's own type
        refuse_unless_a_records(error)
        return ()


def _cells_of(row: Any, depth: int) -> Iterable[Any]:
    """The cells of a row with ``depth`` axes, one after the other."""
    if depth == 0:
        return (row,)
    items = row if isinstance(row, list | tuple) else row.tolist()
    return items if depth == 1 else chain.from_iterable(_cells_of(item, depth - 1) for item in items)


def kept(values: Any) -> np.ndarray:
    """``values`` as an array, pandas' own types (nullable, arrow, categorical) as objects.

    numpy would read whole numbers beside one missing value as floats, which changes those above 2^53.
    """
    own = not isinstance(getattr(values, "dtype", None), np.dtype | type(None)) and hasattr(values, "astype")
    return np.asarray(values.astype(object) if own else values)


def labels_of(values: Iterable[Any]) -> np.ndarray:
    """Items of a list, shape (n,), as objects: none is converted.

    An item that holds exactly one value (a row of a column vector, a tensor) stands for that value.
    """
    items = list(values)
    found = np.empty(len(items), dtype=object)
    for position, item in enumerate(items):
        found[position] = plain_label(item)
    return found


def plain_label(label: Any) -> Any:
    """A plain label of an array, tensor or list that holds a single one; anything else as it is; masked: None."""
    if isinstance(label, list | tuple) and len(label) == 1:
        label = label[0]
    if isinstance(label, np.ma.MaskedArray) and np.ma.is_masked(label):
        return None
    try:
        return label.item()
    except BaseException as error:  # no such method, several values, or whatever a type of the user's own does
        refuse_unless_a_records(error)
        return label


def is_missing(cell: Any) -> bool:
    """Whether a cell holds nothing: ``None``, NaN, NaT, pandas' NA."""
    if cell is None:
        return True
    try:
        return bool(cell != cell)  # true for NaN and NaT
    except TypeError:  # pandas' NA has no truth value
        return True
    except Exception:  # an array, or a type of the user's own
        return False


def kind_of(values: Any) -> str:
    """numpy's letter for the declared type of a whole array; ``"O"`` for a list and whatever has no such type."""
    return str(getattr(getattr(values, "dtype", None), "kind", "O"))


def check_number_type(kind: str, type_name: object, name: str) -> None:
    """``DataError`` where the declared type of a whole array is that of no numbers; ``"O"`` is read cell by cell."""
    if kind not in "iufbO":
        raise DataError(
            f"{name} does not hold numbers only: its type is {type_name}. Encode texts, dates and complex numbers as "
            "real numbers first, or use a table with a schema."
        )
