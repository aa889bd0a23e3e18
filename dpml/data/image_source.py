"""Sources of images whose rows are features: read, looked up in the cache or computed, then centred.

The features themselves are in :mod:`dpml.data.images`.  They are found before anything is charged, from each image
alone; a charged centre (:mod:`dpml.stages.center`) comes between them and the finished rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, invalid
from .arrays import array_data, opened, plain_targets, targets_of
from .cells import labels_of, objects_of
from .images import centred, check_features, feature_rows, image_preprocessing, n_features
from .images.cache import cache_folder, cached_rows, source_key
from .images.rows import PIXELS, Progress, finite_images
from .private_data import CoinSource, PrivateData, PublicInfo, Records
from .transform import as_numbers

Parts = Mapping[str, Any]
"""``X``, ``y`` and, where there are test records, ``X_test`` and ``y_test``, as they were read."""


@dataclass(frozen=True, repr=False)
class ImageRows:
    """Usable records of an image source before the centre.  **Private**, the number of rows included.

    Attributes:
        X: (n, d) float32 of norm at most 1, without the constant; in a file where there is a cache.
        y: (n,) int64 class indexes.
        X_test, y_test: the same for test records, or ``None``.
        private_notes: counts, for ``private/`` only.
    """

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    private_notes: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "ImageRows(private)"


def finished(rows: ImageRows, public: PublicInfo) -> Records:
    """Records as a method takes them; their X is float32."""
    X_test = None if rows.X_test is None else centred(rows.X_test, public.preprocessing)
    return Records(centred(rows.X, public.preprocessing), rows.y, X_test, rows.y_test, rows.private_notes)


def image_data(
    public: PublicInfo,
    features: str,
    shape: tuple[int, ...],
    largest: float,
    read: Callable[[], Parts],
    *,
    files: Mapping[str, Path] | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> PrivateData:
    """A source of images of which rows are features.

    Args:
        public: what is declared, but for ``n_features``, ``norm_bound`` and ``preprocessing``, which follow.
        features: a name of :data:`~dpml.data.images.FEATURES` other than ``"pixels"``.
        shape, largest: of one image, and the value of a white pixel; public.
        read: reads everything, when asked.
        files: where ``X`` and ``X_test`` come from, if from files; other rows are not kept.
        cache: folder, ``"off"``, or ``None`` for the usual one.
        progress: called with (images done, images in all) where rows are computed.

    Raises:
        ConfigError: unknown features, an image that has none, or a cache that others can enter.
    """
    preprocessing = image_preprocessing(features, shape, 1.0 / largest)
    d = n_features(features, shape)
    public = replace(
        public, n_features=d, feature_shape=(d,), norm_bound=1.0, preprocessing=preprocessing,
        source={**public.source, "features": features},
    )  # fmt: skip
    folder = cache_folder(cache) if files else None

    def usable(parts: Parts, part: str, key: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
        images = as_numbers(parts[f"X{part}"])
        targets, known, counts = targets_of(plain_targets(parts[f"y{part}"]), public)
        if len(images) != len(targets):
            raise DataError(f"There are {len(images):,} images and {len(targets):,} labels. Give one label an image.")
        rows = cached_rows(
            folder if key else None, key, (len(images), d - 1),
            lambda out: feature_rows(images, preprocessing, progress, out),
        )  # fmt: skip
        finite = finite_images(images)
        keep = finite & known
        notes = {"records": len(images), "used": int(keep.sum()), "not_finite": int((~finite).sum()), **counts}
        return (rows, targets, notes) if keep.all() else (rows[keep], targets[keep], notes)

    def image_rows(noise: CoinSource) -> ImageRows:
        keys = {part: {"features": preprocessing, "source": source_key(path)} for part, path in (files or {}).items()}
        parts = read()  # after the keys: what changes meanwhile is kept under a key that does not come again
        train = usable(parts, "", keys.get("X", {}))
        if "X_test" not in parts:
            return ImageRows(train[0], train[1], private_notes={"train": train[2]})
        test = usable(parts, "_test", keys.get("X_test", {}))
        return ImageRows(train[0], train[1], test[0], test[1], {"train": train[2], "test": test[2]})

    def load(noise: CoinSource, sparse: bool = False) -> Records:
        return finished(image_rows(noise), public)

    return PrivateData(public, load, image_rows=image_rows)


def user_images(
    images: Any,
    labels: Any,
    *,
    classes: Iterable[Any],
    n_declared: int,
    largest: float,
    features: str,
    images_test: Any,
    labels_test: Any,
    is_public: bool,
    name: str,
    cache: str | Path | None,
) -> PrivateData:
    """See :meth:`PrivateData.from_images`."""
    if check_features(features) == PIXELS:
        raise invalid("features", features, "another map than pixels", "For pixels as they are use from_arrays.")
    if isinstance(largest, bool) or not isinstance(largest, int | float) or not 0 < largest < math.inf:
        raise invalid("largest", largest, "a finite number > 0, the value of a white pixel")
    plain = array_data(
        images, labels, norm_bound=1.0, classes=classes, n_declared=n_declared, X_test=images_test, y_test=labels_test,
        is_public=is_public, name=name,
    )  # fmt: skip
    shape = plain.public.feature_shape
    given = {"X": images, "y": labels, "X_test": images_test, "y_test": labels_test}
    files = {key: Path(given[key]) for key in ("X", "X_test") if isinstance(given[key], str | Path)}

    def read() -> Parts:
        return {
            key: opened(value, key, objects_of if key.startswith("X") else labels_of)
            for key, value in given.items()
            if value is not None
        }

    return image_data(plain.public, features, shape, float(largest), read, files=files, cache=cache)
