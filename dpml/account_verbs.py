"""The verbs of ``python -m dpml.account`` that ask about one event; each takes the options and returns an answer."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from dpml import accounting as acc
from dpml.account_arguments import (
    NOISE,
    SCALED,
    event_of,
    judge_of,
    rate_of,
    read_event,
    refuse_with_event,
    relation_of,
    step_of,
    steps_of,
    times,
)
from dpml.account_words import Answer, between, common_rows, epsilon_and_interval, epsilon_lines, lower, row_of
from dpml.accounting import api, calibration, exact, tradeoffs
from dpml.accounting.events import check_count
from dpml.errors import ConfigError, UnsupportedEventError, invalid
from dpml.report.formats import general, upper


def epsilon_verb(options: argparse.Namespace) -> Answer:
    event = event_of(options)
    data = epsilon_and_interval(event, options)
    return Answer({**data, "event": event.to_json()}, epsilon_lines(data, event))


def delta_verb(options: argparse.Namespace) -> Answer:
    event = event_of(options)
    value = acc.delta(event, options.epsilon, **judge_of(options))
    low = 0.0
    with contextlib.suppress(UnsupportedEventError):
        low = min(exact.delta_interval(event, options.epsilon, relation_of(options))[0], value)
    data = {"delta": value, "epsilon": options.epsilon, **judge_of(options), "interval": {"low": low, "high": value}}
    lines = (
        f"δ ≤ {upper(value, 6)} at ε = {upper(options.epsilon, 6)}: an upper bound",
        row_of("certified", f"the smallest δ of this event lies in {between(low, value)}"),
        row_of("accountant", options.accountant),
        *common_rows(options, event),
    )
    return Answer({**data, "event": event.to_json()}, lines)


def interval_verb(options: argparse.Namespace) -> Answer:
    event = event_of(options)
    found = api.interval(event, options.delta, neighboring_relation=relation_of(options))
    data = {
        "low": found.low,
        "high": found.high,
        "width": found.width,
        "accountant": found.accountant,
        "delta": options.delta,
        "neighboring_relation": relation_of(options),
        "event": event.to_json(),
    }
    lines = (
        f"the smallest ε at δ = {upper(options.delta, 6)} lies in {between(found.low, found.high)}",
        row_of("upper end", f"proved by {found.accountant}"),
        *common_rows(options, event),
    )
    return Answer(data, lines)


def noise_verb(options: argparse.Namespace) -> Answer:
    make = _scaled(options) if options.event is not None else _with_noise(options)
    target = {key: getattr(options, key) for key in ("epsilon", "delta", "advantage", "tpr", "fpr")}
    target = {key: value for key, value in target.items() if value is not None}
    value = acc.calibrate(make, **target, **judge_of(options))
    event = make(value)
    name = "noise_factor" if options.event is not None else "noise_multiplier"
    data: dict[str, Any] = {name: value, "target": target, **judge_of(options)}
    words = "every noise of the event times" if options.event is not None else "noise multiplier"
    lines = [f"{words} {upper(value, 8)}: the smallest (to 1e-4) that meets the target, rounded up"]
    if options.epsilon is not None:
        data["epsilon"], data["delta"] = acc.epsilon(event, options.delta, **judge_of(options)), options.delta
        lines.append(row_of("reached", f"ε ≤ {upper(data['epsilon'], 6)} at δ = {upper(options.delta, 6)}"))
    else:
        fpr = 0.01 if options.fpr is None else options.fpr
        metrics = tradeoffs.attack_metrics(event, false_positive_rates=[fpr], neighboring_relation=relation_of(options))
        data["advantage"] = metrics.advantage
        data["tpr_at_fpr"] = {repr(rate): tpr for rate, tpr in metrics.tpr_at_fpr.items()}
        lines.append(
            row_of("reached", f"advantage ≤ {upper(metrics.advantage, 6)}; true-positive rate ≤ ")
            + f"{upper(metrics.tpr_at_fpr[fpr], 6)} at a false-positive rate of {general(fpr)}"
        )
    if options.event is None:
        data["steps"] = 1 if steps_of(options) is None else steps_of(options)
    return Answer({**data, "event": event.to_json()}, (*lines, *common_rows(options, event)))


def _with_noise(options: argparse.Namespace) -> Callable[[float], acc.Event]:
    name = options.mechanism or "gaussian"
    if name not in NOISE:
        raise invalid("--mechanism", name, f"one of {list(NOISE)}", "The others have no noise multiplier.")
    steps = steps_of(options)
    return lambda noise: times(step_of(options, noise), steps)


def _scaled(options: argparse.Namespace) -> Callable[[float], acc.Event]:
    """The event of ``--event`` with all its noise multiplied, as a function of the factor."""
    refuse_with_event(options)
    data, steps = read_event(options.event).to_json(), steps_of(options)
    if _with_factor(data, 2.0) == data:
        raise ConfigError(f"--event has no noise to calibrate: no {' or '.join(SCALED)} above 0 occurs in it.")
    return lambda factor: times(acc.from_json(_with_factor(data, factor)), steps)


def _with_factor(data: Any, factor: float) -> Any:
    if isinstance(data, list):
        return [_with_factor(part, factor) for part in data]
    if not isinstance(data, dict) or data.get("type") == "unequal_gaussian":
        return data
    return {key: value * factor if key in SCALED else _with_factor(value, factor) for key, value in data.items()}


def steps_verb(options: argparse.Namespace) -> Answer:
    step = step_of(options, options.noise_multiplier)
    value = acc.calibrate_steps(
        lambda count: acc.SelfComposed(step, count),
        epsilon=options.epsilon,
        delta=options.delta,
        limit=options.limit,
        **judge_of(options),
    )
    return _steps_answer(options, step, value, None if options.event else rate_of(options))


def epochs_verb(options: argparse.Namespace) -> Answer:
    step, rate = step_of(options, options.noise_multiplier), rate_of(options)
    if options.event is not None:
        raise ConfigError("--event is not allowed for epochs: it has no sampling rate to count by. Use the verb steps.")
    if rate is None or rate == 0:
        raise ConfigError("epochs needs --sample-rate Q (or --batch-size and --records), Q > 0: epochs = steps·Q.")
    found = calibration.calibrate_epochs(
        lambda count: acc.SelfComposed(step, count),
        float(rate),
        epsilon=options.epsilon,
        delta=options.delta,
        limit=options.limit,
        **judge_of(options),
    )
    return _steps_answer(options, step, found.steps, rate)


def _steps_answer(options: argparse.Namespace, step: acc.Event, steps: int, rate: Fraction | None) -> Answer:
    judge = judge_of(options)
    reached = acc.epsilon(acc.SelfComposed(step, steps), options.delta, **judge)
    epochs = None if rate is None else float(steps * rate)
    data = {"steps": steps, "epochs": epochs, "epsilon": reached, "delta": options.delta, **judge}
    passes = "" if epochs is None else f" = {general(epochs)} epochs"
    lines = [f"{steps:,} steps{passes}: the most that fit in ε = {general(options.epsilon)}, rounded down"]
    if steps == options.limit:
        lines[0] = f"{steps:,} steps{passes}: all that were tried fit; raise --limit to try more"
    if steps == 0:
        single = acc.epsilon(step, options.delta, **judge)
        proved = "no finite ε" if math.isinf(single) else f"no ε below {upper(single, 6)}"
        lines.append(row_of("reason", f"for a single step {proved} is proved at δ = {upper(options.delta, 6)}"))
        lines.append(row_of("reached", "ε = 0: no step, nothing is released"))
    else:
        lines.append(row_of("reached", f"ε ≤ {upper(reached, 6)} at δ = {upper(options.delta, 6)}"))
    lines += [
        *common_rows(options, step, "one step"),
    ]
    return Answer({**data, "event": acc.SelfComposed(step, steps).to_json()}, tuple(lines))


def rate_verb(options: argparse.Namespace) -> Answer:
    if options.event is not None:
        raise ConfigError("--event is not allowed for rate: give the mechanism by options; its rate is what is sought.")
    steps = steps_of(options)

    def make(rate: float) -> acc.Event:
        return times(step_of(options, options.noise_multiplier, rate), steps)

    value = calibration.calibrate_sample_rate(make, epsilon=options.epsilon, delta=options.delta, **judge_of(options))
    event = make(value)
    reached = acc.epsilon(event, options.delta, **judge_of(options))
    batch = None if options.records is None else math.floor(value * check_count("--records", options.records, 1))
    data = {"sample_rate": value, "batch_size": batch, "epsilon": reached, "delta": options.delta, **judge_of(options)}
    size = "" if batch is None else f", batches of {batch:,} in expectation"
    lines = (
        f"sampling rate {lower(value, 8)}{size}: the largest (to 1e-4) within ε = {general(options.epsilon)}, "
        "rounded down",
        row_of("reached", f"ε ≤ {upper(reached, 6)} at δ = {general(options.delta)}"),
        *common_rows(options, event),
    )
    return Answer({**data, "event": event.to_json()}, lines)


def group_verb(options: argparse.Namespace) -> Answer:
    event, judge = event_of(options), judge_of(options)
    if (options.size is None) == (options.epsilon is None):
        raise ConfigError("group needs exactly one of --size K (gives ε for K records) and --epsilon ε (gives K).")
    size = options.size
    if size is None:
        size = calibration.calibrate_group_size(event, epsilon=options.epsilon, delta=options.delta, **judge)
        reached = calibration.epsilon_of_group(event, size, options.delta, **judge) if size else 0.0
        head = f"groups of {size:,} records: the largest within ε = {general(options.epsilon)}, rounded down"
        if size == calibration.LARGEST_GROUP:
            within = f"within ε = {general(options.epsilon)}"
            head = f"groups of {size:,} records and more are {within}: no larger ones were tried"
        if not size:
            head = f"not even one record is protected at ε = {general(options.epsilon)}"
    else:
        reached = calibration.epsilon_of_group(event, check_count("--size", size, 1), options.delta, **judge)
        head = f"ε ≤ {upper(reached, 6)} at δ = {general(options.delta)} for groups of {size:,} records: an upper bound"
    lines = (
        head,
        *([] if options.size else [row_of("reached", f"ε ≤ {upper(reached, 6)} at δ = {general(options.delta)}")]),
        *common_rows(options, event),
    )
    data = {"size": size, "epsilon": reached, "delta": options.delta, **judge, "event": event.to_json()}
    return Answer(data, lines)
