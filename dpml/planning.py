"""From a trainer's arguments and the data's public knowledge to a frozen plan; no record is read here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpml import accounting
from dpml.accounting import Event, NonPrivate, Trajectory
from dpml.accounting.sample_size import guidance as sample_size_guidance
from dpml.arguments import HIDDEN, foreign_arguments
from dpml.data import PublicInfo
from dpml.data.public_whitening import whitening_assumptions
from dpml.errors import ConfigError, invalid, misplaced
from dpml.linear_methods import (
    LINEAR_METHODS,
    METHODS_OF,
    REGRESSION,
    VARIANTS,
    check_linear,
    check_pair,
    check_variant,
    clipping_norm,
    descent_norm,
    is_pure,
    linear_assumption,
    plan_linear,
)
from dpml.processes import refuse_fixed_size, refuse_several, world_size
from dpml.ranges import SGD_OPTIONS, check_norm_bound
from dpml.results import Guarantee
from dpml.runs import Plan
from dpml.stages.planning import Stages, check_shares, largest_training, plan_stages

if TYPE_CHECKING:
    import torch

    from dpml.trainer import PrivateTrainer

TRAJECTORY_POINTS = 20
AUTO_REASON = {
    "objective": "auto: one release, nothing to tune, for a linear model",
    "dp_gd": "auto: full-batch steps, nothing to tune, for a linear model",
    "adassp": "auto: one release of sufficient statistics, for linear regression",
}
SAMPLING_ASSUMPTIONS = {
    "poisson": "every batch was drawn by secret independent coins (Poisson sampling)",
    "fixed_size": "every batch was a secret uniform sample without replacement of the declared size, and the table "
    "holds exactly n_declared records, a public number",
}


@dataclass(frozen=True)
class NonPrivatePlan:
    """Nothing to plan: no noise, no budget."""


def check_method(trainer: PrivateTrainer) -> None:
    """What is wrong without any data: arguments of another method, a model that the method cannot train, the device."""
    method = method_of(trainer)
    own = not isinstance(trainer.model, str)
    if (own or trainer.model != "mlp") and trainer.hidden != HIDDEN:
        shown = type(trainer.model).__name__ if own else repr(trainer.model)
        raise invalid("hidden", trainer.hidden, f"left out with model={shown}", "It belongs to 'mlp'.")
    for name in foreign_arguments(trainer, method):
        way_out = "Give epsilon instead." if name == "noise_multiplier" else "It belongs to another method."
        raise invalid(name, getattr(trainer, name), f"left out with method={method!r}", way_out)
    check_pair(model_name(trainer), method)
    check_variant(trainer, method)
    if not isinstance(trainer.model, str):
        from dpml.sgd import check_model

        check_model(trainer.model)
    device = device_of(trainer)
    if not trainer.secure_noise and device == "cpu":
        raise invalid(
            "secure_noise",
            False,
            f"true on the CPU (device={trainer.device!r} here): only a CUDA device's generator can stand in for the "
            "secret noise",
            "Leave it out.",
        )


def method_of(trainer: PrivateTrainer, public: PublicInfo | None = None) -> str:
    """The method that ``"auto"`` stands for: the first with a proof for the model and a use for all arguments given.

    ``public``: the data's declarations, where they are known; several classes rule some methods out.
    """
    if trainer.method != "auto":
        return trainer.method
    several = public is not None and len(public.classes) > 2
    methods = METHODS_OF.get(trainer.model, ("dp_sgd",)) if isinstance(trainer.model, str) else ("dp_sgd",)
    if methods[0] == "objective" and trainer.neighboring_relation == "replace_one" and (trainer.epsilon or 1.0) <= 4:
        # no free Jacobian there: on Adult and Census-Income dp_gd is 0.1 to 0.4 points ahead; above, its rate is capped
        methods = ("dp_gd", *(method for method in methods if method != "dp_gd"))
    for method in methods:
        fits = trainer.variant in VARIANTS.get(method, ("default",))
        fits &= not (several and method == "dp_gd" and trainer.model != "softmax")
        fits &= not (method == "objective" and trainer.accountant in ("zcdp", "pld"))  # they cannot bound it
        if fits and not foreign_arguments(trainer, method):
            return method
    return methods[-1]


def device_of(trainer: PrivateTrainer) -> str:
    """``"cpu"`` or ``"cuda"``; torch is loaded only where it has to be asked."""
    linear = method_of(trainer) in LINEAR_METHODS
    if trainer.device == "cpu" or (linear and trainer.device == "auto"):
        return "cpu"
    import torch

    available = torch.cuda.is_available()
    if trainer.device == "cuda" and not available:
        raise invalid(
            "device",
            "cuda",
            "a device that PyTorch sees, and it sees no CUDA device",
            "Use device='auto' or 'cpu'.",
        )
    return "cuda" if available and not linear else "cpu"


def check_private(data: object) -> None:
    """ConfigError for anything but data with declared public knowledge: an array alone does not say what is public."""
    if not isinstance(getattr(data, "public", None), PublicInfo):
        raise ConfigError(
            f"data = {type(data).__name__} is not allowed: it must be a PrivateData, which declares what is public. "
            "PrivateData.from_arrays(X, y, norm_bound=…, classes=…, n_declared=…) makes one of arrays."
        )


def make_plan(trainer: PrivateTrainer, public: PublicInfo) -> Plan:
    """The frozen plan; ``public`` is all that it may know of the data."""
    method = method_of(trainer, public)
    n = public.n_declared
    delta = _delta_of(trainer, public, method)
    _check_data(trainer, public, method)
    stages = _stages(trainer, public, method, delta)
    reason = "asked for"
    if trainer.method == "auto":
        reason = AUTO_REASON.get(method, "auto: the method that covers this model")
    device = device_of(trainer)
    epsilon = trainer.epsilon
    if epsilon is None and trainer.noise_multiplier is None:
        epsilon = 1.0
    parameters: Any
    event: Event
    if method == "nonprivate":
        parameters, event, epsilon, delta = NonPrivatePlan(), NonPrivate(), math.inf, 0.0
        steps, noise_multiplier = 0, 0.0
        trajectory = Trajectory(0.0, (), None, None, None, {})
    else:
        parameters = _parameters(trainer, public, method, epsilon, delta, stages)
        event, noise_multiplier = stages.around(parameters.event), parameters.noise_multiplier
        steps = getattr(parameters, "steps", 1)
        if epsilon is None:
            epsilon = epsilon_of(trainer, event, delta)
        trajectory = _trajectory(trainer, method, parameters, delta, stages)
    guarantee = Guarantee(
        epsilon=epsilon,
        delta=delta,
        neighboring_relation=trainer.neighboring_relation,
        accountant=trainer.accountant,
        assumptions=_assumptions(trainer, public, method, stages),
    )
    trained = epsilon
    if stages and method != "nonprivate":  # what training alone gets of it
        trained = min(epsilon, epsilon_of(trainer, parameters.event, delta))
    guide = _guidance(trainer, public, method, trained, delta)
    return Plan(
        method=method,
        model=model_name(trainer),
        guarantee=guarantee,
        event=event,
        parameters=parameters,
        steps=steps,
        noise_multiplier=noise_multiplier,
        trajectory=trajectory,
        guidance=guide,
        data={
            "name": public.name,
            "is_public": public.is_public,
            "n_declared": n,
            "n_features": public.n_features,
            "classes": list(public.classes),
            **({} if public.target_bounds is None else {"target_bounds": list(public.target_bounds)}),
            "norm_bound": public.norm_bound,
            **({"whitening": public.source["whitening"]} if "whitening" in public.source else {}),
        },
        reason=reason,
        device=device,
        seed=trainer.seed,
        processes=world_size(),
        stages=stages,
    )


def _stages(trainer: PrivateTrainer, public: PublicInfo, method: str, delta: float) -> Stages:
    """What the run does beside its training."""
    shares = check_shares(trainer.shares)
    if shares:
        refuse_several("shares", "Stages run in one process: start one, or leave the shares out.")
    if "metrics" in shares and not isinstance(trainer.model, str) and trainer.loss is not None:
        _check_scores(trainer, public)
    epsilon = 1.0 if trainer.epsilon is None and trainer.noise_multiplier is None else trainer.epsilon
    return plan_stages(
        shares,
        public,
        model=model_name(trainer),
        method=method,
        epsilon=epsilon,
        delta=delta,
        neighboring_relation=trainer.neighboring_relation,
    )


def _check_scores(trainer: PrivateTrainer, public: PublicInfo) -> None:
    """ModelError, ConfigError: a module with a loss of its own whose output no metric knows."""
    if public.task == "regression":
        raise misplaced("shares.metrics", "left out for the regression of a module with a loss of its own")
    from dpml.sgd import check_output

    assert not isinstance(trainer.model, str)
    shape = public.feature_shape or (public.n_features,)
    check_output(trainer.model, shape, len(public.classes), "leave shares.metrics out")


def _guidance(trainer: PrivateTrainer, public: PublicInfo, method: str, epsilon: float, delta: float) -> dict[str, Any]:
    if method == "nonprivate":
        return {"text": "sample-size guidance: not applicable without privacy"}
    bound = method if trainer.model in ("logreg", "softmax") else "other loss"
    if not isinstance(trainer.model, str) or trainer.model == "mlp":
        bound = "network"
    guide = sample_size_guidance(
        n_declared=public.n_declared,
        n_features=public.n_features,
        epsilon=epsilon,
        delta=delta or public.usual_delta,  # the rule needs one, pure ε-DP has none
        excess_risk=trainer.excess_risk,
        neighboring_relation=trainer.neighboring_relation,
        norm_bound=public.norm_bound or trainer.max_grad_norm,  # of rows, or of their gradients
        method=bound if delta else "pure",
    )
    if trainer.enforce_guidance and not guide["enough"]:
        raise ConfigError(f"guidance.enforce: the sample is too small, so nothing was trained.\n{guide['text']}")
    return guide


def check_plan(trainer: PrivateTrainer, public: PublicInfo) -> None:
    """Whether :func:`make_plan` would succeed, without calibrating the noise of ``dp_sgd``.

    Raises:
        ConfigError: the arguments do not fit the declared data.
        AccountingError: the accountant cannot bound this method's event.
    """
    method = method_of(trainer, public)
    if method != "dp_sgd" or trainer.accountant == "exact" or trainer.enforce_guidance:
        make_plan(trainer, public)  # costs milliseconds, or is what tells
        return
    delta = _delta_of(trainer, public, method)
    _check_data(trainer, public, method)
    stages = _stages(trainer, public, method, delta)
    if stages:
        epsilon_of(trainer, stages.around(accounting.Gaussian(1.0)), delta)  # can the accountant bound every stage?


def _delta_of(trainer: PrivateTrainer, public: PublicInfo, method: str) -> float:
    n = public.n_declared
    if is_pure(method, trainer.variant):
        return 0.0
    delta = trainer.delta if trainer.delta is not None else public.usual_delta
    if method != "nonprivate" and delta >= 1.0 / n:
        raise invalid(
            "delta", delta, f"< 1/n_declared = {1.0 / n:.3g}", f"A usual choice is 0.1/n_declared = {0.1 / n:.3g}."
        )
    return delta


def model_name(trainer: PrivateTrainer) -> str:
    """``"logreg"``, ``"softmax"``, ``"mlp"`` or the class name of the user's own module."""
    return trainer.model if isinstance(trainer.model, str) else type(trainer.model).__name__


def _check_data(trainer: PrivateTrainer, public: PublicInfo, method: str) -> None:
    if method != "dp_sgd":
        way_out = "Only dp_sgd shares its records among processes: use method='dp_sgd', or start one process."
        refuse_several(f"method = {method!r}", way_out)
    elif world_size() > 1:
        refuse_fixed_size(trainer.sampling)
    if public.norm_bound is not None:
        check_norm_bound(public.norm_bound)
    if method == "nonprivate" and not public.is_public:
        raise ConfigError(
            "method = 'nonprivate' needs data that are declared public (is_public: true); these are not. "
            "A model without privacy must not be released from a private table."
        )
    if isinstance(trainer.model, str) and (trainer.model in REGRESSION) != (public.task == "regression"):
        raise ConfigError(
            f"model = {trainer.model!r} does not fit the target: the data declare "
            + (f"a number in {list(public.target_bounds or ())}" if public.task == "regression" else "classes")
            + f". Use one of {', '.join(m for m in METHODS_OF if (m in REGRESSION) == (public.task == 'regression'))}."
        )
    if isinstance(trainer.model, str) and len(public.feature_shape) > 1:
        raise ConfigError(
            f"model = {trainer.model!r} takes rows of numbers (n, d), the data declare rows of shape "
            f"{public.feature_shape}. Flatten them, X.reshape(len(X), -1), or give a torch.nn.Module as the model."
        )
    if trainer.model == "logreg" and len(public.classes) != 2 and method in ("dp_sgd", "nonprivate"):
        raise ConfigError(
            f"model = 'logreg' with method = {method!r} needs two classes, the data declare {len(public.classes)}. "
            "Use model='softmax' or 'mlp', or method='objective' or 'output' (one problem a class)."
        )
    if not isinstance(trainer.model, str):
        _check_module(trainer, trainer.model, public)
    batch = trainer.expected_batch_size
    if method == "dp_sgd" and batch is not None and batch > public.n_declared:
        raise invalid(
            "expected_batch_size",
            batch,
            f"≤ n_declared = {public.n_declared}",
            "Lower it, or leave it out for a size that follows from n_declared.",
        )
    if method in LINEAR_METHODS:
        check_linear(trainer, public, method)


def _check_module(trainer: PrivateTrainer, module: torch.nn.Module, public: PublicInfo) -> None:
    """ModelError, ConfigError: a module of the user's own that takes other rows, or gives what cannot be used.

    Looked at on rows of zeros.  A loss of its own may ask for any output; it must fit the task only where the run is
    to score it, on a public test set, which would otherwise be found out after the budget is spent.
    """
    from dpml.sgd import check_loss, check_output

    shape = public.feature_shape or (public.n_features,)
    if public.task == "regression" and trainer.loss is None:
        raise invalid(
            "loss", None, "a function loss(outputs, targets) -> (B,) for a module of your own and a numeric target",
            "Squared errors: loss=lambda outputs, targets: (outputs.reshape(-1) - targets).square().",
        )  # fmt: skip
    scored = trainer.loss is None or public.test_is_public
    way_out = "pass loss= for another kind of output"
    if trainer.loss is not None:
        way_out = "leave the public test set out, which the run would score"
    check_output(module, shape, len(public.classes) if scored else None, way_out)
    if trainer.loss is not None:
        check_loss(module, trainer.loss, shape, public.task == "regression")


def _parameters(
    trainer: PrivateTrainer,
    public: PublicInfo,
    method: str,
    epsilon: float | None,
    delta: float,
    stages: Stages | None = None,
) -> Any:
    run_of = stages.around if stages else None
    if stages and method in LINEAR_METHODS and method != "dp_gd":
        return largest_training(
            lambda left, left_delta: plan_linear(trainer, public, method, left, left_delta),
            stages,
            epsilon=float(epsilon or 0.0),
            delta=delta,
            accountant=trainer.accountant,
            neighboring_relation=trainer.neighboring_relation,
        )
    if method in LINEAR_METHODS:
        return plan_linear(trainer, public, method, epsilon, delta, run_of)
    common: dict[str, Any] = {
        "n_declared": public.n_declared,
        "n_features": public.n_features,
        "epsilon": epsilon,
        "delta": delta,
        "neighboring_relation": trainer.neighboring_relation,
        "norm_bound": public.norm_bound,
        "solution_norm": descent_norm(trainer),
        "accountant": trainer.accountant,
    }
    from dpml import sgd

    network = network_of(trainer, public)
    return sgd.plan_dp_sgd(
        **common,
        n_classes=max(2, len(public.classes)),  # a number to predict has one score, as two classes have
        model_name=trainer.model if isinstance(trainer.model, str) else "module",
        n_parameters=sum(p.numel() for p in network.parameters() if p.requires_grad),
        noise_multiplier=trainer.noise_multiplier,
        max_grad_norm=clipping_norm(trainer, public),
        expected_batch_size=trainer.expected_batch_size,
        steps=trainer.steps,
        epochs=trainer.epochs,
        learning_rate=trainer.learning_rate,
        momentum=trainer.momentum,
        micro_batch_size=trainer.micro_batch_size,
        checkpoint_every=trainer.checkpoint_every,
        run_of=run_of,
        **{name: getattr(trainer, name) for name in SGD_OPTIONS},
    )


def network_of(trainer: PrivateTrainer, public: PublicInfo) -> torch.nn.Module:
    """The untrained network: the user's own, or a new one from the public seed."""
    if not isinstance(trainer.model, str):
        return trainer.model
    from dpml.sgd import build_model

    n_classes = max(2, len(public.classes))
    return build_model(trainer.model, public.n_features, n_classes, hidden=trainer.hidden, seed=trainer.seed)


def _assumptions(trainer: PrivateTrainer, public: PublicInfo, method: str, stages: Stages) -> tuple[str, ...]:
    if method == "nonprivate":
        return ("no privacy: trained without noise on data declared public",)
    fixed = "schema, classes, bounds and n_declared were fixed without looking at the records"
    fixed += ", except for what the charged stages found" if stages.find_columns else ""
    notes = [
        f"each individual contributes at most one record; neighbours differ by {trainer.neighboring_relation}",
        fixed + (", except for what follows" if trainer.assumptions else ""),
        *trainer.assumptions,
        *whitening_assumptions(public),
    ]
    if trainer.noise_source is not None and not trainer.noise_source.secret:
        notes.append("NOT PRIVATE: the noise source is not secret (tests only)")
    if method == "dp_sgd":
        if not isinstance(trainer.model, str) and trainer.gradients == "auto":
            notes.append("the module and its loss treat records separately (looked at on made-up records)")
        modules = () if isinstance(trainer.model, str) else trainer.model.modules()
        if any("dropout" in type(module).__name__.lower() for module in modules):
            notes.append("dropout masks cannot be told from random ones (torch's generator: a secret state, no cipher)")
        if not trainer.secure_noise:
            notes.append(
                "NOT SECRET against whoever can learn or guess its state: device generator (secure_noise was off)"
            )
        notes.append(SAMPLING_ASSUMPTIONS[trainer.sampling])
    if method in LINEAR_METHODS:
        notes.append(linear_assumption(str(trainer.model), method))
    if method == "dp_sgd":
        notes.append("the noise sampler is treated as an ideal Gaussian; releases lie on a public grid")
        notes.append("rounding in sums of gradients that are not float64 is covered by a measured margin, not a proof")
    else:
        notes.append("floating-point noise is treated as real-valued")
    return tuple(notes)


def epsilon_of(trainer: PrivateTrainer, event: Event, delta: float) -> float:
    """ε(δ) by the accountant and under the relation that the trainer was asked for."""
    return accounting.epsilon(
        event, delta, accountant=trainer.accountant, neighboring_relation=trainer.neighboring_relation
    )


def _trajectory(trainer: PrivateTrainer, method: str, parameters: Any, delta: float, stages: Stages) -> Trajectory:
    """ε after some of the steps, with all stages counted from the first one on."""
    if method not in ("dp_sgd", "dp_gd"):
        return accounting.trajectory(
            lambda _: stages.around(parameters.event), [1], delta, neighboring_relation=trainer.neighboring_relation
        )
    steps = parameters.steps
    per_step = parameters.event_per_step if method == "dp_sgd" else accounting.Gaussian(parameters.noise_multiplier)
    even = {max(1, round(steps * k / TRAJECTORY_POINTS)) for k in range(1, TRAJECTORY_POINTS + 1)}
    early = {2**k for k in range(20) if 2**k < steps / TRAJECTORY_POINTS}  # ε grows fastest at first
    points = sorted(even | early | {1})
    return accounting.trajectory(
        lambda count: stages.around(accounting.SelfComposed(event=per_step, count=count)),
        points,
        delta,
        neighboring_relation=trainer.neighboring_relation,
    )
