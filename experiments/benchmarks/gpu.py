"""DP-SGD steps on a CUDA device against plain PyTorch and opacus: a Markdown table.

    python experiments/benchmarks/gpu.py [--quick] [--json FILE] [--only NAME ...]

The models, competitors and figures are those of dp_sgd.py; the device is synchronised before the clock is read, and
the first steps are not timed.  Noise comes from the secret source on the CPU and is copied to the device, as in a run.
Memory is the device allocator's peak in three steps, less what it held before the model was made.  The targets are
those of the CPU, for orientation.  Without a CUDA device it says so; the exit status is 0 in any case.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable

import torch
from dp_sgd import MEMORY_TARGET, Figure, arguments_of, finish, machine, report, steps_of
from dp_sgd_competitors import OPACUS, OURS, attempt, make_step
from dp_sgd_models import PLAIN, TASKS, Task

DEVICE = "cuda"


def peak(task: Task, competitor: str, size: int) -> int:
    """Bytes that the allocator held at most in three steps, less those before."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step = make_step(task, competitor, size, DEVICE)
    for _ in range(3):
        step()
    step.wait()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def memory_of(task: Task, quick: bool) -> list[Figure]:
    """Peak device memory of each competitor."""
    size = task.quick_size if quick else task.batch_size
    plain, found = peak(task, PLAIN, size), []
    for name in (OURS, *(f"opacus {mode}" for mode in OPACUS)):
        value, error = attempt(lambda name=name: peak(task, name, size))  # type: ignore[misc]
        title = f"{task.title}: peak device memory, {name}"
        if value is None:
            found.append(Figure(title, error))
            continue
        more, aim = value / plain - 1, name == OURS
        found.append(
            Figure(
                title,
                f"{value / 2**20:.1f} MiB",
                f"{plain / 2**20:.1f} MiB",
                f"{more:+.0%}",
                f"≤ {MEMORY_TARGET:.0%} more than plain" if aim else "–",
                more <= MEMORY_TARGET if aim else None,
                more,
            )
        )
    return found


def main() -> int:
    """Print the table, or that there is no device; 0 in any case."""
    arguments = arguments_of(__doc__, tuple(task.name for task in TASKS)).parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device")
        return 0
    warnings.simplefilter("ignore")  # the peers' own
    quick, chosen = arguments.quick, [task for task in TASKS if task.name in arguments.only]
    parts: list[Callable[[], list[Figure]]] = []
    for task in chosen:
        parts.append(lambda task=task: steps_of(task, quick, DEVICE))  # type: ignore[misc]
        parts.append(lambda task=task: memory_of(task, quick))  # type: ignore[misc]
    where = {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda), **machine()}
    finish(report(parts), where, quick, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
