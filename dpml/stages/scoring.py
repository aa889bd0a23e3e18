"""Scores of hold-out records, each computed on its own: what one record gives never depends on another.

A sensitivity holds only if it does.  Scored together, the last bits of a row's product depend on where the row stands
in the matrix, and a record at which a module of the user's own raises would stop the others.  So linear models multiply
row by row (the product of a compressed sparse row matrix adds the entries of each row in turn), networks see one record
at a time with their buffers as they were released, and the rest is scalar arithmetic.  A record without finite scores
counts as wrong, with the largest loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dpml.machine import refuse_unless_a_records
from dpml.release import LINEAR, PrivateModel


@dataclass(frozen=True)
class Score:
    """One record's outcome: whether the prediction is right, its loss (``inf`` for the largest), P(second class)."""

    right: bool
    loss: float
    probability: float


WORST = Score(False, math.inf, 0.0)


def decisions(model: PrivateModel, rows: Any) -> Iterator[list[float] | None]:
    """Raw scores of each encoded row (n, …), one or K numbers; ``None`` where they are not finite or it raised."""
    if model.kind in LINEAR:
        weight = np.asarray(model.weights["weight"], dtype=np.float64)
        with np.errstate(all="ignore"):
            values = np.asarray(sparse.csr_array(rows) @ weight.T)
        for row in values:
            yield _finite(row)
        return
    network = model._network()
    kept = [(buffer, buffer.clone()) for buffer in network.buffers()]
    for index in range(rows.shape[0]):
        yield _finite(_forward(network, rows[index : index + 1]))
        for buffer, value in kept:  # what a forward pass leaves there must not reach the next record
            buffer.copy_(value)


def _forward(network: Any, row: Any) -> np.ndarray | None:
    from dpml.sgd import forward  # torch only where a network needs it

    try:
        return np.asarray(forward(network, row.toarray() if sparse.issparse(row) else row))
    except BaseException as error:  # a module of the user's own may raise anything
        refuse_unless_a_records(error)
        return None


def _finite(values: np.ndarray | None) -> list[float] | None:
    if values is None:
        return None
    found = [float(value) for value in np.asarray(values, dtype=np.float64).reshape(-1)]
    return found if all(map(math.isfinite, found)) else None


def class_score(values: list[float] | None, label: int, n_classes: int, kind: str) -> Score:
    """The outcome of one record from its raw scores.

    Two classes: one score z with P(second class) = 1/(1 + e^{−z}), or two whose difference is z.  More: softmax of the
    scores, of one-vs-rest ``logreg`` of their log-sigmoids.  ``linear_svm``: hinge losses, summed over one-vs-rest.
    """
    if values is None or len(values) not in ({1, 2} if n_classes == 2 else {n_classes}):
        return WORST
    if n_classes == 2:
        z = values[0] if len(values) == 1 else values[1] - values[0]
        signed = z if label == 1 else -z
        probability = 1.0 / (1.0 + math.exp(-z)) if z > -700 else 0.0
        loss = max(0.0, 1.0 - signed) if kind == "linear_svm" else _softplus(-signed)
        second = z > 0 if kind == "linear_svm" else probability > 0.5
        return Score(second == (label == 1), loss, probability)
    if kind == "linear_svm":
        best = values.index(max(values))
        loss = math.fsum(max(0.0, 1.0 - (z if k == label else -z)) for k, z in enumerate(values))
        return Score(best == label, loss, 0.0)
    scores = [-_softplus(-z) for z in values] if kind == "logreg" else values
    top = max(scores)
    parts = [math.exp(z - top) for z in scores]
    best = parts.index(1.0)  # the first of equal probabilities, as the model predicts
    return Score(best == label, top - scores[label] + math.log(math.fsum(parts)), 0.0)


def _softplus(z: float) -> float:
    """ln(1 + e^z)."""
    return z + math.log1p(math.exp(-z)) if z > 0 else math.log1p(math.exp(z))


def target_error(values: list[float] | None, target: float, width: float) -> float:
    """|prediction − target| of a regression in its units; both are in [-1, 1] of half the ``width`` of the bounds."""
    if values is None or len(values) != 1:
        return math.inf
    return abs(min(max(values[0], -1.0), 1.0) - target) * width / 2.0
