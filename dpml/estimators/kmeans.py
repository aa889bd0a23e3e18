"""``DPKMeans``: k-means under (ε, δ)-differential privacy as a scikit-learn estimator."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from dpml import accounting
from dpml.accounting import DatasetLedger, Ledger
from dpml.arguments import check_noise_source
from dpml.errors import ConfigError, invalid
from dpml.mechanisms.answers import check_noise
from dpml.mechanisms.noise import NoiseSource
from dpml.ranges import LIMITS, RELATIONS, as_integer, is_count, is_number, is_within, one_of
from dpml.results import Guarantee

from .base import _refuse, readable
from .kmeans_fits import private_centres
from .kmeans_plan import METHODS, KMeansPlan, make_plan
from .kmeans_sums import Box, declared_width, make_box, nearest, squared_distances, usable

MOST_CLUSTERS = 10_000
MOST_ROUNDS = 1_000
MOST_NUMBERS = 1 << 26  # in one release: what a mechanism takes
NOT_SECRET = "NO GUARANTEE: the noise source is not secret (tests)"


class DPKMeans(ClusterMixin, TransformerMixin, BaseEstimator):
    """k-means clustering under (ε, δ)-differential privacy.

    What would otherwise be read off the data has to be declared: ``bounds`` and ``n_declared``.

    Parameters:
        n_clusters: k, from 1 to 10,000.
        epsilon, delta: the budget of one ``fit``; default δ is min(1e-5, 0.1/n_declared), and 0 for the pure methods.
        method: ``"auto"`` (Gaussian noise where δ > 0, else Laplace noise), ``"gaussian"``, ``"laplace"``: seeds from
            a noisy grid, then rounds of Lloyd around the centres of the round before; or ``"notes"``: Lloyd with
            Laplace noise of ε/(2T) on counts and on sums of points in the L1 ball (pure, for teaching).
        bounds: public ``(low, high)``, each a number or one for every feature; cells outside are moved to them.
        n_declared: public nominal number of records.
        n_iter: rounds of Lloyd, fixed beforehand; ``"auto"`` takes 2 (up to 3 features, and Laplace noise) or 5.
        neighboring_relation: ``"add_remove"`` or ``"replace_one"``, under which all sensitivities are doubled.
        dataset_ledger, dataset_epsilon, dataset_delta, dataset_filter: file and cap that add up all fits on one data
            set.
        noise_source: tests only; a source that is not secret takes the guarantee away, and ``guarantee_`` says so.

    Attributes after ``fit``:
        cluster_centers_ ``(k, d)`` in the features' own units, within the bounds; n_features_in_, feature_names_in_
        (with a data frame), bounds_ (low and high as arrays), n_iter_, guarantee_, plan_ (public), ledger_ (its lines:
        the plan, every charge, the closing one).

    There is no ``labels_`` and no ``inertia_``: both are functions of private records that nobody has paid for.
    ``predict``, ``transform`` and ``score`` tell about the rows that they are given; of private rows the results are
    private, and whoever fitted on them must not publish them.  A row with NaN or infinity contributes nothing to a
    fit, and is taken as the middle of the box afterwards.  Distances are Euclidean in the features' own units: scale
    features that should count alike, by public constants.
    Proofs, and how the settings were chosen: docs/kmeans.md.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        epsilon: float = 1.0,
        delta: float | None = None,
        method: str = "auto",
        *,
        bounds: tuple[Any, Any] | None = None,
        n_declared: int | None = None,
        n_iter: int | str = "auto",
        neighboring_relation: str = "add_remove",
        dataset_ledger: str | PathLike[str] | None = None,
        dataset_epsilon: float | None = None,
        dataset_delta: float | None = None,
        dataset_filter: str = "basic",
        noise_source: NoiseSource | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.bounds = bounds
        self.n_declared = n_declared
        self.n_iter = n_iter
        self.neighboring_relation = neighboring_relation
        self.dataset_ledger = dataset_ledger
        self.dataset_epsilon = dataset_epsilon
        self.dataset_delta = dataset_delta
        self.dataset_filter = dataset_filter
        self.noise_source = noise_source

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # a row with NaN or infinity contributes nothing
        tags.input_tags.string = True  # and so does one with a text that is no number; none of them is an error
        tags.non_deterministic = getattr(self.noise_source, "secret", True)
        tags.transformer_tags.preserves_dtype = ["float64"]
        return tags

    # -- training -------------------------------------------------------------------------------------------------
    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> DPKMeans:
        """Cluster ``X (n, d)`` under the declared budget; ``y`` is not looked at.  Every call spends the budget anew.

        Raises:
            ConfigError: a declaration is missing or out of range, or ``sample_weight`` is given; no record was read.
            BudgetExceededError: the data set ledger refuses; no record was read.
            ValueError: ``X`` as a whole is no table of numbers, or has no row at all.
        """
        self._check_parameters()
        _refuse(unsupported)
        rows = self._rows(X, reset=True)  # its type and shape; no cell decides anything below
        plan = self._plan(rows.shape[1])
        box = self._box(plan.method)
        cap = self._cap()
        if cap is not None:
            cap.reserve("DPKMeans in memory", plan.guarantee.epsilon, plan.guarantee.delta, plan.event)
        ledger = Ledger.create(None, plan.to_dict())
        noise = check_noise(self.noise_source)
        columns = box.to_unit(rows[usable(rows)])
        centres = private_centres(plan, box, columns, ledger, noise)
        guarantee = self._guarantee(plan, ledger, noise)
        ledger.close({"epsilon": guarantee.epsilon, "delta": guarantee.delta})
        self.cluster_centers_, self.bounds_ = box.from_unit(centres), (box.low, box.high)
        self.plan_, self.guarantee_, self.ledger_ = plan, guarantee, ledger.lines
        self.n_iter_ = plan.rounds
        return self

    def fit_predict(self, X: Any, y: Any = None, **unsupported: Any) -> np.ndarray:
        """``fit`` and the labels (n,) of the same rows, which are as private as the rows."""
        return self.fit(X, **unsupported).predict(X)

    def _check_parameters(self) -> None:
        missing = [name for name in ("bounds", "n_declared") if getattr(self, name) is None]
        if missing:
            raise ConfigError(
                f"{', '.join(missing)} must be declared: dpml does not read {'it' if len(missing) == 1 else 'them'} "
                "off the data, since that would cost privacy. Example: "
                "DPKMeans(bounds=(0.0, 1.0), n_declared=36_000)."
            )
        one_of("method", self.method, METHODS)
        one_of("neighboring_relation", self.neighboring_relation, RELATIONS)
        if not is_within(self.epsilon, *LIMITS["epsilon"]):
            raise invalid("epsilon", self.epsilon, "a finite number > 0 (from 1e-6 to 1e4)")
        if not is_count(as_integer(self.n_clusters), 1, MOST_CLUSTERS):
            raise invalid("n_clusters", self.n_clusters, f"an integer from 1 to {MOST_CLUSTERS:,}")
        if not is_count(as_integer(self.n_declared), 1, 10**12):
            raise invalid("n_declared", self.n_declared, "an integer >= 1")
        if self.n_iter != "auto" and not is_count(as_integer(self.n_iter), 1, MOST_ROUNDS):
            raise invalid("n_iter", self.n_iter, f"'auto' or an integer from 1 to {MOST_ROUNDS:,}")
        make_box(self.bounds, declared_width(self.bounds), l1=False)
        self._method_and_delta()
        check_noise_source(self.noise_source)
        self._cap()

    def _method_and_delta(self) -> tuple[str, float]:
        """The method without ``"auto"`` and its δ."""
        assert self.n_declared is not None
        pure = self.method in ("laplace", "notes")
        delta = self.delta
        if delta is None:
            delta = 0.0 if pure else min(1e-5, 0.1 / self.n_declared)
        if not (is_number(delta) and 0 <= delta < 1.0 / self.n_declared):
            raise invalid("delta", self.delta, f"from 0 to 1/n_declared = {1.0 / self.n_declared:.3g}, excluded")
        if pure and delta > 0:
            raise invalid("delta", self.delta, f"0 or None with method={self.method!r}, which is pure")
        if self.method == "gaussian" and delta == 0:
            raise invalid("delta", self.delta, "> 0 with method='gaussian'", "At delta = 0 use method='laplace'.")
        if self.method == "auto":
            return ("gaussian" if delta > 0 else "laplace"), float(delta)
        return self.method, float(delta)

    def _plan(self, n_features: int) -> KMeansPlan:
        method, delta = self._method_and_delta()
        assert self.n_declared is not None
        if self.n_clusters * (n_features + 2) > MOST_NUMBERS:
            most = MOST_NUMBERS // (n_features + 2)
            raise invalid("n_clusters", self.n_clusters, f"at most {most:,} for {n_features} features")
        return make_plan(
            method=method,
            epsilon=float(self.epsilon),
            delta=delta,
            neighboring_relation=self.neighboring_relation,
            n_clusters=int(self.n_clusters),
            n_features=n_features,
            n_declared=int(self.n_declared),
            n_iter=None if self.n_iter == "auto" else int(self.n_iter),
        )

    def _box(self, method: str) -> Box:
        return make_box(self.bounds, self.n_features_in_, l1=method == "notes")

    def _cap(self) -> DatasetLedger | None:
        if self.dataset_ledger is None:
            if self.dataset_epsilon is not None or self.dataset_delta is not None:
                raise ConfigError("dataset_epsilon and dataset_delta need dataset_ledger, the file that adds fits up.")
            return None
        if self.dataset_epsilon is None or self.dataset_delta is None:
            raise ConfigError("dataset_ledger needs its cap: give dataset_epsilon and dataset_delta.")
        return DatasetLedger(
            Path(self.dataset_ledger),
            self.dataset_epsilon,
            self.dataset_delta,
            neighboring_relation=self.neighboring_relation,
            filter=self.dataset_filter,
        )

    def _guarantee(self, plan: KMeansPlan, ledger: Ledger, noise: NoiseSource) -> Guarantee:
        """ε of what was charged, which the plan's check keeps within the promise."""
        promise = plan.guarantee
        relation = promise.neighboring_relation
        spent = accounting.epsilon(ledger.charged, promise.delta, neighboring_relation=relation)
        notes = () if noise.secret else (NOT_SECRET,)
        return Guarantee(spent, promise.delta, relation, assumptions=notes)

    # -- after training -------------------------------------------------------------------------------------------
    def _rows(self, X: Any, *, reset: bool) -> np.ndarray:
        """``X`` as float64 (n, d), lists and objects read cell by cell; names and number of features are checked."""
        cells = X if hasattr(X, "toarray") else readable(X)
        values = check_array(
            cells,
            dtype=np.float64,
            ensure_all_finite=False,
            estimator=self,
            input_name="X",
        )
        named = hasattr(X, "columns") or hasattr(X, "__dataframe__")
        validate_data(self, X if named else values, reset=reset, skip_check_array=True)
        return values

    def _units(self, X: Any) -> tuple[np.ndarray, np.ndarray, float]:
        """Rows as columns, centres, and the unit that their distances are in."""
        check_is_fitted(self, "cluster_centers_")
        rows = self._rows(X, reset=False)
        box = make_box(self.bounds_, self.n_features_in_, l1=False)
        return box.to_unit(rows), (self.cluster_centers_ - box.middle) / box.scale, box.scale

    def predict(self, X: Any) -> np.ndarray:
        """The closest centre of each row, shape ``(n,)`` int32; cells are moved into the bounds first."""
        columns, centres, _ = self._units(X)
        return nearest(columns, centres).astype(np.int32)

    def transform(self, X: Any) -> np.ndarray:
        """Distances ``(n, k)`` to the centres, in the features' own units."""
        columns, centres, scale = self._units(X)
        return np.ascontiguousarray(np.sqrt(squared_distances(columns, centres)).T) * scale

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the sum of squared distances to the closest centres: private where the rows are."""
        columns, centres, scale = self._units(X)
        return -float(squared_distances(columns, centres).min(axis=0).sum()) * scale * scale

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """``dpkmeans0`` … one name for each distance."""
        check_is_fitted(self, "cluster_centers_")
        return np.asarray([f"dpkmeans{index}" for index in range(len(self.cluster_centers_))], dtype=object)
