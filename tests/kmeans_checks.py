"""Checks of private k-means that the tests run as they are, and once more with a bug planted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from dpml import DPKMeans
from dpml.accounting import Ledger
from dpml.errors import LedgerError
from dpml.estimators.kmeans_plan import KMeansPlan, make_plan
from dpml.mechanisms import FixedNoise
from dpml.mechanisms.gaussian import GaussianMechanism
from dpml.mechanisms.laplace import LaplaceMechanism
from dpml.mechanisms.metric import MetricMechanism

MECHANISMS = (GaussianMechanism, LaplaceMechanism, MetricMechanism)
BOUNDS = (-1.0, 3.0)
KINDS = [  # method, number of features, number of clusters
    ("gaussian", 2, 3),
    ("gaussian", 5, 3),
    ("laplace", 2, 3),
    ("laplace", 5, 3),
    ("notes", 2, 4),
    ("notes", 5, 3),
]


def blobs(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Three clouds of standard deviation 0.15 well within the bounds; (n, d)."""
    rng = np.random.default_rng(seed)
    centres = np.array([-0.2, 1.0, 2.3])[:, None] * np.ones(d)
    centres[:, 0] = [2.0, 0.0, 1.2]
    return centres[rng.integers(0, 3, n)] + 0.15 * rng.normal(size=(n, d))


def model_of(method: str, k: int, relation: str = "add_remove", **more: Any) -> DPKMeans:
    given = {"epsilon": 2.0, "bounds": BOUNDS, "n_declared": 200, "noise_source": FixedNoise(7), **more}
    return DPKMeans(k, method=method, neighboring_relation=relation, **given)


# --------------------------------------------------------------------------------------- one transcript, two worlds


@dataclass
class Transcript:
    """All values that mechanisms were handed, and all answers that they gave; ``script`` replaces the answers."""

    script: Sequence[Any] | None = None
    mechanisms: list[Any] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)

    def listen(self, patch: pytest.MonkeyPatch) -> None:
        for kind in MECHANISMS:
            patch.setattr(kind, "release", self._listening(kind.release))

    def _listening(self, original: Any) -> Any:
        def release(mechanism: Any, value: Any, noise: Any = None) -> Any:
            self.mechanisms.append(mechanism)
            self.values.append(np.array(value, dtype=float))
            answer = original(mechanism, value, noise)  # draws as many numbers whatever the value
            self.answers.append(answer if self.script is None else self.script[len(self.answers)])
            return self.answers[-1]

        return release


def run(method: str, X: np.ndarray, k: int, relation: str, script: Sequence[Any] | None) -> tuple[Any, Transcript]:
    with pytest.MonkeyPatch.context() as patch:
        heard = Transcript(script)
        heard.listen(patch)
        return model_of(method, k, relation).fit(X), heard


def distance(plan: KMeansPlan, first: Transcript, second: Transcript) -> list[float]:
    """For each stage: the distance of the two worlds' values ÷ the sensitivity of its mechanism, in its norm."""
    out, place = [], 0
    for stage in plan.stages:
        mechanism, size, far = stage.mechanism, 0, 0.0
        rows = plan.n_clusters if isinstance(mechanism, MetricMechanism) and stage.name.startswith("round") else 1
        while size < rows:
            assert first.mechanisms[place] == mechanism == second.mechanisms[place]
            gap = first.values[place] - second.values[place]
            norm = np.abs(gap).sum() if isinstance(mechanism, LaplaceMechanism) else np.sqrt((gap * gap).sum())
            far, size, place = far + float(norm), size + 1, place + 1
        out.append(far / mechanism.sensitivity)
    assert place == len(first.values) == len(second.values)
    return out


def strange_records(d: int) -> list[np.ndarray]:
    corner = np.where(np.arange(d) % 2 == 0, *BOUNDS)
    unit = np.eye(d)[0]
    return [np.full(d, 3.0), np.full(d, -1.0), corner, 1e300 * unit, -1e9 * np.ones(d), 1.0 + unit, np.full(d, 0.5)]


def check_one_record_moves_no_release_beyond_its_sensitivity(method: str, d: int, k: int, relation: str) -> None:
    """The answers of the first world are given to the second one, so that both ask for the same sums.

    Then every value moves by at most the sensitivity, and what is learned is the same to the last bit: all of it is
    made of the answers.
    """
    X = blobs(60, d)
    model, first = run(method, X, k, relation, None)
    largest = 0.0
    for record in strange_records(d):
        other = np.vstack([X[:3], record, X[3:]]) if relation == "add_remove" else np.vstack([record, X[1:]])
        again, second = run(method, other, k, relation, first.answers)
        moved = distance(model.plan_, first, second)
        assert max(moved) <= 1.0
        largest = max(largest, *moved)
        check_same_release(model, again)
    assert largest > 0.45, "the check sees records that matter"


def check_same_release(one: DPKMeans, two: DPKMeans) -> None:
    np.testing.assert_array_equal(one.cluster_centers_, two.cluster_centers_)
    public = [(m.guarantee_, m.plan_, m.ledger_, m.n_iter_, m.n_features_in_) for m in (one, two)]
    assert public[0] == public[1]
    np.testing.assert_array_equal(one.bounds_, two.bounds_)
    assert sorted(vars(one)) == sorted(vars(two))


def check_noise_has_the_planned_size(method: str, d: int, k: int) -> None:
    """Answers minus values, over all entries of a stage: their root mean square against the plan's (fixed draws)."""
    model, heard = run(method, blobs(60, d), k, "add_remove", None)
    for stage in model.plan_.stages:
        mine = [i for i, mechanism in enumerate(heard.mechanisms) if mechanism is stage.mechanism]
        assert mine, stage.name
        gaps = np.concatenate([np.ravel(heard.answers[i].value) - heard.values[i].ravel() for i in mine])
        assert 0.3 < np.sqrt(np.mean(gaps**2)) / stage.noise_std < 2.5


# ----------------------------------------------------------------------------------------------------- the budget


def plan_of(method: str, epsilon: float = 1.0, relation: str = "add_remove", **more: Any) -> KMeansPlan:
    sizes = {"n_clusters": 3, "n_features": 5, "n_declared": 1_000, "n_iter": 4, **more}
    delta = 1e-6 if method == "gaussian" else 0.0
    return make_plan(method=method, epsilon=epsilon, delta=delta, neighboring_relation=relation, **sizes)


def check_notes_split_the_budget_over_rounds() -> None:
    """ε' = ε/(2T), whatever k and d; Lap(1/ε') on every count and coordinate, twice that under replace_one."""
    for rounds, k, d in ((4, 3, 5), (7, 2, 1), (1, 9, 2)):
        for relation, sensitivity in (("add_remove", 1.0), ("replace_one", 2.0)):
            plan = plan_of("notes", 0.8, relation, n_iter=rounds, n_clusters=k, n_features=d)
            assert len(plan.stages) == 2 * rounds
            for stage, dimension in zip(plan.stages, [k, k * d] * rounds, strict=True):
                assert isinstance(stage.mechanism, LaplaceMechanism)
                assert stage.event.to_json()["epsilon"] == pytest.approx(0.8 / (2 * rounds), rel=1e-9)
                assert stage.mechanism.scale == pytest.approx(sensitivity * 2 * rounds / 0.8, rel=1e-3)
                assert stage.mechanism.scale >= sensitivity * 2 * rounds / 0.8
                assert stage.mechanism.dimension == dimension


def check_stages_add_up_to_the_budget() -> None:
    """By hand: Σε of pure events; Σμ² of Gaussian ones against the (ε, δ) curve of one Gaussian."""
    for relation in ("add_remove", "replace_one"):
        for d in (2, 5):
            pure = plan_of("laplace", 1.3, relation, n_features=d)
            total = sum(stage.event.to_json()["epsilon"] for stage in pure.stages)
            assert 1.3 * (1 - 1e-9) < total <= 1.3
            plan = plan_of("gaussian", 1.3, relation, n_features=d)
            mu = math.sqrt(sum(stage.event.to_json()["mu"] ** 2 for stage in plan.stages))
            delta = _phi(-1.3 / mu + mu / 2) - math.exp(1.3) * _phi(-1.3 / mu - mu / 2)
            assert 0.99e-6 < delta <= 1e-6 * (1 + 1e-9)


def _phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2.0)) / 2.0


def check_replace_one_doubles_the_sensitivity() -> None:
    for method in ("gaussian", "laplace", "notes"):
        one, two = (plan_of(method, relation=relation) for relation in ("add_remove", "replace_one"))
        pairs = [pair for pair in zip(one.stages, two.stages, strict=True) if pair[0].name != "grid"]
        for a, b in pairs:
            assert b.mechanism.sensitivity == 2.0 * a.mechanism.sensitivity == 2.0
            assert b.noise_std == pytest.approx(2.0 * a.noise_std, rel=1e-3)
        assert {stage.mechanism.sensitivity for stage in two.stages} == {2.0}


def check_everything_is_charged_first(method: str, d: int, k: int) -> None:
    """The charges are the plan's events in order; a charge that fails lets no more noise be drawn."""
    model, heard = run(method, blobs(60, d), k, "add_remove", None)
    charges = [line for line in model.ledger_ if line["kind"] == "charge"]
    assert [line["event"] for line in charges] == [stage.event.to_json() for stage in model.plan_.stages]
    assert [line["stage"] for line in charges] == [stage.name for stage in model.plan_.stages]
    assert model.ledger_[0]["kind"] == "plan"
    assert model.ledger_[-1]["kind"] == "closed"
    made = len(heard.values)
    counts = [len(_releases_until(method, d, k, number)) for number in range(len(charges))]
    assert counts[0] == 0
    assert sorted(set(counts)) == counts, "every charge stands before releases of its own"
    assert counts[-1] < made


def _releases_until(method: str, d: int, k: int, failing: int) -> list[np.ndarray]:
    """The values released before charge number ``failing`` fails."""
    with pytest.MonkeyPatch.context() as patch:
        heard, original, done = Transcript(), Ledger.charge, []

        def charge(ledger: Ledger, event: Any, *, stage: str, count: int = 1) -> None:
            if len(done) == failing:
                raise LedgerError("the disk is full")
            done.append(stage)
            original(ledger, event, stage=stage, count=count)

        heard.listen(patch)
        patch.setattr(Ledger, "charge", charge)
        with pytest.raises(LedgerError, match="disk is full"):
            model_of(method, k).fit(blobs(60, d))
        return heard.values


# -------------------------------------------------------------------------------------------------------- records


def check_a_record_beyond_the_bounds_counts_as_one_on_them(method: str, d: int, k: int) -> None:
    X = blobs(60, d)
    X[::7, 0] += 40.0
    X[1::7, -1] -= 1e12
    far, near = (model_of(method, k).fit(rows) for rows in (X, np.clip(X, *BOUNDS)))
    np.testing.assert_array_equal(far.cluster_centers_, near.cluster_centers_)
    np.testing.assert_array_equal(far.predict(X), far.predict(np.clip(X, *BOUNDS)))


def check_a_row_that_is_not_finite_contributes_nothing(method: str, d: int, k: int) -> None:
    X = blobs(60, d)
    strange = np.repeat(X[:3], 2, axis=0)
    strange[[0, 2, 4], [0, 1, 0]] = [np.nan, np.inf, -np.inf]
    strange[[1, 3, 5]] = np.nan
    mixed = np.vstack([strange[:3], X[:20], strange[3:], X[20:]])
    check_same_release(model_of(method, k).fit(X), model_of(method, k).fit(mixed))
