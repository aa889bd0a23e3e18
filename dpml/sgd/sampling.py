"""Poisson sampling: every record flips its own secret coin in every step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpml import errors
from dpml.mechanisms import NoiseSource


def poisson_indices(noise: NoiseSource, n: int, sample_rate: float) -> NDArray[np.int64]:
    """Indices (int64, increasing) of the records that take part in one step.

    Each of the ``n`` records (the actual number, private) is in the batch with probability ``sample_rate``,
    independently of the others and of earlier steps, so the batch's size is random and may be 0.  This is the sampling
    that ``PoissonSampled`` events are accounted for; batches of fixed size or a shuffled epoch are not.
    """
    if n < 0:
        raise errors.invalid("n", n, ">= 0")
    if not 0.0 <= sample_rate <= 1.0:
        raise errors.invalid("sample_rate", sample_rate, "a probability in [0, 1]")
    return np.flatnonzero(noise.uniform(n) < sample_rate).astype(np.int64)  # uniform < 1, so a rate of 1 takes everyone
