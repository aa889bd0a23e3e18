"""What a release gives back, and the checks that stand before every release."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from dpml import accounting as acc
from dpml import mechanisms
from dpml.errors import ConfigError, DataError
from dpml.mechanisms import (
    Answer,
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    FixedNoise,
    GaussianMechanism,
    LaplaceMechanism,
    MetricMechanism,
    RandomizedResponseMechanism,
    SecretNoise,
    ThresholdedHistogram,
    answers,
)

NUMERIC = (
    LaplaceMechanism(1.0, 0.5),
    GaussianMechanism(1.0, epsilon=1.0, delta=1e-5),
    DiscreteLaplaceMechanism(1, 0.5),
    DiscreteGaussianMechanism(1, rho=0.1),
    MetricMechanism(1.0, 0.5, norm="l2"),
)


@pytest.mark.parametrize("mechanism", NUMERIC, ids=lambda m: type(m).__name__)
def test_an_answer_delegates_and_shows_nothing_else(mechanism) -> None:
    answer = mechanism.release(1_234_567, FixedNoise(0))
    assert answer.event == mechanism.event
    assert answer.error(0.1) == mechanism.error(0.1)
    low, high = answer.interval(0.1)
    assert (low, high) == pytest.approx((answer.value - answer.error(0.1), answer.value + answer.error(0.1)))
    assert isinstance(mechanism, answers.Mechanism)
    assert answer.value != 1_234_567
    assert "1234567" not in repr(answer).replace("_", "")
    assert repr(answer) == (
        f"Answer(value={answer.value!r}, event={mechanism.event!r}, error(0.05)={mechanism.error(0.05)!r})"
    )
    assert set(vars(answer)) == {"value", "mechanism"}
    with pytest.raises(FrozenInstanceError):
        answer.value = 0
    with pytest.raises(FrozenInstanceError):
        mechanism.epsilon = 100.0


@pytest.mark.parametrize("mechanism", NUMERIC, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), None, "1", [1.0, 2.0], [], {}, 1j, True])
def test_a_value_that_is_not_one_finite_number_is_refused_before_noise(mechanism, value) -> None:
    class Untouched:
        secret = True

        def uniform(self, size):
            raise AssertionError("noise was drawn")

        normal = uniform

    with pytest.raises(DataError):
        mechanism.release(value, Untouched())


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.1, 1.5, float("nan"), None, "0.05", True])
def test_beta_outside_the_open_interval(beta) -> None:
    for mechanism in (
        *NUMERIC,
        RandomizedResponseMechanism(epsilon=1.0),
        ThresholdedHistogram(delta=0.01, epsilon=1.0),
    ):
        with pytest.raises(ConfigError, match="beta"):
            mechanism.error(beta)


def test_noise_sources() -> None:
    for wrong in (3, "secret", SecretNoise, np.random.default_rng(0)):
        with pytest.raises(ConfigError, match="noise"):
            LaplaceMechanism(1.0, 1.0).release(0.0, wrong)
    first, second = (LaplaceMechanism(1.0, 1.0).release(0.0).value for _ in range(2))
    assert first != second, "without a source every release has fresh secret noise"
    same = [LaplaceMechanism(1.0, 1.0).release(0.0, FixedNoise(3)).value for _ in range(2)]
    assert same[0] == same[1]


def test_no_interval_for_what_is_no_number() -> None:
    class Chosen:
        event = acc.Pure(1.0)

        def error(self, beta):
            return 1.0

    with pytest.raises(ConfigError, match="Chosen"):
        Answer("b", Chosen()).interval()


def test_a_message_holds_no_entry() -> None:
    for wrong in ([31415.0, float("nan")], [31415.0, "x"], [31415.0]):
        with pytest.raises(DataError) as caught:
            LaplaceMechanism(1.0, 1.0, dimension=2).release(wrong)
        assert "31415" not in str(caught.value)
    with pytest.raises(DataError) as caught:
        DiscreteLaplaceMechanism(1, 1.0).release(31415.5)
    assert "31415" not in str(caught.value)


def test_whole_numbers_that_a_double_may_not_hold_are_refused() -> None:
    """2^60 + 128 and 2^60 + 129 are one apart; their nearest doubles are 256 apart."""
    assert abs(float(2**60 + 129) - float(2**60 + 128)) == 256
    for value in (2**60 + 128, np.int64(-(2**62)), np.uint64(2**63), np.array([0, 2**53 + 1])):
        with pytest.raises(DataError, match="beyond 2\\^53"):
            answers.finite_values(value, np.size(value))
    assert answers.finite_values(2.0**60, 1) == 2.0**60  # a double is what it is
    assert answers.finite_values(np.int64(-(2**53)), 1) == -(2.0**53)
    assert answers.finite_values([[1, -2]], 2).tolist() == [[1.0, -2.0]]


def test_inputs_are_not_changed_and_shapes_kept() -> None:
    for mechanism in (
        LaplaceMechanism(1.0, 1.0, dimension=6),
        GaussianMechanism(1.0, rho=0.5, dimension=6),
        DiscreteLaplaceMechanism(1, 1.0, dimension=6),
        DiscreteGaussianMechanism(1, rho=0.5, dimension=6),
        *(MetricMechanism(1.0, 1.0, norm=norm, dimension=6) for norm in ("l1", "l2", "linf")),
    ):
        value = np.arange(6.0).reshape(2, 3)
        kept = value.copy()
        answer = mechanism.release(value)
        assert (value == kept).all()
        assert answer.value.shape == (2, 3)
        low, high = answer.interval()
        assert (low < answer.value).all()
        assert (answer.value < high).all()


def test_noise_alone_loads_no_accounting() -> None:
    code = "import sys, dpml.mechanisms\nprint(*[name for name in sys.modules if name.startswith('dpml.accounting')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.split()


def test_public_names() -> None:
    for name in mechanisms.__all__:
        assert getattr(mechanisms, name) is not None
    assert set(mechanisms.__all__) <= set(dir(mechanisms))
    with pytest.raises(AttributeError, match="LaplaceMechanisms"):
        _ = mechanisms.LaplaceMechanisms
