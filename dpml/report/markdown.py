"""Small pieces of Markdown (CommonMark with tables) in which a text from a file stays a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_SPECIAL = re.compile(r"([\\`*_\[\]|~$@])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_BEGINS = re.compile(r"^([-=+#]|\d+[.)](?=\s|$))")
_LINKS = re.compile(r"\b(https?|ftp|www)(?=[:.\\])", re.IGNORECASE)


def escape(value: Any) -> str:
    """``value`` on one line, with everything that Markdown or HTML would read as markup made harmless."""
    line = " ".join(str(value).split())
    line = _SPECIAL.sub(r"\\\1", line)
    line = "".join(_HTML.get(character, character) for character in line)
    line = _LINKS.sub(lambda found: f"{found.group()[0]}&#{ord(found.group()[1])};{found.group()[2:]}", line)
    return _BEGINS.sub(lambda found: f"&#{ord(found.group()[0])};{found.group()[1:]}", line)


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[int] = ()) -> list[str]:
    """A table and an empty line after it; columns whose places are in ``right`` hold numbers."""
    marks = ["---:" if place in right else "---" for place in range(len(headers))]
    lines = [_row([escape(header) for header in headers]), _row(marks)]
    return [*lines, *(_row([escape(cell) or " " for cell in row]) for row in rows), ""]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def bullets(lines: Sequence[Any]) -> list[str]:
    """A list and an empty line after it."""
    return [*(f"- {escape(line)}" for line in lines), ""]


def fence(text: str, language: str = "text") -> list[str]:
    """A block of code that ``text`` cannot end, and an empty line after it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    mark = "`" * max(3, longest + 1)
    return [f"{mark}{language}", *text.splitlines(), mark, ""]
