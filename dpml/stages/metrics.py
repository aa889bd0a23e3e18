"""Metrics of the released model on a private hold-out, with charged noise and intervals that hold for both.

A hold-out record is scored by the released model alone, and enters each metric through whole numbers:

* ``accuracy``: the two counts (right, wrong).  One record adds 1 to one of them: L1 sensitivity 1 under add_remove, 2
  under replace_one.  The number of hold-out records is never used; the noisy counts' sum stands for it.
* ``loss``: log loss (hinge loss for ``linear_svm``) clipped to the public [0, L], rounded to 2^-12 of L and moved by
  L/2, so that one record adds at most 2^11 steps (add_remove) or 2^12 (replace_one).
* ``auc`` (two classes): of scores on the public grid of 16 equal cells of [0, 1], from noisy counts of class × cell.
  Its population value is that of scores rounded to the grid, where ties count half.
* ``mae`` (regression): |prediction − target| over the width of the public bounds, as ``loss``.

Every record is scored on its own (:mod:`dpml.stages.scoring`) and all sums are of whole numbers, so neither another
record nor rounding can move one by more; the noise is exact discrete Laplace noise.

Intervals take the noise's own bound and a finite-sample bound for the sampling (Clopper & Pearson 1934; Hoeffding 1963,
theorem 2 for means, and section 5, equation 5.7, for two-sample U-statistics), each with its part of beta; nothing in
them is approximate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import special

from dpml.accounting import Composed, Event
from dpml.accounting.checks import REPLACE_ONE
from dpml.mechanisms import DiscreteLaplaceMechanism, NoiseSource
from dpml.release import PrivateModel

from .scoring import class_score, decisions, target_error

STEPS = 1 << 12
"""Steps of a bounded loss; one is 2^-12 of its bound."""
CELLS = 16
BETA = 0.05
LOG_LOSS_BOUND = 4.0
"""L of log loss in units of ln K, the loss of a uniform guess."""
HINGE_BOUND = 4.0
WEIGHTS = {"accuracy": 2.0, "records": 1.0, "loss": 1.0, "auc": 2.0, "mae": 2.0}
"""How the stage's ε is split over what it releases."""
SOURCE = "private hold-out, charged noise"


@dataclass(frozen=True)
class MetricsMaker:
    """What is released about the hold-out, and how; public.

    Args:
        n_classes: 0 for a regression.
        hinge: the loss is the hinge loss of a model without probabilities.
        epsilon: the pure cost of everything together.
        neighboring_relation: ``"add_remove"`` or ``"replace_one"``.
        target_width: hi − lo of a regression's public bounds.
    """

    n_classes: int
    hinge: bool
    epsilon: float
    neighboring_relation: str
    target_width: float = 0.0

    def __post_init__(self) -> None:
        _ = self.mechanisms

    @property
    def names(self) -> tuple[str, ...]:
        """What is released: counts come first, the others divide by them."""
        if self.n_classes == 0:
            return "records", "mae"
        return ("accuracy", "loss", "auc") if self.n_classes == 2 else ("accuracy", "loss")

    @property
    def loss_bound(self) -> float:
        """L, the public bound at which one record's loss is clipped."""
        if self.n_classes == 0:
            return self.target_width
        return HINGE_BOUND if self.hinge else LOG_LOSS_BOUND * math.log(self.n_classes)

    @cached_property
    def mechanisms(self) -> dict[str, DiscreteLaplaceMechanism]:
        """The noise of each release, its part of ε inside."""
        changed = 2 if self.neighboring_relation == REPLACE_ONE else 1
        whole = math.fsum(WEIGHTS[name] for name in self.names)
        dimension = {"accuracy": 2, "auc": 2 * CELLS}
        step = {"loss": STEPS // 2, "mae": STEPS // 2}
        return {
            name: DiscreteLaplaceMechanism(
                changed * step.get(name, 1), self.epsilon * WEIGHTS[name] / whole, dimension=dimension.get(name, 1)
            )
            for name in self.names
        }

    @property
    def event(self) -> Event:
        """What to charge before :meth:`release`."""
        return Composed(tuple(mechanism.event for mechanism in self.mechanisms.values()))

    def tallies(self, model: PrivateModel, rows: Any, labels: np.ndarray) -> dict[str, np.ndarray]:
        """The whole numbers behind each release, of encoded rows (n, d) and targets (n,); **private**."""
        found = {name: np.zeros(mechanism.dimension, np.int64) for name, mechanism in self.mechanisms.items()}
        for values, label in zip(decisions(model, rows), labels.tolist(), strict=True):
            if self.n_classes == 0:
                found["records"][0] += 1
                found["mae"][0] += self._steps(target_error(values, label, self.target_width))
                continue
            score = class_score(values, label, self.n_classes, model.kind)
            found["accuracy"][0 if score.right else 1] += 1
            found["loss"][0] += self._steps(score.loss)
            if self.n_classes == 2:
                found["auc"][label * CELLS + min(int(score.probability * CELLS), CELLS - 1)] += 1
        return found

    def _steps(self, loss: float) -> int:
        """One record's loss, clipped, in whole steps from L/2."""
        return round(min(max(loss / self.loss_bound, 0.0), 1.0) * STEPS) - STEPS // 2

    def release(self, model: PrivateModel, rows: Any, labels: np.ndarray, noise: NoiseSource) -> dict[str, Any]:
        """Metrics with intervals; charging ``event`` comes first and is the caller's business.

        Returns:
            name → {"value", "low", "high"}, each interval for the population value of the released model with
            confidence 0.95, and what else a reader needs (the loss bound, the noisy number of records).
        """
        tallies = self.tallies(model, rows, labels)
        noisy = {name: self.mechanisms[name].release(tallies[name], noise).value for name in self.names}
        return self.read_off(noisy)

    def read_off(self, noisy: dict[str, np.ndarray]) -> dict[str, Any]:
        """Metrics and intervals from the noisy whole numbers: post-processing."""
        counter = self.names[0]
        found: dict[str, Any] = {"confidence": 1.0 - BETA, "noisy_records": int(noisy[counter].sum())}
        if counter == "accuracy":
            found["accuracy"] = self._accuracy(noisy["accuracy"])
        for name in ("loss", "mae"):
            if name in noisy:
                found[name] = self._mean(name, noisy[counter], int(noisy[name][0]))
                found[f"{name}_clipped_at"] = self.loss_bound
        if "auc" in noisy:
            found["auc"] = self._auc(noisy["auc"].reshape(2, CELLS))
        return found

    def _accuracy(self, noisy: np.ndarray) -> dict[str, float]:
        """Clopper–Pearson at the worst counts within the noise's bound, beta/2 for each of the two."""
        reach = self.mechanisms["accuracy"].error(BETA / 2)
        (right, wrong), held = (int(count) for count in noisy), np.maximum(noisy, 0)
        value = float(held[0] / held.sum()) if held.sum() else 0.5
        low = _beta_quantile(max(right - reach, 0), max(wrong + reach, 0) + 1, BETA / 4)
        high = _beta_quantile(max(right + reach, 0) + 1, max(wrong - reach, 0), 1 - BETA / 4)
        return _around(value, low, high, 0.0, 1.0)

    def _mean(self, name: str, counts: np.ndarray, steps: int) -> dict[str, float]:
        """The mean of a bounded loss: noise of its sum, noise of the number of records, Hoeffding, beta/3 each."""
        width, counter = self.loss_bound, self.mechanisms[self.names[0]]
        number, doubt = int(counts.sum()), counter.error(BETA / 3) * len(counts)
        reach = self.mechanisms[name].error(BETA / 3)
        fewest, most = max(number - doubt, 1), max(number + doubt, 1)
        ends = [(steps + sign * reach) / STEPS / size for sign in (-1, 1) for size in (fewest, most)]
        sampling = math.sqrt(math.log(2 / (BETA / 3)) / (2 * fewest)) + 0.5 / STEPS
        value = 0.5 + steps / STEPS / max(number, 1)
        low, high = 0.5 + min(ends) - sampling, 0.5 + max(ends) + sampling
        return _around(width * min(max(value, 0.0), 1.0), width * low, width * high, 0.0, width)

    def _auc(self, noisy: np.ndarray) -> dict[str, float]:
        """The area from the noisy counts (2, cells), and envelopes of both distribution functions.

        Sums of the noise over the first cells, and over the last ones, are all within ``reach`` with probability
        1 − beta/2 (:func:`partial_sum_bound` for two directions and two classes), which bounds both distribution
        functions.  The area grows with that of the first class and falls with that of the second, so the envelopes'
        areas bound it.
        """
        held = np.maximum(noisy, 0)
        value = 0.5
        if held[0].sum() and held[1].sum():
            value = area(*(np.cumsum(row) / row.sum() for row in held))
        reach = partial_sum_bound(self.mechanisms["auc"].scale, CELLS, BETA / 2 / 4)
        envelopes = [_envelope(row, reach) for row in noisy]
        sizes = [float(row.sum()) - reach for row in noisy]
        if min(sizes) < 1:
            return _around(value, 0.0, 1.0, 0.0, 1.0)
        sampling = math.sqrt(math.log(2 / (BETA / 2)) / (2 * math.floor(min(sizes))))
        low = area(envelopes[0][0], envelopes[1][1]) - sampling
        high = area(envelopes[0][1], envelopes[1][0]) + sampling
        return _around(value, low, high, 0.0, 1.0)


def area(first: np.ndarray, second: np.ndarray) -> float:
    """P(score of the second class > that of the first) + half of the ties, from distribution functions (cells,)."""
    before = np.concatenate([[0.0], first[:-1]])
    return float((np.diff(second, prepend=0.0) * (before + first) / 2).sum())


def partial_sum_bound(scale: float, number: int, beta: float) -> float:
    """x with P(max_k |Z_1 + … + Z_k| > x) <= ``beta`` for ``number`` discrete Laplace variables of ``scale``.

    Lévy's inequality for symmetric variables, P(max_k |S_k| > x) <= 2 P(|S_n| > x), and Chernoff's bound
    P(|S_n| > x) <= 2 e^{−tx} M(t)^n with M(t) = (1 − a)²/((1 − a e^t)(1 − a e^{−t})), a = e^{−1/scale}, for any
    0 < t < 1/scale; the smallest over a grid of t.
    """
    t = np.linspace(0.01, 0.99, 99) / scale
    log_moment = (
        2 * math.log(-math.expm1(-1 / scale)) - np.log(-np.expm1(t - 1 / scale)) - np.log(-np.expm1(-t - 1 / scale))
    )
    return float(((number * log_moment + math.log(4 / beta)) / t).min())


def _envelope(counts: np.ndarray, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """(lower, upper) bounds of a distribution function from noisy counts (cells,), sums from an end within ``reach``.

    With c records up to a cell and d beyond it the function is c/(c + d), which grows with c and falls with d.
    """
    up_to = np.cumsum(counts)
    beyond = up_to[-1] - up_to
    low, high = (
        np.maximum(up_to + sign * reach, 0.0)
        / np.maximum(np.maximum(up_to + sign * reach, 0.0) + np.maximum(beyond - sign * reach, 0.0), 1.0)
        for sign in (-1, 1)
    )
    low, high = np.maximum.accumulate(low), np.minimum.accumulate(high[::-1])[::-1]
    low[-1] = high[-1] = 1.0
    return low, high


def _around(value: float, low: float, high: float, least: float, most: float) -> dict[str, float]:
    low, high = (min(max(end, least), most) for end in (low, high))
    return {"value": min(max(value, low), high), "low": low, "high": high}


def _beta_quantile(a: float, b: float, p: float) -> float:
    """The quantile of Beta(a, b): 0 where a is 0, 1 where b is."""
    if a <= 0:
        return 0.0
    return 1.0 if b <= 0 else float(special.betaincinv(a, b, p))
