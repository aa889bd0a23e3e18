"""Turns a dictionary of facts into one self-contained HTML page (everything that comes from a file is escaped)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dpml.report import formats
from dpml.version import __version__


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates", encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("upper", "general", "percent", "percent_upper", "relation", "relation_words", "method", "words"):
        environment.filters["as_" + name] = getattr(formats, name)
    return environment


def render(template: str, facts: dict[str, Any]) -> str:
    """The page as text.  A fact that the template needs and ``facts`` lacks is an error, never an empty place."""
    return _environment().get_template(template).render(version=__version__, **facts)
