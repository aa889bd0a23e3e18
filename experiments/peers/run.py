"""dpml beside its peers on the bundled Adult table: accuracy, AUC and fit time at one ε each, as Markdown.

    python experiments/peers/run.py [--runs 5] [--epsilon 0.1 0.5 1 2] [--work FOLDER] [--only diffprivlib ebm dpml]
                                    [--threads 1] [--json FILE]

Every peer runs in a virtual environment of its own under the work folder (default: ``.peers`` in the system's folder
for temporary files), made at the first run and used again; dpml runs in the current one.  A peer that cannot be
installed or run is named in the table, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import peer_environments as environments
import peer_table as table
from peer_contract import Report
from peer_environments import PEERS, PeerError

BUDGETS = (0.1, 0.5, 1.0, 2.0)
DELTA = 1e-5


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; argparse's own message and exit status 2 for what is out of range."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=_whole, default=5, help="independent runs of every row")
    parser.add_argument("--epsilon", type=_budget, nargs="+", default=list(BUDGETS))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / ".peers")
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS], help="default: all")
    parser.add_argument("--threads", type=_whole, default=1, help="of the numerical libraries, for every worker")
    parser.add_argument("--json", type=Path, help="write all figures here as well")
    arguments = parser.parse_args(argv)
    arguments.epsilon = sorted(set(arguments.epsilon))
    return arguments


def collect(arguments: argparse.Namespace) -> tuple[list[Report], dict[str, str]]:
    """Reports of the chosen peers, and why the others have none.

    Raises:
        PeerError: the work folder cannot be used or dpml cannot be imported, so that nothing can run.
    """
    work = environments.claim(arguments.work)
    try:
        from peer_data import hand_over
    except ImportError as error:
        raise PeerError(
            f"dpml cannot be imported ({error}): install it in this environment (pip install -e .)"
        ) from error
    reports: list[Report] = []
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="data-", dir=work) as folder:
        data = Path(folder)
        hand_over(data)
        for peer in PEERS:
            if arguments.only and peer.name not in arguments.only:
                continue
            try:
                here = peer.requirements is None
                python = Path(sys.executable) if here else environments.environment(peer, work)
                print(f"{peer.name}: running", file=sys.stderr, flush=True)
                reports.append(
                    environments.run_worker(
                        peer, python, data, arguments.runs, arguments.epsilon, DELTA, arguments.threads
                    )
                )
            except PeerError as error:
                failures[peer.name] = str(error)
                print(f"error: {error}", file=sys.stderr, flush=True)
    return reports, failures


def machine(threads: int) -> dict[str, str]:
    """Where, when and at which commit this was measured."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg()) if hasattr(os, "getloadavg") else "unknown"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "system": platform.platform(),
        "cores": str(os.cpu_count()),
        "threads": str(threads),
        "load": load,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; 1 if a chosen peer could not be measured."""
    arguments = parse(argv)
    try:
        reports, failures = collect(arguments)
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    budgets = arguments.epsilon
    found = table.lines(reports, budgets)
    where = machine(arguments.threads)
    print(table.figures(found, budgets, failures), end="\n\n")
    print(table.comparison(found, budgets), end="\n\n")
    print(table.notes(reports, failures, arguments.runs, DELTA))
    print("- " + " · ".join(f"{key} {value}" for key, value in where.items()))
    if arguments.json:
        content = {"machine": where, "delta": DELTA, "failures": failures, "reports": [asdict(r) for r in reports]}
        arguments.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if failures else 0


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: it must be a whole number ≥ 1")
    return value


def _budget(text: str) -> float:
    value = float(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: epsilon must be a finite number > 0")
    return value


def _commit() -> str:
    command = ["git", "-C", str(environments.HERE), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
