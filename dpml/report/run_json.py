"""``report.json``: what the report of a run says, for programs."""

from __future__ import annotations

from typing import Any

from dpml.report.run_facts import RunFacts
from dpml.results import dumps, to_jsonable

FORMAT = 1
LEFT_OUT = ("config", "schema")  # files of their own beside it


def facts_of(facts: RunFacts) -> dict[str, Any]:
    """The facts as plain JSON values; privacy numbers are not rounded, ∞ is ``"inf"``."""
    found: dict[str, Any] = to_jsonable(facts)
    return {"format": FORMAT, **{key: value for key, value in found.items() if key not in LEFT_OUT}}


def facts_json(facts: RunFacts) -> str:
    """The text of ``report.json``."""
    return dumps(facts_of(facts)) + "\n"
