"""The audit of a run, ``release/audit.json``, if one was made: what an attack on it found, for its report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpml.report.formats import as_number, shortened

MOST_POINTS = 200
MOST_BYTES = 2**22


@dataclass(frozen=True)
class AuditRecord:
    """A lower bound on ε that an attack found.

    Attributes:
        epsilon_lower: the run is (ε, δ)-private for no ε below it, with probability ``confidence`` over the attack.
        epsilon_upper: what was claimed to the audit; ``None`` where it was told nothing.
        delta: the δ of both.
        confidence: in (0, 1).
        method: how the attack was made.
        points: (type-I error, type-II error) of attacks that were carried out.
        points_meaning: what these points are (observed rates, or limits of them).
        assumptions: what the bound takes for granted.
    """

    epsilon_lower: float
    epsilon_upper: float | None
    delta: float
    confidence: float
    method: str
    points: tuple[tuple[float, float], ...]
    points_meaning: str
    assumptions: tuple[str, ...]

    def contradicts(self, epsilon: float, delta: float) -> bool:
        """Whether the bound lies above a reported (``epsilon``, ``delta``): one of both is wrong.

        ε(δ) falls with δ, so a bound at some δ speaks against a claim at the same δ or a larger one.
        """
        return self.delta >= delta and self.epsilon_lower > epsilon


def read_audit(path: Path) -> tuple[AuditRecord | None, str | None]:
    """The audit in a file, or why there is none: ``(None, None)`` where the file is missing."""
    if not path.is_file():
        return None, None
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no JSON object")
        return _parsed(found), None
    except (OSError, ValueError, RecursionError) as fault:
        return None, f"audit.json is not the record of an audit: {shortened(fault)}."


def _parsed(found: Mapping[str, Any]) -> AuditRecord:
    claimed = found.get("epsilon_upper")
    return AuditRecord(
        epsilon_lower=_number(found, "epsilon_lower", 0.0, float("inf")),
        epsilon_upper=None if claimed is None else _number(found, "epsilon_upper", 0.0, float("inf")),
        delta=_number(found, "delta", 0.0, 1.0),
        confidence=_number(found, "confidence", 0.0, 1.0),
        method=_text(found, "method", "not said"),
        points=_points(found.get("points", [])),
        points_meaning=_text(found, "points_meaning", "attacks that were carried out"),
        assumptions=_texts(found.get("assumptions", [])),
    )


def _number(found: Mapping[str, Any], key: str, low: float, high: float) -> float:
    value = None if isinstance(found.get(key), str) and found[key] != "inf" else as_number(found.get(key))
    if value is None or not low <= value <= high:
        raise ValueError(f"{key} = {shortened(repr(found.get(key)), 80)} is no number from {low:g} to {high:g}")
    return value


def _text(found: Mapping[str, Any], key: str, otherwise: str) -> str:
    value = found.get(key, otherwise)
    if not isinstance(value, str):
        raise ValueError(f"{key} is no text")
    return shortened(value)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("assumptions is no list of texts")
    return tuple(shortened(one) for one in value)


def _points(value: Any) -> tuple[tuple[float, float], ...]:
    """A list of pairs, or a mapping name → pair as the audit command's own file has it."""
    pairs = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or len(pairs) > MOST_POINTS:
        raise ValueError(f"points is no list of at most {MOST_POINTS} pairs")
    return tuple(_pair(pair) for pair in pairs)


def _pair(pair: Any) -> tuple[float, float]:
    if isinstance(pair, list) and len(pair) == 2:
        first, second = (None if isinstance(rate, str) else as_number(rate) for rate in pair)
        if first is not None and second is not None and 0 <= first <= 1 and 0 <= second <= 1:
            return first, second
    raise ValueError(f"{shortened(repr(pair), 80)} is no pair of rates from 0 to 1")
