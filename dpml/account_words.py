"""Answers of ``python -m dpml.account`` in words: text rounds ε up, JSON has every digit."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpml import accounting as acc
from dpml.account_arguments import judge_of, relation_of
from dpml.accounting import api
from dpml.report.formats import relation_words, upper

_INDENT = 12


@dataclass(frozen=True)
class Answer:
    """What a verb found: ``data`` for ``--json``, ``lines`` for a person."""

    data: dict[str, Any]
    lines: tuple[str, ...]


def describe(event: acc.Event) -> str:
    """An event in words, ``1,000 × [gaussian (noise multiplier 1), Poisson-sampled at 0.01]`` say."""
    if isinstance(event, acc.SelfComposed):
        return f"{event.count:,} × [{describe(event.event)}]"
    if isinstance(event, acc.PoissonSampled):
        return f"{describe(event.event)}, Poisson-sampled at {event.sampling_probability:.9g}"
    if isinstance(event, acc.Composed):
        shown = [describe(part) for part in event.events[:3]]
        rest = len(event.events) - 3
        return " + ".join([*shown, f"{rest} more"] if rest > 0 else shown) or "nothing"
    values = {key: value for key, value in event.to_json().items() if key not in ("type", "event")}
    parts = [
        f"{key.replace('_', ' ')} {value:.9g}" if isinstance(value, float) else f"{key.replace('_', ' ')} {value}"
        for key, value in values.items()
    ]
    inner = getattr(event, "event", None)
    name = event.type.replace("_", " ") + ("" if inner is None else f" of [{describe(inner)}]")
    return f"{name} ({', '.join(parts)})" if parts else name


# ------------------------------------------------------------------------------------------------------ in words


def lower(value: float, digits: int = 6) -> str:
    """A lower bound with ``digits`` significant digits, rounded down."""
    return upper(-value, digits).lstrip("-−")


def row_of(name: str, text: str) -> str:
    return f"  {name:<{_INDENT}}{text}"


def common_rows(options: argparse.Namespace, event: acc.Event, name: str = "event") -> tuple[str, str]:
    relation = relation_of(options)
    return row_of("relation", f"{relation_words(relation)} ({relation})"), row_of(name, describe(event))


def between(low: float, high: float) -> str:
    unknown = ": no lower end is known" if low == 0 < high else ""
    return f"[{lower(low, 9)}, {upper(high, 9)}]{unknown}"


def epsilon_lines(data: Mapping[str, Any], event: acc.Event) -> tuple[str, ...]:
    value, used, asked = data["epsilon"], data["accountant_used"], data["accountant"]
    ends = data["interval"]
    times = f"e^ε ≤ {upper(math.exp(value), 3)}" if value < 700 else "no useful bound"
    head = f"ε ≤ {upper(value, 6)} at δ = {upper(data['delta'], 6)}: an upper bound, in natural-log units"
    if math.isinf(value):
        head = f"no finite ε holds, or none is proved, at δ = {upper(data['delta'], 6)}"
    return (
        head,
        row_of("certified", f"the smallest ε of this event lies in {between(ends['low'], ends['high'])}"),
        row_of("accountant", used if used == asked else f"{used} (the smallest of all, by {asked})"),
        row_of("relation", f"{relation_words(data['neighboring_relation'])} ({data['neighboring_relation']})"),
        row_of("event", describe(event)),
        row_of("meaning", f"P[S] ≤ e^ε·P'[S] + δ for every set S of outcomes of neighbouring data sets; {times}"),
    )


def certified(event: acc.Event, delta: float, relation: str) -> dict[str, Any]:
    found = api.interval(event, delta, neighboring_relation=relation)
    return {"low": found.low, "high": found.high, "accountant": found.accountant}


def epsilon_and_interval(event: acc.Event, options: argparse.Namespace) -> dict[str, Any]:
    judge = judge_of(options)
    ends = None
    if options.accountant == "best":
        ends = certified(event, options.delta, judge["neighboring_relation"])
        value, used = ends["high"], ends["accountant"]
    else:
        value, used = acc.epsilon(event, options.delta, **judge), options.accountant
        ends = certified(event, options.delta, judge["neighboring_relation"])
    return {"epsilon": value, "delta": options.delta, **judge, "accountant_used": used, "interval": ends}
