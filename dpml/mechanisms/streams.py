"""Several random streams that fill one array together, in threads: the mechanics below :mod:`dpml.mechanisms.noise`.

A :class:`Bank` holds independent generators (one key each).  A large request is cut into parts; every thread takes the
next part, and for it a generator that nobody holds, until none is left, so that a thread which the operating system
holds up delays nobody.  Small requests of several threads are served side by side, each by a generator of its own.
Which generator fills which part depends on timing only through draws that are already delivered, and every draw moves
its generator on: all draws of all requests are independent, and none is used twice.
numpy's generators release the interpreter lock while they fill an array (a test looks).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from dpml.mechanisms.rounded import Numbers
from dpml.spinning import idle_threads_sleep

Item = TypeVar("Item")
Draw = Callable[[np.random.Generator, Any], None]  # the second: a part of the array that is to be filled

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


def parts(size: int, most: int = PART) -> list[slice]:
    """``range(size)`` cut into consecutive slices of at most ``most``: every index is in exactly one."""
    return [slice(start, min(start + most, size)) for start in range(0, size, most)]


class Pool:
    """Helper threads, started when they are first wanted and gone with the last reference."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def _submit(self, work: Callable[[], None]) -> Future[None]:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.count, thread_name_prefix="dpml-noise")
        return self._executor.submit(work)

    def share(self, work: Callable[[Item], None], items: Sequence[Item]) -> None:
        """``work(item)`` for every item, once each, in the calling thread and the pool's at the same time.

        Raises:
            whatever ``work`` raises, in any thread, when all threads have stopped; items may then be left over.
        """
        left = deque(items)

        def work_off() -> None:
            while True:
                try:
                    item = left.popleft()
                except IndexError:
                    return
                work(item)

        helpers: list[Future[None]] = []
        try:
            for _ in range(min(self.count, len(left) - 1)):
                helpers.append(self._submit(work_off))
            work_off()
        finally:  # also after an interrupt: nobody may still write when the caller goes on
            left.clear()
            started = [helper for helper in helpers if not helper.cancel()]
            _wait_out(started)
        for helper in started:
            helper.result()


def _wait_out(helpers: Sequence[Future[None]]) -> None:
    """Return, or pass a further interrupt on, when all have ended: each is within one item, a part of a second."""
    interrupt: BaseException | None = None
    while not all(helper.done() for helper in helpers):
        try:
            wait(helpers)
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


class Bank:
    """Independent generators, each held by one thread at a time."""

    def __init__(self, streams: Sequence[np.random.Generator], pool: Pool) -> None:
        self.streams = tuple(streams)
        self._pool = pool
        self._free = threading.Condition()
        self._idle = deque(self.streams)

    @contextmanager
    def _held(self) -> Iterator[np.random.Generator]:
        """A generator that nobody else draws from meanwhile; it is free again also after an interrupt at any point."""
        stream: np.random.Generator | None = None
        try:
            with self._free:
                while not self._idle:
                    self._free.wait()
                stream = self._idle[0]
                self._idle.popleft()
            yield stream
        finally:
            if stream is not None:
                with self._free:
                    if not any(idle is stream for idle in self._idle):
                        self._idle.appendleft(stream)
                    self._free.notify()

    def fill(self, out: Numbers, draw: Draw, *, few: bool = False) -> None:
        """Fill the one-dimensional ``out``: ``draw(stream, part)`` for parts that cover it, each once.

        Args:
            few: for a ``draw`` of many short calls, each of which asks for the interpreter lock: one part for every
                thread, and the asking thread alone where there are two only and torch's idle thread keeps the other
                processor busy (:mod:`dpml.spinning`; the second one saves nothing then); else parts of :data:`PART`.

        Raises:
            whatever ``draw`` raises, in any thread, when all threads have stopped.
        """
        if out.size < PARALLEL_FROM or len(self.streams) < (3 if few and not idle_threads_sleep() else 2):
            with self._held() as stream:
                draw(stream, out)
            return
        done: list[int] = []

        def fill_part(part: slice) -> None:
            with self._held() as stream:
                draw(stream, out[part])
            done.append(part.stop - part.start)

        self._pool.share(fill_part, parts(out.size, -(-out.size // len(self.streams)) if few else PART))
        if sum(done) != out.size:
            raise AssertionError("a part of the noise was not drawn")  # cannot happen; zeros would be no noise at all
