"""ε by accountants of other packages, for ``python -m dpml.account compare``: each in a process of its own.

Not installed, refused, crashed or too slow becomes a row that says so.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dpml import accounting as acc
from dpml.accounting.events import check_number, event_name
from dpml.accounting.normal_form import effective, flatten
from dpml.errors import UnsupportedEventError
from dpml.results import to_jsonable


@dataclass(frozen=True)
class Row:
    """One line of the comparison; ``epsilon`` None with the reason in ``note`` where there is no answer."""

    name: str
    kind: str  # accountant (a sound bound of this package), peer, approximation
    epsilon: float | None
    seconds: float | None
    note: str


PEERS = ("opacus RDP", "opacus PRV", "dp-accounting RDP", "dp-accounting PLD")


def ask_peers(event: acc.Event, delta: float, relation: str, timeout: float) -> list[Row]:
    """ε by accountants of other packages, each given ``timeout`` seconds, in a process of its own.

    A peer that is not installed, refuses the event, fails, runs out of memory or takes too long becomes a row that says
    so; the next process goes on with the peers after it.
    """
    timeout = check_number("--timeout", timeout, 0.0, 1e6, above=True)
    question = {"event": event.to_json(), "delta": delta, "neighboring_relation": relation}
    rows: list[Row] = []
    while len(rows) < len(PEERS):
        rows += _ask(question, PEERS[len(rows) :], timeout)
    return rows


def _ask(question: dict[str, Any], names: Sequence[str], timeout: float) -> list[Row]:
    """The rows of the first peers, up to one that gives no answer or to the last."""
    import queue
    import subprocess
    import threading

    script = "import sys; from dpml.account_peers import answer_as_peers; answer_as_peers(sys.stdin.read())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    lines: queue.Queue[bytes] = queue.Queue()
    assert child.stdin is not None
    assert child.stdout is not None
    stream = child.stdout

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(b"")

    reader = threading.Thread(target=read, daemon=True)
    rows: list[Row] = []
    try:
        child.stdin.write(json.dumps({**question, "names": list(names)}).encode())
        child.stdin.close()
        reader.start()
        for name in names:
            try:
                line = lines.get(timeout=timeout)
            except queue.Empty:
                return [*rows, Row(name, "peer", None, timeout, f"stopped after {timeout:g} seconds (--timeout)")]
            if not line:
                return [*rows, Row(name, "peer", None, None, "failed: its process ended (out of memory, perhaps)")]
            answer = json.loads(line)
            value = None if answer["epsilon"] is None else float(answer["epsilon"])
            rows.append(Row(name, "peer", value, answer["seconds"], answer["note"]))
        return rows
    except BrokenPipeError:
        return [*rows, Row(names[len(rows)], "peer", None, None, "failed: its process could not be started")]
    finally:
        child.kill()
        child.wait()
        if reader.ident is not None:
            reader.join()
        stream.close()


def answer_as_peers(question: str) -> None:
    """The other side of :func:`ask_peers`: one line of JSON per peer on the true standard output."""
    import warnings

    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever the packages print is none of the answer
    warnings.simplefilter("ignore")
    asked = json.loads(question)
    event, delta, relation = acc.from_json(asked["event"]), asked["delta"], asked["neighboring_relation"]
    for name in asked["names"]:
        value, seconds, note = None, None, ""
        try:
            parts = peer_parts(event, relation, name)
            load = {"opacus": _opacus, "dp-accounting": _dp_accounting}[name.split()[0]]
            compute = load(name.split()[1])
            start = time.perf_counter()
            value = float(compute(parts, delta, relation))
            seconds = time.perf_counter() - start
            if math.isnan(value):
                value, note = None, "failed: the answer is not a number"
        except ImportError as error:
            note = f"not installed ({error})"
        except UnsupportedEventError as error:
            note = f"refused: {error}"
        except Exception as error:  # anything may come out of another package: say what
            first = str(error).strip().splitlines()
            note = f"failed: {type(error).__name__}: {(first or [''])[0][:160]}"
        shown = {"epsilon": to_jsonable(value), "seconds": seconds, "note": note}
        out.write(json.dumps(shown) + "\n")
        out.flush()


Parts = list[tuple[str, float, float, int]]  # kind, noise multiplier as add_remove has it, sampling rate, count


def peer_parts(event: acc.Event, relation: str, name: str) -> Parts:
    """The event in the words of a peer; UnsupportedEventError names what it lacks."""
    parts: Parts = []
    for atom, count in flatten(event).items():
        inner = atom.event if isinstance(atom, acc.PoissonSampled) else atom
        rate = atom.sampling_probability if isinstance(atom, acc.PoissonSampled) else 1.0
        if not isinstance(inner, acc.Gaussian | acc.Laplace) or (
            isinstance(inner, acc.Laplace) and (name.startswith("opacus") or (rate < 1 and "RDP" in name))
        ):
            raise UnsupportedEventError(f"{name} has no event {event_name(atom)!r}.")
        if rate < 1 and relation != acc.ADD_REMOVE:
            raise UnsupportedEventError(f"{name} is asked about samples under add_remove only.")
        parts.append((inner.type, effective(inner.noise_multiplier, relation), rate, count))
    return parts


def _opacus(kind: str) -> Callable[[Parts, float, str], float]:
    from opacus.accountants import PRVAccountant, RDPAccountant

    def epsilon(parts: Parts, delta: float, relation: str) -> float:
        accountant = RDPAccountant() if kind == "RDP" else PRVAccountant()
        accountant.history = [(noise, rate, count) for _, noise, rate, count in parts]
        return float(accountant.get_epsilon(delta)) if parts else 0.0

    return epsilon


def _dp_accounting(kind: str) -> Callable[[Parts, float, str], float]:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    def epsilon(parts: Parts, delta: float, relation: str) -> float:
        adjacent = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        accountant = RdpAccountant(neighboring_relation=adjacent) if kind == "RDP" else PLDAccountant(adjacent)
        for mechanism, noise, rate, count in parts:
            made = dp_accounting.GaussianDpEvent if mechanism == "gaussian" else dp_accounting.LaplaceDpEvent
            event = made(noise)
            event = dp_accounting.PoissonSampledDpEvent(rate, event) if rate < 1 else event
            accountant.compose(event, count)
        return float(accountant.get_epsilon(delta))

    return epsilon
