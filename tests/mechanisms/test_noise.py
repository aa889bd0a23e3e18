"""The secret noise source: right distributions, unpredictable, not copyable, blind to every global seed."""

import copy
import pickle
import random

import noise_faults
import numpy as np
import pytest
from randomgen import AESCounter
from scipy import stats

from dpml import errors
from dpml.mechanisms import FixedNoise, NoiseSource, SecretNoise, default_noise
from dpml.mechanisms import noise as noise_module

FALSE_ALARM = 1e-6
SAMPLE = 1_000_000


@pytest.mark.parametrize("make", [SecretNoise, lambda: SecretNoise(threads=3), lambda: FixedNoise(3)])
def test_normal_draws_are_normal_with_the_given_std(make):
    """Kolmogorov-Smirnov, 10⁶ draws.  False alarm 1e-6; a std wrong by 2 % moves the cdf by 0.0048 against a critical
    distance of 0.0027 and is missed with probability below 1e-4."""
    draws = make().normal(2.5, SAMPLE)
    assert stats.kstest(draws / 2.5, "norm").pvalue > FALSE_ALARM


@pytest.mark.parametrize("make", [SecretNoise, lambda: SecretNoise(threads=3), lambda: FixedNoise(4)])
def test_uniform_draws_are_uniform_on_the_half_open_interval(make):
    """Kolmogorov-Smirnov, 10⁶ draws.  False alarm 1e-6; coins of 0.5 that fall with 0.505 are missed below 1e-4."""
    draws = make().uniform(SAMPLE)
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    assert stats.kstest(draws, "uniform").pvalue > FALSE_ALARM


def test_the_tails_are_there():
    """Draws beyond 4 standard deviations in 10⁶: binomial with mean 63.3.  Two-sided false alarm 1e-6; a normal made
    of 4 uniforms, whose tail stops at 3.5, is always caught."""
    beyond = int((np.abs(SecretNoise().normal(1.0, SAMPLE)) > 4.0).sum())
    law = stats.binom(SAMPLE, 2 * stats.norm.sf(4.0))
    assert law.ppf(FALSE_ALARM / 2) <= beyond <= law.isf(FALSE_ALARM / 2)


def test_draws_are_not_correlated_within_or_between_streams():
    """Sample correlations of 10⁶ pairs, |r| < 5.5/1000.  False alarm 4e-8 each; r = 0.01 is missed below 1e-5."""
    source = SecretNoise()
    normal, uniform = source.normal(1.0, SAMPLE), source.uniform(SAMPLE)
    assert abs(np.corrcoef(normal[1:], normal[:-1])[0, 1]) < 5.5e-3
    assert abs(np.corrcoef(normal, uniform)[0, 1]) < 5.5e-3
    assert abs(np.corrcoef(np.abs(normal), uniform)[0, 1]) < 5.5e-3


def test_shapes_types_and_zero_std():
    source = SecretNoise()
    assert source.normal(1.0, (2, 3)).shape == (2, 3)
    assert source.normal(1.0, ()).shape == ()
    assert source.normal(1.0, 0).shape == (0,)
    assert source.uniform(np.int64(4)).shape == (4,)
    assert source.normal(1.0, 5).dtype == source.uniform(5).dtype == np.float64
    assert (source.normal(0.0, 7) == 0.0).all()


@pytest.mark.parametrize("std", [-1.0, float("nan"), float("inf")])
def test_a_std_that_is_no_std_is_refused_by_name(std):
    with pytest.raises(errors.ConfigError, match="std"):
        SecretNoise().normal(std, 3)


@pytest.mark.parametrize("shape", [-1, (2, -1), 1.5, True])
def test_a_shape_that_is_no_shape_is_refused(shape):
    with pytest.raises((errors.ConfigError, TypeError)):
        SecretNoise().normal(1.0, shape)


def test_two_sources_and_two_streams_differ():
    a, b = default_noise(), default_noise()
    assert not np.intersect1d(a.normal(1.0, 1000), b.normal(1.0, 1000)).size
    assert not np.intersect1d(a.uniform(1000), b.uniform(1000)).size
    noise_faults.streams_never_share_a_draw()


def test_global_seeds_have_no_influence():
    def draw():
        random.seed(7)
        np.random.seed(7)  # noqa: NPY002
        return default_noise().normal(1.0, 100)

    assert not np.intersect1d(draw(), draw()).size


def test_drawing_does_not_touch_the_global_generators():
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    before = (np.random.get_state()[1].copy(), random.getstate())  # noqa: NPY002
    default_noise().normal(1.0, 100)
    assert (np.random.get_state()[1] == before[0]).all()  # noqa: NPY002
    assert random.getstate() == before[1]


@pytest.mark.parametrize("operation", [pickle.dumps, copy.copy, copy.deepcopy])
def test_the_secret_source_cannot_be_copied(operation):
    with pytest.raises(TypeError, match="repeat the noise"):
        operation(SecretNoise())


def test_there_is_no_seed_and_no_key_to_see():
    with pytest.raises(TypeError):
        SecretNoise(seed=1)
    source = SecretNoise()
    assert repr(source) == str(source) == "SecretNoise()"
    assert [name for name in dir(source) if not name.startswith("_")] == ["normal", "rounded", "secret", "uniform"]
    with pytest.raises(AttributeError):
        source.secret = False


def test_keys_come_from_the_operating_system_and_are_full_length(monkeypatch):
    asked = []

    def randbits(bits):
        asked.append(bits)
        return len(asked)

    monkeypatch.setattr(noise_module.secrets, "randbits", randbits)
    source = SecretNoise(threads=3)
    assert asked == [128] * 7
    source.normal(1.0, noise_faults.LARGE)
    source.uniform(5)
    assert len(asked) == 7


def test_the_cipher_is_aes_128():
    """AES-128 of the zero block under the key of RFC 4493 (section 4) is 7df76b0c 1ab899b3 3e42f047 b91b546f."""
    key = int.from_bytes(bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c"), "little")
    stream = AESCounter(key=key, counter=0).random_raw(2)
    assert stream.astype("<u8").tobytes().hex() == "7df76b0c1ab899b33e42f047b91b546f"
    assert isinstance(noise_module._fresh_generator().bit_generator, AESCounter)


def test_a_forked_child_draws_other_noise():
    noise_faults.a_forked_child_draws_other_noise("pass")


def test_fixed_noise_keeps_its_values():
    """Tests and documents hold numbers that follow from these: numpy's PCG64 from spawned seeds."""
    normal, uniform = np.random.SeedSequence(5).spawn(2)
    source = FixedNoise(5)
    assert (source.normal(2.0, (2, 3)) == 2.0 * np.random.default_rng(normal).standard_normal((2, 3))).all()
    assert (source.uniform(4) == np.random.default_rng(uniform).random(4)).all()
    assert source.normal(1.0, 2)[0] == np.random.default_rng(normal).standard_normal(7)[6]


def test_fixed_noise_repeats_itself_says_so_and_checks_its_seed():
    a, b = FixedNoise(5), FixedNoise(5)
    assert (a.normal(2.0, 9) == b.normal(2.0, 9)).all()
    assert (a.uniform(9) == b.uniform(9)).all()
    assert (FixedNoise(6).normal(2.0, 9) != FixedNoise(5).normal(2.0, 9)).all()
    assert (a.secret, SecretNoise().secret) == (False, True)
    assert isinstance(a, NoiseSource)
    assert isinstance(SecretNoise(), NoiseSource)
    for seed in (-1, 1.5, True, "x"):
        with pytest.raises(errors.ConfigError, match="seed"):
            FixedNoise(seed)


def test_uniform_draws_do_not_depend_on_how_many_normals_were_drawn():
    a, b = FixedNoise(5), FixedNoise(5)
    a.normal(1.0, 1000)
    assert (a.uniform(5) == b.uniform(5)).all()
