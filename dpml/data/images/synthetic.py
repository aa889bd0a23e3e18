"""Public images from a public seed: overlapping shapes with texture on black.

They stand in for "any images" wherever statistics of images are wanted that no record may have a part in.
Only ``Generator.random`` draws here, so that the images are the same in every version of numpy.
"""

from __future__ import annotations

import math

import numpy as np

SEED = 1_000
MOST_SHAPES = 5
UPRIGHT = 0.6
TEXTURED = 0.6


def synthetic_images(count: int, height: int, width: int, seed: int = SEED) -> np.ndarray:
    """(count, height, width) float32 in [0, 1].

    Each image has one to five rectangles, ellipses or trapezia with middles near its own, sizes of a tenth to a whole
    half-side and random grey levels; most are upright and most have a texture whose spectrum falls like 1/f^a, a in
    [0, 2].  They are drawn at twice the size and averaged.
    """
    rng = np.random.default_rng(seed)
    return np.stack([_image(rng, height, width) for _ in range(count)])


def _image(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    y, x = (2 * (np.arange(2 * side) + 0.5) / (2 * side) - 1 for side in (height, width))
    y, x = y[:, None], x[None, :]
    image = np.zeros((2 * height, 2 * width))
    for _ in range(1 + int(MOST_SHAPES * rng.random())):
        upright, angle = rng.random() < UPRIGHT, math.pi * rng.random()
        cosine, sine = (1.0, 0.0) if upright else (math.cos(angle), math.sin(angle))
        middle = 0.3 * _normal(rng, 2)
        u = (x - middle[0]) * cosine + (y - middle[1]) * sine
        v = (y - middle[1]) * cosine - (x - middle[0]) * sine
        wide, high = 0.1 + 0.9 * rng.random(2)
        kind = int(3 * rng.random())
        if kind == 0:
            inside = (np.abs(u) < wide) & (np.abs(v) < high)
        elif kind == 1:
            inside = (u / wide) ** 2 + (v / high) ** 2 < 1
        else:
            inside = (np.abs(v) < high) & (np.abs(u) < wide * (0.2 + 0.4 * (v / high + 1)))
        level: np.ndarray | float = rng.random()
        if rng.random() < TEXTURED:
            level = level + 0.3 * rng.random() * _texture(rng, image.shape, 2 * rng.random())
        image = np.where(inside, level, image)
    means = np.clip(image, 0.0, 1.0).reshape(height, 2, width, 2).mean(axis=(1, 3))
    return np.asarray(means, dtype=np.float32)


def _texture(rng: np.random.Generator, shape: tuple[int, ...], power: float) -> np.ndarray:
    """Normal noise with spectrum 1/f^power, mean 0 and standard deviation 1."""
    frequency = np.hypot(np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1])[None, :])
    frequency[0, 0] = 1.0
    noise = np.fft.irfft2(np.fft.rfft2(_normal(rng, shape[0] * shape[1]).reshape(shape)) / frequency**power, s=shape)
    noise -= noise.mean()
    return noise / noise.std()


def _normal(rng: np.random.Generator, count: int) -> np.ndarray:
    """Standard normal numbers from uniform ones (Box & Muller 1958)."""
    half = (count + 1) // 2
    radius = np.sqrt(-2.0 * np.log1p(-rng.random(half)))
    angle = 2 * math.pi * rng.random(half)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
