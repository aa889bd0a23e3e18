"""The one place that randomness for privacy comes from: Gaussian noise and the coins of Poisson sampling.

A guarantee holds against everybody who does not know the noise.  So by default it is drawn from ciphers keyed by the
operating system's entropy (:class:`SecretNoise`): there is no seed to set, print, store or guess, and numpy's, Python's
and torch's global seeds have no influence.  :class:`FixedNoise` repeats itself and is for tests only.
:class:`Prefetch` draws the next vector while the caller computes.

What is covered, what is not.  The samples are double-precision numbers, while the proofs speak of real ones, and the
low bits of ``value + noise`` can tell more than the theorem allows (Mironov 2012, "On significance of the least
significant bits for differential privacy").  A caller that releases through :class:`~dpml.mechanisms.lattice.Grid`,
whose results are multiples of a public spacing whatever the data, is covered; docs/proofs-floats.md has the proof and
what remains (the 52-bit sampler's distance from a Gaussian; AES is assumed to be unpredictable).  A caller that adds
``normal`` to a value and releases the sum is *not*.  Neither covers how long a draw takes.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NoReturn, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter

from dpml import errors
from dpml.mechanisms import streams

Shape = int | Sequence[int]

KEY_BITS = 128


@runtime_checkable
class NoiseSource(Protocol):
    """What every mechanism draws from.  ``normal`` and ``uniform`` use separate, independent streams.

    Attributes:
        secret: whether an outsider can know nothing about the draws.  A run with ``secret = False`` has no guarantee
            and must say so.
    """

    @property
    def secret(self) -> bool: ...

    def normal(self, std: float, shape: Shape) -> NDArray[np.float64]:
        """Independent N(0, std²) draws of the given shape (float64)."""
        ...

    def uniform(self, size: Shape) -> NDArray[np.float64]:
        """Independent draws from [0, 1) of the given shape (float64)."""
        ...


def _dimensions(argument: str, shape: Shape) -> tuple[int, ...]:
    dims = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if any(not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 0 for n in dims):
        raise errors.invalid(argument, shape, "a whole number >= 0 or a sequence of them")
    return tuple(int(n) for n in dims)


def checked_std(std: float) -> float:
    """``std`` as a float, or :class:`~dpml.errors.ConfigError` unless it is a finite number >= 0."""
    value = float(std)
    if not (math.isfinite(value) and value >= 0.0):
        raise errors.invalid("std", std, "a finite number >= 0")
    return value


class _Keyed:
    """All that a :class:`SecretNoise` draws from, made in one process: freshly keyed streams, threads and locks."""

    __slots__ = ("normal", "origin", "small", "uniform")

    def __init__(self, threads: int) -> None:
        pool = streams.Pool(max(threads - 1, 1))
        self.origin = streams.process_identity()
        self.normal = streams.Bank([_fresh_generator() for _ in range(threads)], pool)
        self.small = streams.Bank([_fresh_generator()], pool)  # normal draws, too: see streams.SMALL
        self.uniform = streams.Bank([_fresh_generator() for _ in range(threads)], pool)


class SecretNoise:
    """Noise that nobody can predict or repeat: AES-128 in counter mode, keyed by the operating system.

    Normal and uniform draws have streams of their own, one per thread each, and short requests for normal draws one
    more.  Every stream gets its own key from :mod:`secrets` when the object is made, and again in a child process after
    a fork (both sides would otherwise draw the same noise).  Large requests are filled by all threads together, others
    by the asking thread alone, several of them side by side.  No public attribute or method shows
    a key, and the object can be neither pickled nor copied: a copy would repeat the streams.

    Args:
        threads: how many fill a large request, a whole number from 1 to 64; by default the processors that this
            process may use, at most ``OMP_NUM_THREADS`` where that is set, at most 4.
    """

    __slots__ = ("__keyed", "__threads")

    secret = True

    def __init__(self, *, threads: int | None = None) -> None:
        if threads is not None and (
            isinstance(threads, bool) or not isinstance(threads, int | np.integer) or not 1 <= threads <= 64
        ):
            raise errors.invalid("threads", threads, "a whole number from 1 to 64, or None")
        self.__threads = streams.usable_threads() if threads is None else int(threads)
        self.__keyed = _Keyed(self.__threads)

    def _current(self) -> _Keyed:
        keyed = self.__keyed
        if keyed.origin != streams.process_identity():
            keyed = self.__keyed = _Keyed(self.__threads)  # locks and threads too: the parent's may be held, are gone
        return keyed

    def normal(self, std: float, shape: Shape) -> NDArray[np.float64]:
        """Independent N(0, std²) draws (float64) of the given shape; zeros when ``std`` is 0."""
        scale, dims = checked_std(std), _dimensions("shape", shape)

        def draw(stream: np.random.Generator, part: NDArray[np.float64]) -> None:
            stream.standard_normal(out=part)
            if scale != 1.0:
                part *= scale

        out, keyed = np.empty(math.prod(dims)), self._current()
        (keyed.small if out.size < streams.SMALL else keyed.normal).fill(out, draw)
        return out.reshape(dims)

    def uniform(self, size: Shape) -> NDArray[np.float64]:
        """Independent draws from [0, 1) (float64) of the given shape."""
        dims = _dimensions("size", size)

        def draw(stream: np.random.Generator, part: NDArray[np.float64]) -> None:
            stream.random(out=part)

        out = np.empty(math.prod(dims))
        self._current().uniform.fill(out, draw)
        return out.reshape(dims)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "SecretNoise cannot be pickled or copied: a copy would repeat the noise. Make a new one where it is needed."
        )

    def __repr__(self) -> str:
        return "SecretNoise()"


def _fresh_generator() -> np.random.Generator:
    return np.random.Generator(AESCounter(key=secrets.randbits(KEY_BITS), counter=0))


class FixedNoise:
    """Repeatable noise for tests: the same ``seed`` (a whole number >= 0) gives the same draws.  Never private."""

    __slots__ = ("_normal", "_uniform")

    secret = False

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise errors.invalid("seed", seed, "a whole number >= 0")
        normal, uniform = np.random.SeedSequence(int(seed)).spawn(2)
        self._normal, self._uniform = np.random.default_rng(normal), np.random.default_rng(uniform)

    def normal(self, std: float, shape: Shape) -> NDArray[np.float64]:
        """N(0, std²) draws (float64) of the given shape; zeros when ``std`` is 0."""
        scale, dims = checked_std(std), _dimensions("shape", shape)
        draws = self._normal.standard_normal(dims)
        draws *= scale
        return draws

    def uniform(self, size: Shape) -> NDArray[np.float64]:
        """Draws from [0, 1) (float64) of the given shape."""
        return self._uniform.random(_dimensions("size", size))

    def __repr__(self) -> str:
        return "FixedNoise(<tests only>)"


class _Ahead:
    """The one vector that is drawn in advance, and the thread that draws it; all made in one process."""

    __slots__ = ("executor", "lock", "origin", "pending", "size")

    def __init__(self) -> None:
        self.origin = streams.process_identity()
        self.lock = threading.Lock()
        self.executor: ThreadPoolExecutor | None = None
        self.pending: Future[NDArray[np.float64]] | None = None
        self.size = 0


class Prefetch:
    """A noise source in front of ``source`` that draws the next normal vector while its user computes.

    After each request a background thread draws one vector of the same size, which serves the next request if that asks
    for the same size again, and is dropped otherwise.  Requests below ``streams.SMALL`` numbers are drawn when they
    come and leave that vector where it is.  A vector is handed out once, as an array that nobody else holds.  A source
    that is not ``secret`` (tests) is asked once per request, in order, and never in advance.  In a forked child the
    vector drawn by the parent is dropped.  To be used as a context manager, or with :meth:`close`; afterwards requests
    go straight to ``source``.  Not picklable, not copyable.
    """

    __slots__ = ("__ahead", "__closed", "__source")

    def __init__(self, source: NoiseSource) -> None:
        self.__source = source
        self.__ahead = _Ahead()
        self.__closed = False

    @property
    def secret(self) -> bool:
        """That of the source."""
        return self.__source.secret

    def _current(self) -> _Ahead:
        ahead = self.__ahead
        if ahead.origin != streams.process_identity():
            ahead = self.__ahead = _Ahead()
        return ahead

    def normal(self, std: float, shape: Shape) -> NDArray[np.float64]:
        """Independent N(0, std²) draws (float64) of the given shape: a new array.  Raises what the source raises."""
        if self.__closed or not self.__source.secret:
            return self.__source.normal(std, shape)
        scale, dims = checked_std(std), _dimensions("shape", shape)
        drawn = self._next(math.prod(dims))
        if scale != 1.0:
            drawn *= scale
        return drawn.reshape(dims)

    def _next(self, size: int) -> NDArray[np.float64]:
        """``size`` standard normal draws that are served here only; starts drawing those of the next request."""
        if size < streams.SMALL:
            return self.__source.normal(1.0, size)
        ahead = self._current()
        with ahead.lock:
            pending, ahead.pending = ahead.pending, None  # taken out before it is looked at: never served twice
            if pending is not None and ahead.size == size:
                drawn = pending.result()
            else:
                if pending is not None:
                    pending.cancel()
                drawn = self.__source.normal(1.0, size)
            if not self.__closed:
                if ahead.executor is None:
                    ahead.executor = ThreadPoolExecutor(1, thread_name_prefix="dpml-prefetch")
                ahead.size, ahead.pending = size, ahead.executor.submit(self.__source.normal, 1.0, size)
        return drawn

    def uniform(self, size: Shape) -> NDArray[np.float64]:
        """The source's draws from [0, 1)."""
        return self.__source.uniform(size)

    def close(self) -> None:
        """Stop and join the background thread; what it drew is dropped.  Again is harmless."""
        self.__closed = True
        ahead = self._current()
        with ahead.lock:
            ahead.pending, executor, ahead.executor = None, ahead.executor, None
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("Prefetch cannot be pickled or copied: a copy would repeat the noise.")

    def __repr__(self) -> str:
        return f"Prefetch({self.__source!r})"


def default_noise() -> NoiseSource:
    """A fresh :class:`SecretNoise`; every run makes its own."""
    return SecretNoise()
