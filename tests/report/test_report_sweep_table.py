"""The table of a sweep, the smallest ε near no privacy, and the price of choosing."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpml import accounting
from dpml.accounting import Composed, Gaussian, NonPrivate, PoissonSampled, RepeatAndSelect, SelfComposed
from dpml.accounting.renyi import ORDERS
from dpml.report import sweep_selection, write_sweep_report
from dpml.report.figures import Series
from dpml.report.records import Charges
from dpml.report.sweep_table import COLUMNS, Nearest, as_csv, cells, nearest, table

Make = Callable[..., Path]
Read = Callable[[Path], Any]


def series(name: str, *points: tuple[float, float]) -> Series:
    return Series(name, points)


def test_rows_hold_mean_spread_and_distance() -> None:
    (low, high) = table([series("a", (1, 0.80), (1, 0.84), (2, 0.9))], {"a": 0.85}, "accuracy")
    assert (low.epsilon, low.mean, low.below) == (1, pytest.approx(0.82), pytest.approx(0.03))
    assert low.sd == pytest.approx(0.04 / math.sqrt(2))  # two values, n − 1
    assert (high.sd, high.near, low.near) == (None, True, False)
    (loss,) = table([series("a", (1, 0.5))], {"a": 0.3}, "loss")
    assert loss.below == pytest.approx(0.2)
    (unknown,) = table([series("b", (1, 0.5))], {"a": 0.3}, "accuracy")
    assert (unknown.below, unknown.near) == (None, None)


def test_nearest_is_the_smallest_epsilon_from_which_on_all_are_near() -> None:
    rows = table(
        [
            series("all", (1, 0.84), (2, 0.85)),
            series("lucky", (0.5, 0.845), (1, 0.80), (2, 0.845), (4, 0.85)),
            series("edge", (1, 0.80), (2, 0.84)),
            series("never", (1, 0.845), (4, 0.8399)),
            series("private", (1, 0.85)),
        ],
        dict.fromkeys(("all", "lucky", "edge", "never"), 0.85),
        "accuracy",
    )
    assert nearest(rows) == [
        Nearest("all", 1, 2), Nearest("lucky", 2, 4), Nearest("edge", 2, 2), Nearest("never", None, 4),
    ]  # fmt: skip


def test_csv_has_the_numbers_in_full_and_nothing_for_what_is_not_known() -> None:
    rows = table([series("a, b", (0.999973, 1 / 3)), series("c", (1, 0.5), (1, 0.7))], {"c": 0.6}, "accuracy")
    found = list(csv.DictReader(io.StringIO(as_csv(rows, "accuracy"))))
    assert tuple(found[0]) == COLUMNS
    assert (found[0]["settings"], found[0]["mean"], found[0]["sd"], found[0]["nonprivate"]) == (
        "a, b",
        str(1 / 3),
        "",
        "",
    )
    assert (found[1]["within_1_percent"], found[1]["runs"], float(found[1]["mean"])) == ("yes", "2", pytest.approx(0.6))
    assert cells(rows, share=True)[1]["mean"] == "60.00\u00a0%"
    assert [cell["first"] for cell in cells([*rows, rows[1]], share=True)] == [True, True, False]


def test_the_page_and_sweep_csv_state_the_smallest_epsilon(read_page: Read, sweep_folder: Make) -> None:
    """The fixture is 0.014/ε^0.7 + 0.0024/√ε below 0.8533 for output: 0.0103 at ε = 2 and 0.0065 at ε = 4."""
    sweep = sweep_folder(methods=("output",), epsilons=(0.5, 1.0, 2.0, 4.0))
    found = write_sweep_report(sweep)
    text = read_page(sweep / "report.html").text
    assert "Smallest ε of this sweep within 1 percentage point of no privacy" in text
    assert "output perturbation: ε = 4" in text
    assert found["files"]["sweep.csv"].endswith("sweep.csv")
    with open(sweep / "sweep.csv", encoding="utf-8", newline="") as file:
        assert [row["within_1_percent"] for row in csv.DictReader(file)] == ["no", "no", "no", "yes"]


def test_without_public_data_there_is_no_comparison(read_page: Read, sweep_folder: Make) -> None:
    sweep = sweep_folder(methods=("output",), epsilons=(0.5, 1.0), public=False)
    write_sweep_report(sweep)
    assert "Smallest ε" not in read_page(sweep / "report.html").text
    assert (sweep / "sweep.csv").read_text() == ",".join(COLUMNS) + "\n"


# -- the price of choosing --------------------------------------------------------------------------------------------
def part(job: int, event: Any, epsilon: float, *, delta: float = 1e-5, relation: str = "add_remove") -> Charges:
    return Charges(job, str(job), event, epsilon, delta, relation, True)


def test_a_private_search_over_equal_runs_costs_what_the_accountant_says() -> None:
    parts = [part(k, Gaussian(4.0), 1.0) for k in range(20)]
    found = sweep_selection.search_epsilon(parts, 1e-5)
    assert found == accounting.epsilon(RepeatAndSelect(Gaussian(4.0), 20, 1.0), 1e-5, accountant="rdp")
    assert found > accounting.epsilon(Gaussian(4.0), 1e-5)


def test_the_search_pays_for_the_dearest_candidate_at_every_order() -> None:
    """Reference: Papernot & Steinke's Theorem 2 by hand on the pointwise largest of the curves."""
    orders = np.array(ORDERS)
    steps = SelfComposed(PoissonSampled(0.01, Gaussian(0.9)), 300)
    events = [Gaussian(8.0), Gaussian(2.0), steps, Gaussian(5.0), Gaussian(2.0)]
    curves = [accounting.rdp(event, orders, neighboring_relation="add_remove") for event in events]
    one = accounting.rdp(sweep_selection.dominating(events, "add_remove"), orders, neighboring_relation="add_remove")
    largest = np.max(curves, axis=0)
    assert np.all(one >= largest)
    mean, shape = 5.0, 1.0
    gamma = 1 / mean  # geometric: mean 1/γ
    tail = np.min((1 + shape) * ((1 - 1 / orders) * largest + math.log(1 / gamma) / orders))
    curve = largest + tail + math.log(mean) / (orders - 1)
    least = min(
        r + math.log1p(-1 / a) - (math.log(1e-5) + math.log(a)) / (a - 1) for a, r in zip(orders, curve, strict=True)
    )
    found = sweep_selection.search_epsilon([part(k, event, 1.0) for k, event in enumerate(events)], 1e-5)
    assert found is not None
    assert found >= least * (1 - 1e-9)


def test_an_event_that_another_dominates_is_left_out() -> None:
    events = [Gaussian(8.0), Gaussian(2.0), Gaussian(5.0)]
    assert sweep_selection.dominating(events, "add_remove") == sweep_selection.merge([Gaussian(2.0)])
    steps = SelfComposed(PoissonSampled(0.1, Gaussian(0.6)), 3)  # dearer at large orders, cheaper at small ones
    assert isinstance(sweep_selection.dominating([Gaussian(2.0), steps], "add_remove"), Composed)


def test_what_no_theorem_covers_has_no_price() -> None:
    mixed = [part(0, Gaussian(2.0), 1.0), part(1, Gaussian(2.0), 1.0, relation="replace_one")]
    assert sweep_selection.search_epsilon(mixed, 1e-5) is None
    assert sweep_selection.search_epsilon([part(0, Gaussian(2.0), 1.0)] * 2, 0.0) is None
    assert sweep_selection.search_epsilon([part(0, NonPrivate(), 1.0)] * 2, 1e-5) is None


def test_prices_by_method_and_together(read_page: Read, sweep_folder: Make) -> None:
    parts = [part(0, Gaussian(4.0), 1.0), part(1, Gaussian(2.0), 2.0), part(2, Gaussian(3.0), 1.5)]
    names = {0: "a", 1: "a", 2: "b"}
    found = sweep_selection.prices(parts, names)
    assert [(price.name, price.runs, price.largest) for price in found] == [("a", 2, 2.0), ("all private jobs", 3, 2.0)]
    unfinished = Charges(3, "3", Gaussian(1.0), 9.0, 1e-5, "add_remove", False)
    assert sweep_selection.prices([*parts, unfinished], {**names, 3: "a"}) == found
    sweep = sweep_folder(methods=("output", "dp_sgd"), epsilons=(0.5, 1.0))
    write_sweep_report(sweep)
    text = read_page(sweep / "report.html").text
    assert "What choosing the best job costs" in text
    page = (sweep / "report.html").read_text("utf-8")
    assert 'data-label="runs">4</td> <td class="n" data-label="largest ε">1</td>' in page
    assert "not a guarantee" in text


# -- failed and abandoned ---------------------------------------------------------------------------------------------
def test_every_failed_and_abandoned_attempt_has_a_row_with_what_it_charged(read_page: Read, sweep_folder: Make) -> None:
    sweep = sweep_folder(methods=("dp_sgd",), epsilons=(1.0,), broken=True)
    listing = json.loads((sweep / "sweep.json").read_text())
    first = listing["jobs"][0]
    listing["jobs"] = [{**first, "folders": ["2", "0"]}, *listing["jobs"][1:2], listing["jobs"][3]]
    (sweep / "sweep.json").write_text(json.dumps(listing))
    write_sweep_report(sweep)
    html = (sweep / "report.html").read_text("utf-8")
    body = html[html.index("<h2>Jobs without a result</h2>") : html.index("<h2>All jobs</h2>")]
    assert body.count("<tr>") == 4  # the head, the failed one, the one never started, the abandoned attempt
    assert "SolverError" in body
    assert "missing" in body
    assert ">abandoned<" in body
    assert body.count("counted above") == 2
