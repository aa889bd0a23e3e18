"""What a sweep's metrics come to per setting: mean, spread, distance from no privacy, and the smallest ε that is near.

Only metrics that a run released go in (public test data, or charged noise), and the comparison with no privacy exists
for public data only; everything here is post-processing of those.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpml.report import formats
from dpml.report.figures import Series, group_by_x

ERRORS = ("loss", "mae")
"""Metrics of which less is better."""
NEAR = 0.01
"""How far below no privacy a mean may be to count as near: one percentage point of a share, 0.01 of R²."""
COLUMNS = (
    "settings", "epsilon", "runs", "metric", "mean", "sd", "least", "greatest", "nonprivate", "below_nonprivate",
    "within_1_percent",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """The runs of one setting at one ε.

    Attributes:
        name: method, and what else varies.
        epsilon: of the runs (three digits: calibration leaves no more).
        values: the metric of each run.
        nonprivate: the metric without privacy, ``None`` unless the data are public.
        smaller_is_better: whether the metric is a loss.
    """

    name: str
    epsilon: float
    values: tuple[float, ...]
    nonprivate: float | None
    smaller_is_better: bool = False

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def sd(self) -> float | None:
        """Standard deviation with n − 1; ``None`` for one run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def below(self) -> float | None:
        """How much worse than no privacy the mean is."""
        if self.nonprivate is None:
            return None
        return self.mean - self.nonprivate if self.smaller_is_better else self.nonprivate - self.mean

    @property
    def near(self) -> bool | None:
        """Whether that is at most :data:`NEAR` (1e-12 for rounding)."""
        return None if self.below is None else self.below <= NEAR + 1e-12


@dataclass(frozen=True)
class Nearest:
    """For one setting: the smallest ε of the sweep from which on every mean is near no privacy, ``None`` if none is."""

    name: str
    epsilon: float | None
    largest: float


def table(series: Sequence[Series], nonprivate: Mapping[str, float], metric: str | None) -> list[Row]:
    """One row per setting and ε, in this order."""
    return [
        Row(one.name, epsilon, tuple(values), nonprivate.get(one.name), metric in ERRORS)
        for one in series
        for epsilon, values in group_by_x(one.points).items()
    ]


def nearest(rows: Sequence[Row]) -> list[Nearest]:
    """For every setting with a comparison; a mean that is near by luck below one that is not does not count."""
    found = []
    for name in dict.fromkeys(row.name for row in rows if row.near is not None):
        mine = sorted((row for row in rows if row.name == name), key=lambda row: row.epsilon)
        least = None
        for row in reversed(mine):
            if not row.near:
                break
            least = row.epsilon
        found.append(Nearest(name, least, mine[-1].epsilon))
    return found


def cells(rows: Sequence[Row], share: bool) -> list[dict[str, object]]:
    """Rows as a page shows them."""

    def shown(value: float | None) -> str:
        return "–" if value is None else formats.percent(value) if share else formats.general(value, 4)

    return [
        {
            "name": row.name,
            "first": place == 0 or rows[place - 1].name != row.name,
            "epsilon": row.epsilon,
            "runs": len(row.values),
            "mean": shown(row.mean),
            "sd": shown(row.sd),
            "least": shown(min(row.values)),
            "greatest": shown(max(row.values)),
            "below": "–" if row.below is None else _points(row.below, share),
            "near": row.near,
        }
        for place, row in enumerate(rows)
    ]


def _points(value: float, share: bool) -> str:
    """With more digits where fewer would hide on which side of :data:`NEAR` it is."""
    shown, limit, digits = (100 * value, 100 * NEAR, 2) if share else (value, NEAR, 4)
    if value > NEAR and round(shown, digits) <= limit:
        digits += 2
    text = f"{shown:.{digits}f}"
    return text.replace("-", "−")


def as_csv(rows: Sequence[Row], metric: str | None) -> str:
    """The rows as CSV with :data:`COLUMNS`; numbers in full, empty where there is none."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        values = (
            row.name, row.epsilon, len(row.values), metric, row.mean, row.sd, min(row.values), max(row.values),
            row.nonprivate, row.below, None if row.near is None else "yes" if row.near else "no",
        )  # fmt: skip
        writer.writerow(["" if value is None else value for value in values])
    return out.getvalue()
