"""Faults in functions run for every record by themselves and in written-out recurrences: each must be noticed."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "sgd"))

from gradient_checks import agrees, only_one_backward

from dpml.sgd import clipping, made_up, one_backward, one_function, recurrent, taps
from dpml.sgd.clipping import Clipper
from dpml.sgd.uses import Built


class Then(nn.Module):
    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


def loss(model, batch):
    return torch.tanh(model(batch[0]).flatten(1)).sum(1) * batch[1]


def batch(*shape, size=6):
    torch.manual_seed(7)
    return torch.randn(size, *shape, dtype=torch.float64), torch.linspace(-1.0, 2.0, size, dtype=torch.float64)


# -- checks: each raises AssertionError when the line is wrong --------------------------------------------------------
def a_function_between_layers_is_right():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(3, 3, 2), nn.Tanh(), nn.ConvTranspose1d(3, 2, 2), nn.Tanh(), nn.Conv1d(2, 2, 1))
    agrees(model.double(), loss, batch(3, 5))


def a_function_in_a_loop_is_right():
    torch.manual_seed(0)
    model = Then(lambda s, x: s.b(torch.tanh(s.a(x)), x), a=nn.Linear(4, 4), b=nn.Bilinear(4, 4, 2))
    agrees(model.double(), loss, batch(4))


def records_behind_time_are_right():
    torch.manual_seed(0)
    model = Then(
        lambda s, x: torch.einsum("tbd,od->tbo", s.a(x).transpose(0, 1), s.w).transpose(0, 1),
        a=nn.Linear(4, 4),
        w=nn.Parameter(torch.randn(3, 4)),
    )
    agrees(model.double(), loss, batch(5, 4))


def a_parameter_used_twice_is_right():
    torch.manual_seed(0)
    agrees(Then(lambda s, x: s.a(torch.tanh(s.a(x))), a=nn.ConvTranspose1d(3, 3, 3)).double(), loss, batch(3, 4))


def a_recurrence_is_right():
    torch.manual_seed(0)
    model = Then(lambda s, x: s.a(x)[1][1].transpose(0, 1), a=nn.LSTM(4, 3, 2, bidirectional=True, batch_first=True))
    agrees(model.double(), loss, batch(5, 4))


def every_record_has_its_own_mask():
    """The same record four times, 128 coins each: equal norms mean equal masks (chance 2^-128)."""
    torch.manual_seed(0)
    model = Then(lambda s, x: s.a(x, x, x)[0], a=nn.MultiheadAttention(4, 2, 0.5, add_bias_kv=True, batch_first=True))
    x = torch.randn(1, 8, 4, dtype=torch.float64).expand(4, 8, 4)
    _, norms = only_one_backward(model.double().train(), loss, (x, torch.ones(4, dtype=torch.float64)), 1.0)
    assert len(set(norms.tolist())) == 4


def batch_norm_is_refused():
    model = Then(lambda s, x: nn.functional.batch_norm(x, None, None, s.w, None, True), w=nn.Parameter(torch.ones(3)))
    assert "batch_norm" in Clipper(model.double(), loss, batch(3, 4)).reason


def built_gradients_count_in_the_micro_batch():
    model = Then(lambda s, x: s.a(x, x), a=nn.Bilinear(16, 16, 64))
    clipper = Clipper(model, loss, (torch.randn(4, 16), torch.ones(4)), "one_backward")
    assert clipper.micro_batch * model.a.weight.nbytes <= clipping.ACTIVATION_BYTES["cpu"] / 2


# -- faults -----------------------------------------------------------------------------------------------------------
def caught(check):
    clipping._findings.clear()
    with pytest.raises(AssertionError):
        check()


@pytest.fixture(autouse=True)
def _fresh_findings():
    clipping._findings.clear()
    yield
    clipping._findings.clear()


@pytest.fixture
def blind(monkeypatch):
    """The comparison on made-up records is off: the fault must be seen in the numbers themselves."""
    monkeypatch.setattr(made_up, "_compare", lambda *_, **__: None)
    monkeypatch.setattr(made_up, "_records_are_separate", lambda *_, **__: None)


def handing(change):
    """``tapped`` whose gradients are handed over changed."""
    whole = one_function.tapped

    def tapped(call, layout, records, token, hand):
        return whole(call, layout, records, token, lambda name, g: hand(name, Built(change(g.values))))

    return tapped


FUNCTIONS = [a_function_between_layers_is_right, a_function_in_a_loop_is_right]


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("check", FUNCTIONS)
def test_gradients_summed_over_the_records_before_the_norm(monkeypatch, check):
    check()
    monkeypatch.setattr(
        one_backward, "tapped", handing(lambda g: torch.cat([g.sum(0, keepdim=True), torch.zeros_like(g[1:])]))
    )
    caught(check)


@pytest.mark.usefixtures("blind")
def test_gradients_of_the_next_record(monkeypatch):
    a_function_between_layers_is_right()
    monkeypatch.setattr(one_backward, "tapped", handing(lambda g: g.roll(1, 0)))
    caught(a_function_between_layers_is_right)


def another_axis(values, place, records):
    """As many numbers a record as there should be, but along the first axis, wherever the records are."""
    if place is None:
        return values
    others = [n for axis, n in enumerate(values.shape) if axis != place.axis]
    return values.reshape(records, place.repeat, *others)


@pytest.mark.usefixtures("blind")
def test_records_taken_from_another_axis(monkeypatch):
    records_behind_time_are_right()
    monkeypatch.setattr(one_function, "_apart", another_axis)
    caught(records_behind_time_are_right)


def test_another_axis_is_seen_on_made_up_records(monkeypatch):
    """With the comparison on, such a function is not used at all."""
    model = Then(lambda s, x: torch.einsum("tbd,od->tbo", x.transpose(0, 1), s.w).transpose(0, 1),
                 w=nn.Parameter(torch.randn(3, 4)))  # fmt: skip
    assert Clipper(model.double(), loss, batch(5, 4)).reason == ""
    monkeypatch.setattr(one_function, "_apart", another_axis)
    clipping._findings.clear()
    assert "not separate" in Clipper(model, loss, batch(5, 4)).reason


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("check", FUNCTIONS)
def test_the_gradient_of_the_inputs_dropped(monkeypatch, check):
    check()
    whole = one_function._apart
    monkeypatch.setattr(
        one_function, "_apart", lambda values, place, n: whole(values if place is None else values.detach(), place, n)
    )
    caught(check)


@pytest.mark.usefixtures("blind")
def test_a_parameter_that_is_left_out(monkeypatch):
    """Its gradient is zero: the norm, and the sum, miss it."""
    a_function_between_layers_is_right()
    monkeypatch.setattr(one_backward, "tapped", handing(lambda g: g if g.ndim > 2 else torch.zeros_like(g)))
    caught(a_function_between_layers_is_right)


@pytest.mark.usefixtures("blind")
def test_only_the_last_of_two_uses_counted(monkeypatch):
    a_parameter_used_twice_is_right()
    monkeypatch.setattr(one_backward, "together", lambda found, *_: found[-1])
    caught(a_parameter_used_twice_is_right)


@pytest.mark.usefixtures("blind")
def test_a_spread_parameter_of_the_whole_batch(monkeypatch):
    """One parameter for all: the batch's gradient falls to every record."""
    a_function_between_layers_is_right()
    whole = taps.SpreadTap.backward

    def shared(ctx, *outputs):
        (b,) = outputs
        return whole(ctx, b.sum(0, keepdim=True).expand_as(b))

    monkeypatch.setattr(taps.SpreadTap, "backward", staticmethod(shared))
    caught(a_function_between_layers_is_right)


def test_one_dropout_mask_for_all_records(monkeypatch):
    every_record_has_its_own_mask()
    whole = one_function.vmap
    monkeypatch.setattr(one_function, "vmap", lambda f, randomness: partial(whole(f, randomness="same")))
    caught(every_record_has_its_own_mask)


def test_a_function_that_mixes_by_its_name(monkeypatch):
    batch_norm_is_refused()
    monkeypatch.setattr(one_function, "MIXES", ())
    caught(batch_norm_is_refused)


def test_built_gradients_left_out_of_the_micro_batch(monkeypatch):
    monkeypatch.setitem(clipping.ACTIVATION_BYTES, "cpu", 2**22)
    built_gradients_count_in_the_micro_batch()
    monkeypatch.setattr(made_up, "repeated", lambda *_: [])
    caught(built_gradients_count_in_the_micro_batch)


@pytest.mark.usefixtures("blind")
def test_a_recurrence_cut_between_positions(monkeypatch):
    a_recurrence_is_right()
    whole = recurrent._lstm_step
    monkeypatch.setattr(
        recurrent, "_lstm_step", lambda given, state, weights: whole(given, tuple(s.detach() for s in state), weights)
    )
    caught(a_recurrence_is_right)


@pytest.mark.usefixtures("blind")
def test_the_way_back_not_turned(monkeypatch):
    """Both directions read the positions in one order, and the results of one are turned."""
    a_recurrence_is_right()
    monkeypatch.setattr(recurrent, "reversed", lambda values: values, raising=False)
    caught(a_recurrence_is_right)


def test_a_wrong_recurrence_is_not_used(monkeypatch):
    """The comparison on made-up records judges what was written out here against torch's own."""
    model = Then(lambda s, x: s.a(x)[0], a=nn.LSTM(4, 3, batch_first=True)).double()
    assert Clipper(model, loss, batch(5, 4)).reason == ""
    whole = recurrent._lstm_step
    monkeypatch.setattr(
        recurrent, "_lstm_step", lambda given, state, weights: whole(given, tuple(0.9 * s for s in state), weights)
    )
    clipping._findings.clear()
    assert "not separate" in Clipper(model, loss, batch(5, 4)).reason
