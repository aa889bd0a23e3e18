"""Privacy numbers as text: rounded up, so that what is printed is a bound as well."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal
from typing import Any


def upper(value: Any, digits: int = 4) -> str:
    """An upper bound with ``digits`` significant digits, rounded up, so that the text is a bound as well.

    What differs from a short number only by floating-point noise (relative 1e-11) prints as that number.
    """
    number = as_number(value)
    if number is None:
        return "–"
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
    if number == 0:
        return "0"
    settled = Context(prec=12, rounding=ROUND_HALF_EVEN).create_decimal(Decimal(number))
    return plain(Context(prec=digits, rounding=ROUND_CEILING).plus(settled))


def as_number(value: Any) -> float | None:
    """The float behind a JSON number or ``"inf"``; ``None`` for anything that is not a number (booleans too).

    A whole number too large for a float is infinite.
    """
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    except OverflowError:  # a whole number that no float holds
        return math.inf if value > 0 else -math.inf
    return None if math.isnan(number) else number


def plain(value: Decimal) -> str:
    """A decimal without padding zeros; powers of ten only outside 1e-3 .. 1e6."""
    value = value.normalize()
    exponent = value.adjusted()
    if value == 0:
        return "0"
    if -4 < exponent < 6:
        return f"{value:f}"
    mantissa = f"{value.scaleb(-exponent).normalize():f}"
    return f"{mantissa}e{exponent}"
