"""A run on an array in a file, in a process of its own: ``python large_file.py FOLDER ROWS HOW`` prints MiB.

``trainer``: the whole of ``PrivateTrainer.fit``.  ``loop``: load, fingerprint, and the gradients of some batches; then
the same batches without handing the file's pages back.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import torch

from dpml import sgd
from dpml.data import PrivateData, stored
from dpml.mechanisms import default_noise
from dpml.runs import records_mac
from dpml.sgd.batches import as_rows
from dpml.trainer import PrivateTrainer

WIDTH, BATCH = 100, 4096


def write(folder, n):
    """X.npy and y.npy, piece by piece; the label depends on the first feature alone."""
    rng, labels = np.random.default_rng(0), []
    with (folder / "X.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (n, WIDTH)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, n, 50_000):
            block = rng.standard_normal((min(50_000, n - start), WIDTH), dtype=np.float32)
            file.write(block.tobytes())
            labels.append(block[:, 0] > 0)
    np.save(folder / "y.npy", np.concatenate(labels).astype(np.int64))


def peak():
    """Largest resident memory so far, pages of mapped files included (``ru_maxrss`` would also count the parent's)."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


def main(folder, n, how):
    data = PrivateData.from_arrays(
        folder / "X.npy", folder / "y.npy", norm_bound=1.0, classes=[0, 1], n_declared=n, name="large"
    )
    model, loss = torch.nn.Linear(WIDTH, 1, bias=False), sgd.ModelLoss()
    for _ in range(3):  # what torch imports and keeps for a batch of this size is no matter of files
        sgd.clipped_gradient(model, loss, (torch.zeros(BATCH, WIDTH), torch.zeros(BATCH, dtype=torch.int64)), 1.0)
    found = {"before": peak()}
    if how == "trainer":
        trainer = PrivateTrainer("logreg", "dp_sgd", epsilon=1.0, steps=5, expected_batch_size=BATCH, device="cpu")
        result = trainer.fit(data)
        found["weights"] = result.model.weights["weight"].ravel().tolist()
        found["read"] = result.private["train"].get("read")
    else:
        noise = default_noise()
        records = data.load(noise, lazy=True)
        records_mac(b"key", records)
        rows = as_rows(records.X, records.y, model, torch.device("cpu"))
        for kind in ("peak", "leaky"):
            for _ in range(4):
                batch = rows.take(sgd.poisson_indices(noise, len(rows), BATCH / n))
                sums, _ = sgd.clipped_gradient(model, loss, batch, 1.0)
            found[kind] = peak()
            stored.hand_back = lambda mapping: None
        found["first"] = float(sums["weight"][0, 0])
    found.setdefault("peak", peak())
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
