"""Reports of the workers as Markdown: one table of figures, one that sets ours against every peer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peer_contract import Report, Row

DEFAULT_C = 1.0
OURS = ("objective", "auto")  # the rows that are set against the peers
TITLES = {
    ("diffprivlib", "default"): "diffprivlib LogisticRegression, default C = 1",
    ("diffprivlib", "best"): "diffprivlib LogisticRegression, best C *on the test data*",
    ("ebm", "DP-EBM"): "InterpretML DP-EBM, public bounds given",
}


@dataclass(frozen=True)
class Line:
    """One method over all budgets: for each ε the row that accuracy and time, and the one that AUC is taken from.

    They differ only where a hyper-parameter is chosen on test data, for each figure on its own.
    """

    peer: str
    title: str
    by_accuracy: Mapping[float, Row]
    by_auc: Mapping[float, Row]

    def accuracy(self, epsilon: float) -> float:
        """Mean test accuracy, percent."""
        return 100 * statistics.mean(self.by_accuracy[epsilon].accuracy)

    def auc(self, epsilon: float) -> float:
        """Mean test AUC."""
        return statistics.mean(self.by_auc[epsilon].auc)

    def cpu_seconds(self, epsilon: float, encoded: bool = False) -> float:
        """Median CPU time of a fit; ``encoded``: of the fit on encoded rows, where the worker times both."""
        row = self.by_accuracy[epsilon]
        return statistics.median((row.encoded_cpu_seconds if encoded else ()) or row.cpu_seconds)


def lines(reports: Sequence[Report], budgets: Sequence[float]) -> list[Line]:
    """The lines of the table, peers first."""
    result = []
    for report in reports:
        if report.peer == "diffprivlib":
            default = {row.epsilon: row for row in report.rows if row.setting["C"] == DEFAULT_C}
            by_accuracy = {e: max(_at(report, e), key=lambda row: statistics.mean(row.accuracy)) for e in budgets}
            by_auc = {e: max(_at(report, e), key=lambda row: statistics.mean(row.auc)) for e in budgets}
            result.append(Line(report.peer, TITLES[report.peer, "default"], default, default))
            result.append(Line(report.peer, TITLES[report.peer, "best"], by_accuracy, by_auc))
            continue
        for method in dict.fromkeys(row.method for row in report.rows):
            rows = {row.epsilon: row for row in report.rows if row.method == method}
            title = TITLES.get((report.peer, method), f"{report.peer} `{method}`")
            result.append(Line(report.peer, title, rows, rows))
    return result


def figures(found: Sequence[Line], budgets: Sequence[float], failures: Mapping[str, str]) -> str:
    """The table of figures; a peer without any has a line that says so."""
    head = "| method | figure | " + " | ".join(f"ε = {e:g}" for e in budgets) + " |"
    text = [head, "|---|---|" + "---|" * len(budgets)]
    for line in found:
        cells = {
            "accuracy, %": [_spread([100 * v for v in line.by_accuracy[e].accuracy], 2) for e in budgets],
            "AUC": [_spread(line.by_auc[e].auc, 4) for e in budgets],
            "fit, s": [f"{statistics.median(line.by_accuracy[e].seconds):.2f}" for e in budgets],
            "fit, CPU s": [f"{line.cpu_seconds(e):.2f}" for e in budgets],
        }
        if any(row.encoded_cpu_seconds for row in line.by_accuracy.values()):
            cells["fit on encoded rows, CPU s"] = [f"{line.cpu_seconds(e, encoded=True):.2f}" for e in budgets]
        settings = [_chosen(line.by_accuracy[e], line.by_auc[e]) for e in budgets]
        if len(set(settings)) > 1:
            cells["C (for accuracy, for AUC)"] = settings
        for number, (name, values) in enumerate(cells.items()):
            text.append(f"| {line.title if not number else ''} | {name} | " + " | ".join(values) + " |")
    for peer in failures:
        text.append(f"| {peer} | **could not be measured** |" + " – |" * len(budgets))
    return "\n".join(text)


def better_everywhere(ours: Line, peer: Line, budgets: Sequence[float]) -> bool:
    """Whether both of our means are above the peer's at every ε."""
    return all(ours.accuracy(e) > peer.accuracy(e) and ours.auc(e) > peer.auc(e) for e in budgets)


def comparison(found: Sequence[Line], budgets: Sequence[float]) -> str:
    """Ours against every peer: differences of the means, ratios of CPU times, and whether ours is better at every ε.

    The time of a peer that takes encoded rows stands against our fit on encoded rows, else against our whole fit.
    """
    names = {f"dpml `{method}`" for method in OURS}
    ours = [line for line in found if line.title in names]
    others = [line for line in found if line.peer != "dpml"]
    if not ours or not others:
        return "No comparison: it needs dpml and a peer."
    points = ", ".join(f"{e:g}" for e in budgets)
    text = [
        f"| ours against | accuracy ahead, points (ε = {points}) | AUC ahead | peer's fit time ÷ ours (CPU) "
        "| better at every ε in accuracy and AUC |",
        "|---|---|---|---|---|",
    ]
    for mine in ours:
        for peer in others:
            encoded = peer.peer == "diffprivlib"
            cells = (
                " / ".join(f"{mine.accuracy(e) - peer.accuracy(e):+.2f}" for e in budgets),
                " / ".join(f"{mine.auc(e) - peer.auc(e):+.4f}" for e in budgets),
                " / ".join(_ratio(peer.cpu_seconds(e), mine.cpu_seconds(e, encoded)) for e in budgets),
                "yes" if better_everywhere(mine, peer, budgets) else "**no**",
            )
            text.append(f"| {mine.title} against {peer.title} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def notes(reports: Sequence[Report], failures: Mapping[str, str], runs: int, delta: float) -> str:
    """What the figures mean: guarantees, choices, versions, and why a peer is missing."""
    plural = "" if runs == 1 else "s"
    text = [
        f"Adult as bundled, public split, δ = {_power(delta)} (diffprivlib: 0); mean ± standard deviation over {runs} "
        f"run{plural}, fit time: median, imports apart.",
        "The workers ran one after another with the same number of threads. Wall-clock time suffers from other load on "
        "the machine, CPU time hardly does: the ratios are of CPU times.",
    ]
    for report in reports:
        names = ", ".join(f"{name} {number}" for name, number in report.versions.items())
        text.append(f"{report.peer}: {report.guarantee}. ({names})")
    if any(report.peer == "diffprivlib" for report in reports):
        text.append(
            "Best C is chosen at each ε on the test records, for accuracy and for AUC apart, and not paid for: this "
            "favours the peer. Its rows are min-max + one-hot, clipped to norm 1."
        )
    text += [f"NOT MEASURED: {reason}" for reason in failures.values()]
    return "\n".join(f"- {line}" for line in text)


def _at(report: Report, epsilon: float) -> list[Row]:
    return [row for row in report.rows if row.epsilon == epsilon]


def _spread(values: Sequence[float], digits: int) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.{digits}f}" + ("" if math.isnan(spread) else f" ± {spread:.{digits}f}")


def _power(delta: float) -> str:
    return f"{delta:.0e}".replace("e-0", "e-")


def _ratio(theirs: float, mine: float) -> str:
    return f"{theirs / mine:.2f}" if mine > 0.0 else "–"


def _chosen(by_accuracy: Row, by_auc: Row) -> str:
    return ", ".join(f"{row.setting['C']:g}" for row in (by_accuracy, by_auc) if "C" in row.setting)
