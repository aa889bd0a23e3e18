"""Canaries: records made to be found, and the scores that look for them.  Pure functions of numpy arrays.

*Gradient-space* canaries are gradients: what the worst record could contribute to a step.  *Input-space* canaries are
rows of a table, *mislabelled* ones rows of the table itself with a wrong label.  A white-box attacker sees every step's
noisy sum, a black-box attacker only the final model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml.accounting.checks import check_count, check_number, check_one_of
from dpml.errors import DataError, invalid

Array = NDArray[np.float64]


def fair_coins(count: int, *, seed: int | None = None) -> NDArray[np.bool_]:
    """Which canaries are put in ``(count,)``: each with probability 1/2, independently.

    ``seed=None`` takes fresh entropy, as an audit needs that is to convince somebody else.
    """
    return np.random.default_rng(seed).integers(0, 2, check_count("count", count, 1)).astype(bool)


def gradient_canaries(
    count: int, dimension: int, *, norm: float, kind: str = "random", seed: int | None = None
) -> NDArray[np.float32]:
    """Gradients ``(count, dimension)`` of L2 norm ``norm``, in float32.

    ``"random"``: uniform directions, which in many dimensions are nearly orthogonal.  ``"dirac"``: each on a coordinate
    of its own (Nasr et al. 2023, "Tight Auditing of Differentially Private Machine Learning", section 4), exactly
    orthogonal; needs count ≤ dimension.
    """
    count, dimension = check_count("count", count, 1), check_count("dimension", dimension, 1)
    norm = check_number("norm", norm, 0.0, above=True)
    check_one_of("kind", kind, ("random", "dirac"))
    generator = np.random.default_rng(seed)
    if kind == "dirac":
        if count > dimension:
            raise invalid("count", count, f"at most dimension = {dimension} with kind='dirac'", "Use kind='random'.")
        canaries = np.zeros((count, dimension), dtype=np.float32)
        canaries[np.arange(count), generator.permutation(dimension)[:count]] = norm
        return canaries
    canaries = generator.standard_normal((count, dimension), dtype=np.float32)
    canaries *= norm / np.linalg.norm(canaries, axis=1, keepdims=True)
    return canaries


def input_canaries(
    count: int, n_features: int, n_classes: int, *, norm_bound: float = 1.0, seed: int | None = None
) -> tuple[Array, NDArray[np.int64]]:
    """Rows ``(count, n_features)`` in random directions, as long as the public bound allows, and random labels."""
    rows = gradient_canaries(count, n_features, norm=norm_bound, seed=seed).astype(float)
    rows *= norm_bound / np.linalg.norm(rows, axis=1, keepdims=True)
    labels = np.random.default_rng(seed).integers(0, check_count("n_classes", n_classes, 2), count)
    return rows, labels.astype(np.int64)


def mislabelled(labels: ArrayLike, n_classes: int, *, seed: int | None = None) -> NDArray[np.int64]:
    """Another class for each of ``labels`` ``(n,)`` in 0 … n_classes − 1, uniform among the wrong ones."""
    n_classes = check_count("n_classes", n_classes, 2)
    given = np.asarray(labels)
    whole = given.ndim == 1 and given.dtype.kind in "iu"
    if not whole or not np.all((given >= 0) & (given < n_classes)):
        raise DataError(f"labels must be whole numbers from 0 to {n_classes - 1}, shape (n,).")
    moved = np.random.default_rng(seed).integers(1, n_classes, len(given))
    return ((given + moved) % n_classes).astype(np.int64)


def projections(canaries: ArrayLike, released: ArrayLike, norm: float) -> Array:
    """⟨cᵢ, g_t⟩/norm² ``(m, T)``: each canary's share in each step's noisy sum, 1 where it is there alone.

    Args:
        canaries: ``(m, p)`` of L2 norm ``norm``.
        released: ``(T, p)``, the noisy sums of the steps (a released mean times its public divisor).
    """
    directions, steps = np.asarray(canaries), np.atleast_2d(np.asarray(released))
    if directions.ndim != 2 or directions.shape[1] != steps.shape[1]:
        raise DataError(f"canaries {directions.shape} and released {steps.shape} must be (m, p) and (T, p).")
    return np.asarray(directions @ steps.T / check_number("norm", norm, 0.0, above=True) ** 2, dtype=float)


def white_box_scores(shares: ArrayLike) -> Array:
    """Σ over the steps of :func:`projections` ``(…, T)``: higher for members; best where q = 1."""
    return np.asarray(shares, dtype=float).sum(axis=-1)


def likelihood_scores(shares: ArrayLike, sample_rate: float, noise_multiplier: float) -> Array:
    """Log likelihood ratio of "in" to "out", summed over the steps: what no other white-box score beats.

    A step's share x is N(0, σ²) without the canary and, with it, N(1, σ²) with probability q:
    Σ ln(1 − q + q e^{(2x − 1)/(2σ²)}).

    Args:
        shares: ``(…, T)``, from :func:`projections`.
        sample_rate: q in (0, 1].
        noise_multiplier: σ, noise standard deviation ÷ clipping norm; other canaries in the same steps are ignored.
    """
    q = check_number("sample_rate", sample_rate, 0.0, 1.0, above=True)
    sigma = check_number("noise_multiplier", noise_multiplier, 0.0, above=True)
    ratios = (2 * np.asarray(shares, dtype=float) - 1) / (2 * sigma**2)
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-q), np.log(q) + ratios).sum(axis=-1)


def black_box_scores(loss_before: ArrayLike, loss_after: ArrayLike) -> Array:
    """How much a canary's loss fell from a reference (the untrained model, say) to the release: higher for members."""
    before, after = np.asarray(loss_before, dtype=float), np.asarray(loss_after, dtype=float)
    if before.shape != after.shape:
        raise DataError(f"loss_before {before.shape} and loss_after {after.shape} must have the same shape.")
    return before - after
