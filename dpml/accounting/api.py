"""The accounting interface: one function per question, the accountant by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from dpml.accounting import advanced, composition, exact, gdp, optimal, pld, renyi, zcdp
from dpml.accounting.checks import ACCOUNTANTS as ACCOUNTANTS
from dpml.accounting.checks import ADD_REMOVE, check_number, check_one_of, check_relation
from dpml.accounting.conversions import check_array
from dpml.accounting.events import Event, Group, SelfComposed, check_event
from dpml.accounting.normal_form import normal_form
from dpml.errors import UnsupportedEventError

_MODULES: dict[str, ModuleType] = {
    "exact": exact,
    "pld": pld,
    "rdp": renyi,
    "zcdp": zcdp,
    "gdp": gdp,
    "optimal": optimal,
    "advanced": advanced,
    "basic": composition,
}
_SMALLEST = 5e-324


@dataclass(frozen=True)
class Interval:
    """ε_low ≤ smallest ε ≤ ε_high, and the accountant that proved the upper end."""

    low: float
    high: float
    accountant: str

    @property
    def width(self) -> float:
        """high − low; 0 where both are infinite."""
        return 0.0 if self.low == self.high else self.high - self.low


def epsilon(event: Event, delta: float, *, accountant: str = "best", neighboring_relation: str = ADD_REMOVE) -> float:
    """An upper bound on the smallest ε for which ``event`` is (ε, δ)-DP.

    Args:
        event: what was released.
        delta: δ in [0, 1).  At δ = 0 only pure parts have a finite answer.
        accountant: one of :data:`ACCOUNTANTS`; ``"best"`` takes the smallest sound value.
        neighboring_relation: ``"add_remove"`` or ``"replace_one"``.

    Returns:
        ε ≥ 0 in natural log units; ``inf`` where no finite ε holds (no noise, say).

    Raises:
        ConfigError: an argument out of range.
        UnsupportedEventError: the accountant cannot bound the event; both are named.

    >>> from dpml import accounting as acc
    >>> acc.epsilon(acc.Laplace(2.0), delta=0.0)  # noise of scale 2 on sensitivity 1
    0.5
    >>> round(acc.epsilon(acc.Gaussian(1.0), delta=1e-5), 3)
    4.377
    """
    delta = check_number("delta", delta, 0.0, 1.0, below=True)
    check_relation(neighboring_relation)
    _check(event, accountant)
    if accountant == "best":
        return _best(event, delta, neighboring_relation)[0]
    value = float(_MODULES[accountant].epsilon(event, delta, neighboring_relation)) if delta > 0 else math.inf
    if delta == 0:
        value = composition.pure_epsilon(event, neighboring_relation)
    return max(0.0, value)


def delta(event: Event, epsilon: float, *, accountant: str = "best", neighboring_relation: str = ADD_REMOVE) -> float:
    """An upper bound on the smallest δ for which ``event`` is (ε, δ)-DP; arguments and errors as :func:`epsilon`.

    >>> from dpml import accounting as acc
    >>> round(acc.delta(acc.Gaussian(1.0), epsilon=1.0), 4)  # Φ(-1/2) - e Φ(-3/2)
    0.1269
    """
    epsilon = check_number("epsilon", epsilon, 0.0)
    check_relation(neighboring_relation)
    _check(event, accountant)
    if accountant == "best":
        value = _or_group(event, composition.best_delta, "group_delta", epsilon, neighboring_relation)[0]
    else:
        value = float(_MODULES[accountant].delta(event, epsilon, neighboring_relation))
    if composition.pure_epsilon(event, neighboring_relation) <= epsilon:
        return 0.0
    return min(1.0, max(_SMALLEST, value))  # δ = 0 is pure; anything else that small is rounded up


def interval(event: Event, delta: float, *, neighboring_relation: str = ADD_REMOVE) -> Interval:
    """A certified interval around the smallest ε for which ``event`` is (ε, δ)-DP; arguments and errors as
    :func:`epsilon`.

    The upper end is what ``best`` reports.  The lower end is proved too: by the exact accountant on the whole event, or
    else on the parts that it serves (a composition is never more private than its parts).  Both are about the worst
    pair of data sets that the event's description allows.

    >>> from dpml import accounting as acc
    >>> found = acc.interval(acc.SelfComposed(acc.Gaussian(2.0), 4), delta=1e-5)
    >>> round(found.low, 3), round(found.high, 3)  # μ = √(4/2²) = 1
    (4.377, 4.377)
    """
    high, name = best(event, delta, neighboring_relation=neighboring_relation)
    if delta == 0 or high == 0:
        return Interval(high, high, name)
    low = 0.0
    if exact.only_upper(event):
        return Interval(low, high, name)
    try:
        low = exact.interval(event, delta, neighboring_relation)[0]
    except UnsupportedEventError:
        for atom, count in normal_form(event, neighboring_relation).items():
            try:
                low = max(low, exact.interval(SelfComposed(atom, count), delta, neighboring_relation)[0])
            except UnsupportedEventError:
                continue
    return Interval(min(low, high), high, name)


def best(event: Event, delta: float, *, neighboring_relation: str = ADD_REMOVE) -> tuple[float, str]:
    """The smallest sound ε(δ) and the name of the accountant that proved it."""
    delta = check_number("delta", delta, 0.0, 1.0, below=True)
    check_relation(neighboring_relation)
    _check(event, "best")
    return _best(event, delta, neighboring_relation)


def _best(event: Event, delta: float, relation: str) -> tuple[float, str]:
    if delta == 0:
        return composition.pure_epsilon(event, relation), "basic"
    value, name = _or_group(event, composition.best_epsilon, "group_epsilon", delta, relation)
    pure = composition.pure_epsilon(event, relation)
    return (pure, "basic") if pure < value else (max(0.0, value), name)


def _or_group(event: Event, bound: Callable, chained: str, value: float, relation: str) -> tuple[float, str]:
    """``bound``; for a group that no accountant serves as such, the chain through its members (``groups``)."""
    try:
        return bound(event, value, relation)
    except UnsupportedEventError:
        if not isinstance(event, Group):
            raise
        from dpml.accounting import groups

        return getattr(groups, chained)(event.event, value, event.size, neighboring_relation=relation), "group"


def rdp(event: Event, orders: np.ndarray, *, neighboring_relation: str = ADD_REMOVE) -> np.ndarray:
    """Rényi divergence (larger of both directions) at each order > 1, shape as ``orders``.

    >>> from dpml import accounting as acc
    >>> acc.rdp(acc.Gaussian(1.0), np.array([2.0, 10.0])).tolist()  # order/2
    [1.0, 5.0]
    """
    check_relation(neighboring_relation)
    _check(event, "rdp")
    return renyi.rdp(event, check_array("orders", orders, "finite numbers > 1"), neighboring_relation)


def rho(event: Event, *, neighboring_relation: str = ADD_REMOVE) -> float:
    """ρ of zero-concentrated DP; Poisson sampling does not amplify it.

    >>> from dpml import accounting as acc
    >>> acc.rho(acc.SelfComposed(acc.Gaussian(2.0), 4))  # 4/(2·2²)
    0.5
    """
    check_relation(neighboring_relation)
    _check(event, "zcdp")
    return zcdp.rho(event, neighboring_relation)


def _check(event: Event, accountant: str) -> None:
    check_event("event", event, "Use from_json for a JSON object.")
    check_one_of("accountant", accountant, ACCOUNTANTS)
