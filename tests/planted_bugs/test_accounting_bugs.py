"""Planted bugs in accounting and ledger: each check holds for the code as it is and fails with the bug planted.

Reference values: table ``composed_subsampled_gaussian`` in tests/reference (contour integral of the exact moment
generating function, relative tolerance 1e-9).
"""

from __future__ import annotations

import json
import math
import os
import sys
from types import SimpleNamespace

import pytest

from dpml import accounting as acc
from dpml.accounting import api, calibration, pairs, pld, renyi
from dpml.accounting import ledger as ledger_module
from dpml.errors import AccountingError
from dpml.results import dumps

STEP = acc.PoissonSampled(0.02, acc.Gaussian(1.0))
RUN = acc.SelfComposed(STEP, 500)
# (event, δ, exact ε under replace_one)
REPLACE_ONE = [(RUN, 1e-6, 4.74492083552882), (acc.Gaussian(1.0), 1e-5, 9.9972561464343)]
ADD_REMOVE_OF_RUN = 2.77344813917494  # δ = 1e-5


def check_replace_one(accountant):
    for event, delta, exact_epsilon in REPLACE_ONE:
        if accountant == "exact" and event is RUN:
            continue
        got = acc.epsilon(event, delta, accountant=accountant, neighboring_relation="replace_one")
        assert got >= exact_epsilon * (1 - 1e-9)


@pytest.fixture
def fresh():
    """No cached value of the good code survives into the planted one, nor back."""
    clear()
    yield
    clear()


def clear():
    for name, module in list(sys.modules.items()):
        if name.startswith("dpml.accounting."):
            for item in vars(module).values():
                if hasattr(item, "cache_clear"):
                    item.cache_clear()


@pytest.mark.parametrize("accountant", ["best", "exact", "pld", "rdp", "zcdp", "basic"])
def test_replace_one_accounted_as_add_remove_is_caught(accountant, monkeypatch, fresh):
    check_replace_one(accountant)
    for name, module in list(sys.modules.items()):
        if name.startswith("dpml.accounting.") and hasattr(module, "effective"):
            monkeypatch.setattr(module, "effective", lambda noise, relation: noise)
    clear()
    with pytest.raises(AssertionError):
        check_replace_one(accountant)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_sampled_pair_of_add_remove_under_replace_one_is_caught(accountant, monkeypatch, fresh):
    module, name = (pairs, "_sampled_gaussian") if accountant == "pld" else (renyi, "_log_moment_replace")
    good = getattr(module, name)
    if accountant == "pld":

        def planted(atom, relation, direction, step, width):
            return good(atom, "add_remove", direction, step, width)

    else:

        def planted(q, sigma, order):
            return renyi._log_moment_fractional(q, sigma, order)

    check_replace_one(accountant)
    monkeypatch.setattr(module, name, planted)
    pairs.discretise.cache_clear()
    renyi._values.cache_clear()
    renyi._sampled.cache_clear()
    with pytest.raises(AssertionError):
        check_replace_one(accountant)


def check_calibration():
    for target in (0.5, 3.0):
        noise = acc.calibrate(
            lambda s: acc.SelfComposed(acc.PoissonSampled(0.05, acc.Gaussian(s)), 50), epsilon=target, delta=1e-6
        )
        event = acc.SelfComposed(acc.PoissonSampled(0.05, acc.Gaussian(noise)), 50)
        assert acc.epsilon(event, 1e-6) <= target


def test_a_calibrator_that_checks_with_a_rosier_accountant_is_caught(monkeypatch):
    check_calibration()
    rosy = SimpleNamespace(epsilon=lambda *a, **k: api.epsilon(*a, **k) * (1 - 1e-3))
    monkeypatch.setattr(calibration, "api", rosy)
    with pytest.raises(AssertionError):
        check_calibration()


def test_a_root_on_the_optimistic_side_is_repaired_by_the_check(monkeypatch):
    """The root finder may end on either side: the calibrator looks again and moves up."""
    real = calibration._proposal
    monkeypatch.setattr(calibration, "_proposal", lambda *arguments: real(*arguments) - 0.01)
    check_calibration()


def check_count():
    for accountant in ("best", "pld", "rdp", "zcdp", "basic"):
        assert acc.epsilon(RUN, 1e-5, accountant=accountant) >= ADD_REMOVE_OF_RUN * (1 - 1e-9)


@pytest.mark.parametrize("lost", [1, 499])
def test_a_step_that_is_not_counted_is_caught(monkeypatch, lost):
    """One step of 500 changes ε by 0.1 %, far above the accountants' tightness at this row (below 0.02 %)."""
    check_count()
    good = pld.normal_form

    def planted(event, relation):
        return {atom: count - lost if count > lost else count for atom, count in good(event, relation).items()}

    monkeypatch.setattr(pld, "normal_form", planted)
    with pytest.raises(AssertionError):
        check_count()


def finish_run(folder):
    """Charge 60 steps in three blocks, close, and report the ε of the 60 steps that were run."""
    guarantee = {"epsilon": 10.0, "delta": 1e-5, "neighboring_relation": "add_remove", "accountant": "best"}
    plan = {"guarantee": guarantee, "event": acc.SelfComposed(STEP, 60).to_json()}
    ledger = acc.Ledger.create(folder / "ledger.jsonl", plan)
    for _ in range(3):
        ledger.charge(STEP, stage="train", count=20)
    epsilon = acc.epsilon(acc.SelfComposed(STEP, 60), 1e-5)
    ledger.close({"epsilon": epsilon})
    result = {
        "epsilon": epsilon,
        "delta": 1e-5,
        "neighboring_relation": "add_remove",
        "accountant": "best",
        "epsilon_source": "recomputed",
        "plan": plan,
        "ledger": {"head": ledger.head, "count": ledger.count},
    }
    (folder / "result.json").write_text(dumps(result))


def check_run(folder):
    folder.mkdir()
    finish_run(folder)
    found = acc.verify(folder)
    assert found.ok, found.problems


def test_one_step_not_recorded_is_caught(tmp_path, monkeypatch):
    check_run(tmp_path / "good")
    good = acc.Ledger.charge

    def planted(self, event, *, stage, count=1):
        good(self, event, stage=stage, count=count - 1 if self.count == 2 else count)

    monkeypatch.setattr(acc.Ledger, "charge", planted)
    with pytest.raises(AssertionError, match="charges give"):
        check_run(tmp_path / "planted")


@pytest.mark.parametrize("line", [1, 2, 3])
def test_one_charge_not_written_is_caught(tmp_path, monkeypatch, line):
    check_run(tmp_path / "good")
    real = os.write

    def planted(handle, data):
        content = bytes(data)
        if b'"index":%d,' % line in content and json.loads(content)["kind"] == "charge":
            return len(content)
        return real(handle, content)

    monkeypatch.setattr(os, "write", planted)
    with pytest.raises(AssertionError, match=f"line {line + 1}"):
        check_run(tmp_path / "planted")


@pytest.mark.parametrize("line", [1, 3])
def test_a_charge_skipped_in_memory_and_on_disk_is_caught(tmp_path, monkeypatch, line):
    """The chain holds, so only the recomputed ε can tell."""
    good = acc.Ledger.charge
    calls = []

    def planted(self, event, *, stage, count=1):
        calls.append(event)
        if len(calls) != line:
            good(self, event, stage=stage, count=count)

    monkeypatch.setattr(acc.Ledger, "charge", planted)
    with pytest.raises(AssertionError, match="charges give"):
        check_run(tmp_path / "planted")


def check_synced_before_use(folder, monkeypatch):
    """Every use of a charge comes after an fsync that follows the last byte written for it."""
    folder.mkdir()
    log = []
    real_write, real_sync = os.write, os.fsync

    def write(handle, data):
        log.append("write")
        return real_write(handle, data)

    def sync(handle):
        log.append("fsync")
        real_sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        patch.setattr(os, "fsync", sync)
        ledger = acc.Ledger.create(folder / "ledger.jsonl", {})
        for _ in range(3):
            ledger.charge(STEP, stage="train", count=20)
            log.append("use")
        acc.DatasetLedger(folder / "people.ledger", 1.0, 1e-5).reserve("run", 0.5, 1e-6, STEP)
        log.append("use")
    assert log.count("use") == 4
    for index, entry in enumerate(log):
        if entry == "use":
            last_write = max(k for k in range(index) if log[k] == "write")
            assert "fsync" in log[last_write:index]


def test_use_before_the_ledger_is_synced_is_caught(tmp_path, monkeypatch):
    check_synced_before_use(tmp_path / "good", monkeypatch)
    monkeypatch.setattr(ledger_module, "write_all", lambda handle, data: os.write(handle, data))
    with pytest.raises(AssertionError):
        check_synced_before_use(tmp_path / "planted", monkeypatch)


def check_against_gaussian():
    for noise in (0.7, 5.0, 40.0):
        event = acc.SelfComposed(acc.Gaussian(noise), 3)
        for delta in (1e-3, 1e-9):
            truth = acc.gaussian_epsilon(delta, math.sqrt(3) / noise)
            assert acc.epsilon(event, delta, accountant="pld") >= truth * (1 - 1e-10)


def test_losses_rounded_down_on_the_grid_are_caught(monkeypatch, fresh):
    check_against_gaussian()
    good = pairs._close

    def planted(*arguments):
        pmf = good(*arguments)
        return pairs.LossPmf(pmf.step, pmf.start - 1, pmf.masses, pmf.infinite)

    monkeypatch.setattr(pairs, "_close", planted)
    pairs.discretise.cache_clear()
    with pytest.raises(AssertionError):
        check_against_gaussian()


def check_sampled_statement():
    """Five copies of a sampled (2, 0.05) statement, q = 0.3: δ(0.5) by all 4⁵ outcomes of the worst pair is 0.40880."""
    event = acc.SelfComposed(acc.PoissonSampled(0.3, acc.EpsilonDelta(2.0, 0.05)), 5)
    assert acc.delta(event, 0.5, accountant="pld") >= 0.40879


def test_mass_lost_by_sampling_is_caught(monkeypatch, fresh):
    """The (1−q)δ₀ at loss ln(1−q) dropped: refused outright, and too small an answer if it were not."""
    check_sampled_statement()
    good = pairs._subsample

    def planted(inner, q, direction):
        pmf = good(inner, q, direction)
        if direction == "remove":
            pmf.masses[:2] = 0.0
        return pmf

    monkeypatch.setattr(pairs, "_subsample", planted)
    pairs.discretise.cache_clear()
    with pytest.raises(AccountingError, match="instead of 1"):
        check_sampled_statement()
    with monkeypatch.context() as patch:
        patch.setattr(pairs, "discretise", pairs._discretise)
        with pytest.raises(AssertionError):
            check_sampled_statement()
