"""The engine of one backward pass, broken on purpose at one seam: the named check fails, and passes when whole."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "sgd"))

from few_records_checks import further_records_move, plain, what_fills_up_leaves_no_trace
from gradient_checks import agrees, form, only_one_backward

from dpml.sgd import calls, clipping, convolutions, made_up, models, one_backward, taps, uses


def loss(model, batch):
    return torch.tanh(model(batch[0]).flatten(1)).sum(1) * batch[1]


def batch(*shape, size=6):
    torch.manual_seed(7)
    return torch.randn(size, *shape, dtype=torch.float64), torch.linspace(-1.0, 2.0, size, dtype=torch.float64)


def tokens(*shape):
    torch.manual_seed(7)
    return torch.randint(0, 4, (6, *shape)), torch.linspace(-1.0, 2.0, 6, dtype=torch.float64)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(4, 3), nn.Linear(3, 4)
        self.out.weight = self.table.weight

    def forward(self, x):
        return self.out(torch.tanh(self.table(x)))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)

    def forward(self, x):
        return self.a(torch.tanh(self.a(x)))


class Centred(nn.Module):
    """Mixes records: nothing that this engine computes may be used."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 2)

    def forward(self, x):
        return self.a(x - 0.5 * x.mean(0))


# -- checks: each raises AssertionError (or refuses the model) when the line is wrong ---------------------------------
def linear_is_right():
    torch.manual_seed(0)
    agrees(nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)).double(), loss, batch(3))


def strided_convolution_is_right(form_name="gram"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 2)).double()
    agrees(model, loss, batch(2, 7, 7), form_name=form_name)


def tied_weights_are_right():
    torch.manual_seed(0)
    agrees(Tied().double(), loss, tokens(3))


def a_layer_used_twice_is_right(form_name="gram"):
    torch.manual_seed(0)
    agrees(Twice().double(), loss, batch(3), form_name=form_name)


def half_precision_is_clipped():
    """Entries of 300: their squares overflow float16, and the record would be lost."""
    model = nn.Linear(5, 1).half()
    X = torch.full((3, 2, 5), 300.0).half()
    _, norms = only_one_backward(model, lambda m, b: m(b).float().sum((1, 2)), X, 1.0)
    true = (5 * 600.0**2 + 4) ** 0.5
    assert torch.allclose(norms, torch.full_like(norms, true), rtol=1e-5, atol=0.0)


def a_token_met_twice_is_right():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    agrees(model, loss, (torch.tensor([[1, 1, 1], [2, 0, 2], [3, 3, 0]]), torch.ones(3, dtype=torch.float64)))


def the_padding_row_gets_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 3, padding_idx=2), nn.Tanh(), nn.Linear(3, 2)).double()
    agrees(model, loss, tokens(3))


def group_norm_is_right():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 2), nn.GroupNorm(2, 4), nn.Tanh()).double()
    agrees(model, loss, batch(2, 6))


def layer_norm_is_right():
    torch.manual_seed(0)
    agrees(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh()).double(), loss, batch(2, 3))


def a_record_that_is_not_finite_changes_nothing_else():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    X, y = batch(3)
    keep = torch.arange(6) != 2
    want, _ = only_one_backward(model, loss, (X[keep], y[keep]), 0.1)
    X[2] = torch.nan
    got, norms = only_one_backward(model, loss, (X, y), 0.1)
    assert not torch.isfinite(norms[2])
    for name in want:
        assert torch.allclose(got[name], want[name], rtol=1e-12, atol=1e-14)


def no_record_adds_more_than_the_bound():
    """Clipping comes before the sum: six records whose gradients agree add up to six bounds, not one."""
    model = nn.Linear(3, 1, bias=False).double()
    X = torch.ones(6, 3, dtype=torch.float64) * torch.arange(1.0, 7.0, dtype=torch.float64)[:, None]
    sums, _ = only_one_backward(model, lambda m, b: m(b)[:, 0], X, 0.5)
    assert abs(float(sums["weight"].norm()) - 3.0) < 1e-9


def mixing_is_noticed():
    torch.manual_seed(0)
    assert clipping.Clipper(Centred().double(), loss, batch(3)).reason


def cancelling_positions_stay_below_the_bound():
    """Increments that all round the same way: the sum is far from what the exact norm says.  The exact norm is
    40·127·2⁻²⁹·2²⁷ = 1270, so that by it the clip factor is a power of two and every increment rounds as planned."""
    half, length = 2.0**-24, 256
    steps = torch.tensor([half * (1 + 2**-6), -half * (1 - 2**-6)]).repeat(length // 2 - 1)
    b = torch.cat([torch.ones(1), steps, -torch.ones(1)])[None, :, None].expand(1, length, 40) * 2.0**27
    model = nn.Linear(40, 40, bias=False)
    a, bound = torch.ones(1, length, 40), 1270 * 2.0**-10
    with form("gram"):
        sums, _ = only_one_backward(model, lambda m, r: (m(r[0]) * r[1]).sum((1, 2)), (a, b), bound)
    assert float(sums["weight"].norm()) <= bound * (1.0 + 2.0**-12 + 1e-5)


def tiny_inputs_are_clipped():
    model = nn.Linear(100, 1, bias=False)
    X, y = torch.full((1, 100), 1e-23), torch.full((1,), 1e18)
    sums, _ = only_one_backward(model, lambda m, r: m(r[0])[:, 0] * r[1], (X, y), 1e-6)
    assert float(sums["weight"].norm()) <= 1e-6 * (1 + 1e-5)


def one_record_more_moves_a_float32_sum_by_at_most_c(kind):
    """The order in which rounding is worst: N records of C reach a power of two, one more record lifts the sum over
    it, and then come pairs that round away only above it.  A plain float32 sum moves by 1.25 C."""
    n, size = 2048, 4096
    step = n * 2.0**-24
    tail = [step * (1 + 2**-6), -step * (1 - 2**-6)] * ((size - n - 2) // 2)
    most = 0.0
    whole = torch.tensor([1.0] * (n - 1) + [1.0 - 2**-10] + [1.0] + tail)
    sums = []
    for values in (whole, torch.cat([whole[:n], whole[n + 1 :]])):
        if kind == "embedding":
            model = nn.Embedding(2, 1)
            X = torch.zeros(len(values), 1, dtype=torch.int64)
        else:
            model = nn.Linear(1, 1, bias=False) if kind == "linear" else nn.Conv1d(1, 1, 1, bias=False)
            X = torch.ones(len(values), 1) if kind == "linear" else torch.ones(len(values), 1, 1)
        got, _ = only_one_backward(model, lambda m, r: m(r[0]).flatten(1)[:, 0] * r[1], (X, values), 1.0, len(values))
        sums.append(float(got["weight"].flatten()[0]))
    most = abs(sums[0] - sums[1])
    assert most <= 1 + 2.0**-11, most


def a_record_is_the_same_in_a_small_batch(engine):
    assert max(further_records_move(64, engine, range(1, 8))) <= 1.0 + 2**-10


# -- faults -----------------------------------------------------------------------------------------------------------
def caught(check, *arguments):
    """The check finds the fault in the numbers (a crash would not count), with nothing remembered of the whole code."""
    clipping._findings.clear()
    with pytest.raises(AssertionError):
        check(*arguments)


@pytest.fixture(autouse=True)
def _fresh_findings():
    clipping._findings.clear()
    yield
    clipping._findings.clear()


@pytest.fixture
def blind(monkeypatch):
    """The comparison on made-up records is off: the fault must be seen in the numbers themselves."""
    monkeypatch.setattr(made_up, "_compare", lambda *_, **__: None)


@pytest.mark.usefixtures("blind")
def test_bias_left_out_of_the_norm(monkeypatch):
    linear_is_right()
    whole = clipping.clip_and_sum

    class NoNorm:
        def __init__(self, inner):
            self.inner = inner

        def squared_norms(self):
            return torch.zeros_like(self.inner.squared_norms())

        def weighted_sum(self, factors):
            return self.inner.weighted_sum(factors)

        def without(self, keep):
            return self.inner.without(keep)

    monkeypatch.setattr(
        clipping,
        "clip_and_sum",
        lambda g, *a: whole({k: NoNorm(v) if k.endswith("bias") else v for k, v in g.items()}, *a),
    )
    caught(linear_is_right)


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("form_name", ["gram", "built", "blocks"])
def test_patches_of_another_stride(monkeypatch, form_name):
    strided_convolution_is_right(form_name)
    whole = convolutions.patches

    def shifted(x, shape, window):
        """Right in size, wrong in place: the patches of rows of stride 1, as many as there are positions."""
        right = whole(x, shape, window)
        dense = whole(x, shape, replace(window, stride=(1, *window.stride[1:])))
        return dense[:, :, : right.shape[2]]

    monkeypatch.setattr(convolutions, "patches", shifted)
    caught(strided_convolution_is_right, form_name)


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("form_name", ["gram", "built", "blocks", "kept"])
def test_entries_of_a_filter_in_the_order_of_its_patches(monkeypatch, form_name):
    strided_convolution_is_right(form_name)
    monkeypatch.setattr(
        convolutions, "filters", lambda values, shape, window: values.reshape(*values.shape[:-1], *shape)
    )
    caught(strided_convolution_is_right, form_name)


@pytest.mark.usefixtures("blind")
def test_kept_gradients_are_overwritten(monkeypatch):
    strided_convolution_is_right("kept")
    whole = convolutions.Convolved._parts

    def over(self, kept):
        for part, space in whole(self, kept):
            yield part, space if part.stop <= len(kept) else kept[: len(space)]

    monkeypatch.setattr(convolutions.Convolved, "_parts", over)
    caught(strided_convolution_is_right, "kept")


@pytest.mark.usefixtures("blind")
def test_gram_form_of_half_of_the_positions(monkeypatch):
    a_layer_used_twice_is_right()
    strided_convolution_is_right()
    whole = uses._gram
    monkeypatch.setattr(uses, "_gram", lambda a, b: whole(a[:, ::2], b[:, ::2]))
    caught(a_layer_used_twice_is_right)
    caught(strided_convolution_is_right)


@pytest.mark.usefixtures("blind")
def test_uses_stacked_instead_of_summed(monkeypatch):
    """The norm of the uses side by side: what opacus' tied weights gave."""
    tied_weights_are_right()
    monkeypatch.setattr(
        uses.Several, "squared_norms", lambda self: torch.stack([u.squared_norms() for u in self.uses]).sum(0)
    )
    caught(tied_weights_are_right)


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("check", [tied_weights_are_right, a_layer_used_twice_is_right])
def test_only_the_last_use_counted(monkeypatch, check):
    check()
    monkeypatch.setattr(one_backward, "together", lambda found, *_: found[-1])
    caught(check)


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("form_name", ["gram", "built"])
def test_several_uses_counted_separately_in_the_norm(monkeypatch, form_name):
    a_layer_used_twice_is_right(form_name)

    class Separately(uses.Several):
        def squared_norms(self):
            return torch.stack([u.squared_norms() for u in self.uses]).sum(0)

    whole = uses.together
    monkeypatch.setattr(
        one_backward,
        "together",
        lambda found, records, values: (
            Separately(found, records, values) if len(found) > 1 else whole(found, records, values)
        ),
    )
    caught(a_layer_used_twice_is_right, form_name)


@pytest.mark.usefixtures("blind")
def test_norms_in_half_precision(monkeypatch):
    half_precision_is_clipped()
    monkeypatch.setattr(taps, "wide", lambda values, like=None: values if like is None else values.to(like.dtype))
    monkeypatch.setattr(uses, "row_norms", lambda values: values.flatten(1).square().sum(1).sqrt().double())
    caught(half_precision_is_clipped)


def test_clip_after_the_sum(monkeypatch):
    no_record_adds_more_than_the_bound()
    whole = clipping.clip_and_sum

    def late(gradients, bound, *how):
        sums, norms = whole(gradients, 1e12, *how)
        size = sum(float(v.square().sum()) for v in sums.values()) ** 0.5
        return {k: v * min(1.0, bound / size) for k, v in sums.items()}, norms

    monkeypatch.setattr(clipping, "clip_and_sum", late)
    caught(no_record_adds_more_than_the_bound)


@pytest.mark.usefixtures("blind")
def test_rows_of_a_token_met_twice_not_added_before_the_norm(monkeypatch):
    a_token_met_twice_is_right()

    def apart(tokens, b, height):
        records, positions = tokens.shape
        owner = torch.arange(records).repeat_interleave(positions)
        return uses.Rows(owner, tokens.reshape(-1), b.flatten(0, 1), records, height)

    monkeypatch.setattr(taps, "table_rows", apart)
    caught(a_token_met_twice_is_right)


@pytest.mark.usefixtures("blind")
def test_the_padding_row_counted(monkeypatch):
    the_padding_row_gets_nothing()
    whole = calls._read_embedding

    def without_padding(func, args, kwargs):
        call = whole(func, args, kwargs)
        return calls.Call(call.kind, call.x, call.weight, call.bias, call.plain, -1)

    monkeypatch.setitem(calls._READERS, F.embedding, without_padding)
    caught(the_padding_row_gets_nothing)


@pytest.mark.usefixtures("blind")
def test_group_norm_weight_without_normalisation(monkeypatch):
    group_norm_is_right()
    whole = taps.GroupNormTap.backward

    def raw(ctx, *outputs):
        x, _mean, _scale, _weight = ctx.saved_tensors
        kept = ctx.site

        def hand(name, gradient):
            if name == kept.weight:
                n, channels, size, _ = ctx.sizes
                rows = (outputs[0].detach() * x.detach()).reshape(n, channels, size).sum(2)
                gradient = uses.Built(rows)
            kept.hand(name, gradient)

        ctx.site = taps.Site(kept.place, kept.records, kept.weight, kept.bias, kept.alone, hand)
        return whole(ctx, *outputs)

    monkeypatch.setattr(taps.GroupNormTap, "backward", staticmethod(raw))
    caught(group_norm_is_right)


def test_without_leaves_what_is_not_finite(monkeypatch):
    a_record_that_is_not_finite_changes_nothing_else()
    monkeypatch.setattr(uses, "zeroed", lambda values, keep: values)
    caught(a_record_that_is_not_finite_changes_nothing_else)


def test_the_comparison_skipped(monkeypatch):
    mixing_is_noticed()
    monkeypatch.setattr(made_up, "_compare", lambda *_, **__: None)
    monkeypatch.setattr(made_up, "_records_are_separate", lambda *_, **__: None)
    caught(mixing_is_noticed)


@pytest.mark.parametrize("skipped", ["_compare", "_records_are_separate"])
def test_either_half_of_the_comparison_finds_a_batch_mean(monkeypatch, skipped):
    monkeypatch.setattr(made_up, skipped, lambda *_, **__: None)
    mixing_is_noticed()


def test_rounding_of_cancelling_positions_left_out(monkeypatch):
    cancelling_positions_stay_below_the_bound()
    monkeypatch.setattr(
        uses, "gram_norms", lambda a, b, reach: uses._gram(a.double(), b.double()).clamp(min=1e-300).sqrt()
    )
    caught(cancelling_positions_stay_below_the_bound)


def test_norms_that_underflow(monkeypatch):
    tiny_inputs_are_clipped()
    monkeypatch.setattr(uses, "VANISHING", 0.0)
    caught(tiny_inputs_are_clipped)


@pytest.mark.parametrize("kind", ["linear", "embedding", "conv"])
def test_float32_sums_over_thousands_of_records(monkeypatch, kind):
    one_record_more_moves_a_float32_sum_by_at_most_c(kind)
    if kind == "embedding":
        monkeypatch.setattr(
            uses.Rows,
            "weighted_sum",
            lambda self, f: self.values.new_zeros((self.height, self.values.shape[1])).index_add_(
                0, self.row, self.values * f.float()[self.owner, None]
            ),
        )
    else:
        monkeypatch.setattr(uses, "in_runs", lambda f, v, run=0: f.to(v.dtype) @ v)
        monkeypatch.setattr(uses, "products_in_runs", lambda b, a: b.flatten(0, 1).T @ a.flatten(0, 1))
    caught(one_record_more_moves_a_float32_sum_by_at_most_c, kind)


@pytest.mark.parametrize("engine", ["auto", "per_example"])
def test_small_batches_as_they_are(monkeypatch, engine):
    """Kernels for a few rows round otherwise: one record more moves a chaotic network's sum by more than 2 C."""
    a_record_is_the_same_in_a_small_batch(engine)
    monkeypatch.setattr(clipping, "LEAST_RECORDS", 1)
    caught(a_record_is_the_same_in_a_small_batch, engine)


@pytest.mark.usefixtures("blind")
def test_what_fills_a_batch_up_is_counted(monkeypatch):
    what_fills_up_leaves_no_trace("auto", make=plain)
    monkeypatch.setattr(clipping, "of_first", lambda factors, records: factors)
    caught(what_fills_up_leaves_no_trace, "auto", "flat", plain)


def a_huge_input_and_a_tiny_derivative_stay_within_c():
    """Inputs of 3·10³⁸, derivatives of 9·10⁻²⁷, C = 1.08·10⁻⁶: C/‖a‖ is a subnormal number in float32."""
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.fill_(-60.0)
    sums, _ = clipping.clipped_gradient(
        model, models.ModelLoss(), (torch.full((1, 1), 3.0e38), torch.zeros(1)), 1.08e-6
    )
    assert float(sum(value.square().sum() for value in sums.values())) ** 0.5 <= 1.08e-6 * 1.001


def positions_that_cancel_stay_together():
    model = torch.nn.Linear(64, 64, bias=False)
    torch.nn.init.zeros_(model.weight)
    rows = torch.zeros(1, 2, 64)
    rows[:, :, 0] = 1e31

    def loss(model, batch):
        return (model(batch)[:, :, 0] * torch.tensor([1.02e-30, -0.98e-30])).sum(1)

    sums, _ = clipping.clipped_gradient(model, loss, rows, 0.4)
    assert float(sums["weight"].norm()) <= 0.4 * 1.001


def test_positions_left_out_one_by_one(monkeypatch):
    positions_that_cancel_stay_together()

    def times(self, factors):
        each = factors[:, None]
        each = torch.where(each * self.b_norms.view(self.b.shape[:2]) >= uses.VANISHING_PRODUCT, each, 0.0)
        return self.b * each.to(self.b.dtype)[:, :, None]

    monkeypatch.setattr(uses.Outer, "_times", times)
    monkeypatch.setattr(uses.Outer, "_held_badly", lambda self, factors: torch.zeros_like(factors, dtype=torch.bool))
    caught(positions_that_cancel_stay_together)


def test_factors_that_float32_holds_coarsely(monkeypatch):
    a_huge_input_and_a_tiny_derivative_stay_within_c()
    monkeypatch.setattr(uses, "VANISHING_PRODUCT", 0.0)
    caught(a_huge_input_and_a_tiny_derivative_stay_within_c)
