"""Feature rows on disk, so that they are computed once.  **The folder is as private as the images.**

A file holds the rows of one file of images.  Its name is a digest of where that file is, its size and time of change,
and of everything that decides the features; beside it stands a small JSON file with the shape and a checksum.  Both are
written under another name first and then moved.  Rows that do not fit their checksum are computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError, invalid
from ...results import write_atomic

OFF = "off"
_BLOCK = 1 << 24  # bytes of a file looked at at a time


def cache_folder(cache: str | Path | None) -> Path | None:
    """Where rows are kept: a folder of one's own, ``None`` for ``"off"``; by default ``~/.cache/dpml/features``.

    It is made with mode 0700 (``XDG_CACHE_HOME`` is obeyed).

    Raises:
        ConfigError: it is no folder, or others than its owner can enter it.
        DataError: it cannot be made.
    """
    if cache in (OFF, "False"):  # YAML reads an unquoted off as false
        return None
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(home) / "dpml" / "features" if cache is None else Path(cache)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = folder.stat().st_mode
    except FileExistsError as error:
        raise invalid("data.cache", str(folder), "a folder, or 'off'") from error
    except OSError as error:
        raise DataError(
            f"data.cache = {str(folder)!r} cannot be made ({error.strerror}). Choose another folder, or data.cache=off."
        ) from error
    if mode & 0o077:
        raise invalid(
            "data.cache", str(folder), "a folder that only its owner can enter: features are as private as the images",
            f"Run chmod 700 {folder}, or choose another.",
        )  # fmt: skip
    return folder


def source_key(path: Path) -> dict[str, Any]:
    """What tells one file, as it is now, from another: path, size, time of change.  Private, as the file is.

    Raises:
        DataError: it is not there any more.
    """
    try:
        found = path.resolve().stat()
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read ({error.strerror}).") from error
    return {"path": str(path.resolve()), "size": found.st_size, "mtime_ns": found.st_mtime_ns}


def cached_rows(
    folder: Path | None, key: Mapping[str, Any], shape: tuple[int, int], compute: Callable[[np.ndarray], object]
) -> np.ndarray:
    """Rows ``shape`` float32 from the cache, or from ``compute``, which fills an array of that shape.

    Raises:
        DataError: the rows cannot be written (a full disk, say).
    """
    if folder is None:
        rows = np.empty(shape, dtype=np.float32)
        compute(rows)
        return rows
    text = json.dumps(dict(key), sort_keys=True)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.npy"
    kept = read_rows(path, shape)
    if kept is not None:
        return kept
    temporary = folder / f".{path.stem}.{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "r+b"):
            pass
        rows = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=shape)
        if hasattr(os, "posix_fallocate"):  # a full disk is an error now, and would be a signal later
            with open(temporary, "r+b") as whole:
                os.posix_fallocate(whole.fileno(), 0, temporary.stat().st_size)
        compute(rows)
        rows.flush()
        description = {"shape": list(shape), "crc32": checksum(rows), "key": dict(key)}
        del rows
        os.replace(temporary, path)
        write_atomic(path.with_suffix(".json"), json.dumps(description, indent=1) + "\n")
        path.with_suffix(".json").chmod(0o600)
    except OSError as error:
        raise DataError(
            f"the features cannot be kept in data.cache = {str(folder)!r} ({error.strerror or type(error).__name__}). "
            "Free space, choose another folder, or use data.cache=off."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return np.load(path, mmap_mode="r", allow_pickle=False)


def read_rows(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """The rows of a cache file, mapped; ``None`` where there are none or they are not what was written."""
    try:
        description = json.loads(path.with_suffix(".json").read_text("utf-8"))
        rows: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        whole = rows.shape == shape and rows.dtype == np.float32 and description["crc32"] == checksum(rows)
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None
    return rows if whole else None


def checksum(rows: np.ndarray) -> int:
    """CRC-32 of the values: it finds damage, not a forger (who could change the images themselves)."""
    flat = rows.reshape(-1).view(np.uint8)
    found = 0
    for start in range(0, len(flat), _BLOCK):
        found = zlib.crc32(flat[start : start + _BLOCK].data, found)
    return found
