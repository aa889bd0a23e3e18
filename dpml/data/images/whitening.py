"""Quarter-whitening by statistics of public images.

For a linear model under DP-SGD the noise in a logit depends on the norm of the row, not on its length d.  Of rows of
unit norm, a direction with variance v that carries signal s is worth scaling by (s/v)^(1/4); without knowing s, by
v^(-1/4), which lies half-way between leaving the rows alone and full whitening.  Nothing here may be computed from
private records: the statistics are those of :func:`~dpml.data.images.synthetic.synthetic_images`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..public_whitening import FLOOR, POWER, negative_power


@dataclass(frozen=True)
class Whitening:
    """A linear map of layers (C channels, P places): rows minus ``mean``, to unit norm, then between two matrices.

    Attributes:
        mean: (C, P).
        channels, places: symmetric (C, C) and (P, P).
    """

    mean: np.ndarray
    channels: np.ndarray
    places: np.ndarray

    def apply(self, layers: np.ndarray) -> np.ndarray:
        """(n, C, P) to (n, C, P) float32; each row from itself alone (one product a record, never one of several)."""
        rows = unit(layers - self.mean)
        return np.matmul(np.matmul(self.channels, rows), self.places)


def whitening_of(layers: np.ndarray) -> Whitening:
    """The map that the layers (n, C, P) of *public* images give.

    With centred rows of unit norm, the covariance of channels is the mean over images and places of z zᵀ, that of
    places the mean over images and channels; each is taken to the power -1/4 after its eigenvalues were scaled to
    mean 1 and raised to at least ``FLOOR``.
    """
    n, channels, places = layers.shape
    mean = layers.mean(axis=0, dtype=np.float64)
    rows = unit(layers - mean)
    by_channel = np.einsum("ncp,ndp->cd", rows, rows, optimize=True) / (n * places)
    by_place = np.einsum("ncp,ncq->pq", rows, rows, optimize=True) / (n * channels)
    return Whitening(mean.astype(np.float32), *(_power(matrix) for matrix in (by_channel, by_place)))


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows (n, …) of L2 norm at most 1: each divided by its own norm, one of zeros left as it is; float32."""
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    norms = np.sqrt(np.square(flat).sum(axis=1, keepdims=True))
    flat *= (1.0 - MARGIN) / np.where(norms > 0.0, norms, 1.0)
    return flat.astype(np.float32).reshape(rows.shape)


MARGIN = 1e-6
"""Rows are this much shorter than 1, more than rounding to float32 can add (6e-8)."""


def _power(matrix: np.ndarray) -> np.ndarray:
    return negative_power(matrix, POWER, FLOOR).astype(np.float32)
