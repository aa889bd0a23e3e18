"""The public/private boundary of the estimators, and planted bugs that these tests must notice."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from estimator_checks import DECLARED, NoNoise, binary_task, under_test
from sklearn.model_selection import GridSearchCV, cross_val_score

from dpml import estimators as est
from dpml.data import Schema
from dpml.errors import BudgetExceededError, ConfigError
from dpml.estimators import base, schema_encoder
from dpml.mechanisms import FixedNoise
from dpml.results import CustodianOnly

NEEDED = {
    "DPLogisticRegression": ["classes", "norm_bound", "n_declared"],
    "DPLinearSVC": ["classes", "norm_bound", "n_declared"],
    "DPRidge": ["target_bounds", "norm_bound", "n_declared"],
    "DPSGDClassifier": ["classes", "norm_bound", "n_declared"],
    "DPSGDRegressor": ["target_bounds", "norm_bound", "n_declared"],
}
VALUES: dict[str, Any] = {"classes": ["no", "yes"], "norm_bound": 1.0, "n_declared": 100, "target_bounds": (0, 1)}


class Unreadable:
    """Data that complain when anybody looks."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the data were read ({name})")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the data were read")


# ------------------------------------------------------------------------------- checks, also run on planted bugs


def check_all_missing_declarations_are_named(name: str) -> None:
    """Every subset of the needed declarations: the error names those that are missing, and no data were read."""
    needed = NEEDED[name]
    for bits in range(2 ** len(needed) - 1):
        given = [key for k, key in enumerate(needed) if bits >> k & 1]
        with pytest.raises(ConfigError, match="must be declared") as caught:
            getattr(est, name)(**{key: VALUES[key] for key in given}).fit(Unreadable(), Unreadable())
        message = str(caught.value)
        named = message.split(" must be declared")[0].split(", ")
        assert named == [key for key in needed if key not in given]
        assert f"Example: {name}({needed[0]}=" in message


def check_classes_come_from_the_declaration() -> None:
    """A label that never occurs is a class; one that is not declared is none, and changes nothing."""
    X, y = binary_task(200)
    rare = y.astype(object)
    rare[5] = "perhaps"
    models = [
        est.DPLogisticRegression(2.0, classes=["no", "yes"], noise_source=FixedNoise(2), **DECLARED).fit(*data)
        for data in ((np.delete(X, 5, axis=0), np.delete(y, 5)), (X, rare))
    ]
    assert list(models[1].classes_) == ["no", "yes"]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
    alone = est.DPLogisticRegression(2.0, classes=["no", "yes"], **DECLARED).fit(X[y == "no"], y[y == "no"])
    assert alone.predict_proba(X).shape == (200, 2)


def check_labels_read_from_y_are_an_assumption() -> None:
    X, y = binary_task(50)
    model = under_test("DPLogisticRegression").fit(X, y)
    assert any("classes='from_y'" in text for text in model.guarantee_.assumptions)


def check_sample_weight_is_refused() -> None:
    X, y = binary_task(50)
    model = est.DPLogisticRegression(1.0, classes=["no", "yes"], **DECLARED)
    with pytest.raises(ConfigError, match="sample_weight is not allowed"):
        model.fit(X, y, sample_weight=np.full(50, 10.0))


def check_public_attributes_are_equal_for_neighbours() -> None:
    """All that a fit learns, weights and the custodian's ``result_`` aside, for tables that differ in a record."""
    X, y = binary_task(60)
    X2, y2 = np.vstack([X, [[50.0, np.nan, 1.0]]]), np.append(y, "unheard of")
    X3, y3 = X.copy(), y.copy()
    X3[0], y3[0] = [1e300, -1e300, 0.0], "yes"
    seen = []
    for data, labels in ((X, y), (X2, y2), (X3, y3)):
        frame = pd.DataFrame(data, columns=["a", "b", "c"])
        model = est.DPSGDClassifier(
            4.0, classes=["no", "yes"], expected_batch_size=50, steps=3, device="cpu", **DECLARED
        ).fit(frame, labels)
        found = {key: value for key, value in vars(model).items() if key not in ("result_", "coef_", "intercept_")}
        found["model_"] = replace(found["model_"], weights={})
        seen.append({key: str(value) for key, value in sorted(found.items())})
    assert seen[0] == seen[1] == seen[2]
    assert {"classes_", "feature_names_in_", "guarantee_", "model_", "n_features_in_", "n_iter_"} <= set(seen[0])


def check_the_encoder_learns_nothing() -> None:
    ordinary = pd.DataFrame({"a": [0.0, 1.0, 2.0]})
    strange = pd.DataFrame({"a": [-50.0, 1e6, np.nan]})
    declared: dict[str, Any] = {"kind": "numeric", "bounds": [0, 10]}
    features = [est.SchemaEncoder(default=declared).fit(frame).transform(ordinary) for frame in (ordinary, strange)]
    np.testing.assert_array_equal(features[0], features[1])


def check_saved_files_hold_no_diagnostics(folder: Path) -> None:
    """Counts of unusable records are private: they must not be in the folder that goes to the world."""
    X, y = binary_task(50)
    model = est.DPLogisticRegression(1.0, classes=["no", "yes"], **DECLARED).fit(np.vstack([X, X * np.nan]), [*y, *y])
    model.save(folder)
    content = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
    for word in (b"not_finite", b"unknown_labels", b'"used"', b"gradient_norm"):
        assert word not in content


def check_pickles_hold_no_diagnostics() -> None:
    X, y = binary_task(50)
    model = est.DPLogisticRegression(1.0, classes=["no", "yes"], **DECLARED).fit(np.vstack([X, X * np.nan]), [*y, *y])
    assert "not_finite" in str(model.result_.private)  # the check is not vacuous
    content = pickle.dumps(model)
    assert b"not_finite" not in content
    again = pickle.loads(content)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.result_.guarantee == model.guarantee_


# ------------------------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize("name", list(NEEDED))
def test_all_missing_declarations_are_named(name: str) -> None:
    check_all_missing_declarations_are_named(name)


@pytest.mark.parametrize("name", list(NEEDED))
def test_sample_weight_is_refused_before_data_are_read(name: str) -> None:
    declared = {key: VALUES[key] for key in NEEDED[name]}
    with pytest.raises(ConfigError, match="sample_weight is not allowed"):
        getattr(est, name)(**declared).fit(Unreadable(), Unreadable(), sample_weight=[1.0])
    with pytest.raises(TypeError, match="unexpected keyword argument 'coef_init'"):
        getattr(est, name)(**declared).fit(Unreadable(), Unreadable(), coef_init=None)


def test_sample_weight_none_is_no_weight() -> None:
    X, y = binary_task(50)
    est.DPLogisticRegression(1.0, classes=["no", "yes"], **DECLARED).fit(X, y, sample_weight=None)


def test_boundary(tmp_path: Path) -> None:
    check_classes_come_from_the_declaration()
    check_labels_read_from_y_are_an_assumption()
    check_sample_weight_is_refused()
    check_public_attributes_are_equal_for_neighbours()
    check_the_encoder_learns_nothing()
    check_saved_files_hold_no_diagnostics(tmp_path / "saved")
    check_pickles_hold_no_diagnostics()


def test_grid_search_works() -> None:
    X, y = binary_task(300)
    search = GridSearchCV(
        est.DPLogisticRegression(10.0, classes=["no", "yes"], **DECLARED), {"method": ["objective", "output"]}, cv=3
    ).fit(X, y)
    assert search.best_params_["method"] in ("objective", "output")
    assert search.predict(X).shape == (300,)


def test_with_a_data_set_ledger_every_fold_is_charged(tmp_path: Path) -> None:
    X, y = binary_task(300)
    declared: dict[str, Any] = {"classes": ["no", "yes"], "n_declared": 300, "norm_bound": 2.0, "delta": 1e-5}
    cap: dict[str, Any] = {"dataset_ledger": tmp_path / "ledger.jsonl", "dataset_epsilon": 3.5, "dataset_delta": 1e-3}
    model = est.DPLogisticRegression(1.0, **declared, **cap)
    assert len(cross_val_score(model, X, y, cv=3, error_score="raise")) == 3
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 3
    with pytest.raises(BudgetExceededError):
        model.fit(X, y)


@pytest.mark.parametrize(
    ("noise", "deterministic"),
    [(None, False), (FixedNoise(1), True), (NoNoise(), True)],
    ids=["secret", "fixed", "none"],
)
def test_the_tag_says_that_fits_differ(noise: Any, deterministic: bool) -> None:
    tags = est.DPLogisticRegression(noise_source=noise).__sklearn_tags__()
    assert tags.non_deterministic is not deterministic


# ---------------------------------------------------------------------------------------------------- planted bugs


def test_planted_needed_declarations_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(est.DPLogisticRegression, "_needed", ("classes", "n_declared"))
    with pytest.raises(AssertionError):
        check_all_missing_declarations_are_named("DPLogisticRegression")


def test_planted_declarations_asked_for_after_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    original = base.PrivateEstimator._ask_for_missing

    def late(self: Any) -> None:
        monkeypatch.setattr(base, "column_or_1d", lambda y, **_: original(self))

    monkeypatch.setattr(base.PrivateEstimator, "_ask_for_missing", late)
    with pytest.raises(AssertionError, match="the data were read"):
        check_all_missing_declarations_are_named("DPLogisticRegression")


def test_planted_classes_read_from_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base.ClassifierParts, "_facts", lambda self, y: ({"classes": sorted(set(y))}, ()))
    with pytest.raises((AssertionError, ValueError)):
        check_classes_come_from_the_declaration()


def test_planted_assumption_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    original = base.ClassifierParts._facts
    monkeypatch.setattr(base.ClassifierParts, "_facts", lambda self, y: (original(self, y)[0], ()))
    with pytest.raises(AssertionError):
        check_labels_read_from_y_are_an_assumption()


def test_planted_sample_weight_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_refuse", lambda given: None)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check_sample_weight_is_refused()


def test_planted_attribute_that_counts_records(monkeypatch: pytest.MonkeyPatch) -> None:
    original = base.PrivateEstimator._rows

    def counting(self: Any, X: Any, *, reset: bool) -> Any:
        rows = original(self, X, reset=reset)
        self.n_samples_seen_ = len(rows)
        return rows

    monkeypatch.setattr(base.PrivateEstimator, "_rows", counting)
    with pytest.raises(AssertionError):
        check_public_attributes_are_equal_for_neighbours()


def test_planted_bounds_read_from_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    original = schema_encoder.SchemaEncoder._frame

    def learning(self: Any, X: Any, schema: Schema | None, *, reset: bool) -> pd.DataFrame:
        frame = original(self, X, schema, reset=reset)
        if reset:
            self.default = {**self.default, "bounds": [float(frame["a"].min()), float(frame["a"].max())]}
        return frame

    monkeypatch.setattr(schema_encoder.SchemaEncoder, "_frame", learning)
    with pytest.raises(AssertionError):
        check_the_encoder_learns_nothing()


def test_planted_diagnostics_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = base.write_estimator

    def leaking(folder: Path, estimator: Any) -> None:
        original(folder, estimator)
        (folder / "result.json").write_text(str(estimator.result_.private))

    monkeypatch.setattr(base, "write_estimator", leaking)
    with pytest.raises(AssertionError):
        check_saved_files_hold_no_diagnostics(tmp_path / "saved")


def test_planted_diagnostics_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CustodianOnly, "__reduce__", lambda self: (CustodianOnly, (self._values,)))
    with pytest.raises(AssertionError):
        check_pickles_hold_no_diagnostics()


@pytest.mark.parametrize("name", NEEDED)
def test_a_refused_table_is_not_shown_in_the_message(name: str) -> None:
    """scikit-learn's own messages print the cells of complex tables and of those that are no table."""
    secret = 0.123456789
    model = getattr(est, name)(**{key: VALUES[key] for key in NEEDED[name]})
    for bad in (np.full((3, 2), secret + 1j), np.full(3, secret), [secret, 0.5], pd.Series([secret]), np.array(secret)):
        with pytest.raises(ValueError, match=r"Complex data not supported|Expected 2D array") as refusal:
            model.fit(bad, np.arange(np.size(bad)) % 2)
        assert "1234" not in str(refusal.value)
