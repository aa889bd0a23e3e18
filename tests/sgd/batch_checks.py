"""Checks of batches; the planted-bug tests run them on whole and on broken code."""

from __future__ import annotations

import numpy as np
import torch

from dpml.data import PrivateData
from dpml.mechanisms import FixedNoise
from dpml.runs import records_mac
from dpml.sgd.batches import as_rows

CPU = torch.device("cpu")


def in_file(path, values):
    """``values`` as an array in a file."""
    np.save(path, values)
    return np.load(path, mmap_mode="r")


def model(width, dtype=torch.float32):
    return torch.nn.Linear(width, 1, dtype=dtype)


def stored(X, y, **options):
    return PrivateData.from_arrays(X, y, **{"norm_bound": 1.0, "classes": [0, 1], "n_declared": 10, **options}).load(
        FixedNoise(0), lazy=True
    )


def unusable_records_contribute_nothing(folder):
    """Whatever cannot be used is left out of the batch it was drawn into; the rest and n are as without the fault."""
    X = np.arange(12.0).reshape(6, 2) / 20
    y = np.array([0, 1, 0, 1, 0, 1])
    whole = as_rows(stored(in_file(folder / "a.npy", X), y).X, None, model(2), CPU)
    X[1, 1], X[4, 0], y[2] = np.nan, np.inf, 9
    broken = as_rows(stored(in_file(folder / "b.npy", X), y).X, None, model(2), CPU)
    assert len(broken) == len(whole) == 6, "the number that sampling sees depends on what can be used"
    expected = whole.take(np.array([0, 3, 5]))
    for index in ([0, 1, 2, 3, 4, 5], [0, 3, 5], [0, 2, 3, 5]):
        batch = broken.take(np.array(index))
        assert len(batch[0]) == 3
        assert all(torch.equal(a, b) for a, b in zip(batch, expected, strict=True))
    assert [len(t) for t in broken.take(np.array([1, 2, 4]))] == [0, 0]
    assert broken.left_out == 7
    assert whole.left_out == 0


def rows_are_within_the_bound(folder):
    X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32) * 9
    rows = as_rows(stored(in_file(folder / "n.npy", X), np.zeros(50, int)).X, None, model(3, torch.float64), CPU)
    assert float(rows.take(np.arange(50))[0].norm(dim=1).max()) <= 1.0


def every_value_is_in_the_fingerprint(folder):
    """A changed number, label, type or order gives another one; the same data give the same."""
    X = np.arange(40_000.0, dtype=np.float32).reshape(-1, 4)
    y = np.arange(10_000) % 2
    variants = [(X, y), (X, 1 - y), (X[::-1].copy(), y), (X.astype(np.float64), y), (X.reshape(-1, 2, 2), y)]
    for position in ((0, 0), (5_000, 2), (9_999, 3)):
        other = X.copy()
        other[position] += 1
        variants.append((other, y))
    for position in (0, 9_999):
        labels = y.copy()
        labels[position] = 7
        variants.append((X, labels))
    found = set()
    for number, (rows, labels) in enumerate(variants):
        array = in_file(folder / f"{number}.npy", rows)
        macs = {records_mac(key, stored(array, labels)) for key in (b"k", b"k")}
        assert len(macs) == 1
        found |= macs
    assert len(found) == len(variants)
    assert records_mac(b"other", stored(array, labels)) not in found
