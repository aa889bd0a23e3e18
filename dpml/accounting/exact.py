"""The exact accountant: the tight ε of a composition of known pairs, with a certified interval.

One release, and Gaussians together, have closed forms (``closed_forms``); everything else with a moment function is a
contour sum with a proved error bound (``contour``).  "Exact" means: no slack but rounding for the dominating pair of
each release.  A pair that stands for a whole class — the worst mechanism that an (ε, δ) statement allows, the bound on
the loss of objective perturbation — is exact for that worst case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dpml.accounting import closed_forms, contour
from dpml.accounting.events import (
    Composed,
    EpsilonDelta,
    Event,
    ExponentialMechanism,
    Gaussian,
    Group,
    Laplace,
    ObjectivePerturbation,
    PermuteAndFlip,
    PoissonSampled,
    RandomizedResponse,
    RandomRow,
    ReportNoisyMax,
    event_name,
)
from dpml.accounting.moments import moments
from dpml.accounting.normal_form import Atoms, directions, effective, flatten, merge_gaussians, normal_form
from dpml.errors import DpmlError, UnsupportedEventError

_DOWN = 1 - 4e-15
_SMALLEST_NOISE = 1e-3


def epsilon(event: Event, delta: float, neighboring_relation: str) -> float:
    """Upper end of :func:`interval`."""
    return interval(event, delta, neighboring_relation, lower=False)[1]


def interval(event: Event, delta: float, neighboring_relation: str, *, lower: bool = True) -> tuple[float, float]:
    """(ε_low, ε_high), 0 < δ < 1: the smallest ε with δ(ε) ≤ δ lies between them.

    ε_low is 0 where only the upper end is known (objective perturbations; compositions with exponential mechanisms, or
    of discrete losses alone).
    UnsupportedEventError for events without closed form or moment function.
    """
    atoms = _atoms(event, neighboring_relation)
    if not atoms:
        return 0.0, 0.0
    if _without_noise(atoms, neighboring_relation):
        return (0.0 if only_upper(event) else math.inf), math.inf
    single = _single(atoms, neighboring_relation)
    if single is not None:
        value = closed_forms.epsilon(single, delta, neighboring_relation)
        if only_upper(event) or not lower or not 0 < value < math.inf:
            return (value if value == math.inf and not only_upper(event) else 0.0), value
        return _single_low(single, delta, value, neighboring_relation), value
    infinite = _infinite_mass(atoms)
    finite = (delta - infinite) * (1 - 1e-15)
    if finite <= 0:
        return (0.0 if only_upper(event) else math.inf), math.inf
    low = high = 0.0
    for way in directions(atoms, neighboring_relation):

        def solve(parts: contour.Parts, floor: float = high) -> tuple[float, float]:
            return contour.solve(parts, math.log(finite), lower=lower, floor=floor)

        ends = _guard(solve, atoms, neighboring_relation, way)
        low, high = max(low, ends[0]), max(high, ends[1])
    unsure = 4e-15 * infinite / finite  # of ln δ, by rounding: more than the lower end's margin?
    return (0.0 if only_upper(event) or is_bound_only(atoms) or unsure > contour.LOWER_MARGIN else low), high


def epsilons(events: Sequence[Event], delta: float, neighboring_relation: str) -> np.ndarray | None:
    """:func:`epsilon` of events that differ in their counts only, none of which falls; None where they are not such."""
    forms = [normal_form(event, neighboring_relation) for event in events]
    atoms = forms[-1]
    if len(forms) < 2 or not all(tuple(form) == tuple(atoms) for form in forms):
        return None
    counts = [tuple(form.values()) for form in forms]
    falling = any(new < old for before, after in pairwise(counts) for old, new in zip(before, after, strict=True))
    known = any(isinstance(atom, Gaussian | EpsilonDelta | ObjectivePerturbation) for atom in atoms)
    if falling or known or sum(counts[0]) < 2:
        return None
    found = np.zeros(len(events))
    for way in directions(atoms, neighboring_relation):
        pairs = [moments(atom, neighboring_relation, way[atom]) for atom in atoms]
        parts = tuple(tuple(zip(pairs, count, strict=True)) for count in counts)
        with np.errstate(all="ignore"):
            found = contour.solve_many(parts, math.log(delta), found)
    return found


def _single_low(atom: Event, delta: float, high: float, relation: str) -> float:
    """A point below ``high`` where δ(ε), less all that rounding may have added, is above δ; 0 if none is found."""
    slack = closed_forms.slack(atom, high, relation)
    raised = delta * (1 + 3 * slack)
    if slack > 1e-3 or raised >= 1:
        return 0.0
    low = min(closed_forms.epsilon(atom, raised, relation), high)
    step = 1e-12
    while low > 0 and closed_forms.delta(atom, low, relation) < delta * (1 + 1.5 * slack):
        low = low * (1 - step) if step < 0.5 else 0.0
        step *= 2
    return low


def delta(event: Event, epsilon: float, neighboring_relation: str) -> float:
    """Upper bound on δ(ε), ε ≥ 0, tight like :func:`interval`."""
    return delta_interval(event, epsilon, neighboring_relation)[1]


def delta_interval(event: Event, epsilon: float, neighboring_relation: str) -> tuple[float, float]:
    """(δ_low, δ_high) around δ(ε); δ_low is 0 where only the upper end is known."""
    atoms = _atoms(event, neighboring_relation)
    if not atoms:
        return 0.0, 0.0
    if _without_noise(atoms, neighboring_relation):
        return (0.0 if only_upper(event) else 1.0), 1.0
    single = _single(atoms, neighboring_relation)
    if single is not None:
        value = closed_forms.delta(single, epsilon, neighboring_relation)
        slack = closed_forms.slack(single, epsilon, neighboring_relation)
        return (0.0 if only_upper(event) else value * max(0.0, 1 - 2 * slack)), value
    infinite = _infinite_mass(atoms)
    log_low = log_high = -math.inf
    for way in directions(atoms, neighboring_relation):

        def solve(parts: contour.Parts, floor: float = log_high) -> tuple[float, float]:
            return contour.log_delta(parts, epsilon, floor=floor)

        ends = _guard(solve, atoms, neighboring_relation, way)
        log_low, log_high = max(log_low, ends[0]), max(log_high, ends[1])
    low = math.exp(log_low) if log_low > -745 else 0.0
    high = math.exp(max(log_high, -745.0))
    unknown = only_upper(event) or is_bound_only(atoms)
    return (0.0 if unknown else infinite * _DOWN + low), min(1.0, (infinite + high) * (1 + 1e-15))


def only_upper(event: Event) -> bool:
    """Whether an event stands for less than the pair that bounds it, so that nothing is known from below.

    Selection mechanisms are accounted as any ε-DP mechanism, a random row as any (0, 1/n)-DP one, and a group of a
    statement by chaining; objective perturbation by a bound on its loss.
    """
    if isinstance(event, PermuteAndFlip | ReportNoisyMax | RandomRow | ObjectivePerturbation):
        return True
    if isinstance(event, Group) and event.size > 1:
        members = flatten(event.event)
        if not all(_is_noise(atom) for atom in members):
            return True
    parts = event.events if isinstance(event, Composed) else (getattr(event, "event", None),)
    return any(only_upper(part) for part in parts if part is not None)


def _is_noise(atom: Event) -> bool:
    inner = atom.event if isinstance(atom, PoissonSampled) else atom
    return isinstance(inner, Gaussian | Laplace | RandomizedResponse)


def is_bound_only(atoms: Atoms) -> bool:
    """Whether the pairs in use dominate the releases without being one that can occur in a composition.

    The envelope of all bounded-range pairs is itself not bounded-range: other accountants may prove less.
    """
    return any(isinstance(atom, ObjectivePerturbation | ExponentialMechanism) for atom in atoms)


def _atoms(event: Event, relation: str) -> Atoms:
    """The normal form with all unsampled Gaussians merged."""
    atoms = normal_form(event, relation)
    gaussians: Atoms = {atom: count for atom, count in atoms.items() if isinstance(atom, Gaussian)}
    if not gaussians:
        return atoms
    return {merge_gaussians(gaussians): 1} | {atom: count for atom, count in atoms.items() if atom not in gaussians}


def _without_noise(atoms: Atoms, relation: str) -> bool:
    """Whether a part alone has infinite ε at every δ < 1."""
    return any(
        (isinstance(atom, Gaussian) and effective(atom.noise_multiplier, relation) < 1e-150)
        or (isinstance(atom, EpsilonDelta) and atom.delta == 1)
        for atom in atoms
    )


def _single(atoms: Atoms, relation: str) -> Event | None:
    atom, count = next(iter(atoms.items()))
    return atom if len(atoms) == 1 and count == 1 and closed_forms.supported(atom, relation) else None


def _infinite_mass(atoms: Atoms) -> float:
    """1 − Π(1 − δⱼ)^{Tⱼ}: the probability that some loss is infinite, rounded up."""
    total = math.fsum(
        count * math.log1p(-atom.delta) for atom, count in atoms.items() if isinstance(atom, EpsilonDelta)
    )
    return -math.expm1(total) * (1 + 1e-15)


def _guard(function, atoms: Atoms, relation: str, way: dict[Event, str]):  # type: ignore[no-untyped-def]
    """``function(parts)``, with anything that floats cannot hold refused by name."""
    parts = tuple((moments(atom, relation, way[atom]), count) for atom, count in atoms.items())
    try:
        with np.errstate(all="ignore"):
            return function(parts)
    except DpmlError:
        raise
    except (ArithmeticError, ValueError, MemoryError) as error:
        names = sorted({event_name(atom) for atom in atoms})
        raise UnsupportedEventError(
            f"accountant 'exact' cannot bound a composition of {names} under {relation}: its values leave the range of "
            "floats; use accountant='best'."
        ) from error
