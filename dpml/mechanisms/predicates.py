"""Which records a query is about: declared conditions that look at one record at a time.

``Where("age", ">=", 18) & ~Where("town", "==", "a")``.  A condition on a missing cell (NaN, None) is false.  A Python
function of one record (a dict) is taken as well; it is called record by record, so that it cannot compare records, and
where it raises the record does not count.  What spells a number is that number everywhere: ``"01"``, ``"1.0"`` and 1
are equal, ``"true"`` is 1 (:class:`~dpml.mechanisms.columns.Places` says why).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpml.accounting.checks import check_list, check_one_of, shown
from dpml.errors import ConfigError, invalid
from dpml.machine import refuse_unless_a_records
from dpml.mechanisms.columns import Columns, Name, Places

OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "in", "present")
Mask = NDArray[np.bool_]


MOST_NESTED = 200  # conditions one in another: each is a call within a call


class Predicate:
    """What all conditions share: ``&``, ``|`` and ``~``, the columns they read, and a public description."""

    depth: ClassVar[int] = 0  # of nested conditions

    def mask(self, data: Columns) -> Mask:
        """Which records satisfy it, shape (n,)."""
        raise NotImplementedError

    @property
    def columns(self) -> tuple[Name, ...]:
        """Names of the columns that it reads."""
        raise NotImplementedError

    def describe(self) -> str:
        """The condition in words, public."""
        raise NotImplementedError

    def rehearse(self, blank: Columns) -> None:
        """ConfigError for what is wrong with it on data of these columns; ``blank`` has no record."""

    def __and__(self, other: Predicate) -> Predicate:
        return _Both(self, check_where(other), "and")

    def __or__(self, other: Predicate) -> Predicate:
        return _Both(self, check_where(other), "or")

    def __invert__(self) -> Predicate:
        return _Not(self)


@dataclass(frozen=True)
class Where(Predicate):
    """One column compared with a public value.

    Args:
        column: its name.
        operator: one of :data:`OPERATORS`; ``"in"`` takes a list of values, ``"present"`` takes none and holds where
            the cell is not missing.
        value: a finite number for ``<``, ``<=``, ``>``, ``>=``; a number or text for the others.

    Raises:
        ConfigError: an operator or a value that is not allowed.
    """

    column: Name
    operator: str
    value: Any = None

    def __post_init__(self) -> None:
        check_one_of("operator", self.operator, OPERATORS)
        if self.operator == "present":
            if self.value is not None:
                raise invalid("value", shown(self.value), "left out with operator='present'")
        elif self.operator == "in":
            object.__setattr__(self, "value", tuple(_value(part) for part in check_list("value", self.value, "a list")))
        elif self.operator in ("==", "!="):
            object.__setattr__(self, "value", _value(self.value))
        elif not _is_number(self.value):
            raise invalid("value", shown(self.value), f"a finite number with operator={self.operator!r}")

    def mask(self, data: Columns) -> Mask:
        """Which records satisfy it; a missing cell never does."""
        if self.operator in ("==", "!=", "in"):
            wanted = {self.value} if self.operator != "in" else set(self.value)
            return _matches(data.raw(self.column), wanted, self.operator == "!=")
        if self.operator == "present":
            return _matches(data.raw(self.column), set(), True)
        numbers = data.numbers(self.column)
        compare = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}[self.operator]
        return np.asarray(compare(numbers, float(self.value)), dtype=np.bool_)

    @property
    def columns(self) -> tuple[Name, ...]:
        """The one column."""
        return (self.column,)

    def describe(self) -> str:
        """For example ``age >= 18``."""
        return f"{self.column} {self.operator}" + ("" if self.operator == "present" else f" {self.value!r}")


def _nest(outer: Predicate, *inner: Predicate) -> None:
    depth = 1 + max(part.depth for part in inner)
    if depth > MOST_NESTED:
        raise invalid("where", "a condition", f"of at most {MOST_NESTED} conditions one in another", "Use a function.")
    object.__setattr__(outer, "depth", depth)


@dataclass(frozen=True)
class _Both(Predicate):
    left: Predicate
    right: Predicate
    word: str

    def __post_init__(self) -> None:
        _nest(self, self.left, self.right)

    def mask(self, data: Columns) -> Mask:
        left, right = self.left.mask(data), self.right.mask(data)
        return left & right if self.word == "and" else left | right

    def rehearse(self, blank: Columns) -> None:
        self.left.rehearse(blank)
        self.right.rehearse(blank)

    @property
    def columns(self) -> tuple[Name, ...]:
        return tuple(dict.fromkeys(self.left.columns + self.right.columns))

    def describe(self) -> str:
        return f"({self.left.describe()}) {self.word} ({self.right.describe()})"


@dataclass(frozen=True)
class _Not(Predicate):
    inner: Predicate

    def __post_init__(self) -> None:
        _nest(self, self.inner)

    def mask(self, data: Columns) -> Mask:
        return ~self.inner.mask(data)

    def rehearse(self, blank: Columns) -> None:
        self.inner.rehearse(blank)

    @property
    def columns(self) -> tuple[Name, ...]:
        return self.inner.columns

    def describe(self) -> str:
        return f"not ({self.inner.describe()})"


@dataclass(frozen=True)
class RecordFunction(Predicate):
    """A function of one record (a dict of cells) that says whether it counts; it must keep nothing between calls.

    It is handed floats for cells that are or spell numbers, also for ``"01"`` and ``"true"``: whether a column is kept
    as numbers or as texts may depend on a single record.
    """

    function: Callable[[Mapping[Name, Any]], Any]

    def mask(self, data: Columns) -> Mask:
        """Which records satisfy it; a call that raises counts as false."""
        return np.fromiter((_holds(self.function, row) for row in data.rows()), dtype=np.bool_, count=data.records)

    def rehearse(self, blank: Columns) -> None:
        """Call it on one made-up record (zeros and empty texts): a name or column that does not exist is refused.

        Other failures there may be right (a division by 0) and are not.
        """
        record = next(blank.blank(1).rows())
        try:
            self.function(record)
        except Exception as error:
            cause = error.args[0] if isinstance(error, KeyError) and error.args else ""
            misspelt = isinstance(cause, str) and cause != "" and cause not in record
            if isinstance(error, NameError) or misspelt:
                raise ConfigError(
                    f"the {self.describe()} of where fails on a made-up record ({type(error).__name__}: {error}); "
                    f"nothing was charged. The columns are {shown(list(blank.names))}."
                ) from error

    @property
    def columns(self) -> tuple[Name, ...]:
        """None that could be named beforehand."""
        return ()

    def describe(self) -> str:
        """The function's name."""
        return f"function {getattr(self.function, '__qualname__', type(self.function).__name__)}"


def check_where(value: object) -> Predicate:
    """A predicate, or a function as :class:`RecordFunction`; ConfigError for anything else."""
    if isinstance(value, Predicate):
        return value
    if callable(value):
        return RecordFunction(value)
    raise invalid("where", shown(value), "a Where, a combination of them, or a function of one record", "Or None.")


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real | np.number) and not isinstance(value, bool) and is_finite(value)


def is_finite(value: Any) -> bool:
    """Whether a real number is finite as a float."""
    try:
        return math.isfinite(float(value))
    except OverflowError:  # an integer beyond all floats
        return False


def _value(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | bool) or _is_number(value):
        return value
    raise invalid("value", shown(value), "a text, a boolean or a finite number", "For missing cells use 'present'.")


def _matches(column: NDArray[Any], wanted: set[Any], differs: bool) -> Mask:
    """Cells that are in ``wanted`` (``differs``: that are not); never a missing one."""
    places = Places(tuple(wanted))
    if column.dtype == np.float64:
        values, inverse = np.unique(column, return_inverse=True)
        found = np.array([places.of(value) >= 0 for value in values.tolist()], dtype=np.bool_)[inverse]
        return ~found & ~np.isnan(column) if differs else found
    return np.fromiter((_match(cell, places, differs) for cell in column.tolist()), dtype=np.bool_, count=column.size)


def _match(cell: Any, places: Places, differs: bool) -> bool:
    return not is_missing(cell) and _can_be_compared(cell) and (places.of(cell) >= 0) != differs


def _can_be_compared(cell: Any) -> bool:
    try:
        hash(cell)
    except BaseException as error:  # a list, or a type that raises
        refuse_unless_a_records(error)
        return False
    return True


def is_missing(cell: Any) -> bool:
    """None, NaN and pandas' own missing values: what does not equal itself."""
    if cell is None:
        return True
    try:
        return not bool(cell == cell)
    except BaseException as error:  # pandas.NA has no truth value
        refuse_unless_a_records(error)
        return True


def _holds(function: Callable[[Mapping[Name, Any]], Any], row: Mapping[Name, Any]) -> bool:
    try:
        return bool(function(row))
    except BaseException as error:  # a data-dependent failure may not show
        refuse_unless_a_records(error)
        return False
