"""``python -m dpml.audit``: attack a configured run (:mod:`dpml.audit.command`), or the engine alone (``dp_sgd …``).

What follows is ``python -m dpml.audit dp_sgd …``: attack the real DP-SGD engine and set what was found beside what it
claims.

Canaries are records whose gradient is a chosen direction of norm beyond the clip bound.  ``fit_dp_sgd`` trains on those
that are in; the attacker sees the weights after every step (white-box) and scores each canary by its share in them.

``game=two_world``: every canary has a coordinate of its own, so that each is one independent run of the two-world game
(a record in or out, everything else known), and one training is as many runs as there are coordinates.
``game=one_run``: the coins of m canaries are guessed from one training of a model of p parameters.

This file and :mod:`dpml.audit` share no code with the engine that they attack.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpml import audit
from dpml.accounting import api
from dpml.accounting.checks import check_count, check_number, check_one_of
from dpml.accounting.tradeoffs import tradeoff
from dpml.audit import guessing
from dpml.audit.result import AuditResult
from dpml.errors import ConfigError, DpmlError, invalid
from dpml.pipes import reader_may_leave
from dpml.results import dumps, write_atomic
from dpml.rounding import upper

EXAMPLES = """examples:
  python -m dpml.audit +experiment=logreg                                 a run of dpml.train, with canaries
  python -m dpml.audit +experiment=logreg method=objective audit.runs=4000
  python -m dpml.audit +experiment=logreg --help                          more about these

the engine alone:
  python -m dpml.audit dp_sgd epsilon=4                                   two worlds, 200,000 runs
  python -m dpml.audit dp_sgd noise_multiplier=2 steps=10 sample_rate=0.1
  python -m dpml.audit dp_sgd game=one_run epsilon=4 canaries=1000 parameters=50000 analysis=f_dp

exit status: 0 the claim stands, 1 the audit contradicts it at its confidence, 2 bad arguments"""

GAMES = ("two_world", "one_run")
COORDINATES = "noise, coins and clipping of different coordinates are independent, so that each coordinate is a run"
_NOMINAL = 10_000  # declared number of records: sample_rate is a multiple of its inverse
_NORM = 2.0  # of a canary's gradient before clipping, times C
_POINTS = (0.01, 0.05, 0.2, 0.5, 0.8)  # false-positive rates of the attacks that are drawn
_STEPS_ALONE = 8  # steps, evenly spaced, that are tried as scores of their own
_CHOOSING, _COMPARING = 0.1, 0.8  # share of the coordinates on which the score is chosen, and confidence there
_PLANNED = 0.8  # share of the failure probability that the planned bound has
_LARGEST = 2**28  # canaries times parameters of dense canaries


@dataclass(frozen=True)
class Settings:
    """What is attacked and how; names and defaults are those of the command line.

    Attributes:
        game: ``"two_world"`` or ``"one_run"``.
        epsilon, noise_multiplier: one of them; the noise is calibrated for ``epsilon``.
        delta, steps, sample_rate: of the run; the relation is ``add_remove``.
        runs: of the two-world game, both worlds together.
        canaries, parameters: of the one-run game.
        canary: ``"dirac"`` (a coordinate each) or ``"random"`` (dense directions; one-run only).
        analysis: ``"none"`` or ``"gaussian"`` in two worlds; ``"binomial"``, ``"f_dp"`` or ``"gaussian"`` in one run.
        guesses: how many coins are guessed in the one-run game; 0 for a fifth of the canaries.
        confidence: of the lower bound.
        output: folder for ``audit.json`` and ``tradeoff.png``.
    """

    game: str = "two_world"
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float = 1e-5
    steps: int = 4
    sample_rate: float = 1.0
    runs: int = 200_000
    canaries: int = 1000
    parameters: int = 50_000
    canary: str = "dirac"
    analysis: str = "auto"
    guesses: int = 0
    confidence: float = 0.95
    output: str = "audit"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; gives the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "dp_sgd" not in given and any(not text.startswith("-") for text in given):
        from dpml.audit.command import main as audit_a_run

        return audit_a_run(given)
    parser = argparse.ArgumentParser(
        prog="python -m dpml.audit",
        description="Attack a run, or the DP-SGD engine alone, and set what was found beside the claimed epsilon.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(field.name for field in fields(Settings))
    parser.add_argument("what", choices=["dp_sgd"], help="the engine; or the words of a run, see the examples")
    parser.add_argument("values", nargs="*", metavar="name=value", help=f"names: {names}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(given)
    try:
        settings = checked(parse(options.values))
        folder = Path(settings.output)
        folder.mkdir(parents=True, exist_ok=True)  # before minutes are spent
        found = run_audit(settings, progress=_progress if sys.stderr.isatty() else None)
        write(folder, found)
    except (DpmlError, OSError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 2
    with reader_may_leave():
        print(dumps(found.to_dict()) if options.json else found.text(folder))
    return 1 if found.result.exceeds(found.epsilon_upper) else 0


# ------------------------------------------------------------------------------------------------------ the audit


@dataclass(frozen=True)
class Finding:
    """An audit of one DP-SGD run: the bound from below beside the accountant's from above.

    Attributes:
        settings, result: what was asked and found; ``score``: by which score.
        epsilon_upper: the accountant's ε at ``settings.delta``, ``add_remove``.
        sample_rate, noise_multiplier: as they were in the run.
        curve: name ↦ (α, β) of the claimed trade-off; ``points``: name ↦ (α, β), limits on what attacks
            reached.
        seconds: how long training and attack took.
    """

    settings: Settings
    result: AuditResult
    score: str
    epsilon_upper: float
    sample_rate: float
    noise_multiplier: float
    curve: tuple[tuple[float, ...], tuple[float, ...]]
    points: Mapping[str, tuple[float, float]]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "settings": {field.name: getattr(self.settings, field.name) for field in fields(self.settings)},
            "epsilon_lower": self.result.epsilon_lower,
            "epsilon_upper": self.epsilon_upper,
            "score": self.score,
            "contradicted": self.result.exceeds(self.epsilon_upper),
            "sample_rate": self.sample_rate,
            "noise_multiplier": self.noise_multiplier,
            "result": self.result.to_dict(),
            "tradeoff": {"type1_errors": list(self.curve[0]), "type2_errors": list(self.curve[1])},
            "points": {name: list(point) for name, point in self.points.items()},
            "seconds": self.seconds,
        }

    def text(self, folder: Path) -> str:
        lower, claimed, asked = self.result.epsilon_lower, self.epsilon_upper, self.settings
        share = f", {lower / claimed:.2f} of it" if 0 < claimed < math.inf else ""
        contradicted = "CONTRADICTED: this code is not as private as it says."
        return "\n".join(
            [
                f"claimed   epsilon <= {upper(claimed, 5)} at delta {upper(asked.delta, 6)} "
                "(accountant best, add_remove)",
                f"attacked  epsilon >= {lower:.4f} with confidence {asked.confidence:g}{share}",
                f"          {self.result.method}, score {self.score}, {asked.steps} steps, "
                f"sample rate {self.sample_rate:g}, noise multiplier {self.noise_multiplier:.4f}, {self.seconds:.1f} s",
                *(f"          assumes: {line}" for line in self.result.assumptions),
                f"claim     {contradicted if self.result.exceeds(claimed) else 'not contradicted'}",
                f"files     {folder / 'audit.json'}, {folder / 'tradeoff.png'}",
            ]
        )


def run_audit(settings: Settings, *, progress: Callable[[int, int], None] | None = None) -> Finding:
    """Train with canaries, attack, and bound ε from both sides; ``progress(done, steps)`` is called after each step."""
    started = time.perf_counter()
    settings = checked(settings)
    count = settings.runs if settings.game == "two_world" else settings.canaries
    included = audit.fair_coins(count)
    parameters = count if settings.game == "two_world" else settings.parameters
    plan = plan_of(settings, parameters)
    shares = train(plan, settings.canary, included, parameters, progress)
    scored = scores_of(shares, plan, settings)
    epsilon_upper = api.epsilon(plan.event, settings.delta)
    if settings.game == "two_world":
        name, result = two_world(scored, included, plan, settings)
    else:
        name = "likelihood"
        r = settings.guesses or max(2, settings.canaries // 5)
        result = audit.audit_one_run(
            scored[name],
            included,
            delta=settings.delta,
            confidence=settings.confidence,
            guesses=(r - r // 2, r // 2),
            analysis=settings.analysis,
        )
    errors = np.linspace(0, 1, 101)
    return Finding(
        settings=settings,
        result=result,
        score=name,
        epsilon_upper=epsilon_upper,
        sample_rate=plan.sample_rate,
        noise_multiplier=plan.noise_multiplier,
        curve=(tuple(errors.tolist()), tuple(tradeoff(plan.event, errors).tolist())),
        points=attacked_points(scored[name][~included], scored[name][included], settings.confidence),
        seconds=time.perf_counter() - started,
    )


def scores_of(shares: np.ndarray, plan: Any, settings: Settings) -> dict[str, np.ndarray]:
    """Scores ``(m,)`` by name, all from the shares ``(m, T)``.

    ``likelihood`` is best against an engine that is right; the others see noise that is missing in one step or place.
    """
    scored = {"likelihood": audit.likelihood_scores(shares, plan.sample_rate, plan.noise_multiplier)}
    if settings.game == "one_run" or settings.analysis == "gaussian":
        return scored
    scored["nearest"] = -np.abs(shares - 1).min(axis=1)
    for step in np.unique(np.linspace(0, shares.shape[1] - 1, _STEPS_ALONE).astype(int)):
        scored[f"step {step + 1}"] = shares[:, step]
    return scored


def two_world(
    scored: Mapping[str, np.ndarray], included: np.ndarray, plan: Any, settings: Settings
) -> tuple[str, AuditResult]:
    """The better of two bounds, which share what is left of the confidence; coordinates are the runs.

    The *planned* one guesses by the likelihood with cuts that follow from the claim, so all runs are counted.  The
    *searched* one takes the score and the threshold that do best on some runs and counts the others: it sees what is
    wrong in ways that the claim does not foresee.
    """
    left = 1 - settings.confidence
    if settings.analysis == "gaussian":
        name, found = searched(scored, included, settings, settings.confidence)
    else:
        confidence = 1 - _PLANNED * left
        ratios = guessing.claimed_ratios(plan.steps, plan.sample_rate, plan.noise_multiplier)
        cuts = audit.planned_cuts(*ratios, len(included), delta=settings.delta, confidence=confidence)
        name = "likelihood"
        found = audit.guess_worlds(scored[name], included, cuts, delta=settings.delta, confidence=confidence)
        other, by_search = searched(scored, included, settings, 1 - (1 - _PLANNED) * left)
        if by_search.epsilon_lower > found.epsilon_lower:
            name, found = other, by_search
    return name, replace(
        found,
        runs=len(included),
        confidence=settings.confidence,
        assumptions=(COORDINATES, *dict.fromkeys((guessing.WORLDS, *found.assumptions))),
    )


def searched(
    scored: Mapping[str, np.ndarray], included: np.ndarray, settings: Settings, confidence: float
) -> tuple[str, AuditResult]:
    """The score that does best on the first coordinates, and its bound on the others."""
    first = np.arange(len(included)) < (round(_CHOOSING * len(included)) if len(scored) > 1 else 0)

    def bound(name: str, part: np.ndarray, confidence: float, selection: float = 0.1) -> AuditResult:
        return audit.distinguish_scores(
            scored[name][part & ~included],
            scored[name][part & included],
            delta=settings.delta,
            confidence=confidence,
            selection=selection,
            assumption=settings.analysis,
        )

    name = next(iter(scored))
    if len(scored) > 1:  # few runs: compared at a confidence at which they can say something
        name = max(scored, key=lambda name: bound(name, first, _COMPARING, 0.3).epsilon_lower)
    return name, bound(name, ~first, confidence)


def attacked_points(out: np.ndarray, inside: np.ndarray, confidence: float) -> dict[str, tuple[float, float]]:
    """(α, β) of thresholds at some false-positive rates: exact upper limits, all of them together at ``confidence``.

    Each threshold is a quantile of the first half of the scores without the record; errors are those of the rest.  In
    the one-run game canaries are no independent runs, so there the points are for the picture only.
    """
    level, half = (1 - confidence) / (2 * len(_POINTS)), len(out) // 2
    if half == 0 or len(inside) == 0:
        return {}
    points = {}
    for rate in _POINTS:
        cut = np.quantile(out[:half], 1 - rate)
        alpha = audit.upper_limit(np.count_nonzero(out[half:] > cut), len(out) - half, level)
        beta = audit.upper_limit(np.count_nonzero(inside <= cut), len(inside), level)
        points[f"attack at α ≈ {rate:g}"] = (float(alpha), float(beta))
    return points


def write(folder: Path, found: Finding) -> None:
    """``audit.json`` and ``tradeoff.png`` in ``folder``."""
    from dpml.report.privacy_plots import plot_tradeoff

    write_atomic(folder / "audit.json", dumps(found.to_dict()) + "\n")
    claim = f"ε = {upper(found.epsilon_upper)} at δ = {upper(found.settings.delta)}"
    plot_tradeoff(
        {f"claimed: no attack below ({claim})": found.curve},
        folder / "tradeoff.png",
        points=found.points,
        title="What the run claims, and what attacks on it reached",
    )


# -------------------------------------------------------------------------------------------- training with canaries


def plan_of(settings: Settings, parameters: int) -> Any:
    """The plan of a run whose every step can be read off the weights: rate 1, constant, no momentum."""
    from dpml import sgd

    return sgd.plan_dp_sgd(
        n_declared=_NOMINAL,
        n_features=1,
        n_classes=2,
        model_name="module",
        n_parameters=parameters,
        epsilon=settings.epsilon,
        noise_multiplier=settings.noise_multiplier,
        delta=settings.delta,
        expected_batch_size=max(1, round(settings.sample_rate * _NOMINAL)),
        steps=settings.steps,
        learning_rate=1.0,
        momentum=0.0,
        schedule="constant",
        checkpoint_every=1,
    )


def train(
    plan: Any,
    kind: str,
    included: np.ndarray,
    parameters: int,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Each canary's share in each step's noisy sum ``(m, T)``: 1 where it is in and there were no noise.

    ``fit_dp_sgd`` is used as anybody uses it; what is read are the weights after each step.
    """
    from dpml import sgd
    from dpml.mechanisms import SecretNoise

    count, C = len(included), plan.max_grad_norm
    if kind == "dirac":
        places = np.random.default_rng().permutation(parameters)[:count]
        model, rows = _table(parameters), places[included][:, None]
        share: Callable[[np.ndarray], np.ndarray] = lambda step: step[places] / C  # noqa: E731
    else:
        canaries = audit.gradient_canaries(count, parameters, norm=1.0)
        model, rows = _linear(parameters), canaries[included] * np.float32(_NORM * C)
        share = lambda step: audit.projections(canaries, step, 1.0)[:, 0] / C  # noqa: E731
    shares: list[np.ndarray] = []
    last = np.zeros(parameters)

    def look(state: Mapping[str, Any]) -> None:
        nonlocal last
        (weights,) = state["parameters"].values()
        now = weights.detach().cpu().double().numpy().reshape(-1).copy()
        shares.append(share((last - now) / plan.rate(len(shares)) * plan.expected_batch_size))
        last = now

    sgd.fit_dp_sgd(
        plan,
        model,
        rows,
        np.zeros(len(rows), dtype=np.int64),
        noise=SecretNoise(),
        reserve=lambda event, steps: None,
        loss=_pull(C if kind == "dirac" else 0.5),
        on_step=(lambda done: progress(done, plan.steps)) if progress else None,
        save_checkpoint=look,
    )
    return np.stack(shares, axis=1)


def _pull(half: float) -> Any:
    """A loss whose gradient is the record's own direction, ``_NORM · half`` times as long."""
    return lambda logits, targets: _NORM * half * logits.reshape(len(targets))


def _table(parameters: int) -> Any:
    """A model of ``parameters`` weights whose record i has the gradient e_i."""
    import torch
    from torch import nn

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(parameters, 1, dtype=torch.float64)
            nn.init.zeros_(self.table.weight)

        def forward(self, rows: Any) -> Any:
            return self.table(rows[:, 0])

    return Table()


def _linear(parameters: int) -> Any:
    """A model of ``parameters`` weights whose record x has the gradient x."""
    from torch import nn

    model = nn.Linear(parameters, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


# ------------------------------------------------------------------------------------------------------ arguments


def parse(values: Sequence[str]) -> Settings:
    """Settings from ``name=value`` texts."""
    kinds = {field.name: field for field in fields(Settings)}
    given: dict[str, Any] = {}
    for item in values:
        name, sign, text = item.partition("=")
        if not sign or name not in kinds:
            raise ConfigError(f"{item!r} is not name=value with a name among {list(kinds)}.")
        if name in given:
            raise ConfigError(f"{name} is given twice.")
        kind = str(kinds[name].type)
        try:
            given[name] = text if kind == "str" else int(text) if kind == "int" else float(text)
        except ValueError:
            raise ConfigError(f"{name} = {text!r} is not a {'whole ' if kind == 'int' else ''}number.") from None
    return Settings(**given)


def checked(settings: Settings) -> Settings:
    """The settings with their defaults filled in; ConfigError names what is out of range."""
    check_one_of("game", settings.game, GAMES)
    check_one_of("canary", settings.canary, ("dirac", "random"))
    two = settings.game == "two_world"
    if (settings.epsilon is None) == (settings.noise_multiplier is None):
        raise ConfigError("give one of epsilon and noise_multiplier (epsilon=4, say).")
    if settings.analysis == "auto":
        settings = replace(settings, analysis="none" if two else "binomial")
    check_one_of("analysis", settings.analysis, ("none", "gaussian") if two else ("binomial", "f_dp", "gaussian"))
    check_number("delta", settings.delta, 0.0, 1.0, above=True, below=True)
    check_number("confidence", settings.confidence, 0.0, 1.0, above=True, below=True)
    check_number("sample_rate", settings.sample_rate, 0.0, 1.0, above=True)
    check_count("steps", settings.steps, 1)
    if two:
        if settings.canary != "dirac":
            raise invalid("canary", settings.canary, "'dirac' with game=two_world", "Its runs are coordinates.")
        if not 100 <= check_count("runs", settings.runs) <= 2**20:
            raise invalid("runs", settings.runs, "from 100 to 2^20")
        return settings
    check_count("canaries", settings.canaries, 2)
    check_count("parameters", settings.parameters, 1)
    if settings.canary == "dirac" and settings.parameters < settings.canaries:
        raise invalid("parameters", settings.parameters, f"at least the {settings.canaries} canaries with canary=dirac")
    if settings.canary == "random" and settings.parameters * settings.canaries > _LARGEST:
        raise invalid("parameters", settings.parameters, f"at most 2^28 / {settings.canaries} with canary=random")
    if not 0 <= check_count("guesses", settings.guesses) <= settings.canaries or settings.guesses == 1:
        raise invalid("guesses", settings.guesses, f"0, or 2 to the {settings.canaries} canaries")
    return settings


def _progress(done: int, steps: int) -> None:
    print(f"\rstep {done:,} of {steps:,}", end="" if done < steps else "\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
