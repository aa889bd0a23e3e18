"""Checks of the trainer's arguments that need no data; each refusal names argument, value, what is allowed, way out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from dpml.accounting.dataset_ledger import CAP_FILTERS
from dpml.erm import PURE_VARIANTS
from dpml.errors import ConfigError, invalid, shown
from dpml.linear_methods import ALL_VARIANTS
from dpml.ranges import (
    GRADIENTS,
    LIMITS,
    MOST,
    RELATIONS,
    SGD_OPTIONS,
    check_sgd_options,
    is_count,
    is_number,
    is_positive,
    is_within,
    one_of,
)
from dpml.stages import check_shares

if TYPE_CHECKING:
    from dpml.trainer import PrivateTrainer

MODELS = ("logreg", "softmax", "linear_svm", "ridge", "huber", "mlp")
METHODS = ("dp_sgd", "output", "objective", "dp_gd", "adassp", "auto", "nonprivate")
ACCOUNTANTS = ("best", "exact", "pld", "rdp", "zcdp")
DEVICES = ("auto", "cpu", "cuda")

__all__ = ["LIMITS", "check_arguments", "check_noise_source", "foreign_arguments", "is_number", "is_positive", "one_of"]


def check_arguments(trainer: PrivateTrainer) -> None:
    """Names, ranges and exclusions of all arguments; ConfigError for the first that is not allowed."""
    for name, value in vars(trainer).items():
        if isinstance(value, np.ndarray):
            raise invalid(name, value, "one value, not an array")
    if isinstance(trainer.model, str):
        one_of("model", trainer.model, MODELS, " or a torch.nn.Module")
    one_of("method", trainer.method, METHODS)
    one_of("neighboring_relation", trainer.neighboring_relation, RELATIONS)
    one_of("accountant", trainer.accountant, ACCOUNTANTS)
    one_of("device", trainer.device, DEVICES)
    if trainer.loss is not None and not callable(trainer.loss):
        raise invalid("loss", trainer.loss, "a function loss(logits, targets) -> (B,), one loss per record, or None")
    if trainer.run_dir is not None and not isinstance(trainer.run_dir, str | os.PathLike):
        raise invalid("run_dir", trainer.run_dir, "a path, or None for a run in memory")
    if trainer.epsilon is not None and trainer.noise_multiplier is not None:
        raise ConfigError(
            f"epsilon = {shown(trainer.epsilon)} and noise_multiplier = {shown(trainer.noise_multiplier)} exclude each "
            "other: give the budget and the noise follows, or give the noise and the budget follows."
        )
    if trainer.epsilon is not None and not is_within(trainer.epsilon, *LIMITS["epsilon"]):
        way_out = "For a run without privacy use method='nonprivate'."
        raise invalid("epsilon", trainer.epsilon, "a finite number > 0 (from 1e-6 to 1e4)", way_out)
    one_of("variant", trainer.variant, ALL_VARIANTS)
    pure = trainer.variant in PURE_VARIANTS
    if trainer.delta is not None and pure and not (is_number(trainer.delta) and trainer.delta == 0):
        raise invalid(
            "delta", trainer.delta, f"0 with variant={trainer.variant!r}, which is pure ε-DP", "Leave it out."
        )
    if trainer.delta is not None and not pure and not (is_number(trainer.delta) and 0 < trainer.delta < 1):
        raise invalid("delta", trainer.delta, "> 0 and < 1/n_declared", "Leave it out for min(1e-5, 0.1/n_declared).")
    if trainer.solution_norm != "auto" and not is_within(trainer.solution_norm, *LIMITS["solution_norm"]):
        raise invalid("solution_norm", trainer.solution_norm, '"auto" or a finite number > 0 (from 1e-6 to 1e9)')
    if trainer.loss_parameter is not None and not is_positive(trainer.loss_parameter):
        raise invalid("loss_parameter", trainer.loss_parameter, "a finite number > 0, or left out")
    if trainer.steps is not None and trainer.epochs is not None:
        both = f"steps = {shown(trainer.steps)} and epochs = {shown(trainer.epochs)}"
        raise ConfigError(f"{both} exclude each other: give one.")
    for name in ("noise_multiplier", "epochs", "dataset_epsilon", "dataset_delta", "max_grad_norm",
                 "excess_risk"):  # fmt: skip
        value, (low, high) = getattr(trainer, name), LIMITS[name]
        if value is not None and not is_within(value, low, high):
            raise invalid(name, value, f"a finite number > 0 (from {low:g} to {high:g})")
    for name in ("steps", "expected_batch_size", "micro_batch_size", "checkpoint_every"):
        value, automatic = getattr(trainer, name), name == "micro_batch_size"
        if value is None or (automatic and value == "auto"):
            continue
        if not is_count(value, 1, MOST[name]):
            raise invalid(name, value, ('"auto" or ' if automatic else "") + f"an integer from 1 to {MOST[name]:,}")
    for name in ("learning_rate", "regularization"):
        value = getattr(trainer, name)
        free = name == "regularization" and trainer.method == "dp_gd" and is_number(value) and value == 0
        if value != "auto" and not is_positive(value) and not free:
            raise invalid(name, value, '"auto" or a finite number > 0')
    if not (is_number(trainer.momentum) and 0 <= trainer.momentum < 1):
        raise invalid("momentum", trainer.momentum, "a number in [0, 1)")
    check_sgd_options(
        {name: getattr(trainer, name) for name in SGD_OPTIONS},
        neighboring_relation=trainer.neighboring_relation,
        momentum=trainer.momentum,
        steps=trainer.steps,
    )
    _check_shares(trainer)
    check_noise_source(trainer.noise_source)
    for name in ("secure_noise", "enforce_guidance", "compare_nonprivate"):
        if not isinstance(getattr(trainer, name), bool):
            raise invalid(name, getattr(trainer, name), "true or false")
    one_of("gradients", trainer.gradients, GRADIENTS)
    if not isinstance(trainer.seed, int) or isinstance(trainer.seed, bool) or not 0 <= trainer.seed < 2**63:
        raise invalid("seed", trainer.seed, "an integer from 0 to 2^63 - 1")
    if (
        not isinstance(trainer.hidden, tuple)
        or not trainer.hidden
        or any(isinstance(w, bool) or not isinstance(w, int) or not 1 <= w <= 65_536 for w in trainer.hidden)
    ):
        raise invalid("hidden", trainer.hidden, "one or more integers ≥ 1 (up to 65536)")
    caps = (trainer.dataset_epsilon, trainer.dataset_delta)
    if not isinstance(trainer.dataset_ledger, str | os.PathLike | None):
        raise invalid("dataset_ledger", trainer.dataset_ledger, "the name of a file, or left out")
    if trainer.dataset_ledger is not None and None in caps:
        raise ConfigError(
            f"dataset_ledger = {str(trainer.dataset_ledger)!r} needs a cap: set dataset_epsilon and dataset_delta, the "
            "most that all runs on this data set may spend together."
        )
    if not isinstance(trainer.assumptions, tuple) or not all(isinstance(n, str) and n for n in trainer.assumptions):
        raise invalid("assumptions", trainer.assumptions, "a list of sentences")
    one_of("dataset_filter", trainer.dataset_filter, CAP_FILTERS)
    if trainer.dataset_ledger is None and (caps != (None, None) or trainer.dataset_filter != "basic"):
        raise ConfigError(
            "dataset_epsilon and dataset_delta are the cap of a dataset_ledger, dataset_filter its rule: name its file."
        )


def _check_shares(trainer: PrivateTrainer) -> None:
    trainer.shares = check_shares(trainer.shares) or None
    if trainer.shares and trainer.noise_multiplier is not None:
        raise invalid(
            "shares",
            trainer.shares,
            "left out with noise_multiplier: they are parts of epsilon",
            "Give epsilon instead.",
        )


def check_noise_source(source: object) -> None:
    """ConfigError unless ``source`` is ``None`` or has what the engines ask of a source of noise."""
    if source is not None and not all(hasattr(source, name) for name in ("normal", "uniform", "secret")):
        raise invalid(
            "noise_source",
            source,
            "None, or an object with normal, uniform and secret",
            "It is for tests: leave it out.",
        )


HIDDEN = (64,)  # widths of the hidden layers of "mlp"
DESCENT = ("max_grad_norm", "steps", "learning_rate", "momentum")
"""Arguments that ``dp_gd`` shares with ``dp_sgd``."""

DP_SGD_ONLY: dict[str, object] = {
    "noise_multiplier": None,
    "max_grad_norm": 1.0,
    "expected_batch_size": None,
    "steps": None,
    "epochs": None,
    "learning_rate": "auto",
    "momentum": 0.9,
    "micro_batch_size": None,
    "checkpoint_every": None,
    **SGD_OPTIONS,
    "secure_noise": True,
    "gradients": "auto",
}
"""Arguments that only ``dp_sgd`` has, with their defaults."""


def foreign_arguments(trainer: PrivateTrainer, method: str) -> list[str]:
    """Arguments that were set although ``method`` has no use for them."""
    if method == "dp_sgd":
        foreign: dict[str, object] = {"regularization": "auto"}
    elif method == "nonprivate":
        foreign = {**DP_SGD_ONLY, "regularization": "auto"}
    elif method == "dp_gd":
        foreign = {name: default for name, default in DP_SGD_ONLY.items() if name not in DESCENT} | {"loss": None}
    else:
        foreign = {**DP_SGD_ONLY, "loss": None}
    return [name for name, default in foreign.items() if getattr(trainer, name) != default]
