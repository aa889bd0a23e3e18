"""ε as a function of the step, for the accountants that a report draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from dpml.accounting import api, composition, exact, zcdp
from dpml.accounting.checks import ADD_REMOVE, check_count, check_list, check_number, check_relation, shown
from dpml.accounting.events import Event, PoissonSampled, check_event
from dpml.accounting.normal_form import flatten
from dpml.errors import UnsupportedEventError, invalid
from dpml.results import Trajectory


def trajectory(
    event_at: Callable[[int], Event],
    steps: Sequence[int],
    delta: float,
    *,
    neighboring_relation: str = ADD_REMOVE,
) -> Trajectory:
    """ε(δ) after each of ``steps`` (increasing, ≥ 0) for ``best``, ``rdp`` and ``zcdp``.

    ``event_at(t)`` is everything charged up to and including step t.  A series is None where its accountant refuses
    the event, with the reason in ``notes``; ``best`` is made non-decreasing (ε after t steps is at most ε after more).
    """
    if not callable(event_at):
        raise invalid("event_at", shown(event_at), "a function from a step to an event")
    allowed = "increasing integers >= 0, at least one"
    counts = [check_count("steps", step) for step in check_list("steps", steps, allowed)]
    if not counts or any(b <= a for a, b in pairwise(counts)):
        raise invalid("steps", shown(counts), allowed)
    delta = check_number("delta", delta, 0.0, 1.0, below=True)
    check_relation(neighboring_relation)
    events = [check_event(f"event_at({step})", event_at(step)) for step in counts]
    notes: dict[str, str] = {}
    series: dict[str, tuple[float, ...] | None] = {}
    for name in ("best", "rdp", "zcdp"):
        try:
            values = _series(events, delta, name, neighboring_relation)
        except UnsupportedEventError as error:
            series[name], notes[name] = None, str(error)
            continue
        for index in range(len(values) - 2, -1, -1):
            values[index] = min(values[index], values[index + 1])
        series[name] = tuple(values)
    if series["zcdp"] is not None and any(isinstance(atom, PoissonSampled) for atom in flatten(events[-1])):
        notes["zcdp"] = zcdp.SAMPLING_NOTE
    return Trajectory(delta, tuple(counts), series["best"], series["rdp"], series["zcdp"], notes)


def _series(events: list[Event], delta: float, name: str, relation: str) -> list[float]:
    """ε of each event; the exact accountant shares its work between neighbours."""
    if name == "best" and delta > 0:
        try:
            shared = exact.epsilons(events, delta, relation)
        except UnsupportedEventError:
            shared = None
        if shared is not None:
            return [
                min(float(value), composition.pure_epsilon(event, relation))
                for value, event in zip(shared, events, strict=True)
            ]
    return [api.epsilon(event, delta, accountant=name, neighboring_relation=relation) for event in events]
