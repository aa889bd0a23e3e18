"""Two worlds by training again and again: the convex methods on two neighbouring made-up data sets.

World 0 holds k copies of one row with one label, world 1 that and one record more, the same row with the other label
(under ``replace_one``: instead of one of the copies' kind).  The row is as long as the public bound allows, so it is
within what the method's proof covers; the plan is the one for the data, their declared size included, and no record of
theirs is read.  Each run trains by the method's own code with fresh secret noise and gives one score: how far the
released model leans towards the one record's label.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpml.audit.keeping import AuditFolder
from dpml.data import Records
from dpml.linear_methods import REGRESSION, fit_linear
from dpml.mechanisms import FixedNoise, NoiseSource, SecretNoise

COPIES = (0, 2, 8, 32, 128)
"""Numbers k of copies that a few runs are tried with, which are not counted."""
PILOT = 30
CHUNK = 250
"""Runs of one piece of work, or more where there would be over :data:`PIECES` pieces."""
PIECES = 400
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Worlds:
    """Two neighbouring data sets and what is trained on them.

    Attributes:
        parameters: the method's frozen plan.
        model, method: names; ``n_classes``: 2 or more, 1 for a regression.
        n_features, norm_bound: of a row.
        copies: k of the module's docstring.
        replace: whether world 0 holds one record with the other label instead of none.
    """

    parameters: Any
    model: str
    method: str
    n_classes: int
    n_features: int
    norm_bound: float
    copies: int
    replace: bool

    def records(self, world: int) -> Records:
        """The data set of world 0 or 1."""
        low, high = (-1.0, 1.0) if self.model in REGRESSION else (0, 1)
        labels = [low] * self.copies + ([high] if world else [low] * self.replace)
        rows = np.zeros((len(labels), self.n_features))
        rows[:, 0] = self.norm_bound
        kind = np.float64 if self.model in REGRESSION else np.int64
        return Records(X=rows, y=np.asarray(labels, dtype=kind))

    def score(self, theta: np.ndarray) -> float:
        """How far a released weight, ``(d,)`` or ``(K, d)``, leans towards the label of the record that differs."""
        if theta.ndim == 1:
            return float(theta[0])
        return float(theta[1, 0] - theta[0, 0])

    def scores(self, world: int, count: int, noise: NoiseSource | None = None) -> np.ndarray:
        """``count`` independent trainings on one of the data sets."""
        noise, records = noise or SecretNoise(threads=1), self.records(world)
        return np.array([self.score(self._trained(records, noise)) for _ in range(count)])

    def _trained(self, records: Records, noise: NoiseSource) -> np.ndarray:
        theta, _ = fit_linear(
            self.parameters, self.model, self.method, records, self.n_classes, noise=noise,
            charge=lambda event: None,  # made-up records: nobody's budget
        )  # fmt: skip
        return np.asarray(theta)


def best_worlds(make: Callable[[int], Worlds]) -> Worlds:
    """The number of copies at which both worlds lie farthest apart, in standard deviations of the score.

    Both are tried with the same repeated noise, so a few runs tell; these are not counted and released nowhere.
    """

    def apart(worlds: Worlds) -> float:
        out, inside = (worlds.scores(world, PILOT, FixedNoise(0)) for world in (0, 1))
        spread = float(out.std())
        return abs(float(inside.mean() - out.mean())) / spread if spread > 0 else math.inf

    return max((make(copies) for copies in COPIES), key=apart)


def all_scores(
    worlds: Worlds,
    runs: int,
    workers: int,
    progress: Callable[[int, int], None] | None = None,
    kept: AuditFolder | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of ``runs`` trainings, half of them in each world, by ``workers`` processes with one thread each.

    ``workers = 1`` trains in this process; 0 takes every core.  Each process draws from its own secret noise.  With
    ``kept``, finished pieces are kept there, and pieces that are there already are not trained again.
    """
    workers = workers or len(os.sched_getaffinity(0))
    piece = max(CHUNK, -(-runs // PIECES))
    jobs = [(world, count) for world in (0, 1) for count in _chunks(runs // 2 if world else runs - runs // 2, piece)]
    found: dict[int, np.ndarray] = {}
    for number, (_, count) in enumerate(jobs if kept is not None else ()):
        assert kept is not None
        scores = kept.kept(number, count)
        if scores is not None:
            found[number] = scores
    missing = {number: job for number, job in enumerate(jobs) if number not in found}
    done = sum(map(len, found.values()))

    def keep(number: int, scores: np.ndarray) -> None:
        nonlocal done
        found[number], done = scores, done + len(scores)
        if kept is not None:
            kept.keep(number, scores)
        if progress is not None:
            progress(done, runs)

    if workers == 1:
        for number, (world, count) in missing.items():
            keep(number, worlds.scores(world, count))
    elif missing:
        _in_processes(worlds, missing, workers, keep)
    both = [np.concatenate([found[k] for k, job in enumerate(jobs) if job[0] == world]) for world in (0, 1)]
    return both[0], both[1]


def _in_processes(
    worlds: Worlds, jobs: Mapping[int, tuple[int, int]], workers: int, keep: Callable[[int, np.ndarray], None]
) -> None:
    spawn = multiprocessing.get_context("spawn")
    with _one_thread(), ProcessPoolExecutor(workers, mp_context=spawn, initializer=end_with_parent) as pool:
        try:
            waiting = {pool.submit(worlds.scores, *job): number for number, job in jobs.items()}
            for future in as_completed(waiting):
                keep(waiting[future], future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # what has not begun does not begin
            raise


def end_with_parent() -> None:
    """Of a worker: it ends when its parent does, however that ended, and leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _chunks(count: int, piece: int = CHUNK) -> list[int]:
    return [piece] * (count // piece) + ([count % piece] if count % piece else [])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes that are started meanwhile use one thread each, so that together they use every core once."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
