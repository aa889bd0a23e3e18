"""ε and δ in tables, errors and command lines: rounded up, so that what is printed holds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from dpml.account import main
from dpml.accounting.dataset_ledger import DatasetLedger
from dpml.audit.__main__ import Finding
from dpml.errors import BudgetExceededError
from dpml.report.budget import describe_event


def test_charges_in_the_report() -> None:
    assert describe_event({"type": "pure", "epsilon": 0.123441}) == "pure ε = 0.1235"
    event = {"type": "epsilon_delta", "epsilon": 1.00004, "delta": 1.00004e-6}
    assert describe_event(event) == "(ε = 1.001, δ = 1.001e-6)"


def test_the_refusal_of_a_data_set_ledger(tmp_path: Path) -> None:
    ledger = DatasetLedger(tmp_path / "ledger.jsonl", 2.0, 1e-4)
    ledger.reserve("a", 1.2345641, 1.2345641e-6, None)
    with pytest.raises(
        BudgetExceededError, match=r"needs epsilon = 1\.23457, .* has spent 1\.23457 of 2 and 1\.23457e-6"
    ):
        ledger.reserve("b", 1.2345641, 1.2345641e-6, None)


def test_the_arguments_that_an_answer_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["epsilon", "--noise-multiplier", "1", "--delta", "1.2345641e-5"]) == 0
    assert "at δ = 1.23457e-5" in capsys.readouterr().out
    assert main(["delta", "--noise-multiplier", "1", "--epsilon", "1.2345641"]) == 0
    assert "at ε = 1.23457" in capsys.readouterr().out


def test_the_claim_of_an_audit() -> None:
    result = SimpleNamespace(epsilon_lower=0.1, method="m", assumptions=(), exceeds=lambda epsilon: False)
    asked = SimpleNamespace(delta=1.0000004e-5, confidence=0.95, steps=1)
    found = SimpleNamespace(
        result=result,
        epsilon_upper=1.00004,
        settings=asked,
        score="s",
        sample_rate=0.1,
        noise_multiplier=1.0,
        seconds=1.0,
    )
    assert "claimed   epsilon <= 1.0001 at delta 1.00001e-5" in Finding.text(found, Path("x"))  # type: ignore[arg-type]
