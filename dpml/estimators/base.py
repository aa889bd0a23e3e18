"""What all estimators share: declarations, checks of the input, the private run, model files.

scikit-learn's rules hold: ``__init__`` only stores, ``fit`` changes no parameter and learns attributes that end in
``_``.  dpml's rules hold too: what is missing is asked for before a record is read, a record that cannot be used
contributes nothing, and the only things learned from the records are what :class:`dpml.PrivateTrainer` released.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d, validate_data

from dpml.data import PrivateData, transform_array
from dpml.data.cells import cell_number, is_missing, kept, kind_of, labels_of
from dpml.data.transform import as_numbers
from dpml.errors import ConfigError, DataError, invalid
from dpml.ranges import check_norm_bound
from dpml.release import PrivateModel
from dpml.results import Guarantee
from dpml.trainer import PrivateTrainer

from .files import read_estimator, write_estimator

FROM_Y = "from_y"
CLASSES_ARE_PUBLIC = "classes='from_y': the set of labels that occur in y was declared public and was read from y"

Self = TypeVar("Self", bound="PrivateEstimator")


class PrivateEstimator(BaseEstimator, ABC):
    """Base of the estimators; a subclass states what must be declared and which trainer it stands for.

    Class attributes:
        _needed: parameters that must not be ``None``; ``_example`` shows a call that declares them.
        _passed_on: parameters that :class:`~dpml.PrivateTrainer` has under the same name.
        _takes_sparse: CSR input is used as it is.
    """

    _needed: ClassVar[tuple[str, ...]] = ()
    _example: ClassVar[str] = ""
    _passed_on: ClassVar[tuple[str, ...]] = ()
    _takes_sparse: ClassVar[bool] = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # a row with NaN or infinity contributes nothing
        tags.input_tags.string = True  # and so does one with a text that is no number; none of them is an error
        tags.input_tags.sparse = self._takes_sparse
        tags.non_deterministic = getattr(self.noise_source, "secret", True)
        return tags

    # -- training -------------------------------------------------------------------------------------------------
    def fit(self: Self, X: Any, y: Any, **unsupported: Any) -> Self:
        """Train on ``X (n, d)`` and ``y (n,)`` under the declared budget.

        Every call is a release of its own: cross-validation, searches and repeated calls each spend the budget anew,
        and nothing adds them up unless ``dataset_ledger`` names a file.

        Raises:
            ConfigError: a declaration is missing (all of them are named) or out of range, or ``sample_weight`` is
                given; no record has been read.
            ValueError: shapes or the types of whole arrays do not fit, or X has no row at all (a check for whoever
                holds the data, before anything is charged).  What single cells and labels hold raises nothing.
        """
        self._ask_for_missing()
        self._check_parameters()
        _refuse(unsupported)
        if y is None:
            validate_data(self, X, None)  # raises scikit-learn's own message
        X = self._rows(X, reset=True)
        y = _target(y)
        check_consistent_length(X, y)
        facts, notes = self._facts(y)
        data = PrivateData.from_arrays(
            X,
            y,
            norm_bound=self.norm_bound,
            n_declared=self.n_declared,
            add_constant=self._adds_constant(),
            **facts,
        )
        trainer = PrivateTrainer(**self._trainer_arguments(data), assumptions=notes)
        self.result_ = trainer.fit(data)
        self._publish(self.result_.model, self.result_.guarantee)
        return self

    def _ask_for_missing(self) -> None:
        missing = [name for name in self._needed if getattr(self, name) is None]
        if missing:
            raise ConfigError(
                f"{', '.join(missing)} must be declared: dpml does not read {'it' if len(missing) == 1 else 'them'} "
                f"off the data, since that would cost privacy. Example: {type(self).__name__}({self._example})."
            )

    def _check_parameters(self) -> None:
        """What would otherwise be taken in silence for something else."""
        if self.epsilon is None and not hasattr(self, "noise_multiplier"):
            raise invalid("epsilon", None, "a finite number > 0", "Leave it out for 1.")
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise invalid("fit_intercept", self.fit_intercept, "True or False")
        if self.norm_bound is not None:
            check_norm_bound(self.norm_bound)

    def _rows(self, X: Any, *, reset: bool) -> Any:
        """``X`` as float64 (n, d), dense or CSR; names and number of features are checked or, at fit, noted.

        Lists, and arrays and data frames of objects, are read cell by cell, never by numpy's common type.
        """
        values = check_array(
            X if sparse.issparse(X) else readable(X),
            accept_sparse="csr" if self._takes_sparse else False,
            dtype=np.float64,
            ensure_all_finite=False,
            estimator=self,
            input_name="X",
        )
        named = hasattr(X, "columns") or hasattr(X, "__dataframe__")
        validate_data(self, X if named else values, reset=reset, skip_check_array=True)
        return values

    @abstractmethod
    def _facts(self, y: np.ndarray) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What :meth:`PrivateData.from_arrays` must be told of the target, and notes for the guarantee."""

    def _adds_constant(self) -> bool:
        return bool(self.fit_intercept)

    def _trainer_arguments(self, data: PrivateData) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._passed_on}

    def _publish(self, model: PrivateModel, guarantee: Guarantee) -> None:
        """Set the fitted attributes that follow from the released model."""
        self.model_ = model
        self.guarantee_ = guarantee

    # -- scoring --------------------------------------------------------------------------------------------------
    def _encoded(self, X: Any) -> Any:
        """Rows as the model sees them: constant appended, clipped to the public norm, zero where not finite."""
        check_is_fitted(self, "model_")
        return transform_array(self._rows(X, reset=False), self.model_.preprocessing)[0]

    def _scores(self, X: Any) -> np.ndarray:
        """Scores (n,) or (n, K) of the released model."""
        rows = self._encoded(X)
        return np.asarray(self.model_.decision_values(rows), dtype=np.float64)

    # -- files ----------------------------------------------------------------------------------------------------
    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to a new or empty folder: safetensors and JSON, no pickle.

        ``dpml.load(path)`` reads the model alone.  A ``noise_source``, a ``loss`` and a torch module are code and are
        not written; neither is ``result_``.

        Raises:
            NotFittedError: there is nothing to save.
            RunFolderError: the folder holds something already or cannot be written.
        """
        check_is_fitted(self, "model_")
        write_estimator(Path(path), self)

    @classmethod
    def load(cls: type[Self], path: str | Path, module: Any = None) -> Self:
        """The fitted estimator that :meth:`save` wrote; loading runs no code from the folder.

        Args:
            path: the folder.
            module: an instance of your own network where one was trained; its weights are overwritten.

        Raises:
            RunFolderError: nothing was saved there.
            ModelError: a file is damaged, or is that of another estimator.
        """
        saved = read_estimator(Path(path), cls.__name__, tuple(cls().get_params(deep=False)), module)
        estimator = cls(**saved.parameters)
        estimator.n_features_in_ = saved.n_features
        if saved.feature_names is not None:
            estimator.feature_names_in_ = np.array(saved.feature_names, dtype=object)
        estimator._publish(saved.model, saved.guarantee)
        return estimator


class LinearParts(PrivateEstimator):
    """``coef_`` and ``intercept_`` from the released weight, whose last entry is the constant column's."""

    def _split(self, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients (k, d) and intercepts (k,) of a weight (d,) or (k, d), constant column last."""
        rows = np.atleast_2d(np.asarray(weight, dtype=np.float64))
        if len(rows) == 2 and self.model_.kind == "softmax":  # two classes: only the difference matters
            rows = rows[1:] - rows[:1]
        d = self.n_features_in_
        return rows[:, :d].copy(), rows[:, d].copy() if self._adds_constant() else np.zeros(len(rows))


class ClassifierParts(ClassifierMixin, PrivateEstimator):
    """Labels, decisions and probabilities of a classifier with declared ``classes``."""

    def _facts(self, y: np.ndarray) -> tuple[dict[str, Any], tuple[str, ...]]:
        notes: tuple[str, ...] = ()
        classes = self.classes
        if isinstance(classes, str) and classes == FROM_Y:
            classes, notes = _labels_of(y), (CLASSES_ARE_PUBLIC,)
        return {"classes": classes}, notes

    def _publish(self, model: PrivateModel, guarantee: Guarantee) -> None:
        super()._publish(model, guarantee)
        self.classes_ = _label_array(model.classes)

    def decision_function(self, X: Any) -> np.ndarray:
        """Confidence: for two classes the score (n,) of the second one, above 0 where it is predicted; else (n, K).

        Rows are clipped to ``norm_bound`` as in training, so this is ``X @ coef_.T + intercept_`` only for rows
        within it.
        """
        scores = self._scores(X)
        if len(self.classes_) == 2 and scores.ndim == 2:
            return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores[:, 0]
        return scores

    def predict(self, X: Any) -> np.ndarray:
        """The class with the highest score, shape ``(n,)``."""
        scores = self.decision_function(X)
        index = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[index])


def _refuse(given: Mapping[str, Any]) -> None:
    """``sample_weight`` by its own message, anything else as Python would; ``None`` stands for "not given"."""
    for name, value in given.items():
        if name != "sample_weight":
            raise TypeError(f"fit() got an unexpected keyword argument {name!r}")
        if value is not None:
            raise ConfigError(
                "sample_weight is not allowed: the noise is calibrated for records that count once each, and a weight "
                "would multiply its record's influence. Leave it out; to weight by a public rule, repeat or thin out "
                "records by that rule beforehand and lower epsilon by the largest number of repetitions."
            )


def _target(y: Any) -> np.ndarray:
    """``y`` as an array (n,): an array keeps its type, of a list each item stays what it is."""
    if isinstance(y, str) or any(hasattr(y, name) for name in ("dtype", "shape", "__array__")):
        return np.asarray(column_or_1d(y if sparse.issparse(y) else kept(y), warn=True))
    return labels_of(y)


def _labels_of(y: np.ndarray) -> list[Any]:
    """The sorted labels in ``y``, which the user declared public; ``ValueError`` unless they are two or more labels."""
    if y.dtype.kind == "O":
        labels = _distinct_labels(y.tolist())
    else:
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        labels = np.unique(y).tolist()
    if len(labels) < 2:
        raise ConfigError(
            f"classes = 'from_y' found one class in y, {labels[:1]!r}: a classifier needs at least two classes. "
            "Declare them, for example classes=[0, 1]; a class that does not occur is no problem."
        )
    return labels


def _distinct_labels(items: list[Any]) -> list[Any]:
    """The different labels of a list, numbers before texts; of equal numbers (1, 1.0, True) the whole one."""
    found: dict[Any, Any] = {}
    for name in ("bool", "float", "int", "str"):
        found |= {item: item for item in items if type(item).__name__ == name}
    for item in items:
        if type(item).__name__ not in ("bool", "float", "int", "str") or is_missing(item):
            raise ConfigError(
                f"classes = 'from_y' found {item!r} in y, which is no text and no number. List the classes instead: "
                "a record with another label then contributes nothing."
            )
    numbers = [label for label in found.values() if not isinstance(label, str)]
    if numbers:
        check_classification_targets(np.array([cell_number(label) for label in numbers]))
    return sorted(numbers) + sorted(label for label in found.values() if isinstance(label, str))


def _label_array(classes: tuple[Any, ...]) -> np.ndarray:
    """The labels in their own type; texts beside numbers stay what they are."""
    kinds = {isinstance(label, str) for label in classes}
    return np.asarray(list(classes), dtype=object if len(kinds) > 1 else None)


def readable(X: Any) -> np.ndarray:
    """``X`` as an array of numbers of two dimensions or more, else :class:`~dpml.errors.DataError`.

    scikit-learn refuses others, too, but shows their cells: records, in a message that lands in logs.
    """
    if kind_of(X) == "c":
        raise DataError("Complex data not supported: X must hold real numbers.")
    values = as_numbers(X)
    if np.ndim(values) < 2:
        raise DataError(
            f"Expected 2D array, got {np.ndim(values)}D array instead. Reshape your data: array.reshape(-1, 1) for one "
            "feature, array.reshape(1, -1) for one record."
        )
    return values
