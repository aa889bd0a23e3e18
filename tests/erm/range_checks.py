"""Checks of the public ranges of plans; tests and planted bugs share them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from dpml import erm
from dpml.erm.losses import make_loss
from dpml.errors import ConfigError

PLANS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "output": (erm.plan_output, {}),
    "output, gamma": (erm.plan_output, {"noise": "gamma", "delta": 0.0}),
    "output, softmax": (erm.plan_output, {"loss": "softmax", "n_classes": 3}),
    "objective": (erm.plan_objective, {}),
    "objective, pure": (erm.plan_objective, {"variant": "pure", "delta": 0.0}),
    "ridge": (erm.plan_output_ridge, {}),
    "adassp": (erm.plan_adassp, {}),
    "adassp, adaptive": (erm.plan_adassp, {"variant": "adassp"}),
    "dp_gd": (erm.plan_dp_gd, {}),
    "dp_gd, clipped": (erm.plan_dp_gd, {"loss": make_loss("squared", 1.0)}),
}
SCALES = ("noise_std", "gram_std", "cross_std", "minimum_std", "sensitivity", "output_sensitivity", "output_std")


def plan(name: str, **changes: Any) -> Any:
    make, own = PLANS[name]
    return make(**{"n_declared": 100, "n_features": 3, "epsilon": 1.0, "delta": 1e-5, **own, **changes})


def usable_scales(made: Any) -> bool:
    values = [getattr(made, name, None) for name in SCALES]
    return all(value is None or 1e-290 < value < math.inf for value in values)


def check_norm_bounds_are_one_range() -> None:
    """One public range of norm_bound for every plan, a named refusal beyond it."""
    for name in PLANS:
        for relation in ("add_remove", "replace_one"):
            for good in (1e-6, 1e5, 1):
                if relation == "add_remove" or "pure" not in name:
                    assert usable_scales(plan(name, norm_bound=good, neighboring_relation=relation)), (name, good)
        for bad in (9e-7, 2e6, 1e200, 1e-170, 0, -1.0, math.inf, math.nan, None, "1", True):
            with pytest.raises(ConfigError, match=r"norm_bound = .* is not allowed: it must be a number > 0 \(from"):
                plan(name, norm_bound=bad)


def check_no_plan_without_noise(method: str) -> None:
    """Arguments under which noise or sensitivity leave the floats are refused as the plan is made, by name."""
    extremes: dict[str, list[dict[str, Any]]] = {
        "output": [{"regularization": 1e305}, {"regularization": 1e308}],
        "adassp": [{"regularization": 1e308}],
    }
    for changes in extremes[method]:
        with pytest.raises(ConfigError, match=r"give a plan with \w+ = .*: it must be a finite number > 0"):
            plan(method, norm_bound=1e-6, **changes)
