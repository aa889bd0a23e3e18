"""From images to rows by public constants: the map that training and scoring of image features share.

As JSON, in a release:

``{"kind": "image", "features": "scattering_gabor", "version": 1, "image": [28, 28], "scale": 0.00392,
"public_images": 2000, "center": null}``

A pixel is multiplied by ``scale`` and clipped to [0, 1].  Each block of features is log(x + 0.01), whitened by the
statistics of public images and brought to norm 1; blocks are weighted, put side by side and brought to norm 1 again.
``center`` is subtracted where there is one (a charged release, never the records' own mean), the row is brought to norm
1, a constant 0.1 is appended, and the whole divided by √1.01, so that no row is longer than 1.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from ...errors import ConfigError, DataError, invalid
from . import scattering as maps
from .synthetic import synthetic_images
from .whitening import Whitening, unit, whitening_of

VERSION = 1
"""Of the maps and constants of this package; a cache or a release of another version is not used."""
PIXELS = "pixels"
BLOCKS: dict[str, tuple[tuple[str, float], ...]] = {
    "scattering": (("scattering", 1.0),),
    "gabor": (("gabor", 1.0),),
    "scattering_gabor": (("scattering", 1.0), ("gabor", 0.5)),
}
FEATURES = (PIXELS, *BLOCKS)
OFFSET = 0.01
"""Added before the logarithm."""
CONSTANT = 0.1
PUBLIC_IMAGES = 2_000
"""Synthetic images behind the whitening."""
PIECE = 500
"""Images at a time."""

_MAPS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"scattering": maps.scattering, "gabor": maps.gabor}
Progress = Callable[[int, int], None]
"""Called with (images done, images in all)."""


def check_features(features: object) -> str:
    """The name of a feature map.

    Raises:
        ConfigError: there is none of that name.
    """
    if features not in FEATURES:
        raise invalid("data.features", features, f"one of {', '.join(FEATURES)}")
    return str(features)


def check_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """``(H, W)`` or ``(channels, H, W)`` of an image that has features.

    Raises:
        ConfigError: another shape, or a side below 8 pixels.
    """
    if len(shape) not in (2, 3) or min(shape[-2:]) < maps.SMALLEST or min(shape) < 1:
        raise invalid(
            "image shape",
            shape,
            f"(H, W) or (channels, H, W) with H and W >= {maps.SMALLEST}",
            "Use features='pixels'.",
        )
    return shape


def n_features(features: str, shape: tuple[int, ...]) -> int:
    """Length of a row, the constant included."""
    height, width = shape[-2:]
    sizes = {
        "scattering": math.prod(maps.scattering_shape(height, width)),
        "gabor": maps.GABOR_CHANNELS * (height // maps.GABOR_POOL) * (width // maps.GABOR_POOL),
    }
    return math.prod(shape[:-2]) * sum(sizes[block] for block, _ in BLOCKS[features]) + 1


def image_preprocessing(features: str, shape: tuple[int, ...], scale: float) -> dict[str, Any]:
    """The JSON object of the map, without a centre."""
    return {
        "kind": "image", "features": check_features(features), "version": VERSION, "image": list(check_shape(shape)),
        "scale": scale, "public_images": PUBLIC_IMAGES, "center": None,
    }  # fmt: skip


def feature_rows(
    images: np.ndarray, preprocessing: Mapping[str, Any], progress: Progress | None = None, out: Any = None
) -> np.ndarray:
    """Rows before the centre: (n, d) float32 of norm at most 1, without the constant.

    A row depends on its image and on public constants; to the last bit, whatever else is in ``images``.

    Args:
        images: (n, …) numbers, a row the size of the declared image; NaN and infinity count as 0.
        preprocessing: of :func:`image_preprocessing`.
        out: (n, d) float32 to write to, in a file say; default is a new array.
    """
    shape = _checked(images, preprocessing)
    features, scale = str(preprocessing["features"]), float(preprocessing["scale"])
    public_images = int(preprocessing["public_images"])
    n, n_channels = len(images), math.prod(shape[:-2])
    d = n_features(features, shape) - 1
    found = np.empty((n, d), dtype=np.float32) if out is None else out
    for start in range(0, n, PIECE):
        with np.errstate(over="ignore", invalid="ignore"):  # a warning would tell that the record is there
            piece = np.asarray(images[start : start + PIECE], dtype=np.float64) * scale
        piece = np.clip(np.nan_to_num(piece, nan=0.0, posinf=0.0, neginf=0.0), 0.0, 1.0)
        planes = piece.reshape(len(piece) * n_channels, *shape[-2:])
        parts = []
        for block, weight in BLOCKS[features]:
            layers = _whitening(block, *shape[-2:], public_images).apply(log_layers(block, planes))
            parts.append(weight * unit(layers.reshape(len(piece), -1)))
        found[start : start + len(piece)] = unit(np.concatenate(parts, axis=1))
        if progress is not None:
            progress(start + len(piece), n)
    return found


def log_layers(block: str, planes: np.ndarray) -> np.ndarray:
    """log(x + 0.01) of a block's channels, (n, C, P)."""
    layers = _MAPS[block](planes)
    return np.log(layers.reshape(*layers.shape[:2], -1) + np.float32(OFFSET))


@cache
def _whitening(block: str, height: int, width: int, count: int) -> Whitening:
    """From ``count`` public images alone."""
    return whitening_of(log_layers(block, synthetic_images(count, height, width)))


def centred(rows: np.ndarray, preprocessing: Mapping[str, Any]) -> np.ndarray:
    """Finished rows (n, d + 1) float32 of norm at most 1: minus the centre, to unit norm, with the constant."""
    center = preprocessing.get("center")
    shift = np.zeros(rows.shape[1]) if center is None else decoded_center(center, rows.shape[1])
    found = np.empty((len(rows), rows.shape[1] + 1), dtype=np.float32)
    whole = math.sqrt(1.0 + CONSTANT**2) * (1.0 + 1e-6)
    for start in range(0, len(rows), PIECE):
        piece = unit(np.asarray(rows[start : start + PIECE], dtype=np.float64) - shift)
        found[start : start + len(piece), :-1] = piece / whole
    found[:, -1] = CONSTANT / whole
    return found


def transform_images(X: Any, preprocessing: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`~dpml.data.transform.transform_array`: rows (n, d + 1) float64 of raw images, and which are finite.

    Raises:
        DataError: rows of another size, or features of another version than this one.
    """
    images = np.asarray(X)
    rows = centred(feature_rows(images, preprocessing), preprocessing).astype(np.float64)
    valid = finite_images(images)
    rows[~valid] = 0.0
    return rows, valid


def finite_images(images: np.ndarray) -> np.ndarray:
    """(n,) bool: whether an image's pixels are all finite."""
    if images.dtype.kind in "iub":
        return np.ones(len(images), dtype=bool)
    return np.asarray(np.isfinite(images.reshape(len(images), math.prod(images.shape[1:]))).all(axis=1))


def encoded_center(values: np.ndarray) -> str:
    """A centre (d,) as text: base64 of little-endian float32."""
    return base64.b64encode(np.asarray(values, dtype="<f4").tobytes()).decode("ascii")


def decoded_center(text: Any, d: int) -> np.ndarray:
    """The centre (d,) float64 of its text.

    Raises:
        DataError: it is no such text.
    """
    try:
        values = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4").astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError("the center of these image features is damaged: it is no base64 text of float32.") from error
    if values.shape != (d,) or not np.isfinite(values).all():
        raise DataError(f"the center of these image features is damaged: it must be {d} finite numbers.")
    return values


def _checked(images: np.ndarray, preprocessing: Mapping[str, Any]) -> tuple[int, ...]:
    if preprocessing.get("version") != VERSION:
        raise DataError(
            f"these image features are of version {preprocessing.get('version')!r}, this dpml makes version {VERSION}. "
            "Use the dpml that trained the model."
        )
    try:
        shape = check_shape(tuple(int(side) for side in preprocessing["image"]))
        check_features(preprocessing["features"])
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise DataError("the description of these image features is damaged.") from error
    if images.ndim < 1 or math.prod(images.shape[1:]) != math.prod(shape):
        raise DataError(f"X has shape {images.shape}; its rows must be images of shape {shape}.")
    return shape
