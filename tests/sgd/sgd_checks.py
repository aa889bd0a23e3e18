"""Helpers of the DP-SGD tests: noise doubles, slow twins, small plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from dpml import sgd
from dpml.accounting import Gaussian, PoissonSampled, SelfComposed
from dpml.mechanisms import FixedNoise


class RecordingNoise:
    """Fixed noise that writes down every draw; ``scale=0`` makes the normal draws zero.  Tests only."""

    secret = False

    def __init__(self, seed=0, scale=1.0, log=None):
        self._inner = FixedNoise(seed)
        self.scale, self.log = scale, [] if log is None else log
        self.normals, self.uniforms = [], []

    def normal(self, std, shape):
        self.log.append("normal")
        drawn = self._inner.normal(std, shape) * self.scale
        self.normals.append((std, drawn))
        return drawn

    def uniform(self, size):
        self.log.append("uniform")
        drawn = self._inner.uniform(size)
        self.uniforms.append(drawn)
        return drawn


def small_plan(**changes):
    """A plan written out by hand: 12 steps over 40 declared records, σ = 1, C = 0.5, batches of 10 expected."""
    values = {
        "steps": 12,
        "sample_rate": 0.25,
        "expected_batch_size": 10,
        "max_grad_norm": 0.5,
        "noise_multiplier": 1.0,
        "learning_rate": 0.1,
        "momentum": 0.0,
        "schedule": "constant",
        "checkpoint_every": 5,
        "micro_batch_size": None,
        "neighboring_relation": "add_remove",
    }
    values.update(changes)
    step = PoissonSampled(values["sample_rate"], Gaussian(values["noise_multiplier"]))
    return sgd.DPSGDPlan(**values, event_per_step=step, event=SelfComposed(event=step, count=values["steps"]))


def with_noise(plan, sigma):
    return replace(plan, noise_multiplier=sigma)


def rows(n=40, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, (X[:, 0] > 0).astype(np.int64)


def run(plan, X, y, *, noise=None, model=None, **arguments):
    """``fit_dp_sgd`` with a reserve that lists what was charged: (model, notes, charges, noise)."""
    noise = noise or RecordingNoise()
    charges = []

    def reserve(event, count):
        noise.log.append(f"reserve {count}")
        charges.append((event, count))

    model = model or sgd.build_model("logreg", X.shape[1], 2)
    trained, notes = sgd.fit_dp_sgd(plan, model, X, y, noise=noise, reserve=reserve, **arguments)
    return trained, notes, charges, noise


def one_record_loop(model, loss_fn, batch, max_grad_norm):
    """The slow, obvious twin: backward on each record alone, clip, add."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in trained.items()}
    norms = []
    for i in range(len(batch[0])):
        loss = loss_fn(model, tuple(t[i : i + 1] for t in batch)).sum()
        grads = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        grads = [torch.zeros_like(p) if g is None else g for g, p in zip(grads, trained.values(), strict=True)]
        norm = torch.sqrt(sum((g.double() ** 2).sum() for g in grads))
        factor = min(1.0, max_grad_norm / float(norm)) if norm > 0 else 1.0
        for name, g in zip(trained, grads, strict=True):
            sums[name] += factor * g.double()
        norms.append(float(norm))
    return sums, torch.tensor(norms, dtype=torch.float64)


class TiedNetwork(nn.Module):
    """An embedding whose matrix is also the output layer, a layer used twice, and a bare parameter."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.twice = nn.Linear(5, 5)
        self.position = nn.Parameter(torch.randn(1, 4, 5) * 0.1)
        self.out = nn.Linear(5, 7, bias=False)
        self.out.weight = self.embed.weight
        self.unused = nn.Linear(2, 2)

    def forward(self, tokens):
        hidden = self.embed(tokens) + self.position
        return self.out(torch.tanh(self.twice(torch.tanh(self.twice(hidden)))).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, tokens):
        return self.out(self.lstm(self.embed(tokens))[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.out(self.block(self.embed(tokens)).mean(1))
