"""What all mechanisms share: the answer that a release gives back, and the checks that stand before it.

A mechanism is public knowledge until it meets a value: a frozen record of public numbers with

* ``event``: what to charge *before* the data are touched (:mod:`dpml.accounting` reads nothing else);
* ``error(beta)``: P(|answer − truth| > error) <= beta, the largest error over all coordinates for vectors;
* ``release(value, noise=None)``: an :class:`Answer`, drawn from a fresh :class:`~dpml.mechanisms.noise.SecretNoise`
  unless a noise source is given;
* ``interval(value, beta)``, where an interval for the truth can be read off a noisy value.

The neighbouring relation is no argument: it is inside the sensitivity, and ``event`` costs what was declared under
whichever relation that sensitivity is for.  ``event_under(neighboring_relation)``, where a mechanism has it, is the
same release described as sharply as the accountants can take it; it costs no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml import errors
from dpml.accounting.checks import check_number, shown
from dpml.accounting.events import Event
from dpml.mechanisms.noise import NoiseSource, default_noise


@runtime_checkable
class Mechanism(Protocol):
    """What :class:`Answer` needs to know of the mechanism that gave it; public numbers only."""

    @property
    def event(self) -> Event: ...

    def error(self, beta: float) -> Any: ...


@dataclass(frozen=True, repr=False, eq=False)
class Answer:
    """What one release gave: the noisy value, and the mechanism that made it.  All of it may be published.

    Attributes:
        value: a number, an array, a dict or a candidate, as the mechanism says.
        mechanism: the frozen public description.  Neither it nor the answer holds the value before the noise.
    """

    value: Any
    mechanism: Any

    @property
    def event(self) -> Event:
        """The event that was to be charged before the release."""
        return self.mechanism.event

    def error(self, beta: float = 0.05) -> Any:
        """The mechanism's error at failure probability ``beta`` in (0, 1)."""
        return self.mechanism.error(beta)

    def interval(self, beta: float = 0.05) -> Any:
        """(low, high) that holds the truth (all coordinates of it together) with probability >= 1 − ``beta``.

        Raises:
            ConfigError: the answer is not a noisy number (a selected candidate, say), or ``beta`` outside (0, 1).
        """
        method = getattr(self.mechanism, "interval", None)
        if method is None:
            raise errors.ConfigError(
                f"interval() is not allowed for an answer of {type(self.mechanism).__name__}: the answer is no noisy "
                "number. Use error(beta)."
            )
        return method(self.value, beta)

    def __repr__(self) -> str:
        return f"Answer(value={self.value!r}, event={self.event!r}, error(0.05)={self.error(0.05)!r})"


def check_beta(beta: float) -> float:
    """``beta`` as a float in [1e-300, 1), else :class:`~dpml.errors.ConfigError`."""
    return check_number("beta", beta, 1e-300, 1.0, below=True)


def check_noise(noise: NoiseSource | None) -> NoiseSource:
    """The source itself, a fresh secret one for None, and :class:`~dpml.errors.ConfigError` for anything else."""
    if noise is None:
        return default_noise()
    if isinstance(noise, type) or not isinstance(noise, NoiseSource):
        raise errors.invalid("noise", shown(noise), "a noise source (SecretNoise()) or None")
    return noise


def finite_values(value: ArrayLike, dimension: int) -> NDArray[np.float64]:
    """``value`` as a new float64 array with ``dimension`` finite entries (a plain number counts as one).

    A sensitivity is for the doubles that are handed over.  Whole numbers beyond ±2^53 are refused: rounding them to
    doubles could drive neighbours apart.

    Raises:
        DataError: another number of entries, no finite numbers, or whole numbers beyond ±2^53.  It holds no entry.
    """
    try:
        given = np.asarray(value)
    except (TypeError, ValueError):  # ragged lists
        given = np.empty(0, dtype=object)
    if given.dtype.kind not in "iuf":
        raise errors.DataError("value is not allowed: it must be a number or an array of numbers (int64 or float64).")
    whole = given.dtype.kind in "iu" and given.size
    if whole and not (int(given.min()) >= -(1 << 53) and int(given.max()) <= 1 << 53):
        raise errors.DataError(
            "value holds a whole number beyond 2^53, which a double may not hold: hand over doubles, and a "
            "sensitivity that is for the doubles."
        )
    with np.errstate(over="ignore"):  # a long double beyond all doubles becomes infinity
        array = np.array(given, dtype=np.float64)
    if array.size != dimension:
        raise errors.DataError(
            f"value has {array.size} entries, but the mechanism was made for dimension = {dimension}: "
            "make it for the number of entries that are released together."
        )
    if not np.isfinite(array).all():
        raise errors.DataError("value holds NaN or infinity: such a value has no bounded sensitivity. Clamp it first.")
    return array


def around(value: Any, error: Any) -> tuple[Any, Any]:
    """(value − error, value + error), the interval that a two-sided error bound gives."""
    return value - error, value + error
