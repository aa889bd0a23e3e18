"""``python -m dpml.account``: every verb in both forms, what it refuses, and the files that it writes.

Expected values: the library itself where the command line only passes numbers on; closed forms and the issue's numbers
where it computes something (a pure release costs 1/b, one Gaussian's trade-off function is Φ(Φ⁻¹(1 − α) − 1/σ)).
"""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dpml import account, account_arguments, account_peers
from dpml import accounting as acc
from dpml.accounting import api
from dpml.errors import UnsupportedEventError

STEP = ["--sample-rate", "0.02", "--noise-multiplier", "1.0"]
RUN = acc.SelfComposed(acc.PoissonSampled(0.02, acc.Gaussian(1.0)), 100)
EVENT = ["epsilon", "delta", "interval", "compare", "tradeoff", "group", "noise", "steps", "rate", "epochs", "compose"]
KEYS = {
    "epsilon": "epsilon delta accountant neighboring_relation accountant_used interval event",
    "delta": "delta epsilon accountant neighboring_relation interval event",
    "interval": "low high width accountant delta neighboring_relation event",
    "noise": "noise_multiplier target accountant neighboring_relation epsilon delta steps event",
    "steps": "steps epochs epsilon delta accountant neighboring_relation event",
    "epochs": "steps epochs epsilon delta accountant neighboring_relation event",
    "rate": "sample_rate batch_size epsilon delta accountant neighboring_relation event",
    "group": "size epsilon delta accountant neighboring_relation event",
    "compare": "delta neighboring_relation smallest_sound interval epsilon rows event",
    "tradeoff": "advantage tpr_at_fpr accuracy prior posterior posterior_of_output delta neighboring_relation curve "
    "files event",
    "compose": "epsilon delta accountant neighboring_relation accountant_used interval parts",
}
CALLS = {
    "epsilon": [*STEP, "--steps", "100", "--delta", "1e-5"],
    "delta": [*STEP, "--steps", "100", "--epsilon", "1"],
    "interval": [*STEP, "--steps", "100", "--delta", "1e-5"],
    "noise": ["--sample-rate", "0.02", "--steps", "100", "--epsilon", "1", "--delta", "1e-5"],
    "steps": [*STEP, "--epsilon", "1", "--delta", "1e-5"],
    "epochs": [*STEP, "--epsilon", "1", "--delta", "1e-5"],
    "rate": ["--noise-multiplier", "1", "--steps", "100", "--epsilon", "1", "--delta", "1e-5"],
    "group": ["--noise-multiplier", "50", "--size", "3", "--delta", "1e-5"],
    "compare": [*STEP, "--steps", "100", "--delta", "1e-5", "--no-peers"],
    "tradeoff": ["--noise-multiplier", "1"],
    "compose": ['{"type": "gaussian", "noise_multiplier": 50}', "--delta", "1e-5"],
}
Capture = pytest.CaptureFixture[str]


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


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dpml.account", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize("verb", EVENT)
def test_every_verb_answers_a_person_and_a_program(verb: str, capsys: Capture) -> None:
    found = ask(capsys, verb, *CALLS[verb])
    assert set(found) == set(KEYS[verb].split())
    assert account.main([verb, *CALLS[verb]]) == 0
    printed = capsys.readouterr().out
    assert "\n" in printed.strip()
    assert "{" not in printed


@pytest.mark.parametrize("verb", EVENT)
def test_help_shows_an_example_that_runs_and_the_json_keys(
    verb: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as stop:
        account.main([verb, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    keys = text.split("JSON keys:")[1]
    for key in KEYS[verb].split():
        assert key in keys
    example = next(line for line in text.splitlines() if "python -m dpml.account " in line and "usage" not in line)
    monkeypatch.chdir(tmp_path)
    words = example.split()[3:]
    if verb == "compose":
        Path("first.json").write_text('{"type": "laplace", "noise_multiplier": 2}')
        Path(words[2]).parent.mkdir(parents=True)
        ledger(Path(words[2]))
    answer = ask(capsys, *words, *(["--no-peers"] if verb == "compare" else []))
    assert set(answer) == set(KEYS[verb].split())


def ledger(path: Path, relation: str = "add_remove") -> None:
    book = acc.Ledger.create(path, {"guarantee": {"neighboring_relation": relation}})
    book.charge(acc.Gaussian(20.0), stage="statistics")
    book.charge(acc.PoissonSampled(0.02, acc.Gaussian(1.0)), stage="steps", count=100)
    book.close({})


# ---------------------------------------------------------------------------------------------- what is computed


@pytest.mark.parametrize("flag", ["--relation", "--neighboring-relation"])
@pytest.mark.parametrize("accountant", ["best", "pld", "zcdp"])
def test_epsilon_is_the_librarys(accountant: str, flag: str, capsys: Capture) -> None:
    for relation in acc.RELATIONS:
        found = ask(capsys, "epsilon", *CALLS["epsilon"], "--accountant", accountant, flag, relation)
        expected = acc.epsilon(RUN, 1e-5, accountant=accountant, neighboring_relation=relation)
        assert found["epsilon"] == expected
        assert found["accountant_used"] == ("exact" if accountant == "best" else accountant)
        assert found["interval"]["low"] <= found["epsilon"]
        assert acc.from_json(found["event"]) == RUN


def test_epsilon_of_the_issue_for_a_person(capsys: Capture) -> None:
    call = "epsilon --noise-multiplier 1 --sample-rate 0.01 --steps 10000 --delta 1e-5"
    assert account.main(call.split()) == 0
    printed = capsys.readouterr().out
    assert "ε ≤ 6.187" in printed  # 6.1877 by numerical composition elsewhere
    for word in ("upper bound", "natural-log units", "certified", "add_remove", "exact", "10,000 ×", "P[S]"):
        assert word in printed


def test_delta_and_interval_are_the_librarys(capsys: Capture) -> None:
    found = ask(capsys, "delta", *STEP, "--steps", "100", "--epsilon", "1", "--accountant", "pld")
    assert found["delta"] == acc.delta(RUN, 1.0, accountant="pld")
    found = ask(capsys, "delta", *STEP, "--steps", "100", "--epsilon", "1")
    assert 0 < found["interval"]["low"] <= found["delta"] == acc.delta(RUN, 1.0) <= found["interval"]["low"] * 1.001
    found = ask(capsys, "interval", *CALLS["interval"])
    ends = api.interval(RUN, 1e-5)
    assert (found["low"], found["high"], found["width"]) == (ends.low, ends.high, ends.width)


def test_ways_to_say_the_same_event(capsys: Capture, tmp_path: Path) -> None:
    """q = batch/records, steps = epochs/q rounded up, the event as JSON, in a file, or by fractions."""
    (tmp_path / "event.json").write_text(json.dumps(RUN.to_json()))
    ways = [
        [*STEP, "--steps", "100"],
        ["--sample-rate", "1/50", "--noise-multiplier", "1", "--steps", "1e2"],
        ["--batch-size", "20", "--records", "1000", "--noise-multiplier", "1", "--epochs", "2"],
        ["--batch-size", "20", "--records", "1000", "--noise-multiplier", "1", "--epochs", "1.9801"],
        ["--mechanism", "gaussian", *STEP, "--steps", "100"],
        ["--event", json.dumps(RUN.to_json())],
        ["--event", f"@{tmp_path / 'event.json'}"],
        ["--event", str(tmp_path / "event.json")],
        ["--event", json.dumps(RUN.event.to_json()), "--steps", "100"],
    ]
    values = {ask(capsys, "epsilon", *way, "--delta", "1e-5")["epsilon"] for way in ways}
    assert values == {acc.epsilon(RUN, 1e-5)}


def test_a_sampling_rate_is_batch_over_records_and_steps_are_not_batches_in_an_epoch(capsys: Capture) -> None:
    """7 of 100: an epoch is 100/7 steps, so 3 epochs are ⌈300/7⌉ = 43 steps, not 3·14 or 3·15."""
    call = ["epsilon", "--noise-multiplier", "1", "--batch-size", "7", "--records", "100", "--epochs", "3"]
    found = ask(capsys, *call, "--delta", "1e-5")
    assert acc.from_json(found["event"]) == acc.SelfComposed(acc.PoissonSampled(0.07, acc.Gaussian(1.0)), 43)


@pytest.mark.parametrize(
    ("options", "event"),
    [
        (["--mechanism", "laplace", "--noise-multiplier", "2"], acc.Laplace(2.0)),
        (["--mechanism", "pure", "--parameter", "epsilon=0.5"], acc.Pure(0.5)),
        (["--mechanism", "zcdp", "--parameter", "rho=0.1"], acc.ZCDP(0.1)),
        (["--mechanism", "gdp", "--parameter", "mu=0.5"], acc.GDP(0.5)),
        (
            ["--mechanism", "epsilon_delta", "--parameter", "epsilon=0.5", "--parameter", "delta=1e-7"],
            acc.EpsilonDelta(0.5, 1e-7),
        ),
        (
            ["--mechanism", "discrete_laplace", "--noise-multiplier", "3", "--parameter", "sensitivity=2"],
            acc.DiscreteLaplace(6.0, 2),
        ),
        (["--mechanism", "discrete_gaussian", "--noise-multiplier", "3"], acc.DiscreteGaussian(3.0)),
        (
            ["--mechanism", "report_noisy_max", "--parameter", "epsilon=0.5", "--parameter", "noise=gumbel"],
            acc.ReportNoisyMax(0.5, "gumbel"),
        ),
    ],
)
def test_mechanisms_by_name(options: list[str], event: acc.Event, capsys: Capture) -> None:
    found = ask(capsys, "epsilon", *options, "--delta", "1e-5")
    assert acc.from_json(found["event"]) == event
    assert found["epsilon"] == acc.epsilon(event, 1e-5)


def test_infinity_is_the_word_inf(capsys: Capture) -> None:
    found = ask(capsys, "epsilon", "--noise-multiplier", "0", "--delta", "1e-5")
    assert found["epsilon"] == "inf"
    assert account.main(["epsilon", "--noise-multiplier", "0", "--delta", "1e-5"]) == 0
    assert "no finite ε" in capsys.readouterr().out


def test_calibrations_hold_when_accounted_again(capsys: Capture) -> None:
    budget = ["--epsilon", "1", "--delta", "1e-5"]
    noise = ask(capsys, "noise", "--batch-size", "20", "--records", "1000", "--epochs", "2", *budget)
    assert noise["steps"] == 100
    again = ask(
        capsys, "epsilon", "--noise-multiplier", repr(noise["noise_multiplier"]), "--sample-rate", "0.02", "--steps",
        "100", "--delta", "1e-5",
    )  # fmt: skip
    assert again["epsilon"] == noise["epsilon"] <= 1.0
    steps = ask(capsys, "steps", *STEP, *budget)
    epochs = ask(capsys, "epochs", *STEP, *budget)
    assert epochs["steps"] == steps["steps"]
    assert epochs["epochs"] == pytest.approx(steps["steps"] * 0.02, rel=1e-15)
    more = acc.SelfComposed(RUN.event, steps["steps"] + 1)
    assert steps["epsilon"] <= 1.0 < acc.epsilon(more, 1e-5)
    rate = ask(capsys, "rate", "--noise-multiplier", "1", "--steps", "100", "--records", "5000", *budget)
    assert rate["epsilon"] <= 1.0
    assert rate["batch_size"] == math.floor(rate["sample_rate"] * 5000)
    found = ask(capsys, "noise", "--sample-rate", "0.01", "--steps", "2000", "--epsilon", "3", "--delta", "1e-5")
    assert found["noise_multiplier"] == pytest.approx(0.9304, abs=1e-4)


def test_noise_for_a_whole_schedule_is_one_factor(capsys: Capture) -> None:
    """All noise of the event is multiplied: two Laplace releases b and 2b cost 1/b + 1/(2b) at δ = 0."""
    event = acc.Composed((acc.Laplace(1.0), acc.Laplace(2.0), acc.Pure(0.25)))
    found = ask(capsys, "noise", "--event", json.dumps(event.to_json()), "--epsilon", "1", "--delta", "0")
    assert found["noise_factor"] == pytest.approx(2.0, rel=1.1e-4)
    assert found["epsilon"] <= 1.0
    assert acc.from_json(found["event"]).events[1] == acc.Laplace(2 * found["noise_factor"])  # type: ignore[attr-defined]


def test_noise_for_other_targets(capsys: Capture) -> None:
    found = ask(capsys, "noise", "--advantage", "0.1")
    assert found["noise_multiplier"] == pytest.approx(1 / (2 * statistics.NormalDist().inv_cdf(0.55)), rel=1.1e-4)
    assert found["advantage"] <= 0.1
    found = ask(capsys, "noise", "--tpr", "0.05", "--fpr", "0.01")
    assert found["tpr_at_fpr"]["0.01"] <= 0.05
    assert account.main(["noise", "--advantage", "0.1"]) == 0
    assert "advantage ≤" in capsys.readouterr().out


def test_no_step_fits(capsys: Capture) -> None:
    call = ["steps", "--noise-multiplier", "0.1", "--epsilon", "1", "--delta", "1e-5"]
    assert ask(capsys, *call)["steps"] == 0
    assert account.main(call) == 0
    printed = capsys.readouterr().out
    assert "for a single step no ε below 91.8" in printed  # Balle & Wang 2018 at σ = 0.1
    assert "ε = 0: no step, nothing is released" in printed


def test_groups(capsys: Capture) -> None:
    laplace = ["--mechanism", "laplace", "--noise-multiplier", "10", "--delta", "0"]
    assert ask(capsys, "group", *laplace, "--size", "4")["epsilon"] == pytest.approx(0.4, rel=1e-12)
    found = ask(capsys, "group", *laplace, "--epsilon", "0.75")
    assert (found["size"], found["epsilon"]) == (7, pytest.approx(0.7, rel=1e-12))
    assert ask(capsys, "group", *laplace, "--epsilon", "0.01")["size"] == 0


# ------------------------------------------------------------------------------------------------------ tradeoff


@pytest.mark.parametrize("picture", account_arguments.PICTURES)
def test_tradeoff_files_are_written_and_monotone(picture: str, capsys: Capture, tmp_path: Path) -> None:
    image, table = tmp_path / "curve.png", tmp_path / "curve.csv"
    found = ask(
        capsys, "tradeoff", "--noise-multiplier", "1", "--picture", picture, "--points", "41", "--output", str(image),
        "--output", str(table), "--rates", "0.01", "0.5",
    )  # fmt: skip
    assert found["files"] == [str(image), str(table)]
    assert image.read_bytes().startswith(b"\x89PNG")
    with open(table, newline="") as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    alpha, beta = [row["type1_error"] for row in rows], [row["type2_error"] for row in rows]
    assert alpha == sorted(alpha) == found["curve"]["type1_errors"]
    assert beta == sorted(beta, reverse=True) == found["curve"]["type2_errors"]
    assert (alpha[0], alpha[-1], beta[-1]) == (0.0, 1.0, 0.0)
    normal = statistics.NormalDist()
    for a, b, row in zip(alpha, beta, rows, strict=True):
        assert row["true_positive_rate"] == 1 - b
        if 0 < a < 1:
            assert b == pytest.approx(normal.cdf(normal.inv_cdf(1 - a) - 1), abs=1e-9)
    assert found["advantage"] == pytest.approx(2 * normal.cdf(0.5) - 1, rel=1e-9)
    assert found["tpr_at_fpr"]["0.5"] == pytest.approx(normal.cdf(1.0), rel=1e-9)
    epsilon = acc.epsilon(acc.Gaussian(1.0), 1e-5)
    assert found["posterior"] == pytest.approx(1 / (1 + math.exp(-epsilon)), rel=1e-9)


def test_tradeoff_for_a_person(capsys: Capture) -> None:
    assert account.main(["tradeoff", *STEP, "--steps", "100", "--points", "11"]) == 0
    printed = capsys.readouterr().out
    for word in ("advantage ≤", "false-positive rate of 0.01", "posterior", "accuracy"):
        assert word in printed


# ------------------------------------------------------------------------------------------------------- compose


def test_compose_adds_up_files_lists_ledgers_and_runs(capsys: Capture, tmp_path: Path) -> None:
    one, many = tmp_path / "one.json", tmp_path / "many.json"
    one.write_text(json.dumps(acc.Gaussian(10.0).to_json()))
    many.write_text(json.dumps([acc.Laplace(20.0).to_json(), RUN.to_json()]))
    (tmp_path / "run" / "release").mkdir(parents=True)
    ledger(tmp_path / "run" / "release" / "ledger.jsonl")
    inline = json.dumps(acc.Pure(0.01).to_json())
    call = ["compose", str(one), f"@{many}", str(tmp_path / "run"), inline, "--delta", "1e-5"]
    found = ask(capsys, *call)
    parts = [acc.Gaussian(10.0), acc.Laplace(20.0), RUN, acc.Gaussian(20.0), RUN, acc.Pure(0.01)]
    assert found["epsilon"] == pytest.approx(acc.epsilon(acc.Composed(tuple(parts)), 1e-5), rel=1e-9)
    assert [part["epsilon"] for part in found["parts"]] == pytest.approx([acc.epsilon(part, 1e-5) for part in parts])
    assert found["interval"]["low"] <= found["epsilon"] <= sum(part["epsilon"] for part in found["parts"]) + 1e-9
    assert found["parts"][1]["source"] == f"{many}[0]"
    assert account.main(call) == 0
    printed = capsys.readouterr().out
    assert "together: ε ≤" in printed
    assert printed.count(" ε ≤") == 1 + len(parts)


def test_compose_takes_the_relation_of_the_ledgers(capsys: Capture, tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    ledger(first, "replace_one")
    ledger(second)
    found = ask(capsys, "compose", str(first), "--delta", "1e-5")
    assert found["neighboring_relation"] == "replace_one"
    assert "replace_one" in refused(capsys, "compose", str(first), "--delta", "1e-5", "--relation", "add_remove")
    assert "one relation" in refused(capsys, "compose", str(first), str(second), "--delta", "1e-5")
    first.write_bytes(first.read_bytes().replace(b"20.0", b"99.0"))
    assert "changed" in refused(capsys, "compose", str(first), "--delta", "1e-5")


# ------------------------------------------------------------------------------------------------------- compare


def test_compare_shows_every_accountant_and_the_installed_peers(capsys: Capture) -> None:
    found = ask(capsys, "compare", *STEP, "--steps", "100", "--delta", "1e-5")
    rows = {row["name"]: row for row in found["rows"]}
    assert set(rows) == {*acc.ACCOUNTANTS, "gaussian limit", *account_peers.PEERS}
    low = found["interval"]["low"]
    best = acc.epsilon(RUN, 1e-5)
    assert found["smallest_sound"] == "exact"
    assert rows["best"]["epsilon"] == rows["exact"]["epsilon"] == found["epsilon"]["exact"] == best
    for name in acc.ACCOUNTANTS:
        if rows[name]["epsilon"] is None:
            assert rows[name]["note"].startswith("refused") == found["epsilon"][name].startswith("refused")
        else:
            assert rows[name]["epsilon"] >= low
            assert rows[name]["ratio"] == rows[name]["epsilon"] / low
    assert rows["gdp"]["epsilon"] is None
    assert rows["gaussian limit"]["epsilon"] < low
    assert "approximation, not a guarantee" in rows["gaussian limit"]["note"]
    assert "BELOW the certified low end" in rows["gaussian limit"]["note"]
    for name in account_peers.PEERS:
        assert low * 0.999 <= rows[name]["epsilon"] <= 1.4 * best, rows[name]
        assert rows[name]["seconds"] > 0
        assert rows[name]["kind"] == "peer"


def test_compare_for_a_person(capsys: Capture) -> None:
    assert account.main(["compare", *CALLS["compare"]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "smallest sound: exact, ε ≤" in lines[-1]
    assert "certified" in lines[-1]
    assert {line.split()[0] for line in lines[2:-1]} == {*acc.ACCOUNTANTS, "gaussian"}
    assert max(map(len, lines)) < 160


@pytest.mark.parametrize("relation", acc.RELATIONS)
def test_peers_are_asked_only_what_they_have(relation: str) -> None:
    laplace = acc.SelfComposed(acc.Laplace(2.0), 3)
    half = 1.0 if relation == "replace_one" else 2.0
    assert account_peers.peer_parts(laplace, relation, "dp-accounting PLD") == [("laplace", half, 1.0, 3)]
    for event, name in (
        (laplace, "opacus RDP"),
        (acc.Pure(1.0), "dp-accounting PLD"),
        (acc.PoissonSampled(0.1, acc.Laplace(1.0)), "dp-accounting RDP"),
    ):
        with pytest.raises(UnsupportedEventError, match=name):
            account_peers.peer_parts(event, relation, name)
    if relation == "replace_one":
        with pytest.raises(UnsupportedEventError, match="add_remove"):
            account_peers.peer_parts(RUN, relation, "opacus PRV")
    else:
        assert account_peers.peer_parts(RUN, relation, "opacus PRV") == [("gaussian", 1.0, 0.02, 100)]


def test_peers_that_are_missing_die_or_hang_are_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "opacus").mkdir()
    (tmp_path / "opacus" / "__init__.py").write_text("raise ImportError('not here')")
    (tmp_path / "dp_accounting").mkdir()
    package = tmp_path / "dp_accounting" / "__init__.py"
    package.write_text("import os; os._exit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    rows = account_peers.ask_peers(RUN, 1e-5, "add_remove", 60.0)
    assert [row.name for row in rows] == list(account_peers.PEERS)
    assert all(row.epsilon is None for row in rows)
    assert ["not installed" in row.note for row in rows] == [True, True, False, False]
    assert all("its process ended" in row.note for row in rows[2:])
    package.write_text("raise RuntimeError('a bug\\nof theirs')")
    assert "RuntimeError: a bug" in account_peers.ask_peers(RUN, 1e-5, "add_remove", 60.0)[2].note
    start = time.monotonic()
    rows = account_peers.ask_peers(RUN, 1e-5, "add_remove", 0.02)
    assert all("stopped after 0.02 seconds" in row.note for row in rows)
    assert time.monotonic() - start < 30


# ----------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("", "VERB"),
        ("nothing", "nothing"),
        ("epsilon", "--delta"),
        ("epsilon --delta 1e-5", "--noise-multiplier"),
        ("epsilon --noise-multiplier x --delta 1e-5", "'x' is not a number"),
        ("epsilon --noise-multiplier -1 --delta 1e-5", "noise_multiplier = -1.0"),
        ("epsilon --noise-multiplier nan --delta 1e-5", "noise_multiplier = nan"),
        ("epsilon --noise-multiplier 1 --delta 1", "delta = 1.0"),
        ("epsilon --noise-multiplier 1 --delta 1/0", "1/0"),
        ("epsilon --noise-multiplier 1 --delta -1e-5", "delta = -1e-05"),
        ("epsilon --noise-multiplier 1 --delta -1/3", "delta = -0.333"),
        ("epsilon --noise-multiplier 1 --delta -.5", "delta = -0.5"),
        ("epsilon --noise-multiplier -inf --delta 1e-5", "noise_multiplier = -inf"),
        ("epsilon --noise-multiplier 1 --delta nan", "delta = nan"),
        ("tradeoff --noise-multiplier 1 --rates 0.1 -1e-5", "false_positive_rates = -1e-05"),
        ("epsilon --noise-multiplier 1 --delta --json", "--delta: expected one argument"),
        ("epsilon --noise-multiplier 1 --delta 1e-5 --sample-rate 1.5", "--sample-rate = 1.5"),
        ("epsilon --noise-multiplier 1 --delta 1e-5 --sample-rate inf", "'inf'"),
        ("epsilon --noise-multiplier 1 --delta 1e-5 --steps 1.5", "whole number"),
        ("epsilon --noise-multiplier 1 --delta 1e-5 --steps -1", "--steps = -1"),
        ("epsilon --noise-multiplier 1 --delta 1e-5 --epochs 2", "--epochs needs"),
        ("epsilon --noise-multiplier 1 --delta 1e-5 --sample-rate 0.1 --epochs -2", "--epochs = -2.0"),
        ("epsilon --noise-multiplier 1 --delta 1e-5 --sample-rate 0.1 --epochs 2 --steps 3", "excludes --steps"),
        ("epsilon --noise-multiplier 1 --delta 1e-5 --batch-size 5", "needs --records"),
        ("epsilon --noise-multiplier 1 --delta 1e-5 --batch-size 5 --records 4", "--batch-size = 5.0"),
        ("epsilon --noise-multiplier 1 --delta 1e-5 --batch-size 5 --records 9 --sample-rate 0.1", "excludes"),
        ("epsilon --noise-multiplier 1 --delta 1e-5 --accountant prv", "prv"),
        ("epsilon --noise-multiplier 1 --delta 1e-5 --relation both", "both"),
        ("epsilon --noise-multiplier 1 --delta 1e-5 --accountant optimal", "optimal"),
        ("epsilon --mechanism wave --delta 1e-5", "wave"),
        ("epsilon --mechanism gdp --delta 1e-5", "mu"),
        ("epsilon --mechanism gdp --noise-multiplier 1 --delta 1e-5", "--noise-multiplier = 1.0"),
        ("epsilon --mechanism gdp --parameter mu --delta 1e-5", "NAME=VALUE"),
        ("epsilon --mechanism gdp --parameter nu=1 --delta 1e-5", "nu"),
        ('epsilon --event {"type": --delta 1e-5', "not JSON"),
        ("epsilon --event @missing.json --delta 1e-5", "missing.json"),
        ("epsilon --event [] --delta 1e-5", "compose"),
        ('epsilon --event {"type":"no_op"} --noise-multiplier 1 --delta 1e-5', "excludes --noise-multiplier"),
        ('epsilon --event {"type":"no_op"} --parameter a=1 --delta 1e-5', "excludes --parameter"),
        ("delta --noise-multiplier 1 --epsilon -1", "epsilon = -1.0"),
        ("noise --epsilon 1", "delta"),
        ("noise", "exactly one"),
        ("noise --epsilon 1 --delta 1e-5 --advantage 0.1", "exactly one"),
        ("noise --mechanism pure --epsilon 1 --delta 1e-5", "--mechanism = 'pure'"),
        ('noise --event {"type":"no_op"} --epsilon 1 --delta 1e-5', "no noise to calibrate"),
        ('rate --event {"type":"no_op"} --epsilon 1 --delta 1e-5', "--event is not allowed"),
        ('epochs --event {"type":"no_op"} --epsilon 1 --delta 1e-5', "--event is not allowed"),
        ("epochs --noise-multiplier 1 --epsilon 1 --delta 1e-5", "--sample-rate"),
        ("group --noise-multiplier 1 --delta 1e-5", "--size"),
        ("group --noise-multiplier 1 --size 0 --delta 1e-5", "--size = 0"),
        ("compare --noise-multiplier 1 --delta 1e-5 --timeout 0", "--timeout = 0.0"),
        ("tradeoff --noise-multiplier 1 --output curve.pdf", "curve.pdf"),
        ("tradeoff --noise-multiplier 1 --output /no/such/folder/curve.csv", "/no/such/folder/curve.csv"),
        ("tradeoff --noise-multiplier 1 --points 2", "--points = 2"),
        ("tradeoff --noise-multiplier 1 --rates 2", "false_positive_rates = 2.0"),
        ("tradeoff --noise-multiplier 1 --prior 2", "prior = 2.0"),
        ("compose missing.jsonl --delta 1e-5", "missing.jsonl"),
        ("compose . --delta 1e-5", "no ledger.jsonl"),
        ("compose", "FILE"),
    ],
)
def test_refusals_name_argument_and_value(
    call: str, words: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(capsys, *call.split())
    assert not list(tmp_path.iterdir())


def test_strange_event_files_are_refused(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    for content in (b"\xff\xfe", b"", b"[" * 100_000, b'{"type": "gaussian", "noise_multiplier": NaN}', b"1"):
        path.write_bytes(content)
        assert "error" in refused(capsys, "epsilon", "--event", f"@{path}", "--delta", "1e-5")
        assert "error" in refused(capsys, "compose", str(path), "--delta", "1e-5")


# ------------------------------------------------------------------------------------------------- the process


def test_help_loads_no_heavy_package() -> None:
    script = (
        "import runpy, sys\nsys.argv = ['account', '--help']\n"
        "try: runpy.run_module('dpml.account', run_name='__main__')\nexcept SystemExit as stop: assert not stop.code\n"
        "heavy = {'torch', 'opacus', 'matplotlib', 'dp_accounting', 'hydra', 'pandas', 'sklearn', 'scipy.optimize'}\n"
        "sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "compare" in done.stdout


@pytest.mark.parametrize("call", [["--help"], ["epsilon", "--noise-multiplier", "1", "--delta", "1e-5", "--json"]])
def test_a_reader_that_stops_early_is_no_error(call: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "dpml.account", *call], stdout=write, stderr=subprocess.PIPE, text=True, timeout=120
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_without_greek_gets_escapes() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run("epsilon", "--noise-multiplier", "1", "--delta", "1e-5", env=environment)
    assert done.returncode == 0
    assert "\\u03b5 \\u2264 4.37718" in done.stdout
    assert "Traceback" not in done.stderr


def test_an_interrupt_ends_quietly(tmp_path: Path) -> None:
    """SIGINT in the middle of a long calculation: a reader of the event that never comes."""
    fifo = tmp_path / "event.json"
    os.mkfifo(fifo)
    child = subprocess.Popen(
        [sys.executable, "-m", "dpml.account", "epsilon", "--event", f"@{fifo}", "--delta", "1e-5"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    with open(fifo, "w"):  # opens when the child reads
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (130, "", "interrupted\n")
