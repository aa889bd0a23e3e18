"""Public ranges of the plans' arguments: everything is refused by name before anything is charged."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import range_checks as checks

from dpml import PrivateData, PrivateTrainer, erm
from dpml.erm.losses import make_loss
from dpml.erm.rules import check_scales
from dpml.errors import ConfigError, DpmlError

ROWS = json.loads((Path(__file__).parents[1] / "reference" / "private_erm.json").read_text())["rows"]
BY_ACTUAL_SIZE = [row for row in ROWS if row["quantity"] == "output_sensitivity_add_remove_actual_n"]


def test_norm_bounds_are_one_range() -> None:
    checks.check_norm_bounds_are_one_range()


@pytest.mark.parametrize("method", ["output", "adassp"])
def test_no_plan_without_noise(method: str) -> None:
    checks.check_no_plan_without_noise(method)


def test_scales_are_normal_floats() -> None:
    check_scales({"norm_bound": 1.0}, noise_std=1e-290, sensitivity=1e300, other=None)
    for value in (0.0, 1e-300, 5e-324, math.inf, math.nan, -1.0):
        with pytest.raises(ConfigError, match=r"norm_bound = 1\.0 give a plan with noise_std = "):
            check_scales({"norm_bound": 1.0}, noise_std=value)


@pytest.mark.parametrize("name", checks.PLANS)
def test_a_plan_is_usable_or_refused_by_name(name: str) -> None:
    """Corners of all ranges: a plan whose noise floats can hold, or a dpml error; never an OverflowError say."""
    relations = ("replace_one",) if "pure" in name else ("add_remove", "replace_one")
    corners = product((1e-6, 1e6), (1e-6, 1e9), (1, 10**12), (1e-300, 1.0, 1e308), relations)
    made = 0
    for norm_bound, solution_norm, n, regularization, relation in corners:
        own = {} if "adaptive" in name else {"regularization": regularization}
        changes: dict[str, Any] = {"norm_bound": norm_bound, "solution_norm": solution_norm, "n_declared": n, **own}
        try:
            found = checks.plan(name, neighboring_relation=relation, **changes)
        except DpmlError:
            continue
        assert checks.usable_scales(found), changes
        made += 1
    assert made >= 4


BAD: dict[str, list[Any]] = {
    "n_declared": ["a", None, 2.5, 0, True, math.nan],
    "n_features": ["a", 0, 1.5],
    "epsilon": ["1", None, 0, -1, math.inf, 1e5, 1e-7, True],
    "delta": ["x", None, 0, 1, math.nan],
    "solution_norm": ["5", 0, None, 1e10],
    "regularization": [None, "none", True, 0, -1, math.inf],
}


@pytest.mark.parametrize("argument", BAD)
def test_bad_values_are_named(argument: str) -> None:
    for value in BAD[argument]:
        with pytest.raises(ConfigError, match=f"{argument} = "):
            checks.plan("output", **{argument: value})


def test_a_loss_parameter_is_called_so() -> None:
    for name in ("smoothed_hinge", "huber"):
        for value in (1e-9, 1e9, "a", True):
            with pytest.raises(ConfigError, match="loss_parameter = "):
                make_loss(name, value)
    with pytest.raises(ConfigError, match="loss_parameter = 1e-09"):
        PrivateTrainer("linear_svm", "output", loss_parameter=1e-9)
    assert make_loss("huber", 0.5).slope_bound == 0.5


@pytest.mark.parametrize("row", BY_ACTUAL_SIZE, ids=[row["id"] for row in BY_ACTUAL_SIZE])
def test_dividing_by_the_actual_size_would_cost_twice(row: dict[str, Any]) -> None:
    """2L/(nΛ) of an objective that is divided by the actual number of records, n the larger one, under add_remove.

    No method here divides by it (n is private): the plan's λ is n_declared·Λ whatever is there, and its sensitivity is
    half of the table's, which is that of replacing a record.
    """
    inputs, value = {key: float(number) for key, number in row["inputs"].items()}, float(row["value"])
    plans = {
        relation: erm.plan_output(
            n_declared=int(inputs["n"]),
            n_features=3,
            epsilon=1.0,
            delta=1e-5,
            norm_bound=inputs["lipschitz"],
            regularization=inputs["lambda"],
            neighboring_relation=relation,
        )
        for relation in ("add_remove", "replace_one")
    }
    assert value / 2 < plans["add_remove"].sensitivity <= value / 2 * (1 + 1e-5)
    assert value < plans["replace_one"].sensitivity <= value * (1 + 1e-5)
    # two records of one side, one of them removed: the minima differ by no more than the plan says
    x, y = np.full((2, 3), 0.5), np.ones(2)
    silent = _Silent()
    both, one = (
        erm.fit_output(plans["add_remove"], x[:k], y[:k], noise=silent, charge=lambda _: None)[0] for k in (2, 1)
    )
    assert 0 < np.linalg.norm(both - one) <= plans["add_remove"].sensitivity


class _Silent:
    secret = False

    def normal(self, std: float, shape: Any) -> np.ndarray:
        return np.zeros(shape)

    def uniform(self, size: Any) -> np.ndarray:
        return np.zeros(size)


def test_a_plan_beyond_the_range_is_refused_before_the_data_are_read() -> None:
    data = PrivateData.from_arrays(np.ones((2, 1)), [0, 1], classes=[0, 1], norm_bound=1e100, n_declared=9)
    with pytest.raises(ConfigError, match=r"norm_bound = 1e\+100"):
        PrivateTrainer("logreg", "output").plan(data)
