"""Moduli of oriented band-pass filters, pooled: two public feature maps of images, written with FFTs.

Both maps look at one image and at constants only.  :func:`scattering` is the scattering transform of order two with
two scales and eight orientations (Bruna & Mallat 2013, "Invariant scattering convolution networks", eqs. 4 to 9, and
the Morlet wavelets of their section 2.1); :func:`gabor` is one layer of Gabor moduli beside the pixels.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy import fft

ORIENTATIONS = 8
SCALES = 2
STRIDE = 2**SCALES
"""Side of the squares of pixels for which scattering gives one value a channel."""
PAD = 4
"""Pixels of reflection on each side."""
SMALLEST = 8
"""Shortest side of an image."""
SCATTERING_CHANNELS = 1 + SCALES * ORIENTATIONS + ORIENTATIONS**2
GABOR_SIDE = 7
GABOR_POOL = 2
GABOR_CHANNELS = 1 + ORIENTATIONS


def scattering_shape(height: int, width: int) -> tuple[int, int, int]:
    """(81, h, w): what :func:`scattering` gives for one image."""
    return SCATTERING_CHANNELS, height // STRIDE, width // STRIDE


def scattering(images: np.ndarray) -> np.ndarray:
    """Scattering coefficients of orders 0, 1 and 2.

    With ψ the Morlet wavelets of :func:`morlet` and φ a Gaussian of standard deviation 1.6 pixels, sampled every four
    pixels at places that lie symmetrically in the image:
    x ∗ φ, then |x ∗ ψ_{0k}| ∗ φ and |x ∗ ψ_{1k}| ∗ φ by k, then ||x ∗ ψ_{0k}| ∗ ψ_{1l}| ∗ φ by k and l.

    Args:
        images: (n, H, W) real, H and W ≥ 8; borders are reflected, and the frame is periodic beyond.

    Returns:
        (n, 81, H // 4, W // 4) float32.  A row depends on its image alone, whatever n is.
    """
    images = np.asarray(images, dtype=np.float32)
    n, height, width = images.shape
    padded = np.pad(images, ((0, 0), (PAD, PAD), (PAD, PAD)), mode="reflect")
    frame = padded.shape[1:]
    first, second = (_morlet_spectra(scale, frame) for scale in range(SCALES))
    rows, columns = _pooling(height), _pooling(width).T
    found = np.empty((n, *scattering_shape(height, width)), dtype=np.float32)
    for i in range(n):  # one at a time: the numbers of an image fit the cache, and no sum runs over several
        spectrum = fft.fft2(padded[i])
        fine = np.abs(fft.ifft2(spectrum * first))
        coarse = np.abs(fft.ifft2(spectrum * second))
        crossed = np.abs(fft.ifft2(fft.fft2(fine)[:, None] * second))
        layers = (padded[i][None], fine, coarse, crossed.reshape(-1, *frame))
        found[i] = rows @ np.concatenate(layers) @ columns
    return found


def gabor(images: np.ndarray) -> np.ndarray:
    """The pixels and eight moduli |x ∗ g_k| of 7 × 7 Gabor filters (zeros beyond the border), means of 2 × 2 pixels.

    Args:
        images: (n, H, W) real, H and W ≥ 8.

    Returns:
        (n, 9, H // 2, W // 2) float32.  A row depends on its image alone.
    """
    images = np.asarray(images, dtype=np.float32)
    n, height, width = images.shape
    frame = (height + GABOR_SIDE, width + GABOR_SIDE)
    filters = _gabor_spectra(frame)
    high, wide = height // GABOR_POOL, width // GABOR_POOL
    found = np.empty((n, GABOR_CHANNELS, high, wide), dtype=np.float32)
    for i in range(n):
        moduli = np.abs(fft.ifft2(fft.fft2(images[i], frame) * filters))[:, :height, :width]
        layers = np.concatenate([images[i][None], moduli])[:, : high * GABOR_POOL, : wide * GABOR_POOL]
        found[i] = layers.reshape(GABOR_CHANNELS, high, GABOR_POOL, wide, GABOR_POOL).mean(axis=(2, 4))
    return found


def morlet(y: np.ndarray, x: np.ndarray, scale: int, orientation: int) -> np.ndarray:
    """The Morlet wavelet at offsets (y, x) in pixels before its mean is removed, and its envelope, stacked: (2, …).

    Envelope w = (s/(2πσ²))·exp(−(u² + s²v²)/(2σ²)) with σ = 0.8·2^scale and slant s = 1/2, u along and v across the
    direction π·orientation/8; wave w·exp(iξu) with ξ = (3π/4)/2^scale.  The wavelet is wave − κ·envelope with the κ
    for which it sums to 0.
    """
    angle = math.pi * orientation / ORIENTATIONS
    u = x * math.cos(angle) + y * math.sin(angle)
    v = y * math.cos(angle) - x * math.sin(angle)
    sigma, slant = 0.8 * 2**scale, 4.0 / ORIENTATIONS
    envelope = slant / (2 * math.pi * sigma**2) * np.exp(-(u**2 + (slant * v) ** 2) / (2 * sigma**2))
    return np.stack([envelope * np.exp(1j * 0.75 * math.pi / 2**scale * u), envelope])


def gabor_filter(orientation: int) -> np.ndarray:
    """(7, 7) complex: a Gaussian window of sum 1 (σ = 1.2, stretched by √2 across) times a wave of 1.9 rad a pixel.

    The wave's cosine has its mean under the window removed, so that the filter sums to 0 on a constant image.
    """
    half = GABOR_SIDE // 2
    y, x = np.mgrid[-half : half + 1, -half : half + 1]
    angle = math.pi * orientation / ORIENTATIONS
    u = x * math.cos(angle) + y * math.sin(angle)
    v = y * math.cos(angle) - x * math.sin(angle)
    window = np.exp(-(u**2 + 0.5 * v**2) / (2 * 1.2**2))
    window /= window.sum()
    wave = window * np.exp(1.9j * u)
    return wave - window * wave.sum()


@cache
def _morlet_spectra(scale: int, frame: tuple[int, int]) -> np.ndarray:
    """(8, H, W) complex64: Fourier transforms of the wavelets, made periodic on the frame."""
    height, width = frame
    y = np.arange(-2 * height, 3 * height, dtype=np.float64)[:, None]
    x = np.arange(-2 * width, 3 * width, dtype=np.float64)[None, :]
    spectra = []
    for orientation in range(ORIENTATIONS):
        both = morlet(y, x, scale, orientation)
        wave, envelope = both.reshape(2, 5, height, 5, width).sum(axis=(1, 3))
        spectra.append(fft.fft2(wave - envelope * (wave.sum() / envelope.sum())))
    return np.stack(spectra).astype(np.complex64)


@cache
def _gabor_spectra(frame: tuple[int, int]) -> np.ndarray:
    """(8, H, W) complex64: Fourier transforms of the filters with their middles at the frame's origin."""
    spectra = []
    for orientation in range(ORIENTATIONS):
        placed = np.zeros(frame, dtype=np.complex128)
        placed[:GABOR_SIDE, :GABOR_SIDE] = gabor_filter(orientation)
        spectra.append(fft.fft2(np.roll(placed, (-(GABOR_SIDE // 2), -(GABOR_SIDE // 2)), axis=(0, 1))))
    return np.stack(spectra).astype(np.complex64)


@cache
def _pooling(side: int) -> np.ndarray:
    """(side // 4, side + 8) float32: rows of weights that sum to 1, Gaussian around places four pixels apart.

    The places are symmetric in the side, so that pooling a mirrored line gives the mirrored result.
    """
    count = side // STRIDE
    places = PAD + (side - 1) / 2 + STRIDE * (np.arange(count) - (count - 1) / 2)
    weights = np.exp(
        -((np.arange(side + 2 * PAD)[None, :] - places[:, None]) ** 2) / (2 * (0.8 * 2 ** (SCALES - 1)) ** 2)
    )
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
