"""dpml: from a private table to a released model under one honest (ε, δ).

The public names are resolved when they are first used, so that ``from dpml import accounting`` loads neither torch nor
hydra.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpml.version import __version__

if sys.version_info < (3, 11):  # noqa: UP036 - a checkout can be run by any Python; pip refuses by itself
    raise ImportError(f"dpml needs Python 3.11 or newer; this is Python {'.'.join(map(str, sys.version_info[:3]))}.")

if TYPE_CHECKING:
    from dpml.data import PrivateData
    from dpml.estimators import (
        DPKMeans,
        DPLinearSVC,
        DPLogisticRegression,
        DPRidge,
        DPSGDClassifier,
        DPSGDRegressor,
        SchemaEncoder,
    )
    from dpml.mechanisms.session import PrivateSession
    from dpml.release import PrivateModel, load
    from dpml.results import Guarantee
    from dpml.search import PrivateSearch
    from dpml.trainer import Plan, PrivateTrainer, RunResult

_HOME = {
    "DPKMeans": "dpml.estimators",
    "DPLinearSVC": "dpml.estimators",
    "DPLogisticRegression": "dpml.estimators",
    "DPRidge": "dpml.estimators",
    "DPSGDClassifier": "dpml.estimators",
    "DPSGDRegressor": "dpml.estimators",
    "Guarantee": "dpml.results",
    "Plan": "dpml.trainer",
    "PrivateData": "dpml.data",
    "PrivateModel": "dpml.release",
    "PrivateSearch": "dpml.search",
    "PrivateSession": "dpml.mechanisms.session",
    "PrivateTrainer": "dpml.trainer",
    "RunResult": "dpml.trainer",
    "SchemaEncoder": "dpml.estimators",
    "load": "dpml.release",
}

__all__ = [
    "DPKMeans",
    "DPLinearSVC",
    "DPLogisticRegression",
    "DPRidge",
    "DPSGDClassifier",
    "DPSGDRegressor",
    "Guarantee",
    "Plan",
    "PrivateData",
    "PrivateModel",
    "PrivateSearch",
    "PrivateSession",
    "PrivateTrainer",
    "RunResult",
    "SchemaEncoder",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dpml' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
