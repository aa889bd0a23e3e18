"""Noisy frequencies of the classes among the training records: exact discrete Laplace noise on every count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpml.accounting import Event
from dpml.accounting.checks import REPLACE_ONE
from dpml.mechanisms import DiscreteLaplaceMechanism, NoiseSource

BETA = 0.05


@dataclass(frozen=True)
class LabelCounter:
    """Noisy counts of ``n_classes`` classes, ε-DP.

    One record is in one class at most: L1 sensitivity 1 under add_remove, 2 under replace_one.
    """

    n_classes: int
    epsilon: float
    neighboring_relation: str

    def __post_init__(self) -> None:
        _ = self.mechanism

    @cached_property
    def mechanism(self) -> DiscreteLaplaceMechanism:
        """The noise on the counts."""
        changed = 2 if self.neighboring_relation == REPLACE_ONE else 1
        return DiscreteLaplaceMechanism(changed, self.epsilon, dimension=self.n_classes)

    @property
    def event(self) -> Event:
        """What to charge before :meth:`release`."""
        return self.mechanism.event

    def release(self, labels: np.ndarray, classes: Sequence[Any], noise: NoiseSource) -> dict[str, Any]:
        """Noisy counts and frequencies of class indexes (n,), in the order of ``classes``.

        ``error``: all counts together are within it with probability 0.95.  Frequencies are those of the counts with
        negative ones as 0, all equal where nothing is left.
        """
        counts = np.bincount(labels, minlength=self.n_classes)
        noisy = self.mechanism.release(counts, noise).value
        held = np.maximum(noisy, 0)
        total = int(held.sum())
        shares = held / total if total else np.full(self.n_classes, 1.0 / self.n_classes)
        return {
            "classes": list(classes),
            "counts": [int(count) for count in noisy],
            "frequencies": [float(share) for share in shares],
            "error": self.mechanism.error(BETA),
            "confidence": 1.0 - BETA,
        }
