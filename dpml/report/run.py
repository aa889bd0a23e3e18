"""The report of one run: ``release/report.html`` and ``release/epsilon_vs_step.png`` from the files in ``release``."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpml import accounting
from dpml.errors import DpmlError
from dpml.report import figures, formats
from dpml.report.attack import AttackBounds, attack_bounds
from dpml.report.formats import as_number
from dpml.report.page import render
from dpml.report.records import RunRecord, read_run
from dpml.results import write_atomic

ONE_SHOT_STEPS = 2  # up to so many releases there is no curve over steps worth drawing
SERIES = (("best", "best accountant"), ("rdp", "RDP"), ("zcdp", "zCDP, no amplification"))
SERIES_UNSAMPLED = (("best", "best accountant"), ("rdp", "RDP"), ("zcdp", "zCDP"))
LINE_LIMIT = 420


def write_run_report(run_folder: Path | str) -> Path:
    """Writes the report of a finished run and gives the path of the page.

    Args:
        run_folder: the run folder or its ``release`` folder.

    Reads ``release`` only, so whatever the page shows is public or was charged.  The same files give the same bytes.

    Raises:
        RunFolderError: there is no finished run, or its ``result.json`` cannot be read.
    """
    record = read_run(Path(run_folder))
    draw, trajectory = _trajectory(record)
    page = render("run.html.j2", _facts(record, trajectory))
    write_atomic(record.release / "epsilon_vs_step.png", figures.png(draw, height=trajectory["height"]))
    path = record.release / "report.html"
    write_atomic(path, page)
    return path


def quotable_sentence(result: Mapping[str, Any]) -> str:
    """One sentence about the guarantee that stands on its own."""
    epsilon, delta = as_number(result.get("epsilon")), as_number(result.get("delta")) or 0.0
    if epsilon is None or math.isinf(epsilon):
        return (
            "This model was trained without differential privacy: it may reveal that a record was in the training "
            "data, and what the record said."
        )
    unit = str(result.get("unit", "record"))
    if result.get("neighboring_relation") == "replace_one":
        doubt = f"that one particular {unit} in the training data has one of two given contents rather than the other"
    else:
        doubt = f"that one particular {unit} was among the training data"
    except_for = f" (but for a leak of probability at most {formats.upper(delta)})" if delta > 0 else ""
    posterior = formats.percent_upper(attack_bounds(epsilon, delta).posterior)
    return (
        f"Somebody who sees this model, whatever else they know, and who at first gives a chance of 50\u00a0% {doubt}, "
        f"can afterwards be at most {posterior} sure of it{except_for}: the model is "
        f"(ε\u00a0=\u00a0{formats.upper(epsilon)}, δ\u00a0=\u00a0{formats.upper(delta)})-differentially private "
        f"per {unit} (neighbouring data sets: {formats.relation(result.get('neighboring_relation'))})."
    )


def strength(epsilon: float | None) -> tuple[str, str]:
    """A class name and a plain word of caution for an ε."""
    if epsilon is None or math.isinf(epsilon):
        return "bad", "no guarantee"
    if epsilon <= 1:
        return "good", "strong (ε ≤ 1)"
    if epsilon <= 10:
        return "fair", "moderate (1 < ε ≤ 10)"
    return "bad", "weak on paper (ε > 10)"


def _facts(record: RunRecord, trajectory: Mapping[str, Any]) -> dict[str, Any]:
    result = record.result
    epsilon, delta = as_number(result.get("epsilon")), as_number(result.get("delta")) or 0.0
    attack = None if epsilon is None or math.isinf(epsilon) else attack_bounds(epsilon, delta)
    return {
        "result": result,
        "epsilon": epsilon,
        "delta": delta,
        "sentence": quotable_sentence(result),
        "strength": strength(epsilon),
        "data": result.get("data") or {},
        "accountants": _accountants(record),
        "assumptions": list(result.get("assumptions") or ()),
        "trajectory": trajectory,
        "attack": attack,
        "attack_rows": _attack_rows(attack, str(result.get("neighboring_relation"))) if attack else [],
        "metrics": _metrics(result.get("metrics") or {}),
        "metrics_source": (result.get("metrics") or {}).get("source"),
        "nonprivate": _metrics({k.removeprefix("test_"): v for k, v in (result.get("nonprivate") or {}).items()}),
        "guidance": result.get("guidance") or {},
        "plan_rows": plan_rows(result.get("plan") or {}),
        "stages": _stages(record),
        "schema": record.schema,
        "schema_rows": schema_rows(record.schema or {}),
        "config": record.config,
        "reproduce": _reproduce(result),
        "ledger": result.get("ledger") or {},
        "ledger_problem": record.ledger_problem,
        "excerpt": _excerpt(record.ledger_lines),
    }


def _trajectory(record: RunRecord) -> tuple[figures.Draw, dict[str, Any]]:
    """How to draw ε over the steps (or, for one release or two, ε by accountant), and the same as facts."""
    result = record.result
    found = result.get("trajectory") or {}
    steps = [int(step) for step in found.get("steps") or ()]
    delta = as_number(found.get("delta")) or as_number(result.get("delta")) or 0.0
    sampled = _samples(record.ledger.charges) if record.ledger else result.get("method") == "dp_sgd"
    names = dict(SERIES if sampled else SERIES_UNSAMPLED)
    curves = {
        key: [math.inf if (y := as_number(value)) is None else y for value in found[key]]
        for key in names
        if isinstance(found.get(key), list) and len(found[key]) == len(steps) and steps
    }
    facts: dict[str, Any] = {"steps": steps, "curves": curves, "names": names, "notes": dict(found.get("notes") or {})}
    facts["missing"] = [names[k] for k in names if k not in curves and k not in facts["notes"]] if steps else []
    facts["one_shot"] = len(steps) <= ONE_SHOT_STEPS
    if facts["one_shot"]:
        values = [(names[key], ys[-1]) for key, ys in curves.items()]
        draw = figures.epsilon_by_accountant(values, delta)
        alt = f"Bars: ε at δ = {formats.upper(delta)} by accountant. " + _ends(values)
        caption = "The method makes its release at once, so there is no curve over steps; ε by accountant instead."
    else:
        series = [figures.Series(names[key], tuple(zip(steps, ys, strict=True))) for key, ys in curves.items()]
        draw = figures.epsilon_over_steps(series, delta)
        alt = (
            f"Lines: ε at δ = {formats.upper(delta)} after each of 1 to {steps[-1]} steps, rising. "
            f"At the end: " + _ends([(one.name, one.points[-1][1]) for one in series])
        )
        caption = "Budget used after so many steps. Each line is a sound upper bound."
    facts["height"] = 1.0 + 0.5 * len(curves) if facts["one_shot"] else None
    facts["picture"] = figures.picture(draw, alt=alt, caption=caption, height=facts["height"]) if curves else None
    facts["table"] = _thinned(steps, curves)
    return draw, facts


def _ends(values: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {formats.upper(value)}" for name, value in values) + "."


def _thinned(steps: Sequence[int], curves: Mapping[str, Sequence[float]], rows: int = 12) -> list[dict[str, Any]]:
    every = max(1, -(-len(steps) // rows))
    chosen = sorted({*range(0, len(steps), every), len(steps) - 1}) if steps else []
    return [{"step": steps[i], **{key: ys[i] for key, ys in curves.items()}} for i in chosen]


def _accountants(record: RunRecord) -> list[dict[str, Any]]:
    """ε of every accountant that applies, recomputed from the ledger's charges; why, for those that do not."""
    result, ledger = record.result, record.ledger
    used = str(result.get("accountant_used") or result.get("accountant") or "")
    epsilon = as_number(result.get("epsilon"))
    reported = {"name": used, "epsilon": epsilon, "note": "reported", "used": True}
    if ledger is None or not ledger.charges or epsilon is None or math.isinf(epsilon):
        return [reported]
    delta = as_number(result.get("delta")) or 0.0
    relation = str(result.get("neighboring_relation", "add_remove"))
    rows = [reported]
    for name in accounting.ACCOUNTANTS:
        if name in (used, "best"):
            continue
        try:
            value = accounting.epsilon(ledger.event, delta, accountant=name, neighboring_relation=relation)
            note = "ignores amplification by sampling" if name == "zcdp" and _samples(ledger.charges) else ""
            rows.append({"name": name, "epsilon": value, "note": note, "used": False})
        except DpmlError as fault:
            rows.append({"name": name, "epsilon": None, "note": f"does not apply: {fault}", "used": False})
    return sorted(rows, key=lambda row: (not row["used"], row["epsilon"] is None, row["epsilon"] or 0.0))


def _samples(charges: Sequence[Mapping[str, Any]]) -> bool:
    return any("poisson_sampled" in str(charge.get("event")) for charge in charges)


def _attack_rows(bounds: AttackBounds, relation: str) -> list[tuple[str, str, str]]:
    case = "which of two values the record has" if relation == "replace_one" else "whether the record was used"
    chance = formats.percent_upper(bounds.false_positive_rate, 0)
    return [
        ("Belief after seeing the model, from 50\u00a0%", "50\u00a0%", formats.percent_upper(bounds.posterior)),
        (f"Right answers when guessing {case}", "50\u00a0%", formats.percent_upper(bounds.accuracy)),
        ("Advantage (true-positive minus false-positive rate)", "0\u00a0%", formats.percent_upper(bounds.advantage)),
        (f"True positives at {chance} false positives", chance, formats.percent_upper(bounds.true_positive_rate)),
    ]


def _metrics(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    shares = ("accuracy", "auc", "balanced_accuracy", "f1", "precision", "recall")
    rows = []
    for key, value in metrics.items():
        number = as_number(value)
        if key != "source" and number is not None:
            share = key.removesuffix("_low").removesuffix("_high") in shares
            rows.append((key.replace("_", " "), formats.percent(number) if share else formats.general(number, 4)))
    return rows


PLAN_LABELS = {
    "epsilon": "promised ε",
    "delta": "δ",
    "regularization": "regularization Λ (mean form)",
    "lambda_sum": "regularization, sum form (Λ·n_declared)",
    "sample_rate": "sample rate q",
    "max_grad_norm": "clipping norm C",
    "solution_norm": "solution norm R",
}
PLAN_HIDDEN = ("event", "event_per_step", "data", "dpml_version", "assumptions", "stages")


def plan_rows(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The plan as (name, value) rows: nested groups flattened, events left to the ledger, no name twice."""
    rows: dict[str, str] = {}
    groups: list[Mapping[str, Any]] = []
    for key, value in plan.items():
        if isinstance(value, Mapping) and key in ("guarantee", "parameters"):
            groups.append(value)
        elif key not in PLAN_HIDDEN and not _is_event(value):
            rows[key] = formats.words(value)
    for group in groups:
        for key, value in group.items():
            if key not in PLAN_HIDDEN and key not in rows and value is not None and not _is_event(value):
                rows[key] = formats.words(value)
    return [(PLAN_LABELS.get(key, key.replace("_", " ")), value) for key, value in rows.items()]


def _is_event(value: Any) -> bool:
    return isinstance(value, Mapping) and "type" in value


def schema_rows(schema: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """The schema's columns as (name, kind, range or categories, rest)."""
    rows = []
    for name, column in (schema.get("columns") or {}).items():
        rest = {k: v for k, v in column.items() if k not in ("kind", "bounds", "categories")}
        if "bounds" in column:
            span = " to ".join(formats.general(edge) for edge in column["bounds"])
        else:
            span = ", ".join(str(value) for value in column.get("categories") or ()) or "–"
        rows.append((str(name), str(column.get("kind", "–")), span, formats.words(rest)))
    return rows


def _stages(record: RunRecord) -> list[dict[str, Any]]:
    """Charges by stage, in the order in which they were made."""
    stages: dict[str, dict[str, Any]] = {}
    for charge in record.ledger.charges if record.ledger else ():
        name = str(charge.get("stage", "–"))
        stage = stages.setdefault(name, {"stage": name, "lines": 0, "releases": 0, "events": []})
        stage["lines"] += 1
        stage["releases"] += int(charge.get("count", 1))
        text = describe_event(charge.get("event") or {})
        if text not in stage["events"]:
            stage["events"].append(text)
    return list(stages.values())


def describe_event(event: Mapping[str, Any]) -> str:
    """An event's JSON as a short phrase, ``Poisson-sampled (q = 0.014) Gaussian, noise multiplier 0.9``."""
    kind = event.get("type")
    if kind == "poisson_sampled":
        inner = describe_event(event.get("event") or {})
        return f"Poisson-sampled (q = {formats.general(event.get('sampling_probability'), 4)}) {inner}"
    if kind == "self_composed":
        return f"{formats.words(event.get('count'))} × {describe_event(event.get('event') or {})}"
    if kind == "composed":
        return " + ".join(describe_event(part) for part in event.get("events") or ())
    rest = ", ".join(f"{k.replace('_', ' ')} {formats.words(v)}" for k, v in event.items() if k != "type")
    name = str(kind).replace("_", " ")
    return f"{name}, {rest}" if rest else name


def _reproduce(result: Mapping[str, Any]) -> str | None:
    """The command that repeats the run (with fresh noise), when the result says how it was started."""
    if isinstance(result.get("command"), str):
        return str(result["command"])
    overrides = result.get("overrides")
    if isinstance(overrides, list) and overrides:
        return shlex.join(["python", "-m", "dpml.train", *map(str, overrides)])
    return None


def _excerpt(lines: Sequence[str]) -> list[tuple[int | None, str]]:
    """The first two and last two lines, numbered from 1; a gap is a line without a number."""
    numbered = list(enumerate(lines, start=1))
    if len(numbered) > 5:
        skipped = len(numbered) - 4
        return [*map(_cut, numbered[:2]), (None, f"… {skipped} more lines …"), *map(_cut, numbered[-2:])]
    return [_cut(one) for one in numbered]


def _cut(line: tuple[int, str]) -> tuple[int | None, str]:
    number, text = line
    return number, text if len(text) <= LINE_LIMIT else f"{text[: LINE_LIMIT - 90]} … {text[-80:]}"
