"""The smallest noise, or the largest number of steps, within a budget.

Every answer is checked again with the accountant that will report it: the returned noise multiplier (or count) itself
was seen to meet (ε, δ), so no rounding can put the result above the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpml.accounting import api
from dpml.accounting.conversions import find_root
from dpml.accounting.events import ADD_REMOVE, Event, check_number, check_relation
from dpml.errors import AccountingError

LARGEST_NOISE = 1e9
SMALLEST_NOISE = 1e-4
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-6, 1e4
_TOLERANCE = 3e-5


def calibrate(
    make_event: Callable[[float], Event],
    *,
    epsilon: float,
    delta: float,
    accountant: str = "best",
    neighboring_relation: str = ADD_REMOVE,
) -> float:
    """Smallest noise multiplier (to 1e-4 relative, on the large side) whose event is (ε, δ)-DP.

    ``make_event`` maps a noise multiplier to the event of the whole run; its ε must not grow with the noise.  Raises
    AccountingError when no noise multiplier up to 1e9 is enough, ConfigError for ε outside [1e-6, 1e4] or δ outside
    [0, 1).
    """
    epsilon = check_number("epsilon", epsilon, SMALLEST_EPSILON, LARGEST_EPSILON)
    delta = check_number("delta", delta, 0.0, 1.0, below=True)
    check_relation(neighboring_relation)

    def excess(log_noise: float) -> float:
        value = api.epsilon(
            make_event(math.exp(log_noise)), delta, accountant=accountant, neighboring_relation=neighboring_relation
        )
        if value == 0:
            return -50.0
        return math.log(value / epsilon) if math.isfinite(value) else 50.0

    low, high = _bracket(excess, epsilon, delta)
    if low is None:
        return math.exp(high)
    found = find_root(excess, low, high, xtol=_TOLERANCE / 2, rtol=1e-14)
    step = 0.0
    while found + step < high:
        if excess(found + step) <= 0:
            return math.exp(found + step)
        step = 2 * step if step else _TOLERANCE / 2
    return math.exp(high)


def _bracket(excess: Callable[[float], float], epsilon: float, delta: float) -> tuple[float | None, float]:
    """Logs of a noise that is too small (None: even the smallest is enough) and of one that is enough."""
    guess = math.sqrt(max(-2 * math.log(delta), 1.0)) / epsilon if delta > 0 else 1 / epsilon
    point = math.log(min(max(guess, 0.3), 1e4))
    if excess(point) <= 0:
        high = point
        while high > math.log(SMALLEST_NOISE):
            low = high - math.log(2)
            if excess(low) > 0:
                return low, high
            high = low
        return None, high
    low = point
    while low < math.log(LARGEST_NOISE):
        high = low + math.log(2)
        if excess(high) <= 0:
            return low, high
        low = high
    raise AccountingError(
        f"no noise multiplier up to {LARGEST_NOISE:g} reaches epsilon = {epsilon!r} at delta = {delta!r}: a part of "
        "the event costs that much whatever the noise. Raise epsilon or delta, or drop the part."
    )


def calibrate_steps(
    make_event: Callable[[int], Event],
    *,
    epsilon: float,
    delta: float,
    accountant: str = "best",
    neighboring_relation: str = ADD_REMOVE,
    limit: int = 10**9,
) -> int:
    """Largest count within the budget (0 if not even one step fits, ``limit`` if all fit); ε must not fall with it."""
    epsilon = check_number("epsilon", epsilon, 0.0)
    delta = check_number("delta", delta, 0.0, 1.0, below=True)
    check_relation(neighboring_relation)

    def fits(count: int) -> bool:
        value = api.epsilon(make_event(count), delta, accountant=accountant, neighboring_relation=neighboring_relation)
        return value <= epsilon

    low, high = 0, 1
    while fits(high):
        low = high
        if low >= limit:
            return limit
        high = min(4 * high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
