"""Peak memory of a DP-SGD step against plain PyTorch's and opacus': a Markdown table.

    python experiments/benchmarks/memory.py [--quick] [--json FILE]

The measurement is that of ``dp_sgd.py`` (part ``memory``): three steps of each competitor in a fresh process; the
highest resident set, less the resident set before.  Quick measures one tiny batch, whose figures mean nothing.
The exit status is 0 whatever the figures.
"""

from __future__ import annotations

import sys

from dp_sgd import TASKS, Figure, arguments_of, finish, machine, memory_of, report


def figures(quick: bool) -> list[Figure]:
    """Every model; quick takes the first, against plain PyTorch alone."""
    return [figure for task in TASKS[: 1 if quick else None] for figure in memory_of(task, quick)]


def main() -> int:
    """Print the table."""
    arguments = arguments_of(__doc__, ()).parse_args()
    where = machine()
    finish(report([lambda: figures(arguments.quick)]), where, arguments.quick, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
