"""Permute-and-flip against its definition by enumeration."""

from __future__ import annotations

import numpy as np
import pytest
import selection_checks as checks
from accounting_tables import rows

from dpml import accounting as acc
from dpml.mechanisms import (
    PermuteAndFlipMechanism,
    SecretNoise,
    exponential_probabilities,
    permute_and_flip_probabilities,
)


def test_reference_probabilities():
    for row in rows("mechanisms", "permute_and_flip"):
        scores = [float(text) for text in row["inputs"]["scores"]]
        given = (float(row["inputs"][key]) for key in ("epsilon", "sensitivity"))
        assert checks.close(row, permute_and_flip_probabilities(scores, *given)), row


@pytest.mark.parametrize("monotonic", [False, True])
def test_enumeration_of_orders(monotonic):
    rng = np.random.default_rng(2)
    for size in (1, 2, 5, 7):
        scores = rng.normal(size=size) * 3
        got = permute_and_flip_probabilities(scores, 0.8, 1.5, monotonic=monotonic)
        assert np.allclose(got, checks.by_permutations(scores, 1.5 * (1 if monotonic else 2) / 0.8), rtol=1e-12, atol=0)


def test_draws():
    """Power against candidates in a fixed order (the first of 10, 9, 7 is always accepted): 1."""
    checks.check_sampler("permute_and_flip")
    assert checks.power(checks.race("exponential", "1"), [1 - 2e-9, 1e-9, 1e-9]) > 1 - 1e-9


def test_order_of_candidates_does_not_matter():
    """The best one last: draws follow the definition, too.  Power against a fixed order, above 1 − 1e-9."""
    scores = [0.0, 1.0, 2.0]
    expected = checks.by_permutations(scores, 2.0)
    mechanism, noise = PermuteAndFlipMechanism(3, 1.0, 1.0), SecretNoise()
    checks.chi_square(checks.counted(lambda: mechanism.release(scores, noise).value, range(3)), expected)
    a, b = np.exp(-1.0), np.exp(-0.5)
    assert checks.power(expected, [a, (1 - a) * b, (1 - a) * (1 - b)]) > 1 - 1e-9


def test_never_worse_than_the_exponential_mechanism():
    rng = np.random.default_rng(4)
    for _ in range(20):
        scores = rng.normal(size=6) * 4
        flip, other = (f(scores, 1.0, 1.0) for f in (permute_and_flip_probabilities, exponential_probabilities))
        order = np.argsort(scores)
        assert (np.cumsum(flip[order]) <= np.cumsum(other[order]) + 1e-12).all()  # stochastic dominance


def test_many_candidates():
    chances = permute_and_flip_probabilities(np.random.default_rng(0).normal(size=3000) * 5, 1.0, 1.0)
    assert chances.sum() == pytest.approx(1.0, abs=1e-12)
    assert permute_and_flip_probabilities(np.zeros(500), 1.0, 1.0) == pytest.approx(np.full(500, 0.002), rel=1e-12)


def test_event_and_equal_scores():
    mechanism = PermuteAndFlipMechanism(["a", "b"], 1.0, 0.5)
    assert mechanism.event == acc.PermuteAndFlip(0.5)
    assert mechanism.release([0.0, 1e5]).value == "b"
    noise = SecretNoise()
    checks.chi_square(checks.counted(lambda: mechanism.release([1.0, 1.0], noise).value, "ab", 4000), [0.5, 0.5])
