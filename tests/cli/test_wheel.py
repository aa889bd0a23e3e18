"""The wheel: what it puts into site-packages, and that it works from an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dpml import accounting

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True, capture_output=True,
    )  # fmt: skip
    (built,) = folder.glob("dpml-*.whl")
    return built


def test_only_dpml_lands_in_site_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"dpml"}
    for needed in (
        "dpml/configs/config.yaml", "dpml/configs/experiment/logreg.yaml", "dpml/data/adult/train.parquet",
        "dpml/data/adult/schema.json", "dpml/data/census_income_schema.json",
    ):  # fmt: skip
        assert needed in names
    assert any(name.startswith("dpml/report/templates/") for name in names)
    assert not [name for name in names if "/tests/" in name or name.endswith((".pyc", ".ipynb"))]


@pytest.mark.slow
def test_the_sweep_runs_from_the_wheel_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel)], check=True
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    where = subprocess.run(
        [sys.executable, "-c", "import dpml; print(dpml.__file__)"], cwd=empty, env=environment, text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    assert where.stdout.startswith(str(site))
    done = subprocess.run(
        [sys.executable, "-m", "dpml.train", "-m", "+experiment=logreg", "data=synthetic", "data.n=400",
         "privacy.delta=1e-4", "privacy.epsilon=0.5,1,2,4", "method=output,objective", "hydra.sweep.dir=s"],
        cwd=empty, env=environment, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    runs = sorted((empty / "s").glob("*/release/result.json"))
    assert len(runs) == 8
    assert all(accounting.verify(path.parent.parent).ok for path in runs)
    assert (empty / "s/report.html").exists()
