"""DP-SGD against plain PyTorch and opacus, measured in one process on two threads: a Markdown table.

    python experiments/benchmarks/dp_sgd.py [--quick] [--json FILE] [--only NAME ...] [--peers PYTHON]
                                            [--profile] [--cpu-time]

Times are medians of many short runs, the competitors taking turns, each run after one step that is not timed.  A step
of ours is what the engine runs: clipped gradient, noise, optimizer.  Every competitor's step includes clipping and
noise, on one batch that is at hand, with heavy-ball momentum; plain PyTorch's is forward, mean loss, backward and the
same update.  Before timing, the clipped sums of one batch (no noise) are compared with those of every opacus mode:
"agrees" is 1e-4 of the largest entry.

opake and jax-privacy belong into an environment of their own.  ``--peers`` names its Python; they then take their turns
in a process each (:mod:`dp_sgd_peers`), at a tenth of a millisecond a step for the question and the answer.

Memory: each competitor takes three steps in a fresh process that has first taken a step of eight records with another
copy of the model (libraries and code are then loaded, free heap handed back) and has prepared its step.  The figure is
the highest resident set from there on, less the resident set there: activations, gradients and whatever else is held.

Epoch: Census-Income-like rows (one-hot-ish, generated), logistic regression; ours through ``fit_dp_sgd`` with a ledger
and checkpoints on disk, plain PyTorch with shuffled index batches, opacus with the DataLoader that it makes.

torch's idle threads sleep soon (``GOMP_SPINCOUNT``, :mod:`dpml.spinning`), as under ``python -m dpml.train``; set the
variable to 300000 for libgomp's own way.

``--only`` takes names of models, "epoch", "noise" and "memory" (of the models named); ``--profile`` adds where our
step's time goes; ``--cpu-time`` counts the process' CPU seconds on one thread, background threads included: a stand-in
on a machine that others use; ``--quick`` makes everything tiny, so that its figures mean nothing.  A ratio in brackets
is that of the least times, which a busy machine disturbs less.  The exit status is 0 whatever the times.
"""

# ruff: noqa: E402  (what torch's library reads from the environment must be set first)
from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpml.spinning import sleep_soon

sleep_soon()  # as the command line does, for all competitors; before torch is imported

import torch
import torch.nn.functional as F
from dp_sgd_competitors import (
    OPACUS,
    OURS,
    OURS_TORCH,
    Elsewhere,
    agreement,
    attempt,
    compared,
    elsewhere_installed,
    make_step,
    runnable,
)  # fmt: skip
from dp_sgd_models import MOMENTUM, NORM, PLAIN, RATE, SIGMA, TASKS, Step, Task
from dp_sgd_peers import LIBRARIES, MICRO, ways
from dp_sgd_profile import profile
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpml import sgd
from dpml.accounting import Ledger
from dpml.mechanisms import SecretNoise

ROOT = Path(__file__).resolve().parents[2]
THREADS = 2
OTHERS = tuple(LIBRARIES)
MEMORY_TARGET, NOISE_TARGET, EPOCH_TARGETS = 0.30, 0.7, (2.0, 8.0)
CLOCK: dict[str, Callable[[], float]] = {"now": time.perf_counter}
TOO_SLOW = 10.0  # seconds a step: such a peer takes no part in the turns
SLICE_SECONDS = 0.06  # a run repeats the step until about this long


@dataclass(frozen=True)
class Figure:
    """One line of the table; ``met`` is None where there is no target; ``value`` is what the target is about."""

    name: str
    ours: str
    peer: str = "–"
    ratio: str = "–"
    target: str = "–"
    met: bool | None = None
    value: float | None = None

    def line(self) -> str:
        """As a row of Markdown."""
        word = {True: "met", False: "**missed**", None: "–"}[self.met]
        return f"| {self.name} | {self.ours} | {self.peer} | {self.ratio} | {self.target} | {word} |"


def settled(device: str) -> float:
    """The clock (:func:`main` may choose another), once the device has nothing left to do."""
    if device != "cpu":
        torch.cuda.synchronize()
    return float(CLOCK["now"]())


@dataclass(frozen=True)
class Times:
    """Seconds of one step: median and least of the runs."""

    median: float
    least: float


def race(steps: dict[str, Step], rounds: int, budget: float, device: str = "cpu") -> dict[str, Times]:
    """Times of one step of each, in turns; one that has used its ``budget`` seconds and had three runs sits out."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    inner, used = {}, dict.fromkeys(steps, 0.0)

    def run(name: str, count: int) -> float:
        steps[name]()  # not timed: in training, too, the step before is one's own, not a competitor's
        steps[name].wait()
        begin = settled(device)
        for _ in range(count):
            steps[name]()
        steps[name].wait()
        return settled(device) - begin

    for name in steps:
        run(name, 1)
        inner[name] = max(1, min(50, round(SLICE_SECONDS / max(run(name, 1), 1e-6)))) if rounds > 3 else 1
    names = list(steps)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if used[name] <= budget or len(found[name]) < 3:
                seconds = run(name, inner[name])
                used[name] += seconds
                found[name].append(seconds / inner[name])
    return {name: Times(statistics.median(times), min(times)) for name, times in found.items()}


def seconds_text(seconds: float) -> str:
    """Milliseconds below one second."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def quotient(name: str, ours: Times, peer: Times, target: float | None = None, unit: str = "×") -> Figure:
    """Two times and their ratio, which should be at most ``target``; in brackets the ratio of the least times."""
    ratio = ours.median / peer.median
    return Figure(
        name,
        seconds_text(ours.median),
        seconds_text(peer.median),
        f"{ratio:.2f} {unit} ({ours.least / peer.least:.2f})",
        "–" if target is None else f"≤ {target:.3g} {unit}",
        None if target is None else ratio <= target,
        ratio,
    )


def steps_of(
    task: Task, quick: bool, device: str = "cpu", seconds: float = 4.0, peers: Peers | None = None
) -> list[Figure]:
    """Step times of one model: ours, plain PyTorch, every opacus mode, and what ``peers`` has."""
    with ExitStack() as stack:
        return _steps_of(task, quick, device, seconds, peers, stack)


def _steps_of(
    task: Task, quick: bool, device: str, seconds: float, peers: Peers | None, stack: ExitStack
) -> list[Figure]:
    size, rounds, budget = (task.quick_size, 3, 0.2) if quick else (task.batch_size, 60, seconds)
    modes = ("hooks", "ghost") if quick else OPACUS
    words = []
    for mode in modes:
        text, error = attempt(lambda mode=mode: agreement(task, size, mode, device))  # type: ignore[misc]
        words.append(f"{mode} {text or error}")
    found = [Figure(f"{task.title}: clipped sums against opacus", "; ".join(words), target="agrees within 1e-4")]
    steps: dict[str, Step] = {}
    failures: list[Figure] = []
    for name in (PLAIN, OURS, OURS_TORCH, *(f"opacus {mode}" for mode in modes)):
        step, error = runnable(task, name, size, device)
        if step is None:
            failures.append(Figure(f"{task.title}: {name}", error))
        else:
            steps[name] = step
    if PLAIN not in steps:
        return found + failures
    for library in peers.libraries if peers is not None else ():
        for name in ways(library) if size > MICRO else (library,):
            peer, error = attempt(lambda name=name: peers.started(name, task, size, stack))  # type: ignore[misc, union-attr]
            if peer is None:
                failures.append(Figure(f"{task.title}: {name}", error))
                continue
            order = [name for name, _ in task.model().named_parameters()]
            text = compared(task, size, [peer.sums[name] for name in order])
            found.append(Figure(f"{task.title}: clipped sums against {name} ({peer.version})", text))
            begin = settled(device)
            peer.run()
            seconds_a_step = settled(device) - begin
            if seconds_a_step > TOO_SLOW:
                found.append(Figure(f"{task.title}: {name}", f"{seconds_text(seconds_a_step)} a step"))
                peer.close()
            else:
                steps[name] = Step(peer.run)
    times = race(steps, rounds, budget, device)
    targets = task.targets or (None, None, None)
    for name, target in ((OURS, targets[0]), (OURS_TORCH, targets[1])):
        if name in times:
            found.append(quotient(f"{task.title}: {name} ÷ plain", times[name], times[PLAIN], target, "× plain"))
    theirs = {name: value for name, value in times.items() if name.startswith("opacus")}
    found += [quotient(f"{task.title}: {n} ÷ plain", v, times[PLAIN], None, "× plain") for n, v in theirs.items()]
    if theirs and OURS in times:
        best = min(theirs, key=lambda name: theirs[name].median)
        title = f"{task.title}: {OURS} ÷ fastest opacus ({best.removeprefix('opacus ')})"
        found.append(quotient(title, times[OURS], theirs[best], targets[2], "× opacus"))
    for library in OTHERS:
        theirs = {name: value for name, value in times.items() if name.startswith(library)}
        found += [quotient(f"{task.title}: {n} ÷ plain", v, times[PLAIN], None, "× plain") for n, v in theirs.items()]
        if theirs and OURS in times:
            best = min(theirs, key=lambda name: theirs[name].median)
            title = f"{task.title}: {OURS} ÷ fastest of {library} ({best})"
            found.append(quotient(title, times[OURS], theirs[best], None, f"× {library}"))
    return found + failures


@dataclass(frozen=True)
class Peers:
    """Another Python and which of :data:`OTHERS` it has."""

    python: str
    libraries: tuple[str, ...]

    def started(self, name: str, task: Task, size: int, stack: ExitStack) -> Elsewhere:
        """A competitor's process, which ends with ``stack``."""
        return stack.enter_context(closing(Elsewhere(self.python, name, task, size)))


def peers_of(python: str | None) -> Peers | None:
    """What a Python has of :data:`OTHERS`.

    Raises:
        OSError, RuntimeError: it cannot be run.
    """
    return None if python is None else Peers(python, tuple(elsewhere_installed(python)))


def resident(field: str) -> int:
    """Bytes of ``VmRSS`` or ``VmHWM`` of this process (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def memory_here(task: Task, competitor: str, size: int) -> int:
    """Peak growth of this process in three steps; see the module's head."""
    step: Step | None = make_step(task, competitor, min(8, size))
    assert step is not None
    step()
    step = None
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the high-water mark starts anew
    step = make_step(task, competitor, size)  # batch, model and, of ours, the look at made-up records: once a run
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = resident("VmRSS")
    for _ in range(3):
        step()
    step.wait()
    return max(resident("VmHWM") - before, 4096)  # a page


def memory_of(task: Task, quick: bool) -> list[Figure]:
    """Peak memory of each competitor in a process of its own."""
    if not Path("/proc/self/clear_refs").exists():
        return [
            Figure(f"{task.title}: peak memory", "not measured: needs Linux' /proc", target="≤ 30 % more than plain")
        ]
    names = (PLAIN, OURS) if quick else (PLAIN, OURS, *(f"opacus {mode}" for mode in OPACUS))
    size = task.quick_size if quick else task.batch_size

    def fresh(name: str) -> int:
        done = subprocess.run(
            [sys.executable, __file__, "--memory", task.name, name, str(size)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
        return int(done.stdout)

    plain, error = attempt(lambda: memory_here(task, PLAIN, size) if quick else fresh(PLAIN))
    if plain is None:
        return [Figure(f"{task.title}: peak memory of plain PyTorch", error)]
    found = []
    for name in names[1:]:
        value, error = attempt(lambda name=name: fresh(name))  # type: ignore[misc]
        title = f"{task.title}: peak memory, {name}"
        if value is None:
            found.append(Figure(title, error))
            continue
        more = (value - plain) / plain
        target = f"≤ {MEMORY_TARGET:.0%} more than plain" if name == OURS else "–"
        met = more <= MEMORY_TARGET if name == OURS else None
        text = f"{more:+.0%}"
        found.append(Figure(title, f"{value / 2**20:.1f} MiB", f"{plain / 2**20:.1f} MiB", text, target, met, more))
    return found


def census_like(n: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``n`` float32 rows: groups of ten columns with a single one each, scaled to norm 1, and two classes."""
    generator = torch.Generator().manual_seed(2)
    groups = -(-d // 10)
    X = torch.zeros(n, groups * 10)
    X.scatter_(1, torch.randint(10, (n, groups), generator=generator) + 10 * torch.arange(groups), groups**-0.5)
    X = X[:, :d].contiguous()
    return X, (X @ torch.randn(d, generator=generator) > 0).long()


def epoch(quick: bool) -> list[Figure]:
    """One epoch of logistic regression at batch 4096 (expected)."""
    n, d, batch, rounds = (2000, 50, 500, 3) if quick else (200_000, 511, 4096, 7)
    X, y = census_like(n, d)
    targets = y.to(X.dtype)
    plan = sgd.plan_dp_sgd(
        n_declared=n, n_features=d, n_classes=2, model_name="logreg", n_parameters=d, epsilon=None, delta=1e-6,
        noise_multiplier=SIGMA, expected_batch_size=batch, epochs=1.0, learning_rate=RATE,
    )  # fmt: skip

    def plain() -> None:
        model = sgd.build_model("logreg", d, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        for index in torch.randperm(n).split(batch):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(X[index])[:, 0], targets[index]).backward()
            optimizer.step()

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder:
            ledger = Ledger.create(Path(folder) / "ledger.jsonl", {})
            try:
                sgd.fit_dp_sgd(
                    plan, sgd.build_model("logreg", d, 2), X, y, noise=SecretNoise(),
                    reserve=lambda event, count: ledger.charge(event, stage="train", count=count),
                    save_checkpoint=lambda state: sgd.save_state(Path(folder) / "checkpoint.safetensors", state),
                )  # fmt: skip
            finally:
                ledger.release()

    def opacus(mode: str) -> Callable[[], None]:
        from opacus import PrivacyEngine

        def run() -> None:
            model: nn.Module = sgd.build_model("logreg", d, 2)
            criterion: Any = nn.BCEWithLogitsLoss()
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
            loader = DataLoader(TensorDataset(X, targets), batch_size=batch)
            made = PrivacyEngine().make_private(
                module=model, optimizer=optimizer, criterion=criterion, data_loader=loader, noise_multiplier=SIGMA,
                max_grad_norm=NORM, grad_sample_mode=mode,
            )  # fmt: skip
            model, optimizer = made[0], made[1]
            criterion = made[2] if mode == "ghost" else criterion
            for rows, labels in made[-1]:
                optimizer.zero_grad()
                criterion(model(rows)[:, 0], labels).backward()
                optimizer.step()

        return run

    runs = {PLAIN: Step(plain), OURS: Step(ours)}
    failures: list[Figure] = []
    for mode in ("hooks", "ghost"):
        _, error = attempt(opacus(mode))
        if error:
            failures.append(Figure(f"epoch: opacus {mode} with its DataLoader", error))
        else:
            runs[f"opacus {mode}"] = Step(opacus(mode))
    times = race(runs, rounds, 30.0)
    title = f"epoch of {n} × {d} rows, batch {batch}"
    found = [quotient(f"{title}: ours ÷ plain with index batches", times[OURS], times[PLAIN], EPOCH_TARGETS[0])]
    for name in (name for name in times if name.startswith("opacus")):
        ours_time, peer = times[OURS], times[name]
        speed = peer.median / ours_time.median
        text, met = f"≥ {EPOCH_TARGETS[1]:g} × faster", speed >= EPOCH_TARGETS[1]
        line = f"{title}: {name} with its DataLoader ÷ ours"
        ratio = f"{speed:.1f} × faster ({peer.least / ours_time.least:.1f})"
        found.append(Figure(line, seconds_text(ours_time.median), seconds_text(peer.median), ratio, text, met, speed))
    return found + failures


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch on so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def noise_speed(quick: bool) -> list[Figure]:
    """A million secret normals in float64 as the engine draws them, against torch's on one thread."""
    size, rounds = (10_000, 3) if quick else (2**20, 40)
    source = SecretNoise()
    alone, _ = attempt(lambda: SecretNoise(threads=1))
    alone = alone or source  # a source that has one thread anyhow
    with threads(1):
        draws: dict[str, Callable[[], object]] = {
            "secret": lambda: source.normal(1.0, size),
            "alone": lambda: alone.normal(1.0, size),
            "steps": lambda: alone.rounded(2.0**21, 1.0, size),
            "float64": lambda: torch.randn(size, dtype=torch.float64),
            "float32": lambda: torch.randn(size),
        }
        times = race({name: Step(lambda draw=draw: discard(draw)) for name, draw in draws.items()}, rounds, 10.0)  # type: ignore[misc]
    title = f"{size} secret normals in float64"
    return [
        quotient(f"{title} ÷ torch.randn in float64 on one thread", times["secret"], times["float64"], NOISE_TARGET),
        quotient(f"{title}, one thread ÷ the same", times["alone"], times["float64"]),
        quotient(f"{title} ÷ torch.randn in float32 on one thread", times["secret"], times["float32"]),
        quotient(f"{size} whole steps of noise, one thread ÷ torch.randn in float64", times["steps"], times["float64"]),
        quotient(f"{size} whole steps of noise, one thread ÷ torch.randn in float32", times["steps"], times["float32"]),
    ]


def discard(draw: Callable[[], object]) -> None:
    """Draw, keep nothing."""
    draw()


def others(peers: Peers | None = None) -> list[Figure]:
    """The libraries that were not measured, and how they would be."""
    missing = [name for name in OTHERS if peers is None or name not in peers.libraries]
    return [Figure(name, "–", "not measured: --peers PYTHON, of an environment that has it") for name in missing]


def version_of(name: str) -> str:
    """Of an installed package."""
    return str(attempt(lambda: version(name))[0] or "not installed")


def machine() -> dict[str, str]:
    """Where and of what this was measured."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
        processor = names[0].partition(":")[2].strip() if names else processor
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "processor": f"{processor}, {os.cpu_count()} cores",
        "threads": f"{torch.get_num_threads()}, {os.environ.get('GOMP_SPINCOUNT', 'default')} idle turns",
        "load": ", ".join(f"{value:.1f}" for value in os.getloadavg()) if hasattr(os, "getloadavg") else "unknown",
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": commit or "unknown",
        **{name: version_of(name) for name in ("torch", "numpy", "opacus", "randomgen")},
    }


def report(parts: list[Callable[[], list[Figure]]]) -> list[Figure]:
    """Run the parts, printing each figure's line as soon as it is known."""
    print("| figure | ours | peer | ratio | target | met? |\n|---|---|---|---|---|---|", flush=True)
    figures: list[Figure] = []
    for part in parts:
        found = part()
        figures += found
        print("\n".join(figure.line() for figure in found), flush=True)
    return figures


def finish(figures: list[Figure], where: dict[str, str], quick: bool, target: Path | None) -> None:
    """The last lines, and the JSON file."""
    missed = [figure.name for figure in figures if figure.met is False]
    print(f"\n{len(missed)} of {sum(figure.met is not None for figure in figures)} targets missed")
    print("\n" + " · ".join(f"{key} {value}" for key, value in where.items()))
    if where.get("clock") != "CPU time" and where["load"] != "unknown" and float(where["load"].split(",")[0]) > 1.0:
        print("\nThe machine was busy when this began: only the ratios in brackets, of least times, mean something.")
    if target:
        content = {"figures": [asdict(figure) for figure in figures], "machine": where, "quick": quick}
        target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def arguments_of(text: str | None, names: tuple[str, ...]) -> argparse.ArgumentParser:
    """The command line, here and in gpu.py."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny batches and few runs: the figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", default=names, help=", ".join(names))
    return parser


def main() -> int:
    """Print the table; 0 whatever the times."""
    parser = arguments_of(__doc__, (*(task.name for task in TASKS), "epoch", "noise", "memory"))
    parser.add_argument("--peers", metavar="PYTHON", help="the Python of an environment with " + " and ".join(OTHERS))
    parser.add_argument("--profile", action="store_true", help="where our step's time goes, too")
    parser.add_argument("--cpu-time", action="store_true", help="one thread, CPU seconds: for a busy machine")
    parser.add_argument("--seconds", type=float, default=4.0, help="for the steps of each competitor (default 4)")
    parser.add_argument("--memory", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # the peers' own
    if arguments.peers and arguments.cpu_time:
        parser.error("--peers: their processes' CPU time is not counted. Leave --cpu-time out.")
    peers, error = attempt(lambda: peers_of(arguments.peers))
    if error:
        parser.error(f"--peers {arguments.peers}: it must be a Python that runs. {error}")
    count = 1 if arguments.quick or arguments.cpu_time else THREADS
    if arguments.cpu_time:
        CLOCK["now"] = time.process_time
    torch.set_num_threads(count)
    os.environ["OMP_NUM_THREADS"] = str(count)  # our noise source looks there
    if arguments.memory:
        name, competitor, size = arguments.memory
        print(memory_here(next(task for task in TASKS if task.name == name), competitor, int(size)))
        return 0
    quick, chosen = arguments.quick, [task for task in TASKS if task.name in arguments.only]
    parts: list[Callable[[], list[Figure]]] = []
    parts += [lambda task=task: steps_of(task, quick, "cpu", arguments.seconds, peers) for task in chosen]  # type: ignore[misc]
    parts += [lambda: epoch(quick)] if "epoch" in arguments.only else []
    parts += [lambda: noise_speed(quick)] if "noise" in arguments.only else []
    measured = [task for task in chosen if "memory" in arguments.only and (not quick or task.name == "logistic")]
    parts += [lambda task=task: memory_of(task, quick) for task in measured]  # type: ignore[misc]
    where = {"clock": "CPU time" if arguments.cpu_time else "wall", **machine()}
    finish(report([*parts, lambda: others(peers)]), where, quick, arguments.json)
    if arguments.profile:
        print("\n".join(profile(task, quick, arguments.cpu_time) for task in chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
