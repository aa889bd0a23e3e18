"""A process that forks one small run for each line on its standard input, for tests that kill them.

A line is ``{"method", "folder", "log"}``; the answers are the child's process id and, when it has ended, its status.
The noise of a run notes, before it is handed out, how many charges the ledger on disk holds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dpml import PrivateData, PrivateTrainer
from dpml import accounting as acc
from dpml.errors import DpmlError
from dpml.mechanisms import FixedNoise

SGD: dict[str, Any] = {"steps": 6, "expected_batch_size": 20, "checkpoint_every": 2}
SGD |= {"noise_multiplier": 2.0, "epsilon": None}  # nothing to calibrate


class Watching(FixedNoise):
    """Notes every draw of noise with the number of charges that were on disk then."""

    def __init__(self, folder: Path, log: Path) -> None:
        super().__init__(0)
        self.path, self.log = folder / "release/ledger.jsonl", log

    def normal(self, std: float, shape: Any) -> np.ndarray:
        paid = sum(line["count"] for line in acc.read_ledger(self.path).charges)
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(f"{paid}\n")
        return super().normal(std, shape)


def data(method: str) -> PrivateData:
    X = np.random.default_rng(0).normal(size=(60, 3)) / 4
    if method == "adassp":
        return PrivateData.from_arrays(X, X[:, 0], norm_bound=1.0, target_bounds=(-2, 2), n_declared=60)
    return PrivateData.from_arrays(X, (X[:, 0] > 0).astype(int), norm_bound=1.0, classes=[0, 1], n_declared=60)


def trainer(method: str, folder: Path, log: Path) -> PrivateTrainer:
    more: dict[str, Any] = SGD if method == "dp_sgd" else {"steps": 4} if method == "dp_gd" else {}
    return PrivateTrainer(
        "ridge" if method == "adassp" else "logreg", method=method, delta=1e-4, run_dir=folder,
        noise_source=Watching(folder, log), **{"epsilon": 2.0, **more},
    )  # fmt: skip


def main() -> None:
    trainer("output", Path("/nowhere"), Path("/nowhere")).plan(data("output"))  # what is imported late is here
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        folder = Path(asked["folder"])
        child = os.fork()
        if not child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            status = 0
            try:
                trainer(asked["method"], folder, Path(asked["log"])).fit(data(asked["method"]))
            except SystemExit as stop:
                status = int(stop.code or 0)
            except DpmlError:
                status = 99
            os._exit(status)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
