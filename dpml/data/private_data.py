"""``PrivateData``: public knowledge at hand, records behind one door.

Making a :class:`PrivateData` reads no record: it checks that files exist, that their header fits the schema, and
states what is public.  :meth:`PrivateData.load` is the only thing that reads records; everything that it returns is
private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import ConfigError, DataError
from .encoder import Encoder
from .public_whitening import PublicWhitening
from .schema import Schema
from .stored import Stored

if TYPE_CHECKING:
    from .image_source import ImageRows


class CoinSource(Protocol):
    """The part of a noise source that decides splits."""

    def uniform(self, size: int) -> np.ndarray:
        """Independent values (size,) from the uniform distribution on [0, 1)."""
        ...


@dataclass(frozen=True)
class PublicInfo:
    """All that a plan may know.  Equal for any two data sets that differ in a record.

    Attributes:
        name: of the data set.
        n_declared: public nominal number of *training* records.
        n_features: number of features of a row, the constant column included if there is one.
        classes: labels in the order of their indexes, ``()`` for regression.
        norm_bound: L2 norm that no row exceeds, or ``None`` if rows are not clipped.
        is_public: the records themselves are public.
        test_is_public: there are test records and they are public, so metrics on them may be published.
        has_test: test records are declared.
        schema: the schema as plain JSON values, or ``None`` without a table.
        source: public description (no file contents, no paths).
        feature_shape: shape of one row as a model sees it.
        default_delta: δ that the literature uses for this data set, or ``None``.
        target_bounds: public ``(lo, hi)`` of a regression target in its own units, else ``None``.
        preprocessing: how raw records become rows, as plain JSON values (public constants only): ``{"kind": "table"}``
            with ``schema`` (and ``"whitening"``, where there is one), or the map of
            :func:`~dpml.data.transform.transform_array`.
    """

    name: str
    n_declared: int
    n_features: int
    classes: tuple[Any, ...]
    norm_bound: float | None
    is_public: bool
    test_is_public: bool
    has_test: bool
    schema: dict[str, Any] | None = None
    source: dict[str, Any] = field(default_factory=dict)
    feature_shape: tuple[int, ...] = ()
    preprocessing: dict[str, Any] = field(default_factory=dict)
    default_delta: float | None = None
    target_bounds: tuple[float, float] | None = None

    @property
    def task(self) -> str:
        """``"classification"`` or ``"regression"``."""
        return "classification" if self.target_bounds is None else "regression"

    @property
    def usual_delta(self) -> float:
        """δ where none is asked for: the data set's own, or min(1e-5, 0.1/n_declared)."""
        return self.default_delta if self.default_delta is not None else min(1e-5, 0.1 / self.n_declared)

    def __post_init__(self) -> None:
        if not self.feature_shape:
            object.__setattr__(self, "feature_shape", (self.n_features,))
        if self.target_bounds is None and self.schema and "bounds" in self.schema.get("target", {}):
            low, high = self.schema["target"]["bounds"]  # of a table: they stand in its schema
            object.__setattr__(self, "target_bounds", (float(low), float(high)))


@dataclass(frozen=True, repr=False)
class Records:
    """The records, encoded.  **Private**, the number of rows included.

    Attributes:
        X: (n, d) float64 training rows, each within the public norm bound; a scipy.sparse CSR array where ``load`` was
            asked for one and the source has one; a :class:`~dpml.data.stored.Stored` where it was asked for records
            that are read as they are drawn.
        y: (n,) int64 class indexes, or for regression (n,) float64 targets in [-1, 1]: (clip(y, lo, hi) - mid)/half of
            the public ``target_bounds``; ``None`` where X is a ``Stored``, which gives both.
        X_test, y_test: the same for test records, or ``None``.
        private_notes: counts of clamped, dropped and unknown values, for ``private/`` only.
    """

    X: Any
    y: Any
    X_test: Any = None
    y_test: np.ndarray | None = None
    private_notes: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "Records(private)"

    @property
    def stored(self) -> bool:
        """Whether training rows are read as they are drawn."""
        return isinstance(self.X, Stored)


@dataclass(frozen=True, repr=False)
class Cells:
    """A table's cells as read, before anything is encoded.  **Private**, the number of rows included.

    Attributes:
        train: frame of the training records, one row each.
        held_out: the same for test records, or ``None``.  No record is in both.
        private_notes: counts, for ``private/`` only.
    """

    train: Any
    held_out: Any
    private_notes: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "Cells(private)"


class PrivateData:
    """A data set that can be planned for without being read.

    Use one of the constructors.  ``public`` is safe to publish; ``load`` reads the records.

    Attributes:
        public: everything that a plan may use.
        encoder: how rows of a table become features, or ``None`` for arrays.
        size: how many records ``load(every_record=True)`` gives, where that is known without reading them, else None.
            **Private**, unless neighbours have equally many.
    """

    def __init__(
        self,
        public: PublicInfo,
        read: Callable[..., Records],
        encoder: Encoder | None = None,
        *,
        read_stored: Callable[[CoinSource], Records] | None = None,
        large: bool = False,
        cells: Callable[[CoinSource], Cells] | None = None,
        image_rows: Callable[[CoinSource], ImageRows] | None = None,
        size: Callable[[], int] | None = None,
    ) -> None:
        self.public = public
        self.encoder = encoder
        self._read = read
        self._read_stored = read_stored
        self._large = large
        self._cells = cells
        self._image_rows = image_rows
        self.size = size

    def __repr__(self) -> str:
        p = self.public
        target = f"classes={p.classes!r}" if p.target_bounds is None else f"target_bounds={p.target_bounds!r}"
        return f"PrivateData({p.name!r}, n_declared={p.n_declared}, n_features={p.n_features}, {target})"

    @property
    def keeps_every_record(self) -> bool:
        """Whether ``load(every_record=True)`` is possible: for arrays and datasets, not for tables."""
        kind = self.public.preprocessing.get("kind")
        bundled = self.public.source.get("kind") == "images"  # all usable; of a user's own some may be left out
        complete = self.public.is_public and (kind == "array" or (kind == "image" and bundled))
        return complete or self._read_stored is not None

    def is_stored(self, *, lazy: bool = False, every_record: bool = False) -> bool:
        """Whether :meth:`load` with these arguments gives records that are read as they are drawn."""
        return self._read_stored is not None and (every_record or (lazy and self._large))

    def cells(self, noise: CoinSource) -> Cells:
        """A table's cells, split into training and test records as :meth:`load` does it, but not encoded.

        For stages that find bounds or categories under a budget (:mod:`dpml.stages`); everything here is private.

        Raises:
            ConfigError: the data are no table.
            DataError: as :meth:`load`.
        """
        if self._cells is None:
            raise ConfigError("these data are no table of cells: bounds and categories are found for tables only.")
        return self._cells(noise)

    def image_rows(self, noise: CoinSource) -> ImageRows:
        """Image features before a centre, for the stage that finds one (:mod:`dpml.stages.center`); all private.

        Raises:
            ConfigError: the data are no images with features.
            DataError: as :meth:`load`.
        """
        if self._image_rows is None:
            raise ConfigError("these data are no images with features: only those have a center to be found.")
        return self._image_rows(noise)

    def load(
        self, noise: CoinSource, sparse: bool = False, *, lazy: bool = False, every_record: bool = False
    ) -> Records:
        """Read and encode the records; the only place where that happens.

        Args:
            noise: decides ``test_fraction`` splits by one independent coin per record; else it is not used.
            sparse: rows of tables and of sparse arrays come as scipy.sparse CSR arrays, never made dense; other
                sources give dense rows all the same.  The numbers are those of ``sparse=False``.
            lazy: the caller can take records as they are drawn (``dp_sgd``): arrays in a file and large datasets then
                come as a :class:`~dpml.data.stored.Stored`.  Without it they are copied into memory as float64 (the
                size of the copy of a file is in ``private_notes``).
            every_record: as ``lazy`` for data of any size, so that records that cannot be used stay counted and are
                left out only when drawn.  Sampling of a fixed size needs it.

        Raises:
            ConfigError: ``every_record`` of a table, which leaves such records out as it is read.
            DataError: the files cannot be read as declared (custodian-side, before any release).  What single records
                hold, and whether there is one, raises nothing.
        """
        if every_record and not self.keeps_every_record:
            raise ConfigError(
                "sampling = 'fixed_size' needs data in which every record counts, and a table leaves out those that "
                "cannot be used. Use sampling='poisson', or PrivateData.from_arrays."
            )
        if self._read_stored is not None and self.is_stored(lazy=lazy, every_record=every_record):
            return self._read_stored(noise)
        return self._read(noise, sparse=True) if sparse else self._read(noise)

    @staticmethod
    def from_table(
        path: str | Path,
        schema: Schema | Mapping[str, Any] | str | Path | None = None,
        test_path: str | Path | None = None,
        split_column: str | None = None,
        test_fraction: float | None = None,
        *,
        spline: bool = True,
        public_path: str | Path | None = None,
    ) -> PrivateData:
        """A CSV, CSV.gz or Parquet table with its schema.

        Test records come from ``test_path`` (same columns), from ``split_column`` (values ``train`` and ``test``;
        other values contribute nothing; ``n_declared`` is then that of the training part) or from ``test_fraction``
        (every record goes to the test part with that probability, by its own secret coin; ``n_declared`` is scaled
        by ``1 - test_fraction``); at most one of the three.

        ``public_path``: a table with the same columns (the target may be missing) whose records are public and none of
        which is in the others: it is read at once, and features are whitened by its covariance
        (docs/public-whitening.md).

        Raises:
            SchemaError: no schema, or a faulty one.
            DataError: a file is missing, of an unknown type, or its header does not fit the schema.
            ConfigError: the split is declared twice or out of range.
        """
        from .table import table_data

        return table_data(path, schema, test_path, split_column, test_fraction, spline=spline, public_path=public_path)

    @staticmethod
    def from_arrays(
        X: Any,
        y: Any,
        *,
        norm_bound: float | None,
        classes: Iterable[Any] | None = None,
        n_declared: int,
        target_bounds: tuple[float, float] | None = None,
        X_test: Any = None,
        y_test: Any = None,
        is_public: bool = False,
        name: str = "arrays",
        add_constant: bool = False,
        whitening: PublicWhitening | None = None,
    ) -> PrivateData:
        """Numbers: X (n, ...), dense or scipy.sparse (n, d), and y (n,): labels, or targets of a regression.

        X and y may be arrays in memory, ``np.memmap`` arrays or paths of ``.npy`` files, which are mapped.  Of an X in
        a file, ``dp_sgd`` reads the rows that a step draws and holds no copy; other methods and test records are
        copied into memory (8 bytes a value).

        Exactly one of ``classes`` and ``target_bounds`` says which.  At load every row is clipped to ``norm_bound``
        (``None``: not at all); a row with NaN, infinity or a cell that is no real number, with a label outside
        ``classes``, or with a target that is NaN or no number, contributes nothing.  Lists, and arrays and columns of
        objects, are read item by item, so that no record changes how another is read; a row of a list that has not the
        shape of most rows contributes nothing.  Targets are clipped to ``target_bounds``.  ``add_constant`` appends a
        column of ones before clipping.  ``whitening``, from public rows, is applied before that column is appended
        (docs/public-whitening.md).

        Raises:
            DataError: the shape or the type (``dtype``) of a whole array does not fit, or a list is ragged; no value is
                looked at.
            ConfigError: ``n_declared`` or ``norm_bound`` out of range; both or none of ``classes``, ``target_bounds``.
            SchemaError: ``classes`` is no list of two or more different labels.
        """
        from .arrays import array_data

        return array_data(
            X,
            y,
            norm_bound=norm_bound,
            classes=classes,
            target_bounds=target_bounds,
            n_declared=n_declared,
            X_test=X_test,
            y_test=y_test,
            is_public=is_public,
            name=name,
            add_constant=add_constant,
            whitening=whitening,
        )

    @staticmethod
    def from_dataset(
        dataset: Any,
        *,
        n_declared: int,
        classes: Iterable[Any] | None = None,
        target_bounds: tuple[float, float] | None = None,
        feature_shape: int | tuple[int, ...] | None = None,
        norm_bound: float | None = None,
        test: Any = None,
        is_public: bool = False,
        name: str = "dataset",
        add_constant: bool = False,
        lazy: bool | None = None,
        workers: int = 0,
    ) -> PrivateData:
        """Any map-style dataset: an object with ``__len__`` and ``__getitem__`` that gives ``(x, y)`` pairs.

        ``feature_shape`` is the public shape of ``x``; it may be left out where the dataset tells it without an item
        being read (``tensors[0].shape``).  ``classes`` may be left out if the dataset has a ``classes`` attribute
        (labels are then indexes into it); ``target_bounds`` in its place declares a regression.  An item that
        raises, is no pair or has another shape contributes nothing.

        ``lazy``: ``dp_sgd`` reads items when a step draws them, and an item that raises then contributes nothing;
        ``False`` reads all of them once, into memory; ``None`` is lazy if ``n_declared`` records of float64 would take
        more than 1 GiB.  Other methods always read all.  A run with a folder reads every item once more for the
        fingerprint that resume compares, so items must not change from one reading to the next.  ``workers`` processes
        read drawn items; they are started afresh ("spawn": guard a script by ``if __name__ == "__main__"``) and see
        the pickled dataset only, no noise.

        Raises:
            ConfigError: something public is missing or out of range.
            DataError: the object is no map-style dataset.
        """
        from .arrays import dataset_data

        return dataset_data(
            dataset,
            n_declared=n_declared,
            classes=classes,
            target_bounds=target_bounds,
            feature_shape=feature_shape,
            norm_bound=norm_bound,
            test=test,
            is_public=is_public,
            name=name,
            add_constant=add_constant,
            lazy=lazy,
            workers=workers,
        )

    @staticmethod
    def bundled(name: str = "adult", *, spline: bool = True) -> PrivateData:
        """A public table that comes with the package: ``"adult"``."""
        from .sources import bundled

        return bundled(name, spline=spline)

    @staticmethod
    def census_income(folder: str | Path, *, spline: bool = True) -> PrivateData:
        """Census-Income (KDD): a folder with ``train.parquet`` and ``test.parquet``; its schema comes with dpml."""
        from .sources import census_income

        return census_income(folder, spline=spline)

    @staticmethod
    def digits(features: str = "pixels") -> PrivateData:
        """The 1,797 small digit images of scikit-learn (public); every fifth one is a test record.

        ``features``: as for :meth:`fashion_mnist`.
        """
        from .sources import digits

        return digits(features)

    @staticmethod
    def diabetes() -> PrivateData:
        """The 442 patients of scikit-learn's diabetes regression (public); every fifth one is a test record."""
        from .sources import diabetes

        return diabetes()

    @staticmethod
    def fashion_mnist(
        folder: str | Path | None = None,
        features: str = "pixels",
        cache: str | Path | None = None,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> PrivateData:
        """Fashion-MNIST (public) from the four IDX files in ``folder``, gzipped or not.

        ``features``: ``"pixels"``, or data-independent maps ``"scattering"``, ``"gabor"``, ``"scattering_gabor"``
        (docs/image-features.md), which are computed once and kept in the folder ``cache`` (``None``: the usual one,
        ``"off"``: not kept).  ``progress``: called with (images done, images in all) while they are computed.
        """
        from .sources import fashion_mnist

        return fashion_mnist(folder, features, cache, progress=progress)

    @staticmethod
    def from_images(
        images: Any,
        labels: Any,
        *,
        classes: Iterable[Any],
        n_declared: int,
        features: str = "scattering",
        largest: float = 255.0,
        images_test: Any = None,
        labels_test: Any = None,
        is_public: bool = False,
        name: str = "images",
        cache: str | Path | None = None,
    ) -> PrivateData:
        """Images (n, H, W) or (n, channels, H, W), H and W at least 8, of which rows are data-independent features.

        Args:
            images, labels: arrays, or paths of ``.npy`` files; a record that cannot be used contributes nothing.
            classes, n_declared, is_public, name: public, as for :meth:`from_arrays`.
            features: ``"scattering"``, ``"gabor"`` or ``"scattering_gabor"`` (docs/image-features.md).
            largest: value of a white pixel; what is darker than 0 or lighter than this is clipped.
            images_test, labels_test: a hold-out.
            cache: where the rows of images that come from files are kept, as for :meth:`fashion_mnist`.

        Raises:
            DataError, ConfigError, SchemaError: as :meth:`from_arrays`; unknown features, images that are too small.
        """
        from .image_source import user_images

        return user_images(
            images,
            labels,
            classes=classes,
            n_declared=n_declared,
            largest=largest,
            features=features,
            images_test=images_test,
            labels_test=labels_test,
            is_public=is_public,
            name=name,
            cache=cache,
        )

    @staticmethod
    def synthetic(
        n: int = 10_000, d: int = 20, seed: int = 0, *, n_test: int | None = None, task: str = "classification"
    ) -> PrivateData:
        """A made-up task (public), binary or with ``task="regression"``: ``n`` training rows of ``d`` features and a
        constant column."""
        from .sources import synthetic

        return synthetic(n, d, seed, n_test=n_test, task=task)


def nonempty(n: int, what: str) -> None:
    """``DataError`` if a file or array holds no record at all."""
    if n == 0:
        raise DataError(f"{what} holds no record. Training needs a table with records; check the file.")
