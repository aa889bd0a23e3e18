"""CSV by physical lines: one line moves one record at most, whatever it holds."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dpml.data import PrivateData, Schema, read_table
from dpml.data.check import check_table
from dpml.data.csv_lines import split_line
from dpml.data.draft import draft
from dpml.errors import DataError
from dpml.mechanisms import FixedNoise

SCHEMA: dict[str, Any] = {
    "n_declared": 50,
    "target": {"name": "label", "classes": ["no", "yes"]},
    "columns": {
        "age": {"kind": "numeric", "bounds": [0, 100], "knots": 3},
        "town": {"kind": "categorical", "categories": ["a", "b"]},
    },
}
HEAD = b"age,town,label\n"
CLEAN = [b"10,a,no", b'20,"b",yes', b"30,a,no", b'"40",b,"yes"']
STRAY = b'5,"u,a'


def load(path: Path, lines: list[bytes]) -> Any:
    path.write_bytes(HEAD + b"\n".join(lines))
    return PrivateData.from_table(path, SCHEMA).load(FixedNoise(0))


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_stray_quote_spoils_its_own_line_only(tmp_path: Path, where: str) -> None:
    lines = [b"%d,%c,%s" % (k % 100, b"ab"[k % 2], (b"no", b"yes")[k % 3 == 0]) for k in range(1000)]
    expected = load(tmp_path / "clean.csv", lines)
    lines.insert({"first": 0, "middle": 500, "last": 1000}[where], STRAY)
    records = load(tmp_path / "dirty.csv", lines)
    assert records.private_notes["malformed_lines"] == 1
    np.testing.assert_array_equal(records.X, expected.X)
    np.testing.assert_array_equal(records.y, expected.y)


# an alphabet in which the characters that mean something to a CSV reader are frequent; no line feed: that is two lines
HOSTILE = st.lists(
    st.one_of(
        st.sampled_from([b'"', b'""', b",", b"\r", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\\", b"'", b" ", b"1", b"a"]),
        st.sampled_from([b"no", b"yes", b"10,a,no", b'"a"', b"\xe2\x80\xa8", b"\x85", b"\x1a"]),
        st.binary(max_size=3).map(lambda raw: raw.replace(b"\n", b"")),
    ),
    max_size=12,
).map(b"".join)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=HOSTILE, place=st.integers(0, len(CLEAN)))
@example(line=STRAY, place=0)
@example(line=b'"', place=0)
@example(line=b"", place=2)
@example(line=b"50,a,yes", place=4)
@example(line=b'50,a,yes\r"', place=0)
def test_one_line_more_adds_one_record_at_most_and_moves_no_other(tmp_path: Path, line: bytes, place: int) -> None:
    expected = load(tmp_path / "clean.csv", CLEAN)
    records = load(tmp_path / "more.csv", [*CLEAN[:place], line, *CLEAN[place:]])
    others = np.arange(len(records.X))
    if len(records.X) != len(expected.X):
        others = np.delete(others, place)
    np.testing.assert_array_equal(records.X[others], expected.X)
    np.testing.assert_array_equal(records.y[others], expected.y)


@settings(max_examples=500, deadline=None)
@given(text=st.text(alphabet="\",ab '5é\x00", max_size=14))
def test_lines_are_split_as_the_strict_reader_of_the_standard_library_does(text: str) -> None:
    try:
        expected = next(csv.reader([text], strict=True), [])
    except csv.Error:
        expected = None
    assert split_line(text) == (expected if text else [""])  # the caller leaves blank lines out


@pytest.mark.parametrize("cell", [b"x" * 70_000_000, b'"' + b"9," * 1_000_000 + b'"'])
def test_a_huge_cell_is_one_record(tmp_path: Path, cell: bytes) -> None:
    records = load(tmp_path / "huge.csv", [b"10,a,no", cell + b",b,yes", b"20,a,no"])
    assert records.y.tolist() == [0, 1, 0]
    assert records.private_notes["train"]["columns"] == {"age": {"missing": 1}}


def test_check_draft_and_scoring_read_by_lines_too(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes(HEAD + b"\n".join([STRAY, *CLEAN]))
    findings = check_table(path, Schema.from_dict({**SCHEMA, "n_declared": 4}))
    assert [(f.stops, f.row) for f in findings] == [(True, None)]
    assert "1 lines have too many or too few fields, or a quote that does not end on its line (line 2" in str(
        findings[0]
    )
    assert "a cell that spans lines is not supported" in str(findings[0])
    assert draft(path)["n_declared"] == 4
    with pytest.raises(DataError, match=r"1 lines with .*line 2 is the first"):
        read_table(path, ["age"])
    path.write_bytes(HEAD + b"\n".join(CLEAN))
    assert read_table(path, ["age", "town"]).astype(str).to_numpy().tolist() == [
        ["10", "a"],
        ["20", "b"],
        ["30", "a"],
        ["40", "b"],
    ]


def test_a_cell_that_spans_lines_is_malformed_lines(tmp_path: Path) -> None:
    records = load(tmp_path / "p.csv", [b"10,a,no", b'20,"a', b'b",yes', b"30,b,yes"])
    assert records.y.tolist() == [0, 1]
    assert records.private_notes["malformed_lines"] == 2


@pytest.mark.parametrize(
    ("head", "match"),
    [
        (b'age,"town,label\n1,a,no\n', "header of .* has a quote that does not end on its line"),
        (b"age,town,label\r1,secret,no\r", "carriage return alone"),
    ],
)
def test_headers_that_are_no_line_are_refused_without_showing_a_record(tmp_path: Path, head: bytes, match: str) -> None:
    (tmp_path / "p.csv").write_bytes(head)
    with pytest.raises(DataError, match=match) as caught:
        PrivateData.from_table(tmp_path / "p.csv", SCHEMA)
    assert "secret" not in str(caught.value)


def test_a_damaged_archive_is_a_data_error(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(HEAD + b"\n".join(b"%d,a,no" % (k * 7919 % 101) for k in range(20000))))
    whole[len(whole) // 2 : len(whole) // 2 + 200] = b"\xff" * 200
    (tmp_path / "p.csv.gz").write_bytes(whole)
    data = PrivateData.from_table(tmp_path / "p.csv.gz", SCHEMA)
    with pytest.raises(DataError, match="cannot be read"):
        data.load(FixedNoise(0))
