"""The Gaussian mechanism adds exactly the noise that it is told to, on every coordinate."""

import numpy as np
import pytest
from scipy import stats

from dpml import errors
from dpml.mechanisms import FixedNoise, SecretNoise, add_gaussian, gaussian_std


def test_noise_has_the_product_of_sensitivity_and_multiplier_as_std():
    """Chi-square of 10⁵ draws.  Two-sided false alarm 1e-6; a std wrong by 3 % is missed below 1e-9."""
    d = 100_000
    noised = add_gaussian(np.full(d, 4.0), sensitivity=0.5, noise_multiplier=3.0, noise=SecretNoise())
    square_sum = float((((noised - 4.0) / 1.5) ** 2).sum())
    assert stats.chi2(d).ppf(5e-7) < square_sum < stats.chi2(d).isf(5e-7)


def test_input_is_untouched_and_shape_kept():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    noised = add_gaussian(values, sensitivity=1.0, noise_multiplier=1.0, noise=FixedNoise(0))
    assert noised.shape == (2, 3)
    assert noised.dtype == np.float64
    assert (values == np.arange(6).reshape(2, 3)).all()
    assert (noised != values).all()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sensitivity", {"sensitivity": -1.0, "noise_multiplier": 1.0}),
        ("sensitivity", {"sensitivity": float("inf"), "noise_multiplier": 1.0}),
        ("noise_multiplier", {"sensitivity": 1.0, "noise_multiplier": float("nan")}),
    ],
)
def test_bad_numbers_are_refused_by_name(name, arguments):
    with pytest.raises(errors.ConfigError, match=name):
        gaussian_std(**arguments)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_without_a_bound_are_refused(bad):
    with pytest.raises(errors.DataError, match="NaN or infinity"):
        add_gaussian([1.0, bad], sensitivity=1.0, noise_multiplier=1.0, noise=FixedNoise(0))
