"""What made-up records must show: marks of what is left out, and what a model does in its own type only."""

from __future__ import annotations

import mark_checks as checks
import numpy as np
import pytest
import torch
from torch import nn

from dpml import sgd
from dpml.errors import ModelError
from dpml.mechanisms import FixedNoise
from dpml.sgd import made_up
from dpml.sgd.clipping import Clipper, clipped_gradient
from dpml.sgd.models import ModelLoss


@pytest.mark.parametrize("mark", [-100, -1, 255])
def test_means_over_labels_that_are_not_marked_are_run_alone(mark):
    """255 is no label of 50 classes: as a mark of what is left out it is one that ``ignore_index`` lets through."""
    checks.marked_labels_are_not_mixed(mark)


@pytest.mark.parametrize("mark", [-2, 40, 49, 50, 254, -999])
def test_a_mark_that_is_compared_with_is_tried(mark):
    checks.marked_labels_are_not_mixed(mark)


@pytest.mark.parametrize("mark", [-100, -1, 255])
def test_the_usual_marks_are_tried_wherever_they_stand(mark):
    checks.marked_labels_are_not_mixed(mark, checks.hidden_mean)


KNOWN = {
    "x != -999.0": (lambda x: x != -999.0, -999.0),
    "x.ne(-7)": (lambda x: x.ne(-7), -7.0),
    "x > -50": (lambda x: x > -50, -50.5),
    "torch.lt(x, 60.0)": (lambda x: torch.lt(x, 60.0), 60.5),
    "~(x == a tensor)": (lambda x: ~(x == torch.tensor(-5.0, dtype=x.dtype)), -5.0),
    "~torch.isin": (lambda x: ~torch.isin(x, torch.tensor([-3.0, -4.0], dtype=x.dtype)), -4.0),
}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_missing_number_is_tried(name):
    checks.missing_numbers_are_not_mixed(*KNOWN[name])


def test_a_number_of_its_own_that_a_record_is_compared_with_slows_nothing_down():
    """A model that compares and does not mix is run in one backward pass."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3)
            self.register_buffer("limit", torch.tensor([0.5]))

        def forward(self, x):
            return self.linear(torch.where(x != -999.0, x, 0.0) * (x < self.limit))

    assert Clipper(Own(), ModelLoss(), (torch.zeros(1, 6), torch.zeros(1, dtype=torch.int64))).reason == ""


@pytest.mark.parametrize(
    ("pad", "padding_idx"), [(2999, None), (1500, 1500), (2, None), (50, None), (0, None), (1, None)]
)
def test_positions_that_all_records_pad_are_run_alone(pad, padding_idx):
    checks.padded_positions_are_not_mixed(pad, padding_idx)


def test_a_model_that_writes_into_records_of_its_own_type_is_run_alone():
    checks.nothing_is_written_into_records()


def test_a_branch_for_one_type_is_seen():
    checks.a_branch_for_one_type_does_not_mix()


def test_a_loss_that_writes_into_targets_of_its_own_type_is_run_alone():
    def loss(model, batch):
        return (model(batch[0])[:, 0] - batch[1].float().mul_(2.0)).square()

    X, y = torch.randn(8, 6), torch.randn(8)
    kept = y.clone()
    assert "writes into its input" in Clipper(nn.Linear(6, 1), loss, (X[:1], y[:1])).reason
    clipped_gradient(nn.Linear(6, 1), loss, (X, y), 1.0)
    assert torch.equal(y, kept)


def test_the_engine_leaves_the_callers_rows_as_they_are():
    """Full batches, in which the stored rows themselves are handed on."""
    model, X, y = checks.Writer(), torch.randn(30, 6), torch.arange(30) % 3
    kept = X.clone()
    plan = sgd.plan_dp_sgd(
        n_declared=30, n_features=6, n_classes=3, model_name="module", n_parameters=21, epsilon=None, delta=1e-3,
        noise_multiplier=1.0, max_grad_norm=0.5, expected_batch_size=30, steps=3, learning_rate=0.1,
    )  # fmt: skip
    sgd.fit_dp_sgd(plan, model, X, y, noise=FixedNoise(0), reserve=lambda *_: None)
    assert torch.equal(X, kept)


@pytest.mark.parametrize("mark", [-100, -1, 255])
def test_sums_over_a_records_own_labels_stay_in_one_pass(mark):
    tokens, labels = torch.zeros(1, 12, dtype=torch.int64), torch.zeros(1, 12, dtype=torch.int64)
    assert Clipper(checks.Tokens(), checks.own_sums(mark), (tokens, labels)).reason == ""


def test_a_model_that_converts_without_writing_stays_in_one_pass():
    class Converting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x):
            return self.linear((x.float() - 1.0).to(self.linear.weight.dtype))

    for dtype in (torch.float32, torch.float64):
        batch = torch.zeros(1, 6, dtype=dtype), torch.zeros(1, dtype=torch.int64)
        assert Clipper(Converting().to(dtype), ModelLoss(), batch).reason == ""


def test_whole_numbers_of_every_type_are_marked_by_what_they_hold():
    table = nn.Sequential(nn.Embedding(300, 2, padding_idx=5))
    assert made_up._marks(table, torch.zeros(1, dtype=torch.uint8)) == [255, 5]
    assert made_up._marks(table, torch.zeros(1, dtype=torch.int8)) == [-100, -1, 5]
    assert made_up._marks(table, torch.zeros(1, dtype=torch.int64)) == [-100, -1, 255, 5, 299]
    assert made_up._marks(table, torch.zeros(1)) == made_up._marks(table, torch.zeros(1, dtype=torch.bool)) == []


@pytest.mark.parametrize(("given", "named"), [(None, "NoneType"), (0.5, "float"), (np.zeros(1), "ndarray")])
@pytest.mark.parametrize("engine", ["auto", "per_example"])
def test_a_loss_that_is_no_tensor_is_named(given, named, engine):
    batch = torch.zeros(3, 6), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ModelError, match=f"loss_fn gave {named}.*one loss per record"):
        clipped_gradient(nn.Linear(6, 3), lambda model, records: given, batch, 1.0, engine=engine)


def test_what_fails_on_the_cpu_is_looked_at_on_its_device_unless_it_holds_whole_numbers(monkeypatch):
    """A stand-in for CUDA: records made up on "meta" fail, so that the model's own device is tried.  A label out of
    range would end a CUDA device there, and without high ones and marks nothing is known: such records run alone."""
    highest = []
    whole = made_up._drawn

    def drawn(t, double, top, device):
        highest.append((device.type, top))
        return whole(t, double, top, device)

    monkeypatch.setattr(made_up, "_drawn", drawn)
    monkeypatch.setattr(made_up, "CPU", torch.device("meta"))
    tokens, labels = torch.zeros(1, 12, dtype=torch.int64), torch.zeros(1, 12, dtype=torch.int64)
    assert "made up on the CPU only" in Clipper(checks.Tokens(), checks.own_sums(-100), (tokens, labels)).reason
    assert {device for device, _ in highest} == {"meta"}
    X, y = torch.randn(3, 6), torch.randn(3)
    assert Clipper(nn.Linear(6, 1), lambda model, b: (model(b[0])[:, 0] - b[1]).square(), (X, y)).reason == ""
    assert {device for device, _ in highest} == {"meta", "cpu"}
    missing = checks.KnownMean(lambda x: x != -999.0)
    assert Clipper(missing, lambda model, b: model(b[0]).sum(1) * b[1], (X, y)).reason


def test_a_micro_batch_has_memory_of_its_own():
    checks.parts_of_a_batch_see_no_others()


@pytest.mark.parametrize("classes", [9, 12, 25, 60])
def test_labels_are_made_up_nearly_up_to_the_last(classes, monkeypatch):
    """A mark in nobody's sight is met where it is among the labels that are drawn: all but the last third."""
    tops = []
    whole = made_up._drawn

    def drawn(t, double, top, device):
        tops.append(top)
        return whole(t, double, top, device)

    monkeypatch.setattr(made_up, "_drawn", drawn)
    Clipper(nn.Linear(6, classes), ModelLoss(), (torch.zeros(1, 6), torch.zeros(1, dtype=torch.int64)))
    assert max(top for top in tops[-2:]) > 2 * classes / 3


def test_numbers_that_a_type_does_not_hold_are_no_marks():
    compared = [7.0, -65504.0, 65520.0, 1e300, 0.5]
    assert made_up._marks(nn.Linear(1, 1), torch.zeros(1, dtype=torch.float16), compared) == [7.0, -65504.0, 0.5]
    assert made_up._marks(nn.Linear(1, 1), torch.zeros(1, dtype=torch.int16), compared) == [-100, -1, 255, 7]
