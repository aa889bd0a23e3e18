"""The plan of a private k-means: every release with its mechanism and its share of the budget, from public numbers.

Nothing here sees a record.  The proofs that the sensitivities below are right: docs/kmeans.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpml import accounting
from dpml.accounting import Composed, Event
from dpml.errors import ConfigError
from dpml.mechanisms.gaussian import GaussianMechanism
from dpml.mechanisms.laplace import LaplaceMechanism
from dpml.mechanisms.metric import MetricMechanism
from dpml.ranges import RELATIONS, is_count, is_within, one_of
from dpml.results import Guarantee

METHODS = ("auto", "gaussian", "laplace", "notes")
FEW = 3  # up to so many features the grid of counts covers the box itself; beyond, a projection of it
MOST_DIRECTIONS = 512  # features beyond which the private covariance would cost more than it tells
CELLS = {1: 256, 2: 64, 3: 16}  # the most cells on an axis of the grid
FEWEST_CELLS = 4
NOTES_ROUNDS = 5

# Shares of the budget (of μ² or of ε).  People chose them who had seen the figures in docs/kmeans.md; they depend on
# the number of features and on the kind of noise alone.
FEW_FEATURES: Mapping[str, float] = {"grid": 0.7, "rounds": 0.3}
MANY_FEATURES: Mapping[str, Mapping[str, float]] = {
    "gaussian": {"middle": 0.05, "directions": 0.15, "grid": 0.2, "rounds": 0.6},
    "laplace": {"middle": 0.15, "directions": 0.2, "grid": 0.25, "rounds": 0.4},
}
BLIND: Mapping[str, Mapping[str, float]] = {  # without directions, where measuring them would tell nothing
    "gaussian": {"middle": 0.05, "grid": 0.2, "rounds": 0.75},
    "laplace": {"middle": 0.2, "grid": 0.05, "rounds": 0.75},
}
ROUNDS = {"few": 2, "gaussian": 5, "laplace": 2}
LAST_ROUND = 2.0  # the last round gets so many times the share of the others

Mechanism = GaussianMechanism | LaplaceMechanism | MetricMechanism


@dataclass(frozen=True)
class Stage:
    """One release: a table (rows, width) of sums to which each record adds to one row only.

    Attributes:
        name: for the ledger.
        mechanism: Gaussian or Laplace noise for the table as a whole, or l2-metric noise for one row of it.
    """

    name: str
    mechanism: Mechanism

    @property
    def event(self) -> Event:
        """What is charged before the records are looked at for this release."""
        return self.mechanism.event

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise of one entry."""
        if isinstance(self.mechanism, GaussianMechanism):
            return self.mechanism.noise_std
        if isinstance(self.mechanism, LaplaceMechanism):
            return math.sqrt(2.0) * self.mechanism.scale
        return math.sqrt(self.mechanism.dimension + 1.0) * self.mechanism.scale  # E‖n‖² = p(p + 1)b²


@dataclass(frozen=True)
class KMeansPlan:
    """All that a fit will do.

    Attributes:
        method: ``"gaussian"``, ``"laplace"`` or ``"notes"``.
        n_clusters, n_features, n_declared, rounds: public sizes.
        axes: dimension of the grid of counts; cells: on each of its axes.  Both 0 for ``"notes"``.
        stages: the releases in order.
        guarantee: the promise.
    """

    method: str
    n_clusters: int
    n_features: int
    n_declared: int
    rounds: int
    axes: int
    cells: int
    stages: tuple[Stage, ...]
    guarantee: Guarantee

    @property
    def event(self) -> Composed:
        """Everything that will be charged."""
        return Composed(tuple(stage.event for stage in self.stages))

    def stage(self, name: str) -> Stage | None:
        """The stage of that name, or None where the plan has none."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """For the first line of the ledger."""
        return {
            "method": f"kmeans_{self.method}",
            "n_clusters": self.n_clusters,
            "n_features": self.n_features,
            "n_declared": self.n_declared,
            "rounds": self.rounds,
            "cells": [self.cells] * self.axes,
            "epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "neighboring_relation": self.guarantee.neighboring_relation,
            "event": self.event.to_json(),
        }


def make_plan(
    *,
    method: str,
    epsilon: float,
    delta: float,
    neighboring_relation: str,
    n_clusters: int,
    n_features: int,
    n_declared: int,
    n_iter: int | None,
) -> KMeansPlan:
    """The plan for checked arguments; ``method`` is not ``"auto"``, ``delta`` is 0 unless it is ``"gaussian"``.

    Raises:
        ConfigError: the budget is too small for the mechanisms.
    """
    one_of("method", method, METHODS[1:])
    one_of("neighboring_relation", neighboring_relation, RELATIONS)
    assert is_within(epsilon, 1e-6, 1e4)
    assert is_count(n_clusters, 1, 10**6)
    sensitivity = 2.0 if neighboring_relation == "replace_one" else 1.0
    if method == "notes":
        rounds = NOTES_ROUNDS if n_iter is None else n_iter
        axes = cells = 0
        stages = notes_stages(epsilon, rounds, n_clusters, n_features, sensitivity)
    else:
        shares = shares_of(method, epsilon, n_features, n_declared)
        rounds = ROUNDS["few" if n_features <= FEW else method] if n_iter is None else n_iter
        axes = min(n_features, FEW)
        budget = _Budget(method, epsilon, delta, sensitivity)
        cells = cells_per_axis(axes, n_clusters, n_declared / budget.count_std(shares["grid"]))
        stages = better_stages(budget, shares, rounds, n_clusters, n_features, cells**axes)
    promise = Guarantee(epsilon, delta, neighboring_relation)
    plan = KMeansPlan(method, n_clusters, n_features, n_declared, rounds, axes, cells, stages, promise)
    check_promise(plan)
    return plan


def shares_of(method: str, epsilon: float, d: int, n_declared: int) -> Mapping[str, float]:
    """Shares of the budget for each kind of stage.

    Directions are measured with Gaussian noise for up to 512 features; with pure noise, whose size grows with the
    number of entries, where it stays below an even share of the variance: 3 d^2.5 < ε' · n_declared.
    """
    if d <= FEW:
        return FEW_FEATURES
    shares = MANY_FEATURES[method]
    if d > MOST_DIRECTIONS or (method == "laplace" and 3.0 * d**2.5 >= epsilon * shares["directions"] * n_declared):
        return BLIND[method]
    return shares


def check_promise(plan: KMeansPlan) -> None:
    """``ConfigError`` unless the composition of all stages stays within the promise."""
    promise = plan.guarantee
    spent = accounting.epsilon(plan.event, promise.delta, neighboring_relation=promise.neighboring_relation)
    if spent > promise.epsilon:
        raise ConfigError(
            f"the releases of this k-means cost epsilon = {spent!r}, which is more than epsilon = {promise.epsilon!r}: "
            "nothing was read. Use another epsilon."
        )


def notes_stages(epsilon: float, rounds: int, k: int, d: int, sensitivity: float) -> tuple[Stage, ...]:
    """T rounds of two releases, ε' = ε/(2T) each: k counts, and k sums of points with ‖x‖₁ <= 1.

    A record adds 1 to one count and a point of L1 norm <= 1 to one sum, so both L1 sensitivities are 1 under
    add_remove and 2 under replace_one; every coordinate gets its own Lap(sensitivity/ε').
    """
    each = notes_epsilon(epsilon, rounds)
    counts = LaplaceMechanism(sensitivity, each, k)
    sums = LaplaceMechanism(sensitivity, each, k * d)
    return tuple(
        stage
        for number in range(1, rounds + 1)
        for stage in (Stage(f"counts {number}", counts), Stage(f"sums {number}", sums))
    )


def notes_epsilon(epsilon: float, rounds: int) -> float:
    """ε/(2T), a little less so that 2T times it is no more than ε in floats either."""
    return epsilon / (2 * rounds) * (1 - 2.0**-40)


@dataclass(frozen=True)
class _Budget:
    """A total that adds up: μ² of Gaussian differential privacy, or ε."""

    method: str
    epsilon: float
    delta: float
    sensitivity: float

    @property
    def total(self) -> float:
        slack = 1 - 2.0**-40  # for the rounding of the shares
        if self.method == "laplace":
            return self.epsilon * slack
        return accounting.largest_gdp_mu(self.epsilon, self.delta) ** 2 * slack

    def count_std(self, share: float) -> float:
        """Noise standard deviation of a count that gets ``share`` of the budget."""
        part = self.total * share
        return self.sensitivity * (math.sqrt(2.0) / part if self.method == "laplace" else 1.0 / math.sqrt(part))

    def table(self, share: float, rows: int, width: int) -> Mechanism:
        """Noise for a table to one row of which each record adds a vector of L2 norm <= 1."""
        part = self.total * share
        if self.method == "laplace":
            return MetricMechanism(self.sensitivity, part, norm="l2", dimension=width)
        return self.gaussian(part, rows * width)

    def counts(self, share: float, cells: int) -> Mechanism:
        """Noise for counts of disjoint cells."""
        part = self.total * share
        if self.method == "laplace":
            return LaplaceMechanism(self.sensitivity, part, cells)
        return self.gaussian(part, cells)

    def gaussian(self, part: float, dimension: int) -> GaussianMechanism:
        return GaussianMechanism(self.sensitivity, noise_multiplier=1.0 / math.sqrt(part), dimension=dimension)


def better_stages(
    budget: _Budget, shares: Mapping[str, float], rounds: int, k: int, d: int, cells: int
) -> tuple[Stage, ...]:
    """Middle and directions (where there are many features), grid of counts, then rounds of joint sums."""
    stages = []
    if "middle" in shares:
        stages.append(Stage("middle", budget.table(shares["middle"], 1, d + 2)))
    if "directions" in shares:
        stages.append(Stage("directions", budget.table(shares["directions"], 1, d * (d + 1) // 2)))
    stages.append(Stage("grid", budget.counts(shares["grid"], cells)))
    for number, share in enumerate(round_shares(shares["rounds"], rounds), start=1):
        stages.append(Stage(f"round {number}", budget.table(share, k, d + 2)))
    return tuple(stages)


def round_shares(whole: float, rounds: int) -> Sequence[float]:
    """``whole`` over the rounds, the last one ``LAST_ROUND`` times the others."""
    weights = [1.0] * (rounds - 1) + [LAST_ROUND]
    return [whole * weight / sum(weights) for weight in weights]


def cells_per_axis(axes: int, k: int, records_per_std: float) -> int:
    """Cells on each axis: in all about n_declared ÷ the noise of a count, and at least 2k."""
    wanted = round(records_per_std ** (1.0 / axes))
    least = max(FEWEST_CELLS, math.ceil((2 * k) ** (1.0 / axes)))
    return max(least, min(wanted, CELLS[axes]))
