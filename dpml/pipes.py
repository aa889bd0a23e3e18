"""Standard output into a pipe whose reader (``head``, say) has seen enough: no error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """What is printed inside is flushed; where nobody reads on, the rest of it is dropped and the work goes on."""
    try:
        yield
        if sys.stdout is not None:  # closed from the start
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
