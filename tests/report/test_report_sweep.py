"""The report of a sweep, with failed, stopped and missing jobs."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpml import accounting
from dpml.accounting import Composed, Gaussian, PoissonSampled, SelfComposed
from dpml.errors import RunFolderError
from dpml.report import figures, sweep_table, write_sweep_report
from dpml.report.records import read_charges, read_jobs

Make = Callable[..., Path]
Read = Callable[[Path], Any]


def rows_of(sweep: Path) -> list[dict[str, str]]:
    with open(sweep / "summary.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_writes_table_plot_and_page(read_page: Read, sweep_folder: Make) -> None:
    sweep = sweep_folder()
    found = write_sweep_report(sweep)
    assert (found["jobs"], found["done"], found["failed"], found["metric"]) == (8, 8, [], "accuracy")
    rows = rows_of(sweep)
    assert list(rows[0]) == [
        "job", "method", "epsilon", "delta", "accuracy", "r2", "steps", "noise_multiplier", "status", "folder",
        "overrides", "auc", "mae", "loss", "metric", "low", "high",
    ]  # fmt: skip
    assert {(row["metric"], row["low"], row["high"]) for row in rows} == {("accuracy", "", "")}
    assert [row["job"] for row in rows] == [str(i) for i in range(8)]
    assert {row["status"] for row in rows} == {"done"}
    assert [float(row["epsilon"]) for row in rows] == [0.1, 0.5, 1.0, 4.0] * 2
    assert all(0.5 < float(row["accuracy"]) < 1 for row in rows)
    assert rows[0]["overrides"] == "+experiment=logreg method=objective privacy.epsilon=0.1 seed=0"
    assert (sweep / "epsilon_vs_metric.png").read_bytes().startswith(b"\x89PNG")
    page = read_page(sweep / "report.html")
    assert page.open == []
    assert all(one.startswith(("data:", "#")) for one in page.references)
    assert "8 jobs, 8 done" in page.text
    assert "no privacy: 85.3" in page.images[0]["alt"]
    assert "Choosing is not free" in page.text
    json.dumps(found, allow_nan=False)


def test_composed_epsilon_counts_failed_and_stopped_jobs(read_page: Read, sweep_folder: Make) -> None:
    sweep = sweep_folder(methods=("dp_sgd",), epsilons=(1.0,), broken=True)
    found = write_sweep_report(sweep)
    assert found["failed"] == [1, 2, 3]
    steps = [(1.0, 6), (8.0, 3), (2.0, 3)]  # (ε of the fixture, charge lines of 50 steps)
    events = [
        SelfComposed(PoissonSampled(1000 / 36_177, Gaussian(0.85 + 1.2 / epsilon)), 50 * lines)
        for epsilon, lines in steps
    ]
    composed = found["composed"]
    assert composed["ledgers"] == 3
    assert composed["delta"] == pytest.approx(3e-5)
    assert composed["event_epsilon"] == pytest.approx(accounting.epsilon(Composed(tuple(events)), 3e-5), rel=1e-3)
    assert composed["sum_epsilon"] == pytest.approx(
        1.0 + sum(accounting.epsilon(e, 1e-5) for e in events[1:]), rel=1e-6
    )
    assert composed["epsilon"] == min(composed["event_epsilon"], composed["sum_epsilon"])
    text = read_page(sweep / "report.html").text
    assert "SolverError" in text
    assert text.count(", counted above") == 2
    assert [row["status"] for row in rows_of(sweep)] == ["done", "failed", "unfinished", "missing"]
    assert rows_of(sweep)[1]["epsilon"] == ""
    assert rows_of(sweep)[3]["method"] == "output"


def test_shows_nothing_private_but_status_and_error_class(sweep_folder: Make) -> None:
    sweep = sweep_folder(methods=("dp_sgd",), epsilons=(1.0,), broken=True)
    status = sweep / "1" / "private" / "status.json"
    status.write_text(json.dumps({"status": "failed", "error": "ValueError: cell 4711 of Ms Example"}))
    write_sweep_report(sweep)
    everything = (sweep / "report.html").read_text() + (sweep / "summary.csv").read_text()
    assert "4711" not in everything
    assert "SECRET" not in everything
    assert str(sweep) not in everything


def test_no_public_metric_is_said_and_does_not_stop_the_report(read_page: Read, sweep_folder: Make) -> None:
    sweep = sweep_folder(methods=("dp_sgd",), epsilons=(0.5, 1.0), public=False)
    found = write_sweep_report(sweep)
    assert found["metric"] is None
    page = read_page(sweep / "report.html")
    assert "not declared public" in page.text
    assert "no public metric" in page.images[0]["alt"]
    assert {row["accuracy"] for row in rows_of(sweep)} == {""}


def test_a_broken_ledger_leaves_the_composed_epsilon_open(read_page: Read, sweep_folder: Make) -> None:
    sweep = sweep_folder(methods=("dp_sgd",), epsilons=(1.0, 2.0))
    path = sweep / "1" / "release" / "ledger.jsonl"
    path.write_text(path.read_text().replace('"count":50', '"count":5', 1))
    found = write_sweep_report(sweep)
    assert found["composed"] is None
    assert "line 2" in found["problems"][0]
    assert "No composed ε can be stated" in read_page(sweep / "report.html").text
    path.unlink()
    assert "there is no ledger.jsonl" in write_sweep_report(sweep)["problems"][0]


def test_a_torn_last_line_was_never_used(sweep_folder: Make) -> None:
    sweep = sweep_folder(methods=("dp_sgd",), epsilons=(1.0,), broken=True)
    job = read_jobs(sweep)[2]
    before, _ = read_charges(sweep, job)
    with open(sweep / "2" / "release" / "ledger.jsonl", "a") as file:
        file.write('{"index": 4, "ki')
    after, problems = read_charges(sweep, job)
    assert (after, problems) == (before, [])


def test_all_attempts_of_a_job_count(sweep_folder: Make) -> None:
    sweep = sweep_folder(methods=("dp_sgd",), epsilons=(1.0,), broken=True)
    listing = json.loads((sweep / "sweep.json").read_text())
    listing["jobs"] = [{**listing["jobs"][0], "folders": ["2", "0", "3"]}]  # stopped, done, never made
    (sweep / "sweep.json").write_text(json.dumps(listing))
    (job,) = read_jobs(sweep)
    assert (job.status, job.folder) == ("done", "0")
    assert write_sweep_report(sweep)["composed"]["ledgers"] == 2


def test_jobs_without_privacy_are_named_apart(read_page: Read, sweep_folder: Make) -> None:
    sweep = sweep_folder(methods=("output",), epsilons=(1.0, 2.0))
    path = sweep / "1" / "release" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "epsilon": "inf", "method": "nonprivate"}))
    found = write_sweep_report(sweep)
    assert found["nonprivate_jobs"] == [1]
    assert found["composed"]["epsilon"] == pytest.approx(1.0)
    assert "publishing all of it has no guarantee" in read_page(sweep / "report.html").text


def test_empty_sweep_and_faults(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"sweep\.json"):
        write_sweep_report(tmp_path)
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(RunFolderError, match="no list 'jobs'"):
        write_sweep_report(tmp_path)
    (tmp_path / "sweep.json").write_text('{"jobs": []}')
    assert write_sweep_report(tmp_path)["composed"]["epsilon"] == 0.0


def axes_of(draw: figures.Draw) -> tuple[object, Figure]:
    figure = figures._figure(draw, figures.LIGHT, (7.6, 4.2))
    return figure.axes[0], figure


def test_epsilon_axis_is_logarithmic_and_monotone_with_a_band_over_seeds() -> None:
    points = ((4.0, 0.85), (0.1, 0.80), (1.0, 0.84), (0.1, 0.82), (1.0, 0.85), (4.0, 0.86))
    draw = figures.metric_over_epsilon(
        [figures.Series("a", points)], [("no privacy", 0.87)], metric="accuracy", percent=True
    )
    ax, _ = axes_of(draw)
    mean, baseline = ax.get_lines()
    assert ax.get_xscale() == "log"
    assert ax.get_xlim()[0] < 0.1 < 4.0 < ax.get_xlim()[1]
    assert list(mean.get_xdata()) == [0.1, 1.0, 4.0]
    assert list(mean.get_ydata()) == pytest.approx([81.0, 84.5, 85.5])
    assert list(baseline.get_ydata()) == [87.0, 87.0]
    band, single = ax.collections
    assert {round(float(y), 6) for y in band.get_paths()[0].vertices[:, 1]} >= {80.0, 82.0, 84.0, 85.0, 86.0}
    assert len(single.get_offsets()) == 6


def test_no_band_and_no_baseline_without_their_data() -> None:
    draw = figures.metric_over_epsilon([figures.Series("a", ((1.0, 0.8),))], [], metric="loss", percent=False)
    ax, _ = axes_of(draw)
    assert len(ax.get_lines()) == 1
    assert len(ax.collections) == 0
    assert ax.get_ylabel() == "loss"


def test_large_spread_gives_a_logarithmic_epsilon_axis_and_small_spread_a_linear_one_from_zero() -> None:
    near = [figures.Series("a", ((1, 0.5), (2, 1.0))), figures.Series("b", ((1, 0.6), (2, 1.1)))]
    far = [*near, figures.Series("c", ((1, 40.0), (2, math.inf)))]
    ax, _ = axes_of(figures.epsilon_over_steps(near, 1e-5))
    assert (ax.get_yscale(), ax.get_ylim()[0]) == ("linear", 0)
    ax, _ = axes_of(figures.epsilon_over_steps(far, 1e-5))
    assert ax.get_yscale() == "log"
    assert [len(line.get_xdata()) for line in ax.get_lines()] == [2, 2, 1]


def contrast(one: str, two: str) -> float:
    """Contrast ratio of two colours (WCAG 2.1, definition of contrast ratio)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("palette", [figures.LIGHT, figures.DARK])
def test_colours_have_contrast(palette: figures.Palette) -> None:
    assert contrast(palette.text, palette.background) >= 7
    assert all(contrast(colour, palette.background) >= 4.5 for colour in palette.series)


def test_text_colours_of_the_page_have_contrast() -> None:
    style = (Path(figures.__file__).parent / "templates" / "style.css.j2").read_text()
    for block in re.findall(r":root\{(.*?)\}", style, re.S):
        colours = dict(re.findall(r"--([\w-]+):(#[0-9a-f]{3,6})", block))
        colours = {k: v if len(v) == 7 else "#" + "".join(2 * c for c in v[1:]) for k, v in colours.items()}
        for text in ("text", "muted", "accent"):
            assert contrast(colours[text], colours["card"]) >= 4.5, text
        assert contrast(colours["muted"], colours["code"]) >= 4.5
        for tag in ("good", "fair", "bad"):
            assert contrast(colours[tag], colours[f"{tag}-bg"]) >= 4.5, tag


def test_a_sweep_of_paid_errors_has_a_plot_and_a_table(read_page: Read, sweep_folder: Make) -> None:
    """A private regression releases its mean absolute error, and nothing else, with charged noise."""
    sweep = sweep_folder(methods=("output",), epsilons=(1.0, 4.0), public=False)
    for name, error in (("0", 0.725), ("1", 0.658)):
        path = sweep / name / "release/result.json"
        result = json.loads(path.read_text("utf-8"))
        result["metrics"] = {"mae": error, "mae_low": 0.1, "mae_high": 1.3, "source": "private hold-out, charged noise"}
        path.write_text(json.dumps(result))
    assert write_sweep_report(sweep)["metric"] == "mae"
    page = read_page(sweep / "report.html")
    caption = "Mean absolute error against ε (private hold-out, charged noise), with each run's own interval."
    assert caption in page.text
    assert page.text.count("0.1 to 1.3") == 2
    assert [(row["mae"], row["low"], row["high"]) for row in rows_of(sweep)] == [
        ("0.725", "0.1", "1.3"), ("0.658", "0.1", "1.3"),
    ]  # fmt: skip
    assert "output perturbation: 0.725 at ε = 1, 0.658 at ε = 4" in page.images[0]["alt"]
    assert "Smallest ε" not in page.text
    assert page.text.count("0.725") >= 2  # among the means and among the jobs
    assert (sweep / "sweep.csv").read_text("utf-8").splitlines()[1].startswith("output perturbation,1.0,1,mae,0.725,")


def test_the_page_names_a_metric_and_a_relation_once_and_in_words(read_page: Read, sweep_folder: Make) -> None:
    sweep = sweep_folder(methods=("output",), epsilons=(1.0, 2.0))
    for name in "01":
        path = sweep / name / "release/result.json"
        result = json.loads(path.read_text("utf-8"))
        result["metrics"] = {"r2": 0.31, "source": "test set declared public"}
        path.write_text(json.dumps(result))
    document = json.loads((sweep / "sweep.json").read_text("utf-8"))
    document["jobs"][0]["overrides"].append("data.name=a\u202eb")
    (sweep / "sweep.json").write_text(json.dumps(document))
    write_sweep_report(sweep)
    page = read_page(sweep / "report.html")
    assert "R² against ε" in page.text
    assert "R2" not in page.text
    assert "(neighbouring data sets: add or remove one record)." in page.text
    assert "\u202e" not in (sweep / "report.html").read_text("utf-8")
    assert page.text.count("2e-5") >= 3  # δ in the sentence, in the sum and in the prices, in one form


def test_intervals_of_runs_are_bars_of_the_plot() -> None:
    bars = ((1.0, 0.2, 0.9), (4.0, 0.4, 0.8))
    ax = Figure().subplots()
    series = [figures.Series("a", ((1.0, 0.5), (4.0, 0.6)), bars), figures.Series("b", ((1.0, 0.7), (4.0, 0.7)))]
    figures.metric_over_epsilon(series, [], metric="accuracy", percent=True)(ax, figures.LIGHT)
    ends = [tuple(np.round(line.get_segments()[0][:, 1], 6)) for line in ax.collections]
    assert ends == [(20.0, 90.0), (40.0, 80.0)]
    places = [line.get_segments()[0][0, 0] for line in ax.collections]
    assert places == pytest.approx([1.0, 4.0], rel=0.02)  # beside the line of the other method


def test_a_distance_just_above_the_limit_is_not_shown_as_the_limit() -> None:
    def below(value: float, share: bool) -> object:
        row = sweep_table.Row("a", 1.0, (0.8,), 0.8 + value)
        return sweep_table.cells([row], share)[0]["below"]

    assert (below(0.010006, True), below(0.0102, True), below(0.0099, True)) == ("1.0006", "1.02", "0.99")
    assert (below(0.0100004, False), below(0.0102, False)) == ("0.010000", "0.0102")


def test_an_interval_that_is_none_is_left_out(sweep_folder: Make) -> None:
    sweep = sweep_folder(methods=("output",), epsilons=(1.0, 4.0), public=False)
    for name, ends in (("0", {"mae_low": 2.0, "mae_high": 1.0}), ("1", {"mae_low": 0.1})):
        path = sweep / name / "release/result.json"
        result = json.loads(path.read_text("utf-8"))
        result["metrics"] = {"mae": 0.7, "source": "private hold-out, charged noise", **ends}
        path.write_text(json.dumps(result))
    assert write_sweep_report(sweep)["metric"] == "mae"
    assert {(row["low"], row["high"]) for row in rows_of(sweep)} == {("", "")}
