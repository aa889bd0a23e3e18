"""How long one release's loss is: what the grid must resolve, and how far it must reach."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpml.accounting.events import (
    ADD_REMOVE,
    GDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Gaussian,
    Group,
    Laplace,
    PoissonSampled,
    SampledWithoutReplacement,
    UnequalGaussian,
)
from dpml.accounting.normal_form import effective, integer_sensitivity
from dpml.accounting.pairs_discrete import loss_ratio


@lru_cache(maxsize=64)
def scale(atom: Event, relation: str) -> float:
    """A length of the one-step loss that the grid must resolve: its root mean square, the smaller of both sides."""
    if isinstance(atom, PoissonSampled):
        return _sampled_scale(atom, relation)
    if isinstance(atom, SampledWithoutReplacement):
        q = atom.sample_size / atom.source_size
        if isinstance(atom.event, Gaussian):
            return scale(as_add_remove(q, atom.event, relation), ADD_REMOVE)
        return max(q * min(scale(atom.event, relation), 1.0), 1e-9)
    if isinstance(atom, Group):
        return math.sqrt(atom.size) * scale(atom.event, relation)
    if isinstance(atom, Gaussian):
        return 1 / effective(atom.noise_multiplier, relation)
    if isinstance(atom, Laplace):
        return min(1 / effective(atom.noise_multiplier, relation), 1.0)
    if isinstance(atom, DiscreteLaplace):
        return min(integer_sensitivity(atom, relation) / atom.noise_scale, 1.0)
    if isinstance(atom, DiscreteGaussian):
        return integer_sensitivity(atom, relation) / atom.noise_std
    if isinstance(atom, GDP):
        return atom.mu
    if isinstance(atom, UnequalGaussian):
        return _unequal_scale(atom)
    return max(min(atom.epsilon, 1.0), 1e-6)  # type: ignore[attr-defined]


def _sampled_scale(atom: PoissonSampled, relation: str) -> float:
    q, inner = atom.sampling_probability, atom.event
    if not isinstance(inner, Gaussian):
        share = q if relation == ADD_REMOVE else math.sqrt(q)
        return max(share * min(scale(inner, relation), 1.0), 1e-9)
    sigma = inner.noise_multiplier
    x = sigma * np.linspace(-8, 8 + 1 / sigma, 4001)
    up = loss_ratio(q, (2 * x - 1) / (2 * sigma**2))
    loss = up if relation == ADD_REMOVE else up - loss_ratio(q, (-2 * x - 1) / (2 * sigma**2))
    weight = np.exp(-((x / sigma) ** 2) / 2)
    return max(math.sqrt(float(np.sum(weight * loss**2) / np.sum(weight))), 1e-9)


def _unequal_scale(atom: UnequalGaussian) -> float:
    """E ℓ² under P is at least (E ℓ)² = KL² and the variance m²a²/b⁴ + 2c²a⁴ (c as in ``pairs_cells.unequal``)."""
    found = math.inf
    for a, b in ((atom.noise_std, atom.other_noise_std), (atom.other_noise_std, atom.noise_std)):
        ratio = (a - b) * (a + b) / (b * b)
        found = min(found, math.hypot(atom.shift * a / (b * b), ratio / math.sqrt(2)))
    return max(found, 1e-9)


def span(atom: Event, relation: str, width: float) -> float:
    """About the length of the range of finite losses that :func:`discretise` keeps."""
    if isinstance(atom, PoissonSampled | SampledWithoutReplacement):
        top, infinite = span(atom.event, relation, width) / 2, getattr(atom.event, "delta", 0.0) > 0
        if isinstance(atom, SampledWithoutReplacement):
            return 2 * float(loss_ratio(atom.sample_size / atom.source_size, np.array([top]))[0])
        q = atom.sampling_probability
        if relation != ADD_REMOVE:
            return 2 * top
        ends = loss_ratio(q, np.array([top, -top]))
        return float(ends[0]) - (math.log1p(-q) if infinite else float(ends[1]))
    if isinstance(atom, Group):
        inner = atom.event.event  # type: ignore[attr-defined]
        return 2 * atom.size * width / inner.noise_multiplier + atom.size**2 / inner.noise_multiplier**2
    if isinstance(atom, Gaussian | GDP | DiscreteGaussian):
        mu = scale(atom, relation)
        return 2 * width * mu + mu * mu
    if isinstance(atom, Laplace):
        return 2 / effective(atom.noise_multiplier, relation)
    if isinstance(atom, DiscreteLaplace):
        return 2 * integer_sensitivity(atom, relation) / atom.noise_scale
    if isinstance(atom, UnequalGaussian):
        a, b = sorted((atom.noise_std, atom.other_noise_std))
        reach, curve = width * b, (b - a) * (b + a) / (2 * a * a * b * b)
        return 2 * (math.log(b / a) + curve * reach * reach + atom.shift / a / a * reach + (atom.shift / a) ** 2 / 2)
    return 2 * atom.epsilon  # type: ignore[attr-defined]


def as_add_remove(q: float, inner: Gaussian, relation: str) -> PoissonSampled:
    """The Poisson-sampled Gaussian whose remove pair under add_remove is ((1−q)Q + qP, Q) of ``inner``'s pair."""
    return PoissonSampled(q, Gaussian(effective(inner.noise_multiplier, relation)))
