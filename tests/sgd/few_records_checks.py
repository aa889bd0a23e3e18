"""Networks and checks for small batches: what fills them up must change nothing and be seen nowhere."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn

from dpml.sgd.clipping import Clipper


class Chaos(nn.Module):
    """Sines of large numbers: a last bit decides about everything."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, width), nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.last(torch.sin(self.second(torch.sin(self.first(x)) * 1e4)))


def losses(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def further_records_move(width, engine, sizes, micro_batch_size=None):
    """By how much each further record moves the sum of contributions of norm <= 1."""
    generator = torch.Generator().manual_seed(1)
    X = 1e6 * torch.randn(max(sizes), 16, generator=generator)
    y = torch.randint(0, 3, (max(sizes),), generator=generator)
    torch.manual_seed(0)
    model = Chaos(width)
    clipper = Clipper(model, losses, (X[:2], y[:2]), engine)
    found = [clipper.flat((X[:n], y[:n]), 1.0, micro_batch_size)[0] for n in sizes]
    return [float((after - before).norm()) for before, after in itertools.pairwise(found)]


class NoZeros(nn.Module):
    """Records of zeros give no number, and a loss of its own: what fills a batch up must not be seen."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x / x.norm(dim=1, keepdim=True))


def what_fills_up_leaves_no_trace(engine, kind="flat", make=NoZeros):
    """37 records and 3 others give together what 40 give at once; each part's norms are its own."""
    torch.manual_seed(0)
    model = make().double()
    X, y = torch.randn(40, 3, dtype=torch.float64), torch.randint(0, 2, (40,))
    clipper = Clipper(model, losses, (X, y), engine)
    whole, norms = clipper.flat((X, y), 0.3, None, kind)
    parts = [clipper.flat((X[part], y[part]), 0.3, None, kind) for part in (slice(0, 37), slice(37, 40))]
    assert bool(norms.isfinite().all())
    assert [len(n) for _, n in parts] == [37, 3]
    torch.testing.assert_close(parts[0][0] + parts[1][0], whole, rtol=0, atol=1e-13)
    torch.testing.assert_close(torch.cat([n for _, n in parts]), norms, rtol=1e-13, atol=0)
    assert float(whole.norm()) > 0.1


def plain():
    """Records of zeros have a gradient as others have: that of the bias."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
