"""The answers of ``python -m dpml.sample_size``: the rule, the sharper bounds by method, and two private means."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dpml.accounting import sample_size as rule
from dpml.accounting.sample_size_methods import METHODS, Setting, statistics_excess_risk, statistics_n
from dpml.errors import AccountingError
from dpml.mechanisms.laplace import sample_size_laplace_mean
from dpml.mechanisms.randomized_response import randomized_response_gamma, sample_size_randomized_response

NAMES = ("n", "d", "epsilon", "excess_risk")
CONFIDENCE = 0.95
RULE, STATISTICS = "rule", "statistics"
RESPONSE, LAPLACE = "randomized_response", "laplace_mean"
NOTES_RESPONSE, NOTES_LAPLACE = "randomized_response_notes", "laplace_mean_notes"
COLUMNS = (RULE, *METHODS, STATISTICS, RESPONSE, LAPLACE)
ZERO_MODEL = math.log(2)  # logistic loss of the model that is 0 everywhere


@dataclass(frozen=True)
class Cell:
    """One answer: its value, ``None`` where there is none, and then why."""

    value: float | None
    why: str = ""


@dataclass(frozen=True)
class Row:
    """The answers for one combination of the given values."""

    given: dict[str, float]
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Answers:
    """What was asked and found.

    Attributes:
        solved_for: one of n, d, epsilon, excess_risk.
        setting, confidence: what all rows share; ``confidence`` is that of the means.
        default_risk: whether excess_risk was not given.
        rows: one per combination.
    """

    solved_for: str
    setting: Setting
    confidence: float
    default_risk: bool
    rows: list[Row] = field(default_factory=list)


def solve_all(
    given: Mapping[str, Sequence[float]], settings: Mapping[str, Any], *, default_risk: bool = False
) -> Answers:
    """Every combination of the given values, solved for the one name that is left out.

    Raises:
        ConfigError: a setting out of range.
        AccountingError: one combination was asked for, and neither the rule nor any method reaches it.
    """
    (name,) = [name for name in NAMES if name not in given]
    setting = Setting(**{key: value for key, value in settings.items() if key != "confidence"})
    confidence = float(settings.get("confidence", CONFIDENCE))
    out = Answers(name, setting, confidence, default_risk)
    for values in itertools.product(*(given[key] for key in NAMES if key != name)):
        known = dict(zip((key for key in NAMES if key != name), values, strict=True))
        out.rows.append(Row(known, solve_one(name, known, setting, confidence)))
    if len(out.rows) == 1 and all(out.rows[0].cells[key].value is None for key in (RULE, *METHODS)):
        reasons: dict[str, list[str]] = {}
        for key in dict.fromkeys(("objective", *METHODS, RULE)):
            reasons.setdefault(out.rows[0].cells[key].why.rstrip("."), []).append(key)
        said = [why + (f" ({', '.join(keys)})" if len(reasons) > 1 else "") for why, keys in reasons.items()]
        raise AccountingError(f"no {name} reaches this: {'; '.join(said)}.")
    return out


def solve_one(name: str, known: Mapping[str, float], setting: Setting, confidence: float) -> dict[str, Cell]:
    """All columns for one combination; see :data:`COLUMNS`."""
    cells = {RULE: _cell(name, lambda: rule.solve(delta=setting.delta, **known)[1])}
    for key, method in METHODS.items():
        cells[key] = _cell(name, partial(getattr(method, name), **known, setting=setting))
    if cells["output"].value is None and name == "d":
        cells["output"] = Cell(None, "d does not enter, and n is too small for any")
    cells[STATISTICS] = _statistics(name, known, setting)
    cells[NOTES_RESPONSE] = _cell(name, lambda: _response(name, known))
    cells[NOTES_LAPLACE] = _cell(name, lambda: _laplace(name, known))
    cells[RESPONSE] = _cell(name, lambda: _response(name, known, 1.0 - confidence))
    cells[LAPLACE] = _cell(name, lambda: _laplace(name, known, 1.0 - confidence))
    return cells


class _None(Exception):
    """There is no answer; the text says why."""


def _cell(name: str, compute: Callable[[], float]) -> Cell:
    """The value rounded to the safe side: n up, d down."""
    try:
        value = compute()
    except _None as reason:
        return Cell(None, str(reason))
    except (AccountingError, OverflowError) as error:
        return Cell(None, str(error) if isinstance(error, AccountingError) else "beyond all floats")
    if name == "d":
        if math.isinf(value):
            return Cell(math.inf, "d does not enter")
        if value < 1.0 - 1e-9:
            return Cell(None, "even d = 1 is too many: raise n, epsilon or excess_risk")
        return Cell(float(math.floor(value * (1.0 + 1e-12))))
    if not math.isfinite(value):
        return Cell(None, "beyond all floats")
    return Cell(float(math.ceil(value * (1.0 - 1e-12))) if name == "n" else value)


def _statistics(name: str, known: Mapping[str, float], setting: Setting) -> Cell:
    """The part that has nothing to do with privacy; for epsilon and d: whether this n is enough for it."""
    if name == "n":
        return _cell(name, lambda: statistics_n(known["excess_risk"], setting))
    if name == "excess_risk":
        return _cell(name, lambda: statistics_excess_risk(known["n"], setting))
    return Cell(None, f"its bound asks for n = {_format('n', math.ceil(statistics_n(known['excess_risk'], setting)))}")


def _response(name: str, known: Mapping[str, float], beta: float | None = None) -> float:
    """Randomized response: the share of yes among n people, each of whom answers with ε = 2 artanh(2γ).

    With ``beta`` None the course notes' n = 1/(γ²α²): the variance is at most 1/(16γ²n), so by Chebyshev the estimate
    is off by α or more with probability at most 1/16.  Else n = ln(2/β)/(8γ²α²), Hoeffding's inequality for n reports
    in {0, 1} divided by 2γ: off by α or more with probability at most β.  The people's answers are fixed, the coins
    random.
    """
    factor = 1.0 if beta is None else math.log(2.0 / beta) / 8.0
    if name == "d":
        raise _None("d does not enter")
    if name == "n":
        gamma = randomized_response_gamma(known["epsilon"])
        return sample_size_randomized_response(gamma, known["excess_risk"]) * factor
    if name == "excess_risk":
        return math.sqrt(factor / known["n"]) / randomized_response_gamma(known["epsilon"])
    gamma = math.sqrt(factor / known["n"]) / known["excess_risk"]
    if gamma >= 0.5:
        least = math.ceil(4.0 * factor / known["excess_risk"] ** 2)
        raise _None(f"no epsilon is enough below n = {_format('n', least)}")
    return 2.0 * math.atanh(2.0 * gamma)


def _laplace(name: str, known: Mapping[str, float], beta: float | None = None) -> float:
    """The mean of n numbers in [0, 1] + Lap(1/(nε)): n = ln(1/β)/(αε), P(|noise| ≥ α) = e^{−αnε}.

    β = e^{−2} without ``beta``: the course notes' 2/(αε).  n is public (records are replaced).
    """
    tail = 2.0 if beta is None else -math.log(beta)
    if name == "d":
        raise _None("d does not enter")
    if name == "n":
        return sample_size_laplace_mean(known["epsilon"], known["excess_risk"], math.exp(-tail))
    other = "excess_risk" if name == "epsilon" else "epsilon"
    return tail / (known["n"] * known[other])


# -- JSON -------------------------------------------------------------------------------------------------------------
def as_json(found: Answers) -> dict[str, Any]:
    """JSON-ready: ``answers`` has a dict per combination, with a value (or null) and a note by column."""
    setting = found.setting
    return {
        "solved_for": found.solved_for,
        "rule": rule.RULE,
        "delta": setting.delta,
        "neighboring_relation": setting.neighboring_relation,
        "norm_bound": setting.norm_bound,
        "solution_norm": setting.solution_norm,
        "confidence": found.confidence,
        "answers": [
            {
                "given": {key: _plain(key, value) for key, value in row.given.items()},
                "values": {key: _plain(found.solved_for, row.cells[key].value) for key in COLUMNS},
                "course_notes": {
                    RESPONSE: _plain(found.solved_for, row.cells[NOTES_RESPONSE].value),
                    LAPLACE: _plain(found.solved_for, row.cells[NOTES_LAPLACE].value),
                },
                "notes": {key: row.cells[key].why for key in COLUMNS if row.cells[key].why},
            }
            for row in found.rows
        ],
    }


def _plain(name: str, value: float | None) -> float | int | None:
    if value is None or math.isinf(value):
        return None
    return int(value) if name in ("n", "d") else value


# -- text -------------------------------------------------------------------------------------------------------------
def as_text(found: Answers) -> str:
    """For people: one combination with what each number means, several as a table."""
    return "\n".join(_single(found) if len(found.rows) == 1 else _table(found))


def _single(found: Answers) -> list[str]:
    name, row, setting = found.solved_for, found.rows[0], found.setting
    cells = row.cells
    sure = f"{found.confidence:.4g}"
    means: tuple[tuple[str, str, str], ...] = (
        (RESPONSE, "randomized response", f"share of yes, within excess_risk with probability {sure}"),
        (NOTES_RESPONSE, "", "the same by 1/(gamma excess_risk)^2: probability 15/16"),
        (LAPLACE, "Laplace mean", f"mean in [0, 1], noise below excess_risk with probability {sure}"),
        (NOTES_LAPLACE, "", "the same by 2/(excess_risk epsilon): probability 0.865"),
    )
    lines = (
        (RULE, "rule", rule.RULE.replace("alpha", "excess_risk")),
        ("output", "output", "excess empirical risk of output perturbation (d does not enter)"),
        ("objective", "objective", "excess empirical risk of objective perturbation"),
        ("dp_sgd", "dp_sgd, dp_gd", "excess empirical risk of noisy gradient descent, best case"),
        (STATISTICS, "statistics", "what learning asks for without privacy, in the worst case"),
        *(means if name != "d" else ()),
    )
    shown = [(label, _shown(name, cells[key]), cells[key].why or text) for key, label, text in lines]
    width = max(len(value) for _, value, _ in shown)
    out = [_title(found, row), ""]
    out += [f"  {label:<20} {value:>{width}}   {text}" for label, value, text in shown]
    return [*out, "", *_remarks(found), *_verdict(name, cells, setting)]


def _title(found: Answers, row: Row | None) -> str:
    setting = found.setting
    given = [f"{key} = {_format(key, value)}" for key, value in (row.given if row else {}).items()]
    given += [f"delta = {setting.delta:g}", setting.neighboring_relation]
    given += [f"R = {setting.solution_norm:g}", f"L = {setting.norm_bound:g}"]
    return f"{found.solved_for} for " + ", ".join(given)


def _remarks(found: Answers) -> list[str]:
    out = []
    if found.default_risk:
        out.append("excess_risk = 0.05 is the default.")
    if found.setting.neighboring_relation == "add_remove" and found.solved_for != "d":
        out.append("The two means hold for replaced records, n being public.")
    return [
        *out,
        "The methods are bounded against the best weights of norm R. On Adult and Census-Income objective",
        "reached the excess, above the best weights of all, with 0.2 to 1.5 times its n (docs/sample-size.md).",
    ]


def _verdict(name: str, cells: Mapping[str, Cell], setting: Setting) -> list[str]:
    values = [cells[key].value for key in METHODS]
    if name == "excess_risk":
        useless = [key for key in METHODS if (cells[key].value or 0.0) >= ZERO_MODEL]
        if useless:
            return [f"{', '.join(useless)}: not below log 2 = 0.693, the loss of a model that knows nothing."]
    if name == "n":
        least = min((value for value in values if value is not None), default=math.inf)
        if setting.delta * least >= 1.0:
            return [f"delta = {setting.delta:g} is not below 1/n: lower it."]
    return []


def _table(found: Answers) -> list[str]:
    name = found.solved_for
    given = [key for key in NAMES if key != name]
    columns = [key for key in COLUMNS if not (name == "d" and key in (RESPONSE, LAPLACE))]
    if name in ("d", "epsilon"):
        columns.remove(STATISTICS)
    rows = [[*given, *columns]]
    for row in found.rows:
        rows.append([_format(key, row.given[key]) for key in given] + [_shown(name, row.cells[key]) for key in columns])
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    out = [_title(found, None), ""]
    out += ["  " + "  ".join(f"{text:>{width}}" for text, width in zip(row, widths, strict=True)) for row in rows]
    reasons = {
        f"{key}: {cell.why}"
        for row in found.rows
        for key, cell in row.cells.items()
        if key in columns and cell.value is None
    }
    return [*out, "", *(f"  - {text}" for text in sorted(reasons)), *_remarks(found)]


def _shown(name: str, cell: Cell) -> str:
    if cell.value is None:
        return "-"
    return "any" if math.isinf(cell.value) else _format(name, cell.value)


def _format(name: str, value: float) -> str:
    """Rounded to the safe side: ε and excess risk up."""
    if name in ("n", "d"):
        return f"{int(value):,}" if value < 1e15 else f"{value * 1.005:.3g}"
    short = f"{value:.4g}"
    if float(short) >= value * (1 - 1e-9):
        return short
    return f"{value + 0.5 * 10 ** (math.floor(math.log10(value)) - 3):.4g}"
