"""Linear regression from noisy sufficient statistics: XᵀX and Xᵀy with Gaussian noise, then a ridge solution.

Minimises ½‖Xθ - y‖² + (λ/2)‖θ‖² in sum form, |y| ≤ 1 and ‖x‖ ≤ R public.  Both statistics are one Gaussian release
whose parts are weighted so that their noises do the least harm together; everything after it is post-processing.
Derivations: docs/proofs-linear.md, sections 3 and 4; the algorithm with a noisy λ_min is AdaSSP (Wang 2018, "Revisiting
differentially private linear regression", algorithm 2), with composed Gaussians in place of thirds of ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh, eigvalsh
from scipy.special import ndtri

from dpml import errors
from dpml.accounting import ADD_REMOVE, Composed, Event, Gaussian, calibrate
from dpml.erm.losses import Rows, Vector, weighted_gram
from dpml.erm.output import Charge
from dpml.erm.rows import bounded_rows
from dpml.erm.rules import (
    AUTO,
    LARGE_N,
    RELATIVE_TOLERANCE,
    Regularization,
    changed_records,
    check_public,
    check_scales,
    sum_form,
)
from dpml.mechanisms import NoiseSource, add_gaussian

ADASSP = "adassp"
SUFFICIENT_STATISTICS = "sufficient_statistics"
VARIANTS = (SUFFICIENT_STATISTICS, ADASSP)
RIDGE_NORM = 1.0  # norm of the solution where none is given: of 1, 2 and 4 the best on balance (proofs-linear.md, 4)
MINIMUM_SHARE = 0.05  # of 1/σ² for λ_min, which is worth little; a third each is what the paper has
RIDGE_SHARE = 0.5  # public λ ÷ typical norm of the noise in XᵀX: of 0.1, 0.25, 0.4, … 1 the best on balance
FAILURE = 0.05  # ϱ, public: how often AdaSSP's bounds on its own noise may fail; accuracy, not privacy


@dataclass(frozen=True)
class AdaSspPlan:
    """What a release of sufficient statistics will do; public, made before a record is read.

    Attributes:
        epsilon, delta, neighboring_relation, accountant: the promise and who calibrated it.
        n_declared, n_features, norm_bound, solution_norm: public knowledge that it rests on.
        variant: ``"sufficient_statistics"`` (public λ) or ``"adassp"`` (λ from a noisy λ_min, a release of its own).
        cross_weight: c, the factor at Xᵀy in the joint vector (XᵀX, c Xᵀy).
        sensitivity: L2 distance of that vector between any two neighbours, Frobenius norm for XᵀX; 1e-6 for rounding
            is in it.
        noise_multiplier: of the event as a whole: 1/√(Σ 1/σ²) over its parts.
        gram_std: of an entry of the square noise matrix before it is made symmetric: entries of XᵀX have noise of
            standard deviation ``gram_std`` on and ``gram_std``/√2 off the diagonal.
        cross_std: standard deviation of the noise on Xᵀy.
        minimum_std: of the noise on λ_min; ``None`` where it is not released.
        failure: ϱ of ``"adassp"``.
        noise_norm: bound or typical value of the norm of XᵀX's noise, in which λ is measured.
        lambda_sum: the public λ (sum form); ``None`` where it follows from the noisy λ_min.
        event: what is charged.
    """

    epsilon: float
    delta: float
    neighboring_relation: str
    accountant: str
    n_declared: int
    n_features: int
    norm_bound: float
    solution_norm: float
    variant: str
    cross_weight: float
    sensitivity: float
    noise_multiplier: float
    gram_std: float
    cross_std: float
    minimum_std: float | None
    failure: float
    noise_norm: float
    lambda_sum: float | None
    event: Event

    @property
    def regularization(self) -> float | None:
        """Λ = λ/n_declared of a public λ, mean form."""
        return None if self.lambda_sum is None else self.lambda_sum / self.n_declared


def joint_sensitivity(norm_bound: float, cross_weight: float, neighboring_relation: str) -> float:
    """L2 sensitivity of (XᵀX, c Xᵀy) for ‖x‖ ≤ R, |y| ≤ 1.

    add_remove: ‖(xxᵀ, c y x)‖² = ‖x‖⁴ + c²y²‖x‖² ≤ R⁴ + c²R².  replace_one, with t = |xᵀx'| and yy' = ∓1 of the worst
    sign: ‖x‖⁴ + ‖x'‖⁴ - 2t² + c²(‖x‖² + ‖x'‖² + 2t) grows in the norms, and at R its maximum over t ∈ [0, R²] is at
    t = min(c²/2, R²): √2 (R² + c²/2) if c² ≤ 2R², else 2cR.  Both are reached, and the second is below twice the first.
    """
    square = norm_bound * norm_bound
    if changed_records(neighboring_relation) == 1:
        return math.sqrt(square * square + cross_weight**2 * square)
    if cross_weight**2 <= 2.0 * square:
        return math.sqrt(2.0) * (square + cross_weight**2 / 2.0)
    return 2.0 * cross_weight * norm_bound


def minimum_sensitivity(norm_bound: float) -> float:
    """L2 sensitivity R² of λ_min(XᵀX), for both relations.

    xxᵀ is positive semidefinite of norm at most R², so λ_min rises by something in [0, R²] (Weyl).  A replaced
    record is one more against another one more than the same remaining records: the two rises differ by at most R².
    """
    return norm_bound * norm_bound


def best_cross_weight(norm_bound: float, solution_norm: float, n_features: int, neighboring_relation: str) -> float:
    """c that makes the noise of XᵀX θ - Xᵀy least for ‖θ‖ = ``solution_norm`` = S.

    With noise of standard deviation s on the joint vector, the mean square per coordinate is s²(a + 1/c²) with
    a = S²(d+1)/(2d), since the symmetric noise W has E‖Wθ‖² = s²‖θ‖²(d+1)/2.  s is proportional to the sensitivity
    Δ(c).  Minima of Δ(c)²(a + 1/c²) in u = c²: add_remove u = R/√a; replace_one a u² + u/2 = R², at most u = 2R².
    """
    a = solution_norm**2 * (n_features + 1) / (2.0 * n_features)
    square = norm_bound * norm_bound
    if changed_records(neighboring_relation) == 1:
        return math.sqrt(norm_bound / math.sqrt(a))
    return math.sqrt(2.0 * square / (math.sqrt(0.25 + 4.0 * a * square) + 0.5))  # the root, without cancellation


def rounding_allowance(n_declared: int) -> float:
    """Relative addition to a sensitivity for sums in floating point: rounding is about u n^{3/2} records' worth."""
    return RELATIVE_TOLERANCE * max(1.0, (n_declared / LARGE_N) ** 1.5)


def noise_norm_bound(gram_std: float, n_features: int, failure: float | None) -> float:
    """Norm of the symmetric noise W with off-diagonal standard deviation ``gram_std``/√2.

    E λ_max(±W) ≤ √2 ``gram_std`` √d (Gaussian comparison), and both are ``gram_std``-Lipschitz in the normal draws, so
    that either exceeds this by ``gram_std`` √(2 ln(2/ϱ)) has probability at most ϱ (``failure``; ``None``: mean alone).
    """
    mean = math.sqrt(2.0 * n_features) * gram_std
    return mean if failure is None else mean + gram_std * math.sqrt(2.0 * math.log(2.0 / failure))


def plan_adassp(
    *,
    n_declared: int,
    n_features: int,
    epsilon: float,
    delta: float,
    neighboring_relation: str = ADD_REMOVE,
    norm_bound: float = 1.0,
    solution_norm: float = RIDGE_NORM,
    regularization: Regularization = AUTO,
    variant: str = SUFFICIENT_STATISTICS,
    failure: float = FAILURE,
    accountant: str = "best",
) -> AdaSspPlan:
    """Calibrate linear regression from noisy sufficient statistics; reads no record.

    ``"sufficient_statistics"`` is the default: with λ from a noisy λ_min as in the paper R² was lower on most sets and
    ε that were measured, and nowhere higher by more than 0.01.  λ_min of sparse or collinear rows is near 0, and where
    it is large λ hardly matters.

    Args:
        n_declared: public nominal number of records; for a given Λ and the rounding allowance only.
        n_features: d, the constant column included.
        norm_bound: public bound R on ‖x‖, the constant column included.
        solution_norm: norm of the (shrunken) solution one expects; it divides the noise between XᵀX and Xᵀy.
        regularization: ``"auto"`` or Λ in mean form, for ``"sufficient_statistics"`` only.
        variant: one of ``VARIANTS``.
        failure: ϱ of ``"adassp"``.

    Raises:
        ConfigError: a value out of range, by name.  UnsupportedEventError: an accountant that cannot bound a Gaussian.
    """
    check_public(
        n_declared=n_declared,
        n_features=n_features,
        epsilon=epsilon,
        delta=delta,
        neighboring_relation=neighboring_relation,
        norm_bound=norm_bound,
        solution_norm=solution_norm,
    )
    if variant not in VARIANTS:
        raise errors.invalid("variant", variant, f"one of {', '.join(VARIANTS)}")
    if not (isinstance(failure, float) and 0.0 < failure < 1.0):
        raise errors.invalid("failure", failure, "a number in (0, 1)")
    given = sum_form(regularization, n_declared)
    adaptive = variant == ADASSP
    if adaptive and given is not None:
        way_out = f"Use variant={SUFFICIENT_STATISTICS!r} for a λ of your own."
        raise errors.invalid("regularization", regularization, f'"auto" with variant {ADASSP!r}', way_out)
    make_event = _adaptive_event if adaptive else Gaussian
    multiplier = calibrate(
        make_event, epsilon=epsilon, delta=delta, accountant=accountant, neighboring_relation=neighboring_relation
    )
    # events count noise per record's contribution, of which neighbours differ in `changed`
    unit_multiplier = multiplier / changed_records(neighboring_relation)
    shares = _shares(adaptive)
    weight = best_cross_weight(norm_bound, solution_norm, n_features, neighboring_relation)
    slack = 1.0 + rounding_allowance(n_declared)
    sensitivity = joint_sensitivity(norm_bound, weight, neighboring_relation) * slack
    gram_std = unit_multiplier / math.sqrt(shares[-1]) * sensitivity
    norm = noise_norm_bound(gram_std, n_features, failure if adaptive else None)
    minimum_std = None
    if adaptive:
        minimum_std = unit_multiplier / math.sqrt(shares[0]) * minimum_sensitivity(norm_bound) * slack
    values = {
        "norm_bound": norm_bound,
        "solution_norm": solution_norm,
        "regularization": regularization,
        "epsilon": epsilon,
    }
    lambda_sum = None if adaptive else given or RIDGE_SHARE * norm
    cross_std = gram_std / weight
    check_scales(
        values,
        sensitivity=sensitivity,
        gram_std=gram_std,
        cross_std=cross_std,
        minimum_std=minimum_std,
        lambda_sum=lambda_sum,
    )
    return AdaSspPlan(
        epsilon=epsilon,
        delta=delta,
        neighboring_relation=neighboring_relation,
        accountant=accountant,
        n_declared=n_declared,
        n_features=n_features,
        norm_bound=norm_bound,
        solution_norm=solution_norm,
        variant=variant,
        cross_weight=weight,
        sensitivity=sensitivity,
        noise_multiplier=multiplier,
        gram_std=gram_std,
        cross_std=cross_std,
        minimum_std=minimum_std,
        failure=failure,
        noise_norm=norm,
        lambda_sum=lambda_sum,
        event=make_event(multiplier),
    )


def plan_sufficient_statistics(**public: Any) -> AdaSspPlan:
    """:func:`plan_adassp` with ``variant="sufficient_statistics"``: a public λ, and no release of λ_min."""
    return plan_adassp(**public, variant=SUFFICIENT_STATISTICS)


def fit_adassp(
    plan: AdaSspPlan, x: Any, y: ArrayLike, *, noise: NoiseSource, charge: Charge
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """The private parameters (d,) and *private* diagnostics; ``charge(plan.event)`` returns before anything is used.

    Args:
        x, y: (n, n_features), dense or CSR, and (n,) targets.  Rows are held to ``norm_bound`` and targets to [-1, 1]
            here as well; a record with NaN contributes nothing.  n = 0 is fine.
        noise: where the noise comes from.
        charge: records the event durably; when it raises, no noise is drawn and nothing is computed.
    """
    charge(plan.event)
    rows, targets = bounded_rows(x, y, norm_bound=plan.norm_bound, n_features=plan.n_features, real_targets=True)
    gram, cross = statistics(rows, targets)
    lambda_sum = plan.lambda_sum
    if lambda_sum is None:
        lambda_sum = adaptive_lambda(plan, noisy_minimum(plan, gram, noise))
    noisy_gram, noisy_cross = noisy_statistics(plan, gram, cross, noise)
    theta = ridge_solution(noisy_gram, noisy_cross, lambda_sum)
    return theta, {"lambda_sum": lambda_sum}


def statistics(x: Rows, y: Vector) -> tuple[Vector, Vector]:
    """XᵀX (d, d) and Xᵀy (d,) of rows (n, d), dense or CSR; **private**."""
    return weighted_gram(x, np.ones(x.shape[0])), np.asarray(x.T @ y, dtype=np.float64)


def noisy_statistics(plan: AdaSspPlan, gram: Vector, cross: Vector, noise: NoiseSource) -> tuple[Vector, Vector]:
    """The release: (XᵀX, c Xᵀy) + N(0, gram_std² I) on all d² + d numbers, then symmetric and divided by c.

    The last two are post-processing.  Noise on all d² entries has the Frobenius norm as its geometry, and making it
    symmetric halves the variance off the diagonal.
    """
    d = plan.n_features
    joint = np.concatenate([gram.ravel(), plan.cross_weight * cross])
    released = add_gaussian(
        joint, sensitivity=plan.sensitivity, noise_multiplier=plan.gram_std / plan.sensitivity, noise=noise
    )
    square = released[: d * d].reshape(d, d)
    return (square + square.T) / 2.0, released[d * d :] / plan.cross_weight


def noisy_minimum(plan: AdaSspPlan, gram: Vector, noise: NoiseSource) -> float:
    """The release of λ_min(XᵀX) for ``"adassp"``."""
    assert plan.minimum_std is not None
    sensitivity = minimum_sensitivity(plan.norm_bound)
    minimum = eigvalsh(gram, subset_by_index=[0, 0])
    multiplier = plan.minimum_std / sensitivity
    return float(add_gaussian(minimum, sensitivity=sensitivity, noise_multiplier=multiplier, noise=noise)[0])


def adaptive_lambda(plan: AdaSspPlan, minimum: float) -> float:
    """λ = max(0, bound on ‖noise‖ - a lower bound on λ_min), from released values alone (Wang 2018, algorithm 2).

    The lower bound is the noisy λ_min less the noise's 1 - ϱ quantile, and at least 0.
    """
    assert plan.minimum_std is not None
    lower = max(0.0, minimum - plan.minimum_std * float(-ndtri(plan.failure)))
    return max(0.0, plan.noise_norm - lower)


def ridge_solution(gram: Vector, cross: Vector, lambda_sum: float) -> Vector:
    """(gram₊ + λI)⁻¹ cross, with negative eigenvalues of the noisy ``gram`` set to 0; post-processing.

    Without λ, directions in which nothing is left of ``gram`` get the coefficient 0.
    """
    values, vectors = eigh(gram)
    kept = np.maximum(values, 0.0) + lambda_sum
    usable = kept > 1e-12 * float(np.abs(values).max(initial=0.0))
    turned = vectors.T @ cross
    return np.asarray(vectors @ np.divide(turned, kept, out=np.zeros_like(turned), where=usable))


def _shares(adaptive: bool) -> tuple[float, ...]:
    """Parts of 1/σ² of the releases, in the order in which they are made."""
    return (MINIMUM_SHARE, 1.0 - MINIMUM_SHARE) if adaptive else (1.0,)


def _adaptive_event(noise_multiplier: float) -> Event:
    return Composed(tuple(Gaussian(noise_multiplier / math.sqrt(share)) for share in _shares(True)))
