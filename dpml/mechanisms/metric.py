"""The general-metric mechanism: an answer y with density ∝ exp(−ε d(y, f(x))/(2S)) for a metric d of the caller.

S bounds d(f(x), f(x')) over neighbouring data sets.  By the triangle inequality the exponent moves by at most ε/2, and
so does the logarithm of the normaliser: together ε.  Where the normaliser is the same for every f(x) the 2 goes: on R^k
with a norm (for one number or l1 that is the Laplace mechanism), and on a finite range whose distances look the same
from every point.  McSherry & Talwar 2007, section 3, with score −d; docs/mechanisms.md, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from dpml import errors
from dpml.accounting.checks import check_list, check_number, check_one_of
from dpml.accounting.events import MAX_SCALE, Event, Pure
from dpml.mechanisms import exact, exact_reals
from dpml.mechanisms.answers import Answer, around, check_beta, check_noise, finite_values
from dpml.mechanisms.laplace import GRID_BITS, SHARED_BITS, check_dimension, to_whole_steps
from dpml.mechanisms.lattice import LARGEST, SMALLEST
from dpml.mechanisms.noise import NoiseSource

NORMS = ("l1", "l2", "linf")
MOST_OUTPUTS = 1000  # the triangle inequality is checked for all triples
TRIANGLE_SLACK = (
    2.0**-40
)  # of the largest distance: what rounding may break the triangle inequality by, and is paid for
MOST_STEPS = {"l1": 2.0**52, "l2": 2.0**51, "linf": 2.0**45}  # of the noise: what the samplers take

Distance = Callable[[Any, Any], float]


@dataclass(frozen=True)
class MetricMechanism:
    """An answer near f(x) in a metric: ε-DP for values whose neighbours are within ``sensitivity`` of each other.

    Args:
        sensitivity: S > 0, the largest distance of the values of neighbouring data sets, in the metric.
        epsilon: ε > 0, the pure cost of one release.
        norm: "l1", "l2" or "linf", for vectors of ``dimension`` numbers: noise of density ∝ exp(−ε‖n‖/S); or
        outputs: the public finite range, 1 to 1000 different values, with
        distance: a function of two outputs or the square array of distances.  Exactly one of norm and outputs.
        dimension: of the vectors, with ``norm`` only.

    Raises:
        ConfigError: an argument out of range; duplicate outputs; distances that are negative, not finite, not
            symmetric, not 0 from a value to itself, or break the triangle inequality.
    """

    sensitivity: float
    epsilon: float
    norm: str | None = None
    dimension: int = 1
    outputs: Sequence[Any] | None = field(default=None, repr=False)
    distance: Distance | ArrayLike | None = field(default=None, repr=False, compare=False)
    matrix: NDArray[np.float64] | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sensitivity", check_number("sensitivity", self.sensitivity, SMALLEST, LARGEST))
        object.__setattr__(self, "epsilon", check_number("epsilon", self.epsilon, SMALLEST, MAX_SCALE))
        if (self.norm is None) == (self.outputs is None):
            raise errors.ConfigError("give exactly one of norm (for vectors) and outputs (for a finite range).")
        if self.outputs is None:
            if self.distance is not None:
                raise errors.ConfigError("distance goes with outputs; norm has its own.")
            object.__setattr__(self, "dimension", check_dimension(self.dimension))
            norm = check_one_of("norm", self.norm, NORMS)
            share = self.steps * (1 if norm == "l1" else self.dimension + 1) / MOST_STEPS[norm]
            if share > 1.0:
                least = self.epsilon * share
                raise errors.invalid("epsilon", self.epsilon, f"at least {least:.2g} for dimension = {self.dimension}")
            return
        if self.dimension != 1:
            raise errors.invalid("dimension", self.dimension, "left out with outputs")
        outputs = tuple(check_list("outputs", self.outputs, "a sequence of different values"))
        object.__setattr__(self, "outputs", outputs)
        object.__setattr__(self, "matrix", check_distances(outputs, self.distance))

    # ---------------------------------------------------------------------------------------------------- vectors

    @cached_property
    def spacing(self) -> float:
        """g, the power of two on whose multiples vectors are released; as for the Laplace mechanism."""
        bits = GRID_BITS + max(0, (self.dimension - 1).bit_length() - SHARED_BITS)
        smaller = min(self.sensitivity, self.sensitivity / max(self.epsilon, 1.0))
        return math.ldexp(1.0, math.frexp(smaller)[1] - 1 - bits)

    @cached_property
    def steps(self) -> int:
        """The scale of the noise in steps: (S/g + ‖(1, …, 1)‖)/ε rounded up; rounding moves every coordinate by one."""
        ones = {"l1": self.dimension, "l2": math.isqrt(self.dimension - 1) + 1, "linf": 1}[self.norm or "linf"]
        return math.ceil((Fraction(self.sensitivity) / Fraction(self.spacing) + ones) / Fraction(self.epsilon))

    @property
    def scale(self) -> float:
        """b of the noise density ∝ exp(−‖n‖/b), in units of the value."""
        return self.steps * self.spacing

    def _vector(self, array: NDArray[np.float64], source: NoiseSource) -> NDArray[np.float64]:
        steps = to_whole_steps(array.reshape(-1), self.spacing)
        if self.norm == "l1":
            steps += exact.discrete_laplace(self.steps, steps.size, source)
        elif self.norm == "l2":
            steps += exact_reals.l2_laplace(self.steps, steps.size, source)
        else:
            steps += exact_reals.linf_laplace(self.steps, steps.size, source)
        released = steps.astype(np.float64)
        released *= self.spacing
        return released

    # ----------------------------------------------------------------------------------------------- finite ranges

    @cached_property
    def same_normaliser(self) -> bool:
        """Whether the 2 can go: for norms, and where every output has the same distances, in another order."""
        if self.matrix is None:
            return True
        rows = np.sort(self.matrix, axis=1)
        return bool((rows == rows[0]).all())

    @property
    def factor(self) -> int:
        """1 where the normaliser does not depend on the value, else 2: the exponent is −ε d/(factor · S)."""
        return 1 if self.same_normaliser else 2

    @cached_property
    def _rate(self) -> Fraction:
        """ε/(factor · S'), S' = S and what rounding of the distances can add."""
        assert self.matrix is not None
        slack = Fraction(float(self.matrix.max(initial=0.0))) * Fraction(TRIANGLE_SLACK)
        return Fraction(self.epsilon) / (self.factor * (Fraction(self.sensitivity) + slack))

    def pmf(self, value: Any) -> NDArray[np.float64]:
        """The probabilities of the outputs when the value is ``value``; finite ranges only."""
        if self.matrix is None:
            raise errors.ConfigError("pmf() is for finite ranges; a norm has a density.")
        weights = np.exp(-float(self._rate) * self.matrix[self._place(value)])
        return weights / weights.sum()

    def _place(self, value: Any) -> int:
        assert self.outputs is not None
        for place, output in enumerate(self.outputs):
            if bool(output == value):
                return place
        raise errors.DataError("value is not one of the outputs: the value must lie in the declared range.")

    # ------------------------------------------------------------------------------------------------- the mechanism

    @property
    def event(self) -> Event:
        """``Pure(epsilon)``, under the relation that the sensitivity is for."""
        return Pure(self.epsilon)

    def error(self, beta: float = 0.05) -> float:
        """P(d(answer, value) > error) <= ``beta``, the distance in the metric, whatever the value.

        Norms: the quantile of Gamma(dimension, b), which ‖n‖ has for each of them, and what rounding can add (values
        within ±2^61 grid steps).  Finite ranges: the worst value's smallest such distance.
        """
        beta = check_beta(beta)
        if self.matrix is None:
            ones = {"l1": self.dimension, "l2": math.sqrt(self.dimension), "linf": 1.0}[self.norm or "linf"]
            return self.scale * float(stats.gamma.isf(beta, self.dimension)) + self.spacing * ones
        return max(self._row_error(row, beta) for row in self.matrix)

    def _row_error(self, row: NDArray[np.float64], beta: float) -> float:
        distances = np.sort(row)
        weights = np.exp(-float(self._rate) * distances)
        beyond = 1 - np.cumsum(weights) / weights.sum()  # of being further than distances[i], but for equal ones
        return float(distances[np.flatnonzero(beyond <= beta * (1 - 2.0**-30))[0]])

    def interval(self, value: Any, beta: float = 0.05) -> tuple[Any, Any]:
        """(low, high) around a released vector; every norm bounds every coordinate.  Norms only."""
        if self.matrix is not None:
            raise errors.ConfigError("interval() is for norms: for a finite range use error(beta).")
        return around(value, self.error(beta))

    def release(self, value: Any, noise: NoiseSource | None = None) -> Answer:
        """The answer: a float or float64 array like ``value`` for norms, one of ``outputs`` for a finite range.

        Charging ``event`` is the caller's business, and comes first.  The draws are exact.

        Raises:
            DataError: ``value`` is not ``dimension`` finite numbers, or not one of the outputs.
            ConfigError: ``noise`` is no noise source.
        """
        source = check_noise(noise)
        if self.matrix is not None and self.outputs is not None:
            exponents = [Fraction(float(far)) * self._rate for far in self.matrix[self._place(value)]]
            return Answer(self.outputs[exact.exp_choice(exponents, source)], self)
        array = finite_values(value, self.dimension)
        released = self._vector(array, source)
        return Answer(float(released[0]) if array.ndim == 0 else released.reshape(array.shape), self)


def check_distances(outputs: tuple[Any, ...], distance: Distance | ArrayLike | None) -> NDArray[np.float64]:
    """The (n, n) distances of all pairs, checked to be a metric; :class:`~dpml.errors.ConfigError` where they are not.

    Two outputs at distance 0 are duplicates.  The triangle inequality may fail by rounding, 2^-40 of the largest.
    """
    size = len(outputs)
    if not 1 <= size <= MOST_OUTPUTS:
        raise errors.invalid("number of outputs", size, f"from 1 to {MOST_OUTPUTS}", "Use ExponentialMechanism.")
    if distance is None:
        raise errors.invalid("distance", None, "a function of two outputs or a square array, with outputs")
    given = [[distance(a, b) for b in outputs] for a in outputs] if callable(distance) else distance
    try:
        matrix = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise errors.ConfigError("distance is not allowed: it must give numbers for all pairs of outputs.") from None
    if matrix.shape != (size, size):
        raise errors.invalid("shape of distance", matrix.shape, f"{(size, size)}, one row per output")
    off_diagonal = matrix[~np.eye(size, dtype=bool)]
    if not np.isfinite(matrix).all() or (np.diag(matrix) != 0).any() or (off_diagonal < 0).any():
        raise errors.ConfigError("distance is no metric: all must be finite, >= 0, and 0 from a value to itself.")
    if (off_diagonal == 0).any():
        raise errors.ConfigError("outputs holds duplicates (two outputs at distance 0): list each value once.")
    if (matrix != matrix.T).any():
        raise errors.ConfigError("distance is no metric: it must be the same in both directions.")
    slack = TRIANGLE_SLACK * float(matrix.max())
    for row in matrix:
        if (matrix - (row[:, None] + row[None, :]) > slack).any():
            raise errors.ConfigError(
                "distance is no metric: it breaks the triangle inequality d(a, c) <= d(a, b) + d(b, c)."
            )
    return matrix
