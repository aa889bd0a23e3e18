"""Faults planted in the whitening by public records, and the check that catches each.

Every test first shows that the check passes on the code as it is, then that it fails with the fault in place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from small_tables import people
from whitening_checks import arrays, correlated, with_public

from dpml import PrivateData, PrivateTrainer, load, planning, release
from dpml.data import Encoder, PublicWhitening, encoder, public_whitening, table, transform
from dpml.errors import ConfigError
from dpml.mechanisms import FixedNoise

Patch = pytest.MonkeyPatch


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


# -- checks -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def one_record_changes_no_other(tmp_path: Path) -> Callable[[], None]:
    """The rows of a table with and without its last record, which is unlike the others."""

    def check() -> None:
        frame = people(60)
        odd = pd.DataFrame({"age": [100.0], "money": [9999.0], "town": ["nowhere"], "label": ["yes"]})
        made = with_public(tmp_path, frame=pd.concat([frame, odd]))
        longer = made.load(FixedNoise(0)).X
        shorter = with_public(tmp_path, frame=frame).load(FixedNoise(0)).X
        assert np.array_equal(longer[:60], shorter)

    return check


def a_row_of_an_array_is_whitened_alone() -> None:
    made = PublicWhitening.from_rows(correlated(300, 40, 4))
    rows = correlated(100, 40, 3)
    changed = np.vstack([rows[:50], 37.3 * rows[50:]])
    assert np.array_equal(made.apply(rows)[:50], made.apply(changed)[:50])


@pytest.fixture
def table_rows_are_within_the_bound(tmp_path: Path) -> Callable[[], None]:
    """Public records with hardly a direction, so that the private rows are stretched."""

    def check() -> None:
        data = with_public(tmp_path, people(3, seed=1).drop(columns="label"))
        assert np.linalg.norm(data.load(FixedNoise(0)).X, axis=1).max() <= 1.0

    return check


def array_rows_are_within_the_bound() -> None:
    data = arrays(7.0 * correlated(50, 4), PublicWhitening.from_covariance(np.eye(4)), add_constant=True)
    assert np.linalg.norm(data.load(FixedNoise(0)).X, axis=1).max() <= 1.0


@pytest.fixture
def the_constant_stays_outside(tmp_path: Path) -> Callable[[], None]:
    """Where nothing is clipped, the last column is 1 in every row."""

    def check() -> None:
        assert (with_public(tmp_path, norm_bound=50.0).load(FixedNoise(0)).X[:, -1] == 1.0).all()

    return check


def the_constant_of_arrays_stays_outside() -> None:
    made = PublicWhitening.from_rows(correlated(50, 4))
    X = arrays(correlated(50, 4), made, add_constant=True, norm_bound=None).load(FixedNoise(0)).X
    assert X.shape == (50, 5)
    assert (X[:, -1] == 1.0).all()


@pytest.fixture
def private_files_are_refused(tmp_path: Path) -> Callable[[], None]:
    def check() -> None:
        with_public(tmp_path)
        try:
            PrivateData.from_table(
                tmp_path / "people.csv", schema=tmp_path / "people.json", public_path=tmp_path / "people.csv"
            )
        except ConfigError:
            return
        raise AssertionError("the private table was taken for a public one")

    return check


@pytest.fixture
def the_guarantee_names_the_assumption(tmp_path: Path) -> Callable[[], None]:
    def check() -> None:
        plan = PrivateTrainer(method="objective", epsilon=1.0, delta=1e-4).plan(with_public(tmp_path))
        assert any("200 records of the public file" in line for line in plan.guarantee.assumptions)

    return check


@pytest.fixture
def the_release_has_the_features_of_the_training(tmp_path: Path) -> Callable[[], None]:
    runs = iter(range(9))

    def check() -> None:
        data, folder = with_public(tmp_path), tmp_path / f"run{next(runs)}"
        PrivateTrainer(method="objective", epsilon=1.0, delta=1e-4, run_dir=folder).fit(data)
        assert np.array_equal(load(folder).features(people()), data.load(FixedNoise(0)).X)

    return check


# -- statistics of the private records --------------------------------------------------------------------------------
def test_statistics_of_the_rows_at_hand(one_record_changes_no_other: Callable[[], None], monkeypatch: Patch) -> None:
    """Every row then depends on all others, which no clipping of gradients accounts for."""

    def own(self: PublicWhitening, rows: Any) -> np.ndarray:
        made = PublicWhitening.from_rows(rows)
        return np.asarray((rows - made.mean) @ made.matrix)

    plant(one_record_changes_no_other, lambda: monkeypatch.setattr(PublicWhitening, "apply", own), "private statistics")


def test_private_records_added_to_the_public_ones(
    one_record_changes_no_other: Callable[[], None], monkeypatch: Patch
) -> None:
    right = table.read_raw

    def both(path: Path, columns: list[str]) -> Any:
        raw = right(path, columns)
        if path.name != "public.csv":
            return raw
        return raw._replace(frame=pd.concat([raw.frame, right(path.with_name("people.csv"), columns).frame]))

    plant(one_record_changes_no_other, lambda: monkeypatch.setattr(table, "read_raw", both), "pooled statistics")


def test_the_private_table_taken_as_the_public_one(
    private_files_are_refused: Callable[[], None], monkeypatch: Patch
) -> None:
    plant(
        private_files_are_refused,
        lambda: monkeypatch.setattr(table.os.path, "samefile", lambda one, other: False),
        "no comparison of files",
    )


# -- rows that depend on others ---------------------------------------------------------------------------------------
def test_rows_scaled_by_the_largest_of_their_batch(monkeypatch: Patch) -> None:
    """Divided by the batch's largest entry and multiplied by it again: equal but for rounding."""
    right = public_whitening._product

    def scaled(rows: Any, matrix: np.ndarray) -> np.ndarray:
        largest = np.abs(rows).max()
        return np.asarray(right(rows / largest, matrix) * largest)

    plant(
        a_row_of_an_array_is_whitened_alone,
        lambda: monkeypatch.setattr(public_whitening, "_product", scaled),
        "scaled by the batch",
    )


def test_whitened_rows_centred_by_their_own_mean(
    one_record_changes_no_other: Callable[[], None], monkeypatch: Patch
) -> None:
    right = PublicWhitening.apply

    def centred(self: PublicWhitening, rows: Any) -> np.ndarray:
        found = right(self, rows)
        return np.asarray(found - found.mean(axis=0))

    plant(
        one_record_changes_no_other, lambda: monkeypatch.setattr(PublicWhitening, "apply", centred), "centred by itself"
    )


# -- the order: whiten, constant, clip --------------------------------------------------------------------------------
def test_table_rows_clipped_before_the_whitening(
    table_rows_are_within_the_bound: Callable[[], None], monkeypatch: Patch
) -> None:
    right, clip = Encoder.unclipped, encoder.clip_rows

    def early(self: Encoder, frame: pd.DataFrame) -> Any:
        X, *rest = right(self, frame)
        return (clip(X, self.schema.norm_bound), *rest)

    def bug() -> None:
        monkeypatch.setattr(encoder, "clip_rows", lambda X, bound: X)
        monkeypatch.setattr(Encoder, "unclipped", early)

    plant(table_rows_are_within_the_bound, bug, "clipped too early in tables")


def test_array_rows_clipped_before_the_whitening(monkeypatch: Patch) -> None:
    clip, right = transform.clip_rows, transform._whitened

    def early(scaled: Any, valid: np.ndarray, whitening: Any, preprocessing: Any) -> Any:
        return right(clip(scaled, preprocessing["norm_bound"]), valid, whitening, {**preprocessing, "norm_bound": None})

    plant(
        array_rows_are_within_the_bound,
        lambda: monkeypatch.setattr(transform, "_whitened", early),
        "clipped too early in arrays",
    )


def test_the_constant_of_a_table_whitened(the_constant_stays_outside: Callable[[], None], monkeypatch: Patch) -> None:
    """A constant has mean 1 and no variance: it becomes 0, and the model has no intercept."""
    right = Encoder._whitened

    def with_constant(self: Encoder, frame: pd.DataFrame, whitening: PublicWhitening) -> Any:
        X, valid, counts = right(self, frame, whitening)
        d = len(whitening.mean) + 1
        matrix = np.eye(d) * 1e-3**-0.25
        matrix[:-1, :-1] = whitening.matrix
        wider = PublicWhitening(np.append(whitening.mean, 1.0), matrix, whitening.records)
        features = np.hstack([self.unclipped(frame)[0].toarray(), np.ones((len(frame), 1))])
        X[:] = encoder.clip_rows(wider.apply(features), self.schema.norm_bound)
        return X, valid, counts

    plant(
        the_constant_stays_outside,
        lambda: monkeypatch.setattr(Encoder, "_whitened", with_constant),
        "the constant of tables",
    )


def test_the_constant_of_arrays_whitened(monkeypatch: Patch) -> None:
    right = transform._whitened

    def inside(scaled: Any, valid: np.ndarray, whitening: PublicWhitening, preprocessing: Any) -> Any:
        rows, valid = right(scaled, valid, whitening, preprocessing)
        rows[:, -1] = (rows[:, -1] - 1.0) * 1e-3**-0.25
        return rows, valid

    plant(
        the_constant_of_arrays_stays_outside,
        lambda: monkeypatch.setattr(transform, "_whitened", inside),
        "the constant of arrays",
    )


# -- what is said and what travels ------------------------------------------------------------------------------------
def test_an_assumption_on_public_records_left_out(
    the_guarantee_names_the_assumption: Callable[[], None], monkeypatch: Patch
) -> None:
    plant(
        the_guarantee_names_the_assumption,
        lambda: monkeypatch.setattr(planning, "whitening_assumptions", lambda public: ()),
        "no assumption",
    )


def test_scoring_without_the_whitening(
    the_release_has_the_features_of_the_training: Callable[[], None], monkeypatch: Patch
) -> None:
    plant(
        the_release_has_the_features_of_the_training,
        lambda: monkeypatch.setattr(release, "whitening_in", lambda preprocessing: None),
        "scored without the map",
    )


def test_a_map_rounded_on_its_way_into_the_release(
    the_release_has_the_features_of_the_training: Callable[[], None], monkeypatch: Patch
) -> None:
    right = public_whitening._text

    def short(values: np.ndarray) -> str:
        return right(np.asarray(values, dtype=np.float32).astype(np.float64))

    plant(
        the_release_has_the_features_of_the_training,
        lambda: monkeypatch.setattr(public_whitening, "_text", short),
        "a rounded map",
    )
