"""``experiments/curves.py``: what is drawn is what was measured, at the right place; the picture is a picture."""

from __future__ import annotations

import importlib
import json
import math
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "experiments/curves.py"
RESULTS = ROOT / "experiments/results"
METHODS = {"auto", "objective", "output", "dp_gd", "dp_sgd", "linear_svm objective", "linear_svm dp_gd"}


@pytest.fixture(name="curves")
def _curves(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    yield importlib.import_module("curves")
    for name in ("curves", "private_erm", "private_erm_table"):
        sys.modules.pop(name, None)


def content(data: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"private_erm_{data}.json").read_text("utf-8"))


def test_a_quick_run_writes_a_picture_and_the_numbers(tmp_path: Path) -> None:
    target = tmp_path / "deep/curves.png"
    words = [sys.executable, str(SCRIPT), "--quick", "--png", str(target)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    head = target.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:])
    assert (width, height) == (800, 350)
    lines = [line for line in done.stdout.splitlines() if line.startswith("| auto")]
    for line, data, key, digits in zip(lines, ("adult", "census_income"), ("accuracy", "auc"), (2, 4), strict=True):
        (one,) = [f for f in content(data)["figures"] if (f["part"], f["name"], f["epsilon"]) == ("product", "auto", 1)]
        text = f"{np.mean(one[key]):.{digits}f} ± {np.std(one[key], ddof=1):.{digits}f}"
        assert line.split(" | ")[4] == text


def test_every_method_is_drawn_where_it_was_measured(curves: ModuleType) -> None:
    import matplotlib.pyplot as plt

    picture = curves.draw({data: content(data) for data in curves.FILES}, curves.published())
    try:
        first, second, third = picture.axes
        assert {panel.get_xscale() for panel in picture.axes} == {"log"}
        for panel, data, key, methods in (
            (second, "adult", "accuracy", METHODS),
            (third, "census_income", "auc", METHODS),
        ):
            shown = {box.get_label(): box.lines[0] for box in panel.containers}
            assert {label.partition(" (")[0].removeprefix("logreg ") for label in shown} == methods
            for label, line in shown.items():
                name = label.partition(" (")[0].removeprefix("logreg ")
                rows = [f for f in content(data)["figures"] if f["part"] == "product" and f["name"] == name]
                rows.sort(key=lambda f: f["epsilon"])
                assert label.endswith(f"({len(rows[0][key])} runs)")
                np.testing.assert_allclose(line.get_ydata(orig=False), [np.mean(f[key]) for f in rows], rtol=1e-12)
                np.testing.assert_allclose(line.get_xdata(orig=False), [f["epsilon"] for f in rows], rtol=0.1)
            free = [f for f in content(data)["figures"] if f["epsilon"] == "inf"]
            flat = [line.get_ydata()[0] for line in panel.lines if "∞" in str(line.get_label())]
            np.testing.assert_allclose(flat, [np.mean(f[key]) for f in free])
        points = {(round(x, 1), y) for line in first.lines for x, y in line.get_xydata().tolist()}
        yu = {(0.1, 79.3), (0.1, 77.4), (0.1, 80.4), (0.1, 80.9)}
        known = {(0.1, 76.7), (0.5, 82.0), (1.0, 83.1), (0.5, 83.2), (2.0, 84.4)}
        assert yu | known <= points
        looks = [
            (box.lines[0].get_color(), box.lines[0].get_marker()) for box in second.containers
        ]  # none is told apart by colour alone
        assert len({colour for colour, _ in looks}) == len({marker for _, marker in looks}) == len(looks)
    finally:
        plt.close(picture)


def test_legends_and_names_hide_nothing(curves: ModuleType) -> None:
    import matplotlib.pyplot as plt

    picture = curves.draw({data: content(data) for data in curves.FILES}, curves.published())
    try:
        picture.draw_without_rendering()
        for panel in picture.axes:
            box = panel.get_window_extent()
            assert panel.get_legend().get_window_extent().y1 < box.y0
            for text in panel.texts:
                assert text.get_window_extent().x0 > box.x0, text.get_text()
    finally:
        plt.close(picture)


def test_means_and_spreads_by_hand(curves: ModuleType) -> None:
    def row(name: str, epsilon: Any, *auc: float) -> dict[str, Any]:
        return {"part": "product", "name": name, "epsilon": epsilon, "auc": auc, "accuracy": (0.0,)}

    rows = [row("auto", 1.0, 0.9, 0.8), row("auto", 0.5, 0.7, 0.7), row("nonprivate", "inf", 0.95)]
    found = curves.curves({"data": "census_income", "figures": [*rows, {"part": "published"}]})
    auto, free = found
    assert auto == curves.Curve("auto", (0.5, 1.0), auto.means, auto.deviations, 2)
    assert auto.means == pytest.approx((0.7, 0.85))
    assert auto.deviations == pytest.approx((0.0, math.sqrt(0.005)))
    assert free == curves.Curve("nonprivate", (math.inf,), (0.95,), (0.0,), 1)
    *_, last = curves.table("census_income", found).splitlines()
    assert last == "| nonprivate | 1 |  |  | 0.9500 |"


def test_a_missing_file_is_one_line(curves: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert curves.main(["--results", str(tmp_path)]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert "private_erm_adult.json" in shown
