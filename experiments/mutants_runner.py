"""Runs test files in a forked child of a process that has imported the large libraries already, and watches it.

Importing torch, scipy and pytest takes longer than most tests.  So :class:`Runner` imports them once, but nothing of
dpml, and forks: the child goes to the tree with the mutant, collects all test files at once and runs their tests in the
order that promises to fail soonest.  It tells by a pipe what it does; who is silent for :data:`SILENCE` seconds hangs.

The order: tests that ran the changed line when the code was whole, the fast ones first, then all others.  Nothing is
left out by it: a mutant survives only if every test passes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: a fork has one thread

PRELOADED = (
    "numpy", "scipy.stats", "scipy.optimize", "scipy.integrate", "scipy.special", "scipy.signal", "pandas", "torch",
    "torch.func", "torch.utils._pytree", "sklearn.linear_model", "mpmath", "randomgen", "dp_accounting", "opacus",
    "pyarrow", "safetensors.torch", "absl.logging", "joblib",
)  # fmt: skip
SILENCE = 240.0
"""Seconds for one test; a mutant that hangs is killed."""


@dataclass
class Outcome:
    """What a run of tests said: ``failed`` is the test (or the file) that failed first, or None."""

    failed: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, set[int]] = field(default_factory=dict)
    module: str = ""


_WRITE = os.write  # a test may put a failing disk in its place


class _Teller:
    """A pytest plugin that orders tests and says what happens, one JSON line each."""

    def __init__(self, pipe: int, order: dict[str, int], watched: Path | None) -> None:
        self._pipe, self._order, self._watched = pipe, order, str(watched) if watched else ""
        self._lines: set[int] = set()
        self._started = 0.0
        self._process = os.getpid()

    def tell(self, **what: Any) -> None:
        if os.getpid() == self._process:  # not a process that a test forked
            _WRITE(self._pipe, (json.dumps(what) + "\n").encode())

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self._order:
            items.sort(key=lambda item: self._order.get(item.nodeid, len(self._order)))  # stable

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.tell(failed=f"{report.nodeid} (collection)")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tell(start=nodeid)
        self._lines.clear()
        self._started = time.monotonic()
        if self._watched:
            threading.settrace(self._call)
            sys.settrace(self._call)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if self._watched:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
        self.tell(end=nodeid, seconds=time.monotonic() - self._started, lines=sorted(self._lines))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.tell(failed=report.nodeid)

    def _call(self, frame: Any, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename == self._watched else None

    def _line(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            self._lines.add(frame.f_lineno)
        return self._line


class Runner:
    """Tests of one tree; ``run`` forks."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree.resolve()
        for name in ("pytest", *PRELOADED):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        if any(name.partition(".")[0] == "dpml" for name in sys.modules):
            raise RuntimeError("dpml is imported already: mutants would not be seen")

    def run(self, files: Iterable[str], order: Iterable[str] = (), watched: str | None = None) -> Outcome:
        """All tests of ``files`` until one fails; with ``watched``: which of its lines each of them runs."""
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            try:
                self._inside(writer, list(files), list(order), watched)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(writer)
        try:
            return self._listen(reader)
        finally:
            os.close(reader)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # with all that its tests started
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def _inside(self, pipe: int, files: list[str], order: list[str], watched: str | None) -> None:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        said = os.open(self._tree / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.chdir(self._tree)
        os.environ["PYTHONPATH"] = str(self._tree)
        sys.path[0] = str(self._tree)
        import pytest

        place = {test: number for number, test in enumerate(order)}
        teller = _Teller(pipe, place, self._tree / watched if watched else None)
        arguments = ["-x", "-q", "-p", "no:cacheprovider", "--import-mode=prepend", *files]
        status = int(pytest.main(arguments, plugins=[teller]))
        teller.tell(exit=status, module=str(getattr(sys.modules.get("dpml"), "__file__", "")))

    def _listen(self, pipe: int) -> Outcome:
        outcome, rest, last, done = Outcome(), b"", "collection", False
        while not done:
            if not select.select([pipe], [], [], SILENCE)[0]:
                outcome.failed = outcome.failed or f"{last} (hangs)"
                break
            data = os.read(pipe, 1 << 16)
            if not data:
                outcome.failed = outcome.failed or f"{last} (the process ended)"
                break
            *texts, rest = (rest + data).split(b"\n")
            for said in map(json.loads, texts):
                last = said.get("start", last)
                outcome.failed = outcome.failed or said.get("failed")
                if "end" in said:
                    outcome.seconds[said["end"]] = said["seconds"]
                    outcome.lines[said["end"]] = set(said["lines"])
                if "exit" in said:
                    done, outcome.module = True, said["module"]
                    if said["exit"] and not outcome.failed:
                        outcome.failed = f"{last} (status {said['exit']})"
        return outcome
