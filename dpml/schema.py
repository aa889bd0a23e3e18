"""``python -m dpml.schema draft|check``: help for the custodian of a private table.

Both commands read records and their output is private.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .errors import DpmlError

DESCRIPTION = """Help for the custodian of a private table with its public schema: what its columns are and may hold.
Both commands read records, and what they print is private."""
DRAFT_EXAMPLE = """example:
  python -m dpml.schema draft people.csv -o people.json --target income"""
CHECK_EXAMPLE = """example:
  python -m dpml.schema check people.csv people.json"""
EXAMPLES = """examples:
  python -m dpml.schema draft people.csv -o people.json     a draft; complete it by hand from what is publicly known
  python -m dpml.schema check people.csv people.json        which cells break it?
  python -m dpml.train data=table data.path=people.csv data.schema=people.json"""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 1 if the check fails or a file is in the way; 2 for a wrong command line."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except DpmlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _draft(arguments: argparse.Namespace) -> int:
    from .data.draft import WARNING, drafted, left_out, to_text  # pandas: not for --help

    made, lost = drafted(arguments.file, arguments.target)
    text = to_text(made)
    print(f"warning: {WARNING}", file=sys.stderr)
    if ignored := left_out(made):
        print(ignored, file=sys.stderr)
    if lost:
        print(lost, file=sys.stderr)
    if arguments.output is None:
        print(text, end="")
        return 0
    try:
        with open(arguments.output, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        print(f"error: {str(arguments.output)!r} exists. Give another name or remove it.", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {str(arguments.output)!r} cannot be written: {error}.", file=sys.stderr)
        return 1
    print(
        f"Wrote {arguments.output}. Complete it, delete the warning, then run: "
        f"python -m dpml.schema check {arguments.file} {arguments.output}"
    )
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from .data.check import check_table
    from .data.schema import Schema

    findings = check_table(arguments.file, Schema.load(arguments.schema))
    stopping = [finding for finding in findings if finding.stops or arguments.strict]
    notes = [finding for finding in findings if not (finding.stops or arguments.strict)]
    for title, group in (("problem", stopping), ("note", notes)):
        for finding in group[: arguments.limit]:
            print(f"{title}: {finding}")
        if len(group) > arguments.limit:
            print(f"... and {len(group) - arguments.limit} more {title}s (--limit shows more)")
    cells = Counter(finding.column for finding in findings if finding.column and finding.row)
    if cells:
        print("by column: " + ", ".join(f"{name} {count:,}" for name, count in cells.most_common()))
    print(f"{len(stopping)} problems, {len(notes)} notes. This output is private: it tells about records.")
    return 1 if stopping else 0


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m dpml.schema", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=raw
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    about = "write a schema draft from a table (not private; complete it by hand)"
    making = commands.add_parser("draft", help=about, description=about, epilog=DRAFT_EXAMPLE, formatter_class=raw)
    making.add_argument("file", type=Path, metavar="FILE", help="table: .csv, .csv.gz or .parquet")
    making.add_argument("-o", "--output", type=Path, metavar="SCHEMA", help="new file, default: standard output")
    making.add_argument("--target", metavar="COLUMN", help="column to predict, default: the last one")
    making.set_defaults(run=_draft)

    about = "list the cells of a table that break its schema (private output)"
    checking = commands.add_parser("check", help=about, description=about, epilog=CHECK_EXAMPLE, formatter_class=raw)
    checking.add_argument("file", type=Path, metavar="FILE", help="table: .csv, .csv.gz or .parquet")
    checking.add_argument("schema", type=Path, metavar="SCHEMA", help="schema file")
    checking.add_argument("--limit", type=int, default=50, metavar="N", help="findings to show of each kind")
    checking.add_argument("--strict", action="store_true", help="let notes (clamped cells and the like) fail the check")
    checking.set_defaults(run=_check)
    return parser


if __name__ == "__main__":
    sys.exit(main())
