"""Per-example clipped sums: equal to a one-record loop for every kind of layer, and safe at the edges."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sgd_checks import Attention, Recurrent, TiedNetwork, one_record_loop
from torch import nn

from dpml.errors import ConfigError, DataError, ModelError
from dpml.sgd import ModelLoss, build_model, clipped_gradient, taps
from dpml.sgd import clipping as clipping_module
from dpml.sgd.models import per_example_loss
from dpml.sgd.uses import Built

LOSS = ModelLoss()
GENERIC = ModelLoss(lambda logits, y: per_example_loss(logits, y))  # not the built-in object


def images(channels=2, size=6):
    return lambda n: torch.randn(n, channels, size, size)


def tokens(n):
    return torch.randint(0, 7, (n, 4))


def flat(width):
    return lambda n: torch.randn(n, width)


CASES = {
    "linear": (lambda: nn.Linear(5, 3), flat(5), 3),
    "linear_no_bias": (lambda: nn.Linear(5, 3, bias=False), flat(5), 3),
    "one_logit": (lambda: nn.Linear(5, 1), flat(5), 2),
    "mlp": (lambda: build_model("mlp", 5, 3, hidden=(6, 4), seed=1), flat(5), 3),
    "conv": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)), images(), 3),
    "conv_stride_padding_groups_dilation": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=2, groups=2, dilation=2), nn.Flatten(), nn.LazyLinear(3)
        ),
        images(),
        3,
    ),
    "layer_norm": (lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3)), flat(5), 3),
    "group_norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)),
        images(),
        3,
    ),
    "instance_norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Flatten(), nn.Linear(64, 3)),
        images(),
        3,
    ),
    "embedding": (lambda: nn.Sequential(nn.Embedding(7, 5), nn.Flatten(), nn.Linear(20, 3)), tokens, 3),
    "linear_over_positions": (lambda: nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 4), nn.Flatten()), tokens, 16),
    "tied_used_twice_unused_bare": (TiedNetwork, tokens, 7),
    "lstm": (Recurrent, tokens, 3),
    "attention": (Attention, tokens, 3),
}


def case(name, dtype=torch.float64, n=9):
    torch.manual_seed(len(name))
    make, inputs, classes = CASES[name]
    model, X = make(), inputs(n)
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        model(X)
    X = X.to(dtype) if X.is_floating_point() else X
    return model.to(dtype), (X, torch.randint(0, classes, (n,)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_sums_and_norms_equal_a_loop_over_single_records(name, dtype):
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    model, batch = case(name, dtype)
    for loss_fn in (LOSS, GENERIC):
        _, norms = one_record_loop(model, GENERIC, batch, 1.0)
        for bound in (float(norms.median()), 1e6):  # half of them clipped, then none
            expected, expected_norms = one_record_loop(model, GENERIC, batch, bound)
            sums, got_norms = clipped_gradient(model, loss_fn, batch, bound)
            assert set(sums) == {n for n, _ in model.named_parameters()}
            scale = max(float(v.abs().max()) for v in expected.values())
            for key, value in expected.items():
                assert sums[key].shape == value.shape
                assert float((sums[key].double() - value).abs().max()) <= tolerance * scale
            torch.testing.assert_close(got_norms, expected_norms, rtol=tolerance * 10, atol=tolerance)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("name", ["linear", "mlp", "conv", "embedding", "layer_norm", "group_norm"])
def test_opacus_agrees(name):
    """Second opinion: Opacus' hooks give the same per-example norms (its default path, another algorithm)."""
    from opacus import GradSampleModule

    model, batch = case(name)
    wrapped = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
    per_example_loss(wrapped(batch[0]), batch[1]).sum().backward()
    squares = sum(p.grad_sample.flatten(1).square().sum(1) for p in wrapped.parameters())
    _, norms = clipped_gradient(model, GENERIC, batch, 1.0)
    torch.testing.assert_close(norms, squares.sqrt(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["linear", "mlp", "tied_used_twice_unused_bare"])
@pytest.mark.parametrize("size", [1, 2, 4, 100])
def test_micro_batches_change_nothing(name, size):
    model, batch = case(name)
    whole = clipped_gradient(model, GENERIC, batch, 0.3)
    parts = clipped_gradient(model, GENERIC, batch, 0.3, micro_batch_size=size)
    for key in whole[0]:
        torch.testing.assert_close(parts[0][key], whole[0][key], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(parts[1], whole[1], rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_one_record_moves_the_sum_by_at_most_the_bound(name):
    """The sensitivity itself, add_remove: the difference between a batch and the batch without one record."""
    model, batch = case(name)
    bound = 0.05
    whole, _ = clipped_gradient(model, LOSS, batch, bound)
    for i in range(3):
        rest = tuple(torch.cat([t[:i], t[i + 1 :]]) for t in batch)
        less, _ = clipped_gradient(model, LOSS, rest, bound)
        moved = sum(float((whole[k] - less[k]).square().sum()) for k in whole) ** 0.5
        assert moved <= bound * (1 + 1e-9)


@pytest.mark.parametrize("loss_fn", [LOSS, GENERIC])
@pytest.mark.parametrize("name", ["linear", "mlp", "conv"])
def test_an_empty_batch_gives_zeros(name, loss_fn):
    model, batch = case(name)
    sums, norms = clipped_gradient(model, loss_fn, tuple(t[:0] for t in batch), 1.0)
    assert norms.shape == (0,)
    assert {k: v.shape for k, v in sums.items()} == {k: p.shape for k, p in model.named_parameters()}
    assert all(float(v.abs().sum()) == 0.0 for v in sums.values())


@pytest.mark.parametrize("loss_fn", [LOSS, GENERIC])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e308])
@pytest.mark.parametrize("name", ["linear", "linear_no_bias", "one_logit", "mlp", "layer_norm"])
def test_a_record_that_is_not_finite_contributes_zero_and_changes_nothing_else(name, bad, loss_fn):
    model, (X, y) = case(name)
    spoilt = X.clone()
    spoilt[4] = bad
    spoilt[4, 0] = -bad
    keep = torch.arange(len(X)) != 4
    expected, expected_norms = clipped_gradient(model, loss_fn, (X[keep], y[keep]), 0.3)
    sums, norms = clipped_gradient(model, loss_fn, (spoilt, y), 0.3)
    torch.testing.assert_close(norms[keep], expected_norms, rtol=1e-12, atol=0)
    size = 0.0
    for key, value in expected.items():
        assert torch.isfinite(sums[key]).all()
        size += float((sums[key] - value).square().sum())
    assert size**0.5 <= (1e-12 if not np.isfinite(bad) else 0.3 * (1 + 1e-9))  # 1e308 may count, clipped


def test_the_users_model_is_untouched():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.GroupNorm(2, 6), nn.Linear(6, 3)).train()
    model[0].bias.requires_grad_(False)
    model[3].eval()
    model[0].weight.grad = torch.ones(6, 4)
    before = copy.deepcopy(model.state_dict())
    identities = {name: id(p) for name, p in model.named_parameters()}
    modes = [m.training for m in model.modules()]
    attributes = [sorted(vars(m)) for m in model.modules()]
    clipped_gradient(model, LOSS, (torch.randn(5, 4), torch.randint(0, 3, (5,))), 1.0)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(model.state_dict()[k], before[k]) for k in before)
    assert {name: id(p) for name, p in model.named_parameters()} == identities
    assert [m.training for m in model.modules()] == modes
    assert [sorted(vars(m)) for m in model.modules()] == attributes
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks
        assert not module._forward_pre_hooks
    assert torch.equal(model[0].weight.grad, torch.ones(6, 4))
    assert all(p.grad is None for p in model[3].parameters())


def test_frozen_parameters_get_no_gradient_and_do_not_count_in_the_norm():
    model, batch = case("mlp")
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    expected, expected_norms = one_record_loop(model, LOSS, batch, 0.2)
    sums, norms = clipped_gradient(model, LOSS, batch, 0.2)
    assert set(sums) == set(expected) == {"0.bias", "2.weight", "4.weight", "4.bias"}
    torch.testing.assert_close(norms, expected_norms, rtol=1e-11, atol=0)
    linear = nn.Linear(3, 2)
    linear.bias.requires_grad_(False)  # "frozen bias only"
    assert set(clipped_gradient(linear, LOSS, (torch.randn(4, 3), torch.zeros(4, dtype=torch.int64)), 1.0)[0]) == {
        "weight"
    }


def test_a_buffer_that_the_forward_pass_writes_keeps_its_value():
    """What a record leaves in a buffer would be released without noise."""

    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            self.seen += x.detach().sum(0)
            return super().forward(x)

    model = Counting()
    batch = (torch.randn(6, 3), torch.randint(0, 2, (6,)))
    sums, _ = clipped_gradient(model, LOSS, batch, 0.1)
    assert torch.equal(model.seen, torch.zeros(3))
    plain = nn.Linear(3, 2)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if k != "seen"})
    torch.testing.assert_close(sums, clipped_gradient(plain, LOSS, batch, 0.1)[0])


def test_a_loss_or_model_that_mixes_records_cannot_raise_the_sensitivity():
    """Records are run alone, so a model that subtracts the batch mean sees batches of one."""

    class Mixing(nn.Linear):
        def forward(self, x):
            return super().forward(x - 0.5 * x.mean(0, keepdim=True))

    model = Mixing(3, 2)
    X, y = torch.randn(6, 3), torch.randint(0, 2, (6,))
    sums, _ = clipped_gradient(model, LOSS, (X, y), 0.1)
    expected, _ = one_record_loop(model, LOSS, (X, y), 0.1)
    torch.testing.assert_close(sums["weight"].double(), expected["weight"], rtol=1e-5, atol=1e-7)


def test_data_dependent_python_in_the_model_falls_back_to_the_loop():
    class Branching(nn.Linear):
        def forward(self, x):
            return super().forward(x if float(x.detach().sum()) > 0 else -x)

    model = Branching(3, 2).double()
    batch = (torch.randn(6, 3, dtype=torch.float64), torch.randint(0, 2, (6,)))
    expected, _ = one_record_loop(model, LOSS, batch, 0.1)
    sums, _ = clipped_gradient(model, LOSS, batch, 0.1)
    torch.testing.assert_close(sums, expected, rtol=1e-12, atol=1e-14)


def test_dropout_masks_differ_between_records():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(200, 2, bias=False)).train()
    batch = (torch.ones(2, 200), torch.zeros(2, dtype=torch.int64))
    gradients = clipping_module.per_example_gradients(model, LOSS, batch)["1.weight"]
    assert not torch.equal(gradients[0], gradients[1])  # equal by chance with probability 2^-200


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("magnitude", [1e-4, 1.0, 300.0])
def test_half_precision_neither_skips_clipping_nor_zeroes(dtype, magnitude):
    """Squares of 300 overflow float16 and squares of 1e-4 underflow it; the norm is taken in float64."""
    values = torch.full((3, 50), magnitude).to(dtype)
    gradients = {"w": Built(taps.wide(values))}  # what a layer hands over
    true_norm = float(values[0].double().norm())
    for bound in (true_norm / 2, true_norm * 2):
        sums, norms = clipping_module.clip_and_sum(dict(gradients), bound)
        assert norms.numpy() == pytest.approx(true_norm, rel=1e-6)
        assert float(sums["w"].norm()) == pytest.approx(3 * min(true_norm, bound), rel=1e-5)
        assert sums["w"].dtype == torch.float64


def test_a_half_precision_model_works_end_to_end():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(torch.bfloat16)
    batch = (torch.randn(5, 4).to(torch.bfloat16), torch.randint(0, 3, (5,)))
    sums, norms = clipped_gradient(model, LOSS, batch, 1e-3)
    assert all(v.dtype == torch.float64 for v in sums.values())
    assert sum(float(v.square().sum()) for v in sums.values()) ** 0.5 <= 5e-3 * 1.001
    assert norms.dtype == torch.float64


def test_ignored_targets_and_sequence_losses_are_means_within_a_record():
    """``ignore_index`` must not normalise over the other records of the batch."""

    def sequence_loss(logits, y):
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), y, reduction="none", ignore_index=-100)
        return losses.sum(1) / (y != -100).sum(1).clamp_min(1)

    torch.manual_seed(1)
    model = nn.Linear(3, 4).double()
    y = torch.randint(0, 4, (6, 5))
    y[0, 2:] = -100
    y[1] = -100
    batch = (torch.randn(6, 5, 3, dtype=torch.float64), y)
    expected, expected_norms = one_record_loop(model, ModelLoss(sequence_loss), batch, 0.2)
    sums, norms = clipped_gradient(model, ModelLoss(sequence_loss), batch, 0.2)
    torch.testing.assert_close(sums, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(norms, expected_norms, rtol=1e-12, atol=1e-15)
    ignored = torch.tensor([0, -100, 2])
    flat_batch = (torch.randn(3, 3, dtype=torch.float64), ignored)
    for loss_fn in (LOSS, GENERIC):  # the built-in loss and one of the user's agree on torch's ignored class
        got, got_norms = clipped_gradient(model, loss_fn, flat_batch, 0.2)
        assert float(got_norms[1]) == 0.0
        torch.testing.assert_close(got, one_record_loop(model, GENERIC, flat_batch, 0.2)[0], rtol=1e-12, atol=1e-14)


def test_batches_may_be_tensors_or_dictionaries():
    model = nn.Linear(3, 1).double()
    X = torch.randn(4, 3, dtype=torch.float64)
    by_tensor, _ = clipped_gradient(model, lambda m, b: m(b)[:, 0] ** 2, X, 0.5)
    by_name, _ = clipped_gradient(model, lambda m, b: m(b["x"])[:, 0] ** 2, {"x": X}, 0.5)
    torch.testing.assert_close(by_tensor, by_name)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"max_grad_norm": 0.0}, ConfigError, "max_grad_norm = 0.0"),
        ({"max_grad_norm": float("nan")}, ConfigError, "max_grad_norm"),
        ({"max_grad_norm": float("inf")}, ConfigError, "max_grad_norm"),
        ({"micro_batch_size": 0}, ConfigError, "micro_batch_size = 0"),
        ({"loss_fn": lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1])}, ModelError, "one loss per record"),
        ({"batch": (torch.zeros(3, 5), torch.zeros(2))}, DataError, r"\[2, 3\] records"),
        ({"batch": ()}, DataError, "axis 0"),
    ],
)
def test_bad_arguments_are_named(change, error, match):
    model, batch = case("linear", torch.float32)
    arguments = {"model": model, "loss_fn": LOSS, "batch": batch, "max_grad_norm": 1.0, **change}
    with pytest.raises(error, match=match):
        clipped_gradient(**arguments)


def test_a_model_without_trainable_parameters_is_refused():
    model, batch = case("linear", torch.float32)
    with pytest.raises(ModelError, match="nothing to train"):
        clipped_gradient(model.requires_grad_(False), LOSS, batch, 1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_cuda_gives_the_same_sums(name):
    model, batch = case(name)
    expected, expected_norms = clipped_gradient(model, LOSS, batch, 0.2)
    sums, norms = clipped_gradient(model.cuda(), LOSS, tuple(t.cuda() for t in batch), 0.2)
    for key, value in expected.items():
        torch.testing.assert_close(sums[key].cpu(), value, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(norms.cpu(), expected_norms, rtol=1e-9, atol=1e-12)
