"""Features of images that depend on the image alone and on public constants; see docs/image-features.md."""

from .rows import FEATURES, centred, check_features, feature_rows, image_preprocessing, n_features, transform_images

__all__ = [
    "FEATURES",
    "centred",
    "check_features",
    "feature_rows",
    "image_preprocessing",
    "n_features",
    "transform_images",
]
