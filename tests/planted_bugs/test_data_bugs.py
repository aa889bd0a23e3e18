"""Faults planted in the data layer, and the check that catches each.

Every test first shows that the check passes on the code as it is, then that it fails with the fault in place.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpml.data import Encoder, PrivateData, Schema, arrays, encoder, table, transform
from dpml.mechanisms import FixedNoise

SCHEMA: dict[str, Any] = {
    "n_declared": 30,
    "target": {"name": "label", "classes": ["no", "yes"]},
    "columns": {
        "age": {"kind": "numeric", "bounds": [0, 100], "knots": 5},
        "town": {"kind": "categorical", "categories": ["a", "b"]},
    },
}


def people(n: int = 20) -> pd.DataFrame:
    ages = (np.arange(n) * 37) % 60 + 20
    return pd.DataFrame({"age": ages, "town": np.where(ages % 2, "a", "b"), "label": np.where(ages > 50, "yes", "no")})


def caught(check: Callable[[], None]) -> bool:
    """Whether the check fails, by an assertion of its own and nothing else."""
    try:
        check()
    except AssertionError:
        return True
    return False


def plant(check: Callable[[], None], bug: Callable[[], None], name: str) -> None:
    assert not caught(check), f"{name}: the check must pass without the fault"
    bug()
    assert caught(check), f"{name}: not caught"


def rows_do_not_depend_on_others() -> None:
    """Encoding of the first records with and without one more record that is older than all."""
    made = Encoder(Schema.from_dict(SCHEMA))
    frame = people()
    more = pd.concat([frame, pd.DataFrame({"age": [100], "town": ["a"], "label": ["yes"]})], ignore_index=True)
    np.testing.assert_array_equal(made.transform(frame)[0], made.transform(more)[0][: len(frame)])


def test_knot_range_fitted_from_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    right = encoder._numeric_part

    def fitted(column: Any, cells: pd.Series, spline: bool) -> Any:
        values = encoder.numbers(cells)
        return right(replace(column, bounds=(float(values.min()), float(values.max()))), cells, spline)

    plant(rows_do_not_depend_on_others, lambda: monkeypatch.setattr(encoder, "_numeric_part", fitted), "fitted knots")


def test_categories_taken_from_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        made = Encoder(Schema.from_dict(SCHEMA))
        frame = people()
        with_b, without_b = frame, frame.assign(town="a")
        assert made.transform(with_b)[0].shape == made.transform(without_b)[0].shape
        np.testing.assert_array_equal(
            made.transform(frame[frame.town == "a"])[0], made.transform(frame)[0][(frame.town == "a").to_numpy()]
        )

    def present(cells: pd.Series, values: tuple[object, ...]) -> np.ndarray:
        return pd.factorize(cells)[0].astype(np.int64)

    plant(check, lambda: monkeypatch.setattr(encoder, "lookup", present), "categories from the data")


def table_rows_are_within_the_bound() -> None:
    X = Encoder(Schema.from_dict(SCHEMA)).transform(people())[0]
    assert np.linalg.norm(X, axis=1).max() <= 1 + 1e-12


def array_rows_are_within_the_bound() -> None:
    data = PrivateData.from_arrays(np.eye(3) * 7, [0, 1, 0], norm_bound=1.0, classes=[0, 1], n_declared=3)
    assert np.linalg.norm(data.load(FixedNoise(0)).X, axis=1).max() <= 1 + 1e-12


def test_row_clip_skipped_in_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        table_rows_are_within_the_bound,
        lambda: monkeypatch.setattr(encoder, "_clip_factor", lambda norms, bound: np.ones_like(norms)),
        "no clip of table rows",
    )


def test_row_clip_skipped_in_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        array_rows_are_within_the_bound,
        lambda: monkeypatch.setattr(transform, "clip_rows", lambda X, bound: X),
        "no clip of array rows",
    )


def test_clip_leaves_out_the_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        data = PrivateData.from_arrays(
            np.eye(3) * 7, [0, 1, 0], norm_bound=1.0, classes=[0, 1], n_declared=3, add_constant=True
        )
        assert np.linalg.norm(data.load(FixedNoise(0)).X, axis=1).max() <= 1 + 1e-12

    right = transform.clip_rows

    def without_constant(X: np.ndarray, bound: float) -> np.ndarray:
        return np.hstack([right(X[:, :-1].copy(), bound), X[:, -1:]])

    plant(check, lambda: monkeypatch.setattr(transform, "clip_rows", without_constant), "constant outside the clip")


def test_records_with_nan_reach_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        X = np.array([[0.1, 0.2], [np.nan, 0.0]])
        data = PrivateData.from_arrays(X, [0, 1], norm_bound=1.0, classes=[0, 1], n_declared=2)
        assert np.isfinite(data.load(FixedNoise(0)).X).all()

    def let_through(X: Any, preprocessing: Any) -> Any:
        return np.array(X, dtype=float), np.ones(len(X), bool)

    plant(check, lambda: monkeypatch.setattr(arrays, "transform_array", let_through), "NaN let through")


class Coins:
    """The same coin for the same position, whatever the number of records."""

    def uniform(self, size: int) -> np.ndarray:
        return np.random.default_rng(5).random(1000)[:size]


def test_split_by_permutation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    people(40).to_csv(tmp_path / "p.csv", index=False)
    people(41).to_csv(tmp_path / "q.csv", index=False)

    def check() -> None:
        """One more record leaves everybody else in their part."""
        one, more = (
            PrivateData.from_table(tmp_path / name, SCHEMA, test_fraction=0.3).load(Coins())
            for name in ("p.csv", "q.csv")
        )
        assert len(more.X) - len(one.X) in (0, 1)
        np.testing.assert_array_equal(one.X, more.X[: len(one.X)])

    def permuted(frame: pd.DataFrame, split_column: Any, fraction: Any, noise: Any) -> Any:
        order = np.random.default_rng(0).permutation(len(frame))
        cut = round(len(frame) * fraction)
        return frame.iloc[np.sort(order[cut:])], frame.iloc[np.sort(order[:cut])]

    plant(check, lambda: monkeypatch.setattr(table, "_split", permuted), "permutation split")


def test_the_actual_n_in_what_is_public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    people(40).to_csv(tmp_path / "p.csv", index=False)
    people(41).to_csv(tmp_path / "q.csv", index=False)

    def check() -> None:
        one, more = (PrivateData.from_table(tmp_path / name, SCHEMA).public for name in ("p.csv", "q.csv"))
        assert one == more

    right = table.table_data

    def leaking(path: Any, schema: Any, *rest: Any, **options: Any) -> PrivateData:
        data = right(path, schema, *rest, **options)
        data.public = replace(data.public, n_declared=len(pd.read_csv(path)))
        return data

    plant(check, lambda: monkeypatch.setattr(table, "table_data", leaking), "actual n in the public part")


def test_column_types_guessed_from_all_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Type inference: an empty cell in one record makes floats of a column of whole numbers, too large for them."""
    large = ["9007199254740993", "9007199254740992"]
    schema = {**SCHEMA, "columns": {**SCHEMA["columns"], "town": {"kind": "categorical", "categories": large}}}
    (tmp_path / "p.csv").write_text(f"age,town,label\n20,{large[0]},no\n30,{large[1]},yes\n", "utf-8")
    (tmp_path / "q.csv").write_text(f"age,town,label\n20,{large[0]},no\n30,{large[1]},yes\n40,,yes\n", "utf-8")

    def check() -> None:
        one, more = (PrivateData.from_table(tmp_path / f"{k}.csv", schema).load(FixedNoise(0)) for k in "pq")
        np.testing.assert_array_equal(one.X, more.X[:2])

    def guessing(path: Path, columns: list[str]) -> Any:
        return table.RawTable(pd.read_csv(path, usecols=columns), 0)

    plant(check, lambda: monkeypatch.setattr(table, "read_raw", guessing), "types guessed from the data")


def test_quoted_cells_that_run_over_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that lets a quote go on after the line's end: one record's cell swallows the records below it."""
    lines = people(30).to_csv(index=False).splitlines()
    (tmp_path / "p.csv").write_text("\n".join(lines) + "\n", "utf-8")
    (tmp_path / "q.csv").write_text("\n".join([lines[0], '5,"u,a', *lines[1:]]) + "\n", "utf-8")

    def check() -> None:
        one, more = (PrivateData.from_table(tmp_path / f"{k}.csv", SCHEMA).load(FixedNoise(0)) for k in "pq")
        assert len(more.X) - len(one.X) in (0, 1)
        np.testing.assert_array_equal(one.X, more.X[len(more.X) - len(one.X) :])

    def over_lines(path: Path, columns: list[str], *, zipped: bool) -> Any:
        with open(path, encoding="utf-8", newline="") as file:
            header, *records = list(csv.reader(file))
        whole = [record for record in records if len(record) == len(header)]
        return pd.DataFrame(whole, columns=header)[columns], len(records) - len(whole), None

    plant(check, lambda: monkeypatch.setattr(table, "read_csv", over_lines), "quotes over lines")
