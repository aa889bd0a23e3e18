"""Hands the bundled Adult table over to workers that have no dpml: encoded rows, raw columns and the schema."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from dpml.data import Encoder, Schema
from dpml.data.encoder import clip_rows
from dpml.data.sources import package_folder


def minmax_rows(encoder: Encoder, table: pd.DataFrame) -> np.ndarray:
    """Min-max numbers and indicators (n, d), clipped to the schema's norm bound, without the constant column.

    The encoder's last column is its constant 1 times the row's clip factor; dividing by it undoes the clip, so that the
    peer's rows are clipped without a column that its own intercept replaces.
    """
    X = encoder.transform(table)[0]
    return clip_rows(X[:, :-1] / X[:, -1:], encoder.schema.norm_bound)


def hand_over(folder: Path, rows: int | None = None) -> None:
    """Write the files that ``peer_contract`` names.

    Args:
        folder: exists.
        rows: only that many training and test records (tests); ``n_declared`` of the schema follows.
    """
    source = package_folder() / "adult"
    content = json.loads((source / "schema.json").read_text(encoding="utf-8"))
    train, test = (pd.read_parquet(source / f"{part}.parquet").iloc[:rows] for part in ("train", "test"))
    if rows is not None:
        content["n_declared"] = rows
    schema = Schema.from_dict(content)
    encoder = Encoder(schema, spline=False)
    np.savez(
        folder / "encoded.npz",
        X=minmax_rows(encoder, train),
        y=encoder.target(train[schema.target])[0],
        X_test=minmax_rows(encoder, test),
        y_test=encoder.target(test[schema.target])[0],
    )
    train.to_parquet(folder / "train.parquet", index=False)
    train.to_csv(folder / "train.csv", index=False)
    test.to_csv(folder / "test.csv", index=False)
    (folder / "schema.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
