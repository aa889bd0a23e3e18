"""Models and records that once contributed more than C: each is kept with the right value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpml import PrivateData, PrivateTrainer, machine
from dpml.errors import ConfigError, ModelError
from dpml.sgd import clipped_gradient, clipping
from dpml.sgd.clipping import Clipper
from dpml.sgd.models import ModelLoss, per_example_loss


def norm(sums):
    return float(torch.sqrt(sum(value.square().sum() for value in sums.values())))


def moved(sums, others):
    return norm({name: sums[name] - others[name] for name in sums})


class SortsByLength(nn.Module):
    """Sequences in the order of their lengths, as for packing; the second layer sees other rows than the first."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 1)

    def forward(self, x):
        order = (x != 0).any(-1).sum(1).argsort(descending=True, stable=True)
        h = self.b(torch.tanh(self.a(x))[order])
        return h[order.argsort()].sum((1, 2))


class Picks(nn.Module):
    """The best three of the batch, put back where they were: nothing of it shows in losses of equal records."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 1)

    def forward(self, x):
        return self.a(x.roll(1, 0).roll(-1, 0))[:, 0]


def squared(model, batch):
    return (model(batch[0]) - batch[1]) ** 2


@pytest.mark.parametrize(("model", "shape"), [(SortsByLength(), (5, 4)), (Picks(), (4,))])
def test_records_that_change_places_are_run_alone(model, shape):
    X, y = torch.randn(20, *shape), torch.randn(20)
    if len(shape) == 2:
        X[3, 2:] = 0.0
        X[7, 1:] = 0.0
        y[3] = 1000.0
    assert Clipper(model, squared, (X, y)).reason
    sums, _ = clipped_gradient(model, squared, (X, y), 1.0)
    keep = torch.arange(20) != 3
    assert moved(sums, clipped_gradient(model, squared, (X[keep], y[keep]), 1.0)[0]) <= 1.0 + 1e-6


def test_every_records_own_row_may_be_picked():
    def manual(model, batch):
        scores = torch.log_softmax(model(batch[0]), 1)
        return -scores[torch.arange(len(scores)), batch[1]]

    clipper = Clipper(nn.Linear(3, 4), manual, (torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64)))
    assert clipper.reason == ""


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 8, 3, bias=False)

    def forward(self, x):
        return self.c(x[:, 0]).sum((1, 2, 3)) + self.c(x[:, 1]).sum((1, 2, 3))


@pytest.mark.parametrize("size", [1e4, 1e8])
def test_uses_that_cancel_do_not_drown_other_records(size):
    """g = +M from one use and -M from the other: the norm is 0, so the record must change nothing."""
    model, loss_fn = Siamese(), lambda model, x: model(x)
    rest = torch.randn(100, 2, 3, 3, 3) * 0.01
    cancelling = torch.zeros(1, 2, 3, 3, 3)
    cancelling[0, 0], cancelling[0, 1] = size, -size
    before, _ = clipped_gradient(model, loss_fn, rest, 1.0)
    after, norms = clipped_gradient(model, loss_fn, torch.cat([rest[:20], cancelling, rest[20:]]), 1.0)
    assert float(norms[20]) <= 1e-6
    assert moved(after, before) <= 1e-4


class Plain(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.l = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x):
        return self.l(x)


def weighted(model, batch):
    return (model(batch[0]) * batch[1]).sum((1, 2))


def test_tiny_inputs_with_huge_derivatives_beside_ordinary_positions():
    """Squares of 2.6e-23 vanish in float32, and the derivatives of 1e19 at these positions make up for them."""
    width, positions = 400, 20
    x = torch.full((1, positions, width), 2.6e-23)
    x[0, :, 0] = 0.0
    x[0, 0] = 0.0
    x[0, 0, 0] = 1.0
    c = torch.full((1, positions, width), 1.7e19 / np.sqrt(width))
    c[0, 0] = 0.0
    c[0, 0, 0] = 0.02
    exact = torch.einsum("ti,to->oi", x[0].double(), c[0].double()).norm()
    sums, norms = clipped_gradient(Plain(width, width), weighted, (x, c), 0.01)
    assert float(norms) == pytest.approx(float(exact), rel=1e-4)
    assert norm(sums) <= 0.01 * (1 + 1e-5)


@pytest.mark.parametrize("bound", [1e-6, 1e-3])
def test_a_factor_that_float32_cannot_hold_means_no_contribution(bound):
    x, c = torch.tensor([[1.76e19]]), torch.tensor([1.8e19])
    sums, norms = clipped_gradient(nn.Linear(1, 1, bias=False), lambda m, b: m(b[0])[:, 0] * b[1], (x, c), bound)
    assert float(norms) == pytest.approx(1.76e19 * 1.8e19, rel=1e-6)
    assert norm(sums) == 0.0


@pytest.mark.parametrize(
    ("arguments", "match"),
    [({"hidden": 3}, "hidden = 3"), ({"assumptions": 3}, "assumptions = 3"), ({"run_dir": 3}, "run_dir = 3")],
)
def test_arguments_of_another_type_are_named(arguments, match):
    with pytest.raises(ConfigError, match=match):
        PrivateTrainer(**arguments)


def test_numpys_whole_numbers_are_whole_numbers():
    trainer = PrivateTrainer("mlp", "dp_sgd", steps=np.int64(5), micro_batch_size=np.int64(7), hidden=(np.int64(3),))
    assert (trainer.steps, trainer.micro_batch_size, trainer.hidden) == (5, 7, (3,))


@pytest.mark.parametrize("side", [4, 8])  # in the Gram form, and built block by block
def test_positions_of_a_wide_convolution_that_cancel_do_not_drown_other_records(side):
    """Too wide to keep every gradient.  The true gradient is 0; a norm may only be raised for rounding."""
    torch.manual_seed(0)
    model = nn.Conv2d(64, 128, 3, padding=1, bias=False)

    def loss_fn(model, batch):
        return (model(batch[0]) * batch[1]).sum((1, 2, 3))

    x, c = torch.full((256, 64, side, side), 0.05), torch.zeros(256, 128, side, side)
    c[:, :, 0, 0] = 1.0
    ax, ac = torch.full((1, 64, side, side), 1e6), torch.zeros(1, 128, side, side)
    ac[:, :, 1, 1], ac[:, :, 2, 2] = 1.0, -1.0
    before, _ = clipped_gradient(model, loss_fn, (x, c), 1.0)
    after, norms = clipped_gradient(
        model, loss_fn, tuple(torch.cat([t[:20], a, t[20:]]) for t, a in ((x, ax), (c, ac))), 1.0
    )
    assert float(norms[20]) <= 1e6 * 1e-3
    assert moved(after, before) <= 1.0


@pytest.mark.parametrize("positions", [3, 5, 7])
def test_no_record_is_cut_by_the_end_of_a_run(positions):
    """Its terms cancel only in one and the same sum."""
    torch.manual_seed(0)
    width = 40
    model = Plain(width, width)
    x, c = torch.randn(3000, positions, width) * 1e-3, torch.randn(3000, positions, width) * 1e-3
    before, _ = clipped_gradient(model, weighted, (x, c), 1.0)
    worst = 0.0
    for place in (4096 // positions, 8192 // positions):
        ax, ac = torch.ones(1, positions, width), torch.zeros(1, positions, width)
        ac[0, 0], ac[0, -1] = 1e6, -1e6
        batch = tuple(torch.cat([t[:place], a, t[place:]]) for t, a in ((x, ax), (c, ac)))
        worst = max(worst, moved(clipped_gradient(model, weighted, batch, 1.0)[0], before))
    assert worst <= 1.0 + 1e-3


@pytest.mark.parametrize("engine", ["auto", "per_example"])
def test_a_parameter_that_is_one_number(engine):
    class Temperature(nn.Module):
        def __init__(self):
            super().__init__()
            self.t, self.a = nn.Parameter(torch.tensor(2.0)), nn.Linear(3, 2)

        def forward(self, x):
            return self.a(x) * self.t

    model, x, y = Temperature(), torch.randn(6, 3), torch.randint(0, 2, (6,))

    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    sums, norms = clipped_gradient(model, loss_fn, (x, y), 1e6, engine=engine)
    loss_fn(model, (x, y)).sum().backward()
    assert float(sums["t"]) == pytest.approx(float(model.t.grad), rel=1e-5)
    assert norms.shape == (6,)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"max_grad_norm": None}, ConfigError, "max_grad_norm = None"),
        ({"max_grad_norm": "a"}, ConfigError, "max_grad_norm = 'a'"),
        ({"micro_batch_size": 2.5}, ConfigError, "micro_batch_size = 2.5"),
        ({"model": nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))}, ModelError, "BatchNorm1d"),
        ({"model": None}, ModelError, "model = None"),
        ({"model": nn.Sequential(nn.LazyLinear(3))}, ModelError, "no shape yet"),
    ],
)
def test_clipped_gradient_names_what_it_refuses(arguments, error, match):
    batch = (torch.randn(4, 3), torch.randint(0, 2, (4,)))
    given = {"model": nn.Linear(3, 3), "loss_fn": squared, "batch": batch, "max_grad_norm": 1.0, **arguments}
    with pytest.raises(error, match=match):
        clipped_gradient(**given)


@pytest.mark.parametrize(
    ("loss", "error", "match"),
    [
        ("mse", ConfigError, "loss = 'mse'"),
        (nn.CrossEntropyLoss(), ModelError, "one loss per record"),
        (lambda output, y: output.nothing, ModelError, "loss fails on two records of zeros"),
    ],
)
def test_a_wrong_loss_is_found_before_data_are_read_or_a_cap_is_spent(tmp_path, loss, error, match):
    data = PrivateData.from_arrays(np.zeros((50, 3)), np.arange(50) % 2, norm_bound=1.0, classes=[0, 1], n_declared=50)
    cap = tmp_path / "cap.jsonl"
    with pytest.raises(error, match=match):
        PrivateTrainer(
            nn.Linear(3, 2), "dp_sgd", loss=loss, epsilon=1.0, steps=2,
            dataset_ledger=cap, dataset_epsilon=2.0, dataset_delta=1e-2,
        ).fit(data)  # fmt: skip
    assert not cap.exists()


@pytest.mark.parametrize("place", [0, 50, 76, 77, 81])
def test_terms_that_cancel_across_a_block_of_the_matrix_product(place):
    """A true gradient of 0 with terms of 1e8: whatever block edge it straddles, the others are not rounded away."""
    torch.manual_seed(0)
    width, positions = 64, 5
    model = Plain(width, width)
    x, c = torch.randn(300, positions, width) * 0.05, torch.randn(300, positions, width) * 0.05
    before, _ = clipped_gradient(model, weighted, (x, c), 1.0)
    ax, ac = torch.ones(1, positions, width), torch.zeros(1, positions, width)
    ac[0, 0], ac[0, -1] = 1e8, -1e8
    batch = tuple(torch.cat([t[:place], a, t[place:]]) for t, a in ((x, ax), (c, ac)))
    assert moved(clipped_gradient(model, weighted, batch, 1.0)[0], before) <= 1.0 + 1e-3


def test_a_bad_record_costs_no_gradients_of_the_others(monkeypatch):
    """Halves find it: only one record is run alone, so that memory stays that of one gradient."""
    alone = []
    whole = clipping.per_example_gradients

    def listening(model, loss_fn, batch, *least):
        alone.append(len(batch[0]))
        return whole(model, loss_fn, batch, *least)

    model = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(24, 2))
    tokens, y = torch.randint(0, 50, (300, 3)), torch.randint(0, 2, (300,))

    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    expected, _ = clipped_gradient(model, loss_fn, (tokens[torch.arange(300) != 123], y[torch.arange(300) != 123]), 0.1)
    tokens[123, 1] = 50
    monkeypatch.setattr(clipping, "per_example_gradients", listening)
    sums, norms = clipped_gradient(model, loss_fn, (tokens, y), 0.1)
    assert alone == [1]
    assert torch.isnan(norms).nonzero().flatten().tolist() == [123]
    assert moved(sums, expected) <= 1e-5


def test_a_batch_that_does_not_fit_into_memory_is_run_in_parts(monkeypatch):
    """As if three records were too many: nothing changes but the time.  A machine without any memory stops the run."""
    whole = clipping.Batches.gradients

    def greedy(self, batch, size, recipe):
        if size > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
        return whole(self, batch, size, recipe)

    model, batch = nn.Sequential(nn.Linear(3, 2)).double(), (torch.randn(7, 3).double(), torch.zeros(7, 2).double())

    def summed(model, batch):
        return squared(model, batch).sum(1)

    expected, norms = clipped_gradient(model, summed, batch, 1.0)
    monkeypatch.setattr(clipping.Batches, "gradients", greedy)
    sums, again = clipped_gradient(model, summed, batch, 1.0)
    torch.testing.assert_close(again, norms, rtol=1e-12, atol=0)
    for name, value in expected.items():
        torch.testing.assert_close(sums[name], value, rtol=1e-12, atol=1e-12)
    monkeypatch.setattr(machine, "is_short_of_memory", lambda: True)
    with pytest.raises(RuntimeError, match="allocate memory"):
        clipped_gradient(model, summed, batch, 1.0)


@pytest.mark.parametrize("width", [3, 2000])
def test_a_float32_gradient_whose_square_overflows_is_clipped_not_dropped(width):
    """‖x‖ = 1e25: float32's squares end at 3.4e38."""
    X = torch.zeros(2, width)
    X[0, 0], X[1, 1] = 1e25, 1.0
    y = torch.tensor([0, 1])
    model = nn.Linear(width, 2, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    sums, norms = clipped_gradient(model, ModelLoss(), (X[:1], y[:1]), 1.0)
    assert float(norms[0]) == pytest.approx(1e25 / math.sqrt(2), rel=1e-5)
    assert float(sums["weight"].norm()) == pytest.approx(1.0, rel=1e-5)


class Scaled:
    """A loss whose plain attribute decides whether records are mixed."""

    mixing = False

    def __init__(self):
        self.mixing = False

    def __call__(self, model, batch):
        losses = per_example_loss(model(batch[0]), batch[1])
        return losses * losses.detach().sum() if self.mixing else losses


def test_a_loss_that_changes_between_calls_is_looked_at_again():
    loss, model = Scaled(), nn.Linear(3, 2).double()
    X, y = torch.randn(6, 3, dtype=torch.float64), torch.arange(6) % 2
    assert Clipper(model, loss, (X, y)).reason == ""
    loss.mixing = True
    assert Clipper(model, loss, (X, y)).reason != ""


class DoublesLargeInputs(nn.Linear):
    """Writes into its input, and again at every attempt; raises for one kind of record."""

    def forward(self, x):
        x.mul_(torch.where(x.abs() > 3.0, 2.0, 1.0))
        if float(x.detach().abs().max()) > 1e3:
            raise ValueError("too large")
        return super().forward(x)


class DoublesItsInput(nn.Linear):
    def forward(self, x):
        return super().forward(x.mul_(2.0))


@pytest.mark.parametrize("engine", ["auto", "per_example"])
@pytest.mark.parametrize("kind", [DoublesLargeInputs, DoublesItsInput])
def test_a_forward_pass_that_writes_into_its_input(kind, engine):
    """A record that raises makes others run again: what an attempt wrote into their rows must be gone."""
    model = kind(3, 2).double()
    rng = torch.Generator().manual_seed(2)
    X, y = 4.0 * torch.randn(9, 3, dtype=torch.float64, generator=rng), torch.arange(9) % 2
    X[0] = 900.0
    kept = X.clone()
    with_it, _ = clipped_gradient(model, ModelLoss(), (X, y), 1.0, engine=engine)
    without_it, _ = clipped_gradient(model, ModelLoss(), (X[1:], y[1:]), 1.0, engine=engine)
    assert torch.equal(X, kept)
    assert moved(with_it, without_it) <= 1.0 + 1e-12
    one_by_one = [clipped_gradient(model, ModelLoss(), (X[i : i + 1], y[i : i + 1]), 1.0)[0] for i in range(9)]
    for name, value in with_it.items():
        torch.testing.assert_close(value, sum(part[name] for part in one_by_one), rtol=1e-10, atol=1e-12)


class Capacity(nn.Module):
    """Experts with a capacity, records along the second axis: who comes after 50 others is dropped."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        logits = self.linear(x)
        taken = torch.ones(1, len(x), dtype=x.dtype).cumsum(1)
        return logits * (taken[0] <= 50).to(x.dtype)[:, None]


def test_places_counted_along_another_axis_are_noticed():
    batch = torch.zeros(1, 3, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    assert "change places" in Clipper(Capacity().double(), ModelLoss(), batch).reason


@pytest.mark.parametrize("value", [10**400, 10**6000, np.array([1.0, 2.0])], ids=["long", "longer", "array"])
@pytest.mark.parametrize("name", ["epsilon", "delta", "max_grad_norm", "learning_rate", "optimizer", "method"])
def test_values_that_no_float_holds_are_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=name):
        PrivateTrainer(**({"model": "logreg", "method": "dp_sgd", "epsilon": 1.0} | {name: value}))


def test_a_clipping_norm_that_no_float_holds():
    with pytest.raises(ConfigError, match="max_grad_norm"):
        clipped_gradient(nn.Linear(2, 2), ModelLoss(), (torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)), 10**400)
