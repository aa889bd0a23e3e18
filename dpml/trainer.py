"""``PrivateTrainer``: plan → fit → ``RunResult``, one budget and one ledger for every way to train.

The order of a run is the proof: everything that could be chosen is fixed in the plan from public knowledge, the plan
is the ledger's first line, each event is on disk before it is used, and the reported ε is recomputed from what the
ledger says.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpml.accounting import DatasetLedger, Ledger
from dpml.accounting.verification import file_digest, result_digest
from dpml.arguments import HIDDEN, MODELS, check_arguments
from dpml.data import PrivateData, PublicInfo, Records
from dpml.errors import ConfigError, RunFolderError
from dpml.linear_methods import LINEAR_METHODS
from dpml.mechanisms import NoiseSource, default_noise
from dpml.planning import check_method, check_plan, check_private, make_plan, method_of, model_name, network_of
from dpml.processes import world_size
from dpml.ranges import as_integer
from dpml.release import MODEL_FILE, RunFolder
from dpml.results import dumps, to_jsonable
from dpml.resuming import (
    FREE_ARGUMENTS,
    Saved,
    charged_steps,
    finish_last_line,
    network_description,
    published_digests,
    read_checkpoint,
    refuse_differences,
    refuse_finished,
    refuse_other_outcome,
    sole_use,
    tidy,
)
from dpml.running import (
    CONVEX,
    nonprivate_scores,
    private_scores,
    public_scores,
    recompute,
    refuse_not_finite,
    refuse_unlearnable,
    released_model,
    silent_warning,
    train_by_plan,
)
from dpml.runs import (
    FREE_IN_PLANS,
    Plan,
    Progress,
    RunResult,
    as_written,
    public_description,
    records_mac,
)
from dpml.stages import after_training, before_training, before_training_again
from dpml.teamwork import (
    announce,
    check_reading,
    follow,
    follow_resumed,
    hand_over,
    reading,
    show_records,
    split_source,
    team_of,
)

if TYPE_CHECKING:
    import torch

    from dpml.audit.runs import RunAudit
    from dpml.checking import RecordsCheck
    from dpml.sgd.team import Team


class PrivateTrainer:
    """Train a model under one (ε, δ).

    Args:
        model: ``"logreg"``, ``"softmax"``, ``"linear_svm"``, ``"ridge"`` and ``"huber"`` (for a numeric target),
            ``"mlp"`` or any ``torch.nn.Module`` that maps rows ``(B, d)`` to logits (``(B,)`` or ``(B, 1)`` for two
            classes, ``(B, K)`` otherwise), or for a numeric target to the prediction, ``(B,)`` or ``(B, 1)``.
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
        loss: per-example loss ``loss(logits, targets) -> (B,)`` for your own module; default cross entropy.  A numeric
            target needs one; it comes with its bounds moved to -1 and 1.  With a loss the module may give other shapes
            than those above, unless there is a public test set to score: what it gives is in ``decision_function``.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        seed: initialisation and other public choices.  Noise and sampling never depend on it.
        run_dir: folder for the run's files; ``None`` keeps everything in memory.
        noise_source: tests only; a source that is not secret is named in the guarantee's assumptions.
        excess_risk, enforce_guidance: α of the sample-size rule; ``True`` refuses to train below it.
        dataset_ledger, dataset_epsilon, dataset_delta: file and cap that add up all runs on one data set.
        dataset_filter: how they add up: "basic" (Σε, Σδ), or "renyi" or "zcdp" (privacy filters over what the runs
            release, which let more runs under the same cap; "zcdp" only those of Gaussian noise without sampling, and
            "objective" costs more there); fixed by the first run of a file.
        assumptions: what the caller takes for granted beside the usual, one sentence each; stands in the guarantee.
        compare_nonprivate: on public data, also fit the linear model without privacy.
        optimizer: of ``dp_sgd``: ``"sgd"`` (``momentum``), or ``"adam"`` or ``"adamw"`` (``betas``; ``bias_correction``
            subtracts the public noise variance from the second moment).
        weight_decay: decoupled, of ``sgd`` and ``adamw``.
        schedule, warmup_steps: the rate after a rise over some steps: ``"linear"``, ``"cosine"`` or ``"constant"``.
        averaging: release the weights (``"none"``), or the average of the iterates: ``"tail"``, over the last
            ``averaging_share`` of the steps, or ``"ema"``, exponential over that share.  Costs no budget.
        clipping: ``"flat"``, ``"per_layer"`` (each of K layers to C/√K), ``"automatic"`` (C·g/(‖g‖ + 0.01)) or
            ``"adaptive"``: C starts at ``max_grad_norm`` and follows the ``target_quantile`` of the gradient norms by a
            charged count with noise ``count_noise`` (in records; default a twentieth of the batch) at the rate
            ``clip_learning_rate``; ε is the same, the gradient's noise is a little larger.
        sampling: ``"poisson"``, or ``"fixed_size"``: uniform samples of exactly ``expected_batch_size`` of exactly
            ``n_declared`` records, under ``replace_one`` only.
        micro_batch_size: records whose gradients are held at once; ``None`` or ``"auto"``: by memory.
        gradients: ``"auto"``: all records of a batch together wherever that can be shown to fit the model (see
            docs/dp-sgd.md); ``"per_example"``: every record alone, so that the bound on its contribution holds whatever
            your own module does.
        secure_noise: ``False`` lets a CUDA run draw its noise from the device's generator, which is faster and not
            secret against whoever learns its state; the guarantee says so.
        shares: parts of the budget for what else the run does (docs/one-budget.md): ``"bounds"``, ``"categories"``,
            ``"labels"`` and ``"center"`` before the training, ``"metrics"`` after it.  {"metrics": 0.1}: a tenth of ε.

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
        hidden: Sequence[int] = HIDDEN,
        loss: Callable[..., torch.Tensor] | None = None,
        micro_batch_size: int | str | None = None,
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
        optimizer: str = "sgd",
        betas: Sequence[float] = (0.9, 0.999),
        bias_correction: bool = True,
        weight_decay: float = 0.0,
        schedule: str = "linear",
        warmup_steps: int = 0,
        averaging: str = "none",
        averaging_share: float = 0.5,
        clipping: str = "flat",
        target_quantile: float = 0.5,
        clip_learning_rate: float = 0.2,
        count_noise: float | None = None,
        sampling: str = "poisson",
        secure_noise: bool = True,
        gradients: str = "auto",
        shares: Mapping[str, float] | None = None,
    ) -> None:
        self.model = model
        self.method = method
        self.epsilon = epsilon
        self.delta = delta
        self.neighboring_relation = neighboring_relation
        self.accountant = accountant
        self.noise_multiplier = noise_multiplier
        self.max_grad_norm = max_grad_norm
        self.expected_batch_size = as_integer(expected_batch_size)
        self.steps = as_integer(steps)
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.solution_norm = solution_norm
        self.regularization = regularization
        self.variant = variant
        self.loss_parameter = loss_parameter
        self.assumptions = tuple(assumptions) if isinstance(assumptions, list | tuple) else assumptions
        widths = isinstance(hidden, Sequence) and not isinstance(hidden, str | bytes)
        self.hidden = tuple(map(as_integer, hidden)) if widths else hidden
        self.loss = loss
        self.micro_batch_size = as_integer(micro_batch_size)
        self.checkpoint_every = as_integer(checkpoint_every)
        self.device = device
        self.seed = as_integer(seed)
        self.run_dir = run_dir
        self.noise_source = noise_source
        self.excess_risk = excess_risk
        self.enforce_guidance = enforce_guidance
        self.dataset_ledger = dataset_ledger
        self.dataset_filter = dataset_filter
        self.dataset_epsilon = dataset_epsilon
        self.dataset_delta = dataset_delta
        self.compare_nonprivate = compare_nonprivate
        self.optimizer = optimizer
        self.betas = tuple(betas) if isinstance(betas, list) else betas
        self.bias_correction = bias_correction
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.warmup_steps = as_integer(warmup_steps)
        self.averaging = averaging
        self.averaging_share = averaging_share
        self.clipping = clipping
        self.target_quantile = target_quantile
        self.clip_learning_rate = clip_learning_rate
        self.count_noise = count_noise
        self.sampling = sampling
        self.secure_noise = secure_noise
        self.gradients = gradients
        self.shares = shares
        check_arguments(self)
        check_method(self)

    # -- plan -----------------------------------------------------------------------------------------------------
    def plan(self, data: PrivateData) -> Plan:
        """Everything that the run will do, from public knowledge only; no record is read.

        Raises:
            ConfigError: the arguments do not fit the declared data.
            AccountingError: the accountant cannot bound this method's event.
            ModelError: a module that ``dp_sgd`` cannot train, made-up records tell (docs/dp-sgd.md, "Before you
                spend"); a RuntimeWarning tells of one that most likely cannot learn.
        """
        check_private(data)
        plan = make_plan(self, data.public)
        refuse_unlearnable(self, data.public)
        return plan

    def check(self, data: PrivateData) -> None:
        """Whether :meth:`plan` would succeed, without calibrating the noise of ``dp_sgd``.

        Raises:
            ConfigError: the arguments do not fit the declared data.
            AccountingError: the accountant cannot bound this method's event.
            ModelError: as :meth:`plan`.
        """
        check_private(data)
        check_plan(self, data.public)
        if self.expected_batch_size is not None and method_of(self, data.public) == "dp_sgd":
            from dpml.sgd.batch_limits import batch_size_of

            batch_size_of(data.public.n_declared, self.expected_batch_size, 1.0, self.sampling)
        refuse_unlearnable(self, data.public)

    def check_records(self, data: PrivateData, records: int = 256) -> RecordsCheck:
        """The custodian's look at ``records`` of the records before a ``dp_sgd`` run.  **Private; not for release.**

        Counts, gradient norms and the first error of the data's own records at the initial weights: what a run keeps
        to itself.  :meth:`fit` never calls this, and nothing is charged.  It is there to find faults (items that
        raise, labels that do not fit, losses that are not finite).  A setting that is *chosen* by what it shows, such
        as ``max_grad_norm``, is chosen by the records, which ε does not cover: say so in ``assumptions``, or take
        ``clipping="adaptive"``.

        Args:
            records: how many to look at, spread evenly over the data.

        Raises:
            ConfigError: another method than ``dp_sgd``; ``records`` is no whole number >= 1.
            All that :meth:`plan` and reading the data raise.
        """
        from dpml.checking import check_records

        return check_records(self, data, records)

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
            ConfigError, ModelError, AccountingError, BudgetExceededError, RunFolderError: nothing was read.
            DataError, LedgerError, SolverError: nothing was released.
            TeamError: under ``torchrun``: another process is missing or has failed; nothing was released.
        """
        plan = self.plan(data)
        check_reading(plan, data)
        with team_of(plan.processes) as team:
            if team is not None and team.rank > 0:
                return follow(self, plan, data, team)
            return self._lead(plan, data, team, progress, config, command)

    def _lead(
        self,
        plan: Plan,
        data: PrivateData,
        team: Team | None,
        progress: Progress | None,
        config: str | None,
        command: str | None,
    ) -> RunResult:
        """The run of one process, or of process 0 of several."""
        cap = self.cap()
        run_name = "in memory" if self.run_dir is None else str(Path(self.run_dir).absolute())
        if cap is not None:
            cap.check(run_name, plan.guarantee.epsilon, plan.guarantee.delta, plan.event)
            cap.check_folder(None if self.run_dir is None else Path(self.run_dir))
        folder = None if self.run_dir is None else RunFolder.create(self.run_dir)
        if folder is not None:
            folder.publish("config.yaml", config if config is not None else dumps(self.describe()) + "\n")
            folder.publish("schema.json", dumps(public_description(data.public)) + "\n")
        ledger = Ledger.create(None if folder is None else folder.release / "ledger.jsonl", plan.to_dict())
        try:
            if cap is not None:
                cap.reserve(run_name, plan.guarantee.epsilon, plan.guarantee.delta, plan.event)
            split_key, key = secrets.randbits(128), secrets.token_bytes(32)
            hand_over(team, plan, split_key)
            sparse = plan.method in LINEAR_METHODS or (plan.method == "nonprivate" and plan.model in CONVEX)
            public, records, kept = before_training(
                plan.stages, data, ledger, folder, self.noise_source or default_noise(),
                split_source(self.noise_source, split_key), sparse, reading(plan),
            )  # fmt: skip
            if folder is not None and plan.stages.find_columns:
                folder.publish("schema.json", dumps(public_description(public)) + "\n")
            if folder is not None or team is not None:
                mac = records_mac(key, records)
                show_records(team, key, mac)
            if folder is not None:
                self._keep_for_resume(folder, plan, public, key, mac, split_key)
            with sole_use(folder):
                return self._run(plan, public, records, ledger, folder, progress, None, command, team, kept)
        finally:
            ledger.release()

    def _keep_for_resume(
        self, folder: RunFolder, plan: Plan, public: PublicInfo, key: bytes, mac: str, split_key: int
    ) -> None:
        """Write what another life of this run is compared with."""
        network = network_description(network_of(self, public)) if plan.method == "dp_sgd" else None
        Saved(key, split_key, mac, self.describe(), network, published_digests(folder)).write(folder)

    def cap(self) -> DatasetLedger | None:
        """The data set ledger that a run is charged in, where one is named (and the method is private)."""
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
        team: Team | None = None,
        kept: dict[str, Any] | None = None,
    ) -> RunResult:
        noise = self.noise_source or default_noise()
        weights, module, diagnostics = train_by_plan(
            self, plan, public, records, ledger, folder, noise, progress, start, team
        )
        model = released_model(self, plan, public, weights, module)
        refuse_not_finite(weights)
        metrics, stages = after_training(plan.stages, model, records, ledger, folder, noise, kept or {})
        guarantee, used = recompute(self, plan, ledger)
        if public.test_is_public:
            metrics = public_scores(model, records)
        private: dict[str, Any] = {**records.private_notes, **diagnostics, **silent_warning(diagnostics)}
        result = RunResult(
            guarantee=guarantee,
            trajectory=plan.trajectory,
            ledger={},
            metrics=metrics,
            nonprivate=nonprivate_scores(self, plan, public, records),
            plan=plan,
            model=model,
            accountant_used=used,
            run_dir=None if folder is None else folder.path,
            private=private,
            command=command,
            stages=stages,
        )
        weights_file, files = model.to_bytes(), {}
        if folder is not None:
            files = {name: file_digest(folder.release / name) for name in ("config.yaml", "schema.json")}
            files[MODEL_FILE] = hashlib.sha256(weights_file).hexdigest()
        outcome = {
            "epsilon": to_jsonable(guarantee.epsilon),
            "delta": guarantee.delta,
            "steps": plan.steps,
            "result": result_digest(result.to_dict()),
            "files": files,
        }
        if ledger.closed:  # a run killed right after its closing line
            refuse_other_outcome(ledger, outcome)
        else:
            ledger.close(outcome)
        result = replace(result, ledger={"head": ledger.head, "count": ledger.count})
        if folder is not None:
            folder.publish(MODEL_FILE, weights_file)
            folder.publish("result.json", dumps(result.to_dict()) + "\n")
            folder.link_to_top("result.json")
        if not public.test_is_public:  # after everything is published: it cannot stop a release, or tell by stopping it
            private |= {"test": private_scores(model, records)}
        if folder is not None:
            folder.keep("diagnostics.json", private)
            tidy(folder)
        announce(team, result)
        return result

    # -- audit ------------------------------------------------------------------------------------------------------
    def audit(
        self,
        data: PrivateData,
        *,
        progress: Progress | None = None,
        config: str | None = None,
        command: str | None = None,
        **settings: Any,
    ) -> RunAudit:
        """Attack this run from outside: a lower bound on ε beside the one that it claims (docs/audit.md).

        With ``on="records"`` (the default for data that are declared public) it is a charged run whose model holds
        canaries; with ``on="stand_in"`` no record is read.

        Args:
            settings: of :class:`dpml.audit.run_settings.RunAuditSettings`, by name.

        Raises:
            ConfigError: a run that cannot be audited, or settings that do not fit it; nothing was read.
        """
        check_private(data)
        from dpml.audit.run_settings import settings_of
        from dpml.audit.runs import audit_trainer

        return audit_trainer(self, data, settings_of(settings), progress=progress, config=config, command=command)

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
        device: str | None = None,
        micro_batch_size: int | str | None = None,
        configured: PrivateTrainer | None = None,
    ) -> RunResult:
        """Go on with a stopped ``dp_sgd`` run: the remaining T − charged steps, with fresh noise and fresh batches.

        Steps that were charged and not made are lost, never run again.  Weights, optimizer and clipping norm are those
        of the last checkpoint, or the initial ones where none was reached.

        Args:
            run_dir, data: the run's folder and the very same data.
            model, loss: again, where the run had a module or a loss of your own.
            progress, noise_source, command: as for :class:`PrivateTrainer` and :meth:`fit`.
            device, micro_batch_size: for the rest of the run, where they shall be others than before; nothing else can
                change.
            configured: the run's trainer as it is configured now, where there is a configuration that may have changed.

        Raises:
            RunFolderError: the run is finished, is not ``dp_sgd``, has no step left, or is used by another process.
            ConfigError: data, declared facts, model or arguments differ from the run's, or ``release/`` was changed.
            LedgerError: the ledger does not hold, is in use, or has charged fewer steps than were made.
            ModelError: the checkpoint is damaged or of another run.
            TeamError: under ``torchrun``: another process is missing or has failed.
            In all these cases nothing was charged and nothing drawn.
        """
        with team_of(world_size()) as team:
            if team is not None and team.rank > 0:
                return follow_resumed(cls, data, team, model=model, loss=loss, noise_source=noise_source)
            changes = {"device": device, "micro_batch_size": micro_batch_size}
            changes = {name: value for name, value in changes.items() if value is not None}
            return cls._lead_resumed(
                run_dir, data, team, model, loss, progress, noise_source, command, changes, configured
            )

    @classmethod
    def _lead_resumed(
        cls,
        run_dir: str | os.PathLike[str],
        data: PrivateData,
        team: Team | None,
        model: torch.nn.Module | None,
        loss: Callable[..., torch.Tensor] | None,
        progress: Progress | None,
        noise_source: NoiseSource | None,
        command: str | None,
        changes: Mapping[str, Any],
        configured: PrivateTrainer | None,
    ) -> RunResult:
        """:meth:`resume` in one process, or in process 0 of several."""
        folder = RunFolder.open(run_dir)
        refuse_finished(folder)
        saved = Saved.read(folder)
        with sole_use(folder):
            refuse_finished(folder)
            arguments = dict(saved.arguments)
            own_loss, name = bool(arguments.pop("own_loss")), str(arguments["model"])
            if model is not None:
                arguments["model"] = model
            elif name not in MODELS:
                raise ConfigError(f"the run trained your own module {name!r}: pass model=YourModule().")
            if own_loss != (loss is not None):
                raise ConfigError("loss must be given to resume if, and only if, it was given to the run.")
            if configured is not None:
                refuse_differences(
                    "the run's arguments and those configured now", saved.arguments, configured.describe(),
                    FREE_ARGUMENTS,
                )  # fmt: skip
            arguments |= changes
            if team is not None:
                team.share({**arguments, "model": name})
            trainer = cls(**arguments, loss=loss, run_dir=folder.path, noise_source=noise_source)
            finish_last_line(folder.release / "ledger.jsonl")
            ledger = Ledger.resume(folder.release / "ledger.jsonl", closed_ok=True)
            try:
                return trainer._go_on(data, saved, ledger, folder, progress, command, team)
            finally:
                ledger.release()

    def _go_on(
        self,
        data: PrivateData,
        saved: Saved,
        ledger: Ledger,
        folder: RunFolder,
        progress: Progress | None,
        command: str | None,
        team: Team | None = None,
    ) -> RunResult:
        """Compare everything with what the run was started with, then run what is left."""
        plan = self.plan(data)
        written = ledger.lines[0]["plan"]
        refuse_differences("the run's plan and the plan for these arguments", written, plan.to_dict(), FREE_IN_PLANS)
        if plan.method != "dp_sgd":
            raise RunFolderError(
                f"method = {plan.method!r} is one release and cannot be resumed; what it charged is spent. "
                "Start a new run."
            )
        plan = as_written(plan, written)
        network = network_description(network_of(self, data.public))
        refuse_differences("the run's model and this one", saved.network or {}, network, frozenset())
        refuse_differences(
            "the files published at the start and those in release/", saved.files, published_digests(folder),
            frozenset(),
        )  # fmt: skip
        charged = charged_steps(ledger, plan)
        state = read_checkpoint(folder, charged, plan.steps)
        hand_over(team, plan, saved.split_key)
        public, records, kept = before_training_again(
            plan.stages, data, folder, split_source(self.noise_source, saved.split_key), False, reading(plan)
        )
        if not hmac.compare_digest(records_mac(saved.key, records), saved.mac):
            raise ConfigError(
                "the data are not those that the run started with; resume needs the very same records, in the same "
                "order. Nothing was charged."
            )
        show_records(team, saved.key, saved.mac)
        start = {**state, "step": charged}
        return self._run(plan, public, records, ledger, folder, progress, start, command, team, kept)

    def describe(self) -> dict[str, Any]:
        """The constructor's arguments as plain values (no paths, no live objects)."""
        skipped = {"run_dir", "noise_source", "loss"}
        values = {
            name: value for name, value in vars(self).items() if name not in skipped and not name.startswith("dataset_")
        }
        values["model"] = model_name(self)
        values["own_loss"] = self.loss is not None
        return dict(to_jsonable(values))
