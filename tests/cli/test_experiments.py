"""Experiment configs and scripts that the README's commands do not run already."""

from __future__ import annotations

import gzip
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[2]


def write_idx(path: Path, values: np.ndarray) -> None:
    header = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


def test_fashion_mnist_linear_on_small_generated_files(cli: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for part, n in (("train", 300), ("t10k", 60)):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", rng.integers(0, 256, (n, 28, 28)))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", rng.integers(0, 10, n))
    status, out, err = cli(
        "+experiment=fashion_mnist_linear", f"data.folder={tmp_path}", "method.steps=5", "hydra.run.dir=here"
    )
    assert status == 0, err
    result = json.loads((tmp_path / "here/result.json").read_text())
    assert result["model"] == "softmax"
    assert result["plan"]["data"]["n_features"] == 785
    assert "accuracy" in out


def test_census_income_on_small_generated_files(cli: Any, tmp_path: Path) -> None:
    schema = json.loads((ROOT / "dpml/data/census_income_schema.json").read_text("utf-8"))
    rng = np.random.default_rng(0)
    for name, n in (("train", 200), ("test", 50)):
        columns: dict[str, Any] = {"income": rng.choice(schema["target"]["classes"], n)}
        for key, column in schema["columns"].items():
            if column["kind"] == "numeric":
                columns[key] = rng.uniform(*column["bounds"], n)
            elif column["kind"] == "categorical":
                columns[key] = rng.choice(column["categories"], n)
        pd.DataFrame(columns).to_parquet(tmp_path / f"{name}.parquet")
    status, _, err = cli("data=census_income", f"data.folder={tmp_path}", "hydra.run.dir=here", "report=false")
    assert status == 0, err
    assert json.loads((tmp_path / "here/result.json").read_text())["delta"] == 1e-6


def test_sample_sizes_on_subsamples_of_adult(tmp_path: Path) -> None:
    """``experiments/sample_size.py --quick``: positive excess that falls with n, below the theorem; JSON is merged."""
    file = tmp_path / "results" / "found.json"
    file.parent.mkdir()
    file.write_text('{"other": {"kept": 1}}')
    words = [sys.executable, str(ROOT / "experiments/sample_size.py"), "--quick", "--json", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "## adult: smallest n" in done.stdout
    found = json.loads(file.read_text("utf-8"))
    assert found["other"] == {"kept": 1}
    assert {"python", "dpml", "processor"} <= set(found["adult"]["machine"])
    curves = {curve["method"]: curve for curve in found["adult"]["curves"]}
    assert set(curves) == {"objective", "output"}
    for curve in curves.values():
        assert curve["n"] == [9044, 18088, 36177]
        assert 0.0 < curve["empirical"][-1] < curve["empirical"][0]
        assert curve["theorem_factor"] > 1.0
    needs = {(need["method"], need["excess_risk"]): need for need in found["adult"]["smallest_n"]}
    need = needs["objective", 0.02]
    assert 9044 < need["n_population"] < need["n_bound"] < need["n_rule"]
