"""One process at a time, and what resume makes of a ledger or a checkpoint that is torn, damaged, old or foreign."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from resume_checks import (
    BLOCK,
    FIXED,
    STEPS,
    charged_on_disk,
    checkpoint_path,
    closed_run,
    fit,
    goes_on,
    killed_run,
    ledger_path,
    refused,
    table,
)

from dpml import PrivateTrainer, release, resuming, sgd, trainer
from dpml.accounting import Gaussian, Ledger, PoissonSampled
from dpml.accounting import ledger as ledger_module
from dpml.errors import DpmlError, LedgerError, ModelError, RunFolderError
from dpml.mechanisms import noise as noise_module
from dpml.sgd import states


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed") / "run"
    killed_run(folder)
    return folder


@pytest.fixture
def run(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "run"))


# -- one at a time ----------------------------------------------------------------------------------------------------
def test_of_two_resumes_the_second_is_refused(run):
    with resuming.sole_use(release.RunFolder.open(run)):
        refused(run, table(), "in use by another process", RunFolderError)
    goes_on(run)


def test_a_run_that_is_being_made_is_not_resumed_at_any_time(tmp_path, monkeypatch):
    """While it trains, and between its closing line (the ledger's lock is gone) and its result."""
    tried, publish = [], release.RunFolder.publish

    def rival(*_):
        with pytest.raises((RunFolderError, LedgerError), match="in use by another process"):
            PrivateTrainer.resume(tmp_path / "run", table())
        tried.append(1)

    def published(self, name, content):
        if name == "model.safetensors":
            rival()
        return publish(self, name, content)

    monkeypatch.setattr(release.RunFolder, "publish", published)
    PrivateTrainer(**FIXED, run_dir=tmp_path / "run").fit(table(), progress=lambda step, *_: step == 5 and rival())
    assert len(tried) == 2


def test_a_copied_folder_is_closed_to_others_again(run):
    (run / "private").chmod(0o755)
    goes_on(run)
    assert (run / "private").stat().st_mode & 0o777 == 0o700


# -- the ledger -------------------------------------------------------------------------------------------------------
def test_a_last_line_that_lost_its_end_counts_as_charged(run):
    path = ledger_path(run)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    seen, _ = goes_on(run)
    assert seen == list(range(13, STEPS + 1))
    assert path.read_bytes().startswith(whole)


def test_a_torn_last_line_was_never_used_and_is_cut_off(run):
    path = ledger_path(run)
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[-1][:40])
    seen, _ = goes_on(run)
    assert seen == list(range(13, STEPS + 1))
    assert path.read_bytes().startswith(whole)


def test_a_ledger_without_an_end_that_another_process_writes_is_left_alone(run):
    path = ledger_path(run)
    path.write_bytes(path.read_bytes()[:-1])
    raw = path.read_bytes()
    handle = os.open(path, os.O_WRONLY)
    ledger_module._lock(handle, path)
    refused(run, table(), "in use by another process", LedgerError)
    os.close(handle)
    assert path.read_bytes() == raw


def drop_last_charge(run, count=1):
    path = ledger_path(run)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-count]))


def test_a_ledger_that_lost_charges_is_refused_when_the_checkpoint_tells(run):
    """12 charged, a checkpoint of 8: one lost line cannot be told from a kill before it was written; two can."""
    drop_last_charge(run, 2)
    refused(run, table(), r"after 8 steps and the ledger charges 4: lines of the ledger are missing", LedgerError)


@pytest.mark.parametrize(("event", "count"), [(Gaussian(2.0), 4), (PoissonSampled(0.25, Gaussian(3.0)), 4)])
def test_charges_of_something_else_are_refused(run, event, count):
    ledger = Ledger.resume(ledger_path(run))
    ledger.charge(event, stage="train", count=count)
    ledger.release()
    refused(run, table(), "line 5 of .* charges something else than a step of the plan", LedgerError)


def test_more_charges_than_planned_are_refused(run):
    ledger = Ledger.resume(ledger_path(run))
    ledger.charge(PoissonSampled(0.25, Gaussian(2.0)), stage="train", count=STEPS)
    ledger.release()
    refused(run, table(), "charges 60 steps and the plan has 48", LedgerError)


def test_a_changed_ledger_is_refused(run):
    path = ledger_path(run)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[1].replace(b'"count":4', b'"count":3'), *lines[2:]]))
    refused(run, table(), "line 2 was changed", LedgerError)


def test_a_closed_run_comes_to_the_result_that_it_was_closed_with_or_to_none(tmp_path, monkeypatch):
    run = tmp_path / "run"
    closed_run(run, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(sgd, "weights_of", lambda model: {k: v + 1 for k, v in real(model).items()})
        real = sgd.tensors.weights_of
        with pytest.raises(LedgerError, match=r"closed with another result .*files.model.safetensors"):
            PrivateTrainer.resume(run, table())
    assert not (run / "release/model.safetensors").exists()
    assert goes_on(run)[0] == []


# -- the checkpoint ---------------------------------------------------------------------------------------------------
def test_without_a_checkpoint_the_steps_that_are_left_start_from_the_initial_weights(run, caplog):
    checkpoint_path(run).unlink()
    with caplog.at_level(logging.WARNING, "dpml"):
        seen, _ = goes_on(run)
    assert seen == list(range(13, STEPS + 1))
    assert "starts from the initial weights and makes the 36 steps of 48" in caplog.text


def test_with_everything_charged_and_no_checkpoint_there_is_nothing_to_release(tmp_path):
    killed_run(tmp_path / "run", step=2, checkpoint_every=STEPS)
    refused(tmp_path / "run", table(), "all 48 steps .* no checkpoint was reached", RunFolderError)


def test_with_everything_charged_the_last_checkpoint_is_released(tmp_path):
    """Killed in the last block: its steps are lost, the weights before it are what is left."""
    killed_run(tmp_path / "run", step=STEPS - 1)
    state = sgd.load_state(checkpoint_path(tmp_path / "run"))
    assert state["step"] == STEPS - BLOCK
    seen, result = goes_on(tmp_path / "run")
    assert seen == []
    average = state["optimizer"]["average"]
    assert all(np.array_equal(result.model.weights[k], v.numpy()) for k, v in average.items())


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda raw: raw[:-1] + b"\xff", lambda raw: b""])
def test_a_damaged_checkpoint_is_refused_with_the_ways_out(run, damage):
    path = checkpoint_path(run)
    path.write_bytes(damage(path.read_bytes()))
    refused(run, table(), r"not a readable checkpoint.*delete the file: the 36 steps", ModelError)
    path.unlink()
    goes_on(run)


@pytest.mark.parametrize("step", [4, 8, 12, 40])
def test_a_checkpoint_of_another_run_is_refused_whatever_its_step(run, tmp_path, step):
    """Its weights were charged elsewhere; here they would be published for nothing."""
    killed_run(tmp_path / "other", step=step + 1)
    shutil.copy(checkpoint_path(tmp_path / "other"), checkpoint_path(run))
    refused(run, table(), "the checkpoint of another run", ModelError)


def test_a_checkpoint_without_a_mark_is_refused(run):
    state = sgd.load_state(checkpoint_path(run))
    sgd.save_state(checkpoint_path(run), state)
    refused(run, table(), "the checkpoint of another run", ModelError)
    with pytest.raises(ModelError, match="another run"):
        sgd.load_state(checkpoint_path(run), run="x")


@pytest.mark.parametrize("step", [0, 3, 8, 12])
def test_an_older_checkpoint_of_the_run_is_gone_on_from_without_charged_steps(run, step):
    state = sgd.load_state(checkpoint_path(run))
    resuming.write_checkpoint(release.RunFolder.open(run), {**state, "step": step})
    assert goes_on(run)[0] == list(range(13, STEPS + 1))


@pytest.mark.parametrize("step", [13, STEPS, 10**6])
def test_a_checkpoint_from_beyond_the_charges_is_refused(run, step):
    state = sgd.load_state(checkpoint_path(run))
    resuming.write_checkpoint(release.RunFolder.open(run), {**state, "step": step})
    refused(run, table(), rf"written after {step} steps and the ledger charges 12", LedgerError)


def test_a_full_disk_at_the_checkpoint_names_the_way_out_and_the_run_goes_on(tmp_path, monkeypatch):
    folder, replace, times = tmp_path / "run", os.replace, []

    def full(source, target):
        if Path(target).name == "checkpoint.safetensors":
            times.append(1)
            if len(times) == 3:
                raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(states.os, "replace", full)
        with pytest.raises(RunFolderError, match=r"No space left.*Free space, then resume \(PrivateTrainer.resume\("):
            fit(folder)
    assert charged_on_disk(folder) == 12
    assert sgd.load_state(checkpoint_path(folder))["step"] == 8
    assert [p.name for p in (folder / "private").iterdir() if p.name.endswith(".tmp")] == []
    assert goes_on(folder)[0] == list(range(13, STEPS + 1))


def test_the_checkpoint_is_on_disk_before_its_name_and_its_name_before_the_next_charge(tmp_path, monkeypatch):
    """write, fsync of the file, rename, fsync of the folder; then the next reservation's fsync."""
    log, real = [], {name: getattr(os, name) for name in ("fsync", "replace", "write")}

    def fsync(handle):
        log.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))))
        real["fsync"](handle)

    def replace(source, target):
        log.append(("replace", Path(target).name))
        real["replace"](source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    fit(tmp_path / "run", steps=8)
    start = log.index(("replace", "checkpoint.safetensors"))
    assert log[start - 1 : start + 3] == [
        ("fsync", ".checkpoint.safetensors.tmp"),
        ("replace", "checkpoint.safetensors"),
        ("fsync", "private"),
        ("fsync", "ledger.jsonl"),
    ]


def test_no_key_no_noise_and_no_coins_are_in_the_checkpoint(tmp_path, monkeypatch):
    """Searched in the bytes: AES keys in every common form, the streams' counters, vectors and coins as drawn."""
    keys, drawn, real = [], [], noise_module.AESCounter

    def remember(*, key, counter):
        keys.append(key)
        return real(key=key, counter=counter)

    class Spied(noise_module.SecretNoise):
        def rounded(self, std, spacing, size):
            drawn.append(super().rounded(std, spacing, size))
            return drawn[-1].copy()

        def uniform(self, size):
            drawn.append(super().uniform(size))
            return drawn[-1].copy()

    monkeypatch.setattr(noise_module, "AESCounter", remember)
    monkeypatch.setattr(trainer, "default_noise", Spied)
    killed_run(tmp_path / "run")
    raw = checkpoint_path(tmp_path / "run").read_bytes()
    saved = json.loads((tmp_path / "run/private/resume.json").read_text())
    assert len(keys) >= 3
    assert len(drawn) == 20
    for key in [*keys, int(saved["split_key"]), int(saved["key"], 16)]:
        size = (key.bit_length() + 7) // 8
        forms = [str(key).encode(), f"{key:x}".encode(), key.to_bytes(size, "little"), key.to_bytes(size, "big")]
        assert not any(form in raw for form in forms)
    for values in drawn:
        for numbers in (values, values.astype(np.float32), values.astype(np.int32)):
            assert numbers[:2].tobytes() not in raw
    assert set(sgd.load_state(checkpoint_path(tmp_path / "run"))) == {"step", "parameters", "optimizer", "clip"}


def test_a_run_without_its_resume_file_is_not_gone_on_with(run):
    (run / "private/resume.json").unlink()
    refused(run, table(), "[sS]tart a new run", DpmlError)
