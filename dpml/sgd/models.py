"""The built-in networks, per-example losses, and the check that a network can be trained privately at all."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.weight_norm import WeightNorm

from dpml import errors
from dpml.errors import ModelError

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LossFunction = Callable[[nn.Module, Any], torch.Tensor]
REGRESSION = ("ridge", "huber")
NAMES = ("logreg", "softmax", *REGRESSION, "mlp")
WIDEST = 2**16


def build_model(name: str, n_features: int, n_classes: int, hidden: Sequence[int] = (64,), seed: int = 0) -> nn.Module:
    """A fresh network on rows ``(n, n_features)``; the global torch generator is left as it was.

    ``"logreg"`` is one ``Linear(n_features, 1)`` (a single logit, for two classes), and so are ``"ridge"`` and
    ``"huber"`` (the number to predict; ``n_classes`` is not used); ``"softmax"`` is one
    ``Linear(n_features, n_classes)``; all without bias (the encoded row holds a constant column, so that the
    intercept is clipped and noised like every other weight) and starting at 0.  ``"mlp"`` has tanh layers of the widths
    ``hidden``, drawn from the public ``seed``, and one logit for two classes.  Bounded activations keep per-example
    gradients comparable, which clipping likes (Papernot et al. 2021, "Tempered sigmoid activations", section 3).

    Raises:
        ConfigError: an unknown name, no features, fewer than two classes, logreg with more than two, a width that is
            not from 1 to 65536, a seed that is not from 0 to 2⁶³ − 1.
    """
    if name not in NAMES:
        raise errors.invalid("model", name, f"one of {', '.join(NAMES)}, or a torch.nn.Module")
    if n_features < 1:
        raise errors.invalid("n_features", n_features, "a whole number >= 1")
    if n_classes < 2:
        raise errors.invalid("n_classes", n_classes, "a whole number >= 2")
    if name == "logreg" and n_classes != 2:
        raise errors.invalid("n_classes", n_classes, "2 for model='logreg'", "Use model='softmax' or 'mlp'.")
    if not _is_whole(seed) or not 0 <= seed < 2**63:
        raise errors.invalid("seed", seed, "a whole number from 0 to 2**63 - 1")
    outputs = 1 if n_classes == 2 else n_classes
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(int(seed))
        if name == "mlp":
            return _mlp(n_features, tuple(hidden), outputs)
        linear = nn.Linear(n_features, n_classes if name == "softmax" else 1, bias=False)
    nn.init.zeros_(linear.weight)
    return linear


def _mlp(n_features: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    if not hidden or not all(_is_whole(width) and 1 <= width <= WIDEST for width in hidden):
        raise errors.invalid(
            "hidden",
            hidden,
            f"a non-empty sequence of whole numbers from 1 to {WIDEST}",
            "Without hidden layers use 'softmax'.",
        )
    layers: list[nn.Module] = []
    width = n_features
    for size in hidden:
        layers += [nn.Linear(width, size), nn.Tanh()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def per_example_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Losses ``(B,)``: logistic for one logit per row, cross entropy for ``(B, K)`` or ``(B, K, …)`` (mean over …)."""
    if logits.ndim == 1 or (logits.ndim == 2 and logits.shape[1] == 1):
        scores = logits.reshape(-1)
        return F.binary_cross_entropy_with_logits(scores, targets.to(scores.dtype), reduction="none")
    losses = F.cross_entropy(logits, targets, reduction="none")
    return losses if losses.ndim == 1 else losses.flatten(1).mean(1)


@dataclass(frozen=True)
class RegressionLoss:
    """Losses ``(B,)`` of the residual r = score − target: r²/2 up to ``threshold`` k, then k|r| − k²/2.

    ``threshold = inf`` is squared loss.  The same losses as ``Squared`` and ``Huber`` of :mod:`dpml.erm.losses`.
    """

    threshold: float = math.inf

    def __call__(self, scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        size = (scores.reshape(-1) - targets.to(scores.dtype)).abs()
        inside = size.clamp(max=self.threshold)
        return inside * (size - inside / 2.0)


@dataclass(frozen=True)
class ModelLoss:
    """``loss_fn(model, (X, y)) -> (B,)`` made of a per-example ``loss(logits, targets) -> (B,)``."""

    loss: Loss = per_example_loss

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        X, y = batch
        return self.loss(model(X), y)


def check_model(model: nn.Module) -> None:
    """Refuse a network for which "the gradient of one record" makes no sense or nothing would be trained.

    Raises:
        ModelError: naming the layer and what to put in its place.
    """
    if not isinstance(model, nn.Module):
        shown = "None" if model is None else f"a {type(model).__name__}"  # not its value: it may be data by mistake
        shown = f"the class {model.__name__}" if isinstance(model, type) else shown
        raise ModelError(
            f"model = {shown} is not allowed: it must be a torch.nn.Module"
            + (f". Pass an instance: {model.__name__}(…)." if isinstance(model, type) else " (or the name of a model).")
        )
    for name, module in model.named_modules():
        where = f"the layer {name!r} ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
        if isinstance(module, _BatchNorm):
            raise ModelError(
                f"{where} mixes the records of a batch, so that no record's gradient can be bounded alone. "
                f"Replace it with {_replacement(module)} and train again; of a pretrained model that stays as it is, "
                "compute the features first and train the rest on them."
            )
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            raise ModelError(
                f"{where} keeps running averages of the records, which would be released without noise. "
                "Set track_running_stats=False, or use GroupNorm."
            )
        if any(base.__name__ == "AbstractGradSampleModule" for base in type(module).__mro__):
            raise ModelError(f"{where} is wrapped by Opacus already. Pass the plain module; dpml adds no hooks to it.")
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise ModelError(f"{where} averages over devices. Pass the module inside it.")
        if any(isinstance(hook, WeightNorm) for hook in module._forward_pre_hooks.values()):
            raise ModelError(
                f"{where} has the old torch.nn.utils.weight_norm, which keeps a computed weight that torch cannot "
                "copy, and dpml trains a copy. Use torch.nn.utils.parametrizations.weight_norm."
            )
    parameters = list(model.named_parameters())
    for name, tensor in [*parameters, *model.named_buffers()]:
        if tensor.is_meta:
            raise ModelError(
                f"{name!r} is on the device 'meta': it has a shape and no values. Build the model on a real device, or "
                "call model.to_empty(device='cpu') and initialise every parameter and buffer."
            )
    for name, parameter in parameters:
        if parameter.requires_grad and (parameter._backward_hooks or parameter._post_accumulate_grad_hooks):
            raise ModelError(
                f"the parameter {name!r} has a hook on its gradient, which dpml never runs: gradients are clipped "
                "record by record and summed without one. Remove the hook; to keep a part of a weight as it is, mask "
                "it in the forward pass (torch.nn.utils.parametrize)."
            )
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ModelError(
                f"the parameter {name!r} has no shape yet (a lazy layer). Run the model once on a dummy batch."
            )
        if parameter.requires_grad and not parameter.is_floating_point():
            raise ModelError(
                f"the parameter {name!r} is {parameter.dtype}; only real floating-point parameters are trained."
            )
    if not any(parameter.requires_grad for _, parameter in parameters):
        raise ModelError(
            "the model has no parameter with requires_grad=True, so there is nothing to train. Call "
            "requires_grad_(True) on the layers to be trained, the last one for fine-tuning a head."
        )


def copied(model: nn.Module) -> nn.Module:
    """A deep copy; ModelError for a module that torch cannot copy."""
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ModelError(
            f"the model ({type(model).__name__}) cannot be copied: {error}. dpml trains a copy: pass a fresh "
            "module that holds no computed tensors."
        ) from error


def check_output(
    model: nn.Module,
    feature_shape: Sequence[int],
    n_classes: int | None,
    way_out: str = "pass loss= for another kind of output",
) -> None:
    """Run a copy of the model on two rows of zeros: does it take the declared rows and give logits of the right shape?

    Args:
        feature_shape: public shape of one row.
        n_classes: declared classes, 0 for a numeric target; ``None`` (a loss of the user's own, and nothing to score)
            leaves the output's shape open.
        way_out: what to do beside mending the last layer.

    Raises:
        ModelError: what came out, and what was expected.
    """
    probe = copied(model).to("cpu").eval()
    dtype = next((p.dtype for p in probe.parameters() if p.is_floating_point()), torch.float32)
    rows = torch.zeros((2, *feature_shape), dtype=dtype)
    try:
        with torch.no_grad():
            output = probe(rows)
    except Exception as error:
        raise ModelError(
            f"the model ({type(model).__name__}) cannot take rows of shape {tuple(feature_shape)}: {error}. "
            "Its input must fit the declared features (the constant column included)."
        ) from error
    if n_classes is None:
        return
    allowed = ([(2, n_classes)] if n_classes else []) + ([(2,), (2, 1)] if n_classes in (0, 2) else [])
    target = f"{n_classes} declared classes" if n_classes else "a numeric target"
    if not isinstance(output, torch.Tensor) or tuple(output.shape) not in allowed:
        got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise ModelError(
            f"the model ({type(model).__name__}) gives {got} for 2 rows; for {target} it must give one of {allowed}. "
            f"Fix its last layer, or {way_out}."
        )


def check_loss(model: nn.Module, loss: Loss, feature_shape: Sequence[int], regression: bool) -> None:
    """Try the user's own loss on two rows of zeros: one loss per record?

    Raises:
        ModelError: what came out, and what was expected.
    """
    probe = copied(model).to("cpu").eval()
    dtype = next((p.dtype for p in probe.parameters() if p.is_floating_point()), torch.float32)
    targets = torch.zeros(2, dtype=dtype if regression else torch.int64)
    try:
        with torch.no_grad():
            losses = loss(probe(torch.zeros((2, *feature_shape), dtype=dtype)), targets)
    except Exception as error:
        raise ModelError(
            f"loss fails on two records of zeros: {type(error).__name__}: {error}. It is called as loss(output, "
            f"targets) with targets (B,) {targets.dtype} and must give one loss per record, shape (B,)."
        ) from error
    if not isinstance(losses, torch.Tensor) or losses.shape != (2,):
        got = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
        raise ModelError(
            f"loss gives {got} for 2 records; it must give one loss per record, shape (2,). Use reduction='none', and "
            "take the mean over all axes but the first: losses.flatten(1).mean(1)."
        )


def _replacement(module: nn.Module) -> str:
    channels = int(getattr(module, "num_features", 0))
    groups = next((g for g in (32, 16, 8, 4, 2) if channels and channels % g == 0), 1)
    if isinstance(module, nn.BatchNorm1d):
        return f"LayerNorm({channels}) or GroupNorm({groups}, {channels})" if channels else "LayerNorm or GroupNorm"
    return f"GroupNorm({groups}, {channels})" if channels else "GroupNorm"
