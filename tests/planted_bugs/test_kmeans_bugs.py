"""Planted bugs in private k-means: each entry patches one seam, and the named check must fail under it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import kmeans_checks as checks
import numpy as np
import pytest

from dpml.errors import ConfigError
from dpml.estimators import kmeans, kmeans_fits, kmeans_plan, kmeans_seeding, kmeans_sums
from dpml.estimators.kmeans_sums import Box

CHECKS: dict[str, Callable[[], None]] = {
    "notes": checks.check_notes_split_the_budget_over_rounds,
    "total": checks.check_stages_add_up_to_the_budget,
    "doubled": checks.check_replace_one_doubles_the_sensitivity,
    **{
        f"{name} {method} {d}": lambda check=check, kind=(method, d, k): check(*kind)
        for method, d, k in checks.KINDS
        for name, check in (
            ("charged", checks.check_everything_is_charged_first),
            ("noise", checks.check_noise_has_the_planned_size),
            ("clamped", checks.check_a_record_beyond_the_bounds_counts_as_one_on_them),
            ("finite", checks.check_a_row_that_is_not_finite_contributes_nothing),
        )
    },
    **{
        f"{relation} {method} {d}": lambda kind=(method, d, k, relation): (
            checks.check_one_record_moves_no_release_beyond_its_sensitivity(*kind)
        )
        for method, d, k in checks.KINDS
        for relation in ("add_remove", "replace_one")
    },
}


def _split_per_cluster(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kmeans_plan, "check_promise", lambda plan: None)
    patch.setattr(kmeans_plan, "notes_epsilon", lambda epsilon, rounds: epsilon / (2 * 3))


def _rounds_not_composed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kmeans_plan, "check_promise", lambda plan: None)
    patch.setattr(kmeans_plan, "round_shares", lambda whole, rounds: [whole] * rounds)


def _counts_for_nothing(patch: pytest.MonkeyPatch) -> None:
    """Counts and squared distances beside offsets that take the whole sensitivity."""
    patch.setattr(kmeans_sums, "MOVE", 1.0)


def _relation_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = kmeans_plan.notes_stages
    patch.setattr(
        kmeans_plan, "notes_stages", lambda epsilon, rounds, k, d, sensitivity: real(epsilon, rounds, k, d, 1)
    )


def _relation_forgotten_by_the_better_one(patch: pytest.MonkeyPatch) -> None:
    real = kmeans_plan._Budget
    patch.setattr(kmeans_plan, "_Budget", lambda method, epsilon, delta, sensitivity: real(method, epsilon, delta, 1.0))


def _not_clamped(patch: pytest.MonkeyPatch) -> None:
    def raw(box: Box, rows: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(((np.clip(rows, -1e6, 1e6) - box.middle) / box.scale).T)

    patch.setattr(Box, "to_unit", raw)


def _assigned_unclamped(patch: pytest.MonkeyPatch) -> None:
    """Sums of clamped points, but the closest centre is that of the point before clamping."""
    seen: list[np.ndarray] = []
    to_unit, real = Box.to_unit, kmeans_sums.nearest

    def remembering(box: Box, rows: np.ndarray) -> np.ndarray:
        seen[:] = [np.ascontiguousarray(((rows - box.middle) / box.scale).T)]
        return to_unit(box, rows)

    patch.setattr(Box, "to_unit", remembering)
    patch.setattr(kmeans_fits, "nearest", lambda columns, centres: real(seen[0], centres))


def _empty_cluster_from_data(patch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []
    nearest, ball = kmeans_fits.nearest, kmeans_fits.in_l1_ball

    def remembering(columns: np.ndarray, centres: np.ndarray) -> np.ndarray:
        seen[:] = [columns]
        return nearest(columns, centres)

    def from_data(k: int, d: int, noise: Any) -> np.ndarray:
        drawn = ball(k, d, noise)
        return np.repeat(seen[0].max(axis=1)[None, :], k, axis=0) if seen else drawn

    patch.setattr(kmeans_fits, "nearest", remembering)
    patch.setattr(kmeans_fits, "in_l1_ball", from_data)


def _actual_number_of_records(patch: pytest.MonkeyPatch) -> None:
    real = kmeans_fits.seeds

    def counting(plan: Any, box: Any, columns: np.ndarray, ledger: Any, noise: Any) -> Any:
        return replace(real(plan, box, columns, ledger, noise), total=float(columns.shape[1]))

    patch.setattr(kmeans_fits, "seeds", counting)


def _radius_from_data(patch: pytest.MonkeyPatch) -> None:
    real = kmeans_fits.noisy_sums

    def reading(stage: Any, columns: Any, rows: Any, centres: Any, radius: float, noise: Any) -> Any:
        far = float(np.sqrt(kmeans_sums.squared_distances(columns, centres).min(axis=0).mean()))
        return real(stage, columns, rows, centres, far, noise)

    patch.setattr(kmeans_fits, "noisy_sums", reading)


def _not_clipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kmeans_sums, "clipped", lambda columns, radius: columns / radius)
    patch.setattr(kmeans_seeding, "clipped", lambda columns, radius: columns / radius)


def _noise_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kmeans_fits, "with_noise", lambda stage, table, noise: table)
    patch.setattr(kmeans_sums, "with_noise", lambda stage, table, noise: table)


def _less_noise(patch: pytest.MonkeyPatch) -> None:
    for kind in checks.MECHANISMS:
        patch.setattr(kind, "release", _quieter(kind.release))


def _quieter(real: Any) -> Any:
    def release(mechanism: Any, value: Any, noise: Any = None) -> Any:
        answer = real(mechanism, value, noise)
        return replace(answer, value=value + 0.1 * (answer.value - value))

    return release


def _grid_not_charged(patch: pytest.MonkeyPatch) -> None:
    real = kmeans_fits.charge
    patch.setattr(kmeans_fits, "charge", lambda ledger, stage: None if stage.name == "grid" else real(ledger, stage))


def _counts_not_charged(patch: pytest.MonkeyPatch) -> None:
    real = kmeans_fits.charge
    patch.setattr(
        kmeans_fits, "charge", lambda ledger, stage: None if stage.name[:6] == "counts" else real(ledger, stage)
    )


def _rows_that_are_not_finite_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kmeans, "usable", lambda rows: np.ones(len(rows), dtype=bool))


BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], list[str]]] = [
    (_split_per_cluster, ["notes"]),
    (_rounds_not_composed, ["total"]),
    (_counts_for_nothing, ["add_remove gaussian 2", "add_remove laplace 5"]),
    (_relation_forgotten, ["notes", "doubled", "replace_one notes 2"]),
    (_relation_forgotten_by_the_better_one, ["doubled", "replace_one gaussian 5", "replace_one laplace 2"]),
    (_not_clamped, ["clamped gaussian 2", "clamped notes 2", "add_remove notes 5"]),
    (_assigned_unclamped, ["clamped gaussian 5", "clamped notes 2"]),
    (_empty_cluster_from_data, ["add_remove notes 2"]),
    (_actual_number_of_records, ["add_remove gaussian 2", "add_remove gaussian 5"]),
    (_radius_from_data, ["add_remove gaussian 2", "replace_one laplace 5"]),
    (_not_clipped, ["add_remove gaussian 2", "add_remove gaussian 5"]),
    (_noise_left_out, ["add_remove notes 2", "noise gaussian 5"]),
    (_less_noise, ["noise gaussian 2", "noise laplace 5", "noise notes 2"]),
    (_grid_not_charged, ["charged gaussian 2", "charged laplace 5"]),
    (_counts_not_charged, ["charged notes 2"]),
    (_rows_that_are_not_finite_count, ["finite gaussian 2", "finite notes 5"]),
]


@pytest.mark.parametrize("name", CHECKS)
def test_checks_pass_unpatched(name: str) -> None:
    CHECKS[name]()


@pytest.mark.parametrize(
    ("bug", "name"), [pytest.param(bug, name, id=f"{bug.__name__} {name}") for bug, names in BUGS for name in names]
)
def test_a_planted_bug_is_noticed(
    bug: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, IndexError)):
        CHECKS[name]()


@pytest.mark.parametrize("name", ["notes_epsilon", "round_shares"])
def test_a_plan_that_overspends_is_refused_before_data_are_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same two bugs in the split of the budget, with the plan's own check in place."""
    wrong = {
        "notes_epsilon": lambda epsilon, rounds: epsilon / (2 * 3),
        "round_shares": lambda whole, rounds: [whole] * rounds,
    }
    monkeypatch.setattr(kmeans_plan, name, wrong[name])
    for method in ("notes",) if name == "notes_epsilon" else ("gaussian", "laplace"):
        with pytest.raises(ConfigError, match="cost epsilon = "):
            checks.plan_of(method)
