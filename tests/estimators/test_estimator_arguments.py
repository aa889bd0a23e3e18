"""Arguments of the estimators that would else be taken in silence for something else, and labels read from y."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpml import PrivateData, PrivateTrainer
from dpml import estimators as est
from dpml.errors import ConfigError, SchemaError

X = np.arange(40.0).reshape(20, 2) / 40
Y = [0, 1] * 10
LINEAR = ["DPLogisticRegression", "DPLinearSVC", "DPRidge"]
ALL = [*LINEAR, "DPSGDClassifier", "DPSGDRegressor"]


def made(name: str, **changes: Any) -> Any:
    target = {"target_bounds": (0, 1)} if name in ("DPRidge", "DPSGDRegressor") else {"classes": [0, 1]}
    return getattr(est, name)(**{"norm_bound": 1.0, "n_declared": 50, **target, **changes})


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fit_intercept": "no"}, "fit_intercept = 'no' is not allowed: it must be True or False"),
        ({"fit_intercept": 3}, "fit_intercept = 3 is not allowed"),
        ({"epsilon": None}, "epsilon = None"),
        ({"norm_bound": 0}, r"norm_bound = 0 is not allowed: it must be a number > 0 \(from 1e-06 to 1e\+06\)"),
        ({"noise_source": "x"}, "noise_source = 'x' is not allowed"),
    ],
)
def test_refusals_by_name(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        made(name, **changes).fit(X, Y)
    assert "or None" not in str(caught.value)  # which would be refused as well


def test_classes_in_a_set_are_refused() -> None:
    with pytest.raises(SchemaError, match="classes is a set, which has no order"):
        made("DPLogisticRegression", classes={"a", "b"}).fit(X, Y)


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        ([1, 2, "other"] * 7, [1, 2, "other"]),
        ([True, False, 1] * 7, [False, True]),
        (["b", "a", "a"] * 7, ["a", "b"]),
        ([2**53 + 1, 2**53, 2**53] * 7, [2**53, 2**53 + 1]),
        ([1.0, 0, 1] * 7, [0, 1]),
    ],
)
def test_labels_read_from_a_list_stay_what_they_are(y: list[Any], classes: list[Any]) -> None:
    model = made("DPLogisticRegression", classes="from_y").fit(np.ones((21, 1)), y)
    assert model.classes_.tolist() == classes
    assert model.result_.private["train"]["used"] == 21


@pytest.mark.parametrize("y", [[0, None] * 10, [0, float("nan")] * 10, [0, (1, 2)] * 10, [0.5, 1.5] * 10, [1] * 20])
def test_labels_read_from_a_list_must_be_labels(y: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"from_y|label type"):
        made("DPLogisticRegression", classes="from_y").fit(X, y)


def test_scoring_reads_cell_by_cell() -> None:
    model = made("DPLogisticRegression").fit(X, Y)
    np.testing.assert_array_equal(
        model.decision_function([["0.5", 1], ["x", 1], [0.5, 10**400]]),
        model.decision_function(np.array([[0.5, 1], [np.nan, 1], [0.5, np.nan]])),
    )


def test_an_array_without_a_row_is_refused_before_the_charge() -> None:
    """scikit-learn's rule, for whoever holds the data; the trainer takes an empty table like any other."""
    with pytest.raises(ValueError, match="minimum of 1 is required"):
        made("DPLogisticRegression").fit(X[:0], [])
    data = PrivateData.from_arrays(X[:0], [], classes=[0, 1], norm_bound=1.0, n_declared=50)
    assert PrivateTrainer("logreg", "output").fit(data).guarantee.epsilon <= 1.0


def test_a_method_without_a_proof_names_the_assumption() -> None:
    with pytest.raises(ConfigError, match=r"its proof needs a convex loss of a linear model\. Use method='dp_sgd'"):
        PrivateTrainer("mlp", "objective")
