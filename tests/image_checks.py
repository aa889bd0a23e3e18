"""Images, slow twins of the feature maps, and checks that tests and planted bugs share."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpml import PrivateData, PrivateTrainer, accounting
from dpml.data import Records
from dpml.data.images import centred, feature_rows, image_preprocessing
from dpml.data.images import rows as image_rows
from dpml.mechanisms import FixedNoise
from dpml.stages.center import CenterFinder

SMALL = (9, 10)
FEW_PUBLIC_IMAGES = 40


@pytest.fixture
def few_public_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whitening from few public images: the same code in a fraction of the time."""
    monkeypatch.setattr(image_rows, "PUBLIC_IMAGES", FEW_PUBLIC_IMAGES)


def some_images(n: int, shape: tuple[int, ...] = SMALL, seed: int = 0) -> np.ndarray:
    """(n, *shape) uint8: squares on noise, so that no two look alike."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 60, (n, *shape))
    for k in range(n):
        top, left = rng.integers(0, shape[-2] // 2), rng.integers(0, shape[-1] // 2)
        images[k, ..., top : top + 4, left : left + 5] += 150
    return images.astype(np.uint8)


def write_idx(folder: Path, n: int, n_test: int = 20, shape: tuple[int, int] = SMALL, seed: int = 0) -> Path:
    """The four files of a small Fashion-MNIST; label = brightness of the image's left half, in ten parts."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", n), ("t10k", n_test)):
        images = some_images(count, shape, seed)
        labels = (images[:, :, : shape[1] // 2].mean(axis=(1, 2)) * 10 / 256).astype(np.uint8)
        for name, values in ((f"{part}-images-idx3-ubyte.gz", images), (f"{part}-labels-idx1-ubyte.gz", labels)):
            header = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
            (folder / name).write_bytes(gzip.compress(header + values.tobytes()))
    return folder


# -- slow twins -------------------------------------------------------------------------------------------------------
def slow_morlet(y: int, x: int, scale: int, orientation: int, frame: tuple[int, int]) -> complex:
    """One value of a wavelet made periodic on a frame, before its mean is taken away, and of its envelope."""
    wave, envelope = 0j, 0.0
    sigma, angle = 0.8 * 2**scale, math.pi * orientation / 8
    for a in range(-2, 3):
        for b in range(-2, 3):
            yy, xx = y + a * frame[0], x + b * frame[1]
            u, v = xx * math.cos(angle) + yy * math.sin(angle), yy * math.cos(angle) - xx * math.sin(angle)
            g = math.exp(-(u * u + v * v / 4) / (2 * sigma**2)) / (4 * math.pi * sigma**2)
            envelope += g
            wave += g * complex(math.cos(0.75 * math.pi / 2**scale * u), math.sin(0.75 * math.pi / 2**scale * u))
    return complex(wave), envelope  # type: ignore[return-value]


def slow_matrix(scale: int, orientation: int, frame: tuple[int, int]) -> np.ndarray:
    """(H W, H W) complex: direct periodic convolution with a wavelet of mean 0, as a matrix."""
    height, width = frame
    both = np.array([[slow_morlet(y, x, scale, orientation, frame) for x in range(width)] for y in range(height)])
    wave, envelope = both[..., 0], both[..., 1].real
    wave = wave - envelope * wave.sum() / envelope.sum()
    matrix = np.empty((height * width, height * width), dtype=complex)
    for y in range(height):
        for x in range(width):
            for yy in range(height):
                for xx in range(width):
                    matrix[y * width + x, yy * width + xx] = wave[(y - yy) % height, (x - xx) % width]
    return matrix


def slow_scattering(image: np.ndarray) -> np.ndarray:
    """Scattering of one image by dense matrices and loops; nothing of dpml."""
    height, width = image.shape
    frame = (height + 8, width + 8)
    padded = np.empty(frame)
    for y in range(frame[0]):
        for x in range(frame[1]):
            padded[y, x] = image[_reflected(y - 4, height), _reflected(x - 4, width)]
    waves = [[slow_matrix(scale, k, frame) for k in range(8)] for scale in range(2)]
    x = padded.reshape(-1)
    fine = [abs(matrix @ x) for matrix in waves[0]]
    layers = [x, *fine, *(abs(matrix @ x) for matrix in waves[1])]
    layers += [abs(matrix @ u) for u in fine for matrix in waves[1]]
    found = np.empty((81, height // 4, width // 4))
    for c, layer in enumerate(layers):
        for i in range(height // 4):
            for j in range(width // 4):
                found[c, i, j] = _pooled(layer.reshape(frame), _place(i, height), _place(j, width))
    return found


def _reflected(position: int, side: int) -> int:
    position = abs(position)
    return position if position < side else 2 * (side - 1) - position


def _place(index: int, side: int) -> float:
    """Middle of the index-th of side // 4 stretches of four pixels that lie in the middle of the side, in the frame."""
    return 4 + (side - 4 * (side // 4)) / 2 + 4 * index + 1.5


def _pooled(layer: np.ndarray, y: float, x: float) -> float:
    total = weight = 0.0
    for i in range(layer.shape[0]):
        for j in range(layer.shape[1]):
            w = math.exp(-((i - y) ** 2 + (j - x) ** 2) / (2 * 1.6**2))
            total, weight = total + w * layer[i, j], weight + w
    return total / weight


def slow_gabor(image: np.ndarray) -> np.ndarray:
    """Gabor moduli of one image by loops; nothing of dpml."""
    height, width = image.shape
    layers = [image.astype(float)]
    for k in range(8):
        angle = math.pi * k / 8
        window, wave = np.empty((7, 7)), np.empty((7, 7), dtype=complex)
        for y in range(-3, 4):
            for x in range(-3, 4):
                u, v = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
                window[y + 3, x + 3] = math.exp(-(u * u + v * v / 2) / 2.88)
                wave[y + 3, x + 3] = complex(math.cos(1.9 * u), math.sin(1.9 * u))
        window /= window.sum()
        kernel = window * (wave - (window * wave).sum())
        layer = np.zeros((height, width))
        for y in range(height):
            for x in range(width):
                total = 0j
                for dy in range(-3, 4):
                    for dx in range(-3, 4):
                        if 0 <= y - dy < height and 0 <= x - dx < width:
                            total += kernel[dy + 3, dx + 3] * image[y - dy, x - dx]
                layer[y, x] = abs(total)
        layers.append(layer)
    found = np.empty((9, height // 2, width // 2))
    for c, layer in enumerate(layers):
        for i in range(height // 2):
            for j in range(width // 2):
                found[c, i, j] = layer[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean()
    return found


# -- checks -----------------------------------------------------------------------------------------------------------
def check_a_row_depends_on_its_image_alone() -> None:
    """One of seven images is another one: all other rows are equal to the last bit, also alone and in another place."""
    images = some_images(7)
    for features in ("scattering", "gabor", "scattering_gabor"):
        preprocessing = image_preprocessing(features, SMALL, 1 / 255)
        whole = feature_rows(images, preprocessing)
        other = images.copy()
        other[3] = 255 - other[3]
        changed = feature_rows(other, preprocessing)
        kept = np.arange(7) != 3
        assert np.array_equal(changed[kept], whole[kept])
        assert not np.array_equal(changed[3], whole[3])
        assert np.array_equal(feature_rows(images[5:6], preprocessing), whole[5:6])
        assert np.array_equal(feature_rows(images[::-1], preprocessing), whole[::-1])
        finished = centred(whole, preprocessing)
        assert np.array_equal(centred(whole[2:4], preprocessing), finished[2:4])


def check_no_row_is_longer_than_one() -> None:
    """Rows before and after a centre, of usual, black, white and alternating images."""
    images = np.concatenate(
        [some_images(6), np.zeros((1, *SMALL)), np.full((1, *SMALL), 255), np.full((1, *SMALL), 1e30)]
    )
    for features in ("scattering", "gabor", "scattering_gabor"):
        preprocessing = image_preprocessing(features, SMALL, 1 / 255)
        rows = feature_rows(images, preprocessing)
        assert np.linalg.norm(rows.astype(np.float64), axis=1).max() <= 1.0
        for center in (np.zeros(rows.shape[1]), rows[0], np.full(rows.shape[1], 1e-30)):
            moved = centred(rows, {**preprocessing, "center": image_rows.encoded_center(center)})
            norms = np.linalg.norm(moved.astype(np.float64), axis=1)
            assert norms.max() <= 1.0
            assert norms[1] > 0.999


def check_the_center_is_charged_as_it_is_noised() -> None:
    """Noise of the sum ÷ what one record moves it by = what the event says, under both relations."""
    for relation, moved in (("add_remove", 1.0), ("replace_one", 2.0)):
        finder = CenterFinder(30, 100, 0.5, 1e-6, relation)
        assert finder.mechanism.noise_std / moved >= 7.0  # s(0.5, 1e-6) is 8.06
        epsilon = accounting.epsilon(finder.event, 1e-6, neighboring_relation=relation)
        assert 0.49 < epsilon <= 0.5


def check_one_record_moves_the_sum_by_at_most_one() -> None:
    """Sums of neighbours differ by at most 1, exactly, and do not depend on the order."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((3000, 50))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    rows *= np.float32(1 - 1e-6)
    finder = CenterFinder(50, 3000, 1.0, 1e-6, "add_remove")
    total = finder.total(rows)
    for k in (0, 999, 1000, 2999):
        difference = total - finder.total(np.delete(rows, k, axis=0))
        assert np.linalg.norm(difference) <= 1.0
        assert np.array_equal(difference, np.trunc(rows[k].astype(float) * 2**24) / 2**24)
    assert np.array_equal(total, finder.total(rows[rng.permutation(3000)]))


def center_trainer(**changes: Any) -> PrivateTrainer:
    return PrivateTrainer(
        "softmax", "dp_sgd",
        **{
            "epsilon": 2.0, "delta": 1e-5, "steps": 6, "expected_batch_size": 100, "checkpoint_every": 2,
            "shares": {"center": 0.1}, **changes,
        },
    )  # fmt: skip


def check_the_center_is_charged_first_and_noisy(folder: Path) -> None:
    """A run's charges, and a centre whose distance from the records' own mean is that of its noise.

    The mean square of 144 noise values is between 0.4 and 1.8 of its expectation but with probability
    e^{-72 (0.8 - ln 1.8)} + e^{-72 (-0.6 - ln 0.4)} < 3e-7 (Chernoff's bound for chi-square); without noise it is 0.
    """
    data = PrivateData.digits("gabor")
    result = center_trainer(run_dir=folder / "run").fit(data)
    lines = accounting.read_ledger(folder / "run/release/ledger.jsonl").charges
    assert [line["stage"] for line in lines] == ["center", "train", "train", "train"]
    assert accounting.verify(folder / "run").ok
    rows = data.image_rows(FixedNoise(0)).X
    center = image_rows.decoded_center(result.model.preprocessing["center"], 144)
    std = result.stages["center"]["noise_std"]
    mean = rows.sum(axis=0, dtype=float) / data.public.n_declared
    assert 0.4 < float(np.square((center - mean) / std).mean()) < 1.8


def records_of(folder: Path, cache: Path | str, features: str = "gabor") -> Records:
    return PrivateData.fashion_mnist(folder, features, cache).load(FixedNoise(0))
