"""One backward pass equals a loop over single records, for every layer × option, in every form of the gradients."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from gradient_checks import FORMS, agrees, alone, contribution, form, only_one_backward
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from dpml.sgd import clipped_gradient, clipping, convolutions

DTYPES = [torch.float64, torch.float32]


def drawn(examples):
    phases = [Phase.explicit, Phase.generate]  # shrinking a failure would take minutes
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None, phases=phases)


def loss(model, batch):
    """One number a record, with derivatives that differ between entries and records."""
    inputs, weights = batch
    out = model(inputs).flatten(1)
    return torch.tanh(out).sum(1) * weights + 0.5 * out.square().mean(1)


def batch_of(inputs, dtype=torch.float64):
    return inputs, torch.linspace(-1.0, 2.0, len(inputs)).to(dtype)


def real(draw, shape, dtype):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def common(draw):
    """Records, type, form, micro-batch and clipping: drawn for every test."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    size = draw(st.integers(1, 6))
    options = {
        "form_name": draw(st.sampled_from(sorted(FORMS))),
        "micro": draw(st.sampled_from([None, *range(1, size + 1)])),
        "clip": draw(st.sampled_from(["flat", "flat", "per_layer", "automatic"])),
    }
    return size, draw(st.sampled_from(DTYPES)), options


class Then(nn.Module):
    """A module given as a function of itself and the input; named parts are its parameters and layers."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


def parameter(*shape, scale=0.5):
    return nn.Parameter(torch.randn(*shape) * scale)


@drawn(20)
@given(st.data())
def test_linear(data):
    draw = data.draw
    size, dtype, options = common(draw)
    lead = draw(st.lists(st.sampled_from([1, 2, 3, size]), max_size=2))
    width, out = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    model = nn.Sequential(nn.Linear(width, out, bias=draw(st.booleans())), nn.Tanh(), nn.Linear(out, 2))
    agrees(model.to(dtype), loss, batch_of(real(draw, (size, *lead, width), dtype), dtype), **options)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@drawn(30)
@given(st.data())
def test_convolutions(data):
    draw = data.draw
    size, dtype, options = common(draw)
    axes = draw(st.sampled_from([1, 2]))
    groups = draw(st.sampled_from([1, 2]))
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(axes))
    padding = draw(st.sampled_from(["valid", "same", 0, 1, 2]))
    stride = 1 if padding == "same" else tuple(draw(st.integers(1, 3)) for _ in range(axes))
    mode = draw(st.sampled_from(["zeros", "zeros", "circular", "reflect"]))
    kind = nn.Conv1d if axes == 1 else nn.Conv2d
    channels = groups * draw(st.integers(1, 2))
    made = kind(
        channels,
        groups * draw(st.integers(1, 2)),
        kernel,
        stride=stride,
        padding=padding,
        dilation=tuple(draw(st.integers(1, 2)) for _ in range(axes)),
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=mode,
    )
    first = nn.Conv1d(channels, channels, 1) if axes == 1 else nn.Conv2d(channels, channels, 1)
    model = nn.Sequential(first, nn.Tanh(), made, nn.Tanh())
    inputs = real(draw, (size, channels, *([9] * axes)), dtype)
    if axes == 2 and draw(st.booleans()):
        inputs = inputs.to(memory_format=torch.channels_last)
    agrees(model.to(dtype), loss, batch_of(inputs, dtype), **options)


@drawn(20)
@given(st.data())
def test_embeddings(data):
    """Tokens met twice add up before the norm; the padding row gets nothing; positions are the same for everyone."""
    draw = data.draw
    size, dtype, options = common(draw)
    length, width = draw(st.sampled_from([1, 3, size])), draw(st.integers(1, 3))
    padding = draw(st.sampled_from([None, 0, 2, -1]))
    table = nn.Embedding(5, width, padding_idx=padding)
    positions = draw(st.sampled_from(["none", "arange", "row"]))

    def forward(self, tokens):
        hidden = self.table(tokens)
        if positions == "arange":
            hidden = hidden + self.place(torch.arange(tokens.shape[1]))
        if positions == "row":
            hidden = hidden + self.place(torch.arange(tokens.shape[1])[None])
        return torch.tanh(hidden) * hidden

    model = Then(forward, table=table, place=nn.Embedding(7, width)).to(dtype)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    tokens = torch.randint(0, 5, (size, length), generator=generator)
    agrees(model, loss, batch_of(tokens, dtype), **options)


@drawn(20)
@given(st.data())
def test_norms(data):
    draw = data.draw
    size, dtype, options = common(draw)
    affine = draw(st.booleans())
    if draw(st.booleans()):
        shape = tuple(draw(st.lists(st.integers(4, 5), min_size=1, max_size=2)))
        lead = tuple(draw(st.lists(st.sampled_from([2, size]), max_size=1)))
        bias = draw(st.booleans())
        model = nn.Sequential(
            nn.Linear(shape[-1], shape[-1]), nn.LayerNorm(shape, elementwise_affine=affine, bias=bias)
        )
        inputs = real(draw, (size, *lead, *shape), dtype)
    else:
        axes = draw(st.integers(0, 2))
        first = {0: nn.Linear(8, 8), 1: nn.Conv1d(8, 8, 1), 2: nn.Conv2d(8, 8, 1)}[axes]
        model = nn.Sequential(first, nn.GroupNorm(draw(st.sampled_from([1, 2])), 8, affine=affine))
        inputs = real(draw, (size, 8, *([3] * axes)), dtype)
    with torch.no_grad():
        for p in model[1].parameters():
            p.copy_(torch.randn_like(p))
    tolerance = None if dtype == torch.float64 else 1e-5  # a variance of a few numbers amplifies rounding
    agrees(model.to(dtype), loss, batch_of(inputs, dtype), tolerance=tolerance, **options)


def tied(size, width=3):
    model = Then(
        lambda self, t: self.out(torch.tanh(self.table(t))), table=nn.Embedding(5, width), out=nn.Linear(width, 5)
    )
    model.out.weight = model.table.weight
    return model, torch.randint(0, 5, (size, 4))


def shared(size, width=3):
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
    model[2].weight = model[0].weight
    return model, torch.randn(size, 2, width)


def used_three_times(size, width=3):
    return (
        Then(lambda self, x: self.a(torch.tanh(self.a(torch.tanh(self.a(x))))), a=nn.Linear(width, width)),
        torch.randn(size, size, width),
    )


def convolved_twice(size, width=2):
    return (
        Then(lambda self, x: self.a(torch.tanh(self.a(x))), a=nn.Conv2d(2, 2, 3, padding=1)),
        torch.randn(size, 2, 4, 4),
    )


def norm_twice(size, width=3):
    return Then(lambda self, x: self.n(torch.tanh(self.n(x))), n=nn.LayerNorm(width)), torch.randn(size, 2, width)


def bare(size, width=3):
    def forward(self, x):
        token = self.token.expand(len(x), -1, -1)
        hidden = torch.cat([token, x @ self.matrix], 1) + self.place
        hidden = torch.tanh(F.linear(hidden, self.other, self.shift)) * self.scale
        return (hidden / (2.0 + self.gate.expand_as(hidden).square()) - self.scale) + self.layer_scale * hidden

    model = Then(
        forward,
        token=parameter(1, 1, width),
        place=parameter(1, 4, width),
        matrix=parameter(width, width),
        other=parameter(width, width),
        shift=parameter(width),
        scale=parameter(width),
        gate=parameter(1, 1, width),
        layer_scale=parameter(1),
    )
    return model, torch.randn(size, 3, width)


def residual_in_place(size, width=3):
    model = Then(
        lambda self, x: x + self.b(self.act(self.a(self.n(x)))),
        n=nn.LayerNorm(width),
        a=nn.Linear(width, 4),
        act=nn.ReLU(inplace=True),
        b=nn.Linear(4, width),
    )
    return model, torch.randn(size, 2, width)


def added_in_place(size, width=3):
    def forward(self, x):
        hidden = self.a(x)
        hidden += self.shift
        hidden *= self.scale
        return self.b(torch.tanh(hidden))

    model = Then(
        forward, a=nn.Linear(width, 4), shift=parameter(4), scale=parameter(1, 4), b=nn.Linear(4, 2, bias=False)
    )
    return model, torch.randn(size, width)


def unused(size, width=3):
    return Then(lambda self, x: self.a(x), a=nn.Linear(width, 2), b=nn.Linear(2, 2), c=parameter(4)), torch.randn(
        size, width
    )


def flattened(size, width=3):
    def forward(self, x):
        rows = torch.tanh(self.a(x.reshape(-1, width)) * self.s)
        return self.b(self.n(rows)).reshape(len(x), -1)

    model = Then(forward, a=nn.Linear(width, 4), s=parameter(4), n=nn.GroupNorm(2, 4), b=nn.Linear(4, 2))
    return model, torch.randn(size, 5, width)


def sequence_first(size, width=3):
    def forward(self, x):
        hidden = self.n(torch.tanh(self.a(x.transpose(0, 1)) + self.place))
        return self.b(hidden * self.scale).transpose(0, 1)

    model = Then(
        forward,
        a=nn.Linear(width, 4),
        place=parameter(size, 1, 4),
        scale=parameter(4),
        n=nn.LayerNorm(4),
        b=nn.Linear(4, 2),
    )
    return model, torch.randn(size, size, width)  # T == B


def folded_frames(size, width=3):
    def forward(self, x):
        frames = self.c(x.flatten(0, 1))
        return self.b(torch.tanh(self.n(frames)).mean((2, 3)).reshape(len(x), -1, 4).mean(1))

    model = Then(forward, c=nn.Conv2d(2, 4, 3, stride=2), n=nn.GroupNorm(2, 4), b=nn.Linear(4, 2))
    return model, torch.randn(size, 3, 2, 5, 5)


def attention(size, width=4):
    return nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True), torch.randn(size, size, 4)


def not_contiguous(size, width=3):
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2)), torch.randn(4, 2, size).permute(2, 1, 0)


ZOO = [tied, shared, used_three_times, convolved_twice, norm_twice, bare, residual_in_place, added_in_place, unused,
       flattened, sequence_first, folded_frames, attention, not_contiguous]  # fmt: skip


def freeze(model, how):
    """Some parameters, by rule: none, weights, biases, every other one."""
    for k, (_name, p) in enumerate(model.named_parameters()):
        hit = {"nothing": False, "weights": p.ndim > 1, "biases": p.ndim == 1, "half": k % 2 == 1}[how]
        p.requires_grad_(not hit)
    if not any(p.requires_grad for p in model.parameters()):
        next(model.parameters()).requires_grad_(True)


@pytest.mark.parametrize("make", ZOO, ids=lambda f: f.__name__)
@drawn(5)
@given(st.data())
def test_networks(make, data):
    size, dtype, options = common(data.draw)
    model, inputs = make(size)
    freeze(model, data.draw(st.sampled_from(["nothing", "nothing", "weights", "biases", "half"])))
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    agrees(model.to(dtype), loss, batch_of(inputs, dtype), **options)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_the_forms_asked_for_are_the_forms_used(name, monkeypatch):
    seen = {}
    whole = clipping.clip_and_sum
    monkeypatch.setattr(
        clipping, "clip_and_sum", lambda g, *a: seen.update({k: type(v).__name__ for k, v in g.items()}) or whole(g, *a)
    )
    layers = nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Conv1d(3, 3, 2, stride=3), nn.Tanh(), nn.Linear(2, 3)
    model = nn.Sequential(*layers).double()
    with form(name):
        only_one_backward(model, loss, batch_of(torch.randn(12, 2, 8, dtype=torch.float64)), 0.1)
    wanted = {
        "default": ("Built", "Shaped", "Outer"),
        "built": ("Built", "Shaped", "Built"),
        "gram": ("Shaped", "Shaped", "Outer"),
        "blocks": ("Convolved", "Convolved", "Built"),
        "kept": ("Convolved", "Convolved", "Built"),
    }[name]
    assert tuple(seen[f"{layer}.weight"] for layer in (0, 2, 4)) == wanted


def test_of_a_large_convolution_the_first_records_gradients_are_built_once(monkeypatch):
    built = []
    whole = convolutions._build
    monkeypatch.setattr(convolutions, "_build", lambda *a: built.append(len(a[-1])) or whole(*a))
    x, b = torch.randn(12, 2, 5, dtype=torch.float64), torch.randn(12, 3, 4, dtype=torch.float64)
    with form("kept"):  # 130 // 12 = 10 records are kept, 60 // 12 = 5 are built at a time
        gradient = convolutions.Convolved(x, b, torch.Size([3, 2, 2]), convolutions.Window((1,), (0,), (1,), 1), 12)
        squares, total = gradient.squared_norms(), gradient.weighted_sum(torch.ones(12, dtype=torch.float64))
        assert built == [5, 5, 2, 2]
        each = gradient.built(slice(None))
    assert torch.allclose(squares, each.flatten(1).square().sum(1), rtol=1e-12, atol=0.0)
    assert torch.allclose(total, each.sum(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_losses_over_sequences(name):
    """A mean over the tokens that count, a record's own number of them; the logits are flattened for the loss."""

    def masked(model, batch):
        tokens, y = batch
        logits = model(tokens)
        each = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none", ignore_index=-100)
        return each.reshape(y.shape).sum(1) / (y != -100).sum(1).clamp_min(1)

    model, tokens = tied(5)
    y = torch.randint(0, 5, tokens.shape)
    y[0, 1:], y[1] = -100, -100
    agrees(model.double(), masked, (tokens, y), form_name=name)


@pytest.mark.parametrize("engine", ["one_backward", "auto"])
@pytest.mark.parametrize("make", [tied, bare, folded_frames], ids=lambda f: f.__name__)
def test_empty_batches_and_batches_of_one(make, engine):
    model, inputs = make(1)
    batch = batch_of(inputs, torch.float32)
    sums, norms = clipped_gradient(model, loss, tuple(t[:0] for t in batch), 1.0, engine=engine)
    assert norms.shape == (0,)
    assert all(float(v.abs().sum()) == 0.0 and v.dtype == torch.float64 for v in sums.values())
    agrees(model, loss, batch)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("make", [shared, residual_in_place, folded_frames], ids=lambda f: f.__name__)
def test_opacus_gives_the_same_norms(make):
    from opacus import GradSampleModule

    if make is shared:  # opacus stacks tied weights: a second layer of its own instead
        model, inputs = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)), torch.randn(6, 2, 3)
    elif make is folded_frames:
        model = nn.Sequential(nn.Conv2d(2, 4, (3, 2), 2, (2, 1), 2, 2), nn.GroupNorm(2, 4), nn.Tanh())
        inputs = torch.randn(6, 2, 7, 7)
    else:
        model, inputs = make(6)
        model.act = nn.ReLU()
    model, batch = model.double(), batch_of(inputs.double())
    wrapped = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
    loss(wrapped, batch).sum().backward()
    squares = sum(p.grad_sample.flatten(1).square().sum(1) for p in wrapped.parameters())
    for name in FORMS:
        with form(name):
            _, norms = only_one_backward(model, loss, batch, 1.0)
        torch.testing.assert_close(norms, squares.sqrt(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["built", "gram"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("magnitude", [1e-4, 1.0, 300.0])
def test_half_precision_models(dtype, magnitude, name):
    """Norms in float32 at least: squares of 300 overflow float16, those of 1e-4 underflow it."""
    torch.manual_seed(3)
    model = nn.Linear(6, 3).to(dtype)
    X = (torch.rand(5, 4, 6) + 0.5).to(dtype) * magnitude

    def summed(model, batch):
        return model(batch).flatten(1).float().sum(1)

    true = (X.double().sum(1).square().sum(1) * 3 + 16 * 3).sqrt()
    with form(name):
        for bound in (float(true.min()) / 2, 2 * float(true.max())):
            sums, norms = only_one_backward(model, summed, X, bound)
            torch.testing.assert_close(norms, true, rtol=1e-5, atol=0.0)
            factors = (bound / true).clamp(max=1.0)
            torch.testing.assert_close(
                sums["weight"][0], (factors[:, None] * X.double().sum(1)).sum(0), rtol=1e-5, atol=0.0
            )
            assert contribution(model, summed, X[:1], bound) <= bound * (1 + 1e-5)


@pytest.mark.parametrize("clip", ["flat", "per_layer", "automatic"])
def test_autocast(clip):
    """Inside the loss, as users write it: gradients to bfloat16's precision, clipped to the bound at float32's."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
    X, w = torch.randn(6, 4, 6), torch.linspace(1.0, 2.0, 6)

    def cast(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, batch).float()

    gradients = alone(model, loss, (X, w))
    true = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
    _sums, norms = clipped_gradient(model, cast, (X, w), 0.1, clipping=clip)
    torch.testing.assert_close(norms, true, rtol=3e-2, atol=0.0)
    assert norms.dtype == torch.float64
    for i in range(6):
        assert contribution(model, cast, (X[i : i + 1], w[i : i + 1]), 0.1, clipping=clip) <= 0.1 * (1 + 1e-5)


@drawn(20)
@given(st.data())
def test_rounding_where_positions_cancel(data):
    """What a clipped record adds is ≤ C(1 + 1e-5) beyond the part that the engine's float32 margin covers (2^-12),
    for positions that cancel: pairs of opposite outer products, and increments that all round the same way."""
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 10**6)))
    length, width, out = (
        draw(st.sampled_from([2, 8, 64, 256])),
        draw(st.sampled_from([1, 3, 40])),
        draw(st.sampled_from([1, 4, 40])),
    )
    kind = draw(st.sampled_from(["pairs", "near pairs", "one way"]))
    if kind == "one way":
        half = 2.0**-24
        steps = torch.tensor([half * (1 + 2**-6), -half * (1 - 2**-6)]).repeat(length // 2 - 1)
        values = torch.cat([torch.ones(1), steps, -torch.ones(1)])
        a, b = torch.ones(1, length, width), values[None, :, None].expand(1, length, out)
    else:
        a = torch.randn(1, length // 2, width).repeat_interleave(2, 1)
        b = torch.randn(1, length // 2, out).repeat_interleave(2, 1)
        b[:, 1::2] *= -1 if kind == "pairs" else -(1 - 2.0 ** -draw(st.integers(1, 24)))
        order = torch.randperm(length)
        a, b = a[:, order], b[:, order]
    scale = 10.0 ** draw(st.integers(-3, 8))
    model = nn.Linear(width, out, bias=False)

    def dot(model, batch):
        return (model(batch[0]) * batch[1]).sum((1, 2))

    with form("gram"):
        sums, norms = only_one_backward(model, dot, (a, b * scale), 1.0)
    assert float(sums["weight"].norm()) <= 1.0 + 2.0**-12 + 1e-5
    true = float((b[0].double().T @ a[0].double()).norm()) * scale
    assert float(norms) >= true * (1 - 1e-5)


@pytest.mark.parametrize(("x", "y"), [(1e-23, 1e18), (1e18, 1e-23), (1e-30, 1e12)])
@pytest.mark.parametrize("length", [1, 3])
def test_tiny_inputs_with_huge_derivatives(x, y, length):
    """Squares of 1e-23 underflow float32: a norm of 0 would let anything through."""
    model = nn.Linear(100, 100, bias=False)

    def dot(model, batch):
        return (model(batch[0]) * batch[1]).sum((1, 2))

    batch = torch.full((2, length, 100), x), torch.full((2, length, 100), y)
    true = 100 * x * y * length
    sums, norms = only_one_backward(model, dot, batch, true / 1e3)
    torch.testing.assert_close(norms, torch.full_like(norms, true), rtol=1e-4, atol=0.0)
    assert float(sums["weight"].norm()) <= 2 * true / 1e3 * (1 + 1e-5)


@pytest.mark.parametrize("large", [8])
def test_norms_of_very_wide_gradients(large):
    """A few large squares must not swallow a quarter of a million small ones."""
    model = nn.Linear(2**18, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    X = torch.full((1, 2**18), 2.0**-12.6)
    X[0, :large] = 1.0
    sums, norms = only_one_backward(model, lambda m, b: m(b)[:, 0], X, 0.5)
    assert float(norms) == pytest.approx(float(X.double().norm()), rel=1e-5)
    assert float(sums["weight"].norm()) <= 0.5 * (1 + 1e-5)
