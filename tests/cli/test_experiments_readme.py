"""``experiments/README.md``: every script is named, options exist, links lead somewhere, ε are those measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "experiments"
TEXT = (FOLDER / "README.md").read_text("utf-8")
PARTS = ("private_erm_table.py", "mutants_runner.py")  # imported by a script, run by nobody
COMMANDS = re.findall(r"`python (experiments/\S+?\.py|-m experiments\.benchmarks)([^`]*)`", TEXT)


def test_every_script_is_named() -> None:
    scripts = [path for folder in (FOLDER, FOLDER / "benchmarks") for path in folder.glob("*.py")]
    missing = [path.name for path in scripts if path.name not in TEXT and path.name not in (*PARTS, "__main__.py")]
    assert missing == []
    assert "python -m experiments.benchmarks" in TEXT


@pytest.mark.parametrize(("script", "words"), COMMANDS, ids=[script + words for script, words in COMMANDS])
def test_commands_are_those_of_the_scripts(script: str, words: str) -> None:
    file = FOLDER / "benchmarks/__main__.py" if script.startswith("-m") else FOLDER.parent / script
    source = file.read_text("utf-8")
    for option in re.findall(r"--[a-z-]+", words):
        assert f'"{option}"' in source, option


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", TEXT) if not link.startswith("http")]
    assert len(links) > 10
    assert [link for link in links if not (FOLDER / link).exists()] == []


def test_epsilons_are_those_that_were_measured() -> None:
    content = json.loads((FOLDER / "results/abadi_epsilon.json").read_text("utf-8"))
    shown = re.findall(r"^\| [^|]+ \| (9\.34|1\.26) \| ([\d.]+) \|", TEXT, re.MULTILINE)
    assert shown == [(f"{row['paper']}", f"{row['ours']:.2f}") for row in content["rows"]]
    for one in content["mnist"]:
        line = f"| {one['noise_multiplier']:g} | {one['epsilon']:g} | "
        assert line + " | ".join(f"{one[key]:.1f}" for key in ("moments", "rdp", "exact")) + " |" in TEXT
