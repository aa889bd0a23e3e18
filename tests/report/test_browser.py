"""Both pages in headless Chromium: figures drawn, no error, nothing asked of the network."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

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
# Appended to a copy of the page: writes what the browser knows about the page into the document.
PROBE = """<script>addEventListener("load", () => {
  const images = [...document.images].map(i => [i.naturalWidth, i.clientWidth, i.clientHeight, i.complete].join());
  const out = document.createElement("pre");
  out.id = "probe";
  out.textContent = JSON.stringify({images, width: document.documentElement.scrollWidth, inner: innerWidth,
    requests: performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("data:"))});
  document.body.append(out);
});</script>"""


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


@pytest.mark.parametrize("width", [1200, 500])
def test_figures_are_there_and_the_page_fits(page: Path, tmp_path: Path, width: int) -> None:
    # 500 px is the narrowest window that every Chromium opens; the layout for phones begins at 544 px
    probe = page.with_name("probe.html")
    policy = "script-src 'unsafe-inline'; default-src 'none'; img-src data:"
    html = page.read_text(encoding="utf-8").replace("default-src 'none'; img-src data:", policy)
    probe.write_text(html.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    done = browse(probe, tmp_path / "profile", "--dump-dom", f"--window-size={width},1000")
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.S)
    assert found is not None
    facts = json.loads(found.group(1))
    assert facts["requests"] == []
    assert facts["images"]
    for image in facts["images"]:
        natural, shown, height, complete = image.split(",")
        assert int(natural) > 0
        assert int(shown) > 200
        assert int(height) > 30
        assert complete == "true"
    assert facts["width"] <= facts["inner"]
    assert not [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


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
        assert np.unique((pixels * 31).astype(int).reshape(-1, 3), axis=0).shape[0] > 20
        brightness[scheme] = float(np.median(pixels))
    assert brightness[1] > 0.8
    assert brightness[0] < 0.25
