"""Private records as named columns, read cell by cell, so that no record changes how another one is read.

Accepted: a mapping of names to one-dimensional arrays or lists, a pandas data frame, a two-dimensional array whose
columns are numbered.  Public are the names of the columns and whether a column is declared as numbers (NumPy's kinds b,
i, u and f) or as anything else; the cells are private, and so is how many there are (add_remove).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpml.accounting.checks import shown
from dpml.errors import ConfigError, DataError, invalid
from dpml.machine import refuse_unless_a_records

Name = Hashable
_NUMBERS = "biuf"
_MISSING = ("NAType", "NaTType")
_WAY_OUT = "Give a dict of one-dimensional arrays, a pandas data frame or a two-dimensional array."


class Columns:
    """Columns of equal length.  ``repr`` shows names only, and pickling is refused: the cells are private.

    Attributes:
        names: the names of the columns, public.
        records: how many records there are: public under replace_one, private under add_remove.
    """

    __slots__ = ("__cells", "names", "records")

    def __init__(self, cells: Mapping[Name, NDArray[Any]], records: int) -> None:
        self.__cells = dict(cells)
        self.names = tuple(self.__cells)
        self.records = records

    def require(self, name: Name) -> None:
        """ConfigError unless there is a column of that name; looks at no cell."""
        if name not in self.names:
            raise invalid("column", shown(name), f"one of {shown(list(self.names))}")

    def raw(self, name: Name) -> NDArray[Any]:
        """The column as it is stored: float64 for numbers, else objects."""
        return self.__cells[name]

    def numbers(self, name: Name) -> NDArray[np.float64]:
        """The column as float64; what is or spells no number (other text, None, a date) is NaN, and ``"true"`` is 1.

        Shape (n,).
        """
        column = self.__cells[name]
        if column.dtype == np.float64:
            return column
        return np.fromiter((spelled_number(cell) for cell in column), dtype=np.float64, count=column.size)

    def rows(self) -> Iterator[dict[Name, Any]]:
        """The records, one dict each; a cell that is or spells a number is that number, however its column is kept."""
        columns = (self.__cells[name].tolist() for name in self.names)
        for cells in zip(*columns, strict=True):
            yield dict(zip(self.names, map(as_read, cells), strict=True))

    def as_dict(self) -> dict[Name, NDArray[Any]]:
        """A new dict of copies of the columns, for functions that users give."""
        return {name: column.copy() for name, column in self.__cells.items()}

    def blank(self, records: int) -> Columns:
        """Made-up records with the same names and kinds: zeros and empty texts.  Tells nothing of the cells."""
        cells: dict[Name, NDArray[Any]] = {}
        for name, column in self.__cells.items():
            cells[name] = np.full(records, 0.0 if column.dtype == np.float64 else "", dtype=column.dtype)
        return Columns(cells, records)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("Columns cannot be pickled or copied: they hold private records.")

    def __repr__(self) -> str:
        return f"Columns(names={list(self.names)!r})"


def as_columns(data: object) -> Columns:
    """``data`` as :class:`Columns`.

    Raises:
        ConfigError: not one of the accepted containers, no column, or a name that occurs twice.
        DataError: columns of different lengths, or a column that is not one-dimensional (the custodian's pre-check: it
            looks at shapes, never at cells).
    """
    if isinstance(data, Columns):
        return data
    if isinstance(data, Mapping):
        parts = {name: _column(name, values) for name, values in data.items()}
    elif isinstance(data, np.ndarray):
        if data.ndim != 2:
            raise invalid("data", f"an array of {data.ndim} dimensions", "of two dimensions (n, d)", _WAY_OUT)
        parts = {number: _column(number, data[:, number]) for number in range(data.shape[1])}
    elif type(data).__module__.split(".")[0] == "pandas" and hasattr(data, "columns"):
        parts = _of_frame(data)
    else:
        kind = f"an object of type {type(data).__name__}"  # never its text: it may hold records
        raise ConfigError(f"data = {kind} is not allowed. {_WAY_OUT}")
    if not parts:
        raise ConfigError(f"data have no column. {_WAY_OUT}")
    lengths = {column.size for column in parts.values()}
    if len(lengths) != 1:
        raise DataError("the columns of data differ in length: each record needs a cell in every column.")
    return Columns(parts, lengths.pop())


def _of_frame(frame: Any) -> dict[Name, NDArray[Any]]:
    names = list(frame.columns)
    if len(set(names)) != len(names):
        raise ConfigError(f"data have a column name twice: {shown(names)}. Rename one.")
    return {name: _column(name, frame[name]) for name in names}


def _column(name: Name, values: Any) -> NDArray[Any]:
    if isinstance(values, np.ndarray) or hasattr(values, "to_numpy"):
        array = values if isinstance(values, np.ndarray) else _of_series(values)
        if array.ndim != 1:
            raise DataError(f"column {name!r} has {array.ndim} dimensions instead of one.")
        if array.dtype.kind in _NUMBERS:
            return array.astype(np.float64)
        return _objects(list(array) if array.dtype.kind in "mM" else array.tolist())
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
        raise DataError(f"column {name!r} is not a one-dimensional array or list.")
    return _objects(list(values))


def _of_series(values: Any) -> NDArray[Any]:
    """Numbers where the column is declared so, else objects: what ``to_numpy`` makes of pandas' own types may depend on
    whether a cell is missing."""
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype):
        return np.asarray(values)
    return np.asarray(values.to_numpy(dtype=object) if hasattr(values, "dtype") else values.to_numpy())


def _objects(cells: list[Any]) -> NDArray[Any]:
    """One object per cell: NumPy would turn the numbers of a list with one text in it into texts."""
    out = np.empty(len(cells), dtype=object)
    for index, cell in enumerate(cells):
        out[index] = None if type(cell).__name__ in _MISSING else cell  # pandas' NA raises when it is compared
    return out


class Places:
    """Where a cell stands in a public list of texts, truth values and numbers: −1 for nowhere.

    One cell that is no number makes a CSV reader keep a whole column as texts, and one that is no truth value too.  So
    that it changes nothing for the others, what is or spells a number counts as that number, on both sides: ``"01"``,
    ``"1.0"``, 1 and ``"true"`` stand in one place, that of the first of them in the list.
    """

    def __init__(self, listed: Sequence[Any]) -> None:
        self._numbers: dict[float, int] = {}
        self._texts: dict[Any, int] = {}
        for place, value in enumerate(listed):
            number = spelled_number(value)
            if math.isnan(number):
                self._texts.setdefault(value, place)
            else:
                self._numbers.setdefault(number, place)

    def of(self, cell: Any) -> int:
        number = spelled_number(cell)
        if not math.isnan(number):
            return self._numbers.get(number, -1)
        try:
            return self._texts.get(cell, -1) if isinstance(cell, str) else -1
        except BaseException as error:  # a text of the user's own type that cannot be compared
            refuse_unless_a_records(error)
            return -1


def as_read(cell: Any) -> Any:
    """The number that a cell is or spells (a float), else the cell."""
    number = spelled_number(cell)
    return cell if math.isnan(number) else number


_TRUTH = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
"""Texts of which CSV readers make truth values, where a column holds no others."""


def spelled_number(cell: Any) -> float:
    """The number that a cell is or spells, NaN where it is none; never raises for what a cell holds.

    A column is kept as text where one cell of it is no number (no truth value): the text of any other cell is read as
    what it would have been without that one.
    """
    if isinstance(cell, bytes | np.ndarray | np.datetime64 | np.timedelta64 | np.complexfloating):
        return math.nan
    try:
        if isinstance(cell, str):
            if "_" in cell:  # Python reads 1_000, tables do not
                return math.nan
            return _TRUTH[text] if (text := cell.strip()) in _TRUTH else float(text)
        return float(cell)
    except BaseException as error:  # whatever a cell holds, it raises nothing here
        refuse_unless_a_records(error)
        return math.nan
