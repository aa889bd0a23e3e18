"""Two worlds, many runs: how well a score tells them apart, as a lower bound on ε.

The runs of each world are split.  On the first part the sign of the score and the threshold are chosen; the second,
which had no say in that, is only counted.  So the choice costs no confidence, and a score whose sign is wrong or that
is of no use gives a bound that is small, never one that is invalid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpml.accounting.checks import check_count, check_number, check_one_of
from dpml.audit.bounds import epsilon_of_errors, epsilon_of_mu, mu_of_errors, upper_limit
from dpml.audit.result import AuditResult
from dpml.errors import DataError, invalid

Run = Callable[[int, int], ArrayLike]

INDEPENDENT = "the runs are independent of each other, and those of one world have one distribution"
GAUSSIAN = (
    "ASSUMED, not shown: the trade-off between the two worlds is that of two Gaussians with equal variance; "
    "the bound is about such mechanisms only"
)
_CANDIDATES = 160  # thresholds that are looked at, for each sign
_CAUTION = 0.02  # level of the limits by which thresholds are compared; concerns power only
_DOWN = 1 - 1e-9


@dataclass(frozen=True)
class _Test:
    """One threshold: "in" when sign · score ≥ sign · threshold."""

    sign: int
    threshold: float

    def errors(self, out: np.ndarray, inside: np.ndarray) -> tuple[int, int]:
        """How many false positives and false negatives."""
        cut = self.sign * self.threshold
        return int(np.count_nonzero(self.sign * out >= cut)), int(np.count_nonzero(self.sign * inside < cut))


def one_by_one(run: Callable[[int, np.random.Generator], float], seed: int | None = None) -> Run:
    """A callable for :func:`distinguish` from one that makes a single run: ``run(world, generator) -> score``.

    ``seed``: of the generators that are handed on, one per run; None takes fresh entropy.
    """
    root = np.random.SeedSequence(seed)

    def many(world: int, count: int) -> np.ndarray:
        return np.array([run(world, np.random.default_rng(child)) for child in root.spawn(count)], dtype=float)

    return many


def distinguish(
    run: Run,
    *,
    runs: int,
    delta: float,
    confidence: float = 0.95,
    selection: float = 0.1,
    thresholds: int = 1,
    assumption: str = "none",
) -> AuditResult:
    """A lower bound on ε from ``runs`` runs of a mechanism, half of them in each world.

    Args:
        run: ``run(world, count)`` makes ``count`` independent runs on data set ``world`` (0 without the record, 1 with
            it) and gives their scores ``(count,)``; any sign and scale.  :func:`one_by_one` makes one from a callable
            that makes a single run.
        runs: in both worlds together, 8 or more.
        The others: :func:`distinguish_scores`.
    """
    runs = check_count("runs", runs, 8)
    inside = runs // 2
    _check_arguments(delta, confidence, selection, thresholds, assumption)  # before anything is run
    out, found = _scores("run(0, …)", run(0, runs - inside)), _scores("run(1, …)", run(1, inside))
    for name, scores, count in (("run(0, …)", out, runs - inside), ("run(1, …)", found, inside)):
        if len(scores) != count:
            raise DataError(f"{name} gave {len(scores)} scores; {count} runs were asked for, one score each.")
    return distinguish_scores(
        out,
        found,
        delta=delta,
        confidence=confidence,
        selection=selection,
        thresholds=thresholds,
        assumption=assumption,
    )


def distinguish_scores(
    out: ArrayLike,
    inside: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    selection: float = 0.1,
    thresholds: int = 1,
    assumption: str = "none",
) -> AuditResult:
    """The bound of :func:`distinguish` from scores that were made already, in the order of the runs.

    With α̂, β̂ the exact upper limits (Clopper-Pearson, each at (1 − confidence)/2) on the error rates of the chosen
    test, ε ≥ ln((1 − δ − β̂)/α̂) and ε ≥ ln((1 − δ − α̂)/β̂) hold together with ``confidence``.

    Args:
        out, inside: scores ``(n₀,)`` of world 0 and ``(n₁,)`` of world 1, 4 or more each; ±∞ is a score, NaN is not.
        delta: δ in [0, 1); above 0 with ``assumption="gaussian"``.
        confidence: in (0, 1).
        selection: share of the runs of each world on which sign and threshold are chosen, in (0, 1).
        thresholds: how many thresholds are counted on the rest; with k of them every limit is at
            (1 − confidence)/(2k), and the best bound is taken (Bonferroni).  More than one pays only where few runs
            make the choice unsure.
        assumption: ``"none"``, or ``"gaussian"``: the two worlds are told apart exactly as N(0, 1) and N(μ, 1).  Then
            μ ≥ Φ⁻¹(1 − α̂) − Φ⁻¹(β̂) and ε is that of μ; the result is labelled.

    Neighbouring relation: that of the two worlds, which the caller makes.

    Raises:
        ConfigError: an argument out of range.
        DataError: scores that are NaN or too few.
    """
    _check_arguments(delta, confidence, selection, thresholds, assumption)
    out, inside = _scores("out", out), _scores("inside", inside)
    gaussian = assumption == "gaussian"
    level = level_of(confidence, thresholds)
    (choose_out, count_out), (choose_in, count_in) = _split(out, selection), _split(inside, selection)
    sizes = (len(count_out), len(count_in))
    best: tuple[float, _Test, tuple[int, int], float, float] | None = None
    for test in choose(choose_out, choose_in, sizes, delta=delta, level=level, many=thresholds, gaussian=gaussian):
        errors = test.errors(count_out, count_in)
        a, b = limits(errors, sizes, level)
        value = float(mu_of_errors(a, b) if gaussian else epsilon_of_errors(a, b, delta))
        if best is None or value > best[0]:
            best = (value, test, errors, a, b)
    assert best is not None
    value, test, errors, a, b = best
    rates = {
        "fpr_upper": a,
        "fnr_upper": b,
        "fpr": errors[0] / sizes[0],
        "fnr": errors[1] / sizes[1],
        **({"mu_lower": value * _DOWN} if gaussian else {}),
    }
    return AuditResult(
        epsilon_lower=(epsilon_of_mu(value, delta) if gaussian else value) * _DOWN,
        delta=delta,
        confidence=confidence,
        runs=len(out) + len(inside),
        method="two_world_gaussian" if gaussian else "two_world",
        threshold=test.threshold,
        sign=test.sign,
        counts={
            "false_positives": errors[0],
            "false_negatives": errors[1],
            "counted_out": sizes[0],
            "counted_in": sizes[1],
            "thresholds": thresholds,
        },
        rates=rates,
        assumptions=(INDEPENDENT, GAUSSIAN) if gaussian else (INDEPENDENT,),
    )


def level_of(confidence: float, thresholds: int) -> float:
    """Probability of failure that each limit may have, so that both limits of all thresholds hold together."""
    return (1 - confidence) / (2 * thresholds)


def limits(errors: tuple[int, int], sizes: tuple[int, int], level: float) -> tuple[float, float]:
    """Upper limits on the false-positive and the false-negative rate; both hold but for probability 2 · ``level``."""
    return float(upper_limit(errors[0], sizes[0], level)), float(upper_limit(errors[1], sizes[1], level))


def choose(
    out: np.ndarray,
    inside: np.ndarray,
    sizes: tuple[int, int],
    *,
    delta: float,
    level: float,
    many: int = 1,
    gaussian: bool = False,
) -> list[_Test]:
    """The ``many`` tests that promise most for ``sizes`` further runs of each world, the best first."""
    tests: list[_Test] = []
    promised: list[np.ndarray] = []
    for sign in (1, -1):
        scores_out, scores_in = np.sort(sign * out), np.sort(sign * inside)
        cuts = _cuts(np.concatenate([scores_out, scores_in]))
        positives = len(scores_out) - np.searchsorted(scores_out, cuts, side="left")
        negatives = np.searchsorted(scores_in, cuts, side="left")
        a = upper_limit(_expected(positives, scores_out, cuts, -1, sizes[0]), sizes[0], level)
        b = upper_limit(_expected(negatives, scores_in, cuts, 1, sizes[1]), sizes[1], level)
        promised.append(mu_of_errors(a, b) if gaussian else epsilon_of_errors(a, b, delta))
        tests += [_Test(sign, float(sign * cut)) for cut in cuts]
    order = np.argsort(-np.concatenate(promised), kind="stable")
    return [tests[i] for i in order[:many]]


def _expected(errors: np.ndarray, scores: np.ndarray, cuts: np.ndarray, side: int, wanted: int) -> np.ndarray:
    """A guess at how many of ``wanted`` further runs will be errors; concerns power only.

    The error rate of a normal distribution with the scores' mean and spread, moved into the limits that the counts
    allow: in the tails a few runs say little, and the best of many thresholds would be a lucky one.
    """
    seen = len(scores)
    high = upper_limit(errors, seen, _CAUTION)
    low = 1 - upper_limit(seen - errors, seen, _CAUTION)
    usual = scores[np.isfinite(scores)]
    spread = usual.std() if len(usual) else 0.0
    if not spread > 0:
        return np.asarray(high * wanted)
    middle = special.ndtr(side * (cuts - usual.mean()) / spread)
    return np.asarray(np.clip(middle, low, high) * wanted)


def _cuts(scores: np.ndarray) -> np.ndarray:
    """Values to cut at: dense in both tails, where errors are rare, and even between."""
    values = np.unique(scores)
    last = len(values) - 1
    if last < _CANDIDATES:
        return values
    tail = np.geomspace(1, last, _CANDIDATES // 4).astype(int)
    even = np.linspace(0, last, _CANDIDATES // 2).astype(int)
    return np.asarray(values[np.unique(np.concatenate([tail, last - tail, even]))])


def _split(scores: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """The runs to choose on and the runs to count; at least one each."""
    first = min(max(round(share * len(scores)), 1), len(scores) - 1)
    return scores[:first], scores[first:]


def _scores(name: str, values: ArrayLike) -> np.ndarray:
    try:
        scores = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise DataError(f"{name} holds something that is no number; it must be an array of scores (n,).") from None
    if scores.ndim != 1 or len(scores) < 4:
        raise DataError(f"{name} has shape {scores.shape}; it must be an array of 4 or more scores (n,).")
    if np.isnan(scores).any():
        raise DataError(f"{name} holds NaN. Give a run that failed the score that says least, the same in both worlds.")
    return scores


def _check_arguments(delta: float, confidence: float, selection: float, thresholds: int, assumption: str) -> None:
    check_one_of("assumption", assumption, ("none", "gaussian"))
    check_number("delta", delta, 0.0, 1.0, below=True)
    check_number("confidence", confidence, 0.0, 1.0, above=True, below=True)
    check_number("selection", selection, 0.0, 1.0, above=True, below=True)
    check_count("thresholds", thresholds, 1)
    if assumption == "gaussian" and not delta > 0:
        raise invalid("delta", delta, "above 0 with assumption='gaussian'", "A Gaussian has no finite epsilon at 0.")
