"""Public rules shared by output and objective perturbation: what is checked and decided before a record is read."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Literal

from dpml import errors
from dpml.accounting import ADD_REMOVE, RELATIONS, REPLACE_ONE
from dpml.ranges import LIMITS, check_norm_bound, is_number, is_within

AUTO: Literal["auto"] = "auto"
Regularization = float | str

RELATIVE_TOLERANCE = 1e-6
LEAST_RATIO = 1e-4  # of λ and the largest curvature of one record
LINEAR_TOLERANCE = 1e-9  # of the linear term's norm
NORMAL = 1e-290  # what is smaller may lose digits, and then noise and sensitivity are not what they claim
LARGE_N = 1_000_000  # beyond it the rounding of a sum over the records asks for a larger tolerance


def check_public(
    *,
    n_declared: int,
    n_features: int,
    epsilon: float | None,
    delta: float,
    neighboring_relation: str,
    norm_bound: float | None,
    solution_norm: float,
    pure: bool = False,
) -> None:
    """Refuse, by name, every public value for which no theorem of this package holds (``ConfigError``).

    ``pure``: the noise is of the kind that gives δ = 0, and then δ must be 0.
    """
    for name, whole in (("n_declared", n_declared), ("n_features", n_features)):
        if not is_number(whole) or whole != int(whole) or whole < 1:
            raise errors.invalid(name, whole, "a whole number >= 1")
    check_norm_bound(norm_bound)
    for name, number in (("epsilon", epsilon), ("solution_norm", solution_norm)):
        low, high = LIMITS[name]
        if not is_within(number, low, high):
            raise errors.invalid(name, number, f"a finite number > 0 (from {low:g} to {high:g})")
    if not is_number(delta):
        raise errors.invalid("delta", delta, "a number in [0, 1)")
    if pure and delta != 0.0:
        raise errors.invalid("delta", delta, "0 with noise that gives pure ε-DP", "Gaussian noise uses δ > 0.")
    if not pure and not 0.0 < delta < 1.0:
        way_out = "Gaussian noise gives no pure DP; noise='gamma' (output) or variant='pure' (objective) does."
        raise errors.invalid("delta", delta, "a number in (0, 1)", way_out)
    if neighboring_relation not in RELATIONS:
        raise errors.invalid("neighboring_relation", neighboring_relation, f"one of {RELATIONS}")


def check_scales(given: Mapping[str, object], most: float = math.inf, **scales: float | None) -> None:
    """ConfigError where a plan's noise or sensitivity is no normal float > 0; checked before anything is charged.

    Args:
        given: the arguments that the scales follow from, for the message.
        most: largest number that the plan can use, where it is smaller than the largest float.
        scales: numbers of the plan; ``None`` for one that it does not have.
    """
    for name, value in scales.items():
        if value is None:
            continue
        if not NORMAL <= value <= min(most, sys.float_info.max):
            values = ", ".join(f"{key} = {one!r}" for key, one in given.items())
            raise errors.ConfigError(
                f"{values} give a plan with {name} = {value!r}: it must be a finite number > 0"
                + (f", at most {most:g}" if most < math.inf else " that floats can hold")
                + ". Bring the arguments closer to 1, for example by rescaling features and norm_bound."
            )


def changed_records(neighboring_relation: str) -> int:
    """How many record contributions two neighbours differ in: 1 (add_remove), 2 (replace_one: one out, one in)."""
    return {ADD_REMOVE: 1, REPLACE_ONE: 2}[neighboring_relation]


def sum_form(regularization: Regularization, n_declared: int) -> float | None:
    """``lambda_sum`` = Λ · n_declared of a given mean-form Λ; ``None`` for ``"auto"``.

    The objective (1/n_declared) Σ ℓ + (Λ/2)‖θ‖² times the *public* n_declared is Σ ℓ + (Λ n_declared/2)‖θ‖².
    """
    if isinstance(regularization, str) and regularization == AUTO:
        return None
    if not is_number(regularization) or not float(regularization) > 0.0:
        way_out = "The proofs need strong convexity."
        raise errors.invalid("regularization", regularization, '"auto" or a finite number > 0 (mean form)', way_out)
    return float(regularization) * n_declared


def least_lambda(smoothness: float) -> float:
    """The smallest λ of the sum form that is used: below it no minimum of every data set can be verified in floats.

    It is public, so that a run which could fail on some records is refused on all (a failure would tell them apart).
    """
    return LEAST_RATIO * smoothness


def check_lambda(lambda_sum: float, smoothness: float, n_declared: int, regularization: Regularization) -> None:
    """ConfigError for a given λ below :func:`least_lambda`."""
    if lambda_sum < least_lambda(smoothness):
        raise errors.invalid(
            "regularization",
            regularization,
            f"at least {least_lambda(smoothness) / n_declared:.3g} (mean form) for this norm_bound and n_declared",
            "With less, the minimum cannot be verified as exactly as the proof needs; 'auto' takes care of it.",
        )


def solver_tolerance(norm_bound: float, n_declared: int, *, lipschitz: float = 0.0, linear: float = 0.0) -> float:
    """τ, the verified bound on the gradient norm in sum form; public, in units of one record's gradient bound.

    ``lipschitz`` counts where it is above ``norm_bound``, and of a linear term of norm about ``linear`` the share that
    rounding may take.
    """
    unit = max(norm_bound, lipschitz) * max(1.0, n_declared / LARGE_N)
    return max(RELATIVE_TOLERANCE * unit, LINEAR_TOLERANCE * linear)


def approximation_slack(tolerance: float, lambda_sum: float) -> float:
    """2τ/λ: how much farther apart two approximate minimisers can be than the exact ones.

    Strong convexity puts each within ‖∇J‖/λ ≤ τ/λ of its exact minimiser, and there are two of them, hence the 2.
    """
    return 2.0 * tolerance / lambda_sum
