"""InterpretML's DP-EBM on the raw columns, with its default settings and everything public given.

Types, names and the numeric bounds (values clamped to them, as our encoder does) come from the schema.  What it reads
itself: bin edges and bin weights (charged: 10 % of ε and half of δ), and, uncharged, which categories occur, the exact
number of records and the label set; its interface takes none of these three.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from peer_contract import MISSING_PACKAGE, Report, load_encoded, measure, versions, worker_arguments, write_report

GUARANTEE = (
    "(ε, δ) by Gaussian DP, one record added or removed; the number of records, the categories that occur and the "
    "label set are read uncharged"
)


def public_arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """``feature_names``, ``feature_types`` and ``privacy_bounds`` by the schema alone."""
    columns = {name: entry for name, entry in schema["columns"].items() if entry["kind"] != "ignore"}
    numeric = {name: entry for name, entry in columns.items() if entry["kind"] == "numeric"}
    return {
        "feature_names": list(columns),
        "feature_types": ["continuous" if name in numeric else "nominal" for name in columns],
        "privacy_bounds": {name: (float(e["bounds"][0]), float(e["bounds"][1])) for name, e in numeric.items()},
    }


def raw_table(path: Path, public: Mapping[str, Any]) -> Any:
    """The schema's columns as a data frame; numbers clamped to their public bounds, categories as text."""
    import pandas as pd

    bounds = public["privacy_bounds"]
    texts = {name: str for name in public["feature_names"] if name not in bounds}
    table = pd.read_csv(path, dtype=texts, keep_default_na=False)[public["feature_names"]]
    for name, (low, high) in bounds.items():
        table[name] = table[name].astype(float).clip(low, high)
    return table


def main(argv: list[str] | None = None) -> int:
    """Write the report; 3 if interpret-core is not installed."""
    arguments = worker_arguments(argv)
    try:
        from interpret.privacy import DPExplainableBoostingClassifier
    except ImportError as error:
        print(f"interpret-core cannot be imported: {error}", file=sys.stderr)
        return MISSING_PACKAGE
    public = public_arguments(json.loads((arguments.data / "schema.json").read_text(encoding="utf-8")))
    train, test = (raw_table(arguments.data / name, public) for name in ("train.csv", "test.csv"))
    _, y, _, y_test = load_encoded(arguments.data)

    def fit(epsilon: float) -> Callable[[], np.ndarray]:
        model = DPExplainableBoostingClassifier(epsilon=epsilon, delta=arguments.delta, n_jobs=1, **public)
        model.fit(train, y)
        return lambda: model.predict_proba(test)[:, 1]

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=r"(?i).*privacy")  # something would be read from the data
        rows = [
            measure("DP-EBM", epsilon, {}, arguments.runs, lambda e=epsilon: fit(e), y_test)
            for epsilon in arguments.epsilon
        ]
    names = versions("interpret-core", "scikit-learn", "numpy", "pandas")
    write_report(Report("ebm", names, GUARANTEE, tuple(rows)), arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
