"""``python -m dpml.verify RUN_FOLDER``: does the ledger hold, and does it cost what was reported?  Exit 1 if not.

Of a data set ledger (a file): does it hold, what has been spent, and what is left of the cap where the file knows it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpml.pipes import reader_may_leave
from dpml.results import dumps
from dpml.rounding import upper

if TYPE_CHECKING:
    from dpml.accounting import Verification

DESCRIPTION = """Does the ledger of a run hold, and does it cost what was reported?  Needs release/ only, no data.
Of the ledger of a data set (a file): its runs, and what they have spent together."""
EXAMPLES = """examples:
  python -m dpml.verify outputs/2026-01-31/12-00-00              what was charged, recomputed, with a second opinion
  python -m dpml.verify outputs/2026-01-31/12-00-00/release --json
  python -m dpml.verify people.ledger                            all runs on one data set: spent, and left

exit status: 0 it holds, 1 it does not"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a run folder (or its ``release``) and print the outcome; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dpml.verify",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", type=Path, help="RUN or RUN/release, or the file of a data set ledger")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument(
        "--allow-test-noise", action="store_true", help="accept a run with noise that was not secret: it is NOT PRIVATE"
    )
    options = parser.parse_args(arguments)
    if options.run_folder.is_file():
        return _dataset(options.run_folder, options.json)
    if not options.run_folder.is_dir():
        print(
            f"error: there is no folder or file {str(options.run_folder)!r}. Give a run folder, its release/ or the "
            "file of a data set ledger.",
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
    with reader_may_leave():
        print(dumps(found) if options.json else "\n".join(_lines(found)))
    return 0 if found.ok else 1


def _dataset(path: Path, as_json: bool) -> int:
    """A data set ledger: what its runs promised, what the filter has counted and what is left."""
    from dpml.accounting.dataset_ledger import DatasetLedger
    from dpml.errors import ConfigError, LedgerError

    try:
        ledger = DatasetLedger.of_file(path)
        runs, total, together = ledger.runs(), ledger.total(), ledger.composed()
        left = None if ledger.filter == "basic" else ledger.remaining()
    except (LedgerError, ConfigError) as error:
        with reader_may_leave():
            print(dumps({"ok": False, "problem": str(error)}) if as_json else f"PROBLEM: {error}")
        return 1
    cap = None if left is None else {"epsilon": ledger.epsilon, "delta": ledger.delta}
    facts = {
        "ok": True,
        "neighboring_relation": ledger.neighboring_relation,
        "filter": ledger.filter,
        "runs": runs,
        "sum": {"epsilon": total[0], "delta": total[1]},
        "composed": {"epsilon": together[0], "delta": together[1]},
        "cap": cap,
        "remaining": left,
    }
    with reader_may_leave():
        print(dumps(facts) if as_json else "\n".join(_dataset_lines(facts)))
    return 0


def _dataset_lines(facts: dict[str, Any]) -> list[str]:
    def amount(pair: dict[str, float]) -> str:
        return f"epsilon = {upper(pair['epsilon'], 6)}, delta = {upper(pair['delta'], 6)}"

    lines = [f"OK: {len(facts['runs'])} runs hold ({facts['neighboring_relation']}, filter {facts['filter']})."]
    lines += [f"  {number}: {amount(run)}: {run['run']}" for number, run in enumerate(facts["runs"], start=1)]
    lines.append(f"  the runs' promises add up to {amount(facts['sum'])}")
    lines.append(f"  all of them together, had they been fixed beforehand: {amount(facts['composed'])}")
    if facts["cap"] is None:
        lines.append(
            "  the filter basic counts the sums; the cap is named by each run (dataset_epsilon, dataset_delta)"
        )
    else:
        left = ", ".join(f"{name} {value:.6g}" for name, value in facts["remaining"].items())
        lines.append(f"  cap: {amount(facts['cap'])}; the filter {facts['filter']} has left: {left}")
    return lines


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
