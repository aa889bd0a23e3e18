"""A disk that fails at every single write, sync and rename of a run, by every method: one failure at each in turn.

Whatever fails, (1) no noise is drawn that the ledger on disk does not hold, (2) the error is one of dpml's, (3) what is
in ``release/`` is either a finished run that verifies or no result at all, (4) what was charged stays charged.
"""

# ruff: noqa: PT017 (a refusal is one of two outcomes here; its message is looked at where it occurs)
from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fuzz_inputs
import numpy as np
import pytest

from dpml import PrivateData, PrivateSession, PrivateTrainer
from dpml import accounting as acc
from dpml.accounting import Ledger
from dpml.accounting.dataset_ledger import DatasetLedger
from dpml.accounting.ledger import parse_ledger
from dpml.errors import DpmlError, LedgerError, RunFolderError
from dpml.mechanisms import Count, FixedNoise, PureBudget

METHODS = ("dp_sgd", "output", "objective", "dp_gd", "adassp")
Fail = Callable[[str], None]


class Watching(FixedNoise):
    """Noise that looks, whenever it is asked for, whether a charge for it is on disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(0)
        self.path, self.unpaid, self.drawn = path, 0, 0

    def normal(self, std: float, shape: Any) -> np.ndarray:
        self.drawn += 1
        record = acc.read_ledger(self.path)
        if not sum(line["count"] for line in record.charges):
            self.unpaid += 1
        return super().normal(std, shape)


def data() -> PrivateData:
    X = np.random.default_rng(0).normal(size=(60, 3)) / 4
    y = X @ [1.0, -1.0, 0.5]
    return PrivateData.from_arrays(X, y, norm_bound=1.0, target_bounds=(-2, 2), n_declared=60)


def classes() -> PrivateData:
    X = np.random.default_rng(0).normal(size=(60, 3)) / 4
    return PrivateData.from_arrays(X, (X[:, 0] > 0).astype(int), norm_bound=1.0, classes=[0, 1], n_declared=60)


def run(method: str, folder: Path, **more: Any) -> Watching:
    """One small run; the noise tells afterwards whether it was ever drawn unpaid."""
    noise = Watching(folder / "release/ledger.jsonl")
    if method == "dp_sgd":
        more = {"steps": 4, "expected_batch_size": 20, "checkpoint_every": 2, **more}
    made = PrivateTrainer(
        "ridge" if method == "adassp" else "logreg", method=method, epsilon=2.0, delta=1e-4, run_dir=folder,
        noise_source=noise, **more,
    )  # fmt: skip
    try:
        made.fit(data() if method == "adassp" else classes())
    except DpmlError:
        assert not noise.unpaid
        raise
    assert not noise.unpaid
    return noise


WRITING = set("wax+")


@contextmanager
def failing(patch: pytest.MonkeyPatch, folder: Path, number: int | None, code: int) -> Iterator[list[str]]:
    """The ``number``-th call that changes the disk raises OSError(code); the calls are listed by name.

    Counted are ``open`` for writing below ``folder``, ``os.write``, ``os.fsync``, ``os.replace``, ``os.mkdir``.
    """
    calls: list[str] = []

    def watched(name: str, whole: Any, counts: Callable[..., bool]) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if counts(*arguments, **named):
                calls.append(name)
                if len(calls) - 1 == number:
                    raise OSError(code, os.strerror(code))
            return whole(*arguments, **named)

        return call

    def inside(path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and str(path).startswith(str(folder))

    with patch.context() as broken:
        broken.setattr(os, "write", watched("write", os.write, lambda handle, *_: handle > 2))
        broken.setattr(os, "fsync", watched("fsync", os.fsync, lambda *_: True))
        broken.setattr(os, "replace", watched("replace", os.replace, lambda source, *_: inside(source)))
        broken.setattr(os, "mkdir", watched("mkdir", os.mkdir, lambda path, *_, **__: inside(path)))
        whole = builtins.open
        broken.setattr(
            builtins,
            "open",
            watched("open", whole, lambda path, mode="r", *_, **__: inside(path) and WRITING & set(mode)),
        )
        yield calls


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS)
def test_one_failure_at_every_place_of_a_run(
    method: str, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every run of the tests each ninth place (``output``: each one), every one in the nightly run."""
    with failing(monkeypatch, tmp_path, None, errno.ENOSPC) as calls:
        assert run(method, tmp_path / "whole").drawn
    assert {"write", "fsync", "replace", "mkdir"} <= set(calls)
    finished = 0
    for number, name in list(enumerate(calls))[:: 1 if method == "output" else every]:
        folder = tmp_path / str(number)
        with failing(monkeypatch, folder, number, errno.ENOSPC):
            try:
                run(method, folder)
                failed = False
            except (LedgerError, RunFolderError) as error:
                failed = True
                assert os.strerror(errno.ENOSPC) in str(error), name
        result = folder / "release/result.json"
        assert result.exists() or failed
        if result.exists():  # only what comes after the release failed
            finished += 1
            assert acc.verify(folder, allow_test_noise=True).ok
        elif (folder / "release/ledger.jsonl").exists():
            _only_charges(folder)
        fuzz_inputs.survived("disk")
    assert finished < len(calls) // 2


def _only_charges(folder: Path) -> None:
    """A ledger without a result can be read, but for a last line that was torn before it was used."""
    raw = (folder / "release/ledger.jsonl").read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if whole:
        parse_ledger(whole, "ledger")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_cannot_be_made(method: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only disk: refused before data are read, and nothing is there afterwards."""
    with failing(monkeypatch, tmp_path / "run", 0, code) as calls, pytest.raises(RunFolderError) as refusal:
        run(method, tmp_path / "run")
    assert calls == ["mkdir"]
    assert os.strerror(code) in str(refusal.value)
    assert not (tmp_path / "run").exists()
    fuzz_inputs.survived("disk")


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFolderError, match="Choose another folder"):
        run("output", tmp_path / "run")


def test_one_failure_at_every_place_of_a_capped_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cap of the data set is charged first: no failure leaves a run that it does not count."""
    cap = {"dataset_epsilon": 9.0, "dataset_delta": 1e-2}
    with failing(monkeypatch, tmp_path, None, errno.ENOSPC) as calls:
        run("output", tmp_path / "whole", dataset_ledger=str(tmp_path / "whole.jsonl"), **cap)
    for number in range(len(calls)):
        folder, book = tmp_path / str(number), tmp_path / f"{number}.jsonl"
        drawn = False
        with failing(monkeypatch, tmp_path, number, errno.EIO):
            try:
                drawn = bool(run("output", folder, dataset_ledger=str(book), **cap).drawn)
            except DpmlError as error:
                assert os.strerror(errno.EIO) in str(error)
        if drawn or (folder / "release/result.json").exists():
            assert DatasetLedger(book, 9.0, 1e-2).total()[0] == 2.0
        fuzz_inputs.survived("disk")


def test_one_failure_at_every_place_of_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is given only if its charge is there for the next one who opens the folder."""
    people = {"age": [34.0, 51.0, 17.0] * 20}

    def ask(folder: Path) -> int:
        session = PrivateSession(people, PureBudget(epsilon=1.0), folder=folder, noise_source=FixedNoise(0))
        answered = 0
        for _ in range(2):
            try:
                session.ask(Count(), epsilon=0.25)
                answered += 1
            except LedgerError:
                continue
        return answered

    with failing(monkeypatch, tmp_path, None, errno.ENOSPC) as calls:
        assert ask(tmp_path / "whole") == 2
    for number in range(len(calls)):
        folder, answered = tmp_path / str(number), 0
        with failing(monkeypatch, folder, number, errno.ENOSPC):
            try:
                answered = ask(folder)
            except DpmlError as error:
                assert os.strerror(errno.ENOSPC) in str(error)
        if answered:
            again = PrivateSession(people, PureBudget(epsilon=1.0), folder=folder, noise_source=FixedNoise(0))
            assert again.remaining["epsilon"] <= 1.0 - 0.25 * answered + 1e-12
        fuzz_inputs.survived("disk")


def test_one_failure_at_every_place_of_a_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path) -> tuple[int, LedgerError | None]:
        """How many charges returned, and the error that stopped it."""
        returned = 0
        try:
            made = Ledger.create(path, {"steps": 3})
            for _ in range(3):
                made.charge(acc.Gaussian(1.0), stage="train")
                returned += 1
            made.close({})
        except LedgerError as error:
            return returned, error
        return returned, None

    with failing(monkeypatch, tmp_path, None, errno.ENOSPC) as calls:
        assert write(tmp_path / "whole.jsonl") == (3, None)
    for number in range(len(calls)):
        path = tmp_path / f"{number}.jsonl"
        with failing(monkeypatch, tmp_path, number, errno.ENOSPC):
            returned, error = write(path)
        assert error is not None
        assert os.strerror(errno.ENOSPC) in str(error)
        raw = path.read_bytes()
        on_disk = parse_ledger(raw, "l").charges if raw.endswith(b"\n") else ()
        assert len(on_disk) >= returned
        fuzz_inputs.survived("disk")
