"""Arguments of a private search: candidates, names and ranges; each refusal names argument, value and way out."""

from __future__ import annotations

import difflib
import inspect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpml.arguments import is_number
from dpml.data import PublicInfo
from dpml.errors import ConfigError, invalid
from dpml.results import to_jsonable
from dpml.trainer import PrivateTrainer

REPEAT, EXPONENTIAL = "repeat", "exponential"
MECHANISMS = (REPEAT, EXPONENTIAL)
DISTRIBUTIONS = ("tnb", "poisson")
PUBLIC_TEST = "public_test"
SELECTION_PAID = "selection paid for"
MOST_CANDIDATES = 10_000
MOST_RUNS = 1_000.0

OF_THE_SEARCH = (
    "epsilon", "delta", "neighboring_relation", "accountant", "noise_multiplier", "run_dir", "noise_source",
    "dataset_ledger", "dataset_epsilon", "dataset_delta", "dataset_filter", "compare_nonprivate",
    "excess_risk", "enforce_guidance", "shares",
)  # fmt: skip
"""Arguments of :class:`PrivateTrainer` that speak of the whole budget or of files, so that no candidate has them."""


def expand(candidates: object) -> tuple[dict[str, Any], ...]:
    """The candidates one by one: a list of dicts as it is, a dict of lists as the grid of all combinations.

    Raises:
        ConfigError: another type, no candidate at all, or too many.
    """
    if isinstance(candidates, Mapping):
        for name, values in candidates.items():
            if not isinstance(values, list | tuple) or not values:
                raise invalid(f"candidates[{name!r}]", values, "a list of one or more values")
        found = [dict(zip(candidates, values, strict=True)) for values in itertools.product(*candidates.values())]
    elif isinstance(candidates, list | tuple) and all(isinstance(one, Mapping) for one in candidates):
        found = [dict(one) for one in candidates]
    else:
        raise invalid("candidates", candidates, "a list of dicts of PrivateTrainer arguments, or a dict of lists")
    if not 1 <= len(found) <= MOST_CANDIDATES or candidates == {}:
        raise invalid("candidates", candidates, f"1 to {MOST_CANDIDATES:,} candidates", "Name what is to be tried.")
    return tuple(found)


def check_names(where: str, arguments: object) -> dict[str, Any]:
    """Arguments for :class:`PrivateTrainer` that a candidate may have; ConfigError names any other."""
    if not isinstance(arguments, Mapping):
        raise invalid(where, arguments, "a dict of PrivateTrainer arguments")
    known = [name for name in inspect.signature(PrivateTrainer).parameters if name not in OF_THE_SEARCH]
    for name, value in arguments.items():
        if name in OF_THE_SEARCH:
            raise ConfigError(
                f"{where}: {name} = {value!r} is not allowed: it is the same for the whole search. Candidates share "
                "one budget; give what PrivateSearch has of it to PrivateSearch."
            )
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            raise invalid(f"{where}: argument", name, f"one of {known}", f"Did you mean {near[0]!r}?" if near else "")
    if arguments.get("method") == "nonprivate":
        raise invalid(f"{where}: method", "nonprivate", "a private method", "A search pays for every model it trains.")
    if arguments.get("sampling") == "fixed_size":
        raise invalid(
            f"{where}: sampling",
            "fixed_size",
            "'poisson' in a search",
            "How many records the training part has is decided by coins, and a sample of fixed size needs that number.",
        )
    return dict(arguments)


def readable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as plain JSON values; a module or function by its name."""

    def plain(value: Any) -> Any:
        try:
            return to_jsonable(value)
        except TypeError:
            return getattr(value, "__name__", type(value).__name__)

    return {name: plain(value) for name, value in arguments.items()}


@dataclass(frozen=True)
class Settings:
    """The checked arguments of a search."""

    mechanism: str
    epsilon: float
    delta: float
    neighboring_relation: str
    accountant: str
    distribution: str
    shape: float | None
    mean_runs: float
    holdout: float | str
    score_share: float
    selection_share: float
    secret: bool


def check_settings(
    *,
    mechanism: object,
    distribution: object,
    shape: object,
    mean_runs: object,
    holdout: object,
    score_share: object,
    selection_share: object,
    number: int,
    public: PublicInfo,
) -> tuple[str, str, float | None, float, float | str, float, float]:
    """The selection's own arguments, checked, with ``mean_runs`` filled in; ConfigError by name."""
    for name, value, allowed in (
        ("mechanism", mechanism, MECHANISMS),
        ("distribution", distribution, DISTRIBUTIONS),
    ):
        if value not in allowed:
            raise invalid(name, value, f"one of {', '.join(allowed)}")
    if not (is_number(shape) and 0 <= float(shape) <= 10):  # type: ignore[arg-type]
        raise invalid("shape", shape, "a number from 0 to 10", "1 is geometric, 0 logarithmic; below 0 K has no end.")
    poisson = distribution == "poisson"
    given = {
        "distribution": (distribution, "tnb"),
        "shape": (shape, 1.0),
        "mean_runs": (mean_runs, None),
        "score_share": (score_share, 0.3),
        "selection_share": (selection_share, 0.1),
    }
    foreign = ["selection_share"] if mechanism == REPEAT else ["distribution", "shape", "mean_runs", "score_share"]
    if poisson:
        foreign.append("shape")
    for name in foreign:
        value, default = given[name]
        if value != default:
            law = f", distribution={distribution!r}" if mechanism == REPEAT else ""
            raise invalid(name, value, f"left out with mechanism={mechanism!r}{law}", "It would have no effect.")
    if mean_runs is None:
        mean_runs = 3.0 * number if number > 1 or poisson else 1.0
        mean_runs = min(mean_runs, MOST_RUNS)
    least = 1e-3 if poisson else 1.0
    most = 500.0 if poisson else MOST_RUNS
    if not (is_number(mean_runs) and least <= float(mean_runs) <= most):  # type: ignore[arg-type]
        raise invalid("mean_runs", mean_runs, f"a number from {least:g} to {most:g}", "About 3 per candidate is usual.")
    if not poisson and 1 < float(mean_runs) < 1.01:  # type: ignore[arg-type]
        raise invalid("mean_runs", mean_runs, "1, or at least 1.01", "With 1 nothing is selected.")
    if holdout == PUBLIC_TEST:
        if not (public.has_test and public.test_is_public):
            raise invalid(
                "holdout", holdout, "a fraction, as these data declare no public test set", "Use holdout=0.2."
            )
    elif not (is_number(holdout) and 0 < float(holdout) <= 0.9):  # type: ignore[arg-type]
        raise invalid("holdout", holdout, f"a fraction > 0 and <= 0.9, or {PUBLIC_TEST!r}")
    for name, value in (("score_share", score_share), ("selection_share", selection_share)):
        if not (is_number(value) and 0.01 <= float(value) <= 0.9):  # type: ignore[arg-type]
            raise invalid(name, value, "a number from 0.01 to 0.9")
    return (
        str(mechanism),
        str(distribution),
        None if poisson else float(shape),  # type: ignore[arg-type]
        float(mean_runs),  # type: ignore[arg-type]
        PUBLIC_TEST if holdout == PUBLIC_TEST else float(holdout),  # type: ignore[arg-type]
        float(score_share),  # type: ignore[arg-type]
        float(selection_share),  # type: ignore[arg-type]
    )
