"""The Gaussian mechanism: a value of known L2 sensitivity plus independent normal noise on every coordinate."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml import errors
from dpml.mechanisms.noise import NoiseSource


def gaussian_std(*, sensitivity: float, noise_multiplier: float) -> float:
    """Standard deviation ``noise_multiplier × sensitivity``; both finite and >= 0, else ``ConfigError``."""
    for name, value in (("sensitivity", sensitivity), ("noise_multiplier", noise_multiplier)):
        if not (math.isfinite(value) and value >= 0.0):
            raise errors.invalid(name, value, "a finite number >= 0")
    return float(sensitivity) * float(noise_multiplier)


def add_gaussian(
    values: ArrayLike, *, sensitivity: float, noise_multiplier: float, noise: NoiseSource
) -> NDArray[np.float64]:
    """``values + N(0, (noise_multiplier × sensitivity)² I)``: a new float64 array of the same shape.

    ``sensitivity`` bounds the L2 distance of ``values`` between *any* two neighbouring data sets, so the neighbouring
    relation is in it: with it the release is as private as N(0, noise_multiplier²) against N(1, noise_multiplier²)
    (Dwork & Roth 2014, appendix A; the exact profile is Balle & Wang 2018, theorem 8).
    Recording the event is the caller's business, and comes first.

    Raises:
        ConfigError: a sensitivity or multiplier that is negative or not finite.
        DataError: ``values`` hold NaN or infinity (a sum with noise would tell that they do).
    """
    std = gaussian_std(sensitivity=sensitivity, noise_multiplier=noise_multiplier)
    array = np.array(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise errors.DataError("values hold NaN or infinity: such a value has no bounded sensitivity. Clip it first.")
    return array + noise.normal(std, array.shape)
