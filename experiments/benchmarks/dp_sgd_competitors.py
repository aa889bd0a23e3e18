"""The models of the DP-SGD benchmark and the steps of those who compete on them: plain PyTorch, ours, opacus' modes."""

from __future__ import annotations

import itertools
import os
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpml import sgd
from dpml.mechanisms import NoiseSource, SecretNoise
from dpml.sgd import engine
from dpml.sgd.clipping import Clipper
from dpml.sgd.optimizers import Optimizer

NORM, SIGMA, RATE, MOMENTUM = 1.0, 1.0, 0.01, 0.9
OPACUS = ("hooks", "functorch", "ew", "ghost", "ghost without Gram")
OURS, OURS_TORCH, PLAIN = "ours, secret noise", "ours, torch's RNG", "plain PyTorch"
AGREES = 1e-4


class Step:
    """One step of a competitor; ``wait`` returns when nothing that the step started still runs in the background."""

    def __init__(self, run: Callable[[], None], wait: Callable[[], None] = lambda: None) -> None:
        self.run, self.wait = run, wait

    def __call__(self) -> None:
        self.run()


@dataclass(frozen=True)
class Task:
    """A model with its batch; ``targets``: our step over plain PyTorch's (secret, torch's RNG), over opacus' best."""

    name: str
    title: str
    build: Callable[[], nn.Module]
    row: tuple[int, ...]
    classes: int
    batch_size: int
    quick_size: int
    targets: tuple[float, float, float] | None
    vocabulary: int = 0

    def model(self, device: str = "cpu") -> nn.Module:
        """The same weights at every call."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.build().to(device)

    def batch(self, size: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
        """Rows (floats, or tokens where there is a vocabulary) and classes; the same at every call."""
        generator = torch.Generator().manual_seed(1)
        shape = (size, *self.row)
        if self.vocabulary:
            X = torch.randint(self.vocabulary, shape, generator=generator)
        else:
            X = torch.randn(shape, generator=generator)
        return X.to(device), torch.randint(self.classes, (size,), generator=generator).to(device)


class Attention(nn.Module):
    """Self-attention of several heads made of ``nn.Linear``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(B, T, d) -> (B, T, d)``."""
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a GELU network, each behind a LayerNorm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.wide, self.narrow = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(B, T, d) -> (B, T, d)``."""
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class Encoder(nn.Module):
    """Tokens ``(B, T)`` to logits: token and position embeddings, two blocks, mean over positions, linear head."""

    def __init__(self, torch_layers: bool = False, vocabulary: int = 2000, length: int = 128, width: int = 64) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        if torch_layers:
            made = [
                nn.TransformerEncoderLayer(
                    width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
                )
                for _ in range(2)
            ]
            self.blocks = nn.Sequential(*made)
        else:
            self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits ``(B, 2)``; positions are repeated for every record (opacus needs them so, and contiguous)."""
        places = torch.arange(tokens.shape[1], device=tokens.device).repeat(len(tokens), 1)
        return self.head(self.blocks(self.token(tokens) + self.position(places)).mean(1))


def mlp() -> nn.Module:
    """784-512-256-10."""
    return nn.Sequential(
        nn.Linear(784, 512), nn.Tanh(), nn.Linear(512, 256), nn.Tanh(), nn.Linear(256, 10)
    )  # fmt: skip


def cnn() -> nn.Module:
    """The network of Papernot et al. 2020 ("Tempered sigmoid activations") for 28 × 28 images, with tanh."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 3), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


def torch_encoder() -> nn.Module:
    """:class:`Encoder` with torch's own layers."""
    return Encoder(torch_layers=True)


TASKS = (
    Task("logistic", "logistic 512→2, batch 4096", lambda: nn.Linear(512, 2), (512,), 2, 4096, 64, (1.5, 1.4, 1 / 3)),
    Task("mlp", "MLP 784-512-256-10, batch 1024", mlp, (784,), 10, 1024, 16, (1.4, 1.2, 0.65)),
    Task("cnn", "CNN 28×28, batch 512", cnn, (1, 28, 28), 10, 512, 8, (1.4, 1.3, 0.75)),
    Task("transformer", "Transformer, 64 × 128 tokens", Encoder, (128,), 2, 64, 4, (1.5, 1.4, 0.85), 2000),
    Task("transformer-torch", "the same of torch's layers", torch_encoder, (128,), 2, 64, 4, None, 2000),
)


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


def plain_step(task: Task, size: int, device: str = "cpu") -> Step:
    """Forward, mean loss, backward, SGD."""
    model, (X, y) = task.model(device), task.batch(size, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()

    return Step(step)


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


def agreement(task: Task, size: int, mode: str, device: str = "cpu") -> str:
    """Our clipped sums against those of an opacus mode, without noise, relative to the largest entry."""
    model = task.model(device)
    sums, _ = sgd.clipped_gradient(model, sgd.ModelLoss(), task.batch(size, device), NORM)
    step, private = opacus_parts(task, size, mode, device, 0.0)
    step()
    theirs = [p.summed_grad.double() for p in private.params]
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
