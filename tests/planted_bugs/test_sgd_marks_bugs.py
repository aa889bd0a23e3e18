"""The look on made-up records without one of its parts: the named check fails, and passes when whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sgd"))

import mark_checks as checks

from dpml.sgd import made_up


def caught(check):
    with pytest.raises(AssertionError):
        check()


def test_no_marks_among_the_made_up_labels(monkeypatch):
    checks.marked_labels_are_not_mixed()
    monkeypatch.setattr(made_up, "MARKS", ())
    caught(checks.marked_labels_are_not_mixed)


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
