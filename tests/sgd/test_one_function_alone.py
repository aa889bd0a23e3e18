"""Functions that no tap knows are run for every record by themselves, and recurrent layers are written out: the rest of
the network keeps its one backward pass, and the sums are those of a loop over single records."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from gradient_checks import FORMS, agrees, alone, contribution, moved, only_one_backward
from test_one_backward import Then, batch_of, loss, parameter
from torch import nn

from dpml.sgd import clipped_gradient, clipping, one_backward, one_function
from dpml.sgd.calls import StandIn
from dpml.sgd.clipping import Clipper


def one(function=None, **parts):
    return Then(function or (lambda s, x: s.a(x)), **parts)


def all_of(outputs):
    """Output, last hidden state and last cell of ``(T, B, …)`` layers, side by side for each record."""
    out, last = outputs
    states = last if isinstance(last, tuple) else (last,)
    return torch.cat([t.transpose(0, 1).flatten(1) for t in (out, *states)], 1)


def over_time(self, x):
    return all_of(self.a(x.transpose(0, 1)))


def own_start(self, x):
    start = self.start.expand(2, len(x), 3).contiguous()
    return self.a(x, (start, torch.tanh(start)))[0]


def cell_by_cell(self, x):
    state = None
    for position in range(x.shape[1]):
        state = self.a(x[:, position], state)
    return state[0] if isinstance(state, tuple) else state


def stacked(width=4):
    return nn.LSTM(width, 3, num_layers=2, bidirectional=True)


RECURRENT = {
    "lstm": lambda: one(lambda s, x: s.a(x)[0], a=nn.LSTM(4, 3, batch_first=True)),
    "lstm, time first": lambda: one(over_time, a=nn.LSTM(4, 3)),
    "lstm, last hidden state": lambda: one(lambda s, x: s.a(x)[1][0][0], a=nn.LSTM(4, 3, batch_first=True)),
    "lstm, last cell": lambda: one(lambda s, x: s.a(x)[1][1][0], a=nn.LSTM(4, 3, batch_first=True)),
    "lstm, 2 layers, both ways": lambda: one(over_time, a=stacked()),
    "lstm, no bias": lambda: one(over_time, a=nn.LSTM(4, 3, bias=False)),
    "lstm, projected": lambda: one(over_time, a=nn.LSTM(4, 3, num_layers=2, proj_size=2, bidirectional=True)),
    "lstm, own start": lambda: one(own_start, a=nn.LSTM(4, 3, 2, batch_first=True), start=parameter(2, 1, 3)),
    "gru": lambda: one(over_time, a=nn.GRU(4, 3)),
    "gru, 2 layers, both ways": lambda: one(over_time, a=nn.GRU(4, 3, num_layers=2, bidirectional=True)),
    "gru, batch first, no bias": lambda: one(lambda s, x: s.a(x)[0], a=nn.GRU(4, 3, bias=False, batch_first=True)),
    "rnn": lambda: one(over_time, a=nn.RNN(4, 3, bidirectional=True)),
    "rnn, relu": lambda: one(over_time, a=nn.RNN(4, 3, num_layers=2, nonlinearity="relu")),
    "lstm cell": lambda: one(cell_by_cell, a=nn.LSTMCell(4, 3)),
    "gru cell": lambda: one(cell_by_cell, a=nn.GRUCell(4, 3)),
    "rnn cell": lambda: one(cell_by_cell, a=nn.RNNCell(4, 3)),
    "rnn cell, relu, no bias": lambda: one(cell_by_cell, a=nn.RNNCell(4, 3, bias=False, nonlinearity="relu")),
}


def grouped(axes):
    kind = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}[axes]
    return kind(4, 2, 2, stride=2, padding=1, output_padding=1, groups=2)


def grid(*shape):
    return lambda size: torch.randn(size, *shape, dtype=torch.float64)


def tokens(*shape):
    return lambda size: torch.randint(0, 7, (size, *shape))


def attention(**options):
    return nn.MultiheadAttention(4, 2, batch_first=True, **options)


def relative(self, x):
    """Scores from a parameter on the left of the product, with the records in the middle."""
    return (
        torch.einsum("btd,kde->kbte", x, self.w).transpose(0, 1) + (self.v @ x.transpose(1, 2)).sum(1)[:, None, :, None]
    )


ALONE = {
    "conv_transpose1d": (lambda: nn.Sequential(nn.Conv1d(4, 4, 1), grouped(1), nn.Tanh()), grid(4, 5)),
    "conv_transpose2d": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), grouped(2), nn.ReLU(inplace=True)), grid(4, 3, 3)),
    "conv_transpose3d": (lambda: nn.Sequential(grouped(3), nn.Tanh()), grid(4, 2, 2, 2)),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 4, 2, 2, 1), nn.Tanh(), nn.Conv3d(4, 2, 1)), grid(2, 3, 3, 3)),
    "bilinear": (lambda: one(lambda s, x: s.a(x, torch.tanh(x)), a=nn.Bilinear(4, 4, 3)), grid(2, 4)),
    "prelu": (lambda: nn.Sequential(nn.Conv1d(4, 3, 2), nn.PReLU(3), nn.PReLU()), grid(4, 5)),
    "instance_norm": (
        lambda: nn.Sequential(nn.Conv1d(4, 4, 1), nn.InstanceNorm1d(4, affine=True), nn.GroupNorm(2, 4)),
        grid(4, 6),
    ),
    "instance_norm, 2 axes": (
        lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.Tanh()), grid(4, 3, 3)
    ),
    "rms_norm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4), nn.Tanh()), grid(3, 4)),
    "embedding_bag": (lambda: nn.Sequential(nn.EmbeddingBag(7, 3, mode="mean"), nn.Linear(3, 2)), tokens(4)),
    "einsum": (lambda: one(relative, w=parameter(2, 4, 3), v=parameter(5, 4)), grid(3, 4)),
    "multi_head_attention_forward": (
        lambda: one(lambda s, x: s.a(x, x, x)[0], a=attention(add_bias_kv=True)), grid(3, 4)
    ),
    "multi_head_attention_forward, separate": (
        lambda: one(lambda s, x: s.a(x, x[..., :2], x[..., 1:])[0], a=attention(kdim=2, vdim=3)), grid(3, 4)
    ),
}  # fmt: skip


def shaken(model, dtype=torch.float64):
    """Scales and shifts that are not all 1 and 0."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.2)
    return model.to(dtype)


def by_itself(model, loss_fn, batch):
    """The functions that the finding runs for every record by itself."""
    return set(Clipper(model, loss_fn, batch, "one_backward")._recipe.by_themselves)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name, dtype):
    model, batch = shaken(RECURRENT[name](), dtype), batch_of(torch.randn(5, 4, 4, dtype=dtype), dtype)
    assert by_itself(model, loss, batch) == set()  # written out
    agrees(model, loss, batch, form_name="gram" if dtype == torch.float64 and "2 layers" in name else "default")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ALONE)
def test_functions_that_are_run_for_every_record(name, dtype):
    make, inputs = ALONE[name]
    x = inputs(5)
    model, batch = shaken(make(), dtype), batch_of(x.to(dtype) if x.is_floating_point() else x, dtype)
    assert name.partition(",")[0] in by_itself(model, loss, batch)
    tolerance = 1e-5 if dtype == torch.float32 and "norm" in name else None  # a variance of few numbers amplifies
    agrees(model, loss, batch, tolerance=tolerance)


class Large(nn.Module):
    """An LSTM, a transposed convolution and a bilinear form in the middle of layers that are known."""

    def __init__(self, size=4):
        super().__init__()
        self.table, self.lstm = nn.Embedding(7, size), nn.LSTM(size, size, batch_first=True, bidirectional=True)
        self.up, self.norm = nn.ConvTranspose1d(2 * size, size, 2), nn.GroupNorm(2, size)
        self.pair, self.out = nn.Bilinear(size, size, 3), nn.Linear(3, 2)

    def forward(self, tokens):
        hidden = self.lstm(self.table(tokens))[0]
        hidden = torch.tanh(self.norm(self.up(hidden.transpose(1, 2)))).transpose(1, 2)
        return self.out(torch.tanh(self.pair(hidden[:, 0], hidden.mean(1))))


def large(size=6):
    torch.manual_seed(5)
    return shaken(Large()), batch_of(torch.randint(0, 7, (size, 4)))


@pytest.mark.parametrize(
    ("form_name", "clip"),
    [("default", "flat"), ("gram", "per_layer"), ("built", "automatic"), ("blocks", "flat")],
)
def test_a_large_network(form_name, clip):
    model, batch = large()
    assert by_itself(model, loss, batch) == {"conv_transpose1d", "bilinear"}
    agrees(model, loss, batch, form_name=form_name, clip=clip, micro=4)


@pytest.mark.parametrize("part", ["weight", "bias", "lstm", "up", "pair"])
def test_frozen_parts(part):
    model, batch = large()
    for name, p in model.named_parameters():
        p.requires_grad_(part not in name)
    agrees(model, loss, batch)


def test_micro_batches_change_nothing():
    model, batch = large(7)
    want, norms = only_one_backward(model, loss, batch, 0.3)
    for micro in (1, 2, 3, 7):
        sums, got = only_one_backward(model, loss, batch, 0.3, micro)
        torch.testing.assert_close(got, norms, rtol=1e-12, atol=0.0)
        torch.testing.assert_close(sums, want, rtol=1e-12, atol=1e-14)


def test_empty_batches_and_batches_of_one():
    model, batch = large(1)
    for engine in ("auto", "one_backward"):
        sums, norms = clipped_gradient(model, loss, tuple(t[:0] for t in batch), 1.0, engine=engine)
        assert norms.shape == (0,)
        assert all(float(v.abs().sum()) == 0.0 for v in sums.values())
    agrees(model, loss, batch)


def twice(self, x):
    return self.a(torch.tanh(self.a(x)))


TWICE = {
    "function": lambda: one(twice, a=nn.ConvTranspose1d(3, 3, 3, padding=1)),
    "recurrent": lambda: one(lambda s, x: s.a(torch.tanh(s.a(x)[0]))[0], a=nn.GRU(3, 3, batch_first=True)),
    "function, layer and sum": lambda: one(
        lambda s, x: F.prelu(s.a(F.rms_norm(x, (3,), s.a.bias)) + s.a.bias, s.w) @ s.a.weight + s.w,
        a=nn.Linear(3, 3), w=parameter(1),
    ),
    "twice in one call": lambda: one(lambda s, x: s.a(x, x), a=nn.Bilinear(3, 3, 3)),
    "both arguments": lambda: one(lambda s, x: F.instance_norm(x, weight=s.w, bias=s.w), w=parameter(3)),
}  # fmt: skip


@pytest.mark.parametrize("micro", [None, 2])
@pytest.mark.parametrize("name", TWICE)
def test_parameters_used_more_than_once(name, micro):
    model, x = shaken(TWICE[name]()), torch.randn(5, 3, 3, dtype=torch.float64)
    agrees(model, loss, batch_of(x), micro=micro)


@pytest.mark.parametrize("form_name", sorted(FORMS))
def test_a_parameter_of_a_convolution_and_of_a_function(form_name):
    model = one(
        lambda s, x: F.conv_transpose1d(torch.tanh(s.a(x)), s.a.weight, s.a.bias, padding=1),
        a=nn.Conv1d(3, 3, 3, padding=1),
    )
    agrees(shaken(model), loss, batch_of(torch.randn(5, 3, 6, dtype=torch.float64)), form_name=form_name)


@pytest.mark.parametrize("name", ["conv_transpose1d", "bilinear", "instance_norm", "prelu"])
def test_a_record_that_is_no_number_changes_nobody_else(name):
    make, inputs = ALONE[name]
    model, (x, y) = shaken(make()), batch_of(inputs(6))
    keep = torch.arange(6) != 2
    want, _ = only_one_backward(model, loss, (x[keep], y[keep]), 0.1)
    x[2] = torch.nan
    sums, norms = only_one_backward(model, loss, (x, y), 0.1)
    assert (~torch.isfinite(norms)).nonzero().flatten().tolist() == [2]
    torch.testing.assert_close(sums, want, rtol=1e-12, atol=1e-14)


def test_a_record_that_is_no_number_in_an_lstm():
    model = shaken(RECURRENT["lstm, 2 layers, both ways"]())
    x, y = batch_of(torch.randn(6, 4, 4, dtype=torch.float64))
    keep = torch.arange(6) != 2
    want, _ = only_one_backward(model, loss, (x[keep], y[keep]), 0.1)
    x[2, 1] = torch.nan
    sums, norms = only_one_backward(model, loss, (x, y), 0.1)
    assert (~torch.isfinite(norms)).nonzero().flatten().tolist() == [2]
    torch.testing.assert_close(sums, want, rtol=1e-12, atol=1e-14)


def test_a_record_that_raises_contributes_nothing():
    model = shaken(nn.Sequential(nn.EmbeddingBag(7, 3), nn.Tanh(), nn.Linear(3, 2)))
    x, y = batch_of(torch.randint(0, 7, (6, 4)))
    keep = torch.arange(6) != 4
    want, _ = only_one_backward(model, loss, (x[keep], y[keep]), 0.1)
    x[4, 1] = 7
    sums, norms = clipped_gradient(model, loss, (x, y), 0.1)
    assert torch.isnan(norms).nonzero().flatten().tolist() == [4]
    torch.testing.assert_close(sums, want, rtol=1e-12, atol=1e-14)


def test_no_record_adds_more_than_the_bound():
    model, batch = large()
    for i in range(6):
        assert contribution(model, loss, tuple(t[i : i + 1] for t in batch), 1e-2) <= 1e-2 * (1 + 1e-12)
        assert moved(model, loss, batch, i, 1e-2) <= 1e-2 * (1 + 1e-9)


def test_the_model_stays_as_it_was():
    model, batch = large()
    before, kinds = copy.deepcopy(model.state_dict()), [type(p) for p in model.parameters()]
    want = model(batch[0])
    clipped_gradient(model, loss, batch, 0.1)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [type(p) for p in model.parameters()] == kinds
    assert all(p.grad is None for p in model.parameters())
    assert all(not m._forward_hooks and not m._forward_pre_hooks and not m._backward_hooks for m in model.modules())
    assert torch.equal(model(batch[0]), want)


def test_one_line_in_the_log_names_functions_and_parameters(caplog):
    model, batch = large()
    with caplog.at_level(logging.INFO, logger="dpml"):
        for _ in range(2):
            clipped_gradient(model, loss, batch, 0.1)
    (line,) = [record.getMessage() for record in caplog.records if "by itself" in record.getMessage()]
    assert "conv_transpose1d (up.weight, up.bias)" in line
    assert "bilinear (pair.weight, pair.bias)" in line
    assert not any("run alone" in record.getMessage() for record in caplog.records)


def test_weights_of_a_recurrent_layer_are_not_laid_out_anew():
    """What ``nn.LSTM`` asks for on CUDA when its weights are swapped: it would move the user's."""
    weights = list(nn.LSTM(4, 3).parameters())
    places = [p.data_ptr() for p in weights]
    stand_ins = [StandIn.of(p.detach(), str(i), None) for i, p in enumerate(weights)]
    assert len({p.data_ptr() for p in stand_ins}) == 4
    assert torch._cudnn_rnn_flatten_weight(stand_ins, 4, 4, 2, 3, 0, 1, False, False) is None
    assert [p.data_ptr() for p in weights] == places


# -- dropout ----------------------------------------------------------------------------------------------------------
def dropped_lstm():
    return one(lambda s, x: s.a(x)[0], a=nn.LSTM(4, 40, num_layers=2, dropout=0.5, batch_first=True)).double().train()


def dropped_attention(**options):
    return one(lambda s, x: s.a(x, x, x)[0], a=attention(dropout=0.5, **options)).double().train()


@pytest.mark.parametrize(
    "model", [dropped_lstm(), dropped_attention(), dropped_attention(add_bias_kv=True)], ids=["lstm", "known", "alone"]
)
def test_every_record_has_a_dropout_mask_of_its_own(model):
    """The same record four times: equal norms would need equal masks of ≥ 2 · 8² or 8 · 40 coins (< 1e-6)."""
    x = torch.randn(1, 8, 4, dtype=torch.float64).expand(4, 8, 4)
    _, norms = only_one_backward(model, loss, (x, torch.ones(4, dtype=torch.float64)), 1.0)
    assert len(set(norms.tolist())) == 4
    _, norms = only_one_backward(model.eval(), loss, (x, torch.ones(4, dtype=torch.float64)), 1.0)
    torch.testing.assert_close(norms, norms[:1].expand(4), rtol=1e-10, atol=0.0)
    agrees(model, loss, batch_of(torch.randn(5, 3, 4, dtype=torch.float64)))


# -- memory -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_micro_batches_count_the_gradients_that_are_built(dtype, monkeypatch):
    """B values for each of the 16384 weights of the transposed convolution, and none for the layer behind it."""
    model = nn.Sequential(nn.ConvTranspose1d(64, 64, 4, 4), nn.Flatten(), nn.Linear(64 * 4, 200)).to(dtype)
    batch = batch_of(torch.randn(40, 64, 1, dtype=dtype), dtype)
    size, most = torch.finfo(dtype).bits // 8, 2**22
    held = []
    whole = clipping.clip_and_sum

    def watched(gradients, *rest):
        held.append(sum(g.values.nbytes for g in gradients.values() if isinstance(g, clipping.Built)))
        return whole(gradients, *rest)

    monkeypatch.setattr(clipping, "clip_and_sum", watched)
    monkeypatch.setitem(clipping.ACTIVATION_BYTES, "cpu", most)
    clipper = Clipper(model, loss, batch, "one_backward")
    assert clipper._recipe.bytes_per_record >= 2 * 64 * 64 * 4 * size
    assert clipper.micro_batch <= most / (4 * 64 * 64 * 4 * size)
    clipper(batch, 1.0)
    assert len(held) > 1
    assert max(held) <= most / 2


def test_written_out_recurrence_holds_no_gradient_for_each_record():
    model = one(lambda s, x: s.a(x)[0][:, -1], a=nn.LSTM(100, 100, batch_first=True))
    clipper = Clipper(model, loss, batch_of(torch.randn(4, 3, 100), torch.float32), "one_backward")
    assert clipper._recipe.bytes_per_record < sum(p.nbytes for p in model.parameters()) / 4


def test_functions_with_too_many_parameters_are_run_with_the_whole_record(monkeypatch):
    monkeypatch.setitem(one_function.MOST_VALUES, "cpu", 40)
    model, batch = large()
    clipping._findings.clear()
    assert "too many parameters" in Clipper(model, loss, batch).reason
    gradients = alone(model, loss, batch)
    _, norms = clipped_gradient(model, loss, batch, 1.0)
    true = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
    torch.testing.assert_close(norms, true, rtol=1e-10, atol=1e-13)


# -- refused as before ------------------------------------------------------------------------------------------------
def packed(self, x):
    sequence = nn.utils.rnn.pack_padded_sequence(x, torch.full((len(x),), x.shape[1]), batch_first=True)
    return self.a(sequence)[1][0][0]


def running(self, x):
    return F.instance_norm(x, self.mean, self.var, self.w, None, True)


def tracked():
    model = one(running, w=parameter(3))
    model.register_buffer("mean", torch.zeros(3))
    model.register_buffer("var", torch.ones(3))
    return model


REFUSED = {
    "packed sequence": lambda: one(packed, a=nn.LSTM(3, 4)),
    "weights from weights": lambda: one(lambda s, x: F.conv_transpose1d(x, s.w / s.w.norm()), w=parameter(3, 2, 2)),
    "batch norm": lambda: one(lambda s, x: F.batch_norm(x, None, None, s.w, None, True), w=parameter(3)),
    "records mixed before": lambda: one(lambda s, x: s.a(x - 0.5 * x.mean(0)), a=nn.ConvTranspose1d(3, 2, 2)),
    "records mixed behind": lambda: one(lambda s, x: s.a(x).softmax(0), a=nn.ConvTranspose1d(3, 2, 2)),
    "records mixed in an argument": lambda: one(lambda s, x: s.a(x, x.mean(0).expand_as(x)), a=nn.Bilinear(4, 4, 2)),
    "an lstm over the records": lambda: one(lambda s, x: s.a(x)[0], a=nn.LSTM(4, 4)),
    "statistics that are kept": tracked,
    "sum over records": lambda: one(lambda s, x: torch.einsum("bij,ij->i", x, s.w) + x.sum(2), w=parameter(3, 4)),
    "written into": lambda: one(lambda s, x: torch.addcmul(x, x, s.w, out=torch.empty_like(x)), w=parameter(4)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_or_is_not_seen_is_still_run_record_by_record(name):
    model, batch = REFUSED[name]().double(), batch_of(torch.randn(5, 3, 4, dtype=torch.float64))
    if name == "packed sequence":
        batch = batch_of(torch.randn(5, 4, 3, dtype=torch.float64))
    assert Clipper(model, loss, batch).reason
    if name == "written into":  # autograd has no derivative for it
        return
    gradients = alone(copy.deepcopy(model), loss, batch)
    true = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
    _, norms = clipped_gradient(model, loss, batch, 1.0)
    torch.testing.assert_close(norms, true, rtol=1e-10, atol=1e-13)


def test_an_argument_that_depends_on_the_number_of_records_is_refused():
    with pytest.raises(one_backward.Unsupported, match="depends on the number of records"):
        one_function.layout_of("f", ((torch.Size([2, 3]), 2), ()), ((torch.Size([3, 3]), 3), ()))
    with pytest.raises(one_backward.Unsupported, match="not along one axis"):
        one_function.layout_of(
            "f", ((torch.Size([2]),), (torch.Size([2, 2]),)), ((torch.Size([3]),), (torch.Size([3, 3]),))
        )
    with pytest.raises(one_backward.Unsupported, match="nothing of a record"):
        one_function.layout_of("f", ((torch.Size([4]),), (torch.Size([4]),)), ((torch.Size([4]),), (torch.Size([4]),)))
