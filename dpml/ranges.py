"""Public ranges and choices of arguments, and the checks of them that need neither data nor torch.

One place for what the trainer, its configuration and the plans of the methods must agree on.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpml.errors import invalid

RELATIONS = ("add_remove", "replace_one")
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("linear", "constant", "cosine")
AVERAGINGS = ("none", "ema", "tail")
CLIPPINGS = ("flat", "per_layer", "automatic", "adaptive")
SAMPLINGS = ("poisson", "fixed_size")
GRADIENTS = ("auto", "per_example")

LIMITS: dict[str, tuple[float, float]] = {
    "epsilon": (1e-6, 1e4),
    "noise_multiplier": (1e-3, 1e6),  # below, ε passes every number: no private run
    "epochs": (1e-6, 1e6),
    "dataset_epsilon": (1e-6, 1e6),
    "dataset_delta": (1e-30, 1.0),
    "max_grad_norm": (1e-6, 1e6),
    "solution_norm": (1e-6, 1e9),
    "excess_risk": (1e-9, 1e9),
    "clip_learning_rate": (1e-6, 10.0),
    "count_noise": (1e-3, 1e9),
    "weight_decay": (0.0, 1e6),
    "averaging_share": (0.0, 1.0),
}
"""Public ranges: beyond them no run makes sense, and numbers overflow or calibration never ends."""

NORM_BOUNDS = (1e-6, 1e6)
"""Public range of norm_bound for every method: nothing that is made of a few norms leaves the range of floats, or that
of the events that are charged."""

MOST = {
    "steps": 10**7,
    "expected_batch_size": 10**9,
    "micro_batch_size": 10**9,
    "checkpoint_every": 10**7,
    "warmup_steps": 10**7 - 1,
}
"""Largest counts, for the same reason."""

HIGHEST_RATE = 1e6

SGD_OPTIONS: dict[str, object] = {
    "optimizer": "sgd",
    "betas": (0.9, 0.999),
    "bias_correction": True,
    "weight_decay": 0.0,
    "schedule": "linear",
    "warmup_steps": 0,
    "averaging": "none",
    "averaging_share": 0.5,
    "clipping": "flat",
    "target_quantile": 0.5,
    "clip_learning_rate": 0.2,
    "count_noise": None,
    "sampling": "poisson",
}
"""How ``dp_sgd`` clips, samples and steps, with the defaults."""

ADAPTIVE_ONLY = ("target_quantile", "clip_learning_rate", "count_noise")
ADAM_ONLY = ("betas", "bias_correction")


def check_sgd_options(
    options: Mapping[str, Any],
    *,
    neighboring_relation: str = "add_remove",
    momentum: float = 0.9,
    steps: int | None = None,
) -> None:
    """Names, ranges and exclusions of :data:`SGD_OPTIONS`; ConfigError for the first that is not allowed."""
    one_of("optimizer", options["optimizer"], OPTIMIZERS)
    one_of("schedule", options["schedule"], SCHEDULES)
    one_of("averaging", options["averaging"], AVERAGINGS)
    one_of("clipping", options["clipping"], CLIPPINGS)
    one_of("sampling", options["sampling"], SAMPLINGS)
    betas = options["betas"]
    two = isinstance(betas, tuple | list) and len(betas) == 2
    if not two or not all(is_number(beta) and 0 <= beta < 1 for beta in betas):
        raise invalid("betas", betas, "two numbers in [0, 1)")
    if not isinstance(options["bias_correction"], bool):
        raise invalid("bias_correction", options["bias_correction"], "true or false")
    if not (is_number(options["target_quantile"]) and 0 < options["target_quantile"] < 1):
        raise invalid("target_quantile", options["target_quantile"], "a number between 0 and 1, both excluded")
    for name in ("clip_learning_rate", "count_noise", "weight_decay", "averaging_share"):
        value, (low, high) = options[name], LIMITS[name]
        if not is_within(value, low, high) and not (value is None and name == "count_noise"):
            raise invalid(name, value, f"a number from {low:g} to {high:g}")
    if not is_count(options["warmup_steps"], 0, MOST["warmup_steps"]):
        raise invalid("warmup_steps", options["warmup_steps"], f"an integer from 0 to {MOST['warmup_steps']:,}")
    if steps is not None and options["warmup_steps"] >= steps:
        raise invalid("warmup_steps", options["warmup_steps"], f"below steps = {steps}", "Lower it.")
    _check_exclusions(options, momentum)
    if options["sampling"] == "fixed_size" and neighboring_relation != "replace_one":
        raise invalid(
            "sampling",
            "fixed_size",
            f"'poisson' with neighboring_relation={neighboring_relation!r}, under which the number of records is "
            "private (a sample of fixed size has no proof there)",
            "Use neighboring_relation='replace_one', or sampling='poisson'.",
        )


def _check_exclusions(options: Mapping[str, Any], momentum: float) -> None:
    """What was set although nothing would use it."""
    if options["clipping"] != "adaptive":
        _unused(options, ADAPTIVE_ONLY, f"clipping={options['clipping']!r}", "It belongs to clipping='adaptive'.")
    if options["optimizer"] == "sgd":
        _unused(options, ADAM_ONLY, "optimizer='sgd'", "It belongs to optimizer='adam' and 'adamw'.")
    elif momentum != 0.9:
        raise invalid(
            "momentum", momentum, f"left out with optimizer={options['optimizer']!r}", "Set betas: the first is it."
        )
    if options["optimizer"] == "adam":
        _unused(options, ("weight_decay",), "optimizer='adam'", "Use optimizer='adamw', whose decay is decoupled.")
    if options["averaging"] == "none":
        _unused(options, ("averaging_share",), "averaging='none'", "It belongs to averaging='ema' and 'tail'.")


def _unused(options: Mapping[str, Any], names: Sequence[str], because: str, way_out: str) -> None:
    for name in names:
        value = options[name]
        if (tuple(value) if isinstance(value, list) else value) != SGD_OPTIONS[name]:
            raise invalid(name, value, f"left out with {because}", way_out)


def check_norm_bound(norm_bound: object, more: str = "") -> None:
    """ConfigError unless the public bound on a record's norm is in ``NORM_BOUNDS``."""
    low, high = NORM_BOUNDS
    if not is_within(norm_bound, low, high):
        way_out = "Rescale the features by a public constant, and the bound with them."
        raise invalid("norm_bound", norm_bound, f"a number > 0 (from {low:g} to {high:g}){more}", way_out)


def one_of(name: str, value: object, allowed: Sequence[str], more: str = "") -> None:
    if not isinstance(value, str | bool | int | None) or value not in allowed:
        near = difflib.get_close_matches(value, allowed, 1, cutoff=0.75) if isinstance(value, str) else []
        raise invalid(name, value, "one of " + ", ".join(allowed) + more, f"Did you mean {near[0]!r}?" if near else "")


def is_number(value: object) -> bool:
    """A finite real number that a float can hold."""
    if not isinstance(value, int | float | np.number) or isinstance(value, bool | np.complexfloating):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # 10**400
        return False


def is_within(value: object, low: float, high: float) -> bool:
    return is_number(value) and low <= float(value) <= high  # type: ignore[arg-type]


def is_positive(value: object) -> bool:
    return is_number(value) and float(value) > 0  # type: ignore[arg-type]


def as_integer(value: Any) -> Any:
    """numpy's whole numbers as Python's; anything else as it is."""
    return int(value) if isinstance(value, np.integer) else value


def is_count(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
