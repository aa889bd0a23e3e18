"""What every argument of the accounting goes through: numbers, counts, lists, names and relations, refused by name.

A refusal is a :class:`ConfigError` that names the argument, its value and what is allowed, whatever object was passed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpml.errors import invalid

ADD_REMOVE = "add_remove"
REPLACE_ONE = "replace_one"
RELATIONS = (ADD_REMOVE, REPLACE_ONE)
ACCOUNTANTS = ("best", "exact", "pld", "rdp", "zcdp", "gdp", "optimal", "advanced", "basic")  # of accounting.api
MAX_COUNT = 10**15  # releases of one kind, nested counts multiplied
_LONGEST_VALUE = 200  # of a value in a message


class _Shown:
    """A value in a message, as text that is never long."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def shown(value: object) -> object:
    """``value``, or what a message can print in its place: a long value is cut, one without a text is named by type."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**40:
        return _Shown(f"an integer of {value.bit_length()} bits")
    try:
        text = repr(value)
    except Exception:  # of an object that cannot be printed (Python refuses integers of many digits)
        return _Shown(f"a value of type {type(value).__name__}")
    return value if len(text) <= _LONGEST_VALUE else _Shown(f"{text[:_LONGEST_VALUE]}…")


def check_one_of(name: str, value: object, choices: Sequence[str], way_out: str = "") -> str:
    """``value`` as one of ``choices``, else :class:`ConfigError`; anything but text is refused."""
    if not isinstance(value, str) or value not in choices:
        raise invalid(name, shown(value), f"one of {list(choices)}", way_out)
    return str(value)


def check_relation(neighboring_relation: object) -> str:
    """The relation itself; raises :class:`ConfigError` for any other value."""
    return check_one_of("neighboring_relation", neighboring_relation, RELATIONS)


def check_number(
    name: str, value: object, low: float, high: float = math.inf, *, above: bool = False, below: bool = False
) -> float:
    """``value`` as a finite float in [low, high] (open ends by ``above``/``below``), else :class:`ConfigError`.

    Text, booleans and arrays (but those of no dimension) are refused; so is a number, a Fraction say, that is not 0 but
    whose float is: as 0 it would be a sampling rate or a cost of nothing.
    """
    allowed = f"a finite number {'>' if above else '>='} {low:g}"
    if math.isfinite(high):
        allowed += f" and {'<' if below else '<='} {high:g}"
    if not _may_be_number(value):
        raise invalid(name, shown(value), allowed)
    try:
        number = float(value)  # type: ignore[arg-type]
        vanished = number == 0 and bool(value != 0)
    except (TypeError, ValueError, OverflowError):
        raise invalid(name, shown(value), allowed) from None
    if vanished:
        raise invalid(name, shown(value), allowed, "It is not 0, but as a float it would be: give 0 or 1e-300, say.")
    if not math.isfinite(number) or number < low or number > high or (above and number == low):
        raise invalid(name, shown(value), allowed)
    if below and number == high:
        raise invalid(name, shown(value), allowed)
    return number


def _may_be_number(value: object) -> bool:
    if value is None or isinstance(value, bool | str | bytes | bytearray | memoryview):
        return False
    kind = getattr(getattr(value, "dtype", None), "kind", "f")  # of NumPy: no texts, booleans, objects, dates
    return getattr(value, "ndim", 0) == 0 and kind in ("i", "u", "f")


def check_count(name: str, value: object, low: int = 0) -> int:
    """``value`` as an int from low to MAX_COUNT, else :class:`ConfigError`; floats and booleans are refused."""
    allowed = f"an integer >= {low} and <= {MAX_COUNT:.0e}"
    if not _may_be_number(value) or not hasattr(value, "__index__"):
        raise invalid(name, shown(value), allowed)
    try:
        number = int(value.__index__())
    except (TypeError, ValueError, OverflowError):
        raise invalid(name, shown(value), allowed) from None
    if not low <= number <= MAX_COUNT:
        raise invalid(name, shown(number), allowed)
    return number


def check_list(name: str, value: object, allowed: str = "a sequence of numbers") -> list[Any]:
    """The members of any sequence, else :class:`ConfigError`: text and mappings are none."""
    if value is None or isinstance(value, str | bytes | bytearray | Mapping) or not hasattr(value, "__iter__"):
        raise invalid(name, shown(value), allowed)
    try:
        return list(value)
    except TypeError:  # an array of no dimension
        raise invalid(name, shown(value), allowed) from None
