"""``PrivateData``: public knowledge at hand, records behind one door.

Making a :class:`PrivateData` reads no record: it checks that files exist, that their header fits the schema, and
states what is public.  :meth:`PrivateData.load` is the only thing that reads records; everything that it returns is
private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import DataError
from .encoder import Encoder
from .schema import Schema


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
            with ``schema``, or the map of :func:`~dpml.data.transform.transform_array`.
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
            asked for one and the source has one.
        y: (n,) int64 class indexes, or for regression (n,) float64 targets in [-1, 1]: (clip(y, lo, hi) - mid)/half of
            the public ``target_bounds``.
        X_test, y_test: the same for test records, or ``None``.
        private_notes: counts of clamped, dropped and unknown values, for ``private/`` only.
    """

    X: Any
    y: np.ndarray
    X_test: Any = None
    y_test: np.ndarray | None = None
    private_notes: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "Records(private)"


class PrivateData:
    """A data set that can be planned for without being read.

    Use one of the constructors.  ``public`` is safe to publish; ``load`` reads the records.

    Attributes:
        public: everything that a plan may use.
        encoder: how rows of a table become features, or ``None`` for arrays.
    """

    def __init__(self, public: PublicInfo, read: Callable[..., Records], encoder: Encoder | None = None) -> None:
        self.public = public
        self.encoder = encoder
        self._read = read

    def __repr__(self) -> str:
        p = self.public
        target = f"classes={p.classes!r}" if p.target_bounds is None else f"target_bounds={p.target_bounds!r}"
        return f"PrivateData({p.name!r}, n_declared={p.n_declared}, n_features={p.n_features}, {target})"

    def load(self, noise: CoinSource, sparse: bool = False) -> Records:
        """Read and encode the records; the only place where that happens.

        Args:
            noise: decides ``test_fraction`` splits by one independent coin per record; else it is not used.
            sparse: rows of tables and of sparse arrays come as scipy.sparse CSR arrays, never made dense; other
                sources give dense rows all the same.  The numbers are those of ``sparse=False``.

        Raises:
            DataError: the files cannot be read as declared or hold no record at all (custodian-side, before any
                release).
        """
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
    ) -> PrivateData:
        """A CSV, CSV.gz or Parquet table with its schema.

        Test records come from ``test_path`` (same columns), from ``split_column`` (values ``train`` and ``test``;
        other values contribute nothing; ``n_declared`` is then that of the training part) or from ``test_fraction``
        (every record goes to the test part with that probability, by its own secret coin; ``n_declared`` is scaled
        by ``1 - test_fraction``); at most one of the three.

        Raises:
            SchemaError: no schema, or a faulty one.
            DataError: a file is missing, of an unknown type, or its header does not fit the schema.
            ConfigError: the split is declared twice or out of range.
        """
        from .table import table_data

        return table_data(path, schema, test_path, split_column, test_fraction, spline=spline)

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
    ) -> PrivateData:
        """Numbers in memory: X (n, ...), dense or scipy.sparse (n, d), and y (n,): labels, or targets of a regression.

        Exactly one of ``classes`` and ``target_bounds`` says which.  At load every row is clipped to ``norm_bound``
        (``None``: not at all); a row with NaN or infinity, with a label outside ``classes``, or with a target that is
        NaN or no number, contributes nothing.  Targets are clipped to ``target_bounds``.  ``add_constant`` appends a
        column of ones before clipping.

        Raises:
            DataError: shapes or types that do not fit (no value is looked at).
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
    ) -> PrivateData:
        """Any map-style dataset: an object with ``__len__`` and ``__getitem__`` that gives ``(x, y)`` pairs.

        ``feature_shape`` is the public shape of ``x``; it may be left out where the dataset tells it without an item
        being read (``tensors[0].shape``).  ``classes`` may be left out if the dataset has a ``classes`` attribute
        (labels are then indexes into it); ``target_bounds`` in its place declares a regression.  An item of another
        shape contributes nothing.

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
    def digits() -> PrivateData:
        """The 1,797 small digit images of scikit-learn (public); every fifth one is a test record."""
        from .sources import digits

        return digits()

    @staticmethod
    def diabetes() -> PrivateData:
        """The 442 patients of scikit-learn's diabetes regression (public); every fifth one is a test record."""
        from .sources import diabetes

        return diabetes()

    @staticmethod
    def fashion_mnist(folder: str | Path | None = None) -> PrivateData:
        """Fashion-MNIST (public) from the four IDX files in ``folder``, gzipped or not."""
        from .sources import fashion_mnist

        return fashion_mnist(folder)

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
