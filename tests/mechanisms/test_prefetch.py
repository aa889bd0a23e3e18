"""Noise drawn in advance: every vector once, secret sources only, errors arrive, nothing stays behind."""

import copy
import pickle
import threading

import noise_faults
import numpy as np
import pytest
from noise_faults import CountingSource
from scipy import stats

from dpml import errors
from dpml.mechanisms import FixedNoise, NoiseSource, Prefetch, SecretNoise, streams


def background():
    return {t for t in threading.enumerate() if t.name.startswith("dpml-prefetch")}


def test_every_vector_is_served_once():
    noise_faults.prefetched_draws_are_served_once()


def test_served_draws_are_normal_with_the_std_asked_for():
    """Kolmogorov-Smirnov over 20 × 20000 draws with changing std.  False alarm 1e-6; the std of the request before in
    place of this one's (wrong by a factor of 2 at least) is missed below 1e-9."""
    with Prefetch(SecretNoise(threads=2)) as ahead:
        draws = [ahead.normal(std, (100, 200)) / std for std in (1.0, 3.0, 0.5, 2.0) * 5]
        assert ahead.secret is True
    assert stats.kstest(np.ravel(draws), "norm").pvalue > 1e-6


N = streams.SMALL


def first(array):
    return float(array.reshape(-1)[0])


def test_the_next_vector_is_drawn_in_another_thread_at_the_size_last_asked_for():
    source = CountingSource()
    with Prefetch(source) as ahead:
        assert (ahead.normal(2.0, N) == 2.0 * np.arange(N)).all()
        assert (ahead.normal(1.0, N) == np.arange(N, 2 * N)).all()
        assert (ahead.normal(3.0, (2, N // 2)) == 3.0 * np.arange(2 * N, 3 * N).reshape(2, -1)).all()
    assert source.threads[0] == threading.get_ident()
    assert threading.get_ident() not in source.threads[1:]
    assert 3 * N <= source.drawn <= 4 * N


def test_a_vector_of_another_size_is_dropped():
    source = CountingSource()
    with Prefetch(source) as ahead:
        ahead.normal(1.0, N)
        later = ahead.normal(1.0, N + 1)
    assert later.min() >= N
    assert first(later) in (N, 2 * N)  # whether or not the thread had begun


def test_small_requests_in_between_leave_the_vector_where_it_is():
    """A noisy count after each step's noise must not make the prefetched vector useless."""
    source = CountingSource()
    with Prefetch(source) as ahead:
        for _ in range(5):
            assert ahead.normal(1.0, N).shape == (N,)
            assert ahead.normal(1.0, 1).shape == (1,)
    assert source.drawn <= 6 * N + 5
    assert source.threads.count(threading.get_ident()) == 6


class Recording(FixedNoise):
    def __init__(self, seed):
        super().__init__(seed)
        self.asked = []

    def normal(self, std, shape):
        self.asked.append((std, shape))
        return super().normal(std, shape)


def test_a_source_for_tests_is_asked_once_per_request_and_never_in_advance():
    source, plain, before = Recording(3), FixedNoise(3), background()
    with Prefetch(source) as ahead:
        assert ahead.secret is False
        for k, (std, shape) in enumerate([(2.0, N), (1.0, N), (0.5, (2, N)), (1.0, 3), (1.0, 0)]):
            assert (ahead.normal(std, shape) == plain.normal(std, shape)).all()
            assert source.asked[k:] == [(std, shape)]
            assert background() <= before
        assert (ahead.uniform(4) == plain.uniform(4)).all()
    assert len(source.asked) == 5


class Failing(CountingSource):
    def normal(self, std, shape):
        if self.drawn == 2 * N:
            self.drawn += 1
            raise OSError("no entropy")
        return super().normal(std, shape)


def test_an_error_in_the_thread_reaches_the_caller_and_the_next_request_is_served():
    with Prefetch(Failing()) as ahead:
        ahead.normal(1.0, N)
        ahead.normal(1.0, N)
        with pytest.raises(OSError, match="no entropy"):
            ahead.normal(1.0, N)
        assert first(ahead.normal(1.0, N)) == 2 * N + 1


def test_close_joins_the_thread_drops_the_vector_and_may_be_repeated():
    source, before = CountingSource(), background()
    with Prefetch(source) as ahead:
        ahead.normal(1.0, N)
        assert len(background() - before) == 1
    assert background() <= before
    ahead.close()
    drawn = source.drawn
    assert first(ahead.normal(1.0, N)) == drawn  # straight from the source
    assert source.drawn == drawn + N
    assert background() <= before


def test_threads_that_share_it_get_different_vectors():
    drawn, go = {}, threading.Barrier(4)
    with Prefetch(CountingSource()) as ahead:

        def draw(k):
            go.wait()
            drawn[k] = [ahead.normal(1.0, N) for _ in range(20)]

        workers = [threading.Thread(target=draw, args=(k,)) for k in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert np.unique(np.array(list(drawn.values()))).size == 4 * 20 * N


def test_bad_requests_are_refused_before_anything_is_drawn():
    source = CountingSource()
    with Prefetch(source) as ahead:
        for std, shape in [(-1.0, 3), (float("nan"), 3), (1.0, -3), (1.0, True)]:
            with pytest.raises(errors.ConfigError, match=r"std|shape"):
                ahead.normal(std, shape)
        assert ahead.normal(1.0, 0).shape == (0,)
        assert ahead.normal(1.0, ()).shape == ()
        assert ahead.uniform(2).tolist() == [0.25, 0.25]
    assert source.drawn <= 2


def test_it_is_a_source_that_cannot_be_copied_or_looked_into():
    with Prefetch(SecretNoise()) as ahead:
        assert isinstance(ahead, NoiseSource)
        assert repr(ahead) == "Prefetch(SecretNoise())"
        assert [name for name in dir(ahead) if not name.startswith("_")] == [
            "close",
            "normal",
            "rounded",
            "secret",
            "uniform",
        ]
        for operation in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="repeat the noise"):
                operation(ahead)


UNCLOSED = """
from dpml.mechanisms import Prefetch, SecretNoise
ahead = Prefetch(SecretNoise(threads=2))
for _ in range(3):
    ahead.normal(1.0, 300_000)
"""


def test_a_program_that_forgets_to_close_ends():
    done = noise_faults.run_alone(UNCLOSED)
    assert (done.returncode, done.stderr) == (0, "")
