"""Fixtures of the reports' tests; the folders are those of ``report_folders``."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_folders import write_run, write_sweep


@pytest.fixture
def run_folder(tmp_path: Path) -> Callable[..., Path]:
    return lambda **settings: write_run(tmp_path / "run", **settings)


@pytest.fixture
def sweep_folder(tmp_path: Path) -> Callable[..., Path]:
    return lambda **settings: write_sweep(tmp_path / "sweep", **settings)


class Page(HTMLParser):
    """Text, images and outside references of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text, self.images, self.references, self.open = "", [], [], []
        self.feed(path.read_text(encoding="utf-8"))
        self.text = re.sub(r"\s+", " ", self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        if tag == "img":
            self.images.append(facts)
        for name in ("src", "href", "srcset", "action", "poster", "data"):
            if facts.get(name):
                self.references.append(facts[name])
        if tag not in ("meta", "link", "img", "source", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"unbalanced </{tag}>"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data


@pytest.fixture
def read_page() -> Callable[[Path], Page]:
    return Page


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without pictures and without syncing to disk, for tests of what a page says."""
    from dpml.report import figures, run

    monkeypatch.setattr(figures, "_svg", lambda *_arguments: "<svg/>")
    monkeypatch.setattr(figures, "png", lambda *_arguments, **_more: b"\x89PNG")
    monkeypatch.setattr(
        run, "write_atomic", lambda path, data: path.write_bytes(data.encode() if isinstance(data, str) else data)
    )
