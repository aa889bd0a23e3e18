"""What ``import dpml`` promises: names, laziness, one version, records that survive JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dpml
from dpml import results
from dpml.errors import ConfigError, invalid


def loaded_modules(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sorted(name for name in sys.modules if '.' not in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_accounting_loads_no_heavy_package() -> None:
    heavy = {"torch", "hydra", "omegaconf", "dp_accounting", "opacus", "pandas", "sklearn", "matplotlib"}
    assert not heavy & loaded_modules("from dpml import accounting")
    assert "torch" in loaded_modules("import dpml.sgd"), "the check itself sees what is loaded"


def test_trainer_without_a_network_loads_no_torch() -> None:
    assert "torch" not in loaded_modules("from dpml import PrivateTrainer, DPLogisticRegression\nPrivateTrainer()")


def test_public_names_resolve_and_others_do_not() -> None:
    for name in dpml.__all__:
        assert getattr(dpml, name) is not None
    assert set(dpml.__all__) <= set(dir(dpml))
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        _ = dpml.Trainer


def test_strict_json_of_every_value() -> None:
    text = results.dumps(
        {"a": np.float64(1.5), "b": np.arange(2), "c": float("inf"), "d": float("nan"), "e": (1, None)}
    )
    assert json.loads(text) == {"a": 1.5, "b": [0, 1], "c": "inf", "d": "nan", "e": [1, None]}
    assert results.number("inf") == float("inf")
    with pytest.raises(TypeError, match="has no JSON form"):
        results.dumps({"a": object()})


def test_write_atomic_keeps_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    results.write_atomic(target, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        results.write_atomic(target, "new")
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_an_error_names_argument_value_and_way_out() -> None:
    error = invalid("epsilon", -1, "> 0", "Use a positive number.")
    assert isinstance(error, ConfigError)
    assert isinstance(error, ValueError)
    assert str(error) == "epsilon = -1 is not allowed: it must be > 0. Use a positive number."


def test_guarantee_reads_like_a_sentence() -> None:
    assert str(results.Guarantee(1.0, 1e-5)) == "(1, 1e-5)-DP per record, add_remove, accountant best"
    assert str(results.Guarantee(0.99999951, 2.764187e-6)).startswith("(1, 2.765e-6)-DP per record")  # both rounded up
