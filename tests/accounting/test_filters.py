"""Privacy filters and the odometer: hand formulas, adversaries, threads, restarts, and games played exactly."""

from __future__ import annotations

import json
import math
import threading

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpml import accounting as acc
from dpml.accounting import api, filters
from dpml.accounting.filters import (
    ApproximateFilter,
    Odometer,
    PrivacyFilter,
    PureFilter,
    RenyiFilter,
    ZcdpFilter,
    best_order,
    order_budget,
    rho_budget,
)
from dpml.errors import BudgetExceededError, ConfigError, UnsupportedEventError

BUDGETS = [(1.0, 1e-5), (0.1, 1e-9), (8.0, 1e-3), (0.5, 0.05), (30.0, 1e-12)]
SMALL = acc.Pure(1e-3)
DPSGD = acc.SelfComposed(acc.PoissonSampled(0.01, acc.Gaussian(1.2)), 200)


def some_filters():
    return [
        PureFilter(1.0, 1e-5),
        ApproximateFilter(1.0, 1e-5, slack=5e-6),
        ZcdpFilter(1.0, 1e-5, statement_delta=5e-6),
        ZcdpFilter(rho=0.03, delta=1e-5),
        RenyiFilter(1.0, 1e-5, statement_delta=5e-6),
        RenyiFilter(1.0, 1e-5, orders=(8, 16, 32.5)),
        RenyiFilter(1.0, 1e-5, neighboring_relation="replace_one"),
    ]


def name_of(book):
    return f"{book.kind}-{book.neighboring_relation}-{len(book.budget)}"


every_filter = pytest.mark.parametrize("book", some_filters(), ids=name_of)


def fresh(book):
    return PrivacyFilter.from_state(book.settings())


# -- budgets against formulas written a second time -------------------------------------------------------------------
def conversion(order, delta):
    """ε − r of the tight conversion (Canonne, Kamath & Steinke 2020, Proposition 12), 50 digits."""
    a = mpmath.mpf(order)
    return mpmath.log((a - 1) / a) - (mpmath.log(mpmath.mpf(delta)) + mpmath.log(a)) / (a - 1)


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
@pytest.mark.parametrize("order", [1.001, 1.5, 2.0, 7.25, 64.0, 4096.0])
def test_an_orders_budget_is_epsilon_less_the_conversion_and_never_above(epsilon, delta, order):
    with mpmath.workdps(50):
        truth = mpmath.mpf(epsilon) - conversion(order, delta)
        found = order_budget(order, epsilon, delta)
        assert found <= truth
        assert abs(found - truth) <= 5e-12 * (abs(truth) + epsilon)


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_rho_is_the_largest_whose_conversion_stays_within_epsilon(epsilon, delta):
    """The conversion at ρ, minimised over α by mpmath."""
    rho = rho_budget(epsilon, delta)

    def converted(value):
        def at(log_t):
            order = 1 + mpmath.exp(log_t)
            return value * order + conversion(order, delta)

        best = min((mpmath.mpf(k) / 10 for k in range(-80, 150)), key=at)
        low, high = best - mpmath.mpf("0.1"), best + mpmath.mpf("0.1")
        for _ in range(90):  # ternary search: the bound has one minimum there
            third = (high - low) / 3
            low, high = (low, high - third) if at(low + third) < at(high - third) else (low + third, high)
        return at((low + high) / 2)

    with mpmath.workdps(30):
        assert converted(rho) <= epsilon
        assert converted(rho * (1 + 1e-4)) > epsilon


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_approximate_filters_budget_solves_the_theorems_inequality(epsilon, delta):
    book = ApproximateFilter(epsilon, delta, slack=delta / 4)
    assert book.budget["delta"] == pytest.approx(0.75 * delta, rel=1e-12)
    with mpmath.workdps(50):
        squares = mpmath.mpf(book.budget["sum of squared epsilon"]) * (1 + mpmath.mpf("1e-12"))
        spent = mpmath.sqrt(2 * mpmath.log(4 / mpmath.mpf(delta)) * squares) + squares / 2
        assert epsilon * (1 - 1e-11) < spent <= epsilon


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_zcdp_and_the_best_single_order_admit_nearly_the_same_gaussians(epsilon, delta):
    """At one order the Rényi filter admits Σρ ≤ B(α)/α; the maximum over α is the zCDP budget."""
    order = best_order(epsilon, delta)
    assert 0.99 * rho_budget(epsilon, delta) < order_budget(order, epsilon, delta) / order <= rho_budget(epsilon, delta)


def test_the_concentrated_filter_admits_more_than_the_approximate_one():
    """Same statements, same δ split: the tight conversion leaves more than √-advanced composition."""
    loose, tight = ApproximateFilter(1.0, 1e-5, slack=5e-6), ZcdpFilter(1.0, 1e-5, statement_delta=5e-6)
    assert tight.budget["rho"] > loose.budget["sum of squared epsilon"] / 2


# -- prices by hand; the planted bugs ---------------------------------------------------------------------------------
def check_prices():
    """What a Gaussian, a pure release and a statement cost in every filter, by hand."""
    gaussian, pure, said = acc.Gaussian(5.0), acc.Pure(0.2), acc.EpsilonDelta(0.2, 1e-7)
    zcdp, swapped = ZcdpFilter(1.0, 1e-5), ZcdpFilter(1.0, 1e-5, neighboring_relation="replace_one")
    assert zcdp.price(gaussian)["rho"] == pytest.approx(1 / (2 * 5.0**2), rel=1e-12)
    assert swapped.price(gaussian)["rho"] == pytest.approx(4 / (2 * 5.0**2), rel=1e-12)
    assert zcdp.price(acc.SelfComposed(gaussian, 7))["rho"] == pytest.approx(7 / 50, rel=1e-12)
    assert zcdp.price(pure) == {"rho": pytest.approx(0.2 * math.tanh(0.1), rel=1e-12), "delta": 0.0}
    assert zcdp.price(said) == {"rho": pytest.approx(0.2 * math.tanh(0.1), rel=1e-12), "delta": 1e-7}
    renyi = RenyiFilter(3.0, 1e-5, orders=(8.0,))
    assert renyi.price(gaussian)["rdp at order 8.0"] == pytest.approx(8 / 50, rel=1e-12)
    response = math.log(math.cosh(7.5 * 0.2) / math.cosh(0.1)) / 7  # randomized response with odds e^0.2
    assert renyi.price(said) == {"rdp at order 8.0": pytest.approx(response, rel=1e-9), "delta": 1e-7}
    assert PureFilter(1.0, 1e-5).price(acc.Composed((pure, said, said))) == {
        "epsilon": pytest.approx(0.6, rel=1e-12),
        "delta": 2e-7,
    }
    assert ApproximateFilter(1.0, 1e-5).price(acc.Composed((pure, acc.SelfComposed(said, 3)))) == {
        "sum of squared epsilon": pytest.approx(0.16, rel=1e-12),
        "delta": pytest.approx(3e-7, rel=1e-12),
    }
    book = ZcdpFilter(1.0, 1e-5)
    for _ in range(3):
        book.admit(acc.Gaussian(20.0))
    assert book.spent["rho"] == pytest.approx(3 / 800, rel=1e-12)
    assert book.remaining["rho"] == pytest.approx(book.budget["rho"] - 3 / 800, rel=1e-12)


def test_prices_are_those_of_the_theorems():
    check_prices()


@pytest.mark.parametrize(
    ("place", "name", "bug"),
    [
        (api, "rho", lambda event, **kw: original["rho"](event, **kw) / 2),
        (api, "rdp", lambda event, orders, **kw: original["rdp"](event, orders, **kw) / 2),
        (filters, "_square", lambda value: value * value / 2),
        (filters, "_add_up", lambda a, b: max(a, b)),
        (filters, "_split", lambda event, relation: (original["_split"](event, relation)[0], 0.0)),
    ],
    ids=["halved rho", "halved divergence", "halved square", "forgets the past", "statements without delta"],
)
def test_a_planted_bug_in_the_prices_is_caught(monkeypatch, place, name, bug):
    monkeypatch.setattr(place, name, bug)
    with pytest.raises(AssertionError):
        check_prices()


original = {"rho": api.rho, "rdp": api.rdp, "_split": filters._split}


# -- the common interface ---------------------------------------------------------------------------------------------
@every_filter
def test_a_refusal_spends_nothing_and_says_what_is_left(book):
    book = fresh(book)
    book.admit(SMALL)
    before = book.state()
    big = acc.Pure(book.guarantee().epsilon * 60)
    assert not book.would_allow(big)
    with pytest.raises(BudgetExceededError, match=r"refuses 'pure' .*needs .* of .* spent, .* left.*Nothing was used"):
        book.admit(big)
    with pytest.raises(UnsupportedEventError):
        book.admit(acc.PoissonSampled(0.5, acc.EpsilonDelta(1.0, 1e-7)))
    with pytest.raises(ConfigError, match="event"):
        book.admit({"type": "gaussian"})
    assert book.state() == before
    assert book.would_allow(SMALL)
    assert book.state() == before
    book.admit(SMALL)
    assert book.admitted == 2


@every_filter
def test_the_guarantee_is_the_budget_before_and_after(book):
    book = fresh(book)
    said = book.guarantee()
    for _ in range(5):
        book.admit(SMALL)
    assert book.guarantee() == said
    assert said.accountant == f"{book.kind}_filter"
    assert said.neighboring_relation == book.neighboring_relation
    if book.settings().get("rho") is None:
        assert (said.epsilon, said.delta) == (1.0, 1e-5)
    else:
        assert said.epsilon == pytest.approx(acc.epsilon(acc.ZCDP(0.03), 1e-5, accountant="zcdp"), rel=1e-9)


def test_nothing_costs_nothing_even_when_all_is_spent():
    book = ZcdpFilter(rho=0.5, delta=1e-5)
    book.admit(acc.Gaussian(1.0))
    assert book.remaining["rho"] == 0
    assert not book.would_allow(acc.Gaussian(1e4))
    book.admit(acc.NoOp())
    assert not book.would_allow(acc.NonPrivate())


def test_ten_tenths_fit_and_an_eleventh_does_not():
    book = PureFilter(1.0, 1e-5)
    for _ in range(10):
        book.admit(acc.EpsilonDelta(0.1, 1e-6))
    assert not book.would_allow(acc.Pure(1e-9))
    assert not book.would_allow(acc.EpsilonDelta(0.0, 1e-12))


def test_statements_need_delta_set_aside():
    with pytest.raises(BudgetExceededError, match=r"delta: needs 1e-07, 0 of 0 spent"):
        ZcdpFilter(1.0, 1e-5).admit(acc.EpsilonDelta(0.01, 1e-7))
    book = RenyiFilter(1.0, 1e-5, statement_delta=3e-7)
    for _ in range(3):
        book.admit(acc.EpsilonDelta(0.01, 1e-7))
    assert not book.would_allow(acc.EpsilonDelta(0.01, 1e-7))
    assert book.would_allow(acc.Pure(0.01))


def test_one_surviving_order_is_enough_and_each_has_its_share_of_delta(monkeypatch):
    book = RenyiFilter(3.0, 1e-5, orders=(8, 64))
    for order in (8.0, 64.0):
        assert book.budget[f"rdp at order {order!r}"] == order_budget(order, 3.0, 5e-6) > 0
    book.admit(acc.ZCDP(0.9 * order_budget(8, 3.0, 5e-6) / 8))
    assert book.spent["rdp at order 8.0"] < book.budget["rdp at order 8.0"]
    assert book.spent["rdp at order 64.0"] > book.budget["rdp at order 64.0"]
    with monkeypatch.context() as patch:  # a release whose divergence is infinite at high orders
        patch.setattr(api, "rdp", lambda event, orders, **kw: np.where(orders > 10, np.inf, 0.01))
        book.admit(acc.Gaussian(1.0))
    assert math.isinf(book.spent["rdp at order 64.0"])
    assert book.remaining["rdp at order 64.0"] == 0
    book.admit(acc.Gaussian(1000.0))
    state = json.loads(json.dumps(book.state(), allow_nan=False))
    assert PrivacyFilter.from_state(state).state() == book.state()
    assert not book.would_allow(acc.Gaussian(2.0))


def test_an_order_without_budget_never_admits(monkeypatch):
    book = RenyiFilter(0.5, 1e-5, orders=(1.5, 64))
    assert book.budget["rdp at order 1.5"] == 0
    monkeypatch.setattr(api, "rdp", lambda event, orders, **kw: np.where(orders > 10, np.inf, 0.0))
    assert not book.would_allow(acc.Gaussian(1.0))
    with pytest.raises(ConfigError, match="leave no Rényi budget"):
        RenyiFilter(0.5, 1e-5, orders=(1.5,))


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: PureFilter(0.0, 1e-5), "epsilon"),
        (lambda: PureFilter(math.inf), "epsilon"),
        (lambda: PureFilter(math.nan), "epsilon"),
        (lambda: PureFilter(1.0, 1.0), "delta"),
        (lambda: PureFilter(1.0, neighboring_relation="swap"), "neighboring_relation"),
        (lambda: ApproximateFilter(1.0, 0.0), "delta"),
        (lambda: ApproximateFilter(1.0, 1e-5, slack=2e-5), "slack"),
        (lambda: ApproximateFilter(1.0, 1e-5, slack=0.0), "slack"),
        (lambda: ZcdpFilter(1.0, 1e-5, rho=1.0), "exactly one"),
        (lambda: ZcdpFilter(delta=1e-5), "exactly one"),
        (lambda: ZcdpFilter(1.0), "delta"),
        (lambda: ZcdpFilter(1.0, 1e-5, statement_delta=1e-5), "statement_delta"),
        (lambda: ZcdpFilter(rho=-1.0, delta=1e-5), "rho"),
        (lambda: RenyiFilter(1.0, 0.0), "delta"),
        (lambda: RenyiFilter(1.0, 1e-5, orders=()), "orders"),
        (lambda: RenyiFilter(1.0, 1e-5, orders=(1.0,)), "orders"),
        (lambda: RenyiFilter(1.0, 1e-5, orders=(8, 8)), "orders"),
        (lambda: RenyiFilter(1.0, 1e-5, orders=8), "orders"),
        (lambda: RenyiFilter(1.0, 1e-5, orders="8"), "orders"),
        (lambda: RenyiFilter(1.0, 1e-5, orders=(1e9,)), "orders"),
        (lambda: Odometer(0.0), "delta"),
        (lambda: Odometer(0.1, orders=(0.5,)), "orders"),
    ],
)
def test_bad_budgets_are_refused_by_name(make, word):
    with pytest.raises(ConfigError, match=word):
        make()


@pytest.mark.parametrize("event", [acc.Gaussian(3.0), DPSGD, acc.NonPrivate(), acc.ZCDP(0.1)])
@pytest.mark.parametrize("book", [PureFilter(1.0, 1e-5), ApproximateFilter(1.0, 1e-5)], ids=["pure", "approximate"])
def test_an_event_without_a_pure_bound_is_refused_by_name(book, event):
    with pytest.raises(UnsupportedEventError, match=rf"the {book.kind} filter cannot bound event .*EpsilonDelta"):
        fresh(book).admit(event)


# -- restart ----------------------------------------------------------------------------------------------------------
@every_filter
def test_a_restart_changes_nothing(book):
    whole, parts = fresh(book), fresh(book)
    events = [SMALL, acc.Composed((SMALL, acc.SelfComposed(acc.Pure(0.003), 4))), acc.NoOp(), acc.Pure(0.01)]
    for event in events * 3:
        whole.admit(event)
        parts = PrivacyFilter.from_state(json.loads(json.dumps(parts.state(), allow_nan=False)))
        parts.admit(event)
    assert parts.state() == whole.state()
    again = fresh(book)
    for event in events * 3:
        again.replay(event)
    assert again.state() == whole.state()


@pytest.mark.parametrize(
    "change",
    [
        {"type": "none"},
        {"type": ["zcdp"]},
        {"spent": [0.0]},
        {"spent": [-1.0, 0.0]},
        {"spent": ["nan", 0.0]},
        {"spent": "inf"},
        {"admitted": -1},
        {"admitted": True},
        {"unknown": 1},
        {"rho": 1.0},
        {"epsilon": "one"},
    ],
)
def test_a_damaged_state_is_refused(change):
    state = ZcdpFilter(1.0, 1e-5).state()
    with pytest.raises(ConfigError):
        PrivacyFilter.from_state({**state, **change})
    with pytest.raises(ConfigError):
        PrivacyFilter.from_state({key: value for key, value in state.items() if key != "admitted"})
    with pytest.raises(ConfigError):
        PrivacyFilter.from_state([])


# -- adversaries ------------------------------------------------------------------------------------------------------
RELEASE = st.one_of(
    st.floats(1.0, 300.0).map(acc.Gaussian),
    st.floats(1.0, 300.0).map(acc.Laplace),
    st.floats(1e-4, 0.5).map(acc.Pure),
    st.floats(1e-6, 0.01).map(acc.ZCDP),
    st.tuples(st.floats(1e-4, 0.3), st.floats(1e-9, 2e-6)).map(lambda pair: acc.EpsilonDelta(*pair)),
    st.tuples(st.floats(20.0, 300.0).map(acc.Gaussian), st.integers(1, 9)).map(lambda p: acc.SelfComposed(*p)),
)


def by_hand(event):
    """(ρ, pure ε, ε², δ) of one release, from the papers' formulas."""
    if isinstance(event, acc.SelfComposed):
        return tuple(event.count * value for value in by_hand(event.event))
    if isinstance(event, acc.Gaussian):
        return 0.5 / event.noise_multiplier**2, math.inf, math.inf, 0.0
    if isinstance(event, acc.ZCDP):
        return event.rho, math.inf, math.inf, 0.0
    pure = 1 / event.noise_multiplier if isinstance(event, acc.Laplace) else event.epsilon
    return pure * math.tanh(pure / 2), pure, pure**2, getattr(event, "delta", 0.0)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(RELEASE, st.floats(0.0, 1.0)), min_size=1, max_size=60))
def test_no_adaptive_sequence_passes_the_budget(moves):
    """The adversary looks at what is left and asks for that share of it, or for the drawn release."""
    books = [
        PureFilter(1.0, 1e-5),
        ApproximateFilter(1.0, 1e-5, slack=5e-6),
        ZcdpFilter(1.0, 1e-5, statement_delta=5e-6),
    ]
    for book in books:
        totals = [[], [], [], []]
        for event, greed in moves:
            left = book.remaining
            if greed > 0.5:
                amount = next(iter(left.values())) * (greed + 0.4)
                if amount == 0:
                    continue
                event = acc.ZCDP(amount) if book.kind == "zcdp" else acc.Pure(amount)
                if book.kind == "approximate":
                    event = acc.Pure(math.sqrt(amount))
            try:
                allowed = book.would_allow(event)
                book.admit(event)
            except UnsupportedEventError:
                continue
            except BudgetExceededError:
                assert not allowed
                continue
            assert allowed
            for total, value in zip(totals, by_hand(event), strict=True):
                total.append(value)
        rho, pure, squares, delta = (math.fsum(total) for total in totals)
        if book.kind == "pure":
            assert pure <= 1.0 * (1 + 2e-12)
            assert delta <= 1e-5 * (1 + 2e-12)
        elif book.kind == "approximate":
            assert math.sqrt(2 * math.log(1 / 5e-6) * squares) + squares / 2 <= 1.0
            assert delta <= 5e-6 * (1 + 2e-12)
        else:
            order = rho_order(1.0, 5e-6)
            assert rho * order + float(conversion(order, 5e-6)) <= 1.0 * (1 + 2e-12)
            assert delta <= 5e-6 * (1 + 2e-12)


def rho_order(epsilon, delta):
    """The order at which the conversion of the largest admissible ρ is smallest."""
    rho = rho_budget(epsilon, delta)
    orders = 1 + np.exp(np.linspace(0, 6, 20001))
    values = rho * orders + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return float(orders[np.argmin(values)])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(5.0, 200.0), min_size=1, max_size=80), st.sampled_from([(16.0,), (8.0, 16.0, 32.0)]))
def test_no_gaussian_sequence_passes_every_order(noises, orders):
    book = RenyiFilter(1.0, 1e-5, orders=orders)
    precision = 0.0
    for sigma in noises:
        try:
            book.admit(acc.Gaussian(sigma))
        except BudgetExceededError:
            continue
        precision += sigma**-2
    delta = 1e-5 / len(orders)
    assert any(order * precision / 2 + float(conversion(order, delta)) <= 1.0 for order in orders)


@every_filter
def test_a_hundred_threads_never_overspend(book):
    """Each wants a fiftieth of the budget: exactly fifty get it."""
    book = fresh(book)
    name = next(iter(book.budget))
    whole = book.budget[name]
    if len(book.budget) > 2:  # orders: the release that takes a fiftieth of each, whichever survives longest
        whole = max(value / float(key.split()[-1]) for key, value in book.budget.items() if key != "delta")
    share = whole / 50 * (1 - 1e-9)
    if book.kind == "pure":
        event = acc.Pure(share)
    elif book.kind == "approximate":
        event = acc.Pure(math.sqrt(share))
    else:
        event = acc.ZCDP(share if book.kind == "zcdp" or len(book.budget) > 2 else share / book.orders[0])
    book.price(event)
    gate, outcomes = threading.Barrier(100), []

    def work():
        gate.wait()
        try:
            book.admit(event)
        except BudgetExceededError:
            outcomes.append(False)
        else:
            outcomes.append(True)

    threads = [threading.Thread(target=work) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(outcomes), sum(outcomes), book.admitted) == (100, 50, 50)


# -- the theorem, played out ------------------------------------------------------------------------------------------
def hockey(epsilon, mu):
    """E_P[(1 − e^{ε−L})₊] of a μ-Gaussian pair for any real ε (arrays), from the normal distribution function."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        value = stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
    return np.where(mu > 0, value, -np.expm1(np.minimum(epsilon, 0.0)))


def response(epsilon, pure):
    """The same for randomized response with odds e^pure."""
    true = 1 / (1 + np.exp(-pure))
    return true * np.maximum(0.0, -np.expm1(epsilon - pure)) + (1 - true) * np.maximum(0.0, -np.expm1(epsilon + pure))


def two_step_delta(book, epsilon, first):
    """The largest δ at ε that a two-step adversary reaches against ``book``, exactly.

    Step 1 is a Gaussian with μ = ``first``; its loss is N(μ²/2, μ²) under P.  For every value of it the adversary takes
    the second step that is worst there, among what the filter still admits: Gaussians and randomized response of the
    largest size, half of that, and nothing.  The expectation over step 1 is a trapezoid sum of 4001 points over ±12
    standard deviations.
    """
    book.admit(acc.Gaussian(1 / first))
    mu = largest(lambda size: book.would_allow(acc.Gaussian(1 / size)))
    pure = largest(lambda size: book.would_allow(acc.Pure(size)))
    z = np.linspace(-12, 12, 4001)
    left = epsilon - (first**2 / 2 + first * z)
    second = [hockey(left, size) for size in (0.0, mu / 2, mu)] + [response(left, size) for size in (pure / 2, pure)]
    return float(np.trapezoid(stats.norm.pdf(z) * np.maximum.reduce(second), z))


def largest(fits):
    low, high = 0.0, 30.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


GAMES = {
    "zcdp": lambda e, d: ZcdpFilter(e, d),
    "one order": lambda e, d: RenyiFilter(e, d),
    "three orders": lambda e, d: RenyiFilter(e, d, orders=(best_order(e, d) / 2 + 1, best_order(e, d), 40.0)),
}


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.05), (1.0, 1e-3), (3.0, 1e-5)])
def test_two_adaptive_steps_stay_within_the_filters_budget(game, epsilon, delta):
    make = GAMES[game]
    size = largest(lambda mu: make(epsilon, delta).would_allow(acc.Gaussian(1 / mu)))
    worst = max(two_step_delta(make(epsilon, delta), epsilon, share * size) for share in (0.2, 0.5, 0.8, 0.95))
    assert worst <= delta
    assert worst > delta / 50  # the adversary is not a straw man


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.05), (1.0, 1e-3), (3.0, 1e-5)])
@pytest.mark.parametrize("name", ["rho", "rdp"])
def test_the_game_is_lost_when_prices_are_halved(monkeypatch, name, epsilon, delta):
    """Power of the test above against a filter that counts half."""
    monkeypatch.setattr(api, name, lambda *event, **kw: original[name](*event, **kw) / 2)
    make = GAMES["zcdp" if name == "rho" else "one order"]
    size = largest(lambda mu: make(epsilon, delta).would_allow(acc.Gaussian(1 / mu)))
    assert max(two_step_delta(make(epsilon, delta), epsilon, share * size) for share in (0.5, 0.8)) > delta


# -- the odometer -----------------------------------------------------------------------------------------------------
def test_the_odometer_is_the_formula():
    meter = Odometer(1e-3, orders=(2.0, 8.0, 32.0))
    assert meter.epsilon == 0.0
    meter.record(acc.NoOp())
    assert meter.epsilon == 0.0
    for _ in range(4):
        meter.record(acc.Gaussian(10.0))
    truth = min(4 * a / 200 + math.log(3 / 1e-3) / (a - 1) for a in (2.0, 8.0, 32.0))
    assert meter.epsilon == pytest.approx(truth, rel=1e-12)
    assert meter.epsilon >= acc.epsilon(acc.SelfComposed(acc.Gaussian(10.0), 4), 1e-3)
    with pytest.raises(UnsupportedEventError):
        meter.record(acc.EpsilonDelta(0.1, 1e-6))
    state = json.loads(json.dumps(meter.state()))
    assert Odometer.from_state(state).epsilon == meter.epsilon
    assert Odometer.from_state(state).state() == meter.state()
    for change in ({"spent": [1.0]}, {"spent": [-1.0, 0.0, 0.0]}, {"delta": 0}, {"recorded": -1}):
        with pytest.raises(ConfigError):
            Odometer.from_state({**state, **change})
    assert not Odometer.is_guarantee


def test_the_loss_passes_the_odometer_with_probability_below_delta():
    """Adaptive Gaussians over 60 steps: ever above the odometer in at most δ = 0.1 of the interactions.

    20,000 interactions; a true probability of 0.1 gives more than 2,213 crossings with probability < 1e-6.  The
    adversary adds noise when its loss is low and takes it away when it is high.
    """
    orders, delta, runs = np.array([1.5, 2.0, 4.0, 8.0]), 0.1, 20_000
    noise = np.random.default_rng(7)
    loss, precision, crossed = np.zeros(runs), np.zeros(runs), np.zeros(runs, dtype=bool)
    for _ in range(60):
        mu = np.where(loss > 0.3 * np.sqrt(precision), 0.5, 0.1)
        loss += mu**2 / 2 + mu * noise.standard_normal(runs)
        precision += mu**2
        bound = np.min(orders * precision[:, None] / 2 + np.log(len(orders) / delta) / (orders - 1), axis=1)
        crossed |= loss > bound
    assert crossed.sum() <= 2213
    meter = Odometer(delta, orders=orders.tolist())  # the same bound from the class, on the last interaction
    meter.record(acc.ZCDP(float(precision[-1]) / 2))
    assert meter.epsilon == pytest.approx(float(bound[-1]), rel=1e-12)
