"""``python -m dpml.verify RUN_FOLDER``: does the ledger hold, and does it cost what was reported?  Exit 1 if not."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpml.results import dumps
from dpml.rounding import upper

if TYPE_CHECKING:
    from dpml.accounting import Verification

DESCRIPTION = """Does the ledger of a run hold, and does it cost what was reported?  Needs release/ only, no data."""
EXAMPLES = """examples:
  python -m dpml.verify outputs/2026-01-31/12-00-00              what was charged, recomputed, with a second opinion
  python -m dpml.verify outputs/2026-01-31/12-00-00/release --json

exit status: 0 it holds, 1 it does not"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a run folder (or its ``release``) and print the outcome; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dpml.verify",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", type=Path, help="RUN or RUN/release")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument(
        "--allow-test-noise", action="store_true", help="accept a run with noise that was not secret: it is NOT PRIVATE"
    )
    options = parser.parse_args(arguments)
    if not options.run_folder.is_dir():
        print(
            f"error: there is no folder {str(options.run_folder)!r}. Give a run folder or its release/.",
            file=sys.stderr,
        )
        return 1
    released = options.run_folder / "release"
    folder = released if released.is_dir() else options.run_folder
    if not any((folder / name).exists() for name in ("result.json", "ledger.jsonl")):
        print(
            f"error: {str(options.run_folder)!r} is no run: {folder.name}/ has neither result.json nor ledger.jsonl. "
            "Give the folder of one run (of a sweep: of one of its jobs).",
            file=sys.stderr,
        )
        return 1
    from dpml.accounting import verify  # NumPy and SciPy: not for --help

    found = verify(options.run_folder, allow_test_noise=options.allow_test_noise)
    try:
        print(dumps(found) if options.json else "\n".join(_lines(found)))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, say) has seen enough; the exit status still tells
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if found.ok else 1


def _lines(found: Verification) -> list[str]:
    lines = [f"PROBLEM: {problem}" for problem in found.problems]
    if found.ok:
        reported = found.epsilon_reported
        lines.append(f"OK: {found.lines} ledger lines hold; epsilon = {reported!r} is what the charges cost.")
    if found.epsilon_recomputed is not None:
        lines.append(f"  {found.accountant}: {upper(found.epsilon_recomputed, 6)} (recomputed from the charges)")
        for name, value in found.second_opinion.items():
            lines.append(f"  {name}: {value if isinstance(value, str) else f'{upper(value, 6)} (second opinion)'}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
