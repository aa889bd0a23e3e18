"""The pages in docs/: links lead somewhere, code and commands of the guides run as they stand, doctests pass."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import dpml
from dpml.data import Schema

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
GUIDES = ("own-data.md", "migration.md", "choosing.md", "public-whitening.md")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def text(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


def blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)\n```", text(name), re.DOTALL | re.MULTILINE)


def anchors(page: str) -> set[str]:
    """What GitHub makes of the headings."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(page)}


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
    for link in found:
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        target, _, anchor = link.partition("#")
        where = (page.parent / target) if target else page
        assert where.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(where.read_text("utf-8")), f"{page.name}: {link}"


def test_the_index_names_every_page() -> None:
    index = text("README.md")
    assert [page.name for page in PAGES if page.name != "README.md" and f"({page.name})" not in index] == []


@pytest.mark.parametrize(("name", "number"), [(name, k) for name in GUIDES for k in range(len(blocks(name)))])
def test_code_of_the_guides_runs(name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(name)[number], f"docs/{name} block {number}", "exec"), {})


def test_the_guides_have_code() -> None:
    assert [len(blocks(name)) for name in GUIDES] == [2, 4, 1, 2]


def test_the_command_of_public_whitening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the files that the page's first example writes."""
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("public-whitening.md")[0], "docs/public-whitening.md", "exec"), {})
    page = text("public-whitening.md")
    found = re.search(r"<!-- command: public whitening -->\n```bash\n(.*?)\n```", page)
    assert found
    words = shlex.split(found.group(1))
    assert words[0] == "python"
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "MPLBACKEND": "Agg"}
    command = [sys.executable, *words[1:], "hydra.run.dir=run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    written = json.loads((tmp_path / "run/result.json").read_text("utf-8"))
    assert written["data"]["whitening"]["records"] == 500
    assert "public_path: open.csv" in (tmp_path / "run/release/config.yaml").read_text("utf-8")


def test_quick_start_from_nothing_to_scores(tmp_path: Path) -> None:
    """Every line of the page, in its order, as a newcomer types them."""
    found = re.search(r"<!-- commands: quick start -->\n```bash\n(.*?)\n```", text("quick-start.md"), re.DOTALL)
    assert found
    lines = found.group(1).splitlines()
    assert len(lines) <= 10
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "MPLBACKEND": "Agg"}
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "python"
        done = subprocess.run(
            [sys.executable, *words[1:]], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    scores = (tmp_path / "scores.csv").read_text().splitlines()
    assert scores[0] == "row,prediction,probability no,probability yes"
    assert len(scores) == 6
    assert (tmp_path / "runs/people/release/report.html").exists()


def test_the_schema_of_the_guide_is_one() -> None:
    (found,) = re.findall(r"```json\n(\{.*?\})\n```", text("own-data.md"), re.DOTALL)
    assert len(Schema.from_dict(json.loads(found)).columns) == 5


def test_the_attack_table_is_that_of_pure_privacy() -> None:
    """Posterior e^ε/(1 + e^ε) and the largest true-positive rate min(e^ε/100, 1 − e^−ε·99/100), from the definition."""
    from math import exp

    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) % \| ([\d.]+) % \|$", text("choosing.md"), re.MULTILINE)
    assert len(rows) == 6
    for epsilon, belief, rate in ((float(a), b, c) for a, b, c in rows):
        digits = len(belief.partition(".")[2])
        assert float(belief) == round(100 / (1 + exp(-epsilon)), digits)
        assert float(rate) == round(100 * min(exp(epsilon) / 100, 1 - exp(-epsilon) * 0.99), digits)


def modules_with_doctests() -> list[str]:
    names = [found.name for found in pkgutil.walk_packages(dpml.__path__, "dpml.")]
    folder = Path(dpml.__file__).parents[1]
    paths = {name: folder / (name.replace(".", "/") + ".py") for name in names}
    packages = {name: folder / name.replace(".", "/") / "__init__.py" for name in names}
    return [
        name for name in names if ">>>" in (paths[name] if paths[name].exists() else packages[name]).read_text("utf-8")
    ]


@pytest.mark.parametrize("name", modules_with_doctests())
def test_doctests(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
