"""Inputs that somebody might hand over: valid documents with something changed in them, and a search over them.

A property is searched with a few hundred inputs in every run and with 10,000 in the nightly one (``pytest -m slow
tests/fuzz``).  The draws are the same each time (the profile of ``conftest.py``).
"""

from __future__ import annotations

import copy
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NIGHTLY = 10_000
HANG = 120.0
"""Seconds for one input.  No measurement: what takes that long does not end."""


TRIED: Counter[str] = Counter()
"""What the current test tried; printed by ``tests/fuzz/conftest.py``."""


def survived(kind: str) -> None:
    """One fault more that did no harm; ``kind`` is ``"disk"`` or ``"kills"``."""
    TRIED[kind] += 1


def examples(quick: int, nightly: int = NIGHTLY) -> Any:
    """Parametrise a test by the number of inputs: few in every run, many in the nightly one."""
    return pytest.mark.parametrize("inputs", [quick, pytest.param(nightly, marks=pytest.mark.slow)])


def search(inputs: int, body: Callable[..., None], *strategies: st.SearchStrategy[Any]) -> None:
    """Run ``body`` on so many inputs; the smallest one that fails is shown."""

    def guarded(drawn: tuple[Any, ...]) -> None:
        TRIED["inputs"] += 1
        with must_end():
            body(*drawn)

    guarded.__name__ = guarded.__qualname__ = body.__name__
    checks = list(HealthCheck)
    settings(max_examples=inputs, deadline=None, suppress_health_check=checks)(given(st.tuples(*strategies))(guarded))()


@contextmanager
def must_end() -> Iterator[None]:
    """AssertionError in a body that hangs."""

    def hangs(*_: Any) -> None:
        raise AssertionError(f"still running after {HANG:g} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, HANG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def nested(depth: int, inner: Any = 0, key: str | None = None) -> Any:
    """Lists in lists, or objects in objects under ``key``."""
    for _ in range(depth):
        inner = [inner] if key is None else {key: inner}
    return inner


STRANGE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 10**15, 10**16, 2**63, -(2**63) - 1, 10**400, -(10**400), 0.0, -0.0, 0.5, 1.5, -2.5,
    1e-300, 5e-324, 1e308, -1e308, float("inf"), float("-inf"), float("nan"), "", " ", "0", "1e-5", "nan", "auto",
    "private", "discover", "\x00", "\ud800", "é" * 300, "x" * 100_000, [], {}, [0], [1, 0], [0, 1], ["a", "a"], [[]],
    [None], {"type": "gaussian"}, {"kind": "ignore"}, {"": {}}, nested(40), nested(40, {}, "event"),
]  # fmt: skip
"""Values that nobody expects: of the wrong type, beyond a range, on an edge, long, deep."""


def strange() -> st.SearchStrategy[Any]:
    """One of :data:`STRANGE`, or any small JSON value."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    small = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner,
                         max_size=3), max_leaves=6)  # fmt: skip
    return st.sampled_from(STRANGE).map(copy.deepcopy) | small


def places(document: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value in a JSON document."""
    found = [here]
    items: Any = []
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list):
        items = enumerate(document)
    for key, value in items:
        found += places(value, (*here, key))
    return found


@st.composite
def changed(draw: st.DrawFn, documents: list[Any]) -> Any:
    """One of the valid documents with one to three of its values replaced, left out, added or renamed."""
    document = copy.deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, 3))):
        way = draw(st.sampled_from(places(document)))
        action = draw(st.sampled_from(["replace", "replace", "leave out", "add", "rename"]))
        if not way:
            if action == "replace" and draw(st.integers(0, 9)) == 0:
                return draw(strange())
            continue
        owner = document
        for key in way[:-1]:
            owner = owner[key]
        last = way[-1]
        if action == "replace":
            owner[last] = draw(strange())
        elif action == "leave out":
            del owner[last]
        elif action == "add":
            if isinstance(owner, dict):
                owner[draw(st.sampled_from(["x", "kind", "type", "bounds", "event", "count", ""]))] = draw(strange())
            else:
                owner.append(draw(strange()))
        elif isinstance(owner, dict):
            owner[draw(st.text(max_size=6))] = owner.pop(last)
    return document


@st.composite
def mutilated(draw: st.DrawFn, texts: list[bytes]) -> bytes:
    """One of the texts with one to four pieces cut out, doubled, overwritten, inserted or torn off."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 4))):
        if not text:
            break
        at = draw(st.integers(0, len(text) - 1))
        length = draw(st.integers(1, 40))
        piece = draw(st.binary(min_size=1, max_size=8) | st.sampled_from(PIECES))
        text = {
            "cut": text[:at] + text[at + length :],
            "double": text[: at + length] + text[at : at + length] + text[at + length :],
            "overwrite": text[:at] + piece + text[at + len(piece) :],
            "insert": text[:at] + piece + text[at:],
            "tear": text[:at],
        }[draw(st.sampled_from(["cut", "double", "overwrite", "insert", "tear"]))]
    return text


PIECES = [
    b"\n", b"\r", b"\x00", b'"', b",", b"{", b"}", b"[" * 3000, b'{"event":' * 3000, b"NaN", b"Infinity",
    b"-1", b"1e999",
    b"1e-999", b"9" * 5000, b"\xff\xfe", b"\xef\xbb\xbf", b"\\ud800", b"null",
]  # fmt: skip


def as_json(document: Any) -> bytes:
    """The document as Python writes it, NaN and Infinity included."""
    return json.dumps(document, ensure_ascii=True).encode()
