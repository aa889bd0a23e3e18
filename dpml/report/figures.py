"""The plots, drawn with matplotlib's object interface on Agg and SVG canvases (pyplot's global state is not touched).

Colours are Okabe and Ito's, which colour-blind readers can tell apart; every series has its own marker and line style
too.  The same data give the same bytes: no dates, no random identifiers.
"""

from __future__ import annotations

import base64
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from dpml.report.formats import general, upper

SMALLEST = 1e-12  # what is below it is not drawn on a logarithmic axis
LOG_SPREAD = 8.0  # largest ÷ smallest value from which an ε axis becomes logarithmic


@dataclass(frozen=True)
class Palette:
    """Colours of one theme; the series colours have a contrast of 3:1 or more with the background."""

    background: str
    text: str
    grid: str
    series: tuple[str, ...]


LIGHT = Palette("#ffffff", "#1d2430", "#d4d9e1", ("#0072B2", "#B94700", "#007A5A", "#9A4A7C", "#7A6000", "#3A3A3A"))
DARK = Palette("#161b22", "#e4e8ee", "#39424e", ("#56B4E9", "#F0A33A", "#2FC79B", "#E59AC8", "#F0E442", "#D0D0D0"))
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", (0, (6, 2)), (0, (2, 2)), (0, (6, 2, 1, 2)), "-", "--")


@dataclass(frozen=True)
class Series:
    """One line of a plot: a name and its points, several y values at one x where a setting was repeated.

    ``bars``: (x, low, high) of the points that have an interval of their own.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    bars: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True)
class Picture:
    """A plot in both themes and two widths, as data URIs, with its text for people who cannot see it."""

    alt: str
    caption: str
    light: str
    dark: str
    light_narrow: str
    dark_narrow: str


Draw = Callable[[Axes, Palette], None]
WIDE, NARROW = 7.6, 3.9  # widths in inches
TALL, TALL_NARROW = 4.2, 3.9  # heights that suit a plot with lines


def picture(draw: Draw, *, alt: str, caption: str, height: float | None = None) -> Picture:
    """Renders ``draw`` wide and narrow (``height`` in inches); dark is light with the colours of the other palette."""
    wide = _svg(draw, LIGHT, (WIDE, height or TALL))
    narrow = _svg(draw, LIGHT, (NARROW, height or TALL_NARROW))
    return Picture(
        alt=alt,
        caption=caption,
        light=_uri(wide),
        dark=_uri(recoloured(wide)),
        light_narrow=_uri(narrow),
        dark_narrow=_uri(recoloured(narrow)),
    )


def recoloured(svg: str) -> str:
    """A drawing of the light palette in the colours of the dark one, each for the one at its place."""
    pairs = zip(_colours(LIGHT), _colours(DARK), strict=True)
    table = {light.lower(): dark.lower() for light, dark in pairs}
    return re.sub("|".join(table), lambda found: table[found.group().lower()], svg, flags=re.IGNORECASE)


def _colours(palette: Palette) -> tuple[str, ...]:
    return palette.background, palette.text, palette.grid, *palette.series


def _uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode("ascii")


def png(draw: Draw, *, height: float | None = None) -> bytes:
    """The light, wide rendering as a PNG file's bytes."""
    with _defaults():
        figure = _figure(draw, LIGHT, (WIDE, height or TALL))
        figure.set_dpi(160)
        out = io.BytesIO()
        FigureCanvasAgg(figure).print_png(out, metadata={"Software": None})
    return out.getvalue()


def epsilon_over_steps(series: Sequence[Series], delta: float) -> Draw:
    """ε(δ) after each step, one line per accountant; the ε axis is logarithmic when the spread is large."""
    values = [y for one in series for _, y in one.points if SMALLEST < y < math.inf]
    wide = bool(values) and max(values) / min(values) > LOG_SPREAD

    def draw(ax: Axes, palette: Palette) -> None:
        for place, one in enumerate(series):
            shown = [(x, y) for x, y in one.points if math.isfinite(y) and (y > SMALLEST or not wide)]
            if shown:
                xs, ys = zip(*shown, strict=True)
                every = max(1, len(xs) // 8)
                ax.plot(xs, ys, label=one.name, markevery=every, **_style(place, palette))
        ax.set_xlabel("steps")
        ax.set_ylabel(f"ε at δ = {upper(delta)}")
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        if wide:
            _log_axis(ax, "y")
        else:
            ax.set_ylim(bottom=0)
        _legend(ax, palette)

    return draw


def epsilon_by_accountant(values: Sequence[tuple[str, float]], delta: float) -> Draw:
    """ε(δ) of a method with one release or two: one bar per accountant instead of a line over steps."""
    finite = [(name, value) for name, value in values if math.isfinite(value)]

    def draw(ax: Axes, palette: Palette) -> None:
        for place, (_name, value) in enumerate(finite):
            ax.barh(place, value, height=0.55, color=palette.series[place % len(palette.series)])
            ax.annotate(
                upper(value),
                (value, place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                color=palette.text,
            )
        ax.set_yticks(range(len(finite)), [name for name, _ in finite])
        ax.set_ylim(len(finite) - 0.4, -0.6)
        ax.set_xlim(0, 1.18 * max((value for _, value in finite), default=1.0) or 1.0)
        ax.set_xlabel(f"ε at δ = {upper(delta)}")
        ax.grid(False, axis="y")
        if not finite:
            _message(ax, palette, "no accountant gives a finite ε")

    return draw


def metric_over_epsilon(
    series: Sequence[Series], baselines: Sequence[tuple[str, float]], *, metric: str, percent: bool
) -> Draw:
    """A metric against ε on a logarithmic axis: every run a point, the mean a line, a band from least to most.

    A bar is the interval of a run whose metric was paid for; those of several methods stand side by side.
    """
    scale = 100.0 if percent else 1.0

    def draw(ax: Axes, palette: Palette) -> None:
        seen: set[float] = set()
        for place, one in enumerate(series):
            groups = group_by_x(one.points)
            xs = list(groups)
            seen.update(xs)
            colour = palette.series[place % len(palette.series)]
            means = [scale * sum(ys) / len(ys) for ys in groups.values()]
            if any(len(ys) > 1 for ys in groups.values()):
                low = [scale * min(ys) for ys in groups.values()]
                high = [scale * max(ys) for ys in groups.values()]
                ax.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)
                points = [(x, scale * y) for x, ys in groups.items() for y in ys]
                ax.scatter(
                    [x for x, _ in points],
                    [y for _, y in points],
                    s=14,
                    color=colour,
                    alpha=0.65,
                    marker=MARKERS[place % len(MARKERS)],
                    linewidths=0,
                )
            ax.plot(xs, means, label=one.name, **_style(place, palette))
            aside = 1.015 ** (place - (len(series) - 1) / 2)
            for x, low_end, high_end in one.bars:
                middle, half = scale * (low_end + high_end) / 2, scale * (high_end - low_end) / 2
                ax.errorbar(x * aside, middle, half, fmt="none", ecolor=colour, alpha=0.8, elinewidth=1.3, capsize=4)
        for place, (name, value) in enumerate(baselines):
            ax.axhline(scale * value, color=palette.text, linewidth=1.4, linestyle=DASHES[2 - place % 2], label=name)
        if seen:
            ax.set_xlabel("ε (logarithmic)")
            ax.set_ylabel(f"{metric} (%)" if percent else metric)
            _epsilon_axis(ax, sorted(seen))
            _legend(ax, palette)
        else:
            _message(ax, palette, "no public metric to show")

    return draw


def group_by_x(points: Sequence[tuple[float, float]]) -> dict[float, list[float]]:
    """The y values at each x, in increasing order of x; equal to three digits (calibration leaves no more) is equal."""
    groups: dict[float, list[float]] = {}
    for x, y in sorted(points):
        groups.setdefault(float(f"{x:.3g}"), []).append(y)
    return groups


def _epsilon_axis(ax: Axes, values: list[float]) -> None:
    _log_axis(ax, "x")
    low, high = values[0], values[-1]
    margin = (high / low) ** 0.05 if high > 1.1 * low else 2.0  # a single setting gets a decade around it
    ax.set_xlim(low / margin, high * margin)
    spacing = math.log(high / low) / 12 if high > 1.1 * low else math.log(1.1)
    ticks: list[float] = []
    for value in values:
        if not ticks or math.log(value / ticks[-1]) >= spacing:
            ticks.append(value)
    if len(ticks) <= 9:
        ax.xaxis.set_major_locator(FixedLocator(ticks))
        ax.xaxis.set_minor_locator(NullLocator())


def _log_axis(ax: Axes, which: str) -> None:
    """A logarithmic axis with plain numbers, and enough of them when it spans little more than one decade."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    (ax.set_xscale if which == "x" else ax.set_yscale)("log")
    low, high = ax.get_xlim() if which == "x" else ax.get_ylim()
    subs = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
    axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _place: general(value, 3)))
    axis.set_minor_formatter(NullFormatter())


def _style(place: int, palette: Palette) -> dict[str, Any]:
    return {
        "color": palette.series[place % len(palette.series)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": DASHES[place % len(DASHES)],
        "linewidth": 1.8,
        "markersize": 5.5,
    }


def _legend(ax: Axes, palette: Palette) -> None:
    """Above the plot; long names are wrapped, and columns are as many as the figure's width takes."""
    handles, names = ax.get_legend_handles_labels()
    if not handles:
        return
    room = int(getattr(ax.figure, "get_figwidth", lambda: NARROW)() * 11)  # characters in a line, roughly
    longest = max(len(name) for name in names) + 6
    columns = max(1, min(3, len(handles), room // longest))
    wrapped = ["\n".join(textwrap.wrap(name, max(12, room - 6))) for name in names]
    ax.legend(
        handles, wrapped, loc="lower left", bbox_to_anchor=(0, 1.01), ncols=columns, frameon=False,
        labelcolor=palette.text, borderaxespad=0, handlelength=2.6,
    )  # fmt: skip


def _message(ax: Axes, palette: Palette, text: str) -> None:
    ax.set_axis_off()
    ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes, color=palette.text, fontsize=12)


def _figure(draw: Draw, palette: Palette, size: tuple[float, float]) -> Figure:
    figure = Figure(figsize=size, facecolor=palette.background, layout="constrained")
    ax = figure.add_subplot(facecolor=palette.background)
    ax.grid(True, color=palette.grid, linewidth=0.8)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(palette.text)
    draw(ax, palette)
    ax.tick_params(which="both", colors=palette.text)
    ax.xaxis.label.set_color(palette.text)
    ax.yaxis.label.set_color(palette.text)
    return figure


def _svg(draw: Draw, palette: Palette, size: tuple[float, float]) -> str:
    with _defaults():
        figure = _figure(draw, palette, size)
        out = io.BytesIO()
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return out.getvalue().decode("utf-8")


@contextmanager
def _defaults() -> Iterator[None]:
    """matplotlib's own defaults inside the block, whatever the user's settings are; theirs come back afterwards."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "dpml", "font.family": "DejaVu Sans", "font.size": 11})
        yield
