"""The look on made-up records without one of its parts: the named check fails, and passes when whole."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
from torch.utils._pytree import tree_map

sys.path.insert(0, str(Path(__file__).parents[1] / "sgd"))

import mark_checks as checks

from dpml.sgd import clipping, made_up, watching


def caught(check):
    with pytest.raises(AssertionError):
        check()


def test_no_marks_among_the_made_up_labels(monkeypatch):
    check = partial(checks.marked_labels_are_not_mixed, -1, checks.hidden_mean)
    check()
    monkeypatch.setattr(made_up, "MARKS", ())
    caught(check)


@pytest.mark.parametrize(
    "check",
    [
        partial(checks.marked_labels_are_not_mixed, -999),
        partial(checks.padded_positions_are_not_mixed, 50),
        partial(checks.missing_numbers_are_not_mixed, lambda x: x != -999.0, -999.0),
    ],
)
def test_numbers_that_records_are_compared_with_are_not_tried(monkeypatch, check):
    check()
    monkeypatch.setattr(watching, "_compared_with", lambda *_: [])
    caught(check)


def test_neighbours_of_a_limit_are_not_tried(monkeypatch):
    check = partial(checks.missing_numbers_are_not_mixed, lambda x: ~((x < 500) & (x > 498)), 499.5)
    check()
    monkeypatch.setattr(watching, "_ORDERS", ())
    caught(check)


def test_parts_of_a_batch_are_views(monkeypatch):
    checks.parts_of_a_batch_see_no_others()
    monkeypatch.setattr(clipping, "part_of", lambda batch, first, last: tree_map(lambda t: t[first:last], batch))
    caught(checks.parts_of_a_batch_see_no_others)


def test_marks_in_whole_records_only(monkeypatch):
    checks.padded_positions_are_not_mixed()
    whole = made_up._marked
    monkeypatch.setattr(made_up, "_marked", lambda leaf, other, mark: whole(leaf, other, mark)[:1])
    caught(checks.padded_positions_are_not_mixed)


@pytest.mark.parametrize("check", [checks.nothing_is_written_into_records, checks.a_branch_for_one_type_does_not_mix])
def test_no_look_in_the_models_own_type(monkeypatch, check):
    check()
    monkeypatch.setattr(made_up, "_own_type", lambda *_: None)
    caught(check)
