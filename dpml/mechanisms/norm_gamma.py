"""The L2 mechanism with pure ε: noise of density ∝ exp(−‖b‖/scale) on a vector of known L2 sensitivity."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml import errors
from dpml.mechanisms.noise import NoiseSource

Shape = int | tuple[int, ...]


def norm_gamma(shape: Shape, *, scale: float, noise: NoiseSource) -> NDArray[np.float64]:
    """A draw b of density ∝ exp(−‖b‖/scale), ‖·‖ the L2 norm of all D entries together.

    In polar coordinates the density of the norm is ∝ r^{D−1} e^{−r/scale}: the direction is uniform and ‖b‖ ~
    Gamma(D, scale) (Chaudhuri, Monteleoni & Sarwate 2011, Algorithm 1).  The direction is a normal vector's, the norm
    a sum of D exponentials −ln U.

    Raises:
        ConfigError: a scale that is negative or not finite.
    """
    if not (math.isfinite(scale) and scale >= 0.0):
        raise errors.invalid("scale", scale, "a finite number >= 0")
    direction = noise.normal(1.0, shape)
    length = float(np.linalg.norm(direction))
    norm = scale * float(-np.log1p(-noise.uniform(direction.size)).sum())
    return direction * (norm / length) if length > 0.0 else direction


def add_norm_gamma(values: ArrayLike, *, sensitivity: float, epsilon: float, noise: NoiseSource) -> NDArray[np.float64]:
    """``values`` + a draw with scale ``sensitivity``/``epsilon``: ε-DP for that L2 sensitivity (triangle inequality).

    The relation is in the sensitivity.  Recording the event is the caller's business, and comes first.  The sum is a
    double, off any grid: its low bits are not defended (docs/proofs-floats.md).  ``MetricMechanism(norm="l2")`` is.

    Raises:
        ConfigError: a sensitivity that is negative or not finite, or ε not in (0, ∞).
        DataError: ``values`` hold NaN or infinity.
    """
    if not (math.isfinite(sensitivity) and sensitivity >= 0.0):
        raise errors.invalid("sensitivity", sensitivity, "a finite number >= 0")
    if not (math.isfinite(epsilon) and epsilon > 0.0):
        raise errors.invalid("epsilon", epsilon, "a finite number > 0")
    array = np.array(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise errors.DataError("values hold NaN or infinity: such a value has no bounded sensitivity. Clip it first.")
    return array + norm_gamma(array.shape, scale=sensitivity / epsilon, noise=noise)
