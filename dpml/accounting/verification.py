"""Check a finished run from its files alone: the ledger's chain, and ε recomputed from what was charged.

Nothing of the run is trusted but the mathematics; nothing is written.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpml.accounting import api
from dpml.accounting.events import PoissonSampled, check_number, check_relation
from dpml.accounting.ledger import LedgerRecord, read_ledger
from dpml.errors import DpmlError, LedgerError, UnsupportedEventError
from dpml.results import number

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Verification:
    """Outcome of :func:`verify`.

    Attributes:
        ok: whether everything holds.
        problems: one sentence each; ledger lines are named by number, counted from 1.
        epsilon_reported, epsilon_recomputed: from ``result.json`` and from the ledger; None where unreadable.
        second_opinion: ε by other accountants, name → ε (or why there is none).
        lines: number of ledger lines that were read.
    """

    ok: bool
    problems: tuple[str, ...]
    epsilon_reported: float | None
    epsilon_recomputed: float | None
    second_opinion: dict[str, Any] = field(default_factory=dict)
    lines: int = 0


def verify(run_folder: Path | str) -> Verification:
    """Check ``RUN`` or ``RUN/release``: chain, head and count, promise, and ε recomputed to 1e-9 relative."""
    folder = Path(run_folder)
    if (folder / "release").is_dir():
        folder = folder / "release"
    problems: list[str] = []
    result = _read_result(folder / "result.json", problems)
    try:
        record = read_ledger(folder / "ledger.jsonl")
    except LedgerError as error:
        problems.append(str(error))
        record = None
    reported = recomputed = None
    opinion: dict[str, Any] = {}
    if result is not None:
        reported = _number(result, "epsilon", problems)
    if record is not None and record.closed is None:
        problems.append(
            f"ledger line {record.count} is not the closing line: the run is unfinished or lines are missing."
        )
    if result is not None and record is not None:
        _check_anchor(result, record, problems)
        if record.closed is not None:
            _check_outcome(result, record, problems)
        recomputed, opinion = _recompute(result, record, reported, problems)
    lines = record.count if record is not None else 0
    return Verification(not problems, tuple(problems), reported, recomputed, opinion, lines)


def _read_result(path: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problems.append(f"cannot read {path}: {error}.")
        return None
    if not isinstance(result, dict):
        problems.append(f"{path} does not hold a JSON object.")
        return None
    return result


def _number(result: dict[str, Any], key: str, problems: list[str]) -> float | None:
    try:
        value = number(result[key])
    except (KeyError, TypeError, ValueError):
        problems.append(f"result.json has no number under {key!r}.")
        return None
    if math.isnan(value) or value < 0:
        problems.append(f"result.json: {key} = {value!r} is not a privacy parameter.")
        return None
    return value


def _check_anchor(result: dict[str, Any], record: LedgerRecord, problems: list[str]) -> None:
    anchor = result.get("ledger")
    if not isinstance(anchor, dict):
        problems.append("result.json has no ledger head and count.")
        return
    if anchor.get("count") != record.count:
        problems.append(
            f"the ledger ends at line {record.count}, result.json says {anchor.get('count')!r} lines: "
            "lines were removed or added at the end."
        )
    if anchor.get("head") != record.head:
        problems.append(f"ledger line {record.count}: its hash is not the head that result.json states.")


def _check_outcome(result: dict[str, Any], record: LedgerRecord, problems: list[str]) -> None:
    for key, value in (record.closed or {}).items():
        if key in result and not _same(result[key], value):
            problems.append(
                f"ledger line {record.count} closes with {key} = {value!r}, result.json says {result[key]!r}."
            )
    if isinstance(result.get("plan"), dict) and result["plan"] != record.plan:
        problems.append("ledger line 1: the plan is not the plan in result.json.")
    promise = _promise(record)
    for key in ("delta", "neighboring_relation", "accountant"):
        if key in promise and not _same(promise[key], result.get(key)):
            problems.append(f"ledger line 1 plans {key} = {promise[key]!r}, result.json says {result.get(key)!r}.")


def _promise(record: LedgerRecord) -> dict[str, Any]:
    """The plan's promised guarantee: ``plan["guarantee"]``, or the plan itself where it is flat."""
    inner = record.plan.get("guarantee")
    return inner if isinstance(inner, dict) else record.plan


def _same(a: Any, b: Any) -> bool:
    if (
        isinstance(a, int | float)
        and isinstance(b, int | float)
        and not isinstance(a, bool)
        and not isinstance(b, bool)
    ):
        return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-300)
    return bool(a == b)


def _recompute(
    result: dict[str, Any], record: LedgerRecord, reported: float | None, problems: list[str]
) -> tuple[float | None, dict[str, Any]]:
    relation, accountant = str(result.get("neighboring_relation")), str(result.get("accountant"))
    if accountant not in api.ACCOUNTANTS:
        if record.charges or reported != math.inf:
            problems.append(f"result.json names the unknown accountant {accountant!r}.")
        return None, {}
    try:
        delta = check_number("delta", number(result.get("delta")), 0.0, 1.0, below=True)
        check_relation(relation)
        recomputed = api.epsilon(record.event, delta, accountant=accountant, neighboring_relation=relation)
    except (DpmlError, TypeError, ValueError) as error:
        problems.append(f"epsilon cannot be recomputed from the ledger: {error}")
        return None, {}
    if reported is not None:
        _compare(result, record, reported, recomputed, problems)
    opinion = _second_opinion(record, delta, relation)
    return recomputed, opinion


def _compare(
    result: dict[str, Any], record: LedgerRecord, reported: float, recomputed: float, problems: list[str]
) -> None:
    slack = TOLERANCE * max(1.0, abs(recomputed)) if math.isfinite(recomputed) else 0.0
    if not recomputed <= reported + slack:
        problems.append(
            f"the charges of ledger lines 2 to {record.count} cost epsilon = {recomputed!r}, more than the reported "
            f"{reported!r}."
        )
    elif result.get("epsilon_source", "recomputed") == "recomputed" and reported > recomputed + slack:
        problems.append(f"result.json reports epsilon = {reported!r}, the ledger's charges give {recomputed!r}.")
    promise = _promise(record).get("epsilon")
    if promise is not None:
        try:
            promised = number(promise)
        except (TypeError, ValueError):
            problems.append(f"ledger line 1: the promised epsilon {promise!r} is not a number.")
            return
        if reported > promised + TOLERANCE * max(1.0, promised):
            problems.append(
                f"result.json reports epsilon = {reported!r}, above the promise {promised!r} of ledger line 1."
            )


def _second_opinion(record: LedgerRecord, delta: float, relation: str) -> dict[str, Any]:
    """ε by the other accountants of this library, and by dp-accounting where it has the event."""
    out: dict[str, Any] = {}
    for name in ("pld", "rdp"):
        try:
            out[name] = api.epsilon(record.event, delta, accountant=name, neighboring_relation=relation)
        except UnsupportedEventError as error:
            out[name] = str(error)
    if relation == "add_remove" and delta > 0:
        value = _dp_accounting(record, delta)
        if value is not None:
            out["dp_accounting_pld"] = value
    return out


def _dp_accounting(record: LedgerRecord, delta: float) -> float | None:
    """ε by dp-accounting's PLD with its default grid; None for events it lacks.  Independent code, no allowance."""
    from dpml.accounting.events import Gaussian, Laplace, flatten

    parts = flatten(record.event)
    plain = [atom.event if isinstance(atom, PoissonSampled) else atom for atom in parts]
    if not parts or not all(isinstance(atom, Gaussian | Laplace) and atom.noise_multiplier > 0 for atom in plain):
        return None
    try:
        import dp_accounting
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        return None
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for (atom, count), inner in zip(parts.items(), plain, strict=True):
        kind = dp_accounting.GaussianDpEvent if isinstance(inner, Gaussian) else dp_accounting.LaplaceDpEvent
        other = kind(inner.noise_multiplier)  # type: ignore[attr-defined]
        if isinstance(atom, PoissonSampled):
            other = dp_accounting.PoissonSampledDpEvent(atom.sampling_probability, other)
        if not accountant.supports(other):
            return None
        accountant.compose(other, count)
    return float(accountant.get_epsilon(delta))
