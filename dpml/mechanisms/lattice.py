"""Releasing a sum with noise on a grid, so that the low bits of floating-point numbers tell nothing.

The double-precision sum of a value and noise can be a number that no other value could have led to (Mironov 2012, "On
significance of the least significant bits for differential privacy").  :class:`Grid` releases multiples of a public
power of two instead: the value and the noise are rounded to it *separately* and added as whole numbers, without a
rounding error, so that the value only moves the noise by whole steps, and what can come out is the same for all values.
Rounding moves the value too; the clip bound is a little smaller for it.  Proof and what remains: docs/proofs-floats.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml import errors
from dpml.mechanisms.noise import MAX_STEPS, within
from dpml.mechanisms.rounded import LEAST, MOST, Numbers

SHRINK_BITS = 10  # the clip bound is smaller by 2^-10 of itself: half for the grid, half for rounding in the sum
MAX_RECORDS = 1 << 20  # what the half for the rounding in a float64 sum covers; dp_sgd's plans keep below it
BLOCK = 1 << 14  # coordinates at a time, so that they stay in the processor's cache
SMALLEST, LARGEST = 2.0**-400, 2.0**400  # of the sensitivity: squares neither overflow nor vanish


@dataclass(frozen=True)
class Grid:
    """The grid for a sum of ``dimension`` coordinates whose contributions have L2 norm <= ``sensitivity`` · shrink.

    Args:
        sensitivity: C, the declared bound on one record's contribution, 2^-400 to 2^400; the noise is sized by it.
        dimension: p, the number of coordinates that share C (1 for one number), 1 to 2^62.
        sums: how many sums are rounded one by one and then added (one per process, say), 1 to 2^20.

    With contributions clipped to ``sensitivity · shrink``, the *rounded* sums of neighbouring data sets differ by at
    most C (add_remove) or 2C (replace_one) in L2 norm; in one dimension that is the L1 norm, for Laplace noise.

    Raises:
        ConfigError: an argument outside its range.
    """

    sensitivity: float
    dimension: int
    sums: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sensitivity) and SMALLEST <= self.sensitivity <= LARGEST):
            raise errors.invalid("sensitivity", self.sensitivity, "a number from 2^-400 to 2^400", "Rescale the data.")
        for name, value, bits in (("dimension", self.dimension, 62), ("sums", self.sums, 20)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= 1 << bits:
                raise errors.invalid(name, value, f"a whole number from 1 to 2^{bits}")

    @cached_property
    def spacing(self) -> float:
        """g, a power of two with 2^-13 · C < g · √p · sums <= 2^-11 · C.  Depends on public numbers only."""
        # C = m · 2^e with 1/2 <= m < 1, and the whole number root >= √p · sums: both are rounded to the safe side
        root = math.isqrt(int(self.dimension) * int(self.sums) ** 2 - 1) + 1
        return math.ldexp(1.0, math.frexp(self.sensitivity)[1] - 1 - (SHRINK_BITS + 1) - (root - 1).bit_length())

    @property
    def shrink(self) -> float:
        """The factor for the clip bound, 1 - 2^-10."""
        return 1.0 - 2.0**-SHRINK_BITS

    def release(
        self, total: ArrayLike, noise: ArrayLike, out: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """``g · (rint(total/g) + rint(noise/g))``, exactly: a float64 array of multiples of g.

        Args:
            total: the sum of the clipped contributions, any shape.
            noise: independent noise of the same shape, scaled for sensitivity C.
            out: where to put it, one-dimensional, of the same size; may be ``total`` itself.  Default: a new array.

        Values beyond 2^52 steps of the grid are moved to ±2^52 steps, which brings neighbouring sums no further apart.

        Raises:
            DataError: ``total`` holds NaN.
            ConfigError: shapes differ, or noise beyond 2^52 steps (impossible below a noise multiplier of 2^35/√p).
        """
        value, drawn = np.asarray(total, dtype=np.float64), np.asarray(noise, dtype=np.float64)
        if value.shape != drawn.shape:
            raise errors.invalid("noise", drawn.shape, f"of the total's shape, {value.shape}")
        limit = MAX_STEPS * self.spacing
        if not within(drawn, limit):
            raise errors.invalid("noise", "an array", f"finite and at most {limit:.3g} in size")
        steps = to_steps(drawn.reshape(-1), self.spacing, np.empty(drawn.size))
        return self.add(value, steps + 0.0, out)

    def add(self, total: ArrayLike, steps: Numbers, out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """``g · (rint(total/g) + steps)``, exactly: :meth:`release` with noise that is drawn as whole numbers.

        Args:
            total, out: as in :meth:`release`.
            steps: from :func:`~dpml.mechanisms.noise.rounded_normal`, one-dimensional, of the same size as ``total``;
                at most 2^52 in size and without -0.0.

        Raises:
            DataError: ``total`` holds NaN.
            ConfigError: ``steps`` is of another shape.
        """
        value = np.asarray(total, dtype=np.float64)
        left = value.reshape(-1)
        if np.shape(steps) != left.shape:
            raise errors.invalid("steps", np.shape(steps), f"of the shape {left.shape}, one for every coordinate")
        out = np.empty(left.size) if out is None else out
        scratch = np.empty(min(left.size, BLOCK))
        with np.errstate(over="ignore"):
            for start in range(0, out.size, BLOCK):
                part = slice(start, start + BLOCK)
                sums = saturated(to_steps(left[part], self.spacing, scratch))
                sums += steps[part]  # no -0.0, since the steps hold none: the sign of a zero would be a bit
                np.multiply(sums, self.spacing, out=out[part])  # exact: at most 2^53 steps, times a power of two
        return out.reshape(value.shape)

    def sampler_distance(self, std: float, releases: int = 1) -> float:
        """Bound on the total variation distance of ``releases`` releases from ones with ideal Gaussian noise.

        For noise of standard deviation ``std`` (absolute) that :class:`~dpml.mechanisms.SecretNoise` draws as whole
        numbers; (1 + e^ε) times the distance is what this adds to δ at worst.  With several sums, ``std`` is that of
        one and ``releases`` counts each.  docs/proofs-floats.md, section 5, also for what is assumed.
        """
        if not (math.isfinite(std) and std > 0.0):
            raise errors.invalid("std", std, "a finite number > 0")
        if isinstance(releases, bool) or not isinstance(releases, int | np.integer) or releases < 0:
            raise errors.invalid("releases", releases, "a whole number >= 0")
        low, high = LEAST * self.spacing, MOST * self.spacing
        if not low <= std <= high:  # drawn by another sampler
            raise errors.invalid("std", std, f"2^8 to 2^47 spacings of the grid ({low:.3g} to {high:.3g})")
        return min(1.0, math.sqrt(float(self.dimension) * float(releases) / 2.0) * CELL_ERROR)


CELL_ERROR = 2.0**-46  # bound on the root mean square relative error of the probability of a whole number


def to_steps(values: NDArray[np.float64], spacing: float, out: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest multiples of ``spacing``, counted in spacings: whole numbers, in the beginning of ``out``."""
    steps = np.multiply(values, 1.0 / spacing, out=out[: values.size])  # exact: spacing is a power of two
    return np.rint(steps, out=steps)


def saturated(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Moved into ±2^52 (no two of them get further apart), in place."""
    if within(steps, MAX_STEPS):
        return steps
    if np.isnan(steps).any():
        raise errors.DataError("the total holds NaN: such a sum has no bounded sensitivity. Clip its terms first.")
    return np.clip(steps, -MAX_STEPS, MAX_STEPS, out=steps)
