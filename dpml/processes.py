"""What ``torchrun`` says of the processes of a run: how many, which one this is; no torch is needed for it."""

from __future__ import annotations

import math
import os

from dpml import errors

TIMEOUT_VARIABLE = "DPML_PROCESS_TIMEOUT"
TIMEOUT = 300.0
"""Seconds that one process waits for another before it gives up."""


def world_size() -> int:
    """Processes of this run: ``WORLD_SIZE``, which ``torchrun`` sets, or 1.

    Raises:
        ConfigError: it is set to something else than a whole number >= 1.
    """
    return _whole("WORLD_SIZE", 1, 1)


def rank() -> int:
    """Which of them this is, from 0."""
    return _whole("RANK", 0, 0)


def local_rank() -> int:
    """Which of those on this machine this is, from 0: the number of its CUDA device."""
    return _whole("LOCAL_RANK", 0, 0)


def timeout_seconds() -> float:
    """``DPML_PROCESS_TIMEOUT`` in seconds, or five minutes.

    Raises:
        ConfigError: no number of seconds from 1 to 86400.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    if not text:
        return TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 1.0 <= seconds <= 86400.0:
        raise errors.invalid(TIMEOUT_VARIABLE, text, "a number of seconds from 1 to 86400")
    return seconds


def refuse_fixed_size(sampling: str) -> None:
    """ConfigError for ``sampling="fixed_size"``; called where there are several processes."""
    if sampling == "fixed_size":
        raise errors.invalid(
            "sampling",
            sampling,
            "'poisson' with several processes: a sample of fixed size is drawn from all records at once",
            "Use sampling='poisson', or one process.",
        )


def refuse_several(what: str, way_out: str) -> None:
    """ConfigError, naming ``what``, where torchrun started more than one process."""
    if world_size() > 1:
        raise errors.ConfigError(
            f"{what} cannot use several processes (WORLD_SIZE = {world_size()} in the environment). {way_out}"
        )


def launcher() -> list[str]:
    """The words of a command line that start the processes of this run."""
    if world_size() == 1:
        return ["python"]
    local = _whole("LOCAL_WORLD_SIZE", world_size(), 1)
    machines = [] if local >= world_size() else [f"--nnodes={math.ceil(world_size() / local)}"]
    return ["torchrun", *machines, f"--nproc_per_node={local}"]


def _whole(name: str, default: int, least: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise errors.invalid(name, text, f"a whole number >= {least}", "Let torchrun set it, or unset it.")
    return int(text)
