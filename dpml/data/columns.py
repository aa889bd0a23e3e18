"""The columns of a schema: their records, and the checks that turn JSON entries into them."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dpml.machine import refuse_unless_a_records

from ..errors import SchemaError, invalid
from .cells import TRUTH

SCALES = ("linear", "log1p")
ENCODINGS = ("spline", "minmax")
NUMERIC_POLICIES = ("clamp", "drop", "error")
CATEGORICAL_POLICIES = ("other", "zero", "drop", "error")
KINDS = ("numeric", "categorical", "ignore")
DEFAULT_KNOTS = {"linear": 6, "log1p": 8}
MAX_KNOTS = 1000
OTHER = "other"
PRIVATE = "private"
"""In place of bounds: they are found by a charged stage (:mod:`dpml.stages.bounds`)."""
DISCOVER = "discover"
"""In place of categories: they are found by a charged stage (:mod:`dpml.stages.categories`)."""
DEFAULT_MAGNITUDE = (2.0**-20, 2.0**40)
MAGNITUDES = (2.0**-300, 2.0**300)
DEFAULT_MOST, MAX_MOST = 32, 1000

_COLUMN_KEYS = {
    "numeric": ("kind", "bounds", "magnitude", "scale", "knots", "encoding", "on_invalid"),
    "categorical": ("kind", "categories", "most", "on_invalid"),
    "ignore": ("kind",),
}


@dataclass(frozen=True)
class NumericColumn:
    """A number with public bounds.

    Attributes:
        bounds: ``(low, high)``, ``low < high``; values outside are clamped (or dropped, see ``on_invalid``).
        scale: ``"linear"``, or ``"log1p"`` for skewed amounts (knots are then even in ``log(1 + value)``).
        knots: number of hat functions; they stand at even distances from ``low`` to ``high`` on the scale.
        encoding: ``"spline"`` (``knots`` features) or ``"minmax"`` (one feature in [0, 1]).
        on_invalid: ``"clamp"``: out of range or infinite goes to the nearer bound, what is no number gives zeros;
            ``"drop"``: the record contributes nothing; ``"error"``: as ``"drop"``, and ``schema check`` stops on it.
        magnitude: ``None`` for public bounds.  Where the bounds are to be found by a charged stage, the public
            ``(least, greatest)`` of the absolute values that it tells apart, two powers of two; ``bounds`` then holds
            the whole public range as a stand-in.
    """

    name: str
    bounds: tuple[float, float]
    scale: str = "linear"
    knots: int = 6
    encoding: str = "spline"
    on_invalid: str = "clamp"
    magnitude: tuple[float, float] | None = None


@dataclass(frozen=True)
class CategoricalColumn:
    """A value from a public list.

    Attributes:
        categories: the declared values as text, in the order of their indicator features.
        on_invalid: what a value outside the list (or none) becomes.  ``"other"``: an extra indicator, or the declared
            category ``other``; ``"zero"``: all indicators 0; ``"drop"``, ``"error"``: the record contributes nothing.
        most: ``None`` for a public list.  Where the categories are to be discovered by a charged stage, the public
            number of indicator features kept for them; ``categories`` then holds as many stand-ins.
    """

    name: str
    categories: tuple[str, ...]
    on_invalid: str = "other"
    most: int | None = None


@dataclass(frozen=True)
class IgnoredColumn:
    """A column of the file that is never read."""

    name: str


Column: TypeAlias = NumericColumn | CategoricalColumn | IgnoredColumn


def text_of(value: object) -> str:
    """The text by which a category or label is compared: trimmed; whole numbers without a decimal point.

    A function of one cell alone.  A column that turns from whole numbers to floats because some *other* cell is empty
    still gives the same text here; nor does it matter whether readers took ``true`` for a truth value, which they do
    where a column holds no other cells.
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bytes):
        text = value.decode("utf-8", errors="replace").strip()
    else:
        text = str(value).strip()
    return str(bool(TRUTH[text])) if text in TRUTH else text


def cell_text(cell: object) -> str | None:
    """:func:`text_of` a cell of the data, ``None`` where it has none (a whole number of thousands of digits, say)."""
    try:
        return text_of(cell)
    except BaseException as error:  # a type of the user's own may raise anything
        refuse_unless_a_records(error)
        return None


def closest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the known name nearest to ``name``, or nothing."""
    folded = {str(k).casefold(): str(k) for k in known}
    found = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.6)
    return f" Did you mean {folded[found[0]]!r}?" if found else ""


def check_classes(classes: Any, where: str = "classes") -> tuple[Any, ...]:
    """The class labels as a tuple: two or more different texts or whole numbers.

    Raises:
        SchemaError: naming ``where``.
    """
    if isinstance(classes, set | frozenset):
        raise SchemaError(
            f"{where}: classes is a set, which has no order, and the order of the classes decides which is the second "
            "one and which column is whose. Give a list, for example sorted(classes)."
        )
    if isinstance(classes, str | Mapping) or not isinstance(classes, Iterable):
        raise fault(where, "classes", classes, "a list of two or more different labels")
    values = tuple(value.item() if hasattr(value, "item") else value for value in classes)
    if len(values) < 2:
        raise fault(where, "classes", list(values), "a list of two or more different labels")
    seen: set[str] = set()
    for value in values:
        if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
            raise fault(where, "class", value, "a text or a finite number")
        if text_of(value) in seen:
            raise SchemaError(f"{where}: the class {value!r} is listed twice. Remove one of the two.")
        seen.add(text_of(value))
    return values


def check_bounds(bounds: Any, where: str) -> tuple[float, float]:
    """Public bounds as a pair of floats with min < max; ``SchemaError`` naming ``where`` otherwise."""
    if not isinstance(bounds, list | tuple) or len(bounds) != 2 or not all(is_number(b) for b in bounds):
        raise fault(where, "bounds", bounds, "a pair of finite numbers [min, max]")
    low, high = float(bounds[0]), float(bounds[1])
    if not low < high or not math.isfinite(high - low):
        raise fault(where, "bounds", list(bounds), "[min, max] with min < max", "Swap or widen them.")
    return low, high


def scaled_target(values: np.ndarray, bounds: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Regression targets (n,) on the scale of the losses, and which are numbers (n,) bool; NaN becomes 0.

    A value is clipped to the public bounds (±∞ too), then moved to [-1, 1]: (clip(v, lo, hi) - mid)/half.
    """
    low, high = bounds
    known = ~np.isnan(values)
    held = np.clip(np.where(known, values, low), low, high)
    scaled = np.clip((held - (low + (high - low) / 2.0)) / ((high - low) / 2.0), -1.0, 1.0)
    return np.where(known, scaled, 0.0), known


def target_units(scores: np.ndarray, bounds: tuple[float, float], clipped: bool = True) -> np.ndarray:
    """Scores (n,) back in the units of the target: mid + half · score, ``clipped`` to the bounds."""
    low, high = bounds
    half = (high - low) / 2.0
    if not clipped:
        return low + half + half * scores
    return np.clip(low + half + half * np.clip(scores, -1.0, 1.0), low, high)


def make_column(name: str, entry: Any) -> Column:
    where = f"schema column {name!r}"
    if not isinstance(entry, Mapping):
        raise fault(where, "entry", entry, 'an object such as {"kind": "ignore"}')
    if "kind" not in entry:
        raise SchemaError(f"{where}: kind is missing. It must be one of {', '.join(KINDS)}.")
    kind = one_of(entry["kind"], KINDS, "kind", where)
    only_known(entry, _COLUMN_KEYS[kind], where)
    if kind == "numeric":
        return _numeric(name, entry, where)
    if kind == "categorical":
        return _categorical(name, entry, where)
    return IgnoredColumn(name)


def _numeric(name: str, entry: Mapping[str, Any], where: str) -> NumericColumn:
    if "bounds" not in entry:
        raise SchemaError(
            f"{where}: bounds is missing. Give [min, max] from public knowledge (those of the data are private), or "
            f'"{PRIVATE}" to have them found on the budget of the run (privacy.shares.bounds).'
        )
    scale = one_of(entry.get("scale", "linear"), SCALES, "scale", where)
    magnitude = _magnitude(entry, where)
    if magnitude is not None:
        bounds = (0.0 if scale == "log1p" else -magnitude[1], magnitude[1])
    else:
        bounds = check_bounds(entry["bounds"], where)
    if scale == "log1p" and bounds[0] <= -1:
        raise fault(where, "bounds", list(entry["bounds"]), "above -1 for scale log1p", 'Use "scale": "linear".')
    encoding = one_of(entry.get("encoding", "spline"), ENCODINGS, "encoding", where)
    if encoding == "minmax" and "knots" in entry:
        raise SchemaError(f"{where}: knots has no meaning with encoding minmax. Remove one of the two.")
    knots = entry.get("knots", DEFAULT_KNOTS[scale])
    if isinstance(knots, bool) or not isinstance(knots, int) or not 2 <= knots <= MAX_KNOTS:
        raise fault(where, "knots", knots, f"a whole number from 2 to {MAX_KNOTS}")
    policy = one_of(entry.get("on_invalid", "clamp"), NUMERIC_POLICIES, "on_invalid", where)
    return NumericColumn(name, bounds, scale, knots, encoding, policy, magnitude)


def _magnitude(entry: Mapping[str, Any], where: str) -> tuple[float, float] | None:
    """Public extremes of the absolute values of a column with private bounds, moved outwards to powers of two."""
    if entry["bounds"] != PRIVATE:
        if isinstance(entry["bounds"], str):
            raise fault(where, "bounds", entry["bounds"], f'[min, max], or "{PRIVATE}"')
        if "magnitude" in entry:
            raise SchemaError(f'{where}: magnitude belongs to "bounds": "{PRIVATE}". Remove it beside public bounds.')
        return None
    given = entry.get("magnitude", DEFAULT_MAGNITUDE)
    low, high = MAGNITUDES
    if (
        not isinstance(given, list | tuple)
        or len(given) != 2
        or not all(is_number(end) for end in given)
        or not low <= given[0] < given[1] <= high
    ):
        allowed = "[least, greatest] absolute value from public knowledge, 2^-300 <= least < greatest <= 2^300"
        raise fault(where, "magnitude", given, allowed)
    mantissa, exponent = math.frexp(given[1])
    return math.ldexp(0.5, math.frexp(given[0])[1]), math.ldexp(1.0, exponent - (mantissa == 0.5))


def stand_ins(number: int, taken: Sequence[str] = ()) -> tuple[str, ...]:
    """Names for indicator features that no category has taken."""
    names = (f"(unused {k})" for k in itertools.count(1))
    return tuple(itertools.islice((name for name in names if name not in taken), number))


def _discovered(name: str, entry: Mapping[str, Any], where: str) -> CategoricalColumn:
    most = entry.get("most", DEFAULT_MOST)
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MAX_MOST:
        raise fault(where, "most", most, f"a whole number from 1 to {MAX_MOST}")
    policy = one_of(entry.get("on_invalid", "other"), CATEGORICAL_POLICIES, "on_invalid", where)
    return CategoricalColumn(name, stand_ins(most), policy, most)


def _categorical(name: str, entry: Mapping[str, Any], where: str) -> CategoricalColumn:
    values = entry.get("categories")
    if values is None:
        raise SchemaError(
            f"{where}: categories is missing. List the possible values from public knowledge, or give "
            f'"{DISCOVER}" to have them found on the budget of the run (privacy.shares.categories).'
        )
    if values == DISCOVER:
        return _discovered(name, entry, where)
    if "most" in entry:
        raise SchemaError(f'{where}: most belongs to "categories": "{DISCOVER}". Remove it beside a public list.')
    if not isinstance(values, list | tuple) or not values:
        raise fault(where, "categories", values, "a list of one or more values")
    seen: dict[str, None] = {}  # in order; a list would take hours for a million categories
    for value in values:
        if not isinstance(value, str) and not isinstance(value, bool) and not is_number(value):
            raise fault(where, "category", value, "a text or a finite number")
        text = text_of(value)
        if text in seen:
            raise SchemaError(f"{where}: the category {text!r} is listed twice. Remove one of the two.")
        seen[text] = None
    policy = one_of(entry.get("on_invalid", "other"), CATEGORICAL_POLICIES, "on_invalid", where)
    return CategoricalColumn(name, tuple(seen), policy)


def column_dict(column: Column) -> dict[str, Any]:
    if isinstance(column, IgnoredColumn):
        return {"kind": "ignore"}
    if isinstance(column, CategoricalColumn):
        found: dict[str, Any] = {"categories": list(column.categories)}
        if column.most is not None:
            found = {"categories": DISCOVER, "most": column.most}
        return {"kind": "categorical", **found, "on_invalid": column.on_invalid}
    bounds: dict[str, Any] = {"bounds": list(column.bounds)}
    if column.magnitude is not None:
        bounds = {"bounds": PRIVATE, "magnitude": list(column.magnitude)}
    entry: dict[str, Any] = {
        "kind": "numeric",
        **bounds,
        "scale": column.scale,
        "encoding": column.encoding,
        "on_invalid": column.on_invalid,
    }
    if column.encoding == "spline":
        entry["knots"] = column.knots
    return entry


def fault(where: str, key: str, value: object, allowed: str, way_out: str = "") -> SchemaError:
    """The same message as :func:`dpml.errors.invalid`, which says a value that is long or has no text in short."""
    return SchemaError(f"{where}: {invalid(key, value, allowed, way_out)}")


def only_known(d: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in d:
        if key not in known:
            raise SchemaError(
                f"{where}: unknown key {key!r}.{closest(str(key), known)} The keys are: {', '.join(known)}."
            )


def is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the range of floats
        return False


def one_of(value: Any, allowed: Sequence[str], key: str, where: str) -> str:
    if value not in allowed:
        hint = closest(value, allowed).strip() if isinstance(value, str) else ""
        raise fault(where, key, value, "one of " + ", ".join(allowed), hint)
    return str(value)
