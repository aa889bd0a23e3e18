"""Test accuracy of every method on Adult, nothing tuned on the data: mean ± sd of some runs, as a Markdown table.

    python experiments/adult_foundation.py [--runs 5] [--epsilon 0.1 0.5 1 2]

Public split (36,177 / 9,045), δ = 1e-5, add_remove.  Each run draws its own secret noise.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

from dpml import PrivateData, PrivateTrainer

BUDGETS = (0.1, 0.5, 1.0, 2.0)
METHODS = ("objective", "dp_sgd", "output")


def accuracies(method: str, epsilon: float, runs: int) -> list[float]:
    """Test accuracies of independent runs, in percent."""
    data = PrivateData.bundled("adult")
    trainer = PrivateTrainer(method=method, epsilon=epsilon, delta=1e-5, compare_nonprivate=False)
    return [100 * float(trainer.fit(data).metrics["accuracy"]) for _ in range(runs)]


def main() -> None:
    """Print the table and the seconds that a run took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(BUDGETS))
    arguments = parser.parse_args()
    runs, budgets = arguments.runs, arguments.epsilon
    free = PrivateTrainer(method="nonprivate").fit(PrivateData.bundled("adult"))
    print("| method | " + " | ".join(f"ε = {e:g}" for e in budgets) + " | seconds a run |")
    print("|---|" + "---|" * (len(budgets) + 1))
    for method in METHODS:
        cells, begin = [], time.perf_counter()
        for epsilon in budgets:
            values = accuracies(method, epsilon, runs)
            spread = statistics.stdev(values) if runs > 1 else math.nan
            cells.append(f"{statistics.mean(values):.2f} ± {spread:.2f}")
        seconds = (time.perf_counter() - begin) / (runs * len(budgets))
        print(f"| `{method}` | " + " | ".join(cells) + f" | {seconds:.1f} |", flush=True)
    print(f"\nwithout privacy: {100 * float(free.metrics['accuracy']):.2f} %")


if __name__ == "__main__":
    main()
