"""Numbers on the command line of ``python -m dpml.account``: none vanishes, none hangs, what is printed is true.

Expected values: at δ = 0 a sampled Gaussian has ε = ∞ at every rate above 0, and nothing was released at rate 0.
"""

from __future__ import annotations

import json
import signal
from fractions import Fraction
from typing import Any

import pytest

from dpml import account, account_arguments

Capture = pytest.CaptureFixture[str]
CALL = ["epsilon", "--noise-multiplier", "1", "--steps", "5", "--delta", "0"]


def ask(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert account.main([*arguments, "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: Capture, *arguments: str) -> str:
    assert account.main(list(arguments)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert "Traceback" not in printed.err
    return printed.err


@pytest.mark.parametrize("number", ["1e-400", "-1e-400", "1e-99999999", "0.1e-399", f"1/1{'0' * 400}", "1e-300/1e300"])
@pytest.mark.parametrize("option", ["--sample-rate", "--delta", "--noise-multiplier", "--batch-size", "--epochs"])
def test_a_number_that_is_not_zero_is_not_taken_as_zero(option: str, number: str, capsys: Capture) -> None:
    """A rate of 1e-400 once was a rate of 0: ε ≤ 0 at δ = 0, where the truth is ∞."""
    words = f"argument {option}: '{number[:60]}"
    printed = refused(capsys, *CALL, option, number)
    assert words in printed
    assert "is not 0 but would be" in printed


def test_a_rate_that_is_not_zero_is_not_taken_as_zero(capsys: Capture) -> None:
    call = CALL
    printed = refused(capsys, *call, "--batch-size", "1e-320", "--records", "1e10")
    assert "--batch-size = 1e-320" in printed
    printed = refused(capsys, "steps", *call[1:3], "--sample-rate", "1e-400", "--epsilon", "1", "--delta", "1e-5")
    assert "--sample-rate: '1e-400'" in printed
    assert ask(capsys, *call, "--sample-rate", "1e-320")["epsilon"] == "inf"
    assert ask(capsys, *call, "--sample-rate", "0e-400")["epsilon"] == 0
    assert "1e-400" in refused(capsys, "epsilon", "--mechanism", "gdp", "--parameter", "mu=1e-400", "--delta", "1e-5")
    inner = '{"type": "gaussian", "noise_multiplier": 1}'
    event = f'{{"type": "poisson_sampled", "sampling_probability": 1E-400, "event": {inner}}}'
    for words in (["epsilon", "--event"], ["compose"]):
        printed = refused(capsys, words[0], *words[1:], event, "--delta", "0")
        assert "1E-400" in printed
        assert "It is not 0" in printed
    assert ask(capsys, "epsilon", "--event", event.replace("1E-400", "0E-400"), "--delta", "0")["epsilon"] == 0


HUGE = ["1e99999999", "1e999999999999", "-1e99999999", "1/1e-99999999", "1" * 100_000, f"0.{'1' * 5000}"]


@pytest.mark.parametrize("number", HUGE, ids=lambda text: text[:20])
@pytest.mark.parametrize("option", ["--steps", "--epochs", "--sample-rate", "--batch-size", "--records", "--delta"])
def test_huge_numbers_are_refused_at_once(option: str, number: str, capsys: Capture) -> None:
    """10^99999999 as an integer takes minutes and gigabytes: nobody builds it."""
    call = ["epsilon", "--noise-multiplier", "1", "--delta", "1e-5", option, number]
    signal.alarm(60)
    printed = refused(capsys, *call)
    signal.alarm(0)
    assert f"argument {option}: '{number[:10]}" in printed
    assert len(printed) < 400


def test_large_numbers_are_bounded_by_name(capsys: Capture) -> None:
    call = ["epsilon", "--noise-multiplier", "1", "--delta", "1e-5"]
    assert "--steps = an integer of" in refused(capsys, *call, "--steps", "1e300")
    printed = refused(capsys, *call, "--sample-rate", "1e-300", "--epochs", "1e300")
    assert "steps = epochs / sample rate = an integer of" in printed


def test_steps_at_the_smallest_rates_say_what_is_true(capsys: Capture) -> None:
    call = ["steps", "--noise-multiplier", "1", "--sample-rate", "1e-310", "--epsilon", "1e-6", "--delta", "1e-320"]
    found = ask(capsys, *call)
    assert account.main(call) == 0
    printed = capsys.readouterr().out
    if found["steps"] == 0:
        assert "for a single step no ε below" in printed
        assert "reached     ε = 0: no step, nothing is released" in printed
    else:
        assert found["epsilon"] <= 1e-6


def test_a_reader_that_lets_vanishing_numbers_through_is_caught(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the rate is read exactly but not refused; the event refuses it then, and ε = 0 is never printed."""
    monkeypatch.setattr(account_arguments, "_exact", lambda text, expected: Fraction(text))
    monkeypatch.setitem(account_arguments._OPTIONS["--sample-rate"], "type", Fraction)
    assert "sampling rate = Fraction" in refused(capsys, *CALL, "--sample-rate", "1e-400")
