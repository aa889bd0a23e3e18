"""Tables of any bytes: every line is one record that touches no other, and only dpml's own errors come out.

A line of a private table is some record's.  So beside "no traceback" the property searched here is the boundary itself:
whatever one line holds, the rows of all others stay the same to the bit.
"""

# ruff: noqa: PT017 (a refusal is one of two outcomes here; its message is looked at where it occurs)
from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest
from fuzz_inputs import examples, must_end, mutilated, search
from hypothesis import strategies as st
from small_tables import SCHEMA, people

from dpml import PrivateData
from dpml.data import Encoder, Schema
from dpml.data.csv_lines import split_line
from dpml.errors import DataError, DpmlError
from dpml.mechanisms import FixedNoise

HEADER = b"age,money,town,label\n"
LINES = [b"31,250.5,a,yes", b"64,0,c,no", b"7,9e3,b,no"]
CELLS = st.sampled_from(
    [b"", b" ", b"0", b"-0.0", b"1e999", b"-1e999", b"nan", b"NaN", b"inf", b"0x10", b"1_000", b"1,5", b'"',
    b'""', b'"a"', b"a",
     b"yes", b"no", b"\x00", b"\xff", b"\xef\xbb\xbf", "é".encode(), b"9" * 5000, b"1e-400", b"True", b"None", b"=1+1"]
) | st.binary(max_size=6)  # fmt: skip
ONE_LINE = st.lists(CELLS, min_size=0, max_size=6).map(b",".join) | st.binary(max_size=40)


def rows(path: Path, lines: list[bytes], end: bytes = b"\n") -> tuple[np.ndarray, np.ndarray, int]:
    """Rows, targets and number of malformed lines."""
    path.write_bytes(HEADER + end.join(lines) + end)
    records = PrivateData.from_table(path, schema=SCHEMA).load(FixedNoise(0))
    return np.asarray(records.X), np.asarray(records.y), int(records.private_notes["malformed_lines"])


@examples(120)
def test_one_line_of_any_bytes_changes_no_other_record(inputs: int, tmp_path: Path) -> None:
    X, y, _ = rows(tmp_path / "t.csv", LINES)
    seen = set()

    def body(line: bytes, at: int) -> None:
        line = line.replace(b"\n", b"")
        more_X, more_y, malformed = rows(tmp_path / "t.csv", [*LINES[:at], line, *LINES[at:]])
        added = len(more_y) - len(y)
        seen.add((added, malformed))
        assert added + malformed in (0, 1)
        assert np.isfinite(more_X).all()
        assert (np.linalg.norm(more_X, axis=1) <= 1 + 1e-12).all()
        others = [i for i in range(len(more_y)) if not (added and i == at)]
        np.testing.assert_array_equal(more_X[others], X)
        np.testing.assert_array_equal(more_y[others], y)

    search(inputs, body, ONE_LINE, st.integers(0, 3))
    assert {(0, 1), (0, 0)} <= seen


@examples(120)
def test_a_table_of_any_bytes_is_read_or_refused(inputs: int, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    whole = people(20).to_csv(index=False).encode()

    def body(raw: bytes) -> None:
        path.write_bytes(raw)
        try:
            records = PrivateData.from_table(path, schema=SCHEMA).load(FixedNoise(0))
        except DpmlError:
            return
        assert np.isfinite(records.X).all()
        assert len(records.y) <= raw.count(b"\n")

    search(inputs, body, mutilated([whole, HEADER + b"\n".join(LINES) + b"\n"]))


@examples(150, 5_000)
@pytest.mark.parametrize("kind", [".csv.gz", ".parquet"])
def test_a_damaged_archive_is_read_or_refused(inputs: int, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"t{kind}"
    if kind == ".parquet":
        people(20).to_parquet(path, index=False)
        whole = path.read_bytes()
    else:
        whole = gzip.compress(people(20).to_csv(index=False).encode(), mtime=0)

    def body(raw: bytes) -> None:
        path.write_bytes(raw)
        try:
            records = PrivateData.from_table(path, schema=SCHEMA).load(FixedNoise(0))
        except DpmlError:
            return
        assert np.isfinite(records.X).all()

    search(inputs, body, mutilated([whole]))


@examples(500)
def test_a_line_is_split_as_pythons_own_reader_does(inputs: int) -> None:
    """The slow, obvious twin; it has no limit of its own below 128 KiB a field."""

    def body(text: str) -> None:
        try:
            (expected,) = csv.reader([text], strict=True)
        except csv.Error:
            expected = None
        assert split_line(text) == expected

    letters = st.sampled_from(['"', '""', ",", "a", " ", "'", "\t", "é", "\\"])
    search(inputs, body, st.lists(letters, min_size=1, max_size=14).map("".join))


@examples(120)
def test_a_header_of_any_bytes_shows_no_record(inputs: int, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"

    def body(head: bytes) -> None:
        path.write_bytes(head.replace(b"\n", b"") + b"\n31,SECRET,a,yes\n")
        try:
            PrivateData.from_table(path, schema=SCHEMA)
        except DpmlError as error:
            assert "SECRET" not in str(error)

    search(inputs, body, mutilated([HEADER[:-1]]) | st.binary(max_size=60))


def test_a_hundred_thousand_categories(tmp_path: Path) -> None:
    """Declared ones in the schema, and as many undeclared ones in the table: one indicator each, or ``other``."""
    path, number = tmp_path / "t.csv", 100_000
    path.write_bytes(b"town,label\n" + b"".join(b"t%d,yes\n" % k for k in range(number)))
    few = {
        "n_declared": number,
        "target": {"name": "label", "classes": ["no", "yes"]},
        "columns": {"town": {"kind": "categorical", "categories": ["t7"]}},
    }
    with must_end():
        X = np.asarray(PrivateData.from_table(path, schema=few).load(FixedNoise(0)).X)
        assert X.shape == (number, 3)  # t7, other, the constant
        assert (X[:, 0] > 0).sum() == 1
        many = {**few, "columns": {"town": {"kind": "categorical", "categories": [f"t{k}" for k in range(number)]}}}
        assert Encoder(Schema.from_dict(many)).n_features == number + 2


def test_an_empty_table_and_one_of_nan(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    assert rows(path, [])[0].shape[0] == 0
    X, y, malformed = rows(path, [b"nan,nan,nan,nan", b",,,yes"] * 2_000)
    assert malformed == 0
    assert len(y) == 2_000  # a label that is none contributes nothing
    assert np.isfinite(X).all()
    path.write_bytes(b"")
    with pytest.raises(DataError, match="empty"):
        PrivateData.from_table(path, schema=SCHEMA)
