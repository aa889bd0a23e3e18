"""Records that stay where they are until a step draws them: file-backed arrays and map-style datasets.

A :class:`Stored` stands in a :class:`~dpml.data.private_data.Records` in place of X.  A step of ``dp_sgd`` draws
indexes from *all* stored records and then takes their rows; a record that cannot be used (NaN, infinity, unknown label,
another shape, an item that raises) is left out **after** it was drawn.  That is a contribution of zero, decided record
by record, and the number of records that sampling sees does not depend on which of them can be used.  (Leaving them
out before Poisson coins are drawn, as data held in memory do, gives the same law: every usable record has its own
coin.  For batches of fixed size it would not, since the others would be drawn more often.)
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import DataError

PIECE_BYTES = 1 << 24  # of stored rows held at once on the way through all of them
PIECE_ROWS = 128  # rows gathered from a file before its pages are handed back: each may bring dozens of pages along


class Stored(ABC):
    """Records that are read as they are drawn.  **Private**, their number included.

    Attributes:
        row_shape, row_dtype: public shape and type of one row.
        target_shape, target_dtype: the same of one target: int64 for class indexes, float64 for a regression.
        workers: processes that a reader may use; 0 reads in this one.
    """

    row_shape: tuple[int, ...]
    row_dtype: np.dtype[Any] = np.dtype(np.float64)
    target_shape: tuple[int, ...] = ()
    target_dtype: np.dtype[Any]
    workers: int = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(private)"

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """The usable ones of the records ``index`` (B,) int64: rows (m, *row_shape), targets (m,), B − m."""

    @abstractmethod
    def blocks(self) -> Iterator[bytes | memoryview]:
        """All that the records hold, piece by piece: what a fingerprint is made of."""


class StoredArray(Stored):
    """Rows of an array, a file-backed one say, with targets in memory.

    Args:
        X: (n, ...) numbers of any type; only drawn rows are read.
        targets: (n,) as the losses take them.
        known: (n,) bool, False where the target cannot be used.
        encode: rows as stored → (rows (B, *row_shape) float64, which are finite (B,) bool).
    """

    def __init__(
        self,
        X: np.ndarray,
        targets: np.ndarray,
        known: np.ndarray,
        row_shape: tuple[int, ...],
        encode: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    ) -> None:
        self.X, self.targets, self.known = X, targets, known
        self.row_shape, self.target_dtype, self._encode = row_shape, targets.dtype, encode

    def __len__(self) -> int:
        return len(self.X)

    def take(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        rows, finite = self._encode(gather(self.X, index))
        keep = finite & self.known[index]
        if keep.all():
            return rows, self.targets[index], 0
        return rows[keep], self.targets[index][keep], int((~keep).sum())

    def blocks(self) -> Iterator[bytes | memoryview]:
        yield f"{self.X.shape} {self.X.dtype.str}".encode()
        for piece in pieces(self.X):
            yield np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
        yield self.targets.tobytes()
        yield self.known.tobytes()


class StoredItems(Stored):
    """Items of a map-style dataset, read one by one when they are drawn.

    Args:
        read: ``read(index)`` → (rows (m, *row_shape), targets (m,)) of the usable items among ``index``; it does not
            raise for what an item holds.
    """

    def __init__(
        self,
        dataset: Any,
        row_shape: tuple[int, ...],
        target_dtype: np.dtype[Any],
        read: Callable[[Any, np.ndarray], tuple[np.ndarray, np.ndarray]],
        workers: int = 0,
    ) -> None:
        self.dataset, self.row_shape, self.target_dtype = dataset, row_shape, target_dtype
        self.workers, self._read = workers, read

    def __len__(self) -> int:
        return length_of(self.dataset)

    def take(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        rows, targets = self._read(self.dataset, index)
        return rows, targets, len(index) - len(rows)

    def blocks(self) -> Iterator[bytes | memoryview]:
        yield f"{len(self)} {self.row_shape}".encode()
        step = max(1, PIECE_BYTES // (8 * max(1, int(np.prod(self.row_shape)))))
        for start in range(0, len(self), step):
            rows, targets, left_out = self.take(np.arange(start, min(start + step, len(self))))
            yield f"{start} {left_out}".encode()
            yield np.ascontiguousarray(rows).tobytes()
            yield targets.tobytes()


def length_of(dataset: Any) -> int:
    """``len(dataset)``.  **Private.**

    Raises:
        DataError: ``__len__`` raises, or gives no whole number from 0 to 2^63 - 1.
    """
    try:
        return len(dataset)
    except MemoryError:  # of the machine
        raise
    except Exception as error:
        raise DataError(
            f"dataset ({type(dataset).__name__}): len(dataset) raises {type(error).__name__}; __len__ must return the "
            "number of records, a whole number from 0 to 2^63 - 1. Wrap the dataset in a class that knows its length."
        ) from error


# ------------------------------------------------------------------------------------------ file-backed arrays


def mapping_of(array: Any) -> np.memmap[Any, Any] | None:
    """The ``np.memmap`` that holds the numbers of ``array`` (itself, or what it is a view of), else ``None``."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap) and getattr(array, "_mmap", None) is not None:  # a copy of one has none
            return array
        array = array.base
    return None


def gather(array: np.ndarray, index: np.ndarray) -> np.ndarray:
    """A copy of the rows ``index`` (B,), whose values are best in increasing order; never more than these in memory."""
    mapping = mapping_of(array)
    plain = array.view(np.ndarray)
    if mapping is None:
        return plain[index]
    _advise(mapping, "MADV_RANDOM")  # else each row read from a disk brings its neighbourhood along
    rows = np.empty((len(index), *array.shape[1:]), dtype=array.dtype)
    step = max(1, min(PIECE_ROWS, PIECE_BYTES // _row_bytes(array)))
    for start in range(0, len(index), step):
        rows[start : start + step] = plain[index[start : start + step]]
        hand_back(mapping)
    return rows


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """``array`` from the first to the last row, in pieces of a bounded size; file pages are handed back after each."""
    mapping = mapping_of(array)
    plain = array.view(np.ndarray)
    if mapping is not None:
        _advise(mapping, "MADV_NORMAL")
    step = max(1, PIECE_BYTES // _row_bytes(array))
    for start in range(0, len(array), step):
        yield plain[start : start + step]
        if mapping is not None:
            hand_back(mapping)


def hand_back(mapping: np.memmap[Any, Any]) -> None:
    """Take the pages of a mapped file out of this process, which would else grow to the file's size.

    They stay in the system's cache, and nothing is lost: a mapping shared with the file keeps what was written.  A
    private one (mode ``"c"``) would lose it and is left alone; so is everything where the system has no ``madvise``.
    """
    if mapping.mode in ("r", "r+", "w+"):
        _advise(mapping, "MADV_DONTNEED")


def _advise(mapping: np.memmap[Any, Any], advice: str) -> None:
    handle, number = getattr(mapping, "_mmap", None), getattr(mmap, advice, None)
    if isinstance(handle, mmap.mmap) and number is not None:
        handle.madvise(number)


def _row_bytes(array: np.ndarray) -> int:
    return max(1, array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64)))
