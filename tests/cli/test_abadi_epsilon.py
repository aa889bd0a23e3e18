"""``experiments/abadi_epsilon.py``: the paper's figures within their rounding, ours against dp-accounting."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import pld_privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant

SCRIPT = Path(__file__).resolve().parents[2] / "experiments/abadi_epsilon.py"


@pytest.fixture(name="abadi")
def _abadi(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    yield importlib.import_module("abadi_epsilon")
    for name in ("abadi_epsilon", "private_erm_table"):
        sys.modules.pop(name, None)


def peer_event(noise_multiplier: float, steps: int) -> Any:
    one = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(noise_multiplier))
    return dp_accounting.SelfComposedDpEvent(one, steps)


def test_a_quick_run_gives_the_papers_figures_and_ours(tmp_path: Path) -> None:
    target = tmp_path / "deep/abadi.json"
    words = [sys.executable, str(SCRIPT), "--quick", "--json", str(target)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(target.read_text("utf-8"))
    assert content["setting"]["steps"] == 10_000
    published, sound, moments, rdp, exact = content["rows"]
    assert (published["paper"], moments["paper"]) == (9.34, 1.26)
    assert abs(published["ours"] - 9.34) < 0.005
    assert abs(moments["ours"] - 1.26) < 0.005
    assert 0 < exact["ours"] < rdp["ours"] < moments["ours"] < published["ours"] < sound["ours"]
    for row in content["rows"]:
        assert row["difference"] == pytest.approx(row["ours"] - row["paper"])
        assert f"| {row['ours']:.4f} | {row['difference']:+.3f} |" in done.stdout
    peer = pld_privacy_accountant.PLDAccountant().compose(peer_event(4.0, 10_000)).get_epsilon(1e-5)
    assert exact["ours"] <= peer  # which rounds up
    assert exact["ours"] == pytest.approx(peer, rel=2e-3)
    (level,) = content["mnist"]
    assert (level["noise_multiplier"], level["epsilon"]) == (4.0, 2.0)
    assert {"date", "commit", "processor", "python", "dpml", "numpy", "scipy"} <= set(content["machine"])


def test_moments_are_those_of_dp_accounting(abadi: ModuleType) -> None:
    """λ ≤ 32, ε = (α(λ) + ln(1/δ))/λ from dp-accounting's Rényi divergences."""
    orders = list(range(2, 34))
    accountant = rdp_privacy_accountant.RdpAccountant(orders).compose(peer_event(4.0, 10_000))
    moments = np.arange(1, 33)
    expected = min((moments * accountant._rdp + math.log(1e5)) / moments)
    assert abadi.moments_epsilon(abadi.EXAMPLE.event, 1e-5) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("sigma", "epsilon"), [(8.0, 0.5), (2.0, 8.0)])
def test_epochs_are_the_most_that_the_budget_pays_for(abadi: ModuleType, sigma: float, epsilon: float) -> None:
    found = abadi.level(sigma, epsilon)
    assert found.moments < found.rdp < found.exact
    for accountant, epochs in (("rdp", found.rdp), ("exact", found.exact)):
        steps = round(epochs / 0.01)
        just, more = (
            abadi.acc.epsilon(abadi.sampled(0.01, sigma, count), 1e-5, accountant=accountant)
            for count in (steps, steps + 1)
        )
        assert just <= epsilon < more
    steps = round(found.moments / 0.01)
    assert abadi.moments_epsilon(abadi.sampled(0.01, sigma, steps), 1e-5) <= epsilon
    assert abadi.moments_epsilon(abadi.sampled(0.01, sigma, steps + 1), 1e-5) > epsilon


def test_a_figure_that_is_not_reproduced_is_the_exit_status(
    abadi: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(abadi, "RESULTS", tmp_path)
    right = abadi.moments_epsilon
    monkeypatch.setattr(abadi, "moments_epsilon", lambda event, delta: right(event, delta) + 0.01)
    assert abadi.main(["--quick"]) == 1
    assert "not reproduced: moments" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())  # a quick run leaves the results alone


def test_whole_run_writes_the_results(abadi: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(abadi, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(abadi, "level", lambda *one: abadi.Level(*one, 1.0, 2.0, 3.0))
    assert abadi.main([]) == 0
    content = json.loads((tmp_path / "results/abadi_epsilon.json").read_text("utf-8"))
    assert [(one["noise_multiplier"], one["epsilon"]) for one in content["mnist"]] == [(8.0, 0.5), (4.0, 2.0), (2.0, 8)]
