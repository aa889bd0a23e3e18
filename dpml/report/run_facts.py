"""Everything that the report of a run says, as one frozen record made from the files in ``release/`` alone.

The page, the model card and ``report.json`` are three forms of it.  Nothing here depends on a record of the data
except through what the files hold, which is public or was charged: all of it is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpml.report import formats
from dpml.report.attack import AttackBounds, AttackCurve, attack_bounds, attack_curve
from dpml.report.audit_record import AuditRecord
from dpml.report.budget import StageCost, stage_costs
from dpml.report.commands import names_files, reproduce
from dpml.report.formats import as_number
from dpml.report.record_checks import Check, check_record, relation_of
from dpml.report.records import RunRecord
from dpml.report.run_curves import AccountantRow, TrajectoryFacts, accountant_rows, trajectory_facts
from dpml.report.utility import Utility, utility_of
from dpml.report.values import mapping, sequence, text, texts, whole

LINE_LIMIT = 420
REPLACE_ONE = "replace_one"


@dataclass(frozen=True)
class AttackRow:
    """One bound in attack terms: what guessing gives, what (ε, δ) allows at most, and what the curve allows."""

    name: str
    guess: str
    alone: str
    bound: str


@dataclass(frozen=True)
class RunFacts:
    """What the report of one run says.

    Attributes:
        epsilon: ``inf`` for a run without privacy.
        sentence: the guarantee in one sentence that stands on its own.
        strength: (``"good"``, ``"fair"`` or ``"bad"``, a few words).
        checks: what was checked of the records; ``problems`` are those that failed, and what else is wrong.
        attack, curve: bounds in attack terms; ``None`` without privacy.
        data: the declared facts about the data.
        plan_rows: the plan as (name, value); ``key_rows`` of them matter most and come first.
        config: text of ``config.yaml``.
        excerpt: (line number or ``None`` for a gap, text) of the ledger.
    """

    title: str
    epsilon: float
    delta: float
    relation: str
    unit: str
    method: str
    model: str
    steps: Any
    noise_multiplier: Any
    written_by: str
    sentence: str
    strength: tuple[str, str]
    checks: tuple[Check, ...]
    problems: tuple[str, ...]
    accountants: tuple[AccountantRow, ...]
    assumptions: tuple[str, ...]
    attack: AttackBounds | None
    attack_rows: tuple[AttackRow, ...]
    curve: AttackCurve | None
    audit: AuditRecord | None
    trajectory: TrajectoryFacts
    stages: tuple[StageCost, ...]
    utility: Utility
    guidance: Mapping[str, Any]
    data: Mapping[str, Any]
    schema: Mapping[str, Any] | None
    schema_rows: tuple[tuple[str, str, str, str], ...]
    plan_rows: tuple[tuple[str, str], ...]
    key_rows: int
    reproduce: str | None
    names_files: bool
    config: str | None
    head: str
    count: Any
    excerpt: tuple[tuple[int | None, str], ...]

    @property
    def private(self) -> bool:
        """Whether there is a finite ε."""
        return math.isfinite(self.epsilon)

    @property
    def applying(self) -> list[AccountantRow]:
        """The accountants that gave an ε."""
        return [row for row in self.accountants if row.epsilon is not None]

    @property
    def refusing(self) -> list[AccountantRow]:
        """The accountants that cannot bound the charges, with their reasons."""
        return [row for row in self.accountants if row.epsilon is None]


def run_facts(record: RunRecord) -> RunFacts:
    """The facts of one run; whatever the files hold, this gives facts or a list of problems among them."""
    result = record.result
    epsilon = as_number(result.get("epsilon"))
    epsilon = math.inf if epsilon is None else epsilon
    delta = as_number(result.get("delta")) or 0.0
    delta = min(max(delta, 0.0), 1.0)
    relation, unit = relation_of(record), text(result.get("unit"), "record")
    checks = check_record(record)
    problems = [check.text for check in checks if not check.ok]
    attack = curve = None
    if math.isfinite(epsilon):
        event = record.ledger.event if record.ledger and record.ledger.charges else None
        attack = attack_bounds(epsilon, delta)
        curve = attack_curve(event, epsilon, delta, neighboring_relation=relation)
    if record.audit_problem:
        problems.append(record.audit_problem)
    if record.audit is not None and record.audit.contradicts(epsilon, delta):
        problems.append(
            f"The audit found ε ≥ {formats.general(record.audit.epsilon_lower, 4)}, more than the reported ε: one of "
            "both is wrong."
        )
    trajectory = trajectory_facts(record)
    if trajectory.problem:
        problems.append(f"The trajectory in result.json cannot be shown: {trajectory.problem}.")
    plan, key_rows = plan_rows(mapping(result.get("plan")))
    method, model, data = text(result.get("method")), text(result.get("model"), "model"), mapping(result.get("data"))
    on = f" on {text(data['name'])}" if data.get("name") else ""
    return RunFacts(
        title=f"{model} trained {'without privacy' if method == 'nonprivate' else 'by ' + formats.method(method)}{on}",
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        unit=unit,
        method=method,
        model=model,
        steps=result.get("steps"),
        noise_multiplier=result.get("noise_multiplier"),
        written_by=text(result.get("dpml_version"), "an unknown version"),
        sentence=quotable_sentence(result),
        strength=strength(epsilon) if not problems else ("bad", "do not rely on it"),
        checks=checks,
        problems=tuple(problems),
        accountants=accountant_rows(record),
        assumptions=tuple(texts(result.get("assumptions"))),
        attack=attack,
        attack_rows=tuple(attack_rows(attack, curve, relation)) if attack and curve else (),
        curve=curve,
        audit=record.audit,
        trajectory=trajectory,
        stages=stage_costs(result, record.ledger, delta=delta, relation=relation),
        utility=utility_of(result),
        guidance=guidance_of(mapping(result.get("guidance"))),
        data=data,
        schema=record.schema,
        schema_rows=tuple(schema_rows(record.schema or {}, mapping(result.get("stages")))),
        plan_rows=tuple(plan),
        key_rows=key_rows,
        reproduce=reproduce(record),
        names_files=names_files(record),
        config=record.config,
        head=text(mapping(result.get("ledger")).get("head")),
        count=mapping(result.get("ledger")).get("count"),
        excerpt=tuple(_excerpt(record.ledger_lines)),
    )


def quotable_sentence(result: Mapping[str, Any]) -> str:
    """One sentence about the guarantee that stands on its own."""
    epsilon, delta = as_number(result.get("epsilon")), as_number(result.get("delta")) or 0.0
    if epsilon is None or math.isinf(epsilon):
        return (
            "This model was trained without differential privacy: it may reveal that a record was in the training "
            "data, and what the record said."
        )
    unit, delta = text(result.get("unit"), "record"), min(max(delta, 0.0), 1.0)
    relation = result.get("neighboring_relation") or "add_remove"
    if relation == REPLACE_ONE:
        doubt = f"that one particular {unit} in the training data has one of two given contents rather than the other"
    else:
        doubt = f"that one particular {unit} was among the training data"
    except_for = f" (but for a leak of probability at most {formats.upper(delta)})" if delta > 0 else ""
    posterior = formats.percent_upper(attack_bounds(epsilon, delta).posterior)
    return (
        f"Somebody who sees this model, whatever else they know, and who at first gives a chance of 50\u00a0% {doubt}, "
        f"can afterwards be at most {posterior} sure of it{except_for}: the model is "
        f"(ε\u00a0=\u00a0{formats.upper(epsilon)}, δ\u00a0=\u00a0{formats.upper(delta)})-differentially private "
        f"per {unit} (neighbouring data sets: {formats.relation_words(relation)})."
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


def attack_rows(bounds: AttackBounds, curve: AttackCurve, relation: str) -> list[AttackRow]:
    """The bounds as rows: from (ε, δ) alone, and from the curve of what was charged."""
    case = "which of two values the record has" if relation == REPLACE_ONE else "whether the record was used"
    up = formats.percent_upper
    rows = [
        AttackRow(
            "Belief after seeing the model, from 50\u00a0%", "50\u00a0%", up(bounds.posterior), up(bounds.posterior)
        ),
        AttackRow(f"Right answers when guessing {case}", "50\u00a0%", up(bounds.accuracy), up(curve.accuracy)),
        AttackRow(
            "Advantage (true-positive minus false-positive rate)", "0\u00a0%", up(bounds.advantage), up(curve.advantage)
        ),
    ]
    for rate in (0.01, 0.001):
        alone = attack_bounds(bounds.epsilon, bounds.delta, false_positive_rate=rate).true_positive_rate
        chance = formats.percent_upper(rate, 0 if rate >= 0.01 else 1)
        found = up(min(alone, curve.true_positive_rates[rate]), 2)
        rows.append(AttackRow(f"True positives at {chance} false positives", chance, up(alone, 2), found))
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
PLAN_HIDDEN = (
    "event", "event_per_step", "data", "dpml_version", "assumptions", "stages", "candidate_events", "base_event",
)  # fmt: skip
KEY_ROWS = (
    "method", "model", "reason", "steps", "noise_multiplier", "epsilon", "delta", "sample_rate", "expected_batch_size",
    "max_grad_norm", "learning_rate", "regularization", "solution_norm", "candidates", "base_epsilon", "mean_runs",
)  # fmt: skip


def plan_rows(plan: Mapping[str, Any]) -> tuple[list[tuple[str, str]], int]:
    """The plan as (name, value) rows and how many of them matter most; these come first.

    Nested groups are flattened, events are left to the ledger, no name comes twice.
    """
    rows: dict[str, str] = {}
    groups: list[Mapping[str, Any]] = []
    for key, value in plan.items():
        if isinstance(value, Mapping) and key in ("guarantee", "parameters"):
            groups.append(value)
        elif key not in PLAN_HIDDEN and value is not None and not _is_event(value):
            rows[str(key)] = formats.words(value)
    for group in groups:
        for key, value in group.items():
            if key not in PLAN_HIDDEN and key not in rows and value is not None and not _is_event(value):
                rows[str(key)] = formats.words(value)
    first = [key for key in KEY_ROWS if key in rows]
    order = [*first, *(key for key in rows if key not in first)]
    return [(PLAN_LABELS.get(key, key.replace("_", " ")), rows[key]) for key in order], len(first)


def _is_event(value: Any) -> bool:
    return isinstance(value, Mapping) and "type" in value


def schema_rows(schema: Mapping[str, Any], stages: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """The schema's columns as (name, kind, range or categories, rest); what a charged stage found is marked."""
    rows = []
    found = {
        name: mapping(mapping(stages.get(stage)).get("columns"))
        for stage, name in (("bounds", "bounds"), ("categories", "categories"))
    }
    for name, one in mapping(schema.get("columns")).items():
        column = mapping(one)
        rest = {k: v for k, v in column.items() if k not in ("kind", "bounds", "categories")}
        if isinstance(column.get("bounds"), list):
            span = " to ".join(formats.general(edge) for edge in column["bounds"])
            charged = name in found["bounds"]
        else:
            values = texts([str(value) for value in sequence(column.get("categories"))])
            more = f", and {len(values) - 40} more" if len(values) > 40 else ""
            span = (", ".join(values[:40]) + more) or "–"
            charged = name in found["categories"]
        span += " (found by a charged stage)" if charged else ""
        rows.append((formats.shortened(name), text(column.get("kind")), span, formats.words(rest)))
    return rows


def guidance_of(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sample-size verdict, its parts in forms that can be written; empty where there is no verdict."""
    if not isinstance(found.get("enough"), bool):
        return {}
    names = ("n_declared", "required_n", "excess_risk", "achievable_excess_risk", "n_features", "factor", "epsilon")
    keys = ("solution_norm", "n_privacy", "n_statistics", "excess_bound", "excess_expected")
    sharper = sequence(mapping(found.get("sharper")).get("rows"))
    return {
        "enough": found["enough"],
        "rule": text(found.get("rule")),
        **{name: as_number(found.get(name)) for name in names},
        "sharper": [{key: as_number(mapping(row).get(key)) for key in keys} for row in sharper[:20]],
        "sharper_for": text(mapping(found.get("sharper")).get("for"), ""),
        "text": found["text"] if isinstance(found.get("text"), str) else "",
    }


def target_words(schema: Mapping[str, Any]) -> str:
    """The schema's target: its name, and its classes or its bounds."""
    target = mapping(schema.get("target"))
    name = text(target.get("name"))
    if isinstance(target.get("bounds"), list):
        return f"target {name} from {' to '.join(formats.words(end) for end in target['bounds'])}"
    classes = [str(label) for label in sequence(target.get("classes"))]
    return f"target {name}" + (f" with classes {formats.shortened(', '.join(classes), 600)}" if classes else "")


def declared(facts: RunFacts) -> str:
    """The nominal number of records in words."""
    found = whole((facts.schema or {}).get("n_declared"))
    return formats.words(found if found is not None else facts.data.get("n_declared"))


def _excerpt(lines: Sequence[str]) -> list[tuple[int | None, str]]:
    """The first two and last two lines, numbered from 1; a gap is a line without a number."""
    numbered = list(enumerate(lines, start=1))
    if len(numbered) > 5:
        skipped = len(numbered) - 4
        return [*map(_cut, numbered[:2]), (None, f"… {skipped} more lines …"), *map(_cut, numbered[-2:])]
    return [_cut(one) for one in numbered]


def _cut(line: tuple[int, str]) -> tuple[int | None, str]:
    number, content = line
    return number, content if len(content) <= LINE_LIMIT else f"{content[: LINE_LIMIT - 90]} … {content[-80:]}"
