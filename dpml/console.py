"""What ``python -m dpml.train`` shows: plan, progress, result.  Public values only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dpml.accounting import DatasetLedger
from dpml.rounding import upper
from dpml.runs import Plan, RunResult


class StepBar:
    """Progress on standard error: step, ε so far, time left.  Silent when ``verbose`` is false."""

    def __init__(self, verbose: bool) -> None:
        self._bar = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("ε so far ≤ {task.fields[epsilon]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not verbose,
        )
        self._task: Any = None

    def __enter__(self) -> StepBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, step: int, steps: int, epsilon: float) -> None:
        if self._task is None:
            self._task = self._bar.add_task("train", total=steps, epsilon=upper(epsilon))
        self._bar.update(self._task, completed=step, epsilon=upper(epsilon))


class FeatureBar:
    """Progress of image features on standard error, in percent; nothing where they come from the cache."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            columns = (TextColumn("features {task.percentage:.0f} %"), BarColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), redirect_stdout=False, redirect_stderr=False)
            self._task = self._bar.add_task("features", total=total)
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total)
        if done >= total:
            self._bar.stop()
            self._bar = None


def _grid(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def audit_table(rows: Sequence[tuple[str, str]]) -> Table:
    """What an audit found."""
    return _grid("Audit", rows)


def plan_table(plan: Plan) -> Table:
    """The plan as a table."""
    return _grid("Plan (public knowledge only; no record has been read)", plan.rows())


def cap_line(ledger: DatasetLedger) -> str:
    """What the runs on a data set have spent of its cap so far."""
    epsilon, delta = ledger.total()
    number = len(ledger.runs())
    spent = f"{number} {'run has' if number == 1 else 'runs have'} promised ε = {upper(epsilon)}, δ = {upper(delta)}"
    cap = f"the cap is ε = {upper(ledger.epsilon)}, δ = {upper(ledger.delta)}"
    if ledger.filter == "basic":
        return f"data set ledger {ledger.path}: {spent}; {cap}"
    left = ", ".join(f"{name} {value:.4g}" for name, value in ledger.remaining().items())
    return f"data set ledger {ledger.path}: {spent}; {cap} by the filter {ledger.filter}, which has left: {left}"


def _with_interval(result: RunResult, name: str) -> str:
    """A metric, with its interval where it has one."""
    low, high = result.metrics.get(f"{name}_low"), result.metrics.get(f"{name}_high")
    interval = "" if low is None or high is None else f" ({low:.4f} to {high:.4f})"
    return f"{result.metrics[name]:.4f}{interval}"


def result_table(result: RunResult) -> Table:
    """What a person wants to know at the end."""
    guarantee, plan = result.guarantee, result.plan
    others = [
        f"{name} {upper(series[-1])}"
        for name, series in (("RDP", result.trajectory.rdp), ("zCDP", result.trajectory.zcdp))
        if series
    ]
    rows = [
        ("ε", upper(guarantee.epsilon, 6) + (f"   (by {', by '.join(others)})" if others else "")),
        ("δ", upper(guarantee.delta)),
        ("relation", f"{guarantee.neighboring_relation}, unit: one {guarantee.unit}"),
        (
            "accountant",
            f"{guarantee.accountant}" + (f" → {result.accountant_used}" if guarantee.accountant == "best" else ""),
        ),
        ("method", f"{plan.method}, {plan.model}, {plan.steps} noisy release{'s' if plan.steps != 1 else ''}"),
    ]
    if "failed" in result.metrics:
        rows.append(("metrics", f"none: {result.metrics['failed']}"))
    elif result.metrics:
        main = next(name for name in ("accuracy", "r2", "mae") if name in result.metrics)
        names = {"accuracy": "accuracy", "auc": "AUC", "r2": "R²", "rmse": "RMSE", "mae": "mean |error|"}
        rows.append((names[main], f"{_with_interval(result, main)}   ({result.metrics['source']})"))
        for other in ("auc", "rmse"):
            if other in result.metrics:
                rows.append((names[other], _with_interval(result, other)))
        if result.nonprivate:
            rows.append(("without privacy", f"{result.nonprivate['test_' + main]:.4f}   (public data only)"))
    elif "metrics" in result.stages:
        rows.append(("metrics", str(result.stages["metrics"]["how"])))
    else:
        rows.append(
            (
                "metrics",
                "not published: no public test set (with a private hold-out, privacy.shares.metrics=0.1 pays for some)",
            )
        )
    if plan.method != "nonprivate":
        guide = plan.guidance
        verdict = "enough" if guide["enough"] else f"too small by ×{guide['factor']:.3g}"
        asked = f"the rule asks for {guide['required_n']:,} at α = {guide['excess_risk']:g}"
        rows.append(("sample size", f"{verdict}: n = {guide['n_declared']:,}, {asked}"))
    rows.append(("ledger", f"{result.ledger['count']} lines, head {str(result.ledger['head'])[:16]}…"))
    if result.run_dir is not None:
        here = Path.cwd()
        shown = result.run_dir.relative_to(here) if result.run_dir.is_relative_to(here) else result.run_dir
        rows.append(("files", str(shown)))
    return _grid("Result", rows)
