"""Schemas with something wrong in them: a schema, or an error of dpml that says what is wrong; nothing else."""

# ruff: noqa: PT017 (a refusal is one of two outcomes here; its message is looked at where it occurs)
from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz_inputs import NIGHTLY, STRANGE, as_json, changed, examples, mutilated, nested, search
from small_tables import SCHEMA

from dpml import PrivateData
from dpml.data import Encoder, Schema
from dpml.errors import DpmlError
from dpml.mechanisms import FixedNoise

REGRESSION: dict[str, Any] = {
    "n_declared": 400,
    "target": {"name": "label", "bounds": [0, 500]},
    "columns": {
        "age": {"kind": "numeric", "bounds": [0, 100], "encoding": "minmax", "on_invalid": "drop"},
        "money": {"kind": "numeric", "bounds": "private", "magnitude": [1, 65536], "scale": "log1p"},
        "town": {"kind": "categorical", "categories": "discover", "most": 5},
        "id": {"kind": "ignore"},
    },
}
DOCUMENTS = [SCHEMA, REGRESSION]
HEADER = b"age,money,town,label\n"
ROWS = HEADER + b"31,250.5,a,yes\n-5,,zz,no\n1e999,nan,b,maybe\n,,,\n"


def schema_or_refusal(document: Any) -> Schema | None:
    try:
        return Schema.from_dict(document)
    except DpmlError as error:
        assert 0 < len(str(error)) < 250_000
        return None


@examples(120)
def test_a_changed_schema_is_a_schema_or_refused(inputs: int, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_bytes(ROWS)
    made = 0

    def body(document: Any) -> None:
        nonlocal made
        schema = schema_or_refusal(document)
        if schema is None:
            return
        made += 1
        again = Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
        assert again == schema
        try:
            data = PrivateData.from_table(table, schema=document)
        except DpmlError:  # the table's header, say
            return
        if schema.open_columns or data.public.n_features > 20_000:
            return
        records = data.load(FixedNoise(0))
        assert np.isfinite(records.X).all()
        assert (np.linalg.norm(records.X, axis=1) <= schema.norm_bound * (1 + 1e-9)).all()
        assert len(records.y) <= 4

    search(inputs, body, changed(DOCUMENTS))
    assert made > inputs // 50  # the search is not among refusals only


@examples(150)
def test_a_schema_file_that_was_damaged_is_read_or_refused(inputs: int, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"

    def body(raw: bytes) -> None:
        path.write_bytes(raw)
        try:
            Encoder(Schema.load(path).with_columns(()))
        except DpmlError as error:
            assert 0 < len(str(error)) < 250_000

    search(inputs, body, mutilated([as_json(document) for document in DOCUMENTS]))


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"columns":' * 100_000, b'{"n_declared": ' + b"9" * 5000 + b"}"])
def test_depth_and_length_beyond_pythons_limits(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_bytes(text)
    with pytest.raises(DpmlError, match=r"schema"):
        Schema.load(path)


@pytest.mark.parametrize("number", range(len(STRANGE)))
@pytest.mark.parametrize("way", [("n_declared",), ("norm_bound",), ("columns", "age", "bounds"), ("target",)], ids=str)
def test_each_strange_value_in_each_place(way: tuple[str, ...], number: int) -> None:
    document = copy.deepcopy(SCHEMA)
    owner = document
    for key in way[:-1]:
        owner = owner[key]
    owner[way[-1]] = STRANGE[number]
    schema_or_refusal(document)


def test_a_deep_value_is_named_and_not_a_crash() -> None:
    assert schema_or_refusal({**SCHEMA, "norm_bound": nested(900)}) is None
    assert schema_or_refusal({**SCHEMA, "norm_bound": 10**5000}) is None
    assert NIGHTLY >= 10_000
