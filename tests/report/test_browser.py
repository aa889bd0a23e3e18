"""Both pages in headless Chromium: figures drawn, no error, nothing asked of the network."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from dpml.report import write_run_report, write_sweep_report

pytestmark = pytest.mark.browser
Make = Callable[..., Path]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--v=0",
]
# Appended to a copy of the page: tells the page around it what the browser knows about the page.
PROBE = """<script>addEventListener("load", () => {
  const images = [...document.images].map(i => [i.naturalWidth, i.clientWidth, i.clientHeight, i.complete].join());
  const boxes = [...document.querySelectorAll("main *")].filter(e => !e.closest(".scroll") && !e.closest("thead"));
  const wide = boxes.filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 200));
  const scrolled = [...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth + 1);
  parent.postMessage(JSON.stringify({images, wide, width: document.documentElement.scrollWidth, inner: innerWidth,
    scrolled: scrolled.map(e => e.getAttribute("aria-label")), dark: matchMedia("(prefers-color-scheme: dark)").matches,
    ink: getComputedStyle(document.body).color, paper: getComputedStyle(document.body).backgroundColor,
    sources: [...document.images].map(i => i.currentSrc), small: boxes.filter(e => e.textContent.trim()
      && !e.children.length && parseFloat(getComputedStyle(e).fontSize) < 12).map(e => e.outerHTML.slice(0, 200)),
    requests: performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("data:"))}), "*");
});</script>"""
# No Chromium opens a window of 375 px, but a frame can have any width.
FRAME = """<!doctype html><meta name="color-scheme" content="light dark"><iframe src="{page}"
style="border:0;width:{width}px;height:1000px"></iframe><script>addEventListener("message", e => {{
  const out = document.createElement("pre"); out.id = "probe"; out.textContent = e.data; document.body.append(out);
}});</script>"""


def chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "headless Chromium is needed: apt-get install chromium"
    return found


def browse(page: Path, profile: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [chromium(), *FLAGS, f"--user-data-dir={profile}", *more, page.as_uri()]
    environment = {**os.environ, "HOME": str(profile.parent)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)


@pytest.fixture(params=["run", "one_shot", "sweep", "empty_sweep"])
def page(request: pytest.FixtureRequest, run_folder: Make, sweep_folder: Make) -> Path:
    if request.param == "run":
        return write_run_report(run_folder(overrides=["+experiment=logreg"]))
    if request.param == "one_shot":
        return write_run_report(run_folder(method="objective"))
    settings = {"seeds": 3, "broken": True} if request.param == "sweep" else {"public": False}
    sweep = sweep_folder(methods=("output", "dp_sgd"), epsilons=(0.5, 1.0), **settings)
    write_sweep_report(sweep)
    return sweep / "report.html"


def test_the_file_names_no_outside_resource(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    for value in re.findall(r"""\b(?:src|srcset|href|action|poster|data)\s*=\s*["']?([^"'\s>]+)""", html):
        assert value.startswith(("data:", "#")), value[:80]
    assert not re.search(r"@import|url\(|<script|<iframe|<object|<embed", html)
    assert "default-src 'none'" in html


def probed(page: Path, profile: Path, width: int, scheme: int = 1, *, open_all: bool = False) -> dict[str, Any]:
    """What the browser knows about a page in a window of ``width`` pixels; ``scheme`` 1 is light, 0 dark."""
    probe, frame = page.with_name("probe.html"), page.with_name("frame.html")
    policy = "script-src 'unsafe-inline'; default-src 'none'; img-src data:"
    html = page.read_text(encoding="utf-8").replace("default-src 'none'; img-src data:", policy)
    html = html.replace("<details>", "<details open>") if open_all else html
    probe.write_text(html.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    frame.write_text(FRAME.format(page=probe.as_uri(), width=width), encoding="utf-8")
    done = browse(
        frame, profile, "--dump-dom", f"--window-size={max(width + 40, 600)},1100", "--virtual-time-budget=4000",
        f"--blink-settings=preferredColorScheme={scheme}",
    )  # fmt: skip
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.S)
    assert found is not None
    facts: dict[str, Any] = json.loads(unescape(found.group(1)))
    facts["console"] = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return facts


@pytest.mark.parametrize("width", [1200, 375])
def test_figures_are_there_and_the_page_fits(page: Path, tmp_path: Path, width: int) -> None:
    facts = probed(page, tmp_path / "profile", width, open_all=True)
    assert facts["inner"] == width
    assert facts["requests"] == []
    assert facts["images"]
    for image in facts["images"]:
        natural, shown, height, complete = image.split(",")
        assert int(natural) > 0
        assert int(shown) > 200
        assert int(height) > 30
        assert complete == "true"
    assert facts["width"] <= facts["inner"]
    assert facts["wide"] == []
    assert facts["small"] == []
    assert facts["console"] == []


@pytest.mark.parametrize("method", ["dp_sgd", "objective"])
def test_no_table_of_a_run_needs_scrolling_on_a_phone(run_folder: Make, tmp_path: Path, method: str) -> None:
    page = write_run_report(run_folder(method=method, overrides=["+experiment=logreg", "data.path=" + 80 * "long"]))
    facts = probed(page, tmp_path / "profile", 375, open_all=True)
    assert facts["scrolled"] == []
    assert facts["wide"] == []


def test_a_page_about_no_privacy_fits_too(run_folder: Make, tmp_path: Path) -> None:
    page = write_run_report(run_folder(change={"epsilon": "inf", "delta": 0.0, "method": "nonprivate"}))
    facts = probed(page, tmp_path / "profile", 375)
    assert facts["wide"] == facts["requests"] == facts["console"] == []


def test_long_names_do_not_widen_the_page(run_folder: Make, tmp_path: Path) -> None:
    name = "W" * 400
    change = {"model": name, "unit": name, "assumptions": [name], "data": {"name": name, "classes": [name]}}
    folder = run_folder(method="output", change=change)
    schema = {"n_declared": 10, "columns": {name: {"kind": "categorical", "categories": [name, name]}}}
    (folder / "release" / "schema.json").write_text(json.dumps(schema))
    facts = probed(write_run_report(folder), tmp_path / "profile", 375, open_all=True)
    assert facts["width"] <= 375
    assert facts["wide"] == []


def test_dark_mode_takes_dark_paper_and_dark_figures(run_folder: Make, tmp_path: Path) -> None:
    page = write_run_report(run_folder(method="output"))
    html = page.read_text("utf-8")
    seen = {}
    for scheme, width in ((1, 1200), (0, 1200), (1, 375), (0, 375)):
        facts = probed(page, tmp_path / f"profile{scheme}{width}", width, scheme)
        assert facts["dark"] == (scheme == 0)
        assert all(source and source in html for source in facts["sources"])
        ink, paper = (np.mean([int(n) for n in re.findall(r"\d+", facts[key])[:3]]) for key in ("ink", "paper"))
        assert (ink > 200 and paper < 40) if scheme == 0 else (ink < 60 and paper > 230)
        seen[scheme, width] = tuple(facts["sources"])
    assert len(set(seen.values())) == 4


def test_the_page_prints(run_folder: Make, tmp_path: Path) -> None:
    """What is folded on the screen is on the paper; a PDF of several pages comes out."""
    page = write_run_report(run_folder(method="output"))
    pdf = tmp_path / "page.pdf"
    browse(page, tmp_path / "profile", f"--print-to-pdf={pdf}", "--no-pdf-header-footer")
    raw = pdf.read_bytes()
    assert raw.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", raw)) <= 12


def test_the_screen_shows_the_page_in_light_and_dark(page: Path, tmp_path: Path) -> None:
    brightness = {}
    for scheme in (1, 0):  # light, dark
        shot = tmp_path / f"{scheme}.png"
        browse(
            page, tmp_path / f"profile{scheme}", f"--screenshot={shot}", "--window-size=1000,1400",
            f"--blink-settings=preferredColorScheme={scheme}",
        )  # fmt: skip
        pixels = imread(io.BytesIO(shot.read_bytes()), format="png")[..., :3]
        assert pixels.shape[:2] == (1400, 1000)
        assert np.unique((pixels * 31).astype(int) @ [1, 32, 1024]).size > 20  # colours, five bits each
        brightness[scheme] = float(np.median(pixels))
    assert brightness[1] > 0.8
    assert brightness[0] < 0.25
