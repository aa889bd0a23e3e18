"""The same report as Markdown and as JSON; what an audit of the run adds; where the budget went."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from dpml.accounting import Composed, EpsilonDelta, Gaussian, Ledger, Pure
from dpml.report import markdown, write_run_report
from dpml.report.attack import attack_curve
from dpml.report.audit_record import read_audit
from dpml.report.budget import stage_costs
from dpml.report.records import read_run

Make = Callable[..., Path]
Read = Callable[[Path], Any]
pytestmark = pytest.mark.usefixtures("quick")
AUDIT = {
    "epsilon_lower": 0.4, "epsilon_upper": 1.0, "delta": 1e-5, "confidence": 0.95, "method": "two_world",
    "points": [[0.05, 0.9], [0.3, 0.6]], "points_meaning": "upper limits of attacks' errors",
    "assumptions": ["the attacker sees every step"], "runs": 400,
}  # fmt: skip


def plain(card: str) -> str:
    """A card's text as a reader of Markdown sees it, tables with single spaces between cells."""
    tokens = MarkdownIt("commonmark").enable("table").parse(card)
    parts = []
    for token in tokens:
        if token.type == "inline":
            parts.append("".join(child.content for child in token.children or ()))
        elif token.type == "fence":
            parts.append(token.content)
    return " ".join(" ".join(parts).split())


def test_the_card_says_what_the_page_says(run_folder: Make, read_page: Read) -> None:
    folder = run_folder(overrides=["+experiment=logreg", "method=dp_sgd", "data.path=my table.csv"])
    page = read_page(write_run_report(folder)).text
    card = plain((folder / "release" / "model_card.md").read_text("utf-8"))
    facts = json.loads((folder / "release" / "report.json").read_text("utf-8"))
    for words in (
        facts["sentence"],
        "add or remove one record (add_remove)",
        "Each person has at most one record.",
        "True positives at 1 % false positives 1 %",
        "accuracy 85.12 % 85.33 %",
        "the public test set of the fixture",
        "zCDP ignores amplification by sampling",
        "capital-gain numeric 0 to 99 999",
        "target income with classes <=50K, >50K",
        "python -m dpml.train +experiment=logreg method=dp_sgd 'data.path=my table.csv'",
        "python -m dpml.verify RUN",
        "Nothing charged: bounds are declared, from public knowledge.",
        "Poisson-sampled (q = 0.02764) gaussian, noise multiplier 2.05",
        facts["head"],
        *(check["text"] for check in facts["checks"]),
    ):
        words = words.replace("\u00a0", " ").replace("\u202f", " ")
        assert words in page, words
        assert words in card, words


def test_headings_of_the_card_are_those_of_the_page(run_folder: Make) -> None:
    folder = run_folder()
    page = write_run_report(folder).read_text("utf-8")
    card = (folder / "release" / "model_card.md").read_text("utf-8")
    titles = [line[3:] for line in card.splitlines() if line.startswith("## ")]
    assert len(titles) == 9
    assert all(f"<h2>{title}" in page for title in titles if title != "The guarantee")


def test_the_json_has_unrounded_numbers(run_folder: Make) -> None:
    folder = run_folder(epsilon=1.0123456789)
    write_run_report(folder)
    facts = json.loads((folder / "release" / "report.json").read_text("utf-8"))
    assert facts["format"] == 1
    assert facts["epsilon"] == 1.0123456789
    assert facts["attack"]["posterior"] == pytest.approx(0.73347895, abs=1e-7)  # e^ε/(1 + e^ε), worked out by hand
    assert facts["problems"] == []
    assert {row["name"] for row in facts["accountants"]} >= {"exact", "pld", "rdp", "zcdp", "basic"}
    assert "picture" not in json.dumps(facts)


@pytest.mark.parametrize(
    "text", ["# head", "- item", "1. item", "a | b", "<b>x</b>", "[x](y)", "![x](y)", "`x`", "*x*", "_x_", "~~x~~",
             "&lt;", "http://e.example", "www.e.example", "a@e.example", "+ x", "= x", "line\nbreak", "\\", "> q", "$"]
)  # fmt: skip
def test_escaped_text_stays_text(text: str) -> None:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    (token,) = [one for one in parser.parse(markdown.escape(text)) if one.type == "inline"]
    assert {child.type for child in token.children or ()} <= {"text", "text_special"}
    assert "".join(child.content for child in token.children or ()) == text.replace("\n", " ")
    cells = [one for one in parser.parse("\n".join(markdown.table(["a"], [[text]]))) if one.type == "inline"]
    assert "".join(child.content for child in cells[1].children or ()) == text.replace("\n", " ")


def test_a_fence_cannot_be_left() -> None:
    tokens = MarkdownIt("commonmark").parse("\n".join(markdown.fence("a\n```\n<script>\n````\nb")))
    assert [token.type for token in tokens] == ["fence"]
    assert tokens[0].content == "a\n```\n<script>\n````\nb\n"


# ------------------------------------------------------------------------------------------------------- audit


def audited(folder: Path, **change: Any) -> Path:
    (folder / "release" / "audit.json").write_text(json.dumps({**AUDIT, **change}))
    return folder


def test_an_audit_is_told_and_its_points_are_counted(run_folder: Make, read_page: Read) -> None:
    folder = audited(run_folder(method="output"))
    page = read_page(write_run_report(folder))
    words = "an audit (two_world) shows that ε cannot be below 0.4 at δ = 1e-5 (confidence 95.0 %)"
    assert words in page.text
    assert "the attacker sees every step" in page.text
    assert "2 attacks that were carried out are marked" in page.images[0]["alt"]
    assert "Points: upper limits of attacks' errors." in page.text
    assert words in plain((folder / "release" / "model_card.md").read_text("utf-8"))


def test_an_audit_that_found_nothing_says_so(run_folder: Make, read_page: Read) -> None:
    text = read_page(write_run_report(audited(run_folder(method="output"), epsilon_lower=0.0))).text
    assert "proved no lower bound on ε" in text
    assert "cannot be below" not in text


def test_an_audit_above_the_claim_is_an_alarm(run_folder: Make, read_page: Read) -> None:
    text = read_page(write_run_report(audited(run_folder(method="output"), epsilon_lower=1.2))).text
    assert "Do not rely on this page" in text
    assert "The audit found ε ≥ 1.2, more than the reported ε" in text


def test_an_audit_at_a_smaller_delta_contradicts_nothing(run_folder: Make, read_page: Read) -> None:
    folder = audited(run_folder(method="output"), epsilon_lower=1.2, delta=1e-7)
    assert "Do not rely on this page" not in read_page(write_run_report(folder)).text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon_lower": -1}, "epsilon_lower = -1"),
        ({"epsilon_lower": "nan"}, "epsilon_lower"),
        ({"delta": 2}, "delta = 2"),
        ({"confidence": None}, "confidence = None"),
        ({"points": [[0.1]]}, "is no pair of rates"),
        ({"points": [[0.1, 1.5]]}, "is no pair of rates"),
        ({"points": 3}, "points is no list"),
        ({"method": 3}, "method is no text"),
        ({"assumptions": "all"}, "assumptions is no list"),
    ],
)
def test_a_malformed_audit_is_refused_in_words(
    run_folder: Make, read_page: Read, change: dict[str, Any], message: str
) -> None:
    text = read_page(write_run_report(audited(run_folder(method="output"), **change))).text
    assert "audit.json is not the record of an audit" in text
    assert message in text


def test_points_may_have_names_and_no_audit_is_no_problem(run_folder: Make, tmp_path: Path) -> None:
    folder = audited(run_folder(method="output"), points={"one": [0.1, 0.8]}, epsilon_upper=None)
    found, problem = read_audit(folder / "release" / "audit.json")
    assert problem is None
    assert found is not None
    assert found.points == ((0.1, 0.8),)
    assert read_audit(tmp_path / "nothing.json") == (None, None)


# ------------------------------------------------------------------------------------------------------- budget


def ledger_of(folder: Path, stages: dict[str, Any]) -> Any:
    path = folder / "release" / "ledger.jsonl"
    path.unlink()
    ledger = Ledger.create(path, {"method": "output"})
    for name, event in stages.items():
        ledger.charge(event, stage=name)
    ledger.close({"epsilon": 1.0})
    return read_run(folder)


def test_the_budget_by_stage(run_folder: Make) -> None:
    found = {
        "bounds": {"columns": {"age": {"bounds": [8.0, 128.0]}}},
        "labels": {"classes": ["no", "yes"], "frequencies": [0.6, 0.4]},
    }
    folder = run_folder(method="output", change={"stages": found, "metrics": {}})
    record = ledger_of(
        folder,
        {
            "bounds": Composed((Pure(0.3), Pure(0.2))), "labels": Pure(0.1), "train": Gaussian(3.7306317),
            "extra": EpsilonDelta(0.2, 1e-6),
        },
    )  # fmt: skip
    rows = stage_costs(record.result, record.ledger, delta=1e-5, relation="add_remove")
    assert [row.stage for row in rows] == [
        "Bounds of the columns", "Categories", "Label frequencies", "Tuning", "Training", "Metrics", "extra",
    ]  # fmt: skip
    assert [row.charged for row in rows] == [True, False, True, False, True, False, True]
    costs = [row.epsilon for row in rows if row.epsilon is not None]
    assert costs == pytest.approx([0.5, 0.1, 1.0, 0.2], rel=1e-3)
    assert rows[0].remark == "Found: age 8 to 128."
    assert rows[2].remark == "Noisy shares of the classes: no 60.0\u00a0%, yes 40.0\u00a0%."
    assert rows[0].events == ("pure ε = 0.3 + pure ε = 0.2",)
    assert "nothing was measured on private records" in rows[5].remark


def test_a_search_pays_for_the_tuning(run_folder: Make) -> None:
    selection = {"candidates": 3, "best_params": {"regularization": 0.001}, "score": 0.84, "failure": None}
    record = ledger_of(run_folder(method="output", change={"selection": selection}), {"search": Gaussian(4.0)})
    rows = {row.stage: row for row in stage_costs(record.result, record.ledger, delta=1e-5, relation="add_remove")}
    assert "Training" not in rows
    assert "Tuning" not in rows
    assert rows["Tuning and training"].remark.startswith("Best of 3 candidates: regularization: 0.001.")


# -------------------------------------------------------------------------------------------------------- curve


def test_the_curve_is_the_worst_pairs_without_an_event_and_never_below_it_with_one() -> None:
    alone = attack_curve(None, 1.0, 0.0, neighboring_relation="add_remove")
    assert not alone.from_event
    assert alone.true_positive_rates[0.01] == pytest.approx(0.0271828, abs=1e-7)  # e·1 %
    assert alone.advantage == pytest.approx(0.4621172, abs=1e-7)  # (e − 1)/(e + 1)
    with_event = attack_curve(Gaussian(3.7306317), 1.0, 1e-5, neighboring_relation="add_remove")
    assert with_event.from_event
    assert all(a >= b for a, b in zip(with_event.type2, with_event.alone, strict=True))
    assert all(a + b <= 1 + 1e-12 for a, b in zip(with_event.type1, with_event.type2, strict=True))
    weak = attack_curve(Gaussian(0.01), 1.0, 1e-5, neighboring_relation="add_remove")
    assert not weak.from_event
