"""Cases for whitening by public records: correlated rows, a table with its public half, and a slow twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from small_tables import people, write_people

from dpml import PrivateData

FEATURES = 12  # of small_tables.SCHEMA without the constant: 4 + 4 hat functions, 3 towns and one for others


def correlated(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Rows with a full covariance whose eigenvalues are all above the floor."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) @ (np.eye(d) + 0.3 * rng.standard_normal((d, d))) + rng.uniform(-1, 1, d)


def hats(values: np.ndarray, low: float, high: float, knots: int) -> np.ndarray:
    """Linear interpolation weights, written with numpy.interp alone."""
    places = np.linspace(low, high, knots)
    return np.stack([np.interp(values, places, np.eye(knots)[k]) for k in range(knots)], axis=1)


def plain_features(frame: pd.DataFrame) -> np.ndarray:
    """(n, 12): the encoding that small_tables.SCHEMA asks for, unclipped and without the constant."""
    towns = np.stack([(frame["town"] == town).to_numpy(float) for town in ("a", "b", "c")], axis=1)
    other = 1.0 - towns.sum(axis=1, keepdims=True)
    money = np.log1p(np.clip(frame["money"].to_numpy(), 0, 10000))
    return np.hstack([hats(frame["age"].to_numpy(), 0, 100, 4), hats(money, 0, np.log1p(10000), 4), towns, other])


def expected_rows(private: pd.DataFrame, public: pd.DataFrame, bound: float = 1.0) -> np.ndarray:
    known = plain_features(public)
    values, vectors = np.linalg.eigh(np.cov(known.T, bias=True))
    stretched = vectors @ np.diag(np.maximum(values / values.mean(), 1e-3) ** -0.25) @ vectors.T
    rows = np.hstack([(plain_features(private) - known.mean(axis=0)) @ stretched, np.ones((len(private), 1))])
    return rows * np.minimum(1.0, bound / np.linalg.norm(rows, axis=1))[:, None]


def with_public(
    folder: Path, public: pd.DataFrame | None = None, name: str = "public.csv", **changes: Any
) -> PrivateData:
    options = {key: changes.pop(key) for key in ("test_path", "split_column", "spline") if key in changes}
    table, schema = write_people(folder, changes.pop("frame", None), **changes)
    frame = people(200, seed=7).drop(columns="label") if public is None else public
    where = folder / name
    frame.to_parquet(where) if name.endswith("parquet") else frame.to_csv(where, index=False)
    return PrivateData.from_table(table, schema=schema, public_path=where, **options)


def arrays(X: Any, whitening: Any, **changes: Any) -> PrivateData:
    y = np.arange(X.shape[0]) % 2
    return PrivateData.from_arrays(
        X, y, **{"norm_bound": 1.0, "classes": [0, 1], "n_declared": 50, "whitening": whitening, **changes}
    )
