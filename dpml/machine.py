"""Whose fault a lack of memory is: the machine's, which may stop a run, or a record's, which must not.

A record can ask for 10^15 numbers (a token as a size, say).  If that ended the run, everybody could see that the record
is there.  So the machine is asked for a little memory of its own: if it has that, the record contributes nothing.
"""

from __future__ import annotations

LITTLE = 1 << 26  # bytes: far more than a record of ordinary size needs at once


def is_short_of_memory() -> bool:
    """Whether the process cannot get :data:`LITTLE` bytes; nothing of a record is in the answer."""
    try:
        bytearray(LITTLE)
    except MemoryError:
        return True
    return False


def refuse_lack_of_memory(error: BaseException) -> None:
    """Raise ``error`` again if it is a lack of memory and the machine's."""
    if (isinstance(error, MemoryError) or "allocate memory" in str(error)) and is_short_of_memory():
        raise error
