"""Where a run's budget went: what was charged at each stage, what that costs alone, and why the rest cost nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpml import accounting
from dpml.accounting import LedgerRecord
from dpml.accounting.ledger import total_event
from dpml.errors import DpmlError
from dpml.report import formats
from dpml.report.values import mapping, text, whole

TRAINING = ("train", "training")
NAMES = {
    "bounds": "Bounds of the columns",
    "categories": "Categories",
    "labels": "Label frequencies",
    "center": "Centre of the features",
    "search": "Tuning and training",
    "train": "Training",
    "training": "Training",
    "metrics": "Metrics",
}
MOST_WORDS = 4


@dataclass(frozen=True)
class StageCost:
    """One stage of a run.

    Attributes:
        stage: its name in words.
        charged: whether the ledger has a charge for it.
        releases: noisy releases that it made.
        epsilon: what its charges would cost alone, at the run's δ; ``None`` where that cannot be said,
            ``inf`` without privacy.
        events: what was charged, in words.
        remark: what it gave, or why nothing was charged.
    """

    stage: str
    charged: bool
    releases: int
    epsilon: float | None
    events: tuple[str, ...]
    remark: str


def stage_costs(
    result: Mapping[str, Any], ledger: LedgerRecord | None, *, delta: float, relation: str
) -> tuple[StageCost, ...]:
    """All stages that a run can have, in the order in which they run, and whatever else was charged.

    Args:
        result: the content of ``result.json``.
        ledger: ``None`` where it cannot be read: then there is no table.
        delta, relation: at which the costs alone are given.
    """
    if ledger is None:
        return ()
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for charge in ledger.charges:
        lines.setdefault(text(charge.get("stage")), []).append(charge)
    private = text(result.get("method")) != "nonprivate"
    searched = "search" in lines
    trained = next((name for name in lines if name in TRAINING), None)
    order = ["bounds", "categories", "labels", *(["center"] if "center" in lines else []), "tuning"]
    order += ["search" if searched else trained or "train", "metrics"]
    order += [name for name in lines if name not in order]
    found = []
    for name in order:
        if name in lines:
            found.append(_charged(name, lines[name], result, delta, relation, private))
        elif name == "tuning" and not searched:
            found.append(StageCost("Tuning", False, 0, None, (), TUNING))
        elif name not in ("tuning", "train", "search"):
            found.append(StageCost(NAMES[name], False, 0, None, (), _why_free(name, result, searched)))
    return tuple(found)


TUNING = (
    "Nothing charged. This holds if the settings were chosen without looking at these records; trying several and "
    "keeping the best costs budget that is not counted here."
)


def _why_free(name: str, result: Mapping[str, Any], searched: bool) -> str:
    data, metrics = mapping(result.get("data")), mapping(result.get("metrics"))
    if name == "bounds":
        return "Nothing charged: bounds are declared, from public knowledge."
    if name == "categories":
        return "Nothing charged: categories are declared, from public knowledge."
    if name == "labels":
        named = "the target's bounds are" if mapping(data).get("target_bounds") else "the list of classes is"
        return f"Nothing charged: nothing was counted; {named} declared."
    if metrics and "failed" not in metrics:
        return "Nothing charged: measured on a test set that is declared public."
    return "Nothing charged: nothing was measured on private records" + (" after the search." if searched else ".")


def _charged(
    name: str, lines: Sequence[Mapping[str, Any]], result: Mapping[str, Any], delta: float, relation: str, private: bool
) -> StageCost:
    words: list[str] = []
    for line in lines:
        phrase = describe_event(mapping(line.get("event")))
        if phrase not in words:
            words.append(phrase)
    if len(words) > MOST_WORDS:
        words = [*words[:MOST_WORDS], f"and {len(words) - MOST_WORDS} more"]
    return StageCost(
        stage=NAMES.get(name, name.replace("_", " ")),
        charged=True,
        releases=sum(whole(line.get("count")) or 1 for line in lines),
        epsilon=_alone(lines, delta, relation) if private else math.inf,
        events=tuple(words),
        remark=_outcome(name, result) if private else "Without privacy: the records were used as they are.",
    )


def _alone(lines: Sequence[Mapping[str, Any]], delta: float, relation: str) -> float | None:
    try:
        return accounting.epsilon(total_event([dict(line) for line in lines]), delta, neighboring_relation=relation)
    except (DpmlError, ArithmeticError, ValueError):
        return None


def _outcome(name: str, result: Mapping[str, Any]) -> str:
    """What a charged stage gave, from ``stages`` and ``selection`` of the result."""
    found = mapping(mapping(result.get("stages")).get(name))
    columns = mapping(found.get("columns"))
    if name == "bounds" and columns:
        return "Found: " + "; ".join(f"{key} {_span(mapping(one).get('bounds'))}" for key, one in columns.items()) + "."
    if name == "categories" and columns:
        return "Found: " + "; ".join(f"{key}, {_listed(one)}" for key, one in columns.items()) + "."
    if name == "labels" and found:
        pairs = zip(found.get("classes") or (), found.get("frequencies") or (), strict=False)
        shares = ", ".join(f"{formats.words(label)} {formats.percent(share, 1)}" for label, share in pairs)
        return f"Noisy shares of the classes: {shares or '–'}."
    if name == "metrics" and found:
        return f"About {formats.words(found.get('noisy_records'))} records held out (a noisy count)."
    if name == "center" and found:
        return (
            f"A noisy mean of the rows, {formats.words(found.get('dimension'))} numbers with noise of deviation "
            f"{formats.words(found.get('noise_std'))} each; it is in the model's file."
        )
    if name == "search":
        return _selected(mapping(result.get("selection")))
    if name in ("bounds", "categories", "labels", "metrics"):
        return text(mapping(result.get("stages")).get(name), "Charged; the result holds no outcome.")
    return ""


def _span(bounds: Any) -> str:
    ends = bounds if isinstance(bounds, list) else []
    return " to ".join(formats.words(end) for end in ends) or "–"


def _listed(one: Any) -> str:
    number = whole(mapping(one).get("listed"))
    return f"{number if number is not None else '–'} values"


def _selected(selection: Mapping[str, Any]) -> str:
    if not selection:
        return ""
    if selection.get("failure"):
        return text(selection.get("failure"))
    number, best = formats.words(selection.get("candidates")), formats.words(selection.get("best_params"))
    return f"Best of {number} candidates: {best}. The choice is paid for: it is part of this charge."


def describe_event(event: Mapping[str, Any], depth: int = 0) -> str:
    """An event's JSON as a short phrase, ``Poisson-sampled (q = 0.014) gaussian, noise multiplier 0.9``."""
    kind, inner = event.get("type"), mapping(event.get("event"))
    if depth > 20:
        return "…"
    if kind == "poisson_sampled":
        rate = formats.general(event.get("sampling_probability"), 4)
        return f"Poisson-sampled (q = {rate}) {describe_event(inner, depth + 1)}"
    if kind == "self_composed":
        return f"{formats.words(event.get('count'))} × {describe_event(inner, depth + 1)}"
    if kind == "composed":
        parts = [describe_event(mapping(part), depth + 1) for part in event.get("events") or ()]
        return formats.shortened(" + ".join(parts), 1000)
    if kind == "repeat_and_select":
        mean = formats.general(event.get("mean"), 4)
        return f"best of a random number of runs (mean {mean}), each {describe_event(inner, depth + 1)}"
    if kind == "pure":
        return f"pure ε = {formats.upper(event.get('epsilon'))}"
    if kind == "epsilon_delta":
        return f"(ε = {formats.upper(event.get('epsilon'))}, δ = {formats.upper(event.get('delta'))})"
    rest = ", ".join(
        f"{key.replace('_', ' ')} {formats.words(value)}"
        for key, value in event.items()
        if key not in ("type", "event")
    )
    name = formats.shortened(str(kind).replace("_", " "), 80)
    phrase = f"{name}, {rest}" if rest else name
    return f"{phrase}, {describe_event(inner, depth + 1)}" if inner else phrase
