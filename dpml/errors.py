"""Every error that dpml raises on purpose.

All derive from :class:`DpmlError`; those that reject an argument are ``ValueError`` too, so that callers who know
nothing of dpml can catch them.  A message names the argument, its value, what is allowed and the way out.
Messages may hold private values (a cell of the table, say): a run writes them to ``private/`` only.
"""

from __future__ import annotations


class DpmlError(Exception):
    """Base of all errors that dpml raises on purpose."""


class ConfigError(DpmlError, ValueError):
    """An argument or configuration value that is not allowed (public knowledge only)."""


class SchemaError(DpmlError, ValueError):
    """A schema that is missing, incomplete or contradicts itself."""


class DataError(DpmlError, ValueError):
    """A table, array or folder that cannot be read as declared."""


class AccountingError(DpmlError, ValueError):
    """A privacy calculation that has no sound answer for the given values."""


class UnsupportedEventError(AccountingError):
    """An accountant that cannot bound this event; the message names both."""


class LedgerError(DpmlError):
    """The ledger cannot be written, read or trusted."""


class BudgetExceededError(DpmlError):
    """The run would pass the cap of the data set ledger; nothing was used."""


class RunFolderError(DpmlError):
    """The run folder cannot be used (not empty, not writable, holds a run)."""


class SolverError(DpmlError):
    """A solver did not reach the accuracy that the privacy proof needs; nothing was released."""


class TeamError(DpmlError):
    """Another process of the run is missing, has failed, or does something else; no sum with it was released."""


class ModelError(DpmlError, ValueError):
    """A model that cannot be trained privately (a layer mixes examples, say)."""


MOST_ENTRIES = 16  # of a list or a dict that is written out


def shown(value: object) -> str:
    """``repr`` of what may be an argument; the type of what may be data in its place: an array, rows, a long list.

    Nor what is very long, or has no ``repr`` (Python writes out no whole number of 5,000 digits).
    """
    try:
        text = repr(value) if _is_short(value) else f"a value of type {type(value).__name__}"
    except Exception:  # whatever a type of the user's own does
        return f"a {type(value).__name__}"
    return text if len(text) <= 500 else f"{text[:200]}… ({len(text)} characters)"


def _is_short(value: object, most: int = MOST_ENTRIES) -> bool:
    """A plain value; a few of them, or pairs of them, in a list, tuple, set or dict; something without entries."""
    if isinstance(value, dict):
        parts: list[object] = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    elif isinstance(value, str) or getattr(value, "shape", None) == ():
        return True
    else:
        return not (hasattr(value, "__array__") or hasattr(value, "__len__"))
    return len(parts) <= most and all(_is_short(part, min(2, most - 1)) for part in parts)


def invalid(argument: str, value: object, allowed: str, way_out: str = "") -> ConfigError:
    """A :class:`ConfigError` in the one form that all argument checks use."""
    text = f"{argument} = {shown(value)} is not allowed: it must be {allowed}."
    return ConfigError(f"{text} {way_out}".rstrip())


def misplaced(argument: str, why: str, way_out: str = "") -> ConfigError:
    """A :class:`ConfigError` for an argument that does not belong there at all; ``why``: "left out with …"."""
    return ConfigError(f"{argument} is given, and must be {why}. {way_out}".rstrip())
