"""Which linear model goes with which method, and how: the table behind ``PrivateTrainer`` for everything without torch.

A model is a loss (its constants and assumptions: ``dpml.erm.losses``), a method is a theorem with a calibrated plan.
What no theorem covers is refused here, naming the assumption that fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dpml import erm
from dpml.accounting import Event
from dpml.data import PublicInfo, Records
from dpml.erm.losses import GlmLoss, make_loss
from dpml.errors import ConfigError, invalid
from dpml.mechanisms import NoiseSource

if TYPE_CHECKING:
    from dpml.trainer import PrivateTrainer

LOSS_OF = {
    "logreg": "logistic",
    "softmax": "softmax",
    "linear_svm": "smoothed_hinge",
    "ridge": "squared",
    "huber": "huber",
}
REGRESSION = ("ridge", "huber")
PARAMETER_OF = {"linear_svm": "width of the smoothed corner", "huber": "threshold in units of half the target range"}
METHODS_OF: dict[str, tuple[str, ...]] = {
    "logreg": ("objective", "dp_gd", "output", "dp_sgd"),
    "softmax": ("dp_gd", "output", "dp_sgd"),
    "linear_svm": ("objective", "dp_gd", "output"),
    "ridge": ("adassp", "output", "dp_gd", "dp_sgd"),
    "huber": ("objective", "dp_gd", "output", "dp_sgd"),
    "mlp": ("dp_sgd",),
}
"""Methods with a proof for each model; the first is what ``"auto"`` takes."""

REGRESSION_NORM = 5.0
"""R where none is given, for a target scaled to [−1, 1]; ``adassp`` and ridge's ``output`` have their own."""

MOST_FEATURES = 20_000
"""Largest d of methods that hold a dense d × d matrix (3.2 GB)."""

LINEAR_METHODS = ("objective", "output", "dp_gd", "adassp")
VARIANTS: dict[str, tuple[str, ...]] = {
    "objective": erm.OBJECTIVE_VARIANTS,
    "output": ("default", "pure"),
    "adassp": ("default", "adassp"),
}
ALL_VARIANTS = tuple(dict.fromkeys(name for names in VARIANTS.values() for name in names))

WHY_NOT = {
    (
        "softmax",
        "objective",
    ): "its proof assumes a loss of one score (a Hessian of rank one per record), and softmax's has "
    "rank K - 1. Use model='logreg', which trains one problem a class, or method='dp_gd'.",
    (
        "ridge",
        "objective",
    ): "its proof assumes that a record's gradient is bounded over all θ, and squared loss's is not. "
    "Use model='huber', or method='adassp', 'output' (which minimises over a ball) or 'dp_gd' (which clips).",
}


def is_pure(method: str, variant: str) -> bool:
    """Whether the method's noise gives δ = 0."""
    return method in ("objective", "output") and variant in erm.PURE_VARIANTS


def check_pair(model: str, method: str) -> None:
    """ConfigError where no theorem covers the model with the method, naming the assumption."""
    if method in ("auto", "nonprivate") or method in METHODS_OF.get(model, ("dp_sgd",)):
        return
    known = METHODS_OF.get(model)
    why = WHY_NOT.get((model, method))
    if why is None and method == "adassp":
        why = "its proof is for the sufficient statistics of squared loss. Use model='ridge'."
    elif why is None and (known is None or model == "mlp"):
        why = "its proof needs a convex loss of a linear model. Use method='dp_sgd'."
    elif why is None:
        why = f"no proof of this package covers the pair. Methods for it: {', '.join(known or ())}."
    raise ConfigError(f"method = {method!r} with model = {model!r} is refused: {why}")


def check_linear(trainer: PrivateTrainer, public: PublicInfo, method: str) -> None:
    """What the declared data must have; nothing is read."""
    if public.norm_bound is None:
        raise ConfigError(f"method = {method!r} needs norm_bound, a public bound on the L2 norm of a record.")
    if public.n_features > MOST_FEATURES and (method == "adassp" or (trainer.model, method) == ("ridge", "output")):
        raise ConfigError(
            f"method = {method!r} with model = {trainer.model!r} makes a matrix of n_features × n_features, and the "
            f"data have {public.n_features:,} features: up to {MOST_FEATURES:,} are allowed. Use method='dp_gd', which "
            "needs none."
        )
    if trainer.model == "linear_svm" and len(public.classes) > 2 and method == "dp_gd":
        raise _two_classes(trainer, public, "method='objective' or 'output' trains one problem a class")
    if trainer.model == "logreg" and len(public.classes) > 2 and method == "dp_gd":
        raise _two_classes(trainer, public, "Use model='softmax'")


def _two_classes(trainer: PrivateTrainer, public: PublicInfo, way_out: str) -> ConfigError:
    return ConfigError(
        f"model = {trainer.model!r} with this method needs two classes, the data declare {len(public.classes)}. "
        f"{way_out}."
    )


def plan_linear(
    trainer: PrivateTrainer,
    public: PublicInfo,
    method: str,
    epsilon: float | None,
    delta: float,
    run_of: Callable[[Event], Event] | None = None,
) -> Any:
    """The method's frozen plan; ``run_of`` (``dp_gd`` only): the event that the budget is for, from the training's."""
    model = str(trainer.model)
    common: dict[str, Any] = {
        "n_declared": public.n_declared,
        "n_features": public.n_features,
        "epsilon": epsilon,
        "delta": delta,
        "neighboring_relation": trainer.neighboring_relation,
        "norm_bound": public.norm_bound,
        "accountant": trainer.accountant,
    }
    if trainer.solution_norm != "auto":
        common["solution_norm"] = trainer.solution_norm
    elif model in REGRESSION and method != "adassp" and not (model == "ridge" and method == "output"):
        common["solution_norm"] = REGRESSION_NORM
    classes = max(2, len(public.classes))
    if method == "dp_gd":
        if trainer.regularization != "auto":  # 0 is allowed here: the steps are bounded without
            common["regularization"] = float(trainer.regularization)
        return erm.plan_dp_gd(
            **common,
            loss=_descent_loss(model, trainer.loss_parameter, classes, common.get("solution_norm")),
            max_grad_norm=None if model != "ridge" and trainer.max_grad_norm == 1.0 else trainer.max_grad_norm,
            steps=trainer.steps,
            learning_rate=trainer.learning_rate,  # type: ignore[arg-type]
            momentum=trainer.momentum,
            run_of=run_of,
        )
    common["regularization"] = trainer.regularization
    if method == "adassp":
        if trainer.variant == "adassp":
            common["variant"] = "adassp"
        return erm.plan_adassp(**common)
    if model == "ridge":
        return erm.plan_output_ridge(**common)
    common |= {"loss": LOSS_OF[model], "loss_parameter": trainer.loss_parameter, "n_classes": classes}
    if method == "output":
        return erm.plan_output(**common, noise="gamma" if trainer.variant == "pure" else "gaussian")
    return erm.plan_objective(**common, variant=trainer.variant)


def _descent_loss(model: str, parameter: float | None, n_classes: int, solution_norm: float | None) -> Any:
    if model == "softmax":
        return erm.Softmax(n_classes)
    if model == "ridge":
        return make_loss("squared", solution_norm)
    return make_loss(LOSS_OF[model], parameter)


def descent_norm(trainer: PrivateTrainer) -> float:
    """R of ``dp_sgd``'s rate rule."""
    if trainer.solution_norm != "auto":
        return float(trainer.solution_norm)
    return REGRESSION_NORM if trainer.model in REGRESSION else 15.0


def clipping_norm(trainer: PrivateTrainer, public: PublicInfo) -> float:
    """C of ``dp_sgd``: Huber loss has gradients of norm ``threshold``·R at most; a larger C would only add noise."""
    if trainer.model != "huber" or public.norm_bound is None:
        return trainer.max_grad_norm
    return min(trainer.max_grad_norm, make_loss("huber", trainer.loss_parameter).constants(public.norm_bound).lipschitz)


def targets_of(model: str, records: Records, n_classes: int) -> np.ndarray:
    """Targets as the losses take them: ±1 for two classes, indexes for more and for softmax, numbers for regression."""
    if model in REGRESSION or model == "softmax" or n_classes > 2:
        return records.y
    return 2.0 * records.y - 1.0


def fit_linear(
    parameters: Any,
    model: str,
    method: str,
    records: Records,
    n_classes: int,
    *,
    noise: NoiseSource,
    charge: Callable[[Event], None],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """The private weight, ``(d,)`` or ``(K, d)``, and private notes; the event is charged before a record is used."""
    y = targets_of(model, records, n_classes)
    if method == "dp_gd":
        return erm.fit_dp_gd(parameters, records.X, y, noise=noise, charge=charge, progress=progress)
    fit: Callable[..., tuple[np.ndarray, dict[str, Any]]]
    if method == "adassp":
        fit = erm.fit_adassp
    elif model == "ridge":
        fit = erm.fit_output_ridge
    else:
        fit = erm.fit_output if method == "output" else erm.fit_objective
    theta, notes = fit(parameters, records.X, y, noise=noise, charge=charge)
    if progress is not None:
        progress(1, 1)
    return theta, notes


def fit_linear_nonprivate(
    model: str, records: Records, n_classes: int, loss_parameter: float | None = None
) -> np.ndarray:
    """The same linear model without privacy, for public data only; weight ``(d,)`` or ``(K, d)``."""
    if model == "ridge":
        return erm.fit_nonprivate(records.X, records.y, loss=make_loss("squared"))
    loss: GlmLoss = make_loss(LOSS_OF[model], loss_parameter)
    if n_classes <= 2:
        return erm.fit_nonprivate(records.X, targets_of(model, records, n_classes), loss=loss)
    signs = [np.where(records.y == k, 1.0, -1.0) for k in range(n_classes)]
    return np.stack([erm.fit_nonprivate(records.X, y, loss=loss) for y in signs])


def linear_assumption(model: str, method: str) -> str:
    """What the proof takes for granted, one line."""
    if method == "objective":
        name = LOSS_OF[model].replace("_", " ")
        return f"{name} loss with the intercept inside the clipped row; exact-arithmetic proof, verified minimum"
    if method == "output":
        return "convex loss, strongly convex objective with the intercept inside it; verified minimum"
    if method == "dp_gd":
        return "every step uses all records; the bound on one record's gradient holds for every θ"
    return "targets and rows are held to their public bounds"


def check_variant(trainer: PrivateTrainer, method: str) -> None:
    """``variant`` and ``loss_parameter`` are for some methods and models only."""
    allowed = VARIANTS.get(method, ("default",))
    if trainer.variant not in allowed:
        raise invalid("variant", trainer.variant, f"one of {', '.join(allowed)} with method={method!r}")
    if trainer.model == "ridge" and method == "output" and trainer.variant != "default":
        raise invalid("variant", trainer.variant, "'default' with model='ridge' and method='output'")
    if trainer.loss_parameter is not None:
        if trainer.model not in PARAMETER_OF:
            takers = ", ".join(f"{model} ({what})" for model, what in PARAMETER_OF.items())
            raise invalid("loss_parameter", trainer.loss_parameter, f"left out, or model one of: {takers}")
        if not math.isfinite(trainer.loss_parameter):
            raise invalid("loss_parameter", trainer.loss_parameter, "a finite number > 0")
        make_loss(LOSS_OF[str(trainer.model)], trainer.loss_parameter)  # in its range?
