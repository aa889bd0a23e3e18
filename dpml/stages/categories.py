"""Categories of a column that nobody declared: a thresholded histogram of the texts that occur.

Every record has one cell, so it gives at most one key: one count changes under add_remove, two under replace_one.  The
probability that a text of one record alone is listed is the stage's δ
(:class:`~dpml.mechanisms.histogram.ThresholdedHistogram`).  The number of features is public: ``most`` of the schema,
whatever is found.  The texts with the largest noisy counts take the places, the others are invalid values as any text
that was not found; free places hold stand-ins that no cell is expected to match.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpml.accounting import Event
from dpml.accounting.checks import REPLACE_ONE
from dpml.data import CategoricalColumn
from dpml.data.cells import TRUTH, cell_number
from dpml.data.columns import OTHER, cell_text, stand_ins, text_of
from dpml.data.encoder import distinct_cells
from dpml.mechanisms import NoiseSource, ThresholdedHistogram

LONGEST = 200
"""Characters of a text that can be a category; a longer one contributes nothing."""


@dataclass(frozen=True)
class CategoryFinder:
    """Private categories of one column, (ε, δ)-DP under ``neighboring_relation``.

    Args:
        column: its declaration, with ``most``.
        epsilon, delta: the cost.
        neighboring_relation: ``"add_remove"`` or ``"replace_one"``.
    """

    column: CategoricalColumn
    epsilon: float
    delta: float
    neighboring_relation: str

    def __post_init__(self) -> None:
        _ = self.mechanism

    @cached_property
    def mechanism(self) -> ThresholdedHistogram:
        """Noise, and the threshold that a noisy count must reach."""
        changes = 2 if self.neighboring_relation == REPLACE_ONE else 1
        return ThresholdedHistogram(delta=self.delta, epsilon=self.epsilon, changes=changes)

    @property
    def event(self) -> Event:
        """What to charge before :meth:`release`; δ is the mass at and above the threshold."""
        return self.mechanism.event

    def counts(self, cells: Any) -> dict[Hashable, int]:
        """In how many records each text occurs, of a column (n,) of cells; **private**.

        One key a record at most: none for an empty cell, or one that has no text of 1 to 200 characters, and none for
        ``other`` where that is what invalid values become.  All spellings of a number are one key (:func:`key_of`).
        """
        found: dict[Hashable, int] = {}
        codes, uniques = distinct_cells(cells)
        sizes = np.bincount(codes[codes >= 0], minlength=len(uniques)).tolist()
        for cell, size in zip(uniques, sizes, strict=True):
            text = key_of(cell_text(cell)) if size else None
            if text and len(text) <= LONGEST and not (text == OTHER and self.column.on_invalid == OTHER):
                found[text] = found.get(text, 0) + size
        return found

    def release(self, cells: Any, noise: NoiseSource) -> dict[str, Any]:
        """The categories of a column; charging ``event`` comes first and is the caller's business."""
        listed = self.mechanism.release(self.counts(cells), noise).value
        assert self.column.most is not None
        largest = sorted(listed, key=lambda text: (-listed[text], text))[: self.column.most]
        return {"categories": sorted(largest), "threshold": self.mechanism.threshold, "listed": len(listed)}


def key_of(text: str | None) -> str | None:
    """The text itself, or one spelling for all texts of one number: ``"1234"`` of ``"01234"``, ``"1234.0"`` and 1234.

    A table may keep a column as numbers, or as texts where one record holds what is no number (a Parquet file of a
    writer that guesses): else this record would change every key.
    """
    if text is None or text in TRUTH or math.isnan(number := cell_number(text)):
        return text
    return text_of(number)  # a double: beyond 2^53 a missing cell would make one of a whole number, too


def places(column: CategoricalColumn, found: list[str]) -> tuple[str, ...]:
    """The found categories and stand-ins, ``most`` in all."""
    assert column.most is not None
    return (*found, *stand_ins(column.most - len(found), found))
