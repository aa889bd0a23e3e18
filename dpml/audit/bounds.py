"""From counted errors to a lower bound on ε: exact confidence limits on error rates, and what they exclude.

World 0 is a data set without the record, world 1 the neighbour with it.  A test says "in" or "out"; its false-positive
rate α is how often it says "in" in world 0, its false-negative rate β how often it says "out" in world 1.  An
(ε, δ)-private mechanism has, for every test, 1 − β ≤ e^ε α + δ and 1 − α ≤ e^ε β + δ (Wasserman and Zhou 2010,
Theorem 2.4; Kairouz, Oh and Viswanath 2015, Theorem 2.1).  So upper limits on α and β that hold together with some
confidence exclude every smaller ε with the same confidence.  All logarithms are natural.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpml.accounting.conversions import gaussian_epsilon_unchecked

_UP = 1 + 1e-9  # more than the rounding of the inverse incomplete beta function


def upper_limit(errors: ArrayLike, trials: ArrayLike, level: float) -> np.ndarray:
    """The exact one-sided upper confidence limit on a probability (Clopper and Pearson 1934).

    It is the p at which Binomial(trials, p) has so few successes with probability ``level``: the (1 − level) quantile
    of Beta(errors + 1, trials − errors); 1 when every trial was an error.  It is below the true probability with
    probability at most ``level``.

    Args:
        errors: counts from 0 to ``trials``, any shape; fractions are taken too (for planning).
        trials: how many there were, 1 or more, broadcast against ``errors``.
        level: probability of failure, in (0, 1).
    """
    errors, trials = np.asarray(errors, dtype=float), np.asarray(trials, dtype=float)
    rest = trials - errors
    found = special.betaincinv(errors + 1, np.where(rest > 0, rest, 1.0), 1 - level) * _UP
    return np.where(rest > 0, np.minimum(found, 1.0), 1.0)


def epsilon_of_errors(fpr_upper: ArrayLike, fnr_upper: ArrayLike, delta: float) -> np.ndarray:
    """The smallest ε ≥ 0 that allows error rates below these limits, at ``delta``: the larger of both orders.

    max(0, ln((1 − δ − β)/α), ln((1 − δ − α)/β)) with α, β the upper limits (module docstring).
    """
    a, b = np.asarray(fpr_upper, dtype=float), np.asarray(fnr_upper, dtype=float)
    with np.errstate(divide="ignore"):
        one = np.log(np.maximum(1 - delta - b, 0.0)) - np.log(a)
        other = np.log(np.maximum(1 - delta - a, 0.0)) - np.log(b)
    return np.maximum(np.maximum(one, other), 0.0)


def mu_of_errors(fpr_upper: ArrayLike, fnr_upper: ArrayLike) -> np.ndarray:
    """The smallest μ ≥ 0 whose Gaussian trade-off allows error rates below these limits: Φ⁻¹(1 − α) − Φ⁻¹(β).

    From β ≥ Φ(Φ⁻¹(1 − α) − μ) (Dong, Roth and Su 2022, Definition 2.6).
    """
    mu = -special.ndtri(np.asarray(fpr_upper, dtype=float)) - special.ndtri(np.asarray(fnr_upper, dtype=float))
    return np.maximum(mu, 0.0)


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Exact ε(δ) of a mechanism whose trade-off is that of N(0, 1) against N(μ, 1); 0 < δ < 1."""
    return max(0.0, float(gaussian_epsilon_unchecked(delta, mu))) if mu > 0 else 0.0
