"""The convex problems behind one model: one of them, or one against the rest for each of three and more classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpml import errors
from dpml.erm.losses import GlmLoss, Rows, Vector
from dpml.erm.rows import bounded_rows
from dpml.erm.solver import minimise

CLASSIFIERS = ("logistic", "smoothed_hinge")


@dataclass(frozen=True)
class Solved:
    """Verified minima, shape (d,) for one problem and (K, d) for K; the rest is private."""

    theta: NDArray[np.float64]
    diagnostics: dict[str, Any]


def problem_count(loss: GlmLoss, n_classes: int) -> int:
    """1 for two classes or a regression, K for K > 2 classes (one against the rest); ConfigError by name."""
    if isinstance(n_classes, bool) or n_classes != int(n_classes) or n_classes < 2:
        raise errors.invalid("n_classes", n_classes, "a whole number >= 2")
    if n_classes > 2 and loss.name not in CLASSIFIERS:
        raise errors.invalid("n_classes", n_classes, f"2 with loss={loss.name!r}, which is for regression")
    return 1 if n_classes == 2 else int(n_classes)


def problem_targets(
    loss: GlmLoss, x: Any, y: ArrayLike, *, norm_bound: float, n_features: int, n_problems: int
) -> tuple[Rows, list[Vector]]:
    """Bounded rows, and the targets of each problem.

    Args:
        x: (n, n_features), dense or CSR.
        y: (n,): ±1 for two classes, class indexes 0 … K−1 for K problems, numbers in [−1, 1] for a regression.  A
            record with another target contributes nothing: its row is zero, so its label does not matter.
    """
    if n_problems == 1:
        real = loss.name not in CLASSIFIERS
        rows, targets = bounded_rows(x, y, norm_bound=norm_bound, n_features=n_features, real_targets=real)
        return rows, [targets]
    labels = np.asarray(y, dtype=np.float64)
    known = np.isin(labels, np.arange(n_problems))
    signs = np.where(known, np.where(labels == 0, 1.0, -1.0), 0.0)
    rows, _ = bounded_rows(x, signs, norm_bound=norm_bound, n_features=n_features)
    return rows, [np.where(labels == k, 1.0, -1.0) for k in range(n_problems)]


def solve_all(
    loss: GlmLoss, rows: Rows, targets: list[Vector], lambda_sum: float, linear: Vector | None, tolerance: float
) -> Solved:
    """The minimum of every problem, each with ‖∇J‖ ≤ ``tolerance``; ``linear`` (d,) or (K, d) or ``None``.

    Raises:
        SolverError: one of them has no verified minimum.
    """
    terms = [None] * len(targets) if linear is None else list(np.reshape(linear, (len(targets), -1)))
    solutions = [
        minimise(rows, y, lambda_sum, linear=term, tolerance=tolerance, loss=loss)
        for y, term in zip(targets, terms, strict=True)
    ]
    theta = np.stack([solution.theta for solution in solutions])
    return Solved(
        theta[0] if len(targets) == 1 else theta,
        {
            "gradient_norm": max(solution.gradient_norm for solution in solutions),
            "iterations": sum(solution.iterations for solution in solutions),
        },
    )


def weight_shape(n_features: int, n_problems: int) -> tuple[int, ...]:
    """(d,) for one problem, (K, d) for K."""
    return (n_features,) if n_problems == 1 else (n_problems, n_features)
