"""Adaptive clipping: the bound follows a quantile of the gradient norms, estimated from a charged count.

Andrew, Thakkar, McMahan and Ramaswamy 2021, "Differentially private learning with adaptive clipping", Algorithm 1 and
Theorem 1.  A step with bound C releases two sums over its batch S together:

    Σ_{i∈S} clip_C(g_i) + N(0, (σ_Δ C)² I)    and    Σ_{i∈S} m (b_i − ½) + N(0, σ_b²).

In the paper b_i = 1[‖g_i‖ ≤ C] and m = 1.  A norm may be rounded a little differently in a batch of another size, and
where many are equal to C, a step would let one record turn all of them over.  So b_i falls from 1 to 0 between (1 − w)C
and (1 + w)C in a straight line, w = 1/8, and m = 1 − 2⁻⁶ leaves room for what rounding moves in a count: a measured
margin for float32, as the engine's for the sum (a few 1e-7 of each norm).

One record contributes at most C to the first and less than ½ to the second (``add_remove``; 2C and 1 under
``replace_one``, twice both).  Divided by the noise, the joint contribution has norm at most
(σ_Δ⁻² + (2σ_b)⁻²)^½, which is 1/σ for

    σ_Δ = (σ⁻² − (2σ_b)⁻²)^(−½),

so that the step is one Gaussian release with noise multiplier σ, sampled as before: the event does not change, the
gradient's noise does.  The bound of the next step, C · exp(−η_C (b̃ − q)) with the released share
b̃ = ½ + count/(mB) and the wanted quantile q, is post-processing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from dpml import errors
from dpml.mechanisms import NoiseSource
from dpml.mechanisms.lattice import Grid
from dpml.mechanisms.noise import rounded_normal
from dpml.ranges import LIMITS

if TYPE_CHECKING:
    from dpml.sgd.planning import DPSGDPlan

_UP = 1.0 + 1e-15  # rounding goes to the safe side
RAMP = 1.0 / 8.0  # w: a norm that is rounded by 1e-7 of itself moves its b by 4e-7
COUNTED = 1.0 - 2.0**-6  # m
MOST_EXPONENT = 10.0  # of one step of the bound; a draw of the count's noise cannot overflow it


def raised_noise_multiplier(noise_multiplier: float, count_noise: float) -> float:
    """σ_Δ, the gradient's noise multiplier beside a count with noise σ_b.

    Raises:
        ConfigError: σ_b ≤ σ/2, so that the count alone would use more than the whole release may.
    """
    share = noise_multiplier / (2.0 * count_noise)
    if not share < 1.0:
        raise errors.invalid(
            "count_noise",
            count_noise,
            f"above noise_multiplier/2 = {noise_multiplier / 2.0:.6g} records",
            f"Twice the noise multiplier raises the gradient's noise by 3 %: count_noise = {2 * noise_multiplier:.3g}; "
            "or use a larger expected_batch_size.",
        )
    return noise_multiplier / math.sqrt((1.0 - share) * (1.0 + share)) * _UP


def unclipped_count(norms: torch.Tensor, clip: float) -> float:
    """Σ m (b_i − ½) over the batch's norms ``(B,)``: each record moves it by at most m/2, with room for rounding.

    A norm that is not finite counts as clipped.
    """
    within = ((1.0 + RAMP - norms.double() / clip) / (2.0 * RAMP)).clamp(0.0, 1.0)
    within = torch.where(torch.isfinite(norms), within, 0.0)
    return COUNTED * (float(within.sum()) - 0.5 * len(norms))


def noisy_count(
    plan: DPSGDPlan,
    norms: torch.Tensor,
    clip: float,
    noise: NoiseSource,
    noise_share: float = 1.0,
    sums: int = 1,
) -> float:
    """The charged release of :func:`unclipped_count`, once per logical step, also for an empty batch.

    On the grid of :class:`~dpml.mechanisms.lattice.Grid`, whose rounding m leaves room for, too.

    Args:
        norms: ``(B,)`` before clipping, of one logical step.
        noise_share, sums: this process' part of the noise where several add up their counts, and how many do.
    """
    grid = Grid(0.5, 1, sums)
    steps = rounded_normal(noise, plan.count_noise_std * noise_share, grid.spacing, 1)
    return float(grid.add(np.array([unclipped_count(norms, clip)]), steps)[0])


def next_clip(plan: DPSGDPlan, clip: float, released_count: float) -> float:
    """The bound of the next step, kept within the range of ``max_grad_norm``; post-processing."""
    share = 0.5 + released_count / (COUNTED * plan.expected_batch_size)
    exponent = -plan.clip_learning_rate * (share - plan.target_quantile)
    low, high = LIMITS["max_grad_norm"]
    return min(max(clip * math.exp(min(max(exponent, -MOST_EXPONENT), MOST_EXPONENT)), low), high)
