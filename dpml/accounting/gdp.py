"""Gaussian DP: exact for Gaussians and μ-GDP statements; the central-limit value of other events is an approximation.

As an accountant the module serves what is exactly Gaussian and refuses everything else by name, because the limit's
(ε, δ) can lie BELOW the truth.  :func:`gdp_approximation` gives that number for curves and comparisons, under a name
that says so.
"""

from __future__ import annotations

import math

from dpml.accounting.conversions import gaussian_epsilon_unchecked, gaussian_log_delta
from dpml.accounting.events import (
    ADD_REMOVE,
    REPLACE_ONE,
    Event,
    Gaussian,
    PoissonSampled,
    check_number,
    check_relation,
    event_name,
)
from dpml.accounting.normal_form import effective, merge_gaussians, normal_form
from dpml.errors import UnsupportedEventError, invalid


def mu(event: Event, neighboring_relation: str) -> float:
    """μ of an event that is exactly Gaussian (0 for nothing, ∞ without noise); UnsupportedEventError for others."""
    atoms = normal_form(event, neighboring_relation)
    for atom in atoms:
        if not isinstance(atom, Gaussian):
            raise UnsupportedEventError(
                f"accountant 'gdp' cannot bound event {event_name(atom)!r} under {neighboring_relation}: its Gaussian "
                "limit is an approximation that can be below the true epsilon; use accountant='best', or "
                "gdp_approximation() for a number that is no guarantee."
            )
    if not atoms:
        return 0.0
    sigma = effective(merge_gaussians(atoms).noise_multiplier, neighboring_relation)
    return 1 / sigma if sigma > 1e-150 else math.inf


def epsilon(event: Event, delta: float, neighboring_relation: str) -> float:
    """Exact ε(δ), 0 < δ < 1, of Gaussians and GDP statements."""
    return gaussian_epsilon_unchecked(delta, mu(event, neighboring_relation))


def delta(event: Event, epsilon: float, neighboring_relation: str) -> float:
    """Exact δ(ε) of Gaussians and GDP statements."""
    return min(1.0, math.exp(gaussian_log_delta(epsilon, mu(event, neighboring_relation))))


def gdp_approximation(event: Event, delta: float, *, neighboring_relation: str = ADD_REMOVE) -> float:
    """ε(δ) of the central limit of (sampled) Gaussians: NOT a guarantee, often below the truth.

    μ² = Σ Tⱼ qⱼ²(e^{1/σⱼ²} − 1), twice that under replace_one, plus the exact μ² of unsampled Gaussians (Bu et al.
    2020, section 3).  Raises UnsupportedEventError for other events.
    """
    delta = check_number("delta", delta, 0.0, 1.0, above=True, below=True)
    check_relation(neighboring_relation)
    if not isinstance(event, Event):
        raise invalid("event", event, "an event of dpml.accounting")
    square = 0.0
    for atom, count in normal_form(event, neighboring_relation).items():
        if isinstance(atom, Gaussian):
            square += count * mu(atom, neighboring_relation) ** 2
        elif isinstance(atom, PoissonSampled) and isinstance(atom.event, Gaussian):
            sigma = atom.event.noise_multiplier
            growth = math.expm1(min(1 / sigma**2, 700.0)) if sigma > 1e-150 else math.inf
            twice = 2 if neighboring_relation == REPLACE_ONE else 1
            square += twice * count * atom.sampling_probability**2 * growth
        else:
            raise UnsupportedEventError(f"no Gaussian limit is known for event {event_name(atom)!r}.")
    return gaussian_epsilon_unchecked(delta, math.sqrt(square))
