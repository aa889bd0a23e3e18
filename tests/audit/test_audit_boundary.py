"""Audits at the boundary: neighbouring tables under equal noise and equal canaries give the same bytes, but for what
follows from charged noisy gradients or the released model (a stand-in: every byte).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import audit_checks
import boundary_checks as checks
import pandas as pd
import pytest
from boundary_checks import ADDED, SMALL
from small_tables import SCHEMA

from dpml import PrivateData, PrivateTrainer
from dpml.audit import runs
from dpml.mechanisms import FixedNoise

SGD: dict[str, Any] = {"method": "dp_sgd", "steps": 8, "expected_batch_size": 20, "noise_multiplier": 2.0}
SGD |= {"epsilon": None}
NASTY = checks.with_record(SMALL, age=1e300, money="much", town="?!", label="perhaps")
PAIRS = [(SMALL, NASTY), ADDED["a record removed"], ADDED["the only record of all"]]
FROM_THE_ATTACK = ("epsilon_lower", "contradicted", "points", "rates")
"""Keys of ``audit.json`` whose values are computed from scores, that is, from charged noisy values."""


def attacked(folder: Path, frame: pd.DataFrame, arguments: dict[str, Any], capsys: Any, **settings: Any) -> str:
    """One audit with repeated noise, coins and canaries; gives what was printed and warned."""
    with pytest.MonkeyPatch.context() as patch:
        audit_checks.make_repeatable(patch)
        patch.setattr("dpml.audit.refits.SecretNoise", lambda threads=None: FixedNoise(7))
        table, public = checks.write_table(folder / "data", frame, SCHEMA)
        source = PrivateData.from_table(table, schema=public)
        trainer = PrivateTrainer(**{"epsilon": 1.0, **arguments}, noise_source=checks.fixed(), run_dir=folder / "run")
        found = trainer.audit(source, progress=lambda *numbers: print(*numbers), **settings)
        rows = [row for row in found.rows() if row[0] != "attacked"]
        print(rows, found.plan)
    captured = capsys.readouterr()
    return captured.out + captured.err


def masked(folder: Path) -> dict[str, bytes]:
    found = checks.masked(folder)
    assert found.pop("tradeoff.png").startswith(b"\x89PNG")  # a picture of the points
    document = json.loads(found["audit.json"])
    for key in FROM_THE_ATTACK:
        document[key] = "charged"
    document["counts"]["correct"] = "charged"
    found["audit.json"] = json.dumps(document).encode()
    return found


@pytest.mark.parametrize("pair", range(len(PAIRS)))
@pytest.mark.parametrize(
    ("arguments", "settings"),
    [(SGD, {}), (SGD, {"access": "black_box"}), ({"method": "output"}, {"game": "one_run"})],
    ids=["white box", "black box", "output"],
)
def test_a_charged_audit(
    arguments: dict[str, Any], settings: dict[str, Any], pair: int, tmp_path: Path, capsys: Any
) -> None:
    outputs = [
        attacked(tmp_path / str(k), frame, arguments, capsys, on="records", canaries=40, **settings)
        for k, frame in enumerate(PAIRS[pair])
    ]
    first, second = (masked(tmp_path / str(k) / "run") for k in range(2))
    assert list(first) == list(second)
    assert {"audit.json", "ledger.jsonl", "result.json"} <= set(first)
    for name in first:
        assert first[name] == second[name], name
    assert outputs[0].replace(str(tmp_path / "0"), "") == outputs[1].replace(str(tmp_path / "1"), "")


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [(SGD, {"canaries": 40}), ({"method": "output"}, {"runs": 100}), ({"method": "objective"}, {"runs": 100})],
    ids=["dp_sgd", "output", "objective"],
)
def test_a_stand_in(arguments: dict[str, Any], settings: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    """Every byte of the folder, and no record is read: the table may be missing."""
    outputs = [attacked(tmp_path / str(k), frame, arguments, capsys, **settings) for k, frame in enumerate(PAIRS[0])]
    files = [
        {path.name: path.read_bytes() for path in sorted((tmp_path / str(k) / "run").rglob("*"))} for k in range(2)
    ]
    assert set(files[0]) == {"audit.json", "tradeoff.png"}
    assert files[0] == files[1]
    assert outputs[0].replace(str(tmp_path / "0"), "") == outputs[1].replace(str(tmp_path / "1"), "")


def test_the_comparison_sees_a_leak(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness itself: the number of records in ``audit.json`` makes the bytes differ."""
    real, found = runs.RunAudit.to_dict, []
    for k, frame in enumerate(ADDED["a record removed"]):
        n = len(frame)
        monkeypatch.setattr(runs.RunAudit, "to_dict", lambda self, n=n: {**real(self), "n": n})
        attacked(tmp_path / str(k), frame, {"method": "output"}, capsys, game="one_run", on="records", canaries=10)
        found.append(masked(tmp_path / str(k) / "run"))
    assert {name for name in found[0] if found[0][name] != found[1][name]} == {"audit.json"}
