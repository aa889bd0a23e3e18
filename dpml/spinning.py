"""Idle threads of torch go to sleep soon: what a command sets before torch is imported; no torch is needed for it.

torch on Linux shares an operation between threads of GNU's OpenMP library.  Between two operations they wait for work
by spinning, 300,000 turns each: 5 to 15 ms of a processor, which a step of DP-SGD never leaves them.  Meanwhile the
thread that draws half of the noise, or another process of the machine, gets half of that processor.  10,000 turns (0.2
to 0.5 ms) still bridge the pauses between two operations.  The library reads its environment when it is loaded.
"""

from __future__ import annotations

import os

TURNS = 10_000
MOST_TURNS = 30_000  # that :func:`idle_threads_sleep` calls soon


def sleep_soon() -> None:
    """Set ``GOMP_SPINCOUNT`` for this process and its children, unless the user has said how threads wait."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(TURNS))


def idle_threads_sleep() -> bool:
    """Whether the environment says so: then a second thread beside torch's has a processor to run on."""
    turns = os.environ.get("GOMP_SPINCOUNT", "").strip()
    if turns.isdecimal():
        return int(turns) <= MOST_TURNS
    return os.environ.get("OMP_WAIT_POLICY", "").strip().lower() == "passive"
