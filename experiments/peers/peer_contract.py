"""What ``run.py`` and its workers agree on: the arrays handed over, the arguments, and the JSON that comes back.

Imported in every peer's own environment, so it needs the standard library and numpy only.  A *worker* is called as

    python worker_NAME.py --data FOLDER --out FILE.json --runs 5 --epsilon 0.1 1 --delta 1e-5

``FOLDER`` (written by ``peer_data.py``) has

- ``encoded.npz``: ``X`` (n, d) and ``X_test`` (m, d) float64, rows of L2 norm ≤ 1, no constant column; ``y`` (n,) and
  ``y_test`` (m,) int64, 0 or 1;
- ``train.csv``, ``test.csv``, ``train.parquet``: the raw columns, in the same order of records;
- ``schema.json``: what is public about them.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

MISSING_PACKAGE = 3  # exit status of a worker whose package is not installed
FIGURES = ("accuracy", "auc", "seconds", "cpu_seconds", "encoded_cpu_seconds")


class ContractError(ValueError):
    """A worker's file does not say what it should."""


@dataclass(frozen=True)
class Row:
    """Independent runs of one method with one setting at one ε.

    Attributes:
        method: name within the peer.
        epsilon: the budget.
        setting: hyper-parameters that differ between rows of one method.
        accuracy, auc: on the test records, fractions, one entry a run.
        seconds: wall-clock of one fit from what the peer takes, one entry a run.
        cpu_seconds: CPU time of the same fit, over all threads: what other work on the machine does not disturb.
        encoded_cpu_seconds: CPU time of a fit on encoded rows in memory, where that is not the same thing.
    """

    method: str
    epsilon: float
    setting: Mapping[str, Any]
    accuracy: tuple[float, ...]
    auc: tuple[float, ...]
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    encoded_cpu_seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Report:
    """All rows of one peer, with the versions that made them and what its guarantee is."""

    peer: str
    versions: Mapping[str, str]
    guarantee: str
    rows: tuple[Row, ...] = field(default_factory=tuple)


def worker_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """``data``, ``out`` (paths), ``runs`` ≥ 1, ``epsilon`` (floats) and ``delta`` of a worker's command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--epsilon", type=float, nargs="+", required=True)
    parser.add_argument("--delta", type=float, required=True)
    return parser.parse_args(argv)


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve: the share of (positive, negative) pairs in the right order, a tie counting one half.

    Args:
        scores: (m,) float, larger means class 1.
        labels: (m,) 0 or 1; NaN comes back if one of the two does not occur.
    """
    positive = np.asarray(labels) == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return math.nan
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[place]  # mid-ranks from 1
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def measure(
    method: str,
    epsilon: float,
    setting: Mapping[str, Any],
    runs: int,
    fit: Callable[[], Callable[[], np.ndarray]],
    labels: np.ndarray,
    encoded_fit: Callable[[], object] | None = None,
) -> Row:
    """``runs`` independent fits.

    Args:
        fit: trains one model and returns a function that gives its probability of class 1 for every test record
            (m,); only the training is timed.
        labels: (m,) 0 or 1.
        encoded_fit: a fit on encoded rows in memory, timed beside each run.
    """
    accuracies, areas, seconds, cpu, encoded = [], [], [], [], []
    for _ in range(runs):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        scores_of = fit()
        seconds.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - cpu_begin)
        scores = np.asarray(scores_of(), dtype=np.float64)
        accuracies.append(float(np.mean((scores > 0.5) == (labels == 1))))
        areas.append(auc(scores, labels))
        if encoded_fit is not None:
            cpu_begin = time.process_time()
            encoded_fit()
            encoded.append(time.process_time() - cpu_begin)
    lists = (accuracies, areas, seconds, cpu, encoded)
    return Row(method, epsilon, dict(setting), *(tuple(values) for values in lists))


def load_encoded(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """``X, y, X_test, y_test`` of ``encoded.npz``."""
    with np.load(folder / "encoded.npz", allow_pickle=False) as arrays:
        return arrays["X"], arrays["y"], arrays["X_test"], arrays["y_test"]


def versions(*packages: str) -> dict[str, str]:
    """Python's version and those of installed packages."""
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def write_report(report: Report, path: Path) -> None:
    """As JSON."""
    path.write_text(json.dumps(asdict(report), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_report(path: Path) -> Report:
    """What :func:`write_report` wrote.

    Raises:
        ContractError: no such file, no JSON, or a row without figures in range.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = tuple(_row(entry) for entry in content["rows"])
        report = Report(str(content["peer"]), dict(content["versions"]), str(content["guarantee"]), rows)
    except ContractError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ContractError(f"{path.name} is no worker's report ({type(error).__name__}: {error})") from error
    if not rows:
        raise ContractError(f"{path.name} has no rows")
    return report


def _row(entry: Mapping[str, Any]) -> Row:
    lists = {key: tuple(float(v) for v in entry[key]) for key in FIGURES}
    row = Row(str(entry["method"]), float(entry["epsilon"]), dict(entry["setting"]), **lists)
    runs = len(row.accuracy)
    measured = [row.auc, row.seconds, row.cpu_seconds, row.encoded_cpu_seconds or row.auc]
    if not runs or any(len(values) != runs for values in measured):
        raise ContractError(f"{row.method} at epsilon {row.epsilon:g}: the figures differ in length")
    if not all(0.0 <= value <= 1.0 for value in (*row.accuracy, *row.auc)):
        raise ContractError(f"{row.method} at epsilon {row.epsilon:g}: accuracy and AUC must lie in [0, 1]")
    if not all(value >= 0.0 for value in (*row.seconds, *row.cpu_seconds, *row.encoded_cpu_seconds)):
        raise ContractError(f"{row.method} at epsilon {row.epsilon:g}: seconds must not be negative")
    return row
