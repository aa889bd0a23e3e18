"""The numbers behind a run's pictures: ε over the steps (or by accountant), and every accountant's ε side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from dpml import accounting
from dpml.errors import DpmlError
from dpml.report import formats
from dpml.report.formats import as_number
from dpml.report.record_checks import relation_of
from dpml.report.records import RunRecord
from dpml.report.values import mapping, sequence, text, whole

ONE_SHOT_STEPS = 2  # up to so many releases there is no curve over steps worth drawing
SERIES = {"best": "best accountant", "rdp": "RDP", "zcdp": "zCDP"}
UNSAMPLED = "zCDP, no amplification"
ROWS = 12  # of the table beside the curve, about
LARGEST = 1e9  # an ε beyond it says nothing and is drawn nowhere


@dataclass(frozen=True)
class AccountantRow:
    """ε by one accountant; ``epsilon`` is ``None`` where it cannot bound the charges, and ``note`` says why."""

    name: str
    epsilon: float | None
    note: str = ""
    used: bool = False


def accountant_rows(record: RunRecord) -> tuple[AccountantRow, ...]:
    """The reported ε first, then ε of every accountant recomputed from the ledger's charges, smallest first."""
    result, ledger = record.result, record.ledger
    used = text(result.get("accountant_used"), text(result.get("accountant")))
    epsilon = as_number(result.get("epsilon"))
    reported = AccountantRow(used, epsilon, "reported", used=True)
    if ledger is None or not ledger.charges or epsilon is None or math.isinf(epsilon):
        return (reported,)
    delta = as_number(result.get("delta")) or 0.0
    rows = []
    for name in accounting.ACCOUNTANTS:
        if name in (used, "best"):
            continue
        try:
            value = accounting.epsilon(ledger.event, delta, accountant=name, neighboring_relation=relation_of(record))
            note = "ignores amplification by sampling" if name == "zcdp" and is_sampled(ledger.charges) else ""
            rows.append(AccountantRow(name, value, note if math.isfinite(value) else "no finite ε at this δ"))
        except (DpmlError, ArithmeticError, ValueError) as fault:
            rows.append(AccountantRow(name, None, formats.shortened(fault)))
    rows.sort(key=lambda row: (row.epsilon is None, row.epsilon or 0.0))
    return (reported, *rows)


def is_sampled(charges: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any charge is of a Poisson sample."""
    return any("poisson_sampled" in str(charge.get("event")) for charge in charges)


@dataclass(frozen=True)
class TrajectoryFacts:
    """ε after each of some steps.

    Attributes:
        delta: the δ of all ε.
        steps: increasing step numbers; empty where the result holds no trajectory.
        curves: name in words → ε after these steps, ``inf`` where it is not finite.
        notes: name in words → a sentence.
        missing: names of curves that the result lacks without a reason.
        problem: what is wrong with the trajectory in the result.
    """

    delta: float
    steps: tuple[int, ...] = ()
    curves: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def one_shot(self) -> bool:
        """One release or two: there is no curve worth drawing."""
        return len(self.steps) <= ONE_SHOT_STEPS

    @property
    def last(self) -> list[tuple[str, float]]:
        """(name, ε at the end) of each curve."""
        return [(name, values[-1]) for name, values in self.curves.items()]

    @property
    def rows(self) -> list[tuple[int, list[float]]]:
        """About a dozen (step, ε of each curve), the last step among them."""
        every = max(1, -(-len(self.steps) // ROWS))
        chosen = sorted({*range(0, len(self.steps), every), len(self.steps) - 1}) if self.steps else []
        return [(self.steps[i], [values[i] for values in self.curves.values()]) for i in chosen]


def trajectory_facts(record: RunRecord) -> TrajectoryFacts:
    """The trajectory of a result; one that makes no sense is refused in words, not drawn."""
    result = record.result
    found = mapping(result.get("trajectory"))
    delta = as_number(found.get("delta")) or as_number(result.get("delta")) or 0.0
    raw = sequence(found.get("steps"))
    steps = [step for value in raw if (step := whole(value))]
    if not raw:
        return TrajectoryFacts(delta)
    if len(steps) != len(raw) or any(a >= b for a, b in pairwise(steps)):
        return TrajectoryFacts(delta, problem="its steps are no increasing whole numbers from 1 on")
    names = dict(SERIES)
    if is_sampled(record.ledger.charges) if record.ledger else result.get("method") == "dp_sgd":
        names["zcdp"] = UNSAMPLED
    curves = {}
    for key, name in names.items():
        values = sequence(found.get(key))
        if len(values) == len(steps):
            curves[name] = tuple(_epsilon(value) for value in values)
    told = mapping(found.get("notes"))
    notes = {names.get(key, formats.shortened(key)): text(note) for key, note in told.items()}
    missing = tuple(name for key, name in names.items() if name not in curves and key not in told)
    return TrajectoryFacts(delta, tuple(steps), curves, notes, missing)


def _epsilon(value: Any) -> float:
    number = as_number(value)
    return number if number is not None and 0 <= number < LARGEST else math.inf
