"""What a report says about the quality of a model: public or charged figures, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpml.report import formats
from dpml.report.formats import as_number
from dpml.report.values import mapping, text

SHARES = ("accuracy", "auc", "balanced_accuracy", "f1", "precision", "recall")
NAMES = {"auc": "AUC", "rmse": "RMSE", "mae": "mean absolute error", "r2": "R²", "f1": "F1"}
NO_METRICS = ("source", "how", "confidence")
HIDDEN = (
    "Not shown: no test set that is declared public was scored, and no measurement was paid for from the budget, so "
    "every figure about the model's quality stays with the custodian of the data."
)


@dataclass(frozen=True)
class Metric:
    """One figure, as it is shown.

    Attributes:
        key: its name in ``result.json``.
        name: in words.
        value: of the released model.
        interval: ``"76.4 % to 84.4 %"`` where it was measured with charged noise.
        nonprivate: of a model without privacy, on the same public data.
    """

    key: str
    name: str
    value: str
    interval: str = ""
    nonprivate: str = ""


@dataclass(frozen=True)
class Utility:
    """All figures, where they come from, and the confidence of their intervals; ``why_none`` where there are none."""

    metrics: tuple[Metric, ...]
    source: str
    confidence: str
    remarks: tuple[str, ...]
    why_none: str = ""

    @property
    def with_intervals(self) -> bool:
        return any(one.interval for one in self.metrics)

    @property
    def with_nonprivate(self) -> bool:
        return any(one.nonprivate for one in self.metrics)


def utility_of(result: Mapping[str, Any]) -> Utility:
    """The figures in a result: those of a public test set, or those that were paid for, with their intervals."""
    found = mapping(result.get("metrics"))
    without = {str(key).removeprefix("test_"): value for key, value in mapping(result.get("nonprivate")).items()}
    metrics, remarks = [], []
    for key, value in found.items():
        if key in NO_METRICS or key.endswith(("_low", "_high")) or as_number(value) is None:
            continue
        if key.endswith("_clipped_at"):
            name = name_of(key.removesuffix("_clipped_at"))
            remarks.append(f"Each record's {name} is clipped at {formats.general(value, 4)}.")
            continue
        interval = ""
        if f"{key}_low" in found and f"{key}_high" in found:
            interval = f"{shown(key, found[f'{key}_low'])} to {shown(key, found[f'{key}_high'])}"
        other = shown(key, without[key]) if as_number(without.get(key)) is not None else ""
        metrics.append(Metric(key, name_of(key), shown(key, value), interval, other))
    selection = mapping(result.get("selection"))
    if as_number(selection.get("score")) is not None:
        score = formats.percent(selection.get("score"))
        remarks.append(f"Noisy hold-out accuracy with which the winner was chosen: {score}, too good on average.")
    return Utility(
        metrics=tuple(metrics),
        source=text(found.get("source"), text(found.get("how"), "")),
        confidence=formats.percent(found.get("confidence"), 0) if as_number(found.get("confidence")) else "",
        remarks=tuple(remarks),
        why_none="" if metrics else f"None: {text(found['failed'])}" if "failed" in found else HIDDEN,
    )


def name_of(key: str) -> str:
    """A metric's name in words."""
    return NAMES.get(key, formats.shortened(key.replace("_", " "), 60))


def shown(key: str, value: Any) -> str:
    """A metric's value as it is written: shares in per cent."""
    return formats.percent(value) if key in SHARES else formats.general(value, 4)
