"""How many records each method needs: bounds on the excess risk of private logistic regression, inverted.

The setting: logistic loss on rows of norm at most ``norm_bound`` = L (so L bounds a record's gradient and β = L²/4 its
curvature, also the trace of its rank-one Hessian), all d coordinates noised, and a comparator θ* of norm at most
``solution_norm`` = R, which the user chooses.  F is the sum of the losses of the n records; the excess *empirical* risk
is E F(θ)/n − F(θ*)/n, the mean over the noise alone.  s = s(ε, δ) is the noise multiplier of the analytic Gaussian
mechanism (Balle & Wang 2018, Theorem 8), k = 1 under ``add_remove`` and 2 under ``replace_one``.

All three bounds are derivations of ours; each stands with its method.  They take the public n for the number of
records, exact minimisation (the solver's tolerance is nothing beside the noise) and no clipped rows.  They bound the
empirical risk; :func:`statistics_n` is the part of the population risk that would remain without privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from dpml.accounting.checks import check_number
from dpml.accounting.conversions import find_root, gaussian_epsilon, gaussian_noise_multiplier
from dpml.accounting.events import ADD_REMOVE, REPLACE_ONE, check_relation
from dpml.errors import AccountingError

LARGEST_EPSILON = 1e4
SMALLEST_EPSILON = 1e-6


@dataclass(frozen=True)
class Setting:
    """What stays fixed while one of n, d, ε and α is solved for.

    Attributes:
        delta: δ in (0, 1).
        norm_bound: L > 0, bound on a row's norm, the constant column included.
        solution_norm: R > 0, norm of the solution that one would accept.
        neighboring_relation: ``"add_remove"`` or ``"replace_one"``.
    """

    delta: float
    norm_bound: float = 1.0
    solution_norm: float = 15.0
    neighboring_relation: str = ADD_REMOVE

    def __post_init__(self) -> None:
        check_number("delta", self.delta, 0.0, 1.0, above=True, below=True)
        check_number("norm_bound", self.norm_bound, 0.0, above=True)
        check_number("solution_norm", self.solution_norm, 0.0, above=True)
        check_relation(self.neighboring_relation)

    @property
    def changed(self) -> int:
        """Records in which two neighbours differ: k."""
        return 2 if self.neighboring_relation == REPLACE_ONE else 1


class Method(Protocol):
    """The same bound solved for each of its four quantities; all arguments are positive."""

    def excess_risk(self, n: float, d: float, epsilon: float, setting: Setting) -> float: ...
    def n(self, d: float, epsilon: float, excess_risk: float, setting: Setting) -> float: ...
    def d(self, n: float, epsilon: float, excess_risk: float, setting: Setting) -> float: ...
    def epsilon(self, n: float, d: float, excess_risk: float, setting: Setting) -> float: ...


class NoisyDescent:
    """``dp_sgd`` and ``dp_gd``: α = L R √d k s / n.

    Full-batch gradient descent with T steps of size η ≤ 1/β on F/n, each gradient with noise of standard deviation
    k L s √T / n a coordinate (T Gaussian releases with multiplier s√T are one with s).  From θ₀ = 0 and for θ* the
    minimum, its norm at most R, ‖θ_{t+1} − θ*‖² = ‖θ_t − θ*‖² − 2η⟨g_t + ξ_t, θ_t − θ*⟩ + η²‖g_t + ξ_t‖² and
    ⟨g_t, θ_t − θ*⟩ ≥ (F(θ_t) − F(θ*))/n + ‖g_t‖²/(2β) (a convex, β-smooth F/n; Nesterov 2004, Theorem 2.1.5); summed
    over t, with η ≤ 1/β, the averaged iterate has excess at most R²/(2ηT) + (η/2) d (k L s/n)² T.  With r = ηT it is
    R²/(2r) + r d (k L s)²/(2n²), least at r = R n/(k L s √d), where both terms are the same: the bound.

    Sampled steps of rate q and noise σ have σ/(q√T) in place of s, which is never smaller: this is the best case of
    DP-SGD, that of large batches.
    """

    def excess_risk(self, n: float, d: float, epsilon: float, setting: Setting) -> float:
        return self._cost(d, epsilon, setting) / n

    def n(self, d: float, epsilon: float, excess_risk: float, setting: Setting) -> float:
        return self._cost(d, epsilon, setting) / excess_risk

    def d(self, n: float, epsilon: float, excess_risk: float, setting: Setting) -> float:
        return float((n * excess_risk / self._cost(1.0, epsilon, setting)) ** 2)

    def epsilon(self, n: float, d: float, excess_risk: float, setting: Setting) -> float:
        scale = setting.norm_bound * setting.solution_norm * math.sqrt(d) * setting.changed
        return _epsilon_of_noise(n * excess_risk / scale, setting)

    def _cost(self, d: float, epsilon: float, setting: Setting) -> float:
        noise = setting.changed * gaussian_noise_multiplier(epsilon, setting.delta)
        return setting.norm_bound * setting.solution_norm * math.sqrt(d) * noise


class Output:
    """``output``: α = ¾ (2 β k² L² s²)^{1/3} R^{4/3} n^{−2/3}; d does not enter.

    θ_λ minimises F + (λ/2)‖θ‖²; released is θ_λ + ξ with ξ ~ N(0, (k L s/λ)² I), as the minimiser moves by at most
    k L/λ.  F(θ_λ) ≤ F(θ*) + λR²/2.  A record's loss has curvature at most β along its row, so
    F(θ_λ + ξ) ≤ F(θ_λ) + ⟨∇F, ξ⟩ + ½ ξᵀMξ with tr M ≤ nβ, and the mean over ξ adds at most nβ(k L s/λ)²/2: noise
    across the row changes no prediction, which is why d is absent.  The sum is least at λ = (2nβk²L²s²/R²)^{1/3}, where
    it is ¾λR².  (Chaudhuri, Monteleoni & Sarwate 2011, Theorem 16, has d, because it bounds ‖ξ‖.)
    """

    def excess_risk(self, n: float, d: float, epsilon: float, setting: Setting) -> float:
        return self._cost(epsilon, setting) ** (2 / 3) * n ** (-2 / 3)

    def n(self, d: float, epsilon: float, excess_risk: float, setting: Setting) -> float:
        return self._cost(epsilon, setting) / float(excess_risk**1.5)

    def d(self, n: float, epsilon: float, excess_risk: float, setting: Setting) -> float:
        """``inf`` where the other three fit together: d does not enter; else 0."""
        return math.inf if self.n(1.0, epsilon, excess_risk, setting) <= n else 0.0

    def epsilon(self, n: float, d: float, excess_risk: float, setting: Setting) -> float:
        return _epsilon_of_noise(n * excess_risk**1.5 / self._unit(setting), setting)

    def _unit(self, setting: Setting) -> float:
        """α^{3/2} n / s."""
        curvature = setting.norm_bound**2 / 4.0
        sensitivity = setting.changed * setting.norm_bound
        return 0.75**1.5 * math.sqrt(2.0 * curvature) * sensitivity * setting.solution_norm**2

    def _cost(self, epsilon: float, setting: Setting) -> float:
        return self._unit(setting) * gaussian_noise_multiplier(epsilon, setting.delta)


class Objective:
    """``objective``: α = (λR²/2 + dσ²/(2λ))/n with λ = max(L²/ε₁, √d σ/R): L R √d s/n as soon as λ is the latter.

    θ̂ minimises F + (λ/2)‖θ‖² + bᵀθ, b ~ N(0, σ² I).  Being the minimum it has F(θ̂) − F(θ*) ≤ λ(R² − ‖θ̂‖²)/2 +
    bᵀθ* − bᵀθ̂; the mean of bᵀθ* is 0 and −λt²/2 + ‖b‖t ≤ ‖b‖²/(2λ) for every t, so the mean is at most
    λR²/2 + dσ²/(2λ).

    Under add_remove σ = L s(ε, δ) and λ ≥ L²/ε (docs/proofs-objective.md: no price for the Jacobian from there on);
    ε₁ = ε.  Under replace_one two neighbours are a group of two: ε₁ = ε/2 at δ₁ = δ/(1 + e^{ε/2}).  (A run takes the
    smaller of that and of the direct bound, so it needs no more records than this says.)
    """

    def excess_risk(self, n: float, d: float, epsilon: float, setting: Setting) -> float:
        return self._cost(d, epsilon, setting) / n

    def n(self, d: float, epsilon: float, excess_risk: float, setting: Setting) -> float:
        return self._cost(d, epsilon, setting) / excess_risk

    def d(self, n: float, epsilon: float, excess_risk: float, setting: Setting) -> float:
        """The cost inverted: linear in d while λ = L²/ε₁, then as √d."""
        noise, least = self._noise(epsilon, setting)
        norm, cost = setting.solution_norm, n * excess_risk
        if cost >= least * norm**2:
            return float((cost / (norm * noise)) ** 2)
        return max(0.0, (cost - least * norm**2 / 2.0) * 2.0 * least / noise**2)

    def epsilon(self, n: float, d: float, excess_risk: float, setting: Setting) -> float:
        """The smallest ε, by bisection of the falling cost; SMALLEST_EPSILON where that is enough."""

        def too_much(log_epsilon: float) -> float:
            return math.log(self._cost(d, math.exp(log_epsilon), setting)) - math.log(n * excess_risk)

        low, high = math.log(SMALLEST_EPSILON), math.log(LARGEST_EPSILON)
        if too_much(low) <= 0.0:
            return SMALLEST_EPSILON
        if too_much(high) > 0.0:
            raise _unreachable()
        return math.exp(find_root(too_much, low, high, xtol=1e-13, rtol=1e-13)) * (1.0 + 1e-12)

    def _noise(self, epsilon: float, setting: Setting) -> tuple[float, float]:
        """(σ, the least λ)."""
        delta = setting.delta
        if setting.changed == 2:
            epsilon = epsilon / 2.0
            delta = delta / (1.0 + math.exp(min(epsilon, 600.0)))
        noise = setting.norm_bound * gaussian_noise_multiplier(epsilon, delta)
        return noise, setting.norm_bound**2 / epsilon

    def _cost(self, d: float, epsilon: float, setting: Setting) -> float:
        noise, least = self._noise(epsilon, setting)
        weight = max(least, math.sqrt(d) * noise / setting.solution_norm)
        return weight * setting.solution_norm**2 / 2.0 + d * noise**2 / (2.0 * weight)


METHODS: dict[str, Method] = {"output": Output(), "objective": Objective(), "dp_sgd": NoisyDescent()}


def statistics_n(excess_risk: float, setting: Setting) -> float:
    """n = L²R²/α²: what the data themselves ask for, with no privacy.

    One pass of averaged gradient steps over n independent records has expected excess population risk at most L R/√n
    against any θ* of norm R (Nemirovski, Juditsky, Lan & Shapiro 2009, section 2.2, with fixed step R/(L√n)); no
    method does better by more than a constant in the worst case.  Real tables need far fewer.
    """
    return float((setting.norm_bound * setting.solution_norm / excess_risk) ** 2)


def statistics_excess_risk(n: float, setting: Setting) -> float:
    """α = L R/√n of :func:`statistics_n`."""
    return setting.norm_bound * setting.solution_norm / math.sqrt(n)


def _epsilon_of_noise(noise_multiplier: float, setting: Setting) -> float:
    """The smallest ε at which the Gaussian mechanism needs no more than this noise; 0 where δ alone allows it."""
    if noise_multiplier <= 0.0 or 1.0 / noise_multiplier > 1e150:
        raise _unreachable()
    found = gaussian_epsilon(setting.delta, 1.0 / noise_multiplier)
    if found > LARGEST_EPSILON:
        raise _unreachable()
    return found


def _unreachable() -> AccountingError:
    return AccountingError(f"no epsilon up to {LARGEST_EPSILON:g} is enough: raise n or excess_risk, or lower d.")
