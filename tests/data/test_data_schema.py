"""Schemas: what is accepted, and the message for every fault."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from dpml.data import CategoricalColumn, IgnoredColumn, NumericColumn, Schema
from dpml.data.columns import text_of
from dpml.data.schema import as_schema
from dpml.errors import SchemaError

GOOD: dict[str, Any] = {
    "n_declared": 1000,
    "target": {"name": "income", "classes": ["low", "high"]},
    "norm_bound": 2.0,
    "columns": {
        "age": {"kind": "numeric", "bounds": [17, 90]},
        "gain": {"kind": "numeric", "bounds": [0, 99999], "scale": "log1p"},
        "hours": {"kind": "numeric", "bounds": [1, 99], "encoding": "minmax", "on_invalid": "drop"},
        "race": {"kind": "categorical", "categories": ["A", "B", 3], "on_invalid": "zero"},
        "id": {"kind": "ignore"},
    },
}


def changed(path: str, value: Any = None, *, delete: bool = False) -> dict[str, Any]:
    """GOOD with one value replaced or deleted; ``path`` is dotted."""
    schema = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    place = schema
    for key in parents:
        place = place[key]
    if delete:
        del place[last]
    else:
        place[last] = value
    return schema


def test_defaults_follow_the_scale_and_the_order_is_kept() -> None:
    schema = Schema.from_dict(GOOD)
    assert schema.column("age") == NumericColumn("age", (17.0, 90.0), "linear", 6, "spline", "clamp")
    assert schema.column("gain") == NumericColumn("gain", (0.0, 99999.0), "log1p", 8, "spline", "clamp")
    assert schema.column("race") == CategoricalColumn("race", ("A", "B", "3"), "zero")
    assert schema.column("id") == IgnoredColumn("id")
    assert [column.name for column in schema.features] == ["age", "gain", "hours", "race"]
    assert schema.is_public is False, "data are private unless somebody says otherwise"
    assert schema.norm_bound == 2.0
    assert schema.classes == ("low", "high")


def test_dict_and_file_round_trips(tmp_path: Path) -> None:
    schema = Schema.from_dict(GOOD)
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(schema.to_dict()), "utf-8")
    assert Schema.load(path) == schema
    assert as_schema(path) == as_schema(str(path)) == as_schema(GOOD) == as_schema(schema) == schema


def test_a_number_to_predict_has_bounds_in_place_of_classes(tmp_path: Path) -> None:
    schema = Schema.from_dict(changed("target", {"name": "income", "bounds": [0, 500_000]}))
    assert schema.classes == ()
    assert schema.target_bounds == (0.0, 500_000.0)
    assert schema.to_dict()["target"] == {"name": "income", "bounds": [0.0, 500_000.0]}
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    assert Schema.from_dict(GOOD).target_bounds is None
    assert schema.without_splines().target_bounds == schema.target_bounds


FAULTS = [
    ("n_declared", "DELETE", "n_declared is missing.*nominal"),
    ("n_declared", 0, r"n_declared = 0 .*whole number > 0"),
    ("n_declared", -5, r"n_declared = -5 .*whole number > 0"),
    ("n_declared", 10.5, r"n_declared = 10\.5 .*whole number > 0"),
    ("n_declared", True, r"n_declared = True .*whole number > 0"),
    ("n_declared", "1000", r"n_declared = '1000' .*whole number > 0"),
    ("target", "DELETE", "target is missing"),
    ("target", "income", "target = 'income'.*object"),
    ("target.classes", "DELETE", "target 'income': classes is missing.*private"),
    ("target.classes", ["low"], "two or more different labels"),
    ("target.classes", [], "two or more different labels"),
    ("target.classes", "low", "two or more different labels"),
    ("target.classes", ["low", "low"], "class 'low' is listed twice"),
    ("target.classes", ["1", 1], "class 1 is listed twice"),
    ("target.classes", ["low", None], "class = None"),
    ("target.name", 3, "name = 3"),
    ("target.bounds", [0, 1], "target 'income' has both classes and bounds"),
    ("target", {"name": "income", "bounds": [1, 0]}, r"target 'income': bounds = \[1, 0\].*min < max"),
    ("target", {"name": "income", "bounds": [0, None]}, "target 'income': bounds.*pair of finite numbers"),
    ("target", {"name": "income", "bounds": 5}, "target 'income': bounds = 5.*pair of finite numbers"),
    ("target", {"name": "income"}, "classes is missing.*or give bounds"),
    ("target.clases", ["low", "high"], "unknown key 'clases'.*Did you mean 'classes'"),
    ("columns", "DELETE", "columns = None"),
    ("columns", {}, "columns = {}"),
    ("columns", {"id": {"kind": "ignore"}}, "every column is ignored"),
    ("columns.income", {"kind": "ignore"}, "'income' is the target"),
    ("columns.age", 5, "column 'age': entry = 5"),
    ("columns.age.kind", "DELETE", "column 'age': kind is missing"),
    ("columns.age.kind", "numerical", "column 'age': kind = 'numerical'.*Did you mean 'numeric'"),
    ("columns.age.bound", [0, 1], "column 'age': unknown key 'bound'.*Did you mean 'bounds'"),
    ("columns.race.bounds", [0, 1], "column 'race': unknown key 'bounds'"),
    ("columns.id.bounds", [0, 1], "column 'id': unknown key 'bounds'"),
    ("columns.age.bounds", "DELETE", "column 'age': bounds is missing.*private"),
    ("columns.age.bounds", [90, 17], r"column 'age': bounds = \[90, 17\].*min < max"),
    ("columns.age.bounds", [17, 17], r"column 'age': bounds = \[17, 17\].*min < max"),
    ("columns.age.bounds", [17], "column 'age': bounds.*pair of finite numbers"),
    ("columns.age.bounds", [17, "90"], "column 'age': bounds.*pair of finite numbers"),
    ("columns.age.bounds", [17, float("inf")], "column 'age': bounds.*pair of finite numbers"),
    ("columns.age.bounds", [float("nan"), 1], "column 'age': bounds.*pair of finite numbers"),
    ("columns.age.bounds", [0, 10**400], "column 'age': bounds.*pair of finite numbers"),
    ("columns.age.bounds", [-1e308, 1e308], "column 'age': bounds.*min < max"),
    ("columns.age.scale", "log", "column 'age': scale = 'log'.*linear, log1p"),
    ("columns.gain.bounds", [-1, 5], "column 'gain': bounds.*above -1 for scale log1p.*linear"),
    ("columns.age.knots", 1, "column 'age': knots = 1.*from 2"),
    ("columns.age.knots", 2.0, r"column 'age': knots = 2\.0"),
    ("columns.age.knots", 10**6, "column 'age': knots"),
    ("columns.hours.knots", 4, "column 'hours': knots has no meaning with encoding minmax"),
    ("columns.age.encoding", "splines", "column 'age': encoding.*Did you mean 'spline'"),
    ("columns.age.on_invalid", "other", "column 'age': on_invalid = 'other'.*clamp, drop, error"),
    ("columns.race.on_invalid", "clamp", "column 'race': on_invalid = 'clamp'.*other, zero, drop, error"),
    ("columns.race.categories", "DELETE", "column 'race': categories is missing"),
    ("columns.race.categories", [], "column 'race': categories"),
    ("columns.race.categories", ["A", " A"], "column 'race': the category 'A' is listed twice"),
    ("columns.race.categories", ["A", None], "column 'race': category = None"),
    ("norm_bound", 0, "norm_bound = 0"),
    ("norm_bound", float("inf"), "norm_bound = inf"),
    ("is_public", "yes", "is_public = 'yes'.*true or false"),
    ("name", 3, "name = 3"),
    ("n_declred", 3, "unknown key 'n_declred'.*Did you mean 'n_declared'"),
    ("_warning", "draft", "still a draft.*_warning"),
]


@pytest.mark.parametrize(("path", "value", "message"), FAULTS, ids=[f"{p}={v!r:.25}" for p, v, _ in FAULTS])
def test_every_fault_has_its_message(path: str, value: Any, message: str) -> None:
    schema = changed(path, delete=True) if value == "DELETE" else changed(path, value)
    with pytest.raises(SchemaError, match=message):
        Schema.from_dict(schema)


def test_a_list_is_no_schema() -> None:
    with pytest.raises(SchemaError, match="JSON object, not list"):
        Schema.from_dict([])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"n_declared": 5, "n_declared": 6}', "key 'n_declared' twice"),
        ('{"columns": {"age": {"kind": "ignore"}, "age": {"kind": "ignore"}}}', "key 'age' twice"),
        ('{"n_declared": NaN}', "NaN; numbers in a schema must be finite"),
        ('{"n_declared": 5', "is not JSON"),
        ("", "is not JSON"),
    ],
)
def test_files_must_be_strict_json(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "schema.json"
    path.write_text(text, "utf-8")
    with pytest.raises(SchemaError, match=message):
        Schema.load(path)


def test_missing_schema_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"no schema file .*python -m dpml\.schema draft"):
        Schema.load(tmp_path / "none.json")
    with pytest.raises(SchemaError, match=r"no schema for people\.csv.*python -m dpml\.schema draft people\.csv"):
        as_schema(None, "people.csv")
    with pytest.raises(SchemaError, match="cannot be read"):
        Schema.load(tmp_path)


def test_unknown_column_is_named_with_the_closest() -> None:
    with pytest.raises(SchemaError, match=r"no column 'agee'.*Did you mean 'age'"):
        Schema.from_dict(GOOD).column("agee")


def test_text_is_the_same_however_a_writer_stored_the_cell() -> None:
    assert {text_of(value) for value in (3, 3.0, "3", " 3 ", b"3")} == {"3"}
    assert text_of(2.5) == "2.5"
    assert text_of(-0.0) == "0"
    assert text_of(True) == "True"


def test_without_splines_changes_numeric_columns_only() -> None:
    plain = Schema.from_dict(GOOD).without_splines()
    assert all(c.encoding == "minmax" for c in plain.columns if isinstance(c, NumericColumn))
    assert plain.column("race") == Schema.from_dict(GOOD).column("race")
    assert Schema.from_dict(plain.to_dict()).to_dict() == plain.to_dict()
