"""Planted bugs in the auditors, and in the DP-SGD engine for the auditors to find.

The first table: one seam of an auditor is patched, and the named check must fail.  The second: one seam of the engine
is patched, and ``dpml.audit``, which shares no code with it, must contradict the claimed ε at 99.9 % confidence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import audit_checks as checks
import numpy as np
import pytest
from engine_faults import ENGINE_BUGS

from dpml import audit
from dpml.audit import __main__ as command
from dpml.audit import distinguishing, guessing, one_run
from dpml.audit.__main__ import Settings, run_audit

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _repeatable(monkeypatch: Patch) -> None:
    checks.make_repeatable(monkeypatch)


CHECKS: dict[str, Callable[[], None]] = {
    "levels": checks.check_each_rate_is_at_half_of_what_is_left,
    "counts": checks.check_errors_are_those_of_the_counted_runs,
    "choice": checks.check_the_choice_does_not_see_what_is_counted,
    "guess bound": checks.check_guess_bound_by_hand,
    "guessed leak": checks.check_guesses_allow_leaks_of_probability_delta,
    "useless guesses": checks.check_useless_guesses_prove_nothing,
    "shared confidence": checks.check_two_bounds_share_the_confidence,
    "cuts": checks.check_cuts_do_not_see_the_runs,
    "ties": checks.check_ties_are_broken_by_lot,
    "useless": checks.check_useless_scores_prove_nothing,
    "leak": checks.check_a_leak_of_probability_delta_is_allowed,
    "p-value": checks.check_p_value_is_the_theorem,
    "one-run leak": checks.check_one_run_allows_leaks_of_probability_delta,
    "guesses": checks.check_guesses_are_the_extreme_scores,
    "f-DP leak": lambda: _at_most(checks.one_run_exceedances("leaky", "f_dp")),
    "f-DP response": lambda: _at_most(checks.one_run_exceedances("response", "f_dp")),
    "response": lambda: _at_most(checks.one_run_exceedances("response", "binomial")),
}


def _at_most(found: int) -> None:
    assert found <= checks.MOST


def _threshold_chosen_on_what_is_counted(patch: Patch) -> None:
    patch.setattr(distinguishing, "_split", lambda scores, share: (scores, scores))


def _level_of_one_sided_intervals(patch: Patch) -> None:
    patch.setattr(distinguishing, "level_of", lambda confidence, thresholds: (1 - confidence) / thresholds)


def _thresholds_not_counted(patch: Patch) -> None:
    patch.setattr(distinguishing, "level_of", lambda confidence, thresholds: (1 - confidence) / 2)


def _observed_rates_as_limits(patch: Patch) -> None:
    patch.setattr(
        distinguishing,
        "limits",
        lambda errors, sizes, level: tuple((e + 1e-9) / n for e, n in zip(errors, sizes, strict=True)),
    )


def _one_rate_only(patch: Patch) -> None:
    """The true-positive rate as it was seen, the other one with its limit."""
    real = distinguishing.limits
    patch.setattr(
        distinguishing,
        "limits",
        lambda errors, sizes, level: (real(errors, sizes, level)[0], max(errors[1], 1e-9) / sizes[1]),
    )


def _delta_ignored(patch: Patch) -> None:
    real = distinguishing.epsilon_of_errors
    patch.setattr(distinguishing, "epsilon_of_errors", lambda a, b, delta: real(a, b, 0.0))


def _counts_swapped(patch: Patch) -> None:
    real = distinguishing._Test.errors
    patch.setattr(distinguishing._Test, "errors", lambda test, out, inside: real(test, out, inside)[::-1])


def _sign_forgotten_in_counting(patch: Patch) -> None:
    def errors(test: Any, out: np.ndarray, inside: np.ndarray) -> tuple[int, int]:
        return int((out >= test.threshold).sum()), int((inside < test.threshold).sum())

    patch.setattr(distinguishing._Test, "errors", errors)


def _one_run_delta_ignored(patch: Patch) -> None:
    patch.setattr(one_run, "delta_term", lambda canaries, delta, growth: 0.0)


def _one_run_half_the_delta_term(patch: Patch) -> None:
    patch.setattr(one_run, "delta_term", lambda canaries, delta, growth: canaries * delta * growth)


def _f_dp_delta_ignored(patch: Patch) -> None:
    real = one_run.epsilon_delta_inverse
    patch.setattr(one_run, "epsilon_delta_inverse", lambda epsilon, delta: real(epsilon, 0.0))


def _abstentions_count_as_right(patch: Patch) -> None:
    real = one_run.correct_guesses

    def counted(guesses: np.ndarray, included: np.ndarray) -> int:
        return min(real(guesses, included) + int((guesses == 0).sum()), int(np.count_nonzero(guesses)))

    patch.setattr(one_run, "correct_guesses", counted)


def _guesses_reversed(patch: Patch) -> None:
    real = one_run.guess
    patch.setattr(one_run, "guess", lambda scores, plus, minus, sign=1: real(scores, plus, minus, -sign))


def _ties_broken_by_place(patch: Patch) -> None:
    patch.setattr(one_run, "shuffled", lambda scores, included: (scores, included))


def _guessed_delta_ignored(patch: Patch) -> None:
    real = guessing.epsilon_of_guesses
    patch.setattr(
        guessing,
        "epsilon_of_guesses",
        lambda runs, guesses, right, sides, delta, level: real(runs, guesses, right, 0, delta, level),
    )


def _guessed_delta_of_one_side_only(patch: Patch) -> None:
    real = guessing.epsilon_of_guesses
    patch.setattr(
        guessing,
        "epsilon_of_guesses",
        lambda runs, guesses, right, sides, delta, level: real(runs, guesses, right, 1, delta, level),
    )


def _both_limits_at_the_whole_level(patch: Patch) -> None:
    patch.setattr(guessing, "levels", lambda delta, level: (level, level))


def _withheld_guesses_count_as_right(patch: Patch) -> None:
    real = guessing.epsilon_of_guesses
    patch.setattr(
        guessing,
        "epsilon_of_guesses",
        lambda runs, guesses, right, sides, delta, level: real(runs, runs, right + runs - guesses, sides, delta, level),
    )


def _planned_and_searched_at_the_whole_level(patch: Patch) -> None:
    real = command.searched
    patch.setattr(
        command,
        "searched",
        lambda scored, included, settings, confidence: real(scored, included, settings, settings.confidence),
    )


def _cuts_planned_from_the_runs(patch: Patch) -> None:
    seen: list[np.ndarray] = []
    real = command.scores_of

    def scores_of(*arguments: Any) -> Any:
        found = real(*arguments)
        seen.append(found["likelihood"])
        return found

    patch.setattr(command, "scores_of", scores_of)
    patch.setattr(audit, "planned_cuts", lambda *_, **__: tuple(np.quantile(seen[-1], [0.01, 0.99])))


BUGS: list[tuple[Callable[[Patch], None], list[str]]] = [
    (_threshold_chosen_on_what_is_counted, ["counts", "choice"]),
    (_level_of_one_sided_intervals, ["levels", "counts"]),
    (_thresholds_not_counted, ["levels"]),
    (_observed_rates_as_limits, ["levels", "useless"]),
    (_one_rate_only, ["levels", "counts"]),
    (_delta_ignored, ["counts", "leak"]),
    (_counts_swapped, ["counts"]),
    (_sign_forgotten_in_counting, ["counts"]),
    (_one_run_delta_ignored, ["p-value", "one-run leak"]),
    (_one_run_half_the_delta_term, ["p-value"]),
    (_f_dp_delta_ignored, ["f-DP leak"]),
    (_abstentions_count_as_right, ["guesses"]),
    (_guesses_reversed, ["guesses"]),
    (_ties_broken_by_place, ["ties"]),
    (_guessed_delta_ignored, ["guess bound", "guessed leak"]),
    (_guessed_delta_of_one_side_only, ["guess bound", "guessed leak"]),
    (_both_limits_at_the_whole_level, ["guess bound"]),
    (_withheld_guesses_count_as_right, ["guess bound", "useless guesses"]),
    (_planned_and_searched_at_the_whole_level, ["shared confidence"]),
    (_cuts_planned_from_the_runs, ["cuts"]),
]


@pytest.mark.parametrize("name", CHECKS)
def test_checks_pass_unpatched(name: str) -> None:
    CHECKS[name]()


@pytest.mark.parametrize(
    ("bug", "name"), [pytest.param(bug, name, id=f"{bug.__name__} {name}") for bug, names in BUGS for name in names]
)
def test_a_planted_bug_is_noticed(bug: Callable[[Patch], None], name: str, monkeypatch: Patch) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        CHECKS[name]()


# ----------------------------------------------------------------------------- bugs of the engine, seen from outside


def _audited(arguments: dict[str, Any]) -> bool:
    found = run_audit(Settings(runs=200_000, delta=1e-3, confidence=0.999, **arguments))
    return found.result.exceeds(found.epsilon_upper)


@pytest.mark.parametrize(
    ("bug", "arguments"), [pytest.param(bug, arguments, id=bug.__name__) for bug, arguments, _ in ENGINE_BUGS]
)
def test_the_audit_alone_finds_a_bug_of_the_engine(
    bug: Callable[[Patch], None], arguments: dict[str, Any], monkeypatch: Patch
) -> None:
    """One training of 200,000 coordinates each; 1.3 times the claim or more is usual."""
    bug(monkeypatch)
    assert _audited(arguments)


def test_the_same_audits_contradict_nothing_without_a_bug() -> None:
    """False alarm 1e-6 for each of the settings."""
    for settings in {tuple(sorted(arguments.items())) for _, arguments, _ in ENGINE_BUGS}:
        found = run_audit(Settings(runs=100_000, delta=1e-3, confidence=0.999999, **dict(settings)))
        assert not found.result.exceeds(found.epsilon_upper)
    assert audit.AuditResult(2.0, 1e-5, 0.95, 1, "one_run", None, 1).exceeds(1.9)
