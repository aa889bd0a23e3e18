"""Between numpy and torch: devices, rows as tensors, weights in and out of a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from dpml import errors
from dpml.errors import DataError, ModelError

FORWARD_ROWS = 4096


def resolve_device(device: str | torch.device) -> torch.device:
    """The torch device for ``"auto"`` (CUDA where there is one), ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

    Raises:
        ConfigError: an unknown name, or CUDA asked for where torch sees none.
    """
    name = str(device)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise errors.invalid("device", name, "'auto', 'cpu' or 'cuda'")
    if kind == "cuda" and not torch.cuda.is_available():
        raise errors.invalid("device", name, "'cpu' or 'auto' here", "torch sees no CUDA device on this machine.")
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise errors.invalid("device", name, f"below cuda:{torch.cuda.device_count()} here")
    return torch.device(name)


def float_dtype(model: nn.Module) -> torch.dtype:
    """Floating dtype of the model's first parameter: what its inputs are cast to."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.dtype
    return torch.float32


def as_inputs(X: Any, model: nn.Module, device: torch.device) -> torch.Tensor:
    """Rows as a tensor on ``device``: floats in the model's dtype, whole numbers (token ids, say) as int64."""
    tensor = X if isinstance(X, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(X))
    dtype = float_dtype(model) if tensor.is_floating_point() else torch.int64
    return tensor.detach().to(device=device, dtype=dtype)


def as_targets(y: Any, n: int, model: nn.Module, device: torch.device) -> torch.Tensor:
    """Targets as a tensor on ``device``: class indices as int64, real-valued ones in the model's dtype."""
    tensor = y if isinstance(y, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(y))
    if tensor.ndim == 0 or tensor.shape[0] != n:
        raise DataError(f"y has shape {tuple(tensor.shape)}; it must have one entry for each of the rows of X.")
    dtype = float_dtype(model) if tensor.is_floating_point() else torch.int64
    return tensor.detach().to(device=device, dtype=dtype)


def forward(model: nn.Module, X: Any) -> np.ndarray:
    """Scores of the rows of ``X`` in evaluation mode, float64 ``(n, …)``; the model's mode is as before afterwards."""
    modes = {module: module.training for module in model.modules()}
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    rows = as_inputs(X, model, device)
    try:
        model.eval()
        with torch.no_grad():
            parts = [model(rows[i : i + FORWARD_ROWS]) for i in range(0, max(len(rows), 1), FORWARD_ROWS)]
    finally:
        for module, mode in modes.items():
            module.training = mode
    return torch.cat(parts).to(device="cpu", dtype=torch.float64).numpy()


def weights_of(model: nn.Module) -> dict[str, np.ndarray]:
    """The module's ``state_dict`` as numpy arrays (copies; half precision becomes float32)."""
    arrays = {}
    for name, tensor in model.state_dict().items():
        value = tensor.detach().cpu()
        if value.dtype in (torch.float16, torch.bfloat16):
            value = value.float()
        arrays[name] = value.numpy().copy()
    return arrays


def load_weights(model: nn.Module, weights: Mapping[str, np.ndarray]) -> None:
    """Copy ``weights`` (as from :func:`weights_of`) into ``model``; ModelError names what does not fit."""
    own = model.state_dict()
    missing, unknown = sorted(set(own) - set(weights)), sorted(set(weights) - set(own))
    if missing or unknown:
        raise ModelError(f"the weights do not fit the module: missing {missing}, not in the module {unknown}.")
    for name, tensor in own.items():
        if tuple(weights[name].shape) != tuple(tensor.shape):
            raise ModelError(
                f"the weight {name!r} has shape {tuple(weights[name].shape)}, the module's has {tuple(tensor.shape)}."
            )
    model.load_state_dict({name: torch.from_numpy(np.array(weights[name])) for name in own})
