"""Secret noise against torch and numpy, in nanoseconds a value: a Markdown table.

    python experiments/benchmarks/noise.py [--quick] [--json FILE]

Ours is :class:`dpml.mechanisms.SecretNoise` (AES in counter mode, keyed by the operating system, float64) on one
thread and on its own number of threads; the peers' streams are fast and can be predicted: ``torch.randn`` and
``torch.rand`` in float64 and float32 on one thread, and numpy's ``Generator`` (PCG64).  Many short runs in turns;
medians, and in brackets the ratio of the least times.  The exit status is 0 whatever the times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from dp_sgd import NOISE_TARGET, Figure, Step, Times, arguments_of, discard, finish, machine, race, report, threads

from dpml.mechanisms import SecretNoise

SIZES = (1_000, 2**20)
ROUNDS, QUICK_ROUNDS = 40, 3
ALONE, SEVERAL = "ours, one thread", "ours"
KINDS = ("normal", "rounded normal", "uniform")
TARGETED = ("normal", 2**20, SEVERAL, "torch, float64")  # what dp_sgd.py has a target for; its steps draw rounded


def draws(kind: str, size: int) -> dict[str, Callable[[], object]]:
    """What draws ``size`` standard normals or uniforms, by name; one call is one array."""
    alone, several, numpy = SecretNoise(threads=1), SecretNoise(), np.random.default_rng()
    if kind != "uniform":
        ours = several.normal, alone.normal
        if kind == "rounded normal":  # the noise of DP-SGD in steps of its grid; the peers' draws are not rounded
            ours = (
                lambda std, many: several.rounded(2.0**21, std, many),
                lambda std, many: alone.rounded(2.0**21, std, many),
            )
        return {
            SEVERAL: lambda: ours[0](1.0, size),
            ALONE: lambda: ours[1](1.0, size),
            "torch, float64": lambda: torch.randn(size, dtype=torch.float64),
            "torch, float32": lambda: torch.randn(size),
            "numpy, float64": lambda: numpy.standard_normal(size),
        }
    return {
        SEVERAL: lambda: several.uniform(size),
        ALONE: lambda: alone.uniform(size),
        "torch, float64": lambda: torch.rand(size, dtype=torch.float64),
        "torch, float32": lambda: torch.rand(size),
        "numpy, float64": lambda: numpy.random(size),
    }


def per_value(seconds: float, size: int) -> str:
    """Nanoseconds a value."""
    return f"{seconds / size * 1e9:.2f} ns"


def compared(kind: str, size: int, times: dict[str, Times]) -> list[Figure]:
    """Ours, with each number of threads, over every peer."""
    found = []
    for ours in (SEVERAL, ALONE):
        for peer in (name for name in times if name not in (SEVERAL, ALONE)):
            ratio = times[ours].median / times[peer].median
            target = NOISE_TARGET if (kind, size, ours, peer) == TARGETED else None
            found.append(
                Figure(
                    f"{size:,} {kind}s: {ours} ÷ {peer}",
                    per_value(times[ours].median, size),
                    per_value(times[peer].median, size),
                    f"{ratio:.2f} × ({times[ours].least / times[peer].least:.2f})",
                    "–" if target is None else f"≤ {target:g} ×",
                    None if target is None else ratio <= target,
                    ratio,
                )
            )
    return found


def figures(quick: bool) -> list[Figure]:
    """Every kind and size."""
    found = []
    for kind in KINDS:
        for size in SIZES[:1] if quick else SIZES:
            with threads(1):
                steps = {name: Step(partial(discard, draw)) for name, draw in draws(kind, size).items()}
                times = race(steps, QUICK_ROUNDS if quick else ROUNDS, 2.0)
            found += compared(kind, size, times)
    return found


def main() -> int:
    """Print the table."""
    arguments = arguments_of(__doc__, ()).parse_args()
    where = machine()
    finish(report([lambda: figures(arguments.quick)]), where, arguments.quick, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
