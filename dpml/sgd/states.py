"""Checkpoints of DP-SGD: weights, the optimizer's parts, the clipping norm and the step count.

Never a noise key or a sampler's position: resuming draws fresh noise and fresh batches.  A checkpoint belongs into
``private/``, for it holds weights that were not published, but nothing in it is more than post-processing of charged
steps.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from dpml import results
from dpml.errors import ModelError
from dpml.sgd.optimizers import SCALARS, check_parts, initial_parts
from dpml.sgd.per_example import Tensors, trainable

if TYPE_CHECKING:
    from dpml.sgd.planning import DPSGDPlan

State = dict[str, Any]
STATE_FORMAT = "dpml-dp-sgd-state-2"
OLD_FORMATS = ("dpml-dp-sgd-state-1",)
_KEYS = {"step", "parameters", "optimizer", "clip"}
_PARTS = {"momentum", "second_moment", "average", SCALARS}


def initial_state(plan: DPSGDPlan, model: nn.Module, step: int = 0) -> State:
    """The state before step ``step`` with the model's own weights and an optimizer that has made no step.

    A state is ``{"step": charged steps, "parameters": Tensors, "optimizer": {part: Tensors}, "clip": C}``.
    """
    parameters = {name: p.detach().clone() for name, p in trainable(model).items()}
    return {
        "step": step,
        "parameters": parameters,
        "optimizer": initial_parts(plan, parameters),
        "clip": plan.max_grad_norm,
    }


def completed_state(start: Mapping[str, Any] | None, model: nn.Module, device: torch.device, plan: DPSGDPlan) -> State:
    """``start`` checked against model and plan, on ``device``; what it lacks (killed before the first checkpoint)
    starts afresh.

    Raises:
        ModelError: an unknown key, a step or clipping norm out of range, or names, shapes or optimizer parts that are
            not those of the model's trained parameters and the plan's optimizer.
    """
    fresh, given = initial_state(plan, model), dict(start or {})
    _refuse_unknown(given)
    state = {**fresh, **given}
    step, clip = state["step"], float(state["clip"])
    if isinstance(step, bool) or int(step) != step or step < 0:
        raise ModelError(f"the checkpoint's step is {step!r}; it must be a whole number >= 0.")
    if not (math.isfinite(clip) and clip > 0.0):
        raise ModelError(f"the checkpoint's clipping norm is {clip!r}; it must be a finite number > 0.")
    check_parts({"parameters": state["parameters"]}, {"parameters": fresh["parameters"]}, "the checkpoint")
    check_parts(state["optimizer"], fresh["optimizer"], "the checkpoint")
    parts = {
        part: _moved(state["optimizer"][part], wanted, torch.device("cpu") if part == SCALARS else device)
        for part, wanted in fresh["optimizer"].items()
    }
    parameters = _moved(state["parameters"], fresh["parameters"], device)
    return {"step": int(step), "parameters": parameters, "optimizer": parts, "clip": clip}


def _moved(given: Mapping[str, torch.Tensor], wanted: Tensors, device: torch.device) -> Tensors:
    return {k: given[k].detach().to(device=device, dtype=v.dtype, copy=True) for k, v in wanted.items()}


def snapshot(step: int, parameters: Tensors, optimizer: Mapping[str, Tensors], clip: float) -> State:
    """A copy on the CPU that later steps do not change; ``optimizer`` is ``Optimizer.state()``."""
    return {
        "step": step,
        "parameters": _copied(parameters),
        "optimizer": {part: _copied(tensors) for part, tensors in optimizer.items()},
        "clip": clip,
    }


def _copied(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}


def _refuse_unknown(state: Mapping[str, Any]) -> None:
    """Nothing but what a state is made of: no key, no generator."""
    unknown = sorted(set(state) - _KEYS) + sorted(set(state.get("optimizer", {})) - _PARTS)
    if unknown:
        raise ModelError(
            f"a state of DP-SGD has no {', '.join(map(repr, unknown))}; it holds {', '.join(sorted(_KEYS))}."
        )


def save_state(path: Path, state: Mapping[str, Any], *, run: str = "") -> None:
    """Write ``state`` as safetensors, whole or not at all, for the owner's eyes only.  Belongs into ``private/``.

    A name beside ``path`` (``.NAME.tmp``) is written first; a crash may leave it there, and the next call writes over
    it.  One process at a time.

    Args:
        run: marks whose checkpoint this is; :func:`load_state` refuses another run's.

    Raises:
        ModelError: something in it that a state does not have.
        OSError: of the disk; the checkpoint that was there is left as it was.
    """
    _refuse_unknown(state)
    flat = dict(_flat(state))
    header = {"format": STATE_FORMAT, "step": str(int(state["step"])), "clip": float(state["clip"]).hex(), "run": run}
    write_private(path, save(flat, metadata={**header, "sha256": _digest(header, flat)}))


def write_private(path: Path, data: bytes) -> None:
    """Write ``data`` (mode 0600) so that after a crash ``path`` holds the old content or the new one, never a part.

    The data are on disk before the name is moved, and the move before this returns.  OSError passes through.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # of a killed process; its mode may be another
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    results.sync_folder(path.parent)


def load_state(path: Path, *, run: str | None = None) -> State:
    """The state that :func:`save_state` wrote.

    Args:
        run: the run that it must have been written for; None takes any.

    Raises:
        ModelError: the file is damaged (a digest of every value is checked), of another run (whose weights would be
            published under this run's charges), of an older dpml, or something else.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
            _check_format(path, str(header.get("format")))
            flat = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        if header.pop("sha256", None) != _digest(header, flat):
            raise ModelError(f"{path} is not a readable checkpoint (its content does not match its digest).")
        if run is not None and header["run"] != run:
            raise ModelError(f"{path} is the checkpoint of another run.")
        state: State = {"step": int(header["step"]), "clip": float.fromhex(header["clip"])}
        state |= {"parameters": {}, "optimizer": {}}
        for key, value in flat.items():
            group, rest = key.split("/", 1)
            if group == "parameters":
                state["parameters"][rest] = value
            else:
                part, name = rest.split("/", 1)
                state["optimizer"].setdefault(part, {})[name] = value
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path} is not a readable checkpoint ({type(error).__name__}).") from error
    _refuse_unknown(state)
    return state


def _check_format(path: Path, found: str) -> None:
    if found in OLD_FORMATS:
        raise ModelError(
            f"{path} has format {found!r}, of an earlier dpml; this one reads {STATE_FORMAT!r}. Finish the run with "
            "the dpml that started it, or start a new run (what the old one charged stays spent)."
        )
    if found != STATE_FORMAT:
        raise ModelError(f"{path} has format {found!r}, this dpml reads {STATE_FORMAT!r}.")


def _flat(state: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in state["parameters"].items():
        yield f"parameters/{name}", value.contiguous()
    for part, tensors in state["optimizer"].items():
        for name, value in tensors.items():
            yield f"optimizer/{part}/{name}", value.contiguous()


def _digest(header: Mapping[str, str], flat: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of names, shapes, dtypes and bytes."""
    digest = hashlib.sha256(repr(sorted((k, header[k]) for k in ("format", "step", "clip", "run"))).encode())
    for key in sorted(flat):
        value = flat[key].detach().cpu()
        digest.update(f"{key} {tuple(value.shape)} {value.dtype}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
