"""Reads what a run or a sweep left on disk into frozen records.  Files are all that a report ever sees.

From ``private/`` nothing is read but the status word and the class name of the error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpml.accounting import Event, LedgerRecord
from dpml.accounting import epsilon as compute_epsilon
from dpml.accounting.ledger import parse_ledger
from dpml.errors import DpmlError, RunFolderError
from dpml.report.audit_record import AuditRecord, read_audit
from dpml.report.formats import as_number, shortened
from dpml.results import without_folders

STATUS_WORDS = ("running", "done", "failed")
_CLASS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,79}")


@dataclass(frozen=True)
class RunRecord:
    """One finished run: the content of its ``release`` folder."""

    release: Path
    result: Mapping[str, Any]
    config: str | None
    schema: Mapping[str, Any] | None
    ledger: LedgerRecord | None
    ledger_problem: str | None
    ledger_lines: tuple[str, ...]
    audit: AuditRecord | None = None
    audit_problem: str | None = None


@dataclass(frozen=True)
class Charges:
    """What one ledger charged: an event, and the (ε, δ) that it comes to.

    Attributes:
        job: number of the job in the sweep.
        folder: the attempt's folder, relative to the sweep.
        event: composition of all charges; ``None`` where the run had no privacy.
        epsilon, delta: of the run's result, or of the charges alone when there is no result.
        relation: neighbouring relation in which the event is meant.
        finished: whether the attempt has a result.
    """

    job: int
    folder: str
    event: Event | None
    epsilon: float
    delta: float
    relation: str
    finished: bool


@dataclass(frozen=True)
class JobRecord:
    """One job of a sweep, whatever became of it."""

    number: int
    overrides: tuple[str, ...]
    folders: tuple[str, ...]
    status: str
    error: str | None
    result: Mapping[str, Any] | None
    folder: str | None

    @property
    def settings(self) -> dict[str, str]:
        """The overrides as key → value (``+key=value`` and ``++key=value`` lose their plus signs)."""
        pairs = (text.split("=", 1) for text in self.overrides if "=" in text)
        return {key.lstrip("+"): value for key, value in pairs}

    @property
    def method(self) -> str | None:
        found = (self.result or {}).get("method") or self.settings.get("method")
        return str(found) if found else None

    @property
    def epsilon(self) -> float | None:
        return as_number((self.result or {}).get("epsilon"))


def release_folder(folder: Path) -> Path:
    """The ``release`` folder of a run, given the run folder or the release folder itself."""
    folder = Path(folder)
    for candidate in (folder / "release", folder):
        if (candidate / "result.json").is_file():
            return candidate
    raise RunFolderError(
        f"{folder} holds no finished run: neither release/result.json nor result.json is there. "
        "Give the folder of a run that ended, or of a sweep (it holds sweep.json)."
    )


def read_json(path: Path) -> Any:
    """The JSON of a file; a fault names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        raise RunFolderError(
            f"{path} cannot be read as JSON ({fault}). Restore the file or run the job again."
        ) from fault


def read_run(folder: Path) -> RunRecord:
    """The record of one finished run.  A missing or broken ledger does not stop the report; the report says so."""
    release = release_folder(folder)
    result = read_json(release / "result.json")
    if not isinstance(result, dict) or "epsilon" not in result:
        raise RunFolderError(f"{release / 'result.json'} is not a result of dpml: it has no key 'epsilon'.")
    epsilon = as_number(result["epsilon"])
    if epsilon is None or epsilon < 0:
        raise RunFolderError(
            f"{release / 'result.json'}: epsilon = {shortened(result['epsilon'], 100)!r} is no ε. It must be a number "
            'from 0 on, or "inf"; restore the file, its digest stands in the ledger\'s closing line.'
        )
    config, schema = release / "config.yaml", release / "schema.json"
    ledger, problem = _ledger(release / "ledger.jsonl")
    audit, audit_problem = read_audit(release / "audit.json")
    return RunRecord(
        release=release,
        result=result,
        config=config.read_text(encoding="utf-8", errors="replace") if config.is_file() else None,
        schema=_object(read_json(schema), schema) if schema.is_file() else None,
        ledger=ledger,
        ledger_problem=problem,
        ledger_lines=_lines(release / "ledger.jsonl"),
        audit=audit,
        audit_problem=audit_problem,
    )


def _object(found: Any, path: Path) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise RunFolderError(f"{path} is not a schema: it holds no JSON object. Restore the file.")
    return found


def read_jobs(sweep: Path) -> list[JobRecord]:
    """All jobs that ``sweep.json`` names, in the order of their numbers."""
    listing = read_json(Path(sweep) / "sweep.json")
    if not isinstance(listing, dict) or not isinstance(listing.get("jobs"), list):
        raise RunFolderError(f"{Path(sweep) / 'sweep.json'} is not a sweep of dpml: it has no list 'jobs'.")
    return sorted((_job(Path(sweep), entry) for entry in listing["jobs"]), key=lambda job: job.number)


def read_charges(sweep: Path, job: JobRecord) -> tuple[list[Charges], list[str]]:
    """What every attempt of a job charged, and the folders whose ledger cannot be read (with the reason)."""
    charges: list[Charges] = []
    problems: list[str] = []
    for name in job.folders:
        folder = Path(sweep) / name
        ledger, problem = _ledger(folder / "release" / "ledger.jsonl")
        result = _result(folder)
        if ledger is None:
            path = folder / "release" / "ledger.jsonl"
            if problem and (result is not None or (path.exists() and path.stat().st_size)):
                problems.append(f"{name}: {problem}")
            continue
        if not ledger.charges and result is None:
            continue
        try:
            charges.append(_charged(job.number, name, ledger, result))
        except DpmlError as fault:
            problems.append(f"{name}: {fault}")
    return charges, problems


def _charged(job: int, folder: str, ledger: LedgerRecord, result: Mapping[str, Any] | None) -> Charges:
    relation = str((result or {}).get("neighboring_relation") or plan_value(ledger.plan, "neighboring_relation") or "")
    delta = as_number((result or {}).get("delta"))
    if delta is None:
        delta = as_number(plan_value(ledger.plan, "delta"))
    if not relation or delta is None:
        raise RunFolderError("its ledger's plan names no neighboring_relation or no delta.")
    epsilon = as_number((result or {}).get("epsilon"))
    private = epsilon is None or epsilon != float("inf")
    if epsilon is None:
        epsilon = compute_epsilon(ledger.event, delta, neighboring_relation=relation)
    return Charges(job, folder, ledger.event if private else None, epsilon, delta, relation, result is not None)


def plan_value(plan: Mapping[str, Any], key: str) -> Any:
    """A value of the ledger's plan line, wherever in it the value stands (top level first, then one level down)."""
    if key in plan:
        return plan[key]
    for value in plan.values():
        if isinstance(value, Mapping) and key in value:
            return value[key]
    return None


def _job(sweep: Path, entry: Mapping[str, Any]) -> JobRecord:
    folders = tuple(str(name) for name in entry.get("folders") or ())
    status, error = "missing", None
    result, chosen = None, folders[-1] if folders else None
    for name in folders:
        status, error = _status(sweep / name)
        found = _result(sweep / name)
        if found is not None:
            result, chosen = found, name
            if status != "failed":
                status, error = "done", None
                break
    if status == "done" and result is None:
        status = "unfinished"
    return JobRecord(
        number=int(entry.get("number", 0)),
        overrides=tuple(without_folders(str(text)) for text in entry.get("overrides") or ()),
        folders=folders,
        status=status,
        error=error,
        result=result,
        folder=chosen,
    )


def _status(folder: Path) -> tuple[str, str | None]:
    """Status word and error class of one attempt; a job still marked running has been stopped or is under way."""
    try:
        found = json.loads((folder / "private" / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ("unfinished" if folder.is_dir() else "missing"), None
    if not isinstance(found, dict) or found.get("status") not in STATUS_WORDS:
        return "unfinished", None
    word = "unfinished" if found["status"] == "running" else str(found["status"])
    error = found.get("error")
    if word != "failed":
        return word, None
    return word, error if isinstance(error, str) and _CLASS_NAME.fullmatch(error) else "Error"


def _result(folder: Path) -> Mapping[str, Any] | None:
    path = folder / "release" / "result.json"
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "epsilon" in found else None


def _ledger(path: Path) -> tuple[LedgerRecord | None, str | None]:
    """The ledger, or why it cannot be read.  A torn last line was never used (a charge counts once it is synced)."""
    if not path.is_file():
        return None, "there is no ledger.jsonl"
    try:
        raw = path.read_bytes()
        return parse_ledger(raw[: raw.rfind(b"\n") + 1], path.name), None
    except (DpmlError, OSError, ArithmeticError, RecursionError) as fault:
        return None, str(fault)


def _lines(path: Path) -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8", errors="replace").splitlines()) if path.is_file() else ()
