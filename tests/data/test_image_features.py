"""Image features against slow twins; what a row depends on; public images and whitening."""

from __future__ import annotations

import json

import image_checks as checks
import numpy as np
import pytest
from image_checks import SMALL, few_public_images, some_images

from dpml.data import transform_array
from dpml.data.images import FEATURES, centred, feature_rows, image_preprocessing, n_features
from dpml.data.images import rows as image_rows
from dpml.data.images.scattering import gabor, scattering
from dpml.data.images.synthetic import synthetic_images
from dpml.data.images.whitening import unit, whitening_of
from dpml.errors import ConfigError, DataError

__all__ = ["few_public_images"]
pytestmark = pytest.mark.usefixtures("few_public_images")


# -- the maps ---------------------------------------------------------------------------------------------------------
def test_scattering_is_direct_convolution() -> None:
    image = some_images(1)[0] / 255
    np.testing.assert_allclose(scattering(image[None])[0], checks.slow_scattering(image), atol=2e-6)


def test_gabor_is_direct_convolution() -> None:
    image = some_images(1, (11, 8))[0] / 255
    np.testing.assert_allclose(gabor(image[None])[0], checks.slow_gabor(image), atol=2e-6)


def test_wavelets_see_nothing_in_a_flat_image() -> None:
    flat = np.full((1, 16, 16), 0.7)
    found = scattering(flat)[0]
    np.testing.assert_allclose(found[0], 0.7, rtol=1e-6)
    assert np.abs(found[1:]).max() < 1e-6
    inner = gabor(flat)[0, 1:, 2:-2, 2:-2]  # the border sees black beyond it
    assert np.abs(inner).max() < 1e-6


def test_a_mirrored_image_has_mirrored_features() -> None:
    """Channel k becomes channel −k mod 8: filters and pooling are symmetric, so this holds but for rounding."""
    images = some_images(3, (12, 13)) / 255
    turned = [(8 - k) % 8 for k in range(8)]
    crossed = [17 + 8 * k + m for k in turned for m in turned]
    channels = [0, *(1 + k for k in turned), *(9 + k for k in turned), *crossed]
    np.testing.assert_allclose(scattering(images[..., ::-1]), scattering(images)[:, channels][..., ::-1], atol=1e-6)


def test_a_grating_excites_its_own_orientation_most() -> None:
    x = np.arange(24)
    across = np.broadcast_to(0.5 + 0.5 * np.cos(0.75 * np.pi / 2 * x), (24, 24))
    for image, best in ((across, 0), (across.T, 4)):
        energy = scattering(image[None])[0, 9:17].mean(axis=(1, 2))
        assert int(energy.argmax()) == best


# -- rows -------------------------------------------------------------------------------------------------------------
def test_a_row_depends_on_its_image_alone() -> None:
    checks.check_a_row_depends_on_its_image_alone()


def test_no_row_is_longer_than_one() -> None:
    checks.check_no_row_is_longer_than_one()


def test_rows_equal_a_slow_twin() -> None:
    """log, whitening by matrices of an independent formula, norms, weights, centre and constant, record by record."""
    images = some_images(3)
    preprocessing = image_preprocessing("scattering_gabor", SMALL, 1 / 255)
    center = np.linspace(-0.02, 0.02, n_features("scattering_gabor", SMALL) - 1).astype(np.float32)
    public = synthetic_images(checks.FEW_PUBLIC_IMAGES, *SMALL)
    blocks = []
    for one, weight in ((scattering, 1.0), (gabor, 0.5)):
        layers = np.log(one(public).reshape(len(public), -1, _places(one)).astype(float) + 0.01)
        mean = layers.mean(axis=0)
        shifted = [(layer - mean) / np.linalg.norm(layer - mean) for layer in layers]
        by_channel = sum(s @ s.T for s in shifted) / len(shifted) / _places(one)
        by_place = sum(s.T @ s for s in shifted) / len(shifted) / len(mean)
        left, right = _inverse_fourth_root(by_channel), _inverse_fourth_root(by_place)
        block = []
        for image in images / 255:
            layer = np.log(one(image[None]).reshape(len(mean), -1).astype(float) + 0.01) - mean
            turned = (left @ (layer / np.linalg.norm(layer)) @ right).reshape(-1)
            block.append(weight * turned / np.linalg.norm(turned))
        blocks.append(np.array(block))
    joined = np.hstack(blocks)
    joined /= np.linalg.norm(joined, axis=1, keepdims=True)
    rows = feature_rows(images, preprocessing)
    np.testing.assert_allclose(rows, joined, atol=2e-5)
    moved = joined - center
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    wanted = np.hstack([moved, np.full((3, 1), 0.1)]) / np.sqrt(1.01)
    told = json.loads(json.dumps({**preprocessing, "center": image_rows.encoded_center(center)}))
    found, valid = transform_array(images, told)
    assert valid.all()
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, wanted, atol=3e-5)
    assert np.array_equal(found, centred(rows, told))


def _places(one: object) -> int:
    return (SMALL[0] // 4) * (SMALL[1] // 4) if one is scattering else (SMALL[0] // 2) * (SMALL[1] // 2)


def _inverse_fourth_root(matrix: np.ndarray) -> np.ndarray:
    """By a singular value decomposition."""
    u, values, vt = np.linalg.svd(matrix)
    values = np.maximum(values / (np.trace(matrix) / len(matrix)), 1e-3)
    return np.asarray(u @ np.diag(1 / np.sqrt(np.sqrt(values))) @ vt)


def test_channels_of_colour_images_stand_side_by_side() -> None:
    images = some_images(2, (3, *SMALL))
    preprocessing = image_preprocessing("gabor", (3, *SMALL), 1 / 255)
    rows = feature_rows(images, preprocessing)
    assert rows.shape == (2, 3 * 9 * 4 * 5) == (2, n_features("gabor", (3, *SMALL)) - 1)
    one = image_preprocessing("gabor", SMALL, 1 / 255)
    alone = [feature_rows(images[:, c], one) for c in range(3)]
    for c, part in enumerate(np.split(rows, 3, axis=1)):
        cosines = (part * alone[c]).sum(axis=1) / np.linalg.norm(part, axis=1)
        np.testing.assert_allclose(cosines, 1.0, atol=1e-5)


def test_pixels_out_of_range_are_clipped_and_faulty_records_are_zero() -> None:
    images = some_images(4).astype(float)
    images[1], images[2, 3, 3] = 1e9, np.nan
    images[3, 0, 0] = -5.0
    preprocessing = image_preprocessing("gabor", SMALL, 1 / 255)
    rows, valid = transform_array(images, preprocessing)
    assert valid.tolist() == [True, True, False, True]
    assert not rows[2].any()
    fitting = np.clip(np.nan_to_num(images), 0, 255)
    assert np.array_equal(rows[[0, 1, 3]], transform_array(fitting, preprocessing)[0][[0, 1, 3]])


@pytest.mark.parametrize("n", [0, 1])
def test_few_images_have_features_too(n: int) -> None:
    preprocessing = image_preprocessing("scattering", SMALL, 1 / 255)
    rows, valid = transform_array(some_images(2)[:n], preprocessing)
    assert (rows.shape, valid.shape) == ((n, 81 * 2 * 2 + 1), (n,))


def test_progress_is_told_in_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_rows, "PIECE", 4)
    told: list[tuple[int, int]] = []
    feature_rows(some_images(9), image_preprocessing("gabor", SMALL, 1 / 255), lambda *done: told.append(done))
    assert told == [(4, 9), (8, 9), (9, 9)]


# -- public images and whitening --------------------------------------------------------------------------------------
def test_public_images_are_the_same_everywhere() -> None:
    """A function of the seed alone: values of the first run, which uniform draws and arithmetic give again.

    Released models rest on them; another version of these images needs another number of the features.
    """
    images = synthetic_images(50, 28, 28)
    assert images.dtype == np.float32
    assert (images.min(), images.max()) == (0.0, 1.0)
    assert np.array_equal(images[:7], synthetic_images(7, 28, 28))
    assert not np.array_equal(images, synthetic_images(50, 28, 28, seed=1))
    np.testing.assert_allclose(images[3, 14, 10:14], [0.657013, 0.808890, 0.600695, 0.588376], atol=2e-6)
    np.testing.assert_allclose(images[41, 5, 20:23], [0.338190, 0.159226, 0.554766], atol=2e-6)
    assert images.mean(dtype=float) == pytest.approx(0.2437735, abs=1e-6)
    assert len({image.tobytes() for image in images}) == 50


def test_whitened_public_images_have_the_square_root_of_their_spectrum() -> None:
    """v^(-1/4) on both sides of a variance leaves v^(1/2); of rows with independent channels and places that is exact.

    10,000 rows: eigenvalues are known to 5 %, and the ratio of largest to smallest is 4 instead of 16.
    """
    rng = np.random.default_rng(0)
    scale = np.sqrt(np.array([16.0, 4.0, 1.0]))
    layers = rng.standard_normal((10_000, 3, 40)) * scale[:, None]
    found = whitening_of(layers).apply(layers.astype(np.float32))
    energy = np.square(found).mean(axis=(0, 2))
    np.testing.assert_allclose(energy / energy[2], [4.0, 2.0, 1.0], rtol=0.05)


def test_unit_rows_leave_zeros_alone() -> None:
    rows = unit(np.array([[3.0, 4.0], [0.0, 0.0], [1e-30, 0.0]]))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0.0, 0.0], [1.0, 0.0]], rtol=2e-6)
    assert rows.dtype == np.float32


# -- refusals ---------------------------------------------------------------------------------------------------------
def test_unknown_features_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"data\.features = 'scatter' is not allowed: it must be one of pixels, sc"):
        image_preprocessing("scatter", SMALL, 1.0)
    assert FEATURES == ("pixels", "scattering", "gabor", "scattering_gabor")


@pytest.mark.parametrize("shape", [(7, 28), (28,), (1, 1, 28, 28), (0, 28, 28)])
def test_images_without_features_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="image shape"):
        image_preprocessing("gabor", shape, 1.0)


def test_a_damaged_description_is_refused() -> None:
    fine = image_preprocessing("gabor", SMALL, 1 / 255)
    images = some_images(1)
    for change, message in (
        ({"version": 2}, "version 2, this dpml makes version 1"), ({"features": "x"}, "damaged"),
        ({"image": [3]}, "damaged"), ({"center": "?"}, "center"), ({"center": 3}, "center"),
        ({"center": "AAAA"}, "center"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            transform_array(images, {**fine, **change})
    with pytest.raises(DataError, match="images of shape"):
        transform_array(images[:, 1:], fine)
