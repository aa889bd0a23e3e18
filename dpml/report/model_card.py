"""``model_card.md``: what the report of a run says, as Markdown."""

from __future__ import annotations

from dpml.report import formats
from dpml.report.markdown import bullets, escape, fence, table
from dpml.report.run_facts import RunFacts, declared, target_words
from dpml.version import __version__

up = formats.upper


def model_card(facts: RunFacts) -> str:
    """The card's text.  Whatever comes from a file is escaped."""
    parts = [
        _head(facts),
        _guarantee(facts),
        _attack(facts),
        _budget(facts),
        _utility(facts),
        _sample_size(facts),
        _knowledge(facts),
        _plan(facts),
        _commands(facts),
        _ledger(facts),
        [f"Written by dpml {__version__} from the files in this folder alone. Privacy numbers are rounded up."],
    ]
    return "\n".join(line for part in parts for line in part) + "\n"


def _head(facts: RunFacts) -> list[str]:
    lines = [f"# Privacy report: {escape(facts.title)}", "", f"> {escape(facts.sentence)}", ""]
    if facts.problems:
        lines += ["**Do not rely on this card. Its records do not hold:**", "", *bullets(facts.problems)]
    return lines


def _guarantee(facts: RunFacts) -> list[str]:
    used = facts.accountants[0].name
    pairs = [
        ("ε (natural log units)", up(facts.epsilon)),
        ("δ", up(facts.delta)),
        ("protected unit", f"one {facts.unit}"),
        ("neighbouring data sets", formats.relation(facts.relation)),
        ("accountant", used),
        ("method", formats.method(facts.method)),
        ("model", facts.model),
        ("noisy releases (steps)", formats.words(facts.steps)),
        ("noise multiplier", formats.words(facts.noise_multiplier)),
        ("strength", facts.strength[1]),
    ]
    lines = ["## The guarantee", "", *table(["", ""], pairs)]
    lines += [f"ε at δ = {up(facts.delta)} by accountant; each is a sound upper bound:", ""]
    lines += table(["Accountant", "ε", "Remark"], [(r.name, up(r.epsilon), r.note) for r in facts.applying], right=[1])
    if facts.refusing:
        lines += [f"Not applicable: {escape(', '.join(row.name for row in facts.refusing))}.", ""]
    lines += ["### Assumptions", ""]
    return lines + bullets(facts.assumptions or ["none beyond the settings of this card"])


def _attack(facts: RunFacts) -> list[str]:
    lines = ["## What an attacker can reach", ""]
    if facts.attack is None:
        return [*lines, "There is no bound: this run had no differential privacy.", ""]
    rows = [(row.name, row.guess, row.bound, row.alone) for row in facts.attack_rows]
    lines += [f"For an attacker who knows everything but one {escape(facts.unit)}:", ""]
    lines += table(["Attack", "by guessing", "at most", "from (ε, δ) alone"], rows, right=[1, 2, 3])
    if facts.audit is not None:
        lines += [escape(audit_sentence(facts)), "", *bullets(facts.audit.assumptions)]
    return lines


def audit_sentence(facts: RunFacts) -> str:
    """What the audit of a run found, in one line."""
    audit = facts.audit
    assert audit is not None
    claim = facts.epsilon if audit.epsilon_upper is None else audit.epsilon_upper
    if audit.epsilon_lower == 0:
        return (
            f"Attacked: an audit ({audit.method}) proved no lower bound on ε at δ = {formats.general(audit.delta, 4)} "
            f"(confidence {formats.percent(audit.confidence, 1)}); the claim is at most {up(claim)}."
        )
    return (
        f"Attacked: an audit ({audit.method}) shows that ε cannot be below {formats.general(audit.epsilon_lower, 4)} "
        f"at δ = {formats.general(audit.delta, 4)} (confidence {formats.percent(audit.confidence, 1)}); the claim is "
        f"at most {up(claim)}."
    )


def _budget(facts: RunFacts) -> list[str]:
    lines = ["## Where the budget went", ""]
    if facts.stages:
        rows = [
            (one.stage, up(one.epsilon) if one.charged else "0", formats.words(one.releases), stage_words(one))
            for one in facts.stages
        ]
        lines += table(["Stage", "ε alone", "Releases", "What"], rows, right=[1, 2])
    if facts.trajectory.rows and not facts.trajectory.one_shot:
        steps = [(str(step), *map(up, values)) for step, values in facts.trajectory.rows]
        names = list(facts.trajectory.curves)
        lines += ["![ε over the steps](epsilon_vs_step.png)", ""]
        lines += table(["Steps", *names], steps, right=range(len(names) + 1))
    return lines + [
        line for name, note in facts.trajectory.notes.items() for line in (f"{escape(name)}: {escape(note)}", "")
    ]


def stage_words(one: object) -> str:
    """What a stage charged and gave, in one text."""
    events = "; ".join(getattr(one, "events", ()))
    return " — ".join(part for part in (events, getattr(one, "remark", "")) if part)


def _utility(facts: RunFacts) -> list[str]:
    found = facts.utility
    lines = ["## Utility", ""]
    if found.why_none:
        return [*lines, escape(found.why_none), ""]
    headers, rows = ["Metric", "Value"], [[one.name, one.value] for one in found.metrics]
    for wanted, header, key in (
        (found.with_intervals, f"{found.confidence} interval".strip(), "interval"),
        (found.with_nonprivate, "without privacy", "nonprivate"),
    ):
        if wanted:
            headers.append(header)
            rows = [[*row, getattr(one, key) or "–"] for row, one in zip(rows, found.metrics, strict=True)]
    lines += table(headers, rows, right=range(1, len(headers)))
    lines += [f"Source: {escape(found.source)}.", ""] if found.source else []
    return lines + (bullets(found.remarks) if found.remarks else [])


def _sample_size(facts: RunFacts) -> list[str]:
    found = facts.guidance
    if not found:
        return []
    verdict = "enough by the rule" if found["enough"] else f"too small by ×{formats.general(found['factor'], 3)}"
    lines = ["## Is there enough data?", "", f"{verdict}. Rule: {escape(found['rule'])}", ""]
    pairs = [
        ("n declared", formats.general(found["n_declared"])),
        ("n required", formats.general(found["required_n"])),
        ("excess risk α asked", formats.general(found["excess_risk"])),
        ("α that n gives", formats.general(found["achievable_excess_risk"], 3)),
        ("features d", formats.general(found["n_features"])),
    ]
    return [*lines, *table(["", ""], pairs)]


def _knowledge(facts: RunFacts) -> list[str]:
    lines = ["## Public knowledge about the data", "", f"{declared(facts)} records declared.", ""]
    if facts.schema_rows:
        lines[-2] = escape(f"{declared(facts)} records declared; {target_words(facts.schema or {})}.")
    if facts.schema_rows:
        lines += table(["Column", "Kind", "Range or categories", "Encoding"], facts.schema_rows)
    return lines


def _plan(facts: RunFacts) -> list[str]:
    if not facts.plan_rows:
        return []
    return ["## The plan", "", "Fixed before a record was read.", "", *table(["Setting", "Value"], facts.plan_rows)]


def _commands(facts: RunFacts) -> list[str]:
    lines = ["## Reproduce and verify", ""]
    if facts.reproduce:
        language = "python" if facts.reproduce.startswith("from ") else "bash"
        lines += ["The same run again, with fresh noise:", "", *fence(facts.reproduce, language)]
    else:
        lines += ["The run was started from Python; its settings stand in `config.yaml`.", ""]
    lines += ["Check the ledger and ε, and build this report again (RUN is the folder that holds `release/`):", ""]
    return lines + fence("python -m dpml.verify RUN\npython -m dpml.report RUN", "bash")


def _ledger(facts: RunFacts) -> list[str]:
    lines = ["## Ledger", "", f"{escape(formats.words(facts.count))} lines; head hash `{_code(facts.head)}`.", ""]
    lines += bullets([("holds: " if check.ok else "PROBLEM: ") + check.text for check in facts.checks])
    text = "\n".join(f"{number}: {line}" if number else line for number, line in facts.excerpt)
    return lines + (fence(text) if text else [])


def _code(value: str) -> str:
    return value.replace("`", "'").replace("\n", " ")
