"""``python -m dpml.report FOLDER``: rebuild the report of a run or of a sweep from the files in its folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dpml.errors import DpmlError, RunFolderError
from dpml.pipes import reader_may_leave

DESCRIPTION = """Rebuild the HTML report and the plots of a run or of a sweep from the files in its folder.
Nothing is trained and no record is read."""
EXAMPLES = """examples:
  python -m dpml.report outputs/2026-01-31/12-00-00        a run: report.html, model_card.md, report.json in release/
  python -m dpml.report multirun/2026-01-31/12-00-00       a sweep: report.html, epsilon_vs_metric.png, summary.csv
  python -m dpml.report multirun/2026-01-31/12-00-00 --jobs   ... and the report of each of its jobs"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; gives the exit status (0 done, 1 when the folder holds neither a run nor a sweep)."""
    parser = argparse.ArgumentParser(
        prog="python -m dpml.report",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="a run folder (or its release/) or a sweep's folder")
    parser.add_argument("--jobs", action="store_true", help="for a sweep: rebuild the report of every finished job too")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON (of a run: report.json)")
    options = parser.parse_args(arguments)
    try:
        found = rebuild(options.folder, jobs=options.jobs)
    except (DpmlError, OSError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    with reader_may_leave():
        print(json.dumps(found, indent=2, ensure_ascii=False) if options.json else "\n".join(_lines(found)))
    return 0


def rebuild(folder: Path, *, jobs: bool = False) -> dict[str, object]:
    """Writes the report of whatever ``folder`` holds and says what was written.

    Raises:
        RunFolderError: the folder is missing or holds neither a run nor a sweep.
    """
    from dpml.report import write_run_report, write_sweep_report
    from dpml.report.records import read_jobs

    if not folder.is_dir():
        raise RunFolderError(f"{folder} is not a folder. Give the folder of a run or of a sweep.")
    if not (folder / "sweep.json").is_file():
        return _run(write_run_report(folder))
    if jobs:
        for job in read_jobs(folder):
            if job.result is not None and job.folder is not None:
                write_run_report(folder / job.folder)
    return {"report": str(folder / "report.html"), **write_sweep_report(folder)}


def _run(page: Path) -> dict[str, object]:
    card, facts = (page.with_name(name) for name in ("model_card.md", "report.json"))
    return {"report": str(page), "model_card": str(card), "facts": json.loads(facts.read_text(encoding="utf-8"))}


def _lines(found: dict[str, object]) -> list[str]:
    from dpml.report.formats import upper

    lines = [f"report: {found['report']}"]
    if "model_card" in found:
        lines.append(f"model card: {found['model_card']}")
    facts = found.get("facts")
    problems = facts.get("problems") if isinstance(facts, dict) else None
    lines += [f"PROBLEM: {text}" for text in problems or ()]
    composed = found.get("composed")
    if found.get("nonprivate_jobs"):
        lines.append(f"no guarantee for all of it: jobs {found['nonprivate_jobs']} had no privacy; of the others:")
    if isinstance(composed, dict):
        lines.append(
            f"composed: epsilon {upper(composed['epsilon'])} at delta {upper(composed['delta'])} "
            f"({composed['relation']}; {composed['rule']})"
        )
    elif found.get("problems"):
        lines.append("composed: cannot be stated, a ledger cannot be read")
    if found.get("failed"):
        lines.append(f"without a result: jobs {found['failed']}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
