"""The models of the DP-SGD benchmark and plain PyTorch's step; of installed packages it needs torch alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

NORM, SIGMA, RATE, MOMENTUM = 1.0, 1.0, 0.01, 0.9
PLAIN = "plain PyTorch"


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


def plain_step(task: Task, size: int, device: str = "cpu") -> Step:
    """Forward, mean loss, backward, SGD."""
    model, (X, y) = task.model(device), task.batch(size, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()

    return Step(step)
