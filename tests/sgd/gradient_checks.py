"""What the tests of the one-backward engine share: a slow twin, forced forms, and a comparison."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_leaves, tree_map

from dpml.sgd import clipping, convolutions, uses
from dpml.sgd.clipping import Clipper

HUGE = 2**40
FORMS = {
    "default": {},
    "built": {(uses, "BUILDING_COST"): 0, (uses, "KEPT_VALUES"): HUGE, (convolutions, "AT_ONCE"): HUGE},
    "gram": {
        (uses, "KEPT_VALUES"): 0,
        (convolutions, "AT_ONCE"): 0,
        (convolutions, "KEPT_VALUES"): 0,
        (uses, "BLOCK_VALUES"): 4,
        (convolutions, "BLOCK_VALUES"): 4,
    },
    "blocks": {
        (uses, "BUILDING_COST"): 0,
        (uses, "KEPT_VALUES"): HUGE,
        (convolutions, "AT_ONCE"): 0,
        (convolutions, "KEPT_VALUES"): 0,
        (uses, "BLOCK_VALUES"): 4,
        (convolutions, "BLOCK_VALUES"): 4,
    },
    "kept": {  # of a large convolution, the gradients of the first records
        (uses, "BUILDING_COST"): 0,
        (uses, "KEPT_VALUES"): HUGE,
        (convolutions, "AT_ONCE"): 0,
        (convolutions, "KEPT_VALUES"): 130,
        (convolutions, "BLOCK_VALUES"): 60,
    },
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


@contextmanager
def form(name):
    """Per-example gradients are kept in the form asked for, whatever is cheaper."""
    with ExitStack() as stack:
        for (module, attribute), value in FORMS[name].items():
            stack.enter_context(patch.object(module, attribute, value))
        yield


def alone(model, loss_fn, batch):
    """Gradients ``{name: (B, *shape)}`` float64 by autograd on each record alone, and nothing else."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows = []
    for i in range(len(tree_leaves(batch)[0])):
        loss = loss_fn(model, tree_map(lambda t, i=i: t[i : i + 1], batch)).sum()
        found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        rows.append([torch.zeros_like(p) if g is None else g for g, p in zip(found, trained.values(), strict=True)])
    return {name: torch.stack([row[k].double() for row in rows]) for k, name in enumerate(trained)}


def expected_sums(gradients, bound, clipping="flat"):
    """The formulas of clipping, written out record by record."""
    names = list(gradients)
    layers = {name.rpartition(".")[0] for name in names}
    sums = {name: torch.zeros_like(gradients[name][0]) for name in names}
    size = {name: torch.zeros_like(gradients[name][0]) for name in names}
    norms = []
    for i in range(len(gradients[names[0]])):
        norm = sum(float(gradients[name][i].square().sum()) for name in names) ** 0.5
        norms.append(norm)
        for name in names:
            own = norm
            limit = bound
            if clipping == "per_layer":
                mine = [n for n in names if n.rpartition(".")[0] == name.rpartition(".")[0]]
                own = sum(float(gradients[n][i].square().sum()) for n in mine) ** 0.5
                limit = bound / len(layers) ** 0.5
            factor = bound / (own + 0.01) if clipping == "automatic" else min(1.0, limit / max(own, 1e-300))
            sums[name] += factor * gradients[name][i]
            size[name] += (factor * gradients[name][i]).abs()
    largest = max(float(s.max()) for s in size.values() if s.numel())
    return sums, torch.tensor(norms, dtype=torch.float64), largest


def only_one_backward(model, loss_fn, batch, bound, micro=None, clip="flat"):
    """``clipped_gradient`` that may not fall back: neither when it looks at the model nor on the batch."""
    clipper = Clipper(model, loss_fn, batch, "one_backward")

    def never(*_):
        raise AssertionError("fell back to records run alone")

    with patch.object(clipping, "per_example_gradients", never):
        return clipper(batch, bound, micro, clip)


def agrees(model, loss_fn, batch, *, micro=None, clip="flat", form_name="default", tolerance=None):
    """Sums and norms equal the slow twin's, for a bound that clips half of the records and for one that clips none.

    ``tolerance`` is relative to the largest entry of Σᵢ |cᵢ gᵢ|.
    """
    if tolerance is None:
        tolerance = TOLERANCE[next(p.dtype for p in model.parameters() if p.requires_grad)]
    gradients = alone(model, loss_fn, batch)
    true_norms = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
    for bound in (float(true_norms.median()) + 1e-9, 2.0 * float(true_norms.max()) + 1.0):
        want, norms, largest = expected_sums(gradients, bound, clip)
        with form(form_name):
            sums, got = only_one_backward(model, loss_fn, batch, bound, micro, clip)
        assert set(sums) == set(want)
        for name, value in want.items():
            assert sums[name].dtype == torch.float64
            assert sums[name].shape == value.shape
            if value.numel():
                error = float((sums[name] - value).abs().max())
                assert error <= tolerance * largest + 1e-300, (name, error / largest)
        assert got.dtype == torch.float64
        torch.testing.assert_close(got, norms, rtol=max(10 * tolerance, 1e-11), atol=tolerance * float(norms.max()))


def contribution(model, loss_fn, record, bound, **arguments):
    """Norm of what one record adds, float64."""
    sums, _ = clipping.clipped_gradient(model, loss_fn, record, bound, **arguments)
    return sum(float(value.square().sum()) for value in sums.values()) ** 0.5


def moved(model, loss_fn, batch, i, bound, **arguments):
    """How far the sum goes when record ``i`` is taken away."""
    keep = [j for j in range(len(tree_leaves(batch)[0])) if j != i]
    whole, _ = clipping.clipped_gradient(model, loss_fn, batch, bound, **arguments)
    less, _ = clipping.clipped_gradient(model, loss_fn, tree_map(lambda t: t[keep], batch), bound, **arguments)
    return sum(float((whole[name] - less[name]).square().sum()) for name in whole) ** 0.5
