"""``PrivateTrainer``: plan → fit → ``RunResult``, one budget and one ledger for every way to train.

The order of a run is the proof: everything that could be chosen is fixed in the plan from public knowledge, the plan
is the ledger's first line, each event is on disk before it is used, and the reported ε is recomputed from what the
ledger says.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpml import accounting
from dpml.accounting import DatasetLedger, Ledger, NonPrivate
from dpml.accounting.normal_form import flatten
from dpml.accounting.verification import file_digest, result_digest
from dpml.arguments import MODELS, check_arguments
from dpml.data import PrivateData, PublicInfo, Records
from dpml.errors import ConfigError, LedgerError, ModelError, RunFolderError
from dpml.linear_methods import LINEAR_METHODS, fit_linear, fit_linear_nonprivate
from dpml.mechanisms import FixedNoise, NoiseSource, default_noise
from dpml.planning import check_method, check_plan, epsilon_of, make_plan, method_of, model_name, network_of
from dpml.release import MODEL_FILE, PrivateModel, RunFolder, class_scores
from dpml.results import Guarantee, dumps, to_jsonable
from dpml.runs import (
    EpsilonSoFar,
    Plan,
    Progress,
    RunResult,
    as_written,
    plan_differences,
    public_description,
    records_mac,
)

if TYPE_CHECKING:
    import torch


CONVEX = ("logreg", "linear_svm", "ridge", "huber")
"""Models whose non-private twin needs no torch."""


def _save_checkpoint(folder: RunFolder, state: Mapping[str, Any]) -> None:
    from dpml.sgd import save_state

    target = folder.private / "checkpoint.safetensors"
    try:
        save_state(target, state)
    except OSError as error:
        raise RunFolderError(
            f"cannot write {str(target)!r} ({error.strerror or type(error).__name__}); nothing was released. "
            "Free space, then resume: the charged steps stay spent."
        ) from error


def _test_scores(model: PrivateModel, records: Records) -> dict[str, float]:
    if records.X_test is None or records.y_test is None:
        return {}
    return class_scores(model, records.X_test, records.y_test)


def _refuse_not_finite(weights: Mapping[str, np.ndarray]) -> None:
    """Post-processing of charged values: a model that cannot score is not published."""
    for name, values in weights.items():
        if not np.isfinite(values).all():
            raise ModelError(
                f"the trained weight {name!r} is not finite, so nothing was released (the budget is spent). Lower "
                "learning_rate, or leave it at 'auto'."
            )


class PrivateTrainer:
    """Train a model under one (ε, δ).

    Args:
        model: ``"logreg"``, ``"softmax"``, ``"linear_svm"``, ``"ridge"`` and ``"huber"`` (for a numeric target),
            ``"mlp"`` or any ``torch.nn.Module`` that maps rows ``(B, d)`` to logits (``(B,)`` or ``(B, 1)`` for two
            classes, ``(B, K)`` otherwise).
        method: ``"objective"``, ``"output"``, ``"dp_gd"`` (full batches), ``"adassp"`` (linear regression),
            ``"dp_sgd"``, ``"auto"`` (by the model, from public numbers only) or ``"nonprivate"`` (public data only).
        epsilon, delta: the budget.  Default ε is 1, default δ is min(1e-5, 0.1/n_declared) (Census-Income: 1e-6).
        neighboring_relation: ``"add_remove"`` or ``"replace_one"``.
        accountant: ``"best"``, ``"exact"``, ``"pld"``, ``"rdp"`` or ``"zcdp"``.
        noise_multiplier: fixes the noise of ``dp_sgd`` instead of ε; excludes ``epsilon``.
        max_grad_norm: per-example L2 clipping norm C, of ``dp_sgd`` and of ``dp_gd`` with squared loss (its other
            losses are bounded without; a value other than 1.0 clips them too).
        expected_batch_size, steps, epochs: the shape of ``dp_sgd``; ``steps`` excludes ``epochs``.
        learning_rate, momentum: of ``dp_sgd`` and ``dp_gd``; ``"auto"`` follows from public numbers.
        solution_norm: public guess R of the norm of a good solution; ``"auto"`` is 15 for classification.
        regularization: Λ of the average loss (mean form) for the convex methods; ``"auto"`` needs no tuning.
        variant: how ``objective`` is calibrated: ``"default"``, ``"pure"`` (δ = 0), or as published ``"cms11"``,
            ``"kst12"``, ``"redberg23"``; ``output``: ``"default"`` or ``"pure"``; ``adassp``: ``"default"`` or
            ``"adassp"`` (λ from a noisy smallest eigenvalue).
        loss_parameter: width of the smoothed hinge (``linear_svm``, default 0.5) or threshold of ``huber`` (default
            0.1, in units of half the target's range).
        hidden: widths of the hidden layers of ``"mlp"``.
        loss: per-example loss ``loss(logits, targets) -> (B,)`` for your own module; default cross entropy.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        seed: initialisation and other public choices.  Noise and sampling never depend on it.
        run_dir: folder for the run's files; ``None`` keeps everything in memory.
        noise_source: tests only; a source that is not secret is named in the guarantee's assumptions.
        excess_risk, enforce_guidance: α of the sample-size rule; ``True`` refuses to train below it.
        dataset_ledger, dataset_epsilon, dataset_delta: file and cap that add up all runs on one data set.
        dataset_filter: how they add up: "basic" (Σε, Σδ), or "zcdp" or "renyi" (privacy filters over the runs' events,
            which let more runs under the same cap); fixed by the first run of a file.
        assumptions: what the caller takes for granted beside the usual, one sentence each; stands in the guarantee.
        compare_nonprivate: on public data, also fit the linear model without privacy.

    Raises:
        ConfigError: an argument that is not allowed; nothing has been read.
    """

    def __init__(
        self,
        model: str | torch.nn.Module = "logreg",
        method: str = "auto",
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        neighboring_relation: str = "add_remove",
        accountant: str = "best",
        noise_multiplier: float | None = None,
        max_grad_norm: float = 1.0,
        expected_batch_size: int | None = None,
        steps: int | None = None,
        epochs: float | None = None,
        learning_rate: float | str = "auto",
        momentum: float = 0.9,
        solution_norm: float | str = "auto",
        regularization: float | str = "auto",
        hidden: Sequence[int] = (64,),
        loss: Callable[..., torch.Tensor] | None = None,
        micro_batch_size: int | None = None,
        checkpoint_every: int | None = None,
        device: str = "auto",
        seed: int = 0,
        run_dir: str | os.PathLike[str] | None = None,
        noise_source: NoiseSource | None = None,
        excess_risk: float = 0.05,
        enforce_guidance: bool = False,
        dataset_ledger: str | os.PathLike[str] | None = None,
        dataset_epsilon: float | None = None,
        dataset_delta: float | None = None,
        dataset_filter: str = "basic",
        compare_nonprivate: bool = True,
        variant: str = "default",
        loss_parameter: float | None = None,
        assumptions: Sequence[str] = (),
    ) -> None:
        self.model = model
        self.method = method
        self.epsilon = epsilon
        self.delta = delta
        self.neighboring_relation = neighboring_relation
        self.accountant = accountant
        self.noise_multiplier = noise_multiplier
        self.max_grad_norm = max_grad_norm
        self.expected_batch_size = expected_batch_size
        self.steps = steps
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.solution_norm = solution_norm
        self.regularization = regularization
        self.variant = variant
        self.loss_parameter = loss_parameter
        self.assumptions = tuple(assumptions)
        self.hidden = tuple(hidden)
        self.loss = loss
        self.micro_batch_size = micro_batch_size
        self.checkpoint_every = checkpoint_every
        self.device = device
        self.seed = seed
        self.run_dir = run_dir
        self.noise_source = noise_source
        self.excess_risk = excess_risk
        self.enforce_guidance = enforce_guidance
        self.dataset_ledger = dataset_ledger
        self.dataset_filter = dataset_filter
        self.dataset_epsilon = dataset_epsilon
        self.dataset_delta = dataset_delta
        self.compare_nonprivate = compare_nonprivate
        check_arguments(self)
        check_method(self)

    # -- plan -----------------------------------------------------------------------------------------------------
    def plan(self, data: PrivateData) -> Plan:
        """Everything that the run will do, from public knowledge only; no record is read.

        Raises:
            ConfigError: the arguments do not fit the declared data.
            AccountingError: the accountant cannot bound this method's event.
        """
        return make_plan(self, data.public)

    def check(self, data: PrivateData) -> None:
        """Whether :meth:`plan` would succeed, without calibrating the noise of ``dp_sgd``.

        Raises:
            ConfigError: the arguments do not fit the declared data.
            AccountingError: the accountant cannot bound this method's event.
        """
        check_plan(self, data.public)

    # -- fit ------------------------------------------------------------------------------------------------------
    def fit(
        self,
        data: PrivateData,
        *,
        progress: Progress | None = None,
        config: str | None = None,
        command: str | None = None,
    ) -> RunResult:
        """Plan, charge, train, recompute and release.

        Args:
            data: the private data; read only after the plan stands and the run folder and caps are checked.
            progress: called after every step with public numbers.
            config: text of ``release/config.yaml``; default is the trainer's own arguments.
            command: the command line that repeats the run, for the report.

        Raises:
            ConfigError, AccountingError, BudgetExceededError, RunFolderError: nothing was read.
            DataError, LedgerError, SolverError: nothing was released.
        """
        plan = self.plan(data)
        cap = self._dataset_ledger()
        run_name = "in memory" if self.run_dir is None else str(Path(self.run_dir).absolute())
        if cap is not None:
            cap.check(run_name, plan.guarantee.epsilon, plan.guarantee.delta, plan.event)
        folder = None if self.run_dir is None else RunFolder.create(self.run_dir)
        if folder is not None:
            folder.publish("config.yaml", config if config is not None else dumps(self.describe()) + "\n")
            folder.publish("schema.json", dumps(public_description(data.public)) + "\n")
        ledger = Ledger.create(None if folder is None else folder.release / "ledger.jsonl", plan.to_dict())
        try:
            if cap is not None:
                cap.reserve(run_name, plan.guarantee.epsilon, plan.guarantee.delta, plan.event)
            split_key = secrets.randbits(128)
            sparse = plan.method in LINEAR_METHODS or (plan.method == "nonprivate" and plan.model in CONVEX)
            records = data.load(self.noise_source or FixedNoise(split_key), sparse=sparse)
            if folder is not None:
                key = secrets.token_bytes(32)
                saved = {"key": key.hex(), "split_key": str(split_key), "mac": records_mac(key, records)}
                folder.keep("resume.json", {**saved, "arguments": self.describe()})
            return self._run(plan, data.public, records, ledger, folder, progress, None, command)
        finally:
            ledger.release()

    def _dataset_ledger(self) -> DatasetLedger | None:
        if self.dataset_ledger is None or method_of(self) == "nonprivate":
            return None
        assert self.dataset_epsilon is not None
        assert self.dataset_delta is not None
        return DatasetLedger(
            Path(self.dataset_ledger),
            self.dataset_epsilon,
            self.dataset_delta,
            neighboring_relation=self.neighboring_relation,
            filter=self.dataset_filter,
        )

    def _run(
        self,
        plan: Plan,
        public: PublicInfo,
        records: Records,
        ledger: Ledger,
        folder: RunFolder | None,
        progress: Progress | None,
        start: Mapping[str, Any] | None,
        command: str | None,
    ) -> RunResult:
        noise = self.noise_source or default_noise()
        weights, module, diagnostics = self._train(plan, public, records, ledger, folder, noise, progress, start)
        model = PrivateModel(
            kind=plan.model if isinstance(self.model, str) else "module",
            weights=weights,
            classes=tuple(public.classes),
            preprocessing=public.preprocessing,
            schema=public.schema,
            settings=self._settings(plan, public),
            module=module,
        )
        _refuse_not_finite(weights)
        guarantee, used = self._recompute(plan, ledger)
        metrics: dict[str, float | str] = {}
        if public.test_is_public:
            metrics = dict(_test_scores(model, records))
            metrics |= {"source": "test set declared public"} if metrics else {}
        private: dict[str, Any] = {**records.private_notes, **diagnostics}
        result = RunResult(
            guarantee=guarantee,
            trajectory=plan.trajectory,
            ledger={},
            metrics=metrics,
            nonprivate=self._nonprivate(plan, public, records),
            plan=plan,
            model=model,
            accountant_used=used,
            run_dir=None if folder is None else folder.path,
            private=private,
            command=command,
        )
        weights_file, files = model.to_bytes(), {}
        if folder is not None:
            files = {name: file_digest(folder.release / name) for name in ("config.yaml", "schema.json")}
            files[MODEL_FILE] = hashlib.sha256(weights_file).hexdigest()
        if not ledger.closed:  # a run killed right after its closing line is resumed with a closed ledger
            ledger.close(
                {
                    "epsilon": to_jsonable(guarantee.epsilon),
                    "delta": guarantee.delta,
                    "steps": plan.steps,
                    "result": result_digest(result.to_dict()),
                    "files": files,
                }
            )
        result = replace(result, ledger={"head": ledger.head, "count": ledger.count})
        if folder is not None:
            folder.publish(MODEL_FILE, weights_file)
            folder.publish("result.json", dumps(result.to_dict()) + "\n")
            folder.link_to_top("result.json")
        if not public.test_is_public:  # after everything is published: it cannot stop a release, or tell by stopping it
            private |= {"test": _test_scores(model, records)}
        if folder is not None:
            folder.keep("diagnostics.json", private)
            (folder.private / "checkpoint.safetensors").unlink(missing_ok=True)
        return result

    def _train(
        self,
        plan: Plan,
        public: PublicInfo,
        records: Records,
        ledger: Ledger,
        folder: RunFolder | None,
        noise: NoiseSource,
        progress: Progress | None,
        start: Mapping[str, Any] | None,
    ) -> tuple[dict[str, np.ndarray], torch.nn.Module | None, dict[str, Any]]:
        """Run the method; every event goes through ``ledger.charge`` first."""
        notes: dict[str, Any] = {}
        if plan.method in LINEAR_METHODS or (plan.method == "nonprivate" and plan.model in CONVEX):
            classes = len(public.classes)
            if plan.method == "nonprivate":
                ledger.charge(NonPrivate(), stage="train")
                theta = fit_linear_nonprivate(plan.model, records, classes, self.loss_parameter)
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

        network = network_of(self, public)
        if plan.method == "nonprivate":
            ledger.charge(NonPrivate(), stage="train")
            trained = sgd.fit_nonprivate_module(
                network, records.X, records.y, loss=self.loss, device=plan.device, seed=self.seed
            )
        else:
            shown = EpsilonSoFar(plan.trajectory)
            trained, notes = sgd.fit_dp_sgd(
                plan.parameters,
                network,
                records.X,
                records.y,
                device=plan.device,
                noise=noise,
                loss=self._network_loss(plan),
                reserve=lambda event, count: ledger.charge(event, stage="train", count=count),
                on_step=None if progress is None else lambda step: progress(step, plan.steps, shown(step)),
                save_checkpoint=None if folder is None else lambda state: _save_checkpoint(folder, state),
                start=start,
            )
        weights = sgd.weights_of(trained)
        if plan.model in CONVEX:
            weights = {"weight": next(iter(weights.values())).reshape(-1)}
        elif plan.model == "softmax":
            weights = {"weight": next(iter(weights.values()))}
        return weights, (None if isinstance(self.model, str) else trained), notes

    def _network_loss(self, plan: Plan) -> Callable[..., torch.Tensor] | None:
        """The user's own loss, that of a regression, or ``None`` for the one that follows from the classes."""
        from dpml import sgd

        if plan.model not in sgd.REGRESSION or not isinstance(self.model, str):
            return self.loss
        return sgd.RegressionLoss(math.inf if plan.model == "ridge" else self.loss_parameter or 0.1)

    def _settings(self, plan: Plan, public: PublicInfo) -> dict[str, Any]:
        """What scoring needs beside the weights."""
        if plan.model == "mlp":
            return {"n_features": public.n_features, "n_classes": len(public.classes), "hidden": list(self.hidden)}
        return {} if public.target_bounds is None else {"target_bounds": list(public.target_bounds)}

    def _recompute(self, plan: Plan, ledger: Ledger) -> tuple[Guarantee, str]:
        """ε from what the ledger charged, which must not pass the promise."""
        promise, event = plan.guarantee, ledger.charged
        if flatten(event) != flatten(plan.event):
            raise LedgerError(
                "what the ledger charged is not what the plan says: nothing was released. This is a bug in dpml; "
                "please report it."
            )
        if plan.method == "nonprivate":
            return promise, self.accountant
        if self.accountant == "best":
            epsilon, used = accounting.best(event, promise.delta, neighboring_relation=self.neighboring_relation)
        else:
            epsilon, used = epsilon_of(self, event, promise.delta), self.accountant
        if not epsilon <= promise.epsilon * (1 + 1e-12):
            raise LedgerError(
                f"the ledger's events give epsilon = {epsilon!r}, more than the promised {promise.epsilon!r}: "
                "nothing was released. This is a bug in dpml; please report it."
            )
        return replace(promise, epsilon=epsilon), used

    def _nonprivate(self, plan: Plan, public: PublicInfo, records: Records) -> dict[str, float] | None:
        """Scores of the same linear model without privacy: only where everything is declared public."""
        wanted = self.compare_nonprivate and public.is_public and public.test_is_public and plan.model in CONVEX
        if not wanted or plan.method == "nonprivate" or records.X_test is None or records.y_test is None:
            return None
        theta = fit_linear_nonprivate(plan.model, records, len(public.classes), self.loss_parameter)
        model = PrivateModel(
            plan.model,
            {"weight": theta},
            tuple(public.classes),
            public.preprocessing,
            settings=self._settings(plan, public),
        )
        return {f"test_{name}": value for name, value in class_scores(model, records.X_test, records.y_test).items()}

    # -- resume ---------------------------------------------------------------------------------------------------
    @classmethod
    def resume(
        cls,
        run_dir: str | os.PathLike[str],
        data: PrivateData,
        *,
        model: torch.nn.Module | None = None,
        loss: Callable[..., torch.Tensor] | None = None,
        progress: Progress | None = None,
        noise_source: NoiseSource | None = None,
        command: str | None = None,
    ) -> RunResult:
        """Go on with a killed ``dp_sgd`` run: the remaining T − charged steps, with fresh noise.

        Args:
            run_dir, data: the run's folder and the very same data.
            model, loss: again, where the run had a module or a loss of your own.
            progress, noise_source, command: as for :class:`PrivateTrainer` and :meth:`fit`.

        Raises:
            RunFolderError: the run is finished, is not ``dp_sgd``, or has no step left.
            ConfigError: data or declared facts differ from the run's.
        """
        folder = RunFolder.open(run_dir)
        saved_path = folder.private / "resume.json"
        if (folder.release / "result.json").exists():
            raise RunFolderError(f"{str(folder.path)!r} is finished; there is nothing to resume.")
        if not saved_path.is_file():
            raise RunFolderError(f"{str(folder.path)!r} never got as far as reading data: start a new run instead.")
        try:
            saved = json.loads(saved_path.read_text("utf-8"))
            arguments, key, split_key = dict(saved["arguments"]), bytes.fromhex(saved["key"]), int(saved["split_key"])
            mac, own_loss, name = str(saved["mac"]), bool(arguments.pop("own_loss")), str(arguments["model"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunFolderError(
                f"{str(saved_path)!r} is damaged ({type(error).__name__}): start a new run."
            ) from error
        if model is not None:
            arguments["model"] = model
        elif name not in MODELS:
            raise ConfigError(f"the run trained your own module {name!r}: pass model=YourModule().")
        if own_loss != (loss is not None):
            raise ConfigError("loss must be given to resume if, and only if, it was given to the run.")
        trainer = cls(**arguments, loss=loss, run_dir=folder.path, noise_source=noise_source)
        ledger = Ledger.resume(folder.release / "ledger.jsonl", closed_ok=True)
        try:
            plan = trainer.plan(data)
            written = ledger.lines[0]["plan"]
            differences = plan_differences(written, plan.to_dict())
            if differences:
                raise ConfigError("the run's plan and the plan for these arguments differ: " + "; ".join(differences))
            if plan.method != "dp_sgd":
                raise RunFolderError(
                    f"method = {plan.method!r} is one release and cannot be resumed; what it charged is spent. "
                    "Start a new run."
                )
            plan = as_written(plan, written)
            records = data.load(noise_source or FixedNoise(split_key))
            if not hmac.compare_digest(records_mac(key, records), mac):
                raise ConfigError(
                    "the data are not those that the run started with; resume needs the very same records."
                )
            from dpml.sgd import load_state

            charged = sum(int(line["count"]) for line in ledger.charges)
            checkpoint = folder.private / "checkpoint.safetensors"
            state = dict(load_state(checkpoint)) if checkpoint.is_file() else {}
            if charged >= plan.steps and not state:
                raise RunFolderError(
                    f"all {plan.steps} steps of {str(folder.path)!r} are charged and no checkpoint was reached, so "
                    "nothing is left to run. Start a new run."
                )
            start = {**state, "step": charged}
            return trainer._run(plan, data.public, records, ledger, folder, progress, start, command)
        finally:
            ledger.release()

    def describe(self) -> dict[str, Any]:
        """The constructor's arguments as plain values (no paths, no live objects)."""
        skipped = {"run_dir", "noise_source", "loss"}
        values = {
            name: value for name, value in vars(self).items() if name not in skipped and not name.startswith("dataset_")
        }
        values["model"] = model_name(self)
        values["own_loss"] = self.loss is not None
        return dict(to_jsonable(values))
