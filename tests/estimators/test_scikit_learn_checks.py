"""scikit-learn's own checks of an estimator, for every estimator, with the test-only settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from estimator_checks import under_test
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpml.estimators import SchemaEncoder

MISSING_TARGETS = (
    "a record with a target that is NaN contributes nothing and one that is infinite is clamped to target_bounds: an "
    "error would tell that such a record is there"
)

ESTIMATORS = [
    under_test("DPLogisticRegression"),
    under_test("DPLogisticRegression", method="output", fit_intercept=False),
    under_test("DPLinearSVC"),
    under_test("DPRidge"),
    under_test("DPSGDClassifier"),
    under_test("DPSGDClassifier", model="mlp", hidden=(8,), steps=40),
    under_test("DPSGDRegressor"),
    SchemaEncoder(default={"kind": "numeric", "bounds": [-10, 10]}),
    SchemaEncoder(default={"kind": "numeric", "bounds": [-10, 10], "encoding": "minmax"}, sparse_output=True),
]


def expected_failures(estimator: Any) -> dict[str, str]:
    """Checks that ask for what dpml must not do, with the reason."""
    if type(estimator).__name__ in ("DPRidge", "DPSGDRegressor"):
        return {"check_supervised_y_no_nan": MISSING_TARGETS}
    return {}


@pytest.fixture(autouse=True)
def _array_api_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # else scikit-learn skips the check with array API dispatch turned on


# as a list: scikit-learn 1.6 hands over a generator, which newer versions of pytest refuse
CHECKS = parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures).mark


@pytest.mark.parametrize(CHECKS.args[0], list(CHECKS.args[1]), **CHECKS.kwargs)
def test_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
