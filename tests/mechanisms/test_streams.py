"""Several streams in threads: everything is filled once, nothing twice, by whom it should, in every thread."""

import inspect
import os
import sys
import threading

import noise_faults
import numpy as np
import pytest
from scipy import stats

from dpml import errors
from dpml.mechanisms import SecretNoise, streams


def test_every_entry_is_filled_once():
    noise_faults.every_entry_is_filled_once()


def test_streams_never_share_a_draw():
    noise_faults.streams_never_share_a_draw()


@pytest.mark.parametrize("size", [0, 1, streams.PART - 1, streams.PART, streams.PART + 1, 7 * streams.PART + 3])
def test_parts_cover_the_range_in_order(size):
    cut = streams.parts(size)
    assert [i for part in cut for i in range(part.start, part.stop)] == list(range(size))
    assert all(0 < part.stop - part.start <= streams.PART for part in cut)


def test_the_other_threads_work_while_one_draws():
    """numpy gives up the interpreter lock while it fills an array: Python code runs between the first and last entry.

    With the lock held, the flag could only be read again after the draw, and no loop would be counted."""
    stream, out = SecretNoise(threads=1)._current().normal.streams[0], np.zeros(4_000_000)
    started, done = threading.Event(), threading.Event()

    def draw():
        started.set()
        stream.standard_normal(out=out)
        done.set()

    worker = threading.Thread(target=draw)
    worker.start()
    started.wait()
    partly = 0
    while not done.is_set():
        partly += out[0] != 0.0 and out[-1] == 0.0  # after it began, before it ended
    worker.join()
    assert partly > 0


def test_large_requests_use_every_stream_and_small_ones_one():
    """Every stream's position moves, as its cipher's state tells; every worker waits until all have begun."""
    bank = SecretNoise(threads=3)._current().normal
    all_here, used = threading.Barrier(3, timeout=30), {}

    def draw(stream, part):
        name = threading.current_thread().name
        if name not in used:
            used[name] = stream
            all_here.wait()

    bank.fill(np.empty(noise_faults.LARGE), draw)
    assert len(used) == 3
    assert {id(s) for s in used.values()} == {id(s) for s in bank.streams}
    seen = []
    bank.fill(np.empty(streams.PARALLEL_FROM - 1), lambda stream, _: seen.append(stream))
    assert len(seen) == 1
    assert any(seen[0] is stream for stream in bank.streams)


def test_draws_of_different_streams_are_not_correlated():
    """Parts of one request, |r| < 5.5/√n over n = 131072 pairs.  False alarm 4e-8; r = 0.03 is missed below 1e-7."""
    draws = SecretNoise(threads=4).normal(1.0, 8 * streams.PART).reshape(2, -1)
    assert abs(np.corrcoef(draws[0], draws[1])[0, 1]) < 5.5 / np.sqrt(draws.shape[1])


def test_std_is_applied_once_in_every_part():
    """Sample variance per part: χ² with 32768 degrees of freedom, two-sided, false alarm 1e-6 over 8 parts and 2
    requests.  A part scaled twice or not at all (std 3: variance off by 9) is always caught."""
    source, law = SecretNoise(threads=2), stats.chi2(streams.PART)
    for std in (3.0, 1.0):
        for part in source.normal(std, (8, streams.PART)):
            assert law.ppf(3e-8) < (part / std) @ (part / std) < law.isf(3e-8)


def test_threads_that_draw_at_the_same_time_get_different_draws():
    source, drawn = SecretNoise(threads=2), {}
    go = threading.Barrier(4)

    def draw(k):
        go.wait()
        drawn[k] = np.concatenate([source.normal(1.0, size) for size in (100, streams.PARALLEL_FROM, 100)])

    workers = [threading.Thread(target=draw, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    pairs = np.concatenate([drawn[k] for k in range(4)]).view(np.complex128)
    assert np.unique(pairs).size == pairs.size  # by chance equal with probability below 1e-20
    assert stats.kstest(pairs.real, "norm").pvalue > 1e-6


def test_coins_and_single_numbers_do_not_wait_for_a_large_draw():
    """A vector that is drawn in the background does not hold up the sampling of the next batch, or a noisy count."""
    source = SecretNoise(threads=2)
    with source._current().normal._free:
        for request in (lambda: source.uniform(5), lambda: source.normal(1.0, 5)):
            worker = threading.Thread(target=request, daemon=True)
            worker.start()
            worker.join(30)
            assert not worker.is_alive()


def test_an_interrupt_at_any_line_of_taking_a_stream_neither_loses_nor_doubles_it():
    """Raised before each line of ``Bank._held`` in turn, up to its ``finally``, by a trace function as by a signal."""
    code = streams.Bank._held.__wrapped__.__code__
    text = inspect.getsource(code).splitlines()
    end = code.co_firstlineno + next(i for i, line in enumerate(text) if line.strip() == "finally:")
    interrupted = set()
    for count in range(1, 30):
        bank, seen = SecretNoise(threads=1)._current().small, []

        def trace(frame, event, _, seen=seen, count=count):
            if frame.f_code is code and event == "line":
                seen.append(frame.f_lineno)
                if len(seen) == count and frame.f_lineno < end:
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            bank.fill(np.empty(4), lambda stream, part: stream.standard_normal(out=part))
        except KeyboardInterrupt:
            interrupted.add(seen[-1])
        finally:
            sys.settrace(before)
        assert list(bank._idle) == list(bank.streams)
    assert len(interrupted) >= 6


@pytest.mark.parametrize("where", ["MainThread", "dpml-noise"])
def test_an_error_in_a_thread_reaches_the_caller_when_all_have_stopped(where):
    bank = SecretNoise(threads=3)._current().normal
    inside, both = [], threading.Barrier(3, timeout=30)
    begun = threading.local()

    def draw(_, part):
        if not hasattr(begun, "yes"):
            begun.yes = True
            both.wait()
        inside.append(1)
        try:
            if threading.current_thread().name.startswith(where):
                raise KeyboardInterrupt if where == "MainThread" else OSError("broken")
            part.fill(1.0)
        finally:
            inside.pop()

    with pytest.raises(KeyboardInterrupt if where == "MainThread" else OSError):
        bank.fill(np.empty(noise_faults.LARGE), draw)
    assert not inside
    out = np.zeros(noise_faults.LARGE)
    bank.fill(out, lambda stream, part: stream.standard_normal(out=part))  # and it goes on
    assert (out != 0.0).all()


def test_a_part_that_nobody_drew_is_an_error(monkeypatch):
    whole = streams.parts
    monkeypatch.setattr(streams, "parts", lambda size, most: whole(size, most)[1:])
    with pytest.raises(AssertionError, match="not drawn"):
        SecretNoise(threads=2).normal(1.0, noise_faults.LARGE)


LOCKED = """
import os, sys, threading, warnings
warnings.simplefilter("ignore")
from dpml.mechanisms import Prefetch, SecretNoise, streams
source = SecretNoise(threads=2)
ahead = Prefetch(source)
ahead.normal(1.0, streams.PARALLEL_FROM)
keyed = source._current()
with keyed.normal._free, keyed.uniform._free, ahead._current().lock:  # as if other threads were drawing
    child = os.fork()
    if child == 0:
        source.normal(1.0, streams.PARALLEL_FROM), source.uniform(3), ahead.normal(1.0, streams.PARALLEL_FROM)
        ahead.close()
        os._exit(17)
    status = os.waitpid(child, 0)[1]
sys.exit(0 if os.waitstatus_to_exitcode(status) == 17 else 1)
"""


def test_a_child_forked_during_a_draw_can_draw():
    done = noise_faults.run_alone(LOCKED)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("threads", [0, -1, 65, 1.5, True, "2"])
def test_a_number_of_threads_that_is_none_is_refused(threads):
    with pytest.raises(errors.ConfigError, match="threads"):
        SecretNoise(threads=threads)


def test_threads_follow_the_processors_and_the_environment(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    for text, expected in {"": 4, "1": 1, "2": 2, "99": 4, "0": 4, "-3": 4, "many": 4}.items():
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert streams.usable_threads() == expected
        assert len(SecretNoise()._current().normal.streams) == expected
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert streams.usable_threads() == 1


def test_no_thread_is_started_for_small_requests_and_none_stays():
    def running():
        return [t for t in threading.enumerate() if t.name.startswith("dpml-noise")]

    before = set(running())
    source = SecretNoise(threads=3)
    source.normal(1.0, 1000)
    assert set(running()) <= before
    source.normal(1.0, noise_faults.LARGE)
    ours = set(running()) - before
    assert 1 <= len(ours) <= 2
    del source
    for thread in ours:
        thread.join(30)
        assert not thread.is_alive()
