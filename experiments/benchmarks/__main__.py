"""Every benchmark in one Markdown table against the peers: accounting, noise, erm, dp_sgd, start-up, memory.

    python -m experiments.benchmarks --all [--quick] [--peers PYTHON] [--markdown FILE] [--json FILE]
    python -m experiments.benchmarks --only accounting noise

Run from the root of the repository.  All parts run in one process (what is measured in fresh processes says so), ours
and the peers in turns; times are medians.  A peer that is not installed, or that raises, gets a line that says so.
``--all`` without ``--quick`` takes about a quarter of an hour on two quiet cores and writes
``experiments/results/benchmarks.md`` and ``.json``.  The exit status is 1 when a correctness figure of the accountants
fails or a part of ours raises; a missed target of time or memory is marked and fails nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # the scripts import each other by plain names

RESULTS = HERE.parent / "results"
NAMES = ("accounting", "noise", "erm", "dp_sgd", "startup", "memory")
HEAD = "| part | figure | ours | peer | ratio | target | met? |\n|---|---|---|---|---|---|---|"
ELSEWHERE: dict[str, str | None] = {"python": None}
"""``--peers``: the Python of an environment with opake and jax-privacy (experiments/README.md)."""
PEERS = ("opacus", "dp-accounting", "diffprivlib", "scikit-learn", "torch", "numpy", "scipy", "randomgen")


@dataclass(frozen=True)
class Row:
    """A line of the one table; ``fails`` makes the exit status 1."""

    part: str
    figure: str
    ours: str
    peer: str = "–"
    ratio: str = "–"
    target: str = "–"
    met: bool | None = None
    fails: bool = False

    def line(self) -> str:
        """As Markdown."""
        word = {True: "yes", False: "**no**", None: "–"}[self.met]
        return f"| {self.part} | {self.figure} | {self.ours} | {self.peer} | {self.ratio} | {self.target} | {word} |"


def row_of(part: str, figure: Any) -> Row:
    """A figure of any script as a row."""
    fails = figure.met is False and bool(getattr(figure, "correctness", False))
    words = (figure.name, figure.ours, figure.peer, figure.ratio, figure.target)
    return Row(part, *words, met=figure.met, fails=fails)


def accounting_parts(quick: bool) -> list[Callable[[], list[Any]]]:
    """Of ``accounting.py``."""
    import accounting as own

    repeats = 3 if quick else 9
    own.peer_epsilon([own.peer_sampled(0.01, 1.0, 1)], own.DELTA)  # its imports are not its time
    if quick:
        return [lambda: own.one_epsilon(True, repeats), lambda: own.per_epoch(repeats)]
    return [
        lambda: own.imports(repeats),
        lambda: own.calibration(False, repeats),
        lambda: own.one_epsilon(False, repeats),
        lambda: own.schedule(False, repeats),
        lambda: own.per_epoch(repeats),
        lambda: own.little_noise(False, 3),
        lambda: own.tiny_delta(False),
        lambda: own.reference_rows(False),
        own.reference_deltas,
    ]


def dp_sgd_parts(quick: bool) -> list[Callable[[], list[Any]]]:
    """Of ``dp_sgd.py``; its noise and memory are parts of their own here."""
    import dp_sgd as own

    tasks, peers = own.TASKS[:1] if quick else own.TASKS, own.peers_of(ELSEWHERE["python"])
    parts: list[Callable[[], list[Any]]] = [lambda task=task: own.steps_of(task, quick, peers=peers) for task in tasks]  # type: ignore[misc]
    return [*parts, *([] if quick else [lambda: own.epoch(False)]), lambda: own.others(peers)]


def parts_of(name: str, quick: bool) -> list[Callable[[], list[Any]]]:
    """What a part runs, one after the other."""
    if name == "accounting":
        return accounting_parts(quick)
    if name == "dp_sgd":
        return dp_sgd_parts(quick)
    import importlib

    module = importlib.import_module(name)
    return [lambda: module.figures(quick)]


def rows_of(name: str, quick: bool) -> list[Row]:
    """The rows of a part; what raises becomes a row that fails."""
    from dp_sgd_competitors import attempt

    parts, error = attempt(lambda: parts_of(name, quick))
    if parts is None:
        return [Row(name, name, error, met=False, fails=True)]
    found: list[Row] = []
    for part in parts:
        figures, error = attempt(part)
        found += [Row(name, name, error, met=False, fails=True)] if figures is None else []
        found += [row_of(name, figure) for figure in figures or ()]
    return found


def threads(quick: bool) -> int:
    """Two for torch and for our noise, one if quick; no more than there are."""
    import torch

    count = 1 if quick else min(2, os.cpu_count() or 1)
    torch.set_num_threads(count)
    os.environ["OMP_NUM_THREADS"] = str(count)  # our noise source and fresh processes look there
    return count


def machine() -> dict[str, str]:
    """Where, when and of what this was measured."""
    import dp_sgd

    versions = {name: dp_sgd.version_of(name) for name in ("dpml", *PEERS)}
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", **dp_sgd.machine(), **versions}


def markdown(rows: Sequence[Row], where: dict[str, str], quick: bool) -> str:
    """The file: table, misses, machine."""
    missed = sum(row.met is False for row in rows)
    text = ["# Benchmarks", "", HEAD, *(row.line() for row in rows), ""]
    text.append(f"{missed} of {sum(row.met is not None for row in rows)} targets missed.  " + notes(rows, where, quick))
    text += ["", " · ".join(f"{key} {value}" for key, value in where.items()), ""]
    return "\n".join(text)


def notes(rows: Sequence[Row], where: dict[str, str], quick: bool) -> str:
    """How to read the figures, and which parts are not there."""
    left_out = [name for name in NAMES if name not in {row.part for row in rows}]
    text = "Times are medians of interleaved runs; a ratio in brackets is that of the least times."
    if left_out:
        text += f"  Not run: {', '.join(left_out)}."
    if quick:
        text += "  Quick: tiny sizes and few runs, so the times mean nothing."
    if where["load"] != "unknown" and float(where["load"].split(",")[0]) > 1.0:
        text += "  The machine was busy when this began: only ratios in brackets mean something."
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and write it; 1 if a correctness figure fails or a part of ours raises."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--all", action="store_true", help="every part")
    which.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help="of: " + ", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="tiny sizes; no file unless one is named")
    parser.add_argument("--peers", metavar="PYTHON", help="the Python of an environment with opake and jax-privacy")
    parser.add_argument("--markdown", type=Path, help="default experiments/results/benchmarks.md, with --all")
    parser.add_argument("--json", type=Path, help="default experiments/results/benchmarks.json, with --all")
    given = parser.parse_args(argv)
    ELSEWHERE["python"] = given.peers
    warnings.simplefilter("ignore")  # the peers' own
    threads(given.quick)
    where = machine()
    print(HEAD, flush=True)
    rows: list[Row] = []
    for name in NAMES if given.all else dict.fromkeys(given.only):
        found = rows_of(name, given.quick)
        rows += found
        print("\n".join(row.line() for row in found), flush=True)
    print(
        "\n" + notes(rows, where, given.quick) + "\n\n" + " · ".join(f"{key} {value}" for key, value in where.items())
    )
    default = given.all and not given.quick
    for target, kind in ((given.markdown, "md"), (given.json, "json")):
        file = target or (RESULTS / f"benchmarks.{kind}" if default else None)
        if file is None:
            continue
        content = {"rows": [asdict(row) for row in rows], "machine": where, "quick": given.quick}
        text = markdown(rows, where, given.quick) if kind == "md" else json.dumps(content, indent=1, ensure_ascii=False)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    failed = [row.figure for row in rows if row.fails]
    if failed:
        print("\nfails: " + "; ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
