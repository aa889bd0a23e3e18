"""Pictures of privacy guarantees as PNG files: trade-off curves, profiles, attack (ROC) bounds, ε over the steps.

The functions draw numbers that they are handed (``dpml.accounting.tradeoffs`` makes them), write the file whole or not
at all, and return the figure.  The look is that of :mod:`dpml.report.figures`; every curve has its own colour and line
style, every single point its own marker, so that nothing hangs on colour alone.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import ArrayLike

from dpml.errors import invalid
from dpml.report import figures
from dpml.report.figures import DASHES, LIGHT, MARKERS, Palette, Series
from dpml.results import Trajectory, write_atomic

Curves = Mapping[str, tuple[ArrayLike, ArrayLike]]
Points = Mapping[str, tuple[float, float]]

SQUARE = (6.2, 6.4)  # inches
WIDE = (7.6, 5.0)
_DPI = 160
_INNER_LINES = 9  # of a legend inside the plot, at most
_TITLE_CHARACTERS = 8.4  # to an inch
_SMALLEST_DELTA = 1e-12  # below this a δ axis shows nothing of use
_DECADES = 6  # of a rate axis, at most


def plot_tradeoff(
    curves: Curves,
    path: Path | str,
    *,
    points: Points | None = None,
    title: str = "Can an attacker tell whether one record was used?",
) -> Figure:
    """Smallest type-II error β against the type-I error α, with the diagonal β = 1 − α of perfect privacy.

    Args:
        curves: name ↦ (α, β), both (n,) in [0, 1]; the higher the curve, the better the privacy.
        path: PNG file to write.
        points: name ↦ (α, β) of attacks that were tried, say.
        title: a line above the picture.
    """
    found = _checked(curves, high=1.0)
    single = _checked_points(points)

    def draw(ax: Axes, palette: Palette) -> None:
        ax.plot([0, 1], [1, 0], color=palette.text, linewidth=1.2, linestyle=":", label="guessing: nothing leaks")
        _draw(ax, palette, found, single)
        ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        ax.set_xlabel("type-I error α: wrongly says “the record was used” (share)")
        ax.set_ylabel("type-II error β: wrongly says “it was not” (share)")
        _inner_legend(ax, palette, "upper right")

    return _save(draw, path, title, SQUARE)


def plot_profile(
    curves: Curves,
    path: Path | str,
    *,
    points: Points | None = None,
    title: str = "Which (ε, δ) hold at the same time?",
) -> Figure:
    """δ(ε) on a logarithmic axis: name ↦ (ε ≥ 0, δ in [0, 1]), both (n,); where δ becomes 0 the curve falls off.

    ``points``: name ↦ (ε, δ), a stated guarantee, say.  Other arguments as :func:`plot_tradeoff`.
    """
    found = {name: _dropped(x, y) for name, (x, y) in _checked(curves, high=math.inf).items()}
    single = _checked_points(points, high=math.inf)
    farthest = max([float(x.max()) for x, _ in found.values()] + [x for x, _ in single.values()])
    deltas = np.concatenate([y for _, y in found.values()] + [np.array([y for _, y in single.values()])])
    shown = deltas[deltas >= _SMALLEST_DELTA]

    def draw(ax: Axes, palette: Palette) -> None:
        _draw(ax, palette, found, single)
        low = float(shown.min()) if shown.size else 1e-6
        ax.set_ylim(10 ** math.floor(math.log10(low) - 0.01), 1.0)
        ax.set_yscale("log")
        ax.set_xlim(0, farthest or 1.0)
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel("ε (natural-log units)")
        ax.set_ylabel("δ at this ε (probability, logarithmic)")
        figures._legend(ax, palette)

    return _save(draw, path, title, WIDE)


def plot_attack(
    curves: Curves,
    path: Path | str,
    *,
    points: Points | None = None,
    title: str = "The most that any membership attack can find",
) -> Figure:
    """True-positive rate against false-positive rate, both logarithmic, with the diagonal of guessing.

    Args:
        curves: name ↦ (false-positive rates, true-positive rates), both (n,) in [0, 1]; the lower, the better the
            privacy.  Rates of 0 are left out.
        path: PNG file to write.
        points: name ↦ (false-positive rate, true-positive rate) of attacks that were tried.
        title: a line above the picture.
    """
    found = _checked(curves, high=1.0)
    single = _checked_points(points)
    rates = np.concatenate([x for x, _ in found.values()] + [np.array([x for x, _ in single.values()])])
    positive = rates[rates > 0]
    smallest = float(positive.min()) if positive.size else 1e-3
    low = 10.0 ** max(-_DECADES, math.floor(math.log10(min(smallest, 0.1)) + 1e-9))

    def draw(ax: Axes, palette: Palette) -> None:
        guess = "guessing: equal rates"
        ax.plot([low, 1], [low, 1], color=palette.text, linewidth=1.2, linestyle=":", label=guess)
        _draw(ax, palette, found, single)
        for axis, scale, limits in ((ax.xaxis, ax.set_xscale, ax.set_xlim), (ax.yaxis, ax.set_yscale, ax.set_ylim)):
            scale("log")
            limits(low, 1.0)
            axis.set_major_locator(LogLocator(base=10, numticks=_DECADES + 2))
            axis.set_major_formatter(lambda value, _place: _percent(value))
            axis.set_minor_formatter(NullFormatter())
        ax.set_aspect("equal")
        ax.set_xlabel("false-positive rate: non-members accused (%, logarithmic)")
        ax.set_ylabel("true-positive rate: members found (%, logarithmic)")
        _inner_legend(ax, palette, "lower right")

    return _save(draw, path, title, SQUARE)


def plot_epsilon_over_steps(
    trajectory: Trajectory, path: Path | str, *, title: str = "How the privacy loss grows with the steps"
) -> Figure:
    """ε at the trajectory's δ after each step, one curve per accountant that has an answer."""
    names = {"best": "best bound", "rdp": "Rényi accountant", "zcdp": "zCDP accountant"}
    series = [
        Series(name, tuple(zip(map(float, trajectory.steps), values, strict=True)))
        for key, name in names.items()
        if (values := getattr(trajectory, key)) is not None
    ]
    return _save(figures.epsilon_over_steps(series, trajectory.delta), path, title, WIDE)


def _draw(ax: Axes, palette: Palette, curves: Mapping[str, tuple[np.ndarray, np.ndarray]], points: Points) -> None:
    for place, (name, (x, y)) in enumerate(curves.items()):
        order = np.argsort(x, kind="stable")
        colour = palette.series[place % len(palette.series)]
        dash = DASHES[(place + place // len(palette.series)) % len(DASHES)]  # colours come again with other dashes
        ax.plot(x[order], y[order], color=colour, linestyle=dash, linewidth=2.0, label=name)
    for place, (name, (one_x, one_y)) in enumerate(points.items(), start=len(curves)):
        colour, marker = palette.series[place % len(palette.series)], MARKERS[place % len(MARKERS)]
        ax.plot(
            [one_x], [one_y], color=colour, marker=marker, markersize=9, linestyle="none", label=name,
            markeredgecolor=palette.background, clip_on=False, zorder=5,
        )  # fmt: skip


def _dropped(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The curve in the order of x, falling to 0 at the first zero and not before it: δ stays an upper bound."""
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    zeros = np.flatnonzero(y == 0)
    if not zeros.size or zeros[0] == 0:
        return x, y
    first = int(zeros[0])
    return np.insert(x, first, x[first]), np.insert(y, first, y[first - 1])


def _inner_legend(ax: Axes, palette: Palette, corner: Literal["upper right", "lower right"]) -> None:
    """A legend in the corner on the far side of the diagonal, where no curve runs; above the plot if it is long."""
    handles, names = ax.get_legend_handles_labels()
    wrapped = ["\n".join(textwrap.wrap(name, 28)) for name in names]
    if sum(name.count("\n") + 1 for name in wrapped) > _INNER_LINES:
        figures._legend(ax, palette)
        return
    ax.legend(
        handles, wrapped, loc=corner, frameon=True, framealpha=0.9, edgecolor="none", facecolor=palette.background,
        labelcolor=palette.text, fontsize=9.5, handlelength=2.6,
    )  # fmt: skip


def _save(draw: figures.Draw, path: Path | str, title: str, size: tuple[float, float]) -> Figure:
    with figures._defaults():
        figure = figures._figure(draw, LIGHT, size)
        lines = "\n".join(textwrap.wrap(title, int(size[0] * _TITLE_CHARACTERS)))
        figure.suptitle(lines, x=0.02, ha="left", fontsize=13, fontweight="bold", color=LIGHT.text)
        figure.set_dpi(_DPI)
        out = io.BytesIO()
        FigureCanvasAgg(figure).print_png(out, metadata={"Software": None})
    write_atomic(Path(path), out.getvalue())
    return figure


def _percent(rate: float) -> str:
    """A power of ten in [1e-6, 1] as a percentage without superfluous digits."""
    return f"{100 * rate:.4f}".rstrip("0").rstrip(".")


def _checked(curves: Curves, *, high: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The curves as float arrays: x in [0, ``high``], y in [0, 1], the same length, at least one curve."""
    found = {}
    for name, (x, y) in curves.items():
        xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        if xs.ndim != 1 or xs.shape != ys.shape or not xs.size:
            raise invalid("curves", name, "two lists of the same length, at least one number each")
        if not (np.isfinite(xs).all() and (xs >= 0).all() and (xs <= high).all()):
            raise invalid("curves", name, f"finite numbers from 0 to {high:g} on the horizontal axis")
        if not ((ys >= 0).all() and (ys <= 1).all()):
            raise invalid("curves", name, "numbers from 0 to 1 on the vertical axis")
        found[name] = (xs, ys)
    if not found:
        raise invalid("curves", dict(curves), "at least one curve")
    return found


def _checked_points(points: Points | None, high: float = 1.0) -> Points:
    for name, (x, y) in (points or {}).items():
        if not (0 <= x <= high and math.isfinite(x) and 0 <= y <= 1):
            raise invalid("points", name, f"a pair from [0, {high:g}] × [0, 1], finite")
    return points or {}
