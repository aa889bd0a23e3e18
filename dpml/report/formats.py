"""Numbers and words as the reports print them; privacy numbers are rounded to the safe side (upwards)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal
from typing import Any

from dpml.rounding import as_number, plain, upper

RELATIONS = {
    "add_remove": "add or remove one record",
    "replace_one": "replace one record by another",
}
METHODS = {
    "dp_sgd": "DP-SGD",
    "output": "output perturbation",
    "objective": "objective perturbation",
    "dp_gd": "noisy gradient descent",
    "adassp": "noisy sufficient statistics",
    "repeat_and_select": "private search (repeat and select)",
    "exponential_selection": "private search (exponential mechanism)",
    "nonprivate": "no privacy",
}
LARGE = 10**15
"""From here on whole numbers are written with a power of ten."""
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)
"""Control characters, marks that turn the direction of writing or end a line, letters of no width, halves of surrogate
pairs."""


def general(value: Any, digits: int = 6) -> str:
    """Any number, shortest form with ``digits`` significant digits, rounded to nearest."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGE:
        return grouped(value)
    number = as_number(value)
    if number is None:
        return "–"
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
    if number.is_integer() and abs(number) < LARGE:
        return grouped(int(number))
    return plain(Context(prec=digits, rounding=ROUND_HALF_EVEN).create_decimal(Decimal(number)))


def grouped(value: int) -> str:
    """A whole number with thin spaces between groups of three digits, from 10 000 on."""
    return f"{value:,}".replace(",", "\u202f") if abs(value) >= 10_000 else str(value)


def percent_upper(share: Any, digits: int = 1) -> str:
    """A share in [0, 1] as a percentage with ``digits`` decimals, rounded up (an upper bound stays one).

    What is not all is not printed as 100 while four decimals more can tell: 99.966 is "99.97", not "100.0".
    """
    number = as_number(share)
    if number is None or not abs(number) < LARGE:
        return upper(number)
    settled = Context(prec=12, rounding=ROUND_HALF_EVEN).create_decimal(Decimal(number) * 100)
    ups = [settled.quantize(Decimal(1).scaleb(-more), rounding=ROUND_CEILING) for more in range(digits, digits + 5)]
    shown = next((one for one in ups if one < 100), ups[0]) if settled < 100 else ups[0]
    return f"{shown}\u00a0%"


def percent(share: Any, digits: int = 2) -> str:
    """A share in [0, 1] as a percentage with ``digits`` decimals, rounded to nearest."""
    number = as_number(share)
    return general(number) if number is None or not abs(number) < LARGE else f"{100 * number:.{digits}f}\u00a0%"


def relation(name: Any) -> str:
    """The neighbouring relation in words, ``add or remove one record (add_remove)``."""
    words = RELATIONS.get(str(name))
    return f"{words} ({name})" if words else str(name)


def relation_words(name: Any) -> str:
    """The neighbouring relation in words alone."""
    return RELATIONS.get(str(name), str(name))


def method(name: Any) -> str:
    """The training method in words."""
    return METHODS.get(str(name), str(name))


def words(value: Any) -> str:
    """A JSON value as a cell of a table: numbers short, lists joined, mappings as ``key: value`` pairs."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return "∞" if value == "inf" else shortened(value)
    if isinstance(value, Mapping):
        return shortened("; ".join(f"{k}: {words(v)}" for k, v in value.items()), 2000) or "–"
    if isinstance(value, list | tuple):
        return shortened(", ".join(words(v) for v in value), 2000) or "–"
    return general(value)


def visible(text: str) -> str:
    """``text`` with a replacement character for whatever would not be seen, or would change how the rest is seen."""
    return _INVISIBLE.sub("\ufffd", text)


def shortened(text: Any, most: int = 300) -> str:
    """``text`` with its middle left out where it is longer than ``most`` characters."""
    text = str(text)
    return text if len(text) <= most else f"{text[: most - 60]} … {text[-50:]}"
