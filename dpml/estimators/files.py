"""A fitted estimator on disk: ``model.safetensors`` and ``estimator.json``; nothing in them is code.

Both hold what was released or declared and nothing else, so the folder is as public as the model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sklearn.utils.validation import check_is_fitted

from dpml.errors import ModelError, RunFolderError
from dpml.release import MODEL_FILE, PrivateModel
from dpml.release import load as load_model
from dpml.results import Guarantee, dumps, to_jsonable, write_atomic
from dpml.version import __version__

ESTIMATOR_FILE = "estimator.json"
ESTIMATOR_FORMAT = 1
CUSTODIAN_ONLY = ("noise_source", "dataset_ledger")
"""Parameters that are never written: live objects for tests, and paths of the custodian's machine."""


@dataclass(frozen=True)
class SavedEstimator:
    """What :func:`read_estimator` found."""

    model: PrivateModel
    guarantee: Guarantee
    parameters: dict[str, Any]
    n_features: int
    feature_names: list[str] | None


def write_estimator(folder: Path, estimator: Any) -> None:
    """Both files into a missing or empty ``folder``; the JSON goes last and marks the whole as finished.

    Raises:
        RunFolderError: the folder holds something, or cannot be written.
    """
    check_is_fitted(estimator, "model_")
    names = getattr(estimator, "feature_names_in_", None)
    description = {
        "format": ESTIMATOR_FORMAT,
        "estimator": type(estimator).__name__,
        "dpml_version": __version__,
        "parameters": _plain(estimator.get_params(deep=False)),
        "n_features": int(estimator.n_features_in_),
        "feature_names": None if names is None else [str(name) for name in names],
        "guarantee": to_jsonable(estimator.guarantee_),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RunFolderError(
                f"path = {str(folder)!r} is not empty; nothing was overwritten. Choose another folder."
            )
        write_atomic(folder / MODEL_FILE, estimator.model_.to_bytes())
        write_atomic(folder / ESTIMATOR_FILE, dumps(description) + "\n")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RunFolderError(f"path = {str(folder)!r} cannot be written ({reason}). Choose another folder.") from error


def read_estimator(folder: Path, name: str, known: Sequence[str], module: Any) -> SavedEstimator:
    """What was saved in ``folder`` by an estimator called ``name`` with the parameters ``known``.

    Raises:
        RunFolderError: one of the files is not there.
        ModelError: a file is damaged, of another format or of another estimator.
    """
    path = folder / ESTIMATOR_FILE
    if not path.is_file():
        raise RunFolderError(f"no {ESTIMATOR_FILE} in {str(folder)!r}: no estimator was saved there.")
    try:
        saved = json.loads(path.read_text("utf-8"))
        if saved["format"] != ESTIMATOR_FORMAT:
            raise ModelError(f"{ESTIMATOR_FILE} has format {saved['format']!r}, this dpml reads {ESTIMATOR_FORMAT!r}.")
        if saved["estimator"] != name:
            raise ModelError(f"{str(folder)!r} holds a {saved['estimator']}; load it with {saved['estimator']}.load.")
        parameters = {key: value for key, value in saved["parameters"].items() if key in known}
        guarantee = _guarantee(saved["guarantee"])
        n_features = int(saved["n_features"])
        names = saved["feature_names"]
        feature_names = None if names is None else [str(value) for value in names]
        if feature_names is not None and len(feature_names) != n_features:
            raise ValueError("feature_names")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path} is not a dpml estimator file ({type(error).__name__}).") from error
    if module is not None and "model" in known:
        parameters["model"] = module
    model = load_model(folder, module)
    if math.prod(model.preprocessing.get("shape", ())) != n_features:
        raise ModelError(f"{ESTIMATOR_FILE} and {MODEL_FILE} in {str(folder)!r} do not belong together.")
    return SavedEstimator(model, guarantee, parameters, n_features, feature_names)


def _guarantee(values: dict[str, Any]) -> Guarantee:
    epsilon, delta = float(values["epsilon"]), float(values["delta"])
    if not epsilon >= 0 or not 0 <= delta < 1 or math.isnan(epsilon):
        raise ValueError("guarantee")
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        neighboring_relation=str(values["neighboring_relation"]),
        unit=str(values["unit"]),
        accountant=str(values["accountant"]),
        assumptions=tuple(str(text) for text in values["assumptions"]),
    )


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters that have a JSON form; the others fall back to their defaults when loaded."""
    kept: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in CUSTODIAN_ONLY:
            continue
        if isinstance(value, float) and not math.isfinite(value):
            continue
        try:
            kept[name] = to_jsonable(value)
        except (TypeError, ValueError):  # a torch module, a loss function
            continue
    return kept
