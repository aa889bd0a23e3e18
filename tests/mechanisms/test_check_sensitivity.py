"""The search for neighbours that prove a declared sensitivity wrong: it finds planted ones, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dpml.errors import ConfigError
from dpml.mechanisms import Count, Custom, Histogram, Mean, Quantile, Sum, Variance, Vector, Where, check_sensitivity
from dpml.mechanisms.queries import Query
from dpml.mechanisms.sensitivity_search import SensitivityCheck

ADD, REPLACE = "add_remove", "replace_one"


def person(rng: np.random.Generator) -> dict[str, Any]:
    return {"age": float(rng.uniform(0, 100)), "pay": float(rng.normal(50, 20)), "town": str(rng.choice(["a", "b"]))}


RIGHT: list[Query] = [
    Count(),
    Count(Where("town", "==", "a") | Where("age", ">", 60)),
    Count(lambda record: record["age"] > 10),
    Sum("age", (0, 100)),
    Sum("pay", (-10, 90), where=Where("town", "==", "a")),
    Mean("age", (0, 100)),
    Variance("pay", (-10, 90)),
    Histogram("town", categories=["a", "b", "c"]),
    Histogram("age", edges=[0, 30, 60, 90]),
    Quantile("age", 0.5, (0, 100)),
    Vector([Mean("age", (0, 100)), Histogram("town", categories=["a", "b"])]),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("query", RIGHT, ids=lambda query: type(query).__name__)
def test_no_violation_of_the_queries_own_sensitivity(query: Query, relation: str) -> None:
    found = check_sensitivity(query, person, relation, n=6, trials=120, seed=1)
    assert found.holds, found
    assert found.tried == 240


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("query", RIGHT[1:9], ids=lambda query: type(query).__name__)
def test_the_search_reaches_the_sensitivity(query: Query, relation: str) -> None:
    """Its power: for every query some pair is found that is at least 99.9 % as far apart as declared."""
    found = check_sensitivity(query, person, relation, n=6, trials=300, seed=2)
    assert found.distance >= 0.999 * found.sensitivity > 0, found


def ages(columns: Mapping[Any, Any]) -> Any:
    return np.clip(np.nan_to_num(columns["age"], nan=0.0), 0, 100)


WRONG: dict[str, tuple[Custom, str]] = {
    "sum of 100 declared as 1": (Custom(lambda c: ages(c).sum(), 1.0), ADD),
    "a little too small": (Custom(lambda c: ages(c).sum(), 99.9), ADD),
    "half of replace_one": (Custom(lambda c: ages(c).sum(), 50.0, neighboring_relation=REPLACE), REPLACE),
    "mean over the actual number": (Custom(lambda c: ages(c).mean() if ages(c).size else 0.0, 100 / 6), ADD),
    "clamp forgotten": (Custom(lambda c: np.nan_to_num(c["age"]).sum(), 100.0), ADD),
    "NaN passes the clamp": (Custom(lambda c: np.clip(c["age"], 0, 100).sum(), 100.0), ADD),
    "square taken as the number": (Custom(lambda c: (ages(c) ** 2).sum(), 100.0), ADD),
    "L2 of a histogram declared as of one count": (
        Custom(lambda c: np.histogram(ages(c), [0, 50, 101])[0], 1.0, "l2", size=2, neighboring_relation=REPLACE),
        REPLACE,
    ),
    "largest value": (Custom(lambda c: ages(c).max(initial=0.0), 50.0), ADD),
    "ranks": (Custom(lambda c: np.sort(ages(c))[ages(c).size // 2] if ages(c).size else 0.0, 30.0), ADD),
    "linf declared, l1 meant": (Custom(lambda c: [ages(c).sum(), ages(c).sum()], 50.0, "linf", size=2), ADD),
    "a metric": (Custom(lambda c: [ages(c).sum()] * 2, 100.0, lambda a, b: float(np.abs(a - b).sum()), size=2), ADD),
    "compares with the first record": (Custom(lambda c: float((c["pay"] > c["pay"][:1]).sum()), 1.0), ADD),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_declaration_is_found(name: str) -> None:
    query, relation = WRONG[name]
    found = check_sensitivity(query, person, relation, n=6, trials=200, seed=3)
    assert not found.holds, found


def test_the_pair_proves_it() -> None:
    query = Custom(lambda c: ages(c).sum(), 60.0)
    found = check_sensitivity(query, person, ADD, n=5, seed=4)
    left, right = found.pair
    assert len(right) == len(left) + 1
    assert found.sensitivity == 60.0
    assert found.norm == "l1"

    def total(records: list[dict[Any, Any]]) -> float:
        cells = [record["age"] for record in records]
        numbers = [float(cell) if isinstance(cell, int | float) else np.nan for cell in cells]
        return float(ages({"age": np.array(numbers)}).sum())

    assert total(right) - total(left) == pytest.approx(found.distance)
    replaced = check_sensitivity(Sum("age", (0, 100)), person, REPLACE, n=5, seed=4)
    left, right = replaced.pair
    assert len(left) == len(right) == 5
    assert sum(one is not other for one, other in zip(left, right, strict=True)) == 1


def test_a_right_custom_declaration_is_not_accused() -> None:
    for query, relation in [
        (Custom(lambda c: ages(c).sum(), 100.0), ADD),
        (Custom(lambda c: ages(c).sum(), 100.0), REPLACE),
        (Custom(lambda c: ages(c).mean(), 100 / 6, neighboring_relation=REPLACE), REPLACE),
        (Custom(lambda c: [ages(c).sum()] * 2, 100.0, lambda a, b: float(np.abs(a - b).max()), size=2), ADD),
    ]:
        assert check_sensitivity(query, person, relation, n=6, trials=200, seed=5).holds


def test_the_same_seed_searches_the_same() -> None:
    query = Custom(lambda c: ages(c).max(initial=0.0), 50.0)
    first, second = (check_sensitivity(query, person, ADD, n=4, trials=20, seed=7) for _ in range(2))
    assert isinstance(first, SensitivityCheck)
    assert (first.distance, first.tried) == (second.distance, second.tried)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="query"):
        check_sensitivity(3, person)  # type: ignore[arg-type]
    for name in ("n", "trials"):
        with pytest.raises(ConfigError, match=name):
            check_sensitivity(Count(), person, **{name: 0})
    with pytest.raises(ConfigError, match="neighboring_relation"):
        check_sensitivity(Count(), person, "both")
    with pytest.raises(ConfigError, match="column"):
        check_sensitivity(Sum("height", (0, 1)), person)
    with pytest.raises(ConfigError, match="KeyError"):
        check_sensitivity(Custom(lambda c: c["height"].sum(), 1.0), person)
