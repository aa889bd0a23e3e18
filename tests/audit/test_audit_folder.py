"""The folder of an audit that is no run: one audit at a time; a stopped one goes on with what it had finished."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpml import PrivateData, PrivateTrainer
from dpml.audit import refits, runs
from dpml.audit.keeping import AuditFolder
from dpml.errors import RunFolderError

TASK = {"what": 1}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refits, "CHUNK", 25)


def data() -> PrivateData:
    return PrivateData.from_arrays(np.zeros((2, 2)), np.array([0, 1]), norm_bound=1.0, classes=[0, 1], n_declared=100)


def audited(folder: Path, **settings: Any) -> Any:
    trainer = PrivateTrainer("linear_svm", method="output", epsilon=1.0, delta=5e-3, run_dir=folder)
    return trainer.audit(data(), runs=100, **settings)


def count_trainings(patch: pytest.MonkeyPatch) -> list[int]:
    """How many runs each piece had; those of the pilot, with their repeated noise, are left out."""
    made: list[int] = []
    real = refits.Worlds.scores

    def scores(worlds: Any, world: int, count: int, noise: Any = None) -> np.ndarray:
        if noise is None:
            made.append(count)
        return real(worlds, world, count, noise)

    patch.setattr(refits.Worlds, "scores", scores)
    return made


def test_a_finished_folder_holds_the_result_alone_and_is_not_used_again(tmp_path: Path) -> None:
    audited(tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["audit.json", "tradeoff.png"]
    with pytest.raises(RunFolderError, match="not empty; nothing was overwritten"):
        audited(tmp_path / "a")


def test_one_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after two of four pieces of 25: the other two are trained, and scores of all are counted."""
    made = count_trainings(monkeypatch)

    def stop(done: int, runs: int, epsilon: float) -> None:
        if done == 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audited(tmp_path / "a", progress=stop)
    private = tmp_path / "a/private"
    assert private.stat().st_mode & 0o777 == 0o700
    kept = np.load(private / "piece0.npy", allow_pickle=False)
    assert kept.shape == (25,)
    seen: list[np.ndarray] = []
    real = runs.audit.distinguish_scores
    monkeypatch.setattr(runs.audit, "distinguish_scores", lambda *a, **k: seen.extend(a) or real(*a, **k))
    made.clear()
    found = audited(tmp_path / "a")
    assert made == [25, 25]
    assert found.result.runs == 100
    assert np.array_equal(seen[0][:25], kept)
    assert not private.exists()


def test_pieces_of_other_settings_are_not_used(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        audited(tmp_path / "a", progress=_stop_at_once)
    before = sorted((tmp_path / "a/private").iterdir())
    with pytest.raises(RunFolderError, match="another audit, which was stopped"):
        audited(tmp_path / "a", confidence=0.9)
    trainer = PrivateTrainer("linear_svm", method="output", epsilon=2.0, delta=5e-3, run_dir=tmp_path / "a")
    with pytest.raises(RunFolderError, match="another audit, which was stopped"):
        trainer.audit(data(), runs=100)
    assert sorted((tmp_path / "a/private").iterdir()) == before
    assert audited(tmp_path / "a", workers=2).result.runs == 100  # how many processes does not matter


def _stop_at_once(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", b"no array"])
def test_a_damaged_piece_is_trained_again(damage: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        audited(tmp_path / "a", progress=_stop_at_once)
    (tmp_path / "a/private/piece0.npy").write_bytes(damage)
    made = count_trainings(monkeypatch)
    audited(tmp_path / "a")
    assert made == [25] * 4


def test_a_piece_of_another_shape_or_type_is_none(tmp_path: Path) -> None:
    with AuditFolder(tmp_path / "a", TASK) as folder:
        folder.keep(0, np.arange(3.0))
        assert np.array_equal(folder.kept(0, 3), np.arange(3.0))
        assert folder.kept(0, 4) is None
        assert folder.kept(1, 3) is None
        np.save(tmp_path / "a/private/piece2.npy", np.arange(3))
        np.save(tmp_path / "a/private/piece3.npy", np.array([{}, {}, {}], dtype=object), allow_pickle=True)
        assert folder.kept(2, 3) is None
        assert folder.kept(3, 3) is None


def test_two_at_once(tmp_path: Path) -> None:
    with AuditFolder(tmp_path / "a", TASK):
        with pytest.raises(RunFolderError, match="in use by another audit"):
            audited(tmp_path / "a")
        (tmp_path / "a/audit.json").write_text("{}")
    with pytest.raises(RunFolderError, match="not empty"), AuditFolder(tmp_path / "a", TASK):
        pass


def test_the_one_that_waited_for_the_lock_sees_that_the_other_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ends between the second's look at the folder and its lock."""
    import fcntl

    first = AuditFolder(tmp_path / "a", TASK).__enter__()
    real = fcntl.flock

    def lock(handle: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        (tmp_path / "a/audit.json").write_text("{}")
        first.__exit__(None, None, None)
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", lock)
    with pytest.raises(RunFolderError, match="not empty"), AuditFolder(tmp_path / "a", TASK):
        pass


@pytest.mark.parametrize("place", ["dpml.audit.keeping.write_atomic", "dpml.audit.runs.write_atomic"])
def test_a_full_disk(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said in the words of dpml, with no result left; with space again the audit goes on."""

    def full(path: Path, content: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(place, full)
        with pytest.raises(RunFolderError, match="No space left"):
            audited(tmp_path / "a")
    assert not (tmp_path / "a/audit.json").exists()
    for name in ("tradeoff.png", "config.yaml"):
        (tmp_path / "a" / name).unlink(missing_ok=True)
    assert audited(tmp_path / "a").result.runs == 100


def test_a_file_and_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, text in ((tmp_path / "file", "is a file"), (tmp_path / "file/below", "cannot be written")):
        with pytest.raises(RunFolderError, match=text):
            audited(folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_its_processes_end_with_it(number: int, tmp_path: Path) -> None:
    """The real command, killed while its workers train: none is left, and the same command goes on."""
    words = ["data=synthetic", "method=output", "audit.runs=4000", "audit.workers=2", "hydra.run.dir=a"]
    command = [sys.executable, "-m", "dpml.audit", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    pieces = tmp_path / "a/private"
    end = time.monotonic() + 120
    while not list(pieces.glob("piece*.npy")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=60)  # ends when the last of its processes closes the pipe
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert list(pieces.glob("piece*.npy"))
    assert not (tmp_path / "a/audit.json").exists()
