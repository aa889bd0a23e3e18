"""numpy's normal sampler (Marsaglia & Tsang's ziggurat, 256 layers) with fewer bits, as exact cell probabilities.

Written from the published algorithm: the samplers' outcomes are enumerated, not drawn.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

LAYERS = 256
R = 3.6541528853610088  # where the tail begins, for 256 layers
V = R * np.exp(-R * R / 2) + np.sqrt(2 * np.pi) * stats.norm.sf(R)  # area of a layer under exp(-x²/2)


def layer_edges() -> np.ndarray:
    """Right edges: of the base strip (V/f(R), a pretended width), then R, … down to 0."""
    edges = [V / np.exp(-R * R / 2), R]
    while len(edges) < LAYERS:
        edges.append(np.sqrt(-2 * np.log(np.exp(-(edges[-1] ** 2) / 2) + V / edges[-1])))
    return np.array([*edges, 0.0])


def cell_probabilities(bits: int, width: float) -> tuple[np.ndarray, np.ndarray]:
    """(sampler's, ideal) probabilities of rint(N/width) = 0, ±1, …: arrays over k = 0, 1, … up to 9/width.

    ``bits`` of the sampler's mantissa (numpy: 52); the tail uses uniform numbers of one bit more.  Acceptance tests
    are taken with their exact probability.  Probabilities of k > 0 are those of one sign.
    """
    edges, f = layer_edges(), lambda x: np.exp(-x * x / 2)
    counts = np.zeros(int(9.0 / width) + 2)
    for i in range(LAYERS):
        x = np.arange(2**bits) * (edges[i] / 2**bits)
        if i == 0:
            chance = (x < R).astype(float)
        else:
            low, high = f(edges[i]), f(edges[i + 1])
            chance = np.where(x < edges[i + 1], 1.0, np.clip((f(x) - low) / (high - low), 0.0, 1.0))
        np.add.at(counts, np.rint(x / width).astype(int), chance / (LAYERS * 2**bits))
        if i == 0:
            entered = np.mean(x >= R) / LAYERS
    u = np.arange(2 ** (bits + 1)) / 2 ** (bits + 1)
    beyond = -np.log1p(-u) / R
    chance = np.ceil(f(beyond) * 2 ** (bits + 1) - 0.5) / 2 ** (bits + 1)
    np.add.at(
        counts, np.rint((R + beyond) / width).astype(int).clip(max=counts.size - 1), entered * chance / chance.sum()
    )
    sampler = counts / counts.sum()
    sampler[1:] /= 2.0
    k = np.arange(counts.size)
    ideal = stats.norm.sf((k - 0.5) * width) - stats.norm.sf((k + 0.5) * width)
    return sampler, ideal


def relative_error(bits: int, width: float) -> float:
    """√(Σ (A - G)²/G) · width · 2^bits over the cells: what docs/proofs-floats.md bounds by 4 before table rounding."""
    sampler, ideal = cell_probabilities(bits, width)
    weights = np.where(np.arange(ideal.size) == 0, 1.0, 2.0)
    inside = ideal > 0
    return float(np.sqrt((weights * (sampler - ideal) ** 2)[inside] @ (1.0 / ideal[inside]))) * width * 2**bits
