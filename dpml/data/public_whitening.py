"""Whitening of feature rows by the mean and covariance of *public* records.

For a linear model under a small budget the noise in a score depends on the norm of the row, and every direction of the
row gets the same noise.  A direction with variance v that carries signal s is therefore worth scaling by (s/v)^(1/4);
with s unknown, by v^(-1/4), half-way between leaving rows alone and full whitening (power 1/2).

A row x becomes (x - mean) · matrix with matrix = (covariance / its mean eigenvalue)^(-power), eigenvalues raised to at
least ``floor`` first, so that a direction in which the public records never vary is stretched by floor^(-power) and no
more.  Mean and covariance are public constants: each row still depends on its own record alone, and the sensitivity of
whatever follows is that of the clipping which comes after.  Statistics of the private records must never come in here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from ..errors import DataError, invalid

if TYPE_CHECKING:
    from .private_data import PublicInfo

POWER = 0.25
FLOOR = 1e-3
"""Smallest eigenvalue that counts, in units of their mean."""
LARGEST_POWER = 0.5
TOLERANCE = 1e-6
"""Of symmetry and of negative eigenvalues, relative to the largest: far below what the floor hides."""
VERSION = 1
_ENTRY = "whitening"
_KEYS = ("version", "features", "records", "mean", "matrix")
_CHUNK = 4096
MOST_FEATURES = 2048  # the map of d features has d² numbers and travels in the model file's header
_SAME = 1e-12  # columns of equal numbers differ from their mean by no more than this part, which is rounding


def negative_power(matrix: np.ndarray, power: float, floor: float) -> np.ndarray:
    """A symmetric (d, d) matrix, eigenvalues divided by their mean and raised to ``floor``, to the power -``power``."""
    with threadpool_limits(1):  # the same bits whatever the number of threads: a resumed run must find the same map
        values, vectors = np.linalg.eigh(matrix.astype(np.float64))
        values = np.maximum(values / values.mean(), floor)
        return np.asarray((vectors * values**-power) @ vectors.T)


def refuse_wide(name: str, features: int) -> None:
    """ConfigError for more than :data:`MOST_FEATURES` features, before anything of their square is made."""
    if features > MOST_FEATURES:
        allowed = f"at most {MOST_FEATURES:,} features"
        raise invalid(name, f"{features:,} features", allowed, "Train without whitening, or on fewer of them.")


@dataclass(frozen=True, eq=False, repr=False)
class PublicWhitening:
    """A map of rows (d,) that public records gave: (row - ``mean``) · ``matrix``.

    Attributes:
        mean: (d,) finite.
        matrix: (d, d) finite and exactly symmetric.
        records: number of public records behind it, ``None`` where only a covariance was given.

    Raises:
        ConfigError: shapes that do not fit, a value that is not finite, a matrix that is not symmetric.

    >>> PublicWhitening.from_covariance([[16.0, 0.0], [0.0, 1.0]], power=0.5).apply([[16.0, 1.0]]).round(3).tolist()
    [[11.662, 2.915]]
    """

    mean: np.ndarray
    matrix: np.ndarray
    records: int | None = None

    def __post_init__(self) -> None:
        mean, matrix = _numbers("mean", self.mean, 1), _numbers("matrix", self.matrix, 2)
        refuse_wide("mean", len(mean))
        if matrix.shape != (len(mean), len(mean)):
            raise invalid("matrix", f"an array of shape {matrix.shape}", f"of shape {(len(mean), len(mean))}")
        if not np.array_equal(matrix, matrix.T):
            raise invalid("matrix", "an array that is not symmetric", "equal to its transpose")
        if self.records is not None and (type(self.records) is not int or self.records < 2):
            raise invalid("records", self.records, "a whole number >= 2, or None")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "matrix", matrix)
        if not np.isfinite(self._shift).all():
            raise invalid("mean", "an array", "small enough for mean · matrix to be finite")

    def __repr__(self) -> str:
        return f"PublicWhitening(features={len(self.mean)}, records={self.records})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicWhitening) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.digest)

    # -- from public records --------------------------------------------------------------------------------------
    @classmethod
    def from_rows(cls, rows: Any, power: float = POWER, floor: float = FLOOR) -> Self:
        """The map that *public* rows (n, d), dense or scipy.sparse, give.

        Args:
            rows: at least two, finite, not all equal.
            power: 0 (only the mean is subtracted) to 1/2 (full whitening).
            floor: smallest eigenvalue, in units of their mean; in (0, 1].

        Raises:
            ConfigError: any of that does not hold.
        """
        given = rows.tocsr() if sparse.issparse(rows) else _numbers("rows", rows, 2)
        if given.ndim != 2 or min(given.shape) < 1 or given.shape[0] < 2:
            raise invalid("rows", f"an array of shape {given.shape}", "two or more rows of one or more features")
        n, d = given.shape
        refuse_wide("rows", d)
        blocks = range(0, n, _CHUNK)
        with np.errstate(over="ignore", invalid="ignore"), threadpool_limits(1):
            mean = sum((_dense(given, k).sum(axis=0) for k in blocks), np.zeros(d)) / n
            covariance = np.zeros((d, d))
            for k in blocks:
                centred = _dense(given, k) - mean
                covariance += centred.T @ centred
            covariance /= n
        if not np.isfinite(covariance).all():
            raise invalid("rows", "an array", "finite numbers of which the squares can be added up")
        if (np.diag(covariance) <= np.square(_SAME * mean)).all():
            raise invalid("rows", f"{n} equal rows", "rows that differ in at least one feature")
        return cls.from_covariance(covariance, mean, power, floor, records=n)

    @classmethod
    def from_covariance(
        cls,
        covariance: Any,
        mean: Any = None,
        power: float = POWER,
        floor: float = FLOOR,
        *,
        records: int | None = None,
    ) -> Self:
        """The map that a *public* covariance (d, d) gives; its scale does not matter.

        Args:
            covariance: symmetric, without negative eigenvalues (both up to :data:`TOLERANCE`), not all zero.
            mean: (d,), what is subtracted first; default nothing.
            power, floor: as for :meth:`from_rows`.
            records: number of public records behind it.

        Raises:
            ConfigError: any of that does not hold.
        """
        power = _between("power", power, 0.0, LARGEST_POWER)
        floor = _between("floor", floor, 0.0, 1.0)
        if floor == 0.0:
            raise invalid("floor", floor, "above 0: a direction without variance would be stretched without end")
        matrix = _numbers("covariance", covariance, 2)
        refuse_wide("covariance", len(matrix))
        d = len(matrix)
        largest = float(np.abs(matrix).max())
        if matrix.shape != (d, d):
            raise invalid("covariance", f"an array of shape {matrix.shape}", "square")
        if largest == 0.0:
            raise invalid("covariance", "an array of zeros", "different from 0 in at least one direction")
        matrix = matrix / largest
        if np.abs(matrix - matrix.T).max() > TOLERANCE:
            raise invalid("covariance", "an array that is not symmetric", "equal to its transpose, up to rounding")
        matrix = (matrix + matrix.T) / 2
        values = np.linalg.eigvalsh(matrix)
        if values[0] < -TOLERANCE * max(values[-1], 0.0) or values[-1] <= 0.0:
            raise invalid("covariance", "an array with a negative eigenvalue", "positive semidefinite, up to rounding")
        found = negative_power(matrix, power, floor)
        return cls(np.zeros(d) if mean is None else mean, (found + found.T) / 2, records)

    # -- rows -----------------------------------------------------------------------------------------------------
    def apply(self, rows: Any) -> np.ndarray:
        """(n, d) rows, dense or scipy.sparse, to (n, d) float64; each row from itself alone, to the last bit.

        A row's result is the sum of its entries times rows of ``matrix``, added in order (SciPy's product of a CSR
        array does that row by row; a dense product rounds by blocks of rows).  Rows that are not finite, or too large,
        give what is not finite.

        Raises:
            DataError: rows of another length.
        """
        given = rows.tocsr() if sparse.issparse(rows) else np.asarray(rows, dtype=np.float64)
        d = len(self.mean)
        if given.ndim != 2 or given.shape[1] != d:
            raise DataError(f"The rows have shape {given.shape}; a whitening of {d} features takes (n, {d}).")
        out = np.empty(given.shape)
        for start in range(0, len(out), _CHUNK):
            piece = slice(start, start + _CHUNK)
            out[piece] = _product(given[piece], self.matrix) - self._shift
        return out

    @cached_property
    def _shift(self) -> np.ndarray:
        return np.asarray(_product(self.mean[None, :], self.matrix)[0])

    # -- JSON -----------------------------------------------------------------------------------------------------
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; arrays as base64 of little-endian float64, so that they come back to the last bit."""
        return {
            "version": VERSION, "features": len(self.mean), "records": self.records, "mean": _text(self.mean),
            "matrix": _text(self.matrix),
        }  # fmt: skip

    @staticmethod
    def from_dict(d: Any) -> PublicWhitening:
        """What :meth:`to_dict` wrote; ConfigError for anything else."""
        if not isinstance(d, Mapping) or set(d) != set(_KEYS):
            raise invalid("whitening", d, f"an object with the keys {', '.join(_KEYS)}")
        if d["version"] != VERSION or type(d["version"]) is not int:
            raise invalid("whitening version", d["version"], str(VERSION))
        size, records = d["features"], d["records"]
        if type(size) is not int or size < 1:
            raise invalid("whitening features", size, "a whole number >= 1")
        if not (records is None or type(records) is int):
            raise invalid("whitening records", records, "a whole number or null")
        for key in ("mean", "matrix"):
            if not isinstance(d[key], str):
                raise invalid(f"whitening {key}", d[key], "base64 of float64 numbers")
        return _decoded(size, records, d["mean"], d["matrix"])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of mean and matrix."""
        return hashlib.sha256((_text(self.mean) + " " + _text(self.matrix)).encode()).hexdigest()


def whitening_in(preprocessing: Mapping[str, Any]) -> PublicWhitening | None:
    """The map in a preprocessing object, ``None`` where there is none; ConfigError where it is damaged."""
    return PublicWhitening.from_dict(preprocessing[_ENTRY]) if _ENTRY in preprocessing else None


def with_whitening(preprocessing: Mapping[str, Any], whitening: PublicWhitening | None) -> dict[str, Any]:
    """The preprocessing object with the map in it, where there is one."""
    return {**preprocessing, **({} if whitening is None else {_ENTRY: whitening.to_dict()})}


def described(whitening: PublicWhitening) -> dict[str, Any]:
    """What the public description (``source``) and the plan say of it."""
    return {"records": whitening.records, "map_sha256": whitening.digest}


def whitening_assumptions(public: PublicInfo) -> tuple[str, ...]:
    """What a guarantee takes for granted where rows were whitened: one sentence, or none."""
    found = public.source.get(_ENTRY)
    if found is None:
        return ()
    count = "the records" if found["records"] is None else f"the {found['records']:,} records"
    file = f" (SHA-256 {found['sha256'][:12]}…)" if "sha256" in found else ""
    where = f"of the public file{file}" if "sha256" in found else "whose mean and covariance were given"
    return (
        f"features are whitened: {count} {where} are public, none of them is among those that this guarantee "
        "protects, and they were not chosen by looking at the private records",
    )


# --------------------------------------------------------------------------------------------------- small parts


@lru_cache(maxsize=4)
def _decoded(size: int, records: int | None, mean: str, matrix: str) -> PublicWhitening:
    return PublicWhitening(
        _array("whitening mean", mean, (size,)), _array("whitening matrix", matrix, (size, size)), records
    )


def _text(values: np.ndarray) -> str:
    return base64.b64encode(np.asarray(values, dtype="<f8").tobytes()).decode("ascii")


def _array(name: str, text: str, shape: tuple[int, ...]) -> np.ndarray:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(name, text, "base64 of float64 numbers") from error
    if len(raw) != 8 * math.prod(shape):
        raise invalid(name, f"{len(raw)} bytes", f"{8 * math.prod(shape)} bytes, the numbers of shape {shape}")
    return np.frombuffer(raw, dtype="<f8").reshape(shape).astype(np.float64)


def _numbers(name: str, values: Any, dimensions: int) -> np.ndarray:
    """A copy that nobody can write to, of finite real numbers with that many dimensions and no empty one."""
    try:
        found = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise invalid(name, values, f"{dimensions}-dimensional numbers") from error
    if found.dtype.kind not in "iufb" or found.ndim != dimensions or found.size == 0:
        shown = f"an array of shape {found.shape} and type {found.dtype}"
        raise invalid(name, shown, f"real numbers in {dimensions} dimension{'s' if dimensions > 1 else ''}")
    copied = np.array(found, dtype=np.float64, order="C")
    if not np.isfinite(copied).all():
        raise invalid(name, "an array with NaN or infinity", "finite")
    copied.setflags(write=False)
    return copied


def _between(name: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not low <= value <= high:
        raise invalid(name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def _dense(rows: Any, start: int) -> np.ndarray:
    block = rows[start : start + _CHUNK]
    return np.asarray(block.toarray() if sparse.issparse(block) else block, dtype=np.float64)


def _product(rows: Any, matrix: np.ndarray) -> np.ndarray:
    """Rows times matrix, one row after the other."""
    return np.asarray(sparse.csr_array(rows) @ matrix)
