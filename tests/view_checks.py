"""Records of two views, and the check of what one can do."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dpml import sgd


def over_views(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """(B, views, K) and (B,) to (B,): each record's mean loss over its views."""
    views = logits.shape[1]
    losses = F.cross_entropy(logits.flatten(0, 1), targets.repeat_interleave(views), reduction="none")
    return losses.reshape(-1, views).mean(dim=1)


def views_of(n: int) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    """A model, X (n, 2, 5) and y (n,), float64."""
    generator = torch.Generator().manual_seed(3)
    model = nn.Linear(5, 3, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.randn(3, 5, generator=generator, dtype=torch.float64))
    X = torch.randn(n, 2, 5, generator=generator, dtype=torch.float64)
    return model, X, torch.randint(0, 3, (n,), generator=generator)


def check_a_record_of_two_views_moves_the_sum_by_at_most_c() -> None:
    """Two equal loud views: the record's contribution has length C, not 2 C, whichever engine is taken."""
    model, X, y = views_of(1)
    X = (100 * X[:, :1]).repeat(1, 2, 1)
    y = (model(X[:, 0]).argmin(dim=1)).long()  # far from right: a long gradient
    for engine in ("one_backward", "per_example"):
        sums, norms = sgd.clipped_gradient(
            model, lambda module, batch: over_views(module(batch[0]), batch[1]), (X, y), 0.5, engine=engine
        )
        assert float(norms[0]) > 1.0
        assert abs(float(sums["weight"].norm()) - 0.5) < 1e-9, engine
