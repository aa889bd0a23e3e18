"""The report of a sweep: ``summary.csv`` (jobs), ``sweep.csv`` (settings), the plot and ``report.html``."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpml.report import figures, formats, sweep_table
from dpml.report.composition import ComposedGuarantee, compose
from dpml.report.formats import as_number
from dpml.report.page import render
from dpml.report.records import Charges, JobRecord, read_charges, read_jobs
from dpml.report.sweep_selection import prices
from dpml.report.utility import name_of, shown
from dpml.results import to_jsonable, write_atomic

COLUMNS = (
    "job", "method", "epsilon", "delta", "accuracy", "r2", "steps", "noise_multiplier", "status", "folder", "overrides",
    "auc", "mae", "loss", "metric", "low", "high",
)  # fmt: skip
METRICS = ("accuracy", "auc", "r2", "mae", "loss")
"""The first of them that a job released is the sweep's."""
SHARES = ("accuracy", "auc")
SEEDS = ("seed", "trainer.seed")


def write_sweep_report(sweep_folder: Path | str) -> dict[str, Any]:
    """Writes the report of a sweep, finished or not, and gives its main numbers (plain JSON values).

    Args:
        sweep_folder: the folder that holds ``sweep.json`` and one folder per job.

    Returns:
        ``composed`` (epsilon, delta, relation, rule, sum_epsilon, event_epsilon, accountant, ledgers) of publishing
        everything that the private jobs made, jobs that failed or were stopped included; ``nonprivate_jobs``;
        ``problems`` (ledgers that cannot be read: then the composed ε is ``None``); ``jobs``, ``done``, ``failed``
        (numbers of jobs without a result); ``metric``; ``files``.

    Raises:
        RunFolderError: ``sweep.json`` is missing or broken.
    """
    sweep = Path(sweep_folder)
    jobs = read_jobs(sweep)
    parts, problems = _charges(sweep, jobs)
    private = [part for part in parts if part.event is not None and not math.isinf(part.epsilon)]
    composed = None if problems else compose(private)
    metric = next((name for name in METRICS if any(_metric(job, name) is not None for job in jobs)), None)
    series, baselines, nonprivate_of = _series(jobs, metric)
    rows = sweep_table.table(series, nonprivate_of, metric)
    paid = any(one.bars for one in series)
    label = name_of(metric or "metric")
    draw = figures.metric_over_epsilon(series, baselines, metric=label, percent=metric in SHARES)
    height = None if series else 1.2
    nonprivate = [job.number for job in jobs if job.epsilon == math.inf]

    files = {name: sweep / name for name in ("summary.csv", "sweep.csv", "epsilon_vs_metric.png", "report.html")}
    done = [job for job in jobs if job.status == "done" and job.result is not None]
    failed = [job for job in jobs if job not in done]
    shared = [text for text in jobs[0].overrides if all(text in job.overrides for job in jobs)] if jobs else []
    facts = {
        "jobs": [
            {
                **_row(job, metric),
                "value": shown(metric, found) if metric and (found := _metric(job, metric)) is not None else "–",
                "interval": _interval_words(job, metric),
                "settings": " ".join(text for text in job.overrides if text not in shared),
                "without_result": job in failed,
            }
            for job in jobs
        ],
        "shared": shared,
        "done": done,
        "failed": failed,
        "charged": {part.folder: part.epsilon for part in parts},
        "abandoned": [(job.number, name) for job in jobs for name in job.folders if name != job.folder],
        "composed": composed,
        "sentence": composed_sentence(composed) if composed else "",
        "largest": max((part.epsilon for part in private), default=None),
        "nonprivate_jobs": nonprivate,
        "problems": problems,
        "metric": label,
        "title": label[:1].upper() + label[1:],
        "baselines": baselines,
        "picture": figures.picture(
            draw, alt=_alt(series, baselines, metric), caption=_caption(series, metric, _sources(done)), height=height
        ),
        "paid": paid,
        "means": sweep_table.cells(rows, metric in SHARES),
        "nearest": sweep_table.nearest(rows),
        "unit": "percentage points" if metric in SHARES else "",
        "sources": _sources(done),
        "prices": [] if problems else prices(parts, {job.number: formats.method(job.method) for job in jobs}),
    }
    page = formats.visible(render("sweep.html.j2", facts))
    write_atomic(files["summary.csv"], _csv(jobs, metric))
    write_atomic(files["sweep.csv"], sweep_table.as_csv(rows, metric))
    write_atomic(files["epsilon_vs_metric.png"], figures.png(draw, height=height))
    write_atomic(files["report.html"], page)
    return dict(
        to_jsonable(
            {
                "composed": composed,
                "nonprivate_jobs": nonprivate,
                "problems": problems,
                "jobs": len(jobs),
                "done": len(done),
                "failed": [job.number for job in failed],
                "metric": metric,
                "files": files,
            }
        )
    )


def composed_sentence(composed: ComposedGuarantee) -> str:
    """What publishing the whole sweep costs, in one sentence."""
    return (
        f"Publishing every model of this sweep is (ε\u00a0=\u00a0{formats.upper(composed.epsilon)}, "
        f"δ\u00a0=\u00a0{formats.upper(composed.delta)})-differentially private per record "
        f"(neighbouring data sets: {formats.relation_words(composed.relation)})."
    )


def _charges(sweep: Path, jobs: Sequence[JobRecord]) -> tuple[list[Charges], list[str]]:
    parts: list[Charges] = []
    problems: list[str] = []
    for job in jobs:
        found, faults = read_charges(sweep, job)
        parts += found
        problems += faults
    return parts, problems


def _metric(job: JobRecord, name: str) -> float | None:
    return as_number(((job.result or {}).get("metrics") or {}).get(name))


def _interval(job: JobRecord, name: str | None) -> tuple[float, float] | None:
    """Of a metric that was measured with charged noise."""
    low, high = (None if name is None else _metric(job, f"{name}_{end}") for end in ("low", "high"))
    return None if low is None or high is None or low > high else (low, high)


def _interval_words(job: JobRecord, metric: str | None) -> str:
    found = _interval(job, metric)
    return f"{_share(found[0], str(metric))} to {_share(found[1], str(metric))}" if found else "–"


def _varying(jobs: Sequence[JobRecord]) -> list[str]:
    """Override keys that differ between jobs."""
    keys = sorted({key for job in jobs for key in job.settings})
    return [key for key in keys if len({job.settings.get(key) for job in jobs}) > 1]


def _series(
    jobs: Sequence[JobRecord], metric: str | None
) -> tuple[list[figures.Series], list[tuple[str, float]], dict[str, float]]:
    """One series per method (and per other setting that varies, seeds apart), the non-private lines, and for each
    series the value without privacy on its data."""
    if metric is None:
        return [], [], {}
    axis = ("method", "privacy.epsilon", "privacy.noise_multiplier", *SEEDS)
    extra = [key for key in _varying(jobs) if key not in axis]
    points: dict[str, list[tuple[float, float]]] = {}
    bars: dict[str, list[tuple[float, float, float]]] = {}
    plain: dict[str, list[float]] = {}
    compared: dict[str, list[float]] = {}
    for job in jobs:
        epsilon, value = job.epsilon, _metric(job, metric)
        baseline = as_number(((job.result or {}).get("nonprivate") or {}).get(f"test_{metric}"))
        if baseline is not None:
            name = str(((job.result or {}).get("data") or {}).get("name") or "data")
            plain.setdefault(name, []).append(baseline)
        if epsilon is None or value is None or math.isinf(epsilon) or epsilon <= 0:
            continue
        label = ", ".join([formats.method(job.method), *(f"{k}={job.settings.get(k, '–')}" for k in extra)])
        points.setdefault(label, []).append((epsilon, value))
        interval = _interval(job, metric)
        if interval is not None:
            bars.setdefault(label, []).append((epsilon, *interval))
        if baseline is not None:
            compared.setdefault(label, []).append(baseline)
    series = [
        figures.Series(name, tuple(sorted(found)), tuple(sorted(bars.get(name, ()))))
        for name, found in sorted(points.items())
    ]
    several = len(plain) > 1
    lines = [
        (f"no privacy ({name})" if several else "no privacy", math.fsum(found) / len(found))
        for name, found in sorted(plain.items())
    ]
    return series, lines, {name: math.fsum(found) / len(found) for name, found in compared.items()}


def _alt(series: Sequence[figures.Series], baselines: Sequence[tuple[str, float]], metric: str | None) -> str:
    if not series or metric is None:
        return "Empty plot: there is no public metric to show."
    parts = []
    for one in series:
        (low, first), (high, last) = one.points[0], one.points[-1]
        parts.append(f"{one.name}: {_share(first, metric)} at ε = {formats.upper(low)}"
                     + (f", {_share(last, metric)} at ε = {formats.upper(high)}" if high > low else ""))  # fmt: skip
    parts += [f"{name}: {_share(value, metric)}" for name, value in baselines]
    return f"Lines: {name_of(metric)} against ε on a logarithmic axis. " + "; ".join(parts) + "."


def _share(value: float, metric: str) -> str:
    return formats.percent(value, 1) if metric in SHARES else formats.general(value, 4)


def _sources(done: Sequence[JobRecord]) -> list[str]:
    """Where the shown metrics come from, as the runs say."""
    found = {str(((job.result or {}).get("metrics") or {}).get("source") or "") for job in done}
    return sorted(text for text in found if text)


def _caption(series: Sequence[figures.Series], metric: str | None, sources: Sequence[str]) -> str:
    if not series:
        return "No job has a metric that may be shown: the test data are not declared public, and nothing was paid for."
    repeated = any(len(ys) > 1 for one in series for ys in figures.group_by_x(one.points).values())
    band = " Small points are single runs, the line is their mean, the band spans the least and the greatest."
    where = f" ({'; '.join(sources)})" if sources else ""
    if any(one.bars for one in series):
        where += ", with each run's own interval"
    name = name_of(metric or "")
    return f"{name[:1].upper()}{name[1:]} against ε{where}." + (band if repeated else "")


def _row(job: JobRecord, metric: str | None) -> dict[str, Any]:
    interval = _interval(job, metric) or (None, None)
    result: Mapping[str, Any] = job.result or {}
    settings = job.settings
    return {
        "job": job.number,
        "method": job.method,
        "epsilon": job.epsilon,
        "asked": settings.get("privacy.epsilon"),
        "delta": as_number(result.get("delta")),
        "accuracy": _metric(job, "accuracy"),
        "r2": _metric(job, "r2"),
        **{name: _metric(job, name) for name in ("auc", "mae", "loss")},
        "metric": metric,
        "low": interval[0],
        "high": interval[1],
        "steps": result.get("steps"),
        "noise_multiplier": as_number(result.get("noise_multiplier")),
        "status": job.status,
        "error": job.error,
        "folder": job.folder,
        "overrides": " ".join(job.overrides),
    }


def _csv(jobs: Sequence[JobRecord], metric: str | None) -> str:
    """The jobs as CSV with :data:`COLUMNS`; numbers in full, empty where there is none.

    ``low`` and ``high`` are the ends of the interval of ``metric``, where it was measured with charged noise.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for job in jobs:
        writer.writerow({key: "" if value is None else value for key, value in _row(job, metric).items()})
    return out.getvalue()
