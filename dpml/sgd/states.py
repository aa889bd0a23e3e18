"""Checkpoints of DP-SGD: weights, momentum and the step count.  Never a noise key: resuming draws fresh noise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from dpml import results
from dpml.errors import ModelError
from dpml.sgd.clipping import Tensors, trainable

State = dict[str, Any]
STATE_FORMAT = "dpml-dp-sgd-state-1"
_PARTS = ("parameters", "momentum")


def initial_state(model: nn.Module, step: int = 0) -> State:
    """The state before step ``step`` with the model's own weights and no momentum.

    A state is ``{"step": charged steps, "parameters": {name: tensor}, "momentum": {name: tensor}}``.
    """
    parameters = {name: p.detach().clone() for name, p in trainable(model).items()}
    momentum = {
        name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for name, p in parameters.items()
    }
    return {"step": step, "parameters": parameters, "momentum": momentum}


def completed_state(start: Mapping[str, Any] | None, model: nn.Module, device: torch.device) -> State:
    """``start`` checked against the model; parts that it lacks (killed before the first checkpoint) start afresh.

    Raises:
        ModelError: names or shapes are not those of the model's trained parameters.
    """
    fresh = initial_state(model)
    if start is None:
        start = {}
    state: State = {"step": int(start.get("step", 0))}
    for part in _PARTS:
        given = start.get(part, fresh[part])
        if set(given) != set(fresh[part]) or any(given[k].shape != v.shape for k, v in fresh[part].items()):
            raise ModelError(f"the checkpoint's {part} are not those of this model: names or shapes differ.")
        state[part] = {k: given[k].detach().to(device=device, dtype=v.dtype, copy=True) for k, v in fresh[part].items()}
    return state


def snapshot(step: int, parameters: Tensors, momentum: Tensors) -> State:
    """A copy on the CPU that later steps do not change."""
    return {
        "step": step,
        "parameters": {name: p.detach().to("cpu", copy=True) for name, p in parameters.items()},
        "momentum": {name: m.detach().to("cpu", copy=True) for name, m in momentum.items()},
    }


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write ``state`` as safetensors, whole or not at all.  Belongs into ``private/``."""
    flat = {f"{part}/{name}": t.contiguous() for part in _PARTS for name, t in state[part].items()}
    results.write_atomic(path, save(flat, metadata={"format": STATE_FORMAT, "step": str(int(state["step"]))}))


def load_state(path: Path) -> State:
    """The state that :func:`save_state` wrote; ModelError if the file is damaged or something else."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != STATE_FORMAT:
                raise ModelError(f"{path} has format {header.get('format')!r}, this dpml reads {STATE_FORMAT!r}.")
            state: State = {"step": int(header["step"]), **{part: {} for part in _PARTS}}
            for key in file.keys():  # noqa: SIM118 (not a dict)
                part, name = key.split("/", 1)
                state[part][name] = file.get_tensor(key)
    except (SafetensorError, KeyError, OSError) as error:
        raise ModelError(f"{path} is not a readable checkpoint ({type(error).__name__}).") from error
    return state
