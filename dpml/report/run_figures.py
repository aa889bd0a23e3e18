"""The pictures in the report of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes

from dpml.report import figures
from dpml.report.attack import AttackCurve
from dpml.report.audit_record import AuditRecord
from dpml.report.figures import Draw, Palette, Picture, Series
from dpml.report.formats import general, percent_upper, upper
from dpml.report.run_facts import RunFacts

BAR_HEIGHT, BAR_ROOM = 0.5, 1.0  # inches of a bar, and of the rest of the figure


def trajectory_draw(facts: RunFacts) -> tuple[Draw, float | None]:
    """How to draw ε over the steps, or ε by accountant where the method makes one release; and the height."""
    found = facts.trajectory
    if found.one_shot:
        return figures.epsilon_by_accountant(found.last, found.delta), BAR_ROOM + BAR_HEIGHT * len(found.curves)
    series = [
        Series(name, tuple(zip(map(float, found.steps), values, strict=True))) for name, values in found.curves.items()
    ]
    return figures.epsilon_over_steps(series, found.delta), None


def trajectory_picture(facts: RunFacts) -> Picture | None:
    """ε over the steps for the page; ``None`` where there is nothing to draw."""
    found = facts.trajectory
    if not found.curves:
        return None
    draw, height = trajectory_draw(facts)
    ends = ", ".join(f"{name} {upper(value)}" for name, value in found.last) + "."
    if found.one_shot:
        alt = f"Bars: ε at δ = {upper(found.delta)} by accountant. {ends}"
        caption = "The method makes its release at once, so there is no curve over steps; ε by accountant instead."
    else:
        alt = (
            f"Lines: ε at δ = {upper(found.delta)} after each of 1 to {found.steps[-1]} steps, rising. "
            f"At the end: {ends}"
        )
        caption = "Budget used after so many steps. Each line is a sound upper bound."
        if sum(one.charged for one in facts.stages) > 1:
            caption += " The other charged stages are counted from the first step on."
    return figures.picture(draw, alt=alt, caption=caption, height=height)


def stages_picture(facts: RunFacts) -> Picture | None:
    """ε of each charged stage alone, where more than one was charged."""
    charged = [(one.stage, one.epsilon) for one in facts.stages if one.charged]
    values = [(name, value) for name, value in charged if value is not None and math.isfinite(value)]
    if len(values) < 2:
        return None
    text, total = ", ".join(f"{name} {upper(value)}" for name, value in values), upper(facts.epsilon)
    return figures.picture(
        figures.epsilon_by_accountant(values, facts.delta),
        alt=f"Bars: ε of each charged stage alone at δ = {upper(facts.delta)}. {text}. All together {total}.",
        caption=f"What each stage would cost alone. All together cost ε = {total}, not the sum of the bars.",
        height=BAR_ROOM + BAR_HEIGHT * len(values),
    )


def tradeoff_picture(facts: RunFacts) -> Picture | None:
    """The trade-off curve, with the audit's points where there are any; ``None`` without privacy."""
    curve, audit = facts.curve, facts.audit
    if curve is None:
        return None
    points = audit.points if audit else ()
    text = f"The sum of both errors is nowhere smaller than 1 by more than {percent_upper(curve.advantage)}."
    if points:
        text += f" {len(points)} attacks that were carried out are marked."
    source = "what was charged" if curve.from_event else "(ε, δ)"
    return figures.picture(
        _tradeoff(curve, audit),
        alt=f"Trade-off curve: smallest type-II error against type-I error of any attack, from {source}. {text}",
        caption="No attack gets below the curve. On the dotted line nothing leaks; the closer to it, the better."
        + (f" Points: {audit.points_meaning}." if audit and points else ""),
    )


def _tradeoff(curve: AttackCurve, audit: AuditRecord | None) -> Draw:
    def draw(ax: Axes, palette: Palette) -> None:
        ax.plot([0, 1], [1, 0], color=palette.text, linewidth=1.2, linestyle=":", label="guessing")
        name = "from what was charged" if curve.from_event else "no attack is below"
        ax.plot(curve.type1, curve.type2, color=palette.series[0], linewidth=2.2, label=name)
        ax.fill_between(curve.type1, curve.type2, 0, color=palette.series[0], alpha=0.12, linewidth=0)
        if curve.from_event:
            ax.plot(
                curve.type1, curve.alone, color=palette.series[1], linewidth=1.6, linestyle=(0, (6, 2)),
                label="from (ε, δ) alone",
            )  # fmt: skip
        if audit and audit.points:
            _points(ax, palette, audit.points)
        ax.set(xlim=(0, 1), ylim=(0, 1))
        ax.set_xlabel("false alarms (type-I error)")
        ax.set_ylabel("misses (type-II error)")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(lambda value, _place: f"{general(100 * value, 3)} %")
        figures._legend(ax, palette)

    return draw


def _points(ax: Axes, palette: Palette, points: Sequence[tuple[float, float]]) -> None:
    xs, ys = zip(*points, strict=True)
    ax.plot(
        xs, ys, color=palette.series[3], marker="D", markersize=7, linestyle="none", label="attacks made",
        markeredgecolor=palette.background, clip_on=False, zorder=5,
    )  # fmt: skip
