"""The custodian's look before a run: right numbers, plainly marked, and no part of any run."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_tables import people, write_people
from torch import nn

sys.path.insert(0, str(Path(__file__).parent / "sgd"))

import silent_checks as checks
from silent_checks import Small, arrays, dataset, trainer

from dpml import PrivateData, PrivateTrainer, checking
from dpml.errors import ConfigError, DataError


def logistic_rows(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(2).normal(size=(n, 3))
    return X, np.arange(n) % 2


def test_gradient_norms_of_logistic_regression_at_zero_are_half_the_rows_norms() -> None:
    """∇ log(1 + exp(-s w·x)) at w = 0 is -s x/2: the quantiles are those of ‖x‖/2."""
    X, y = logistic_rows()
    run = trainer("logreg", max_grad_norm=0.8)
    seen = run.check_records(arrays(X, y, n_declared=60))
    norms = np.linalg.norm(X.astype(np.float32), axis=1) / 2
    assert seen.norms == pytest.approx(np.quantile(norms, [0, 0.25, 0.5, 0.75, 1]), rel=1e-6)
    assert seen.share_above == (norms > 0.8).mean()
    assert (seen.looked_at, seen.raising, seen.unusable, seen.failing) == (40, 0, 0, 0)
    assert (seen.losses_not_finite, seen.gradients_not_finite, seen.never_reached) == (0, 0, ())
    assert seen.max_grad_norm == 0.8


def test_it_looks_at_so_many_spread_over_the_data() -> None:
    reads: list[int] = []

    def item(i: int) -> Any:
        reads.append(i)
        return np.ones(checks.D), i % 2

    assert trainer(Small()).check_records(dataset(item), records=5).looked_at == 5
    assert reads == [0, 14, 29, 44, 59]


def test_items_that_raise_are_counted_with_the_first_error() -> None:
    def item(i: int) -> Any:
        if i % 4 == 1:
            raise OSError(f"file {i} is gone")
        return (np.full(checks.D, np.nan) if i % 4 == 2 else np.ones(checks.D)), i % 2

    for lazy in (True, False):
        seen = trainer(Small()).check_records(dataset(item, lazy))
        assert (seen.looked_at, seen.raising, seen.unusable) == (60, 15, 30)
        assert seen.first_error == "OSError: file 1 is gone"
        assert "first: OSError: file 1 is gone" in str(seen)
    nothing = trainer(Small()).check_records(dataset(checks.raising))
    assert (nothing.raising, nothing.unusable, nothing.norms, nothing.share_above) == (60, 60, (), 0.0)


class Picky(nn.Module):
    """Raises for rows that start above 2, gives NaN for those below −2, infinite gradients for a row at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.spare = nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
        with torch.no_grad():
            self.layer.weight.fill_(1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x[:, 0] > 2).any()):
            raise ValueError("too large")
        scores: torch.Tensor = self.layer(torch.where(x < -2, torch.nan, x))
        return scores.clamp(min=0.0).sqrt()


def test_records_on_which_the_model_fails_are_counted() -> None:
    X = np.array([[1.0, 1.0]] * 4 + [[3.0, 0.0]] * 3 + [[-3.0, 0.0]] * 2 + [[0.0, 0.0]])
    data = PrivateData.from_arrays(X, np.arange(10) % 2, norm_bound=None, classes=[0, 1], n_declared=30)
    seen = trainer(Picky()).check_records(data)
    assert (seen.failing, seen.first_failure) == (3, "ValueError: too large")
    assert (seen.losses_not_finite, seen.gradients_not_finite) == (2, 6)
    assert len(set(seen.norms)) == 1, "four equal records are left"
    assert seen.never_reached == ("spare.weight", "spare.bias")
    assert "spare.weight, spare.bias" in str(seen)


def test_tables_are_looked_at_too(tmp_path: Path) -> None:
    frame = people(80)
    frame.loc[:9, "label"] = "perhaps"
    path, schema = write_people(tmp_path, frame)
    data = PrivateData.from_table(path, schema)
    seen = trainer("logreg").check_records(data, records=50)
    assert (seen.looked_at, seen.left_out_by_reading, seen.unusable) == (50, 10, 0)
    # rows have norm at most 1, so gradients at w = 0 at most 1/2
    assert 0.0 < seen.norms[0] <= seen.norms[4] <= 0.5 + 1e-6
    assert seen.share_above == 0.0


def test_regression_and_bundled_data_and_no_record_at_all() -> None:
    X, _ = logistic_rows()
    data = PrivateData.from_arrays(X, X[:, 0], norm_bound=1.0, target_bounds=(-2, 2), n_declared=60)
    assert trainer("ridge").check_records(data).looked_at == 40
    assert trainer("logreg").check_records(PrivateData.synthetic(100, 4), records=9).looked_at == 9
    empty = trainer("logreg").check_records(arrays(X[:0], []))
    assert (empty.looked_at, empty.norms, empty.never_reached) == (0, (), ())
    assert "records looked at" in str(empty)


def test_it_says_that_it_is_private_and_cannot_be_changed() -> None:
    X, y = logistic_rows()
    seen = trainer("logreg").check_records(arrays(X, y))
    first, *_, last = str(seen).splitlines()
    assert first.startswith("PRIVATE, not for release")
    assert "epsilon does not cover" in last
    assert repr(seen) == str(seen)
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen.raising = 0  # type: ignore[misc]


def test_other_methods_are_told_what_to_use() -> None:
    X, y = logistic_rows()
    for run in (PrivateTrainer("logreg", "objective"), PrivateTrainer("logreg"), PrivateTrainer("logreg", "output")):
        with pytest.raises(ConfigError, match=r"'dp_sgd', whose gradients it shows.*dpml.schema check"):
            run.check_records(arrays(X, y))


@pytest.mark.parametrize("records", [0, -1, 2.5, True, "all", None])
def test_records_must_be_a_count(records: Any) -> None:
    X, y = logistic_rows()
    with pytest.raises(ConfigError, match=r"^records = .* is not allowed: it must be a whole number from 1"):
        trainer("logreg").check_records(arrays(X, y), records)


def test_nothing_is_charged_or_written(tmp_path: Path) -> None:
    X, y = logistic_rows()
    book, folder = tmp_path / "book.jsonl", tmp_path / "run"
    run = trainer("logreg", run_dir=folder, dataset_ledger=book, dataset_epsilon=1e5, dataset_delta=1e-3, delta=1e-5)
    run.check_records(arrays(X, y))
    assert list(tmp_path.iterdir()) == []


def test_the_model_and_the_callers_random_numbers_are_left_alone() -> None:
    model = checks.Remembers()
    model.forward = lambda x: model.layer(torch.nn.functional.dropout(x))  # type: ignore[method-assign]
    plain = nn.Sequential(nn.Dropout(), Small())
    before = torch.get_rng_state()
    trainer(plain).check_records(arrays())
    assert torch.equal(before, torch.get_rng_state())
    assert all(p.grad is None for p in plain.parameters())


def test_no_run_takes_the_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*_: Any, **__: Any) -> None:
        raise AssertionError("a run looked at its records")

    monkeypatch.setattr(checking, "check_records", called)
    run = trainer(Small(), run_dir=tmp_path / "run")
    run.plan(arrays())
    run.check(arrays())
    run.fit(arrays())
    checks.the_look_is_never_part_of_a_run(tmp_path / "reads")


def test_faults_of_the_data_are_what_reading_says() -> None:
    class Odd(checks.Items):
        def __len__(self) -> int:
            raise OSError("no")

    data = PrivateData.from_dataset(Odd(checks.raising), n_declared=60, classes=[0, 1], feature_shape=checks.D)
    with pytest.raises(DataError, match="__len__ must return"):
        trainer(Small()).check_records(data)
