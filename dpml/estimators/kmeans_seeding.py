"""Where private k-means starts: noisy counts of a grid, clustered without further cost.

With few features the grid covers the public box.  With more it covers a box around a noisy mean in three directions,
those of the largest noisy variance (or arbitrary ones).  Everything after the noise is post-processing.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

from dpml.mechanisms.noise import NoiseSource

from .kmeans_plan import KMeansPlan, Stage
from .kmeans_sums import (
    BLOCK,
    Array,
    Box,
    as_matrix,
    clipped,
    covariance_sums,
    noisy_sums,
    projected,
    squared_distances,
    with_noise,
)

SMALLEST_SPREAD = 0.02  # of the box: no clipping radius below
FIRST_RADIUS = 0.7  # of the box, for the sums around its middle
REACH = 3.0  # standard deviations that the grid covers on each side
LEVELS = (5.0, 3.0, 2.0, 1.0)  # noise standard deviations at which a cell counts
NEIGHBOURS = 0.8  # and its neighbourhood's sum, relative to that
ENOUGH = 0.5  # share of all records that the cells kept should hold
RESTARTS = 10


@dataclass(frozen=True)
class Frame:
    """Where the grid lies: ``origin`` (d,), orthonormal ``directions`` (d, q), ``reach`` (q,) on each side.

    Attributes:
        total: noisy number of records, or None where only the grid will tell.
        spread: noisy mean squared distance from the origin, likewise.
    """

    origin: Array
    directions: Array
    reach: Array
    total: float | None = None
    spread: float | None = None


@dataclass(frozen=True)
class Start:
    """Centres (k, d) to begin with, a noisy number of records, and a mean squared distance from the centres."""

    centres: Array
    total: float
    spread: float


def box_frame(box: Box) -> Frame:
    """The whole box."""
    return Frame(np.zeros(len(box.half)), np.eye(len(box.half)), box.half)


def private_frame(plan: KMeansPlan, stage: Stage, box: Box, columns: Array, noise: NoiseSource) -> Frame:
    """A noisy mean as origin; directions are set by :func:`turned`, until then they are the first axes."""
    everywhere = np.zeros(columns.shape[1], dtype=np.int64)
    centre = np.zeros((1, plan.n_features))
    sums = noisy_sums(stage, columns, everywhere, centre, FIRST_RADIUS, noise)
    total = max(float(sums.counts[0]), 1.0)
    origin = np.clip(sums.offsets[0] / total, -box.half, box.half)
    spread = float(np.clip(sums.spreads[0] / total - origin @ origin, (2 * SMALLEST_SPREAD) ** 2, 1.0))
    flat = np.full(plan.axes, REACH * np.sqrt(spread / plan.n_features))
    return Frame(origin, np.eye(plan.n_features)[:, : plan.axes], flat, total, spread)


def turned(frame: Frame, stage: Stage | None, columns: Array, noise: NoiseSource) -> Frame:
    """The frame along the directions of the largest noisy variance; arbitrary ones where the plan measures none."""
    d, q = frame.directions.shape
    assert frame.total is not None
    assert frame.spread is not None
    if stage is None:
        basis, _ = np.linalg.qr(noise.normal(1.0, (d, q)))
        return Frame(frame.origin, basis, frame.reach, frame.total, frame.spread)
    radius = float(np.sqrt(frame.spread))
    released = with_noise(stage, covariance_sums(clipped(columns - frame.origin[:, None], radius)), noise)
    values, vectors = np.linalg.eigh(as_matrix(released, d) * radius**2 / frame.total)
    reach = REACH * np.sqrt(np.maximum(values[::-1][:q], frame.spread / d))
    return Frame(frame.origin, vectors[:, ::-1][:, :q].copy(), reach, frame.total, frame.spread)


def cell_counts(frame: Frame, columns: Array, cells: int) -> Array:
    """How many records lie in each cell of the grid, one cell a record; what lies beyond counts in the edge cells."""
    q = len(frame.reach)
    counts = np.zeros(cells**q)
    for start in range(0, columns.shape[1], BLOCK):
        places = projected(columns[:, start : start + BLOCK] - frame.origin[:, None], frame.directions)
        whole = np.floor((places / frame.reach[:, None] + 1.0) * (cells / 2.0))
        index = np.clip(whole, 0, cells - 1).astype(np.int64)
        counts += np.bincount(np.ravel_multi_index(tuple(index), (cells,) * q), minlength=counts.size)
    return counts


def start_of(frame: Frame, stage: Stage, columns: Array, plan: KMeansPlan, box: Box, noise: NoiseSource) -> Start:
    """Centres from noisy counts of the grid."""
    released = with_noise(stage, cell_counts(frame, columns, plan.cells), noise)
    weights = kept_weights(released.reshape((plan.cells,) * plan.axes), stage.noise_std, plan.n_clusters)
    places = cell_centres(frame.reach, plan.cells)
    found, spread = weighted_centres(places, weights, plan.n_clusters)
    centres = np.clip(frame.origin + found @ frame.directions.T, -box.half, box.half)
    if frame.total is None or frame.spread is None:
        return Start(centres, max(float(weights.sum()), 1.0), spread)
    return Start(centres, frame.total, frame.spread)


def cell_centres(reach: Array, cells: int) -> Array:
    """Middles of all cells, (cells^q, q)."""
    q = len(reach)
    index = np.stack(np.unravel_index(np.arange(cells**q), (cells,) * q), axis=1)
    return ((index + 0.5) * (2.0 / cells) - 1.0) * reach


def kept_weights(noisy: Array, std: float, k: int) -> Array:
    """Weights (cells^q,) >= 0: noisy counts of the cells that stand out of the noise, alone or with their neighbours.

    The strictest level is taken at which the cells kept hold half of everything; at least k cells are positive.
    """
    width = noisy.ndim
    around = uniform_filter(noisy, 3, mode="constant") * 3.0**width
    weights = np.zeros_like(noisy)
    for level in LEVELS:
        stands_out = (noisy > level * std) | (around > NEIGHBOURS * level * std * 3.0 ** (width / 2))
        weights = np.where(stands_out, np.maximum(noisy, 0.0), 0.0)
        if weights.sum() >= ENOUGH * noisy.sum() and np.count_nonzero(weights) >= k:
            break
    flat = weights.reshape(-1)
    if np.count_nonzero(flat) < k:
        best = np.argsort(-noisy.reshape(-1), kind="stable")[:k]
        flat[best] = np.maximum(noisy.reshape(-1)[best], std * 2.0**-10)
    return flat


def weighted_centres(places: Array, weights: Array, k: int) -> tuple[Array, float]:
    """Ordinary k-means of weighted places (m, q), on released numbers alone: centres (k, q), mean squared distance."""
    from sklearn.cluster import KMeans  # here, so that the estimators stay light to import

    use = weights > 0
    places, weights = places[use], weights[use] / weights.max()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = KMeans(k, n_init=RESTARTS, random_state=0).fit(places, sample_weight=weights)
    centres: NDArray[np.float64] = np.asarray(model.cluster_centers_, dtype=np.float64)
    gaps = squared_distances(np.ascontiguousarray(places.T), centres).min(axis=0)
    return centres, float(gaps @ weights / weights.sum())
