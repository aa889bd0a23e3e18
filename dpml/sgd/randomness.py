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
from typing import Any, Self

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

_WORDS, _HEAD = 624, 24  # of the twister's state as torch saves it: seed, position and flags before the words


@contextmanager
def own_random_numbers(device: torch.device, *, unknown: bool = False) -> Iterator[None]:
    """The caller's generators are as before afterwards; inside, torch's is seeded by 0, or all by nobody knows what."""
    python, array = random.getstate(), np.random.get_state()  # noqa: NPY002 (the global one is what is kept)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            torch.manual_seed(0)
            if unknown:
                seed_secretly()
            yield
        finally:
            random.setstate(python)
            np.random.set_state(array)  # noqa: NPY002


def seed_secretly(worker: int = 0) -> None:
    """Seed this process' generators from the operating system; also what a reader's worker process begins with."""
    torch.manual_seed(secrets.randbits(63))  # of CUDA's all bits count, of the CPU's 32: the state has more
    torch.set_rng_state(_with_secret_words(torch.get_rng_state()))
    random.seed(secrets.randbits(128))
    np.random.seed(np.frombuffer(secrets.token_bytes(4 * _WORDS), dtype=np.uint32))  # noqa: NPY002


class Together(TorchFunctionMode):
    """Around an attempt to run several records at once: did they share random numbers, or draw from a known seed?

    Under ``vmap`` torch's own generator gives every record its own numbers, in the records' order, but numpy's and
    Python's give all of them the same, and a seed set by the model, or a generator of its own, fixes them by place: one
    record more would move all others' numbers.  Such records must be run one by one (:func:`of_one_record`).

    Attributes:
        shared: whether that was seen.  The generators are then, and after an error, as they were before.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device, self.shared = device, False

    def __enter__(self) -> Self:
        self._before, self._seed = _states(self._device), _seeds(self._device)
        super().__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        super().__exit__(kind, *rest)
        python: Any = random.getstate()
        array: Any = np.random.get_state()  # noqa: NPY002
        moved = python != self._before[0] or array[2:] != self._before[1][2:]
        self.shared |= moved or not np.array_equal(array[1], self._before[1][1]) or self._seeded
        if self.shared or kind is not None:
            _restore(self._before, self._device)

    @property
    def _seeded(self) -> bool:
        return _seeds(self._device) != self._seed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.shared = self.shared or self._seeded or has_generator(args, kwargs)
        return func(*args, **(kwargs or {}))


def has_generator(args: Any, kwargs: Any) -> bool:
    """Whether a call is given a generator of its own."""
    return any(isinstance(value, torch.Generator) for value in (*args, *(kwargs or {}).values()))


@contextmanager
def of_one_record(device: torch.device) -> Iterator[None]:
    """The generators seeded for one record by the next number of torch's: what a record does to them stays with it."""
    seed = int(torch.randint(2**63 - 1, (), device="cpu"))
    before = _states(device)
    try:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(np.array([seed % 2**32, seed >> 32], dtype=np.uint32))  # noqa: NPY002
        yield
    finally:
        _restore(before, device)


def _states(device: torch.device) -> tuple[Any, ...]:
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda  # noqa: NPY002


def _restore(states: tuple[Any, ...], device: torch.device) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])
    if states[3] is not None:
        torch.cuda.set_rng_state(states[3], device)


def _seeds(device: torch.device) -> tuple[int, int]:
    """What torch's generators were last seeded with."""
    cuda = 0
    if device.type == "cuda":
        place = torch.cuda.current_device() if device.index is None else device.index
        cuda = torch.cuda.default_generators[place].initial_seed()
    return torch.default_generator.initial_seed(), cuda


def _with_secret_words(state: torch.Tensor) -> torch.Tensor:
    """The state of torch's Mersenne twister (624 words of 32 bits, each in 64) with words of the operating system."""
    words = np.frombuffer(secrets.token_bytes(4 * _WORDS), dtype=np.uint32).astype(np.uint64)
    found = state.clone()
    place = slice(_HEAD, _HEAD + 8 * _WORDS)
    if len(found) < _HEAD + 8 * _WORDS or bool((found[place].view(_WORDS, 8)[:, 4:] != 0).any()):
        return state  # another layout than the one known: the seed's 32 bits have to do
    found[place] = torch.from_numpy(words.view(np.uint8))
    return found
