"""Hand-made run and sweep folders.

FIXTURES: every number below is made up for the tests (only the ledgers are real chains).  Nothing here was measured,
and none of it says anything about dpml's accuracy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpml.accounting import (
    Composed,
    Event,
    Gaussian,
    Ledger,
    ObjectivePerturbation,
    PoissonSampled,
    guidance,
)

N, D, DELTA = 36_177, 133, 1e-5
SCHEMA = {
    "name": "fixture",
    "n_declared": N,
    "norm_bound": 1.0,
    "target": {"name": "income", "classes": ["<=50K", ">50K"]},
    "columns": {
        "age": {"kind": "numeric", "bounds": [17, 90], "scale": "linear", "knots": 6, "on_invalid": "clamp"},
        "capital-gain": {"kind": "numeric", "bounds": [0, 99999], "scale": "log1p", "knots": 8},
        "race": {"kind": "categorical", "categories": ["White", "Black", "Other"], "on_invalid": "zero"},
        '<b>odd</b> & "name"': {"kind": "ignore"},
    },
}


def event_of(method: str, epsilon: float) -> tuple[Event, int, int]:
    """An event that a method could charge, the count of its charge lines, and the releases per line."""
    if method == "dp_sgd":
        return PoissonSampled(1000 / N, Gaussian(0.85 + 1.2 / epsilon)), 6, 50
    if method == "output":
        return Gaussian(3.7306317 / epsilon), 1, 1  # (1, 1e-5)-DP to 2e-8
    parts = (ObjectivePerturbation(4.2 / epsilon, 3.0 / epsilon, 1.0), Gaussian(600.0 / epsilon))
    return Composed(parts), 1, 1


def plan_of(method: str, epsilon: float, relation: str = "add_remove") -> dict[str, Any]:
    event, lines, count = event_of(method, epsilon)
    return {
        "dpml_version": "0.1.0",
        "method": method,
        "model": "logreg",
        "reason": "asked for",
        "guarantee": {"epsilon": epsilon, "delta": DELTA, "neighboring_relation": relation, "unit": "record"},
        "event": event.to_json(),
        "steps": lines * count,
        "noise_multiplier": 0.85 + 1.2 / epsilon,
        "parameters": {
            "sample_rate": 1000 / N, "expected_batch_size": 1000, "max_grad_norm": 1.0, "learning_rate": 4.0,
            "momentum": 0.9, "schedule": "linear", "event_per_step": event.to_json(),
        },
        "data": {"name": "fixture", "n_declared": N},
        "device": "cpu",
        "seed": 0,
    }  # fmt: skip


def trajectory_of(method: str, epsilon: float) -> dict[str, Any]:
    """Made-up curves of a likely shape."""
    if method != "dp_sgd":
        series = {"best": [epsilon], "rdp": [1.12 * epsilon], "zcdp": [1.09 * epsilon]}
        notes = {}
        if method == "objective":
            series["zcdp"] = None
            notes = {"zcdp": "zcdp cannot bound objective_perturbation."}
        return {"delta": DELTA, "steps": [1], **series, "notes": notes}
    steps = [1, *range(15, 301, 15)]
    root = [(step / 300) ** 0.5 for step in steps]
    return {
        "delta": DELTA,
        "steps": steps,
        "best": [epsilon * r for r in root],
        "rdp": [epsilon * (0.16 + 0.93 * r) for r in root],
        "zcdp": [38 * epsilon * r + 300 * r**2 for r in root],
        "notes": {"zcdp": "zCDP ignores amplification by sampling: every step counts as if all records took part."},
    }


def write_run(
    folder: Path,
    *,
    method: str = "dp_sgd",
    epsilon: float = 1.0,
    accuracy: float | None = 0.8512,
    relation: str = "add_remove",
    overrides: list[str] | None = None,
    finished: bool = True,
    nonprivate: float | None = 0.8533,
    change: dict[str, Any] | None = None,
) -> Path:
    """Writes a run folder; ``finished=False`` stops after the charges; ``change`` overwrites keys of the result."""
    release = folder / "release"
    release.mkdir(parents=True)
    (folder / "private").mkdir()
    plan = plan_of(method, epsilon, relation)
    ledger = Ledger.create(release / "ledger.jsonl", plan)
    event, lines, count = event_of(method, epsilon)
    for _ in range(lines if finished else max(1, lines // 2)):
        ledger.charge(event, stage="training", count=count)
    if not finished:
        (folder / "private" / "status.json").write_text(json.dumps({"status": "running"}))
        return folder
    ledger.close({"epsilon": epsilon, "delta": DELTA, "steps": lines * count})
    result = {
        "format": 1,
        "dpml_version": "0.1.0",
        "epsilon": epsilon,
        "delta": DELTA,
        "neighboring_relation": relation,
        "unit": "record",
        "accountant": "best",
        "accountant_used": {"dp_sgd": "pld", "output": "exact", "objective": "basic"}[method],
        "epsilon_source": "recomputed",
        "assumptions": ["Each person has at most one record.", "Floating-point noise is as good as real-valued noise."],
        "method": method,
        "model": "logreg",
        "steps": lines * count,
        "noise_multiplier": 0.85 + 1.2 / epsilon,
        "metrics": {} if accuracy is None else {
            "accuracy": accuracy, "auc": 0.904, "loss": 0.322, "source": "the public test set of the fixture",
        },
        "nonprivate": None if nonprivate is None else {"test_accuracy": nonprivate},
        "trajectory": trajectory_of(method, epsilon),
        "guidance": guidance(n_declared=N, n_features=D, epsilon=epsilon, delta=DELTA),
        "plan": plan,
        "ledger": {"head": ledger.head, "count": ledger.count},
        "data": {
            "name": "fixture", "is_public": accuracy is not None, "n_declared": N, "n_features": D,
            "classes": ["<=50K", ">50K"],
        },
        **({} if overrides is None else {"overrides": overrides}),
        **(change or {}),
    }  # fmt: skip
    (release / "result.json").write_text(json.dumps(result))
    (release / "schema.json").write_text(json.dumps(SCHEMA))
    (release / "config.yaml").write_text("privacy:\n  epsilon: 1.0\n  delta: 1.0e-05\nmethod:\n  name: dp_sgd\n")
    (folder / "private" / "status.json").write_text(json.dumps({"status": "done"}))
    return folder


def write_sweep(
    root: Path,
    *,
    methods: tuple[str, ...] = ("objective", "dp_sgd"),
    epsilons: tuple[float, ...] = (0.1, 0.5, 1.0, 4.0),
    seeds: int = 1,
    public: bool = True,
    broken: bool = False,
) -> Path:
    """A sweep of every method, ε and seed; ``broken`` adds a failed, a stopped and a never started job."""
    root.mkdir(parents=True)
    jobs: list[dict[str, Any]] = []

    def add(method: str, epsilon: float, seed: int) -> str:
        number = len(jobs)
        overrides = ["+experiment=logreg", f"method={method}", f"privacy.epsilon={epsilon}", f"seed={seed}"]
        jobs.append({"number": number, "overrides": overrides, "folders": [str(number)]})
        return str(number)

    drop = {"objective": 0.003, "dp_sgd": 0.006, "output": 0.014}
    for method in methods:
        for epsilon in epsilons:
            for seed in range(seeds):
                name = add(method, epsilon, seed)
                accuracy = 0.8533 - drop[method] / epsilon**0.7 + 0.0012 * ((seed * 7919) % 5 - 2) / epsilon**0.5
                write_run(
                    root / name,
                    method=method,
                    epsilon=epsilon,
                    accuracy=accuracy if public else None,
                    nonprivate=0.8533 if public else None,
                )
    if broken:
        failed = root / add("dp_sgd", 8.0, 0)
        write_run(failed, method="dp_sgd", epsilon=8.0, finished=False)
        (failed / "private" / "status.json").write_text(json.dumps({"status": "failed", "error": "SolverError"}))
        (failed / "private" / "traceback.txt").write_text("ValueError: SECRET cell 4711")
        write_run(root / add("dp_sgd", 2.0, 0), method="dp_sgd", epsilon=2.0, finished=False)
        add("output", 2.0, 0)
    (root / "sweep.json").write_text(json.dumps({"format": 1, "jobs": jobs}))
    return root
