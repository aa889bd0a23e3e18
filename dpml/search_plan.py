"""The plan of a private search: what is tried, how the winner is chosen, and one event for all of it.

Proofs and edge cases: docs/private-search.md.  No record is read here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dpml import accounting, planning
from dpml.accounting import (
    Composed,
    Event,
    ExponentialMechanism,
    Gaussian,
    ObjectivePerturbation,
    PoissonSampled,
    RepeatAndSelect,
    SelfComposed,
    Trajectory,
)
from dpml.accounting.normal_form import flatten, merge_gaussians
from dpml.accounting.renyi_closed import log_inverse_gamma
from dpml.accounting.sample_size import guidance as sample_size_guidance
from dpml.arguments import LIMITS
from dpml.data import PublicInfo
from dpml.errors import AccountingError, ConfigError, UnsupportedEventError, invalid
from dpml.release import describe
from dpml.results import Guarantee, to_jsonable
from dpml.rounding import upper
from dpml.runs import Plan
from dpml.search_arguments import EXPONENTIAL, PUBLIC_TEST, REPEAT, SELECTION_PAID, Settings, readable
from dpml.trainer import PrivateTrainer
from dpml.version import __version__

CONTRIBUTION = 0.5
"""One hold-out record adds +1/2 (right) or −1/2 (wrong) to the score, so this is its norm; see :func:`score_std`."""

_SAID_ALREADY = ("schema, classes, bounds and n_declared were fixed", "floating-point noise")
"""Beginnings of a run's assumptions that a search states in its own words."""

_SMALLEST_SHARE = 1e-3  # of ε, for one base run
_TRIALS = 40
_NEAR = 0.005  # of ln ε


# -- events -----------------------------------------------------------------------------------------------------------
def common_event(events: Sequence[Event]) -> Event:
    """One event that costs at least as much as each of ``events``, at every ε and every Rényi order.

    A run that draws one of the candidates and says which is no farther from its neighbour than the worst candidate
    (quasi-convexity), so this event may stand for it.  Taken part by part: of Gaussians the least noise; of objective
    perturbations the least noise and the least regularisation (its bound grows with neither); steps of a
    Poisson-sampled Gaussian are stood for by as many steps of another one with at least its rate and at most its noise
    (which can be degraded to it), where those are not needed for the same candidate's own (:func:`_fewest`); everything
    else, and what is not comparable, is composed.
    """
    parts = [_parts(event) for event in events]
    strongest: dict[Any, tuple[Event, int]] = {}
    for found in parts:
        for key, (atom, count) in found.items():
            strongest[key] = _join(strongest[key], (atom, count)) if key in strongest else (atom, count)
    kept = _fewest(strongest, [{key: count for key, (_, count) in found.items()} for found in parts])
    return Composed(tuple(SelfComposed(atom, count) if count > 1 else atom for atom, count in kept))


def _fewest(strongest: Mapping[Any, tuple[Event, int]], loads: list[dict[Any, int]]) -> list[tuple[Event, int]]:
    """The atoms of ``strongest`` without those that others can stand for.

    ``loads`` holds, for every candidate, how many steps of each atom it needs.  An atom is dropped if one other covers
    it and has, for *every* candidate, enough steps for the candidate's own and for all that it stands for already.  So
    each step of each candidate keeps a step of the result to itself.
    """
    kept = dict(strongest)
    for key in sorted(strongest, key=lambda one: _strength(strongest[one][0])):
        for other, (strong, steps) in kept.items():
            if other == key or not _covers(strong, strongest[key][0]):
                continue
            if all(load.get(other, 0) + load.get(key, 0) <= steps for load in loads):
                for load in loads:
                    load[other] = load.get(other, 0) + load.pop(key, 0)
                del kept[key]
                break
    return list(kept.values())


def _strength(atom: Event) -> tuple[float, float]:
    """Rate, then minus noise, of a sampled Gaussian: the weakest are stood for first."""
    if isinstance(atom, PoissonSampled) and isinstance(atom.event, Gaussian):
        return atom.sampling_probability, -atom.event.noise_multiplier
    return math.inf, 0.0


def _parts(event: Event) -> dict[Any, tuple[Event, int]]:
    atoms = flatten(event)
    plain: dict[Event, int] = {atom: count for atom, count in atoms.items() if isinstance(atom, Gaussian)}
    found: dict[Any, tuple[Event, int]] = {"gaussian": (merge_gaussians(plain), 1)} if plain else {}
    for atom, count in atoms.items():
        if isinstance(atom, ObjectivePerturbation):
            kind = replace(atom, noise_std=1.0, lambda_sum=1.0)
            found[kind, sum(key[0] == kind for key in found if isinstance(key, tuple))] = (atom, count)
        elif not isinstance(atom, Gaussian):
            found[atom] = (atom, count)
    return found


def _join(one: tuple[Event, int], other: tuple[Event, int]) -> tuple[Event, int]:
    (a, times), (b, again) = one, other
    if isinstance(a, Gaussian) and isinstance(b, Gaussian):
        return Gaussian(min(a.noise_multiplier, b.noise_multiplier)), 1
    if isinstance(a, ObjectivePerturbation) and isinstance(b, ObjectivePerturbation):
        a = replace(a, noise_std=min(a.noise_std, b.noise_std), lambda_sum=min(a.lambda_sum, b.lambda_sum))
    return a, max(times, again)


def _covers(a: Event, b: Event) -> bool:
    """Whether a sampled Gaussian can be degraded to another one by dropping records and adding noise."""
    if a == b or not isinstance(a, PoissonSampled) or not isinstance(b, PoissonSampled):
        return False
    if not isinstance(a.event, Gaussian) or not isinstance(b.event, Gaussian):
        return False
    return a.sampling_probability >= b.sampling_probability and a.event.noise_multiplier <= b.event.noise_multiplier


def score_std(noise_multiplier: float) -> float:
    """Standard deviation of the noise on Σ (1[right] − 1/2) over the hold-out.

    One record more or less moves the sum by 1/2, a replaced one by at most 1 = 2 · 1/2: exactly the convention of the
    Gaussian event, whose noise multiplier counts in contributions and whose distance doubles under replace_one.
    """
    return noise_multiplier * CONTRIBUTION


def selection_sensitivity(neighboring_relation: str) -> float:
    """Largest change of Σ (1[right] − 1/2): 1/2 under add_remove, 1 under replace_one."""
    return CONTRIBUTION if neighboring_relation == accounting.ADD_REMOVE else 2 * CONTRIBUTION


@lru_cache(maxsize=64)
def inverse_gamma(mean: float, shape: float) -> float:
    """ln(1/γ) of the truncated negative binomial that K is drawn from.

    A touch below what the accountant charges for (it rounds up), so that neither E K nor ln(1/γ) passes the charge.
    """
    return log_inverse_gamma(mean, shape) * (1 - 1e-7)


# -- the plan ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SearchPlan:
    """Everything about a search that is fixed before a record is read.

    Attributes:
        mechanism: ``"repeat"`` or ``"exponential"``.
        guarantee: the promise for the whole search, released winner included.
        event: the whole search as an event; charged once, before the data are read.
        candidates: the arguments of each candidate, JSON-ready.
        candidate_events: what one run of each costs.
        base_event: ``repeat``: what one run (train and score) is charged as; else the worst single run.
        base_epsilon, base_delta: the parameters that each candidate's noise was calibrated with; not a guarantee.
        distribution, shape, mean_runs: of K (``shape`` None for Poisson); ``exponential`` runs every candidate once.
        score_noise_multiplier, score_noise_std: of the noise on the hold-out score; 0 where it has none.
        selection_epsilon: pure cost of the exponential mechanism, 0 without.
        holdout: probability of the hold-out, 0.0 without, or ``"public_test"``.
        n_train, n_holdout: public nominal sizes of the two parts.
        trajectory, guidance, data, seed: as in a run's plan; the guidance is that of one run at ``base_epsilon``.
    """

    mechanism: str
    guarantee: Guarantee
    event: Event
    candidates: tuple[Mapping[str, Any], ...]
    candidate_events: tuple[Event, ...]
    base_event: Event
    base_epsilon: float
    base_delta: float
    distribution: str
    shape: float | None
    mean_runs: float
    score_noise_multiplier: float
    score_noise_std: float
    selection_epsilon: float
    holdout: float | str
    n_train: int
    n_holdout: int
    model: str
    trajectory: Trajectory
    guidance: Mapping[str, Any]
    data: Mapping[str, Any]
    seed: int

    @property
    def method(self) -> str:
        """The name that ledger and result carry."""
        return "repeat_and_select" if self.mechanism == REPEAT else "exponential_selection"

    @property
    def needs_score(self) -> bool:
        """Whether anything has to be compared: not with one run only."""
        if self.mechanism == EXPONENTIAL:
            return len(self.candidates) > 1
        return self.shape is None or self.mean_runs > 1

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; the ledger's first line."""
        return {
            "dpml_version": __version__,
            "method": self.method,
            "model": self.model,
            "reason": SELECTION_PAID,
            "guarantee": to_jsonable(self.guarantee),
            "event": self.event.to_json(),
            "steps": 1,
            "noise_multiplier": None,
            "parameters": {
                "candidates": to_jsonable(self.candidates),
                "candidate_events": [event.to_json() for event in self.candidate_events],
                "base_event": self.base_event.to_json(),
                **{
                    name: to_jsonable(getattr(self, name))
                    for name in (
                        "base_epsilon", "base_delta", "distribution", "shape", "mean_runs", "score_noise_multiplier",
                        "score_noise_std", "selection_epsilon", "holdout", "n_train", "n_holdout",
                    )
                },
            },
            "data": to_jsonable(self.data),
            "device": "cpu",
            "seed": self.seed,
        }  # fmt: skip

    def rows(self) -> list[tuple[str, str]]:
        """What a person wants to see before the search starts, as (name, value) pairs."""
        number = len(self.candidates)
        rows = [
            ("search", f"{self.method}: {SELECTION_PAID}"),
            ("promise", str(self.guarantee)),
            ("candidates", f"{number}, model {self.model}"),
            (
                "noise of one run",
                f"calibrated at epsilon = {upper(self.base_epsilon, 6)}, delta = {upper(self.base_delta)}",
            ),
        ]
        if self.mechanism == REPEAT:
            kind = "Poisson" if self.shape is None else f"truncated negative binomial, shape {self.shape:g}"
            secret = f"secret, mean {self.mean_runs:g} ({kind})"
            rows.append(("number of runs K", secret if self.needs_score else "1, so that nothing is selected"))
        else:
            rows.append(("runs", f"{number}, each candidate once and fully charged"))
        if self.selection_epsilon:
            rows.append(("selection", f"exponential mechanism, epsilon = {upper(self.selection_epsilon, 6)}"))
        if self.score_noise_std:
            rows.append(("noise of a score", f"{self.score_noise_std:.6g} records"))
        if self.holdout == PUBLIC_TEST:
            rows.append(("scored on", "the test set declared public"))
        elif self.needs_score:
            rows.append(("hold-out", f"probability {self.holdout:g}, about {self.n_holdout:,} records"))
        rows.append(("n declared", f"{self.n_train:,} for training"))
        return rows

    def __str__(self) -> str:
        return describe(self.rows())


def make_search_plan(
    settings: Settings,
    candidates: Sequence[Mapping[str, Any]],
    make_trainer: Callable[[int, float, float], PrivateTrainer],
    public: PublicInfo,
    train: Any,
    seed: int,
) -> tuple[SearchPlan, tuple[Plan, ...]]:
    """Calibrate one run's noise so that the whole search is (ε, δ)-DP; no record is read.  Also each candidate's plan.

    Args:
        make_trainer: (candidate's index, ε, δ) → its trainer.
        public: the whole data set's public knowledge.
        train: the training part as a ``PrivateData`` (planned for, never loaded here).
        seed: public seed, for the record.

    Raises:
        ConfigError: the budget is too small, or a candidate does not fit the data.
        UnsupportedEventError: no accountant bounds the search over these candidates; candidate methods are named.
    """
    number, relation = len(candidates), settings.neighboring_relation
    repeat = settings.mechanism == REPEAT
    one_run = (settings.shape is not None and settings.mean_runs == 1) if repeat else number == 1
    private_score = not one_run and settings.holdout != PUBLIC_TEST
    selection = settings.selection_share * settings.epsilon if private_score and not repeat else 0.0
    base_delta = settings.delta if repeat else settings.delta / number

    def event_of(base: float, k: int) -> Event:
        trainer = make_trainer(k, base, base_delta)
        method = planning.method_of(trainer, train.public)
        one_delta = planning._delta_of(trainer, train.public, method)
        event: Event = planning._parameters(trainer, train.public, method, base, one_delta).event
        return event

    def design(base: float, events: tuple[Event, ...] | None = None) -> tuple[Event, Event, float]:
        events = events or tuple(event_of(base, k) for k in range(number))
        if not repeat:
            chosen: tuple[Event, ...] = (ExponentialMechanism(selection),) if selection else ()
            return Composed((*events, *chosen)), common_event(events), 0.0
        noise = 0.0
        scored: tuple[Event, ...] = ()
        if private_score:
            noise = accounting.calibrate(
                Gaussian, epsilon=settings.score_share * base, delta=settings.delta, neighboring_relation=relation
            )
            scored = (Gaussian(noise),)
        run = Composed((common_event(events), *scored))
        return (run if one_run else RepeatAndSelect(run, settings.mean_runs, settings.shape)), run, noise

    def cost(event: Event) -> float:
        try:
            return accounting.epsilon(
                event, settings.delta, accountant=settings.accountant, neighboring_relation=relation
            )
        except UnsupportedEventError as error:
            raise _unsupported(error, settings, candidates, make_trainer) from error

    for k in range(number):
        make_trainer(k, settings.epsilon, base_delta).check(train)
    base = _largest_base(lambda value: cost(design(value)[0]), settings)
    plans = tuple(make_trainer(k, base, base_delta).plan(train) for k in range(number))
    events = tuple(plan.event for plan in plans)
    event, run, score_noise = design(base, events)
    if not cost(event) <= settings.epsilon:
        raise AccountingError("the planned search costs more than its budget. This is a bug in dpml; please report it.")
    fraction = settings.holdout if isinstance(settings.holdout, float) and private_score else 0.0
    models = sorted({plan.model for plan in plans})
    whole = SearchPlan(
        mechanism=settings.mechanism,
        guarantee=Guarantee(
            epsilon=settings.epsilon,
            delta=settings.delta,
            neighboring_relation=relation,
            accountant=settings.accountant,
            assumptions=_assumptions(
                settings,
                number,
                private_score,
                one_run,
                own=[note for k in range(number) for note in make_trainer(k, base, base_delta).assumptions],
                of_plans=[note for plan in plans for note in plan.guarantee.assumptions],
            ),
        ),
        event=event,
        candidates=tuple(readable(one) for one in candidates),
        candidate_events=events,
        base_event=run,
        base_epsilon=base,
        base_delta=base_delta,
        distribution=settings.distribution if repeat else "each candidate once",
        shape=settings.shape if repeat else None,
        mean_runs=settings.mean_runs if repeat else float(number),
        score_noise_multiplier=score_noise,
        score_noise_std=score_std(score_noise),
        selection_epsilon=selection,
        holdout=settings.holdout if settings.holdout == PUBLIC_TEST else fraction,
        n_train=train.public.n_declared,
        n_holdout=public.n_declared - train.public.n_declared,
        model=models[0] if len(models) == 1 else "one of " + ", ".join(models),
        trajectory=accounting.trajectory(lambda _: event, [1], settings.delta, neighboring_relation=relation),
        guidance=sample_size_guidance(
            n_declared=train.public.n_declared,
            n_features=public.n_features,
            epsilon=base,
            delta=settings.delta,
            excess_risk=0.05,
            neighboring_relation=relation,
            norm_bound=public.norm_bound or 1.0,
            method="of several candidates",
        ),
        data={
            "name": public.name,
            "is_public": public.is_public,
            "n_declared": public.n_declared,
            "n_features": public.n_features,
            "classes": list(public.classes),
            "norm_bound": public.norm_bound,
        },
        seed=seed,
    )
    return whole, plans


def _largest_base(cost: Callable[[float], float], settings: Settings) -> float:
    """The largest ε of a single run (to about 0.5 %) for which the search was seen to cost at most the budget.

    False position on the logarithms (Illinois), aimed just below the budget; only a value that was itself seen to fit
    is returned.
    """

    def within(x: float) -> float:
        return min(max(math.exp(x), least), settings.epsilon)  # exp(ln ε) may pass ε by rounding

    def excess(x: float) -> float:
        found = cost(within(x))
        return math.log(found / settings.epsilon) if 0 < found < math.inf else math.copysign(9.0, found - 1)

    least = LIMITS["epsilon"][0] / (settings.score_share if settings.mechanism == REPEAT else settings.selection_share)
    if settings.epsilon <= 1.001 * least:
        raise invalid(
            "epsilon", settings.epsilon, f"above {1.001 * least:.3g} for a search", "A run gets a part of it."
        )
    low, high = math.log(max(_SMALLEST_SHARE * settings.epsilon, least)), math.log(settings.epsilon)
    over = excess(high)
    if over <= 0:
        return within(high)
    under = excess(low)
    if under > 0:
        raise ConfigError(
            f"epsilon = {settings.epsilon!r} is too small for this search: even runs at {_SMALLEST_SHARE:g} of it cost "
            "more in all. Raise epsilon, or try fewer candidates (repeat: a smaller mean_runs)."
        )
    seen, side = under, 0
    for _ in range(_TRIALS):
        if seen > -_NEAR or high - low < _NEAR:
            break
        # aimed at −_NEAR/2, so that the answer is on the safe side; kept off the ends
        slope = (over - under) / (high - low)
        x = min(max(low + (-_NEAR / 2 - under) / slope, low + 0.02 * (high - low)), high - 0.02 * (high - low))
        found = excess(x)
        if found <= 0:
            low, under, seen = x, found, found
            over = over / 2 if side == -1 else over
            side = -1
        else:
            high, over = x, found
            under = under / 2 if side == 1 else under
            side = 1
    return within(low)


def _unsupported(
    error: UnsupportedEventError,
    settings: Settings,
    candidates: Sequence[Mapping[str, Any]],
    make_trainer: Callable[[int, float, float], PrivateTrainer],
) -> UnsupportedEventError:
    trainers = [make_trainer(k, settings.epsilon, settings.delta) for k in range(len(candidates))]
    methods = sorted({planning.method_of(trainer) for trainer in trainers})
    way_out = (
        "Give the candidates method='output' or 'dp_sgd', or use mechanism='exponential'."
        if settings.mechanism == REPEAT
        else "Use accountant='best'."
    )
    return UnsupportedEventError(
        f"mechanism = {settings.mechanism!r} cannot be accounted for candidates with method {methods} by accountant = "
        f"{settings.accountant!r} under {settings.neighboring_relation}: {error} {way_out}"
    )


def _assumptions(
    settings: Settings,
    number: int,
    private_score: bool,
    one_run: bool,
    *,
    own: Sequence[str] = (),
    of_plans: Sequence[str] = (),
) -> tuple[str, ...]:
    """What the proof takes for granted, the selection by name.

    ``own``: the user's assumptions of all candidates; ``of_plans``: everything that the candidates' own plans rest on.
    """
    if settings.mechanism == REPEAT:
        law = "Poisson" if settings.shape is None else f"truncated negative binomial (shape {settings.shape:g})"
        how = (
            f"{SELECTION_PAID}: best of K runs, K secret, {law} with mean {settings.mean_runs:g}, each a candidate "
            f"drawn uniformly with replacement from {number} (Papernot & Steinke 2022); K and the losers stay secret"
        )
    else:
        how = f"{SELECTION_PAID}: {number} candidates each fully charged" + (
            ", then the exponential mechanism on hold-out counts" if private_score else ""
        )
    if one_run:
        how = f"{SELECTION_PAID}: one run only, nothing is compared"
    notes = [
        f"each individual contributes at most one record; neighbours differ by {settings.neighboring_relation}",
        "schema, classes, bounds, n_declared and the candidates were fixed without looking at the records"
        + (", except for what follows" if own else ""),
        *dict.fromkeys(own),
        how,
    ]
    if private_score:
        notes.append("every record went to the hold-out by its own secret coin")
    elif not one_run:
        notes.append("scores are those of a test set declared public")
    notes.append("every candidate's own proof holds (verified minima, secret Poisson batches)")
    notes += [note for note in dict.fromkeys(of_plans) if note not in notes and not note.startswith(_SAID_ALREADY)]
    if not settings.secret:
        notes.append("NOT PRIVATE: the noise source is not secret (tests only)")
    notes.append("floating-point noise is treated as real-valued")
    return tuple(notes)
