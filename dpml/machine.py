"""Whose fault an error is: a record's, which must not stop a run, or the machine's or its user's, which may.

If an error that a record causes ended the run, everybody could see that the record is there.  So whatever a model, a
loss, a data set or a cell raises counts as the record's, whatever its class (a panic in a library written in Rust is no
``Exception``), and the record contributes nothing, except for what cannot be one's: somebody stops the run, or the
machine has no memory left.  A record can ask for 10^15 numbers (a token as a size, say), or take memory bit by bit
until there is none: what it held is let go, and then the machine is asked for a little memory of its own.
"""

from __future__ import annotations

import traceback

LITTLE = 1 << 26  # bytes: far more than a record of ordinary size needs at once


class Stopped(SystemExit):
    """Somebody ended the process by a signal: never a record's doing, as another SystemExit may be."""


def is_short_of_memory() -> bool:
    """Whether the process cannot get :data:`LITTLE` bytes; nothing of a record is in the answer."""
    try:
        bytearray(LITTLE)
    except MemoryError:
        return True
    return False


def refuse_unless_a_records(error: BaseException) -> None:
    """Raise ``error`` again if it is not a record's."""
    if isinstance(error, KeyboardInterrupt | GeneratorExit | Stopped):
        raise error
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        let_go(error)
        if is_short_of_memory():
            raise error


def let_go(error: BaseException) -> None:
    """Empty the frames that have ended on the way of ``error`` and of those that it came from: what a record took there
    is not the machine's lack."""
    seen: set[int] = set()
    left = [error]
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            left += [other for other in (one.__context__, one.__cause__) if other is not None]
