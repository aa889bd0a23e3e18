"""An interactive session: an analyst asks, the session answers with noise, or refuses before it looks at the records.

The budget is a privacy filter (:mod:`dpml.accounting.filters`), so that each question, its noise and whether it is
asked at all may depend on the answers before it.  A question goes through these steps, in this order:

1. its plan is made from public numbers: what it costs and what noise it gets; what is not allowed raises here;
2. the filter decides by what was spent, again from public numbers only: two neighbouring data sets get the same
refusals; 3. the charge is written to the ledger and synced;
4. the records are read, noise is drawn, and the answer is written to the ledger and given back.

A question that fails after step 3, for whatever reason, stays charged: its noise may have been drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from dpml.accounting.checks import ADD_REMOVE, REPLACE_ONE, check_number, check_relation
from dpml.accounting.events import MAX_SCALE, Composed, Event, from_json
from dpml.accounting.filters import PrivacyFilter, PureFilter, ZcdpFilter
from dpml.errors import invalid
from dpml.mechanisms.answers import Answer, check_noise
from dpml.mechanisms.columns import as_columns
from dpml.mechanisms.noise import NoiseSource
from dpml.mechanisms.query_plan import make_plan
from dpml.mechanisms.session_ledger import SessionLedger
from dpml.results import Guarantee, to_jsonable

MOST_KEPT = 10_000
"""Numbers of one answer that the transcript keeps; of larger ones it keeps how many there were."""


@dataclass(frozen=True)
class PureBudget:
    """ε-DP for the whole session: the ε of all answers add up to at most ``epsilon`` > 0."""

    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_number("epsilon", self.epsilon, 0.0, MAX_SCALE, above=True))

    def filter(self, relation: str) -> PrivacyFilter:
        """Basic composition (Rogers et al. 2016, section 4)."""
        return PureFilter(self.epsilon, neighboring_relation=relation)


@dataclass(frozen=True)
class ZCDPBudget:
    """ρ-zCDP for the whole session; ``delta`` is only where :meth:`PrivateSession.guarantee` states ε."""

    rho: float
    delta: float = 1e-6

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", check_number("rho", self.rho, 0.0, MAX_SCALE, above=True))
        object.__setattr__(self, "delta", check_number("delta", self.delta, 0.0, 1.0, above=True, below=True))

    def filter(self, relation: str) -> PrivacyFilter:
        """Σρ (Feldman & Zrnic 2021)."""
        return ZcdpFilter(delta=self.delta, rho=self.rho, neighboring_relation=relation)


@dataclass(frozen=True)
class ApproxBudget:
    """(ε, δ)-DP for the whole session, by the largest ρ whose zCDP conversion stays within it."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_number("epsilon", self.epsilon, 0.0, MAX_SCALE, above=True))
        object.__setattr__(self, "delta", check_number("delta", self.delta, 0.0, 1.0, above=True, below=True))

    def filter(self, relation: str) -> PrivacyFilter:
        """Σρ within ρ(ε, δ)."""
        return ZcdpFilter(self.epsilon, self.delta, neighboring_relation=relation)


Budget = PureBudget | ZCDPBudget | ApproxBudget


@dataclass(frozen=True)
class Exchange:
    """One question and its answer, as the ledger has them; all of it public.

    Attributes:
        query: the description of the question.
        mechanism: name of the kind of noise.
        event: what was charged.
        answered: whether an answer was recorded; a charge without one (a crash) is spent all the same.
        value: the answer as JSON has it (lists for arrays); None if not answered or too long to keep.
    """

    query: Mapping[str, Any]
    mechanism: str
    event: Event
    answered: bool
    value: Any


class PrivateSession:
    """Answers adaptively chosen questions about private records until its budget is spent.

    Args:
        data: a dict of one-dimensional arrays, a pandas data frame, or a two-dimensional array (columns are numbers).
            The columns are copied.
        budget: :class:`PureBudget`, :class:`ZCDPBudget` or :class:`ApproxBudget`; fixed for good.
        neighboring_relation: ``"add_remove"`` (the number of records is private) or ``"replace_one"`` (it is public).
        folder: where the ledger lives; opened again, it goes on with what was spent, and any number of processes may
            have it open.  None keeps the session in memory, for this process only.  One folder belongs to one data set:
            nothing in it tells whose records they are, so that the caller has to give the same ones again.
        noise_source: None for a fresh secret one; another (tests) takes the guarantee away, and :meth:`guarantee` says
        it.

    Many threads may ask at once.  The object can be neither pickled nor copied: it holds the records.  How long an
    answer takes is not defended.

    Raises:
        ConfigError: an argument that is not allowed, or a folder begun with another budget or relation.
        DataError: columns of different lengths (looked at by their shapes, before anything is released).
        LedgerError: the ledger cannot be made, or does not hold.
    """

    def __init__(
        self,
        data: object,
        budget: Budget,
        *,
        neighboring_relation: str = ADD_REMOVE,
        folder: Path | str | None = None,
        noise_source: NoiseSource | None = None,
    ) -> None:
        if not isinstance(budget, PureBudget | ZCDPBudget | ApproxBudget):
            kinds = "PureBudget(epsilon), ZCDPBudget(rho) or ApproxBudget(epsilon, delta)"
            raise invalid("budget", budget, kinds)
        if folder is not None and (not isinstance(folder, str | Path) or "\0" in str(folder)):
            raise invalid("folder", folder, "a path or None")
        self.budget = budget
        self.neighboring_relation = check_relation(neighboring_relation)
        self._filter = budget.filter(self.neighboring_relation)  # of public numbers, never spent: for the guarantee
        self._noise = check_noise(noise_source)
        self._columns = as_columns(data)
        self._ledger = SessionLedger(folder, budget.filter(self.neighboring_relation))

    def ask(
        self,
        query: Any,
        *,
        epsilon: float | None = None,
        rho: float | None = None,
        delta: float | None = None,
        mechanism: str | None = None,
    ) -> Answer:
        """The answer to ``query`` with noise, or a refusal.

        Args:
            query: one of :mod:`dpml.mechanisms.queries` or :mod:`dpml.mechanisms.custom`.
            epsilon, rho: exactly one, what the answer may cost: shared out equally among the query's parts.
            delta: with ``epsilon`` and a Gaussian: the noise is that of the (ε, δ)-DP Gaussian mechanism.
            mechanism: ``"laplace"`` (default with ``epsilon``), ``"gaussian"`` (default with ``rho``),
                ``"discrete_laplace"`` or ``"discrete_gaussian"`` (queries of counts), ``"exponential"``
                (:class:`~dpml.mechanisms.queries.Quantile`, its default and only one).

        Returns:
            The answer: ``value``, ``event``, ``error(beta)``, ``interval(beta)``.

        Raises:
            BudgetExceededError: it does not fit; it cost nothing, and no record was looked at.
            ConfigError: an argument that is not allowed, a column that is missing; likewise.
            UnsupportedEventError: a Gaussian on a pure budget; likewise.
            LedgerError: the charge could not be written (likewise), or the answer could not (it is charged).
        """
        records = self._columns.records if self.neighboring_relation == REPLACE_ONE else None
        plan = make_plan(
            query,
            self.neighboring_relation,
            records,
            self._columns.blank(0),
            pure=isinstance(self.budget, PureBudget),
            mechanism=mechanism,
            epsilon=epsilon,
            rho=rho,
            delta=delta,
        )
        number = self._ledger.charge(plan.event, query.describe(), plan.kind)
        answer = plan.release(self._columns, self._noise)
        self._ledger.answer(number, _kept(answer.value))
        return answer

    @property
    def spent(self) -> dict[str, float]:
        """What was charged so far, by all threads and processes: ``epsilon``, or ``rho``."""
        return _counted(self._ledger.amounts()[0], self._filter)

    @property
    def remaining(self) -> dict[str, float]:
        """What is left of the budget, >= 0: ``epsilon``, or ``rho``."""
        return _counted(self._ledger.amounts()[1], self._filter)

    @property
    def event(self) -> Composed:
        """Everything that was charged, for the accountants.

        Their ε of it is a guarantee for questions that were fixed beforehand; for an analyst who chose them by looking
        at answers it is :meth:`guarantee`, the budget.
        """
        return Composed(tuple(exchange.event for exchange in self.transcript))

    @property
    def transcript(self) -> tuple[Exchange, ...]:
        """All questions that were charged, in order, with their answers: the ledger."""
        out: dict[int, Exchange] = {}
        for line in self._ledger.lines():
            if line["kind"] == "charge":
                event = from_json(line["event"])
                out[line["index"]] = Exchange(line["query"], line["mechanism"], event, False, None)
            elif line["kind"] == "answer":
                out[line["charge"]] = replace(out[line["charge"]], answered=True, value=line["value"])
        return tuple(out.values())

    def guarantee(self) -> Guarantee:
        """What the whole session satisfies, however the questions are chosen and wherever it stops: its budget."""
        found = self._filter.guarantee()
        if self._noise.secret:
            return found
        return replace(found, assumptions=(*found.assumptions, "NO GUARANTEE: the noise source is not secret (tests)"))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "PrivateSession cannot be pickled or copied: it holds the records, and a copy would spend the budget "
            "again. Open its folder in the other process, with the data."
        )

    def __repr__(self) -> str:
        return f"PrivateSession({self.budget!r}, neighboring_relation={self.neighboring_relation!r})"


def _counted(amounts: Mapping[str, float], budget: PrivacyFilter) -> dict[str, float]:
    """Without the δ of (ε, δ) statements, which sessions do not make."""
    return {name: value for name, value in amounts.items() if budget.budget[name] > 0}


def _kept(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.size > MOST_KEPT:
        return {"left out": int(value.size)}
    if isinstance(value, tuple):
        return [_kept(part) for part in value]
    return to_jsonable(value)
