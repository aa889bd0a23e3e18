"""Event JSON with something wrong in it: an event, or a ConfigError; and no accountant crashes on what is an event."""

# ruff: noqa: PT017 (a refusal is one of two outcomes here; its message is looked at where it occurs)
from __future__ import annotations

import json
import math
from typing import Any

import pytest
from fuzz_inputs import STRANGE, as_json, changed, examples, mutilated, nested, search

from dpml import accounting as acc
from dpml.accounting.ledger import strict_json
from dpml.errors import ConfigError, DpmlError

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 2.0}
LEAVES: list[dict[str, Any]] = [
    GAUSSIAN,
    {"type": "no_op"},
    {"type": "non_private"},
    {"type": "laplace", "noise_multiplier": 2.0},
    {"type": "epsilon_delta", "epsilon": 0.5, "delta": 1e-6},
    {"type": "zcdp", "rho": 0.1},
    {"type": "pure", "epsilon": 0.5},
    {"type": "gdp", "mu": 0.5},
    {"type": "unequal_gaussian", "shift": 1.0, "noise_std": 2.0, "other_noise_std": 2.1},
    {"type": "discrete_laplace", "noise_scale": 2.0, "sensitivity": 1},
    {"type": "discrete_gaussian", "noise_std": 2.0, "sensitivity": 1},
    {"type": "randomized_response", "noise_parameter": 0.5, "num_buckets": 3},
    {"type": "exponential", "epsilon": 0.5},
    {"type": "permute_and_flip", "epsilon": 0.5},
    {"type": "report_noisy_max", "epsilon": 0.5, "noise": "gumbel"},
    {"type": "random_row", "records": 1000},
]
DOCUMENTS: list[dict[str, Any]] = [
    *LEAVES,
    {"type": "self_composed", "count": 7, "event": {"type": "poisson_sampled", "sampling_probability": 0.1,
    "event": GAUSSIAN}},
    {"type": "composed", "events": LEAVES[:8]},
    {"type": "sampled_without_replacement", "sample_size": 5, "source_size": 50, "event": GAUSSIAN},
    {"type": "repeat_and_select", "event": GAUSSIAN, "mean": 4.0, "shape": 1.0},
    {"type": "group", "event": GAUSSIAN, "size": 3},
]  # fmt: skip
CHEAP = ("rdp", "zcdp", "basic", "advanced")


def event_or_refusal(document: Any) -> acc.Event | None:
    try:
        return acc.from_json(document)
    except ConfigError as error:
        assert 0 < len(str(error)) < 10_000
        return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d["type"])
def test_the_documents_are_events(document: dict[str, Any]) -> None:
    assert acc.from_json(acc.from_json(document).to_json()) == acc.from_json(document)


@examples(150)
def test_a_changed_event_is_an_event_or_refused(inputs: int) -> None:
    made = 0

    def body(document: Any) -> None:
        nonlocal made
        event = event_or_refusal(document)
        if event is None:
            return
        made += 1
        text = json.dumps(event.to_json(), allow_nan=False)  # what a ledger writes
        assert acc.from_json(strict_json(text)) == event

    search(inputs, body, changed(DOCUMENTS))
    assert made > inputs // 50


@examples(60, 3_000)
def test_every_accountant_answers_or_refuses_by_name(inputs: int) -> None:
    """ε is a number >= 0 or ∞; a refusal is an error of dpml."""

    def body(document: Any) -> None:
        event = event_or_refusal(document)
        if event is None:
            return
        for relation in ("add_remove", "replace_one"):
            for accountant in CHEAP:
                try:
                    epsilon = acc.epsilon(event, 1e-5, accountant=accountant, neighboring_relation=relation)
                except DpmlError:
                    continue
                assert epsilon >= 0
                assert not math.isnan(epsilon)

    search(inputs, body, changed(DOCUMENTS))


@examples(25, 300)
def test_the_best_accountant_answers_or_refuses_and_ends(inputs: int) -> None:
    def body(document: Any) -> None:
        event = event_or_refusal(document)
        if event is None:
            return
        try:
            epsilon = acc.epsilon(event, 1e-5)
        except DpmlError:
            return
        assert epsilon >= 0
        assert not math.isnan(epsilon)

    search(inputs, body, changed(DOCUMENTS))


@examples(150)
def test_event_text_that_was_damaged_is_read_or_refused(inputs: int) -> None:
    def body(raw: bytes) -> None:
        try:
            document = strict_json(raw)
        except (ValueError, RecursionError):  # what callers turn into their own error: strict_json says so
            return
        event_or_refusal(document)

    search(inputs, body, mutilated([as_json(document) for document in DOCUMENTS]))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d["type"])
def test_each_strange_value_in_each_place(document: dict[str, Any]) -> None:
    for key in document:
        for value in STRANGE:
            event_or_refusal({**document, key: value})


@pytest.mark.parametrize("key", ["event", "events"])
def test_events_in_events(key: str) -> None:
    for depth in (10, 49, 60, 500):
        inner: Any = GAUSSIAN
        for _ in range(depth):
            inner = {"type": "self_composed", "count": 1, "event": inner}
            inner = inner if key == "event" else {"type": "composed", "events": [inner]}
        event_or_refusal(inner)
    assert event_or_refusal(nested(900, GAUSSIAN, "event")) is None
