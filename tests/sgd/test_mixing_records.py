"""Models that treat records together: the one backward pass is refused, with a reason, and the sums are the loop's."""

from __future__ import annotations

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from gradient_checks import alone, expected_sums, moved
from test_one_backward import Then
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from dpml.sgd import clipped_gradient
from dpml.sgd.clipping import Clipper


def per_record(model, batch):
    return F.cross_entropy(model(batch[0]), batch[-1], reduction="none")


def linear(function, **parts):
    return Then(function, a=nn.Linear(5, 3), **parts)


def numbers(size=9):
    return torch.randn(size, 5, dtype=torch.float64), torch.randint(0, 3, (size,))


def tokens(size=9):
    return torch.randint(0, 7, (size, 4)), torch.randint(0, 3, (size,))


def lengths(size=9):
    return torch.randn(size, 6, 5, dtype=torch.float64), torch.randint(1, 7, (size,)), torch.randint(0, 3, (size,))


def zero_initialised(function):
    behind = nn.Linear(3, 3)
    nn.init.zeros_(behind.weight)
    nn.init.zeros_(behind.bias)
    return linear(function, z=behind, c=nn.Linear(5, 3))


def over_tokens(function):
    return Then(function, e=nn.Embedding(7, 3), a=nn.Linear(12, 3))


def by_hand(self, x):
    return self.a((x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt())


def ghost(self, x):
    return self.a(torch.cat([part - part.mean(0) for part in x.split(4)]) if len(x) >= 4 else x)


def normalised_over_the_batch(model, batch):
    each = per_record(model, batch)
    weights = 1.0 + batch[-1].to(each.dtype)
    return each * weights / weights.mean()


def hardest(model, batch):
    each = per_record(model, batch)
    return torch.where(each >= each.topk(min(4, len(each))).values[-1].detach(), each, torch.zeros_like(each))


def balancing(model, batch):
    """An auxiliary loss of experts, a thousandth of it, the same for every record of the batch."""
    share = model.a(model.e(batch[0]).flatten(1)).softmax(1)
    return per_record(model, batch) + 1e-3 * 3 * share.mean(0).square().sum()


def longest(model, batch):
    """The mean over as many positions as the longest record of the batch has."""
    X, length, y = batch
    most = length.max().clamp(min=1)
    mask = (torch.arange(6) < most).to(X.dtype)
    return F.cross_entropy(model((X * mask[None, :, None]).sum(1) / most), y, reduction="none")


MIXING = {
    "batch mean": (lambda: linear(lambda s, x: s.a(x - 0.5 * x.mean(0))), per_record, numbers),
    "softmax over the batch": (lambda: linear(lambda s, x: s.a(x).softmax(0)), per_record, numbers),
    "batch norm by hand": (lambda: linear(by_hand), per_record, numbers),
    "train mode only": (lambda: linear(lambda s, x: s.a(x - x.mean(0) if s.training else x)), per_record, numbers),
    "behind zeros": (lambda: zero_initialised(lambda s, x: s.c(x) + s.z(s.a(x - x.mean(0)))), per_record, numbers),
    "loss over the batch": (lambda: linear(lambda s, x: s.a(x)), normalised_over_the_batch, numbers),
    "integers only": (
        lambda: over_tokens(lambda s, t: s.a(s.e(t).flatten(1) * (1.0 + t.double().mean()))),
        per_record,
        tokens,
    ),
    "auxiliary loss": (lambda: over_tokens(lambda s, t: s.a(s.e(t).flatten(1))), balancing, tokens),
    "weakly": (
        lambda: over_tokens(lambda s, t: s.a((s.e(t) - 1e-4 * s.e(t).mean(0)).flatten(1))),
        per_record,
        tokens,
    ),
    "longest": (lambda: linear(lambda s, x: s.a(x)), longest, lengths),
    "every third": (lambda: linear(lambda s, x: s.a(x + 0.5 * x.roll(3, 0))), per_record, numbers),
    "more than three": (lambda: linear(lambda s, x: s.a(x - x.mean(0) if len(x) > 3 else x)), per_record, numbers),
    "ghost norm": (lambda: linear(ghost), per_record, numbers),
    "hardest records": (lambda: linear(lambda s, x: s.a(x)), hardest, numbers),
    "sorted in between": (
        lambda: linear(lambda s, x: s.c(torch.tanh(s.a(x[x[:, 0].argsort()])))[x[:, 0].argsort().argsort()],
                       c=nn.Linear(3, 3)),
        per_record,
        numbers,
    ),
    "tokens above 3": (
        lambda: over_tokens(lambda s, t: s.a((s.e(t) - 0.3 * (t > 3).double().mean()).flatten(1))),
        per_record,
        tokens,
    ),
}  # fmt: skip


def records(model, loss_fn, batch, bound):
    """Sums and norms of records alone, on a copy (a forward pass may write into the model)."""
    sums, norms, _ = expected_sums(alone(copy.deepcopy(model), loss_fn, batch), bound)
    return sums, norms


@pytest.mark.parametrize("name", MIXING)
def test_a_model_that_mixes_records_is_run_record_by_record(name):
    make, loss_fn, inputs = MIXING[name]
    model, batch = make().double().train(), inputs()
    assert Clipper(model, loss_fn, batch).reason
    want, norms = records(model, loss_fn, batch, 0.3)
    sums, got = clipped_gradient(model, loss_fn, batch, 0.3)
    torch.testing.assert_close(got, norms, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(sums, want, rtol=1e-10, atol=1e-13)
    for i in (0, 4):
        assert moved(model, loss_fn, batch, i, 0.3) <= 0.3 * (1 + 1e-9)


def test_mixing_is_seen_in_half_precision_too():
    """The look is in float64 whatever the model's type: grey values centred by the batch mean, a model in bfloat16."""
    model = Then(
        lambda s, x: s.a((x.float() / 255 - (x.float() / 255).mean(0)).to(s.a.weight.dtype)), a=nn.Linear(10, 3)
    )
    batch = torch.randint(0, 256, (9, 10), dtype=torch.uint8), torch.randint(0, 3, (9,))
    assert Clipper(model.to(torch.bfloat16), per_record, batch).reason


@pytest.mark.parametrize("source", ["python", "torch"])
def test_random_mixing_that_seldom_happens_is_refused(source):
    def forward(self, x):
        drawn = random.random() if source == "python" else torch.rand(())
        return self.a(0.6 * x + 0.4 * x.flip(0) if drawn < 1e-3 else x)

    model, batch = linear(forward).double(), numbers()
    state = random.getstate(), torch.get_rng_state()
    assert Clipper(model, per_record, batch).reason
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])


def test_a_switch_turned_after_the_first_call_is_looked_at_again():
    model = linear(lambda s, x: s.a(x - x.mean(0) if s.mix else x)).double()
    batch = numbers()
    model.mix = False
    assert Clipper(model, per_record, batch).reason == ""
    model.mix = True
    assert Clipper(model, per_record, batch).reason
    model.mix = False
    model.a.register_forward_hook(lambda module, inputs, output: output - output.mean(0))
    assert Clipper(model, per_record, batch).reason


class Sign(torch.autograd.Function):
    """Of the style without ``setup_context``: functorch cannot run it."""

    @staticmethod
    def forward(ctx, x):
        return x.sign() + 0.1 * x

    @staticmethod
    def backward(ctx, g):
        return g


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(5, 4)
        self.register_buffer("seen", torch.zeros(5))

    def forward(self, x):
        self.seen += x.detach().sum(0)
        return super().forward(x)


def average_in_a_frozen_weight(self, x):
    self.kept.weight.data.mul_(0.9).add_(0.1 * x.detach().mean(0))
    return self.a(x)


def drift_in_a_trained_weight(self, x):
    self.a.bias.data.add_(0.1 * x.detach().mean())
    return self.a(x)


def hooked():
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].register_full_backward_hook(lambda module, inputs, outputs: None)
    model[2].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0.5,))
    return model


ODD = {
    "old autograd function": lambda: linear(lambda s, x: s.c(Sign.apply(s.a(x))), c=nn.Linear(3, 3)),
    "checkpoint": lambda: linear(
        lambda s, x: s.c(torch.tanh(checkpoint(s.a, x, use_reentrant=False))), c=nn.Linear(3, 3)
    ),
    "checkpointed buffer": lambda: Then(
        lambda s, x: s.c(torch.tanh(checkpoint(s.a, x, use_reentrant=False))), a=Counting(), c=nn.Linear(4, 3)
    ),
    "hooks": hooked,
    "weight norm": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 3)
    ),
    "detached second use": lambda: linear(lambda s, x: s.a(x) + F.linear(x, s.a.weight.detach())),
    "part of a weight": lambda: Then(lambda s, x: F.linear(x, s.a.weight[:3]), a=nn.Linear(5, 6)),
    "branch on a value": lambda: linear(lambda s, x: s.a(x) if x.sum() > 0 else s.c(x), c=nn.Linear(5, 3)),
    "average in a frozen weight": lambda: linear(
        average_in_a_frozen_weight, kept=nn.Linear(5, 1, bias=False).requires_grad_(False)
    ),
    "drift in a trained weight": lambda: linear(drift_in_a_trained_weight),
}


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("name", ODD)
def test_odd_models_give_the_loops_sums_and_stay_as_they_were(name):
    model, batch = ODD[name]().double(), numbers()
    before = copy.deepcopy(model.state_dict())
    sums, norms = clipped_gradient(model, per_record, batch, 0.3)
    after = model.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)
    want, true = {}, []
    for i in range(len(batch[0])):  # every record meets the model as it was
        part, norm = records(model, per_record, tree_map(lambda t, i=i: t[i : i + 1], batch), 0.3)
        want = {key: want.get(key, 0.0) + value for key, value in part.items()}
        true.append(norm)
    torch.testing.assert_close(norms, torch.cat(true), rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(sums, want, rtol=1e-10, atol=1e-13)


def test_sparse_embeddings_are_trained():
    model = nn.Sequential(nn.Embedding(7, 3, sparse=True), nn.Flatten(), nn.Linear(12, 3)).double()
    dense = nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(12, 3)).double()
    dense.load_state_dict(model.state_dict())
    batch = tokens()
    torch.testing.assert_close(
        clipped_gradient(model, per_record, batch, 0.3), clipped_gradient(dense, per_record, batch, 0.3)
    )


def test_nothing_reached_gives_zeros():
    model = Then(lambda s, x: x[:, :3] * 1.0, a=nn.Linear(5, 3)).double()
    with pytest.warns(RuntimeWarning, match="does not depend on the model's trained parameters"):
        sums, norms = clipped_gradient(model, per_record, numbers(), 0.3)
    assert norms.shape == (9,)
    assert float(norms.sum()) == 0.0
    assert all(float(v.abs().sum()) == 0.0 for v in sums.values())
