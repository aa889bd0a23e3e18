"""Group privacy: what a guarantee per record is worth for k records that come or change together.

Every rule below walks through k neighbours, so that it holds under the relation of the guarantee that goes in: k
records added or removed, or k replaced.  ``size`` is k ≥ 1, a public bound.  Results are rounded up.
"""

from __future__ import annotations

import math

from dpml.accounting.conversions import UP, find_root, zcdp_to_delta, zcdp_to_epsilon
from dpml.accounting.events import (
    ADD_REMOVE,
    Event,
    Group,
    check_count,
    check_number,
    check_relation,
)
from dpml.errors import UnsupportedEventError, invalid
from dpml.results import Guarantee

STATEMENT_FORMS = ("sharp", "standard", "loose")
_LARGEST_EPSILON = 1e6  # per record; the search for a group's ε ends there
_FACTORS = (1.0, 1.0002, 1.004, 1.03, 1.125, 1.25, 1.5, 2.0)


def pure_group(epsilon: float, size: int) -> float:
    """k·ε: the group's ε of an ε-DP mechanism  (Dwork & Roth 2014, Theorem 2.2)."""
    return check_count("size", size, 1) * check_number("epsilon", epsilon, 0.0) * UP


def statement_group(epsilon: float, delta: float, size: int, *, form: str = "sharp") -> tuple[float, float]:
    """(k·ε, δ_k) of an (ε, δ)-DP mechanism, δ_k at most 1.

    P₀(S) ≤ e^ε P₁(S) + δ ≤ … ≤ e^{kε} P_k(S) + δ·Σ_{i<k} e^{iε}, hence

    - ``"sharp"``: δ_k = δ·(e^{kε} − 1)/(e^ε − 1), the sum itself;
    - ``"standard"``: k·e^{(k−1)ε}·δ  (Vadhan 2017, Lemma 2.2);
    - ``"loose"``: k·e^{kε}·δ.
    """
    size, epsilon = check_count("size", size, 1), check_number("epsilon", epsilon, 0.0)
    delta = check_number("delta", delta, 0.0, 1.0)
    if form not in STATEMENT_FORMS:
        raise invalid("form", form, f"one of {list(STATEMENT_FORMS)}")
    group = epsilon if size == 1 else pure_group(epsilon, size)
    if delta == 0 or (size == 1 and form != "loose"):
        return group, delta
    if form == "sharp":
        log_factor = _log_factor(epsilon, size)
    else:
        log_factor = math.log(size) + (size - 1 if form == "standard" else size) * epsilon
    return group, _product(delta, log_factor)


def rdp_group(order: float, value: float, size: int) -> tuple[float, float]:
    """(α/k, 3^c·r) for k = 2^c of a mechanism with D_α ≤ r at an order α ≥ 2k  (Mironov 2017, Proposition 2).

    Raises:
        ConfigError: ``size`` is not a power of two, or the order is below 2·size.
    """
    size = check_count("size", size, 1)
    if size & (size - 1):
        raise invalid("size", size, "a power of 2", "Round it up to the next one.")
    order = check_number("order", order, 1.0, above=True)
    if size > 1 and order < 2 * size:
        raise invalid("order", order, f"at least 2·size = {2 * size}")
    value = check_number("value", value, 0.0)
    return order / size, value * 3 ** (size.bit_length() - 1) * (UP if size > 1 else 1.0)


def zcdp_group(rho: float, size: int) -> float:
    """k²·ρ  (Bun & Steinke 2016, Proposition 1.9)."""
    size = check_count("size", size, 1)
    return size * size * check_number("rho", rho, 0.0) * UP


def gdp_group(mu: float, size: int) -> float:
    """k·μ  (Dong, Roth & Su 2022, Theorem 2.14 at Gaussian trade-off functions)."""
    return check_count("size", size, 1) * check_number("mu", mu, 0.0) * UP


def group_delta(
    event: Event, epsilon: float, size: int, *, accountant: str = "best", neighboring_relation: str = ADD_REMOVE
) -> float:
    """An upper bound on δ at ε ≥ 0 for groups of ``size`` records, of any event that the accountant bounds.

    The smallest of these bounds.  From the privacy profile: δ_k(k·e) ≤ δ(e)·(e^{ke} − 1)/(e^e − 1) at e = ε/k
    (:func:`statement_group` at that point of the profile).  Where every part has a closed form for groups (noise on a
    sum, (ε, δ), ρ, μ), the accountant's own answer for the event of those parts.  For the accountants ``zcdp`` and
    ``best``, k²ρ.

    Raises:
        ConfigError: an argument out of range.
        UnsupportedEventError: the accountant cannot bound the event.
    """
    from dpml.accounting import api

    epsilon, size = check_number("epsilon", epsilon, 0.0), check_count("size", size, 1)
    check_relation(neighboring_relation)
    options = {"accountant": accountant, "neighboring_relation": neighboring_relation}
    if size == 1:
        return api.delta(event, epsilon, **options)
    share = epsilon / size
    while share > 0 and share * size * (1 + 1e-15) > epsilon:
        share = math.nextafter(share, 0.0) * (1 - 1e-16)
    held = api.delta(event, share, **options)
    found = _product(held, _log_factor(share, size)) if held > 0 else 0.0
    rho = _group_rho(event, size, accountant, neighboring_relation)
    return min(found, zcdp_to_delta(rho, epsilon), _direct(event, size, "delta", epsilon, options))


def group_epsilon(
    event: Event, delta: float, size: int, *, accountant: str = "best", neighboring_relation: str = ADD_REMOVE
) -> float:
    """An upper bound on ε at δ in [0, 1) for groups of ``size`` records; ``inf`` where none is found.

    The bounds of :func:`group_delta`, solved for ε: a search whose answer was seen to hold.  Errors as there.
    """
    from dpml.accounting import api

    delta, size = check_number("delta", delta, 0.0, 1.0, below=True), check_count("size", size, 1)
    check_relation(neighboring_relation)
    options = {"accountant": accountant, "neighboring_relation": neighboring_relation}
    single = api.epsilon(event, delta, **options)
    if size == 1 or single == 0 == delta:
        return single
    if delta == 0:
        return pure_group(single, size) if math.isfinite(single) else math.inf
    target = math.log(delta)

    def excess(share: float) -> float:
        held = api.delta(event, share, **options)
        return max(-800.0, math.log(held) + _log_factor(share, size) - target + 1e-12) if held > 0 else -800.0

    direct = _direct(event, size, "epsilon", delta, options)
    if math.isfinite(direct):
        return direct  # the group's own pair: chaining through its members cannot be better by more than rounding
    found = math.inf
    if math.isfinite(single):
        found = _smallest(excess, single) * size * UP
    rho = _group_rho(event, size, accountant, neighboring_relation)
    return min(found, direct, zcdp_to_epsilon(rho, delta))


def user_level(
    event: Event,
    delta: float,
    records_per_user: int,
    *,
    accountant: str = "best",
    neighboring_relation: str = ADD_REMOVE,
) -> Guarantee:
    """The guarantee for users instead of records: :func:`group_epsilon` at a public bound on the records of one user.

    Under add_remove a neighbour has all records of one user more or fewer; under replace_one that many records of one
    user are changed, their number being the same.  Nothing here limits what a user contributes: the bound has to be
    enforced on the data without looking at anything private, which the guarantee states as its assumption.
    """
    bound = check_count("records_per_user", records_per_user, 1)
    epsilon = group_epsilon(
        event, delta, bound, accountant=accountant, neighboring_relation=check_relation(neighboring_relation)
    )
    records = "record" if bound == 1 else "records"
    return Guarantee(
        epsilon=epsilon,
        delta=float(delta),
        neighboring_relation=neighboring_relation,
        unit="user",
        accountant=accountant,
        assumptions=(f"no user has more than {bound} {records} in the data (a public bound that the data obey)",),
    )


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x)) if x > 0.5 else math.log(math.expm1(x))


def _log_factor(epsilon: float, size: int) -> float:
    """ln[(e^{kε} − 1)/(e^ε − 1)], ln k at ε = 0."""
    if epsilon < 1e-300:
        return math.log(size)
    return _log_expm1(size * epsilon) - _log_expm1(epsilon)


def _product(delta: float, log_factor: float) -> float:
    """δ·e^{log_factor}, rounded up by more than the rounding errors of the logarithms, at most 1; δ > 0."""
    log_delta = math.log(delta)
    margin = 1e-15 * (abs(log_delta) + log_factor + 1)
    return min(1.0, math.exp(min(log_delta + log_factor + margin, 0.0)))


def _group_rho(event: Event, size: int, accountant: str, relation: str) -> float:
    """k²ρ of the event; ``inf`` where it has no ρ or the accountant is another one."""
    from dpml.accounting import zcdp

    if accountant not in ("best", "zcdp"):
        return math.inf
    try:
        rho = float(zcdp.rho(event, relation))
    except UnsupportedEventError:
        return math.inf
    return zcdp_group(rho, size) if math.isfinite(rho) else math.inf


def _direct(event: Event, size: int, question: str, value: float, options: dict[str, str]) -> float:
    """The accountant's own answer for Group(event, size); the trivial bound where it refuses."""
    from dpml.accounting import api, composition

    relation, group = options["neighboring_relation"], Group(event, size)
    try:
        if options["accountant"] == "best":  # not through api.epsilon, which comes back here
            bound = composition.best_epsilon if question == "epsilon" else composition.best_delta
            return bound(group, value, relation)[0]
        return float(getattr(api, question)(group, value, **options))
    except UnsupportedEventError:
        return math.inf if question == "epsilon" else 1.0


def _smallest(excess, low: float) -> float:  # type: ignore[no-untyped-def]
    """A share at which ``excess`` ≤ 0 was seen, near its first root above ``low``; ``inf`` where none was found."""
    low = max(low, 1e-12)
    points = [low * factor for factor in _FACTORS]
    while points[-1] < _LARGEST_EPSILON:
        points.append(2 * points[-1])
    below = None
    for point in points:
        value = excess(point)
        if value <= 0:
            break
        below = point
    else:
        return math.inf
    if below is None:
        return point
    root = find_root(excess, below, point, xtol=1e-7 * point, rtol=1e-9)
    step = 1e-7 * root
    while root < point:
        if excess(root) <= 0:
            return root
        root, step = root + step, 2 * step
    return point
