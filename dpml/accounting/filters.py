"""Privacy filters and an odometer: accounting when each release is chosen after seeing the ones before.

A *filter* is asked before every release, whose noise, mechanism and very occurrence may depend on earlier outputs, and
answers from the declared events alone.  What the whole interaction then satisfies is the filter's budget (ε, δ), fixed
beforehand; a smaller number computed from what was spent is no guarantee, because when to stop may depend on the data.

Setting of all proofs.  P and Q are the laws of the whole transcript on two neighbouring data sets.  Given the past
y₁…yⱼ₋₁, release j has laws Pⱼ, Qⱼ with loss Lⱼ = ln dPⱼ/dQⱼ and the accountant's bound rⱼ(α) ≥ Dα(Pⱼ‖Qⱼ), chosen from
the past too.  L = ΣLⱼ up to the (data-dependent) stop, S(α) = Σrⱼ(α) likewise.

Lemma 1.  E_P[e^{(α−1)(L − S(α))}] ≤ 1 for every fixed α > 1.  Each factor has conditional expectation
e^{(α−1)(Dα(Pⱼ‖Qⱼ) − rⱼ(α))} ≤ 1, so the running product is a supermartingale ≥ 0 that starts at 1, and may be stopped
anywhere (Fatou for endless interactions); e^{−∞} = 0 where rⱼ(α) = ∞.  (Feldman & Zrnic 2021; Lécuyer 2021.)

Lemma 2.  For x real, (1 − e^{−x})₊ ≤ c(α)·e^{(α−1)x} with c(α) = (1 − 1/α)^{α−1}/α: the maximum of the quotient is
at e^{−x} = 1 − 1/α.  It is the constant of ``conversions.rdp_to_delta``.

Approximate releases.  A release that is (εⱼ, δⱼ)-DP has Pⱼ = (1 − δⱼ)Pⱼ′ + δⱼEⱼ and Qⱼ = (1 − δⱼ)Qⱼ′ + δⱼFⱼ where
Pⱼ′, Qⱼ′ are εⱼ-DP (Kairouz, Oh & Viswanath 2015; Bun & Steinke 2016, Lemma 8.3).  Transcripts in which some Eⱼ was
drawn have P-probability ≤ E[Σδⱼ], at most the budget δ″ that is set aside for Σδⱼ.  The parts of P and Q without a
failure are Π(1 − δⱼ) times the primed laws: their ratio is the primed one, P's is below P′ and Q's below Q.  Hence the
hockey-stick divergence of P from Q is at most that of P′ from Q′, plus δ″: every filter below that proves (ε, δ′) for
pure, Rényi or concentrated bounds proves (ε, δ′ + δ″) when statements with Σδⱼ ≤ δ″ are counted by their εⱼ.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dpml.accounting import api, renyi
from dpml.accounting.checks import ADD_REMOVE, MAX_COUNT, check_list, check_number, check_relation, shown
from dpml.accounting.composition import compose
from dpml.accounting.conversions import zcdp_to_epsilon
from dpml.accounting.events import MAX_SCALE, EpsilonDelta, Event, check_event, event_name
from dpml.accounting.normal_form import normal_form
from dpml.errors import BudgetExceededError, ConfigError, UnsupportedEventError, invalid
from dpml.results import Guarantee, number, to_jsonable

ROUNDING = 1e-12
"""Relative slack of a budget, so that ten times 0.1 fits in 1; budgets derived from ε are lowered by twice as much."""
MAX_ORDER = 65536.0
_ASSUMPTIONS = (
    "every release on the data was admitted by this filter before it was made, and is what its event says",
    "ε and δ are the filter's budget, which holds for adaptively chosen releases and for any rule of stopping",
)
_COUNTS = ("admitted", "spent")


class PrivacyFilter(ABC):
    """What all filters share: amounts per event that add up, budgets, a lock, JSON state.

    A subclass names its amounts, gives their budgets, and prices an event; whatever it admits was priced from public
    declarations only.  All methods may be called from many threads.
    """

    kind: ClassVar[str] = ""

    def __new__(cls, *_: object, **__: object) -> PrivacyFilter:
        """Refuses the base class by name, not with Python's own TypeError."""
        if cls is PrivacyFilter:
            names = sorted(kind.__name__ for kind in FILTERS.values())
            raise ConfigError(f"PrivacyFilter is what all filters share, not itself one: make one of {names}.")
        return super().__new__(cls)

    def __init__(self, epsilon: float, delta: float, neighboring_relation: str, budget: Mapping[str, float]) -> None:
        self._epsilon = epsilon
        self._delta = delta
        self.neighboring_relation = neighboring_relation
        self._names = tuple(budget)
        self._budget = tuple(budget.values())
        self._spent = (0.0,) * len(self._names)
        self._admitted = 0
        self._lock = threading.Lock()

    # -- the question and the answer ------------------------------------------------------------------------------
    def price(self, event: Event) -> dict[str, float]:
        """What ``event`` takes of each amount; UnsupportedEventError where this filter has no bound for it."""
        return dict(zip(self._names, self._price_of(event), strict=True))

    def would_allow(self, event: Event) -> bool:
        """Whether :meth:`admit` would take ``event`` now; spends nothing."""
        price = self._price_of(event)
        with self._lock:
            return self._fits(_sum(self._spent, price))

    def admit(self, event: Event) -> None:
        """Spend what ``event`` costs; only after this returns may it be released.

        Raises:
            BudgetExceededError: the budget would be passed; nothing is spent and the filter goes on as before.
            UnsupportedEventError: the filter has no bound for the event; nothing is spent.
        """
        price = self._price_of(event)
        with self._lock:
            total = _sum(self._spent, price)
            if not self._fits(total):
                raise BudgetExceededError(self._refusal(event, price))
            self._spent, self._admitted = total, self._admitted + 1

    def replay(self, event: Event) -> None:
        """Count an event that was admitted and released before a restart, whether it fits or not."""
        price = self._price_of(event)
        with self._lock:
            self._spent, self._admitted = _sum(self._spent, price), self._admitted + 1

    @property
    def spent(self) -> dict[str, float]:
        """The amounts spent so far, by name."""
        with self._lock:
            return dict(zip(self._names, self._spent, strict=True))

    @property
    def remaining(self) -> dict[str, float]:
        """What is left of each amount, by name, ≥ 0."""
        with self._lock:
            pairs = zip(self._names, self._budget, self._spent, strict=True)
            return {name: max(0.0, budget - spent) for name, budget, spent in pairs}

    @property
    def budget(self) -> dict[str, float]:
        """The budgets, by name."""
        return dict(zip(self._names, self._budget, strict=True))

    @property
    def admitted(self) -> int:
        """Number of events admitted."""
        return self._admitted

    def guarantee(self) -> Guarantee:
        """What the whole interaction satisfies: the budget, however little of it was spent."""
        return Guarantee(
            epsilon=self._epsilon,
            delta=self._delta,
            neighboring_relation=self.neighboring_relation,
            accountant=f"{self.kind}_filter",
            assumptions=_ASSUMPTIONS,
        )

    # -- restart --------------------------------------------------------------------------------------------------
    def settings(self) -> dict[str, Any]:
        """The fixed part of :meth:`state`: kind, budget, relation."""
        return {"type": self.kind, **to_jsonable(self._arguments())}

    def state(self) -> dict[str, Any]:
        """Everything that :meth:`from_state` needs, as plain JSON values."""
        with self._lock:
            return {**self.settings(), "admitted": self._admitted, "spent": to_jsonable(list(self._spent))}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> PrivacyFilter:
        """The filter behind :meth:`state`, or a fresh one behind :meth:`settings`; ConfigError for anything else."""
        values = dict(state) if isinstance(state, Mapping) else {}
        name = values.pop("type", None)
        kind = FILTERS.get(name) if isinstance(name, str) else None
        if kind is None:
            raise invalid(
                "state", shown(state), f"the state of a filter: a JSON object with type one of {sorted(FILTERS)}"
            )
        counts = {key: values.pop(key) for key in _COUNTS if key in values}
        if "neighboring_relation" not in values:
            raise ConfigError(f"state of a {kind.kind!r} filter lacks neighboring_relation: nothing is assumed here.")
        try:
            made = kind(**values)
        except TypeError as error:
            raise ConfigError(f"state of a {kind.kind!r} filter has missing or unknown keys: {error}") from error
        if counts:
            made._restore(counts)
        return made

    def _restore(self, counts: Mapping[str, Any]) -> None:
        spent, admitted = counts.get("spent"), counts.get("admitted")
        good = isinstance(spent, list) and len(spent) == len(self._names)
        good = good and isinstance(admitted, int) and not isinstance(admitted, bool) and 0 <= admitted <= MAX_COUNT
        try:
            amounts = tuple(number(value) for value in spent) if good and spent is not None else ()
        except (TypeError, ValueError, OverflowError):
            good = False
        if not good or any(math.isnan(value) or value < 0 for value in amounts):
            raise invalid(
                "state", shown(dict(counts)), f"one number >= 0 under 'spent' for each of {list(self._names)}"
            )
        if not admitted and any(amounts):
            raise invalid("state", shown(dict(counts)), "'admitted' > 0 where something is spent")
        self._spent, self._admitted = amounts, int(admitted or 0)

    # -- what a subclass gives ------------------------------------------------------------------------------------
    @abstractmethod
    def _price_of(self, event: Event) -> tuple[float, ...]:
        """Amounts of one event, in the order of the names."""

    @abstractmethod
    def _arguments(self) -> dict[str, Any]:
        """The constructor's arguments."""

    def _fits(self, total: Sequence[float]) -> bool:
        return all(_within(value, budget) for value, budget in zip(total, self._budget, strict=True))

    def shortfall(self, event: Event) -> str:
        """What ``event`` needs of each amount, what is spent and what is left, in words."""
        return self._shortfall(self._price_of(event))

    def _shortfall(self, price: Sequence[float]) -> str:
        rows = zip(self._names, price, self._spent, self._budget, strict=True)
        return "; ".join(
            f"{name}: needs {needs:.6g}, {spent:.6g} of {budget:.6g} spent, {max(0.0, budget - spent):.6g} left"
            for name, needs, spent, budget in rows
        )

    def _refusal(self, event: Event, price: Sequence[float]) -> str:
        return (
            f"the {self.kind} filter refuses {event_name(event)!r} ({self._shortfall(price)}). Nothing was used. "
            "Add noise to this release, or stop here; the guarantee is the budget either way."
        )


class PureFilter(PrivacyFilter):
    """Basic composition as a filter: Σεⱼ ≤ ε and Σδⱼ ≤ δ (Rogers, Roth, Ullman & Vadhan 2016, section 4).

    Proof: the product of the likelihood ratios of pure releases is at most e^{Σεⱼ} ≤ e^ε on every transcript; the
    statements' δⱼ are added as in the module's text.  Only pure events and ``EpsilonDelta`` statements have a price; a
    Gaussian enters as ``EpsilonDelta(acc.epsilon(event, delta_j), delta_j)``.
    """

    kind = "pure"

    def __init__(self, epsilon: float, delta: float = 0.0, *, neighboring_relation: str = ADD_REMOVE) -> None:
        epsilon, delta = _budget_of("epsilon", epsilon), check_number("delta", delta, 0.0, 1.0, below=True)
        super().__init__(epsilon, delta, check_relation(neighboring_relation), {"epsilon": epsilon, "delta": delta})

    def _arguments(self) -> dict[str, Any]:
        return {"epsilon": self._epsilon, "delta": self._delta, "neighboring_relation": self.neighboring_relation}

    def _price_of(self, event: Event) -> tuple[float, ...]:
        atoms, delta = _split(event, self.neighboring_relation)
        parts = [count * _pure(atom, self.kind, self.neighboring_relation) for atom, count in atoms.items()]
        return math.fsum(parts), delta


class ApproximateFilter(PrivacyFilter):
    """The (ε, δ) filter with the rate of advanced composition (Whitehouse, Ramdas, Rogers & Wu 2023).

    Admits while √(2·ln(1/δ′)·V) + V/2 ≤ ε with V = Σεⱼ², and Σδⱼ ≤ δ″; the whole is (ε, δ′ + δ″)-DP.  Conditions:
    ε > 0, 0 < δ′ = ``slack`` ≤ δ < 1 (all of δ by default, for pure releases), δ″ = δ − δ′ ≥ 0.  The quadratic in √V
    gives the budget of V in closed form: √V = 2ε/(√a + √(a + 2ε)), a = 2·ln(1/δ′).

    Proof: an εⱼ-DP release has Dα ≤ α·εⱼ²/2 (Bun & Steinke 2016, Proposition 3.3), so the filter is a
    :class:`ZcdpFilter` with ρ = V/2 and the conversion ε = ρ + 2√(ρ·ln(1/δ′)).  The latter class converts more tightly
    and takes Gaussians as they are: prefer it; this one is for interactions that consist of (ε, δ) statements and for
    comparison with the literature.
    """

    kind = "approximate"

    def __init__(
        self, epsilon: float, delta: float, *, slack: float | None = None, neighboring_relation: str = ADD_REMOVE
    ) -> None:
        epsilon = _budget_of("epsilon", epsilon)
        delta = check_number("delta", delta, 0.0, 1.0, above=True, below=True)
        self._slack = delta if slack is None else check_number("slack", slack, ROUNDING * delta, delta, above=True)
        a = -2 * math.log(self._slack - ROUNDING * (delta - self._slack))
        root = 2 * epsilon / (math.sqrt(a) + math.sqrt(a + 2 * epsilon))
        budget = {"sum of squared epsilon": _lowered(root * root), "delta": _difference(delta, self._slack)}
        super().__init__(epsilon, delta, check_relation(neighboring_relation), budget)

    def _arguments(self) -> dict[str, Any]:
        return {
            "epsilon": self._epsilon,
            "delta": self._delta,
            "slack": self._slack,
            "neighboring_relation": self.neighboring_relation,
        }

    def _price_of(self, event: Event) -> tuple[float, ...]:
        atoms, delta = _split(event, self.neighboring_relation)
        parts = [count * _square(_pure(atom, self.kind, self.neighboring_relation)) for atom, count in atoms.items()]
        return math.fsum(parts), delta


class ZcdpFilter(PrivacyFilter):
    """Σρⱼ ≤ ρ: the whole is ρ-zCDP, hence (ε, δ)-DP (Feldman & Zrnic 2021; Whitehouse et al. 2023).

    Proof: S(α) = αΣρⱼ ≤ αρ on every transcript, so Lemma 1 gives Dα(P‖Q) ≤ αρ for each α > 1 separately, which is the
    definition of ρ-zCDP; no order is chosen from the data.  The budget ρ is the largest whose tight conversion stays
    within ε.

    Args:
        epsilon: budget ε; or give ``rho`` and read ε from :meth:`guarantee`.
        delta: the whole δ.
        rho: budget ρ, instead of ``epsilon``.
        statement_delta: the part δ″ of ``delta`` set aside for Σδⱼ of (ε, δ) statements; the conversion has the rest.
    """

    kind = "zcdp"

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float = 0.0,
        *,
        rho: float | None = None,
        statement_delta: float = 0.0,
        neighboring_relation: str = ADD_REMOVE,
    ) -> None:
        if (epsilon is None) == (rho is None):
            raise ConfigError("give exactly one of epsilon and rho: each fixes the other at this delta.")
        delta, left, self._statement_delta = _shares(delta, statement_delta)
        self._given = {"epsilon": epsilon, "rho": rho}
        if rho is not None:
            budget = self._given["rho"] = _budget_of("rho", rho)
            epsilon = zcdp_to_epsilon(budget * (1 + ROUNDING), left)
        else:
            epsilon = self._given["epsilon"] = _budget_of("epsilon", epsilon)
            budget = rho_budget(epsilon, left)
        relation = check_relation(neighboring_relation)
        super().__init__(epsilon, delta, relation, {"rho": budget, "delta": self._statement_delta})

    def _arguments(self) -> dict[str, Any]:
        return {
            **self._given,
            "delta": self._delta,
            "statement_delta": self._statement_delta,
            "neighboring_relation": self.neighboring_relation,
        }

    def _price_of(self, event: Event) -> tuple[float, ...]:
        atoms, delta = _split(event, self.neighboring_relation)
        return api.rho(compose(atoms), neighboring_relation=self.neighboring_relation), delta


class RenyiFilter(PrivacyFilter):
    """A release is admitted while at least one of the ``orders`` stays within its budget: S(α) ≤ B(α).

    B(α) = ε − ln((α−1)/α) + (ln δα + ln α)/(α−1), the tight conversion, with δα = δ′/K for K orders: what the orders
    fail with is shared out among them.  With ONE order (the default) nothing is lost by that.

    Proof.  Let A be an order within its budget at the stop; it may depend on the transcript, ties are broken by the
    list.  The hockey-stick divergence of P from Q at ε is
    E_P[(1 − e^{ε−L})₊] = Σα E_P[(1 − e^{ε−L})₊·1{A = α}] ≤ Σα c(α)·e^{−(α−1)ε}·E_P[e^{(α−1)L}·1{A = α}] (Lemma 2)
    and on {A = α} e^{(α−1)L} ≤ e^{(α−1)(L − S(α))}·e^{(α−1)B(α)}, of expectation ≤ e^{(α−1)B(α)} (Lemma 1).  The sum is
    Σα c(α)·e^{(α−1)(B(α) − ε)} = Σα δα = δ′.

    The split of δ is not an artefact that may be dropped: with the whole δ at every order the argument fails, because
    which order survives is chosen after seeing outputs, and this class makes no such claim.

    Args:
        epsilon, delta: the budget.
        orders: public, fixed beforehand, in (1, 65536]; None takes the one of ``renyi.ORDERS`` that admits the most
            Gaussian noise budget.  For Poisson-sampled releases the order that is best for the planned number of steps
            is better still.
        statement_delta: as for :class:`ZcdpFilter`.
    """

    kind = "renyi"

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        orders: Sequence[float] | None = None,
        statement_delta: float = 0.0,
        neighboring_relation: str = ADD_REMOVE,
    ) -> None:
        epsilon = _budget_of("epsilon", epsilon)
        delta, left, self._statement_delta = _shares(delta, statement_delta)
        self.orders = (best_order(epsilon, left),) if orders is None else _check_orders(orders)
        budgets = [max(0.0, order_budget(order, epsilon, left / len(self.orders))) for order in self.orders]
        if not any(budgets):
            raise ConfigError(
                f"epsilon = {epsilon:g}, delta = {left:g} leave no Rényi budget at any of the orders "
                f"{list(self.orders)}: give larger orders or a larger epsilon."
            )
        names = {f"rdp at order {order!r}": value for order, value in zip(self.orders, budgets, strict=True)}
        relation = check_relation(neighboring_relation)
        super().__init__(epsilon, delta, relation, {**names, "delta": self._statement_delta})

    def _arguments(self) -> dict[str, Any]:
        return {
            "epsilon": self._epsilon,
            "delta": self._delta,
            "orders": list(self.orders),
            "statement_delta": self._statement_delta,
            "neighboring_relation": self.neighboring_relation,
        }

    def _price_of(self, event: Event) -> tuple[float, ...]:
        atoms, delta = _split(event, self.neighboring_relation)
        values = api.rdp(compose(atoms), np.array(self.orders), neighboring_relation=self.neighboring_relation)
        return (*(float(value) for value in values), delta)

    def _fits(self, total: Sequence[float]) -> bool:
        *divergences, delta = zip(total, self._budget, strict=True)
        return _within(*delta) and any(budget > 0 and _within(value, budget) for value, budget in divergences)


FILTERS: dict[str, type[PrivacyFilter]] = {
    kind.kind: kind for kind in (PureFilter, ApproximateFilter, ZcdpFilter, RenyiFilter)
}


class Odometer:
    """A running upper bound on the privacy loss, for display while an interaction goes on without a fixed budget.

    At every moment ε = minα [S(α) + ln(K/δ)/(α−1)] over K fixed orders.  Proof: by Ville's inequality the
    supermartingale of Lemma 1 ever exceeds K/δ with probability at most δ/K, so that with probability 1 − δ, at all
    moments and all orders at once, L ≤ S(α) + ln(K/δ)/(α−1).  It is an odometer in the sense of Rogers et al. 2016.

    What it is not: stopping at a moment chosen by looking at outputs and reporting the number shown then is NOT an
    (ε, δ)-DP guarantee with that ε, because the number itself depends on the data.  A rule that never lets it pass an ε
    fixed beforehand is (ε, δ)-DP; a filter with that ε admits more.

    Args:
        delta: probability, over the whole interaction, that the bound ever fails; 0 < δ < 1.
        orders: public, fixed beforehand; a few that span the sizes to come.
    """

    ORDERS: ClassVar[tuple[float, ...]] = (1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 1024)
    is_guarantee: ClassVar[bool] = False

    def __init__(
        self, delta: float, *, orders: Sequence[float] = ORDERS, neighboring_relation: str = ADD_REMOVE
    ) -> None:
        self.delta = check_number("delta", delta, 0.0, 1.0, above=True, below=True)
        self.orders = _check_orders(orders)
        self.neighboring_relation = check_relation(neighboring_relation)
        self._spent = (0.0,) * len(self.orders)
        self._recorded = 0
        self._lock = threading.Lock()

    def record(self, event: Event) -> None:
        """Count a release; UnsupportedEventError (nothing counted) where it has no Rényi divergence."""
        values = api.rdp(event, np.array(self.orders), neighboring_relation=self.neighboring_relation)
        with self._lock:
            self._spent, self._recorded = _sum(self._spent, values.tolist()), self._recorded + 1

    @property
    def epsilon(self) -> float:
        """The bound now; 0 before the first release that costs anything."""
        with self._lock:
            spent = self._spent
        if not any(spent):
            return 0.0
        fixed = math.log(len(self.orders)) - math.log(self.delta)
        return min(value + fixed / (order - 1) * (1 + 1e-14) for value, order in zip(spent, self.orders, strict=True))

    def state(self) -> dict[str, Any]:
        """Plain JSON values for :meth:`from_state`."""
        with self._lock:
            return {
                "delta": self.delta,
                "orders": list(self.orders),
                "neighboring_relation": self.neighboring_relation,
                "recorded": self._recorded,
                "spent": to_jsonable(list(self._spent)),
            }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Odometer:
        """The odometer behind :meth:`state`; ConfigError for anything else."""
        if not isinstance(state, Mapping):
            raise invalid("state", shown(state), "the state of an odometer: a JSON object")
        try:
            made = cls(state["delta"], orders=state["orders"], neighboring_relation=state["neighboring_relation"])
            spent, recorded = tuple(number(value) for value in state["spent"]), int(state["recorded"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"state is not the state of an odometer: {error!r}") from error
        if len(spent) != len(made.orders) or any(math.isnan(value) or value < 0 for value in spent) or recorded < 0:
            raise invalid("state", shown(dict(state)), "one number >= 0 under 'spent' for each order")
        made._spent, made._recorded = spent, recorded
        return made


def order_budget(order: float, epsilon: float, delta: float) -> float:
    """B(α): the Rényi divergence at ``order`` that is just enough for (ε, δ), rounded down; may be negative.

    B(α) = ε − ln((α−1)/α) + (ln δ + ln α)/(α−1)  (Canonne, Kamath & Steinke 2020, Proposition 12, solved for r).
    """
    t = order - 1
    parts = (epsilon, -math.log1p(-1 / order), math.log(delta) / t, math.log(order) / t)
    return _lowered(math.fsum(parts) - 1e-15 * math.fsum(map(abs, parts)))


def best_order(epsilon: float, delta: float) -> float:
    """The order of ``renyi.ORDERS`` with the largest B(α)/α: what admits the most Gaussian (or zCDP) cost."""
    return max(renyi.ORDERS, key=lambda order: order_budget(order, epsilon, delta) / order)


def rho_budget(epsilon: float, delta: float) -> float:
    """The largest ρ found whose conversion stays within (ε, δ): max over α of B(α)/α, from below.

    Every α gives a valid ρ, so the search (golden section on ln(α − 1)) matters for tightness only.
    """

    def value(log_t: float) -> float:
        order = 1 + math.exp(log_t)
        return order_budget(order, epsilon, delta) / order

    grid = np.linspace(math.log(1e-8), math.log(1e15), 600)
    best = int(np.argmax([value(float(x)) for x in grid]))
    low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])
    shrink = (math.sqrt(5) - 1) / 2
    for _ in range(60):
        left, right = high - shrink * (high - low), low + shrink * (high - low)
        if value(left) < value(right):
            low = left
        else:
            high = right
    found = max(value((low + high) / 2), value(float(grid[best])))
    if found <= 0:
        raise ConfigError(f"epsilon = {epsilon!r}, delta = {delta!r} leave no budget ρ: give a larger epsilon.")
    return found


def _check_orders(orders: object) -> tuple[float, ...]:
    values = check_list("orders", orders, "a sequence of numbers in (1, 65536]")
    checked = tuple(check_number("orders", value, 1.0, MAX_ORDER, above=True) for value in values)
    if not checked or len(set(checked)) != len(checked):
        raise invalid("orders", shown(list(checked)), "one or more different orders")
    return checked


def _budget_of(name: str, value: object) -> float:
    return check_number(name, value, 0.0, MAX_SCALE, above=True)


def _shares(delta: object, statement_delta: object) -> tuple[float, float, float]:
    """(δ, what the conversion has, what statements have)."""
    whole = check_number("delta", delta, 0.0, 1.0, above=True, below=True)
    statements = check_number("statement_delta", statement_delta, 0.0, whole, below=True)
    return whole, _difference(whole, statements * (1 + ROUNDING)), statements


def _difference(whole: float, part: float) -> float:
    """whole − part, rounded down, at least 0 (a subnormal remainder counts as 0)."""
    return max(0.0, math.nextafter(whole - part, -math.inf)) if part else whole


def _lowered(budget: float) -> float:
    return budget - 2 * ROUNDING * abs(budget)


def _square(value: float) -> float:
    return math.nextafter(value * value, math.inf) if value > 0 else 0.0


def _within(value: float, budget: float) -> bool:
    return value <= budget * (1 + ROUNDING)


def _sum(spent: Sequence[float], price: Sequence[float]) -> tuple[float, ...]:
    return tuple(_add_up(a, b) for a, b in zip(spent, price, strict=True))


def _add_up(a: float, b: float) -> float:
    """a + b rounded up: the rounding error of a float sum is itself a float (Knuth's two-sum)."""
    total = a + b
    if math.isinf(total):
        return total
    part = total - a
    error = (a - (total - part)) + (b - part)
    return math.nextafter(total, math.inf) if error > 0 else total


def _split(event: Event, relation: str) -> tuple[dict[Event, int], float]:
    """Atoms with statements (ε, δ) replaced by their ε, and Σδ of the statements."""
    check_event("event", event, "Use from_json for a JSON object.")
    atoms: dict[Event, int] = {}
    deltas = []
    for atom, count in normal_form(event, relation).items():
        if isinstance(atom, EpsilonDelta) and atom.delta > 0:
            deltas.append(count * atom.delta)
            atom = EpsilonDelta(atom.epsilon, 0.0)
        atoms[atom] = atoms.get(atom, 0) + count
    return atoms, math.fsum(deltas)


def _pure(atom: Event, kind: str, relation: str) -> float:
    value = api.epsilon(atom, 0.0, accountant="basic", neighboring_relation=relation)
    if math.isinf(value):
        raise UnsupportedEventError(
            f"the {kind} filter cannot bound event {event_name(atom)!r} under {relation}: it has no pure ε. State it "
            "as EpsilonDelta(acc.epsilon(event, delta_j), delta_j), or use a zcdp or renyi filter."
        )
    return value
