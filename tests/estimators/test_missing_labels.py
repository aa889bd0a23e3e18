"""One record more, with a label that is missing or a row without end, changes how no other record is read."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dpml import DPLogisticRegression, DPSGDClassifier, PrivateData
from dpml.mechanisms import FixedNoise

LARGE = 2**53 + 1  # no float64 is this number


def labels(last, kind):
    values = pd.Series([0, LARGE] * 30 + [last], dtype="Int64")
    return values.astype("category") if kind == "category" else values.astype(kind)


@pytest.mark.parametrize("kind", ["Int64", "int64[pyarrow]", "category"])
@pytest.mark.parametrize("estimator", [DPLogisticRegression, DPSGDClassifier])
def test_a_missing_label_leaves_the_others_what_they_are(estimator, kind):
    used = []
    for last in (LARGE, None):
        model = estimator(classes=[0, LARGE], norm_bound=1.0, n_declared=61)
        if estimator is DPSGDClassifier:
            model.set_params(steps=2)
        used.append(model.fit(np.full((61, 2), 0.1), labels(last, kind)).result_.private["train"]["used"])
    assert used == [61, 60]


@pytest.mark.parametrize("kind", ["Int64", "int64[pyarrow]", "category"])
def test_arrays_with_a_missing_label(kind):
    used = []
    for last in (LARGE, None):
        data = PrivateData.from_arrays(
            np.full((61, 2), 0.1), labels(last, kind), classes=[0, LARGE], norm_bound=1.0, n_declared=61
        )
        used.append(data.load(FixedNoise(0)).private_notes["train"]["used"])
    assert used == [61, 60]


def endless(copies):
    row = [1.0]
    row.extend([row] * copies)
    return row


def deep(levels):
    row = [1.0]
    for _ in range(levels):
        row = [row]
    return row


@pytest.mark.parametrize("bad", [endless(1), endless(3), deep(5000)], ids=["in itself", "three times", "deep"])
def test_a_row_without_end_contributes_nothing_and_raises_nothing(bad):
    X, y = [[0.1, 0.2]] * 60 + [bad], [0, 1] * 30 + [1]
    model = DPLogisticRegression(classes=[0, 1], norm_bound=1.0, n_declared=61).fit(X, y)
    assert model.result_.private["train"]["used"] == 60
    data = PrivateData.from_arrays(X, y, classes=[0, 1], norm_bound=1.0, n_declared=61)
    assert data.load(FixedNoise(0)).private_notes["train"]["used"] == 60
