"""Each line that makes a ledger trustworthy, broken at one seam: the named check fails, and passes when whole."""

from __future__ import annotations

import errno
import json
import os

import pytest

from dpml.accounting import Gaussian, Ledger, dataset_ledger, ledger, read_ledger
from dpml.accounting.dataset_ledger import DatasetLedger
from dpml.errors import BudgetExceededError, ConfigError, LedgerError

STEP = Gaussian(2.0)


def caught(check, *arguments):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(*arguments)


def written(folder, charges=3):
    """The bytes of a closed ledger of so many charges."""
    path = folder / "whole.jsonl"
    path.unlink(missing_ok=True)
    made = Ledger.create(path, {"steps": charges})
    for count in range(1, charges + 1):
        made.charge(STEP, stage="train", count=count)
    made.close({"epsilon": 1.0})
    return path.read_bytes()


def refused(folder, raw):
    path = folder / "changed.jsonl"
    path.write_bytes(raw)
    try:
        read_ledger(path)
    except LedgerError:
        return True
    return False


def resealed(line, **changes):
    return ledger.canonical(ledger.seal({**json.loads(line), **changes}))


# -- reading ----------------------------------------------------------------------------------------------------------
def check_changed_values_are_refused(folder):
    raw = written(folder)
    assert not refused(folder, raw)
    assert refused(folder, raw.replace(b'"count":3', b'"count":1'))


def test_hashes_that_are_not_compared(monkeypatch, tmp_path):
    check_changed_values_are_refused(tmp_path)
    monkeypatch.setattr(ledger, "seal", lambda content: {"hash": ledger.GENESIS, **content})  # what stands there
    caught(check_changed_values_are_refused, tmp_path)


def check_a_line_cannot_leave(folder):
    lines = written(folder).splitlines(keepends=True)
    for left_out in range(1, len(lines) - 1):
        assert refused(folder, b"".join(lines[:left_out] + lines[left_out + 1 :]))
    swapped = [lines[0], lines[2], lines[1], *lines[3:]]
    assert refused(folder, b"".join(swapped))


def test_kinds_index_and_chain_that_are_not_compared(monkeypatch, tmp_path):
    check_a_line_cannot_leave(tmp_path)
    monkeypatch.setattr(ledger, "_check_line", lambda text, number, before, name: json.loads(text))
    caught(check_a_line_cannot_leave, tmp_path)


def check_kinds_stand_where_they_belong(folder):
    lines = written(folder).splitlines()
    longer = resealed(lines[-2], index=len(lines), previous=json.loads(lines[-1])["hash"])
    assert refused(folder, b"\n".join([*lines, longer]) + b"\n")  # a charge after the closing line


def test_lines_after_the_closing_one(monkeypatch, tmp_path):
    check_kinds_stand_where_they_belong(tmp_path)
    monkeypatch.setattr(ledger, "_check_kind", lambda *_: None)
    caught(check_kinds_stand_where_they_belong, tmp_path)


def check_a_charge_cannot_vanish_as_a_small_number(folder):
    line = json.loads(written(folder).splitlines()[1])
    line["event"] = {"type": "pure", "epsilon": 1e-4}
    sealed = ledger.canonical(ledger.seal(line)).replace(b"0.0001", b"1e-999")
    try:
        ledger.strict_json(sealed)
    except ValueError:
        return
    pytest.fail("a charge that is 0 as a float was read")


def test_numbers_that_no_float_holds(monkeypatch, tmp_path):
    check_a_charge_cannot_vanish_as_a_small_number(tmp_path)
    monkeypatch.setattr(ledger, "_finite", lambda value, digits: value)
    caught(check_a_charge_cannot_vanish_as_a_small_number, tmp_path)


def check_no_key_stands_twice(folder):
    first = written(folder).splitlines()[1]
    with pytest.raises(ValueError, match="twice"):
        ledger.strict_json(first[:-1] + b',"count":1}')


def test_the_last_of_two_equal_keys(monkeypatch, tmp_path):
    check_no_key_stands_twice(tmp_path)
    monkeypatch.setattr(ledger, "_no_repeats", dict)
    caught(check_no_key_stands_twice, tmp_path)


def check_equal_neighbours_are_added(folder):
    path = folder / "changed.jsonl"
    path.write_bytes(written(folder))
    (part,) = read_ledger(path).event.events
    assert part.count == 1 + 2 + 3


def test_charges_that_are_joined_and_lost(monkeypatch, tmp_path):
    check_equal_neighbours_are_added(tmp_path)
    whole = ledger.total_event
    monkeypatch.setattr(ledger, "total_event", lambda charges: whole(tuple(charges)[:1]))
    caught(check_equal_neighbours_are_added, tmp_path)


# -- writing ----------------------------------------------------------------------------------------------------------
def check_a_charge_that_fails_is_not_used(folder, monkeypatch):
    """The disk is full from the second charge on: that charge raises, and so does every later one."""
    made = Ledger.create(folder / "full.jsonl", {})
    made.charge(STEP, stage="train")
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(LedgerError, match="not used"):
            made.charge(STEP, stage="train")
    with pytest.raises(LedgerError, match="no further line"):
        made.charge(STEP, stage="train")
    assert made.charged.events[0].count == 1
    (folder / "full.jsonl").unlink()


def test_a_failed_sync_that_is_swallowed(monkeypatch, tmp_path):
    check_a_charge_that_fails_is_not_used(tmp_path, monkeypatch)
    whole = ledger.write_all

    def careless(handle, data):
        try:
            whole(handle, data)
        except OSError:
            return

    monkeypatch.setattr(ledger, "write_all", careless)
    caught(check_a_charge_that_fails_is_not_used, tmp_path, monkeypatch)


def check_everything_is_written(folder, monkeypatch):
    """A disk that takes ten bytes at a time."""
    write = os.write
    with monkeypatch.context() as slow:
        slow.setattr(os, "write", lambda handle, data: write(handle, bytes(data)[:10]))
        raw = written(folder)
    assert not refused(folder, raw)


def test_only_the_first_part_written(monkeypatch, tmp_path):
    check_everything_is_written(tmp_path, monkeypatch)

    def once(handle, data):
        os.write(handle, data)
        os.fsync(handle)

    monkeypatch.setattr(ledger, "write_all", once)
    caught(check_everything_is_written, tmp_path, monkeypatch)


def check_one_writer(folder):
    path = folder / "two.jsonl"
    path.unlink(missing_ok=True)
    first = Ledger.create(path, {})
    with pytest.raises(LedgerError, match="in use by another process"):
        Ledger.resume(path)
    first.release()


def test_no_lock(monkeypatch, tmp_path):
    check_one_writer(tmp_path)
    monkeypatch.setattr(ledger, "_lock", lambda handle, path: None)
    caught(check_one_writer, tmp_path)


def check_a_torn_line_is_cut_off(folder):
    path = folder / "torn.jsonl"
    path.write_bytes(b"".join(written(folder).splitlines(keepends=True)[:3]) + b'{"count":3,"ev')
    made = Ledger.resume(path)
    made.charge(STEP, stage="train", count=7)
    made.release()
    assert read_ledger(path).event.events[0].count == 1 + 2 + 7


def test_a_torn_line_that_stays(monkeypatch, tmp_path):
    check_a_torn_line_is_cut_off(tmp_path)
    monkeypatch.setattr(os, "ftruncate", lambda handle, length: None)
    with pytest.raises(LedgerError, match="is not a JSON object"):
        check_a_torn_line_is_cut_off(tmp_path)


# -- the ledger of a data set -----------------------------------------------------------------------------------------
def check_the_cap_holds_over_all_objects(folder):
    """Ten objects on one file, each of which reserves 0.3 of 1.0: three fit."""
    path = folder / "table.jsonl"
    path.unlink(missing_ok=True)
    taken = 0
    for number in range(10):
        try:
            DatasetLedger(path, 1.0, 1e-5).reserve(f"run {number}", 0.3, 1e-6, None)
            taken += 1
        except BudgetExceededError:
            pass
    assert taken == 3


def test_a_cap_that_counts_this_object_only(monkeypatch, tmp_path):
    check_the_cap_holds_over_all_objects(tmp_path)
    monkeypatch.setattr(DatasetLedger, "_lines", lambda self, handle: [])
    caught(check_the_cap_holds_over_all_objects, tmp_path)


def test_a_reservation_that_is_not_written(monkeypatch, tmp_path):
    check_the_cap_holds_over_all_objects(tmp_path)
    monkeypatch.setattr(dataset_ledger, "write_all", lambda handle, data: None)
    caught(check_the_cap_holds_over_all_objects, tmp_path)


def check_counts_are_whole_and_positive(folder):
    made = Ledger.create(None, {})
    for count in (0, -1, 2.5, True):
        with pytest.raises(ConfigError):
            made.charge(STEP, stage="train", count=count)


def test_a_charge_of_no_step(monkeypatch, tmp_path):
    check_counts_are_whole_and_positive(tmp_path)
    monkeypatch.setattr(ledger, "check_count", lambda name, value, least=0: value)
    caught(check_counts_are_whole_and_positive, tmp_path)


def check_the_line_of_a_bad_event_is_named(folder):
    path = folder / "changed.jsonl"
    first, second, *_ = written(folder).splitlines()
    path.write_bytes(first + b"\n" + resealed(second, event={"type": "unheard of"}) + b"\n")
    with pytest.raises(LedgerError) as refusal:
        read_ledger(path)
    assert "line 2" in str(refusal.value)


def test_events_that_are_read_only_when_added_up(monkeypatch, tmp_path):
    """Refused all the same, but without saying where."""
    check_the_line_of_a_bad_event_is_named(tmp_path)
    monkeypatch.setattr(ledger, "_check_kind", lambda *_: None)
    caught(check_the_line_of_a_bad_event_is_named, tmp_path)
