"""The global random generators (Python's, numpy's, torch's) while dpml runs a model: never the caller's state.

Dropout draws its masks from them, position by position in a batch.  The proof of a step gives every record a mask of
its own, independent of who else is there: that is so for masks that nobody knows, since they are then alike in law
wherever a record stands.  With a seed that is known (``torch.manual_seed(0)`` in a script) one record more would move
everybody's masks, and the sum by many times C.  So a run seeds the generators from the operating system.  They are no
ciphers: that their masks cannot be told from truly random ones is assumed.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_WORDS, _HEAD = 624, 24  # of the twister's state as torch saves it: seed, position and flags before the words


@contextmanager
def own_random_numbers(device: torch.device, *, unknown: bool = False) -> Iterator[None]:
    """The caller's generators are as before afterwards; inside, torch's is seeded by 0, or all by nobody knows what."""
    python, array = random.getstate(), np.random.get_state()  # noqa: NPY002 (the global one is what is kept)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            torch.manual_seed(0)
            if unknown:
                torch.manual_seed(secrets.randbits(63))  # of CUDA's all bits count, of the CPU's 32: the state has more
                torch.set_rng_state(_with_secret_words(torch.get_rng_state()))
                random.seed(secrets.randbits(128))
                np.random.seed(secrets.randbits(32))  # noqa: NPY002
            yield
        finally:
            random.setstate(python)
            np.random.set_state(array)  # noqa: NPY002


def _with_secret_words(state: torch.Tensor) -> torch.Tensor:
    """The state of torch's Mersenne twister (624 words of 32 bits, each in 64) with words of the operating system."""
    words = np.frombuffer(secrets.token_bytes(4 * _WORDS), dtype=np.uint32).astype(np.uint64)
    found = state.clone()
    place = slice(_HEAD, _HEAD + 8 * _WORDS)
    if len(found) < _HEAD + 8 * _WORDS or bool((found[place].view(_WORDS, 8)[:, 4:] != 0).any()):
        return state  # another layout than the one known: the seed's 32 bits have to do
    found[place] = torch.from_numpy(words.view(np.uint8))
    return found
