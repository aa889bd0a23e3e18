"""Several random streams that fill one array together, in threads: the mechanics below :mod:`dpml.mechanisms.noise`.

A :class:`Bank` holds independent generators (one key each).  A large request is cut into parts; every worker thread
owns one generator and takes the next part until none is left, so that a thread which the operating system holds up
delays nobody.  Which generator fills which part depends on timing only through draws that are already delivered, and
every draw moves its generator on: all draws of all requests are independent, and none is used twice.
numpy's generators release the interpreter lock while they fill an array (a test looks).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
from numpy.typing import NDArray

Draw = Callable[[np.random.Generator, NDArray[np.float64]], None]

PART = 1 << 15  # draws that a thread takes at a time: 256 KiB stay in its cache while they are scaled
PARALLEL_FROM = 3 * PART  # below, waking a second thread costs more than it saves
SMALL = 1 << 12  # requests below never wait for a large one, and are not worth drawing in advance
MAX_THREADS = 4

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # POSIX only; elsewhere there is no fork
    os.register_at_fork(after_in_child=_count_fork)


def process_identity() -> tuple[int, int]:
    """Differs between a process and every child that is forked from it.  Whatever holds randomness compares it."""
    return os.getpid(), _forks


def usable_threads() -> int:
    """Threads worth using: the processors that this process may run on, at most ``OMP_NUM_THREADS`` and 4."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "")  # torchrun sets it, to share a machine between its processes
    limit = int(wanted) if wanted.isdecimal() and int(wanted) > 0 else processors
    return max(1, min(processors, limit, MAX_THREADS))


def parts(size: int) -> list[slice]:
    """``range(size)`` cut into consecutive slices of at most :data:`PART`: every index is in exactly one."""
    return [slice(start, min(start + PART, size)) for start in range(0, size, PART)]


class Pool:
    """Helper threads, started when they are first wanted and gone with the last reference."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[np.random.Generator], int], stream: np.random.Generator) -> Future[int]:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.count, thread_name_prefix="dpml-noise")
        return self._executor.submit(work, stream)


class Bank:
    """Independent generators behind one lock; the first serves the calling thread, the others the pool's."""

    def __init__(self, streams: Sequence[np.random.Generator], pool: Pool) -> None:
        self.streams = tuple(streams)
        self._pool = pool
        self._lock = threading.Lock()

    def fill(self, out: NDArray[np.float64], draw: Draw) -> None:
        """Fill the one-dimensional ``out``: ``draw(stream, part)`` for parts that cover it, each once.

        Raises:
            whatever ``draw`` raises, in any thread, when all threads have stopped.
        """
        with self._lock:
            if out.size < PARALLEL_FROM or len(self.streams) == 1:
                draw(self.streams[0], out)
            else:
                self._fill_together(out, draw)

    def _fill_together(self, out: NDArray[np.float64], draw: Draw) -> None:
        left = deque(parts(out.size))

        def work(stream: np.random.Generator) -> int:
            done = 0
            while True:
                try:
                    part = left.popleft()
                except IndexError:
                    return done
                draw(stream, out[part])
                done += part.stop - part.start

        helpers: list[Future[int]] = []
        try:
            for stream in self.streams[1 : len(left)]:
                helpers.append(self._pool.submit(work, stream))
            done = work(self.streams[0])
        finally:  # also after an interrupt: nobody may still write when the lock is given up
            left.clear()
            started = [helper for helper in helpers if not helper.cancel()]
            wait(started)
        done += sum(helper.result() for helper in started)
        if done != out.size:
            raise AssertionError("a part of the noise was not drawn")  # cannot happen; zeros would be no noise at all
