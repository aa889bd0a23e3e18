"""diffprivlib's LogisticRegression on the encoded rows: its default C = 1 and a small grid of others.

Objective perturbation of Chaudhuri, Monteleoni and Sarwate (2011).  ``data_norm`` = 1 is public, since every row was
clipped to it; with the intercept (its default) the peer itself goes on with √2.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import numpy as np
from peer_contract import MISSING_PACKAGE, Report, load_encoded, measure, versions, worker_arguments, write_report

GRID = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # 1 is the peer's default
GUARANTEE = "pure ε (δ = 0), replace_one; the number of records and the label set count as public"


def main(argv: list[str] | None = None) -> int:
    """Write the report; 3 if diffprivlib is not installed."""
    arguments = worker_arguments(argv)
    try:
        from diffprivlib.models import LogisticRegression
        from diffprivlib.utils import PrivacyLeakWarning
    except ImportError as error:
        print(f"diffprivlib cannot be imported: {error}", file=sys.stderr)
        return MISSING_PACKAGE
    X, y, X_test, y_test = load_encoded(arguments.data)

    def fit(epsilon: float, C: float) -> Callable[[], np.ndarray]:
        model = LogisticRegression(epsilon=epsilon, data_norm=1.0, C=C).fit(X, y)
        return lambda: model.predict_proba(X_test)[:, 1]

    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its scikit-learn calls
        warnings.simplefilter("error", PrivacyLeakWarning)  # something would be read from the data
        fit(1.0, 1.0)  # first calls import
        for epsilon in arguments.epsilon:
            for C in GRID:
                one = measure(
                    "LogisticRegression", epsilon, {"C": C}, arguments.runs, lambda e=epsilon, c=C: fit(e, c), y_test
                )
                rows.append(one)
    names = versions("diffprivlib", "scikit-learn", "numpy", "scipy")
    write_report(Report("diffprivlib", names, GUARANTEE, tuple(rows)), arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
