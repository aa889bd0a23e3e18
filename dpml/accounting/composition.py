"""Basic composition and the accountant ``best``: the smallest ε that any accountant here proves.

Basic composition: parts that are (εⱼ, δⱼ)-DP, chosen adaptively, are together (Σεⱼ, Σδⱼ)-DP (Dwork & Roth 2014,
Theorem 3.16).  How δ is split is public and fixed beforehand (a small grid), so taking the best split is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType

from dpml.accounting import exact, optimal, pld, renyi, zcdp
from dpml.accounting.events import (
    ADD_REMOVE,
    REPLACE_ONE,
    Composed,
    DiscreteLaplace,
    EpsilonDelta,
    Event,
    ExponentialMechanism,
    Group,
    Laplace,
    ObjectivePerturbation,
    PoissonSampled,
    RandomizedResponse,
    RepeatAndSelect,
    SampledWithoutReplacement,
    SelfComposed,
    event_name,
)
from dpml.accounting.normal_form import effective, integer_sensitivity, normal_form
from dpml.errors import UnsupportedEventError

REST_SHARES = (0.5, 0.1, 0.05, 0.01, 0.005, 0.001, 1e-4)
_JOINT: dict[str, ModuleType] = {"exact": exact, "pld": pld, "rdp": renyi, "zcdp": zcdp}


def compose(atoms: dict[Event, int]) -> Event:
    """The event with these atoms and counts."""
    return Composed(tuple(SelfComposed(atom, count) if count > 1 else atom for atom, count in atoms.items()))


def best_epsilon(event: Event, delta: float, relation: str) -> tuple[float, str]:
    """Smallest sound ε(δ), 0 < δ < 1, and the name of the accountant that proved it."""
    return _best(
        event, relation, lambda module: module.epsilon(event, delta, relation), lambda: epsilon(event, delta, relation)
    )


def best_delta(event: Event, epsilon: float, relation: str) -> tuple[float, str]:
    """Smallest sound δ(ε) and the name of the accountant that proved it."""
    return _best(
        event, relation, lambda module: module.delta(event, epsilon, relation), lambda: delta(event, epsilon, relation)
    )


def _best(event: Event, relation: str, joint: Callable, basic: Callable) -> tuple[float, str]:
    kinds = _groups(event, relation)
    found, reason = _best_joint(joint, kinds)
    if kinds["statement"] and not kinds["objective"] and not kinds["rest"]:
        value = joint(optimal)
        return found if found is not None and found[0] <= value else (value, "optimal")
    several = sum(kinds["objective"].values()) > 1 or bool(kinds["statement"] or kinds["rest"])
    if found is None or (kinds["objective"] and several):
        try:
            value = basic()
        except UnsupportedEventError as error:
            if found is None:
                raise UnsupportedEventError(f"{error} {reason}".strip()) from None
            return found
        if found is None or value < found[0]:
            found = (value, "basic")
    return found


def _best_joint(joint: Callable, kinds: dict[str, dict[Event, int]]) -> tuple[tuple[float, str] | None, str]:
    """(Smallest value and who proved it, why the last one refused); exact's is final where it is tight."""
    found: tuple[float, str] | None = None
    reason = ""
    loose = any(isinstance(atom, ExponentialMechanism) for atom in kinds["rest"])
    for name, module in _JOINT.items():
        try:
            value = joint(module)
        except UnsupportedEventError as error:
            reason = str(error)
            continue
        if found is None or value < found[0]:
            found = (value, name)
        if name == "exact" and not loose:
            break
    return found, reason


def _groups(event: Event, relation: str) -> dict[str, dict[Event, int]]:
    """Atoms by who can account for them together: each objective alone, statements, the rest."""
    groups: dict[str, dict[Event, int]] = {"objective": {}, "statement": {}, "rest": {}}
    for atom, count in normal_form(event, relation).items():
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
    groups = _groups(event, relation)
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
    kinds = {"rest": atoms}
    found, _ = _best_joint(lambda module: module.epsilon(event, delta, relation), kinds)
    if found is None:
        # one by one; whatever no accountant bounds alone is refused there, by name
        number = sum(atoms.values())
        parts = []
        for atom, count in atoms.items():
            alone = {"rest": {atom: 1}}
            single, _ = _best_joint(lambda module, atom=atom: module.epsilon(atom, delta / number, relation), alone)
            if single is None:
                raise UnsupportedEventError(f"no accountant can bound event {event_name(atom)!r} under {relation}.")
            parts.append(count * single[0])
        return math.fsum(parts)
    return found[0]


def delta(event: Event, epsilon_target: float, relation: str) -> float:
    """δ(ε): the smallest δ on the log axis whose basic ε is at most ``epsilon_target`` (an upper end that holds)."""
    groups = _groups(event, relation)
    if not groups["objective"] and not groups["rest"]:
        stated = math.fsum(count * atom.epsilon for atom, count in groups["statement"].items())  # type: ignore[attr-defined]
        held = math.fsum(count * atom.delta for atom, count in groups["statement"].items())  # type: ignore[attr-defined]
        return min(1.0, held) if stated <= epsilon_target else 1.0
    if not groups["objective"] and not groups["statement"]:
        joint, _ = _best_joint(lambda module: module.delta(event, epsilon_target, relation), groups)
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
    return math.fsum(count * _pure(atom, relation) for atom, count in normal_form(event, relation).items())


def _pure(atom: Event, relation: str) -> float:
    if isinstance(atom, Laplace):
        scale = effective(atom.noise_multiplier, relation)
        return 1 / scale if scale > 1e-300 else math.inf
    if isinstance(atom, EpsilonDelta) and atom.delta == 0:
        return atom.epsilon
    if isinstance(atom, ExponentialMechanism | RandomizedResponse):
        return atom.epsilon
    if isinstance(atom, DiscreteLaplace):
        return integer_sensitivity(atom, relation) / atom.noise_scale if atom.noise_scale > 1e-300 else math.inf
    if isinstance(atom, PoissonSampled) and relation == ADD_REMOVE:
        return _sampled_pure(pure_epsilon(atom.event, relation), atom.sampling_probability)
    if isinstance(atom, SampledWithoutReplacement) and relation == REPLACE_ONE:
        return _sampled_pure(pure_epsilon(atom.event, relation), atom.sample_size / atom.source_size)
    if isinstance(atom, PoissonSampled):
        return pure_epsilon(atom.event, relation)
    if isinstance(atom, RepeatAndSelect) and atom.shape is not None:
        return (2 + atom.shape) * pure_epsilon(atom.event, relation)  # Papernot & Steinke 2022, Corollary 3
    if isinstance(atom, Group):
        return atom.size * pure_epsilon(atom.event, relation)
    return math.inf


def _sampled_pure(inner: float, q: float) -> float:
    """ln(1 + q(e^ε − 1)): Balle, Barthe & Gaboardi 2018, Theorems 8 and 9."""
    return math.log1p(q * math.expm1(inner)) if inner < 700 else inner
