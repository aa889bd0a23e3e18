"""How many runs fit under a data set's cap by each filter: what README.md says of them, from plans alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpml import PrivateData, PrivateTrainer
from dpml.accounting.dataset_ledger import DatasetLedger
from dpml.errors import BudgetExceededError

GAUSSIAN = {("logreg", "output"), ("logreg", "dp_gd"), ("ridge", "adassp")}
OTHERS = {("logreg", "objective"), ("logreg", "dp_sgd")}


def fitting(folder: Path, model: str, method: str, kind: str) -> tuple[int, str]:
    """How many runs of ε = 1 a cap of 4 takes, and why the next one is refused."""
    target: dict[str, Any] = {"target_bounds": (0, 1)} if model == "ridge" else {"classes": [0, 1]}
    data = PrivateData.from_arrays([[1.0]], [0], norm_bound=1.0, n_declared=600, **target)
    steps: dict[str, Any] = {"steps": 50, "device": "cpu"} if method == "dp_sgd" else {}
    plan = PrivateTrainer(model, method, epsilon=1.0, delta=1e-5, **steps).plan(data)
    book = DatasetLedger(folder / f"{model}.{method}.{kind}", 4.0, 1e-3, filter=kind)
    for count in range(40):
        try:
            book.reserve(f"run {count}", plan.guarantee.epsilon, plan.guarantee.delta, plan.event)
        except BudgetExceededError as error:
            return count, str(error)
    raise AssertionError("the cap was never reached")


@pytest.mark.parametrize(("model", "method"), sorted(GAUSSIAN | OTHERS))
def test_more_runs_fit_as_the_readme_says(tmp_path: Path, model: str, method: str) -> None:
    counts = {kind: fitting(tmp_path, model, method, kind)[0] for kind in ("basic", "zcdp", "renyi")}
    assert counts["basic"] == 4
    assert counts["renyi"] > 4
    assert (counts["zcdp"] > 4) == ((model, method) in GAUSSIAN)


def test_a_refusal_speaks_of_the_run_and_not_of_events(tmp_path: Path) -> None:
    _, text = fitting(tmp_path, "logreg", "objective", "zcdp")
    assert "epsilon_delta" not in text
    assert "by the filter 'zcdp'. It is charged by its promise (epsilon = 1, delta = 1e-05)" in text
    assert "Nothing was used. Lower the run's budget" in text
    assert "charged by what its method releases" in fitting(tmp_path, "logreg", "output", "renyi")[1]
