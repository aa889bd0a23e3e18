"""Which stages a run has beside its training, and what each may spend; from public knowledge only.

A share s of a stage is that part of the run's budget: the stage gets ε_s = s·ε, and category discovery and the centre,
which need a δ, δ_s = s·δ.  Stages over several columns split both equally; the metrics split theirs by fixed weights.
Each stage's event is pure (bounds, labels, metrics), an (ε, δ) statement (categories) or a Gaussian (center), under the
run's relation.
Training gets the rest: not ε − Σ ε_s, but as much as the run's accountant lets pass for all events together
(:func:`largest_training`; ``dp_sgd`` and ``dp_gd`` calibrate their noise on the composed event itself).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from dpml import accounting
from dpml.accounting import Composed, Event
from dpml.accounting.normal_form import flatten
from dpml.data import CategoricalColumn, NumericColumn, PublicInfo, Schema
from dpml.data.columns import DISCOVER, PRIVATE
from dpml.errors import ConfigError, invalid, misplaced
from dpml.ranges import is_number
from dpml.results import to_jsonable
from dpml.rounding import upper

from .bounds import BoundsFinder, finder_of
from .categories import CategoryFinder
from .center import CenterFinder
from .labels import LabelCounter
from .metrics import MetricsMaker

STAGE_NAMES = ("bounds", "categories", "labels", "center", "metrics")
BEFORE = STAGE_NAMES[:4]
OF_COLUMNS = STAGE_NAMES[:2]
WITH_DELTA = ("categories", "center")
SMALLEST_SHARE = 1e-6
FINENESS = 0.02
"""How near, in parts of what the stages get, :func:`largest_training` comes to the largest budget."""

Parameters = TypeVar("Parameters")


@dataclass(frozen=True)
class Stage:
    """One stage: its part of the budget, and what makes its release.

    Attributes:
        name: one of :data:`STAGE_NAMES`.
        share: of ε, and of δ where it needs one.
        epsilon, delta: what it may spend.
        parts: by column (bounds, categories), or one under the stage's own name.
        event: everything that it releases.
    """

    name: str
    share: float
    epsilon: float
    delta: float
    parts: Mapping[str, Any]

    @cached_property
    def event(self) -> Event:
        return Composed(tuple(part.event for part in self.parts.values()))

    @property
    def part(self) -> Any:
        """The only part of a stage that has one."""
        return self.parts[self.name]

    def to_json(self) -> dict[str, Any]:
        """For the plan in the ledger's first line."""
        entry: dict[str, Any] = {
            "share": self.share, "epsilon": self.epsilon, "delta": self.delta, "event": self.event.to_json(),
        }  # fmt: skip
        return {**entry, "columns": list(self.parts)} if self.name in OF_COLUMNS else entry


@dataclass(frozen=True)
class Stages:
    """All stages of a run, in order; none for most runs."""

    stages: tuple[Stage, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.stages)

    def get(self, name: str) -> Stage | None:
        """The stage of that name, if there is one."""
        return next((stage for stage in self.stages if stage.name == name), None)

    @property
    def epsilon(self) -> float:
        return math.fsum(stage.epsilon for stage in self.stages)

    @property
    def delta(self) -> float:
        return math.fsum(stage.delta for stage in self.stages)

    @property
    def find_columns(self) -> bool:
        """Whether the schema is complete only after a stage."""
        return self.get("bounds") is not None or self.get("categories") is not None

    def around(self, training: Event) -> Event:
        """The whole run as one event; the training alone where there is no stage."""
        if not self.stages:
            return training
        before = [stage.event for stage in self.stages if stage.name in BEFORE]
        after = [stage.event for stage in self.stages if stage.name not in BEFORE]
        return Composed((*before, training, *after))

    def to_json(self) -> dict[str, Any]:
        return {stage.name: to_jsonable(stage.to_json()) for stage in self.stages}

    def rows(self, training: Event) -> list[tuple[str, str]]:
        """Lines of the plan table: each stage, and the training between them, with its event."""
        rows = [(f"stage {stage.name}", _cost(stage)) for stage in self.stages]
        place = sum(stage.name in BEFORE for stage in self.stages)
        rows.insert(place, ("stage train", f"the rest: {event_text(training)}"))
        return rows


def _cost(stage: Stage) -> str:
    delta = f", δ = {upper(stage.delta)}" if stage.delta else ""
    of = f" for {', '.join(stage.parts)}" if stage.name in OF_COLUMNS else ""
    return f"share {stage.share:g}: ε = {upper(stage.epsilon)}{delta}{of}: {event_text(stage.event)}"


def event_text(event: Event) -> str:
    """An event's atoms with their counts, on one line."""

    def text(content: Mapping[str, Any]) -> str:
        if content["type"] == "epsilon_delta" and content["delta"] == 0:
            return f"pure({upper(content['epsilon'])})"
        inner = ", ".join(
            text(value) if isinstance(value, Mapping) else f"{value:.4g}" if isinstance(value, float) else str(value)
            for key, value in content.items()
            if key != "type"
        )
        return f"{content['type']}({inner})"

    return " + ".join(
        (f"{count} × " if count > 1 else "") + text(atom.to_json()) for atom, count in flatten(event).items()
    )


# -- checks -----------------------------------------------------------------------------------------------------------
def check_shares(shares: object) -> dict[str, float]:
    """The shares that are not 0, in the order of the stages.

    Raises:
        ConfigError: an unknown stage, a share outside [0, 1), or no budget left for training.
    """
    if shares is None:
        return {}
    if not isinstance(shares, Mapping):
        raise invalid("shares", shares, f"a mapping from stages ({', '.join(STAGE_NAMES)}) to parts of epsilon")
    for name, share in shares.items():
        if name not in STAGE_NAMES:
            raise invalid("shares: stage", name, f"one of {', '.join(STAGE_NAMES)}")
        if not (is_number(share) and (share == 0 or SMALLEST_SHARE <= share < 1)):
            raise invalid(f"shares.{name}", share, "0 (no such stage), or a part of epsilon from 1e-6 up to below 1")
    total = math.fsum(shares.values())
    if total >= 1:
        raise invalid("shares", dict(shares), f"less than 1 in all (they come to {total:g})", "Training needs a part.")
    return {name: float(shares[name]) for name in STAGE_NAMES if shares.get(name)}


def plan_stages(
    shares: Mapping[str, float],
    public: PublicInfo,
    *,
    model: str,
    method: str,
    epsilon: float | None,
    delta: float,
    neighboring_relation: str,
) -> Stages:
    """The stages of a run.

    Args:
        shares: as :func:`check_shares` returns them.
        public: the data's declarations.
        model, method: what is trained, and how (never ``"auto"``).
        epsilon, delta: the whole budget.
        neighboring_relation: of the whole run.

    Raises:
        ConfigError: a stage that these data or this method cannot have, or columns left open without their stage.
    """
    _check_open(shares, public)
    if not shares:
        return Stages()
    if method == "nonprivate":
        raise invalid("shares", dict(shares), "left out with method='nonprivate'", "There is no budget to share.")
    if epsilon is None:
        raise invalid(
            "shares", dict(shares), "left out with noise_multiplier, for which epsilon is not given", "Give epsilon."
        )
    makers: dict[str, Callable[[float, float], Mapping[str, Any]]] = {
        "bounds": lambda e, _: _bounds(public, e, neighboring_relation),
        "categories": lambda e, d: _categories(public, e, d, neighboring_relation),
        "labels": lambda e, _: {"labels": _labels(public, e, neighboring_relation)},
        "center": lambda e, d: {"center": _center(public, e, d, neighboring_relation)},
        "metrics": lambda e, _: {"metrics": _metrics(public, model, e, neighboring_relation)},
    }
    stages = []
    for name, share in shares.items():
        spent, spent_delta = share * epsilon, share * delta if name in WITH_DELTA else 0.0
        stages.append(Stage(name, share, spent, spent_delta, makers[name](spent, spent_delta)))
    return Stages(tuple(stages))


def _check_open(shares: Mapping[str, float], public: PublicInfo) -> None:
    """Open columns and their stage need each other."""
    numeric, categorical = _open_columns(public)
    for name, columns, key in (("bounds", numeric, f'"bounds": "{PRIVATE}"'),
                               ("categories", categorical, f'"categories": "{DISCOVER}"')):  # fmt: skip
        if columns and name not in shares:
            raise ConfigError(
                f"schema column {columns[0].name!r} says {key}, and no part of the budget is set aside to find them. "
                f"Give shares={{{name!r}: 0.05}} (privacy.shares.{name}=0.05), or declare them from public knowledge."
            )
        if name in shares and not columns:
            raise invalid(
                f"shares.{name}",
                shares[name],
                f"left out: no column of the schema says {key}",
                "Nothing is to be found.",
            )


def _open_columns(public: PublicInfo) -> tuple[list[NumericColumn], list[CategoricalColumn]]:
    if public.schema is None:
        return [], []
    columns = Schema.from_dict(public.schema).open_columns
    return (
        [column for column in columns if isinstance(column, NumericColumn)],
        [column for column in columns if isinstance(column, CategoricalColumn)],
    )


def _bounds(public: PublicInfo, epsilon: float, relation: str) -> dict[str, BoundsFinder]:
    columns = _open_columns(public)[0]
    return {column.name: finder_of(column, epsilon / len(columns), relation) for column in columns}


def _categories(public: PublicInfo, epsilon: float, delta: float, relation: str) -> dict[str, CategoryFinder]:
    columns = _open_columns(public)[1]
    if delta == 0:
        raise misplaced(
            "shares.categories", "left out with delta = 0: categories that nobody declared cannot be found "
            "under pure ε-DP", "Use another variant or method, or declare the categories.",
        )  # fmt: skip
    parts = len(columns)
    return {column.name: CategoryFinder(column, epsilon / parts, delta / parts, relation) for column in columns}


def _labels(public: PublicInfo, epsilon: float, relation: str) -> LabelCounter:
    if public.task == "regression":
        raise misplaced("shares.labels", "left out for a numeric target, which has no classes")
    return LabelCounter(len(public.classes), epsilon, relation)


def _center(public: PublicInfo, epsilon: float, delta: float, relation: str) -> CenterFinder:
    if public.preprocessing.get("kind") != "image":
        raise misplaced(
            "shares.center", "left out for rows that are no features of images", "Only those have a center: "
            "data.features=scattering, say.",
        )  # fmt: skip
    if delta == 0:
        raise misplaced(
            "shares.center", "left out with delta = 0: its noise is Gaussian", "Use another variant or method."
        )
    return CenterFinder(public.n_features - 1, public.n_declared, epsilon, delta, relation)


def _metrics(public: PublicInfo, model: str, epsilon: float, relation: str) -> MetricsMaker:
    if not public.has_test:
        raise misplaced(
            "shares.metrics", "left out without a hold-out", "Declare one: test_path, split_column or "
            "test_fraction (an independent secret coin per record) of a table, X_test and y_test of arrays.",
        )  # fmt: skip
    if public.test_is_public:
        raise misplaced("shares.metrics", "left out: the test set is public, so its metrics cost nothing")
    width = 0.0 if public.target_bounds is None else public.target_bounds[1] - public.target_bounds[0]
    return MetricsMaker(len(public.classes), model == "linear_svm", epsilon, relation, width)


# -- what is left for training ----------------------------------------------------------------------------------------
def largest_training(
    make: Callable[[float, float], Parameters],
    stages: Stages,
    *,
    epsilon: float,
    delta: float,
    accountant: str,
    neighboring_relation: str,
) -> Parameters:
    """The parameters of the largest training budget for which all events together are within (ε, δ).

    For methods that calibrate one release by their own theorem.  Basic composition promises that ε − Σ ε_s with
    δ − Σ δ_s fits.  What the accountant leaves of ε then is added to the training until little is left; every
    answer was itself seen to hold.

    Args:
        make: (ε, δ) of the training → its frozen plan, with an ``event``.
        stages: the others.

    Raises:
        ConfigError: no training fits beside the stages.
        UnsupportedEventError: the accountant cannot bound the composed event.
    """
    left, left_delta = epsilon - stages.epsilon, max(0.0, delta - stages.delta)

    def slack(parameters: Any) -> float:
        """What the accountant leaves of ε; negative where the whole costs too much."""
        event = stages.around(parameters.event)
        options = {"accountant": accountant, "neighboring_relation": neighboring_relation}
        return epsilon - accounting.epsilon(event, delta, **options)

    low, found = left, make(left, left_delta)
    while (spare := slack(found)) < 0:  # an accountant that composes worse than basic composition, or rounding
        low *= 1 - 1e-12 if low == left else 0.8
        if low < 1e-3 * left:
            raise ConfigError(
                f"shares leave nothing to train with: accountant = {accountant!r} finds more than epsilon = "
                f"{epsilon:g} for the stages and any training. Lower the shares, or use accountant='best'."
            )
        found = make(low, left_delta)
    if delta == 0:
        return found  # ε adds up exactly
    least = FINENESS * (epsilon - left)
    while spare > least:
        tried = make(low + spare, left_delta)
        if (rest := slack(tried)) >= 0:
            low, found, spare = low + spare, tried, rest
        else:
            spare /= 2
    return found
