"""The table of planted bugs is complete; every entry is a real one: it patches code of dpml and was green before."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from planted_bugs import table, verdicts

ROOT = Path(__file__).parents[2]
FEWEST = 40
REQUIRED = {
    "accounting", "mechanisms", "erm", "sgd", "ledger", "sampler", "noise", "boundary", "data", "stages",
}  # fmt: skip
GREEN_BY_HAND = {"classical noise beyond its limit"}  # `refused()` runs green: `noticed` only turns its error around
OUTSIDE = {"os.write", "os.fsync", table.IN_ANOTHER_PROCESS}


@pytest.fixture(scope="module")
def entries() -> list[table.Entry]:
    return table.entries()


def names_in_dpml() -> set[str]:
    """Every name that code of dpml defines, imports or uses."""
    found: set[str] = set()
    for path in (ROOT / "dpml").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.alias):
                found.add((node.asname or node.name).rpartition(".")[2])
    return found


def test_every_seam_is_code_of_dpml(entries: list[table.Entry]) -> None:
    known = names_in_dpml() | {"__init__", "__len__", "__repr__", "__reduce__", "embedding", "fit_{method}"}
    missing = []
    for entry in entries:
        assert entry.seams, f"{entry.file}: {entry.name} patches nothing"
        for seam in set(entry.seams) - OUTSIDE:
            if seam.startswith("checks.") and len(entry.seams) > 1:  # the test's own case, made to fit
                continue
            attribute = seam.rpartition(".")[2].strip("'\"")
            plain = re.sub(r"^_[A-Z]\w*?(?=__)", "", attribute)  # a private name of a class
            if {attribute, plain}.isdisjoint(known):
                missing.append((entry.file, entry.name, seam))
    assert not missing


def test_every_entry_has_a_check_that_ran_on_the_whole_code(entries: list[table.Entry]) -> None:
    assert not [entry for entry in entries if not entry.checks]
    assert {entry.name for entry in entries if not entry.whole_first} == GREEN_BY_HAND


def test_there_are_enough_in_every_area(entries: list[table.Entry]) -> None:
    areas = Counter(entry.area for entry in entries)
    assert len(entries) >= FEWEST
    assert set(areas) <= set(verdicts.AREAS)
    assert set(areas) >= REQUIRED
    assert min(areas[area] for area in REQUIRED) >= 5


def test_names_are_unique_and_every_test_is_in_the_table(entries: list[table.Entry]) -> None:
    names = [entry.name for entry in entries]
    assert len(set(names)) == len(names)
    listed = {(entry.file, entry.test) for entry in entries}
    for path in sorted(Path(table.__file__).parent.glob("test_*_bugs.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert node.name.endswith(table.GREEN) or (path.name, node.name) in listed, (
                    f"{path.name}::{node.name} is not in the table"
                )


def test_every_bug_of_training_has_a_verdict_and_no_verdict_is_stale(entries: list[table.Entry]) -> None:
    of_training = [entry for entry in entries if verdicts.is_training(entry.file)]
    assert all(re.fullmatch(r"yes(: .+)?|no: .+", entry.audit) for entry in of_training)
    assert len([entry for entry in of_training if entry.audit.startswith("yes")]) >= 8
    for entry in entries:
        assert bool(entry.runs) == entry.audit.startswith("yes"), entry.name
    measured = [entry for entry in entries if entry.audit == "yes: measured"]
    assert all(int(entry.runs.replace(",", "")) >= 100 for entry in measured)
    assert {"erm", "mechanisms", "sgd"} == {entry.area for entry in measured}
    assert len(measured) >= 16
    assert not verdicts.unused([entry.name.partition(" (")[0] for entry in entries if entry.audit])


@pytest.mark.parametrize(
    ("body", "seams", "green"),
    [
        ("    check()\n    monkeypatch.setattr(m, 'f', 1)\n    caught(check)\n", ("m.f",), True),
        ("    monkeypatch.setattr(m, 'f', 1)\n    caught(check)\n", ("m.f",), False),  # never run on the whole code
        ("    check_other()\n    monkeypatch.setattr(m, 'f', 1)\n    caught(check)\n", ("m.f",), False),
        ("    check()\n    caught(check)\n", (), True),  # breaks nothing: no seam
    ],
)
def test_the_reader_sees_a_test_that_proves_nothing(
    body: str, seams: tuple[str, ...], green: bool, tmp_path: Path
) -> None:
    path = tmp_path / "test_sgd_noise_bugs.py"
    path.write_text(f"def test_half_noise(monkeypatch):\n{body}")
    (entry,) = table.BugFile(path).entries()
    assert (entry.seams, entry.whole_first) == (seams, green)


def test_the_command_prints_markdown(entries: list[table.Entry]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.planted_bugs.table"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(rows) == len(entries) + 1
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {9}
    assert "argued from these" in done.stdout
