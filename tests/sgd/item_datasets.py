"""Map-style datasets for the tests of batches; a module of its own, so that worker processes can import it."""

from __future__ import annotations

import gc
import multiprocessing

import numpy as np
import torch


def holds_noise():
    """Whether a secret noise source is in the memory of this process."""
    return any(type(thing).__name__ == "SecretNoise" for thing in gc.get_objects())


class Squares:
    """Item i: x = (i, i²), label i mod 2.  Item 3 raises, 5 has another shape, 7 is NaN, 9 no pair, 11 no class.

    In a worker process that holds noise, item 2 raises too.
    """

    FAULTY = (3, 5, 7, 9, 11)

    def __init__(self, n=20, faulty=FAULTY):
        self.n, self.faulty = n, faulty

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i == 2 and multiprocessing.parent_process() is not None and holds_noise():
            raise RuntimeError("noise in a worker")
        if i in self.faulty:
            if i == 3:
                raise OSError("the file of this record is damaged")
            return {5: (np.ones(3), 1), 7: (np.array([np.nan, 1.0]), 1), 9: 4, 11: (np.ones(2), 17)}[i]
        return torch.tensor([i, i * i], dtype=torch.float64), i % 2


class OutOfMemory:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        raise MemoryError
