"""Expected batches end where the proof on rounding in a sum ends, by public numbers and with an exact bound."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
import silent_checks as checks
from hypothesis import given
from hypothesis import strategies as st

from dpml import PrivateData, PrivateTrainer
from dpml.errors import ConfigError
from dpml.mechanisms import lattice
from dpml.sgd.batch_limits import largest_batch, overflow_bound

DECLARED = (1000, 2**20, 2**20 + 1, 2**20 + 5000, 1_100_000, 3_000_000, 10**7, 10**9)


@pytest.mark.parametrize("n", DECLARED)
def test_a_poisson_batch_of_the_largest_size_passes_the_limit_with_probability_below_1e_12(n):
    """Against scipy's exact binomial tail; the bound is no more than 1 % of the batch away from what is possible."""
    largest = largest_batch(n)
    tail = scipy.stats.binom.sf(lattice.MAX_RECORDS, n, largest / n)
    assert tail <= overflow_bound(n, largest) * (1 + 1e-6) + 1e-300
    assert tail <= 1e-12
    assert largest == n or overflow_bound(n, largest + 1) > 1e-12
    assert largest >= min(n, 1_040_900)


@given(st.integers(2, 400), st.integers(1, 400), st.integers(1, 399))
def test_the_bound_on_a_batch_is_above_the_exact_tail(n, batch, most):
    batch = min(batch, n)
    exact = scipy.stats.binom.sf(most, n, batch / n)
    assert exact <= overflow_bound(n, batch, most) * (1 + 1e-9) + 1e-300


def test_the_margin_holds_for_a_fifth_more_records_than_declared():
    """(1 - 2^-10)(1 + 2^-13) + 2^-11 + 2 γ B <= 1 in exact numbers for B up to 22 % above 2^20, not for 25 %."""

    def margin(records):
        gamma = Fraction(records, 2**53) / (1 - Fraction(records, 2**53))
        shrink = 1 - Fraction(1, 2**10)
        return 1 - shrink * (1 + Fraction(1, 2**13)) - Fraction(1, 2**11) - 2 * gamma * records * shrink

    assert margin(lattice.MAX_RECORDS * 122 // 100) > 0 > margin(lattice.MAX_RECORDS * 125 // 100)
    n = 10**8  # a fifth more than declared
    tail = scipy.stats.binom.sf(lattice.MAX_RECORDS * 122 // 100, n * 12 // 10, largest_batch(n) / n)
    assert tail < 1e-12


def test_larger_batches_are_refused_from_public_numbers():
    checks.larger_batches_are_refused()


def test_the_default_batch_stops_at_the_limit():
    assert checks.planned(n_declared=10**9, expected_batch_size=None).expected_batch_size == largest_batch(10**9)
    assert checks.planned(n_declared=4000, expected_batch_size=None).expected_batch_size == 1000


def test_a_trainer_refuses_it_without_reading():
    X = np.zeros((4, 2))
    data = PrivateData.from_arrays(X, [0, 1, 0, 1], norm_bound=1.0, classes=[0, 1], n_declared=10**7)
    trainer = PrivateTrainer("logreg", "dp_sgd", expected_batch_size=2_000_000, steps=10, device="cpu")
    for look in (trainer.check, trainer.plan):
        with pytest.raises(ConfigError, match=r"expected_batch_size = 2000000 .* at most 10[0-9]+ for n_declared"):
            look(data)
