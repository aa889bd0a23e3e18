"""Events as atoms with counts: what accountants add up.

:func:`flatten` resolves compositions, samples and names that are only another word for a basic event; it holds under
both relations.  :func:`normal_form` also resolves what depends on the relation, and is what accountants read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from dpml.accounting.events import (
    ADD_REMOVE,
    GDP,
    REPLACE_ONE,
    ZCDP,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    EpsilonDelta,
    Event,
    ExponentialMechanism,
    Gaussian,
    Group,
    Laplace,
    NonPrivate,
    NoOp,
    PermuteAndFlip,
    PoissonSampled,
    Pure,
    RandomizedResponse,
    RandomRow,
    ReportNoisyMax,
    SampledWithoutReplacement,
    SelfComposed,
    UnequalGaussian,
    check_count,
    event_name,
)
from dpml.errors import UnsupportedEventError, invalid

Atoms = dict[Event, int]
_LARGEST = 1e12


def normal_form(event: Event, neighboring_relation: str) -> Atoms:
    """Atoms of ``event`` with counts, in the words that accountants know under this relation.

    Beyond :func:`flatten`: a μ-GDP statement becomes the Gaussian with that μ; binary randomized response becomes the
    pure statement that it is the worst case of.  Raises UnsupportedEventError for randomized response under add_remove.
    """
    atoms: Atoms = {}
    for atom, count in flatten(_substitute(event, neighboring_relation, sampled=False)).items():
        _add(atoms, _worst_case(atom), count)
    return atoms


def _worst_case(atom: Event) -> Event:
    """Binary randomized response, once its groups are resolved, as the pure statement that it is the worst case of."""
    if isinstance(atom, RandomizedResponse) and atom.num_buckets == 2:
        return EpsilonDelta(atom.epsilon, 0.0)
    if isinstance(atom, PoissonSampled | SampledWithoutReplacement):
        inner = _worst_case(atom.event)
        return atom if inner is atom.event else replace(atom, event=inner)
    return atom


def _substitute(event: Event, relation: str, *, sampled: bool) -> Event:
    if isinstance(event, GDP) and not (sampled and relation == REPLACE_ONE):
        return gaussian_of_mu(event.mu, relation)
    if isinstance(event, RandomizedResponse):
        return _randomized_response(event, relation)
    if isinstance(event, Composed):
        parts = tuple(_substitute(part, relation, sampled=sampled) for part in event.events)
        same = all(new is old for new, old in zip(parts, event.events, strict=True))
        return event if same else Composed(parts)
    inner = getattr(event, "event", None)
    if inner is None:
        return event
    inside = sampled or (isinstance(event, PoissonSampled) and event.sampling_probability < 1)
    new = _substitute(inner, relation, sampled=inside)
    return event if new is inner else replace(event, event=new)  # type: ignore[call-arg]


def gaussian_of_mu(mu: float, relation: str) -> Event:
    """The Gaussian event whose pair under ``relation`` is μ-Gaussian-DP (μ below 1e-12 is rounded up to it)."""
    if mu == 0:
        return NoOp()
    factor = 2.0 if relation == REPLACE_ONE else 1.0
    return Gaussian(min(factor / mu, _LARGEST))


def _randomized_response(event: RandomizedResponse, relation: str) -> Event:
    if relation != REPLACE_ONE:
        raise UnsupportedEventError(
            f"event 'randomized_response' has no guarantee under {relation!r}: whether a record reports is public; "
            "use neighboring_relation='replace_one'."
        )
    pure = event.epsilon
    if pure > _LARGEST:
        return NonPrivate()
    return event


def flatten(event: Event) -> Atoms:
    """The event as different atoms with counts; equal parts are added up, parts that cost nothing are dropped.

    An atom is a basic event, or a sample, a repeated selection or a group of one.  Simplifications, each exact under
    both relations: q = 0 is nothing and q = 1 is no sampling; Gaussians that share one sample are one Gaussian with
    1/σ² = Σ 1/σⱼ²; a Poisson sample of a Poisson sample for ONE release has probability q₁·q₂; a group of a composition
    is the composition of groups.  Other samples with several releases stay as they are, and accountants refuse them by
    name.
    """
    atoms: Atoms = {}
    _collect(event, 1, atoms)
    for atom, count in atoms.items():
        check_count(f"count of {event_name(atom)} in all", count)
    return atoms


def _collect(event: Event, count: int, atoms: Atoms) -> None:
    event = _plain(event)
    if count == 0 or isinstance(event, NoOp):
        return
    if isinstance(event, SelfComposed):
        _collect(event.event, count * event.count, atoms)
    elif isinstance(event, Composed):
        for part in event.events:
            _collect(part, count, atoms)
    elif isinstance(event, PoissonSampled):
        _collect_sampled(event, count, atoms)
    elif isinstance(event, SampledWithoutReplacement):
        _collect_fixed_size(event, count, atoms)
    elif isinstance(event, Group):
        for part, times in flatten(event.event).items():
            member = _group(part, event.size)
            if isinstance(member, SelfComposed):  # randomized response: one report per member
                _add(atoms, member.event, count * times * member.count)
            else:
                _add(atoms, member, count * times)
    else:
        _add(atoms, event, count)


def _add(atoms: Atoms, atom: Event, count: int) -> None:
    if not _is_free(atom):
        atoms[atom] = atoms.get(atom, 0) + count


def _plain(event: Event) -> Event:
    """Names that are another word for a basic event."""
    if isinstance(event, NonPrivate):
        return Gaussian(0.0)  # no noise: every accountant answers ∞
    if isinstance(event, Pure | PermuteAndFlip):
        return EpsilonDelta(event.epsilon, 0.0)
    if isinstance(event, ReportNoisyMax):
        return ExponentialMechanism(event.epsilon) if event.noise == "gumbel" else EpsilonDelta(event.epsilon, 0.0)
    if isinstance(event, RandomRow):  # P and Q differ by 1/n of mass: (0, 1/n)-DP under both relations
        return EpsilonDelta(0.0, 1.0 / event.records)
    return event


def _collect_sampled(event: PoissonSampled, count: int, atoms: Atoms) -> None:
    q = event.sampling_probability
    _refuse_rows(event.event)
    inner = flatten(event.event)
    if q == 0 or not inner:
        return
    if q == 1:
        for part, times in inner.items():
            _add(atoms, part, count * times)
        return
    atom: Event = event
    only = _only(inner)
    if only is not None:
        if isinstance(only, PoissonSampled):
            atom = PoissonSampled(_product(q, only.sampling_probability), only.event)
        else:
            atom = PoissonSampled(q, only)
    _add(atoms, atom, count)


def _product(first: float, second: float) -> float:
    """first·second; where floats lose digits or all of it, rounded up: rate 0 would cost nothing."""
    product = first * second
    return math.nextafter(product, 1.0) if product < 1e-300 else product


def _collect_fixed_size(event: SampledWithoutReplacement, count: int, atoms: Atoms) -> None:
    _refuse_rows(event.event)
    inner = flatten(event.event)
    if event.sample_size == 0 or not inner:
        return
    if event.sample_size == event.source_size:
        for part, times in inner.items():
            _add(atoms, part, count * times)
        return
    only = _only(inner)
    divisor = math.gcd(event.sample_size, event.source_size)
    atom = event
    if only is not None:  # only the quotient matters
        atom = SampledWithoutReplacement(event.sample_size // divisor, event.source_size // divisor, only)
    _add(atoms, atom, count)


def _refuse_rows(event: Event) -> None:
    """A random row of a SAMPLE: the number of rows it is one of is not the number of records."""
    if isinstance(event, RandomRow):
        raise UnsupportedEventError(
            "event 'random_row' on a sample cannot be bounded: 'records' bounds the rows of the data, not the sample's."
        )
    for part in getattr(event, "events", ()) or ([event.event] if hasattr(event, "event") else []):
        _refuse_rows(part)


def _only(inner: Atoms) -> Event | None:
    """The one release that all of ``inner`` amounts to; None where it is several."""
    if all(isinstance(part, Gaussian) for part in inner):
        return merge_gaussians(inner)
    part, times = next(iter(inner.items()))
    return part if len(inner) == 1 and times == 1 else None


def _group(atom: Event, size: int) -> Event:
    """``atom`` seen by a group of ``size``; atoms without a closed form stay a Group of themselves.

    Gaussian and Laplace: the contributions of the group add up.  (ε, δ): δ·(e^{kε} − 1)/(e^ε − 1) at kε, by chaining
    through k neighbours.  ρ-zCDP: k²ρ (Bun & Steinke 2016, Proposition 1.9); μ-GDP: kμ (Dong et al. 2022, Theorem
    2.14); bounded range: the k ranges add up; randomized response: k independent reports.
    """
    if size == 1:
        return atom
    if isinstance(atom, Gaussian | Laplace):
        return replace(atom, noise_multiplier=atom.noise_multiplier / size)
    if isinstance(atom, DiscreteLaplace | DiscreteGaussian):
        return replace(atom, sensitivity=atom.sensitivity * size)
    if isinstance(atom, ZCDP):
        return ZCDP(atom.rho * size**2)
    if isinstance(atom, GDP):
        return GDP(atom.mu * size)
    if isinstance(atom, ExponentialMechanism):
        return ExponentialMechanism(atom.epsilon * size)
    if isinstance(atom, EpsilonDelta):
        return EpsilonDelta(size * atom.epsilon, group_delta(atom.epsilon, atom.delta, size))
    if isinstance(atom, RandomizedResponse):
        return SelfComposed(atom, size)
    if isinstance(atom, Group):
        return Group(atom.event, atom.size * size)
    return Group(atom, size)


def group_delta(epsilon: float, delta: float, size: int) -> float:
    """δ·Σ_{i<k} e^{iε} = δ·(e^{kε} − 1)/(e^ε − 1), at most 1; ``size`` = k."""
    if delta == 0:
        return 0.0
    if epsilon == 0:
        return min(1.0, size * delta)
    if size * epsilon > 700:
        return 1.0
    return min(1.0, delta * math.expm1(size * epsilon) / math.expm1(epsilon) * (1 + 1e-14))


def _is_free(event: Event) -> bool:
    if isinstance(event, EpsilonDelta):
        return event.epsilon == 0 and event.delta == 0
    if isinstance(event, UnequalGaussian):
        return event.shift == 0 and event.noise_std == event.other_noise_std
    if isinstance(event, RandomizedResponse):
        return event.noise_parameter == 1
    return (
        (isinstance(event, ZCDP) and event.rho == 0)
        or (isinstance(event, GDP) and event.mu == 0)
        or (isinstance(event, ExponentialMechanism) and event.epsilon == 0)
    )


def merge_gaussians(atoms: Mapping[Event, int]) -> Gaussian:
    """One Gaussian for a composition of Gaussians: 1/σ² = Σ countⱼ/σⱼ² (exact: the statistic is Σ xⱼ/σⱼ²)."""
    precision = 0.0
    for atom, count in atoms.items():
        if not isinstance(atom, Gaussian):
            raise invalid("atoms", event_name(atom), "Gaussian events only")
        if atom.noise_multiplier < 1e-150:  # 1/σ² overflows: as good as no noise
            return Gaussian(0.0)
        precision += count / atom.noise_multiplier**2
    return Gaussian(1.0 / math.sqrt(precision)) if math.isfinite(precision) else Gaussian(0.0)


def directions(atoms: Atoms, neighboring_relation: str) -> tuple[dict[Event, str], ...]:
    """The ways in which the pairs of ``atoms`` can be oriented together, as atom → ``"remove"`` or ``"add"``.

    Samples under add_remove turn together: the record is there or not.  UnequalGaussian atoms turn together too, and
    independently of the samples.  All other pairs are symmetric.
    """
    sampled = neighboring_relation == ADD_REMOVE and any(_is_sampled(atom) for atom in atoms)
    unequal = any(isinstance(atom, UnequalGaussian) for atom in atoms)
    found = []
    for first in ("remove", "add") if sampled else ("remove",):
        for second in ("remove", "add") if unequal else ("remove",):
            found.append({atom: second if isinstance(atom, UnequalGaussian) else first for atom in atoms})
    return tuple(found)


def _is_sampled(atom: Event) -> bool:
    return isinstance(atom, PoissonSampled) or (isinstance(atom, Group) and _is_sampled(atom.event))


def effective(noise_multiplier: float, neighboring_relation: str) -> float:
    """Noise ÷ sensitivity: ``noise_multiplier`` under add_remove, half of it under replace_one."""
    return noise_multiplier / 2 if neighboring_relation == REPLACE_ONE else noise_multiplier


def integer_sensitivity(atom: DiscreteLaplace | DiscreteGaussian, neighboring_relation: str) -> int:
    """Sensitivity of the integer query: ``sensitivity``, twice that under replace_one."""
    return atom.sensitivity * (1 if neighboring_relation == ADD_REMOVE else 2)
