"""The report of one run, from the files in its ``release`` folder, and into it.

``report.html`` is the page, ``model_card.md`` and ``report.json`` are the same as Markdown and as JSON, and
``epsilon_vs_step.png`` is the first picture.  All are post-processing of files that are public or were charged.
"""

from __future__ import annotations

from pathlib import Path

from dpml.errors import RunFolderError
from dpml.report import figures, run_figures
from dpml.report.formats import visible
from dpml.report.model_card import audit_sentence, model_card
from dpml.report.page import render
from dpml.report.records import read_run
from dpml.report.run_facts import RunFacts, declared, run_facts, target_words
from dpml.report.run_json import facts_json
from dpml.results import write_atomic

PLOT, CARD, FACTS, PAGE = "epsilon_vs_step.png", "model_card.md", "report.json", "report.html"


def write_run_report(run_folder: Path | str) -> Path:
    """Writes the report of a finished run and gives the path of the page.

    Args:
        run_folder: the run folder or its ``release`` folder.

    Reads ``release`` only, so whatever the page shows is public or was charged.  The same files give the same bytes,
    on another machine with the same versions too.

    Raises:
        RunFolderError: there is no finished run, or its records cannot be read.
    """
    record = read_run(Path(run_folder))
    try:
        facts = run_facts(record)
        draw, height = run_figures.trajectory_draw(facts)
        files: dict[str, str | bytes] = {
            PLOT: figures.png(draw, height=height),
            CARD: visible(model_card(facts)),
            FACTS: visible(facts_json(facts)),
            PAGE: visible(render("run.html.j2", page_facts(facts))),
        }
    except RecursionError as fault:
        raise RunFolderError(
            f"{record.release}: a record in it is nested too deep to be shown. Restore the files; "
            "python -m dpml.verify says which was changed."
        ) from fault
    for name, content in files.items():  # the page last: where it is, the others are too
        write_atomic(record.release / name, content)
    return record.release / PAGE


def page_facts(facts: RunFacts) -> dict[str, object]:
    """What the page's template needs."""
    return {
        "facts": facts,
        "declared": declared(facts),
        "target": target_words(facts.schema or {}),
        "audit_sentence": audit_sentence(facts) if facts.audit else "",
        "trajectory_picture": run_figures.trajectory_picture(facts),
        "tradeoff_picture": run_figures.tradeoff_picture(facts),
        "stages_picture": run_figures.stages_picture(facts),
    }
