"""What a report checks of the records that it is made from, so that a page never vouches for files that disagree.

These are the checks that need the files alone and no time; ``python -m dpml.verify`` makes them and more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from dpml import accounting
from dpml.accounting import LedgerRecord, file_digest, result_digest
from dpml.accounting.verification import TOLERANCE
from dpml.errors import DpmlError
from dpml.report.formats import as_number, general, shortened
from dpml.report.records import RunRecord
from dpml.report.values import mapping, texts

NOT_PRIVATE = "NOT PRIVATE"


@dataclass(frozen=True)
class Check:
    """One statement about the records, and whether it holds."""

    ok: bool
    text: str


def check_record(record: RunRecord) -> tuple[Check, ...]:
    """All checks that the files allow; the first ones are about the noise and the ledger, the last about ε."""
    noise = _noise(record)
    if record.ledger is None:
        return (*noise, Check(False, f"The ledger cannot be read: {shortened(record.ledger_problem)}"))
    found = [
        *noise,
        Check(True, f"The chain of hashes holds over all {general(record.ledger.count)} ledger lines."),
        _anchor(record, record.ledger),
        _closing(record, record.ledger),
        *_files(record, record.ledger),
        _epsilon(record, record.ledger),
    ]
    return tuple(check for check in found if check is not None)


def _noise(record: RunRecord) -> list[Check]:
    """A run that drew its noise from a known source, as tests do, says so in its assumptions."""
    plan = mapping(record.ledger.plan if record.ledger else None)
    promises = (record.result, mapping(plan.get("guarantee")), plan)
    if any(NOT_PRIVATE in line for promise in promises for line in texts(promise.get("assumptions"))):
        return [Check(False, f"{NOT_PRIVATE}: the noise came from a source that is not secret. No guarantee holds.")]
    return []


def _anchor(record: RunRecord, ledger: LedgerRecord) -> Check | None:
    stated = mapping(record.result.get("ledger"))
    if not stated:
        return None
    if stated.get("head") == ledger.head and stated.get("count") == ledger.count:
        return Check(True, "Head hash and number of lines are those in result.json.")
    return Check(False, "The ledger's head hash or number of lines is not what result.json states.")


def _closing(record: RunRecord, ledger: LedgerRecord) -> Check | None:
    if ledger.closed is None:
        return Check(False, "The ledger has no closing line: the run is unfinished, or lines are missing at its end.")
    stated = ledger.closed.get("result")
    if stated is None:
        return None
    try:
        same = stated == result_digest(record.result)
    except (ValueError, TypeError, RecursionError):
        same = False
    if same:
        return Check(True, "result.json is the result whose digest the closing line holds.")
    return Check(False, "result.json was changed: the closing line holds the digest of another result.")


def _files(record: RunRecord, ledger: LedgerRecord) -> list[Check]:
    stated = mapping((ledger.closed or {}).get("files"))
    good, bad = [], []
    for name, digest in sorted(stated.items()):
        path = record.release / Path(name).name  # a name, never a path out of the folder
        if not path.is_file():
            bad.append(f"{name} (missing)")
        elif file_digest(path) != digest:
            bad.append(name)
        else:
            good.append(name)
    checks = [Check(True, f"The files are those that the closing line binds: {', '.join(good)}.")] if good else []
    if bad:
        checks.append(Check(False, f"Not what the closing line binds: {shortened(', '.join(bad))}."))
    return checks


def _epsilon(record: RunRecord, ledger: LedgerRecord) -> Check | None:
    """The reported ε against the charges; a run without privacy reports ∞, which is never too small."""
    epsilon, delta = as_number(record.result.get("epsilon")), as_number(record.result.get("delta")) or 0.0
    if epsilon is None or math.isinf(epsilon):
        return None
    if not ledger.charges:
        return Check(False, "The ledger holds no charge.")
    try:
        cost = accounting.epsilon(ledger.event, delta, neighboring_relation=relation_of(record))
    except (DpmlError, ArithmeticError, ValueError) as fault:
        return Check(False, f"ε cannot be recomputed from the charges: {shortened(fault)}")
    if cost <= epsilon * (1 + TOLERANCE):
        return Check(True, "ε recomputed from the ledger's charges is not above the reported ε.")
    return Check(
        False, f"The ledger's charges cost ε = {general(cost)}, more than the reported ε = {general(epsilon)}."
    )


def relation_of(record: RunRecord) -> str:
    """The neighbouring relation that a result names; ``add_remove`` where it names none."""
    return str(record.result.get("neighboring_relation") or accounting.ADD_REMOVE)
