"""Each line of the reading of drawn records that the guarantee rests on, broken on purpose: the named check fails."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sgd"))

import batch_checks as checks

from dpml.data import arrays, stored


def caught(check, *arguments):
    with pytest.raises(AssertionError):
        check(*arguments)


def test_unknown_labels_that_are_used(monkeypatch, tmp_path):
    checks.unusable_records_contribute_nothing(tmp_path)
    whole = arrays._stored_targets

    def all_known(y, public):
        codes, known, counts = whole(y, public)
        return np.abs(codes), np.ones_like(known), counts

    monkeypatch.setattr(arrays, "_stored_targets", all_known)
    caught(checks.unusable_records_contribute_nothing, tmp_path)


def test_rows_that_are_not_finite_and_used(monkeypatch, tmp_path):
    whole = stored.StoredArray.__init__

    def careless(self, X, targets, known, row_shape, encode):
        whole(self, X, targets, known, row_shape, lambda rows: (encode(rows)[0], np.ones(len(rows), dtype=bool)))

    monkeypatch.setattr(stored.StoredArray, "__init__", careless)
    caught(checks.unusable_records_contribute_nothing, tmp_path)


def test_unusable_records_that_are_not_counted(monkeypatch, tmp_path):
    """Sampling of a fixed size would draw the others more often."""
    monkeypatch.setattr(stored.StoredArray, "__len__", lambda self: int(self.known.sum()))
    caught(checks.unusable_records_contribute_nothing, tmp_path)


def test_a_faulty_record_that_takes_its_batch_along(monkeypatch, tmp_path):
    whole = stored.StoredArray.take

    def all_or_nothing(self, index):
        rows, targets, left_out = whole(self, index)
        return (rows[:0], targets[:0], len(index)) if left_out else (rows, targets, 0)

    monkeypatch.setattr(stored.StoredArray, "take", all_or_nothing)
    caught(checks.unusable_records_contribute_nothing, tmp_path)


def test_rows_that_are_not_clipped(monkeypatch, tmp_path):
    checks.rows_are_within_the_bound(tmp_path)
    whole = arrays.transform_array
    monkeypatch.setattr(
        arrays, "transform_array", lambda X, preprocessing: whole(X, {**preprocessing, "norm_bound": None})
    )
    caught(checks.rows_are_within_the_bound, tmp_path)


@pytest.mark.parametrize("fault", ["first piece only", "last piece left out", "no labels"])
def test_a_fingerprint_that_leaves_something_out(monkeypatch, tmp_path, fault):
    monkeypatch.setattr(stored, "PIECE_BYTES", 5_000)
    checks.every_value_is_in_the_fingerprint(tmp_path)
    whole = stored.StoredArray.blocks

    def some(self):
        blocks = list(whole(self))
        yield from {"first piece only": blocks[:2] + blocks[-2:], "no labels": blocks[:-2]}.get(
            fault, blocks[:-3] + blocks[-2:]
        )

    monkeypatch.setattr(stored.StoredArray, "blocks", some)
    caught(checks.every_value_is_in_the_fingerprint, tmp_path)
