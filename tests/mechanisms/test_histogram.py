"""Histograms of unknown keys: the threshold's δ, exactly, and what is listed."""

from __future__ import annotations

import itertools
import math

import mechanism_checks as checks
import numpy as np
import pytest

from dpml import accounting as acc
from dpml.errors import ConfigError, DataError
from dpml.mechanisms import FixedNoise, SecretNoise, ThresholdedHistogram
from dpml.mechanisms.histogram import bounded_counts


def test_delta_covers_the_mass_at_and_above_the_threshold() -> None:
    checks.histogram_delta_is_covered()
    checks.histogram_lists_as_charged()


def output_law(m, counts, cut):
    """P of every output, from the pmf: of each key "not listed" or its noisy count (all beyond ``cut`` are one)."""
    z = np.arange(-cut, cut + 1)
    pmf = np.exp(-np.abs(z) / m.counts.scale) if m.epsilon is not None else np.exp(-(z**2) / (2 * m.counts.std**2))
    pmf = pmf / pmf.sum()
    size = cut - m.threshold + 1
    laws = []
    for count in counts:
        law = np.zeros(size + 1)
        if count == 0:
            law[0] = 1.0
        else:
            for noise, probability in zip(z, pmf, strict=True):
                listed = count + noise
                law[0 if listed < m.threshold else min(listed - m.threshold, size - 1) + 1] += probability
        laws.append(law)
    out = laws[0]
    for law in laws[1:]:
        out = np.multiply.outer(out, law)
    return out.ravel()


@pytest.mark.parametrize(
    "m",
    [
        ThresholdedHistogram(delta=1e-2, epsilon=1.0, changes=2),
        ThresholdedHistogram(delta=1e-3, epsilon=2.0, changes=2),
        ThresholdedHistogram(delta=1e-2, rho=0.1, changes=2),
    ],
    ids=["laplace", "laplace2", "gaussian"],
)
def test_two_worlds_exactly(m) -> None:
    """All outputs of two keys, one record more: both keys new, one new, none; and replaced: one goes, one comes."""
    cut = 120
    worlds = [((3, 0), (4, 1)), ((0, 0), (1, 1)), ((m.threshold, 5), (m.threshold + 1, 6)), ((1, 0), (0, 1))]
    for before, after in worlds:
        first, second = output_law(m, before, cut), output_law(m, after, cut)
        if m.epsilon is not None:
            spent = m.event.delta
            for p, q in ((first, second), (second, first)):
                assert np.maximum(p - math.exp(m.epsilon) * q, 0).sum() <= spent * (1 + 1e-9)
        checks.profile_holds(first, second, m.event)


def test_thresholds_are_the_smallest_and_grow() -> None:
    for epsilon, changes in itertools.product((0.1, 1.0, 5.0), (1, 2, 50)):
        last = 1
        for delta in (0.3, 1e-2, 1e-5, 1e-10):
            m = ThresholdedHistogram(delta=delta, epsilon=epsilon, changes=changes)
            assert m.delta_at(m.threshold) <= delta
            assert m.threshold == 2 or m.delta_at(m.threshold - 1) > delta
            assert m.threshold >= last
            last = m.threshold
            assert m.event == acc.EpsilonDelta(epsilon, m.delta_at(m.threshold))
    gaussian = ThresholdedHistogram(delta=1e-6, rho=0.05, changes=3)
    assert gaussian.event == acc.Composed(
        (acc.ZCDP(0.05), acc.EpsilonDelta(0.0, gaussian.delta_at(gaussian.threshold)))
    )
    assert gaussian.counts.std == pytest.approx(math.sqrt(3 / 0.1), rel=1e-9)
    wide = ThresholdedHistogram(delta=1e-6, rho=1e-12)
    assert wide.threshold == pytest.approx(wide.counts.std * 4.753, rel=1e-3), "bounded, not summed"


def test_rare_keys_are_not_listed_and_large_counts_are() -> None:
    """One of 1,000 keys of count 1 is listed with probability < 1e-9·1000; counts are within the error at 1e-9."""
    for m in (ThresholdedHistogram(delta=1e-12, epsilon=1.0), ThresholdedHistogram(delta=1e-12, rho=0.5)):
        counts = {f"rare {i}": 1 for i in range(1000)} | {"a": 500, "b": 1000}
        answer = m.release(counts, SecretNoise())
        assert list(answer.value) == ["a", "b"]
        for key, noisy in answer.value.items():
            assert abs(noisy - counts[key]) <= m.error(1e-9)
            low, high = answer.interval(1e-9)[key]
            assert low <= counts[key] <= high
            assert isinstance(noisy, int)
        assert m.release({}).value == {}
        assert m.release({"a": 0, "b": 0}).value == {}


def test_the_order_tells_nothing() -> None:
    m = ThresholdedHistogram(delta=1e-3, epsilon=1.0)
    counts = dict.fromkeys(("z", "a", 3, "m", (1, 2)), 1000)
    forwards = m.release(counts, FixedNoise(0)).value
    backwards = m.release(dict(reversed(counts.items())), FixedNoise(1)).value
    assert list(forwards) == list(backwards)


def test_counts_of_bounded_records() -> None:
    records = [["a", "b", "c"], ["a", "a", "b"], "word", [], [None, float("nan"), [1], "a"]]
    assert bounded_counts(records, 2) == {"a": 3, "b": 2, "word": 1}
    assert bounded_counts(records, 1) == {"a": 3, "word": 1}
    whole = bounded_counts(records, 3)
    for left_out in range(len(records)):
        others = bounded_counts(records[:left_out] + records[left_out + 1 :], 3)
        changed = {key for key in whole if whole[key] != others.get(key, 0)}
        assert len(changed) <= 3
        assert all(whole[key] - others.get(key, 0) == 1 for key in changed)
    with pytest.raises(ConfigError, match="max_keys"):
        bounded_counts(records, 0)


@pytest.mark.parametrize(
    "value", [None, [1, 2], "ab", {"a": -1}, {"a": 0.5}, {"a": True}, {"a": float("nan")}, {"a": 2**61}]
)
def test_bad_values(value) -> None:
    with pytest.raises(DataError):
        ThresholdedHistogram(delta=1e-3, epsilon=1.0).release(value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"delta": 1e-5},
        {"delta": 1e-5, "epsilon": 1.0, "rho": 1.0},
        {"delta": 0.0, "epsilon": 1.0},
        {"delta": 1.0, "epsilon": 1.0},
        {"delta": float("nan"), "epsilon": 1.0},
        {"delta": 1e-5, "epsilon": 0.0},
        {"delta": 1e-5, "epsilon": float("inf")},
        {"delta": 1e-5, "epsilon": -1.0},
        {"delta": 1e-5, "rho": 0.0},
        {"delta": 1e-5, "epsilon": 1.0, "changes": 0},
        {"delta": 1e-5, "epsilon": 1.0, "changes": 1.5},
        {"delta": 1e-5, "epsilon": 1.0, "changes": 10**7},
    ],
    ids=str,
)
def test_bad_arguments(arguments) -> None:
    with pytest.raises(ConfigError):
        ThresholdedHistogram(**arguments)
