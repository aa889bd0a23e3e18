"""The verbs ``tradeoff``, ``compose`` and ``compare`` of ``python -m dpml.account``."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpml import accounting as acc
from dpml.account_arguments import event_of, judge_of, load, relation_of
from dpml.account_peers import Row, ask_peers
from dpml.account_words import Answer, between, common_rows, describe, epsilon_and_interval, epsilon_lines, row_of
from dpml.accounting import api, tradeoffs
from dpml.accounting.events import check_count
from dpml.errors import ConfigError, UnsupportedEventError, invalid
from dpml.report.formats import general, relation_words, upper
from dpml.results import to_jsonable, write_atomic

_LONGEST_NOTE = 84  # of a line of the comparison


def tradeoff_verb(options: argparse.Namespace) -> Answer:
    event, relation = event_of(options), relation_of(options)
    for path in options.output:
        if path.suffix.lower() not in (".png", ".csv"):
            raise invalid("--output", str(path), "a file that ends in .png or .csv")
    metrics = tradeoffs.attack_metrics(
        event,
        prior=options.prior,
        false_positive_rates=options.rates,
        delta=options.delta,
        neighboring_relation=relation,
    )
    type1 = _type1_errors(options.points)
    type2 = tradeoffs.tradeoff(event, type1, neighboring_relation=relation)
    for path in options.output:
        try:
            _write_curve(path, type1, type2, event, options)
        except OSError as error:
            raise ConfigError(f"cannot write {str(path)!r}: {error.strerror or error}.") from None
    data = {
        "advantage": metrics.advantage,
        "tpr_at_fpr": {repr(rate): tpr for rate, tpr in metrics.tpr_at_fpr.items()},
        "accuracy": metrics.accuracy,
        "prior": metrics.prior,
        "posterior": metrics.posterior,
        "posterior_of_output": metrics.posterior_of_output,
        "delta": metrics.delta,
        "neighboring_relation": relation,
        "curve": {"type1_errors": to_jsonable(type1), "type2_errors": to_jsonable(type2)},
        "files": [str(path) for path in options.output],
        "event": event.to_json(),
    }
    lines = [
        f"advantage ≤ {upper(metrics.advantage, 5)}: no attacker's true- minus false-positive rate is larger",
        *(
            row_of("attack", f"true-positive rate ≤ {upper(tpr, 5)} at a false-positive rate of {general(rate)}")
            for rate, tpr in metrics.tpr_at_fpr.items()
        ),
        row_of("accuracy", f"≤ {upper(metrics.accuracy, 5)} at a prior belief of {general(metrics.prior)}"),
        row_of(
            "posterior",
            f"belief in membership ≤ {upper(metrics.posterior, 5)} except with probability {general(metrics.delta)}",
        ),
        row_of("", f"given the output itself ≤ {upper(metrics.posterior_of_output, 5)} except with that probability"),
        *common_rows(options, event),
        *(row_of("written", str(path)) for path in options.output),
    ]
    return Answer(data, tuple(lines))


def _type1_errors(points: int) -> Any:
    """Rates from 0 to 1: half of them evenly, half of them on a logarithmic scale from 1e-6."""
    import numpy as np

    number = check_count("--points", points, 3)
    if number > 10_000:
        raise invalid("--points", number, "at most 10000")
    half = number // 2
    return np.unique(np.concatenate([np.linspace(0, 1, number - half), np.logspace(-6, 0, half + 2)[1:-1]]))


def _write_curve(path: Path, type1: Any, type2: Any, event: acc.Event, options: argparse.Namespace) -> None:
    if path.suffix.lower() == ".csv":
        rows = [f"{float(a)!r},{float(b)!r},{float(1 - b)!r}\n" for a, b in zip(type1, type2, strict=True)]
        write_atomic(path, "type1_error,type2_error,true_positive_rate\n" + "".join(rows))
        return
    import numpy as np

    from dpml.report import privacy_plots

    name = describe(event)
    if options.picture == "tradeoff":
        privacy_plots.plot_tradeoff({name: (type1, type2)}, path)
    elif options.picture == "attack":
        privacy_plots.plot_attack({name: (type1[type1 > 0], 1 - type2[type1 > 0])}, path)
    else:
        high = acc.epsilon(event, max(options.delta, 1e-9), neighboring_relation=relation_of(options))
        points = np.linspace(0, min(high, 100.0) or 1.0, 41)
        deltas = tradeoffs.profile(event, points, neighboring_relation=relation_of(options))
        privacy_plots.plot_profile({name: (points, deltas)}, path)


def compose_verb(options: argparse.Namespace) -> Answer:
    parts = [part for text in options.FILE for part in _parts(text)]
    relations = {part.relation for part in parts if part.relation is not None}
    if options.neighboring_relation is None and len(relations) == 1:
        options.neighboring_relation = relations.pop()
    for part in parts:
        if part.relation not in (None, relation_of(options)):
            raise ConfigError(
                f"{part.source} was charged under {part.relation!r}, which cannot be added up under "
                f"{relation_of(options)!r}: compose ledgers of one relation, and leave --relation out or give that one."
            )
    event = acc.Composed(tuple(part.event for part in parts))
    data = epsilon_and_interval(event, options)
    rows = []
    for part in parts:
        try:
            alone: float | None = acc.epsilon(part.event, options.delta, **judge_of(options))
        except UnsupportedEventError:
            alone = None
        rows.append({"source": part.source, "epsilon": alone, "event": part.event.to_json()})
    sources = max((len(part.source) for part in parts), default=0)
    table = [
        f"  {part.source:<{sources}}  ε ≤ {upper(row['epsilon'], 6):<10} {describe(part.event)}"
        for part, row in zip(parts, rows, strict=True)
    ]
    head, *rest = epsilon_lines(data, event)
    rest = [line for line in rest if not line.startswith("  event")]
    listed = [f"parts, each alone at δ = {upper(options.delta, 6)}:", *table]
    return Answer({**data, "parts": rows}, (f"together: {head}", *rest, *listed))


@dataclass(frozen=True)
class _Part:
    source: str
    event: acc.Event
    relation: str | None = None


def _parts(text: str) -> list[_Part]:
    """The events of inline JSON, of a file with one event or a list of them, of a ledger, or of a run folder."""
    path = Path(text.removeprefix("@"))
    inline = text.lstrip().startswith(("{", "["))
    if not inline and path.is_dir():
        found = [file for file in (path / "ledger.jsonl", path / "release" / "ledger.jsonl") if file.is_file()]
        if not found:
            raise ConfigError(f"the folder {str(path)!r} holds no ledger.jsonl. Give a run folder or a file.")
        path = found[0]
    if not inline and path.suffix == ".jsonl":
        record = acc.read_ledger(path)
        promise = record.plan.get("guarantee")
        relation = (promise if isinstance(promise, dict) else record.plan).get("neighboring_relation")
        total = record.event
        events = total.events if isinstance(total, acc.Composed) else (total,)
        return [_Part(str(path), event, relation) for event in events]
    name, data = load(str(path) if not inline else text)
    if isinstance(data, list):
        return [_Part(f"{name}[{place}]", acc.from_json(part)) for place, part in enumerate(data)]
    return [_Part("inline" if inline else name, acc.from_json(data))]


# ------------------------------------------------------------------------------------------------------- compare


def compare_verb(options: argparse.Namespace) -> Answer:
    event, relation, delta = event_of(options), relation_of(options), options.delta
    ends = api.interval(event, delta, neighboring_relation=relation)
    rows = [_timed(name, "accountant", _own(event, delta, name, relation)) for name in acc.ACCOUNTANTS]
    rows.append(_timed("gaussian limit", "approximation", _limit(event, delta, relation)))
    if options.peers:
        rows += ask_peers(event, delta, relation, options.timeout)
    rows = [_judged(row, ends.low) for row in rows]
    data = {
        "delta": delta,
        "neighboring_relation": relation,
        "smallest_sound": ends.accountant,
        "interval": {"low": ends.low, "high": ends.high},
        "epsilon": {row.name: row.note if row.epsilon is None else row.epsilon for row in rows},
        "rows": [{**to_jsonable(row), "ratio": _ratio(row.epsilon, ends.low)} for row in rows],
        "event": event.to_json(),
    }
    lines = [
        f"ε at δ = {upper(delta, 6)}, {relation_words(relation)} ({relation}); {describe(event)}",
        f"  {'accountant':<20}{'ε':<12}{'÷ certified low':<17}{'seconds':<9} remarks",
    ]
    for row in rows:
        value = "–" if row.epsilon is None else upper(row.epsilon, 6)
        ratio = _ratio(row.epsilon, ends.low)
        shown = "–" if ratio is None else "∞" if math.isinf(ratio) else f"{ratio:.4f}"
        seconds = "–" if row.seconds is None else f"{row.seconds:.3f}"
        lines.append(f"  {row.name:<20}{value:<12}{shown:<17}{seconds:<9} {_short(row.note)}".rstrip())
    if math.isinf(ends.high):
        lines.append("no accountant proves a finite ε")
    else:
        certified = f"the smallest ε of this event lies in {between(ends.low, ends.high)} (certified)"
        lines.append(f"smallest sound: {ends.accountant}, ε ≤ {upper(ends.high, 6)}; {certified}")
    return Answer(data, tuple(lines))


def _short(note: str) -> str:
    """A note for the table; ``--json`` has all of it."""
    return note if len(note) <= _LONGEST_NOTE else f"{note[:_LONGEST_NOTE].rsplit(' ', 1)[0]} …"


def _timed(name: str, kind: str, value: Callable[[], float]) -> Row:
    start = time.perf_counter()
    try:
        found: float | None = value()
        note = ""
    except UnsupportedEventError as error:
        found, note = None, f"refused: {error}"
    except ConfigError as error:  # δ = 0, say
        found, note = None, f"no answer: {error}"
    return Row(name, kind, found, time.perf_counter() - start, note)


def _own(event: acc.Event, delta: float, name: str, relation: str) -> Callable[[], float]:
    return lambda: acc.epsilon(event, delta, accountant=name, neighboring_relation=relation)


def _limit(event: acc.Event, delta: float, relation: str) -> Callable[[], float]:
    from dpml.accounting.gdp import gdp_approximation

    return lambda: gdp_approximation(event, delta, neighboring_relation=relation)


def _judged(row: Row, low: float) -> Row:
    """The row with what its value is worth."""
    notes = [row.note] if row.note else []
    if row.kind == "approximation":
        notes.insert(0, "approximation, not a guarantee")
    if row.name == "basic" and row.epsilon is not None:
        notes.append("adds parts up; releases that one accountant bounds together are one part")
    if row.epsilon is not None and row.epsilon < low:
        notes.append("BELOW the certified low end: this ε does not hold")
    return Row(row.name, row.kind, row.epsilon, row.seconds, "; ".join(notes))


def _ratio(value: float | None, low: float) -> float | None:
    return value / low if value is not None and 0 < low < math.inf else None
