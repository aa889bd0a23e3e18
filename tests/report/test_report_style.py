"""The page for people who see little, or nothing: contrast, order of headings, tables, alternatives, print."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dpml.report import figures, write_run_report
from dpml.report.page import _environment

Make = Callable[..., Path]
CSS = (Path(figures.__file__).parent / "templates" / "style.css.j2").read_text("utf-8")
PAIRS = [
    ("text", "bg"), ("text", "card"), ("text", "code"), ("muted", "bg"), ("muted", "card"), ("muted", "code"),
    ("accent", "bg"), ("accent", "card"), ("good", "good-bg"), ("fair", "fair-bg"), ("bad", "bad-bg"),
]  # fmt: skip


def luminance(colour: str) -> float:
    """Relative luminance of ``#rgb`` or ``#rrggbb`` (WCAG 2.2)."""
    digits = colour.lstrip("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    shares = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def colours(theme: str) -> dict[str, str]:
    """The variables of the light theme, or the light ones overridden by the dark ones."""
    blocks = re.findall(r":root\{([^}]*)\}", CSS)
    assert len(blocks) == 2
    chosen = blocks[:1] if theme == "light" else blocks
    return dict(pair for block in chosen for pair in re.findall(r"--([\w-]+):(#[0-9a-f]{3,6})", block))


def test_the_formula_on_known_pairs() -> None:
    assert contrast("#000", "#fff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # the well-known grey that just fails


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("front", "back"), PAIRS)
def test_text_has_contrast(theme: str, front: str, back: str) -> None:
    found = colours(theme)
    assert contrast(found[front], found[back]) >= 4.5, (theme, front, back)


def test_every_colour_of_the_style_is_one_of_the_variables() -> None:
    """Outside the two blocks there is no colour but white for paper, so the pairs above are all there are."""
    rest = re.sub(r":root\{[^}]*\}", "", CSS)
    assert set(re.findall(r"#[0-9a-fA-F]{3,6}\b", rest)) <= {"#fff"}
    used = set(re.findall(r"var\(--([\w-]+)\)", rest))
    assert used <= set(colours("light"))
    assert set(colours("dark")) == set(colours("light"))


@pytest.mark.parametrize("palette", [figures.LIGHT, figures.DARK])
def test_figures_have_contrast(palette: figures.Palette) -> None:
    assert contrast(palette.text, palette.background) >= 4.5
    for colour in palette.series:
        assert contrast(colour, palette.background) >= 3.0  # graphical objects, WCAG 1.4.11


def test_dark_figures_are_light_ones_in_the_other_palette() -> None:
    svg = "".join(f'<path style="fill: {colour.lower()}"/>' for colour in figures._colours(figures.LIGHT))
    dark = "".join(f'<path style="fill: {colour.lower()}"/>' for colour in figures._colours(figures.DARK))
    assert figures.recoloured(svg) == dark
    assert len(set(figures._colours(figures.LIGHT))) == len(figures._colours(figures.LIGHT))


class Outline(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.headings: list[int] = []
        self.cells: list[tuple[str, dict[str, str | None]]] = []
        self.regions: list[str | None] = []
        self.identifiers: list[str] = []
        self.links: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.language: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "th":
            self.cells.append((tag, facts))
        if facts.get("role") == "region":
            self.regions.append(facts.get("aria-label"))
        if facts.get("id"):
            self.identifiers.append(str(facts["id"]))
        if str(facts.get("href", "")).startswith("#"):
            self.links.append(str(facts["href"])[1:])
        if tag == "img":
            self.images.append(facts)
        if tag == "html":
            self.language = facts.get("lang")


@pytest.mark.parametrize("method", ["dp_sgd", "output", "objective"])
@pytest.mark.usefixtures("quick")
def test_the_outline_of_a_page(run_folder: Make, method: str) -> None:
    html = write_run_report(run_folder(method=method, overrides=["method=" + method])).read_text("utf-8")
    page = Outline(html)
    assert page.language == "en"
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(page.headings, page.headings[1:], strict=False))
    assert page.cells
    assert all(facts.get("scope") in ("col", "row") for _, facts in page.cells)
    assert all(page.regions)
    assert len(set(page.regions)) == len(page.regions)
    assert len(set(page.identifiers)) == len(page.identifiers)
    assert set(page.links) <= set(page.identifiers)
    assert len(page.images) >= 2
    assert all(len(str(image.get("alt"))) > 40 for image in page.images)
    assert "<title>Privacy report: ε = 1" in html
    assert 'name="viewport" content="width=device-width, initial-scale=1"' in html


def test_print_has_rules_and_paper_is_never_dark() -> None:
    assert "@media print{" in CSS
    for words in ("break-inside:avoid", "print-color-adjust:exact", "content-visibility:visible", "@page{margin"):
        assert words in CSS
    assert "@media screen and (prefers-color-scheme:dark)" in CSS
    assert "(prefers-color-scheme:dark)" not in CSS.replace("@media screen and (prefers-color-scheme:dark)", "")
    parts = _environment().loader.get_source(_environment(), "parts.html.j2")[0]  # type: ignore[union-attr]
    assert parts.count("prefers-color-scheme") == parts.count("screen and (prefers-color-scheme: dark)") == 2
