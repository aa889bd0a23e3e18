"""Privacy-utility curves on Adult and Census-Income, every method in one picture, published points beside them.

    python experiments/curves.py [--results FOLDER] [--png FILE] [--quick]

Nothing is trained: the figures are those that ``private_erm.py`` wrote (``private_erm_adult.json`` and
``private_erm_census_income.json`` in ``experiments/results``), with the published figures of ``private_erm_table.py``
and ``private_erm.py``.  Error bars are one standard deviation over the runs; methods are moved apart a little along
ε so that their bars can be told apart.  The picture goes to ``experiments/results/curves.png``, its numbers to
stdout.  Colours are those of Okabe & Ito (2008), and every curve has a marker of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from private_erm import REFERENCES
from private_erm_table import PEERS, PUBLISHED

RESULTS = Path(__file__).resolve().parent / "results"
FILES = {"adult": "private_erm_adult.json", "census_income": "private_erm_census_income.json"}
METRIC = {"adult": ("accuracy", "test accuracy, %", 2), "census_income": ("auc", "test AUC", 4)}
TITLES = {"adult": "Adult, δ = 1e-5", "census_income": "Census-Income (KDD), δ = 1e-6"}
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
STYLES = {  # colour, marker, line
    "auto": (BLACK, "o", "-"),
    "objective": (BLUE, "s", "-"),
    "output": (RED, "v", "-"),
    "dp_gd": (GREEN, "^", "-"),
    "dp_sgd": (ORANGE, "D", "-"),
    "linear_svm objective": (SKY, "P", "--"),
    "linear_svm dp_gd": (PURPLE, "X", "--"),
}
LABELS = {name: name if " " in name else f"logreg {name}" for name in STYLES}
FREE = {"nonprivate": ("logreg, ε = ∞", "--"), "linear_svm nonprivate": ("linear_svm, ε = ∞", ":")}
OTHERS = (  # colour and marker of the published rows, in the order of `published`
    (RED, "v"), (ORANGE, "^"), (BLUE, "s"), (GREEN, "D"), (SKY, "P"), (PURPLE, "<"), (PURPLE, ">"),
)  # fmt: skip
BUDGETS = (0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Curve:
    """Mean and standard deviation over ``runs`` at each ε (rising); ε = ∞ alone for a line without privacy."""

    name: str
    epsilons: tuple[float, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    runs: int


@dataclass(frozen=True)
class Points:
    """Figures of others on Adult: accuracies in percent."""

    name: str
    epsilons: tuple[float, ...]
    values: tuple[float, ...]


def curves(content: dict[str, Any]) -> list[Curve]:
    """The product's methods in a file of ``private_erm.py``, in the order of the file."""
    key = METRIC[content["data"]][0]
    rows = [f for f in content["figures"] if f["part"] == "product"]
    found = []
    for name in dict.fromkeys(f["name"] for f in rows):
        mine = sorted((float(f["epsilon"]), f[key]) for f in rows if f["name"] == name)
        spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for _, values in mine]
        found.append(
            Curve(
                name,
                tuple(epsilon for epsilon, _ in mine),
                tuple(statistics.mean(values) for _, values in mine),
                tuple(spreads),
                max(len(values) for _, values in mine),
            )
        )
    return found


def published() -> list[Points]:
    """Others on Adult: known figures of published methods, diffprivlib, and Yu et al. (δ = 1/n², ε = 0.1 alone)."""
    found = [Points(f"{row.name}, {row.relation}", *_columns(dict(row.known))) for row in REFERENCES]
    found += [
        Points(name.replace("*", ""), *_columns({e: accuracy for e, (accuracy, _) in row.items()}))
        for name, row in PEERS.items()
    ]
    found += [Points(f"Yu et al. 2020: {name}", (0.1,), (value,)) for name, value in PUBLISHED.items()]
    return found


def _columns(values: dict[float, float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(sorted(values)), tuple(values[epsilon] for epsilon in sorted(values))


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The files by data set."""
    return {data: json.loads((folder / name).read_text("utf-8")) for data, name in FILES.items()}


def draw(contents: dict[str, dict[str, Any]], others: Sequence[Points]) -> Any:
    """The figure: ours against others on Adult, our methods on Adult, our methods on Census-Income."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    picture, panels = plt.subplots(1, 3, figsize=(16, 7), layout="constrained")
    found = {data: curves(content) for data, content in contents.items()}
    _others(panels[0], others)
    _at_their_budget(panels[0], [f for f in contents["adult"]["figures"] if f["part"] == "published"])
    _ours(panels[0], [curve for curve in found["adult"] if curve.name in ("auto", "nonprivate")])
    _ours(panels[1], found["adult"])
    _ours(panels[2], found["census_income"])
    panels[0].set(title=f"{TITLES['adult']}: others and ours", ylabel=METRIC["adult"][1])
    panels[1].set(title=f"{TITLES['adult']}: our methods", ylabel=METRIC["adult"][1])
    panels[2].set(title=TITLES["census_income"], ylabel=METRIC["census_income"][1])
    for panel in panels:
        panel.set(xscale="log", xlabel="ε (log scale)", xlim=(0.035 if panel is panels[0] else 0.08, 2.5))
        panel.set_xticks(BUDGETS, [f"{epsilon:g}" for epsilon in BUDGETS])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, fontsize=8.5, frameon=False)
    return picture


def _ours(panel: Any, found: Sequence[Curve]) -> None:
    """Means with bars of one standard deviation; horizontal lines without privacy."""
    shown = [curve for curve in found if curve.name in STYLES]
    for number, curve in enumerate(shown):
        colour, marker, line = STYLES[curve.name]
        shift = 1.025 ** (number - (len(shown) - 1) / 2)
        panel.errorbar(
            [epsilon * shift for epsilon in curve.epsilons],
            curve.means,
            yerr=curve.deviations,
            color=colour, marker=marker, linestyle=line, markersize=5.5, linewidth=1.3, capsize=2.5,
            label=f"{LABELS[curve.name]} ({curve.runs} runs)",
            zorder=3,
        )  # fmt: skip
    for curve in found:
        if curve.name in FREE:
            label, line = FREE[curve.name]
            panel.axhline(curve.means[0], color="0.35", linestyle=line, linewidth=1.2, label=label)


def _others(panel: Any, others: Sequence[Points]) -> None:
    """Hollow markers; each figure of Yu et al. is a star with its name at its left."""
    for points, (colour, marker) in zip((one for one in others if len(one.epsilons) > 1), OTHERS, strict=True):
        panel.plot(
            points.epsilons, points.values,
            color=colour, marker=marker, markerfacecolor="none", markersize=6, linewidth=0.8, linestyle=":",
            label=points.name,
        )  # fmt: skip
    stars = [one for one in others if len(one.epsilons) == 1]
    values = [one.values[0] for one in stars]
    panel.plot([0.088] * len(stars), values, "k*", markersize=7, label="Yu et al. 2020, δ = 1/n²")
    for one in stars:
        name = one.name.partition(": ")[2].replace(" perturbation, ", "-")
        panel.annotate(
            name,
            (0.088, one.values[0]),
            xytext=(-7, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=8,
        )


def _at_their_budget(panel: Any, figures: Sequence[dict[str, Any]]) -> None:
    """Ours at ε = 0.1, δ = 1/n², as ``private_erm.py`` measured it for the comparison with Yu et al."""
    for figure, fill in zip(figures, ("black", "white"), strict=False):
        panel.errorbar(
            [0.112], [statistics.mean(figure["accuracy"])], yerr=[statistics.stdev(figure["accuracy"])],
            color="black", marker="p", markerfacecolor=fill, markersize=7, capsize=2.5, linestyle="none",
            label=f"auto, δ = 1/n², {figure['relation']}",
        )  # fmt: skip


def table(data: str, found: Sequence[Curve]) -> str:
    """The curves as Markdown."""
    digits = METRIC[data][2]
    budgets = sorted({epsilon for curve in found for epsilon in curve.epsilons if math.isfinite(epsilon)})
    text = [f"| {TITLES[data]}: {METRIC[data][1]} | runs | " + " | ".join(f"ε = {e:g}" for e in budgets) + " | ε = ∞ |"]
    text.append("|---|---|" + "---|" * (len(budgets) + 1))
    for curve in found:
        cells = {
            epsilon: f"{mean:.{digits}f}" + (f" ± {deviation:.{digits}f}" if curve.runs > 1 else "")
            for epsilon, mean, deviation in zip(curve.epsilons, curve.means, curve.deviations, strict=True)
        }
        line = " | ".join(cells.get(epsilon, "") for epsilon in (*budgets, math.inf))
        text.append(f"| {curve.name} | {curve.runs} | {line} |")
    return "\n".join(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the numbers and write the picture; 1 if a file of results is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder with the files of private_erm.py")
    parser.add_argument("--png", type=Path, help="default experiments/results/curves.png")
    parser.add_argument("--quick", action="store_true", help="coarse, and no picture unless --png names a file")
    given = parser.parse_args(argv)
    try:
        contents = read(given.results)
    except FileNotFoundError as error:
        print(f"error: {error.filename} is missing; experiments/private_erm.py --json writes it", file=sys.stderr)
        return 1
    found = {data: curves(content) for data, content in contents.items()}
    for data, mine in found.items():
        print(table(data, mine), end="\n\n")
        where = contents[data]["machine"]
        print(f"measured {where['date']} at commit {where['commit']}, {where['processor']}\n")
    target = given.png or (None if given.quick else RESULTS / "curves.png")
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        draw(contents, published()).savefig(target, dpi=50 if given.quick else 120)
        print(f"picture: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
