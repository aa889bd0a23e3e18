"""What a private search draws from the secret source (runs, candidates, coins, noise) and how it scores a model.

Proofs: docs/private-search.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpml.data import Records
from dpml.mechanisms import NoiseSource
from dpml.release import PrivateModel
from dpml.search_plan import SearchPlan, inverse_gamma
from dpml.stages.scoring import class_score, decisions

_MOST_DRAWN = 10**7  # runs; P(K > this) is far below the resolution of a uniform draw for every law allowed here


def draw_count(plan: SearchPlan, noise: NoiseSource) -> int:
    """K by inversion of its distribution function, from one secret uniform draw.

    Truncated negative binomial (Papernot & Steinke 2022, Definition 1), k = 1, 2, …: P(1) = η(1 − γ)/(γ^{−η} − 1), or
    (1 − γ)/ln(1/γ) for η = 0, and P(k + 1)/P(k) = (1 − γ)(k + η)/(k + 1).  Poisson: P(0) = e^{−μ}, P(k + 1)/P(k) =
    μ/(k + 1).
    """
    if plan.shape is not None and plan.mean_runs == 1:
        return 1
    target = float(noise.uniform(1)[0])
    if plan.shape is None:
        k, mass = 0, math.exp(-plan.mean_runs)
    else:
        k, mass = 1, _first_mass(plan.mean_runs, plan.shape)
        stay = -math.expm1(-inverse_gamma(plan.mean_runs, plan.shape))
    reached = mass
    while target >= reached and k < _MOST_DRAWN:
        mass *= plan.mean_runs / (k + 1) if plan.shape is None else stay * (k + plan.shape) / (k + 1)
        k += 1
        if reached + mass == reached and k > plan.mean_runs:
            break  # the rest lies below the resolution of the sum
        reached += mass
    return k


def _first_mass(mean: float, shape: float) -> float:
    log = inverse_gamma(mean, shape)
    stay = -math.expm1(-log)
    return stay / log if abs(shape) * log < 1e-9 else shape * stay / math.expm1(shape * log)


def draw_candidate(number: int, noise: NoiseSource) -> int:
    """An index from 0 to ``number`` − 1, uniform and independent of every other draw."""
    return min(int(float(noise.uniform(1)[0]) * number), number - 1)


def draw_by_weight(scores: Sequence[float], epsilon: float, sensitivity: float, noise: NoiseSource) -> int:
    """Exponential mechanism: index i with probability ∝ e^{ε·scoreᵢ/(2·sensitivity)} (McSherry & Talwar 2007).

    A failed candidate (−∞) has weight 0; not all may have failed.
    """
    logs = np.asarray(scores, dtype=float) * (epsilon / (2 * sensitivity))
    weights = np.exp(logs - logs.max())
    ends = np.cumsum(weights)
    found = int(np.searchsorted(ends, float(noise.uniform(1)[0]) * ends[-1], side="right"))
    return min(found, int(np.flatnonzero(weights)[-1]))  # the product may round up to the last end


def split_by_coins(records: Records, fraction: float, noise: NoiseSource) -> tuple[Records, Records]:
    """(training part, hold-out): every record by its own coin, so that one record moves no other."""
    held = noise.uniform(int(records.X.shape[0])) < fraction
    return (
        Records(records.X[~held], records.y[~held]),
        Records(records.X[held], records.y[held]),
    )


def holdout_score(model: PrivateModel, holdout: Records) -> float:
    """Σ (1[right] − 1/2) over the hold-out: ranks like the count of right answers, and one record adds ±1/2.

    Each record is scored on its own (:mod:`dpml.stages.scoring`); one at which a module raises counts as wrong.
    """
    score, n_classes = 0.0, max(2, len(model.classes))
    for values, label in zip(decisions(model, holdout.X), holdout.y, strict=True):
        score += 0.5 if class_score(values, int(label), n_classes, model.kind).right else -0.5
    return score


def noisy_score(score: float, plan: SearchPlan, noise: NoiseSource) -> float:
    """The score plus the Gaussian noise that one run is charged for."""
    return score + float(noise.normal(plan.score_noise_std, 1)[0])


def as_share(score: float, plan: SearchPlan) -> float:
    """A score as an estimated accuracy; divided by the *public* nominal size of the hold-out."""
    return 0.5 + score / max(1, plan.n_holdout)
