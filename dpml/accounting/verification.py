"""Check a finished run from its files alone: the ledger's chain, and ε recomputed from what was charged.

Nothing of the run is trusted but the mathematics; nothing is written.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpml.accounting import api, exact
from dpml.accounting.events import (
    ADD_REMOVE,
    Event,
    Gaussian,
    Laplace,
    PoissonSampled,
    check_number,
    check_relation,
    from_json,
)
from dpml.accounting.ledger import LedgerRecord, canonical, read_ledger, strict_json
from dpml.accounting.normal_form import effective, flatten
from dpml.errors import ConfigError, DpmlError, LedgerError
from dpml.results import number, to_jsonable

TOLERANCE = 1e-9
_PROMISED = ("delta", "neighboring_relation", "accountant", "unit", "assumptions")
_PLANNED = ("method", "model", "steps", "noise_multiplier", "data")
_FOREIGN_STEPS, _FOREIGN_NOISE = 10**6, (0.05, 1e4)  # where dp-accounting answers in seconds
_FOREIGN_GRID = 1e-4  # its default grid of privacy losses
_FOREIGN = "dp_accounting_pld"
_OWN = ("exact", "pld", "rdp")  # a contour integral, Fourier transforms on a grid, Rényi moments
_TIGHT = ("exact", "pld", _FOREIGN)
TIGHT_TOLERANCE = 2e-3
"""Relative disagreement of two tight accountants that is put down to their grids."""


@dataclass(frozen=True)
class Verification:
    """Outcome of :func:`verify`.

    Attributes:
        ok: whether everything holds.
        problems: one sentence each; ledger lines are named by number, counted from 1.
        epsilon_reported, epsilon_recomputed: from ``result.json`` and from the ledger; None where unreadable.
        second_opinion: ε by the accountants that did not prove ``epsilon_recomputed``, name → ε (or why there is none).
        lines: number of ledger lines that were read.
        accountant: which accountant proved ``epsilon_recomputed``; never ``"best"``, but the one behind it.
    """

    ok: bool
    problems: tuple[str, ...]
    epsilon_reported: float | None
    epsilon_recomputed: float | None
    second_opinion: dict[str, Any] = field(default_factory=dict)
    lines: int = 0
    accountant: str | None = None


def file_digest(path: Path | str) -> str:
    """SHA-256 of a file, as hex; OSError passes through."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def result_digest(mapping: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a result without its ``ledger`` and ``command``, as hex."""
    content = {key: value for key, value in mapping.items() if key not in ("ledger", "command")}
    return hashlib.sha256(canonical(to_jsonable(content))).hexdigest()


def verify(run_folder: Path | str, *, allow_test_noise: bool = False) -> Verification:
    """Check ``RUN`` or ``RUN/release``.

    Checked are the chain with head and count, that the charges are the planned event, that ``result.json`` says what
    the plan and the closing line say, the hashes of the released files where the closing line has them, the promise,
    and ε recomputed from the charges to 1e-9 relative, against which the other accountants must not speak: no upper
    bound may lie below a certified lower bound, nor below an accountant that is tight for these events by more than
    that one's tolerance (:func:`tolerance`).

    Args:
        run_folder: the run.
        allow_test_noise: accept a run whose noise source was not secret (tests); it is NOT PRIVATE.
    """
    try:
        return _verify(Path(run_folder), allow_test_noise)
    except RecursionError:
        return Verification(
            False, (f"{run_folder}: result.json or the ledger is nested too deep to be read.",), None, None
        )


def _verify(run_folder: Path, allow_test_noise: bool) -> Verification:
    folder = run_folder
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
    used: str | None = None
    if result is not None:
        reported = _number(result, "epsilon", problems)
    if record is not None and record.closed is None:
        problems.append(
            f"ledger line {record.count} is not the closing line: the run is unfinished or lines are missing."
        )
    if result is not None and record is not None:
        _check_anchor(result, record, problems)
        _check_plan(result, record, problems)
        if record.closed is not None:
            _check_outcome(result, record, problems)
        recomputed, used, opinion = _recompute(result, record, reported, problems)
    if record is not None:
        _check_charges(record, problems)
        if record.closed is not None:
            _check_files(folder, record, problems)
        if not allow_test_noise:
            _check_secrecy(record, problems)
    lines = record.count if record is not None else 0
    return Verification(not problems, tuple(problems), reported, recomputed, opinion, lines, used)


def _read_result(path: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        result = strict_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"cannot read {path}: {error}.")
        return None
    if not isinstance(result, dict):
        problems.append(f"{path} does not hold a JSON object.")
        return None
    return result


def _number(result: dict[str, Any], key: str, problems: list[str]) -> float | None:
    try:
        value = _real(result[key])
    except (KeyError, TypeError, ValueError):
        problems.append(f"result.json has no number under {key!r}.")
        return None
    if math.isnan(value) or value < 0:
        problems.append(f"result.json: {key} = {value!r} is not a privacy parameter.")
        return None
    return value


def _real(value: Any) -> float:
    """A JSON number or ``"inf"`` as float; TypeError for a boolean."""
    if isinstance(value, bool):
        raise TypeError("a boolean is not a number")
    return number(value)


def _check_anchor(result: dict[str, Any], record: LedgerRecord, problems: list[str]) -> None:
    anchor = result.get("ledger")
    if not isinstance(anchor, dict):
        problems.append("result.json has no ledger head and count.")
        return
    if set(anchor) - {"head", "count"}:
        problems.append("result.json says more of the ledger than its head and count.")
    if not _same(anchor.get("count"), record.count):
        problems.append(
            f"the ledger ends at line {record.count}, result.json says {anchor.get('count')!r} lines: "
            "lines were removed or added at the end."
        )
    if anchor.get("head") != record.head:
        problems.append(f"ledger line {record.count}: its hash is not the head that result.json states.")


def _check_outcome(result: dict[str, Any], record: LedgerRecord, problems: list[str]) -> None:
    closed = dict(record.closed or {})
    if closed.get("result") is not None and closed["result"] != result_digest(result):
        problems.append(f"ledger line {record.count}: result.json is not the result whose hash the line holds.")
    for key, value in closed.items():
        if key not in ("result", "files") and key in result and not _same(result[key], value):
            problems.append(
                f"ledger line {record.count} closes with {key} = {value!r}, result.json says {result[key]!r}."
            )


def _check_plan(result: dict[str, Any], record: LedgerRecord, problems: list[str]) -> None:
    """``result.json`` repeats the plan as a whole and in parts; what one lacks the other must lack."""
    if "plan" not in result:
        problems.append("result.json has no plan: it must repeat ledger line 1.")
    elif not _same(result["plan"], record.plan):
        problems.append("ledger line 1: the plan is not the plan in result.json.")
    promise = _promise(record)
    for source, keys in ((promise, _PROMISED), (record.plan, _PLANNED)):
        for key in keys:
            if not _same(source.get(key), result.get(key)):
                problems.append(
                    f"ledger line 1 plans {key} = {source.get(key)!r}, result.json says {result.get(key)!r}."
                )


def _check_charges(record: LedgerRecord, problems: list[str]) -> None:
    """The charges are the planned event: nothing lost, nothing added."""
    try:
        planned = flatten(from_json(record.plan.get("event")))
        charged = flatten(record.event)
    except ConfigError as error:
        problems.append(f"ledger line 1: the charges cannot be compared with the plan: {error}")
        return
    for atom in dict.fromkeys((*planned, *charged)):
        expected, found = planned.get(atom, 0), charged.get(atom, 0)
        if expected != found:
            word = "lost" if found < expected else "extra"
            problems.append(
                f"ledger lines 2 to {record.count} charge {found} of {atom}, ledger line 1 plans {expected}: "
                f"{abs(expected - found)} {word}."
            )


def _check_files(folder: Path, record: LedgerRecord, problems: list[str]) -> None:
    files = (record.closed or {}).get("files", {})
    if not isinstance(files, dict):
        problems.append(f"ledger line {record.count}: 'files' is not an object of names and hashes.")
        return
    for name, digest in files.items():
        if Path(name).name != name:
            problems.append(f"ledger line {record.count}: {name!r} is not a file name.")
            continue
        try:
            same = file_digest(folder / name) == digest
        except (OSError, ValueError) as error:
            problems.append(f"ledger line {record.count} holds the hash of {name}, which cannot be read: {error}.")
            continue
        if not same:
            problems.append(f"ledger line {record.count}: {name} was changed, its hash is not the one of the line.")


def _check_secrecy(record: LedgerRecord, problems: list[str]) -> None:
    if "NOT PRIVATE" in json.dumps(_promise(record).get("assumptions")):
        problems.append(
            "ledger line 1: the plan says NOT PRIVATE: its noise source was not secret, so that no guarantee "
            "holds; allow_test_noise (--allow-test-noise) checks everything else."
        )


def _promise(record: LedgerRecord) -> dict[str, Any]:
    """The plan's promised guarantee: ``plan["guarantee"]``, or the plan itself where it is flat."""
    inner = record.plan.get("guarantee")
    return inner if isinstance(inner, dict) else record.plan


def _same(a: Any, b: Any) -> bool:
    """Equal JSON, numbers to 1e-9 relative; a boolean is not a number."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-300)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _recompute(
    result: dict[str, Any], record: LedgerRecord, reported: float | None, problems: list[str]
) -> tuple[float | None, str | None, dict[str, Any]]:
    """ε of the charges by the accountant that the result names, who proved it, and what the others say."""
    relation, accountant = str(result.get("neighboring_relation")), str(result.get("accountant"))
    if accountant not in api.ACCOUNTANTS:
        if record.charges or reported != math.inf:
            problems.append(f"result.json names the unknown accountant {accountant!r}.")
        return None, None, {}
    try:
        delta = check_number("delta", _real(result.get("delta")), 0.0, 1.0, below=True)
        check_relation(relation)
        if accountant == "best":
            recomputed, used = api.best(record.event, delta, neighboring_relation=relation)
        else:
            used = accountant
            recomputed = api.epsilon(record.event, delta, accountant=accountant, neighboring_relation=relation)
    except (DpmlError, TypeError, ValueError) as error:
        problems.append(f"epsilon cannot be recomputed from the ledger: {error}")
        return None, None, {}
    if reported is not None:
        _compare(result, record, reported, recomputed, problems)
    opinion = _second_opinion(record.event, delta, relation, used)
    values = {name: value for name, value in opinion.items() if isinstance(value, float)}
    problems.extend(contradictions({used: recomputed, **values}, record.event, delta, relation))
    return recomputed, used, opinion


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
            promised = _real(promise)
        except (TypeError, ValueError):
            problems.append(f"ledger line 1: the promised epsilon {promise!r} is not a number.")
            return
        if reported > promised + TOLERANCE * max(1.0, promised):
            problems.append(
                f"result.json reports epsilon = {reported!r}, above the promise {promised!r} of ledger line 1."
            )


def _second_opinion(event: Event, delta: float, relation: str, used: str) -> dict[str, Any]:
    """ε by the accountants of this library other than ``used``, and by dp-accounting where it has the event."""
    out: dict[str, Any] = {}
    for name in _OWN:
        if name == used:
            continue
        try:
            out[name] = api.epsilon(event, delta, accountant=name, neighboring_relation=relation)
        except DpmlError as error:
            out[name] = str(error)
    if delta > 0:
        value = _dp_accounting(event, delta, relation)
        if value is not None:
            out[_FOREIGN] = value
    return out


def tolerance(name: str, epsilon: float, event: Event, delta: float) -> float:
    """By how much the tight accountant ``name`` may lie above the true ε (absolute).

    0.2 % for the grids of this library.  dp-accounting's grid has a fixed step h = 1e-4, which adds a variance of at
    most h²/4 to each of T losses, and so about √(2·ln(1/δ))·h·√T/2 to ε.
    """
    out = TIGHT_TOLERANCE * epsilon
    if name == _FOREIGN:
        steps = sum(flatten(event).values())
        out += math.sqrt(-2 * math.log(delta) * steps) * _FOREIGN_GRID / 2 + _FOREIGN_GRID
    return out


def contradictions(values: Mapping[str, float], event: Event, delta: float, relation: str) -> list[str]:
    """One sentence for each pair of upper bounds on ε(δ) of which one must be wrong.

    Every value is an upper bound, so a larger one alone proves nothing; but the tight accountants claim to be no more
    than :func:`tolerance` above the truth, for events that they take as they are (Gaussian, Laplace, Poisson samples of
    them), and nothing may lie below a certified lower bound.
    """
    out = []
    lower = _lower_bound(event, delta, relation)
    for name, value in values.items():
        if value < lower * (1 - TOLERANCE):
            out.append(f"accountant {name!r} says epsilon = {value!r}, below the certified lower bound {lower!r}.")
    if not all(isinstance(_released(atom), Gaussian | Laplace) for atom in flatten(event)):
        return out
    for name, value in values.items():
        for other, tight in values.items():
            if other == name or other not in _TIGHT or not math.isfinite(tight) or delta == 0:
                continue
            if value < tight - tolerance(other, tight, event, delta):
                out.append(
                    f"accountants {name!r} and {other!r} contradict each other: epsilon <= {value!r} against "
                    f"{tight!r}, which is tight to {tolerance(other, tight, event, delta):.2g}. One of both is wrong; "
                    "please report it."
                )
    return out


def _lower_bound(event: Event, delta: float, relation: str) -> float:
    """A certified lower bound on ε: the exact accountant's on the whole event, else ``api.interval``'s on its parts."""
    if delta == 0:
        return 0.0
    try:
        return exact.interval(event, delta, relation)[0]
    except DpmlError:
        pass
    try:
        return api.interval(event, delta, neighboring_relation=relation).low
    except DpmlError:
        return 0.0


def _released(atom: Event) -> Event:
    return atom.event if isinstance(atom, PoissonSampled) else atom


@lru_cache(maxsize=64)
def _dp_accounting(event: Event, delta: float, relation: str) -> float | None:
    """ε by dp-accounting's PLD with its default grid; None for events it lacks.  Independent code, no allowance.

    Its pairs are those of add_remove; what is not sampled is the same pair at half the noise under replace_one.
    """
    parts = flatten(event)
    plain = [_released(atom) for atom in parts]
    if not parts or sum(parts.values()) > _FOREIGN_STEPS:
        return None
    if relation != ADD_REMOVE and any(isinstance(atom, PoissonSampled) for atom in parts):
        return None
    low, high = _FOREIGN_NOISE
    if not all(
        isinstance(atom, Gaussian | Laplace) and low <= effective(atom.noise_multiplier, relation) <= high
        for atom in plain
    ):
        return None
    try:
        import dp_accounting
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        return None
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for (atom, count), inner in zip(parts.items(), plain, strict=True):
        kind = dp_accounting.GaussianDpEvent if isinstance(inner, Gaussian) else dp_accounting.LaplaceDpEvent
        other = kind(effective(inner.noise_multiplier, relation))  # type: ignore[attr-defined]
        if isinstance(atom, PoissonSampled):
            other = dp_accounting.PoissonSampledDpEvent(atom.sampling_probability, other)
        if not accountant.supports(other):
            return None
        accountant.compose(other, count)
    return float(accountant.get_epsilon(delta))
