"""The steps of those who compete in the DP-SGD benchmark: plain PyTorch, ours, opacus' modes, others in processes."""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dp_sgd_models import MOMENTUM, NORM, PLAIN, RATE, SIGMA, Step, Task, plain_step
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpml import sgd
from dpml.mechanisms import NoiseSource, SecretNoise
from dpml.sgd import engine
from dpml.sgd.clipping import Clipper
from dpml.sgd.optimizers import Optimizer

OPACUS = ("hooks", "functorch", "ew", "ghost", "ghost without Gram")
OURS, OURS_TORCH = "ours, secret noise", "ours, torch's RNG"
AGREES = 1e-4
PEERS = Path(__file__).resolve().with_name("dp_sgd_peers.py")


class TorchNoise:
    """torch's generator behind our engine: not secret, float32 draws as other libraries make them.  Benchmarks only."""

    secret = False

    def normal(self, std: float, shape: Any) -> np.ndarray:
        """Draws of the given shape, cast to float64."""
        return torch.randn(shape).mul_(std).double().numpy()

    def rounded(self, std: float, spacing: float, size: int) -> np.ndarray:
        """Draws in steps of a grid, cast to int32."""
        return torch.randn(size).mul_(std / spacing).round_().int().numpy()

    def uniform(self, size: Any) -> np.ndarray:
        """Draws from [0, 1), float64."""
        return torch.rand(size, dtype=torch.float64).numpy()


def plan_of(size: int, n_parameters: int) -> Any:
    """A plan whose batch is ``size`` records; noise and rate are fixed."""
    return sgd.plan_dp_sgd(
        n_declared=50 * size, n_features=1, n_classes=2, model_name="module", n_parameters=n_parameters, epsilon=None,
        delta=1e-5, noise_multiplier=SIGMA, max_grad_norm=NORM, expected_batch_size=size, steps=10_000,
        learning_rate=RATE, momentum=MOMENTUM, schedule="constant",
    )  # fmt: skip


def drawn_ahead(noise: NoiseSource) -> None:
    """Wait for the vector that is being drawn in the background: what a step sets off belongs into its time."""
    pending = getattr(getattr(noise, "_Prefetch__ahead", None), "pending", None)
    if isinstance(pending, Future):
        pending.result()


def our_step(task: Task, size: int, noise: NoiseSource, device: str = "cpu") -> Step:
    """One step as ``fit_dp_sgd`` makes it, of its own parts; on CUDA a source that is not secret is the device's."""
    model, batch, count = task.model(device), task.batch(size, device), itertools.count()
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    plan = plan_of(size, sum(p.numel() for p in parameters.values()))
    clipper = Clipper(model, sgd.ModelLoss(), batch)
    stepper = engine.Stepper(plan, clipper, noise, torch.device(device), noise.secret)
    optimizer = Optimizer(plan, parameters)

    def step() -> None:
        std = stepper.noise_std_per_entry
        optimizer.step(next(count) % plan.steps, stepper.gradient(batch), std)

    return Step(step, lambda: drawn_ahead(stepper.noise))


def opacus_parts(task: Task, size: int, mode: str, device: str, sigma: float) -> tuple[Step, Any]:
    """A step of opacus by its PrivacyEngine, and its optimizer (for the sums)."""
    from opacus import PrivacyEngine
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    model, (X, y) = task.model(device), task.batch(size, device)
    maker = PrivacyEngine()
    if not maker.is_compatible(module=model, optimizer=None, data_loader=None):
        model = maker.get_compatible_module(model)  # nn.MultiheadAttention becomes opacus' own
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    if mode == "ghost without Gram":
        model = GradSampleModuleFastGradientClipping(model, max_grad_norm=NORM, use_ghost_clipping=False)
        mode = "ghost"
    made = maker.make_private(
        module=model, optimizer=optimizer, criterion=nn.CrossEntropyLoss(), noise_multiplier=sigma, max_grad_norm=NORM,
        data_loader=DataLoader(TensorDataset(X, y), batch_size=size), poisson_sampling=False, grad_sample_mode=mode,
    )  # fmt: skip
    model, private, criterion = made[0], made[1], made[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step() -> None:
        private.zero_grad()
        criterion(model(X), y).backward()
        private.step()

    return Step(step, private.zero_grad), private  # frees the gradients of all records


def make_step(task: Task, competitor: str, size: int, device: str = "cpu") -> Step:
    """The step of any competitor by its name in the table."""
    if competitor == PLAIN:
        return plain_step(task, size, device)
    if competitor == OURS:
        return our_step(task, size, SecretNoise(), device)
    if competitor == OURS_TORCH:
        return our_step(task, size, TorchNoise(), device)
    return opacus_parts(task, size, competitor.removeprefix("opacus "), device, SIGMA)[0]


class Elsewhere:
    """A competitor's step in a process of another Python (:mod:`dp_sgd_peers`); to be closed.

    Attributes:
        version: the library's name and version.
        sums: its clipped sums of the batch, without noise, by the parameters' names.

    Raises:
        RuntimeError: it ends before it is ready, with the last line that it wrote.
    """

    def __init__(self, python: str, competitor: str, task: Task, size: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        sums, errors = Path(self._folder.name) / "sums.npz", Path(self._folder.name) / "errors.txt"
        words = [python, str(PEERS), competitor, task.name, str(size), str(torch.get_num_threads()), str(sums)]
        with errors.open("w", encoding="utf-8") as stderr:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, encoding="utf-8"
            )
        try:
            ready, _, self.version = self._answer().partition(" ")
            if ready != "ready":
                last = (errors.read_text("utf-8", errors="replace").strip().splitlines() or ["no message"])[-1]
                raise RuntimeError(last)
            self.sums = {name: torch.from_numpy(value) for name, value in np.load(sums).items()}
        except BaseException:
            self.close()
            raise

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def run(self) -> None:
        """One step; returns when it is done."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        if self._answer() != "done":
            raise RuntimeError("the process has ended")

    def close(self) -> None:
        """End the process; again is harmless."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):  # a line that nobody reads any more
                if pipe is not None:
                    pipe.close()
        self._folder.cleanup()


def elsewhere_installed(python: str) -> list[str]:
    """Which of the libraries of :mod:`dp_sgd_peers` another Python has.

    Raises:
        OSError, RuntimeError: it cannot be run.
    """
    done = subprocess.run([python, str(PEERS), "--installed"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return done.stdout.split()


def agreement(task: Task, size: int, mode: str, device: str = "cpu") -> str:
    """Our clipped sums against those of an opacus mode, without noise, relative to the largest entry."""
    step, private = opacus_parts(task, size, mode, device, 0.0)
    step()
    return compared(task, size, [p.summed_grad.double() for p in private.params], device)


def compared(task: Task, size: int, theirs: list[torch.Tensor], device: str = "cpu") -> str:
    """Our clipped sums against others, in the order of the model's parameters."""
    sums, _ = sgd.clipped_gradient(task.model(device), sgd.ModelLoss(), task.batch(size, device), NORM)
    if [t.shape for t in theirs] != [s.shape for s in sums.values()]:
        return "other parameters"
    off = max(float((t - s).abs().max()) for t, s in zip(theirs, sums.values(), strict=True))
    off /= max(float(s.abs().max()) for s in sums.values())
    return f"{'agrees' if off <= AGREES else 'differs'} ({off:.0e})"


def attempt(make: Callable[[], Any]) -> tuple[Any, str]:
    """(what ``make`` gives, "") or (None, the error in one line)."""
    try:
        return make(), ""
    except Exception as error:  # whatever a competitor raises is shown
        if os.environ.get("BENCHMARK_TRACEBACK"):
            traceback.print_exc()
        text = " ".join(str(error).split()).replace("|", "¦")
        return None, f"{type(error).__name__}: {text[:90]}"


def runnable(task: Task, competitor: str, size: int, device: str) -> tuple[Step | None, str]:
    """A step that has run once, or why there is none."""

    def make() -> Step:
        step = make_step(task, competitor, size, device)
        step()
        return step

    return attempt(make)
