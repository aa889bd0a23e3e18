"""``python -m dpml.audit dp_sgd``: the real engine is attacked; arguments are refused before it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpml import accounting as acc
from dpml.audit import __main__ as command


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = command.main(["dp_sgd", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "least"),
    [
        (("epsilon=4", "steps=2", "runs=100000"), 0.3),
        (("epsilon=4", "steps=3", "sample_rate=0.5", "runs=100000"), 0.2),
        (("epsilon=4", "steps=2", "runs=40000", "analysis=gaussian"), 0.75),
        (("game=one_run", "epsilon=4", "canaries=600", "parameters=3000"), None),
        (("game=one_run", "epsilon=8", "canaries=300", "parameters=20000", "canary=random", "steps=2"), None),
        (("game=one_run", "epsilon=8", "canaries=300", "parameters=300", "analysis=f_dp", "guesses=60"), None),
    ],
)
def test_a_correct_engine_is_not_contradicted(
    arguments: tuple[str, ...], least: float | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 99.9999 % confidence: false alarm 1e-6.  ``least``: far below what was seen, as a share of ε; for one run,
    which says little at this confidence, 60 % of the guesses must be right (80 % are)."""
    status, out, err = run(capsys, *arguments, "confidence=0.999999", f"output={tmp_path}", "--json")
    assert status == 0, err
    found = json.loads(out)
    assert found == json.loads((tmp_path / "audit.json").read_text("utf-8"))
    assert (tmp_path / "tradeoff.png").read_bytes()[:4] == b"\x89PNG"
    assert found["epsilon_lower"] <= found["epsilon_upper"]
    if least is None:
        assert found["result"]["rates"]["accuracy"] > 0.6
    else:
        assert found["epsilon_lower"] > least * found["epsilon_upper"]
    event = acc.SelfComposed(
        event=acc.PoissonSampled(found["sample_rate"], acc.Gaussian(found["noise_multiplier"])),
        count=found["settings"]["steps"],
    )
    assert acc.epsilon(event, 1e-5) == pytest.approx(found["epsilon_upper"], rel=1e-9)
    assert not found["contradicted"]


def test_the_text_says_what_is_claimed_attacked_and_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(
        capsys, "noise_multiplier=1.5", "steps=1", "runs=2000", "confidence=0.999999", f"output={tmp_path}"
    )
    assert status == 0
    for text in (
        "claimed   epsilon <= ",
        "attacked  epsilon >= ",
        "confidence 0.999999",
        "different coordinates",
        "not contr",
    ):
        assert text in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "give one of epsilon and noise_multiplier"),
        (("epsilon=1", "noise_multiplier=1"), "give one of epsilon and noise_multiplier"),
        (("epsilon=1", "epsilon=2"), "given twice"),
        (("epsilom=1",), "'epsilom=1' is not name=value"),
        (("epsilon=one",), "epsilon = 'one' is not a number"),
        (("epsilon=1", "steps=1.5"), "steps = '1.5' is not a whole number"),
        (("epsilon=1", "steps=0"), "steps = 0"),
        (("epsilon=1", "game=three"), "game = 'three'"),
        (("epsilon=1", "analysis=f_dp"), "analysis = 'f_dp'"),
        (("epsilon=1", "canary=random"), "canary = 'random'"),
        (("epsilon=1", "runs=10"), "runs = 10"),
        (("epsilon=1", "delta=0"), "delta = 0"),
        (("epsilon=1", "sample_rate=2"), "sample_rate = 2"),
        (("epsilon=1", "game=one_run", "canaries=10", "parameters=9"), "parameters = 9"),
        (("epsilon=1", "game=one_run", "canary=random", "parameters=9000000"), "parameters = 9000000"),
        (("epsilon=1", "game=one_run", "guesses=1"), "guesses = 1"),
    ],
)
def test_refusals(
    arguments: tuple[str, ...], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(command, "run_audit", lambda *a, **k: pytest.fail("was run"))
    status, out, err = run(capsys, *arguments, f"output={tmp_path / 'folder'}")
    assert (status, out) == (2, "")
    assert text in err
    assert not (tmp_path / "folder").exists()
