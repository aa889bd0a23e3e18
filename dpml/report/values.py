"""Values of records that somebody else may have written: whatever is there, a mapping, a list or a text comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpml.report.formats import as_number, shortened


def mapping(value: Any) -> Mapping[str, Any]:
    """``value`` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> Sequence[Any]:
    """``value`` if it is a list or a tuple, else an empty one."""
    return value if isinstance(value, list | tuple) else ()


def text(value: Any, otherwise: str = "–") -> str:
    """``value`` if it is a text that is not empty, a number as text, else ``otherwise``."""
    if isinstance(value, str) and value:
        return shortened(value)
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise


def texts(value: Any) -> list[str]:
    """The texts of a list; a single text counts as a list of one."""
    found = [value] if isinstance(value, str) else sequence(value)
    return [shortened(one, 1000) for one in found if isinstance(one, str)]


def whole(value: Any, most: int = 2**53) -> int | None:
    """``value`` if it is a whole number from 0 to ``most``, else ``None``."""
    number = as_number(value) if not isinstance(value, str) else None
    if number is None or not 0 <= number <= most or number != int(number):
        return None
    return int(number)
