"""Test-only settings for scikit-learn's own checks of the estimators, and small tasks with known answers.

The settings: a large ε, no noise, and declarations that fit the checks' data.  Nothing of this is private, and the
guarantee of such a fit says so.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpml import estimators as est


class NoNoise:
    """A noise source without noise, the same at every call."""

    secret = False

    def __repr__(self) -> str:
        return "NoNoise()"

    def normal(self, std: float, shape: Any) -> np.ndarray:
        assert math.isfinite(std)
        assert std >= 0
        return np.zeros(shape)

    def uniform(self, size: Any) -> np.ndarray:
        return np.zeros(size)  # every coin takes its record, whatever the rate


def test_settings(name: str) -> dict[str, Any]:
    """Parameters of the estimator class ``name`` for scikit-learn's checks."""
    common: dict[str, Any] = {"epsilon": 1e4, "norm_bound": 20.0, "n_declared": 100, "noise_source": NoNoise()}
    full_batch: dict[str, Any] = {"expected_batch_size": 100, "device": "cpu"}
    return {
        "DPLogisticRegression": {**common, "classes": "from_y"},
        "DPLinearSVC": {**common, "classes": "from_y"},
        "DPRidge": {**common, "target_bounds": (-5.0, 5.0)},
        "DPSGDClassifier": {**common, "norm_bound": 5.0, "classes": "from_y", "steps": 30, **full_batch},
        "DPSGDRegressor": {**common, "target_bounds": (-5.0, 5.0), "steps": 40, **full_batch},
    }[name]


test_settings.__test__ = False  # type: ignore[attr-defined]


def under_test(name: str, **more: Any) -> Any:
    """The estimator class ``name`` with its test-only settings."""
    return getattr(est, name)(**{**test_settings(name), **more})


DECLARED: dict[str, Any] = {"norm_bound": 2.5, "n_declared": 2_000}
WEIGHTS = np.array([2.0, -1.0, 0.5])


def binary_task(n: int = 2_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows in a cube and labels "no"/"yes" from a noisy half-space; the best accuracy is near 0.93."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    return X, np.where(X @ WEIGHTS + 0.2 + 0.3 * rng.normal(size=n) > 0, "yes", "no")


def three_class_task(n: int = 2_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three well separated clouds in the plane, labels 10, 20, 30."""
    rng = np.random.default_rng(seed)
    index = rng.integers(0, 3, size=n)
    centres = np.array([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
    return centres[index] + 0.2 * rng.normal(size=(n, 2)), 10 * (index + 1)


def regression_task(n: int = 2_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows in a cube and y = 50 + 10·(Xw) + noise of standard deviation 2, within (0, 100)."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    return X, 50.0 + 10.0 * (X @ WEIGHTS) + 2.0 * rng.normal(size=n)
