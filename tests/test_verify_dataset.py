"""``python -m dpml.verify FILE`` of a data set ledger: what has been spent, what is left, and what does not hold."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dpml.accounting import DatasetLedger, Gaussian, SelfComposed, best
from dpml.errors import LedgerError
from dpml.verify import main


def ledger_of(path: Path, kind: str, runs: int = 3) -> DatasetLedger:
    ledger = DatasetLedger(path, 4.0, 1e-3, neighboring_relation="replace_one", filter=kind)
    for number in range(runs):
        ledger.reserve(f"runs/{number}", 0.5, 1e-5, Gaussian(9.0))
    return ledger


@pytest.mark.parametrize("kind", ["basic", "zcdp", "renyi"])
def test_runs_sums_and_what_is_left(kind: str, tmp_path: Path, capsys: Any) -> None:
    ledger = ledger_of(tmp_path / "cap", kind)
    assert main([str(tmp_path / "cap"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == [{"run": f"runs/{i}", "epsilon": 0.5, "delta": 1e-5} for i in range(3)]
    assert (found["ok"], found["filter"], found["neighboring_relation"]) == (True, kind, "replace_one")
    assert found["sum"] == {"epsilon": 1.5, "delta": pytest.approx(3e-5)}
    together, _ = best(SelfComposed(Gaussian(9.0), 3), 3e-5, neighboring_relation="replace_one")
    assert found["composed"]["epsilon"] == pytest.approx(together, rel=1e-6)
    if kind == "basic":  # its cap is named by each run
        assert found["cap"] is None
        assert found["remaining"] is None
    else:
        assert found["cap"] == {"epsilon": 4.0, "delta": 1e-3}
        assert found["remaining"] == ledger.remaining()
    assert main([str(tmp_path / "cap")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"OK: 3 runs hold (replace_one, filter {kind})."
    assert shown[2] == "  2: epsilon = 0.5, delta = 1e-5: runs/1"
    assert "  the runs' promises add up to epsilon = 1.5, delta = 3e-5" in shown


@pytest.mark.parametrize("kind", ["basic", "zcdp"])
def test_a_changed_line_is_named(kind: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "cap"
    ledger_of(path, kind)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'"run":"runs/1"', b'"run":"runs/7"'))
    assert main([str(path)]) == 1
    assert "line 2 was changed, removed or moved" in capsys.readouterr().out
    path.write_bytes(raw.split(b"\n", 1)[1])
    assert main([str(path), "--json"]) == 1
    assert "line 1 was changed, removed or moved" in json.loads(capsys.readouterr().out)["problem"]


@pytest.mark.parametrize("content", [b"", b"junk\n", b"{}\n", b"[]\n", b'{"event": 1}\n', b"\xff\xfe\n"])
def test_another_file_is_no_ledger(content: bytes, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "cap"
    path.write_bytes(content)
    assert main([str(path)]) == 1
    assert f"{path} is no data set ledger" in capsys.readouterr().out
    with pytest.raises(LedgerError, match="No such file"):
        DatasetLedger.of_file(tmp_path / "none")
    assert path.read_bytes() == content


def test_a_file_that_may_only_be_read_is_left_as_it_is(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a line torn by a crash, which whoever may write cuts off."""
    path = tmp_path / "cap"
    ledger_of(path, "basic", 1)
    path.write_bytes(path.read_bytes() + b'{"index":1')
    before = path.read_bytes()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.startswith("OK: 1 runs hold")
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_read_is_a_ledger_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ledger_of(tmp_path / "cap", "basic", 1)

    def refused(*_: Any) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(LedgerError, match=r"cannot read the data set ledger .*cap: Permission denied"):
        ledger.total()
    with pytest.raises(LedgerError, match="cannot read the data set ledger"):
        DatasetLedger(tmp_path / ("x" * 300), 1.0, 1e-5).check("run", 0.5, 1e-6)
