"""The run folder (``release/`` for the world, ``private/`` for the custodian) and the released model.

``release/`` is safe to publish: nothing in it depends on a record except through an event in its ledger.
``private/`` (mode 0700) keeps what tells about records: logs, tracebacks, batch sizes, counts, checkpoints.
Model files are safetensors with a JSON header: loading one runs no code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as save_tensors
from scipy import sparse
from scipy.special import expit, log_expit, softmax

from dpml.data import Encoder, Schema, transform_array
from dpml.data.columns import target_units
from dpml.data.public_whitening import whitening_in
from dpml.errors import DataError, ModelError, RunFolderError
from dpml.results import dumps, write_atomic

if TYPE_CHECKING:
    import pandas as pd
    import torch

MODEL_FILE = "model.safetensors"
MODEL_FORMAT = 1
MODEL_KEY = "dpml"
REGRESSION = ("ridge", "huber")
LINEAR = ("logreg", "softmax", "linear_svm", *REGRESSION)


class RunFolder:
    """One run's folder.  Creating it is what reserves it: two runs never share one.

    Raises:
        RunFolderError: the path is a file, cannot be written, or holds something already.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.release = self.path / "release"
        self.private = self.path / "private"

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Claim a missing or empty folder (a ``private/`` with Hydra's own files may be there)."""
        folder = cls(path)
        way_out = "Choose another folder (run_dir=…, or hydra.run.dir=… on the command line)."
        if folder.path.exists() and not folder.path.is_dir():
            raise RunFolderError(f"run_dir = {str(folder.path)!r} is a file, not a folder. {way_out}")
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            present = sorted(entry.name for entry in folder.path.iterdir() if entry.name != "private")
            if present:
                kind = "holds a run already" if "release" in present else f"is not empty (it has {present[0]!r})"
                raise RunFolderError(f"run_dir = {str(folder.path)!r} {kind}; nothing was overwritten. {way_out}")
            folder.release.mkdir()  # atomic: of two runs that start together one fails here
            folder.private.mkdir(mode=0o700, exist_ok=True)
            folder.private.chmod(0o700)
        except FileExistsError as error:
            raise RunFolderError(f"run_dir = {str(folder.path)!r} was taken by another run. {way_out}") from error
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise RunFolderError(f"run_dir = {str(folder.path)!r} cannot be written ({reason}). {way_out}") from error
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """An existing run folder; its ``release/`` is accepted too."""
        base = Path(path).absolute()
        if base.name == "release" and not (base / "release").is_dir():
            base = base.parent
        folder = cls(base)
        if not folder.release.is_dir():
            raise RunFolderError(f"{str(base)!r} is not a run folder: it has no release/ in it.")
        return folder

    def publish(self, name: str, content: str | bytes) -> Path:
        """Write a file of ``release/`` atomically."""
        return _write(self.release / name, content)

    def keep(self, name: str, content: Any) -> Path:
        """Write a file of ``private/`` atomically; anything but text and bytes becomes JSON."""
        return _write(self.private / name, content if isinstance(content, str | bytes) else dumps(content))

    def link_to_top(self, name: str) -> None:
        """Show a file of ``release/`` at the run folder's top as well."""
        link = self.path / name
        link.unlink(missing_ok=True)
        try:
            link.symlink_to(Path("release") / name)
        except OSError:  # a file system without symbolic links: a copy does
            link.write_bytes((self.release / name).read_bytes())


def _write(target: Path, content: str | bytes) -> Path:
    try:
        write_atomic(target, content)
    except OSError as error:
        raise RunFolderError(
            f"cannot write {str(target)!r} ({error.strerror or type(error).__name__}). Free space or choose another "
            "folder; what the ledger charged until now is spent."
        ) from error
    return target


@dataclass(frozen=True)
class PrivateModel:
    """A released model: weights, what its inputs mean, and nothing else.

    Attributes:
        kind: ``"logreg"``, ``"softmax"``, ``"linear_svm"``, ``"ridge"``, ``"huber"``, ``"mlp"`` or ``"module"`` (the
            user's own ``torch.nn.Module``).
        weights: name → array.  Linear kinds have one ``weight``: ``(d,)``, or one row a class, ``(K, d)``, for
            ``softmax`` and for one-vs-rest ``logreg`` and ``linear_svm``.
        classes: class labels in the declared order, ``()`` for a regression.
        preprocessing: the public map from raw arrays to feature rows (scale, whitening, constant column, norm bound);
            of a table its whitening, where there is one.
        schema: the public schema when the model was trained on a table.
        settings: architecture of an ``mlp``; ``target_bounds`` ``[lo, hi]`` of a regression.
        module: the live module of kind ``"module"``.
    """

    kind: str
    weights: Mapping[str, np.ndarray]
    classes: tuple[Any, ...]
    preprocessing: Mapping[str, Any]
    schema: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    module: torch.nn.Module | None = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        numbers = sum(int(np.size(value)) for value in self.weights.values())
        target = "a number" if self.is_regression else f"classes {self.classes!r}"
        return f"PrivateModel({self.kind!r}, {numbers:,} weights, {target})"

    # -- scoring --------------------------------------------------------------------------------------------------
    @property
    def is_regression(self) -> bool:
        """``predict`` gives numbers in the units of the target, and there are no classes."""
        return not self.classes

    def features(self, X: Any) -> Any:
        """Feature rows ``(n, d)`` of a data frame (by the saved schema) or of a raw array ``(n, …)``; CSR for CSR."""
        frame: Any = X if hasattr(X, "columns") else None
        if self.schema is not None:
            if frame is None:
                raise DataError(
                    "X is an array, but this model was trained on a table: pass a pandas DataFrame with the schema's "
                    "columns."
                )
            encoder = Encoder(Schema.from_dict(dict(self.schema)), whitening=whitening_in(self.preprocessing))
            return encoder.transform(frame)[0]
        rows, _ = transform_array(X.tocsr() if sparse.issparse(X) else np.asarray(X), self.preprocessing)
        return rows

    def probabilities(self, rows: Any) -> np.ndarray:
        """Class probabilities ``(n, K)`` of encoded rows ``(n, d)``; one-vs-rest: the K sigmoids ÷ their sum.

        Raises:
            ModelError: the kind has no probabilities.
        """
        if self.is_regression:
            raise ModelError(f"a {self.kind} model predicts numbers and has no class probabilities: use predict.")
        if self.kind == "linear_svm":
            raise ModelError(
                "a linear_svm model has no probability model: use decision_function or predict, or train "
                "model='logreg'."
            )
        scores = self._scores(rows)
        if scores.ndim == 1 or scores.shape[1] == 1:
            positive = expit(scores.reshape(-1))
            return np.column_stack([1.0 - positive, positive])
        result: np.ndarray = softmax(log_expit(scores) if self.kind == "logreg" else scores, axis=1)
        return result

    def predictions(self, rows: Any) -> np.ndarray:
        """Class indexes ``(n,)`` of encoded rows ``(n, d)``, or for a regression targets in their own units.

        Raises:
            ModelError: a module of the user's own does not give one number per row (two classes: or two; K classes: K),
                which a loss of its own allows: what it gives is in :meth:`decision_values`.
        """
        if self.is_regression:
            clipped = self.kind in REGRESSION  # what a module gives stays as it is
            return target_units(self._scores(rows).reshape(-1), self.target_bounds, clipped=clipped)
        if self.kind != "linear_svm":
            return np.asarray(self.probabilities(rows).argmax(axis=1))
        scores = self.decision_values(rows)
        return np.asarray(scores > 0.0 if scores.ndim == 1 else scores.argmax(axis=1)).astype(np.int64)

    @property
    def target_bounds(self) -> tuple[float, float]:
        """Public bounds of a regression's target; ``ModelError`` if the model has none."""
        try:
            low, high = self.settings["target_bounds"]
            return float(low), float(high)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"this {self.kind} model has no target_bounds among its settings.") from error

    def decision_values(self, rows: Any) -> np.ndarray:
        """Raw scores of encoded rows ``(n, d)``, dense or CSR: ``(n,)``, or ``(n, K)`` with one a class."""
        rows = rows if sparse.issparse(rows) else np.asarray(rows)
        if self.kind in LINEAR:
            weight = np.asarray(self.weights["weight"], dtype=np.float64)
            if rows.ndim != 2 or rows.shape[1] != weight.shape[-1]:
                raise DataError(f"rows have shape {rows.shape}, the model takes (n, {weight.shape[-1]}).")
            return np.asarray(rows @ weight.T)
        from dpml.sgd import forward  # torch only where a network needs it

        return forward(self._network(), rows.toarray() if sparse.issparse(rows) else rows)

    def _scores(self, rows: Any) -> np.ndarray:
        """:meth:`decision_values`, of a shape that says what is predicted; ModelError otherwise."""
        values, n, n_classes = self.decision_values(rows), rows.shape[0], len(self.classes)
        allowed: list[tuple[int, ...]] = [(n, n_classes)] if n_classes > 1 else []
        allowed += [(n,), (n, 1)] if n_classes <= 2 else []
        if values.shape not in allowed:
            target = f"{n_classes} classes" if n_classes else "a numeric target"
            raise ModelError(
                f"the module gives {values.shape} for {n} rows, and a prediction of {target} needs one of {allowed}. "
                "What it gives is in decision_function."
            )
        return values

    def _network(self) -> torch.nn.Module:
        if self.module is not None:
            return self.module
        if self.kind != "mlp":
            raise ModelError(
                "this release holds the weights of your own torch module: load(folder, module=YourModule())"
            )
        from dpml.sgd import build_model, load_weights

        network = build_model("mlp", **self.settings, seed=0)
        load_weights(network, self.weights)
        return network

    def predict_proba(self, X: pd.DataFrame | np.ndarray) -> np.ndarray:
        """Class probabilities ``(n, K)``, columns in the order of ``classes``; ``ModelError`` where there are none."""
        return self.probabilities(self.features(X))

    def decision_function(self, X: pd.DataFrame | np.ndarray) -> np.ndarray:
        """Raw scores ``(n,)``, positive for the second of two classes, or ``(n, K)`` with one a class.

        Of a regression: the prediction with the target's bounds at -1 and 1.  Of a module: what it gives.
        """
        return self.decision_values(self.features(X))

    def predict(self, X: pd.DataFrame | np.ndarray) -> np.ndarray:
        """The class of each row, shape ``(n,)``, or for a regression its target as a float.

        ``ridge`` and ``huber`` stay within the bounds; the output of a module of the user's own is not clipped.
        """
        found = self.predictions(self.features(X))
        return found if self.is_regression else np.asarray(self.classes)[found]

    # -- files ----------------------------------------------------------------------------------------------------
    def to_bytes(self) -> bytes:
        """The safetensors file: arrays, and the rest as JSON under one header key (the order of several is random)."""
        header = {
            "format": MODEL_FORMAT,
            "kind": self.kind,
            "classes": list(self.classes),
            "preprocessing": self.preprocessing,
            "settings": self.settings,
        }
        arrays = {name: np.ascontiguousarray(array) for name, array in self.weights.items()}
        return bytes(save_tensors(arrays, metadata={MODEL_KEY: dumps(header, indent=None)}))


def load(folder: str | os.PathLike[str], module: torch.nn.Module | None = None) -> PrivateModel:
    """The model of a run: ``load("RUN/release")`` or ``load("RUN")``.

    Args:
        folder: a run folder or its ``release/``.
        module: an instance of your own network, for a run that trained one; its weights are overwritten.

    Raises:
        RunFolderError: no finished release is there.
        ModelError: the model file is damaged, of an unknown format, or needs ``module``.
    """
    path = Path(folder)
    base = path if (path / MODEL_FILE).is_file() else path / "release"
    if not (base / MODEL_FILE).is_file():
        raise RunFolderError(f"no {MODEL_FILE} in {str(path)!r}: the run is unfinished, or this is no run folder.")
    try:
        with safe_open(base / MODEL_FILE, framework="numpy") as file:
            header = json.loads((file.metadata() or {})[MODEL_KEY])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if header.get("format") != MODEL_FORMAT:
            raise ModelError(f"{MODEL_FILE} has format {header.get('format')!r}, this dpml reads {MODEL_FORMAT!r}.")
        classes, kind = tuple(header["classes"]), str(header["kind"])
        preprocessing, settings = dict(header["preprocessing"]), dict(header["settings"])
        whitening_in(preprocessing)  # a damaged one is found here
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{base / MODEL_FILE} is not a dpml model file ({type(error).__name__}).") from error
    schema = json.loads((base / "schema.json").read_text("utf-8")) if (base / "schema.json").is_file() else None
    if schema is not None and "columns" not in schema:  # arrays: a description, not a table's schema
        schema = None
    if module is not None:
        from dpml.sgd import load_weights

        load_weights(module, weights)
    model = PrivateModel(kind, weights, classes, preprocessing, schema, settings, module)
    if model.is_regression:
        _ = model.target_bounds  # a damaged file is found here
    return model


def class_scores(model: PrivateModel, rows: Any, labels: np.ndarray) -> dict[str, float]:
    """Scores of encoded rows ``(n, d)`` with labels ``0 … K−1``, or for a regression with targets in [-1, 1].

    Accuracy, log loss (hinge loss for ``linear_svm``) and with two classes AUC; or what :func:`regression_scores`
    gives.  These are functions of the test records: publish them only for a public test set.
    """
    if len(labels) == 0:
        return {}
    if model.is_regression:
        return regression_scores(model, rows, labels)
    if model.kind == "linear_svm":
        return _margin_scores(model, rows, labels)
    probabilities = np.nan_to_num(model.probabilities(rows), nan=0.0)  # finite weights, but sums that overflow
    picked = np.clip(probabilities[np.arange(len(labels)), labels], 1e-12, 1.0)
    scores = {
        "accuracy": float((probabilities.argmax(axis=1) == labels).mean()),
        "loss": float(-np.log(picked).mean()),
    }
    return scores | _auc(labels, probabilities[:, 1]) if probabilities.shape[1] == 2 else scores


def regression_scores(model: PrivateModel, rows: Any, targets: np.ndarray) -> dict[str, float]:
    """``rmse`` and ``mae`` in the units of the target, and ``r2`` (left out where all targets are equal).

    ``targets`` (n,) are in [-1, 1] as in :class:`~dpml.data.Records`, so clipped to the public bounds.
    """
    if len(targets) == 0:
        return {}
    truth = target_units(targets, model.target_bounds)
    errors = model.predictions(rows) - truth
    scores = {"rmse": float(np.sqrt(np.square(errors).mean())), "mae": float(np.abs(errors).mean())}
    spread = float(np.square(truth - truth.mean()).sum())
    return scores | {"r2": 1.0 - float(np.square(errors).sum()) / spread} if np.ptp(truth) > 0.0 else scores


def _margin_scores(model: PrivateModel, rows: Any, labels: np.ndarray) -> dict[str, float]:
    """Accuracy, hinge loss (summed over the classes of one-vs-rest) and, of one score, AUC."""
    values = model.decision_values(rows)
    columns = values.reshape(len(labels), -1)
    signs = 2.0 * (labels[:, None] == (np.arange(columns.shape[1]) if columns.shape[1] > 1 else 1)) - 1.0
    scores = {
        "accuracy": float((model.predictions(rows) == labels).mean()),
        "loss": float(np.maximum(0.0, 1.0 - signs * columns).sum(axis=1).mean()),
    }
    return scores | _auc(labels, columns[:, 0]) if columns.shape[1] == 1 else scores


def _auc(labels: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """AUC of the second class, where both occur."""
    if not 0 < labels.sum() < len(labels):
        return {}
    from sklearn.metrics import roc_auc_score

    return {"auc": float(roc_auc_score(labels, scores))}


def describe(rows: Sequence[tuple[str, object]]) -> str:
    """Two aligned columns of text."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
