"""Basic composition and the accountant ``best``: the smallest ε that any accountant here proves.

Basic composition: parts that are (εⱼ, δⱼ)-DP, chosen adaptively, are together (Σεⱼ, Σδⱼ)-DP (Dwork & Roth 2014,
Theorem 3.16).  How δ is split is public and fixed beforehand (a small grid), so taking the best split is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpml.accounting import exact, pld, renyi, zcdp
from dpml.accounting.events import (
    ADD_REMOVE,
    Composed,
    EpsilonDelta,
    Event,
    Laplace,
    ObjectivePerturbation,
    PoissonSampled,
    SelfComposed,
    effective,
    event_name,
    flatten,
)
from dpml.errors import UnsupportedEventError

REST_SHARES = (0.5, 0.1, 0.05, 0.01, 0.005, 0.001, 1e-4)
_JOINT = {"exact": exact, "pld": pld, "rdp": renyi, "zcdp": zcdp}


def compose(atoms: dict[Event, int]) -> Event:
    """The event with these atoms and counts."""
    return Composed(tuple(SelfComposed(atom, count) if count > 1 else atom for atom, count in atoms.items()))


def best_epsilon(event: Event, delta: float, relation: str) -> tuple[float, str]:
    """Smallest sound ε(δ), 0 < δ < 1, and the name of the accountant that proved it."""
    return _best(event, lambda module: module.epsilon(event, delta, relation), lambda: epsilon(event, delta, relation))


def best_delta(event: Event, epsilon: float, relation: str) -> tuple[float, str]:
    """Smallest sound δ(ε) and the name of the accountant that proved it."""
    return _best(event, lambda module: module.delta(event, epsilon, relation), lambda: delta(event, epsilon, relation))


def _best(event: Event, joint: Callable, basic: Callable) -> tuple[float, str]:
    found = _best_joint(joint)
    if found is not None and found[1] == "exact":
        return found
    kinds = _groups(event)
    if found is None or (kinds["objective"] and len(flatten(event)) > 1):
        value = basic()
        if found is None or value < found[0]:
            found = (value, "basic")
    return found


def _best_joint(joint: Callable) -> tuple[float, str] | None:
    found: tuple[float, str] | None = None
    for name, module in _JOINT.items():
        try:
            value = joint(module)
        except UnsupportedEventError:
            continue
        if name == "exact":
            return value, name
        if found is None or value < found[0]:
            found = (value, name)
    return found


def _groups(event: Event) -> dict[str, dict[Event, int]]:
    """Atoms by who can account for them together: each objective alone, statements, the rest."""
    groups: dict[str, dict[Event, int]] = {"objective": {}, "statement": {}, "rest": {}}
    for atom, count in flatten(event).items():
        kind = "rest"
        if isinstance(atom, ObjectivePerturbation):
            kind = "objective"
        elif isinstance(atom, EpsilonDelta):
            kind = "statement"
        groups[kind][atom] = count
    return groups


def epsilon(event: Event, delta: float, relation: str) -> float:
    """ε(δ) by basic composition: objective perturbations one by one, (ε, δ) statements as they are, the rest jointly.

    The statements take their own Σδ first; the rest gets a share of what is left from a fixed grid and the objective
    perturbations share the remainder equally.
    """
    groups = _groups(event)
    stated = math.fsum(count * atom.epsilon for atom, count in groups["statement"].items())  # type: ignore[attr-defined]
    left = delta - math.fsum(count * atom.delta for atom, count in groups["statement"].items())  # type: ignore[attr-defined]
    objectives, rest = groups["objective"], groups["rest"]
    if not objectives and not rest:
        return stated if left >= 0 else math.inf
    if left <= 0:
        return math.inf
    if not objectives:
        return stated + _rest_epsilon(rest, left, relation)
    if not rest:
        return stated + _objectives_epsilon(objectives, left, relation)
    return stated + min(
        _objectives_epsilon(objectives, left * (1 - share), relation) + _rest_epsilon(rest, left * share, relation)
        for share in REST_SHARES
    )


def _objectives_epsilon(atoms: dict[Event, int], delta: float, relation: str) -> float:
    number = sum(atoms.values())
    return math.fsum(count * exact.epsilon(atom, delta / number, relation) for atom, count in atoms.items())


def _rest_epsilon(atoms: dict[Event, int], delta: float, relation: str) -> float:
    event = compose(atoms)
    found = _best_joint(lambda module: module.epsilon(event, delta, relation))
    if found is None:
        # one by one; whatever no accountant bounds alone is refused there, by name
        number = sum(atoms.values())
        parts = []
        for atom, count in atoms.items():
            single = _best_joint(lambda module, atom=atom: module.epsilon(atom, delta / number, relation))
            if single is None:
                raise UnsupportedEventError(f"no accountant can bound event {event_name(atom)!r} under {relation}.")
            parts.append(count * single[0])
        return math.fsum(parts)
    return found[0]


def delta(event: Event, epsilon_target: float, relation: str) -> float:
    """δ(ε): the smallest δ on the log axis whose basic ε is at most ``epsilon_target`` (an upper end that holds)."""
    groups = _groups(event)
    if not groups["objective"] and not groups["rest"]:
        stated = math.fsum(count * atom.epsilon for atom, count in groups["statement"].items())  # type: ignore[attr-defined]
        held = math.fsum(count * atom.delta for atom, count in groups["statement"].items())  # type: ignore[attr-defined]
        return min(1.0, held) if stated <= epsilon_target else 1.0
    if not groups["objective"] and not groups["statement"]:
        joint = _best_joint(lambda module: module.delta(event, epsilon_target, relation))
        if joint is not None:
            return joint[0]
    low, high = math.log(1e-300), 0.0
    while high - low > 1e-9 * max(1.0, -high):
        middle = (low + high) / 2
        if epsilon(event, min(math.exp(middle), 1 - 1e-16), relation) <= epsilon_target:
            high = middle
        else:
            low = middle
    return min(1.0, math.exp(high))


def pure_epsilon(event: Event, relation: str) -> float:
    """ε at δ = 0: the sum over pure parts, ``inf`` where a part is not pure (Dwork & Roth 2014, Theorem 3.14)."""
    return math.fsum(count * _pure(atom, relation) for atom, count in flatten(event).items())


def _pure(atom: Event, relation: str) -> float:
    if isinstance(atom, Laplace):
        scale = effective(atom.noise_multiplier, relation)
        return 1 / scale if scale > 1e-300 else math.inf
    if isinstance(atom, EpsilonDelta) and atom.delta == 0:
        return atom.epsilon
    if isinstance(atom, PoissonSampled):
        inner = pure_epsilon(atom.event, relation)
        if relation != ADD_REMOVE or inner > 700:
            return inner
        return math.log1p(atom.sampling_probability * math.expm1(inner))
    return math.inf
