"""How many records do private linear models really need?  The sample-size bounds against Adult and Census-Income.

    python experiments/sample_size.py --data adult --json experiments/results/sample_size.json
    python experiments/sample_size.py --data census_income --folder FOLDER --repeats 3 --json FILE

Each method is trained with its defaults (R = 15, add_remove, fresh secret noise) on random subsamples of n records, n
halved from the whole training set down.  Its excess empirical risk is the mean logistic loss on the subsample minus the
least that any weights have there; the excess population risk is the same on the test set, against the best weights for
the whole training set.  The smallest n that reaches an excess α is interpolated (log n, log excess) and set beside the
n that the method's bound and the classical rule ask for.  At the whole n two factors are shown: what the tool says (the
bound against the best weights of norm R) ÷ measured, and what the theorem says of this very excess (the bound and the
gap between the best weights of norm R and the best of all) ÷ measured.  The second must be at least 1.
Both data sets are public.  Existing results of other data sets in the JSON file are kept.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from private_erm import DELTA, load, say
from private_erm_table import machine

from dpml import PrivateData, PrivateTrainer
from dpml.accounting.sample_size import required_n
from dpml.accounting.sample_size_methods import METHODS, Setting
from dpml.erm.nonprivate import fit_nonprivate
from dpml.errors import DpmlError
from dpml.mechanisms import default_noise

EPSILONS = (0.1, 0.5, 1.0, 2.0)
RISKS = (0.005, 0.01, 0.02, 0.05)
SOLUTION_NORM = 15.0
RIDGE = 0.01  # λ of the sum form
DENSE_LIMIT = 50_000  # records that dp_sgd is given: its rows are dense


@dataclass(frozen=True)
class Curve:
    """Mean excess risks of a method at one ε on subsamples of growing n, with standard errors.

    ``bound`` is ours against weights of norm R, ``gap`` what the best of those have above the best of all.
    """

    data: str
    method: str
    epsilon: float
    n: tuple[int, ...]
    empirical: tuple[float, ...]
    empirical_error: tuple[float, ...]
    population: tuple[float, ...]
    population_error: tuple[float, ...]
    bound: tuple[float, ...]
    gap: tuple[float, ...]

    @property
    def factor(self) -> float:
        """Bound ÷ measured excess empirical risk at the largest n."""
        return self.bound[-1] / self.empirical[-1]

    @property
    def theorem_factor(self) -> float:
        """(Bound + gap) ÷ measured at the largest n: at least 1 if the bound is one."""
        return (self.bound[-1] + self.gap[-1]) / self.empirical[-1]


@dataclass(frozen=True)
class Need:
    """The n that reaches ``excess_risk``: by the bound, by the rule, and measured (None: outside the subsamples)."""

    data: str
    method: str
    epsilon: float
    excess_risk: float
    n_bound: float
    n_rule: float
    n_empirical: float | None
    n_population: float | None


def loss(theta: np.ndarray, x: Any, signs: np.ndarray) -> float:
    """Mean logistic loss."""
    return float(np.logaddexp(0.0, -signs * (x @ theta)).mean())


def best(x: Any, signs: np.ndarray) -> np.ndarray:
    """The weights with the least loss, but for a ridge that makes them unique."""
    return fit_nonprivate(x, signs, RIDGE)


def best_in_ball(x: Any, signs: np.ndarray, radius: float) -> np.ndarray:
    """The weights of norm at most ``radius`` with the least loss: the ridge whose minimum has that norm."""
    low, high = RIDGE, RIDGE
    theta = fit_nonprivate(x, signs, low)
    if np.linalg.norm(theta) <= radius:
        return theta
    while np.linalg.norm(theta) > radius:
        low, high = high, 10.0 * high
        theta = fit_nonprivate(x, signs, high)
    for _ in range(12):
        middle = math.sqrt(low * high)
        found = fit_nonprivate(x, signs, middle)
        if np.linalg.norm(found) > radius:
            low = middle
        else:
            high, theta = middle, found
    return theta


def measure(
    name: str, folder: Path | None, methods: Sequence[str], epsilons: Sequence[float], sizes: int, repeats: int
) -> list[Curve]:
    """All curves of one data set; the subsamples and their best weights are shared by the methods."""
    records = load(name, folder).load(default_noise(), sparse=True)
    rows, labels = records.X, np.asarray(records.y)
    signs, test_signs = 2.0 * labels - 1.0, 2.0 * np.asarray(records.y_test) - 1.0
    whole = rows.shape[0]
    goal = loss(best(rows, signs), records.X_test, test_signs)
    ns = sorted(whole >> k for k in range(sizes))
    found: dict[tuple[str, float, int], list[tuple[float, float]]] = {}
    gaps: dict[int, list[float]] = {}
    rng = np.random.default_rng(0)  # which records: public data, no privacy rests on it
    for n in ns:
        for _ in range(repeats):
            chosen = np.sort(rng.choice(whole, n, replace=False))
            part, part_signs = rows[chosen], signs[chosen]
            least = loss(best(part, part_signs), part, part_signs)
            inside = loss(best_in_ball(part, part_signs, SOLUTION_NORM), part, part_signs)
            gaps.setdefault(n, []).append(inside - least)
            for method in methods:
                if method == "dp_sgd" and n > DENSE_LIMIT:
                    continue
                sample = PrivateData.from_arrays(
                    part.toarray() if method == "dp_sgd" else part,
                    labels[chosen],
                    norm_bound=1.0,
                    classes=(0, 1),
                    n_declared=n,
                    is_public=True,
                    name=name,
                )
                for epsilon in epsilons:
                    theta = _train(sample, method, epsilon, DELTA[name])
                    excess = loss(theta, part, part_signs) - least
                    above = loss(theta, records.X_test, test_signs) - goal
                    found.setdefault((method, epsilon, n), []).append((excess, above))
        say(f"{name}: n = {n:,} done")
    gap = {n: statistics.mean(values) for n, values in gaps.items()}
    return [_curve(name, method, epsilon, gap, found, rows.shape[1]) for method in methods for epsilon in epsilons]


def _train(data: PrivateData, method: str, epsilon: float, delta: float) -> np.ndarray:
    trainer = PrivateTrainer(
        method=method, epsilon=epsilon, delta=delta, solution_norm=SOLUTION_NORM, compare_nonprivate=False
    )
    weights = {key: np.asarray(value, dtype=np.float64) for key, value in trainer.fit(data).model.weights.items()}
    theta = weights.pop("weight")
    assert not weights
    return theta.ravel()


def _curve(
    name: str,
    method: str,
    epsilon: float,
    gap: dict[int, float],
    found: dict[tuple[str, float, int], list[tuple[float, float]]],
    d: int,
) -> Curve:
    kept = [n for n in gap if (method, epsilon, n) in found]
    columns = [list(zip(*found[method, epsilon, n], strict=True)) for n in kept]
    setting = Setting(DELTA[name], norm_bound=1.0, solution_norm=SOLUTION_NORM)

    def error(values: Sequence[float]) -> float:
        return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan

    return Curve(
        data=name,
        method=method,
        epsilon=epsilon,
        n=tuple(kept),
        empirical=tuple(statistics.mean(empirical) for empirical, _ in columns),
        empirical_error=tuple(error(empirical) for empirical, _ in columns),
        population=tuple(statistics.mean(population) for _, population in columns),
        population_error=tuple(error(population) for _, population in columns),
        bound=tuple(METHODS[method].excess_risk(n, d, epsilon, setting) for n in kept),
        gap=tuple(gap[n] for n in kept),
    )


def reached(ns: Sequence[int], excess: Sequence[float], risk: float) -> float | None:
    """The n from which on the excess stays at or below ``risk``; None if that is not inside the measured range."""
    above = [k for k, value in enumerate(excess) if value > risk]
    if not above or above[-1] == len(ns) - 1:
        return None
    k = above[-1]
    if excess[k + 1] <= 0.0:
        return float(ns[k + 1])
    share = math.log(excess[k] / risk) / math.log(excess[k] / excess[k + 1])
    return float(ns[k] * (ns[k + 1] / ns[k]) ** share)


def needs(curve: Curve, d: int) -> list[Need]:
    """The n of the curve at every α of RISKS."""
    delta = DELTA[curve.data]
    setting = Setting(delta, norm_bound=1.0, solution_norm=SOLUTION_NORM)
    return [
        Need(
            data=curve.data,
            method=curve.method,
            epsilon=curve.epsilon,
            excess_risk=risk,
            n_bound=METHODS[curve.method].n(d, curve.epsilon, risk, setting),
            n_rule=required_n(n_features=d, epsilon=curve.epsilon, delta=delta, excess_risk=risk),
            n_empirical=reached(curve.n, curve.empirical, risk),
            n_population=reached(curve.n, curve.population, risk),
        )
        for risk in RISKS
    ]


def tables(name: str, curves: Sequence[Curve], found: Sequence[Need]) -> str:
    """Markdown: bound ÷ measured excess at the whole n, then the n that reaches each α."""
    lines = [
        f"## {name}: excess empirical risk at the largest n",
        "",
        "| method | ε | n | measured ± s.e. | bound | gap | bound ÷ measured | with the gap | on test data |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for c in curves:
        lines.append(
            f"| {c.method} | {c.epsilon:g} | {c.n[-1]:,} | {c.empirical[-1]:.5f} ± {c.empirical_error[-1]:.5f} | "
            f"{c.bound[-1]:.5f} | {c.gap[-1]:.5f} | {c.factor:.2f} | {c.theorem_factor:.2f} | {c.population[-1]:.5f} |"
        )
    lines += [
        "",
        f"## {name}: smallest n",
        "",
        "| method | ε | α | measured, empirical | bound | ÷ measured | measured, test | rule | ÷ measured |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for need in found:
        if need.n_empirical is None and need.n_population is None:
            continue
        lines.append(
            f"| {need.method} | {need.epsilon:g} | {need.excess_risk:g} | {_count(need.n_empirical)} | "
            f"{_count(need.n_bound)} | {_ratio(need.n_bound, need.n_empirical)} | {_count(need.n_population)} | "
            f"{_count(need.n_rule)} | {_ratio(need.n_rule, need.n_population)} |"
        )
    lines += ["", f"## {name}: factors", ""]
    for method, (low, middle, high) in factors(curves).items():
        lines.append(f"- {method}: bound ÷ measured {middle:.2f} (geometric mean over ε; {low:.2f} to {high:.2f})")
    return "\n".join(lines)


def factors(curves: Sequence[Curve]) -> dict[str, tuple[float, float, float]]:
    """By method: least, geometric mean and largest bound ÷ measured at the largest n, over ε."""
    out = {}
    for method in dict.fromkeys(curve.method for curve in curves):
        values = [curve.factor for curve in curves if curve.method == method and curve.factor > 0]
        if values:
            out[method] = (min(values), statistics.geometric_mean(values), max(values))
    return out


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _ratio(value: float, measured: float | None) -> str:
    return "–" if measured is None else f"{value / measured:.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables, write the JSON; 1 if the data cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=sorted(DELTA), default=["adult"])
    parser.add_argument("--folder", type=Path, help="with train.parquet and test.parquet, for census_income")
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), default=sorted(METHODS))
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--sizes", type=int, default=6, help="subsamples: the whole set, a half, a quarter, … (6)")
    parser.add_argument("--repeats", type=int, default=5, help="subsamples of every size, with fresh noise each (5)")
    parser.add_argument("--json", type=Path, help="write everything here; other data sets in the file are kept")
    parser.add_argument("--quick", action="store_true", help="one ε, three sizes, one run, without dp_sgd")
    arguments = parser.parse_args(argv)
    if "census_income" in arguments.data and arguments.folder is None:
        parser.error("--data census_income needs --folder, which holds train.parquet and test.parquet")
    if min(arguments.epsilon) <= 0 or arguments.sizes < 1 or arguments.repeats < 1:
        parser.error("--epsilon, --sizes and --repeats must be above 0")
    if arguments.quick:
        arguments.epsilon, arguments.sizes, arguments.repeats = [1.0], 3, 1
        arguments.methods = [name for name in arguments.methods if name != "dp_sgd"]
    where = machine()
    results: dict[str, Any] = {}
    try:
        for name in arguments.data:
            curves = measure(
                name, arguments.folder, arguments.methods, arguments.epsilon, arguments.sizes, arguments.repeats
            )
            d = load(name, arguments.folder).public.n_features
            found = [need for curve in curves for need in needs(curve, d)]
            print(tables(name, curves, found), end="\n\n", flush=True)
            results[name] = {
                "machine": where,
                "delta": DELTA[name],
                "d": d,
                "solution_norm": SOLUTION_NORM,
                "repeats": arguments.repeats,
                "curves": [
                    asdict(curve) | {"factor": curve.factor, "theorem_factor": curve.theorem_factor} for curve in curves
                ],
                "smallest_n": [asdict(need) for need in found],
                "factors": {key: list(values) for key, values in factors(curves).items()},
            }
    except DpmlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(" · ".join(f"{key} {value}" for key, value in where.items()))
    if arguments.json is not None:
        kept = json.loads(arguments.json.read_text("utf-8")) if arguments.json.exists() else {}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_short(kept | results), indent=1, ensure_ascii=False)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return 0


def _short(value: Any) -> Any:
    """Strict JSON with short numbers; what is not finite becomes null."""
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


if __name__ == "__main__":
    sys.exit(main())
