"""Checks that results show and hand on nothing private; tests and planted bugs share them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from typing import Any

import numpy as np

from dpml import DPLogisticRegression, PrivateData, PrivateSearch, PrivateTrainer
from dpml.results import dumps
from dpml.runs import RunResult
from dpml.search_result import SearchResult

RESULTS = (RunResult, SearchResult)
X = np.arange(64.0).reshape(32, 2) / 64
Y = [0, 1] * 16
PRIVATE = re.compile(r"(?<![a-z_])(unknown_labels|not_finite|n_runs|gradient_norm)(?![a-z_])")
"""Names that occur in private diagnostics and nowhere else."""


def leaks(what: str | bytes) -> bool:
    return PRIVATE.search(what if isinstance(what, str) else what.decode("latin-1")) is not None


def holders() -> dict[str, Any]:
    """Everything that carries private diagnostics after a fit: results, and what holds them."""
    data = PrivateData.from_arrays(X, Y, classes=[0, 1], norm_bound=1.0, n_declared=200)
    search = PrivateSearch({"regularization": [0.1, 1.0]}, {"method": "output"}).fit(data)
    model = DPLogisticRegression(classes=[0, 1], norm_bound=1.0, n_declared=200).fit(X, Y)
    run = PrivateTrainer("logreg", "output").fit(data)
    return {"run": run, "search result": search.result_, "search": search, "estimator": model, "its": model.result_}


def result_of(holder: Any) -> Any:
    return getattr(holder, "result_", holder)


def check_nothing_private_shows() -> None:
    """repr, str and the released JSON of each result and of what holds it name no diagnostic."""
    for name, holder in holders().items():
        result = result_of(holder)
        assert leaks(str(result.private)), name  # the custodian can look
        shown = [repr(holder), str(holder), repr(result), f"{result}", repr([vars(result)]), repr(result.private)]
        shown += [dumps(result.to_dict()), repr(getattr(holder, "__dict__", {}))]
        for text in shown:
            assert not leaks(text), name


def check_nothing_private_leaves_with_a_copy() -> None:
    """Pickles, deep copies and ``asdict`` of each result and of what holds it are without the diagnostics."""
    for name, holder in holders().items():
        assert not leaks(pickle.dumps(holder)), name
        result = result_of(holder)
        copies = [pickle.loads(pickle.dumps(holder)), copy.deepcopy(holder)]
        assert all(len(result_of(one).private) == 0 for one in copies), name
        assert result_of(copies[0]).guarantee == result.guarantee
        assert not leaks(str(dataclasses.asdict(result))), name
        assert not leaks(str(dataclasses.astuple(result))), name
        assert not leaks(dumps(result.plan.to_dict())), name
        assert len(result.private) > 0
        assert result_of(copy.copy(holder)).guarantee == result.guarantee
