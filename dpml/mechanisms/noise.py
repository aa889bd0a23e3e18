"""The one place that randomness for privacy comes from: Gaussian noise and the coins of Poisson sampling.

A guarantee holds against everybody who does not know the noise.  So by default it is drawn from ciphers keyed by the
operating system's entropy (:class:`SecretNoise`): there is no seed to set, print, store or guess, and numpy's, Python's
and torch's global seeds have no influence.  :class:`FixedNoise` repeats itself and is for tests only.
:class:`Prefetch` draws the next vector while the caller computes.

What is covered, what is not.  The samples are double-precision numbers, while the proofs speak of real ones, and the
low bits of ``value + noise`` can tell more than the theorem allows (Mironov 2012, "On significance of the least
significant bits for differential privacy").  A caller that adds whole numbers from :func:`rounded_normal` on a
:class:`~dpml.mechanisms.lattice.Grid`, whose results are multiples of a public spacing whatever the data, is covered;
docs/proofs-floats.md has the proof and what remains (a distance from ideal noise that is bounded, 3e-10 for 2,000 steps
of half a million parameters; AES is assumed to be unpredictable).  A caller that adds ``normal`` to a value and
releases the sum is *not*.  Neither covers how long a draw takes.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NoReturn, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter

from dpml import errors
from dpml.mechanisms import rounded, streams

Shape = int | Sequence[int]
Floats = NDArray[np.float64]
Numbers = rounded.Numbers  # whole ones

KEY_BITS = 128
KEPT = 1 << 14  # whole numbers drawn at once when requests below streams.SMALL ask for the same kind again
MAX_STEPS = float(1 << 52)  # whole numbers of at most this size have exact float64 sums


@runtime_checkable
class NoiseSource(Protocol):
    """What every mechanism draws from.  ``normal`` and ``uniform`` use separate, independent streams.

    A source may also have ``rounded(std, spacing, size)``; :func:`rounded_normal` then asks that, not ``normal``.

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


def rounded_normal(noise: NoiseSource, std: float, spacing: float, size: int) -> Numbers:
    """``size`` independent draws of rint(N/spacing), N ~ N(0, std²): whole numbers up to 2^52 in size, without -0.0.

    They are float64, or int32 up to 2^30 where the source gives that (:class:`SecretNoise` does, see there).

    By the source's own ``rounded(std, spacing, size)`` where it has one (:class:`SecretNoise`), else by rounding its
    ``normal(std, size)``.  A ``normal`` that is written later than ``rounded`` is the one that counts: a subclass of
    :class:`SecretNoise` with a ``normal`` of its own has it rounded, unless it has a ``rounded`` of its own, too.
    ``spacing`` is a power of two.

    Raises:
        ConfigError: ``std`` is no finite number >= 0, ``spacing`` no power of two, ``size`` no whole number >= 0; or
            the source answers with another shape, NaN or a number beyond 2^52.
    """
    own = _own_rounded(noise)
    if own is None:
        drawn = np.asarray(noise.normal(std, checked_size(size)), dtype=np.float64) / checked_spacing(spacing)
    else:
        drawn = np.asarray(own(std, spacing, size))
    if drawn.shape != (size,):
        raise errors.invalid("noise", drawn.shape, f"an array of the shape that was asked for, {(size,)}")
    if getattr(own, "__func__", None) in (SecretNoise.rounded, Prefetch.rounded):
        return drawn  # whole numbers within the range: not looked at a second time
    if drawn.dtype == np.int32 and within(drawn, rounded.MOST_INT32):
        return np.array(drawn)  # the source may write into its own again
    return _whole(drawn.astype(np.float64, copy=False))


def _own_rounded(noise: NoiseSource) -> Callable[[float, float, int], Numbers] | None:
    """The source's ``rounded``, unless its ``normal`` is written later: in the object, or in a class further down."""
    for space in (getattr(noise, "__dict__", {}), *map(vars, type(noise).__mro__)):
        if "rounded" in space or "normal" in space:
            return getattr(noise, "rounded", None) if "rounded" in space else None
    return getattr(noise, "rounded", None)


def _whole(drawn: Floats) -> Floats:
    steps: Floats = np.rint(drawn) + 0.0  # -0.0 becomes 0.0
    if not within(steps, MAX_STEPS):
        raise errors.invalid("noise", "an array", "finite and at most 2^52 steps of the grid in size")
    return steps


def within(values: Numbers, limit: float) -> bool:
    """Whether all are numbers from -limit to limit; NaN is not."""
    return values.size == 0 or bool(-limit <= values.min() and values.max() <= limit)  # NaN passes through both


def _dimensions(argument: str, shape: Shape) -> tuple[int, ...]:
    dims = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if any(not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 0 for n in dims):
        raise errors.invalid(argument, shape, "a whole number >= 0 or a sequence of them")
    return tuple(int(n) for n in dims)


def checked_std(std: float) -> float:
    """``std`` as a float, or :class:`~dpml.errors.ConfigError` unless it is a finite number >= 0."""
    value = float(std)
    if not (math.isfinite(value) and value >= 0.0):
        raise errors.invalid("std", std, "a finite number >= 0")
    return value


def checked_spacing(spacing: float) -> float:
    """``spacing`` as a float, or :class:`~dpml.errors.ConfigError` unless it is a power of two."""
    value = float(spacing)
    if math.frexp(value)[0] != 0.5:  # nor is 0, a negative number, infinity or NaN
        raise errors.invalid("spacing", spacing, "a power of two")
    return value


def checked_size(size: int) -> int:
    """``size`` as an int, or :class:`~dpml.errors.ConfigError` unless it is a whole number >= 0."""
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
        raise errors.invalid("size", size, "a whole number >= 0")
    return int(size)


class _Keyed:
    """All that a :class:`SecretNoise` draws from, made in one process: freshly keyed streams, threads and locks."""

    __slots__ = ("kept", "normal", "origin", "small", "uniform")

    def __init__(self, threads: int) -> None:
        pool = streams.Pool(max(threads - 1, 1))
        self.origin = streams.process_identity()
        self.normal = streams.Bank([_fresh_generator() for _ in range(threads)], pool)
        self.small = streams.Bank([_fresh_generator()], pool)  # normal draws, too: see streams.SMALL
        self.uniform = streams.Bank([_fresh_generator() for _ in range(threads)], pool)
        self.kept = _Kept()


class _Kept:
    """Whole numbers of one ratio that wait for the next short requests.  Each is handed out once."""

    __slots__ = ("_left", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # the ratio and the numbers: one store, which an interrupt cannot tear apart
        self._left: tuple[float, Numbers] = (0.0, np.empty(0))

    def take(self, ratio: float, size: int, draw: Callable[[int], Numbers]) -> Numbers:
        """``size`` of them; ``draw(count)`` is asked for many at the second request of the same ratio."""
        with self._lock:
            kept, left = self._left
            if ratio != kept or left.size < size:
                left = draw(max(KEPT, size) if ratio == kept else size)
            self._left = (ratio, left[size:])
        return left[:size].copy()


class SecretNoise:
    """Noise that nobody can predict or repeat: AES-128 in counter mode, keyed by the operating system.

    Normal and uniform draws have streams of their own, one per thread each, and short requests for normal draws one
    more.  Every stream gets its own key from :mod:`secrets` when the object is made, and again in a child process after
    a fork (both sides would otherwise draw the same noise).  Large requests are filled by all threads together (for
    whole numbers, where there are three or more, or torch's idle threads sleep: :mod:`dpml.spinning`), others by the
    asking thread alone, several of them side by side.  No public attribute or method shows a key, and the object can be
    neither pickled nor copied: a copy would repeat the streams.

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

    def rounded(self, std: float, spacing: float, size: int) -> Numbers:
        """``size`` independent draws of rint(N(0, std²)/spacing), whole numbers: see :mod:`dpml.mechanisms.rounded`.

        An int32 array where none can be beyond 2^30 (std/spacing up to 2^26 or so), else float64.  Short requests are
        served from numbers that were drawn together.  A ratio std/spacing outside of 2^8 to 2^47 rounds ``normal``,
        which no bound covers.  ``spacing`` is a power of two.
        """
        scale, count = checked_std(std) / checked_spacing(spacing), checked_size(size)
        if not rounded.LEAST <= scale <= rounded.MOST:
            return _whole(self.normal(scale, count))
        table, keyed = rounded.table(scale), self._current()

        def draw(stream: np.random.Generator, part: Numbers) -> None:
            table.fill(part, partial(_words, stream))

        def fresh(many: int) -> Numbers:
            out: Numbers = np.empty(many, table.dtype)
            (keyed.small if count < streams.SMALL else keyed.normal).fill(out, draw, few=True)
            return out

        return keyed.kept.take(scale, count, fresh) if count < streams.SMALL else fresh(count)

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


def _words(stream: np.random.Generator, count: int) -> NDArray[np.uint64]:
    return stream.integers(0, (1 << 64) - 1, count, dtype=np.uint64, endpoint=True)


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

    __slots__ = ("asked", "executor", "lock", "origin", "pending")

    def __init__(self) -> None:
        self.origin = streams.process_identity()
        self.lock = threading.Lock()
        self.executor: ThreadPoolExecutor | None = None
        self.pending: Future[Numbers] | None = None
        self.asked: tuple[tuple[float, float] | None, int] = (None, 0)


class Prefetch:
    """A noise source in front of ``source`` that draws the next normal or rounded vector while its user computes.

    After each request a background thread draws one vector of the same kind and size, which serves the next request if
    that asks for the same again, and is dropped otherwise.  Requests below ``streams.SMALL`` numbers are drawn when
    they come and leave that vector where it is.  A vector is handed out once, as an array that nobody else holds.  A
    source that is not ``secret`` (tests) is asked once per request, in order, and never in advance.  In a forked child
    the vector drawn by the parent is dropped.  To be used as a context manager, or with :meth:`close`; afterwards
    requests go straight to ``source``.  Not picklable, not copyable.
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
        drawn = np.asarray(self._next(None, math.prod(dims)), dtype=np.float64)
        if scale != 1.0:
            drawn *= scale
        return drawn.reshape(dims)

    def rounded(self, std: float, spacing: float, size: int) -> Numbers:
        """What :func:`rounded_normal` draws from the source: a new array.  Raises what that raises."""
        if self.__closed or not self.__source.secret:
            return rounded_normal(self.__source, std, spacing, size)
        return self._next((checked_std(std), checked_spacing(spacing)), checked_size(size))

    def _next(self, kind: tuple[float, float] | None, size: int) -> Numbers:
        """``size`` draws that are served here only; starts drawing those of the next request.

        ``kind``: standard deviation and spacing of rounded draws, ``None`` for standard normal ones.
        """

        def draw() -> Numbers:
            if kind is None:
                return self.__source.normal(1.0, size)
            return rounded_normal(self.__source, *kind, size)

        if size < streams.SMALL:
            return draw()
        ahead = self._current()
        with ahead.lock:
            pending, ahead.pending = ahead.pending, None  # taken out before it is looked at: never served twice
            if pending is not None and ahead.asked == (kind, size):
                drawn = pending.result()
            else:
                if pending is not None:
                    pending.cancel()
                drawn = draw()
            if not self.__closed:
                if ahead.executor is None:
                    ahead.executor = ThreadPoolExecutor(1, thread_name_prefix="dpml-prefetch")
                ahead.asked, ahead.pending = (kind, size), ahead.executor.submit(draw)
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
