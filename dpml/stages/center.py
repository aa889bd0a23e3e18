"""The mean of image features, with charged Gaussian noise: what rows are moved by before they are brought to norm 1.

Rows have norm at most 1, so one record moves their sum by at most 1 (add_remove) or 2 (replace_one).  For the sum to be
that sum exactly, in whatever order and beside whatever others, values are cut to whole multiples of 2^-24 towards 0,
which makes no row longer; the sum of up to 2^29 of them is exact in float64.  The noise is the exact one of
:class:`~dpml.mechanisms.gaussian.GaussianMechanism`, calibrated to (ε_s, δ_s) and charged as the Gaussian event that it
is.  The centre is the noisy sum over the *declared* number of records.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpml.accounting import Event
from dpml.accounting.checks import REPLACE_ONE
from dpml.data.images.rows import encoded_center
from dpml.mechanisms import GaussianMechanism, NoiseSource

STEP = 2.0**-24
PIECE = 1000


@dataclass(frozen=True)
class CenterFinder:
    """A noisy mean of rows (n, ``dimension``) of norm at most 1, (ε, δ)-DP under ``neighboring_relation``.

    Args:
        dimension: d, the length of a row without its constant.
        n_declared: what the sum is divided by.
        epsilon, delta: what the noise is calibrated to (Balle & Wang 2018, theorem 8).

    Raises:
        ConfigError: ε or δ out of the range of the noise.
    """

    dimension: int
    n_declared: int
    epsilon: float
    delta: float
    neighboring_relation: str

    def __post_init__(self) -> None:
        _ = self.mechanism

    @cached_property
    def mechanism(self) -> GaussianMechanism:
        """The noise on the sum: L2 sensitivity 1 under add_remove, 2 under replace_one."""
        changed = 2.0 if self.neighboring_relation == REPLACE_ONE else 1.0
        return GaussianMechanism(changed, epsilon=self.epsilon, delta=self.delta, dimension=self.dimension)

    @property
    def event(self) -> Event:
        """What to charge before :meth:`release`."""
        return self.mechanism.event_under(self.neighboring_relation)

    def total(self, rows: np.ndarray) -> np.ndarray:
        """The exact sum (d,) of the cut rows; **private**."""
        found = np.zeros(self.dimension)
        for start in range(0, len(rows), PIECE):
            found += np.trunc(np.asarray(rows[start : start + PIECE], dtype=np.float64) / STEP).sum(axis=0)
        return found * STEP

    def release(self, rows: np.ndarray, noise: NoiseSource) -> dict[str, Any]:
        """The noisy mean as text under ``values``, and the standard deviation of its noise in each coordinate."""
        noisy = self.mechanism.release(self.total(rows), noise).value
        return {
            "values": encoded_center(noisy / self.n_declared),
            "dimension": self.dimension,
            "noise_std": self.mechanism.noise_std / self.n_declared,
        }
