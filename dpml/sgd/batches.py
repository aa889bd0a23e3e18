"""What the engine draws batches from: tensors, arrays in memory or in a file, stored records, map-style datasets.

:func:`as_rows` makes one of whatever holds the records.  ``take`` gives the drawn records in the model's dtype and on
its device.  Which records are drawn, and in which order, is secret: it stands in no message and no log line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from dpml import errors
from dpml.data.stored import Stored, gather, length_of, mapping_of, pieces
from dpml.errors import ConfigError, DataError
from dpml.sgd.per_example import refuse_device_error
from dpml.sgd.randomness import seed_secretly
from dpml.sgd.tensors import as_inputs, as_targets, float_dtype

Batch = tuple[torch.Tensor, torch.Tensor]
PIECES_PER_WORKER = 2  # a batch is read in so many pieces by each worker


class Rows(ABC):
    """The records of a run.

    Attributes:
        left_out: drawn records, so far, that could not be used and so contributed nothing.  **Private.**
    """

    left_out: int = 0

    @abstractmethod
    def __len__(self) -> int:
        """The number of records, unusable ones included.  **Private.**"""

    @abstractmethod
    def take(self, index: np.ndarray) -> Batch:
        """The records ``index`` (B,) int64, increasing: X (m, …) and y (m, …) on the model's device, m ≤ B.

        Records that cannot be used are left out, which is a contribution of zero; ``left_out`` counts them.
        """

    @abstractmethod
    def zeros(self) -> Batch:
        """One record of zeros, X (1, …) and y (1, …), shaped like all others; none is read."""

    def close(self) -> None:  # noqa: B027  (nothing to end, for most)
        """End what reads in the background."""


class ArrayRows(Rows):
    """Rows (n, …) and targets (n, …) as tensors on the model's device; a batch is one gather."""

    def __init__(self, X: torch.Tensor, y: torch.Tensor) -> None:
        self._X, self._y = X, y

    def __len__(self) -> int:
        return len(self._X)

    def take(self, index: np.ndarray) -> Batch:
        if len(index) == len(self._X):
            return self._X, self._y
        picked = torch.from_numpy(index).to(self._X.device)
        return self._X.index_select(0, picked), self._y.index_select(0, picked)

    def zeros(self) -> Batch:
        return self._X.new_zeros((1, *self._X.shape[1:])), self._y.new_zeros((1, *self._y.shape[1:]))


class StoredRows(Rows):
    """Records that are read and prepared as they are drawn, in this process or by workers.

    With ``stored.workers`` > 0 a DataLoader lives as long as this object: each batch is cut into pieces, read side by
    side and put together in order.  Workers are started afresh ("spawn"), so that nothing of this process' memory, its
    noise and keys, is copied into them; they get the pickled dataset and indexes.
    """

    def __init__(self, stored: Stored, dtype: torch.dtype, device: torch.device) -> None:
        self._stored, self._device = stored, device
        self._types = _torch_type(stored.row_dtype, dtype), _torch_type(stored.target_dtype, dtype)
        self._sampler = _Handed()
        self._loader: DataLoader[Any] | None = None
        if stored.workers:
            _refuse_unpicklable(stored)
            self._loader = DataLoader(
                _Pieces(stored, self._types),
                batch_sampler=self._sampler,  # type: ignore[arg-type]
                num_workers=stored.workers,
                collate_fn=_as_it_is,
                multiprocessing_context="spawn",
                persistent_workers=True,
                generator=torch.Generator(),  # its own: the loader draws nothing from torch's global one
                worker_init_fn=seed_secretly,  # crops drawn by a known seed: one record more would move all others'
            )

    def __len__(self) -> int:
        return len(self._stored)

    def take(self, index: np.ndarray) -> Batch:
        parts = list(self._parts(index))
        self.left_out += sum(left_out for _, _, left_out in parts)
        if len(parts) == 1:
            X, y, _ = parts[0]
        else:
            X, y = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
        return X.to(self._device), y.to(self._device)

    def _parts(self, index: np.ndarray) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
        if len(index) == 0:
            yield self._empty(0)
        elif self._loader is None:
            yield _taken(self._stored, self._types, index)
        else:
            pieces = min(len(index), self._stored.workers * PIECES_PER_WORKER)
            self._sampler.pieces = np.array_split(index, pieces)
            yield from self._loader

    def _empty(self, size: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        stored, (dtype, target) = self._stored, self._types
        X = torch.zeros((size, *stored.row_shape), dtype=dtype)
        return X, torch.zeros((size, *stored.target_shape), dtype=target), 0

    def zeros(self) -> Batch:
        X, y, _ = self._empty(1)
        return X.to(self._device), y.to(self._device)

    def close(self) -> None:
        if self._loader is not None:
            iterator, self._loader = self._loader._iterator, None
            if iterator is not None:
                iterator._shutdown_workers()  # type: ignore[attr-defined]


class _Handed:
    """A batch sampler that gives the pieces it was handed; a loader asks for its length by no means."""

    def __init__(self) -> None:
        self.pieces: list[np.ndarray] = []

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.pieces)


class _Pieces(Dataset[Any]):
    """What a worker holds: whole pieces of a batch at a time."""

    def __init__(self, stored: Stored, types: tuple[torch.dtype, torch.dtype]) -> None:
        self._stored, self._types = stored, types

    def __getitem__(self, position: int) -> Any:
        return self.__getitems__(np.array([position]))

    def __getitems__(self, index: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, int]:
        return _taken(self._stored, self._types, index)


def _taken(
    stored: Stored, types: tuple[torch.dtype, torch.dtype], index: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor, int]:
    X, y, left_out = stored.take(index)
    return _tensor(X, types[0]), _tensor(y, types[1]), left_out


def _tensor(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.int64 or not values.dtype.isnative:
        values = values.astype(np.int64 if dtype == torch.int64 else np.float64)
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


def _torch_type(dtype: np.dtype[Any], model_dtype: torch.dtype) -> torch.dtype:
    """Of floats the model's, of whole numbers int64: as in :func:`dpml.sgd.tensors.as_inputs`."""
    return model_dtype if dtype.kind == "f" else torch.int64


def _as_it_is(piece: Any) -> Any:
    return piece


def _refuse_unpicklable(stored: Stored) -> None:
    import pickle

    try:
        pickle.dumps(stored)
    except Exception as error:
        raise ConfigError(
            f"workers = {stored.workers} needs a dataset that can be pickled, and this one cannot "
            f"({type(error).__name__}). Define its class and functions at the top of a module, or use workers=0."
        ) from None


class _FileRows(Stored):
    """Rows of an array in a file as they are, with targets in memory."""

    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        self._X, self._y = X, y
        self.row_shape, self.row_dtype = X.shape[1:], X.dtype
        self.target_shape, self.target_dtype = y.shape[1:], y.dtype

    def __len__(self) -> int:
        return len(self._X)

    def take(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        return gather(self._X, index), self._y[index], 0

    def blocks(self) -> Iterator[bytes | memoryview]:
        yield from (piece.tobytes() for array in (self._X, self._y) for piece in pieces(array))


class _Pairs(Stored):
    """A map-style dataset of ``(x, y)`` pairs shaped like one public example; what does not fit is left out."""

    def __init__(self, dataset: Any, x: np.ndarray, y: np.ndarray, workers: int) -> None:
        self._dataset, self.workers = dataset, workers
        self.row_shape, self.row_dtype = x.shape, x.dtype
        self.target_shape, self.target_dtype = y.shape, y.dtype

    def __len__(self) -> int:
        return length_of(self._dataset)

    def take(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        found = [pair for pair in map(self._pair, index.tolist()) if pair is not None]
        X = np.empty((len(found), *self.row_shape), self.row_dtype)
        y = np.empty((len(found), *self.target_shape), self.target_dtype)
        for position, (x, target) in enumerate(found):
            X[position], y[position] = x, target
        return X, y, len(index) - len(found)

    def _pair(self, position: int) -> tuple[np.ndarray, np.ndarray] | None:
        try:
            x, y = self._dataset[position]
            return _fitting(x, self.row_shape, self.row_dtype), _fitting(y, self.target_shape, self.target_dtype)
        except BaseException as error:  # one that stopped the run would tell that this record was drawn
            refuse_device_error(error)
            return None

    def blocks(self) -> Iterator[bytes | memoryview]:
        for pair in map(self._pair, range(len(self))):
            yield b"-" if pair is None else pair[0].tobytes() + pair[1].tobytes()


def _fitting(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """``value`` as ``dtype``; ``ValueError`` where its shape is another or it is no number of that kind."""
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if array.shape != shape or array.dtype.kind not in ("iufb" if dtype.kind == "f" else "iub"):
        raise ValueError("another shape or type")
    return array.astype(dtype)


class DatasetRows(StoredRows):
    """Rows of any map-style dataset of ``(x, y)`` pairs.

    Args:
        dataset: has ``__len__`` and ``__getitem__``.
        example: a made-up ``(x, y)`` (zeros, say) with the public shapes and types: floats become the model's dtype,
            whole numbers int64.  An item that raises or does not fit contributes nothing.
        dtype, device: of the model.
        workers: processes that read items; 0 reads in this one.

    Raises:
        ConfigError: ``workers`` is out of range, or the dataset cannot be pickled and there are workers.
        DataError: no map-style dataset.
    """

    def __init__(
        self,
        dataset: Any,
        example: tuple[Any, Any],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        workers: int = 0,
    ) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
            raise errors.invalid("workers", workers, "a whole number >= 0")
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise DataError(f"dataset is a {type(dataset).__name__}; it needs __len__ and __getitem__.")
        x, y = (np.asarray(value) for value in example)
        types = [np.dtype(np.float64 if value.dtype.kind == "f" else np.int64) for value in (x, y)]
        super().__init__(_Pairs(dataset, x.astype(types[0]), y.astype(types[1]), workers), dtype, torch.device(device))


def as_rows(
    X: Any,
    y: Any,
    model: nn.Module,
    device: torch.device,
    *,
    example: tuple[Any, Any] | None = None,
    workers: int = 0,
) -> Rows:
    """What holds the records as :class:`Rows` for ``model``; reads no record that is not in memory.

    Args:
        X, y: rows (n, …) and targets (n,) as arrays or tensors (copied once, into the model's dtype and device); an
            array in a file (``np.memmap``), whose rows are read as they are drawn; a ``Stored`` or ``Rows`` (then y is
            not used); or with y ``None`` a map-style dataset.
        example, workers: of a map-style dataset, see :class:`DatasetRows`.

    Raises:
        DataError: X is a single number, y does not fit X, or ``example`` is missing.
    """
    if isinstance(X, Rows):
        return X
    if isinstance(X, Stored):
        return StoredRows(X, float_dtype(model), device)
    if y is None:
        if example is None:
            raise DataError("y is missing. For a map-style dataset give example=(x, y), a made-up record of its shape.")
        return DatasetRows(X, example, float_dtype(model), device, workers)
    if getattr(X, "ndim", 1) < 1:
        raise DataError("X is a single number; it must hold one row per record.")
    if mapping_of(X) is not None and X.dtype.kind in "iufb":
        return StoredRows(_FileRows(X, _in_memory(y, len(X))), float_dtype(model), device)
    rows = as_inputs(_writable(X), model, device)
    if rows.ndim < 1:
        raise DataError("X is a single number; it must hold one row per record.")
    return ArrayRows(rows, as_targets(_writable(y), len(rows), model, device))


def _in_memory(y: Any, n: int) -> np.ndarray:
    targets = np.array(y.detach().cpu() if isinstance(y, torch.Tensor) else y)
    if targets.ndim == 0 or len(targets) != n:
        raise DataError(f"y has shape {targets.shape}; it must have one entry for each of the rows of X.")
    return targets


def _writable(values: Any) -> Any:
    """A copy of an array that torch could not share without a warning."""
    return np.array(values) if isinstance(values, np.ndarray) and not values.flags.writeable else values
