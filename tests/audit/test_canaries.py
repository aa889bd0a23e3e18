"""Canaries and scores: what they are by definition, and that coins are fair."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from dpml import audit
from dpml.errors import ConfigError, DataError


@pytest.mark.parametrize("kind", ["random", "dirac"])
def test_gradient_canaries_have_the_norm(kind: str) -> None:
    canaries = audit.gradient_canaries(40, 60, norm=0.5, kind=kind, seed=1)
    assert canaries.shape == (40, 60)
    assert np.allclose(np.linalg.norm(canaries, axis=1), 0.5, rtol=1e-5)
    assert np.linalg.matrix_rank(canaries) == 40
    if kind == "dirac":
        assert np.array_equal(np.count_nonzero(canaries, axis=1), np.ones(40))
        assert np.allclose(canaries @ canaries.T, 0.25 * np.eye(40))
    else:
        assert abs(float(canaries.mean())) < 6 * 0.5 / math.sqrt(60 * 2400)
    assert not np.array_equal(canaries, audit.gradient_canaries(40, 60, norm=0.5, kind=kind, seed=2))


def test_coins_are_fair_and_fresh() -> None:
    """20,000 coins within 6 standard deviations of half; pairs of neighbours too (false alarm 4e-9)."""
    coins = audit.fair_coins(20_000)
    assert coins.dtype == np.bool_
    assert abs(int(coins.sum()) - 10_000) < 6 * math.sqrt(5000)
    assert abs(int((coins[1:] == coins[:-1]).sum()) - 10_000) < 6 * math.sqrt(5000) + 1
    assert not np.array_equal(coins, audit.fair_coins(20_000))
    assert np.array_equal(audit.fair_coins(50, seed=3), audit.fair_coins(50, seed=3))


def test_input_canaries_are_as_long_as_allowed() -> None:
    rows, labels = audit.input_canaries(300, 7, 3, norm_bound=2.0, seed=0)
    assert np.allclose(np.linalg.norm(rows, axis=1), 2.0, rtol=1e-12)
    assert set(labels) == {0, 1, 2}


def test_mislabelled_is_always_wrong_and_uniform() -> None:
    labels = np.repeat(np.arange(4), 3000)
    wrong = audit.mislabelled(labels, 4, seed=0)
    assert not np.any(wrong == labels)
    counts = np.bincount(wrong[labels == 1], minlength=4)
    assert counts[1] == 0
    assert stats.chisquare(counts[[0, 2, 3]]).pvalue > 1e-6
    with pytest.raises(DataError):
        audit.mislabelled([0, 4], 4)
    with pytest.raises(DataError):
        audit.mislabelled([0.5], 4)


def test_shares_are_one_for_a_canary_that_is_there_alone() -> None:
    canaries = audit.gradient_canaries(5, 8, norm=3.0, kind="dirac", seed=0).astype(float)
    shares = audit.projections(canaries, np.stack([canaries[2], canaries[0] + 2 * canaries[2]]), 3.0)
    expected = np.zeros((5, 2))
    expected[2] = [1, 2]
    expected[0, 1] = 1
    assert np.allclose(shares, expected)
    assert np.allclose(audit.white_box_scores(shares), expected.sum(axis=1))
    with pytest.raises(DataError):
        audit.projections(canaries, np.zeros((2, 7)), 3.0)


@pytest.mark.parametrize("q", [0.2, 1.0])
def test_likelihood_scores_are_log_ratios_of_densities(q: float) -> None:
    shares, sigma = np.array([[0.3, -1.0, 2.0], [5.0, 0.0, 0.5]]), 0.8
    out = stats.norm.pdf(shares, 0, sigma)
    inside = (1 - q) * out + q * stats.norm.pdf(shares, 1, sigma)
    assert np.allclose(audit.likelihood_scores(shares, q, sigma), np.log(inside / out).sum(axis=1))
    assert np.isfinite(audit.likelihood_scores(np.array([[1e6, -1e6]]), q, 1e-2)).all()


def test_black_box_scores_are_higher_for_what_was_learnt() -> None:
    assert audit.black_box_scores([1.0, 1.0], [0.25, 1.5]).tolist() == [0.75, -0.5]
    with pytest.raises(DataError):
        audit.black_box_scores([1.0], [1.0, 2.0])


def test_refusals() -> None:
    for call in (
        lambda: audit.gradient_canaries(5, 4, norm=1.0, kind="dirac"),
        lambda: audit.gradient_canaries(5, 4, norm=0.0),
        lambda: audit.gradient_canaries(5, 4, norm=1.0, kind="sparse"),
        lambda: audit.fair_coins(0),
        lambda: audit.likelihood_scores([[1.0]], 0.0, 1.0),
        lambda: audit.likelihood_scores([[1.0]], 0.5, 0.0),
        lambda: audit.mislabelled([0], 1),
    ):
        with pytest.raises(ConfigError):
            call()


def test_a_black_box_audit_of_noisy_means_end_to_end() -> None:
    """Input canaries against a released mean with Laplace noise per coordinate: the bound stays below the truth.

    Each run releases the sum of one row in {−1, 1} or nothing, with Laplace(1/2) noise: ε = 2."""
    rng = np.random.default_rng(6)

    def run(world: int, count: int) -> np.ndarray:
        released = world + rng.laplace(0, 0.5, count)
        return audit.black_box_scores(np.ones(count), (released - 1) ** 2)

    found = audit.distinguish(run, runs=50_000, delta=0.0, confidence=0.999)
    assert 1.0 < found.epsilon_lower <= 2.0


def test_an_audit_loads_no_engine() -> None:
    """What attacks shares no code with what is attacked."""
    code = "import sys\nimport dpml.audit\nprint(*sorted(sys.modules))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "dpml.audit.one_run" in loaded
    kinds = ("torch", "opacus", "hydra", "dpml.sgd", "dpml.mechanisms", "dpml.data", "dpml.erm", "dpml.trainer")
    assert not [name for name in loaded if name.startswith(kinds)]
