"""Private linear models with nothing to tune, on Adult or Census-Income: every figure beside its target, as Markdown.

    python experiments/private_erm.py --data adult [--runs 10] [--epsilon 0.1 0.5 1 2] [--only NAME …] [--json FILE]
    python experiments/private_erm.py --data census_income --folder FOLDER

Rows of the product go through ``PrivateTrainer.fit`` with its defaults: default encoder, δ = 1e-5 (Adult) or 1e-6
(Census-Income), add_remove, fresh secret noise in every run.  The records are encoded once and kept in memory.
Names for ``--only``: the methods, ``reference`` (published methods on min-max features, their Λ chosen on test data),
``published`` (Yu et al.'s budget) and ``time`` (against scikit-learn).  The exit status is 1 when a target of accuracy
or AUC is missed; times never fail a run.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import private_erm_table as table
from private_erm_table import BUDGETS, Check, Figure, Timing
from scipy import sparse

from dpml import PrivateData, PrivateTrainer, erm
from dpml.data import Records
from dpml.data.sources import package_folder
from dpml.erm.losses import LOGISTIC
from dpml.erm.solver import gradient_norm
from dpml.errors import ConfigError, DpmlError
from dpml.mechanisms import default_noise

DELTA = {"adult": 1e-5, "census_income": 1e-6}
GRID = tuple(10.0 ** (k / 4) for k in range(-17, -6))  # Λ, mean form: four values a decade
QUICK_GRID = (1e-4, 1e-3, 10.0**-2.5)
GROUP, KEPT, FINAL = 5, 4, 4  # runs in a mean, values of Λ that get more of them, fresh runs per ``runs``
TIMED = (0.1, 1.0)  # budgets whose λ the fit time is measured at


@dataclass(frozen=True)
class Method:
    """A row of the product: the trainer's arguments, and the data sets on which it is run less often."""

    name: str
    arguments: tuple[tuple[str, Any], ...]
    seldom: tuple[str, ...] = ()
    data: tuple[str, ...] = ("adult", "census_income")


PRODUCT = (
    Method("auto", ()),
    Method("objective", (("method", "objective"),)),
    Method("output", (("method", "output"),)),
    Method("dp_gd", (("method", "dp_gd"),), seldom=("census_income",)),
    Method("dp_sgd", (("method", "dp_sgd"),), seldom=("adult", "census_income")),
    Method("linear_svm objective", (("model", "linear_svm"), ("method", "objective"))),
    Method("linear_svm dp_gd", (("model", "linear_svm"), ("method", "dp_gd")), seldom=("census_income",)),
)
FREE = (
    Method("nonprivate", (("method", "nonprivate"),)),
    Method("linear_svm nonprivate", (("model", "linear_svm"), ("method", "nonprivate"))),
)


@dataclass(frozen=True)
class Reference:
    """A published method and the accuracies that others got from it on min-max features, in percent.

    ``tuned``: Λ is the best of a grid on the test data, as it was there; else the method's own automatic one.
    """

    name: str
    method: str
    variant: str
    relation: str
    known: tuple[tuple[float, float], ...]
    tuned: bool = True


REFERENCES = (
    Reference("output, Gamma noise (pure)", "output", "pure", "replace_one", ((0.1, 76.7), (0.5, 80.4), (1.0, 81.5))),
    Reference("output, Gaussian noise", "output", "default", "replace_one", ((0.1, 79.2), (0.5, 82.0), (1.0, 82.7))),
    Reference("CMS'11 (pure)", "objective", "cms11", "replace_one", ((0.1, 77.8), (0.5, 82.4), (1.0, 83.1))),
    Reference("KST'12", "objective", "kst12", "add_remove", ((0.1, 80.8), (0.5, 83.2), (1.0, 83.7))),
    Reference(
        "Redberg'23, untuned",
        "objective",
        "redberg23",
        "add_remove",
        ((0.1, 82.3), (0.5, 83.8), (1.0, 84.2), (2.0, 84.4)),
        tuned=False,
    ),
)
NAMES = (*(m.name for m in PRODUCT), "reference", "published", "time")


# ------------------------------------------------------------------------------------------------------------ data


@cache
def load(name: str, folder: Path | None, plain: bool = False) -> PrivateData:
    """The data set with its records read and encoded once a process (both splits are public: no coin is thrown).

    ``plain``: Adult as the reference methods' figures have it: every numeric column by linear min-max, money too,
    one-hot columns, no constant (d = 103).  ``PrivateData.bundled("adult", spline=False)`` has log1p for money, and a
    constant.
    """
    if name == "census_income":
        assert folder is not None
        data = PrivateData.census_income(folder)
    elif plain:
        data = plain_adult()
    else:
        data = PrivateData.bundled(name)
    kept: dict[bool, Records] = {}

    def read(noise: Any, sparse: bool = False) -> Records:
        if sparse not in kept:
            kept[sparse] = data.load(noise, sparse=sparse)
        return kept[sparse]

    return PrivateData(data.public, read, data.encoder)


def plain_adult() -> PrivateData:
    """Adult with linear min-max and one-hot features, rows clipped to norm 1."""
    files = package_folder() / "adult"
    schema = json.loads((files / "schema.json").read_text("utf-8"))
    for entry in schema["columns"].values():
        if entry["kind"] == "numeric":
            entry.pop("knots", None)
            entry.update(scale="linear", encoding="minmax")
    encoded = PrivateData.from_table(files / "train.parquet", schema, files / "test.parquet")
    records = encoded.load(default_noise(), sparse=True)

    def unclipped(rows: Any) -> Any:
        """The constant column tells what its row was scaled by."""
        scale = rows[:, [-1]].toarray().ravel()
        return sparse.csr_array(sparse.diags_array(1.0 / scale) @ rows[:, :-1])

    return PrivateData.from_arrays(
        unclipped(records.X),
        records.y,
        norm_bound=1.0,
        classes=(0, 1),
        n_declared=encoded.public.n_declared,
        X_test=unclipped(records.X_test),
        y_test=records.y_test,
        is_public=True,
        name="adult, plain",
    )


# ------------------------------------------------------------------------------------------------------ measurement


def measure(data: PrivateData, runs: int, **arguments: Any) -> dict[str, Any]:
    """Test accuracies (percent), AUCs and seconds of independent fits; the first reading of the data is not timed."""
    trainer = PrivateTrainer(compare_nonprivate=False, **arguments)
    trainer.check(data)
    data.load(default_noise(), sparse=arguments.get("method") != "dp_sgd")
    found: list[tuple[float, float, float]] = []
    for _ in range(runs):
        begin = time.perf_counter()
        metrics = trainer.fit(data).metrics
        found.append((100.0 * float(metrics["accuracy"]), float(metrics["auc"]), time.perf_counter() - begin))
    accuracy, auc, seconds = zip(*found, strict=True)
    return {"accuracy": accuracy, "auc": auc, "seconds": seconds}


@dataclass(frozen=True)
class Job:
    """One figure to measure, small enough to be sent to another process."""

    kind: str
    name: str
    epsilon: float
    delta: float
    data: str
    folder: Path | None
    runs: int
    grid: tuple[float, ...] = ()
    final_runs: int = 0


def work(job: Job) -> Figure:
    """Measure one figure."""
    return {"product": product, "reference": reference, "published": published}[job.kind](job)


def product(job: Job) -> Figure:
    """A method with its defaults."""
    method = next(m for m in (*PRODUCT, *FREE) if m.name == job.name)
    budget = {"epsilon": job.epsilon, "delta": job.delta} if math.isfinite(job.epsilon) else {}
    values = measure(load(job.data, job.folder), job.runs, **dict(method.arguments), **budget)
    return Figure("product", job.name, job.epsilon, job.delta, "add_remove", **values)


def reference(job: Job) -> Figure:
    """A published method on plain features; if tuned, with Λ chosen on the test data.

    The known figures are the best of a grid's mean accuracies of 3 to 8 runs, so chance has raised them.  The same
    statistic is reproduced here with means of ``GROUP`` runs and averaged over ``runs`` repetitions, among the
    ``KEPT`` values of Λ that looked best in a group of their own.  Beside it: what the best Λ gives in fresh runs.
    """
    row = next(r for r in REFERENCES if r.name == job.name)
    pure = row.variant in ("pure", "cms11")
    fit = partial(
        measure,
        load(job.data, job.folder, plain=True),
        method=row.method,
        variant=row.variant,
        neighboring_relation=row.relation,
        epsilon=job.epsilon,
        delta=None if pure else job.delta,
    )
    known, delta = dict(row.known).get(job.epsilon), 0.0 if pure else job.delta
    figure = partial(Figure, "reference", job.name, job.epsilon, delta, row.relation, known=known)
    if not row.tuned:
        return figure(**fit(runs=job.final_runs))
    looks: dict[float, float] = {}
    refused: ConfigError | None = None
    for weight in job.grid:
        try:
            looks[weight] = statistics.mean(fit(runs=GROUP, regularization=weight)["accuracy"])
        except ConfigError as error:  # below what the theorem allows at this ε
            refused = error
    if not looks:
        raise refused or ValueError("the grid is empty")
    kept = sorted(looks, key=lambda weight: looks[weight])[-KEPT:]
    repeats = [fit(runs=GROUP * job.runs, regularization=weight)["accuracy"] for weight in kept]
    means = np.reshape(repeats, (len(kept), job.runs, GROUP)).mean(axis=2)
    best = kept[int(means.mean(axis=1).argmax())]
    return figure(
        **fit(runs=job.final_runs, regularization=best),
        regularization=best,
        best_of_grid=float(means.max(axis=0).mean()),
        tried={f"{weight:.3g}": look for weight, look in looks.items()},
    )


def published(job: Job) -> Figure:
    """`auto` at the budget of Yu et al. 2020, under the relation that the name ends with."""
    name, _, relation = job.name.partition(" ")
    data = load(job.data, job.folder)
    values = measure(data, job.runs, epsilon=job.epsilon, delta=job.delta, neighboring_relation=relation)
    return Figure("published", name, job.epsilon, job.delta, relation, **values)


def jobs(arguments: argparse.Namespace) -> list[Job]:
    """What is to be measured, in the order of the tables."""
    name, folder, wanted = arguments.data, arguments.folder, arguments.only
    make = partial(Job, delta=DELTA[name], data=name, folder=folder)
    found = []
    for method in PRODUCT:
        if method.name in wanted and name in method.data:
            runs = min(arguments.runs, arguments.slow_runs) if name in method.seldom else arguments.runs
            found += [make("product", method.name, epsilon, runs=runs) for epsilon in arguments.epsilon]
    if found:
        free = [m for m in FREE if m.name == "nonprivate" or any("svm" in job.name for job in found)]
        found += [make("product", method.name, math.inf, runs=1) for method in free]
    if name == "adult" and "reference" in wanted:
        grid = QUICK_GRID if arguments.quick else GRID
        for row in REFERENCES:
            budgets = [e for e in arguments.epsilon if e in dict(row.known)]
            runs = {"runs": arguments.runs, "final_runs": FINAL * arguments.runs}
            found += [make("reference", row.name, epsilon, grid=grid, **runs) for epsilon in budgets]
    if name == "adult" and "published" in wanted:
        n = load(name, folder).public.n_declared
        for relation in ("add_remove", "replace_one"):
            job = make("published", f"auto {relation}", 0.1, runs=arguments.runs)
            found.append(replace(job, delta=1.0 / n**2))
    return found


def collect(work_list: Sequence[Job], processes: int) -> list[Figure]:
    """Measure all figures, here or in several processes; progress goes to stderr."""
    if processes == 1:
        return [_told(job, work(job)) for job in work_list]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        return [_told(job, figure) for job, figure in zip(work_list, pool.map(work, work_list), strict=True)]


def _told(job: Job, figure: Figure) -> Figure:
    text = f"{job.kind}: {job.name}, ε = {job.epsilon:g}: accuracy {table.spread(figure.accuracy, 2)} %, "
    say(text + f"AUC {table.spread(figure.auc, 4)}, {statistics.median(figure.seconds):.2f} s a fit")
    return figure


def say(text: str) -> None:
    """One line of progress."""
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------------------- time


def timings(data: PrivateData, epsilon: float, delta: float, repeats: int) -> list[Timing]:
    """Ours and scikit-learn's LogisticRegression on the same CSR rows with the same λ = 1/C, in turns.

    Ours is all of ``plan_objective`` and ``fit_objective`` (rows checked and clipped, noise, verified minimum).
    scikit-learn runs once with its default tolerance and once (Newton-CG: its L-BFGS stops early) with the largest
    tolerance, by powers of ten, that brings the gradient norm of the sum form to what ours is verified to have.
    """
    from sklearn.linear_model import LogisticRegression

    records = data.load(default_noise(), sparse=True)
    signs, public = 2.0 * records.y - 1.0, data.public
    assert public.norm_bound is not None
    planned = partial(
        erm.plan_objective,
        n_declared=public.n_declared,
        n_features=public.n_features,
        norm_bound=public.norm_bound,
        epsilon=epsilon,
        delta=delta,
    )
    lambda_sum, goal = planned().lambda_sum, 0.5 * planned().tolerance
    norms: dict[str, float] = {}

    def ours() -> None:
        plan = planned()
        _, notes = erm.fit_objective(plan, records.X, signs, noise=default_noise(), charge=lambda event: None)
        norms["ours"] = float(notes["gradient_norm"])

    def theirs(name: str, solver: str, tolerance: float) -> None:
        model = LogisticRegression(
            C=1.0 / lambda_sum, fit_intercept=False, solver=solver, tol=tolerance, max_iter=10_000
        ).fit(records.X, signs)
        norms[name] = gradient_norm(LOGISTIC, model.coef_.ravel(), records.X, signs, lambda_sum, None)

    exact, tolerance = "scikit-learn, newton-cg, our gradient norm", 1e-5
    while tolerance > 1e-16:
        theirs(exact, "newton-cg", tolerance)
        if norms[exact] <= goal:
            break
        tolerance /= 10.0
    default = "scikit-learn, default (lbfgs, tol=1e-4)"
    candidates: dict[str, Callable[[], None]] = {
        "ours": ours,
        default: partial(theirs, default, "lbfgs", 1e-4),
        exact: partial(theirs, exact, "newton-cg", tolerance),
    }
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, run in candidates.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    titles = {exact: f"{exact} (tol={tolerance:.0e})"}
    return [
        Timing(titles.get(name, name), epsilon, lambda_sum, tuple(values), norms[name])
        for name, values in seconds.items()
    ]


# ------------------------------------------------------------------------------------------------------ command line


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; argparse's own message and exit status 2 for what is out of range."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=sorted(DELTA), required=True)
    parser.add_argument("--folder", type=Path, help="with train.parquet and test.parquet, for census_income")
    parser.add_argument("--runs", type=_whole, help="independent runs of every row (default 10, quick 2)")
    parser.add_argument("--slow-runs", type=_whole, default=3, help="at most, of rows that take minutes (default 3)")
    parser.add_argument("--epsilon", type=_budget, nargs="+", help="default 0.1 0.5 1 2, quick 1")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help="of: " + ", ".join(NAMES))
    parser.add_argument("--jobs", type=_whole, default=1, help="processes; with more than one, times mean little")
    parser.add_argument("--json", type=Path, help="write all figures here as well")
    parser.add_argument("--quick", action="store_true", help="one ε, two runs, a short grid")
    arguments = parser.parse_args(argv)
    if arguments.data == "census_income" and arguments.folder is None:
        parser.error("--data census_income needs --folder, which holds train.parquet and test.parquet")
    if arguments.data == "adult" and arguments.folder is not None:
        parser.error("--folder is for --data census_income; adult comes with the package")
    arguments.runs = arguments.runs or (2 if arguments.quick else 10)
    arguments.epsilon = sorted(set(arguments.epsilon or ((1.0,) if arguments.quick else BUDGETS)))
    here = [n for n in NAMES if _measured_on(n, arguments.data)]
    arguments.only = arguments.only or here
    if foreign := [name for name in arguments.only if name not in here]:
        parser.error(f"--only {' '.join(foreign)} is not measured on {arguments.data}; there are: {', '.join(here)}")
    return arguments


def _measured_on(name: str, data: str) -> bool:
    if name in ("reference", "published"):
        return data == "adult"
    return data == "census_income" if name == "time" else any(data in m.data for m in PRODUCT if m.name == name)


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: it must be a whole number ≥ 1")
    return value


def _budget(text: str) -> float:
    value = float(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: epsilon must be a finite number > 0")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; 1 if a target of accuracy or AUC is missed, or the data cannot be read."""
    arguments = parse(argv)
    name, delta = arguments.data, DELTA[arguments.data]
    timed: list[Timing] = []
    where = table.machine()
    try:
        figures = collect(jobs(arguments), arguments.jobs)
        if "time" in arguments.only:
            for epsilon in [e for e in TIMED if e in arguments.epsilon] or arguments.epsilon[:1]:
                repeats = min(arguments.runs, 3 if arguments.quick else 5)
                timed += timings(load(name, arguments.folder), epsilon, delta, repeats)
                say(f"time: ε = {epsilon:g} done")
    except DpmlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    checks: list[Check] = [
        *table.product_checks(name, figures),
        *table.reference_checks(figures),
        *table.published_checks(figures),
        *table.timing_checks(timed),
    ]
    for text in table.sections(name, delta, figures, timed):
        print(text, end="\n\n", flush=True)
    if checks:
        print("## Targets\n\n" + table.check_table(checks), end="\n\n")
    print(
        "Mean ± standard deviation over the runs; each run draws its own secret noise.  A fit is timed on encoded rows"
    )
    print(
        "in memory, from the plan to the scored model"
        + ("" if arguments.jobs == 1 else f"; {arguments.jobs} at once")
        + "."
    )
    print("\n" + " · ".join(f"{key} {value}" for key, value in where.items()))
    failed = [check.name for check in checks if check.fails and not check.met]
    if failed:
        print("\nmissed: " + "; ".join(failed))
    if arguments.json:
        content = {
            "data": name,
            "machine": where,
            "figures": [_plain(asdict(figure)) for figure in figures],
            "timings": [_plain(asdict(timing)) for timing in timed],
            "targets": [asdict(check) for check in checks],
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if failed else 0


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Strict JSON with short numbers: ∞ becomes ``"inf"``."""

    def short(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return [short(item) for item in value]
        if isinstance(value, dict):
            return {key: short(item) for key, item in value.items()}
        if isinstance(value, float | np.floating):
            return float(f"{value:.6g}") if math.isfinite(value) else "inf"
        return value

    return {key: short(value) for key, value in values.items()}


if __name__ == "__main__":
    sys.exit(main())
