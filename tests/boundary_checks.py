"""Neighbouring data sets, the ways to run dpml on them, and the comparison of what they leave.

Two data sets are run with the same repeated test noise.  Every byte of ``release/`` and of what is printed must then be
equal, but for values that noise was added to, and what is a function of these: the released weights, what a charged
stage gave, and hashes over them.  :func:`masked` replaces those by name; all other bytes are compared.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from small_tables import SCHEMA, people

from dpml.mechanisms import FixedNoise

MODEL = "model.safetensors"


# ------------------------------------------------------------------------------------------- neighbouring tables


def with_record(frame: pd.DataFrame, **record: Any) -> pd.DataFrame:
    return pd.concat([frame, pd.DataFrame([record])], ignore_index=True)


def _first(frame: pd.DataFrame, **changes: Any) -> pd.DataFrame:
    changed = frame.astype(object).copy()
    for name, value in changes.items():
        changed.loc[0, name] = value
    return changed


SMALL = people(60)
ONE_CLASS = SMALL[SMALL.label == "no"].reset_index(drop=True)
ONLY_YES = pd.concat([ONE_CLASS, SMALL[SMALL.label == "yes"].iloc[:1]], ignore_index=True)
USUAL = {"age": 40.0, "money": 100.0, "town": "a", "label": "yes"}
ADDED: dict[str, tuple[pd.DataFrame, pd.DataFrame]] = {
    "a record removed": (SMALL, SMALL.iloc[:-1]),
    "a record added": (SMALL, with_record(SMALL, **USUAL)),
    "NaN, infinity and an unseen category": (
        SMALL,
        with_record(SMALL, age=None, money=float("inf"), town="?!", label="no"),
    ),
    "a huge value": (SMALL, with_record(SMALL, age=1e300, money=-1e300, town="a", label="no")),
    "texts where numbers are declared": (SMALL, with_record(SMALL, age="old", money="", town="a", label="yes")),
    "an empty label": (SMALL, with_record(SMALL, **(USUAL | {"label": None}))),
    "a class that is not declared": (SMALL, with_record(SMALL, **(USUAL | {"label": "perhaps"}))),
    "the only record of its class": (ONE_CLASS, ONLY_YES),
    "the only record of all": (SMALL.iloc[:0], SMALL.iloc[:1]),
}
REPLACED: dict[str, tuple[pd.DataFrame, pd.DataFrame]] = {
    "a record changed": (SMALL, _first(SMALL, age=99.0, town="c", label="no")),
    "a record changed to NaN and an unseen category": (SMALL, _first(SMALL, age=None, town="?!")),
    "a record changed to a huge value": (SMALL, _first(SMALL, age=1e300, money=-1e300)),
    "a label changed to none": (SMALL, _first(SMALL, label=None)),
}
REGRESSION = {**SCHEMA, "target": {"name": "age", "bounds": [0, 100]}}
REGRESSION["columns"] = {k: v for k, v in SCHEMA["columns"].items() if k != "age"} | {"label": {"kind": "ignore"}}


def write_table(folder: Path, frame: pd.DataFrame, schema: Mapping[str, Any]) -> tuple[Path, Path]:
    """The table and its schema, under the same names for every data set."""
    folder.mkdir(parents=True, exist_ok=True)
    table, public = folder / "people.csv", folder / "people.json"
    frame.to_csv(table, index=False)
    public.write_text(json.dumps(schema), "utf-8")
    return table, public


# ------------------------------------------------------------------------------------------------ the comparison


def masked(folder: Path) -> dict[str, bytes]:
    """Name ↦ bytes of all that a run shows, without charged noisy values and what is computed from them.

    Left out by name: the weights (their names and shapes stay); in ``result.json`` and ``schema.json`` what the stages
    ``bounds``, ``categories``, ``labels`` and ``metrics`` gave; digests of the model, of the result, of a schema that a
    stage completed, and the ledger's hashes from the closing line on.
    """
    release = folder / "release"
    found = {str(path.relative_to(release)): path.read_bytes() for path in sorted(release.rglob("*")) if path.is_file()}
    hidden: list[str] = []
    if MODEL in found:
        hidden.append(hashlib.sha256(found[MODEL]).hexdigest())
        size = int.from_bytes(found[MODEL][:8], "little")
        found[MODEL] = found[MODEL][: 8 + size] + str(len(found[MODEL])).encode()  # names, shapes and the header
        found[MODEL] = b"".join(sorted(found[MODEL].split(b",")))
    if "ledger.jsonl" in found:
        lines = [json.loads(line) for line in found["ledger.jsonl"].splitlines()]
        if lines[-1]["kind"] == "closed":
            last = lines[-1]
            hidden += [last["hash"], last["hash"][:16], last["outcome"]["result"]]
            if "stages" in lines[0]["plan"]:
                hidden.append(last["outcome"]["files"]["schema.json"])
    if "result.json" in found:
        result = json.loads(found["result.json"])
        for stage in result.get("stages", {}).values():
            _blank(stage)
        if "metrics" in result.get("stages", {}):
            _blank(result["metrics"])
        found["result.json"] = json.dumps(result, indent=1).encode()
        if result.get("stages"):
            schema = json.loads(found["schema.json"])
            for column in schema["columns"].values():
                for key in ("bounds", "categories"):
                    if key in column:
                        column[key] = "found"
            found["schema.json"] = json.dumps(schema, indent=1).encode()
    return {name: _hide(raw, hidden) for name, raw in found.items()}


def _hide(raw: bytes, hidden: list[str]) -> bytes:
    for text in sorted(hidden, key=len, reverse=True):
        raw = raw.replace(text.encode(), b"<of charged values>")
    return raw


CHARGED = {
    "bounds", "occupied_bins", "categories", "listed", "counts", "frequencies", "noisy_records", "value", "low", "high",
    *(f"{name}{end}" for name in ("accuracy", "loss", "auc", "r2", "rmse", "mae") for end in ("", "_low", "_high")),
}  # fmt: skip
"""Keys of ``result.json`` whose numbers come out of a stage's noise; all others of a stage are public."""


def _blank(values: Any) -> None:
    """Charged numbers and lists by their key; names, texts and public numbers stay."""
    for key, value in list(values.items()):
        if key == "auc" or key.startswith("auc_"):  # whether there is one is decided by noisy counts
            del values[key]
        elif key in CHARGED and not isinstance(value, dict):
            values[key] = "charged"
        elif isinstance(value, dict):
            _blank(value)


def plain(text: str, folder: Path) -> str:
    """What was printed, without the folder's own name and the ledger's head."""
    return re.sub(r"head [0-9a-f]{16}…", "head …", text.replace(str(folder), "FOLDER"))


def assert_same(folders: tuple[Path, Path], outputs: tuple[str, str]) -> None:
    """Every file and every byte of both, and what was printed."""
    first, second = (masked(folder) for folder in folders)
    assert list(first) == list(second), "other files"
    for name in first:
        assert first[name] == second[name], name
    assert plain(outputs[0], folders[0]) == plain(outputs[1], folders[1])


Run = Callable[[Path, pd.DataFrame], None]


def fixed() -> FixedNoise:
    """The same noise for both data sets."""
    return FixedNoise(3)


def neutral(raw: bytes, folder: Path) -> bytes:
    """A file of a sweep without the folder's own name, and without hex numbers of 16 digits and more (hashes of jobs
    whose own ledgers are compared line by line)."""
    return re.sub(rb"[0-9a-f]{16,64}", b"<hash>", raw.replace(str(folder).encode(), b"FOLDER"))


def addresses_away(text: str) -> str:
    """Without addresses of objects, the hash of a closing line."""
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def queries() -> list[Any]:
    """One question of every kind."""
    from dpml.mechanisms import Count, Custom, Histogram, Mean, Quantile, Sum, Variance, Where

    return [
        Count(),
        Count(Where("x", ">", 10)),
        Sum("x", (0, 100)),
        Mean("x", (0, 100)),
        Variance("x", (0, 100)),
        Histogram("x", edges=[0, 10, 20, 50]),
        Quantile("x", 0.5, (0, 100)),
        Custom(lambda columns: float(columns["x"].size), 1.0),
    ]


def without_answers(text: str) -> list[Any]:
    """A session's ledger, line by line, without the noisy answers and the hashes behind them."""
    lines = []
    for raw in text.splitlines():
        try:
            line = json.loads(raw)
        except ValueError:
            lines.append(re.sub(r"[0-9a-f]{16,64}", "<hash>", raw))  # the mark of the last line
            continue
        for key in ("hash", "previous", "value", "answer"):
            if key in line:
                line[key] = "noisy" if line[key] is not None else None
        lines.append(line)
    return lines
