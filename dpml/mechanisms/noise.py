"""The one place that randomness for privacy comes from: Gaussian noise and the coins of Poisson sampling.

A guarantee holds against everybody who does not know the noise.  So by default it is drawn from a cipher keyed by the
operating system's entropy (:class:`SecretNoise`): there is no seed to set, print, store or guess, and numpy's, Python's
and torch's global seeds have no influence.  :class:`FixedNoise` repeats itself and is for tests only.

What is *not* covered: the samples are double-precision numbers, while the proofs speak of real ones.  The low bits of
``value + noise`` can tell more than the theorem allows (Mironov 2012, "On significance of the least significant bits
for differential privacy"); a deployment that must resist that rounds to a grid or uses a discrete mechanism.
"""

from __future__ import annotations

import math
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NoReturn, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter

from dpml import errors

Shape = int | Sequence[int]

KEY_BITS = 128

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # POSIX only; elsewhere there is no fork
    os.register_at_fork(after_in_child=_count_fork)


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


class _TwoStreams(ABC):
    """Draws from two generators; the two sources below differ only in how these are made."""

    __slots__ = ()

    @abstractmethod
    def _generators(self) -> tuple[np.random.Generator, np.random.Generator]:
        """The generator of normal draws and the one of uniform draws."""

    def normal(self, std: float, shape: Shape) -> NDArray[np.float64]:
        """Independent N(0, std²) draws (float64) of the given shape; zeros when ``std`` is 0."""
        scale, dims = checked_std(std), _dimensions("shape", shape)
        draws = self._generators()[0].standard_normal(dims)
        draws *= scale
        return draws

    def uniform(self, size: Shape) -> NDArray[np.float64]:
        """Independent draws from [0, 1) (float64) of the given shape."""
        return self._generators()[1].random(_dimensions("size", size))


class SecretNoise(_TwoStreams):
    """Noise that nobody can predict or repeat: AES-128 in counter mode, keyed by the operating system.

    Two keys, one for normal and one for uniform draws, come from :mod:`secrets` when the object is made, and again in a
    child process after a fork (both sides would otherwise draw the same noise).  No public attribute or method shows a
    key, and the object can be neither pickled nor copied: a copy would repeat the stream.
    """

    __slots__ = ("__origin", "__streams")

    secret = True

    def __init__(self) -> None:
        self.__rekey()

    def __rekey(self) -> None:
        self.__streams = (_fresh_generator(), _fresh_generator())
        self.__origin = (os.getpid(), _forks)

    def _generators(self) -> tuple[np.random.Generator, np.random.Generator]:
        if self.__origin != (os.getpid(), _forks):
            self.__rekey()
        return self.__streams

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "SecretNoise cannot be pickled or copied: a copy would repeat the noise. Make a new one where it is needed."
        )

    def __repr__(self) -> str:
        return "SecretNoise()"


def _fresh_generator() -> np.random.Generator:
    return np.random.Generator(AESCounter(key=secrets.randbits(KEY_BITS), counter=0))


class FixedNoise(_TwoStreams):
    """Repeatable noise for tests: the same ``seed`` (a whole number >= 0) gives the same draws.  Never private."""

    __slots__ = ("_streams",)

    secret = False

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise errors.invalid("seed", seed, "a whole number >= 0")
        normal, uniform = np.random.SeedSequence(int(seed)).spawn(2)
        self._streams = (np.random.default_rng(normal), np.random.default_rng(uniform))

    def _generators(self) -> tuple[np.random.Generator, np.random.Generator]:
        return self._streams

    def __repr__(self) -> str:
        return "FixedNoise(<tests only>)"


def default_noise() -> NoiseSource:
    """A fresh :class:`SecretNoise`; every run makes its own."""
    return SecretNoise()
