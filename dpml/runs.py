"""Records of a run and small helpers around them: the plan, the result, what resume compares.

A :class:`Plan` stands before a record is read; a :class:`RunResult` is what a finished run leaves.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from dpml.accounting import Event, Trajectory, from_json
from dpml.data import PublicInfo, Records
from dpml.data.stored import Stored
from dpml.release import PrivateModel, describe
from dpml.results import RESULT_FORMAT, CustodianOnly, Guarantee, dumps, to_jsonable
from dpml.stages import Stages
from dpml.version import __version__

Progress = Callable[[int, int, float], None]
"""Called after each step with (step, steps, ε so far); all three are public."""


@dataclass(frozen=True)
class Plan:
    """Everything about a run that is fixed before a record is read.

    Attributes:
        method, model: what trains what; ``method`` is never ``"auto"`` here.
        guarantee: the promise.  What is reported after the run is at most this.
        event: the whole run as an event.
        parameters: the method's own frozen plan (noise, steps, rates, regularisation, …).
        steps: noisy releases.
        noise_multiplier: noise standard deviation ÷ largest L2 norm of one record's contribution to the main release.
        trajectory: ε(δ) after each of some steps, for RDP, zCDP and the best accountant.
        guidance: the sample-size verdict (only a ``text`` for a run without privacy).
        data: the declared facts about the data that the plan rests on.
        reason: why this method, in one line.
        processes: how many train together, each on its part of the records.
        stages: what is found before and measured after the training, on the same budget.
    """

    method: str
    model: str
    guarantee: Guarantee
    event: Event
    parameters: Any
    steps: int
    noise_multiplier: float
    trajectory: Trajectory
    guidance: Mapping[str, Any]
    data: Mapping[str, Any]
    reason: str
    device: str
    seed: int
    processes: int = 1
    stages: Stages = field(default_factory=Stages)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; the ledger's first line."""
        parameters = {
            key: value.to_json() if hasattr(value, "to_json") else _plain(value)
            for key, value in vars(self.parameters).items()
        }
        return {
            "dpml_version": __version__,
            "method": self.method,
            "model": self.model,
            "reason": self.reason,
            "guarantee": to_jsonable(self.guarantee),
            "event": self.event.to_json(),
            "steps": self.steps,
            "noise_multiplier": to_jsonable(self.noise_multiplier),
            "parameters": parameters,
            "data": to_jsonable(self.data),
            "device": self.device,
            "seed": self.seed,
            **({} if self.processes == 1 else {"processes": self.processes}),
            **({"stages": self.stages.to_json()} if self.stages else {}),
        }

    def rows(self) -> list[tuple[str, str]]:
        """What a person wants to see before the run starts, as (name, value) pairs."""
        shown = {
            "sample_rate": "sample rate q",
            "expected_batch_size": "expected batch size",
            "max_grad_norm": "clipping norm",
            "learning_rate": "learning rate",
            "regularization": "regularization Λ (mean form)",
            "noise_std": "noise standard deviation",
            "solution_norm": "solution norm R",
        }
        rows = [
            ("method", f"{self.method} ({self.reason})"),
            ("model", f"{self.model}, {self.data['n_features']} features, {_target(self.data)}"),
            ("n declared", f"{self.data['n_declared']:,}"),
            ("promise", str(self.guarantee)),
            ("noise multiplier", f"{self.noise_multiplier:.6g}"),
            ("steps", str(self.steps)),
        ]
        for key, label in shown.items():
            value = getattr(self.parameters, key, None)
            if value is not None:
                rows.append((label, f"{value:.6g}" if isinstance(value, float) else str(value)))
        if hasattr(self.parameters, "rows"):  # what is special about the method's own plan
            rows += self.parameters.rows()
        if self.stages:
            rows += self.stages.rows(self.parameters.event)
        rows.append(("device", self.device))
        if self.processes > 1:
            rows.append(("processes", f"{self.processes}, each with its part of the records and of the noise"))
        return rows

    def __str__(self) -> str:
        return describe(self.rows()) + "\n" + str(self.guidance["text"])


def _plain(value: Any) -> Any:
    """JSON values; a loss as its name and parameters."""
    if hasattr(value, "constants") and hasattr(value, "name"):
        return {"name": value.name, **to_jsonable(value)}
    return to_jsonable(value)


def _target(data: Mapping[str, Any]) -> str:
    bounds = data.get("target_bounds")
    return f"{len(data['classes'])} classes" if bounds is None else f"a target from {bounds[0]:g} to {bounds[1]:g}"


@dataclass(frozen=True)
class RunResult:
    """What a finished run leaves.

    Attributes:
        guarantee: recomputed from the ledger; at most the plan's promise.
        metrics: test metrics of a test set that is declared public, or with charged noise; else empty.  ``failed``
            says why a public test set could not be scored.
        nonprivate: the same for a model without privacy, only for public data.
        model: the released model.
        ledger: head hash and number of lines.
        run_dir: where the files are, ``None`` for a run in memory.
        command: the command line that repeats the run, where there was one.
        stages: what each charged stage beside the training gave, by name.
        private: what tells about records (drawn batch sizes, counts, private metrics): for the custodian only.  Not
            part of the repr, of a pickle or of ``dataclasses.asdict``.
    """

    guarantee: Guarantee
    trajectory: Trajectory
    ledger: Mapping[str, Any]
    metrics: Mapping[str, float | str]
    nonprivate: Mapping[str, float] | None
    plan: Plan
    model: PrivateModel
    accountant_used: str
    run_dir: Path | None
    private: Mapping[str, Any] = field(repr=False)
    command: str | None = None
    stages: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "private", CustodianOnly(self.private))

    def to_dict(self) -> dict[str, Any]:
        """The content of ``result.json``: public or charged values only (``private`` is left out)."""
        return {
            "format": RESULT_FORMAT,
            "dpml_version": __version__,
            "epsilon": to_jsonable(self.guarantee.epsilon),
            "delta": self.guarantee.delta,
            "neighboring_relation": self.guarantee.neighboring_relation,
            "unit": self.guarantee.unit,
            "accountant": self.guarantee.accountant,
            "accountant_used": self.accountant_used,
            "epsilon_source": "recomputed",
            "assumptions": list(self.guarantee.assumptions),
            "method": self.plan.method,
            "model": self.plan.model,
            "steps": self.plan.steps,
            "noise_multiplier": to_jsonable(self.plan.noise_multiplier),
            "metrics": dict(self.metrics),
            **({"stages": to_jsonable(self.stages)} if self.stages else {}),
            "nonprivate": None if self.nonprivate is None else dict(self.nonprivate),
            "trajectory": to_jsonable(self.trajectory),
            "guidance": to_jsonable(self.plan.guidance),
            "plan": self.plan.to_dict(),
            "ledger": dict(self.ledger),
            "data": to_jsonable(self.plan.data),
            **({} if self.command is None else {"command": self.command}),
        }


class EpsilonSoFar:
    """ε after a step for the progress bar: the trajectory's next point, so never too small."""

    def __init__(self, trajectory: Trajectory) -> None:
        series = trajectory.best or ()
        self._steps = np.asarray(trajectory.steps)
        self._values = np.asarray(series, dtype=float)

    def __call__(self, step: int) -> float:
        if len(self._values) == 0:
            return math.nan
        index = min(int(np.searchsorted(self._steps, step)), len(self._values) - 1)
        return float(self._values[index])


def public_description(public: PublicInfo) -> dict[str, Any]:
    """``schema.json``: the table's schema, or what was declared of arrays."""
    if public.schema is not None:
        return dict(public.schema)
    return {
        "name": public.name,
        "n_declared": public.n_declared,
        "classes": list(public.classes),
        "norm_bound": public.norm_bound,
        "preprocessing": dict(public.preprocessing),
    }


def records_mac(key: bytes, records: Records) -> str:
    """HMAC of the records under a key that stays in ``private/`` (a bare hash would let an adversary test guesses).

    Training and test records, their order, types and shapes.  Nothing is copied; records that are read as they are
    drawn pass by once, in pieces.
    """
    mac = hmac.new(key, digestmod=hashlib.sha256)
    arrays = (records.X, records.y, records.X_test, records.y_test)
    for number, array in enumerate(arrays):
        if array is None:
            continue
        mac.update(f"array {number}".encode())
        if isinstance(array, Stored):
            for piece in array.blocks():
                mac.update(piece)
            continue
        csr: Any = array
        parts = (csr.data, csr.indices, csr.indptr) if sparse.issparse(csr) else (array,)
        for part in parts:
            block = np.ascontiguousarray(part)
            mac.update(f"{block.dtype.str} {block.shape}".encode())
            mac.update(block.reshape(-1).view(np.uint8).data)
    return mac.hexdigest()


def _same(a: Any, b: Any) -> bool:
    """Equal, or floats that another machine's rounding may have moved by 1e-9 (counts never are)."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9)
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], *, free: frozenset[str] = frozenset(), prefix: str = ""
) -> list[str]:
    """Where two records differ, as ``name: old → new``, names below a mapping with a dot; ``free`` names may."""
    found: list[str] = []
    new = json.loads(dumps(new))
    for key in sorted(set(old) | set(new)):
        a, b, name = old.get(key), new.get(key), f"{prefix}{key}"
        if name in free:
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, free=free, prefix=f"{name}.")
        elif not _same(a, b):
            found.append(f"{name}: {a!r} → {b!r}")
    return found


FREE_IN_PLANS = frozenset({"device", "parameters.micro_batch_size", "processes"})
"""What may differ when a run is resumed: where a step's sum is computed, and in how many pieces.  Neither changes how
much a record can move the sum, nor when or how much noise is drawn.  (How many workers read the records stands in no
plan.)"""


def plan_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Where two plans differ in what counts, as ``name: old → new``; see :data:`FREE_IN_PLANS`."""
    return differences(old, new, free=FREE_IN_PLANS)


def as_written(plan: Plan, written: Mapping[str, Any]) -> Plan:
    """The same plan with the ledger's own noise, to the last digit: all charges of a run are of one event.

    What may differ (:data:`FREE_IN_PLANS`) stands as in the ledger, too: ``result.json`` repeats its first line.
    """
    parameters = written["parameters"]
    return replace(
        plan,
        guarantee=replace(plan.guarantee, epsilon=float(written["guarantee"]["epsilon"])),
        event=from_json(written["event"]),
        noise_multiplier=float(written["noise_multiplier"]),
        device=str(written["device"]),
        processes=int(written.get("processes", 1)),
        parameters=replace(
            plan.parameters,
            noise_multiplier=float(parameters["noise_multiplier"]),
            event=from_json(parameters["event"]),
            event_per_step=from_json(parameters["event_per_step"]),
            micro_batch_size=parameters["micro_batch_size"],
        ),
    )
