"""Models and losses that look separate on most made-up records; for the tests and tests/planted_bugs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from dpml.sgd.clipping import Clipper, clipped_gradient
from dpml.sgd.models import ModelLoss


class Tokens(nn.Module):
    """Logits of the next token at every position ``(B, T, 50)``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(tokens))


def unmarked_mean(mark: int):
    """A mean over the batch's labels that are not ``mark``, written per record: one moves all others' weights."""

    def loss(model, batch):
        tokens, labels = batch
        each = F.cross_entropy(model(tokens).transpose(1, 2), labels, reduction="none", ignore_index=mark)
        return each.sum(1) * len(labels) / (labels != mark).sum().clamp(min=1)

    return loss


def hidden_mean(mark: int):
    """The same, with no number that the labels are compared with in sight."""

    def loss(model, batch):
        tokens, labels = batch
        counted = labels.ne(torch.full_like(labels, mark))
        each = F.cross_entropy(model(tokens).transpose(1, 2), labels * counted, reduction="none") * counted
        return each.sum(1) * len(labels) / counted.sum().clamp(min=1)

    return loss


def own_sums(mark: int):
    """Each record's own labels that are not ``mark``: nothing is mixed."""

    def loss(model, batch):
        tokens, labels = batch
        each = F.cross_entropy(model(tokens).transpose(1, 2), labels, reduction="none", ignore_index=mark)
        return each.sum(1) / (labels != mark).sum(1).clamp(min=1)

    return loss


class Trimmed(nn.Module):
    """Positions at which every record of the batch has the padding token are left out of everybody's mean."""

    def __init__(self, pad: int, padding_idx: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pad, self.table, self.out = pad, nn.Embedding(3000, 4, padding_idx=padding_idx), nn.Linear(4, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        kept = (tokens != self.pad).any(0).to(self.out.weight.dtype)
        return self.out((self.table(tokens) * kept[None, :, None]).mean(1))


class KnownMean(nn.Module):
    """Subtracts the batch's mean of the numbers that are known: ``missing`` marks one that is not."""

    def __init__(self, known) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.known, self.linear = known, nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        known = self.known(x)
        share = known.to(x.dtype).mean(0)
        return self.linear(torch.where(known, x, torch.zeros_like(x)) * share)


class Writer(nn.Module):
    """Subtracts 1 from its input in place, where ``x.float()`` is no copy."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.tanh(x.float().sub_(1.0).to(self.linear.weight.dtype)))


class MixedInFloat32(nn.Module):
    """Batch statistics in one type only, as a branch for mixed precision may have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x - x.mean(0) if x.dtype == torch.float32 else x)


def moved(model, loss, batch, record, bound: float) -> float:
    """How far the clipped sum moves when ``record`` is added, over the bound."""
    more = tuple(torch.cat([t, r]) for t, r in zip(batch, record, strict=True))
    sums = [clipped_gradient(model, loss, b, bound)[0] for b in (batch, more)]
    return float(sum((sums[1][name] - sums[0][name]).square().sum() for name in sums[0]).sqrt()) / bound


def marked_labels_are_not_mixed(mark: int = -100, mean=unmarked_mean) -> None:
    """64 equal records with one label each, one more with twelve."""
    model, size = Tokens(), 64
    tokens = torch.randint(0, 50, (1, 12), generator=torch.Generator().manual_seed(1)).repeat(size, 1)
    labels = torch.full((size, 12), mark)
    labels[:, 0] = 3
    record = tokens[:1], torch.arange(12)[None]
    assert Clipper(model, mean(mark), (tokens[:1], labels[:1])).reason
    assert moved(model, mean(mark), (tokens, labels), record, 0.1) <= 1.0 + 1e-6


def padded_positions_are_not_mixed(pad: int = 2999, padding_idx: int | None = None) -> None:
    model = Trimmed(pad, padding_idx)
    rng = torch.Generator().manual_seed(2)
    tokens, labels = torch.randint(2, 2900, (40, 6), generator=rng), torch.arange(40) % 2
    tokens[:, 4:] = pad
    longer = tokens[:1].clone()
    longer[0, 5] = 7
    assert Clipper(model, ModelLoss(), (tokens[:1], labels[:1])).reason
    assert moved(model, ModelLoss(), (tokens, labels), (longer, labels[:1]), 0.5) <= 1.0 + 1e-6


def missing_numbers_are_not_mixed(known, missing: float) -> None:
    """How many of a batch's records know a number must not count for any of them."""
    model, rng = KnownMean(known), torch.Generator().manual_seed(5)
    X, y = torch.randn(40, 6, generator=rng), torch.arange(40) % 3
    X[:, 3:] = missing
    record = torch.full((1, 6), 3.0), torch.tensor([1])
    assert Clipper(model, ModelLoss(), (X[:1], y[:1])).reason
    assert moved(model, ModelLoss(), (X, y), record, 0.01) <= 1.0 + 1e-6


def nothing_is_written_into_records() -> None:
    """One record has an impossible label, so that a batch is run again: it counts as zero, the others as before."""
    model, rng = Writer(), torch.Generator().manual_seed(3)
    X, y = torch.randn(40, 6, generator=rng) + 1.5, torch.arange(40) % 3
    kept = X.clone()
    assert "writes into its input" in Clipper(model, ModelLoss(), (X[:1], y[:1])).reason
    assert moved(model, ModelLoss(), (X, y), (torch.zeros(1, 6), torch.tensor([7])), 0.5) <= 1e-6
    assert torch.equal(X, kept)


def a_branch_for_one_type_does_not_mix() -> None:
    model, rng = MixedInFloat32(), torch.Generator().manual_seed(4)
    X, y = torch.randn(40, 6, generator=rng), torch.arange(40) % 3
    assert Clipper(model, ModelLoss(), (X[:1], y[:1])).reason
    assert moved(model, ModelLoss(), (X, y), (torch.full((1, 6), 100.0), torch.tensor([0])), 0.5) <= 1.0 + 1e-6


class Behind(nn.Module):
    """Reads its rows from the beginning of the memory that they lie in: right for a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.as_strided(x.shape, x.stride(), 0))


def parts_of_a_batch_see_no_others() -> None:
    """The clipped sum does not depend on the micro-batch, nor on a record that must be run alone."""
    model, rng = Behind(), torch.Generator().manual_seed(6)
    X, y = torch.randn(40, 6, generator=rng), torch.arange(40) % 3
    whole, norms = clipped_gradient(model, ModelLoss(), (X, y), 0.5)
    assert len(set(norms.tolist())) == 40
    for size in (20, 7, 1):
        sums, each = clipped_gradient(model, ModelLoss(), (X, y), 0.5, micro_batch_size=size)
        assert torch.allclose(each, norms, rtol=1e-4, atol=0.0)
        assert all(torch.allclose(sums[name], whole[name], rtol=1e-4, atol=1e-5) for name in whole)
    y[11] = 5  # impossible: the batch is halved until it is found
    sums, each = clipped_gradient(model, ModelLoss(), (X, y), 0.5)
    kept = torch.arange(40) != 11
    assert torch.allclose(each[kept], norms[kept], rtol=1e-4, atol=0.0)
