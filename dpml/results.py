"""Frozen records that travel between plan, run, result file and report; JSON in and out.

Nothing here computes anything or knows an algorithm.  The records are the only thing that reports read.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from dpml.rounding import upper

RESULT_FORMAT = 1


@dataclass(frozen=True)
class Guarantee:
    """A differential-privacy guarantee, in natural log units.

    Attributes:
        epsilon: ε ≥ 0; ``inf`` for a run without privacy.
        delta: δ in [0, 1).
        neighboring_relation: ``"add_remove"`` or ``"replace_one"``.
        unit: what one neighbour differs in, ``"record"`` here.
        accountant: name of the accountant that proved ε.
        assumptions: what the proof takes for granted and the code cannot check.
    """

    epsilon: float
    delta: float
    neighboring_relation: str = "add_remove"
    unit: str = "record"
    accountant: str = "best"
    assumptions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"({upper(self.epsilon, 6)}, {upper(self.delta)})-DP per {self.unit}, {self.neighboring_relation}, "
            f"accountant {self.accountant}"
        )


@dataclass(frozen=True)
class Trajectory:
    """ε(δ) after each of some steps; a series is ``None`` where its accountant refuses the event.

    Attributes:
        delta: the δ at which all ε are given.
        steps: step numbers, increasing, the last one is the whole run.
        best, rdp, zcdp: ε after that many steps (upper bounds), as long as ``steps``.
        notes: a sentence per series that needs one (``zcdp`` ignores amplification by sampling, say).
    """

    delta: float
    steps: tuple[int, ...]
    best: tuple[float, ...] | None
    rdp: tuple[float, ...] | None
    zcdp: tuple[float, ...] | None
    notes: Mapping[str, str] = field(default_factory=dict)


class CustodianOnly(Mapping[str, Any]):
    """Diagnostics that tell about records: they stay in the process that holds the data.

    A mapping to look things up in, and ``print`` shows it.  Its ``repr`` shows no value, and what pickle, joblib,
    ``copy.deepcopy`` and ``dataclasses.asdict`` make of it is empty, since such copies travel.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return "CustodianOnly(not shown)"

    def __str__(self) -> str:
        return str(self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        return CustodianOnly, ()


def to_jsonable(value: Any) -> Any:
    """Plain JSON values: dataclasses to dicts, tuples to lists, enums to values, ``inf`` to ``"inf"``."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_jsonable(asdict(value))
    if isinstance(value, Mapping):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_jsonable(v) for v in value]
    if isinstance(value, Enum):
        return to_jsonable(value.value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bool) or value is None or isinstance(value, str | int):
        return value
    if hasattr(value, "tolist") and not isinstance(value, float):  # numpy scalars and arrays
        return to_jsonable(value.tolist())
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def dumps(value: Any, *, indent: int | None = 2) -> str:
    """Strict JSON text (no bare NaN or Infinity) of anything :func:`to_jsonable` takes."""
    return json.dumps(to_jsonable(value), indent=indent, allow_nan=False, ensure_ascii=False)


def number(value: Any) -> float:
    """The float behind a JSON number or ``"inf"``, ``"-inf"``, ``"nan"``."""
    return float(value)


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write ``data`` so that after a crash ``path`` holds the old content or the new one, never a part."""
    raw = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and new files in ``folder`` survive a power cut (a no-op where folders cannot be opened)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a platform on which folders have no file descriptor
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


PATH_KEYS = (
    "data.path",
    "data.schema",
    "data.test_path",
    "data.public_path",
    "data.folder",
    "data.cache",
    "privacy.dataset_ledger",
    "tracking.mlflow",
)


def without_folders(override: str) -> str:
    """An override ``key=value`` whose path, if it is one of the custodian's, is cut down to the file's name.

    A value in Hydra's quotes stays in them, where the name needs them.
    """
    key, equals, value = override.partition("=")
    if not equals or key.lstrip("+") not in PATH_KEYS:
        return override
    mark = value[:1] if len(value) > 1 and value[:1] in ("'", '"') and value[-1] == value[0] else ""
    name = Path(value[1:-1] if mark else value).name
    return f"{key}={name}" if re.fullmatch(r"[A-Za-z0-9_.-]+", name) else f"{key}={mark}{name}{mark}"
