"""Where the time of our DP-SGD step goes: by part, by function of ours, and by operator of torch."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from dp_sgd_competitors import OURS, make_step
from dp_sgd_models import Step, Task

PARTS = {  # function → the part that it and what it calls belong to, unless a name below says otherwise
    "gradients": "forward and backward",
    "_stacked": "forward and backward",
    "per_example_gradients": "forward and backward",
    "squared_norms": "norms",
    "weighted_sum": "sums",
    "draw_noise": "noise (of this thread)",
    "rounded_normal": "noise (of this thread)",
    "released_sum": "rounding to the grid",
    "add": "rounding to the grid",
    "_update": "update",
    "step": "update",
    "record": "diagnostics",
}
REST = "the rest (factors, checks, copies)"


class OwnTimes:
    """Seconds inside functions of ``dpml.sgd`` and ``dpml.mechanisms``, less what other such functions in them take."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.functions: dict[str, float] = {}
        self.parts: dict[str, float] = {}
        self._stack: list[tuple[str, float]] = []  # part, seconds of callees
        self._thread = threading.get_ident()
        self._wrapped: dict[Any, Any] = {}

    def timer(self, function: Any) -> Any:
        """``function``, timed when the main thread calls it."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            outer = self._stack[-1][0] if self._stack else REST
            part = PARTS.get(function.__name__, outer)
            self._stack.append((part, 0.0))
            begin = self._clock()
            try:
                return function(*args, **kwargs)
            finally:
                whole = self._clock() - begin
                own = whole - self._stack.pop()[1]
                name = f"{function.__module__.removeprefix('dpml.')}.{function.__qualname__}"
                self.functions[name] = self.functions.get(name, 0.0) + own
                self.parts[part] = self.parts.get(part, 0.0) + own
                if self._stack:
                    self._stack[-1] = (self._stack[-1][0], self._stack[-1][1] + whole)

        return self._wrapped.setdefault(function, run)

    def measure(self, step: Step, repeats: int) -> None:
        """Run the step with every such function replaced by its timer, wherever a module or class names it."""
        modules = [m for name, m in list(sys.modules.items()) if name.startswith(("dpml.sgd", "dpml.mechanisms"))]
        restore: list[tuple[Any, str, Any]] = []
        for module in modules:
            classes = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
            for space in (module, *classes):
                for name, thing in list(vars(space).items()):
                    function = thing.__func__ if isinstance(thing, staticmethod) else thing
                    if not inspect.isfunction(function) or not function.__module__.startswith("dpml."):
                        continue
                    if name.startswith("__") or inspect.isgeneratorfunction(inspect.unwrap(function)):
                        continue
                    restore.append((space, name, thing))
                    timed = self.timer(function)
                    setattr(space, name, staticmethod(timed) if isinstance(thing, staticmethod) else timed)
        try:
            for _ in range(repeats):
                step()
        finally:
            for space, name, thing in restore:
                setattr(space, name, thing)
        for totals in (self.functions, self.parts):
            for name in totals:
                totals[name] /= repeats


def profile(task: Task, quick: bool, cpu_time: bool = False) -> str:
    """Milliseconds per step by part, by function of ours (own time) and by operator of torch.

    ``cpu_time`` counts the main thread's CPU time, so that waiting for noise is free; operators stay in wall time.
    """
    size, repeats = (task.quick_size, 2) if quick else (task.batch_size, 20)
    step, own = make_step(task, OURS, size), OwnTimes(time.thread_time if cpu_time else time.perf_counter)
    step()
    own.measure(step, repeats)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(repeats):
            step()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)[:10]
    lines = [f"\n{task.title}: our step, secret noise, milliseconds per step"]
    for title, totals in (("by part", own.parts), ("by function, own time", own.functions)):
        found = sorted(totals.items(), key=lambda item: -item[1])[:12]
        lines += [f"  {title}", *(f"    {1000 * seconds:8.3f}  {name}" for name, seconds in found if seconds > 5e-6)]
    lines.append("  by operator, own time")
    lines += [f"    {e.self_cpu_time_total / 1000 / repeats:8.3f}  {e.key} × {e.count / repeats:g}" for e in events]
    return "\n".join(lines)
