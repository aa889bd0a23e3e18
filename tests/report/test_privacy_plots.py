"""The privacy pictures: files, labels, the line of no privacy, and that a curve never looks better than its numbers."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from dpml import accounting as acc
from dpml.accounting import tradeoffs as t
from dpml.errors import ConfigError
from dpml.report import privacy_plots as plots
from dpml.results import Trajectory

ALPHA = np.linspace(0, 1, 51)
RATES = np.logspace(-4, 0, 41)
EPSILONS = np.linspace(0, 4, 41)
GAUSSIAN, LAPLACE = acc.Gaussian(1.0), acc.Laplace(1.0)


def tradeoff(path: Path, **more: Any) -> Figure:
    curves = {"Gaussian": (ALPHA, t.tradeoff(GAUSSIAN, ALPHA)), "Laplace": (ALPHA, t.tradeoff(LAPLACE, ALPHA))}
    return plots.plot_tradeoff(curves, path, points={"an attack": (0.1, 0.7)}, **more)


def profile(path: Path, **more: Any) -> Figure:
    curves = {
        "Gaussian": (EPSILONS, t.profile(GAUSSIAN, EPSILONS)),
        "Laplace": (EPSILONS, t.profile(LAPLACE, EPSILONS)),
    }
    return plots.plot_profile(curves, path, points={"stated": (2.0, 0.03)}, **more)


def attack(path: Path, **more: Any) -> Figure:
    curves = {"Gaussian": (RATES, 1 - t.tradeoff(GAUSSIAN, RATES)), "Laplace": (RATES, 1 - t.tradeoff(LAPLACE, RATES))}
    return plots.plot_attack(curves, path, points={"an attack": (0.01, 0.05)}, **more)


def steps(path: Path, **more: Any) -> Figure:
    trajectory = Trajectory(1e-5, (1, 10, 100), (0.1, 0.3, 0.9), (0.2, 0.5, 1.1), None)
    return plots.plot_epsilon_over_steps(trajectory, path, **more)


PLOTS: dict[str, tuple[Callable[..., Figure], str, str, set[str]]] = {
    "tradeoff": (tradeoff, "type-I error α", "type-II error β", {"guessing: nothing leaks", "Gaussian", "an attack"}),
    "profile": (profile, "ε (natural-log units)", "δ at this ε (probability", {"Gaussian", "Laplace", "stated"}),
    "attack": (attack, "false-positive rate", "true-positive rate", {"guessing: equal rates", "Laplace", "an attack"}),
    "steps": (steps, "steps", "ε at δ = 1e-5", {"best bound", "Rényi accountant"}),
}


@pytest.mark.parametrize("name", PLOTS)
def test_a_png_with_labels_a_title_and_every_curve(name: str, tmp_path: Path) -> None:
    make, x_label, y_label, legend = PLOTS[name]
    path = tmp_path / "picture.png"
    figure = make(path)
    raw = path.read_bytes()
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", raw[16:24])
    assert width >= 900
    assert height >= 700
    (ax,) = figure.axes
    assert ax.get_xlabel().startswith(x_label)
    assert ax.get_ylabel().startswith(y_label)
    assert legend <= {text.get_text() for text in ax.get_legend().get_texts()}
    title = figure._suptitle.get_text()  # type: ignore[attr-defined]
    assert len(title) > 15
    pixels = matplotlib.image.imread(path)[:, :, :3]
    assert (pixels != 1).any(axis=2).mean() > 0.01  # something was drawn
    for edge in (pixels[:, -1], pixels[0]):  # nothing runs out of the picture at the right or the top
        assert (edge == 1).all()


@pytest.mark.parametrize("name", PLOTS)
def test_text_stays_inside_the_picture_with_a_long_title_and_long_names(name: str, tmp_path: Path) -> None:
    figure = PLOTS[name][0](tmp_path / "a.png", title="A rather long title in plain words " * 3)
    box = figure.bbox
    for artist in (figure._suptitle, figure.axes[0].get_legend()):  # type: ignore[attr-defined]
        extent = artist.get_window_extent()
        assert extent.x0 >= box.x0
        assert extent.x1 <= box.x1
        assert extent.y1 <= box.y1 + 1


@pytest.mark.parametrize("name", PLOTS)
def test_the_same_numbers_give_the_same_bytes_and_leave_matplotlib_alone(name: str, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    for file in ("a.png", "b.png"):
        PLOTS[name][0](tmp_path / file)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("name", ["tradeoff", "profile", "attack"])
def test_curves_differ_in_colour_and_in_line_style(name: str, tmp_path: Path) -> None:
    figure = PLOTS[name][0](tmp_path / "a.png")
    lines = [line for line in figure.axes[0].lines if line.get_label() in ("Gaussian", "Laplace")]
    assert len({line.get_color() for line in lines}) == 2
    assert len({str(line._unscaled_dash_pattern) for line in lines}) == 2  # type: ignore[attr-defined]


def drawn(figure: Figure, name: str) -> tuple[np.ndarray, np.ndarray]:
    (line,) = [line for line in figure.axes[0].lines if line.get_label() == name]
    return np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)


def test_the_lines_of_no_privacy_loss(tmp_path: Path) -> None:
    x, y = drawn(tradeoff(tmp_path / "a.png"), "guessing: nothing leaks")
    np.testing.assert_array_equal(y, 1 - x)
    figure = attack(tmp_path / "b.png")
    x, y = drawn(figure, "guessing: equal rates")
    np.testing.assert_array_equal(y, x)
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"
    assert figure.axes[0].get_xlim() == figure.axes[0].get_ylim() == (1e-4, 1.0)


def test_a_curve_is_what_was_handed_over_in_order(tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(len(ALPHA))
    beta = t.tradeoff(GAUSSIAN, ALPHA)
    x, y = drawn(plots.plot_tradeoff({"g": (ALPHA[order], beta[order])}, tmp_path / "a.png"), "g")
    np.testing.assert_array_equal(x, ALPHA)
    np.testing.assert_array_equal(y, beta)


def test_a_profile_falls_to_zero_where_the_zero_is_not_before(tmp_path: Path) -> None:
    epsilons, deltas = np.array([2.0, 0.0, 1.0]), np.array([0.0, 0.5, 0.2])
    x, y = drawn(plots.plot_profile({"p": (epsilons, deltas)}, tmp_path / "a.png"), "p")
    np.testing.assert_array_equal(x, [0.0, 1.0, 2.0, 2.0])
    np.testing.assert_array_equal(y, [0.5, 0.2, 0.2, 0.0])


def test_edge_numbers(tmp_path: Path) -> None:
    plots.plot_profile({"nothing leaks": ([0.0], [0.0])}, tmp_path / "a.png")
    figure = plots.plot_attack({"all leaks": ([0.0, 1.0], [1.0, 1.0])}, tmp_path / "b.png")
    assert figure.axes[0].get_xlim()[0] == 0.1
    figure = plots.plot_attack({"far": ([1e-30, 1.0], [1e-3, 1.0])}, tmp_path / "c.png")
    assert figure.axes[0].get_xlim()[0] == pytest.approx(1e-6)
    names = {f"a curve with a rather long name, number {k}": (ALPHA, 1 - ALPHA) for k in range(8)}
    figure = plots.plot_tradeoff(names, tmp_path / "d.png")
    ax = figure.axes[0]
    looks = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in ax.lines}  # type: ignore[attr-defined]
    assert len(looks) == 9
    assert ax.get_legend().get_window_extent().y0 >= ax.bbox.y1  # too long for the corner: above the plot


REFUSED: list[tuple[str, Callable[[Path], object]]] = [
    ("curves", lambda path: plots.plot_tradeoff({}, path)),
    ("curves", lambda path: plots.plot_tradeoff({"x": ([], [])}, path)),
    ("curves", lambda path: plots.plot_tradeoff({"x": ([0.1], [0.1, 0.2])}, path)),
    ("curves", lambda path: plots.plot_tradeoff({"x": ([1.1], [0.1])}, path)),
    ("curves", lambda path: plots.plot_attack({"x": ([0.1], [math.nan])}, path)),
    ("curves", lambda path: plots.plot_profile({"x": ([math.inf], [0.1])}, path)),
    ("points", lambda path: plots.plot_profile({"x": ([1.0], [0.1])}, path, points={"p": (1.0, 1.1)})),
]


@pytest.mark.parametrize(("name", "call"), REFUSED, ids=range(len(REFUSED)))
def test_numbers_that_are_no_rates_are_refused_and_no_file_is_written(
    name: str, call: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} = "):
        call(tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
