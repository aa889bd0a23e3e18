"""Fit time of private logistic regression on Adult against scikit-learn's without privacy: a Markdown table.

    python experiments/benchmarks/erm.py [--quick] [--json FILE]

The measurement is that of ``private_erm.py`` (part ``time``): the same encoded sparse rows in memory, the same λ, the
competitors in turns; ours is the whole of objective perturbation (plan, check and clipping of the rows, noise, verified
minimum).  scikit-learn's ``LogisticRegression`` runs with its defaults, which stop early, and as exactly as ours.
diffprivlib's runs after them where it is installed, with the same C and bound; its rows must be dense.
The exit status is 0 whatever the times.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from dp_sgd import Figure, arguments_of, attempt, finish, machine, report, seconds_text
from scipy import sparse

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import private_erm
from private_erm_table import Timing

from dpml.mechanisms import default_noise

EPSILONS, DELTA = (0.1, 1.0), 1e-5
PEER = "diffprivlib"


def compared(timings: Sequence[Timing]) -> list[Figure]:
    """Ours, which is the first, over each peer, with the gradient norm that each stopped at."""
    ours, *peers = timings
    found = []
    for peer in peers:
        ratio = ours.median / peer.median
        found.append(
            Figure(
                f"Adult, ε = {ours.epsilon:g}, λ = {ours.lambda_sum:.1f}: objective perturbation ÷ {peer.name}",
                f"{seconds_text(ours.median)} (gradient norm {ours.gradient_norm:.0e})",
                f"{seconds_text(peer.median)} (gradient norm {peer.gradient_norm:.0e})",
                f"{ratio:.2f} × ({min(ours.seconds) / min(peer.seconds):.2f})",
                value=ratio,
            )
        )
    return found


def peer_seconds(data: Any, epsilon: float, lambda_sum: float, repeats: int) -> list[float]:
    """Seconds of diffprivlib's fit."""
    from diffprivlib.models import LogisticRegression

    records = data.load(default_noise(), sparse=True)
    rows = records.X.toarray() if sparse.issparse(records.X) else records.X
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            LogisticRegression(
                epsilon=epsilon, data_norm=data.public.norm_bound, C=1.0 / lambda_sum, fit_intercept=False
            ).fit(rows, records.y)
        found.append(time.perf_counter() - begin)
    return found


def peer_row(data: Any, ours: Timing, repeats: int) -> Figure:
    """diffprivlib's line, or why there is none."""
    name = f"Adult, ε = {ours.epsilon:g}: objective perturbation ÷ {PEER}'s (pure ε, dense rows)"
    if find_spec(PEER) is None:
        return Figure(name, seconds_text(ours.median), "not installed")
    seconds, error = attempt(lambda: peer_seconds(data, ours.epsilon, ours.lambda_sum, repeats))
    if seconds is None:
        return Figure(name, seconds_text(ours.median), error)
    ratio = ours.median / median(seconds)
    times = f"{ratio:.2f} × ({min(ours.seconds) / min(seconds):.2f})"
    return Figure(name, seconds_text(ours.median), seconds_text(median(seconds)), times, value=ratio)


def figures(quick: bool) -> list[Figure]:
    """Each budget; quick takes one budget and one run."""
    data, repeats = private_erm.load("adult", None), 1 if quick else 9
    found = []
    for epsilon in EPSILONS[-1:] if quick else EPSILONS:
        timings = private_erm.timings(data, epsilon, DELTA, repeats)
        found += [*compared(timings), peer_row(data, timings[0], repeats)]
    return found


def main() -> int:
    """Print the table."""
    arguments = arguments_of(__doc__, ()).parse_args()
    where = machine()
    finish(report([lambda: figures(arguments.quick)]), where, arguments.quick, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
