"""Tables: header checks before the run, reading cell by cell, splits, and the boundary of what is public."""

from __future__ import annotations

import copy
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpml.data import PrivateData, read_table
from dpml.data import table as table_module
from dpml.errors import ConfigError, DataError, SchemaError
from dpml.mechanisms import FixedNoise

SCHEMA: dict[str, Any] = {
    "n_declared": 50,
    "target": {"name": "label", "classes": ["no", "yes"]},
    "columns": {
        "age": {"kind": "numeric", "bounds": [0, 100], "knots": 3},
        "town": {"kind": "categorical", "categories": ["a", "b"]},
        "id": {"kind": "ignore"},
    },
}
ROWS = [(10, "a", 1, "no"), (20, "b", 2, "yes"), (30, "a", 3, "no"), (90, "b", 4, "yes")]


def people(rows: list[tuple[Any, ...]] | None = None) -> pd.DataFrame:
    return pd.DataFrame(ROWS if rows is None else rows, columns=["age", "town", "id", "label"])


def csv(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def load(path: Path, schema: dict[str, Any] | None = None, **options: Any) -> Any:
    return PrivateData.from_table(path, schema or SCHEMA, **options).load(FixedNoise(0))


def test_csv_gzip_and_parquet_give_the_same_records(tmp_path: Path) -> None:
    frame = people()
    frame.to_csv(tmp_path / "p.csv", index=False)
    frame.to_csv(tmp_path / "p.csv.gz", index=False)
    frame.to_parquet(tmp_path / "p.parquet")
    frame.astype({"town": "category", "age": float}).to_parquet(tmp_path / "q.parquet")
    loaded = [load(tmp_path / name) for name in ("p.csv", "p.csv.gz", "p.parquet", "q.parquet")]
    assert loaded[0].X.shape == (4, 3 + 3 + 1)
    assert loaded[0].y.tolist() == [0, 1, 0, 1]
    for other in loaded[1:]:
        np.testing.assert_array_equal(other.X, loaded[0].X)
        np.testing.assert_array_equal(other.y, loaded[0].y)


def test_loading_the_data_package_imports_neither_torch_nor_sklearn() -> None:
    code = "import sys, dpml.data; print('torch' in sys.modules, 'sklearn' in sys.modules, 'hydra' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False", "False"]


# ------------------------------------------------------------------------------------------ faults before load


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("age,twon,id,label", "lacks column 'town'.*Did you mean 'twon'"),
        ("age,town,id,Label", "lacks the schema's target 'label'.*Did you mean 'Label'"),
        ("age,town,id,label,extra", "column 'extra' that the schema lacks.*ignore"),
        ("age,age,town,label", "column 'age' twice"),
        ("age;town;id;label", "separated by ';'.*commas"),
        ("", "is empty: it has no header"),
    ],
)
def test_header_faults(tmp_path: Path, header: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        PrivateData.from_table(csv(tmp_path / "p.csv", header + "\n"), SCHEMA)


def test_an_ignored_column_may_be_absent(tmp_path: Path) -> None:
    assert load(csv(tmp_path / "p.csv", "label,town,age\nno,a,5\n")).X.shape == (1, 7)


def test_missing_file_names_the_closest(tmp_path: Path) -> None:
    people().to_csv(tmp_path / "people.csv", index=False)
    with pytest.raises(DataError, match=r"path = .*no such file.*Did you mean 'people.csv'"):
        PrivateData.from_table(tmp_path / "peple.csv", SCHEMA)
    with pytest.raises(DataError, match=r"test_path = .*no such file"):
        PrivateData.from_table(tmp_path / "people.csv", SCHEMA, test_path=tmp_path / "none" / "x.csv")
    with pytest.raises(DataError, match="is no file"):
        PrivateData.from_table(tmp_path, SCHEMA)
    with pytest.raises(DataError, match=r"'a\.xlsx' has an unknown file type"):
        PrivateData.from_table(csv(tmp_path / "a.xlsx", "x"), SCHEMA)


def test_missing_schema_says_how_to_get_one(tmp_path: Path) -> None:
    path = csv(tmp_path / "people.csv", "age\n")
    with pytest.raises(SchemaError, match=r"python -m dpml\.schema draft .*people\.csv"):
        PrivateData.from_table(path, None)


def test_damaged_files_are_data_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="header of"):
        PrivateData.from_table(csv(tmp_path / "p.parquet", "no parquet"), SCHEMA)
    with pytest.raises(DataError, match="header of"):
        PrivateData.from_table(csv(tmp_path / "p.csv.gz", "no gzip"), SCHEMA)
    whole = gzip.compress(people([*ROWS] * 5000).to_csv(index=False).encode())
    data = PrivateData.from_table(csv(tmp_path / "q.csv.gz", whole[: len(whole) // 2]), SCHEMA)
    with pytest.raises(DataError, match="cannot be read"):
        data.load(FixedNoise(0))


@pytest.mark.parametrize("text", ["age,town,id,label\n", "age,town,id,label"])
def test_an_empty_table_is_a_data_set_like_any_other(tmp_path: Path, text: str) -> None:
    records = PrivateData.from_table(csv(tmp_path / "p.csv", text), SCHEMA).load(FixedNoise(0))
    assert len(records.X) == len(records.y) == records.private_notes["train"]["records"] == 0
    people([]).to_parquet(tmp_path / "p.parquet")
    assert load(tmp_path / "p.parquet").X.shape == records.X.shape


def test_nothing_is_read_before_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reader of records replaced by a trap, everything public is still there, and only load falls in."""
    people().to_csv(tmp_path / "p.csv", index=False)
    people().to_parquet(tmp_path / "p.parquet")

    def trap(*args: object, **kwargs: object) -> None:
        raise AssertionError("records were read")

    monkeypatch.setattr(table_module, "read_raw", trap)
    monkeypatch.setattr("pyarrow.parquet.read_table", trap)
    monkeypatch.setattr("pyarrow.csv.read_csv", trap)
    for name in ("p.csv", "p.parquet"):
        data = PrivateData.from_table(tmp_path / name, SCHEMA, test_fraction=0.5)
        assert data.public.n_features == 7
        assert "n_declared=25" in repr(data)
        with pytest.raises(AssertionError, match="records were read"):
            data.load(FixedNoise(0))


def test_only_the_first_line_of_a_csv_is_parsed_before_load(tmp_path: Path) -> None:
    """The rest may be anything, and no message can come from it."""
    data = PrivateData.from_table(csv(tmp_path / "p.csv", b'age,town,id,label\n\xff\x00"unterminated\n'), SCHEMA)
    assert data.public.n_declared == 50


# ---------------------------------------------------------------------------------------- one record, one cell


def test_a_strange_record_changes_no_other_record(tmp_path: Path) -> None:
    head, clean = "age,town,id,label\n", "10,a,1,no\n20,b,2,yes\n"
    expected = load(csv(tmp_path / "clean.csv", head + clean))
    strange = [b"abc,a,3,no\n", b",,,\n", b"1e999,\xff\xfe,3,no\n", b"nan,NA,x,yes\n", b'"1,5","q\nr",3,no\n', b"5,a\n"]
    for line in [*strange, b"1,2,3,4,5\n", b"\n", b"7,a,3,maybe\n"]:
        records = load(csv(tmp_path / "dirty.csv", head.encode() + clean.encode() + line))
        np.testing.assert_array_equal(records.X[:2], expected.X)
        np.testing.assert_array_equal(records.y[:2], expected.y)
        assert len(records.X) <= 3


def test_whole_numbers_next_to_a_missing_one(tmp_path: Path) -> None:
    """A Parquet writer turns whole numbers into floats when one is missing; categories must still match."""
    schema = copy.deepcopy(SCHEMA)
    schema["columns"]["town"]["categories"] = [1, 2]
    full, holed = [(5, 1, 0, "no"), (6, 2, 0, "yes")], [(5, 1, 0, "no"), (6, 2, 0, "yes"), (7, None, 0, "no")]
    people(full).to_parquet(tmp_path / "full.parquet")
    people(holed).to_parquet(tmp_path / "holed.parquet")
    np.testing.assert_array_equal(
        load(tmp_path / "holed.parquet", schema).X[:2], load(tmp_path / "full.parquet", schema).X
    )


def test_records_that_contribute_nothing_are_counted_privately(tmp_path: Path) -> None:
    text = "age,town,id,label\n10,a,1,no\n10,a,1,perhaps\n10,a,1\nx,zz,1,yes\n"
    records = load(csv(tmp_path / "p.csv", text))
    assert len(records.X) == 2
    notes = records.private_notes
    assert notes["malformed_lines"] == 1
    assert notes["train"]["unknown_labels"] == 1
    assert notes["train"]["columns"] == {"age": {"missing": 1}, "town": {"unknown": 1}}
    assert "10" not in repr(records)
    assert repr(records) == "Records(private)"


def test_quotes_byte_order_marks_and_windows_line_ends(tmp_path: Path) -> None:
    lines = [f'{k},"{"ab"[k % 2]}",{k},{"no" if k % 3 else "yes"}' for k in range(400)]
    records = load(csv(tmp_path / "p.csv", "\ufeffage,town,id,label\r\n" + "\r\n".join(lines)))
    assert records.y.tolist() == [0 if k % 3 else 1 for k in range(400)]
    assert (records.X[:, 3] > 0).tolist() == [k % 2 == 0 for k in range(400)]


def neighbours() -> dict[str, list[tuple[Any, ...]]]:
    one_class = [row for row in ROWS if row[3] == "no"]
    return {
        "one record more": [*ROWS, (50, "a", 5, "no")],
        "a NaN record": [*ROWS, (None, None, 5, "no")],
        "infinite": [*ROWS, (float("inf"), "b", 5, "yes")],
        "unknown category": [*ROWS, (50, "zz", 5, "yes")],
        "label outside the classes": [*ROWS, (50, "a", 5, "never")],
        "only record of its class": [*one_class, (50, "a", 5, "yes")],
        "one class only": one_class,
        "constant column": [(10, "a", row[2], row[3]) for row in ROWS],
        "a single record": ROWS[:1],
    }


@pytest.mark.parametrize("case", list(neighbours()))
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_what_is_public_does_not_depend_on_a_record(tmp_path: Path, case: str, ending: str) -> None:
    def made(rows: list[tuple[Any, ...]], folder: str) -> PrivateData:
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / f"p.{ending}"
        people(rows).to_csv(path, index=False) if ending == "csv" else people(rows).to_parquet(path)
        return PrivateData.from_table(path, SCHEMA, test_fraction=0.2)

    one, other = made(ROWS, "one"), made(neighbours()[case], "other")
    assert one.public == other.public
    assert repr(one) == repr(other)
    records = other.load(FixedNoise(0))
    assert np.isfinite(records.X).all()
    assert one.public == other.public, "loading changes nothing that is public"
    assert json.loads(json.dumps(one.public.schema)) == one.public.schema


# ------------------------------------------------------------------------------------------------------ splits


def test_test_file(tmp_path: Path) -> None:
    people().to_csv(tmp_path / "a.csv", index=False)
    people(ROWS[:1]).to_csv(tmp_path / "b.csv", index=False)
    data = PrivateData.from_table(tmp_path / "a.csv", SCHEMA, test_path=tmp_path / "b.csv")
    records = data.load(FixedNoise(0))
    assert (len(records.X), len(records.X_test)) == (4, 1)  # type: ignore[arg-type]
    assert data.public.has_test
    assert not data.public.test_is_public
    assert PrivateData.from_table(
        tmp_path / "a.csv", {**SCHEMA, "is_public": True}, test_path=tmp_path / "b.csv"
    ).public.test_is_public


def test_split_column(tmp_path: Path) -> None:
    frame = people().assign(part=["train", "test", "train ", "neither"])
    frame.to_csv(tmp_path / "p.csv", index=False)
    data = PrivateData.from_table(tmp_path / "p.csv", SCHEMA, split_column="part")
    records = data.load(FixedNoise(0))
    assert data.public.n_declared == 50, "n_declared is that of the training part"
    assert (len(records.X), len(records.X_test)) == (2, 1)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"split_column 'parts'.*Did you mean 'part'"):
        PrivateData.from_table(tmp_path / "p.csv", SCHEMA, split_column="parts")
    people().to_csv(tmp_path / "q.csv", index=False)
    with pytest.raises(DataError, match="split_column = 'town' is a feature"):
        PrivateData.from_table(tmp_path / "q.csv", SCHEMA, split_column="town")


class Coins:
    """The coins that a test wants."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def uniform(self, size: int) -> np.ndarray:
        return np.array(self.values[:size])


def test_test_fraction_is_one_coin_a_record(tmp_path: Path) -> None:
    """The coin of a record decides for that record: one more record leaves all others where they were."""
    people().to_csv(tmp_path / "p.csv", index=False)
    people([*ROWS, (50, "a", 5, "no")]).to_csv(tmp_path / "q.csv", index=False)
    coins = Coins([0.9, 0.1, 0.25, 0.3, 0.0])
    one = PrivateData.from_table(tmp_path / "p.csv", SCHEMA, test_fraction=0.25).load(coins)
    more = PrivateData.from_table(tmp_path / "q.csv", SCHEMA, test_fraction=0.25).load(coins)
    assert (len(one.X), len(one.X_test)) == (3, 1)  # type: ignore[arg-type]
    np.testing.assert_array_equal(one.X, more.X)
    assert len(more.X_test) == 2  # type: ignore[arg-type]
    assert PrivateData.from_table(tmp_path / "p.csv", SCHEMA, test_fraction=0.25).public.n_declared == 38


def test_the_share_of_held_out_records(tmp_path: Path) -> None:
    """Binomial(20000, 0.3) leaves 6000 ± 5.5 sd (357) with probability 4e-8.

    Power: a share of 0.33 (6600 ± 67) is missed with probability 2e-4.
    """
    people(ROWS * 5000).to_parquet(tmp_path / "p.parquet")
    records = load(tmp_path / "p.parquet", test_fraction=0.3)
    assert abs(len(records.X_test) - 6000) <= 357
    assert len(records.X) + len(records.X_test) == 20000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_fraction": 0}, "test_fraction = 0"),
        ({"test_fraction": 1.0}, r"test_fraction = 1\.0"),
        ({"test_fraction": float("nan")}, "test_fraction = nan"),
        ({"test_fraction": 0.2, "split_column": "id"}, "test_fraction = 0.2.*split_column is given"),
        ({"test_path": "x.csv", "split_column": "id"}, "split_column = 'id'.*test_path is given"),
    ],
)
def test_split_faults(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    people().to_csv(tmp_path / "p.csv", index=False)
    csv(tmp_path / "x.csv", "age,town,id,label\n")
    with pytest.raises(ConfigError, match=message):
        PrivateData.from_table(tmp_path / "p.csv", SCHEMA, **options)


def test_source_tells_no_path_and_no_content(tmp_path: Path) -> None:
    folder = tmp_path / "secret-folder"
    folder.mkdir()
    people().to_csv(folder / "secret-name.csv", index=False)
    public = PrivateData.from_table(folder / "secret-name.csv", SCHEMA).public
    assert "secret" not in repr(public)
    assert public.preprocessing == {"kind": "table"}


# ----------------------------------------------------------------------------------------------------- scoring


def test_read_table_for_scoring_keeps_every_row(tmp_path: Path) -> None:
    path = csv(tmp_path / "new.csv", "town,age,more\na,1,x\n,?,y\n")
    frame = read_table(path, ["age", "town"])
    assert frame.index.tolist() == [0, 1]
    assert frame.columns.tolist() == ["age", "town"]
    with pytest.raises(DataError, match=r"no column 'ages'.*Did you mean 'age'"):
        read_table(path, ["ages"])
    with pytest.raises(
        DataError, match=r"1 lines with too many or too few fields.*\(line 2 is the first\).*spans lines"
    ):
        read_table(csv(tmp_path / "bad.csv", "town,age\na,1,x\nb,2\n"), ["age"])


@pytest.mark.parametrize("unit", ["date32", "date64", "time32", "time64"])
@pytest.mark.parametrize("dictionary", [False, True])
def test_a_date_that_python_cannot_hold_is_one_bad_cell(tmp_path: Path, unit: str, dictionary: bool) -> None:
    """Parquet's days reach beyond year 9999 and its times beyond 24 h: such a record must neither stop the run nor be
    shown; the others' categories are the ISO texts."""
    types = {"date32": pa.date32(), "date64": pa.date64(), "time32": pa.time32("s"), "time64": pa.time64("us")}
    whole = pa.int32() if unit.endswith("32") else pa.int64()
    day = {"date32": 1, "date64": 86_400_000, "time32": 60, "time64": 60_000_000}[unit]
    text = "1970-01-02" if unit.startswith("date") else "00:01:00"
    cells = pa.array([0, day, 2 ** (whole.bit_width - 1) - 1], type=whole).view(types[unit])
    table = pa.table({"when": cells.dictionary_encode() if dictionary else cells, "label": ["no", "yes", "no"]})
    pq.write_table(table, tmp_path / "p.parquet")
    column = {"kind": "categorical", "categories": [text], "on_invalid": "other"}
    schema = {"n_declared": 10, "target": {"name": "label", "classes": ["no", "yes"]}, "columns": {"when": column}}
    records = PrivateData.from_table(tmp_path / "p.parquet", schema).load(FixedNoise(0))
    assert len(records.X) == 3
    assert np.array_equal(records.X[0], records.X[2])  # both are none of the categories
    assert not np.array_equal(records.X[0], records.X[1])
