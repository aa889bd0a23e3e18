"""Planted bugs in the private search: each entry patches one seam, and the named check must fail under it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import search_checks as checks

from dpml import search, search_plan
from dpml.accounting import Ledger, NoOp
from dpml.data import Records

Check = Callable[[pytest.MonkeyPatch, Path], None]

CHECKS: dict[str, Check] = {
    "repeat": lambda patch, folder: checks.check_repeat_is_within_the_budget(),
    "exponential": lambda patch, folder: checks.check_exponential_is_within_the_budget(),
    "secret": lambda patch, folder: checks.check_runs_are_drawn_from_the_secret_source(),
    "law": lambda patch, folder: checks.check_law_of_the_runs(),
    "candidates": lambda patch, folder: checks.check_candidates_are_drawn_with_replacement(),
    "parts": lambda patch, folder: checks.check_parts_are_disjoint(patch),
    "normaliser": lambda patch, folder: checks.check_score_is_normalised_by_a_public_size(),
    "selection": lambda patch, folder: checks.check_selection_hides_a_record(patch),
    "sensitivity": lambda patch, folder: checks.check_noise_covers_one_record(),
    "common": lambda patch, folder: checks.check_common_event_costs_as_much_as_each_candidate(),
    "assumptions": lambda patch, folder: checks.check_assumptions_of_the_candidates_are_the_searchs(),
    "charged": lambda patch, folder: checks.check_everything_is_charged_before_the_data_are_read(folder),
}


@pytest.mark.parametrize("name", CHECKS)
def test_checks_pass_unpatched(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    CHECKS[name](monkeypatch, tmp_path)


def _one_run_charged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(search_plan, "RepeatAndSelect", lambda event, mean, shape: event)


def _mean_runs_not_charged(patch: pytest.MonkeyPatch) -> None:
    real = search_plan.RepeatAndSelect
    patch.setattr(search_plan, "RepeatAndSelect", lambda event, mean, shape: real(event, 1.0, 1.0))


def _score_not_charged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(search_plan, "Composed", _only_first(search_plan.Composed))


def _only_first(real: Any) -> Any:
    def composed(events: Any) -> Any:
        return real(tuple(events)[:1])

    return composed


def _selection_not_charged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(search_plan, "ExponentialMechanism", lambda epsilon: NoOp())


def _global_generator(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(search, "draw_count", lambda plan, noise: int(np.random.geometric(1 / plan.mean_runs)))  # noqa: NPY002


def _fixed_number_of_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(search, "draw_count", lambda plan, noise: round(plan.mean_runs))


def _in_turn(patch: pytest.MonkeyPatch) -> None:
    turn = iter(range(10**9))
    patch.setattr(search, "draw_candidate", lambda number, noise: next(turn) % number)


def _score_without_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(search, "noisy_score", lambda score, plan, noise: score)


def _winner_without_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(search, "draw_by_weight", lambda scores, *rest: int(np.argmax(scores)))


def _leaking_holdout(patch: pytest.MonkeyPatch) -> None:
    real = search.split_by_coins
    patch.setattr(search, "split_by_coins", lambda records, *rest: (records, real(records, *rest)[1]))


def _permutation(patch: pytest.MonkeyPatch) -> None:
    def split(records: Records, fraction: float, noise: Any) -> tuple[Records, Records]:
        some = np.argsort(noise.uniform(len(records.y)))[: max(1, int(fraction * len(records.y)))]
        return records, Records(records.X[some], records.y[some])

    patch.setattr(search, "split_by_coins", split)


def _actual_size(patch: pytest.MonkeyPatch) -> None:
    sizes = []
    score = search.holdout_score

    def scoring(model: Any, holdout: Records) -> float:
        sizes.append(holdout.X.shape[0])
        return score(model, holdout)

    patch.setattr(search, "holdout_score", scoring)
    patch.setattr(search, "as_share", lambda score, plan: 0.5 + score / sizes[-1])


def _half_the_sensitivity(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(search_plan, "CONTRIBUTION", 0.25)


def _raw_counts(patch: pytest.MonkeyPatch) -> None:
    real = search.holdout_score
    patch.setattr(search, "holdout_score", lambda model, held: real(model, held) + held.X.shape[0] / 2)


def _charged_afterwards(patch: pytest.MonkeyPatch) -> None:
    class Late(Ledger):
        def charge(self, event: Any, *, stage: str, count: int = 1) -> None:
            self.later = (event, stage, count)

        def close(self, outcome: Any) -> None:
            event, stage, count = self.later
            super().charge(event, stage=stage, count=count)
            super().close(outcome)

        @property
        def charged(self) -> Any:
            return self.later[0]

    patch.setattr(search, "Ledger", Late)


def _covered_ones_dropped(patch: pytest.MonkeyPatch) -> None:
    def fewest(strongest: Any, loads: Any) -> Any:
        covers = search_plan._covers
        atoms = strongest.values()
        return [one for one in atoms if not any(covers(o[0], one[0]) and o[1] >= one[1] for o in atoms)]

    patch.setattr(search_plan, "_fewest", fewest)


def _own_steps_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = search_plan._fewest

    def fewest(strongest: Any, loads: Any) -> Any:
        return real(strongest, [{key: load[key]} for load in loads for key in load])

    patch.setattr(search_plan, "_fewest", fewest)


def _assumptions_dropped(patch: pytest.MonkeyPatch) -> None:
    real = search_plan._assumptions
    patch.setattr(search_plan, "_assumptions", lambda *a, own, of_plans: real(*a))


BUGS = [
    ("a candidate's own steps stand for its others", _covered_ones_dropped, "common"),
    ("every step of a candidate is seen alone", _own_steps_forgotten, "common"),
    ("the trainer's assumptions are dropped", _assumptions_dropped, "assumptions"),
    ("the winner is charged one run's epsilon", _one_run_charged, "repeat"),
    ("the number of runs is forgotten", _mean_runs_not_charged, "repeat"),
    ("the score is not charged", _score_not_charged, "repeat"),
    ("the selection is not charged", _selection_not_charged, "exponential"),
    ("only one candidate is charged", _score_not_charged, "exponential"),
    ("K comes from numpy's global generator", _global_generator, "secret"),
    ("K is the same number every time", _fixed_number_of_runs, "law"),
    ("candidates run in turn", _in_turn, "candidates"),
    ("the score's noise is dropped", _score_without_noise, "selection"),
    ("the best count wins", _winner_without_noise, "selection"),
    ("hold-out records leak into training", _leaking_holdout, "parts"),
    ("the hold-out is a permutation's head", _permutation, "parts"),
    ("the normaliser is the actual hold-out", _actual_size, "normaliser"),
    ("half the sensitivity", _half_the_sensitivity, "sensitivity"),
    ("raw counts under the noise of centred ones", _raw_counts, "sensitivity"),
    ("the charge is written after the data were read", _charged_afterwards, "charged"),
]


@pytest.mark.parametrize(("bug", "plant", "check"), BUGS, ids=[bug[0] for bug in BUGS])
def test_planted_bug_is_caught(
    bug: str, plant: Callable[[pytest.MonkeyPatch], None], check: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        CHECKS[check](monkeypatch, tmp_path)
