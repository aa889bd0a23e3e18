"""IDX files, the format of MNIST and its kin, gzipped or not.

Layout: two zero bytes, a type code (8: unsigned byte), the number of dimensions, one big-endian uint32 a dimension,
then the values in C order.
"""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path
from typing import IO, cast

import numpy as np

from ..errors import DataError

_UNSIGNED_BYTE = 8


def find(folder: Path, stem: str) -> Path | None:
    """``stem.gz`` or ``stem`` in ``folder``, whichever is there."""
    return next((path for path in (folder / f"{stem}.gz", folder / stem) if path.is_file()), None)


def read_shape(path: Path) -> tuple[int, ...]:
    """The shape in the header; no value is read."""
    try:
        with _open(path) as file:
            return _shape(file, path)
    except (OSError, EOFError) as error:
        raise DataError(f"The IDX file {str(path)!r} cannot be read: {error}.") from error


def read(path: Path) -> np.ndarray:
    """All values as uint8 in the header's shape.

    Raises:
        DataError: no IDX file of unsigned bytes, or not as long as its header says.
    """
    try:
        with _open(path) as file:
            shape = _shape(file, path)
            raw = file.read()
    except (OSError, EOFError) as error:
        raise DataError(f"The IDX file {str(path)!r} cannot be read: {error}.") from error
    if len(raw) != math.prod(shape):
        raise DataError(f"The IDX file {str(path)!r} is damaged: its length is not what its header says.")
    return np.frombuffer(raw, dtype=np.uint8).reshape(shape)


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else open(path, "rb")


def _shape(file: IO[bytes], path: Path) -> tuple[int, ...]:
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] != _UNSIGNED_BYTE or head[3] == 0:
        raise DataError(f"{str(path)!r} is no IDX file of unsigned bytes.")
    sizes = file.read(4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise DataError(f"The IDX file {str(path)!r} is damaged: its header is cut short.")
    return struct.unpack(f">{head[3]}I", sizes)
