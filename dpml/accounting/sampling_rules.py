"""What may be sampled, repeated or seen by a group, and what a sample is charged as where it is not amplified."""

from __future__ import annotations

from dataclasses import replace

from dpml.accounting.events import (
    REPLACE_ONE,
    Composed,
    Event,
    Group,
    ObjectivePerturbation,
    PoissonSampled,
    RepeatAndSelect,
    SampledWithoutReplacement,
    SelfComposed,
    event_name,
)
from dpml.errors import UnsupportedEventError


def check_sampling(accountant: str, atom: Event, relation: str) -> None:
    """Refuses what has no proof under any accountant.

    A sample of fixed size under add_remove: its size or the number of records would have to be private.  Objective
    perturbation on a sample: its proof is for one release on the whole table, and bounds the loss without a pair.
    """
    _check(accountant, atom, atom, relation, inside=False)


def _check(accountant: str, atom: Event, event: Event, relation: str, *, inside: bool) -> None:
    if isinstance(event, SampledWithoutReplacement) and relation != REPLACE_ONE:
        raise UnsupportedEventError(
            f"accountant {accountant!r} cannot bound event {event_name(atom)!r} under {relation}: a sample of fixed "
            "size is only defined for a public number of records; use neighboring_relation='replace_one', or sample by "
            "Poisson."
        )
    if isinstance(event, ObjectivePerturbation) and inside:
        raise UnsupportedEventError(
            f"accountant {accountant!r} cannot bound event {event_name(atom)!r} under {relation}: "
            "objective_perturbation on a sample has no proof; release it on the whole table."
        )
    # a selection needs Rényi bounds in both directions, which the bound on the loss gives; a sample needs a pair
    inside = inside or isinstance(event, PoissonSampled | SampledWithoutReplacement)
    for part in parts(event):
        _check(accountant, atom, part, relation, inside=inside)


def parts(event: Event) -> tuple[Event, ...]:
    """The events directly inside ``event``."""
    if isinstance(event, Composed):
        return event.events
    if isinstance(event, PoissonSampled | SampledWithoutReplacement | RepeatAndSelect | Group | SelfComposed):
        return (event.event,)
    return ()


def unsampled(atom: Event) -> Event | None:
    """The event whose every jointly quasi-convex divergence bounds that of ``atom``; None where there is none.

    Given the coins of the sampling, a neighbour's release differs as without sampling or not at all (for a group: by
    the members that are in the sample); a mixture over the coins is no farther apart.  A group that sees a selection
    is a selection from what the group sees (only the pair of single runs enters).
    """
    if isinstance(atom, PoissonSampled | SampledWithoutReplacement):
        return atom.event
    if isinstance(atom, Group) and isinstance(atom.event, PoissonSampled | SampledWithoutReplacement):
        return Group(atom.event.event, atom.size)
    if isinstance(atom, Group) and isinstance(atom.event, RepeatAndSelect):
        return replace(atom.event, event=Group(atom.event.event, atom.size))
    return None
