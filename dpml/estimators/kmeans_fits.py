"""The two private k-means algorithms, as sequences of charged releases; points are columns in a public unit ball."""

from __future__ import annotations

import numpy as np

from dpml.accounting import Ledger
from dpml.mechanisms.noise import NoiseSource

from .kmeans_plan import KMeansPlan, Stage
from .kmeans_seeding import SMALLEST_SPREAD, Start, box_frame, private_frame, start_of, turned
from .kmeans_sums import Array, Box, nearest, noisy_sums, table_of, with_noise

FEWEST = 0.25  # of an even share of the records: a noisy count below is taken as that
ROOM, MORE_ROOM = 1.0, 2.5  # clipping radius in mean distances: 1 + 2.5/d


def private_centres(plan: KMeansPlan, box: Box, columns: Array, ledger: Ledger, noise: NoiseSource) -> Array:
    """Centres (k, d) in the box's unit; every stage of the plan is charged before it looks at ``columns`` (d, n)."""
    if plan.method == "notes":
        return notes_centres(plan, columns, ledger, noise)
    return better_centres(plan, box, columns, ledger, noise)


def charge(ledger: Ledger, stage: Stage) -> None:
    """Into the ledger, before the release."""
    ledger.charge(stage.event, stage=stage.name)


# ------------------------------------------------------------------------------------------------- the better one


def better_centres(plan: KMeansPlan, box: Box, columns: Array, ledger: Ledger, noise: NoiseSource) -> Array:
    """Seeds from a noisy grid, then rounds of Lloyd with offsets clipped around the centres of the round before."""
    start = seeds(plan, box, columns, ledger, noise)
    centres, spread = start.centres, start.spread
    for number in range(1, plan.rounds + 1):
        stage = plan.stage(f"round {number}")
        assert stage is not None
        charge(ledger, stage)
        centres, spread = one_round(plan, stage, box, columns, centres, spread, start.total, noise)
    return centres


def seeds(plan: KMeansPlan, box: Box, columns: Array, ledger: Ledger, noise: NoiseSource) -> Start:
    """Middle and directions, where the plan has them, then the grid."""
    frame = box_frame(box)
    middle, directions, grid = plan.stage("middle"), plan.stage("directions"), plan.stage("grid")
    if middle is not None:
        charge(ledger, middle)
        frame = private_frame(plan, middle, box, columns, noise)
        if directions is not None:
            charge(ledger, directions)
        frame = turned(frame, directions, columns, noise)
    assert grid is not None
    charge(ledger, grid)
    return start_of(frame, grid, columns, plan, box, noise)


def one_round(
    plan: KMeansPlan,
    stage: Stage,
    box: Box,
    columns: Array,
    centres: Array,
    spread: float,
    total: float,
    noise: NoiseSource,
) -> tuple[Array, float]:
    """New centres and a new mean squared distance, from noisy sums around ``centres``.

    The clipping radius follows from released numbers only.  A step is shortened by what noise alone would make of its
    length (James & Stein 1961: factor 1 − noise²/length², at least 0).
    """
    d = plan.n_features
    spread = max(spread, SMALLEST_SPREAD**2)
    radius = (ROOM + MORE_ROOM / d) * float(np.sqrt(spread))
    sums = noisy_sums(stage, columns, nearest(columns, centres), centres, radius, noise)
    counts = np.maximum(sums.counts, FEWEST * total / plan.n_clusters)
    steps = sums.offsets / counts[:, None]
    lengths = np.maximum((steps * steps).sum(axis=1), 1e-300)
    by_noise = d * (sums.noise_std / counts) ** 2
    steps *= np.maximum(0.0, 1.0 - by_noise / lengths)[:, None]
    smaller = max(0.0, float(sums.spreads.sum()) / total)
    return np.clip(centres + steps, -box.half, box.half), min(spread, smaller)


# -------------------------------------------------------------------------------------- the one of the course notes


def notes_centres(plan: KMeansPlan, columns: Array, ledger: Ledger, noise: NoiseSource) -> Array:
    """T rounds of Lloyd with noisy counts and sums of points with ‖x‖₁ <= 1; first centres uniform in the L1 ball."""
    k, d = plan.n_clusters, plan.n_features
    centres = in_l1_ball(k, d, noise)
    for number in range(1, plan.rounds + 1):
        for_counts, for_sums = plan.stage(f"counts {number}"), plan.stage(f"sums {number}")
        assert for_counts is not None
        assert for_sums is not None
        charge(ledger, for_counts)
        rows = nearest(columns, centres)
        ones = np.ones((1, columns.shape[1]))
        counts = with_noise(for_counts, table_of(ones, rows, k)[:, 0], noise)
        charge(ledger, for_sums)
        sums = with_noise(for_sums, table_of(columns, rows, k), noise)
        centres = notes_update(counts, sums, noise)
    return centres


def notes_update(counts: Array, sums: Array, noise: NoiseSource) -> Array:
    """Noisy sum ÷ noisy count; where the count is below 1 a fresh point, uniform in the L1 ball."""
    fresh = in_l1_ball(sums.shape[0], sums.shape[1], noise)
    empty = counts < 1.0
    return np.where(empty[:, None], fresh, sums / np.where(empty, 1.0, counts)[:, None])


def in_l1_ball(k: int, d: int, noise: NoiseSource) -> Array:
    """k independent points, uniform in {x : ‖x‖₁ <= 1} of R^d: (k, d).

    d + 1 exponential numbers over their sum are uniform on the simplex; d of them with random signs fill the ball.
    """
    draws = -np.log1p(-noise.uniform((k, d + 1)))
    signs = np.where(noise.uniform((k, d)) < 0.5, -1.0, 1.0)
    total = np.maximum(draws.sum(axis=1, keepdims=True), 1e-300)
    return signs * draws[:, :d] / total
