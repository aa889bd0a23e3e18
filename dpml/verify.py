"""``python -m dpml.verify RUN_FOLDER``: does the ledger hold, and does it cost what was reported?  Exit 1 if not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dpml.accounting import verify
from dpml.results import dumps


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a run folder (or its ``release``) and print the outcome; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dpml.verify", description=__doc__)
    parser.add_argument("run_folder", type=Path, help="RUN or RUN/release")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument(
        "--allow-test-noise", action="store_true", help="accept a run with noise that was not secret: it is NOT PRIVATE"
    )
    options = parser.parse_args(arguments)
    found = verify(options.run_folder, allow_test_noise=options.allow_test_noise)
    if options.json:
        print(dumps(found))
        return 0 if found.ok else 1
    for problem in found.problems:
        print(f"PROBLEM: {problem}")
    if found.ok:
        print(f"OK: {found.lines} ledger lines hold; epsilon = {found.epsilon_reported!r} is what the charges cost.")
        for name, value in found.second_opinion.items():
            print(f"  {name}: {value if isinstance(value, str) else f'{value:.6g}'}")
    return 0 if found.ok else 1


if __name__ == "__main__":
    sys.exit(main())
