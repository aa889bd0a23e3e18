"""A witness of what a DP-SGD run really draws, and checks of what it wrote down.  Tests only.

The witness writes a line *before* the run gets what was drawn: whatever was used is in its file, however the process
ends (a kill loses nothing that was written; only a power cut would, hence no fsync here).  The planted-bug tests run
the checks on broken code.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpml import PrivateData, PrivateTrainer, accounting, release, trainer
from dpml.accounting import Ledger, ledger
from dpml.errors import ConfigError
from dpml.mechanisms import SecretNoise
from dpml.mechanisms.noise import rounded_normal
from dpml.sgd import engine, states
from dpml.sgd.optimizers import Optimizer

STEPS, BLOCK = 48, 4
ARGUMENTS = {
    "model": "mlp",
    "hidden": (4,),
    "noise_multiplier": 2.0,
    "delta": 1e-3,
    "steps": STEPS,
    "expected_batch_size": 15,
    "checkpoint_every": BLOCK,
    "optimizer": "adam",
    "averaging": "ema",
}


def table(n=60, change=None, **declared):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3)) / 3
    y = (X[:, 0] > 0).astype(int)
    if change is not None:
        X, y = change(X.copy(), y.copy())
    return PrivateData.from_arrays(
        X, y, **{"norm_bound": 1.0, "classes": [0, 1], "n_declared": 60, "add_constant": True, **declared}
    )


def fit(folder, data=None, **arguments):
    return PrivateTrainer(**{**ARGUMENTS, **arguments}, run_dir=folder).fit(data or table())


# -- what is on disk, read without the code under test -------------------------------------------------------------
def ledger_path(folder):
    return Path(folder) / "release/ledger.jsonl"


def charged_on_disk(folder):
    """Steps in whole lines of the ledger."""
    path = ledger_path(folder)
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return sum(line["count"] for line in map(json.loads, lines) if line["kind"] == "charge")


def checkpoint_path(folder):
    return Path(folder) / "private/checkpoint.safetensors"


def weights_on_disk(folder):
    """Digest of the checkpoint's parameters, None without one."""
    path = checkpoint_path(folder)
    if not path.exists():
        return None
    tensors = load_file(path)
    return _digest({k.split("/", 1)[1]: v for k, v in tensors.items() if k.startswith("parameters/")})


def _digest(arrays):
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


# -- the witness ----------------------------------------------------------------------------------------------------
class Witness:
    """Patches what a run draws through, so that ``log`` tells of every vector, and ``stop()`` comes where it is asked.

    Args:
        patch: ``patch(owner, name, value)``, ``setattr`` in a process of its own.
        folder, log: the run, and the witness' file.
        stop: called at the ``nth`` time that the run comes to ``point``, with ``again`` also at the next one.
        source: what the run draws from.
        pause: called after every step.
    """

    def __init__(
        self, patch, folder, log, *, stop=None, point=None, nth=1, again=False, source=SecretNoise, pause=None
    ):
        self.folder, self.log = Path(folder), Path(log)
        self.stop, self.point, self.left, self.again, self.pause = stop, point, nth, again, pause
        self.life = len([e for e in self.entries() if e["kind"] == "begin"])
        self._write("begin", checkpoint=weights_on_disk(folder))
        self._patch_drawing(patch, source)
        self._patch_ledger(patch)
        self._patch_files(patch)

    def entries(self):
        return read_log(self.log)

    def _write(self, kind, **content):
        line = {"kind": kind, "life": self.life, "charged": charged_on_disk(self.folder), **content}
        handle = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, json.dumps(line).encode() + b"\n")
        os.close(handle)

    def _at(self, point):
        if point == self.point:
            self.left -= 1
            if self.left == 0 or (self.again and self.left == -1):
                self.stop()

    def _patch_drawing(self, patch, source):
        witness, draw, init, step = self, engine.draw_noise, Optimizer.__init__, Optimizer.step

        class Spied:
            secret = True

            def __init__(self):
                self._inner = source()

            def normal(self, std, shape):
                drawn = self._inner.normal(std, shape)
                witness._write("normal", hash=hashlib.sha256(drawn.tobytes()).hexdigest())
                return drawn

            def rounded(self, std, spacing, size):
                drawn = rounded_normal(self._inner, std, spacing, size)
                witness._write("normal", hash=hashlib.sha256(drawn.tobytes()).hexdigest())
                return drawn

            def uniform(self, size):
                drawn = self._inner.uniform(size)
                witness._write("uniform", hash=hashlib.sha256(drawn.tobytes()).hexdigest())
                return drawn

        def draw_noise(*arguments):
            witness._at("before noise")
            drawn = draw(*arguments)
            witness._write("used", hash=hashlib.sha256(drawn.tobytes()).hexdigest())
            witness._at("after noise")
            return drawn

        def begin(optimizer, plan, parameters):
            init(optimizer, plan, parameters)
            optimizer.witnessed = parameters

        def stepped(optimizer, t, *rest):
            before = _digest({k: p.detach().numpy() for k, p in optimizer.witnessed.items()})
            witness._write("step", t=t, before=before)
            step(optimizer, t, *rest)
            witness._at("after step")
            if witness.pause is not None:
                witness.pause()

        patch(trainer, "default_noise", Spied)
        patch(engine, "draw_noise", draw_noise)
        patch(Optimizer, "__init__", begin)
        patch(Optimizer, "step", stepped)

    def _patch_ledger(self, patch):
        witness, write, charge, close = self, ledger.write_all, Ledger.charge, Ledger.close

        def write_all(handle, data):
            if b'"charge"' in data:
                if witness.point == "half line" and witness.left == 1:
                    os.write(handle, data[: len(data) // 2])
                if witness.point == "line not synced" and witness.left == 1:
                    os.write(handle, data)
                witness._at("half line")
                witness._at("line not synced")
            write(handle, data)

        def charged(self, *arguments, **named):
            charge(self, *arguments, **named)
            witness._at("reserved")

        def closed(self, *arguments):
            witness._at("before close")
            close(self, *arguments)
            witness._at("after close")

        patch(ledger, "write_all", write_all)
        patch(Ledger, "charge", charged)
        patch(Ledger, "close", closed)

    def _patch_files(self, patch):
        witness, write, replace, publish = self, states.write_private, os.replace, release.RunFolder.publish

        def write_private(path, data):
            if witness.point == "half checkpoint" and witness.left == 1:
                path.with_name(f".{path.name}.tmp").write_bytes(data[: len(data) // 2])
            witness._at("half checkpoint")
            write(path, data)
            witness._at("after checkpoint")

        def replaced(source, target):
            if Path(target).name == "checkpoint.safetensors":
                witness._at("checkpoint not renamed")
            replace(source, target)

        def published(self, name, content):
            written = publish(self, name, content)
            witness._at(f"after {name}")
            return written

        patch(states, "write_private", write_private)
        patch(os, "replace", replaced)
        patch(release.RunFolder, "publish", published)


def read_log(log):
    return [json.loads(line) for line in Path(log).read_text().splitlines()] if Path(log).exists() else []


# -- checks -----------------------------------------------------------------------------------------------------------
def check_lives(folder, log, steps=STEPS):
    """All that law 7 promises, of all lives so far."""
    entries, charged = read_log(log), charged_on_disk(folder)
    used = [e for e in entries if e["kind"] == "used"]
    assert len(used) <= charged, f"{len(used)} noise vectors used, {charged} steps charged"
    assert charged <= steps, "more charged than planned"
    for k, entry in enumerate(used, start=1):
        assert k <= entry["charged"], "noise was used before its step was charged"
    coins = [e for e in entries if e["kind"] == "uniform"]
    for k, entry in enumerate(coins, start=1):
        assert k <= entry["charged"], "coins were drawn before their step was charged"
    for kind in ("normal", "used", "uniform"):
        hashes = [e["hash"] for e in entries if e["kind"] == kind]
        assert len(set(hashes)) == len(hashes), f"the same {kind} values came twice"
    made = [e["t"] for e in entries if e["kind"] == "step"]
    assert all(a < b for a, b in itertools.pairwise(made)), "a step was run again"
    _check_beginnings(entries)


def _check_beginnings(entries):
    """A life's first step is the first that was not charged, from the weights of the checkpoint."""
    for begin in (e for e in entries if e["kind"] == "begin"):
        steps = [e for e in entries if e["kind"] == "step" and e["life"] == begin["life"]]
        if steps:
            assert steps[0]["t"] >= begin["charged"], "a charged step was run again"
            if begin["checkpoint"] is not None:
                assert steps[0]["before"] == begin["checkpoint"], "the model did not go on from the checkpoint"


def check_finished(folder, log, steps=STEPS):
    """The whole plan is charged, the ledger verifies, and ε is what the plan promised."""
    check_lives(folder, log, steps)
    assert charged_on_disk(folder) == steps
    found = accounting.verify(folder)
    assert found.ok, found.problems
    result = json.loads((Path(folder) / "release/result.json").read_text())
    promise = result["plan"]["guarantee"]["epsilon"]
    assert abs(result["epsilon"] - promise) <= 1e-9 * promise
    assert sorted(p.name for p in (Path(folder) / "private").iterdir()) == ["diagnostics.json", "resume.json"]


class Killed(BaseException):
    """Stands for kill −9 inside one process: nothing catches it."""


def kill():
    raise Killed


def lives(monkeypatch, folder, points, source=SecretNoise, data=None):
    """Fit and resume in this process, killed at each ``(point, nth)`` in turn; the last life is not killed."""
    log = Path(folder).with_suffix(".log")
    for number, (point, nth) in enumerate([*points, (None, 1)]):
        with monkeypatch.context() as patch:
            Witness(patch.setattr, folder, log, stop=kill, point=point, nth=nth, source=source)
            try:
                if number == 0:
                    fit(folder, data)
                else:
                    PrivateTrainer.resume(folder, data or table())
            except Killed:
                assert point is not None
        check_lives(folder, log)
    check_finished(folder, log)


# -- runs that were killed in this process, and refusals of resuming them --------------------------------------------
FIXED = {**ARGUMENTS, "learning_rate": 0.05}


def killed_at(step):
    def progress(now, steps, epsilon):
        if now == step:
            raise Killed

    return progress


def killed_run(folder, step=10, data=None, **arguments):
    """By default in the third block: 12 steps charged, a checkpoint of 8."""
    run = PrivateTrainer(**{**FIXED, **arguments}, run_dir=folder)
    with pytest.raises(Killed):
        run.fit(data or table(), progress=killed_at(step))
    return run


class AskedForNoise(BaseException):
    """A resume that was to be refused went on."""


def refused(folder, data, match, kind=ConfigError, **arguments):
    """Refused with ``match``; every file is as it was, and no source of noise was made."""

    def ask():
        raise AskedForNoise

    before = _files(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "default_noise", ask)
        with pytest.raises(kind, match=match) as caught:
            PrivateTrainer.resume(folder, data, **arguments)
    assert _files(folder) == before
    return str(caught.value)


def _files(folder):
    return {p: p.read_bytes() for p in Path(folder).rglob("*") if p.is_file() and not p.is_symlink()}


def edit_arguments(folder, **changes):
    path = folder / "private/resume.json"
    saved = json.loads(path.read_text())
    saved["arguments"].update(changes)
    path.write_text(json.dumps(saved))


def one_value(X, y):
    X[17, 1] = np.nextafter(X[17, 1], 1.0)
    return X, y


def closed_run(folder, monkeypatch):
    publish = release.RunFolder.publish

    def killed(self, name, content):
        if name == "model.safetensors":
            raise Killed
        return publish(self, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(release.RunFolder, "publish", killed)
        with pytest.raises(Killed):
            fit(folder)


def goes_on(folder, data=None, **arguments):
    seen = []
    result = PrivateTrainer.resume(folder, data or table(), progress=lambda step, *_: seen.append(step), **arguments)
    assert charged_on_disk(folder) == STEPS
    found = accounting.verify(folder)
    assert found.ok, found.problems
    return seen, result
