"""Bugs of DP-SGD, each by one seam of the engine, that an audit must find without a look at the code.

Used by the planted-bug tests and by ``experiments/audit.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from dpml.sgd import engine


class Patch(Protocol):
    """What ``pytest.MonkeyPatch`` has."""

    def setattr(self, target: Any, name: str, value: Any) -> None: ...


def half_the_noise(patch: Patch) -> None:
    real = engine.noise_std
    patch.setattr(engine, "noise_std", lambda plan, clip: 0.5 * real(plan, clip))


def noise_of_the_mean_on_the_sum(patch: Patch) -> None:
    """Divided by the batch twice."""
    real = engine.noise_std
    patch.setattr(engine, "noise_std", lambda plan, clip: real(plan, clip) / plan.expected_batch_size)


def noise_divided_by_the_root_of_the_steps(patch: Patch) -> None:
    real = engine.noise_std
    patch.setattr(engine, "noise_std", lambda plan, clip: real(plan, clip) / plan.steps**0.5)


def clipped_at_twice_the_norm(patch: Patch) -> None:
    real = engine.clip_bound
    patch.setattr(engine, "clip_bound", lambda clip, grid, double: 2 * real(clip, grid, double))


def everybody_in_every_step(patch: Patch) -> None:
    patch.setattr(engine, "draw_batch", lambda plan, rows, noise, team: np.arange(len(rows)))


def sampled_at_three_times_the_rate(patch: Patch) -> None:
    def draw(plan: Any, rows: Any, noise: Any, team: Any) -> np.ndarray:
        return team.mine(engine.poisson_indices, noise, len(rows), min(1.0, 3 * plan.sample_rate))

    patch.setattr(engine, "draw_batch", draw)


def each_record_twice(patch: Patch) -> None:
    real = engine.draw_batch
    patch.setattr(engine, "draw_batch", lambda plan, rows, noise, team: np.repeat(real(plan, rows, noise, team), 2))


def noise_in_half_of_the_coordinates(patch: Patch) -> None:
    real = engine.draw_noise

    def draw(noise: Any, std: float, spacing: float, size: int) -> np.ndarray:
        drawn = real(noise, std, spacing, size)
        drawn[::2] = 0
        return drawn

    patch.setattr(engine, "draw_noise", draw)


def uniform_noise_of_the_same_variance(patch: Patch) -> None:
    def draw(noise: Any, std: float, spacing: float, size: int) -> np.ndarray:
        return np.rint((noise.uniform(size) - 0.5) * (std / spacing) * 12**0.5)

    patch.setattr(engine, "draw_noise", draw)


def sum_not_noised_in_the_first_step(patch: Patch) -> None:
    real, seen = engine.released_sum, []

    def released(grid: Any, total: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return real(grid, total, noise * (len(seen) > 1))

    patch.setattr(engine, "released_sum", released)


ENGINE_BUGS: list[tuple[Callable[[Patch], None], dict[str, Any], str]] = [
    (half_the_noise, {"epsilon": 2.0}, "half the noise"),
    (noise_of_the_mean_on_the_sum, {"epsilon": 4.0}, "noise divided by the batch twice"),
    (noise_divided_by_the_root_of_the_steps, {"epsilon": 2.0, "steps": 9}, "noise divided by the root of the steps"),
    (clipped_at_twice_the_norm, {"epsilon": 2.0}, "clipped at 2C"),
    (everybody_in_every_step, {"epsilon": 2.0, "steps": 8, "sample_rate": 0.2}, "everybody in every step, q charged"),
    (sampled_at_three_times_the_rate, {"epsilon": 2.0, "steps": 8, "sample_rate": 0.2}, "sampled at 3q, q charged"),
    (each_record_twice, {"epsilon": 2.0}, "each record twice in a batch"),
    (noise_in_half_of_the_coordinates, {"epsilon": 4.0}, "half of the coordinates without noise"),
    (uniform_noise_of_the_same_variance, {"epsilon": 2.0, "steps": 1}, "uniform noise of the same variance"),
    (sum_not_noised_in_the_first_step, {"epsilon": 2.0}, "no noise in the first step"),
]
