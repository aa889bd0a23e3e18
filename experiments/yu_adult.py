"""Adult at ε = 0.1, δ = 1/n²: the figures of Yu et al. 2020 ("Gradient perturbation is underrated …") beside ours.

    python experiments/yu_adult.py [--runs 10] [--jobs 1] [--quick] [--json FILE]

Ours is ``PrivateTrainer`` with its defaults (``method="auto"``, spline features), under both neighbouring relations;
every run draws its own secret noise.  The measurement is that of ``private_erm.py --only published``.  The paper's
features are other ones: how much of the difference is the encoder's shows in ``private_erm.py --only reference``, which
runs published methods on min-max features.
The exit status is 1 when ours is not above every published figure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import private_erm
import private_erm_table as table
from private_erm_table import PUBLISHED, Figure

from dpml.errors import DpmlError

RESULTS = Path(__file__).resolve().parent / "results"


def rows(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Every published accuracy (percent) with ours under each relation, and the difference in points."""
    return [
        {
            "method": name,
            "paper": paper,
            "relation": ours.relation,
            "ours": round(ours.mean_accuracy, 4),
            "difference": round(ours.mean_accuracy - paper, 4),
        }
        for name, paper in PUBLISHED.items()
        for ours in figures
    ]


def markdown(figures: Sequence[Figure]) -> str:
    """One line for each published method; ours is the same run set in each."""
    head = "| method (published) | paper, % |"
    for ours in figures:
        head += f" ours, {ours.relation}, % | difference |"
    text = [head, "|---|---|" + "---|---|" * len(figures)]
    for name, paper in PUBLISHED.items():
        cells = [f"{table.spread(f.accuracy, 2)} | {f.mean_accuracy - paper:+.2f}" for f in figures]
        text.append(f"| {name} | {paper:.1f} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and write the JSON; 1 if a published figure is not passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", help="independent runs under each relation (default 10, quick 2)")
    parser.add_argument("--jobs", default="1", help="processes")
    parser.add_argument("--quick", action="store_true", help="two runs, and no JSON unless --json names a file")
    parser.add_argument("--json", type=Path, help="default experiments/results/adult_yu.json")
    given = parser.parse_args(argv)
    runs = given.runs or ("2" if given.quick else "10")
    arguments = private_erm.parse(
        ["--data", "adult", "--only", "published", "--runs", runs, "--jobs", given.jobs]  # it checks the numbers
    )
    where = table.machine()
    try:
        figures = private_erm.collect(private_erm.jobs(arguments), arguments.jobs)
    except DpmlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"## Adult, ε = 0.1, δ = 1/n² = {figures[0].delta:.3g}: Yu et al. 2020 and ours\n")
    print(markdown(figures))
    print(f"\nOurs: mean ± standard deviation of {arguments.runs} runs, nothing tuned on the data.")
    print("\n" + " · ".join(f"{key} {value}" for key, value in where.items()))
    target = given.json or (None if given.quick else RESULTS / "adult_yu.json")
    if target is not None:
        content = {
            "paper": PUBLISHED,
            "rows": rows(figures),
            "figures": [private_erm._plain(asdict(figure)) for figure in figures],
            "machine": where,
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    failed = [check.name for check in table.published_checks(figures) if not check.met]
    if failed:
        print("\nmissed: " + "; ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
