"""No crash oracle: a record on which the model or the loss fails contributes zero, and the run goes on."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from sgd_checks import RecordingNoise, run, small_plan
from sgd_faults import PlainLinear, Tokens
from torch import nn

from dpml import PrivateData, PrivateTrainer, machine, sgd
from dpml.errors import ModelError
from dpml.mechanisms import FixedNoise
from dpml.sgd import ModelLoss, clipped_gradient, per_example
from dpml.sgd import clipping as clipping_module
from dpml.sgd.models import per_example_loss
from dpml.sgd.uses import Built


class Picky(nn.Linear):
    """Raises for a row that starts with a large number: in Python, so ``vmap`` cannot run it at all."""

    def forward(self, x):
        if float(x.detach()[0, 0]) > 50:
            raise ValueError("no such thing")
        return super().forward(x)


def shape_by_value(model, batch):
    """A loss whose shape depends on the record."""
    losses = per_example_loss(model(batch[0]), batch[1])
    return torch.cat([losses, losses]) if float(batch[0].detach().max()) > 50 else losses


def tokens(n):
    return torch.arange(2 * n).reshape(n, 2) % 5, torch.arange(n) % 2


def rows_of(n):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64), torch.arange(n) % 2


def spoil_token(X, y, i):
    X[i, 1] = 7


def spoil_row(X, y, i):
    X[i] = 99.0


def spoil_label(X, y, i):
    y[i] = 3


def spoil_label_below(X, y, i):
    y[i] = -1


CASES = {
    "embedding": (Tokens, tokens, spoil_token, ModelLoss()),
    "python": (lambda: Picky(3, 2), rows_of, spoil_row, ModelLoss()),
    "loss of another shape": (lambda: nn.Linear(3, 2), rows_of, spoil_row, shape_by_value),
    "label, closed form": (lambda: nn.Linear(3, 2), rows_of, spoil_label, ModelLoss()),
    "label below 0, closed form": (lambda: nn.Linear(3, 2), rows_of, spoil_label_below, ModelLoss()),
    "label": (lambda: nn.Sequential(nn.Linear(3, 2)), rows_of, spoil_label, ModelLoss()),
    "label below 0": (lambda: nn.Sequential(nn.Linear(3, 2)), rows_of, spoil_label_below, ModelLoss()),
}


@pytest.mark.parametrize("micro", [None, 1, 4])
@pytest.mark.parametrize("bad", [(3,), (0, 10), tuple(range(11))], ids=["one", "first and last", "all"])
@pytest.mark.parametrize("name", CASES)
def test_a_record_that_raises_contributes_zero_and_moves_no_other(name, bad, micro):
    torch.manual_seed(0)
    make, data, spoil, loss_fn = CASES[name]
    model, (X, y) = make().double(), data(11)
    keep = torch.tensor([i not in bad for i in range(11)])
    expected, expected_norms = clipped_gradient(model, loss_fn, (X[keep], y[keep]), 0.3, micro)
    for i in bad:
        spoil(X, y, i)
    sums, norms = clipped_gradient(model, loss_fn, (X, y), 0.3, micro)
    assert torch.isnan(norms[~keep]).all()
    torch.testing.assert_close(norms[keep], expected_norms, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(sums, expected, rtol=1e-12, atol=1e-14)


def test_a_run_goes_on_and_counts_privately(caplog):
    X, y = np.arange(80).reshape(40, 2) % 5, np.arange(40) % 2
    X[7, 0] = 7
    plan = small_plan(sample_rate=1.0)
    with caplog.at_level(logging.INFO, logger="dpml.sgd.engine"):
        trained, notes, charges, _ = run(plan, X, y, model=Tokens())
    assert notes["non_finite"] == [1] * 12
    assert sum(count for _, count in charges) == 12
    assert all(torch.isfinite(p).all() for p in trained.parameters())
    assert "12 contributions were not finite or raised an error" in caplog.text


def test_few_more_calls_than_levels_find_the_record_in_a_large_batch(monkeypatch):
    """One bad id among 1024: halves find it in one backward pass each, and it alone is run alone."""
    calls, model = [], Tokens()
    clipped_gradient(model, ModelLoss(), tokens(2), 0.3)  # what is to be found out about the model is known now
    whole = per_example._stacked
    monkeypatch.setattr(per_example, "_stacked", lambda *a: calls.append(1) or whole(*a))
    X, y = tokens(1024)
    X[700, 0] = 7
    _, norms = clipped_gradient(model, ModelLoss(), (X, y), 0.3)
    assert torch.isnan(norms).nonzero().flatten().tolist() == [700]
    assert len(calls) == 1


def wrong_loss(logits, targets):
    return torch.tensor(0.0).expand(3) + logits.sum()


def broken_loss(logits, targets):
    raise KeyError("typo")


@pytest.mark.parametrize(
    ("model", "loss", "match"),
    [
        (PlainLinear(3), wrong_loss, "one loss per record"),
        (PlainLinear(3), broken_loss, r"record of zeros \(row \(3,\).*KeyError: 'typo'"),
        (PlainLinear(4), None, r"record of zeros.*RuntimeError"),
        (nn.Linear(4, 1), None, r"record of zeros.*RuntimeError"),
    ],
)
def test_what_fails_for_every_record_is_refused_before_anything_is_charged(model, loss, match):
    charges, noise = [], RecordingNoise()
    with pytest.raises(ModelError, match=match):
        sgd.fit_dp_sgd(
            small_plan(),
            model,
            np.ones((6, 3)),
            np.zeros(6, dtype=np.int64),
            noise=noise,
            reserve=lambda *a: charges.append(a),
            loss=loss,
        )
    assert charges == []
    assert noise.log == []


def test_a_refusal_does_not_depend_on_the_number_or_the_values_of_records():
    for n in (0, 1, 5):
        batch = (torch.full((n, 3), 99.0), torch.zeros(n, dtype=torch.int64))
        with pytest.raises(ModelError, match="one loss per record"):
            clipped_gradient(nn.Linear(3, 2), lambda m, b: m(b[0]).sum(), batch, 1.0)
        clipped_gradient(nn.Linear(3, 2), shape_by_value, batch, 1.0)


def test_a_fault_of_every_record_is_a_warning_that_tells_nothing_of_the_records():
    for n in (0, 1, 5):
        batch = (torch.full((n, 3), 99.0, dtype=torch.float64), torch.zeros(n, dtype=torch.int64))
        with pytest.warns(RuntimeWarning, match=r"a record of zeros raises RuntimeError.*dtype"):
            sums, norms = clipped_gradient(nn.Linear(3, 2), ModelLoss(), batch, 1.0)
        assert torch.isnan(norms).all()
        assert all(float(value.abs().sum()) == 0.0 for value in sums.values())


def greedy(model, batch):
    """Asks for 800 TB where a record says so."""
    if float(batch[0].detach().max()) > 50:
        torch.zeros(10**14, dtype=torch.float64)
    return model(batch[0])[:, 0]


def hungry(model, batch):
    if float(batch[0].detach().max()) > 50:
        raise MemoryError
    return model(batch[0])[:, 0]


@pytest.mark.parametrize("loss", [greedy, hungry])
def test_a_record_that_asks_for_too_much_memory_contributes_zero(loss):
    """The error, let alone its text, would tell that the record is there."""
    model, (X, y) = nn.Linear(3, 1).double(), rows_of(4)
    expected, _ = clipped_gradient(model, loss, (X, y), 1.0)
    X, y = torch.cat([X, torch.full((1, 3), 99.0, dtype=X.dtype)]), torch.cat([y, y[:1]])
    sums, norms = clipped_gradient(model, loss, (X, y), 1.0)
    assert torch.isnan(norms).nonzero().flatten().tolist() == [4]
    for name, value in expected.items():
        torch.testing.assert_close(sums[name], value, rtol=1e-12, atol=1e-12)


def test_the_machines_own_lack_of_memory_stops_a_run(monkeypatch):
    monkeypatch.setattr(machine, "is_short_of_memory", lambda: True)
    batch = (torch.full((2, 3), 99.0), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(MemoryError):
        clipped_gradient(nn.Linear(3, 1), hungry, batch, 1.0)


@pytest.mark.parametrize("kind", ["one backward", "per example"])
def test_one_record_more_moves_a_large_single_precision_sum_by_at_most_c(kind):
    from sgd_faults import one_record_more_moves_a_large_sum_by_at_most_c

    one_record_more_moves_a_large_sum_by_at_most_c(kind)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_clipped_contribution_is_within_c_in_double_precision(dtype):
    generator = torch.Generator().manual_seed(3)
    for width in (1, 7, 1000, 30_000):
        values = (torch.randn(1, width, generator=generator) * 10).to(dtype)
        gradient = {"w": Built(values.double())}
        for bound in (1e-6, 0.1, 1.0):
            sums, norms = clipping_module.clip_and_sum(dict(gradient), bound)
            assert float(norms) > bound
            assert float(torch.linalg.vector_norm(sums["w"])) <= bound


class Quitting(nn.Linear):
    """Ends the program for a row that starts with a large number."""

    def forward(self, x):
        if float(x.detach()[0, 0]) > 50:
            raise SystemExit(3)
        return super().forward(x)


class QuittingItems:
    """A map-style dataset whose fourth item ends the program."""

    def __len__(self):
        return 6

    def __getitem__(self, i):
        if i == 3:
            raise SystemExit(3)
        return np.full(2, float(i)), i % 2


def test_a_record_that_ends_the_program_contributes_zero():
    model, (X, y) = Quitting(3, 2).double(), rows_of(5)
    expected, _ = clipped_gradient(model, ModelLoss(), (X, y), 1.0)
    X, y = torch.cat([X, torch.full((1, 3), 99.0, dtype=X.dtype)]), torch.cat([y, y[:1]])
    sums, norms = clipped_gradient(model, ModelLoss(), (X, y), 1.0)
    assert torch.isnan(norms[5])
    for name, value in expected.items():
        torch.testing.assert_close(sums[name], value, rtol=1e-12, atol=1e-12)


def test_an_item_that_ends_the_program_is_left_out():
    data = PrivateData.from_dataset(QuittingItems(), n_declared=6, classes=[0, 1], feature_shape=(2,))
    result = PrivateTrainer(
        model=nn.Linear(2, 2), method="dp_sgd", noise_multiplier=1.0, delta=1e-3, steps=2, expected_batch_size=3,
        noise_source=FixedNoise(1),
    ).fit(data)  # fmt: skip
    assert result.plan.steps == 2
