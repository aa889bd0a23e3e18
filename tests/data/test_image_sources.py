"""Sources of images with features: what is declared, the cache, and user images."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_checks import SMALL, few_public_images, records_of, some_images, write_idx

from dpml import PrivateData
from dpml.data import idx, image_source
from dpml.data.images import cache as feature_cache
from dpml.data.images import centred, feature_rows, image_preprocessing
from dpml.errors import ConfigError, DataError
from dpml.mechanisms import FixedNoise

__all__ = ["few_public_images"]
pytestmark = pytest.mark.usefixtures("few_public_images")


@pytest.fixture(name="computed")
def _computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images were computed, call by call."""
    counts: list[int] = []

    def counted(images: np.ndarray, *rest: Any) -> np.ndarray:
        counts.append(len(images))
        return feature_rows(images, *rest)

    monkeypatch.setattr(image_source, "feature_rows", counted)
    return counts


def test_a_source_declares_its_features_without_reading_a_record(tmp_path: Path, computed: list[int]) -> None:
    folder = write_idx(tmp_path / "idx", 30)
    data = PrivateData.fashion_mnist(folder, "scattering_gabor", tmp_path / "cache")
    public = data.public
    assert (public.n_features, public.feature_shape, public.norm_bound) == (81 * 4 + 9 * 20 + 1, (505,), 1.0)
    assert public.n_declared == 60_000
    assert public.preprocessing == image_preprocessing("scattering_gabor", SMALL, 1 / 255)
    assert public.source["features"] == "scattering_gabor"
    assert str(tmp_path) not in repr(public)
    assert computed == []


def test_records_are_the_features_of_the_files(tmp_path: Path) -> None:
    folder = write_idx(tmp_path / "idx", 30)
    records = records_of(folder, "off", "scattering_gabor")
    preprocessing = image_preprocessing("scattering_gabor", SMALL, 1 / 255)
    images = idx.read(folder / "train-images-idx3-ubyte.gz")
    assert records.X.dtype == np.float32
    assert np.array_equal(records.X, centred(feature_rows(images, preprocessing), preprocessing))
    assert np.array_equal(records.y, idx.read(folder / "train-labels-idx1-ubyte.gz"))
    assert records.X_test.shape == (20, 505)
    assert records.private_notes["train"] == {"records": 30, "used": 30, "not_finite": 0, "unknown_labels": 0}
    assert "private" in repr(PrivateData.fashion_mnist(folder, "gabor", "off").image_rows(FixedNoise(0)))


def test_pixels_stay_what_they_were(tmp_path: Path) -> None:
    folder = write_idx(tmp_path / "idx", 10)
    assert PrivateData.fashion_mnist(folder).public == PrivateData.fashion_mnist(folder, "pixels").public
    assert PrivateData.fashion_mnist(folder).public.n_features == 91
    with pytest.raises(ConfigError, match="no images with features"):
        PrivateData.fashion_mnist(folder).image_rows(FixedNoise(0))


# -- the cache --------------------------------------------------------------------------------------------------------
def test_features_are_computed_once(tmp_path: Path, computed: list[int]) -> None:
    folder, cache = write_idx(tmp_path / "idx", 30), tmp_path / "cache"
    first = records_of(folder, cache)
    assert computed == [30, 20]
    again = records_of(folder, cache)
    assert computed == [30, 20]
    assert np.array_equal(first.X, again.X)
    assert np.array_equal(first.X_test, again.X_test)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    files = sorted(cache.iterdir())
    assert len(files) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_other_features_other_files_and_changed_files_are_computed(tmp_path: Path, computed: list[int]) -> None:
    folder, cache = write_idx(tmp_path / "idx", 30), tmp_path / "cache"
    records_of(folder, cache)
    records_of(folder, cache, "scattering")
    assert computed == [30, 20] * 2
    records_of(write_idx(tmp_path / "other", 30), cache)
    assert computed == [30, 20] * 3
    path = folder / "train-images-idx3-ubyte.gz"
    os.utime(path, ns=(1, 1))
    records_of(folder, cache)
    assert computed == [30, 20] * 3 + [30]
    changed = records_of(write_idx(folder, 29, seed=1), cache)
    assert computed[-2:] == [29, 20]
    assert len(changed.X) == 29


def test_another_whitening_is_another_key(tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = write_idx(tmp_path / "idx", 12), tmp_path / "cache"
    before = records_of(folder, cache)
    monkeypatch.setattr("dpml.data.images.rows.PUBLIC_IMAGES", 30)
    assert not np.array_equal(records_of(folder, cache).X, before.X)
    assert computed == [12, 20] * 2


@pytest.mark.parametrize("damage", ["a value", "half the file", "no description", "a text", "another shape"])
def test_a_damaged_cache_is_computed_again(damage: str, tmp_path: Path, computed: list[int]) -> None:
    folder, cache = write_idx(tmp_path / "idx", 30), tmp_path / "cache"
    before = records_of(folder, cache)
    for path in cache.glob("*.npy"):
        raw = bytearray(path.read_bytes())
        if damage == "a value":
            raw[-1] ^= 1
            path.write_bytes(raw)
        elif damage == "half the file":
            path.write_bytes(raw[: len(raw) // 2])
        elif damage == "no description":
            path.with_suffix(".json").unlink()
        elif damage == "a text":
            path.with_suffix(".json").write_text("no JSON")
        else:
            np.save(path, np.zeros((3, 2), dtype=np.float32))
    assert np.array_equal(records_of(folder, cache).X, before.X)
    assert computed == [30, 20] * 2
    records_of(folder, cache)
    assert computed == [30, 20] * 2


def test_a_killed_computation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = write_idx(tmp_path / "idx", 30), tmp_path / "cache"

    def killed(images: np.ndarray, preprocessing: Any, progress: Any, out: np.ndarray) -> None:
        out[:3] = 1.0
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(image_source, "feature_rows", killed)
        with pytest.raises(KeyboardInterrupt):
            records_of(folder, cache)
    assert list(cache.iterdir()) == []
    assert np.linalg.norm(records_of(folder, cache).X, axis=1).max() <= 1.0


def test_the_cache_can_be_off_and_is_in_the_usual_place_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folder = write_idx(tmp_path / "idx", 5)
    for off in ("off", "False"):
        records_of(folder, off)
        assert not (tmp_path / "home").exists()
    PrivateData.fashion_mnist(folder, "gabor").load(FixedNoise(0))
    assert len(list((tmp_path / "home/dpml/features").glob("*.npy"))) == 2


def test_a_cache_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    folder, cache = write_idx(tmp_path / "idx", 5), tmp_path / "open"
    cache.mkdir(mode=0o755)
    with pytest.raises(ConfigError, match=r"data\.cache.*only its owner can enter.*chmod 700"):
        PrivateData.fashion_mnist(folder, "gabor", cache)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="a folder, or 'off'"):
        PrivateData.fashion_mnist(folder, "gabor", tmp_path / "file")
    with pytest.raises(DataError, match="cannot be made"):
        PrivateData.fashion_mnist(folder, "gabor", tmp_path / "file" / "below")


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    folder = write_idx(tmp_path / "idx", 5)
    monkeypatch.setattr(feature_cache.np.lib.format, "open_memmap", full)
    with pytest.raises(DataError, match=r"No space left.*data\.cache=off"):
        records_of(folder, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


# -- digits and user images -------------------------------------------------------------------------------------------
def test_digits_have_features() -> None:
    data = PrivateData.digits("gabor")
    records = data.load(FixedNoise(0))
    assert data.public.n_features == records.X.shape[1] == 9 * 16 + 1
    assert records.X_test.shape == (359, 145)
    assert data.keeps_every_record
    with pytest.raises(ConfigError, match=r"data\.features = 'wavelets'"):
        PrivateData.digits("wavelets")


def user_data(tmp_path: Path, **changes: Any) -> PrivateData:
    return PrivateData.from_images(
        **{
            "images": some_images(20), "labels": ["a", "b"] * 10, "classes": ["a", "b"], "n_declared": 20,
            "features": "gabor", "cache": tmp_path / "cache", **changes,
        }
    )  # fmt: skip


def test_images_of_ones_own(tmp_path: Path, computed: list[int]) -> None:
    data = user_data(tmp_path)
    assert (data.public.n_features, data.public.is_public, data.public.has_test) == (181, False, False)
    records = data.load(FixedNoise(0))
    preprocessing = image_preprocessing("gabor", SMALL, 1 / 255)
    assert np.array_equal(records.X, centred(feature_rows(some_images(20), preprocessing), preprocessing))
    assert records.y.tolist() == [0, 1] * 10
    assert not (tmp_path / "cache").exists()  # they are in no file
    np.save(tmp_path / "images.npy", some_images(20))
    stored = user_data(tmp_path, images=tmp_path / "images.npy")
    assert np.array_equal(stored.load(FixedNoise(0)).X, records.X)
    assert np.array_equal(stored.load(FixedNoise(0)).X, records.X)
    assert computed == [20, 20]
    held_out = {"images_test": some_images(3, seed=7), "labels_test": ["a", "b", "a"]}  # in memory beside a file
    mixed = user_data(tmp_path, images=tmp_path / "images.npy", **held_out)
    assert len(mixed.load(FixedNoise(0)).X_test) == len(mixed.load(FixedNoise(0)).X_test) == 3
    assert computed == [20, 20, 3, 3]


def test_images_that_change_while_they_are_read_are_not_kept_as_the_new_ones(tmp_path: Path) -> None:
    folder, cache = write_idx(tmp_path / "idx", 12), tmp_path / "cache"
    before = records_of(folder, "off").X
    real = idx.read

    def late(path: Path) -> np.ndarray:
        values = real(path)
        if path.name.startswith("train-images"):
            write_idx(folder, 12, seed=1)
        return values

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idx, "read", late)
        records_of(folder, cache)
    after = records_of(folder, cache).X
    assert np.array_equal(after, records_of(folder, "off").X)
    assert not np.array_equal(after, before)


def test_faulty_records_of_ones_own_contribute_nothing(tmp_path: Path) -> None:
    images = some_images(20).astype(float)
    images[4, 0, 0] = np.nan
    labels = ["a", "b"] * 9 + ["?", "a"]
    records = user_data(
        tmp_path, images=images, labels=labels, images_test=images, labels_test=labels, is_public=True
    ).load(FixedNoise(0))
    kept = [k for k in range(20) if k not in (4, 18)]
    whole = user_data(tmp_path).load(FixedNoise(0)).X
    for rows in (records.X, records.X_test):
        assert np.array_equal(rows, whole[kept])
    assert records.private_notes["test"] == {"records": 20, "used": 18, "not_finite": 1, "unknown_labels": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": "pixels"}, "from_arrays"),
        ({"features": "sift"}, r"data\.features"),
        ({"largest": 0}, "largest"),
        ({"images": np.zeros((20, 5, 5))}, "image shape"),
        ({"n_declared": 0}, "n_declared"),
    ],
)
def test_what_cannot_be_declared_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        user_data(tmp_path, **changes)


@pytest.mark.parametrize("label", ["zz", [3, 4], np.array([1]), None, 2.5])
def test_one_bad_label_of_a_list_changes_no_other_record(label: Any) -> None:
    """A text made texts of all labels, a nested one stopped the run: read item by item, one record is one record."""
    images = some_images(4)

    def loaded(labels: list[Any]) -> Any:
        data = PrivateData.from_images(
            images, labels, classes=[0, 1], n_declared=4, largest=255, features="gabor", cache="off"
        )
        return data.image_rows(FixedNoise(0))

    whole, less = loaded([0, 1, 0, 1]), loaded([0, 1, label, 1])
    keep = [0, 1, 2, 3] if isinstance(label, np.ndarray) else [0, 1, 3]
    assert np.array_equal(less.X, np.asarray(whole.X)[keep])
    assert less.y.tolist() == ([0, 1, 1, 1] if len(keep) == 4 else [0, 1, 1])


def test_a_huge_pixel_warns_of_nothing() -> None:
    images = np.full((2, *SMALL), 0.5)
    images[1, 0, 0] = 1e308
    assert np.isfinite(feature_rows(images, image_preprocessing("gabor", SMALL, 1e3))).all()


def test_images_declared_public_need_not_all_be_usable() -> None:
    """So a sample of fixed size of all records is not offered for them, as it is for bundled images."""
    made = PrivateData.from_images(
        some_images(4), [0, 1, 7, 1], classes=[0, 1], n_declared=4, largest=255, features="gabor", cache="off",
        is_public=True,
    )  # fmt: skip
    assert not made.keeps_every_record
    assert PrivateData.digits().keeps_every_record


def test_images_that_are_gone_or_have_lost_labels_are_named(tmp_path: Path) -> None:
    where = tmp_path / "images.npy"
    np.save(where, some_images(4))
    options: dict[str, Any] = {"classes": [0, 1], "n_declared": 4, "largest": 255, "features": "gabor"}
    data = PrivateData.from_images(where, [0, 1, 0, 1], cache=tmp_path / "cache", **options)
    np.save(where, some_images(3))
    with pytest.raises(DataError, match="3 images and 4 labels"):
        data.image_rows(FixedNoise(0))
    where.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        data.image_rows(FixedNoise(0))
