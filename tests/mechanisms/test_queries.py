"""Queries: exact values, exact sensitivities, and what hostile records contribute."""

from __future__ import annotations

import copy
import itertools
import json
import math
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpml.errors import ConfigError, DataError
from dpml.mechanisms.columns import Columns, as_columns
from dpml.mechanisms.custom import Custom, Vector
from dpml.mechanisms.parts import interval
from dpml.mechanisms.predicates import Where
from dpml.mechanisms.queries import Count, Histogram, Mean, Quantile, Query, Sum, Variance

ADD, REPLACE = "add_remove", "replace_one"
DATA: dict[str, Any] = {
    "age": np.array([10.0, 20.0, 30.0, 250.0, np.nan, -np.inf]),
    "town": ["a", "b", "a", None, "z", 3],
}


# -- reading data -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "data",
    [
        DATA,
        pd.DataFrame(DATA),
        np.array([DATA["age"], np.arange(6.0)]).T,
        np.array([DATA["age"], np.arange(6.0)], dtype=object).T,
        {"age": [10, 20.0, np.int64(30), 250, None, -math.inf]},
        {"age": pd.array([10, 20, 30, 250, None, -(10**9)], dtype="Int64")},
        {"age": ["10", 20.0, True + 29, "250", "text", "-inf"]},
    ],
    ids=["dict", "frame", "array", "objects", "list", "Int64", "mixed"],
)
def test_every_container_gives_the_same_numbers(data: Any) -> None:
    name: Any = 0 if isinstance(data, np.ndarray) else "age"
    numbers = as_columns(data).numbers(name)
    assert numbers[:3].tolist() == [10.0, 20.0, 30.0]
    assert np.isnan(numbers[4])
    assert Count().exact(data) == 6


def test_one_cell_does_not_change_how_others_are_read() -> None:
    clean = as_columns({"x": [1, 2.5, 3]})
    mixed = as_columns({"x": [1, 2.5, 3, "text", 10**400, 1j, pd.NA, np.datetime64("2020-01-01"), object()]})
    assert mixed.numbers("x")[:3].tolist() == clean.numbers("x").tolist()
    assert np.isnan(mixed.numbers("x")[3:]).all()
    assert Histogram("x", categories=[1, 3]).exact({"x": [1, 2.5, 3, "text", [], np.nan]}).tolist() == [1.0, 1.0]


def test_data_that_are_no_columns_are_refused() -> None:
    for bad in (3, "text", None, [1, 2], np.zeros(3), np.zeros((2, 2, 2)), {}, np.zeros((3, 0))):
        with pytest.raises(ConfigError):
            as_columns(bad)
    with pytest.raises(DataError, match="differ in length"):
        as_columns({"x": [1, 2], "y": [1]})
    with pytest.raises(DataError, match="'x'"):
        as_columns({"x": np.zeros((2, 2))})
    with pytest.raises(DataError, match="'x'"):
        as_columns({"x": "text"})
    with pytest.raises(ConfigError, match="twice"):
        as_columns(pd.DataFrame([[1, 2]], columns=["x", "x"]))
    with pytest.raises(ConfigError, match="column = 'height' is not allowed"):
        Sum("height", (0, 1)).evaluate(DATA)


def test_columns_hide_their_cells() -> None:
    columns = as_columns({"x": [31337.0]})
    assert "31337" not in repr(columns)
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="private"):
            act(columns)


# -- exact values -----------------------------------------------------------------------------------------------------
def test_values_by_hand() -> None:
    assert Count().exact(DATA) == 6
    assert Count(Where("age", ">", 15)).exact(DATA) == 3
    assert Sum("age", (0, 100)).exact(DATA) == 10 + 20 + 30 + 100 + 0 + 0
    assert Sum("age", (5, 100)).exact(DATA) == 10 + 20 + 30 + 100 + 5 + 5, "NaN is read as the bound nearest to 0"
    assert Sum("age", (-7, 100), where=Where("age", "present")).exact(DATA) == 160 - 7
    assert Mean("age", (0, 100)).exact(DATA) == pytest.approx((10 + 20 + 30 + 100 + 50 + 0) / 6, rel=1e-7)
    ages = np.array([10, 20, 30, 100, 50, 0.0])
    assert Variance("age", (0, 100)).exact(DATA) == pytest.approx(ages.var(), rel=1e-6)
    assert Histogram("town", categories=["a", "b", 3]).exact(DATA).tolist() == [2, 1, 1]
    assert Histogram("age", edges=[0, 20, 30, 100]).exact(DATA).tolist() == [2, 1, 2]
    assert Quantile("age", 0.5, (0, 100)).exact(DATA) == 20
    assert Quantile("age", 0.0, (0, 100)).exact(DATA) == 0
    assert Quantile("age", 1.0, (0, 100)).exact(DATA) == 100
    both = Vector([Count(), Mean("age", (0, 100))]).exact(DATA)
    assert both[0] == 6
    assert both[1] == Mean("age", (0, 100)).exact(DATA)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_no_record_has_an_answer(relation: str) -> None:
    empty = {"age": np.zeros(0), "town": []}
    assert Count().exact(empty, relation) == 0
    assert Sum("age", (-1, 2)).exact(empty, relation) == 0
    assert Mean("age", (0, 10)).exact(empty, relation) == 5
    assert Variance("age", (0, 10)).exact(empty, relation) == 12.5
    assert Histogram("town", categories=["a"]).exact(empty, relation).tolist() == [0]
    assert Quantile("age", 0.5, (0, 10)).exact(empty, relation) == 5


def test_a_mean_under_replace_one_divides_by_the_public_number() -> None:
    query = Mean("age", (0, 100))
    assert len(query.parts(ADD)) == 2
    assert len(query.parts(REPLACE)) == 1, "the number of records is public"
    assert len(Mean("age", (0, 100), where=Where("age", ">", 1)).parts(REPLACE)) == 2, "how many satisfy it is not"
    assert query.finish([np.array([60.0])], REPLACE, 6) == 60.0
    assert query.finish([np.array([60.0]), np.array([12.0])], ADD, None) == 55.0
    assert query.finish([np.array([60.0]), np.array([-3.0])], ADD, None) == 100.0, "divided by 1, clamped"


def test_sums_do_not_depend_on_the_order_and_are_exact() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=5000) * 10.0 ** rng.integers(-12, 3, size=5000)
    query = Sum("x", (-50.3, 77.7))
    total = query.exact({"x": values})
    assert all(query.exact({"x": rng.permutation(values)}) == total for _ in range(5))
    grid = interval((-50.3, 77.7))
    steps = [round(Fraction(min(max(value, -50.3), 77.7)) / Fraction(grid.step)) for value in values.tolist()]
    steps = [min(max(step, grid.low), grid.high) for step in steps]
    assert Fraction(total) == sum(steps) * Fraction(grid.step)
    assert total == pytest.approx(float(np.clip(values, -50.3, 77.7).sum()), abs=5000 * grid.step)


def test_rounding_is_inwards_and_keeps_nice_bounds() -> None:
    for bounds in [(0.0, 100.0), (-1.0, 1.0), (0.1, 0.3), (-1e-30, 3e-30), (1e30, 3e30), (-0.7, 1e5), (1990, 2030)]:
        grid = interval(bounds)
        assert bounds[0] <= grid.low * grid.step
        assert grid.high * grid.step <= bounds[1]
        assert math.frexp(grid.step)[0] == 0.5, "a power of two"
    assert Sum("x", (0, 100)).sensitivity(ADD) == 100.0
    assert Sum("x", (0.1, 0.3)).sensitivity(ADD) <= 0.3


def test_huge_sums_saturate() -> None:
    grid = interval((0.0, 1.0))
    assert grid.total(np.ones(3), 0.0, None) == 3.0
    high = type(grid)(0, 2**52, grid.step, False)
    assert high.total(np.full(9, 1e9), 0.0, None) == 2.0**53 * grid.step


# -- predicates -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (Where("age", "<", 20), [0, 5]),
        (Where("age", "<=", 20), [0, 1, 5]),
        (Where("age", ">=", 30), [2, 3]),
        (Where("age", "==", 20), [1]),
        (Where("age", "!=", 20), [0, 2, 3, 5]),
        (Where("age", "present"), [0, 1, 2, 3, 5]),
        (~Where("age", "present"), [4]),
        (Where("town", "in", ["a", 3]), [0, 2, 5]),
        (Where("town", "!=", "a"), [1, 4, 5]),
        (Where("town", "==", "a") & Where("age", ">", 15), [2]),
        (Where("town", "==", "b") | Where("age", ">", 100), [1, 3]),
        (lambda record: record["age"] > 25, [2, 3]),
        (lambda record: 1 / (record["age"] - 20) > 0, [2, 3]),  # raises for one record: that one is out
        (lambda record: record["nothing"], []),  # a session refuses it, since the column is missing
        (lambda record: {"a": True}[record["town"]], [0, 2]),
    ],
)
def test_predicates(where: Any, expected: list[int]) -> None:
    query = Count(where)
    assert np.flatnonzero(query.where.mask(as_columns(DATA))).tolist() == expected
    assert query.exact(DATA) == len(expected)


def test_predicates_are_refused_by_name() -> None:
    for bad in [
        ("age", "~", 3),
        ("age", "<", "x"),
        ("age", "<", math.nan),
        ("age", "==", None),
        ("age", "in", 3),
        ("age", "<", 10**400),
        ("age", "==", 10**400),
    ]:
        with pytest.raises(ConfigError, match=r"operator|value"):
            Where(*bad)
    with pytest.raises(ConfigError, match="where = 3"):
        Count(where=3)
    with pytest.raises(ConfigError, match="value"):
        Where("age", "present", 3)
    with pytest.raises(ConfigError, match="column = 'height'"):
        Count(Where("height", ">", 1)).exact(DATA)


# -- sensitivities ----------------------------------------------------------------------------------------------------
S = Where("x", "present")
CLOSED: list[tuple[Query, str, dict[str, float]]] = [
    (Count(), ADD, {"l1": 1, "l2": 1, "linf": 1}),
    (Count(), REPLACE, {"l1": 0, "l2": 0, "linf": 0}),
    (Count(S), REPLACE, {"l1": 1, "l2": 1, "linf": 1}),
    (Sum("x", (-2, 5)), ADD, {"l1": 5, "l2": 5, "linf": 5}),
    (Sum("x", (-2, 5)), REPLACE, {"l1": 7, "l2": 7, "linf": 7}),
    (Sum("x", (2, 5)), REPLACE, {"l1": 3, "l2": 3, "linf": 3}),
    (Sum("x", (2, 5), where=S), REPLACE, {"l1": 5, "l2": 5, "linf": 5}),
    (Sum("x", (-6, -2), where=S), REPLACE, {"l1": 6, "l2": 6, "linf": 6}),
    (Histogram("x", categories=["a", "b"]), ADD, {"l1": 1, "l2": 1, "linf": 1}),
    (Histogram("x", categories=["a", "b"]), REPLACE, {"l1": 2, "l2": math.sqrt(2), "linf": 1}),
    (Histogram("x", categories=["a"]), REPLACE, {"l1": 1, "l2": 1, "linf": 1}),
    (Histogram("x", edges=[0, 1, 2]), REPLACE, {"l1": 2, "l2": math.sqrt(2), "linf": 1}),
    (Mean("x", (0, 10)), ADD, {"l1": 6, "l2": math.hypot(5, 1), "linf": 5}),
    (Mean("x", (0, 10)), REPLACE, {"l1": 10, "l2": 10, "linf": 10}),
    (Mean("x", (0, 10), where=S), REPLACE, {"l1": 11, "l2": math.hypot(10, 1), "linf": 10}),
    (Variance("x", (0, 4)), ADD, {"l1": 2 + 2 + 1, "l2": 3, "linf": 2}),
    (Variance("x", (0, 4)), REPLACE, {"l1": 4 + 4, "l2": math.hypot(4, 4), "linf": 4}),
    (Vector([Count(), Sum("x", (0, 3))]), ADD, {"l1": 4, "l2": math.hypot(1, 3), "linf": 3}),
    (Custom(len, 2.0, "l1", size=4), ADD, {"l1": 2, "l2": 2, "linf": 2}),
    (Custom(len, 2.0, "l2", size=4), ADD, {"l1": 4, "l2": 2, "linf": 2}),
    (Custom(len, 2.0, "linf", size=4), ADD, {"l1": 8, "l2": 4, "linf": 2}),
    (Custom(len, 2.0, "l1", size=4), REPLACE, {"l1": 4, "l2": 4, "linf": 4}),
    (Custom(len, 2.0, neighboring_relation=REPLACE), REPLACE, {"l1": 2, "l2": 2, "linf": 2}),
]


@pytest.mark.parametrize(("query", "relation", "expected"), CLOSED)
def test_sensitivities_by_hand(query: Query, relation: str, expected: dict[str, float]) -> None:
    found = {norm: query.sensitivity(relation, norm) for norm in expected}
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_part_sensitivities_are_reached_and_never_passed(relation: str) -> None:
    """All neighbours over a few cells that hold every extreme: the largest distance *is* the declared one."""
    cells = [-3.0, 0.0, 2.0, 8.0, 99.0, -99.0, math.nan, math.inf]
    queries: list[Query] = [
        Count(Where("x", ">", 1)),
        Sum("x", (-3, 8)),
        Sum("x", (2, 8)),
        Sum("x", (2, 8), where=Where("x", ">", 0)),
        Mean("x", (-3, 8)),
        Variance("x", (-3, 8)),
        Histogram("x", categories=[0, 2, 8]),
        Histogram("x", edges=[0, 2, 8]),
    ]
    for query in queries:
        for part in query.parts(relation):
            largest = {"l1": 0.0, "l2": 0.0, "linf": 0.0}
            values = {cell: part.compute(as_columns({"x": np.array([1.0, cell])})) for cell in cells}
            without = part.compute(as_columns({"x": np.array([1.0])}))
            pairs = itertools.product(values.values(), values.values() if relation == REPLACE else [without])
            for left, right in pairs:
                gap = np.abs(left - right)
                sizes = {"l1": gap.sum(), "l2": np.sqrt((gap**2).sum()), "linf": gap.max()}
                largest = {norm: max(largest[norm], float(sizes[norm])) for norm in largest}
            declared = {norm: part.sensitivity(norm) for norm in largest}
            assert largest == pytest.approx(declared, rel=1e-12), (query, part.name)


# -- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [Sum, Mean, Variance, lambda name, bounds: Quantile(name, 0.5, bounds)])
@pytest.mark.parametrize(
    "bounds",
    [(0, math.inf), (-math.inf, 0), (math.nan, 1), (1, 1), (2, 1), None, 3, (1, 2, 3), ("a", "b"), (0, 1e200)],
)
def test_bounds_are_public_finite_and_apart(make: Any, bounds: Any) -> None:
    with pytest.raises(ConfigError, match="bounds"):
        make("x", bounds)


def test_other_refusals() -> None:
    with pytest.raises(ConfigError, match="bounds"):
        Sum("x", (1e9, 1e9 + 1e-3))
    for categories in (["a", "a"], [1, True], [], [math.nan], [None], [10**400], "abc", 3):
        with pytest.raises(ConfigError, match="categories"):
            Histogram("x", categories=categories)
    for edges in ([0], [0, 0], [1, 0], [0, math.inf], [0, math.nan], "ab"):
        with pytest.raises(ConfigError, match="edges"):
            Histogram("x", edges=edges)
    with pytest.raises(ConfigError, match="exactly one"):
        Histogram("x")
    for q in (-0.1, 1.1, math.nan, None):
        with pytest.raises(ConfigError, match="q = "):
            Quantile("x", q, (0, 1))
    for sensitivity in (0, -1, math.nan, math.inf, None):
        with pytest.raises(ConfigError, match="sensitivity"):
            Custom(len, sensitivity)
    with pytest.raises(ConfigError, match="norm"):
        Custom(len, 1.0, "l3")
    with pytest.raises(ConfigError, match="function"):
        Custom(3, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="queries"):
        Vector([])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="queries"):
        Vector([Quantile("x", 0.5, (0, 1))])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="replace_one"):
        Custom(len, 1.0, neighboring_relation=REPLACE).sensitivity(ADD)
    with pytest.raises(ConfigError, match="neighboring_relation"):
        Count().sensitivity("both")
    with pytest.raises(ConfigError, match="norm"):
        Count().sensitivity(ADD, "l3")


# -- custom functions -------------------------------------------------------------------------------------------------
def test_a_custom_function_that_fails_on_records_tells_nothing() -> None:
    def fails(columns: dict[Any, Any]) -> float:
        if columns["age"].size > 5:
            raise ValueError("a secret cell")
        return 7.0

    assert Custom(fails, 1.0).exact(DATA) == 0.0
    assert Custom(lambda columns: [1.0, np.nan, np.inf], 1.0, size=3).exact(DATA).tolist() == [1.0, 0.0, 0.0]
    assert Custom(lambda columns: [1.0, 2.0], 1.0, size=3).exact(DATA).tolist() == [0.0, 0.0, 0.0]


def test_a_custom_function_is_tried_on_made_up_records_first() -> None:
    seen: list[int] = []

    def wrong(columns: dict[Any, Any]) -> float:
        seen.append(columns["age"].size)
        return float(columns["heigth"].sum())

    with pytest.raises(ConfigError, match="KeyError"):
        Custom(wrong, 1.0).rehearse(as_columns(DATA).blank(0), ADD, None)
    with pytest.raises(ConfigError, match="KeyError"):
        Custom(wrong, 1.0).rehearse(as_columns(DATA).blank(0), REPLACE, 6)
    assert seen == [0, 6]
    with pytest.raises(ConfigError, match="2 numbers"):
        Custom(lambda columns: [1, 2], 1.0).rehearse(as_columns(DATA).blank(0), ADD, None)


def test_a_custom_function_cannot_change_the_records() -> None:
    columns = as_columns({"x": np.arange(3.0)})

    def spoils(cells: dict[Any, Any]) -> float:
        cells["x"][:] = 100.0
        return 0.0

    Custom(spoils, 1.0).exact(columns)
    assert columns.numbers("x").tolist() == [0.0, 1.0, 2.0]


def test_made_up_records_have_the_names_and_no_cell() -> None:
    blank = as_columns(DATA).blank(2)
    assert isinstance(blank, Columns)
    assert blank.names == ("age", "town")
    assert blank.numbers("age").tolist() == [0.0, 0.0]
    assert blank.raw("town").tolist() == ["", ""]


def test_descriptions_are_public_json() -> None:
    queries: list[Query] = [
        Count(Where("age", ">", 3) & ~Where("town", "in", ["a"])),
        Sum("age", (0, 1), where=lambda record: True),
        Histogram("age", edges=[0, 1]),
        Vector([Count(), Mean("age", (0, 1))]),  # type: ignore[arg-type]
        Custom(np.sum, 1.0, "l2", size=2),
        Quantile("age", 0.5, (0, 1)),
    ]
    texts = [json.dumps(query.describe()) for query in queries]
    assert texts[0] == '{"query": "Count", "where": "(age > 3) and (not (town in (\'a\',)))"}'
    assert '"bounds": [0.0, 1.0]' in texts[1]
    assert texts[3].count("query") == 3
    assert '"sensitivity": 1.0' in texts[4]


@pytest.mark.parametrize("operator", ["==", "!=", "in", "present"])
def test_predicates_read_numbers_and_objects_alike(operator: str) -> None:
    numbers = np.array([0.0, 1.0, 2.5, -0.0, math.nan, math.inf])
    as_objects = {"x": numbers.tolist()}
    for value in ([1, "1"], [True, 0], [], [2.5]):
        wanted = value if operator == "in" else None if operator == "present" else (value or ["1"])[0]
        where = Where("x", operator, wanted)
        fast, slow = (where.mask(as_columns(data)).tolist() for data in ({"x": numbers}, as_objects))
        assert fast == slow, where
