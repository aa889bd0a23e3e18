"""dpml itself, in the environment that ``run.py`` runs in: nothing tuned, nothing read before it is charged.

The time is that of the whole ``fit`` from the Parquet file (reading, encoding, planning, ledger, training); beside it
that of a fit on rows that are encoded and in memory already, which is what diffprivlib is handed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import numpy as np
import pandas as pd
from peer_contract import Report, load_encoded, measure, versions, worker_arguments, write_report

from dpml import PrivateData, PrivateTrainer
from dpml.mechanisms import default_noise

GUARANTEE = "(ε, δ), add_remove unless the row says replace_one; public: the schema and n_declared"
VARIANTS = {
    "objective": {"method": "objective"},
    "auto": {"method": "auto"},
    "objective, replace_one": {"method": "objective", "neighboring_relation": "replace_one"},
}


def main(argv: list[str] | None = None) -> int:
    """Write the report."""
    arguments = worker_arguments(argv)
    folder = arguments.data
    schema = json.loads((folder / "schema.json").read_text(encoding="utf-8"))
    test = pd.read_csv(folder / "test.csv", dtype=str, keep_default_na=False)
    y_test = load_encoded(folder)[3]
    table = PrivateData.from_table(folder / "train.parquet", schema)
    records = table.load(default_noise())
    in_memory = PrivateData.from_arrays(
        records.X,
        records.y,
        norm_bound=table.public.norm_bound,
        classes=range(len(table.public.classes)),
        n_declared=table.public.n_declared,
        is_public=True,
    )

    def trainer(name: str, epsilon: float) -> PrivateTrainer:
        return PrivateTrainer(epsilon=epsilon, delta=arguments.delta, compare_nonprivate=False, **VARIANTS[name])

    def fit(name: str, epsilon: float) -> Callable[[], np.ndarray]:
        data = PrivateData.from_table(folder / "train.parquet", schema)
        model = trainer(name, epsilon).fit(data).model
        return lambda: model.predict_proba(test)[:, 1]

    fit("objective", 1.0)  # first calls import
    rows = [
        measure(
            name,
            epsilon,
            {},
            arguments.runs,
            lambda n=name, e=epsilon: fit(n, e),
            y_test,
            encoded_fit=lambda n=name, e=epsilon: trainer(n, e).fit(in_memory),
        )
        for epsilon in arguments.epsilon
        for name in VARIANTS
    ]
    names = versions("dpml", "scikit-learn", "numpy", "scipy")
    write_report(Report("dpml", names, GUARANTEE, tuple(rows)), arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
