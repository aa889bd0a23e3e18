"""Batches from tensors, from files, and from datasets, with and without workers."""

from __future__ import annotations

import hashlib
import hmac
import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import batch_checks as checks
import large_file
import numpy as np
import pytest
import torch
from batch_checks import CPU, in_file, model
from item_datasets import OutOfMemory, Squares, holds_noise
from scipy import sparse

from dpml import machine
from dpml.data import PrivateData
from dpml.data import stored as stored_module
from dpml.errors import ConfigError, DataError
from dpml.mechanisms import FixedNoise, SecretNoise
from dpml.runs import records_mac
from dpml.sgd import batches
from dpml.sgd.batches import DatasetRows, as_rows
from dpml.trainer import PrivateTrainer

NONE = np.zeros(0, dtype=np.int64)
FEW_CORES = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def numbers(dtype, n=30, shape=(2, 3)):
    return (np.random.default_rng(1).normal(size=(n, *shape)) * 50).astype(dtype)


# ------------------------------------------------------------------------------------------------- in memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["array", "tensor", "read-only"])
def test_rows_of_arrays_in_memory(kind, dtype):
    X, y = numbers(np.float64), np.arange(30) % 3
    given = (torch.from_numpy(X), torch.from_numpy(y)) if kind == "tensor" else (X.copy(), y.copy())
    if kind == "read-only":
        for array in given:
            array.flags.writeable = False
    rows = as_rows(*given, model(3, dtype), CPU)
    index = np.array([0, 4, 29])
    assert len(rows) == 30
    batch = rows.take(index)
    assert torch.equal(batch[0], torch.from_numpy(X[index]).to(dtype))
    assert torch.equal(batch[1], torch.from_numpy(y[index]))
    assert [tuple(t.shape) for t in rows.take(NONE)] == [(0, 2, 3), (0,)]
    assert [t.dtype for t in rows.take(NONE)] == [t.dtype for t in rows.zeros()] == [dtype, torch.int64]
    assert [tuple(t.shape) for t in rows.zeros()] == [(1, 2, 3), (1,)]
    assert not any(t.any() for t in rows.zeros())
    assert rows.take(np.arange(30))[0].shape == (30, 2, 3)
    assert as_rows(rows, None, model(3), CPU) is rows


def test_what_cannot_be_rows():
    for X, y, match in (
        (np.float64(3), np.zeros(1), "single number"),
        (np.zeros((3, 2)), np.zeros(2), "one entry for each"),
        (np.zeros((3, 2)), None, "example"),
    ):
        with pytest.raises(DataError, match=match):
            as_rows(X, y, model(2), CPU)
    with pytest.raises(DataError, match="__getitem__"):
        as_rows(iter([]), None, model(2), CPU, example=(np.zeros(2), 0))
    with pytest.raises(ConfigError, match="workers = -1"):
        DatasetRows(Squares(), (np.zeros(2), 0), workers=-1)


# ---------------------------------------------------------------------------------------------- in a file


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "u1", "i8"])
@pytest.mark.parametrize("constant", [False, True])
def test_rows_of_a_file_are_those_that_memory_would_hold(tmp_path, monkeypatch, dtype, constant):
    monkeypatch.setattr(stored_module, "PIECE_ROWS", 4)
    X, y = numbers(dtype, shape=(6,)), np.arange(30) % 2
    file = in_file(tmp_path / "X.npy", X)
    options = {"norm_bound": 2.0, "classes": [0, 1], "n_declared": 30, "add_constant": constant}
    data = PrivateData.from_arrays(file, in_file(tmp_path / "y.npy", y), **options)
    eager = PrivateData.from_arrays(X, y, **options).load(FixedNoise(0))
    assert data.public == PrivateData.from_arrays(X, y, **options).public
    records = data.load(FixedNoise(0), lazy=True)
    assert records.stored
    assert not eager.stored
    assert not data.load(FixedNoise(0)).stored
    for precision in (torch.float32, torch.float64):
        whole = as_rows(eager.X, eager.y, model(6, precision), CPU)
        rows = as_rows(records.X, records.y, model(6, precision), CPU)
        for index in (np.array([0, 7, 8, 9, 20, 29]), np.arange(30), NONE):
            for mine, theirs in zip(rows.take(index), whole.take(index), strict=True):
                assert torch.equal(mine, theirs)
                assert mine.dtype == theirs.dtype
        assert [(t.shape, t.dtype) for t in rows.zeros()] == [(t.shape, t.dtype) for t in whole.zeros()]


@pytest.mark.parametrize("dtype", ["f2", "f8", "u1", "i8"])
def test_rows_of_a_bare_file(tmp_path, dtype):
    X, y = numbers(dtype), np.linspace(0, 1, 30)
    whole, rows = (as_rows(array, y, model(3), CPU) for array in (X, in_file(tmp_path / "X.npy", X)))
    assert isinstance(rows, batches.StoredRows)
    for index in (np.array([1, 2, 28]), np.arange(30), NONE):
        for mine, theirs in zip(rows.take(index), whole.take(index), strict=True):
            assert torch.equal(mine, theirs)
            assert mine.dtype == theirs.dtype
    assert [(t.shape, t.dtype) for t in rows.zeros()] == [(t.shape, t.dtype) for t in whole.zeros()]
    with pytest.raises(DataError, match="one entry for each"):
        as_rows(in_file(tmp_path / "X.npy", X), y[:3], model(3), CPU)


def test_views_of_a_file_are_in_the_file(tmp_path):
    X = numbers("f4")
    file = in_file(tmp_path / "X.npy", X)
    for view, expected in ((np.asarray(file)[3:], X[3:]), (file[::2], X[::2]), (file.T.reshape(-1), None)):
        assert (stored_module.mapping_of(view) is not None) == (expected is not None)
        if expected is not None:
            np.testing.assert_array_equal(stored_module.gather(view, np.array([0, 5])), expected[[0, 5]])
    assert stored_module.mapping_of(X) is None


@pytest.mark.parametrize("mode", ["r+", "c"])
def test_what_was_written_to_a_mapped_array_is_kept(tmp_path, mode):
    """Pages of a private mapping would be lost if they were handed back."""
    np.save(tmp_path / "X.npy", numbers("f4"))
    file = np.load(tmp_path / "X.npy", mmap_mode=mode)
    file[2] = 77.0
    stored_module.gather(file, np.array([0, 1]))
    list(stored_module.pieces(file))
    assert (file[2] == 77.0).all()


def test_unusable_records_contribute_nothing(tmp_path):
    checks.unusable_records_contribute_nothing(tmp_path)


def test_rows_are_within_the_bound(tmp_path):
    checks.rows_are_within_the_bound(tmp_path)


def test_targets_of_a_regression_in_a_file(tmp_path):
    X, y = numbers("f4", shape=(2,)), np.linspace(-9, 20, 30)
    y[4] = np.nan
    options = {"norm_bound": None, "target_bounds": (0, 10), "n_declared": 30}
    paths = tmp_path / "X.npy", tmp_path / "y.npy"
    for path, values in zip(paths, (X, y), strict=True):
        np.save(path, values)
    records = PrivateData.from_arrays(*paths, **options).load(FixedNoise(0), lazy=True)
    eager = PrivateData.from_arrays(X, y, **options).load(FixedNoise(0))
    batch = as_rows(records.X, None, model(2, torch.float64), CPU).take(np.arange(30))
    np.testing.assert_array_equal(batch[0].numpy(), eager.X)
    np.testing.assert_array_equal(batch[1].numpy(), eager.y)
    notes = records.private_notes["train"]
    assert notes == {"records": 30, "read": "as drawn", "targets_without_number": 1, "targets_clipped": 18}


def test_labels_are_looked_up_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("dpml.data.arrays._LABELS", 7)
    y = np.array(["no", "yes", "?"] * 10)
    records = checks.stored(in_file(tmp_path / "X.npy", numbers("f4")), y, classes=["no", "yes"])
    assert records.private_notes["train"]["unknown_labels"] == 10
    batch = as_rows(records.X, None, model(3), CPU).take(np.arange(30))
    assert batch[1].tolist() == [0, 1] * 10


def test_faults_of_files_before_a_value_is_read(tmp_path):
    (tmp_path / "X.npy").write_bytes(b"no array")
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "t.npy", np.array([["a"], ["b"]]))
    for name, match in (("X.npy", "cannot be mapped"), ("o.npy", "cannot be mapped"), ("none.npy", "no such file")):
        with pytest.raises(DataError, match=match):
            checks.stored(tmp_path / name, [0, 1])
    with pytest.raises(DataError, match=r"no \.npy file"):
        checks.stored(str(tmp_path / "X.csv"), [0, 1])
    with pytest.raises(DataError, match="does not hold numbers"):
        checks.stored(tmp_path / "t.npy", [0, 1])


def test_a_run_on_a_file_is_the_run_in_memory(tmp_path):
    X, y = numbers("f4", 200, (3,)), np.arange(200) % 2
    found = []
    for array in (X, in_file(tmp_path / "X.npy", X)):
        data = PrivateData.from_arrays(array, y, norm_bound=1.0, classes=[0, 1], n_declared=200)
        trainer = PrivateTrainer(
            method="dp_sgd", epsilon=8.0, steps=2, expected_batch_size=50, noise_source=FixedNoise(3), device="cpu"
        )
        found.append(trainer.fit(data).model.weights["weight"])
    np.testing.assert_array_equal(*found)


def test_other_methods_copy_a_file_and_say_how_much(tmp_path):
    X, y = numbers("f4", 50, (3,)), np.arange(50) % 2
    data = PrivateData.from_arrays(in_file(tmp_path / "X.npy", X), y, norm_bound=1.0, classes=[0, 1], n_declared=50)
    result = PrivateTrainer(method="objective", epsilon=8.0).fit(data)
    assert result.private["train"]["copied_bytes"] == 50 * 3 * 8


def test_every_record_stays_counted_where_a_fixed_size_is_drawn():
    X = np.array([[0.1, 0.2], [np.nan, 0.0], [0.3, 0.4]])
    data = PrivateData.from_arrays(X, [0, 1, 1], norm_bound=1.0, classes=[0, 1], n_declared=3)
    assert data.keeps_every_record
    assert len(data.load(FixedNoise(0), lazy=True).X) == 2
    records = data.load(FixedNoise(0), every_record=True)
    assert len(records.X) == 3
    assert as_rows(records.X, None, model(2), CPU).take(np.arange(3))[0].shape == (2, 2)
    wide = PrivateData.from_arrays(sparse.csr_array(X), [0, 1, 1], norm_bound=1.0, classes=[0, 1], n_declared=3)
    assert len(wide.load(FixedNoise(0), every_record=True).X) == 3
    nobody = PrivateData.from_arrays(X[:0], np.zeros(0, int), norm_bound=1.0, classes=[0, 1], n_declared=3)
    nothing = as_rows(nobody.load(FixedNoise(0), every_record=True).X, None, model(2), CPU)
    assert len(nothing) == 0
    assert [tuple(t.shape) for t in nothing.take(NONE)] == [(0, 2), (0,)]
    bundled = PrivateData.digits()
    assert bundled.keeps_every_record
    assert len(bundled.load(FixedNoise(0), every_record=True).X) == bundled.public.n_declared
    table = PrivateData.bundled("adult")
    assert not table.keeps_every_record
    with pytest.raises(ConfigError, match="every record counts"):
        table.load(FixedNoise(0), every_record=True)


def test_the_fingerprint_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_module, "PIECE_BYTES", 5_000)
    checks.every_value_is_in_the_fingerprint(tmp_path)


def test_the_fingerprint_of_arrays_in_memory_binds_values_types_and_shapes():
    X, y = numbers(np.float64), np.arange(30) % 2
    records = PrivateData.from_arrays(X, y, norm_bound=None, classes=[0, 1], n_declared=30).load(FixedNoise(0))
    parts = enumerate((X, y.astype(np.int64)))
    text = b"".join(f"array {i}{a.dtype.str} {a.shape}".encode() + a.tobytes() for i, a in parts)
    assert records_mac(b"key", records) == hmac.new(b"key", text, hashlib.sha256).hexdigest()


# ------------------------------------------------------------------------------------------------- memory


def run_large(folder, n, how):
    script = Path(large_file.__file__)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(folder), str(n), how], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_file_of_200_mb_takes_less_than_60_mb_of_memory(tmp_path):
    """Load, fingerprint and four batches; the file as a copy would take 400 MB more, mapped for good 200 MB."""
    large_file.write(tmp_path, 500_000)
    found = run_large(tmp_path, 500_000, "loop")
    assert np.isfinite(found["first"])
    assert found["peak"] - found["before"] < 60
    assert found["leaky"] - found["before"] > 150  # so the measure sees pages of the file


@pytest.mark.slow
def test_two_million_rows_of_a_file_of_800_mb_in_a_process_of_600_mb(tmp_path):
    large_file.write(tmp_path, 2_000_000)
    found = run_large(tmp_path, 2_000_000, "trainer")
    assert found["read"] == "as drawn"
    assert found["peak"] < 600
    assert found["weights"][0] == max(found["weights"], key=abs)  # the only feature that the label depends on
    assert found["weights"][0] > 0


# ------------------------------------------------------------------------------------------------ datasets


def items(dataset, **options):
    return PrivateData.from_dataset(
        dataset, **{"n_declared": 20, "classes": [0, 1], "feature_shape": 2, "norm_bound": None, **options}
    )


def test_items_are_read_as_they_are_drawn():
    rows = as_rows(items(Squares(), lazy=True).load(FixedNoise(0), lazy=True).X, None, model(2), CPU)
    assert len(rows) == 20
    X, y = rows.take(np.array([0, 3, 4, 5, 7, 9, 11, 12, 19]))
    assert X.tolist() == [[0, 0], [4, 16], [12, 144], [19, 361]]
    assert y.tolist() == [0, 0, 0, 1]
    assert rows.left_out == 5
    assert (X.dtype, y.dtype) == (torch.float32, torch.int64)
    assert [tuple(t.shape) for t in rows.take(NONE)] == [(0, 2), (0,)]
    assert [tuple(t.shape) for t in rows.take(np.array([3, 5]))] == [(0, 2), (0,)]
    assert [(tuple(t.shape), t.dtype) for t in rows.zeros()] == [((1, 2), torch.float32), ((1,), torch.int64)]


def same_batches_by_workers(workers):
    noise = SecretNoise()
    alone, rows = (
        as_rows(items(Squares(), lazy=True, workers=k).load(noise, lazy=True).X, None, model(2), CPU)
        for k in (0, workers)
    )
    assert holds_noise()  # so the dataset would see it in a copy of this process
    state = torch.get_rng_state()
    for index in (np.arange(20), np.array([2]), np.array([1, 2, 3, 5, 8, 13]), NONE, np.array([3, 7]), np.arange(20)):
        for mine, theirs in zip(rows.take(index), alone.take(index), strict=True):
            assert torch.equal(mine, theirs)
            assert mine.dtype == theirs.dtype
    assert rows.left_out == alone.left_out == 5 + 2 + 2 + 5
    assert torch.equal(torch.get_rng_state(), state)
    assert len(multiprocessing.active_children()) == workers
    rows.close()
    assert not multiprocessing.active_children()
    assert len(rows.take(np.array([1, 2]))[0]) == 2  # what is closed reads in this process


@pytest.mark.slow
@FEW_CORES
def test_two_workers_give_the_same_batches():
    same_batches_by_workers(2)


@FEW_CORES
def test_a_worker_gives_the_same_batches_and_holds_no_noise():
    same_batches_by_workers(1)


def test_a_dataset_with_an_example():
    """Types are those of the example: whole numbers stay whole, what does not fit is left out."""
    pairs = [([1, 2], 0.5), ([3.5, 1.0], 0.0), ([1, 2, 3], 0.0), ([5, 6], "x"), ([7, 8], 1), None]
    rows = as_rows(pairs, None, model(2), CPU, example=(np.zeros(2, int), 0.0))
    X, y = rows.take(np.arange(6))
    assert X.tolist() == [[1, 2], [7, 8]]
    assert y.tolist() == [0.5, 1.0]
    assert (X.dtype, y.dtype) == (torch.int64, torch.float32)
    assert rows.left_out == 4
    many = DatasetRows([(np.ones(2), np.ones(3))], (np.zeros(2), np.zeros(3)), torch.float64)
    assert [tuple(t.shape) for t in many.zeros()] == [(1, 2), (1, 3)]


def test_an_item_that_asks_for_too_much_memory_is_left_out():
    rows = DatasetRows(OutOfMemory(), (np.zeros(2), 0))
    assert len(rows.take(np.arange(2))[0]) == 0
    lazy = as_rows(items(OutOfMemory(), lazy=True).load(FixedNoise(0), lazy=True).X, None, model(2), CPU)
    assert len(lazy.take(np.arange(2))[0]) == 0


def test_an_error_of_the_machine_is_no_fault_of_a_record(monkeypatch):
    monkeypatch.setattr(machine, "is_short_of_memory", lambda: True)
    with pytest.raises(MemoryError):
        DatasetRows(OutOfMemory(), (np.zeros(2), 0)).take(np.arange(2))
    with pytest.raises(MemoryError):
        as_rows(items(OutOfMemory(), lazy=True).load(FixedNoise(0), lazy=True).X, None, model(2), CPU).take(
            np.arange(2)
        )


def test_workers_need_a_dataset_that_can_be_pickled():
    dataset = Squares()
    dataset.source = SecretNoise()  # noise cannot travel to a worker, also not by mistake
    with pytest.raises(ConfigError, match=r"workers = 1 needs a dataset that can be pickled"):
        DatasetRows(dataset, (np.zeros(2), 0), workers=1)


def test_large_datasets_are_lazy_by_their_declared_size():
    whole = Squares(faulty=())
    limit = 2**30 // (8 * 2)
    for n_declared, lazy, stored in (
        (limit, None, False),
        (limit + 1, None, True),
        (5, True, True),
        (limit * 9, False, False),
    ):
        records = items(whole, n_declared=n_declared, lazy=lazy).load(FixedNoise(0), lazy=True)
        assert records.stored == stored
    assert not items(whole, lazy=True).load(FixedNoise(0)).stored  # of a method that needs all
    eager = items(whole).load(FixedNoise(0))
    records = items(whole, lazy=True, test=whole).load(FixedNoise(0), lazy=True)
    batch = as_rows(records.X, None, model(2, torch.float64), CPU).take(np.arange(20))
    np.testing.assert_array_equal(batch[0].numpy(), eager.X)
    np.testing.assert_array_equal(batch[1].numpy(), eager.y)
    np.testing.assert_array_equal(records.X_test, eager.X)
    for argument, value in (("lazy", 1), ("workers", -1), ("workers", True)):
        with pytest.raises(ConfigError, match=argument):
            items(whole, **{argument: value})
    assert len(items([], lazy=True).load(FixedNoise(0), lazy=True).X) == 0  # n is private: no record is no error


def test_the_fingerprint_of_a_dataset():
    def mac(dataset):
        return records_mac(b"k", items(dataset, lazy=True).load(FixedNoise(0), lazy=True))

    assert mac(Squares()) == mac(Squares())
    others = [Squares(), Squares(19), Squares(faulty=()), Squares(faulty=(3, 5)), Squares(faulty=(3,))]
    assert len({mac(dataset) for dataset in others}) == len(others)


def test_nothing_private_in_a_representation():
    assert repr(items(Squares(), lazy=True).load(FixedNoise(0), lazy=True).X) == "StoredItems(private)"
