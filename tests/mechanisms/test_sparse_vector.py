"""Sparse vector: exact output probabilities by quadrature, draws, budget, what may leave."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import threading
from fractions import Fraction

import numpy as np
import pytest
import selection_checks as checks

from dpml import accounting as acc
from dpml import errors
from dpml.mechanisms import AboveThreshold, FixedNoise, SecretNoise, sparse_vector


@pytest.mark.parametrize("name", checks.VARIANTS)
def test_no_answers_cost_more_than_epsilon(name):
    checks.check_stream_cost(name)


@pytest.mark.parametrize("name", checks.VARIANTS)
def test_long_streams_cost_no_more(name):
    checks.check_long_stream_cost(name)


@pytest.mark.parametrize("name", ["two", "redraw"])
def test_answers_follow_the_integrals(name):
    """Power against query noise of half the scale is above 1 − 1e-9 (computed below)."""
    checks.check_stream_sampler(name)
    mechanism = AboveThreshold(**{**checks.STREAM, "epsilon": 4.0}, **checks.VARIANTS[name])
    faulty = AboveThreshold(**{**checks.STREAM, "epsilon": 8.0}, **checks.VARIANTS[name])
    outcomes = checks.possible_answers(3, 2)
    p, q = (
        [checks.stream_probability(m, [0.5, -0.5, 0.25][: len(a)], a) for a in outcomes] for m in (mechanism, faulty)
    )
    assert checks.power(p, q) > 1 - 1e-9


def test_one_query_has_a_closed_form():
    """T + Lap(b₁) <= q + Lap(b₂) at equal scales b: P(sum of two Laplace <= q − T) = 1 − (2 + t)/4 · e^{-t}."""
    mechanism = AboveThreshold(10.0, 1.0, 3.0, threshold_share=1 / 3)  # Δ/ε₁ = 1 and 2Δ/ε₂ = 1
    assert float(mechanism.threshold_scale) * mechanism.spacing == pytest.approx(1.0, rel=1e-12)
    assert float(mechanism.query_scale) * mechanism.spacing == pytest.approx(1.0, rel=1e-12)
    for t in (0.0, 1.0, 4.0):
        expected = 1 - (2 + t) / 4 * math.exp(-t)
        assert checks.segment_probability(mechanism, [10.0 + t], [True]) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("monotonic", "moves"), [(False, 2), (True, 1)])
def test_scales(monotonic, moves):
    """ε₁ + ε₂ = ε exactly; Lap(Δ/ε₁) and Lap(moves·cΔ/ε₂), or Lap(cΔ/ε₁) where the threshold is redrawn."""
    for redraw in (False, True):
        mechanism = AboveThreshold(0.0, 3.0, 0.7, positives=5, monotonic=monotonic, redraw=redraw)
        first, second = mechanism.budgets
        assert first + second == Fraction(0.7)
        step = Fraction(mechanism.spacing)
        assert mechanism.threshold_scale * step >= Fraction(3) * (5 if redraw else 1) / first
        assert mechanism.query_scale * step >= Fraction(3) * 5 * moves / second
        assert mechanism.query_scale * step <= Fraction(3) * 5 * moves / second * Fraction(1 + 2.0**-18)
        assert 2**19 <= mechanism.steps <= 2**20


def test_the_default_split_has_the_smallest_variance():
    for options in ({}, {"monotonic": True}, {"redraw": True}):

        def spread(share, options=options):
            one = AboveThreshold(0.0, 1.0, 1.0, positives=4, threshold_share=share, **options)
            return float(one.threshold_scale) ** 2 + float(one.query_scale) ** 2

        chosen = float(AboveThreshold(0.0, 1.0, 1.0, positives=4, **options).budgets[0])
        assert spread(chosen) == pytest.approx(min(spread(s) for s in np.linspace(0.02, 0.98, 481)), rel=1e-3)


def test_answers_end_with_the_last_positive():
    mechanism = AboveThreshold(0.0, 1.0, 1.0, positives=2)
    answer = mechanism.release([-1e4, 1e4, -1e4, 1e4, 1e4, -1e4], FixedNoise(0))
    assert answer.value == (False, True, False, True)
    assert answer.event == acc.Pure(1.0)
    stream = mechanism.start(FixedNoise(0))
    assert [stream.ask(q) for q in (1e4, -1e4, 1e4)] == [True, False, True]
    assert stream.remaining == 0
    with pytest.raises(errors.ConfigError, match="ended"):
        stream.ask(-1e4)
    assert mechanism.release([], FixedNoise(0)).value == ()
    assert len(mechanism.release(np.full(40_000, -1e4), FixedNoise(0)).value) == 40_000


def test_asking_one_by_one_follows_the_same_probabilities():
    """``ask`` and ``release`` are the same mechanism: chi-square of ``ask`` on two queries."""
    mechanism, noise = AboveThreshold(0.0, 1.0, 4.0, positives=2), SecretNoise()
    outcomes = checks.possible_answers(2, 2)
    expected = [checks.stream_probability(mechanism, [0.5, -0.5], a) for a in outcomes]

    def draw():
        stream = mechanism.start(noise)
        return stream.ask(0.5), stream.ask(-0.5)

    checks.chi_square(checks.counted(draw, outcomes, 6000), expected)


def test_numbers_are_paid_for_and_have_noise_of_their_own():
    assert AboveThreshold(0.0, 1.0, 1.0, value_epsilon=0.5).event == acc.Pure(1.5)
    assert Fraction(AboveThreshold(0.0, 1.0, 0.1, value_epsilon=0.7).event.epsilon) >= Fraction(0.1) + Fraction(0.7)
    checks.check_released_number_has_its_own_noise()
    answer = AboveThreshold(0.0, 1.0, 1.0, positives=2, value_epsilon=0.5).release([-1e4, 1e4, 1e5], FixedNoise(0))
    assert answer.value[0] is False
    assert all(isinstance(part, float) for part in answer.value[1:])
    assert all(
        part / answer.mechanism.spacing == math.floor(part / answer.mechanism.spacing) for part in answer.value[1:]
    )


def test_errors_hold():
    """Of 200 streams of 50 queries that far from the threshold, about β = 5 % at most go wrong (bound: 1e-6 tail)."""
    for options in ({}, {"redraw": True}):
        mechanism, noise = AboveThreshold(5.0, 1.0, 1.0, positives=3, **options), SecretNoise()
        far = mechanism.error(0.05, queries=53)
        queries = [5.0 - far] * 50 + [5.0 + far] * 3
        right = (False,) * 50 + (True,) * 3
        wrong = sum(mechanism.release(queries, noise).value != right for _ in range(200))
        assert wrong <= 28  # binomial(200, 0.05) exceeds it with probability 4e-7
    one = AboveThreshold(5.0, 1.0, 1.0, value_epsilon=0.5)
    assert one.value_error(0.05) == pytest.approx(math.log(20) / 0.5, rel=1e-4)
    with pytest.raises(errors.ConfigError, match="value_epsilon"):
        mechanism.value_error(0.05)


def test_floats_and_whole_steps():
    """floor(value/2^e) without rounding: neighbouring queries at most Δ apart are at most N steps apart."""
    rng = np.random.default_rng(1)
    for sensitivity in (1.0, 0.1, 3.7, 1e-9, 1e9):
        mechanism = AboveThreshold(0.0, sensitivity, 1.0)
        for value in (rng.normal(size=50) * sensitivity * 1e3).tolist():
            other = value + sensitivity
            if Fraction(other) - Fraction(value) > Fraction(sensitivity):
                other = math.nextafter(other, -math.inf)
            low, high = (sparse_vector.to_steps(v, mechanism.spacing_exponent) for v in (value, other))
            assert 0 <= high - low <= mechanism.steps
    assert sparse_vector.to_steps(-5e-324, 0) == -1
    assert sparse_vector.to_steps(1e308, -20) == int(1e308) << 20
    assert sparse_vector.from_steps(3, 0.25) == 0.75
    assert sparse_vector.from_steps(int(1e308) << 30, 1.0) == pytest.approx(1.7976931348623157e308)
    value = AboveThreshold(0.0, 1.0, 1.0, value_epsilon=1.0).release([1.7e308]).value[0]
    assert math.isfinite(value)


def test_streams_can_not_be_copied():
    stream = AboveThreshold(0.0, 1.0, 1.0).start(FixedNoise(0))
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="copied"):
            make(stream)
    assert "limit" not in repr(stream)
    assert repr(stream).endswith("remaining=1)")


def test_threads_share_the_positive_answers():
    stream, given, lock = AboveThreshold(0.0, 1.0, 1.0, positives=10).start(), [], threading.Lock()

    def work():
        for _ in range(20):
            try:
                answer = stream.ask(1e6)
            except errors.ConfigError:
                return
            with lock:
                given.append(answer)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert given == [True] * 10


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("threshold", {"threshold": math.nan}),
        ("threshold", {"threshold": math.inf}),
        ("sensitivity", {"sensitivity": 0.0}),
        ("sensitivity", {"sensitivity": math.inf}),
        ("epsilon", {"epsilon": 0.0}),
        ("epsilon", {"epsilon": math.nan}),
        ("positives", {"positives": 0}),
        ("positives", {"positives": 1.5}),
        ("monotonic", {"monotonic": 1}),
        ("redraw", {"redraw": "no"}),
        ("value_epsilon", {"value_epsilon": -1.0}),
        ("value_epsilon", {"value_epsilon": 1e-200}),
        ("threshold_share", {"threshold_share": 0.0}),
        ("threshold_share", {"threshold_share": 1.0}),
    ],
)
def test_bad_arguments_are_refused_by_name(name, change):
    with pytest.raises(errors.ConfigError, match=f"^{name} = "):
        AboveThreshold(**{**checks.STREAM, **change})


@pytest.mark.parametrize("query", [math.nan, math.inf, "a", [1.0, 2.0]])
def test_a_bad_query_is_refused_and_uses_nothing(query):
    stream = AboveThreshold(**checks.STREAM).start(FixedNoise(0))
    with pytest.raises(errors.DataError):
        stream.ask(query)
    assert stream.remaining == 1
    with pytest.raises(errors.DataError):
        AboveThreshold(**checks.STREAM).release([0.0, math.nan])


def test_possible_answers_of_the_checks():
    assert checks.possible_answers(2, 1) == [(False, False), (False, True), (True,)]
    assert len(checks.possible_answers(3, 2)) == len(set(itertools.product((0, 1), repeat=3))) - 1
