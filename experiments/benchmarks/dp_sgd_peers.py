"""A step of opake or of jax-privacy on the models of the DP-SGD benchmark, in a Python that has them; no dpml here.

``dp_sgd.py --peers PYTHON`` starts this file with that Python, once for each competitor and model:

    PYTHON dp_sgd_peers.py COMPETITOR MODEL SIZE THREADS SUMS

It takes the weights and the batch that everybody has (:mod:`dp_sgd_models`), writes the clipped sums of the batch
without noise to SUMS (``.npz``, by the parameters' names), takes one step, and says ``ready VERSION``.  From then on it
takes one step for every line that it reads, and answers with a line when the step is done.  So the competitors take
turns though each has a process.

Both libraries run every record by itself, together by vmap: opake in torch, jax-privacy in a function that is compiled
by XLA as a whole, update and noise included.  Each comes in two ways, with all records at once and in micro-batches of
:data:`MICRO`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from dp_sgd_models import MOMENTUM, NORM, PLAIN, RATE, SIGMA, TASKS, Task, plain_step

MICRO = 64
LIBRARIES = {"opake": "opake.dpsgd", "jax-privacy": "jax_privacy"}
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Racer:
    """A competitor's step, and its clipped sums without noise by the parameters' names."""

    step: Callable[[], None]
    sums: Callable[[], Mapping[str, Any]]


def ways(library: str) -> tuple[str, ...]:
    """The ways in which a library is run."""
    return (library, f"{library}, micro-batches of {MICRO}")


def installed() -> list[str]:
    """Those of the libraries that this Python finds."""
    found = []
    for library, module in LIBRARIES.items():
        try:
            there = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:  # of the package around it
            there = False
        found += [library] if there else []
    return found


def version_of(library: str) -> str:
    """Name and version."""
    return f"{library} {importlib.metadata.version(library)}"


def opake_racer(task: Task, size: int, micro: int | None) -> Racer:
    """opake's clipped gradients and noise, and heavy-ball momentum by torch's ``foreach`` functions."""
    clipping, noising, random = (
        importlib.import_module(f"opake.{n}") for n in ("dpsgd.clipping", "dpsgd.noise", "random")
    )
    model, (X, y) = task.model(), task.batch(size)
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}

    def loss(weights: dict[str, torch.Tensor], row: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(model, weights, (row[None],))
        return F.cross_entropy(logits, target[None])

    gradient, clip_state = clipping.clipped_grad(
        loss, clipping_norm=NORM, batch_argnums=(1, 2), normalize_by=1.0, microbatch_size=micro
    )
    noise, noise_state = noising.gaussian_noise(noise_multiplier=SIGMA, key=random.key(int.from_bytes(os.urandom(4))))
    states = {"clip": clip_state, "noise": noise_state}

    def clipped() -> Any:
        found, states["clip"] = gradient(parameters, X, y, state=states["clip"])
        return found

    def step() -> None:
        noisy, states["noise"] = noise(clipped(), states["noise"])
        means = [noisy.pytree[name] / size for name in parameters]
        with torch.no_grad():
            moved = list(velocity.values())
            torch._foreach_mul_(moved, MOMENTUM)
            torch._foreach_add_(moved, means)
            torch._foreach_add_(list(parameters.values()), moved, alpha=-RATE)

    return Racer(step, lambda: {name: value.detach().numpy() for name, value in clipped().pytree.items()})


def jax_racer(task: Task, size: int, micro: int | None) -> Racer:
    """jax-privacy's clipped gradients and noise with optax' SGD, compiled together."""
    import jax
    import optax
    from jax_privacy import clipping, noise_addition

    if task.name not in LOGITS:
        raise NotImplementedError("torch's own layers are not written in jax here")
    model, (rows, targets) = task.model(), task.batch(size)
    weights = {name: jax.numpy.asarray(p.detach().numpy()) for name, p in model.named_parameters()}
    X, y = jax.numpy.asarray(rows.numpy()), jax.numpy.asarray(targets.numpy().astype(np.int32))
    logits = LOGITS[task.name]

    def loss(parameters: dict[str, Any], row: Any, target: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(logits(parameters, row), target)

    clipped = clipping.clipped_grad(
        loss, l2_clip_norm=NORM, batch_argnums=(1, 2), keep_batch_dim=False, microbatch_size=micro
    )
    key = jax.random.key(int.from_bytes(os.urandom(4)))
    privatizer = noise_addition.gaussian_privatizer(stddev=SIGMA * NORM, prng_key=key)
    optimizer = optax.sgd(RATE, momentum=MOMENTUM)

    def updated(parameters: Any, noise: Any, state: Any) -> Any:
        noisy, noise = privatizer.update(clipped(parameters, X, y), noise, parameters)
        change, state = optimizer.update(jax.tree.map(lambda g: g / size, noisy), state, parameters)
        return optax.apply_updates(parameters, change), noise, state

    compiled = jax.jit(updated, donate_argnums=(0, 1, 2))
    now = [jax.tree.map(jax.numpy.copy, weights), privatizer.init(weights), optimizer.init(weights)]

    def step() -> None:
        now[:] = compiled(*now)
        jax.block_until_ready(now)

    return Racer(step, lambda: {name: np.asarray(value) for name, value in jax.jit(clipped)(weights, X, y).items()})


def _linear(p: Mapping[str, Any], name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def _logistic(p: Mapping[str, Any], x: Any) -> Any:
    return x @ p["weight"].T + p["bias"]


def _mlp(p: Mapping[str, Any], x: Any) -> Any:
    import jax.numpy as jnp

    return _linear(p, "4", jnp.tanh(_linear(p, "2", jnp.tanh(_linear(p, "0", x)))))


def _cnn(p: Mapping[str, Any], x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def block(name: str, x: Any, padding: int) -> Any:
        pads = [(padding, padding)] * 2
        y = jax.lax.conv_general_dilated(
            x, p[f"{name}.weight"], (2, 2), pads, dimension_numbers=("NCHW", "OIHW", "NCHW")
        )
        y = jnp.tanh(y + p[f"{name}.bias"][:, None, None])
        return jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 1, 1), "VALID")

    flat = block("3", block("0", x[None], 3), 0).reshape(-1)
    return _linear(p, "9", jnp.tanh(_linear(p, "7", flat)))


def _transformer(p: Mapping[str, Any], tokens: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def norm(name: str, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
        return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]

    def heads(x: Any) -> Any:
        return x.reshape(x.shape[0], 4, -1).transpose(1, 0, 2)

    def attention(name: str, x: Any) -> Any:
        q, k, v = (heads(_linear(p, f"{name}.{part}", x)) for part in ("query", "key", "value"))
        scores = jax.nn.softmax(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]), axis=-1)
        return _linear(p, f"{name}.out", (scores @ v).transpose(1, 0, 2).reshape(x.shape))

    x = p["token.weight"][tokens] + p["position.weight"][: tokens.shape[0]]
    for block in ("blocks.0", "blocks.1"):
        x = x + attention(f"{block}.attention", norm(f"{block}.norm1", x))
        wide = jax.nn.gelu(_linear(p, f"{block}.wide", norm(f"{block}.norm2", x)), approximate=False)
        x = x + _linear(p, f"{block}.narrow", wide)
    return _linear(p, "head", x.mean(0))


LOGITS = {"logistic": _logistic, "mlp": _mlp, "cnn": _cnn, "transformer": _transformer}


def plain_racer(task: Task, size: int) -> Racer:
    """Plain PyTorch in a process of its own: what the process itself costs, and for tests."""
    return Racer(plain_step(task, size).run, dict)


def racer_of(competitor: str, task: Task, size: int) -> Racer:
    """By a name of :func:`ways`, or plain PyTorch's."""
    if competitor == PLAIN:
        return plain_racer(task, size)
    library, _, small = competitor.partition(", ")
    micro = min(MICRO, size) if small else None
    return opake_racer(task, size, micro) if library == "opake" else jax_racer(task, size, micro)


def main() -> None:
    """See the module's head."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    competitor, model, size, threads, sums = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):  # XLA takes as many threads as there are processors
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
    torch.set_num_threads(int(threads))
    racer = racer_of(competitor, next(task for task in TASKS if task.name == model), int(size))
    np.savez(sums, **{name: np.asarray(value, dtype=np.float64) for name, value in racer.sums().items()})
    racer.step()
    library = competitor.partition(", ")[0]
    print("ready", version_of("torch" if competitor == PLAIN else library), file=answers, flush=True)
    for _ in sys.stdin:
        racer.step()
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--installed"]:
        print("\n".join(installed()))
    else:
        main()
