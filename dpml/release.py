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
from scipy.special import expit, softmax

from dpml.data import Encoder, Schema, transform_array
from dpml.errors import DataError, ModelError, RunFolderError
from dpml.results import dumps, write_atomic

if TYPE_CHECKING:
    import pandas as pd
    import torch

MODEL_FILE = "model.safetensors"
MODEL_FORMAT = 1
MODEL_KEY = "dpml"
LINEAR = ("logreg", "softmax")


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
        kind: ``"logreg"``, ``"softmax"``, ``"mlp"`` or ``"module"`` (the user's own ``torch.nn.Module``).
        weights: name → array. ``logreg`` has one ``weight`` of shape ``(d,)``, ``softmax`` one of ``(K, d)``.
        classes: class labels in the declared order.
        preprocessing: the public map from raw arrays to feature rows (scale, constant column, norm bound).
        schema: the public schema when the model was trained on a table.
        settings: architecture of an ``mlp``.
        module: the live module of kind ``"module"``.
    """

    kind: str
    weights: Mapping[str, np.ndarray]
    classes: tuple[Any, ...]
    preprocessing: Mapping[str, Any]
    schema: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    module: torch.nn.Module | None = field(default=None, compare=False, repr=False)

    # -- scoring --------------------------------------------------------------------------------------------------
    def features(self, X: pd.DataFrame | np.ndarray) -> np.ndarray:
        """Feature rows ``(n, d)`` of a data frame (by the saved schema) or of a raw array ``(n, …)``."""
        frame: Any = X if hasattr(X, "columns") else None
        if self.schema is not None:
            if frame is None:
                raise DataError(
                    "X is an array, but this model was trained on a table: pass a pandas DataFrame with the schema's "
                    "columns."
                )
            return Encoder(Schema.from_dict(dict(self.schema))).transform(frame)[0]
        rows, _ = transform_array(np.asarray(X), self.preprocessing)
        return rows

    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        """Class probabilities ``(n, K)`` of encoded rows ``(n, d)``."""
        scores = self._scores(np.asarray(rows))
        if scores.ndim == 1 or scores.shape[1] == 1:
            positive = expit(scores.reshape(-1))
            return np.column_stack([1.0 - positive, positive])
        result: np.ndarray = softmax(scores, axis=1)
        return result

    def _scores(self, rows: np.ndarray) -> np.ndarray:
        if self.kind in LINEAR:
            weight = np.asarray(self.weights["weight"], dtype=np.float64)
            if rows.ndim != 2 or rows.shape[1] != weight.shape[-1]:
                raise DataError(f"rows have shape {rows.shape}, the model takes (n, {weight.shape[-1]}).")
            return np.asarray(rows @ weight.T)
        from dpml.sgd import forward  # torch only where a network needs it

        return forward(self._network(), rows)

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
        """Class probabilities ``(n, K)``, columns in the order of ``classes``."""
        return self.probabilities(self.features(X))

    def predict(self, X: pd.DataFrame | np.ndarray) -> np.ndarray:
        """The most probable class of each row, shape ``(n,)``."""
        return np.asarray(self.classes)[self.predict_proba(X).argmax(axis=1)]

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
    return PrivateModel(kind, weights, classes, preprocessing, schema, settings, module)


def class_scores(model: PrivateModel, rows: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracy, log loss and (two classes) AUC of encoded rows with labels ``0 … K−1``.

    These are functions of the test records: publish them only for a public test set.
    """
    if len(labels) == 0:
        return {}
    probabilities = np.nan_to_num(model.probabilities(rows), nan=0.0)  # finite weights, but sums that overflow
    picked = np.clip(probabilities[np.arange(len(labels)), labels], 1e-12, 1.0)
    scores = {
        "accuracy": float((probabilities.argmax(axis=1) == labels).mean()),
        "loss": float(-np.log(picked).mean()),
    }
    if probabilities.shape[1] == 2 and 0 < labels.sum() < len(labels):
        from sklearn.metrics import roc_auc_score

        scores["auc"] = float(roc_auc_score(labels, probabilities[:, 1]))
    return scores


def describe(rows: Sequence[tuple[str, object]]) -> str:
    """Two aligned columns of text."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
