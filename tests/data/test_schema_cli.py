"""``python -m dpml.schema``: draft and check."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dpml.data import Schema
from dpml.data.draft import draft
from dpml.errors import DataError, SchemaError
from dpml.schema import main

SCHEMA: dict[str, Any] = {
    "n_declared": 5,
    "target": {"name": "label", "classes": ["no", "yes"]},
    "columns": {
        "age": {"kind": "numeric", "bounds": [0, 100], "on_invalid": "error"},
        "money": {"kind": "numeric", "bounds": [0, 1000]},
        "town": {"kind": "categorical", "categories": ["a", "b"]},
    },
}
HEAD = "age,money,town,label\n"


def files(folder: Path, rows: str, schema: dict[str, Any] | None = None) -> tuple[str, str]:
    (folder / "t.csv").write_text(HEAD + rows, "utf-8")
    (folder / "s.json").write_text(json.dumps(schema or SCHEMA), "utf-8")
    return str(folder / "t.csv"), str(folder / "s.json")


CLEAN = "10,5,a,no\n20,7,b,yes\n30,1,a,no\n40,0,b,yes\n"


def test_a_clean_table_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *files(tmp_path, CLEAN)]) == 0
    out = capsys.readouterr().out
    assert "0 problems, 0 notes" in out
    assert "private" in out


def test_problems_name_row_and_column_and_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = CLEAN + "101,5,a,no\nx,5,a,no\n50,5,a,maybe\n50,5,a\n"
    assert main(["check", *files(tmp_path, rows)]) == 1
    out = capsys.readouterr().out
    assert "problem: row 5, column 'age': '101' is outside [0, 100]" in out
    assert "problem: row 6, column 'age': 'x' is no number" in out
    assert "problem: row 7, column 'label': label 'maybe' is none of the classes" in out
    assert "1 lines have too many or too few fields" in out
    assert "4 problems, 0 notes" in out


def test_what_a_run_copes_with_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, schema = files(tmp_path, CLEAN + "5,5000,zz,no\n")
    assert main(["check", table, schema]) == 0
    out = capsys.readouterr().out
    assert "note: row 5, column 'money': '5000' is outside [0, 1000]; a run clamps it" in out
    assert "note: row 5, column 'town': 'zz' is none of the categories; a run counts it as 'other'" in out
    assert main(["check", table, schema, "--strict"]) == 1
    assert main(["check", table, schema, "--strict", "--limit", "1"]) == 1
    assert "... and 1 more problems" in capsys.readouterr().out


def test_far_off_n_declared_and_empty_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *files(tmp_path, CLEAN, {**SCHEMA, "n_declared": 5000})]) == 0
    assert "note: n_declared = 5000 is far from the 4 records" in capsys.readouterr().out
    assert main(["check", *files(tmp_path, "")]) == 1
    assert "holds no record" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "none.csv", "s.json"], "no such file"),
        (["check", "t.csv", "none.json"], "no schema file"),
        (["draft", "none.csv"], "no such file"),
        (["draft", "t.csv", "--target", "lable"], "Did you mean 'label'"),
    ],
)
def test_errors_are_messages_not_tracebacks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    files(tmp_path, CLEAN)
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


def test_draft_says_which_columns_it_ignores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"2001-{1 + i // 28:02d}-{1 + i % 28:02d},{i},{i % 2}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["born,age,y", *lines]), encoding="utf-8")
    assert main(["draft", str(tmp_path / "t.csv")]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["columns"]["born"] == {"kind": "ignore"}
    assert "ignores 'born': no numbers, and more than 50 different texts" in captured.err
    assert "'age'" not in captured.err


def test_check_names_a_column_of_another_kind_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("born,age,y\n" + "2001-02-03,5,no\n" * 3 + "7,x,yes\n", encoding="utf-8")
    declared = {
        "name": "t", "n_declared": 4, "norm_bound": 1.0, "target": {"name": "y", "classes": ["no", "yes"]},
        "columns": {name: {"kind": "numeric", "bounds": [0, 10]} for name in ("born", "age")},
    }  # fmt: skip
    (tmp_path / "s.json").write_text(json.dumps(declared), encoding="utf-8")
    assert main(["check", str(tmp_path / "t.csv"), str(tmp_path / "s.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "born" in lines[0]
    assert "3 of 4 cells break the schema: is the column of another kind?" in lines[0]
    assert sum("another kind" in line for line in lines) == 1


def test_draft_warns_first_and_is_refused_until_completed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, _ = files(tmp_path, CLEAN)
    assert main(["draft", table]) == 0
    captured = capsys.readouterr()
    assert "not private" in captured.out.splitlines()[0]
    assert "not private" in captured.err
    drafted = json.loads(captured.out)
    assert next(iter(drafted)) == "_warning"
    with pytest.raises(SchemaError, match="still a draft"):
        Schema.from_dict(drafted)
    del drafted["_warning"]
    schema = Schema.from_dict(drafted)
    assert schema.target == "label"
    assert schema.classes == ("no", "yes")
    assert drafted["columns"]["age"] == {
        "kind": "numeric",
        "bounds": [10, 40],
        "scale": "linear",
        "on_invalid": "clamp",
    }
    assert drafted["columns"]["town"]["categories"] == ["a", "b"]


def test_draft_to_a_file_and_from_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.DataFrame(
        {
            "label": [0, 1] * 100,
            "gain": [0] * 199 + [99999],
            "name": [f"person {k}" for k in range(200)],
            "empty": [None] * 200,
            "constant": [7] * 200,
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    output = tmp_path / "s.json"
    assert main(["draft", str(tmp_path / "t.parquet"), "-o", str(output), "--target", "label"]) == 0
    drafted = json.loads(output.read_text("utf-8"))
    assert drafted["columns"]["gain"]["scale"] == "log1p"
    assert drafted["columns"]["name"] == drafted["columns"]["empty"] == {"kind": "ignore"}
    assert drafted["columns"]["constant"]["categories"] == ["7"]
    assert drafted["n_declared"] == 200
    assert main(["draft", str(tmp_path / "t.parquet"), "-o", str(output)]) == 1
    assert "exists" in capsys.readouterr().err
    assert main(["draft", str(tmp_path / "t.parquet"), "-o", str(tmp_path / "no" / "s.json")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_draft_faults(tmp_path: Path) -> None:
    table, _ = files(tmp_path, "")
    with pytest.raises(DataError, match="holds no record"):
        draft(table)
    (tmp_path / "one.csv").write_text("a\n1\n", "utf-8")
    with pytest.raises(DataError, match="two or more columns"):
        draft(tmp_path / "one.csv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a;b;y\n1;2;no\n", "seems to be separated by ';'"),
        (b"a\tb\ty\n1\t2\tno\n", r"seems to be separated by '\\t'"),
        ("a,b €,y\n1,2,no\n".encode("cp1252"), "is not UTF-8"),
        (b'a,b,y\n1,"hello\nworld",no\n', "has no line that can be used: 2 lines have too many or too few fields"),
    ],
)
def test_another_format_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        draft(tmp_path / "t.csv")


def test_draft_says_how_many_lines_are_no_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text('a,b,y\n1,"hello\nworld",no\n3,x,yes\n', "utf-8")
    assert main(["draft", str(tmp_path / "t.csv")]) == 0
    shown = capsys.readouterr()
    assert "note: 2 lines have too many or too few fields" in shown.err
    assert "A run leaves them out." in shown.err
    (tmp_path / "t.csv").write_text("a|1,b|2,y\n1,2,no\n3,x,yes\n1,2,3,4\n", "utf-8")  # names of whatever kind
    assert set(draft(tmp_path / "t.csv")["columns"]) == {"a|1", "b|2"}


def test_check_counts_cells_by_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, schema = files(tmp_path, CLEAN + "5,5000,zz,no\n5,x,zz,no\n5,1,zz,no\n")
    assert main(["check", table, schema]) == 0
    out = capsys.readouterr().out
    assert "by column: town 3, money 2" in out
    assert "row 6, column 'money': 'x' is no number; a run encodes it as zeros" in out


def test_as_a_command(tmp_path: Path) -> None:
    table, schema = files(tmp_path, CLEAN)
    done = subprocess.run([sys.executable, "-m", "dpml.schema", "check", table, schema], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 problems" in done.stdout
