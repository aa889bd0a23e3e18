"""Planted bugs in the reading of private cells, in what results show, and in plans: a named check must notice each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
sys.path.insert(0, str(Path(__file__).parents[1] / "erm"))

import cell_checks as checks
import range_checks
import test_read_alike as alike
from private_checks import RESULTS, check_nothing_private_leaves_with_a_copy, check_nothing_private_shows

from dpml import results
from dpml.data import arrays, cells, columns, encoder, table, transform
from dpml.erm import linear, output, rules
from dpml.estimators import base, schema_encoder

Patch = pytest.MonkeyPatch


def _labels_by_common_type(patch: Patch) -> None:
    patch.setattr(base, "labels_of", lambda y: np.asarray(y))


def _labels_by_common_type_in_from_arrays(patch: Patch) -> None:
    patch.setattr(arrays, "labels_of", lambda y: np.asarray(y))


def _large_numbers_as_floats(patch: Patch) -> None:
    patch.setattr(base, "labels_of", lambda y: pd.Series(list(y)).to_numpy())


def _cells_by_common_type(patch: Patch) -> None:
    for module in (transform, arrays):
        patch.setattr(module, "objects_of", lambda X: np.asarray(X))


def _rows_by_common_type(patch: Patch) -> None:
    patch.setattr(schema_encoder, "objects_of", lambda X: np.asarray(X))


def _unreadable_cells_raise(patch: Patch) -> None:
    patch.setattr(transform, "numbers_of", lambda found: found.astype(np.float64))


def _unreadable_cells_are_zero(patch: Patch) -> None:
    real = cells.numbers_of
    patch.setattr(transform, "numbers_of", lambda found: np.nan_to_num(real(found)))


def _targets_raise(patch: Patch) -> None:
    patch.setattr(arrays, "cell_number", float)


def _truth_values_have_their_own_text(patch: Patch) -> None:
    patch.setattr(columns, "TRUTH", {})


def _truth_texts_are_no_numbers(patch: Patch) -> None:
    patch.setattr(cells, "TRUTH", {})


def _categories_by_text_alone(patch: Patch) -> None:
    for module in (encoder, arrays):
        patch.setattr(module, "known_cells", lambda values: {columns.text_of(v): i for i, v in enumerate(values)})


def _missing_by_comparison(patch: Patch) -> None:
    patch.setattr(encoder, "is_missing", lambda cell: bool(cell != cell))


def _file_as_floats(patch: Patch) -> None:
    real = table.RawTable

    def floats(frame: Any, malformed: int, first: int | None = None) -> Any:
        whole = [name for name in frame if frame[name].dtype == object and isinstance(frame[name].iloc[0], int)]
        return real(frame.astype(dict.fromkeys(whole, float)), malformed, first)

    patch.setattr(table, "RawTable", floats)


def _copies_keep_everything(patch: Patch) -> None:
    patch.setattr(results.CustodianOnly, "__reduce__", lambda self: (results.CustodianOnly, (self._values,)))


def _repr_shows_everything(patch: Patch) -> None:
    patch.setattr(results.CustodianOnly, "__repr__", lambda self: repr(self._values))
    for kind in RESULTS:
        patch.setattr(kind, "__repr__", lambda self: str(vars(self)))


def _no_check_of_scales(patch: Patch) -> None:
    patch.setattr(output, "check_scales", lambda *_, **__: None)


def _no_check_of_scales_in_adassp(patch: Patch) -> None:
    patch.setattr(linear, "check_scales", lambda *_, **__: None)


def _any_norm_bound(patch: Patch) -> None:
    patch.setattr(rules, "check_norm_bound", lambda *_: None)


BUGS: list[tuple[str, Callable[[Patch], None], Callable[[Path], None]]] = [
    ("labels of a list get one type", _labels_by_common_type,
     lambda _: checks.check_a_label_changes_no_other("a float beside large whole numbers")),
    ("labels of a list get one type in from_arrays", _labels_by_common_type_in_from_arrays,
     lambda _: checks.check_a_label_changes_no_other("a float beside large whole numbers")),
    ("whole labels become floats beside None", _large_numbers_as_floats,
     lambda _: checks.check_a_label_changes_no_other("nothing")),
    ("cells of a list get one type", _cells_by_common_type,
     lambda _: checks.check_a_cell_changes_no_other_row("lists", "text")),
    ("a cell of text is an error", _unreadable_cells_raise,
     lambda _: checks.check_a_cell_changes_no_other_row("objects", "text")),
    ("a huge cell is an error", _unreadable_cells_raise,
     lambda _: checks.check_a_cell_changes_no_other_row("objects", "huge")),
    ("an unreadable cell counts as zero", _unreadable_cells_are_zero,
     lambda _: checks.check_a_cell_changes_no_other_row("frame", "none")),
    ("a target of text is an error", _targets_raise, lambda _: checks.check_a_target_changes_no_other("text")),
    ("a target that is huge is an error", _targets_raise, lambda _: checks.check_a_target_changes_no_other("huge")),
    ("rows of a list get one type in the encoder", _rows_by_common_type,
     lambda _: checks.check_a_row_changes_no_other_in_the_encoder("large", "q")),
    ("pandas' NA has no truth value", _missing_by_comparison,
     lambda _: checks.check_a_row_changes_no_other_in_the_encoder("texts", pd.NA)),
    ("an empty cell of a file turns whole numbers into floats", _file_as_floats,
     checks.check_an_empty_cell_of_a_file_changes_no_other),
    ("true is another category than True", _truth_values_have_their_own_text,
     lambda _: alike.test_one_cell_changes_no_other_as_a_category("small")),
    ("true is another label than True", _truth_values_have_their_own_text,
     lambda _: alike.test_one_cell_changes_no_other_as_a_label("small")),
    ("True in a column of texts is no number", _truth_texts_are_no_numbers,
     lambda _: alike.test_one_cell_changes_no_other_as_a_number("truth")),
    ("01234 is another category than 1234", _categories_by_text_alone,
     lambda _: alike.test_one_cell_changes_no_other_as_a_category("codes")),
    ("1.0 is another label than 1", _categories_by_text_alone,
     lambda _: alike.test_one_cell_changes_no_other_as_a_label("float")),
    ("copies of a result keep what is private", _copies_keep_everything,
     lambda _: check_nothing_private_leaves_with_a_copy()),
    ("a result shows what is private", _repr_shows_everything, lambda _: check_nothing_private_shows()),
    ("a plan without noise is accepted", _no_check_of_scales,
     lambda _: range_checks.check_no_plan_without_noise("output")),
    ("a plan with infinite noise is accepted", _no_check_of_scales_in_adassp,
     lambda _: range_checks.check_no_plan_without_noise("adassp")),
    ("norm_bound has no range", _any_norm_bound, lambda _: range_checks.check_norm_bounds_are_one_range()),
]  # fmt: skip


@pytest.mark.parametrize(("bug", "plant", "check"), BUGS, ids=[bug[0] for bug in BUGS])
def test_planted_bug_is_caught(
    bug: str, plant: Callable[[Patch], None], check: Callable[[Path], None], monkeypatch: Patch, tmp_path: Path
) -> None:
    check(tmp_path)
    for name in ("one.parquet", "two.parquet"):
        (tmp_path / name).unlink(missing_ok=True)
    plant(monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception)):  # a bug may show as any error
        check(tmp_path)
