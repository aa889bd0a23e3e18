"""``python -m dpml.sample_size --plot FILE.png``: n against ε at one excess risk, one line per method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpml.errors import ConfigError, invalid
from dpml.sample_size_answers import LAPLACE, RESPONSE, RULE, STATISTICS, solve_all

POINTS = 41
USUAL = (0.05, 10.0)  # the range of ε, unless values of it are given
LABELS = {
    RULE: "rule",
    "output": "output",
    "objective": "objective",
    "dp_sgd": "dp_sgd, dp_gd",
    STATISTICS: "statistics, no privacy",
    RESPONSE: "one yes/no: randomized response",
    LAPLACE: "one mean: Laplace",
}
STYLES: dict[str, dict[str, Any]] = {  # colours of Okabe and Ito
    RULE: {"color": "#1d2430", "linestyle": (0, (5, 2)), "linewidth": 1.6},
    "output": {"color": "#B94700", "linewidth": 2.0},
    "objective": {"color": "#0072B2", "linewidth": 3.6, "alpha": 0.55},
    "dp_sgd": {"color": "#0B3C5D", "linestyle": (0, (1, 1.6)), "linewidth": 2.0},
    STATISTICS: {"color": "#5d6675", "linestyle": (0, (1, 3)), "linewidth": 1.6},
    RESPONSE: {"color": "#007A5A", "linewidth": 1.2},
    LAPLACE: {"color": "#9A4A7C", "linewidth": 1.2},
}


def check_plot(path: Path, given: Mapping[str, Sequence[float]]) -> None:
    """Refuse before anything is computed what cannot be drawn or written.

    Raises:
        ConfigError: not a PNG, no folder for it, no d or excess_risk to hold fixed, or several of them.
    """
    if path.suffix.lower() != ".png":
        raise invalid("--plot", str(path), "a file whose name ends in .png")
    if not path.resolve().parent.is_dir():
        raise invalid("--plot", str(path), "in a folder that exists")
    for name in ("d", "excess_risk"):
        if name not in given:
            raise ConfigError(f"--plot draws n against epsilon and needs {name}: give it, and leave n or epsilon out.")
        if len(given[name]) > 1:
            raise ConfigError(f"--plot draws one {name}, but {len(given[name])} are given. Draw them one by one.")
    if len(given.get("n", ())) > 1:
        raise ConfigError("--plot marks one n, but several are given. Draw them one by one.")


def write_plot(path: Path, given: Mapping[str, Sequence[float]], settings: Mapping[str, Any]) -> None:
    """The picture as a PNG file.

    Raises:
        ConfigError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    epsilons = given.get("epsilon", ())
    low, high = (min(epsilons), max(epsilons)) if len(set(epsilons)) > 1 else USUAL
    steps = [low * (high / low) ** (k / (POINTS - 1)) for k in range(POINTS)]
    d, risk = given["d"][0], given["excess_risk"][0]
    found = solve_all({"d": [d], "epsilon": steps, "excess_risk": [risk]}, settings)
    figure = Figure(figsize=(8.0, 5.4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for key, style in STYLES.items():
        values = [row.cells[key].value for row in found.rows]
        axes.plot(steps, [math.nan if value is None else value for value in values], label=LABELS[key], **style)
    if "n" in given:
        axes.axhline(given["n"][0], color="#c8102e", linewidth=1.2)
        axes.annotate(
            f"your n = {int(given['n'][0]):,}",
            (high, given["n"][0]),
            xytext=(-4, 4),
            textcoords="offset points",
            ha="right",
            color="#c8102e",
            fontsize=9,
        )
    axes.set(xscale="log", yscale="log", xlabel="ε", ylabel="records n", xlim=(low, high))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(which="major", color="#d4d9e1", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    setting = found.setting
    axes.set_title(
        f"Records for excess risk {risk:g} at d = {int(d):,}\n"
        f"δ = {setting.delta:g}, {setting.neighboring_relation}, R = {setting.solution_norm:g}, "
        f"L = {setting.norm_bound:g}; "
        f"means: error {risk:g} with probability {found.confidence:g}",
        fontsize=10,
        loc="left",
    )
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    try:
        FigureCanvasAgg(figure).print_png(str(path), metadata={"Software": None})
    except OSError as error:
        raise invalid("--plot", str(path), f"a file that can be written ({error.strerror or error})") from error
