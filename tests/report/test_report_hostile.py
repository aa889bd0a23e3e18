"""Records that somebody broke or made up: an escaped page, or one clear error; never a traceback, never markup."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt
from matplotlib.backends.backend_agg import FigureCanvasAgg

from dpml.accounting import Gaussian, Laplace, Ledger
from dpml.errors import RunFolderError
from dpml.report import figures, write_run_report
from dpml.report.__main__ import main

Make = Callable[..., Path]
Read = Callable[[Path], Any]
EVIL = "<script>alert(1)</script><img src=x onerror=y> [l](http://e.example) `|\n# head\n| a |\x1b[31m\u202eabc\ud800"
HOSTILE: list[Any] = [
    None, True, 0, -1, 1.5, 1e308, -1e308, 10**400, -(10**400), float("nan"), float("inf"), "", "inf", "nan", "0.3",
    EVIL, "x" * 20_000, [], [None, [1]], [EVIL], [1e308, 10**400, "a"], {}, {"a": {"b": [EVIL]}}, {"type": "gaussian"},
    {EVIL: EVIL},
]  # fmt: skip
pytestmark = pytest.mark.usefixtures("quick")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value within a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    out = copy.deepcopy(value)
    place = out
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return out


def harmless(folder: Path, read_page: Read) -> None:
    """The page parses, names nothing outside and holds no markup of the records; the card neither."""
    release = folder / "release"
    page = read_page(release / "report.html")
    assert page.open == []
    assert all(one.startswith(("data:", "#")) for one in page.references)
    html, card = (release / "report.html").read_text("utf-8"), (release / "model_card.md").read_text("utf-8")
    assert "<script" not in html
    assert "onerror=y>" not in html.replace("&gt;", "")
    assert not {"\x1b", "\u202e"} & (set(html) | set(card))
    tokens = MarkdownIt("commonmark").enable("table").parse(card)
    inner = [child for token in tokens for child in token.children or ()]
    assert not [t for t in (*tokens, *inner) if t.type.startswith(("html", "link"))]
    images = [child for child in inner if child.type == "image"]
    assert [image.attrs["src"] for image in images] in ([], ["epsilon_vs_step.png"])
    json.loads((release / "report.json").read_text("utf-8"))


def report_of(folder: Path, read_page: Read) -> str | None:
    """``None`` for a page that is harmless, the message of a refusal otherwise; anything else is a failure."""
    try:
        write_run_report(folder)
    except RunFolderError as fault:
        return str(fault)
    harmless(folder, read_page)
    return None


def written(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def test_values_of_a_result_replaced(run_folder: Make, read_page: Read) -> None:
    """Every value of the upper two levels, and a sample (the seed is fixed) of those below."""
    folder = run_folder(method="output", overrides=["+experiment=logreg"])
    path = folder / "release" / "result.json"
    result = json.loads(path.read_text())
    result["stages"] = {"bounds": {"columns": {"age": {"bounds": [0, 1]}}}, "labels": {"classes": [1], "counts": [2]}}
    result["selection"] = {"candidates": 3, "best_params": {"a": 1}, "score": 0.5, "failure": None}
    choice = np.random.default_rng(8)
    deep = [place for place in places(result) if len(place) > 2]
    upper = [place for place in places(result) if len(place) <= 2]
    for place in [*upper, *(deep[i] for i in choice.choice(len(deep), 30, replace=False))]:
        written(path, replaced(result, place, HOSTILE[choice.integers(len(HOSTILE))]))
        message = report_of(folder, read_page)
        assert message is None or place == ("epsilon",), (place, message)


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_values_where_they_matter_most(run_folder: Make, read_page: Read, number: int) -> None:
    new = HOSTILE[number]
    folder = run_folder(method="output")
    path = folder / "release" / "result.json"
    result = json.loads(path.read_text())
    good = new in ("inf", "0.3") or (isinstance(new, int | float) and not isinstance(new, bool) and new >= 0)
    written(path, {**result, "epsilon": new})
    assert (report_of(folder, read_page) is None) == good
    keys = ("unit", "neighboring_relation", "trajectory", "metrics", "ledger", "plan", "assumptions", "overrides")
    for key in ("delta", keys[number % 8], keys[(number + 3) % 8]):
        written(path, {**result, key: new})
        assert report_of(folder, read_page) is None


def test_every_second_value_of_a_schema_replaced(run_folder: Make, read_page: Read) -> None:
    folder = run_folder(method="output")
    path = folder / "release" / "schema.json"
    schema = json.loads(path.read_text())
    for number, place in enumerate(places(schema)):
        written(path, replaced(schema, place, HOSTILE[number % len(HOSTILE)] if number % 2 else EVIL))
        assert report_of(folder, read_page) is None, place


TRAJECTORIES: list[dict[str, Any]] = [
    {"steps": [1, 2, 2**53], "best": [0.0, 1e308, 10**400], "rdp": ["inf", "nan", EVIL], "zcdp": [1e-300, 0, 1e8]},
    {"steps": [1], "best": [1e308], "rdp": [-1.0], "zcdp": [5e-324]},
    {"steps": [1, 5, 9], "best": [0, 0, 0], "rdp": ["inf"] * 3, "zcdp": None},
]


@pytest.mark.parametrize("found", TRAJECTORIES)
def test_hostile_trajectories_are_drawn_or_left_out(
    run_folder: Make, read_page: Read, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]
) -> None:
    folder = run_folder(method="output", change={"trajectory": {"delta": 1e-5, **found, "notes": {EVIL: EVIL}}})
    drawn = []

    def draw(one: figures.Draw, palette: figures.Palette, size: tuple[float, float]) -> str:
        with figures._defaults():
            figure = figures._figure(one, palette, size)
            FigureCanvasAgg(figure).draw()
        drawn.append(size)
        return "<svg/>"

    monkeypatch.setattr(figures, "_svg", draw)
    assert report_of(folder, read_page) is None
    assert len(drawn) == 4


@pytest.mark.parametrize("missing", ["delta", "method", "plan", "ledger", "data", "trajectory", "guidance", "metrics"])
def test_older_results_lack_keys(run_folder: Make, read_page: Read, missing: str) -> None:
    folder = run_folder()
    path = folder / "release" / "result.json"
    result = json.loads(path.read_text())
    del result[missing]
    written(path, result)
    assert report_of(folder, read_page) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 200_000, b"\xff\xfe", b'{"epsilon": ' + b"9" * 5000 + b"}", b"1"]
)
@pytest.mark.parametrize("name", ["result.json", "schema.json", "config.yaml", "ledger.jsonl", "audit.json"])
def test_files_of_rubbish(
    run_folder: Make, read_page: Read, capsys: pytest.CaptureFixture[str], name: str, content: bytes
) -> None:
    folder = run_folder(method="output")
    (folder / "release" / name).write_bytes(content)
    message = report_of(folder, read_page)
    assert (message is None) == (name in ("config.yaml", "ledger.jsonl", "audit.json")), message
    assert message is None or name in message
    assert main([str(folder)]) == (message is not None)
    out = capsys.readouterr()
    assert "Traceback" not in out.err
    if name in ("ledger.jsonl", "audit.json"):
        assert "PROBLEM" in out.out
        assert "do not rely on it" in read_page(folder / "release" / "report.html").text


def test_a_ledger_with_a_hostile_plan_stage_and_outcome(run_folder: Make, read_page: Read) -> None:
    """The chain of hashes is good, what it holds is not."""
    folder = run_folder(method="output")
    path = folder / "release" / "ledger.jsonl"
    path.unlink()
    ledger = Ledger.create(path, {EVIL.replace("\ud800", ""): [1]})
    ledger.charge(Gaussian(3.0), stage=EVIL.replace("\ud800", ""), count=2**40)
    ledger.charge(Laplace(1e-300), stage="../../bounds")
    ledger.close({"files": {"../result.json": "x", "/etc/passwd": "y"}, "result": 7})
    assert report_of(folder, read_page) is None
    text = read_page(folder / "release" / "report.html").text
    assert "do not rely on it" in text
    assert "result.json was changed" in text
    assert "Not what the closing line binds" in text


def test_a_schema_of_a_thousand_columns_is_a_page(run_folder: Make, read_page: Read) -> None:
    folder = run_folder(method="output")
    columns = {f"c{i}": {"kind": "categorical", "categories": [f"v{j}" for j in range(100)]} for i in range(1000)}
    written(folder / "release" / "schema.json", {"n_declared": 10, "columns": columns})
    assert report_of(folder, read_page) is None
    html = (folder / "release" / "report.html").read_text()
    assert "and 60 more" in html
    assert len(html) < 2_000_000
