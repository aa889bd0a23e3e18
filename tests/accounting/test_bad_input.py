"""Whatever is passed, the accounting answers with a bound or refuses by name: no hang, no bare Python or scipy error.

Each call below is one that once hung, leaked another package's error or under-reported.  Expected values are closed
forms: δ = 2Φ(1/2σ) − 1 at ε = 0, k·ε of k pure releases, ∞ at δ = 0 for a sampled Gaussian.
"""

from __future__ import annotations

import itertools
import math
import signal
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpml import accounting as acc
from dpml.accounting import conversions, pld, theorems
from dpml.accounting.checks import check_count, check_list, check_number, shown
from dpml.accounting.normal_form import flatten
from dpml.errors import ConfigError, DpmlError


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Liar:
    def __float__(self) -> Any:
        return "x"


STRANGE: list[Any] = [
    "a",
    "1",
    b"1",
    bytearray(b"1"),
    None,
    True,
    {},
    {"a": 1},
    set(),
    object(),
    10**400,
    10**5000,
    Unprintable(),
    Liar(),
    1j,
    np.array([1.0, 2.0]),
    np.array([0.5]),
    np.array("1"),
    np.array(True),
    np.array(None),
    np.bool_(True),
    np.datetime64("2020"),
    [1, [2, 3]],
    [None],
    ["2"],
    [10**5000],
    math.nan,
    -math.inf,
    -1.0,
    Fraction(1, 10**400),
    Decimal("1e-400"),
    Decimal("sNaN"),
    acc.Gaussian(1.0),
    [acc.Gaussian(1.0)],
    type,
]
EXTREME: list[Any] = [5e-324, 1e-320, 1e-310, 1e-160, 1e-20, 0, 0.5, 1e20, 1e160, 1e308, Fraction(1, 3)]


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    """A call that hangs fails its test."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError("this test hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(240)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def answers(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The answer, None for a refusal of this package; every other error fails the test."""
    try:
        return function(*arguments, **options)
    except DpmlError as error:
        refusal = str(error)
    assert 0 < len(refusal) < 1200
    return None


# ------------------------------------------------------------------------------------------------ numbers vanish


@pytest.mark.parametrize("value", [Fraction(1, 10**400), Decimal("1e-400"), -Fraction(1, 10**400)])
def test_a_number_that_is_not_zero_never_becomes_zero(value: Any) -> None:
    """A rate of 1e-400 is not rate 0, at which nothing is released and ε = 0; the truth at δ = 0 is ∞."""
    with pytest.raises(ConfigError, match=r"rate = .*It is not 0"):
        check_number("rate", value, 0.0, 1.0)
    with pytest.raises(ConfigError, match="sampling_probability"):
        acc.PoissonSampled(value, acc.Gaussian(1.0))
    data = {"type": "poisson_sampled", "sampling_probability": value, "event": {"type": "gaussian"}}
    data["event"] = acc.Gaussian(1.0).to_json()
    with pytest.raises(ConfigError, match="sampling_probability"):
        acc.from_json(data)


def test_numbers_that_are_zero_or_small_are_taken() -> None:
    for zero in (0, 0.0, -0.0, Fraction(0), Decimal("0e-400"), np.float32(0), np.array(0.0)):
        assert check_number("rate", zero, 0.0) == 0.0
    assert check_number("rate", Fraction(1, 10**323), 0.0) == 1e-323
    assert check_number("rate", np.array(0.25), 0.0) == 0.25
    assert check_count("count", np.array(3)) == 3


def test_a_rate_that_is_a_product_of_rates_does_not_vanish() -> None:
    """1e-200 · 1e-200 is below all floats; the release still happens, and no ε holds at δ = 0."""
    twice = acc.PoissonSampled(1e-200, acc.PoissonSampled(1e-200, acc.Gaussian(1.0)))
    (atom,) = flatten(twice)
    assert isinstance(atom, acc.PoissonSampled)
    assert atom.sampling_probability > 0
    assert acc.epsilon(twice, 0.0) == math.inf
    for accountant in ("optimal", "advanced"):  # (ε, δ) statements: 1e-200 · 1e-200 of δ is still more than 0
        found = theorems.statement(acc.PoissonSampled(1e-200, acc.EpsilonDelta(1.0, 1e-200)), "add_remove", accountant)
        assert found[0] > 0
        assert found[1] > 0


def test_values_in_messages_are_short() -> None:
    assert repr(shown(10**5000)) == "an integer of 16610 bits"
    assert repr(shown(Unprintable())) == "a value of type Unprintable"
    assert len(repr(shown(list(range(10**5))))) < 300
    assert shown(0.5) == 0.5


# ------------------------------------------------------------------------------------------------ extreme numbers


def test_the_noise_at_a_subnormal_epsilon_is_that_at_zero() -> None:
    """At ε = 0 δ = 2Φ(1/2σ) − 1; ε = 1e-320 changes no digit of it."""
    for delta in (1e-5, 0.3):
        expected = 1 / (2 * stats.norm.ppf((1 + delta) / 2))
        for epsilon in (0.0, 5e-324, 1e-320, 1e-310):
            assert acc.gaussian_noise_multiplier(epsilon, delta) == pytest.approx(expected, rel=1e-9)
    assert acc.largest_gdp_mu(1e-320, 1e-5) == pytest.approx(2.5066282746e-5, rel=1e-6)  # δ√(2π)
    for epsilon in (0.0, 1e-320):
        with pytest.raises(ConfigError, match=r"\(epsilon, delta\) = .*1e-320.*Raise epsilon or delta"):
            acc.gaussian_noise_multiplier(epsilon, 1e-320)
    sigma = acc.gaussian_noise_multiplier(1.0, 1e-320)
    assert acc.gaussian_epsilon(1e-320, 1 / sigma) == pytest.approx(1.0, rel=1e-6)


def test_epsilon_above_all_floats_is_infinite() -> None:
    """ε is about μ²/2, which no float holds from μ ≈ 1e154 on; below, it is that."""
    for mu in (1e155, 1e308):
        assert acc.gdp_to_epsilon(mu, 1e-5) == math.inf
        assert acc.gaussian_epsilon(1e-5, mu) == math.inf
        assert acc.gaussian_epsilon(1e-5, mu=mu) == math.inf
        assert acc.gdp_to_zcdp(mu) == math.inf
    for mu in (1e10, 1e50, 1e150):
        found = acc.gaussian_epsilon(1e-5, mu)
        assert mu * mu / 2 <= found <= mu * mu / 2 * (1 + 1e-8)
    assert acc.gaussian_epsilon(1e-320, 1e-310) <= 4e-309  # once endless: the root is below the search's digits
    for rho in (1e300, 1e308):
        assert acc.zcdp_to_epsilon(rho, 1e-5) >= rho
        assert acc.zcdp_to_delta(rho, 1.0) == 1.0
    assert acc.largest_zcdp_rho(0.0, 5e-324) >= 0.0
    assert theorems.compose_zcdp([1e308, 1e308]) == math.inf


def test_one_release_at_the_smallest_rates_is_bounded() -> None:
    """Once scipy's RuntimeError; ln(1 + q(e^6.4 − 1)) ≥ the truth, as one Gaussian is (6.4, 1e-10)-DP, σ = 1."""
    assert acc.gaussian_delta(7.0, 1.0) < 1e-10
    for rate in (1e-200, 1e-250):
        found = acc.epsilon(acc.PoissonSampled(rate, acc.Gaussian(1.0)), rate * 1e-10)
        assert 0 < found <= 2e3 * rate + 1e-18


# --------------------------------------------------------------------------------------------------- wrong types

CONVERSIONS: list[Callable[..., Any]] = [
    acc.gaussian_delta,
    acc.gaussian_epsilon,
    acc.gaussian_noise_multiplier,
    acc.zcdp_to_epsilon,
    acc.zcdp_to_delta,
    acc.largest_zcdp_rho,
    acc.gdp_to_epsilon,
    acc.gdp_to_delta,
    acc.largest_gdp_mu,
    acc.classical_gaussian_noise_multiplier,
    acc.zcdp_to_rdp,
    acc.pure_to_rdp,
    acc.laplace_to_rdp,
    acc.gdp_to_rdp,
]


@pytest.mark.parametrize("function", CONVERSIONS)
def test_conversions_answer_or_refuse(function: Callable[..., Any]) -> None:
    for bad in STRANGE:
        answers(function, bad, 0.5)
        answers(function, 0.5, bad)
    for pair in itertools.product(EXTREME, EXTREME):
        found = answers(function, *pair)
        assert found is None or not np.any(np.isnan(found))


@pytest.mark.parametrize("function", [acc.zcdp_to_rdp, acc.pure_to_rdp, acc.laplace_to_rdp, acc.gdp_to_rdp])
@pytest.mark.parametrize("bad", ["a", b"1", {}, object(), 10**400, [[1], [2, 3]], True, None, ["2"]])
def test_orders_that_are_not_numbers_are_named(function: Callable[..., Any], bad: Any) -> None:
    with pytest.raises(ConfigError, match="orders = "):
        function(1.0, bad)


@pytest.mark.parametrize("function", [acc.rdp_to_epsilon, acc.rdp_to_delta])
def test_curves_that_are_not_numbers_are_named(function: Callable[..., Any]) -> None:
    for bad in ("a", b"1", {}, object(), 10**400, True, None, ["2"], [None], 1j):
        with pytest.raises(ConfigError, match="orders = "):
            function(bad, [1.0], 0.5)
        with pytest.raises(ConfigError, match="values = "):
            function([2.0], bad, 0.5)
    for bad in STRANGE:
        answers(function, [2.0], [1.0], bad)
        answers(function, [2.0], [1.0], 0.5, form=bad)
    exact = [Fraction(2), 10**30, math.inf]  # of mixed kinds, as numbers
    assert function([2.0, 3.0, 4.0], exact, 0.5) == function([2.0, 3.0, 4.0], [2.0, 1e30, math.inf], 0.5)


def test_theorems_answer_or_refuse() -> None:
    for bad in STRANGE:
        for value in (bad, [bad]):
            answers(theorems.compose_zcdp, value)
            answers(theorems.compose_gdp, value)
            for place in range(3):
                lists: list[Any] = [[0.1], [0.1], [2]]
                lists[place] = value
                answers(acc.basic_composition, *lists)
                answers(acc.advanced_composition_heterogeneous, *lists[:2], 0.1, lists[2])
                answers(acc.optimal_composition_epsilon, *lists[:2], 0.5, lists[2])
                answers(acc.optimal_composition_delta, *lists[:2], 0.5, lists[2])
        answers(acc.optimal_composition_epsilon, [0.1], [0.1], bad)
        answers(acc.optimal_composition_epsilon, [0.1], [0.1], 0.5, accuracy=bad)
        for place in range(5):
            arguments: list[Any] = [0.1, 0.1, 3, 0.1, "tanh"]
            arguments[place] = bad
            answers(acc.advanced_composition, *arguments)
    for name, call in (("epsilons", lambda: acc.basic_composition(0.1, [0.1])),):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=f"{name} = 0.1"):
            call()


def test_arrays_are_no_counts_names_or_lists() -> None:
    for bad in (np.array([3]), np.array([1, 2]), np.array(3.0), np.array("3")):
        with pytest.raises(ConfigError, match="count = "):
            check_count("count", bad)
    for bad in (np.array(1.0), 0.1, None, "ab", b"ab", {"a": 1}):
        with pytest.raises(ConfigError, match="rhos = "):
            check_list("rhos", bad)
        with pytest.raises(ConfigError, match="events = "):
            acc.Composed(bad)
        with pytest.raises(ConfigError, match="orders = "):
            acc.RenyiFilter(1.0, 1e-5, orders=bad if bad is not None else 3)
    names = np.array(["best", "pld"])
    with pytest.raises(ConfigError, match="accountant = "):
        acc.epsilon(acc.Gaussian(1.0), 1e-5, accountant=names)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="accountant = "):
        acc.calibrate(acc.Gaussian, advantage=0.1, accountant=names)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="neighboring_relation = "):
        acc.epsilon(acc.Gaussian(1.0), 1e-5, neighboring_relation=names)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="noise = "):
        acc.ReportNoisyMax(1.0, names)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="loss = "):
        acc.ObjectivePerturbation(1.0, 1.0, 1.0, names)  # type: ignore[arg-type]


VALUES: dict[type[acc.Event], dict[str, Any]] = {
    acc.Gaussian: {"noise_multiplier": 1.0},
    acc.EpsilonDelta: {"epsilon": 1.0, "delta": 1e-5},
    acc.DiscreteGaussian: {"noise_std": 1.0, "sensitivity": 1},
    acc.ReportNoisyMax: {"epsilon": 1.0, "noise": "laplace"},
    acc.PoissonSampled: {"sampling_probability": 0.5, "event": acc.Gaussian(1.0)},
    acc.SampledWithoutReplacement: {"sample_size": 1, "source_size": 2, "event": acc.Gaussian(1.0)},
    acc.RepeatAndSelect: {"event": acc.Gaussian(1.0), "mean": 2.0, "shape": 1.0},
    acc.Group: {"event": acc.Gaussian(1.0), "size": 2},
    acc.SelfComposed: {"event": acc.Gaussian(1.0), "count": 2},
    acc.Composed: {"events": (acc.Gaussian(1.0),)},
}


@pytest.mark.parametrize("kind", VALUES)
def test_events_are_made_or_refused(kind: type[acc.Event]) -> None:
    for name, bad in itertools.product(VALUES[kind], STRANGE):
        answers(kind, **{**VALUES[kind], name: bad})
        answers(acc.from_json, {**kind(**VALUES[kind]).to_json(), name: bad})
        answers(acc.from_json, {"type": bad})


@pytest.mark.parametrize("bad", STRANGE, ids=lambda value: type(value).__name__)
def test_questions_and_searches_answer_or_refuse(bad: Any) -> None:
    event, target = acc.Gaussian(20.0), {"epsilon": 1.0, "delta": 1e-5}
    for function in (acc.epsilon, acc.delta, acc.interval, acc.best):
        answers(function, bad, 1e-5)
        answers(function, event, bad)
        answers(function, event, 1e-5, neighboring_relation=bad)
    answers(acc.rdp, event, bad)
    answers(acc.rdp, bad, [2.0])
    answers(acc.rho, bad)
    for function in (acc.calibrate, acc.calibrate_steps, acc.calibrate_sample_rate):
        answers(function, bad, **target)
        answers(function, lambda _: bad, **target)
        for name in (*target, "accountant", "neighboring_relation"):
            answers(function, lambda _: event, **{**target, name: bad})
    answers(acc.calibrate_epochs, lambda _: event, bad, **target)
    answers(acc.calibrate_group_size, bad, **target)
    answers(acc.trajectory, lambda _: event, bad, 1e-5)
    answers(acc.trajectory, lambda _: event, [bad], 1e-5)
    answers(acc.trajectory, lambda _: bad, [1], 1e-5)
    answers(acc.trajectory, bad, [1], 1e-5)


def test_a_function_that_returns_no_event_is_named() -> None:
    with pytest.raises(ConfigError, match=r"make_event\(.*\) = 3 .* an event of dpml.accounting"):
        acc.calibrate_steps(lambda x: 3, epsilon=1.0, delta=1e-5)  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigError, match=r"make_event\(.*\) = 3"):
        acc.calibrate(lambda x: 3, advantage=0.1)  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigError, match=r"event_at\(1\) = 3"):
        acc.trajectory(lambda x: 3, [1], 1e-5)  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigError, match="steps = None"):
        acc.trajectory(lambda x: acc.Gaussian(1.0), None, 1e-5)  # type: ignore[arg-type]


def test_filters_answer_or_refuse() -> None:
    with pytest.raises(ConfigError, match="PrivacyFilter is what all filters share"):
        acc.PrivacyFilter(1.0, 1e-5, "add_remove", {})  # type: ignore[abstract]
    made = [acc.PureFilter(1.0), acc.ApproximateFilter(1.0, 1e-5), acc.ZcdpFilter(1.0, 1e-5)]
    state = acc.Odometer(1e-5, orders=[2.0]).state()
    for bad in STRANGE:
        for one in made:
            answers(one.admit, bad)
            answers(type(one), bad, 1e-5)
            answers(type(one), 1.0, bad)
            for key, value in itertools.product(one.state(), (bad, [bad])):
                answers(acc.PrivacyFilter.from_state, {**one.state(), key: value})
        answers(acc.RenyiFilter, 1.0, 1e-5, orders=bad)
        answers(acc.Odometer, bad)
        answers(acc.Odometer, 1e-5, orders=bad)
        answers(acc.Odometer(1e-5).record, bad)
        answers(acc.Odometer.from_state, bad)
        for key, value in itertools.product(state, (bad, [bad])):
            answers(acc.Odometer.from_state, {**state, key: value})


# ------------------------------------------------------------------------------------------------ the grid's bound


def test_pld_is_never_above_basic_composition() -> None:
    """10^12 pure releases of ε = 0.1 cost 10^11 by mere addition, where the grid says 5e15."""
    many = acc.SelfComposed(acc.Pure(0.1), 10**12)
    assert acc.epsilon(many, 1e-5, accountant="pld") == pytest.approx(1e11, rel=1e-12)
    assert acc.epsilon(acc.Laplace(5e-4), 1e-5, accountant="pld") == pytest.approx(2000, rel=1e-12)  # 1/b
    stated = acc.SelfComposed(acc.EpsilonDelta(0.1, 1e-7), 10)
    assert acc.epsilon(stated, 1.0000001e-6, accountant="pld") <= 1.0 + 1e-12
    assert acc.delta(stated, 1.0000001, accountant="pld") <= 1e-6 * (1 + 1e-12)
    assert acc.epsilon(stated, 9e-7, accountant="pld") == math.inf  # Σδ = 1e-6 is certain to be passed
    assert acc.epsilon(acc.Laplace(0.0), 1e-5, accountant="pld") == math.inf


def test_pld_reports_the_larger_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the second direction's search ends below the first one's."""
    found = iter([5.0, 1.0])
    monkeypatch.setattr(pld._Plan, "chernoff", lambda self, epsilon: 1.0)
    monkeypatch.setattr(pld, "_hockey_stick", lambda composed, epsilon: 1.0)
    monkeypatch.setattr(pld, "_solve", lambda composed, delta: next(found))
    assert pld.epsilon(acc.PoissonSampled(0.1, acc.Gaussian(1.0)), 1e-5, "add_remove") == 5.0
    assert next(found, None) is None


def test_roots_come_without_scipys_error() -> None:
    """Brent's method stops after 100 turns by default; from 1 to 1e-200 it needs more."""
    found = conversions.find_root(lambda x: math.log(max(x, 1e-320)) + 460.0, 0.0, 1.0, xtol=1e-300, rtol=1e-14)
    assert found == pytest.approx(math.exp(-460.0), rel=1e-9)


@pytest.mark.parametrize("digits", ["1e-400", "-4.2E-999", "0.00001e-330"])
def test_a_ledgers_number_never_vanishes(digits: str) -> None:
    """A charge that is not 0 must not be read as 0."""
    from dpml.accounting.ledger import strict_json

    with pytest.raises(ValueError, match="not a number that can be used"):
        strict_json(f'{{"epsilon": {digits}}}')
    assert strict_json('{"a": 0.0, "b": 0e5, "c": 5e-324, "d": 0}') == {"a": 0.0, "b": 0.0, "c": 5e-324, "d": 0}
