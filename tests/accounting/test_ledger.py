"""The ledger: chain, tampering, crashes, a full disk, and the order of write, sync and use."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest

import dpml
from dpml import accounting as acc
from dpml import verify as verify_cli
from dpml.accounting import api, verification
from dpml.accounting.ledger import canonical, seal
from dpml.errors import BudgetExceededError, ConfigError, LedgerError
from dpml.results import dumps

STEP = acc.PoissonSampled(0.02, acc.Gaussian(1.5))
DELTA = 1e-5


EVENT = acc.Composed((acc.SelfComposed(STEP, 60), acc.Gaussian(30.0)))
SAID = {"method": "dp_sgd", "model": "logreg", "steps": 60, "noise_multiplier": 1.5, "data": {"n_declared": 50}}
ASSUMED = ("at most one record each",)
CHARGES = ((STEP, 40), (STEP, 20), (acc.Gaussian(30.0), 1))


def write_run(
    folder,
    *,
    epsilon=None,
    accountant="best",
    relation="add_remove",
    promise=5.0,
    charges=CHARGES,
    assumptions=ASSUMED,
    files=None,
    sealed=False,
):
    """A finished run folder: plan, three charges (60 steps and an output release), closed, result.json."""
    release = folder / "release"
    release.mkdir(parents=True)
    said = {"delta": DELTA, "neighboring_relation": relation, "accountant": accountant, "unit": "record"}
    said["assumptions"] = list(assumptions)
    plan = {**SAID, "guarantee": {"epsilon": promise, **said}, "event": EVENT.to_json()}
    ledger = acc.Ledger.create(release / "ledger.jsonl", plan)
    for event, count in charges:
        ledger.charge(event, stage="output" if event == acc.Gaussian(30.0) else "train", count=count)
    if epsilon is None:
        epsilon = acc.epsilon(ledger.charged, DELTA, accountant=accountant, neighboring_relation=relation)
    result = {"epsilon": epsilon, **said, "epsilon_source": "recomputed", **SAID, "plan": plan}
    closing = {"epsilon": epsilon, "delta": DELTA, "steps": 60}
    if sealed:
        closing |= {"result": acc.result_digest(result)}
    if files is not None:
        for name, content in files.items():
            (release / name).write_bytes(content)
        closing |= {"files": {name: acc.file_digest(release / name) for name in files}}
    ledger.close(closing)
    result |= {"ledger": {"head": ledger.head, "count": ledger.count}, "command": "python -m dpml.train"}
    (release / "result.json").write_text(dumps(result))
    return release


def change_result(release, **values):
    path = release / "result.json"
    path.write_text(dumps({**json.loads(path.read_text()), **values}))


def rewrite(release, change):
    path = release / "ledger.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1]
    path.write_bytes(b"".join(line + b"\n" for line in change(lines)))


@pytest.mark.parametrize("accountant", ["best", "pld", "rdp", "zcdp"])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_an_untouched_run_verifies(tmp_path, accountant, relation):
    write_run(tmp_path, accountant=accountant, relation=relation, promise=1000.0)
    for folder in (tmp_path, tmp_path / "release"):
        found = acc.verify(folder)
        assert found.ok, found.problems
        assert found.lines == 5
        assert found.epsilon_recomputed == pytest.approx(found.epsilon_reported, rel=1e-9)


def test_the_second_opinion_is_independent_and_near(tmp_path):
    """Who proved the reported ε is named, and is not among the second opinions."""
    for accountant in ("best", "pld", "rdp"):
        write_run(tmp_path / accountant, accountant=accountant)
        found = acc.verify(tmp_path / accountant)
        assert found.accountant in ("exact", "pld", "rdp")
        assert accountant in ("best", found.accountant)
        assert found.accountant not in found.second_opinion
        best = acc.epsilon(EVENT, DELTA)
        assert found.second_opinion["dp_accounting_pld"] == pytest.approx(best, rel=0.01)
        if accountant != "pld":
            assert found.second_opinion["pld"] == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (EVENT, "add_remove"),
        (EVENT, "replace_one"),
        (acc.Gaussian(1000.0), "add_remove"),
        (acc.SelfComposed(acc.Laplace(30.0), 50), "replace_one"),
        (acc.SelfComposed(acc.PoissonSampled(0.01, acc.Gaussian(50.0)), 10_000), "add_remove"),
        (acc.SelfComposed(acc.Gaussian(2.0), 3), "replace_one"),
        (acc.Composed((acc.Pure(0.5), acc.Gaussian(3.0))), "add_remove"),
        (acc.ObjectivePerturbation(50.0, 10.0, 1.0), "add_remove"),
    ],
)
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_right_accountants_do_not_contradict_each_other(event, relation, delta):
    value, used = acc.best(event, delta, neighboring_relation=relation)
    opinions = verification._second_opinion(event, delta, relation, used)
    values = {used: value, **{name: item for name, item in opinions.items() if isinstance(item, float)}}
    assert verification.contradictions(values, event, delta, relation) == []


def test_two_accountants_that_contradict_each_other_are_a_problem():
    """A tight value is 1.0: an upper bound below it less its tolerance is wrong, one above proves nothing."""
    step = acc.Gaussian(acc.gaussian_noise_multiplier(1.0, DELTA))

    def found(**values):
        return verification.contradictions(values, step, DELTA, "add_remove")

    assert found(exact=1.0, pld=1.0019, rdp=1.3) == []
    assert found(exact=1.0, dp_accounting_pld=1.0022) == []
    (text,) = found(exact=1.0, pld=1.0021)
    assert "'exact' and 'pld' contradict" in text
    (text,) = found(exact=1.0, dp_accounting_pld=1.003)
    assert "'exact' and 'dp_accounting_pld' contradict" in text
    assert len(found(exact=1.0, rdp=0.9)) == 2  # below the certified bound, and below the tight value
    (text,) = found(exact=0.9999)
    assert "below the certified lower bound" in text


@pytest.mark.parametrize("share", [0.5, 0.99])
@pytest.mark.parametrize("accountant", ["pld", "exact"])
def test_an_accountant_that_is_too_low_does_not_verify(tmp_path, monkeypatch, accountant, share):
    """The planted bug: the run was planned, reported and recomputed with an accountant that says too little."""
    module = api._MODULES[accountant]
    right = module.epsilon
    monkeypatch.setattr(module, "epsilon", lambda *arguments: share * right(*arguments))
    write_run(tmp_path, accountant=accountant)
    problems = acc.verify(tmp_path).problems
    assert any("below the certified lower bound" in problem for problem in problems)
    assert any("contradict each other" in problem for problem in problems)


def test_a_tight_accountant_without_a_proof_of_tightness_is_only_an_upper_bound():
    """Bounded-range selection: pld may use a coarser pair than the Rényi bound does, which contradicts nothing."""
    event = acc.SelfComposed(acc.ExponentialMechanism(0.1), 10)
    assert verification.contradictions({"rdp": 0.9, "pld": 1.5}, event, DELTA, "add_remove") == []


TAMPERS = {
    "deleted": lambda lines, k: lines[:k] + lines[k + 1 :],
    "changed": lambda lines, k: [*lines[:k], lines[k].replace(b'"index":', b'"index": '), *lines[k + 1 :]],
    "byte": lambda lines, k: [*lines[:k], lines[k][:-9] + bytes([lines[k][-9] ^ 1]) + lines[k][-8:], *lines[k + 1 :]],
    "repeated": lambda lines, k: [*lines[: k + 1], lines[k], *lines[k + 1 :]],
    "swapped": lambda lines, k: (
        [*lines[: k - 1], lines[k], lines[k - 1], *lines[k + 1 :]] if k else [lines[1], lines[0], *lines[2:]]
    ),
}


@pytest.mark.parametrize("line", range(5))
@pytest.mark.parametrize("kind", sorted(TAMPERS))
def test_tampering_with_any_line_is_found_and_the_line_named(tmp_path, capsys, kind, line):
    release = write_run(tmp_path)
    rewrite(release, lambda lines: TAMPERS[kind](lines, line))
    found = acc.verify(tmp_path)
    assert not found.ok
    assert any("line " in problem for problem in found.problems)
    first_hit = min(line, 3) + 1 if kind == "swapped" else line + 1
    words = [pair for problem in found.problems for pair in pairwise(problem.split())]
    named = {int(number.strip(",:.")) for word, number in words if word == "line" and number[0].isdigit()}
    assert named & {first_hit - 1, first_hit, first_hit + 1}
    assert verify_cli.main([str(tmp_path)]) == 1
    assert "line " in capsys.readouterr().out


def test_a_chain_that_was_made_anew_meets_the_head_in_the_result(tmp_path):
    """All hashes right again, one charge dropped: head, count and ε in result.json no longer fit."""
    release = write_run(tmp_path)

    def forge(lines):
        kept = [json.loads(line) for line in lines if b'"output"' not in line]
        previous, out = "0" * 64, []
        for index, line in enumerate(kept):
            line = seal({**line, "index": index, "previous": previous})
            previous = line["hash"]
            out.append(canonical(line))
        return out

    rewrite(release, forge)
    found = acc.verify(tmp_path)
    assert not found.ok
    assert any("head" in problem for problem in found.problems)
    assert any("ends at line 4" in problem for problem in found.problems)


def test_an_epsilon_below_the_charges_is_found(tmp_path):
    release = write_run(tmp_path)
    honest = acc.verify(tmp_path).epsilon_reported
    change_result(release, epsilon=honest * (1 - 1e-6))
    assert not acc.verify(tmp_path).ok
    change_result(release, epsilon=honest * (1 + 1e-6))
    assert not acc.verify(tmp_path).ok
    change_result(release, epsilon=honest)
    assert acc.verify(tmp_path).ok


def test_a_promise_below_the_report_is_found(tmp_path):
    write_run(tmp_path, promise=0.01)
    assert any("promise" in problem for problem in acc.verify(tmp_path).problems)


@pytest.mark.parametrize(
    "change",
    [
        {"delta": 1e-3},
        {"neighboring_relation": "replace_one"},
        {"accountant": "rdp"},
        {"unit": "user"},
        {"assumptions": []},
        {"method": "output"},
        {"model": "mlp"},
        {"steps": 59},
        {"noise_multiplier": 15.0},
        {"data": {"n_declared": 500}},
        {"plan": {}},
        {"epsilon": True},
        {"delta": False},
        {"steps": None},
    ],
)
def test_a_changed_setting_in_the_result_is_found(tmp_path, change):
    release = write_run(tmp_path)
    change_result(release, **change)
    assert any(next(iter(change)) in problem for problem in acc.verify(tmp_path).problems)


def test_a_result_that_says_more_of_the_ledger_does_not_verify(tmp_path):
    release = write_run(tmp_path)
    assert acc.verify(tmp_path).ok
    change_result(release, ledger={**json.loads((release / "result.json").read_text())["ledger"], "x": None})
    assert acc.verify(tmp_path).problems == ("result.json says more of the ledger than its head and count.",)


def test_an_unfinished_or_missing_run_does_not_verify(tmp_path, capsys):
    release = tmp_path / "a" / "release"
    release.mkdir(parents=True)
    acc.Ledger.create(release / "ledger.jsonl", {})
    (release / "result.json").write_text('{"epsilon": 1.0}')
    found = acc.verify(tmp_path / "a")
    assert any("line 1 is not the closing line" in problem for problem in found.problems)
    assert not acc.verify(tmp_path / "nothing").ok
    assert verify_cli.main([str(tmp_path / "nothing")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert verify_cli.main([str(tmp_path)]) == 1
    assert "is no run: " in capsys.readouterr().err
    (release / "result.json").unlink()
    assert verify_cli.main([str(tmp_path / "a")]) == 1
    assert "cannot read" in capsys.readouterr().out


def test_verify_command_prints_json(tmp_path, capsys):
    write_run(tmp_path)
    assert verify_cli.main([str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert verify_cli.main([str(tmp_path)]) == 0
    assert "OK: 5 ledger lines hold" in capsys.readouterr().out


def test_verify_command_shows_both_accountants(tmp_path, capsys):
    write_run(tmp_path)
    assert verify_cli.main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"  (exact|pld): 0\.\d+ \(recomputed from the charges\)", lines[1])
    assert any(re.fullmatch(r"  dp_accounting_pld: 0\.\d+ \(second opinion\)", line) for line in lines[2:])
    change_result(tmp_path / "release", epsilon=0.1)
    assert verify_cli.main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("PROBLEM: ")
    assert "recomputed from the charges" in out


@pytest.mark.parametrize("good", [True, False])
def test_a_reader_that_leaves_early_gets_no_traceback(tmp_path, good):
    """``python -m dpml.verify RUN | head``: the pipe is closed before the first line; the exit status still tells."""
    release = write_run(tmp_path)
    if not good:
        change_result(release, epsilon=0.1)
    command = [sys.executable, "-m", "dpml.verify", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(dpml.__file__).parents[1])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    process.stdout.close()
    message = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), message) == (0 if good else 1, "")


def test_a_failed_write_lets_go_of_the_file(tmp_path, monkeypatch):
    """Another process may go on at once, while the failed ledger is still in the hands of whoever caught the error."""
    from dpml.accounting import ledger as module

    def full(handle, data):
        raise OSError(28, "No space left on device")

    path = tmp_path / "ledger.jsonl"
    ledger = acc.Ledger.create(path, {"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_all", full)
        with pytest.raises(LedgerError, match=r"cannot write line 1 .*No space left.*was not used"):
            ledger.charge(STEP, stage="train", count=5)
    with pytest.raises(LedgerError):
        ledger.charge(STEP, stage="train", count=5)
    resumed = acc.Ledger.resume(path)
    resumed.charge(STEP, stage="train", count=5)
    assert (ledger.count, resumed.count) == (1, 2)


def test_a_torn_last_line_is_cut_off_on_resume_and_nothing_else(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = acc.Ledger.create(path, {"a": 1})
    ledger.charge(STEP, stage="train", count=5)
    head, whole = ledger.head, path.read_bytes()
    ledger.charge(STEP, stage="train", count=5)
    line = path.read_bytes()[len(whole) :]
    ledger.release()
    for cut in range(len(line)):
        path.write_bytes(whole + line[:cut])
        resumed = acc.Ledger.resume(path)
        assert (resumed.head, resumed.count, path.read_bytes()) == (head, 2, whole)
        resumed.release()
    resumed = acc.Ledger.resume(path)
    with pytest.raises(LedgerError, match="in use by another process"):
        acc.Ledger.resume(path)
    resumed.charge(STEP, stage="train", count=5)
    assert path.read_bytes() == whole + line
    path.write_bytes(whole + line[:-1])
    with pytest.raises(LedgerError, match="line 3 is torn"):
        acc.read_ledger(path)


def test_resume_keeps_the_charges_and_refuses_a_closed_or_broken_ledger(tmp_path):
    path = tmp_path / "ledger.jsonl"
    acc.Ledger.create(path, {"a": 1}).charge(STEP, stage="train", count=5)
    ledger = acc.Ledger.resume(path)
    ledger.charge(STEP, stage="train", count=7)
    assert ledger.charged == acc.Composed((acc.SelfComposed(STEP, 12),))
    assert acc.read_ledger(path).event == ledger.charged
    ledger.close({"epsilon": 1.0})
    with pytest.raises(LedgerError, match="closed"):
        ledger.charge(STEP, stage="train")
    with pytest.raises(LedgerError, match="closed"):
        acc.Ledger.resume(path)
    path.write_bytes(path.read_bytes().replace(b"train", b"drain", 1))
    with pytest.raises(LedgerError, match="line 2"):
        acc.Ledger.resume(path)


def test_an_existing_ledger_is_never_written_over(tmp_path):
    path = tmp_path / "ledger.jsonl"
    acc.Ledger.create(path, {})
    with pytest.raises(LedgerError, match="exists already"):
        acc.Ledger.create(path, {})
    with pytest.raises(LedgerError, match="cannot create"):
        acc.Ledger.create(tmp_path / "no" / "ledger.jsonl", {})


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_stops_the_run_for_good(tmp_path, monkeypatch, call):
    path = tmp_path / "ledger.jsonl"
    ledger = acc.Ledger.create(path, {})
    ledger.charge(STEP, stage="train")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full_disk)
        with pytest.raises(LedgerError, match="No space left on device"):
            ledger.charge(STEP, stage="train")
    assert ledger.count == 2
    with pytest.raises(LedgerError, match="no further line"):
        ledger.charge(STEP, stage="train")
    with pytest.raises(LedgerError, match="no further line"):
        ledger.close({})


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_at_the_first_line(tmp_path, monkeypatch, call):
    monkeypatch.setattr(os, call, full_disk)
    with pytest.raises(LedgerError, match="No space left on device"):
        acc.Ledger.create(tmp_path / "ledger.jsonl", {})


def test_short_writes_are_completed(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, bytes(data[:7])))
    path = tmp_path / "ledger.jsonl"
    acc.Ledger.create(path, {"a": 1}).charge(STEP, stage="train")
    assert acc.read_ledger(path).count == 2


def test_a_ledger_in_memory_has_the_same_lines(tmp_path):
    lines = []
    for path in (None, tmp_path / "ledger.jsonl"):
        ledger = acc.Ledger.create(path, {"epsilon": float("inf")})
        ledger.charge(STEP, stage="train", count=3)
        ledger.close({"epsilon": 1.0})
        lines.append(ledger.lines)
    assert lines[0] == lines[1] == acc.read_ledger(tmp_path / "ledger.jsonl").lines


def test_bad_charges_are_refused():
    ledger = acc.Ledger.create(None, {})
    with pytest.raises(ConfigError, match="count = 0"):
        ledger.charge(STEP, stage="train", count=0)
    with pytest.raises(ConfigError, match="event"):
        ledger.charge({"type": "gaussian"}, stage="train")
    assert ledger.count == 1


def test_ledger_lines_hold_no_time_stamp(tmp_path):
    """The same run writes the same bytes at any time."""
    first, second = tmp_path / "a", tmp_path / "b"
    write_run(first)
    write_run(second)
    assert (first / "release/ledger.jsonl").read_bytes() == (second / "release/ledger.jsonl").read_bytes()


def test_dataset_ledger_adds_up_and_refuses_the_run_that_passes_the_cap(tmp_path):
    path = tmp_path / "people.ledger"
    book = acc.DatasetLedger(path, 1.0, 1e-5)
    assert book.total() == (0.0, 0.0)
    for k in range(10):
        acc.DatasetLedger(path, 1.0, 1e-5).reserve(f"run {k}", 0.1, 1e-6, acc.Gaussian(40.0))
    assert book.total() == (pytest.approx(1.0), pytest.approx(1e-5))
    before = path.read_bytes()
    with pytest.raises(BudgetExceededError, match="Nothing was used"):
        book.reserve("one more", 1e-6, 0.0, None)
    assert path.read_bytes() == before
    assert [run["run"] for run in book.runs()] == [f"run {k}" for k in range(10)]
    epsilon, delta = book.composed()
    assert delta == pytest.approx(1e-5)
    assert epsilon == pytest.approx(acc.epsilon(acc.Gaussian(40 / 10**0.5), 1e-5), rel=1e-6)
    with pytest.raises(ConfigError, match="one neighbouring relation"):
        acc.DatasetLedger(path, 1.0, 1e-5, neighboring_relation="replace_one").total()


def test_dataset_ledger_finds_a_changed_line_and_cuts_a_torn_one(tmp_path):
    path = tmp_path / "people.ledger"
    book = acc.DatasetLedger(path, 10.0, 1e-4)
    book.reserve("a", 1.0, 1e-6, None)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"index":1,"ki')
    book.reserve("b", 2.0, 1e-6, None)
    assert book.total()[0] == 3.0
    path.write_bytes(path.read_bytes().replace(b'"epsilon":1.0', b'"epsilon":0.5'))
    with pytest.raises(LedgerError, match="line 1"):
        book.reserve("c", 0.1, 0.0, None)


def test_dataset_ledger_on_a_full_disk(tmp_path, monkeypatch):
    book = acc.DatasetLedger(tmp_path / "people.ledger", 10.0, 1e-4)
    book.reserve("a", 1.0, 0.0, None)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(LedgerError, match="nothing was used"):
            book.reserve("b", 1.0, 0.0, None)
    assert book.total() == (1.0, 0.0)


def test_a_result_without_its_plan_is_found(tmp_path):
    release = write_run(tmp_path)
    path = release / "result.json"
    path.write_text(dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "plan"}))
    assert any("has no plan" in problem for problem in acc.verify(tmp_path).problems)


@pytest.mark.parametrize(
    ("charges", "word"),
    [
        (((STEP, 59), (acc.Gaussian(30.0), 1)), "charge 59 of PoissonSampled.*1 lost"),
        (((STEP, 61), (acc.Gaussian(30.0), 1)), "charge 61 of PoissonSampled.*1 extra"),
        (((STEP, 60),), r"charge 0 of Gaussian\(noise_multiplier=30.0\).*1 lost"),
        ((*CHARGES, (acc.Laplace(3.0), 2)), "charge 2 of Laplace.*plans 0: 2 extra"),
    ],
)
def test_charges_that_are_not_the_plan_are_named(tmp_path, charges, word):
    """ε, result and chain agree with the charges; only the plan tells."""
    write_run(tmp_path, charges=charges, promise=100.0)
    (problem,) = acc.verify(tmp_path).problems
    assert re.search(word, problem)


def test_noise_that_was_not_secret_does_not_verify(tmp_path, capsys):
    write_run(tmp_path, assumptions=(*ASSUMED, "NOT PRIVATE: the noise source is not secret (tests only)"))
    (problem,) = acc.verify(tmp_path).problems
    assert "NOT PRIVATE" in problem
    assert acc.verify(tmp_path, allow_test_noise=True).ok
    assert verify_cli.main([str(tmp_path)]) == 1
    assert "NOT PRIVATE" in capsys.readouterr().out
    assert verify_cli.main([str(tmp_path), "--allow-test-noise"]) == 0


FILES = {"model.safetensors": b"weights", "config.yaml": b"a: 1", "schema.json": b"{}"}


def test_released_files_are_checked(tmp_path):
    release = write_run(tmp_path, files=FILES, sealed=True)
    assert acc.file_digest(release / "schema.json") == hashlib.sha256(b"{}").hexdigest()
    assert acc.verify(tmp_path).ok
    for name, content in FILES.items():
        (release / name).write_bytes(content + b" ")
        assert any(f"{name} was changed" in problem for problem in acc.verify(tmp_path).problems)
        (release / name).unlink()
        assert any(name in problem for problem in acc.verify(tmp_path).problems)
        (release / name).write_bytes(content)
    assert acc.verify(tmp_path).ok


def test_the_result_is_checked_as_a_whole(tmp_path):
    release = write_run(tmp_path, sealed=True)
    change_result(release, command="another command")
    assert acc.verify(tmp_path).ok
    change_result(release, metrics={"accuracy": 1.0})
    assert any("whose hash" in problem for problem in acc.verify(tmp_path).problems)


def test_result_digest_is_of_canonical_json():
    text = b'{"a":[1,0.5],"epsilon":"inf"}'
    content = {"epsilon": float("inf"), "ledger": {}, "command": "x", "a": (1, 0.5)}
    assert acc.result_digest(content) == hashlib.sha256(text).hexdigest()


def test_a_file_name_that_leaves_the_folder_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    write_run(tmp_path / "run", files={"../x": b"1"})
    assert any("not a file name" in problem for problem in acc.verify(tmp_path / "run").problems)


BOMBS = {"huge": "1" + "0" * 400, "endless": "1" + "0" * 5000, "overflow": "1e400", "deep": "[" * 900 + "]" * 900}
BOMBS |= {"deeper": "[" * 100_000 + "]" * 100_000, "nan": "NaN"}


def sealed_text(text, content):
    """A line with ``text`` in place of the string "BOMB", its hash right for exactly these bytes."""
    plain = canonical(content).replace(b'"BOMB"', text.encode())
    digest = hashlib.sha256(plain).hexdigest()
    line = canonical({**content, "hash": digest}).replace(b'"BOMB"', text.encode())
    return line + b"\n"


@pytest.mark.parametrize("bomb", sorted(BOMBS))
def test_numbers_and_nesting_out_of_range_are_no_tracebacks(tmp_path, bomb):
    release = write_run(tmp_path)
    path = release / "result.json"
    good = path.read_text()
    for key in ("epsilon", "delta", "steps", "plan", "ledger", "data"):
        content = {**json.loads(good), key: "BOMB"}
        path.write_text(json.dumps(content).replace('"BOMB"', BOMBS[bomb]))
        assert not acc.verify(tmp_path).ok
    path.write_text(good)
    for payload in (
        {"kind": "plan", "plan": {"guarantee": "BOMB"}},
        {"kind": "plan", "plan": {"guarantee": {"epsilon": "BOMB"}, "event": "BOMB"}},
    ):
        line = sealed_text(BOMBS[bomb], {"index": 0, "previous": "0" * 64, **payload})
        (release / "ledger.jsonl").write_bytes(line)
        assert not acc.verify(tmp_path).ok
    charge = {"kind": "charge", "stage": "train", "count": "BOMB", "event": STEP.to_json()}
    event = {"kind": "charge", "stage": "train", "count": 1, "event": {"type": "gaussian", "noise_multiplier": "BOMB"}}
    first = acc.Ledger.create(None, {})
    for payload in (charge, event):
        line = sealed_text(BOMBS[bomb], {"index": 1, "previous": first.head, **payload})
        (release / "ledger.jsonl").write_bytes(canonical(first.lines[0]) + b"\n" + line)
        with pytest.raises(LedgerError, match="line 2"):
            acc.read_ledger(release / "ledger.jsonl")
    book = acc.DatasetLedger(tmp_path / "book", 1.0, 1e-5)
    line = {"index": 0, "kind": "run", "previous": "0" * 64, "run": "a", "epsilon": 0.5, "delta": 0.0}
    line["event"] = {"neighboring_relation": "add_remove", "released": None}
    book.path.write_bytes(sealed_text("0", line))
    assert book.total() == (0.5, 0.0)
    for change in ({"epsilon": "BOMB"}, {"delta": "BOMB"}, {"event": "BOMB"}, {"run": "BOMB"}):
        book.path.write_bytes(sealed_text(BOMBS[bomb], {**line, **change}))
        with pytest.raises(LedgerError, match="line 1"):
            book.total()


def test_a_reservation_waits_for_the_one_under_way(tmp_path):
    """A second handle holds the lock, as another process in the middle of a reservation would."""
    book = acc.DatasetLedger(tmp_path / "people.ledger", 1.0, 1e-5)
    book.reserve("a", 0.4, 0.0, None)
    with open(book.path, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        thread = threading.Thread(target=book.reserve, args=("b", 0.4, 0.0, None), daemon=True)
        size = book.path.stat().st_size
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        assert book.path.stat().st_size == size
    thread.join(20)
    assert not thread.is_alive()
    assert [run["run"] for run in book.runs()] == ["a", "b"]
