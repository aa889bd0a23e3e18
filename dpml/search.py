"""``PrivateSearch``: try several settings, release the best model, and pay for the choice.

The winner of several runs costs more than one run: which of them won depends on the data.  Here the whole search is
one event, planned and charged before a record is read.  Proofs and edge cases: docs/private-search.md.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator

from dpml import accounting
from dpml.accounting import Ledger
from dpml.accounting.normal_form import flatten
from dpml.accounting.verification import file_digest, result_digest
from dpml.arguments import check_noise_source
from dpml.data import PrivateData, PublicInfo, Records
from dpml.erm import PURE_VARIANTS
from dpml.errors import ConfigError, LedgerError, ModelError, invalid
from dpml.linear_methods import LINEAR_METHODS
from dpml.mechanisms import NoiseSource, default_noise
from dpml.processes import refuse_several
from dpml.release import MODEL_FILE, PrivateModel, RunFolder
from dpml.results import Guarantee, dumps, to_jsonable
from dpml.running import private_scores, public_scores
from dpml.runs import Plan, Progress, RunResult, public_description
from dpml.search_arguments import (
    PUBLIC_TEST,
    REPEAT,
    Settings,
    check_names,
    check_settings,
    expand,
    readable,
)
from dpml.search_draws import (
    as_share,
    draw_by_weight,
    draw_candidate,
    draw_count,
    holdout_score,
    noisy_score,
    split_by_coins,
)
from dpml.search_plan import SearchPlan, make_search_plan, selection_sensitivity
from dpml.search_result import SearchResult
from dpml.trainer import PrivateTrainer

FAILED = -math.inf
"""Score of a run whose weights are not finite: a function of its private weights, worse than any other."""


@dataclass(frozen=True)
class _Run:
    index: int
    score: float
    model: PrivateModel | None


@dataclass(frozen=True)
class _Candidate:
    """``params`` as the user gave them, ``arguments`` with the shared ones, and the plan of one run."""

    params: dict[str, Any]
    arguments: dict[str, Any]
    plan: Plan


class _PlannedTrainer(PrivateTrainer):
    """A trainer that follows the plan that the search made for it, in place of making it anew for every run."""

    planned: Plan | None = None

    def plan(self, data: PrivateData) -> Plan:
        return super().plan(data) if self.planned is None else self.planned


class PrivateSearch(BaseEstimator):
    """Choose among settings of :class:`~dpml.trainer.PrivateTrainer` under one (ε, δ) for everything.

    Args:
        candidates: a list of dicts of trainer arguments, or a dict of lists (the grid of all combinations).
        trainer: arguments that all candidates share.
        epsilon, delta: the budget of the whole search, selection included.  Default ε is 1, default δ as for a run.
        neighboring_relation: ``"add_remove"`` or ``"replace_one"``.
        accountant: as for a run; ``"repeat"`` needs ``"best"`` or ``"rdp"``.
        mechanism: ``"repeat"`` runs a secret random number of candidates, drawn uniformly with replacement, and
            releases the best by its noisy hold-out score; its price hardly grows with the number of runs (Papernot &
            Steinke 2022).  ``"exponential"`` trains every candidate once, each fully charged, and draws the winner by
            the exponential mechanism: for a few candidates.
        distribution, shape: of K for ``"repeat"``: ``"tnb"`` (truncated negative binomial; shape 1 geometric,
            0 logarithmic) or ``"poisson"``.
        mean_runs: E K; default is 3 per candidate (1 for a single candidate).
        holdout: probability with which a record goes to the hold-out by its own secret coin, or ``"public_test"``:
            score on the test set that the data declare public, without noise.
        score_share: the score of one run gets the noise of this share of the run's ε.
        selection_share: share of ε for the exponential mechanism.
        run_dir: folder for the run's files; ``None`` keeps everything in memory.
        noise_source: tests only; a source that is not secret is named in the guarantee's assumptions.
        dataset_ledger, dataset_epsilon, dataset_delta, dataset_filter: as for a run; the search counts as one run.

    Attributes (after :meth:`fit`):
        best_params_, best_index_, best_model_: the winner; ``None`` where no run gave a model.
        guarantee_, plan_, result_: of the whole search.
        n_candidates_: how many candidates there were.  The number of runs K is secret.
        scores_: (candidate, score) of each run where the data are declared public, else ``None``.
    """

    def __init__(
        self,
        candidates: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]],
        trainer: Mapping[str, Any] | None = None,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        neighboring_relation: str = "add_remove",
        accountant: str = "best",
        mechanism: str = "repeat",
        distribution: str = "tnb",
        shape: float = 1.0,
        mean_runs: float | None = None,
        holdout: float | str = 0.2,
        score_share: float = 0.3,
        selection_share: float = 0.1,
        run_dir: str | os.PathLike[str] | None = None,
        noise_source: NoiseSource | None = None,
        dataset_ledger: str | os.PathLike[str] | None = None,
        dataset_epsilon: float | None = None,
        dataset_delta: float | None = None,
        dataset_filter: str = "basic",
    ) -> None:
        self.candidates = candidates
        self.trainer = trainer
        self.epsilon = epsilon
        self.delta = delta
        self.neighboring_relation = neighboring_relation
        self.accountant = accountant
        self.mechanism = mechanism
        self.distribution = distribution
        self.shape = shape
        self.mean_runs = mean_runs
        self.holdout = holdout
        self.score_share = score_share
        self.selection_share = selection_share
        self.run_dir = run_dir
        self.noise_source = noise_source
        self.dataset_ledger = dataset_ledger
        self.dataset_epsilon = dataset_epsilon
        self.dataset_delta = dataset_delta
        self.dataset_filter = dataset_filter

    # -- plan ---------------------------------------------------------------------------------------------------------
    def plan(self, data: PrivateData) -> SearchPlan:
        """Everything that the search will do, from public knowledge only; no record is read.

        Raises:
            ConfigError: an argument that is not allowed, by name, or a budget that is too small.
            UnsupportedEventError: no accountant bounds this search.
        """
        return self._prepare(data.public)[0]

    def _prepare(self, public: PublicInfo) -> tuple[SearchPlan, list[_Candidate]]:
        """The plan, and each candidate with its own."""
        base = check_names("trainer", {} if self.trainer is None else self.trainer)
        found = expand(self.candidates)
        arguments = [{**base, **check_names(f"candidates[{k}]", one)} for k, one in enumerate(found)]
        if getattr(public, "task", "classification") != "classification":
            raise ConfigError(
                "PrivateSearch scores right answers: it takes data with classes, not a regression target."
            )
        if self.epsilon is None:
            raise invalid("epsilon", None, "a finite number > 0", "Leave it out for 1.")
        check_noise_source(self.noise_source)
        whole = self._whole_trainer()
        delta = public.usual_delta if whole.delta is None else whole.delta
        if delta >= 1.0 / public.n_declared:
            raise invalid("delta", delta, f"< 1/n_declared = {1.0 / public.n_declared:.3g}")
        mechanism, distribution, shape, mean_runs, holdout, score_share, selection_share = check_settings(
            mechanism=self.mechanism,
            distribution=self.distribution,
            shape=self.shape,
            mean_runs=self.mean_runs,
            holdout=self.holdout,
            score_share=self.score_share,
            selection_share=self.selection_share,
            number=len(found),
            public=public,
        )
        settings = Settings(
            mechanism=mechanism,
            epsilon=float(self.epsilon),
            delta=delta,
            neighboring_relation=self.neighboring_relation,
            accountant=self.accountant,
            distribution=distribution,
            shape=shape,
            mean_runs=mean_runs,
            holdout=holdout,
            score_share=score_share,
            selection_share=selection_share,
            secret=self.noise_source is None or self.noise_source.secret,
        )
        one_run = len(found) == 1 if mechanism != REPEAT else shape is not None and mean_runs == 1
        fraction = 0.0 if one_run or holdout == PUBLIC_TEST else float(holdout)
        train = PrivateData(training_part(public, fraction), _never_read)
        plan, plans = make_search_plan(
            settings,
            found,
            lambda k, epsilon, delta: self._one(arguments[k], epsilon, delta, None),
            public,
            train,
            int(base.get("seed", 0)),
        )
        return plan, [
            _Candidate(dict(one), *pair) for one, pair in zip(found, zip(arguments, plans, strict=True), strict=True)
        ]

    def _whole_trainer(self) -> PrivateTrainer:
        """Checks ε, δ, relation, accountant and the data set ledger as a run does."""
        return PrivateTrainer(
            method="output",
            epsilon=self.epsilon,
            delta=self.delta,
            neighboring_relation=self.neighboring_relation,
            accountant=self.accountant,
            dataset_ledger=self.dataset_ledger,
            dataset_epsilon=self.dataset_epsilon,
            dataset_delta=self.dataset_delta,
            dataset_filter=self.dataset_filter,
        )

    def _one(
        self, arguments: Mapping[str, Any], epsilon: float, delta: float, noise: NoiseSource | None
    ) -> _PlannedTrainer:
        """One run's trainer; a module of the user's is copied, so that no run sees what another one did to it."""
        own: dict[str, Any] = {
            name: value if isinstance(value, str) else copy.deepcopy(value) for name, value in arguments.items()
        }
        return _PlannedTrainer(
            **own,
            epsilon=epsilon,
            delta=None if own.get("variant") in PURE_VARIANTS else delta,  # they are pure: δ = 0
            neighboring_relation=self.neighboring_relation,
            noise_source=noise,
            compare_nonprivate=False,
        )

    # -- fit ----------------------------------------------------------------------------------------------------------
    def fit(self, data: PrivateData, *, progress: Progress | None = None, command: str | None = None) -> PrivateSearch:
        """Plan, charge everything once, read, run, select, recompute and release.

        Args:
            data: the private data; read only after the whole search is charged.
            progress: called after each run with (runs done, K, ε of the search).  K is secret: for the custodian's
                eyes only.
            command: the command line that repeats the search, for the report.

        Raises:
            ConfigError, AccountingError, BudgetExceededError, RunFolderError: nothing was read.
            DataError, LedgerError, SolverError: nothing was released; what was charged stays spent.
        """
        refuse_several("PrivateSearch", "Its candidates are trained one after the other in one process.")
        plan, candidates = self._prepare(data.public)
        cap = self._whole_trainer().cap()
        name = "in memory" if self.run_dir is None else str(Path(self.run_dir).absolute())
        promise = plan.guarantee
        if cap is not None:
            cap.check(name, promise.epsilon, promise.delta, plan.event)
        folder = None if self.run_dir is None else RunFolder.create(self.run_dir)
        if folder is not None:
            folder.publish("config.yaml", dumps(self.describe()) + "\n")
            folder.publish("schema.json", dumps(public_description(data.public)) + "\n")
        ledger = Ledger.create(None if folder is None else folder.release / "ledger.jsonl", plan.to_dict())
        try:
            if cap is not None:
                cap.reserve(name, promise.epsilon, promise.delta, plan.event)
            ledger.charge(plan.event, stage="search")
            noise = self.noise_source or default_noise()
            records = data.load(noise, sparse=all(one.plan.method in LINEAR_METHODS for one in candidates))
            runs, notes = self._runs(plan, candidates, data.public, records, noise, progress)
            best = self._select(plan, runs, noise)
            result = self._result(plan, candidates, data.public, records, ledger, folder, best, notes, command)
        finally:
            ledger.release()
        self.plan_, self.result_ = plan, result
        self.guarantee_ = result.guarantee
        self.n_candidates_ = len(plan.candidates)
        self.best_index_, self.best_params_, self.best_model_ = result.best_index, result.best_params, result.model
        self.scores_ = [(run.index, run.score) for run in runs] if data.public.is_public else None
        return self

    def _runs(
        self,
        plan: SearchPlan,
        candidates: Sequence[_Candidate],
        public: PublicInfo,
        records: Records,
        noise: NoiseSource,
        progress: Progress | None,
    ) -> tuple[list[_Run], dict[str, Any]]:
        """Train and score; which candidates and how many is drawn from the secret source."""
        number = len(candidates)
        train, held = Records(records.X, records.y), None
        if plan.needs_score and plan.holdout == PUBLIC_TEST:
            if records.X_test is None or records.y_test is None:
                raise ConfigError("holdout = 'public_test', but the data gave no test records. Use holdout=0.2.")
            held = Records(records.X_test, records.y_test)
        elif plan.needs_score:
            train, held = split_by_coins(records, float(plan.holdout), noise)

        def read(_: object, sparse: bool = False) -> Records:
            return train

        part = PrivateData(training_part(public, 0.0 if held is None else plan.holdout), read)
        count = draw_count(plan, noise) if plan.mechanism == REPEAT else number
        trainers = [self._one(one.arguments, plan.base_epsilon, plan.base_delta, noise) for one in candidates]
        for trainer, one in zip(trainers, candidates, strict=True):
            trainer.planned = one.plan
        runs: list[_Run] = []
        for k in range(count):
            index = draw_candidate(number, noise) if plan.mechanism == REPEAT else k
            model = _train(trainers[index], part, plan.candidate_events[index])
            score = FAILED if model is None else 0.0 if held is None else holdout_score(model, held)
            if plan.score_noise_std and math.isfinite(score):
                score = noisy_score(score, plan, noise)
            runs.append(_Run(index, score, model))
            if progress is not None:
                progress(k + 1, count, plan.guarantee.epsilon)
        notes = {
            "n_runs": count,
            "runs": [{"candidate": run.index, "score": run.score} for run in runs],
            "n_train": int(train.X.shape[0]),
            "n_holdout": 0 if held is None else int(held.X.shape[0]),
        }
        return runs, notes

    def _select(self, plan: SearchPlan, runs: Sequence[_Run], noise: NoiseSource) -> _Run | None:
        """The winner, or ``None`` where no run gave a model.  Of equal scores the first: runs are exchangeable."""
        alive = [run for run in runs if run.model is not None]
        if not alive:
            return None
        if plan.selection_epsilon:
            sensitivity = selection_sensitivity(plan.guarantee.neighboring_relation)
            scores = [run.score for run in runs]
            return runs[draw_by_weight(scores, plan.selection_epsilon, sensitivity, noise)]
        return max(alive, key=lambda run: run.score)

    def _result(
        self,
        plan: SearchPlan,
        candidates: Sequence[_Candidate],
        public: PublicInfo,
        records: Records,
        ledger: Ledger,
        folder: RunFolder | None,
        best: _Run | None,
        notes: dict[str, Any],
        command: str | None,
    ) -> SearchResult:
        """Recompute ε, close the ledger and publish; the order is that of a run."""
        guarantee, used = self._recompute(plan, ledger)
        model = None if best is None else best.model
        metrics: dict[str, float | str] = {}
        if public.test_is_public:
            metrics = {} if model is None else public_scores(model, records)
            chosen = ", which the selection used as well" if plan.holdout == PUBLIC_TEST else ""
            metrics |= {"source": f"{metrics['source']}{chosen}"} if metrics else {}
        score = None if best is None or not plan.score_noise_std else as_share(best.score, plan)
        result = SearchResult(
            guarantee=guarantee,
            trajectory=plan.trajectory,
            ledger={},
            metrics=metrics,
            plan=plan,
            best_index=None if best is None else best.index,
            best_params=None if best is None else dict(candidates[best.index].params),
            model=model,
            score=score,
            accountant_used=used,
            run_dir=None if folder is None else folder.path,
            private={**records.private_notes, **notes},
            failure="no run gave a model" if model is None else None,
            command=command,
        )
        files: dict[str, str] = {}
        weights = None if model is None else model.to_bytes()
        if folder is not None:
            files = {name: file_digest(folder.release / name) for name in ("config.yaml", "schema.json")}
            if weights is not None:
                files[MODEL_FILE] = hashlib.sha256(weights).hexdigest()
        ledger.close(
            {
                "epsilon": to_jsonable(guarantee.epsilon),
                "delta": guarantee.delta,
                "steps": 1,
                "result": result_digest(result.to_dict()),
                "files": files,
            }
        )
        result = replace(result, ledger={"head": ledger.head, "count": ledger.count})
        if folder is not None:
            if weights is not None:
                folder.publish(MODEL_FILE, weights)
            folder.publish("result.json", dumps(result.to_dict()) + "\n")
            folder.link_to_top("result.json")
        if not public.test_is_public:  # after everything is published: it cannot tell by stopping a release
            result = replace(
                result, private={**result.private, "test": {} if model is None else private_scores(model, records)}
            )
        if folder is not None:
            folder.keep("diagnostics.json", result.private)
        return result

    def _recompute(self, plan: SearchPlan, ledger: Ledger) -> tuple[Guarantee, str]:
        """ε of what the ledger charged; it must be the plan's event and within the promise."""
        promise, event = plan.guarantee, ledger.charged
        if flatten(event) != flatten(plan.event):
            raise LedgerError("what the ledger charged is not what the plan says: nothing was released.")
        relation = promise.neighboring_relation
        if promise.accountant == "best":
            epsilon, used = accounting.best(event, promise.delta, neighboring_relation=relation)
        else:
            used = promise.accountant
            epsilon = accounting.epsilon(event, promise.delta, accountant=used, neighboring_relation=relation)
        if not epsilon <= promise.epsilon * (1 + 1e-12):
            raise LedgerError(
                f"the ledger's events give epsilon = {epsilon!r}, more than the promised {promise.epsilon!r}: "
                "nothing was released."
            )
        return replace(promise, epsilon=epsilon), used

    def describe(self) -> dict[str, Any]:
        """The constructor's arguments as plain values (no paths, no live objects)."""
        skipped = {"run_dir", "noise_source"}
        values = {k: v for k, v in self.get_params(deep=False).items() if k not in skipped and "dataset_" not in k}
        values["trainer"] = readable(self.trainer or {})
        values["candidates"] = [readable(one) for one in expand(self.candidates)]
        return dict(to_jsonable(values))


def training_part(public: PublicInfo, holdout: float | str) -> PublicInfo:
    """Public knowledge of the training part: the nominal size scaled by the public fraction, no test records."""
    share = 0.0 if isinstance(holdout, str) else holdout
    return replace(
        public,
        n_declared=max(1, round(public.n_declared * (1 - share))),
        has_test=False,
        test_is_public=False,
        default_delta=None,
    )


def _never_read(_: object, sparse: bool = False) -> Records:
    raise LedgerError("a plan must not read records. This is a bug in dpml; please report it.")


def _train(trainer: PrivateTrainer, part: PrivateData, planned: accounting.Event) -> PrivateModel | None:
    """One run of the base mechanism; ``None`` where its private weights are not finite.

    The run keeps its own ledger in memory: what it used must be what the plan charged for it.
    """
    try:
        result: RunResult = trainer.fit(part)
    except ModelError:
        return None
    if flatten(result.plan.event) != flatten(planned):
        raise LedgerError("a candidate's event is not the planned one: nothing was released. This is a bug in dpml.")
    return result.model
