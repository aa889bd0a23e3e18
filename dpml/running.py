"""How a plan is carried out: training by any method, the released model, and ε from what was charged."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dpml import accounting
from dpml.accounting import Ledger, NonPrivate
from dpml.accounting.normal_form import flatten
from dpml.data import PublicInfo, Records
from dpml.errors import DpmlError, LedgerError, ModelError
from dpml.linear_methods import LINEAR_METHODS, fit_linear, fit_linear_nonprivate
from dpml.machine import refuse_unless_a_records
from dpml.mechanisms import NoiseSource
from dpml.planning import device_of, epsilon_of, method_of, network_of
from dpml.processes import local_rank, world_size
from dpml.release import PrivateModel, RunFolder, class_scores
from dpml.results import Guarantee
from dpml.resuming import Stop, write_checkpoint
from dpml.runs import EpsilonSoFar, Plan, Progress

if TYPE_CHECKING:
    import torch

    from dpml.sgd.team import Team
    from dpml.trainer import PrivateTrainer

CONVEX = ("logreg", "linear_svm", "ridge", "huber")
"""Models whose non-private twin needs no torch."""

_log = logging.getLogger(__name__)


def test_scores(model: PrivateModel, records: Records) -> dict[str, float]:
    if records.X_test is None or records.y_test is None:
        return {}
    return class_scores(model, records.X_test, records.y_test)


def public_scores(model: PrivateModel, records: Records) -> dict[str, float | str]:
    """:func:`test_scores` of a public test set, with their source; what fails never costs a model that is paid for.

    A module of the user's own may raise at a test record.  Then ``failed`` says why there are no scores, for the
    release: the error's class and dpml's own words, which are the same whenever a run is finished.  All of the error is
    in the log.
    """
    found: dict[str, float | str] = {}
    try:
        found.update(test_scores(model, records))
    except BaseException as error:
        refuse_unless_a_records(error)
        told = f": {error}" if isinstance(error, DpmlError) else ""
        found = {"failed": f"scoring failed with {type(error).__name__}{told}"}
        _log.warning("the public test set was not scored, the model is released: %s: %s", type(error).__name__, error)
    return found | {"source": "test set declared public"} if found else {}


def private_scores(model: PrivateModel, records: Records) -> dict[str, Any]:
    """:func:`test_scores` for the custodian's notes; where a module raises at a record, that is said only there."""
    try:
        return dict(test_scores(model, records))
    except BaseException as error:
        refuse_unless_a_records(error)
        return {"failed": f"{type(error).__name__}: {error}"[:1000]}


def refuse_not_finite(weights: Mapping[str, np.ndarray]) -> None:
    """Post-processing of charged values: a model that cannot score is not published."""
    for name, values in weights.items():
        if not np.isfinite(values).all():
            raise ModelError(
                f"the trained weight {name!r} is not finite, so nothing was released (the budget is spent). Lower "
                "learning_rate, or leave it at 'auto'."
            )


def refuse_unlearnable(trainer: PrivateTrainer, public: PublicInfo) -> None:
    """ModelError for a module (or a loss) of the user's own that ``dp_sgd`` could only spend a budget on.

    From public knowledge and made-up records (:mod:`dpml.sgd.learnable`), before data are read, a folder is made or a
    cap is charged.  The built-in networks are known to learn.
    """
    if method_of(trainer, public) != "dp_sgd" or (isinstance(trainer.model, str) and trainer.loss is None):
        return
    from dpml.sgd.learnable import check_can_learn

    device = device_of(trainer)
    if device == "cuda" and world_size() > 1:  # each process' own, if there is one for it (else the run is refused)
        import torch

        device = f"cuda:{local_rank()}" if local_rank() < torch.cuda.device_count() else "cpu"
    regression = public.task == "regression"
    check_can_learn(
        network_of(trainer, public), network_loss(trainer), public.feature_shape, regression, trainer.gradients, device
    )


def silent_warning(diagnostics: Mapping[str, Any]) -> dict[str, str]:
    """What a run that learned nothing tells its custodian: an entry of ``private/diagnostics.json``, a line in the log.

    The line has level INFO, like all that depends on records: no handler shows it unless the custodian asks for it,
    and the command line's log is in ``private/``.
    """
    if not diagnostics.get("steps_run") or any(diagnostics.get("mean_norm", [1.0])):  # norms are not negative
        return {}
    text = (
        f"every contribution of all {diagnostics['steps_run']} steps was zero: the model was trained on noise alone. "
        "PrivateTrainer.check_records shows why."
    )
    _log.info(text)
    return {"warning": text}


def released_model(
    trainer: PrivateTrainer,
    plan: Plan,
    public: PublicInfo,
    weights: Mapping[str, np.ndarray],
    module: torch.nn.Module | None,
) -> PrivateModel:
    return PrivateModel(
        kind=plan.model if isinstance(trainer.model, str) else "module",
        weights=weights,
        classes=tuple(public.classes),
        preprocessing=public.preprocessing,
        schema=public.schema,
        settings=scoring_settings(trainer, plan, public),
        module=module,
    )


def train_by_plan(
    trainer: PrivateTrainer,
    plan: Plan,
    public: PublicInfo,
    records: Records,
    ledger: Ledger,
    folder: RunFolder | None,
    noise: NoiseSource,
    progress: Progress | None,
    start: Mapping[str, Any] | None,
    team: Team | None = None,
) -> tuple[dict[str, np.ndarray], torch.nn.Module | None, dict[str, Any]]:
    """Run the method; every event goes through ``ledger.charge`` first."""
    notes: dict[str, Any] = {}
    if plan.method in LINEAR_METHODS or (plan.method == "nonprivate" and plan.model in CONVEX):
        classes = len(public.classes)
        if plan.method == "nonprivate":
            ledger.charge(NonPrivate(), stage="train")
            theta = fit_linear_nonprivate(plan.model, records, classes, trainer.loss_parameter)
        else:
            theta, notes = fit_linear(
                plan.parameters,
                plan.model,
                plan.method,
                records,
                classes,
                noise=noise,
                charge=lambda event: ledger.charge(event, stage="train"),
                progress=None if progress is None else lambda i, n: progress(i, n, plan.guarantee.epsilon),
            )
        return {"weight": theta}, None, dict(notes)

    from dpml import sgd

    network = network_of(trainer, public)
    if plan.method == "nonprivate":
        ledger.charge(NonPrivate(), stage="train")
        trained = sgd.fit_nonprivate_module(
            network, records.X, records.y, loss=trainer.loss, device=plan.device, seed=trainer.seed
        )
    else:
        shown = EpsilonSoFar(plan.trajectory)
        micro = None if trainer.micro_batch_size == "auto" else trainer.micro_batch_size
        watch: Callable[[Mapping[str, Any]], None] | None = getattr(progress, "on_state", None)  # an audit's
        with Stop(folder) as stop:

            def save(state: Mapping[str, Any]) -> None:
                if watch is not None:
                    watch(state)
                if folder is not None:
                    write_checkpoint(folder, state)
                    stop.if_asked()

            trained, notes = sgd.fit_dp_sgd(
                replace(plan.parameters, micro_batch_size=micro),
                network,
                records.X,
                records.y,
                device=device_of(trainer),
                noise=noise,
                loss=network_loss(trainer),
                reserve=lambda event, count: ledger.charge(event, stage="train", count=count),
                on_step=None if progress is None else lambda step: progress(step, plan.steps, shown(step)),
                save_checkpoint=None if folder is None and watch is None else save,
                secure_noise=trainer.secure_noise,
                gradients=trainer.gradients,
                start=start,
                team=team,
            )
    weights = sgd.weights_of(trained)
    if plan.model in CONVEX:
        weights = {"weight": next(iter(weights.values())).reshape(-1)}
    elif plan.model == "softmax":
        weights = {"weight": next(iter(weights.values()))}
    return weights, (None if isinstance(trainer.model, str) else trained), notes


def network_loss(trainer: PrivateTrainer) -> Callable[..., torch.Tensor] | None:
    """The user's own loss, that of a regression, or ``None`` for the one that follows from the classes."""
    from dpml import sgd

    if not isinstance(trainer.model, str) or trainer.model not in sgd.REGRESSION:
        return trainer.loss
    return sgd.RegressionLoss(math.inf if trainer.model == "ridge" else trainer.loss_parameter or 0.1)


def scoring_settings(trainer: PrivateTrainer, plan: Plan, public: PublicInfo) -> dict[str, Any]:
    """What scoring needs beside the weights."""
    if plan.model == "mlp":
        return {"n_features": public.n_features, "n_classes": len(public.classes), "hidden": list(trainer.hidden)}
    return {} if public.target_bounds is None else {"target_bounds": list(public.target_bounds)}


def recompute(trainer: PrivateTrainer, plan: Plan, ledger: Ledger) -> tuple[Guarantee, str]:
    """ε from what the ledger charged, which must not pass the promise."""
    promise, event = plan.guarantee, ledger.charged
    if flatten(event) != flatten(plan.event):
        raise LedgerError(
            "what the ledger charged is not what the plan says: nothing was released. This is a bug in dpml; "
            "please report it."
        )
    if plan.method == "nonprivate":
        return promise, trainer.accountant
    if trainer.accountant == "best":
        epsilon, used = accounting.best(event, promise.delta, neighboring_relation=trainer.neighboring_relation)
    else:
        epsilon, used = epsilon_of(trainer, event, promise.delta), trainer.accountant
    if not epsilon <= promise.epsilon * (1 + 1e-12):
        raise LedgerError(
            f"the ledger's events give epsilon = {epsilon!r}, more than the promised {promise.epsilon!r}: "
            "nothing was released. This is a bug in dpml; please report it."
        )
    return replace(promise, epsilon=epsilon), used


def nonprivate_scores(
    trainer: PrivateTrainer, plan: Plan, public: PublicInfo, records: Records
) -> dict[str, float] | None:
    """Scores of the same linear model without privacy: only where everything is declared public."""
    wanted = (
        trainer.compare_nonprivate
        and public.is_public
        and public.test_is_public
        and plan.model in CONVEX
        and not records.stored
    )
    if not wanted or plan.method == "nonprivate" or records.X_test is None or records.y_test is None:
        return None
    theta = fit_linear_nonprivate(plan.model, records, len(public.classes), trainer.loss_parameter)
    model = PrivateModel(
        plan.model,
        {"weight": theta},
        tuple(public.classes),
        public.preprocessing,
        settings=scoring_settings(trainer, plan, public),
    )
    return {f"test_{name}": value for name, value in class_scores(model, records.X_test, records.y_test).items()}
