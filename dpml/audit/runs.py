"""``PrivateTrainer.audit``: attack a run as it is configured, and set what was found beside what it claims.

``game="one_run"`` trains once, with canaries that are in or out by fair coins, and guesses the coins.
``game="two_world"`` trains the convex methods again and again on two neighbouring made-up data sets.

**What an audit may publish.**  Trained ``on="records"``, an audit is a charged run like any other: the data with the
canaries are a data set, the run's ledger pays for what is released of it, and neighbouring data sets that hold the same
canaries have the run's (ε, δ).  The canaries and their coins are fresh random numbers (or rows declared public), drawn
whatever the records are.  All the rest of ``release/audit.json`` (scores, guesses, rates, bounds, points) is computed
from them and from the noisy gradients of the run's steps, which its ε grants to everybody, or from its released model:
post-processing of charged values.  How long it took is not written down, for that depends on records.
Trained ``on="stand_in"`` nothing depends on a record; ``audit.json`` lies in the audit's own folder and says so.

This module is above the trainer; the auditors that it calls are handed scores.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpml import audit
from dpml.accounting import tradeoffs
from dpml.audit.keeping import AuditFolder
from dpml.audit.result import AuditResult
from dpml.audit.run_settings import RunAuditSettings, settled
from dpml.data import PrivateData
from dpml.errors import AccountingError
from dpml.mechanisms import SecretNoise
from dpml.planning import method_of, network_of
from dpml.processes import world_size
from dpml.results import dumps, to_jsonable, write_atomic
from dpml.rounding import upper as rounded_up
from dpml.runs import Plan
from dpml.stages.planning import check_shares
from dpml.version import __version__

if TYPE_CHECKING:
    from dpml.trainer import PrivateTrainer

AUDIT_FILE, PICTURE = "audit.json", "tradeoff.png"
FORMAT = 1
RATES = (0.01, 0.05, 0.2, 0.5, 0.8)
"""False-positive rates of the attacks that are drawn."""
POINTS_MEANING = {
    "two_world": "upper confidence limits on the error rates of attacks that were carried out, all together",
    "one_run": "error rates of guesses about the canaries of one training, with limits that would hold if the canaries "
    "were independent: for the picture only",
}


@dataclass(frozen=True)
class RunAudit:
    """An audit of one configured run: the bound from below beside the claim.

    Attributes:
        settings: without ``"auto"``.
        result: the bound, and how it came about.
        plan: of the run that was attacked.
        epsilon_upper: what the run claims at ``result.delta``.
        attack: the attack in one line.
        trained_on: ``"records and canaries"``, ``"canaries alone"`` or ``"two made-up data sets"``.
        charged: whether the audit was itself a charged release of the records.
        curve: (α, β) of the claimed trade-off.
        points: (α, β) of attacks; see :data:`POINTS_MEANING`.
        folder: where the files are, ``None`` without a folder.
    """

    settings: RunAuditSettings
    result: AuditResult
    plan: Plan
    epsilon_upper: float
    attack: str
    trained_on: str
    charged: bool
    curve: tuple[tuple[float, ...], tuple[float, ...]]
    points: tuple[tuple[float, float], ...]
    folder: Path | None

    @property
    def contradicted(self) -> bool:
        """Whether the claim is refuted at the bound's confidence."""
        return self.result.exceeds(self.epsilon_upper)

    def to_dict(self) -> dict[str, Any]:
        """The content of ``audit.json``."""
        asked, found = self.settings, self.result
        return {
            "format": FORMAT,
            "epsilon_lower": found.epsilon_lower,
            "epsilon_upper": self.epsilon_upper,
            "delta": found.delta,
            "confidence": found.confidence,
            "contradicted": self.contradicted,
            "method": f"{found.method}: {self.attack}",
            "points": [list(point) for point in self.points],
            "points_meaning": POINTS_MEANING[asked.game],
            "assumptions": list(found.assumptions),
            "audited": {"method": self.plan.method, "model": self.plan.model, "steps": self.plan.steps},
            "game": asked.game,
            "access": asked.access,
            "canary": asked.canary,
            "trained_on": self.trained_on,
            "charged": self.charged,
            "runs": found.runs,
            "counts": dict(found.counts),
            "rates": dict(found.rates),
            "tradeoff": {"type1_errors": list(self.curve[0]), "type2_errors": list(self.curve[1])},
        }

    def rows(self) -> list[tuple[str, str]]:
        """What a person wants to know, as (name, value) pairs."""
        lower, upper, found = self.result.epsilon_lower, self.epsilon_upper, self.result
        share = f"   ({lower / upper:.2f} of the claim)" if 0 < upper < math.inf else ""
        verdict = "CONTRADICTED: this run is not as private as it says" if self.contradicted else "not contradicted"
        cost = "charged: this audit is a release of its own" if self.charged else "nothing was charged"
        return [
            (
                "claimed",
                f"ε ≤ {rounded_up(upper, 6)} at δ = {rounded_up(found.delta)} ({self.plan.guarantee.accountant})",
            ),
            ("attacked", f"ε ≥ {lower:.4f} with confidence {found.confidence:g}{share}"),
            ("attack", f"{found.method}: {self.attack}"),
            ("trained on", f"{self.trained_on}; {cost}"),
            *(("assumes", text) for text in found.assumptions),
            ("claim", verdict),
            *([("files", str(self.folder))] if self.folder is not None else []),
        ]


def audit_trainer(
    trainer: PrivateTrainer,
    data: PrivateData,
    asked: RunAuditSettings,
    *,
    progress: Callable[..., None] | None = None,
    config: str | None = None,
    command: str | None = None,
) -> RunAudit:
    """Attack the run that ``trainer`` would make of ``data``.

    Args:
        trainer: with its ``run_dir``, or none for an audit in memory.
        data: read only with ``on="records"``.
        asked: how.
        progress: ``(step, steps, ε so far)`` in the one-run game, ``(runs done, runs, ε)`` in the other.
        config, command: as of :meth:`PrivateTrainer.fit`.

    Raises:
        ConfigError: the run cannot be audited so; nothing was read or charged.
        All that :meth:`PrivateTrainer.fit` raises.
    """
    public = data.public
    method = method_of(trainer, public)
    settings = settled(
        asked,
        method=method,
        neighboring_relation=trainer.neighboring_relation,
        is_public=public.is_public,
        sampling=trainer.sampling,
        shares=bool(check_shares(trainer.shares)),
        processes=world_size(),
        n_parameters=_size(trainer, data) if method == "dp_sgd" else 0,
    )
    plan = trainer.plan(data)
    folder = None if trainer.run_dir is None else Path(trainer.run_dir).absolute()
    arguments = (trainer, data, plan, settings, progress, config, command)
    if folder is None:
        return _attacked(*arguments)
    if settings.on == "records":  # a run folder, with the lock of one
        return _written(folder, _attacked(*arguments), config)
    with AuditFolder(folder, _task(plan, settings)) as kept:
        return _written(folder, _attacked(*arguments, kept), config)


def _attacked(
    trainer: PrivateTrainer,
    data: PrivateData,
    plan: Plan,
    settings: RunAuditSettings,
    progress: Callable[..., None] | None,
    config: str | None,
    command: str | None,
    kept: AuditFolder | None = None,
) -> RunAudit:
    if settings.game == "two_world":
        return _two_worlds(data, plan, settings, progress, kept)
    return _one_run(trainer, data, plan, settings, progress, config, command)


def _written(folder: Path, found: RunAudit, config: str | None) -> RunAudit:
    found = replace(found, folder=folder)
    write(folder, found, config)
    return found


def _task(plan: Plan, settings: RunAuditSettings) -> dict[str, Any]:
    """What is audited: scores of one task are used for no other.  How many processes there are does not matter."""
    return {
        "format": FORMAT,
        "version": __version__,
        "settings": to_jsonable(replace(settings, workers=1)),
        "guarantee": to_jsonable(plan.guarantee),
        "method": plan.method,
        "model": plan.model,
        "parameters": repr(plan.parameters),
    }


def write(folder: Path, found: RunAudit, config: str | None) -> None:
    """``audit.json`` and ``tradeoff.png``: in ``release/`` of a charged run, else in the audit's own folder."""
    from dpml.report.privacy_plots import plot_tradeoff

    target = folder / "release" if found.charged else folder
    if not found.charged and config is not None:
        write_atomic(target / "config.yaml", config)
    claim = f"ε = {rounded_up(found.epsilon_upper)} at δ = {rounded_up(found.result.delta)}"
    plot_tradeoff(
        {f"claimed: no attack below ({claim})": found.curve},
        target / PICTURE,
        points={f"attack at α ≤ {alpha:.3g}": (alpha, beta) for alpha, beta in found.points},
        title="What the run claims, and what attacks on it reached",
    )
    write_atomic(target / AUDIT_FILE, dumps(found.to_dict()) + "\n")  # the last: with it the audit is finished


# ---------------------------------------------------------------------------------------------------- two worlds


def _two_worlds(
    data: PrivateData,
    plan: Plan,
    settings: RunAuditSettings,
    progress: Callable[..., None] | None,
    kept: AuditFolder | None,
) -> RunAudit:
    from dpml.audit import refits

    public, upper = data.public, plan.guarantee.epsilon
    assert public.norm_bound is not None

    def make(copies: int) -> refits.Worlds:
        return refits.Worlds(
            plan.parameters, plan.model, plan.method, len(public.classes) or 1, public.n_features,
            float(public.norm_bound or 1.0), copies, plan.guarantee.neighboring_relation == "replace_one",
        )  # fmt: skip

    worlds = refits.best_worlds(make)
    told = None if progress is None else (lambda done, runs: progress(done, runs, upper))
    out, inside = refits.all_scores(worlds, settings.runs, settings.workers, told, kept)
    result = audit.distinguish_scores(
        out, inside, delta=plan.guarantee.delta, confidence=settings.confidence, assumption=settings.analysis
    )
    words = f"{settings.runs:,} trainings of two data sets that differ in one record, {worlds.copies} like it beside it"
    return _finding(plan, settings, result, words, "two made-up data sets", (out, inside))


# ------------------------------------------------------------------------------------------------------- one run


def _one_run(
    trainer: PrivateTrainer,
    data: PrivateData,
    plan: Plan,
    settings: RunAuditSettings,
    progress: Callable[..., None] | None,
    config: str | None,
    command: str | None,
) -> RunAudit:
    included = audit.fair_coins(settings.canaries)
    attack = _white_box if settings.access == "white_box" else _black_box
    scores, words, trained = attack(trainer, data, plan, settings, included, progress, config, command)
    plan = replace(trained, model=plan.model)  # the run that was made; its network may have been wrapped
    result = audit.audit_one_run(
        scores,
        included,
        delta=plan.guarantee.delta,
        confidence=settings.confidence,
        guesses=(settings.guesses - settings.guesses // 2, settings.guesses // 2),
        analysis=settings.analysis,
        sign=1,
    )
    where = "records and canaries" if settings.on == "records" else "canaries alone"
    return _finding(plan, settings, result, words, where, (scores[~included], scores[included]))


def _size(trainer: PrivateTrainer, data: PrivateData) -> int:
    return sum(p.numel() for p in network_of(trainer, data.public).parameters() if p.requires_grad)


def _says_so(trainer: PrivateTrainer, settings: RunAuditSettings) -> tuple[str, ...]:
    kind = {"gradient": "random gradients", "input": "random rows", "mislabelled": "public rows with a wrong label"}
    return (
        *trainer.assumptions,
        f"AUDIT: half of {settings.canaries} canaries ({kind[settings.canary]}) were trained together with the "
        "records: the model holds them",
    )


def _derived(trainer: PrivateTrainer, **changes: Any) -> PrivateTrainer:
    """A trainer with the same arguments but for ``changes``."""
    names = [name for name in inspect.signature(type(trainer).__init__).parameters if name != "self"]
    return type(trainer)(**({name: getattr(trainer, name) for name in names} | changes))


def _common(trainer: PrivateTrainer, settings: RunAuditSettings) -> dict[str, Any]:
    """Arguments of the audit's own run; on a stand-in nobody's ledger is charged and no run folder is made."""
    changes: dict[str, Any] = {"assumptions": _says_so(trainer, settings), "compare_nonprivate": False}
    if settings.on == "stand_in":
        changes |= {"run_dir": None, "dataset_ledger": None, "dataset_epsilon": None, "dataset_delta": None}
        changes |= {"dataset_filter": "basic"}
    return changes


def _fit(
    trainer: PrivateTrainer,
    data: PrivateData,
    settings: RunAuditSettings,
    progress: Callable[..., None] | None,
    config: str | None,
    command: str | None,
) -> Any:
    """Train; a stand-in has no folder, so that nothing of it looks like a release."""
    if settings.on == "stand_in":
        return trainer.fit(data, progress=progress)
    return trainer.fit(data, progress=progress, config=config, command=command)


Attacked = tuple[np.ndarray, str, Plan]


def _black_box(
    trainer: PrivateTrainer,
    data: PrivateData,
    plan: Plan,
    settings: RunAuditSettings,
    included: np.ndarray,
    progress: Callable[..., None] | None,
    config: str | None,
    command: str | None,
) -> Attacked:
    """Scores ``(m,)``: how small each canary's loss is at the final model (a reference is the same for all)."""
    from dpml.audit import canary_runs as made

    if settings.canary == "mislabelled":
        rows, labels = made.mislabelled_rows(data, SecretNoise(), settings.canaries)
    else:
        rows, labels = made.input_rows(data.public, settings.canaries)
    joined = made.with_canaries(data, rows[included], labels[included], alone=settings.on == "stand_in")
    result = _fit(_derived(trainer, **_common(trainer, settings)), joined, settings, progress, config, command)
    scores = audit.black_box_scores(np.zeros(len(rows)), made.loss_of(result.model, rows, labels))
    return scores, f"{settings.canaries:,} {settings.canary} canaries, the final model", result.plan


def _white_box(
    trainer: PrivateTrainer,
    data: PrivateData,
    plan: Plan,
    settings: RunAuditSettings,
    included: np.ndarray,
    progress: Callable[..., None] | None,
    config: str | None,
    command: str | None,
) -> Attacked:
    """Likelihood scores ``(m,)`` from every step's noisy gradient; the network is wrapped, the rest is the run's."""
    import torch

    from dpml.audit import canary_runs as made
    from dpml.running import network_loss
    from dpml.sgd import per_example_loss

    network, loss = network_of(trainer, data.public), network_loss(trainer)
    size, count, steps = _size(trainer, data), settings.canaries, plan.parameters
    directions, places = None, np.random.default_rng().permutation(size)[:count]
    if count > size:
        directions = audit.gradient_canaries(count, size, norm=1.0)
    signs, clock = made.step_signs(count, steps.steps), made.Clock()
    target, slope = made.slope_at_zero(network, loss or per_example_loss, data.public)
    module = made.CanaryModule(
        network,
        None if directions is None else torch.from_numpy(directions),
        torch.from_numpy(places if directions is None else np.arange(count)),
        torch.from_numpy(signs),
        made.LENGTH * steps.max_grad_norm / slope,
        clock,
    )
    kind = np.float64 if data.public.task == "regression" else np.int64
    rows, labels = made.marked_rows(data.public, count), np.full(count, target, dtype=kind)
    wrapped = _derived(
        trainer, **_common(trainer, settings), model=module, method="dp_sgd", loss=loss, gradients="per_example",
        hidden=(64,), loss_parameter=None, solution_norm="auto", max_grad_norm=steps.max_grad_norm, epochs=None,
        expected_batch_size=steps.expected_batch_size, steps=steps.steps, learning_rate=steps.learning_rate,
        checkpoint_every=1, micro_batch_size=None,
    )  # fmt: skip
    joined = made.with_canaries(data, rows[included], labels[included], alone=settings.on == "stand_in")
    reader = made.StepReader(steps, directions, places, clock, progress)
    result = _fit(wrapped, joined, settings, reader, config, command)
    shares = made.signed_shares(np.stack(reader.shares, axis=1), signs, records=settings.on == "records")
    scores = audit.likelihood_scores(shares, steps.sample_rate, steps.gradient_noise_multiplier)
    return scores, f"{count:,} gradient canaries, every step of {steps.steps}", result.plan


# ------------------------------------------------------------------------------------------------------- results


def _finding(
    plan: Plan,
    settings: RunAuditSettings,
    result: AuditResult,
    words: str,
    trained_on: str,
    scores: tuple[np.ndarray, np.ndarray],
) -> RunAudit:
    return RunAudit(
        settings=settings,
        result=result,
        plan=plan,
        epsilon_upper=plan.guarantee.epsilon,
        attack=words,
        trained_on=trained_on,
        charged=settings.on == "records",
        curve=claimed_curve(plan),
        points=attacked_points(*scores, result.sign, settings.confidence),
        folder=None,
    )


def claimed_curve(plan: Plan) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(α, β): the smallest type-II errors that the run's event allows.

    By its (ε, δ) alone where no curve is known, and for ``objective``, whose curve takes half a minute.
    """
    errors = np.linspace(0.0, 1.0, 101)
    promise = plan.guarantee
    slope = math.exp(min(promise.epsilon, 700.0))
    plain = np.maximum(0.0, np.maximum(1 - promise.delta - slope * errors, (1 - promise.delta - errors) / slope))
    if plan.method == "objective":
        return tuple(errors.tolist()), tuple(plain.tolist())
    try:
        exact = tradeoffs.tradeoff(plan.event, errors, neighboring_relation=promise.neighboring_relation)
        plain = np.maximum(plain, exact)  # both hold
    except AccountingError:
        pass
    return tuple(errors.tolist()), tuple(plain.tolist())


def attacked_points(
    out: np.ndarray, inside: np.ndarray, sign: int, confidence: float
) -> tuple[tuple[float, float], ...]:
    """(α, β) of thresholds at :data:`RATES`: exact upper limits, all of them together at ``confidence``.

    Each threshold is a quantile of the first half of the scores without the canary; errors are those of the rest.  The
    canaries of one run are not independent runs, so there the points are for the picture only.
    """
    level, half = (1 - confidence) / (2 * len(RATES)), len(out) // 2
    if half == 0 or len(inside) == 0:
        return ()
    chosen, counted, hits = sign * out[:half], sign * out[half:], sign * inside
    points = []
    for rate in RATES:
        cut = np.quantile(chosen, 1 - rate)
        alpha = audit.upper_limit(np.count_nonzero(counted > cut), len(counted), level)
        beta = audit.upper_limit(np.count_nonzero(hits <= cut), len(hits), level)
        points.append((float(alpha), float(beta)))
    return tuple(points)
