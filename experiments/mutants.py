"""Mutation testing of the six most critical files: does some test notice when one operator or constant is changed?

    python experiments/mutants.py                     # 240 seeded mutants; the score, survivors with their lines
    python experiments/mutants.py --report            # score and counts of the outcomes that are kept; runs nothing
    python experiments/mutants.py --number 20 --files dpml/mechanisms/lattice.py
    python experiments/mutants.py --list

A mutant changes one thing: a comparison, an arithmetic operator, ``and``/``or``, a ``not`` or minus that is dropped, a
constant by one (or doubled, or flipped), a call for its effect that is left out.  It runs in a copy of the working tree
against the tests that :data:`TESTS` maps to its file until one fails (:mod:`mutants_runner`).  Survivors that change
nothing that matters are argued one by one in :data:`mutants_argued.ARGUED`.  They count as survivors all the same;
since nothing but a passing run of all tests is expected of them, they are run with ``--argued`` only.

Outcomes are kept in ``--output``, so that a run that was stopped goes on, and a nightly run does what has changed: the
outcome of a killed mutant holds as long as its source and the file of the test that killed it stay the same, that of a
survivor as long as its source and all its tests do.

Why not mutmut or cosmic-ray: mutmut 3 runs the whole suite once to learn which test meets which function, puts a
trampoline around every function (tests here compare functions and read sources), and has no seeded sample;
cosmic-ray keeps its state in a database and changes the working tree in place, where people work.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import importlib.util
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutants_argued import ARGUED
from mutants_runner import Outcome, Runner

ROOT = Path(__file__).resolve().parents[1]
TESTS: dict[str, tuple[str, ...]] = {
    "dpml/mechanisms/lattice.py": (
        "tests/mechanisms/test_lattice_limits.py", "tests/accounting/test_mutant_limits.py",
        "tests/mechanisms/test_lattice.py",
        "tests/planted_bugs/test_sgd_noise_bugs.py",
    ),
    "dpml/mechanisms/rounded.py": ("tests/mechanisms/test_rounded.py", "tests/planted_bugs/test_rounded_bugs.py"),
    "dpml/accounting/ledger.py": (
        "tests/planted_bugs/test_ledger_bugs.py", "tests/accounting/test_mutant_limits.py",
        "tests/fuzz/test_fuzz_ledger.py", "tests/accounting/test_ledger.py",
    ),
    "dpml/accounting/exact.py": (
        "tests/accounting/test_mutant_survivors_exact.py",
        "tests/accounting/test_mutant_limits.py", "tests/accounting/test_certified.py",
        "tests/planted_bugs/test_accountant_bugs.py",
        "tests/accounting/test_reference_tables.py", "tests/accounting/test_exact.py",
    ),
    "dpml/sgd/engine.py": (
        "tests/sgd/test_engine_limits.py", "tests/sgd/test_mutant_survivors_engine.py", "tests/sgd/test_engine.py",
        "tests/planted_bugs/test_sgd_bugs.py",
        "tests/sgd/test_states.py", "tests/sgd/test_optimizers.py",
    ),
    "dpml/sgd/clipping.py": (
        "tests/sgd/test_mutant_survivors_clipping.py", "tests/sgd/test_mutant_survivors_clipper.py",
        "tests/sgd/test_mutant_survivors_factors.py", "tests/sgd/test_gradient_traps.py",
        "tests/sgd/test_few_records.py", "tests/sgd/test_clipped_gradient.py",
        "tests/planted_bugs/test_sgd_bugs.py", "tests/sgd/test_one_backward.py",
    ),
}  # fmt: skip
OUTPUT = ROOT / "experiments" / "results" / "mutants.jsonl"
COPIED = ("dpml", "configs", "tests", "pyproject.toml", "README.md", "docs", "experiments")
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And, ast.MatMult: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file; ``place`` is the number of the node in the walk of its tree."""

    file: str
    place: int
    variant: int
    line: int
    what: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.place}.{self.variant}"


def variants(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """What can be changed in one node: a description and the new node."""
    out: list[tuple[str, ast.AST]] = []

    def changed(what: str, **values: object) -> None:
        new = copy.deepcopy(node)
        for key, value in values.items():
            setattr(new, key, value)
        out.append((what, new))

    if isinstance(node, ast.Compare):
        for k, op in enumerate(node.ops):
            if type(op) in SWAPS:
                swapped = SWAPS[type(op)]
                ops = [swapped() if i == k else other for i, other in enumerate(node.ops)]
                changed(f"{type(op).__name__} -> {swapped.__name__}", ops=ops)
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPS:
        changed(f"{type(node.op).__name__} -> {SWAPS[type(node.op)].__name__}", op=SWAPS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        out.append((f"{type(node.op).__name__} dropped", node.operand))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        changed(f"{node.value} -> {not node.value}", value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        changed(f"{node.value} -> {node.value + 1}", value=node.value + 1)
        changed(f"{node.value} -> {node.value - 1}", value=node.value - 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        new = 2 * node.value if node.value else 1.0
        changed(f"{node.value} -> {new}", value=new)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        out.append(("call left out", ast.copy_location(ast.Pass(), node)))
    return out


def reachable(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that a mutant may change: no messages, no annotations, no texts, no decorators."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        if isinstance(tree, ast.Raise) or (isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.dump(tree.test)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield child
                yield from reachable(child)


def mutants_of(file: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    found = []
    for place, node in enumerate(reachable(tree)):
        for variant, (what, _) in enumerate(variants(node)):
            found.append(Mutant(file, place, variant, getattr(node, "lineno", 0), what))
    return found


def source_of(mutant: Mutant) -> str:
    """The file's text with the change."""
    tree = ast.parse((ROOT / mutant.file).read_text("utf-8"))
    node = list(reachable(tree))[mutant.place]
    new = ast.copy_location(variants(node)[mutant.variant][1], node)
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(child is node for child in value):
                setattr(parent, name, [new if child is node else child for child in value])
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def sample(files: list[str], number: int, seed: int) -> list[Mutant]:
    """As many of each file, drawn by the seed."""
    drawn: list[Mutant] = []
    for k, file in enumerate(files):
        share = number // len(files) + (k < number % len(files))
        found = mutants_of(file)
        drawn += sorted(random.Random(f"{seed} {file}").sample(found, min(share, len(found))), key=lambda m: m.place)
    return drawn


def copied_tree(folder: Path) -> Path:
    """A copy of the working tree in which mutants live."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        elif source.exists():
            shutil.copy(source, folder / name)
    return folder


def digest(file: str, killer: str) -> str:
    """Of a source and of the tests that its mutant's outcome rests on: the killer's file, or all of them."""
    alone = killer.partition("::")[0]
    tests = (alone,) if alone in TESTS[file] else TESTS[file]
    return hashlib.sha256(b"\0".join((ROOT / name).read_bytes() for name in (file, *tests))).hexdigest()[:16]


def known(path: Path) -> dict[str, dict[str, Any]]:
    """Outcomes of earlier runs that still hold; a torn last line is left out."""
    found: dict[str, dict[str, Any]] = {}
    for text in path.read_text("utf-8").splitlines() if path.exists() else []:
        try:
            entry = json.loads(text)
        except ValueError:
            continue
        if entry["file"] in TESTS and entry["digest"] == digest(entry["file"], entry["killed_by"]):
            found[entry["name"]] = entry
    return found


def order(mutant: Mutant, whole: Outcome) -> list[str]:
    """Tests that ran the changed line (or the last one before it that runs), the fast ones first; then the others."""
    met = set().union(*whole.lines.values())
    line = max((line for line in met if line <= mutant.line), default=0)
    return sorted(whole.seconds, key=lambda test: (line not in whole.lines[test], whole.seconds[test]))


def put(path: Path, source: bytes) -> None:
    """Write a source and let go of its compiled form, which is told by size and second of the source only."""
    path.write_bytes(source)
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def run(drawn: list[Mutant], output: Path, argued: bool) -> dict[str, dict[str, Any]]:
    """Run the mutants that have no outcome yet (the argued ones if asked); first the whole code, which must pass."""
    outcomes = known(output)
    missing = [m for m in drawn if m.name not in outcomes and (argued or not argument(m))]
    green: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as place, output.open("a", encoding="utf-8") as log:
        folder = copied_tree(Path(place)) if missing else Path(place)
        runner = Runner(folder) if missing else None
        for number, mutant in enumerate(missing, start=1):
            assert runner is not None
            if mutant.file not in green:
                green[mutant.file] = runner.run(TESTS[mutant.file], watched=mutant.file)
                if failed := green[mutant.file].failed:
                    raise SystemExit(f"error: {failed} fails without any mutant: nothing can be said of {mutant.file}")
            whole = (folder / mutant.file).read_bytes()
            started = time.monotonic()
            put(folder / mutant.file, source_of(mutant).encode())
            try:
                killer = runner.run(TESTS[mutant.file], order(mutant, green[mutant.file])).failed or ""
            finally:
                put(folder / mutant.file, whole)
            spent = time.monotonic() - started
            entry = {"name": mutant.name, "file": mutant.file, "what": mutant.what, "killed_by": killer,
                     "digest": digest(mutant.file, killer), "seconds": round(spent, 1)}  # fmt: skip
            outcomes[mutant.name] = entry
            log.write(json.dumps(entry) + "\n")
            log.flush()
            verdict = f"killed by {killer}" if killer else "SURVIVED"
            print(f"{number}/{len(missing)} {mutant.name} {mutant.what}: {verdict} ({spent:.0f} s)", flush=True)
    return outcomes


def report(drawn: list[Mutant], outcomes: dict[str, dict[str, Any]]) -> str:
    """The score of each file and of all, then each survivor with its line and what is said of it."""
    rows, details = [], []
    killed = {mutant.name for mutant in drawn if outcomes.get(mutant.name, {}).get("killed_by")}
    for file in (*dict.fromkeys(mutant.file for mutant in drawn), "all"):
        own = [mutant for mutant in drawn if file in ("all", mutant.file)]
        ran = sum(mutant.name in outcomes for mutant in own)
        left = [mutant for mutant in own if mutant.name not in killed and (mutant.name in outcomes or argument(mutant))]
        good = sum(mutant.name in killed for mutant in own)
        share = f"{100 * good / (good + len(left)):.1f} %" if good + len(left) else "-"
        rows.append(
            f"{file}: {good} of {good + len(left)} mutants killed ({share}); {len(left)} survivors, "
            f"{sum(bool(argument(mutant)) for mutant in left)} of them argued to be harmless; "
            f"{len(own)} drawn, {ran} run, {len(own) - good - len(left)} not looked at"
        )
    for mutant in drawn:
        said = argument(mutant)
        if mutant.name not in killed and (said or mutant.name in outcomes):
            run = "" if mutant.name in outcomes else ", not run"
            details.append(f"survivor{run} {mutant.file}:{mutant.line} ({mutant.what}): {line_of(mutant)}")
            details.append(f"    {said or 'NOT ARGUED'}")
    return "\n".join(rows + details)


def line_of(mutant: Mutant) -> str:
    return (ROOT / mutant.file).read_text("utf-8").splitlines()[mutant.line - 1].strip()


def argument(mutant: Mutant) -> str:
    """Why it may survive, or nothing."""
    return ARGUED.get((mutant.file, line_of(mutant), mutant.what), "")


def main() -> int:
    """0 if at least ``--score`` of the mutants are killed."""
    parser = argparse.ArgumentParser(description="Mutation testing of the most critical files.")
    parser.add_argument("--number", type=int, default=240, help="mutants in all (240)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", nargs="*", default=list(TESTS), choices=list(TESTS))
    parser.add_argument("--output", type=Path, default=OUTPUT, help="outcomes; an earlier run goes on")
    parser.add_argument("--score", type=float, default=0.9, help="share that must be killed (0.9)")
    parser.add_argument("--list", action="store_true", help="only show which mutants are drawn")
    parser.add_argument(
        "--argued", action="store_true", help="run the argued ones, too; otherwise they count as survivors"
    )
    parser.add_argument("--report", action="store_true", help="only show the outcomes that are kept and still hold")
    asked = parser.parse_args()
    drawn = sample(asked.files, asked.number, asked.seed)
    if asked.list:
        print("\n".join(f"{mutant.name} {mutant.what}" for mutant in drawn))
        return 0
    outcomes = known(asked.output) if asked.report else run(drawn, asked.output, asked.argued)
    print(report(drawn, outcomes))
    killed = sum(bool(outcomes[mutant.name]["killed_by"]) for mutant in drawn if mutant.name in outcomes)
    return 0 if killed >= asked.score * len(drawn) else 1


if __name__ == "__main__":
    sys.exit(main())
