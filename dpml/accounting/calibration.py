"""Calibration: the smallest noise, or the most steps, epochs, records per group or sampling, within a budget.

Every answer was itself seen to meet the target, by the accountant that will report it: noise is rounded up, everything
else down, and no rounding can put a result above the budget.

**What has to hold.**  ε (or the attacker's success) must not grow with the noise, and not fall with the number of
steps, the sampling rate or the size of a group.  That is so for every event here whose other parts stay as they are: a
release with less noise, with more steps or on a larger sample can be degraded to the one with more noise, fewer steps
or a smaller sample without looking at the data.  Where ``make_event`` breaks the rule the answer is still within
the target, but it need not be the best one.

**How it is found.**  A safeguarded secant on the logarithms.  It starts from the central limit of sampled Gaussians
where there is one, which is never reported: it can be below the true ε and only saves time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpml.accounting import api
from dpml.accounting.api import ACCOUNTANTS
from dpml.accounting.checks import (
    ADD_REMOVE,
    REPLACE_ONE,
    check_count,
    check_number,
    check_one_of,
    check_relation,
    shown,
)
from dpml.accounting.conversions import gaussian_log_delta
from dpml.accounting.events import Event, Gaussian, Group, PoissonSampled, check_event
from dpml.accounting.normal_form import effective, normal_form
from dpml.errors import AccountingError, ConfigError, DpmlError, UnsupportedEventError, invalid

LARGEST_NOISE = 1e9
SMALLEST_NOISE = 1e-4
SMALLEST_RATE = 1e-12
LARGEST_GROUP = 10**6
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-6, 1e4
_TOLERANCE = 1e-4  # of the logarithm of the answer
_LONGEST_JUMP = 3.0  # of the logarithm
_NEAR = 0.2  # points whose secant says how far a third one is from the root
_PATIENCE = 8  # turns before the interval is halved by force
_TURNS = 500


def calibrate(
    make_event: Callable[[float], Event],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
    accountant: str = "best",
    neighboring_relation: str = ADD_REMOVE,
) -> float:
    """Smallest noise multiplier (to 1e-4 relative, on the large side) whose event meets the target.

    Give exactly one target:

    - ``epsilon`` in [1e-6, 1e4] with ``delta`` in [0, 1): the event is (ε, δ)-DP;
    - ``advantage`` in (0, 1): no attacker has a larger true-positive minus false-positive rate;
    - ``tpr`` with ``fpr``, 0 < fpr < tpr < 1: no attacker with the false-positive rate ``fpr`` finds more members.

    ``make_event`` maps a noise multiplier to the event of the whole run.  It may be a composition of many parts with
    different noise (``base · noise`` for each part of a schedule, say) and may have parts that ignore the noise.

    Raises:
        AccountingError: no noise multiplier up to 1e9 is enough.
        ConfigError: none or several targets, or one out of range.
        UnsupportedEventError: the accountant cannot bound the event.
    """
    make_event = check_maker(make_event)
    _check_target(epsilon, delta, advantage, tpr, fpr, accountant)
    relation = check_relation(neighboring_relation)
    if epsilon is None:
        from dpml.accounting import tradeoffs

        if advantage is not None:
            return tradeoffs.calibrate_to_advantage(make_event, advantage, neighboring_relation=relation)
        assert tpr is not None
        assert fpr is not None
        return tradeoffs.calibrate_to_tpr(make_event, tpr, fpr, neighboring_relation=relation)
    epsilon = check_number("epsilon", epsilon, SMALLEST_EPSILON, LARGEST_EPSILON)
    delta = check_number("delta", delta, 0.0, 1.0, below=True)
    budget = _Budget(epsilon, delta, accountant, relation)
    found = _smallest(
        lambda x: budget.excess(make_event(math.exp(x))),
        _noise_start(make_event, budget),
        math.log(SMALLEST_NOISE),
        math.log(LARGEST_NOISE),
    )
    if math.isinf(found):
        raise AccountingError(
            f"no noise multiplier up to {LARGEST_NOISE:g} reaches epsilon = {epsilon!r} at delta = {delta!r}: a part "
            "of the event costs that much whatever the noise. Raise epsilon or delta, or drop the part."
        )
    return math.exp(found)


def calibrate_sample_rate(
    make_event: Callable[[float], Event],
    *,
    epsilon: float,
    delta: float,
    accountant: str = "best",
    neighboring_relation: str = ADD_REMOVE,
) -> float:
    """Largest Poisson sampling probability (to 1e-4 relative, on the small side) whose event is (ε, δ)-DP.

    ``make_event`` maps a probability in (0, 1] to the event of the whole run; ε must not fall with it.  1.0 if all of
    the data can be used in every step, 0.0 if not even a probability of 1e-12 fits.  With n records and batches of
    B = q·n the largest expected batch is the answer times n.  Errors as :func:`calibrate`.
    """
    make_event = check_maker(make_event)
    budget = _budget(epsilon, delta, accountant, neighboring_relation)
    if _over_without_sampling(make_event, budget):
        return 0.0
    start = _rate_start(make_event, budget)
    ceiling = -math.log(SMALLEST_RATE)
    found = _smallest(lambda x: budget.excess(make_event(math.exp(-x))), start, 0.0, ceiling)
    return 0.0 if math.isinf(found) else math.exp(-found)


def _over_without_sampling(make_event: Callable[[float], Event], budget: _Budget) -> bool:
    """Whether the parts that are not sampled cost too much already; False where there is no event of rate 0."""
    try:
        return budget.excess(make_event(0.0)) > 0
    except DpmlError:
        return False


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
    make_event = check_maker(make_event)
    budget = _budget(epsilon, delta, accountant, neighboring_relation)
    limit = check_count("limit", limit, 1)
    log_start = _count_start(make_event, budget, growth=0.5)
    return _largest(lambda count: budget.excess(make_event(count)), log_start, limit)


@dataclass(frozen=True)
class Epochs:
    """Whole steps, and what they are in epochs = steps · sample_rate: expected passes over the data."""

    steps: int
    epochs: float


def calibrate_epochs(
    make_event: Callable[[int], Event],
    sample_rate: float,
    *,
    epsilon: float,
    delta: float,
    accountant: str = "best",
    neighboring_relation: str = ADD_REMOVE,
    limit: int = 10**9,
) -> Epochs:
    """The most whole steps within the budget and the epochs that they make; ``make_event`` maps a count of steps.

    ``sample_rate`` in (0, 1] is the Poisson probability that ``make_event`` uses.  An epoch is 1/sample_rate steps,
    which need not be a whole number: steps are what is counted and paid for.  Otherwise as :func:`calibrate_steps`.
    """
    make_event = check_maker(make_event)
    rate = check_number("sample_rate", sample_rate, 0.0, 1.0, above=True)
    steps = calibrate_steps(
        make_event,
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        neighboring_relation=neighboring_relation,
        limit=limit,
    )
    return Epochs(steps, steps * rate)


def calibrate_group_size(
    event: Event,
    *,
    epsilon: float,
    delta: float,
    accountant: str = "best",
    neighboring_relation: str = ADD_REMOVE,
    limit: int = LARGEST_GROUP,
) -> int:
    """Largest number of records that are protected together: the k for which the event is (ε, δ)-DP for groups of k.

    0 if not even one record is, ``limit`` if the guarantee holds for all group sizes up to it.  ε is that of
    ``Group(event, k)``, or :func:`dpml.accounting.groups.group_epsilon` where the accountant does not know the group's
    pair.  Errors as :func:`calibrate_steps`.
    """
    check_event("event", event, "Use from_json for a JSON object.")
    budget = _budget(epsilon, delta, accountant, neighboring_relation)
    limit = check_count("limit", limit, 1)
    log_start = _count_start(lambda size: Group(event, size), budget, growth=1.0)

    def excess(size: int) -> float:
        options = {"accountant": accountant, "neighboring_relation": budget.relation}
        try:
            return _over(epsilon_of_group(event, size, budget.delta, **options), budget.epsilon)
        except ConfigError:
            if size == 1:
                raise
            return math.inf  # a group so large that its event is out of range

    return _largest(excess, log_start, limit)


def epsilon_of_group(
    event: Event, size: int, delta: float, *, accountant: str = "best", neighboring_relation: str = ADD_REMOVE
) -> float:
    """ε(δ) for groups of ``size`` records, as :func:`calibrate_group_size` judges it; ``inf`` where none is found."""
    from dpml.accounting import groups

    options = {"accountant": accountant, "neighboring_relation": neighboring_relation}
    if size == 1:
        return api.epsilon(event, delta, **options)
    try:
        return api.epsilon(Group(event, size), delta, **options)
    except UnsupportedEventError:
        return groups.group_epsilon(event, delta, size, **options)


# ------------------------------------------------------------------------------------------------------- targets


@dataclass(frozen=True)
class _Budget:
    """The target, and who judges it."""

    epsilon: float
    delta: float
    accountant: str
    relation: str

    def excess(self, event: Event) -> float:
        """ln(ε ÷ budget): ≤ 0 exactly where ε is within the budget, ∓∞ where a side is 0 or infinite."""
        value = api.epsilon(event, self.delta, accountant=self.accountant, neighboring_relation=self.relation)
        return _over(value, self.epsilon)


def _over(value: float, target: float) -> float:
    if value <= target:
        return math.log(value / target) if value > 0 else -math.inf
    return max(math.log(value / target), 1e-300) if target > 0 and math.isfinite(value) else math.inf


def check_maker(make_event: object) -> Callable[[Any], Event]:
    """The function from a number to an event, refusing by name whatever else it returns; and what is no function."""
    if not callable(make_event):
        raise invalid("make_event", shown(make_event), "a function from a number to an event of dpml.accounting")
    function = make_event

    def make(value: float) -> Event:
        return check_event(f"make_event({value!r})", function(value))

    return make


def _budget(epsilon: float, delta: float, accountant: str, neighboring_relation: str) -> _Budget:
    epsilon = check_number("epsilon", epsilon, 0.0)
    delta = check_number("delta", delta, 0.0, 1.0, below=True)
    check_one_of("accountant", accountant, ACCOUNTANTS)
    return _Budget(epsilon, delta, accountant, check_relation(neighboring_relation))


def _check_target(
    epsilon: float | None,
    delta: float | None,
    advantage: float | None,
    tpr: float | None,
    fpr: float | None,
    accountant: str,
) -> None:
    check_one_of("accountant", accountant, ACCOUNTANTS)
    given = {"epsilon": epsilon, "advantage": advantage, "tpr": tpr}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise ConfigError(
            f"the target of calibrate() is given by {named or 'nothing'}: give exactly one of epsilon (with delta), "
            "advantage, or tpr (with fpr)."
        )
    for first, second, value in (("epsilon", "delta", delta), ("tpr", "fpr", fpr)):
        if (named == [first]) != (value is not None):
            raise ConfigError(
                f"{second} = {shown(value)!r} is not allowed with the target {named[0]!r}: {first} and {second} "
                "go together."
            )
    if epsilon is None and accountant != "best":
        raise ConfigError(
            f"accountant = {accountant!r} is not allowed with the target {named[0]!r}: what an attacker can reach is "
            "bounded by accountant='best'."
        )


# ------------------------------------------------------------------------------------------------ where to start


@dataclass(frozen=True)
class _Start:
    """A first point, the slope of ``excess`` there, and whether that slope is worth a judgement."""

    point: float
    slope: float
    known: bool


def _noise_start(make_event: Callable[[float], Event], budget: _Budget) -> _Start:
    guess = -_log_mu(budget)  # of one unsampled Gaussian

    def limit(x: float) -> float | None:
        return _log_limit(make_event, math.exp(x), budget)

    return _solved(limit, guess, _log_mu(budget), (math.log(SMALLEST_NOISE), math.log(LARGEST_NOISE)))


def _rate_start(make_event: Callable[[float], Event], budget: _Budget) -> _Start:
    def limit(x: float) -> float | None:
        return _log_limit(make_event, math.exp(-x), budget)

    return _solved(limit, math.log(100.0), _log_mu(budget), (0.0, -math.log(SMALLEST_RATE)))


def _solved(limit: Callable[[float], float | None], guess: float, target: float, ends: tuple[float, float]) -> _Start:
    """Where the limit's ln μ is the target's; the guess with slope −1 where the event has no such limit."""
    guess = min(max(guess, ends[0]), ends[1])
    if limit(guess) is None or not math.isfinite(target):
        return _Start(guess, -1.0, known=False)

    def excess(x: float) -> float:
        value = limit(x)
        return math.inf if value is None else value - target

    point = _smallest(excess, _Start(guess, -1.0, known=False), *ends, tolerance=1e-5)
    if not math.isfinite(point):
        return _Start(guess, -1.0, known=False)
    slope = (excess(point + 1e-3) - excess(point)) / 1e-3
    known = math.isfinite(slope) and slope < -0.1
    return _Start(point + _TOLERANCE / 4, slope if known else -1.0, known=known)


def _count_start(make_event: Callable[[int], Event], budget: _Budget, growth: float) -> float:
    """ln of the count at which the limit's μ = μ(1)·count^growth is the target's; 0 without a limit."""
    first = _log_limit(make_event, 1, budget)
    if first is None or not math.isfinite(_log_mu(budget)) or not math.isfinite(first):
        return 0.0
    return max(0.0, (_log_mu(budget) - first) / growth)


def _log_limit(make_event: Callable, value: float, budget: _Budget) -> float | None:
    """ln μ of the central limit of (sampled) Gaussians, μ² = Σ Tⱼqⱼ²(e^{1/σⱼ²} − 1) (Bu et al. 2020, section 3).

    None for other events, and where the event cannot be made: the search itself then says why.
    """
    square = 0.0
    try:
        atoms = normal_form(make_event(value), budget.relation)
    except DpmlError:
        return None
    for atom, count in atoms.items():
        inner = atom.event if isinstance(atom, PoissonSampled) else atom
        if not isinstance(inner, Gaussian) or inner.noise_multiplier < 1e-150:
            return None
        if isinstance(atom, PoissonSampled):
            growth = math.expm1(min(inner.noise_multiplier**-2, 700.0))
            twice = 2 if budget.relation == REPLACE_ONE else 1
            square += twice * count * atom.sampling_probability**2 * growth
        else:
            square += count * effective(inner.noise_multiplier, budget.relation) ** -2
    return math.log(square) / 2 if 0 < square < math.inf else None


def _log_mu(budget: _Budget) -> float:
    """ln of the μ with which a Gaussian is just (ε, δ)-DP, roughly; at δ = 0 or ε = 0 ln ε or −∞."""
    if budget.delta == 0 or budget.epsilon == 0:
        return math.log(budget.epsilon) if budget.epsilon > 0 else -math.inf
    target = math.log(budget.delta)

    def excess(x: float) -> float:
        return (gaussian_log_delta(budget.epsilon, math.exp(-x)) - target) / 10

    guess = math.log(math.sqrt(max(-2 * target, 1.0)) / budget.epsilon)
    return -_smallest(excess, _Start(guess, -1.0, known=False), -60.0, 60.0, tolerance=1e-6)


# ----------------------------------------------------------------------------------------------------- searches


def _smallest(
    excess: Callable[[float], float], start: _Start, floor: float, ceiling: float, *, tolerance: float = _TOLERANCE
) -> float:
    """The smallest point of [floor, ceiling] with ``excess`` ≤ 0, to ``tolerance`` from above; ∞ where there is none.

    ``excess`` does not grow.  The answer was seen to hold.
    """
    low, high = -math.inf, math.inf  # seen: excess > 0 at low, ≤ 0 at high
    x, slope, known = min(max(start.point, floor), ceiling), start.slope, start.known
    before: tuple[float, float] | None = None
    width, reach = math.inf, 0.5
    for turn in range(_TURNS):
        value = excess(x)
        low, high = (x, high) if value > 0 else (low, x)
        if before is not None and math.isfinite(value) and math.isfinite(before[1]):
            secant = (value - before[1]) / (x - before[0])
            if secant < 0:
                slope, known = secant, abs(x - before[0]) <= _NEAR
        if low >= ceiling:
            return math.inf
        if high <= floor or high - low <= tolerance:
            return high
        if known and value <= 0 and -value <= -slope * tolerance / 2:
            return high
        before = (x, value)
        x = _proposal(x, value, slope, tolerance / 4)
        if value <= 0 and abs(x - high) <= tolerance / 2:  # as good as there: see whether a little less fails
            x = high - 0.9 * tolerance
        stuck = turn >= _PATIENCE and high - low > width / 2
        width = high - low
        if math.isfinite(width):
            if stuck or not low < x < high:
                x = (low + high) / 2
        elif not low < x < high or not math.isfinite(value):
            x, reach = (low + reach if math.isinf(high) else high - reach), 2 * reach
        x = min(max(x, floor), ceiling)
    return high


def _proposal(x: float, value: float, slope: float, margin: float) -> float:
    """The root by ``slope``, plus ``margin`` to land where excess ≤ 0; a jump is never very long."""
    if not math.isfinite(value):
        return math.nan
    return x + min(max(-value / slope + margin, -_LONGEST_JUMP), _LONGEST_JUMP)


def _largest(excess: Callable[[int], float], log_start: float, limit: int) -> int:
    """The largest count of [1, limit] with ``excess`` ≤ 0, 0 if there is none; ``excess`` does not fall.

    Secant on ln(count), inside an interval that ends when its ends are neighbours.
    """
    low, high = 0, limit + 1  # seen, or by definition: low fits, high does not
    count = min(max(round(math.exp(min(log_start, math.log(limit)))), 1), limit)
    before: tuple[int, float] | None = None
    slope, reach, width = 0.75, 2, math.inf
    for turn in range(_TURNS):
        value = excess(count)
        low, high = (low, count) if value > 0 else (count, high)
        if high - low == 1:
            return low
        if before is not None and before[0] != count and math.isfinite(value) and math.isfinite(before[1]):
            secant = (value - before[1]) / math.log(count / before[0])
            slope = secant if secant > 0 else slope
        before = (count, value)
        stuck = turn >= _PATIENCE and high - low > width / 2
        width = high - low
        if stuck:
            # halve what is still open, on the scale on which it is wide
            count = round(math.sqrt(max(low, 1) * high)) if high > 8 * max(low, 1) else (low + high) // 2
        elif math.isfinite(value):
            count = math.floor(count * math.exp(min(max(-value / slope, -_LONGEST_JUMP), _LONGEST_JUMP)))
        else:
            count, reach = (count * reach if value < 0 else count // reach), reach * reach
        count = min(max(count, low + 1), high - 1)
    return low
